"""Text environments for classical RL: discrete actions that stand for texts, numeric observations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.utils import RecordConstructorArgs

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import check_integer, check_items

Candidates = Sequence[str] | Callable[[dict[str, Any]], Sequence[str]]
Encoder = Callable[[str], Any]
BYTES = 257
"""Size of the vocabulary of `observations="tokens"`: padding (0) and the 256 bytes of UTF-8 (1 to 256)."""


class ChooseAction(gymnasium.ActionWrapper[Any, Any, Any], RecordConstructorArgs):
    """Makes the actions of a text environment `Discrete`, and optionally its observations numeric.

        env = ChooseAction(gym.make("AgentR1/FrozenLakeText-v0"), max_actions=4, observations="tokens")

    The action `a` is the text `candidates[a]`. Where the list changes from step to step, **an action beyond its end
    wraps around**: it is the text `candidates[a % len(candidates)]`. `info["action_mask"]` (int8, shape (n,)) is 1 for
    actions in the list, `info["candidates"]` is the list, and `action_masks()` is the mask for sb3-contrib's
    MaskablePPO. A list longer than `max_actions` is cut.

    Token ids in a `Box` are quantities to every classical library: to the policy, "b" is twice "a", and it hardly
    learns. So tokens are `MultiDiscrete`, which libraries encode one-hot by themselves;
    `integrations.sb3.TokenExtractor` embeds them in fewer weights.

    Args:
        env: an environment whose actions are texts.
        candidates: the texts, or a function from `info` to those of this step; None: `info["actions"]` of the
            environment.
        max_actions: number of actions; needed unless `candidates` is a list.
        observations: "same" leaves them unchanged; "tokens": the last `max_tokens` bytes of the text as ids,
            `MultiDiscrete` of shape (max_tokens,), padded with 0 at the end; or a function from the text to a vector
            of floats (a sentence encoder), `Box` of its shape and float32.
        max_tokens: see `observations`.

    Raises:
        ConfigurationError: an argument does not fit; or, from `reset` and `step`, there are no candidates, or the
            encoder returned another shape or a value that is not finite.
    """

    forwards_action: ClassVar[bool] = True
    """See `vector.step_together`."""

    def __init__(
        self,
        env: gymnasium.Env[Any, str],
        candidates: Candidates | None = None,
        *,
        max_actions: int | None = None,
        observations: str | Encoder = "same",
        max_tokens: int = 256,
    ) -> None:
        RecordConstructorArgs.__init__(
            self,
            candidates=candidates,
            max_actions=max_actions,
            observations=observations,
            max_tokens=max_tokens,
            _disable_deepcopy=True,
        )
        super().__init__(env)
        if candidates is not None and not callable(candidates):
            check_items("candidates", candidates, str)
            max_actions = len(candidates) if max_actions is None else max_actions
        if max_actions is None:
            raise ConfigurationError("ChooseAction needs max_actions=, because the candidates are not a fixed list.")
        check_integer("max_actions", max_actions, 1)
        check_integer("max_tokens", max_tokens, 1)
        self._source, self._max_actions, self._max_tokens = candidates, max_actions, max_tokens
        self._candidates: tuple[str, ...] = ()
        self.action_space = Discrete(max_actions)
        self._encoder: Encoder | None = None
        if observations == "tokens":
            self._encoder = self._tokens
            self.observation_space = MultiDiscrete(np.full(max_tokens, BYTES))
        elif callable(observations):
            self._encoder = observations
            self.observation_space = Box(-np.inf, np.inf, np.asarray(observations("")).shape, np.float32)
        elif observations != "same":
            raise ConfigurationError(f'observations must be "same", "tokens" or a function, got {observations!r}.')
        if self._encoder is not None and not isinstance(env.observation_space, gymnasium.spaces.Text):
            raise ConfigurationError(f'{env} observes {env.observation_space}, not text; use observations="same".')

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._update_candidates(info)
        return self._encode(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the candidate at that index.

        Raises:
            ConfigurationError: the last step left no candidates.
        """
        observation, reward, terminated, truncated, info = self.env.step(self.action(action))
        self._update_candidates(info)
        return self._encode(observation), reward, terminated, truncated, info

    def action(self, action: Any) -> str:
        """Return the candidate at that index; see `step`."""
        if not self.action_space.contains(action):
            raise ConfigurationError(f"The action {action!r} is not in {self.action_space}.")
        if not self._candidates:
            raise ConfigurationError(f"There is no candidate for the next action of {self.env}.")
        return self._candidates[int(action) % len(self._candidates)]

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are in the current list, bool (n,)."""
        return np.arange(self._max_actions) < len(self._candidates)

    def _update_candidates(self, info: dict[str, Any]) -> None:
        """Set the candidates of the next step, and add them to `info`."""
        if self._source is None and "actions" not in info:
            raise ConfigurationError(f"{self.env} has no info['actions']; pass the candidates to ChooseAction.")
        source = info["actions"] if self._source is None else self._source
        texts = source(info) if callable(source) else source
        check_items("candidates", texts, str)
        self._candidates = tuple(texts[: self._max_actions])
        info["candidates"], info["action_mask"] = self._candidates, self.action_masks().astype(np.int8)

    def _encode(self, observation: Any) -> Any:
        if self._encoder is None:
            return observation
        encoded = np.asarray(self._encoder(observation), dtype=self.observation_space.dtype)
        if not self.observation_space.contains(encoded) or not np.isfinite(encoded).all():
            raise ConfigurationError(
                f"The encoder returned shape {encoded.shape} for {observation!r:.40}; expected finite numbers of shape "
                f"{self.observation_space.shape}, as for an empty text."
            )
        return encoded

    def _tokens(self, text: str) -> npt.NDArray[np.int64]:
        data = np.frombuffer(text.encode()[-self._max_tokens :], dtype=np.uint8)
        ids = np.zeros(self._max_tokens, dtype=np.int64)
        ids[: len(data)] = data.astype(np.int64) + 1
        return ids
