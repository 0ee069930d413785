"""Play the missing episodes of a run: retries, several processes, shards; results are written as they arrive."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

from agent_r1_gym.errors import AgentR1Error, ConfigurationError, InfrastructureError
from agent_r1_gym.run.engines import Engine
from agent_r1_gym.run.evaluation.metrics import summarize
from agent_r1_gym.run.evaluation.run_folder import (
    InfraFailure,
    RunFolder,
    Shard,
    find_shards,
    missing_shards,
    question_indices,
    shard_status,
)
from agent_r1_gym.run.player import PlayCounts, Player
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.session import Job
from agent_r1_gym.support.backoff import backoff
from agent_r1_gym.support.files import locked
from agent_r1_gym.support.terminal import Progress, call_every, print_note

PATIENCE = 180.0
"""Seconds without a finished episode, while every backend fails, after which the run stops."""
_FAILURES_BEFORE_BACKOFF = 8
_MAX_BACKOFF = 10.0


class Runner(NamedTuple):
    """Player and engine of one process."""

    player: Player
    engine: Engine


MakeRunner = Callable[[int], Runner]
"""Makes the runner of process number n; picklable if there are several processes."""


class FinishedEpisode(NamedTuple):
    """An episode after its last attempt, and the number of attempts."""

    record: Trajectory
    attempts: int


OnFinished = Callable[[FinishedEpisode], None]


class _Counter:
    """What all processes have played so far, described for the progress bar."""

    def __init__(self, jobs: int, max_tokens: int | None) -> None:
        self._jobs, self._max_tokens = jobs, max_tokens
        self._sources: list[Callable[[], PlayCounts]] = []
        self._started: float | None = None

    def add(self, source: Callable[[], PlayCounts]) -> None:
        """Count what `source` reports as well."""
        self._started = self._started or time.monotonic()
        self._sources.append(source)

    def describe(self) -> str:
        """Describe the episodes under way; "" before the first turn."""
        if self._started is None:
            return ""
        counts = PlayCounts(*map(sum, zip(*(source() for source in self._sources), strict=True)))
        left, seconds = self._jobs - counts.episodes, time.monotonic() - self._started
        return counts.describe(episodes_left=left, max_tokens=self._max_tokens, seconds=seconds)


def evaluate(
    folder: RunFolder,
    make_runner: MakeRunner,
    *,
    settings: Mapping[str, Any],
    jobs: Sequence[Job],
    samples: int = 1,
    processes: int = 1,
    retries: int = 1,
    patience: float = PATIENCE,
    name: str = "eval",
    max_tokens: int | None = None,
    start_metadata: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Play the jobs that are missing in the folder, with a progress bar, and return `metrics.json`.

    Args:
        folder: folder of the run.
        make_runner: makes player and engine of a process.
        settings: see `run_folder`.
        jobs: every episode of the run.
        samples: episodes per question.
        processes: number of processes; each plays a share of the jobs.
        retries: further attempts for an episode whose backend failed.
        patience: see `PATIENCE`.
        name: label of the progress bar.
        max_tokens: maximum number of tokens that a model samples in an episode, to announce and estimate the time;
            None: unknown.
        start_metadata: further entries of this start in `run.json`.

    Raises:
        ConfigurationError: the folder holds another run, or an option is invalid.
        InfrastructureError: the backend is down, or a process died; finished episodes are saved.
    """
    check_unsharded(folder.path)
    with _exclusive_lock(folder), contextlib.closing(folder):
        folder.open(settings, start_metadata)
        done = {(record.task_index, record.sample) for record in folder.episodes()}
        unknown = done - {job.key for job in jobs}
        if unknown:
            raise ConfigurationError(
                f"{folder.episodes_path} holds {len(unknown)} episodes that are not part of this run, the first of "
                "task number {} and sample {}; remove them, or choose another --out.".format(*min(unknown))
            )
        remaining = [job for job in jobs if job.key not in done]
        counter = _Counter(len(remaining), max_tokens)
        if max_tokens is not None and remaining:
            print_note(
                f"{name}: {len(remaining)} episodes of up to {max_tokens:,} tokens, {len(remaining) * max_tokens:,} "
                "in all; -n and --max-turn-tokens shorten it"
            )
        with (
            _interruptible(folder, len(jobs)),
            Progress(len(jobs), name, "episode", done=len(done), status=counter.describe) as bar,
        ):
            writer = _ResultWriter(folder, bar)
            if processes > 1 and len(remaining) > 1:
                processes = min(processes, len(remaining))
                _in_processes(make_runner, remaining, processes, retries, patience, writer.add, counter)
            elif remaining:
                runner = make_runner(0)
                counter.add(lambda: runner.player.counts(runner.engine))
                _play_with_retries(runner, remaining, retries, patience, writer.add)
        folder.close()  # flush the buffered timings
        metrics = summarize(folder.episodes(), writer.failures, samples=samples, seconds=folder.seconds())
        folder.finish(writer.failures, metrics)
        return metrics


def evaluate_shard(
    folder: RunFolder,
    make_runner: MakeRunner,
    *,
    shard: Shard,
    settings: Mapping[str, Any],
    jobs: Sequence[Job],
    samples: int = 1,
    **options: Any,
) -> tuple[RunFolder, dict[str, Any]]:
    """Play one shard of a run, and merge the run if it was the last shard.

    Args:
        folder: folder of the whole run.
        make_runner: makes player and engine of a process.
        shard: the shard to play.
        settings: see `run_folder`; of the whole run.
        jobs: every episode of the whole run.
        samples: episodes per question.
        **options: further arguments of `evaluate`.

    Returns:
        Folder and `metrics.json` of the run if it is complete, else of the shard.

    Raises:
        ConfigurationError: the folder holds another run or other shards, or there are fewer questions than shards.
        InfrastructureError: see `evaluate`.
    """
    check_shard(folder.path, shard, jobs)
    for other in find_shards(folder.path):
        RunFolder(folder.path / other.folder).check_shard(settings)  # before playing for hours
    select, own = shard.select(jobs), RunFolder(folder.path / shard.folder)
    shard_settings = {**settings, "shard": str(shard)}
    metrics = evaluate(own, make_runner, settings=shard_settings, jobs=select, samples=samples, **options)
    if missing_shards(folder.path, shard.of):
        return own, metrics
    with locked(folder.lock_path):  # several shards may finish at once
        failures = folder.merge([RunFolder(folder.path / each.folder) for each in shard.all], settings)
        metrics = summarize(folder.episodes(), failures, samples=samples, seconds=folder.seconds())
        folder.finish(failures, metrics)
    return folder, metrics


def check_shard(path: Path, shard: Shard, jobs: Sequence[Job]) -> None:
    """Reject a shard that overlaps with those in the folder, or that could never be merged.

    Args:
        path: folder of the whole run.
        shard: the shard to play.
        jobs: every episode of the whole run.

    Raises:
        ConfigurationError: the folder holds shards of another size or a run without shards, or there are fewer
            questions than shards.
    """
    questions = len(question_indices(jobs))
    if questions < shard.of:  # a shard without questions would stay missing
        raise ConfigurationError(
            f"--shard {shard}: there are fewer questions than shards. Use at most {questions} shards."
        )
    others = {other.of for other in find_shards(path)} - {shard.of}
    if others:
        raise ConfigurationError(
            f"--shard {shard}: {path} holds shards of {', '.join(map(str, sorted(others)))}, which overlap those of "
            f"{shard.of}. Use the same number of shards, or another --out."
        )
    if not find_shards(path) and RunFolder(path).exists:
        raise ConfigurationError(f"--shard {shard}: {path} holds a run without shards; choose another --out.")


def check_unsharded(path: Path) -> None:
    """Reject a whole run in a folder of shards.

    Raises:
        ConfigurationError: the folder holds shards.
    """
    status = shard_status(path)
    if status is not None:
        raise ConfigurationError(f"{status} To play a whole run, choose another --out.")


class _ResultWriter:
    """Writes episodes as they end, and updates the progress bar."""

    def __init__(self, folder: RunFolder, bar: Progress) -> None:
        self._folder, self._bar = folder, bar
        self.failures: list[InfraFailure] = []
        self._sums = {"return": 0.0, "em": 0.0}
        self._finished, self._metric = 0, "return"

    def add(self, finished: FinishedEpisode) -> None:
        record = finished.record
        if record.infrastructure_error is not None:
            self.failures.append(InfraFailure.of(record, finished.attempts))
            self._show()
            return
        self._folder.add(record)
        self._finished += 1
        self._sums["return"] += record.episode_return
        self._sums["em"] += record.scores.get("em", 0.0)
        self._metric = "em" if record.scores else "return"
        self._show()

    def _show(self) -> None:
        metrics = {self._metric: f"{self._sums[self._metric] / self._finished:.3f}"} if self._finished else {}
        lost = {"lost": str(len(self.failures))} if self.failures else {}
        self._bar.set_metrics(metrics | lost)
        self._bar.update()


@dataclass
class _BackendHealth:
    """Backs off while consecutive episodes fail, and aborts after `patience` seconds without success."""

    patience: float
    consecutive_failures: int = 0
    last_success_at: float = field(default_factory=time.monotonic)

    def observe(self, record: Trajectory) -> None:
        """Count consecutive failures.

        Raises:
            InfrastructureError: no episode has succeeded for `patience` seconds.
        """
        if record.infrastructure_error is None:
            self.consecutive_failures, self.last_success_at = 0, time.monotonic()
            return
        self.consecutive_failures += 1
        if (
            self.consecutive_failures >= _FAILURES_BEFORE_BACKOFF
            and time.monotonic() - self.last_success_at > self.patience
        ):
            raise InfrastructureError(
                f"{self.consecutive_failures} episodes in a row lost their backend, for {self.patience:g} s; the last "
                f"error was: {record.infrastructure_error} Finished episodes are saved; fix the backend and run the "
                "same command again."
            )

    def throttle(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """Yield the jobs, with pauses while the backend is down: a restart must not cost hundreds of episodes."""
        for job in jobs:
            if self.consecutive_failures >= _FAILURES_BEFORE_BACKOFF:
                time.sleep(backoff(0.25, self.consecutive_failures - _FAILURES_BEFORE_BACKOFF, longest=_MAX_BACKOFF))
            yield job


def _play_with_retries(
    runner: Runner, jobs: Sequence[Job], retries: int, patience: float, on_finished: OnFinished
) -> None:
    """Play the jobs, retry infrastructure failures, and hand on each episode after its last attempt."""
    health = _BackendHealth(patience)
    player, engine = runner
    try:
        for attempt in range(1, retries + 2):
            by_key = {job.key: job for job in jobs}
            again: list[Job] = []

            def end(record: Trajectory, attempt: int = attempt, again: list[Job] = again, by_key: Any = by_key) -> None:
                health.observe(record)
                if record.infrastructure_error is not None and attempt <= retries:
                    again.append(by_key[record.task_index, record.sample])
                else:
                    on_finished(FinishedEpisode(record, attempt))

            player.play(health.throttle(jobs), engine, end)
            jobs = again
            if not jobs:
                return
    finally:
        engine.close()
        player.close()


def _in_processes(
    make_runner: MakeRunner,
    jobs: Sequence[Job],
    processes: int,
    retries: int,
    patience: float,
    on_finished: OnFinished,
    counter: _Counter,
) -> None:
    """Distribute the jobs over new processes and hand on their episodes; they end with this process."""
    context = multiprocessing.get_context("spawn")  # threads, CUDA and Java do not survive a fork
    ours: list[Connection] = []
    workers = []
    try:
        for rank in range(processes):
            receiver, sender = context.Pipe(duplex=False)
            arguments = (sender, make_runner, rank, jobs[rank::processes], retries, patience)
            worker = context.Process(target=_work, args=arguments, daemon=True)
            worker.start()
            sender.close()  # so that the pipe ends when the worker does
            ours.append(receiver)
            workers.append(worker)
        _receive(ours, on_finished, counter)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
        for receiver in ours:
            receiver.close()


def _receive(pipes: Sequence[Connection], on_finished: OnFinished, counter: _Counter) -> None:
    open_pipes = list(pipes)
    counts: dict[Connection, PlayCounts] = {}
    while open_pipes:
        for pipe in wait(open_pipes):
            assert isinstance(pipe, Connection)
            try:
                message = pipe.recv()
            except EOFError:
                raise InfrastructureError(
                    "A process of the evaluation died; finished episodes are saved. Run the same command again."
                ) from None
            if message is None:
                open_pipes.remove(pipe)
            elif isinstance(message, FinishedEpisode):
                on_finished(message)
            elif isinstance(message, PlayCounts):
                if pipe not in counts:
                    counter.add(lambda pipe=pipe: counts[pipe])  # type: ignore[misc]
                counts[pipe] = message
            else:
                raise message


def _work(
    sender: Connection, make_runner: MakeRunner, rank: int, jobs: Sequence[Job], retries: int, patience: float
) -> None:
    try:
        runner, lock = make_runner(rank), threading.Lock()

        def send(message: Any) -> None:
            with lock:  # of the thread that plays and the one that counts
                sender.send(message)

        counting = _Reporter(runner, send)
        ended = call_every(2.0, counting.report)
        _play_with_retries(runner, jobs, retries, patience, send)
        ended.set()
        send(None)
    except (BrokenPipeError, KeyboardInterrupt):  # the parent is gone, or reports the interruption itself
        return
    except AgentR1Error as error:
        sender.send(error)


class _Reporter:
    """Sends what a process has played to the one that shows the progress."""

    def __init__(self, runner: Runner, send: Callable[[Any], None]) -> None:
        self._runner, self._send = runner, send

    def report(self) -> None:
        with contextlib.suppress(OSError):  # the other process is gone, or has read the last message
            self._send(self._runner.player.counts(self._runner.engine))


@contextlib.contextmanager
def _interruptible(folder: RunFolder, jobs: int) -> Iterator[None]:
    """End like Ctrl-C on SIGTERM and on SIGHUP (a closed terminal), with a note of what is saved and how to continue.

    Raises:
        KeyboardInterrupt: with the number of the signal.
    """

    def interrupt(number: int, _frame: Any) -> None:
        raise KeyboardInterrupt(number)

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for stop in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(stop) is not signal.SIG_IGN:  # as under nohup
                before[stop] = signal.signal(stop, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        saved = len(folder.episodes())
        with contextlib.suppress(OSError):  # the terminal may be gone
            print_note(
                f"{saved} of {jobs} episodes are saved in {folder.path}; the same command with --out {folder.path} "
                "plays the others"
            )
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _exclusive_lock(folder: RunFolder) -> Iterator[None]:
    """Hold the lock of the folder; reject a second process, which would play and write the same episodes."""
    try:
        with locked(folder.lock_path, timeout=0):
            yield
    except TimeoutError as error:
        raise AgentR1Error(f"Another process is writing {folder.path}; wait for it or choose another --out.") from error
