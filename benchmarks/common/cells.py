"""Cells of an experiment: one method and one seed, in a file of its own, so that a stopped run goes on."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from agent_r1_gym.support.files import atomic_file
from agent_r1_gym.support.terminal import say
from benchmarks.common.measure import provenance

Cell = dict[str, Any]


def run_cells(
    folder: Path, cells: Iterable[tuple[str, int]], make: Callable[[str, int, Path], Cell], *, command: Sequence[str]
) -> None:
    """Makes the cells that `folder` does not hold yet; each file is written whole, with where its numbers come from.

    Args:
        folder: folder of the files `METHOD-SEED.json`.
        cells: methods and seeds, in the order to run them.
        make: makes the content of a file from method, seed and a scratch folder.
        command: what runs these cells, without method and seed.
    """
    warnings.filterwarnings("ignore", category=FutureWarning)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    todo = list(cells)
    for number, (name, seed) in enumerate(todo, start=1):
        path = folder / f"{name}-{seed}.json"
        if path.exists():
            continue
        say(f"cell {number} of {len(todo)}: {name}, seed {seed}")
        with tempfile.TemporaryDirectory() as scratch:
            cell = make(name, seed, Path(scratch))
        write_cell(path, cell | provenance((*command, "--method", name, "--seed", str(seed))))


def write_cell(path: Path, cell: Cell) -> None:
    """Writes a finished cell, whole or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(cell) + "\n", encoding="utf-8")


def read_cells(folder: Path, name: str) -> list[Cell]:
    """Returns the finished cells of a method, by seed."""
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(f"{name}-[0-9]*.json")]
    return sorted(cells, key=lambda cell: int(cell["seed"]))
