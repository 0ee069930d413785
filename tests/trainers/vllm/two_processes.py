"""Run by `torch.distributed.run` in each of two processes: each has a vLLM of its own beside it, and both learn."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from tests.trainers.vllm.say import learns_in_twenty_steps

if __name__ == "__main__":
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    trainer = learns_in_twenty_steps(
        folder / kind, str(folder / "model"), lora=kind == "lora", per_device_train_batch_size=24
    )
    assert trainer.accelerator.num_processes == 2
    trainer.backend.close()
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that tears down while the other one still does
