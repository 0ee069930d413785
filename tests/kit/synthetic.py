"""Made-up episodes as `agent-r1 eval` keeps them, and rollouts as the trainer writes them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1_gym.evaluation.metrics import summarize
from agent_r1_gym.evaluation.run_folder import RunFolder

ALPHABET = "etaoinshrdlucmfwypvbgkqjxz"


def vocabulary(generator: random.Random, number: int = 8_000) -> list[str]:
    weights = [1 / (rank + 1.5) for rank in range(len(ALPHABET))]
    return ["".join(generator.choices(ALPHABET, weights, k=generator.randint(2, 10))) for _ in range(number)]


def passages(generator: random.Random, number: int) -> list[str]:
    """Texts of about 90 words whose frequencies fall as in a natural language."""
    words = vocabulary(generator)
    weights = [1 / (rank + 2.7) for rank in range(len(words))]
    return [f'"{n} " ' + " ".join(generator.choices(words, weights, k=90)) for n in range(number)]


def episode(index: int, texts: Sequence[str], generator: random.Random, **changes: Any) -> dict[str, Any]:
    """An episode of two searches (five passages each) and an answer."""
    right, broken, cut = generator.random() < 0.6, generator.random() < 0.1, generator.random() < 0.05
    hops = generator.choice((2, 2, 3, 4))
    call = '<tool_call>{"name": "search", "arguments": {"query": "%d %d"}}</tool_call>'
    said = [f"<think>hop {hop}</think>{call % (index, hop)}" for hop in (1, 2)]
    found = ["\n".join(generator.choices(texts, k=5)) for _ in said]
    answer = None if cut else "oslo" if right else f"city {index}"
    messages = [
        {"role": "system", "content": "Answer with the tools that you have.\n" * 8},
        {"role": "user", "content": f"Question {index}: where was the director of film {index} born?"},
    ]
    for action, text in zip(said, found, strict=True):
        messages += [{"role": "assistant", "content": action}, {"role": "tool", "name": "search", "content": text}]
    last = "and so on" if cut else f"<answer>{answer}</answer>"
    messages.append({"role": "assistant", "content": last})
    turns: list[dict[str, Any]] = [
        {"action": text, "reward": 0.0, "reward_terms": {"em": 0.0, "format": 1.0}, "outcome_errors": [None],
         "parse_errors": [], "prompt_tokens": 10, "completion_tokens": 5}
        for text in said
    ]  # fmt: skip
    if broken:
        turns[1]["outcome_errors"] = ["bad_arguments"]
    turns.append({**turns[0], "action": last, "reward": float(right and not cut), "outcome_errors": [],
                  "reward_terms": {"em": float(right and not cut), "format": 1.0}})  # fmt: skip
    em = float(right and not cut)
    return {
        "env_id": "AgentR1/FictionQA-v0", "policy": "oracle", "task_id": f"task-{index}", "task_index": index,
        "sample": 0, "question": messages[1]["content"], "type": "bridge" if hops == 2 else "chain", "hops": hops,
        "gold_answers": ["Oslo"], "answer": answer, "messages": messages, "turns": turns, "terminated": not cut,
        "truncated": cut, "end_reason": "max_turns" if cut else "answer",
        "scores": {"em": em, "f1": em, "sub_em": em, "support_recall": 1.0, "return": em, "turns": 3, "calls": 2,
                   "failed_calls": int(broken), "malformed_turns": 0, "prompt_tokens": 30, "completion_tokens": 15,
                   "failures": {"bad_arguments": 1} if broken else {}},
        **changes,
    }  # fmt: skip


def episodes(number: int, *, corpus: int = 200, seed: int = 0) -> list[dict[str, Any]]:
    generator = random.Random(seed)
    texts = passages(generator, corpus)
    return [episode(index, texts, generator) for index in range(number)]


def token_row(**changes: Any) -> dict[str, Any]:
    """A rollout of two turns with an answer of the environment between them."""
    return {
        "step": 10, "batch": 10, "rollout": 0, "title": "where ?", "prompt": "user where ?",
        "pieces": ["<search>", " Oslo", "\n[tool]", " <b>fjord</b>", "<answer>", "Oslo"],
        "loss_mask": [1, 1, 0, 0, 1, 1], "logprobs": [-0.1, -1.25, None, None, -0.5, -0.01],
        "advantages": [0.5, 0.5, None, None, -0.75, -0.75],
        "turns": [{"start": 0, "end": 2, "reward": 0.0}, {"start": 4, "end": 6, "reward": 1.0}],
        "row_starts": [], "terminated": True, "truncated": False, "infrastructure_error": None,
        "metrics": {"reward/em": 1.0, "failed_calls": 0.0, "malformed_turns": 0.0, "turns": 2.0},
        **changes,
    }  # fmt: skip


def write_run(folder: Path, rows: Sequence[dict[str, Any]], *, failures: Sequence[dict[str, Any]] = (),
              finished: bool = True, **settings: Any) -> Path:  # fmt: skip
    """Writes a folder as `agent-r1 eval` does."""
    run = RunFolder(folder)
    defaults = {"env_id": "AgentR1/FictionQA-v0", "policy": "oracle", "samples": 1, "seed": 0, "dataset": "fiction",
                "questions": len(rows) + len(failures), "question_hash": "0123456789abcdef"}  # fmt: skip
    run.open({**defaults, **settings})
    for row in rows:
        run.add(row, seconds=0.5)
    run.close()
    if finished:
        run.finish(failures, summarize(rows, failures, samples=1, seconds=run.seconds()))
    return folder
