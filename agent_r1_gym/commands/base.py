"""What several subcommands share: options that become environments, and plain output."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.errors import ConfigurationError, suggest

NAMESPACE = "AgentR1"
ENV_HELP = (
    "environment id, such as AgentR1/HotpotQA-v0 or just HotpotQA; one of your own as MODULE:ID, such as "
    "my_env:Mine/Product-v0, which imports the module that registers it"
)


def add_env_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the environment id and the options that choose what it serves."""
    parser.add_argument("env", metavar="ENV", help=ENV_HELP)
    parser.add_argument("--dataset", help="'auto', 'sample', 'hub' or a path (default: the environment's)")
    parser.add_argument("--split", help="part of the data set (default: the environment's)")
    parser.add_argument("--setting", choices=["open", "distractor"], help="what is searched (default: open)")
    parser.add_argument("--retriever", help="bm25, lucene[:INDEX], dense:DIR, rrf:A,B or http://HOST:PORT")
    parser.add_argument("--max-turns", type=int, help="model turns per episode (default: 5)")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any further option of the environment, VALUE as JSON or plain text; may be repeated",
    )


def env_options(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the environment options that the command line gives.

    Raises:
        ConfigurationError: an `--option` is not NAME=VALUE.
    """
    named = {name: getattr(options, name) for name in ("dataset", "split", "setting", "retriever", "max_turns")}
    found = {name: value for name, value in named.items() if value is not None}
    for text in options.option:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigurationError(f"--option takes NAME=VALUE, got {text!r}.")
        found[name.replace("-", "_")] = _json_or_text(value)
    return found


def env_ids() -> list[str]:
    """Returns every registered id of this suite."""
    return sorted(name for name, spec in gymnasium.registry.items() if spec.namespace == NAMESPACE)


def full_id(name: str) -> str:
    """Returns the id that `name` means, as `gymnasium.make` takes it in any process.

    Args:
        name: an id, MODULE:ID (see `registered_id`), or an id of this suite without its namespace and version.

    Raises:
        ConfigurationError: no environment has that id.
    """
    if registered_id(name) in gymnasium.registry:
        return name
    module, colon, identifier = name.rpartition(":")
    if colon:
        own = _ids_of(module)
        known = suggest(identifier, own) if own else "It registers none."
        raise ConfigurationError(f"Unknown environment {name!r}: {module!r} registers no {identifier!r}. {known}")
    short = {
        identifier.removeprefix(f"{NAMESPACE}/").rsplit("-v", 1)[0].lower(): identifier for identifier in env_ids()
    }
    if name.lower() in short:
        return short[name.lower()]
    near = suggest(name.removeprefix(f"{NAMESPACE}/").lower(), short)
    raise ConfigurationError(
        f"Unknown environment {name!r}. {near} `agent-r1 envs` lists them; one of your own is MODULE:{name}."
    )


def registered_id(name: str) -> str:
    """Returns the id in Gymnasium's registry that `name` holds; MODULE:ID imports the module, which registers ID.

    For this import the current folder is searched first, as `python -m` does and a console script does not; afterwards
    last, so that what lies beside the module never takes the place of an installed package that is imported later.

    Raises:
        ConfigurationError: the module cannot be imported.
    """
    module, colon, identifier = name.rpartition(":")
    if not colon:
        return name
    try:
        with _current_folder_first():
            importlib.import_module(module)
    except Exception as error:  # whatever a module of the user's raises
        raise ConfigurationError(
            f"{name!r}: the module {module!r} cannot be imported: {type(error).__name__}: {error}. "
            f"`python -c 'import {module}'` shows where."
        ) from error
    return identifier


@contextlib.contextmanager
def _current_folder_first() -> Iterator[None]:
    here = str(Path.cwd())
    if sys.path[:1] in ([here], [""]):  # by Python's own doing
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)
        if here not in sys.path:
            sys.path.append(here)


def _ids_of(module: str) -> list[str]:
    """Returns the registered ids whose entry points lie in the package of `module`."""
    package = module.partition(".")[0]
    points = {identifier: spec.entry_point for identifier, spec in gymnasium.registry.items()}
    places = {
        identifier: p if isinstance(p, str) else str(getattr(p, "__module__", "")) for identifier, p in points.items()
    }
    return [identifier for identifier, place in places.items() if place.replace(":", ".").split(".")[0] == package]


def last_name(env: str) -> str:
    """Returns the id without namespace and module, for names of folders."""
    return env.split(":")[-1].split("/")[-1]


def make_envs(name: str, number: int, options: dict[str, Any]) -> list[ToolEnv]:
    """Returns `number` environments of that id.

    Raises:
        ConfigurationError: the id does not name an environment of this kind, or the options do not fit it.
    """
    identifier = full_id(name)
    try:
        envs = [gymnasium.make(identifier, **options).unwrapped for _ in range(number)]
    except TypeError as error:
        if not options:
            raise
        raise ConfigurationError(
            f"The options {options!r:.200} do not fit {identifier}: {error.__cause__ or error}."
        ) from error
    tool_envs = [env for env in envs if isinstance(env, ToolEnv)]
    if len(tool_envs) < number:
        raise ConfigurationError(f"{name} is a {type(envs[0]).__name__}, not a ToolEnv; see `agent-r1 envs`.")
    return tool_envs


def first_tasks(available: Sequence[int], number: int) -> list[int]:
    """Returns the first `number` of the available indices of tasks.

    Raises:
        ConfigurationError: fewer than one, or more than there are.
    """
    if not 1 <= number <= len(available):
        raise ConfigurationError(f"-n must be between 1 and the number of tasks, {len(available)}; got {number}.")
    return list(available[:number])


def check_search(who: str, env: ToolEnv) -> None:
    """Refuses an environment without a tool named "search" for `who` searches in it.

    Raises:
        ConfigurationError: the first task has no such tool.
    """
    names = [tool.name for tool in env.make_tools(env.tasks[0])]
    if "search" not in names:
        raise ConfigurationError(
            f"{who} needs an environment with a tool named 'search'; {type(env).__name__} has {names}."
        )


def say(text: str = "") -> None:
    """Writes a line to standard output."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """Writes a line to standard error, beside the output."""
    sys.stderr.write(f"agent-r1: {text}\n")


def warn_of_lost(by_error: Mapping[str, int], place: Path, more: str) -> None:
    """Warns of episodes that lost their backend: how many, of what, and where they are written."""
    kinds = ", ".join(f"{number} x {kind}" for kind, number in by_error.items())
    note(
        f"WARNING: {sum(by_error.values())} episodes lost their backend and are NOT in the scores ({kinds}; {place}). "
        f"{more}"
    )


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Returns rows as aligned text columns; numbers to the right."""
    cells = [list(header), *[[_cell(value) for value in row] for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    numeric = [
        bool(rows) and all(isinstance(row[column], int | float) for row in rows) for column in range(len(header))
    ]

    def line(row: Sequence[str]) -> str:
        parts = [cell.rjust(w) if right else cell.ljust(w) for cell, w, right in zip(row, widths, numeric, strict=True)]
        return "  ".join(parts).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * width for width in widths), *map(line, cells[1:])])


def page_path(out: Path | None, name: str) -> Path:
    """Returns where a page goes: `out`, or a new file in `runs`.

    Raises:
        ConfigurationError: `out` is a folder.
    """
    if out is not None and out.is_dir():
        raise ConfigurationError(f"--out {out} is a folder; name the HTML file to write.")
    return out or Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.html"


def _cell(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value
