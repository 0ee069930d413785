"""Demonstrations for supervised training: who plays them, which episodes count, and the token rows made of them."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from agent_r1_gym.core.parsing import NativeParser
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import TextEnv, full_id
from agent_r1_gym.run.agents import AgentSpec, check_policy, make_runner, run_settings, weights_fingerprint
from agent_r1_gym.run.evaluation.conversations import find_tasks, reset_to_task
from agent_r1_gym.run.evaluation.evaluate import evaluate
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.player import evaluation_jobs
from agent_r1_gym.run.record import Context, Trajectory, Turn
from agent_r1_gym.run.trajectory_files import Conversation
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.local_model import LocalOptions

ORACLE = "oracle"
SELF = "self"
"""The source that is the model under training."""
MAX_EPISODES = 1_000
"""Tasks played by default, if there are as many."""

# --- Episodes ---


def play_demonstrations(
    folder: Path,
    env: TextEnv,
    *,
    env_id: str,
    env_options: Mapping[str, Any],
    policy: str,
    model: LocalOptions | None = None,
    episodes: int | None = None,
    shuffle: bool = False,
    samples: int = 1,
    seed: int = 0,
) -> RunFolder:
    """Play training tasks into a run folder; episodes that an interrupted run left there are kept.

    Args:
        folder: the run folder.
        env: an environment of the kind that is played.
        env_id: its id.
        env_options: its options.
        policy: the demonstrator: "oracle", MODULE:NAME, or "self".
        model: the model behind "self".
        episodes: number of tasks, the first ones; the oracle plays the first whose solution it knows
            (`ToolEnv.has_solution`); None: all, at most `MAX_EPISODES`.
        shuffle: whether `seed` shuffles the tasks before the first ones are taken.
        samples: episodes per task.
        seed: seed of environments and samples, and of the shuffle.

    Raises:
        ConfigurationError: the policy cannot play this environment, the oracle knows the solution of no task, or the
            folder holds another run.
    """
    name = policy if model is None else f"local:{model.model}"
    check_policy(name, env)
    bare = env.unwrapped
    has_tasks = isinstance(bare, ToolEnv)
    number, shuffled_by = MAX_EPISODES if episodes is None else episodes, seed if shuffle else None
    chosen = _tasks(bare, number, solved=policy == ORACLE, shuffled_by=shuffled_by)
    options: dict[str, Any] = {}
    if model is not None:
        # It changes with the weights: episodes of an earlier model are not this model's own successes.
        own = weights_fingerprint(Path(model.model)) or (None if model.revision == "main" else model.revision)
        options = {**asdict(model), "weights_fingerprint": own}
    spec = AgentSpec(env=full_id(env_id), env_options=env_options, policy=name, model=options)
    jobs = evaluation_jobs(chosen, samples=samples, seed=seed, has_tasks=has_tasks)
    if not has_tasks:  # the seed is the task: take those of training, which come before the held-out ones
        jobs = [replace(job, seed=job.task_index) for job in jobs]
    run = RunFolder(folder)
    evaluate(
        run,
        functools.partial(make_runner, spec),
        settings=run_settings(spec, env, chosen, samples=samples, seed=seed),
        jobs=jobs,
        samples=samples,
        name="demonstrations",
    )
    return run


def _tasks(env: Any, number: int, *, solved: bool, shuffled_by: int | None) -> Sequence[int]:
    """Choose the first tasks of an environment; with `solved`, the first whose solution is known.

    With `shuffled_by`, a seed, they are the first after a shuffle. Without a list of tasks, every seed is a random one.
    """
    if not isinstance(env, ToolEnv):
        return range(number)
    order: Sequence[int] = range(len(env.tasks))
    if shuffled_by is not None:
        order = random.Random(shuffled_by).sample(order, len(order))
    if not solved:
        return order[:number]
    known = list(itertools.islice((i for i in order if env.has_solution(env.tasks[i])), number))
    if not known:
        raise ConfigurationError(
            f"The oracle knows the answers of the {len(env.tasks)} tasks of {env.describe_dataset()}, but no solution: "
            "there is nothing to demonstrate. Use --from with a policy, or with a run of a stronger model."
        )
    return known


def successes(records: Sequence[Trajectory], *, min_return: float | None) -> list[Trajectory]:
    """Select the episodes to learn from.

    Args:
        records: finished episodes; those lost to an infrastructure failure are skipped.
        min_return: smallest return; None: a correct answer, or a return above 0 where nothing scores answers.
    """

    def succeeded(record: Trajectory) -> bool:
        if min_return is not None:
            return record.episode_return >= min_return
        return record.episode_return > 0 if record.solved is None else record.solved

    return [record for record in records if record.infrastructure_error is None and succeeded(record)]


def failures(record: Trajectory) -> list[str]:
    """List the errors of an episode's calls and of turns that could not be parsed; a demonstration should have none."""
    calls = [error for turn in record.turns for error in turn.call_errors if error is not None]
    return [*calls, *(error for turn in record.turns for error in turn.parse_errors)]


def contexts(records: Sequence[Trajectory], env: TextEnv) -> Iterator[Context]:
    """Yield the contexts of each episode as the model under training would see and write them.

    Structured calls (of a model behind an endpoint) are rewritten as text in the environment's own format, below the
    environment's own system message. With parser="native" they stay structured, and while a context is yielded, the
    environment's tools are those of its task (see `bind_chat`).

    Raises:
        ConfigurationError: an episode with structured calls belongs to a task that the environment does not have.
    """
    bare = env.unwrapped
    native = isinstance(bare, ToolEnv) and isinstance(bare.parser, NativeParser)
    for record in records:
        structured = native or any(message.tool_calls for message in record.transcript)
        if not (structured and isinstance(bare, ToolEnv)):
            yield from record.contexts
            continue
        info = reset_to_task(env, record)
        system = [message for message in info["messages"] if message.role == "system"]
        for context in record.contexts:
            others = [message for message in context.messages if message.role != "system"]
            if not native:
                others = [
                    replace(message, content=bare.parser.format_message(message), tool_call_id=None, tool_calls=())
                    for message in others
                ]
            yield replace(context, messages=(*system, *others))


def imported(conversations: Sequence[Conversation], env: TextEnv, *, env_id: str, source: str) -> list[Trajectory]:
    """Make records of conversations that were not played here, with the prompt and in the format of an environment.

    The environment's system message takes the place of theirs, since the model will see that one.

    Args:
        conversations: what `run.trajectory_files` read.
        env: a `ToolEnv`, possibly wrapped.
        env_id: its id, for error messages.
        source: the file, for error messages.

    Raises:
        ConfigurationError: the environment has no tools and parser, or lacks a tool that is called, or its format
            cannot express a call.
    """
    bare = env.unwrapped
    if not isinstance(bare, ToolEnv):
        raise ConfigurationError(f"--from {source}: a file of conversations needs an environment with tools (ToolEnv).")
    native = isinstance(bare.parser, NativeParser)
    records: list[Trajectory] = []
    for number, (conversation, task) in enumerate(zip(conversations, find_tasks(conversations, bare), strict=True)):
        if bare.waits_at_reset:
            raise ConfigurationError(f"--from {source}: conversations are imported without a program: drop --agent.")
        index = task or 0  # of an unknown task, the prompt and tools of another one
        _, info = env.reset(options={"task_index": index})
        tools = {tool["function"]["name"] for tool in bare.tool_schemas}
        called = {call.name for message in conversation.messages for call in message.tool_calls}
        if missing := sorted(called - tools):
            raise ConfigurationError(
                f"--from {source}: the conversation {conversation.id!r} calls {', '.join(missing)}, which {env_id} "
                f"does not have; its tools are {', '.join(sorted(tools)) or 'none'}."
            )
        texts = iter(conversation.turn_texts(bare.parser, answers=bool(bare.task.answers)))
        own, turn = conversation.own_turns, itertools.count()
        messages = [message for message in info["messages"] if message.role == "system"]
        for message in conversation.messages:
            if message.role == "assistant":
                text = next(texts) if next(turn) in own else bare.parser.format_message(message)
                messages.append(
                    bare.parser.to_message(text, bare.parser.parse(text)) if native else Message("assistant", text)
                )
            elif message.role == "tool":
                content = bare.parser.show_outcome(bare.formatter.sanitize(message.content))
                messages.append(
                    replace(message, content=content, tool_call_id=message.tool_call_id if native else None)
                )
            elif message.role == "user":
                messages.append(message)
        scores = conversation.metadata.get("scores")
        # Without rewards or scores someone chose it as an example: it counts as a success.
        rewards = conversation.rewards or (1.0, *[0.0] * (conversation.turns - 1))
        records.append(
            Trajectory(
                task_id=info["task_id"],
                task_index=index,
                sample=number,
                question=conversation.question,
                messages=tuple(messages),
                turns=tuple(Turn("", reward) for reward in rewards),
                scores=dict(scores) if isinstance(scores, Mapping) else {},
                end_reason="imported",
            )
        )
    return records


# --- Token rows ---

IGNORE_INDEX = -100

TokenRow = dict[str, list[int]]
"""`input_ids` and `labels` of one sequence, equally long; `IGNORE_INDEX` marks tokens outside the loss."""


def labelled(ids: Sequence[int], mask: Sequence[int]) -> TokenRow:
    """Make a row whose loss covers the tokens with mask 1."""
    labels = [token if own else IGNORE_INDEX for token, own in zip(ids, mask, strict=True)]
    return {"input_ids": list(ids), "labels": labels}


def token_rows(chat: ChatFormat, messages: Sequence[Message], *, opening: int = 0) -> list[TokenRow]:
    """Tokenise a context; only what the model writes in it has labels, its end-of-turn tokens included.

    One row, unless the chat template renders earlier turns differently later on: then one row per rendering.

    Args:
        chat: the chat format.
        messages: the messages of the context.
        opening: number of leading messages without labels, earlier turns of the model among them.
    """
    return [labelled(ids, mask) for ids, mask in chat.encode_rows(messages, opening=opening)]


def training_row(chat: ChatFormat, messages: Sequence[Message], *, only: Collection[str] = ()) -> TokenRow:
    """Tokenise a history as one row (see `token_rows`).

    Args:
        chat: the chat format.
        messages: the history.
        only: words that get labels; empty: everything that the model writes.

    Raises:
        ConfigurationError: the chat template renders earlier turns differently later on.
    """
    ids, mask = chat.encode(messages)
    wanted = {token for word in only for token in chat.tokenizer.encode(word)} or set(ids)
    return labelled(ids, [int(bool(own) and token in wanted) for token, own in zip(ids, mask, strict=True)])
