"""HotpotQA: bridge and comparison questions over pairs of Wikipedia introductions (Yang et al. 2018, arXiv 1809.09600).

Official format (distractor and fullwiki): one JSON array of objects with `_id`, `question`, `answer`,
`supporting_facts` ([[title, sentence index]]), `context` ([[title, [sentences]]]), `type` and `level`; test files hide
answer, facts, type and level. Licence of the data: CC BY-SA 4.0.

`question` and `answer` are enough: without `context`, the environment needs a retriever that has a corpus.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from agent_r1_gym.core.types import Passage
from agent_r1_gym.data.base import Question, SupportingFact
from agent_r1_gym.data.official.raw_rows import PassagePool, Row, official_tables

TITLE = "HotpotQA"
ENV_ID = "AgentR1/HotpotQA-v0"
ID_FIELD = "_id"
SIGNATURE_FIELD = "level"
ALIASES_FILE: str | None = None
FILES: Mapping[str, tuple[str, ...]] = {
    "train": ("hotpot_train_v1.1.json", "hotpot_train_v1.json"),
    "validation": ("hotpot_dev_distractor_v1.json", "hotpot_dev_fullwiki_v1.json"),
    "test": ("hotpot_test_fullwiki_v1.json",),
}
_SITE = "http://curtis.ml.cmu.edu/datasets/hotpot"
URLS: Mapping[str, str] = {
    "train": f"{_SITE}/hotpot_train_v1.1.json",
    "validation": f"{_SITE}/hotpot_dev_distractor_v1.json",
}
HUB_ID = "hotpotqa/hotpot_qa:distractor"
SAMPLE_MIX: Mapping[str, float] = {"bridge": 0.8, "comparison": 0.2}

KNOWN_FIELDS = frozenset({"_id", "question", "answer", "supporting_facts", "context", "type", "level"})
TABLES: Mapping[str, tuple[str, ...]] = {"context": ("title", "sentences"), "supporting_facts": ("title", "sent_id")}


def official(data: Mapping[str, Any], aliases: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Converts a row of any known copy to the official shape; HotpotQA has no `aliases`."""
    return official_tables(data, TABLES)


def parse(row: Row, pool: PassagePool) -> Question:
    """Parses the question of an official row.

    Raises:
        DatasetError: a field is missing or malformed.
    """
    facts = parse_supporting_facts(row)
    return Question(
        id=row.text("_id"),
        prompt=row.text("question"),
        answers=row.answers(),
        metadata=row.extra_fields(KNOWN_FIELDS),
        type=row.label("type"),
        level=row.label("level"),
        hops=len({fact.title for fact in facts}) or None,
        supporting_facts=facts,
        context=parse_context(row, pool),
    )


def parse_supporting_facts(row: Row) -> tuple[SupportingFact, ...]:
    """Parses the gold sentences, () if they are hidden; some official ones point past the end of their passage."""
    facts = row.items("supporting_facts", _is_fact, "a list of [title, sentence index] pairs")
    return tuple(SupportingFact(sys.intern(title), sentence) for title, sentence in facts)


def parse_context(row: Row, pool: PassagePool, *, separator: str = "") -> tuple[Passage, ...]:
    """Parses the paragraphs of a question, () if it has none; `separator`: see `PassagePool.passage`."""
    paragraphs = row.items("context", _is_paragraph, "a list of [title, [sentences]] pairs")
    return tuple(pool.passage(title, sentences, separator=separator) for title, sentences in paragraphs)


def _is_fact(value: Any) -> bool:
    match value:
        case [str(), int(sentence)]:
            return sentence >= 0 and not isinstance(sentence, bool)
    return False


def _is_paragraph(value: Any) -> bool:
    match value:
        case [str(), [*sentences]]:
            return all(isinstance(sentence, str) for sentence in sentences)
    return False
