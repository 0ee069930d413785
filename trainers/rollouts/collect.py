"""Rollouts for training: what the trainer requests and gets, and how the episodes of a batch are played."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_r1_gym.run.engines import Engine
from agent_r1_gym.run.evaluation.metrics import kind_of_error
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.record import Trajectory

if TYPE_CHECKING:  # both are heavy, and evaluations use `Collector` alone
    from trainers.algorithms.process_group import ProcessGroup
    from trainers.rollouts.request_engine import SyncedBackend
from agent_r1_gym.run.session import Job
from agent_r1_gym.support.backoff import backoff
from agent_r1_gym.support.terminal import print_note

Row = Mapping[str, Any]
"""What a rollout is played for: `seed`, for a `ToolEnv` `task_index`, in a mixture `env`, the name of a member; and a
`prompt`, for TRL's logs."""
GenerateTurns = Callable[..., tuple[list[list[int]], list[list[float]] | None]]
"""See `trl_internals.generate_turn`, without the trainer."""


@dataclass(frozen=True, kw_only=True)
class RolloutRequest:
    """A batch of rollouts that the trainer needs: one episode per row, played by the policy as it is now.

    Attributes:
        rows: what to play; copies of a row, one per rollout of its group, stand together.
        training: whether to train on them; else they evaluate.
        batch: number of the batch, of the run's or of the evaluation's.
        step: optimiser steps taken so far.
        max_steps: optimiser steps of the run.
        seed_suffix: makes other random numbers after a rollback.
        slots: maximum number of episodes that a process plays at once.
        model: the policy, unwrapped; with engine=cached its weights are whole until the request is answered.
        backend: samples with its own copy of the weights, which are up to date; None: the model itself samples.
        generate: how TRL generates, for engine=trl.
        process_group: the processes of the run; all of them make the same requests.
    """

    rows: Sequence[Any]
    training: bool
    batch: int
    step: int
    max_steps: int
    slots: int
    model: Any
    process_group: ProcessGroup
    seed_suffix: tuple[int, ...] = ()
    backend: SyncedBackend | None = None
    generate: GenerateTurns | None = None


@dataclass(frozen=True)
class RolloutResult:
    """Finished rollouts.

    Attributes:
        rows: what they were played for, as many as were requested: not necessarily the same ones.
        records: the episodes, in the order of the rows.
        metrics: to be logged as the sum over all processes.
        step: optimiser steps before they were begun; None: as requested.
    """

    rows: Sequence[Any]
    records: Sequence[Trajectory]
    metrics: Mapping[str, float] = field(default_factory=dict)
    step: int | None = None


Collect = Callable[[RolloutRequest], RolloutResult]
"""Plays the episodes of a batch for the trainer: `commands.train.rollouts.RolloutRunner`, which answers a request by an
engine and a `Collector`."""


@dataclass
class Collector:
    """Plays one episode per row and returns their trajectories, in the order of the rows.

    It is no `Collect`: it takes rows and an engine, not a request. `commands.train.rollouts.RolloutRunner` is the
    adapter: it builds the engine that a `RolloutRequest` needs, and makes a `RolloutResult` of the trajectories.

    Attributes:
        player: makes sessions.
        retries: how often an episode that lost its backend is played again.
        retry_delay: seconds before the first retry, twice as many before each further one: a backend that restarts
            needs some.
        seconds: after which episodes are cut at the end of their turn, as a token budget cuts them, with what they have
            earned; none is played again then, and those are lost that have not begun. None: they end by themselves.
    """

    player: Player
    retries: int = 2
    retry_delay: float = 1.0
    seconds: float | None = None
    _reported: set[str] = field(default_factory=set)

    def collect(
        self,
        rows: Sequence[Row],
        engine: Engine,
        *,
        seeds: Sequence[int] | None = None,
        keep_deadline: bool = False,
    ) -> list[Trajectory]:
        """Play the rows' episodes; those that stay without a backend come back marked (`infrastructure_error`).

        Args:
            rows: what is played.
            engine: who acts.
            seeds: of the model's samples, one per row; None, and for episodes that are played again: the engine's.
            keep_deadline: these belong to the latest rollouts, whose time is running.
        """
        records: dict[int, Trajectory] = {}
        waiting = list(range(len(rows)))
        if not keep_deadline:
            self.player.deadline = None if self.seconds is None else time.monotonic() + self.seconds
        # Also with nothing to play: other processes may retry, by collective calls.
        for attempt in range(self.retries + 1):
            if attempt and waiting:
                time.sleep(backoff(self.retry_delay, attempt - 1))
            records |= self._play(rows, waiting, engine, None if attempt else seeds)
            waiting = [index for index in waiting if records[index].infrastructure_error is not None]
            if self.out_of_time:
                break
        self.report_lost([records[index] for index in waiting])
        return [records[index] for index in range(len(rows))]

    def report_lost(self, lost: Sequence[Trajectory]) -> None:
        """Say why episodes were lost; each kind of failure once."""
        first = {kind_of_error(str(record.infrastructure_error)): record.infrastructure_error for record in lost}
        for kind in first.keys() - self._reported:
            print_note(f"{len(lost)} episodes were lost and teach nothing. One of them: {first[kind]}")
        self._reported.update(first)

    @property
    def out_of_time(self) -> bool:
        """Whether the time of the latest rollouts is over."""
        deadline = self.player.deadline
        return deadline is not None and time.monotonic() >= deadline

    def close(self) -> None:
        """Close the environments."""
        self.player.close()

    def _play(
        self, rows: Sequence[Row], indices: Sequence[int], engine: Engine, seeds: Sequence[int] | None
    ) -> dict[int, Trajectory]:
        records: dict[int, Trajectory] = {}

        def end(record: Trajectory) -> None:
            # Episodes end in any order, and copies of a row share the task: only `sample` identifies the row.
            records[record.sample] = record

        jobs = (job_of(rows[index], index, None if seeds is None else seeds[index]) for index in indices)
        self.player.play(jobs, engine, end)
        if len(records) < len(indices):
            missing = len(indices) - len(records)
            raise RuntimeError(
                f"{type(engine).__name__} ended before {missing} of {len(indices)} episodes had: an engine plays every "
                "session until `finish_turn` answers None."
            )
        return records


def job_of(row: Row, number: int, sampling_seed: int | None = None) -> Job:
    """Make the job of a row; its sample number is the index of the row, to assign the record to the row."""
    index, env = row.get("task_index"), row.get("env") or ""
    return Job(number if index is None else index, number, row.get("seed"), sampling_seed, env=env)
