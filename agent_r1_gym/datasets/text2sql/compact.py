"""The compact style: one table and a few dozen words, for models of half a million weights.

The table `t` has a name, a size and three columns of values from three of five pools; which value stands in which
column only the table `v` tells, a dictionary with a row per value. No two splits share an order of pools.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent_r1_gym.datasets.text2sql.questions import Asked
from agent_r1_gym.datasets.text2sql.select import Condition, Select
from agent_r1_gym.support.sqlite import Reader

POOLS: tuple[tuple[str, ...], ...] = (
    ("red", "blue", "green", "white"),
    ("oslo", "rome", "cairo", "lima"),
    ("big", "small", "flat", "round"),
    ("wood", "steel", "glass", "paper"),
    ("cat", "dog", "owl", "fox"),
)
NAMES = ("ana", "ben", "cleo", "dan", "eva", "finn", "gus", "hana", "ivo", "jana", "kim", "leo")
LAYOUTS: tuple[tuple[int, ...], ...] = tuple(itertools.permutations(range(len(POOLS)), 3))
COLUMNS = ("alpha", "beta", "gamma")
_LARGEST = 9


@dataclass(frozen=True)
class Compact:
    """A small table.

    Attributes:
        seed: of its rows.
        layout: pool of each column.
        copies: number of fillings.
    """

    seed: str
    layout: tuple[int, ...]
    copies: int = 3

    @property
    def signature(self) -> str:
        """What a split is decided by: the order of the pools."""
        return " ".join(map(str, self.layout))

    def open(self, copy: int) -> Reader:
        """Returns a reader of one filling."""
        draw = random.Random(f"{self.seed}/rows/{copy}")
        database = sqlite3.connect(":memory:", check_same_thread=False)
        database.execute(f"CREATE TABLE t (name TEXT, {' TEXT, '.join(COLUMNS)} TEXT, size INTEGER)")
        database.execute("CREATE TABLE v (value TEXT, name TEXT)")
        rows = [
            (name, *(draw.choice(POOLS[pool]) for pool in self.layout), draw.randint(1, _LARGEST))
            for name in draw.sample(NAMES, len(NAMES))
        ]
        database.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?)", rows)
        held = [(value, column) for pool, column in zip(self.layout, COLUMNS, strict=True) for value in POOLS[pool]]
        database.executemany("INSERT INTO v VALUES (?, ?)", draw.sample(held, len(held)))
        return Reader(database)


def _count(where: tuple[Condition, ...]) -> Select:
    return Select(("COUNT(*)",), "t", where=where)


def _total(where: tuple[Condition, ...]) -> Select:
    return Select(("SUM(size)",), "t", where=where)


def _names(where: tuple[Condition, ...]) -> Select:
    return Select(("name",), "t", where=where)


COMPACT_TYPES: Mapping[str, tuple[int, Callable[[tuple[Condition, ...]], Select]]] = {
    "count": (1, _count),
    "sum": (1, _total),
    "list": (1, _names),
}
"""Difficulty and query of each type; a second value makes it harder by one."""


def ask_compact(source: Compact, kind: str, seed: str) -> Asked:
    """Returns a question of that type about one or two values."""
    draw = random.Random(seed)
    columns = sorted(draw.sample(range(3), 1 if draw.random() < 0.7 else 2))
    values = [draw.choice(POOLS[source.layout[column]]) for column in columns]
    where = tuple(Condition(COLUMNS[column], "=", value) for column, value in zip(columns, values, strict=True))
    return Asked(" ".join([kind, *values]), COMPACT_TYPES[kind][1](where))
