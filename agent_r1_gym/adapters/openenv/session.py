"""A session of the server: what OpenEnv's `HTTPEnvServer` calls, one environment and one thread each."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from agent_r1_gym.adapters.episode import Chat, Episode
from agent_r1_gym.adapters.openenv.tasks import ServedTasks
from agent_r1_gym.errors import AgentR1Error, EpisodeError
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.support.checks import check_integer
from agent_r1_gym.text import encodable
from agent_r1_gym.types import info_to_dict

_APART = frozenset({"messages", "new_messages", "tool_outcomes"})
"""Keys that the field `info` lacks: messages have fields of their own, and say what the tools returned."""
logger = logging.getLogger(__name__)


class Session(ServedTasks):
    """An environment, and its episode.

    Args:
        make_env: called at the first reset, in the thread of the session: a tool may be bound to it.
        tasks: the tasks of that environment; empty where it has no list of them.
        whole_history: see `server.create_app`.
    """

    def __init__(self, make_env: Callable[[], TextEnv], tasks: Sequence[Any], whole_history: bool) -> None:
        super().__init__(tasks)
        self._make_env, self._whole_history = make_env, whole_history
        self._env: TextEnv | None = None
        self._episode: Episode | None = None
        self._episode_id: str | None = None

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Any:
        """Starts an episode, in the environment of the last one."""
        with _in_one_line():
            if seed is not None:
                check_integer("seed", seed, 0)
            index = self.chosen(options)
            self._env = self._env or self._make_env()
            self._episode, self._episode_id = None, episode_id  # what follows may raise
            self._episode = Episode(self._env, task_index=index, seed=seed)
            return self._observation(self._episode, self._episode.chat(), None)

    def step(self, action: Any) -> Any:
        """Takes a turn."""
        with _in_one_line():
            if self._episode is None or self._episode.ended:
                raise EpisodeError("No episode is running: send a reset first, and again after an episode has ended.")
            new = self._episode.take(action.text)
            return self._observation(self._episode, new, self._episode.turns[-1].reward)

    @property
    def state(self) -> Any:
        """Which episode it is, and how many tasks there are."""
        turns = len(self._episode.turns) if self._episode else 0
        return classes()["State"](episode_id=self._episode_id, step_count=turns, num_tasks=len(self.tasks))

    def close(self) -> None:
        """Closes the environment and its tools."""
        if self._env is not None:
            self._env.close()

    def _observation(self, episode: Episode, new: Chat, reward: float | None) -> Any:
        told = info_to_dict({name: value for name, value in episode.told.items() if name not in _APART})
        fields: dict[str, Any] = {"new_messages": new, "info": told, "reward": reward, "done": episode.ended}
        fields["metadata"] = {}  # its default is expensive
        if episode.ended:
            record = episode.record()
            told |= {"end_reason": record.end_reason, "infrastructure_error": record.infrastructure_error}
            fields |= {"terminated": record.terminated, "truncated": record.truncated}
            if record.infrastructure_error is not None:
                fields["reward"] = None  # an episode that lost a backend is worth nothing, not 0
        if self._whole_history:
            fields |= {"messages": episode.chat(), "text": episode.observation}
        else:
            fields["text"] = "\n\n".join(message["content"] for message in new)
        return classes()["Observation"].model_construct(**fields)


@functools.cache
def classes() -> dict[str, Any]:
    """Returns the classes that OpenEnv is given, whose bases are OpenEnv's."""
    from openenv.core.env_server import types
    from openenv.core.env_server.interfaces import Environment
    from pydantic import BeforeValidator, create_model

    text = Annotated[str, BeforeValidator(lambda value: encodable(value) if isinstance(value, str) else value)]
    chat, flag = (list[dict[str, Any]] | None, None), (bool, False)
    shown: dict[str, Any] = {"text": (str, ""), "new_messages": chat, "messages": chat, "info": (dict[str, Any], {})}
    ends: dict[str, Any] = {"terminated": flag, "truncated": flag}
    return {
        "Session": type("Session", (Session, Environment), {"SUPPORTS_CONCURRENT_SESSIONS": True}),
        "Action": create_model("TurnAction", __base__=types.Action, text=(text, ...)),
        "Observation": create_model("TurnObservation", __base__=types.Observation, **shown, **ends),
        "State": types.State,
    }


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Says in one line what a client did wrong, or that something broke: OpenEnv sends the words of an exception."""
    try:
        yield
    except AgentR1Error as error:
        raise RuntimeError(" ".join(str(error).split())) from error
    except Exception as error:
        logger.exception("The environment raised; its session goes on.")
        raise RuntimeError(f"The environment raised {type(error).__name__}: {' '.join(str(error).split())}") from error
