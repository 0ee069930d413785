"""Parts that other distributions and packages bring: entry points by group and name, loaded on demand."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from agent_r1_gym.errors import MissingDependencyError


def load(group: str, name: str, *, needs: Sequence[str] = (), hint: str) -> Any:
    """Returns what an entry point names.

    Args:
        group: group of entry points, such as "agent_r1_gym.engines".
        name: name of the entry point.
        needs: packages that it imports.
        hint: what to do where it is missing.

    Raises:
        MissingDependencyError: no distribution brings it, or one of the packages is not installed.
    """
    points = entry_points(group=group, name=name)
    if not points or any(importlib.util.find_spec(package) is None for package in needs):
        raise MissingDependencyError(hint)
    return next(iter(points)).load()
