"""OpenAI's chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from agent_r1_gym.core.types import Message, Role
from agent_r1_gym.gateway.episode import ModelRequest, ModelTurn
from agent_r1_gym.gateway.protocols.fields import (
    arguments_text,
    event,
    idle_tool_fields,
    list_of,
    make_request,
    read_call,
    read_tool,
    refuse,
    text_of,
)
from agent_r1_gym.support.http_server import RequestError

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "stop": ([], ""),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("auto", "none"),
    "audio": (),
    "echo": (False,),
    "web_search_options": (),
}


def read(body: Mapping[str, Any]) -> ModelRequest:
    """Read a request.

    Raises:
        RequestError: a field is wrong, missing or not supported.
    """
    idle = {**_REFUSED, **idle_tool_fields(body)}
    refuse(body, idle)
    messages = [_message(number, entry) for number, entry in enumerate(list_of("messages", body.get("messages")))]
    tools = [_tool(number, entry) for number, entry in enumerate(list_of("tools", body.get("tools")))]
    used = ("messages", "tools", *idle)
    return make_request(body, messages, tools, used=used, protocol="chat.completions")


def write(request: ModelRequest, turn: ModelTurn, identifier: str) -> bytes:
    """Format the response as one object."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.content or None, "refusal": None}
    if turn.calls:
        message["tool_calls"] = _calls(turn)
    elif not turn.content:
        message["content"] = ""
    choice = {"index": 0, "message": message, "finish_reason": _reason(turn), "logprobs": None}
    head = _head(request, identifier, "chat.completion")
    return json.dumps({**head, "choices": [choice], "usage": _usage(turn), **_ignored(request)}).encode()


def stream(request: ModelRequest, turn: ModelTurn, identifier: str) -> Iterator[bytes]:
    """Format the response as server-sent events."""
    head = _head(request, identifier, "chat.completion.chunk") | ({"usage": None} if request.stream_usage else {})

    def chunk(delta: Mapping[str, Any], reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return event({**head, "choices": [choice], **more})

    yield chunk({"role": "assistant", "content": turn.content})
    for number, call in enumerate(_calls(turn)):
        yield chunk({"tool_calls": [{"index": number, **call}]})
    yield chunk({}, _reason(turn), **_ignored(request))
    if request.stream_usage:
        yield event({**head, "choices": [], "usage": _usage(turn)})
    yield b"data: [DONE]\n\n"


def _message(number: int, entry: Mapping[str, Any]) -> Message:
    location, role = f"messages[{number}]", _ROLES.get(str(entry.get("role")))
    if role is None:
        raise RequestError(400, f"{location}.role must be one of {', '.join(_ROLES)}, got {entry.get('role')!r:.80}.")
    text = text_of(f"{location}.content", entry.get("content"))
    if role == "tool":
        return Message("tool", text, tool_call_id=str(entry.get("tool_call_id")))
    if role == "assistant":
        text = text or text_of(f"{location}.refusal", entry.get("refusal"))
    calls = []
    for call in list_of(f"{location}.tool_calls", entry.get("tool_calls") if role == "assistant" else None):
        function: Any = call.get("function")
        name, arguments = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else ("", "")
        calls.append(read_call(location, name, arguments, call.get("id")))
    return Message(role, text, tool_calls=tuple(calls))


def _tool(number: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    location, function = f"tools[{number}]", entry.get("function")
    if entry.get("type") != "function" or not isinstance(function, dict):
        raise RequestError(400, f"{location} must be a function, got type {entry.get('type')!r:.80}.")
    return read_tool(location, function.get("name"), function.get("description"), function.get("parameters"))


def _calls(turn: ModelTurn) -> list[dict[str, Any]]:
    return [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_text(call)}}
        for call in turn.calls
    ]


def _reason(turn: ModelTurn) -> str:
    return "tool_calls" if turn.calls else "length" if turn.is_cut else "stop"


def _usage(turn: ModelTurn) -> dict[str, int]:
    read, sampled = turn.prompt_tokens, turn.completion_tokens
    return {"prompt_tokens": read, "completion_tokens": sampled, "total_tokens": read + sampled}


def _head(request: ModelRequest, identifier: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{identifier}", "object": kind, "created": int(time.time()), "model": request.model}


def _ignored(request: ModelRequest) -> dict[str, Any]:
    return {"ignored": list(request.ignored)} if request.ignored else {}
