"""Episode: what the program of an episode asks, and what the environment answers; from threads of both sides."""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from agent_r1_gym.core.types import Message, ToolCall, ToolOutcome
from agent_r1_gym.support.concurrency import WorkerThread
from agent_r1_gym.support.http_server import RequestError

_GONE = 410
"""Status of requests after the end: clients do not repeat them, as they do after 409, 429 and 5xx."""
_MAX_REPEATS = 100
"""How often an answered request may be repeated: a program that asks until a turn suits it would ask for ever."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A program asks for the next turn of the model; equal in all protocols.

    Attributes:
        messages: the whole conversation, as the program has it.
        tools: the tools that it offers, as OpenAI-style function schemas.
        key: identity of the content: a client that repeats a request gets the same turn.
        model: the name that the program gives the model.
        stream: whether the reply comes as server-sent events.
        stream_usage: whether the events end with the token counts.
        ignored: fields without effect that were set.
    """

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...]
    key: str
    model: str = ""
    stream: bool = False
    stream_usage: bool = False
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """The reply: a turn of the model, without the markup of its format.

    Attributes:
        content: the text, without reasoning and calls.
        calls: the tool calls, each with an id that is unique in the episode.
        is_cut: whether the limit of tokens cut it.
        prompt_tokens: number of tokens that the model read; 0: not known.
        completion_tokens: number of sampled tokens, reasoning included; 0: not known.
    """

    content: str
    calls: tuple[ToolCall, ...] = ()
    is_cut: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """The program has ended, or will not ask again.

    Attributes:
        failure: why it is not an end of an episode but an infrastructure failure; "" if it ended well.
        timed_out: whether it was waited for in vain.
    """

    failure: str = ""
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What a program reports of its episode, at any time before its end.

    Attributes:
        answer: the final answer; None: that of the model's last turn.
        reward: the outcome reward; None: by the rewards of the environment.
    """

    answer: str | None = None
    reward: float | None = None


class Episode:
    """One episode of a program: a queue of its requests, each of which is answered once.

    Args:
        run_tool: executes a call of one of the environment's own tools.
        tools: their schemas.
        thread: where they run; None: a thread of the episode.
        ends_with_result: whether the episode ends when the program reports its result: nothing else marks the end of a
            program that was not started here.

    Attributes:
        key: the API key of the episode.
        result: what the program has reported.
        refusal: the latest request of the program that was refused: status and reason. Many clients do not show it.
    """

    def __init__(
        self,
        run_tool: Callable[[ToolCall], ToolOutcome],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thread: WorkerThread | None = None,
        ends_with_result: bool = False,
    ) -> None:
        self._ends_with_result = ends_with_result
        self.key = f"agent-r1-{secrets.token_urlsafe(18)}"
        self.tools = tuple(tools)
        self.result = ProgramResult()
        self.refusal = ""
        self._run_tool = run_tool
        self._events: SimpleQueue[ModelRequest | ProgramEnd] = SimpleQueue()
        self._replies: dict[str, Future[ModelTurn]] = {}
        self._repeats = Counter[str]()
        self._current: Future[ModelTurn] | None = None
        self._end: ProgramEnd | None = None
        self._closed = self._refuses_turns = self._model = ""
        self._lock = threading.Lock()
        self._thread = thread or WorkerThread()
        self._tool_calls: list[Future[ToolOutcome]] = []

    # --- the program's side ------------------------------------------------------------------------------------------

    def submit(self, request: ModelRequest) -> Future[ModelTurn]:
        """Queue a request; one whose content was sent before shares the turn of the first.

        Raises:
            RequestError: the episode has ended, its first request named another model, or the request was repeated too
                often.
        """
        with self._lock:
            self._check_open()
            if self._refuses_turns:
                raise RequestError(_GONE, f"The episode gets no further turn: {self._refuses_turns}.")
            self._model = self._model or request.model
            if request.model != self._model:
                raise RequestError(
                    404,
                    f"The first request of this episode named the model {self._model!r:.80}, this one names "
                    f"{request.model!r:.80}. The gateway serves one model, whose turns are trained: address others at "
                    "their own servers.",
                )
            if request.key not in self._replies:
                self._replies[request.key] = Future()
                self._events.put(request)
            reply = self._replies[request.key]
            self._repeats[request.key] += reply.done()
            if self._repeats[request.key] > _MAX_REPEATS:
                raise RequestError(
                    400,
                    f"This request was repeated {_MAX_REPEATS} times, and got the same turn each time, as a retry "
                    "does. Another `seed` in it asks for another turn.",
                )
            return reply

    def report(self, result: ProgramResult) -> None:
        """Take the answer or the reward that the program reports; a later report overrides what it names.

        Raises:
            RequestError: the episode has ended.
        """
        with self._lock:
            self._check_open()
            old = self.result
            self.result = ProgramResult(
                old.answer if result.answer is None else result.answer,
                old.reward if result.reward is None else result.reward,
            )
        if self._ends_with_result:
            self.end(ProgramEnd())

    def call_tool(self, call: ToolCall) -> Future[ToolOutcome]:
        """Execute a call of an environment's tool in the thread of its tools, one at a time.

        The result raises `RequestError` if the episode ends before the call begins.

        Raises:
            RequestError: the episode has ended.
        """

        def run() -> ToolOutcome:
            with self._lock:
                self._check_open()
            return self._run_tool(call)

        with self._lock:
            self._check_open()
            self._tool_calls = [*(each for each in self._tool_calls if not each.done()), self._thread.submit(run)]
            return self._tool_calls[-1]

    def end(self, end: ProgramEnd) -> None:
        """Report that the program has ended; requests that it has left behind get no turn."""
        if end.failure and self.refusal:
            end = replace(end, failure=f"{end.failure}; the gateway had refused a request: {self.refusal}")
        with self._lock:
            if not self._closed:
                self._end = end
                self._events.put(end)

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError(_GONE, f"The episode has ended: {self._closed}.")

    # --- the environment's side --------------------------------------------------------------------------------------

    def next_event(self, timeout: float | None) -> ModelRequest | ProgramEnd:
        """Wait for the next request of the program, or its end.

        Args:
            timeout: seconds; None: without a limit.
        """
        try:
            event = self._events.get(timeout=timeout)
        except Empty:
            return ProgramEnd(f"the program asked for no turn within {timeout:g} s, and did not end", timed_out=True)
        if self._end is not None:
            return self._end
        if isinstance(event, ModelRequest):
            self._current = self._replies[event.key]
        return event

    def wait_for_tool(self) -> None:
        """Wait for the call of a tool that still runs when the episode has been closed; none begins after it."""
        with self._lock:
            calls = self._tool_calls
        wait(calls)

    def answer(self, turn: ModelTurn) -> None:
        """Answer the request that `next_event` returned last."""
        with self._lock:
            if self._current is not None and not self._current.done():
                self._current.set_result(turn)

    def refuse_turns(self, reason: str) -> None:
        """Refuse requests for turns, those that wait and later ones; a result may still be reported."""
        with self._lock:
            self._refuses_turns = reason
            self._refuse_waiting(f"The episode gets no further turn: {reason}.")

    def close(self, reason: str) -> None:
        """Refuse requests that are not answered and all later ones, and end a wait for the next; may be repeated."""
        with self._lock:
            self._closed = self._closed or reason
            self._end = self._end or ProgramEnd(f"the episode was ended: {self._closed}")
            self._events.put(self._end)
            self._refuse_waiting(f"The episode has ended: {self._closed}.")

    def _refuse_waiting(self, message: str) -> None:
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(RequestError(_GONE, message))


def content_key(body: Mapping[str, Any], *, without: Sequence[str] = ()) -> str:
    """Return the identity of a request's content.

    Args:
        body: the request.
        without: fields that change how the answer is sent, and not what it says.
    """
    content = json.dumps({name: value for name, value in body.items() if name not in without}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()
