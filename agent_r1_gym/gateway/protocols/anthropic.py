"""Anthropic's messages: `POST /v1/messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.gateway.episode import ModelRequest, ModelTurn
from agent_r1_gym.gateway.protocols.fields import (
    arguments_text,
    event,
    list_of,
    make_request,
    read_call,
    read_tool,
    refuse,
    text_of,
)
from agent_r1_gym.support.http_server import RequestError

_THINKING = ("thinking", "redacted_thinking")


def read(body: Mapping[str, Any]) -> ModelRequest:
    """Read a request.

    Raises:
        RequestError: a field is wrong, missing or not supported.
    """
    choices = ({"type": "auto"},) if body.get("tools") else ({"type": "auto"}, {"type": "none"})
    refuse(body, {"stop_sequences": ([],), "tool_choice": choices, "mcp_servers": ([],), "container": ()})
    messages = [Message("system", text)] if (text := text_of("system", body.get("system"))) else []
    for number, entry in enumerate(list_of("messages", body.get("messages"))):
        location, role = f"messages[{number}]", entry.get("role")
        if role not in ("user", "assistant"):
            raise RequestError(400, f"{location}.role must be 'user' or 'assistant', got {role!r:.80}.")
        content = entry.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list_of(location, content)
        messages += _assistant(location, blocks) if role == "assistant" else _user(location, blocks)
    tools = []
    for number, tool in enumerate(list_of("tools", body.get("tools"))):
        location = f"tools[{number}]"
        if tool.get("type", "custom") != "custom":
            raise RequestError(400, f"{location} must be a tool of the program, got type {tool['type']!r:.80}.")
        tools.append(read_tool(location, tool.get("name"), tool.get("description"), tool.get("input_schema")))
    used = ("messages", "system", "tools", "tool_choice", "stop_sequences", "mcp_servers", "container")
    return make_request(body, messages, tools, used=used, protocol="messages")


def write(request: ModelRequest, turn: ModelTurn, identifier: str) -> bytes:
    """Format the response as one object."""
    blocks = _blocks(turn)
    return json.dumps({**_head(request, turn, identifier), "content": blocks, "stop_reason": _reason(turn)}).encode()


def stream(request: ModelRequest, turn: ModelTurn, identifier: str) -> Iterator[bytes]:
    """Format the response as server-sent events."""

    def named(kind: str, **fields: Any) -> bytes:
        return event({"type": kind, **fields}, kind)

    yield named("message_start", message={**_head(request, turn, identifier), "content": [], "stop_reason": None})
    for index, block in enumerate(_blocks(turn)):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            text = json.dumps(block["input"], ensure_ascii=False)
            empty, delta = {**block, "input": {}}, {"type": "input_json_delta", "partial_json": text}
        yield named("content_block_start", index=index, content_block=empty)
        yield named("content_block_delta", index=index, delta=delta)
        yield named("content_block_stop", index=index)
    end = {"stop_reason": _reason(turn), "stop_sequence": None}
    yield named("message_delta", delta=end, usage=_usage(turn))
    yield named("message_stop")


def _assistant(location: str, blocks: list[dict[str, Any]]) -> list[Message]:
    texts = [block for block in blocks if block.get("type") not in ("tool_use", *_THINKING)]
    calls: list[ToolCall] = [
        read_call(location, block.get("name"), block.get("input"), block.get("id"))
        for block in blocks
        if block.get("type") == "tool_use"
    ]
    return [Message("assistant", text_of(location, texts), tool_calls=tuple(calls))]


def _user(location: str, blocks: list[dict[str, Any]]) -> list[Message]:
    """Read the results of calls, each a message of its own, and the text after them."""
    results = [
        Message("tool", text_of(location, block.get("content")), tool_call_id=str(block.get("tool_use_id")))
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    texts = [block for block in blocks if block.get("type") != "tool_result"]
    return [*results, *([Message("user", text_of(location, texts))] if texts or not results else [])]


def _blocks(turn: ModelTurn) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": turn.content}] if turn.content or not turn.calls else []
    calls = [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(arguments_text(call))}
        for call in turn.calls
    ]
    return [*text, *calls]


def _reason(turn: ModelTurn) -> str:
    return "tool_use" if turn.calls else "max_tokens" if turn.is_cut else "end_turn"


def _usage(turn: ModelTurn) -> dict[str, int]:
    return {"input_tokens": turn.prompt_tokens, "output_tokens": turn.completion_tokens}


def _head(request: ModelRequest, turn: ModelTurn, identifier: str) -> dict[str, Any]:
    head = {"id": f"msg_{identifier}", "type": "message", "role": "assistant", "model": request.model}
    return {**head, "stop_sequence": None, "usage": _usage(turn)}
