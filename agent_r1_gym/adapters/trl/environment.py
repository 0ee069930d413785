"""What TRL's loop keeps for each rollout: it calls our tools there, and hands the conversation back for the rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from agent_r1_gym.adapters.episode import Episode
from agent_r1_gym.adapters.trl.kept import Kept, KeptTool
from agent_r1_gym.adapters.trl.methods import method_of
from agent_r1_gym.adapters.trl.toolsets import check_format
from agent_r1_gym.core import ToolEnv
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.play.endpoint import Completion
from agent_r1_gym.play.record import Trajectory
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.types import ToolCall, ToolOutcome

Messages = Sequence[Mapping[str, Any]]


class Environment:
    """What TRL keeps for a rollout, and resets for the next one. Its public methods but `reset` are tools."""

    _make: ClassVar[Callable[[], TextEnv]]

    def __init__(self) -> None:
        self._env = type(self)._make()

    def reset(self, *, task_index: int | None = None, seed: int | None = None, **_columns: Any) -> None:
        """Begins the episode of a row; the row holds its prompt.

        Args:
            task_index: position of the task.
            seed: the environment is reset with it.
            **_columns: what else the row holds.
        """
        if task_index is None or seed is None:
            raise ConfigurationError(
                "A row without task_index and seed names no episode: take conversation_rows, and leave "
                "remove_unused_columns at False."
            )
        self._episode = Episode(self._env, task_index=task_index, seed=seed)
        assert self._episode.tool_env is not None
        self._bare = self._episode.tool_env
        self._kept = Kept(self._bare.episode_tools)

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        tool, call = self._bare.toolbox.by_name[name], ToolCall(name, arguments)
        problem = tool.check(arguments)
        refusal = ToolOutcome(problem, ok=False, error="bad_arguments") if problem else None
        return self._bare.wording.outcome(call, refusal or self._kept.run(tool, call), None).content

    def _replay(self, said: Messages) -> Trajectory:
        episode = self._episode
        if episode.ended:  # a reward function of the user's own asks too
            return episode.record()
        self._kept.rewind()
        self._bare.toolbox.replace(lambda tool: KeptTool(tool, self._kept))
        turns = [message for message in said if message["role"] == "assistant"]
        for turn in turns:
            if not episode.ended:  # TRL's loop goes on after an end
                episode.take(self._text(turn))
        if not episode.ended:
            # A turn without a call is TRL's last one, whatever the environment would have said to it.
            episode.truncate("max_tokens" if turns and turns[-1].get("tool_calls") else "no_answer")
        return episode.record()

    def _text(self, turn: Mapping[str, Any]) -> str:
        """Returns a turn, which TRL took apart by the chat template, in the environment's own format."""
        calls, thinking = tuple(turn.get("tool_calls") or ()), turn.get("reasoning_content") or ""
        return Completion(turn["content"], thinking, calls).text(self._bare.parser)


def environment_class(make: Callable[[], TextEnv], env: TextEnv) -> type[Environment]:
    """Returns the class for the tools of the episode that runs in `env`, or of any where all have the same."""
    bare = env.unwrapped
    assert isinstance(bare, ToolEnv)
    check_format(bare.parser, bare.episode_tools)
    methods = {tool.name: method_of(tool) for tool in bare.episode_tools}
    return type(f"{type(bare).__name__}Tools", (Environment,), {"_make": staticmethod(make), **methods})
