"""Runs in parts: several processes on one folder write what one process writes, whatever happens to one of them."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.cli.main import main
from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.run.evaluation.run_folder import RunFolder, Shard, find_shards, missing_shards
from agent_r1_gym.run.player import evaluation_jobs
from tests.run.evaluation.test_run_folder import STOPS_AFTER

WORDS = ["eval", "FictionQA", "-n", "31", "--samples", "2", "--policy", "naive"]


def timeless(folder: Path) -> dict[str, Any]:
    """Returns the metrics of a run without those that measure time."""
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    groups = [metrics["overall"], *(group for values in metrics["by"].values() for group in values.values())]
    for group in groups:
        group["metrics"].pop("seconds", None)
    return metrics


def test_shares_have_each_episode_once_and_all_samples_of_a_question() -> None:
    jobs = evaluation_jobs([4, 7, 9, 12, 20], samples=3)
    shares = [part.select(jobs) for part in Shard(1, 3).all]
    assert [[job.task_index for job in select[::3]] for select in shares] == [[4, 12], [7, 20], [9]]
    assert sorted((job for select in shares for job in select), key=lambda job: job.key) == jobs


@pytest.mark.slow
def test_three_processes_of_which_one_is_killed_write_the_run_of_one(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "parts"
    assert main([*WORDS, "--out", str(whole)]) == 0

    def start(number: int, episodes: int = 0) -> subprocess.Popen[bytes]:
        words = [str(episodes), *WORDS, "--out", str(folder), "--shard", f"{number}/3"]
        command = [sys.executable, "-c", STOPS_AFTER, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    processes = [start(1), start(2, episodes=4), start(3)]
    killed = folder / Shard(2, 3).folder / "episodes.jsonl"
    assert processes[1].stdout is not None
    assert processes[1].stdout.readline() == b"played\n"
    processes[1].kill()
    outputs = [process.communicate(timeout=60)[0].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, -signal.SIGKILL, 0]
    assert "without 2/3" in outputs[0] + outputs[2]
    assert missing_shards(folder, 3) == [Shard(2, 3)]
    with pytest.raises(DatasetError, match=r"without 2/3: play the missing ones"):
        RunFolder(folder).settings()
    before = killed.read_bytes().splitlines()
    assert len(before) == 4
    assert main([*WORDS, "--out", str(folder), "--shard", "2/3"]) == 0
    assert set(before) < set(killed.read_bytes().splitlines())
    assert (folder / "episodes.jsonl").read_bytes() == (whole / "episodes.jsonl").read_bytes()
    assert timeless(folder) == timeless(whole)
    assert RunFolder(folder).settings() == RunFolder(whole).settings()
    assert len(RunFolder(folder).load()["invocations"]) == 4
    assert set(RunFolder(folder).seconds()) <= set(RunFolder(whole).seconds())  # a crash may lose some


@pytest.mark.slow
def test_the_order_of_parts_and_playing_one_again_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = [1, 2, 3, 4]
    random.Random(0).shuffle(numbers)
    words = [*WORDS[:2], "-n", "9", "--policy", "oracle", "--out", str(tmp_path / "run")]
    for number in numbers:
        assert main([*words, "--shard", f"{number}/4"]) == 0
    before = (tmp_path / "run" / "episodes.jsonl").read_bytes()
    assert main([*words, "--shard", "3/4"]) == 0
    assert (tmp_path / "run" / "episodes.jsonl").read_bytes() == before
    assert main([*words[:-1], str(tmp_path / "one")]) == 0
    assert (tmp_path / "one" / "episodes.jsonl").read_bytes() == before
    capsys.readouterr()
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0


@pytest.mark.slow
def test_a_part_that_was_killed_while_it_was_played_again_does_not_spoil_the_others(tmp_path: Path) -> None:
    words = [*WORDS[:2], "-n", "4", "--policy", "oracle", "--out", str(tmp_path / "run")]
    for number in (1, 2):
        assert main([*words, "--shard", f"{number}/2"]) == 0
    before = (tmp_path / "run" / "episodes.jsonl").read_bytes()
    for name in ("episodes.jsonl", "timings.jsonl"):
        with (tmp_path / "run" / Shard(1, 2).folder / name).open("ab") as file:
            file.write(b'{"answer": "Raf')
    assert main([*words, "--shard", "2/2"]) == 0
    assert (tmp_path / "run" / "episodes.jsonl").read_bytes() == before
    assert len(RunFolder(tmp_path / "run").seconds()) == 4


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--shard", "1/3"], "holds shards of 2, which overlap those of 3"),
        ([], "without 2/2: play the missing ones by the same command with --shard"),
        (["--shard", "3/2"], "must be between 1/2 and 2/2"),
        (["--shard", "0/2"], "must be between 1/2 and 2/2"),
        (["--shard", "half"], "--shard must be K/N, such as 2/4, got 'half'"),
        (["--shard", "2/2", "--seed", "7"], "was played with other settings (seed: 0 != 7)"),
    ],
)
def test_wrong_and_overlapping_parts_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    words = [*WORDS[:2], "-n", "4", "--policy", "oracle", "--out", str(tmp_path / "run")]
    assert main([*words, "--shard", "1/2"]) == 0
    capsys.readouterr()
    assert main([*words, *options]) == 2
    assert problem in capsys.readouterr().err
    assert main(["report", str(tmp_path / "run")]) == 2
    assert "holds shards of a run, without 2/2" in capsys.readouterr().err
    assert find_shards(tmp_path / "run")[0] == Shard(1, 2)


def test_parts_need_a_folder_a_run_without_parts_and_questions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS[:2], "-n", "2", "--policy", "oracle"]
    assert main([*words, "--shard", "1/2"]) == 2
    assert "needs --out" in capsys.readouterr().err
    for part in ("3/3", "1/3"):  # the first too: the run could never be put together
        assert main([*words, "--out", str(tmp_path / "few"), "--shard", part]) == 2
        assert "fewer questions than shards. Use at most 2 shards" in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "whole")]) == 0
    assert main([*words, "--out", str(tmp_path / "whole"), "--shard", "1/2"]) == 2
    assert "holds a run without shards" in capsys.readouterr().err
    with pytest.raises(ConfigurationError):
        Shard.read("1/2/3")
