"""Settings of this experiment, as data: methods, contrasts and profiles. They were fixed before the cells ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common.contrasts import Contrast
from benchmarks.credit.teaching import LEDGER, Beginner


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table.

    Attributes:
        title: name in the table.
        options: fields of `AgentConfig` that differ from the profile's.
        reward: reward of the environment it is trained in.
    """

    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reward: str = "process"


_LAM = {"lam": 0.95}
"""Of the preset of `gagpo`, and so of both PPOs: with the default, 1, GAE by turn and by token differ in the baseline
alone."""

METHODS: Mapping[str, Method] = {
    "grpo-outcome": Method("GRPO, outcome reward alone", {"algorithm": "grpo"}, reward="em"),
    "grpo": Method("GRPO", {"algorithm": "grpo"}),
    "grpo-turn-returns": Method("GRPO, returns by turn", {"algorithm": "grpo", "turn_returns": True}),
    "turn_group": Method("turn_group", {"algorithm": "turn_group"}),
    "gigpo": Method("GiGPO", {"algorithm": "gigpo"}),
    "gagpo": Method("GAGPO", {"algorithm": "gagpo", **_LAM}),
    "mt_grpo": Method("MT-GRPO", {"algorithm": "mt_grpo"}),
    "ppo": Method("PPO, GAE by token", {"algorithm": "ppo", **_LAM}),
    "ppo-turn": Method("PPO, GAE by turn", {"algorithm": "ppo", "gae_level": "turn", **_LAM}),
    "reinforce++": Method("REINFORCE++", {"algorithm": "reinforce++"}),
    "grpo-fast": Method("GRPO, twice the rate", {"algorithm": "grpo", "learning_rate": 1e-3}),
    "gagpo-fast": Method("GAGPO, twice the rate", {"algorithm": "gagpo", **_LAM, "learning_rate": 1e-3}),
    "gagpo-returns": Method("GAGPO, whole returns", {"algorithm": "gagpo", "lam": 1.0}),
}
"""All with process rewards, but for the first. The last three are of `FOLLOW_UPS`."""

BY_TURN = ("grpo-turn-returns", "turn_group", "gigpo", "gagpo", "mt_grpo")
CONTRASTS = (
    Contrast("process - outcome rewards, GRPO", "grpo", "grpo-outcome"),
    *(Contrast(f"credit by turn, {METHODS[name].title} - GRPO", name, "grpo") for name in BY_TURN),
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
"""Asked when four pairs had shown GAGPO ahead: is it the size of the steps, the baseline by state, or `lam`? Tested
together, apart from `CONTRASTS`."""
PILOT = ("grpo", "mt_grpo", "ppo-turn")
"""Methods of the pilot: as unlike as they come."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One scale of the experiment.

    Attributes:
        starts: warm starts, crossed with the seeds.
        seeds: one cell per method, warm start and seed.
        training: options of the environment to train on.
        curve_set: title and options of the environment that evaluations while training play.
        curve_questions: number of its questions.
        every: steps between two of these evaluations.
        test_set: title and options of the environment for the final model.
        questions: number of its questions.
        steps: optimiser steps of a training run.
        trainer: fields of `AgentConfig` that differ from `trainers.toy.quickstart.configuration`.
    """

    starts: tuple[Beginner, ...]
    seeds: tuple[int, ...]
    training: Mapping[str, Any]
    curve_set: tuple[str, Mapping[str, Any]]
    curve_questions: int
    every: int
    test_set: tuple[str, Mapping[str, Any]]
    questions: int
    steps: int
    trainer: Mapping[str, Any]


_WORLD = {**LEDGER, "context_window": 1, "context_mode": "drop_turns"}
"""Five pages of two entries, at most 12 turns; the model is shown the question and what its last turn brought."""
_HELD_OUT = {**_WORLD, "questions": 200, "reward": "process"}
"""With process rewards, so that notes are counted; whether a question is solved does not depend on them."""

PROFILES: dict[str, Profile] = {
    "cpu": Profile(
        starts=(Beginner(0), Beginner(1), Beginner(2)),
        seeds=(0, 1, 2, 3),
        training={**_WORLD, "questions": 30_000},
        curve_set=("validation", {**_HELD_OUT, "split": "validation"}),
        curve_questions=60,
        every=3,
        test_set=("test", {**_HELD_OUT, "split": "test"}),
        questions=200,
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
    ),
}
PROFILES["smoke"] = Profile(
    starts=(Beginner(0, episodes=32, epochs=1),),
    seeds=(0,),
    training={**_WORLD, "questions": 64},
    curve_set=PROFILES["cpu"].curve_set,
    curve_questions=2,
    every=1,
    test_set=PROFILES["cpu"].test_set,
    questions=4,
    steps=1,
    trainer={
        **PROFILES["cpu"].trainer,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "warmup_steps": 0,
        "max_completion_length": 100,
    },
)
"""Tiny sizes, to see that everything runs: its model has learned nothing."""
