"""Command-line options that several commands share: the environment and its options; output pages; warnings."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1_gym.core.parsing import PARSER_HELP
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.mixture import ENV_SYNTAX, EnvConfig, env_configs_from_file, parse_mixture, parse_option
from agent_r1_gym.run.trust import Trust, add_trust_options
from agent_r1_gym.support.terminal import print_note
from agent_r1_gym.wrappers import WINDOW_OPTIONS

_PAGE = b"<!doctype html>"
"""First bytes of every page of this package."""

ENV_HELP = (
    "environment id, such as AgentR1/HotpotQA-v0 or just HotpotQA; one of your own as MODULE:ID, such as "
    "my_env:Mine/Product-v0, which imports the module that registers it"
)
ENV_OPTION_NAMES = (
    *("dataset", "split", "setting", "retriever", "max_turns", "reward", "parser", "agent"),
    *WINDOW_OPTIONS,
)
"""Environment options with their own command-line option; `--option` takes all others."""


def add_env_arguments(
    parser: argparse.ArgumentParser, *, allow_mixture: bool = False, env_help: str = ENV_HELP
) -> None:
    """Add the environment id and the options that choose what it serves; `allow_mixture` also accepts a mixture."""
    if not allow_mixture:
        parser.add_argument("env", metavar="ENV", help=env_help)
    else:
        parser.add_argument("env", metavar="ENV", nargs="?", help=f"{ENV_HELP}; or the folder of a trained agent")
        parser.add_argument(
            "--env",
            dest="envs",
            action="append",
            default=[],
            metavar="ENV",
            help=f"one of several environments, each {ENV_SYNTAX}; may be repeated; other options go to all of them",
        )
        parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file of a training run that names them")
    add_env_options(parser)


def env_configs_from_options(options: argparse.Namespace) -> tuple[EnvConfig, ...]:
    """Return the environments that a command line with `allow_mixture` names, each with all of its options.

    Raises:
        ConfigurationError: none is named, or several ways are used at once.
    """
    ways = [options.env is not None, bool(options.envs), options.config is not None]
    if sum(ways) != 1:
        raise ConfigurationError(
            f"Name the environment: ENV, or several by --env {ENV_SYNTAX}, or --config FILE; one way."
        )
    if options.config is None:
        named = parse_mixture(options.envs or [options.env])
    else:  # the user's own file: its data sets and servers are wanted, and yet a file runs no code
        named = replace(trust_from_options(options), places=True).vet(
            options.config, env_configs_from_file(options.config)
        )
    common = env_options(options)
    return tuple(
        replace(env_config, options={**common, **env_config.options, **(env_config.eval_options or {})})
        for env_config in named
    )


def add_env_options(parser: argparse._ActionsContainer) -> None:
    """Add the options of the environment; `agent-r1 train` has them too."""
    parser.add_argument(
        "--dataset",
        help="data set: a file or folder of tasks, hub:NAME, or a name that the environment defines, such as "
        "'sample' of the registered QA environments (default: the environment's)",
    )
    parser.add_argument("--split", help="split of the data set (default: the environment's)")
    parser.add_argument(
        "--setting",
        choices=["open", "distractor"],
        help="what a search covers: all passages (open), or those of the question (distractor) (default: open)",
    )
    parser.add_argument("--retriever", help="retriever: bm25, lucene[:INDEX], dense:DIR, rrf:A,B or http://HOST:PORT")
    parser.add_argument(
        "--max-turns", "--max_turns", type=int, help="maximum number of model turns per episode (default: 5)"
    )
    parser.add_argument(
        "--reward",
        action="append",
        help="preset (em, f1, agent_r1, process), MODULE:NAME of a RewardTerm or function, or FILE.toml of a judge; "
        "may be repeated: all are added up (default: the environment's)",
    )
    parser.add_argument(
        "--context-window",
        "--context_window",
        type=int,
        metavar="N",
        help="number of turns whose tool output stays in the context; older output is removed (`ContextWindow`), "
        "and each rewritten context needs its own forward pass (default: all turns)",
    )
    parser.add_argument(
        "--context-mode",
        "--context_mode",
        metavar="MODE",
        help="what --context-window does with older turns: drop (removes their tool output), drop_turns (removes them) "
        "or summary (replaces them by the model's last text between <summary> and </summary>) (default: drop)",
    )
    parser.add_argument(
        "--agent",
        metavar="PROGRAM",
        help="a program that plays the episodes with its own loop: a command ('python my_agent.py {task}', in which "
        "{task}, {base_url} and {api_key} are replaced), a URL to which they are posted, or MODULE:FUNCTION",
    )
    parser.add_argument("--parser", help=f"format of turns; {PARSER_HELP} (default: hermes)")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of the environment, VALUE as JSON or plain text; may be repeated",
    )
    add_trust_options(parser)


def trust_from_options(options: argparse.Namespace) -> Trust:
    """Return what a command line with environment options vouches for; imports the modules of `--import`."""
    return Trust.from_options(options, [getattr(options, "env", None), *(getattr(options, "envs", None) or [])])


def env_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the environment options that the command line sets.

    Raises:
        ConfigurationError: an `--option` is not NAME=VALUE.
    """
    named = {name: getattr(options, name) for name in ENV_OPTION_NAMES}
    options_given = {name: value for name, value in named.items() if value is not None}
    options_given |= map(parse_option, options.option)
    return options_given


def with_dashes(words: Sequence[str]) -> list[str]:
    """Normalise option names to dashes: `--max_turns=5` becomes `--max-turns=5`."""
    return [re.sub(r"^--[^=]+", lambda name: name[0].replace("_", "-"), word) for word in words]


def hide_underscores(parser: argparse.ArgumentParser) -> None:
    """Leave only the spelling with dashes of each option, for a help text; parsing accepts underscores too."""
    for action in parser._actions:
        action.option_strings = [name for name in action.option_strings if "_" not in name] or action.option_strings


def expand_out(words: Sequence[str]) -> list[str]:
    """Expand `--out` to `--output_dir`, its name in TRL: every command of this package takes `--out`."""
    return [re.sub(r"^--out(?==|$)", "--output_dir", word) for word in words]


def warn_infra_failures(by_error: Mapping[str, int], first: str, place: Path, more: str) -> None:
    """Warn of episodes whose backend failed: their number by error, the first message, and where the others are."""
    kinds = ", ".join(f"{number} x {kind}" for kind, number in by_error.items())
    print_note(
        f"WARNING: {sum(by_error.values())} episodes lost their backend and are NOT in the scores ({kinds}; {place}). "
        f"The first: {first.rstrip('.')}. {more}"
    )


def page_path(out: Path | None, name: str) -> Path:
    """Return the path of a page: `out`, or a new file in `runs`.

    Raises:
        ConfigurationError: `out` exists and is not a page.
    """
    if out is not None and out.is_dir():
        raise ConfigurationError(f"--out {out} is a folder; name the HTML file to write.")
    if out is not None and out.exists() and not _is_page(out):
        raise ConfigurationError(
            f"--out {out} exists and is not an HTML page, so it is not replaced; name another file."
        )
    return out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.html"


def _is_page(path: Path) -> bool:
    """Return whether a file is a page or empty, so that it may be replaced; never reads a device or a pipe."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_PAGE)).lower() in (_PAGE, b"")
