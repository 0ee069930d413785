"""Inquiries as tasks, made on demand."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from agent_r1_gym.datasets.analyst.compact import Small, inquire_compact
from agent_r1_gym.datasets.analyst.questions import INQUIRIES, Inquiry, inquire
from agent_r1_gym.datasets.analyst.world import Company, signature
from agent_r1_gym.datasets.base import Question
from agent_r1_gym.datasets.text2sql.dataset import SPLITS
from agent_r1_gym.datasets.text2sql.schema import part_of
from agent_r1_gym.datasets.text2sql.sources import Source
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import check_choice, check_integer
from agent_r1_gym.types import Task

TYPES: Mapping[str, tuple[str, ...]] = {"natural": tuple(INQUIRIES), "compact": ("invested",)}
"""Types of inquiries by style."""


@dataclass(frozen=True, slots=True)
class AnalystTask(Question):
    """An inquiry; `context` is the company's encyclopedia.

    Attributes:
        source: the company's database.
        inquiry: how it is answered; None only for a task that somebody else made.
    """

    source: Source | None = None
    inquiry: Inquiry | None = None


class AnalystTasks(Sequence[Task]):
    """Inquiries about generated companies.

    No two splits share a company; in the natural style no schema of a database either.

    Args:
        seed: another seed, other companies.
        split: "train", "validation" or "test".
        questions: how many.
        per_company: inquiries about one company.
        types: of inquiries, of `TYPES[style]`; None: all.
        style: "natural" or "compact".

    Raises:
        ConfigurationError: an argument has a wrong value.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        split: str = "train",
        questions: int = 2_000,
        per_company: int = 10,
        types: Sequence[str] | None = None,
        style: str = "natural",
    ) -> None:
        check_choice("split", split, tuple(SPLITS))
        check_choice("style", style, tuple(TYPES))
        for name, value, low in (("seed", seed, 0), ("questions", questions, 1), ("per_company", per_company, 1)):
            check_integer(name, value, low)
        self.types = TYPES[style] if types is None else tuple(types)
        for kind in self.types:
            check_choice("type of inquiry", kind, TYPES[style])
        if not self.types:
            raise ConfigurationError("types is empty; expected at least one type of inquiry.")
        self.seed, self.split, self.style = seed, split, style
        self._length, self._per_company = questions, per_company
        self._numbers: list[int] = []

    def describe(self) -> str:
        """Returns what is asked about, for people."""
        return f"analyst, {self.split}: {self._length} generated inquiries, seed {self.seed}"

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Task, ...]: ...
    def __getitem__(self, index: int | slice) -> Task | tuple[Task, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self._length)))
        if not -self._length <= index < self._length:
            raise IndexError(f"There are {self._length} inquiries, no number {index}.")
        position, number = divmod(index % self._length, self._per_company)
        return _task(self._world(position), number, self.types, self.style)

    def _world(self, position: int) -> str:
        """Returns the seed of a company of this split."""
        if self.style == "compact":
            return f"{self.seed}/{self.split}/{position}"
        candidates = self._candidates(self._numbers[-1] + 1 if self._numbers else 0)
        while len(self._numbers) <= position:
            self._numbers.append(next(candidates))
        return f"{self.seed}/{self._numbers[position]}"

    def _candidates(self, number: int) -> Iterator[int]:
        low, high = SPLITS[self.split]
        while True:
            if low <= part_of(signature(f"{self.seed}/{number}")) < high:
                yield number
            number += 1


@functools.lru_cache(maxsize=4_096)
def _task(world: str, number: int, types: tuple[str, ...], style: str) -> AnalystTask:
    seed = f"{world}/inquiry/{number}"
    kind = random.Random(seed).choice(types)
    if style == "compact":
        small = _small(world)
        inquiry, context = inquire_compact(small, seed), small.passages
        source: Source = small
    else:
        company = _company(world)
        inquiry, context, source = inquire(company, kind, seed), company.passages, company.source
    return AnalystTask(
        f"analyst-{world}-{number}",
        inquiry.text,
        (str(inquiry.answer),),
        {"type": kind, "difficulty": len(inquiry.tools)},
        hops=len(inquiry.tools),
        context=context,
        source=source,
        inquiry=inquiry,
    )


_company = functools.lru_cache(maxsize=64)(Company)
_small = functools.lru_cache(maxsize=256)(Small)
