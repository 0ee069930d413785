"""The finished cells of an experiment, and what any two experiments show of them: contrasts with verdicts, power."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from agent_r1_gym.evaluation.statistics import holm
from benchmarks.common.cells import Cell, markdown, read_cells
from benchmarks.common.contrasts import (
    FIRST_PILOT_SEED,
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

_SIGNIFICANT = 0.05
_DIFFERENCES = (0.01, 0.02, 0.03, 0.05)


class CellTable(ABC):
    """The finished cells of an experiment, by method.

    Args:
        folder: with a folder per warm start.
        methods: in the order of the tables.
        pilot: whether to read the pilot's, or those that count.
    """

    def __init__(self, folder: Path, methods: Iterable[str], *, pilot: bool = False) -> None:
        self.by_method: dict[str, list[Cell]] = {}
        for name in methods:
            cells = [cell for cell in read_cells(folder, name) if (cell["seed"] >= FIRST_PILOT_SEED) == pilot]
            if cells:
                self.by_method[name] = cells

    @abstractmethod
    def titles(self, measure: Measure) -> Sequence[str]:
        """Returns the test sets that a contrast takes together."""

    @abstractmethod
    def clusters(self, measure: Measure, titles: Sequence[str]) -> Mapping[int, Sequence[Hashable]]:
        """Returns by warm start the cluster of each question of these sets, in the order of `values`."""

    def values(self, name: str, measure: Measure, titles: Sequence[str] | None = None) -> dict[Pair, Floats]:
        """Returns the scores of a method by pair, on `titles` of the measure unless others are named."""
        chosen = self.titles(measure) if titles is None else titles
        cells = self.by_method.get(name, [])
        return {(cell["start"], cell["seed"]): scores(cell, chosen, measure) for cell in cells}

    def effect(self, values: Mapping[Pair, Floats], measure: Measure, titles: Sequence[str] | None = None) -> Effect:
        """Returns the mean of these values with its interval and test."""
        return effect(values, self.clusters(measure, self.titles(measure) if titles is None else titles))

    def commits(self) -> str:
        """Returns the commits that made the cells."""
        return ", ".join(sorted({cell["commit"] for found in self.by_method.values() for cell in found}))


def power_table(pilot: CellTable, methods: Sequence[str], *, planned: int) -> str:
    """Returns what differences `planned` pairs can decide, by the spread of paired differences in a pilot.

    Args:
        pilot: its cells.
        methods: those that are compared, two by two.
        planned: pairs of a warm start and a seed in the experiment.
    """
    rows = []
    measures: tuple[Measure, ...] = ("area", "end")
    for measure in measures:
        sds = [
            pilot.effect(pairs, measure).sd
            for ours, theirs in combinations([name for name in methods if name in pilot.by_method], 2)
            if len(pairs := difference(pilot.values(ours, measure), pilot.values(theirs, measure))) > 1
        ]
        if sds:
            sd = statistics.mean(spread**2 for spread in sds) ** 0.5
            needed = [pairs_needed(each, sd) for each in _DIFFERENCES]
            shown = [str(pairs or "> 200") for pairs in needed]
            rows.append((measure, f"{sd:.4f}", *shown, f"{smallest_difference(planned, sd):.3f}"))
    header = ("measure", "SD of paired differences", *(f"pairs for {each}" for each in _DIFFERENCES))
    return markdown((*header, f"smallest that {planned} pairs decide"), rows) if rows else ""


def contrasts_table(cells: CellTable, contrasts: Iterable[Contrast]) -> str:
    """Returns the named contrasts that have cells, with Holm's p-values and verdicts."""
    found: dict[Contrast, Effect] = {}
    for contrast in contrasts:
        sides = (cells.values(name, contrast.measure) for name in (contrast.ours, contrast.theirs))
        if all(name in cells.by_method for name in (contrast.ours, contrast.theirs)):
            found[contrast] = cells.effect(difference(*sides), contrast.measure)
    corrected = holm([each.p_value for each in found.values()])
    rows = [
        (
            contrast.title,
            contrast.measure,
            str(each.pairs),
            f"{each.mean:+.3f} [{each.low:+.3f}, {each.high:+.3f}]",
            f"{p_value:.4f}",
            *_verdict(each, p_value),
        )
        for (contrast, each), p_value in zip(found.items(), corrected, strict=True)
    ]
    header = ("contrast", "measure", "pairs", "difference [95 %]", "p (Holm)", "verdict", "smallest that these decide")
    return markdown(header, rows)


def _verdict(found: Effect, p_value: float) -> tuple[str, str]:
    decided = p_value < _SIGNIFICANT
    smallest = f"{smallest_difference(found.pairs, found.sd):.3f}" if found.pairs > 1 else "-"
    return ("higher" if found.mean > 0 else "lower") if decided else "undecided", smallest


def with_interval(found: Effect) -> str:
    """Returns a mean with its interval."""
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"
