"""Named by `--env tests.kit.uneven_env:tests/Uneven-v0`: an environment that fares otherwise in each process."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium as gym

from tests.kit.say_env import SayEnv

RANK = int(os.environ.get("RANK", "0"))
DEAD, FAILING = 3, 1
"""The process whose backend is dead from the start, and the one whose environment breaks."""
BATCH = 4
"""Episodes, of one turn each, after which it breaks; when, by the
clock that all processes of a machine share, it writes into the file that BROKE_AT names."""


class UnevenEnv(SayEnv):
    """Brings rollouts in some processes only."""

    begun = 0

    def begin_step(self, action: str) -> Any:
        UnevenEnv.begun += 1
        if RANK == FAILING and UnevenEnv.begun > BATCH:
            Path(os.environ["BROKE_AT"]).write_text(str(time.monotonic()))
            raise OSError("the environment broke")
        return super().begin_step(action)

    def finish_step(self, outcomes: Any) -> Any:
        *step, info = super().finish_step(outcomes)
        return (*step, info | {"infrastructure_error": "the backend is dead" if RANK == DEAD else None})


gym.register("tests/Uneven-v0", UnevenEnv)
