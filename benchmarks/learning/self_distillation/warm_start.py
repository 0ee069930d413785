"""The warm start: a toy policy that follows a solution in front of its prompt, and searches once without one."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1_gym.envs.fiction_qa.env import FictionQAEnv
from agent_r1_gym.run.record import Trajectory
from benchmarks.common.policy import on_device, save_half
from benchmarks.learning.discovery.settings import HABITS
from trainers.algorithms.privileged import PrivilegedContext
from trainers.commands.demonstrations import IGNORE_INDEX, TokenRow, training_row
from trainers.rollouts.chat_format import ChatFormat
from trainers.toy.demonstrations import Habits, demonstrate, demonstrations
from trainers.toy.model import build_model, build_tokenizer
from trainers.toy.supervised import Muon, fit

ALONE: Mapping[str, Habits] = {
    "1hop": HABITS["1hop"],
    "bridge": Habits(
        full_chain=0.0,
        stops_early=0.6,
        malformed_call=0.0,
        direct_answer=0.1,
        question_as_query=0.0,
        retrieve_once=0.3,
    ),
}
"""Habits without a solution, by kind of question: none searches a second time for the result of a first search."""
INFORMED: Mapping[str, float] = {"1hop": 0.25, "bridge": 0.25, "3hop": 0.25, "4hop": 0.25}
"""Kinds of questions that are shown with their solution, and then solved."""
SOLUTION = "solution"
"""Kind of privileged information."""
_ROWS = 8
_PER_WORLD = 16


@dataclass(frozen=True, slots=True)
class SolutionReader:
    """A toy policy with random weights, taught by demonstrations half of which stand behind their solution.

    Attributes:
        seed: of the weights, the worlds and the demonstrations.
        steps: optimiser steps, each on 8 demonstrations with a solution and 8 without.
    """

    seed: int
    steps: int = 3000

    def teach(self, folder: Path) -> Mapping[str, Any]:
        """Writes model and tokenizer; returns the training log."""
        tokenizer = build_tokenizer()
        chat, model = ChatFormat(tokenizer), on_device(build_model(tokenizer, seed=self.seed))

        def rows() -> Iterator[TokenRow]:
            mix = dict.fromkeys(ALONE, 1 / len(ALONE))
            alone, informed = demonstrations(seed=self.seed, mix=mix, habits=ALONE), informed_rows(chat, self.seed)
            while True:
                yield from (training_row(chat, messages) for messages in itertools.islice(alone, _ROWS))
                yield from itertools.islice(informed, _ROWS)

        optimizer = Muon(model)
        log = fit(model, tokenizer, rows, optimizer=optimizer, steps=self.steps, batch_size=2 * _ROWS, seed=self.seed)
        save_half(model, tokenizer, folder)
        return {"log": log}


def informed_rows(chat: ChatFormat, seed: int) -> Iterator[TokenRow]:
    """Yields full chains without end, each behind the oracle's turns as a teacher reads them, which have no labels."""
    rng = random.Random(f"solutions/{seed}")
    while True:
        world: dict[str, Any] = {"world_seed": rng.getrandbits(48), "entities": 200, "questions": _PER_WORLD}
        make = functools.partial(FictionQAEnv, style="compact", mix=INFORMED, **world)
        env, privileged = make(), PrivilegedContext({"": make})
        for index in rng.sample(range(_PER_WORLD), _PER_WORLD):
            task = env.tasks[index]
            record = Trajectory(task_id=task.id, gold_answers=task.answers)
            [text] = privileged.texts(SOLUTION, [{"task_index": index, "seed": 0}], [record])
            ids = chat.tokenizer(text, add_special_tokens=False)["input_ids"]
            row = training_row(chat, demonstrate(env, index, habit="full_chain", rng=rng))
            hidden = [IGNORE_INDEX] * len(ids)
            yield {"input_ids": ids + row["input_ids"], "labels": hidden + row["labels"]}
        privileged.close()
