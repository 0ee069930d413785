"""Plays the next batch while this one is trained on: rollouts are one step off-policy, and resumes stay exact."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.support.concurrency import WorkerThread
from trainers.rollouts.collect import RolloutResult

Rows = list[dict[str, Any]]
RolloutTask = Callable[[], RolloutResult]


class RolloutPrefetcher:
    """Plays batches in one worker thread, always the same: an environment may hold a connection bound to it.

    Args:
        cancel: ends the episodes that run.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._thread = WorkerThread("rollouts")
        self._rows: Rows | None = None
        self._future: Future[RolloutResult] | None = None

    def run_now(self, play: RolloutTask) -> RolloutResult:
        """Play a batch and wait for it."""
        return self._thread.call(play)

    def start(self, rows: Rows, play: RolloutTask) -> None:
        """Begin to play a batch and return at once."""
        self._rows, self._future = rows, self._thread.submit(play)

    def pop_batch(self) -> tuple[Rows, RolloutResult | None] | None:
        """Wait for the batch that was started; return its rows and rollouts.

        None where no batch was begun; no rollouts where a resumed run has lost them.

        Raises:
            Exception: whatever playing it raised.
        """
        if self._rows is None:
            return None
        rows, played = self._rows, None if self._future is None else self._future.result()
        self._rows = self._future = None
        return rows, played

    def wait(self) -> float:
        """Wait until no episode runs, so that weights may be changed; returns the seconds that it took."""
        started = time.perf_counter()
        if self._future is not None:
            self._future.exception()
        return time.perf_counter() - started

    def state(self) -> dict[str, Any] | None:
        """Wait for the batch, and return the state for a resume; only the rows if it failed."""
        self.wait()
        if self._rows is None:
            return None
        if self._future is None or self._future.exception() is not None:
            return {"rows": self._rows, "records": None}
        played = self._future.result()
        records = [record.to_dict() for record in played.records]
        own = {"played_rows": played.rows, "step": played.step, "summed_metrics": dict(played.metrics)}
        return {"rows": self._rows, "records": records, **own}

    def load(self, state: Mapping[str, Any] | None) -> None:
        """Restore what `state` returned; what runs is left."""
        self.discard()
        if state is None:
            return
        self._rows = state["rows"]
        if state["records"] is not None:
            records = [Trajectory.from_dict(record) for record in state["records"]]
            self._future = Future()
            self._future.set_result(
                RolloutResult(state["played_rows"], records, state["summed_metrics"], state["step"])
            )

    def discard(self) -> None:
        """End what runs; its result is dropped."""
        if self._future is not None and not self._future.done():
            self._cancel()
            self.wait()
        self._rows = self._future = None

    def close(self) -> None:
        """End what runs, and the thread; the next batch starts another."""
        self.discard()
        self._end_thread(wait=True)

    def abandon(self) -> None:
        """End what runs and the thread, and waits for neither: the run has failed, and is not to end later for it."""
        if self._future is not None and not self._future.done():
            self._cancel()
        self._rows = self._future = None
        self._end_thread(wait=False)

    def _end_thread(self, *, wait: bool) -> None:
        self._thread.end(wait=wait)
        self._thread = WorkerThread("rollouts")


def repartition_prefetched(
    states: Sequence[Mapping[str, Any] | None], *, processes: int, rank: int
) -> dict[str, Any] | None:
    """Divide batches that were started on another number of processes; return the part of this process.

    Args:
        states: `RolloutPrefetcher.state()` of all processes that saved, in their order.
        processes: how many there are now.
        rank: which of them this is.
    """
    known = [state for state in states if state is not None]
    if len(known) < len(states):
        return None
    size = sum(len(state["rows"]) for state in known) // processes
    own = slice(rank * size, (rank + 1) * size)
    rows = [row for state in known for row in state["rows"]][own]
    if any(state["records"] is None for state in known):
        return {"rows": rows, "records": None}
    parts = {name: [part for state in known for part in state[name]][own] for name in ("records", "played_rows")}
    names = known[0]["summed_metrics"]
    summed_metrics = {
        name: sum(state["summed_metrics"][name] for state in known) if rank == 0 else 0.0 for name in names
    }
    return {"rows": rows, **parts, "step": known[0]["step"], "summed_metrics": summed_metrics}
