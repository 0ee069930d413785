"""Can reinforcement learning find what no demonstration shows? Two-hop chains, from single searches only.

The warm starts have never seen a complete chain of two searches: they search once and answer too early, or search a
second time with one half of the chain wrong, and answer wrongly (`HABITS`). An arm is a reward. All of it was fixed
before the cells ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchmarks.common.experiment import Arm, Experiment, Profile, Start, WarmStart
from benchmarks.common.results import Cell
from benchmarks.common.tables import Cells, by_step, markdown, share, spread_of
from trainers.toy.demonstrations import Habits
from trainers.toy.held_out import held_out

CHAIN = "2 hops"
KINDS: Mapping[str, str] = {"1 hop": "1hop", CHAIN: "bridge"}
"""Titles of the validation sets, and the kind of question in each."""

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


def _process(title: str, **weights: float) -> Arm:
    silent = dict.fromkeys(("valid_call", "malformed_call", "failed_call", "new_support", "repeated_query"), 0.0)
    return Arm(title, env={"reward": "process", "reward_weights": {**silent, **weights}})


ARMS: Mapping[str, Arm] = {
    "process": Arm("process (all terms)", env={"reward": "process"}),
    "em": Arm("outcome only", env={"reward": "em"}),
    "support": _process("outcome + new_support", new_support=0.2),
    "format": _process("outcome + format terms", valid_call=0.05, malformed_call=-0.1, failed_call=-0.05),
}


def _start(seed: int, steps: int = 3000) -> Start:
    taught: dict[str, Any] = {"seed": seed, "mix": {"1hop": 0.5, "bridge": 0.5}, "habits": HABITS}
    return Start(WarmStart("0.4M", {**taught, "exercise_steps": 0, "exercise_rows": 0, "steps": steps}))


_WORLD = {"style": "compact", "entities": 800, "mix": {"1hop": 0.3, "bridge": 0.7}}
_CPU = Profile(
    starts=(_start(0), _start(1), _start(2)),
    seeds=(0, 1),
    training={**_WORLD, "questions": 2000},
    steps=100,
    validation={title: held_out("test", kind) for title, kind in KINDS.items()},
    validation_questions=200,
    every=10,
    evaluate_first=True,
)
PROFILES: Mapping[str, Profile] = {
    "cpu": _CPU,
    "smoke": replace(
        _CPU,
        starts=(_start(0, steps=2),),
        seeds=(0,),
        training={**_WORLD, "questions": 64},
        trainer={"num_generations": 4, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1},
        steps=1,
        validation_questions=4,
        every=1,
    ),
}
"""A step has 16 questions x 8 rollouts, but for smoke."""


def ends(cells: Cells) -> str:
    """Scores before and after, and when a chain was found: the first evaluation with half of the questions solved."""
    rows = []
    for title, found in cells.rows():
        steps = [found_at(cell) for cell in found]
        chains = [share(cell["curve"][-1][CHAIN]) for cell in found]
        scored = (spread_of(found, 0, CHAIN), spread_of(found, -1, CHAIN), spread_of(found, -1, "1 hop"))
        first = " ".join("-" if step is None else str(step) for step in steps)
        rows.append((title, str(len(found)), *scored, str(sum(each >= 0.5 for each in chains)), first))
    header = ("2 hops before", "2 hops after", "1 hop after", "cells at .5 or more", "first at, steps")
    return markdown(("reward", "cells", *header), rows)


def found_at(cell: Cell, *, least: float = 0.5) -> int | None:
    """The first step at which at least this share of two-hop questions was solved, None if it never was."""
    return next((int(point["step"]) for point in cell["curve"] if share(point[CHAIN]) >= least), None)


EXPERIMENT = Experiment(
    name="discovery",
    about=__doc__,
    arms=ARMS,
    profiles=PROFILES,
    tables={
        "Before and after": ends,
        "Curves": lambda cells: by_step(cells, f"{CHAIN} after steps", lambda point: share(point[CHAIN])),
    },
)
