"""Policies without a model: the oracle, the naive one, and replay of recorded episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.play.policy import Policy, PolicyInput
from agent_r1_gym.play.record import read_trace
from agent_r1_gym.types import ToolCall


class OraclePolicy(Policy):
    """Knows the gold: searches the title of each gold passage, one a turn, then gives the gold answer.

    The upper bound of an environment, and the check that its data, retrieval and scoring fit together.
    """

    name = "oracle"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Returns the next search, or the gold answer when all is searched or one turn is left."""
        return [self._act(state) for state in inputs]

    @staticmethod
    def _act(state: PolicyInput) -> str:
        titles: tuple[str, ...] = getattr(state.task, "supporting_titles", ())
        if state.turn < len(titles) and state.turns_left > 1:
            return state.parser.format_call(ToolCall("search", {"query": titles[state.turn]}))
        return state.parser.format_answer(state.task.answers[0] if state.task.answers else "unknown")


class NaivePolicy(Policy):
    """Knows nothing: searches the question as it stands, then answers with the title of the best passage.

    The lower bound of an environment; a task that it solves needs no agent.
    """

    name = "naive"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Returns the one search, then the answer."""
        return [self._act(state) for state in inputs]

    @staticmethod
    def _act(state: PolicyInput) -> str:
        if state.turn == 0 and state.turns_left > 1:
            return state.parser.format_call(ToolCall("search", {"query": state.task.prompt}))
        hits: Any = state.outcomes[0].data if state.outcomes else None
        return state.parser.format_answer(hits[0].passage.title if hits else "unknown")


class ReplayPolicy(Policy):
    """Repeats the actions that a trace file holds for each task.

    Args:
        path: a trace file, as `agent-r1 rollout` writes it.

    Raises:
        DatasetError: the file is missing or malformed.
    """

    def __init__(self, path: Path) -> None:
        self.name = f"replay:{path.name}"
        self._path = path
        rows = list(read_trace(path))
        self._actions = {row["task_id"]: [turn["action"] for turn in row["turns"]] for row in rows}
        self.task_indices = [row["task_index"] for row in rows]

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Returns the recorded action of each task's turn.

        Raises:
            ConfigurationError: the trace does not hold the task, or the episode outlasts the recorded one.
        """
        return [self._act(state) for state in inputs]

    def _act(self, state: PolicyInput) -> str:
        actions: list[str] | None = self._actions.get(state.task.id)
        if actions is None:
            raise ConfigurationError(f"{self._path} holds no episode of task {state.task.id!r}; replay the same data.")
        if state.turn >= len(actions):
            raise ConfigurationError(
                f"{self._path}: task {state.task.id!r} has {len(actions)} recorded turns, but the episode goes on; "
                "replay with the options it was recorded with."
            )
        return actions[state.turn]
