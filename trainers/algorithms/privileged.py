"""Privileged information: what only the critic, or a teacher, reads about a task, in front of each context.

A critic that knows the answer predicts earlier whether a state leads to it (asymmetric actor-critic, arXiv 1710.06542;
Agent-R1's recipes use a prefix as well). A teacher with the policy's own weights that knows the answer is on-policy
self-distillation, see `distillation`.

The text exists only while credit is assigned. Prompts of the policy, records, traces and evaluations never contain it:
rollouts are over before it is made, and passes of the policy get no `Prefixes`. What the policy learns depends on it. A
privileged critic changes the baseline of actions that were sampled without it; a teacher's distribution may be one that
the policy cannot have without the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task
from agent_r1_gym.data.base import Question
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.run.record import Trajectory
from trainers.algorithms.packing import Prefixes

Row = Mapping[str, Any]
"""A row of the data set: for a `ToolEnv` with `task_index` and `seed`, in a mixture also `env`."""


class PrivilegedContext:
    """Writes the privileged text of each rollout, by the kinds that `critic_privileged` and `teacher_privileged` name.

    - "answer": the first gold answer of the task.
    - "passages": the gold passages of a question that comes with its paragraphs (`Question.context`).
    - "solution": the turns of the environment's oracle on the task, as the parser writes them. The oracle is played
      once per task of a batch, in an environment of its own with the task and seed of the rollout.

    Args:
        make_envs: makes an environment, by name ("" where there is only one); it is opened when a kind first needs it.
    """

    def __init__(self, make_envs: Mapping[str, Callable[[], TextEnv]] | None = None) -> None:
        self._make_envs = dict(make_envs or {})
        self._envs: dict[str, TextEnv] = {}

    def texts(self, kind: str, rows: Sequence[Row], records: Sequence[Trajectory]) -> list[str]:
        """Return the text of each rollout, "" of those that are excluded.

        Raises:
            ConfigurationError: a task has nothing of this kind.
        """
        played: dict[tuple[Any, ...], str] = {}
        texts = []
        for row, record in zip(rows, records, strict=True):
            # Rollouts of one prompt share task and seed, and with them passages and solution.
            key = row.get("env"), row.get("task_index"), row.get("seed")
            if record.infrastructure_error is not None:
                texts.append("")
            elif kind == "answer":
                texts.append(self._text(kind, row, record))
            else:
                if key not in played:
                    played[key] = self._text(kind, row, record)
                texts.append(played[key])
        return texts

    def prefixes(
        self, kind: str, rows: Sequence[Row], records: Sequence[Trajectory], *, tokenizer: Any, device: Any = "cpu"
    ) -> Prefixes:
        """Tokenise the text of each rollout (B) as what stands in front of its contexts."""
        texts = self.texts(kind, rows, records)
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] if text else [] for text in texts]
        width = max(1, *map(len, ids)) if ids else 1
        padded = torch.tensor([[*row, *[0] * (width - len(row))] for row in ids], device=device)
        return Prefixes(padded, torch.tensor([*map(len, ids)], device=device), tokenizer.bos_token_id)

    def check(self, kind: str) -> None:
        """Try a kind on the first task of each environment, before anything is played.

        Raises:
            ConfigurationError: it has nothing of this kind.
        """
        for name in self._make_envs:
            env = self._tool_env(name, kind)
            task = env.tasks[0]
            record = Trajectory(task_id=task.id, gold_answers=task.answers)
            self._text(kind, {"env": name, "task_index": 0, "seed": 0}, record)

    def close(self) -> None:
        """Close the environments that it opened."""
        while self._envs:
            self._envs.popitem()[1].close()

    def _text(self, kind: str, row: Row, record: Trajectory) -> str:
        if kind == "answer":
            if not record.gold_answers:
                raise _missing(kind, record.task_id, "it has no gold answers", "solution")
            return f"The correct answer is: {record.gold_answers[0]}\n\n"
        env = self._tool_env(row.get("env") or "", kind)
        index = row["task_index"]
        if kind == "passages":
            passages = gold_passages(env.tasks[index])
            if not passages:
                raise _missing(kind, record.task_id, "its gold passages are not part of the data", "answer")
            return "\n".join(["The answer follows from these passages:", *passages]) + "\n\n"
        turns = list(oracle_turns(env, index, seed=row.get("seed")))
        if not turns:
            raise _missing(kind, record.task_id, "the environment has no oracle for it", "answer")
        return "\n".join(["A correct solution takes these turns:", *turns]) + "\n\n"

    def _tool_env(self, name: str, kind: str) -> ToolEnv:
        if name not in self._make_envs:
            raise ConfigurationError(
                f"The privileged information {kind!r} is read from the environment, and none was given: pass "
                "PrivilegedContext({name: make_env}) to the trainer, or choose 'answer', which records contain."
            )
        if name not in self._envs:
            self._envs[name] = self._make_envs[name]()
        env = self._envs[name].unwrapped
        if not isinstance(env, ToolEnv):
            raise ConfigurationError(
                f"Privileged information needs an environment with tasks (ToolEnv), got {type(env).__name__}: leave "
                "critic_privileged and teacher_privileged unset."
            )
        return env


def gold_passages(task: Task) -> list[str]:
    """Return the gold passages of a question as "title: text"; empty if it does not have all of them."""
    if not isinstance(task, Question):
        return []
    titles, ids = set(task.supporting_titles), task.metadata.get("supporting_passages", ())
    passages = [passage for passage in task.context if (passage.id in ids if ids else passage.title in titles)]
    if not titles or {passage.title for passage in passages} != titles:
        return []
    return [f"{passage.title}: {passage.text}" for passage in passages]


def oracle_turns(env: ToolEnv, task_index: int, *, seed: int | None = None) -> Iterator[str]:
    """Play the oracle on a task and yield its turns as text; it ends early where the oracle knows no turn."""
    env.reset(seed=seed, options={"task_index": task_index})
    ended = False
    while not ended:
        turn = env.oracle(env.task, env.transitions)
        if turn is None:
            return
        action = env.parser.format_turn(turn)
        yield action
        _, _, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated


def _missing(kind: str, task_id: str, reason: str, other: str) -> ConfigurationError:
    return ConfigurationError(
        f"Task {task_id!r} has no privileged information {kind!r}: {reason}. Choose another kind for critic_privileged "
        f"or teacher_privileged, such as {other!r}."
    )
