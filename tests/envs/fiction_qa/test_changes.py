"""Perturbed worlds: the perturbation applies everywhere, and nothing else changes."""

from __future__ import annotations

import pickle
import re

import pytest

from agent_r1_gym.core.types import Passage
from agent_r1_gym.data.base import QADataset
from agent_r1_gym.envs.fiction_qa.compact_style import COMPACT
from agent_r1_gym.envs.fiction_qa.dataset import FICTION_STYLES, fiction_dataset
from agent_r1_gym.envs.fiction_qa.perturbations import COUNTERFACTUAL_ANSWERS, CounterfactualWorld
from agent_r1_gym.envs.fiction_qa.questions import QUESTION_TYPES
from agent_r1_gym.envs.fiction_qa.world import FictionWorld
from agent_r1_gym.errors import ConfigurationError

STYLES = tuple(FICTION_STYLES)
KINDS = {
    "person": ("ovic", "ensen"),
    "work": ("ilogy",),
    "company": ("itron",),
    "city": ("aburg",),
    "country": ("onia",),
}
CHAINS = {"1hop": 1.0, "bridge": 1.0, "3hop": 1.0}


def dataset(perturbation: str | None = None, **options: object) -> QADataset:
    arguments = {"entities": 120, "questions": 60, "mix": CHAINS, "split": "test", "style": "compact", **options}
    return fiction_dataset(perturbation=perturbation, **arguments)  # type: ignore[arg-type]


def facts_of(text: str) -> dict[str, str]:
    """Parses the facts of a compact passage by relation."""
    relations = {relation for facts in COMPACT.relations.values() for relation in facts}
    words = text.replace(",", ".").split()
    starts = [place for place, word in enumerate(words) if word in relations]
    ends = [words.index(".", start) for start in starts]
    return {words[start]: " ".join(words[start + 1 : end]) for start, end in zip(starts, ends, strict=True)}


def kind_of(value: str) -> str:
    """The kind of a stated value: of a name by its second token, of any other word by the list that holds it."""
    for kind, endings in KINDS.items():
        if " " in value and value.endswith(endings):
            return kind
    return next(name for name, values in COMPACT.values.items() if value in values)


def names_of(passage: Passage) -> list[str]:
    """The title, and what follows in `ana kovic or eno bensen spouse ...`."""
    _, also, rest = passage.text.partition(f"{passage.title} or ")
    return [passage.title, " ".join(rest.split()[:2])] if also else [passage.title]


def follow(data: QADataset, prompt: str) -> str:
    """The answer that the passages give to `birthplace of teacher of ana kovic ?`."""
    pages = {name: facts_of(passage.text) for passage in data.passages() for name in names_of(passage)}
    *relations, name = prompt.removesuffix(" ?").split(" of ")
    for relation in reversed(relations):
        name = pages[name][relation]
    return name


def test_no_stated_value_stays_and_each_is_one_of_its_kind() -> None:
    for true, changed in zip(dataset().passages(), dataset("counterfactual").passages(), strict=True):
        assert true.title == changed.title and true.id == changed.id
        before, after = facts_of(true.text), facts_of(changed.text)
        assert before.keys() == after.keys()
        assert all(before[relation] != after[relation] for relation in before)
        assert all(kind_of(before[relation]) == kind_of(after[relation]) for relation in before)


@pytest.mark.parametrize("style", STYLES)
def test_values_are_as_frequent_as_before_and_couples_stay_couples(style: str) -> None:
    options = {"seed": 3, "entities": 150, "split": "test"}
    true, changed = (kind(FICTION_STYLES[style], **options) for kind in (FictionWorld, CounterfactualWorld))  # type: ignore[arg-type]
    for kind, facts in true.style.relations.items():
        everyone = [true.entity(number) for number in range(true.entities) if true.entity(number).kind == kind]
        for relation in facts:
            before = [true.target(entity, relation) for entity in everyone]
            after = [changed.target(entity, relation) for entity in everyone]
            assert all(old != new for old, new in zip(before, after, strict=True)), (kind, relation)
            counts = [sorted(map(targets.count, set(targets))) for targets in (before, after)]
            assert len(set(zip(before, after, strict=True))) == len(set(before)) == len(set(after))
            assert counts[0] == counts[1]
    for entity in map(changed.entity, range(changed.entities)):
        if "spouse" in changed.style.relations[entity.kind]:
            assert changed.follow(changed.follow(entity, "spouse"), "spouse") == entity
            assert changed.follow(entity, "spouse") != true.follow(entity, "spouse")


@pytest.mark.parametrize("aliases", [0.0, 0.5])
def test_counterfactual_answers_follow_from_the_changed_passages(aliases: float) -> None:
    true, changed = dataset(aliases=aliases), dataset("counterfactual", aliases=aliases)
    with_aliases = [passage for passage in true.passages() if len(names_of(passage)) == 2]
    assert bool(with_aliases) is bool(aliases)
    assert any(len(question.metadata[COUNTERFACTUAL_ANSWERS]) == 2 for question in changed) is bool(aliases)
    for before, after in zip(true, changed, strict=True):
        assert (before.id, before.prompt, before.answers) == (after.id, after.prompt, after.answers)
        assert follow(true, before.prompt) == before.answers[0]
        assert follow(changed, after.prompt) == after.metadata[COUNTERFACTUAL_ANSWERS][0]
    apart = sum(question.answers[0] != question.metadata[COUNTERFACTUAL_ANSWERS][0] for question in changed)
    assert apart > 0.9 * len(changed)
    assert all(q.answers[0] != q.metadata[COUNTERFACTUAL_ANSWERS][0] for q in changed if q.hops == 1)


def test_comparisons_are_answered_by_the_changed_passages_too() -> None:
    changed = dataset("counterfactual", mix={"comparison": 1.0}, questions=40)
    pages = {passage.title: facts_of(passage.text) for passage in changed.passages()}
    differ = 0
    for question in changed:
        word, relation, _, *rest = question.prompt.removesuffix(" ?").split()
        first, second = re.split(" or | and ", " ".join(rest))
        values = pages[first][relation], pages[second][relation]
        if word == "same":
            expected = "yes" if values[0] == values[1] else "no"
        else:
            expected = min((first, second), key=lambda name: int(pages[name][relation]))
            expected = expected if word == "earlier" else next(name for name in (first, second) if name != expected)
        assert question.metadata[COUNTERFACTUAL_ANSWERS] == (expected,)
        differ += expected != question.answers[0]
    assert differ  # of "earlier" and "later"; whether two are the same does not change


@pytest.mark.parametrize("style", STYLES)
def test_no_passage_is_there_twice(style: str) -> None:
    for perturbation, times in {"counterfactual": 1, "another_world": 1, "larger_world": 3}.items():
        passages = list(dataset(perturbation, style=style).passages())
        for names in ({passage.title for passage in passages}, {passage.id for passage in passages}):
            assert len(names) == len(passages) == 120 * times
    own = {passage.title: passage for passage in dataset(style=style).passages()}
    larger = {passage.title: passage for passage in dataset("larger_world", style=style).passages()}
    assert own.items() <= larger.items()


def test_each_perturbation_has_its_own_fingerprint_and_is_described() -> None:
    perturbations = (None, "counterfactual", "another_world", "larger_world")
    prints = {dataset(perturbation).fingerprint for perturbation in perturbations}
    assert len(prints) == len(perturbations)
    assert dataset("reversed_chain").fingerprint == dataset().fingerprint  # the same passages
    assert "perturbation='counterfactual'" in dataset("counterfactual").describe()
    assert "perturbation" not in dataset().describe()


@pytest.mark.parametrize("perturbation", ["counterfactual", "another_world", "larger_world", "reversed_chain"])
def test_copies_are_equal(perturbation: str) -> None:
    data = dataset(perturbation)
    copy = pickle.loads(pickle.dumps(data))
    assert list(copy) == list(data) and list(copy.passages()) == list(data.passages())


def test_rewordings_of_compact_questions() -> None:
    true = [question.prompt for question in dataset()]
    assert [question.prompt for question in dataset("no_question_mark")] == [text[:-2] for text in true]
    for before, after in zip(true, dataset("reversed_chain"), strict=True):
        *relations, name = before.removesuffix(" ?").split(" of ")
        assert after.prompt == f"{' of '.join([name, *relations[::-1]])} ?"
    comparisons = {"mix": {"comparison": 1.0}, "questions": 10}
    both = dataset(**comparisons), dataset("reversed_chain", **comparisons)
    assert [question.prompt for question in both[0]] == [question.prompt for question in both[1]]


def test_other_words_of_natural_questions_ask_the_same() -> None:
    every = {"style": "natural", "mix": dict.fromkeys(QUESTION_TYPES, 1.0)}
    changed = 0
    for before, after in zip(dataset(**every), dataset("other_words", **every), strict=True):
        assert (before.answers, before.id, before.supporting_facts) == (after.answers, after.id, after.supporting_facts)
        changed += before.prompt != after.prompt
        assert (before.prompt != after.prompt) == (before.type != "comparison")
    assert changed == 48  # of 60, 12 being comparisons


def test_an_unknown_perturbation_or_one_of_another_style_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"does not exist in style 'natural', which has other_words"):
        dataset("reversed_chain", style="natural")
    with pytest.raises(ConfigurationError, match="counterfactual"):
        dataset("counterfactul")
