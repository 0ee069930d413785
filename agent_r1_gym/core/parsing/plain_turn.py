"""Plain turns: what a turn with neither a call nor an answer in the format answers, if it may be the final answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from agent_r1_gym.core.parsing.thoughts import visible_text
from agent_r1_gym.core.scoring import final_number
from agent_r1_gym.core.text import encodable

_BOXED = "\\boxed{"
_PHRASE = re.compile(r"\banswer(?: is\b|:)\s*:?\s*", re.IGNORECASE)  # not "the answer isn't"
_STOP = re.compile(r"[.!?]?(?P<line>\s*\n|\s*\Z)|(?P<word>[^\W_]*)(?P<mark>[.!?])\s+(?=(?P<next>\S))")
_ABBREVIATION = re.compile("Capt|Co|Col|Dr|Ft|Gen|Gov|Inc|Jr|Lt|Ltd|Mr|Mrs|Ms|Mt|Prof|Rep|Rev|Sen|Sr|St|vs")
"""As names have them: "5 ft." and "no." end a sentence."""


def _whole_text(text: str) -> str:
    return text.strip()


def _last_number(text: str) -> str:
    number = final_number(text)
    return "" if number is None else f"{number:f}"


def _last_boxed(text: str) -> str:
    """Read what the last LaTeX box contains, whose braces must match."""
    start = text.rfind(_BOXED)
    if start < 0:
        return ""
    depth, start = 1, start + len(_BOXED)
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position].strip()
    return ""


def _after_phrase(text: str) -> str:
    """Read what follows the last "the answer is", up to the end of the sentence."""
    matches = list(_PHRASE.finditer(text))
    if not matches:
        return ""
    rest = text[matches[-1].end() :]
    end = next((_end_of_sentence(stop) for stop in _STOP.finditer(rest) if _is_end(stop)), len(rest))
    return rest[:end].strip(" \t*`\"'")


def _is_end(stop: re.Match[str]) -> bool:
    """Whether a sentence ends here: not after "J." and "St.", and not before a small letter, but after a number."""
    word, mark = stop["word"] or "", stop["mark"]
    if mark != ".":  # the end of a line, or a question
        return True
    if word[-1:].isdigit() or not word:
        return True
    return len(word) > 1 and not _ABBREVIATION.fullmatch(word) and not stop["next"].islower()


def _end_of_sentence(stop: re.Match[str]) -> int:
    return stop.start("mark") if stop["mark"] else stop.start()


ANSWER_EXTRACTORS: Mapping[str, Callable[[str], str]] = {
    "text": _whole_text,
    "number": _last_number,
    "boxed": _last_boxed,
    "phrase": _after_phrase,
}
"""By name, functions that read the final answer from plain text: all of it, its last number, the last `\\boxed{}`, or
what follows "the answer is"; "" if there is none."""


def plain_answer(text: str, extractor: str) -> str | None:
    """Read the final answer from a plain turn, without its reasoning; None if there is none.

    Args:
        text: the turn.
        extractor: key of `ANSWER_EXTRACTORS`.
    """
    return encodable(ANSWER_EXTRACTORS[extractor](visible_text(text))) or None
