"""Can a policy that follows a solution, if it reads one, teach itself a task that it hardly ever solves?

The toy policy follows a solution in front of its prompt. Without one it searches once and answers, so that hardly any
of its rollouts on questions of three hops succeeds, and groups of rollouts have no signal. The teacher is the same
policy, as it is at the start, with the solution of the environment's oracle. All arms play the same number of rollouts
per step, but for `grpo-refill`, which plays more, and `demonstrations`, which plays none: it learns by supervision from
right demonstrations of as many questions. The task was chosen after pilots of five arms (seed 100); the rest was fixed
before the cells ran.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.common.contrasts import Contrast
from benchmarks.common.experiment import Arm, Experiment, Profile, Run, Start, reinforce
from benchmarks.common.policy import first_and_last
from benchmarks.common.tables import Cells, arms, by_step, contrasts_of, share
from benchmarks.learning.multihop_qa.searches import imitate
from benchmarks.learning.self_distillation.warm_start import SOLUTION, SolutionReader
from trainers.toy.held_out import held_out

CHAIN = "3 hops"


def taught_by_the_start(run: Run) -> tuple[Any, dict[str, Any]]:
    """Trains as the arm says, with the policy of the start as the teacher."""
    trainer = {**run.arm.trainer, "teacher_model_name_or_path": str(run.folder), "teacher_privileged": SOLUTION}
    return reinforce(replace(run, arm=replace(run.arm, trainer=trainer)))


def _taught(title: str, algorithm: str, placement: str) -> Arm:
    settings = {"algorithm": algorithm, "distillation_placement": placement, "distillation_weight": 1.0}
    return Arm(title, settings, learn=taught_by_the_start)


ARMS: Mapping[str, Arm] = {
    "grpo": Arm("GRPO"),
    "grpo-refill": Arm("GRPO, groups refilled", {"refill_groups": 4}),
    "ppo-solution": Arm("PPO, critic reads the solution", {"algorithm": "ppo", "critic_privileged": SOLUTION}),
    "sampled": _taught("teacher alone, sampled tokens", "opd", "advantage"),
    "vocabulary": _taught("teacher alone, whole vocabulary", "opd", "loss"),
    "moving": Arm(
        "teacher alone, whole vocabulary, moves with the policy",
        {"algorithm": "opsd", "distillation_placement": "loss"},
    ),
    "grpo-vocabulary": _taught("GRPO and teacher, whole vocabulary", "grpo", "loss"),
    "demonstrations": Arm("demonstrations", learn=imitate),
}
CONTRASTS = (
    Contrast("teacher - GRPO", "vocabulary", "grpo", "end"),
    Contrast("whole vocabulary - sampled tokens", "vocabulary", "sampled", "end"),
    Contrast("fixed - moving teacher", "vocabulary", "moving", "end"),
    Contrast("with - without rewards", "grpo-vocabulary", "vocabulary", "end"),
)
"""Tested together: their p-values are Holm's."""
_HELD_OUT = {CHAIN: held_out("test", "3hop")}
_CPU = Profile(
    starts=(Start(SolutionReader(0)),),
    seeds=tuple(range(8)),
    training={"style": "compact", "entities": 800, "questions": 2000, "mix": {"3hop": 1.0}, "reward": "em"},
    steps=60,
    validation=_HELD_OUT,
    validation_questions=100,
    every=10,
    evaluate_first=True,
    tests={**_HELD_OUT, "1 hop": held_out("test", "1hop")},
    test_questions=200,
    summarise=partial(first_and_last, names={"without_signal": "group/frac_zero_std"}, steps=1),
)
PROFILES: Mapping[str, Profile] = {
    "cpu": _CPU,
    "smoke": replace(
        _CPU,
        starts=(Start(SolutionReader(0, steps=2)),),
        seeds=(0,),
        training={**_CPU.training, "questions": 64},
        trainer={"num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1},
        steps=1,
        validation_questions=4,
        test_questions=4,
        every=1,
    ),
}
"""A step has 16 questions x 8 rollouts, but for smoke. The contrasts take the questions of three hops."""


def solved(cells: Cells) -> str:
    """Scores at the end, and the share of groups without signal in the first step."""

    def silent(_arm: str, found: Any) -> str:
        shares = [cell["training"]["without_signal"][0] for cell in found if "training" in cell]
        return f"{statistics.mean(shares):.3f}" if shares else ""

    return arms(cells, groups_without_signal_in_step_1=silent)


EXPERIMENT = Experiment(
    name="self_distillation",
    about=__doc__,
    arms=ARMS,
    profiles=PROFILES,
    contrasts={"Contrasts": CONTRASTS},
    tables={
        "Arms": solved,
        "Contrasts": contrasts_of("Contrasts"),
        "Curves": lambda cells: by_step(cells, "solved after steps", lambda point: share(point[CHAIN])),
    },
)
