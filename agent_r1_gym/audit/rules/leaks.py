"""Rules about leaks: the gold answer reaches the model in no observation, info, tool schema or error message."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent_r1_gym.audit.findings import Finding, NotApplicable, Verdict
from agent_r1_gym.audit.players import NoOp, RandomCall, sampled_tasks
from agent_r1_gym.audit.subject import Crash, Episode, Subject, excerpt
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task, info_to_dict
from agent_r1_gym.env_checker import IDLE, default_actions
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.session import Job

_CANARY = "zqx canary 7351"
"""Stands in for the gold answer: no prompt, document or program prints it by coincidence."""
_CLOSED = frozenset({"yes", "no", "true", "false", "none", "unknown"})
_SHORTEST = 4
_USUAL, _ALWAYS = 0.5, 0.9
_WORD = re.compile(r"\w[\w-]*")
_ODD_WORD = "qzx"
_LEAST_TASKS, _LEAST_WORDS, _LEAST_LETTERS = 5, 3, 2
"""Tasks and different words that must be known before their agreement with a text is no coincidence."""
_FIRST_STATES, _REPLIES = 5, 8
_DEEPEST, _MAX_ITEMS = 4, 200
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
    env, index = _task_with_answers(subject)
    task = env.tasks[index]
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
                _reproduction(subject, index, action),
            )
            for channel, (text, action) in leaks.items()
        ]
    )


def _task_with_answers(subject: Subject) -> tuple[ToolEnv, int]:
    env = subject.tool_env
    if env is None:
        raise NotApplicable("it is not a ToolEnv, so its gold answers are not known")
    index = next((job.task_index for job in subject.jobs if env.tasks[job.task_index].answers), None)
    if index is None:
        raise NotApplicable("its tasks have no gold answers")
    return env, index


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


def _reproduction(subject: Subject, index: int, action: str) -> str:
    return subject.making_code(
        "from dataclasses import replace\n\nenv = MAKE.unwrapped\n"
        f"task = replace(env.tasks[{index}], answers=({_CANARY!r},))\n"
        "print(env.reset(seed=0, options={'task': task}), env.tool_schemas)\n"
        + (f"print(env.step({action!r}))\n" * 2 if action else "")
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
    code = subject.making_code(
        f"env = MAKE.unwrapped\ntask = next(task for task in env.tasks if task.id == {first.id!r})\n"
        "print(env.task_prompt(task))\nprint(task.answers)\n"
    )
    return Verdict([Finding("error" if share >= _ALWAYS else "warning", message, evidence, code)], measured)


def _is_distinctive(answer: str) -> bool:
    bare = answer.strip().casefold()
    return len(bare) >= _SHORTEST and bare not in _CLOSED and not re.fullmatch(r"[\d\W]+", bare)


def gold_in_info(subject: Subject) -> Verdict:
    """Before the end, neither `info` nor the reply to a turn that is wrong gives the answer away.

    Many trainers log `info`, and some wrappers show it to the model. An entry is a warning if it is named like a gold
    answer (answer, gold, ground_truth, solution, secret, label, reference, expected), also inside others, or if in all
    tasks it has a word of the last turn of the oracle there. A reply is an error if in all tasks it has such a word,
    though the turn was idle, or its last turn with other words, and nothing had been looked up. Words count which
    differ between tasks, where the first observation does not single them out, nor the text names other candidates.
    Attributes that are named like a gold answer are compared with the first observation.

    Limits: without an oracle, it goes by names. With one, it takes five tasks that it solves, whose last turns have
    three different words at a place, and an answer that stands in its last turn. A `ToolEnv` has fixed entries; its
    gold answers are checked by `canary`.
    """
    if subject.tool_env is not None:
        raise NotApplicable("the entries of a ToolEnv's info are fixed; see canary")
    findings: dict[str, Finding] = {}
    for job in subject.jobs[:5]:
        episode = subject.play(RandomCall(), job)
        before_the_end = episode.infos[:-1] if episode.ended else episode.infos
        for step, info in enumerate(before_the_end):
            for path, value in _entries(info):
                if _names_gold(path[-1], value):
                    message = (
                        f"info{_subscripts(path)} is set before the end of the episode. Return it with the last step "
                        "only."
                    )
                    evidence, code = {"value": f"{value!r:.100}"}, subject.info_code(episode, step)
                    findings.setdefault(_subscripts(path), Finding("warning", message, evidence, code))
        for name, value in vars(subject.env.unwrapped).items():
            text = str(value) if isinstance(value, str | int) else ""
            if _names_gold(name.strip("_"), value) and len(text) >= _SHORTEST and text in episode.opening:
                message = (
                    f"The first observation contains the value of the attribute {name!r}, which names a gold answer."
                )
                evidence = {"value": text[:100], "observation": excerpt(episode.opening)}
                opening = subject.reproduction(Episode(job, episode.player))
                code = f"{opening}print(env.unwrapped.{name})\n"
                findings.setdefault(name, Finding("warning", message, evidence, code))
    for entry, finding in _entries_with_secrets(subject):
        findings.setdefault(entry, finding)
    return Verdict([*findings.values(), *_replies_with_secrets(subject)])


def _names_gold(key: Any, value: Any) -> bool:
    return isinstance(key, str) and bool(_GOLD_KEY.fullmatch(key)) and value not in (None, "", (), [], {})


_Keys = tuple[Any, ...]


def _entries(value: Any, path: _Keys = ()) -> Iterator[tuple[_Keys, Any]]:
    """Yield each entry of an info with the keys and positions that lead to it, those inside others too."""
    if len(path) > _DEEPEST:
        return
    inner: Any = ()
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value[:_MAX_ITEMS])
    for key, each in inner:
        yield (*path, key), each
        yield from _entries(each, (*path, key))


def _subscripts(path: _Keys) -> str:
    return "".join(f"[{key!r}]" for key in path)


# --- words of the oracle's last turn ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Secret:
    """A word of the oracle's last turn that a model has to find out.

    Attributes:
        episode: the oracle's episode.
        words: its last turn, in words.
        place: position of the word.
        others: words that the oracle's last turns have at this place for other tasks.
    """

    episode: Episode
    words: tuple[str, ...]
    place: int
    others: frozenset[str]

    @property
    def word(self) -> str:
        return self.words[self.place]

    def is_in(self, text: str) -> bool:
        """Whether a text names the word, and none of the others."""
        found = _words(text)
        return self.word.casefold() in found and not found & self.others

    def wrong_turns(self) -> dict[str, str]:
        """Return turns that do not have the word, by what is wrong with them."""
        action, spans = self.episode.actions[-1], [match.span() for match in _WORD.finditer(self.episode.actions[-1])]
        (start, end), first = spans[self.place], spans[0][1] if self.place else 0
        odd = "0" if self.word.isdigit() else _ODD_WORD
        return {
            "an idle turn": IDLE,
            "a turn with another word": f"{action[:start]}{odd}{action[end:]}",
            "a turn with other words": action[:first] + _WORD.sub(odd, action[first:]),
            "a turn that lacks a word": f"{action[:start].rstrip()}{action[end:]}",
        }


def _words(text: str) -> set[str]:
    return {word.casefold() for word in _WORD.findall(text)}


def _secrets(subject: Subject) -> Iterator[list[_Secret]]:
    """Yield, for each place in the oracle's last turns, the words there that the first observation does not tell."""
    oracle = subject.episodes(subject.oracle) if subject.oracle is not None else []
    solved = [
        episode
        for episode in oracle
        if episode.crash is None and episode.ended and episode.solved is not False and episode.total > 0
    ]
    endings = [(episode, tuple(_WORD.findall(episode.actions[-1]))) for episode in solved]
    length = Counter(len(words) for _, words in endings).most_common(1)[0][0] if endings else 0
    alike = [(episode, words) for episode, words in endings if len(words) == length]
    for place in range(length):
        known = frozenset(words[place].casefold() for _, words in alike)
        if len(known) < _LEAST_WORDS:
            continue
        secrets = [
            _Secret(episode, words, place, known - {words[place].casefold()})
            for episode, words in alike
            if len(words[place]) >= _LEAST_LETTERS
        ]
        hidden = [secret for secret in secrets if not secret.is_in(secret.episode.opening)]
        if len(hidden) >= _LEAST_TASKS and len(hidden) == len(secrets):
            yield hidden


def _entries_with_secrets(subject: Subject) -> Iterator[tuple[str, Finding]]:
    """Yield each entry of `info` that tells a word of the last turn in all tasks, in episodes of idle turns."""
    idle = {episode.job: episode for episode in subject.episodes(NoOp())}
    for secrets in _secrets(subject):
        telling: dict[_Keys, dict[Job, tuple[_Secret, int, Any]]] = {}
        known = [secret for secret in secrets if secret.episode.job in idle]
        for secret in known:
            episode = idle[secret.episode.job]
            infos = episode.infos[:-1] if episode.ended else episode.infos
            for step, info in enumerate(infos[:_FIRST_STATES]):
                for path, value in _entries(info):
                    if path[0] != "actions" and _tells(value, secret):
                        telling.setdefault(path, {}).setdefault(episode.job, (secret, step, value))
        for path, places in telling.items():
            if (number := len(places)) == len(known) >= _LEAST_TASKS:
                secret, step, value = next(iter(places.values()))
                message = (
                    f"info{_subscripts(path)} tells before the end what the oracle's last turn needs, in each of "
                    f"{number} tasks. Return it with the last step only."
                )
                evidence = {"value": f"{value!r:.100}", "last turn of the oracle": secret.episode.actions[-1][:200]}
                code = subject.info_code(idle[secret.episode.job], step)
                yield _subscripts(path), Finding("warning", message, evidence, code)


def _tells(value: Any, secret: _Secret) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and secret.is_in(str(value))


def _replies_with_secrets(subject: Subject) -> list[Finding]:
    """Report the first kind of wrong first turns whose replies have a word of the oracle's last turn in all tasks."""
    for secrets in _secrets(subject):
        chosen = secrets[:_REPLIES]
        for what in chosen[0].wrong_turns():
            replies = [subject.replay(secret.episode.job, [secret.wrong_turns()[what]]) for secret in chosen]
            pairs = list(zip(chosen, replies, strict=True))
            if all(_replies_with(reply, secret) for secret, reply in pairs):
                secret, reply = pairs[0]
                message = (
                    f"The reply to {what} tells what the oracle's last turn needs, in each of {len(chosen)} tasks, "
                    "though nothing has been looked up. Name what is allowed, or only what is wrong."
                )
                evidence = {
                    "turn": excerpt(reply.actions[0]),
                    "reply": excerpt(reply.texts[1]),
                    "last turn of the oracle": secret.episode.actions[-1][:200],
                }
                return [Finding("error", message, evidence, subject.reproduction(reply))]
    return []


def _replies_with(reply: Episode, secret: _Secret) -> bool:
    """Whether the reply to the first turn has the word, which the turn did not have, and the episode goes on."""
    if reply.crash is not None or len(reply.texts) < 2 or reply.ended:
        return False
    return secret.word.casefold() not in _words(reply.actions[0]) and secret.is_in(reply.texts[1])
