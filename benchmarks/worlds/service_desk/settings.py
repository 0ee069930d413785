"""Sizes and targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much is played."""

    oracle_tickets: int = 10_000
    """Tickets of the oracle, spread evenly over styles and difficulties; each has a seed of its own."""
    script_tickets: int = 1_000
    """Tickets of each script, style and difficulty."""
    policies: int = 1_000
    """Policies of each split that are compared."""
    rounds: int = 5
    """Values per figure of speed."""
    speed_tickets: int = 300
    """Tickets per value."""
    clones: int = 2_000
    """Clones of a database per value."""


FULL = Settings()
QUICK = Settings(oracle_tickets=60, script_tickets=20, policies=20, rounds=2, speed_tickets=20, clones=50)

TARGETS: Mapping[str, float] = MappingProxyType(
    {"oracle": 1.0, "near_miss": 0.5, "steps_per_second": 2_000.0, "clone_ms": 1.0, "overlaps": 0.0}
)
