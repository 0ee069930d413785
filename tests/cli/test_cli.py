"""The command line: every command, its output, its exit status, bad input, interruption."""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest

from agent_r1_gym.cli.main import _COMMANDS, build_parser, main
from agent_r1_gym.cli.train import TRAINER_COMMANDS
from agent_r1_gym.evaluation.run_folder import RunFolder
from agent_r1_gym.registry import registered_id
from agent_r1_gym.retrieval.corpus import write_corpus
from agent_r1_gym.types import Passage
from tests.kit.reading import chunks

_PASSAGES = [Passage("1", "Oslo", "Oslo is the capital of Norway."), Passage("2", "Rome", "Rome lies in Italy.")]


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


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_help_describes_every_command_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["--help"])
    assert leaving.value.code == 0
    text = capsys.readouterr().out
    assert all(command in text for command in _COMMANDS)
    for command in set(_COMMANDS) - set(TRAINER_COMMANDS):  # these have parsers of their own
        with pytest.raises(SystemExit):
            build_parser(command).parse_args([command, "--help"])
        assert "show this help message" in capsys.readouterr().out


def test_envs_lists_ids_and_shows_specifications(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "envs")
    assert status == 0
    assert "AgentR1/HotpotQA-v0" in out
    assert "AgentR1/FictionQA-v0" in out
    status, out, _ = call(capsys, "envs", "musique")
    assert status == 0
    assert "## Episode End" in out


def test_every_command_takes_an_environment_of_ones_own(
    own_env: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = call(capsys, "envs", own_env)
    assert (status, out) == (0, "Questions about doubles.\n")
    status, out, _ = call(capsys, "rollout", own_env)
    assert status == 0 and "3/3" in out and "runs/rollout-Double-v0-oracle" in out
    status, out, _ = call(
        capsys, "eval", own_env, "--policy", "oracle", "--processes", "2"
    )  # new processes import anew
    assert status == 0 and "answer: 3" in out and "runs/eval-Double-v0-oracle" in out
    monkeypatch.setattr(sys, "stdin", io.StringIO("21\n= 4\n"))
    status, out, _ = call(capsys, "play", own_env, "--task", "2")
    assert status == 0 and "return 1.000" in out


def test_the_console_script_finds_a_module_in_the_current_folder(own_env: str, run_folder: Path) -> None:
    console = (  # as pip writes it: the folder of the script stands on sys.path, the current one does not
        "import sys\n"
        "sys.path[:] = [entry for entry in sys.path if entry]\n"
        "from agent_r1_gym.cli.main import main\n"
        f"sys.exit(main(['rollout', {own_env!r}, '-n', '2']))\n"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", console], cwd=run_folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "2/2" in done.stdout


def test_what_lies_beside_the_module_takes_no_packages_place(own_env: str, run_folder: Path) -> None:
    """Imports that come later, as bm25s' does with the first search, find what is installed."""
    (run_folder / "bm25s.py").write_text("raise SystemExit('the wrong bm25s')")
    (run_folder / "beside_my_env.py").write_text("HERE = True")
    assert registered_id(own_env) == "Mine/Double-v0"
    assert sys.path[0] != str(run_folder)
    spec = importlib.util.find_spec("bm25s")
    assert spec is not None and spec.origin is not None and not spec.origin.startswith(str(run_folder))
    assert importlib.import_module("beside_my_env").HERE  # the module's own neighbours are still found
    del sys.modules["beside_my_env"]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rollout", "my_env:Mine/Duble-v0"], "Did you mean 'Mine/Double-v0'?"),
        (["rollout", "Mine/Double-v0"], "one of your own is MODULE:Mine/Double-v0"),
        (["eval", "no_such_env:Mine/Double-v0", "--policy", "oracle"], "'no_such_env' cannot be imported"),
        (["play", "broken:Mine/Double-v0"], "'broken' cannot be imported: ZeroDivisionError"),
        (["envs", "json:Mine/Double-v0"], "It registers none."),
        (["rollout", "my_env:Mine/Double-v0", "--policy", "naive"], "naive needs an environment with a tool named"),
        (["eval", "my_env:Mine/Double-v0", "--policy", "naive"], "naive needs an environment with a tool named"),
        (["rollout", "my_env:Mine/Double-v0", "--split", "test"], "DoubleEnv has no option 'split'"),
        (["rollout", "my_env:Mine/Double-v0", "--option", "tools=[]"], "do not fit my_env:Mine/Double-v0"),
        (["serve-retriever", "--env", "my_env:Mine/Double-v0"], "has no corpus to serve"),
    ],
)
def test_what_an_environment_of_ones_own_cannot_do_is_said(
    words: list[str], hint: str, own_env: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "broken.py").write_text("1 / 0")
    status, _, err = call(capsys, *words)
    assert status == 2
    assert hint in err
    assert err.count("\n") == 1


def test_rollouts_that_lost_their_backend_are_no_zeros(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    status, out, err = call(
        capsys, "rollout", "FictionQA", "--retriever", "http://127.0.0.1:1", "-n", "2", "--out", "run"
    )
    assert status == 1
    row = next(line for line in out.splitlines() if line.startswith("oracle")).split()
    assert row == ["oracle", "0", "0/0", "-", "-", "-", "-", "-", "-", "2"]
    assert "WARNING: 2 episodes lost their backend and are NOT in the scores (2 x search: unavailable; run/" in err


_GUESS = """
import gymnasium
from agent_r1_gym.play.policies import Policy

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
    status, out, _ = call(capsys, "rollout", "yes_or_no:Mine/Yes-v0", "--policy", "yes_or_no:Yes", "-n", "2")
    assert status == 0
    row = next(line for line in out.splitlines() if line.startswith("yes")).split()
    assert row[1:6] == ["2", "-", "-", "-", "1.000"]
    del sys.modules["yes_or_no"], gymnasium.registry["Mine/Yes-v0"]


def test_rollout_writes_traces_that_replay_to_the_same_scores(
    capsys: pytest.CaptureFixture[str], run_folder: Path
) -> None:
    status, out, _ = call(capsys, "rollout", "FictionQA", "-n", "12", "--policy", "oracle", "--out", "first")
    assert status == 0
    assert "12/12" in out
    records = RunFolder(run_folder / "first").episodes()
    assert [record.task_index for record in records] == list(range(12))
    assert len(chunks((run_folder / "first/report.html").read_text())["index"]["titles"]) == 12
    status, out, _ = call(capsys, "rollout", "FictionQA", "--policy", "replay:first", "--out", "second")
    assert status == 0
    assert "12/12" in out
    again = RunFolder(run_folder / "second").episodes()
    assert [record.messages for record in again] == [record.messages for record in records]


def test_rollout_never_overwrites(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    (run_folder / "kept").mkdir()
    (run_folder / "kept/trace.jsonl").write_text("precious")
    status, _, err = call(capsys, "rollout", "FictionQA", "-n", "1", "--out", "kept")
    assert status == 2
    assert "kept" in err
    assert (run_folder / "kept/trace.jsonl").read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["rollout", "FictionQ"], "fictionqa"),
        (["rollout", "FictionQA", "--policy", "orakle"], "oracle"),
        (["rollout", "FictionQA", "-n", "0"], "between 1 and"),
        (["rollout", "FictionQA", "-n", "99999"], "between 1 and"),
        (["rollout", "FictionQA", "--option", "max_trns=3"], "max_turns"),
        (["rollout", "FictionQA", "--option", "nonsense"], "NAME=VALUE"),
        (["rollout", "FictionQA", "--option", "mix=foo"], "mix must map question types to weights, got 'foo'"),
        (["rollout", "FictionQA", "--option", "mix=[1]"], "mix must map question types to weights, got [1]"),
        (["rollout", "FictionQA", "--option", "tools=[]"], "FictionQAEnv sets 'tools' itself; drop it."),
        (["rollout", "HotpotQA", "--dataset", "sample", "--option", "tasks=[]"], "sets 'tasks' itself; drop it."),
        (["rollout", "FictionQA", "--option", "entities=[1]"], "do not fit AgentR1/FictionQA-v0: unhashable"),
        (["rollout", "CartPole-v1", "--split", "test"], "do not fit CartPole-v1"),
        (["rollout", "FictionQA", "--in-flight", "0"], "in-flight"),
        (["rollout", "FictionQA", "--policy", "replay:absent.jsonl"], "absent.jsonl"),
        (["rollout", "HotpotQA", "--dataset", "no/such/file.json"], "file.json"),
        (["rollout", "CartPole-v1"], "observes Box, not text"),
        (["envs", "Nope"], "Known"),
        (["index", "absent.jsonl"], "absent.jsonl"),
        (["serve-retriever"], "--corpus"),
        (["serve-retriever", "--dataset", "sample"], "--env"),
        (["prepare", "hotpot"], "hotpotqa"),
    ],
)
def test_wrong_input_ends_with_status_2_and_a_hint(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str], run_folder: Path
) -> None:
    status, _, err = call(capsys, *words)
    assert status == 2
    assert hint in err
    assert "Traceback" not in err


def test_a_malformed_trace_names_file_and_line(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    (run_folder / "bad.jsonl").write_text(
        '{"task_id": "a", "task_index": 0, "turns": [{"action": "x", "reward": 0.0}]}\n{"task_id": 5}\n'
    )
    status, _, err = call(capsys, "rollout", "FictionQA", "--policy", "replay:bad.jsonl")
    assert status == 2
    assert "bad.jsonl, line 2" in err


def test_play_answers_to_a_person(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, run_folder: Path
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("where is it\nshow\nraw nonsense\n= wrong\n"))
    status, out, _ = call(capsys, "play", "FictionQA", "--task", "0")
    assert status == 0
    assert "[tool: search]" in out
    assert "no_action" in out
    assert "The episode ended (answer)" in out


def test_play_leaves_at_the_end_of_the_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert call(capsys, "play", "FictionQA", "--seed", "1")[0] == 0


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
    status, out, err = call(capsys, "prepare", "hotpotqa", "--source", "hotpot_train_v1.1.json")
    assert status == 0, err
    assert "prepared" in out
    status, out, _ = call(capsys, "rollout", "HotpotQA", "--out", "real")
    assert status == 0
    assert "1/1" in out
    assert "FICTIONAL" not in out


def test_index_builds_for_a_corpus_file(capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    write_corpus(_PASSAGES, run_folder / "corpus.jsonl")
    status, out, _ = call(capsys, "index", "corpus.jsonl")
    assert status == 0
    assert "indexed 2 passages" in out
    assert "serve-retriever" in out


@pytest.mark.parametrize(
    "words",
    [
        ["index", "empty.jsonl"],
        ["index", "empty.jsonl", "--retriever", "lucene", "--out", "built"],
        ["serve-retriever", "--corpus", "empty.jsonl", "--port", "0"],
    ],
)
def test_an_empty_corpus_is_refused(words: list[str], capsys: pytest.CaptureFixture[str], run_folder: Path) -> None:
    (run_folder / "empty.jsonl").write_text("\n")
    status, _, err = call(capsys, *words)
    assert status == 2
    assert "empty.jsonl holds no passage" in err
    assert not (run_folder / "built").exists()


def _start(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "agent_r1_gym", *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip


def test_serve_retriever_speaks_both_formats_and_ends_on_ctrl_c(run_folder: Path) -> None:
    pytest.importorskip("fastapi", reason="the server extra is not installed")
    write_corpus(_PASSAGES, run_folder / "corpus.jsonl")
    server = _start(["serve-retriever", "--corpus", "corpus.jsonl", "--port", "0"], run_folder)
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


def test_ctrl_c_keeps_the_finished_episodes(run_folder: Path) -> None:
    slow = (
        "import time, sys, agent_r1_gym.play.policies as p\n"
        "act = p.OraclePolicy.act\n"
        "p.OraclePolicy.act = lambda self, inputs: (time.sleep(0.05), act(self, inputs))[1]\n"
        "from agent_r1_gym.cli.main import main\n"
        "sys.exit(main(['rollout', 'FictionQA', '-n', '100', '--in-flight', '1', '--out', 'run']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slow],
        cwd=run_folder,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore Ctrl-C
    )
    trace = run_folder / "run/episodes.jsonl"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (trace.exists() and trace.read_text().count("\n") >= 3):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert all(json.loads(line)["turns"] for line in trace.read_text().splitlines())


def test_trainer_commands_without_the_train_extra_say_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    for command in TRAINER_COMMANDS:
        status, _, err = call(capsys, command, "--help")
        assert status == 2
        assert 'pip install "agent-r1-gym[train]"' in err


LIMITED = """
import resource, signal, sys
from agent_r1_gym.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # a write beyond it fails as on a full disk
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["rollout", "eval"])
def test_a_full_disk_is_told_in_a_line_that_names_the_file(tmp_path, command):
    words = [command, "FictionQA", "--policy", "oracle", "--out", str(tmp_path / "run")]
    environment = os.environ | {"AGENT_R1_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LIMITED, *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert re.search(rf"^agent-r1: File too large: {tmp_path}/run", done.stderr, re.MULTILINE)


@pytest.mark.parametrize("command", ["rollout", "eval"])
def test_a_folder_that_cannot_be_written_is_told_in_a_line(tmp_path, capsys, command):
    (tmp_path / "file").write_text("")
    assert main([command, "FictionQA", "--policy", "oracle", "--out", str(tmp_path / "file" / "run")]) == 1
    assert re.search(rf"agent-r1: Not a directory: {tmp_path}/file.*\n$", capsys.readouterr().err)
