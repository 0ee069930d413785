"""`agent-r1 chat RUN_OR_MODEL`: a person talks to an agent in the terminal, its tools run."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from queue import SimpleQueue

from agent_r1_gym.cli.agent_arguments import add_agent_arguments, agent_spec_from_options, open_engine_worker
from agent_r1_gym.core.text import render_ansi, render_text
from agent_r1_gym.core.types import ToolCall, ToolOutcome
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.conversation import CANCELLED, Conversation, EndEvent, EngineWorker, Event, TurnEvent
from agent_r1_gym.support.files import state_home
from agent_r1_gym.support.terminal import LineReader, in_colour, is_terminal, print_line, printable

_HELP = """\
Type a question; the agent answers, and the next question continues the conversation. Type // for a leading /.
/reset    start over: empty history, tools in their initial state
/task N   start over in the world of another task, by id or position
/trace    show the whole interaction so far
/help     show this
/quit     leave; so does Ctrl-D. Ctrl-C stops the agent, not the program."""
_WIDTH = 160
"""Maximum number of characters of a call and its outcome."""
_MORE = " ... (/trace shows all)"
_ENDS = {
    "goal": "(done: the goal of the task is reached)",
    "max_tokens": "(no answer: the model's context is full; /reset starts over)",
    "max_context": "(no answer: the model's context is full; /reset starts over)",
    "max_history": "(no answer: the history has its maximum length; /reset starts over)",
    CANCELLED: "(stopped)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_agent_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the dialogue until the end of the input; return 1 if the last question failed."""
    spec = agent_spec_from_options(options, max_concurrent=1)
    engine_worker = open_engine_worker(spec)
    with contextlib.closing(engine_worker):
        return _ChatLoop(engine_worker, options.task, who=spec.policy).talk()


class _ChatLoop:
    """The dialogue of `agent-r1 chat`."""

    def __init__(self, engine_worker: EngineWorker, task: int | str, *, who: str) -> None:
        self._engine_worker, self._who = engine_worker, who
        # No prompt for input from a pipe.
        self._prompt = LineReader("> " if is_terminal() else "", history=state_home() / "chat_history")
        self._conversation = Conversation(engine_worker, task)

    def talk(self) -> int:
        print_line(f"{self._who} in {self._engine_worker.env_name}; /help lists the commands")
        self._print_task()
        status = 0
        while (line := self._next_line()) is not None:
            if line.startswith("/") and not line.startswith("//"):
                if line == "/quit":
                    break
                self._run_command(line)
            elif line:
                status = self._ask(line.removeprefix("/"))
        self._conversation.close()
        return status

    def _next_line(self) -> str | None:
        try:
            line = self._prompt.ask()
        except KeyboardInterrupt:
            print_line("\n(Ctrl-D or /quit leaves)")
            return ""
        return None if line is None else line.strip()

    def _run_command(self, line: str) -> None:
        command, _, argument = line.partition(" ")
        if command == "/help":
            print_line(_HELP)
        elif command == "/trace":
            messages = self._conversation.messages
            text = render_ansi(messages) if in_colour() else printable(render_text(messages))
            print_line(text.rstrip("\n") if messages else "(no messages yet)")
        elif command in ("/reset", "/task"):
            self._start_over(argument.strip() or self._conversation.task_index)
        else:
            print_line(f"There is no command {command:.80}; /help lists them.")

    def _start_over(self, task: int | str) -> None:
        try:
            other = Conversation(self._engine_worker, task)
        except ConfigurationError as error:
            print_line(str(error))
            return
        self._conversation.close()
        self._conversation = other
        self._print_task()

    def _print_task(self) -> None:
        index = self._conversation.task_index
        task = self._engine_worker.tasks[index]
        print_line(f"(tools run in task {index}, {task.id}: {_one_line(task.prompt, 100, more=' ...')})")

    def _ask(self, text: str) -> int:
        """Show the events until the agent has answered; return the exit status."""
        events: SimpleQueue[Event] = SimpleQueue()
        exchange = self._conversation.ask(text, on_event=events.put)
        try:
            return self._show(events)
        except KeyboardInterrupt:  # stops the agent; a second one stops the program
            exchange.cancel()
            return self._show(events)

    def _show(self, events: SimpleQueue[Event]) -> int:
        while isinstance(event := events.get(), TurnEvent):
            for line in turn_lines(event):
                print_line(f"\x1b[2m{line}\x1b[0m" if in_colour() else line)
            sys.stdout.flush()
        print_line(self._format_end(event))
        return int(event.error is not None)

    def _format_end(self, end: EndEvent) -> str:
        if end.error is not None:
            return f"(failed: {printable(str(end.error))})"
        if end.answer is not None:
            return printable(end.answer)
        if end.reason == "max_turns":
            return f"(no answer within {self._engine_worker.max_turns} turns)"
        return _ENDS.get(end.reason, f"(no answer: {end.reason})")


def turn_lines(event: TurnEvent) -> list[str]:
    """Format a turn: one line for each call and outcome, and one for parse errors."""
    lines = [_call_line(call, outcome) for call, outcome in zip(event.calls, event.outcomes, strict=True)]
    if event.errors:
        first, *others = event.errors
        more = f", and {len(others)} more" if others else ""
        lines.append(_one_line(f"(malformed: {first.code}{more}: {first.message}", _WIDTH) + ")")
    return [
        f"  {line}" for line in ([*lines, "(the turn was cut: --max-turn-tokens)"] if event.hit_token_limit else lines)
    ]


def _call_line(call: ToolCall, outcome: ToolOutcome) -> str:
    arguments = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in call.arguments.items())
    failed = "" if outcome.ok else f"{outcome.error}: "
    return _one_line(f"{call.name}({arguments}) -> {failed}{outcome.content}", _WIDTH)


def _one_line(text: str, width: int, *, more: str = _MORE) -> str:
    line = printable(" ".join(text[: 10 * width].split()))
    return line if len(line) <= width else line[:width].rstrip() + more
