"""Evaluation runs on a page: tables with intervals, plots, and every episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1_gym.evaluation.metrics import METRICS, summarize
from agent_r1_gym.evaluation.run_folder import Failure, RunFolder
from agent_r1_gym.evaluation.statistics import bootstrap
from agent_r1_gym.play.record import Trajectory
from agent_r1_gym.report.episodes import episode_item, lost_item
from agent_r1_gym.report.packing import Item
from agent_r1_gym.report.page import Cell, Html, heading, interval, paragraph, table
from agent_r1_gym.report.plots import Range, bars, grid, legend

Row = Mapping[str, Any]
_COLUMNS = (*METRICS, "seconds")


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """One evaluation.

    Attributes:
        name: what it is called on the page.
        settings: see `evaluation.run_folder`.
        records: its finished episodes.
        failures: the episodes that stayed without a backend.
        metrics: its summary (`evaluation.metrics.summarize`), of what is there if the run is not complete.
        complete: whether the run is.
    """

    name: str
    settings: Row
    records: Sequence[Trajectory]
    failures: Sequence[Failure]
    metrics: Row
    complete: bool


def is_evaluation_run(path: Path) -> bool:
    """Returns whether the folder is one of `agent-r1 eval`."""
    return (path / "run.json").is_file()


def read_evaluation_runs(paths: Sequence[Path]) -> list[EvaluationRun]:
    """Returns the runs, named by their policies, by their folders too where those are the same.

    Raises:
        DatasetError: a folder holds no readable run.
    """
    settings = [RunFolder(path).load()["settings"] for path in paths]
    policies = Counter(run_settings["policy"] for run_settings in settings)
    runs = []
    for path, run_settings in zip(paths, settings, strict=True):
        policy = run_settings["policy"]
        name = f"{policy} ({path.resolve().name})" if policies[policy] > 1 else policy
        runs.append(_read_run(path, name, run_settings))
    return runs


def _read_run(path: Path, name: str, settings: Row) -> EvaluationRun:
    folder = RunFolder(path)
    records, failures, complete = folder.episodes(), folder.failures(), folder.metrics_path.is_file()
    if complete:
        metrics = folder.metrics()
    else:
        metrics = summarize(records, failures, samples=settings["samples"], seconds=folder.seconds())
    return EvaluationRun(name, settings, records, failures, metrics, complete)


def evaluation_parts(runs: Sequence[EvaluationRun]) -> list[Html]:
    """Returns facts, tables and plots of evaluations."""
    if not runs:
        return []
    parts = [heading("Evaluation"), *(paragraph(fact(run)) for run in runs)]
    whole = [(run.name, run.metrics["overall"]) for run in runs]
    parts.append(_metrics_table("All questions: mean [95 % interval]", whole))
    for key, title, unit in (("by_type", "By question type", ""), ("by_hops", "By hops", " hops")):
        groups = [
            (f"{value}{unit}" if len(runs) == 1 else f"{value}{unit}: {run.name}", run.metrics[key][value])
            for value in values_of(runs, key)
            for run in runs
            if value in run.metrics[key]
        ]
        if groups:
            parts.append(_metrics_table(f"{title}: mean [95 % interval]", groups))
    parts += _best_of_k(runs)
    parts.append(_ends(runs))
    return [*parts, *_plots(runs)]


def fact(run: EvaluationRun) -> str:
    """Returns what was evaluated, and what is missing, as a sentence or two."""
    settings, excluded = run.settings, run.metrics["excluded"]["episodes"]
    episodes = settings["questions"] * settings["samples"]
    text = (
        f"{run.name}: {len(run.records)} of {episodes} episodes on {settings['env_id']}, {settings['dataset']} "
        f"(questions {(settings['question_hash'] or 'by seed')[:12]}), seed {settings['seed']}."
    )
    if excluded:
        worst = run.metrics["em_counting_excluded_as_wrong"]
        em = "unknown" if worst is None else f"{worst:.3f}"
        text += f" {excluded} episodes lost their backend and are not scored; counted as wrong, EM would be {em}."
    return text if run.complete else f"{text} NOT COMPLETE: resume it for the whole numbers."


def values_of(runs: Sequence[EvaluationRun], key: str) -> list[str]:
    """Returns the question types or hops that any run has, in order."""
    values = {value for run in runs for value in run.metrics[key]}
    return sorted(values, key=lambda value: (len(value), value) if key == "by_hops" else (0, value))


def _metrics_table(caption: str, groups: Sequence[tuple[str, Row]]) -> Html:
    names = [name for name in _COLUMNS if any(name in group["metrics"] for _, group in groups)]
    rows: list[list[Cell]] = []
    for label, group in groups:
        cells: list[Cell] = [_cell(group["metrics"].get(name)) for name in names]
        rows.append([label, str(group["questions"]), *cells])
    return table(caption, ("", "questions", *(name.replace("_", " ") for name in names)), rows)


def _cell(metric: Mapping[str, float] | None) -> Cell:
    return None if metric is None else interval(metric["mean"], metric["low"], metric["high"])


def _best_of_k(runs: Sequence[EvaluationRun]) -> list[Html]:
    tables = []
    for name in ("pass_at_k", "majority_at_k"):
        sizes = sorted({int(k) for run in runs for k in run.metrics.get(name, {})})
        if sizes:
            rows = [[run.name, *(_cell(run.metrics.get(name, {}).get(str(k))) for k in sizes)] for run in runs]
            tables.append(table(name.replace("_", " "), ("k", *map(str, sizes)), rows))
    return tables


def _ends(runs: Sequence[EvaluationRun]) -> Html:
    """Returns how many episodes ended how, and in how many each kind of failure was met."""
    kinds = {
        part: sorted({kind for run in runs for kind in run.metrics["overall"][part]}) for part in ("ends", "failures")
    }
    header = ["", *(f"end: {kind}" for kind in kinds["ends"]), *kinds["failures"], "lost backend"]
    rows: list[list[Cell]] = [
        [
            run.name,
            *(str(run.metrics["overall"][part].get(kind, 0)) for part, names in kinds.items() for kind in names),
            str(run.metrics["excluded"]["episodes"]),
        ]
        for run in runs
    ]
    return table("Episodes by end, and with each kind of failure", header, rows)


def _plots(runs: Sequence[EvaluationRun]) -> list[Html]:
    figures = []
    for key, unit in (("by_hops", " hops"), ("by_type", "")):
        for metric in ("em", "calls"):
            values = values_of(runs, key)
            series = {run.name: [_range(run, key, value, metric) for value in values] for run in runs}
            if any(bar for line in series.values() for bar in line):
                title = f"{metric.upper() if metric == 'em' else metric} {key.replace('_', ' ')}"
                figures.append(bars(title, [f"{value}{unit}" for value in values], series))
    terms = {run.name: _reward_terms(run.records) for run in runs}
    names = list(dict.fromkeys(name for sums in terms.values() for name in sums))
    if names:
        series = {run: [sums.get(name) for name in names] for run, sums in terms.items()}
        figures.append(bars("reward terms, summed over an episode", names, series))
    return [legend([run.name for run in runs]), grid(figures)] if figures else []


def _range(run: EvaluationRun, key: str, value: str, metric: str) -> Range | None:
    summary = run.metrics[key].get(value, {"metrics": {}})["metrics"].get(metric)
    return None if summary is None else (summary["mean"], summary["low"], summary["high"])


def _reward_terms(records: Sequence[Trajectory]) -> Mapping[str, Range]:
    """Returns the mean over episodes, with its interval over questions, of the sum of each raw reward term."""
    tasks: dict[int, list[dict[str, float]]] = {}
    for record in records:
        tasks.setdefault(record.task_index, []).append(record.reward_terms)
    names = list(dict.fromkeys(name for group in tasks.values() for terms in group for name in terms))
    return bootstrap({name: [[terms.get(name, 0.0) for terms in group] for group in tasks.values()] for name in names})


def evaluation_items(runs: Sequence[EvaluationRun]) -> list[Item]:
    """Returns every episode of the runs, lost ones last."""
    return [
        *(episode_item(record, run=run.name) for run in runs for record in run.records),
        *(lost_item(failure, run=run.name) for run in runs for failure in run.failures),
    ]
