"""SearchQA: custom questions and answers, with a search over any corpus."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task
from agent_r1_gym.data.load import SAMPLE, warn_of_sample
from agent_r1_gym.data.tasks import TaskSet, load_tasks
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.retrieval.base import Retriever
from agent_r1_gym.retrieval.make import corpus_retriever, make_retriever
from agent_r1_gym.tools.search import SearchTool

_SAMPLE_QUESTIONS = 200


class SearchQAEnv(ToolEnv):
    """SearchQA: questions and answers from any file, with a search by any retriever.

    ## Description
    The agent gets a question, searches a corpus over several turns, and answers. The questions have no passages; this
    is the setting of the Agent-R1 paper (a file of questions, a retrieval server). Parquet files of Search-R1 load
    unchanged.

    ## Tools
    `search(query: string)`: the `top_k` best passages of the corpus, as `(rank) Title: text`, one per line.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`.

    ## Starting State
    A system turn (task, tools, format) and a user turn with a question drawn uniformly by the generator of the
    environment; `options={"task_index": i}` or `{"task": Task(...)}` select it.

    ## Rewards
    ### Outcome
    Paid once, at the end of the episode. "em" (default): 1 if the answer equals a gold answer after HotpotQA's
    normalisation, which here empties no answer (`scorer="qa"`; "hotpotqa" is the official one), else 0. "f1": token F1.
    "agent_r1": the paper's formula, one of 1, 0, -0.5, -1.
    ### Process
    Preset "process", as in `AgentR1/HotpotQA-v0`, except for new_support, which is 0: the gold passages are unknown.

    ## Episode End
    ### Termination
    An answer is given.
    ### Truncation
    After `max_turns` model turns, or when the history exceeds `max_history_chars` characters.

    ## Information
    As in `AgentR1/HotpotQA-v0`.

    ## Arguments
    `dataset=None`: a file of questions and answers (JSON, JSON Lines, CSV, Parquet), a folder of such files,
    "hub:NAME", a `TaskSet`, or "sample" (200 fictional questions and their corpus; None: the same, with a warning).
    `split=None`, `fields=None`, `holdout_fraction=0.1`: see `load_tasks`. `retriever="bm25"`: see `make_retriever`;
    `corpus=None`: file of passages, for retrievers without a corpus. `top_k=3`, `passage_chars=None`: see `SearchTool`.
    The rest: options of `ToolEnv`, as in `AgentR1/HotpotQA-v0`.

    ## References
    Jin et al., Search-R1 (arXiv 2503.09516). Agent-R1 (arXiv 2511.14460).

    ## Version History
    v0: first release.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "tools")

    instructions: ClassVar[str] = (
        "Answer the question. Search for one fact at a time, read the results, and search again until you know the "
        "answer. Keep it short: a name, a date, a number, yes or no."
    )

    def __init__(
        self,
        *,
        dataset: str | os.PathLike[str] | TaskSet | None = None,
        split: str | None = None,
        fields: Mapping[str, str] | None = None,
        holdout_fraction: float = 0.1,
        retriever: str | Retriever = "bm25",
        corpus: str | os.PathLike[str] | None = None,
        top_k: int = 3,
        passage_chars: int | None = None,
        **options: Any,
    ) -> None:
        if dataset is None:
            remedy = "pass dataset=PATH, a file of questions and answers"
            warn_of_sample("SearchQA", "FICTIONAL questions", remedy, stacklevel=2)
        if dataset in (None, SAMPLE) and (corpus is not None or retriever != "bm25"):
            raise ConfigurationError("The sample has its own corpus: set dataset, or drop corpus and retriever.")
        if dataset is None or dataset == SAMPLE:
            dataset, searched = _sample()
        else:
            searched = _retriever(retriever, corpus)
        if not isinstance(dataset, TaskSet):
            dataset = load_tasks(dataset, fields=fields, holdout_fraction=holdout_fraction)
        elif fields is not None:
            raise ConfigurationError("fields has no effect on the sample or a loaded TaskSet; drop it.")
        tools = [SearchTool(searched, top_k=top_k, passage_chars=passage_chars)]
        super().__init__(dataset=dataset, split=split, tools=tools, **{"scorer": "qa", **options})


@functools.cache
def _sample() -> tuple[TaskSet, Retriever]:
    """Fictional questions without passages, and a retriever over the world that they are about."""
    from agent_r1_gym.envs.fiction_qa.dataset import fiction_dataset

    worlds = {split: fiction_dataset(split=split, questions=_SAMPLE_QUESTIONS) for split in ("train", "validation")}
    tasks = [(Task(q.id, q.prompt, q.answers), split) for split, world in worlds.items() for q in world]
    train = worlds["train"]
    return (
        TaskSet(tasks, "train", "a bundled FICTIONAL sample", is_sample=True),
        make_retriever("bm25", passages=train.passages, fingerprint=train.fingerprint),
    )


def _retriever(retriever: str | Retriever, corpus: str | os.PathLike[str] | None) -> Retriever:
    if isinstance(retriever, str) and corpus is not None:
        return corpus_retriever(Path(corpus), retriever)[0]
    if retriever in ("bm25", "lucene") or (isinstance(retriever, str) and retriever.startswith(("dense:", "rrf:"))):
        raise ConfigurationError(
            f"retriever={retriever!r} needs corpus=FILE, the passages to search; or use a retriever that has a corpus: "
            "'http://HOST:PORT', 'lucene:INDEX' or a Retriever."
        )
    if corpus is not None:
        raise ConfigurationError(f"corpus={corpus!r} has no effect: the Retriever searches its own passages.")
    return make_retriever(retriever, passages=lambda: (), fingerprint="")
