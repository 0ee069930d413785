"""Calls of many tools and environments: side by side, in batches, given up when they hang."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agent_r1_gym.core.tool import PendingCall, Tool, execute_calls, has_instant_call_that_waits
from agent_r1_gym.core.types import ToolCall, ToolOutcome
from agent_r1_gym.errors import (
    ConfigurationError,
    RetrievalError,
    ToolError,
)
from agent_r1_gym.support import concurrency
from agent_r1_gym.support.concurrency import FIRST_COOLDOWN, MAX_HUNG_CALLS
from tests.kit.helpers import BatchTool, CounterTool, EchoTool, MeetingTool, SleepTool, outcome_of
from tests.kit.samples import samples


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
        assert threading.active_count() - before <= MAX_HUNG_CALLS + 8
        assert "32 calls hang" in outcomes[0].content
        assert 0 < outcomes[0].retry_after <= FIRST_COOLDOWN
        assert outcome_of(SleepTool(0.0, timeout=5.0), text="x").ok
    finally:
        release.set()


def test_a_tool_without_a_thread_to_run_in_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(concurrency, "_idle", deque(maxlen=0))  # where threads of earlier tests find no place either
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


@pytest.mark.slow
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


def test_a_batch_of_the_wrong_length_is_the_programmers_mistake() -> None:
    class Lossy(BatchTool):
        returned: Any = None

        def execute_batch(self, batch: Sequence[Mapping[str, Any]]) -> Any:
            return self.returned

    for wrong in [[], ["a"], ["a"] * 3, None, 5]:
        for timeout in [None, 5.0]:
            tool = Lossy(timeout=timeout)
            tool.returned = wrong
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

    tool = Orders("order", "Orders two.", {"type": "object"}, timeout=None)
    outcomes = execute_calls([PendingCall(tool, ToolCall("order", {}))] * 3)
    assert [outcome.content for outcome in outcomes] == ["2", "4", "6"]


def test_calls_that_only_look_equal_are_both_executed() -> None:
    for first, second in [(1, True), (1, 1.0), ("1", 1), (None, "null"), ([], {}), (0, False)]:

        class Typed(EchoTool):
            def execute(self, arguments: Mapping[str, Any]) -> str:
                return f"{arguments['text']!r}"

        tool = Typed()
        outcomes = execute_calls([PendingCall(tool, ToolCall("echo", {"text": text})) for text in (first, second)])
        assert [outcome.content for outcome in outcomes] == [repr(first), repr(second)]


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


class Stock(Tool):
    """Reports or changes a number that several tools share."""

    def __init__(self, name: str, shared: list[int], change: int = 0, **limits: Any) -> None:
        super().__init__(name, "Stock.", {"type": "object", "properties": {}}, **{"timeout": None, **limits})
        self._shared, self._change = shared, change

    def execute(self, arguments: Mapping[str, Any]) -> str:
        self._shared[0] += self._change
        return str(self._shared[0])


@samples("names", ["stock order stock", "order stock stock order stock", "order order stock", "stock stock order"])
def test_calls_of_a_turn_see_what_the_calls_before_them_changed(names: str) -> None:
    shared = [0]
    tools = {"stock": Stock("stock", shared), "order": Stock("order", shared, 1)}
    outcomes = execute_calls([PendingCall(tools[name], ToolCall(name, {})) for name in names.split()])
    orders = [name == "order" for name in names.split()]
    assert [outcome.content for outcome in outcomes] == [str(sum(orders[: i + 1])) for i in range(len(orders))]


def test_episodes_do_not_wait_for_the_order_of_others() -> None:
    """Two tools of three episodes are two batches, however the calls of the episodes follow each other."""
    first, second = BatchTool(deterministic=False), BatchTool(deterministic=False)
    call = ToolCall(first.name, {"text": "x"})
    calls = [PendingCall(tool, call, episode) for episode in (1, 2, 3) for tool in (first, second)]
    execute_calls(calls)
    assert first.batches == second.batches == [3]
    execute_calls([each._replace(episode=1) for each in calls])
    assert first.batches == second.batches == [3, 1, 1, 1]


def test_tools_with_state_do_not_run_side_by_side() -> None:
    running: list[str] = []

    class Stateful(Stock):
        def execute(self, arguments: Mapping[str, Any]) -> str:
            running.append(self.name)
            time.sleep(0.02)
            running.append(self.name)
            return ""

        def get_state(self) -> Any:
            return 0

        def set_state(self, state: Any) -> None:
            pass

    one, two = (Stateful(name, [0], timeout=5.0) for name in ("one", "two"))
    execute_calls([PendingCall(tool, ToolCall(tool.name, {})) for tool in (one, two)])
    assert running == ["one", "one", "two", "two"]


@samples(
    "names",
    [
        ("keep look", False),
        ("slow keep", True),
        ("keep slow keep", True),
        ("search keep look keep", False),  # a deterministic call changes nothing
        ("slow look", False),
        ("look slow look", True),
        ("slow search", False),
    ],
)
def test_instant_calls_wait_where_the_order_of_a_turn_can_matter(names: tuple[str, bool]) -> None:
    class Kept(Stock):
        def get_state(self) -> Any:
            return 0

    tools = {
        "keep": Kept("keep", [0]),
        "look": Stock("look", [0]),
        "slow": Kept("slow", [0], timeout=5.0),
        "search": Stock("search", [0], timeout=5.0, deterministic=True),
    }
    calls, expected = names
    pending = [PendingCall(tools[name], ToolCall(name, {})) for name in calls.split()]
    assert has_instant_call_that_waits(pending) is expected
