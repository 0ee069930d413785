"""ResponseFormat: from the text of a sampled turn to reasoning, content and calls, by a declarative response template.

transformers reads a turn by a *response template*: which marks open and close the reasoning, a call and the text. Some
tokenizers bring one, TRL has those of many families, and a few stand here: of families that neither covers, and where
models write more than theirs read. Which one fits is not looked up by name but tested: it must read back what the chat
template writes (see `ToolTemplate`).
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers.utils.chat_parsing import ResponseParser

from agent_r1_gym.core.parsing.base import bad_json
from agent_r1_gym.core.parsing.parsers import not_a_call
from agent_r1_gym.core.types import ParseError

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_TEXT_FIELDS = ("content", "response")
_CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
_TEXT = {"content": "text"}
_MAX_QUOTE = 80
UNREAD = "A part of the turn is neither reasoning, a call nor text in this model's format, so nothing was executed:"
LEFTOVER = "A part of the tool call cannot be read, so nothing was executed:"
_FIRST_LITERAL = re.compile(r"<[\w=]+>?")
_LAST_TAG = re.compile(r"</\w+>\Z")
_MAX_OPEN = 64
"""Maximum number of opened parameters in front of one that is closed: a value may contain their mark."""
MALFORMED = "The turn has marks of a tool call, but no call can be read from it, so nothing was executed."


@dataclass(frozen=True)
class Response:
    """What was read from a turn.

    Attributes:
        content: the text outside of reasoning and calls.
        reasoning: the reasoning; None if there is none.
        calls: the calls, in OpenAI's form as far as the model wrote it.
        errors: what could not be read. Calls next to an error are not reported: the turn is malformed as a whole.
        closed: False if the turn ends within its reasoning.
    """

    content: str = ""
    reasoning: str | None = None
    calls: tuple[Any, ...] = ()
    errors: tuple[ParseError, ...] = ()
    closed: bool = True


@dataclass(frozen=True)
class ResponseFormat:
    """One response template.

    Attributes:
        template: in the declarative form of transformers.
        read_calls: reads all calls from the text between their marks where no parser of transformers can; None: one
            of theirs reads each call.
    """

    template: Mapping[str, Any]
    read_calls: Callable[[str], list[Any]] | None = None

    def read(self, text: str, *, end: str, prefix: str, tools: Sequence[Mapping[str, Any]]) -> Response:
        """Read a turn.

        Args:
            text: the turn.
            end: text of the token that ended it, without which some templates do not see the end of a call.
            prefix: the prompt, which may have opened the reasoning.
            tools: schemas of the tools, for the types of arguments that are written without quotes.
        """
        response = self._read(text, prefix, tools)
        return self._read(text + end, prefix, tools) if response.errors and end else response

    def _read(self, text: str, prefix: str, tools: Sequence[Mapping[str, Any]]) -> Response:
        try:
            if problem := self._unclosed(text, prefix):
                return Response(text, errors=(problem,))
            return self._response(self._regions(self.template, text, prefix, tools), text)
        except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            return Response(text, errors=(_parse_error(error),))

    def _regions(
        self, template: Mapping[str, Any], text: str, prefix: str, tools: Sequence[Mapping[str, Any]] = ()
    ) -> list[_Region]:
        anchored = self._anchor.search(prefix) is not None
        parser = ResponseParser(dict(template), prefix=prefix if anchored else "", tools=[*map(dict, tools)])
        events = [*parser.initial_events, *parser.feed(text)]
        return list(_regions([*events, *parser.finalize()[1]]))

    def _unclosed(self, text: str, prefix: str) -> ParseError | None:
        """Report parameters in tags that are never closed.

        The inline parser of transformers reads such a call too, in a time that grows with the square of its length, and
        with the cube of white space in it: a model that repeats itself would stop the run.
        """
        fields = self.template["fields"]
        if fields.get("tool_calls", {}).get("content") != "xml-inline":
            return None
        pattern = fields["tool_calls"]["content_args"]["tag_pattern"]
        opening, closing = _FIRST_LITERAL.match(pattern), _LAST_TAG.search(pattern)
        if opening is None or closing is None or opening.group() not in text:
            return None
        as_text = {**fields["tool_calls"], "content": "text", "content_args": {}}
        outline = {**self.template, "fields": {**fields, "tool_calls": as_text}}
        for region in self._regions(outline, text, prefix):
            *closed, last = region.body.split(closing.group())
            if region.field != "tool_calls" or not region.body:
                continue
            if opening.group() in last:
                return ParseError("malformed_call", LEFTOVER, _quote(last[last.index(opening.group()) :]))
            if any(part.count(opening.group()) > _MAX_OPEN for part in closed):
                return ParseError("malformed_call", LEFTOVER, _quote(region.body))
        return None

    @property
    def _anchor(self) -> Any:
        literal, pattern = self.template.get("start_anchor"), self.template.get("start_anchor_pattern")
        literals = [literal] if isinstance(literal, str) else literal or ()
        return re.compile(pattern or "|".join(map(re.escape, literals)))

    def _response(self, regions: Sequence[_Region], text: str) -> Response:
        content = "".join(region.body for region in regions if region.field in _TEXT_FIELDS).strip()
        reasoning = [region for region in regions if region.field in REASONING_FIELDS]
        calls: list[Any] = []
        for region in regions:
            if region.field != "tool_calls":
                continue
            if problem := self._leftover(region.body):
                return Response(text, errors=(problem,))
            values = region.value if self.read_calls is None else self.read_calls(region.body)
            calls += values if isinstance(values, list) else [values]
        for call in calls:
            body = call.get("function", call) if isinstance(call, dict) else call
            if not isinstance(body, dict):
                return Response(text, errors=(not_a_call(body),))
        for region in regions:
            if region.field == "unread" and region.body.strip():
                return Response(text, errors=(ParseError("malformed_call", UNREAD, _quote(region.body.strip())),))
        return Response(
            content,
            "\n".join(region.body.strip() for region in reasoning) if reasoning else None,
            tuple(map(_as_entry, calls)),
            closed=not (reasoning and reasoning[-1] is regions[-1] and _is_open(reasoning[-1].body, text)),
        )

    def _leftover(self, body: str) -> ParseError | None:
        """Report what the inline parser of transformers skips: text between parameters, and repeated parameters."""
        options = self.template["fields"]["tool_calls"]
        if options.get("content") != "xml-inline":
            return None
        pattern = re.compile(options["content_args"]["tag_pattern"], re.DOTALL)
        rest = pattern.sub("", body).replace("</function>", "").strip(" \t\n\r,")
        if rest:
            return ParseError("malformed_call", LEFTOVER, _quote(rest))
        names = Counter(match.group("key") for match in pattern.finditer(body))
        repeated = [name for name, number in names.items() if number > 1]
        return (
            ParseError("malformed_call", "A tool call has a parameter twice:", _quote(repeated[0]))
            if repeated
            else None
        )


@dataclass
class _Region:
    """A part of a turn: the field that it belongs to, its text, and what a parser of transformers made of it."""

    field: str
    body: str = ""
    value: Any = None


def _regions(events: Sequence[Mapping[str, Any]]) -> Iterator[_Region]:
    current: _Region | None = None
    for event in events:
        if event["type"] == "region_open":
            current = _Region(event["field"])
            yield current
        elif event["type"] == "region_chunk" and current is not None:
            current.body += event["text"]
        elif current is not None:
            current.value = event["value"]


def _is_open(body: str, text: str) -> bool:
    """Return whether the last part of a turn goes up to its end, with no mark that closes it."""
    return bool(body) and (text.endswith(body) or body.endswith(text))


def _as_entry(call: Any) -> Any:
    """Return a call in OpenAI's form; whatever else the model wrote in it stays, for the environment to report."""
    if not isinstance(call, dict) or "function" in call:
        return call
    identifier = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    function = {name: value for name, value in call.items() if name not in ("id", "type")}
    return {**identifier, "type": "function", "function": function}


def _parse_error(error: Exception) -> ParseError:
    cause = error if isinstance(error, json.JSONDecodeError) else error.__cause__
    if isinstance(cause, json.JSONDecodeError):
        return bad_json(cause, cause.doc, " in a tool call")
    if isinstance(error, _NotACall):
        return ParseError("malformed_call", f"The tool call cannot be read, so nothing was executed: {error}.")
    if isinstance(error, SyntaxError):
        return ParseError("malformed_call", "The tool call is not Python, so nothing was executed:", _quote(error.msg))
    return ParseError("malformed_call", MALFORMED)


def _quote(text: str) -> str:
    return text[:_MAX_QUOTE]


# --- response templates ----------------------------------------------------------------------------------------------


class _NotACall(ValueError):
    """Something else stands where a list of Python calls was expected; the model reads why."""


def read_python_calls(text: str) -> list[Any]:
    """Read calls that are written as a list of Python calls: `[search(query='x'), ping()]`.

    Raises:
        ValueError: it is not such a list.
        SyntaxError: it is not Python.
    """
    tree = ast.parse(text.strip(), mode="eval").body
    if not isinstance(tree, ast.List):
        raise _NotACall("the calls are not a list in [ ]")
    return [_python_call(node) for node in tree.elts]


def _python_call(node: ast.expr) -> dict[str, Any]:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise _NotACall("an element of the list is not a call with named arguments")
    names = [str(keyword.arg) for keyword in node.keywords]
    if len(set(names)) < len(names):
        raise _NotACall("an argument has two values")
    try:
        values = [ast.literal_eval(_JsonConstants().visit(keyword.value)) for keyword in node.keywords]
    except ValueError as error:
        raise _NotACall("an argument is not a plain value, such as a text, a number or a list") from error
    if not all(map(_is_json, values)):
        raise _NotACall("an argument is a value that JSON does not have")
    return {"name": ast.unparse(node.func), "arguments": dict(zip(names, values, strict=True))}


def _is_json(value: Any) -> bool:
    """Return whether JSON has a value that a Python literal may be: not bytes, sets, complex numbers, Ellipsis."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | int | float)


class _JsonConstants(ast.NodeTransformer):
    """Replaces the constants of JSON, which templates write within lists and objects, by Python's."""

    _values: Mapping[str, Any] = {"true": True, "false": False, "null": None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._values[node.id]) if node.id in self._values else node


_LLAMA = {
    # More than TRL's template reads, as vLLM does: the python tag, a "type", "arguments", several calls.
    "start_anchor": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "fields": {
        "tool_calls": {
            "open_pattern": r'(?:<\|python_tag\|>)?\{\s*(?:"type":\s*"function",\s*)?"name":\s*"(?P<name>[^"]+)",\s*'
            r'"(?:parameters|arguments)":\s*',
            "close_pattern": r"\}\s*(?:<\|eo[tm]_id\|>|;\s*(?=\{)|$)\s*",
            "repeats": True,
            "content": "json",
            "transform": _CALL,
        },
        "content": {"close_pattern": r"<\|eo[tm]_id\|>\s*", **_TEXT},
    },
}
_GPT_OSS = {
    # TRL's template reads what the chat template writes; the model itself names the receiver in the channel, and
    # constrains the content: <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>
    "start_anchor": "<|start|>assistant",
    "fields": {
        "thinking": {
            "open": "<|channel|>analysis<|message|>",
            "close_pattern": r"<\|end\|>\s*(?:<\|start\|>assistant)?",
            "repeats": True,
            "join": "\n",
            **_TEXT,
        },
        "content": {
            "open": ["<|channel|>final<|message|>", "<|channel|>commentary<|message|>"],
            "close_pattern": r"(?:<\|return\|>|<\|end\|>)\s*(?:<\|start\|>assistant)?",
            "repeats": True,
            "join": "\n",
            **_TEXT,
        },
        "tool_calls": {
            "open_pattern": r"(?:<\|channel\|>(?:commentary|analysis))?\s*to=functions\.(?P<name>[\w.-]+)\s*"
            r"(?:<\|channel\|>(?:commentary|analysis))?\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>",
            "close_pattern": r"<\|call\|>\s*",
            "repeats": True,
            "content": "json",
            "transform": _CALL,
        },
        "unread": _TEXT,
    },
}
_LFM2 = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>", "close_pattern": r"</think>\s*", **_TEXT},
        "tool_calls": {
            "open": "<|tool_call_start|>",
            "close_pattern": r"<\|tool_call_end\|>\s*",
            "repeats": True,
            **_TEXT,
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", **_TEXT},
    },
}
_MISTRAL = {  # one list of all calls, up to the tokenizer's version 7
    "start_anchor": "[/INST]",
    "fields": {
        "thinking": {"open": "[THINK]", "close_pattern": r"\[/THINK\]\s*", **_TEXT},
        "tool_calls": {"open_pattern": r"\[TOOL_CALLS\]\s*(?=\[)", "close_pattern": r"</s>\s*", "content": "json"},
        "content": {"close_pattern": r"</s>\s*", **_TEXT},
    },
}
_MISTRAL_11 = {  # a name and its arguments for each call, since version 11
    "start_anchor": "[/INST]",
    "fields": {
        "thinking": {"open": "[THINK]", "close_pattern": r"\[/THINK\]\s*", **_TEXT},
        "tool_calls": {
            "open_pattern": r"\[TOOL_CALLS\]\s*(?P<name>[^\s\[\]{}]+)\s*(?:\[CALL_ID\]\w+)?\s*(?:\[ARGS\])?\s*(?=\{)",
            "close_pattern": r"(?=\[TOOL_CALLS\])|</s>\s*",
            "repeats": True,
            "content": "json",
            "transform": _CALL,
        },
        "content": {"close_pattern": r"</s>\s*", **_TEXT},
    },
}
_DEEPSEEK = {
    "start_anchor_pattern": "<｜Assistant｜>(?:</think>)?",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", **_TEXT},
        "tool_calls": {
            "open_pattern": r"(?:<｜tool▁calls▁begin｜>)?\s*<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?"
            r"(?P<name>[^\n<]+?)(?:<｜tool▁sep｜>|\n```json\n)",
            "close_pattern": r"(?:\n```)?<｜tool▁call▁end｜>\s*(?:<｜tool▁calls▁end｜>)?",
            "repeats": True,
            "content": "json",
            "transform": _CALL,
        },
        "content": {"close_pattern": r"<｜end▁of▁sentence｜>\s*", **_TEXT},
    },
}
_KIMI = {
    "start_anchor": "<|im_assistant|>assistant<|im_middle|>",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*", **_TEXT},
        "tool_calls": {
            "open_pattern": r"(?:<\|tool_calls_section_begin\|>)?\s*<\|tool_call_begin\|>\s*(?:functions\.)?"
            r"(?P<name>[\w.-]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>",
            "close_pattern": r"<\|tool_call_end\|>\s*(?:<\|tool_calls_section_end\|>)?",
            "repeats": True,
            "content": "json",
            "transform": _CALL,
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", **_TEXT},
    },
}
_GRANITE = {
    "start_anchor": "<|start_of_role|>assistant<|end_of_role|>",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<\|tool_call\|>\s*",
            "close_pattern": r"<\|end_of_text\|>\s*",
            "content": "json",
        },
        "content": {"close_pattern": r"<\|end_of_text\|>\s*", **_TEXT},
    },
}
_COMMAND = {
    "start_anchor": "<|CHATBOT_TOKEN|>",
    "fields": {
        "thinking": {"open": "<|START_THINKING|>", "close_pattern": r"<\|END_THINKING\|>\s*", **_TEXT},
        "tool_calls": {
            "open": "<|START_ACTION|>",
            "close_pattern": r"<\|END_ACTION\|>\s*",
            "content": "json",
            "transform": {
                "id": "{tool_call_id}",
                "type": "function",
                "function": {"name": "{tool_name}", "arguments": "{parameters}"},
            },
            "transform_each": True,
        },
        "response": {"open": "<|START_RESPONSE|>", "close_pattern": r"<\|END_RESPONSE\|>\s*", **_TEXT},
        "content": {"close_pattern": r"<\|END_OF_TURN_TOKEN\|>\s*", **_TEXT},
    },
}
_TRL = ("qwen3", "qwen3_5", "glm4moe", "nemotron_3", "gemma4", "deepseek_r1_distill")


def known_formats(tokenizer: Any) -> Iterator[ResponseFormat]:
    """Yield the response templates to try, the tokenizer's own first."""
    own = getattr(tokenizer, "response_template", None)
    if own is not None:
        yield ResponseFormat(own)
    from trl import chat_template_utils  # takes seconds, which only this parser needs

    for template in (_LLAMA, _GPT_OSS):
        yield ResponseFormat(template)
    for name in _TRL:
        theirs = getattr(chat_template_utils, f"{name}_template", None)
        if theirs is not None:
            yield ResponseFormat(theirs)
    yield ResponseFormat(_LFM2, read_python_calls)
    for template in (_MISTRAL, _MISTRAL_11, _DEEPSEEK, _KIMI, _GRANITE, _COMMAND):
        yield ResponseFormat(template)
