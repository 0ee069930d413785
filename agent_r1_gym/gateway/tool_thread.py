"""The thread of an environment's tools, which may own connections: its reset, its calls and its end run there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class ToolThread:
    """Runs functions one after the other in a daemon thread, which starts with the first of them."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._process: int | None = None
        self._is_busy = False

    def submit(self, function: Callable[[], T]) -> Future[T]:
        """Run a function there, after those that were submitted before it."""
        future: Future[T] = Future()
        with self._lock:
            if self._process != os.getpid():  # a fork has no threads
                self._process, self._is_busy = os.getpid(), False
                threading.Thread(target=self._work, name="agent-r1-tools", daemon=True).start()
            self._jobs.put((function, future))
        return future

    def run(self, function: Callable[[], T]) -> T:
        """Run a function there, and return its result; in the calling thread where a call hangs there."""
        return function() if self._is_busy else self.submit(function).result()

    def stop(self) -> None:
        """End the thread after what was submitted; the next function starts another one."""
        with self._lock:
            if self._process == os.getpid():
                self._jobs.put(None)
            self._process = None

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, future = job
            if not future.set_running_or_notify_cancel():
                continue
            self._is_busy = True
            try:
                value = function()
            except BaseException as error:  # raised again by `Future.result`
                self._is_busy = False
                future.set_exception(error)
            else:
                self._is_busy = False  # before the result: who waits for it may run the next function
                future.set_result(value)
