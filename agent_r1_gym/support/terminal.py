"""The terminal: plain output of commands, progress of long work, and lines that a user types."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
import unicodedata
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MethodType, ModuleType, TracebackType
from typing import Any, Self

Completions = Callable[[str], Sequence[str]]
"""Candidates for the next word, from the line so far."""
_MAX_HISTORY_LINES = 1_000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# --- output -----------------------------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Drop control characters, so that text of others cannot steer the terminal."""
    return "".join(
        character
        for character in text
        if character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"
    )


def print_line(text: str = "") -> None:
    """Write a line to standard output; of control characters it keeps the sequences that set a colour."""
    plain, colours = _COLOUR.split(text), [*_COLOUR.findall(text), ""]
    sys.stdout.write("".join(printable(part) + colour for part, colour in zip(plain, colours, strict=True)) + "\n")


def print_note(text: str) -> None:
    """Write a notice to standard error."""
    print_error(text, "agent-r1")


def print_error(text: str, program: str) -> None:
    """Write why a program ended, or a notice of it, to standard error.

    The text may quote a file of someone else: it loses control characters, and no line of it but the first begins
    like a message of its own.
    """
    sys.stderr.write(f"{program}: {printable(text)}".replace("\n", "\n  ") + "\n")


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Format rows as aligned columns, numbers to the right."""
    cells = [list(header), *[[_cell(value) for value in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    numeric = [
        bool(rows) and all(isinstance(row[column], int | float) for row in rows) for column in range(len(header))
    ]

    def line(row: Sequence[str]) -> str:
        parts = [cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, numeric, strict=True)]
        return "  ".join(parts).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * width for width in widths), *map(line, cells[1:])])


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


# --- progress ---------------------------------------------------------------------------------------------------------


def short_number(value: float) -> str:
    """Format a number with three digits and a unit: 0.984, 5.84k, 1.2M."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


HEARTBEAT_SECONDS = 10.0
"""Seconds without a line after which long work reports that it is still under way."""


class Progress:
    """Progress on standard error: a bar on a terminal, else a line per tenth and at least one every ten seconds.

    Args:
        total: number of units.
        name: label.
        unit: name of one unit.
        done: units done at the start.
        status: describes the units under way, called from another thread; "" while there is nothing to describe.

    Attributes:
        n: units done.
    """

    def __init__(
        self, total: int, name: str, unit: str, *, done: int = 0, status: Callable[[], str] | None = None
    ) -> None:
        from tqdm import tqdm

        self.n, self._total, self._name, self._unit, self._status = done, total, name, unit, status
        self._printed_tenth, self._start, self._first = self._tenth(), time.monotonic(), done
        self._printed_at = self._start
        self._metrics: dict[str, str] = {}
        self._on_terminal = sys.stderr.isatty()
        self._bar: Any = tqdm(
            total=total, initial=done, desc=name, unit=unit, dynamic_ncols=True, disable=not self._on_terminal
        )
        self._ended = call_every(1.0, self._beat)

    def update(self, number: int = 1) -> None:
        """Add `number` units."""
        self.n += number
        self._bar.update(number)
        if not self._on_terminal and self._tenth() > self._printed_tenth:
            self._print()

    def set_metrics(self, metrics: Mapping[str, str]) -> None:
        """Show metrics next to the progress from now on."""
        self._metrics = dict(metrics)
        self._bar.set_postfix_str(self._postfix(), refresh=False)

    def close(self) -> None:
        """Leave the bar on the screen."""
        self._ended.set()
        self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _beat(self) -> None:
        if self._on_terminal:
            self._bar.set_postfix_str(self._postfix())
        elif time.monotonic() - self._printed_at >= HEARTBEAT_SECONDS and (self._status is None or self._status()):
            self._print()

    def _print(self) -> None:
        self._printed_tenth, self._printed_at = self._tenth(), time.monotonic()
        sys.stderr.write(self._line() + "\n")
        sys.stderr.flush()

    def _tenth(self) -> int:
        return self.n * 10 // max(1, self._total)

    def _line(self) -> str:
        from tqdm import tqdm

        elapsed, new = time.monotonic() - self._start, self.n - self._first
        times = f"{tqdm.format_interval(elapsed)} taken"
        if new:
            times += f", {tqdm.format_interval(elapsed / new * (self._total - self.n))} left"
        return (
            f"{self._name}: {self.n}/{self._total} {self._unit}s, {', '.join(filter(None, [times, self._postfix()]))}"
        )

    def _postfix(self) -> str:
        metrics = ", ".join(f"{name}={value}" for name, value in self._metrics.items())
        status = self._status() if self._status is not None and self.n < self._total else ""
        return "; ".join(filter(None, [metrics, status]))


def call_every(seconds: float, function: Callable[[], None]) -> threading.Event:
    """Call a function again and again from a thread of its own, until the event is set or the object of a method gone.

    The call under way when the event is set is not waited for.
    """
    ended = threading.Event()
    reference: Callable[[], Callable[[], None] | None] = (
        weakref.WeakMethod(function) if isinstance(function, MethodType) else lambda: function
    )

    def run() -> None:
        while not ended.wait(seconds):
            current = reference()
            if current is None:
                return
            current()
            del current  # or the thread would keep the object

    threading.Thread(target=run, name="progress", daemon=True).start()
    return ended


@contextlib.contextmanager
def still_working(task: str) -> Iterator[None]:
    """Report every ten seconds that a task without progress of its own is still under way, such as loading a model."""
    start = time.monotonic()
    ended = call_every(HEARTBEAT_SECONDS, lambda: print_note(f"{task} ... {time.monotonic() - start:.0f} s"))
    try:
        yield
    finally:
        ended.set()


# --- input ------------------------------------------------------------------------------------------------------------


class LineReader:
    """Read lines from the user; in a terminal with editing, history and tab completion.

    Args:
        text: prompt before a line.
        completions: candidates for completion; None: no completion.
        history: file for the history, readable by this user only; None: no history on disk.
    """

    def __init__(self, text: str, *, completions: Completions | None = None, history: Path | None = None) -> None:
        self._text, self._history = text, history
        self._readline: ModuleType | None = None
        if not is_terminal():
            return
        with contextlib.suppress(ImportError):  # some builds of Python lack it; lines are then read without editing
            import readline

            self._readline = readline
            _complete_with(readline, completions or (lambda _line: ()))
            if history is not None:
                self._read(history)

    def ask(self) -> str | None:
        """Read a line; None at the end of the input."""
        sys.stdout.flush()
        try:
            line = input(self._text)
        except EOFError:
            sys.stdout.write("\n" if self._text else "")  # after the unanswered prompt
            return None
        if line and self._readline is not None and self._history is not None:
            with contextlib.suppress(OSError):
                self._readline.append_history_file(1, self._history)
        return line

    def _read(self, history: Path) -> None:
        assert self._readline is not None
        with contextlib.suppress(OSError):  # the history is optional
            history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            history.touch(mode=0o600)
            self._readline.read_history_file(history)
            self._readline.set_history_length(_MAX_HISTORY_LINES)


def is_terminal() -> bool:
    """Whether input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def in_colour() -> bool:
    """Whether output may be coloured: on a terminal, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _complete_with(readline: ModuleType, completions: Completions) -> None:
    def complete(text: str, state: int) -> str | None:
        line = readline.get_line_buffer()[: readline.get_begidx()]
        words = [word for word in completions(line) if word.startswith(text)]
        if state >= len(words):
            return None
        word = words[state]
        return word if word.endswith("=") else f"{word} "  # Python's readline adds no space

    readline.set_completer_delims(" ")
    readline.set_completer(complete)
    is_editline = "libedit" in (readline.__doc__ or "")  # replaces GNU readline in some builds of Python
    readline.parse_and_bind("bind ^I rl_complete" if is_editline else "tab: complete")
