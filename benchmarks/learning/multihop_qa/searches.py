"""What multihop_qa has beyond arms and scores: learning from full demonstrations, and tables of searches."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.envs.fiction_qa.env import FictionQAEnv
from agent_r1_gym.registry import make_tool_env
from agent_r1_gym.tools.search import SearchTool
from benchmarks.common.experiment import Run, WarmStart
from benchmarks.common.policy import MISSES, first_and_last, logged
from benchmarks.common.results import Cell
from benchmarks.common.tables import Cells, arms, markdown
from trainers.commands.demonstrations import TokenRow, training_row
from trainers.rollouts.chat_format import ChatFormat
from trainers.toy.demonstrations import demonstrate
from trainers.toy.model import ANSWER_CLOSE, ANSWER_OPEN
from trainers.toy.supervised import fit, in_epochs

_EPOCHS, _BATCH = 3, 16
"""Passes over the demonstrations and batch size of supervised learning on them."""


def imitate(run: Run) -> tuple[Any, dict[str, Any]]:
    """Learns by supervision from full demonstrations, as many as reinforcement learning would see questions."""
    model, tokenizer = run.policy.model, run.policy.tokenizer
    rows = full_demonstrations(run)
    optimizer = torch.optim.AdamW(model.parameters(), lr=run.profile.supervised_learning_rate, weight_decay=0.0)
    steps = max(1, _EPOCHS * len(rows) // _BATCH)
    stream = in_epochs(rows, random.Random(run.seed))
    fit(model, tokenizer, stream, optimizer=optimizer, steps=steps, batch_size=_BATCH, seed=run.seed)
    return model.eval(), {}


def full_demonstrations(run: Run) -> list[TokenRow]:
    """Demonstrates whole chains that end in the right answer, with notes if the warm start's demonstrations had them.

    Demonstrations that end in a wrong answer, because a search found nothing or not what was meant, are skipped: half
    of them where two or three facts are needed.
    """
    env: Any = make_tool_env(run.profile.env, run.training)
    number = run.args.max_steps * (run.args.generation_batch_size or 1) // run.args.num_generations
    teaching = run.start.teaching
    notes = isinstance(teaching, WarmStart) and bool(teaching.options.get("notes"))
    rng, chat = random.Random(run.seed), ChatFormat(run.policy.tokenizer)
    order = rng.sample(range(len(env.tasks)), len(env.tasks))
    shown = ((index, demonstrate(env, index, habit="full_chain", rng=rng, notes=notes)) for index in order)
    right = (
        training_row(chat, messages)
        for index, messages in shown
        if messages[-1].content.endswith(f"{ANSWER_OPEN}{env.dataset[index].answers[0]}{ANSWER_CLOSE}")
    )
    return list(itertools.islice(right, number))


def summarise(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Keeps of a training log: groups without signal and calls in the first and last ten steps, and steps to .5."""
    names = {"without_signal": "group/frac_zero_std", "calls": "rollout/calls"}
    half = steps_to(logged(history, "rollout/reward/em"), 0.5)
    return {**first_and_last(history, names=names, steps=10), "steps_to_half": half}


def steps_to(curve: Sequence[float], level: float, width: int = 5) -> int | None:
    """The step at which the mean of the last `width` values first reaches `level`, None if it never does."""
    ends = range(width, len(curve) + 1)
    return next((end for end in ends if statistics.mean(curve[end - width : end]) >= level), None)


# --- tables -----------------------------------------------------------------------------------------------------------


def path_of(env: ToolEnv, index: int) -> tuple[str, ...]:
    """The path of relations that a question follows: questions of one path depend on each other."""
    assert isinstance(env, FictionQAEnv)
    path: tuple[str, ...] = env.dataset[index].metadata["path"]
    return path


def reach(cells: Cells) -> str:
    """How far a search for the name that was just read leads, by validation set: a ceiling for any reader.

    A query is the name that the question, or the passage before, states. Misses by chance do not count. A chain is
    found if each of its passages is among those that such a query returns.
    """
    rows, profile = [], cells.profile
    for title, options in profile.validation.items():
        ranks = [rank for start in profile.starts for rank in _ranks({**options, **start.env})]
        single = [rank for chain in ranks for rank in chain]
        shares = ([rank == 0 for rank in single], [rank is not None for rank in single], [None not in c for c in ranks])
        rows.append((title, *(f"{statistics.mean(share):.3f}" for share in shares)))
    return markdown(("test set", "right passage first", "right passage shown", "whole chain shown"), rows)


def _ranks(options: Mapping[str, Any]) -> Iterator[list[int | None]]:
    """Yields for each question the rank of the right passage among those shown, by hop; None: it is not shown."""
    env = FictionQAEnv(**options)
    [tool] = env.tools
    assert isinstance(tool, SearchTool)
    for question in env.dataset:
        names = [question.decomposition[0].title or "", *(hop.answer for hop in question.decomposition[:-1])]
        found = tool.retriever.search_batch(names, tool.top_k)
        shown = [[hit.passage.title for hit in hits] for hits in found]
        pairs = zip(question.decomposition, shown, strict=True)
        yield [titles.index(hop.title) if hop.title in titles else None for hop, titles in pairs]


def arms_and_paper(cells: Cells, *, paper: Mapping[str, Sequence[float]]) -> str:
    """Scores of each arm, next to those in the paper's tables."""
    return arms(
        cells,
        **{
            "paper:_HotpotQA,_2Wiki,_MuSiQue": lambda arm, _: (
                ", ".join(f"{value:.4f}" for value in paper[arm]) if arm in paper else "-"
            )
        },
    )


def behaviour(cells: Cells) -> str:
    """How the policies learned, and what they do after a search that missed."""
    rows = []
    for title, found in cells.rows():
        learned = list(_learning(found)) if "training" in found[0] else ["-"] * 4
        again = [
            sum(cell["retries"][miss][what] for cell in found)
            / (sum(cell["retries"][miss]["turns"] for cell in found) or 1)
            for miss in MISSES
            for what in ("same_query", "another_query")
        ]
        rows.append((title, *learned, *(f"{share:.2f}" for share in again)))
    header = ("groups without signal, first 10 steps", "last 10", "calls, last 10", "steps to .5 in training")
    retried = ("same search after nothing found", "another", "same search after other passages", "another")
    return markdown(("arm", *header, *retried), rows)


def _learning(found: Sequence[Cell]) -> Iterator[str]:
    training = [cell["training"] for cell in found]
    for at in (0, -1):
        yield f"{statistics.mean(each['without_signal'][at] for each in training):.2f}"
    yield f"{statistics.mean(each['calls'][-1] for each in training):.1f}"
    reached = [step for each in training if (step := each["steps_to_half"]) is not None]
    of = f"({len(reached)} of {len(training)})"
    yield f"{statistics.median(reached):.0f} {of}" if reached else f"- {of}"
