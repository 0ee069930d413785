"""What stands in for the hub and real data in `dry_run.py`: a tiny model, and fiction in the official formats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1_gym.datasets.base import Question
from agent_r1_gym.datasets.fiction.dataset import fiction_dataset
from agent_r1_gym.types import Passage
from benchmarks.common.models import MINUSCULE, random_qwen2
from benchmarks.multihop_qa.paper import DATA_SETS, MODEL
from trainers.toy.model import build_tokenizer

QUESTIONS = 24
"""Of each split of each data set."""


def make_stand_in(folder: Path) -> None:
    """Writes the model and the data that stand in for the real ones."""
    tokenizer = build_tokenizer()
    shape = replace(MINUSCULE, vocabulary=len(tokenizer))
    random_qwen2(shape, tokenizer, max_position_embeddings=8192).save_pretrained(folder / MODEL)
    tokenizer.save_pretrained(folder / MODEL)
    for name in DATA_SETS:
        _write_official(name, folder / "official" / name)


def _write_official(name: str, folder: Path) -> None:
    """Writes fictional questions in the official format of a data set: training and validation split."""
    folder.mkdir(parents=True)
    for split in ("train", "validation"):
        questions = fiction_dataset(entities=120, questions=QUESTIONS, split=split, distractors=4)
        rows = map(_ROWS[name], questions)
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _hotpotqa_row(question: Question) -> dict[str, Any]:
    return {
        "_id": question.id,
        "question": question.prompt,
        "answer": question.answers[0],
        "type": question.type,
        "level": question.level,
        "supporting_facts": [list(fact) for fact in question.supporting_facts],
        "context": [[passage.title, _sentences(passage)] for passage in question.context],
    }


def _twowiki_row(question: Question) -> dict[str, Any]:
    row = _hotpotqa_row(question)
    del row["level"]
    return row | {"evidences": [[hop.title or "", hop.question, hop.answer] for hop in question.decomposition]}


def _musique_row(question: Question) -> dict[str, Any]:
    where = {passage.title: place for place, passage in enumerate(question.context)}
    gold = set(question.supporting_titles)
    return {
        "id": f"{question.hops}hop__{question.id}",
        "question": question.prompt,
        "answer": question.answers[0],
        "answer_aliases": list(question.answers[1:]),
        "answerable": True,
        "paragraphs": [
            {"idx": place, "title": each.title, "paragraph_text": each.text, "is_supporting": each.title in gold}
            for place, each in enumerate(question.context)
        ],
        "question_decomposition": [
            {"id": place, "question": hop.question, "answer": hop.answer, "paragraph_support_idx": where[hop.title]}
            for place, hop in enumerate(question.decomposition)
            if hop.title in where
        ],
    }


def _sentences(passage: Passage) -> list[str]:
    ends = passage.sentence_ends or (len(passage.text),)
    return [passage.text[start:end] for start, end in zip((0, *ends), ends, strict=False)]


_ROWS = {"hotpotqa": _hotpotqa_row, "2wiki": _twowiki_row, "musique": _musique_row}
