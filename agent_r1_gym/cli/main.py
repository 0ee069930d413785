"""The command line `agent-r1`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from agent_r1_gym.cli.env_options import with_dashes
from agent_r1_gym.cli.train import TRAINER_COMMANDS, run_trainer
from agent_r1_gym.errors import AgentR1Error
from agent_r1_gym.support.versions import installed_version

_COMMANDS = {
    "quickstart": "train a tiny agent in minutes and show what it has learned (`python -m trainers.toy.quickstart`)",
    "envs": "list the environments, or show one's specification",
    "play": "play an episode yourself, in the terminal",
    "eval": "measure a policy on a fixed set of questions, with intervals; can be resumed",
    "rollout": "play and score a few episodes, and write a page of their traces",
    "report": "show evaluation and training runs on one HTML page: tables, plots, traces",
    "compare": "show where evaluation runs differ, question by question",
    "rescore": "score the episodes of a run with another reward, without playing them again",
    "sft": "teach a model to act by demonstrations: the oracle's, a stronger model's, or its own successes",
    "train": "train an agent by reinforcement learning; takes the options of `python -m trainers.train`",
    "prepare": "download or read a data set once and index its passages",
    "index": "build a search index of a corpus file",
    "serve-retriever": "serve search over HTTP (Search-R1 and Agent-R1 formats)",
    "doctor": "show which packages, Java and data are installed",
}

_DEBUG = "AGENT_R1_DEBUG"
"""Environment variable that shows the traceback of errors of the system."""


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Returns the parser of the command line.

    Args:
        command: the subcommand to parse; only its module is imported. None: all of them.
    """
    parser = argparse.ArgumentParser(
        prog="agent-r1",
        description="Multi-turn, tool-using LLM tasks as Gymnasium environments.",
        epilog="`agent-r1 COMMAND --help` describes one. Data are kept in $AGENT_R1_HOME (default: the user's cache).",
    )
    version = installed_version("agent-r1-gym") or "(not installed)"
    parser.add_argument("--version", action="version", version=f"agent-r1-gym {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, description in _COMMANDS.items():
        subparser = commands.add_parser(
            name, help=description, description=f"{description[0].upper()}{description[1:]}."
        )
        if name not in TRAINER_COMMANDS and command in (None, name):
            module = importlib.import_module(f"agent_r1_gym.cli.{name.replace('-', '_')}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = next((word for word in words if word in _COMMANDS), "")
    options = argparse.Namespace()
    try:
        if words and words[0] in TRAINER_COMMANDS:
            return run_trainer(words[0], words[1:])
        options = build_parser(command).parse_args(with_dashes(words))
        status: int = options.run(options)
        sys.stdout.flush()
    except AgentR1Error as error:
        sys.stderr.write(f"agent-r1: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("\nagent-r1: interrupted; what was finished is kept\n")
        return 130
    except BrokenPipeError:
        # The reader of our output left (`agent-r1 envs | head`): leave quietly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if os.environ.get(_DEBUG):
            raise
        sys.stderr.write(f"agent-r1: {_of_the_system(error, getattr(options, 'out', None))}\n")
        return 1
    return status


def _of_the_system(error: OSError, out: object) -> str:
    """Returns what the operating system refused, and for which file: the output where the error names none."""
    if error.strerror is None:  # a library's own words
        return str(error)
    file = error.filename or out
    return f"{error.strerror}: {file}" if file else str(error)
