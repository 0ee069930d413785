"""Every algorithm, adapter and TRL option that a CPU can run makes an optimiser step, from rollouts to new weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.kit.small_runs import make_trainer, play, teacher_settings
from trainers.config.presets import ALGORITHMS

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")]


def trains(folder: Path, **settings: Any) -> None:
    torch.manual_seed(0)
    trainer = make_trainer(folder, play, **({"learning_rate": 1e-2} | settings))
    weights = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    trainer.train()
    assert trainer.state.global_step == 1
    assert all(torch.isfinite(weight).all() for weight in weights.values())
    assert any(not torch.equal(weight, before[name]) for name, weight in weights.items())


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithm(algorithm: str, lora: bool, tmp_path: Path) -> None:
    trains(tmp_path, lora=lora, algorithm=algorithm, num_generations=4, **teacher_settings(algorithm, tmp_path))


@pytest.mark.parametrize("loss_type", LOSSES)
def test_loss(loss_type: str, tmp_path: Path) -> None:
    trains(tmp_path, loss_type=loss_type)


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_checkpointing": True},
        {"bf16": True},
        {"gradient_accumulation_steps": 2},
        {"num_iterations": 2},
        {"optim": "adafactor"},
        {"temperature": 0.7},
        {"importance_sampling_level": "sequence"},
        {"importance_sampling_level": "turn", "num_iterations": 2},
        {"max_grad_norm": 0.1, "weight_decay": 0.1, "lr_scheduler_type": "cosine"},
    ],
    ids=lambda settings: ",".join(settings),
)
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_option(settings: dict[str, Any], algorithm: str, tmp_path: Path) -> None:
    trains(tmp_path, algorithm=algorithm, num_generations=4, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lora": True},
        {"gradient_checkpointing": True},
        {"bf16": True},
        {"num_iterations": 2},
        {"entropy_coef": 0.1},
    ],
    ids=lambda settings: ",".join(settings),
)
@pytest.mark.parametrize("algorithm", ["grpo", "opsd"])
def test_whole_vocabulary(settings: dict[str, Any], algorithm: str, tmp_path: Path) -> None:
    teacher = {"distillation_placement": "loss", "distillation_weight": 0.5, "teacher_privileged": "answer"}
    trains(tmp_path, algorithm=algorithm, num_generations=4, **teacher, **settings)
