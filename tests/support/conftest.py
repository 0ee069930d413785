"""A clock for cooldowns, which no test waits for."""

from __future__ import annotations

import pytest

from agent_r1_gym.support import backoff


class Clock:
    """Stands still but for `sleep`."""

    def __init__(self) -> None:
        self._now = 1_000.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all circuit breakers."""
    made = Clock()
    monkeypatch.setattr(backoff, "time", made)
    return made
