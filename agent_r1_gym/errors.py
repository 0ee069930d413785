"""Every exception of the package, in one tree.

Only programming mistakes and broken infrastructure are exceptions. A mistake of the model is an observation
(`types.ParseError`), a failure of a tool is a field of its outcome (`types.ToolOutcome.error`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

import gymnasium


class AgentR1Error(Exception):
    """Root of the tree: `except AgentR1Error` catches everything this package raises on purpose."""


class ConfigurationError(AgentR1Error, ValueError):
    """An argument has a wrong value; raised at construction, before any episode runs."""


class GameError(ConfigurationError):
    """A game behind `TextGame` raised (its exception is the cause), or returned what Gymnasium does not define."""


class ActionTypeError(AgentR1Error, TypeError):
    """An action is not a string."""


class EpisodeError(AgentR1Error, gymnasium.error.ResetNeeded):
    """`step` was called before `reset`, or after the episode had ended."""


class DatasetError(AgentR1Error, ValueError):
    """A data set is missing or malformed; the message names file, line or row, and field."""


class CheckpointError(AgentR1Error, OSError):
    """A checkpoint could not be written; earlier ones are untouched."""


class MissingDependencyError(AgentR1Error, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""


class ToolError(AgentR1Error, RuntimeError):
    """Raise it in `Tool.execute` with a message for the model; it becomes a `tool_error` outcome."""


class InfrastructureError(AgentR1Error, RuntimeError):
    """A backend failed; the model is not to blame, and the episode should be dropped, not punished.

    Attributes:
        retry_after: seconds for which a circuit breaker stays open: no request reaches the backend before, so retry
            after that time. None if there is no such limit.
    """

    retry_after: float | None = None  # for subclasses that do not call this constructor

    def __init__(self, *args: object, retry_after: float | None = None) -> None:
        super().__init__(*args)
        self.retry_after = retry_after


class InfrastructureTimeout(InfrastructureError):
    """A backend did not respond in time."""


class RetrievalError(InfrastructureError):
    """A retriever is down, refuses requests, or returns invalid data."""


class RetrievalTimeout(RetrievalError, InfrastructureTimeout):
    """A retriever did not respond in time."""


def suggest(word: str, known: Iterable[str]) -> str:
    """List `known` names as a hint for an error message, near names first.

    Args:
        word: the unknown name.
        known: every valid name.

    Returns:
        "Did you mean 'a'? Known: 'a', 'b'." or "Known: 'a', 'b'."
    """
    names = sorted(known)
    return f"{near_names(word, names)}Known: {', '.join(map(repr, names))}."


def near_names(word: str, known: Iterable[str]) -> str:
    """Write "Did you mean 'a' or 'b'? " for the `known` names that begin with or resemble `word`; "" if none does."""
    names = sorted(known)
    parts = re.split(r"\W+|__", word[:200])  # functions.search, mcp__wiki__search
    near = [name for name in names if name in parts]
    if not near and len(word.lstrip("-")) >= 3:  # `resume` of resume_from_checkpoint, which difflib finds too long
        near = [name for name in names if name.startswith(word)][:3]
    near = near or difflib.get_close_matches(word, names, n=3, cutoff=0.6)
    return f"Did you mean {' or '.join(map(repr, near))}? " if near else ""
