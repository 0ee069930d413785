"""Reading official data files: one JSON array, or JSON Lines; plain or gzipped; with or without a byte order mark."""

from __future__ import annotations

import contextlib
import difflib
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from agent_r1_gym.errors import DatasetError

if TYPE_CHECKING:
    from agent_r1_gym.datasets.official.rows import Row

_BLANK = re.compile(r"[ \t\r\n]*")
_UNREADABLE = (ValueError, RecursionError)  # ValueError also for an integer of more than 4,300 digits
_NOT_TEXT: Mapping[bytes, str] = {
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"PAR1": "a parquet file: serve its folder with dataset='hub', hub_id=FOLDER",
}


def find_file(path: Path, name: str, *, split: str | None) -> tuple[Path, str]:
    """Returns the data file that `path` names or holds, and its split.

    Args:
        path: a file, or a folder with files of official names or "train.jsonl", "dev.json" and the like.
        name: short name of the data set.
        split: the wanted split; None: what the file's name says, else "train"; in a folder the first of train,
            validation, test.

    Raises:
        DatasetError: there is no such file or folder, or the folder does not hold what is wanted.
    """
    from agent_r1_gym.datasets.official.formats import split_in_name

    if path.is_file():
        return path, split or split_in_name(path.name) or "train"
    if not path.is_dir():
        raise DatasetError(f"There is no file or folder {path}; expected a data file of {name}.{_near_names(path)}")
    found = find_splits(path, name)
    for wanted in [split] if split else found:
        if wanted in found:
            return found[wanted], wanted
    raise DatasetError(
        f"The folder {path} holds no {split or 'known'} split of {name}; expected one of "
        f"{', '.join(_expected_names(name, split))} (or gzipped, with .gz at the end); it holds {_listing(path)}"
    )


def find_splits(folder: Path, name: str) -> dict[str, Path]:
    """Returns the data file of each split that `folder` holds; a sole data file is a split whatever its name."""
    from agent_r1_gym.datasets.official.formats import SPLITS, format_of, split_in_name

    found: dict[str, Path] = {}
    for split in SPLITS:
        named = (folder / f"{file}{packed}" for file in _expected_names(name, split) for packed in ("", ".gz"))
        present = next((file for file in named if file.is_file()), None)
        if present:
            found[split] = present
    if not found:
        data = [
            file
            for file in sorted(folder.iterdir())
            if file.name.removesuffix(".gz").endswith((".json", ".jsonl")) and file.name != format_of(name).ALIASES_FILE
        ]
        if len(data) == 1:
            found[split_in_name(data[0].name) or "train"] = data[0]
    return found


def read_rows(path: Path, name: str) -> Iterator[Row]:
    """Yields the rows of a data file in the official shape.

    Args:
        path: the file.
        name: short name of the data set; entity names are read from the file that it brings, if that lies beside.

    Raises:
        DatasetError: the file cannot be read, is empty, truncated, no JSON, or of another data set.
    """
    from agent_r1_gym.datasets.official.formats import check_signature, format_of
    from agent_r1_gym.datasets.official.rows import Row

    form = format_of(name)
    aliases = read_aliases(path.with_name(form.ALIASES_FILE)) if form.ALIASES_FILE else {}
    first = True
    for where, data in _read_objects(path):
        row = Row(form.official(data, aliases), where)
        if first:
            check_signature(row, name)
        first = False
        yield row
    if first:
        raise DatasetError(f"{path} is empty; expected a JSON array or JSON Lines with rows of {form.TITLE}")


def read_aliases(path: Path) -> dict[str, tuple[str, ...]]:
    """Returns the other names of each entity from 2Wiki's `id_aliases.json`, nothing if there is no such file.

    Raises:
        DatasetError: a line is malformed.
    """
    if not path.is_file():
        return {}
    aliases: dict[str, tuple[str, ...]] = {}
    for where, data in _read_objects(path):
        match data:
            case {"Q_id": str(entity), "aliases": [*names], "demonyms": [*demonyms]}:
                aliases[entity] = tuple(str(name) for name in (*names, *demonyms))
            case _:
                raise DatasetError(f"{where}: expected the fields Q_id, aliases and demonyms; got {', '.join(data)}")
    return aliases


def _read_objects(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with _open_text(path) as stream:
            for where, value in _read_values(stream, path):
                if not isinstance(value, dict):
                    raise DatasetError(f"{where}: expected an object, got {type(value).__name__}")
                yield where, value
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} is no UTF-8 text: {error}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path} cannot be read: {error}; is it damaged or incomplete?") from error


@contextlib.contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    with path.open("rb") as binary:
        magic = binary.read(4)
        binary.seek(0)
        if magic in _NOT_TEXT:
            raise DatasetError(f"{path} is {_NOT_TEXT[magic]}; expected JSON or JSON Lines")
        plain = gzip.GzipFile(fileobj=binary) if magic.startswith(b"\x1f\x8b") else binary
        with io.TextIOWrapper(plain, encoding="utf-8-sig") as text:
            yield text


def _read_values(stream: IO[str], path: Path) -> Iterator[tuple[str, Any]]:
    started = False
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        if not started and line.lstrip().startswith("["):
            yield from _read_array(line + stream.read(), path)
            return
        started = True
        where = f"{path}, line {number}"
        try:
            yield where, json.loads(line, object_pairs_hook=_unambiguous)
        except _UNREADABLE as error:
            raise DatasetError(f"{where}: not a JSON object ({error}); {_hint(line)}") from error


def _read_array(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Yields one element after the other, so that never more than one of them is held as raw objects."""
    decode = json.JSONDecoder(object_pairs_hook=_unambiguous).raw_decode
    position = _skip_blank(text, text.index("[") + 1)
    number = 0
    while text[position : position + 1] != "]":
        where = f"{path}, row {number}"
        try:
            value, position = decode(text, position)
        except _UNREADABLE as error:
            raise DatasetError(f"{where}: not valid JSON ({error}); is the file truncated?") from error
        yield where, value
        position = _skip_blank(text, position)
        separator = text[position : position + 1]
        if separator == ",":
            position = _skip_blank(text, position + 1)
        elif separator != "]":
            raise DatasetError(f"{where}: expected ',' or ']' after it, got {separator!r}; is the file truncated?")
        number += 1
    if _skip_blank(text, position + 1) < len(text):
        raise DatasetError(f"{path}: more text follows the end of the JSON array; expected one array")


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object's dictionary, which would silently keep the last of two equal keys."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return value


def _skip_blank(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


def _hint(line: str) -> str:
    if line.startswith("version https://git-lfs"):
        return "this is a Git LFS pointer, not the data: fetch the file itself"
    return "expected JSON Lines (one object a line) or one JSON array; is the file truncated?"


def _expected_names(name: str, split: str | None) -> list[str]:
    from agent_r1_gym.datasets.official.formats import SPLITS, format_of

    names: list[str] = []
    for wanted in [split] if split else SPLITS:
        stems = (wanted, "dev") if wanted == "validation" else (wanted,)
        names += [f"{stem}{suffix}" for stem in stems for suffix in (".jsonl", ".json")]
        names += format_of(name).FILES[wanted]
    return names


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if names else "nothing"


def _near_names(path: Path) -> str:
    if not path.parent.is_dir():
        return f" The folder {path.parent} does not exist either."
    near = difflib.get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=3, cutoff=0.5)
    return f" Near names there: {', '.join(near)}." if near else f" {path.parent} holds {_listing(path.parent)}."
