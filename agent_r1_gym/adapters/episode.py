"""Episode: a session for a library that brings its own loop, and talks in chat messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.play.jobs import ANY_TASK, Job
from agent_r1_gym.play.session import Session, name_of
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.types import to_chat

Chat = list[dict[str, Any]]
"""Messages as OpenAI's API has them."""


class Episode(Session):
    """A running episode of any text environment, stepped by somebody else's loop.

    Args:
        env: any text environment; `make_text_env` makes one of an id.
        task_index: position of the task; None: the environment draws one by `seed`.
        seed: the environment is reset with it.
    """

    def __init__(self, env: TextEnv, *, task_index: int | None = None, seed: int | None = None) -> None:
        super().__init__(env, Job(ANY_TASK if task_index is None else int(task_index), seed=seed))

    def take(self, action: str) -> Chat:
        """Takes a model's turn, and returns the messages that answer it; those of the end are among them."""
        shown = len(self.messages)
        with self.named():
            self.book(action, self.env.step(action))
        return to_chat(self.messages[shown + 1 :])  # the first one is the turn itself

    def chat(self) -> Chat:
        """Returns the whole history."""
        return to_chat(self.messages)

    @property
    def end(self) -> dict[str, Any]:
        """How the episode ended, or that it goes on: terminated, truncated, end_reason, infrastructure_error."""
        return {
            "terminated": self._terminated,
            "truncated": self._truncated,
            "end_reason": self._reason() if self.ended else None,
            "infrastructure_error": self._lost,
        }

    def check_backend(self) -> None:
        """Raises an `InfrastructureError` if a backend failed: for libraries that have no mark for a lost episode."""
        if self._lost is not None:
            raise InfrastructureError(
                f"{name_of(self.env)} lost a backend in turn {len(self.turns)} of task {self.task.id!r}: {self._lost}. "
                "The episode is no experience: leave it out, or play it again."
            )

    @property
    def weighted_terms(self) -> dict[str, float]:
        """What each reward term gave in all; the sum is the return. Without terms: the return as "reward"."""
        record = self.record()
        if self.tool_env is None:
            return {"reward": record.episode_return}
        weights = self.tool_env.reward_weights
        return {name: weights[name] * value for name, value in record.reward_terms.items()}


def first_prompts(env: TextEnv, row: Mapping[str, Any]) -> Chat:
    """Returns the messages with which the episode of a row (see `play.jobs.task_rows`) begins."""
    return Episode(env, task_index=row.get("task_index"), seed=row.get("seed")).chat()
