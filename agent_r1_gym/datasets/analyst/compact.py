"""The compact style: twelve people, twelve words for what they hold, one table; an inquiry takes three calls.

`sum copper times 3`: search copper -> `copper : ana`; query the sum of ana's sizes -> 7; calculator 7 * 3 -> 21.
"""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass
from functools import cached_property

from agent_r1_gym.datasets.analyst.questions import Inquiry
from agent_r1_gym.datasets.text2sql.compact import NAMES
from agent_r1_gym.datasets.text2sql.sources import reader
from agent_r1_gym.support.sqlite import Reader
from agent_r1_gym.types import Passage

HELD = ("copper", "silver", "amber", "ivory", "quill", "harp", "rose", "crown", "lamp", "drum", "kite", "bell")
_MOST = 9


@dataclass(frozen=True)
class Small:
    """A small company.

    Attributes:
        seed: of everything in it.
        copies: its database has one filling.
    """

    seed: str
    copies: int = 1

    @cached_property
    def holders(self) -> dict[str, str]:
        """Who holds what."""
        draw = random.Random(f"{self.seed}/holders")
        return dict(zip(HELD, draw.sample(NAMES, len(NAMES)), strict=True))

    @cached_property
    def passages(self) -> tuple[Passage, ...]:
        """The encyclopedia."""
        return tuple(Passage(held, held, name) for held, name in self.holders.items())

    def open(self, copy: int) -> Reader:
        """Returns a reader of the database: a table `t` of names and sizes, two rows for each name."""
        draw = random.Random(f"{self.seed}/rows/{copy}")
        database = sqlite3.connect(":memory:", check_same_thread=False)
        database.execute("CREATE TABLE t (name TEXT, size INTEGER)")
        rows = [(name, draw.randint(2, _MOST)) for name in NAMES * 2]
        draw.shuffle(rows)
        database.executemany("INSERT INTO t VALUES (?, ?)", rows)
        return Reader(database)


def inquire_compact(world: Small, seed: str) -> Inquiry:
    """Returns a question that needs search, database and calculator."""
    draw = random.Random(seed)
    held, factor = draw.choice(HELD), draw.randint(2, _MOST)
    what, function = draw.choice((("sum", "SUM"), ("max", "MAX"), ("min", "MIN")))
    sql = f"SELECT {function}(size) FROM t WHERE name = '{world.holders[held]}'"
    value = int(reader(world).select(sql).rows[0][0])  # type: ignore[arg-type]
    steps = (
        ("search", {"query": held}),
        ("query", {"sql": sql}),
        ("calculator", {"expression": f"{value} * {factor}"}),
    )
    text = f"{what} {held} times {factor}"
    return Inquiry(text, value * factor, steps, ("search", "sql", "compute"), str(value))
