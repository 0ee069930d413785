"""Concurrency: daemon threads for calls that may hang or block, an event loop for coroutines, and a limit on time.

`concurrent.futures` waits for its threads at the end of the program, forever if one hangs; the threads of this pool are
daemons. They are reused, because starting a thread costs more than passing it a call; a thread whose call never returns
is lost. `WorkerThread` is a thread of its own, for objects that are bound to the thread that created them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self, TypeVar

from agent_r1_gym.errors import InfrastructureError, InfrastructureTimeout
from agent_r1_gym.support.backoff import CircuitBreaker

if TYPE_CHECKING:
    import asyncio

_T = TypeVar("_T")
_MAX_AT_ONCE = 128
MAX_HUNG_CALLS = 32
"""Number of hung threads of one tool at which its breaker opens. A crawler or a test run that hangs now and then stays
below; a tool whose every call hangs costs at most 31 + 128 threads at first: the hung ones, and a batch under way."""
FIRST_COOLDOWN = 30.0
"""Seconds of the first opening; each further one lasts twice as long."""

_Job = Callable[[], Any]


# --- the thread pool -------------------------------------------------------------------------------------------------


class HungCalls(CircuitBreaker):
    """A circuit breaker over calls of one kind that were given up and still hold their threads.

    With `limit` of them out it opens: further calls fail at once. It closes as soon as one returns; and after a
    cooldown one call may probe whether the tool works again, which closes it too and allows `limit` more lost threads.
    Each opening lasts twice as long as the one before, until no thread is lost, so that a tool that hangs forever costs
    a number of threads that grows with the logarithm of time.
    """

    def __init__(self, limit: int = MAX_HUNG_CALLS, cooldown: float = FIRST_COOLDOWN) -> None:
        super().__init__("calls", limit, cooldown, doubling=True)
        self._hung: set[_Call] = set()
        self._forgiven: set[_Call] = set()
        """Calls that were out when a probe succeeded: their threads are lost, but no longer count."""

    @property
    def failures(self) -> int:
        """See `CircuitBreaker`; a set, because a count would drift in a race between threads."""
        return len(self._hung)

    def __len__(self) -> int:
        """Number of lost threads."""
        return len(self._hung) + len(self._forgiven)

    def give_up(self, call: _Call) -> None:
        """Count a call that ran out of time."""
        self._probing = False
        self._hung.add(call)
        if call.ended:  # just now, perhaps before it was counted
            self.recover(call)

    def recover(self, call: _Call) -> None:
        """Remove a call that was given up and has returned after all."""
        self._hung.discard(call)
        self._forgiven.discard(call)
        if not len(self):
            self._openings = 0

    def record_success(self) -> None:
        """Record that a call returned in time; if it was the probe, the breaker closes."""
        if self._probing:
            self._probing = False
            self._forgiven |= self._hung
            self._hung.clear()

    def _refusal(self, wait: float) -> InfrastructureTimeout:
        return InfrastructureTimeout(
            f"{len(self._hung)} calls hang, so no further one is made, except one in {wait:.0f} s that tests whether "
            "the tool works again.",
            retry_after=wait,
        )


class _Call:
    """A running job of `run_parallel`; its end is reported once."""

    def __init__(
        self, job: _Job, index: int, done: SimpleQueue[tuple[_Call, Any]], hung_calls: HungCalls | None
    ) -> None:
        self._job, self._done, self._hung_calls = job, done, hung_calls
        self.index = index
        self.ended = False

    def run(self) -> Any:
        try:
            return self._job()
        except BaseException as error:  # handed to the waiting thread
            return error

    def report(self, result: Any) -> None:
        self.ended = True
        if self._hung_calls is not None:
            self._hung_calls.recover(self)
        self._done.put((self, result))


class _FutureCall:
    """A running job of `submit_call`, whose end sets a Future."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self.future: Future[Any] = Future()

    def run(self) -> Any:
        try:
            return self._job()
        except BaseException as error:  # raised by the Future
            return error

    def report(self, result: Any) -> None:
        if isinstance(result, BaseException):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


Inbox = SimpleQueue[_Call | _FutureCall]
_idle: list[Inbox] = []
"""Inboxes of idle threads; `list.append` and `list.pop` are atomic."""


def submit_call(job: Callable[[], _T]) -> Future[_T]:
    """Run a job in a daemon thread and return its future.

    Raises:
        InfrastructureError: The system has no further thread.
    """
    promise = _FutureCall(job)
    _submit(promise)
    return promise.future


def run_parallel(
    jobs: Sequence[Callable[[], _T]], *, timeout: float | None = None, hung_calls: HungCalls | None = None
) -> list[_T | BaseException | None]:
    """Run `jobs` in parallel, at most 128 at once (fewer if the system has no more threads).

    Args:
        jobs: what to call.
        timeout: seconds per job, from its start; None: no limit.
        hung_calls: breaker over the jobs that are given up; once it opens, jobs that have not started fail at once, so
            that all takes no longer than `timeout` plus the time of the jobs that return.

    Returns:
        For each job its result, the exception that it raised, or None if it did not end in time. A job that was not
        started is an `InfrastructureTimeout` (see `hung_calls`), or an `InfrastructureError` if there was no thread.
    """
    results: list[Any] = [None] * len(jobs)
    done: SimpleQueue[tuple[_Call, Any]] = SimpleQueue()
    waiting = deque(range(len(jobs)))
    running: dict[_Call, float | None] = {}  # in the order of their deadlines
    while waiting or running:
        limit = _MAX_AT_ONCE
        while waiting and len(running) < limit:
            call = _Call(jobs[waiting[0]], waiting[0], done, hung_calls)
            try:
                if hung_calls is not None:
                    hung_calls.check()
                _submit(call)
            except InfrastructureTimeout as error:
                results[waiting.popleft()] = error
                continue
            except InfrastructureError as error:
                if not running:
                    results[waiting.popleft()] = error
                limit = len(running)  # running jobs will free their threads
                continue
            waiting.popleft()
            running[call] = None if timeout is None else time.monotonic() + timeout
        _await_one(running, done, results, hung_calls)
    return results


def _await_one(
    running: dict[_Call, float | None],
    done: SimpleQueue[tuple[_Call, Any]],
    results: list[Any],
    hung_calls: HungCalls | None,
) -> None:
    """Wait until a running call ends, or the first of them runs out of time."""
    if not running:
        return
    first = next(iter(running))
    deadline = running[first]
    try:
        call, result = done.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
    except Empty:
        del running[first]
        if hung_calls is not None:
            hung_calls.give_up(first)
        return
    if call in running:  # else it was given up: a late result must not appear
        del running[call]
        results[call.index] = result
        if hung_calls is not None:
            hung_calls.record_success()


def _submit(call: _Call | _FutureCall) -> None:
    """Pass a call to an idle thread, or to a new one.

    Raises:
        InfrastructureError: The system has no further thread.
    """
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = SimpleQueue()
        _start_thread(_work, inbox, "agent-r1-call")
    inbox.put(call)


def _start_thread(serve: Callable[[SimpleQueue[_T]], None], inbox: SimpleQueue[_T], name: str) -> threading.Thread:
    thread = threading.Thread(target=serve, args=(inbox,), name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:  # "can't start new thread": a limit on processes or memory
        raise InfrastructureError(f"No thread for the call: {error}.") from error
    return thread


def _work(inbox: Inbox) -> None:
    while True:
        call = inbox.get()
        result = call.run()
        stays = len(_idle) < _MAX_AT_ONCE
        if stays:
            _idle.append(inbox)  # before the report, so that the waiting thread can use this one again
        call.report(result)
        del call, result  # an idle thread keeps nothing alive
        if not stays:
            return


os.register_at_fork(after_in_child=_idle.clear)  # a fork has none of the threads


class WorkerThread:
    """One thread for all calls on objects that are bound to the thread that created them; calls run in order.

    It starts with the first call, and anew in a fork. It is a daemon, so that a hanging tool does not keep the program
    from ending.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str = "agent-r1-worker") -> None:
        self._name = name
        self._inbox: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._process: int | None = None
        self._thread: threading.Thread | None = None
        self._current: Future[Any] | None = None
        self._ended = False

    @classmethod
    def create(cls, make: Callable[[], _T]) -> tuple[Self, _T]:
        """Start a thread, run `make` in it, and return both; if `make` raises, the thread ends."""
        thread = cls()
        try:
            return thread, thread.call(make)
        except BaseException:
            thread.end()
            raise

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Queue a call behind the earlier ones.

        Raises:
            RuntimeError: The thread has ended.
            InfrastructureError: The system has no further thread.
        """
        future: Future[_T] = Future()
        with self._lock:
            if self._ended:
                raise RuntimeError("The thread has ended.")
            if self._process != os.getpid():  # a fork has no threads
                self._inbox, self._current = SimpleQueue(), None
                self._thread = _start_thread(self._serve, self._inbox, self._name)
                self._process = os.getpid()
            self._inbox.put((future, call))
        return future

    def call(self, function: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
        """Call a function in the thread and return its result."""
        return self.submit(functools.partial(function, *arguments, **options)).result()

    def call_or_run_here(self, function: Callable[[], _T]) -> _T:
        """Call a function in the thread and return its result; in the calling thread while another call runs there."""
        current = self._current
        return function() if current is not None and current.running() else self.call(function)

    @property
    def ended(self) -> bool:
        """Whether it takes no further calls."""
        return self._ended

    def end(self, *, wait: bool = False) -> None:
        """End the thread after the queued calls; may be called twice.

        Args:
            wait: return when the thread has ended; not to be called in the thread itself.
        """
        with self._lock:
            self._ended = True
            self._inbox.put(None)
        if wait and self._thread is not None and self._process == os.getpid():
            self._thread.join()

    def _serve(self, inbox: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
        while (item := inbox.get()) is not None:
            future, call = item
            self._current = future
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            self._current = None
            del item, future, call  # a waiting thread keeps nothing alive


# --- a limit on time --------------------------------------------------------------------------------------------------


class TimeLimitError(BaseException):
    """The time is over. No `Exception`: whatever runs must not take it for an error of its own."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt Python code of the main thread after some seconds; neither code in C nor another thread is interrupted.

    Raises:
        TimeLimitError: The time is over.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(*_: Any) -> None:
        raise TimeLimitError

    handler = signal.signal(signal.SIGALRM, interrupt)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)  # another's timer starts anew
        signal.signal(signal.SIGALRM, handler)


# --- the event loop ---------------------------------------------------------------------------------------------------


class EventLoop:
    """An event loop in a daemon thread, started when needed, for coroutines from any thread; a fork starts another one.

    A coroutine that exits (`sys.exit`) raises a `RuntimeError` instead, because an exit would end the loop for all
    others. One that blocks (`time.sleep`) stops them: code of users runs on `SHARED`, never on a loop of a library.

    Args:
        name: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)  # the thread is the parent's

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start a coroutine and return its future."""
        import asyncio  # slow to import, and most programs need no loop

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(_contained(coroutine), self._loop)

    def run(self, coroutine: Coroutine[Any, Any, _T], timeout: float | None = None) -> _T:
        """Run a coroutine and return its result; it is cancelled after `timeout` seconds.

        Raises:
            InfrastructureTimeout: It took too long.
        """
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except TimeoutError as error:
            if future.done():  # raised by the coroutine itself
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
"""Loop for coroutines of users and other libraries."""


# --- threads of libraries ---------------------------------------------------------------------------------------------


def limit_openmp_spinning() -> None:
    """Set `GOMP_SPINCOUNT`, unless the user has set how threads wait; has no effect after torch is loaded."""
    # With GNU OpenMP's default, 300,000, waiting threads burn the cores that the others need: next to two busy programs
    # on two cores a step took more than ten times as long. With 1,000 it takes 2.5 times as long, and no longer than
    # before on an idle machine.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
