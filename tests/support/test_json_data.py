"""JSON files of users, and JSON Lines of runs; schemas are in tests/core."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1_gym.data.load import load_dataset
from agent_r1_gym.errors import DatasetError
from agent_r1_gym.retrieval.store import read_corpus
from agent_r1_gym.support.json_data import JsonLinesWriter, drop_torn_line, parse_json, read_json_lines, read_objects
from tests.kit.data import HOTPOTQA_ROW, changed, write_json

# --- json files ------------------------------------------------------------------------------------------------------


Read = Callable[[Path], Any]
ROWS = [changed(HOTPOTQA_ROW, _id=name, text="x") for name in "ab"]  # documents of a corpus as well
LINES = "\n".join(map(json.dumps, ROWS)).encode()
ARRAY = json.dumps(ROWS).encode()


def read_data_set(path: Path) -> Any:
    dataset = load_dataset("hotpotqa", path)
    return [list(dataset), dataset.fingerprint]


@pytest.fixture(params=[lambda path: list(read_corpus(path)), read_data_set], ids=["corpus", "data set"])
def read(request: pytest.FixtureRequest) -> Read:
    reader: Read = request.param
    return reader


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("pretty.json", json.dumps(ROWS, indent=2).encode()),
        ("lines.json", LINES),
        ("blank_lines.jsonl", b"\n\n%s\n\n\n" % LINES.replace(b"\n", b"\n\n")),
        ("mark.jsonl", b"\xef\xbb\xbf" + LINES),
        ("packed_array.json", gzip.compress(ARRAY, mtime=0)),
        ("packed_lines.json", gzip.compress(LINES, mtime=0)),
        ("not_packed.jsonl.gz", LINES),
    ],
)
def test_every_way_to_write_the_same_rows_reads_the_same(tmp_path: Path, read: Read, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert read(tmp_path / name) == read(write_json(tmp_path / "plain.json", ROWS))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"title,question\n", "line 1: not valid JSON"),
        (b'{"title": 1', r"line 1: not valid JSON .* truncated"),
        (b'{"_id":\n"x"}', r"line 1: not valid JSON .* truncated"),
        (LINES[:-9], r"line 2: not valid JSON .* truncated"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"[1, 2]", "row 0: expected an object, got int"),
        (b'"text"', "line 1: expected an object, got str"),
        (gzip.compress(LINES + b"\n[]", mtime=0), "line 3: expected an object, got list|row 0: expected an object"),
        (b"[" * 100_000, "row 0: not valid JSON"),
        (b"PK\x03\x04...", "zip archive"),
        (b"PAR1...", "parquet file: (convert it first|serve its folder with dataset='hub', hub_id=FOLDER);"),
        (b'{"a": "\xff"}', r"line 1: it is not UTF-8 text \(byte 0xff after '{\"a\": \"'\); save the file as UTF-8"),
        (
            LINES.replace(b"\n", b"\r\n") + b'\r\n{"name": "Malm\xf6"}',
            "line 3: it is not UTF-8 text .*0xf6 after .*Malm",
        ),
        (gzip.compress(LINES + b"\n\xe9", mtime=0), "line 3: it is not UTF-8 text"),
        (LINES.decode().encode("utf-16"), "UTF-16 text: save it as UTF-8"),
        (LINES.decode().encode("utf-16-be"), "line 1: not valid JSON"),
        (b"\x1f\x8b\x08\x00broken", "cannot be read"),
        (gzip.compress(LINES, mtime=0)[:-12], "cannot be read"),
        (ARRAY[:-30], "row 1: not valid JSON.*truncated"),
        (ARRAY[:-1], "row 1: expected ',' or ']'.*truncated"),
        (ARRAY + b" [1]", "more text follows the end"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, read: Read, content: bytes, complaint: str) -> None:
    (tmp_path / "rows.json").write_bytes(content)
    with pytest.raises(DatasetError, match=rf"rows\.json.*({complaint})"):
        read(tmp_path / "rows.json")


@pytest.mark.parametrize("as_array", [False, True])
@pytest.mark.parametrize(
    ("broken", "complaint"),
    [
        ('"answer": "Marnby", "answer": "Oslo"', "an object has the key 'answer' twice"),
        ('"answer": {"a": 1, "b": 2, "a": 3}', "an object has the key 'a' twice"),
        (f'"answer": {"9" * 5000}', "Exceeds the limit"),
        (f'"answer": {"[" * 100_000}', "recursion"),
    ],
    ids=["two answers", "deeper", "a long integer", "depth"],
)
def test_an_ambiguous_or_monstrous_row_is_named(
    tmp_path: Path, read: Read, as_array: bool, broken: str, complaint: str
) -> None:
    rows = [json.dumps(ROWS[0]), json.dumps(ROWS[1]).replace('"answer": "Marnby"', broken)]
    (tmp_path / "rows.json").write_text(f"[{', '.join(rows)}]" if as_array else "\n".join(rows))
    with pytest.raises(DatasetError, match=rf"rows\.json, {'row 1' if as_array else 'line 2'}: .*{complaint}"):
        read(tmp_path / "rows.json")


@pytest.mark.slow
@pytest.mark.parametrize("content", [LINES + b"\n" + b" " * 2**26, ARRAY[:-1] + b" " * 2**26 + b"]"])
def test_a_file_that_unpacks_to_far_more_than_its_size_is_refused(tmp_path: Path, read: Read, content: bytes) -> None:
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(content))
    with pytest.raises(DatasetError, match=r"rows\.jsonl\.gz unpacks to more than 200 times its \d+ bytes"):
        read(tmp_path / "rows.jsonl.gz")


def test_a_device_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").symlink_to("/dev/zero")
    with pytest.raises(DatasetError, match=r"rows\.jsonl is not a regular file"):
        next(read_objects(tmp_path / "rows.jsonl"))


@pytest.mark.slow
@given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | st.sampled_from([b'[{"_id":"x"}', b"[{},"]))
def test_any_bytes_give_a_data_set_error_and_nothing_else(tmp_path_factory: Any, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "rows.json"
    path.write_bytes(data)
    with pytest.raises(DatasetError):
        read_data_set(path)


# --- json lines ------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_deep_nesting_is_an_error_of_the_file(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(text)
    file = tmp_path / "rows.jsonl"
    file.write_text(text + "\n")
    with pytest.raises(DatasetError, match=r"rows\.jsonl, line 1: expected a JSON object.*nested too deeply"):
        list(read_json_lines(file))


def test_rows_of_a_pipe_or_a_device_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "zeros.jsonl").symlink_to("/dev/zero")
    for name in ("pipe.jsonl", "zeros.jsonl"):
        with pytest.raises(DatasetError, match="is a pipe or a device"):
            list(read_json_lines(tmp_path / name))


def test_rows_are_not_written_through_a_link(tmp_path: Path) -> None:
    other, link = tmp_path / "other", tmp_path / "rows.jsonl"
    other.write_text("no line end")
    link.symlink_to(other)
    with pytest.raises(DatasetError, match="is a link to"):
        drop_torn_line(link)
    with pytest.raises(DatasetError, match="is a link to"):
        JsonLinesWriter(link).add({"a": 1})
    assert other.read_text() == "no line end"
