"""TextGame: a text environment out of two functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from typing import Any

import gymnasium
import numpy as np

from agent_r1_gym.core.spaces import UnicodeText, is_encodable
from agent_r1_gym.core.text import encodable
from agent_r1_gym.errors import ActionTypeError, AgentR1Error, ConfigurationError, EpisodeError, GameError
from agent_r1_gym.support.checks import StrictOptions, check_integer

ResetReturn = str | tuple[str, Mapping[str, Any]]
_Step = tuple[str, float, bool, bool, dict[str, Any]]
_MAX_SEED = 2**31
_CUT = "\n[the observation is cut]"


class TextGame(StrictOptions, gymnasium.Env[str, str]):
    """A text environment out of two functions, your own or those of another library.

        def toss(seed):
            return "Heads or tails?"

        def call(action):
            return "Over.", float("heads" in action), True, {}

        env = TextGame(toss, call)

    What the functions return is checked: an observation that is not a string, a reward that is not a number, or any
    exception becomes a `GameError` that names game, turn and seed. Every observation is a user turn, so it
    should contain only what is new; a custom loop that needs the history keeps it itself.

    Args:
        reset: takes a seed (always an integer: that of `reset(seed=...)`, else one drawn from the environment's
            generator) and returns the first observation, or observation and info.
        step: takes the action and returns (observation, reward, terminated, truncated, info) as Gymnasium does, or
            (observation, reward, done, info). An episode that is both terminated and truncated counts as terminated.
        max_turns: the episode is truncated after this many turns; None: never.
        close: called by `close`.
        oracle: returns the best next action, for `--policy oracle`.
        max_chars: longest observation and action, in characters. A game that repeats a long turn may return more: the
            observation is cut, and the episode truncated.

    Raises:
        ConfigurationError: an argument does not fit.
        GameError: a function raised, or broke the contract above.
        EpisodeError: `step` before `reset` or after the end.
    """

    def __init__(
        self,
        reset: Callable[[int], ResetReturn],
        step: Callable[[str], tuple[Any, ...]],
        *,
        max_turns: int | None = None,
        close: Callable[[], None] | None = None,
        oracle: Callable[[], str | None] | None = None,
        max_chars: int = 65_536,
    ) -> None:
        check_integer("max_turns", 1 if max_turns is None else max_turns, 1)
        self._reset, self._step, self._close, self._oracle = reset, step, close, oracle
        self.max_turns = max_turns
        self.observation_space = UnicodeText(max_chars)
        self._max_chars = max_chars
        self.action_space = UnicodeText(max_chars)
        self._running = False
        self._turns, self._seed = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode; there are no `options`."""
        super().reset(seed=seed)
        if options:
            raise ConfigurationError(f"{self._name} takes no options in reset, got {options!r:.200}.")
        self._seed = int(self.np_random.integers(_MAX_SEED)) if seed is None else seed
        self._running, self._turns = False, 0
        with self._error_context():
            opening = self._reset(self._seed)
        text, info = opening if isinstance(opening, tuple) and len(opening) == 2 else (opening, {})
        self._running = True
        return self._text(text), self._info(info)

    def step(self, action: str) -> _Step:
        """Play one turn."""
        if not isinstance(action, str):
            raise ActionTypeError(f"An action of {self._name} is a string, got {type(action).__name__}.")
        if not self._running:
            raise EpisodeError(f"No episode of {self._name} is running; call reset.")
        self._turns += 1
        with self._error_context():
            outcome = self._step(encodable(action))  # games repeat what they do not understand
        if not isinstance(outcome, tuple) or len(outcome) not in (4, 5):
            raise self._contract_error(f"step returned {outcome!r:.80}; expected 4 or 5 values as in Gymnasium")
        observation, reward, terminated, *truncated_flag, info = outcome
        if not all(isinstance(flag, bool | np.bool_) for flag in (terminated, *truncated_flag)):
            raise self._contract_error(
                f"terminated and truncated are {(terminated, *truncated_flag)!r:.80}; expected booleans"
            )
        text, number, step_info = self._text(observation, repeated=action), self._number(reward), self._info(info)
        ended, truncated = bool(terminated), bool(truncated_flag and truncated_flag[0]) and not terminated
        if text is not observation and not ended:
            truncated = True
            step_info.setdefault("end_reason", "max_history")
        if self._turns == self.max_turns and not ended and not truncated:
            truncated = True
            step_info.setdefault("end_reason", "max_turns")
        self._running = not (ended or truncated)
        return text, number, ended, truncated, step_info

    def oracle(self) -> str | None:
        """Return the best next action, None if unknown."""
        return None if self._oracle is None else self._oracle()

    def close(self) -> None:
        """Close the game."""
        if self._close is not None:
            self._close()

    @property
    def _name(self) -> str:
        return self.spec.id if self.spec else type(self).__name__

    def _contract_error(self, what: str) -> GameError:
        return GameError(f"{self._name}, turn {self._turns}, seed {self._seed}: {what}.")

    @contextmanager
    def _error_context(self) -> Iterator[None]:
        try:
            yield
        except AgentR1Error:  # already describes what is wrong
            raise
        except Exception as error:  # a third-party game may raise anything
            raise self._contract_error(f"the game raised {type(error).__name__}: {error}") from error

    def _text(self, text: Any, *, repeated: str = "") -> str:
        """Return an observation; one that is too long is cut if the game `repeated` a long turn, else an error."""
        if not isinstance(text, str) or not is_encodable(text):
            raise self._contract_error(f"the observation is {text!r:.80}; expected a string")
        longest = self._max_chars
        if longest < len(text) <= longest + len(repeated):  # no turn of a model may raise
            return text[: max(0, longest - len(_CUT))] + _CUT[:longest]
        if not self.observation_space.contains(text):
            raise self._contract_error(f"the observation has {len(text)} characters; raise max_chars or shorten it")
        return text

    def _number(self, reward: Any) -> float:
        try:
            number = float(reward)
        except (TypeError, ValueError):
            number = float("nan")
        if not isfinite(number) or isinstance(reward, str):
            raise self._contract_error(f"the reward is {reward!r:.80}; expected a finite number")
        return number

    def _info(self, info: Any) -> dict[str, Any]:
        if not isinstance(info, Mapping):
            raise self._contract_error(f"info is {info!r:.80}; expected a dictionary")
        return dict(info)
