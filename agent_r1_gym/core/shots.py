"""Shots: worked episodes that stand before the task as real turns, so that a model sees the format in use.

An example inside the system turn hardly helps a small model; the same example as user, assistant and tool turns does.
The oracle of the environment plays them on training tasks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from agent_r1_gym.core.types import ScriptedTurn, Task, Thought, ToolCall, ToolOutcome, Transition
from agent_r1_gym.errors import ConfigurationError

if TYPE_CHECKING:
    from agent_r1_gym.core.tool_env import ToolEnv

MAX_SHOTS = 16
_TRIES_PER_SHOT = 20


@dataclass(frozen=True, slots=True)
class ShotTurn:
    """A turn of a worked episode, in no particular format.

    Attributes:
        action: one or several calls, or the final answer; with the reason where the oracle knows it.
        outcomes: what each call returned, as the model reads it; () for an answer.
    """

    action: ScriptedTurn
    outcomes: tuple[ToolOutcome, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the turn as plain data: "call" and "outcome", "calls" and "outcomes", or an "answer"."""
        thought, action = ("", self.action) if not isinstance(self.action, Thought) else _parts(self.action)
        data: dict[str, Any] = {"thought": thought} if thought else {}
        if isinstance(action, str):
            return {**data, "answer": action}
        calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in _as_tuple(action)]
        outcomes = [outcome.content for outcome in self.outcomes]
        if isinstance(action, ToolCall):
            return {**data, "call": calls[0], **({"outcome": outcomes[0]} if outcomes else {})}
        return {**data, "calls": calls, "outcomes": outcomes}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned."""
        action: ToolCall | tuple[ToolCall, ...] | str
        if "call" in data:
            action = ToolCall(data["call"]["name"], data["call"]["arguments"])
        elif "calls" in data:
            action = tuple(ToolCall(call["name"], call["arguments"]) for call in data["calls"])
        else:
            action = str(data["answer"])
        contents = [data["outcome"]] if "outcome" in data else data.get("outcomes", ())
        outcomes = tuple(ToolOutcome(str(content)) for content in contents)
        return cls(Thought(str(data["thought"]), action) if data.get("thought") else action, outcomes)


def _parts(thought: Thought) -> tuple[str, ToolCall | tuple[ToolCall, ...] | str]:
    return thought.text, thought.action


def _as_tuple(calls: ToolCall | tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    return calls if isinstance(calls, tuple) else (calls,)


@dataclass(frozen=True, slots=True)
class Shot:
    """A worked episode.

    Attributes:
        task_id: the task that it solves.
        prompt: its user turn.
        turns: what an agent did, in order.
    """

    task_id: str
    prompt: str
    turns: tuple[ShotTurn, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the shot as plain data, as agent.json stores it."""
        turns = [turn.to_dict() for turn in self.turns]
        return {"task_id": self.task_id, "prompt": self.prompt, "turns": turns}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` returned.

        Raises:
            ConfigurationError: `data` is not of that form.
        """
        try:
            turns = tuple(map(ShotTurn.from_dict, data["turns"]))
            return cls(str(data["task_id"]), str(data["prompt"]), turns)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(
                'A shot is an object with "task_id", "prompt" and "turns", each turn with a "call" ("name", and '
                f'"arguments" as an object) and its "outcome", or an "answer"; got {data!r:.120}.'
            ) from error


def read_shots(shots: Any) -> int | tuple[Shot, ...]:
    """Check the option `shots` of an environment: a number of shots to draw, or the shots themselves.

    Raises:
        ConfigurationError: it is neither.
    """
    if isinstance(shots, int) and not isinstance(shots, bool) and 0 <= shots <= MAX_SHOTS:
        return shots
    if isinstance(shots, list | tuple) and len(shots) <= MAX_SHOTS:
        return tuple(shot if isinstance(shot, Shot) else Shot.from_dict(shot) for shot in shots)
    raise ConfigurationError(f"shots must be a number from 0 to {MAX_SHOTS}, or a list of shots, got {shots!r:.80}.")


def draw_shots(env: ToolEnv, number: int, seed: int) -> Iterator[tuple[int, Shot]]:
    """Play the oracle on training tasks drawn by a seed, and yield the position and the shot of those that it solves.

    An episode counts if the oracle earns the full score, no call of it fails and, where there are tools, it calls one.

    Args:
        env: an environment of its own, on the training split.
        number: of shots.
        seed: of the draw.

    Raises:
        ConfigurationError: the environment has no oracle, or it solves too few tasks.
    """
    generator, drawn, found = random.Random(seed), set[int](), 0
    size = len(env.tasks)
    while found < number:
        if len(drawn) >= min(size, number * _TRIES_PER_SHOT):
            raise ConfigurationError(
                f"shots={number} needs an oracle that solves training tasks, but of {len(drawn)} tasks it solved "
                f"{found} with a call and without a failed one. Check it with `--policy oracle`, or pass the shots "
                "themselves."
            )
        index = generator.randrange(size)
        if index in drawn:
            continue
        drawn.add(index)
        if not env.has_solution(env.tasks[index]):
            continue
        shot = _play_oracle(env, index)
        if shot is not None:
            found += 1
            yield index, shot


def _play_oracle(env: ToolEnv, index: int) -> Shot | None:
    """Play the oracle on a task; None if the episode is not an example to follow."""
    _, info = env.reset(seed=index, options={"task_index": index})
    prompt, actions = info["messages"][-1].content, list[ScriptedTurn]()
    terminated = truncated = False
    while not (terminated or truncated):
        action = env.oracle(env.task, env.transitions)
        if action is None:
            raise ConfigurationError(
                f"shots needs an oracle, but task {env.task.id!r} has none: override `oracle(task, history)`, or pass "
                "the shots themselves."
            )
        actions.append(action)
        _, _, terminated, truncated, info = env.step(env.parser.format_turn(action))
    if not terminated or not _is_example(env, env.task, env.transitions, info["answer"]):
        return None
    outcomes = [transition.outcomes for transition in env.transitions]
    return Shot(env.task.id, prompt, tuple(map(ShotTurn, actions, outcomes)))


def _is_example(env: ToolEnv, task: Task, history: Sequence[Transition], answer: str | None) -> bool:
    outcomes = [outcome for transition in history for outcome in transition.outcomes]
    if any(transition.parsed.errors for transition in history) or not all(outcome.ok for outcome in outcomes):
        return False
    if env.toolbox.by_name and not outcomes:
        return False
    success = env.success(task, history)
    if success is None:
        success = env.scorer.em(answer, task.answers) if answer is not None and task.answers else 0.0
    return success >= 1.0


def shortened(outcome: ToolOutcome, max_chars: int) -> ToolOutcome:
    """Cut a long outcome, so that its text ends in "..."."""
    text = outcome.content
    return outcome if len(text) <= max_chars else replace(outcome, content=f"{text[:max_chars].rstrip()} ...")


class TasksWithoutShots(Sequence[Task]):
    """The tasks of an environment without those that its shots solve.

    Args:
        tasks: all tasks.
        excluded: positions of those that are used as shots.
    """

    def __init__(self, tasks: Sequence[Task], excluded: Sequence[int]) -> None:
        self._tasks = tasks
        self._excluded = sorted(set(excluded))

    @property
    def held_out_splits(self) -> Sequence[str]:
        """Splits never trained on, if the tasks define any."""
        return tuple(getattr(self._tasks, "held_out_splits", ()))

    def describe(self) -> str:
        """Describe the tasks, and how many are used as shots."""
        described = self._tasks.describe() if hasattr(self._tasks, "describe") else f"{len(self._tasks)} tasks"
        return f"{described}, without {len(self._excluded)} used as shots"

    def __len__(self) -> int:
        return len(self._tasks) - len(self._excluded)

    def __getitem__(self, index: int) -> Task:  # type: ignore[override]  # no slices
        if not -len(self) <= index < len(self):
            raise IndexError(f"Index {index} is out of range: there are {len(self)} tasks.")
        position = index % len(self)
        for excluded in self._excluded:
            position += position >= excluded
        return self._tasks[position]
