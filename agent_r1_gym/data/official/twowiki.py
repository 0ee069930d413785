"""2WikiMultihopQA: questions made from Wikidata triples and Wikipedia introductions (Ho et al. 2020, arXiv 2011.01060).

Official format: HotpotQA's without `level`, plus `evidences` ([[subject, relation, object]]), `entity_ids` and, in the
release of December 2020, `answer_id` and `evidences_id`; `type` is compositional, inference, comparison or
bridge_comparison. That release contains `id_aliases.json`, JSON Lines of {"Q_id", "aliases", "demonyms"}: if it lies
next to the data file, the other names of the answer are accepted too, as in the official evaluation. Licence of the
data: Apache-2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agent_r1_gym.data.base import Hop, Question
from agent_r1_gym.data.official import hotpotqa
from agent_r1_gym.data.official.raw_rows import PassagePool, Row, decode_json, official_tables

TITLE = "2WikiMultihopQA"
ENV_ID = "AgentR1/2WikiMultihopQA-v0"
ID_FIELD = "_id"
SIGNATURE_FIELD = "evidences"
ALIASES_FILE: str | None = "id_aliases.json"
FILES: Mapping[str, tuple[str, ...]] = {
    "train": (),
    "validation": (),
    "test": (),
}  # officially train.json, dev.json ...
_ARCHIVE = "https://www.dropbox.com/s/ms2m13252h6xubs/data_ids_april7.zip?dl=1"
URLS: Mapping[str, str] = {"train": _ARCHIVE, "validation": _ARCHIVE}
HUB_ID = "framolfese/2WikiMultihopQA"
SAMPLE_MIX: Mapping[str, float] = {"bridge": 0.5, "comparison": 0.25, "3hop": 0.25}

KNOWN_FIELDS = frozenset({"_id", "question", "answer", "answer_aliases", "supporting_facts", "context", "type"})


def official(data: Mapping[str, Any], aliases: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Converts a row of any known copy to the official shape, with the other names of the answer as `answer_aliases`.

    Args:
        data: the row.
        aliases: maps the id of a Wikidata entity to its other names.
    """
    context = decode_json(data.get("context"))
    text_column = "content" if isinstance(context, dict) and "content" in context else "sentences"
    tables = {
        "context": ("title", text_column),
        "supporting_facts": ("title", "sent_id"),
        "evidences": ("fact", "relation", "entity"),
    }
    row = official_tables(data, tables)
    names = aliases.get(str(row.get("answer_id")))
    if names and "answer_aliases" not in row:
        row["answer_aliases"] = list(names)
    return row


def parse(row: Row, pool: PassagePool) -> Question:
    """Parses the question of an official row.

    The decomposition writes each evidence triple as in MuSiQue: "subject >> relation", with "#n" for a subject that is
    the answer of hop n.

    Raises:
        DatasetError: a field is missing or malformed.
    """
    facts = hotpotqa.parse_supporting_facts(row)
    question = Question(
        id=row.text("_id"),
        prompt=row.text("question"),
        answers=row.answers(),
        metadata=row.extra_fields(KNOWN_FIELDS),
        type=row.label("type"),
        hops=len({fact.title for fact in facts}) or None,
        supporting_facts=facts,
        context=hotpotqa.parse_context(row, pool, separator=" "),
    )
    return replace(question, decomposition=_parse_evidences(row, question.supporting_titles))


def _parse_evidences(row: Row, titles: tuple[str, ...]) -> tuple[Hop, ...]:
    triples = row.items("evidences", _is_triple, "a list of [subject, relation, object] triples")
    hops: list[Hop] = []
    for subject, relation, entity in triples:
        earlier = [hop.answer for hop in hops]
        named = f"#{earlier.index(subject) + 1}" if subject in earlier else subject
        title = next((title for title in titles if title == subject or title.startswith(f"{subject} (")), None)
        hops.append(Hop(f"{named} >> {relation}", entity, title))
    return tuple(hops)


def _is_triple(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(part, str) for part in value)
