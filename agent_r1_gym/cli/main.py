"""The command line `agent-r1`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from agent_r1_gym.errors import AgentR1Error, ConfigurationError, near_names
from agent_r1_gym.run.env_options import hide_underscores, with_dashes
from agent_r1_gym.support import packages
from agent_r1_gym.support.out_of_memory import is_out_of_memory, out_of_memory_message
from agent_r1_gym.support.packages import install_command, installed_version
from agent_r1_gym.support.terminal import print_note

_COMMANDS = {
    "quickstart": "train a tiny agent in minutes and show what it learned",
    "new": "write an environment package of your own that runs: tasks, tool, reward, oracle, tests, training file",
    "envs": "list the environments, or show the specification of one",
    "play": "play an episode yourself, in the terminal",
    "data": "prepare a data set, index a corpus, or write episodes for other tools",
    "eval": "measure a trained agent or any policy on fixed questions, with intervals and break-downs",
    "compare": "compare evaluation runs question by question, with tests of the difference",
    "rescore": "score the episodes of a run with another reward, without playing them again",
    "report": "write one HTML page of evaluation and training runs: tables, plots, traces",
    "audit": "check any text environment: solvable, not hackable, no leaks, deterministic, usable; a verdict per rule",
    "probe": "test whether an agent reads what its tools return, or knows its answers by heart; on FictionQA",
    "sft": "train a model on demonstrations: the oracle's, a stronger model's, or its own successes",
    "train": "train an agent by reinforcement learning",
    "chat": "talk to an agent in the terminal; its tools run",
    "serve": "serve an agent, an environment, its tools or a search index over HTTP",
    "export": "write a trained agent as a folder for others: weights, tokenizer, chat format, cards with scores",
    "doctor": "show which packages, Java and data are installed, or what a model can do on this machine",
}
TRAINER_COMMANDS = ("quickstart", "sft", "train")
"""Commands that `trainers` registers as entry points "agent_r1_gym.commands"; each parses its own arguments."""

_SYNONYMS = {"--episodes": "--questions", "--num-episodes": "--questions"}
"""Options that commands do not have, whose names resemble those of others, and what their users mean."""
_DEBUG = "AGENT_R1_DEBUG"
"""Environment variable that enables tracebacks of operating-system errors, and of a lack of memory."""


class _CommandParser(argparse.ArgumentParser):
    """Parser of a subcommand, which rejects unknown options under its own usage and suggests similar ones."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; report unknown options before missing ones, and extra words."""
        known = [name for action in self._actions for name in action.option_strings]
        for word in args if self._subparsers is None else ():  # a subcommand checks its own options
            name = word.partition("=")[0]
            if word == "--":
                break
            if word.startswith("--") and " " not in name and not any(option.startswith(name) for option in known):
                meant = _SYNONYMS.get(name)
                hint = f"Did you mean {meant!r}? " if meant in known else near_names(name, known)
                self.error(f"{name!r} is not an option. {hint}See `{self.prog} --help`.")
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            what = "is not an option" if rest[0].startswith("-") else "is one word too many"
            self.error(f"{rest[0]!r} {what}. See `{self.prog} --help`.")
        return options, rest

    def format_help(self) -> str:
        """Format the help with dashes in the names of options."""
        hide_underscores(self)
        return super().format_help()


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """Build the parser of the command line.

    Args:
        command: the command to parse; only its module is imported. None: all commands.
    """
    parser = argparse.ArgumentParser(
        prog="agent-r1",
        description="Multi-turn, tool-using LLM tasks as Gymnasium environments.",
        epilog="`agent-r1 COMMAND --help` describes a command. $AGENT_R1_HOME stores data (default: the user's cache).",
    )
    version = installed_version("agent-r1-gym") or "(not installed)"
    parser.add_argument("--version", action="version", version=f"agent-r1-gym {version}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser)
    for name, description in _COMMANDS.items():
        subparser = commands.add_parser(
            name, help=description, description=f"{description[0].upper()}{description[1:]}."
        )
        if name not in TRAINER_COMMANDS and command in (None, name):
            module = importlib.import_module(f"agent_r1_gym.cli.{name.replace('-', '_')}")
            module.add_arguments(subparser)
            subparser.set_defaults(run=getattr(module, "run", None))  # subcommands of a command set their own
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    0 success, 1 failure, 2 invalid input, 3 a probed agent does not read; 130, 143, 129 interrupted by Ctrl-C, SIGTERM,
    SIGHUP.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = argparse.Namespace()
    try:
        if words and words[0] in TRAINER_COMMANDS:
            return run_trainer(words[0], words[1:])
        command = _command(words)
        if command is None:
            build_parser("").print_help()
            return 0
        options = build_parser(command).parse_args(with_dashes(words))
        status: int = options.run(options)
        sys.stdout.flush()
    except AgentR1Error as error:
        print_note(str(error))
        return 2
    except (MemoryError, RuntimeError) as error:
        command = next((word for word in words if word in _COMMANDS), "")
        if os.environ.get(_DEBUG) or not is_out_of_memory(error):
            raise
        print_note(out_of_memory_message(error, command))
        return 1
    except KeyboardInterrupt as interrupt:
        with contextlib.suppress(OSError):  # after SIGHUP the terminal may be gone
            sys.stderr.write("\nagent-r1: interrupted; finished results are saved\n")
        return 128 + int(interrupt.args[0] if interrupt.args else signal.SIGINT)
    except BrokenPipeError:
        # The reader of our output is gone (`agent-r1 envs | head`): exit quietly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if os.environ.get(_DEBUG):
            raise
        print_note(_system_error(error, getattr(options, "out", None)))
        return 1
    return status


def run_trainer(command: str, words: Sequence[str]) -> int:
    """Run a command of `trainers`, a separate package, in this process.

    Raises:
        MissingDependencyError: the train extra is not installed.
    """
    check_model_paths(words)
    run = packages.load_entry_point(
        "agent_r1_gym.commands",
        command,
        needs=("torch", "transformers", "trl"),
        hint=f"`agent-r1 {command}` trains and needs more packages: {install_command('train')}. Without them, "
        "`agent-r1 eval FictionQA --policy oracle` plays and scores episodes.",
    )
    sys.argv = [f"agent-r1 {command}", *words]
    return int(run(words))


_MODEL_OPTIONS = ("--model", "--model_name_or_path", "--warm_start")


def check_model_paths(words: Sequence[str]) -> None:
    """Reject a model's path that does not exist before torch and TRL are imported, which takes seconds.

    Raises:
        ConfigurationError: an option names such a path.
    """
    from agent_r1_gym.run.model_folder import check_path

    for position, word in enumerate(words):
        option, joined, value = word.partition("=")
        option = option.replace("-", "_").replace("__", "--", 1)
        if option in _MODEL_OPTIONS:
            name = value if joined else "".join(words[position + 1 : position + 2])
            check_path(name, f"{option[2:]}={name!r}")


def _command(words: Sequence[str]) -> str | None:
    """Find the command; None for an empty command line, "" if there are only options.

    Raises:
        ConfigurationError: there is no such command.
    """
    if not words:
        return None
    if words[0] not in _COMMANDS and not words[0].startswith("-"):
        near = near_names(words[0], _COMMANDS)
        raise ConfigurationError(f"Unknown command {words[0]!r}. {near}`agent-r1 --help` lists them.")
    return next((word for word in words if word in _COMMANDS), "")


def _system_error(error: OSError, out: object) -> str:
    """Format an operating-system error with its file, or the output if it names none."""
    if error.strerror is None:  # raised by a library
        return str(error)
    file = error.filename or out
    return f"{error.strerror}: {file}" if file else str(error)


if __name__ == "__main__":
    sys.exit(main())
