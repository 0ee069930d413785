"""Turns that do not parse: each mistake named, in bounded time, whatever comes."""

import json
from collections.abc import Callable

import pytest

from agent_r1_gym.core.parsing import (
    HermesParser,
    Parser,
)
from agent_r1_gym.core.parsing.base import decode
from agent_r1_gym.core.types import PARSE_ERROR_CODES
from tests.core.test_parsing import PARSERS, all_parsers, codes, function, hermes_body, openai_calls
from tests.kit.cpu_time import cpu_below

HERMES_MISTAKES = [
    ("", ["no_action"]),
    ("Just talk.", ["no_action"]),
    ("\ufeff", ["no_action"]),
    ("<Answer>Paris</Answer>", ["other_format"]),
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
    (hermes_body('{"name": "a", "parameters": {"folder": "/old"}}'), ["unknown_keys"]),
    (hermes_body('{"name": "a", "args": {"folder": "/old"}}'), ["unknown_keys"]),
    (hermes_body('{"name": "a", "folder": "/old"}'), ["unknown_keys"]),
    (hermes_body('{"name": "a", "arguments": {}, "input": "/old"}'), ["unknown_keys"]),
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
    ("<answer>a <search>b</search></answer>", ["call_and_answer"]),
    ("<think>open <search>a</search>", ["unclosed_tag"]),
    ("<answer>a</answer><answer>b</answer>", ["several_answers"]),
]
RETOOL_MISTAKES = [
    ("talk", ["no_action"]),
    ("<code>1", ["unclosed_tag"]),
    ("</code>", ["unopened_tag"]),
    ("<code> \n</code>", ["empty_call"]),
    ("<code>```python\n\n```</code>", ["empty_call"]),
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
    (json.dumps({"content": "<answer>a</answer>", "tool_calls": [function("a", "{")]}), ["bad_json"]),
    ('{"content": "\ud800"}', ["no_action"]),
]
NATIVE_MISTAKES = [
    *OPENAI_MISTAKES,
    ('{"content": "x", "errors": [{"code": "malformed_call", "message": "no"}]}', ["malformed_call"]),
    (
        '{"content": "<answer>a</answer>", "errors": [{"code": "bad_json"}, {"code": "no_action"}]}',
        ["bad_json", "no_action"],
    ),
    ('{"errors": [{"code": "made_up"}, 5]}', ["malformed_call"]),
    ('{"errors": []}', ["malformed_call"]),
    ('{"errors": {}}', ["no_action"]),
]


MISTAKES = (
    (HERMES_MISTAKES, PARSERS[0]),
    (SEARCH_R1_MISTAKES, PARSERS[1]),
    (OPENAI_MISTAKES, PARSERS[2]),
    (RETOOL_MISTAKES, PARSERS[3]),
    (NATIVE_MISTAKES, PARSERS[4]),
)


def test_mistakes_are_named() -> None:
    for parser, text, expected in [(parser, *case) for cases, parser in MISTAKES for case in cases]:
        turn = parser.parse(text)
        assert codes(turn) == expected
        assert turn.answer is None
        assert turn.calls == ()


CALL = '{"name": "a"}'
CALL_AND_ANSWER = [
    (PARSERS[0], f"{hermes_body(CALL)}\n<answer>Paris</answer>"),
    (PARSERS[0], f"<answer>Paris</answer>\n{hermes_body(CALL)}"),
    (PARSERS[0], f"{hermes_body(CALL)}<answer>Paris</answer><answer>Rome</answer>"),
    (PARSERS[0], f"{hermes_body(CALL)}<answer></answer>"),
    (PARSERS[1], "<search>a</search>\n<information>b</information>\n<answer>Paris</answer>"),
    (PARSERS[1], "<answer>Paris</answer><search>a</search>"),
    (PARSERS[3], "<code>1</code>\n<interpreter>1</interpreter>\n<answer>1</answer>"),
    *(
        (parser, json.dumps({"content": "<answer>a</answer>", "tool_calls": [function("a", {})]}))
        for parser in (PARSERS[2], PARSERS[4])
    ),
]


def test_a_call_counts_and_the_answer_next_to_it_is_a_mistake() -> None:
    for parser, text in CALL_AND_ANSWER:
        turn = parser.parse(text)
        assert (len(turn.calls), turn.answer, codes(turn)) == (1, None, ["call_and_answer"])
        assert "The answer was ignored" in turn.errors[0].message
    turn = HermesParser().parse(f"{hermes_body(CALL)}{hermes_body('{')}<answer>Paris</answer>")
    assert (len(turn.calls), codes(turn)) == (1, ["bad_json", "call_and_answer"])


def test_an_answer_is_never_dropped_without_a_word() -> None:
    for parser, text in [
        (PARSERS[0], hermes_body("{") + "<answer>Paris</answer>"),
        (PARSERS[0], "</answer><answer>Paris</answer>"),
        (PARSERS[0], f"<tool_call>{CALL} <answer>Paris</answer>"),
        (PARSERS[0], "<think>thought <answer>Paris</answer>"),
        (PARSERS[1], "<search> </search><answer>Paris</answer>"),
        (PARSERS[2], json.dumps({"content": "<answer>a</answer>", "tool_calls": [function("a", "{")]})),
    ]:
        turn = parser.parse(text)
        assert turn.answer is None
        assert "ignored" in turn.errors[0].message, text


def test_a_turn_without_an_action_hears_what_it_has_instead() -> None:
    for parser, text, phrase, quote in [
        (PARSERS[0], f"<think>I look. {hermes_body(CALL)}</think>", "Write <tool_call> after the end", ""),
        (PARSERS[0], "<answer>Paris</answer></think>", "Write <answer> after the end", ""),
        (PARSERS[2], "<think><answer>Paris</answer></think>", "Write <answer> after the end", ""),
        (PARSERS[0], "<TOOL_CALL>{}</TOOL_CALL>", "exactly <tool_call> and <answer>", "<TOOL_CALL>"),
        (PARSERS[0], "< answer >Paris</ answer >", "exactly <tool_call> and <answer>", "< answer >"),
        (PARSERS[1], '<search query="a"/>', "exactly <search> and <answer>", '<search query="a"/>'),
        (PARSERS[0], '<answer type="city">Paris</answer>', "no opening <answer>", '<answer type="city">'),
        (PARSERS[0], CALL, "another format", '"name": "a"}'),
        (PARSERS[0], f"```json\n{CALL}\n```", "another format", '```json\n{"name": "a"}\n```'),
        (PARSERS[0], '```json\n{"args": {}, "name": "a"}', "another format", '"args": {}, "name": "a"}'),
        (PARSERS[0], f"[TOOL_CALLS] [{CALL}]", "another format", f"[TOOL_CALLS] [{CALL}]"),
        (PARSERS[0], '<|python_tag|>a.call(query="x")', "another format", '<|python_tag|>a.call(query="x")'),
        (PARSERS[0], "<tool_calls>a</tool_calls>", "another format", "<tool_calls>a</tool_calls>"),
        (PARSERS[0], "&lt;tool_call&gt;", "another format", "&lt;tool_call&gt;"),
        (PARSERS[0], "Thought: x\nAction: search", "another format", "Action: search"),
        (PARSERS[1], hermes_body(CALL), "another format", hermes_body(CALL)),
        (PARSERS[2], hermes_body(CALL), "another format", hermes_body(CALL)),
        (PARSERS[2], '{"name": "a", "parameters": {}}', "another format", '"name": "a", "parameters": {}}'),
        (PARSERS[3], "```python\n1\n```", "another format", "```python\n1\n```"),
        (PARSERS[0], "The answer is \\boxed{Paris}.", "Write one of them", ""),
        (PARSERS[2], '{"content": "", "tool_calls": []}', "Write one of them", ""),
    ]:
        (error,) = parser.parse(text).errors
        assert phrase in error.message, text
        assert error.quote == quote


def test_every_code_but_the_environments_own_is_covered_above() -> None:
    seen = {code for _, expected in HERMES_MISTAKES + SEARCH_R1_MISTAKES + NATIVE_MISTAKES for code in expected}
    assert seen == set(PARSE_ERROR_CODES) - {"too_many_calls"}


def test_messages_say_what_came() -> None:
    for text, phrase in [
        (hermes_body('{"name": "a", "arguments": {"x": oops}}'), "near"),
        (hermes_body('{"name": "a", "arguments": {"x": oops}}'), "oops"),
        (hermes_body("[]"), "an array"),
        (hermes_body("true"), "a boolean"),
        (hermes_body('{"name": "a", "arguments": [1]}'), '"arguments"'),
        ("<answer>x", "</answer>"),
        ("<think>x", "</think>"),
        ("<answer>a</answer>" * 3, "got 3"),
        (
            hermes_body('{"name": "a\nb"}'),
            r"character 11, because line breaks and tabs in a string are written \n and \t",
        ),
        (hermes_body('{"name": "a"}{"name": "b"}'), "after the end of the first value"),
        (hermes_body('[{"name": "a"}, {"name": "b"}]'), "got an array. Write each call by itself."),
        (hermes_body('{"name": "a"}<tool_call>{"name": "b"}'), "not closed before the next <tool_call>"),
        (hermes_body('{"name": "a"}<answer>x</answer>'), "not closed before the next <answer>"),
        (hermes_body('{"name": "a", "arguments": {"x": "<tool_call>" y}}'), "Expecting ',' delimiter"),
        (hermes_body('{"name": "a", "arguments": "Paris"}'), 'in the string "arguments": Expecting value'),
        (hermes_body('{"name": "a", "arguments": ""}'), "character 0, which is its end."),
    ]:
        error = HermesParser().parse(text).errors[0]
        assert phrase in f"{error.message} {error.quote}"


def test_places_of_errors_are_those_of_the_standard_decoder() -> None:
    for text in ["", " \n", '\n {"a": 1} \t}', "\u00a0{}", ' {"a": 1,} ', " [1]  2", "\n{"]:
        with pytest.raises(json.JSONDecodeError) as caught:
            json.loads(text)
        assert f"{caught.value.msg} at character {caught.value.pos}," in decode(text).message


def test_white_space_around_json_is_free() -> None:
    assert decode(' \t\r\n{"a": 1}\n ') == {"a": 1}


def test_quotes_of_bad_json_stay_short() -> None:
    message = HermesParser().parse(hermes_body("x" * 100_000)).errors[0].message
    assert len(message) < 300


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
        "<ANSWER ",
        "< answer",
        "f(a",
        "name",
        "'name'",
        "tool_call",
        "Action\n",
        "```tool_",
        '"name":',
        '"arguments":',
        "&lt;",
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


@all_parsers
@pytest.mark.parametrize("size", [100_000, pytest.param(500_000, marks=pytest.mark.slow)])
def test_any_text_is_parsed_in_bounded_time(parser: Parser, size: int) -> None:
    for name, adversary in ADVERSARIES.items():
        text = adversary(size)
        with cpu_below(size / 200_000, name):
            turn = parser.parse(text)
            parser.to_message(text, turn)
