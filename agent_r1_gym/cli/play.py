"""`agent-r1 play ENV`: a person plays an episode in the terminal."""

from __future__ import annotations

import argparse
import sys

from agent_r1_gym.cli.env_options import add_env_arguments, env_options
from agent_r1_gym.core import ToolEnv
from agent_r1_gym.registry import make_envs
from agent_r1_gym.support.terminal import say
from agent_r1_gym.types import ToolCall

_HELP = (
    "Type a search query to search, `= ANSWER` to answer, `raw TEXT` to send a turn as it is, `show` to see the gold "
    "answer, `quit` to leave."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this subcommand."""
    add_env_arguments(parser)
    parser.add_argument("--seed", type=int, help="seed of the task that is drawn")
    parser.add_argument("--task", type=int, metavar="INDEX", help="play this task of the data set")


def run(options: argparse.Namespace) -> int:
    """Plays one episode; ends at the end of the episode, at `quit`, or at the end of the input."""
    env = make_envs(options.env, 1, {**env_options(options), "render_mode": "human"})[0]
    say(f"{_HELP}\n")
    chosen = {} if options.task is None else {"task_index": options.task}
    _, info = env.reset(seed=options.seed, options=chosen)
    say(f"(serving {info['dataset']})")
    total = 0.0
    while True:
        action = _ask(env)
        if action is None:
            return 0
        _, reward, terminated, truncated, info = env.step(action)
        total += reward
        say(f"(reward {reward:+.3f}; terms {info['reward_terms']})")
        if terminated or truncated:
            say(
                f"The episode ended ({info['end_reason']}) with return {total:.3f}. Gold: {', '.join(env.task.answers)}"
            )
            return 0


def _ask(env: ToolEnv) -> str | None:
    """Returns the next action that the person types, None to leave."""
    while True:
        sys.stdout.write("> ")
        sys.stdout.flush()
        line = sys.stdin.readline()
        text = line.strip()
        if not line or text == "quit":
            return None
        if text == "show":
            say(", ".join(env.task.answers))
        elif text.startswith("="):
            return env.parser.format_answer(text[1:].strip())
        elif text.startswith("raw "):
            return text[4:]
        elif text and not env.episode_tools:
            say("This environment has no tools: `= ANSWER` answers, `raw TEXT` sends a turn as it is.")
        elif text:
            return _first_tool_call(env, text)


def _first_tool_call(env: ToolEnv, text: str) -> str:
    """Returns a call of the first tool with `text` as its first argument; most environments have one text argument."""
    tool = next(iter(env.episode_tools))
    argument = next(iter(tool.parameters.get("properties", {})), "query")
    return env.parser.format_call(ToolCall(tool.name, {argument: text}))
