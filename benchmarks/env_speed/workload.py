"""The work that every system gets: the same questions, the same passages, the same searches, the same answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_r1_gym.datasets.base import QADataset, Question
from agent_r1_gym.datasets.fiction.dataset import fiction_dataset
from agent_r1_gym.types import Passage

GOLD = "Ana Kovic"
_THOUGHT = "<think>I need one more fact before I can answer, so I look it up.</think>\n"
ANSWER_TURN = f"{_THOUGHT}<answer>{GOLD}</answer>"
"""The model turn that gives the right answer; the same in all formats."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Questions that all have one gold answer, and the passages that a stubbed search returns.

    One gold answer for all lets the scripted agent be right whichever question an environment samples.
    """

    questions: tuple[str, ...]
    passages: tuple[Passage, ...]

    def dataset(self) -> QADataset:
        """Returns the questions as this suite's data set."""
        rows = [Question(str(number), text, (GOLD,)) for number, text in enumerate(self.questions)]
        return QADataset(
            rows, name="benchmark", split="train", source="benchmarks", fingerprint="benchmark", corpus=self.passages
        )

    def documents(self) -> list[dict[str, object]]:
        """Returns the stubbed hits in the form of Search-R1's wire format, which both peers read."""
        return [{"document": to_document(passage), "score": 1.0} for passage in self.passages]


def make_workload(*, questions: int, passages: int) -> Workload:
    """Returns `questions` fictional questions and the first `passages` of passages of about 100 words."""
    world = fiction_dataset(entities=max(600, 10 * passages), questions=min(questions, 200))
    texts = [world[number % len(world)].prompt for number in range(questions)]
    entries = list(world.passages())
    joined = [" ".join(entry.text for entry in entries[4 * n : 4 * n + 4]) for n in range(passages)]
    return Workload(tuple(texts), tuple(Passage(str(n), entries[4 * n].title, text) for n, text in enumerate(joined)))


def to_document(passage: Passage) -> dict[str, object]:
    """Returns a passage as Search-R1's corpora hold it."""
    return {"id": passage.id, "contents": f'"{passage.title}"\n{passage.text}'}


def hermes_search(query: str) -> str:
    """Returns a model turn that searches, in this suite's default format."""
    return f"{_THOUGHT}<tool_call>\n{json.dumps({'name': 'search', 'arguments': {'query': query}})}\n</tool_call>"


def tag_search(query: str) -> str:
    """Returns a model turn that searches, in Search-R1's format, which both peers speak."""
    return f"{_THOUGHT}<search>{query}</search>"


def episode(search: Callable[[str], str], queries: Sequence[str]) -> list[str]:
    """Returns the turns of an episode: a search for each query, then the right answer."""
    return [*map(search, queries), ANSWER_TURN]


def episodes_by_turn(search: Callable[[str], str], batches: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns the turns of many environments' episodes: for each turn a list with one action per environment."""
    return [[*map(search, batch)] for batch in batches] + [[ANSWER_TURN] * len(batches[0])]


def distinct_queries(passages: Sequence[Passage], *, steps: int, width: int) -> list[list[str]]:
    """Returns `steps` batches of `width` queries, no two alike: nobody may gain by removing duplicates."""
    batches = []
    for step in range(steps):
        numbers = [(step * width + position) % len(passages) for position in range(width)]
        hints = [f"{passages[n].title} {passages[n].text.split()[-1]}" for n in numbers]
        batches.append([f"{hint} {step * width + position}" for position, hint in enumerate(hints)])
    return batches
