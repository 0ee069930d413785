"""The commands that prepare data, index and serve them, and `doctor`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from agent_r1_gym.core.types import Passage
from tests.kit.commands import call
from tests.kit.helpers import write_corpus

_PASSAGES = [Passage("1", "Oslo", "Oslo is the capital of Norway."), Passage("2", "Rome", "Rome lies in Italy.")]


def test_doctor_reports_as_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "doctor")
    assert status == 0
    assert "gymnasium" in out
    report = json.loads(call(capsys, "doctor", "--json")[1])
    assert report["packages"]["base"]["gymnasium"]
    assert "java" in report


def test_prepare_takes_an_official_file_and_auto_then_serves_it(
    capsys: pytest.CaptureFixture[str], run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_R1_HOME", str(run_folder / "home"))
    row = {
        "_id": "x1", "question": "Where is Oslo?", "answer": "Norway", "type": "bridge", "level": "easy",
        "supporting_facts": [["Oslo", 0]], "context": [["Oslo", ["Oslo is in Norway."]]],
    }  # fmt: skip
    (run_folder / "hotpot_train_v1.1.json").write_text(json.dumps([row]))
    status, out, err = call(capsys, "data", "prepare", "hotpotqa", "--source", "hotpot_train_v1.1.json")
    assert status == 0, err
    assert "prepared" in out
    status, out, _ = call(capsys, "eval", "HotpotQA", "--policy", "oracle", "--out", "real")
    assert status == 0
    assert "answer: 1" in out
    assert "FICTIONAL" not in out


def test_index_builds_for_a_corpus_file(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    write_corpus(_PASSAGES, run_folder / "corpus.jsonl")
    status, out, _ = call(capsys, "data", "index", "corpus.jsonl")
    assert status == 0
    assert "indexed 2 passages" in out
    assert "serve retriever" in out


@pytest.mark.parametrize(
    "words",
    [
        ["data", "index", "empty.jsonl"],
        ["data", "index", "empty.jsonl", "--retriever", "lucene", "--out", "built"],
        ["serve", "retriever", "--corpus", "empty.jsonl", "--port", "0"],
    ],
)
def test_an_empty_corpus_is_refused(words: list[str], capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    (run_folder / "empty.jsonl").write_text("\n")
    status, _, err = call(capsys, *words)
    assert status == 2
    assert "empty.jsonl has no passages" in err
    assert not (run_folder / "built").exists()


def _start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "agent_r1_gym", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip


@pytest.mark.slow
def test_serve_retriever_speaks_both_formats_and_ends_on_ctrl_c(run_folder: Path) -> None:
    pytest.importorskip("fastapi", reason="the server extra is not installed")
    write_corpus(_PASSAGES, run_folder / "corpus.jsonl")
    server = _start(["serve", "retriever", "--corpus", "corpus.jsonl", "--port", "0"], run_folder)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "searching 2 passages with bm25\n"
        url = next(line for line in server.stdout if "serving POST" in line).split()[2].removesuffix("/retrieve")
        body = json.dumps({"queries": ["Oslo"], "topk": 1, "return_scores": True}).encode()
        request = urllib.request.Request(f"{url}/retrieve", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            found = json.loads(answer.read())["result"][0][0]
        assert found["document"]["contents"].startswith('"Oslo"')
        with urllib.request.urlopen(f"{url}/search?query=Rome&top_k=1", timeout=10) as answer:
            assert "Rome" in json.dumps(json.loads(answer.read())["query_results"])
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=10)
        assert "Traceback" not in err
    finally:
        server.kill()
