"""Bytes that processes exchange to assign credit: turns and sums, whatever the number of tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.speed.traffic import GATHERED, QUICK, main, rollouts, spent, traffic
from trainers.algorithms import advantages as registry


@pytest.fixture(autouse=True)
def _take_back_what_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark registers estimators, which tests of all estimators would find."""
    for name in ("grpo", "ppo"):
        monkeypatch.setitem(registry._ESTIMATORS, GATHERED.format(name), registry.ESTIMATORS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_bytes_of_local_credit_do_not_grow_with_tokens(name: str) -> None:
    traffic(QUICK, name)  # registers the other way, and compares the credit of both
    received = {}
    for way in (name, GATHERED.format(name)):
        for tokens in (64, 512):
            parts = [rollouts(replace(QUICK, tokens=tokens), number) for number in range(2)]
            received[way, tokens] = spent(way, parts).bytes
    assert received[name, 512] == pytest.approx(received[name, 64], abs=16)  # a count of tokens has more digits
    assert received[GATHERED.format(name), 512] > 4 * received[GATHERED.format(name), 64]
    assert received[GATHERED.format(name), 512] > 10 * received[name, 512]


def test_each_rollout_is_sent_once_whatever_the_number_of_processes() -> None:
    """Twice the processes, twice the bytes: a process does not forward what it received."""
    received = [spent("grpo", [rollouts(QUICK, number) for number in range(size)]).bytes for size in (2, 8)]
    assert received[1] == pytest.approx(4 * received[0], rel=0.05)


@pytest.mark.slow
def test_rows_are_kept(tmp_path: Path) -> None:
    main(["--quick", "--claim", "ppo", "--out", str(tmp_path / "rows.jsonl")])
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["claim"] == "ppo"
    assert [figure["name"] for figure in row["figures"]] == [
        f"2 processes, {way}: {what}" for way in ("local", "gathered") for what in ("received", "exchanges", "CPU")
    ]
