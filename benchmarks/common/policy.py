"""A policy and what is measured of it: its marks on questions, its curve while it trains, its training log."""

from __future__ import annotations

import functools
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.player import Player, evaluation_jobs
from agent_r1_gym.run.policies import make_prompt_method
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.tools.search import NOTHING_FOUND
from benchmarks.common.tables import share
from trainers.rollouts.local_model import wrap_model
from trainers.toy.held_out import ENV
from trainers.toy.model import CALL_CLOSE, CALL_OPEN
from trainers.toy.quickstart import load

MISSES = ("nothing_found", "other_passages")
Measure = Callable[[Iterable[Trajectory]], Any]
_QUERY = re.compile(re.escape(CALL_OPEN) + "(.*?)" + re.escape(CALL_CLOSE))
_MOST_SLOTS = 200


class Policy(NamedTuple):
    """A model and how it is played.

    Attributes:
        model: the model.
        tokenizer: the model's.
        seed: of the samples.
        env: id of the environment.
        rag: whether the model reads for Naive RAG instead of calling tools.
        turn_tokens: maximum number of tokens of a turn.
    """

    model: Any
    tokenizer: Any
    seed: int
    env: str = ENV
    rag: bool = False
    turn_tokens: int = 32

    def play(self, options: Mapping[str, Any], questions: int) -> list[Trajectory]:
        """Plays an environment's first questions, sampled at temperature 1; returns the episodes in their order."""
        local = wrap_model(
            self.model,
            self.tokenizer,
            sampling={"temperature": 1.0, "max_new_tokens": self.turn_tokens},
            slots=min(questions, _MOST_SLOTS),
        )
        player = Player(
            functools.partial(make_text_env, self.env, options, markup=local.chat.markup),
            method=make_prompt_method("naive-rag" if self.rag else "tools"),
            chat=local.chat,
            limits=local.limits,
        )
        episodes: list[Trajectory] = []
        player.play(evaluation_jobs(range(questions), seed=self.seed), local.engine, episodes.append)
        return sorted(episodes, key=lambda episode: episode.task_index)


def load_start(folder: Path) -> Any:
    """Loads the model in `folder`, in float32, onto the GPU if there is one (matrix products in TF32 then)."""
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    return on_device(load(folder)).eval()


def on_device(model: Any) -> Any:
    """Moves a model to the GPU, if there is one."""
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def save_half(model: Any, tokenizer: Any, folder: Path) -> None:
    """Writes the model in float16, and its tokenizer."""
    model.to(torch.float16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def digest(model: Any) -> str:
    """Hashes the weights of a model: blake2b over names and float32 values, sorted by name."""
    weights = blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        weights.update(name.encode())
        weights.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return f"blake2b:{weights.hexdigest()}"


def marks(episodes: Iterable[Trajectory]) -> str:
    """One character per episode, in the order of the tasks: 1 if it is solved, else 0."""
    by_task = sorted(episodes, key=lambda episode: episode.task_index)  # intervals compare cells question by question
    return "".join(str(int(bool(episode.solved))) for episode in by_task)


def episode_row(title: str, episode: Trajectory) -> dict[str, Any]:
    """The part of an episode that its hash covers: observations follow from it and the task."""
    actions = [turn.action for turn in episode.turns]
    return {
        "set": title,
        "task": episode.task_index,
        "solved": bool(episode.solved),
        "end": episode.end_reason,
        "answer": episode.answer,
        "actions": actions,
    }


def retries(episodes: Iterable[Trajectory]) -> dict[str, dict[str, int]]:
    """Counts what follows a search that missed, in the toy policy's format.

    A search misses if it finds nothing ("nothing_found"), or passages without the name that it ends with
    ("other_passages"). Of the turns after it ("turns"), some search for the same again ("same_query"), some for
    something else ("another_query").
    """
    counts = {miss: dict.fromkeys(("turns", "same_query", "another_query"), 0) for miss in MISSES}
    for episode in episodes:
        for call, reply, following in zip(episode.messages, episode.messages[1:], episode.messages[2:], strict=False):
            queries = _QUERY.findall(call.content)
            if (call.role, reply.role, following.role) != ("assistant", "tool", "assistant") or not queries:
                continue
            # Names in compact worlds are two words.
            if reply.content == NOTHING_FOUND:
                miss = "nothing_found"
            elif " ".join(queries[-1].split()[-2:]) not in reply.content:
                miss = "other_passages"
            else:
                continue
            after = _QUERY.findall(following.content)
            counts[miss]["turns"] += 1
            counts[miss]["same_query"] += bool(after) and queries == after
            counts[miss]["another_query"] += bool(after) and queries != after
    return counts


def logged(rows: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """A metric of each training step, rounded to four digits, from a trainer's log."""
    return [round(row[name], 4) for row in rows if name in row]


def first_and_last(
    rows: Iterable[Mapping[str, Any]], *, names: Mapping[str, str], steps: int
) -> dict[str, list[float]]:
    """Summarises a trainer's log.

    Args:
        rows: the log.
        names: name to name in the log.
        steps: number of training steps at each end.

    Returns:
        by name, means over the first and over the last steps.
    """
    history = list(rows)
    columns = {name: logged(history, key) for name, key in names.items()}
    return {
        name: [round(statistics.mean(part), 6) for part in (values[:steps], values[-steps:])]
        for name, values in columns.items()
        if values
    }


class Meter(TrainerCallback):
    """Evaluates the policy on validation questions while it trains.

    Attributes:
        points: per evaluation the step, `marks` by set, and `measures`.
        episodes: those of the last evaluation, by set.
        best: a copy of the weights with the highest mean score, the earliest of equal ones, if `keep_best`.

    Args:
        policy: the one that trains.
        sets: title to options of the environment.
        questions: per set and evaluation.
        every: steps between two evaluations; None: there are none.
        measures: by name, what else is computed from the episodes of all sets.
        keep_best: whether to copy the best weights.
    """

    def __init__(
        self,
        policy: Policy,
        sets: Mapping[str, Mapping[str, Any]],
        *,
        questions: int,
        every: int | None,
        measures: Mapping[str, Measure] = MappingProxyType({}),
        keep_best: bool = False,
    ) -> None:
        self.points: list[dict[str, Any]] = []
        self.episodes: dict[str, list[Trajectory]] = {}
        self.best: dict[str, torch.Tensor] = {}
        self._policy, self._sets, self._questions, self._every = policy, sets, questions, every
        self._measures, self._keep_best, self._highest = measures, keep_best, -1.0

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_others: Any) -> None:
        """Evaluates after every so many steps."""
        if self._every and state.global_step % self._every == 0:
            self.measure(state.global_step)

    def measure(self, step: int) -> None:
        """Plays the questions."""
        self.episodes = {title: self._policy.play(options, self._questions) for title, options in self._sets.items()}
        scored = {title: marks(played) for title, played in self.episodes.items()}
        measured = {name: measure(chain(*self.episodes.values())) for name, measure in self._measures.items()}
        self.points.append({"step": step, **scored, **measured})
        if self._keep_best and (mean := statistics.mean(map(share, scored.values()))) > self._highest:
            self._highest = mean
            self.best = {name: tensor.detach().clone() for name, tensor in self._policy.model.state_dict().items()}

    @property
    def best_step(self) -> int:
        """The step of the best evaluation, the earliest of equal ones."""
        means = [statistics.mean(share(point[title]) for title in self._sets) for point in self.points]
        return int(self.points[means.index(max(means))]["step"])

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the last episodes."""
        return [episode_row(title, episode) for title, played in self.episodes.items() for episode in played]
