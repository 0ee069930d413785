"""`agent-r1 play ENV`: a person plays an episode in the terminal."""

from __future__ import annotations

import argparse
import sys

from agent_r1_gym.cli.env_options import add_env_arguments, env_options
from agent_r1_gym.core import ToolEnv
from agent_r1_gym.play.jobs import ANY_TASK, Job
from agent_r1_gym.play.session import Session, step_sessions
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.support.terminal import say
from agent_r1_gym.text import render_ansi, render_text
from agent_r1_gym.types import ToolCall

_TOOL_HELP = (
    "Type the first argument of {tool} to call it, `= ANSWER` to answer, `raw TEXT` to send a turn as it is, `show` to "
    "see the gold answer, `quit` to leave."
)
_NO_TOOLS = "`= ANSWER` answers, `raw TEXT` sends a turn as it is, `show` shows the gold answer, `quit` leaves."
_TEXT_HELP = "Type an action, `quit` to leave."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this subcommand."""
    add_env_arguments(parser)
    parser.add_argument("--seed", type=int, help="seed that draws the task")
    parser.add_argument(
        "--task", type=int, metavar="INDEX", help="position of the task in the data set, instead of a random one"
    )


def run(options: argparse.Namespace) -> int:
    """Plays one episode; ends at the end of the episode, at `quit`, or at the end of the input."""
    job = Job(ANY_TASK if options.task is None else options.task, seed=options.seed)
    session = Session(make_text_env(options.env, env_options(options)), job, policy="you")
    say(f"{_help(session)}\n")
    if session.tool_env is not None:
        say(f"(serving {session.info['dataset']})")
    shown = _show(session, 0)
    while not session.ended:
        action = _ask(session)
        if action is None:
            return 0
        step_sessions([session], [action])
        shown = _show(session, shown)
        turn = session.turns[-1]
        terms = f"; terms {dict(turn.reward_terms)}" if turn.reward_terms else ""
        say(f"(reward {turn.reward:+.3f}{terms})")
    record = session.record()
    gold = f" Gold: {', '.join(record.gold_answers)}" if record.gold_answers else ""
    say(f"The episode ended ({record.end_reason}) with return {record.episode_return:.3f}.{gold}")
    return 0


def _show(session: Session, shown: int) -> int:
    """Writes the messages that are new, in colour to a terminal; returns how many have been shown."""
    new = session.messages[shown:]
    sys.stdout.write(render_ansi(new) if sys.stdout.isatty() else render_text(new))
    sys.stdout.flush()
    return len(session.messages)


def _help(session: Session) -> str:
    if session.tool_env is None:
        return _TEXT_HELP
    tools = session.tool_env.episode_tools
    return _TOOL_HELP.format(tool=next(iter(tools)).name) if tools else _NO_TOOLS


def _ask(session: Session) -> str | None:
    """Returns the next action that the person types, None to leave."""
    while True:
        sys.stdout.write("> ")
        sys.stdout.flush()
        line = sys.stdin.readline()
        text = line.strip()
        if not line or text == "quit":
            return None
        action = text if session.tool_env is None else _action(session.tool_env, text)
        if action:
            return action


def _action(env: ToolEnv, text: str) -> str | None:
    """Returns the turn that a line stands for, None if it stands for none."""
    if text == "show":
        say(", ".join(env.task.answers))
    elif text.startswith("="):
        return env.parser.format_answer(text[1:].strip())
    elif text.startswith("raw "):
        return text[4:]
    elif text and not env.episode_tools:
        say(f"This environment has no tools: {_NO_TOOLS}")
    elif text:
        tool = next(iter(env.episode_tools))
        argument = next(iter(tool.parameters.get("properties", {})), "query")
        return env.parser.format_call(ToolCall(tool.name, {argument: text}))
    return None
