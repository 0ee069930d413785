"""JSON Lines: whole lines or none, also on a disk that is nearly full; the place of what is wrong."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.errors import DatasetError
from agent_r1_gym.support.json_lines import JsonLinesWriter, drop_torn_line, read_json_lines


class NearlyFull(io.FileIO):
    """A file that takes a few bytes of each write, and after `room` bytes none."""

    room = 40

    def write(self, data: Any) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        part = data[: min(7, self.room)]
        self.room -= len(part)
        return super().write(part)


def test_a_short_write_goes_on_or_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    writer = JsonLinesWriter(path)
    writer.add({"row": 0})
    writer.close()
    writer._file = NearlyFull(path, "ab")
    writer.add({"row": 1, "text": "é" * 5})
    before = path.read_bytes()
    with pytest.raises(OSError, match="No space left"):
        writer.add({"row": 2, "text": "x" * 50})
    assert path.read_bytes() == before
    writer.close()
    writer.add({"row": 3})  # room came back
    writer.close()
    assert [row["row"] for _, row in read_json_lines(path)] == [0, 1, 3]


def test_a_torn_line_is_left_out_and_dropped(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"row": 0}\n{"row": 1')
    assert [row for _, row in read_json_lines(path)] == [{"row": 0}]
    drop_torn_line(path)
    assert path.read_bytes() == b'{"row": 0}\n'
    drop_torn_line(tmp_path / "absent.jsonl")
    assert list(read_json_lines(tmp_path / "absent.jsonl")) == []


@pytest.mark.parametrize("line", ["{", "5", "[1]"])
def test_what_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"row": 0}}\n{line}\n')
    with pytest.raises(DatasetError, match=r"rows\.jsonl, line 2: expected a JSON object"):
        list(read_json_lines(path))
