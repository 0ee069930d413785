"""The systems under test behind one small interface, and this suite's own: adapters only, every loop is native.

Each system plays whole episodes (start, searches, answer) in its own interface, so that no shared layer costs anybody
anything; afterwards it is checked that the right answer was paid. One loop serves two systems where both speak
Gymnasium's interface.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.retrieval.base import Hit, Retriever
from agent_r1_gym.tool import Arguments, Tool
from agent_r1_gym.types import Passage, Task
from agent_r1_gym.vector import ToolVectorEnv
from benchmarks.env_speed.workload import GOLD, Workload, episode, episodes_by_turn, hermes_search, tag_search

OURS = "agent-r1-gym"


class WrongEpisodeError(Exception):
    """An episode of a benchmark did not end with the right answer paid: its speed means nothing."""


@dataclass(frozen=True)
class System:
    """Something that plays episodes.

    Attributes:
        name: as shown in tables; says the configuration.
        envs: environments that play side by side.
        turns: model turns per episode.
        rewards: plays so many episodes in each environment, one after the other, and returns the sum of what their
            last turns were paid.
        close: frees what the system owns.
    """

    name: str
    envs: int
    turns: int
    rewards: Callable[[int], float]
    close: Callable[[], None] = lambda: None

    @property
    def episode_steps(self) -> int:
        """Model turns per episode, all environments together."""
        return self.envs * self.turns

    def play(self, episodes: int) -> float:
        """Plays `episodes` episodes one after the other and returns the seconds that took.

        Raises:
            WrongEpisodeError: the episode did not end as it must.
        """
        start = time.perf_counter()
        total = self.rewards(episodes)
        seconds = time.perf_counter() - start
        if total != episodes * self.envs:
            raise WrongEpisodeError(f"{self.name}: the last step paid {total}, expected {episodes * self.envs}.")
        return seconds

    def steps_per_second(self, episodes: int) -> float:
        """Returns environment steps per second over whole episodes, their starts included."""
        return episodes * self.episode_steps / self.play(episodes)


def one_env(name: str, env: Any, actions: Sequence[str], *, close: Callable[[], None] = lambda: None) -> System:
    """Returns a system of one environment with Gymnasium's `reset` and `step`."""

    def rewards(episodes: int) -> float:
        total = 0.0
        for _ in range(episodes):
            env.reset()
            for action in actions:
                _, reward, _, _, _ = env.step(action)
            total += float(reward)
        return total

    return System(name, 1, len(actions), rewards, close)


def vector(name: str, envs: Any, actions: Sequence[Sequence[str]], *, close: Callable[[], None]) -> System:
    """Returns a system of a started vector that resets ended environments at once.

    So an episode is as many vector steps as it has turns: in GEM, and in this suite with autoreset "SameStep".
    """

    def rewards(episodes: int) -> float:
        total = 0.0
        for _ in range(episodes):
            for batch in actions:
                _, paid, _, _, _ = envs.step(batch)
            total += float(paid.sum())
        return total

    return System(name, envs.num_envs, len(actions), rewards, close)


class StubRetriever(Retriever):
    """Returns the same hits at once: what is left is the environment's own cost."""

    call_timeout = None
    in_process = True

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._hits = [Hit(passage, 1.0) for passage in passages]

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns the stubbed hits for every query."""
        return [self._hits[:k] for _ in queries]


class SleepTool(Tool):
    """A search whose backend takes `latency` seconds per call, one call at a time."""

    def __init__(self, latency: float, passages: Sequence[Passage]) -> None:
        schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
        super().__init__("search", "Searches slowly.", schema)
        self._latency = latency
        self._text = "\n".join(f"{passage.title}: {passage.text}" for passage in passages)

    def execute(self, arguments: Arguments) -> str:
        """Returns the stubbed passages after the latency."""
        time.sleep(self._latency)
        return self._text


_SEARCHES: Mapping[str, Callable[[str], str]] = {"hermes": hermes_search, "search-r1": tag_search}


def our_env(workload: Workload, *, queries: Sequence[str], parser: str = "hermes") -> System:
    """Returns one environment of this suite, made by `gymnasium.make`, with the stubbed retriever."""
    env = gymnasium.make(
        "AgentR1/HotpotQA-v0",
        dataset=workload.dataset(),
        retriever=StubRetriever(workload.passages),
        top_k=len(workload.passages),
        parser=parser,
    )
    return one_env(f"{OURS} ({parser} format)", env, episode(_SEARCHES[parser], queries), close=env.close)


def search_vector(workload: Workload, url: str, *, batches: Sequence[Sequence[str]], top_k: int) -> System:
    """Returns a vector of this suite, made by `gymnasium.make_vec`, that searches over HTTP."""
    envs = gymnasium.make_vec(
        "AgentR1/HotpotQA-v0",
        num_envs=len(batches[0]),
        dataset=workload.dataset(),
        retriever=url,
        top_k=top_k,
        autoreset_mode="SameStep",
    )
    return _started(envs, batches)


def slow_vector(workload: Workload, *, batches: Sequence[Sequence[str]], latency: float) -> System:
    """Returns a vector of this suite whose tool takes `latency` seconds per call and has no batch form."""
    tool = SleepTool(latency, workload.passages)
    tasks = [Task(str(number), text, (GOLD,)) for number, text in enumerate(workload.questions)]
    envs = [ToolEnv(tasks=tasks, tools=[tool]) for _ in batches[0]]
    return _started(ToolVectorEnv(envs, autoreset_mode="SameStep"), batches)


def _started(envs: Any, batches: Sequence[Sequence[str]]) -> System:
    envs.reset(seed=0)
    return vector(OURS, envs, episodes_by_turn(hermes_search, batches), close=envs.close)
