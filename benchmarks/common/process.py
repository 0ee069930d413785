"""A server in a process of its own, for a benchmark to talk to."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def served_by_process(command: Sequence[str]) -> Iterator[str]:
    """Starts a server, yields the URL that it prints first, and stops it; it also ends when its standard input does.

    Raises:
        RuntimeError: it did not start.
    """
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"{' '.join(command)} did not start; run it by hand to see why.")
        try:
            yield url
        finally:
            process.terminate()
