"""Dictionaries and lists that refuse changes: they pickle, become JSON and compare as ordinary ones."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, NoReturn


def _refuse(self: Any, *_args: Any, **_options: Any) -> NoReturn:
    raise TypeError("This value is shared, so it is read-only; change a copy: copy.deepcopy(value).")


class FrozenDict(dict[str, Any]):
    """A dictionary that refuses changes; its deep copy is an ordinary one."""

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> Any:
        return FrozenDict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return copy.deepcopy(dict(self), memo)


class FrozenList(list[Any]):
    """A list that refuses changes; its deep copy is an ordinary one."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse

    def __reduce__(self) -> Any:
        return FrozenList, (list(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return copy.deepcopy(list(self), memo)


def frozen(value: Any) -> Any:
    """Returns a value with all dictionaries and lists in it read-only; others stay as they are."""
    if isinstance(value, Mapping):
        return FrozenDict({name: frozen(inner) for name, inner in value.items()})
    if isinstance(value, list):
        return FrozenList(map(frozen, value))
    return value
