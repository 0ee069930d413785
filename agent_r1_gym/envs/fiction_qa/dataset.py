"""`fiction_dataset`: a fictional encyclopedia and multi-hop questions about it, generated from a seed.

Nothing can have been memorised in pre-training, answers are unique by construction, and every part is a pure function
of (seed, split, number): a world of five million entities is ready at once and needs no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import SupportsIndex

from agent_r1_gym.data.base import QADataset
from agent_r1_gym.envs.fiction_qa.compact_style import COMPACT
from agent_r1_gym.envs.fiction_qa.natural_style import NATURAL
from agent_r1_gym.envs.fiction_qa.perturbations import PerturbedData, perturb
from agent_r1_gym.envs.fiction_qa.questions import NUM_FOLDS, QUESTION_TYPES, FictionCorpus, FictionQuestions
from agent_r1_gym.envs.fiction_qa.world import FICTION_SPLITS, FictionStyle, FictionWorld
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import check_choice, check_fraction, is_number

FICTION_STYLES: Mapping[str, FictionStyle] = {"natural": NATURAL, "compact": COMPACT}
DEFAULT_MIX: Mapping[str, float] = {"bridge": 0.5, "comparison": 0.2, "3hop": 0.2, "4hop": 0.1}
MIN_ENTITIES = 100


def fiction_dataset(
    *,
    seed: int = 0,
    entities: int = 600,
    questions: int | None = None,
    split: str = "train",
    style: str = "natural",
    mix: Mapping[str, float] | None = None,
    distractors: int = 8,
    aliases: float = 0.0,
    fold: int | None = None,
    perturbation: str | None = None,
) -> QADataset:
    """Generates a data set of questions about a fictional world; questions and passages are made on demand.

    Types of questions: "1hop", "bridge" (2 hops), "3hop" and "4hop" follow a chain of relations and name only its
    start. "comparison" asks which of two entities is earlier or larger (half of them; the answer is named first as
    often as second), or whether both have the same value (half; "yes" as often as "no"). `level` is "easy" for one hop,
    "medium" for two, "hard" for more. Each question has supporting facts, a gold decomposition and a shuffled context,
    in which some distractors share a gold value or kind. `metadata` has "path", the relations that the question
    follows, "style", and for comparisons "comparison": "order" or "same".

    Splits: no two splits share an entity name, and their relations are assigned anew. "train", "validation" and "test"
    use the same paths of relations. "ood" uses only paths that do not occur there: every path of two to four relations
    contains a pair of successive relations that the other splits never ask for, not even within a longer path, and 1hop
    and comparison questions are about other relations. Only the combination is new: every relation of "ood" occurs in
    paths of the other splits (the list is `questions.OOD_PATHS`). With `fold` 0, 1 or 2, another third of all pairs
    replaces the pairs of that list: over three experiments, each pair is held out once (32 in compact style, 58 in
    natural style).

    Styles: "natural" is varied English for instruct models: ten kinds, 28 relations, up to 6 million entities.
    "compact" has a closed lower-case vocabulary (`compact_vocabulary()`), words between single spaces and names of
    two tokens, for tiny models trained from scratch: six kinds, 18 relations, up to 2,466 entities.

    Aliases: other passages call an entity by its alias if it has one; only its own passage, which keeps its title,
    contains both. A search for a name that was read then also finds the other passages that contain it, in any order.
    Questions use titles, and both names are correct answers.

    Args:
        seed: seed of the world.
        entities: number of entities, and so of passages; at least 100.
        questions: number of questions; None: a third of `entities`, or all questions if there are fewer.
        split: one of `FICTION_SPLITS`.
        style: "natural" or "compact".
        mix: maps question types to weights of any scale, exact to 0.001 of their sum; None: `DEFAULT_MIX`.
        distractors: number of distractors in each context, at most half of `entities`.
        aliases: share of entities with an alias, 0 to 1; halves the maximum size of the world.
        fold: third of the pairs of relations that only "ood" asks for; None: the list.
        perturbation: one of `perturbations.PERTURBATIONS`, of the passages (not of the contexts) or of the wording;
            None: no perturbation.

    Raises:
        ConfigurationError: an argument is out of range, or the world has too few questions.
    """
    check_choice("split", split, FICTION_SPLITS)
    check_choice("style", style, list(FICTION_STYLES))
    seed = _check_count("seed", seed, low=0)
    entities = _check_count("entities", entities, low=MIN_ENTITIES)
    distractors = _check_count("distractors", distractors, low=0, high=entities // 2)
    length = None if questions is None else _check_count("questions", questions, low=1)
    weights = check_mix(DEFAULT_MIX if mix is None else mix)
    aliases = check_fraction("aliases", aliases)
    fold = None if fold is None else _check_count("fold", fold, low=0, high=NUM_FOLDS - 1)
    world = FictionWorld(FICTION_STYLES[style], seed=seed, entities=entities, split=split, aliases=aliases)
    corpus = FictionCorpus(world)
    variant = (f", aliases={aliases:g}" if aliases else "") + ("" if fold is None else f", fold={fold}")
    question_list = FictionQuestions(corpus, weights, distractors=distractors, length=length, fold=fold)
    served = (
        PerturbedData(question_list, corpus, world.key)
        if perturbation is None
        else perturb(perturbation, question_list)
    )
    perturbed = "" if perturbation is None else f", perturbation={perturbation!r}"
    return QADataset(
        served.questions,
        name="fiction",
        split=split,
        source=f"fiction_dataset(seed={seed}, entities={entities}, questions={len(question_list)}, split={split!r}, "
        f"style={style!r}, mix={weights}, distractors={distractors}{variant}{perturbed})",
        fingerprint=blake2b(f"{served.key}{variant}".encode(), digest_size=8).hexdigest(),
        corpus=served.passages,
    )


def _check_count(name: str, value: object, *, low: int, high: int | None = None) -> int:
    number = value.__index__() if isinstance(value, SupportsIndex) and not isinstance(value, bool) else low - 1
    if number < low or (high is not None and number > high):
        bounds = f"at least {low}" if high is None else f"from {low} to {high}"
        raise ConfigurationError(f"{name} must be an integer, {bounds}, got {value!r}.")
    return number


def check_mix(mix: object) -> dict[str, float]:
    """Checks a mix and returns its positive weights by question type.

    Raises:
        ConfigurationError: the mix is not a mapping from question types to weights, or no weight is above 0.
    """
    if not isinstance(mix, Mapping):
        raise ConfigurationError(f"mix must map question types to weights, got {mix!r}.")
    for kind, weight in mix.items():
        check_choice("question type in mix", kind, list(QUESTION_TYPES))
        if not is_number(weight) or weight < 0:
            raise ConfigurationError(f"mix[{kind!r}] must be a weight: a finite number of at least 0, got {weight!r}.")
    if not sum(mix.values()) > 0:
        raise ConfigurationError(f"mix must have at least one weight above 0, got {dict(mix)!r}.")
    return {kind: float(mix[kind]) for kind in QUESTION_TYPES if mix.get(kind, 0) > 0}
