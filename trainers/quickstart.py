"""A tiny policy learns to search, on one CPU core in minutes: warm start, RL, before and after.

`python -m trainers.quickstart` writes scores (JSON), the learning curve (CSV; PNG where matplotlib is there), traces
before and after (HTML) and the trained model.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_r1_gym.commands.base import make_envs, say, table
from agent_r1_gym.commands.rollout import new_folder
from agent_r1_gym.report import write_html
from agent_r1_gym.rollout import rollout
from agent_r1_gym.storage import atomic_file
from trainers.config import ALGORITHMS, AgentConfig
from trainers.evaluation import LocalPolicy, evaluate
from trainers.train import build_trainer

ENV = "AgentR1/FictionQA-v0"
TRAINING: Mapping[str, Any] = {
    "style": "compact",
    "entities": 800,
    "questions": 2000,
    "mix": {"1hop": 0.2, "bridge": 0.45, "3hop": 0.2, "comparison": 0.15},
}
"""The world to train on; one-hop questions stay in, else the agent learns to search twice always."""
HELD_OUT = tuple((split, kind) for split in ("test", "ood") for kind in ("1hop", "bridge", "3hop", "comparison"))
"""Splits and question types of the evaluation: other entities; for "ood" other question paths too."""


def held_out(split: str, kind: str) -> dict[str, Any]:
    """Returns the environment options of one evaluation set."""
    return {"style": "compact", "entities": 800, "split": split, "world_seed": 1, "mix": {kind: 1.0}}


def scores(model: Any, tokenizer: Any, *, questions: int) -> dict[str, float]:
    """Returns sampled exact match by "split/type"."""
    return {
        f"{split}/{kind}": evaluate(model, tokenizer, env_options=held_out(split, kind), questions=questions)["em"]
        for split, kind in HELD_OUT
    }


def configuration(folder: Path, *, algorithm: str, steps: int, seed: int) -> AgentConfig:
    """Returns the settings of the run: 16 questions x 8 rollouts a step, no KL, full weights, one core."""
    return AgentConfig(
        output_dir=str(folder),
        env_id=ENV,
        env_kwargs=dict(TRAINING),
        algorithm=algorithm,
        max_steps=steps,
        seed=seed,
        num_generations=8,
        per_device_train_batch_size=64,
        gradient_accumulation_steps=2,
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        beta=0.0,
        critic_learning_rate=1e-3,
        max_turn_tokens=40,
        max_prompt_length=64,
        max_completion_length=160,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        gradient_checkpointing=False,
    )


def run(warm: Path, folder: Path, *, algorithm: str, steps: int, questions: int, seed: int) -> dict[str, Any]:
    """Evaluates, trains and evaluates again; returns what `scores.json` holds."""
    tokenizer = AutoTokenizer.from_pretrained(warm)
    model = AutoModelForCausalLM.from_pretrained(warm, dtype=torch.float32)
    say(f"evaluating the warm start on {len(HELD_OUT)} x {questions} held-out questions")
    before = scores(model, tokenizer, questions=questions)
    write_html(traces(model, tokenizer), folder / "before.html")
    say(f"training: {steps} steps of 128 episodes")
    start = time.perf_counter()
    trainer = build_trainer(
        configuration(folder / "run", algorithm=algorithm, steps=steps, seed=seed), model, tokenizer=tokenizer
    )
    trainer.train()
    seconds = time.perf_counter() - start
    trainer.save_model(str(folder / "model"))
    trained = trainer.model.eval()
    after = scores(trained, tokenizer, questions=questions)
    write_html(traces(trained, tokenizer), folder / "after.html")
    write_curve(trainer.state.log_history, folder)
    result = {
        "algorithm": algorithm,
        "before": before,
        "after": after,
        "steps": steps,
        "questions": questions,
        "seed": seed,
        "seconds": seconds,
    }
    with atomic_file(folder / "scores.json") as temporary:
        temporary.write_text(json.dumps(result, indent=2) + "\n")
    return result


def traces(model: Any, tokenizer: Any, *, episodes: int = 20) -> list[Any]:
    """Returns sampled episodes on held-out two-hop questions, to look at."""
    envs = make_envs(ENV, episodes, held_out("test", "bridge"))
    generator = torch.Generator(model.device).manual_seed(0)
    return list(rollout(envs, LocalPolicy(model, tokenizer, generator=generator), range(episodes)))


def write_curve(log: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Writes the exact match of each step's rollouts as CSV, and as PNG if matplotlib is installed."""
    points = [(int(row["step"]), float(row["rollout/reward/em"])) for row in log if "rollout/reward/em" in row]
    with atomic_file(folder / "curve.csv") as temporary, temporary.open("w", newline="") as file:
        csv.writer(file).writerows([("step", "em"), *points])
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="optimiser step", ylabel="exact match of the rollouts", ylim=(0, 1))
    axes.plot(*zip(*points, strict=True), marker=".")
    axes.grid(alpha=0.3)
    figure.savefig(folder / "curve.png", dpi=120)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the quickstart of the trainer and prints its table."""
    parser = argparse.ArgumentParser(prog="python -m trainers.quickstart", description=main.__doc__)
    parser.add_argument("--warm", type=Path, required=True, help="warm start, from `python -m trainers.warmstart`")
    parser.add_argument("--out", type=Path, required=True, help="new folder for everything that is written")
    parser.add_argument("--algorithm", choices=list(ALGORITHMS), default="grpo", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=100, help="optimiser steps (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=200, help="per evaluation set (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    options = parser.parse_args(arguments)
    folder = new_folder(options.out)
    settings = {name: getattr(options, name) for name in ("algorithm", "steps", "questions", "seed")}
    result = run(options.warm, folder, **settings)
    rows = [(name, em, result["after"][name]) for name, em in result["before"].items()]
    say(table(("held-out questions", "EM before", "EM after"), rows))
    say(f"trained for {result['seconds']:.0f} s; written to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
