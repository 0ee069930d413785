"""`agent-r1 train ...`: the trainer, which is a package of its own (`python -m trainers.train`)."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Sequence

from agent_r1_gym.errors import MissingDependencyError


def run_trainer(words: Sequence[str]) -> int:
    """Runs `python -m trainers.train` with the rest of the command line, in this process.

    Raises:
        MissingDependencyError: the train extra is not installed.
    """
    if any(importlib.util.find_spec(package) is None for package in ("torch", "transformers", "trl", "trainers")):
        raise MissingDependencyError('Training needs more packages: pip install "agent-r1-gym[train]".')
    sys.argv = ["agent-r1 train", *words]
    runpy.run_module("trainers.train", run_name="__main__")
    return 0
