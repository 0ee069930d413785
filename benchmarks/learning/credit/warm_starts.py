"""What credit has beyond arms and scores: warm starts by a beginner's demonstrations, and tables of notes and turns."""

from __future__ import annotations

import contextlib
import io
import runpy
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.envs.long_read.dataset import LedgerTask
from agent_r1_gym.run.record import Trajectory
from benchmarks.common.policy import first_and_last, save_half
from benchmarks.common.results import Cell
from benchmarks.common.tables import Cells, arms, by_step, markdown, share
from trainers.commands.sft import main as supervise
from trainers.toy.quickstart import load

ENV = "AgentR1/LongRead-v0"
LEDGER: Mapping[str, Any] = {"style": "compact", "pages": 5}
"""Longer than the style's three pages: more turns, and more of them between what is noted and what it is good for."""
PLAYER = "script:beginner"
_LEDGER_WORDS = [f"{name}={value}" for name, value in LEDGER.items()]
_MAKE_MODEL = Path(__file__).parents[3] / "examples" / "games" / "make_model.py"


@dataclass(frozen=True, slots=True)
class Beginner:
    """A tiny model with random weights that has read a beginner's demonstrations, of which 30 in 100 take notes.

    Attributes:
        seed: of the weights, and of the order in which demonstrations are read.
        episodes: number of demonstrations.
        epochs: passes over them.
        learning_rate: highest one, decayed linearly.
    """

    seed: int
    episodes: int = 5000
    epochs: int = 3
    learning_rate: float = 2e-3

    def teach(self, folder: Path) -> Mapping[str, Any]:
        """Writes model and tokenizer; returns the arguments of `agent-r1 sft`."""
        making = runpy.run_path(str(_MAKE_MODEL), run_name="make_model")
        tokenizer = making["make_tokenizer"]([" ".join((ENV, *_LEDGER_WORDS))], player=PLAYER, copying=True)
        with tempfile.TemporaryDirectory() as scratch:
            untaught, taught = Path(scratch) / "untaught", Path(scratch) / "taught"
            tokenizer.save_pretrained(untaught)
            making["make_model"](tokenizer, layers=2, width=64, seed=self.seed).save_pretrained(untaught)
            words = self._words()
            with contextlib.redirect_stdout(io.StringIO()):  # its advice is about a folder that does not stay
                supervise([*words, "--model", str(untaught), "--output_dir", str(taught)])
            save_half(load(taught), AutoTokenizer.from_pretrained(taught), folder)
        return {"sft": " ".join(words)}

    def _words(self) -> list[str]:
        options = {
            "from": PLAYER,
            "context_window": 1,
            "context_mode": "drop_turns",
            "min_return": 0,
            "episodes": self.episodes,
            "learning_rate": self.learning_rate,
            "num_train_epochs": self.epochs,
            "warmup_steps": 5,
            "per_device_train_batch_size": 32,
            "save_strategy": "no",
            "seed": self.seed,
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        ledger = [word for option in (*_LEDGER_WORDS, "questions=30000") for word in ("--option", option)]
        return [ENV, *ledger, *words]


def noted(episodes: Iterable[Trajectory]) -> float:
    """Mean share of the needed facts that were noted, by the process reward."""
    return statistics.mean(episode.reward_terms.get("noted_fact", 0.0) for episode in episodes)


def turns(episodes: Iterable[Trajectory]) -> float:
    """Mean number of turns."""
    return statistics.mean(len(episode.turns) for episode in episodes)


FEW = 8
"""Training steps that "first" and "last" take together."""
LOGGED = {
    "without_signal": "group/frac_zero_std",
    "entropy": "entropy",
    "malformed_turns": "rollout/malformed_turns",
    "truncated": "rollout/truncated",
}
summarise = partial(first_and_last, names=LOGGED, steps=FEW)


# --- tables -----------------------------------------------------------------------------------------------------------


def key_of(env: ToolEnv, index: int) -> str:
    """What a question asks about: one of 16 keys, each asked for many times."""
    task = env.tasks[index]
    assert isinstance(task, LedgerTask)
    return " ".join(task.question.keys)


def arms_and_notes(cells: Cells) -> str:
    """Scores of each arm, with facts noted and turns of the final policy."""

    def mean(what: str, _arm: str, found: Sequence[Cell]) -> str:
        return f"{statistics.mean(cell[what] for cell in found):.2f}"

    return arms(cells, facts_noted_at_the_end=partial(mean, "noted"), turns_at_the_end=partial(mean, "turns"))


def curves(cells: Cells) -> str:
    """Mean share of solved validation questions at each evaluation."""
    return by_step(cells, "solved after steps", lambda point: share(point["validation"]))


def behaviour(cells: Cells) -> str:
    """What the training steps of each arm looked like."""

    def mean(found: Sequence[Cell], what: str, at: int) -> str:
        return f"{statistics.mean(cell['training'][what][at] for cell in found):.2f}"

    rows = []
    for title, found in cells.rows():
        ends = (mean(found, what, -1) for what in ("malformed_turns", "truncated", "entropy"))
        signal = (mean(found, "without_signal", at) for at in (0, -1))
        cpu = statistics.mean(cell["cpu_seconds"] for cell in found)
        rows.append((title, *signal, *ends, f"{cpu:.0f}"))
    header = (f"groups without signal, first {FEW} steps", f"last {FEW}", "malformed turns", "truncated", "entropy")
    return markdown(("arm", *header, "CPU s per cell"), rows)
