"""Checks of constructor options: an error says what came, what was expected, and which names are near."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, cast

from agent_r1_gym.errors import ConfigurationError, suggest


def check_known(cls: type, names: Iterable[str]) -> None:
    """Raises a `ConfigurationError` if no constructor of `cls` takes an argument of one of these names.

    What a class sets itself (its `set_options`) is not to be given.
    """
    known, own = _constructor_options(cast(Hashable, cls))
    for name in names:
        if name in own:
            raise ConfigurationError(f"{cls.__name__} sets {name!r} itself; drop it. {suggest(name, known)}")
        if name not in known:
            raise ConfigurationError(f"{cls.__name__} has no option {name!r}. {suggest(name, known)}")


@functools.lru_cache(maxsize=256)
def _constructor_options(cls: Hashable) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the names of the arguments that the constructors of `cls` take, and those that it sets itself.

    Looks down to the first constructor without `**kwargs`.
    """
    names: set[str] = set()
    own: set[str] = set()
    for base in cast(type, cls).__mro__:
        if "__init__" in vars(base):
            parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
            taken = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
            names |= taken - own
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
        own |= set(vars(base).get("set_options", ())) - names
    return frozenset(names), frozenset(own)


def check_integer(name: str, value: Any, least: int) -> None:
    """Raises a `ConfigurationError` unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{name} must be an integer of at least {least}, got {value!r}.")


def check_items(name: str, value: Any, kind: type) -> None:
    """Raises a `ConfigurationError` unless `value` is a list, tuple or other sequence of `kind`; a text is none."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(item, kind) for item in value):
        raise ConfigurationError(f"{name} must be a sequence of {kind.__name__}, got {value!r:.200}.")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises a `ConfigurationError` that suggests near names unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigurationError(f"Unknown {name} {value!r}. {suggest(str(value), choices)}")
