"""What a run has taught, to look at: the learning curve, scores beside the baselines, traces before and after."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_r1_gym.play.record import Trajectory
from agent_r1_gym.report.episodes import episode_item
from agent_r1_gym.report.page import heading, paragraph, table, write_page
from agent_r1_gym.report.training import curve_plots, read_training_run
from agent_r1_gym.report.viewer import viewer
from agent_r1_gym.support.files import atomic_file

CURVES = {
    "reward": "return",
    "rollout/reward/em": "exact match of the rollouts",
    "rollout/turns": "turns a rollout",
    "entropy": "entropy per token, nats",
}
"""Logged numbers that are kept, and what they are."""

Scores = Mapping[str, Mapping[str, float]]
"""Exact match in 0..1, by agent and set of questions."""


def write_curves(log: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Writes `CURVES` of a trainer's log as `curves.csv`, which `report.html` draws."""
    rows = [row for row in log if any(name in row for name in CURVES)]
    with atomic_file(folder / "curves.csv") as temporary, temporary.open("w", newline="") as file:
        csv.writer(file).writerows([("step", *CURVES), *((row["step"], *map(row.get, CURVES)) for row in rows)])


def score_rows(scores: Scores) -> list[tuple[str | float, ...]]:
    """Returns one row per set of questions, one column per agent."""
    sets = next(iter(scores.values()))
    return [(name, *(columns[name] for columns in scores.values())) for name in sets]


def write_report(
    folder: Path, *, title: str, facts: Sequence[str], scores: Scores, traces: Mapping[str, Sequence[Trajectory]]
) -> None:
    """Writes `report.html`, self-contained: facts, scores, the curves of `folder` and a viewer of episodes.

    Args:
        folder: holds `curves.csv` if there are curves to show.
        title: title of the page.
        facts: paragraphs.
        scores: see `Scores`.
        traces: heading to episodes.
    """
    parts = [
        *map(paragraph, facts),
        table("Exact match on held-out questions", ("questions", *scores), score_rows(scores)),
    ]
    run = read_training_run(folder)
    if run is not None:
        parts += [heading("Training"), *curve_plots({run.name: [run.log]})]
    items = [episode_item(episode, episodes=name) for name, episodes in traces.items() for episode in episodes]
    write_page(folder / "report.html", title, [*parts, heading("Episodes"), *viewer(items)])
