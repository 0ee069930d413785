"""Trajectory: one finished episode as data, for traces, metrics and training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agent_r1_gym.errors import DatasetError
from agent_r1_gym.types import Message


@dataclass(frozen=True, slots=True)
class Turn:
    """One model turn of a trajectory.

    Attributes:
        action: what the model wrote.
        reward: reward of the step.
        reward_terms: raw terms by name.
        outcome_errors: for each call of the turn, in order, the error kind of its outcome, None if it went well.
        parse_errors: codes of the mistakes in the turn.
    """

    action: str
    reward: float
    reward_terms: dict[str, float]
    outcome_errors: tuple[str | None, ...] = ()
    parse_errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished episode.

    Attributes:
        env_id: registered id, "" if the environment has none.
        dataset: what was served.
        policy: who acted.
        task_id: id of the task.
        task_index: position of the task in its data set.
        gold_answers: accepted answers.
        answer: the given answer, None if none was given.
        messages: the whole history.
        turns: the model's turns.
        terminated: the task ended by its own rules.
        truncated: a budget ran out.
        end_reason: see `ToolEnv`.
        infrastructure_error: what backend failed, None if none did; such a trajectory should not be scored.
    """

    env_id: str
    dataset: str
    policy: str
    task_id: str
    task_index: int
    gold_answers: tuple[str, ...]
    answer: str | None
    messages: tuple[Message, ...]
    turns: tuple[Turn, ...]
    terminated: bool
    truncated: bool
    end_reason: str
    infrastructure_error: str | None = None

    @property
    def episode_return(self) -> float:
        """Sum of the rewards, undiscounted."""
        return sum(turn.reward for turn in self.turns)

    def to_json(self) -> str:
        """Returns the trajectory as one line of JSON."""
        row = asdict(self)
        row["messages"] = [message.to_dict() for message in self.messages]
        return json.dumps(row, ensure_ascii=False)


def read_trace(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of a trace file (JSON Lines, as `Trajectory.to_json` writes them).

    Raises:
        DatasetError: the file is missing, or a line is not such a row.
    """
    if not path.is_file():
        raise DatasetError(f"There is no trace file {path}; expected JSON Lines as `agent-r1 rollout` writes them.")
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            yield _read_row(path, number, line)


def _read_row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        actions_ok = all(isinstance(turn["action"], str) for turn in row["turns"])
        if actions_ok and isinstance(row["task_id"], str) and isinstance(row["task_index"], int):
            return dict(row)
        problem = "task_id, task_index or an action has a wrong type"
    except (ValueError, KeyError, TypeError) as error:
        problem = f"{type(error).__name__}: {error}"
    raise DatasetError(
        f"{path}, line {number}: expected an object with task_id (text), task_index (integer) and turns with an action "
        f"(text) each; {problem}; got {line[:80]!r}."
    )


def append_trace(path: Path, trajectories: Iterable[Trajectory]) -> None:
    """Appends trajectories to a trace file, a whole line at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as lines:
        for trajectory in trajectories:
            lines.write(trajectory.to_json() + "\n")
            lines.flush()
