"""Concurrency: the thread pool, hung calls, worker threads, OpenMP; the event loop is in tests/tools/test_function."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_r1_gym.errors import InfrastructureError, InfrastructureTimeout
from agent_r1_gym.support import concurrency
from agent_r1_gym.support.concurrency import (
    HungCalls,
    TimeLimitError,
    WorkerThread,
    run_parallel,
    submit_call,
    time_limit,
)
from tests.kit.processes import wait_until
from tests.support.conftest import Clock

# --- threads ---------------------------------------------------------------------------------------------------------


def fail() -> int:
    raise KeyError("x")


def test_results_come_in_the_order_of_the_jobs() -> None:
    jobs = [lambda i=i: (time.sleep(0.01 * (5 - i)), i)[1] for i in range(5)]
    assert run_parallel(jobs) == [0, 1, 2, 3, 4]
    assert run_parallel([]) == []


def test_more_jobs_than_threads_are_done_in_waves() -> None:
    assert run_parallel([lambda i=i: i for i in range(300)]) == list(range(300))


def test_exceptions_are_returned() -> None:
    first, second = run_parallel([fail, lambda: 1])
    assert isinstance(first, KeyError)
    assert second == 1


def test_what_hangs_is_given_up_and_does_not_appear_later() -> None:
    release = threading.Event()
    found = run_parallel([lambda: release.wait(60), lambda: 1], timeout=0.2)
    release.set()
    time.sleep(0.05)
    assert found == [None, 1]


def test_threads_are_used_again() -> None:
    """400 calls, 8 at a time; a thread that has just answered may still be on its way back, so that a few are spare."""
    served: set[threading.Thread] = set()
    for _ in range(50):
        run_parallel([lambda: served.add(threading.current_thread())] * 8)
    assert len(served) <= 2 * 8


@pytest.mark.slow
def test_a_hanging_call_does_not_keep_the_program_alive() -> None:
    code = (
        "import time; from agent_r1_gym.support.concurrency import run_parallel\n"
        "print(run_parallel([lambda: time.sleep(60)], timeout=0.1))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[None]"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_makes_threads_of_its_own() -> None:
    run_parallel([lambda: 1] * 4)
    child = os.fork()
    if child == 0:
        os._exit(0 if run_parallel([lambda: 2] * 4, timeout=10) == [2] * 4 else 1)
    assert os.waitpid(child, 0)[1] == 0


# --- what hangs ------------------------------------------------------------------------------------------------------


class Hanging:
    """Jobs that hang until they are released; counts how many were started."""

    def __init__(self) -> None:
        self.started = 0
        self.release = threading.Event()

    def __call__(self) -> str:
        self.started += 1
        self.release.wait(60)
        return "late"

    def give_up(self, hung_calls: HungCalls, number: int) -> None:
        assert run_parallel([self] * number, timeout=0.01, hung_calls=hung_calls) == [None] * number

    def come_back(self, hung_calls: HungCalls) -> None:
        self.release.set()
        wait_until(lambda: len(hung_calls) == 0)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    jobs = Hanging()
    yield jobs
    jobs.release.set()


def is_open(hung_calls: HungCalls) -> bool:
    (result,) = run_parallel([lambda: "works"], timeout=20, hung_calls=hung_calls)
    assert result == "works" or isinstance(result, InfrastructureTimeout)
    return result != "works"


def test_a_thousand_hanging_calls_cost_a_bounded_number_of_threads_and_waits(hanging) -> None:
    hung_calls = HungCalls(limit=8, cooldown=60)
    results = run_parallel([hanging] * 1000, timeout=0.05, hung_calls=hung_calls)
    assert hanging.started <= 128 + 8
    assert results.count(None) == hanging.started
    refused = [result for result in results if isinstance(result, InfrastructureTimeout)]
    assert len(refused) == 1000 - hanging.started
    assert all(0 < error.retry_after <= 60 for error in refused)
    assert is_open(hung_calls)


def test_calls_are_made_again_when_a_lost_one_comes_back(hanging) -> None:
    hung_calls = HungCalls(limit=2, cooldown=60)
    hanging.give_up(hung_calls, 1)
    assert not is_open(hung_calls)
    hanging.give_up(hung_calls, 1)
    assert is_open(hung_calls)
    hanging.come_back(hung_calls)
    assert not is_open(hung_calls)


def test_one_call_tries_after_the_cooldown(hanging, clock: Clock) -> None:
    hung_calls = HungCalls(limit=2, cooldown=60)
    hanging.give_up(hung_calls, 2)
    assert is_open(hung_calls)
    clock.sleep(60)
    results = run_parallel([hanging] * 5, timeout=0.01, hung_calls=hung_calls)
    assert results.count(None) == 1  # the one that tried
    assert is_open(hung_calls)
    clock.sleep(60)
    assert is_open(hung_calls)
    clock.sleep(60)  # twice as long, after a try in vain
    assert not is_open(hung_calls)
    assert run_parallel([lambda: 1] * 5, timeout=20, hung_calls=hung_calls) == [1] * 5
    hanging.come_back(hung_calls)


def test_the_cooldown_doubles_until_all_have_come_back(clock: Clock) -> None:
    first, hung_calls = Hanging(), HungCalls(limit=1, cooldown=30)
    first.give_up(hung_calls, 1)
    waits = []
    for _ in range(4):
        (refusal,) = run_parallel([first], timeout=0.01, hung_calls=hung_calls)
        assert isinstance(refusal, InfrastructureTimeout)
        waits.append(refusal.retry_after)
        clock.sleep(refusal.retry_after)
        first.give_up(hung_calls, 1)
    assert waits == [30, 60, 120, 240]
    first.come_back(hung_calls)
    second = Hanging()
    assert not is_open(hung_calls)
    second.give_up(hung_calls, 1)
    assert is_open(hung_calls)
    clock.sleep(30)
    assert not is_open(hung_calls)
    second.come_back(hung_calls)


def test_a_system_without_threads_to_spare_is_a_typed_failure(monkeypatch, hanging) -> None:
    monkeypatch.setattr(concurrency, "_idle", [])
    start = threading.Thread.start
    left = [3]

    def limited(self: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(self)

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert run_parallel([lambda i=i: i for i in range(50)]) == list(range(50))
    assert run_parallel([hanging] * 3, timeout=0.01) == [None] * 3
    (error,) = run_parallel([lambda: 1], timeout=1)
    assert isinstance(error, InfrastructureError) and not isinstance(error, InfrastructureTimeout)
    assert "can't start new thread" in str(error)


def test_a_started_call_has_a_future() -> None:
    barrier = threading.Barrier(3)
    both = [submit_call(lambda number=number: (barrier.wait(5), number)[1]) for number in range(2)]
    barrier.wait(5)
    assert [future.result(5) for future in both] == [0, 1]

    def fails() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        submit_call(fails).result(5)


# --- own thread ------------------------------------------------------------------------------------------------------


def test_all_is_done_where_it_was_made() -> None:
    thread, made_in = WorkerThread.create(threading.get_ident)
    with ThreadPoolExecutor(3) as others:
        seen = [future.result() for future in [others.submit(thread.call, threading.get_ident) for _ in range(9)]]
    assert set(seen) == {made_in} and made_in != threading.get_ident()
    last = thread.submit(threading.get_ident)
    thread.end()
    thread.end()
    assert last.result() == made_in  # what was handed over is done
    with pytest.raises(RuntimeError, match="has ended"):
        thread.call(dict)


def test_what_it_raises_comes_to_whoever_asked() -> None:
    thread = WorkerThread()
    with pytest.raises(ZeroDivisionError):
        thread.call(lambda: 1 / 0)
    assert thread.call(dict, a=1) == {"a": 1}
    thread.end()
    with pytest.raises(ZeroDivisionError):
        WorkerThread.create(lambda: 1 / 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_worker_thread_starts_anew_in_a_fork() -> None:
    thread, _ = WorkerThread.create(threading.get_ident)
    child = os.fork()
    if child == 0:
        os._exit(0 if run_parallel([lambda: thread.call(int)], timeout=10) == [0] else 1)
    assert os.waitpid(child, 0)[1] == 0
    thread.end()


def test_what_cannot_wait_runs_in_the_callers_thread_while_another_call_runs() -> None:
    thread, made_in = WorkerThread.create(threading.get_ident)
    assert thread.call_or_run_here(threading.get_ident) == made_in
    begun, release = threading.Event(), threading.Event()
    hanging = thread.submit(lambda: (begun.set(), release.wait(60)))
    assert begun.wait(60)
    assert thread.call_or_run_here(threading.get_ident) == threading.get_ident()
    release.set()
    hanging.result(60)
    assert thread.call_or_run_here(threading.get_ident) == made_in
    thread.end()


# --- a limit on time -------------------------------------------------------------------------------------------------


def test_a_limit_interrupts_what_catches_all_exceptions_and_keeps_the_timer_of_others() -> None:
    def hang() -> None:
        while True:
            with contextlib.suppress(Exception):
                time.sleep(60)

    with time_limit(60):
        with pytest.raises(TimeLimitError), time_limit(0.05):
            hang()
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 1
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


# --- openmp ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, "1000 None"),
        ({"GOMP_SPINCOUNT": "7"}, "7 None"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "None PASSIVE"),
    ],
)
def test_a_setting_of_the_users_own_is_kept(own: dict[str, str], expected: str) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    names = "os.getenv('GOMP_SPINCOUNT'), os.getenv('OMP_WAIT_POLICY'), 'torch' in sys.modules"
    code = f"import os, sys, trainers; print({names})"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**clean, **own}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{expected} False"


def test_an_end_that_waits_returns_when_the_thread_is_gone() -> None:
    worker = WorkerThread("awaited")
    worker.end(wait=True)  # it has not started
    worker = WorkerThread("awaited")
    called = worker.submit(lambda: time.sleep(0.05))
    worker.end(wait=True)
    assert called.done() and not any(thread.name == "awaited" for thread in threading.enumerate())
