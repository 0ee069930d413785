"""MuSiQue: 2- to 4-hop questions composed of single-hop ones (Trivedi et al. 2022, arXiv 2108.00573).

Official format: JSON Lines with `id` ("2hop__...", "3hop1__..."), `question`, `answer`, `answer_aliases`, `answerable`,
`paragraphs` ([{idx, title, paragraph_text, is_supporting}]) and `question_decomposition` ([{id, question, answer,
paragraph_support_idx}]); test files hide answer, support and decomposition. Licence of the data: CC BY 4.0.

Two conventions of this reader. The unanswerable questions of MuSiQue-Full are skipped. MuSiQue marks paragraphs, not
sentences: a passage counts as one sentence, and a supporting fact names its sentence 0. As paragraphs of one article
share their title, `metadata["supporting_passages"]` holds the ids of the gold passages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from agent_r1_gym.core.types import Passage
from agent_r1_gym.data.base import Hop, Question, SupportingFact
from agent_r1_gym.data.official.raw_rows import PassagePool, Row, decode_json

TITLE = "MuSiQue"
ENV_ID = "AgentR1/MuSiQue-v0"
ID_FIELD = "id"
SIGNATURE_FIELD = "paragraphs"
ALIASES_FILE: str | None = None
FILES: Mapping[str, tuple[str, ...]] = {
    "train": ("musique_ans_v1.0_train.jsonl", "musique_full_v1.0_train.jsonl"),
    "validation": ("musique_ans_v1.0_dev.jsonl", "musique_full_v1.0_dev.jsonl"),
    "test": ("musique_ans_v1.0_test.jsonl", "musique_full_v1.0_test.jsonl"),
}
HUB_ID = "dgslibisey/MuSiQue"
_SITE = f"https://huggingface.co/datasets/{HUB_ID}/resolve/main"
URLS: Mapping[str, str] = {
    "train": f"{_SITE}/musique_ans_v1.0_train.jsonl",
    "validation": f"{_SITE}/musique_ans_v1.0_dev.jsonl",
}
SAMPLE_MIX: Mapping[str, float] = {"bridge": 0.5, "3hop": 0.3, "4hop": 0.2}

KNOWN_FIELDS = frozenset(
    {"id", "question", "answer", "answer_aliases", "answerable", "paragraphs", "question_decomposition"},
)
_KIND = re.compile(r"(\d)hop\d*(?=__)")


def official(data: Mapping[str, Any], aliases: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Converts a row of any known copy to the official shape; MuSiQue's rows contain their aliases."""
    row = dict(data)
    for field in ("paragraphs", "question_decomposition"):
        if field in row:
            row[field] = decode_json(row[field])
    return row


def parse(row: Row, pool: PassagePool) -> Question | None:
    """Parses the question of an official row; None if it is unanswerable.

    Raises:
        DatasetError: a field is missing or malformed.
    """
    if row.data.get("answerable") is False:
        return None
    identifier = row.text("id")
    kind = _KIND.match(identifier)
    paragraphs = row.objects("paragraphs")
    context = tuple(_parse_paragraph(row, paragraph, pool) for paragraph in paragraphs)
    titles = {str(raw.get("idx")): passage.title for raw, passage in zip(paragraphs, context, strict=True)}
    gold = [passage for passage, raw in zip(context, paragraphs, strict=True) if raw.get("is_supporting")]
    return Question(
        id=identifier,
        prompt=row.text("question"),
        answers=row.answers(),
        metadata=row.extra_fields(KNOWN_FIELDS) | {"supporting_passages": tuple(passage.id for passage in gold)},
        type=sys.intern(kind[0]) if kind else "",
        hops=int(kind[1]) if kind else None,
        supporting_facts=tuple(SupportingFact(passage.title, 0) for passage in gold),
        context=context,
        decomposition=_parse_decomposition(row, titles),
    )


def _parse_paragraph(row: Row, paragraph: Mapping[str, Any], pool: PassagePool) -> Passage:
    title, text = paragraph.get("title"), paragraph.get("paragraph_text")
    if not isinstance(title, str) or not isinstance(text, str):
        raise row.error("paragraphs", "objects with the strings title and paragraph_text")
    return pool.passage(title, (text,))


def _parse_decomposition(row: Row, titles: Mapping[str, str]) -> tuple[Hop, ...]:
    """Parses the gold steps; `titles` maps the `idx` of each paragraph to its title."""
    hops = []
    for step in row.objects("question_decomposition"):
        question, answer = step.get("question"), step.get("answer")
        if not isinstance(question, str) or not isinstance(answer, str):
            raise row.error("question_decomposition", "objects with the strings question and answer")
        support = step.get("paragraph_support_idx")
        if titles and support is not None and str(support) not in titles:
            raise row.error("question_decomposition", f"the idx of a paragraph as support; {support!r} is not one")
        hops.append(Hop(question, answer, titles.get(str(support))))
    return tuple(hops)
