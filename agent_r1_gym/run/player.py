"""Player: turns jobs into sessions on a pool of environments, has an engine play them, and hands out the records.

Also the jobs themselves: those of an evaluation, and the rows of a training set.
"""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.errors import ConfigurationError, DatasetError, InfrastructureError
from agent_r1_gym.registry import TextEnv, make_text_env
from agent_r1_gym.run.engines import NOT_YET, Engine
from agent_r1_gym.run.policies import PromptMethod
from agent_r1_gym.run.record import Tokens, Trajectory
from agent_r1_gym.run.session import Job, OnEnd, Session
from agent_r1_gym.run.telemetry import start_episode
from agent_r1_gym.run.token_session import ChatRenderer, TokenLimits, TokenSession
from agent_r1_gym.support.terminal import still_working

TRAIN_SEEDS = 1_000
"""Default number of training seeds of an environment without a list of tasks."""
HELD_OUT_SEED = 1_000_000
"""Seed of the first held-out question of an environment without a list of tasks; training seeds start at 0."""
MakeEnv = Callable[[], TextEnv]
"""Makes a new environment."""
_THREADS = 64
_PROGRAM_THREADS = 1_024
"""For episodes that wait for a program, which may take minutes: one waits for no other."""
_AHEAD = 16
"""Number of slow resets that run ahead of the engine."""


class PlayCounts(NamedTuple):
    """What a player has played since its last reset of the counts.

    Attributes:
        episodes: ended episodes.
        turns: turns of all episodes.
        tokens: tokens that the model has sampled.
        open_tokens: those of them in episodes that have not ended.
    """

    episodes: int = 0
    turns: int = 0
    tokens: int = 0
    open_tokens: int = 0

    def describe(self, *, episodes_left: int, max_tokens: int | None, seconds: float) -> str:
        """Describe the episodes under way, for a line of progress.

        Args:
            episodes_left: number of episodes that have not ended.
            max_tokens: maximum number of tokens that the model samples in an episode; None: no limit is known.
            seconds: time that all this took.
        """
        if not self.turns and not self.tokens:
            return ""
        if not self.tokens:
            return f"{self.turns:,} turns"
        rate = self.tokens / max(seconds, 1e-3)
        text = f"{self.turns:,} turns, {self.tokens:,} tokens at {rate:.0f}/s"
        if max_tokens is None or rate < 1:  # before the first tokens, it would estimate weeks
            return text
        left = max(0, episodes_left * max_tokens - self.open_tokens) / rate
        return f"{text}, at most {left / 60:.0f} min left" if left >= 90 else f"{text}, at most {left:.0f} s left"


@dataclass
class Player:
    """Plays jobs on a pool of environments.

    Attributes:
        make_env: makes a new environment.
        method: how a model is prompted; None: with tools.
        chat: renders messages, for engines that sample tokens; None: the engine reads text.
        limits: token budgets; required with `chat`.
        policy: name of the policy, for the records.
        threads: environments that may step at once while a model decodes.
        named_envs: makes further environments, by name, for the jobs that name one.
        deadline: `time.monotonic()` after which token episodes are truncated, and fail if they have not started; None:
            never.
    """

    make_env: MakeEnv
    method: PromptMethod | None = None
    chat: ChatRenderer | None = None
    limits: TokenLimits | None = None
    policy: str = ""
    threads: int = _THREADS
    named_envs: Mapping[str, MakeEnv] = field(default_factory=dict)
    deadline: float | None = None
    _episodes: int = 0
    _turns: int = 0
    _turn_tokens: int = 0
    _ended_tokens: int = 0
    _idle: defaultdict[str, list[TextEnv]] = field(default_factory=lambda: defaultdict(list))
    _in_use: dict[int, TextEnv] = field(default_factory=dict)
    _running: WeakSet[Session] = field(default_factory=WeakSet)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def play(self, jobs: Iterable[Job], engine: Engine, on_end: OnEnd) -> None:
        """Play each job once.

        Args:
            jobs: pulled when there is room for another episode.
            engine: plays the sessions.
            on_end: receives each record when its episode ends, in any order, one at a time; an exception in it ends
                `play`.
        """
        with (
            ThreadPoolExecutor(self.threads, thread_name_prefix="tools") as executor,
            ThreadPoolExecutor(_PROGRAM_THREADS, thread_name_prefix="programs") as programs,
        ):
            try:
                engine.run(self._sessions(iter(jobs), on_end, executor, programs))
            except BaseException:
                for each in (executor, programs):
                    each.shutdown(wait=False, cancel_futures=True)
                self.interrupt()  # else the executors would wait for them
                raise

    def interrupt(self) -> None:
        """End what environments wait for that wait for a backend at reset; safe to call from any thread."""
        with self._lock:
            envs = list(self._in_use.values())
        for env in envs:
            _end_waiting(env)

    def close(self) -> None:
        """Close the environments."""
        for envs in self._idle.values():
            while envs:
                envs.pop().close()

    def counts(self, engine: Engine) -> PlayCounts:
        """Count what has been played with an engine; safe to call from any thread.

        Args:
            engine: one that counts tokens as `sampled_tokens` also brings those of turns under way.
        """
        tokens = max(getattr(engine, "sampled_tokens", 0), self._turn_tokens)
        return PlayCounts(self._episodes, self._turns, tokens, max(0, tokens - self._ended_tokens))

    def reset_counts(self) -> None:
        """Count from here on, as for another engine."""
        self._episodes = self._turns = self._turn_tokens = self._ended_tokens = 0

    def _count_turn(self, session: Session) -> None:
        with self._lock:
            self._turns += 1
            self._turn_tokens += session.turns[-1].completion_tokens or 0

    def _sessions(
        self, jobs: Iterator[Job], on_end: OnEnd, tools: ThreadPoolExecutor, programs: ThreadPoolExecutor
    ) -> Iterator[Session]:
        started: deque[Future[Session]] = deque()
        playing: list[Session] = []
        for job in jobs:
            env = self.acquire(job.env)
            executor = programs if _waits_at_reset(env) else tools
            start = partial(self._session, env, job, on_end, executor)
            if not _waits_at_reset(env) and (isinstance(env.unwrapped, ToolEnv) or self.chat is None):
                yield from _unless_over(start())
                continue
            # The reset of a foreign environment may be slow: it runs while the model decodes.
            started.append(executor.submit(start))
            if len(started) > _AHEAD:
                yield from _when_reset(started, playing, env)
        while started:
            yield from _when_reset(started, playing, env)

    def _session(self, env: TextEnv, job: Job, on_end: OnEnd, executor: ThreadPoolExecutor) -> Session:
        spans = start_episode(env, job, self.policy)

        def count_turn(session: Session) -> None:
            self._count_turn(session)
            if spans is not None:
                spans.add_turn(session)

        def end(record: Trajectory) -> None:
            if spans is not None:
                spans.end(record)
            with self._lock:
                self._episodes += 1
                self._ended_tokens += sum(turn.completion_tokens or 0 for turn in record.turns)
                # The backend of one that waits at reset does not know that its episode was ended from outside.
                _end_waiting(env)
                self.release(env, job.env)
                on_end(record)

        try:
            session = self.open(env, job, executor, on_end=end, on_turn=count_turn)
        except InfrastructureError as error:
            if isinstance(env.unwrapped, ToolEnv) and not _waits_at_reset(env):
                raise
            return self._infra_failed_session(env, job, str(error), end)
        with self._lock:
            self._running.add(session)
        return session

    def running_sessions(self) -> list[Session]:
        """Return the episodes that are being played; safe to call from any thread."""
        with self._lock:
            return [session for session in self._running if not session.ended]

    def _infra_failed_session(self, env: TextEnv, job: Job, error: str, on_end: OnEnd) -> Session:
        """Return an ended session without tokens, for an environment whose backend failed at reset."""
        tokens = None if self.chat is None else Tokens((), (), (), (), ())

        def end(record: Trajectory) -> None:
            on_end(replace(record, tokens=tokens))

        session = Session(env, job, policy=self.policy, on_end=end, start=lambda: ("", {"messages": ()}))
        session.fail_infra(error)
        return session

    def open(
        self,
        env: TextEnv,
        job: Job,
        executor: ThreadPoolExecutor,
        *,
        max_tokens: int | None = None,
        sampling: Mapping[str, float] | None = None,
        **hooks: Any,
    ) -> Session:
        """Open an episode for an engine.

        Args:
            env: environment of the episode.
            job: the episode.
            executor: see `TokenSession`.
            max_tokens: limit on the tokens after the prompt, if below that of `limits`; None: that of `limits`.
            sampling: see `TokenSession`; None: the engine's options.
            **hooks: `on_end`, `on_turn` and `start` of a `Session`.

        Raises:
            ConfigurationError: the model runs elsewhere, so that `max_tokens` and `sampling` would have no effect.
        """
        if self.chat is None:
            for name in (*(["max_tokens"] if max_tokens is not None else []), *(sampling or {})):
                raise ConfigurationError(f"{name} has no effect on this model, whose tokens are not sampled here.")
            return Session(env, job, method=self.method, policy=self.policy, **hooks)
        assert self.limits is not None
        limits = self.limits
        if max_tokens is not None:
            limits = replace(limits, max_completion_tokens=min(max_tokens, limits.max_completion_tokens))
        hooks |= {"method": self.method, "policy": self.policy}
        session = TokenSession(env, job, chat=self.chat, limits=limits, executor=executor, **hooks)
        session.sampling, session.deadline = {**session.sampling, **(sampling or {})}, self.deadline
        if session.past_deadline:
            session.fail_infra("The time for rollouts was over before this episode began.")
        return session

    def acquire(self, name: str = "") -> TextEnv:
        """Take an idle environment from the pool, or make one; `name` selects among `named_envs`."""
        with self._lock:
            env = self._idle[name].pop() if self._idle[name] else (self.named_envs[name] if name else self.make_env)()
            if _waits_at_reset(env):
                self._in_use[id(env)] = env
            return env

    def release(self, env: TextEnv, name: str = "") -> None:
        """Return an environment to the pool, under the name it was acquired with."""
        with self._lock:
            self._in_use.pop(id(env), None)
            self._idle[name].append(env)


def _end_waiting(env: TextEnv) -> None:
    bare = env.unwrapped
    if isinstance(bare, ToolEnv) and bare.waits_at_reset:
        bare.release_resources()


def _waits_at_reset(env: TextEnv) -> bool:
    """Whether the reset of a `ToolEnv` waits for a backend."""
    return isinstance(env.unwrapped, ToolEnv) and env.unwrapped.waits_at_reset


def _when_reset(started: deque[Future[Session]], playing: list[Session], env: TextEnv) -> Iterator[Session]:
    """Yield the next session whose reset is over, unless it ended there.

    Args:
        started: the resets, oldest first; one is removed.
        playing: the sessions that were yielded; this one is added.
        env: an environment of these sessions. If its reset waits for a backend, the sessions that are being played go
            on meanwhile (`NOT_YET`).
    """
    in_order = not (isinstance(env.unwrapped, ToolEnv) and env.unwrapped.begins_in_any_order)
    candidates = [started[0]] if in_order else list(started)
    while not any(future.done() for future in candidates):
        if not (_waits_at_reset(env) and any(not session.ended for session in playing)):
            wait(candidates, return_when=FIRST_COMPLETED)
        else:
            yield NOT_YET
    future = next(future for future in candidates if future.done())
    started.remove(future)
    playing[:] = [session for session in playing if not session.ended]
    for session in _unless_over(future.result()):
        playing.append(session)
        yield session


def _unless_over(session: Session) -> Iterator[Session]:
    """Yield the session unless it ended at reset."""
    if not session.ended:
        yield session


def evaluation_jobs(indices: Sequence[int], *, samples: int = 1, seed: int = 0, has_tasks: bool = True) -> list[Job]:
    """List the episodes of an evaluation, each with a seed that depends on the job and the run only.

    Args:
        indices: positions of the tasks.
        samples: episodes per task.
        seed: seed of the run.
        has_tasks: False for an environment without a list of tasks, where the seed of the reset is the question: all
            samples of a question share it.
    """
    jobs = []
    for index in indices:
        for sample in range(samples):
            own = _seed(seed, index, sample)
            jobs.append(Job(index, sample, seed=own if has_tasks else HELD_OUT_SEED + index, sampling_seed=own))
    return jobs


def task_rows(env: TextEnv, seeds: int | None = None, *, first_seed: int = 0) -> list[dict[str, Any]]:
    """Build the rows of a training set, one per task: the arguments of the reset, and the prompt for display.

    Args:
        env: the environment.
        seeds: number of rows, if it has no list of tasks; None: `TRAIN_SEEDS`.
        first_seed: first seed, if it has no list of tasks.

    Returns:
        Rows with `prompt` (the question as text), `seed`, and `task_index` where there is a list of tasks.

    Raises:
        ConfigurationError: `seeds` has no effect on a list of tasks.
    """
    bare = env.unwrapped
    if not isinstance(bare, ToolEnv):
        numbers = range(first_seed, first_seed + (seeds or TRAIN_SEEDS))
        return [{"prompt": f"seed {seed}", "seed": seed} for seed in numbers]
    if seeds is not None:
        raise ConfigurationError(
            f"num_train_seeds={seeds} has no effect on an environment with a list of tasks (this one has "
            f"{len(bare.tasks)}); drop it."
        )
    return [{"prompt": task.prompt, "task_index": index, "seed": index} for index, task in enumerate(bare.tasks)]


class HeldOutEnv(NamedTuple):
    """An environment on its held-out split, if it has one.

    Attributes:
        env: the environment.
        options: options it was made with.
        fallback_reason: why it serves training questions: its held-out split cannot be served, or, as the environment
            says in `repeats_tasks`, its seeds repeat the same ones. "" if it serves the held-out split, or has none.
    """

    env: TextEnv
    options: dict[str, Any]
    fallback_reason: str = ""


def held_out_env(name: str, options: Mapping[str, Any]) -> HeldOutEnv:
    """Make an environment on its first held-out split, unless the options name a split or none is held out.

    Args:
        name: see `registry.full_id`.
        options: of the environment.

    Raises:
        ConfigurationError: see `registry.make_text_env`.
    """
    with still_working(f"making {name}"):
        env = make_text_env(name, options)
    bare = env.unwrapped
    own = getattr(bare, "held_out_splits", ())  # for a file, a split would only relabel it
    splits = () if own and _is_a_file(options) else own or getattr(getattr(bare, "tasks", ()), "held_out_splits", ())
    if "split" in options or not splits:
        return HeldOutEnv(env, dict(options), getattr(bare, "repeats_tasks", ""))
    held_out = {**options, "split": splits[0]}
    try:
        with still_working(f"making {name}, split {splits[0]}"):
            return HeldOutEnv(make_text_env(name, held_out), held_out)
    except (DatasetError, ConfigurationError) as error:
        return HeldOutEnv(env, dict(options), f"the held-out split {splits[0]!r} cannot be served ({error})")


def _is_a_file(options: Mapping[str, Any]) -> bool:
    dataset = options.get("dataset")
    return isinstance(dataset, str) and Path(dataset).is_file()


def _seed(run_seed: int, index: int, sample: int) -> int:
    """Derive a seed in 0..2^31-1."""
    digest = hashlib.sha256(f"{run_seed}/{index}/{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
