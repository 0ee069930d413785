"""Run by `torch.distributed.run` in each of two processes: trains on fixed rollouts and writes the weights."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from accelerate.utils import set_seed
from peft import LoraConfig

from tests.kit.bandit import make_trainer
from tests.kit.fixed import by_row
from tests.kit.tiny_model import make_model
from trainers.algorithms.advantages import ESTIMATORS
from trainers.algorithms.credit import Credit, CreditInputs, CreditOptions
from trainers.algorithms.critic import Critic, build_value_model
from trainers.trainer import AgentTrainer

TWO_PROCESSES = {"learning_rate": 1e-3, "critic_learning_rate": 1e-3, "num_generations": 4, "max_steps": 2}
ALGORITHMS = ("grpo", "ppo", "tests.kit.two_processes:own")


def own(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """An algorithm that both processes find by its name."""
    return ESTIMATORS["rloo"](inputs, options)


def weights(trainer: AgentTrainer) -> dict[str, torch.Tensor]:
    """The policy's and the critic's."""
    critic = {} if trainer.critic is None else trainer.critic.model.state_dict(prefix="critic.")
    return {**trainer.model.state_dict(), **critic}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    for algorithm in ALGORITHMS:
        trainer = make_trainer(folder, by_row, **TWO_PROCESSES, algorithm=algorithm, per_device_train_batch_size=8)
        trainer.train()
        if trainer.accelerator.num_processes != 2:
            raise SystemExit(f"expected 2 processes, got {trainer.accelerator.num_processes}")
        if trainer.accelerator.is_main_process:
            torch.save(weights(trainer), folder / f"{algorithm}.pt")
    set_seed(1, device_specific=True)  # as TRL leaves it: another random state in each process
    model = build_value_model(make_model(), peft_config=LoraConfig(r=4, target_modules="all-linear"))
    critic = Critic(model, trainer.args, accelerator=trainer.accelerator)
    sums = trainer.accelerator.gather(torch.stack([parameter.abs().sum() for parameter in critic.parameters])[None])
    if not torch.equal(sums[0], sums[1]):
        raise SystemExit("the processes' critics differ")
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that tears down while the other one still does
