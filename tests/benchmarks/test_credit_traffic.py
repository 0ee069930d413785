"""What processes tell one another to assign credit, counted: turns and sums, whatever the number of tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.credit.traffic.run import GATHERED, main, rollouts, spent, traffic
from benchmarks.credit.traffic.settings import QUICK


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_local_credit_is_told_in_bytes_that_tokens_do_not_add_to(name: str) -> None:
    traffic(QUICK, name)  # registers the other way, and compares the credit of both
    received = {}
    for way in (name, GATHERED.format(name)):
        for tokens in (64, 512):
            parts = [rollouts(replace(QUICK, tokens=tokens), number) for number in range(2)]
            received[way, tokens] = spent(way, parts).bytes
    assert received[name, 512] == pytest.approx(received[name, 64], abs=16)  # a count of tokens has more digits
    assert received[GATHERED.format(name), 512] > 4 * received[GATHERED.format(name), 64]
    assert received[GATHERED.format(name), 512] > 10 * received[name, 512]


def test_each_rollout_is_told_once_whatever_the_number_of_processes() -> None:
    """Twice the processes, twice the bytes: a process does not tell on what it has heard."""
    received = [spent("grpo", [rollouts(QUICK, number) for number in range(size)]).bytes for size in (2, 8)]
    assert received[1] == pytest.approx(4 * received[0], rel=0.05)


def test_rows_are_kept(tmp_path: Path) -> None:
    main(["--quick", "--claim", "ppo", "--output", str(tmp_path / "rows.jsonl")])
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    assert row["claim"] == "ppo"
    assert [figure["name"] for figure in row["figures"]] == [
        f"2 processes, {way}: {what}" for way in ("local", "gathered") for what in ("received", "exchanges", "CPU")
    ]
