"""What every adapter needs: its library with a word on the version, and random numbers of its own."""

from __future__ import annotations

import importlib
import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from agent_r1_gym.errors import ConfigurationError, MissingDependencyError, suggest
from agent_r1_gym.support.versions import installed_version

ALONE = threading.RLock()
"""Held by games whose library keeps state of the process and is not made for threads: they play one at a time."""


class UntestedVersionWarning(UserWarning):
    """A library has another version than the one that its adapter was tested with."""


def library(module: str, *, package: str, tested: str) -> ModuleType:
    """Returns a library.

    Args:
        module: what is imported.
        package: what pip installs.
        tested: first numbers of the version that the adapter was tested with, such as "1.7".

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
    if version is not None and not f"{version}.".startswith(f"{tested}."):
        warnings.warn(
            f"{package} {version} is untested with this adapter, which was tested with {tested}.",
            UntestedVersionWarning,
            stacklevel=3,
        )
    return imported


def check_name(kind: str, name: str, known: Any) -> None:
    """Raises a `ConfigurationError` with near names unless `name` is one of a library's."""
    if name not in known:
        near = suggest(name, known)
        raise ConfigurationError(f"Unknown {kind} {name!r}. {near if len(near) < 500 else near[:500] + ' ...'}")


class OwnRandom:
    """Random numbers of its own for a game that draws from the global generators of Python and NumPy.

    So games that are played side by side do not disturb each other, or whoever else draws numbers meanwhile.
    """

    def __init__(self) -> None:
        self._states: tuple[Any, Any] | None = None

    @contextmanager
    def __call__(self, seed: int | None = None) -> Iterator[None]:
        """Swaps the game's state in and out; a `seed` starts it anew."""
        with ALONE:
            before = random.getstate(), np.random.get_state()
            try:
                if seed is not None:
                    random.seed(seed)
                    np.random.seed(seed % 2**32)
                elif self._states is not None:
                    _set(self._states)
                yield
            finally:
                self._states = random.getstate(), np.random.get_state()
                _set(before)


def _set(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
