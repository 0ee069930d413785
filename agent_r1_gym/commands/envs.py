"""`agent-r1 envs`: the registered environments."""

from __future__ import annotations

import argparse

import gymnasium
from gymnasium.envs.registration import load_env_creator

from agent_r1_gym.commands.base import env_ids, say, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this subcommand."""
    parser.add_argument("env", nargs="?", metavar="ENV", help="show the whole specification of this one")


def run(options: argparse.Namespace) -> int:
    """Prints a table of ids, or one environment's docstring."""
    from agent_r1_gym.commands.base import full_id

    if options.env:
        say(_docstring(full_id(options.env)))
        return 0
    rows = [(identifier, _docstring(identifier).split("\n", 1)[0]) for identifier in env_ids()]
    say(table(("id", "what"), rows))
    return 0


def _docstring(identifier: str) -> str:
    import inspect

    entry_point = gymnasium.spec(identifier).entry_point
    creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return inspect.getdoc(creator) or ""
