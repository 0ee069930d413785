"""What experiments are made of, as immutable data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WarmStart:
    """How the model that all cells of a profile start from is taught (`trainers.toy.warm_start.warm_start`).

    Attributes:
        size: key of `trainers.toy.model.SIZES`.
        options: options of `warm_start` that differ from its defaults.
    """

    size: str
    options: Mapping[str, Any]
