"""Scripted agents: the gold player, which is the oracle, and near misses whose scores are the floor.

All of them talk as the policies ask: who are you, do you confirm, anything else. They end a conversation by asking
until the user ends it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent_r1_gym.core.types import ScriptedPolicy, Task, ToolCall, Transition
from agent_r1_gym.envs.tau2.banking import described, names_tool
from agent_r1_gym.envs.tau2.grading import user_calls
from agent_r1_gym.envs.tau2.knowledge import SEARCH
from agent_r1_gym.envs.tau2.language import YES
from agent_r1_gym.envs.tau2.tasks import GoldAction, Tau2Task

_WHO = "Hello! Could you please tell me your name, and your user id, e-mail address or zip code?"
_ELSE = "Is there anything else that I can help you with?"
_TRANSFERRED = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."
_REFUSAL = "I am sorry, but I cannot help you with that. Goodbye, and have a nice day."
_TRANSFER = "transfer_to_human_agents"
_MAX_QUESTIONS = 3


@dataclass
class _Progress:
    """How far an episode has got with a plan.

    Attributes:
        done: number of calls of the plan that were made, by the agent or the user.
        asked: messages since the last of them.
        last_reply: what the user said last.
        num_messages: messages in all.
    """

    done: int = 0
    asked: list[str] = field(default_factory=list)
    last_reply: str = ""
    num_messages: int = 0

    @classmethod
    def of(cls, plan: Sequence[GoldAction], history: Sequence[Transition]) -> _Progress:
        progress = cls()
        for step in history:
            for call, outcome in zip(step.parsed.calls, step.outcomes, strict=True):
                if step.parsed.is_message:
                    progress.asked.append(call.arguments["text"])
                    progress.last_reply = outcome.content
                    progress.num_messages += 1
                for made in user_calls(outcome) if step.parsed.is_message else [call]:
                    if progress.done < len(plan) and made.key == plan[progress.done].call.key:
                        progress.done += 1
                        progress.asked.clear()
        return progress


def play(
    task: Tau2Task,
    plan: Sequence[GoldAction],
    history: Sequence[Transition],
    closing: str = "",
    *,
    searches: bool = False,
) -> ToolCall | str:
    """The next turn of an agent that carries out a plan.

    Args:
        task: the task.
        plan: the calls, in order; those of the user are asked for.
        history: the episode so far.
        closing: what to tell the user at the end.
        searches: whether it looks for the documents that name an operation before it unlocks or gives it.
    """
    progress = _Progress.of(plan, history)
    if not progress.num_messages:
        return _WHO
    if progress.done < len(plan):
        action = plan[progress.done]
        call, arguments = action.call, json.dumps(dict(action.call.arguments))
        if searches and (search := _search(call, history)) is not None:
            return search
        if action.by_user:
            return f"Please do this: {call.name} {arguments}"
        is_confirmed = progress.asked and progress.last_reply == YES
        operations = task.world.operations
        is_free = not operations.asks_before_writes or call.name not in operations.writes
        if is_free or is_confirmed or len(progress.asked) > _MAX_QUESTIONS:
            return call
        return f"I am going to do this: {call.name} {arguments}. Do you confirm (yes/no)?"
    if any(action.call.name == _TRANSFER for action in plan):
        return f"{closing} {_TRANSFERRED}".strip()
    return f"{closing} Everything is done. {_ELSE}".strip()


def gold_plan(task: Tau2Task) -> list[GoldAction]:
    """The reference solution."""
    return list(task.actions or ())


def gold_turn(task: Tau2Task, history: Sequence[Transition], *, searches: bool = False) -> ToolCall | str:
    """The next turn of the reference solution, which tells the user all that it must (see `play`)."""
    return play(task, gold_plan(task), history, _closing_message(task), searches=searches)


def _search(call: ToolCall, history: Sequence[Transition]) -> ToolCall | None:
    """A search for what an operation does, unless a document has named it, or was searched for."""
    name = names_tool(call)
    if name is None:
        return None
    search = ToolCall(SEARCH, {"query": described(name)[0].split(". ")[0]})
    is_found = any(name in outcome.content for step in history for outcome in step.outcomes)
    is_repeated = any(made.key == search.key for step in history for made in step.parsed.calls)
    return None if is_found or is_repeated else search


def _closing_message(task: Tau2Task) -> str:
    return " ".join(f"For your information: {text}." for text in task.communicate_info)


# --- near misses -----------------------------------------------------------------------------------------------------


def _talk_only(env: Any, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Calls nothing, and asks until the user ends the conversation."""
    assert isinstance(task, Tau2Task)
    return play(task, (), history)


def _refuse(env: Any, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Refuses whatever the user wants."""
    return _REFUSAL


def _transfer(env: Any, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Hands every user over to a human at once."""
    assert isinstance(task, Tau2Task)
    return play(task, [GoldAction(ToolCall(_TRANSFER, {"summary": "The user needs help."}))], history)


def _silent(env: Any, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Carries out the reference solution, and tells the user nothing."""
    assert isinstance(task, Tau2Task)
    return play(task, gold_plan(task), history)


def _forgetful(env: Any, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Carries out the reference solution without its last write."""
    assert isinstance(task, Tau2Task)
    plan, writes = gold_plan(task), _write_positions(task)
    return play(task, [action for position, action in enumerate(plan) if position not in writes[-1:]], history)


def _careless(env: Any, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Carries out the reference solution with a wrong argument in the last write."""
    assert isinstance(task, Tau2Task)
    plan, writes = gold_plan(task), _write_positions(task)
    for position in writes[-1:]:
        plan[position] = replace(plan[position], call=with_wrong_argument(plan[position].call))
    return play(task, plan, history, _closing_message(task))


def _hasty(env: Any, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Carries out the writes of the reference solution in reverse order, and looks nothing up."""
    assert isinstance(task, Tau2Task)
    plan = gold_plan(task)
    return play(
        task, [plan[position] for position in reversed(_write_positions(task))], history, _closing_message(task)
    )


def _write_positions(task: Tau2Task) -> list[int]:
    """Positions of what changes something: the agent's writes, and whatever the user does."""
    writes = task.world.operations.writes
    return [position for position, action in enumerate(gold_plan(task)) if action.call.name in writes or action.by_user]


def with_wrong_argument(call: ToolCall) -> ToolCall:
    """Change one argument of a call, the last that is not an id, to another value of its kind."""
    arguments = dict(call.arguments)
    if not arguments:
        return call
    names = [name for name in arguments if not name.endswith(("_id", "_ids"))] or list(arguments)
    arguments[names[-1]] = _other(arguments[names[-1]])
    return ToolCall(call.name, arguments)


_OPPOSITES = {
    **{"no longer needed": "ordered by mistake", "ordered by mistake": "no longer needed", "yes": "no", "no": "yes"},
    **{"business": "economy", "economy": "business", "basic_economy": "economy"},
    **{"pending": "completed", "completed": "pending"},
}


def _other(value: Any) -> Any:
    if isinstance(value, list):
        return [_other(value[0]), *value[1:]] if value else value
    if isinstance(value, dict):
        name = list(value)[-1]
        return {**value, name: _other(value[name])}
    if isinstance(value, str) and value.startswith("{"):
        return _other_json(value)
    if isinstance(value, str):
        return _OPPOSITES.get(value, value[:-1] + ("1" if value.endswith("0") else "0"))
    return value + 1 if isinstance(value, int) else value


def _other_json(text: str) -> str:
    """Change the last argument of a call that is written within another."""
    try:
        arguments = json.loads(text)
    except ValueError:
        return text
    for name in list(arguments)[-1:]:
        value = arguments[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        arguments[name] = not value if isinstance(value, bool) else value + 1 if is_number else _other(value)
    return json.dumps(arguments)


SCRIPTS: Mapping[str, ScriptedPolicy] = {
    "talk_only": _talk_only,
    "refuse": _refuse,
    "transfer": _transfer,
    "silent": _silent,
    "forgetful": _forgetful,
    "careless": _careless,
    "hasty": _hasty,
}
