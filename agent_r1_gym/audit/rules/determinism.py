"""Rules about determinism: an episode depends on its seed, its task and its turns, and on nothing else."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np

from agent_r1_gym.audit.findings import Finding, NotApplicable, NotRun, Verdict
from agent_r1_gym.audit.oracle_players import OTHER_TASK, derived_episodes, unspoken
from agent_r1_gym.audit.players import PromptExample, RandomCall, Touring
from agent_r1_gym.audit.processes import ChildError, run_child
from agent_r1_gym.audit.reproduction import PRINT_OPENING, PRINT_STEP, literal, play_function, step_line
from agent_r1_gym.audit.subject import Episode, Subject
from agent_r1_gym.core.types import info_to_dict
from agent_r1_gym.run.policies import Policy

_JOBS = 3
_CHECKS = 2
_THREADS = 4
_SHOWN_BEFORE, _SHOWN_AFTER = 60, 140
"""Characters of two texts that are shown around their first difference."""
_CLOCK_SHIFT = 400 * 86_400.0 + 5 * 3_600.0
"""Seconds by which the clock of another process is ahead: another year, weekday and hour."""


def same_seed(subject: Subject) -> Verdict:
    """One seed is one episode: on the same instance again, and on a new one.

    Where it is not, two new processes separate the causes: they agree if state outlives an episode there.

    Limits: compares observations, rewards and flags of three episodes of random calls, and of the oracle where there is
    one; outside of a `ToolEnv`, also of its turns for another task, and of listed actions in their order. An
    environment that is registered as `nondeterministic` is not checked.
    """
    _require_determinism(subject)
    findings = []
    for reference in _references(subject, reproducible=False):
        env = subject.make()
        for where in ("on a new instance", "on the same instance"):
            again = subject.replay(reference.job, reference.actions, env)
            code = subject.reproduction(reference, reference, anew="new" in where)
            findings += _differences(reference, again, f"The same seed gives another episode {where}", code)
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
    if [each.trace for each in one] == [each.trace for each in other]:
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
                what = "With another global random state, the same seed gives another episode"
                seeded = [f"{_seeding(seed)}env = MAKE\n{subject.replay_code(reference)}" for seed in (1, 2)]
                findings += _differences(first, other, what, subject.making_code(f"{_IMPORTS}\n{''.join(seeded)}"))
            if changed:
                message = "It draws from, or seeds, a global random generator (Python or NumPy), which is the caller's"
                state = "(random.getstate(), repr(np.random.get_state()))"
                code = (
                    f"{_IMPORTS}\nenv = MAKE\nbefore = {state}\n{subject.replay_code(reference)}"
                    f"print('global state unchanged:', {state} == before)\n"
                )
                findings.append(Finding("warning", message, {}, subject.making_code(code)))
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
    return _verdict(subject, findings, "Draw only from `self.np_random`.")


_IMPORTS = "import random\n\nimport numpy as np\n"


def _seeding(seed: int) -> str:
    return f"random.seed({seed})\nnp.random.seed({seed})\n"


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
    if _step_in_turn(subject, references):
        raise NotRun("instances that are stepped in turn share state; see independent_instances")
    rounds = [reference for reference in references for _ in range(_THREADS)]
    with ThreadPoolExecutor(_THREADS) as pool:  # each episode is made, reset and played in one thread
        played = list(pool.map(lambda one: subject.replay(one.job, one.actions, subject.make()), rounds))
    findings: list[Finding] = []
    for reference, again in zip(rounds, played, strict=True):
        what = "In another thread, the same seed gives another episode"
        findings += _differences(reference, again, what, in_threads(subject, references, _THREADS, _THREADS))
    return _verdict(subject, findings, "Keep state in the instance, and guard what instances share.")


def in_threads(subject: Subject, episodes: Sequence[Episode], number: int, threads: int) -> str:
    """Write code that plays episodes in threads, each on a new instance, and prints how many differ from themselves.

    Args:
        subject: the environment.
        episodes: the episodes.
        number: how often each is played.
        threads: number of threads.
    """
    functions = "".join(
        f"\n\n{play_function(subject.reset_line(one.job), one.actions)}\n\nplays.append(play)\n" for one in episodes
    )
    return subject.making_code(
        f"from concurrent.futures import ThreadPoolExecutor\n\nplays = []\n{functions}"
        "alone = [play(MAKE) for play in plays]\n"
        f"rounds = list(range(len(plays))) * {number}\n"
        "envs = [MAKE for _ in rounds]\n"
        f"with ThreadPoolExecutor({threads}) as pool:\n"
        "    shown = list(pool.map(lambda position, env: plays[position](env), rounds, envs))\n"
        "differing = [(alone[n], other) for n, other in zip(rounds, shown) if repr(other) != repr(alone[n])]\n"
        "print(len(differing), 'of', len(rounds), 'episodes differ:', *differing[:1])\n"
    )


def hash_seeds(subject: Subject) -> Verdict:
    """In processes with another `PYTHONHASHSEED`, the episodes are the same: no order of a set reaches the model.

    Limits: two other processes. A set of small integers has the same order in each of them.
    """
    _require_determinism(subject)
    if subject.target is None:
        raise NotApplicable("only this process can make the environment")
    references, compared = _references(subject), 0
    findings: list[Finding] = []
    for hash_seed in ("1", "2"):
        pairs = zip(_control(subject, references), _traces(subject, _Change(hash_seed), references), strict=True)
        for reference, (one, other) in zip(references, pairs, strict=True):
            compared += bool(one.trace and other.trace)
            run = f"# Run this under PYTHONHASHSEED=0 and under PYTHONHASHSEED={hash_seed}; compare what is printed.\n"
            what = "In a process with another PYTHONHASHSEED, the same seed gives another episode"
            findings += _differences(one, other, what, run + subject.reproduction(reference), seed=reference.job.seed)
    if not compared:
        raise NotRun("no episode could be played to its end in another process")
    return _verdict(subject, findings, "Sort what comes from a set or `hash()`.")


def clocks(subject: Subject) -> Verdict:
    """At another time, the episodes are the same: the clock does not decide what the model sees or earns.

    Plays the episodes in processes whose time of day moves only when it is read: twice at the same time, and once 400
    days and 5 hours later. The other rules of this topic have no verdict where the clock decides.

    Limits: replaces the functions of `time`, and after the first reset `datetime.now`, `utcnow` and `today` in modules
    that are loaded by then; a library in C may read the clock itself. What depends on durations is not found.
    """
    findings = _clock_findings(subject)
    return _verdict(subject, findings, "Draw from `self.np_random`, or make the date an option.")


def _clock_findings(subject: Subject) -> list[Finding]:
    """Compare episodes at two times, in other processes, once for all rules.

    Raises:
        NotApplicable: only this process can make the environment.
        NotRun: two processes at the same time differ, too, so that the clock is not the cause, or not the only one.
    """
    _require_declared_determinism(subject)
    if subject.target is None:
        raise NotApplicable("only this process can make the environment")
    if "clocks" not in subject.memo:
        try:
            subject.memo["clocks"] = _play_at_two_times(subject)
        except NotRun as reason:
            subject.memo["clocks"] = reason
    found: list[Finding] | NotRun = subject.memo["clocks"]
    if isinstance(found, NotRun):
        raise found
    return found


def _play_at_two_times(subject: Subject) -> list[Finding]:
    references = _references(subject, reproducible=False)
    control, later = _control(subject, references), _traces(subject, _Change("0", _CLOCK_SHIFT), references)
    pairs = [(one, other) for one, other in zip(control, later, strict=True) if one.trace and other.trace]
    if not pairs:
        raise NotRun("no episode could be played to its end in another process")
    if all(one.trace == other.trace for one, other in pairs):
        return []
    again = _traces(subject, _Change("0"), references)
    if [each.trace for each in again] != [each.trace for each in control]:
        raise NotRun("an episode is not the same in another process at the same time; see same_seed")
    what, findings = "At another time, the same seed gives another episode", list[Finding]()
    for reference, one, other in zip(references, control, later, strict=True):
        findings += _differences(one, other, what, _at_two_times(subject, reference), seed=reference.job.seed)
    return findings


def _at_two_times(subject: Subject, reference: Episode) -> str:
    played = subject.replay_code(reference)
    return (
        "# Run this as it is, and with the argument `later`; compare what is printed.\n"
        "import sys\nimport time\n\nfrom agent_r1_gym.audit.child import Clock\n\n"
        f"clock = Clock(time.time() // 86_400 * 86_400, {_CLOCK_SHIFT} if 'later' in sys.argv else 0.0)\n"
        "clock.replace_times()\n"
        + subject.making_code(f"MAKE.reset(seed=0)\nclock.replace_dates()\nenv = MAKE\n{played}")
    )


def independent_episodes(subject: Subject) -> Verdict:
    """An episode does not depend on those before it, whether they ended or were left.

    Plays episodes in two orders on one instance, and in two new processes, on an instance each.

    Limits: the episodes of three tasks, in two orders.
    """
    _require_determinism(subject)
    references, findings = _references(subject), list[Finding]()
    env, longest = subject.make(), max(references, key=lambda reference: len(reference.actions))
    played: list[Episode] = []
    what = "After other episodes, the same seed gives another episode"
    for reference in [*references, *reversed(references)]:
        again = subject.replay(reference.job, reference.actions, env)
        if not findings and (found := _differences(reference, again, what, "")):
            earlier = played[-2:] if _is_spoilt(subject, reference, played[-2:]) else played
            code = subject.making_code(
                f"env = MAKE\n{subject.replay_code(reference)}\nenv = MAKE\n"
                + "".join(subject.replay_code(one, printing=False) for one in earlier)
                + f"\n{subject.replay_code(reference)}"
            )
            findings = [replace(found[0], reproduction=code)]
        left = subject.replay(longest.job, longest.actions[:1], env)  # after one turn
        played += [again, left]
    findings = findings or _after_all_others(subject, references)
    if not findings and subject.target is not None:
        findings = _after_others_elsewhere(subject, references)
        if findings:
            return _verdict(
                subject, findings, "Keep no state in the class or the module, such as a cache whose key lacks the task."
            )
    return _verdict(
        subject, findings, "Reset all state in `reset`, and make stateful tools for each episode (`make_tools`)."
    )


def _after_all_others(subject: Subject, references: Sequence[Episode]) -> list[Finding]:
    """Play the episodes on the instance that has played those of all players."""
    for reference in references:
        again = subject.replay(reference.job, reference.actions)
        earlier = subject.episodes(RandomCall())
        code = subject.reproduction(reference) + "\n" + subject.reproduction(*earlier, reference)
        what = "After the episodes of all players, the same seed gives another episode"
        if found := _differences(reference, again, what, code):
            return found
    return []


def _is_spoilt(subject: Subject, reference: Episode, earlier: Sequence[Episode]) -> bool:
    """Whether these episodes before it, on a new instance, make it another one."""
    env = subject.make()
    for episode in earlier:
        subject.replay(episode.job, episode.actions, env)
    return subject.replay(reference.job, reference.actions, env).trace != reference.trace


def _after_others_elsewhere(subject: Subject, references: Sequence[Episode]) -> list[Finding]:
    """Play the episodes in two orders, in two new processes: state of this process may be spoilt already."""
    forwards, backwards = _control(subject, references), _traces(subject, _Change("0"), references[::-1])[::-1]
    pairs = enumerate(zip(forwards, backwards, strict=True))
    position = next((n for n, (one, other) in pairs if one.trace and other.trace and one.trace != other.trace), None)
    if position is None:
        return []
    reference = references[position]
    (alone,) = _traces(subject, _Change("0"), [reference])
    is_first_spoilt = forwards[position].trace != alone.trace
    earlier = references[:position] if is_first_spoilt else references[:position:-1]
    spoilt = forwards[position] if is_first_spoilt else backwards[position]
    code = (
        "# Run this, and run it without the episodes before the last; compare what is printed.\n"
        + subject.reproduction(*earlier, anew=True, printing=False)
        + "\n"
        + subject.making_code(f"env = MAKE\n{subject.replay_code(reference)}").partition("\n\n")[2]
    )
    what = "In a process that has played other episodes, the same seed gives another episode on a new instance"
    return _differences(alone, spoilt, what, code, seed=reference.job.seed)


def independent_instances(subject: Subject) -> Verdict:
    """Instances that are stepped in turn play the episodes that they play alone: they share no state.

    Limits: three instances or more, one for each episode, stepped one after the other.
    """
    _require_determinism(subject)
    findings = _step_in_turn(subject, _references(subject))
    return _verdict(subject, findings, "Keep state in the instance, not in the class or the module.")


def _step_in_turn(subject: Subject, references: Sequence[Episode]) -> list[Finding]:
    """Compare episodes of instances that are stepped in turn with the episodes alone."""
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
        what = "Next to other instances, the same seed gives another episode"
        findings += _differences(reference, episode, what, _interleaved(subject, references, reference))
    return findings


def _interleaved(subject: Subject, references: Sequence[Episode], shown: Episode) -> str:
    """Write code that plays an episode alone, and then next to the others; what it shows is printed both times."""
    lines = [f"alone = MAKE\n{subject.replay_code(shown, 'alone')}"]
    names = [f"env_{number}" for number in range(len(references))]
    lines += [f"{name} = MAKE" for name in names]
    for name, reference in zip(names, references, strict=True):
        lines += [subject.reset_line(reference.job, name), *([PRINT_OPENING] if reference is shown else [])]
    for turn in range(len(shown.actions)):
        for name, reference in zip(names, references, strict=True):
            if turn < len(reference.actions):
                lines += [step_line(reference.actions[turn], name), *([PRINT_STEP] if reference is shown else [])]
    return subject.making_code("\n".join([*lines, ""]))


def kept_values(subject: Subject) -> Verdict:
    """What a step returned stays as it is: later steps do not change it, and changing it does not change the episode.

    Limits: compares `info` before and after the episode; observations are strings, which cannot change.
    """
    require_steady_clock(subject)
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
            findings.append(Finding("error", message, {}, _keeping(subject, episode, changed[0])))
        what, spoiled = "Changing a returned info changes the episode", _with_spoiled_infos(subject, reference)
        findings += _differences(reference, spoiled, what, _spoiling(subject, reference))
    return _verdict(subject, findings, "Return copies of what the environment keeps.")


def _with_spoiled_infos(subject: Subject, reference: Episode) -> Episode:
    """Play the episode, emptying every list and dictionary that it returns."""
    env, episode = subject.make(), Episode(reference.job, "spoiled")
    subject.open(env, episode)
    for action in reference.actions:
        spoil(episode.infos[-1])
        subject.step(env, action, episode)
    return episode


def spoil(value: Any) -> None:
    """Empty every list and dictionary in a value."""
    if isinstance(value, dict):
        for inner in value.values():
            spoil(inner)
        try:
            value.clear()
        except TypeError:
            return  # read-only, as it should be
    elif isinstance(value, list):
        value.clear()


def _keeping(subject: Subject, episode: Episode, step: int) -> str:
    """Write code that prints the info of a step at once, and again after the episode."""
    head = Episode(episode.job, episode.player, actions=episode.actions[:step])
    rest = "".join(f"env.step({literal(action)})\n" for action in episode.actions[step:])
    return f"{subject.reproduction(head)}kept = info\nprint(kept)\n{rest}print(kept)\n"


def _spoiling(subject: Subject, reference: Episode) -> str:
    """Write code that plays an episode as it is, and again with each returned info emptied."""
    lines = subject.replay_code(reference).splitlines()
    spoilt = "\n".join(f"spoil(info)\n{line}" if ".step(" in line else line for line in lines)
    return subject.making_code(
        f"from agent_r1_gym.audit.rules.determinism import spoil\n\nenv = MAKE\n{subject.replay_code(reference)}\n"
        f"env = MAKE\n{spoilt}\n"
    )


def _plain(info: dict[str, Any]) -> str:
    return json.dumps(info_to_dict(info), default=repr)


# --- replaying -------------------------------------------------------------------------------------------------------


def _require_determinism(subject: Subject) -> None:
    """Refuse an environment whose episodes the clock decides: they differ from one moment to the next.

    Raises:
        NotApplicable: it is registered as nondeterministic.
        NotRun: the clock decides.
    """
    _require_declared_determinism(subject)
    require_steady_clock(subject)


def require_steady_clock(subject: Subject) -> None:
    """Refuse an environment whose episodes the clock decides.

    Raises:
        NotRun: it does.
    """
    if clock_decides(subject):
        raise NotRun("the clock decides what its episodes show; see clocks")


def clock_decides(subject: Subject) -> bool:
    """Whether the episodes are others at another time; False if that is not known."""
    try:
        return subject.target is not None and bool(_clock_findings(subject))
    except (NotApplicable, NotRun):
        return False


def _require_declared_determinism(subject: Subject) -> None:
    if subject.env.spec is not None and subject.env.spec.nondeterministic:
        raise NotApplicable("it is registered as nondeterministic")


def _references(subject: Subject, *, reproducible: bool = True) -> list[Episode]:
    """Return the episodes to compare with, each played on a new instance: of random calls, and of the oracle.

    Outside of a `ToolEnv`, also those of turns of the form that the prompt shows, and those of listed actions in their
    order and of the oracle's turns for another task: they meet what the other task has left.

    Args:
        subject: the environment.
        reproducible: refuse an environment in which new instances play them differently, so that one fault is one
            finding.
    """
    found = list[Episode]()
    policies: list[Policy] = [RandomCall(), *([subject.oracle] if subject.oracle is not None else [])]
    if subject.tool_env is None:
        ends = [e.actions[-1] for e in subject.episodes(RandomCall()) if e.flags and e.flags[-1][0]]
        policies += [PromptExample(), Touring({turn.partition(" ")[0] for turn in ends})]
    for job in subject.jobs[:_JOBS]:
        for policy in policies:
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
    reference: Episode | _Played, again: Episode | _Played, what: str, code: str, *, seed: int | None = None
) -> list[Finding]:
    """Compare an episode with a repetition.

    Args:
        reference: the episode.
        again: the repetition.
        what: the finding if they differ.
        code: code that shows it.
        seed: seed of the episode, if `reference` does not know it.
    """
    if not (reference.trace and again.trace) or again.trace == reference.trace:
        return []
    if isinstance(again, Episode) and again.crash is not None:
        return []  # reported by `survives`
    evidence: dict[str, Any] = {"seed": reference.job.seed if isinstance(reference, Episode) else seed}
    evidence |= _first_difference(reference.trace, again.trace)
    step = evidence["first difference in step"]
    if "observation" in evidence["what differs"] and step < min(len(reference.texts), len(again.texts)):
        first, second = around_difference(reference.texts[step], again.texts[step])
        evidence |= {"first": first, "second": second}
    return [Finding("error", what, evidence, code)]


def around_difference(one: str, other: str) -> tuple[str, str]:
    """Return what two texts have from shortly before their first difference on."""
    pairs = enumerate(zip(one, other, strict=False))
    place = next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, place - _SHOWN_BEFORE)
    first, second = (f"{'...' * (start > 0)}{text[start : place + _SHOWN_AFTER]}" for text in (one, other))
    return first, second


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


def _numpy_state() -> str:
    return repr(np.random.get_state(legacy=False))


# --- in other processes ----------------------------------------------------------------------------------------------


class _Change(NamedTuple):
    """What differs in another process."""

    hash_seed: str
    clock_shift: float = 0.0


class _Played(NamedTuple):
    """An episode in another process; empty if it broke there.

    Attributes:
        trace: `Episode.trace`, as JSON.
        texts: `Episode.texts`.
    """

    trace: list[Any]
    texts: list[str]


def _control(subject: Subject, references: Sequence[Episode]) -> list[_Played]:
    """Play the episodes in a new process like that of the audit; for the same episodes once for all rules."""
    key = "control " + json.dumps([(e.job.task_index, e.job.seed, e.actions) for e in references])
    if key not in subject.memo:
        subject.memo[key] = _traces(subject, _Change("0"), references)
    traces: list[_Played] = subject.memo[key]
    return traces


def _traces(subject: Subject, change: _Change, references: Sequence[Episode]) -> list[_Played]:
    """Play the episodes in a new process, in their order; the time of day is the same in each, but for the shift.

    Raises:
        NotRun: the process gave no answer.
    """
    assert subject.target is not None
    request = {
        "target": subject.target.to_dict(),
        "settings": asdict(subject.settings),
        "episodes": [{"job": [e.job.task_index, e.job.seed], "actions": e.actions} for e in references],
        "clock": subject.memo.setdefault("time of day", time.time()),
        "clock_shift": change.clock_shift,
    }
    try:
        message = run_child("traces", request, seconds=subject.settings.rule_seconds, hash_seed=change.hash_seed)
    except ChildError as error:
        raise NotRun(str(error)) from error
    return [_Played(*episode) for episode in message["episodes"]]
