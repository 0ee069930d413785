"""What a ledger contains, what follows from it, and how it is worded in English.

`answer_of` and `support_of` are the only place where gold answers are computed. `LedgerStyle` is the interface of the
two styles; the other one is in `compact_style.py`.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

SPLITS = ("train", "validation", "test")
QUESTION_TYPES = ("holder", "balance", "changes", "sum", "balance_of_holder")


class Fact(NamedTuple):
    """One entry: the holder of an item, or the balance of a person. A later entry about `key` replaces it."""

    key: str
    value: str

    @property
    def is_balance(self) -> bool:
        """Whether the value is a number, and so the key a person."""
        return self.value.isdecimal()


class LedgerQuestion(NamedTuple):
    """A question about a ledger, without its wording.

    Attributes:
        type: one of `QUESTION_TYPES`.
        keys: the item, the person or the two persons that the question is about.
        is_about_item: whether the first key is an item.
    """

    type: str
    keys: tuple[str, ...]
    is_about_item: bool

    def needs_fact(self, fact: Fact) -> bool:
        """Whether a reader who knows the question must remember a fact."""
        return fact.key in self.keys or (self.type == "balance_of_holder" and fact.is_balance)


def last_values(facts: Iterable[Fact]) -> dict[str, str]:
    """Maps each key to its last value."""
    return {fact.key: fact.value for fact in facts}


def answer_of(question: LedgerQuestion, facts: Sequence[Fact]) -> str | None:
    """Answers a question from known entries; None if they do not suffice.

    Args:
        question: the question.
        facts: entries in order, each with another value than its key had before; all entries for the gold answer, the
            remembered ones for the answer of a reader.
    """
    now = last_values(facts)
    if any(key not in now for key in question.keys):
        return None
    first = question.keys[0]
    if question.type == "changes":
        return str(sum(fact.key == first for fact in facts) - 1)
    if question.type == "sum":
        return str(sum(int(now[key]) for key in question.keys))
    if question.type == "balance_of_holder":
        return now.get(now[first])
    return now[first]


def support_of(question: LedgerQuestion, facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """The entries behind the answer, in order: the last ones of the keys; for "changes" all of the key."""
    if question.type == "changes":
        return tuple(fact for fact in facts if fact.key == question.keys[0])
    now = last_values(facts)
    keys = [*question.keys, *([now[question.keys[0]]] if question.type == "balance_of_holder" else [])]
    return tuple(Fact(key, now[key]) for key in keys)


class LedgerStyle(abc.ABC):
    """Names and wording of ledgers, questions and notes.

    Attributes:
        items: items by split; persons hold them.
        persons: persons by split; they hold items and have balances.
        balances: possible balances.
        is_balanced: whether pages hold as many entries about items as about persons, as far as the question permits.
    """

    name: ClassVar[str]
    is_balanced: ClassVar[bool] = False
    items: dict[str, tuple[str, ...]]
    persons: dict[str, tuple[str, ...]]
    balances: tuple[str, ...]

    @abc.abstractmethod
    def line(self, fact: Fact, rng: random.Random) -> str:
        """Words an entry as a line of a page."""

    @abc.abstractmethod
    def page(self, number: int, pages: int, lines: Sequence[str]) -> str:
        """Renders page `number` (from 1)."""

    @abc.abstractmethod
    def question(self, question: LedgerQuestion) -> str:
        """Words a question."""

    @abc.abstractmethod
    def answers(self, question: LedgerQuestion, answer: str, support: Sequence[Fact]) -> tuple[str, ...]:
        """Accepted forms of an answer that rests on `support`, the canonical one first."""

    @abc.abstractmethod
    def note(self, facts: Sequence[Fact]) -> str:
        """Writes a note of some facts."""

    @abc.abstractmethod
    def parse_note(self, note: str) -> list[Fact]:
        """Parses a note that `note` wrote; never raises for any other note."""

    @abc.abstractmethod
    def belongs_to_split(self, fact: Fact, split: str) -> bool:
        """Whether a fact may decide the answer to a question of a split."""


_FIRST = (
    *("Ada", "Bela", "Cato", "Dora", "Emil", "Fenna", "Goran", "Hedda", "Iven", "Jora", "Karel", "Lina", "Marek"),
    *("Nadia", "Oskar", "Petra", "Quirin", "Rosa", "Stian", "Tilda", "Udo"),
)
_LAST = (
    *("Arden", "Brock", "Calder", "Dunmore", "Eskil", "Farrow", "Garnet", "Hollis", "Ivarsen", "Jessop", "Kolt"),
    *("Larkin", "Mosley", "Norling", "Orwin", "Pell", "Quade", "Ruskin", "Sorel", "Tarrant", "Ulmer"),
)
_ADJECTIVES = (
    *("amber", "brass", "carved", "dented", "enamel", "folded", "gilded", "hollow", "ivory", "jade", "knotted"),
    *("leather", "marble", "narrow", "oak", "painted", "quilted", "rusty"),
)
_NOUNS = (
    *("anchor", "bell", "casket", "drum", "easel", "flask", "globe", "hourglass", "inkwell", "jar", "kettle"),
    *("lantern", "mask", "needle", "organ", "plate", "quill", "ring"),
)
_HELD = (
    "The {key} was handed to {value}.",
    "{value} took over the {key}.",
    "From this day on {value} keeps the {key}.",
    "The {key} is entrusted to {value}.",
)
_BALANCE = (
    "The balance of {key} is {value}.",
    "After the count {key} has {value} in the books.",
    "{value} is what the account of {key} holds.",
    "The clerk set the account of {key} to {value}.",
)
_NATURAL = {
    "holder": "According to the last entry about it, who holds the {0}?",
    "balance": "According to the last entry about it, what is the balance of {0}?",
    "holder_changes": "How often did the {0} change hands after its first entry?",
    "balance_changes": "How often did the balance of {0} change after its first entry?",
    "sum": "By their last entries, what do the balances of {0} and {1} add up to?",
    "balance_of_holder": "By the last entries, what is the balance of whoever holds the {0}?",
}


class NaturalLedgerStyle(LedgerStyle):
    """Varied English. Every item and person belongs to one split."""

    name = "natural"

    def __init__(self) -> None:
        self.items = _assign_to_splits(_ADJECTIVES, _NOUNS)
        self.persons = _assign_to_splits(_FIRST, _LAST)
        self.balances = tuple(map(str, range(101, 1_000)))

    def line(self, fact: Fact, rng: random.Random) -> str:
        """One of four sentences."""
        return rng.choice(_BALANCE if fact.is_balance else _HELD).format(key=fact.key, value=fact.value)

    def page(self, number: int, pages: int, lines: Sequence[str]) -> str:
        """The page with its number."""
        return "\n".join([f"Page {number} of {pages}.", *lines])

    def question(self, question: LedgerQuestion) -> str:
        """A sentence."""
        kind = question.type
        if kind == "changes":
            kind = "holder_changes" if question.is_about_item else "balance_changes"
        return _NATURAL[kind].format(*question.keys)

    def answers(self, question: LedgerQuestion, answer: str, support: Sequence[Fact]) -> tuple[str, ...]:
        """The answer alone."""
        return (answer,)

    def note(self, facts: Sequence[Fact]) -> str:
        """`key: value`, separated by semicolons."""
        return "; ".join(f"{fact.key}: {fact.value}" for fact in facts)

    def parse_note(self, note: str) -> list[Fact]:
        """The pairs."""
        pairs = (piece.partition(": ") for piece in note.split("; "))
        return [Fact(key, value) for key, colon, value in pairs if colon]

    def belongs_to_split(self, fact: Fact, split: str) -> bool:
        """True: no name of a split occurs in another."""
        return True


def _assign_to_splits(first: Sequence[str], second: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Combines two lists, with each pair in one split: half of them in "train"."""
    parts: dict[str, list[str]] = {split: [] for split in SPLITS}
    for i, left in enumerate(first):
        for j, right in enumerate(second):
            parts[("train", "train", "validation", "test")[(i + j) % 4]].append(f"{left} {right}")
    return {split: tuple(names) for split, names in parts.items()}
