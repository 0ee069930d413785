"""What every adapter needs: its library with a word on the version, and random numbers of its own."""

from __future__ import annotations

import functools
import importlib
import logging
import random
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from agent_r1_gym.errors import ConfigurationError, MissingDependencyError, suggest
from agent_r1_gym.support.packages import installed_version

logger = logging.getLogger(__name__)
_LOGGED: set[str] = set()
"""Environments of which a raising scorer was logged."""
PROCESS_LOCK = threading.RLock()
"""Held by games whose library keeps state of the process and is not made for threads: they play one at a time."""


class UntestedVersionWarning(UserWarning):
    """A library has another version than the one that its adapter was tested with."""


def library(module: str, *, package: str, tested_version: str) -> ModuleType:
    """Returns a library.

    Args:
        module: what is imported.
        package: what pip installs.
        tested_version: first numbers of the version that the adapter was tested with, such as "1.7".

    Raises:
        MissingDependencyError: it is not installed.

    Warns:
        UntestedVersionWarning: it has another version.
    """
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == module.partition(".")[0]:
            raise MissingDependencyError(f"{package} is not installed: pip install {package}") from error
        hint = f"pip install {missing}" if missing else f"pip install --force-reinstall {package}"
        raise MissingDependencyError(f"{package} cannot be imported: {error}. Try: {hint}") from error
    version = installed_version(package)
    if version is not None and not f"{version}.".startswith(f"{tested_version}."):
        warnings.warn(
            f"{package} {version} is untested with this adapter, which was tested with {tested_version}.",
            UntestedVersionWarning,
            stacklevel=3,
        )
    return imported


def lazy_classes(module: str, names: Collection[str], make: Callable[[], Sequence[type]]) -> Callable[[str], Any]:
    """Returns the `__getattr__` of a module whose classes have bases in a library, and are made when one is named.

    Args:
        module: its name.
        names: of the classes.
        make: makes them; called once.
    """
    made = functools.cache(lambda: {kind.__name__: kind for kind in make()})

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return made()[name]

    return find


def with_base(base: type, own: type, **attributes: Any) -> Any:
    """Returns a class of the methods of `own` on `base`, found in the module of `own` under its public name.

    Args:
        base: a class of a library.
        own: a private class of an adapter, `_Name` for `Name`.
        **attributes: further attributes.
    """
    place = {"__module__": own.__module__, "__doc__": own.__doc__}
    return type(own.__name__.removeprefix("_"), (own, base), place | attributes)


def check_name(kind: str, name: str, known: Any) -> None:
    """Raises a `ConfigurationError` with near names unless `name` is one of a library's."""
    if name not in known:
        near = suggest(name, known)
        raise ConfigurationError(f"Unknown {kind} {name!r}. {near if len(near) < 500 else near[:500] + ' ...'}")


def scorer_error(env: str, game: str, error: BaseException) -> dict[str, str]:
    """Returns what `info` says of a scorer that raised, and logs the first such error of an environment.

    Args:
        env: name of the environment.
        game: which game or data set of it.
        error: what the scorer raised at a turn of the model, which must not end a run.
    """
    text = f"{type(error).__name__}: {error}"
    if env not in _LOGGED:
        _LOGGED.add(env)
        logger.warning(
            "%s, %s: the scorer raised %s; the turn is scored 0, and so are others like it.", env, game, text
        )
    return {"scorer_error": text}


class IsolatedRNG:
    """Random numbers of its own for a game that draws from the global generators of Python and NumPy.

    So games that are played side by side do not disturb each other or any other code that draws random numbers.
    """

    def __init__(self) -> None:
        self._states: tuple[Any, Any] | None = None

    @contextmanager
    def __call__(self, seed: int | None = None) -> Iterator[None]:
        """Swaps the game's state in and out; a `seed` starts it anew."""
        with PROCESS_LOCK:
            before = random.getstate(), np.random.get_state()
            try:
                if seed is not None:
                    random.seed(seed)
                    np.random.seed(seed % 2**32)
                elif self._states is not None:
                    _set_rng_state(self._states)
                yield
            finally:
                self._states = random.getstate(), np.random.get_state()
                _set_rng_state(before)


def _set_rng_state(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
