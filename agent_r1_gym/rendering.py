"""The history for eyes: plain text (which is also the observation), ANSI colours, and self-contained HTML."""

from __future__ import annotations

import html
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
    content = neutralise_headers(message.content)
    if message.tool_calls:
        calls = "\n".join(f"(calls {call.name} {dict(call.arguments)})" for call in message.tool_calls)
        content = f"{content}\n{calls}" if content else calls
    return f"{header}\n{content}\n\n"


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


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 0 auto; padding: 1rem; }}
details {{ border: 1px solid #8886; border-radius: .5rem; margin: .5rem 0; padding: .4rem .8rem; }}
summary {{ cursor: pointer; }}
.turn {{ border-left: .3rem solid #888; margin: .6rem 0; padding: .2rem .8rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }}
.turn b {{ display: block; font-size: .8rem; text-transform: uppercase; letter-spacing: .05em; opacity: .7; }}
.assistant {{ border-color: #d90; }} .tool {{ border-color: #2a6; }} .user {{ border-color: #28c; }}
.reward {{ font-variant-numeric: tabular-nums; opacity: .8; font-size: .9rem; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


def html_message(message: Message) -> str:
    """Returns one turn as an HTML block, everything in it escaped."""
    label = html.escape(f"{message.role}: {message.name}" if message.name else message.role)
    content = html.escape(render_message(message).split("\n", 1)[1].strip())
    return f'<div class="turn {message.role}"><b>{label}</b>{content}</div>'


def html_page(title: str, body: str) -> str:
    """Returns a self-contained HTML page (no script, no network) around `body`, which must already be HTML."""
    return _PAGE.format(title=html.escape(title), body=body)
