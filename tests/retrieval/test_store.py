"""Documents and corpus files; indexes that are built once, checked and rebuilt."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1_gym.core.types import Passage
from agent_r1_gym.errors import DatasetError, RetrievalError
from agent_r1_gym.retrieval.bm25 import BM25Retriever
from agent_r1_gym.retrieval.make import corpus_retriever
from agent_r1_gym.retrieval.store import (
    PassageStore,
    check_integrity,
    corpus_fingerprint,
    open_or_build,
    passage_from_document,
    passage_to_document,
    read_corpus,
)
from tests.kit.helpers import write_corpus
from tests.kit.processes import files_of_at_most, in_processes, kill_at_its_first_line

SLOW_BUILD = """
import sys, time
from pathlib import Path
from agent_r1_gym.retrieval.store import open_or_build

def build(directory):
    (directory / "part").write_text("new" * 1000)
    print("building", flush=True)
    time.sleep(60)

open_or_build(Path(sys.argv[1]), build, load=lambda directory: directory)
"""

TEXT = st.text(st.characters(exclude_categories=()), max_size=40)


@st.composite
def any_passage(draw: st.DrawFn) -> Passage:
    text = draw(TEXT)
    ends = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return Passage(draw(TEXT), draw(TEXT), text, tuple(ends))


@given(any_passage())
def test_a_document_loses_nothing(passage):
    document = json.loads(json.dumps(passage_to_document(passage)))
    assert passage_from_document(document, default_id="x") == passage


def test_both_shapes_of_documents_are_read():
    for document, passage in (
        ({"title": "T", "text": "x"}, Passage("9", "T", "x")),
        ({"text": "x"}, Passage("9", "", "x")),
        ({"id": 3, "contents": '"T"\nx\ny'}, Passage("3", "T", "x\ny")),
        ({"_id": "q", "title": "T", "text": "x"}, Passage("q", "T", "x")),
        ({"id": "3", "contents": "T\nx"}, Passage("3", "T", "x")),
        ({"id": "3", "contents": "only text"}, Passage("3", "", "only text")),
        ({"id": "3", "contents": "only text", "title": "T"}, Passage("3", "T", "only text")),
        ({"id": "3", "contents": '"'}, Passage("3", "", '"')),
        ({"id": "3", "contents": '"T"\r\nx\r\ny'}, Passage("3", "T", "x\r\ny")),
        ({"id": "3", "contents": "T\rx"}, Passage("3", "T", "x")),
        ({"id": "3", "title": "T", "contents": '"T"\r\nx'}, Passage("3", "T", "x")),
        ({"id": "3", "title": "T", "contents": "T\nx"}, Passage("3", "T", "x")),
        ({"id": "3", "title": "T", "contents": "T is a letter.\nx"}, Passage("3", "T", "T is a letter.\nx")),
    ):
        assert passage_from_document(document, default_id="9") == passage


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".jsonl.gz"])
def test_the_error_for_a_malformed_row_names_it(tmp_path, suffix):
    good = {"title": "T", "text": "x"}
    path = tmp_path / f"corpus{suffix}"
    position = "row 1" if suffix == ".json" else "line 2"
    for row, complaint in (
        ({"title": "T"}, "field 'text' must be a string, got only list \\['title'\\]"),
        ({"title": 1, "text": "x"}, "field 'title' must be a string, got int 1"),
        ({"text": None}, "field 'text' must be a string, got NoneType None"),
        ({"contents": ["x"]}, "field 'contents' must be a string"),
        ({"id": True, "text": "x"}, "field 'id'"),
        ({"text": "x", "sentence_ends": [9]}, "field 'sentence_ends'"),
        ({"text": "x", "sentence_ends": "1"}, "field 'sentence_ends'"),
        ("x", "expected an object, got str 'x'"),
    ):
        text = json.dumps([good, row]) if suffix == ".json" else f"{json.dumps(good)}\n{json.dumps(row)}\n"
        path.write_bytes(gzip.compress(text.encode()) if suffix.endswith(".gz") else text.encode())
        with pytest.raises(DatasetError, match=rf"corpus{suffix}, {position}: {complaint}"):
            list(read_corpus(path))


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        (("x", "y", "x"), r"line 3: .*corpus\.jsonl, line 1 has the id 'x' already"),
        (("1", None), r"line 2: .*corpus\.jsonl, line 1 has the id '1' already.*a row without one gets its number"),
        ((None, 7, "7"), r"line 3: .*line 2 has the id '7' already"),
    ],
)
def test_two_passages_with_one_id_are_refused(tmp_path, ids, complaint):
    path = tmp_path / "corpus.jsonl"
    rows = [{"text": f"text {number}", **({} if each is None else {"id": each})} for number, each in enumerate(ids)]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(DatasetError, match=complaint):
        corpus_fingerprint(read_corpus(path))
    with pytest.raises(DatasetError, match=complaint):
        corpus_retriever(path, "bm25")


def test_a_missing_file_is_refused_before_the_first_row_is_asked_for(tmp_path):
    with pytest.raises(DatasetError, match="does not exist"):
        read_corpus(tmp_path / "absent.jsonl")


@pytest.mark.parametrize("name", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_a_corpus_file_is_read_in_order(tmp_path, passages, name):
    write_corpus(passages, tmp_path / name)
    assert list(read_corpus(tmp_path / name)) == passages


def test_a_passage_becomes_a_document_of_search_r1():
    document = {"id": "7", "title": "Paris", "contents": '"Paris"\nA city.\nIn France.'}
    assert passage_to_document(Passage("7", "Paris", "A city.\nIn France.")) == document


def test_the_fingerprint_sees_every_change(passages):
    known = corpus_fingerprint(passages)
    assert corpus_fingerprint(iter(passages)) == known
    changed = [
        passages[::-1],
        passages[1:],
        [Passage("A", "Henry V", passages[0].text), *passages[1:]],
        [Passage("a", "Henry VI", passages[0].text), *passages[1:]],
        [Passage("a", "Henry", " V" + passages[0].text), *passages[1:]],
    ]
    assert known not in {corpus_fingerprint(other) for other in changed}
    assert corpus_fingerprint([Passage("a", "\ud800", "")]) != corpus_fingerprint([])


# Indexes --------------------------------------------------------------------------------------------------------------


def _build(word):
    return lambda directory: (directory / "part").write_text(word)


def _read(directory):
    return (directory / "part").read_text()


def test_it_is_built_once_and_then_opened(tmp_path):
    index = tmp_path / "index"
    assert open_or_build(index, _build("one"), load=_read) == "one"
    assert open_or_build(index, _build("two"), load=_read) == "one"


def test_a_damaged_index_is_built_again_with_one_warning(tmp_path, caplog):
    for number, damage in enumerate(
        (
            lambda index: (index / "part").unlink(),
            lambda index: (index / "part").write_text("o"),
            lambda index: (index / "part").write_text("owe"),
            lambda index: (index / "part").write_bytes(bytes(3)),
            lambda index: (index / "manifest.json").write_text('{"part": 3}'),
            lambda index: (index / "manifest.json").unlink(),
            lambda index: (index / "manifest.json").write_text("[]"),
            lambda index: (index / "manifest.json").write_text('{"part'),
        )
    ):
        index = tmp_path / f"index-{number}"
        open_or_build(index, _build("one"), load=_read)
        assert check_integrity(index) is None
        damage(index)
        assert check_integrity(index)
        caplog.clear()
        assert open_or_build(index, _build("two"), load=_read) == "two"
        (record,) = caplog.records
        assert "is damaged (" in record.getMessage() and "\n" not in record.getMessage()


def test_a_failed_build_leaves_nothing_and_the_next_one_works(tmp_path):
    def failing(directory):
        (directory / "part").write_text("half")
        raise ValueError("bad passage")

    with pytest.raises(ValueError, match="bad passage"):
        open_or_build(tmp_path / "index", failing, load=_read)
    assert [path.name for path in tmp_path.iterdir() if not path.name.endswith(".lock")] == []
    assert open_or_build(tmp_path / "index", _build("one"), load=_read) == "one"


@pytest.mark.parametrize("old", [True, False])
def test_a_killed_build_leaves_the_old_index_or_none_and_what_the_next_one_removes(tmp_path, old, monkeypatch):
    index = tmp_path / "index"
    if old:
        open_or_build(index, _build("old"), load=_read)
        (index / "manifest.json").unlink()
    kill_at_its_first_line(SLOW_BUILD, index)
    assert index.exists() == old
    if old:
        assert _read(index) == "old"
    (tmp_path / ".index.0123abc_.old.tmp").mkdir()
    (tmp_path / ".index.0123abc_.tmp.log").touch()
    others = [".index.other.0123abc_.tmp", ".other.0123abc_.tmp", "index.tmp"]
    for name in others:
        (tmp_path / name).mkdir()
    monkeypatch.setattr("agent_r1_gym.retrieval.store._BUILD_TIMEOUT", 0.0)  # who waits fails
    assert open_or_build(index, _build("one"), load=_read) == "one"
    assert {path.name for path in tmp_path.iterdir()} == {"index", "index.lock", *others}


def test_a_full_disk_is_an_error_that_names_the_index_and_leaves_none(tmp_path):
    corpus = [Passage(str(number), "", f"word{number} and word{number + 1}") for number in range(5000)]
    with files_of_at_most(20_000), pytest.raises(RetrievalError, match=r"bm25-f.* cannot be written"):
        BM25Retriever(corpus, cache_dir=tmp_path, fingerprint="f")
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RetrievalError, match="cannot be written"):
        open_or_build(tmp_path / "file" / "index", _build("one"), load=_read)


def _build_slowly(directory, log):
    def build(empty):
        with log.open("a") as file:
            file.write("built\n")
        time.sleep(0.3)
        (empty / "part").write_text("one")

    return open_or_build(directory, build, load=_read)


@pytest.mark.slow
def test_of_processes_that_want_one_index_one_builds_and_all_get_it(tmp_path):
    log = tmp_path / "log"
    assert in_processes("spawn", _build_slowly, [(tmp_path / "index", log)] * 3) == ["one"] * 3
    assert log.read_text() == "built\n"


def test_stored_passages_are_the_same_in_every_process(passages, tmp_path):
    odd = [*passages, Passage("\ud800", "a\nb", "\x00\udfff")]
    PassageStore.write(odd, tmp_path)
    stored = PassageStore(tmp_path)
    assert list(stored) == odd
    assert list(pickle.loads(pickle.dumps(stored))) == odd
    child = os.fork()
    if child == 0:
        os._exit(0 if list(stored) == odd else 1)
    assert os.waitpid(child, 0)[1] == 0
