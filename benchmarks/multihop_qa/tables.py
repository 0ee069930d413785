"""The finished cells as Markdown: the power of the experiment first, then methods, contrasts and behaviours."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

from agent_r1_gym.envs.fiction_qa import FictionQAEnv
from agent_r1_gym.evaluation.statistics import crossed_interval, holm
from benchmarks.common.cells import Cell, markdown, read_cells
from benchmarks.multihop_qa.contrasts import (
    Effect,
    Floats,
    Pair,
    difference,
    effect,
    pairs_needed,
    scores,
    smallest_difference,
)
from benchmarks.multihop_qa.settings import (
    CONTRASTS,
    FIRST_PILOT_SEED,
    METHODS,
    PAPER,
    PILOT,
    Contrast,
    Profile,
)

_SIGNIFICANT = 0.05
_PAPER = "paper: HotpotQA, 2Wiki, MuSiQue"
_DIFFERENCES = (0.01, 0.02, 0.03, 0.05)


class Cells:
    """The finished cells of a profile.

    Args:
        folder: with a folder per warm start.
        profile: their settings.
        pilot: whether to read the pilot's, or those that count.
    """

    def __init__(self, folder: Path, profile: Profile, *, pilot: bool = False) -> None:
        self.profile = profile
        self.by_method: dict[str, list[Cell]] = {}
        for name in METHODS:
            cells = [cell for cell in read_cells(folder, name) if (cell["seed"] >= FIRST_PILOT_SEED) == pilot]
            if cells:
                self.by_method[name] = cells

    def values(self, name: str, measure: str, titles: Sequence[str] | None = None) -> dict[Pair, Floats]:
        """Returns the scores of a method by pair, on the sets of the curve unless others are named."""
        chosen = self.profile.curve_sets if titles is None else titles
        cells = self.by_method.get(name, [])
        return {(cell["start"], cell["seed"]): scores(cell, chosen, measure) for cell in cells}

    def paths(self, measure: str, titles: Sequence[str] | None = None) -> dict[int, list[tuple[str, ...]]]:
        """Returns by warm start the path of each question, in the order of `values`."""
        chosen = self.profile.curve_sets if titles is None else titles
        number = self.profile.curve_questions if measure == "area" else self.profile.questions
        return {
            start: [path for title in chosen for path in _paths(self.profile, start, title)[:number]]
            for start in range(len(self.profile.starts))
        }

    def effect(self, values: Mapping[Pair, Floats], measure: str, titles: Sequence[str] | None = None) -> Effect:
        """Returns the mean of these values with its interval and test."""
        return effect(values, self.paths(measure, titles))


def _paths(profile: Profile, start: int, title: str) -> list[tuple[str, ...]]:
    env = FictionQAEnv(**profile.test_sets[title], **profile.starts[start].world)
    return [env.dataset[number].metadata["path"] for number in range(profile.questions)]


def report(folder: Path, profile: Profile) -> str:
    """Returns all tables of a profile whose policies have curves."""
    cells = Cells(folder, profile)
    parts = {
        "Power, from the pilot": power_table(Cells(folder, profile, pilot=True), profile),
        "Methods": methods_table(cells),
        "Contrasts": contrasts_table(cells),
        "Behaviour": behaviour_table(cells),
    }
    commits = sorted({cell["commit"] for found in cells.by_method.values() for cell in found})
    texts = [f"## {title}\n\n{text}" for title, text in parts.items() if text]
    return "\n\n".join((*texts, f"All cells: commit {', '.join(commits)}."))


def power_table(pilot: Cells, profile: Profile) -> str:
    """Returns what differences the experiment can decide, by the spread of paired differences in a pilot."""
    planned = len(profile.starts) * len(profile.seeds)
    rows = []
    for measure in ("area", "end"):
        sds = [
            pilot.effect(pairs, measure).sd
            for ours, theirs in combinations([name for name in PILOT if name in pilot.by_method], 2)
            if len(pairs := difference(pilot.values(ours, measure), pilot.values(theirs, measure))) > 1
        ]
        if sds:
            sd = statistics.mean(spread**2 for spread in sds) ** 0.5
            needed = [pairs_needed(each, sd) for each in _DIFFERENCES]
            shown = [str(pairs or "> 200") for pairs in needed]
            rows.append((measure, f"{sd:.4f}", *shown, f"{smallest_difference(planned, sd):.3f}"))
    header = ("measure", "SD of paired differences", *(f"pairs for {each}" for each in _DIFFERENCES))
    return markdown((*header, f"smallest that {planned} pairs decide"), rows) if rows else ""


def methods_table(cells: Cells) -> str:
    """Returns area and end by test set, each with its interval over warm starts, seeds and paths."""
    rows = []
    for name, found in cells.by_method.items():
        area = _shown(cells.effect(cells.values(name, "area"), "area")) if "curve" in found[0] else "-"
        ends = [
            _shown(cells.effect(cells.values(name, "end", [title]), "end", [title]))
            for title in cells.profile.test_sets
        ]
        rows.append((METHODS[name].title, str(len(found)), area, *ends, _paper(name)))
    return markdown(("method", "cells", "area", *cells.profile.test_sets, _PAPER), rows)


def contrasts_table(cells: Cells) -> str:
    """Returns the named contrasts that have cells, with Holm's p-values and verdicts."""
    found: dict[Contrast, Effect] = {}
    for contrast in CONTRASTS:
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


def behaviour_table(cells: Cells) -> str:
    """Returns how the trained policies got there and what they do."""
    rows = []
    for name, found in cells.by_method.items():
        nothing = sum(cell["retries"]["nothing_found"] for cell in found) or 1
        again = [sum(cell["retries"][what] for cell in found) / nothing for what in ("same_query", "another_query")]
        learnt = list(_learning(found)) if "log" in found[0] else ["-"] * 4
        rows.append((METHODS[name].title, *learnt, *(f"{share:.2f}" for share in again)))
    header = ("groups without signal, first 10 steps", "last 10", "calls, last 10", "steps to .5 in training")
    return markdown(("method", *header, "same search after nothing found", "another search"), rows)


def _learning(found: Sequence[Cell]) -> Iterator[str]:
    logs = [cell["log"] for cell in found]
    yield f"{statistics.mean(share for log in logs for share in log['without_signal'][:10]):.2f}"
    yield f"{statistics.mean(share for log in logs for share in log['without_signal'][-10:]):.2f}"
    yield f"{statistics.mean(calls for log in logs for calls in log['calls'][-10:]):.1f}"
    reached = [step for log in logs if (step := steps_to(log["em"], 0.5)) is not None]
    yield f"{statistics.median(reached):.0f} ({len(reached)} of {len(logs)})" if reached else f"- (0 of {len(logs)})"


def steps_to(curve: Sequence[float], level: float, width: int = 5) -> int | None:
    """Returns the step at which the mean of the last `width` values first reaches `level`, None if it never does."""
    ends = range(width, len(curve) + 1)
    return next((end for end in ends if statistics.mean(curve[end - width : end]) >= level), None)


def exact_table(folder: Path, titles: Sequence[str]) -> str:
    """Returns exact match by test set of cells that have no curves, the paper's own numbers beside them."""
    rows = []
    for name, method in METHODS.items():
        if cells := read_cells(folder, name):
            intervals = [crossed_interval([[*map(int, cell["exact"][title])] for cell in cells]) for title in titles]
            shown = [f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in intervals]
            rows.append((method.title, str(len(cells)), *shown, _paper(name)))
    return markdown(("method", "seeds", *titles, _PAPER), rows)


def _paper(name: str) -> str:
    title = METHODS[name].paper or ""
    return ", ".join(f"{value:.4f}" for value in PAPER[title]) if title in PAPER else "-"


def _shown(found: Effect) -> str:
    return f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"
