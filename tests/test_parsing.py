from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from hypothesis import strategies as st

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.parsing import (
    HermesParser,
    OpenAIParser,
    Parser,
    ReToolParser,
    SearchR1Parser,
    make_parser,
)
from agent_r1_gym.parsing.strict_json import decode
from agent_r1_gym.types import PARSE_ERROR_CODES, ParsedTurn, ToolCall

PARSERS: tuple[Parser, ...] = (HermesParser(), SearchR1Parser(), OpenAIParser(), ReToolParser())
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


def test_search_r1_calls_the_tool_and_argument_it_is_told() -> None:
    turn = SearchR1Parser(tool="wiki", argument="q").parse("<search>a</search>")
    assert turn.calls == (ToolCall("wiki", {"q": "a"}),)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Let me compute.\n<code>\n```python\nx = 6\nx * 7\n```\n</code>", "x = 6\nx * 7"),
        ("<code>6 * 7</code>", "6 * 7"),
        ("<code>\nif 6:\n    print(7)\n</code>", "if 6:\n    print(7)"),
        ("<code>```\n6 * 7\n```</code>", "6 * 7"),
        ("<code>\n```py\nprint('```')\n```</code>", "print('```')"),
        ("<code>```python\n6 * 7</code>", "```python\n6 * 7"),
    ],
)
def test_retool_reads_code_with_or_without_a_fence(text: str, code: str) -> None:
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
    assert message.to_dict()["tool_calls"][0]["id"] == "c1"
    assert json.loads(message.to_dict()["tool_calls"][0]["function"]["arguments"]) == {"query": "a"}


def test_openai_takes_plain_text_as_content() -> None:
    parser = OpenAIParser()
    assert parser.parse("I know: <answer>42</answer>").answer == "42"
    assert parser.to_message("plain", parser.parse("plain")).content == "plain"


@all_parsers
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>Paris</answer>", "Paris"),
        ("So it is <answer>\n Paris \n</answer>.", "Paris"),
        ("<answer>two\nlines</answer>", "two\nlines"),
        ("<think>Paris? London?</think><answer>Paris</answer>", "Paris"),
        ("<think><answer>London</answer></think><answer>Paris</answer>", "Paris"),
        ("the template opened it</think><answer>Paris</answer>", "Paris"),
        ("<answer>London</answer> no, wait</think><answer>Paris</answer>", "Paris"),
        ("a</think>b<think>c</think><answer>Paris</answer>", "Paris"),
        ("<think>a<think>b</think><answer>Paris</answer>", "Paris"),
        ("<answer>東京 – Zürich 🙂</answer>", "東京 – Zürich 🙂"),
        ("<answer>1 < 2 & x > y</answer>", "1 < 2 & x > y"),
    ],
)
def test_answer_is_what_stands_between_the_tags(parser: Parser, text: str, expected: str) -> None:
    assert parser.parse(text) == ParsedTurn((), expected, ())


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


# --- mistakes --------------------------------------------------------------------------------------------------------

HERMES_MISTAKES = [
    ("", ["no_action"]),
    ("Just talk.", ["no_action"]),
    ("\ufeff", ["no_action"]),
    ("<Answer>Paris</Answer>", ["no_action"]),
    ("<think>thought</think>", ["no_action"]),
    ("<think>thought</think> talk", ["no_action"]),
    ("<think>never closed <answer>Paris</answer>", ["unclosed_tag"]),
    ("Well. <think>never closed <answer>Paris</answer>", ["unclosed_tag"]),
    ("<answer>Paris", ["unclosed_tag"]),
    ('<tool_call>{"name": "a"}', ["unclosed_tag"]),
    ('<tool_call>{"name": "a"} <answer>Paris</answer>', ["unclosed_tag"]),
    ("Paris</answer>", ["unopened_tag"]),
    ('{"name": "a"}</tool_call>', ["unopened_tag"]),
    ("</answer><answer>Paris</answer>", ["unopened_tag"]),
    ("<answer></answer>", ["empty_answer"]),
    ("<answer> \n </answer>", ["empty_answer"]),
    ("<answer>a</answer><answer>b</answer>", ["several_answers"]),
    ("<answer>a</answer><answer>a</answer>", ["several_answers"]),
    ('<tool_call>{"name": "a"}</tool_call><answer>Paris</answer>', ["call_and_answer"]),
    ('<answer>Paris</answer><tool_call>{"name": "a"}</tool_call>', ["call_and_answer"]),
    ('<answer><tool_call>{"name": "a"}</tool_call></answer>', ["call_and_answer"]),
    ("<answer>a <answer>b</answer>", ["unclosed_tag"]),
    (hermes_body(""), ["empty_call"]),
    (hermes_body(" \n"), ["empty_call"]),
    (hermes_body("{"), ["bad_json"]),
    (hermes_body("search(query='a')"), ["bad_json"]),
    (hermes_body('{"name": "a"} trailing'), ["bad_json"]),
    (hermes_body('{"name": "a",}'), ["bad_json"]),
    (hermes_body("{'name': 'a'}"), ["bad_json"]),
    (hermes_body('\ufeff{"name": "a"}'), ["bad_json"]),
    (hermes_body('{"name": "a", "arguments": {"x": NaN}}'), ["bad_json"]),
    (hermes_body('{"name": "a", "arguments": {"x": -Infinity}}'), ["bad_json"]),
    (hermes_body('{"name": "a", "arguments": {"x": 1e999}}'), ["bad_json"]),
    (hermes_body('{"name": "a", "arguments": {"x": ' + "9" * 5_000 + "}}"), ["bad_json"]),
    (hermes_body('{"name": "a", "name": "b"}'), ["bad_json"]),
    (hermes_body('{"name": "a", "arguments": {"x": 1, "x": 2}}'), ["bad_json"]),
    (hermes_body("[" * 5_000), ["bad_json"]),
    (hermes_body('{"name": "a", "arguments": {"x": ' + "[" * 5_000 + "]" * 5_000 + "}}"), ["bad_json"]),
    (hermes_body("```json\n{}\n```"), ["bad_json"]),
    (hermes_body("5"), ["not_an_object"]),
    (hermes_body("null"), ["not_an_object"]),
    (hermes_body('[{"name": "a"}]'), ["not_an_object"]),
    (hermes_body('"search"'), ["not_an_object"]),
    (hermes_body('{"name": "a", "arguments": [1]}'), ["not_an_object"]),
    (hermes_body('{"name": "a", "arguments": null}'), ["not_an_object"]),
    (hermes_body("{}"), ["missing_name"]),
    (hermes_body('{"name": ""}'), ["missing_name"]),
    (hermes_body('{"name": 5}'), ["missing_name"]),
    (hermes_body('{"function": "a"}'), ["missing_name"]),
]
SEARCH_R1_MISTAKES = [
    ("talk", ["no_action"]),
    ("<search>", ["unclosed_tag"]),
    ("</search>", ["unopened_tag"]),
    ("<search> </search>", ["empty_call"]),
    ("<search>a</search><answer>b</answer>", ["call_and_answer"]),
    ("<think>open <search>a</search>", ["unclosed_tag"]),
    ("<answer>a</answer><answer>b</answer>", ["several_answers"]),
]
RETOOL_MISTAKES = [
    ("talk", ["no_action"]),
    ("<code>1", ["unclosed_tag"]),
    ("</code>", ["unopened_tag"]),
    ("<code> \n</code>", ["empty_call"]),
    ("<code>```python\n\n```</code>", ["empty_call"]),
    ("<code>1</code><answer>b</answer>", ["call_and_answer"]),
    ("<answer>\\boxed{1}<code>1</code></answer>", ["call_and_answer"]),
]
OPENAI_MISTAKES = [
    ("talk", ["no_action"]),
    ("{}", ["no_action"]),
    ("{", ["bad_json"]),
    ('{"content": "<answer>a"}', ["unclosed_tag"]),
    ('{"content": "<think>open <answer>a</answer>"}', ["unclosed_tag"]),
    ('{"content": "<answer></answer>"}', ["empty_answer"]),
    ('{"content": ["<answer>a</answer>"]}', ["not_an_object"]),
    ('{"tool_calls": {}}', ["not_an_object"]),
    ('{"tool_calls": [5]}', ["not_an_object"]),
    ('{"tool_calls": [{"function": "a"}]}', ["not_an_object"]),
    (openai_calls(function(None, {})), ["missing_name"]),
    (openai_calls(function("a", "{")), ["bad_json"]),
    (openai_calls(function("a", "5")), ["not_an_object"]),
    (openai_calls(function("a", 5)), ["not_an_object"]),
    (json.dumps({"content": "<answer>a</answer>", "tool_calls": [function("a", {})]}), ["call_and_answer"]),
    ('{"content": "\ud800"}', ["no_action"]),
]


MISTAKES = (
    (HERMES_MISTAKES, PARSERS[0]),
    (SEARCH_R1_MISTAKES, PARSERS[1]),
    (OPENAI_MISTAKES, PARSERS[2]),
    (RETOOL_MISTAKES, PARSERS[3]),
)


@pytest.mark.parametrize(
    ("parser", "text", "expected"), [(parser, *case) for cases, parser in MISTAKES for case in cases]
)
def test_mistakes_are_named(parser: Parser, text: str, expected: list[str]) -> None:
    turn = parser.parse(text)
    assert codes(turn) == expected
    assert turn.answer is None
    assert turn.calls == ()


def test_every_code_but_the_environments_own_is_covered_above() -> None:
    seen = {code for _, expected in HERMES_MISTAKES + SEARCH_R1_MISTAKES + OPENAI_MISTAKES for code in expected}
    assert seen == set(PARSE_ERROR_CODES) - {"too_many_calls"}


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        (hermes_body('{"name": "a", "arguments": {"x": oops}}'), "near"),
        (hermes_body('{"name": "a", "arguments": {"x": oops}}'), "oops"),
        (hermes_body("[]"), "an array"),
        (hermes_body("true"), "a boolean"),
        (hermes_body('{"name": "a", "arguments": [1]}'), '"arguments"'),
        ("<answer>x", "</answer>"),
        ("<think>x", "</think>"),
        ("<answer>a</answer>" * 3, "got 3"),
    ],
)
def test_messages_say_what_came(text: str, phrase: str) -> None:
    assert phrase in HermesParser().parse(text).errors[0].message


@pytest.mark.parametrize("text", ["", " \n", '\n {"a": 1} \t}', "\u00a0{}", ' {"a": 1,} ', " [1]  2", "\n{"])
def test_places_of_errors_are_those_of_the_standard_decoder(text: str) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(text)
    assert f"{caught.value.msg} at character {caught.value.pos}," in decode(text).message


def test_white_space_around_json_is_free() -> None:
    assert decode(' \t\r\n{"a": 1}\n ') == {"a": 1}


def test_quotes_of_bad_json_stay_short() -> None:
    message = HermesParser().parse(hermes_body("x" * 100_000)).errors[0].message
    assert len(message) < 300


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


def test_a_structured_turn_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    monkeypatch.setattr("agent_r1_gym.parsing.decode", lambda text: decoded.append(text) or decode(text))
    parser, text = OpenAIParser(), '{"content": "So.", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}'
    message = parser.to_message(text, parser.parse(text))
    assert (message.content, message.tool_calls) == ("So.", (ToolCall("f", {}),))
    assert decoded == [text]


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', '{"a": {"b": {"c": 1, "c": 2}}}', '{"a": {}, "a": {}}']
)
def test_a_key_that_stands_twice_is_refused_at_every_depth(text: str) -> None:
    assert decode(text).code == "bad_json"


_MEGABYTE = 1_000_000
ADVERSARIES: dict[str, Callable[[int], str]] = {
    fragment: lambda n, fragment=fragment: fragment * (n // len(fragment))
    for fragment in (
        "<think>",
        "</think>",
        "<think></think>",
        "</think><think>",
        "<answer>",
        "</answer>",
        "<answer></answer>",
        "<answer>a</answer>",
        "<tool_call>",
        "</tool_call>",
        "<tool_call>{</tool_call>",
        '<tool_call>{"name":"a"}</tool_call>',
        "<search>",
        "<search>a</search>",
        "<search><answer>",
        "<code>",
        "<code>```</code>",
        "<code>\n",
        "<",
        "</",
        "<t",
        "{",
        "[",
        '{"a":',
        '"',
        "\\",
        " ",
        "\n",
        "\x00",
        "\ud800",
        "é",
    )
}
ADVERSARIES |= {
    "long string": lambda n: hermes_body('{"name": "' + "a" * n),
    "escapes": lambda n: hermes_body('{"name": "' + "\\ud800" * (n // 6) + '"}'),
    "digits": lambda n: hermes_body('{"name": "a", "arguments": {"x": ' + "9" * n + "}}"),
    "decimals": lambda n: hermes_body('{"name": "a", "arguments": {"x": 0.' + "9" * n + "}}"),
    "brackets": lambda n: hermes_body("[" * n),
    "brackets, wide": lambda n: hermes_body('{"name": "é", "arguments": {"x": [' + "[]," * (n // 3) + "0]}}"),
    "openai entries": lambda n: '{"tool_calls": [' + "5," * (n // 2) + "5]}",
    "openai content": lambda n: json.dumps({"content": "<answer>" * (n // 8)}),
}


@pytest.mark.slow
@all_parsers
@pytest.mark.parametrize("adversary", ADVERSARIES.values(), ids=ADVERSARIES.keys())
def test_a_megabyte_of_anything_is_parsed_in_bounded_time(parser: Parser, adversary: Callable[[int], str]) -> None:
    text = adversary(_MEGABYTE)
    start = time.process_time()
    turn = parser.parse(text)
    parser.to_message(text, turn)
    assert time.process_time() - start < 5.0


# --- choosing a parser -----------------------------------------------------------------------------------------------


WIKI = SearchR1Parser(tool="wiki")


def test_parsers_are_made_by_name_or_taken_as_they_are() -> None:
    assert isinstance(make_parser("hermes"), HermesParser)
    assert isinstance(make_parser("search-r1"), SearchR1Parser)
    assert isinstance(make_parser("openai"), OpenAIParser)
    own = SearchR1Parser(tool="wiki")
    assert make_parser(own) is own
    assert isinstance(make_parser("agent_r1_gym.parsing:SearchR1Parser"), SearchR1Parser)
    assert make_parser(f"{__name__}:WIKI") is WIKI


@pytest.mark.parametrize("wrong", ["hermess", "", "no_such_module:parser", "math:pi", None, 5, [], HermesParser])
def test_unknown_parsers_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="parser"):
        make_parser(wrong)  # type: ignore[arg-type]


def test_near_names_are_suggested() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'hermes'"):
        make_parser("hermess")
