"""Questions and question data sets: what every reader and generator produces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agent_r1_gym.core.types import Passage, Task


class SupportingFact(NamedTuple):
    """A sentence that the gold reasoning needs, by the title of its passage and its 0-based index in the passage."""

    title: str
    sentence: int


class Hop(NamedTuple):
    """One step of a gold decomposition.

    `question` may refer to the answer of hop n as "#n" (1-based), as in MuSiQue. `title` names the passage that
    answers it, None if unknown.
    """

    question: str
    answer: str
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Question(Task):
    """A multi-hop question; `prompt` is its text.

    Attributes:
        type: type in the data set ("bridge", "comparison", "compositional", "2hop" ...), "" if there is none.
        level: difficulty in the data set, "" if there is none.
        hops: number of reasoning steps, None if unknown.
        supporting_facts: gold sentences; may be empty.
        context: paragraphs of the question, gold and distractors (for the "distractor" setting); may be empty.
        decomposition: gold single-hop steps; may be empty.
    """

    type: str = ""
    level: str = ""
    hops: int | None = None
    supporting_facts: tuple[SupportingFact, ...] = ()
    context: tuple[Passage, ...] = ()
    decomposition: tuple[Hop, ...] = ()

    @property
    def supporting_titles(self) -> tuple[str, ...]:
        """Titles of the gold passages, without duplicates, in the order of the data set."""
        return tuple(dict.fromkeys(fact.title for fact in self.supporting_facts))


def deduplicate(passages: Iterable[Passage]) -> Iterator[Passage]:
    """Yields passages without duplicates (same title and text)."""
    seen: set[tuple[str, str]] = set()
    for passage in passages:
        if (passage.title, passage.text) not in seen:
            seen.add((passage.title, passage.text))
            yield passage


class QADataset(Sequence[Question]):
    """Questions and the passages to search for them. Immutable: environments share one object.

    Args:
        questions: any sequence, lazy ones included.
        name: short name of the data set ("hotpotqa", "fiction" ...).
        split: "train", "validation", "test" ...; "file NAME" if unknown.
        source: description of the origin: a path, a hub id, or a generator and its settings.
        fingerprint: changes whenever the passages change; part of the name of cached indexes.
        corpus: passages of the open setting; None: the union of the questions' contexts.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        *,
        name: str,
        split: str,
        source: str,
        fingerprint: str,
        corpus: Sequence[Passage] | None = None,
    ) -> None:
        self._questions = questions
        self.name = name
        self.split = split
        self.source = source
        self.fingerprint = fingerprint
        self._corpus = corpus
        count = f"{len(questions)} question{'' if len(questions) == 1 else 's'}"
        self._description = f"{name}/{split} ({count}) from {source}"

    def __len__(self) -> int:
        return len(self._questions)

    def __getitem__(self, index: int) -> Question:  # type: ignore[override]  # no slices
        return self._questions[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> QADataset:
        return self  # immutable and large

    def __iter__(self) -> Iterator[Question]:
        return iter(self._questions)

    @property
    def is_sample(self) -> bool:
        """Whether this is the bundled sample, which replaces data that was not prepared."""
        return self.name.endswith("-sample")

    def passages(self) -> Iterator[Passage]:
        """Yields the passages of the open setting without duplicates."""
        if self._corpus is not None:
            return iter(self._corpus)
        return deduplicate(passage for question in self._questions for passage in question.context)

    def describe(self) -> str:
        """One line about name, split, size and source; `info["dataset"]` holds it."""
        return self._description

    def __repr__(self) -> str:
        return f"QADataset({self.describe()})"
