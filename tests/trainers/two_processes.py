"""Run by `torch.distributed.run` in each of two processes: trains on fixed rollouts and writes the weights."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from tests.trainers.bandit import make_trainer
from tests.trainers.fixed import by_row
from tests.trainers.test_trainer import TWO_PROCESSES, weights

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    for algorithm in ("grpo", "ppo"):
        trainer = make_trainer(folder, by_row, **TWO_PROCESSES, algorithm=algorithm, per_device_train_batch_size=8)
        trainer.train()
        if trainer.accelerator.num_processes != 2:
            raise SystemExit(f"expected 2 processes, got {trainer.accelerator.num_processes}")
        if trainer.accelerator.is_main_process:
            torch.save(weights(trainer), folder / f"{algorithm}.pt")
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that tears down while the other one still does
