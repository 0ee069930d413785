"""The summary of an experiment: one text file of JSON lines, small enough to commit.

The first line holds what cells share: `settings`, and commit, command and platform of the runs that made them (`made`;
`--arm`, `--start` and `--seed` of the cell complete the command). Each further line is a cell, sorted by arm, warm
start and seed: scores, and hashes of the weights that it starts from, of its final weights and of its episodes. Marks,
strings of 0 and 1, are packed: `4:5` is 0101, `2x4:5f` is [0101, 1111]. So are lists of numbers with a fraction, where
that is shorter: `4.3:28b0rs` is [0.2891, 0.1], with 4 decimals and 3 digits of base 36 each; older lines hold plain
lists, which read alike. Models and episodes are not committed; a replay makes them again and compares hashes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.files import atomic_file, locked

Cell = dict[str, Any]
EPISODES = "episodes"
"""Key of a cell's episodes: rows (`policy.episode_row`) when the cell is made, their hash in the summary."""
WEIGHTS_AFTER = "weights_after"
"""Key of a cell: by command a short hash of the weights that it left; older cells have none."""
MADE = ("commit", "command", "platform")
_KEY = ("arm", "start", "seed")
_PACKED = re.compile(r"(?:(\d+)x)?(\d+):([0-9a-f]*)")
_PACKED_NUMBERS = re.compile(r"(\d+)\.(\d+):([0-9a-z]+)")
_DIGITS = string.digits + string.ascii_lowercase


def read_results(path: Path) -> tuple[dict[str, Any], list[Cell]]:
    """Reads a summary: what cells share, and the cells, each with where it was made.

    Both are empty if there is no file.

    Raises:
        ConfigurationError: `path` is, or stands next to, a folder of cells in the format before 0.3.
    """
    for folder in (path, path.with_suffix("")):
        if folder.is_dir() and next(folder.rglob("*-[0-9]*.json"), None):
            raise ConfigurationError(
                f"{folder} holds cells in the format before 0.3, a JSON file each, which is not read any more: "
                f"remove the folder and `run` its cells again; results are one file now, such as {path.stem}.jsonl."
            )
    if not path.exists():
        return {}, []
    shared, *lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return shared, [_unpacked_cell(line, shared) for line in lines]


def add_result(path: Path, cell: Cell, *, settings: Any, made: Mapping[str, str]) -> None:
    """Adds a cell, or replaces it; the file is written as a whole.

    Args:
        path: the summary.
        cell: with arm, start, seed, scores and hashes.
        settings: `profile` and `arms` of the experiment as plain data, see `plain`.
        made: the values of `MADE`.

    Raises:
        ConfigurationError: the summary's cells have other settings.
    """
    with locked(path):
        shared, cells = read_results(path)
        check_settings(path, shared, cells, settings)
        shared = shared or {"settings": settings, "made": []}
        shared["settings"] = settings | {"arms": {**shared["settings"]["arms"], **settings["arms"]}}
        if dict(made) not in shared["made"]:
            shared["made"].append(dict(made))
        others = [each for each in cells if [each[name] for name in _KEY] != [cell[name] for name in _KEY]]
        chosen = sorted([*others, {**cell, **made}], key=lambda each: [each[name] for name in _KEY])
        text = "".join(_line(each) for each in (shared, *(_packed_cell(each, shared) for each in chosen)))
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def check_settings(path: Path, shared: Mapping[str, Any], cells: Sequence[Cell], settings: Any) -> None:
    """Refuses to add cells to a summary whose cells were made with other settings.

    Arms without cells may have been added or changed since.
    """
    known, today = shared.get("settings", settings), settings["arms"]
    made = today.keys() & {cell["arm"] for cell in cells}
    changed = any(known["arms"].get(arm, today[arm]) != today[arm] for arm in made)
    if known["profile"] != settings["profile"] or changed:
        raise ConfigurationError(
            f"The cells in {path} were made with other settings than today's, see its first line, and would be "
            "compared with new ones. Remove them, or use another file of results."
        )


def summarised(cell: Cell) -> Cell:
    """Replaces a cell's episodes by their hash; everything else is as it reads back from the summary."""
    cell = dict(cell)
    if (rows := cell.pop(EPISODES, None)) is not None:
        cell[EPISODES] = episodes_hash(rows)
    return _unpacked_cell(json.loads(_line(_packed_cell(cell, {}))), {})


def episodes_hash(rows: Iterable[Mapping[str, Any]]) -> str:
    """Hashes episodes: sha256 over their rows, a line of JSON each."""
    return f"sha256:{hashlib.sha256(episode_lines(rows).encode()).hexdigest()}"


def episode_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    """Writes episodes as JSON lines: what is hashed, byte for byte."""
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def plain(value: Any) -> Any:
    """Turns settings into plain data: dataclasses and named tuples become objects, functions their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, functools.partial):
        return {"function": plain(value.func), **plain(value.keywords)}
    return value.__qualname__ if isinstance(value, Callable | type) else value  # type: ignore[arg-type]


def _line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False) + "\n"


def _packed_cell(cell: Cell, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Packs marks, lays the curve out by column, and refers to `shared` for what other cells have too."""
    packed = {name: _pack(each) for name, each in cell.items()}
    if "curve" in cell:
        packed["curve"] = _columns(cell["curve"])
    if shared:
        packed["made"] = shared["made"].index({name: packed.pop(name) for name in MADE})
    return packed


def _unpacked_cell(line: dict[str, Any], shared: Mapping[str, Any]) -> Cell:
    cell = {name: _unpack(each) for name, each in line.items()}
    if "curve" in line:
        cell["curve"] = _points(line["curve"])
    if shared:
        cell |= shared["made"][cell.pop("made")]
    return cell


def _columns(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, first in points[0].items() if points else ():
        values = [point[name] for point in points]
        columns[name] = _columns(values) if isinstance(first, Mapping) else _pack(values)
    return columns


def _points(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    read = {name: _points(each) if isinstance(each, dict) else _unpack(each) for name, each in columns.items()}
    return [dict(zip(read, values, strict=True)) for values in zip(*read.values(), strict=True)]


def _pack(value: Any) -> Any:
    if isinstance(value, str) and _are_marks(value):
        return f"{len(value)}:{_hexadecimal(value)}"
    if isinstance(value, list) and value and all(isinstance(each, str) and _are_marks(each) for each in value):
        return f"{len(value)}x{len(value[0])}:{_hexadecimal(''.join(value))}"  # of as many questions each
    if isinstance(value, Mapping):
        return {name: _pack(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return _packed_numbers(value) or [_pack(each) for each in value]
    return value


def _are_marks(text: str) -> bool:
    return bool(text) and set(text) <= set("01")


def _hexadecimal(marks: str) -> str:
    return f"{int(marks, 2):0{-(-len(marks) // 4)}x}"


def _packed_numbers(values: Sequence[Any]) -> str | None:
    """Packs non-negative floats; None: there are other values, or it is no shorter."""
    if not values or not all(isinstance(each, float) and math.isfinite(each) and each >= 0 for each in values):
        return None
    exact = [Decimal(repr(float(each))) for each in values]
    decimals = max(0, *(-int(each.as_tuple().exponent) for each in exact))
    numbers = [int(each.scaleb(decimals)) for each in exact]
    width = next(width for width in itertools.count(1) if 36**width > max(numbers))
    packed = f"{decimals}.{width}:{''.join(_base_36(number, width) for number in numbers)}"
    return packed if len(packed) + 2 < len(json.dumps(values, separators=(",", ":"))) else None


def _base_36(number: int, width: int) -> str:
    digits = ""
    for _ in range(width):
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits


def _unpack(value: Any) -> Any:
    if isinstance(value, str) and (found := _PACKED_NUMBERS.fullmatch(value)):
        decimals, width, digits = int(found[1]), int(found[2]), found[3]
        return [float(f"{int(digits[at : at + width], 36)}e-{decimals}") for at in range(0, len(digits), width)]
    if isinstance(value, str) and (found := _PACKED.fullmatch(value)):
        number, length = int(found[1] or 1), int(found[2])
        marks = f"{int(found[3], 16):0{number * length}b}"
        rows = [marks[at * length : (at + 1) * length] for at in range(number)]
        return rows if found[1] else marks
    if isinstance(value, dict):
        return {name: _unpack(each) for name, each in value.items()}
    return [_unpack(each) for each in value] if isinstance(value, list) else value
