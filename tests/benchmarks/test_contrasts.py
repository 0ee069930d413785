"""What is said of cells: effects, intervals, power, verdicts; against values by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.common.contrasts import (
    Contrast,
    Effect,
    difference,
    effect,
    least_pairs,
    pairs_needed,
    power,
    scores,
    smallest_difference,
)
from benchmarks.common.experiment import Arm, Run
from benchmarks.common.results import WEIGHTS_AFTER
from benchmarks.common.tables import Cells, contrasts, contrasts_by_set, curve_chart, verdict
from benchmarks.common.tables import power as power_table
from benchmarks.learning.multihop_qa.settings import CONTRASTS, EXPERIMENT, PROFILES
from tests.benchmarks.cells import write

CELL = {
    "curve": [{"step": 5, "a": "10", "b": "00"}, {"step": 10, "a": "11", "b": "01"}],
    "exact": {"a": "01", "b": "1"},
}


def test_scores_are_means_over_evaluations_or_those_of_the_end() -> None:
    assert scores(CELL, ["a", "b"], "area").tolist() == [1.0, 0.5, 0.0, 0.5]
    assert scores(CELL, ["b", "a"], "end").tolist() == [1.0, 0.0, 1.0]


def test_an_effect_is_the_mean_over_pairs_with_their_spread() -> None:
    ours = {(0, 0): np.array([1.0, 0.0]), (0, 1): np.array([1.0, 1.0]), (1, 0): np.array([0.0, 0.0])}
    theirs = {(0, 0): np.array([0.0, 0.0]), (0, 1): np.array([0.0, 0.0])}
    pairs = difference(ours, theirs)
    assert pairs.keys() == theirs.keys()
    found = effect(pairs, {0: ["p", "q"]})
    assert (found.mean, found.pairs) == (0.75, 2)
    assert found.sd == pytest.approx(0.25 * math.sqrt(2))
    assert found.p_value == 0.5  # two of the four sign patterns are as far from 0
    assert found.low <= 0.75 <= found.high


def test_questions_of_one_path_do_not_count_as_many() -> None:
    generator = np.random.default_rng(0)
    by_path = generator.integers(0, 2, 10).repeat(20).astype(float)  # all questions of a path are right, or all wrong
    values = {(start, seed): by_path for start in range(3) for seed in range(5)}
    paths, alone = np.arange(10).repeat(20).tolist(), list(range(200))
    found = [effect(values, dict.fromkeys(range(3), clusters)) for clusters in (paths, alone)]
    widths = [each.high - each.low for each in found]
    assert widths[0] > 3 * widths[1]


def test_warm_starts_that_differ_widen_the_interval() -> None:
    alike = {(start, seed): np.full(8, 0.5) for start in range(3) for seed in range(2)}
    apart = {(start, seed): np.full(8, 0.2 + 0.3 * start) for start in range(3) for seed in range(2)}
    paths = {start: list(range(8)) for start in range(3)}
    found = effect(alike, paths)
    assert found.low == found.high == 0.5
    found = effect(apart, paths)
    assert (found.low, found.high) == pytest.approx((0.2, 0.8))


def test_a_path_is_drawn_for_all_warm_starts_together() -> None:
    """What one path adds in every warm start does not average out over them."""
    starts = range(8)
    alike = {(start, 0): np.array([0.0, 1.0]) for start in starts}
    found = effect(alike, {start: ["p", "q"] for start in starts})
    assert (found.low, found.high) == (0.0, 1.0)  # one draw of four has path p alone
    found = effect(alike, {start: [(start, "p"), (start, "q")] for start in starts})
    assert 0.0 < found.low < 0.5 < found.high < 1.0


@pytest.mark.slow
def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Seeds and paths vary; with many warm starts the bootstrap over all three holds its level."""
    generator, hits, trials = np.random.default_rng(1), 0, 40
    for _ in range(trials):
        values = {}
        for start in range(6):
            base = generator.normal(0, 0.05)
            by_path = generator.normal(0, 0.1, 6).repeat(4)
            for seed in range(4):
                values[start, seed] = base + generator.normal(0, 0.05) + by_path + generator.normal(0, 0.2, 24)
        found = effect(values, {start: np.arange(6).repeat(4).tolist() for start in range(6)})
        hits += found.low <= 0 <= found.high
    assert 0.85 * trials <= hits <= trials


@pytest.mark.parametrize(("effect_size", "pairs"), [(0.01, 28), (0.02, 9), (0.03, 6)])
def test_pairs_for_a_difference_are_those_of_the_noncentral_t(effect_size: float, pairs: int) -> None:
    assert pairs_needed(effect_size, 0.018) == pairs


def test_fewer_pairs_than_sign_flips_can_decide_are_never_enough() -> None:
    assert [least_pairs(level) for level in (0.05, 0.05 / 23)] == [6, 10]  # 2 / 2^6 = .031, 2 / 2^10 = .00195
    assert pairs_needed(0.05, 0.018) == 6  # by t alone 4
    assert pairs_needed(0.05, 0.018, level=0.05 / 23) == 10
    assert smallest_difference(5, 0.018) is None
    assert smallest_difference(6, 0.018) is not None
    assert smallest_difference(9, 0.018, level=0.05 / 23) is None


@pytest.mark.slow
def test_power_rises_from_the_level_and_gives_the_smallest_difference() -> None:
    assert power(15, 0.0) == pytest.approx(0.05, abs=1e-4)
    smallest = smallest_difference(15, 0.018) or math.inf
    assert power(15, smallest / 0.018) == pytest.approx(0.8, abs=1e-3)
    assert pairs_needed(smallest, 0.018) == 15
    assert pairs_needed(0.0001, 0.018) is None


def test_what_is_tested_among_many_needs_a_larger_difference() -> None:
    assert smallest_difference(15, 0.018) == pytest.approx(0.014, abs=5e-4)
    assert smallest_difference(15, 0.018, level=0.05 / 23) == pytest.approx(0.022, abs=5e-4)
    assert power(15, 0.0, level=0.05 / 23) == pytest.approx(0.05 / 23, abs=1e-4)


def test_a_mean_of_scores_that_are_all_equal_is_not_certain() -> None:
    """Four paths, the same ones from three warm starts: Wilson's interval of 4 scores, 0 of them right."""
    values = {(start, seed): np.zeros(8) for start in range(3) for seed in range(5)}
    paths = {start: ["p", "q", "r", "s"] * 2 for start in range(3)}
    found = effect(values, paths, proportion=True)
    assert (found.mean, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(1.96**2 / (4 + 1.96**2), abs=1e-4)
    uneven = {pair: np.array([0.0, 1.0] * 4) for pair in values}
    found = effect(uneven, {start: list(range(8)) for start in range(3)}, proportion=True)
    assert 0.2 < found.low < 0.4 < found.mean < 0.6 < found.high < 0.8


def test_a_difference_is_decided_by_the_test_and_the_interval() -> None:
    assert verdict(Effect(0.1, 0.05, 0.15, 0.02, 15, 0.001), 0.02) == "higher"
    assert verdict(Effect(-0.1, -0.15, -0.05, 0.02, 15, 0.001), 0.02) == "lower"
    assert verdict(Effect(0.1, 0.05, 0.15, 0.02, 15, 0.001), 0.05) == "undecided"
    assert verdict(Effect(0.1, -0.01, 0.2, 0.02, 15, 0.001), 0.02) == "undecided"


@dataclass(frozen=True)
class Steps:
    """Learns by commands, as `Commands` does."""

    steps: tuple[tuple[str, ...], ...]

    def __call__(self, run: Run) -> Any:
        raise NotImplementedError


def test_pairs_that_do_not_go_back_to_the_same_weights_are_named(tmp_path: Path) -> None:
    path, cold = tmp_path / "results.jsonl", ("sft", "{seed}")
    arms = {"a": Arm("A", learn=Steps((cold,))), "b": Arm("B", learn=Steps((cold, ("train",))))}
    arms["c"] = Arm("C", learn=Steps((("sft", "more"), ("train",))))
    experiment = replace(EXPERIMENT, arms=arms, cluster=None)
    left = {"a": ("00", "11", None), "b": ("00", "22", "33"), "c": ("44", "55", "66")}
    for name, hashes in left.items():
        for seed, hashed in enumerate(hashes):
            weights = {} if hashed is None else {WEIGHTS_AFTER: {"1 sft": hashed, "2 train": name}}
            write(path, {**_cell(name, 0, seed, 0.5), **weights})
    cells = Cells(path, experiment, PROFILES["cpu"])
    family = [Contrast("B - A", "b", "a", "end"), Contrast("C - A", "c", "a", "end")]
    *table, empty, line = contrasts(cells, family).splitlines()
    assert len(table) == 4 and empty == ""
    assert line == "Other weights after the same first command (warm start/seed): B - A (0/1)."


def test_clusters_may_be_listed_by_test_set(tmp_path: Path) -> None:
    profile = replace(PROFILES["cpu"], tests={"t": {}}, validation={}, test_questions=3)
    cells = Cells(tmp_path / "none.jsonl", replace(EXPERIMENT, cluster={"t": [0, 0, 2, 3]}), profile)
    assert set(map(tuple, cells.clusters("end", ["t"]).values())) == {(0, 0, 2)}


FAMILY = [each for each in CONTRASTS if each.title in ("PPO - GRPO", "both masks, GRPO", "REINFORCE++ - GRPO")]
"""The last one has no cells here."""


def test_a_family_counts_the_contrasts_that_have_not_run(tmp_path: Path) -> None:
    """What was named beforehand is tested together, however few cells there are."""
    path = tmp_path / "results.jsonl"
    shares = {"grpo": 0.6, "grpo-no-loss-mask": 0.2}
    write(path, *(_cell(name, 0, seed, share) for name, share in shares.items() for seed in range(3)))
    cells = Cells(path, replace(EXPERIMENT, cluster=None), PROFILES["cpu"])
    header, _, row = contrasts(cells, FAMILY).splitlines()
    assert header.endswith("at .05 / 3 |")
    assert "| area | 3 |" in row
    assert "| 0.7500 | undecided |" in row  # three pairs give .25 at the least
    assert contrasts(cells, []) == ""


def _cell(name: str, start: int, seed: int, share: float) -> dict[str, Any]:
    profile = PROFILES["cpu"]
    ranks = ((number * 37 + seed) % 100 for number in range(profile.test_questions))
    right = "".join("1" if rank < 100 * share else "0" for rank in ranks)
    point = dict.fromkeys(profile.validation, right[: profile.validation_questions])
    return {
        "arm": name,
        "start": start,
        "seed": seed,
        "curve": [{"step": 5, **point}],
        "exact": dict.fromkeys(profile.tests, right),
    }


@pytest.mark.slow
def test_tables_keep_the_pilot_apart_and_give_verdicts(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    shares = {"grpo": 0.6, "ppo": 0.6, "grpo-no-loss-mask": 0.2}
    write(
        path,
        *(
            _cell(name, start, seed, share + 0.02 * ((seed + start) % 3 - 1) * (name == "ppo"))
            for name, share in shares.items()
            for start in range(3)
            for seed in (0, 1, 2, 100, 101)
        ),
    )
    profile = PROFILES["cpu"]
    cells_found, pilot = (Cells(path, EXPERIMENT, profile, pilot=pilot) for pilot in (False, True))
    assert {len(found) for found in cells_found.by_arm.values()} == {9}
    assert {len(found) for found in pilot.by_arm.values()} == {6}
    lines = contrasts(cells_found, FAMILY).splitlines()
    [mask] = [line for line in lines if line.startswith("| both masks, GRPO")]
    assert "| area | 9 |" in mask
    assert "| higher |" in mask
    [algorithms] = [line for line in lines if line.startswith("| PPO - GRPO")]
    assert "| undecided |" in algorithms
    assert not any("REINFORCE++ - GRPO" in line for line in lines)
    parts = contrasts_by_set(cells_found, CONTRASTS, list(profile.validation)).splitlines()
    assert parts[0] == "| contrast | measure | 1 hop | 2 hops | 3 hops |"
    assert len(parts) == len(lines) == 4
    drawn_arms = ("grpo", "rloo", "grpo-no-loss-mask")
    curve_chart(cells_found, tmp_path / "chart.svg", title="scores", drawn=drawn_arms, across=("ppo",), begin="ppo")
    drawn = (tmp_path / "chart.svg").read_text()
    assert ">GRPO<" in drawn
    assert ">GRPO without loss mask<" in drawn
    assert ">RLOO<" not in drawn
    power_rows = power_table(cells_found).splitlines()[2:]
    assert [line.split(" | ")[:2] for line in power_rows] == [
        ["| area", "pilot"],
        ["| area", "cells"],
        ["| end", "pilot"],
        ["| end", "cells"],
    ]
    few = replace(profile, starts=profile.starts[:3], seeds=(0, 1, 2))
    rows = power_table(Cells(path, EXPERIMENT, few)).splitlines()[2:]
    assert all(line.endswith(" | none |") for line in rows)  # 9 pairs are too few for .05 / 23
