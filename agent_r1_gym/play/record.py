"""Trajectory: one finished episode as data, for traces, metrics and training."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
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
        prompt_tokens: tokens that the model was shown, None if nobody counted or no model spoke.
        completion_tokens: tokens that the model wrote, likewise.
    """

    action: str
    reward: float
    reward_terms: dict[str, float]
    outcome_errors: tuple[str | None, ...] = ()
    parse_errors: tuple[str, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


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
        end_reason: see `ToolEnv`; or "max_tokens", "no_answer", "interrupted" (see `rollout.Episode`).
        infrastructure_error: what backend failed, None if none did; such a trajectory should not be scored.
        support_recall: share of the task's gold passages that the searches brought back, None if it names none.
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
    support_recall: float | None = None

    @property
    def episode_return(self) -> float:
        """Sum of the rewards, undiscounted."""
        return sum(turn.reward for turn in self.turns)

    def to_dict(self) -> dict[str, Any]:
        """Returns the trajectory as data that JSON can hold."""
        row = {name: getattr(self, name) for name in self.__slots__}  # asdict would copy every text
        row["turns"] = [{name: getattr(turn, name) for name in turn.__slots__} for turn in self.turns]
        row["messages"] = [message.to_dict() for message in self.messages]
        return row

    def to_json(self) -> str:
        """Returns the trajectory as one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class TokenTurn:
    """The tokens of one model turn.

    Attributes:
        start: index in `completion_ids` of the first token that the model sampled in this turn.
        end: index after the last one.
        reward: reward of the step.
    """

    start: int
    end: int
    reward: float


@dataclass(frozen=True, slots=True)
class TokenTrajectory:
    """One episode as tokens, for training. Every token got its id, its mask and its log-prob when it was made.

    Where the context was rewritten between turns, the trajectory consists of several rows, laid one after another: each
    is a context of its own, and what stands in earlier rows was not before the model any more.

    Attributes:
        prompt_ids: tokens before the first model turn.
        completion_ids: all later tokens: the model's, and those that the environment and the chat template added.
        loss_mask: 1 for tokens that the model sampled, 0 for all others; as long as `completion_ids`.
        logprobs: log-probability of each sampled token under the sampling distribution's policy, None for others.
        turns: spans of the model's turns, in order.
        terminated: the task ended by its own rules.
        truncated: a budget ran out.
        infrastructure_error: what backend failed, None if none did; such a trajectory is excluded from the update.
        metrics: numbers to log (reward terms, calls, failures ...).
        row_starts: indices in `completion_ids` at which a further row begins: its tokens up to the next turn are the
            rewritten context, from its first token on. Empty if the context only grew.

    Raises:
        ValueError: lengths, masks, spans or rows do not fit together.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    turns: tuple[TokenTurn, ...]
    terminated: bool
    truncated: bool
    infrastructure_error: str | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    row_starts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        self._check_alignment()
        self._check_rows()

    def _check_alignment(self) -> None:
        length = len(self.completion_ids)
        if len(self.loss_mask) != length or len(self.logprobs) != length:
            raise ValueError(
                f"completion_ids, loss_mask and logprobs must be equally long, got {length}, {len(self.loss_mask)} and "
                f"{len(self.logprobs)}."
            )
        sampled = [False] * length
        end_before = 0
        for turn in self.turns:
            if not end_before <= turn.start < turn.end <= length:
                raise ValueError(f"Turn spans must be non-empty, in order and inside 0..{length}, got {self.turns}.")
            sampled[turn.start : turn.end] = [True] * (turn.end - turn.start)
            end_before = turn.end
        for position, (mask, logprob) in enumerate(zip(self.loss_mask, self.logprobs, strict=True)):
            if not bool(mask) == sampled[position] == (logprob is not None):
                raise ValueError(
                    f"Token {position}: loss_mask {mask}, log-prob {logprob} and the turn spans {self.turns} disagree "
                    "on whether the model sampled it."
                )

    def _check_rows(self) -> None:
        """A row begins after a turn, with a context of at least one token before the next turn."""
        spans = [(0, 0), *((turn.start, turn.end) for turn in self.turns)]
        gaps = [(end, start) for (_, end), (start, _) in pairwise(spans)]
        found = [next((gap for gap in gaps[1:] if gap[0] <= start < gap[1]), None) for start in self.row_starts]
        if None in found or len(set(found)) < len(found) or list(self.row_starts) != sorted(self.row_starts):
            raise ValueError(
                f"row_starts must stand in order between two turns each, with a context before the second one, got "
                f"{self.row_starts} beside the turns {self.turns}."
            )


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
