"""Conversations (`run.trajectory_files`) of a run's episodes, and the tasks that conversations of others are about."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1_gym.core.parsing import OpenAIParser
from agent_r1_gym.core.text import encodable
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import TextEnv, make_text_env
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.mixture import EnvConfig
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.trajectory_files import Conversation
from agent_r1_gym.run.trust import Trust
from agent_r1_gym.support.terminal import print_note

CALLS = ("structured", "text")
"""How calls are written: as `tool_calls`, or in the text, as the model wrote them."""


def run_conversations(run: Path, *, calls: str = "structured", trust: Trust) -> Iterator[Conversation]:
    """Yield each context of each episode of a run; an episode whose history was rewritten has several.

    A context without a turn of the model has nothing to learn from, and is left out with a note.

    The environment is made again, for its tools and to read the turns with its parser. With structured calls the system
    message is the one that the environment gives to a client with structured calls, without a format in text.

    Args:
        run: folder of an evaluation.
        calls: one of `CALLS`.
        trust: what the caller vouches for: `run.json` names the environment.

    Raises:
        ConfigurationError: `run.json` names what it may not, its environment cannot be made or has other tasks, or its
            calls cannot be structured.
        DatasetError: `run` is not a run folder.
    """
    folder = RunFolder(run)
    settings = folder.settings()
    (member,) = trust.vet(
        folder.run_path, [EnvConfig(env_id=settings["env_id"], options=settings.get("env_options") or {})]
    )
    env = make_text_env(member.env_id, dict(member.options))
    clients = _env_for_clients(member, env) if calls == "structured" else None
    empty = 0
    for record in folder.episodes():
        for conversation in _conversations(record, env, clients):
            empty += not conversation.turns
            if conversation.turns:
                yield conversation
    env.close()
    if empty:
        print_note(f"{empty} conversation{'' if empty == 1 else 's'} without a turn of the model left out.")


def _env_for_clients(member: EnvConfig, env: TextEnv) -> TextEnv | None:
    """Make the environment with structured calls; None if it has no tools."""
    bare = env.unwrapped
    if not isinstance(bare, ToolEnv):
        return None
    if isinstance(bare.parser, OpenAIParser):
        return env
    options = {name: value for name, value in member.options.items() if name != "tool_style"}
    try:
        return make_text_env(member.env_id, options | {"parser": OpenAIParser.name})
    except ConfigurationError as error:
        raise ConfigurationError(f"{member.env_id} has no structured calls: {error} Use --calls text.") from error


def _conversations(record: Trajectory, env: TextEnv, clients: TextEnv | None) -> Iterator[Conversation]:
    bare = env.unwrapped
    tools: Sequence[Any] = ()
    system: Message | None = None
    if isinstance(bare, ToolEnv) and not bare.waits_at_reset:  # the tools of a program are not recorded
        reset_to_task(env, record)
        tools = bare.tool_schemas
    if clients is not None:
        info = reset_to_task(clients, record)
        system = next((message for message in info["messages"] if message.role == "system"), None)
    first = 0
    for number, context in enumerate(record.contexts):
        turns = record.turns[first : first + context.turns]
        first += context.turns
        messages = list(context.messages)
        if clients is not None and isinstance(bare, ToolEnv):
            messages = _structured(messages, bare, system)
        part = f"#{number + 1}" if len(record.contexts) > 1 else ""
        yield Conversation(
            id=f"{record.task_id or record.seed}/{record.sample}{part}",
            messages=tuple(messages),
            tools=tuple(tools),
            turns=context.turns,
            actions=tuple(turn.action for turn in turns),
            rewards=tuple(turn.reward for turn in turns),
            metadata=_metadata(record),
        )


def reset_to_task(env: TextEnv, record: Trajectory) -> dict[str, Any]:
    """Reset an environment to the task of a record; returns the info.

    Raises:
        ConfigurationError: the environment has another task there, or is played by a program.
    """
    if isinstance(env.unwrapped, ToolEnv) and env.unwrapped.waits_at_reset:
        raise ConfigurationError(
            "These episodes were played by a program, and its prompts and tools are not those of the environment: the "
            "calls can only be read as the model wrote them (data export --calls text; sft with another parser than "
            "native)."
        )
    _, info = env.reset(options={"task_index": record.task_index})
    if info["task_id"] != record.task_id:
        raise ConfigurationError(
            f"The run's task {record.task_index} is {record.task_id!r}, the environment's {info['task_id']!r}: give "
            "the environment the options and the data that the run was played with (dataset, split)."
        )
    return info


def find_tasks(conversations: Sequence[Conversation], env: ToolEnv) -> list[int | None]:
    """Find the position of each conversation's task by user message, and by id if it has one; else None.

    Args:
        conversations: the conversations.
        env: the environment that has the tasks.
    """
    positions: dict[tuple[str, str], int] = {}
    for position, task in enumerate(env.tasks):
        question = env.formatter.prompt(env.task_prompt(task)).content
        positions.setdefault((task.id, question), position)
        positions.setdefault(("", question), position)
    return [positions.get((each.task_id, encodable(each.question))) for each in conversations]


def _structured(messages: Sequence[Message], env: ToolEnv, system: Message | None) -> list[Message]:
    """Move calls out of the text; ids are new, since servers repeat them from turn to turn.

    Calls that were not executed, since there were too many, stay in the text: no results follow, as others expect them.
    """
    rows: list[Message] = []
    number = 0
    waiting: list[str] = []
    before, after = env.parser.show_outcome("\0").split("\0")  # what the format puts around a result
    for position, message in enumerate(messages):
        if message.role == "system":
            rows += [system] if system is not None else []
        elif message.role == "tool" and waiting:
            content = message.content.removeprefix(before).removesuffix(after)
            rows.append(replace(message, content=content, tool_call_id=waiting.pop(0)))
        elif message.role == "assistant":
            content, calls = message.content, message.tool_calls
            if not calls:
                content, calls = env.parser.split_calls(content)
                if not calls and env.parser.parse(content).calls:
                    raise ConfigurationError(
                        f"The format {env.parser.name!r} does not separate calls from text (`Parser.split_calls`); use "
                        "--calls text."
                    )
                rest = messages[position + 1 :]
                if rest and len(calls) > len(list(itertools.takewhile(lambda each: each.role == "tool", rest))):
                    content, calls = message.content, ()
            named = tuple(replace(call, id=f"call_{number + place}") for place, call in enumerate(calls))
            number += len(named)
            waiting = [call.id for call in named if call.id]
            rows.append(Message("assistant", content, tool_calls=named))
        else:
            rows.append(message)
    return rows


def _metadata(record: Trajectory) -> dict[str, Any]:
    names = ("env_id", "dataset", "policy", "task_id", "task_index", "sample", "seed", "answer", "end_reason")
    return {name: getattr(record, name) for name in names} | {
        "scores": dict(record.scores),
        "gold_answers": list(record.gold_answers),
        "labels": dict(record.labels),
        "terminated": record.terminated,
    }
