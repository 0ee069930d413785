"""Do RL-trained agents beat Naive RAG and Base Tool Call? The paper's tables 3 and 4, cell by cell.

    python -m benchmarks.multihop_qa run [--profile cpu] [--method grpo ...] [--seed 0 ...]
    python -m benchmarks.multihop_qa table [--profile cpu]
    python -m benchmarks.multihop_qa commands|dry-run|collect --profile paper

A cell is one method and one seed; each is a file of its own, so that a run that was stopped goes on where it was.
The paper's own scale is a list of commands (`paper.py`), whose evaluations `collect` turns into cells.
"""

from __future__ import annotations

import argparse
import functools
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from agent_r1_gym.evaluation.statistics import crossed_interval
from agent_r1_gym.registry import make_tool_env
from agent_r1_gym.support.terminal import say
from benchmarks.common.cells import Cell, add_cell_options, load_start, markdown, read_cells, run_cells
from benchmarks.multihop_qa.dry_run import dry_run, report
from benchmarks.multihop_qa.paper import RUNS, SEEDS, TEST_SETS, collect, script
from benchmarks.multihop_qa.settings import METHODS, PAPER, PROFILES, Method, Profile
from trainers.config import AgentConfig
from trainers.engines.chat_format import ChatFormat
from trainers.sft.rows import training_row
from trainers.toy.demonstrations import demonstrate
from trainers.toy.held_out import ENV, play
from trainers.toy.quickstart import configuration
from trainers.toy.rejection import rejection_sampling
from trainers.toy.supervised import fit, in_epochs
from trainers.train import build_trainer

RESULTS = Path(__file__).parent / "results"
AT_SCALE = ("commands", "dry-run", "collect")
"""Actions at the paper's scale: show the commands, try them, collect what they measured."""
_EPOCHS, _BATCH = 3, 16
"""Passes over the demonstrations and batch size of supervised learning on them."""


def run_cell(profile: Profile, name: str, seed: int, start: Path, scratch: Path) -> Cell:
    """Makes the model of one cell and returns its exact matches, a string of 0 and 1 for each test set.

    A character for each question: 1 if it was answered right, sampled at temperature 1.
    """
    method = METHODS[name]
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(start)
    model = load_start(start)
    wall, cpu = time.perf_counter(), time.process_time()
    model, log = _learn(method, model, tokenizer, seed, profile, scratch)
    taken = {"training_seconds": time.perf_counter() - wall, "training_cpu_seconds": time.process_time() - cpu}
    exact = {}
    for title, options in profile.test_sets.items():
        episodes = play(
            model, tokenizer, options, questions=profile.questions, rag=method.kind == "naive-rag", seed=seed
        )
        solved = {episode.task_index: bool(episode.solved) for episode in episodes}
        exact[title] = "".join(str(int(solved[index])) for index in range(profile.questions))
    return {"method": method.title, "seed": seed, **taken, "exact": exact, "curve": log}


def _learn(
    method: Method, model: Any, tokenizer: Any, seed: int, profile: Profile, scratch: Path
) -> tuple[Any, list[float]]:
    """Returns the trained model and the exact match of each training step's rollouts."""
    args = _arguments(method, seed, profile, scratch)
    if method.kind == "rl":
        trainer = build_trainer(args, model, tokenizer=tokenizer)
        trainer.train()
        rows = [row for row in trainer.state.log_history if "rollout/reward/em" in row]
        return trainer.model.eval(), [round(row["rollout/reward/em"], 4) for row in rows]
    if method.kind == "rejection":
        rejection_sampling(model, tokenizer, args, lr=profile.supervised_learning_rate)
    elif method.kind == "demonstrations":
        _imitate(model, tokenizer, args, profile)
    return model.eval(), []


def _arguments(method: Method, seed: int, profile: Profile, scratch: Path) -> AgentConfig:
    options = {"algorithm": "grpo", **profile.trainer, **method.options, "env_kwargs": dict(profile.training)}
    return configuration(scratch, steps=profile.steps, seed=seed, **options)


def _imitate(model: Any, tokenizer: Any, args: AgentConfig, profile: Profile) -> None:
    """Trains on a full demonstration of every question that RL would see."""
    env = make_tool_env(ENV, profile.training)
    number = min(args.max_steps * (args.generation_batch_size or 1) // args.num_generations, len(env.tasks))
    rng = random.Random(args.seed)
    chat = ChatFormat(tokenizer)
    shown = [
        training_row(chat, demonstrate(env, index, habit="full_chain", rng=rng))  # type: ignore[arg-type]
        for index in rng.sample(range(len(env.tasks)), number)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=profile.supervised_learning_rate, weight_decay=0.0)
    steps = max(1, _EPOCHS * number // _BATCH)
    rows = in_epochs(shown, rng)
    fit(model, tokenizer, rows, optimizer=optimizer, steps=steps, batch_size=_BATCH, seed=args.seed)


def table(folder: Path, titles: Sequence[str]) -> str:
    """Returns the finished cells as a Markdown table of these test sets, the paper's own numbers beside them."""
    rows = []
    for name, method in METHODS.items():
        cells = read_cells(folder, name)
        if not cells:
            continue
        intervals = [crossed_interval([[*map(int, cell["exact"][title])] for cell in cells]) for title in titles]
        shown = [f"{mean:.3f} [{low:.3f}, {high:.3f}]" for mean, low, high in intervals]
        paper = ", ".join(f"{value:.4f}" for value in PAPER[method.paper or ""]) if method.paper in PAPER else "-"
        rows.append((method.title, str(len(cells)), *shown, paper))
    return markdown(("method", "seeds", *titles, "paper: HotpotQA, 2Wiki, MuSiQue"), rows)


def _at_scale(options: argparse.Namespace) -> int:
    """Carries out one of `AT_SCALE`; returns 1 if a command of the dry run failed, or nothing was collected."""
    methods, seeds = options.method or list(METHODS), options.seed or SEEDS
    if options.action == "commands":
        say(script(methods, seeds))
        return 0
    if options.action == "collect":
        return collect(Path(RUNS) / "eval", options.output / "paper")
    with tempfile.TemporaryDirectory() as folder:
        outcomes = dry_run(methods, seeds, folder=Path(folder))
    say(report(outcomes))
    return int(any(outcome.status == "FAILED" for outcome in outcomes))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs cells, or shows the table of those that are done; at the paper's scale, shows or tries the commands."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.multihop_qa", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("action", choices=["run", "table", *AT_SCALE])
    parser.add_argument(
        "--profile", choices=[*PROFILES, "paper"], default="cpu", help="size of the experiment (default: %(default)s)"
    )
    add_cell_options(parser, METHODS, RESULTS, seeds="the profile's")
    options = parser.parse_args(arguments)
    paper = options.profile == "paper"
    if options.action != "table" and paper != (options.action in AT_SCALE):
        parser.error(f"{options.action} does not go with --profile {options.profile}: see --help")
    if options.action in ("table", "collect") and (options.method or options.seed):
        parser.error(f"{options.action} takes all cells there are: drop --method and --seed")
    if options.action in AT_SCALE:
        return _at_scale(options)
    if options.action == "run":
        profile = PROFILES[options.profile]
        cells = [(name, seed) for seed in options.seed or profile.seeds for name in options.method or METHODS]
        make = functools.partial(run_cell, profile)
        command = ("python", "-m", "benchmarks.multihop_qa", "run", "--profile", options.profile)
        return run_cells(options.output / options.profile, cells, make, start=profile.start, command=command)
    titles = TEST_SETS if paper else PROFILES[options.profile].test_sets
    say(table(options.output / options.profile, list(titles)))
    return 0
