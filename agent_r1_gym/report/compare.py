"""`agent-r1 compare`: evaluation runs question by question, with paired tests.

Two runs are tested as A - B. Of more than two, each is tested against the first, and the p-values of a metric are
corrected for the number of runs (Holm).
"""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.report.episodes import (
    answer_summary,
    correctness,
    episode_side,
    failure_kinds,
    question_of,
    sort_values,
)
from agent_r1_gym.report.evaluation import describe_run, mean_interval, read_evaluation_runs
from agent_r1_gym.report.page import Cell, Html, Section, paragraph, sections, table, write_page
from agent_r1_gym.report.viewer import ViewerItem, viewer
from agent_r1_gym.run.evaluation.metrics import check_same_questions, compare_records, mean_metric, p_value
from agent_r1_gym.run.evaluation.run_folder import RunFolder, settings_differences
from agent_r1_gym.run.evaluation.statistics import holm
from agent_r1_gym.run.record import Trajectory

LETTERS = string.ascii_uppercase
DIFFER = "differ"
PAIR_CLASSES = {"both right": "=", "only A right": "A", "only B right": "B", "both wrong": "✗", "unscored": "·"}
"""Possible outcomes of a question in two runs, with their marks in the list."""
GROUP_CLASSES = {"all right": "=", DIFFER: "≠", "all wrong": "✗", "unscored": "·"}
"""Possible outcomes of a question in more than two runs, with their marks in the list."""
CHECKPOINTS = "These p-values compare two checkpoints. One run per method is not enough to compare methods."

Group = tuple[Trajectory, ...]
"""The episodes of one question and sample, one per run."""


class Difference(NamedTuple):
    """One metric of a run, and its difference from another run.

    Attributes:
        metric: name; of two runs also "em (McNemar)".
        run: letter of the run.
        mean: mean over the questions that all runs have finished; None for two runs.
        test: `difference` (A - B of two runs, else run - A), `low` and `high`; None for A itself.
        p_value: p-value of the test.
        corrected: the p-value corrected for the number of runs; None for two runs.
    """

    metric: str
    run: str
    mean: float | None = None
    test: Mapping[str, float] | None = None
    p_value: float | None = None
    corrected: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs on the same questions.

    Attributes:
        names: names of the runs.
        facts: what was evaluated, one text per run.
        groups: the episodes that all runs have finished, by task and sample.
        differences: by metric, then by run.
        questions: number of questions behind the differences.
        labels: task labels to filter by.
    """

    names: Sequence[str]
    facts: Sequence[str]
    groups: Sequence[Group]
    differences: Sequence[Difference]
    questions: int
    labels: frozenset[str] = frozenset()

    @property
    def is_pair(self) -> bool:
        """Whether two runs are compared."""
        return len(self.names) == 2

    @property
    def counts(self) -> dict[str, int]:
        """Number of groups by outcome, in the order of `PAIR_CLASSES` or `GROUP_CLASSES`."""
        counts = Counter(map(outcome_class, self.groups))
        return {name: counts[name] for name in (PAIR_CLASSES if self.is_pair else GROUP_CLASSES)}

    @property
    def differing(self) -> list[Group]:
        """The groups in which some runs are right and others wrong."""
        return [group for group in self.groups if set(map(correctness, group)) == {"right", "wrong"}]


def compare(paths: Sequence[Path]) -> Comparison:
    """Compare two or more evaluation runs.

    Raises:
        ConfigurationError: the runs are on different questions, have no finished episode in common, or are too many.
        DatasetError: a folder holds no run.
    """
    if len(paths) > len(LETTERS):
        raise ConfigurationError(f"compare takes at most {len(LETTERS)} runs, got {len(paths)}.")
    for path in paths[1:]:
        check_same_questions(RunFolder(paths[0]), RunFolder(path))
    runs = read_evaluation_runs(paths)
    by_key = [{(record.task_index, record.sample): record for record in run.records} for run in runs]
    common = sorted(set.intersection(*(set(records) for records in by_key)))
    if not common:
        raise ConfigurationError("The runs have finished no episode in common; resume them first.")
    groups = [tuple(records[key] for records in by_key) for key in common]
    if len(runs) == 2:
        # All samples of a question count here, not only those that both runs have finished.
        tests = compare_records(runs[0].records, runs[1].records)
        questions, differences = tests["questions"], _pair_differences(tests)
    else:
        questions, differences = len(groups), _differences_from_first(groups)
    facts = [f"{letter}: {describe_run(run)}" for letter, run in zip(LETTERS, runs, strict=False)]
    others = zip(LETTERS[1:], runs[1:], strict=False)
    facts += filter(None, (_settings_fact(letter, runs[0].settings, run.settings) for letter, run in others))
    labels = frozenset(runs[0].metrics["by"])
    return Comparison([run.name for run in runs], facts, groups, differences, questions, labels)


def _settings_fact(letter: str, first: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Return how the environment and the decoding of a run differ from those of A; None if they do not."""
    names = ("env_id", "env_options", "model")
    old, new = ({name: settings.get(name) or {} for name in names} for settings in (first, other))
    differing = "; ".join(settings_differences(old, new))
    return f"{letter} differs from A in its settings (A != {letter}): {differing}." if differing else None


def _pair_differences(tests: Mapping[str, Any]) -> list[Difference]:
    rows = []
    for name, test in tests.items():
        if isinstance(test, Mapping):
            rows.append(Difference(name, "A", test=test, p_value=test["p_value"]))
            if "mcnemar_p_value" in test:
                rows.append(Difference(f"{name} (McNemar)", "A", test=test, p_value=test["mcnemar_p_value"]))
    return rows


def _differences_from_first(groups: Sequence[Group]) -> list[Difference]:
    runs = list(zip(*groups, strict=True))
    tests = [compare_records(records, runs[0]) for records in runs[1:]]
    rows = []
    for metric, first_test in tests[0].items():
        if not isinstance(first_test, Mapping) or any(metric not in test for test in tests):
            continue
        means = [mean_metric(records, metric) for records in runs]
        p_values = [p_value(test[metric]) for test in tests]
        rows.append(Difference(metric, LETTERS[0], means[0]))
        by_run = zip(LETTERS[1:], means[1:], tests, p_values, holm(p_values), strict=False)
        rows += [Difference(metric, letter, mean, test[metric], *ps) for letter, mean, test, *ps in by_run]
    return rows


def outcome_class(group: Sequence[Trajectory]) -> str:
    """Classify the episodes of one question: a key of `PAIR_CLASSES` for two runs, of `GROUP_CLASSES` for more."""
    outcomes = tuple(map(correctness, group))
    if not set(outcomes) <= {"right", "wrong"}:
        return "unscored"
    if len(group) == 2:
        a, b = outcomes
        return f"both {a}" if a == b else "only A right" if a == "right" else "only B right"
    return DIFFER if len(set(outcomes)) > 1 else f"all {outcomes[0]}"


def write_comparison(comparison: Comparison, out: Path) -> int:
    """Write the page and return its size in bytes."""
    counts = comparison.counts
    items = [_item(comparison, group) for group in comparison.groups]
    parts = sections(
        Section(
            "Comparison",
            [
                *map(paragraph, comparison.facts),
                table("Episodes", ("", *counts), [["", *map(str, counts.values())]]),
                _differences_table(comparison),
                paragraph(CHECKPOINTS),
            ],
        ),
        Section("Questions", viewer(items, noun="questions", selected={"outcome": DIFFER})),
    )
    title = ", ".join(f"{letter}: {name}" for letter, name in zip(LETTERS, comparison.names, strict=False))
    return write_page(out, title, parts)


def _differences_table(comparison: Comparison) -> Html:
    rows: list[list[Cell]]
    if comparison.is_pair:
        caption = f"A - B over {comparison.questions} questions: mean [95 % interval], paired"
        rows = [[row.metric, mean_interval(row.test, "difference"), _p(row.p_value)] for row in comparison.differences]
        return table(caption, ("", "difference", "p-value"), rows)
    caption = f"{len(comparison.groups)} episodes each: mean [95 % interval], paired"
    rows = [
        [
            f"{row.metric}, {row.run}",
            row.mean,
            mean_interval(row.test, "difference"),
            _p(row.p_value),
            _p(row.corrected),
        ]
        for row in comparison.differences
    ]
    return table(caption, ("", "mean", "difference from A", "p-value", "corrected (Holm)"), rows)


def _p(value: float | None) -> Cell:
    return None if value is None else f"{value:.2g}"


def _item(comparison: Comparison, group: Group) -> ViewerItem:
    outcome, first = outcome_class(group), group[0]
    runs = list(zip(LETTERS, group, comparison.names, strict=False))
    outcomes = (outcome, DIFFER) if outcome in ("only A right", "only B right") else (outcome,)
    facets: dict[str, tuple[str, ...]] = {"outcome": outcomes}
    if not comparison.is_pair:  # whose outcome names the runs already
        facets["run"] = tuple(f"{letter}: {correctness(record)}" for letter, record, _ in runs)
    facets["failure"] = tuple(f"{letter}: {kind}" for letter, record, _ in runs for kind in failure_kinds(record))
    facets |= {name: (str(value),) for name, value in first.labels.items() if name in comparison.labels}
    detail = ", ".join(f"{letter} {record.answer!r}" for letter, record, _ in runs)
    return ViewerItem(
        mark={**PAIR_CLASSES, **GROUP_CLASSES}[outcome],
        title=question_of(first),
        detail=f"{detail}, gold {' | '.join(first.gold_answers)}" if first.gold_answers else detail,
        sides=tuple(
            episode_side(record, title=f"{letter}: {name}. {answer_summary(record)}") for letter, record, name in runs
        ),
        facets=facets,
        order={f"{letter} {name}": value for letter, record, _ in runs for name, value in sort_values(record).items()},
        wrong=outcome not in ("both right", "all right", "unscored"),
    )
