"""What is a rollout worth that teaches nothing? Groups without signal are kept, or refilled with other tasks.

Both at equal numbers of played rollouts. Rollouts that were played to refill a group count, discarded ones too: a run
that refills takes fewer steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.common.experiment import Arm, Experiment, Profile
from benchmarks.learning.refill import rollout_budget

ARMS: Mapping[str, Arm] = {
    "plain": Arm("every task alike", learn=rollout_budget.train),
    "refill": Arm("refilled", {"refill_groups": 4}, learn=rollout_budget.train),
}


def _trainer(prompts: int, copies: int) -> dict[str, float]:
    """A fifth of the quickstart's learning rate, which learns all before a difference shows; small groups."""
    batch = {"per_device_train_batch_size": prompts * copies, "gradient_accumulation_steps": 1}
    return {"num_generations": copies, **batch, "learning_rate": 6e-5}


_WORLD = {"style": "compact", "entities": 800}
PROFILES: Mapping[str, Profile] = {
    "cpu": Profile(
        seeds=(0, 1, 2, 3, 4),
        training={**_WORLD, "questions": 2000, "mix": {"1hop": 0.4, "bridge": 0.3, "3hop": 0.3}},
        steps=4800 // 64,
        trainer=_trainer(prompts=16, copies=4),
        validation=rollout_budget.SETS,
        validation_questions=100,
    ),
    "smoke": Profile(
        seeds=(0,),
        training={**_WORLD, "questions": 64, "mix": {"1hop": 0.5, "bridge": 0.5}},
        steps=4,
        trainer=_trainer(prompts=4, copies=2),
        validation=rollout_budget.SETS,
        validation_questions=4,
    ),
}
"""`steps` are those of a run without refills: its rollouts are what every run may play."""

EXPERIMENT = Experiment(
    name="refill",
    about=__doc__,
    arms=ARMS,
    profiles=PROFILES,
    tables={"At the end": rollout_budget.ends, "Curves": rollout_budget.curves},
)
