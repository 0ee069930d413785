"""The systems under test behind one small interface, and this suite's own: adapters only, every loop is native.

Each `play` runs whole episodes (start, searches, answer) in the system's own interface, so that no shared layer
costs anybody anything, and checks afterwards that the right answer was paid.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Mapping, Sequence

import gymnasium

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.retrieval.base import Hit, Retriever
from agent_r1_gym.tool import Arguments, Tool
from agent_r1_gym.types import Passage, Task
from agent_r1_gym.vector import ToolVectorEnv
from benchmarks.env_speed.workload import GOLD, Workload, answer_turn, hermes_search, tag_search

OURS = "agent-r1-gym"


class System(abc.ABC):
    """Something that plays episodes.

    Attributes:
        name: as shown in tables; says the configuration.
        episode_steps: model turns per episode, all environments together.
    """

    name: str
    episode_steps: int

    @abc.abstractmethod
    def play(self, episodes: int) -> float:
        """Plays `episodes` episodes one after the other and returns the seconds that took.

        Raises:
            WrongEpisodeError: the episode did not end as it must.
        """

    def steps_per_second(self, episodes: int) -> float:
        """Returns environment steps per second over whole episodes, their starts included."""
        return episodes * self.episode_steps / self.play(episodes)

    def close(self) -> None:  # noqa: B027 - most own nothing
        """Frees what the system owns."""


class WrongEpisodeError(Exception):
    """An episode of a benchmark did not end with the right answer paid: its speed means nothing."""


def expect_reward(name: str, reward: float, wanted: float) -> None:
    """Raises `WrongEpisodeError` unless the last rewards are what right answers earn."""
    if reward != wanted:
        raise WrongEpisodeError(f"{name}: the last step paid {reward}, expected {wanted}.")


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


class OneEnv(System):
    """One environment of this suite, made by `gymnasium.make`, with the stubbed retriever."""

    _turns: Mapping[str, Callable[[str], str]] = {"hermes": hermes_search, "search-r1": tag_search}

    def __init__(self, workload: Workload, *, queries: Sequence[str], parser: str = "hermes") -> None:
        self.name = f"{OURS} ({parser} format)"
        self.episode_steps = len(queries) + 1
        self._actions = [self._turns[parser](query) for query in queries] + [answer_turn()]
        self._env = gymnasium.make(
            "AgentR1/HotpotQA-v0",
            dataset=workload.dataset(),
            retriever=StubRetriever(workload.passages),
            top_k=len(workload.passages),
            parser=parser,
        )

    def play(self, episodes: int) -> float:
        """Plays with `reset` and `step` (see the base class)."""
        env, actions, total = self._env, self._actions, 0.0
        start = time.perf_counter()
        for _ in range(episodes):
            env.reset()
            for action in actions:
                _, reward, _, _, _ = env.step(action)
            total += float(reward)
        seconds = time.perf_counter() - start
        expect_reward(self.name, total, episodes)
        return seconds

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


class Vector(System):
    """A `ToolVectorEnv`; with autoreset "SameStep", as GEM has it, an episode is as many vector steps as it has turns.

    Args:
        envs: the vector.
        batches: queries of each search step, one per environment.
    """

    def __init__(self, envs: ToolVectorEnv, *, batches: Sequence[Sequence[str]]) -> None:
        self.name = OURS
        self.episode_steps = envs.num_envs * (len(batches) + 1)
        self._envs = envs
        self._actions = [[hermes_search(query) for query in batch] for batch in batches]
        self._actions.append([answer_turn()] * envs.num_envs)
        envs.reset(seed=0)

    def play(self, episodes: int) -> float:
        """Plays with the vector's `step` (see the base class)."""
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
        """Closes the environments."""
        self._envs.close()


def search_vector(workload: Workload, url: str, *, batches: Sequence[Sequence[str]], top_k: int) -> Vector:
    """Returns a vector of this suite, made by `gymnasium.make_vec`, that searches over HTTP."""
    envs = gymnasium.make_vec(
        "AgentR1/HotpotQA-v0",
        num_envs=len(batches[0]),
        dataset=workload.dataset(),
        retriever=url,
        top_k=top_k,
        autoreset_mode="SameStep",
    )
    return Vector(envs, batches=batches)  # type: ignore[arg-type]


def slow_vector(workload: Workload, *, batches: Sequence[Sequence[str]], latency: float) -> Vector:
    """Returns a vector of this suite whose tool takes `latency` seconds per call and has no batch form."""
    tool = SleepTool(latency, workload.passages)
    tasks = [Task(str(number), text, (GOLD,)) for number, text in enumerate(workload.questions)]
    envs = [ToolEnv(tasks=tasks, tools=[tool]) for _ in batches[0]]
    return Vector(ToolVectorEnv(envs, autoreset_mode="SameStep"), batches=batches)
