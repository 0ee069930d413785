"""Exercises of the warm start: comparing values, and reading a value out of similar passages.

A demonstration asks about one fact, an exercise about a dozen, so a tiny model needs fewer steps to learn where to
look.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from agent_r1_gym.core.types import Message
from agent_r1_gym.envs.fiction_qa.compact_style import COMPACT
from agent_r1_gym.envs.fiction_qa.world import FictionWorld
from trainers.commands.demonstrations import IGNORE_INDEX, TokenRow, training_row
from trainers.rollouts.chat_format import ChatFormat
from trainers.toy.demonstrations import NOTHING, format_note
from trainers.toy.model import THINK_CLOSE, THINK_OPEN

# --- Comparing ---

COMPARISON_RESULTS = ("#1", "#2", "yes", "no")
"""Last words of a comparison: which of two values it is, or whether they are equal."""
_COMPARISONS = 8
_UNORDERED = tuple(values for name, values in COMPACT.values.items() if name != "years")


def comparison_exercises(*, seed: int, entities: int = 200) -> Iterator[list[Message]]:
    """Yield exercises in comparing values, without end: a thought of verdicts like those that end a comparison.

    A tiny model does not learn to order years from demonstrations, where few tokens depend on it. Only the verdicts
    (`COMPARISON_RESULTS`) are learned; the compared values are random.

    Args:
        seed: seed of the exercises.
        entities: size of the worlds whose names are compared; each exercise has a new one.
    """
    rng = random.Random(f"drills/{seed}")
    while True:
        world = FictionWorld(COMPACT, seed=rng.getrandbits(48), entities=entities, split="train")
        names = [world.title(world.entity(number)) for number in rng.sample(range(entities), _COMPARISONS)]
        verdicts = (_same(names, rng) if rng.random() < 0.4 else _order(rng) for _ in range(_COMPARISONS))
        thought = f"{THINK_OPEN}{' . '.join(verdicts)}{THINK_CLOSE}"
        yield [Message("user", "same or later ?"), Message("assistant", thought)]


def _order(rng: random.Random) -> str:
    years = COMPACT.values["years"]
    first, second = rng.sample(range(len(years)), 2)
    word = rng.choice(("earlier", "later"))
    right = 1 if (first > second) == (word == "later") else 2
    return f"{word} {years[first]} or {years[second]} : #{right}"


def _same(names: Sequence[str], rng: random.Random) -> str:
    words = names if rng.random() < 0.5 else rng.choice(_UNORDERED)
    first = rng.choice(words)
    second = first if rng.random() < 0.5 else rng.choice(words)
    return f"same {first} and {second} : {'yes' if first == second else 'no'}"


# --- Reading ---

SHAPES: Mapping[tuple[int, int], float] = {(6, 1): 1.0, (4, 2): 1.0, (3, 3): 1.0, (2, 5): 2.0, (3, 5): 1.0}
"""Number of passages and maximum number of facts in each, to weight.

With two full passages only, the relation alone identifies half of the values; with many short ones about the same
relation, the name alone would.
"""
_PER_WORLD = 16
_NOTES = 14
_ABSENT = 0.08
_MAX_SENTENCES = 4


class Passage(NamedTuple):
    """Content of a passage: the names of an entity, the title first, and its facts by relation."""

    names: tuple[str, ...]
    facts: Mapping[str, str]

    @property
    def text(self) -> str:
        """The passage as a search returns it."""
        stated = [f"{relation} {value}" for relation, value in self.facts.items()]
        opening = max(0, len(stated) - _MAX_SENTENCES) + 1
        text = " . ".join([" , ".join(stated[:opening]), *stated[opening:]])
        return f"{self.names[0]} : {' or '.join(self.names)} {text} ."

    @property
    def words(self) -> frozenset[str]:
        """All words of its names and facts."""
        return frozenset(" ".join((*self.names, *self.facts.values())).split())


def reading_exercises(
    *, seed: int, entities: int = 200, shapes: Mapping[tuple[int, int], float] = SHAPES, aliases: float = 0.5
) -> Iterator[list[Message]]:
    """Yield exercises in reading without end: passages, then a thought of notes about them.

    Args:
        seed: seed of the exercises.
        entities: size of each world; every 16 exercises have a new one.
        shapes: number of passages and of facts in each, to weight.
        aliases: share of entities with a second name, used in half of the questions about them.
    """
    rng = random.Random(f"readings/{seed}")
    while True:
        world = FictionWorld(COMPACT, seed=rng.getrandbits(48), entities=entities, split="train", aliases=aliases)
        passages = []
        for entity in map(world.entity, range(world.entities)):
            facts = {relation: world.target_text(entity, relation) for relation in COMPACT.relations[entity.kind]}
            passages.append(Passage(tuple(filter(None, (world.title(entity), world.alias(entity)))), facts))
        for _ in range(_PER_WORLD):
            count, max_facts = rng.choices(list(shapes), list(shapes.values()))[0]
            yield _reading(_shorten(_alike(passages, count, rng), max_facts, rng), passages, rng)


def _alike(passages: Sequence[Passage], count: int, rng: random.Random) -> list[Passage]:
    """Sample similar passages: they share a word with the first one's names, or state the same relations."""
    first = rng.choice(passages)
    words = set(" ".join(first.names).split())
    others = [passage for passage in passages if passage is not first]
    near = [passage for passage in others if not words.isdisjoint(passage.words)]
    same = [passage for passage in others if passage.facts.keys() == first.facts.keys()]
    sampled = (rng.choice(rng.choice((near, same)) or others) for _ in range(2 * count))
    distinct = {passage.names: passage for passage in (first, *sampled)}  # fewer where a kind is rare
    return rng.sample([*distinct.values()][:count], min(count, len(distinct)))


def _shorten(passages: Sequence[Passage], max_facts: int, rng: random.Random) -> list[Passage]:
    """Limit each passage's facts, to the same relations in passages of the same kind."""
    relations = list(dict.fromkeys(relation for passage in passages for relation in passage.facts))
    rank = {relation: position for position, relation in enumerate(rng.sample(relations, len(relations)))}
    shortened = []
    for passage in passages:
        retained = sorted(passage.facts, key=rank.__getitem__)[:max_facts]
        facts = {relation: value for relation, value in passage.facts.items() if relation in retained}
        shortened.append(passage._replace(facts=facts))
    return shortened


def _reading(visible: Sequence[Passage], passages: Sequence[Passage], rng: random.Random) -> list[Message]:
    """Make an exercise about `visible`: notes of its facts, and some of names whose passage is missing."""
    facts = [(passage, relation) for passage in visible for relation in passage.facts]
    titles = {name for passage in visible for name in passage.names}
    mentioned = {value for passage in visible for value in passage.facts.values()} - titles
    missing = [passage for passage in passages if not mentioned.isdisjoint(passage.names)]
    notes = []
    for passage, relation in rng.sample(facts, min(_NOTES, len(facts))):
        notes.append(format_note(relation, rng.choice(passage.names), passage.facts[relation]))
        if missing and rng.random() < _ABSENT:
            absent = rng.choice(missing)
            name = next(name for name in absent.names if name in mentioned)
            notes.append(format_note(rng.choice([*absent.facts]), name, NOTHING))
    question = notes[0].partition(" : ")[0]
    thought = f"{THINK_OPEN}{' . '.join(notes)}{THINK_CLOSE}"
    texts = "\n".join(passage.text for passage in visible)
    return [Message("user", f"{question} ?"), Message("tool", texts), Message("assistant", thought)]


def reading_row(chat: ChatFormat, messages: Sequence[Message]) -> TokenRow:
    """Tokenise a reading exercise; only the values of its notes, between ":" and ".", have labels."""
    row = training_row(chat, messages)
    colon, *ends = (chat.tokenizer.encode(word)[0] for word in (":", ".", THINK_CLOSE))
    value, labels = False, []
    for token, label in zip(row["input_ids"], row["labels"], strict=True):
        value = value and token not in ends
        labels.append(label if value else IGNORE_INDEX)
        value = value or token == colon
    return {"input_ids": row["input_ids"], "labels": labels}


# --- Both, as the warm start takes them ---

Exercises = Callable[[ChatFormat, int, int], Iterator[TokenRow]]
"""Token rows by chat format, seed and size of the worlds."""

EXERCISES: Mapping[str, Exercises] = {
    "comparing": lambda chat, seed, entities: (
        training_row(chat, messages, only=COMPARISON_RESULTS)
        for messages in comparison_exercises(seed=seed, entities=entities)
    ),
    "reading": lambda chat, seed, entities: (
        reading_row(chat, messages) for messages in reading_exercises(seed=seed, entities=entities)
    ),
}
"""Exercises by name, with labels on the tokens to learn only."""
