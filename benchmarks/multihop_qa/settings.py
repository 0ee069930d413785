"""Settings of this experiment, as data: methods, sets of questions, profiles, and the paper's own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from benchmarks.common.cells import WarmStart

Kind = Literal["naive-rag", "untrained", "rl", "rejection", "demonstrations"]


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table.

    Attributes:
        title: name in the table.
        kind: how the model comes to be.
        options: fields of `AgentConfig` that differ from the profile's.
        paper: name of the row in the paper's tables, if it has one.
    """

    title: str
    kind: Kind
    options: Mapping[str, Any] = field(default_factory=dict)
    paper: str | None = None


def _rl(title: str, algorithm: str, **options: Any) -> Method:
    return Method(title, "rl", {"algorithm": algorithm, **options}, title)


METHODS: Mapping[str, Method] = {
    "naive-rag": Method("Naive RAG", "naive-rag", paper="Naive RAG"),
    "base": Method("Base Tool Call", "untrained", paper="Base Tool Call"),
    "ppo": _rl("PPO", "ppo"),
    "grpo": _rl("GRPO", "grpo"),
    "reinforce++": _rl("REINFORCE++", "reinforce++"),
    "reinforce++-baseline": _rl("REINFORCE++-baseline", "reinforce++-baseline"),
    "rloo": _rl("RLOO", "rloo"),
    "rejection": Method("Rejection sampling (control)", "rejection"),
    "demonstrations": Method("SFT on full demonstrations (control)", "demonstrations"),
    "ppo-no-advantage-mask": _rl("PPO without advantage mask", "ppo", advantage_mask=False),
    "ppo-no-masks": _rl("PPO without advantage and loss mask", "ppo", advantage_mask=False, loss_mask=False),
    "grpo-no-loss-mask": _rl("GRPO without loss mask", "grpo", loss_mask=False, advantage_mask=False),
}

PAPER: Mapping[str, tuple[float, float, float]] = {
    "Base Tool Call": (0.1372, 0.0891, 0.0277),
    "Naive RAG": (0.1916, 0.1792, 0.0277),
    "PPO": (0.4136, 0.5468, 0.1552),
    "GRPO": (0.4405, 0.5741, 0.1485),
    "REINFORCE++": (0.3768, 0.4796, 0.1336),
    "REINFORCE++-baseline": (0.3966, 0.5406, 0.1485),
    "RLOO": (0.4089, 0.5641, 0.1419),
    "PPO without advantage mask": (0.3630, 0.4641, 0.1138),
    "PPO without advantage and loss mask": (0.3429, 0.4631, 0.1005),
    "GRPO without loss mask": (0.4260, 0.5485, 0.1422),
}
"""Exact match on HotpotQA, 2WikiMultihopQA, MuSiQue: tables 3 and 4 of arXiv 2511.14460, Qwen2.5-3B-Instruct."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One scale of the experiment.

    Attributes:
        training: options of the environment to train on.
        test_sets: title to options of the environment; the last three are the shapes of the paper's, in their order.
        questions: number of questions per test set.
        steps: optimiser steps of a training run.
        seeds: one cell per method and seed.
        start: how the model is taught that training starts from; None: it is the one that comes with the package.
        trainer: fields of `AgentConfig` that differ from `trainers.toy.quickstart.configuration`.
        supervised_learning_rate: of the two controls.
    """

    training: Mapping[str, Any]
    test_sets: Mapping[str, Mapping[str, Any]]
    questions: int
    steps: int
    seeds: tuple[int, ...]
    start: WarmStart | None = None
    trainer: Mapping[str, Any] = field(default_factory=dict)
    supervised_learning_rate: float = 1e-3


_WORLD = {"style": "compact", "entities": 800}
_TEST = {**_WORLD, "world_seed": 1, "questions": 400}

PROFILES: dict[str, Profile] = {
    "cpu": Profile(
        training={
            **_WORLD,
            "questions": 2000,
            "mix": {"1hop": 0.15, "bridge": 0.3, "3hop": 0.2, "4hop": 0.2, "comparison": 0.15},
        },
        test_sets={
            "one search suffices": {**_TEST, "split": "test", "mix": {"1hop": 1.0}},
            "two hops, comparison": {**_TEST, "split": "test", "mix": {"bridge": 0.8, "comparison": 0.2}},
            "compositional": {**_TEST, "split": "test", "mix": {"bridge": 0.5, "3hop": 0.5}},
            "unseen 3-4 hops": {**_TEST, "split": "ood", "mix": {"3hop": 0.7, "4hop": 0.3}},
        },
        questions=400,
        steps=60,
        seeds=(0, 1, 2, 3, 4),
    ),
    "smoke": Profile(
        training={**_WORLD, "questions": 64, "mix": {"1hop": 1.0}},
        test_sets={"one hop": {**_TEST, "split": "test", "mix": {"1hop": 1.0}}},
        questions=4,
        steps=1,
        seeds=(0,),
    ),
}
"""The shapes of HotpotQA, 2WikiMultihopQA and MuSiQue in fictional worlds, for a policy of 0.4M parameters."""

_LARGE = {"entities": 2400}
PROFILES["gpu"] = replace(
    PROFILES["cpu"],
    training={**PROFILES["cpu"].training, **_LARGE, "questions": 6000},
    test_sets={title: {**each, **_LARGE, "questions": 800} for title, each in PROFILES["cpu"].test_sets.items()},
    questions=800,
    steps=200,
    start=WarmStart("92M", {"steps": 4000, "batch_size": 64, "entities": 600, "lr": 0.002, "adam_lr": 0.002}),
    trainer={
        "per_device_train_batch_size": 128,
        "gradient_accumulation_steps": 2,
        "learning_rate": 3e-5,
        "critic_learning_rate": 1e-4,
    },
    supervised_learning_rate=1e-4,
)
"""92M parameters, worlds three times as large, 32 questions x 8 rollouts per step. Never run: nothing here is tuned.

Compact style, because the model starts from nothing: natural style would need a subword tokenizer, which the package
does not ship, and a model that reads varied English, which minutes of training do not give.
"""
