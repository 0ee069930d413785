"""The protocols: what is read, what is written, what is refused, and in which shape; as clients send it."""

from __future__ import annotations

import contextlib
import copy
import json
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.gateway.episode import Episode, ModelTurn, ProgramEnd
from agent_r1_gym.gateway.protocols import anthropic, chat_completions, responses
from agent_r1_gym.gateway.server import MAX_BODY_BYTES, running_gateway
from agent_r1_gym.support.http_server import RequestError
from tests.kit.programs import ECHO, Client, user

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

CALL = ToolCall("echo", {"text": "hé"}, "c1")
CONVERSATION = (
    Message("system", "Be brief."),
    Message("user", "Say hi."),
    Message("assistant", "I call it.", tool_calls=(CALL,)),
    Message("tool", "there", "echo", "c1"),
    Message("user", "And?"),
)
"""What each of the following requests says."""
_FUNCTION = ECHO["function"]
CHAT: dict[str, Any] = {
    "model": "policy",
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Say "}, {"type": "text", "text": "hi."}]},
        {
            "role": "assistant",
            "content": "I call it.",
            "refusal": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": '{"text": "h\\u00e9"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "there"},
        {"role": "user", "content": "And?"},
    ],
    "tools": [{"type": "function", "function": {**_FUNCTION, "strict": True}}],
}
RESPONSES: dict[str, Any] = {
    "model": "policy",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": "Say hi."},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I call it."}]},
        {"type": "function_call", "call_id": "c1", "name": "echo", "arguments": '{"text": "hé"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "there"},
        {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
    ],
    "tools": [{"type": "function", **_FUNCTION}],
}
ANTHROPIC: dict[str, Any] = {
    "model": "policy",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Say hi."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I call it."},
                {"type": "tool_use", "id": "c1", "name": "echo", "input": {"text": "hé"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "there"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    ],
    "tools": [
        {"name": "echo", "description": _FUNCTION["description"], "input_schema": _FUNCTION["parameters"]},
    ],
}
PROTOCOLS = ((chat_completions, CHAT), (responses, RESPONSES), (anthropic, ANTHROPIC))
TURN = ModelTurn("Hé, I call.", (CALL, ToolCall("echo", {}, "c2")))


def events(stream: bytes) -> list[dict[str, Any]]:
    """Returns the data of server-sent events, without the last word of OpenAI's."""
    lines = [line.removeprefix("data: ") for line in stream.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize(("protocol", "body"), PROTOCOLS)
def test_all_protocols_say_the_same(protocol: ModuleType, body: dict[str, Any]):
    request = protocol.read(body)
    assert request.messages == CONVERSATION
    assert request.tools == (ECHO,)
    assert request.ignored == (("max_tokens",) if protocol is anthropic else ())
    # How the reply is sent is not a part of what is asked.
    assert protocol.read({**body, "stream": True, "metadata": {"a": "b"}}).key == request.key
    assert protocol.read({**body, "temperature": 0.5}).key != request.key


@pytest.mark.parametrize(("protocol", "body"), PROTOCOLS)
def test_a_stream_adds_up_to_the_response(protocol: ModuleType, body: dict[str, Any]):
    request = protocol.read({**body, "temperature": 0.5})
    for turn in (TURN, ModelTurn("text"), ModelTurn(""), ModelTurn("", (CALL,))):
        whole = json.loads(protocol.write(request, turn, "1"))
        assert "temperature" in whole.get("ignored", ["temperature"])
        parts = events(b"".join(protocol.stream(request, turn, "1")))
        if protocol is chat_completions:
            deltas = [part["choices"][0]["delta"] for part in parts]
            message, reason = whole["choices"][0]["message"], whole["choices"][0]["finish_reason"]
            assert deltas[0]["content"] == (message["content"] or "")
            calls = [
                {k: v for k, v in call.items() if k != "index"} for d in deltas for call in d.get("tool_calls", ())
            ]
            assert calls == message.get("tool_calls", [])
            assert parts[-1]["choices"][0]["finish_reason"] == reason == ("tool_calls" if turn.calls else "stop")
        elif protocol is responses:
            assert [part["sequence_number"] for part in parts] == list(range(len(parts)))
            assert parts[-1]["response"]["output"] == whole["output"]
            assert [p["item"] for p in parts if p["type"] == "response.output_item.done"] == whole["output"]
        else:
            blocks = []
            for part in parts:
                if part["type"] == "content_block_start":
                    blocks.append(dict(part["content_block"]))
                elif part["type"] == "content_block_delta":
                    text = part["delta"].get("text")
                    blocks[-1] |= (
                        {"text": text} if text is not None else {"input": json.loads(part["delta"]["partial_json"])}
                    )
            assert blocks == whole["content"]
            assert parts[-2]["delta"]["stop_reason"] == whole["stop_reason"]


@pytest.mark.parametrize(("protocol", "body"), PROTOCOLS)
def test_what_is_written_is_read_back(protocol: ModuleType, body: dict[str, Any]):
    """A client that sends a turn back sends the same turn."""
    whole = json.loads(protocol.write(protocol.read(body), TURN, "1"))
    if protocol is chat_completions:
        later = {**body, "messages": [user("a"), whole["choices"][0]["message"], user("b")]}
    elif protocol is responses:
        later = {**body, "input": [user("a"), *whole["output"], user("b")]}
    else:
        later = {**body, "messages": [user("a"), {"role": "assistant", "content": whole["content"]}, user("b")]}
    assert protocol.read(later).messages[-2] == Message("assistant", TURN.content, tool_calls=TURN.calls)


def changed(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**body, **fields}


IMAGE = [{"type": "image_url", "image_url": {"url": "data:,"}}]
BLOCK = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}]
STRAY = {"role": "tool", "tool_call_id": "c9", "content": "?"}
BAD_CALL = {"id": "c", "function": {"name": "f", "arguments": "{"}}
DEEP = f'{{"a": {"[" * 900}{"]" * 900}}}'
"""Too deep for the environment, which copies and compares arguments."""
DEEP_CALL = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": DEEP}}]}
REFUSED = (
    (chat_completions, changed(CHAT, n=2), "n=2"),
    (chat_completions, changed(CHAT, parallel_tool_calls=False), "parallel_tool_calls"),
    (chat_completions, changed(CHAT, logprobs=True), "logprobs"),
    (chat_completions, changed(CHAT, stop=["\n"]), "stop"),
    (chat_completions, changed(CHAT, tool_choice="required"), "tool_choice"),
    (chat_completions, changed(CHAT, response_format={"type": "json_object"}), "response_format"),
    (chat_completions, changed(CHAT, model=None), "model"),
    (chat_completions, changed(CHAT, stream="yes"), "stream"),
    (chat_completions, changed(CHAT, messages=[]), "no message of a user"),
    (chat_completions, changed(CHAT, messages="hi"), "list of objects"),
    (chat_completions, changed(CHAT, messages=[{"role": "user", "content": IMAGE}]), "image_url"),
    (chat_completions, changed(CHAT, messages=[user("\ud800")]), "surrogate"),
    (chat_completions, changed(CHAT, messages=[user("a"), STRAY]), "did not call"),
    (chat_completions, changed(CHAT, messages=[user("a"), {"role": "assistant", "content": "b"}]), "continued"),
    (chat_completions, changed(CHAT, messages=[{"role": "critic", "content": "b"}]), "critic"),
    (chat_completions, changed(CHAT, messages=[{"role": "assistant", "tool_calls": [BAD_CALL]}, user("")]), "not JSON"),
    (chat_completions, changed(CHAT, messages=[DEEP_CALL, user("")]), "nested"),
    (chat_completions, changed(CHAT, tools=[{"type": "custom"}]), "custom"),
    (chat_completions, changed(CHAT, tools=[{"type": "function", "function": {"name": "a b"}}]), "name"),
    (responses, changed(RESPONSES, previous_response_id="resp_1"), "previous_response_id"),
    (responses, changed(RESPONSES, input=[{"type": "item_reference", "id": "1"}]), "item_reference"),
    (responses, changed(RESPONSES, tools=[{"type": "web_search"}]), "web_search"),
    (responses, changed(RESPONSES, text={"format": {"type": "json_schema"}}), "text="),
    (responses, changed(RESPONSES, text={"format": {"type": "json_object"}, "verbosity": "low"}), "text="),
    (anthropic, changed(ANTHROPIC, stop_sequences=["\n"]), "stop_sequences"),
    (anthropic, changed(ANTHROPIC, tool_choice={"type": "auto", "disable_parallel_tool_use": True}), "tool_choice"),
    (anthropic, changed(ANTHROPIC, messages=[{"role": "user", "content": BLOCK}]), "image"),
    (anthropic, changed(ANTHROPIC, messages=[{"role": "system", "content": "a"}]), "role"),
    (anthropic, changed(ANTHROPIC, tools=[{"type": "bash_20250124", "name": "bash"}]), "bash_20250124"),
)


def test_what_cannot_be_fulfilled_is_refused():
    for protocol, body, problem in REFUSED:
        with pytest.raises(RequestError, match=problem) as refusal:
            protocol.read(body)
        assert refusal.value.status == 400


IDLE = (
    (chat_completions, CHAT, {"response_format": {"type": "text", "json_schema": None}}, ()),
    (chat_completions, CHAT, {"verbosity": "low"}, ("verbosity",)),
    (responses, RESPONSES, {"text": {"verbosity": "low"}}, ("text.verbosity",)),
    (responses, RESPONSES, {"text": {"format": {"type": "text"}, "verbosity": "high"}}, ("text.verbosity",)),
    (responses, RESPONSES, {"text": {"format": {"type": "text"}, "verbosity": None}}, ()),
    (responses, RESPONSES, {"text": {"format": None}}, ()),
    (anthropic, ANTHROPIC, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": False}}, ("max_tokens",)),
)


def test_what_asks_for_nothing_is_accepted():
    for protocol, body, fields, ignored in IDLE:
        request = protocol.read(changed(body, **fields))
        assert (request.messages, request.ignored) == (CONVERSATION, ignored)


def test_without_tools_no_field_about_calls_asks_for_anything():
    for protocol, body in PROTOCOLS[:2]:
        name = "messages" if protocol is chat_completions else "input"
        plain = {"model": "policy", name: [user("a")], "parallel_tool_calls": False, "tool_choice": "none"}
        assert protocol.read(plain).ignored == ()
        with pytest.raises(RequestError, match="parallel_tool_calls=False"):
            protocol.read({**plain, "tools": body["tools"], "tool_choice": "auto"})


def test_a_refusal_in_the_history_is_a_text():
    part = {"type": "refusal", "refusal": "No."}
    turns = (
        (responses, RESPONSES, "input", {"type": "message", "role": "assistant", "content": [part]}),
        (chat_completions, CHAT, "messages", {"role": "assistant", "content": [part]}),
        (chat_completions, CHAT, "messages", {"role": "assistant", "content": None, "refusal": "No."}),
    )
    for protocol, body, name, turn in turns:
        request = protocol.read({**body, name: [user("a"), turn, user("b")]})
        assert request.messages[-2] == Message("assistant", "No.")


def test_token_counts_are_those_of_the_turn():
    turn = replace(TURN, prompt_tokens=70, completion_tokens=8)
    chat, response, message = (json.loads(each.write(each.read(body), turn, "1"))["usage"] for each, body in PROTOCOLS)
    assert chat == {"prompt_tokens": 70, "completion_tokens": 8, "total_tokens": 78}
    assert (response["input_tokens"], response["output_tokens"], response["total_tokens"]) == (70, 8, 78)
    assert message == {"input_tokens": 70, "output_tokens": 8}
    body = changed(CHAT, stream=True, stream_options={"include_usage": True})
    *parts, last = events(b"".join(chat_completions.stream(chat_completions.read(body), turn, "1")))
    assert (last["choices"], last["usage"]) == ([], chat)
    assert all(part["choices"] and part["usage"] is None for part in parts)
    last = events(b"".join(responses.stream(responses.read(RESPONSES), turn, "1")))[-1]
    assert last["response"]["usage"] == response
    begin, *_, end, _ = events(b"".join(anthropic.stream(anthropic.read(ANTHROPIC), turn, "1")))
    assert begin["message"]["usage"] == end["usage"] == message


def test_a_turn_that_was_cut_ends_as_the_protocols_say():
    turn = ModelTurn("half", is_cut=True)
    ends = [json.loads(protocol.write(protocol.read(body), turn, "1")) for protocol, body in PROTOCOLS]
    chat, response, message = (
        ends[[p for p, _ in PROTOCOLS].index(p)] for p in (chat_completions, responses, anthropic)
    )
    assert chat["choices"][0]["finish_reason"] == "length"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert message["stop_reason"] == "max_tokens"
    last = events(b"".join(responses.stream(responses.read(RESPONSES), turn, "1")))[-1]
    assert last["type"] == "response.incomplete"


def test_arguments_are_read_as_those_of_the_model_are():
    """JSON within a text cannot smuggle in what no tokenizer encodes."""
    text = '{"text": "\\ud800"}'
    turn = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": text}}]}
    request = chat_completions.read(changed(CHAT, messages=[turn, user("")]))
    assert dict(request.messages[0].tool_calls[0].arguments) == {"text": "\ufffd"}


def test_the_server_knows_episodes_by_their_keys():
    running = running_gateway()
    episode = Episode(lambda call: None, [ECHO])
    other = Episode(lambda call: None)
    for each in (episode, other):
        running.gateway.open(each)
    body = {"model": "policy", "messages": [user("hi")]}
    for headers in (
        {"x-api-key": episode.key},
        {"X-Agent-R1-Episode": episode.key},
        {"Authorization": f"bearer {episode.key}"},
    ):
        assert Client(running.base_url, "", headers).send("/tools") == (200, {"data": [ECHO]})
    assert Client(running.base_url, other.key).send("/tools") == (200, {"data": []})
    for headers in ({}, {"Authorization": "Bearer agent-r1-unknown"}, {"Authorization": f"Basic {episode.key}"}):
        status, answer = Client(running.base_url, "", headers).send("/chat/completions", body)
        assert (status, answer["type"], answer["error"]["type"]) == (401, "error", "authentication_error")
    # Without a valid key, the body of a request is not read.
    assert Client(running.base_url, "agent-r1-unknown").send("/chat/completions", raw=b"[")[0] == 401
    client = Client(running.base_url, episode.key)
    assert client.send("/nothing", {})[0] == 404
    assert client.send("/chat/completions", raw=b"[")[0] == 400
    assert client.send("/chat/completions", raw=b" " * (MAX_BODY_BYTES + 1))[0] == 413
    assert client.send("/models")[1]["data"][0]["id"] == "policy"
    running.gateway.close(episode, "it is over")
    status, answer = client.send("/chat/completions", body)
    assert (status, answer["error"]["code"]) == (410, 410)
    running.gateway.close(other, "it is over")


def test_an_episode_has_one_model():
    episode = Episode(lambda call: None)
    episode.submit(chat_completions.read({"model": "policy", "messages": [user("hi")]}))
    with pytest.raises(RequestError, match="one model"):
        episode.submit(chat_completions.read({"model": "judge", "messages": [user("hi")]}))


def test_requests_that_a_program_leaves_behind_get_no_turn():
    episode = Episode(lambda call: None)
    waiting = episode.submit(chat_completions.read({"model": "policy", "messages": [user("hi")]}))
    episode.end(ProgramEnd())
    assert episode.next_event(1) == ProgramEnd()
    episode.close("it is over")
    with pytest.raises(RequestError, match="it is over"):
        waiting.result(1)
    assert episode.next_event(0.01) == ProgramEnd()


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3) | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.mark.parametrize(("protocol", "body"), PROTOCOLS)
def test_no_body_breaks_a_protocol(protocol: ModuleType, body: dict[str, Any]):
    """Whatever stands at any place of a request, it is read or refused."""

    @given(st.data())
    def any_change(data: st.DataObject) -> None:
        changed_body = copy.deepcopy(body)
        place: Any = changed_body
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = data.draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
                place = place[key]
                continue
            place[key] = data.draw(JUNK)
            break
        with contextlib.suppress(RequestError):
            request = protocol.read(changed_body)
            assert protocol.write(request, TURN, "1")
            assert request.messages[-1].role != "assistant"

    any_change()
