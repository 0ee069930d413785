"""Folders of other people: what their files name runs no code, and opens no place without a confirmation.

Every command of `agent-r1` that takes a folder is tried with every way of naming code, from outside the folder and from
inside it; the module in the folder leaves a mark if it is ever imported.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

pytest.importorskip("torch", reason="the train extra is not installed")

from agent_r1_gym.cli.main import _COMMANDS
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.evaluation.agent_card import AgentCard
from agent_r1_gym.run.mixture import EnvConfig
from agent_r1_gym.run.trust import Trust, remember
from tests.kit.commands import call

WEIGHTS = Path(__file__).parents[2] / "trainers" / "toy" / "weights"
MODULE = """
import pathlib
import agent_r1_gym
pathlib.Path({mark!r}).write_text("imported")
agent_r1_gym.register("Visitor/Ferry-v0", "agent_r1_gym.envs.maths.env:GSM8KEnv")
def one(transition): return 1.0
"""
CARD: dict[str, Any] = {"env_id": "GSM8K", "env_options": {}}
HOSTILE: dict[str, dict[str, Any]] = {
    "environment": {"env_id": "{module}:Visitor/Ferry-v0"},
    "environment of a mixture": {
        "mixture": [
            {"env_id": "{module}:Visitor/Ferry-v0", "name": "a"},
            {"env_id": "FrozenLakeText", "name": "b"},
        ],
        "env_id": "{module}:Visitor/Ferry-v0",
    },
    "parser": {"env_options": {"parser": "{module}:Parser"}},
    "reward in a list": {"env_options": {"reward": ["em", "{module}:one"]}},
    "any option, nested": {"env_options": {"judge": {"by": [{"function": "{module}:one"}]}}},
    "an id in an option": {"env_options": {"judge": "{module}:Visitor/Ferry-v0"}},
    "a function of Python": {"env_options": {"reward": "os:popen"}},
    "id and option in one text": {
        "env_id": "{module}:AgentR1/GSM8K-v0",
        "env_options": {"parser": "{module}:AgentR1/GSM8K-v0"},
    },
}
READERS = {
    "eval": ["{folder}", "-n", "1", "--out", "out"],
    "eval --policy": ["GSM8K", "--policy", "local:{folder}", "-n", "1", "--max-turn-tokens", "2", "--out", "out"],
    "serve agent": ["{folder}", "--port", "0"],
    "chat": ["{folder}"],
    "chat --policy": ["--policy", "local:{folder}"],
    "probe": ["{folder}", "-n", "1"],
    "rescore": ["{folder}", "--reward", "f1"],
}
"""Commands that make what a folder names; each has to refuse."""
HARMLESS = {
    "export": ["{folder}", "--out", "out"],
    "report": ["{folder}", "--out", "out.html"],
    "compare": ["{folder}", "{folder}", "--out", "out.html"],
}
"""Commands that read a folder and make nothing of what it names."""
ELSEWHERE = {
    **dict.fromkeys(("train", "sft"), "tests/trainers/commands/test_cards.py"),
    "doctor": "tests/trainers/commands/test_doctor.py",
}
NO_FOLDER = ("quickstart", "new", "envs", "play", "data", "audit")


def test_every_command_is_covered() -> None:
    named = {words.split()[0] for words in (*READERS, *HARMLESS)}
    assert named | set(ELSEWHERE) | set(NO_FOLDER) == set(_COMMANDS)


@pytest.fixture(autouse=True)
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that the visitor's module writes; afterwards the module is forgotten."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before, path = set(sys.modules), list(sys.path)
    yield tmp_path / "MARK"
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("visitor", "ferry_env"):
            del sys.modules[name]
    gymnasium.registry.pop("Visitor/Ferry-v0", None)
    sys.path[:] = path


def folder_of(place: Path, mark: Path, module: str, fields: dict[str, Any]) -> Path:
    """Write a folder that is a model and an evaluation run at once."""
    folder = place / "visitor"
    shutil.copytree(WEIGHTS, folder)
    (folder / "ferry_env.py").write_text(MODULE.format(mark=str(mark)))
    card = json.loads(json.dumps({**CARD, **fields}).replace("{module}", module))
    AgentCard(parser="hermes", **card).save(folder)
    settings = {
        **{"env_id": card["env_id"], "env_options": card["env_options"], "policy": "oracle", "dataset": "d"},
        **{"samples": 1, "questions": 1, "seed": 0, "question_hash": "h"},
    }
    (folder / "run.json").write_text(json.dumps({"format": 3, "settings": settings, "invocations": []}))
    (folder / "metrics.json").write_text(json.dumps({"overall": {"metrics": {}, "reward_terms": {}}, "by": {}}))
    (folder / "episodes.jsonl").touch()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("kind", HOSTILE)
def test_code_that_a_folder_names_is_refused_and_not_imported(
    kind: str,
    inside: bool,
    tmp_path: Path,
    mark: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = folder_of(tmp_path, mark, "ferry_env" if inside else "visitor.ferry_env", HOSTILE[kind])
    monkeypatch.chdir(folder if inside else tmp_path)
    for name in ["."] if inside else ["visitor", "./visitor"] if kind == "environment" else ["visitor"]:
        for command, words in READERS.items():
            if command.startswith("rescore") and kind == "environment of a mixture":
                continue  # a run has one environment
            status, out, err = call(
                capsys, *command.split(" --")[0].split(), *[word.format(folder=name) for word in words]
            )
            assert not mark.exists(), f"{command} {name} imported the module"
            if command == "eval --policy" and "Visitor" in HOSTILE[kind].get("env_id", ""):
                continue  # the command line names another environment, and the card's is not used
            assert status == 2, f"{command} {name}: {out}{err}"
            assert "files run no code" in err and "--import" in err and len(err.splitlines()) == 1, (command, err)
        for command, words in HARMLESS.items():
            call(capsys, command, *[word.format(folder=name) for word in words])
            assert not mark.exists(), command


def test_a_named_module_may_be_used(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of(
        tmp_path, mark, "visitor.ferry_env", {"env_options": {"dataset": "sample", "reward": "visitor.ferry_env:one"}}
    )
    monkeypatch.chdir(tmp_path)
    words = ("visitor", "--policy", "oracle", "-n", "1")
    status, _, err = call(capsys, "eval", *words, "--import", "visitor.ferry_env", "--out", "one")
    assert status == 0 and mark.exists(), err
    # The run is this user's own: its environment needs no confirmation.
    status, _, err = call(capsys, "rescore", "one", "--reward", "f1", "--out", "two")
    assert status == 0, err


def test_an_environment_named_on_the_command_line_vouches_for_its_module(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"dataset": "sample", "max_turns": 3}
    folder_of(tmp_path, mark, "visitor.ferry_env", {**HOSTILE["environment"], "env_options": options})
    monkeypatch.chdir(tmp_path)
    words = ("--env", "visitor.ferry_env:Visitor/Ferry-v0", "--policy", "oracle", "-n", "1", "--out", "one")
    status, _, err = call(capsys, "eval", "visitor", *words)
    assert status == 0 and mark.exists(), err
    settings = json.loads(Path("one/run.json").read_text())["settings"]
    assert settings["env_options"]["max_turns"] == 3


PLACES: dict[str, dict[str, Any]] = {
    "HotpotQA": {"retriever": "http://127.0.0.1:9"},
    "Text2SQL": {"database": "/etc/hostname"},
    "MuSiQue": {"dataset": "hub:someone/data"},
    "SearchQA": {"corpus": "../elsewhere.jsonl"},
    "ServiceDesk": {"customer_url": "http://127.0.0.1:9/v1"},
    "Tau2Retail": {"user": "openai:tiny"},
    "Tau2Airline": {"user_url": "http://127.0.0.1:9/v1"},
    "GSM8K": {"isolation": "weak"},
    "LongRead": {"budgets": {"~/index": 1}},
}
"""By environment, an option that reaches outside of the folder."""


@pytest.mark.parametrize("env", PLACES)
def test_places_that_a_folder_names_need_a_confirmation(
    env: str, tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of(tmp_path, mark, "", {"env_id": env, "env_options": PLACES[env]})
    monkeypatch.chdir(tmp_path)
    for command, words in READERS.items():
        if command == "eval --policy":
            words = [env, *words[1:]]
        status, _, err = call(
            capsys, *command.split(" --")[0].split(), *[word.format(folder="visitor") for word in words]
        )
        assert status == 2 and "--trust-card" in err and len(err.splitlines()) == 1, (command, err)
        assert next(iter(PLACES[env])) in err


def test_a_judge_in_the_folder_needs_a_confirmation_too(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file names the endpoint that episodes are sent to."""
    folder = folder_of(tmp_path, mark, "", {"env_options": {"reward": ["em", "visitor/judge.toml"]}})
    (folder / "judge.toml").write_text('rubric = "r"\nmodel = "m"\nendpoint = "http://127.0.0.1:1/v1"\n')
    monkeypatch.chdir(tmp_path)
    status, _, err = call(capsys, "eval", "visitor", "--policy", "oracle", "-n", "1", "--out", "one")
    assert status == 2 and "judge.toml" in err and "--trust-card" in err


def test_a_terminal_confirms_once(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "tasks.jsonl"
    data.write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    folder_of(tmp_path, mark, "", {"env_options": {"dataset": str(data), "split": "test"}})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agent_r1_gym.run.trust.is_terminal", lambda: True)
    answers = iter(["n", "y"])
    monkeypatch.setattr("builtins.input", lambda _prompt: next(answers))
    words = ("eval", "visitor", "--policy", "oracle", "-n", "1")
    assert call(capsys, *words, "--out", "one")[0] == 2
    status, out, err = call(capsys, *words, "--out", "two")
    assert status == 0 and str(data) in out, err
    assert call(capsys, *words, "--out", "three")[0] == 0  # remembered


def test_a_confirmed_place_vouches_for_no_module(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "tasks.jsonl"
    data.write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    fields = {"env_id": "{module}:AgentR1/GSM8K-v0", "env_options": {"dataset": str(data), "split": "test"}}
    folder_of(tmp_path, mark, "visitor.ferry_env", fields)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("agent_r1_gym.run.trust.is_terminal", lambda: True)
    monkeypatch.setattr("builtins.input", lambda _prompt: "y")
    for out in ("one", "two"):
        status, _, err = call(capsys, "eval", "visitor", "--policy", "oracle", "-n", "1", "--out", out)
        assert status == 0 and not mark.exists(), err


def test_what_the_command_line_sets_or_accepts_needs_no_question(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of(tmp_path, mark, "", {"env_options": {"dataset": "/nowhere/tasks.jsonl", "max_turns": 3}})
    monkeypatch.chdir(tmp_path)
    words = ("eval", "visitor", "--policy", "oracle", "-n", "1")
    status, _, err = call(capsys, *words, "--dataset", "sample", "--out", "one")
    assert status == 0, err
    status, _, err = call(capsys, *words, "--trust-card", "--out", "two")
    assert status == 2 and "/nowhere/tasks.jsonl" in err and "--trust-card" not in err  # it was opened


def test_files_in_the_folder_and_built_in_names_need_nothing(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, mark, "", {"env_options": {"dataset": "visitor/tasks.jsonl", "tools": "calculator"}})
    (folder / "tasks.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    monkeypatch.chdir(tmp_path)
    status, _, err = call(capsys, "eval", "visitor", "--policy", "oracle", "-n", "1", "--out", "one")
    assert status == 0, err
    (folder / "tasks.jsonl").rename(tmp_path / "moved.jsonl")
    (folder / "tasks.jsonl").symlink_to(tmp_path / "moved.jsonl")  # leads out of the folder
    status, _, err = call(capsys, "eval", "visitor", "--policy", "oracle", "-n", "1", "--out", "two")
    assert status == 2 and "moved.jsonl" in err


def test_a_record_holds_for_the_same_folder_and_the_same_module_file(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"env_id": "{module}:Visitor/Ferry-v0", "env_options": {"dataset": "sample"}}
    folder = folder_of(tmp_path, mark, "ferry_env", fields)
    mine = tmp_path / "mine"
    mine.mkdir()
    (folder / "ferry_env.py").rename(mine / "ferry_env.py")
    monkeypatch.chdir(mine)
    card = AgentCard.load(folder)
    assert card is not None
    remember(folder, card.environments)  # as training in `mine` does
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "ferry_env.py").write_text(MODULE.format(mark=str(mark)))
    shutil.copytree(folder, theirs / "copy")
    words = ("--policy", "oracle", "-n", "1", "--out")
    monkeypatch.chdir(theirs)
    assert call(capsys, "eval", str(folder), *words, "one")[0] == 2  # another file of that name
    monkeypatch.chdir(mine)
    assert call(capsys, "eval", "../theirs/copy", *words, "two")[0] == 2  # another folder
    assert not mark.exists()
    status, _, err = call(capsys, "eval", str(folder), *words, "three")
    assert status == 0 and mark.exists(), err


def test_a_configuration_file_runs_no_code(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of(tmp_path, mark, "", {})
    monkeypatch.chdir(tmp_path)
    Path("mixture.yaml").write_text(
        "envs:\n- env_id: FrozenLakeText\n- visitor.ferry_env:Visitor/Ferry-v0 dataset=sample\n"
    )
    words = ("eval", "--config", "mixture.yaml", "--policy", "oracle", "-n", "1", "--out", "out")
    status, _, err = call(capsys, *words)
    assert status == 2 and "mixture.yaml names 'visitor.ferry_env:Visitor/Ferry-v0'" in err and not mark.exists()
    status, _, err = call(capsys, *words, "--import", "visitor.ferry_env")
    assert status == 0 and mark.exists(), err


def test_a_failing_import_is_one_line(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, "eval", "GSM8K", "--policy", "oracle", "--import", "no_such_module")
    assert status == 2 and "--import no_such_module: the module" in err and len(err.splitlines()) == 1


def test_a_mixture_leads_to_no_folder_outside(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mixture").mkdir()
    for name in ("../elsewhere", "/etc", ""):
        environments = [{"env_id": "GSM8K", "name": name}]
        Path("mixture/mixture.json").write_text(json.dumps({"environments": environments}))
        status, _, err = call(capsys, "report", "mixture", "--out", "page.html")
        assert status == 2 and ("does not name the environments" in err or name == ""), err


def test_text_that_only_looks_like_code_is_remembered(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"tags": ["a:b"], "game": "game:Minesweeper-v0", "system_prompt": "os:popen", "time": "12:30"}
    own = EnvConfig(env_id="Visitor/Unregistered-v0", options=options)
    remember(run_folder, [own])
    assert Trust().vet(run_folder / "agent.json", [own]) == (own,)
    Path("a.py").touch()  # now there is code of that name
    with pytest.raises(ConfigurationError, match="'tags=a:b', code of the module 'a'"):
        Trust().vet(run_folder / "agent.json", [own])


@pytest.mark.parametrize("env", [{"env_id": "FictionQA"}, {"env_id": "AgentR1/FictionQA-v0"}])
def test_built_in_environments_need_no_record(env: dict[str, Any], run_folder: Path) -> None:
    own = EnvConfig(**env, options={"style": "compact", "mix": {"bridge": 1.0}, "reward": ["em", "f1"]})
    assert Trust().vet(run_folder / "agent.json", [own]) == (own,)
    remember(run_folder, [own])
    assert not list(Path(os.environ["XDG_STATE_HOME"]).rglob("*.json"))


@pytest.mark.parametrize("env_id", ["GSM8K dataset=/etc/hostname", "GSM8K isolation=weak dataset=visitor/tasks.jsonl"])
def test_an_id_hides_no_options(
    env_id: str, tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    either: list[dict[str, Any]] = [{"env_id": env_id}, {"mixture": [{"env_id": env_id, "name": "a"}]}]
    for fields in either:
        shutil.rmtree(tmp_path / "visitor", ignore_errors=True)
        file = folder_of(tmp_path, mark, "", {}) / "agent.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))
        monkeypatch.chdir(tmp_path)
        for command in (
            ["eval", "visitor", "--policy", "oracle", "-n", "1", "--out", "out"],
            ["sft", "--model", "visitor", "--output_dir", "out"],
            ["train", "--warm_start", "visitor", "--output_dir", "out"],
        ):
            status, _, err = call(capsys, *command)
            assert status == 2 and "env_id must be one word" in err, (command, err)


def give_code(folder: Path, mark: Path, kind: str) -> None:
    """Give a model code of its own, named by its configuration, its tokenizer or both."""
    (folder / "own.py").write_text(
        f"import pathlib\nfrom transformers import LlamaForCausalLM, PretrainedConfig, PreTrainedTokenizerFast\n"
        f"pathlib.Path({str(mark)!r}).write_text('imported')\n"
        "class C(PretrainedConfig):\n    model_type = 'own'\n"
        "class M(LlamaForCausalLM): pass\nclass T(PreTrainedTokenizerFast): pass\n"
    )
    changes: dict[str, dict[str, Any]] = {
        "config.json": {"model_type": "own", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}},
        "tokenizer_config.json": {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.T", "own.T"]}},
    }
    for name in [kind] if kind in changes else list(changes):
        file = folder / name
        file.write_text(json.dumps(json.loads(file.read_text()) | changes[name]))


@pytest.mark.parametrize("kind", ["config.json", "tokenizer_config.json", "both"])
@pytest.mark.slow
def test_code_of_a_model_is_not_run_whatever_stands_on_the_standard_input(
    kind: str, tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, mark, "", {"env_options": {"dataset": "sample"}})
    give_code(folder, mark, kind)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("builtins.input", lambda *_: "y" if not mark.exists() else pytest.fail("asked again"))
    for command in (
        ["eval", "visitor", "-n", "1", "--max-turn-tokens", "2", "--max-length", "900", "--out", "out"],
        ["doctor", "--model", "visitor"],
    ):
        status, _, err = call(capsys, *command)
        assert not mark.exists(), command
        if kind != "tokenizer_config.json":  # a tokenizer.json needs no code
            assert status == 2 and "--trust-remote-code" in err, err


@pytest.mark.slow
def test_every_load_decides_on_the_code_of_the_model() -> None:
    root = Path(__file__).parents[2]
    undecided = []
    for file in [*(root / "agent_r1_gym").rglob("*.py"), *(root / "trainers").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            loads = node.func.attr == "from_pretrained" and "Auto" in ast.unparse(node.func.value)
            if loads and not any(word.arg in (None, "trust_remote_code") for word in node.keywords):
                undecided.append(f"{file.relative_to(root)}:{node.lineno}")
    assert undecided == []


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json", "vocab.txt"])
def test_export_hands_on_no_file_of_elsewhere(
    name: str, tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(tmp_path, mark, "", {})
    (tmp_path / "secret").write_text("{}")
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(tmp_path / "secret")
    monkeypatch.chdir(tmp_path)
    status, _, err = call(capsys, "export", "visitor", "--out", "out")
    assert status == 2 and f"visitor/{name} is a link to" in err and not Path("out").exists()


def test_export_follows_the_links_of_the_hubs_cache(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = tmp_path / "models--a--b" / "snapshots" / "0123"
    snapshot.parent.mkdir(parents=True)
    folder_of(tmp_path, mark, "", {}).rename(snapshot)
    blob = snapshot.parents[1] / "blobs" / "abc"
    blob.parent.mkdir()
    (snapshot / "config.json").rename(blob)
    (snapshot / "config.json").symlink_to("../../blobs/abc")
    status, _, err = call(capsys, "export", str(snapshot), "--out", str(tmp_path / "out"))
    assert status == 0 and (tmp_path / "out" / "config.json").read_bytes() == blob.read_bytes(), err


def test_a_resumed_run_writes_through_no_link(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("eval", "GSM8K", "--policy", "oracle", "--dataset", "sample", "-n", "1", "--out", "run")
    assert call(capsys, *words)[0] == 0
    other = Path("other")
    for name in ("episodes.jsonl", "timings.jsonl"):
        other.write_text("no line end")
        kept = Path("run", name).read_bytes()
        Path("run", name).unlink()
        Path("run", name).symlink_to(other.resolve())
        status, _, err = call(capsys, *words)
        assert status == 2 and f"run/{name} is a link to" in err and other.read_text() == "no line end"
        Path("run", name).unlink()
        Path("run", name).write_bytes(kept)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("run.json", {"env_options": [1]}, "env_options of its settings is not a JSON object"),
        ("run.json", {"model": "x"}, "model of its settings is not a JSON object"),
        ("run.json", {"seed": 10**4000}, "its settings have no seed"),
        ("episodes.jsonl", {"scores": {"em": 10**4000}}, "em of an episode has too many digits"),
    ],
)
def test_a_run_of_someone_else_is_refused_in_one_line(
    file: str, changes: dict[str, Any], message: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, "eval", "GSM8K", "--policy", "oracle", "--dataset", "sample", "-n", "1", "--out", "run")[0] == 0
    path = Path("run", file)
    row = json.loads(path.read_text())
    (row["settings"] if file == "run.json" else row).update(changes)
    path.write_text(json.dumps(row) + "\n")
    for command in (["report", "run", "--out", "page.html"], ["compare", "run", "run"]):
        status, _, err = call(capsys, *command)
        assert status == 2 and message in err and len(err.splitlines()) == 1, err


def test_text_of_a_run_does_not_steer_the_terminal(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "eval", "GSM8K", "--policy", "oracle", "--dataset", "sample", "-n", "1", "--out", "run")[0] == 0
    path = Path("run", "run.json")
    run = json.loads(path.read_text())
    run["settings"]["policy"] += "\x1b]0;title\x07\x1b[2J"
    path.write_text(json.dumps(run))
    status, out, err = call(capsys, "compare", "run", "run")
    assert status == 0 and "oracle" in out and "\x1b" not in out + err


@pytest.mark.slow
def test_a_world_that_takes_long_says_so(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.3)
        return make_text_env(*arguments, **options)

    monkeypatch.setattr("agent_r1_gym.support.terminal.HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr("agent_r1_gym.run.player.make_text_env", slow)
    status, _, err = call(capsys, "eval", "Arithmetic", "--policy", "oracle", "-n", "1", "--out", "out")
    assert status == 0 and "making Arithmetic ... " in err, err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("envs: " + "[" * 3000, "nested too deeply"),
        ("a: &a [*a]\nenvs: [GSM8K]\n", "anchors expand"),
        (
            "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
            + "envs: [{env_id: GSM8K, env_kwargs: {x: *a8}}]\n",
            "anchors expand to more than",
        ),
    ],
)
@pytest.mark.slow
def test_a_configuration_that_expands_without_end_is_refused(
    text: str, message: str, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mixture.yaml").write_text(text)
    for words in (("eval", "--policy", "oracle"), ("train", "--output_dir", "out")):
        status, _, err = call(capsys, *words, "--config", "mixture.yaml")
        assert status == 2 and message in err, err


@pytest.mark.parametrize("questions", [10**18, 10**30])
def test_the_number_of_generated_questions_costs_nothing(
    questions: int, tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of(tmp_path, mark, "", {"env_id": "Arithmetic", "env_options": {"questions": questions}})
    monkeypatch.chdir(tmp_path)
    status, _, err = call(capsys, "eval", "visitor", "--policy", "oracle", "-n", "1", "--out", "out")
    assert status == 0 or (status == 2 and "longer than Python can count" in err), err
