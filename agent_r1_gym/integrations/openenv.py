"""OpenEnv: any text environment as a server; each connection is a session with its own environment and thread.

    agent-r1 serve env HotpotQA --port 8000

Sessions and messages are those of OpenEnv's `HTTPEnvServer`. Its protocol has only `done`; the observation holds
`terminated` and `truncated`, and an episode that lost a backend ends without a reward. `games.openenv` is the client.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from agent_r1_gym.core.text import encodable
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import info_to_dict
from agent_r1_gym.errors import AgentR1Error, ConfigurationError, EpisodeError, MissingDependencyError
from agent_r1_gym.integrations.base import library
from agent_r1_gym.integrations.episode import ChatEpisode, ChatMessages
from agent_r1_gym.registry import TextEnv, short_id
from agent_r1_gym.support.checks import check_choice, check_integer, check_seconds
from agent_r1_gym.support.concurrency import WorkerThread
from agent_r1_gym.support.http_server import (
    Asgi,
    guarded_requests,
    guarded_websockets,
    is_local,
    is_nested_deeper,
    run_app,
)
from agent_r1_gym.tools.search import SearchTool

logger = logging.getLogger(__name__)
_REQUEST_TIMEOUT = 10.0
_MAX_BODY_BYTES = 2**16
_GRACE = 3
_MAX_NESTING = 100
_EXCLUDED_PATHS = ("/mcp", "/docs", "/redoc")
"""Sessions over /mcp would outlive every connection (`agent-r1 serve mcp` serves the tools alone); the pages load
scripts of other servers into a browser."""
_EXCLUDED_INFO_KEYS = frozenset({"messages", "new_messages", "tool_outcomes", "dataset"})
"""Keys that are not sent in the field `info`: messages have their own fields and hold the tool outputs; `dataset` has
paths of the server, or the settings from which a client could generate another split."""
_CLOSE_TIMEOUT = 2.0
"""Seconds that the end of a session waits for its environment; a hanging tool keeps it from closing."""
_RESET_OPTIONS = ("task_index", "index", "split")
"""Options of a reset other than seed and episode id; `index` and `split` are the names of OpenEnv's Task API."""
_MAX_TASKS = 1_000


@dataclass(frozen=True)
class OpenEnvServerLimits:
    """Limits on one client.

    Attributes:
        max_sessions: sessions at once; further ones are refused.
        idle_timeout: seconds without a message after which a session is closed.
        max_message_bytes: size of the largest message; a larger one closes its session.

    Raises:
        ConfigurationError: a limit has a wrong value.
    """

    max_sessions: int = 64
    idle_timeout: float = 3_600.0
    max_message_bytes: int = 2**20

    def __post_init__(self) -> None:
        check_integer("max_sessions", self.max_sessions, 1)
        check_seconds("idle_timeout", self.idle_timeout)
        check_integer("max_message_bytes", self.max_message_bytes, 1)


def create_app(
    make_env: Callable[[], TextEnv],
    limits: OpenEnvServerLimits,
    *,
    hosts: Collection[str] | None = None,
    full_history: bool = False,
) -> Asgi:
    """Build OpenEnv's ASGI application for an environment.

    Args:
        make_env: returns a new environment; called once here, so that wrong options fail before any session.
        limits: `max_message_bytes` is enforced by `serve`, not by the application.
        hosts: names under which the server may be addressed, see `new_app`.
        full_history: send all messages and the full observation in every turn; False: only the new ones, and all
            after a turn in which a wrapper rewrote the history.

    Raises:
        MissingDependencyError: OpenEnv is not installed, or too old.
    """
    library("openenv.core", package="openenv", tested_version="0.10")
    from openenv.core.env_server.http_server import create_app

    if "mode" not in inspect.signature(create_app).parameters:
        raise MissingDependencyError(
            "The installed OpenEnv is too old: its create_app() takes no `mode`. Its distribution was called "
            "openenv-core; run pip uninstall openenv-core, then pip install 'openenv>=0.10'."
        )
    first = make_env()
    bare = first.unwrapped
    session, action, observation = (_openenv_classes()[name] for name in ("Session", "Action", "Observation"))
    tasks = bare.tasks if isinstance(bare, ToolEnv) else ()
    make = functools.partial(session, make_env, tasks, full_history, _is_quick(bare))
    name = short_id(first.spec.id) if first.spec else type(bare).__name__
    app = create_app(make, action, observation, name, limits.max_sessions, mode="production")
    app.state.first = first  # environments share their data as long as one of them exists
    app.router.routes[:] = [
        route for route in app.router.routes if not getattr(route, "path", "").startswith(_EXCLUDED_PATHS)
    ]
    return guarded_requests(
        guarded_websockets(app, limits.idle_timeout, refusal=_refusal),
        error_body=lambda status, message: json.dumps({"detail": message}).encode(),
        hosts=hosts,
        max_bytes=_MAX_BODY_BYTES,
        timeout=_REQUEST_TIMEOUT,
    )


def _refusal(message: str) -> str | None:
    """The error for a message that would end its session as an exception of OpenEnv's server, None for any other."""
    is_object, levels = message.lstrip()[:1] == "{", message.count("[") + message.count("{")
    if is_object and levels <= _MAX_NESTING:
        return None
    try:
        value = json.loads(message)
    except ValueError:  # OpenEnv has an error for it
        return None
    except RecursionError:
        is_deep = True
    else:
        is_deep = is_nested_deeper(value, _MAX_NESTING)
    if is_deep:
        problem = f"The message is nested deeper than {_MAX_NESTING} levels."
    elif is_object:
        return None
    else:
        problem = f"The message must be a JSON object, got {type(value).__name__}."
    return json.dumps({"type": "error", "data": {"message": problem, "code": "VALIDATION_ERROR"}})


def _is_quick(env: Any) -> bool:
    """Whether all tools search an index in this process: then no call can block other sessions for long."""
    tools = env.tools if isinstance(env, ToolEnv) else ()
    return bool(tools) and all(isinstance(tool, SearchTool) and tool.is_instant for tool in tools)


def serve(
    make_env: Callable[[], TextEnv],
    host: str,
    *,
    port: int,
    limits: OpenEnvServerLimits,
    on_ready: Callable[[str], None],
    full_history: bool = False,
) -> None:
    """Serve an environment until Ctrl-C or SIGTERM.

    Args:
        make_env: see `create_app`, as are `limits` and `full_history`.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        limits: see `create_app`.
        on_ready: called with the URL of the server.
        full_history: see `create_app`.

    Raises:
        ConfigurationError: the address cannot be listened on.
        MissingDependencyError: see `create_app`.
    """
    app = create_app(make_env, limits, hosts=[host] if is_local(host) else None, full_history=full_history)
    run_app(
        app,
        host,
        port=port,
        request_timeout=_REQUEST_TIMEOUT,
        max_message_bytes=limits.max_message_bytes,
        shutdown_grace=_GRACE,
        on_ready=on_ready,
    )


# --- sessions -------------------------------------------------------------------------------------------------------


class _ServedTasks:
    """OpenEnv's Task API over the tasks of the served split; it never shows answers.

    Args:
        tasks: empty for an environment without a task list.
    """

    def __init__(self, tasks: Sequence[Any]) -> None:
        self.tasks = tasks
        self.split = str(getattr(tasks, "split", "train"))

    def requested_index(self, options: Mapping[str, Any]) -> int | None:
        """The task index that the options of a reset select."""
        for name in options:
            check_choice("reset option", name, ("seed", "episode_id", *_RESET_OPTIONS))
        if options.get("split") not in (None, self.split):
            raise ConfigurationError(f"This server has the split {self.split!r}, not {options['split']!r:.80}.")
        indices = {name: options[name] for name in ("task_index", "index") if options.get(name) is not None}
        if len(indices) > 1:
            raise ConfigurationError(f"task_index and index mean the same; expected one of them, got {indices}.")
        if not indices:
            return None
        index: int = next(iter(indices.values()))
        check_integer("task_index", index, 0)
        if index >= len(self.tasks):
            raise ConfigurationError(f"task_index must be below {len(self.tasks)}, the number of tasks; got {index}.")
        return index

    def list_splits(self) -> list[str]:
        """The served split, if there are tasks."""
        return [self.split] if len(self.tasks) else []

    def num_tasks(self, split: str) -> int:
        """Number of tasks of a split."""
        return len(self.tasks) if split == self.split else 0

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """The public fields of a task."""
        if not 0 <= index < self.num_tasks(split):
            raise IndexError(index)
        return {"id": self.tasks[index].id, "index": index, "prompt": self.tasks[index].prompt}

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        """The public fields of several tasks, at most a thousand."""
        return [self.get_task(split, index) for index in range(self.num_tasks(split))[start:stop][:_MAX_TASKS]]

    list_tasks = get_task_range


class _Session(_ServedTasks):
    """A session: an environment with its running episode, in a daemon thread.

    Args:
        make_env: called at the first reset, in the thread of the session: a tool may be bound to it.
        tasks: the tasks of that environment; empty where it has no list of them.
        full_history: see `server.create_app`.
        is_quick: step in the thread of the event loop: a thread switch takes longer than a step that only computes.
    """

    def __init__(
        self, make_env: Callable[[], TextEnv], tasks: Sequence[Any], full_history: bool, is_quick: bool
    ) -> None:
        super().__init__(tasks)
        self._make_env, self._whole_history = make_env, full_history
        self._env: TextEnv | None = None
        self._episode: ChatEpisode | None = None
        self._episode_id: str | None = None
        self._thread = None if is_quick else WorkerThread()

    async def reset_async(self, *arguments: Any, **options: Any) -> Any:
        """Run `reset` in the thread of the session."""
        if self._thread is None:
            return self.reset(*arguments, **options)
        return await asyncio.wrap_future(self._thread.submit(lambda: self.reset(*arguments, **options)))

    async def step_async(self, action: Any) -> Any:
        """Run `step` in the thread of the session."""
        if self._thread is None:
            with _one_line_errors():
                episode = self._running()
                return self._step_result(episode, await episode.step_chat_async(action.text))
        return await asyncio.wrap_future(self._thread.submit(lambda: self.step(action)))

    def reset(self, seed: int | None = None, episode_id: str | None = None, **options: Any) -> Any:
        """Start an episode."""
        with _one_line_errors():
            if seed is not None:
                check_integer("seed", seed, 0)
            index = self.requested_index(options)
            self._env = self._env or self._make_env()
            self._episode, self._episode_id = None, episode_id  # what follows may raise
            self._episode = ChatEpisode(self._env, task_index=index, seed=seed)
            return self._observation(self._episode, self._episode.chat(), None)

    def step(self, action: Any) -> Any:
        """Step with a turn of the model."""
        with _one_line_errors():
            episode = self._running()
            return self._step_result(episode, episode.step_chat(action.text))

    def _running(self) -> ChatEpisode:
        if self._episode is None or self._episode.ended:
            raise EpisodeError("No episode is running: send a reset first, and again after an episode has ended.")
        return self._episode

    def _step_result(self, episode: ChatEpisode, new: ChatMessages) -> Any:
        return self._observation(episode, new, episode.turns[-1].reward)

    @property
    def state(self) -> Any:
        """The id and length of the episode, and the number of tasks."""
        turns = len(self._episode.turns) if self._episode else 0
        return _openenv_classes()["State"](episode_id=self._episode_id, step_count=turns, num_tasks=len(self.tasks))

    def close(self) -> None:
        """Close the environment and its tools; a running call is waited for in the thread, not here."""
        if self._thread is None:
            self._close()
            return
        wait([self._thread.submit(self._close)], _CLOSE_TIMEOUT)
        self._thread.end()

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _observation(self, episode: ChatEpisode, new: ChatMessages, reward: float | None) -> Any:
        raw_info = info_to_dict(
            {name: value for name, value in episode.raw_info.items() if name not in _EXCLUDED_INFO_KEYS}
        )
        fields: dict[str, Any] = {"new_messages": new, "info": raw_info, "reward": reward, "done": episode.ended}
        fields["metadata"] = {}  # its default is expensive
        if episode.ended:
            record = episode.record()
            raw_info |= {"end_reason": record.end_reason, "infrastructure_error": record.infrastructure_error}
            fields |= {"terminated": record.terminated, "truncated": record.truncated}
            if record.infrastructure_error is not None:
                fields["reward"] = None  # not 0: an episode that lost its backend has no score
        if self._whole_history or episode.info.get("context_rewritten"):
            fields |= {"messages": episode.chat(), "text": episode.observation}
        else:
            fields["text"] = "\n\n".join(message["content"] for message in new)
        return _openenv_classes()["Observation"].model_construct(**fields)


@functools.cache
def _openenv_classes() -> dict[str, Any]:
    """Build the classes that OpenEnv gets, whose bases are OpenEnv's."""
    from openenv.core.env_server import types
    from openenv.core.env_server.interfaces import Environment
    from pydantic import BeforeValidator, create_model

    text = Annotated[str, BeforeValidator(_turn_text)]
    chat, flag = (list[dict[str, Any]] | None, None), (bool, False)
    shown: dict[str, Any] = {"text": (str, ""), "new_messages": chat, "messages": chat, "info": (dict[str, Any], {})}
    ends: dict[str, Any] = {"terminated": flag, "truncated": flag}
    return {
        "Session": type("Session", (_Session, Environment), {"SUPPORTS_CONCURRENT_SESSIONS": True}),
        "Action": create_model("TurnAction", __base__=types.Action, text=(text, ...)),
        "Observation": create_model("TurnObservation", __base__=types.Observation, **shown, **ends),
        "State": types.State,
    }


def _turn_text(value: Any) -> Any:
    """The model's turn as text: verifiers sends a turn that is JSON as its value, 42 for "42"; None stays."""
    return None if value is None else encodable(value if isinstance(value, str) else json.dumps(value))


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """Raise any error as a one-line `RuntimeError`: OpenEnv sends the text of an exception to the client."""
    try:
        yield
    except AgentR1Error as error:
        raise RuntimeError(" ".join(str(error).split())) from error
    except Exception as error:
        logger.exception("The environment raised; its session continues.")
        raise RuntimeError(f"The environment raised {type(error).__name__}: {' '.join(str(error).split())}") from error
