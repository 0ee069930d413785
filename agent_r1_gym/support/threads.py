"""Calls that may hang, side by side in daemon threads.

`concurrent.futures` waits for its threads at the end of the program, for ever if one hangs; these are daemons. They are
kept for later calls, because starting one costs more than handing it work; one whose call never returns is lost.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")
_MAX_AT_ONCE = 128
Inbox = SimpleQueue[tuple[Callable[[], None], SimpleQueue[None]]]
_idle: list[Inbox] = []
"""Inboxes of the threads that wait for work; `list.append` and `list.pop` are atomic."""


def run_side_by_side(
    jobs: Sequence[Callable[[], _T]], *, timeout: float | None = None
) -> list[_T | BaseException | None]:
    """Runs `jobs` at the same time, at most 128 at once.

    Args:
        jobs: what to call.
        timeout: seconds for each 128 of them; None waits for ever.

    Returns:
        For each job what it returned, the exception that it raised, or None if it did not end in time.
    """
    results: list[Any] = []
    for first in range(0, len(jobs), _MAX_AT_ONCE):
        results += _run_wave(jobs[first : first + _MAX_AT_ONCE], timeout)
    return results


def _run_wave(jobs: Sequence[Callable[[], Any]], timeout: float | None) -> list[Any]:
    results: list[Any] = [None] * len(jobs)
    done: SimpleQueue[None] = SimpleQueue()

    def store(index: int) -> None:
        try:
            results[index] = jobs[index]()
        except BaseException as error:  # handed to the waiting thread
            results[index] = error

    deadline = None if timeout is None else time.monotonic() + timeout
    for index in range(len(jobs)):
        _submit(functools.partial(store, index), done)
    for _ in jobs:
        try:
            done.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except Empty:
            break
    return list(results)  # a copy: what is late must not appear in it


def _submit(job: Callable[[], None], done: SimpleQueue[None]) -> None:
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = SimpleQueue()
        threading.Thread(target=_work, args=(inbox,), name="agent-r1-call", daemon=True).start()
    inbox.put((job, done))


def _work(inbox: Inbox) -> None:
    while True:
        job, done = inbox.get()
        job()
        stays = len(_idle) < _MAX_AT_ONCE
        if stays:
            _idle.append(inbox)  # before the news, so that whoever waits for it finds this thread idle
        done.put(None)
        if not stays:
            return


os.register_at_fork(after_in_child=_idle.clear)  # a fork takes none of the threads along
