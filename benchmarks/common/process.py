"""A server in a process of its own, for a benchmark to talk to."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def served_by_process(module: str, *arguments: str) -> Iterator[str]:
    """Runs a module that serves, yields the URL that it prints first, and stops it.

    The module is to end when its standard input does, so that it does not outlive this process.

    Raises:
        RuntimeError: it did not start.
    """
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"{' '.join(command)} did not start; run it by hand to see why.")
        try:
            yield url
        finally:
            process.terminate()
