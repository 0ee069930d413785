"""Configuration of the trainer: presets of algorithms, our options in groups, and `AgentConfig`, TRL's with ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainers.config.presets import ALGORITHMS as ALGORITHMS
from trainers.config.presets import Preset as Preset

if TYPE_CHECKING:
    from trainers.config.agent import AgentConfig as AgentConfig
    from trainers.config.agent import settle_precision as settle_precision


def __getattr__(name: str) -> Any:
    """Loads what builds on TRL when it is first asked for: `--help` and wrong input do without its five seconds."""
    if name not in ("AgentConfig", "settle_precision"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainers.config import agent

    return getattr(agent, name)
