"""`agent-r1 play ENV`: a person plays an episode in the terminal."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence

from agent_r1_gym.cli.typed_calls import argument_names, describe, parse_typed_call, usage
from agent_r1_gym.core.text import render_ansi, render_text
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message
from agent_r1_gym.errors import ConfigurationError, suggest
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.env_options import add_env_arguments, env_options
from agent_r1_gym.run.session import ANY_TASK, Job, Session, env_display_name, step_sessions
from agent_r1_gym.support.terminal import LineReader, in_colour, print_line, printable

_ALWAYS = {
    "help": "these commands, and the tools (also `?`, `help TOOL`)",
    "history": "the episode so far, as the model sees it",
    "raw TEXT": "send TEXT verbatim",
    "quit": "leave",
}
_WITH_TASK = {"answer TEXT": "give the final answer", "show": "see the gold answer"}
_WITH_TOOLS = {"TOOL ARGUMENTS": "call a tool; arguments in order, or as NAME=VALUE", **_WITH_TASK}
_CALLING = "Arguments: quotes group words, lists and objects are JSON in quotes. `call TOOL ...` reaches any tool."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    add_env_arguments(parser)
    parser.add_argument("--seed", type=int, help="seed that samples the task")
    parser.add_argument(
        "--task", type=int, metavar="INDEX", help="position of the task in the data set, instead of a random one"
    )


def run(options: argparse.Namespace) -> int:
    """Play one episode, until it ends, `quit`, or the end of the input."""
    job = Job(ANY_TASK if options.task is None else options.task, seed=options.seed)
    session = Session(make_text_env(options.env, env_options(options)), job, policy="you")
    print_line(f"{_introduction(session)}\n")
    displayed = _show(session, 0)
    prompt = LineReader("> ", completions=lambda so_far: _completions(session, so_far))
    while not session.ended:
        action = _next_action(session, prompt)
        if action is None:
            return 0
        step_sessions([session], [action])
        displayed = _show(session, displayed)
        turn = session.turns[-1]
        terms = f"; terms {dict(turn.reward_terms)}" if turn.reward_terms else ""
        print_line(f"(reward {turn.reward:+.3f}{terms})")
    record = session.record()
    gold = f" Gold: {', '.join(record.gold_answers)}" if record.gold_answers else ""
    print_line(f"The episode ended ({record.end_reason}) with return {record.episode_return:.3f}.{gold}")
    return 0


def _introduction(session: Session) -> str:
    """Introduce the episode: the environment's summary, its data set, and how to act."""
    bare = session.env.unwrapped
    summary = type(bare).__doc__  # not `getdoc`, which would show the base class's
    title = (
        f"{env_display_name(session.env)}: {inspect.cleandoc(summary).splitlines()[0]}"
        if summary
        else env_display_name(session.env)
    )
    if session.tool_env is None:
        return f"{title}\nA line that you type is an action; `help` lists the commands."
    tools = "; ".join(usage(tool) for tool in session.tool_env.episode_tools)
    how = f"Tools: {tools}. `answer TEXT` answers" if tools else "A line that you type is the final answer"
    return f"{title}\n(serving {session.info['dataset']})\n{how}; `help` lists the commands."


def _show(session: Session, displayed: int) -> int:
    """Write the new messages, or all if a window rewrote them; return the number displayed."""
    if session.info.get("context_rewritten"):
        print_line("(the context was rewritten)")
        displayed = 0
    _write(session.messages[displayed:])
    return len(session.messages)


def _write(messages: Sequence[Message]) -> None:
    sys.stdout.write(render_ansi(messages) if in_colour() else printable(render_text(messages)))
    sys.stdout.flush()


def _next_action(session: Session, prompt: LineReader) -> str | None:
    """Read the next action; None to quit."""
    while True:
        line = prompt.ask()
        word, _, rest = (line if line is not None else "quit").strip().partition(" ")
        try:
            if word == "quit" and not rest:
                return None
            action = _action(session, word, rest) if word else None
        except ConfigurationError as error:  # costs no turn
            print_line(str(error))
        else:
            if action is not None:
                return action


def _action(session: Session, word: str, rest: str) -> str | None:
    """Convert a line into an action; None if it was a command such as `help`.

    Raises:
        ConfigurationError: it is neither.
    """
    env, line = session.tool_env, f"{word} {rest}".strip()
    if line in ("help", "?") or (word == "help" and env is not None):
        print_line(_help(env, rest))
    elif line == "history":
        _write(session.messages)
    elif word == "raw" and rest:
        return rest
    elif env is None:
        return line
    elif line == "show":
        print_line(", ".join(env.task.answers) or "This task has no gold answer.")
    else:
        return _turn(env, word, rest)
    return None


def _turn(env: ToolEnv, word: str, rest: str) -> str:
    """Convert a line into a model turn: a call or the final answer.

    Raises:
        ConfigurationError: it is neither, or the format cannot express it.
    """
    if word == "answer" and rest:
        return env.parser.format_answer(rest)
    tools = {tool.name: tool for tool in env.episode_tools}
    if not tools:
        return env.parser.format_answer(f"{word} {rest}".strip())
    if word == "call":
        word, _, rest = rest.strip().partition(" ")
    if word in ("answer", "raw") and word not in tools:
        raise ConfigurationError(f"`{word}` needs a text after it.")
    if word not in tools:
        known = [*tools, *(name.split()[0] for name in (*_ALWAYS, *_WITH_TASK))]
        raise ConfigurationError(
            f"{word!r} is not a tool. {suggest(word, known)} `answer TEXT` gives the final answer."
        )
    return env.parser.format_call(parse_typed_call(tools[word], rest))


def _help(env: ToolEnv | None, about: str) -> str:
    """Format the help; `about` names a tool, or is empty.

    Raises:
        ConfigurationError: there is no such tool.
    """
    if env is None:
        return _listed({"any other line": "is an action", **_ALWAYS})
    tools = {tool.name: tool for tool in env.episode_tools}
    if about and about not in tools:
        raise ConfigurationError(f"There is no tool {about!r}. {suggest(about, tools)}")
    if about:
        return describe(tools[about])
    if not tools:
        return _listed({"any other line": "is the final answer", **_WITH_TASK, **_ALWAYS})
    return "\n".join([*map(describe, tools.values()), "", _listed({**_WITH_TOOLS, **_ALWAYS}), _CALLING])


def _listed(words: dict[str, str]) -> str:
    return "\n".join(f"{word:16}{meaning}" for word, meaning in words.items())


def _completions(session: Session, so_far: str) -> list[str]:
    """Complete the next word: commands and tools, and after a tool the names of its arguments."""
    tools = {} if session.tool_env is None else {tool.name: tool for tool in session.tool_env.episode_tools}
    words = so_far.split()
    if not words:
        commands = _ALWAYS if session.tool_env is None else {**_ALWAYS, **_WITH_TASK}
        return [*tools, *(name.split()[0] for name in commands)]
    if words[-1] in ("help", "call"):
        return list(tools)
    called = tools.get(words[1] if words[0] == "call" and len(words) > 1 else words[0])
    return [] if called is None else [f"{name}=" for name in argument_names(called)]
