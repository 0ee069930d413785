"""Cells of an experiment: one method and one seed, in a file of its own, so that a stopped run goes on.

All cells of a folder start from one model. Demonstrations teach it once, and it is kept beside the cells.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import torch

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.files import atomic_directory, atomic_file, locked
from agent_r1_gym.support.terminal import say
from benchmarks.common.measure import CHANGES, commit, provenance
from trainers.toy.model import build_model, build_tokenizer
from trainers.toy.quickstart import SHIPPED, load
from trainers.toy.warm_start import warm_start

Cell = dict[str, Any]
EPISODES = "episodes"
"""Key of a cell's episodes, rows of data; they are kept in a file of their own beside the cell."""
_BENCHMARKS = Path(__file__).parents[1]
_LONGEST = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class WarmStart:
    """How the model that all cells of a profile start from is taught (`trainers.toy.warm_start.warm_start`).

    Attributes:
        size: key of `trainers.toy.model.SIZES`.
        options: options of `warm_start` that differ from its defaults.
    """

    size: str
    options: Mapping[str, Any]

    def teach(self, folder: Path) -> Mapping[str, Any]:
        """Writes model and tokenizer; returns its log."""
        tokenizer = build_tokenizer()
        model = _placed(build_model(tokenizer, size=self.size))
        log = warm_start(model, tokenizer, **self.options)
        save_half(model, tokenizer, folder)
        return {"log": log}


class Teaching(Protocol):
    """How the model that cells start from comes to be; other settings have another `repr`."""

    def teach(self, folder: Path) -> Mapping[str, Any]:
        """Writes model and tokenizer into an empty folder; returns what is to be told of it."""


def save_half(model: Any, tokenizer: Any, folder: Path) -> None:
    """Writes model, in float16, and tokenizer."""
    model.to(torch.float16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def add_cell_options(parser: argparse.ArgumentParser, methods: Iterable[str], results: Path, *, seeds: str) -> None:
    """Adds the options that choose cells and their folder; `seeds` names the default ones."""
    parser.add_argument("--method", action="append", choices=list(methods), help="may be repeated (default: all)")
    parser.add_argument("--seed", action="append", type=int, help=f"may be repeated (default: {seeds})")
    parser.add_argument(
        "--output", type=Path, default=results, help="folder of the cells (default: results/ beside run.py)"
    )


def run_cells(
    folder: Path,
    cells: Iterable[tuple[str, int]],
    make: Callable[[str, int, Path, Path], Cell],
    *,
    start: Teaching | None,
    command: Sequence[str],
) -> int:
    """Makes the cells that `folder` does not hold yet; each file is written whole, with where its numbers come from.

    Args:
        folder: folder of the files `METHOD-SEED.json`.
        cells: methods and seeds, in the order to run them.
        make: makes the content of a file from method, seed, the folder of the model to start from and a scratch folder.
        start: how that model is taught; None: it is the one that comes with the package.
        command: what runs these cells, without method and seed.

    Returns:
        the exit status, 0.

    Raises:
        ConfigurationError: `folder` is one of those whose cells are committed, and files differ from the last commit.
    """
    if folder.resolve().is_relative_to(_BENCHMARKS) and commit().endswith(CHANGES):
        raise ConfigurationError(
            f"Cells in {folder} are kept with the commit that made them, and files here differ from the last one. "
            "Commit first, or write elsewhere with --output."
        )
    warnings.filterwarnings("ignore", category=FutureWarning)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    todo = list(cells)
    for number, (name, seed) in enumerate(todo, start=1):
        path = folder / f"{name}-{seed}.json"
        if path.exists():
            continue
        say(f"cell {number} of {len(todo)}: {name}, seed {seed}")
        warm = _start_folder(start, folder, command)
        with tempfile.TemporaryDirectory() as scratch:
            cell = make(name, seed, warm, Path(scratch))
        write_cell(path, cell | provenance((*command, "--method", name, "--seed", str(seed))))
    return 0


def write_cell(path: Path, cell: Cell) -> None:
    """Writes a finished cell, whole or not at all; its `EPISODES` before it, as `NAME.jsonl.gz`."""
    cell = dict(cell)
    if rows := cell.pop(EPISODES, None):
        text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        with atomic_file(path.with_suffix(".jsonl.gz")) as temporary:
            temporary.write_bytes(gzip.compress(text.encode(), mtime=0))
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(cell) + "\n", encoding="utf-8")


def read_cells(folder: Path, name: str) -> list[Cell]:
    """Returns the finished cells of a method in `folder` and the folders in it, by warm start and seed."""
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in folder.rglob(f"{name}-[0-9]*.json")]
    return sorted(cells, key=lambda cell: (int(cell.get("start", 0)), int(cell["seed"])))


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *rows))


def load_start(folder: Path) -> Any:
    """Returns the model in `folder`, in float32, on the GPU if there is one (its products in TF32 then)."""
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    return _placed(load(folder)).eval()


def _placed(model: Any) -> Any:
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def _start_folder(start: Teaching | None, folder: Path, command: Sequence[str]) -> Path:
    """Returns the folder of model and tokenizer; makes them in `folder` if they are not there.

    Other settings make another folder, so that no cell starts from a model that was taught differently. Other code does
    not: remove the folder after a change to how models are taught.
    """
    if start is None:
        return SHIPPED
    path = folder / f"start-{blake2b(repr(start).encode(), digest_size=4).hexdigest()}"
    with locked(path, timeout=_LONGEST):
        if not path.exists():
            say(f"warm start, kept in {path}: {start}")
            with atomic_directory(path) as temporary:
                facts = {"start": repr(start), **start.teach(temporary), **provenance(command)}
                (temporary / "start.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
    return path
