"""Settings of this experiment, as data: what is demonstrated, and which rewards are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.common.cells import WarmStart
from trainers.toy.demonstrations import Habits

HABITS: Mapping[str, Habits] = {
    "1hop": Habits(
        full_chain=0.75,
        stops_early=0.0,
        malformed_call=0.1,
        direct_answer=0.05,
        question_as_query=0.05,
        retrieve_once=0.05,
    ),
    "bridge": Habits(
        full_chain=0.0,
        stops_early=0.4,
        malformed_call=0.0,
        direct_answer=0.05,
        question_as_query=0.0,
        retrieve_once=0.15,
        wanders=0.4,
    ),
}
"""No habit plays a whole chain of two searches: the second search is for the asked relation of a wrong name, or for a
wrong relation of the right name, and always ends in a wrong answer."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward to train with.

    Attributes:
        title: name in the table.
        options: options of the environment.
    """

    title: str
    options: Mapping[str, Any] = field(default_factory=dict)


def _process(title: str, **weights: float) -> Reward:
    silent = dict.fromkeys(("valid_call", "malformed_call", "failed_call", "new_support", "repeated_query"), 0.0)
    return Reward(title, {"reward": "process", "reward_weights": {**silent, **weights}})


REWARDS: Mapping[str, Reward] = {
    "process": Reward("process (all terms)", {"reward": "process"}),
    "em": Reward("outcome only", {"reward": "em"}),
    "support": _process("outcome + new_support", new_support=0.2),
    "format": _process("outcome + format terms", valid_call=0.05, malformed_call=-0.1, failed_call=-0.05),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of the experiment.

    Attributes:
        training: options of the environment to train on.
        start: how the policy is taught before.
        steps: optimiser steps of reinforcement learning, 16 questions x 8 rollouts each.
        every: steps between two measurements.
        questions: number of held-out questions per measurement.
        seeds: one cell per reward and seed.
    """

    training: Mapping[str, Any]
    start: WarmStart
    steps: int
    every: int
    questions: int
    seeds: tuple[int, ...]


_WORLD = {"style": "compact", "entities": 800}
_DEMONSTRATIONS = {"mix": {"1hop": 0.5, "bridge": 0.5}, "habits": HABITS, "drill_steps": 0, "drilled": 0}
FULL = Settings(
    training={**_WORLD, "questions": 2000, "mix": {"1hop": 0.3, "bridge": 0.7}},
    start=WarmStart("0.4M", {**_DEMONSTRATIONS, "steps": 3000}),
    steps=150,
    every=10,
    questions=200,
    seeds=(0, 1, 2, 3, 4),
)
QUICK = Settings(
    training={**_WORLD, "questions": 64, "mix": {"bridge": 1.0}},
    start=WarmStart("0.4M", {**_DEMONSTRATIONS, "steps": 2}),
    steps=2,
    every=1,
    questions=4,
    seeds=(0,),
)
