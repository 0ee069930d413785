"""The history as text: plain (which is also the observation), or with ANSI colours."""

from __future__ import annotations

from collections.abc import Iterable

from agent_r1_gym.markup import neutralise_headers
from agent_r1_gym.types import Message, Role

_COLOURS: dict[Role, str] = {"system": "90", "user": "36", "assistant": "33", "tool": "32"}


def render_message(message: Message) -> str:
    """Returns one turn as text: a header line `[role]` (`[tool: name]` for tools), the content, an empty line.

    Structured calls follow the content, one line each. Headers inside the content are broken, so that the text of a
    history can be split into its turns without doubt.
    """
    header = f"[{message.role}: {message.name}]" if message.name else f"[{message.role}]"
    content = message.content
    if message.tool_calls:
        calls = "\n".join(f"(calls {call.name} {dict(call.arguments)})" for call in message.tool_calls)
        content = f"{content}\n{calls}" if content else calls
    return f"{header}\n{neutralise_headers(content)}\n\n"


def render_text(messages: Iterable[Message]) -> str:
    """Returns a whole history as text; the observation of every environment in this suite."""
    return "".join(map(render_message, messages))


def render_ansi(messages: Iterable[Message]) -> str:
    """Returns a whole history as text with one terminal colour a role."""
    return "".join(
        f"\x1b[{_COLOURS[message.role]}m{_printable(render_message(message))}\x1b[0m" for message in messages
    )


def _printable(text: str) -> str:
    """Returns `text` without control characters, so that a tool's output cannot steer the terminal."""
    return "".join(character for character in text if character.isprintable() or character in "\n\t")
