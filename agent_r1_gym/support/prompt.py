"""Asking a person for a line: with editing, history and completion where there is a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

Completions = Callable[[str], Sequence[str]]
"""Returns the words that may stand next, for the line so far."""


def ask(prompt: str, completions: Completions) -> str | None:
    """Returns the line that a person types, None at the end of the input.

    In a terminal the arrow keys edit it and bring earlier lines back, and tab completes it; nothing is kept on disk.
    """
    if is_terminal():
        _prepare(completions)
    try:
        return input(prompt)
    except EOFError:
        sys.stdout.write("\n")
        return None


def is_terminal() -> bool:
    """Returns whether a person sits at both ends."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def in_colour() -> bool:
    """Returns whether output may hold codes for colours: to a terminal, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _prepare(completions: Completions) -> None:
    try:
        import readline
    except ImportError:  # some Pythons lack it: the line is then read as the terminal hands it over
        return

    def complete(text: str, state: int) -> str | None:
        line = readline.get_line_buffer()[: readline.get_begidx()]
        words = [word for word in completions(line) if word.startswith(text)]
        return _whole(words[state]) if state < len(words) else None

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    is_editline = "libedit" in (readline.__doc__ or "")  # it stands in for GNU readline in some builds of Python
    readline.parse_and_bind("bind ^I rl_complete" if is_editline else "tab: complete")


def _whole(word: str) -> str:
    """Returns a completed word with the space behind it that Python's readline does not add; none behind "name="."""
    return word if word.endswith("=") else f"{word} "
