from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest

from agent_r1_gym.types import Message, ParsedTurn, Passage, Task, ToolCall, ToolOutcome, Transition

TASK = Task("t", "q", ("a",))
VALUES = (
    ToolCall("search", {"query": "a"}, "c1"),
    Message("tool", "text", "search"),
    ToolOutcome("text", data=(1, 2), latency=0.5),
    ParsedTurn(answer="a"),
    Transition(TASK, 0, ParsedTurn(answer="a"), (), True, False),
    Passage("p", "Title", "Text.", (5,)),
)
every_value = pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)


@every_value
def test_a_value_survives_copies_and_pickles(value: object) -> None:
    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value)), replace(value)):  # type: ignore[type-var]
        assert again == value
        assert repr(again) == repr(value)


@every_value
def test_a_value_takes_no_further_attributes(value: object) -> None:
    assert not hasattr(value, "__dict__")
    with pytest.raises((AttributeError, TypeError)):  # TypeError in Python 3.11, where slots are
        value.extra = 1  # type: ignore[attr-defined]


def test_equal_values_stand_once_in_a_set() -> None:
    assert len({Message("user", "a"), Message("user", "a"), Message("user", "b")}) == 2
    assert len({ToolOutcome("a", latency=0.1), ToolOutcome("a", latency=0.2)}) == 1


def test_what_does_not_make_a_value_is_not_compared() -> None:
    first = Transition(TASK, 0, ParsedTurn(answer="a"), (), True, False)
    assert replace(first, earlier=(first,)) == first
    assert ToolOutcome("a", latency=0.1) == ToolOutcome("a", latency=0.2)
    assert ToolOutcome("a") != ToolOutcome("a", ok=False)
