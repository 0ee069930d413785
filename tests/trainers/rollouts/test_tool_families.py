"""parser="native": every family's own tool format, played, encoded and read by tokens."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from trl import chat_template_utils

import agent_r1_gym.envs  # noqa: F401  # registers the environments
from agent_r1_gym import Task, ToolEnv, tool
from agent_r1_gym.core.parsing import NativeParser, visible_text
from agent_r1_gym.core.text import sanitize
from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.policies import DirectAnswer, OraclePolicy
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.token_session import TokenLimits, bind_chat
from tests.kit.chat_families import FAMILIES, NATIVE, SEARCH
from tests.kit.cpu_time import cpu_below
from tests.kit.helpers import play
from trainers.algorithms.batch import tokens_of
from trainers.commands.demonstrations import IGNORE_INDEX, contexts, token_rows
from trainers.rollouts import chat_template
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.collect import Collector
from trainers.rollouts.tool_template import ToolTemplate

LIMITS = TokenLimits(max_prompt_tokens=16_384, max_completion_tokens=16_384)


def tokenizer_of(name: str) -> Any:
    with TemporaryDirectory() as folder:
        return FAMILIES[name].tokenizer(Path(folder))


@cache
def chat_of(name: str) -> ChatFormat:
    return ChatFormat(tokenizer_of(name), template_options=FAMILIES[name].options)


class OracleEngine:
    """Plays the oracle's turns as the tokens that the model's own format has for them."""

    def turn(self, session: Any) -> str:
        (action,) = OraclePolicy().act([session.state()])
        return action

    def run(self, sessions: Any) -> None:
        for session in sessions:
            reply: Any = True
            while reply is not None:
                ids = session._chat.turn_ids(self.turn(session))
                assert ids[-1] in session.sampling["stop_token_ids"]
                reply = session.finish_turn(ids, [-0.5] * len(ids), True)
                reply = reply.result() if isinstance(reply, Future) else reply


def played_by_ids(name: str, make: Any, *, engine: Any = None) -> Trajectory:
    games = Collector(Player(make, chat=chat_of(name), limits=LIMITS), retry_delay=0.0)
    (record,) = games.collect([{"task_index": 0, "seed": 1}], engine or OracleEngine())
    return record


# --- every family -----------------------------------------------------------------------------------------------------


fiction = partial(make_text_env, "FictionQA", {"questions": 12, "parser": "native"})  # its oracle thinks


@pytest.mark.parametrize("name", NATIVE)
def test_the_oracle_solves_its_tasks_in_the_models_own_format(name: str) -> None:
    record = played_by_ids(name, fiction)
    assert record.episode_return == 1.0
    assert record.counts() == {"turns": 3, "calls": 2, "failed_calls": 0, "malformed_turns": 0}


def spoken(record: Trajectory) -> list[Any]:
    """What was written, without identifiers of calls and without reasoning, for which not every family has a place."""
    messages = [(message, visible_text(message.content).strip()) for message in record.transcript]
    return [(message.role, text, [call.key for call in message.tool_calls]) for message, text in messages]


@pytest.mark.parametrize("name", NATIVE)
def test_rows_for_supervised_training_are_the_tokens_of_a_rollout(name: str) -> None:
    env = fiction()
    (demonstration,) = play(OraclePolicy(), [0], fiction)
    rows = [
        (row["input_ids"], [int(label != IGNORE_INDEX) for label in row["labels"]])
        for context in contexts([demonstration], env)
        for row in token_rows(bind_chat(chat_of(name), env), context.messages, opening=context.num_prompt_messages)
    ]
    record = played_by_ids(name, fiction)
    assert spoken(record) == spoken(demonstration)
    tokens = tokens_of(record)
    ids, mask = [*tokens.prompt_ids, *tokens.completion_ids], [*[0] * len(tokens.prompt_ids), *tokens.loss_mask]
    starts = [0, *(start + len(tokens.prompt_ids) for start in tokens.context_starts), len(ids)]
    assert rows == [(ids[start:end], mask[start:end]) for start, end in itertools.pairwise(starts)]


SPECIAL_CHARACTERS = 'It\'s "3" {of} [4]\n\t<b>é</b>, (x=1); \\n'


@tool(timeout=None, deterministic=True)
def note(text: str, count: int = 1, flag: bool = False, tags: list[str] | None = None) -> str:
    """Keep a note.

    Args:
        text: the note.
        count: how often.
        flag: whether it matters.
        tags: words.
    """
    return f"{text}|{count}|{flag}|{tags}"


class NoteEnv(ToolEnv):
    """The oracle notes a text full of markup, in a call with all kinds of arguments."""

    def oracle(self, task: Task, history: Any) -> Any:
        if history:
            return "yes"
        return ToolCall("note", {"text": task.prompt, "count": 3, "flag": True, "tags": ["a b"]})


@pytest.mark.parametrize("name", [name for name in NATIVE if not name.startswith("TRL lfm2_2_5")])
def test_arguments_of_any_type_and_text_arrive(name: str) -> None:
    make = partial(
        NoteEnv, tasks=[Task("0", SPECIAL_CHARACTERS, ("yes",))], tools=[note], parser="native", system_prompt="Note."
    )
    record = played_by_ids(name, make)
    assert record.episode_return == 1.0
    (results,) = [message.content for message in record.messages if message.role == "tool"]
    assert results == f"{record.messages[1].content}|3|True|['a b']"


class ThinkingEngine(OracleEngine):
    """Thinks before each call."""

    def turn(self, session: Any) -> str:
        message = json.loads(super().turn(session)) if not session.turns else {"content": "<answer>yes</answer>"}
        if "tool_calls" in message:
            message["content"] = "<think>\nI think.\n</think>\n\n"
        return json.dumps(message)


def test_reasoning_is_kept_where_the_family_shows_it() -> None:
    make = partial(NoteEnv, tasks=[Task("0", "go", ("yes",))], tools=[note], parser="native", system_prompt="Note.")
    for name, marks in {
        "TRL qwen3_training.jinja": "<think>\nI think.\n</think>",
        "TRL gptoss.jinja": "<|channel|>analysis<|message|>I think.<|end|>",
        "TRL gemma4.jinja": "<|channel>thought\nI think.\n<channel|>",
        "TRL glm4moe.jinja": "<think>I think.</think>",
        "Command R7B": "<|START_THINKING|>I think.<|END_THINKING|>",
    }.items():
        record = played_by_ids(name, make, engine=ThinkingEngine())
        assert record.tokens is not None
        assert marks in chat_of(name).tokenizer.decode(record.tokens.completion_ids)
        assert record.messages[2].content.strip() == "<think>\nI think.\n</think>"
        assert record.messages[2].tool_calls[0].name == "note"


@pytest.mark.parametrize("name", NATIVE)
def test_tool_output_cannot_forge_calls_or_results(name: str) -> None:
    chat = chat_of(name).with_tools([SEARCH])
    template = chat.template
    assert isinstance(template, ToolTemplate)
    call = ToolCall("search", {"query": "x"})
    turn = Message("assistant", "", tool_calls=(call,))
    result = Message("tool", "r", "search", "call_0")
    written = template.model_text("", turn) + template.call_stop_text + template.gap([result], turn)
    markup = set(re.findall(r"<[^<>\s]+>|\[/?[A-Z_]+\]", written))
    assert markup or name.startswith("TRL llama")
    quoted = sanitize(written, chat.markup)
    assert not [mark for mark in markup if mark in quoted]


# --- what models write, as vLLM's parsers read it ---------------------------------------------------------------------

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}},
            "required": ["city"],
        },
    },
}
PARIS = ("get_weather", {"city": "Paris"})
TOKYO = ("get_weather", {"city": "Tokyo", "days": 3})
WRITTEN: list[tuple[str, str, str, list[tuple[str, dict[str, Any]]]]] = [
    (
        "TRL qwen2_5.jinja",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        "",
        [PARIS],
    ),
    (
        "TRL qwen2_5.jinja",
        'I look it up.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Tokyo", "days": 3}}\n</tool_call>',
        "I look it up.",
        [PARIS, TOKYO],
    ),
    ("TRL qwen2_5.jinja", '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}', "", [PARIS]),
    ("TRL qwen2_5.jinja", "It rains in Paris.", "It rains in Paris.", []),
    (
        "TRL qwen3.jinja",
        '<think>\nParis, so {"city": "Paris"}.\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Paris"}}\n</tool_call>',
        '<think>\nParis, so {"city": "Paris"}.\n</think>\n\n',
        [PARIS],
    ),
    (
        "Qwen3-Coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nTokyo\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        "</function>\n</tool_call>",
        "",
        [TOKYO],
    ),
    (
        "TRL qwen3_5_think.jinja",
        "I see.\n</think>\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=metric>\ntrue\n</parameter>\n</function>\n</tool_call>",
        "<think>\nI see.\n</think>\n\n",
        [("get_weather", {"city": "Paris", "metric": True})],
    ),
    ("TRL llama3_1.jinja", '{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    ("TRL llama3_1.jinja", '{"name": "get_weather", "arguments": {"city": "Paris"}}', "", [PARIS]),
    ("TRL llama3_1.jinja", '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    (
        "TRL llama3_2.jinja",
        '{"type": "function", "name": "get_weather", "parameters": {"city": "Tokyo", "days": 3}}',
        "",
        [TOKYO],
    ),
    (
        "Mistral 7B v0.3 with tools",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}}, '
        '{"name": "get_weather", "arguments": {"city": "Tokyo", "days": 3}}]',
        "",
        [PARIS, TOKYO],
    ),
    (
        "Mistral 7B v0.3 with tools",
        'A look.[TOOL_CALLS] [{"arguments": {"city": "Paris"}, "name": "get_weather"}]',
        "A look.",
        [PARIS],
    ),
    ("Mistral Small 3.2 with tools", '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', "", [PARIS]),
    ("Mistral Small 3.2 with tools", '[TOOL_CALLS]get_weather{"city": "Paris"}', "", [PARIS]),
    (
        "Mistral Small 3.2 with tools",
        '[TOOL_CALLS]get_weather[CALL_ID]abcDEF123[ARGS]{"city": "Paris"}'
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Tokyo", "days": 3}',
        "",
        [PARIS, TOKYO],
    ),
    (
        "TRL gptoss.jinja",
        "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}',
        "<think>\nLook it up.\n</think>\n\n",
        [PARIS],
    ),
    (
        "TRL gptoss.jinja",
        "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Rain.",
        "<think>\nEasy.\n</think>\n\nRain.",
        [],
    ),
    (
        "TRL glm4moe.jinja",
        "\n<think>Look.</think>\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Tokyo</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "<think>\nLook.\n</think>\n\n",
        [TOKYO],
    ),
    ("TRL gemma4.jinja", '<|tool_call>call:get_weather{city:<|"|>Tokyo<|"|>,days:3}<tool_call|>', "", [TOKYO]),
    (
        "TRL lfm2_v2.jinja",
        "<|tool_call_start|>[get_weather(city=\"Tokyo\", days=3), get_weather(city='Paris')]<|tool_call_end|>Wait.",
        "Wait.",
        [TOKYO, PARIS],
    ),
    (
        "DeepSeek V3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "",
        [PARIS],
    ),
    (
        "DeepSeek V3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Paris"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "",
        [PARIS],
    ),
    (
        "Kimi K2 with tools",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>',
        "",
        [PARIS],
    ),
    ("Granite 3 with tools", '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]', "", [PARIS]),
]
"""Template, a turn without its end, and the content and calls of it."""


def sampled(name: str, text: str, *, ended: bool = True) -> dict[str, Any]:
    chat = chat_of(name).with_tools([WEATHER])
    template = chat.template
    assert isinstance(template, ToolTemplate)
    calls = any(mark in text for mark in template.call_marks)
    ids = list(chat.tokenizer(text, add_special_tokens=False)["input_ids"])
    stop = template.call_stop_id if calls else template.stop_id
    message: dict[str, Any] = json.loads(chat.action([*ids, stop] if ended else ids))
    return message


@pytest.mark.parametrize(("name", "text", "content", "calls"), WRITTEN)
def test_turns_are_read_as_servers_read_them(
    name: str, text: str, content: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    message = sampled(name, text)
    found = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    assert (message["content"], found) == (content, calls)
    parsed = NativeParser().parse(json.dumps(message))
    assert [(call.name, dict(call.arguments)) for call in parsed.calls] == calls


MISTAKES: list[tuple[str, str, str, str]] = [
    (
        "TRL qwen2_5.jinja",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": Paris}}\n</tool_call>',
        "bad_json",
        "character 47",
    ),
    ("TRL qwen2_5.jinja", "<tool_call>\n</tool_call>", "bad_json", "character 1"),
    ("TRL qwen2_5.jinja", '</tool_call>{"name": "get_weather"}', "malformed_call", "marks of a tool call"),
    ("TRL qwen2_5.jinja", '<tool_call>["get_weather", "x"]</tool_call>', "not_an_object", "an array"),
    ("TRL qwen2_5.jinja", '<tool_call>"get_weather"</tool_call>', "not_an_object", "a string"),
    ("TRL qwen2_5.jinja", '<tool_call>{"arguments": {}}</tool_call>', "missing_name", "name"),
    ("TRL qwen2_5.jinja", "It rains.", "no_action", "neither"),
    ("TRL qwen3.jinja", "<think>\nLook: <tool_call>", "unclosed_tag", "<think> is never closed"),
    ("TRL qwen3_5_think.jinja", "Look and look", "unclosed_tag", "<think> is never closed"),
    (
        "Qwen3-Coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
        "malformed_call",
        "A part of the tool call",
    ),
    (
        "Qwen3-Coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=city>\nRome\n</parameter>\n"
        "</function>\n</tool_call>",
        "malformed_call",
        "twice",
    ),
    ("TRL llama3_1.jinja", '{"name": "get_weather", "parameters": {"city": "Paris"}', "bad_json", "character"),
    (
        "TRL llama3_1.jinja",
        '{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "get_weather", "parameters": {}}',
        "too_many_calls",
        "one call per turn",
    ),
    ("TRL gptoss.jinja", "<|channel|>commentary to=python code<|message|>1 + 1", "malformed_call", "neither reasoning"),
    ("TRL gptoss.jinja", "<answer>42</answer>", "malformed_call", "neither reasoning"),
    ("Mistral Small 3.2 with tools", "[TOOL_CALLS]get_weather[ARGS]Paris", "malformed_call", "marks"),
    ("TRL gemma4.jinja", "<|tool_call>call:get_weather{city:Paris}<tool_call|>", "bad_json", "character"),
    (
        "TRL lfm2_v2.jinja",
        "<|tool_call_start|>[get_weather('Paris')]<|tool_call_end|>",
        "malformed_call",
        "named arguments",
    ),
    ("TRL lfm2_v2.jinja", "<|tool_call_start|>get_weather()<|tool_call_end|>", "malformed_call", "not a list"),
    ("TRL lfm2_v2.jinja", "<|tool_call_start|>[get_weather(]<|tool_call_end|>", "malformed_call", "not Python"),
    (
        "TRL lfm2_v2.jinja",
        "<|tool_call_start|>[get_weather(city=open('x'))]<|tool_call_end|>",
        "malformed_call",
        "plain value",
    ),
    ("TRL glm4moe.jinja", "<tool_call>get_weather\n<arg_key>city</arg_key>\n</tool_call>", "malformed_call", "part"),
]
"""Template, turn, and the mistake that is fed back."""


@pytest.mark.parametrize(("name", "text", "code", "words"), MISTAKES)
def test_what_cannot_be_read_is_a_mistake_and_never_dropped(name: str, text: str, code: str, words: str) -> None:
    parser = NativeParser()
    action = json.dumps(sampled(name, text))
    parsed = parser.parse(action)
    assert not parsed.calls
    assert [error.code for error in parsed.errors] == [code]
    assert words in parsed.errors[0].message
    if code not in ("no_action", "unclosed_tag"):
        assert parser.to_message(action, parsed).content == text  # the history has what the model wrote


def test_python_values_that_json_does_not_have_are_a_mistake() -> None:
    for value in ("b'x'", "{1, 2}", "...", "1j", "{1: 2}", "{(1, 2): 3}", "[{'a': b'x'}]"):
        message = sampled("TRL lfm2_v2.jinja", f"<|tool_call_start|>[get_weather(city={value})]<|tool_call_end|>")
        (error,) = NativeParser().parse(json.dumps(message)).errors
        assert (error.code, "JSON does not have" in error.message) == ("malformed_call", True)


UNCLOSED = {
    "repeated calls": "<tool_call><function=get_weather><parameter=city>" * 800,
    "line breaks": "<tool_call><function=get_weather><parameter=city>" + "\n" * 40_000,
    "closed call": "<tool_call><function=get_weather><parameter=city>" + " " * 40_000 + "</function></tool_call>",
    "one end": "<tool_call><function=get_weather>" + "<parameter=" * 4_000 + "x></parameter></function></tool_call>",
}


@pytest.mark.parametrize("name", ["Qwen3-Coder", "TRL qwen3_5_nothink.jinja"])
def test_parameters_that_are_never_closed_take_no_time(name: str) -> None:
    template = chat_of(name).with_tools([WEATHER]).template
    for text in UNCLOSED.values():
        with cpu_below(0.5):
            (error,) = template.read(text).errors
        assert (error.code, error.quote[:11]) == ("malformed_call", "<parameter=")


def test_a_value_may_contain_the_mark_of_a_parameter() -> None:
    call = "<function=get_weather>\n<parameter=city>\n<parameter=x> is\n\na mark\n</parameter>\n</function>"
    message = sampled("Qwen3-Coder", f"<tool_call>\n{call}\n</tool_call>")
    assert message["tool_calls"][0]["function"]["arguments"] == {"city": "<parameter=x> is\n\na mark"}


def test_a_call_next_to_an_answer_counts_in_every_format() -> None:
    for name in ("TRL qwen2_5.jinja", "TRL lfm2_v2.jinja", "TRL glm4moe.jinja", "DeepSeek V3.1", "Kimi K2 with tools"):
        template = chat_of(name).with_tools([WEATHER]).template
        turn = template.model_text("", Message("assistant", "<answer>rain</answer>", tool_calls=(ToolCall(*PARIS),)))
        parsed = NativeParser().parse(json.dumps(sampled(name, turn)))
        assert [(call.name, dict(call.arguments)) for call in parsed.calls] == [PARIS]
        assert (parsed.answer, [error.code for error in parsed.errors]) == (None, ["call_and_answer"])


def test_a_malformed_call_is_answered_and_the_episode_continues() -> None:
    """Tokens stay as they were sampled; the feedback is the gap that the template would render."""
    chat = chat_of("TRL qwen2_5.jinja")
    bad = '<tool_call>\n{"name": "note", "arguments": }\n</tool_call>'

    class Engine(OracleEngine):
        def run(self, sessions: Any) -> None:
            for session in sessions:
                ids = [*chat.tokenizer(bad, add_special_tokens=False)["input_ids"], chat.stop_id]
                assert session.finish_turn(ids, [-0.5] * len(ids), True)
                ids = session._chat.turn_ids("<answer>yes</answer>")
                assert session.finish_turn(ids, [-0.5] * len(ids), True) is None

    make = partial(NoteEnv, tasks=[Task("0", "go", ("yes",))], tools=[note], parser="native", system_prompt="Note.")
    games = Collector(Player(make, chat=chat, limits=LIMITS), retry_delay=0.0)
    (record,) = games.collect([{"task_index": 0}], Engine())
    assert record.turns[0].parse_errors == ("bad_json",)
    assert record.messages[2].content == bad
    assert record.episode_return == 1.0
    bound = chat.with_tools([note.schema])
    assert record.tokens is not None
    seen = chat.tokenizer.decode([*record.tokens.prompt_ids, *record.tokens.completion_ids])
    assert seen.startswith(chat.tokenizer.decode(bound.prompt_ids(record.messages[:4])))


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("TRL gemma3.jinja", "it does not show the tools"),
        ("Phi-4-mini", "it does not show the tools"),
        ("TRL cohere2.jinja", "it does not show the tools"),
        ("TRL lfm2.jinja", "it does not show the calls of a turn"),
        ("TRL deepseekv3.jinja", "it does not show the tools"),
    ],
)
def test_a_template_without_a_tool_format_is_refused_with_the_way_out(name: str, reason: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"parser='native' does not work .*{reason}.*parser='hermes'"
    ) as refusal:
        chat_of(name).with_tools([SEARCH])
    assert "\n" not in str(refusal.value)


def changed(name: str, change: Callable[[str], str]) -> ChatFormat:
    tokenizer = tokenizer_of(name)
    tokenizer.chat_template = change(tokenizer.chat_template)
    return ChatFormat(tokenizer)


def test_a_template_that_forges_a_call_is_refused() -> None:
    forged = changed("TRL qwen2_5.jinja", lambda source: source.replace("tool_call.name }}", "'erase' }}"))
    with pytest.raises(ConfigurationError, match=r"does not show the calls|reads its calls"):
        forged.with_tools([SEARCH])
    forged = changed("TRL qwen2_5.jinja", lambda source: source.replace("tool_call.arguments | tojson", "'{}'"))
    with pytest.raises(ConfigurationError, match="does not show the calls"):
        forged.with_tools([SEARCH])


def test_calls_that_no_response_template_reads_are_refused() -> None:
    unknown = changed("TRL qwen2_5.jinja", lambda source: source.replace("tool_call>", "appel>"))
    with pytest.raises(ConfigurationError, match="no response template of the tokenizer, of TRL or of this package"):
        unknown.with_tools([SEARCH])


def test_the_tokenizers_own_response_template_comes_first() -> None:
    tokenizer = tokenizer_of("TRL qwen2_5.jinja")
    tokenizer.chat_template = tokenizer.chat_template.replace("tool_call>", "appel>")
    own = copy.deepcopy(chat_template_utils.qwen3_template)
    own["fields"]["tool_calls"] |= {"open": "<appel>", "close_pattern": r"</appel>\s*"}
    tokenizer.response_template = own
    chat = ChatFormat(tokenizer).with_tools([SEARCH])
    action = ToolCall("search", {"query": "x"})
    assert chat.write_call(action) == '<appel>\n{"name": "search", "arguments": {"query": "x"}}\n</appel>'
    parser = NativeParser()
    assert parser.parse(chat.roundtrip(parser.format_call(action))).calls[0].arguments == {"query": "x"}


@pytest.mark.slow
def test_a_template_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_PROBE_SECONDS", 0.5)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(ConfigurationError, match=r"takes more than 0.5 s to render a few short turns"):
        changed("TRL qwen2_5.jinja", lambda source: loop + source)
    with pytest.raises(ConfigurationError, match=r"writes 2,\d+,\d+ characters for a question of 5"):
        changed("TRL qwen2_5.jinja", lambda source: "{{ 'x' * 2000000 }}" + source)


def test_a_template_that_only_works_with_tools_is_refused_without() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be used for multi-turn episodes.*parser='native'"):
        played_by_ids("TRL gptoss.jinja", partial(make_text_env, "FictionQA", {"questions": 12}))


def test_single_turn_methods_show_no_tools_and_read_the_answer() -> None:
    chat = chat_of("TRL gptoss.jinja")
    player = Player(fiction, chat=chat, limits=LIMITS, method=DirectAnswer())
    text = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|><answer>Rome</answer>"

    class Engine(OracleEngine):
        def run(self, sessions: Any) -> None:
            for session in sessions:
                assert "namespace functions" not in chat.tokenizer.decode(session.prompt_ids)
                ids = [*chat.tokenizer(text, add_special_tokens=False)["input_ids"], chat.stop_id]
                session.finish_turn(ids, [-0.5] * len(ids), True)

    (record,) = Collector(player, retry_delay=0.0).collect([{"task_index": 0}], Engine())
    assert record.answer == "Rome"


def test_tools_of_the_episode_are_shown() -> None:
    class PerTask(ToolEnv):
        def make_tools(self, task: Task) -> Any:
            return [note] if task.id == "1" else []

    env = PerTask(tasks=[Task("0", "a", ("x",)), Task("1", "b", ("x",))], parser="native")
    chat = chat_of("TRL qwen3.jinja")
    shown = []
    for index in (0, 1):
        _, info = env.reset(options={"task_index": index})
        shown.append("Keep a note." in chat.tokenizer.decode(bind_chat(chat, env).prompt_ids(info["messages"])))
    assert shown == [False, True]


class Emptied(dict[Any, Any]):
    """What is kept here is gone at once, as if another thread had cleared it."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


def test_another_thread_may_clear_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = chat_of("TRL qwen3.jinja")
    template = chat.with_tools([SEARCH]).template
    assert isinstance(template, ToolTemplate)
    turn = Message("assistant", "", tool_calls=(ToolCall("search", {"query": "x"}),))
    results = [Message("tool", "r", "search", "call_0")]
    gap = template.gap(results, turn)
    monkeypatch.setattr(chat, "_bound", Emptied())
    monkeypatch.setattr(template, "_gaps", Emptied())
    assert "Search" in chat.with_tools([SEARCH]).template.text([Message("user", "a question")])
    assert template.gap(results, turn) == gap


def test_feedback_shows_a_call_as_the_model_writes_it() -> None:
    env = fiction()
    env.reset(seed=0, options={"task_index": 0})
    bind_chat(chat_of("Qwen3-Coder"), env)
    _, _, _, _, info = env.step(json.dumps({"content": "I look."}))
    feedback = info["new_messages"][-1].content
    assert "<tool_call>\n<function=search>\n<parameter=query>" in feedback
    assert "<answer>your answer</answer>" not in feedback  # not before the first call
    _, _, _, _, info = env.step(json.dumps({"content": "<answer>Ada"}))
    assert "<answer>your answer</answer>" in info["new_messages"][-1].content


class Tomorrow(datetime):
    """The clock of transformers' templates, after midnight."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.now(tz) + timedelta(days=1)


@pytest.mark.parametrize("name", ["TRL llama3_2.jinja", "TRL gptoss.jinja"])
def test_a_run_goes_on_after_midnight_where_a_template_prints_the_date(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = chat_of(name).with_tools([SEARCH])
    call, question = ToolCall("search", {"query": "x"}), [Message("user", "a question")]
    written, text = chat.write_call(call), chat.template.text(question)
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Tomorrow)
    assert chat.write_call(call) == written
    assert chat.template.text(question) == text


def test_calls_that_a_format_cannot_express_are_found() -> None:
    two = (ToolCall("search", {"query": "a"}), ToolCall("search", {"query": "b"}))
    quoted = (ToolCall("search", {"query": 'It\'s "a"\nb'}),)
    for name, calls, expressed in [
        ("TRL qwen2_5.jinja", two, True),
        ("TRL qwen2_5.jinja", quoted, True),
        ("TRL llama3_1.jinja", two, False),
        ("TRL lfm2_2_5.jinja", quoted, False),
        ("TRL lfm2_v2.jinja", quoted, True),
        ("Qwen3-Coder", (ToolCall("search", {"query": "  indented"}),), False),
    ]:
        template = chat_of(name).with_tools([SEARCH]).template
        assert template.expresses(Message("assistant", "", tool_calls=calls)) is expressed


@pytest.mark.parametrize("text", ["{{ 'x' * 99999999999 }}", "{{ '%9999999999d' % 1 }}"])
def test_a_template_that_takes_all_memory_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"takes more than 2 GiB of memory to render a few short turns"):
        changed("TRL qwen2_5.jinja", lambda source: text + source)


def test_a_template_with_a_power_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"computes a power"):
        changed("TRL qwen2_5.jinja", lambda source: "{{ 9 ** 9 ** 9 }}" + source)
