"""OpenAI's Responses API, as far as the Agents SDK needs it: `POST /v1/responses`, without state on the server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
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

_ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "top_logprobs": (0,),
    "text": ({"format": {"type": "text"}}, {}),
    "prompt": (),
}


def read(body: Mapping[str, Any]) -> ModelRequest:
    """Read a request.

    Raises:
        RequestError: a field is wrong, missing or not supported.
    """
    text, ignored = body.get("text"), tuple[str, ...]()
    if isinstance(text, dict) and text.get("verbosity") is not None:  # in chat completions it is a field of its own
        text, ignored = {name: value for name, value in text.items() if name != "verbosity"}, ("text.verbosity",)
    idle = {**_REFUSED, **idle_tool_fields(body)}
    refuse({**body, "text": text}, idle)
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else list_of("input", given)
    messages: list[Message] = []
    if instructions := text_of("instructions", body.get("instructions")):
        messages.append(Message("system", instructions))
    for number, item in enumerate(items):
        message = _message(f"input[{number}]", item)
        if message is None:
            continue
        if message.role == "assistant" and messages and messages[-1].role == "assistant":  # text and calls of one turn
            first = messages.pop()
            message = replace(
                first, content=first.content + message.content, tool_calls=(*first.tool_calls, *message.tool_calls)
            )
        messages.append(message)
    tools = [_tool(number, entry) for number, entry in enumerate(list_of("tools", body.get("tools")))]
    used = ("input", "instructions", "tools", *idle)
    return make_request(body, messages, tools, used=used, protocol="responses", ignored=ignored)


def write(request: ModelRequest, turn: ModelTurn, identifier: str) -> bytes:
    """Format the response as one object."""
    return json.dumps(_response(request, turn, identifier)).encode()


def stream(request: ModelRequest, turn: ModelTurn, identifier: str) -> Iterator[bytes]:
    """Format the response as server-sent events."""
    whole = _response(request, turn, identifier)
    number = -1

    def numbered(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield numbered("response.created", response=begun)
    yield numbered("response.in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield numbered(
            "response.output_item.added", output_index=index, item={**item, "status": "in_progress", **empty}
        )
        if item["type"] == "message":
            part = item["content"][0]
            yield numbered("response.content_part.added", **place, content_index=0, part={**part, "text": ""})
            yield numbered("response.output_text.delta", **place, content_index=0, delta=part["text"], logprobs=[])
            yield numbered("response.output_text.done", **place, content_index=0, text=part["text"], logprobs=[])
            yield numbered("response.content_part.done", **place, content_index=0, part=part)
        else:
            yield numbered("response.function_call_arguments.delta", **place, delta=item["arguments"])
            done = {"arguments": item["arguments"], "name": item["name"]}
            yield numbered("response.function_call_arguments.done", **place, **done)
        yield numbered("response.output_item.done", output_index=index, item=item)
    yield numbered(f"response.{whole['status']}", response=whole)


def _usage(turn: ModelTurn) -> dict[str, Any]:
    """Return the counts; the details, which clients require, are not known."""
    read, sampled = turn.prompt_tokens, turn.completion_tokens
    return {
        **{"input_tokens": read, "input_tokens_details": {"cached_tokens": 0}},
        **{"output_tokens": sampled, "output_tokens_details": {"reasoning_tokens": 0}},
        "total_tokens": read + sampled,
    }


def _message(location: str, item: Mapping[str, Any]) -> Message | None:
    """Read an item of the input; None for one that holds nothing for the model."""
    kind = item.get("type", "message")
    if kind == "message":
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            raise RequestError(
                400, f"{location}.role must be one of {', '.join(_ROLES)}, got {item.get('role')!r:.80}."
            )
        return Message(role, text_of(f"{location}.content", item.get("content")))
    if kind == "function_call":
        call = read_call(location, item.get("name"), item.get("arguments"), item.get("call_id"))
        return Message("assistant", "", tool_calls=(call,))
    if kind == "function_call_output":
        return Message("tool", text_of(f"{location}.output", item.get("output")), tool_call_id=str(item.get("call_id")))
    if kind == "reasoning":
        return None
    raise RequestError(400, f"{location}: items of type {kind!r:.80} are not supported.")


def _tool(number: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    if entry.get("type") != "function":
        raise RequestError(400, f"tools[{number}] must be a function, got type {entry.get('type')!r:.80}.")
    return read_tool(f"tools[{number}]", entry.get("name"), entry.get("description"), entry.get("parameters"))


def _response(request: ModelRequest, turn: ModelTurn, identifier: str) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    status = "incomplete" if turn.is_cut and not turn.calls else "completed"
    why = {"reason": "max_output_tokens"} if status == "incomplete" else None
    if turn.content or not turn.calls:
        part = {"type": "output_text", "text": turn.content, "annotations": [], "logprobs": []}
        head = {"type": "message", "id": f"msg_{identifier}", "role": "assistant", "status": status}
        output.append({**head, "content": [part]})
    for number, call in enumerate(turn.calls):
        head = {"type": "function_call", "id": f"fc_{identifier}_{number}", "status": "completed"}
        output.append({**head, "call_id": call.id, "name": call.name, "arguments": arguments_text(call)})
    return {
        "id": f"resp_{identifier}",
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": request.model,
        "output": output,
        **{"error": None, "incomplete_details": why, "instructions": None, "metadata": {}, "usage": _usage(turn)},
        **{"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "temperature": None, "top_p": None},
        **({"ignored": list(request.ignored)} if request.ignored else {}),
    }
