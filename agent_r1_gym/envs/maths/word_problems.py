"""Generated word problems with the annotations of GSM8K: the bundled sample that replaces the real data."""

from __future__ import annotations

import random
from collections.abc import Iterator

from agent_r1_gym.data.base import QADataset
from agent_r1_gym.data.generated import is_in_split
from agent_r1_gym.data.official import gsm8k
from agent_r1_gym.data.official.dataset_formats import FORMATS, build_dataset, official_row
from agent_r1_gym.data.official.raw_rows import Row

_NAMES = ("Ada", "Bao", "Chidi", "Dora", "Emre", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kofi", "Lena")
_THINGS = ("pencils", "stickers", "apples", "marbles", "stamps", "buttons", "shells", "candles")


def word_problems(split: str, questions: int, *, name: str = "gsm8k") -> QADataset:
    """Generates word problems of two to four steps; no problem is in two splits.

    Args:
        split: "train", "validation" or "test".
        questions: number of problems.
        name: short name of the data set that they replace.
    """
    source = f"a bundled GENERATED sample in the shape of {gsm8k.TITLE} (not {FORMATS[name].TITLE} itself)"
    made = build_dataset(_rows(split, questions), "gsm8k", split=split, source=source)
    return QADataset(tuple(made), name=f"{name}-sample", split=split, source=source, fingerprint="")


def _rows(split: str, questions: int) -> Iterator[Row]:
    rng = random.Random(f"words/{split}")
    number = 0
    while number < questions:
        question, answer = (_shop, _shared, _savings, _garden)[number % 4](rng)
        if is_in_split(question, split):
            row = {"question": question, "answer": answer}
            yield official_row(gsm8k, row, number=number, where=f"sample, row {number}", aliases={})
            number += 1


def _shop(rng: random.Random) -> tuple[str, str]:
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    packs, each, price = rng.randint(3, 9), rng.randint(4, 24), rng.randint(2, 9)
    pieces = packs * each
    cost = pieces * price
    paid = (cost // 100 + 1) * 100
    return (
        f"{name} buys {packs} boxes of {each} {thing} each. One of the {thing} costs {price} coins. {name} pays with "
        f"{paid} coins. How many coins does {name} get back?",
        f"{name} buys {packs}*{each}=<<{packs}*{each}={pieces}>>{pieces} {thing}.\n"
        f"They cost {pieces}*{price}=<<{pieces}*{price}={cost}>>{cost} coins.\n"
        f"{name} gets {paid}-{cost}=<<{paid}-{cost}={paid - cost}>>{paid - cost} coins back.\n#### {paid - cost}",
    )


def _shared(rng: random.Random) -> tuple[str, str]:
    name, friend = rng.sample(_NAMES, 2)
    thing, people, share, own = rng.choice(_THINGS), rng.randint(3, 9), rng.randint(6, 35), rng.randint(5, 40)
    shared = people * share
    total = shared + own
    return (
        f"{name} has {total} {thing}, keeps {own} of them, and shares out the rest equally among {people} children. "
        f"{friend} is one of the children and already had {2 * own} {thing}. How many does {friend} have now?",
        f"{name} shares out {total}-{own}=<<{total}-{own}={shared}>>{shared} {thing}.\n"
        f"Each child gets {shared}/{people}=<<{shared}/{people}={share}>>{share}.\n"
        f"{friend} has {share}+{2 * own}=<<{share}+{2 * own}={share + 2 * own}>>{share + 2 * own} now.\n"
        f"#### {share + 2 * own}",
    )


def _savings(rng: random.Random) -> tuple[str, str]:
    name, weeks, wage, spent = rng.choice(_NAMES), rng.randint(4, 26), rng.randint(15, 95), rng.randint(3, 12)
    earned, gone = weeks * wage, weeks * spent
    return (
        f"{name} earns {wage} coins in a week and spends {spent} of them. How many coins has {name} saved after "
        f"{weeks} weeks?",
        f"{name} earns {wage}*{weeks}=<<{wage}*{weeks}={earned}>>{earned} coins.\n"
        f"{name} spends {spent}*{weeks}=<<{spent}*{weeks}={gone}>>{gone} coins.\n"
        f"So {earned}-{gone}=<<{earned}-{gone}={earned - gone}>>{earned - gone} coins are saved.\n#### {earned - gone}",
    )


def _garden(rng: random.Random) -> tuple[str, str]:
    name, long, wide, beds = rng.choice(_NAMES), rng.randint(12, 48), rng.randint(6, 30), rng.randint(2, 9)
    area, used = long * wide, beds * 8
    return (
        f"{name} has a garden of {long} by {wide} metres with {beds} beds of 8 square metres each. The rest is grass. "
        "How many square metres are grass?",
        f"The garden has {long}*{wide}=<<{long}*{wide}={area}>>{area} square metres.\n"
        f"The beds take {beds}*8=<<{beds}*8={used}>>{used} square metres.\n"
        f"The grass takes {area}-{used}=<<{area}-{used}={area - used}>>{area - used} square metres.\n"
        f"#### {area - used}",
    )
