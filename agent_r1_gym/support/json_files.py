"""Reading JSON files of objects: one array, or JSON Lines; plain or gzipped; with or without a byte order mark."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from agent_r1_gym.errors import DatasetError

_BLANK = re.compile(r"[ \t\r\n]*")
_UNREADABLE = (ValueError, RecursionError)  # ValueError also for an integer of more than 4,300 digits
_PARQUET = b"PAR1"
_NOT_TEXT: Mapping[bytes, str] = {
    b"PK\x03\x04": "a zip archive, or part of one: unpack it",
    _PARQUET: "a parquet file",
}


def read_objects(path: Path, *, if_parquet: str = "convert it first") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each object of a file with its place ("FILE, line 3" or "FILE, row 2") for error messages.

    What the file holds is known by its content, not by its name. Of an array one element after the other is decoded,
    so that never more than one of them is held as raw objects.

    Args:
        path: the file.
        if_parquet: what to do with a parquet file, for the error message.

    Raises:
        DatasetError: the file cannot be read, or is damaged, truncated, no JSON, or holds something that is no object,
            or an object that has a key twice.
    """
    try:
        with _open_text(path, if_parquet) as stream:
            for where, value in _read_values(stream, path):
                if not isinstance(value, dict):
                    raise DatasetError(f"{where}: expected an object, got {type(value).__name__} {value!r:.80}")
                yield where, value
    except UnicodeDecodeError as error:
        raise DatasetError(f"{path} cannot be read: it is no UTF-8 text ({error})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{path} cannot be read: {error}; is it damaged or incomplete?") from error


@contextlib.contextmanager
def _open_text(path: Path, if_parquet: str) -> Iterator[IO[str]]:
    with path.open("rb") as binary:
        magic = binary.read(4)
        binary.seek(0)
        if magic in _NOT_TEXT:
            advice = f": {if_parquet}" if magic == _PARQUET else ""
            raise DatasetError(f"{path} is {_NOT_TEXT[magic]}{advice}; expected JSON or JSON Lines")
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
            value = _DECODER.decode(line)
        except _UNREADABLE as error:
            raise DatasetError(f"{where}: not valid JSON ({error}); {_hint(line)}") from error
        yield where, value


def _read_array(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    position = _skip_blank(text, text.index("[") + 1)
    number = 0
    while text[position : position + 1] != "]":
        where = f"{path}, row {number}"
        try:
            value, position = _DECODER.raw_decode(text, position)
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
    """Returns an object's dictionary; refuses equal keys."""
    # `dict` would silently keep the last of two equal keys.
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {twice!r} twice")
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unambiguous)


def _skip_blank(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


def _hint(line: str) -> str:
    if line.startswith("version https://git-lfs"):
        return "this is a Git LFS pointer, not the data: fetch the file itself"
    return "expected JSON Lines (one object per line) or one JSON array; is the file truncated?"
