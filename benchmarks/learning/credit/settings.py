"""What does credit by turn gain in episodes of many turns with rewards on the way? Every estimator, side by side.

Arms, contrasts and profiles were fixed before the cells ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.common.contrasts import Contrast
from benchmarks.common.experiment import Arm, Experiment, Profile, Start
from benchmarks.common.tables import contrasts_of, power
from benchmarks.learning.credit import warm_starts
from benchmarks.learning.credit.warm_starts import ENV, LEDGER, Beginner

_LAM = {"lam": 0.95}
"""Of the preset of `gagpo`, and so of both PPOs: with the default, 1, GAE by turn and by token differ in the baseline
alone."""

ARMS: Mapping[str, Arm] = {
    "grpo-outcome": Arm("GRPO, outcome reward alone", {"algorithm": "grpo"}, env={"reward": "em"}),
    "grpo": Arm("GRPO", {"algorithm": "grpo"}),
    "grpo-turn-returns": Arm("GRPO, returns by turn", {"algorithm": "grpo", "turn_returns": True}),
    "turn_group": Arm("turn_group", {"algorithm": "turn_group"}),
    "gigpo": Arm("GiGPO", {"algorithm": "gigpo"}),
    "gagpo": Arm("GAGPO", {"algorithm": "gagpo", **_LAM}),
    "mt_grpo": Arm("MT-GRPO", {"algorithm": "mt_grpo"}),
    "ppo": Arm("PPO, GAE by token", {"algorithm": "ppo", **_LAM}),
    "ppo-turn": Arm("PPO, GAE by turn", {"algorithm": "ppo", "gae_level": "turn", **_LAM}),
    "reinforce++": Arm("REINFORCE++", {"algorithm": "reinforce++"}),
    "grpo-fast": Arm("GRPO, twice the rate", {"algorithm": "grpo", "learning_rate": 1e-3}),
    "gagpo-fast": Arm("GAGPO, twice the rate", {"algorithm": "gagpo", **_LAM, "learning_rate": 1e-3}),
    "gagpo-returns": Arm("GAGPO, whole returns", {"algorithm": "gagpo", "lam": 1.0}),
}
"""All with process rewards, but for the first. The last three are of `FOLLOW_UPS`."""

BY_TURN = ("grpo-turn-returns", "turn_group", "gigpo", "gagpo", "mt_grpo")
CONTRASTS = (
    Contrast("process - outcome rewards, GRPO", "grpo", "grpo-outcome"),
    *(Contrast(f"credit by turn, {ARMS[name].title} - GRPO", name, "grpo") for name in BY_TURN),
    Contrast("credit by turn, GAE by turn - by token, PPO", "ppo-turn", "ppo"),
)
"""Tested together: their p-values are Holm's. All by the area, the main measure."""
FOLLOW_UPS = (
    Contrast("GRPO, twice the rate - GRPO", "grpo-fast", "grpo"),
    Contrast("GAGPO - GRPO, twice the rate", "gagpo", "grpo-fast"),
    Contrast("GAGPO - GRPO, both at twice the rate", "gagpo-fast", "grpo-fast"),
    Contrast("GAGPO, whole returns - GRPO", "gagpo-returns", "grpo"),
    Contrast("GAGPO - the same with whole returns", "gagpo", "gagpo-returns"),
)
"""Added when four pairs had shown GAGPO ahead: is it the size of the steps, the baseline by state, or `lam`? Tested
together, apart from `CONTRASTS`."""

_WORLD = {**LEDGER, "context_window": 1, "context_mode": "drop_turns"}
"""Five pages of two entries, at most 12 turns; the model is shown the question and what its last turn returned."""
_HELD_OUT = {**_WORLD, "questions": 200, "reward": "process"}
"""With process rewards, so that notes are counted; whether a question is solved does not depend on them."""
_CPU = Profile(
    starts=(Start(Beginner(0)), Start(Beginner(1)), Start(Beginner(2))),
    seeds=(0, 1, 2, 3),
    env=ENV,
    training={**_WORLD, "questions": 30_000, "reward": "process"},
    steps=24,
    trainer={
        "num_generations": 8,
        "per_device_train_batch_size": 64,
        "gradient_accumulation_steps": 1,
        "learning_rate": 5e-4,
        "lr_scheduler_type": "linear",
        "warmup_steps": 3,
        "max_turn_tokens": 32,
        "max_prompt_length": 80,
        "max_completion_length": 480,
    },
    validation={"validation": {**_HELD_OUT, "split": "validation"}},
    validation_questions=60,
    every=3,
    evaluate_first=True,
    tests={"test": {**_HELD_OUT, "split": "test"}},
    test_questions=200,
    test_measures={"noted": warm_starts.noted, "turns": warm_starts.turns},
    summarise=warm_starts.summarise,
)
PROFILES: Mapping[str, Profile] = {
    "cpu": _CPU,
    "smoke": replace(
        _CPU,
        starts=(Start(Beginner(0, episodes=32, epochs=1)),),
        seeds=(0,),
        training={**_WORLD, "questions": 64, "reward": "process"},
        steps=1,
        trainer={
            **_CPU.trainer,
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "warmup_steps": 0,
            "max_completion_length": 100,
        },
        validation_questions=2,
        every=1,
        test_questions=4,
    ),
}
"""smoke: tiny sizes, to see that everything runs; its model has learned nothing."""

EXPERIMENT = Experiment(
    name="credit",
    about=__doc__,
    arms=ARMS,
    profiles=PROFILES,
    contrasts={"Contrasts": CONTRASTS, "Follow-ups": FOLLOW_UPS},
    pilot=("grpo", "mt_grpo", "ppo-turn"),  # as unlike as they come
    cluster=warm_starts.key_of,
    tables={
        "Power": power,
        "Arms": warm_starts.arms_and_notes,
        "Contrasts": contrasts_of("Contrasts"),
        "Follow-ups": contrasts_of("Follow-ups"),
        "Curves": warm_starts.curves,
        "Behaviour": warm_starts.behaviour,
    },
)
