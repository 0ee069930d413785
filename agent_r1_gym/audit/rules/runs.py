"""Rules about running: the environment keeps to Gymnasium's interface, survives any turn, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from agent_r1_gym.audit.findings import Finding, NotApplicable, Verdict
from agent_r1_gym.audit.network import connection_attempts, is_watched
from agent_r1_gym.audit.oracle_players import malformed_turns, markup_of_answers, odd_answers, unspoken
from agent_r1_gym.audit.players import Empty, NoOp, RandomCall, answer_in_all_forms, players
from agent_r1_gym.audit.subject import Crash, Episode, Subject, excerpt, is_finite
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.env_checker import IDLE, ODD_ACTIONS, CheckError, check_tool_env
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import TextEnv

_INSTANCES = 5
_ODD_EPISODES = 2
_LATE_EPISODES = 3


def interface(subject: Subject) -> Verdict:
    """`reset` and `step` return what Gymnasium defines: text, a number, two booleans, a dictionary.

    Limits: values are checked in the episodes of two players, and spaces only for membership (a warning, since many
    environments declare the default alphabet of `gymnasium.spaces.Text` and do not keep to it).
    """
    findings = []
    for episode in (*subject.episodes(NoOp()), *subject.episodes(RandomCall())):
        if episode.breaches:
            evidence = {"seed": episode.job.seed}
            code = f"{subject.reproduction(episode)}print(repr(observation), repr(info))\n"
            findings.append(Finding("error", f"{episode.breaches[0]}.", evidence, code))
    outside = [e for e in subject.episodes(NoOp()) if e.digests and e.opening not in subject.env.observation_space]
    if outside:
        space = str(subject.env.observation_space)
        message = f"Observations are not in the observation space {space:.120}. Declare a space that contains them."
        code = f"{subject.reproduction(Episode(outside[0].job, 'no_op'))}print(observation in env.observation_space)\n"
        findings.append(Finding("warning", message, {"observation": excerpt(outside[0].opening)}, code))
    return Verdict(_distinct(findings))


def survives(subject: Subject) -> Verdict:
    """No text of a model makes the environment raise, hang, exit, or run out of memory.

    Plays empty turns, control characters, lone surrogates, deep nesting, forged markup and a million characters, each
    as first and as later turn, and closes it twice. Outside of a `ToolEnv` it also plays turns that are nearly valid:
    words of the oracle's turns, of listed actions, and of the examples and commands in the prompt are dropped, doubled,
    swapped and replaced; and answers such as `nan`, `{}` and 400 digits. Crashes under any other rule are reported here
    as well, and what a game of another library raised, if its adapter went on (`info["scorer_error"]`).

    Limits: some dozen texts are no fuzzing campaign. A backend that cannot be reached is not a crash.
    """
    played, written, deadline = list[Episode](), 0, time.monotonic() + subject.settings.rule_seconds / 4
    for position, action in enumerate(malformed_turns(subject) if subject.tool_env is None else ()):
        if time.monotonic() > deadline:
            break
        played.append(subject.replay(subject.jobs[position % len(subject.jobs)], [action]))
        written += 1
    for position, action in enumerate(odd_answers(subject) if subject.tool_env is None else ()):
        played.append(subject.replay(subject.jobs[position % len(subject.jobs)], [action]))
    for position, action in enumerate(ODD_ACTIONS):
        job = subject.jobs[position % len(subject.jobs)]
        for actions in ([action], [ODD_ACTIONS[position - 1], action])[:_ODD_EPISODES]:
            played.append(subject.replay(job, actions))
    env = subject.make()
    subject.close(env)
    with contextlib.suppress(Crash):
        subject.guard("the second close", env.close)
    broken = sum(episode.crash is not None for episode in played)
    measured = {"turns that broke an episode": broken, "turns that are nearly valid": written}
    findings = _scorer_errors(subject, played)
    return Verdict(findings, measured, "" if written or findings else unspoken(subject))


def _scorer_errors(subject: Subject, played: Sequence[Episode]) -> list[Finding]:
    """Report each kind of exception that an adapter caught, once."""
    findings: dict[str, Finding] = {}
    for episode in (*played, *(each for player in players(None) for each in subject.episodes(player))):
        for step, info in enumerate(episode.infos):
            error = info.get("scorer_error")
            if isinstance(error, str):
                kind = error.partition(":")[0]
                message = f"The scorer raised {error[:200]}. No text of a model may raise."
                findings.setdefault(kind, Finding("error", message, {}, subject.info_code(episode, step)))
    return list(findings.values())


def contract(subject: Subject) -> Verdict:
    """A `ToolEnv` fulfils the contract of this suite (`agent_r1_gym.check_tool_env`): info, history, terms, snapshots.

    Limits: only for environments that subclass `ToolEnv`. Stops at the first violation.
    """
    env = subject.make().unwrapped
    if not isinstance(env, ToolEnv):
        raise NotApplicable("it is not a ToolEnv")
    try:
        subject.guard("check_tool_env", lambda: check_tool_env(env))
    except Crash as crash:
        if not isinstance(crash.__cause__, CheckError):
            raise
        subject.crashes.remove(crash.finding)
        check = subject.making_code(
            "from agent_r1_gym.env_checker import check_tool_env\n\nenv = MAKE\ncheck_tool_env(env.unwrapped)\n"
        )
        return Verdict([Finding("error", str(crash.__cause__), {}, check)])
    return Verdict()


def executes_no_text(subject: Subject) -> Verdict:
    """No text of a model is executed as Python in the process of the environment, where it could do anything.

    Answers with terms of one odd number, also in arguments of calls, and looks for it in the code that Python executes:
    `eval`, `exec`, and libraries that call them, such as sympy's `parse_expr`.

    Limits: not what runs in other processes, as in a sandbox. A check of the text beforehand may make it harmless, so
    the finding says what was executed.
    """
    executed = _watch_executions()
    for turn in _terms(subject):
        executed.clear()
        episode = subject.replay(subject.jobs[0], [turn])
        if executed:
            message = (
                "It executes the model's text as Python in its own process (`eval`, `exec` or a library that calls "
                "them). Parse it, or run it in a sandbox."
            )
            code = (
                "import sys\n\n\ndef watch(event, arguments):\n"
                f"    if event == 'exec' and '{_ODD_NUMBER}' in repr(getattr(arguments[0], 'co_consts', ())):\n"
                f"        print('executed:', arguments[0].co_consts, arguments[0].co_names)\n\n\n"
            ) + subject.making_code(f"env = MAKE\nsys.addaudithook(watch)\n{subject.replay_code(episode)}")
            return Verdict([Finding("error", message, {"executed": executed[0]}, code)])
    return Verdict()


_ODD_NUMBER = 7_351_987_351
_executed: list[str] = []


def _watch_executions() -> list[str]:
    """Return the list that receives each code with the odd number that Python executes from now on."""
    if not getattr(_watch_executions, "installed", False):
        sys.addaudithook(_see_execution)  # there is no way to remove one
        _watch_executions.installed = True  # type: ignore[attr-defined]
    return _executed


def _see_execution(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "exec" and isinstance(code := arguments[0], CodeType) and str(_ODD_NUMBER) in repr(code.co_consts):
        _executed.append(f"{code.co_filename}: constants {code.co_consts!r:.80}, names {code.co_names!r:.80}")


def _terms(subject: Subject) -> Iterator[str]:
    """Write turns with the odd number as the answer, and as text arguments of calls."""
    terms = (f"{_ODD_NUMBER}", f"{_ODD_NUMBER} + 1", f"[{_ODD_NUMBER}]")
    env = subject.tool_env
    if env is None:
        oracle = subject.episodes(subject.oracle) if subject.oracle is not None else []
        opening, closing = markup_of_answers(oracle)
        for term in terms:
            yield answer_in_all_forms(term)
            yield f"{opening}{term}{closing}"
        return
    yield from map(env.parser.format_answer, terms)
    subject.reset(env, subject.jobs[0])
    for tool in env.episode_tools:
        parameters = tool.parameters.get("properties", {})
        for arguments in (
            {name: term for name, p in parameters.items() if p.get("type") == "string"} for term in terms
        ):
            if arguments and tool.check(arguments) is None:
                with contextlib.suppress(ConfigurationError):
                    yield env.parser.format_call(ToolCall(tool.name, arguments))


def quiet(subject: Subject) -> Verdict:
    """Nothing is printed on standard output: in a run with 64 environments, it hides what matters.

    Limits: catches what is written to Python's `sys.stdout`, not what a library in C writes.
    """
    output, played = io.StringIO(), list[Episode]()
    with contextlib.redirect_stdout(output):
        env = subject.make()
        played += [subject.play(RandomCall(), job, env) for job in subject.jobs[:2]]
        subject.close(env)
    if not output.getvalue().strip():
        return Verdict()
    message = "It prints on standard output. Use `logging`, or print only with `render_mode='human'`."
    code = f"# All that this prints is the environment's.\n{subject.reproduction(*played, printing=False)}env.close()\n"
    return Verdict([Finding("warning", message, {"output": excerpt(output.getvalue())}, code)])


def cleans_up(subject: Subject) -> Verdict:
    """After `close`, no thread, child process or open file of an instance is left.

    Makes, plays and closes instances, after one to warm up what all instances share.

    Limits: a daemon that has left the process group is not seen. What is shared may grow once without a finding.
    """
    _use(subject)
    before = _resources()
    for _ in range(_INSTANCES):
        _use(subject)
    gc.collect()
    played = subject.replay_code(subject.play(RandomCall(), subject.jobs[0]), printing=False)
    use = "".join(f"    {line}\n" for line in f"env = MAKE\n{played}env.close()".splitlines())
    code = subject.making_code(
        "import os\nimport threading\n\nfrom agent_r1_gym.audit.rules.runs import child_processes\n\n"
        f"for _ in range({_INSTANCES + 1}):\n{use}"
        "    print(threading.active_count(), len(os.listdir('/proc/self/fd')), len(list(child_processes())))\n"
    )
    grown = {name: number - before[name] for name, number in _resources().items()}
    findings = [
        Finding(
            "warning",
            f"{number} {name} are left after {_INSTANCES} instances were closed. Release them in `close`.",
            {"left": number},
            code,
        )
        for name, number in grown.items()
        if number >= _INSTANCES
    ]
    return Verdict(findings, {f"{name} left": number for name, number in grown.items()})


def _use(subject: Subject) -> None:
    env = subject.make()
    subject.play(RandomCall(), subject.jobs[0], env)
    subject.close(env)


def _resources() -> Counter[str]:
    threads = sum(thread.is_alive() for thread in threading.enumerate())
    files = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0  # noqa: PTH208
    return Counter({"threads": threads, "open files": files, "child processes": sum(1 for _ in child_processes())})


def child_processes() -> Iterator[int]:
    """Yield the ids of the living children of this process, on Linux."""
    own = str(os.getpid())
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if parent == own and state != "Z":
                yield int(folder.name)


def offline(subject: Subject) -> Verdict:
    """It connects to no other machine, so that it runs on a cluster without internet access and uploads nothing.

    Limits: sees connections of Python's `socket` in the process of the audit, from the import of the environment on;
    not those of libraries in C or of other processes. Addresses of this machine are allowed.
    """
    if not is_watched():
        raise NotApplicable("connections are watched in a process of the audit only")
    played = [subject.play(RandomCall(), job) for job in subject.jobs[:2]]
    attempts = sorted(connection_attempts())
    if not attempts:
        return Verdict()
    message = (
        f"It connects to {', '.join(attempts[:5])}. Fetch data beforehand, or make the address an option; "
        "`--network` lets the audit continue with it."
    )
    code = (
        "import sys\n\n\ndef watch(event, arguments):\n    if event in ('socket.connect', 'socket.getaddrinfo'):\n"
        "        print(event, arguments)\n\n\nsys.addaudithook(watch)\n"
    )
    return Verdict([Finding("warning", message, {"hosts": attempts}, code + subject.reproduction(*played))])


def ends(subject: Subject) -> Verdict:
    """An episode of idle turns ends, and by a budget as `truncated`, never as both or as `terminated`.

    A learner bootstraps the value of a truncated state and not that of a terminated one, so a budget that is reported
    as `terminated` teaches that time is worth nothing.

    Limits: idle turns may end a game by its rules, as the only turn of a question does. An environment without a known
    limit (`max_turns`, or `max_episode_steps` of its registration) is only checked for an end within 1,000 turns.
    """
    findings: list[Finding] = []
    for episode in (*subject.episodes(NoOp()), *subject.episodes(Empty()), *subject.episodes(RandomCall())):
        if (True, True) in episode.flags:
            message = "A step is both terminated and truncated. A learner cannot know whether to bootstrap: set one."
            findings.append(
                Finding("error" if subject.tool_env else "warning", message, {}, subject.reproduction(episode))
            )
            break
    idle = subject.play(NoOp(), subject.jobs[0], max_turns=1_000)
    if idle.crash is not None or idle.breaches:
        return Verdict(findings, not_run="" if findings else "the idle episode broke")
    limit = subject.turn_limit
    measured = {"turns of an idle episode": len(idle.actions), "limit": limit}
    if not idle.ended:
        message = (
            "An episode of idle turns has no end within 1,000 turns. Give it a limit of turns (`max_episode_steps`)."
        )
        code = subject.making_code(
            f"env = MAKE\n{subject.reset_line(idle.job)}\nfor turn in range(1_000):\n"
            f"    observation, reward, terminated, truncated, info = env.step({IDLE!r})\n"
            "    if terminated or truncated:\n        break\nprint(turn + 1, terminated, truncated)\n"
        )
        findings.append(Finding("warning", message, measured, code))
    elif limit != 1 and len(idle.actions) == limit and idle.flags[-1] == (True, False):
        message = f"The limit of {limit} turns ends an idle episode as terminated. Return truncated=True instead."
        findings.append(Finding("error", message, measured, subject.reproduction(idle)))
    return Verdict(findings, measured)


def after_the_end(subject: Subject) -> Verdict:
    """A step before the first reset or after the end raises; it is never rewarded, whatever the turn.

    After the end of random calls and of idle turns, the oracle's turns are played; after the end of the oracle's
    episode, its last turn again. Where no oracle is known, it is the turn for which any player was paid most.

    Limits: a warning, unless the step is rewarded, because Gymnasium leaves such a step undefined, and
    `gymnasium.make(..., order_enforce=True)` refuses the step before the first reset.
    """
    findings, spec = [], subject.env.spec
    fresh = Episode(subject.jobs[0], "a step before the first reset")
    if not (spec is not None and spec.order_enforce) and _steps_too_late(subject, subject.make(), ["x"], fresh):
        message = "A step before the first reset is carried out. Raise an error."
        findings.append(Finding("warning", message, {}, subject.making_code("env = MAKE\nprint(env.step('x'))\n")))
    ended, worst, paid = False, list[Episode](), list[float]()
    for played, late in _plans_after_the_end(subject):
        env = subject.make()
        again = subject.replay(played.job, played.actions, env)
        if not again.ended:
            continue
        ended = True
        rewards = _steps_too_late(subject, env, late, again)
        if rewards and (not worst or max(rewards) > max(0.0, *paid)):
            worst, paid = [again], rewards
        if max(paid, default=0.0) > 0:
            break
    if not ended:
        return Verdict(findings, not_run="" if findings else "no episode ended")
    if worst:
        turn = worst[0].actions[-len(paid) :][paid.index(max(paid))]
        evidence = {"turn after the end": excerpt(turn), "rewards after the end": paid}
        if max(paid) > 0:
            message = f"A step after the end is rewarded with {max(paid):.4g}. Raise an error until `reset` is called."
        else:
            message = "A step after the end is carried out. Raise an error: the caller has missed the end."
        code = subject.reproduction(worst[0])
        findings.append(Finding("error" if max(paid) > 0 else "warning", message, evidence, code))
    return Verdict(findings)


def _plans_after_the_end(subject: Subject) -> Iterator[tuple[Episode, list[str]]]:
    """Yield episodes that ended, each with the turns to try after its end."""
    first = next((e for job in subject.jobs for e in [subject.play(RandomCall(), job)] if e.ended), None)
    if first is not None:
        yield first, ["x", "x"]
    oracle = subject.episodes(subject.oracle) if subject.oracle is not None else []
    for best in [episode for episode in oracle if episode.ended and episode.total > 0][:_LATE_EPISODES]:
        yield best, [best.actions[-1]] * 2
        for policy in (NoOp(), RandomCall()):
            other = subject.play(policy, best.job)
            if other.ended:
                yield other, best.actions
    if not oracle:
        everyone = [episode for player in players(subject.tool_env) for episode in subject.episodes(player)]
        earned = [(float(r), n, e) for e in everyone if e.ended for n, r in enumerate(e.rewards) if is_finite(r)]
        reward, turn, paid = max(earned, key=lambda each: each[0], default=(0.0, 0, Episode(subject.jobs[0], "")))
        if reward > 0:
            yield paid, [paid.actions[turn]] * 2


def _steps_too_late(subject: Subject, env: TextEnv, turns: Sequence[str], episode: Episode) -> list[float]:
    """Take steps at the wrong time, and return the rewards of those that are not refused, as they should be.

    They are added to `episode`, as far as they are carried out.
    """
    rewards = []
    for turn in turns:
        try:
            returned = subject.guard("step", functools.partial(env.step, turn))
        except Crash as crash:
            if isinstance(crash.__cause__, Exception):  # a hang or an exit is a crash at any time
                subject.crashes.remove(crash.finding)
            continue
        is_step = isinstance(returned, tuple) and len(returned) == 5 and is_finite(returned[1])
        rewards.append(float(returned[1]) if is_step else 0.0)
        episode.actions.append(turn)
    return rewards


def _distinct(findings: list[Finding]) -> list[Finding]:
    return list({finding.message: finding for finding in findings}.values())
