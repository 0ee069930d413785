"""What the protocols share: fields, texts, tools, the order of a conversation, and the shape of errors.

A field is supported, refused because the reply would not be what it asks for, or ignored. Fields of sampling are
ignored, and listed in the response: the training or evaluation decides how tokens are sampled.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_r1_gym.core.parsing.base import decode
from agent_r1_gym.core.types import Message, ParseError, ToolCall
from agent_r1_gym.gateway.episode import ModelRequest, content_key
from agent_r1_gym.support.http_server import RequestError

_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_KINDS = {
    **{400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 413: "request_too_large"},
    429: "rate_limit_error",
}
_TRANSPORT = ("stream", "stream_options", "metadata", "user", "store", "service_tier")
"""Fields that change how a reply is sent or filed, and not what it says."""
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
"""Types of content parts that hold text."""


def error_body(status: int, message: str) -> bytes:
    """Format an error for clients of all protocols: what OpenAI's read is inside of what Anthropic's read."""
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")
    text = " ".join(message.split())
    error = {"type": kind, "message": text, "param": None, "code": status}
    return json.dumps({"type": "error", "error": error}).encode()


def make_request(
    body: Mapping[str, Any],
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    *,
    used: Sequence[str],
    protocol: str,
    ignored: Sequence[str] = (),
) -> ModelRequest:
    """Make the request of a body, after the checks that all protocols share.

    Args:
        body: the body.
        messages: its conversation.
        tools: its tools, as OpenAI-style function schemas.
        used: fields that the protocol reads or refuses.
        protocol: name of the protocol: part of the key.
        ignored: parts of used fields that have no effect.

    Raises:
        RequestError: a field or the order of the messages is wrong.
    """
    model, stream = body.get("model"), body.get("stream") or False
    if not isinstance(model, str) or not model:
        raise RequestError(400, f"model must be the name of a model, got {model!r:.80}.")
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RequestError(400, "The request holds a lone surrogate, half of a character.") from None
    if not isinstance(stream, bool):
        raise RequestError(400, f"stream must be true or false, got {stream!r:.80}.")
    _check_order(messages)
    unused = [name for name in body if name not in (*used, "model", *_TRANSPORT) and body[name] is not None]
    options = body.get("stream_options")
    return ModelRequest(
        _in_order(_with_names(messages)),
        tuple(tools),
        key=f"{protocol} {content_key(body, without=_TRANSPORT)}",
        model=model,
        stream=stream,
        stream_usage=isinstance(options, dict) and options.get("include_usage") is True,
        ignored=tuple(sorted([*unused, *ignored])),
    )


def idle_tool_fields(body: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the values of OpenAI's fields about calls that ask for nothing (see `refuse`): more without tools."""
    if body.get("tools"):
        return {"tool_choice": ("auto",), "parallel_tool_calls": (True,)}
    return {"tool_choice": ("auto", "none"), "parallel_tool_calls": (True, False)}


def refuse(body: Mapping[str, Any], accepted: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse fields whose wish cannot be fulfilled.

    Args:
        body: the body.
        accepted: by field, the values that ask for nothing; in objects, fields that are null or false ask for nothing
            either.

    Raises:
        RequestError: a field has another value.
    """
    for name, idle in accepted.items():
        value = body.get(name)
        if isinstance(value, dict):
            value = {key: part for key, part in value.items() if part is not None and part is not False}
        if value is not None and not any(value == each and type(value) is type(each) for each in idle):
            raise RequestError(400, f"{name}={body[name]!r:.80} is not supported here; drop it.")


def text_of(location: str, content: Any) -> str:
    """Read a text, or a list of text parts.

    Raises:
        RequestError: it is something else, such as an image.
    """
    if content is None:
        return ""
    if isinstance(content, list):
        kinds = [part.get("type", "text") if isinstance(part, dict) else type(part).__name__ for part in content]
        others = [kind for kind in kinds if kind not in TEXT_PARTS]
        if others:
            raise RequestError(400, f"{location}: only text is supported, got a part of type {others[0]!r:.40}.")
        names = ("refusal" if kind == "refusal" else "text" for kind in kinds)
        content = "".join(text_of(location, part.get(name)) for part, name in zip(content, names, strict=True))
    if not isinstance(content, str):
        raise RequestError(400, f"{location} must be text, got {type(content).__name__}.")
    return content


def list_of(location: str, value: Any) -> list[dict[str, Any]]:
    """Read a list of objects; None is an empty one.

    Raises:
        RequestError: it is something else.
    """
    value = [] if value is None else value
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise RequestError(400, f"{location} must be a list of objects, got {value!r:.80}.")
    return value


def read_call(location: str, name: Any, arguments: Any, identifier: Any) -> ToolCall:
    """Read a call that the program sends back.

    Raises:
        RequestError: a part of it is missing or malformed.
    """
    if not isinstance(name, str) or not isinstance(identifier, str):
        raise RequestError(
            400, f"{location} must be a call with a name and an id, got {name!r:.40}, {identifier!r:.40}."
        )
    if isinstance(arguments, str):
        # Read as a turn of the model is: JSON within a text passes the checks of the body, such as that of its depth.
        arguments = decode(arguments) if arguments.strip() else {}
        if isinstance(arguments, ParseError):
            problem = f"{arguments.message} {arguments.quote}".strip()
            raise RequestError(400, f"{location}: the arguments are not JSON that can be used: {problem}")
    if not isinstance(arguments, dict):
        raise RequestError(400, f"{location}: the arguments must be an object, got {arguments!r:.80}.")
    return ToolCall(name, arguments, identifier)


def read_tool(location: str, name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """Read a tool that the program offers, as an OpenAI-style function schema.

    Raises:
        RequestError: a part of it is missing or malformed.
    """
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise RequestError(400, f"{location} must be a function with a name, got {name!r:.80}.")
    parameters = {"type": "object", "properties": {}} if parameters is None else parameters
    if not isinstance(parameters, dict):
        raise RequestError(400, f"{location}: the parameters must be a JSON schema, got {parameters!r:.80}.")
    function = {"name": name, "description": text_of(location, description), "parameters": parameters}
    return {"type": "function", "function": function}


def event(value: Mapping[str, Any], name: str = "") -> bytes:
    """Format a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()


def arguments_text(call: ToolCall) -> str:
    """Return the arguments of a call as JSON text."""
    return json.dumps(dict(call.arguments), ensure_ascii=False)


def _check_order(messages: Sequence[Message]) -> None:
    """Refuse a conversation that does not wait for the model, or results of calls that no turn made."""
    if not messages or not any(message.role in ("user", "tool") for message in messages):
        raise RequestError(400, "The conversation has no message of a user.")
    if messages[-1].role == "assistant":
        raise RequestError(400, "The conversation ends with the assistant: a turn cannot be continued here.")
    open_calls: set[str | None] = set()
    for number, message in enumerate(messages):
        if message.role == "assistant":
            open_calls = {call.id for call in message.tool_calls}
        elif message.role == "tool" and message.tool_call_id not in open_calls:
            raise RequestError(
                400,
                f"Message {number} is the result of {message.tool_call_id!r:.80}, which the turn before did not call.",
            )


def _with_names(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Name the results by the tools of their calls: protocols give only the id."""
    names: dict[str | None, str] = {}
    named = []
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        named.append(replace(message, name=names.get(message.tool_call_id)) if message.role == "tool" else message)
    return tuple(named)


def _in_order(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Sort the results of a turn by its calls: few formats show ids, and a model matches results by their order."""
    ordered: list[Message] = []
    for is_result, group in itertools.groupby(messages, lambda message: message.role == "tool"):
        if is_result:  # behind the turn that called (see `_check_order`)
            places = {call.id: place for place, call in enumerate(ordered[-1].tool_calls)}
            group = iter(sorted(group, key=lambda result: places.get(result.tool_call_id or "", 0)))
        ordered += group
    return tuple(ordered)
