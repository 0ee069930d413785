"""A one-turn toy to learn, and the pieces that tests need to build a trainer around fixed rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig

from agent_r1_gym.play.record import Trajectory
from tests.kit.fixed import make_trajectory
from tests.kit.tiny_model import make_model, make_tokenizer
from trainers.config import AgentConfig
from trainers.trainer import AgentTrainer, Collect

COLOURS = ("red", "green", "blue")


def make_rows(prompts: Sequence[str] = COLOURS * 4) -> Dataset:
    """One row per word: the prompt asks for it, `target` is its token."""
    targets = make_tokenizer().convert_tokens_to_ids(list(prompts))
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": f"say {word}"}], "target": target}
            for word, target in zip(prompts, targets, strict=True)
        ]
    )


def make_args(folder: Path, **settings: Any) -> AgentConfig:
    """Arguments for a CPU, with no reference model, no report, and a constant learning rate."""
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 32,
        "beta": 0.0,
        "max_steps": 1,
        "lr_scheduler_type": "constant",
        "save_strategy": "no",
        "alarm_drift_above": math.inf,  # log-probs of fixed rollouts are made up
    }
    fixed = {"use_cpu": True, "bf16": False, "report_to": "none", "gradient_checkpointing": False, "disable_tqdm": True}
    return AgentConfig(output_dir=str(folder), **(defaults | fixed | settings))


def make_trainer(folder: Path, collect: Collect, *, lora: bool = False, **settings: Any) -> AgentTrainer:
    """A trainer of the tiny model on `make_rows`."""
    return AgentTrainer(
        make_model(),
        make_args(folder, **settings),
        collect=collect,
        train_dataset=make_rows(),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=8, target_modules="all-linear") if lora else None,
    )


def play(rows: list[dict[str, Any]], trainer: AgentTrainer) -> list[Trajectory]:
    """Samples one token for each row: reward 1 if it is the target."""
    ids = trainer.processing_class.apply_chat_template(
        [row["prompt"] for row in rows], add_generation_prompt=True, return_dict=False
    )
    with torch.no_grad():
        logits = trainer.model(input_ids=torch.tensor(ids)).logits[:, -1]
    logps = logits.log_softmax(-1)
    tokens = torch.multinomial(logps.exp(), 1)[:, 0].tolist()
    records = []
    for prompt, token, logp, row in zip(ids, tokens, logps, rows, strict=True):
        record = make_trajectory(prompt, [([token], float(token == row["target"]), [])])
        assert record.tokens is not None
        records.append(replace(record, tokens=replace(record.tokens, logprobs=(logp[token].item(),))))
    return records
