"""GSM8K: word problems of grade-school mathematics (Cobbe et al. 2021, arXiv 2110.14168).

Official format: JSON Lines with `question` and `answer`, a solution in words that ends in `#### N` and in which
computations are annotated (`<<48/2=24>>24`). Licence of the data: MIT. There are a train and a test split.

The reader splits `answer` into `solution` and `answer`, the number as it is written; the annotations become the gold
decomposition: an expression and its value each. Some rows have none (1.8 % of the first thousand).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agent_r1_gym.core.scoring import final_number
from agent_r1_gym.data.base import Hop, Question
from agent_r1_gym.data.official.raw_rows import PassagePool, Row

TITLE = "GSM8K"
ENV_ID = "AgentR1/GSM8K-v0"
ID_FIELD = "id"
SIGNATURE_FIELD = "solution"
ALIASES_FILE: str | None = None
FILES: Mapping[str, tuple[str, ...]] = {
    "train": ("gsm8k_train.jsonl",),
    "validation": (),
    "test": ("gsm8k_test.jsonl",),
}
HUB_ID = "openai/gsm8k:main"
_SITE = "https://raw.githubusercontent.com/openai/grade-school-math/master/grade_school_math/data"
URLS: Mapping[str, str] = {"train": f"{_SITE}/train.jsonl", "test": f"{_SITE}/test.jsonl"}
SAMPLE_MIX: Mapping[str, float] = {}

KNOWN_FIELDS = frozenset({"id", "question", "answer"})
_MARKER = "####"
_ANNOTATION = re.compile(r"<<([^<>=]+)=([^<>]*)>>")


def official(data: Mapping[str, Any], aliases: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Splits an answer that is a solution into solution and number."""
    answer = data.get("answer")
    if SIGNATURE_FIELD in data or not isinstance(answer, str) or _MARKER not in answer:
        return dict(data)
    solution, _, number = answer.rpartition(_MARKER)
    return {**data, "answer": number.strip(), SIGNATURE_FIELD: solution.strip()}


def parse(row: Row, pool: PassagePool) -> Question:
    """Parses the question of a row.

    Raises:
        DatasetError: a field is missing or malformed, or the answer holds no number.
    """
    if SIGNATURE_FIELD not in row.data:
        raise row.error("answer", "a solution that ends in '#### N'")
    answer = row.text("answer")
    if final_number(answer) is None:
        raise row.error("answer", "a number after '####'")
    steps = tuple(annotated(row.optional_text(SIGNATURE_FIELD)))
    return Question(
        id=row.text("id"),
        prompt=row.text("question"),
        answers=(answer,),
        metadata=row.extra_fields(KNOWN_FIELDS),
        hops=len(steps) or None,
        decomposition=steps,
    )


def annotated(solution: str) -> Iterator[Hop]:
    """Yields the annotated computations of a solution: `<<48/2=24>>` is the question "48/2" with the answer "24"."""
    for expression, value in _ANNOTATION.findall(solution):
        yield Hop(expression.strip(), value.strip())


def reasons(solution: str) -> list[str]:
    """Split the words of a solution at its computations: what leads to each, and what follows the last.

    The annotation and the sign before it go: a thought before a call must not end in the result.
    """
    parts = _ANNOTATION.split(solution)[::3]  # between them the two groups of each annotation
    return [" ".join(part.split()).rstrip("=$ ") for part in parts]
