"""Engines play sessions: the protocol, the engine of scripted policies, and that of a model behind an endpoint.

A caller that wants episodes (evaluation, training, benchmarks) opens sessions and hands them to an engine. Engines that
sample tokens in this process see a `TokenSession` instead; they live in `trainers.rollouts`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from agent_r1_gym.core.parsing import OpenAIParser
from agent_r1_gym.core.vector import AnyStepReturn, step_together
from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.run.endpoint import ChatEndpoint, Completion, ContextLengthError, infra_error_text
from agent_r1_gym.run.policies import Policy, Prompt
from agent_r1_gym.run.session import Session, TokenUsage, step_sessions
from agent_r1_gym.support.terminal import print_note

NOT_YET: Any = object()
"""Yielded by an iterator of sessions when none is ready now but more may come."""
POLL_SECONDS = 0.02
"""Seconds between two polls of such an iterator."""


class Engine(Protocol):
    """Plays sessions."""

    def run(self, sessions: Iterable[Any]) -> None:
        """Play every session to its end; pull the next one when there is room for it.

        Args:
            sessions: each a `Session`, or a `TokenSession` for an engine that samples tokens. A live iterator yields
                `NOT_YET` while other sessions are being played, and blocks while none is.

        Raises:
            Exception: any exception of a session, its environment or the iterator.
        """

    def close(self) -> None:
        """Release the resources of the engine."""


def pull(sessions: Iterator[Any], maximum: int) -> tuple[list[Any], bool]:
    """Pull up to `maximum` sessions that are ready; also return whether more may come."""
    pulled: list[Any] = []
    while len(pulled) < maximum:
        session = next(sessions, None)
        if session is None or session is NOT_YET:
            return pulled, session is NOT_YET
        pulled.append(session)
    return pulled, True


def when_ready(sessions: Iterable[Any]) -> Iterator[Any]:
    """Wait for each session, for an engine that needs all of them before it plays one."""
    for session in sessions:
        if session is NOT_YET:
            time.sleep(POLL_SECONDS)
        else:
            yield session


class ScriptedEngine:
    """Plays a policy without a model, which acts for many episodes at once.

    Args:
        policy: decides the turns.
        max_concurrent: maximum number of episodes at once.
    """

    def __init__(self, policy: Policy, *, max_concurrent: int = 16) -> None:
        self._policy, self._max_concurrent = policy, max_concurrent

    def run(self, sessions: Iterable[Session]) -> None:
        """See `Engine`; all running episodes are stepped together."""
        waiting, more = iter(sessions), True
        live: list[Session] = []
        while live or more:
            new, more = pull(waiting, self._max_concurrent - len(live)) if more else ([], False)
            live = active_sessions([*live, *new])
            if live:
                actions = self._policy.act([session.state() for session in live])
                if len(actions) != len(live):
                    raise ConfigurationError(
                        f"The policy {self._policy.name} must return one action per episode: expected {len(live)}, got "
                        f"{len(actions)}."
                    )
                step_sessions(live, actions)
                live = active_sessions(live)

    def close(self) -> None:
        """See `Engine`."""


def active_sessions(sessions: Iterable[Session]) -> list[Session]:
    """Filter out ended sessions, and stop those that were cancelled."""
    for session in sessions:
        if session.cancelled:
            session.stop()
    return [session for session in sessions if not session.ended]


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    session: Session
    prompt: Prompt


@dataclass(frozen=True, slots=True)
class _EndpointReply:
    session: Session
    reply: Completion | BaseException


@dataclass(frozen=True, slots=True)
class _ProgramStep:
    """A step that ended in a thread of its own: what `env.step` returned or raised."""

    session: Session
    action: str
    usage: TokenUsage
    step: AnyStepReturn | BaseException


class EndpointEngine:
    """Plays a model behind an endpoint; an episode never waits for the turn of another.

    Each thread has one request in flight. Environments are stepped in the calling thread: all replies that have arrived
    are stepped together, with their tool calls as one batch. One that waits for a program is stepped in a thread of its
    own, since the program may take minutes until it asks again.

    Args:
        endpoint: the model.
        max_concurrent: maximum number of requests, and so of episodes, at once.
    """

    def __init__(self, endpoint: ChatEndpoint, *, max_concurrent: int) -> None:
        self._endpoint, self._in_flight = endpoint, max_concurrent
        self._inbox: SimpleQueue[_PendingRequest | None] = SimpleQueue()
        self._outbox: SimpleQueue[_EndpointReply | _ProgramStep] = SimpleQueue()
        self._threads = 0
        self._stepping: set[Session] = set()
        """Episodes that wait for their program."""
        self._noted_long_prompt = False

    def run(self, sessions: Iterable[Session]) -> None:
        """See `Engine`."""
        waiting, more = iter(sessions), True
        live: set[Session] = set()
        while live or more:
            # Fill all slots before waiting; a new session may end without the model.
            starting, more = pull(waiting, self._in_flight - len(live)) if more else ([], False)
            pending = self._request_turns(starting)
            live |= pending
            if len(pending) < len(starting) or not live:
                continue
            arrived = self._collect(POLL_SECONDS if more else None)
            live.difference_update(each.session for each in arrived)
            live |= self._request_turns(self._step(arrived)) | self._stepping
            live = {*active_sessions(live - self._stepping), *self._stepping}

    def close(self) -> None:
        """Stop the threads and close the connections."""
        for _ in range(self._threads):
            self._inbox.put(None)
        self._threads = 0
        self._endpoint.close()

    def _request_turns(self, sessions: Sequence[Session]) -> set[Session]:
        """Play sessions until they need the model and request their turns; return those that wait for a reply."""
        pending: set[Session] = set()
        while sessions:
            scripted: list[tuple[Session, str]] = []
            for session in sessions:
                move = session.next_prompt()
                if isinstance(move, str):
                    scripted.append((session, move))
                else:
                    self._send(_PendingRequest(session, move))
                    pending.add(session)
            step_sessions([session for session, _ in scripted], [action for _, action in scripted])
            sessions = [session for session, _ in scripted if not session.ended]
        return pending

    def _step(self, arrived: Sequence[_EndpointReply | _ProgramStep]) -> list[Session]:
        """Step the sessions whose turn arrived; return those that continue now."""
        completions: list[tuple[Session, Completion]] = []
        stepped: list[Session] = []
        for each in arrived:
            session = each.session
            if isinstance(each, _ProgramStep):
                self._record(each)
                stepped.append(session)
                continue
            reply = each.reply
            if session.ended:  # cancelled while it waited
                continue
            if isinstance(reply, Completion):
                completions.append((session, reply))
            elif isinstance(reply, ContextLengthError):
                # Not lost: a model that talks until nothing fits would score by its short episodes only.
                if not session.turns and not self._noted_long_prompt:
                    self._noted_long_prompt = True
                    print_note(f"The prompt of task {session.task.id} does not fit the model's context: {reply}")
                session.truncate("max_context")
            elif isinstance(reply, InfrastructureError):
                session.fail_infra(infra_error_text(reply))
            else:
                raise reply
        turns: list[tuple[Session, str, TokenUsage]] = []
        for session, reply in completions:
            usage = TokenUsage(reply.prompt_tokens, reply.completion_tokens)
            action = session.action_from_text(reply.text(session.parser), usage, is_cut=reply.is_cut)
            turn = (session, action, usage)
            if getattr(session.env.unwrapped, "waits_at_reset", False):
                self._stepping.add(session)
                threading.Thread(target=self._step_apart, args=turn, name="agent-r1-program-step", daemon=True).start()
            else:
                turns.append(turn)
        sessions = [session for session, _, _ in turns]
        step_sessions(sessions, [action for _, action, _ in turns], model_usage=[usage for _, _, usage in turns])
        return [session for session in (*stepped, *sessions) if not session.ended]

    def _step_apart(self, session: Session, action: str, usage: TokenUsage) -> None:
        """Step an episode in this thread; the engine's thread records what came of it."""
        step: AnyStepReturn | BaseException
        try:
            with session.error_context():
                (step,) = step_together([session.env], [action])
        except BaseException as error:  # raised again in the engine's thread
            step = error
        self._outbox.put(_ProgramStep(session, action, usage, step))

    def _record(self, ended: _ProgramStep) -> None:
        self._stepping.discard(ended.session)
        if isinstance(ended.step, BaseException):
            raise ended.step
        ended.session.record_step(ended.action, ended.step, model_usage=ended.usage)

    def _collect(self, timeout: float | None) -> list[_EndpointReply | _ProgramStep]:
        """Wait up to `timeout` seconds for a reply or a step, and return it with all others that have arrived."""
        try:
            return [self._outbox.get(timeout=timeout), *self._drain_outbox()]
        except Empty:
            return []

    def _drain_outbox(self) -> Iterator[_EndpointReply | _ProgramStep]:
        try:
            while True:
                yield self._outbox.get_nowait()
        except Empty:
            return

    def _send(self, request: _PendingRequest) -> None:
        if self._threads < self._in_flight:
            # A daemon: a request that hangs must not keep the program from ending.
            threading.Thread(target=self._work, name="agent-r1-endpoint", daemon=True).start()
            self._threads += 1
        self._inbox.put(request)

    def _work(self) -> None:
        while (request := self._inbox.get()) is not None:
            session = request.session
            structured = not session.method.single_turn and isinstance(session.parser, OpenAIParser)
            seed = ((session.seed or 0) + len(session.turns)) % 2**31
            try:
                reply: Completion | BaseException = self._endpoint.complete(
                    request.prompt, seed=seed, tools=session.state().tools if structured else None
                )
            except BaseException as error:  # raised again in the thread that waits for the reply
                reply = error
            self._outbox.put(_EndpointReply(session, reply))
