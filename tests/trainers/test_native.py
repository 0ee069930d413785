"""parser="native" from end to end: supervised training, GRPO, evaluation, and one line for what cannot work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from agent_r1_gym.cli.main import main as agent_r1
from agent_r1_gym.run.evaluation.agent_card import AgentCard
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from tests.kit.chat_families import FAMILIES
from trainers.commands.sft import run as sft
from trainers.commands.sft.command import FOLDER
from trainers.commands.train import main as train
from trainers.toy.model import build_model

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
NATIVE = {"parser": "native", "questions": 12}
CPU = "--use_cpu True --bf16 False --gradient_checkpointing False --disable_tqdm True --report_to none"


def model_of(family: str, folder: Path) -> str:
    """A tiny random model with the template and special tokens of a family."""
    tokenizer = FAMILIES[family].tokenizer(folder)
    model = build_model(tokenizer)
    model.config.max_position_embeddings = 16_384
    model.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("family", ["TRL qwen2_5.jinja", "TRL qwen3.jinja"])
@pytest.mark.slow
def test_a_cold_start_then_a_step_of_grpo_then_an_evaluation(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, cold, out = model_of(family, tmp_path / "model"), tmp_path / "cold", tmp_path / "out"
    env = ["FictionQA", "--option", "questions=12", "--option", "parser=native"]
    words = f"--episodes 2 --max_steps 1 --per_device_train_batch_size 1 --save_strategy no --max_length 16384 {CPU}"
    assert sft([*env, "--model", model, "--output_dir", str(cold), *words.split()]) == 0, capsys.readouterr().err
    episode = RunFolder(cold / FOLDER).episodes()[0]
    assert episode.messages[2].tool_calls[0].name == "search" and episode.episode_return == 1.0
    words = (
        "--max_turn_tokens 8 --max_completion_length 256 --max_prompt_length 4096 --max_steps 1 --num_generations 2 "
        f"--per_device_train_batch_size 2 --beta 0 --save_strategy no {CPU}"
    )
    options = ["--env", "FictionQA", "--env_kwargs", json.dumps(NATIVE), "--warm_start", str(cold)]
    train([*options, "--output_dir", str(out), *words.split()])
    card = AgentCard.load(out)
    assert card is not None and card.env_options["parser"] == "native"
    run = tmp_path / "run"
    limits = ["--questions", "2", "--max-turn-tokens", "4", "--max-length", "8192", "--out", str(run)]
    assert agent_r1(["eval", *env, "--policy", f"local:{out}", *limits]) == 0, capsys.readouterr().err
    turns = [turn.action for record in RunFolder(run).episodes() for turn in record.turns]
    assert all(json.loads(action).keys() <= {"content", "tool_calls", "errors"} for action in turns)


@pytest.mark.parametrize("family", ["TRL gemma3.jinja", "SmolLM2, InternLM and other ChatML"])
def test_a_model_without_a_tool_format_is_refused_before_it_is_loaded(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)  # loading takes minutes with a real model
    model = model_of(family, tmp_path / "model")
    env = ["FictionQA", "--option", "questions=12", "--option", "parser=native"]
    assert sft([*env, "--model", model, "--output_dir", str(tmp_path / "out"), *CPU.split()]) == 2
    training = capsys.readouterr().err
    words = ["--policy", f"local:{model}", "--questions", "1", "--out", str(tmp_path / "run")]
    assert agent_r1(["eval", *env, *words]) == 2
    for message in (training, capsys.readouterr().err):
        assert "parser='native' does not work" in message and "parser='hermes'" in message
        assert "Traceback" not in message
