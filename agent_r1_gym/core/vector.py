"""Many episodes in parallel, one batch of tool calls per step: `ToolVectorEnv`, and `step_together` for any loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, TimeLimit

from agent_r1_gym.core.rewards import prepare_rewards
from agent_r1_gym.core.spaces import UnicodeText
from agent_r1_gym.core.tool import PendingCall, execute_calls
from agent_r1_gym.core.tool_env import SerializableSpec, ToolEnv
from agent_r1_gym.errors import ActionTypeError, ConfigurationError, EpisodeError

AnyEnv = gymnasium.Env[Any, Any]
AnyActionWrapper = gymnasium.ActionWrapper[Any, Any, Any]
AnyStepReturn = tuple[Any, Any, bool, bool, dict[str, Any]]
Flags = npt.NDArray[np.bool_]
VectorStepReturn = tuple[Any, npt.NDArray[np.float64], Flags, Flags, dict[str, Any]]


class ToolVectorEnv(SerializableSpec, VectorEnv[Any, Any, Any]):
    """N tool environments, bare or wrapped; the tool calls of a step are gathered and executed as one batch per tool.

    Environments that share a tool object share its batch, and equal calls to a deterministic tool are executed once.
    The transitions are those of N single environments. Observations are a tuple of N texts, or batched by the space of
    wrapped environments. Which wrappers keep the batch: see `step_together`.

    `gymnasium.make_vec(ID, num_envs=N)` returns this class. Its argument `wrappers` is Gymnasium's own and refused
    there; `gymnasium.make_vec(ID, num_envs=N, env_wrappers=[...])` wraps each environment.

    Args:
        envs: the environments; they must have equal spaces.
        autoreset_mode: when ended episodes restart: "NextStep" (default: the next step resets and ignores the action),
            "SameStep" (at once; the last state is in `info["final_obs"]` and `info["final_info"]`), "Disabled" (by
            `reset(options={"reset_mask": mask})`).

    Raises:
        ConfigurationError: no environment, different spaces, or an unknown mode.
    """

    def __init__(
        self, envs: Sequence[AnyEnv], *, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP
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
        if len({id(env.unwrapped) for env in self.envs}) < self.num_envs:
            raise ConfigurationError("The vector has the same environment twice; pass a separate one for each index.")
        for index, env in enumerate(self.envs):
            spaces, expected = (env.observation_space, env.action_space), (first.observation_space, first.action_space)
            if spaces != expected:
                raise ConfigurationError(
                    f"All environments of a vector need equal observation and action spaces; environment {index} has "
                    f"{spaces}, the first {expected}."
                )
        self.metadata = {**first.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = first.render_mode
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)
        is_text = isinstance(first.observation_space, UnicodeText)
        self._observations: list[Any] = ["" if is_text else first.observation_space.sample()] * self.num_envs
        self._ended = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every environment, or in those of `options["reset_mask"]`.

        Args:
            seed: None, one int (environment i gets `seed + i`), or one seed per environment.
            options: passed to every environment, except `reset_mask`, a boolean array of shape (num_envs,).

        Returns:
            Observations and the batched info.
        """
        options = dict(options or {})
        mask = self._reset_mask(options.pop("reset_mask", None))
        infos: list[dict[str, Any] | None] = [None] * self.num_envs
        for index, env_seed in enumerate(self._seeds(seed)):
            if mask[index]:
                self._observations[index], infos[index] = self.envs[index].reset(seed=env_seed, options=dict(options))
        self._ended[mask] = False
        return self._batched_observations(), batch_infos(infos)

    def step(self, actions: Any) -> VectorStepReturn:
        """Step every environment; all their calls are executed together.

        Args:
            actions: one model turn per environment, or an action in the batched space of wrapped environments.

        Returns:
            Observations, rewards, terminations, truncations (arrays of shape (N,)) and the batched info.

        Raises:
            ActionTypeError: not N strings; no environment was stepped then.
            EpisodeError: an episode ended and was not reset ("Disabled" mode); no environment was stepped then.
        """
        actions = self._single_actions(actions)
        if self.autoreset_mode is AutoresetMode.DISABLED and self._ended.any():
            ended_envs = np.flatnonzero(self._ended).tolist()
            raise EpisodeError(
                f"Episodes have ended in environments {ended_envs}: reset them by options['reset_mask']."
            )
        next_step = self.autoreset_mode is AutoresetMode.NEXT_STEP
        resets: list[bool] = self._ended.tolist() if next_step else [False] * self.num_envs
        live = [index for index, reset in enumerate(resets) if not reset]
        steps = iter(step_together([self.envs[index] for index in live], [actions[index] for index in live]))
        # Lists first: setting an element of an array takes three times as long.
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
        reward_array = np.array(rewards, dtype=np.float64)
        return self._batched_observations(), reward_array, terminated, truncated, batch_infos(infos)

    def render(self) -> tuple[Any, ...]:
        """Render every environment."""
        return tuple(env.render() for env in self.envs)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call the method `name` of every environment, or get the attribute if it is not callable."""
        values = self.get_attr(name)
        return tuple(value(*args, **kwargs) if callable(value) else value for value in values)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get the attribute `name` of every environment."""
        return tuple(env.get_wrapper_attr(name) for env in self.envs)

    def set_attr(self, name: str, values: Any) -> None:
        """Set the attribute `name`: one value for all, or a list or tuple with one per environment."""
        per_env = values if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(per_env) != self.num_envs:
            raise ConfigurationError(f"set_attr needs {self.num_envs} values, got {len(per_env)}.")
        for env, value in zip(self.envs, per_env, strict=True):
            env.set_wrapper_attr(name, value)

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]  # as in SyncVectorEnv
        """The seed of every environment."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]  # as in SyncVectorEnv
        """The generator of every environment."""
        return self.get_attr("np_random")

    def close_extras(self, **_options: Any) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()

    def _batched_observations(self) -> Any:
        space = self.single_observation_space
        out: Any = create_empty_array(space, self.num_envs)
        return concatenate(space, self._observations, out)

    def _single_actions(self, actions: Any) -> Sequence[Any]:
        """Split actions by environment; texts are checked before any environment is stepped."""
        is_text = isinstance(self.single_action_space, UnicodeText)
        singles = actions if is_text else tuple(iterate(self.action_space, actions))
        sized = isinstance(singles, Sequence | np.ndarray) and not isinstance(singles, str)
        if not sized or len(singles) != self.num_envs:
            size = len(singles) if sized else f"one {type(actions).__name__}"
            raise ActionTypeError(f"Expected {self.num_envs} actions, one per environment, got {size}.")
        for index, action in enumerate(singles if is_text else ()):
            if not isinstance(action, str):
                raise ActionTypeError(f"Action {index} must be a string, got {type(action).__name__}.")
        return singles

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
    """Batch the infos of all environments as `VectorEnv._add_info` does, but by key, which is faster.

    Args:
        infos: one per environment, None where there is none; a key has values of one type.

    Returns:
        Per key an array over the environments (numbers: of their type, 0 where absent; arrays of one shape: stacked,
        zeros where absent; dictionaries: batched likewise; everything else: objects, None where absent) and under
        "_key" the mask of those that have it.
    """
    batched: dict[str, Any] = {}
    present = [info for info in infos if info]
    keys = dict.fromkeys(chain.from_iterable(present))
    everywhere = sum(map(len, present)) == len(keys) * len(infos)  # the usual step: every environment has every key
    for key in keys:
        if everywhere:
            values, mask = [info[key] for info in present], np.ones(len(infos), dtype=np.bool_)
        else:
            values = [info.get(key) if info else None for info in infos]
            mask = np.array([info is not None and key in info for info in infos], dtype=np.bool_)
        first = None if key == "final_obs" else values[int(mask.argmax())]  # observations stay objects, as in Gymnasium
        batched[key], batched[f"_{key}"] = _batch_values(values, first, mask), mask
    return batched


def _batch_values(values: list[Any], first: Any, mask: Flags) -> Any:
    if isinstance(first, dict):
        return batch_infos(values)
    is_array = isinstance(first, np.ndarray)
    if is_array or type(first) in (bool, int, float) or isinstance(first, np.number):
        absent = np.zeros_like(first) if is_array else 0
        filled = values if mask.all() else [value if has else absent for value, has in zip(values, mask, strict=True)]
        with suppress(TypeError, ValueError):  # several shapes, or None next to integers: Gymnasium raises there
            return np.array(filled, dtype=first.dtype if is_array else type(first))
    # Not np.array(values, dtype=object), which would make tuples of equal length a second dimension.
    return np.fromiter(values, dtype=object, count=len(values))


# --- stepping several environments -----------------------------------------------------------------------------------

_FORWARDING_STEPS = frozenset(
    wrapper.step
    for wrapper in (
        *(gymnasium.Wrapper, gymnasium.ObservationWrapper, gymnasium.RewardWrapper),
        *(OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, TimeLimit),
    )
)
"""`step` methods of wrappers that step the wrapped environment once, with an unchanged action."""


def step_together(envs: Sequence[AnyEnv], actions: Sequence[Any]) -> list[AnyStepReturn]:
    """Step several environments: the tool calls of all `ToolEnv`s among them run as one batch per tool.

    A reward term with a backend (`Judge`) gets the transitions of all of them as one batch, too.

    A wrapped `ToolEnv` takes part if its wrappers show which action reaches it: those of this package; Gymnasium's
    `TimeLimit`, `RecordEpisodeStatistics`, `OrderEnforcing` and `PassiveEnvChecker`; observation, reward and action
    wrappers that do not override `step`; any class with the attribute `forwards_action = True`, whose `step`
    steps the wrapped environment once, with the same action (an `ActionWrapper`: with what its `action` returns). Other
    environments are stepped one by one.

    Args:
        envs: any environments, with a running episode each.
        actions: one per environment.

    Returns:
        The return value of `step` for each environment.
    """
    begun = [_begin(env, action) for env, action in zip(envs, actions, strict=True)]
    executed = iter(execute_calls([call for step in begun if step is not None for call in step.calls]))
    outcomes = [[] if step is None else [next(executed) for _ in step.calls] for step in begun]
    prepare_rewards(
        (step.tool_env.rewards, step.tool_env.preview_transition(env_outcomes))
        for step, env_outcomes in zip(begun, outcomes, strict=True)
        if step is not None and step.tool_env.rewards.waits_for_backend
    )
    steps: list[AnyStepReturn] = []
    for env, action, step, env_outcomes in zip(envs, actions, begun, outcomes, strict=True):
        if step is None:
            steps.append(env.step(action))
            continue
        if env is step.tool_env:
            steps.append(step.tool_env.finish_step(env_outcomes))
        else:
            step.tool_env.prepare_step(env_outcomes)
            with _replayed_actions(step.wrapper_actions):
                steps.append(env.step(action))
    return steps


class _BegunStep(NamedTuple):
    """A step that was begun below wrappers.

    Attributes:
        tool_env: the innermost environment.
        calls: its calls to execute.
        wrapper_actions: the action that each action wrapper on the way passed on.
    """

    tool_env: ToolEnv
    calls: tuple[PendingCall, ...]
    wrapper_actions: Sequence[tuple[AnyActionWrapper, Any]] = ()


def _begin(env: AnyEnv, action: Any) -> _BegunStep | None:
    """Begin the step of the `ToolEnv` in `env`; None if only `env.step` knows which action reaches it."""
    if not isinstance(env.unwrapped, ToolEnv) or not supports_split_step(env.unwrapped) or not _forwards_action(env):
        return None
    if isinstance(env, ToolEnv):
        return _BegunStep(env, env.begin_step(action))
    wrapper_actions: list[tuple[AnyActionWrapper, Any]] = []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.ActionWrapper):
            action = env.action(action)
            wrapper_actions.append((env, action))
        env = env.env
    tool_env = cast(ToolEnv, env)
    return _BegunStep(tool_env, tool_env.begin_step(action), wrapper_actions)


def supports_split_step(env: ToolEnv) -> bool:
    """Check whether `begin_step` and `finish_step` do all that `step` does: a subclass may override `step`."""
    return getattr(env.step, "__func__", None) is ToolEnv.step


def _forwards_action(env: AnyEnv) -> bool:
    while isinstance(env, gymnasium.Wrapper):
        step = type(env).step
        known = step in _FORWARDING_STEPS or getattr(type(env), "forwards_action", False)
        if not known and (step is not gymnasium.ActionWrapper.step or "action" in vars(env)):
            return False
        env = env.env
    return True


@contextmanager
def _replayed_actions(wrapper_actions: Sequence[tuple[AnyActionWrapper, Any]]) -> Iterator[None]:
    """Make action wrappers return the same action again: a random one would draw another."""
    for wrapper, result in wrapper_actions:
        vars(wrapper)["action"] = lambda _action, result=result: result
    try:
        yield
    finally:
        for wrapper, _ in wrapper_actions:
            del vars(wrapper)["action"]
