"""CPU time for tests: of the block alone, not of what the garbage collector finds to do meanwhile."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator


def cpu_seconds(call: Callable[[], object]) -> float:
    """CPU time of a call, to compare it with that of another."""
    gc.disable()
    try:
        start = time.process_time()
        call()
        return time.process_time() - start
    finally:
        gc.enable()


@contextlib.contextmanager
def cpu_below(seconds: float, what: str = "") -> Iterator[None]:
    """Fails if the block takes more CPU time of this process.

    No collection of garbage interrupts it: one walks what all earlier tests have left, for half a second and more.
    """
    gc.disable()
    try:
        start = time.process_time()
        yield
        assert time.process_time() - start < seconds, what
    finally:
        gc.enable()
