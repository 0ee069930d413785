"""MixedQA: several multi-hop data sets in one environment, the training set of the Agent-R1 paper."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from agent_r1_gym.core.scoring import SCORERS
from agent_r1_gym.data.base import QADataset
from agent_r1_gym.data.load import load_mixture
from agent_r1_gym.data.official.dataset_formats import canonical_name
from agent_r1_gym.envs.qa.multihop_qa import MultiHopQAEnv
from agent_r1_gym.errors import ConfigurationError

DatasetSource = str | os.PathLike[str]
_DEFAULT_DATASETS = ("hotpotqa", "2wiki")


class MixedQAEnv(MultiHopQAEnv):
    """MixedQA: HotpotQA and 2WikiMultihopQA in turn, or any mixture of the multi-hop data sets.

    ## Description
    The agent gets a question of one of several data sets, searches for its passages over several turns, and answers.
    The default is HotpotQA and 2WikiMultihopQA: an equal share of each if `questions` is set, else all questions.

    ## Tools
    `search(query: string)`, as in `AgentR1/HotpotQA-v0`; without a `retriever` it searches the passages of all parts.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`.

    ## Starting State
    A system and a user turn, as in `AgentR1/HotpotQA-v0`. The id of a task starts with the name of its data set.

    ## Rewards
    ### Outcome
    Paid once, at the end of the episode. "em" (default): 1 if the answer equals a gold answer or an alias after the
    official normalisation, which all these data sets share, else 0. "f1": token F1. "agent_r1": the paper's formula,
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
    `dataset="auto"` (source of HotpotQA and 2WikiMultihopQA, "auto", "sample" or "hub"; or a dictionary from data sets
    to sources, such as `{"hotpotqa": "auto", "musique": "FILE"}`), `questions=None` (total number, an equal share of
    each, drawn with a fixed seed), `split=None`, `scorer=None` (the official one, if the data sets share it: MuSiQue's
    F1 differs). The rest: as in `AgentR1/HotpotQA-v0`.

    ## References
    Agent-R1 (arXiv 2511.14460) trains on 25,600 questions of each.

    ## Version History
    v0: first release.
    """

    def __init__(
        self,
        *,
        dataset: DatasetSource | QADataset | Mapping[str, DatasetSource] = "auto",
        questions: int | None = None,
        split: str | None = None,
        scorer: str | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(dataset, QADataset):
            sources = dataset if isinstance(dataset, Mapping) else dict.fromkeys(_DEFAULT_DATASETS, dataset)
            scorer = scorer or _common_scorer(sources)
            dataset = load_mixture(sources, split=split, questions=questions)
        elif questions is not None:
            raise ConfigurationError(
                f"questions={questions} needs data sets by name, but dataset= is a loaded one; drop questions."
            )
        super().__init__(dataset=dataset, scorer=scorer, **options)


def _common_scorer(sources: Mapping[str, DatasetSource]) -> str | None:
    names = [canonical_name(name) for name in sources]
    if len({SCORERS[name] for name in names}) > 1:
        raise ConfigurationError(
            f"{' and '.join(names)} are scored differently; choose one scorer, such as scorer='{names[0]}'."
        )
    return names[0] if names else None
