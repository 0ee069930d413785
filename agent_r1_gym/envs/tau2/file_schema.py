"""Shapes of the benchmark's files: what a value must look like, and its one form.

tau2-bench validates its databases with pydantic, which completes them (absent fields become null), orders their fields
and converts whole numbers. Tools print rows in that form, and the grader compares it; so does this reader.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_r1_gym.errors import DatasetError
from agent_r1_gym.support.checks import is_integer, is_number

Shape = Callable[[Any, str], Any]
"""Reads a value at a place (file and keys, for errors) and returns it in its one form."""


def text(value: Any, where: str) -> str:
    """A string."""
    return value if isinstance(value, str) else _refuse(where, "a string", value)


def integer(value: Any, where: str) -> int:
    """A whole number, also written as 3.0."""
    if is_integer(value):
        return value
    return int(value) if is_number(value) and float(value).is_integer() else _refuse(where, "a whole number", value)


def number(value: Any, where: str) -> float:
    """A number; the form of 3 is 3.0."""
    return float(value) if is_number(value) else _refuse(where, "a number", value)


def flag(value: Any, where: str) -> bool:
    """True or False."""
    return value if isinstance(value, bool) else _refuse(where, "true or false", value)


def anything(value: Any, where: str) -> Any:
    """Any value, as it is."""
    return value


def choice(*words: str) -> Shape:
    """One of some strings."""

    def read(value: Any, where: str) -> str:
        return value if isinstance(value, str) and value in words else _refuse(where, f"one of {words}", value)

    return read


def moment(value: Any, where: str) -> str:
    """A date, or a date and time; tau2-bench prints the latter with a space."""
    return text(value, where).replace("T", " ")


def maybe(shape: Shape) -> Shape:
    """A shape, or null."""
    return lambda value, where: None if value is None else shape(value, where)


class defaulting:  # noqa: N801 - used like the functions around it
    """A shape with a value for where it is absent."""

    def __init__(self, shape: Shape, value: Any) -> None:
        self._shape, self.value = shape, value

    def __call__(self, value: Any, where: str) -> Any:
        """Read a value (see `Shape`)."""
        return self._shape(value, where)


def items(shape: Shape) -> Shape:
    """A list of a shape."""

    def read(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            _refuse(where, "a list", value)
        return [shape(item, f"{where}[{position}]") for position, item in enumerate(value)]

    return read


def table(shape: Shape) -> Shape:
    """An object whose keys are ids, and whose values have a shape."""

    def read(value: Any, where: str) -> dict[str, Any]:
        return {key: shape(row, f"{where}.{key}") for key, row in _object(value, where).items()}

    return read


def by_tag(tag: str, shapes: Mapping[str, Shape]) -> Shape:
    """An object whose shape depends on the value of one field."""

    def read(value: Any, where: str) -> Any:
        kind = choice(*shapes)(_object(value, where).get(tag), f"{where}.{tag}")
        return shapes[kind](value, where)

    return read


@dataclass(frozen=True)
class Record:
    """An object with known fields; others are dropped, as the official reader drops them.

    Attributes:
        fields: shape by field.
        optional: shape by field that may be absent, and is null then.
    """

    fields: Mapping[str, Shape]
    optional: Mapping[str, Shape] = field(default_factory=dict)

    def __call__(self, value: Any, where: str) -> dict[str, Any]:
        """Read an object (see `Shape`)."""
        data = _object(value, where)
        return dict(self._read(data, where))

    def _read(self, data: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
        for name, shape in self.fields.items():
            if name not in data and isinstance(shape, defaulting):
                yield name, copy.deepcopy(shape.value)
                continue
            if name not in data:
                raise DatasetError(
                    f"{where} has no {name!r}, but {sorted(data)[:12]}: expected tau2-bench's files as of 2026."
                )
            yield name, shape(data[name], f"{where}.{name}")
        for name, shape in self.optional.items():
            value = data.get(name)
            yield name, None if value is None else shape(value, f"{where}.{name}")


def read_defaults(record: Record) -> dict[str, Any]:
    """The record of which every field has its default."""
    return record({}, "defaults")


def _object(value: Any, where: str) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _refuse(where, "an object", value)


def _refuse(where: str, expected: str, value: Any) -> Any:
    raise DatasetError(f"{where} must be {expected}, got {value!r:.80}: expected tau2-bench's files as of 2026.")
