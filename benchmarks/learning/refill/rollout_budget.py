"""Training on a budget of played rollouts, evaluated by rollouts played and not by steps; tables of that."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from agent_r1_gym.run.evaluation.statistics import Interval, crossed_interval
from benchmarks.common.experiment import Run
from benchmarks.common.policy import marks
from benchmarks.common.results import Cell
from benchmarks.common.tables import Cells, by_step, markdown
from trainers.toy.held_out import held_out, play

KINDS = ("1hop", "bridge", "3hop")
SETS = {kind: held_out("test", kind) for kind in KINDS}
_EVALUATIONS, _FIRST = 10, 10


def train(run: Run) -> tuple[Any, dict[str, Any]]:
    """Trains until as many rollouts are played as a run of `steps` plays without refills."""
    trainer = run.build_trainer()
    batch = run.args.per_device_train_batch_size
    questions = run.profile.validation_questions

    def evaluate() -> dict[str, str]:
        """Marks, with the same sampling seed in all cells."""
        played = {
            kind: play(trainer.model, run.policy.tokenizer, options, questions=questions)
            for kind, options in SETS.items()
        }
        return {kind: marks(episodes) for kind, episodes in played.items()}

    meter = Meter(evaluate, batch=batch, budget=run.profile.steps * batch)
    meter.measure()
    trainer.add_callback(meter)
    trainer.train()
    return trainer.model, {"curve": meter.points, "signal": meter.signal}


class Meter(TrainerCallback):
    """Counts played rollouts, evaluates the policy at every tenth of the budget, and stops the run at its end.

    Attributes:
        points: per evaluation the rollouts played so far, and marks by kind of question.
        signal: share of groups with signal, per step.

    Args:
        evaluate: returns marks by kind of question.
        batch: rollouts of a step without refills.
        budget: rollouts of the run.
    """

    def __init__(self, evaluate: Callable[[], Mapping[str, str]], *, batch: int, budget: int) -> None:
        self.points: list[dict[str, Any]] = []
        self.signal: list[float] = []
        self._evaluate, self._batch, self._budget, self._played = evaluate, batch, budget, 0

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_others: Any,
    ) -> None:
        """Counts the rollouts of a step."""
        if logs is None or "group/frac_zero_std" not in logs:
            return
        self.signal.append(round(1 - logs["group/frac_zero_std"], 4))
        self._played += round(self._batch * (1 + logs.get("rollout/resampled", 0.0)))
        if self._played >= self._budget // _EVALUATIONS * len(self.points):
            self.measure()
        if self._played >= self._budget:
            control.should_training_stop = True

    def measure(self) -> None:
        """Plays the held-out questions."""
        self.points.append({"played": self._played, **self._evaluate()})


# --- tables -----------------------------------------------------------------------------------------------------------


def ends(cells: Cells) -> str:
    """Steps, groups with signal, and exact match at the end with 95 % intervals."""
    rows = []
    for title, found in cells.rows():
        steps = " ".join(str(len(cell["signal"])) for cell in found)
        first = statistics.mean(share for cell in found for share in cell["signal"][:_FIRST])
        every = statistics.mean(share for cell in found for share in cell["signal"])
        scored = (scores(found, -1, [kind]) for kind in KINDS)
        shown = (f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, low, high in scored)
        rows.append((title, str(len(found)), steps, f"{first:.2f}", f"{every:.2f}", *shown))
    header = ("tasks", "seeds", "steps", f"groups with signal, first {_FIRST} steps", "all steps", *KINDS)
    return markdown(header, rows)


def scores(cells: Sequence[Cell], at: int, kinds: Sequence[str] = KINDS) -> Interval:
    """Exact match at an evaluation, with its interval over seeds and questions."""
    return crossed_interval([[float(mark) for kind in kinds for mark in cell["curve"][at][kind]] for cell in cells])


def curves(cells: Cells) -> str:
    """Mean exact match by rollouts played; refilled runs are evaluated at the first step at or after each mark."""
    mean = lambda point: statistics.mean(float(mark) for kind in KINDS for mark in point[kind])  # noqa: E731
    return by_step(cells, "EM after rollouts", mean, step="played")
