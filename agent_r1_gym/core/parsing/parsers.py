"""The formats of model turns, one parser class each, and `make_parser`, which finds them by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_r1_gym.core.parsing.base import (
    Parser,
    SingleToolParser,
    TagParser,
    Tags,
    decode,
    example_call,
    scan,
    signature,
)
from agent_r1_gym.core.parsing.thoughts import THOUGHT_MARKS, visible_text
from agent_r1_gym.core.text import encodable
from agent_r1_gym.core.types import PARSE_ERROR_CODES, Message, ParsedTurn, ParseError, ToolCall
from agent_r1_gym.errors import ConfigurationError, near_names
from agent_r1_gym.support.packages import import_object, load_plugin, plugins, warn_of_shadowing

_MARK_IN_JSON = re.compile(
    "|".join(
        f"{re.escape(mark[0])}(?={re.escape(mark[1:])})"
        for marks in (("<tool_call>", "</tool_call>"), *THOUGHT_MARKS)
        for mark in marks
    ),
    re.IGNORECASE,
)
_OPENING_FENCE = re.compile(r"\A```[A-Za-z0-9]{0,16}[ \t]*\n")
HOW_TO_ANSWER = "When you know the answer, write only the answer, as short as possible:"
"""What the instructions of a format say before the form of an answer."""
_CALL_KEYS = frozenset({"name", "arguments"})
_MAX_QUOTE = 80
_MISPLACED_KEYS = frozenset({"arguments", "parameters", "args", "params", "kwargs", "input"})
"""Keys next to the "function" of a structured call that would hold its arguments; all others are the server's own."""
_FUNCTION_KEYS = _CALL_KEYS | {
    *("strict", "parsed_arguments", "description"),
    *("extra_content", "provider_specific_fields"),  # Gemini's thought signatures
}
"""What clients and servers write next to the name and arguments of a structured call, without a meaning for it."""


class HermesParser(TagParser):
    """Hermes / Nous / Qwen format, as Agent-R1 uses it; the default.

    A call is `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, the answer `<answer>...</answer>`. Text around
    them is free; `<think>...</think>` is not parsed.
    """

    name = "hermes"
    suits = "Qwen2.5, Qwen3, Hermes, and any other model that follows the system turn"
    call_tag = "tool_call"
    tool_styles = ("schema", "signature")

    def __init__(self, tool_style: str | None = None) -> None:
        self.tool_style = check_tool_style(self, tool_style)

    def read_call(self, body: str) -> ToolCall | ParseError:
        """Read the JSON object between the tags (see the base class)."""
        value = decode(body)
        if isinstance(value, dict):
            return _to_call(value, _CALL_KEYS)
        if not body.strip():
            return ParseError("empty_call", "The tool call is empty. Write a JSON object between the tags.")
        if isinstance(value, ParseError):
            inner = self._tags.exact.search(body)
            if inner and (not body[: inner.start()].strip() or isinstance(decode(body[: inner.start()]), dict)):
                return ParseError("unclosed_tag", f"<tool_call> is not closed before the next {inner.group()}.")
            return value
        return not_a_call(value)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """List the tools and show both formats (see the base class)."""
        return "\n\n".join([*self._list_tools(tools), f"{HOW_TO_ANSWER}\n<answer>your answer</answer>"])

    def _list_tools(self, tools: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        if not tools:
            return
        if self.tool_style == "signature":
            signatures = "\n".join(map(signature, tools))
            yield f"You can call these tools:\n{signatures}"
            example = self.format_call(example_call(tools[0]))
            yield f"To call a tool, write:\n{example}\nIts result comes back in the next turn."
            return
        schemas = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in tools)
        yield f"You may call one or more functions. Their signatures:\n<tools>\n{schemas}\n</tools>"
        yield (
            "For each call, write a JSON object with the function's name and arguments inside <tool_call> tags:\n"
            '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>\n'
            "The results come back in the next turn."
        )

    def format_call(self, call: ToolCall) -> str:
        """Write `call` between its tags (see the base class); marks inside its texts are escaped, as JSON allows."""
        body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
        body = _MARK_IN_JSON.sub(lambda match: f"\\u{ord(match.group()):04x}", body)
        return f"<tool_call>\n{body}\n</tool_call>"


class SearchR1Parser(SingleToolParser):
    """Search-R1 format (arXiv 2503.09516): `<search>query</search>` and `<answer>...</answer>`.

    Args:
        tool: the tool that `<search>` calls.
        argument: the argument that takes the query.
    """

    name = "search-r1"
    suits = "models of Search-R1, which only search"
    call_tag = "search"
    strips_argument = True

    def __init__(self, tool: str = "search", argument: str = "query") -> None:
        super().__init__(tool, argument)

    def read_call(self, body: str) -> ToolCall | ParseError:
        """Read a search for the stripped `body` (see the base class)."""
        query = encodable(body.strip())
        if not query:
            return ParseError("empty_call", "The search query is empty. Write it between <search> and </search>.")
        return ToolCall(self._tool, {self._argument: query})

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Show both formats; this one has no place for tool schemas (see the base class)."""
        return (
            "If you lack some knowledge, search for it: <search>query</search>. The top results come back in the next "
            f"turn. Search as often as you need. {HOW_TO_ANSWER} <answer>your answer</answer>"
        )

    def write_call(self, body: str) -> str:
        """Write the query between its tags."""
        return f"<search>{body}</search>"


class ReToolParser(SingleToolParser):
    """ReTool format (arXiv 2504.11536): code between thoughts, in `<code>`, answered by `<interpreter>`.

    The answer is `<answer>...</answer>`. The code may stand in a Markdown fence, as ReTool's models write it. Code
    inside `<think>` is not run.

    Args:
        tool: the tool that `<code>` calls.
        argument: the argument that takes the code.
    """

    name = "retool"
    suits = "models of ReTool, which write code between thoughts"
    markup = ("<code>", "</code>", "<interpreter>", "</interpreter>")
    call_tag = "code"

    def __init__(self, tool: str = "python", argument: str = "code") -> None:
        super().__init__(tool, argument)

    def read_call(self, body: str) -> ToolCall | ParseError:
        """Read the code, without its fence and empty lines around it (see the base class)."""
        code = body.strip()
        opening = _OPENING_FENCE.match(code)
        if opening is not None and code.endswith("```"):
            code = code[opening.end() : -3].strip("\n").rstrip()
        if not code.strip():
            return ParseError("empty_call", "There is no code. Write it between <code> and </code>.")
        return ToolCall(self._tool, {self._argument: encodable(code)})

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Show both formats, with the description of the interpreter (see the base class)."""
        functions = [tool["function"] for tool in tools if tool["function"]["name"] == self._tool]
        descriptions = "".join(f" {function['description']}" for function in functions)
        return (
            "You may write code between your thoughts:\n<code>\n```python\nyour code\n```\n</code>\n"
            f"It is executed, and its output comes back as <interpreter>output</interpreter>.{descriptions}\n"
            f"{HOW_TO_ANSWER} <answer>your answer</answer>"
        )

    def write_call(self, body: str) -> str:
        """Write the code in its fence, between its tags."""
        return f"<code>\n```python\n{body}\n```\n</code>"

    def show_outcome(self, content: str) -> str:
        """Wrap an outcome in the interpreter's tags."""
        return f"<interpreter>\n{content}\n</interpreter>"


class OpenAIParser(Parser):
    """OpenAI-style structured tool calls: the action is an assistant message as JSON text.

    `{"content": "...", "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "search",
    "arguments": {"query": "..."}}}]}`; `arguments` may also be a JSON string, as endpoints send it. The final answer
    is `<answer>...</answer>` in `content`. Text that does not start with "{", and JSON with neither of the two keys, is
    taken as the content alone.
    """

    name = "openai"
    suits = "endpoints with structured tool calls"
    tool_styles = ("native",)
    tool_style = "native"
    _tags = Tags("answer")

    def parse(self, text: str) -> ParsedTurn:
        """Read the calls of `tool_calls` and the answer in `content` (see the base class)."""
        message: Any = {"content": text}
        if text.lstrip().startswith("{"):
            value = decode(text)
            if isinstance(value, ParseError):
                return ParsedTurn(errors=(value,))
            if "content" in value or "tool_calls" in value:
                message = value
        calls: list[ToolCall] = []
        errors: list[ParseError] = []
        entries = message.get("tool_calls")
        if entries is not None and not isinstance(entries, list):
            errors.append(ParseError("not_an_object", f'"tool_calls" must be a list, got {_json_type(entries)}.'))
            entries = []
        for entry in entries or ():
            call = self._read_entry(entry)
            if isinstance(call, ToolCall):
                calls.append(call)
            else:
                errors.append(call)
        content = message.get("content")
        if content is None:
            content = ""
        elif not isinstance(content, str):
            errors.append(ParseError("not_an_object", f'"content" must be a string, got {_json_type(content)}.'))
            content = ""
        bodies, tag_errors = scan(self._tags, visible_text(content))
        answers = [body.strip() for _, body in bodies]
        parsed = self.combine(_with_distinct_ids(calls), answers, errors + tag_errors, content, self._tags)
        return parsed if content is text else replace(parsed, content=content)

    @staticmethod
    def _read_entry(entry: Any) -> ToolCall | ParseError:
        function = entry.get("function") if isinstance(entry, dict) else None
        if not isinstance(function, dict):
            return ParseError("not_an_object", 'Each tool call must be an object with a "function" object.')
        if unknown := _unknown_keys(entry, entry.keys() - _MISPLACED_KEYS):
            return unknown
        identifier, arguments = entry.get("id"), function.get("arguments")
        if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
            function = {**function, "arguments": {}}  # servers write null or "" for a call without arguments
        return _to_call(function, _FUNCTION_KEYS, identifier if isinstance(identifier, str) else None)

    def format_thought(self, thought: str, turn: str) -> str:
        """Put reasoning into the content of the message (see the base class)."""
        message = json.loads(turn) if turn.startswith("{") else {"content": turn}
        message["content"] = f"<think>{thought}</think>{message.get('content') or ''}"
        return json.dumps(message, ensure_ascii=False) if "tool_calls" in message else str(message["content"])

    def reminder(self, tools: Sequence[Mapping[str, Any]], *, answer: bool = True) -> str:
        """Name the tools, whose calls have no form in text, and show the answer (see the base class)."""
        names = ", ".join(tool["function"]["name"] for tool in tools)
        if names and not answer:
            return f"Call a tool ({names})."
        call = f"Call a tool ({names}), or give the final answer.\n" if names else ""
        return call + self._answer_reminder()

    def to_message(self, text: str, parsed: ParsedTurn) -> Message:
        """Make a message with the calls outside its text (see the base class).

        A turn of nothing but malformed calls stays as written, so that the model sees what it did.
        """
        nothing = not (parsed.content or parsed.calls)
        content = text if parsed.content is None or (parsed.errors and nothing) else parsed.content
        return Message("assistant", content, tool_calls=parsed.calls)

    def format_message(self, message: Message) -> str:
        """Write text and calls as one message (see the base class); without calls its text alone."""
        if not message.tool_calls:
            return message.content
        data = message.to_dict(text_arguments=True)
        return json.dumps({name: data[name] for name in ("content", "tool_calls")}, ensure_ascii=False)

    def split_calls(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Return the content and the calls of a message (see the base class)."""
        parsed = self.parse(text)
        return (text, ()) if parsed.content is None else (parsed.content, parsed.calls)

    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Show the answer format; endpoints and chat templates add the tools themselves (see the base class)."""
        call = "Call the available functions as often as you need. " if tools else ""
        return f"{call}{HOW_TO_ANSWER} <answer>your answer</answer>"

    def format_call(self, call: ToolCall) -> str:
        """Write an assistant message that contains `call` (see the base class)."""
        return self.format_calls((call,))

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        """Write one assistant message that contains all `calls` (see the base class)."""
        entries = []
        for position, call in enumerate(calls):
            function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
            entries.append({"id": call.id or f"call_{position}", "type": "function", "function": function})
        return json.dumps({"content": "", "tool_calls": entries}, ensure_ascii=False)


class NativeParser(OpenAIParser):
    """The model's own tool format: its chat template writes tools, calls and results.

    The action is an assistant message as for `OpenAIParser`. A chat format makes it of the tokens that a model sampled
    (reasoning stands in `<think>` in the content, whatever marks the model uses), and reports in "errors", as code,
    message and quote, what it could not read. The tokens themselves know no JSON: a model cannot write this key.

    Attributes:
        write_call: writes a call in the format of the model that plays, for feedback on mistakes; None: unknown.
    """

    name = "native"
    suits = "models whose chat template has tools, in their own format (docs/chat_templates.md lists them)"

    def __init__(self) -> None:
        self.write_call: Callable[[ToolCall], str] | None = None

    def reminder(self, tools: Sequence[Mapping[str, Any]], *, answer: bool = True) -> str:
        """Show a call in the format of the model that plays, where it is known (see the base class)."""
        if self.write_call is None or not tools:
            return super().reminder(tools, answer=answer)
        names = ", ".join(tool["function"]["name"] for tool in tools)
        call = f"To call a tool ({names}), write:\n{self.write_call(example_call(tools[0]))}"
        return f"{call}\n{self._answer_reminder()}" if answer else call

    def parse(self, text: str) -> ParsedTurn:
        """Read calls and answer, or the mistakes that the chat format reports (see the base class)."""
        message = decode(text) if text.lstrip().startswith("{") and '"errors"' in text else None
        if not isinstance(message, dict) or not isinstance(message.get("errors"), list):
            return super().parse(text)
        entries = [entry for entry in message["errors"] if isinstance(entry, dict)]
        errors = [
            ParseError(str(entry["code"]), *(str(entry.get(name, "")) for name in ("message", "quote", "tag")))
            for entry in entries
            if entry.get("code") in PARSE_ERROR_CODES
        ]
        errors = errors or [ParseError("malformed_call", "The turn could not be read.")]
        return ParsedTurn(errors=tuple(errors), content=str(message.get("content") or ""))


def _with_distinct_ids(calls: list[ToolCall]) -> list[ToolCall]:
    """Number calls of a turn whose ids are equal: servers repeat ids, and a result must name the call it answers."""
    ids = [call.id or f"call_{position}" for position, call in enumerate(calls)]
    if len(set(ids)) == len(ids):
        return calls
    return [
        replace(call, id=f"{name}_{position}") for position, (call, name) in enumerate(zip(calls, ids, strict=True))
    ]


def _to_call(value: dict[str, Any], known_keys: frozenset[str], identifier: str | None = None) -> ToolCall | ParseError:
    """Read the call of a `{"name": ..., "arguments": ...}` object, or name what is wrong with it."""
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return ParseError("missing_name", 'A tool call needs a "name" that is a string.')
    if unknown := _unknown_keys(value, known_keys):
        return unknown
    arguments = value.get("arguments", {})
    if isinstance(arguments, str):
        arguments = decode(arguments)
        if isinstance(arguments, ParseError):
            message = arguments.message.replace("Invalid JSON", 'Invalid JSON in the string "arguments"', 1)
            return replace(arguments, message=message)
    if not isinstance(arguments, dict):
        return ParseError("not_an_object", f'"arguments" must be a JSON object, got {_json_type(arguments)}.')
    return ToolCall(name, arguments, identifier)


def not_a_call(value: Any) -> ParseError:
    """Report JSON that is not an object where a call was expected."""
    each = " Write each call by itself." if isinstance(value, list) else ""
    return ParseError("not_an_object", f"A tool call must be a JSON object, got {_json_type(value)}.{each}")


def _unknown_keys(value: Mapping[str, Any], known: Collection[str]) -> ParseError | None:
    """Report keys that would be dropped: a call whose arguments have another name must not run without them."""
    unknown = [key for key, content in value.items() if key not in known and content is not None]
    if not unknown:
        return None
    return ParseError(
        "unknown_keys",
        'A tool call has the keys "name" and "arguments", and all arguments belong into the object "arguments". '
        "It also has:",
        ", ".join(unknown)[:_MAX_QUOTE],
    )


def check_tool_style(parser: Parser, style: str | None) -> str:
    """Return the style in which a parser lists tools: `style`, or its default.

    Raises:
        ConfigurationError: the format does not support the style.
    """
    if style is not None and style not in parser.tool_styles:
        supported = f"supports {', '.join(parser.tool_styles)}" if parser.tool_styles else "lists no tools"
        hint = ' For the chat template\'s own list set parser="native".' if style == "native" else ""
        raise ConfigurationError(f"tool_style={style!r}: the format {parser.name!r} {supported}.{hint}")
    return style or (parser.tool_styles[0] if parser.tool_styles else "schema")


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


# --- finding a parser ------------------------------------------------------------------------------------------------

_PARSERS: dict[str, type[Parser]] = {
    parser.name: parser for parser in (HermesParser, SearchR1Parser, ReToolParser, OpenAIParser, NativeParser)
}
_SUITED = "; ".join(f"{name!r}: {parser.suits}" for name, parser in _PARSERS.items())
PARSER_HELP = f"{_SUITED}; a custom one: MODULE:NAME, the name of an installed plug-in, in Python also a Parser"
"""Which parser suits which models."""
PLUGINS = "agent_r1_gym.parsers"
"""Group of entry points: an installed package adds a parser here, as "name" = "module:Class"."""


def make_parser(parser: str | Parser, tool_style: str | None = None) -> Parser:
    """Find a parser by name; a `Parser` is returned as it is.

    Args:
        parser: "hermes", "search-r1", "retool", "openai", "native", MODULE:NAME, the name of an installed plug-in, or a
            `Parser`.
        tool_style: how its instructions list the tools, one of `TOOL_STYLES`; None: as the parser does by default.

    Raises:
        ConfigurationError: no parser has that name, or it does not support the style.
    """
    if isinstance(parser, Parser):
        if tool_style not in (None, parser.tool_style):
            raise ConfigurationError(
                f"tool_style={tool_style!r} does not apply to a Parser object; set it there, as in "
                f"HermesParser({tool_style!r})."
            )
        return parser
    named: Any = None
    if isinstance(parser, str) and parser in _PARSERS:
        named = _PARSERS[parser]
        warn_of_shadowing(PLUGINS, parser)
    elif isinstance(parser, str):
        named = import_object(parser) if ":" in parser else load_plugin(PLUGINS, parser)
    found = named() if isinstance(named, type) else named
    if not isinstance(found, Parser):
        near = near_names(str(parser), [*_PARSERS, *plugins(PLUGINS)])
        raise ConfigurationError(f"Unknown parser {parser!r}. {near}Known: {PARSER_HELP}.")
    if tool_style is not None:
        found.tool_style = check_tool_style(found, tool_style)
    return found
