from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agent_r1_gym.errors import (
    ConfigurationError,
    DatasetError,
    InfrastructureError,
    InfrastructureTimeout,
    RetrievalError,
    RetrievalTimeout,
    ToolError,
)
from agent_r1_gym.support import threads
from agent_r1_gym.support.threads import FIRST_COOLDOWN, MAX_LOST
from agent_r1_gym.tool import PendingCall, Tool, execute_calls
from agent_r1_gym.types import ToolCall, ToolOutcome
from tests.kit.helpers import (
    BatchTool,
    CounterTool,
    EchoTool,
    GivenTool,
    MeetingTool,
    SleepTool,
    outcome_of,
)

OBJECT = {"type": "object"}


class StubTool(Tool):
    """A tool whose constructor takes everything."""

    def execute(self, arguments: Mapping[str, Any]) -> str:
        return "ok"


# --- construction ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "_x", "search_web-2", "A" * 64])
def test_good_names(name: str) -> None:
    assert StubTool(name, "d", OBJECT).schema["function"]["name"] == name


@pytest.mark.parametrize("name", ["", "1a", "-a", "a b", "a\n", "é", "A" * 65, "a]", "<answer>", None, 5])
def test_bad_names_are_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        StubTool(name, "d", OBJECT)


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        [],
        "object",
        {},
        {"type": "array"},
        {"type": "object", "properties": []},
        {"type": "object", "properties": {"q": 5}},
        {"type": "object", "properties": {"q": {"type": "strin"}}},
        {"type": "object", "properties": {"q": {"pattern": "("}}},
        {"type": "object", "properties": {"q": {"enum": {1}}}},
        {"type": "object", "required": "q"},
    ],
)
def test_bad_schemas_are_refused(parameters: Any) -> None:
    with pytest.raises(ConfigurationError, match="'zoom'"):
        StubTool("zoom", "d", parameters)


@pytest.mark.parametrize(
    "limits",
    [
        {"timeout": 0},
        {"timeout": -1.0},
        {"timeout": float("nan")},
        {"timeout": float("inf")},
        {"timeout": 1e12},
        {"timeout": "5"},
        {"timeout": True},
        {"max_output_chars": 0},
        {"max_output_chars": "5"},
        {"max_output_chars": 2.5},
    ],
)
def test_bad_limits_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(limits))):
        StubTool("zoom", "d", OBJECT, **limits)


def test_schema_is_what_chat_templates_take() -> None:
    tool = StubTool("zoom", "Zooms in.", OBJECT)
    function = {"name": "zoom", "description": "Zooms in.", "parameters": OBJECT}
    assert tool.schema == {"type": "function", "function": function}


# --- arguments -------------------------------------------------------------------------------------------------------

TYPED = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer"},
        "kind": {"enum": ["a", "b"]},
        "any": True,
    },
    "required": ["query"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "arguments",
    [
        {"query": "x"},
        {"query": "", "limit": -3},
        {"query": "x", "kind": "a"},
        {"query": "x", "any": [None]},
    ],
)
def test_valid_arguments(arguments: dict[str, Any]) -> None:
    assert StubTool("zoom", "d", TYPED).check(arguments) is None


@pytest.mark.parametrize(
    ("arguments", "phrases"),
    [
        ({}, ["query"]),
        ({"query": 5}, ["arguments.query", "string"]),
        ({"query": "x", "limit": "3"}, ["arguments.limit", "integer"]),
        ({"query": "x", "limit": 2.5}, ["arguments.limit", "integer"]),
        ({"query": "x", "limit": True}, ["arguments.limit", "integer"]),
        ({"query": "x", "kind": "c"}, ["arguments.kind", "a", "b"]),
        ({"query": "x", "querry": "y"}, ["querry"]),
        ({"query": None}, ["arguments.query"]),
    ],
)
def test_invalid_arguments_are_told_with_what_was_expected(arguments: dict[str, Any], phrases: list[str]) -> None:
    problem = StubTool("zoom", "d", TYPED).check(arguments)
    assert problem is not None
    assert "query (string)" in problem
    assert "limit (integer, optional)" in problem
    assert [phrase for phrase in phrases if phrase not in problem] == []


def test_problems_read_the_same_in_every_process() -> None:
    """Observations are part of a transition: the order of a Python set must not show in them."""
    arguments = {"query": "x", **{letter * 3: 1 for letter in "qwertyuiop"}}
    code = f"from tests.test_tool import *; print(StubTool('zoom', 'd', TYPED).check({arguments!r}))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_problems_stay_short() -> None:
    problem = StubTool("zoom", "d", TYPED).check({"query": "x", "y" * 100_000: 1})
    assert problem is not None
    assert len(problem) < 1_000


# --- one call --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        ("", ""),
        (5, "5"),
        (1.5, "1.5"),
        (True, "true"),
        (None, "null"),
        ({"a": ["é", 1]}, '{"a": ["é", 1]}'),
        (("a", 1), '["a", 1]'),
        (frozenset({1}), "frozenset({1})"),
        (b"x", "b'x'"),
    ],
)
def test_values_become_text(value: Any, content: str) -> None:
    assert outcome_of(GivenTool(value)) == ToolOutcome(content)


def test_whole_outcomes_pass_through_with_their_latency_measured() -> None:
    given = ToolOutcome("nothing there", ok=False, error="tool_error", data=(1,))
    assert outcome_of(GivenTool(given)) == given
    assert outcome_of(SleepTool(0.02), text="x").latency >= 0.02


def deep_list() -> list[Any]:
    value: list[Any] = []
    for _ in range(5_000):
        value = [value]
    return value


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@pytest.mark.parametrize("value", [deep_list(), ToolOutcome(None), ToolOutcome(5), UnprintableError()])  # type: ignore[arg-type]
def test_odd_values_of_a_tool_are_its_failure_not_the_environments(value: Any) -> None:
    assert outcome_of(GivenTool(value)).error in ("tool_error", None)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ToolError("no such table"), "tool_error"),
        (ValueError("no such table"), "tool_error"),
        (RecursionError("no such table"), "tool_error"),
        (StopIteration("no such table"), "tool_error"),
        (SystemExit("no such table"), "tool_error"),
        (DatasetError("no such table"), "tool_error"),
        (InfrastructureError("no such table"), "unavailable"),
        (RetrievalError("no such table"), "unavailable"),
        (InfrastructureTimeout("no such table"), "timeout"),
        (RetrievalTimeout("no such table"), "timeout"),
    ],
)
@pytest.mark.parametrize("timeout", [None, 5.0])
def test_exceptions_become_typed_outcomes(error: BaseException, kind: str, timeout: float | None) -> None:
    outcome = outcome_of(GivenTool(error, timeout=timeout))
    assert (outcome.content, outcome.ok, outcome.error) == (
        "no such table",
        False,
        kind,
    )


def test_an_exception_without_text_is_named() -> None:
    assert outcome_of(GivenTool(ZeroDivisionError())).content == "ZeroDivisionError"


def logged_by(caplog: pytest.LogCaptureFixture, tool: Tool, times: int = 1) -> list[str]:
    caplog.clear()
    for _ in range(times):
        outcome_of(tool)
    return [record.getMessage() for record in caplog.records]


def test_an_unexpected_exception_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """The model reads the message, the developer would not."""
    (message,) = logged_by(caplog, GivenTool(LookupError("no such row"), "logs-once"), times=3)
    assert "'logs-once' raised LookupError" in message
    assert "raise self._given" in caplog.text  # the traceback
    assert logged_by(caplog, GivenTool(OSError("another type"), "logs-once")) != []
    assert logged_by(caplog, GivenTool(LookupError("another tool"), "logs-too")) != []


@pytest.mark.parametrize("error", [ToolError("on purpose"), InfrastructureError("down"), InfrastructureTimeout("slow")])
def test_failures_on_purpose_are_not_logged(caplog: pytest.LogCaptureFixture, error: Exception) -> None:
    assert logged_by(caplog, GivenTool(error, "logs-nothing")) == []


def test_long_errors_are_cut() -> None:
    assert len(outcome_of(GivenTool(ToolError("x" * 10_000))).content) < 1_000


@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), ConfigurationError("wrong")])
def test_interrupts_and_programmers_mistakes_pass_through(error: BaseException, timeout: float | None) -> None:
    with pytest.raises(type(error)):
        outcome_of(GivenTool(error, timeout=timeout))


def test_output_is_capped_and_says_so() -> None:
    tool = EchoTool(max_output_chars=10)
    assert outcome_of(tool, text="12345") == ToolOutcome("echo 12345")
    assert outcome_of(tool, text="123456").content == "echo 12345\n... [cut, 11 characters in all]"


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_hanging_call_is_given_up_while_it_hangs() -> None:
    release, returned = threading.Event(), threading.Event()

    class Hanging(SleepTool):
        def execute(self, arguments: Mapping[str, Any]) -> str:
            release.wait(60)
            returned.set()
            return "late"

    outcome = outcome_of(Hanging(0.0, timeout=0.1), text="x")
    assert not returned.is_set()
    release.set()
    assert (outcome.ok, outcome.error, outcome.is_infrastructure_failure) == (
        False,
        "timeout",
        True,
    )
    assert "0.1 s" in outcome.content


def test_one_hanging_call_does_not_fail_its_neighbours() -> None:
    class Picky(SleepTool):
        def execute(self, arguments: Mapping[str, Any]) -> str:
            return super().execute(arguments) if arguments["text"] == "hang" else "quick"

    tool = Picky(5.0, timeout=0.2)
    outcomes = tool.run([ToolCall("sleep", {"text": text}) for text in ("a", "hang", "b")])
    assert [outcome.error for outcome in outcomes] == [None, "timeout", None]


def test_a_process_with_a_hanging_call_can_end() -> None:
    code = (
        "from tests.kit.helpers import SleepTool, outcome_of\n"
        "print(outcome_of(SleepTool(120.0, timeout=0.1), text='x').error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.strip() == "timeout"


def test_how_long_a_backend_is_left_alone_reaches_the_outcome() -> None:
    class Resting(SleepTool):
        def execute(self, arguments: Mapping[str, Any]) -> str:
            raise RetrievalError("left alone", retry_after=3.0)

    outcome = outcome_of(Resting(0.0), text="x")
    assert (outcome.error, outcome.retry_after) == ("unavailable", 3.0)
    assert outcome_of(SleepTool(0.0), text="x").retry_after is None


def test_a_tool_that_hangs_is_left_alone_in_whatever_object_it_comes() -> None:
    release = threading.Event()

    class Stuck(SleepTool):
        def execute(self, arguments: Mapping[str, Any]) -> str:
            release.wait(60)
            return "late"

    before = threading.active_count()
    try:
        for _ in range(40):  # an object per episode, each with calls that hang
            tool = Stuck(0.0, "stuck", timeout=0.01)
            outcomes = tool.run([ToolCall("stuck", {"text": str(n)}) for n in range(8)])
            assert {outcome.error for outcome in outcomes} == {"timeout"}
        assert threading.active_count() - before <= MAX_LOST + 8
        assert "32 calls hang" in outcomes[0].content
        assert 0 < outcomes[0].retry_after <= FIRST_COOLDOWN
        assert outcome_of(SleepTool(0.0, timeout=5.0), text="x").ok
    finally:
        release.set()


def test_a_tool_without_a_thread_to_run_in_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "_idle", [])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    pending = [calls_of(SleepTool(0.0, name, timeout=5.0), 1)[0] for name in ("one", "two")]
    outcomes = execute_calls(pending)
    assert [outcome.error for outcome in outcomes] == ["unavailable"] * 2
    assert "can't start new thread" in outcomes[0].content


def calls_of(tool: Tool, count: int) -> list[PendingCall]:
    return [PendingCall(tool, ToolCall(tool.name, {"text": str(position)})) for position in range(count)]


def test_slow_calls_run_side_by_side() -> None:
    outcomes = execute_calls(calls_of(MeetingTool(threading.Barrier(64)), 64))
    assert [outcome.content for outcome in outcomes] == [f"met {position}" for position in range(64)]


def test_slow_calls_of_different_tools_run_side_by_side_too() -> None:
    """Each environment of a vector may own its tools."""
    meeting = threading.Barrier(32)
    outcomes = execute_calls([calls_of(MeetingTool(meeting), position + 1)[position] for position in range(32)])
    assert [outcome.content for outcome in outcomes] == [f"met {position}" for position in range(32)]


def test_more_calls_than_threads_still_come_back_in_order() -> None:
    outcomes = SleepTool(0.001).run([ToolCall("sleep", {"text": str(position)}) for position in range(300)])
    assert [outcome.content for outcome in outcomes] == [f"slept {position}" for position in range(300)]


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_calls_of_a_tool_with_state_are_executed_in_order(
    timeout: float | None,
) -> None:
    class Slower(CounterTool):
        def execute(self, arguments: Mapping[str, Any]) -> str:
            time.sleep(0.02 if not self.log else 0.0)
            return super().execute(arguments)

    tool = Slower()
    tool.timeout = timeout
    outcomes = tool.run([ToolCall("count", {})] * 3)
    assert [outcome.content for outcome in outcomes] == ["[1]", "[1, 2]", "[1, 2, 3]"]


# --- batches ---------------------------------------------------------------------------------------------------------


class RowTool(BatchTool):
    """Fails the whole batch if one text is "bad", as a search engine may."""

    def execute_batch(self, batch: Sequence[Mapping[str, Any]]) -> list[str]:
        if any(arguments["text"] == "bad" for arguments in batch):
            self.batches.append(len(batch))
            raise ToolError("bad row")
        return super().execute_batch(batch)


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_a_batch_override_gets_all_calls_at_once(timeout: float | None) -> None:
    tool = BatchTool(timeout=timeout)
    outcomes = execute_calls(calls_of(tool, 5))
    assert tool.batches == [5]
    assert [outcome.content for outcome in outcomes] == [f"echo {position}" for position in range(5)]


def test_one_bad_call_does_not_fail_the_batch() -> None:
    tool = RowTool()
    outcomes = tool.run([ToolCall("echo", {"text": text}) for text in ("a", "bad", "b")])
    assert [outcome.error for outcome in outcomes] == [None, "tool_error", None]
    assert [outcome.content for outcome in outcomes] == ["echo a", "bad row", "echo b"]


def test_calls_that_a_bad_one_failed_are_tried_again_side_by_side() -> None:
    meeting = threading.Barrier(32)

    class Slow(BatchTool):
        def execute_batch(self, batch: Sequence[Mapping[str, Any]]) -> list[str]:
            if len(batch) > 1:
                raise ToolError("one is bad")
            meeting.wait(timeout=20)
            return ["ok"]

    outcomes = Slow(timeout=30.0).run([ToolCall("echo", {"text": str(position)}) for position in range(32)])
    assert [outcome.content for outcome in outcomes] == ["ok"] * 32


def test_failed_outcomes_are_taken_as_given_and_nothing_is_executed_twice() -> None:
    class Refusing(BatchTool):
        def execute_batch(self, batch: Sequence[Mapping[str, Any]]) -> list[Any]:
            self.batches.append(len(batch))
            return [ToolOutcome("no", ok=False, error="tool_error")] * len(batch)

    tool = Refusing(deterministic=False)
    outcomes = tool.run([ToolCall("echo", {"text": text}) for text in "abc"])
    assert [outcome.content for outcome in outcomes] == ["no"] * 3
    assert tool.batches == [3]


@pytest.mark.parametrize("wrong", [[], ["a"], ["a"] * 3, None, 5])
@pytest.mark.parametrize("timeout", [None, 5.0])
def test_a_batch_of_the_wrong_length_is_the_programmers_mistake(wrong: Any, timeout: float | None) -> None:
    class Lossy(BatchTool):
        def execute_batch(self, batch: Sequence[Mapping[str, Any]]) -> Any:
            return wrong

    tool = Lossy(timeout=timeout)
    with pytest.raises(ConfigurationError, match="'echo'"):
        tool.run([ToolCall("echo", {"text": text}) for text in "ab"])


def test_a_dead_backend_fails_the_batch_once() -> None:
    class Dead(BatchTool):
        def execute_batch(self, batch: Sequence[Mapping[str, Any]]) -> list[str]:
            self.batches.append(len(batch))
            raise RetrievalError("connection refused")

    tool = Dead()
    outcomes = tool.run([ToolCall("echo", {"text": text}) for text in "abc"])
    assert [outcome.error for outcome in outcomes] == ["unavailable"] * 3
    assert tool.batches == [3]


# --- many environments -----------------------------------------------------------------------------------------------


def test_equal_calls_of_a_deterministic_tool_are_executed_once() -> None:
    tool = EchoTool()
    texts = ["a", "b", "a", "a", "c", "b"]
    outcomes = execute_calls([PendingCall(tool, ToolCall("echo", {"text": text})) for text in texts])
    assert sorted(tool.executed) == ["a", "b", "c"]
    assert [outcome.content for outcome in outcomes] == [f"echo {text}" for text in texts]


def test_equal_calls_of_a_tool_with_side_effects_are_all_executed() -> None:
    tool = EchoTool(deterministic=False)
    execute_calls([PendingCall(tool, ToolCall("echo", {"text": "a"}))] * 4)
    assert tool.executed == ["a"] * 4


def test_a_tool_runs_for_each_call_unless_it_says_that_it_is_deterministic() -> None:
    """An order, a payment, a die: merging calls must be asked for."""

    class Orders(Tool):
        total = 0

        def execute(self, arguments: Mapping[str, Any]) -> str:
            self.total += 2
            return str(self.total)

    tool = Orders("order", "Orders two.", OBJECT, timeout=None)
    outcomes = execute_calls([PendingCall(tool, ToolCall("order", {}))] * 3)
    assert [outcome.content for outcome in outcomes] == ["2", "4", "6"]


@pytest.mark.parametrize(
    ("first", "second"),
    [(1, True), (1, 1.0), ("1", 1), (None, "null"), ([], {}), (0, False)],
)
def test_calls_that_only_look_equal_are_both_executed(first: Any, second: Any) -> None:
    class Typed(EchoTool):
        def execute(self, arguments: Mapping[str, Any]) -> str:
            return f"{arguments['text']!r}"

    tool = Typed()
    outcomes = execute_calls([PendingCall(tool, ToolCall("echo", {"text": text})) for text in (first, second)])
    assert [outcome.content for outcome in outcomes] == [repr(first), repr(second)]


def test_the_order_of_arguments_makes_no_difference() -> None:
    assert ToolCall("a", {"x": 1, "y": 2}).key == ToolCall("a", {"y": 2, "x": 1}).key


def test_other_tools_do_not_share_executions_unless_their_batch_key_says_so() -> None:
    class Shared(EchoTool):
        batch_key = "shared"

    for kind, expected in ((EchoTool, 2), (Shared, 1)):
        tools = [kind(), kind()]
        execute_calls([PendingCall(tool, ToolCall("echo", {"text": "a"})) for tool in tools])
        assert sum(len(tool.executed) for tool in tools) == expected


def test_outcomes_keep_the_order_of_calls_across_tools() -> None:
    first, second = EchoTool(), BatchTool()
    pending = [PendingCall((first, second)[i % 2], ToolCall("echo", {"text": str(i % 5)})) for i in range(20)]
    assert [outcome.content for outcome in execute_calls(pending)] == [f"echo {i % 5}" for i in range(20)]
    assert second.batches == [5]


def test_no_calls_are_no_outcomes() -> None:
    assert execute_calls([]) == []


def test_a_tool_without_timeout_runs_in_the_callers_thread() -> None:
    class Where(EchoTool):
        def execute(self, arguments: Mapping[str, Any]) -> str:
            return threading.current_thread().name

    outcomes = execute_calls(calls_of(Where(timeout=None), 3))
    assert {outcome.content for outcome in outcomes} == {threading.current_thread().name}


def test_callers_wait_for_a_tool_without_timeout_in_their_own_thread_unless_it_says_otherwise() -> None:
    class Waiting(EchoTool):
        is_instant = False

    assert [EchoTool(timeout=None).is_instant, EchoTool(timeout=1.0).is_instant] == [True, False]
    assert not Waiting(timeout=None).is_instant


def test_a_tool_cannot_change_the_arguments_of_its_call() -> None:
    class Greedy(Tool):
        def execute(self, arguments: Mapping[str, Any]) -> str:
            arguments["items"].append("more")
            arguments["extra"] = 1  # type: ignore[index]
            return "ok"

    call = ToolCall("take", {"items": ["one"]})
    assert Greedy("take", "Takes.", OBJECT, timeout=None).run([call])[0].ok
    assert call == ToolCall("take", {"items": ["one"]})


def test_a_whole_outcome_is_not_copied() -> None:
    outcome = ToolOutcome("nothing there", data=(1,), latency=0.5)
    assert outcome_of(GivenTool(outcome)) is outcome
