"""The command line for beginners: help, unknown commands and options, messages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_r1_gym.cli import doctor
from agent_r1_gym.cli.main import main
from agent_r1_gym.core.types import Passage
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from tests.kit.commands import call
from tests.kit.helpers import write_corpus


def test_alone_it_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys)
    assert (status, err) == (0, "")
    assert "play an episode yourself" in out


@pytest.mark.parametrize("module", ["agent_r1_gym", "agent_r1_gym.cli.main"])
def test_its_module_is_the_command_line(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "play an episode yourself" in done.stdout


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["trian", "x"], "agent-r1: Unknown command 'trian'. Did you mean 'train'? `agent-r1 --help` lists them.\n"),
        (["env"], "Did you mean 'envs'"),
        (["xyz"], "Unknown command 'xyz'. `agent-r1 --help`"),
    ],
)
def test_an_unknown_command_gets_suggestions(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, *words)
    assert (status, out) == (2, "")
    assert hint in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["eval", "FictionQA", "--nquestions", "3"], "'--nquestions' is not an option. Did you mean '--questions'"),
        (["eval", "--episodes", "5"], "'--episodes' is not an option. Did you mean '--questions'? See"),
        (["eval", "FictionQA", "--polcy=oracle"], "'--polcy' is not an option. Did you mean '--policy'"),
        (["eval", "FictionQA", "-z", "--policy", "oracle"], "'-z' is not an option."),
        (["eval", "FictionQA", "more", "--policy", "oracle"], "'more' is one word too many."),
        (["doctor", "--josn"], "'--josn' is not an option. Did you mean '--json'"),
    ],
)
def test_an_unknown_option_is_refused_under_its_own_command(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(words)
    assert leaving.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"usage: agent-r1 {words[0]}")
    assert f"agent-r1 {words[0]}: error: {hint}" in err


def test_an_unknown_parser_lists_the_models_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, "eval", "FictionQA", "--policy", "oracle", "--parser", "qwen")
    assert status == 2
    assert "'hermes': Qwen2.5, Qwen3, Hermes" in err
    assert "MODULE:NAME" in err


def test_an_endpoint_that_is_down_is_named_with_the_cause(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    words = ("--policy", "openai:x", "--base-url", "http://127.0.0.1:1/v1", "--max-retries", "0", "--retries", "0")
    status, _, err = call(capsys, "eval", "FictionQA", *words, "-n", "2", "--out", "run")
    assert status == 1
    assert "The first: endpoint: unavailable: http://127.0.0.1:1/v1 cannot be reached: Connection refused. " in err


def test_a_run_is_what_report_reads(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    assert call(capsys, "eval", "FictionQA", "--policy", "oracle", "-n", "2", "--out", "run")[0] == 0
    assert call(capsys, "report", "run", "--out", "page.html")[0] == 0
    assert "2 of 2 episodes" in (run_folder / "page.html").read_text()
    assert RunFolder(run_folder / "run").metrics()["overall"]["questions"] == 2


def test_one_passage_is_one_passage(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    write_corpus([Passage("1", "Oslo", "Oslo is the capital of Norway.")], run_folder / "corpus.jsonl")
    assert "indexed 1 passage;" in call(capsys, "data", "index", "corpus.jsonl")[1]


# --- doctor ----------------------------------------------------------------------------------------------------------


def test_doctor_names_missing_packages_by_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda name: None if name in ("trl", "vllm") else "1.0")
    monkeypatch.setattr(doctor, "install_command", lambda extra: f"install {extra}")
    status, out, _ = call(capsys, "doctor")
    assert status == 0
    lines = [line.split() for line in out.splitlines()]
    assert ["train", "trl", "missing"] in lines
    assert ["train", "pyyaml", "1.0"] in lines
    assert ["(optional)", "vllm", "not", "installed"] in lines
    assert ["(optional)", "wandb", "1.0"] in lines
    assert "the extra train is not complete: install train" in out
    assert "the extra data" not in out


def test_doctor_shows_the_gpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 570.1'\necho 'NVIDIA H200, 143771 MiB, 570.1'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert call(capsys, "doctor")[1].count("GPU            NVIDIA H200, 143771 MiB, driver 570.1") == 2
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'\nexit 9\n")
    assert "none found by nvidia-smi" in call(capsys, "doctor")[1]


def test_a_page_takes_no_place_but_that_of_a_page(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "FictionQA", "-n", "3", "--policy", "oracle", "--out", "run"]) == 0
    os.mkfifo(run_folder / "pipe")
    episodes = (run_folder / "run" / "episodes.jsonl").read_bytes()
    for taken in ("run/episodes.jsonl", "pipe", "/dev/null"):
        assert main(["report", "run", "--out", taken]) == 2
        assert f"--out {taken} exists and is not an HTML page" in capsys.readouterr().err
    assert (run_folder / "run" / "episodes.jsonl").read_bytes() == episodes
    assert (run_folder / "pipe").is_fifo() and Path("/dev/null").is_char_device()
    (run_folder / "empty.html").touch()
    for _ in range(2):
        assert main(["report", "run", "--out", "empty.html"]) == 0


def test_a_mixture_that_was_edited_is_named(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_folder / "run").mkdir()
    for text in ("nope", '{"environments": 1}', "[]", '{"environments": [{}]}'):
        (run_folder / "run" / "mixture.json").write_text(text)
        assert main(["report", "run"]) == 2
        assert "run/mixture.json does not name the environments of a mixture" in capsys.readouterr().err
