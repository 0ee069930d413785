"""What the benchmark runs with: data only, and immutable."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of one run.

    Attributes:
        rounds: values per figure; the ways take turns in each.
        processes: numbers of processes.
        algorithms: names of estimators.
        rollouts: of each process, in groups of `group`.
        group: rollouts of one prompt.
        tokens: of the longest rollout after its prompt, tool responses included.
        turns: of a rollout.
    """

    rounds: int = 5
    processes: tuple[int, ...] = (8, 64)
    algorithms: tuple[str, ...] = ("grpo", "ppo")
    rollouts: int = 10
    group: int = 5
    tokens: int = 4096
    turns: int = 4


FULL = Settings()
QUICK = Settings(rounds=1, processes=(2,), tokens=64)
