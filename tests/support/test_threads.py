"""Calls side by side: results in order, exceptions, time limits, threads used again."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from agent_r1_gym.support.threads import run_side_by_side


def fail() -> int:
    raise KeyError("x")


def test_results_come_in_the_order_of_the_jobs() -> None:
    jobs = [lambda i=i: (time.sleep(0.01 * (5 - i)), i)[1] for i in range(5)]
    assert run_side_by_side(jobs) == [0, 1, 2, 3, 4]
    assert run_side_by_side([]) == []


def test_more_jobs_than_threads_are_done_in_waves() -> None:
    assert run_side_by_side([lambda i=i: i for i in range(300)]) == list(range(300))


def test_exceptions_are_returned() -> None:
    first, second = run_side_by_side([fail, lambda: 1])
    assert isinstance(first, KeyError)
    assert second == 1


def test_what_hangs_is_given_up_and_does_not_appear_later() -> None:
    release = threading.Event()
    found = run_side_by_side([lambda: release.wait(60), lambda: 1], timeout=0.2)
    release.set()
    time.sleep(0.05)
    assert found == [None, 1]


def test_threads_are_used_again() -> None:
    """400 calls, 8 at a time; a thread that has just answered may still be on its way back, so that a few are spare."""
    served: set[threading.Thread] = set()
    for _ in range(50):
        run_side_by_side([lambda: served.add(threading.current_thread())] * 8)
    assert len(served) <= 2 * 8


def test_a_hanging_call_does_not_keep_the_program_alive() -> None:
    code = (
        "import time; from agent_r1_gym.support.threads import run_side_by_side\n"
        "print(run_side_by_side([lambda: time.sleep(60)], timeout=0.1))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[None]"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_makes_threads_of_its_own() -> None:
    run_side_by_side([lambda: 1] * 4)
    child = os.fork()
    if child == 0:
        os._exit(0 if run_side_by_side([lambda: 2] * 4, timeout=10) == [2] * 4 else 1)
    assert os.waitpid(child, 0)[1] == 0
