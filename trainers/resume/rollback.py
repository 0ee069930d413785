"""Rollback: after an alarm, resume from the last good checkpoint with other random numbers and a lower learning rate.

The start is a checkpoint too (`checkpoint-0`), for a run that collapses before its first save. `rollbacks.json` in the
run's folder records every rollback: their number seeds the random streams, so a run that is killed afterwards resumes
exactly.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]

from agent_r1_gym.support.files import atomic_file
from agent_r1_gym.support.json_data import parse_json
from trainers import trl_internals
from trainers.resume import checkpoints

FILE = "rollbacks.json"
LEARNING_RATE_FACTOR = 0.2
"""Factor of the learning rate at each rollback; that of the critic stays."""
MAX_ROLLBACKS = 3
"""Number of rollbacks after which an alarm stops the run."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rollback:
    """One rollback of a run.

    Attributes:
        reason: message of the alarm.
        at: step of the alarm.
        to: step of the checkpoint.
        rollouts: number of discarded rollouts, without those that dynamic sampling replaced.
        factor: factor of the learning rate.
    """

    reason: str
    at: int
    to: int
    rollouts: int
    factor: float

    def __str__(self) -> str:
        return f"from step {self.at} to {self.to} ({self.reason})"


class RollbackManager:
    """Plans and applies the rollbacks of a run, the same on all ranks.

    Args:
        trainer: the `ResumableTrainer`.

    Attributes:
        history: rollbacks so far, also from before a resume.
        pending: rollback to apply once the run has stopped; nothing is saved meanwhile.
    """

    def __init__(self, trainer: Any) -> None:
        self.history: list[Rollback] = []
        self.pending: Rollback | None = None
        self._trainer = trainer
        self._fresh = False

    def plan(self, reason: str, last_good_step: int) -> str:
        """Plan a rollback if possible; all ranks call it, and the main process decides.

        Args:
            reason: message of the alarm.
            last_good_step: the last logged step without a metric beyond its threshold.

        Returns:
            Why the run cannot roll back, "" if it will.
        """
        # Not by a broadcast: a rank whose log has failed meanwhile is heard of here.
        why, pending = self._trainer.process_group.all_gather(self._decide(reason, last_good_step))[0]
        if (
            self.pending is None or pending is None or pending.to < self.pending.to
        ):  # several alarms may fire at one step
            self.pending = pending
        return str(why)

    def _decide(self, reason: str, last_good_step: int) -> tuple[str, Rollback | None]:
        trainer = self._trainer
        args = trainer.args
        if not args.should_save:
            return "", None
        if len(self.history) >= MAX_ROLLBACKS:
            return f"all {MAX_ROLLBACKS} rollbacks were used: {'; '.join(map(str, self.history))}", None
        # The metrics of a step are those of the weights before its update, so the weights saved after the last good
        # step may be the first bad ones.
        last = max(0, last_good_step - 1)
        good = checkpoints.last_complete(self._folder, until=last)
        if good is None:
            return (
                f"there is no checkpoint to roll back to: none of step {last} or before, whose metrics were good, "
                "is complete; set a smaller save_steps, or a larger save_total_limit",
                None,
            )
        state = torch.load(good / "rollouts_0.pt", map_location="cpu", weights_only=True)
        rollouts = (trainer.batches - state["batches"]) * (args.generation_batch_size or 0)
        to = checkpoints.step_of(good)
        return "", Rollback(reason, trainer.state.global_step, to, rollouts, LEARNING_RATE_FACTOR)

    def apply_pending(self) -> str | None:
        """Record the pending rollback and return its checkpoint; None without one.

        Removes the checkpoints of discarded steps first, the latest first: a run that is killed meanwhile meets the
        same alarm again, and one that is killed later resumes from the good checkpoint.
        """
        pending, self.pending = self.pending, None
        if pending is None:
            return None
        trainer = self._trainer
        trainer.accelerator.wait_for_everyone()
        if trainer.args.should_save:
            logger.warning("Rolling back %s.", pending)
            for folder in checkpoints.later_than(self._folder, pending.to):
                shutil.rmtree(folder)
            self._write([*self.history, pending])
        self.history.append(pending)
        trainer.accelerator.wait_for_everyone()
        return str(self._folder / f"checkpoint-{pending.to}")

    def read(self, checkpoint: str | None) -> None:
        """Read the history of the run whose checkpoint is resumed; None: a new run without history.

        Rollbacks to steps up to the checkpoint's remain; those to later steps have not happened yet from there.
        """
        history: list[Rollback] = []
        if checkpoint is not None and self._trainer.args.should_save:
            step, path = checkpoints.step_of(Path(checkpoint)), Path(checkpoint).parent / FILE
            if path.is_file():
                history = [Rollback(**entry) for entry in parse_json(path.read_text(encoding="utf-8"))]
            while history and history[-1].to > step:
                history.pop()
        (self.history,) = broadcast_object_list([history])
        if self._trainer.args.should_save and (self.history or (self._folder / FILE).is_file()):
            self._write(self.history)

    def on_resume(self, saved: int) -> None:
        """Lower the learning rate of a loaded checkpoint, and log what was discarded since it was saved.

        Args:
            saved: number of rollbacks before the checkpoint.
        """
        self._fresh = len(self.history) > saved
        if not self._fresh:
            return
        factor = math.prod(rollback.factor for rollback in self.history[saved:])
        trl_internals.scale_learning_rate(self._trainer, factor)
        for name, value in rollback_metrics(self.history).items():
            trl_internals.metrics_of(self._trainer, training=True)[f"rollback/{name}"].append(value)

    def seed(self) -> int | None:
        """Seed for the global generators right after a rollback: the checkpoint's states would repeat the collapse."""
        return hash((self._trainer.args.seed, *self.seed_suffix)) % 2**32 if self._fresh else None

    @property
    def seed_suffix(self) -> tuple[int, ...]:
        """Suffix that changes seeds after a rollback; empty before the first one."""
        return (len(self.history),) if self.history else ()

    @property
    def _folder(self) -> Path:
        return Path(trl_internals.output_folder(self._trainer))

    def _write(self, history: Sequence[Rollback]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with atomic_file(self._folder / FILE) as temporary:
            temporary.write_text(json.dumps([asdict(rollback) for rollback in history], indent=1), encoding="utf-8")


def rollback_metrics(history: Sequence[Rollback]) -> dict[str, float]:
    """Metrics to log: number of rollbacks, and all steps and rollouts that they discarded."""
    return {
        "count": float(len(history)),
        "steps": float(sum(rollback.at - rollback.to for rollback in history)),
        "rollouts": float(sum(rollback.rollouts for rollback in history)),
    }
