"""Asynchronous work from ordinary code: an event loop in a thread of its own, one per process, started when needed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from agent_r1_gym.errors import InfrastructureError, InfrastructureTimeout

_T = TypeVar("_T")


class EventLoop:
    """Runs coroutines of any thread on one loop; a fork starts a loop of its own.

    A coroutine that exits (`sys.exit`) raises a `RuntimeError` instead, for an exit would end the loop, and with it the
    work of all others. One that blocks (`time.sleep`) stops them: who runs code of strangers takes a loop apart.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)  # its thread is the parent's

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Starts a coroutine and returns its future."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(_contained(coroutine), self._loop)

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Returns what a coroutine returns; one that outlasts `timeout` seconds is cancelled.

        Raises:
            InfrastructureTimeout: it took too long.
        """
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except TimeoutError as error:
            if future.done():  # its own
                raise
            future.cancel()
            raise InfrastructureTimeout(f"There was no answer within {timeout:g} s.") from error
        except CancelledError as error:
            raise InfrastructureError("The call was cancelled.") from error

    def _forget(self) -> None:
        self._loop, self._lock = None, threading.Lock()


async def _contained(coroutine: Coroutine[Any, Any, _T]) -> _T:
    try:
        return await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"{type(error).__name__}: {error}".removesuffix(": ")) from error


SHARED = EventLoop("agent-r1-async")
"""For coroutines of users and other libraries."""
