"""How the environment of one word is trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainers.config import AgentConfig


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
