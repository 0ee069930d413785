"""RequestEngine: one request per episode and turn, answered by a backend that has the model; no barrier anywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.run.engines import NOT_YET, POLL_SECONDS
from agent_r1_gym.run.token_session import NewContext, NextTokensOrFuture, TokenSession, context_limit, end_context_full


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are sampled.

    Raises:
        ConfigurationError: a value is out of range.
    """

    max_new_tokens: int
    """Maximum number of tokens per turn."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Smallest set of tokens with at least this probability; 1 is off. Applied after top-k, as in transformers."""
    top_k: int = 0
    """The k likeliest tokens; 0 is off."""
    stop_token_ids: tuple[int, ...] = ()
    """Each ends a turn and belongs to it."""
    seed: int = 0
    """Seed of the engine's generator."""

    def __post_init__(self) -> None:
        for name, valid, expected in (
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature < math.inf, "a finite number, at least 0"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", self.top_k >= 0, "at least 0 (0 is off)"),
            ("stop_token_ids", all(token >= 0 for token in self.stop_token_ids), "token ids, at least 0"),
        ):
            if not valid:
                raise ConfigurationError(f"SamplingOptions.{name} must be {expected}, got {getattr(self, name)!r}.")


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A turn to be sampled.

    Attributes:
        context: token ids before it.
        max_tokens: maximum number of tokens to sample.
        options: how.
        seed: of its random numbers, in 0 .. 2**62 - 1: the same request gets the same tokens.
    """

    context: list[int]
    max_tokens: int
    options: SamplingOptions
    seed: int


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """A sampled turn.

    Attributes:
        ids: at least one token; a stop token is the last of them.
        logprobs: log softmax(logits / temperature) of each, at temperature 0 of the plain logits.
    """

    ids: list[int]
    logprobs: list[float]


class Backend(Protocol):
    """Has a model, and answers requests in any order."""

    def submit(self, request: TurnRequest) -> Future[SampledTurn]:
        """Take a request; the Future raises `InfrastructureError` where the backend has failed for good."""

    def step(self) -> bool:
        """Work on requests in the calling thread; False if there is nothing to do, or others do the work."""

    def abort_all(self) -> None:
        """Drop all requests that are not answered."""


class SyncedBackend(Backend, Protocol):
    """A backend next to a trainer, with its own copy of the weights."""

    def sync(self, model: Any) -> None:
        """Take over the weights of the trainer's unwrapped model, whole in this process; all processes call it."""

    def awake(self) -> AbstractContextManager[None]:
        """Context in which the backend serves requests; between two of them it may free memory."""

    def close(self) -> None:
        """Free what it holds; it is not used afterwards."""


@dataclass(slots=True, eq=False)
class _ActiveEpisode:
    session: TokenSession
    number: int
    context: list[int]
    options: SamplingOptions
    rng: random.Random


class RequestEngine:
    """Plays sessions on a backend; a slow tool, or a long turn, holds up its own episode only.

    A finished episode's slot is given to the next session at once. Each turn has its own seed, drawn from that of
    its session, so that its tokens depend on its context and that seed only.

    Args:
        backend: who samples.
        options: how to sample; a session's `sampling`, if it has one, overrides it.
        slots: maximum number of episodes at the same time, those whose tools run included.
        max_length: maximum number of tokens of a context.
        seed: of the sessions that have none.

    Raises:
        ConfigurationError: `slots` or `max_length` is below 1.
    """

    def __init__(
        self, backend: Backend, options: SamplingOptions, *, slots: int, max_length: int, seed: int = 0
    ) -> None:
        for name, number in (("slots", slots), ("max_length", max_length)):
            if number < 1:
                raise ConfigurationError(f"RequestEngine needs {name} of at least 1, got {number}.")
        self.backend, self.options, self.slots, self.max_length = backend, options, slots, max_length
        self._seeds = random.Random(seed)

    def run(self, sessions: Iterable[TokenSession]) -> None:
        """Play every session to its end; one whose backend has failed for good is lost (`Session.fail_infra`).

        Raises:
            ConfigurationError: a prompt is empty, or a session continues beyond its budget.
            Exception: whatever a session, its Future or the iterator raises, with a note that names the session.
        """
        try:
            _EngineRun(self, iter(sessions)).loop()
        finally:
            self.backend.abort_all()

    def draw_seed(self) -> int:
        """Draw the seed of a session."""
        return self._seeds.getrandbits(62)

    def close(self) -> None:
        """Free what the engine owns: nothing, the backend is its owner's."""


class _EngineRun:
    """One run of a `RequestEngine`."""

    def __init__(self, engine: RequestEngine, sessions: Iterator[TokenSession]) -> None:
        self.engine, self.sessions = engine, sessions
        self.live = self.count = 0
        self.exhausted = self.more_to_come = False
        self.turns: SimpleQueue[tuple[_ActiveEpisode, Future[SampledTurn] | None, NextTokensOrFuture]] = SimpleQueue()

    def loop(self) -> None:
        while True:
            self._admit()
            if self.exhausted and not self.live:
                return
            # What has arrived comes first: new requests then join the batch that the backend works on.
            if self.turns.empty() and self.engine.backend.step():
                continue
            try:
                episode, turn, answer = self.turns.get(timeout=POLL_SECONDS if self.more_to_come else None)
            except Empty:
                continue
            with session_named(episode.number):
                self._go_on(episode, answer if turn is None else self._finish_turn(episode, turn))

    def _admit(self) -> None:
        while self.live < self.engine.slots and not self.exhausted:
            session = next(self.sessions, None)
            self.more_to_come = session is NOT_YET
            self.exhausted = session is None
            if session is None or self.more_to_come:
                return
            context = list(session.prompt_ids)
            if not context:
                raise ConfigurationError(f"prompt_ids of session {self.count} is empty, expected at least one token.")
            seed = getattr(session, "seed", None)
            rng = random.Random(self.engine.draw_seed() if seed is None else seed)
            options = replace(self.engine.options, **getattr(session, "sampling", {}))
            episode = _ActiveEpisode(session, self.count, context, options, rng)
            self.count += 1
            self.live += 1
            with session_named(episode.number):
                self._request_turn(episode)

    def _request_turn(self, episode: _ActiveEpisode) -> None:
        """Submit the next turn, or end the session if there is no room for one."""
        longest = context_limit(episode.session, self.engine.max_length)
        remaining = longest - len(episode.context)
        if remaining <= 0:
            end_context_full(episode.session, longest)
            self.live -= 1
            return
        budget, seed = min(remaining, episode.options.max_new_tokens), episode.rng.getrandbits(62)
        future = self.engine.backend.submit(TurnRequest(episode.context, budget, episode.options, seed))
        future.add_done_callback(lambda turn: self.turns.put((episode, turn, None)))

    def _finish_turn(self, episode: _ActiveEpisode, future: Future[SampledTurn]) -> NextTokensOrFuture:
        try:
            turn = future.result()
        except InfrastructureError as error:
            episode.session.fail_infra(str(error))
            return None
        episode.context = episode.context + turn.ids
        stopped = turn.ids[-1] in episode.options.stop_token_ids
        return episode.session.finish_turn(turn.ids, turn.logprobs, stopped)

    def _go_on(self, episode: _ActiveEpisode, reply: NextTokensOrFuture) -> None:
        if isinstance(reply, Future) and not reply.done():
            reply.add_done_callback(lambda answered: self.turns.put((episode, None, answered)))
            return
        answer = reply.result() if isinstance(reply, Future) else reply
        if answer is None:
            self.live -= 1
            return
        episode.context = list(answer.ids) if isinstance(answer, NewContext) else episode.context + answer
        self._request_turn(episode)


@contextmanager
def session_named(number: int) -> Iterator[None]:
    """Add a note to an exception of a session that names it."""
    try:
        yield
    except Exception as error:
        error.add_note(
            f"Raised by session {number} (counted from 0), in its turn, finish_turn or the Future it returned."
        )
        raise
