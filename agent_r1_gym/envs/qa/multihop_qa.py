"""Multi-hop question answering with a search tool: HotpotQA, 2WikiMultihopQA, MuSiQue."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import StepReturn, ToolEnv
from agent_r1_gym.core.types import Passage, ScriptedTurn, Task, Thought, ToolCall, ToolOutcome, Transition
from agent_r1_gym.data.base import Hop, QADataset, Question
from agent_r1_gym.data.load import load_dataset
from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.retrieval.base import Hit, Retriever, perturbed_retriever
from agent_r1_gym.retrieval.make import make_retriever
from agent_r1_gym.support.checks import check_choice, check_fraction
from agent_r1_gym.tools.search import NOTHING_FOUND, SearchTool

SETTINGS = ("open", "distractor")


class MultiHopQAEnv(ToolEnv):
    """Questions that need several passages, and a tool that searches for them; base of the registered environments.

    Args:
        dataset: "auto" (data prepared on this machine, else a bundled fictional sample, with a warning), "sample",
            "hub", a path, or a loaded `QADataset`.
        split: split of the data set; None: its training split.
        setting: "open": one corpus for all questions; "distractor": each episode searches the paragraphs of its
            question.
        retriever: retriever of the open setting, see `make.make_retriever`; None: embedded BM25 over the
            paragraphs of all questions. Questions without paragraphs need a retriever that has a corpus.
        top_k: passages per query.
        passage_chars: maximum number of characters per passage, for corpora of whole articles; None: all.
        search_style: format of the passages, see `SearchTool`.
        miss_rate: probability that a search finds nothing; repeating it may succeed.
        wrong_rate: probability that a search returns random passages of the data set instead.
        **options: see `ToolEnv`.

    Raises:
        ConfigurationError: an argument has a wrong value.
        DatasetError: the data is missing or malformed, has no gold answers, or no paragraphs for "distractor".
    """

    dataset_name: ClassVar[str] = "hotpotqa"
    """Short name of the data set, for `data.load.load_dataset`, and of its official scorer."""

    held_out_splits: Sequence[str] = ("validation",)

    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "tools", "fields")

    _faults: SearchFaults | None = None
    """What happens to searches, where there is a `miss_rate` or a `wrong_rate`."""

    instructions: ClassVar[str] = (
        "Answer the question. It needs facts from several passages of an encyclopedia: search for one fact, read the "
        "results, then search for the next fact. Keep the answer short: a name, a date, a number, yes or no."
    )

    def __init__(
        self,
        *,
        dataset: str | os.PathLike[str] | QADataset = "auto",
        split: str | None = None,
        setting: str = "open",
        retriever: str | Retriever | None = None,
        top_k: int = 5,
        passage_chars: int | None = None,
        search_style: str = "numbered",
        miss_rate: float = 0.0,
        wrong_rate: float = 0.0,
        scorer: str | None = None,
        **options: Any,
    ) -> None:
        check_choice("setting", setting, SETTINGS)
        check_fraction("miss_rate", miss_rate)
        check_fraction("wrong_rate", wrong_rate)
        self.dataset = load_dataset(self.dataset_name, dataset, split=split)
        self.setting = setting
        self._make_search = functools.partial(SearchTool, top_k=top_k, passage_chars=passage_chars, style=search_style)
        _check_questions(self.dataset, setting)
        tool = self._make_search(self._open_retriever(retriever))
        if miss_rate or wrong_rate:
            random_search = self._make_search(_random_passages(self.dataset)) if wrong_rate else None
            self._faults = SearchFaults(miss_rate, wrong_rate, random_search)
        super().__init__(tasks=self.dataset, tools=[tool], scorer=scorer or self.dataset_name, **options)

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """The shared search tool, or in the distractor setting one over the paragraphs of the question."""
        if self.setting == "open":
            return self.tools
        return [self._make_search(ParagraphRetriever(task))]

    def finish_step(self, outcomes: Sequence[ToolOutcome]) -> StepReturn:
        """Replaces the outcomes of some searches at random (`miss_rate`, `wrong_rate`), then finishes the step."""
        if self._faults is not None:
            outcomes = self._faults.apply(outcomes, self.np_random)
        return super().finish_step(outcomes)

    def oracle(self, task: Task, history: Sequence[Transition]) -> ScriptedTurn | None:
        """Searches for each gold title, again where the search missed and turns are left, then answers.

        Before a search it thinks the step of the gold decomposition that the passage answers, where there is one and
        the model gets instructions (`system_prompt`).
        """
        titles: tuple[str, ...] = getattr(task, "supporting_titles", ())
        searches = sum(not self._has_missed(transition) for transition in history)
        # Where searches miss, the last turn is for the answer; a budget too small for the plan itself is not excused.
        has_turns = len(history) < len(titles) or len(history) + 1 < self.max_turns
        if searches < len(titles) and has_turns:
            call = ToolCall("search", {"query": titles[searches]})
            step = "" if self._system_prompt == "" else _step_of(task, titles[searches])
            return Thought(step, call) if step else call
        return super().oracle(task, history)

    def describe_dataset(self) -> str:
        """Name, split, size and source of the questions."""
        return self.dataset.describe()

    def _has_missed(self, transition: Transition) -> bool:
        """Whether a search of the turn returned nothing or random passages."""
        results = [outcome.data for outcome in transition.outcomes if outcome.ok]
        # Random passages have the score 0, which no retrieved passage has.
        draws_random = self._faults is not None and self._faults.random_search is not None
        is_random = draws_random and any(hit.score == 0 for hits in results for hit in hits)
        return is_random or any(hits == () for hits in results)

    def _open_retriever(self, retriever: str | Retriever | None) -> Retriever:
        if self.setting == "open":
            passages, fingerprint = functools.partial(_passages, self.dataset), self.dataset.fingerprint
            return make_retriever(retriever or "bm25", passages=passages, fingerprint=fingerprint)
        if retriever is not None:
            raise ConfigurationError(
                f"setting='distractor' searches the paragraphs of each question; drop retriever={retriever!r} or use "
                "setting='open'."
            )
        return ParagraphRetriever(self.dataset[0])


@dataclass(frozen=True, slots=True)
class SearchFaults:
    """Replaces the outcomes of some searches at random.

    Attributes:
        miss_rate: probability that a search finds nothing.
        wrong_rate: probability that a search returns random passages.
        random_search: returns them; None if `wrong_rate` is 0.
    """

    miss_rate: float
    wrong_rate: float
    random_search: SearchTool | None

    def apply(self, outcomes: Sequence[ToolOutcome], rng: np.random.Generator) -> Sequence[ToolOutcome]:
        """Returns the outcomes of a step as the model gets them; a search that found nothing stays as it is."""
        if self.miss_rate:
            outcomes = [self._maybe_miss(outcome, rng) for outcome in outcomes]
        if self.random_search is not None:
            outcomes = [self._maybe_randomize(outcome, self.random_search, rng) for outcome in outcomes]
        return outcomes

    def _maybe_miss(self, outcome: ToolOutcome, rng: np.random.Generator) -> ToolOutcome:
        if not outcome.data or rng.random() >= self.miss_rate:
            return outcome
        return replace(outcome, content=NOTHING_FOUND, data=())

    def _maybe_randomize(self, outcome: ToolOutcome, search: SearchTool, rng: np.random.Generator) -> ToolOutcome:
        if not outcome.data or rng.random() >= self.wrong_rate:
            return outcome
        drawn = search.execute({"query": str(rng.integers(2**31))})
        return replace(outcome, content=drawn.content, data=drawn.data)


@functools.lru_cache(maxsize=8)
def _random_passages(dataset: QADataset) -> Retriever:
    passages = tuple(dataset.passages())
    if not passages:
        raise ConfigurationError("wrong_rate needs passages of the data set, which has none. Set it to 0.")
    return perturbed_retriever("random_passages", lambda: passages)


class ParagraphRetriever(Retriever):
    """Embedded BM25 over the paragraphs of one question, indexed at the first search."""

    call_timeout = None
    in_process = True

    def __init__(self, task: Task) -> None:
        self._task = task
        self._index: Retriever | None = None

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Searches the paragraphs of the question (see the base class)."""
        if self._index is None:
            from agent_r1_gym.retrieval.bm25 import BM25Retriever

            self._index = BM25Retriever(_paragraphs(self._task))
        return self._index.search_batch(queries, k)


def _paragraphs(task: Task) -> tuple[Passage, ...]:
    if isinstance(task, Question) and task.context:
        return task.context
    raise DatasetError(f"Task {task.id!r} has no paragraphs to search; use setting='open'.")


def _passages(dataset: QADataset) -> Iterator[Passage]:
    """The passages of a data set to index; at least one."""
    passages = dataset.passages()
    first = next(passages, None)
    if first is None:
        raise DatasetError(
            f"{dataset.describe()} has no paragraphs to search: pass a retriever that has a corpus "
            "(retriever='http://HOST:PORT', 'lucene:INDEX' or a Retriever), or questions with their context."
        )
    return itertools.chain([first], passages)


def _check_questions(dataset: QADataset, setting: str) -> None:
    """Checks that the questions have answers, and paragraphs for the distractor setting."""
    # The first question is enough: loading has checked that all rows are like the first.
    if len(dataset) == 0:
        raise DatasetError(f"{dataset.describe()} holds no question.")
    if not dataset[0].answers:
        raise DatasetError(
            f"{dataset.describe()} has no gold answers (a test split that hides them?), which rewards need; "
            "choose another split or file."
        )
    if setting == "distractor":
        _paragraphs(dataset[0])


class HotpotQAEnv(MultiHopQAEnv):
    """HotpotQA: bridge and comparison questions over Wikipedia introductions.

    ## Description
    The agent gets a question that needs two passages, searches for them over several turns, and answers. 113k
    crowd-sourced questions; 80 % have the type "bridge" (find A to find B), 20 % "comparison" (of A with B).

    ## Tools
    `search(query: string)`: the `top_k` best passages of the corpus, as `(rank) Title: text`, one per line.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text. In the default "hermes" format a call is
    `<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>`, the answer `<answer>...</answer>`; up to
    16 calls per turn are executed together. Anything else gets an error message, and the episode continues.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, one `[role]` header per turn.

    ## Starting State
    A system turn (task, tools, format) and a user turn with a question drawn uniformly by the generator of the
    environment; `options={"task_index": i}` or `{"task": Question(...)}` select it.

    ## Rewards
    ### Outcome
    Paid once, at the end of the episode. "em" (default): 1 if the answer equals a gold answer after HotpotQA's
    normalisation, else 0. "f1": HotpotQA's token F1. "agent_r1": the paper's formula, one of 1, 0, -0.5, -1.
    ### Process
    Preset "process" adds to "em", each at most once per turn: valid_call +0.05 (first successful call of the episode),
    malformed_call -0.1 (the turn does not parse), failed_call -0.05 (unknown tool, bad arguments, tool error),
    new_support +0.2 x the share of gold passages found for the first time, repeated_query -0.05. The reward of a step
    is between -0.2 and 1.25.

    ## Episode End
    ### Termination
    An answer is given.
    ### Truncation
    After `max_turns` model turns, or when the history exceeds `max_history_chars` characters.

    ## Information
    `messages`, `new_messages`, `task_id`, `dataset`, `turn`, `answer`, `reward_terms`, `outcome_reward`, `tool_calls`,
    `tool_outcomes`, `parse_errors`, `end_reason`, `infrastructure_error`: see `ToolEnv`.

    ## Arguments
    `dataset="auto"`, `split=None`, `setting="open"`, `retriever=None`, `top_k=5`, `passage_chars=None`,
    `search_style="numbered"`, `miss_rate=0.0`, `wrong_rate=0.0`: see `MultiHopQAEnv`. `parser="hermes"`, `reward="em"`,
    `reward_weights=None`, `scorer=None` (the official one), `max_turns=5`, `max_history_chars=65536`,
    `system_prompt=None`, `raw_system_prompt=None`, `feedback="full"`, `markup=()`, `render_mode=None`: see `ToolEnv`.

    ## References
    Yang et al., HotpotQA (EMNLP 2018, arXiv 1809.09600). Agent-R1 (arXiv 2511.14460).

    ## Version History
    v0: first release.
    """

    dataset_name = "hotpotqa"


class TwoWikiMultihopQAEnv(MultiHopQAEnv):
    """2WikiMultihopQA: questions made from paths of two to four Wikidata facts.

    ## Description
    The agent gets a compositional, inference, comparison or bridge-comparison question, searches for its passages over
    several turns, and answers. 192k questions generated from templates.

    ## Tools
    `search(query: string)`, as in `AgentR1/HotpotQA-v0`.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`.

    ## Starting State
    A system and a user turn, as in `AgentR1/HotpotQA-v0`.

    ## Rewards
    ### Outcome
    Paid once, at the end of the episode. "em" (default): 1 if the answer equals the gold answer or an alias after the
    official normalisation, else 0. "f1": token F1. "agent_r1": the paper's formula, one of 1, 0, -0.5, -1.
    ### Process
    Preset "process", as in `AgentR1/HotpotQA-v0`.

    ## Episode End
    ### Termination
    An answer is given.
    ### Truncation
    After `max_turns` model turns, or when the history exceeds `max_history_chars` characters.

    ## Information
    As in `AgentR1/HotpotQA-v0`.

    ## Arguments
    As in `AgentR1/HotpotQA-v0`.

    ## References
    Ho et al., Constructing A Multi-hop QA Dataset (COLING 2020, arXiv 2011.01060). Agent-R1 (arXiv 2511.14460).

    ## Version History
    v0: first release.
    """

    dataset_name = "2wikimultihopqa"


class MuSiQueEnv(MultiHopQAEnv):
    """MuSiQue: two- to four-hop questions that need every hop.

    ## Description
    The agent gets a question composed of two to four single-hop questions, searches over several turns, and answers.
    25k answerable questions; the out-of-domain test set of the Agent-R1 paper.

    ## Tools
    `search(query: string)`, as in `AgentR1/HotpotQA-v0`.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`.

    ## Starting State
    A system and a user turn, as in `AgentR1/HotpotQA-v0`.

    ## Rewards
    ### Outcome
    Paid once, at the end of the episode. "em" (default): 1 if the answer equals the gold answer or an alias after the
    official normalisation, else 0. "f1": MuSiQue's token F1, best over the aliases. "agent_r1": the paper's formula,
    one of 1, 0, -0.5, -1.
    ### Process
    Preset "process", as in `AgentR1/HotpotQA-v0`.

    ## Episode End
    ### Termination
    An answer is given.
    ### Truncation
    After `max_turns` model turns, or when the history exceeds `max_history_chars` characters.

    ## Information
    As in `AgentR1/HotpotQA-v0`.

    ## Arguments
    As in `AgentR1/HotpotQA-v0`.

    ## References
    Trivedi et al., MuSiQue (TACL 2022, arXiv 2108.00573). Agent-R1 (arXiv 2511.14460).

    ## Version History
    v0: first release.
    """

    dataset_name = "musique"


def _step_of(task: Task, title: str) -> str:
    """The step of a gold decomposition that a passage answers, with the answers of earlier steps; "" if unknown."""
    steps: Sequence[Hop] = getattr(task, "decomposition", ())
    step = next((step.question for step in steps if step.title == title), "")
    return re.sub(
        r"#(\d+)", lambda number: steps[int(number[1]) - 1].answer if int(number[1]) <= len(steps) else number[0], step
    )
