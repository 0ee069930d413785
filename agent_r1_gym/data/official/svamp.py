"""SVAMP: short word problems that punish reading by pattern (Patel et al. 2021, arXiv 2103.07191), and MAWPS.

Official format: a JSON array with `ID`, `Body`, `Question`, `Equation` ("( 76.0 - 25.0 )"), `Answer` and `Type`; 1,000
problems, of which all are test problems in the paper. It trains on others, among them MAWPS: rows with `input` and
`target`, a text and a number, are read too. Licence of both: MIT. The copy on the hub splits SVAMP itself, 700 and
300. One answer is wrong: chal-680 has 1 where its equation gives 5.

The reader makes `question`, `answer` and `equation`; the equation becomes the gold decomposition, one step. MAWPS rows
have none: theirs is the one expression over two numbers of the text, or over all three of them, that gives the answer;
where none or several do, the way to the answer is unknown.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from agent_r1_gym.data.base import Hop, Question
from agent_r1_gym.data.official.raw_rows import PassagePool, Row

TITLE = "SVAMP"
ENV_ID = "AgentR1/SVAMP-v0"
ID_FIELD = "id"
SIGNATURE_FIELD = "equation"
ALIASES_FILE: str | None = None
FILES: Mapping[str, tuple[str, ...]] = {
    "train": ("mawps.jsonl",),
    "validation": (),
    "test": ("SVAMP.json", "svamp.json"),
}
HUB_ID = "ChilleD/SVAMP"
URLS: Mapping[str, str] = {"test": "https://raw.githubusercontent.com/arkilpatel/SVAMP/main/SVAMP.json"}
SAMPLE_MIX: Mapping[str, float] = {}

KNOWN_FIELDS = frozenset({"id", "question", "answer", "equation"})
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_WHOLE = re.compile(r"(\d+)\.0+\b")
_OPERATIONS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": lambda a, b: a / b if b else math.nan,
    }
)


def official(data: Mapping[str, Any], aliases: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Converts a row of SVAMP or MAWPS."""
    match data:
        case {"Body": str(body), "Question": str(question), "Equation": str(equation), "Answer": answer}:
            body, number = body.strip(), _number(answer)
            row = {
                "question": f"{body if body.endswith(('.', '?', '!')) else f'{body}.'} {question.strip()}",
                "answer": answer if number is None else plain(number),
                "equation": _WHOLE.sub(r"\1", _without_outer_brackets(equation.strip())),
            }
            kept = {"id": data["ID"]} if isinstance(data.get("ID"), str) else {}
            return kept | row | ({"type": data["Type"]} if isinstance(data.get("Type"), str) else {})
        case {"input": str(text), "target": target}:
            number = _number(target)
            found = [] if number is None else expressions(text, number)
            equation = found[0] if len(found) == 1 else ""
            answer = target if number is None else plain(number)
            return {"question": text.strip(), "answer": answer, "equation": equation}
    return dict(data)


def parse(row: Row, pool: PassagePool) -> Question:
    """Parses the question of a row.

    Raises:
        DatasetError: a field is missing or malformed, or the answer is not a number.
    """
    if SIGNATURE_FIELD not in row.data:
        raise row.error("Equation", "a row of SVAMP (Body, Question, Equation, Answer) or MAWPS (input, target)")
    if _number(row.data.get("answer")) is None:
        raise row.error("answer", "a number")
    answer, equation = row.text("answer"), row.optional_text(SIGNATURE_FIELD)
    return Question(
        id=row.text("id"),
        prompt=row.text("question"),
        answers=(answer,),
        type=row.label("type"),
        metadata=row.extra_fields(KNOWN_FIELDS | {"type"}),
        hops=1 if equation else None,
        decomposition=(Hop(equation, answer),) if equation else (),
    )


def plain(number: float) -> str:
    """Writes a number without the ".0" of a whole one."""
    return str(int(number)) if number == int(number) else str(number)


def expressions(text: str, target: float) -> list[str]:
    """Lists the expressions over two numbers of a text that give a number; if there is none, those over all three."""
    numbers = [number.replace(",", "") for number in _NUMBER.findall(text)]
    found = [text for text, value in _pairs(numbers) if _is_close(value, target)]
    if not found and len(numbers) == 3:
        found = [text for text, value in _triples(numbers) if _is_close(value, target)]
    return list(dict.fromkeys(found))


def _pairs(numbers: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yields each expression over two of the numbers, sums and products in the order of the text only."""
    for (i, first), (j, second) in itertools.permutations(enumerate(numbers), 2):
        for sign, operation in _OPERATIONS.items():
            if sign in "-/" or i < j:
                yield f"{first} {sign} {second}", operation(float(first), float(second))


def _triples(numbers: Sequence[str]) -> Iterator[tuple[str, float]]:
    for left, third in enumerate(numbers):
        others = [number for position, number in enumerate(numbers) if position != left]
        for inner, value in _pairs(others):
            for sign, operation in _OPERATIONS.items():
                yield f"({inner}) {sign} {third}", operation(value, float(third))
                if sign in "-/":
                    yield f"{third} {sign} ({inner})", operation(float(third), value)


def _is_close(value: float, target: float) -> bool:
    return math.isclose(value, target, abs_tol=1e-4)


def _number(value: Any) -> float | None:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _without_outer_brackets(equation: str) -> str:
    """Drops the brackets around "( 76.0 - 25.0 )", not those of "( 4.0 + 3.0 ) * ( 2.0 - 1.0 )"."""
    if not (equation.startswith("(") and equation.endswith(")")):
        return equation
    depth = 0
    for position, sign in enumerate(equation):
        depth += (sign == "(") - (sign == ")")
        if not depth and position < len(equation) - 1:
            return equation
    return equation[1:-1].strip()
