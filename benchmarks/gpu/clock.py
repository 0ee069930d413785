"""The time that a part has: looked at between two rounds, never within one."""

from __future__ import annotations

import time


class Clock:
    """Says before each round whether there is time for it, going by the longest one so far.

    Args:
        seconds: that the part may take from now on.

    Attributes:
        over: whether it has ever said no.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds
        self._began: float | None = None
        self._longest = 0.0
        self.over = False

    @property
    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self._end - time.perf_counter())

    def __call__(self) -> bool:
        """Returns whether a round that begins now is likely to end in time."""
        now = time.perf_counter()
        if self._began is not None:
            self._longest = max(self._longest, now - self._began)
        self._began = now
        self.over = self.over or now + self._longest > self._end
        return not self.over
