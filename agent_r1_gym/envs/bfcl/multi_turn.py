"""The multi-turn categories: a user makes several requests in turn, and simulated APIs keep a state.

The APIs are code of the package `bfcl-eval` (Apache-2.0), which runs in this process. After each request the public
attributes of all APIs must equal those after the gold calls, and the responses of the gold calls must be among the
responses of all calls so far, in any order: the rules of the official `multi_turn_checker.py`. A request without gold
calls, because a function or a value is missing, is not graded, but its calls change the state.

`missed_function` of a row holds functions back: the user lists them in a later request. As in the official code, they
can be called before.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import importlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_r1_gym.core.tool import Arguments, Tool
from agent_r1_gym.core.types import Task, ToolCall, ToolOutcome, Transition
from agent_r1_gym.data.official.raw_rows import Row
from agent_r1_gym.envs.bfcl.ast_checker import Function
from agent_r1_gym.envs.bfcl.functions import FunctionTool, RecordedFunction
from agent_r1_gym.errors import DatasetError, MissingDependencyError
from agent_r1_gym.support.checks import frozen

MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
PACKAGE = "bfcl_eval"
USER = "user"
_MORE_FUNCTIONS = "I have updated some more functions you can choose from. What about now?"
_OVER = "Thank you, that was all."
MAX_STEPS = 20
"""Turns of calls that a request may take; one more ends the conversation, which then has failed."""
_APIS = "apis"
_NO_STATE = ("MathAPI",)
_MAX_EFFORT = 10_000
"""Largest exponent and precision: the APIs compute with numbers of any length, which would take hours."""


@dataclass(frozen=True, slots=True)
class ConversationTask(Task):
    """Requests of a user, and the APIs that serve them.

    Attributes:
        category: one of `MULTI_TURN`.
        requests: what the user writes, in turn; the first is the prompt.
        functions: all functions of the APIs.
        withheld: names of the functions that only a later request lists.
        gold: the gold calls for each request; () if it cannot be fulfilled.
        apis: names of the classes.
        config: their initial states, by class.
    """

    category: str = ""
    requests: tuple[str, ...] = ()
    functions: tuple[Function, ...] = ()
    withheld: frozenset[str] = frozenset()
    gold: tuple[tuple[ToolCall, ...], ...] = ()
    apis: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


# --- the APIs --------------------------------------------------------------------------------------------------------


def backend_config() -> Any:
    """The official tables of classes and files.

    Raises:
        MissingDependencyError: the package is not installed.
    """
    try:
        return importlib.import_module(f"{PACKAGE}.constants.executable_backend_config")
    except ImportError as error:
        raise MissingDependencyError(
            "BFCL's multi-turn categories need its simulated APIs: pip install bfcl-eval (or --no-deps, and mpmath)."
        ) from error


class ApiSession:
    """The APIs of one episode.

    Args:
        task: names the APIs and their initial states.

    Raises:
        MissingDependencyError: the package with their code is not installed.
    """

    def __init__(self, task: ConversationTask) -> None:
        modules = backend_config().CLASS_FILE_PATH_MAPPING
        self.request = 0
        self._instances: dict[str, Any] = {}
        for name in task.apis:
            instance = getattr(importlib.import_module(modules[name]), name)()
            if name not in _NO_STATE:
                config = copy.deepcopy(dict(task.config.get(name, {})))
                instance._load_scenario(config, long_context="long_context" in task.category)
            self._instances[name] = instance

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a function; an exception becomes a text, as in the official code."""
        try:
            effort = (arguments.get("exponent"), arguments.get("precision"))
            if any(isinstance(number, int | float) and abs(number) > _MAX_EFFORT for number in effort):
                raise ValueError(f"exponent and precision must be at most {_MAX_EFFORT}")
            method = next(getattr(each, name) for each in self._instances.values() if hasattr(each, name))
            return _written(method(**arguments))
        except Exception as error:  # whatever the arguments of a model lead to
            return f"Error during execution: {error}"

    def state(self) -> dict[str, dict[str, Any]]:
        """The public attributes of each API."""
        instances = copy.deepcopy(self._instances)
        return {
            name: {key: value for key, value in vars(instance).items() if not key.startswith("_")}
            for name, instance in instances.items()
        }

    def snapshot(self) -> tuple[int, dict[str, Any]]:
        """The number of the request, and the APIs, for `restore`."""
        return self.request, copy.deepcopy(self._instances)

    def restore(self, snapshot: tuple[int, dict[str, Any]]) -> None:
        """Continue from a snapshot."""
        self.request, instances = snapshot
        self._instances = copy.deepcopy(instances)

    def close(self) -> None:
        """Free nothing: the APIs are objects of this process."""


def _written(result: Any) -> str:
    """What a function returned, as text."""
    if isinstance(result, dict):
        with contextlib.suppress(TypeError, ValueError):  # numbers of any precision are not JSON
            return json.dumps(result)
    return str(result)  # raises ValueError for an integer of more than 4,300 digits


@dataclass(frozen=True)
class RequestEnd:
    """What rewards learn from the user's reply about the request that it ends.

    Attributes:
        state: public attributes of the APIs, by class.
        is_last: whether it was the last request.
    """

    state: Mapping[str, Mapping[str, Any]]
    is_last: bool


class ApiFunction(FunctionTool):
    """A function of one of the APIs, which all tools of an episode share.

    Args:
        function: as its documentation describes it.
        task: the task of the episode.

    Attributes:
        is_withheld: whether only a later request lists it.
    """

    per_episode = True

    def __init__(self, function: Function, task: ConversationTask) -> None:
        super().__init__(function, deterministic=False)
        self._task = task
        self.is_withheld = function["name"] in task.withheld

    @property
    def batch_key(self) -> tuple[str, int]:
        """One for all functions of an episode, so that `run` gets the calls of a turn in their order."""
        return _APIS, id(self.resources)

    def run(self, calls: Sequence[ToolCall]) -> list[ToolOutcome]:
        """Execute calls of any function of the episode, one after the other."""
        session = self.resources.get(_APIS, functools.partial(ApiSession, self._task))
        outcomes = []
        for call in calls:
            start = time.perf_counter()
            content = session.call(call.name, dict(call.arguments))
            outcomes.append(ToolOutcome(content, latency=time.perf_counter() - start))
        return outcomes

    def execute(self, arguments: Arguments) -> str:
        """Execute one call."""
        return self.run([ToolCall(self.name, arguments)])[0].content

    def get_state(self) -> None:
        """Nothing: the state of the APIs is in the snapshot of the user's tool."""


class UserRequests(Tool):
    """The user: takes the message that ends a request, and makes the next one.

    Args:
        task: the task of the episode.
    """

    per_episode = True
    takes_messages = True

    def __init__(self, task: ConversationTask) -> None:
        parameters = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
        super().__init__(USER, "The user.", parameters, timeout=None, max_output_chars=65_536)
        self._task = task

    def execute(self, arguments: Arguments) -> ToolOutcome:
        """Make the next request, whatever the message says."""
        session = self._session()
        session.request += 1
        is_last = session.request >= len(self._task.requests)
        content = _OVER if is_last else self._task.requests[session.request]
        return ToolOutcome(content, data=RequestEnd(session.state(), is_last))

    def get_state(self) -> Any:
        """The APIs and the number of the request; None before the first call and after the end."""
        return self._session().snapshot() if _APIS in self.resources else None

    def set_state(self, state: Any) -> None:
        """Restore what `get_state` returned."""
        if state is not None:
            self._session().restore(state)

    def _session(self) -> ApiSession:
        return self.resources.get(_APIS, functools.partial(ApiSession, self._task))


def conversation_tools(task: ConversationTask) -> list[Tool]:
    """Make the functions of a task, and its user."""
    return [*(ApiFunction(function, task) for function in task.functions), UserRequests(task)]


# --- grading ---------------------------------------------------------------------------------------------------------


def is_over(transition: Transition) -> bool:
    """Whether the turn ended the last request, or the current request takes too many turns."""
    steps = 0
    for step in (*transition.earlier, transition):
        ends = [outcome.data for outcome in step.outcomes if isinstance(outcome.data, RequestEnd)]
        steps = 0 if ends else steps + 1
    return any(end.is_last for end in ends) or steps > MAX_STEPS


def conversation_error(transition: Transition) -> str | None:
    """What is wrong with an episode, as the official `error_type`; None if it solves its task."""
    task = transition.task
    assert isinstance(task, ConversationTask)
    steps = (*transition.earlier, transition)
    ended = sum(isinstance(outcome.data, RequestEnd) for step in steps for outcome in step.outcomes)
    if ended < len(task.gold):
        return "multi_turn:force_terminated"
    gold = _gold_trace(task)
    responses: Counter[str] = Counter()
    number, has_called = 0, False
    for step in steps:
        for outcome in step.outcomes:
            if not isinstance(outcome.data, RequestEnd):
                has_called = True
                responses[outcome.content] += 1
                continue
            if task.gold[number]:
                if not has_called:
                    return "multi_turn:empty_turn_model_response"
                if not _same_state(outcome.data.state, gold[number].state):
                    return "multi_turn:instance_state_mismatch"
                if gold[number].responses - responses:
                    return "multi_turn:execution_response_mismatch"
            number, has_called = number + 1, False
    return None


@dataclass(frozen=True)
class _GoldRequest:
    """State after the gold calls of a request, and what they returned."""

    state: Mapping[str, Mapping[str, Any]]
    responses: Counter[str]


_traces: dict[int, tuple[ConversationTask, tuple[_GoldRequest, ...]]] = {}
_MAX_TRACES = 64


def _gold_trace(task: ConversationTask) -> tuple[_GoldRequest, ...]:
    """Execute the gold calls of a task; the last traces are kept, by identity, since tasks are not hashable."""
    known = _traces.get(id(task))
    if known is not None and known[0] is task:
        return known[1]
    session, trace = ApiSession(task), []
    for calls in task.gold:
        responses = Counter(session.call(call.name, dict(call.arguments)) for call in calls)
        trace.append(_GoldRequest(session.state(), responses))
    while len(_traces) >= _MAX_TRACES:
        _traces.pop(next(iter(_traces)))
    _traces[id(task)] = (task, tuple(trace))
    return tuple(trace)


def _same_state(state: Mapping[str, Mapping[str, Any]], gold: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether all public attributes that gold has are equal."""
    return all(
        name in state[api] and state[api][name] == value
        for api, attributes in gold.items()
        for name, value in attributes.items()
    )


# --- reading rows ----------------------------------------------------------------------------------------------------


def read_conversation(
    category: str, row: Row, gold: Any, documentation: Mapping[str, tuple[Function, ...]]
) -> ConversationTask:
    """Read the task of a row.

    Args:
        category: one of `MULTI_TURN`.
        row: the row.
        gold: its gold calls, as Python, by request.
        documentation: functions of each class.

    Raises:
        DatasetError: a field is missing or malformed.
    """
    match row.data:
        case {"involved_classes": [_, *_] as apis, "initial_config": dict() as config, "question": [_, *_] as turns}:
            unknown = [api for api in apis if api not in documentation]
        case _:
            raise row.error("question", "a list of requests, next to involved_classes and initial_config")
    if unknown:
        raise row.error("involved_classes", f"APIs with documentation ({', '.join(documentation)})")
    functions = {function["name"]: function for api in apis for function in documentation[api]}
    withheld = row.data.get("missed_function") or {}
    if not isinstance(gold, list) or len(gold) != len(turns):
        raise DatasetError(f"{row.where}: expected gold calls for each of {len(turns)} requests, got {gold!r:.120}")
    try:
        requests = tuple(
            _request(messages, [functions[name] for name in withheld.get(str(number), ())])
            for number, messages in enumerate(turns)
        )
        calls = tuple(tuple(_gold_call(text, functions) for text in texts) for texts in gold)
    except (KeyError, TypeError, ValueError, SyntaxError, AttributeError) as error:
        raise DatasetError(f"{row.where}: a request or gold call cannot be read ({error!r:.200})") from error
    return ConversationTask(
        id=row.text("id"),
        prompt=requests[0],
        metadata=frozen({"category": category}),
        category=category,
        requests=requests,
        functions=tuple(functions.values()),
        withheld=frozenset(name for names in withheld.values() for name in names),
        gold=calls,
        apis=tuple(apis),
        config=config,
    )


def _request(messages: Sequence[Mapping[str, Any]], listed: Sequence[Function]) -> str:
    """What the user writes: the messages of a request, or the functions that were held back."""
    texts = [str(message["content"]) for message in messages if message["role"] == "user"]
    if listed:
        shown = [RecordedFunction(function).schema["function"] for function in listed]
        texts = [*map(json.dumps, shown), *(texts or [_MORE_FUNCTIONS])]
    if not texts:
        raise ValueError("a request without a message of the user")
    return "\n".join(texts)


def _gold_call(text: str, functions: Mapping[str, Function]) -> ToolCall:
    """Read a gold call such as "sort('notes.txt')"; its positional arguments are named as the function documents."""
    call = ast.parse(text.strip(), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"{text!r} is not a call")
    names = list(functions[call.func.id]["parameters"]["properties"])
    arguments = {name: ast.literal_eval(value) for name, value in zip(names, call.args, strict=False)}
    named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    return ToolCall(call.func.id, {**arguments, **named})
