"""Calls that are carried out once and paid for later."""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1_gym.tool import Tool
from agent_r1_gym.types import ToolCall, ToolOutcome


class Kept:
    """What the calls of an episode brought back, and how they left their tools.

    Args:
        tools: those of the episode, which has just begun.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._before = [(tool, copy.deepcopy(tool.get_state())) for tool in tools]
        self._outcomes: dict[str, deque[tuple[ToolOutcome, Any]]] = defaultdict(deque)

    def run(self, tool: Tool, call: ToolCall) -> ToolOutcome:
        """Carries a call out, and keeps what it brings back."""
        (outcome,) = tool.run([call])
        self._outcomes[call.key].append((outcome, copy.deepcopy(tool.get_state())))
        return outcome

    def rewind(self) -> None:
        """Gives the tools the state that they had before the first call."""
        for tool, state in self._before:
            tool.set_state(copy.deepcopy(state))

    def again(self, tool: Tool, call: ToolCall) -> ToolOutcome:
        """Returns what an equal call brought back, the oldest first, and its tool's state; runs one that never was."""
        outcomes = self._outcomes[call.key]
        if not outcomes:
            return tool.run([call])[0]
        outcome, state = outcomes.popleft()
        tool.set_state(state)
        return outcome


class KeptTool(Tool):
    """A tool of a replay: its calls bring back what they brought back before.

    Args:
        tool: carries out what was not called before.
        kept: of the episode.
    """

    def __init__(self, tool: Tool, kept: Kept) -> None:
        super().__init__(tool.name, tool.description, tool.parameters, timeout=None)
        self._tool, self._kept = tool, kept

    def execute(self, arguments: Mapping[str, Any]) -> ToolOutcome:
        """Returns the kept outcome."""
        return self._kept.again(self._tool, ToolCall(self.name, arguments))

    def run(self, calls: Sequence[ToolCall]) -> list[ToolOutcome]:
        """Returns the kept outcomes, as they were: nothing is measured or cut a second time."""
        return [self._kept.again(self._tool, call) for call in calls]

    def get_state(self) -> Any:
        """See `Tool`."""
        return self._tool.get_state()

    def set_state(self, state: Any) -> None:
        """See `Tool`."""
        self._tool.set_state(state)
