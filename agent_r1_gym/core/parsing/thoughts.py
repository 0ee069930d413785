"""Reasoning in a model's turn: the marks that model families write around it, and what is left without it.

No call and no answer is read from reasoning. Foreign text must not forge these marks: `text.sanitize` breaks them all.
"""

from __future__ import annotations

import re
from typing import NamedTuple

THOUGHT_MARKS: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),  # Qwen, DeepSeek, GLM, Granite, SmolLM3, MiniMax
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<scratchpad>", "</scratchpad>"),  # Hermes
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("<mm:think>", "</mm:think>"),  # MiniMax
    ("[THINK]", "[/THINK]"),  # Magistral
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # Sky-T1
    ("<|thought_start|>", "<|thought_end|>"),
    ("◁think▷", "◁/think▷"),  # Kimi
    ("<|channel|>analysis<|message|>", "<|end|>"),  # gpt-oss
)
"""Opening and closing mark of each spelling; letters match in either case."""

_SPELLING = {
    mark.lower(): (pair, opens) for pair in THOUGHT_MARKS for mark, opens in zip(pair, (True, False), strict=True)
}
_MARK = re.compile("|".join(re.escape(mark) for mark in sorted(_SPELLING, key=len, reverse=True)), re.IGNORECASE)
_FIRST_CHARACTERS = frozenset(mark[0] for mark in _SPELLING)


class Visible(NamedTuple):
    """A turn without its reasoning.

    Attributes:
        text: the rest; a space stands where reasoning was, so that pieces of a tag around it do not form one.
        unclosed: the marks of reasoning that is never closed, which hides the rest of the turn; else None.
    """

    text: str
    unclosed: tuple[str, str] | None = None


def without_thoughts(text: str) -> Visible:
    """Remove the reasoning from a turn, in time linear in its length.

    - Reasoning of one spelling may contain itself; an opening mark too many within it is text.
    - Some chat templates open the reasoning in the prompt, so that only its end is in the turn: a closing mark without
      an opening one hides what precedes it, also an opening mark of another spelling that is never closed.
    """
    if _FIRST_CHARACTERS.isdisjoint(text):
        return Visible(text)
    marks = [(match.start(), match.end(), *_SPELLING[match.group().lower()]) for match in _MARK.finditer(text)]
    ends = _closings(marks)
    pieces: list[str] = []
    position, index = 0, 0
    while index < len(marks):
        start, end, pair, opens = marks[index]
        if opens:
            closing = ends[index]
            # Behind text: a mark that is mentioned in reasoning that the prompt opened.
            if closing is None and position == 0 and text[:start].strip() and (later := _end_of_opened(marks)):
                pieces, position, index = [], marks[later][1], later + 1
                continue
            pieces.append(text[position:start])
            if closing is None:
                return Visible(" ".join(pieces), pair)
            index, position = closing + 1, marks[closing][1]
            continue
        if position == 0 and pair != THOUGHT_MARKS[-1]:  # gpt-oss ends every message, its answer too, with <|end|>
            pieces, position = [], end
        index += 1
    pieces.append(text[position:])
    return Visible(" ".join(pieces))


def _end_of_opened(marks: list[tuple[int, int, tuple[str, str], bool]]) -> int | None:
    """Find the end of reasoning that the prompt opened: the first closing mark whose spelling was not opened before."""
    opened: set[tuple[str, str]] = {THOUGHT_MARKS[-1]}
    for index, (_, _, pair, opens) in enumerate(marks):
        if opens:
            opened.add(pair)
        elif pair not in opened:
            return index
    return None


def visible_text(text: str) -> str:
    """Remove the reasoning from a turn (see `without_thoughts`)."""
    return without_thoughts(text).text


def _closings(marks: list[tuple[int, int, tuple[str, str], bool]]) -> list[int | None]:
    """Find for each opening mark where its reasoning ends: the index of the closing mark, None if there is none."""
    ends: list[int | None] = [None] * len(marks)
    unmatched: dict[tuple[str, str], list[int]] = {}
    for index, (_, _, pair, opens) in enumerate(marks):
        if opens:
            unmatched.setdefault(pair, []).append(index)
        elif unmatched.get(pair):
            ends[unmatched[pair].pop()] = index
    inner: dict[tuple[str, str], int] = {}
    for index in range(len(marks) - 1, -1, -1):
        _, _, pair, opens = marks[index]
        if opens:
            if ends[index] is None and pair in inner:
                ends[index] = ends[inner[pair]]  # it contains an opening mark too many, which took its closing one
            inner[pair] = index
    return ends
