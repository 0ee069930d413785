"""The command line: every command, its output, its exit status, bad input, interruption."""

from __future__ import annotations

import importlib
import importlib.util
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from agent_r1_gym.cli.main import _COMMANDS, TRAINER_COMMANDS, build_parser, main
from agent_r1_gym.registry import registered_id
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.support.packages import install_command
from tests.kit.commands import call
from tests.kit.reports import chunks

_OWN = '''
from agent_r1_gym import Task, ToolEnv, register, tool


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: what to double
    """
    return 2 * number


class DoubleEnv(ToolEnv):
    """Questions about doubles."""

    def __init__(self, **options):
        tasks = [Task(str(n), f"What is twice {n}?", (str(2 * n),)) for n in range(3)]
        super().__init__(tasks=tasks, tools=[double], **options)


register("Mine/Double-v0", DoubleEnv)
'''


@pytest.fixture
def own_env(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The id of an environment whose module lies in the current folder, which is not on `sys.path`."""
    (run_folder / "my_env.py").write_text(_OWN)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(run_folder))])
    yield "my_env:Mine/Double-v0"
    sys.modules.pop("my_env", None)
    gymnasium.registry.pop("Mine/Double-v0", None)


def test_help_describes_every_command_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--help"])
    assert leaving.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in _COMMANDS)
    for command in set(_COMMANDS) - set(TRAINER_COMMANDS):  # these have parsers of their own
        with pytest.raises(SystemExit):
            build_parser(command).parse_args([command, "--help"])
        text = capsys.readouterr().out
        assert "show this help message" in text and not re.search(r"^ *--\w+_", text, re.M)


def test_envs_lists_ids_and_shows_specifications(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "envs")
    assert status == 0
    assert "AgentR1/HotpotQA-v0" in out
    assert "AgentR1/FictionQA-v0" in out
    status, out, _ = call(capsys, "envs", "musique")
    assert status == 0
    assert "## Episode End" in out


@pytest.mark.slow
def test_every_command_takes_an_environment_of_ones_own(
    own_env: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = call(capsys, "envs", own_env)
    assert (status, out) == (0, "Questions about doubles.\n\nFrom: the module my_env\n")
    status, out, _ = call(capsys, "eval", own_env, "--policy", "oracle")
    assert status == 0 and "answer: 3" in out and "runs/eval-Double-v0-oracle" in out
    words = ("--policy", "oracle", "--processes", "2", "--out", "two")  # new processes import anew
    status, out, _ = call(capsys, "eval", own_env, *words)
    assert status == 0 and "answer: 3" in out
    monkeypatch.setattr(sys, "stdin", io.StringIO("double 21\nanswer 4\n"))
    status, out, _ = call(capsys, "play", own_env, "--task", "2")
    assert status == 0 and "return 1.000" in out


def test_rewards_and_parsers_of_ones_own(own_env: str, capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    (run_folder / "my_rewards.py").write_text("def called(transition):\n    return float(bool(transition.outcomes))\n")
    words = ("--reward", "em", "--reward", "my_rewards:called", "--parser", "agent_r1_gym.core.parsing:HermesParser")
    status, _, err = call(capsys, "eval", own_env, "--policy", "oracle", *words, "--out", "run")
    assert status == 0, err
    (record, *_) = RunFolder(run_folder / "run").episodes()
    assert record.reward_terms == {"em": 1.0, "called": 0.0}
    assert call(capsys, "eval", own_env, "--policy", "oracle", "--reward", "my_rewards:call", "--out", "other")[0] == 2


def test_the_console_script_finds_a_module_in_the_current_folder(own_env: str, run_folder: Path) -> None:
    console = (  # as pip writes it: the folder of the script stands on sys.path, the current one does not
        "import sys\n"
        "sys.path[:] = [entry for entry in sys.path if entry]\n"
        "from agent_r1_gym.cli.main import main\n"
        f"sys.exit(main(['eval', {own_env!r}, '--policy', 'oracle', '-n', '2']))\n"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", console], cwd=run_folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "answer: 2" in done.stdout


def test_files_next_to_the_module_shadow_no_package(own_env: str, run_folder: Path) -> None:
    """Imports that come later, as bm25s' does with the first search, find what is installed."""
    (run_folder / "bm25s.py").write_text("raise SystemExit('the wrong bm25s')")
    (run_folder / "next_to_my_env.py").write_text("HERE = True")
    assert registered_id(own_env) == "Mine/Double-v0"
    assert sys.path[0] != str(run_folder)
    spec = importlib.util.find_spec("bm25s")
    assert spec is not None and spec.origin is not None and not spec.origin.startswith(str(run_folder))
    assert importlib.import_module("next_to_my_env").HERE  # the module's own neighbours are still found
    del sys.modules["next_to_my_env"]


def with_policy(words: list[str]) -> list[str]:
    """Adds the oracle to an `eval` that names no policy."""
    return [*words, "--policy", "oracle"] if words[0] == "eval" and "--policy" not in words else words


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["eval", "my_env:Mine/Duble-v0"], "Did you mean 'Mine/Double-v0'?"),
        (["eval", "Mine/Double-v0"], "write your own as MODULE:Mine/Double-v0"),
        (["eval", "no_such_env:Mine/Double-v0"], "'no_such_env' cannot be imported"),
        (["play", "broken:Mine/Double-v0"], "'broken' cannot be imported: ZeroDivisionError"),
        (["envs", "json:Mine/Double-v0"], "It registers none: it lacks agent_r1_gym.register('Mine/Double-v0', ...)."),
        (["eval", "my_env:Mine/Double-v0", "--policy", "naive"], "naive needs an environment with a tool named"),
        (["eval", "my_env:Mine/Double-v0", "--split", "test"], "no dataset is given"),
        (
            ["eval", "my_env:Mine/Double-v0", "--policy", "oracle", "--option", "tools=[]"],
            "do not fit my_env:Mine/Double-v0",
        ),
        (["serve", "retriever", "--env", "my_env:Mine/Double-v0"], "has no corpus to serve"),
    ],
)
def test_unsupported_uses_of_a_custom_environment_are_explained(
    words: list[str], hint: str, own_env: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "broken.py").write_text("1 / 0")
    status, _, err = call(capsys, *with_policy(words))
    assert status == 2
    assert hint in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_episodes_that_lost_their_backend_are_no_zeros(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    words = ("--policy", "oracle", "--retriever", "http://127.0.0.1:1", "-n", "2", "--out", "run")
    status, _, err = call(capsys, "eval", "FictionQA", *words)
    assert status == 1
    metrics = RunFolder(run_folder / "run").metrics()
    assert metrics["overall"]["episodes"] == 0 and metrics["excluded"]["episodes"] == 2
    assert "WARNING: 2 episodes lost their backend and are NOT in the scores (2 x search: unavailable; run/" in err


_GUESS = """
import gymnasium
from agent_r1_gym.run.policies import Policy

class Guess(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Text(9)

    def reset(self, *, seed=None, options=None):
        return "yes or no?", {}

    def step(self, action):
        return "", float(action == "yes"), True, False, {}

class Yes(Policy):
    name = "yes"

    def act(self, inputs):
        return ["yes" for _ in inputs]

gymnasium.register("Mine/Yes-v0", Guess)
"""


def test_right_answers_are_counted_only_where_a_scorer_looks(
    capsys: pytest.CaptureFixture[str], run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_folder / "yes_or_no.py").write_text(_GUESS)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(run_folder))])
    words = ("--policy", "yes_or_no:Yes", "-n", "2", "--out", "run")
    assert call(capsys, "eval", "yes_or_no:Mine/Yes-v0", *words)[0] == 0
    metrics = RunFolder(run_folder / "run").metrics()["overall"]["metrics"]
    assert metrics["return"]["mean"] == 1 and not {"em", "f1"} & set(metrics)
    del sys.modules["yes_or_no"], gymnasium.registry["Mine/Yes-v0"]


@pytest.mark.slow
def test_a_run_replays_to_the_same_episodes(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    assert call(capsys, "eval", "FictionQA", "-n", "12", "--policy", "oracle", "--out", "first")[0] == 0
    records = RunFolder(run_folder / "first").episodes()
    assert [record.task_index for record in records] == list(range(12)) and all(record.solved for record in records)
    assert call(capsys, "report", "first", "--out", "page.html")[0] == 0
    assert len(chunks((run_folder / "page.html").read_text())["index"]["titles"]) == 12
    assert call(capsys, "eval", "FictionQA", "--policy", "replay:first", "--out", "second")[0] == 0
    again = RunFolder(run_folder / "second").episodes()
    assert [record.messages for record in again] == [record.messages for record in records]


def test_eval_never_overwrites(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    (run_folder / "kept").mkdir()
    (run_folder / "kept/trace.jsonl").write_text("precious")
    status, _, err = call(capsys, "eval", "FictionQA", "--policy", "oracle", "-n", "1", "--out", "kept")
    assert status == 2
    assert "kept" in err
    assert (run_folder / "kept/trace.jsonl").read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["eval", "FictionQ"], "fictionqa"),
        (["eval", "FictionQA", "--policy", "orakle"], "oracle"),
        (["eval", "FictionQA", "-n", "0"], "between 1 and"),
        (["eval", "FictionQA", "-n", "99999"], "between 1 and"),
        (["eval", "FictionQA", "--option", "max_trns=3"], "max_turns"),
        (["eval", "FictionQA", "--option", "nonsense"], "NAME=VALUE"),
        (
            ["eval", "FictionQA", "--policy", "oracle", "--option", "mix=foo"],
            "mix must map question types to weights, got 'foo'",
        ),
        (
            ["eval", "FictionQA", "--policy", "oracle", "--option", "mix=[1]"],
            "mix must map question types to weights, got [1]",
        ),
        (
            ["eval", "FictionQA", "--policy", "oracle", "--option", "tools=[]"],
            "FictionQAEnv sets 'tools' itself; drop it.",
        ),
        (
            ["eval", "HotpotQA", "--policy", "oracle", "--dataset", "sample", "--option", "tasks=[]"],
            "sets 'tasks' itself; drop it.",
        ),
        (
            ["eval", "FictionQA", "--policy", "oracle", "--option", "entities=[1]"],
            "do not fit AgentR1/FictionQA-v0: unhashable",
        ),
        (["eval", "CartPole-v1", "--split", "test"], "do not fit CartPole-v1"),
        (["eval", "FictionQA", "--max-concurrent", "0"], "max-concurrent"),
        (["eval", "FictionQA", "--policy", "replay:absent.jsonl"], "absent.jsonl"),
        (["eval", "HotpotQA", "--dataset", "no/such/file.json"], "file.json"),
        (["eval", "CartPole-v1"], "observes Box, not text"),
        (["envs", "Nope"], "Known"),
        (["data", "index", "absent.jsonl"], "absent.jsonl"),
        (["serve", "retriever"], "--corpus"),
        (["serve", "retriever", "--dataset", "sample"], "--env"),
        (["data", "prepare", "hotpot"], "hotpotqa"),
    ],
)
def test_wrong_input_ends_with_status_2_and_a_hint(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str], run_folder: Path
) -> None:
    status, _, err = call(capsys, *with_policy(words))
    assert status == 2
    assert hint in err
    assert "Traceback" not in err


def test_a_malformed_trace_names_file_and_line(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    (run_folder / "bad.jsonl").write_text(
        '{"task_id": "a", "task_index": 0, "turns": [{"action": "x", "reward": 0.0}]}\n{"task_id": 5}\n'
    )
    status, _, err = call(capsys, "eval", "FictionQA", "--policy", "replay:bad.jsonl")
    assert status == 2
    assert "bad.jsonl, line 2" in err


def test_trainer_commands_without_the_train_extra_name_the_install_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    for command in TRAINER_COMMANDS:
        status, _, err = call(capsys, command, "--help")
        assert status == 2
        assert install_command("train") in err


def test_options_have_dashes_or_underscores(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    words = ("--policy", "oracle", "-n", "2", "--max_turns=3", "--max_concurrent", "1", "--out", "run_of_2")
    assert call(capsys, "eval", "FictionQA", *words)[0] == 0
    assert RunFolder(run_folder / "run_of_2").settings()["env_options"]["max_turns"] == 3


@pytest.mark.parametrize("command", ["report", "envs"])
def test_a_bug_is_not_taken_for_bad_input(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def bug(options: object) -> int:
        raise KeyError("a bug")

    monkeypatch.setattr(f"agent_r1_gym.cli.{command}.run", bug)
    with pytest.raises(KeyError, match="a bug"):
        main([command, *([str(tmp_path)] if command == "report" else [])])
