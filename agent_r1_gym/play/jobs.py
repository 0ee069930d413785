"""What is evaluated (`Job`), what comes of it (`Played`), and who does it (`Player`)."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent_r1_gym.play.record import Trajectory


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """One episode to play.

    Attributes:
        task_index: position of the task in its data set.
        sample: 0-based number of the episode among those of its task.
    """

    task_index: int
    sample: int = 0

    def seed(self, run_seed: int) -> int:
        """Returns the episode's own seed in 0..2^31-1: it depends on nothing but the job and the run's seed."""
        digest = hashlib.sha256(f"{run_seed}/{self.task_index}/{self.sample}".encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1


@dataclass(frozen=True, slots=True)
class Played:
    """A job and its episode.

    Attributes:
        job: what was asked for.
        trajectory: the episode.
        seconds: from its reset to its end, with all waiting.
    """

    job: Job
    trajectory: Trajectory
    seconds: float


class Player(abc.ABC):
    """Plays episodes."""

    @abc.abstractmethod
    def play(self, jobs: Sequence[Job]) -> Iterator[Played]:
        """Plays each job once and yields it when its episode ends, in any order.

        An episode that lost a backend comes with `infrastructure_error` set; nothing is tried again here.

        Raises:
            ConfigurationError: no episode could be played like this.
        """

    def close(self) -> None:  # noqa: B027 - most players own nothing
        """Frees what the player owns."""
