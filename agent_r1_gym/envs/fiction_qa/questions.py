"""The questions of a `FictionWorld` and its passages, each made on demand from its number.

In this order: which paths of relations a split asks along; pools of all questions of one form; the schedule that mixes
types; the corpus; and the questions themselves.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import gcd
from typing import Any, NamedTuple

from agent_r1_gym.core.types import Passage
from agent_r1_gym.data.base import Hop, Question, SupportingFact
from agent_r1_gym.data.generated import LazyTaskSequence
from agent_r1_gym.envs.fiction_qa.world import SYMMETRIC, Entity, FictionStyle, FictionWorld, Permutation, words
from agent_r1_gym.errors import ConfigurationError

CHAIN_HOPS = {"1hop": 1, "bridge": 2, "3hop": 3, "4hop": 4}
QUESTION_TYPES = ("1hop", "bridge", "comparison", "3hop", "4hop")

OOD_PATHS = frozenset(
    tuple(path.split("."))
    for path in words("""
    setting industry employer foundation length
    author.teacher publisher.founder setting.country spouse.employer spouse.birthyear
    teacher.birthplace teacher.spouse employer.foundation founder.occupation founder.university
    headquarters.country birthplace.product birthplace.river university.foundation campus.population
    country.currency capital.river river.sea
    """)
)
"""Paths of split "ood" alone: single relations (1hop, comparison), and pairs of relations anywhere in a path."""
NUM_FOLDS = 3
"""Number of folds into which all pairs of relations are divided; `fold` holds one of them out."""

_SPAN = 8  # maximum number of neighbours, in the order of `FictionWorld.position`, that an entity is compared with
_PERIOD = 1000


def is_ood_path(path: Sequence[str], held_out: Collection[tuple[str, ...]] = OOD_PATHS) -> bool:
    """Whether a path belongs to split "ood", which holds out these relations and pairs."""
    return any(pair in held_out for pair in pairwise(path)) if len(path) > 1 else tuple(path) in held_out


class Segment(NamedTuple):
    """Questions of one form: along `path`, starting at entities of `kind`; comparisons have `span` neighbours each."""

    kind: str
    path: tuple[str, ...]
    size: int
    span: int = 1


class QuestionPool:
    """All questions of some segments in random order.

    Args:
        segments: segments to draw from.
        key: key of the order.
    """

    def __init__(self, segments: Sequence[Segment], key: str) -> None:
        self._segments = segments
        self._ends = list(accumulate(segment.size for segment in segments))
        self._order = Permutation(self._ends[-1] if self._ends else 0, key)

    def __len__(self) -> int:
        return self._order.size

    def draw(self, number: int) -> tuple[Segment, int]:
        """The segment of a question and the index within it; every number gives another pair."""
        position = self._order(number)
        at = bisect_right(self._ends, position)
        return self._segments[at], position - (self._ends[at - 1] if at else 0)


@lru_cache(64)
def question_paths(style: FictionStyle, hops: int) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """All (start kind, path of `hops` relations) of a style, for all splits."""

    def extend(kind: str, left: int) -> Iterator[tuple[str, ...]]:
        for relation, target in style.relations[kind].items():
            if left == 1:
                yield (relation,)
            elif target in style.relations:
                rests = extend(target, left - 1)
                yield from ((relation, *rest) for rest in rests if not relation == rest[0] == SYMMETRIC)

    return tuple((kind, path) for kind in style.kinds for path in extend(kind, hops))


@lru_cache(16)
def ood_paths(style: FictionStyle, fold: int | None) -> frozenset[tuple[str, ...]]:
    """Paths of split "ood" alone: `OOD_PATHS`; with a fold, every third pair in alphabetical order instead."""
    if fold is None:
        return OOD_PATHS
    pairs = sorted({path for _, path in question_paths(style, 2)})
    return frozenset(path for path in OOD_PATHS if len(path) == 1).union(pairs[fold::NUM_FOLDS])


def _split_paths(world: FictionWorld, hops: int, fold: int | None = None) -> list[tuple[str, tuple[str, ...]]]:
    wanted, held_out = world.split == "ood", ood_paths(world.style, fold)
    return [(kind, path) for kind, path in question_paths(world.style, hops) if is_ood_path(path, held_out) == wanted]


def chain_pool(world: FictionWorld, hops: int, fold: int | None = None) -> QuestionPool:
    """Pool of the questions that follow `hops` relations; `fold`: see `ood_paths`."""
    segments = [Segment(kind, path, world.counts[kind]) for kind, path in _split_paths(world, hops, fold)]
    return QuestionPool(segments, f"{world.key}/{hops} hops")


def comparison_pools(world: FictionWorld) -> dict[str, QuestionPool]:
    """Pools "order", "yes" and "no" of the comparisons of two entities of a kind."""
    segments: dict[str, list[Segment]] = {"order": [], "yes": [], "no": []}
    for kind, path in _split_paths(world, 1):
        count, targets = world.counts[kind], world.targets(kind, path[0])
        different_span = min(_SPAN, targets - 1, count // 2)
        same_span = min(_SPAN, max(1, count // (2 * targets)))
        differ = Segment(kind, path, (count - different_span) * different_span, different_span)
        agree = Segment(kind, path, max(0, count - targets * same_span) * same_span, same_span)
        if path[0] in world.style.ordered:
            segments["order"].append(differ)
        elif path[0] in world.style.shared and agree.size and differ.size:
            size = min(agree.size, differ.size)
            segments["yes"].append(agree._replace(size=size))
            segments["no"].append(differ._replace(size=size))
    return {mode: QuestionPool(mode_segments, f"{world.key}/{mode}") for mode, mode_segments in segments.items()}


@dataclass(frozen=True, slots=True)
class TypeSchedule:
    """Assigns types to question numbers, so that any range of questions has nearly the requested mix.

    Attributes:
        order: types of one period (smooth weighted round robin).
        type_indices: for each position of the period, the number of questions of its type before it.
        totals: questions of each type in one period.
    """

    order: tuple[str, ...]
    type_indices: tuple[int, ...]
    totals: Mapping[str, int]

    @classmethod
    def of(cls, mix: Mapping[str, float]) -> TypeSchedule:
        """Builds the schedule of a mix, exact to 0.001; a positive weight gets at least one position per period."""
        whole = sum(mix.values())
        slots = {kind: max(1, round(_PERIOD * weight / whole)) for kind, weight in mix.items() if weight > 0}
        divisor = gcd(*slots.values())
        slots = {kind: count // divisor for kind, count in slots.items()}
        credit = dict.fromkeys(slots, 0)
        seen = dict.fromkeys(slots, 0)
        order, type_indices = [], []
        for _ in range(sum(slots.values())):
            credit = {kind: credit[kind] + slots[kind] for kind in slots}
            kind = max(credit, key=lambda kind: credit[kind])
            credit[kind] -= sum(slots.values())
            order.append(kind)
            type_indices.append(seen[kind])
            seen[kind] += 1
        return cls(tuple(order), tuple(type_indices), slots)

    def at(self, number: int) -> tuple[str, int]:
        """The type of a question, and the number of questions of that type before it."""
        period, position = divmod(number, len(self.order))
        kind = self.order[position]
        return kind, period * self.totals[kind] + self.type_indices[position]

    def first_beyond(self, kind: str, available: int) -> int:
        """Number of the first question that needs more than `available` questions of a type."""
        period, type_index = divmod(available, self.totals[kind])
        positions = [position for position, candidate in enumerate(self.order) if candidate == kind]
        return period * len(self.order) + positions[type_index]


COMPARISON_MODES = ("first", "yes", "second", "no")
"""Modes of comparisons, in turn. "first" and "second": the answer is the entity named first or second."""

_LEVELS = {1: "easy", 2: "medium", 3: "hard", 4: "hard"}
_PASSAGE_CACHE_SIZE = 1 << 12
_ENTITIES_PER_QUESTION = 3


class FictionCorpus(LazyTaskSequence[Passage]):
    """The passages of a world, one per entity, in the order of `FictionWorld.entity`; recent ones are cached."""

    def __init__(self, world: FictionWorld) -> None:
        super().__init__(world.entities)
        self.world = world
        self._cached_passage = lru_cache(_PASSAGE_CACHE_SIZE)(self._write)

    def __reduce__(self) -> tuple[type[FictionCorpus], tuple[FictionWorld]]:
        return FictionCorpus, (self.world,)

    def make(self, index: int) -> Passage:
        """The passage about an entity."""
        return self._cached_passage(index)

    def _write(self, number: int) -> Passage:
        world = self.world
        entity = world.entity(number)
        sentences = world.style.sentences(world, entity)
        if alias := world.alias(entity):
            sentences = world.style.add_alias(sentences, world.title(entity), alias)
        ends = accumulate((len(sentence) + 1 for sentence in sentences), initial=-1)
        return Passage(
            id=f"fiction-{world.seed}-{world.split}-{number}",
            title=world.title(entity),
            text=" ".join(sentences),
            sentence_ends=tuple(ends)[1:],
        )


class FictionQuestions(LazyTaskSequence[Question]):
    """Questions in the proportions of a mix.

    Args:
        corpus: passages of the world.
        mix: maps question types to weights.
        distractors: number of distractors in each context.
        length: number of questions; None: a third of the entities, or all questions if there are fewer.
        fold: see `ood_paths`.

    Raises:
        ConfigurationError: there are fewer than `length` different questions.
    """

    def __init__(
        self,
        corpus: FictionCorpus,
        mix: Mapping[str, float],
        *,
        distractors: int,
        length: int | None = None,
        fold: int | None = None,
    ) -> None:
        world = corpus.world
        self.corpus, self._mix, self._distractors, self._fold = corpus, mix, distractors, fold
        self._type_schedule = TypeSchedule.of(mix)
        self._chains = {kind: chain_pool(world, CHAIN_HOPS[kind], fold) for kind in CHAIN_HOPS if mix.get(kind, 0) > 0}
        self._comparisons = comparison_pools(world) if mix.get("comparison", 0) > 0 else {}
        max_questions = min(self._type_schedule.first_beyond(kind, count) for kind, count in self._available().items())
        size = min(world.entities // _ENTITIES_PER_QUESTION, max_questions) if length is None else length
        if not 1 <= size <= max_questions:
            raise ConfigurationError(
                f"questions={size} is more than there are: {world.entities} entities and mix {dict(mix)} give "
                f"{max_questions} different questions in split {world.split!r}. Lower `questions` or raise `entities`."
            )
        super().__init__(size)

    def _available(self) -> dict[str, int]:
        available = {kind: len(pool) for kind, pool in self._chains.items()}
        if pools := self._comparisons:
            available["comparison"] = len(COMPARISON_MODES) * min(
                len(pools["order"]) // 2, len(pools["yes"]), len(pools["no"])
            )
        return available

    def with_corpus(self, corpus: FictionCorpus) -> FictionQuestions:
        """The questions with the same numbers about another world."""
        shape: dict[str, Any] = {"distractors": self._distractors, "length": len(self), "fold": self._fold}
        return FictionQuestions(corpus, self._mix, **shape)

    def make(self, index: int, wording: int = 0) -> Question:
        """Makes a question; another number of the `wording` draws other phrases for a chain of relations."""
        kind, type_index = self._type_schedule.at(index)
        world = self.corpus.world
        name = f"fiction-{world.seed}-{world.split}-{kind}-{index}"
        suffix = f"/{wording}" if wording else ""
        rng = random.Random(f"{name}/{world.style.name}/{world.entities}{suffix}")
        draft = (
            self._compare(type_index, rng)
            if kind == "comparison"
            else _chain(world, *self._chains[kind].draw(type_index), rng)
        )
        context = [fact.entity for fact in draft.facts]
        context += _sample_distractors(world, draft.facts, self._distractors, rng)
        rng.shuffle(context)
        return Question(
            id=name,
            prompt=draft.prompt,
            answers=tuple(dict.fromkeys((draft.answer, draft.title or draft.answer))),
            metadata={"path": draft.path, "style": world.style.name, **draft.metadata},
            type=kind,
            level=_LEVELS[len(draft.hops)],
            hops=len(draft.hops),
            supporting_facts=tuple(
                SupportingFact(world.title(fact.entity), world.style.sentence_index(world, *fact))
                for fact in draft.facts
            ),
            context=tuple(self.corpus[world.number(entity)] for entity in context),
            decomposition=draft.hops,
        )

    def _compare(self, type_index: int, rng: random.Random) -> _QuestionDraft:
        turn, mode = type_index // len(COMPARISON_MODES), COMPARISON_MODES[type_index % len(COMPARISON_MODES)]
        if mode in ("yes", "no"):
            return _compare_same(self.corpus.world, *self._comparisons[mode].draw(turn), mode, rng)
        swapped = mode == "second"
        return _compare_order(self.corpus.world, *self._comparisons["order"].draw(2 * turn + swapped), swapped, rng)


class _Fact(NamedTuple):
    entity: Entity
    relation: str


class _QuestionDraft(NamedTuple):
    """A question without id and context."""

    prompt: str
    answer: str
    path: tuple[str, ...]
    facts: tuple[_Fact, ...]
    hops: tuple[Hop, ...]
    metadata: Mapping[str, str] = {}
    title: str | None = None  # of the entity that the answer denotes


def _hop(world: FictionWorld, fact: _Fact, subject: str, rng: random.Random) -> Hop:
    return Hop(world.style.ask(fact.relation, subject, rng), world.target_text(*fact), world.title(fact.entity))


def _chain(world: FictionWorld, segment: Segment, index: int, rng: random.Random) -> _QuestionDraft:
    """Drafts the question that follows the path of a segment from entity `index` of its kind."""
    style, path = world.style, segment.path
    facts = [_Fact(Entity(segment.kind, index), path[0])]
    phrase = style.mention(world, facts[0].entity)
    hops = [_hop(world, facts[0], phrase, rng)]
    for step, relation in enumerate(path[1:], start=1):
        phrase = style.describe(path[step - 1], phrase, rng)
        facts.append(_Fact(world.follow(*facts[-1]), relation))
        hops.append(_hop(world, facts[-1], f"#{step}", rng))
    question_text = style.ask(path[-1], phrase, rng)
    return _QuestionDraft(
        question_text, hops[-1].answer, path, tuple(facts), tuple(hops), title=world.title_of(*facts[-1])
    )


def _compare_same(world: FictionWorld, segment: Segment, index: int, answer: str, rng: random.Random) -> _QuestionDraft:
    """Drafts the yes/no question about a pair of a segment."""
    relation = segment.path[0]
    pair = _pair(world, segment, index, step=world.targets(segment.kind, relation) if answer == "yes" else 1)
    rng.shuffle(pair)
    return _draft_pair(world, pair, segment.path, world.style.ask_same(relation, rng), answer, "same", rng)


def _compare_order(
    world: FictionWorld, segment: Segment, index: int, swapped: bool, rng: random.Random
) -> _QuestionDraft:
    """Drafts the question which of a pair comes first; `swapped`: the answer is named second."""
    relation = segment.path[0]
    template, higher = world.style.ask_order(relation, rng)
    pair = _pair(world, segment, index, step=1)
    pair.sort(key=lambda entity: world.target(entity, relation), reverse=higher != swapped)
    answer = world.title(pair[1 if swapped else 0])
    return _draft_pair(world, pair, segment.path, template, answer, "order", rng)


def _draft_pair(
    world: FictionWorld,
    pair: Sequence[Entity],
    path: tuple[str, ...],
    template: str,
    answer: str,
    comparison: str,
    rng: random.Random,
) -> _QuestionDraft:
    facts = tuple(_Fact(entity, path[0]) for entity in pair)
    first, second = (world.style.mention(world, entity) for entity in pair)
    hops = (_hop(world, facts[0], first, rng), _hop(world, facts[1], second, rng))
    return _QuestionDraft(template.format(a=first, b=second), answer, path, facts, hops, {"comparison": comparison})


def _pair(world: FictionWorld, segment: Segment, index: int, *, step: int) -> list[Entity]:
    """The pair at an index of a comparison segment: its positions are 1 to span steps apart."""
    position, offset = divmod(index, segment.span)
    relation = segment.path[0]
    return [world.at(segment.kind, relation, place) for place in (position, position + (offset + 1) * step)]


def _sample_distractors(world: FictionWorld, facts: Sequence[_Fact], count: int, rng: random.Random) -> list[Entity]:
    """Samples entities that are not gold: in turn one with a gold value, one of a gold kind, and any one."""
    used = {fact.entity for fact in facts}
    choices: list[Callable[[Entity, str], Entity]] = [
        lambda entity, relation: _sibling(world, entity, relation, rng),
        lambda entity, _: Entity(entity.kind, rng.randrange(world.counts[entity.kind])),
        lambda *_: world.entity(rng.randrange(world.entities)),
    ]
    sampled: list[Entity] = []
    attempt = 0
    while len(sampled) < count:
        turn, choice = divmod(attempt, len(choices))
        candidate = choices[choice](*facts[turn % len(facts)])
        attempt += 1
        if candidate not in used:
            used.add(candidate)
            sampled.append(candidate)
    return sampled


def _sibling(world: FictionWorld, entity: Entity, relation: str, rng: random.Random) -> Entity:
    """Samples an entity with the same target of a relation; it may be the entity itself."""
    targets = world.targets(entity.kind, relation)
    position = world.position(entity, relation)
    same_target = (world.counts[entity.kind] - position % targets - 1) // targets + 1
    return world.at(entity.kind, relation, position % targets + targets * rng.randrange(same_target))
