"""The collapse laboratory: what a fall is, which alarm flags it, faults that end, tables and chart of made-up cells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from agent_r1_gym.run.record import Tokens, Trajectory
from benchmarks.common.experiment import main
from benchmarks.common.results import read_results
from benchmarks.common.tables import Cells
from benchmarks.learning.collapse import faults
from benchmarks.learning.collapse.report import (
    ALARMS,
    DRIFT,
    DRIFT_OPTION,
    METRICS,
    PATIENCE,
    Fall,
    fall_of,
    flags_of,
    from_the_first_batch,
    recovered,
    write_chart,
)
from benchmarks.learning.collapse.settings import ARMS, BACK, CAUSES, EXPERIMENT, HEALTHY, OUTAGES, ROLLED_BACK
from tests.benchmarks.cells import write
from tests.kit.models import make_model
from tests.kit.small_runs import make_trajectory
from trainers.algorithms.process_group import SINGLE_PROCESS
from trainers.rollouts.collect import RolloutRequest, RolloutResult
from trainers.toy.model import build_tokenizer

RULE = Fall(steps=3, share=0.5, window=2, least=0.2)


@pytest.mark.parametrize(
    ("em", "step"),
    [
        ([0.4, 0.6, 0.5, 0.2, 0.2, 0.1], 4),  # the best mean of two is .55, half of it .275
        ([0.4, 0.6, 0.5, 0.2, 0.2, 0.5, 0.2, 0.2, 0.2], 7),  # two in a row are not enough
        ([0.4, 0.6, 0.5, 0.2, 0.2], None),
        ([0.4, 0.6, 0.5, 0.3, 0.3, 0.3, 0.3], None),  # not below half
        ([0.1, 0.2, 0.1, 0.0, 0.0, 0.0], None),  # never .2
        ([0.5, 0.0, 0.0, 0.0, 0.0], 3),  # mean .25 of the first two
        ([0.5], None),
        ([], None),
    ],
)
def test_a_fall_is_so_many_steps_below_half_of_the_best(em: list[float], step: int | None) -> None:
    assert fall_of(em, RULE) == step


def test_a_fall_ignores_what_comes_later() -> None:
    fallen = [0.4, 0.6, 0.5, 0.2, 0.2, 0.1]
    assert fall_of([*fallen, 0.9, 0.9, 0.9], RULE) == fall_of(fallen, RULE)


def healthy_log(steps: int = 20) -> dict[str, list[float | None]]:
    same = {"em": 0.5, "entropy": 0.1, "repetition": 0.0, "calls": 1.5}
    same |= {"infra_failures": 0.0, "answer_share": 0.2}
    same |= {"drift": 1e-6}
    return {name: [value] * steps for name, value in same.items()}


def bad(option: str) -> float:
    return ALARMS[option] * (0.5 if option.endswith("below") else 1.5)


NUMBER = {
    "alarm_entropy_below": "entropy",
    "alarm_calls_below": "calls",
    "alarm_infra_failures_above": "infra_failures",
}


def test_a_healthy_log_has_no_flag() -> None:
    assert flags_of(healthy_log()) == {}


@pytest.mark.parametrize("option", NUMBER)
def test_a_flag_is_the_step_at_which_the_alarm_stops(option: str) -> None:
    log = healthy_log()
    log[NUMBER[option]][6:] = [bad(option)] * 14
    assert flags_of(log) == {option: 6 + PATIENCE}
    log[NUMBER[option]][6 + PATIENCE - 1] = healthy_log()[NUMBER[option]][0]  # not in a row
    assert flags_of(log) == {option: 6 + 2 * PATIENCE}


def test_drift_is_flagged_at_once_and_the_earliest_flag_comes_first() -> None:
    log = healthy_log()
    log["entropy"][0:] = [bad("alarm_entropy_below")] * 20
    log["drift"] = [None, 1e-6, *[2 * DRIFT] * 18]
    assert flags_of(log) == {"alarm_entropy_below": PATIENCE, DRIFT_OPTION: 3}
    log["drift"][0] = 2 * DRIFT
    assert list(flags_of(log)) == [DRIFT_OPTION, "alarm_entropy_below"]


@pytest.mark.parametrize(
    ("metric", "begin", "expected"),
    [("entropy", 0, True), ("entropy", 1, False), ("drift", 0, True), ("drift", 2, False)],
)
def test_what_is_beyond_a_limit_from_the_first_batch_is_not_a_lead(metric: str, begin: int, expected: bool) -> None:
    log = healthy_log()
    log[metric][begin:] = [bad("alarm_entropy_above") if metric == "entropy" else 2 * DRIFT] * (20 - begin)
    assert from_the_first_batch(flags_of(log)) is expected


def request(batch: int, *, model: Any = None, rollbacks: int = 0) -> RolloutRequest:
    return RolloutRequest(
        rows=[],
        training=True,
        batch=batch,
        step=batch,
        max_steps=9,
        slots=1,
        model=model,
        process_group=SINGLE_PROCESS,
        seed_suffix=(rollbacks,) if rollbacks else (),
    )


RUN: dict[str, Any] = {"seed": 0, "tokenizer": None}


def episode(*, calls: int, em: float) -> Trajectory:
    record = make_trajectory([2, 5], [([12, 3], em, [])])
    turn = replace(record.turns[0], call_errors=(None,) * calls, reward_terms={"em": em})
    return replace(record, turns=(turn,), scores={"em": em})


def test_swapped_weights_come_back() -> None:
    model = make_model()
    own = faults.weights_of(model)
    with faults.swapped_weights(model, {name: torch.zeros_like(weight) for name, weight in own.items()}):
        assert not any(weight.any() for weight in model.state_dict().values())
    assert all(torch.equal(weight, own[name]) for name, weight in model.state_dict().items())


def test_old_weights_are_renewed_every_so_many_batches_and_by_a_rollback() -> None:
    model = make_model()
    first = next(iter(faults.weights_of(model)))
    played: list[float] = []

    def collect(request: RolloutRequest) -> RolloutResult:
        played.append(request.model.state_dict()[first].flatten()[0].item())
        return RolloutResult(request.rows, [episode(calls=1, em=0.5)])

    old = faults.OldWeights(collect, every=3, **RUN)
    for batch in (0, 1, 2, 3, 4, 4, 5):
        model.state_dict()[first].fill_(len(played))
        old(request(batch, model=model, rollbacks=int(len(played) >= 5)))
    assert played == [0, 0, 0, 3, 3, 5, 5]
    assert old.em == dict.fromkeys(range(6), 0.5)


def test_tokens_that_are_made_again_spell_the_same_text_and_stay_aligned() -> None:
    tokenizer = build_tokenizer()
    spelling = faults.spellings(tokenizer)
    word, other = tokenizer.encode("yes birthplace")
    assert tokenizer.decode(spelling[word]) == tokenizer.decode([word]) == "yes"
    tokens = Tokens((word,), (word, other, word, other), (1, 0, 1, 1), (-1.0, None, -2.0, -3.0), ((0, 1), (2, 4)))
    made = faults.retokenised(tokens, lambda token: spelling[token] if token == word else (token,))
    letters = spelling[word]
    assert made.completion_ids == (*letters, other, *letters, other)
    assert made.loss_mask == (1, 1, 1, 1, 0, 1, 1, 1, 1, 1)
    assert made.logprobs == (-1.0, 0.0, 0.0, 0.0, None, -2.0, 0.0, 0.0, 0.0, -3.0)
    assert made.spans == ((0, 4), (5, 10))
    assert faults.retokenised(tokens, lambda token: (token,)) == tokens


@pytest.mark.parametrize("zero", [True, False])
def test_an_outage_loses_episodes_that_call_while_it_lasts(zero: bool) -> None:
    records = [episode(calls=1, em=1.0), episode(calls=0, em=1.0)]
    outage = faults.Outage(
        lambda request: RolloutResult(request.rows, records), begin=1, end=2, share=1.0, zero=zero, **RUN
    )
    before, within, after = (outage(request(batch)).records for batch in range(3))
    assert before == after == records
    lost, other = within
    assert other == records[1]
    assert (lost.infrastructure_error is None, lost.episode_return) == ((True, 0.0) if zero else (False, 1.0))
    assert outage.em == {0: 1.0, 1: 1.0, 2: 1.0}


def test_every_arm_has_a_name_of_its_own() -> None:
    assert len(ARMS) == len(CAUSES) + len(ROLLED_BACK) + len(HEALTHY) + len(OUTAGES)
    assert {name.removesuffix(BACK) for name in ROLLED_BACK} <= set(CAUSES)


def made_up(name: str, seed: int) -> dict[str, Any]:
    """A cell that falls at step 30, and is flagged at 20 - seed; a rollback or health prevents both."""
    log = healthy_log(40)
    if name in CAUSES or name == "zeroed":
        log["em"][29:] = [0.1] * 11
        log["entropy"][20 - seed - PATIENCE :] = [bad("alarm_entropy_below")] * (20 + seed + PATIENCE)
    else:
        log["em"][30:] = [0.9] * 10
    return {"arm": name, "seed": seed, "log": log, "rollbacks": [], "stopped": False}


def test_tables_and_chart_are_of_the_cells(tmp_path: Path) -> None:
    cause, path = "rate", tmp_path / "results.jsonl"
    for name in (cause, f"{cause}{BACK}", "grpo", *OUTAGES):
        for seed in (0, 1):
            write(path, made_up(name, seed))
    cells = Cells(path, EXPERIMENT, EXPERIMENT.profiles["cpu"])
    warned, saved, healthy, outage, paired = (part.split("\n\n")[1] for part in cells.report().split("## ")[1:])
    title = CAUSES[cause].title
    assert warned.splitlines()[2:] == [f"| {title} | 2 | `alarm_entropy_below` 2 | 20 19 | 30 30 | 10 11 | 2 of 2 |"]
    assert saved.splitlines()[2:] == [f"| {title} | 2 | 0 0 | 0 of 0 | 2 of 2 | 2 of 2 | 0.90 (0.90 to 0.90) |"]
    assert healthy.splitlines()[2:] == ["| grpo | 2 | 0 | 0 | 0.90 (0.90 to 0.90) |"]
    assert [line.rsplit(" | ", 1)[1] for line in outage.splitlines()[2:]] == [
        "0.90 (0.90 to 0.90) |",
        "0.10 (0.10 to 0.10) |",
    ]
    assert paired.splitlines()[2:] == [
        "| at their end | +0.00 +0.00 | +0.000 | 1.00 |",
        "| at the end of the run | +0.80 +0.80 | +0.800 | 0.50 |",
    ]
    drifting = tmp_path / "drifting.jsonl"
    write(drifting, made_up("old", 0), made_up("old", 1))
    old = Cells(drifting, EXPERIMENT, EXPERIMENT.profiles["cpu"])
    old.by_arm["old"][0]["log"]["drift"] = [0.01, None, 0.03, None, 0.2, *[None] * 35]
    limits = old.report().split("## Drift\n\n")[1].splitlines()
    assert limits[2] == f"| {CAUSES['old'].title} | 3 - | 5 - | 5 - | - - |"
    cells.by_arm = {name: each[:1] for name, each in cells.by_arm.items()}
    write_chart(cells, tmp_path / "chart.svg", causes=CAUSES, outages=OUTAGES, healthy="grpo")
    root = ElementTree.fromstring((tmp_path / "chart.svg").read_text())
    drawn = [element.get("class") for element in root.iter() if element.get("class")]
    assert drawn.count("run") == 2  # and one in the legend
    assert {"flag", "fall", "healthy", "dropped", "zeroed", "outage"} <= set(drawn)


def test_runs_that_are_flagged_from_the_first_batch_are_counted_apart(tmp_path: Path) -> None:
    at_once, later = made_up("masks", 0), made_up("masks", 1)
    at_once["log"]["entropy"] = [bad("alarm_entropy_above")] * 40
    back = {**made_up(f"masks{BACK}", 0), "rollbacks": [{"at": 3, "to": 0}] * 3, "stopped": True}
    write(tmp_path / "results.jsonl", at_once, later, back, {**back, "seed": 1, "rollbacks": [{"at": 9, "to": 6}]})
    cells = Cells(tmp_path / "results.jsonl", EXPERIMENT, EXPERIMENT.profiles["cpu"])
    warned, saved = (part.split("\n\n")[1].splitlines()[2] for part in cells.report().split("## ")[1:3])
    title = CAUSES["masks"].title
    assert warned.startswith(f"| {title} | 2 | ")
    assert warned.endswith("| 3 19 | 30 30 | - 11 | 1 of 1, 1 from the first batch |")
    assert saved.startswith(f"| {title} | 2 | 3 1 | 3 of 4 | 0 of 2 |")


def test_recovered_means_to_the_end_without_a_fall_and_better_than_at_first() -> None:
    cell = made_up("grpo", 0)
    assert recovered(cell, steps=40)
    assert not recovered(cell, steps=41)
    assert not recovered(made_up("rate", 0), steps=40)
    cell["log"]["em"] = [0.5] * 40
    assert not recovered(cell, steps=40)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["masks", f"rate{BACK}", "old", "retokenised", "dropped"])
def test_a_cell_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--profile", "smoke", "--results", str(tmp_path / "results.jsonl"), "--arm", name, "--seed", "0"]
    assert main(EXPERIMENT, ["run", *words]) == 0
    _, [cell] = read_results(tmp_path / "results.jsonl")
    assert {len(values) for values in cell["log"].values()} == {EXPERIMENT.profiles["smoke"].steps}
    assert set(cell["log"]) == {"em", *METRICS}
    first, unchecked, later, _ = cell["log"]["drift"]
    assert (first < 1e-4, unchecked, later < 1e-4) == (name != "retokenised", None, name not in ("old", "retokenised"))
    if name == "old":
        assert main(EXPERIMENT, ["replay", *words]) == 0
        assert "old, warm start 0, seed 0: equal" in capsys.readouterr().out
