"""The graders: pure functions of a task, the final database, and what the agent did and said.

The checks are those of tau2-bench's evaluator, and so is their combination: the reward is the product of the checks
that the task's `reward_basis` names, and 0 for an episode that the user did not end. `benchmarks/agreement/tau2.py`
compares verdict by verdict with tau2-bench's own code. Statements about the conversation (NL_ASSERTION) are decided by
a judge, if there is one (`judge.StatementJudge`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_r1_gym.core.rewards import RewardTerm, malformed_call
from agent_r1_gym.core.types import ToolCall, ToolOutcome, Transition
from agent_r1_gym.envs.tau2.database import Changes, Database, differences
from agent_r1_gym.envs.tau2.tasks import GoldAction, Tau2Task
from agent_r1_gym.errors import ToolError

FAILURES = (
    *("unfinished", "missing_write", "wrong_write", "extra_write"),
    *("missing_action", "failed_assertion", "not_communicated", "false_statement"),
)
"""Why a task was not solved."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of all checks.

    Attributes:
        reward: 1 or 0.
        checks: result by check, of those in `tasks.REWARD_BASES` that were made.
        failures: the reasons for a reward of 0, some of `FAILURES`.
    """

    reward: float
    checks: Mapping[str, bool]
    failures: tuple[str, ...] = ()


def grade(
    task: Tau2Task,
    changes: Changes | None,
    calls: Sequence[ToolCall],
    messages: Sequence[str],
    *,
    statements: Sequence[bool] | None = None,
) -> Verdict:
    """Grade an episode.

    Args:
        task: its task.
        changes: the changed rows of the database when the user ended the conversation; None: it did not end it.
        calls: every call of agent and user, in order, also those that failed.
        messages: what the agent wrote to the user; its turns in the task's own history are added.
        statements: whether each statement about the conversation is true; None: no judge decided, and they are left
            out of the product.
    """
    if changes is None:
        return Verdict(0.0, {}, ("unfinished",))
    if not task.is_graded:
        return Verdict(1.0, {})
    messages = [*(turn.content for turn in task.history if turn.role == "assistant"), *messages]
    writes = [] if is_unchecked(task) else wrong_writes(task, changes)
    checks = {
        "DB": not writes,
        "ENV_ASSERTION": is_unchecked(task) or assertions_hold(task, changes),
        "ACTION": has_actions([*task.earlier_calls, *calls], task.actions or ()),
        "COMMUNICATE": all(is_communicated(text, messages) for text in task.communicate_info),
    }
    if statements is not None:
        checks["NL_ASSERTION"] = all(statements)
    failed = [check for check in task.reward_basis if not checks.get(check, True)]
    kinds = {
        "DB": writes,
        "ENV_ASSERTION": ["failed_assertion"],
        "ACTION": ["missing_action"],
        "COMMUNICATE": ["not_communicated"],
        "NL_ASSERTION": ["false_statement"],
    }
    failures = {kind for check in failed for kind in kinds[check]}
    return Verdict(float(not failed), checks, tuple(kind for kind in FAILURES if kind in failures))


def is_unchecked(task: Tau2Task) -> bool:
    """Whether a task has neither gold actions nor assertions: tau2-bench then passes any database."""
    return task.actions is None and task.env_assertions is None


def wrong_writes(task: Tau2Task, changes: Changes) -> list[str]:
    """How the final database differs from the one that the gold actions lead to; [] if it does not.

    "missing_write": a row that had to change did not; "wrong_write": it changed in another way; "extra_write": a row
    changed that had to stay.
    """
    tables, gold = task.world.tables, task.world.gold_changes(task)
    notes = task.world.operations.notes
    found = [place for place in differences(tables, changes, gold) if place[0] not in notes]
    if not found:
        return []
    done = set(differences(tables, changes, task.initial_changes))
    wanted = set(differences(tables, gold, task.initial_changes))
    kinds = [
        "extra_write" if place not in wanted else "wrong_write" if place in done else "missing_write" for place in found
    ]
    return list(dict.fromkeys(kinds))


def is_open(task: Tau2Task, changes: Changes) -> bool | None:
    """Whether a value that has to change did not yet; None where the database does not decide, or need not change."""
    gold = task.world.gold_changes(task)
    if "DB" not in task.reward_basis or not gold:
        return None
    states = [Database(task.world.tables, state) for state in (task.initial_changes, changes, gold)]
    places = [(table, key) for table in gold if table not in task.world.operations.notes for key in gold[table]]
    return any(_is_untouched(*(state.find(table, key) for state in states)) for table, key in places)


def _is_untouched(initial: Any, value: Any, gold: Any) -> bool:
    """Whether a value, or one within it, is still the initial one, and should not be."""
    if isinstance(initial, dict) and isinstance(value, dict) and isinstance(gold, dict):
        return any(_is_untouched(initial.get(name), value.get(name), gold[name]) for name in gold)
    return bool(value == initial != gold)


def assertions_hold(task: Tau2Task, changes: Changes) -> bool:
    """Whether the task's conditions hold on the final database; an operation that refuses does not hold."""
    operations = task.world.operations(Database(task.world.tables, copy.deepcopy(changes)))
    for assertion in task.env_assertions or ():
        try:
            result = getattr(operations, assertion.name)(**assertion.arguments)
        except ToolError:
            return False
        if result != assertion.expected:
            return False
    return True


def has_actions(calls: Sequence[ToolCall], actions: Iterable[GoldAction]) -> bool:
    """Whether each gold action is among the calls, in any order and also if the call failed."""
    return all(any(_matches(action, call) for call in calls) for action in actions)


def _matches(action: GoldAction, call: ToolCall) -> bool:
    """Compare the arguments that the action names; if it names none, those of the call, as tau2-bench does."""
    if action.call.name != call.name:
        return False
    compared = call.arguments.keys() if action.compared is None else action.compared
    made, gold = (
        {name: value for name, value in arguments.items() if name in compared}
        for arguments in (dict(call.arguments), dict(action.call.arguments))
    )
    return made == gold or not compared


def is_communicated(text: str, messages: Iterable[str]) -> bool:
    """Whether a message contains a text, in any case; commas in messages do not count ("1,628" has "1628")."""
    return any(text.lower() in message.lower().replace(",", "") for message in messages)


# --- reward terms ----------------------------------------------------------------------------------------------------


def verdict_of(transition: Transition) -> Verdict | None:
    """The verdict on an episode at its last transition, None before."""
    task = transition.task
    if not (transition.terminated or transition.truncated) or not isinstance(task, Tau2Task):
        return None
    calls: list[ToolCall] = []
    messages: list[str] = []
    for step in (*transition.earlier, transition):
        for call, outcome in zip(step.parsed.calls, step.outcomes, strict=True):
            if step.parsed.is_message:
                messages.append(str(call.arguments.get("text", "")))
                calls += user_calls(outcome)
            else:
                calls.append(call)
    return grade(
        task, _reported(transition, "changes"), calls, messages, statements=_reported(transition, "statements")
    )


def user_calls(outcome: ToolOutcome) -> list[ToolCall]:
    """The calls that the user made before a reply."""
    made = outcome.data.get("user_calls", ()) if isinstance(outcome.data, Mapping) else ()
    return [ToolCall(call["name"], call["arguments"]) for call in made]


def final_changes(transition: Transition) -> Changes | None:
    """The changed rows that the user's last reply reports; None if the user has not ended the conversation."""
    changes: Changes | None = _reported(transition, "changes")
    return changes


def _reported(transition: Transition, name: str) -> Any:
    """A part of the data of the user's last reply (see `users.UserTool`), None if it has none."""
    data = (outcome.data for outcome in transition.outcomes if isinstance(outcome.data, Mapping))
    return next((part[name] for part in data if name in part), None)


def solved(transition: Transition) -> float:
    """1 in the step that ends the episode if all checks pass, else 0."""
    verdict = verdict_of(transition)
    return 0.0 if verdict is None else verdict.reward


@dataclass(frozen=True)
class _Failure:
    """1 in the last step of an episode that failed for a reason."""

    kind: str

    def __call__(self, transition: Transition) -> float:
        verdict = verdict_of(transition)
        return float(verdict is not None and self.kind in verdict.failures)


SOLVED = RewardTerm("solved", solved)
_FAILURES = tuple(RewardTerm(kind, _Failure(kind), 0.0) for kind in FAILURES)
"""Of weight 0: they only report why."""
PRESETS: Mapping[str, tuple[RewardTerm, ...]] = {
    "em": (SOLVED, *_FAILURES),
    "process": (SOLVED, *_FAILURES, RewardTerm("malformed_call", malformed_call, -0.1, kind="process")),
}
"""Meaning of the usual reward presets in this environment."""
