"""Stable-Baselines3: a features extractor for the tokens of `ChooseAction(observations="tokens")`.

    from stable_baselines3 import PPO
    from agent_r1_gym.integrations.sb3 import TokenExtractor

    env = ChooseAction(gym.make("AgentR1/FrozenLakeText-v0"), max_actions=4, observations="tokens")
    PPO("MlpPolicy", env, policy_kwargs={"features_extractor_class": TokenExtractor}).learn(10_000)

Without it the first layer of SB3 has a weight per position, byte and unit; with it one vector per byte is learned. Give
PPO an `ent_coef` (.01): without it a choice among texts often freezes on one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_r1_gym.integrations.base import lazy_classes, library


def _classes() -> Sequence[type]:
    library("stable_baselines3", package="stable-baselines3", tested_version="2.9")
    import torch
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class TokenExtractor(BaseFeaturesExtractor):  # type: ignore[misc]
        """Embeds the tokens of a `MultiDiscrete` observation, and reads them in their order.

        Args:
            observation_space: a `MultiDiscrete` of one size, (max_tokens,).
            width: length of a token's vector.
            features_dim: number of features.
        """

        def __init__(self, observation_space: Any, width: int = 16, features_dim: int = 64) -> None:
            super().__init__(observation_space, features_dim)
            self._shape = (len(observation_space.nvec), int(observation_space.nvec[0]))
            # No Linear: SB3 would initialise it orthogonally, with vectors too short to distinguish bytes.
            self.embedding = torch.nn.Parameter(torch.randn(self._shape[1], width))
            self.mix = torch.nn.Linear(self._shape[0] * width, features_dim)

        def forward(self, observations: Any) -> Any:
            """Returns features (B, features_dim) of one-hot tokens (B, max_tokens * size)."""
            return self.mix((observations.view(-1, *self._shape) @ self.embedding).flatten(1))

    TokenExtractor.__module__, TokenExtractor.__qualname__ = __name__, "TokenExtractor"  # so that it pickles by name
    return (TokenExtractor,)


__getattr__ = lazy_classes(__name__, ("TokenExtractor",), _classes)
