"""Conversation: a person talks to an agent in the world of one task, question by question.

The environment itself is played: its parser, tools, sanitising and limits. Only the question differs: the person's text
replaces the prompt of the task, and later questions continue the history, with the tools in the state of the last turn.
No rewards are computed, because a person's question has no gold answer.

An `EngineWorker` runs the engine in its own thread and plays the exchanges of many conversations side by side.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from agent_r1_gym.core.rewards import RewardSet
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, ParseError, ToolCall, ToolOutcome
from agent_r1_gym.data.generated import LazyTaskSequence
from agent_r1_gym.errors import AgentR1Error, ConfigurationError, InfrastructureError
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.run.endpoint import RequestsRefusedError
from agent_r1_gym.run.engines import NOT_YET, Engine
from agent_r1_gym.run.player import Player, evaluation_jobs
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.session import Session, env_display_name
from agent_r1_gym.support.out_of_memory import is_out_of_memory, out_of_memory_message

logger = logging.getLogger(__name__)


class WorkItem(Protocol):
    """One item of an `EngineWorker`: a session that is opened when it is scheduled."""

    @property
    def ended(self) -> bool:
        """Whether the item is finished."""

    def open(self, player: Player, executor: ThreadPoolExecutor) -> Session | None:
        """Open the session, or return None; called in the engine's thread, which its tools may be bound to."""

    def fail(self, error: Exception) -> None:
        """Finish with an exception, the item's own or one of the engine."""


class EngineWorker:
    """Runs an engine in its own thread, which plays items as they arrive, as many at once as the engine can.

    An exception of the engine or of an environment fails the items in progress; later items are not affected.

    Args:
        player: makes environments and opens sessions.
        engine: plays the sessions; owned by the worker.

    Attributes:
        env_name: name of the environment.
        tasks: tasks of the environment.
        max_turns: maximum number of turns per exchange.

    Raises:
        ConfigurationError: the environment has no tasks and tools.
    """

    def __init__(self, player: Player, engine: Engine) -> None:
        self.player, self._engine = player, engine
        env = player.acquire()
        self.env_name, bare = env_display_name(env), require_tool_env(env)
        self.tasks, self.max_turns = bare.tasks, bare.max_turns
        player.release(env)
        self._numbers: dict[str, int] | None = None
        self._inbox: SimpleQueue[WorkItem | None] = SimpleQueue()
        self._playing: list[WorkItem] = []
        self._closing = False
        # A daemon thread: a hanging tool must not block the exit of the program.
        self._thread = threading.Thread(target=self._work, name="agent-r1-engine", daemon=True)
        self._thread.start()

    def task_index(self, name: int | str) -> int:
        """Return the position of a task, named by position or id: an integer is a position, a string first an id.

        Raises:
            ConfigurationError: there is no such task.
        """
        number = name if isinstance(name, int) else int(name) if name.isdecimal() and len(name) < 20 else -1
        # No generated task has a number as its id, and making all of them to find out may take seconds.
        if isinstance(name, str) and not (number >= 0 and isinstance(self.tasks, LazyTaskSequence)):
            if self._numbers is None:
                self._numbers = {task.id: number for number, task in reversed(list(enumerate(self.tasks)))}
            number = self._numbers.get(name, number)
        if 0 <= number < len(self.tasks):
            return number
        raise ConfigurationError(
            f"{self.env_name} has no task {name!r:.80}; name one by its position, 0 to {len(self.tasks) - 1}, or by "
            f"its id, such as {self.tasks[0].id!r}."
        )

    def submit(self, item: WorkItem) -> None:
        """Schedule an item; does not block."""
        if self._closing:
            item.fail(InfrastructureError("The agent is being stopped."))
        else:
            self._inbox.put(item)

    def close(self, timeout: float = 5.0) -> None:
        """Wait up to `timeout` seconds for the items in progress, then free engine and environments."""
        self._closing = True
        self._inbox.put(None)
        self._thread.join(timeout)
        if not self._thread.is_alive():
            self._engine.close()
            self.player.close()

    def _work(self) -> None:
        with ThreadPoolExecutor(self.player.threads, thread_name_prefix="tools") as executor:
            while not self._closing:
                try:
                    self._engine.run(self._sessions(executor))
                except Exception as error:
                    if is_out_of_memory(error):
                        logger.error("%s", out_of_memory_message(error, "serve"))
                    elif not isinstance(error, AgentR1Error):
                        logger.exception("A conversation failed, and with it all that were in progress.")
                    for item in self._live():
                        item.fail(error)

    def _sessions(self, executor: ThreadPoolExecutor) -> Iterator[Session]:
        """Yield the sessions of scheduled items; block while none is in progress."""
        while True:
            try:
                item = self._inbox.get(block=not self._live())
            except Empty:
                yield NOT_YET
                continue
            if item is None:
                return
            self._playing.append(item)
            try:
                session = item.open(self.player, executor)
            except Exception as error:
                item.fail(error)
                continue
            if session is not None and not session.ended:
                yield session

    def _live(self) -> list[WorkItem]:
        self._playing = [item for item in self._playing if not item.ended]
        return self._playing


def require_tool_env(env: TextEnv) -> ToolEnv:
    """Return the `ToolEnv` in `env`, which a conversation needs.

    Raises:
        ConfigurationError: there is none.
    """
    if not isinstance(env.unwrapped, ToolEnv):
        raise ConfigurationError(
            f"{env_display_name(env)} is a {type(env.unwrapped).__name__}, not a ToolEnv: without tasks and tools it "
            "has no conversations. `agent-r1 play` plays it."
        )
    if env.unwrapped.waits_at_reset:
        raise ConfigurationError(
            f"{env_display_name(env)} is played by a program, which has its own conversations: talk to it, or drop "
            "agent (--agent)."
        )
    return env.unwrapped


CANCELLED = "cancelled"
"""`EndEvent.reason` of an exchange that was cancelled."""


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """Event: the model finished a turn, and its calls were executed.

    Attributes:
        text: text of the turn.
        calls: its tool calls.
        outcomes: their outcomes, in order.
        errors: parse errors of the turn.
        hit_token_limit: whether the token limit cut the turn.
    """

    text: str
    calls: tuple[ToolCall, ...]
    outcomes: tuple[ToolOutcome, ...]
    errors: tuple[ParseError, ...]
    hit_token_limit: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON-serialisable data."""
        calls = [
            {
                **{"name": call.name, "arguments": dict(call.arguments)},
                **{"ok": outcome.ok, "error": outcome.error, "outcome": outcome.content},
            }
            for call, outcome in zip(self.calls, self.outcomes, strict=True)
        ]
        errors = [{"code": error.code, "message": error.message} for error in self.errors]
        return {"text": self.text, "calls": calls, "errors": errors, "hit_token_limit": self.hit_token_limit}


@dataclass(frozen=True, slots=True)
class EndEvent:
    """Last event: the agent answered, or will not.

    Attributes:
        answer: the answer, None if there is none.
        reason: `end_reason` of the `Trajectory`; `CANCELLED`; "refused" if the question could not be asked (because it
            is too long, for example); or "error".
        error: the exception behind "refused" or "error".
        prompt_tokens: prompt tokens of all turns; None: not counted.
        completion_tokens: completion tokens of all turns; None: not counted.
    """

    answer: str | None
    reason: str
    error: Exception | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


Event = TurnEvent | EndEvent
OnEvent = Callable[[Event], None]


class Conversation:
    """A conversation with an agent in the world of one task.

    Args:
        engine_worker: plays the exchanges.
        task: position of the task in whose world the tools act, or its id.

    Raises:
        ConfigurationError: there is no such task.
    """

    def __init__(self, engine_worker: EngineWorker, task: int | str = 0) -> None:
        self.engine_worker = engine_worker
        self.task_index = engine_worker.task_index(task)
        self.messages: tuple[Message, ...] = ()
        """All messages so far."""
        self._env: TextEnv | None = None
        self._begun = False
        self._previous_history: Any = None
        self._exchange: Exchange | None = None
        self._lock = threading.Lock()
        self._closed = False

    def ask(
        self,
        text: str,
        *,
        on_event: OnEvent,
        history: Sequence[Message] = (),
        seed: int = 0,
        max_tokens: int | None = None,
        sampling: Mapping[str, float] | None = None,
    ) -> Exchange:
        """Ask the agent a question; does not block.

        Args:
            text: the question.
            on_event: receives the events, in any thread; the last one is always an `EndEvent`.
            history: earlier user messages and answers; with the first question only.
            seed: seed of the samples; a greedy agent needs none. The seed of an evaluation gives the same samples.
            max_tokens: maximum number of tokens of this exchange, including tool output; None: the engine's.
            sampling: sampling options of this exchange, such as `{"temperature": 0.7}`; None: the engine's.

        Raises:
            ConfigurationError: the previous question is not answered yet, or the conversation is closed.
        """
        with self._lock:
            if self._closed or (self._exchange is not None and not self._exchange.ended):
                raise ConfigurationError("The conversation is closed, or its last question is still being answered.")
            new_messages = (*history, Message("user", text))
            self._exchange = Exchange(self, new_messages, on_event, seed=seed, max_tokens=max_tokens, sampling=sampling)
        self.engine_worker.submit(self._exchange)
        return self._exchange

    def close(self) -> None:
        """Cancel the exchange in progress; the environment is released when it has ended."""
        with self._lock:
            self._closed = True
            if self._exchange is not None and not self._exchange.ended:
                self._exchange.cancel()
        self._release()

    def _acquire_env(self) -> TextEnv:
        """Return the environment of the conversation; runs in the engine's thread."""
        if self._env is None:
            self._env, self._begun = self.engine_worker.player.acquire(), False
        return self._env

    def _start(self, new_messages: Sequence[Message], *, seed: int | None) -> tuple[str, dict[str, Any]]:
        """Start the episode with the first question, or continue it; runs in the engine's thread."""
        env = self._acquire_env()
        bare = env.unwrapped
        assert isinstance(bare, ToolEnv)
        self._previous_history = bare._history if self._begun else None
        if self._begun:
            return bare.follow_up(new_messages)
        question, *rest = new_messages
        task = bare.tasks[self.task_index]
        own = replace(task, prompt=question.content)
        if own.prompt != task.prompt and bare.task_prompt(own) == bare.task_prompt(task):
            raise ConfigurationError(
                f"{self.engine_worker.env_name} has no conversations: its task_prompt(task) does not use task.prompt, "
                "so that the model would never see the question."
            )
        bare.rewards = RewardSet(())
        opened = env.reset(seed=seed, options={"task": own})
        bare.keep_resources()
        self._begun = True
        return bare.follow_up(rest) if rest else opened

    def _undo_question(self) -> None:
        """Undo a question that was refused; runs in the engine's thread."""
        if self._env is not None:
            assert isinstance(self._env.unwrapped, ToolEnv)
            self._env.unwrapped._history, self._begun = self._previous_history, self._previous_history is not None

    def _release(self, *, discard_env: bool = False) -> None:
        """Release the environment once the conversation is closed and idle; with `discard_env`, drop it."""
        with self._lock:
            busy = self._exchange is not None and not self._exchange.ended
            env, self._env = (self._env, None) if discard_env or (self._closed and not busy) else (None, self._env)
        if env is not None and not discard_env:
            assert isinstance(env.unwrapped, ToolEnv)
            env.unwrapped.release_resources()
            self.engine_worker.player.release(env)


class Exchange:
    """One question and the agent's turns until it answers: a `WorkItem`. Made by `Conversation.ask`.

    Attributes:
        ended: whether the exchange is over.
    """

    def __init__(
        self,
        conversation: Conversation,
        new_messages: Sequence[Message],
        on_event: OnEvent,
        *,
        seed: int,
        max_tokens: int | None,
        sampling: Mapping[str, float] | None,
    ) -> None:
        self.ended = False
        self._conversation, self._new_messages, self._on_event = conversation, new_messages, on_event
        self._seed, self._max_tokens, self._sampling = seed, max_tokens, sampling
        self._session: Session | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel the exchange: the agent stops after the current token, or when the running tool returns."""
        self._cancelled = True
        if self._session is not None:
            self._session.cancelled = True

    def open(self, player: Player, executor: ThreadPoolExecutor) -> Session | None:
        """See `WorkItem`."""
        if self._cancelled:
            self._end(EndEvent(None, CANCELLED))
            return None
        conversation = self._conversation
        (job,) = evaluation_jobs([conversation.task_index], seed=self._seed)
        self._session = player.open(
            conversation._acquire_env(),
            job,
            executor,
            max_tokens=self._max_tokens,
            sampling=self._sampling,
            start=partial(conversation._start, self._new_messages, seed=job.seed),
            on_turn=self._on_turn,
            on_end=self._on_end,
        )
        self._session.cancelled = self._cancelled
        return self._session

    def fail(self, error: Exception) -> None:
        """See `WorkItem`."""
        if self.ended:
            return
        if self._session is not None:
            self._session.ended = True  # an engine that still holds it must not continue
        refused = self._session is None and isinstance(error, ConfigurationError)
        if refused:
            self._conversation._undo_question()
        # A server that refuses a request leaves no step half done: the conversation goes on when it answers again.
        intact = refused or isinstance(error, RequestsRefusedError)
        self._end(EndEvent(None, "refused" if refused else "error", error), discard_env=not intact)

    def _on_turn(self, session: Session) -> None:
        if self.ended:  # a tool returned after the engine had failed
            return
        info = session.info
        calls, outcomes, errors = info["tool_calls"], info["tool_outcomes"], info["parse_errors"]
        self._conversation.messages = session.messages
        self._on_event(TurnEvent(session.turns[-1].action, calls, outcomes, errors, session.hit_token_limit))

    def _on_end(self, record: Trajectory) -> None:
        metrics = record.metrics()
        counts = [None if metrics[name] is None else int(metrics[name] or 0) for name in _COUNTS]
        error, reason = None, record.end_reason
        if reason == "interrupted":
            infra_error = record.infrastructure_error
            reason, error = (CANCELLED, None) if infra_error is None else ("error", InfrastructureError(infra_error))
        self._conversation.messages = record.messages
        self._end(EndEvent(record.answer, reason, error, *counts))

    def _end(self, event: EndEvent, *, discard_env: bool = False) -> None:
        self.ended = True
        self._conversation._release(discard_env=discard_env)
        self._on_event(event)


_COUNTS = ("prompt_tokens", "completion_tokens")
