"""Trust: what a file may name. `agent.json`, `run.json` and configuration files are data, and data runs no code.

A model folder or a run folder may come from anyone, and its file names an environment with options. Four kinds of
values in it differ in what they can do:

*Code*: an environment as MODULE:ID, or MODULE:NAME in any option (`parser`, `reward` and others, at any depth). It
counts only if the id is registered already, or the command line names the module (`--env MODULE:ID` or
`--import MODULE`). Anything else is refused, and nothing is imported.

*Programs* (`agent`): counts only if the command line names it, or one of the user's own did for this folder.

*Places*: data sets, retrievers, URLs and paths outside of the folder, and `isolation="weak"`, with which code of a
model has the rights of the user. They are displayed and need a confirmation: an answer on a terminal, or the option
`--trust-card`. What the command line sets itself replaces the value of the file and needs none.

*Everything else*: numbers, words, prompts, built-in names, files in the folder. Needs nothing.

Folders that the user's own commands wrote need no confirmation: a command records what its own command line named, in
the user's state folder and never next to the model (`remember`). A module counts as the recorded one only if the import
still finds the same file.

This module is the only one that decides this; every reader of such a file calls `Trust.vet`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from agent_r1_gym.core.judge import JUDGE_SUFFIX
from agent_r1_gym.errors import ConfigurationError, suggest
from agent_r1_gym.registry import find_registered, option_names
from agent_r1_gym.run.mixture import EnvConfig
from agent_r1_gym.support.files import atomic_file, state_home
from agent_r1_gym.support.json_data import parse_json
from agent_r1_gym.support.packages import import_named_module, module_origin
from agent_r1_gym.support.terminal import is_terminal, print_line, print_note

_PROMPTS = ("system_prompt", "raw_system_prompt", "shots")
"""Options with text for the model, which may contain anything."""
_IMPORTED = ("parser", "reward", "scorer", "policy", "algorithm", "source")
"""Options in which text with a colon is MODULE:NAME, whatever the characters of the module."""
_OPENED = (
    *("dataset", "retriever", "corpus", "database", "folder", "base_url", "customer_url", "server"),
    *("user", "user_url"),  # "openai:MODEL", which plays the user
    *("game", "games"),  # ids of other libraries, such as "game:Minesweeper-v0"
)
"""Options whose values are opened, contacted or looked up, and never imported."""
_CODE = re.compile(r"[^\W\d][\w.]*:(?!//)\S+")
"""MODULE:NAME, where an option may hold other text as well."""


class _Claims(NamedTuple):
    """What an environment of a file names beyond the file.

    Attributes:
        env_module: module of its id; "" if the id names none.
        code: by OPTION=TEXT, the module that an option would import.
        places: OPTION="VALUE" of each option that reaches outside of the folder.
    """

    env_module: str
    code: Mapping[str, str]
    places: Sequence[str]


@dataclass(frozen=True)
class Trust:
    """What a command line vouches for, and so what files may name.

    Attributes:
        modules: modules that it names; the modules in their packages count as named too.
        places: whether it accepts data sets, retrievers, URLs and paths that files name.
    """

    modules: frozenset[str] = frozenset()
    places: bool = False

    @classmethod
    def from_options(cls, options: argparse.Namespace, envs: Sequence[str | None] = ()) -> Self:
        """Read the options of `add_trust_options`, and import the modules of `--import`.

        Args:
            options: the parsed command line.
            envs: environments that the command line names, as it takes them (`ENV_SYNTAX`).

        Raises:
            ConfigurationError: a module cannot be imported.
        """
        for module in options.imports:
            import_named_module(module, f"--import {module}")
        ids = [text.split(maxsplit=1)[0] for text in envs if text and text.strip()]
        return cls(frozenset(filter(None, [*options.imports, *map(_module_of, ids)])), bool(options.trust_card))

    def vet(self, file: Path, environments: Sequence[EnvConfig]) -> tuple[EnvConfig, ...]:
        """Check the environments of a file, before anything is made of them.

        Args:
            file: the file that names them.
            environments: its environments, without the options that the command line replaces.

        Returns:
            The environments; an id whose module is not vouched for, but which is registered, without the module.

        Raises:
            ConfigurationError: they name code that the command line does not, places that the user does not confirm, or
                an option that the environment does not have.
        """
        folder = file.parent
        known = _Memory.read(folder)
        unknown: list[str] = []
        vetted = []
        for place in (place for environment in environments for place in _claims(environment, folder).places):
            if place.startswith("agent=") and place not in known.places:
                raise ConfigurationError(
                    f"{file} names a program, {place}; files run no code. Name it on the command line: --agent PROGRAM."
                )
        for environment in environments:
            claims = _claims(environment, folder)
            for text, module in claims.code.items():
                if not (self._names(module) or known.knows(module)):
                    raise ConfigurationError(_refusal(file, text, module))
            env_id = environment.env_id
            if claims.env_module and not (self._names(claims.env_module) or known.knows(claims.env_module)):
                env_id = find_registered(env_id) or ""
                if not env_id:
                    raise ConfigurationError(_refusal(file, environment.env_id, claims.env_module))
            unknown += [place for place in claims.places if place not in known.places]
            vetted.append(replace(environment, env_id=env_id))
            _check_options(file, vetted[-1])
        if unknown and not self.places:
            _confirm(file, list(dict.fromkeys(unknown)))
            remember(folder, vetted)  # without a module that was only ignored
        return tuple(vetted)

    def vet_name(self, file: Path, option: str, text: str) -> None:
        """Check an option of a file that takes a built-in name or MODULE:NAME.

        Raises:
            ConfigurationError: it is MODULE:NAME of a module that the command line does not name.
        """
        module = _module_of(text)
        if module and not self._names(module):
            raise ConfigurationError(_refusal(file, f"{option}={text}", module))

    def _names(self, module: str) -> bool:
        return any(module == named or module.startswith(f"{named}.") for named in self.modules)


def add_trust_options(parser: argparse._ActionsContainer) -> None:
    """Add the options with which a command line vouches for what a file names."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module first: it registers environments, or has what agent.json, run.json or a configuration "
        "file names as MODULE:NAME; may be repeated",
    )
    parser.add_argument(
        "--trust-card",
        "--trust_card",
        action="store_true",
        help="use the data sets, retrievers, URLs and paths that agent.json or run.json of another user names "
        "(default: ask on a terminal, else refuse)",
    )


def named_modules(environments: Sequence[EnvConfig]) -> set[str]:
    """Return the modules that environments name, as `--import` takes them."""
    claims = [_claims(environment, Path()) for environment in environments]
    return {module for claim in claims for module in (claim.env_module, *claim.code.values()) if module}


def remember(folder: Path, environments: Sequence[EnvConfig]) -> None:
    """Record in the user's state folder that this user's command wrote `folder` with these environments."""
    modules = named_modules(environments)
    places = {place for environment in environments for place in _claims(environment, folder).places}
    if modules or places:
        _Memory.read(folder).write(folder, modules, places)


def is_remembered(folder: Path, environments: Sequence[EnvConfig]) -> bool:
    """Return whether all that these environments name is on record for `folder`."""
    known = _Memory.read(folder)
    places = {place for environment in environments for place in _claims(environment, folder).places}
    return all(map(known.knows, named_modules(environments))) and places <= known.places


@dataclass(frozen=True)
class _Memory:
    """What the user's own command lines named for one folder; a file of the state folder.

    Attributes:
        modules: by module, the file or folders that its import found; "" for text like "a:b" that names none.
        places: as in `_Claims`.
    """

    modules: Mapping[str, str]
    places: frozenset[str]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read what is recorded for a folder; nothing if the record is missing or damaged."""
        try:
            row = parse_json(_memory_path(folder).read_text(encoding="utf-8"))
            return cls(dict(row["modules"]), frozenset(row["places"]))
        except (OSError, ValueError, KeyError, TypeError):
            return cls({}, frozenset())

    def knows(self, module: str) -> bool:
        """Return whether a module is recorded, and its import would find the recorded file."""
        return module in self.modules and self.modules[module] == (module_origin(module) or "")

    def write(self, folder: Path, modules: set[str], places: set[str]) -> None:
        """Add modules and places to the record of a folder."""
        origins = {module: module_origin(module) or "" for module in modules}
        row = {
            "folder": str(folder.resolve()),
            "modules": {**self.modules, **origins},
            "places": sorted(self.places | places),
        }
        path = _memory_path(folder)
        try:
            with atomic_file(path) as temporary:
                temporary.write_text(json.dumps(row, indent=1) + "\n", encoding="utf-8")
        except OSError as error:  # a container without a home folder: the user confirms again
            print_note(f"{path} cannot be written ({error}): commands on {folder} will ask what its card may name")


def _memory_path(folder: Path) -> Path:
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    return state_home() / "vouched" / f"{name}.json"


def _module_of(text: str) -> str:
    return text.rpartition(":")[0]


def _refusal(file: Path, text: str, module: str) -> str:
    return (
        f"{file} names {text!r}, code of the module {module!r}, which this command line does not name; files run no "
        f"code. If you know that module, add --import {module}."
    )


def _check_options(file: Path, environment: EnvConfig) -> None:
    """Refuse a file of another version, whose options the environment does not have.

    Raises:
        ConfigurationError: the environment has no such option.
    """
    identifier = find_registered(environment.env_id)
    known = None if identifier is None else option_names(identifier)
    if known is None:
        return
    for name in (*environment.options, *(environment.eval_options or {})):
        if name not in known:
            raise ConfigurationError(
                f"{file} sets {name!r}, which {identifier} of this version does not have: rename or remove it "
                f"there. {suggest(name, known)}"
            )


def _confirm(file: Path, places: Sequence[str]) -> None:
    """Ask the user on a terminal.

    Raises:
        ConfigurationError: the user declines, or there is no terminal.
    """
    shown = "; ".join(places)
    if is_terminal():
        print_line(f"{file} was not written by a command of yours, and reaches outside of its folder: {shown}")
        if input("Use it? [y/N] ").strip().lower() in ("y", "yes"):
            return
    raise ConfigurationError(
        f"{file} was not written by a command of yours, and reaches outside of its folder: {shown}. Check this, then "
        "add --trust-card, or set these options yourself."
    )


def _claims(environment: EnvConfig, folder: Path) -> _Claims:
    code: dict[str, str] = {}
    places: list[str] = []
    for options in (environment.options, environment.eval_options or {}):
        for option, text in _texts(options):
            if _is_code(option, text):
                code[f"{option}={text}"] = _module_of(text)
            elif place := _place(option, text, folder):
                places.append(f"{option}={json.dumps(place)}")
    return _Claims(_module_of(environment.env_id), code, places)


def _texts(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each text at any depth, keys included, with the name of its option."""
    for option, value in options.items():
        stack = [value]
        while stack:
            part = stack.pop()
            if isinstance(part, str | os.PathLike):
                yield option, os.fspath(part)
            elif isinstance(part, Mapping):
                stack += [*part, *part.values()]
            elif isinstance(part, list | tuple):
                stack += part


def _is_code(option: str, text: str) -> bool:
    """Return whether a text is MODULE:NAME; in doubt it is."""
    if option in _IMPORTED:
        return ":" in text
    return option not in (*_PROMPTS, *_OPENED, "agent") and _CODE.fullmatch(text) is not None


def _place(option: str, text: str, folder: Path) -> str | None:
    """Return the address, or the path outside of `folder`, that a text names; None for any other text."""
    if option in _PROMPTS or (option == "isolation" and text != "weak"):
        return None
    if option == "agent":
        return text
    if option == "isolation":
        return text
    if option == "reward" and text.endswith(JUDGE_SUFFIX):
        return text  # also in the folder: the file names an endpoint, to which episodes are sent
    opened = option in _OPENED
    sentence = not opened and re.search(r"\s", text) is not None
    if "\0" in text or "://" in text or (":" in text and not sentence):
        return text
    path = os.path.expanduser(text)  # noqa: PTH111  # `Path.expanduser` raises for an unknown user
    written_as_path = text.startswith(("/", "~", ".")) or (not sentence and ("/" in text or "\\" in text))
    exists = os.path.exists(path) if opened else os.path.isfile(path)  # noqa: PTH110, PTH113  # False if it is too long
    if not (written_as_path or exists):
        return None
    resolved = Path(path).resolve()
    return None if resolved.is_relative_to(folder.resolve()) else str(resolved)
