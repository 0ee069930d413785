"""JSON Lines: one object per line, appended whole or not at all, read back with the place of what is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from agent_r1_gym.errors import DatasetError


def json_line(row: Mapping[str, Any]) -> bytes:
    """Returns `row` as one line of UTF-8, its keys sorted, so that equal rows are equal bytes."""
    return json.dumps(row, ensure_ascii=False, sort_keys=True).encode("utf-8", "replace") + b"\n"


class JsonLinesWriter:
    """Appends rows to a file; a crash tears at most the last line, a full disk none.

    Args:
        path: the file.
        buffered: rows may stay in memory for a while; for what may be lost.
    """

    def __init__(self, path: Path, *, buffered: bool = False) -> None:
        self._path, self._buffering = path, -1 if buffered else 0
        self._file: IO[bytes] | None = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Appends a row.

        Raises:
            OSError: it could not be written whole; the file is as it was before.
        """
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=self._buffering)
        line = json_line(row)
        if self._buffering:
            self._file.write(line)
            return
        before = os.fstat(self._file.fileno()).st_size
        try:
            # An unbuffered write may take a part only and say so by its count: on a nearly full disk.
            while line:
                line = line[self._file.write(line) :]
        except OSError:
            self._file.truncate(before)
            raise

    def close(self) -> None:
        """Closes the file; a later row opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each row with its place, "FILE, line N", for messages; an empty or missing file has none.

    What follows the last line end is the torn line of a crash and is left out.

    Raises:
        DatasetError: a line is no JSON object.
    """
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DatasetError(f"{place}: expected a JSON object, got {line[:80]!r} ({error}).") from error
        if not isinstance(row, dict):
            raise DatasetError(f"{place}: expected a JSON object, got {line[:80]!r}.")
        yield place, row


def drop_torn_line(path: Path) -> None:
    """Cuts the file after its last whole line."""
    if not path.exists():
        return
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        with path.open("r+b") as file:
            file.truncate(whole)
