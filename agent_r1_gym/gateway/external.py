"""Programs that are started elsewhere: each comes with a key of its own, which begins an episode."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from agent_r1_gym.core.parsing import Parser
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task
from agent_r1_gym.gateway.env import MAX_TURNS, ProgramEnv
from agent_r1_gym.gateway.episode import ModelRequest
from agent_r1_gym.gateway.programs import Program, ProgramJob, Stop
from agent_r1_gym.gateway.server import running_gateway


class ExternalEpisodes:
    """Makes the environments of programs that come by themselves, and ends their episodes together.

    Args:
        parser: see `ExternalProgramEnv`.
        idle_seconds: see `ExternalProgramEnv`.
        max_turns: see `ExternalProgramEnv`.

    Attributes:
        closed: whether no further episode should begin.
    """

    def __init__(self, *, parser: str | Parser, idle_seconds: float, max_turns: int = MAX_TURNS) -> None:
        self._make = functools.partial(
            ExternalProgramEnv, parser=parser, idle_seconds=idle_seconds, max_turns=max_turns
        )
        self._envs: list[ExternalProgramEnv] = []
        self.closed = False
        running_gateway().gateway.accept_new_keys()

    def make_env(self, markup: Sequence[str]) -> ExternalProgramEnv:
        """Make an environment from the special tokens of a model."""
        env = self._make(markup=markup)
        self._envs.append(env)
        return env

    def close(self) -> None:
        """End all episodes; safe to call from any thread."""
        self.closed = True
        running_gateway().gateway.refuse_new_keys()
        for env in list(self._envs):
            env.release_resources()


class ExternalProgram(Program):
    """The next program that comes to the gateway of this process with a new key."""

    comes_by_itself = True

    def start(self, job: ProgramJob) -> Stop:
        """See `Program`."""
        running_gateway().gateway.offer(job.api_key)
        return lambda: None


class ExternalProgramEnv(ProgramEnv):
    """The episode of a program that comes by itself.

    The task of its record is the first message of the user. It ends when the program reports its result, and earns the
    reward that it reports; one that neither asks nor reports for `idle_seconds` is an infrastructure failure.

    Args:
        parser: format of the turns with calls.
        markup: special tokens of the model.
        idle_seconds: seconds to wait for the next request.
        max_turns: turns of an episode at most.
    """

    begins_in_any_order = True

    def __init__(
        self,
        *,
        parser: str | Parser,
        markup: Sequence[str] = (),
        idle_seconds: float = 300.0,
        max_turns: int = MAX_TURNS,
    ) -> None:
        bare = ToolEnv(tasks=[Task("external", "")], parser=parser, reward=(), max_turns=max_turns, markup=markup)
        super().__init__(bare, ExternalProgram(), agent_timeout=idle_seconds)

    def task_of(self, task: Task, request: ModelRequest) -> Task:
        """See `ProgramEnv`."""
        question = next(message.content for message in request.messages if message.role in ("user", "tool"))
        return replace(task, prompt=question)
