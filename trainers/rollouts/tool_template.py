"""ToolTemplate: a chat template used with its own tool format: tools, calls and results are structured.

The prompt lists the tools as the template does (`tools=`), a sampled turn is read by a response template, results come
in the role `tool`. What a family writes where is found by rendering dummy conversations, once per tokenizer:

- which response template reads back what the chat template writes (`responses.known_formats`);
- where the reasoning of a turn goes (`reasoning_content`, `thinking`, `reasoning`, or the text);
- which token ends a turn with calls: the template's end of turn (Qwen, Llama), or one that only calls have (gpt-oss
  `<|call|>`, GLM `<|observation|>`, Gemma 4 `<|tool_response>`);
- whether a turn may have several calls, and whether arguments are objects or text.

A template that does not show the tools, or whose calls no response template reads back, is refused.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from agent_r1_gym.core.parsing import NativeParser
from agent_r1_gym.core.types import Message, ParseError, ToolCall
from agent_r1_gym.errors import ConfigurationError
from trainers.rollouts.chat_template import PROBES, ChatTemplate, framed
from trainers.rollouts.responses import MALFORMED, REASONING_FIELDS, Response, ResponseFormat, known_formats

_USER, _MODEL, _REPLY, _THOUGHT = "4be7u", "9c1dm", "7fa2r", "5hd8k"
_NAME, _TEXT_ARGUMENT = "probe_tool", "probe_text"
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Probes 3kq9d.",
        "parameters": {
            "type": "object",
            "properties": {
                _TEXT_ARGUMENT: {"type": "string", "description": "text"},
                "number": {"type": "integer", "description": "number"},
                "flag": {"type": "boolean", "description": "flag"},
                "items": {"type": "array", "items": {"type": "string"}, "description": "items"},
            },
            "required": [_TEXT_ARGUMENT],
        },
    },
}
_ARGUMENTS = {_TEXT_ARGUMENT: _MODEL, "number": 3, "flag": True, "items": ["a", "b"]}
_ANY_TEXT = 'It\'s "3": {1}, [2] <b>\nnext\\n é'
_THINKING_FIELDS = (*REASONING_FIELDS, "tool_plan", None)
_THOUGHT_TEXT = re.compile(r"\A\s*<think>(?P<thought>.*?)</think>\s*(?P<rest>.*)\Z", re.DOTALL)
_TAG = re.compile(r"<[|｜]?/?[\w:=▁ .-]+[|｜]?>|<\|\w+>|<\w+\|>|\[/?[A-Z_]+\]")
_MAX_GAPS = 1_024
_SHORT_ID = 9
"""Length of the identifiers that Mistral's templates accept, of letters and digits."""
_WAY_OUT = "Use another parser, such as parser='hermes', which needs no tool format of the model."

_QUESTION = Message("user", _USER)
_PARSER = NativeParser()


class ToolTemplate(ChatTemplate):
    """A chat template with its tool format (see the module's docstring).

    Args:
        tokenizer: see `ChatTemplate`; so are `source` and `options`.
        source: see `ChatTemplate`.
        options: see `ChatTemplate`.
        date: see `ChatTemplate`.

    Attributes:
        tools: schemas of the tools that prompts list (see `bind`).
        response: reads the turns.
        call_stop_id: the token that ends a turn with calls.
        call_stop_text: that token's text.
        several_calls: whether a turn may have several calls.
        limits: what a call cannot have next to it or in it, for the table of families.

    Raises:
        ConfigurationError: the template has no tool format that can be read; with the reason and the way out.
    """

    tools: tuple[Mapping[str, Any], ...] = (_PROBE_TOOL,)
    call_stop_id = -1
    _text_arguments = _short_ids = _reply_in_tool = _one_preamble = False

    def _probe(self) -> None:
        self._unbound = self  # for what does not depend on the tools
        self.limits: list[str] = []
        self._gaps: dict[Any, list[str]] = {}
        self._check_tools()
        self._check_turns()
        self._find_system_role()
        self._find_call_form()
        self.prompt = self.text([_QUESTION])
        self._opened = self._open_thinking(self.prompt)
        self.stop_id, self.history_stop_text = self._find_stops()
        self.stop_text = self._token_text(self.stop_id)
        self.several_calls = self._render_calls(2) is not None
        self.call_stop_id = self._find_call_stop()
        self.call_stop_text = self._token_text(self.call_stop_id)
        self.response = self._find_response()
        self.call_marks = self._find_call_marks()
        self._find_reply_roles()
        self.render_mode, self.note = self._classify_calls()

    def bind(self, tools: Sequence[Mapping[str, Any]]) -> ToolTemplate:
        """Return the same template with other tools in its prompts."""
        bound = copy.copy(self)
        bound.tools = tuple(tools)
        return bound

    # --- rendering ---------------------------------------------------------------------------------------------------

    def gap(self, messages: Sequence[Message], turn: Message | None = None) -> str:
        """Return what follows a model's turn and its end.

        Args:
            messages: of the environment.
            turn: the turn, whose calls the results answer; None: one without calls.
        """
        calls = () if turn is None else turn.tool_calls
        shapes = tuple(replace(message, content="") for message in messages)
        key = (tuple((call.name, call.id) for call in calls), shapes)
        frame = self._gaps.get(key)
        if frame is None:
            if len(self._gaps) >= _MAX_GAPS:  # models may number their calls at random
                self._gaps.clear()
            self._gaps[key] = frame = self._gap_frame(messages, calls)
        contents = [message.content for message in messages]
        return framed(frame, contents) if frame else self._rendered_gap_after(messages, calls)

    def _gap_frame(self, messages: Sequence[Message], calls: Sequence[ToolCall]) -> list[str]:
        """Return what the template puts around the contents, [] if it does not show them as they are."""

        def rendered(content: str) -> str:
            return self._rendered_gap_after([replace(message, content=content) for message in messages], calls)

        frame = rendered(_REPLY).split(_REPLY)
        plain = len(frame) == len(messages) + 1 and all(
            rendered(probe) == framed(frame, [probe] * len(messages)) for probe in PROBES
        )
        return frame if plain else []

    def _rendered_gap_after(self, messages: Sequence[Message], calls: Sequence[ToolCall]) -> str:
        if not calls:
            rendered = self._unbound.text([_QUESTION, Message("assistant", _MODEL), *messages])
            return rendered.partition(_MODEL)[2].partition(self.history_stop_text)[2]
        # The arguments are replaced by marks, so that nothing a model writes is taken for the end of the call.
        calls = tuple(replace(call, arguments={_TEXT_ARGUMENT: _MODEL}) for call in calls)
        rendered = self._unbound.text([_QUESTION, Message("assistant", "", tool_calls=calls), *messages])
        pieces = rendered.split(_MODEL, len(calls))
        return pieces[-1].partition(self.call_stop_text)[2] if len(pieces) > len(calls) else ""

    def model_text(self, rendered: str, turn: Message) -> str:
        """Return a turn as the model would write it, without the token that ends it.

        Args:
            rendered: what stood before; not needed, because the prompt of any turn ends alike.
            turn: the turn.
        """
        alone = self._unbound.text([_QUESTION, turn], open_turn=False)
        thought = _THOUGHT_TEXT.match(turn.content)
        if thought is not None and self._opened is None and not alone.startswith(self.prompt):
            # The prompt closes the thinking before the turn, so that the model writes none.
            turn = replace(turn, content=thought["rest"])
            alone = self._unbound.text([_QUESTION, turn], open_turn=False)
        if alone.startswith(self.prompt):
            written = alone[len(self.prompt) :]
        else:  # the prompt opens the thinking, which the history does not show
            written = self._after_opened_thinking(alone, turn)
        end = written.rfind(self.end_text(turn))
        return written[:end] if end >= 0 else written.rstrip("\n")

    def stop_of(self, turn: Message | None) -> int:
        """Return the token that ends a turn."""
        return self.call_stop_id if turn is not None and turn.tool_calls else self.stop_id

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a turn, with and without calls."""
        return (self.stop_id, self.call_stop_id)

    def end_text(self, turn: Message) -> str:
        """Return the text of the token that ends a turn."""
        return self.call_stop_text if turn.tool_calls else self.stop_text

    def rewrites(self, history: Sequence[Message], *, new: int) -> bool:
        """Return whether a history, rendered anew, is not what the model saw with the latest messages behind it."""
        if self.render_mode == "exact":
            return False
        at = len(history) - new - 1
        before, turn, replies = history[:at], history[at], history[at + 1 :]
        seen = self.text(before) + self.model_text("", turn) + self.end_text(turn) + self.gap(replies, turn)
        return not self.is_same(seen, self.text(history))

    def _listed(self) -> dict[str, Any]:
        return {"tools": list(self.tools)} if self.tools else {}

    def _rows(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        rows = [self._row(message) for message in messages]
        if self._reply_in_tool:
            rows = _replies_in_tool(rows)
        return rows

    def _row(self, message: Message) -> dict[str, Any]:
        if message.role == "tool":
            answered = {"tool_call_id": self._call_id(message.tool_call_id)} if message.tool_call_id else {}
            return {"role": "tool", "content": message.content, "name": message.name or "", **answered}
        if message.role != "assistant":
            return {"role": self.system_role if message.role == "system" else message.role, "content": message.content}
        row: dict[str, Any] = {"role": "assistant", "content": message.content}
        thought = _THOUGHT_TEXT.match(message.content)
        if thought is not None and self.thinking_field is not None:
            row |= {"content": thought["rest"], self.thinking_field: thought["thought"].strip("\n")}
        if message.tool_calls:
            row["tool_calls"] = [self._call_row(call, at) for at, call in enumerate(message.tool_calls)]
            if self._one_preamble and self.thinking_field in row and row["content"]:
                row[self.thinking_field or ""] += f"\n\n{row['content']}"
                row["content"] = ""
        return row

    def _call_row(self, call: ToolCall, position: int) -> dict[str, Any]:
        arguments: Any = dict(call.arguments)
        if self._text_arguments:
            arguments = json.dumps(arguments, ensure_ascii=False)
        identifier = self._call_id(call.id or f"call_{position}")
        return {"id": identifier, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    def _call_id(self, identifier: str) -> str:
        if not self._short_ids or re.fullmatch(rf"[A-Za-z0-9]{{{_SHORT_ID}}}", identifier):
            return identifier
        return re.sub(r"[^A-Za-z0-9]", "", identifier)[-_SHORT_ID:].zfill(_SHORT_ID)

    def _after_opened_thinking(self, alone: str, turn: Message) -> str:
        opening, closing = self._opened or ("", "")
        header = self.prompt.rstrip().removesuffix(opening) if opening else ""
        if not header or not alone.startswith(header):
            raise self._refusal("its history puts something else before a turn than its prompt does.")
        thought = _THOUGHT_TEXT.match(turn.content)
        written = alone[len(header) :].lstrip("\n")
        return (
            f"{thought['thought'].strip() if thought else ''}\n{closing}\n\n{written.partition(closing)[2] or written}"
        )

    # --- reading -----------------------------------------------------------------------------------------------------

    def action(self, text: str, *, ended: bool) -> str:
        """Return a sampled turn as the action of an environment whose parser is "native".

        Args:
            text: the turn, without the token that ended it.
            ended: whether it was ended by one.
        """
        return json.dumps(self._message(text, ended), ensure_ascii=False)

    def read(self, text: str, *, ended: bool = True) -> Response:
        """Read a turn (see `action`)."""
        marks_calls = any(mark in text for mark in self.call_marks)
        end = (self.call_stop_text if marks_calls else self.stop_text) if ended else ""
        response = self.response.read(text, end=end, prefix=self.prompt, tools=self.tools)
        if not response.errors and any(mark in response.content for mark in self.call_marks):
            return Response(text, errors=(ParseError("malformed_call", MALFORMED),))
        if len(response.calls) > 1 and not self.several_calls:
            message = f"{len(response.calls)} calls in one turn; this model's format has one call per turn."
            return Response(text, errors=(ParseError("too_many_calls", message),))
        return response

    def _message(self, text: str, ended: bool) -> dict[str, Any]:
        response = self.read(text, ended=ended)
        errors, content = response.errors, response.content
        if response.reasoning or not response.closed:  # empty reasoning is what models write that do not think
            closing = "\n</think>\n\n" if response.closed else ""
            content = f"<think>\n{response.reasoning or ''}{closing}{content}"
        message: dict[str, Any] = {"content": content}
        if response.calls:
            message["tool_calls"] = [_numbered(call, at) for at, call in enumerate(response.calls)]
            parsed = _PARSER.parse(json.dumps(message))
            errors = parsed.errors if not parsed.calls else ()
        if errors:  # the turn stays in the history as it was written
            return {"content": text, "errors": [asdict(error) for error in errors]}
        return message

    def message(self, action: str) -> Message:
        """Return an action as a turn of the history."""
        return _PARSER.to_message(action, _PARSER.parse(action))

    def turn_text(self, action: str) -> str:
        """Return the text of a turn that `action` reads as this action."""
        return self.model_text("", self.message(action))

    def expresses(self, message: Message) -> bool:
        """Return whether the calls of a message, written as the model would, are read as the same calls."""
        if not message.tool_calls:
            return True
        try:
            read = self.read(self.model_text("", message))
        except ConfigurationError:  # such as two calls where a turn has one
            return False
        calls = [(call.name, dict(call.arguments)) for call in message.tool_calls]
        return not read.errors and [_plain_call(call) for call in read.calls] == calls

    # --- probing -----------------------------------------------------------------------------------------------------

    def _check_tools(self) -> None:
        """Refuse a template that does not show the tools."""
        shown = self.text([_QUESTION])
        if not all(part in shown for part in (_NAME, _TEXT_ARGUMENT)):
            raise self._refusal("it does not show the tools.")

    def _find_call_form(self) -> None:
        """Find how the template takes calls and results: arguments as objects or text, identifiers, names."""
        for self._text_arguments in (False, True):
            for self._short_ids in (False, True):
                if self._render_calls(1) is not None:
                    return
        self._text_arguments = self._short_ids = False
        self.text([_QUESTION, _calls_turn(1), *_results(1)])  # raises the reason
        raise self._refusal("it does not show the calls of a turn, or their results.")

    def _render_calls(self, number: int) -> str | None:
        """Return a rendering of calls and their results, None if the template refuses or loses one."""
        try:
            text = self.text([_QUESTION, _calls_turn(number), *_results(number)])
        except ConfigurationError:
            return None
        whole = all(f"{at}{_REPLY}" in text for at in range(number)) and text.count(_MODEL) == number
        return text if whole and _NAME in text[text.find(_USER) :] else None

    def _find_stops(self) -> tuple[int, str]:
        """Return the token that ends a turn without calls, and the text of the one that an earlier turn ends with."""
        turn = [_QUESTION, Message("assistant", _MODEL)]
        last = self.text(turn, open_turn=False).partition(_MODEL)[2]
        earlier = self.text([*turn, _QUESTION]).partition(_MODEL)[2]
        eos = int(self._tokenizer.eos_token_id)
        if self._token_text(eos) in earlier.partition(_USER)[0]:
            return eos, self._token_text(eos)
        history_stop = self._first_special(earlier)
        if history_stop is None:
            raise self._refusal(f"no special token ends a model turn (after it comes {earlier!r:.40}).")
        stop = self._first_special(last)
        return history_stop if stop is None else stop, self._token_text(history_stop)

    def _find_call_stop(self) -> int:
        """Return the token that ends a turn with calls.

        It is the end of any turn if that stands between a call and its result; else the first special token at which
        one call and two calls differ.
        """
        one, two = self._render_calls(1), self._render_calls(2)
        assert one is not None
        tail = one.partition(_MODEL)[2].partition(f"0{_REPLY}")[0]
        for stop in dict.fromkeys((self.stop_id, int(self._tokenizer.eos_token_id))):
            if self._token_text(stop) in tail:
                return stop
        ids = self._ids(tail)
        other = self._ids(two.split(_MODEL)[1]) if two is not None else []
        same = next((at for at, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), 0)
        special = [token for token in ids[same:] if token in self._special]
        if not special:
            raise self._refusal("no special token ends a turn with a call.")
        return special[0]

    def _find_response(self) -> ResponseFormat:
        """Return the first response template that reads back what this template writes, and find the thinking field."""
        turns = [_calls_turn(1), Message("assistant", f"<answer>{_MODEL}</answer>")]
        turns += [_calls_turn(2)] if self.several_calls else []
        fitting = [
            response
            for response in known_formats(self._tokenizer)
            if all(self._reads_back(response, turn) for turn in turns)
        ]
        if not fitting:
            raise self._refusal("no response template of the tokenizer, of TRL or of this package reads its calls.")
        whole = [response for response in fitting if self._reads_back(response, _calls_turn(1, text=_ANY_TEXT))]
        self._limit(not whole, "texts with quotes, brackets or line breaks")
        response = (whole or fitting)[0]
        for self.thinking_field in _THINKING_FIELDS:
            if self._reads_back(response, _thinking_turn()):
                break
        else:
            self._limit(True, "reasoning")
        self._limit(not self._reads_back(response, replace(_calls_turn(1), content=_USER)), "text")
        return response

    def _limit(self, limited: bool, what: str) -> None:
        if limited:
            self.limits.append(what)

    def _reads_back(self, response: ResponseFormat, turn: Message) -> bool:
        try:
            text = self.model_text("", turn)
        except ConfigurationError:
            return False
        read = response.read(text, end=self.end_text(turn), prefix=self.prompt, tools=self.tools)
        thought = _THOUGHT_TEXT.match(turn.content)
        content = thought["rest"] if thought else turn.content
        calls = [_plain_call(call) for call in read.calls]
        return (
            not read.errors
            and read.content == content.strip()
            and (read.reasoning or "") == (thought["thought"].strip() if thought else "")
            and calls == [(call.name, dict(call.arguments)) for call in turn.tool_calls]
        )

    def _find_call_marks(self) -> tuple[str, ...]:
        """Return the marks that only calls have: in the text of a turn they are those of a malformed call."""
        written = self.model_text("", _calls_turn(1))
        text = self.model_text("", Message("assistant", _MODEL))
        marks = [mark.partition("=")[0] for mark in _TAG.findall(written) if mark not in text]
        return tuple(dict.fromkeys(marks)) or (written.partition(_NAME)[0].strip(),)

    def _find_reply_roles(self) -> None:
        """Find where feedback goes that comes with the results of other calls, and text that comes with a call."""
        thinking = replace(_thinking_turn(), content=f"<think>\n{_THOUGHT}\n</think>\n\n{_USER}")
        feedback = [_QUESTION, _calls_turn(1), *_results(1), Message("user", _USER)]
        self._one_preamble = self._refuses([_QUESTION, thinking]) and not self._refuses([_QUESTION, _thinking_turn()])
        self._reply_in_tool = self._refuses(feedback)

    def _refuses(self, messages: Sequence[Message]) -> bool:
        try:
            self.text(messages)
        except ConfigurationError:
            return True
        return False

    def _classify_calls(self) -> tuple[Any, str]:
        notes = []
        for case in self.cases():
            seen, served = self.compare(case)
            if not self.is_same(seen, served):
                return "rewritten", self._difference(seen, served)
            if seen != served:
                same = "".join(seen.split()) == "".join(served.split())
                notes.append("white space differs" if same else "empty thinking is added or left out")
        return "exact", notes[0] if notes else ""

    def cases(self) -> Iterator[str]:
        """Yield the names of the cases that `compare` plays."""
        skipped = {"two calls"} if not self.several_calls else set()
        skipped |= {"reasoning and call", "reasoning, call and error"} if "reasoning" in self.limits else set()
        yield from (name for name in CASES if name not in skipped)

    def compare(self, case: str) -> tuple[str, str]:
        """Play a case; return what the model has seen before its next turn, and the history rendered anew."""
        first, history = CASES[case], [Message("system", "0sys"), _QUESTION]
        turns = [(_calls_turn(1), _results(1)), first, (_calls_turn(1), _results(1))]
        seen = self.text(history)
        for turn, replies in turns:
            seen += self.model_text("", turn) + self.end_text(turn) + self.gap(replies, turn)
            history += [turn, *replies]
        return seen, self.text(history)

    def is_same(self, seen: str, served: str) -> bool:
        """Return whether two renderings differ in nothing but white space and empty thinking."""
        return self._plain(seen) == self._plain(served)

    def _first_special(self, text: str) -> int | None:
        return next((token for token in self._ids(text) if token in self._special), None)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _token_text(self, token: int) -> str:
        return str(self._tokenizer.convert_ids_to_tokens(token))

    def _refusal(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"parser='native' does not work with the chat template of {self._name!r}: {reason} {_WAY_OUT}"
        )


def _calls_turn(number: int, *, text: str = _MODEL) -> Message:
    calls = tuple(ToolCall(_NAME, {**_ARGUMENTS, _TEXT_ARGUMENT: text}, f"call_{at}") for at in range(number))
    return Message("assistant", "", tool_calls=calls)


def _thinking_turn() -> Message:
    return replace(_calls_turn(1), content=f"<think>\n{_THOUGHT}\n</think>\n\n")


def _results(number: int) -> list[Message]:
    return [Message("tool", f"{at}{_REPLY}", _NAME, f"call_{at}") for at in range(number)]


CASES: Mapping[str, tuple[Message, list[Message]]] = {
    "one call": (_calls_turn(1), _results(1)),
    "two calls": (_calls_turn(2), _results(2)),
    "result and error": (_calls_turn(1), [*_results(1), Message("user", _REPLY)]),
    "error": (Message("assistant", _MODEL), [Message("user", _REPLY)]),
    "reasoning and call": (_thinking_turn(), _results(1)),
    "reasoning, call and error": (_thinking_turn(), [*_results(1), Message("user", _REPLY)]),
}
"""A turn and what follows it, for each kind of turn."""


def _numbered(call: Any, position: int) -> Any:
    """Return a call with an identifier; most families have none."""
    return {"id": f"call_{position}", **call} if isinstance(call, dict) else call


def _plain_call(call: Any) -> tuple[Any, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    return (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (None, None)


def _replies_in_tool(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with a user turn that follows a result in the result's message."""
    joined: list[dict[str, Any]] = []
    for row in rows:
        if row["role"] == "user" and joined and joined[-1]["role"] == "tool":
            joined[-1] = {**joined[-1], "content": f"{joined[-1]['content']}\n\n{row['content']}"}
        else:
            joined.append(row)
    return joined
