"""The compact style: a closed vocabulary, words between single spaces, for tiny models that are trained from scratch.

Every name has two tokens; the second shows its sort (people, works, companies, cities, countries). A
passage is `ana kovic spouse eno bensen , teacher ... . employer ... .`, a question
`birthplace of teacher of ana kovic ?`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial

from agent_r1_gym.envs.fiction_qa.world import (
    SYMMETRIC,
    Entity,
    EntityKind,
    FictionStyle,
    FictionWorld,
    NameSpace,
    words,
)

_ONSETS = words("b c d f g h j k l m n p qu r s t v w y z")  # none ends in another: no name is part of another
_FIRST = tuple(onset + rest for onset in _ONSETS for rest in ("ana", "eno", "iro", "olu", "uza", "ady"))
_SECOND = {
    "person": tuple(onset + rest for onset in _ONSETS for rest in ("ovic", "ensen")),
    "work": tuple(onset + "ilogy" for onset in _ONSETS),
    "company": tuple(onset + "itron" for onset in _ONSETS),
    "city": tuple(onset + "aburg" for onset in _ONSETS[:16]),
    "country": tuple(onset + "onia" for onset in _ONSETS[:8]),
}
_YEARS = tuple(map(str, range(1801, 1825)))
_FUNCTION_WORDS = words("of ? . , : and or same earlier later yes no #1 #2 #3")
_MAX_SENTENCES = 4


def _spell(seconds: Sequence[str], digits: Sequence[int]) -> str:
    return f"{_FIRST[digits[0]]} {seconds[digits[1]]}"


_KINDS = {
    "work": EntityKind(20, "work"),
    "person": EntityKind(32, "person"),
    "elder": EntityKind(16, "person"),
    "company": EntityKind(16, "company"),
    "city": EntityKind(12, "city"),
    "country": EntityKind(4, "country"),
}
_RELATIONS = {
    "work": {"author": "person", "publisher": "company", "release": "years", "genre": "genres"},
    "person": {
        "spouse": "person",
        "teacher": "elder",
        "employer": "company",
        "birthplace": "city",
        "birthyear": "years",
    },
    "elder": {"spouse": "elder", "birthplace": "city", "birthyear": "years", "occupation": "occupations"},
    "company": {"founder": "elder", "headquarters": "city", "foundation": "years", "industry": "industries"},
    "city": {"country": "country", "product": "products"},
    "country": {"currency": "currencies", "language": "languages"},
}
_VALUES = {
    "years": _YEARS,
    "genres": words("novel comedy tragedy satire memoir epic"),
    "occupations": words("baker miner painter doctor lawyer sailor"),
    "industries": words("steel paper textile mining brewing shipping"),
    "products": words("cheese lace honey salt silk glass"),
    "currencies": words("crown ducat florin mark taler penny"),
    "languages": words("avari belic corin duvan elmish farsic"),
}
_NAMES = {key: NameSpace((len(_FIRST),), (len(seconds),), partial(_spell, seconds)) for key, seconds in _SECOND.items()}


class CompactStyle(FictionStyle):
    """Six kinds, 18 relations, fewer than 400 words."""

    name = "compact"
    kinds = _KINDS
    relations = _RELATIONS
    values = _VALUES
    names = _NAMES
    ordered = frozenset({"release", "birthyear", "foundation"})
    shared = frozenset(
        relation
        for facts in _RELATIONS.values()
        for relation, target in facts.items()
        if target != "years" and relation != SYMMETRIC
    )

    def sentences(self, world: FictionWorld, entity: Entity) -> list[str]:
        """One fact per sentence, in at most four sentences: the first one holds the remaining facts."""
        facts = [f"{relation} {world.target_text(entity, relation)}" for relation in self.relations[entity.kind]]
        over = max(0, len(facts) - _MAX_SENTENCES)
        opening = f"{world.title(entity)} {' , '.join(facts[: over + 1])} ."
        return [opening, *(f"{fact} ." for fact in facts[over + 1 :])]

    def sentence_index(self, world: FictionWorld, entity: Entity, relation: str) -> int:
        """Index of the sentence that states a relation."""
        facts = list(self.relations[entity.kind])
        return max(0, facts.index(relation) - max(0, len(facts) - _MAX_SENTENCES))

    def add_alias(self, sentences: list[str], title: str, alias: str) -> list[str]:
        """Turns `title ...` into `title or alias ...`."""
        return [f"{title} or {alias}{sentences[0].removeprefix(title)}", *sentences[1:]]

    def mention(self, world: FictionWorld, entity: Entity) -> str:
        """The title."""
        return world.title(entity)

    def ask(self, relation: str, subject: str, rng: random.Random) -> str:
        """`relation of subject ?`."""
        return f"{relation} of {subject} ?"

    def describe(self, relation: str, subject: str, rng: random.Random) -> str:
        """`relation of subject`."""
        return f"{relation} of {subject}"

    def ask_order(self, relation: str, rng: random.Random) -> tuple[str, bool]:
        """`earlier relation : a or b ?`, or `later`."""
        later = rng.random() < 0.5
        return f"{'later' if later else 'earlier'} {relation} : {{a}} or {{b}} ?", later

    def ask_same(self, relation: str, rng: random.Random) -> str:
        """`same relation : a and b ?`."""
        return f"same {relation} : {{a}} and {{b}} ?"


COMPACT = CompactStyle()


def compact_vocabulary() -> tuple[str, ...]:
    """All words of compact passages, questions, decompositions and answers."""
    relations = (relation for facts in COMPACT.relations.values() for relation in facts)
    seconds = (word for words in _SECOND.values() for word in words)
    values = (word for words in COMPACT.values.values() for word in words)
    return tuple(dict.fromkeys((*_FUNCTION_WORDS, *relations, *values, *_FIRST, *seconds)))
