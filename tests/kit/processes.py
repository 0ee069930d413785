"""Processes for tests: several that do the same at once, one that is killed at work, one whose disk is full."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest


def in_processes(
    method: str,
    work: Callable[..., Any],
    calls: Sequence[tuple[Any, ...]],
    *,
    meanwhile: Callable[[], Any] = lambda: None,
) -> list[Any]:
    """Returns what `work` returns for each of `calls`, each in a process of its own, all at once.

    Args:
        method: "fork" or "spawn".
        work: a function of a module, for "spawn".
        calls: its arguments, one tuple for each process.
        meanwhile: what this process does while they run.
    """
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    processes = [
        context.Process(target=_put, args=(queue, number, work, call), daemon=True) for number, call in enumerate(calls)
    ]
    for process in processes:
        process.start()
    meanwhile()
    answers = dict(queue.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    return [answers[number] for number in range(len(calls))]


def _put(queue: Any, number: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    queue.put((number, work(*arguments)))


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Lets no file of this process become larger than `size` bytes, as on a full disk."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def kill_at_its_first_line(code: str, *arguments: object) -> str:
    """Runs a Python program, kills it once it has printed a line, in the middle of its work, and returns the line."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    assert line
    return line


def has_become(what: Callable[[], bool], seconds: float) -> bool:
    """Waits until something is so; returns whether it came to that in time."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def wait_until(what: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until something is so."""
    assert has_become(what, seconds), "it did not come to that"


def free_ports(number: int) -> int:
    """Returns the first of so many free ports in a row."""
    for first in range(21000 + os.getpid() % 8000, 32000, number):
        if all(_is_free(port) for port in range(first, first + number)):
            return first
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
