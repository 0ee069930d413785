"""`agent-r1 eval RUN_OR_MODEL`: the agent card sets environment, options and budgets; overrides are announced."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the train extra is not installed")

from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.evaluation.agent_card import AgentCard
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from tests.kit.commands import call

WEIGHTS = Path(__file__).parents[2] / "trainers" / "toy" / "weights"
WORLD = {"style": "compact", "entities": 800, "split": "train", "max_turns": 4}


@pytest.fixture
def agent(run_folder: Path) -> Path:
    """The 0.4M policy as a run that trained it leaves it."""
    shutil.copytree(WEIGHTS, run_folder / "grpo")
    save_card(run_folder / "grpo")
    return run_folder / "grpo"


def save_card(folder: Path, **fields: Any) -> None:
    AgentCard(**{"env_id": "FictionQA", "env_options": WORLD, "token_limits": {"max_turn_tokens": 40}, **fields}).save(
        folder
    )


@pytest.mark.slow
def test_it_plays_as_the_written_out_command_does(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, "eval", "grpo", "-n", "3", "--out", "short")
    assert status == 0, err
    assert "evaluating grpo as it was trained (agent.json): FictionQA style=compact" in err
    assert "at most 40 tokens per turn" in err and "overrides" not in err
    options = [f"--option={name}={value}" for name, value in WORLD.items() if name != "split"]
    words = ("FictionQA", *options, "--policy", "local:grpo", "--max-turn-tokens", "40", "-n", "3", "--out", "long")
    status, _, err = call(capsys, "eval", *words)
    assert status == 0 and "agent.json" not in err
    short, long = RunFolder(Path("short")), RunFolder(Path("long"))
    assert short.settings() == long.settings()
    assert short.settings()["env_options"]["split"] == "test"  # held-out questions, not those of the training
    assert short.episodes_path.read_bytes() == long.episodes_path.read_bytes()


def test_the_command_line_overrides_the_card_with_notes(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--max-turns", "2", "--max_turn_tokens=30", "--option", "questions=9", "--split", "validation")
    status, _, err = call(capsys, "eval", "grpo", *words, "-n", "2", "--out", "run")
    assert status == 0
    for note in ("max_turns=2 overrides max_turns=4 of grpo/agent.json", "questions=9 overrides the default questions"):
        assert note in err
    assert "--max-turn-tokens 30 overrides 40 of grpo/agent.json" in err and "split" not in err.split("evaluating")[0]
    settings = RunFolder(Path("run")).settings()
    assert settings["env_options"] == {**WORLD, "max_turns": 2, "questions": 9, "split": "validation"}
    assert settings["model"]["max_turn_tokens"] == 30


def test_another_policy_acts_in_the_environment_of_the_card(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = call(capsys, "eval", "grpo", "--policy", "oracle", "-n", "2", "--out", "run")
    assert status == 0 and "--policy oracle acts in place of grpo" in err
    assert RunFolder(Path("run")).settings()["env_options"] == {**WORLD, "split": "test"}


def test_another_environment_replaces_that_of_the_card(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--env", "FrozenLakeText", "--policy", "oracle", "-n", "2", "--out", "run")
    status, _, err = call(capsys, "eval", "grpo", *words)
    assert status == 0 and "WARNING: FrozenLakeText replaces 'FictionQA' of grpo/agent.json" in err
    assert RunFolder(Path("run")).settings()["env_id"] == "AgentR1/FrozenLakeText-v0"


def test_a_mixture_is_evaluated_as_it_was_trained(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = {"env_id": "FrozenLakeText", "name": "lake", "weight": 2.0, "env_kwargs": {}, "eval_env_kwargs": None}
    fiction = {**lake, "env_id": "FictionQA", "name": "qa", "env_kwargs": WORLD, "eval_env_kwargs": {"max_turns": 5}}
    save_card(agent, mixture=[fiction, lake])
    status, _, err = call(capsys, "eval", "grpo", "--policy", "oracle", "-n", "2", "--out", "both")
    assert status == 0, err
    environments = json.loads(Path("both/mixture.json").read_text())["environments"]
    assert [(each["name"], each["weight"]) for each in environments] == [("qa", 2), ("lake", 2)]
    assert RunFolder(Path("both/qa")).settings()["env_options"] == {**WORLD, "max_turns": 5, "split": "test"}
    assert call(capsys, "eval", "grpo", "--env", "lake", "--policy", "oracle", "-n", "2", "--out", "one")[0] == 0
    assert RunFolder(Path("one")).settings()["env_id"] == "AgentR1/FrozenLakeText-v0"


def test_the_long_command_takes_from_the_card_what_it_does_not_set(
    agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trained agent in its own environment without its own prompt scored 0.000 instead of 1.000, without a word."""
    words = ("FictionQA", "--option", "entities=700", "--policy", "local:grpo", "-n", "1")
    status, _, err = call(capsys, "eval", *words, "--out", "run")
    assert status == 0 and "FictionQA as grpo was trained in it (agent.json): style=compact max_turns=4" in err
    assert "entities=700 overrides entities=800 of grpo/agent.json" in err
    settings = RunFolder(Path("run")).settings()
    assert settings["env_options"] == {**WORLD, "entities": 700, "split": "test"}
    assert settings["model"]["max_turn_tokens"] == 40


def test_the_shots_of_the_training_come_with_the_agent(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Drawn again from other data, they would be others than those that the agent was trained with."""
    options = {"style": "compact", "entities": 100, "split": "train", "shots": 1, "shots_seed": 3}
    env = make_text_env("FictionQA", options)
    AgentCard.from_env(env, env_id="FictionQA", env_options=options, token_limits={"max_turn_tokens": 4}).save(agent)
    (shot,) = AgentCard.load(agent).shots
    words = ("--option", "world_seed=9", "-n", "1", "--policy", "oracle")
    status, _, err = call(capsys, "eval", "grpo", *words, "--out", "run")
    assert status == 0, err
    recorded = RunFolder(Path("run")).settings()["env_options"]
    assert recorded["shots"] == [shot] and "shots_seed" not in recorded
    status, _, err = call(capsys, "eval", "grpo", *words, "--option", "shots=0", "--out", "none")
    assert status == 0 and "shots=0 overrides shots=1" in err
    assert RunFolder(Path("none")).settings()["env_options"]["shots"] == 0


@pytest.mark.slow
def test_another_environment_and_another_format_are_reported(agent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_card(agent, env_options={**WORLD, "parser": "search-r1"})
    words = ("HotpotQA", "--dataset", "sample", "--policy", "local:grpo", "-n", "1", "--max-turn-tokens", "4")
    status, _, err = call(capsys, "eval", *words, "--out", "run")
    assert status == 0 and "WARNING: HotpotQA replaces 'FictionQA' of grpo/agent.json" in err
    assert "Its turns follow parser=search-r1, which this command does not set" in err
    save_card(agent, env_id="ReTool", env_options={}, parser="retool")
    status, _, err = call(capsys, "eval", *words, "--out", "again")
    assert status == 0 and "replaces 'ReTool'" in err and "Its turns follow parser=retool" in err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["FictionQA"], "Name who acts: --policy"),
        (["some/model", "--env", "FictionQA"], "--policy local:HUB_ID"),
        (["empty"], "empty holds no model"),
        (["bare"], "bare has no agent.json that names its environment"),
        (["grpo", "--config", "x.yaml"], "--config names environments"),
    ],
)
def test_what_is_missing_is_named_in_a_line(
    words: list[str], problem: str, agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("bare").mkdir()
    Path("bare/config.json").touch()
    status, _, err = call(capsys, "eval", *words, "--out", "run")
    assert status == 2 and problem in err and len(err.splitlines()) == 1
    assert not Path("run").exists()


def test_a_run_that_is_not_finished_is_evaluated_at_its_latest_checkpoint(
    agent: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("half").mkdir()
    agent.rename("half/checkpoint-10")
    status, _, err = call(capsys, "eval", "half", "-n", "1", "--max-turn-tokens", "4", "--out", "run")
    assert status == 0 and "half is a run that has not finished; using half/checkpoint-10." in err
    assert RunFolder(Path("run")).settings()["policy"] == "local:half/checkpoint-10"
