"""Rules about leaks: the gold answer reaches the model in no observation, info, tool schema or error message."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from agent_r1_gym.audit.findings import Finding, NotApplicable, Verdict
from agent_r1_gym.audit.players import RandomCall, sampled_tasks
from agent_r1_gym.audit.subject import Crash, Subject, excerpt
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task, info_to_dict
from agent_r1_gym.env_checker import default_actions
from agent_r1_gym.errors import ConfigurationError

_CANARY = "zqx canary 7351"
"""Stands in for the gold answer: no prompt, document or program prints it by coincidence."""
_CLOSED = frozenset({"yes", "no", "true", "false", "none", "unknown"})
_SHORTEST = 4
_USUAL, _ALWAYS = 0.5, 0.9
_GOLD_KEY = re.compile(
    r"(?:answers?|gold(?:en)?|ground_?truth|solution|secret|label|reference|expected)(?:_\w+)?", re.I
)


def canary(subject: Subject) -> Verdict:
    """With another gold answer, a text that occurs nowhere, no channel shows it before the end of the episode.

    Replaces `Task.answers`, plays good calls, mistakes of all kinds and wrong answers, and searches observations, every
    value of `info`, tool schemas and outcomes. A document that contains the real answer is not a leak, and is not taken
    for one.

    Limits: needs a `ToolEnv` whose tasks have answers. Gold data elsewhere (in `Task.metadata`, in a database) is not
    replaced. A hint that depends on the answer without quoting it is not found.
    """
    env, task = _task_with_answers(subject)
    changed = replace(task, answers=(_CANARY,))
    try:
        leaks = dict(_channels_with_canary(subject, env, changed))
    except Crash as crash:
        if isinstance(crash.__cause__, ConfigurationError):
            subject.crashes.remove(crash.finding)
            return Verdict(not_run="it plays no task with another answer")
        raise
    return Verdict(
        [
            Finding(
                "error",
                f"The gold answer is in {channel} before the end of the episode. Keep `Task.answers` to the grader.",
                {"excerpt": text},
                _reproduction(subject, action),
            )
            for channel, (text, action) in leaks.items()
        ]
    )


def _task_with_answers(subject: Subject) -> tuple[ToolEnv, Task]:
    env = subject.tool_env
    if env is None:
        raise NotApplicable("it is not a ToolEnv, so its gold answers are not known")
    tasks = [env.tasks[job.task_index] for job in subject.jobs]
    task = next((task for task in tasks if task.answers), None)
    if task is None:
        raise NotApplicable("its tasks have no gold answers")
    return env, task


def _channels_with_canary(subject: Subject, env: ToolEnv, task: Task) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each channel that shows the canary, with an excerpt and the turn that made it appear."""

    def reset() -> tuple[str, dict[str, Any]]:
        state: tuple[str, dict[str, Any]] = subject.guard("reset", lambda: env.reset(seed=0, options={"task": task}))
        return state

    observation, info = reset()
    yield from _found({"the first observation": observation, "the tool schemas": json.dumps(env.tool_schemas)}, "")
    yield from _found(_info_channels(info, "after reset"), "")
    for action in default_actions(env):
        reset()
        for _ in range(2):
            try:
                observation, _, terminated, truncated, info = subject.guard("step", functools.partial(env.step, action))
            except Crash as crash:
                if crash.is_backend:  # a grader that runs the gold answer cannot run this one
                    break
                raise
            if terminated or truncated:
                break
            added = [message for message in info["new_messages"] if message.role != "assistant"]
            by_role = {f"a {message.role} turn": message.content for message in added}
            by_role["an outcome of a tool"] = json.dumps([repr(outcome) for outcome in info["tool_outcomes"]])
            yield from _found({**by_role, "a later observation": observation}, action)
            yield from _found(_info_channels(info, "of a step"), action)


def _info_channels(info: dict[str, Any], where: str) -> dict[str, str]:
    skipped = ("messages", "new_messages", "tool_outcomes")
    plain = info_to_dict({key: value for key, value in info.items() if key not in skipped})
    return {f"info[{key!r}] {where}": json.dumps(value, default=repr) for key, value in plain.items()}


def _found(channels: dict[str, str], action: str) -> Iterator[tuple[str, tuple[str, str]]]:
    for channel, text in channels.items():
        position = text.find(_CANARY)
        if position >= 0:
            yield channel, (text[max(0, position - 100) : position + 100], action)


def _reproduction(subject: Subject, action: str) -> str:
    make = subject.target.code() if subject.target is not None else "env = ...\n"
    step = f"print(env.step({action!r}))\n" if action else ""
    return (
        f"from dataclasses import replace\n\n{make}env = env.unwrapped\n"
        f"task = replace(env.tasks[0], answers=({_CANARY!r},))\n"
        f"print(env.reset(options={{'task': task}}), env.tool_schemas)\n{step}"
    )


def answer_in_prompt(subject: Subject) -> Verdict:
    """The first observation does not contain the gold answer, except where the question names the candidates.

    Counts the tasks whose answer is in the first observation, of those with an answer of at least 4 characters that is
    neither a number nor yes or no. A comparison ("Which is older, A or B?") names its answer, so only more than half of
    the tasks are a finding.

    Limits: in a `ToolEnv` only; a leak in less than half of the tasks is reported as a value, not as a finding.
    """
    env, _ = _task_with_answers(subject)
    distinctive = [task for task in sampled_tasks(env) if task.answers and _is_distinctive(task.answers[0])]
    leaked = [task for task in distinctive if task.answers[0].casefold() in env.task_prompt(task).casefold()]
    share = len(leaked) / len(distinctive) if distinctive else 0.0
    measured = {"tasks with a distinctive answer": len(distinctive), "answer in the prompt": round(share, 4)}
    if share <= _USUAL or len(distinctive) < 2:
        return Verdict([], measured)
    message = f"The prompt contains the gold answer in {share:.0%} of the tasks. Remove it, unless copying is the task."
    first = leaked[0]
    evidence = {"task": first.id, "answer": first.answers[0][:100], "prompt": excerpt(env.task_prompt(first))}
    return Verdict([Finding("error" if share >= _ALWAYS else "warning", message, evidence)], measured)


def _is_distinctive(answer: str) -> bool:
    bare = answer.strip().casefold()
    return len(bare) >= _SHORTEST and bare not in _CLOSED and not re.fullmatch(r"[\d\W]+", bare)


def gold_in_info(subject: Subject) -> Verdict:
    """Before the end, `info` has no entry that is named like a gold answer, and no observation quotes such a value.

    Many trainers log `info`, and some wrappers show it to the model. Names: answer, gold, ground_truth, solution,
    secret, label, reference, expected. The same names among the attributes of the environment are compared with the
    first observation.

    Limits: goes by names, so findings are warnings. A `ToolEnv` has fixed entries; its gold answers are checked by
    `canary`.
    """
    if subject.tool_env is not None:
        raise NotApplicable("the entries of a ToolEnv's info are fixed; see canary")
    findings: dict[str, Finding] = {}
    for job in subject.jobs[:5]:
        episode = subject.play(RandomCall(), job)
        before_the_end = episode.infos[:-1] if episode.ended else episode.infos
        entries = {key: value for info in before_the_end for key, value in info.items() if _names_gold(key, value)}
        for key, value in entries.items():
            message = f"info[{key!r}] is set before the end of the episode. Return it with the last step only."
            findings.setdefault(
                message, Finding("warning", message, {"value": f"{value!r:.100}"}, subject.reproduction(episode))
            )
        for name, value in vars(subject.env.unwrapped).items():
            text = str(value) if isinstance(value, str | int) else ""
            if _names_gold(name.strip("_"), value) and len(text) >= _SHORTEST and text in episode.opening:
                message = (
                    f"The first observation contains the value of the attribute {name!r}, which names a gold answer."
                )
                findings.setdefault(
                    message, Finding("warning", message, {"value": text[:100], "observation": excerpt(episode.opening)})
                )
    return Verdict(list(findings.values()))


def _names_gold(key: Any, value: Any) -> bool:
    return isinstance(key, str) and bool(_GOLD_KEY.fullmatch(key)) and value not in (None, "", (), [], {})
