"""Checks of constructor options, with errors that name the value, the expectation and near names; read-only values."""

from __future__ import annotations

import copy
import inspect
import os
import re
import sys
from collections.abc import Mapping, Sequence
from threading import TIMEOUT_MAX
from typing import Any, ClassVar, NoReturn, Self, TypeGuard

from agent_r1_gym.errors import ConfigurationError, suggest

_BASE_URL = re.compile(r"https?://[^/@?#\s]+(?:/[^@?#\s]*)?")


class StrictOptions:
    """A class whose constructor rejects unknown options and suggests near names.

    Constructors may pass `**options` on to that of their base class; its options are theirs then, too.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ()
    """Options of the base class that a class sets itself, so callers may not."""

    _options: ClassVar[frozenset[str]] = frozenset()
    _positional: ClassVar[tuple[str, ...]] = ()
    """Names of the options that can be passed by position, in order."""
    _given_options: Mapping[str, Any] = {}
    """What the constructor was called with, by name, to make a twin of the object with other options."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
        options = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            options |= cls._options.difference(cls.fixed_options)
        cls._options = frozenset(options)
        cls._positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)

    @classmethod
    def option_names(cls) -> frozenset[str]:
        """Return the names of the options that the constructor takes."""
        return cls._options

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Checks the names of `options`."""
        for name in options:
            if name not in cls._options:
                problem = f"sets {name!r} itself; drop it." if name in cls.fixed_options else f"has no option {name!r}."
                raise ConfigurationError(f"{cls.__name__} {problem} {suggest(name, cls._options)}")
        self = super().__new__(cls)
        if arguments or options:
            self._given_options = {**dict(zip(cls._positional, arguments, strict=False)), **options}
        return self


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether a value is an `int`; True and False are not integers."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether a value is a finite `int` or `float`; True and False are not numbers."""
    # Not `math.isfinite`, which raises on an integer too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def check_integer(name: str, value: Any, least: int) -> None:
    """Raise a `ConfigurationError` unless `value` is an integer of at least `least`."""
    if not is_integer(value) or value < least:
        raise ConfigurationError(f"{name} must be an integer of at least {least}, got {value!r}.")


def check_number(name: str, value: Any, least: float | None = None) -> float:
    """Return `value` as a float; raise a `ConfigurationError` unless it is a finite number of at least `least`."""
    if not is_number(value) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least:g}"
        raise ConfigurationError(f"{name} must be a finite number{bound}, got {value!r:.200}.")
    return float(value)


def check_fraction(name: str, value: Any) -> float:
    """Return `value` as a float; raise a `ConfigurationError` unless it is a number from 0 to 1."""
    if not is_number(value) or not 0 <= value <= 1:
        raise ConfigurationError(f"{name} must be a number from 0 to 1, got {value!r:.200}.")
    return float(value)


def check_flag(name: str, value: Any) -> None:
    """Raise a `ConfigurationError` unless `value` is True or False; 0, 1 and strings are neither."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} must be True or False, got {value!r:.200}.")


def check_text(name: str, value: Any) -> None:
    """Raise a `ConfigurationError` unless `value` is a string with a visible character."""
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"{name} must be a non-empty string, got {value!r:.200}.")


def check_base_url(name: str, url: Any) -> None:
    """Refuse what is not the address of a server, with or without a path.

    Raises:
        ConfigurationError: it is none, or it has a login, a query or a fragment.
    """
    if not isinstance(url, str) or not _BASE_URL.fullmatch(url):
        shown = url.partition("?")[0].rpartition("@")[2] if isinstance(url, str) else url  # the rest may be secret
        raise ConfigurationError(
            f"{name} must be an address like http://127.0.0.1:8000/v1, without a login or a query, got {shown!r:.80}."
        )


def check_path(name: str, value: Any) -> None:
    """Raise a `ConfigurationError` unless `value` is a path, or a string that names one."""
    if not isinstance(value, os.PathLike):
        check_text(name, value)


def check_split(split: Any) -> None:
    """Raise a `ConfigurationError` unless `split` is a string or None: 0, False and "" do not stand for "train"."""
    if split is not None:
        check_text("split", split)


def check_level(name: str, value: Any, levels: Sequence[int]) -> None:
    """Raise a `ConfigurationError` unless `value` is one of some integers; True and 1.0 are not 1."""
    if not is_integer(value) or value not in levels:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(str, levels))}, got {value!r:.200}.")


def check_seconds(name: str, value: Any) -> None:
    """Raise a `ConfigurationError` unless `value` is a positive number of seconds that a thread can wait for."""
    if not is_number(value) or not 0 < value <= TIMEOUT_MAX:
        raise ConfigurationError(f"{name} must be positive seconds, got {value!r}.")


def check_items(name: str, value: Any, kind: type) -> None:
    """Raise a `ConfigurationError` unless `value` is a list, tuple or other sequence of `kind`; a string is none."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(item, kind) for item in value):
        raise ConfigurationError(f"{name} must be a sequence of {kind.__name__}, got {value!r:.200}.")


def check_parameters(name: str, function: Any, *arguments: str, coroutine: bool = False) -> None:
    """Check that a function can be called with positional arguments of these names.

    Args:
        name: what it is, for the error.
        function: the function.
        *arguments: names of the arguments.
        coroutine: whether it may be a coroutine function.

    Raises:
        ConfigurationError: it cannot be called, needs more or other arguments, or is a coroutine function.
    """
    expected = f"{name} must be a function of ({', '.join(arguments)})"
    if not callable(function):
        raise ConfigurationError(f"{expected}, got {function!r:.80}.")
    if inspect.iscoroutinefunction(function) and not coroutine:
        raise ConfigurationError(f"{expected}, and no coroutine function; got async {function!r:.80}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions in C have none
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigurationError(f"{expected}; its parameters are {signature}: {error}.") from None


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise a `ConfigurationError` that suggests near names unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigurationError(f"Unknown {name} {value!r}. {suggest(str(value), choices)}")


def check_choices(name: str, values: Any, choices: Sequence[str]) -> tuple[str, ...]:
    """Return the selected choices, all for None; raise a `ConfigurationError` for an unknown one or an empty selection.

    Args:
        name: of the option.
        values: some of `choices`, one of them, or None.
        choices: all.
    """
    if values is None:
        return tuple(choices)
    selection = (values,) if isinstance(values, str) else values
    if isinstance(selection, bytes) or not isinstance(selection, Sequence):
        raise ConfigurationError(f"{name} must be some of {', '.join(choices)}, or None for all, got {values!r:.200}.")
    if not selection:
        raise ConfigurationError(f"{name} is empty; expected some of {', '.join(choices)}.")
    for value in selection:
        check_choice(name, value, choices)
    return tuple(selection)


# --- read-only values -------------------------------------------------------------------------------------------------


def _refuse(self: Any, *_args: Any, **_options: Any) -> NoReturn:
    raise TypeError("This value is shared, so it is read-only; change a copy: copy.deepcopy(value).")


class FrozenDict(dict[str, Any]):
    """A read-only dictionary; its deep copy is an ordinary one."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> Any:
        return FrozenDict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)


class FrozenList(list[Any]):
    """A read-only list; its deep copy is an ordinary one."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse

    def __reduce__(self) -> Any:
        return FrozenList, (list(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return copy.deepcopy(list(self), memo)


def frozen(value: Any) -> Any:
    """Make all dictionaries and lists in a value read-only; they still pickle, compare and become JSON."""
    if isinstance(value, Mapping):
        return FrozenDict({name: frozen(inner) for name, inner in value.items()})
    if isinstance(value, list):
        return FrozenList(map(frozen, value))
    return value
