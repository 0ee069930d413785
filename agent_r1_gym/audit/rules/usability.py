"""Rules about use: feedback that helps, texts that any tokenizer takes, and what an instance costs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agent_r1_gym.audit.findings import Finding, NotApplicable, NotRun, Verdict
from agent_r1_gym.audit.oracle_players import unspoken
from agent_r1_gym.audit.players import NoOp, RandomCall, players, prompt_commands, random_call
from agent_r1_gym.audit.reproduction import play_function
from agent_r1_gym.audit.rules.determinism import in_threads, require_steady_clock
from agent_r1_gym.audit.rules.scores import split_step_code
from agent_r1_gym.audit.subject import Episode, Subject, excerpt
from agent_r1_gym.core.types import ToolOutcome
from agent_r1_gym.env_checker import IDLE, ODD_ACTIONS
from agent_r1_gym.run.policies import Policy, PolicyInput
from agent_r1_gym.run.session import Job

SIDE_BY_SIDE = 64
"""Instances that run at once."""
SLOW_STEP = 1.0
"""Seconds of CPU time per step above which collecting rollouts waits for the environment."""
LARGE_INSTANCE = 64 * 2**20
"""Bytes per instance above which 64 of them need 4 GiB."""
GROWTH = 32 * 1024
"""Bytes per episode by which memory may grow; 100,000 episodes then add 3 GB."""
_MEASURED_EPISODES = 200
_MEASURE_SECONDS = 20.0
_GROUP = 10
"""Episodes between two measurements of memory."""
_THREADS = 8
_FEW_TURNS, _CONTROLS = 3, 8
_MALFORMED = (IDLE, '<tool_call>{"name": "no_such_tool", "arguments": {}}</tool_call>', "<tool_call>{", "?!")
_HELP = re.compile(
    r"error|\b(?:in)?valid\b|illegal|unknown|not (?:an? |in |the )?(?:legal|action|allowed|understood|recogni[sz]ed)|"
    r"must|expected|should|please|answer with|one of|format|try again|malformed|named no action|no such",
    re.IGNORECASE,
)
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def feedback(subject: Subject) -> Verdict:
    """A malformed turn gets an observation that explains what is wrong, and the episode continues.

    Without feedback a model repeats its mistake; one whose episode ends learns to avoid calls.

    Limits: looks for words that explain (invalid, expected, must, one of ...), or for the name of a valid action.
    Feedback in another language is not recognised. Findings are warnings: a game may count a malformed turn as a loss.
    """
    _require_turns(subject)
    silent, fatal, checked = [], [], 0
    for position, action in enumerate(_MALFORMED):
        job = subject.jobs[position % len(subject.jobs)]
        if (env := subject.tool_env) is not None:
            subject.reset(env, job)
            if not env.parse(action).errors:  # such as a plain turn that is the answer, or a message to the user
                continue
        episode = subject.replay(job, [action])
        if episode.crash is not None or episode.breaches or len(episode.texts) < 2:
            continue
        helps = _helps(episode)
        if not helps and action == IDLE and subject.tool_env is None and _helps(subject.replay(job, [_MALFORMED[-1]])):
            continue  # a word of the sentence is a command, such as the "a" of games that are played with four keys
        checked += 1
        if not helps:
            silent.append(episode)
        if episode.ended:
            fatal.append(episode)
    findings = []
    if silent:
        message = f"{len(silent)} of {checked} malformed turns got no feedback that explains what is wrong."
        evidence = {"action": silent[0].actions[0], "observation": excerpt(silent[0].texts[1])}
        findings.append(Finding("warning", message, evidence, subject.reproduction(silent[0])))
    if fatal:
        message = f"{len(fatal)} of {checked} malformed turns ended the episode. Let the model try again."
        findings.append(Finding("warning", message, {"action": fatal[0].actions[0]}, subject.reproduction(fatal[0])))
    return Verdict(findings, {"malformed turns": checked}, "" if checked else "no episode can be played")


def _helps(episode: Episode) -> bool:
    """Whether the reply to the first turn explains what was wrong."""
    if len(episode.texts) < 2:
        return False
    text, listed = episode.texts[1], episode.infos[0].get("actions", ())
    return bool(_HELP.search(text)) or any(isinstance(action, str) and action in text for action in listed)


def _require_turns(subject: Subject) -> None:
    """Refuse an environment whose episodes have one turn, or may have."""
    oracle = subject.episodes(subject.oracle) if subject.oracle is not None else []
    limit = subject.turn_limit
    if limit == 1 or (limit is None and oracle and all(len(episode.actions) == 1 for episode in oracle)):
        raise NotApplicable("every episode has one turn")
    played = [episode for player in players(None) for episode in subject.episodes(player)]
    if limit is None and not oracle and all(len(episode.actions) <= 1 for episode in played):
        raise NotRun("every episode ended after one turn, perhaps because no player wrote a valid one")


def clean_text(subject: Subject) -> Verdict:
    """Every text for the model can be encoded, and has no NUL or other control character, whatever the model wrote.

    Lone surrogates make a tokenizer raise; NUL ends strings in databases and in C.

    Limits: looks at what the environment adds to the history, after ordinary and after hostile turns, also as
    arguments of commands that the prompt describes. Chat markup in
    tool output is checked by `contract`, for a `ToolEnv`.
    """
    episodes = [*subject.episodes(NoOp()), *subject.episodes(RandomCall())]
    if subject.oracle is not None:
        episodes += subject.episodes(subject.oracle)
    hostile = [action for action in ODD_ACTIONS if _CONTROL.search(action)] + ["\x1b[31mred", "a\ud83dc\x00d"]
    commands = prompt_commands(episodes[0].opening) if subject.tool_env is None else []
    for text in hostile:
        episodes.append(subject.replay(subject.jobs[0], [text]))
        for command in (word for word, places in commands if places):  # then those that may show what it has kept
            shows = [word for word, places in commands if not places]
            episodes.append(subject.replay(subject.jobs[0], [f"{command} {text}", *shows]))
    findings: dict[str, Finding] = {}
    for episode in episodes:
        for text in episode.texts:
            match = _CONTROL.search(text)
            if match is None:
                continue
            surrogate = "\ud800" <= match[0] <= "\udfff"
            severity: Any = "error" if surrogate or match[0] == "\x00" else "warning"
            what = (
                "a lone surrogate, which no tokenizer encodes" if surrogate else f"the control character {match[0]!r}"
            )
            message = f"An observation contains {what}. Replace it (`agent_r1_gym.core.text.encodable`)."
            around = text[max(0, match.start() - 40) : match.end() + 40]
            findings.setdefault(
                message, Finding(severity, message, {"text": repr(around)}, subject.reproduction(episode))
            )
    return Verdict(list(findings.values()), not_run="" if findings else unspoken(subject))


def cost(subject: Subject) -> Verdict:
    """A step takes less than a second of CPU time. Measures construction, reset and step.

    Limits: wall-clock time on this machine, next to the CPU time of this process; a slow backend is not a finding.
    """
    started = time.perf_counter()
    env = subject.make()
    construction = time.perf_counter() - started
    spent, steps, resets, cpu = 0.0, 0, 0.0, 0.0
    episodes, played = 0, list[Episode]()
    for job in subject.jobs:
        episode, episodes = Episode(job, "cost"), episodes + 1
        start = time.perf_counter()
        subject.open(env, episode)
        resets += time.perf_counter() - start
        played.append(subject.play(RandomCall(), job))
        for action in played[-1].actions[: len(played[-1].flags)]:  # without one that raised
            start, cpu_start = time.perf_counter(), time.process_time()
            subject.step(env, action, episode)
            spent, steps = spent + time.perf_counter() - start, steps + 1
            cpu += time.process_time() - cpu_start
            if episode.ended:
                break
        if spent > _MEASURE_SECONDS / 2:
            break
    cpu_per_step = cpu / max(steps, 1)
    measured = {
        "construction, s": round(construction, 4),
        "reset, ms": round(1e3 * resets / episodes, 3),
        "step, ms": round(1e3 * spent / max(steps, 1), 3),
        "CPU time of a step, ms": round(1e3 * cpu_per_step, 3),
    }
    if cpu_per_step <= SLOW_STEP:
        return Verdict([], measured)
    message = f"A step takes {cpu_per_step:.1f} s of CPU time; 8 episodes of 10 turns wait {80 * cpu_per_step:.0f} s."
    code = f"import time\n\n{subject.reproduction(Episode(subject.jobs[0], 'cost', actions=played[0].actions))}"
    timed = code.replace("observation, info =", "start = time.process_time()\nobservation, info =", 1)
    timed += f"print((time.process_time() - start) / {max(len(played[0].actions), 1)}, 's per step')\n"
    return Verdict([Finding("warning", message, measured, timed)], measured)


def memory(subject: Subject) -> Verdict:
    """An instance takes less than 64 MiB, and memory does not grow with the number of episodes.

    Limits: resident memory of this process, on Linux; growth is measured over the second half of at most 200 episodes
    of random calls, and small leaks hide in the allocator.
    """
    if not Path("/proc/self/statm").is_file():
        raise NotApplicable("memory is measured on Linux only")
    gc.freeze()  # the many objects of libraries are not looked through again and again
    try:
        env = subject.make()
        deadline = time.monotonic() + _MEASURE_SECONDS
        played, sizes = 0, list[int]()
        while played < _MEASURED_EPISODES and time.monotonic() < deadline:
            subject.play(RandomCall(), subject.jobs[played % len(subject.jobs)], env)
            played += 1
            if played % _GROUP == 0:
                sizes.append(release_free_memory())
        half = (len(sizes) - 1) // 2
        growth = (sizes[-1] - sizes[half]) / (_GROUP * (len(sizes) - 1 - half)) if len(sizes) > 1 else 0.0
        before = release_free_memory()
        envs = [subject.make() for _ in range(8)]
        for instance, job in zip(envs, subject.jobs * 8, strict=False):
            subject.play(RandomCall(), job, instance)
        per_instance = (release_free_memory() - before) / len(envs)
    finally:
        gc.unfreeze()
    measured = {
        "kB per instance": round(per_instance / 1024),
        "kB per episode": round(growth / 1024, 2),
        "episodes": played,
    }
    findings = []
    if per_instance > LARGE_INSTANCE:
        message = f"An instance takes {per_instance / 2**20:.0f} MiB. Share what is read only."
        findings.append(
            Finding("warning", message, measured, _memory_code(subject, "envs += [MAKE for _ in range(8)]"))
        )
    if growth > GROWTH:
        message = (
            f"Memory grows by {growth / 1024:.0f} kB with each episode. Drop what the last episode left in `reset`."
        )
        findings.append(
            Finding("warning", message, measured, _memory_code(subject, f"for _ in range({_GROUP}): play(envs[0])"))
        )
    return Verdict(findings, measured)


def _memory_code(subject: Subject, what: str) -> str:
    """Write code that does something five times, and prints the memory that stays resident after each time."""
    played = subject.play(RandomCall(), subject.jobs[0])
    return subject.making_code(
        "from agent_r1_gym.audit.rules.usability import release_free_memory\n\n\n"
        f"{play_function(subject.reset_line(played.job), played.actions)}\n\nenvs = [MAKE]\nfor _ in range(5):\n"
        f"    {what}\n    print(release_free_memory() // 1024, 'kB')\n"
    )


def release_free_memory() -> int:
    """Give the memory that Python no longer uses back to the system, and return what stays resident, in bytes.

    An allocator keeps freed pages. What comes next would be put there, and seem to cost nothing.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # glibc alone has it
        ctypes.CDLL(None).malloc_trim(0)
    return resident_bytes()


def resident_bytes() -> int:
    """Return the resident memory of this process, on Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def side_by_side(subject: Subject) -> Verdict:
    """64 instances run at once, in eight threads, and each episode is the one that its seed gives alone.

    The episodes are of random calls and, where there is an oracle, every second one is the oracle's.

    Limits: one short episode each; calls in these threads have no time limit of their own.
    """
    require_steady_clock(subject)
    policies = (RandomCall(), subject.oracle) if subject.oracle is not None else (RandomCall(),)
    jobs = subject.jobs[: SIDE_BY_SIDE // len(policies)]
    alone = [_on_a_new_instance(subject, policy, job) for policy in policies for job in jobs]
    if all(episode.crash is not None or episode.breaches for episode in alone):
        raise NotApplicable("no episode can be played")
    again = [_on_a_new_instance(subject, policy, job) for policy in policies for job in jobs[:_CONTROLS]]
    known = {(episode.player, episode.job): episode.trace for episode in alone}
    if any(episode.trace != known[episode.player, episode.job] for episode in again):
        raise NotApplicable("an episode is not the same when it is played again; see same_seed")
    rounds = [alone[number % len(alone)] for number in range(SIDE_BY_SIDE)]
    envs = [subject.make() for _ in rounds]
    with ThreadPoolExecutor(_THREADS) as pool:
        played = list(pool.map(lambda episode, env: subject.replay(episode.job, episode.actions, env), rounds, envs))
    # A server may serve fewer at once.
    refused = sum(episode.crash is not None and episode.crash.is_backend for episode in played)
    pairs = list(zip(rounds, played, strict=True))
    broken = [e for one, e in pairs if e.crash is not None and not e.crash.is_backend and one.crash is None]
    changed = [e for one, e in pairs if e.crash is None and e.trace != one.trace]
    findings, repeats = [], SIDE_BY_SIDE // len(alone)
    if broken:
        message = f"{len(broken)} of {len(rounds)} instances that run at once broke: {broken[0].crash}"
        findings.append(Finding("error", message, {}, in_threads(subject, alone, repeats, _THREADS)))
    if changed:
        message = f"{len(changed)} of {len(rounds)} episodes differ when they run at once. Keep state in the instance."
        findings.append(Finding("error", message, {}, in_threads(subject, alone, repeats, _THREADS)))
    measured = {"instances": len(rounds), "refused by a backend": refused}
    return Verdict(findings, measured, "" if findings else unspoken(subject))


def _on_a_new_instance(subject: Subject, policy: Policy, job: Job) -> Episode:
    env = subject.make()
    episode = subject.play(policy, job, env, max_turns=_FEW_TURNS)
    subject.close(env)
    return episode


def dead_backend(subject: Subject) -> Verdict:
    """A tool whose backend is dead marks the episode as an infrastructure failure, and costs the model nothing.

    Passes the outcomes "unavailable" and "timeout" between the halves of a step.

    Limits: needs a `ToolEnv` with tools. How long a real backend is waited for is not measured.
    """
    env = subject.tool_env
    if env is None:
        raise NotApplicable("it is not a ToolEnv, so its backend cannot be replaced")
    findings: list[Finding] = []
    job = subject.jobs[0]
    subject.reset(env, job)
    state = PolicyInput(env.task.prompt, (), 0, 2, (), env.parser, env.task, env.tool_schemas)
    action = random_call(state)
    if action is None:
        raise NotApplicable("it has no tools")
    subject.reset(env, job)
    ends_anyway = subject.guard("step", functools.partial(env.step, action))[2]  # any call is the last turn
    for error in ("unavailable", "timeout"):
        subject.reset(env, job)
        calls = len(env.begin_step(action))
        if not calls:
            raise NotApplicable("no call with generated arguments reaches a tool")
        outcomes = [ToolOutcome("the backend is down", ok=False, error=error)] * calls
        step = functools.partial(env.finish_step, outcomes)
        _, reward, terminated, truncated, info = subject.guard("step", step)
        evidence = {"action": action[:300], "reward": reward, "infrastructure_error": info["infrastructure_error"]}
        problems = {
            "An episode whose backend is dead is not marked (`info['infrastructure_error']`), and counts as a loss.": (
                info["infrastructure_error"] is None
            ),
            f"A dead backend costs the model {reward:.3g}. Check `ToolOutcome.is_infrastructure_failure` in rewards.": (
                reward < 0
            ),
            "A dead backend ends the episode. Let the runner decide: it plays the episode again.": (
                not ends_anyway and (terminated or (truncated and env.max_turns > 1))
            ),
        }
        code = split_step_code(subject, job, action, f"ToolOutcome('the backend is down', ok=False, error={error!r})")
        code += "print(info['infrastructure_error'])\n"
        findings += [Finding("error", message, evidence, code) for message, holds in problems.items() if holds]
    return Verdict(list({finding.message: finding for finding in findings}.values()))
