"""The tools of an environment by name, with what belongs to the running episode alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from agent_r1_gym.errors import ConfigurationError, EpisodeError
from agent_r1_gym.support.lifetime import Lifetime
from agent_r1_gym.tool import Tool


class Toolbox:
    """Tools by name; of those with `per_episode`, copies that share the `Lifetime` of the running episode.

    Attributes:
        tools: as they were given.
        by_name: those that the running episode calls.
        kept: whether what the episode opened outlives its end: a conversation goes on after an answer.
    """

    def __init__(self, tools: tuple[Tool, ...]) -> None:
        if len({tool.name for tool in tools}) < len(tools):
            raise ConfigurationError(f"Two tools have one name: {[tool.name for tool in tools]}.")
        self.tools = tools
        self.by_name = {tool.name: tool for tool in tools}
        self._episodic = tuple(tool for tool in tools if tool.per_episode)
        self._lifetime: Lifetime | None = None
        self._replaced = False
        self.kept = False

    def begin(self) -> None:
        """Gives a new episode tools of its own; nothing is opened before one of them is called."""
        self.kept = False
        if self._replaced:
            self._replaced, self.by_name = False, {tool.name: tool for tool in self.tools}
        if self._episodic:
            self._lifetime = Lifetime()
            for tool in self._episodic:
                self.by_name[tool.name] = tool.for_episode(self._lifetime)

    def replace(self, wrap: Callable[[Tool], Tool]) -> None:
        """Has the running episode call what `wrap` makes of each tool: tools of the same names and parameters."""
        self._replaced, self.by_name = True, {name: wrap(tool) for name, tool in self.by_name.items()}

    def get_states(self) -> tuple[Any, ...]:
        """Returns a snapshot of each tool of the running episode."""
        return tuple(copy.deepcopy(tool.get_state()) for tool in self.by_name.values())

    def set_states(self, states: Sequence[Any]) -> None:
        """Brings the tools of the running episode into the states that `get_states` returned.

        Raises:
            EpisodeError: these are of another number of tools.
        """
        if len(states) != len(self.by_name):
            raise EpisodeError(f"The snapshot is of {len(states)} tools, this environment has {len(self.by_name)}.")
        for tool, state in zip(self.by_name.values(), states, strict=True):
            tool.set_state(copy.deepcopy(state))

    def finish(self) -> None:
        """Ends the episode's connections, unless somebody goes on with it."""
        if not self.kept:
            self.end()

    def end(self) -> None:
        """Closes what the episode opened; may be called twice, and before an episode."""
        if self._lifetime is not None:
            self._lifetime.close()
