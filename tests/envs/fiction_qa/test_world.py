"""What FictionQA's worlds are made of: permutations, names, wordings, the closed vocabulary."""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from string import Formatter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1_gym.envs.fiction_qa.compact_style import compact_vocabulary
from agent_r1_gym.envs.fiction_qa.dataset import FICTION_STYLES, fiction_dataset
from agent_r1_gym.envs.fiction_qa.natural_style import LAYOUTS, NATURAL, PHRASES, SENTENCES
from agent_r1_gym.envs.fiction_qa.questions import QUESTION_TYPES
from agent_r1_gym.envs.fiction_qa.world import FICTION_SPLITS, FictionWorld, Permutation

EVERY_TYPE = dict.fromkeys(QUESTION_TYPES, 1.0)


@given(size=st.integers(1, 3000), key=st.text(max_size=5))
@settings(max_examples=50, deadline=None)
def test_permutation_is_one_to_one_and_inverts(size: int, key: str) -> None:
    permutation = Permutation(size, key)
    images = [permutation(element) for element in range(size)]
    assert sorted(images) == list(range(size))
    assert [permutation.inverse(image) for image in images] == list(range(size))


def test_permutation_mixes() -> None:
    permutation = Permutation(10_000, "mixing")
    steps = Counter((permutation(element + 1) - permutation(element)) % 10_000 for element in range(9_999))
    assert steps.most_common(1)[0][1] < 12


def test_names_are_unique_over_all_kinds_splits_and_lengths() -> None:
    rng = random.Random(0)
    spelled: dict[str, tuple[object, ...]] = {}
    for key, space in NATURAL.names.items():
        assert space.radices[-1] % len(FICTION_SPLITS) == 0
        for tier in space.tiers:
            for _ in range(4_000):
                split, position = rng.randrange(4), rng.randrange(space.capacity(tier))
                owner = (key, split, position)
                assert spelled.setdefault(space.name(position, split, seed=0), owner) == owner


def test_names_do_not_reveal_their_split() -> None:
    """Else a model that has read many training worlds knows which names cannot come, and fails on held-out ones."""

    def names(seed: int, split: str) -> set[str]:
        dataset = fiction_dataset(seed=seed, entities=800, split=split, style="compact")
        return {passage.title for passage in dataset.passages()}

    trained = set().union(*(names(seed, "train") for seed in range(1, 9)))
    held_out = names(0, "test")
    assert not held_out & names(0, "train")
    assert len(held_out & trained) > len(held_out) / 4  # none, if every seed split names alike


def test_every_wording_of_a_part_states_the_same_relations() -> None:
    def fields(template: str) -> set[str]:
        names = {field.removeprefix("a_") for _, field, _, _ in Formatter().parse(template) if field}
        return names - {"name", "short", "day", "he", "He", "his", "His", "him"}

    for part, wordings in SENTENCES.items():
        assert len(wordings) > 1
        assert len({frozenset(fields(wording)) for wording in wordings}) == 1, part
    for kind, layouts in LAYOUTS.items():
        for layout in layouts:
            stated = [relation for part in layout for relation in sorted(fields(SENTENCES[part][0]))]
            assert sorted(stated) == sorted(NATURAL.relations[kind])


def test_every_relation_has_wordings_and_distinct_values() -> None:
    followed = {
        relation
        for facts in NATURAL.relations.values()
        for relation, target in facts.items()
        if target in NATURAL.relations
    }
    for facts in NATURAL.relations.values():
        assert set(facts) <= set(PHRASES)
    for relation, phrase in PHRASES.items():
        assert len(phrase.ask) > 1
        assert (len(phrase.noun) > 1) == (relation in followed)
        for wordings in (phrase.ask, phrase.noun):
            fits = any(wording.rstrip("?").endswith("{x}") for wording in wordings)
            never_long = relation in ("setting", "release", "genre")
            assert not wordings or fits or never_long, f"{relation} needs a wording for long subjects"
    for style in FICTION_STYLES.values():
        assert all(len(set(values)) == len(values) for values in style.values.values())


@pytest.mark.slow
def test_compact_vocabulary_is_closed_and_fully_used() -> None:
    used: set[str] = set()
    for seed in range(3):
        for split in FICTION_SPLITS:
            dataset = fiction_dataset(
                seed=seed, entities=800, style="compact", split=split, mix=EVERY_TYPE, questions=150
            )
            for passage in dataset.passages():
                assert len(passage.text.split()) <= 30
                used.update(passage.text.split(), passage.title.split())
            for question in dataset:
                used.update(question.prompt.split(), *map(str.split, question.answers))
                used.update(*(f"{hop.question} {hop.answer}".split() for hop in question.decomposition))
    vocabulary = compact_vocabulary()
    assert used == set(vocabulary)
    assert len(set(vocabulary)) == len(vocabulary) < 400
    assert all(word == word.lower() and not any(map(str.isspace, word)) for word in vocabulary)


def test_compact_names_have_two_tokens_and_the_second_shows_the_sort() -> None:
    world = FictionWorld(FICTION_STYLES["compact"], seed=0, entities=1000, split="train")
    seconds: dict[str, set[str]] = {}
    for number in range(1000):
        entity = world.entity(number)
        _, second = world.title(entity).split()
        seconds.setdefault(world.style.kinds[entity.kind].names, set()).add(second)
    assert not any(one & other for one, other in combinations(seconds.values(), 2))
