"""Can reinforcement learning find what no demonstration shows? Two-hop chains, from single searches only.

    python -m benchmarks.discovery run [--method process ...] [--seed 0 ...]
    python -m benchmarks.discovery table

The warm start has never seen a complete chain of two searches: it searches once and answers too early, or searches a
second time with one half of the chain wrong, and answers wrongly (`settings.HABITS`). A cell is one reward
and one seed.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, TrainerCallback, TrainerControl, TrainerState

from agent_r1_gym.support.terminal import say
from benchmarks.common.cells import Cell, add_cell_options, markdown, read_cells, run_cells
from benchmarks.discovery.settings import FULL, QUICK, REWARDS, Settings
from trainers.toy.held_out import held_out, play
from trainers.toy.quickstart import configuration, load
from trainers.train import build_trainer

RESULTS = Path(__file__).parent / "results"
_COMMAND = ("python", "-m", "benchmarks.discovery", "run")
KINDS = ("1hop", "bridge")
_ENDS = ("reward", "seeds", "2 hops before", "2 hops after", "1 hop after", "seeds at .5 or more", "first at .5, steps")


def run_cell(settings: Settings, reward: str, seed: int, warm: Path, scratch: Path) -> Cell:
    """Trains one policy and returns its curve: exact match on held-out questions, one and two hops."""
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(warm)
    model = load(warm).eval()
    training = {**settings.training, **REWARDS[reward].options}
    args = configuration(scratch, algorithm="grpo", steps=settings.steps, seed=seed, env_kwargs=training)
    trainer = build_trainer(args, model, tokenizer=tokenizer)
    curve = Curve(trainer, tokenizer, settings)
    curve.measure(0)
    trainer.add_callback(curve)
    trainer.train()
    turns = [round(row["rollout/turns"], 3) for row in trainer.state.log_history if "rollout/turns" in row]
    return {"method": reward, "seed": seed, "curve": curve.points, "turns": turns}


class Curve(TrainerCallback):
    """Measures the policy every so many steps; `points` are rows of step and exact match by kind of question."""

    def __init__(self, trainer: Any, tokenizer: Any, settings: Settings) -> None:
        self.points: list[dict[str, float]] = []
        self._trainer, self._tokenizer, self._settings = trainer, tokenizer, settings

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_others: Any) -> None:
        """Measures after a step whose number `every` divides, and after the last."""
        if state.global_step % self._settings.every == 0 or state.global_step == args.max_steps:
            self.measure(state.global_step)

    def measure(self, step: int) -> None:
        """Plays the held-out questions."""
        number, exact = self._settings.questions, {}
        for kind in KINDS:
            episodes = play(self._trainer.model, self._tokenizer, held_out("test", kind), questions=number)
            exact[kind] = sum(bool(episode.solved) for episode in episodes) / number
        self.points.append({"step": step, **exact})


def found_at(cell: Cell, *, least: float = 0.5) -> int | None:
    """Returns the first step at which two-hop exact match was at least `least`, None if it never was."""
    return next((int(point["step"]) for point in cell["curve"] if point["bridge"] >= least), None)


def table(folder: Path) -> str:
    """Returns the finished cells as two Markdown tables: ends and findings, and the mean curves."""
    found = {reward.title: cells for name, reward in REWARDS.items() if (cells := read_cells(folder, name))}
    ends = markdown(_ENDS, ((title, *_ends(cells)) for title, cells in found.items()))
    steps = sorted({int(point["step"]) for cells in found.values() for cell in cells for point in cell["curve"]})
    curves = markdown(
        ("2 hops after steps", *map(str, steps)),
        ((title, *(_mean_at(cells, step) for step in steps)) for title, cells in found.items()),
    )
    return f"{ends}\n\n{curves}"


def _ends(cells: Sequence[Cell]) -> Iterator[str]:
    last = [cell["curve"][-1] for cell in cells]
    steps = [found_at(cell) for cell in cells]
    yield str(len(cells))
    yield f"{statistics.mean(cell['curve'][0]['bridge'] for cell in cells):.3f}"
    yield _each(last, "bridge")
    yield _each(last, "1hop")
    yield str(sum(point["bridge"] >= 0.5 for point in last))
    yield " ".join("-" if step is None else str(step) for step in steps)


def _mean_at(cells: Sequence[Cell], step: int) -> str:
    values = [point["bridge"] for cell in cells for point in cell["curve"] if point["step"] == step]
    return f"{statistics.mean(values):.2f}" if values else "-"


def _each(points: Sequence[dict[str, float]], kind: str) -> str:
    return " ".join(f"{point[kind]:.2f}" for point in points)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs cells, or shows the table of those that are done."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.discovery", description=__doc__)
    parser.add_argument("action", choices=["run", "table"])
    add_cell_options(parser, REWARDS, RESULTS, seeds="five")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that everything runs, in a folder of their own"
    )
    options = parser.parse_args(arguments)
    if options.action == "run":
        settings, folder = (QUICK, options.output / "quick") if options.quick else (FULL, options.output)
        cells = [(name, seed) for seed in options.seed or settings.seeds for name in options.method or REWARDS]
        make = functools.partial(run_cell, settings)
        return run_cells(folder, cells, make, start=settings.start, command=_COMMAND)
    if options.method or options.seed or options.quick:
        parser.error("table takes all cells there are: drop --method, --seed and --quick")
    say(table(options.output))
    return 0
