"""Episodes for the engine: environments become sessions, sessions become token trajectories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.play.record import TokenTrajectory, TokenTurn
from agent_r1_gym.tool import execute_calls
from agent_r1_gym.types import Message
from trainers.algorithms.batch import OUTCOME
from trainers.engines.sampling import Answer, Engine, NewContext, Reply
from trainers.engines.templates import ChatTokens

TextEnv = gymnasium.Env[str, str]
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Token budgets of an episode.

    Attributes:
        max_prompt_tokens: longest prompt; a longer one is refused.
        max_completion_tokens: all tokens after the prompt, the environment's included; the episode is truncated there.
            Where the context is rewritten, by how much it may be longer than the first prompt at any time.
        max_rows: contexts of an episode, the first included; the episode is truncated where one more is needed.
    """

    max_prompt_tokens: int
    max_completion_tokens: int
    max_rows: int = 64


class EpisodeSession:
    """One episode, as the engine sees it (`engines.Session`).

    A step whose `info["context_rewritten"]` is True begins a new row of the trajectory: the context of the next turn is
    not what it was plus something, but rendered anew, from `info["messages"]` of a `ToolEnv` (below a `ContextWindow`,
    say), or from the observation of another environment as the only user turn.

    Args:
        env: any text environment, bare or wrapped; a `ToolEnv` brings messages, another's observation is taken as a
            user turn.
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
        self._tool_env = env.unwrapped if isinstance(env.unwrapped, ToolEnv) else None
        self.row = row
        self._chat = chat
        self._limits = limits
        self._executor = executor
        self._release = release
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._turns: list[TokenTurn] = []
        self._row_starts: list[int] = []
        self._terminated = False
        self._truncated = False
        self._infrastructure_error: str | None = None
        self._metrics: dict[str, float] = {"turns": 0.0, "calls": 0.0, "failed_calls": 0.0, "malformed_turns": 0.0}
        with self._named():
            messages = self._opening()
        self.prompt_ids = chat.prompt_ids(messages)
        if len(self.prompt_ids) > limits.max_prompt_tokens:
            raise ConfigurationError(
                f"The prompt of {dict(row)} has {len(self.prompt_ids)} tokens, more than max_prompt_length="
                f"{limits.max_prompt_tokens}; raise it or shorten the environment's system_prompt."
            )

    @property
    def max_length(self) -> int:
        """Most tokens of a context: the budget of a trajectory, or of each of its rows."""
        return len(self.prompt_ids) + self._limits.max_completion_tokens

    def finish_turn(self, ids: list[int], logprobs: list[float], stopped: bool) -> Reply:
        """Takes the sampled tokens of a turn and returns what comes before the next (see `engines.Session`)."""
        with self._named():
            return self._finish_turn(ids, logprobs, stopped)

    def _finish_turn(self, ids: list[int], logprobs: list[float], stopped: bool) -> Reply:
        if not ids:
            self._cut_before_turn()
            return None
        start = len(self._ids)
        self._ids += ids
        self._logprobs += logprobs
        action = self._act(ids)
        if self._tool_env is None:
            return self._after_step(start, stopped, *self.env.step(action))
        pending = self._tool_env.begin_step(action)
        if all(call.tool.is_instant for call in pending):
            return self._step(start, stopped, action, pending)
        return self._executor.submit(self._named()(self._step), start, stopped, action, pending)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Says in whose episode an exception was raised."""
        try:
            yield
        except Exception as error:
            row = {name: self.row[name] for name in ("task_index", "seed") if name in self.row}
            error.add_note(f"Raised by {_name(self.env)} in turn {len(self._turns)} of the episode of row {row}.")
            raise

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
            row_starts=tuple(self._row_starts),
        )

    def _opening(self) -> Sequence[Message]:
        """Starts the episode and returns what the model is shown first."""
        return first_messages(self.env, self.row)

    def _act(self, ids: Sequence[int]) -> str:
        """Returns the action that sampled tokens stand for."""
        return self._chat.action(ids)

    def _step(self, start: int, stopped: bool, action: str, pending: Any) -> Answer:
        """Takes the step that was begun; wrappers know whole steps only, and a begun one may be begun again."""
        if isinstance(self.env, ToolEnv):
            return self._after_step(start, stopped, *self.env.finish_step(execute_calls(pending)))
        return self._after_step(start, stopped, *self.env.step(action))

    def _after_step(
        self, start: int, stopped: bool, observation: str, reward: Any, terminated: bool, truncated: bool, info: Any
    ) -> Answer:
        """Books the step and returns the tokens before the next turn, None if the episode is over."""
        end = len(self._ids)
        self._terminated, self._truncated = bool(terminated), bool(truncated)
        reward = _checked_reward(reward, self.env)
        self._count(info)
        answer: list[int] | NewContext | None = None
        if not (terminated or truncated):
            answer = self._next_context(observation, info, stopped=stopped)
            if not self._has_room(answer):
                answer, self._truncated = None, True
                reward += self._truncate()
        self._turns.append(TokenTurn(start, end, reward))
        if answer is None:
            self._release(self.env)
            return None
        if isinstance(answer, NewContext):
            self._row_starts.append(end)
        said = answer.ids if isinstance(answer, NewContext) else answer
        self._ids += said
        self._logprobs += [None] * len(said)
        return answer

    def _next_context(self, observation: str, info: Any, *, stopped: bool) -> list[int] | NewContext:
        """Returns what stands before the next turn."""
        if info.get("context_rewritten"):
            return NewContext(self._chat.prompt_ids(self._messages(observation, info)))
        return self._chat.gap_ids(self._new_messages(observation, info), stopped=stopped)

    def _has_room(self, answer: list[int] | NewContext) -> bool:
        """Returns whether the budgets allow another turn after this."""
        if isinstance(answer, NewContext):
            return len(self._row_starts) + 1 < self._limits.max_rows and len(answer.ids) < self.max_length
        context = len(self._ids) - self._row_starts[-1] if self._row_starts else len(self.prompt_ids) + len(self._ids)
        return context + len(answer) < self.max_length

    def _cut_before_turn(self) -> None:
        """Ends an episode whose context left no room for another turn; the end counts for the last turn."""
        self._truncated = True
        reward = self._truncate()
        if self._turns:
            last = self._turns[-1]
            self._turns[-1] = TokenTurn(last.start, last.end, last.reward + reward)
            if self._row_starts and self._row_starts[-1] == last.end:  # a row without a turn teaches nothing
                self._row_starts.pop()
                del self._ids[last.end :], self._logprobs[last.end :]
        self._release(self.env)

    def _truncate(self) -> float:
        """Tells a `ToolEnv` that a budget ran out; books and returns what that end earns."""
        if self._tool_env is None:
            return 0.0
        earned = self._tool_env.truncate_with_terms()
        self._count_terms(earned.terms, earned.outcome)
        return earned.reward

    def _messages(self, observation: str, info: Any) -> Sequence[Message]:
        return (Message("user", observation),) if self._tool_env is None else tuple(info["messages"])

    def _new_messages(self, observation: str, info: Any) -> Sequence[Message]:
        return (Message("user", observation),) if self._tool_env is None else tuple(info["new_messages"][1:])

    def _count(self, info: Mapping[str, Any]) -> None:
        self._metrics["turns"] += 1
        outcomes = info.get("tool_outcomes", ())
        self._metrics["calls"] += len(outcomes)
        self._metrics["failed_calls"] += sum(not outcome.ok for outcome in outcomes)
        self._metrics["malformed_turns"] += bool(info.get("parse_errors"))
        self._count_terms(info.get("reward_terms", {}), info.get("outcome_reward"))
        self._infrastructure_error = info.get("infrastructure_error") or self._infrastructure_error

    def _count_terms(self, terms: Mapping[str, float], outcome: float | None) -> None:
        for name, value in terms.items():
            self._metrics[f"reward/{name}"] = self._metrics.get(f"reward/{name}", 0.0) + value
        if outcome is not None:
            self._metrics[OUTCOME] = self._metrics.get(OUTCOME, 0.0) + outcome


def first_messages(env: TextEnv, row: Row) -> Sequence[Message]:
    """Resets an environment for a row and returns the messages before the first model turn."""
    if isinstance(env.unwrapped, ToolEnv):
        _, info = env.reset(seed=row.get("seed"), options={"task_index": row["task_index"]})
        return tuple(info["messages"])
    observation, _ = env.reset(seed=row.get("seed"))
    return (Message("user", observation),)


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
            for _ in range(
                self.retries + 1
            ):  # also with nothing to play: other processes may retry, by collective calls
                finished.update(self._play(rows, waiting, engine, executor))
                waiting = [index for index in waiting if finished[index].infrastructure_error is not None]
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
        raise ConfigurationError(f"{_name(env)} returned the reward {reward!r}; expected a finite number.")
    return value


def _name(env: TextEnv) -> str:
    return env.spec.id if env.spec else type(env).__name__
