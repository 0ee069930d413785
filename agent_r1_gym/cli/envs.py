"""`agent-r1 envs`: the registered environments."""

from __future__ import annotations

import argparse
import inspect

import gymnasium
from gymnasium.envs.registration import load_env_creator

from agent_r1_gym.cli.env_options import ENV_HELP
from agent_r1_gym.registry import env_ids, full_id, registered_id
from agent_r1_gym.support.terminal import say, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this subcommand."""
    parser.add_argument("env", nargs="?", metavar="ENV", help=f"show the whole specification of this one: {ENV_HELP}")


def run(options: argparse.Namespace) -> int:
    """Prints a table of ids, or one environment's docstring."""
    if options.env:
        say(_docstring(full_id(options.env)))
        return 0
    rows = [(identifier, _docstring(identifier).split("\n", 1)[0]) for identifier in env_ids()]
    say(table(("id", "what"), rows))
    return 0


def _docstring(identifier: str) -> str:
    entry_point = gymnasium.spec(registered_id(identifier)).entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    own = getattr(creator, "__doc__", None)  # not `getdoc`, which would show the base class's
    return inspect.cleandoc(own) if own else f"{registered_id(identifier)} ({entry_point}) has no docstring."
