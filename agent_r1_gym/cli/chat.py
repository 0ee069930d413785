"""`agent-r1 chat RUN_OR_MODEL`: a person talks to an agent in the terminal, its tools run."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from queue import SimpleQueue

from agent_r1_gym.cli.talking import add_agent_arguments, agent_of, open_stage
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.play.conversation import CANCELLED, Conversation, Ended, Event, Spoke
from agent_r1_gym.play.stage import Stage
from agent_r1_gym.support.files import state_home
from agent_r1_gym.support.terminal import say
from agent_r1_gym.text import printable, render_ansi, render_text
from agent_r1_gym.types import ToolCall, ToolOutcome

_HELP = """\
Type a question; the agent answers, and goes on from there with the next one. One that begins with / begins with //.
/reset    begin anew: forget what was said, tools as at the beginning
/task N   begin anew in the world of another task, by position or id
/trace    show the whole interaction so far
/help     show this
/quit     leave; so does Ctrl-D. Ctrl-C stops the agent, not the program."""
_WIDTH = 160
"""Characters of a call and its outcome that are shown of it."""
_MORE = " ... (/trace shows all)"
_ENDS = {
    "goal": "(done: the goal of the task is reached)",
    "max_tokens": "(no answer: the model's context is full; /reset begins anew)",
    "max_history": "(no answer: the history is as long as it may be; /reset begins anew)",
    CANCELLED: "(stopped)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this subcommand."""
    add_agent_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Talks until the end of the input; returns 1 if the last question could not be played to its end."""
    spec = agent_of(options, in_flight=1)
    stage = open_stage(spec)
    with contextlib.closing(stage):
        return _Chat(stage, options.task, who=spec.policy).talk()


class _Chat:
    """The dialogue; see `run`."""

    def __init__(self, stage: Stage, task: int | str, *, who: str) -> None:
        self._stage, self._who = stage, who
        self._lines = _Lines()
        self._conversation = Conversation(stage, task)

    def talk(self) -> int:
        say(f"{self._who} in {self._stage.env_name}; /help lists the commands")
        self._tell_world()
        status = 0
        while (line := self._lines.next()) is not None:
            if line.startswith("/") and not line.startswith("//"):
                if line == "/quit":
                    break
                self._obey(line)
            elif line:
                status = self._ask(line.removeprefix("/"))
        self._conversation.close()
        return status

    def _obey(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        if command == "/help":
            say(_HELP)
        elif command == "/trace":
            messages = self._conversation.messages
            shown = render_ansi(messages) if sys.stdout.isatty() else printable(render_text(messages))
            say(shown.rstrip("\n") if messages else "(nothing was said)")
        elif command in ("/reset", "/task"):
            self._begin_anew(argument.strip() or self._conversation.task_index)
        else:
            say(f"There is no command {command:.80}; /help lists them.")

    def _begin_anew(self, task: int | str) -> None:
        try:
            other = Conversation(self._stage, task)
        except ConfigurationError as error:
            say(str(error))
            return
        self._conversation.close()
        self._conversation = other
        self._tell_world()

    def _tell_world(self) -> None:
        index = self._conversation.task_index
        task = self._stage.tasks[index]
        say(f"(world of task {index}, {task.id}: {_one_line(task.prompt, 100, more=' ...')})")

    def _ask(self, text: str) -> int:
        """Shows what happens until the agent has answered; returns the exit status."""
        events: SimpleQueue[Event] = SimpleQueue()
        exchange = self._conversation.ask(text, on_event=events.put)
        try:
            return self._show(events)
        except KeyboardInterrupt:  # it stops the agent; a second one stops the program
            exchange.cancel()
            return self._show(events)

    def _show(self, events: SimpleQueue[Event]) -> int:
        while isinstance(event := events.get(), Spoke):
            for line in folded(event):
                say(f"\x1b[2m{line}\x1b[0m" if sys.stdout.isatty() else line)
            sys.stdout.flush()
        say(self._told(event))
        return int(event.error is not None)

    def _told(self, end: Ended) -> str:
        if end.error is not None:
            return f"(failed: {printable(str(end.error))})"
        if end.answer is not None:
            return printable(end.answer)
        if end.reason == "max_turns":
            return f"(no answer within {self._stage.max_turns} turns)"
        return _ENDS.get(end.reason, f"(no answer: {end.reason})")


def folded(event: Spoke) -> list[str]:
    """Returns what an agent did in a turn: one line for each call and outcome, and one for its mistakes."""
    lines = [_call_line(call, outcome) for call, outcome in zip(event.calls, event.outcomes, strict=True)]
    if event.errors:
        first, *others = event.errors
        more = f", and {len(others)} more" if others else ""
        lines.append(_one_line(f"(malformed: {first.code}{more}: {first.message}", _WIDTH) + ")")
    return [f"  {line}" for line in ([*lines, "(the turn was cut: --max-turn-tokens)"] if event.cut else lines)]


def _call_line(call: ToolCall, outcome: ToolOutcome) -> str:
    arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    failed = "" if outcome.ok else f"{outcome.error}: "
    return _one_line(f"{call.name}({arguments}) -> {failed}{outcome.content}", _WIDTH)


def _one_line(text: str, width: int, *, more: str = _MORE) -> str:
    line = printable(" ".join(text[: 10 * width].split()))
    return line if len(line) <= width else line[:width].rstrip() + more


class _Lines:
    """Lines that the person types, with editing and history; or that a pipe brings."""

    def __init__(self) -> None:
        self._typed = sys.stdin.isatty()
        self._history = state_home() / "chat_history"
        self._readline = None
        if self._typed:
            with contextlib.suppress(ImportError, OSError):  # without them a person can still talk
                import readline

                self._history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._history.touch(mode=0o600)
                readline.read_history_file(self._history)
                readline.set_history_length(1000)
                self._readline = readline

    def next(self) -> str | None:
        """Returns the next line, None at the end."""
        sys.stdout.flush()
        if not self._typed:
            line = sys.stdin.readline()
            return line.strip() if line else None
        try:
            line = input("> ").strip()
        except EOFError:
            say()
            return None
        except KeyboardInterrupt:
            say("\n(Ctrl-D or /quit leaves)")
            return ""
        if line and self._readline is not None:
            with contextlib.suppress(OSError):
                self._readline.append_history_file(1, self._history)
        return line
