"""What the benchmark runs with and what it must show: data only, and immutable."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Settings:
    """Sizes of one run.

    Attributes:
        rounds: values per figure; the systems take turns in each.
        at_once: runs in flight.
        runs: fresh runs of the sandbox per value.
        peer_runs: fresh runs of a peer per value.
        snippets: snippets of a session per value.
        expressions: calls of the calculator per value.
    """

    rounds: int = 7
    at_once: int = 4
    runs: int = 400
    peer_runs: int = 60
    snippets: int = 3_000
    expressions: int = 10_000


FULL = Settings()
QUICK = Settings(rounds=1, runs=20, peer_runs=4, snippets=50, expressions=200)

TARGETS = MappingProxyType({"fresh_per_s": 400.0, "stateful_per_s": 2_000.0, "calculator_per_s": 5_000.0})
"""What has to be shown, on two idle cores: runs, snippets and calls per second."""
