"""What a policy sees before a turn, and what a policy is."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_r1_gym.parsing import Parser
from agent_r1_gym.types import Message, Task, ToolOutcome


@dataclass(frozen=True, slots=True)
class PolicyInput:
    """What a policy may look at before a turn.

    Attributes:
        observation: the history as text.
        messages: the history as messages.
        turn: 0-based index of the turn to come.
        turns_left: turns until truncation, this one included.
        outcomes: what the calls of the last turn brought back.
        parser: the format the environment understands.
        task: the task with its gold answers; only oracles may look at it.
        tools: the tools of the episode as OpenAI-style function schemas.
    """

    observation: str
    messages: tuple[Message, ...]
    turn: int
    turns_left: int
    outcomes: tuple[ToolOutcome, ...]
    parser: Parser
    task: Task
    tools: Sequence[Mapping[str, Any]] = ()


class Policy(abc.ABC):
    """Maps the state of each of several episodes to a model turn.

    Attributes:
        name: for tables and traces.
    """

    name: str

    @abc.abstractmethod
    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Returns one action per input, in order."""
