"""The environment under audit: how it is made, what it is called with, and what came back.

Everything that a rule does to an environment goes through `Subject`. It limits the time of each call, turns whatever
the environment raises into a `Crash`, and records values that a session would refuse, such as a reward of NaN.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import random
import sysconfig
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any, Self

import numpy as np

from agent_r1_gym.audit.findings import AT, TURN, Finding
from agent_r1_gym.audit.reproduction import PRINT_OPENING, PRINT_STEP, reset_line, step_line
from agent_r1_gym.audit.target import Settings, Target
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.errors import AgentR1Error, ConfigurationError, GameError, InfrastructureError
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.run.policies import OraclePolicy, Policy, PolicyInput, make_policy
from agent_r1_gym.run.session import Job, Session
from agent_r1_gym.support.concurrency import TimeLimitError, time_limit
from agent_r1_gym.support.packages import import_object

MAX_TURNS = 200
"""Turns after which the audit leaves an episode that does not end."""
_MAX_QUOTE = 300
_MAX_OPENING, _FIRST_TURNS, _LAST_TURNS = 600, 3, 2
_MAX_HANGS = 2
_CALLS = {"the constructor": "", "close": "env.close()\n", "the second close": "env.close()\nenv.close()\n"}
"""Calls outside of an episode, with the code that makes them again."""
_REMEDIES = dict.fromkeys(_CALLS, "It must not raise")
_NOT_THEIRS = (str(Path(__file__).parent), sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
_PLAYERS, _LEAST_EPISODES = 24, 2  # a rule that needs all players must end in its time


class Crash(Exception):
    """The environment raised, hung, or could not be made; what it did is in `finding`.

    Attributes:
        finding: the crash as a finding.
        is_backend: whether a backend failed, which is not a fault of the environment.
        is_policy: whether the policy of `--oracle` raised, and not the environment.
    """

    def __init__(self, finding: Finding, *, is_backend: bool = False, is_policy: bool = False) -> None:
        super().__init__(finding.message)
        self.finding = finding
        self.is_backend = is_backend
        self.is_policy = is_policy


class TooManyHangs(Exception):
    """The environment hung repeatedly under one rule, which is not worth its time any more."""


@dataclass
class Episode:
    """An episode as the environment returned it, up to its end or to where it broke.

    Attributes:
        job: task and seed.
        player: name of the player.
        opening: the first observation.
        actions: the turns that were played.
        texts: what each state added for the model, the opening first: the new messages of others, or the observation.
        rewards: the raw rewards, one per step; may be NaN.
        flags: (terminated, truncated) of each step.
        infos: the `info` of the opening and of each step, the very objects.
        digests: a hash of each observation, the opening first.
        solved: whether the task was solved: by its own score, or by `info["is_success"]`; None if it has neither.
        breaches: what a step returned that Gymnasium's interface does not allow.
        crash: what broke the episode, None if nothing did.
    """

    job: Job
    player: str
    opening: str = ""
    actions: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    rewards: list[Any] = field(default_factory=list)
    flags: list[tuple[bool, bool]] = field(default_factory=list)
    infos: list[dict[str, Any]] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    solved: bool | None = None
    breaches: list[str] = field(default_factory=list)
    crash: Crash | None = None

    @property
    def total(self) -> float:
        """The return: the sum of the finite rewards."""
        return math.fsum(float(reward) for reward in self.rewards if is_finite(reward))

    @property
    def transcript(self) -> str:
        """The first and the last turns, shortened, to read."""
        turns = []
        for position, action in enumerate(self.actions):
            lines = [action[:_MAX_QUOTE]]
            if position < len(self.rewards):  # else the environment broke
                lines += [f"> {self.texts[position + 1][:_MAX_QUOTE]}", f"> (reward {self.rewards[position]!s:.40})"]
            turns.append("\n".join(lines))
        hidden = len(turns) - _FIRST_TURNS - _LAST_TURNS
        if hidden > 0:
            turns[_FIRST_TURNS:-_LAST_TURNS] = [f"... {hidden} more turns ..."]
        broke = str(self.crash) if self.crash is not None else "; ".join(self.breaches)
        end = f"broke: {broke} (earned {self.total:.4g} before)" if broke else f"return {self.total:.4g}"
        return "\n".join([f"> {self.opening[:_MAX_OPENING]}", *turns, end])

    @property
    def ended(self) -> bool:
        """Whether the environment ended the episode."""
        return bool(self.flags) and any(self.flags[-1])

    @property
    def trace(self) -> list[tuple[str, str, tuple[bool, bool]]]:
        """What must be equal in equal episodes: observations, rewards and flags of each state."""
        steps = zip(self.digests[1:], self.rewards, self.flags, strict=False)
        opening = [(digest, "", (False, False)) for digest in self.digests[:1]]
        return [*opening, *((digest, f"{reward!s:.40}", flags) for digest, reward, flags in steps)]


def is_finite(reward: Any) -> bool:
    """Whether a reward is a finite number."""
    try:
        return math.isfinite(float(reward))
    except (TypeError, ValueError, OverflowError):
        return False


class Subject:
    """The environment under audit.

    Args:
        make: makes an instance.
        settings: how thoroughly it is audited.
        target: the same environment for other processes; None: only this process can make it.
        oracle: the policy that plays best; None: the environment's own oracle, if it has one.

    Attributes:
        crashes: crashes under the current rule.
        hangs: calls that hung under the current rule.
        memo: what rules have computed for one another, by name.
        on_call: receives 1 before and -1 after each call of the environment.
        on_fork: receives the name of a call that returned in a fork of this process, before that fork is ended.
    """

    def __init__(
        self,
        make: Callable[[], TextEnv],
        settings: Settings | None = None,
        *,
        target: Target | None = None,
        oracle: Policy | None = None,
    ) -> None:
        self._make, self.settings, self.target = make, settings or Settings(), target
        self._oracle = oracle
        self._pid = os.getpid()
        self._episodes: dict[str, list[Episode]] = {}
        self._instances: list[TextEnv] = []
        self.crashes: list[Finding] = []
        self.hangs = 0
        self.memo: dict[str, Any] = {}
        self.on_call: Callable[[int], None] = _ignore
        self.on_fork: Callable[[str], None] = _ignore

    @classmethod
    def of_target(cls, target: Target, settings: Settings) -> Self:
        """Make the subject of a target, whose module is imported: outside of the time limit of a call.

        Raises:
            ConfigurationError: there is no such environment, or no policy has the name of its oracle.
        """
        _ = target.env_id
        oracle = _named_policy(target.oracle) if target.oracle else None
        return cls(target.make, settings, target=target, oracle=oracle)

    # --- facts -------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def env(self) -> TextEnv:
        """An instance for facts and for episodes that may share one."""
        return self.make()

    @property
    def tool_env(self) -> ToolEnv | None:
        """`env` without its wrappers if it is a `ToolEnv`, else None."""
        bare = self.env.unwrapped
        return bare if isinstance(bare, ToolEnv) else None

    @functools.cached_property
    def jobs(self) -> list[Job]:
        """The episodes that each player plays: tasks from all over the data set, or consecutive seeds."""
        number, seed = self.settings.episodes, self.settings.seed
        if self.tool_env is None:
            return [Job(index, seed=seed + index) for index in range(number)]
        size = len(self.tool_env.tasks)
        # Drawn, not spaced evenly: tasks are often generated in a pattern.
        indices = sorted(random.Random(seed).sample(range(size), min(number, size)))
        return [Job(index, seed=seed + position) for position, index in enumerate(indices)]

    @property
    def turn_limit(self) -> int | None:
        """The limit of turns that the environment declares, None if it declares none."""
        spec = self.env.spec
        limits = [getattr(self.env.unwrapped, "max_turns", None), spec.max_episode_steps if spec is not None else None]
        return min((limit for limit in limits if isinstance(limit, int)), default=None)

    @functools.cached_property
    def oracle(self) -> Policy | None:
        """The policy that plays best, None if no one knows one; tried on the first episode.

        Raises:
            ConfigurationError: the given policy knows no turn of any episode.
        """
        if self._oracle is None:
            policy = OraclePolicy()
            return policy if self.play(policy, self.jobs[0]).actions else None
        tried = [self.play(self._oracle, self.jobs[0], max_turns=1)]
        while not tried[-1].actions and tried[-1].crash is None and len(tried) < len(self.jobs):
            tried.append(self.play(self._oracle, self.jobs[len(tried)], max_turns=1))
        if tried[-1].actions:
            return self._oracle
        crash, known = tried[-1].crash, len(self.crashes)
        if crash is not None and crash.is_policy:
            del self.crashes[known - 1 :]
            raise ConfigurationError(f"--oracle: {crash.finding.message} {crash.finding.evidence.get(AT, '')}".rstrip())
        if crash is not None:
            raise crash
        raise ConfigurationError(f"--oracle: the policy {self._oracle.name!r} knows no turn of any episode.")

    def raised(self, error: BaseException) -> bool:
        """Whether an exception was raised under a method of the environment, which a rule has called itself."""
        kind = type(self.env.unwrapped)
        return any(isinstance(f.f_locals.get("self"), kind) for f, _ in traceback.walk_tb(error.__traceback__))

    # --- calls -------------------------------------------------------------------------------------------------------

    def make(self) -> TextEnv:
        """Make an instance, which is closed after the rule.

        Raises:
            Crash: the constructor raised or hung.
        """
        env: TextEnv = self.guard("the constructor", self._make)
        self._instances.append(env)
        return env

    def close_instances(self) -> None:
        """Close what `make` made since the last call, but `env`: instances may hold sessions of a server."""
        instances, self._instances = self._instances, []
        for env in instances:
            if env is not self.__dict__.get("env"):
                with contextlib.suppress(Crash, TooManyHangs):
                    self.guard("close", env.close)

    def close(self, env: TextEnv) -> None:
        """Close an instance that `make` made before the rule ends; what it raises is a crash."""
        self._instances = [instance for instance in self._instances if instance is not env]
        with contextlib.suppress(Crash):
            self.guard("close", env.close)

    def guard(self, what: str, call: Callable[[], Any], episode: Episode | None = None) -> Any:
        """Call the environment, and return what it returns.

        Args:
            what: name of the call, for messages.
            call: the call.
            episode: the episode so far, for the reproduction.

        Raises:
            Crash: the call raised, or took longer than `Settings.call_seconds`.
            TooManyHangs: it is the second call that hangs under this rule.
        """
        self.on_call(1)
        try:
            with time_limit(self.settings.call_seconds):
                returned = call()
            if os.getpid() != self._pid:
                self.on_fork(what)
                os._exit(1)
            return returned
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            crash = self._crash(what, error, episode)
            if not crash.is_backend:
                self.crashes.append(crash.finding)
            if isinstance(error, TimeLimitError):
                self.hangs += 1
                if self.hangs >= _MAX_HANGS:
                    raise TooManyHangs(f"{self.hangs} calls hung") from crash
            raise crash from error
        finally:
            self.on_call(-1)

    def _crash(self, what: str, error: BaseException, episode: Episode | None) -> Crash:
        raised = error.__cause__ if isinstance(error, GameError) and error.__cause__ is not None else error
        if isinstance(error, TimeLimitError):
            message = f"{what} did not return within {self.settings.call_seconds:g} s. Bound the work of a call."
        elif isinstance(error, SystemExit):
            message = (
                f"{what} raised SystemExit({error.code!r}), which ends a training run. Return an observation instead."
            )
        elif isinstance(error, MemoryError):
            message = f"{what} ran out of memory. Limit the size of what the model can ask for."
        elif isinstance(error, GameError) and error.__cause__ is None:
            message = f"What {what} returned is refused: {_one_line(error)}"
        else:
            remedy = "No text of a model, and no seed, may raise"
            remedy = _REMEDIES.get(what, remedy if not what.startswith("the policy") else "Correct the policy")
            message = f"{what} raised {type(raised).__name__}: {_one_line(raised)}. {remedy}."
        evidence: dict[str, Any] = {AT: place} if (place := place_of(raised)) else {}
        evidence["traceback"] = "".join(traceback.format_exception(error))[-1_500:]
        if episode is not None:
            evidence |= {"seed": episode.job.seed, "task_index": episode.job.task_index}
            evidence |= {TURN: excerpt(episode.actions[-1])} if episode.actions else {}
            code = self.reproduction(episode)
        else:
            code = self.making_code(f"env = MAKE\n{_CALLS[what]}") if what in _CALLS else ""
        finding = Finding("error", message, evidence, code)
        is_policy = what.startswith("the policy")
        return Crash(finding, is_backend=isinstance(error, InfrastructureError), is_policy=is_policy)

    def reset(self, env: TextEnv, job: Job) -> tuple[str, dict[str, Any]]:
        """Reset an instance to an episode.

        Raises:
            Crash: `reset` raised or hung.
        """
        options = {"task_index": job.task_index} if self.tool_env is not None else None
        returned: tuple[str, dict[str, Any]] = self.guard(
            "reset", lambda: env.reset(seed=job.seed, options=options), Episode(job, "")
        )
        return returned

    # --- episodes ----------------------------------------------------------------------------------------------------

    def play(
        self,
        policy: Policy,
        job: Job,
        env: TextEnv | None = None,
        *,
        max_turns: int = MAX_TURNS,
        seconds: float = math.inf,
    ) -> Episode:
        """Play an episode; whatever breaks it is recorded in it.

        Args:
            policy: who acts.
            job: task and seed.
            env: the instance; None: `self.env`.
            max_turns: turns after which the episode is left.
            seconds: time after which the episode is left.
        """
        deadline = time.monotonic() + seconds
        env = env or self.env
        episode = Episode(job, policy.name)
        try:
            session = Session(env, job, start=lambda: self.open(env, episode))
            while not session.ended and len(episode.actions) < max_turns and time.monotonic() < deadline:
                action = self._next_action(policy, session, episode)
                if action is None:
                    break
                step = self.step(env, action, episode)
                session.record_step(action, step)
            episode.solved = _solved(session)
        except Crash as crash:
            episode.crash = crash
        except BrokenError as broken:
            episode.breaches.append(str(broken))
        except TooManyHangs:
            raise
        except Exception as error:  # a session reads what the environment returned, which may be anything
            episode.breaches.append(f"what it returned cannot be read: {type(error).__name__}: {error!s:.200}")
        return episode

    def replay(self, job: Job, actions: Sequence[str], env: TextEnv | None = None) -> Episode:
        """Play an episode with given turns, as far as it goes."""
        return self.play(_Replay(actions), job, env, max_turns=len(actions))

    def episodes(self, policy: Policy) -> list[Episode]:
        """Return the episodes of a policy, played once for all rules.

        There is one for each of `jobs`, in their order; of a slow environment only for the first ones, at least two.
        """
        if policy.name not in self._episodes:
            share = self.settings.rule_seconds / _PLAYERS
            played: list[Episode] = []
            self._episodes[policy.name] = played
            for job in self.jobs:
                if len(played) <= 1:  # the first one may bear the cost of what is loaded once
                    deadline = time.monotonic() + share
                if len(played) >= _LEAST_EPISODES and time.monotonic() > deadline:
                    break
                played.append(self.play(policy, job, seconds=share))
        return self._episodes[policy.name]

    def replays(self, name: str, plans: Sequence[tuple[Job, Sequence[str]]]) -> list[Episode]:
        """Return episodes with given turns, played once for all rules; of a slow environment only the first ones.

        Args:
            name: name of the player whose turns they are.
            plans: the episodes, and the turns of each.
        """
        if name not in self._episodes:
            deadline = time.monotonic() + self.settings.rule_seconds / _PLAYERS
            played: list[Episode] = []
            self._episodes[name] = played
            for job, actions in plans:
                if len(played) >= _LEAST_EPISODES and time.monotonic() > deadline:
                    break
                played.append(self.replay(job, actions))
                played[-1].player = name
        return self._episodes[name]

    def _next_action(self, policy: Policy, session: Session, episode: Episode) -> str | None:
        """Return the policy's next turn; None if it knows none, as where an environment has no oracle."""
        try:
            return policy.act([session.state()])[0]
        except ConfigurationError:
            return None
        except Exception as error:
            crash = self._crash(f"the policy {policy.name!r}", error, episode)
            self.crashes.append(crash.finding)
            raise crash from error

    def open(self, env: TextEnv, episode: Episode) -> tuple[str, dict[str, Any]]:
        """Reset an instance to the job of `episode`, and record the opening.

        Raises:
            Crash: `reset` raised or hung.
            BrokenError: it returned something else than a text and a dictionary.
        """
        returned = self.reset(env, episode.job)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise BrokenError(f"reset returned {returned!r:.80}; expected a tuple of observation and info")
        observation, info = returned
        _check_state(observation, info, "reset")
        episode.opening = observation
        self._add_state(episode, observation, info)
        return observation, info

    def step(self, env: TextEnv, action: str, episode: Episode) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a step, and record it in `episode`; a reward that is not a finite number is returned as 0.

        Raises:
            Crash: `step` raised or hung.
            BrokenError: it returned something else than Gymnasium's five values.
        """
        episode.actions.append(action)
        returned = self.guard("step", lambda: env.step(action), episode)
        if not (isinstance(returned, tuple) and len(returned) == 5):
            raise BrokenError(
                f"step returned {returned!r:.80}; expected (observation, reward, terminated, truncated, info)"
            )
        observation, reward, terminated, truncated, info = returned
        _check_state(observation, info, "step")
        if not all(isinstance(flag, bool | np.bool_) for flag in (terminated, truncated)):
            raise BrokenError(f"terminated and truncated are {terminated!r:.40} and {truncated!r:.40}, not booleans")
        episode.rewards.append(reward)
        episode.flags.append((bool(terminated), bool(truncated)))
        self._add_state(episode, observation, info)
        number = float(reward) if is_finite(reward) else 0.0
        return observation, number, bool(terminated), bool(truncated), info

    def _add_state(self, episode: Episode, observation: str, info: dict[str, Any]) -> None:
        is_opening = not episode.infos
        episode.infos.append(info)
        episode.digests.append(digest(observation))
        if self.tool_env is None:
            episode.texts.append(observation)
        else:
            messages = info["messages" if is_opening else "new_messages"]
            episode.texts.append("\n".join(message.content for message in messages if message.role != "assistant"))

    # --- reproduction ------------------------------------------------------------------------------------------------

    def reproduction(self, *episodes: Episode, anew: bool = False, printing: bool = True) -> str:
        """Write Python code that plays episodes again, one after the other, and prints what came back.

        Args:
            episodes: the episodes.
            anew: play each of them on an instance of its own, rather than all on one.
            printing: print observations, rewards and flags.
        """
        parts = [self.replay_code(episode, printing=printing) for episode in episodes]
        made = "env = MAKE\n"
        return self.making_code("".join(made + part for part in parts) if anew else made + "".join(parts))

    def info_code(self, episode: Episode, step: int) -> str:
        """Write Python code that plays an episode up to a step, 0 for its opening, and prints the `info` of it."""
        head = Episode(episode.job, episode.player, actions=episode.actions[:step])
        return f"{self.reproduction(head)}print(info)\n"

    def making_code(self, lines: str = "env = MAKE\n") -> str:
        """Write Python code with the imports of the environment, and `lines`; in them, `MAKE` makes an instance."""
        if self.target is None:
            return lines.replace("MAKE", "...  # made in this process only")
        return self.target.code(lines)

    def replay_code(self, episode: Episode, env: str = "env", *, printing: bool = True) -> str:
        """Write Python code that plays an episode on the instance of the name `env`."""
        returned = f", return {episode.total:.4g}" if episode.rewards else ""
        lines = [f"# {episode.player or 'an episode'}{returned}", self.reset_line(episode.job, env)]
        lines += [PRINT_OPENING] if printing else []
        for action in episode.actions:
            lines += [step_line(action, env), *([PRINT_STEP] if printing else [])]
        return "\n".join([*lines, ""])

    def reset_line(self, job: Job, env: str = "env") -> str:
        """Write the line that opens the episode of a job."""
        return reset_line(job.seed, job.task_index if self._has_tasks() else None, env)

    def _has_tasks(self) -> bool:
        with contextlib.suppress(Crash, AgentR1Error):
            return self.tool_env is not None
        return False


class _TextPolicy(Policy):
    """A function that returns the next turn.

    Args:
        name: its name.
        function: takes the texts of the episode, from the first observation on: those of others and its own.
    """

    def __init__(self, name: str, function: Callable[[list[str]], str]) -> None:
        self.name, self._function = name, function

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Return what the function does."""
        return [self._turn(state) for state in inputs]

    def _turn(self, state: PolicyInput) -> str:
        turn = self._function([message.content for message in state.messages])
        if not isinstance(turn, str):
            raise TypeError(f"it returned {turn!r:.80}, not the text of a turn")
        return turn


def _named_policy(spec: str) -> Policy:
    """Make the policy that `--oracle` names: one of `make_policy`, or a function as MODULE:NAME.

    Raises:
        ConfigurationError: no policy has that name, or it cannot be made.
    """
    try:
        module, _, name = spec.partition(":")
        named = import_object(spec) if name and module not in ("replay", "script") else None
        policy = _TextPolicy(spec, named) if isinstance(named, FunctionType) else make_policy(spec)
    except AgentR1Error:
        raise
    except Exception as error:  # of a module or a constructor of the user
        raise ConfigurationError(f"--oracle: {spec} raised {type(error).__name__}: {_one_line(error)}.") from error
    if not isinstance(getattr(policy, "name", None), str):
        policy.name = spec
    return policy


class BrokenError(Exception):
    """A return value that Gymnasium's interface does not allow; the episode cannot continue."""


class _Replay(Policy):
    """Plays given turns."""

    name = "replay"

    def __init__(self, actions: Sequence[str]) -> None:
        self._actions = actions

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """Return the turn at this position."""
        return [self._actions[state.turn] for state in inputs]


def _ignore(_value: int | str) -> None:
    """Do nothing."""


def _solved(session: Session) -> bool | None:
    if session.tool_env is None:
        success = session.raw_info.get("is_success")
        return bool(success) if isinstance(success, bool | np.bool_) else None
    score = session.record().scores.get("em")
    return None if score is None else score >= 1.0


def _check_state(observation: Any, info: Any, call: str) -> None:
    if not isinstance(observation, str):
        raise BrokenError(f"{call} returned an observation of type {type(observation).__name__}, not a string")
    if not isinstance(info, dict):
        raise BrokenError(f"{call} returned info of type {type(info).__name__}, not a dictionary")


def digest(text: str) -> str:
    """Return a short hash of a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def excerpt(text: str) -> str:
    """Return the end of a text, for evidence."""
    return text if len(text) <= _MAX_QUOTE else f"... {text[-_MAX_QUOTE:]}"


def place_of(error: BaseException) -> str:
    """Return file, line and function where an exception was raised, in the code of the environment if it is in it."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    return "".join(f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in (own or frames)[-1:])


def _one_line(error: BaseException) -> str:
    return f"{' '.join(str(error).split()).rstrip('.'):.200}"
