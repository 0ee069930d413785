"""The values that environments, tools, rewards and sessions exchange: messages, calls, outcomes, tasks, passages."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from agent_r1_gym.errors import ConfigurationError

Role = Literal["system", "user", "assistant", "tool"]
"""The author of a message."""

ErrorKind = Literal["malformed_call", "unknown_tool", "bad_arguments", "tool_error", "busy", "timeout", "unavailable"]
"""Why a call failed. The first three are the model's mistakes, "busy" is part of the task (the same call may succeed
when it is repeated), the last two are infrastructure failures."""

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
MAX_CALLS_PER_TURN = 16
"""A turn with more calls is refused as a whole."""
INFRASTRUCTURE_FAILURES: frozenset[str] = frozenset({"timeout", "unavailable"})


class Arguments(Mapping[str, Any]):
    """The arguments of a call, read-only: lists and dictionaries among them are returned as copies.

    Args:
        values: arguments by name; the caller must not change lists and dictionaries among them later.
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        return copy.deepcopy(value) if isinstance(value, (dict, list)) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self._values.keys()

    def __repr__(self) -> str:
        return repr(self._values)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call in a model's turn.

    Attributes:
        name: name of the tool.
        arguments: keyword arguments, already decoded from JSON; read-only, `dict(call.arguments)` is a copy.
        id: identifier given by the model's format (OpenAI style), else None.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None

    def __post_init__(self) -> None:
        if type(self.arguments) is not Arguments:
            object.__setattr__(self, "arguments", Arguments(self.arguments))

    @property
    def key(self) -> str:
        """Canonical text of name and arguments: equal for calls that ask for the same thing."""
        return self.name + _CANONICAL.encode(dict(self.arguments))


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of the history.

    Attributes:
        role: the author.
        content: the text, exactly as written (tool text: sanitized).
        name: name of the tool, for role "tool".
        tool_call_id: the call this message answers, in formats that number calls.
        tool_calls: structured calls of an assistant turn, in formats that carry them outside the text.
    """

    role: Role
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()

    def to_dict(self, *, text_arguments: bool = False) -> dict[str, Any]:
        """Return the message as a chat dictionary.

        Args:
            text_arguments: write the arguments of calls as JSON text, as OpenAI-compatible endpoints exchange them;
                False: as an object, as `tokenizer.apply_chat_template` takes them.
        """
        chat: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.name is not None:
            chat["name"] = self.name
        if self.tool_call_id is not None:
            chat["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            chat["tool_calls"] = [
                {
                    "id": call.id or f"call_{position}",
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": json.dumps(dict(call.arguments)) if text_arguments else dict(call.arguments),
                    },
                }
                for position, call in enumerate(self.tool_calls)
            ]
        return chat


def to_chat(messages: Iterable[Message], *, text_arguments: bool = False) -> list[dict[str, Any]]:
    """Convert messages to a new list of chat dictionaries, for `tokenizer.apply_chat_template`.

    Args:
        messages: of `info["messages"]`, for example.
        text_arguments: True for an OpenAI-compatible endpoint, see `Message.to_dict`.
    """
    return [message.to_dict(text_arguments=text_arguments) for message in messages]


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The raw outcome of one tool call, without reward and without history.

    Attributes:
        content: text for the model.
        ok: False if the call failed.
        error: why it failed, None if it did not.
        data: structured form of `content` (a search tool: the hits), for rewards and logs; not shown to the model. An
            empty tuple or list means that nothing was found.
        latency: seconds of the execution, measured where a tool returns a string, otherwise set by the tool; equal
            outcomes may differ in it.
        retry_after: seconds during which no request will reach the backend (see `InfrastructureError`); None if it may
            be called at once.
    """

    content: str
    ok: bool = True
    error: ErrorKind | None = None
    data: Any = None
    latency: float = field(default=0.0, compare=False)
    retry_after: float | None = field(default=None, compare=False)

    @property
    def is_infrastructure_failure(self) -> bool:
        """True if a backend failed, so that the episode should be dropped instead of punished."""
        return self.error in INFRASTRUCTURE_FAILURES

    @property
    def found_nothing(self) -> bool:
        """True if the call succeeded and `data` is an empty tuple or list; anything else counts as found."""
        return self.ok and isinstance(self.data, tuple | list) and not self.data


PARSE_ERROR_CODES = (
    "bad_json",
    "not_an_object",
    "missing_name",
    "malformed_call",
    "unknown_keys",
    "unclosed_tag",
    "unopened_tag",
    "call_and_answer",
    "several_answers",
    "empty_answer",
    "empty_call",
    "too_many_calls",
    "other_format",
    "no_action",
)
"""Every mistake a parser can report."""


class ModelAction(str):
    """A turn of a model as an action: its text, with what only the engine that sampled it knows.

    Args:
        text: the turn.
        is_cut: whether the token limit cut it; `ToolEnv` names the limit in feedback on a mistake.
        prompt_tokens: number of tokens that the model read; None: not known.
        completion_tokens: number of sampled tokens; None: not known.
    """

    __slots__ = ("completion_tokens", "is_cut", "prompt_tokens")
    is_cut: bool
    prompt_tokens: int | None
    completion_tokens: int | None

    def __new__(
        cls, text: str, *, is_cut: bool = False, prompt_tokens: int | None = None, completion_tokens: int | None = None
    ) -> ModelAction:
        """See the class."""
        turn = super().__new__(cls, text)
        turn.is_cut, turn.prompt_tokens, turn.completion_tokens = is_cut, prompt_tokens, completion_tokens
        return turn


@dataclass(frozen=True, slots=True)
class ParseError:
    """A mistake in a model's turn, fed back to the model.

    Attributes:
        code: stable short name, one of `PARSE_ERROR_CODES`.
        message: what is wrong, what was expected, what came, in the parser's own words. The model reads it as it is,
            tags included, so it must not contain text of the model.
        quote: what the model wrote, shown after the message; sanitized like any foreign text.
        tag: name of the tag that lacks its other half, "think" for reasoning in any marks; "" for other mistakes.
    """

    code: str
    message: str
    quote: str = ""
    tag: str = ""


@dataclass(frozen=True, slots=True)
class ParsedTurn:
    """One model turn as a parser understood it.

    Attributes:
        calls: well-formed calls, in order of appearance; tool and arguments are not checked yet.
        answer: the final answer, None if the turn gives none.
        errors: mistakes; a turn may have good calls and mistakes, never an answer and anything else.
        content: the turn's text, in formats that carry calls outside of it; None: the turn as written.
        is_message: whether the one call is a message to the tool that plays the user, in place of an answer; parsers
            leave that to `ToolEnv`.
    """

    calls: tuple[ToolCall, ...] = ()
    answer: str | None = None
    errors: tuple[ParseError, ...] = ()
    content: str | None = None
    is_message: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to solve.

    Attributes:
        id: unique within its data set.
        prompt: the question or instruction for the model.
        answers: accepted gold answers, the canonical one first; never shown to a model or a tool.
        metadata: all other fields of the data set's row.
        history: earlier turns of the conversation that `prompt` continues, oldest first; a system turn among them must
            be the first.

    Raises:
        ConfigurationError: a field is of another type.
    """

    id: str
    prompt: str
    answers: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Message, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        answers: Any = self.answers
        if isinstance(answers, list):
            object.__setattr__(self, "answers", tuple(answers))
        elif not isinstance(answers, tuple):
            hint = f": write ({answers!r:.40},)" if isinstance(answers, str) else ""
            raise ConfigurationError(
                f"answers of task {self.id!r} must be a tuple of strings, got {answers!r:.80}{hint}."
            )
        for name, value in (("id", self.id), ("prompt", self.prompt), *(("an answer", each) for each in answers)):
            if not isinstance(value, str):
                raise ConfigurationError(f"{name} of task {self.id!r} must be a string, got {value!r:.80}.")
        if not isinstance(self.metadata, Mapping):
            raise ConfigurationError(f"metadata of task {self.id!r} must be a mapping, got {self.metadata!r:.80}.")
        if not isinstance(self.history, tuple) or not all(isinstance(turn, Message) for turn in self.history):
            raise ConfigurationError(
                f"history of task {self.id!r} must be a tuple of Message, got {self.history!r:.80}."
            )
        if any(turn.role == "system" for turn in self.history[1:]):
            raise ConfigurationError(f"history of task {self.id!r} has a system turn that is not the first.")


@dataclass(frozen=True, slots=True)
class Transition:
    """One step of an episode, as reward terms see it.

    Attributes:
        task: the task of the episode, gold answers included.
        turn: 0-based index of the model's turn.
        parsed: what the parser understood of the action.
        outcomes: one outcome per call in `parsed.calls`, in the same order.
        terminated: the task ended by its own rules in this step.
        truncated: a budget ran out in this step.
        earlier: the earlier transitions of the episode, oldest first.
    """

    task: Task
    turn: int
    parsed: ParsedTurn
    outcomes: tuple[ToolOutcome, ...]
    terminated: bool = False
    truncated: bool = False
    earlier: tuple[Transition, ...] = field(default=(), repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Thought:
    """A scripted turn that begins with a thought.

    Attributes:
        text: the thought.
        action: the call, several calls, or the final answer.
    """

    text: str
    action: ToolCall | tuple[ToolCall, ...] | str


ScriptedTurn = ToolCall | tuple[ToolCall, ...] | Thought | str
"""A turn of a script: a call, several calls at once, the final answer, or one of these after a thought."""
ScriptedPolicy = Callable[[Any, Task, Sequence[Transition]], ScriptedTurn | None]
"""A scripted policy: from environment, task and earlier transitions to the next turn; None: unknown."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One retrievable piece of text.

    Attributes:
        id: unique within its corpus.
        title: heading, "" if it has none.
        text: the body.
        sentence_ends: end offset of each sentence in `text`, () if unknown; supporting facts count sentences.
    """

    id: str
    title: str
    text: str
    sentence_ends: tuple[int, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences of `text`, the whole text as one if its sentences are unknown."""
        starts = (0, *self.sentence_ends[:-1])
        ends = self.sentence_ends or (len(self.text),)
        return tuple(self.text[start:end] for start, end in zip(starts, ends, strict=True))


# --- info as JSON ----------------------------------------------------------------------------------------------------

_INFO_VALUES: Mapping[str, type] = {
    "messages": Message,
    "new_messages": Message,
    "tool_calls": ToolCall,
    "tool_outcomes": ToolOutcome,
    "parse_errors": ParseError,
}
"""Keys of `info` whose value is a tuple, with the class of its elements."""
_SCALARS = (str, bool, int, float)  # not a union, which would be built again for each value


def info_to_dict(info: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the `info` of one environment, with what wrappers added, to plain data for `json.dumps`.

    Dataclasses become dictionaries, arrays become lists, and values without a form in JSON (in
    `ToolOutcome.data`) become their `repr`.
    """
    return {key: _plain(value) for key, value in info.items()}


def info_from_dict(data: Mapping[str, Any]) -> dict[str, Any]:
    """Restore the `info` from the output of `info_to_dict`.

    Messages, calls, outcomes and parse errors are restored; `ToolOutcome.data` and what wrappers added stay plain.

    Raises:
        TypeError: `data` has fields that those classes do not have.
    """
    return {key: _values(_INFO_VALUES[key], value) if key in _INFO_VALUES else value for key, value in data.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, _SCALARS):
        return value
    if is_dataclass(value):
        return {part.name: _plain(getattr(value, part.name)) for part in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return value.tolist() if hasattr(value, "tolist") else repr(value)  # arrays and numbers of numpy or torch


def _values(kind: type, entries: Iterable[Mapping[str, Any]]) -> tuple[Any, ...]:
    if kind is Message:
        entries = [{**entry, "tool_calls": _values(ToolCall, entry["tool_calls"])} for entry in entries]
    return tuple(kind(**entry) for entry in entries)
