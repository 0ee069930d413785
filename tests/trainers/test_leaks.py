"""A long training needs no more memory at its end than near its beginning."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from transformers import TrainerCallback

from tests.kit.commands import run_script
from tests.kit.models import make_model
from tests.trainers.rollouts.test_collect import EchoEnv
from tests.trainers.test_train import config
from trainers.commands.train.building import build_trainer
from trainers.toy.model import build_tokenizer

LIBC = ctypes.CDLL(None)


class Watch(TrainerCallback):
    """Notes live Python objects and resident bytes every 24 steps."""

    def __init__(self) -> None:
        self.objects: list[int] = []
        self.resident: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % 24 == 0:
            gc.collect()
            LIBC.malloc_trim(0)  # free lists wander by 10 MB and more
            self.objects.append(len(gc.get_objects()))
            self.resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)


def watched(folder: Path) -> Watch:
    """Trains for 144 steps, with evaluations and logs."""
    gym.register("Test/Echo-v0", EchoEnv)
    tokenizer = build_tokenizer()
    evaluation = {"eval_env_kwargs": {}, "eval_strategy": "steps", "eval_steps": 20, "eval_episodes": 8}
    limits = {"max_turn_tokens": 2, "max_completion_length": 12, "max_steps": 144, "logging_steps": 20}
    args = config(folder, env_id="Test/Echo-v0", env_kwargs={}, **evaluation, **limits)
    trainer = build_trainer(args, make_model(tokenizer, width=16, layers=1), tokenizer=tokenizer)
    watch = Watch()
    trainer.add_callback(watch)
    trainer.train()
    return watch


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(LIBC, "malloc_trim"), reason="reads the resident set as Linux with glibc shows it")
def test_memory_does_not_grow_from_step_to_step(tmp_path: Path) -> None:
    """Measured: 60 objects and 0.4 MB from step 100 to 500, 0.8 MB to step 2000.

    In a process of its own: what earlier tests left behind in this one moves by megabytes.
    """
    assert run_script("tests.trainers.test_leaks", str(tmp_path)) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found["objects"]) == 6
    assert found["objects"][-1] - found["objects"][0] < 100  # one object per step would be a leak
    assert found["resident"][-1] - found["resident"][1] < 1e6  # after a warm-up of 48 steps


if __name__ == "__main__":
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    (directory / "found.json").write_text(json.dumps(vars(watched(directory))))
