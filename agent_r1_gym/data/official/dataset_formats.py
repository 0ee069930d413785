"""The official formats, and how raw rows become a `QADataset`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from agent_r1_gym.core.scoring import normalize_answer
from agent_r1_gym.data.base import QADataset, Question
from agent_r1_gym.data.official import gsm8k, hotpotqa, musique, svamp, twowiki
from agent_r1_gym.data.official.raw_rows import PassagePool, Row
from agent_r1_gym.errors import DatasetError
from agent_r1_gym.support.checks import check_choice

SPLITS = ("train", "validation", "test")
"""Splits in order of preference where none is requested."""

_RETRIEVED_CONTEXT = ("validation", "test")
"""Splits of HotpotQA's fullwiki setting: their paragraphs were retrieved, so that gold ones may be missing."""

_NAME_ALIASES = {"2wiki": "2wikimultihopqa"}
_SPLIT_ALIASES = {"dev": "validation", "valid": "validation", "val": "validation"}
_SPLIT_IN_NAME = re.compile(r"(?<![a-z])(train|validation|valid|val|dev|test)(?![a-z])")


class Format(Protocol):
    """Interface of the modules in this folder: one per data set."""

    TITLE: str
    """Display name."""
    ENV_ID: str
    """Id of its environment."""
    ID_FIELD: str
    """Field with the id of a row; a row without an id gets its number."""
    SIGNATURE_FIELD: str
    """A field that no other data set has."""
    ALIASES_FILE: str | None
    """Name of the file, next to the data file, that lists other names of entities."""
    FILES: Mapping[str, tuple[str, ...]]
    """Official file names of each split, preferred first."""
    URLS: Mapping[str, str]
    """Address of the file, or of the zip archive, of each split with public answers."""
    HUB_ID: str
    """Copy on the hub: "repository" or "repository:configuration"."""
    SAMPLE_MIX: Mapping[str, float]
    """Weights of FictionQA's question types in the bundled sample; empty if the sample is not FictionQA."""

    def official(self, data: Mapping[str, Any], aliases: Mapping[str, tuple[str, ...]], /) -> dict[str, Any]:
        """Converts a row of any known copy to the official shape."""

    def parse(self, row: Row, pool: PassagePool, /) -> Question | None:
        """Parses the question of an official row; None skips the row."""


FORMATS: Mapping[str, Format] = {
    "hotpotqa": hotpotqa,
    "2wikimultihopqa": twowiki,
    "musique": musique,
    "gsm8k": gsm8k,
    "svamp": svamp,
}
"""Maps the short name of each data set to its module; a new data set is a module and an entry here."""


def canonical_name(name: str) -> str:
    """Normalises the name of an official data set: any case, and "2wiki" for "2wikimultihopqa".

    Raises:
        ConfigurationError: there is no such data set.
    """
    canonical = _NAME_ALIASES.get(name.lower(), name.lower())
    check_choice("data set", canonical, [*FORMATS, *_NAME_ALIASES])
    return canonical


def canonical_split(split: str) -> str:
    """Normalises the name of a split: "dev", "valid" and "val" mean "validation".

    Raises:
        ConfigurationError: there is no such split.
    """
    canonical = _SPLIT_ALIASES.get(split, split)
    check_choice("split", canonical, [*SPLITS, "dev"])
    return canonical


def split_in_name(file_name: str) -> str | None:
    """Finds the split in a file name ("hotpot_dev_distractor_v1.json": "validation"); None if there is none."""
    words = _SPLIT_IN_NAME.findall(file_name.lower())
    return canonical_split(words[0]) if words else None


def official_row(
    form: Format, data: Mapping[str, Any], *, number: int, where: str, aliases: Mapping[str, tuple[str, ...]]
) -> Row:
    """Converts a row of any known copy of a data set to an official row.

    Args:
        form: module of the data set.
        data: the raw row.
        number: number of the row, from 0; its id if the row has none.
        where: file and line or row number, for error messages.
        aliases: other names of entities, if the data set has a file of them.
    """
    official = form.official(data, aliases)
    return Row(official if form.ID_FIELD in official else {form.ID_FIELD: str(number)} | official, where)


def check_signature(row: Row, name: str) -> None:
    """Checks that a row does not belong to another data set.

    Raises:
        DatasetError: the row lacks the signature field of `name` and has that of another data set.
    """
    if FORMATS[name].SIGNATURE_FIELD in row.data:
        return
    for candidate in FORMATS.values():
        if candidate.SIGNATURE_FIELD in row.data:
            raise DatasetError(
                f"{row.where}: expected {FORMATS[name].TITLE}, but this looks like {candidate.TITLE} "
                f"(it has the field {candidate.SIGNATURE_FIELD!r}); use {candidate.ENV_ID}"
            )


def parse_rows(
    rows: Iterable[Row], name: str, *, split: str, pool: Callable[[], PassagePool]
) -> Iterator[tuple[Row, Question]]:
    """Yields each row with its question, except for rows that the format skips.

    Args:
        rows: official rows.
        name: short name of the data set.
        split: split of the rows; only a test split may hide its answers.
        pool: called for each row; returns the pool that makes its passages.

    Raises:
        DatasetError: a row is malformed, has no answer, lacks the paragraphs that the first row has, or repeats an id;
            in other than validation and test splits also if a supporting fact names none of its paragraphs.
    """
    parse = FORMATS[name].parse
    first: Question | None = None
    seen: set[str] = set()
    for row in rows:
        question = parse(row, pool())
        if question is None:
            continue
        if question.id in seen:
            raise DatasetError(f"{row.where}: the id {question.id!r} occurs a second time; expected unique ids")
        seen.add(question.id)
        first = first or question
        _check_complete(row, question, first, split)
        yield row, question


def _check_complete(row: Row, question: Question, first: Question, split: str) -> None:
    """Checks answers, paragraphs and gold titles of a row, which must be like those of the first row."""
    # At load: each of these would fail an episode, or make a reward unreachable, hours later.
    if not question.answers and (split != "test" or first.answers):
        raise row.error("answer", "a non-empty string (only a test split may hide its answers, and then it hides all)")
    if not first.answers and question.answers:
        raise row.error("answer", "no answer, as in the first row: a test split hides all of its answers or none")
    if bool(question.context) != bool(first.context):
        here, there = ("", "none") if question.context else ("no ", "some")
        raise DatasetError(f"{row.where}: has {here}paragraphs, but the first row has {there}")
    titles = {passage.title for passage in question.context}
    missing = [title for title in question.supporting_titles if titles and title not in titles]
    if missing and split not in _RETRIEVED_CONTEXT:
        raise row.error("supporting_facts", f"titles of the row's paragraphs; {missing[0]!r} is not one of them")


def build_dataset(rows: Iterable[Row], name: str, *, split: str, source: str) -> QADataset:
    """Builds a data set of official rows.

    Args:
        rows: official rows.
        name: short name of the data set.
        split: label of the split.
        source: where the rows come from, for descriptions and error messages.

    Raises:
        DatasetError: a row is refused (see `parse_rows`), or there is no question.
    """
    pool = PassagePool()
    questions = tuple(question for _, question in parse_rows(rows, name, split=split, pool=lambda: pool))
    if not questions:
        raise DatasetError(f"{source} holds no question; expected at least one answerable {FORMATS[name].TITLE} row")
    _warn_of_empty_answers(questions, source)
    _warn_dangling_facts(questions, source)
    return QADataset(
        questions, name=name, split=split, source=source, fingerprint=pool.fingerprint(), corpus=pool.passages()
    )


def _warn_of_empty_answers(questions: Iterable[Question], source: str) -> None:
    """Warns of gold answers such as "The", which the metrics normalise to the empty string."""
    # They stay: official rows contain them, and the official metrics score them like this.
    empty = [
        (question.id, answer) for question in questions for answer in question.answers if not normalize_answer(answer)
    ]
    if empty:
        warnings.warn(
            f"{source}: {len(empty)} gold answers normalise to nothing (first: {empty[0][1]!r} of question "
            f"{empty[0][0]!r}), so that the official exact match gives 1 for mere punctuation; exclude these "
            "questions from training.",
            stacklevel=3,
        )


def _warn_dangling_facts(questions: Iterable[Question], source: str) -> None:
    """Warns of supporting facts that point past the end of their passage. They stay: official rows contain some."""
    dangling = []
    for question in questions:
        lengths: dict[str, int] = {}
        for passage in question.context:
            lengths[passage.title] = max(lengths.get(passage.title, 1), len(passage.sentence_ends))
        dangling += [
            (question, fact)
            for fact in question.supporting_facts
            if question.context and fact.sentence >= lengths.get(fact.title, 0)
        ]
    if dangling:
        question, fact = dangling[0]
        warnings.warn(
            f"{source}: {len(dangling)} supporting facts name no sentence of their question's paragraphs "
            f"(first: sentence {fact.sentence} of {fact.title!r} in question {question.id!r}).",
            stacklevel=3,
        )
