"""Evaluation runs on a page: tables with intervals, plots, distributions, and every episode."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from agent_r1_gym.report.episodes import episode_item, infra_failure_item
from agent_r1_gym.report.page import Cell, Html, interval, paragraph, table
from agent_r1_gym.report.plots import Range, bars, legend, nice_ticks, plot_groups
from agent_r1_gym.report.viewer import ViewerItem
from agent_r1_gym.run.evaluation.metrics import METRICS, describe_answers, summarize
from agent_r1_gym.run.evaluation.run_folder import InfraFailure, RunFolder
from agent_r1_gym.run.record import Trajectory

Row = Mapping[str, Any]
_COLUMNS = (*METRICS, "seconds")
_FEW = 12
"""Maximum number of distinct values that get a bar each; more are grouped into ranges."""
_ANSWERS = 8
_TERMS = 6
"""Maximum number of reward terms, in the order of the reward, whose distribution is plotted."""


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """One evaluation.

    Attributes:
        path: its folder.
        name: name on the page.
        settings: settings as `run.json` has them.
        invocations: commands that started or resumed the run.
        records: finished episodes.
        failures: episodes whose backend failed for good.
        metrics: summary of the episodes (`run.evaluation.metrics.summarize`).
        complete: whether all episodes are finished.
    """

    path: Path
    name: str
    settings: Row
    invocations: Sequence[Row]
    records: Sequence[Trajectory]
    failures: Sequence[InfraFailure]
    metrics: Row
    complete: bool

    @property
    def seconds(self) -> float | None:
        """Total time over all invocations; None if not recorded."""
        times = [start["seconds"] for start in self.invocations if isinstance(start.get("seconds"), int | float)]
        return sum(times) if times else None


def is_evaluation_run(path: Path) -> bool:
    """Whether `agent-r1 eval` wrote the folder."""
    return (path / "run.json").is_file()


def read_evaluation_runs(paths: Sequence[Path]) -> list[EvaluationRun]:
    """Read runs and name them by policy, by folder too if policies are equal, and by its path if folders are.

    Raises:
        DatasetError: a folder holds no readable run.
    """
    settings = [RunFolder(path).settings() for path in paths]
    policies = [run_settings["policy"] for run_settings in settings]
    folders = list(zip(policies, (path.resolve().name for path in paths), strict=True))
    runs = []
    for path, run_settings, (policy, folder) in zip(paths, settings, folders, strict=True):
        where = folder if folders.count((policy, folder)) == 1 else path
        name = f"{policy} ({where})" if policies.count(policy) > 1 else policy
        runs.append(_read_run(path, name, run_settings))
    return runs


def _read_run(path: Path, name: str, settings: Row) -> EvaluationRun:
    folder = RunFolder(path)
    records, failures = folder.episodes(), folder.failures()
    # From the episodes, not from metrics.json: the page shows episodes and metrics, and they must agree.
    metrics = summarize(records, failures, samples=settings["samples"], seconds=folder.seconds())
    invocations = [start for start in folder.load()["invocations"] if isinstance(start, Mapping)]
    return EvaluationRun(path, name, settings, invocations, records, failures, metrics, folder.complete)


def evaluation_tables(runs: Sequence[EvaluationRun]) -> list[Html]:
    """Describe evaluations in a sentence each and tables of their metrics."""
    if not runs:
        return []
    parts = [paragraph(describe_run(run)) for run in runs]
    overall = [(run.name, run.metrics["overall"]) for run in runs]
    parts.append(_metrics_table("All questions: mean [95 % interval]", overall))
    for label in _labels(runs):
        groups = [
            (value if len(runs) == 1 else f"{value}: {run.name}", group)
            for value in _values(runs, label)
            for run in runs
            if (group := _of_value(run, label, value))["metrics"]
        ]
        parts.append(_metrics_table(f"By {label}: mean [95 % interval]", groups))
    terms = list(dict.fromkeys(name for _, group in overall for name in group["reward_terms"]))
    rows = [[run, *(mean_interval(group["reward_terms"].get(name)) for name in terms)] for run, group in overall]
    parts.append(table("Reward terms, unweighted, summed over an episode: mean [95 % interval]", ("", *terms), rows))
    parts += _best_of_k(runs)
    return [*parts, _ends(runs)]


def describe_run(run: EvaluationRun) -> str:
    """Describe what was evaluated, and what is missing, in a sentence or two."""
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
    answers_text = describe_answers(run.metrics)
    text += f" {answers_text[0].upper()}{answers_text[1:]}." if answers_text else ""
    return text if run.complete else f"{text} NOT COMPLETE: resume it for the full results."


def _values(runs: Sequence[EvaluationRun], label: str) -> list[str]:
    return list(dict.fromkeys(value for run in runs for value in run.metrics["by"].get(label, ())))


def _labels(runs: Sequence[EvaluationRun]) -> list[str]:
    return list(dict.fromkeys(label for run in runs for label in run.metrics["by"]))


def _of_value(run: EvaluationRun, label: str, value: str) -> Row:
    group: Row = run.metrics["by"].get(label, {}).get(value, {"metrics": {}})
    return group


def _metrics_table(caption: str, groups: Sequence[tuple[str, Row]]) -> Html:
    names = [name for name in _COLUMNS if any(name in group["metrics"] for _, group in groups)]
    if all(_mean(group, "return") == _mean(group, "em") for _, group in groups):
        names = [name for name in names if name != "return"]
    rows: list[list[Cell]] = []
    for label, group in groups:
        cells = [mean_interval(group["metrics"].get(name)) for name in names]
        rows.append([label, str(group["questions"]), *cells])
    return table(caption, ("", "questions", *(name.replace("_", " ") for name in names)), rows)


def _mean(group: Row, name: str) -> float | None:
    metric = group["metrics"].get(name)
    return None if metric is None else metric["mean"]


def mean_interval(summary: Mapping[str, float] | None, mean: str = "mean") -> Cell:
    """Format a summary with the keys `mean`, "low" and "high" as a table cell."""
    return None if summary is None else interval(summary[mean], summary["low"], summary["high"])


def _best_of_k(runs: Sequence[EvaluationRun]) -> list[Html]:
    tables = []
    for name in ("pass_at_k", "pass_hat_k", "majority_at_k"):
        by_size = {}
        for run in runs:
            as_wrong = run.metrics.get("best_of_k_counting_excluded_as_wrong")
            if as_wrong is not None:
                by_size[f"{run.name}, lost = wrong"] = as_wrong[name]
            by_size[run.name if as_wrong is None else f"{run.name}, finished"] = run.metrics.get(name, {})
        sizes = sorted({int(k) for values in by_size.values() for k in values})
        if sizes:
            rows = [[row, *(mean_interval(values.get(str(k))) for k in sizes)] for row, values in by_size.items()]
            tables.append(table(name.replace("_", " "), ("k", *map(str, sizes)), rows))
    return tables


def _ends(runs: Sequence[EvaluationRun]) -> Html:
    kinds = {
        part: sorted({kind for run in runs for kind in run.metrics["overall"][part]})
        for part in ("end_reasons", "failures")
    }
    header = ["", *(f"end: {kind}" for kind in kinds["end_reasons"]), *kinds["failures"], "lost backend"]
    rows: list[list[Cell]] = [
        [
            run.name,
            *(str(run.metrics["overall"][part].get(kind, 0)) for part, names in kinds.items() for kind in names),
            str(run.metrics["excluded"]["episodes"]),
        ]
        for run in runs
    ]
    return table("Episodes by end, and with each kind of failure", header, rows)


def evaluation_plots(runs: Sequence[EvaluationRun]) -> list[Html]:
    """Plot scores by label, reward terms, and distributions of episodes."""
    figures = []
    for label in _labels(runs):
        for metric in ("em" if any("em" in run.metrics["overall"]["metrics"] for run in runs) else "return", "calls"):
            values = _values(runs, label)
            series = {
                run.name: [_range(_of_value(run, label, value)["metrics"].get(metric)) for value in values]
                for run in runs
            }
            if any(bar for run_bars in series.values() for bar in run_bars):
                figures.append(bars(f"{metric.upper() if metric == 'em' else metric} by {label}", values, series))
    terms = {run.name: run.metrics["overall"]["reward_terms"] for run in runs}
    names = list(dict.fromkeys(name for sums in terms.values() for name in sums))
    if names and names != ["em"]:  # which EM by label shows already
        series = {run: [_range(sums.get(name)) for name in names] for run, sums in terms.items()}
        figures.append(bars("reward terms, summed over an episode", names, series))
    spread = distributions({run.name: run.records for run in runs})
    parts = plot_groups({"What it scores": figures, "How its episodes are distributed": spread})
    return [legend([run.name for run in runs]), *parts] if parts else []


def _range(summary: Mapping[str, float] | None) -> Range | None:
    return None if summary is None else (summary["mean"], summary["low"], summary["high"])


def evaluation_items(runs: Sequence[EvaluationRun]) -> list[ViewerItem]:
    """List every episode of the runs for the viewer, infrastructure failures last."""
    return [
        *(episode_item(record, labels=run.metrics["by"], run=run.name) for run in runs for record in run.records),
        *(infra_failure_item(failure, run=run.name) for run in runs for failure in run.failures),
    ]


# --- distributions ----------------------------------------------------------------------------------------------------


def distributions(runs: Mapping[str, Sequence[Trajectory]]) -> list[Html]:
    """Plot shares of episodes by return, reward terms, turns, end and answer; a constant has no plot.

    Args:
        runs: episodes by name of the run.
    """
    returns = {name: [record.episode_return for record in records] for name, records in runs.items()}
    as_em = all(record.scores.get("em") == record.episode_return for records in runs.values() for record in records)
    turns = {name: [float(len(record.turns)) for record in records] for name, records in runs.items()}
    ends = {name: [record.end_reason for record in records] for name, records in runs.items()}
    terms = {name: [record.reward_terms for record in records] for name, records in runs.items()}
    names = list(dict.fromkeys(term for sums in chain(*terms.values()) for term in sums if term != "em"))
    plots = [
        None if as_em else _of_numbers("episodes by return", returns),
        *(
            _of_numbers(
                f"episodes by {term}",
                {name: [sums[term] for sums in episodes if term in sums] for name, episodes in terms.items()},
            )
            for term in names[:_TERMS]
        ),
        _of_numbers("episodes by number of turns", turns),
        _of_texts("episodes by end", ends),
        _of_answers(runs),
    ]
    return [plot for plot in plots if plot is not None]


def _of_numbers(title: str, values: Mapping[str, Sequence[float]]) -> Html | None:
    """Plot the share of each value if there are few distinct ones, else of ranges of values."""
    distinct = sorted({round(value, 6) for value in chain(*values.values())})
    if len(distinct) < 2:
        return None
    if len(distinct) <= _FEW:
        counts = {name: Counter(round(value, 6) for value in run_values) for name, run_values in values.items()}
        return _shares(title, [f"{value:.3g}" for value in distinct], counts, distinct)
    ticks = nice_ticks(distinct[0], distinct[-1])
    edges = [edge for low, high in pairwise(ticks) for edge in (low, (low + high) / 2)]
    # Values below the first edge (by rounding) count in the first range.
    counts = {
        name: Counter(max(0, bisect_right(edges, value) - 1) for value in run_values)
        for name, run_values in values.items()
    }
    return _shares(
        title,
        [f"{edge:g}" for edge in edges],
        counts,
        range(len(edges)),
        note="each bar: from its value to the next",
    )


def _of_texts(title: str, values: Mapping[str, Sequence[str]], limit: int = _FEW, note: str = "") -> Html | None:
    counts = {name: Counter(texts) for name, texts in values.items()}
    total: Counter[str] = sum(counts.values(), Counter())
    frequent = [text for text, _ in total.most_common(limit)]
    return _shares(title, frequent, counts, frequent, note=note) if len(total) > 1 else None


def _of_answers(runs: Mapping[str, Sequence[Trajectory]]) -> Html | None:
    answers = {name: [_answer(record) for record in records] for name, records in runs.items()}
    if not any(record.answer is not None for records in runs.values() for record in records):
        return None
    distinct = len(set(chain(*answers.values())))
    note = f"the {_ANSWERS} most frequent of {distinct}" if distinct > _ANSWERS else ""
    return _of_texts("episodes by answer", answers, _ANSWERS, note)


def _answer(record: Trajectory) -> str:
    return "(none)" if record.answer is None else record.answer_key or "(empty)"


def _shares(
    title: str, labels: Sequence[str], counts: Mapping[str, Counter[Any]], keys: Sequence[object], note: str = ""
) -> Html:
    series: dict[str, list[Range | None]] = {}
    for name, run_counts in counts.items():
        total = run_counts.total()  # 0: a run without the term, which has no bars
        shares = [run_counts[key] / total if total else None for key in keys]
        series[name] = [None if share is None else (share, share, share) for share in shares]
    return bars(f"share of {title}", labels, series, note)
