"""Rescore recorded episodes with another reward, without playing them again and without their tools.

A record holds the turns, the messages, and the result of each call. The transitions of an episode are rebuilt from them
with the parser of the environment, and the reward terms are applied. Structured tool data (`ToolOutcome.data`) is not
recorded, nor is with `feedback="short"` the text of a failed call: a term that reads them is copied from the record if
the run had the same term, and rejected by name otherwise.

A judge's values are compared with gold where there is gold. Episodes on which it failed are listed with the run's
infrastructure failures, and not scored.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium

from agent_r1_gym.core.judge import Judge
from agent_r1_gym.core.parsing import Parser
from agent_r1_gym.core.rewards import RewardSet, RewardTerm, prepare_rewards
from agent_r1_gym.core.text import encodable
from agent_r1_gym.core.tool_env import ToolEnv, drop_calls_over_limit
from agent_r1_gym.core.types import ParsedTurn, Task, ToolOutcome, Transition
from agent_r1_gym.errors import ConfigurationError, DatasetError, InfrastructureError
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.evaluation.agreement import agreement
from agent_r1_gym.run.evaluation.metrics import Summary, summarize
from agent_r1_gym.run.evaluation.run_folder import InfraFailure, RunFolder
from agent_r1_gym.run.mixture import EnvConfig
from agent_r1_gym.run.record import Trajectory, Turn
from agent_r1_gym.run.trust import Trust, remember
from agent_r1_gym.support.files import new_folder

_TRUNCATED_BY_ENV = ("max_turns", "max_history")
_TRUNCATED_BY_SESSION = ("max_tokens", "max_context", "max_time", "no_answer")
"""End reasons with which a session truncates an episode after its last turn (`Session.truncate`)."""


class NotRecordedError(Exception):
    """A reward term read a field that is not recorded."""


class RecordedOutcome(ToolOutcome):
    """A recorded tool outcome: `ok`, `error`, and as `content` the sanitised text of the tool (None: not recorded).

    Other fields raise: a silent None would score as if the tool had returned nothing.
    """

    __slots__ = ()

    def __init__(self, text: str | None, error: str | None) -> None:
        for name, value in (("content", text), ("ok", error is None), ("error", error)):
            if name != "content" or text is not None:
                object.__setattr__(self, name, value)  # the base class is frozen

    def __getattr__(self, name: str) -> Any:
        if name in ToolOutcome.__slots__:
            raise NotRecordedError
        raise AttributeError(name)


def rescore(run: Path, out: Path, reward: Sequence[str] | None = None, *, trust: Trust) -> Summary:
    """Write the episodes of a run with another reward into a new run folder, and return its `metrics.json`.

    Args:
        run: folder of a complete evaluation, which is not changed.
        out: new folder.
        reward: see `rewards.make_rewards`; None: the environment's current reward. The metrics have the `agreement`
            of each judge among them, by term.
        trust: what the caller vouches for: `run.json` names the environment.

    Raises:
        ConfigurationError: `run.json` names what it may not, the run cannot be rescored from its records, or `out` is
            not empty.
        DatasetError: `run` is not a run folder.
        InfrastructureError: the judge failed on every episode.
    """
    source = RunFolder(run)
    settings = source.settings()
    if not source.complete:
        raise ConfigurationError(f"{run} is not complete; resume it first.")
    (recorded,) = trust.vet(
        source.run_path, [EnvConfig(env_id=settings["env_id"], options=settings.get("env_options") or {})]
    )
    recorded_options = dict(recorded.options)
    options = dict(recorded_options)
    if reward is not None:
        options.pop("reward_weights", None)  # weights of the old terms
        options["reward"] = list(reward)
    recorded_env = tool_env(recorded.env_id, recorded_options)
    env = recorded_env if reward is None else tool_env(recorded.env_id, options)
    seconds = source.seconds()
    played = source.episodes()
    if env.rewards.waits_for_backend:
        steps = (step for record in played for step in transitions(record, _task_of(record, env), env))
        ends = (step for step in steps if step.terminated or step.truncated)
        with contextlib.suppress(NotRecordedError):  # `_value` names the term
            prepare_rewards((env.rewards, step) for step in ends if _has_all_texts(step))
    rescored = [
        replace(
            rescore_episode(record, env, recorded_env.rewards), seconds=seconds.get((record.task_index, record.sample))
        )
        for record in played
    ]
    for each in (env, recorded_env):
        each.close()
    if not rescored:
        raise DatasetError(f"{source.episodes_path} holds no episode to score.")
    records = [record for record in rescored if record.infrastructure_error is None]
    if not records:
        raise InfrastructureError(
            f"No episode could be scored; the last error was: {rescored[-1].infrastructure_error}"
        )
    target, failures = RunFolder(new_folder(out)), source.failures()
    failures += [InfraFailure.of(record, 1) for record in rescored if record.infrastructure_error is not None]
    remember(out, [EnvConfig(env_id=recorded.env_id, options=options)])
    origin = {"run": str(run.resolve()), "reward_weights": env.reward_weights}
    target.open({**settings, "env_options": options, "rescored_from": origin}, {"reward_weights": env.reward_weights})
    for record in records:
        target.add(record)
    target.close()
    metrics = summarize(records, failures, samples=settings["samples"], seconds=target.seconds())
    judges = [term.name for term in env.rewards.terms if isinstance(term.function, Judge)]
    if agreements := {name: result for name in judges if (result := agreement(records, name)) is not None}:
        metrics["agreement"] = agreements
    target.finish(failures, metrics)
    return metrics


def tool_env(env_id: str, options: Mapping[str, Any]) -> ToolEnv:
    """Open the environment of a run, for its tasks, parser and reward.

    Raises:
        ConfigurationError: there is none of that id, or its reward is not made of terms.
    """
    env: gymnasium.Env[Any, Any] = make_text_env(env_id, options)
    bare = env.unwrapped
    if not isinstance(bare, ToolEnv):
        raise ConfigurationError(
            f"{env_id} is a {type(bare).__name__}, no ToolEnv: its reward is not made of terms that a record could be "
            "scored with."
        )
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.RewardWrapper):
            raise ConfigurationError(
                f"{env_id} is wrapped in {type(env).__name__}, which changes rewards by itself; register it without "
                "that wrapper, or play the episodes again."
            )
        env = env.env
    return bare


def rescore_episode(record: Trajectory, env: ToolEnv, recorded: RewardSet) -> Trajectory:
    """Recompute the rewards of an episode.

    Args:
        record: the episode.
        env: provides the tasks, the parser and the new reward.
        recorded: the reward of the run.

    Returns:
        The episode; with an `infrastructure_error` if the backend of a reward term failed.

    Raises:
        ConfigurationError: the task differs, a turn parses differently, or a term needs a field that is not recorded.
    """
    task = _task_of(record, env)
    env.rewards.check_tasks((task,))
    rewards = _reward_for(record, env.rewards, recorded)
    turns: list[Turn] = []
    failure = record.infrastructure_error
    for transition in transitions(record, task, env):
        step_reward = rewards.evaluate(transition)
        if step_reward.failure is not None:
            failure = f"reward: {step_reward.failure}"
        if transition.turn < len(record.turns):
            played = record.turns[transition.turn]
            now = replace(
                played, reward=step_reward.reward, reward_terms=step_reward.terms, outcome_reward=step_reward.outcome
            )
            turns.append(now)
        elif turns:  # the end from outside
            turns[-1] = turns[-1].with_end_reward(step_reward)
    return replace(record, turns=tuple(turns), infrastructure_error=failure)


def transitions(record: Trajectory, task: Task, env: ToolEnv) -> Iterator[Transition]:
    """Rebuild the transitions of a recorded episode; a last one without a turn if it was truncated from outside.

    Args:
        record: the episode.
        task: its task.
        env: provides the parser.

    Raises:
        ConfigurationError: a turn parses differently than when it was played.
    """
    earlier: tuple[Transition, ...] = ()
    replies = _replies(record)
    tools = tuple(env.make_tools(task))
    if tools != env.toolbox.tools:
        env._set_tools(tools)  # a tool may play the user: then an answer is a call
    for number, turn in enumerate(record.turns):
        # Turns with too many calls, or over the history budget, had none executed; begin them in the same way.
        over_budget = not turn.call_errors
        parsed = drop_calls_over_limit(env.parse(turn.action), over_budget=over_budget)
        texts = replies[number][: len(parsed.calls)]
        last = number == len(record.turns) - 1
        as_played = [error.code for error in parsed.errors] == list(turn.parse_errors)
        as_played = as_played and (not last or parsed.answer == record.answer)
        if not as_played or not len(parsed.calls) == len(turn.call_errors) == len(texts):
            raise ConfigurationError(
                f"Turn {number + 1} of task {record.task_id!r} parses differently now: it had "
                f"{len(turn.call_errors)} calls and the errors {list(turn.parse_errors)}. The parser or its version "
                "has changed; play the episodes again."
            )
        shown = zip(texts, turn.call_errors, strict=True)
        outcomes = tuple(RecordedOutcome(_tool_text(text, error, env.parser), error) for text, error in shown)
        terminated = last and record.terminated
        truncated = last and record.end_reason in _TRUNCATED_BY_ENV
        transition = Transition(task, number, parsed, outcomes, terminated, truncated, earlier)
        yield transition
        earlier = (*earlier, transition)
    if record.end_reason in _TRUNCATED_BY_SESSION:
        yield Transition(task, len(earlier), ParsedTurn(), (), truncated=True, earlier=earlier)


def _has_all_texts(step: Transition) -> bool:
    """Return whether the record has the texts of all calls up to this step, as a judge needs them."""
    try:
        return all(isinstance(outcome.content, str) for each in (*step.earlier, step) for outcome in each.outcomes)
    except NotRecordedError:
        return False


def _replies(record: Trajectory) -> list[list[str]]:
    """Return for each turn the messages that followed it, up to the next turn."""
    after: list[list[str]] = []
    for message in record.transcript:
        if message.role == "assistant":
            after.append([])
        elif after:
            after[-1].append(message.content)
    missing = len(record.turns) - len(after)
    return [[]] * missing + after[max(0, -missing) :]


def _tool_text(shown: str, error: str | None, parser: Parser) -> str | None:
    """Take off what the format and a failure put around the text of a tool; None: only its code is recorded."""
    before, after = parser.show_outcome("\0").split("\0")
    text = shown.removeprefix(before).removesuffix(after)
    if error is None:
        return text
    return None if text == f"error {error}" else text.removeprefix(f"Error ({error}): ")


def _task_of(record: Trajectory, env: ToolEnv) -> Task:
    if 0 <= record.task_index < len(env.tasks):
        task = env.tasks[record.task_index]
        identity = (task.id, task.prompt, *task.answers)
        if tuple(map(encodable, identity)) == (record.task_id, record.question, *record.gold_answers):
            return task
    raise ConfigurationError(
        f"Task {record.task_index} of the run is {record.task_id!r}, which is no longer at that position: the data "
        "have changed. Rescore with the data of the run."
    )


def _reward_for(record: Trajectory, rewards: RewardSet, recorded: RewardSet) -> RewardSet:
    """Bind the reward to one episode, so that terms without their inputs fall back to recorded values."""
    known = {term.name for term in rewards.terms if any(_same(term, played) for played in recorded.terms)}
    terms = (
        replace(term, function=functools.partial(_value, record, term, term.name in known)) for term in rewards.terms
    )
    return RewardSet(tuple(terms))


def _value(record: Trajectory, term: RewardTerm, known: bool, transition: Transition) -> float:
    try:
        return term.function(transition)
    except NotRecordedError:
        is_end = transition.turn >= len(record.turns)  # from outside: its value is part of the last turn's
        recorded = record.turns[-1 if is_end else transition.turn].reward_terms
        if known and term.name in recorded:
            own = _value(record, term, known, transition.earlier[-1]) if is_end else 0.0
            return recorded[term.name] - own
        raise ConfigurationError(
            f"The reward term {term.name!r} reads a field of a tool outcome that is not recorded (data, latency or "
            "retry_after; with feedback='short' also the content of a failed call), and the run did not have this "
            "term. Drop the term (--reward takes single terms as MODULE:NAME too), or play the episodes again with "
            "this reward."
        ) from None


def _same(term: RewardTerm, other: RewardTerm) -> bool:
    """Return whether two terms have the same name and function."""
    return term.name == other.name and _parts(term.function) == _parts(other.function)


def _parts(function: Any) -> Any:
    """Make partials comparable: by function and arguments."""
    if isinstance(function, functools.partial):
        return function.func, function.args, function.keywords
    return function
