"""Names and shapes of weights: whether a checkpoint fits a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agent_r1_gym.errors import ConfigurationError

Shapes = Mapping[str, list[int]]


def check_weights(path: Path, *, own: Shapes, saved: Shapes, what: str) -> None:
    """Refuses weights of other names or shapes.

    Raises:
        ConfigurationError: they differ; the message names the first.
    """
    different = sorted(name for name in own.keys() | saved.keys() if own.get(name) != saved.get(name))
    if different:
        first = different[0]
        raise ConfigurationError(
            f"{path} holds another {what}: {len(different)} weights differ in name or shape, first {first}: expected "
            f"{own.get(first)}, got {saved.get(first)}. Resume with the model and the LoRA settings that it was "
            "trained with."
        )
