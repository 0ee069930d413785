"""Rules about determinism: an episode depends on its seed, its task and its turns, and on nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np

from agent_r1_gym.audit.findings import Finding, NotApplicable, NotRun, Verdict
from agent_r1_gym.audit.oracle_players import OTHER_TASK, derived_episodes, unspoken
from agent_r1_gym.audit.players import PromptExample, RandomCall
from agent_r1_gym.audit.processes import ChildError, run_child
from agent_r1_gym.audit.subject import Episode, Subject
from agent_r1_gym.core.types import info_to_dict

_JOBS = 3
_CHECKS = 2
_THREADS = 4
_CLOCK_SHIFT = 400 * 86_400.0 + 5 * 3_600.0
"""Seconds by which the clock of another process is ahead: another year, weekday and hour."""


def same_seed(subject: Subject) -> Verdict:
    """One seed is one episode: on the same instance again, and on a new one.

    Where it is not, two new processes separate the causes: they agree if state outlives an episode there.

    Limits: compares observations, rewards and flags of three episodes of random calls, and of the oracle where there is
    one (outside of a `ToolEnv`, also of its turns for another task). An environment that is registered as
    `nondeterministic` is not checked.
    """
    _require_determinism(subject)
    findings = []
    other = subject.make()
    for reference in _references(subject, reproducible=False):
        for env, where in ((subject.env, "on the same instance"), (other, "on a new instance")):
            again = subject.replay(reference.job, reference.actions, env)
            findings += _differences(
                subject, reference, again, f"The same seed gives another episode {where}", earlier=[reference]
            )
    return _verdict(subject, findings, _cause(subject, findings))


def _cause(subject: Subject, findings: Sequence[Finding]) -> str:
    """Return what to do about episodes that differ from themselves."""
    draws, keeps = (
        "Draw only from `self.np_random`, which `reset(seed=...)` seeds",
        "keep no state in the class or the module",
    )
    if not findings or subject.target is None:
        return f"{draws}, and {keeps}."
    try:
        references = _references(subject, reproducible=False)
        one, other = (_traces(subject, _Change("0"), references) for _ in range(2))
    except NotRun:
        return f"{draws}, and {keeps}."
    if one == other:
        return (
            "Two new processes agree on it, so the seed is not the cause: earlier episodes changed what is shared. "
            f"Reset all state in `reset`, and {keeps}."
        )
    return f"Two new processes differ in it too. {draws}."


def global_random(subject: Subject) -> Verdict:
    """It neither uses nor changes the global random generators of Python and NumPy, which belong to the caller.

    Limits: torch's generator is not checked.
    """
    _require_determinism(subject)
    findings: list[Finding] = []
    before = random.getstate(), np.random.get_state()
    try:
        for reference in _references(subject, reproducible=False)[:_JOBS]:
            (first, _), (again, _), (other, changed) = (
                _with_global_state(subject, reference, state) for state in (1, 1, 2)
            )
            if first.trace == again.trace:  # else see same_seed
                findings += _differences(
                    subject, first, other, "With another global random state, the same seed gives another episode"
                )
            if changed:
                message = "It draws from, or seeds, a global random generator (Python or NumPy), which is the caller's"
                findings.append(Finding("warning", message, {}, subject.reproduction(reference)))
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
    return _verdict(subject, findings, "Draw only from `self.np_random`.")


def _with_global_state(subject: Subject, reference: Episode, seed: int) -> tuple[Episode, bool]:
    """Play the episode after the global generators were seeded; also return whether it changed their state."""
    env = subject.make()
    random.seed(seed)
    np.random.seed(seed)
    before = random.getstate(), _numpy_state()
    episode = subject.replay(reference.job, reference.actions, env)
    return episode, (random.getstate(), _numpy_state()) != before


def threads(subject: Subject) -> Verdict:
    """Instances in several threads play the episodes that they play alone.

    Limits: finds a race only if it happens; calls of other threads have no time limit.
    """
    _require_determinism(subject)
    references = _references(subject)
    rounds = [reference for reference in references for _ in range(_THREADS)]
    with ThreadPoolExecutor(_THREADS) as pool:  # each episode is made, reset and played in one thread
        played = list(pool.map(lambda one: subject.replay(one.job, one.actions, subject.make()), rounds))
    findings: list[Finding] = []
    for reference, again in zip(rounds, played, strict=True):
        findings += _differences(subject, reference, again, "In another thread, the same seed gives another episode")
    return _verdict(subject, findings, "Keep state in the instance, and guard what instances share.")


def hash_seeds(subject: Subject) -> Verdict:
    """In processes with another `PYTHONHASHSEED`, the episodes are the same: no order of a set reaches the model.

    Limits: two other processes. A set of small integers has the same order in each of them.
    """
    return _in_other_processes(
        subject,
        [_Change("1"), _Change("2")],
        "In a process with another PYTHONHASHSEED, the same seed gives another episode",
        "Sort what comes from a set or `hash()`.",
    )


def clocks(subject: Subject) -> Verdict:
    """At another time, the episodes are the same: the clock does not decide what the model sees or earns.

    Plays the episodes in a process whose clocks are 400 days and 5 hours ahead.

    Limits: replaces the functions of `time`, and after the first reset `datetime.now`, `utcnow` and `today` in modules
    that are loaded by then; a library in C may read the clock itself. What depends on durations is not found.
    """
    return _in_other_processes(
        subject,
        [_Change("0", _CLOCK_SHIFT)],
        "At another time, the same seed gives another episode",
        "Draw from `self.np_random`, or make the date an option.",
    )


def independent_episodes(subject: Subject) -> Verdict:
    """An episode does not depend on those before it, whether they ended or were left.

    Plays episodes in two orders on one instance, and in two new processes, on an instance each.

    Limits: the episodes of three tasks, in two orders.
    """
    _require_determinism(subject)
    references, findings = _references(subject), list[Finding]()
    env, longest = subject.make(), max(references, key=lambda reference: len(reference.actions))
    before: Episode | None = None
    for reference in [*references, *reversed(references)]:
        again = subject.replay(reference.job, reference.actions, env)
        findings += _differences(
            subject,
            reference,
            again,
            "After other episodes, the same seed gives another episode",
            earlier=[before, _left(longest)] if before is not None else [],
        )
        subject.replay(longest.job, longest.actions[:1], env)  # left after one turn
        before = reference
    if not findings and subject.target is not None:
        findings = _after_others_elsewhere(subject, references)
        if findings:
            return _verdict(
                subject, findings, "Keep no state in the class or the module, such as a cache whose key lacks the task."
            )
    return _verdict(
        subject, findings, "Reset all state in `reset`, and make stateful tools for each episode (`make_tools`)."
    )


def _after_others_elsewhere(subject: Subject, references: Sequence[Episode]) -> list[Finding]:
    """Play the episodes in two orders, in two new processes: state of this process may be spoilt already."""
    forwards, backwards = _control(subject, references), _traces(subject, _Change("0"), references[::-1])[::-1]
    pairs = enumerate(zip(forwards, backwards, strict=True))
    position = next((n for n, (one, other) in pairs if one and other and one != other), None)
    if position is None:
        return []
    reference = references[position]
    (alone,) = _traces(subject, _Change("0"), [reference])
    is_first_spoilt = forwards[position] != alone
    earlier = references[:position] if is_first_spoilt else references[:position:-1]
    spoilt = forwards[position] if is_first_spoilt else backwards[position]
    code = (
        "# Run this, and run it without the episodes before the last; compare what is printed.\n"
        + subject.reproduction(*earlier)
        + f"\n{_printing(subject.replay_code(reference))}"
    )
    what = "In a process that has played other episodes, the same seed gives another episode on a new instance"
    evidence = {"seed": reference.job.seed, **_first_difference(alone, spoilt)}
    return [Finding("error", what, evidence, code)]


def independent_instances(subject: Subject) -> Verdict:
    """Instances that are stepped in turn play the episodes that they play alone: they share no state.

    Limits: three instances, stepped one after the other.
    """
    _require_determinism(subject)
    references = _references(subject)
    envs = [subject.make() for _ in references]
    interleaved = [Episode(reference.job, "interleaved") for reference in references]
    for env, episode in zip(envs, interleaved, strict=True):
        subject.open(env, episode)
    for turn in range(max((len(reference.actions) for reference in references), default=0)):
        for env, episode, reference in zip(envs, interleaved, references, strict=True):
            if turn < len(reference.actions) and not episode.ended:
                subject.step(env, reference.actions[turn], episode)
    findings: list[Finding] = []
    for reference, episode in zip(references, interleaved, strict=True):
        findings += _differences(
            subject, reference, episode, "Next to other instances, the same seed gives another episode"
        )
    return _verdict(subject, findings, "Keep state in the instance, not in the class or the module.")


def kept_values(subject: Subject) -> Verdict:
    """What a step returned stays as it is: later steps do not change it, and changing it does not change the episode.

    Limits: compares `info` before and after the episode; observations are strings, which cannot change.
    """
    findings: list[Finding] = []
    for reference in _references(subject)[:_JOBS]:
        env, episode = subject.make(), Episode(reference.job, "kept")
        subject.open(env, episode)
        copies = [_plain(episode.infos[0])]
        for action in reference.actions:
            subject.step(env, action, episode)
            copies.append(_plain(episode.infos[-1]))
        changed = [n for n, (info, was) in enumerate(zip(episode.infos, copies, strict=True)) if _plain(info) != was]
        if changed:
            message = f"The info of step {changed[0]} was changed by a later step. Build a new dictionary in each step"
            findings.append(Finding("error", message, {}, subject.reproduction(episode)))
        findings += _differences(
            subject, reference, _with_spoiled_infos(subject, reference), "Changing a returned info changes the episode"
        )
    return _verdict(subject, findings, "Return copies of what the environment keeps.")


def _with_spoiled_infos(subject: Subject, reference: Episode) -> Episode:
    """Play the episode, emptying every list and dictionary that it returns."""
    env, episode = subject.make(), Episode(reference.job, "spoiled")
    subject.open(env, episode)
    for action in reference.actions:
        _spoil(episode.infos[-1])
        subject.step(env, action, episode)
    return episode


def _spoil(value: Any) -> None:
    if isinstance(value, dict):
        for inner in value.values():
            _spoil(inner)
        try:
            value.clear()
        except TypeError:
            return  # read-only, as it should be
    elif isinstance(value, list):
        value.clear()


def _plain(info: dict[str, Any]) -> str:
    return json.dumps(info_to_dict(info), default=repr)


# --- replaying -------------------------------------------------------------------------------------------------------


def _require_determinism(subject: Subject) -> None:
    if subject.env.spec is not None and subject.env.spec.nondeterministic:
        raise NotApplicable("it is registered as nondeterministic")


def _references(subject: Subject, *, reproducible: bool = True) -> list[Episode]:
    """Return the episodes to compare with, each played on a new instance: of random calls, and of the oracle.

    Outside of a `ToolEnv`, also those of turns of the form that the prompt shows, and those of the oracle's turns for
    another task: they meet what the other task has left.

    Args:
        subject: the environment.
        reproducible: refuse an environment in which new instances play them differently, so that one fault is one
            finding.
    """
    found = []
    for job in subject.jobs[:_JOBS]:
        for policy in (RandomCall(), PromptExample() if subject.tool_env is None else None, subject.oracle):
            if policy is None:
                continue
            episode = subject.play(policy, job, subject.make(), seconds=subject.settings.rule_seconds / 60)
            if episode.crash is None and not episode.breaches:
                found.append(episode)
    for other in derived_episodes(subject, OTHER_TASK)[:_JOBS]:
        episode = subject.replay(other.job, other.actions, subject.make())
        if episode.crash is None and not episode.breaches:
            found.append(episode)
    if not found:
        raise NotApplicable("no episode can be played to the end")
    for episode in found * _CHECKS if reproducible else []:
        if subject.replay(episode.job, episode.actions, subject.make()).trace != episode.trace:
            raise NotRun("an episode is not the same when it is played again; see same_seed")
    return found


def _differences(
    subject: Subject, reference: Episode, again: Episode, what: str, *, earlier: Sequence[Episode] = ()
) -> list[Finding]:
    """Compare an episode with a repetition.

    Args:
        subject: the environment.
        reference: the episode.
        again: the repetition.
        what: the finding if they differ.
        earlier: episodes that were played before the repetition on its instance, for the reproduction.
    """
    if again.crash is not None:
        return []  # reported by `survives`
    if again.trace == reference.trace:
        return []
    evidence = {"seed": reference.job.seed, **_first_difference(reference.trace, again.trace)}
    step = evidence["first difference in step"]
    if "observation" in evidence["what differs"] and step < min(len(reference.texts), len(again.texts)):
        evidence |= {"first": reference.texts[step][-200:], "second": again.texts[step][-200:]}
    code = subject.reproduction(*earlier[:-1])
    code += "".join(map(_printing, map(subject.replay_code, earlier[-1:])))
    code += f"\n# {what[0].lower()}{what[1:]}\n{_printing(subject.replay_code(reference))}"
    return [Finding("error", what, evidence, code)]


def _first_difference(one: Sequence[Any], other: Sequence[Any]) -> dict[str, Any]:
    """Describe the first step in which two traces differ, and in which of observation, reward and flags."""
    pairs = enumerate(zip(one, other, strict=False))
    step = next((n for n, (first, second) in pairs if first != second), min(len(one), len(other)))
    if step >= min(len(one), len(other)):
        return {"first difference in step": step, "what differs": "the number of steps"}
    names = ("observation", "reward", "terminated, truncated")
    fields = [(name, a, b) for name, a, b in zip(names, one[step], other[step], strict=True) if a != b]
    values = {name: [a, b] for name, a, b in fields if name != "observation"}  # of which a trace has a hash only
    return {"first difference in step": step, "what differs": ", ".join(name for name, _, _ in fields), **values}


def _verdict(subject: Subject, findings: Sequence[Finding], remedy: str) -> Verdict:
    """Return the verdict, with a remedy for each finding; none if no player wrote a turn with an effect."""
    distinct = {finding.message: finding for finding in reversed(findings)}  # the first of each
    return Verdict(
        [Finding(f.severity, f"{f.message}. {remedy}", f.evidence, f.reproduction) for f in [*distinct.values()][::-1]],
        not_run="" if findings else unspoken(subject),
    )


def _left(episode: Episode) -> Episode:
    return Episode(episode.job, episode.player, actions=episode.actions[:1])


def _numpy_state() -> str:
    return repr(np.random.get_state(legacy=False))


# --- in other processes ----------------------------------------------------------------------------------------------


class _Change(NamedTuple):
    """What differs in another process."""

    hash_seed: str
    clock_shift: float = 0.0

    def __str__(self) -> str:
        return "at another time" if self.clock_shift else f"under PYTHONHASHSEED={self.hash_seed}"


Trace = list[Any]
"""What an episode showed in another process: `Episode.trace` as JSON; empty if it broke there."""


def _in_other_processes(subject: Subject, changes: Sequence[_Change], what: str, remedy: str) -> Verdict:
    """Compare a new process with others in which one thing differs: all play the same episodes in the same order."""
    _require_determinism(subject)
    if subject.target is None:
        raise NotApplicable("only this process can make the environment")
    references, compared = _references(subject), 0
    findings: list[Finding] = []
    for change in changes:
        pairs = zip(_control(subject, references), _traces(subject, change, references), strict=True)
        for reference, (one, other) in zip(references, pairs, strict=True):
            if not one or not other:
                continue
            compared += 1
            if one != other:
                evidence = {"seed": reference.job.seed, **_first_difference(one, other)}
                run = f"# Run this under PYTHONHASHSEED=0, and {change}; compare what is printed.\n"
                code = f"{run}{subject.target.code()}{_printing(subject.replay_code(reference))}"
                findings.append(Finding("error", what, evidence, code))
    if not compared:
        raise NotRun("no episode could be played to its end in another process")
    return _verdict(subject, findings, remedy)


def _control(subject: Subject, references: Sequence[Episode]) -> list[Trace]:
    """Play the episodes in a new process like that of the audit; for the same episodes once for all rules."""
    key = "control " + json.dumps([(e.job.task_index, e.job.seed, e.actions) for e in references])
    if key not in subject.memo:
        subject.memo[key] = _traces(subject, _Change("0"), references)
    traces: list[Trace] = subject.memo[key]
    return traces


def _traces(subject: Subject, change: _Change, references: Sequence[Episode]) -> list[Trace]:
    """Play the episodes in a new process, in their order.

    Raises:
        NotRun: the process gave no answer.
    """
    assert subject.target is not None
    request = {
        "target": subject.target.to_dict(),
        "settings": asdict(subject.settings),
        "episodes": [{"job": [e.job.task_index, e.job.seed], "actions": e.actions} for e in references],
        "clock_shift": change.clock_shift,
    }
    try:
        message = run_child("traces", request, seconds=subject.settings.rule_seconds, hash_seed=change.hash_seed)
    except ChildError as error:
        raise NotRun(str(error)) from error
    traces: list[Trace] = message["traces"]
    return traces


def _printing(code: str) -> str:
    """Print each observation and reward of the code that plays an episode."""
    opening, *steps = code.splitlines()
    lines = [opening, "print(observation)", *(line for step in steps for line in (step, "print(observation, reward)"))]
    return "\n".join([*lines, ""])
