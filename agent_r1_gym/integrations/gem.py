"""GEM: our environments as `gem.core.Env`, for GEM's own loops, its vectors and the trainers that use it.

    import gem
    from agent_r1_gym.integrations.gem import register

    register("AgentR1/HotpotQA-v0")
    env = gem.make("AgentR1/HotpotQA-v0", dataset="sample")

An observation is the whole history already: take none of GEM's `concat` wrappers, which would show it twice.
Environments of GEM as ours are in `integrations.games.gem`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.integrations.base import lazy_classes, library, with_base
from agent_r1_gym.registry import full_id, make_text_env
from agent_r1_gym.support.concurrency import WorkerThread


def register(name: str, **options: Any) -> str:
    """Registers an environment with GEM under the same id; harmless if repeated.

    Args:
        name: see `registry.full_id`.
        **options: defaults of the environment's options; `gem.make` takes others.

    Returns:
        The id.

    Raises:
        ConfigurationError: no such environment.
        MissingDependencyError: GEM is not installed.
    """
    gem = library("gem", package="gem-llm", tested_version="0.1")
    identifier = full_id(name)
    gem.envs.registration.ENV_REGISTRY.pop(identifier, None)
    gem.register(identifier, functools.partial(__getattr__("AgentR1Env"), identifier), **options)
    return identifier


class _AgentR1Env:
    """Any text environment.

    Args:
        name: see `registry.full_id`.
        seed: of the first reset that is given none, as GEM's vectors set it.
        **options: of the environment.

    Raises:
        ConfigurationError: no such environment, or options that do not fit it.
    """

    def __init__(self, name: str, seed: int | None = None, **options: Any) -> None:
        super().__init__()
        self._make_args, self._seed = (name, options), seed
        # GEM's vectors call from any thread, and a connection of the environment may be bound to one.
        self._thread, self.env = WorkerThread.create(lambda: make_text_env(name, options))

    def reset(self, seed: int | None = None, *, options: Mapping[str, Any] | None = None) -> Any:
        """Starts an episode; `options` are those of the environment's `reset`, such as `{"task_index": 3}`."""
        seed, self._seed = self._seed if seed is None else seed, None
        return self._thread.call(self.env.reset, seed=seed, options=None if options is None else dict(options))

    def step(self, action: str) -> Any:
        """Takes a model's turn.

        Raises:
            InfrastructureError: a backend failed; GEM has no mark for a lost episode.
        """
        step = self._thread.call(self.env.step, action)
        lost = step[4].get("infrastructure_error")
        if isinstance(lost, str):
            raise InfrastructureError(
                f"{self._make_args[0]} lost a backend: {lost}. Exclude this episode from training."
            )
        return step

    def close(self) -> None:
        """Closes the environment and its tools; may be called twice."""
        if not self._thread.ended:
            self._thread.call(self.env.close)
            self._thread.end()

    def sample_random_action(self) -> str:
        """Returns a text of the action space."""
        return str(self.env.action_space.sample())

    def spawn(self, same_state: bool = False, **options: Any) -> Any:
        """Returns a new environment with the same options but for those given, or a copy in the same state."""
        if not same_state:
            return type(self)(self._make_args[0], **{**self._make_args[1], **options})
        if options:
            raise ConfigurationError(f"A copy in the same state has the same options; got {options} too.")
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: Any) -> Any:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        try:
            made = WorkerThread.create(lambda: self._thread.call(copy.deepcopy, self.env))
        except TypeError as error:
            raise ConfigurationError(f"{self._make_args[0]} cannot be copied in mid-episode: {error}.") from error
        copied._thread, copied.env = made
        return copied


def _classes() -> Sequence[type]:
    return (with_base(library("gem.core", package="gem-llm", tested_version="0.1").Env, _AgentR1Env),)


__getattr__ = lazy_classes(__name__, ("AgentR1Env",), _classes)
