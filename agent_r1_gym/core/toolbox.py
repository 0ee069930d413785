"""Toolbox: the tools of an environment by name, and the resources that the running episode opened through them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.types import Transition
from agent_r1_gym.errors import ConfigurationError, EpisodeError
from agent_r1_gym.support.resource_scope import ResourceScope


class Toolbox:
    """Tools by name; of those with `per_episode`, copies that share the `ResourceScope` of the running episode.

    Attributes:
        tools: as they were passed in.
        by_name: the tools that the running episode calls.
        user: name of the tool that plays the user (`Tool.takes_messages`), None if there is none.
        keep_resources: whether resources outlive the end of the episode: a conversation continues after an answer.
    """

    def __init__(self, tools: tuple[Tool, ...]) -> None:
        if len({tool.name for tool in tools}) < len(tools):
            raise ConfigurationError(f"Two tools have the same name: {[tool.name for tool in tools]}.")
        self.tools = tools
        self.by_name = {tool.name: tool for tool in tools}
        users = [tool.name for tool in tools if tool.takes_messages]
        if len(users) > 1:
            raise ConfigurationError(f"At most one tool of an episode takes messages, got {users}.")
        self.user = users[0] if users else None
        self._per_episode = tuple(tool for tool in tools if tool.per_episode)
        self._resources: ResourceScope | None = None
        self._replaced = False
        self.keep_resources = False

    def begin(self) -> None:
        """Prepare the tools of a new episode; nothing is opened before one of them is called."""
        self.keep_resources = False
        if self._replaced:
            self._replaced, self.by_name = False, {tool.name: tool for tool in self.tools}
        if self._per_episode:
            self._resources = ResourceScope()
            for tool in self._per_episode:
                self.by_name[tool.name] = tool.for_episode(self._resources)

    def replace(self, wrap: Callable[[Tool], Tool]) -> None:
        """Replace each tool of the running episode by `wrap(tool)`, a tool of the same name and parameters."""
        self._replaced, self.by_name = True, {name: wrap(tool) for name, tool in self.by_name.items()}

    def finish(self) -> None:
        """Close what the episode opened, unless a conversation may continue it."""
        if not self.keep_resources:
            self.end()

    def end(self) -> None:
        """Close what the episode opened; may be called twice, and before an episode."""
        if self._resources is not None:
            self._resources.close()

    # --- snapshots ---------------------------------------------------------------------------------------------------

    def get_states(self) -> tuple[Any, ...]:
        """Take a snapshot of each tool of the running episode."""
        return tuple(copy.deepcopy(tool.get_state()) for tool in self.by_name.values())

    def set_states(self, states: Sequence[Any]) -> None:
        """Restore the tools of the running episode from what `get_states` returned.

        Raises:
            EpisodeError: the number of states is not that of the tools.
        """
        if len(states) != len(self.by_name):
            raise EpisodeError(
                f"The snapshot has {len(states)} tools, this environment has {len(self.by_name)}: "
                "restore it where the task makes the same tools."
            )
        for tool, state in zip(self.by_name.values(), states, strict=True):
            tool.set_state(copy.deepcopy(state))

    def warn_about_lost_state(self, transitions: Sequence[Transition], *, shared: Collection[Tool]) -> None:
        """Warn if a snapshot does not contain what the running episode changed.

        A tool with `per_episode` may leave that to another one, with which it shares the resources of the episode.

        Args:
            transitions: the episode.
            shared: tools of all episodes, which `set_state` does not make again.
        """
        called = {call.name for transition in transitions for call in transition.parsed.calls}
        resources_kept = any(tool.keeps_state for tool in self._per_episode)
        stateless = [
            tool
            for tool in self.tools
            if tool.name in called
            and not (tool.deterministic or tool.keeps_state or (tool.per_episode and resources_kept))
        ]
        reverted = [tool.name for tool in stateless if tool.per_episode or tool not in shared]
        kept = [tool.name for tool in stateless if tool.name not in reverted]
        for names, consequence in ((reverted, "creates these tools again"), (kept, "leaves these tools as they are")):
            if names:
                warnings.warn(
                    f"The snapshot does not contain what {', '.join(names)} changed: set_state() {consequence}. Give "
                    "them get_state and set_state, or deterministic=True if calls change nothing.",
                    stacklevel=3,
                )
