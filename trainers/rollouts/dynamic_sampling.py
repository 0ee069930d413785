"""Groups of rollouts without signal are replaced by groups of other tasks (DAPO's dynamic sampling, arXiv 2503.14476).

Where all rollouts of a task earned the same, none is better than the others: the group teaches nothing.
"""

from __future__ import annotations

import functools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from datasets import Dataset

from agent_r1_gym.run.record import Trajectory
from trainers.algorithms.metrics import ZERO_STD_EPS
from trainers.rollouts.collect import Row

Key = tuple[Any, ...]
"""Which task a row is."""


class ResampleResult(NamedTuple):
    """What refilling a batch took.

    Attributes:
        played: rollouts that were played for it.
        replaced: groups that were replaced.
        left: groups without signal that are still there.
    """

    played: int
    replaced: int
    left: int


def has_signal(group: Sequence[Trajectory], *, gamma: float = 1.0) -> bool:
    """Whether the returns of a group, discounted from turn to turn, differ; those of failed backends do not count."""
    returns = [
        sum(gamma**number * turn.reward for number, turn in enumerate(record.turns))
        for record in group
        if not record.infrastructure_error
    ]
    return len(returns) > 1 and max(returns) - min(returns) > ZERO_STD_EPS


def resample_groups(
    rows: list[Row],
    records: list[Trajectory],
    *,
    size: int,
    rounds: int,
    draw: Callable[[Row], Row],
    play: Callable[[list[Row], int], Sequence[Trajectory]],
    gamma: float = 1.0,
    out_of_time: Callable[[], bool] = lambda: False,
) -> ResampleResult:
    """Replace groups without signal, in place, by groups of other tasks that have some.

    A task is drawn once per round for each group that is still without; a batch is never filled with rollouts that
    ended early, as it would be if more were begun than are needed.

    Args:
        rows: what was played; the copies of a row stand together.
        records: how it went.
        size: rollouts of a group.
        rounds: maximum number of times that a group is tried again.
        draw: returns another row, given the one to replace.
        play: plays rows, given the number of the round, counted from 1.
        gamma: discount of returns.
        out_of_time: whether there is no time for another round.
    """
    if len(rows) % size:
        raise ValueError(f"{len(rows)} rows are no whole number of groups of {size}.")
    groups = [slice(start, start + size) for start in range(0, len(rows), size)]
    without = [group for group in groups if not has_signal(records[group], gamma=gamma)]
    first, played = len(without), 0
    for attempt in range(1, rounds + 1):
        if not without or out_of_time():
            break
        new = [row for group in without for row in [draw(rows[group][0])] * size]
        new_records = play(new, attempt)
        played += len(new_records)
        parts = [slice(start, start + size) for start in range(0, len(new), size)]
        still: list[slice] = []
        for group, part in zip(without, parts, strict=True):
            if has_signal(new_records[part], gamma=gamma):
                rows[group], records[group] = new[part], new_records[part]
            else:
                still.append(group)
        without = still
    return ResampleResult(played, first - len(without), len(without))


def make_row_sampler(
    rows: Sequence[Row],
    used_keys: Iterable[Key],
    *,
    seed: int,
    part: tuple[int, int] = (0, 1),
) -> Callable[[Row], Row]:
    """Make a function that draws rows at random, of the environment of the one to replace, each at most once.

    Args:
        rows: all tasks.
        used_keys: keys of those that are in the batch, of all processes.
        seed: of the drawing.
        part: number of this process, and of how many: each draws from different rows.
    """
    number, processes = part
    used = set(used_keys)

    @functools.cache  # built once the first row is drawn
    def indices_by_env() -> Mapping[Any, list[int]]:
        indices: dict[Any, list[int]] = defaultdict(list)
        for index, env in list(enumerate(_env_column(rows)))[number::processes]:
            indices[env].append(index)
        rng = random.Random(seed)
        for candidates in indices.values():
            rng.shuffle(candidates)
        return indices

    def draw(row: Row) -> Row:
        candidates = indices_by_env()[row.get("env")]
        while candidates:
            drawn = rows[candidates.pop()]
            if task_key(drawn) not in used:
                return drawn
        return row  # there is no other: another try at this one

    return draw


def _env_column(rows: Sequence[Row]) -> Sequence[Any]:
    """Return the environment of each row, None where rows do not name it; a data set decodes no other column."""
    if not isinstance(rows, Dataset):
        return [row.get("env") for row in rows]
    return rows["env"][:] if "env" in rows.column_names else [None] * len(rows)


def task_key(row: Row) -> Key:
    """Identify a task."""
    return row.get("env"), row.get("task_index"), row.get("seed")
