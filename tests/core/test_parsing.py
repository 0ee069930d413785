from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1_gym.core.parsing import (
    THOUGHT_MARKS,
    HermesParser,
    NativeParser,
    OpenAIParser,
    Parser,
    ReToolParser,
    SearchR1Parser,
    make_parser,
)
from agent_r1_gym.core.parsing.base import SingleToolParser, decode
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import ParsedTurn, Task, ToolCall
from agent_r1_gym.errors import ConfigurationError, near_names

PARSERS: tuple[Parser, ...] = (HermesParser(), SearchR1Parser(), OpenAIParser(), ReToolParser(), NativeParser())
all_parsers = pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)


def codes(turn: ParsedTurn) -> list[str]:
    return [error.code for error in turn.errors]


def hermes_body(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


def openai_calls(*entries: object) -> str:
    return json.dumps({"content": None, "tool_calls": list(entries)})


def function(name: object, arguments: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


# --- good turns ------------------------------------------------------------------------------------------------------


def test_hermes_reads_several_calls_in_order() -> None:
    text = (
        "First this.\n"
        '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>\nthen\n'
        '<tool_call>{"arguments": {"query": "b"}, "name": "lookup"}</tool_call>'
    )
    turn = HermesParser().parse(text)
    assert turn == ParsedTurn((ToolCall("search", {"query": "a"}), ToolCall("lookup", {"query": "b"})))


def test_hermes_takes_a_call_without_arguments_as_a_call_with_none() -> None:
    assert HermesParser().parse(hermes_body('{"name": "now"}')).calls == (ToolCall("now", {}),)


def test_search_r1_reads_queries_as_calls() -> None:
    turn = SearchR1Parser().parse("Hm.\n<search> who wrote Faust? </search> and <search>b</search>")
    assert turn.calls == (ToolCall("search", {"query": "who wrote Faust?"}), ToolCall("search", {"query": "b"}))
    assert turn.errors == ()


def test_search_r1_calls_the_configured_tool_and_argument() -> None:
    turn = SearchR1Parser(tool="wiki", argument="q").parse("<search>a</search>")
    assert turn.calls == (ToolCall("wiki", {"q": "a"}),)


def test_retool_reads_code_with_or_without_a_fence() -> None:
    for text, code in [
        ("Let me compute.\n<code>\n```python\nx = 6\nx * 7\n```\n</code>", "x = 6\nx * 7"),
        ("<code>6 * 7</code>", "6 * 7"),
        ("<code>\nif 6:\n    print(7)\n</code>", "if 6:\n    print(7)"),
        ("<code>```\n6 * 7\n```</code>", "6 * 7"),
        ("<code>\n```py\nprint('```')\n```</code>", "print('```')"),
        ("<code>```python\n6 * 7</code>", "```python\n6 * 7"),
    ]:
        assert ReToolParser().parse(text) == ParsedTurn((ToolCall("python", {"code": code}),))


def test_retool_runs_code_between_thoughts_and_none_within_them() -> None:
    turn = ReToolParser().parse("<think>a <code>1</code></think><code>2</code><think>b</think>\n<code>3</code>")
    assert [call.arguments["code"] for call in turn.calls] == ["2", "3"]


def test_retool_refuses_what_it_cannot_write() -> None:
    for call in (
        ToolCall("search", {"query": "a"}),
        ToolCall("python", {"code": "print('</code>')"}),
        ToolCall("python", {"code": " "}),
        ToolCall("python", {"code": 5}),
    ):
        with pytest.raises(ConfigurationError, match="retool format"):
            ReToolParser().format_call(call)


def test_openai_reads_arguments_as_object_or_as_json_text() -> None:
    text = openai_calls({"id": "c1", **function("search", {"query": "a"})}, function("search", '{"query": "b"}'))
    turn = OpenAIParser().parse(text)
    assert turn.calls == (ToolCall("search", {"query": "a"}, "c1"), ToolCall("search", {"query": "b"}))
    assert turn.errors == ()


def test_openai_message_carries_its_calls_outside_the_text() -> None:
    parser = OpenAIParser()
    text = json.dumps({"content": "Let me see.", "tool_calls": [{"id": "c1", **function("search", '{"query": "a"}')}]})
    message = parser.to_message(text, parser.parse(text))
    assert (message.content, message.tool_calls) == ("Let me see.", (ToolCall("search", {"query": "a"}, "c1"),))
    (sent,) = message.to_dict(text_arguments=True)["tool_calls"]
    assert (sent["id"], json.loads(sent["function"]["arguments"])) == ("c1", {"query": "a"})


def test_openai_ignores_what_servers_add_to_a_call() -> None:
    """Such as Gemini's thought signatures, through Google's endpoint and through LiteLLM."""
    signed = {"google": {"thought_signature": "c2ln"}}
    for extra in ({"extra_content": signed}, {"provider_specific_fields": signed}, {"index": 0, "custom": [1]}):
        turn = OpenAIParser().parse(openai_calls({"id": "c1", **function("search", {"query": "a"}), **extra}))
        assert (turn.calls, turn.errors) == ((ToolCall("search", {"query": "a"}, "c1"),), ())
    inside = {"function": {"name": "search", "arguments": {"query": "a"}, "provider_specific_fields": signed}}
    assert OpenAIParser().parse(openai_calls(inside)).calls == (ToolCall("search", {"query": "a"}),)
    for key in ("arguments", "parameters", "args", "input"):
        turn = OpenAIParser().parse(openai_calls({"function": {"name": "search"}, key: {"query": "a"}}))
        assert (turn.calls, codes(turn), turn.errors[0].quote) == ((), ["unknown_keys"], key)


def test_openai_takes_json_without_the_keys_of_a_message_as_content() -> None:
    parser = OpenAIParser()
    for text in ('{"city": "Paris"}', ' {"city": "Paris"}\n', "{}"):
        turn = parser.parse(text)
        assert (codes(turn), turn.content) == (["no_action"], None)
        assert parser.to_message(text, turn).content == text
    assert parser.parse('{"content": "<answer>5</answer>"}').answer == "5"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["c1", "c1"], ["c1_0", "c1_1"]),
        (["", ""], ["call_0", "call_1"]),
        (["call_1", None], ["call_1_0", "call_1_1"]),
        (["a", "b"], ["a", "b"]),
    ],
)
def test_openai_results_name_their_call_where_a_server_repeats_ids(
    given: list[str | None], expected: list[str]
) -> None:
    parser = OpenAIParser()
    text = openai_calls(*({"id": name, **function("search", {"query": "a"})} for name in given))
    sent = parser.to_message(text, parser.parse(text)).to_dict()["tool_calls"]
    assert [call["id"] for call in sent] == expected


def test_openai_takes_plain_text_as_content() -> None:
    parser = OpenAIParser()
    assert parser.parse("I know: <answer>42</answer>").answer == "42"
    assert parser.to_message("plain", parser.parse("plain")).content == "plain"


@all_parsers
def test_an_answer_is_read_back_without_white_space_around_it(parser: Parser) -> None:
    for answer in ("Paris", "\n Paris \n", "two\nlines", "東京 – Zürich 🙂", "1 < 2 & x > y", '"a"', "{}", "\\"):
        assert parser.parse(parser.format_answer(answer)) == ParsedTurn((), answer.strip(), ())


@all_parsers
def test_an_answer_inside_a_thought_is_none(parser: Parser) -> None:
    paris, london = map(parser.format_answer, ("Paris", "London"))
    for text in (
        f"<think>Paris? London?</think>{paris}",
        f"<think>{london}</think>{paris}",
        f"the template opened it</think>{paris}",
        f"{london} no, wait</think>{paris}",
        f"a</think>b<think>c</think>{paris}",
        f"<think>a<think>b</think>{paris}",
        parser.format_thought(london, paris),
    ):
        assert parser.parse(text) == ParsedTurn((), "Paris", ())


class Brackets(Parser):
    """A format of one's own, without tags."""

    name = "brackets"

    def parse(self, text: str) -> ParsedTurn:
        answers = [text[1:-1].strip()] if text.startswith("[") else []
        return self.combine([], answers, [], text)

    def instructions(self, tools: Any) -> str:
        return "Answer in brackets."

    def format_call(self, call: ToolCall) -> str:
        raise NotImplementedError

    def format_answer(self, answer: str) -> str:
        return f"[{answer}]"


def test_an_empty_answer_is_answered_with_the_format_s_own() -> None:
    for parser in (*PARSERS, Brackets()):
        (error,) = parser.parse(parser.format_answer(" ")).errors
        assert error.code == "empty_answer"
        assert error.message == f"The answer is empty. Write: {parser.format_answer('your answer')}"


def test_calls_inside_a_thought_are_not_calls() -> None:
    turn = HermesParser().parse("<think>" + hermes_body('{"name": "a"}') + "</think>" + hermes_body('{"name": "b"}'))
    assert [call.name for call in turn.calls] == ["b"]


def test_an_answer_inside_a_call_is_no_answer() -> None:
    body = '{"name": "search", "arguments": {"query": "<answer>Paris</answer>"}}'
    turn = HermesParser().parse(hermes_body(body))
    assert turn.answer is None
    assert turn.calls == (ToolCall("search", {"query": "<answer>Paris</answer>"}),)


def test_a_good_call_survives_a_bad_neighbour() -> None:
    turn = HermesParser().parse(hermes_body('{"name": "a"}') + hermes_body("{") + hermes_body('{"name": "b"}'))
    assert [call.name for call in turn.calls] == ["a", "b"]
    assert codes(turn) == ["bad_json"]


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("letter", ["e", "é"])
def test_every_depth_of_nesting_is_read_or_refused(opening: str, letter: str) -> None:
    closing = "]" if opening == "[" else "}"
    for depth in [*range(1, 40), *range(40, 1_100, 7)]:
        value = opening * depth + ("" if opening == "[" else "1") + closing * depth
        turn = HermesParser().parse(hermes_body(f'{{"name": "{letter}", "arguments": {{"x": {value}}}}}'))
        assert bool(turn.calls) != bool(turn.errors)
        for call in turn.calls:
            assert json.loads(json.dumps(dict(call.arguments))) == call.arguments
            assert call.key


def test_lone_surrogates_and_nul_in_escapes_become_encodable() -> None:
    turn = HermesParser().parse(
        hermes_body(r'{"name": "a\ud800", "arguments": {"k\udfff": ["v\udc00", {"n": "\u0000"}]}}')
    )
    assert turn.calls == (ToolCall("a\ufffd", {"k\ufffd": ["v\ufffd", {"n": "\ufffd"}]}),)


# --- formatting ------------------------------------------------------------------------------------------------------

readable = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
fragments = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<answer>",
        "</answer>",
        "<think>",
        "</think>",
        "<search>",
        "</search>",
        "<code>",
        "</code>",
        "```",
        "{",
        "\\",
        '"',
    ]
)
texts = st.lists(st.one_of(st.text(readable, max_size=20), fragments), max_size=6).map("".join)
numbers = st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False)


values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def test_marks_of_any_family_in_the_texts_of_a_call_hide_nothing() -> None:
    parser = HermesParser()
    for mark in [*itertools.chain(*THOUGHT_MARKS), "<tool_call>", "</tool_call>", "</THINK>"]:
        call = ToolCall("note", {"text": f"{mark} is a mark", mark: [mark]})
        assert parser.parse(parser.format_call(call)).calls == (call,)


@pytest.mark.slow
@all_parsers
def test_several_calls_of_a_turn_are_read_back(parser: Parser) -> None:
    tool, argument = {SearchR1Parser: ("search", "query"), ReToolParser: ("python", "code")}.get(
        type(parser), ("f", "x")
    )
    calls = tuple(ToolCall(tool, {argument: text}) for text in ("one", "two", "one"))
    read = parser.parse(parser.format_turn(calls))
    assert [(call.name, dict(call.arguments)) for call in read.calls] == [(c.name, dict(c.arguments)) for c in calls]
    assert not read.errors


@all_parsers
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_call_is_read_back_or_refused(parser: Parser, data: st.DataObject) -> None:
    """A format of one tool refuses what it cannot write; one of any tool writes everything."""
    one_tool = isinstance(parser, SingleToolParser)
    if one_tool:
        example = {SearchR1Parser: ("search", "query"), ReToolParser: ("python", "code")}[type(parser)]
        call = ToolCall(example[0], {example[1]: data.draw(texts)})
    else:
        call = ToolCall(data.draw(st.text(readable, min_size=1)), data.draw(st.dictionaries(texts, values, max_size=3)))
    try:
        written = parser.format_call(call)
    except ConfigurationError:
        assert one_tool
        return
    turn = parser.parse(written)
    assert (turn.answer, turn.errors) == (None, ())
    (read,) = turn.calls
    stripped = {
        name: value.strip() if isinstance(parser, SearchR1Parser) else value for name, value in call.arguments.items()
    }
    assert (read.name, read.arguments) == (call.name, stripped)


def test_a_structured_turn_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    monkeypatch.setattr("agent_r1_gym.core.parsing.parsers.decode", lambda text: decoded.append(text) or decode(text))
    parser, text = OpenAIParser(), '{"content": "So.", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}'
    message = parser.to_message(text, parser.parse(text))
    assert (message.content, message.tool_calls) == ("So.", (ToolCall("f", {}),))
    assert decoded == [text]


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', '{"a": {"b": {"c": 1, "c": 2}}}', '{"a": {}, "a": {}}']
)
def test_a_key_that_stands_twice_is_refused_at_every_depth(text: str) -> None:
    assert decode(text).code == "bad_json"


# --- choosing a parser -----------------------------------------------------------------------------------------------


WIKI = SearchR1Parser(tool="wiki")


def test_parsers_are_made_by_name_or_taken_as_they_are() -> None:
    assert isinstance(make_parser("hermes"), HermesParser)
    assert isinstance(make_parser("search-r1"), SearchR1Parser)
    assert isinstance(make_parser("openai"), OpenAIParser)
    own = SearchR1Parser(tool="wiki")
    assert make_parser(own) is own
    assert isinstance(make_parser("agent_r1_gym.core.parsing:SearchR1Parser"), SearchR1Parser)
    assert make_parser(f"{__name__}:WIKI") is WIKI


def test_unknown_parsers_are_refused() -> None:
    wrong: Any
    for wrong in ["hermess", "", "no_such_module:parser", "math:pi", None, 5, [], HermesParser]:
        with pytest.raises(ConfigurationError, match="parser"):
            make_parser(wrong)


def test_near_names_are_suggested() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'hermes'"):
        make_parser("hermess")
    for name in ("functions.search", "mcp__wiki__search", "tools:search", "search()"):
        assert near_names(name, ["multiply", "search"]) == "Did you mean 'search'? "
    assert near_names("functions.look", ["multiply", "search"]) == ""


# --- custom parsers that break the contract ---------------------------------------------------------------------------

TASKS = [Task("0", "Say 5.", ("5",))]


@pytest.mark.parametrize("returned", [None, "5", ParsedTurn(answer=5)])
def test_what_is_no_parsed_turn_is_refused_by_name(returned: Any) -> None:
    class Odd(HermesParser):
        def parse(self, text: str) -> Any:
            return returned

    env = ToolEnv(tasks=TASKS, parser=Odd())
    env.reset(seed=0)
    with pytest.raises(ConfigurationError, match=r"parser returned .* must return a ParsedTurn"):
        env.step("5")


def test_a_turn_in_which_a_parser_finds_nothing_is_a_mistake_or_a_plain_answer() -> None:
    class Silent(HermesParser):
        def parse(self, text: str) -> ParsedTurn:
            return super().parse(text) if "<" in text else ParsedTurn(content=text)

    env = ToolEnv(tasks=TASKS, parser=Silent())
    env.reset(seed=0)
    info = env.step("5")[4]
    assert [error.code for error in info["parse_errors"]] == ["no_action"]
    assert info["new_messages"][-1].content.endswith("To answer, write:\n<answer>your answer</answer>")
    env = ToolEnv(tasks=TASKS, parser=Silent(), plain_turn="answer")
    env.reset(seed=0)
    assert env.step("5")[1:3] == (1.0, True)


def test_instructions_are_a_text() -> None:
    class Mute(HermesParser):
        def instructions(self, tools: Any) -> Any:
            return None

    with pytest.raises(ConfigurationError, match="returned None; it must return a string"):
        ToolEnv(tasks=TASKS, parser=Mute())


@all_parsers
def test_calls_are_written_in_their_own_script(parser: Parser) -> None:
    """A model that learns from them should not learn escapes."""
    argument = {"search-r1": "query", "retool": "code"}.get(parser.name, "query")
    name = {"retool": "python"}.get(parser.name, "search")
    turn = parser.format_call(ToolCall(name, {argument: "Zürich 東京"}))
    written = (
        turn if parser.name not in ("openai", "native") else json.loads(turn)["tool_calls"][0]["function"]["arguments"]
    )
    assert "Zürich 東京" in written
    assert "\\u" not in turn
