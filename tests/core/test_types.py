from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agent_r1_gym.core.types import (
    Message,
    ParsedTurn,
    ParseError,
    Passage,
    Task,
    ToolCall,
    ToolOutcome,
    Transition,
    info_from_dict,
    info_to_dict,
    to_chat,
)
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.retrieval.base import Hit

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


def test_chat_dictionaries_have_arguments_as_objects_for_templates_and_as_text_for_endpoints() -> None:
    turn = Message("assistant", "", tool_calls=(ToolCall("search", {"query": "é", "filters": ["new"]}),))
    arguments = {
        text: to_chat([turn], text_arguments=text)[0]["tool_calls"][0]["function"]["arguments"]
        for text in (False, True)
    }
    assert arguments[False] == {"query": "é", "filters": ["new"]} == json.loads(arguments[True])
    assert to_chat([turn]) == [turn.to_dict()] == to_chat([turn], text_arguments=False)
    arguments[False]["filters"].append("old")
    assert turn.tool_calls[0].arguments["filters"] == ["new"]


def test_equal_values_stand_once_in_a_set() -> None:
    assert len({Message("user", "a"), Message("user", "a"), Message("user", "b")}) == 2
    assert len({ToolOutcome("a", latency=0.1), ToolOutcome("a", latency=0.2)}) == 1


def test_what_does_not_make_a_value_is_not_compared() -> None:
    first = Transition(TASK, 0, ParsedTurn(answer="a"), (), True, False)
    assert replace(first, earlier=(first,)) == first
    assert ToolOutcome("a", latency=0.1) == ToolOutcome("a", latency=0.2)
    assert ToolOutcome("a") != ToolOutcome("a", ok=False)


INFO: dict[str, Any] = {
    "messages": (Message("user", "q"), Message("assistant", "", tool_calls=(ToolCall("f", {"a": [1]}, "c1"),))),
    "new_messages": (Message("tool", "é", "f", "c1"),),
    "task_id": "t",
    "answer": None,
    "reward_terms": {"em": 0.5},
    "tool_calls": (ToolCall("f", {"a": [1]}, "c1"),),
    "tool_outcomes": (ToolOutcome("x", ok=False, error="timeout", latency=0.5),),
    "parse_errors": (ParseError("bad_json", "why"),),
}


def test_info_goes_to_json_and_back() -> None:
    again = info_from_dict(json.loads(json.dumps(info_to_dict(INFO))))
    assert again == INFO
    assert again["tool_outcomes"][0].latency == 0.5


def test_what_has_no_form_in_json_becomes_its_repr() -> None:
    hits = (Hit(Passage("p", "Title", "Text."), 1.5),)
    info = {"tool_outcomes": (ToolOutcome("x", data=hits), ToolOutcome("y", data={1: np.arange(2), "set": {3}}))}
    plain = json.loads(json.dumps(info_to_dict({**info, "tokens": np.int64(5), "context_rewritten": True})))
    assert plain["tool_outcomes"][0]["data"] == [
        [{"id": "p", "title": "Title", "text": "Text.", "sentence_ends": []}, 1.5]
    ]
    assert plain["tool_outcomes"][1]["data"] == {"1": [0, 1], "set": "{3}"}
    assert (plain["tokens"], plain["context_rewritten"]) == (5, True)
    assert info_from_dict(plain)["tool_outcomes"][0].content == "x"


def test_info_of_another_form_is_refused() -> None:
    with pytest.raises(TypeError, match="colour"):
        info_from_dict({"parse_errors": [{"code": "bad_json", "message": "why", "colour": "red"}]})


def test_a_call_does_not_follow_what_it_was_made_of() -> None:
    arguments = {"items": ["one"]}
    call = ToolCall("take", arguments)
    arguments["more"] = ["two"]
    assert dict(call.arguments) == {"items": ["one"]}
    assert pickle.loads(pickle.dumps(call)) == copy.deepcopy(call) == call


def test_a_task_of_wrong_types_is_refused_where_it_is_made() -> None:
    fields: Any
    for fields, message in [
        ({"id": 3}, "id of task 3 must be a string, got 3"),
        ({"prompt": None}, "prompt of task '0' must be a string, got None"),
        ({"answers": "yes"}, r"got 'yes': write \('yes',\)"),
        ({"answers": (7,)}, "an answer of task '0' must be a string, got 7"),
        ({"answers": None}, "must be a tuple of strings, got None"),
        ({"metadata": [1]}, "metadata of task '0' must be a mapping"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            Task(**{"id": "0", "prompt": "q", **fields})


def test_a_list_of_answers_becomes_a_tuple() -> None:
    assert Task("0", "q", ["a", "b"]).answers == ("a", "b")  # type: ignore[arg-type]
