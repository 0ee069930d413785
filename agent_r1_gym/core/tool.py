"""Tool: executes one kind of action and returns the raw outcome. It knows no reward, no gold answer, no history."""

from __future__ import annotations

import abc
import copy
import functools
import json
import os
import re
import sys
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, Self

from agent_r1_gym.core.types import ErrorKind, ToolCall, ToolOutcome
from agent_r1_gym.errors import ConfigurationError, InfrastructureError, InfrastructureTimeout, ToolError
from agent_r1_gym.support.checks import check_integer, check_seconds
from agent_r1_gym.support.concurrency import HungCalls, run_parallel
from agent_r1_gym.support.json_data import signature, validation_message, validator, whole_numbers
from agent_r1_gym.support.resource_scope import ResourceScope

Arguments = Mapping[str, Any]
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_MAX_ERROR_CHARS = 500
_JSON = (bool, int, float, dict, list, tuple)
_logged: set[tuple[type, str, type]] = set()
"""Unexpected exceptions that were logged: class and name of the tool, type of the exception."""
_hung_calls: dict[tuple[str, str], HungCalls] = {}
"""Calls that hang, by class and name of their tool: each episode may have an object of its own."""
os.register_at_fork(after_in_child=_hung_calls.clear)  # their threads are the parent's


class Tool(abc.ABC):
    """One kind of action. Subclass it and implement `execute`; or decorate a function with `agent_r1_gym.tool`.

    The environment validates arguments against `parameters` before it executes anything, and runs every call through
    `run`, which bounds time and output and turns exceptions into typed outcomes: `ToolError` and other exceptions
    become "tool_error" (the model reads the message), `InfrastructureError` becomes "unavailable" or "timeout" (the
    episode is marked so that a learner can drop it). The first exception of each type other than `ToolError` is logged
    with its traceback; otherwise only the model would see it.

    A tool that is bound to a thread, as a connection of `sqlite3` is, needs `timeout=None`: its calls then run in the
    thread that steps the environment, one after another, and `make_tools` runs in the thread that resets it. A fresh
    database per episode::

        def make_tools(self, task):
            database = sqlite3.connect(":memory:")
            database.executescript(task.metadata["schema"])

            @tool(timeout=None)
            def sql(query: str) -> list:
                \"\"\"Run one SQL statement.\"\"\"
                return database.execute(query).fetchall()

            return [sql]

    Args:
        name: what the model calls; letters, digits, `_` and `-`.
        description: what it does, for the model.
        parameters: JSON schema of the arguments object.
        timeout: seconds per call; None: no limit, and the call runs in the caller's thread, which waits for it (see
            `is_instant` for calls that take long and need no limit). A call with a timeout runs in a thread of its own;
            Python cannot kill a thread, so a call that hangs is abandoned, not stopped. It counts as an infrastructure
            failure: a tool whose arguments can make it slow should bound itself and raise `ToolError`, or a
            model learns to have its bad episodes dropped. While 32 calls of a tool hang, further ones fail at once as
            "timeout", until one comes back, or a later try succeeds (see `concurrency.HungCalls`).
        max_output_chars: longer outputs are cut, with a note.
        deterministic: equal arguments give equal outcomes and change nothing, as in a search. Equal calls in one step,
            of one environment or of many that share the tool, are then executed once.

    Raises:
        ConfigurationError: a name, schema or limit is not valid.
    """

    per_episode: bool = False
    """Whether each episode gets a copy of this tool, with its own `resources`."""
    takes_messages: bool = False
    """Whether it plays the user: it takes the turns that would be answers, as its argument `text`, and its outcomes are
    user turns. Models do not see it among their tools; at most one tool of an episode takes messages."""

    def __init__(
        self,
        name: str,
        description: str,
        parameters: Mapping[str, Any],
        *,
        timeout: float | None = 30.0,
        max_output_chars: int = 8_192,
        deterministic: bool = False,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"A tool's name is up to 64 letters, digits, '_' and '-', starting with a letter or '_'; got {name!r}."
            )
        if timeout is not None:
            check_seconds(f"timeout of tool {name!r}", timeout)
        check_integer(f"max_output_chars of tool {name!r}", max_output_chars, 1)
        self.name = name
        self.description = description
        self.parameters = parameters
        self.timeout = timeout
        self.max_output_chars = max_output_chars
        self.deterministic = deterministic
        try:
            schema = json.dumps(parameters, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"parameters of tool {name!r} are not JSON: {error}.") from error
        self._schema_text = sys.intern(schema)  # environments with tools of their own share the text
        self._has_integers = any(f'"{word}"' in schema for word in ("integer", "enum", "const"))
        validator(schema, name)  # rejects a wrong schema now; not stored, because validators do not pickle

    @abc.abstractmethod
    def execute(self, arguments: Arguments) -> str | ToolOutcome:
        """Carry out one call.

        Args:
            arguments: valid under `parameters`; integers are `int`, also where the model wrote 3.0.

        Returns:
            Text for the model, or a whole outcome.

        Raises:
            ToolError: the call failed; the model reads the message.
            InfrastructureError: the backend failed; the model is not to blame.
        """

    def execute_batch(self, batch: Sequence[Arguments]) -> Sequence[str | ToolOutcome]:
        """Carry out several calls at once; override it where the backend can (a search engine, a batched model).

        Returns:
            One item per call, in order.
        """
        return [self.execute(arguments) for arguments in batch]

    def get_state(self) -> Any:
        """Return what a snapshot of an episode must contain of this tool; None for tools without state."""
        return None

    def set_state(self, state: Any) -> None:  # noqa: B027 - tools without state need none
        """Restore what `get_state` returned."""

    def close(self) -> None:  # noqa: B027 - most tools own nothing
        """Free what this tool owns; may be called twice.

        `ToolEnv.close` calls it, for the tools of the constructor and of the last episode. Tools that `make_tools` made
        for earlier episodes stay open, because it may return them again: what an episode must close belongs in
        `resources`.
        """

    @property
    def resources(self) -> ResourceScope:
        """Resources of the episode: `self.resources.get("page", open_page)` opens one at the first call."""
        scope: ResourceScope = self.__dict__.setdefault("_episode", ResourceScope())  # outside of an environment
        return scope

    def for_episode(self, resources: ResourceScope) -> Self:
        """Make the copy that one episode calls; the tools of an environment share its `resources`."""
        tool = copy.copy(self)
        tool.__dict__["_episode"] = resources
        return tool

    @property
    def batch_key(self) -> Hashable:
        """Tools with equal keys may execute each other's calls in one batch; the default: only the tool itself."""
        return id(self)

    @property
    def is_instant(self) -> bool:
        """Whether callers wait for a call in their own thread; the default: it has no timeout.

        Override it with False for calls without a timeout that take long, so that other episodes continue meanwhile:
        the calls then run in any thread.
        """
        return self.timeout is None

    @property
    def runs_sequentially(self) -> bool:
        """Whether the calls of one turn run one after another; the default: it has state (overrides `get_state`)."""
        return self.keeps_state

    @property
    def keeps_state(self) -> bool:
        """Whether snapshots of an episode contain what calls changed: it overrides `get_state`."""
        return type(self).get_state is not Tool.get_state

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as an OpenAI-style function schema."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def check(self, arguments: Arguments) -> str | None:
        """Describe what is wrong with `arguments` under `parameters`, None if they are valid."""
        try:
            validator(self._schema_text, self.name)(dict(arguments))
        except (ValueError, RecursionError) as error:
            problem = validation_message(error).replace("data", "arguments", 1)[:_MAX_ERROR_CHARS]
            return f"{problem}. Expected arguments: {signature(self.parameters)}."
        return None

    def run(self, calls: Sequence[ToolCall]) -> list[ToolOutcome]:
        """Execute `calls` within the limits of this tool. Never raises on a tool's failure.

        Arguments are passed on as they are: the environment has checked them (`check`) before it runs a tool.
        Calls of a tool with a timeout run side by side, each in a thread (but see `runs_sequentially`); a tool that
        overrides `execute_batch` gets all calls in one batch.
        """
        batch = [self._converted(call.arguments) for call in calls]
        if type(self).execute_batch is Tool.execute_batch:
            return self._run_each(batch)
        outcomes = self._guard(batch) if self.timeout is None else self._run_parts([batch])[0]
        if len(batch) == 1 or not self.deterministic:
            return outcomes
        # One exception for all calls: a single bad one may have failed the batch, so each is tried alone.
        raised = outcomes[0].error == "tool_error" and all(outcome is outcomes[0] for outcome in outcomes)
        return self._run_each(batch) if raised else outcomes

    def _converted(self, arguments: Arguments) -> dict[str, Any]:
        """Copy arguments; a whole number that a model writes as 3.0 is an integer where the schema expects one."""
        plain = dict(arguments)
        if not self._has_integers or not any(isinstance(value, float | list | dict) for value in plain.values()):
            return plain
        return {**whole_numbers(plain, self.parameters)}

    def _run_each(self, batch: Sequence[Arguments]) -> list[ToolOutcome]:
        parts = [[arguments] for arguments in batch]
        rounds = [[part] for part in parts] if self.runs_sequentially else [parts]
        return [outcomes[0] for parallel in rounds for outcomes in self._run_parts(parallel)]

    def _run_parts(self, parts: Sequence[Sequence[Arguments]]) -> list[list[ToolOutcome]]:
        """Execute each part as one batch; in parallel threads, abandoned after `timeout`, if there is one."""
        if self.timeout is None:
            return [self._guard(part) for part in parts]
        jobs = [functools.partial(self._guard, part) for part in parts]
        key = (f"{type(self).__module__}.{type(self).__qualname__}", self.name)
        results = run_parallel(jobs, timeout=self.timeout, hung_calls=_hung_calls.setdefault(key, HungCalls()))
        return [self._collect(result, len(part)) for result, part in zip(results, parts, strict=True)]

    def _collect(self, result: list[ToolOutcome] | BaseException | None, size: int) -> list[ToolOutcome]:
        """Take the result of a thread: outcomes, an exception, or None if it did not come back in time."""
        if isinstance(result, InfrastructureError):  # no thread was started
            return self._failures(result, size, latency=0.0)
        if isinstance(result, BaseException):
            raise result
        if result is None:
            assert self.timeout is not None
            content = f"Tool {self.name!r} did not respond within {self.timeout:g} s."
            return [ToolOutcome(content, ok=False, error="timeout", latency=self.timeout)] * size
        return result

    def _guard(self, batch: Sequence[Arguments]) -> list[ToolOutcome]:
        """Execute one batch: exceptions become typed outcomes, outputs are cut, latency is measured."""
        start, size = time.perf_counter(), len(batch)
        try:
            raw = self.execute_batch(batch)
            if not isinstance(raw, (list, tuple)) or len(raw) != size:
                raise ConfigurationError(
                    f"Tool {self.name!r} must return {size} outcomes for {size} calls, got {raw!r:.80}."
                )
            latency = time.perf_counter() - start
            return [self._finish(item, latency) for item in raw]
        except (ConfigurationError, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit or CancelledError of a tool must not end the training
            self._log_once(error)
            return self._failures(error, size, latency=time.perf_counter() - start)

    def _finish(self, item: str | ToolOutcome, latency: float) -> ToolOutcome:
        content = item.content if isinstance(item, ToolOutcome) else item
        text = _to_text(content)
        if len(text) > self.max_output_chars:
            text = f"{text[: self.max_output_chars]}\n... [cut, {len(text)} characters in all]"
        if not isinstance(item, ToolOutcome):
            return ToolOutcome(text, latency=latency)
        return item if text is content else replace(item, content=text)

    def _failures(self, error: BaseException, size: int, *, latency: float) -> list[ToolOutcome]:
        kind: ErrorKind = "tool_error"
        if isinstance(error, InfrastructureError):
            kind = "timeout" if isinstance(error, InfrastructureTimeout) else "unavailable"
        try:
            content = (str(error) or type(error).__name__)[:_MAX_ERROR_CHARS]
        except Exception:  # an exception class with a broken __str__
            content = type(error).__name__
        wait = error.retry_after if isinstance(error, InfrastructureError) else None
        return [ToolOutcome(content, ok=False, error=kind, latency=latency, retry_after=wait)] * size

    def _log_once(self, error: BaseException) -> None:
        """Log an exception that the tool did not raise on purpose: otherwise only the model would see it."""
        key = (type(self), self.name, type(error))
        if isinstance(error, ToolError | InfrastructureError) or key in _logged:
            return
        import logging  # takes 3 ms, and most processes never need it

        _logged.add(key)
        where = "" if self.timeout is None else " Calls of a tool with a timeout run in threads, see Tool."
        logging.getLogger(__name__).error(
            "Tool %r raised %s; the model reads the message, later ones of this type are not logged.%s",
            self.name,
            type(error).__name__,
            where,
            exc_info=error,
        )


class PendingCall(NamedTuple):
    """A valid call, the tool that will execute it, and a key of the episode whose turn it is in."""

    tool: Tool
    call: ToolCall
    episode: Hashable = None


def execute_calls(pending: Sequence[PendingCall]) -> list[ToolOutcome]:
    """Execute calls of any number of environments: one batch per tool, equal calls to a deterministic tool once.

    Where the order of a turn's calls can matter, they are executed in that order, in several rounds: of the calls
    "stock, order, stock" the last must see what the second changed.

    Returns:
        One outcome per item of `pending`, in order.
    """
    if len(pending) == 1:
        return pending[0].tool.run([pending[0].call])
    outcomes: list[ToolOutcome | None] = [None] * len(pending)
    for round_ in _rounds(pending):
        positions: dict[Hashable, dict[str, list[int]]] = {}
        for position in round_:
            tool, call, _ = pending[position]
            key = call.key if tool.deterministic else str(position)
            positions.setdefault(tool.batch_key, {}).setdefault(key, []).append(position)
        batches = [[equal[0] for equal in by_key.values()] for by_key in positions.values()]
        done = _run_batches([(pending[firsts[0]].tool, [pending[i].call for i in firsts]) for firsts in batches])
        for by_key, results in zip(positions.values(), done, strict=True):
            for equal, outcome in zip(by_key.values(), results, strict=True):
                for position in equal:
                    outcomes[position] = outcome
    return [outcome for outcome in outcomes if outcome is not None]


def has_instant_call_that_waits(pending: Sequence[PendingCall]) -> bool:
    """Whether an instant call must follow one that is not instant, by the order in which `execute_calls` runs them.

    Otherwise the instant calls can be executed first, and the others in another thread.
    """
    slow, instant = list[int](), list[int]()
    for number, round_ in enumerate(_rounds(pending)):
        tools = [pending[position].tool for position in round_]
        slow += [number for tool in tools if not tool.is_instant and not tool.deterministic]
        instant += [number for tool in tools if tool.is_instant and not tool.deterministic]
    return bool(slow and instant) and max(instant) > min(slow)


def _rounds(pending: Sequence[PendingCall]) -> list[list[int]]:
    """Sort positions into rounds that follow each other.

    A round executes its batches in the order of their first calls, and those with a timeout side by side. So a call
    needs a later round if it comes back to a batch after another one, or if it and the batch before it have state. The
    calls of deterministic tools change nothing: they are in the first round.
    """
    rounds: list[list[int]] = [[]]
    turns: dict[Hashable, tuple[int, list[Tool]]] = {}
    for position, (tool, _, episode) in enumerate(pending):
        number, batches = turns.get(episode, (0, []))
        if not tool.deterministic and (not batches or batches[-1].batch_key != tool.batch_key):
            returns = any(earlier.batch_key == tool.batch_key for earlier in batches)
            if returns or (batches and batches[-1].runs_sequentially and tool.runs_sequentially):
                number, batches = number + 1, []
            turns[episode] = number, [*batches, tool]
        if number == len(rounds):
            rounds.append([])
        rounds[0 if tool.deterministic else number].append(position)
    return rounds


def _run_batches(batches: Sequence[tuple[Tool, list[ToolCall]]]) -> list[list[ToolOutcome]]:
    """Run one batch per tool: those with a timeout each in a thread, so that none waits for another, the rest here."""
    jobs = [functools.partial(tool.run, calls) for tool, calls in batches]
    threaded = [i for i, (tool, _) in enumerate(batches) if tool.timeout is not None] if len(batches) > 1 else []
    results: list[Any] = [None] * len(jobs)
    for i, result in zip(threaded, run_parallel([jobs[i] for i in threaded]), strict=True):
        results[i] = None if isinstance(result, InfrastructureError) else result  # no thread was free for it
    for i, result in enumerate(results):
        if result is None:
            results[i] = jobs[i]()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        plain = value if value is None or isinstance(value, _JSON) else _to_json(value)
        return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=_to_json)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _to_json(value: Any) -> Any:
    """Find a form in JSON for other values: the fields of a dataclass, NumPy's numbers as Python's, else a string."""
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    return value.tolist() if hasattr(value, "tolist") else str(value)
