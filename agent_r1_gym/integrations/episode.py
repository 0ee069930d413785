"""Episode: a session for a library that brings its own loop, and talks in chat messages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import to_chat
from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.run.session import ANY_TASK, Job, Session, env_display_name

ChatMessages = list[dict[str, Any]]
"""Messages as OpenAI's API has them."""


class ChatEpisode(Session):
    """A running episode of any text environment, stepped by the loop of another library.

    Args:
        env: any text environment; `make_text_env` makes one of an id.
        task_index: position of the task; None: the environment draws one by `seed`.
        seed: the environment is reset with it.
    """

    def __init__(self, env: TextEnv, *, task_index: int | None = None, seed: int | None = None) -> None:
        super().__init__(env, Job(ANY_TASK if task_index is None else int(task_index), seed=seed))

    def step_chat(self, action: str) -> ChatMessages:
        """Takes a model's turn, and returns the messages that answer it; those of the end are among them.

        Where a wrapper rewrote the history, they are the whole new history.
        """
        shown = len(self.messages)
        with self.error_context():
            self.record_step(action, self.env.step(action))
        if self.info.get("context_rewritten"):
            return self.chat()
        return to_chat(self.messages[shown + 1 :], text_arguments=True)  # the first one is the turn itself

    async def step_chat_async(self, action: str) -> ChatMessages:
        """`step_chat` for an event loop: a step that waits for a backend runs in a thread."""
        return await asyncio.to_thread(self.step_chat, action) if self.is_io_bound(action) else self.step_chat(action)

    def chat(self) -> ChatMessages:
        """Returns the whole history."""
        return to_chat(self.messages, text_arguments=True)

    @property
    def end_info(self) -> dict[str, Any]:
        """How the episode ended, or that it continues: terminated, truncated, end_reason, infrastructure_error."""
        return {
            "terminated": self._terminated,
            "truncated": self._truncated,
            "end_reason": self._reason() if self.ended else None,
            "infrastructure_error": self._infra_error,
        }

    def raise_if_invalid(self) -> None:
        """For libraries that append what `step_chat` returns, and have no mark for a lost episode.

        Raises:
            InfrastructureError: a backend failed.
            ConfigurationError: a wrapper rewrote the history, such as `ContextWindow`.
        """
        if self._infra_error is not None:
            raise InfrastructureError(
                f"{env_display_name(self.env)} lost a backend in turn {len(self.turns)} of task {self.task.id!r}: "
                f"{self._infra_error}. Exclude this episode from training, or play it again."
            )
        if self.info.get("context_rewritten"):
            raise ConfigurationError(
                f"A wrapper of {env_display_name(self.env)} rewrote the history (such as `ContextWindow`), but this "
                "library only appends: register the environment without that wrapper."
            )

    @property
    def weighted_terms(self) -> dict[str, tuple[float, float]]:
        """What each reward term gave in all, and its weight. Without terms: the return as "reward"."""
        record = self.record()
        if self.tool_env is None:
            return {"reward": (record.episode_return, 1.0)}
        weights = self.tool_env.reward_weights
        return {name: (value, weights[name]) for name, value in record.reward_terms.items()}


def check_calls_are_text(env: TextEnv, library: str) -> None:
    """Refuses a format whose calls are not in a model's text, for a library that offers a model no tools.

    Args:
        env: the environment.
        library: name of the library, whose loop passes on the text of a turn and nothing else.

    Raises:
        ConfigurationError: the format leaves tools and calls to a chat template or an endpoint.
    """
    bare = env.unwrapped
    if isinstance(bare, ToolEnv) and bare.parser.tool_style == "native":
        raise ConfigurationError(
            f"parser={bare.parser.name!r} leaves tools and calls to a chat template or an endpoint, but {library} "
            "offers a model no tools and passes on plain text, so no tool could be called. Take a parser whose calls "
            "are text, such as 'hermes'."
        )


def initial_messages(env: TextEnv, row: Mapping[str, Any]) -> ChatMessages:
    """Returns the messages with which the episode of a row (see `run.player.task_rows`) begins."""
    return ChatEpisode(env, task_index=row.get("task_index"), seed=row.get("seed")).chat()
