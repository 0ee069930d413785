"""BFCL: answer a request with the right calls of the row's functions, or several requests over simulated APIs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from agent_r1_gym.core.parsing import visible_text
from agent_r1_gym.core.rewards import RewardTerm, failed_call, malformed_call
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import (
    MAX_CALLS_PER_TURN,
    ParsedTurn,
    ScriptedPolicy,
    ScriptedTurn,
    Task,
    ToolCall,
    Transition,
)
from agent_r1_gym.data.load import AUTO
from agent_r1_gym.envs.bfcl.ast_checker import Function, ast_error, tool_name
from agent_r1_gym.envs.bfcl.functions import RecordedFunction
from agent_r1_gym.envs.bfcl.multi_turn import (
    MAX_STEPS,
    MULTI_TURN,
    ApiFunction,
    ConversationTask,
    conversation_error,
    conversation_tools,
    is_over,
)
from agent_r1_gym.envs.bfcl.tasks import CATEGORIES, IRRELEVANCE, SINGLE_TURN, FunctionCallingTask, load_tasks
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import check_choices, check_path

_DONE = "There is nothing to call."
_ALL_CATEGORIES = (*SINGLE_TURN, *MULTI_TURN)
_MOST_REQUESTS = 8
_LONG_HISTORY = 200_000  # characters; gold needs up to 96,000 in "multi_turn_long_context"


# --- grading ---------------------------------------------------------------------------------------------------------


def verdict(transition: Transition) -> str | None:
    """What is wrong with the calls of an episode, as the official `error_type`; None if it solves its task."""
    task, parsed = transition.task, transition.parsed
    if isinstance(task, ConversationTask):
        return conversation_error(transition)
    assert isinstance(task, FunctionCallingTask)
    if IRRELEVANCE in task.category:
        # As officially, a call that cannot be read is none. A turn of which nothing is known is not a refusal: one cut
        # by a token limit, or whose calls were dropped.
        is_dropped = not (parsed.errors or parsed.answer) or any(e.code == "too_many_calls" for e in parsed.errors)
        return "irrelevance_error:decoder_success" if parsed.calls or is_dropped else None
    if not task.accepted:  # "live_relevance": any call will do
        return "relevance_error:decoder_failed" if parsed.errors or not parsed.calls else None
    if parsed.errors:
        return "ast_decoder:decoder_failed"
    return ast_error(parsed.calls, task.functions, task.accepted, task.category)


def solved(transition: Transition) -> float:
    """1 in the step that ends the episode if its calls are right, or if it rightly makes none; else 0."""
    return float((transition.terminated or transition.truncated) and verdict(transition) is None)


_OUTCOME = (RewardTerm("solved", solved),)
_PROCESS = (
    RewardTerm("malformed_call", malformed_call, -0.1, kind="process"),
    RewardTerm("failed_call", failed_call, -0.05, kind="process"),
)
PRESETS: Mapping[str, tuple[RewardTerm, ...]] = {"em": _OUTCOME, "process": (*_OUTCOME, *_PROCESS)}
"""Meaning of the usual reward presets in this environment."""


# --- scripts ---------------------------------------------------------------------------------------------------------


def due_calls(task: Task, history: Sequence[Transition]) -> tuple[ToolCall, ...]:
    """The right calls of the next turn; () if it should call nothing."""
    if isinstance(task, ConversationTask):
        size = MAX_CALLS_PER_TURN  # two rows need 34 calls for one request
        turns = [
            turn for calls in task.gold for turn in (*(calls[i : i + size] for i in range(0, len(calls), size)), ())
        ]
        return turns[len(history)] if len(history) < len(turns) else ()
    assert isinstance(task, FunctionCallingTask)
    return gold_calls(task)


def gold_calls(task: FunctionCallingTask) -> tuple[ToolCall, ...]:
    """The accepted calls with the first accepted value of each parameter, without those that may be omitted.

    Where any call will do, that of the first function.
    """
    if not task.accepted and IRRELEVANCE not in task.category:
        return (ToolCall(tool_name(task.functions[0]["name"]), {}),)
    functions = {function["name"]: function for function in task.functions}
    return tuple(_gold_call(functions[name], call[name]) for call in task.accepted for name in call)


def _gold_call(function: Function, accepted: Mapping[str, Sequence[Any]]) -> ToolCall:
    required = function["parameters"]["required"]
    named = {name: values for name, values in accepted.items() if name in required or "" not in values}
    return ToolCall(tool_name(function["name"]), {name: _gold_value(values) for name, values in named.items()})


def _gold_value(values: Sequence[Any]) -> Any:
    """The first accepted value; of an object, and of an object in a list, each member is a list of accepted values."""
    value = _first(values)
    if isinstance(value, dict):
        return _gold_object(value)
    return (
        [_gold_object(item) if isinstance(item, dict) else item for item in value] if isinstance(value, list) else value
    )


def _gold_object(accepted: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    return {name: _first(values) for name, values in accepted.items() if "" not in values}


def _first(values: Sequence[Any]) -> Any:
    """The first value that is not "", which stands for an omitted one."""
    return next((value for value in values if value != ""), "")


def _refusing(env: BFCLEnv, task: Task, history: Sequence[Transition]) -> ScriptedTurn:
    """Never calls a function."""
    return _DONE


def _single(env: BFCLEnv, task: Task, history: Sequence[Transition]) -> ScriptedTurn:
    """Makes the first call of each turn alone, and calls the first function where none fits."""
    calls = due_calls(task, history)
    if isinstance(task, FunctionCallingTask) and task.functions and not calls:
        return ToolCall(tool_name(task.functions[0]["name"]), {})
    return calls[0] if calls else _DONE


def _mistyped(env: BFCLEnv, task: Task, history: Sequence[Transition]) -> ScriptedTurn:
    """Makes the right calls with all values as texts."""
    calls = due_calls(task, history)
    as_text = [ToolCall(call.name, {name: str(value) for name, value in call.arguments.items()}) for call in calls]
    return tuple(as_text) or _DONE


# --- the environment -------------------------------------------------------------------------------------------------


class BFCLEnv(ToolEnv):
    """BFCL: call the right functions with the right arguments, in one turn or in a conversation, or none if none fits.

    ## Description
    The Berkeley Function-Calling Leaderboard v4. Single-turn categories: each row brings a request and the schemas of
    its functions. "simple_python" (400 rows, one function, one call), "multiple" (200, two to four functions, one
    call), "parallel" (200, one function, two to eight calls), "irrelevance" (240, one function that does not fit); as
    test rows only, "parallel_multiple" (200), "live_simple" (258), "live_multiple" (1,053), "live_parallel" (16),
    "live_parallel_multiple" (24), "live_irrelevance" (884), "live_relevance" (16, any call will do). Calls are compared
    with lists of accepted values; nothing is executed. Multi-turn categories, 200 rows each: "multi_turn_base",
    "multi_turn_miss_func" (a function is missing until a later request), "multi_turn_miss_param" (a value is),
    "multi_turn_long_context" (long outputs). A user makes one to eight requests over the state of one or two simulated
    APIs (files, trading, travel, a vehicle ...); a turn without a call that can be read ends a request. They need the
    package `bfcl-eval`, whose APIs run in this process.

    ## Tools
    The functions of the row, with JSON schemas as the official code makes them for OpenAI's format; a dot in a name
    becomes "_". They take any arguments, so that the grader sees what the model wrote. In single-turn categories they
    return nothing of use, in the others what the API returns.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`. A turn without a
    call is an answer (`plain_turn="answer"`); in multi-turn categories also one with nothing but malformed calls.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`.

    ## Starting State
    A system turn (task, functions of the row, format) and the first request, sampled uniformly from the split.

    ## Rewards
    ### Outcome
    `solved`, 1 or 0, in the step that ends the episode. Single-turn, by the official AST rules
    (`envs/bfcl/ast_checker.py`): as many calls as accepted, each of the right function, with all required arguments, no
    other ones, and an accepted value of the right type each. Case, spaces and `,./-_*^` of strings do not count. A turn
    with a malformed call fails, except in "irrelevance", where a turn without a well-formed call is right. Multi-turn:
    after each request the state of the APIs is that after the gold calls, and what these returned has been returned
    (`envs/bfcl/multi_turn.py`).
    ### Process
    With `reward="process"` also: `malformed_call` (-.1; in multi-turn categories only of a turn that has a good call
    too), `failed_call` (-.05, a function that does not exist).

    ## Episode End
    ### Termination
    Single-turn: a turn calls functions, or answers. Multi-turn: the last request is ended, or a request has taken 21
    turns of calls, which fails the row.
    ### Truncation
    `max_turns` model turns are used up (single-turn 1 by default: a turn that cannot be read is the last), or the
    history is longer than `max_history_chars`.

    ## Information
    As in `AgentR1/HotpotQA-v0`. Results are broken down by `category`. In multi-turn categories, a turn without a call
    is listed in `tool_calls` as a call of `user`, whose outcome is the next request.

    ## Arguments
    `dataset="auto"` (the data of the installed package `bfcl-eval`, else a sample of 15 invented rows, with a warning;
    "sample"; or a folder: a checkout of the gorilla repository, its `data` folder, or copies of its files),
    `category=None` (the first four, some single-turn ones, or some multi-turn ones), `split=None` ("train";
    "validation" and "test" share no function with it, in multi-turn categories no scenario; "all" for published
    numbers), `reward="em"` (`solved` alone, or "process", or custom terms), `max_turns=1` (multi-turn 168, which eight
    requests cannot exceed). For the others see `ToolEnv`.

    ## References
    Patil et al., The Berkeley Function Calling Leaderboard (ICML 2025), github.com/ShishirPatil/gorilla. Yan et al.,
    Gorilla: Large Language Model Connected with Massive APIs (arXiv 2305.15334).

    ## Version History
    v0: first release.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "tools", "fields", "scorer")
    reward_presets = PRESETS
    plain_errors: ClassVar[Sequence[list[str]]] = (["no_action"], ["other_format"])  # officially no call is read there
    scripts: ClassVar[Mapping[str, ScriptedPolicy]] = {"refusing": _refusing, "single": _single, "mistyped": _mistyped}
    instructions: ClassVar[str] = """\
Answer the request with calls of the functions below.
1. Make all calls that the request needs in one turn. It is the only one.
2. Write values of the right type. Omit an optional argument if the request says nothing about it.
3. If no function fits, or a required value is missing, call none, and answer that in one sentence."""
    _multi_turn_instructions: ClassVar[str] = """\
Fulfil the requests of the user with calls of the functions below.
1. Call functions until the request is fulfilled; look up what you need to know. Do nothing that was not requested.
2. If a function or a required value is missing, say so instead of guessing.
3. When a request is fulfilled, write a short message to the user without a call. The next request follows."""

    def __init__(
        self,
        *,
        dataset: str | os.PathLike[str] = AUTO,
        category: str | Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        check_path("dataset", dataset)
        categories = CATEGORIES if category is None else check_choices("category", category, _ALL_CATEGORIES)
        defaults: dict[str, Any] = {"max_turns": 1, "plain_turn": "answer"}
        if options.get("split", ...) is None:
            del options["split"]
        defaults["split"] = "train"  # refused for categories that have none
        if any(each in MULTI_TURN for each in categories):
            if not all(each in MULTI_TURN for each in categories):
                raise ConfigurationError(f"category={category!r} mixes single-turn and multi-turn rows.")
            defaults |= {"max_turns": _MOST_REQUESTS * (MAX_STEPS + 1), "max_history_chars": _LONG_HISTORY}
            if options.get("raw_system_prompt") is None:
                defaults["system_prompt"] = self._multi_turn_instructions
        super().__init__(dataset=load_tasks(dataset, categories), **{**defaults, **options})

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """The functions of the row; in a conversation also its user."""
        if isinstance(task, ConversationTask):
            return conversation_tools(task)
        if not isinstance(task, FunctionCallingTask):
            raise ConfigurationError(f"BFCL plays rows of its own only, got a {type(task).__name__}.")
        return tuple(map(RecordedFunction, task.functions))

    @property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """The functions that the system turn lists: without those that a later request lists."""
        tools = [tool for tool in self.toolbox.by_name.values() if isinstance(tool, ApiFunction) and tool.is_withheld]
        withheld = {tool.name for tool in tools}
        return [schema for schema in super().tool_schemas if schema["function"]["name"] not in withheld]

    def parse(self, action: str) -> ParsedTurn:
        """Parse a turn; as officially, one without a call that can be read is a message, which ends the request."""
        parsed = super().parse(action)
        if self.toolbox.user is None or parsed.calls:
            return parsed
        text = visible_text(action if parsed.content is None else parsed.content)
        return replace(parsed, calls=(ToolCall(self.toolbox.user, {"text": text}),), errors=(), is_message=True)

    def is_terminated(self, transition: Transition) -> bool:
        """Whether the turn calls functions or answers, or ends a conversation."""
        if isinstance(transition.task, ConversationTask):
            return is_over(transition)
        return bool(transition.parsed.calls) or super().is_terminated(transition)

    def oracle(self, task: Task, history: Sequence[Transition]) -> ScriptedTurn | None:
        """All accepted calls in one turn, or those of a request; an answer if no function fits, or a request ends."""
        calls = due_calls(task, history)
        return (calls[0] if len(calls) == 1 else calls) or _DONE
