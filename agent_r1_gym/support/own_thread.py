"""OwnThread: an object that is made, used and closed in one thread, whoever asks for it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class OwnThread(Generic[T]):
    """An object in a thread of its own: a connection in it may be bound to the thread that opened it.

    Args:
        make: makes the object, there.
        name: of the thread.

    Attributes:
        made: the object.
    """

    def __init__(self, make: Callable[[], T], *, name: str = "agent-r1-own") -> None:
        self._thread, self._ended = ThreadPoolExecutor(1, thread_name_prefix=name), False
        try:
            self.made: T = self.call(make)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    def call(self, work: Callable[..., R], *arguments: Any, **options: Any) -> R:
        """Returns what `work` does in the thread; one call at a time, in the order in which they come."""
        return self._thread.submit(work, *arguments, **options).result()

    def end(self, close: Callable[[], Any]) -> None:
        """Has `close` called there, and ends the thread; may be called twice."""
        if self._ended:
            return
        self._ended = True
        try:
            self.call(close)
        finally:
            self._thread.shutdown(wait=False)
