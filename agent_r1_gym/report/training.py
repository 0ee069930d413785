"""Training runs on a page: learning curves over seeds, scores, and the rollouts token by token.

A training run is the output folder of the trainer (`trainer_state.json`, in it or in its checkpoints) or a folder of
`agent-r1 quickstart` (`curves.csv`, `scores.json`). Runs of one algorithm are seeds of one curve: quickstart says which
those are; else they are the folders whose names differ in the number at their end only.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1_gym.errors import DatasetError
from agent_r1_gym.report.episodes import read_token_traces, token_item
from agent_r1_gym.report.packing import Item
from agent_r1_gym.report.page import Cell, Html, heading, interval, paragraph, table
from agent_r1_gym.report.plots import Curve, Range, curves, grid, legend

CURVES = {
    "reward": "return",
    "eval_reward": "return in evaluation",
    "eval_rollout/reward/em": "exact match in evaluation",
    "rollout/turns": "turns a rollout",
    "rollout/calls": "calls a rollout",
    "rollout/failed_calls": "failed calls a rollout",
    "rollout/truncated": "share of truncated rollouts",
    "rollout/dropped": "share of dropped rollouts",
    "completions/mean_length": "tokens a rollout",
    "entropy": "entropy per token, nats",
    "kl": "KL to the reference",
    "sampling/logprob_drift_mean": "mean log-prob drift of the engine",
}
"""Logged numbers that are drawn, and the titles of their plots; reward terms are drawn besides."""
_TERM = "rollout/reward/"
_SMOOTHED = 10

Log = Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One training.

    Attributes:
        path: its folder.
        name: what its seeds share.
        log: the numbers of each logged step, with `step`.
        scores: exact match in 0..1 by agent and set of questions, empty if none were measured.
    """

    path: Path
    name: str
    log: Log
    scores: Mapping[str, Mapping[str, float]]

    @property
    def traces(self) -> list[Path]:
        """The files of token traces."""
        return sorted([*self.path.glob("traces/*.jsonl"), *self.path.glob("run/traces/*.jsonl")])


def read_training_run(path: Path) -> TrainingRun | None:
    """Returns the run in a folder, None if it holds none.

    Raises:
        DatasetError: its files cannot be read.
    """
    reader = _reader(path)
    if reader is None:
        return None
    try:
        return reader()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{path} is no readable training run: {type(error).__name__}: {error}.") from error


def _reader(path: Path) -> Callable[[], TrainingRun] | None:
    if (path / "curves.csv").is_file():
        return lambda: _quickstart_run(path)
    checkpoints = sorted(path.glob("checkpoint-*/trainer_state.json"), key=lambda file: _last_number(file.parent.name))
    states = [file for file in (path / "trainer_state.json", *reversed(checkpoints)) if file.is_file()]
    return (lambda: _trainer_run(path, states[0])) if states else None


def _quickstart_run(path: Path) -> TrainingRun:
    with (path / "curves.csv").open(newline="", encoding="utf-8") as file:
        log = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    scores = path / "scores.json"
    result: dict[str, Any] = json.loads(scores.read_text(encoding="utf-8")) if scores.is_file() else {}
    adapter = f", LoRA {result['lora_r']}" if result.get("lora_r") else ""
    name = f"quickstart {result.get('algorithm', seedless(path))}{adapter}"
    return TrainingRun(path, name, log, result.get("scores", {}))


def _trainer_run(path: Path, state: Path) -> TrainingRun:
    history = json.loads(state.read_text(encoding="utf-8"))["log_history"]
    log = [{name: value for name, value in row.items() if isinstance(value, int | float)} for row in history]
    return TrainingRun(path, seedless(path), [row for row in log if "reward" in row or "eval_reward" in row], {})


def seedless(path: Path) -> str:
    """Returns a folder's name without the number at its end."""
    name = path.resolve().name
    return re.sub(r"[-_. ]*(seed|s)?[-_=]?\d+$", "", name) or name


def _last_number(name: str) -> int:
    found = re.findall(r"\d+", name)
    return int(found[-1]) if found else -1


def training_parts(runs: Sequence[TrainingRun]) -> list[Html]:
    """Returns table, curves and scores of trainings."""
    if not runs:
        return []
    groups: dict[str, list[TrainingRun]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    note = "Lines: mean over seeds of the mean of ten logged steps; bands: from the lowest seed to the highest."
    logs = {name: [run.log for run in group] for name, group in groups.items()}
    plots = curve_plots(logs)
    return [heading("Training"), _summary(groups), paragraph(note), *plots, *_scores(groups)]


def curve_plots(logs: Mapping[str, Sequence[Log]]) -> list[Html]:
    """Returns the legend and a plot of each number that was logged, with one curve for each group of logs."""
    logged = {name for group in logs.values() for log in group for row in log for name in row}
    terms = {name: f"reward term {name.removeprefix(_TERM)}" for name in sorted(logged) if name.startswith(_TERM)}
    wanted = {name: title for name, title in ({"reward": CURVES["reward"]} | terms | CURVES).items() if name in logged}
    figures = []
    for name, title in wanted.items():
        series = {group: curve_over_seeds(found, name) for group, found in logs.items()}
        figures.append(curves(title, series))
    return [legend(list(logs)), grid(figures)]


def curve_over_seeds(logs: Sequence[Log], name: str) -> Curve:
    """Returns mean, lowest and highest smoothed value over the logs, at the steps that all of them have."""
    smooth = [_smoothed({int(row["step"]): row[name] for row in log if name in row}) for log in logs]
    steps = sorted(set.intersection(*(set(points) for points in smooth))) if smooth else []
    values = [[points[step] for points in smooth] for step in steps]
    return Curve(steps, [_range(seeds) for seeds in values])


def _range(seeds: Sequence[float]) -> Range:
    return sum(seeds) / len(seeds), min(seeds), max(seeds)


def _smoothed(points: Mapping[int, float]) -> dict[int, float]:
    steps = sorted(points)
    values = [points[step] for step in steps]
    windows = (values[max(0, at - _SMOOTHED + 1) : at + 1] for at in range(len(values)))
    return {step: sum(window) / len(window) for step, window in zip(steps, windows, strict=True)}


def _summary(groups: Mapping[str, Sequence[TrainingRun]]) -> Html:
    rows: list[list[Cell]] = []
    for name, group in groups.items():
        steps = [int(max((row["step"] for row in run.log), default=0)) for run in group]
        curve = curve_over_seeds([run.log for run in group], "reward")
        ends = [_over_seeds(curve.y[at], seeds=len(group)) if curve.y else None for at in (0, -1)]
        rows.append(
            [
                name,
                str(len(group)),
                ", ".join(map(str, sorted(set(steps)))),
                *ends,
                ", ".join(run.path.name for run in group),
            ]
        )
    header = ("training", "seeds", "steps", "return, first", "return, last", "folders")
    return table("Trainings: mean over seeds [lowest, highest]", header, rows)


def _scores(groups: Mapping[str, Sequence[TrainingRun]]) -> list[Html]:
    """Returns a table for each group whose runs were measured on sets of questions."""
    tables = []
    for name, group in groups.items():
        scores = [run.scores for run in group if run.scores]
        if not scores:
            continue
        sets = list(next(iter(scores[0].values())))
        agents = [agent for agent in scores[0] if all(agent in found for found in scores)]
        rows = [
            [
                agent,
                *(_over_seeds(_range([found[agent][part] for found in scores]), seeds=len(scores)) for part in sets),
            ]
            for agent in agents
        ]
        caption = f"{name}: exact match, mean over {len(scores)} seeds [lowest, highest]"
        tables.append(table(caption if len(scores) > 1 else f"{name}: exact match, one seed", ("agent", *sets), rows))
    return tables


def _over_seeds(found: Range, *, seeds: int) -> Cell:
    return interval(*found) if seeds > 1 else found[0]


def training_items(runs: Sequence[TrainingRun]) -> list[Item]:
    """Returns the token traces of all runs."""
    return [
        token_item(trace, run=run.path.name) for run in runs for path in run.traces for trace in read_token_traces(path)
    ]
