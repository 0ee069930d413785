"""Episodes for the engine: environments become sessions, sessions become token trajectories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.tool import execute_calls
from agent_r1_gym.trajectory import TokenTrajectory, TokenTurn
from agent_r1_gym.types import Message
from trainers.batch import OUTCOME
from trainers.sampling import Engine
from trainers.templates import ChatTokens

TextEnv = gymnasium.Env[str, str]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Token budgets of an episode.

    Attributes:
        max_prompt_tokens: longest prompt; a longer one is refused.
        max_completion_tokens: all tokens after the prompt, the environment's included; the episode is truncated there.
    """

    max_prompt_tokens: int
    max_completion_tokens: int


class EpisodeSession:
    """One episode, as the engine sees it (`engines.Session`).

    Args:
        env: any text environment; a `ToolEnv` brings messages, another's observation is taken as a user turn.
        row: what to reset it with: `seed` and, for a `ToolEnv`, `task_index`.
        chat: renders messages.
        limits: token budgets.
        executor: runs slow tools, so that other episodes go on decoding meanwhile.
        release: takes the environment back when the episode is over.

    Raises:
        ConfigurationError: the prompt is longer than its budget.
    """

    def __init__(
        self,
        env: TextEnv,
        row: Row,
        chat: ChatTokens,
        *,
        limits: EpisodeLimits,
        executor: ThreadPoolExecutor,
        release: Callable[[TextEnv], None],
    ) -> None:
        self.env = env
        self.row = row
        self._chat = chat
        self._limits = limits
        self._executor = executor
        self._release = release
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._turns: list[TokenTurn] = []
        self._terminated = False
        self._truncated = False
        self._infrastructure_error: str | None = None
        self._metrics: dict[str, float] = {"turns": 0.0, "calls": 0.0, "failed_calls": 0.0, "malformed_turns": 0.0}
        self.prompt_ids = chat.prompt_ids(self._reset())
        if len(self.prompt_ids) > limits.max_prompt_tokens:
            raise ConfigurationError(
                f"The prompt of {dict(row)} has {len(self.prompt_ids)} tokens, more than max_prompt_length="
                f"{limits.max_prompt_tokens}; raise it or shorten the environment's system_prompt."
            )

    def finish_turn(
        self, ids: list[int], logprobs: list[float], stopped: bool
    ) -> list[int] | Future[list[int] | None] | None:
        """Takes the sampled tokens of a turn and returns what comes before the next (see `engines.Session`)."""
        if not ids:
            self._cut_before_turn()
            return None
        start = len(self._ids)
        self._ids += ids
        self._logprobs += logprobs
        action = self._chat.action(ids)
        if not isinstance(self.env, ToolEnv):
            return self._after_step(start, stopped, *self.env.step(action))
        pending = self.env.begin_step(action)
        if all(call.tool.is_instant for call in pending):
            return self._after_step(start, stopped, *self.env.finish_step(execute_calls(pending)))
        return self._executor.submit(self._execute, start, stopped, pending)

    def trajectory(self) -> TokenTrajectory:
        """Returns the finished episode as tokens."""
        return TokenTrajectory(
            prompt_ids=tuple(self.prompt_ids),
            completion_ids=tuple(self._ids),
            loss_mask=tuple(int(logprob is not None) for logprob in self._logprobs),
            logprobs=tuple(self._logprobs),
            turns=tuple(self._turns),
            terminated=self._terminated,
            truncated=self._truncated,
            infrastructure_error=self._infrastructure_error,
            metrics=self._metrics,
        )

    def _reset(self) -> Sequence[Message]:
        options = {"task_index": self.row["task_index"]} if isinstance(self.env, ToolEnv) else None
        observation, info = self.env.reset(seed=self.row.get("seed"), options=options)
        if isinstance(self.env, ToolEnv):
            return tuple(info["messages"])
        return (Message("user", observation),)

    def _execute(self, start: int, stopped: bool, pending: Any) -> list[int] | None:
        assert isinstance(self.env, ToolEnv)
        return self._after_step(start, stopped, *self.env.finish_step(execute_calls(pending)))

    def _after_step(
        self, start: int, stopped: bool, observation: str, reward: Any, terminated: bool, truncated: bool, info: Any
    ) -> list[int] | None:
        """Books the step and returns the tokens before the next turn, None if the episode is over."""
        end = len(self._ids)
        self._terminated, self._truncated = bool(terminated), bool(truncated)
        reward = _checked_reward(reward, self.env)
        self._count(info)
        gap: list[int] = []
        if not (terminated or truncated):
            gap = self._chat.gap_ids(self._new_messages(observation, info), stopped=stopped)
            if end + len(gap) >= self._limits.max_completion_tokens:
                self._truncated = True
                reward += self.env.truncate() if isinstance(self.env, ToolEnv) else 0.0
        self._turns.append(TokenTurn(start, end, reward))
        if self._terminated or self._truncated:
            self._release(self.env)
            return None
        self._ids += gap
        self._logprobs += [None] * len(gap)
        return gap

    def _cut_before_turn(self) -> None:
        """Ends an episode whose context left no room for another turn; the end counts for the last turn."""
        self._truncated = True
        reward = self.env.truncate() if isinstance(self.env, ToolEnv) else 0.0
        if self._turns:
            last = self._turns[-1]
            self._turns[-1] = TokenTurn(last.start, last.end, last.reward + reward)
        self._release(self.env)

    def _new_messages(self, observation: str, info: Any) -> Sequence[Message]:
        if isinstance(self.env, ToolEnv):
            return tuple(info["new_messages"][1:])
        return (Message("user", observation),)

    def _count(self, info: Mapping[str, Any]) -> None:
        self._metrics["turns"] += 1
        outcomes = info.get("tool_outcomes", ())
        self._metrics["calls"] += len(outcomes)
        self._metrics["failed_calls"] += sum(not outcome.ok for outcome in outcomes)
        self._metrics["malformed_turns"] += bool(info.get("parse_errors"))
        for name, value in info.get("reward_terms", {}).items():
            self._metrics[f"reward/{name}"] = self._metrics.get(f"reward/{name}", 0.0) + value
        if isinstance(self.env, ToolEnv):
            terms = info["reward_terms"]
            outcome = sum(term.weight * terms[term.name] for term in self.env.rewards if term.needs_answers)
            self._metrics[OUTCOME] = self._metrics.get(OUTCOME, 0.0) + outcome
        self._infrastructure_error = info.get("infrastructure_error") or self._infrastructure_error


@dataclass
class Collector:
    """Plays one episode per row and returns their trajectories, in the order of the rows.

    Attributes:
        make_env: returns a new environment.
        chat: renders messages.
        limits: token budgets.
        retries: how often an episode that lost its backend is played again.
        threads: slow tools that may run at once.
    """

    make_env: Callable[[], TextEnv]
    chat: ChatTokens
    limits: EpisodeLimits
    retries: int = 2
    threads: int = 64
    _free: list[TextEnv] = field(default_factory=list)

    def collect(self, rows: Sequence[Row], engine: Engine) -> list[TokenTrajectory]:
        """Plays the rows' episodes; those that stay without a backend come back marked (`infrastructure_error`)."""
        finished: dict[int, TokenTrajectory] = {}
        waiting = list(range(len(rows)))
        with ThreadPoolExecutor(self.threads, thread_name_prefix="tools") as executor:
            for _ in range(self.retries + 1):
                finished.update(self._play(rows, waiting, engine, executor))
                waiting = [index for index in waiting if finished[index].infrastructure_error is not None]
                if not waiting:
                    break
        return [finished[index] for index in range(len(rows))]

    def close(self) -> None:
        """Closes the environments."""
        while self._free:
            self._free.pop().close()

    def _play(
        self, rows: Sequence[Row], indices: Sequence[int], engine: Engine, executor: ThreadPoolExecutor
    ) -> dict[int, TokenTrajectory]:
        started: dict[int, EpisodeSession] = {}

        def sessions() -> Iterator[EpisodeSession]:
            for index in indices:
                env = self._free.pop() if self._free else self.make_env()
                started[index] = EpisodeSession(
                    env, rows[index], self.chat, limits=self.limits, executor=executor, release=self._free.append
                )
                yield started[index]

        engine.run(sessions())
        return {index: session.trajectory() for index, session in started.items()}


def _checked_reward(reward: Any, env: TextEnv) -> float:
    try:
        value = float(reward)
    except (TypeError, ValueError):
        value = float("nan")
    if value != value or abs(value) == float("inf"):
        name = env.spec.id if env.spec else type(env).__name__
        raise ConfigurationError(f"{name} returned the reward {reward!r}; expected a finite number.")
    return value
