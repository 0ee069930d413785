"""Plays a run to its end: what is left to do, further tries, several processes, results written as they come."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.errors import AgentR1Error, InfrastructureError
from agent_r1_gym.evaluation.metrics import episode_row, summarize
from agent_r1_gym.evaluation.run_folder import Row, RunFolder
from agent_r1_gym.play.jobs import Job, Played, Player
from agent_r1_gym.support.files import locked

MakePlayer = Callable[[int], Player]
"""Returns the player of process number n; picklable if there are several processes."""
GIVE_UP_AFTER = 100
"""Episodes in a row that lost their backend, until the run stops: the backend is down."""


@dataclass(frozen=True, slots=True)
class Finished:
    """An episode after its last try.

    Attributes:
        played: the last try.
        tries: how often it was played.
    """

    played: Played
    tries: int


def evaluate(
    folder: RunFolder,
    env: ToolEnv,
    make_player: MakePlayer,
    *,
    settings: Mapping[str, Any],
    jobs: Sequence[Job],
    samples: int = 1,
    processes: int = 1,
    retries: int = 1,
) -> Row:
    """Plays the jobs that the folder lacks, under a progress bar, and returns `metrics.json`.

    Args:
        folder: of the run.
        env: one environment, for tasks and scorer.
        make_player: who plays.
        settings: see `runs`.
        jobs: every episode of the run.
        samples: episodes a question.
        processes: that play, each its share of the jobs.
        retries: further tries of an episode that lost a backend.

    Raises:
        ConfigurationError: the folder holds another run, or nothing can be played like this.
        InfrastructureError: many episodes in a row lost their backend, or a process died; what is finished is kept.
    """
    with _only_writer(folder), contextlib.closing(folder):
        folder.open(settings)
        done = {Job(row["task_index"], row["sample"]) for row in folder.episodes()}
        left = [job for job in jobs if job not in done]
        failures = _play_all(folder, env, make_player, left, len(jobs), processes=processes, retries=retries)
        folder.close()  # so that every timing is on disk
        metrics = summarize(folder.episodes(), failures, samples=samples, seconds=folder.seconds())
        folder.finish(failures, metrics)
        return metrics


def _play_all(
    folder: RunFolder,
    env: ToolEnv,
    make_player: MakePlayer,
    jobs: Sequence[Job],
    total: int,
    *,
    processes: int,
    retries: int,
) -> list[Row]:
    """Writes each episode as it ends; returns those that stay without a backend."""
    from tqdm import tqdm

    failures: list[Row] = []
    streak, right = 0, 0.0
    with (
        tqdm(total=total, initial=total - len(jobs), desc="eval", unit="episode") as bar,
        contextlib.closing(_finished(make_player, jobs, processes=processes, retries=retries)) as stream,
    ):
        for finished in stream:
            job, trajectory = finished.played.job, finished.played.trajectory
            bar.update()
            if trajectory.infrastructure_error is not None:
                streak += 1
                failures.append(_failure(finished))
                if streak >= GIVE_UP_AFTER:
                    raise InfrastructureError(
                        f"{streak} episodes in a row lost their backend, at last: {trajectory.infrastructure_error} "
                        f"What is finished is in {folder.path}; mend it and start the same command again."
                    )
                continue
            streak = 0
            row = episode_row(job, trajectory, task=env.tasks[job.task_index], scorer=env.scorer)
            folder.add(row, seconds=finished.played.seconds)
            right += row["scores"]["em"] or 0.0
            bar.set_postfix(em=f"{right / (bar.n - bar.initial - len(failures)):.3f}", refresh=False)
    return failures


def _failure(finished: Finished) -> Row:
    job, trajectory = finished.played.job, finished.played.trajectory
    return {
        "task_index": job.task_index,
        "sample": job.sample,
        "task_id": trajectory.task_id,
        "error": trajectory.infrastructure_error,
        "tries": finished.tries,
    }


def _finished(make_player: MakePlayer, jobs: Sequence[Job], *, processes: int, retries: int) -> Generator[Finished]:
    if processes > 1 and len(jobs) > 1:
        yield from _in_processes(make_player, jobs, min(processes, len(jobs)), retries)
    elif jobs:
        yield from play_with_retries(make_player(0), jobs, retries)


def play_with_retries(player: Player, jobs: Sequence[Job], retries: int) -> Iterator[Finished]:
    """Plays the jobs, and again those that lost a backend, and closes the player; yields each after its last try."""
    try:
        for attempt in range(1, retries + 2):
            again: list[Job] = []
            for played in player.play(jobs):
                if played.trajectory.infrastructure_error is not None and attempt <= retries:
                    again.append(played.job)
                else:
                    yield Finished(played, attempt)
            jobs = again
            if not jobs:
                return
    finally:
        player.close()


def _in_processes(make_player: MakePlayer, jobs: Sequence[Job], processes: int, retries: int) -> Iterator[Finished]:
    """Deals the jobs out to new processes and yields what they finish; they end with this one."""
    context = multiprocessing.get_context("spawn")  # threads, CUDA and Java do not survive a fork
    ours: list[Connection] = []
    workers = []
    try:
        for rank in range(processes):
            receiver, sender = context.Pipe(duplex=False)
            share = jobs[rank::processes]
            worker = context.Process(target=_work, args=(sender, make_player, rank, share, retries), daemon=True)
            worker.start()
            sender.close()  # so that the pipe ends when the worker does
            ours.append(receiver)
            workers.append(worker)
        yield from _receive(ours)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
        for receiver in ours:
            receiver.close()


def _receive(pipes: Sequence[Connection]) -> Iterator[Finished]:
    open_pipes = list(pipes)
    while open_pipes:
        for pipe in wait(open_pipes):
            assert isinstance(pipe, Connection)
            try:
                news = pipe.recv()
            except EOFError:
                raise InfrastructureError(
                    "A process of the evaluation died; what is finished is kept. Start the same command again."
                ) from None
            if news is None:
                open_pipes.remove(pipe)
            elif isinstance(news, Finished):
                yield news
            else:
                raise news


def _work(sender: Connection, make_player: MakePlayer, rank: int, jobs: Sequence[Job], retries: int) -> None:
    try:
        for finished in play_with_retries(make_player(rank), jobs, retries):
            sender.send(finished)
        sender.send(None)
    except (BrokenPipeError, KeyboardInterrupt):  # the parent has gone, or is going and says so itself
        return
    except AgentR1Error as error:
        sender.send(error)


@contextlib.contextmanager
def _only_writer(folder: RunFolder) -> Iterator[None]:
    """Refuses a second process on the same folder, which would play the same episodes."""
    try:
        with locked(folder.lock_path, timeout=0):
            yield
    except TimeoutError as error:
        raise AgentR1Error(f"Another process is writing {folder.path}; wait for it or choose another --out.") from error
