"""Training runs on a page: learning curves over seeds, scores, and the rollouts token by token.

A training run is the output folder of the trainer (`trainer_state.json`, in it or in its checkpoints) or a folder of
`agent-r1 quickstart` (`curves.csv`, `scores.json`). Runs whose settings differ only in seed
and folders are seeds of one curve; a run without recorded settings stands alone, whatever the name of its folder.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_r1_gym.errors import DatasetError
from agent_r1_gym.report.episodes import read_token_traces, token_item
from agent_r1_gym.report.page import Cell, Html, interval, paragraph, table
from agent_r1_gym.report.plots import Curve, Range, curves, grid, legend, plot_groups
from agent_r1_gym.report.viewer import ViewerItem
from agent_r1_gym.run.model_folder import list_checkpoints

CURVES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "What it learns": {
        "reward": ("return", "the reward of a rollout, mean of the batch"),
        "eval_reward": ("return in evaluation", "on held-out tasks"),
        "eval_rollout/reward/em": ("exact match in evaluation", "on held-out tasks"),
        "loss": ("loss per token", "of the demonstrations"),
        "mean_token_accuracy": ("token accuracy", "share of tokens that the model would choose, too"),
        "eval_loss": ("loss per token in evaluation", "rises while the loss falls: it overfits"),
        "eval_mean_token_accuracy": ("token accuracy in evaluation", ""),
    },
    "How it acts": {
        "rollout/turns": ("turns per rollout", ""),
        "rollout/calls": ("calls per rollout", "0: it stopped using its tools"),
        "rollout/failed_calls": ("failed calls per rollout", ""),
        "rollout/truncated": ("share of truncated rollouts", "near 1: the budgets are too small"),
        "rollout/infra_failures": ("share of dropped rollouts", "above 0: a backend fails"),
        "completions/mean_length": ("tokens per rollout", ""),
    },
    "Whether it is healthy": {
        "entropy": ("entropy per token, nats", "near 0: it no longer explores"),
        "kl": ("KL to the reference", ""),
        "sampling/logprob_drift_mean": (
            "mean log-prob drift of the engine",
            "far from 0: the engine is not the policy",
        ),
    },
}
"""Logged metrics to plot, by the question that they answer: title of the plot, and how to read it. Reward terms and the
environments of a mixture get plots too."""
_OWN_SETTINGS = {"seed", "data_seed", "run_name", "resume_from_checkpoint", "hub_model_id", "disable_tqdm"}
"""Settings in which the seeds of one curve may differ, in addition to all folders (`..._dir`)."""
_LARGEST = 1e100
_RESULTS = {"seed", "scores", "seconds", "rejection_sampling", "invocations"}
"""Entries of quickstart's `scores.json` that are not settings."""
_ONE_GRID = 4
"""Maximum number of plots without headings."""
_LOGGED = {"reward", "eval_reward", "loss", "eval_loss"}
"""Metrics of which a logged step has one; other entries of a log are summaries."""
_TERM = "rollout/reward/"
_OF_MEMBER = re.compile(r"(?:rollout/|eval_)(?!reward/|rollout/)([^/]+)/return")
"""The return in an environment of a mixture, in training and in evaluations."""
_AROUND = 5
"""Maximum number of logged steps on either side of each that a line averages over; at most a tenth of all steps."""

Log = Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One training run.

    Attributes:
        path: its folder.
        name: name of a run that stands alone.
        settings: settings that the seeds of one curve share, as JSON; "" if not recorded.
        log: metrics of each logged step, with `step`.
        scores: exact match in 0..1 by agent and question set; empty if not measured.
        metadata: `invocations` and `stop_reason` as `training.json` has them; empty if not recorded.
        steps: number of optimiser steps.
    """

    path: Path
    name: str
    settings: str
    log: Log
    scores: Mapping[str, Mapping[str, float]]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 0

    @property
    def traces(self) -> list[Path]:
        """Files of token traces."""
        return sorted([*self.path.glob("traces/*.jsonl"), *self.path.glob("run/traces/*.jsonl")])


def read_training_run(path: Path) -> TrainingRun | None:
    """Read the run in a folder; None if there is none.

    Raises:
        DatasetError: the files are damaged or of another program.
    """
    folders = [path, *reversed(list_checkpoints(path))]
    states = [file for folder in folders if (file := folder / "trainer_state.json").is_file()]
    try:
        if (path / "curves.csv").is_file():
            return _quickstart_run(path)
        return _trainer_run(path, states[0], folders) if states else None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DatasetError(
            f"{path} is not a readable training run: {type(error).__name__}: {error}. Expected trainer_state.json as "
            "the trainer writes it (log_history: a list of objects of numbers, each with its step), or quickstart's "
            "curves.csv (a column step, others of numbers) and scores.json."
        ) from error


def _quickstart_run(path: Path) -> TrainingRun:
    with (path / "curves.csv").open(newline="", encoding="utf-8") as file:
        rows = [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    scores = path / "scores.json"
    result: dict[str, Any] = json.loads(scores.read_text(encoding="utf-8")) if scores.is_file() else {}
    adapter = f", LoRA {result['lora_r']}" if result.get("lora_r") else ""
    settings = {name: value for name, value in result.items() if name not in _RESULTS}
    by_agent = result.get("scores", {}).items()
    scores_by_set = {agent: {name: float(score) for name, score in sets.items()} for agent, sets in by_agent}
    name = f"quickstart {result.get('algorithm', path.resolve().name)}{adapter}"
    shared = json.dumps(settings, sort_keys=True) if settings else ""
    log, metadata = _finite_metrics(rows), {"invocations": _invocations(result)}
    return TrainingRun(path, name, shared, log, scores_by_set, metadata, _last_step(log))


def _trainer_run(path: Path, state: Path, folders: Sequence[Path]) -> TrainingRun:
    recorded_state = json.loads(state.read_text(encoding="utf-8"))
    rows = [row for row in recorded_state["log_history"] if row.keys() & _LOGGED]
    # The loss of a policy gradient does not say what was learned.
    log = _finite_metrics([_without_losses(row) if row.keys() & {"reward", "eval_reward"} else row for row in rows])
    file = path / "training.json"
    recorded: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    stop_reason = recorded.get("stop_reason", recorded.get("stopped"))  # "stopped" in runs of 0.2
    metadata = {"invocations": _invocations(recorded), "stop_reason": stop_reason}
    steps = int(recorded_state.get("global_step", _last_step(log)))
    return TrainingRun(path, path.resolve().name, _settings(folders), log, {}, metadata, steps)


def _without_losses(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in row.items() if name not in ("loss", "eval_loss")}


def _invocations(recorded: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    invocations = recorded.get("invocations", recorded.get("starts", []))  # "starts" in runs of 0.2
    if not isinstance(invocations, list) or not all(isinstance(invocation, Mapping) for invocation in invocations):
        raise TypeError(f"invocations must be a list of objects, got {invocations!r:.80}")
    return invocations


def _settings(folders: Sequence[Path]) -> str:
    """Read the settings from the first checkpoint that records them, without those of a single seed."""
    for file in (file for folder in folders if (file := folder / "checkpoint.json").is_file()):
        settings: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8")).get("settings", {})
        shared = {name: value for name, value in settings.items() if name not in _OWN_SETTINGS}
        shared = {name: value for name, value in shared.items() if not name.endswith("_dir")}
        if shared:
            return json.dumps(shared, sort_keys=True)
    return ""


def _finite_metrics(rows: Sequence[Mapping[str, Any]]) -> Log:
    """Drop what is not a number, not finite, or so large that differences of two are not."""
    return [
        {name: value for name, value in row.items() if isinstance(value, int | float) and abs(value) < _LARGEST}
        | {"step": int(row["step"])}
        for row in rows
    ]


def _last_step(log: Log) -> int:
    return max((int(row["step"]) for row in log), default=0)


def training_tables(runs: Sequence[TrainingRun]) -> list[Html]:
    """Tabulate first and last return, and the scores, of training runs."""
    groups = group_by_settings(runs)
    return [_summary(groups), *_scores(groups)] if runs else []


def training_plots(runs: Sequence[TrainingRun]) -> list[Html]:
    """Plot the learning curves of training runs, one per group of seeds."""
    logs = {name: [run.log for run in group] for name, group in group_by_settings(runs).items()}
    return curve_plots(logs) if runs else []


def group_by_settings(runs: Sequence[TrainingRun]) -> dict[str, list[TrainingRun]]:
    """Group the runs that are seeds of one curve, by a unique name."""
    seeds: dict[str, list[TrainingRun]] = {}
    for number, run in enumerate(runs):
        seeds.setdefault(run.settings or f"run {number}", []).append(run)
    groups: dict[str, list[TrainingRun]] = {}
    for group in seeds.values():
        alike = all(run.name == group[0].name for run in group)
        name = group[0].name if alike else f"{group[0].name} and {len(group) - 1} more"
        if name in groups:
            name = f"{name} ({', '.join(str(run.path) for run in group)})"
        groups[name] = group
    return groups


def curve_plots(
    logs: Mapping[str, Sequence[Log]], lines: Mapping[str, Mapping[str, float]] | None = None
) -> list[Html]:
    """Plot each logged metric below a legend, with one curve per group of logs.

    Args:
        logs: logs of the seeds, by name of the group.
        lines: by metric, reference values by name.
    """
    logged = {name for group in logs.values() for log in group for row in log for name in row}
    questions = _plots_by_question(logged)
    titles = {name: title for plots in questions.values() for name, (title, _) in plots.items()}
    equal = _equal_terms(logs, logged)
    drawn_already = {term for terms in equal.values() for term in terms}

    def plot(name: str, note: str) -> Html:
        terms = equal.get(name, [])
        title = f"{titles[name]} (equal to {', '.join(titles[term] for term in terms)})" if terms else titles[name]
        series = {group: curve_over_seeds(group_logs, name) for group, group_logs in logs.items()}
        references = {label: value for key in (name, *terms) for label, value in (lines or {}).get(key, {}).items()}
        return curves(title, series, lines=references, note=note)

    figures = {
        question: [plot(name, note) for name, (_, note) in plots.items() if name in logged - drawn_already]
        for question, plots in questions.items()
    }
    every = [figure for plots in figures.values() for figure in plots]
    if not every:
        return []
    several = any(len(group) > 1 for group in logs.values())
    note = f"Dots: logged steps; lines: mean with up to {_AROUND} before and after"
    note += ", and over seeds; bands: from the lowest seed to the highest." if several else "."
    parts = [grid(every)] if len(every) <= _ONE_GRID else plot_groups(figures)
    return [legend(list(logs)), paragraph(note, "keys"), *parts]


def _plots_by_question(logged: Iterable[str]) -> dict[str, dict[str, tuple[str, str]]]:
    """`CURVES` with the reward terms, and the environments of a mixture, that were logged."""
    terms = {name: (f"reward term {name.removeprefix(_TERM)}", "") for name in sorted(logged) if name.startswith(_TERM)}
    environments = {
        name: (f"return in {match[1]}, evaluation" if name.startswith("eval_") else f"return in {match[1]}", "")
        for name in sorted(logged)
        if (match := _OF_MEMBER.fullmatch(name))
    }
    (learning, plots), *others = CURVES.items()
    return {learning: {**plots, **terms}, "In each environment": environments, **{name: {**p} for name, p in others}}


def _equal_terms(logs: Mapping[str, Sequence[Log]], logged: Iterable[str]) -> dict[str, list[str]]:
    """Find the terms that are all of a return: one plot shows both."""
    terms = {"reward": sorted(name for name in logged if name.startswith(_TERM))}
    terms["eval_reward"] = ["eval_rollout/reward/em"]
    every = [log for group in logs.values() for log in group]
    return {name: [term for term in of if all(_equal(log, name, term) for log in every)] for name, of in terms.items()}


def _equal(log: Log, one: str, other: str) -> bool:
    pairs = [(row[one], row[other]) for row in log if one in row and other in row]
    apart = any((one in row) != (other in row) for row in log)
    return bool(pairs) and not apart and all(abs(first - second) < 1e-6 for first, second in pairs)


def curve_over_seeds(logs: Sequence[Log], name: str) -> Curve:
    """Average the smoothed metric over the logs, with its lowest and highest value, at the steps that all logs have."""
    smooth = [_smoothed({int(row["step"]): row[name] for row in log if name in row}) for log in logs]
    steps = sorted(set.intersection(*(set(points) for points in smooth))) if smooth else []
    values = [[points[step] for points in smooth] for step in steps]
    # Steps that some seeds have not reached are not drawn: the axis ends where the line does.
    drawn = set(steps)
    raw = [(row["step"], row[name]) for log in logs for row in log if name in row and row["step"] in drawn]
    return Curve(steps, [_range(seeds) for seeds in values], raw if len(steps) > 1 else ())


def _range(seeds: Sequence[float]) -> Range:
    return sum(seeds) / len(seeds), min(seeds), max(seeds)


def _smoothed(points: Mapping[int, float]) -> dict[int, float]:
    steps = sorted(points)
    values = [points[step] for step in steps]
    # Few points are not smoothed: a line through two or three would become flat. A window that only looks back lags.
    around = min(_AROUND, len(steps) // 10)
    windows = (values[max(0, at - around) : at + around + 1] for at in range(len(values)))
    return {step: sum(window) / len(window) for step, window in zip(steps, windows, strict=True)}


def _summary(groups: Mapping[str, Sequence[TrainingRun]]) -> Html:
    rows: list[list[Cell]] = []
    for name, group in groups.items():
        curve = curve_over_seeds([run.log for run in group], "reward")
        ends = [_over_seeds(curve.y[at], seeds=len(group)) if curve.y else None for at in (0, -1)]
        reached = ", ".join(map(str, sorted({run.steps for run in group})))
        rows.append([name, str(len(group)), reached, *ends, ", ".join(run.path.name for run in group)])
    header = ("run", "seeds", "steps", "return, first", "return, last", "folders")
    return table("Training runs: mean over seeds [lowest, highest]", header, rows)


def _scores(groups: Mapping[str, Sequence[TrainingRun]]) -> list[Html]:
    """Tabulate the scores of each group whose runs were measured on question sets."""
    tables = []
    for group_name, group in groups.items():
        scores = [run.scores for run in group if run.scores]
        if not scores:
            continue
        sets = list(next(iter(scores[0].values())))
        agents = [agent for agent in scores[0] if all(agent in run_scores for run_scores in scores)]
        rows = [
            [
                agent,
                *(_over_seeds(_range([run[agent][name] for run in scores]), seeds=len(scores)) for name in sets),
            ]
            for agent in agents
        ]
        seeds = f"mean over {len(scores)} seeds [lowest, highest]" if len(scores) > 1 else "one seed"
        tables.append(table(f"{group_name}: exact match, {seeds}", ("agent", *sets), rows))
    return tables


def _over_seeds(spread: Range, *, seeds: int) -> Cell:
    return interval(*spread) if seeds > 1 else spread[0]


def training_items(runs: Sequence[TrainingRun]) -> list[ViewerItem]:
    """List the token traces of all runs for the viewer."""
    return [
        token_item(trace, run=run.path.name) for run in runs for path in run.traces for trace in read_token_traces(path)
    ]
