"""How the environment of one word is trained on, and what twenty steps of it must bring."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from peft import LoraConfig
from transformers import AutoTokenizer

from tests.kit.programs import Client, user
from tests.kit.say_env import register_say
from trainers.commands.train.building import build_trainer
from trainers.config.agent import AgentConfig

AGENT = f"{__name__}:ask"
"""A program that plays an episode of it, as `agent` names it."""


def ask(task: str, base_url: str, api_key: str) -> None:
    """Asks the model for one turn, which is the answer."""
    Client(base_url, api_key).chat([user(task)])


def say_config(folder: Path, env_id: str, **changes: Any) -> AgentConfig:
    """Returns a configuration of twenty steps on a CPU."""
    options: dict[str, Any] = {
        "engine": "vllm",
        "max_steps": 20,
        "num_generations": 8,
        "per_device_train_batch_size": 48,
        "beta": 0.0,
        "entropy_coef": 0.02,
        "max_turn_tokens": 1,
        "max_prompt_length": 64,
        "max_completion_length": 16,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "logprob_check_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    return AgentConfig(output_dir=str(folder), env_id=env_id, **{**options, **changes})


def learns_in_twenty_steps(folder: Path, model: str, *, lora: bool, **changes: Any) -> Any:
    """Trains a saved model, asserts that it learned and that log-probs were exact, and returns the trainer."""
    config = say_config(folder, register_say(), learning_rate=1e-2 if lora else 3e-3, **changes)
    adapter = LoraConfig(r=8, target_modules="all-linear") if lora else None
    trainer = build_trainer(config, model, tokenizer=AutoTokenizer.from_pretrained(model), peft_config=adapter)
    trainer.train()
    steps = [row for row in trainer.state.log_history if "reward" in row]
    assert len(steps) == 20
    assert steps[0]["reward"] < 0.3
    assert max(row["reward"] for row in steps[-5:]) > 0.6
    assert max(row["sampling/logprob_drift_max"] for row in steps) < 1e-4
    return trainer
