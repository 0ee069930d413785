"""The paper's tables as data: every kind of cell runs, a finished one is kept, intervals are right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.multihop_qa import run as multihop_qa
from benchmarks.multihop_qa.settings import METHODS, PAPER, PROFILES


@pytest.mark.slow
def test_cells_of_every_kind_run_once_and_make_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["naive-rag", "base", "grpo", "ppo-no-masks", "rejection", "demonstrations"]
    words = ["--profile", "smoke", "--output", str(tmp_path)]
    run = ["run", *words, *(word for name in names for word in ("--method", name))]
    assert multihop_qa.main(run) == 0
    files = sorted(path.name for path in (tmp_path / "smoke").iterdir())
    assert files == sorted(f"{name}-0.json" for name in names)
    cell = json.loads((tmp_path / "smoke/grpo-0.json").read_text())
    assert set(cell["exact"]["one hop"]) <= set("01")
    assert len(cell["exact"]["one hop"]) == 4
    assert len(cell["curve"]) == 1
    assert cell["commit"]
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "smoke").iterdir()}
    assert multihop_qa.main(run) == 0
    assert kept == {path: path.stat().st_mtime_ns for path in (tmp_path / "smoke").iterdir()}
    capsys.readouterr()
    assert multihop_qa.main(["table", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + len(names)
    assert "0.4405" in next(line for line in lines if line.startswith("| GRPO |"))


def test_every_row_of_the_paper_has_a_method() -> None:
    assert {method.paper for method in METHODS.values()} - {None} == set(PAPER)
    assert len(PROFILES["cpu"].seeds) >= 5
    assert len(PROFILES["cpu"].test_sets) == 4
