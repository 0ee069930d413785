"""Trajectories in the formats of others: OpenAI messages, ShareGPT and ATIF, written and read.

A `Conversation` is what they have in common. Each holds messages, calls with their results, and tools; beyond that:

| format | a turn has | reasoning | rewards, metadata | turns outside the loss |
| --- | --- | --- | --- | --- |
| `messages` (OpenAI, TRL) | text and calls | `<think>` | keys next to `messages` | `weight` 0 |
| `sharegpt` (LLaMA-Factory) | text, or calls with reasoning | `<think>` | keys next to `conversations` | - |
| `atif` (Harbor, v1.7) | text and calls | `reasoning_content` | `metrics`, `extra` | `is_copied_context` |

Sources: OpenAI's guide to fine-tuning with tools; LLaMA-Factory's `data/README.md`; Harbor's RFC 0001.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from agent_r1_gym.core.parsing import Parser
from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.errors import DatasetError
from agent_r1_gym.support.json_data import parse_json, read_objects
from agent_r1_gym.support.packages import installed_version

Row = dict[str, Any]
_Json = TypeVar("_Json", list[Any], dict[str, Any])
ATIF_VERSION = "ATIF-v1.7"
_THOUGHT = re.compile(r"\A\s*<think>(?P<thought>.*?)</think>(?P<rest>.*)\Z", re.DOTALL)
_AGENT = "agent-r1-gym"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A trajectory without token ids: what a model read and wrote, as messages with structured calls.

    Attributes:
        id: name, unique within a file.
        messages: the messages. Calls have ids, unique within the conversation, which the tool messages name.
        tools: the tools as OpenAI-style function schemas.
        turns: number of model turns to learn from, the last ones; those before are examples or an earlier context.
        actions: those turns as the model wrote them, if known; a format keeps calls, not their spelling.
        rewards: their rewards, if known.
        metadata: environment, task, scores and so on, see `run.evaluation.conversations`.
    """

    id: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    turns: int
    actions: tuple[str, ...] = ()
    rewards: tuple[float, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_turns(self) -> range:
        """Positions among all model turns of those to learn from."""
        total = sum(message.role == "assistant" for message in self.messages)
        return range(total - self.turns, total)

    @property
    def episode_return(self) -> float | None:
        """Sum of the rewards; None if they are unknown."""
        return sum(self.rewards) if self.rewards else None

    @property
    def question(self) -> str:
        """The user message before the first of its own turns: the task."""
        number, question = -1, ""
        for message in self.messages:
            number += message.role == "assistant"
            if number == self.own_turns.start:
                break
            question = message.content if message.role == "user" else question
        return question

    @property
    def task_id(self) -> str:
        """Id of the task; "" if the file does not know it."""
        return str(self.metadata.get("task_id") or "")

    def turn_texts(self, parser: Parser, *, answers: bool) -> tuple[str, ...]:
        """Write its own turns in the format of an environment: as the model did, where its text means the same there.

        Args:
            parser: parser of the environment.
            answers: whether a last turn with neither a call nor an answer in the format is to become the answer.

        Raises:
            ConfigurationError: the format cannot express one of the calls.
        """
        own = [message for message in self.messages if message.role == "assistant"][self.own_turns.start :]
        texts = []
        for position, message in enumerate(own):
            action = self.actions[position] if self.actions else None
            if action is not None and _same_calls(parser.parse(action).calls, message.tool_calls):
                texts.append(action)
                continue
            parsed = parser.parse(message.content)
            is_plain = not (message.tool_calls or parsed.calls) and parsed.answer is None
            if answers and is_plain and position == len(own) - 1:
                thought = _THOUGHT.match(message.content)
                answer = parser.format_answer((thought["rest"] if thought else message.content).strip())
                texts.append(parser.format_thought(thought["thought"], answer) if thought else answer)
            else:
                texts.append(parser.format_message(message))
        return tuple(texts)


def _same_calls(first: Sequence[ToolCall], second: Sequence[ToolCall]) -> bool:
    return [(call.name, call.arguments) for call in first] == [(call.name, call.arguments) for call in second]


# --- writing ---------------------------------------------------------------------------------------------------------


def to_messages(conversation: Conversation) -> Row:
    """Write a conversation as OpenAI messages; the return, rewards and metadata are further keys."""
    rows, number = [], -1
    weighted = conversation.own_turns.start > 0
    for message in conversation.messages:
        row = message.to_dict(text_arguments=True)
        if message.role == "assistant":
            number += 1
            if weighted:
                row["weight"] = int(number in conversation.own_turns)
        rows.append(row)
    return {"id": conversation.id, "messages": rows, **_further(conversation)}


def to_sharegpt(conversation: Conversation) -> Row:
    """Write a conversation as ShareGPT with LLaMA-Factory's roles; several results of one turn are a JSON list."""
    rows: list[dict[str, str]] = []
    messages = list(conversation.messages)
    system = messages.pop(0).content if messages and messages[0].role == "system" else ""
    for is_tool, group in itertools.groupby(messages, key=lambda message: message.role == "tool"):
        if is_tool:
            results = [message.content for message in group]
            rows.append({"from": "observation", "value": results[0] if len(results) == 1 else _json(results)})
            continue
        for message in group:
            if not message.tool_calls:
                rows.append({"from": "human" if message.role == "user" else "gpt", "value": message.content})
                continue
            calls: list[Row] = [{"name": call.name, "arguments": dict(call.arguments)} for call in message.tool_calls]
            thought = _THOUGHT.match(message.content)
            before = f"<think>{thought['thought']}</think>\n" if thought else ""
            rows.append({"from": "function_call", "value": before + _json(calls[0] if len(calls) == 1 else calls)})
    row = {"id": conversation.id, "conversations": rows, "system": system}
    return row | _further(conversation) | {"tools": _json(conversation.tools)}


def to_atif(conversation: Conversation) -> Row:
    """Write a conversation as a trajectory of ATIF."""
    steps: list[Row] = []
    own = iter(itertools.zip_longest(conversation.actions, conversation.rewards))
    number = -1
    for message in conversation.messages:
        if message.role == "tool":
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            results.append({"source_call_id": message.tool_call_id, "content": message.content})
            continue
        step: Row = {"step_id": len(steps) + 1, "source": _SOURCES[message.role], "message": message.content}
        steps.append(step)
        if message.role != "assistant":
            continue
        number += 1
        if thought := _THOUGHT.match(message.content):
            step |= {"message": thought["rest"], "reasoning_content": thought["thought"]}
        if message.tool_calls:
            step["tool_calls"] = [
                {"tool_call_id": call.id, "function_name": call.name, "arguments": dict(call.arguments)}
                for call in message.tool_calls
            ]
        if number not in conversation.own_turns:
            step["is_copied_context"] = True
            continue
        action, reward = next(own, (None, None))
        step |= {} if reward is None else {"metrics": {"extra": {"reward": reward}}}
        step |= {} if action is None else {"extra": {"action": action}}
    agent: Row = {
        "name": _AGENT,
        "version": installed_version(_AGENT) or "unknown",
        "tool_definitions": list(conversation.tools),
    }
    if model := conversation.metadata.get("policy"):
        agent["model_name"] = model
    final: Row = {"total_steps": len(steps)}
    if conversation.rewards:
        final["extra"] = {"return": conversation.episode_return}
    return {
        **{"schema_version": ATIF_VERSION, "session_id": conversation.id, "trajectory_id": conversation.id},
        **{"agent": agent, "steps": steps, "final_metrics": final, "extra": dict(conversation.metadata)},
    }


_SOURCES = {"system": "system", "user": "user", "assistant": "agent"}


def _further(conversation: Conversation) -> Row:
    further: Row = {"tools": list(conversation.tools)}
    if conversation.rewards:
        further |= {"reward": conversation.episode_return, "rewards": list(conversation.rewards)}
    if conversation.actions:
        further["actions"] = list(conversation.actions)
    return further | {"metadata": dict(conversation.metadata)}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- reading ---------------------------------------------------------------------------------------------------------


def read_conversations(path: Path) -> list[Conversation]:
    """Read a file of conversations: JSON Lines or a JSON array, in one of the formats.

    Raises:
        DatasetError: the file is missing, empty, damaged or of another kind, mixes formats, or has a conversation that
            cannot be read; the message names the line and the field.
    """
    if not path.is_file():
        raise DatasetError(f"There is no file {path}; expected trajectories as JSON Lines ({_KINDS}).")
    conversations: list[Conversation] = []
    first, ids = "", set()
    for where, row in read_objects(path, if_parquet="write it as JSON Lines first"):
        name = _format_of(row, where)
        if first and name != first:
            raise DatasetError(f"{where}: expected the format {first!r} of the rows before, got {name!r}.")
        first = name
        conversation = FORMATS[name].read(row, where, len(conversations))
        if conversation.id in ids:
            raise DatasetError(f"{where}: the id {conversation.id!r} is that of an earlier row; expected another one.")
        ids.add(conversation.id)
        conversations.append(conversation)
    if not conversations:
        raise DatasetError(f"{path} is empty; expected trajectories as JSON Lines ({_KINDS}).")
    return conversations


def is_conversation_file(path: Path) -> bool:
    """Whether the first row of a file has the key of one of the formats; else it may be the episodes of a run."""
    if not path.is_file():
        return False
    first = next(iter(read_objects(path)), None)
    return (
        first is not None and any(format_.key in first[1] for format_ in FORMATS.values()) and "turns" not in first[1]
    )


def _format_of(row: Row, where: str) -> str:
    for name, format_ in FORMATS.items():
        if format_.key in row:
            return name
    raise DatasetError(f"{where}: expected {_KINDS}; got the keys {', '.join(row) or 'none'}.")


def from_messages(row: Row, where: str, number: int) -> Conversation:
    """Read a row of OpenAI messages."""
    messages, weights = [], []
    for position, message in enumerate(_list(row, "messages", where), 1):
        at = f"{where}, message {position}"
        if not isinstance(message, Mapping):
            raise DatasetError(f"{at}: expected an object, got {message!r:.80}.")
        role: Any = {"developer": "system"}.get(str(message.get("role")), message.get("role"))
        if role not in ("system", "user", "assistant", "tool"):
            raise DatasetError(f"{at}: expected the role system, developer, user, assistant or tool, got {role!r}.")
        calls: tuple[ToolCall, ...] = ()
        if entries := message.get("tool_calls"):
            if role != "assistant" or not isinstance(entries, list):
                raise DatasetError(f"{at}: tool_calls must be a list in an assistant message, got {entries!r:.80}.")
            calls = tuple(_openai_call(entry, at) for entry in entries)
        content = _text(message.get("content"), at)
        if role == "assistant":
            reasoning = message.get("reasoning_content") or message.get("reasoning")
            content = f"<think>{reasoning}</think>{content}" if isinstance(reasoning, str) and reasoning else content
            weights.append(message.get("weight", 1) != 0)
        identifier = message.get("tool_call_id") if role == "tool" else None
        messages.append(Message(role, content, message.get("name"), identifier, calls))
    turns = next((n for n, own in enumerate(reversed(weights)) if not own), len(weights))
    if any(weights[: len(weights) - turns]):
        raise DatasetError(f"{where}: only the first assistant messages may have weight 0, not one between others.")
    return _conversation(row, messages, where, number, turns=turns, identifier=row.get("id"))


def from_sharegpt(row: Row, where: str, number: int) -> Conversation:
    """Read a row of ShareGPT; `from` may be that of Vicuna or LLaMA-Factory."""
    messages: list[Message] = []
    if row.get("system"):
        messages.append(Message("system", _text(row["system"], f"{where}, system")))
    for position, entry in enumerate(_list(row, "conversations", where), 1):
        at = f"{where}, conversation {position}"
        if not isinstance(entry, Mapping):
            raise DatasetError(f"{at}: expected an object with `from` and `value`, got {entry!r:.80}.")
        value, role = _text(entry.get("value"), at), _SHAREGPT_ROLES.get(str(entry.get("from")))
        if role is None:
            raise DatasetError(
                f"{at}: expected `from` to be one of {', '.join(_SHAREGPT_ROLES)}; got {entry.get('from')!r}."
            )
        if entry["from"] == "function_call":
            thought = _THOUGHT.match(value)
            calls = _decoded(thought["rest"] if thought else value, at)
            content = f"<think>{thought['thought']}</think>" if thought else ""
            entries = calls if isinstance(calls, list) else [calls]
            messages.append(Message(role, content, tool_calls=tuple(_call(each, at) for each in entries)))
        elif role == "tool":
            expected = len(messages[-1].tool_calls) if messages else 0
            results = _results(value, expected)
            messages += [Message("tool", result) for result in results]
        else:
            messages.append(Message(role, value))
    return _conversation(row, messages, where, number, turns=None, identifier=row.get("id"))


_SHAREGPT_ROLES: Mapping[str, Any] = {
    **{"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"},
    **{"function_call": "assistant", "observation": "tool", "tool": "tool"},
}


def from_atif(row: Row, where: str, number: int) -> Conversation:
    """Read a trajectory of ATIF, any version 1; trajectories that it refers to are not read."""
    if not str(row["schema_version"]).startswith("ATIF-v1."):
        raise DatasetError(f"{where}: expected schema_version ATIF-v1.x, got {row['schema_version']!r}.")
    messages: list[Message] = []
    actions, rewards, turns = [], [], 0
    for position, step in enumerate(_list(row, "steps", where), 1):
        at = f"{where}, step {position}"
        roles: Mapping[str, Any] = {source: role for role, source in _SOURCES.items()}
        role = roles.get(str(step.get("source"))) if isinstance(step, Mapping) else None
        if role is None:
            raise DatasetError(f"{at}: expected an object with `source` system, user or agent, got {step!r:.80}.")
        content = _text(step.get("message"), at)
        if reasoning := _text(step.get("reasoning_content"), f"{at}, reasoning_content"):
            content = f"<think>{reasoning}</think>{content}"
        calls = tuple(
            _call({"name": call.get("function_name"), **call}, at, call.get("tool_call_id"))
            for call in _objects(step, "tool_calls", at)
        )
        messages.append(Message(role, content, tool_calls=calls))
        messages += _observed(_objects(_optional(step, "observation", dict, at), "results", at), messages[-1], at)
        if role != "assistant":
            continue
        if step.get("is_copied_context"):
            if turns:
                raise DatasetError(f"{at}: copied context must come before the agent's own steps.")
            continue
        turns += 1
        action = _optional(step, "extra", dict, at).get("action")
        reward = _optional(_optional(step, "metrics", dict, at), "extra", dict, at).get("reward")
        actions += [action] if isinstance(action, str) else []
        rewards += [reward] if isinstance(reward, int | float) else []
    agent, extra = _optional(row, "agent", dict, where), row.get("extra")
    further = {"tools": agent.get("tool_definitions"), "actions": actions, "rewards": rewards, "metadata": extra}
    identifier = row.get("trajectory_id") or row.get("session_id")
    return _conversation(further, messages, where, number, turns=turns, identifier=identifier)


def _observed(results: Sequence[Mapping[str, Any]], turn: Message, at: str) -> list[Message]:
    """What follows a step of ATIF: the results of its calls, then as a user turn what belongs to none of them."""
    unnamed = len(turn.tool_calls) - sum(result.get("source_call_id") is not None for result in results)
    answers, notes = list[Message](), list[str]()
    for result in results:
        text, named = _text(result.get("content"), at), result.get("source_call_id")
        is_note = named is None and unnamed <= 0 and (turn.tool_calls or turn.role != "assistant")
        if is_note:
            notes.append(text)
            continue
        unnamed -= named is None
        answers.append(Message("tool", text, tool_call_id=named))
    return answers + ([Message("user", "\n".join(notes))] if notes else [])


def _conversation(
    row: Mapping[str, Any], messages: list[Message], where: str, number: int, *, turns: int | None, identifier: Any
) -> Conversation:
    """Check what all formats share, and connect calls with their results."""
    total = sum(message.role == "assistant" for message in messages)
    turns = total if turns is None else turns
    if not turns:
        raise DatasetError(f"{where}: expected at least one turn of the model to learn from, got {total} in all.")
    tools = row.get("tools")
    tools = _decoded(tools, f"{where}, tools") if isinstance(tools, str) and tools.strip() else tools or []
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise DatasetError(f"{where}: expected tools to be a list of function schemas, got {tools!r:.80}.")
    actions, rewards = (tuple(_optional(row, name, list, where)) for name in ("actions", "rewards"))
    metadata = row.get("metadata")
    return Conversation(
        id=identifier if isinstance(identifier, str) and identifier else str(number),
        messages=tuple(_connected(messages, where)),
        tools=tuple(tool if "function" in tool else {"type": "function", "function": tool} for tool in tools),
        turns=turns,
        actions=actions if len(actions) == turns and all(isinstance(each, str) for each in actions) else (),
        rewards=rewards if len(rewards) == turns and all(_is_number(each) for each in rewards) else (),
        metadata=metadata if isinstance(metadata, Mapping) else {},
    )


def _connected(messages: Sequence[Message], where: str) -> Iterator[Message]:
    """Give each call an id of its own, and each result the id and name of its call.

    A result without an id may follow a turn without calls: those are in its text, in a format of an environment.

    Raises:
        DatasetError: a result answers no call, or a call has no result before the next turn.
    """
    waiting: list[tuple[ToolCall, str | None]] = []  # the call with its new id, and the id in the file
    numbers, is_text = itertools.count(), False
    for position, message in enumerate(messages, 1):
        if message.role == "tool":
            named = message.tool_call_id
            if is_text and named is None:
                yield message
                continue
            chosen = next((pair for pair in waiting if named is None or pair[1] == named), None)
            if chosen is None:
                answers = f"the call {named!r}, which is not open" if named else "no call"
                raise DatasetError(f"{where}, message {position}: a tool result answers {answers}.")
            waiting.remove(chosen)
            yield replace(message, name=chosen[0].name, tool_call_id=chosen[0].id)
            continue
        if waiting:
            call, name = waiting[0]
            raise DatasetError(
                f"{where}, message {position}: expected the result of the call {call.name!r} ({name or 'no id'}) "
                f"first, got a message of {message.role}."
            )
        is_text = message.role == "assistant" and not message.tool_calls
        waiting = [(replace(call, id=f"call_{next(numbers)}"), call.id) for call in message.tool_calls]
        yield replace(message, tool_calls=tuple(call for call, _ in waiting))


def _openai_call(entry: Any, where: str) -> ToolCall:
    function = entry.get("function") if isinstance(entry, Mapping) else None
    if not isinstance(function, Mapping):
        raise DatasetError(f"{where}: expected a tool call with a `function` object, got {entry!r:.80}.")
    arguments = function.get("arguments") or {}
    arguments = _decoded(arguments, where) if isinstance(arguments, str) else arguments
    # Rows of one table have the arguments of all tools; those of other tools are null there.
    return _call({"name": function.get("name"), "arguments": arguments}, where, entry.get("id"))


def _call(call: Any, where: str, identifier: Any = None) -> ToolCall:
    match call:
        case {"name": str(name), "arguments": Mapping() as arguments} if name:
            return ToolCall(name, dict(arguments), identifier if isinstance(identifier, str) else None)
    raise DatasetError(f"{where}: expected a call with a name and an object of arguments, got {call!r:.80}.")


def _results(value: str, number: int) -> list[str]:
    """Split the results of several calls, which are one JSON list in ShareGPT."""
    if number > 1:
        try:
            results = parse_json(value)
        except ValueError:
            results = None
        if isinstance(results, list) and len(results) == number and all(isinstance(each, str) for each in results):
            return results
    return [value]


def _text(content: Any, where: str) -> str:
    """Read text, which may come in parts; an image or other part is refused."""
    match content:
        case None:
            return ""
        case str():
            return content
        case [*parts] if all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
            return "".join(part["text"] for part in parts)
    raise DatasetError(f"{where}: expected text, got {content!r:.80}; images and audio are not supported.")


def _list(row: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = row.get(key)
    if not isinstance(value, list) or not value:
        raise DatasetError(f"{where}: expected {key!r} to be a list with at least one entry, got {value!r:.80}.")
    return value


def _optional(row: Mapping[str, Any], key: str, kind: type[_Json], where: str) -> _Json:
    """Read a list or an object that may be missing."""
    value = row.get(key)
    if value is not None and not isinstance(value, kind):
        expected = "an object" if kind is dict else "a list"
        raise DatasetError(f"{where}: expected {key!r} to be {expected}, got {value!r:.80}.")
    return kind() if value is None else value


def _objects(row: Mapping[str, Any], key: str, where: str) -> list[Row]:
    """Read a list of objects that may be missing."""
    items = _optional(row, key, list, where)
    for item in items:
        if not isinstance(item, dict):
            raise DatasetError(f"{where}: expected {key!r} to be a list of objects, got {item!r:.80} in it.")
    return items


def _decoded(text: str, where: str) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise DatasetError(f"{where}: expected JSON, got {text!r:.80} ({error}).") from error


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class _Format:
    key: str
    write: Callable[[Conversation], Row]
    read: Callable[[Row, str, int], Conversation]


FORMATS: Mapping[str, _Format] = MappingProxyType(
    {
        "messages": _Format("messages", to_messages, from_messages),
        "sharegpt": _Format("conversations", to_sharegpt, from_sharegpt),
        "atif": _Format("schema_version", to_atif, from_atif),
    }
)
"""By name: the key that only this format has, and how a row is written and read."""
_KINDS = "OpenAI `messages`, ShareGPT `conversations`, or ATIF with a `schema_version`"


def write_rows(conversations: Iterable[Conversation], name: str) -> Iterator[Row]:
    """Yield the row of each conversation in a format, by its name in `FORMATS`."""
    return map(FORMATS[name].write, conversations)
