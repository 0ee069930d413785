"""Who acts: scripted policies for checks and bounds, replay, and models behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from pathlib import Path

from agent_r1_gym.errors import ConfigurationError, suggest
from agent_r1_gym.play.policy import Policy, PolicyInput
from agent_r1_gym.play.scripted import NaivePolicy, OraclePolicy, ReplayPolicy

__all__ = ["POLICIES", "NaivePolicy", "OraclePolicy", "Policy", "PolicyInput", "ReplayPolicy", "make_policy"]

POLICIES = ("oracle", "naive", "replay:FILE")


def make_policy(spec: str) -> Policy:
    """Returns the policy of that name: "oracle", "naive" or "replay:FILE".

    Raises:
        ConfigurationError: no policy has that name.
        DatasetError: the trace file is missing or malformed.
    """
    if spec.startswith("replay:"):
        return ReplayPolicy(Path(spec.removeprefix("replay:")))
    scripted: dict[str, type[Policy]] = {"oracle": OraclePolicy, "naive": NaivePolicy}
    if spec not in scripted:
        raise ConfigurationError(f"Unknown policy {spec!r}. {suggest(spec, POLICIES)}")
    return scripted[spec]()
