"""Worlds with something held back: cells that run, settings that are those of the examples, a table by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.common.cells import write_cell
from benchmarks.worlds import run
from benchmarks.worlds.settings import WORLDS, World

EXAMPLES = (Path(__file__).parents[2] / "examples" / "worlds" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", list(WORLDS))
def test_a_cell_runs(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["run", "--quick", "--method", name, "--output", str(tmp_path)]) == 0
    cell = json.loads((tmp_path / "quick" / f"{name}-0.json").read_text())
    for stage in run.STAGES:
        assert list(cell["exact"][stage]) == list(WORLDS[name].splits)
        assert all(re.fullmatch("[01]{3}", marks) for marks in cell["exact"][stage].values())
    capsys.readouterr()
    assert run.main(["table", "--quick", "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count(f"| {WORLDS[name].title} |") == 3


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_commands_are_those_of_the_examples(world: World) -> None:
    """But for names of folders, splits, numbers of evaluated tasks and seeds."""
    text = EXAMPLES.replace("\\\n", " ")
    shown = {
        command: next(line for line in text.splitlines() if line.startswith(f"agent-r1 {command} {world.env} ")).split()
        for command in ("sft", "train", "eval")
    }
    made = {
        "sft": world.sft("M", "F", 0),
        "train": world.train("T", "F", 0),
        "eval": world.evaluate("M", "test", "F")[1:],
    }
    folders = {"--model", "--output_dir", "--warm_start", "--policy", "--out", "--split", "--seed", "-n"}
    for command, words in made.items():
        assert _pairs(words, folders) == _pairs(shown[command][2:], folders), command


def _pairs(words: list[str], without: set[str]) -> set[tuple[str, str]]:
    pairs = zip(words[1::2], words[2::2], strict=True)
    return {(name, _number(value)) for name, value in pairs if name not in without}


def _number(value: str) -> str:
    try:
        return str(float(value))
    except ValueError:
        return value


def test_the_table_tells_shares_by_split(tmp_path: Path) -> None:
    splits = WORLDS["service-desk"].splits
    for seed in range(3):
        exact = {"taught": dict.fromkeys(splits, "1000" * 25), "trained": dict.fromkeys(splits, "1110" * 25)}
        write_cell(tmp_path / f"service-desk-{seed}.json", {"seed": seed, "exact": exact})
    header, _, first, *others = run.table(tmp_path).splitlines()
    assert header.startswith("| world | split | held back | seeds |")
    assert first.startswith("| ServiceDesk | train | nothing | 3 | 0.250 [")
    assert "| 0.750 [" in first
    assert len(others) == 2
