"""SkyRL-Gym: our environments as a `BaseTextEnv`, for SkyRL's generator and users of `skyrl_gym.make`.

    from agent_r1_gym.integrations import dataset_rows, skyrl_gym

    dataset_rows.write_rows("AgentR1/HotpotQA-v0", "train.parquet", library="skyrl_gym")
    skyrl_gym.register()  # in the process that makes environments: `env_class: agent_r1_gym`

Environments of SkyRL-Gym as ours are in `integrations.games.skyrl_gym`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1_gym.errors import ConfigurationError, EpisodeError
from agent_r1_gym.integrations.base import lazy_classes, library, with_base
from agent_r1_gym.integrations.dataset_rows import ADAPTER_NAME, EpisodeRow
from agent_r1_gym.integrations.episode import ChatEpisode, check_calls_are_text
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.support.concurrency import WorkerThread


def register() -> None:
    """Registers `agent_r1_gym` with SkyRL-Gym: rows with that `env_class` name the environment; harmless if repeated.

    Raises:
        MissingDependencyError: SkyRL-Gym is not installed.
    """
    skyrl = library("skyrl_gym", package="skyrl-gym", tested_version="0.4")
    if ADAPTER_NAME not in skyrl.registry:
        skyrl.register(id=ADAPTER_NAME, entry_point=f"{__name__}:AgentR1Env")


class _AgentR1Env:
    """The episode of a row.

    Args:
        env_config: must be empty: options belong into the rows.
        extras: the other columns of the row (see `EpisodeRow.read`), and the generator's `max_turns`, which holds
            next to the environment's own.

    Raises:
        ConfigurationError: the row does not name an episode, or its options do not fit.
    """

    def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        if env_config:
            raise ConfigurationError(f"Options of an environment belong into the rows; env_config is {env_config}.")
        given = dict(extras or {})
        self._generator_max_turns = given.pop("max_turns", None)
        self._row = EpisodeRow.read(given)
        try:
            self._env_and_thread = _idle(*self._row.pool_key).pop()
        except IndexError:
            self._env_and_thread = WorkerThread.create(lambda: _made(self._row))
        self._thread, self._env = self._env_and_thread
        self._episode: ChatEpisode | None = None

    def init(self, prompt: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Returns the opening messages, which take the place of the row's, and what is known of the task."""
        self._episode = episode = self._thread.call(self._row.start, self._env)
        self.turns = 0
        left = episode.state().turns_left
        self.max_turns = left if self._generator_max_turns is None else min(int(self._generator_max_turns), left)
        return episode.chat(), {"task_id": episode.task.id}

    def step(self, action: str) -> dict[str, Any]:
        """Takes a model's turn, in the thread of the environment: SkyRL's generator calls from any.

        Raises:
            EpisodeError: no episode is running.
            InfrastructureError: a backend failed; SkyRL has no mark for a lost episode.
        """
        if self._episode is None:
            raise EpisodeError("No episode is running: call init() first, and make a new environment after close().")
        return self._thread.call(self._step, self._episode, action)

    def _step(self, episode: ChatEpisode, action: str) -> dict[str, Any]:
        new = episode.step_chat(action)
        self.turns += 1
        if self.turns >= self.max_turns and not episode.ended:
            episode.truncate("max_turns")
        episode.raise_if_invalid()
        turn = episode.turns[-1]
        return {
            "observations": new,
            "reward": turn.reward,
            "done": episode.ended,
            "metadata": {**episode.end_info, "reward_terms": dict(turn.reward_terms)},
        }

    def get_metrics(self) -> dict[str, Any]:
        """Returns scores, raw reward terms, return, turns and end of the episode as it stands."""
        if self._episode is None:
            return {}
        record = self._episode.record()
        ends = {"return": record.episode_return, "turns": len(record.turns), "truncated": float(record.truncated)}
        return {**ends, **record.scores, **record.reward_terms}

    def close(self) -> None:
        """Leaves the environment and its thread to the next row of the same kind."""
        if self._episode is not None:
            self._episode = None
            _idle(*self._row.pool_key).append(self._env_and_thread)


def _made(row: EpisodeRow) -> TextEnv:
    env = row.make()
    try:
        check_calls_are_text(env, "SkyRL")
    except ConfigurationError:
        env.close()
        raise
    return env


@functools.lru_cache(maxsize=64)
def _idle(env_id: str, options: str) -> list[tuple[WorkerThread, TextEnv]]:
    """Idle environments of one kind, each in the thread that made it: a connection may be bound to it."""
    return []


def _classes() -> Sequence[type]:
    return (
        with_base(
            library("skyrl_gym.envs.base_text_env", package="skyrl-gym", tested_version="0.4").BaseTextEnv, _AgentR1Env
        ),
    )


__getattr__ = lazy_classes(__name__, ("AgentR1Env",), _classes)
