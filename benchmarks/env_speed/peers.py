"""The same episodes in GEM (gem-llm) and SkyRL-Gym (skyrl-gym), each as fast as its own documentation and code allow.

A peer that is not installed is absent, not beaten: `installed` says what is missing. What differs from this suite is
written down in README.md; where a choice had to be made, it was made in the peer's favour:

* both get their searches in their own wire format, served by the same process as ours (`server.py`), without the
  thread hop that our own endpoint pays;
* the in-process stub replaces only the network: GEM's decoding of the answer is left out too;
* SkyRL-Gym's environments serve one episode, so one is constructed per episode, directly and not through its slower
  `skyrl_gym.make`; its request logging is switched off;
* GEM's vector is measured as its thread-pool `AsyncVectorEnv` and as its `SyncVectorEnv`, SkyRL-Gym with the thread
  pool of SkyRL's generator, at several sizes; the fastest counts.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

from benchmarks.env_speed.systems import System, expect_reward
from benchmarks.env_speed.workload import GOLD, Workload, answer_turn, tag_search

GEM, SKYRL = "gem-llm", "skyrl-gym"
_NEEDED = {GEM: ("gem.envs.qa_env", "gem.tools.search_tool"), SKYRL: ("skyrl_gym.envs.search.env",)}
_URL = "http://127.0.0.1:1"  # of a stubbed search: never opened


def installed() -> tuple[list[str], dict[str, str]]:
    """Returns the names of the peers that can be imported, and what is missing for the others."""
    present, absent = [], {}
    for name, modules in _NEEDED.items():
        try:
            for module in modules:
                importlib.import_module(module)
        except ImportError as error:
            absent[name] = f"not measured: {error}"
        else:
            present.append(name)
    # Importing gem sets INFO for the whole process; SkyRL-Gym's tool sets it for itself.
    for logger in (None, "skyrl_gym.tools.search"):
        logging.getLogger(logger).setLevel(logging.WARNING)
    return present, absent


# --- GEM -------------------------------------------------------------------------------------------------------------


def gem_env(workload: Workload, *, search: Callable[[str], Any] | None, url: str | None, top_k: int) -> Any:
    """Returns GEM's question-answering environment with its search tool.

    Args:
        workload: questions and stubbed passages.
        search: stands for the network: query to hits; None searches at `url`.
        url: GEM's endpoint.
        top_k: passages per query.
    """
    from datasets import Dataset, disable_progress_bars
    from gem.envs.qa_env import QaEnv
    from gem.tools.search_tool import SearchTool
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    disable_progress_bars()
    tool = SearchTool(search_url=url or _URL, topk=top_k)
    if search is not None:
        tool._search = lambda query: tool._passages2string(search(query))
    rows = Dataset.from_list([{"question": text, "answer": [GOLD]} for text in workload.questions])
    return ToolEnvWrapper(QaEnv(dataset=rows), [tool])


def gem_history(env: Any) -> Any:
    """Returns `env` in GEM's wrapper that returns the whole history, actions included, as this suite always does."""
    from gem.wrappers.observation_wrapper import ObservationWrapper

    return ObservationWrapper(env, include_action=True, include_chat_template=False)


class GemOne(System):
    """One environment of GEM with a stubbed search."""

    def __init__(self, workload: Workload, *, queries: Sequence[str], history: bool) -> None:
        documents = workload.documents()
        env = gem_env(workload, search=lambda query: documents, url=None, top_k=len(documents))
        self.name = f"{GEM} ({'whole history' if history else 'new observation only'})"
        self.episode_steps = len(queries) + 1
        self._env = gem_history(env) if history else env
        self._actions = [tag_search(query) for query in queries] + [answer_turn()]

    def play(self, episodes: int) -> float:
        """Plays with `reset` and `step` (see the base class)."""
        env, actions, total = self._env, self._actions, 0.0
        start = time.perf_counter()
        for _ in range(episodes):
            env.reset()
            for action in actions:
                _, reward, _, _, _ = env.step(action)
            total += reward
        seconds = time.perf_counter() - start
        expect_reward(self.name, total, episodes)
        return seconds


class GemVector(System):
    """GEM's own vector environment ("async": one thread per environment, "sync": one after the other)."""

    def __init__(
        self,
        workload: Workload,
        *,
        batches: Sequence[Sequence[str]],
        mode: str,
        top_k: int,
        url: str | None = None,
        search: Callable[[str], Any] | None = None,
    ) -> None:
        module = importlib.import_module(f"gem.vector.{mode}_vector_env")
        vector = module.AsyncVectorEnv if mode == "async" else module.SyncVectorEnv
        width = len(batches[0])
        env = gem_env(workload, search=search, url=url, top_k=top_k)
        # Copies share the questions: building 64 Arrow tables would only cost time before the measurement.
        clones = itertools.chain([env], (_gem_clone(env) for _ in range(width - 1)))
        self.name = f"{GEM} ({mode} vector)"
        self.episode_steps = width * (len(batches) + 1)
        self._envs = vector(env_ids=["qa"] * width, env_fns=[lambda: next(clones)] * width)
        self._actions = [[tag_search(query) for query in batch] for batch in batches]
        self._actions.append([answer_turn()] * width)
        self._envs.reset()

    def play(self, episodes: int) -> float:
        """Plays with the vector's `step`, which resets ended environments at once (see the base class)."""
        envs, actions, total = self._envs, self._actions, 0.0
        start = time.perf_counter()
        for _ in range(episodes):
            for batch in actions:
                _, rewards, _, _, _ = envs.step(batch)
            total += float(rewards.sum())
        seconds = time.perf_counter() - start
        expect_reward(self.name, total, episodes * envs.num_envs)
        return seconds

    def close(self) -> None:
        """Ends the threads."""
        pool = getattr(self._envs, "thread_pool_executer", None)
        if pool is not None:
            pool.shutdown()


def _gem_clone(env: Any) -> Any:
    from gem.tools.tool_env_wrapper import ToolEnvWrapper

    return ToolEnvWrapper(copy.copy(env.env), env.tools)


# --- SkyRL-Gym -------------------------------------------------------------------------------------------------------


class _SkyRLEpisodes:
    """Plays single episodes of SkyRL-Gym's search environment."""

    def __init__(self, workload: Workload, *, url: str, top_k: int) -> None:
        from skyrl_gym.envs.search.env import SearchEnv, SearchEnvConfig

        self._make = SearchEnv
        self._config = SearchEnvConfig(log_requests=False, search_url=url, topk=top_k)
        self._prompts = itertools.cycle([[{"role": "user", "content": text}] for text in workload.questions])

    def start(self, turns: int) -> Any:
        """Returns a started environment."""
        truth = {"reward_spec": {"ground_truth": {"target": [GOLD]}}, "max_turns": turns + 1}
        env = self._make(self._config, truth)
        env.init(next(self._prompts))
        return env


class SkyRLOne(System):
    """One environment of SkyRL-Gym after the other, with a stubbed search."""

    name = SKYRL

    def __init__(self, workload: Workload, *, queries: Sequence[str]) -> None:
        self._documents = workload.documents()
        self._episodes = _SkyRLEpisodes(workload, url=_URL, top_k=len(self._documents))
        self.episode_steps = len(queries) + 1
        self._actions = [tag_search(query) for query in queries] + [answer_turn()]

    def play(self, episodes: int) -> float:
        """Plays with a constructor and `init` per episode, and `step` (see the base class)."""
        actions, total, turns = self._actions, 0.0, self.episode_steps
        with _stubbed_requests(lambda query: self._documents):
            start = time.perf_counter()
            for _ in range(episodes):
                env = self._episodes.start(turns)
                for action in actions:
                    outcome = env.step(action)
                total += outcome["reward"]
            seconds = time.perf_counter() - start
        expect_reward(self.name, total, episodes)
        return seconds


class SkyRLPool(System):
    """Many environments of SkyRL-Gym in a thread pool, as SkyRL's generator runs them (`max_env_workers`).

    Each step is one job; the steps of one environment follow each other, the environments do not wait for each other.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        batches: Sequence[Sequence[str]],
        workers: int,
        top_k: int,
        url: str = _URL,
        search: Callable[[str], Any] | None = None,
    ) -> None:
        self.name = f"{SKYRL} (pool of {workers})"
        self.episode_steps = len(batches[0]) * (len(batches) + 1)
        self._episodes = _SkyRLEpisodes(workload, url=url, top_k=top_k)
        self._search = search
        self._pool = ThreadPoolExecutor(workers)
        columns = zip(*batches, strict=True)
        self._actions = [[tag_search(query) for query in queries] + [answer_turn()] for queries in columns]

    def play(self, episodes: int) -> float:
        """Plays a whole episode as one job: one hand-over fewer than SkyRL's own job per step."""
        with _stubbed_requests(self._search):
            start = time.perf_counter()
            total = sum(self._pool.map(self._episode, self._actions * episodes))
            seconds = time.perf_counter() - start
        expect_reward(self.name, total, episodes * len(self._actions))
        return seconds

    def _episode(self, actions: Sequence[str]) -> float:
        env = self._episodes.start(len(actions))
        for action in actions:
            outcome = env.step(action)
        return float(outcome["reward"])

    def close(self) -> None:
        """Ends the threads."""
        self._pool.shutdown()


def _stubbed_requests(search: Callable[[str], Any] | None) -> contextlib.AbstractContextManager[Any]:
    """Puts `search` in the place of SkyRL-Gym's HTTP request; None leaves the request."""
    if search is None:
        return contextlib.nullcontext()
    from skyrl_gym.tools import search as module

    def answer(*, query: str, **_request: Any) -> tuple[dict[str, Any], None]:
        return {"result": [search(query)]}, None

    return mock.patch.object(module, "call_search_api", answer)
