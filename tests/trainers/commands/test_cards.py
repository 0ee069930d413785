"""`train` and `sft` continue what a card describes: environment, prompt, budgets, adapter; and never run its code."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from agent_r1_gym.cli.main import main
from agent_r1_gym.run.evaluation.agent_card import AgentCard
from tests.kit.models import make_model, make_tokenizer
from trainers.commands.command_line import read_config, read_options
from trainers.commands.sft import run as sft
from trainers.commands.sft.command import DemonstrationConfig
from trainers.commands.train import run as train

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
MODULE = """
import pathlib
import agent_r1_gym
pathlib.Path(__file__).with_suffix(".mark").write_text("imported")
agent_r1_gym.register("Own/Kiosk-v0", "agent_r1_gym.envs.fiction_qa.env:FictionQAEnv")
def one(transition): return 1.0
def two(inputs, options): raise NotImplementedError
"""
QUICK = ["--max_steps", "1", "--per_device_train_batch_size", "2", "--save_strategy", "no", "--disable_tqdm", "True"]
CPU = ["--use_cpu", "True", "--bf16", "False"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in, with a module of environments; afterwards the module is forgotten."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kiosk_env.py").write_text(MODULE)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("kiosk_env", None)
    gymnasium.registry.pop("Own/Kiosk-v0", None)


@pytest.fixture
def model(here: Path) -> str:
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(here / "model")
    tokenizer.save_pretrained(here / "model")
    return "model"


def save_card(folder: str, **fields: Any) -> None:
    Path(folder).mkdir(exist_ok=True)
    AgentCard(**{"env_id": "FictionQA", "env_options": {"style": "compact", "questions": 9}, **fields}).save(folder)


HOSTILE: dict[str, dict[str, Any]] = {
    "environment": {"env_id": "kiosk_env:Own/Kiosk-v0"},
    "mixture": {"mixture": [{"env_id": "FictionQA"}, {"env_id": "kiosk_env:Own/Kiosk-v0"}]},
    "reward": {"env_options": {"reward": "kiosk_env:one"}},
    "option": {"env_options": {"any": [["kiosk_env:one"]]}},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_card_runs_no_code(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_card("visitor", **HOSTILE[kind])
    Path("visitor/config.json").write_text("{}")
    settings = {
        **{"env_id": "FictionQA", "env_options": {}, "policy": "oracle", "dataset": "d", "samples": 1},
        **{"questions": 1, "seed": 0, "question_hash": "h"},
        **{name: value for name, value in HOSTILE[kind].items() if name != "mixture"},
    }
    Path("visitor/run.json").write_text(json.dumps({"format": 3, "settings": settings, "invocations": []}))
    commands = [
        (train, ["--warm_start", "visitor"]),
        (train, ["--model", "./visitor"]),
        (sft, ["--model", "visitor"]),
        *([(sft, ["--model", "model", "--from", "visitor"])] if kind != "mixture" else []),
    ]
    for run, words in commands:
        assert run([*words, "--output_dir", "out", *CPU]) == 2
        err = capsys.readouterr().err
        assert "files run no code" in err and "add --import kiosk_env" in err, err
        assert not Path("kiosk_env.mark").exists()


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("env_id: kiosk_env:Own/Kiosk-v0", "'kiosk_env:Own/Kiosk-v0'"),
        ("envs:\n- FictionQA\n- kiosk_env:Own/Kiosk-v0 weight=2", "'kiosk_env:Own/Kiosk-v0'"),
        ("env_id: FictionQA\nenv_kwargs: {parser: 'kiosk_env:P'}", "'parser=kiosk_env:P'"),
        ("env_id: FictionQA\neval_env_kwargs: {reward: ['em', 'kiosk_env:one']}", "'reward=kiosk_env:one'"),
        ("env_id: FictionQA\nalgorithm: kiosk_env:two", "'algorithm=kiosk_env:two'"),
        ("env_id: FictionQA\ngroup_reward: kiosk_env:three", "'group_reward=kiosk_env:three'"),
        ('env_id: FictionQA\nenv_kwargs: \'{"parser": "kiosk_env:P"}\'', "'parser=kiosk_env:P'"),
        ("env_id: FictionQA\ntrust_remote_code: true", "trust_remote_code"),
        ("env_id: FictionQA\nmodel_init_kwargs: {trust_remote_code: true}", "trust_remote_code"),
        ("env_id: FictionQA\ntrust_card: true", "'trust_card'"),
    ],
)
def test_a_configuration_file_runs_no_code(content: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file.yaml").write_text(content + "\nmodel_name_or_path: model\n")
    assert train(["--config", "file.yaml", "--output_dir", "out", *CPU]) == 2
    err = capsys.readouterr().err
    assert named in err and len(err.splitlines()) == 1 and not Path("kiosk_env.mark").exists()


def test_the_command_line_names_what_a_configuration_file_may(here: Path) -> None:
    Path("file.yaml").write_text(
        "env_id: kiosk_env:Own/Kiosk-v0\nenv_kwargs: {reward: 'kiosk_env:one', dataset: ~/x}\n"
    )
    words = ["--config", "file.yaml", "--model", "m", "--output_dir", "out", *CPU]
    for named in (["--import", "kiosk_env"], ["--env", "kiosk_env:Own/Kiosk-v0"]):
        args, _ = read_options([*words, *named])
        assert args.env_id == "kiosk_env:Own/Kiosk-v0" and args.env_kwargs["reward"] == "kiosk_env:one"


def test_a_warm_start_continues_its_environment_prompt_and_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"style": "compact", "system_prompt": "Be brief.", "parser": "search-r1", "split": "validation"}
    save_card("cold", env_options=options, token_limits={"max_turn_tokens": 33, "max_completion_length": 444})
    words = ["--warm_start", "cold", "--output_dir", "out", *CPU]
    args, _ = read_options(words)
    kept = {name: value for name, value in options.items() if name != "split"}
    assert (args.env_id, args.env_kwargs) == ("FictionQA", kept)
    assert (args.max_turn_tokens, args.max_completion_length) == (33, 444)
    err = capsys.readouterr().err
    assert "as in cold/agent.json: FictionQA style=compact" in err and "max_turn_tokens=33" in err

    # The same environment, named: its options stay, and the command line wins with a note.
    args, _ = read_options(["FictionQA", *words, "--parser", "hermes", "--max_turn_tokens", "7"])
    assert args.env_kwargs == {**kept, "parser": "hermes"} and args.max_turn_tokens == 7
    assert "parser=hermes overrides parser=search-r1 of cold/agent.json" in capsys.readouterr().err

    # Another environment is a choice, but not a silent one.
    args, _ = read_options(["HotpotQA", *words])
    assert (args.env_id, args.env_kwargs) == ("HotpotQA", {})
    err = capsys.readouterr().err
    assert "WARNING: HotpotQA replaces 'FictionQA' of cold/agent.json" in err and "parser=search-r1" in err


def test_a_warm_start_continues_a_mixture() -> None:
    lake = {"env_id": "FrozenLakeText", "name": "lake", "weight": 2.0}
    save_card("cold", mixture=[{"env_id": "FictionQA", "env_kwargs": {"style": "compact"}}, lake])
    args, _ = read_options(["--warm_start", "cold", "--output_dir", "out", *CPU])
    fiction, lake_config = args.environments
    assert fiction.options == {"style": "compact"} and (lake_config.name, lake_config.weight) == ("lake", 2.0)


def test_a_warm_start_from_an_adapter_trains_one_of_its_shape(capsys: pytest.CaptureFixture[str]) -> None:
    save_card("cold")
    shape = {"r": 4, "lora_alpha": 9, "target_modules": ["q_proj", "v_proj"], "use_rslora": True, "peft_type": "LORA"}
    Path("cold/adapter_config.json").write_text(json.dumps(shape))
    words = ["--warm_start", "cold", "--output_dir", "out", *CPU]
    _, model = read_options(words)
    assert model.use_peft and model.use_rslora
    assert (model.lora_r, model.lora_alpha, model.lora_target_modules) == (4, 9, ["q_proj", "v_proj"])
    assert "lora_r=4 lora_alpha=9 use_rslora=true on q_proj, v_proj; --use-peft False" in capsys.readouterr().err
    _, model = read_options([*words, "--lora_r", "2"])
    assert model.use_peft and (model.lora_r, model.lora_alpha) == (2, 9)
    _, model = read_options([*words, "--use_peft", "False"])
    assert not model.use_peft
    for damaged in ("[", "[]", '{"r": "four"}', '{"r": 4, "target_modules": 3}'):
        Path("cold/adapter_config.json").write_text(damaged)
        assert train(words) == 2 and "is not a configuration of an adapter" in capsys.readouterr().err


def test_demonstrations_bring_their_environment(model: str) -> None:
    words = [
        "FictionQA",
        "--option",
        "questions=8",
        "--option",
        "style=compact",
        "--policy",
        "oracle",
        "--max-turns",
        "4",
    ]
    assert main(["eval", *words, "--split", "train", "-n", "4", "--out", "shown"]) == 0
    args, _ = read_config(["--from", "shown", "--model", model, *CPU], DemonstrationConfig, prog="sft")
    assert args.env_id == "AgentR1/FictionQA-v0"
    assert args.env_kwargs == {"questions": 8, "style": "compact", "max_turns": 4, "split": "train"}


@pytest.mark.slow
def test_the_printed_commands_run_as_they_are(
    model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    env = ["kiosk_env:Own/Kiosk-v0", "--option", "questions=8", "--option", "style=compact", "--max_turns", "6"]
    lora = ["--lora_r", "2", "--lora_target_modules", "q_proj", "v_proj"]
    assert sft([*env, "--model", model, "--output_dir", "runs/cold", "--episodes", "2", *QUICK, *lora]) == 0
    last = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", __import__("io").StringIO("/quit\n"))
    short = {  # what these commands would do for hours is cut; nothing that they have to know is added
        "eval": ["-n", "1", "--max-turn-tokens", "4"],
        "chat": [],
        "report": [],
        "train": [*QUICK, *CPU, "--num_generations", "2", "--max_completion_length", "64", "--max_turn_tokens", "4"],
    }
    commands = [shlex.split(line)[1:] for line in re.findall("agent-r1 .*", last)]
    assert [command[0] for command in commands] == ["eval", "report", "chat", "train"]
    for command in commands:
        assert main([*command, *short[command[0]]]) == 0, (command, capsys.readouterr())
    assert Path("runs/cold-rl/adapter_config.json").is_file()
    card = AgentCard.load("runs/cold-rl")
    assert card is not None and card.env_id == "kiosk_env:Own/Kiosk-v0" and card.env_options["max_turns"] == 6
