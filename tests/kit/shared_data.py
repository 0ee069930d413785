"""Finds the real data files that some tests check against; they are not part of the project."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[3] / "shared"


def shared_file(name: str) -> Path:
    """Returns the path of a real data file, or skips the calling test, saying which file is absent."""
    root = Path(os.environ.get("AGENT_R1_SHARED", _BESIDE))
    path = root / "data" / name
    if not path.is_file():
        pytest.skip(f"real data file {name} is absent (set AGENT_R1_SHARED to the folder that holds data/)")
    return path
