"""Ledgers with a question each, made on demand as a pure function of options, split and index."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent_r1_gym.core.types import Task
from agent_r1_gym.data.generated import LazyTaskSequence
from agent_r1_gym.envs.long_read.compact_style import CompactLedgerStyle
from agent_r1_gym.envs.long_read.ledger import (
    QUESTION_TYPES,
    SPLITS,
    Fact,
    LedgerQuestion,
    LedgerStyle,
    NaturalLedgerStyle,
    answer_of,
    last_values,
    support_of,
)
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import check_choice, check_choices, check_integer

STYLES: Mapping[str, LedgerStyle] = {style.name: style for style in (NaturalLedgerStyle(), CompactLedgerStyle())}
MAX_PAGES, MAX_FACTS = 32, 12
_DISTRACTORS = 0.6
"""Distinct other keys, as a share of the entries about them: the remaining entries are updates."""
_KEYS_IN_USE = {"sum": 2, "balance_of_holder": 2}
"""Keys of a question, without updates, where there are more than one."""

_NO_QUESTION = LedgerQuestion("", (), is_about_item=False)


class StyleDefaults(NamedTuple):
    """Defaults of a style."""

    pages: int
    facts: int
    updates: int
    types: tuple[str, ...]


DEFAULTS: Mapping[str, StyleDefaults] = {
    "natural": StyleDefaults(pages=8, facts=6, updates=3, types=QUESTION_TYPES),
    "compact": StyleDefaults(pages=3, facts=2, updates=1, types=("holder", "balance")),
}


@dataclass(frozen=True, slots=True)
class LedgerTask(Task):
    """A ledger and a question about it.

    Attributes:
        facts: entries of each page in order.
        pages: rendered pages.
        question: the question; `prompt` is its wording.
        support: entries behind the answer.
    """

    facts: tuple[tuple[Fact, ...], ...] = ()
    pages: tuple[str, ...] = ()
    question: LedgerQuestion = _NO_QUESTION
    support: tuple[Fact, ...] = ()


class LedgerConfig(NamedTuple):
    """Common options of all ledgers of a data set."""

    style: str
    seed: int
    split: str
    pages: int
    facts: int
    updates: int
    types: tuple[str, ...]

    @property
    def rng_key(self) -> str:
        """Key of the random numbers. Committed experiments depend on it, whatever this class is called."""
        return (
            f"Kind(style={self.style!r}, seed={self.seed!r}, split={self.split!r}, pages={self.pages!r}, "
            f"facts={self.facts!r}, updates={self.updates!r}, types={self.types!r})"
        )


class LedgerTasks(LazyTaskSequence[LedgerTask]):
    """Ledgers, each with a question.

    No question is about the last page, and no page has two entries about a key. In the natural style, splits share no
    item and no person; in the compact style, they share no pair of key and value that decides a question (see
    `CompactLedgerStyle`).

    Args:
        questions: number of ledgers.
        seed: seed of the ledgers.
        split: "train", "validation" or "test".
        style: "natural" or "compact".
        pages: pages of a ledger, 2 to 32; None, here and below: the default of the style.
        facts: entries of a page, 2 to 12.
        updates: maximum number of changes of a requested value after its first entry, 0 to `pages` - 2.
        types: question types, some of `QUESTION_TYPES`.

    Raises:
        ConfigurationError: an argument has a wrong value, or there are too few names for the pages.
    """

    def __init__(
        self,
        questions: int = 2_000,
        *,
        seed: int = 0,
        split: str = "train",
        style: str = "natural",
        pages: int | None = None,
        facts: int | None = None,
        updates: int | None = None,
        types: Sequence[str] | None = None,
    ) -> None:
        check_choice("style", style, tuple(STYLES))
        check_choice("split", split, SPLITS)
        check_integer("questions", questions, 1)
        check_integer("seed", seed, 0)
        defaults = DEFAULTS[style]
        pages = _bounded("pages", defaults.pages if pages is None else pages, 2, MAX_PAGES)
        facts = _bounded("facts", defaults.facts if facts is None else facts, 2, MAX_FACTS)
        default_updates = min(defaults.updates, pages - 2)
        updates = _bounded("updates", default_updates if updates is None else updates, 0, pages - 2)
        types = defaults.types if types is None else check_choices("types", types, QUESTION_TYPES)
        super().__init__(questions)
        self.config = LedgerConfig(style, seed, split, pages, facts, updates, types)
        # The last page is about other keys than the question: enough must remain to fill it.
        needed = {name: _KEYS_IN_USE.get(name, 1) + updates * (name == "balance_of_holder") for name in types}
        largest = max(types, key=lambda name: needed[name])
        keys = len(STYLES[style].items[split]) + len(STYLES[style].persons[split])
        if keys - needed[largest] < facts:
            raise ConfigurationError(
                f"facts={facts}: style={style!r} has {keys} items and persons, of which a question of type "
                f"{largest!r} with updates={updates} needs up to {needed[largest]}, so that too few remain for a "
                "page. Lower facts or updates, or exclude that type."
            )

    def describe(self) -> str:
        """One line about split, number, style, size and seed."""
        style, seed, split, pages, facts, updates, _ = self.config
        size = f"{pages} pages of {facts} entries, up to {updates} updates"
        return f"long read {split}: {len(self)} ledgers, {style}, {size}, seed {seed}"

    def make(self, index: int) -> LedgerTask:
        """Makes a ledger with its question."""
        return _task(self.config, index)


def _bounded(name: str, value: int, low: int, high: int) -> int:
    check_integer(name, value, low)
    if value > high:
        raise ConfigurationError(f"{name} must be from {low} to {high}, got {value}.")
    return value


@functools.lru_cache(maxsize=4_096)
def _task(config: LedgerConfig, index: int) -> LedgerTask:
    rng, style = random.Random(f"long read/{config.rng_key}/{index}"), STYLES[config.style]
    question, facts = _generate_ledger(config, style, rng)
    entries = list(itertools.chain(*facts))
    support, answer = support_of(question, entries), answer_of(question, entries)
    assert answer is not None
    pages = [
        style.page(number, config.pages, [style.line(fact, rng) for fact in page])
        for number, page in enumerate(facts, 1)
    ]
    return LedgerTask(
        f"ledger-{config.style}-{config.seed}-{config.split}-{index}",
        style.question(question),
        style.answers(question, answer, support),
        {"type": question.type, "updates": sum(fact.key == question.keys[0] for fact in entries) - 1},
        facts=facts,
        pages=tuple(pages),
        question=question,
        support=support,
    )


def _generate_ledger(
    config: LedgerConfig, style: LedgerStyle, rng: random.Random
) -> tuple[LedgerQuestion, tuple[tuple[Fact, ...], ...]]:
    """Draws a question and its entries until they fit on the pages and belong to the split; fills up the pages."""
    question_type = rng.choice(config.types)  # outside of the loop: retries must not prefer the types that fit easily
    while True:
        question, histories = _draw_question(question_type, config, style, rng)
        pages = _place_histories(config, histories, rng)
        if pages is None:
            continue
        support = support_of(question, list(itertools.chain(*pages)))
        if all(style.belongs_to_split(fact, config.split) for fact in support[-len(question.keys) :]):
            _add_distractors(config, style, set(histories), pages, rng)
            for page in pages:
                rng.shuffle(page)
            return question, tuple(map(tuple, pages))


def _draw_question(
    question_type: str, config: LedgerConfig, style: LedgerStyle, rng: random.Random
) -> tuple[LedgerQuestion, dict[str, list[str]]]:
    """Draws a question, and the successive values of each key that it is about."""
    items, persons = style.items[config.split], style.persons[config.split]
    is_about_item = question_type in ("holder", "balance_of_holder") or (
        question_type == "changes" and rng.random() < 0.5
    )
    keys = rng.sample(items if is_about_item else persons, 2 if question_type == "sum" else 1)
    histories = {key: _draw_history(persons if is_about_item else style.balances, config.updates, rng) for key in keys}
    if question_type == "balance_of_holder":
        for person in tuple(histories[keys[0]]):
            histories[person] = _draw_history(style.balances, config.updates, rng)
    return LedgerQuestion(question_type, tuple(keys), is_about_item), histories


def _draw_history(values: Sequence[str], updates: int, rng: random.Random) -> list[str]:
    """Draws a value and its updates; each differs from the one before."""
    history = [rng.choice(values)]
    for _ in range(rng.randint(0, updates)):
        history.append(_draw_different(values, history[-1], rng))
    return history


def _draw_different(values: Sequence[str], old: str | None, rng: random.Random) -> str:
    while (value := rng.choice(values)) == old:
        pass
    return value


def _place_histories(
    config: LedgerConfig, histories: Mapping[str, Sequence[str]], rng: random.Random
) -> list[list[Fact]] | None:
    """Places the entries on all pages but the last; None if there is not enough room."""
    pages: list[list[Fact]] = [[] for _ in range(config.pages)]
    for key, values in histories.items():
        free = [page for page in pages[:-1] if len(page) < config.facts]
        if len(free) < len(values):
            return None
        numbers = sorted(rng.sample(range(len(free)), len(values)))
        for number, value in zip(numbers, values, strict=True):
            free[number].append(Fact(key, value))
    return pages


def _add_distractors(
    config: LedgerConfig, style: LedgerStyle, used: set[str], pages: list[list[Fact]], rng: random.Random
) -> None:
    """Fills the pages with entries about other keys, updates included."""
    items, persons = style.items[config.split], style.persons[config.split]
    is_item, values = frozenset(items), dict[str, str]()
    missing = sum(config.facts - len(page) for page in pages)
    number = max(config.facts, round(_DISTRACTORS * missing))
    groups = (items, persons) if style.is_balanced else ((*items, *persons),)
    unused = [[key for key in names if key not in used] for names in groups]
    total = sum(map(len, unused))
    pools = []
    for keys in unused:
        # Together the pools must fill a page, even if the other one is used up.
        size = max(-(-number // len(groups)), config.facts - (total - len(keys)))
        pools.append(rng.sample(keys, min(len(keys), size)))
    for page in pages:
        for key in _draw_keys(pools, page, config.facts, rng):
            value = _draw_different(persons if key in is_item else style.balances, values.get(key), rng)
            page.append(Fact(key, value))
        values.update(last_values(page))


def _draw_keys(pools: Sequence[Sequence[str]], page: Sequence[Fact], facts: int, rng: random.Random) -> list[str]:
    """Draws keys that fill a page: from the single pool, or as many items as persons from two pools."""
    missing = facts - len(page)
    if len(pools) == 1:
        return rng.sample(pools[0], missing)
    balances = sum(fact.is_balance for fact in page)
    from_items = min(max(facts // 2 - (len(page) - balances), 0), missing, len(pools[0]))
    from_items = max(from_items, missing - len(pools[1]))
    return [*rng.sample(pools[0], from_items), *rng.sample(pools[1], missing - from_items)]
