"""Classes for TRL's `environment_factory`, played as environments of this suite."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from agent_r1_gym.core.rewards import RewardTerm
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, Task, Transition
from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.support.json_data import read_objects
from agent_r1_gym.tools.function import run_awaitable, tool

_NO_TOOLS = ("reset", "get_reward")
_CONVERSATIONS = ("system", "user", "assistant")


@dataclass(frozen=True)
class RowTask(Task):
    """A row of a data set; `row` has all of its columns."""

    row: Mapping[str, Any] = field(default_factory=dict)


def is_trl_class(candidate: Any) -> bool:
    """Whether a class is one that TRL's `environment_factory` takes, and no `gymnasium.Env`."""
    is_class = inspect.isclass(candidate) and callable(getattr(candidate, "reset", None))
    return is_class and not hasattr(candidate, "step")


class TRLClassEnv(ToolEnv):
    """An environment of TRL: a class whose methods are the tools.

    As in TRL 1.16, one instance of the class plays many episodes, one after another: `reset(**row)` starts each, so it
    must set every attribute that an episode changes. Text that it returns is appended to the prompt of the row. Public
    methods of the class are tools (static ones too, class methods and properties not), with their docstrings and
    annotations; a turn without a call ends the episode; `get_reward()`, in the last step, is the reward. Methods may be
    coroutines. Calls have no time limit, and run in the thread that steps. What differs: the format of calls is this
    suite's, the number of turns is limited, and images are not supported.

    Args:
        factory: the class, or a function without arguments that returns an instance.
        rows: rows with a `prompt` (text, or messages) and columns for `reset`; a file of JSON, or a list of
            dictionaries. None: one row without columns.
        reward: `get_reward` by default; terms of your own where the class has none.
        **options: see `ToolEnv`.

    Raises:
        ConfigurationError: the class has no `reset`, no `get_reward` and no other reward is given, or a method has no
            docstring or annotations.
        DatasetError: a row has no prompt that can be read.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "dataset", "split", "fields", "tools", "scorer", "plain_turn")
    instructions: ClassVar[str] = ""

    def __init__(
        self,
        *,
        factory: Callable[[], Any],
        rows: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None = None,
        reward: Any = "get_reward",
        **options: Any,
    ) -> None:
        self._instance = factory()
        self._reward: float | None = None
        self._reset_text = ""
        methods = _methods_of(self._instance)
        if "reset" not in methods:
            raise ConfigurationError(f"{type(self._instance).__name__} has no method reset, which starts an episode.")
        if reward == "get_reward":
            if "get_reward" not in methods:
                raise ConfigurationError(
                    f"{type(self._instance).__name__} has no method get_reward; pass reward= with terms of your own."
                )
            reward = RewardTerm("get_reward", self._last_reward, low=-math.inf, high=math.inf)
        super().__init__(
            tasks=_read_rows(rows),
            tools=_tools_of(self._instance),
            reward=reward,
            plain_turn="answer",
            **{"max_turns": 10, **options},
        )

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """The methods of the instance, which is reset to the row."""
        self._reward = None
        row = task.row if isinstance(task, RowTask) else {}
        text = run_awaitable(self._instance.reset(**row), None)
        if text is not None and not isinstance(text, str):
            raise ConfigurationError(f"reset returned {text!r:.80}; expected None or a text.")
        self._reset_text = text or ""
        return _tools_of(self._instance)

    def task_prompt(self, task: Task) -> str:
        """The prompt of the row, and what `reset` returned."""
        return task.prompt + self._reset_text

    def success(self, task: Task, history: Sequence[Transition]) -> float | None:
        """The reward of the instance, limited to 0 to 1: classes also pay bonuses and penalties."""
        return None if self._reward is None else min(max(float(self._reward), 0.0), 1.0)

    def _last_reward(self, transition: Transition) -> float:
        """`get_reward()` in the step that ends the episode, called once; else 0."""
        if not (transition.terminated or transition.truncated):
            return 0.0
        if self._reward is None:
            self._reward = run_awaitable(self._instance.get_reward(), None)
        reward: float = self._reward  # the set of rewards checks what it is
        return reward


def _methods_of(instance: Any) -> list[str]:
    """Return the names of the methods that TRL finds: on the class, since on the instance properties would run."""
    return [name for name, _ in inspect.getmembers(type(instance), inspect.isfunction)]


def _tools_of(instance: Any) -> list[Tool]:
    names = [name for name in _methods_of(instance) if name not in _NO_TOOLS and name[0] != "_"]
    return [tool(timeout=None)(getattr(instance, name)) for name in names]


def _read_rows(rows: Any) -> list[RowTask]:
    if rows is None:
        return [RowTask("0", "")]
    if isinstance(rows, str | os.PathLike):
        located = list(read_objects(Path(rows)))
    else:
        located = [(f"row {number}", dict(row)) for number, row in enumerate(rows)]
    if not located:
        raise DatasetError(f"{rows!r:.80} has no rows.")
    return [_read_row(row, where, str(number)) for number, (where, row) in enumerate(located)]


def _read_row(row: Mapping[str, Any], where: str, task_id: str) -> RowTask:
    match row.get("prompt", ""):
        case str() as prompt:
            return RowTask(task_id, prompt, row=row)
        case [*earlier, {"role": "user", "content": str() as prompt}] if all(map(_is_message, earlier)):
            history = tuple(Message(message["role"], message["content"]) for message in earlier)
            return RowTask(task_id, prompt, history=history, row=row)
    raise DatasetError(f"{where}: prompt must be a string, or messages of which the last is the user's.")


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict) and message.get("role") in _CONVERSATIONS and isinstance(message.get("content"), str)
    )
