"""FictionQA keeps its promises: unique answers, disjoint splits, a closed vocabulary, no memory."""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1_gym.data.base import QADataset, Question
from agent_r1_gym.envs.fiction_qa.dataset import DEFAULT_MIX, FICTION_STYLES, fiction_dataset
from agent_r1_gym.envs.fiction_qa.questions import (
    QUESTION_TYPES,
    FictionCorpus,
    TypeSchedule,
    is_ood_path,
    question_paths,
)
from agent_r1_gym.envs.fiction_qa.world import FICTION_SPLITS, FictionWorld
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.retrieval.bm25 import BM25Retriever
from tests.kit.cpu_time import cpu_below

ROOT = Path(__file__).resolve().parents[3]
STYLES = tuple(FICTION_STYLES)
EVERY_TYPE = dict.fromkeys(QUESTION_TYPES, 1.0)
GOLDEN = {
    "compact": ("occupation of teacher of solu vovic ?", "painter"),
    "natural": ("Which city is the birthplace of the writer of The False Journey?", "Tratograd"),
}


def most_questions(**options: object) -> QADataset:
    """The data set with every question there is."""
    with pytest.raises(ConfigurationError, match="more than there are") as refused:
        fiction_dataset(questions=10**12, **options)
    return fiction_dataset(questions=int(str(refused.value).split(" give ")[1].split()[0]), **options)


def digest(dataset: QADataset) -> str:
    return hashlib.sha256(repr((list(dataset), list(dataset.passages()))).encode()).hexdigest()


# --- determinism -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_access_order_copies_and_processes_make_no_difference(style: str) -> None:
    dataset, other = (fiction_dataset(seed=7, entities=120, style=style) for _ in range(2))
    backwards = [other[index] for index in reversed(range(len(other)))]
    assert list(dataset) == backwards[::-1]
    assert dataset[-1] == dataset[len(dataset) - 1]
    assert digest(pickle.loads(pickle.dumps(dataset))) == digest(other) == digest(dataset)
    code = (
        "from tests.envs.fiction_qa.test_dataset import digest, fiction_dataset\n"
        f"print(digest(fiction_dataset(seed=7, entities=120, style={style!r})))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "123"}
    run = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == digest(dataset)


@pytest.mark.parametrize("style", STYLES)
def test_golden_question_guards_the_generator_against_silent_change(style: str) -> None:
    question = fiction_dataset(seed=0, entities=100, style=style)[0]
    assert question.id == "fiction-0-train-bridge-0"
    assert (question.prompt, question.answers[0]) == GOLDEN[style]


def test_seeds_and_settings_give_other_worlds_and_fingerprints() -> None:
    variants = [{}, {"seed": 1}, {"entities": 601}, {"split": "test"}, {"style": "compact"}]
    datasets = [fiction_dataset(**variant) for variant in variants]
    assert len({dataset.fingerprint for dataset in datasets}) == len(variants)
    assert fiction_dataset(questions=5, distractors=2).fingerprint == datasets[0].fingerprint
    assert len({next(dataset.passages()).text for dataset in datasets}) == len(variants)


# --- answers -----------------------------------------------------------------------------------------------------


def read_compact(dataset: QADataset) -> dict[str, dict[str, str]]:
    """Reads all facts from the compact passages alone: title -> relation -> value."""
    facts: dict[str, dict[str, str]] = {}
    for passage in dataset.passages():
        assert passage.title not in facts
        assert passage.text.startswith(passage.title + " ")
        stated = passage.text.removeprefix(passage.title).replace(" , ", " . ").strip(" .").split(" . ")
        facts[passage.title] = dict(fact.strip().split(" ", 1) for fact in stated)
        assert len(facts[passage.title]) == len(stated)
    return facts


def answer_compact(prompt: str, facts: dict[str, dict[str, str]]) -> str:
    """Answers a compact question from the facts alone."""
    words = prompt.removesuffix(" ?")
    if words.startswith("same "):
        relation, pair = words.removeprefix("same ").split(" : ")
        first, second = pair.split(" and ")
        return "yes" if facts[first][relation] == facts[second][relation] else "no"
    if words.startswith(("earlier ", "later ")):
        order, relation, _, pair = words.split(" ", 3)
        ranked = sorted(pair.split(" or "), key=lambda title: int(facts[title][relation]))
        assert facts[ranked[0]][relation] != facts[ranked[1]][relation], "a tie has no answer"
        return ranked[0] if order == "earlier" else ranked[1]
    *relations, value = words.split(" of ")
    for relation in reversed(relations):
        value = facts[value][relation]
    return value


@pytest.mark.slow
@pytest.mark.parametrize("split", FICTION_SPLITS)
def test_all_compact_answers_follow_from_the_passages(split: str) -> None:
    for seed, only in enumerate(QUESTION_TYPES):
        dataset = most_questions(seed=seed, entities=130, style="compact", split=split, mix={only: 1})
        facts = read_compact(dataset)
        prompts = set()
        for question in dataset:
            assert question.type == only
            assert question.answers == (answer_compact(question.prompt, facts),)
            prompts.add(question.prompt)
        assert len(prompts) == len(dataset)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("split", ["train", "ood"])
def test_world_states_every_fact_in_the_sentence_it_names(style: str, split: str) -> None:
    world = FictionWorld(FICTION_STYLES[style], seed=5, entities=400, split=split)
    corpus = FictionCorpus(world)
    for number in range(world.entities):
        entity, passage = world.entity(number), corpus[number]
        assert world.number(entity) == number
        assert "".join(passage.sentences) == passage.text
        assert 2 <= len(passage.sentences) <= 4
        for relation in world.style.relations[entity.kind]:
            sentence = passage.sentences[world.style.sentence_index(world, entity, relation)]
            assert world.target_text(entity, relation) in sentence


def check_question(question: Question) -> None:
    """What holds for every question by itself."""
    passages = {passage.title: passage for passage in question.context}
    assert len(passages) == len(question.context)
    assert question.hops == len(question.decomposition) == len(question.supporting_facts)
    answers: list[str] = []
    for hop, fact in zip(question.decomposition, question.supporting_facts, strict=True):
        assert hop.title == fact.title
        assert hop.answer in passages[fact.title].sentences[fact.sentence]
        references = [int(word.strip("?,.")[1:]) for word in hop.question.split() if word.startswith("#")]
        assert [answers[number - 1] for number in references] == ([] if hop.title in question.prompt else [hop.title])
        answers.append(hop.answer)
    if question.type == "comparison":
        assert question.answers[0] in ("yes", "no") or question.answers[0] in question.prompt
        assert {hop.title for hop in question.decomposition if hop.title in question.prompt} == set(passages) & {
            fact.title for fact in question.supporting_facts
        }
    else:
        assert question.answers == (answers[-1],)
        assert question.decomposition[0].title in question.prompt
        for hop in question.decomposition:
            named = f" {hop.answer} " in question.prompt.replace("?", " ")
            assert not named, "neither a bridge nor the answer is named"
        assert question.hops == {"1hop": 1, "bridge": 2, "3hop": 3, "4hop": 4}[question.type]


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**40),
    entities=st.integers(100, 700),
    split=st.sampled_from(FICTION_SPLITS),
    style=st.sampled_from(STYLES),
    distractors=st.integers(0, 50),
)
@settings(max_examples=40, deadline=None)
def test_questions_are_sound_for_any_seed_and_size(
    seed: int, entities: int, split: str, style: str, distractors: int
) -> None:
    dataset = fiction_dataset(
        seed=seed, entities=entities, split=split, style=style, distractors=distractors, mix=EVERY_TYPE, questions=25
    )
    passages = {passage.title: passage for passage in dataset.passages()}
    assert len(passages) == entities
    assert len({passage.id for passage in passages.values()}) == entities
    for question in dataset:
        check_question(question)
        assert len(question.context) == question.hops + distractors
        assert all(passages[passage.title] == passage for passage in question.context)
    assert len({question.id for question in dataset}) == len(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("only", QUESTION_TYPES)
@pytest.mark.parametrize("split", ["train", "ood"])
def test_no_prompt_occurs_twice_in_all_questions_of_a_small_natural_world(only: str, split: str) -> None:
    dataset = most_questions(entities=100, split=split, mix={only: 1}, distractors=0)
    assert len({question.prompt for question in dataset}) == len(dataset) > 50


# --- splits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_splits_share_no_entity_whatever_their_sizes(style: str) -> None:
    sizes = dict(zip(FICTION_SPLITS, (2400, 150, 600, 1300), strict=True))
    titles = {
        split: {passage.title for passage in fiction_dataset(entities=size, split=split, style=style).passages()}
        for split, size in sizes.items()
    }
    assert {split: len(names) for split, names in titles.items()} == sizes
    assert not any(titles[one] & titles[other] for one, other in combinations(FICTION_SPLITS, 2))


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_ood_asks_only_along_paths_that_the_other_splits_never_ask(style: str) -> None:
    paths = {
        split: {
            (question.metadata["path"], question.type)
            for question in fiction_dataset(entities=900, split=split, style=style, mix=EVERY_TYPE, questions=800)
        }
        for split in FICTION_SPLITS
    }
    seen = {path for split in ("train", "validation", "test") for path, _ in paths[split]}
    new = {path for path, _ in paths["ood"]}
    assert not seen & new
    assert {kind for _, kind in paths["ood"]} == set(QUESTION_TYPES)
    pairs_seen = {pair for path in seen for pair in pairwise(path)}
    for path in new:
        assert len(path) == 1 or set(pairwise(path)) - pairs_seen, "a new path has a new pair"
    assert {relation for path in new for relation in path} <= {relation for path in seen for relation in path}


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_over_three_folds_each_pair_of_relations_is_new_once(style: str) -> None:
    new: Counter[tuple[str, ...]] = Counter()
    chains = {"style": style, "entities": 900, "mix": {"bridge": 1}, "questions": 800}
    for fold in range(3):
        seen = {question.metadata["path"] for question in fiction_dataset(split="train", fold=fold, **chains)}
        ood = {question.metadata["path"] for question in fiction_dataset(split="ood", fold=fold, **chains)}
        assert not seen & ood
        new.update(ood)
    assert set(new.values()) == {1}
    assert new.keys() == {path for _, path in question_paths(FICTION_STYLES[style], 2)}


def test_folds_differ_and_are_checked() -> None:
    fingerprints = {fiction_dataset(fold=fold).fingerprint for fold in (None, 0, 1, 2)}
    assert len(fingerprints) == 4
    assert "fold=1" in fiction_dataset(fold=1).source
    for wrong in (3, -1, True, "1"):
        with pytest.raises(ConfigurationError, match="fold must be an integer, from 0 to 2"):
            fiction_dataset(fold=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(("style", "least"), [("natural", (58, 112, 165)), ("compact", (32, 50, 58))])
def test_there_are_many_paths_in_and_out_of_domain(style: str, least: tuple[int, ...]) -> None:
    for hops, number in zip((2, 3, 4), least, strict=True):
        paths = {path for _, path in question_paths(FICTION_STYLES[style], hops)}
        assert len(paths) == number
        assert sum(map(is_ood_path, paths)) >= 6
        assert sum(not is_ood_path(path) for path in paths) >= 6


# --- size, balance, retrieval ------------------------------------------------------------------------------------


def test_millions_of_entities_are_ready_at_once() -> None:
    with cpu_below(1):
        dataset = fiction_dataset(seed=11, entities=2_000_000, questions=1_500_000)
        stream = dataset.passages()
        first = [next(stream) for _ in range(10)]
        picked = [dataset[0], dataset[777_777], dataset[-1]]
    assert len({passage.title for passage in first}) == 10
    for question in picked:
        check_question(question)


@pytest.mark.parametrize("style", STYLES)
def test_answers_cannot_be_guessed_from_their_form(style: str) -> None:
    dataset = fiction_dataset(entities=600, questions=400, style=style, mix={"comparison": 1})
    answers = Counter(question.answers[0] for question in dataset)
    assert answers["yes"] == answers["no"] == 100
    ordered = [question for question in dataset if question.metadata["comparison"] == "order"]
    named_first = [question.prompt.index(question.answers[0]) < len(question.prompt) // 2 for question in ordered]
    starts = [question.decomposition[0].title == question.answers[0] for question in ordered]
    assert sum(starts) == 100
    assert 80 <= sum(named_first) <= 120


def test_mix_is_kept_in_every_stretch() -> None:
    dataset = fiction_dataset(questions=100)
    for start in (0, 50):
        types = Counter(dataset[index].type for index in range(start, start + 50))
        assert types == {kind: 50 * weight for kind, weight in DEFAULT_MIX.items()}
    table = TypeSchedule.of({"bridge": 1, "3hop": 1e-9})
    assert Counter(table.order) == {"bridge": 1000, "3hop": 1}
    ranks = [table.at(number) for number in range(3000)]
    assert len(set(ranks)) == 3000


@pytest.mark.parametrize("split", ["train", "ood"])
def test_contexts_hold_confusable_distractors(split: str) -> None:
    dataset = fiction_dataset(questions=60, split=split, mix={"bridge": 1})
    sharing = 0
    for question in dataset:
        gold = set(question.supporting_titles)
        values = [hop.answer for hop in question.decomposition]
        others = [passage for passage in question.context if passage.title not in gold]
        sharing += any(value in passage.text for value in values for passage in others)
        assert len(others) == 8
    assert sharing > 0.75 * len(dataset)
    places = {[p.title for p in question.context].index(question.supporting_titles[0]) for question in dataset}
    assert len(places) > 5


@pytest.mark.parametrize("style", STYLES)
def test_bm25_finds_a_passage_by_its_title(style: str) -> None:
    passages = list(fiction_dataset(style=style).passages())
    results = BM25Retriever(passages).search_batch([passage.title for passage in passages], 1)
    right = [hits[0].passage == passage for passage, hits in zip(passages, results, strict=True)]
    assert sum(right) >= 0.95 * len(passages)


# --- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entities": 99}, "entities must be an integer, at least 100, got 99"),
        ({"entities": 600.0}, "entities must be an integer"),
        ({"seed": True}, "seed must be an integer"),
        ({"seed": -1}, "seed must be an integer, at least 0"),
        ({"split": "trian"}, "Did you mean 'train'"),
        ({"split": None}, "Unknown split None"),
        ({"style": "compat"}, "Did you mean 'compact'"),
        ({"mix": {"brige": 1}}, "Did you mean 'bridge'"),
        ({"mix": {"bridge": -1}}, r"mix\['bridge'\] must be a weight"),
        ({"mix": {"bridge": float("nan")}}, r"mix\['bridge'\] must be a weight"),
        ({"mix": {"bridge": "half"}}, r"mix\['bridge'\] must be a weight"),
        ({"mix": {}}, "at least one weight above 0"),
        ({"mix": {"bridge": 0}}, "at least one weight above 0"),
        ({"mix": ["bridge"]}, "mix must map question types to weights"),
        ({"questions": 0}, "questions must be an integer, at least 1"),
        ({"distractors": -1}, "distractors must be an integer, from 0 to 300"),
        ({"distractors": 301}, "distractors must be an integer, from 0 to 300"),
        ({"style": "compact", "entities": 3000}, "enough for 2466 entities per split"),
        ({"entities": 10**8}, "too many for style 'natural'"),
        ({"entities": 100, "questions": 10**6}, "more than there are: 100 entities"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        fiction_dataset(**options)


@pytest.mark.parametrize(("style", "entities"), [("natural", 100), ("compact", 100), ("compact", 2466)])
@pytest.mark.parametrize("split", FICTION_SPLITS)
def test_extreme_sizes_work_with_every_type(style: str, entities: int, split: str) -> None:
    dataset = fiction_dataset(entities=entities, style=style, split=split, mix=EVERY_TYPE)
    assert len(dataset) == entities // 3
    for question in dataset:
        check_question(question)
    with pytest.raises(IndexError, match="out of range"):
        dataset[len(dataset)]


def test_description_names_every_setting() -> None:
    dataset = fiction_dataset(seed=4, entities=150, questions=20)
    assert dataset.name == "fiction"
    assert dataset.split == "train"
    for setting in ("seed=4", "entities=150", "style='natural'", "questions=20", "distractors=8", "mix="):
        assert setting in dataset.describe()
    assert fiction_dataset(seed=np.int64(4), entities=np.int32(150)).fingerprint == dataset.fingerprint
