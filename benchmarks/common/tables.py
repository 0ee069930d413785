"""The finished cells of an experiment, and what any experiment shows of them: scores, contrasts, power, curves."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.report.plots import Curve, Range, curves, standalone
from agent_r1_gym.run.evaluation.statistics import holm
from agent_r1_gym.support.files import atomic_file
from benchmarks.common.contrasts import (
    FIRST_PILOT_SEED,
    SIGNIFICANT,
    Contrast,
    Effect,
    Floats,
    Measure,
    Pair,
    difference,
    effect,
    pairs_needed,
    scores,
    smallest_difference,
)
from benchmarks.common.results import WEIGHTS_AFTER, Cell, read_results

if TYPE_CHECKING:
    from benchmarks.common.experiment import Experiment, Profile

_DIFFERENCES = (0.01, 0.02, 0.03, 0.05)
MEASURES: tuple[Measure, ...] = ("area", "end")
Point = Mapping[str, Any]
"""An evaluation while training: its step, marks by set, and further measures."""


def share(marks: str) -> float:
    """Share of solved episodes."""
    return marks.count("1") / len(marks)


class Cells:
    """The finished cells of a profile, by arm.

    Args:
        path: the summary.
        experiment: the experiment.
        profile: its scale.
        pilot: whether to take the pilot's cells instead of the others.
    """

    def __init__(self, path: Path, experiment: Experiment, profile: Profile, *, pilot: bool = False) -> None:
        self.path, self.experiment, self.profile = path, experiment, profile
        _, cells = read_results(path)
        chosen = [cell for cell in cells if (cell["seed"] >= FIRST_PILOT_SEED) == pilot]
        by_arm = {name: [cell for cell in chosen if cell["arm"] == name] for name in experiment.arms}
        self.by_arm: dict[str, list[Cell]] = {name: found for name, found in by_arm.items() if found}
        self._clusters: dict[tuple[int, Measure, str], list[Hashable]] = {}

    def title(self, arm: str) -> str:
        """Name of an arm in tables."""
        return self.experiment.arms[arm].title

    def rows(self) -> Iterable[tuple[str, list[Cell]]]:
        """Title and cells of each arm that has cells."""
        return ((self.title(arm), cells) for arm, cells in self.by_arm.items())

    def sets(self, measure: Measure) -> Sequence[str]:
        """The sets that a contrast takes together: the validation sets; at the end, the tests of the same titles.

        All tests, where none has the title of a validation set.
        """
        if measure == "area":
            return list(self.profile.validation)
        return [title for title in self.profile.tests if title in self.profile.validation] or list(self.profile.tests)

    def clusters(self, measure: Measure, titles: Sequence[str]) -> Mapping[int, Sequence[Hashable]]:
        """By warm start the cluster of each question of these sets, in the order of `values`."""
        starts = range(len(self.profile.starts))
        return {start: [each for title in titles for each in self._of_set(start, measure, title)] for start in starts}

    def _of_set(self, start: int, measure: Measure, title: str) -> list[Hashable]:
        if (start, measure, title) not in self._clusters:
            profile, cluster = self.profile, self.experiment.cluster
            area = measure == "area"
            number = profile.validation_questions if area else profile.test_questions
            found: list[Hashable] = [(title, index) for index in range(number)]
            if isinstance(cluster, Mapping):
                found = list(cluster[title][:number])
            elif cluster is not None:
                options = (profile.validation if area else profile.tests)[title]
                env = make_text_env(profile.env, {**options, **profile.starts[start].env}).unwrapped
                assert isinstance(env, ToolEnv)
                found = [cluster(env, index) for index in range(number)]
            self._clusters[start, measure, title] = found
        return self._clusters[start, measure, title]

    def values(self, arm: str, measure: Measure, titles: Sequence[str] | None = None) -> dict[Pair, Floats]:
        """Scores of an arm by warm start and seed, on the sets of the measure unless others are named."""
        chosen = self.sets(measure) if titles is None else titles
        cells = self.by_arm.get(arm, [])
        return {(cell["start"], cell["seed"]): scores(cell, chosen, measure) for cell in cells}

    def mean(self, arm: str, measure: Measure, titles: Sequence[str] | None = None) -> Effect:
        """Mean score of an arm with its interval."""
        chosen = self.sets(measure) if titles is None else titles
        return effect(self.values(arm, measure, chosen), self.clusters(measure, chosen), proportion=True)

    def contrast(self, contrast: Contrast, titles: Sequence[str] | None = None) -> Effect | None:
        """Effect of a contrast, None if no pair has cells of both arms."""
        chosen = self.sets(contrast.measure) if titles is None else titles
        pairs = difference(*(self.values(arm, contrast.measure, chosen) for arm in (contrast.ours, contrast.theirs)))
        return effect(pairs, self.clusters(contrast.measure, chosen)) if pairs else None

    def report(self) -> str:
        """All tables of the experiment that are not empty, and the commits that made the cells."""
        tables = self.experiment.tables
        if tables is None:
            families = {title: contrasts_of(title) for title in self.experiment.contrasts}
            tables = {**({"Power": power} if self.experiment.pilot else {}), "Arms": arms, **families}
        texts = [f"## {title}\n\n{text}" for title, table in tables.items() if (text := table(self))]
        commits = sorted({cell["commit"] for cells in self.by_arm.values() for cell in cells})
        return "\n\n".join((*texts, f"All cells: commit {', '.join(commits)}."))


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; empty without rows."""
    body = list(rows)
    lines = (f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *body))
    return "\n".join(lines) if body else ""


def power(cells: Cells) -> str:
    """The differences that the planned pairs can decide, by the spread of paired differences.

    By the pilot, with which the experiment was planned, and by the cells themselves. Contrasts are those of the first
    family; Holm's first one is tested at 5 % / their number.
    """
    experiment, profile = cells.experiment, cells.profile
    planned = len(profile.starts) * len(profile.seeds)
    contrasts = len(next(iter(experiment.contrasts.values())))
    rows = []
    by = {"pilot": Cells(cells.path, experiment, profile, pilot=True), "cells": cells}
    for measure, (name, table) in product(MEASURES, by.items()):
        compared = (
            table.contrast(Contrast("", ours, theirs, measure))
            for ours, theirs in combinations([arm for arm in experiment.pilot if arm in table.by_arm], 2)
        )
        found = [each for each in compared if each is not None and each.pairs > 1]
        if found:
            sd = statistics.mean(each.sd**2 for each in found) ** 0.5
            needed = [str(pairs_needed(each, sd) or "> 200") for each in _DIFFERENCES]
            levels = (SIGNIFICANT, SIGNIFICANT / contrasts)
            spread_of = f"{sd:.4f} ({found[0].pairs} pairs)"
            rows.append((measure, name, spread_of, *needed, *(_smallest(planned, sd, level) for level in levels)))
    header = ("measure", "by", "SD of paired differences", *(f"pairs for {each}" for each in _DIFFERENCES))
    return markdown((*header, f"smallest that {planned} pairs decide", f"the same, at .05 / {contrasts}"), rows)


def _smallest(pairs: int, sd: float, level: float) -> str:
    found = smallest_difference(pairs, sd, level=level)
    return "none" if found is None else f"{found:.3f}"


def arms(cells: Cells, **extra: Callable[[str, Sequence[Cell]], str]) -> str:
    """Area and end of each arm by test set, with intervals over warm starts, seeds and clusters of questions.

    Args:
        cells: the finished cells.
        extra: further columns, from the arm's name and cells; `_` in a title stands for a space.
    """
    tests = cells.profile.tests
    ends = {"end": list(tests)} if len(tests) == 1 else {title: [title] for title in tests}
    rows = []
    for arm, found in cells.by_arm.items():
        area = with_interval(cells.mean(arm, "area")) if "curve" in found[0] else "-"
        scored = [with_interval(cells.mean(arm, "end", titles)) for titles in ends.values()]
        rows.append((cells.title(arm), str(len(found)), area, *scored, *(each(arm, found) for each in extra.values())))
    return markdown(("arm", "cells", "area", *ends, *(title.replace("_", " ") for title in extra)), rows)


def contrasts_of(family: str) -> Callable[[Cells], str]:
    """A table of the contrasts of a family, as `contrasts` makes it."""
    return lambda cells: contrasts(cells, cells.experiment.contrasts[family])


def contrasts(cells: Cells, chosen: Sequence[Contrast]) -> str:
    """The contrasts that have cells, with verdicts and Holm's p-values over all of `chosen`.

    One without cells counts as p = 1: a family is what was named beforehand, not what has run so far. A line below the
    table names the pairs that do not go back to the same weights, though their first command is the same.
    """
    found = {contrast: cells.contrast(contrast) for contrast in chosen}
    corrected = holm([1.0 if each is None else each.p_value for each in found.values()])
    strict = SIGNIFICANT / max(1, len(chosen))
    rows = [
        (
            contrast.title,
            contrast.measure,
            str(each.pairs),
            with_sign(each),
            f"{p_value:.4f}",
            verdict(each, p_value),
            _smallest(each.pairs, each.sd, strict),
        )
        for (contrast, each), p_value in zip(found.items(), corrected, strict=True)
        if each is not None
    ]
    header = ("contrast", "measure", "pairs", "difference [95 %]", "p (Holm)", "verdict")
    table = markdown((*header, f"smallest that these decide, at .05 / {len(chosen)}"), rows)
    if apart := [f"{each.title} ({pairs})" for each in chosen if (pairs := _apart(cells, each))]:
        table += f"\n\nOther weights after the same first command (warm start/seed): {', '.join(apart)}."
    return table


def _apart(cells: Cells, contrast: Contrast) -> str:
    """The pairs of a contrast whose first commands are the same, but left other weights."""
    found: list[dict[Pair, Any]] = []
    for arm in (contrast.ours, contrast.theirs):
        first = [*getattr(cells.experiment.arms[arm].learn, "steps", ())][:1]
        made = (cell for cell in cells.by_arm.get(arm, []) if first and WEIGHTS_AFTER in cell)
        found.append(
            {(cell["start"], cell["seed"]): (first, next(iter(cell[WEIGHTS_AFTER].values()))) for cell in made}
        )
    ours, theirs = found
    both = sorted(ours.keys() & theirs.keys())
    alike = [pair for pair in both if ours[pair][0] == theirs[pair][0]]
    return ", ".join(f"{start}/{seed}" for start, seed in alike if ours[start, seed] != theirs[start, seed])


def contrasts_by_set(cells: Cells, chosen: Sequence[Contrast], titles: Sequence[str]) -> str:
    """The contrasts set by set: differences with intervals, not tested."""
    rows = []
    for contrast in chosen:
        parts = [cells.contrast(contrast, [title]) for title in titles]
        if any(parts):
            shown = ("-" if each is None else with_sign(each) for each in parts)
            rows.append((contrast.title, contrast.measure, *shown))
    return markdown(("contrast", "measure", *titles), rows)


def by_step(cells: Cells, label: str, value: Callable[[Point], float], step: str = "step") -> str:
    """The mean of a value over the cells of each arm, evaluation by evaluation; without arms that have no curve.

    Args:
        cells: the finished cells.
        label: of the first column.
        value: of an evaluation.
        step: key of what counts the evaluations.
    """
    found = {title: each for title, each in cells.rows() if "curve" in each[0]}
    curves = [cell["curve"] for each in found.values() for cell in each]
    number = min(map(len, curves), default=0)
    header = [str(curves[0][at][step]) for at in range(number)]
    rows = (
        (title, *(f"{statistics.mean(value(cell['curve'][at]) for cell in each):.2f}" for at in range(number)))
        for title, each in found.items()
    )
    return markdown((label, *header), rows)


def verdict(found: Effect, p_value: float) -> str:
    """Whether a difference is decided: by the test over pairs, and by the interval, which draws warm starts too."""
    if p_value >= SIGNIFICANT or found.low <= 0 <= found.high:
        return "undecided"
    return "higher" if found.mean > 0 else "lower"


def with_sign(found: Effect) -> str:
    """A difference with its interval."""
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def with_interval(found: Effect) -> str:
    """A mean with its interval."""
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"


def spread(values: Sequence[float]) -> str:
    """A mean with the smallest and the largest value."""
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def spread_of(cells: Sequence[Cell], at: int, title: str) -> str:
    """The share of solved questions of a set at an evaluation, with its spread over cells."""
    return spread([share(cell["curve"][at][title]) for cell in cells])


def curve_chart(
    cells: Cells, path: Path, *, title: str, drawn: Sequence[str], across: Sequence[str], begin: str | None = None
) -> None:
    """Draws scores on validation sets while arms train, as SVG; bands are 95 % intervals.

    Args:
        cells: the finished ones.
        path: of the file.
        title: of the picture.
        drawn: arms with a curve.
        across: arms whose final score is a horizontal line.
        begin: an untrained arm, whose final score is step 0 of all curves.
    """
    series = {cells.title(arm): _curve(cells, cells.by_arm[arm]) for arm in drawn if arm in cells.by_arm}
    lines = {cells.title(arm): cells.mean(arm, "end").mean for arm in across if arm in cells.by_arm}
    if begin in cells.by_arm:
        base = cells.mean(str(begin), "end")
        start: Range = (base.mean, base.low, base.high)
        series = {name: Curve([0, *curve.x], [start, *curve.y]) for name, curve in series.items()}
    with atomic_file(path) as temporary:
        temporary.write_text(standalone(curves(title, series, lines=lines), list(series)), encoding="utf-8")


def _curve(cells: Cells, found: Sequence[Cell]) -> Curve:
    titles, steps = cells.sets("area"), [point["step"] for point in found[0]["curve"]]
    ranges: list[Range] = []
    for at in range(len(steps)):
        points = {(cell["start"], cell["seed"]): cell["curve"][at] for cell in found}
        values = {pair: scores({"exact": point}, titles, "end") for pair, point in points.items()}
        mean = effect(values, cells.clusters("area", titles), proportion=True)
        ranges.append((mean.mean, mean.low, mean.high))
    return Curve(steps, ranges)
