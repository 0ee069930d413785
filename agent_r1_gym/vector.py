"""ToolVectorEnv: many episodes side by side, one batch of tool calls a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from agent_r1_gym.core import StepReturn, ToolEnv
from agent_r1_gym.errors import ActionTypeError, ConfigurationError
from agent_r1_gym.tool import execute_calls

Flags = npt.NDArray[np.bool_]
VectorStepReturn = tuple[tuple[str, ...], npt.NDArray[np.float64], Flags, Flags, dict[str, Any]]


class ToolVectorEnv(VectorEnv[tuple[str, ...], tuple[str, ...], Any]):
    """N `ToolEnv`s whose tool calls are gathered in each step and executed as one batch a tool.

    Environments that share a tool object share its batch, and equal calls to a deterministic tool are executed once.
    The transitions are those of N single environments. `gym.make_vec(id, num_envs=N)` returns this class.

    Args:
        envs: the environments; they must have equal spaces.
        autoreset_mode: when ended episodes restart: "NextStep" (default: the next step resets and ignores the action),
            "SameStep" (at once; the last state is in `info["final_obs"]` and `info["final_info"]`), "Disabled" (by
            `reset(options={"reset_mask": mask})`).

    Raises:
        ConfigurationError: no environment, different spaces, or an unknown mode.
    """

    def __init__(
        self, envs: Sequence[ToolEnv], *, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP
    ) -> None:
        if not envs:
            raise ConfigurationError("A vector needs at least one environment (num_envs >= 1).")
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError as error:
            modes = [mode.value for mode in AutoresetMode]
            raise ConfigurationError(f"Unknown autoreset_mode {autoreset_mode!r}; choose one of {modes}.") from error
        self.envs = list(envs)
        self.num_envs = len(self.envs)
        first = self.envs[0]
        if len(set(map(id, self.envs))) < self.num_envs:
            raise ConfigurationError("One environment stands twice in the vector; each place needs one of its own.")
        for env in self.envs:
            if (env.observation_space, env.action_space) != (first.observation_space, first.action_space):
                raise ConfigurationError("All environments of a vector need equal observation and action spaces.")
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)
        self._observations: list[str] = [""] * self.num_envs
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Starts an episode in every environment, or in those of `options["reset_mask"]`.

        Args:
            seed: None, one int (environment i gets `seed + i`), or one seed an environment.
            options: passed to every environment, but for `reset_mask`, a boolean array of shape (num_envs,).

        Returns:
            Observations (a tuple of N texts) and the batched info.
        """
        options = dict(options or {})
        mask = self._reset_mask(options.pop("reset_mask", None))
        infos: list[dict[str, Any] | None] = [None] * self.num_envs
        for index, env_seed in enumerate(self._seeds(seed)):
            if mask[index]:
                self._observations[index], infos[index] = self.envs[index].reset(seed=env_seed, options=dict(options))
        self._ended[mask] = False
        return tuple(self._observations), batch_infos(infos)

    def step(self, actions: Sequence[str]) -> VectorStepReturn:
        """Steps every environment; all their calls are executed together.

        Args:
            actions: one model turn an environment.

        Returns:
            Observations (N texts), rewards, terminations, truncations (arrays of shape (N,)) and the batched info.

        Raises:
            ActionTypeError: not N strings; no environment was stepped then.
            EpisodeError: an episode ended and was not reset ("Disabled" mode).
        """
        self._check_actions(actions)
        next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
        resets: list[bool] = self._ended.tolist() if next_step else [False] * self.num_envs
        live = [index for index, reset in enumerate(resets) if not reset]
        steps = iter(step_together([self.envs[index] for index in live], [actions[index] for index in live]))
        # Lists, for a cell of an array takes three times as long to set.
        rewards, terminations, truncations = [0.0] * self.num_envs, [False] * self.num_envs, [False] * self.num_envs
        infos: list[dict[str, Any] | None] = []
        for index, env in enumerate(self.envs):
            if resets[index]:
                self._observations[index], info = env.reset()
            else:
                observation, rewards[index], terminations[index], truncations[index], info = next(steps)
                self._observations[index] = observation
                ended = terminations[index] or truncations[index]
                if ended and self.autoreset_mode is AutoresetMode.SAME_STEP:
                    final = {"final_obs": observation, "final_info": info}
                    self._observations[index], info = env.reset()
                    info |= final
            infos.append(info)
        terminated, truncated = np.array(terminations, dtype=np.bool_), np.array(truncations, dtype=np.bool_)
        self._ended = terminated | truncated
        paid = np.array(rewards, dtype=np.float64)
        return tuple(self._observations), paid, terminated, truncated, batch_infos(infos)

    def render(self) -> tuple[Any, ...]:
        """Returns what every environment renders."""
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Returns the attribute `name` of every environment, called with the arguments if it is callable."""
        found = [getattr(env, name) for env in self.envs]
        return tuple(value(*args, **kwargs) if callable(value) else value for value in found)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Returns the attribute `name` of every environment."""
        return tuple(getattr(env, name) for env in self.envs)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets the attribute `name`: one value for all, or a list or tuple with one an environment."""
        each = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ConfigurationError(f"set_attr needs {self.num_envs} values, got {len(each)}.")
        for env, value in zip(self.envs, each, strict=True):
            setattr(env, name, value)

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as in SyncVectorEnv
        """The seed of every environment."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # as in SyncVectorEnv
        """The generator of every environment."""
        return self.get_attr("np_random")

    def close_extras(self, **_options: Any) -> None:
        """Closes every environment."""
        for env in self.envs:
            env.close()

    def _check_actions(self, actions: Sequence[str]) -> None:
        sized = isinstance(actions, Sequence | np.ndarray) and not isinstance(actions, str)
        if not sized or len(actions) != self.num_envs:
            size = len(actions) if sized else f"one {type(actions).__name__}"
            raise ActionTypeError(f"Expected {self.num_envs} actions, one string an environment, got {size}.")
        for index, action in enumerate(actions):
            if not isinstance(action, str):
                raise ActionTypeError(f"Action {index} must be a string, got {type(action).__name__}.")

    def _reset_mask(self, mask: Any) -> Flags:
        if mask is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        array = np.asarray(mask)
        if array.shape != (self.num_envs,) or array.dtype != np.bool_ or not array.any():
            raise ConfigurationError(
                f"options['reset_mask'] must be a boolean array of shape ({self.num_envs},) with at least one True, "
                f"got {mask!r}."
            )
        return array

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ConfigurationError(f"Expected one seed or {self.num_envs} seeds, got {len(seed)}.")
        return [None if one is None else int(one) for one in seed]


def batch_infos(infos: Sequence[Mapping[str, Any] | None]) -> dict[str, Any]:
    """Returns what `VectorEnv._add_info` makes of the infos of all environments, a key at a time instead of a cell.

    Args:
        infos: one an environment, None where there is none; a key has values of one type.

    Returns:
        Per key an array over the environments (numbers: of their type; dictionaries: batched likewise; all else:
        objects) and under "_key" the mask of those that have it.
    """
    batched: dict[str, Any] = {}
    found = [info for info in infos if info]
    keys = dict.fromkeys(chain.from_iterable(found))
    everywhere = sum(map(len, found)) == len(keys) * len(infos)  # the usual step: every environment has every key
    for key in keys:
        if everywhere:
            values, mask = [info[key] for info in found], np.ones(len(infos), dtype=np.bool_)
        else:
            values = [info.get(key) if info else None for info in infos]
            mask = np.array([info is not None and key in info for info in infos], dtype=np.bool_)
        batched[key], batched[f"_{key}"] = _batch_values(values, values[int(mask.argmax())]), mask
    return batched


def _batch_values(values: list[Any], first: Any) -> Any:
    if isinstance(first, dict):
        return batch_infos(values)
    if type(first) in (bool, int, float):
        return np.array([value or 0 for value in values], dtype=type(first))
    # Not np.array(values, dtype=object), which would take tuples of one length for a second dimension.
    return np.fromiter(values, dtype=object, count=len(values))


def step_together(envs: Sequence[ToolEnv], actions: Sequence[str]) -> list[StepReturn]:
    """Steps environments side by side: all their calls are executed as one batch a tool.

    Args:
        envs: environments with a running episode each.
        actions: one model turn an environment.

    Returns:
        What `step` of each environment would have returned.
    """
    pending = [env.begin_step(action) for env, action in zip(envs, actions, strict=True)]
    outcomes = execute_calls([call for calls in pending for call in calls])
    results = []
    position = 0
    for env, calls in zip(envs, pending, strict=True):
        results.append(env.finish_step(outcomes[position : position + len(calls)]))
        position += len(calls)
    return results
