"""The compact style of LongRead: a few dozen words, for tiny models. Committed experiments replay it byte for byte."""

from __future__ import annotations

import random
from collections.abc import Sequence

from agent_r1_gym.envs.long_read.ledger import SPLITS, Fact, LedgerQuestion, LedgerStyle

_ITEMS = ("red", "blue", "green", "gold", "pink", "gray", "black", "white")
_PERSONS = ("ana", "ben", "cara", "dan", "eva", "finn", "gus", "hana")
_DIGITS = tuple(map(str, range(1, 9)))
_COMPACT = {
    "holder": "who {0}",
    "balance": "what {0}",
    "changes": "changes {0}",
    "sum": "sum {0} {1}",
    "balance_of_holder": "what who {0}",
}


class CompactLedgerStyle(LedgerStyle):
    """`key value` on pages, in notes and in answers, so that a model answers by copying what followed the key.

    All splits share the words, because a tiny model knows no others. The pair of key and last value that decides a
    question decides no question of another split.
    """

    name = "compact"
    is_balanced = True

    def __init__(self) -> None:
        self.items = dict.fromkeys(SPLITS, _ITEMS)
        self.persons = dict.fromkeys(SPLITS, _PERSONS)
        self.balances = _DIGITS

    def line(self, fact: Fact, rng: random.Random) -> str:
        """The pair."""
        return f"{fact.key} {fact.value}"

    def page(self, number: int, pages: int, lines: Sequence[str]) -> str:
        """One pair per line; the last page ends with "end"."""
        return "\n".join([*lines, "end"] if number == pages else lines)

    def question(self, question: LedgerQuestion) -> str:
        """Two or three words."""
        return _COMPACT[question.type].format(*question.keys)

    def answers(self, question: LedgerQuestion, answer: str, support: Sequence[Fact]) -> tuple[str, ...]:
        """The answer after the keys that lead to it; and the answer alone."""
        if question.type == "sum":
            return (answer,)
        keys = [fact.key for fact in support] if question.type == "balance_of_holder" else question.keys
        return " ".join([*keys, answer]), answer

    def note(self, facts: Sequence[Fact]) -> str:
        """The pairs in one line."""
        return " ".join(f"{fact.key} {fact.value}" for fact in facts)

    def parse_note(self, note: str) -> list[Fact]:
        """The pairs."""
        words = note.split()
        return [Fact(key, value) for key, value in zip(words[::2], words[1::2], strict=False)]

    def belongs_to_split(self, fact: Fact, split: str) -> bool:
        """Whether the pair belongs to the split: half of all pairs belong to "train"."""
        key = (_ITEMS + _PERSONS).index(fact.key)
        value = (_DIGITS if fact.is_balance else _PERSONS).index(fact.value)
        return ("train", "train", "validation", "test")[(key + value) % 4] == split
