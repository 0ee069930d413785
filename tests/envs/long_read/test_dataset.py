"""Ledgers: gold by hand and by reading the pages anew, splits, structure, the same in every process."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from agent_r1_gym.envs.long_read.dataset import STYLES, LedgerTask, LedgerTasks
from agent_r1_gym.envs.long_read.ledger import QUESTION_TYPES, SPLITS, Fact, LedgerQuestion, answer_of, support_of
from agent_r1_gym.errors import ConfigurationError

LEDGER = [
    *(Fact("red", "ana"), Fact("ana", "3"), Fact("ben", "5"), Fact("red", "ben"), Fact("blue", "ana")),
    *(Fact("ben", "1"), Fact("red", "ana"), Fact("ana", "8")),
]
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"pages": 2, "facts": 2},
    {"pages": 32, "facts": 12, "updates": 30},
    {"style": "compact"},
    {"style": "compact", "types": QUESTION_TYPES, "pages": 5, "facts": 5, "updates": 3},
)
every_setting = pytest.mark.parametrize("options", SETTINGS, ids=["natural", "small", "large", "compact", "all"])


@pytest.mark.parametrize(
    ("question", "answer", "support"),
    [
        (LedgerQuestion("holder", ("red",), True), "ana", [("red", "ana")]),
        (LedgerQuestion("holder", ("blue",), True), "ana", [("blue", "ana")]),
        (LedgerQuestion("balance", ("ben",), False), "1", [("ben", "1")]),
        (LedgerQuestion("changes", ("red",), True), "2", [("red", "ana"), ("red", "ben"), ("red", "ana")]),
        (LedgerQuestion("changes", ("blue",), True), "0", [("blue", "ana")]),
        (LedgerQuestion("sum", ("ana", "ben"), False), "9", [("ana", "8"), ("ben", "1")]),
        (LedgerQuestion("balance_of_holder", ("red",), True), "8", [("red", "ana"), ("ana", "8")]),
    ],
)
def test_answers_by_hand(question: LedgerQuestion, answer: str, support: list[tuple[str, str]]) -> None:
    assert answer_of(question, LEDGER) == answer
    assert list(support_of(question, LEDGER)) == support
    assert answer_of(question, []) is None


def test_an_answer_needs_all_facts() -> None:
    assert answer_of(LedgerQuestion("sum", ("ana", "ben"), False), [Fact("ana", "3")]) is None
    assert answer_of(LedgerQuestion("balance_of_holder", ("red",), True), [Fact("red", "ana")]) is None


PATTERNS = [
    r"The (?P<key>[a-z ]+) was handed to (?P<value>.+)\.",
    r"(?P<value>.+) took over the (?P<key>.+)\.",
    r"From this day on (?P<value>.+) keeps the (?P<key>.+)\.",
    r"The (?P<key>[a-z ]+) is entrusted to (?P<value>.+)\.",
    r"The balance of (?P<key>.+) is (?P<value>\d+)\.",
    r"After the count (?P<key>.+) has (?P<value>\d+) in the books\.",
    r"(?P<value>\d+) is what the account of (?P<key>.+) holds\.",
    r"The clerk set the account of (?P<key>.+) to (?P<value>\d+)\.",
]


def read(task: LedgerTask) -> list[tuple[str, str]]:
    """Reads the entries from the text of the pages."""
    entries = []
    for line in "\n".join(task.pages).split("\n"):
        if line == "end" or re.fullmatch(r"Page \d+ of \d+\.", line):
            continue
        if len(line.split()) == 2:
            key, value = line.split()
            entries.append((key, value))
        else:
            (match,) = (parsed for pattern in PATTERNS if (parsed := re.fullmatch(pattern, line)))
            entries.append((match["key"], match["value"]))
    return entries


def answer_from_text(prompt: str, entries: list[tuple[str, str]]) -> str:
    """Answers a question from its text, without the code of the generator."""
    keys = [key for key in dict(entries) if re.search(rf"\b{re.escape(key)}\b", prompt)]
    keys.sort(key=prompt.index)
    values = {key: [value for of, value in entries if of == key] for key in keys}
    if "often" in prompt or prompt.startswith("changes"):
        return str(len(values[keys[0]]) - 1)
    if "add up" in prompt or prompt.startswith("sum"):
        return str(int(values[keys[0]][-1]) + int(values[keys[1]][-1]))
    if "whoever" in prompt or prompt.startswith("what who"):
        return [value for of, value in entries if of == values[keys[0]][-1]][-1]
    return values[keys[0]][-1]


@pytest.mark.slow
@every_setting
def test_the_gold_answer_follows_from_the_pages(options: dict[str, Any]) -> None:
    types = Counter[str]()
    for task in LedgerTasks(200, **options)[:]:
        answer = answer_from_text(task.prompt, read(task))
        assert task.answers[-1] == answer
        assert task.answers[0].split()[-1] == answer.split()[-1]
        types[task.metadata["type"]] += 1
    expected = options.get("types", ("holder", "balance") if "style" in options else QUESTION_TYPES)
    assert set(types) == set(expected)
    assert min(types.values()) > 200 / len(expected) / 2


@every_setting
@pytest.mark.parametrize("split", SPLITS)
def test_ledgers_have_the_requested_shape(options: dict[str, Any], split: str) -> None:
    ledgers = LedgerTasks(60, split=split, **options)
    config = ledgers.config
    updates = set()
    for task in ledgers[:]:
        assert isinstance(task, LedgerTask)
        assert [len(entries) for entries in task.facts] == [config.facts] * config.pages
        now: dict[str, str] = {}
        for entries in task.facts:
            assert len({fact.key for fact in entries}) == config.facts
            for fact in entries:
                assert now.get(fact.key) != fact.value
                now[fact.key] = fact.value
        assert not {fact.key for fact in task.facts[-1]} & {fact.key for fact in task.support}
        assert set(task.support) <= {fact for entries in task.facts for fact in entries}
        updates.add(task.metadata["updates"])
    assert min(updates) == 0
    assert max(updates) <= config.updates
    assert len(updates) > min(config.updates, 2)


def test_an_index_counts_from_both_ends() -> None:
    ledgers = LedgerTasks(5)
    assert ledgers[-1] == ledgers[4]
    assert [task.id for task in ledgers[1:3]] == ["ledger-natural-0-train-1", "ledger-natural-0-train-2"]
    with pytest.raises(IndexError):
        ledgers[5]


DIGEST = """
import hashlib
from agent_r1_gym.envs.long_read.dataset import LedgerTasks
tasks = [repr(task) for style in ("natural", "compact") for task in LedgerTasks(40, style=style, seed=3)[:]]
print(hashlib.sha256("".join(tasks).encode()).hexdigest())
"""


@pytest.mark.slow
def test_every_process_makes_the_same_ledgers() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", DIGEST], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout
    assert LedgerTasks(40, seed=3)[7] == LedgerTasks(90, seed=3)[7]  # their number changes nothing


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.slow
def test_seeds_and_splits_make_other_ledgers(style: str) -> None:
    ledgers_by_seed = {
        (split, seed): {(task.prompt, task.pages) for task in LedgerTasks(400, split=split, seed=seed, style=style)[:]}
        for split in SPLITS
        for seed in (0, 1)
    }
    assert [len(ledgers) for ledgers in ledgers_by_seed.values()] == [400] * 6
    assert len(set.union(*ledgers_by_seed.values())) == 6 * 400


def test_no_name_of_a_natural_split_is_in_another() -> None:
    names = {
        split: {word for task in LedgerTasks(300, split=split)[:] for entries in task.facts for fact in entries
                for word in fact if not word.isdecimal()}
        for split in SPLITS
    }  # fmt: skip
    assert [len(names[split] & names[other]) for split in SPLITS for other in SPLITS if split < other] == [0, 0, 0]
    assert min(map(len, names.values())) > 150


@pytest.mark.slow
def test_compact_splits_share_no_pair_that_decides_a_question() -> None:
    pairs = {
        split: {task.support[-1] for task in LedgerTasks(1_000, split=split, style="compact")[:]} for split in SPLITS
    }
    assert [len(pairs[split] & pairs[other]) for split in SPLITS for other in SPLITS if split < other] == [0, 0, 0]
    assert {split: len(members) for split, members in pairs.items()} == {"train": 64, "validation": 32, "test": 32}


def test_compact_ledgers_use_a_closed_vocabulary() -> None:
    names = {*STYLES["compact"].items["train"], *STYLES["compact"].persons["train"]}
    words = {
        word
        for task in LedgerTasks(500, style="compact", types=QUESTION_TYPES, facts=4, pages=4)[:]
        for text in (*task.pages, task.prompt, *task.answers)
        for word in text.split()
    }
    assert words == names | {"who", "what", "changes", "sum", "end"} | set(map(str, range(17)))
    assert len(names) == 16


@pytest.mark.parametrize("style", STYLES)
def test_notes_are_parsed_back(style: str) -> None:
    ledger_style = STYLES[style]
    for task in LedgerTasks(20, style=style)[:]:
        for entries in task.facts:
            assert ledger_style.parse_note(ledger_style.note(entries)) == list(entries)
    for text in ("", "x", ";;: ;", ": ", "a b c"):
        assert isinstance(ledger_style.parse_note(text), list)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pages": 1}, "pages must be an integer of at least 2"),
        ({"pages": 33}, "pages must be from 2 to 32, got 33"),
        ({"facts": 13}, "facts must be from 2 to 12"),
        ({"facts": True}, "facts must be an integer"),
        ({"pages": 4, "updates": 3}, "updates must be from 0 to 2, got 3"),
        ({"types": ()}, "types is empty"),
        ({"types": ("holdr",)}, "Did you mean 'holder'"),
        ({"style": "compac"}, "Did you mean 'compact'"),
        ({"split": "dev"}, "Unknown split"),
        ({"questions": 0}, "questions must be"),
        ({"seed": -1}, "seed must be"),
        (
            {"style": "compact", "facts": 12, "pages": 8, "updates": 3, "types": ["balance_of_holder"]},
            "16 items and persons, of which a question of type 'balance_of_holder' with updates=3 needs up to 5",
        ),
    ],
)
def test_bad_arguments(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LedgerTasks(**options)


@pytest.mark.parametrize("facts", [2, 4, 7, 10])
def test_compact_pages_hold_as_many_items_as_persons(facts: int) -> None:
    """A page has several values of the requested kind only if it holds several entries of that kind."""
    for task in LedgerTasks(200, style="compact", facts=facts)[:]:
        for entries in task.facts:
            balances = sum(fact.is_balance for fact in entries)
            assert facts // 2 <= balances <= facts - facts // 2


def test_compact_pages_can_be_filled_when_the_question_needs_most_persons() -> None:
    ledgers = LedgerTasks(300, style="compact", types=("balance_of_holder",), pages=6, facts=9, updates=3)
    assert all(len({fact.key for fact in entries}) == 9 for task in ledgers[:] for entries in task.facts)
