"""What the formats of model turns share: the parser's interface, pairs of tags, and strict JSON."""

from __future__ import annotations

import abc
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from agent_r1_gym.core.parsing.thoughts import visible_text, without_thoughts
from agent_r1_gym.core.text import encodable
from agent_r1_gym.core.types import Message, ParsedTurn, ParseError, ScriptedTurn, Thought, ToolCall
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import is_number

_MAX_QUOTE = 80
_MAX_DEPTH = 64
_SPACE = " \t\n\r"
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


TOOL_STYLES = ("signature", "schema", "native")
"""How a system turn lists the tools: as signatures, as JSON schemas, or not, where a chat template lists them."""


class Parser(abc.ABC):
    """One format of model turns.

    Attributes:
        name: short name for `make_parser` and the environments' `parser` argument.
        suits: the models it suits, for help texts.
        markup: strings of this format that foreign text must not contain, beyond what `text.sanitize` breaks anyway.
        tool_styles: the styles of `tool_style` that the format supports, its default first; () where its instructions
            have no place for a list of tools.
        tool_style: how the instructions list the tools, one of `TOOL_STYLES`; "native": the tools' schemas go to the
            chat template or the endpoint instead.
    """

    name: ClassVar[str]
    suits: ClassVar[str] = ""
    markup: ClassVar[tuple[str, ...]] = ()
    tool_styles: ClassVar[tuple[str, ...]] = ()
    tool_style: str = "schema"

    @abc.abstractmethod
    def parse(self, text: str) -> ParsedTurn:
        """Read calls, answer and mistakes from a turn. Never raises on a string."""

    @abc.abstractmethod
    def instructions(self, tools: Sequence[Mapping[str, Any]]) -> str:
        """Write the part of a system prompt that teaches the format.

        Args:
            tools: one OpenAI-style function schema per tool (`Tool.schema`).
        """

    @abc.abstractmethod
    def format_call(self, call: ToolCall) -> str:
        """Write a turn that `parse` reads as `call`."""

    def format_calls(self, calls: Sequence[ToolCall]) -> str:
        """Write a turn that `parse` reads as `calls`, at least one; default: one after the other."""
        return "\n".join(map(self.format_call, calls))

    def can_call(self, tool: Mapping[str, Any]) -> bool:
        """Check whether a turn can express calls of a tool, given its schema (`Tool.schema`); default: of any."""
        return True

    def format_answer(self, answer: str) -> str:
        """Write a turn that `parse` reads as the final answer."""
        return f"<answer>{answer}</answer>"

    def format_thought(self, thought: str, turn: str) -> str:
        """Put reasoning in front of a turn that `format_call` or `format_answer` wrote."""
        return f"<think>{thought}</think>{turn}"

    def format_turn(self, turn: ScriptedTurn) -> str:
        """Write the turn of a script: one or several calls, the final answer, or either with a thought."""
        if isinstance(turn, Thought):
            return self.format_thought(turn.text, self.format_turn(turn.action))
        if isinstance(turn, tuple):
            return self.format_calls(turn)
        return self.format_call(turn) if isinstance(turn, ToolCall) else self.format_answer(turn)

    def reminder(self, tools: Sequence[Mapping[str, Any]], *, answer: bool = True) -> str:
        """Show the format again, for the feedback on a turn that did not parse.

        Models repeat an error message that does not show the format; they follow one that does.

        Args:
            tools: see `instructions`.
            answer: whether to show how to answer too. Small models copy a reminder of both forms into one turn.
        """
        callable_tools = [tool for tool in tools if self.can_call(tool)]
        if not callable_tools:
            return self._answer_reminder()
        names = ", ".join(tool["function"]["name"] for tool in callable_tools)
        call = f"To call a tool ({names}), write:\n{self.format_call(example_call(callable_tools[0]))}"
        return f"{call}\n{self._answer_reminder()}" if answer else call

    def _answer_reminder(self) -> str:
        return f"To answer, write:\n{self.format_answer('your answer')}"

    def show_outcome(self, content: str) -> str:
        """Write a sanitized outcome as the model reads it; default: unchanged."""
        return content

    def to_message(self, text: str, parsed: ParsedTurn) -> Message:
        """Make a message of the history from the model's turn and what `parse` understood of it."""
        return Message("assistant", text)

    def format_message(self, message: Message) -> str:
        """Write a turn with structured calls; its text stands before them.

        Raises:
            ConfigurationError: the format cannot express one of the calls.
        """
        calls = "\n".join(map(self.format_call, message.tool_calls))
        joint = "\n" if message.content and calls and not message.content.endswith("</think>") else ""
        return f"{message.content}{joint}{calls}"

    def split_calls(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Separate a turn's calls from its other text: the reverse of `format_message`.

        By default the text keeps its calls: (text, ()).
        """
        return text, ()

    def combine(
        self,
        calls: list[ToolCall],
        answers: list[str],
        errors: list[ParseError],
        text: str,
        tags: Tags | None = None,
    ) -> ParsedTurn:
        """Make the result of `parse` by the rules of every format: one answer alone, or calls; some action in any case.

        Next to calls an answer is ignored, with a mistake: it was written before their results were known. In TRL and
        verifiers calls count, too; Search-R1 takes what comes first.

        Args:
            calls: the calls of the turn, in order.
            answers: its answers, without white space around them.
            errors: what could not be read; the mistakes against the rules are appended.
            text: the turn.
            tags: the tags of the format, to name what a turn without an action has instead.
        """
        if not answers and not calls and not errors:
            errors.append(_nothing_to_do(text, tags))
        elif answers and calls:
            problem = "The answer was ignored, because the turn also calls a tool."
            message = f"{problem} Wait for the result, then write the answer alone: {self.format_answer('your answer')}"
            errors.append(ParseError("call_and_answer", message))
        elif answers and errors:
            message = f"The answer was ignored, because the turn has a mistake. {errors[0].message}"
            errors[0] = replace(errors[0], message=message)
        elif len(answers) > 1:
            message = f"Expected one final answer, got {len(answers)}. Write only one."
            errors.append(ParseError("several_answers", message))
        elif answers and not answers[0]:
            message = f"The answer is empty. Write: {self.format_answer('your answer')}"
            errors.append(ParseError("empty_answer", message))
        if errors or not answers:
            return ParsedTurn(tuple(calls), None, tuple(errors))
        return ParsedTurn((), encodable(answers[0]), ())


# --- tools in a system turn ------------------------------------------------------------------------------------------


def example_call(tool: Mapping[str, Any], text: str = "your {}") -> ToolCall:
    """Make a call of a tool that shows what its required arguments look like.

    Args:
        tool: its schema (`Tool.schema`).
        text: value of arguments that may be any text; {} is the name of the argument.
    """
    function = tool["function"]
    properties: Mapping[str, Any] = function["parameters"].get("properties", {})
    required = function["parameters"].get("required") or list(properties)[:1]
    values = {name: _example_value(name, properties.get(name, {}), text) for name in required}
    return ToolCall(function["name"], values)


def _example_value(name: str, schema: Any, text: str) -> Any:
    schema = _without_choice(schema)
    for key in ("examples", "enum"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("prefixItems", schema.get("items"))
        if isinstance(items, list):
            return [_example_value(name, each, text) for each in items]
        return [_example_value(name, items, text)] * max(1, schema.get("minItems", 1))
    if kind == "object":
        inner = schema.get("properties", {})
        return {each: _example_value(each, inner.get(each, {}), text) for each in schema.get("required", ())}
    if schema.get("default") is not None:
        return schema["default"]
    if kind in ("integer", "number"):
        return _example_number(schema, 1 if kind == "integer" else 1.5)
    any_text = text.format(name).ljust(schema.get("minLength", 0), ".")[: schema.get("maxLength")]
    return {"boolean": True, "null": None}.get(str(kind), any_text)


def _without_choice(schema: Any) -> Mapping[str, Any]:
    """Reduce a schema that allows several kinds of values to the first of them that is not null."""
    whole: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    key = next((key for key in ("anyOf", "oneOf") if isinstance(whole.get(key), list)), None)
    if key is not None:
        options = [option for option in whole[key] if isinstance(option, Mapping)]
        first = next((option for option in options if option.get("type") != "null"), {"type": "null"})
        return _without_choice({**{name: whole[name] for name in whole if name != key}, **first})
    if isinstance(whole.get("type"), list):
        return {**whole, "type": next((kind for kind in whole["type"] if kind != "null"), "null")}
    return whole


def _example_number(schema: Mapping[str, Any], usual: float) -> float:
    """Return `usual`, or the nearest number that the bounds of a schema allow."""
    given = {key: schema[key] for key in _BOUNDS if is_number(schema.get(key))}
    low, high = (given.get(f"exclusive{end}", given.get(end.lower())) for end in ("Minimum", "Maximum"))
    is_whole = isinstance(usual, int)
    step = 1 if is_whole or low is None or high is None else (high - low) / 2  # away from a bound that is excluded
    if low is not None:
        low += step * ("exclusiveMinimum" in given)
        usual = max(usual, math.ceil(low) if is_whole else low)
    if high is not None:
        high -= step * ("exclusiveMaximum" in given)
        usual = min(usual, math.floor(high) if is_whole else high)
    multiple = schema.get("multipleOf")
    return math.ceil(usual / multiple) * multiple if multiple else usual


def signature(tool: Mapping[str, Any]) -> str:
    """Describe a tool as a signature with its description, the way a manual would; further lines are indented.

    Args:
        tool: its schema (`Tool.schema`).
    """
    function = tool["function"]
    parameters = function["parameters"]
    properties: Mapping[str, Any] = parameters.get("properties", {})
    shown, notes = [], []
    for name, schema in properties.items():
        schema = schema if isinstance(schema, Mapping) else {}
        shown.append(f"{name}: {_type_name(schema)}")
        if name not in parameters.get("required", ()):
            shown[-1] += f" = {json.dumps(schema['default'])}" if "default" in schema else " (optional)"
        if schema.get("description"):
            notes.append(f"{name}: {schema['description']}")
    description = f": {function['description']}" if function.get("description") else ""
    lines = "\n".join([f"- {function['name']}({', '.join(shown)}){description}", *notes]).splitlines()
    return "\n    ".join(line for line in lines if line.strip())


def _type_name(schema: Mapping[str, Any]) -> str:
    """Name the values that a JSON schema allows, as briefly as a signature does."""
    if "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return " | ".join(dict.fromkeys(_type_name(each) for each in options if isinstance(each, Mapping)))
    kind = schema.get("type", "any")
    if kind == "array":
        items = schema.get("items")
        return f"list of {_type_name(items)}" if isinstance(items, Mapping) and items else "list"
    if kind == "object" and schema.get("properties"):
        inner = ", ".join(f"{name}: {_type_name(each)}" for name, each in schema["properties"].items())
        return f"{{{inner}}}"
    return " | ".join(map(str, kind)) if isinstance(kind, list) else str(kind)


class TagParser(Parser):
    """Base of formats that mark calls and the answer with a pair of tags each.

    Subclasses set `call_tag`, and read in `read_call` the text between the call's tags.
    """

    call_tag: ClassVar[str]
    _tags: ClassVar[Tags]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "call_tag"):
            cls._tags = Tags(cls.call_tag, "answer")

    @abc.abstractmethod
    def read_call(self, body: str) -> ToolCall | ParseError:
        """Read the call from the text between its tags, or name what is wrong with it."""

    def parse(self, text: str) -> ParsedTurn:
        """Read calls and errors in order of appearance, or the one answer (see the base class)."""
        calls: list[ToolCall] = []
        answers: list[str] = []
        bodies, errors = scan(self._tags, visible_text(text))
        for tag, body in bodies:
            if tag == "answer":
                answers.append(body.strip())
                continue
            call = self.read_call(body)
            if isinstance(call, ToolCall):
                calls.append(call)
            else:
                errors.append(call)
        return self.combine(calls, answers, errors, text, self._tags)

    def split_calls(self, text: str) -> tuple[str, tuple[ToolCall, ...]]:
        """Separate a turn's calls, with their tags, from its other text (see the base class)."""
        calls = self.parse(text).calls
        start, end = f"<{self.call_tag}>", f"</{self.call_tag}>"
        pieces = re.split(f"({re.escape(start)}.*?{re.escape(end)})", text, flags=re.DOTALL)
        expected = list(calls)
        # From the end: an equal call in the reasoning before is not read, and stays in the text.
        for number in range(len(pieces) - 2, 0, -2):
            body = visible_text(pieces[number].removeprefix(start).removesuffix(end))
            if expected and self.read_call(body) == expected[-1]:
                del expected[-1]
                pieces[number] = ""
        return (text, ()) if expected or not calls else ("".join(pieces).strip(), calls)


class SingleToolParser(TagParser):
    """Base of formats whose tag calls one tool with one string argument.

    Args:
        tool: the tool that the tag calls.
        argument: the argument that takes the text between the tags.
    """

    strips_argument: ClassVar[bool] = False
    """Whether white space around the argument may be lost."""

    def __init__(self, tool: str, argument: str) -> None:
        self._tool = tool
        self._argument = argument

    @abc.abstractmethod
    def write_call(self, body: str) -> str:
        """Write a call with `body` between its tags."""

    def can_call(self, tool: Mapping[str, Any]) -> bool:
        """Check whether it is the one tool of this format; its further arguments must be optional."""
        function = tool["function"]
        parameters = function["parameters"]
        return (
            function["name"] == self._tool
            and self._argument in parameters.get("properties", {})
            and set(parameters.get("required", ())) <= {self._argument}
        )

    def format_call(self, call: ToolCall) -> str:
        """Write the argument between the tags.

        Raises:
            ConfigurationError: the format cannot express this call.
        """
        if call.name != self._tool or set(call.arguments) != {self._argument}:
            raise ConfigurationError(
                f"The {self.name} format can only call {self._tool}({self._argument}=...), got {call}; use 'hermes'."
            )
        body = call.arguments[self._argument]
        text = self.write_call(body)
        # Read back, because an empty argument, or one with a tag, would be read as something else.
        expected = body.strip() if self.strips_argument and isinstance(body, str) else body
        if not isinstance(body, str) or self.parse(text).calls != (ToolCall(self._tool, {self._argument: expected}),):
            raise ConfigurationError(
                f"The {self.name} format cannot express {self._argument}={body!r:.200}: it must be a non-empty string "
                "without the format's tags or empty lines around it."
            )
        return text


# --- pairs of tags ---------------------------------------------------------------------------------------------------


class Tags:
    """The tags of a format.

    Attributes:
        names: their names.
        exact: matches an opening or closing tag, as (slash, name).
        loose: matches what was meant to be one: in another case, with spaces or attributes.
    """

    def __init__(self, *names: str) -> None:
        self.names = names
        self.exact = re.compile(rf"<(/?)({'|'.join(names)})>")
        self.loose = re.compile(rf"<\s?/?\s?(?:{'|'.join(names)})\b[^<>]{{0,80}}>", re.IGNORECASE)


_NAME_KEY = r"""["'](?:name|function)["']\s?:"""
_ARGUMENTS_KEY = r"""["'](?:arguments|parameters|args)["']\s?:"""
_SURE_CALL = re.compile(
    rf"{_NAME_KEY}(?=[\s\S]{{0,200}}?{_ARGUMENTS_KEY})|{_ARGUMENTS_KEY}(?=[\s\S]{{0,200}}?{_NAME_KEY})"
    r"""|["'](?:tool_name|tool_calls)["']\s?:|["']function["']\s?:\s?\{"""  # JSON or Python without tags
    r"|<\|?(?:tool_?calls?|function_?calls?|function|invoke|python_tag|tool_call_start)\b|[<｜]tool▁call"
    r"|\[TOOL_CALLS\]|\bto=functions\.|```tool_\w{1,16}\b"
)
"""Where a call in the format of another model family begins."""
_POSSIBLE_CALL = re.compile(
    _NAME_KEY + r"|&lt;/?\w{1,32}&gt;|```(?:json|python)\b|\b\w{1,64}\(\w{1,64}=|^Action:",  # a Python call, ReAct
    re.MULTILINE,
)
"""Where one may begin: answers have code and JSON, too."""
_WITHOUT_ACTION = "The turn contains neither a tool call nor a final answer"
NO_ACTION = ParseError("no_action", f"{_WITHOUT_ACTION}. Write one of them.")
"""The mistake of a turn in which there is nothing to read."""


def scan(tags: Tags, text: str) -> tuple[list[tuple[str, str]], list[ParseError]]:
    """Read the text between each pair of tags, as (tag, body), and unpaired tags as errors."""
    bodies: list[tuple[str, str]] = []
    errors: list[ParseError] = []
    position = 0
    while match := tags.exact.search(text, position):
        start, position = position, match.end()
        closing, tag = match.groups()
        if closing:
            message = f"</{tag}> has no opening <{tag}> before it"
            meant = tags.loose.search(text, start, match.start())
            quote = encodable(meant.group()) if meant else ""
            errors.append(ParseError("unopened_tag", f"{message}, only" if meant else f"{message}.", quote, tag))
            continue
        end = text.find(f"</{tag}>", position)
        if end == -1:
            lost = ", so what follows it was ignored" if tags.exact.search(text, position) else ""
            message = f"<{tag}> is never closed{lost}. Close it with </{tag}>."
            errors.append(ParseError("unclosed_tag", message, tag=tag))
            break
        bodies.append((tag, text[position:end]))
        if tag == "answer" and (inner := tags.exact.search(text, position, end)):
            written = inner.group()
            if inner.group(2) == "answer":
                message = f"<answer> is not closed before the next {written}."
                errors.append(ParseError("unclosed_tag", message, tag=tag))
            else:
                message = f"The answer contains {written}. Write either a call or the answer."
                errors.append(ParseError("call_and_answer", message))
        position = end + len(tag) + 3
    return bodies, errors


def _nothing_to_do(text: str, tags: Tags | None) -> ParseError:
    """Name what a turn without a tag of the format has instead."""
    visible, unclosed = without_thoughts(text)
    if unclosed is not None:
        opening, closing = unclosed
        message = f"{opening} is never closed, so what follows it was ignored. Write {closing} before you act."
        return ParseError("unclosed_tag", message, tag="think")
    message = _WITHOUT_ACTION
    if tags and (hidden := tags.exact.search(text)):
        message = f"{message} outside of its reasoning. Write <{hidden.group(2)}> after the end of the reasoning."
        return ParseError("no_action", message)
    if tags and (meant := tags.loose.search(visible)):
        exact = " and ".join(f"<{name}>" for name in tags.names)
        return ParseError("other_format", f"{message}. Tags must be exactly {exact}, not", encodable(meant.group()))
    for code, pattern in (("other_format", _SURE_CALL), ("no_action", _POSSIBLE_CALL)):
        if other := pattern.search(visible):
            quote = encodable(visible[other.start() : other.start() + _MAX_QUOTE])
            return ParseError(code, f"{message}. This is in another format, and was not read:", quote)
    return NO_ACTION


# --- JSON, read strictly ---------------------------------------------------------------------------------------------


def decode(text: str) -> Any:
    """Decode JSON as a model may write it; return a `ParseError` with the position where it breaks.

    What readers of JSON disagree on is refused: NaN, numbers beyond a float, duplicate keys, deep nesting.
    """
    # `_DECODER.decode` without its regular expressions for white space, which take half the time.
    start = len(text) - len(text.lstrip(_SPACE))
    try:
        value, end = _DECODER.raw_decode(text, start)
        if rest := text[end:].lstrip(_SPACE):
            raise json.JSONDecodeError("Extra data", text, len(text) - len(rest))
    except json.JSONDecodeError as error:
        return bad_json(error, text)
    except RecursionError:
        return _TOO_DEEP
    except ValueError as error:
        return ParseError("bad_json", f"Invalid JSON: {str(error)[:_MAX_QUOTE]}.")
    if text.count("[") + text.count("{") > _MAX_DEPTH and _is_too_deep(value):
        return _TOO_DEEP
    if "\\" in text or not text.isascii():
        return _encodable_value(value)
    return value


_REASONS = {
    "Invalid control character": r", because line breaks and tabs in a string are written \n and \t",
    "Invalid \\escape": r", because a backslash in a string is written \\",
    "Extra data": ", after the end of the first value",
}


def bad_json(error: json.JSONDecodeError, text: str, where: str = "") -> ParseError:
    """Report where JSON breaks, and why where the decoder's words leave that open.

    Args:
        error: what the decoder raised.
        text: what it read.
        where: where the JSON stands, such as " in a tool call".
    """
    reason = next((reason for start, reason in _REASONS.items() if error.msg.startswith(start)), "")
    problem = f"Invalid JSON{where}: {error.msg.removesuffix(' at')} at character {error.pos}{reason}"
    around = encodable(text[max(0, error.pos - _MAX_QUOTE // 2) : error.pos + _MAX_QUOTE // 2])
    return ParseError("bad_json", f"{problem}, near" if around else f"{problem}, which is its end.", around)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"the number {digits[:20]} is too large")
    return value


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("an object has the same key twice")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_without_duplicates)
_TOO_DEEP = ParseError("bad_json", f"Invalid JSON: nested more than {_MAX_DEPTH} levels deep.")


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def _encodable_value(value: Any) -> Any:
    """Make every text in a JSON value encodable (JSON escapes can smuggle lone surrogates in)."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):
        return [_encodable_value(item) for item in value]
    if isinstance(value, dict):
        return {encodable(key): _encodable_value(item) for key, item in value.items()}
    return value
