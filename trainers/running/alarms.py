"""Alarms: a run that has collapsed is stopped before it burns its budget; one that cannot learn is told so."""

from __future__ import annotations

import logging
import math
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from agent_r1_gym.errors import ConfigurationError
from trainers.config import AgentConfig

logger = logging.getLogger(__name__)

THRESHOLDS = (
    ("alarm_dropped_above", "rollout/dropped", 1),
    ("alarm_entropy_below", "entropy", -1),
    ("alarm_repetition_above", "rollout/repetition", 1),
    ("alarm_calls_below", "rollout/calls", -1),
)
"""Option, the logged number that it watches, and the side on which that number is bad."""


WITHOUT_SIGNAL = "alarm_without_signal"
NO_SIGNAL = (
    "In {steps} logged steps in a row every rollout returned the same as the others of its prompt, so there was "
    "nothing to learn from (mean reward {reward:.3g}). Likely reasons: the model cannot call the tools or answer in "
    "the expected format yet (reward 0 everywhere; look at rollout/malformed_turns and at traces, --trace_steps 1), "
    "the tasks are too hard or too easy for it, or sampling hardly varies (temperature near 0, top_k 1)"
)


class CollapseAlarm(TrainerCallback):
    """Stops the run when a logged number stays beyond its threshold for `alarm_patience` logs in a row.

    The state is saved first. A gradient that is not finite stops at once and saves nothing: the weights are spoilt, the
    last checkpoint is from before. Where no group of rollouts differs for `alarm_without_signal` logs in a row, it
    warns once, or stops if `stop_without_signal` says so.

    Attributes:
        reason: why the run was stopped, None if it was not.
        beyond: logs in a row for which each option's number has been beyond its threshold.

    Raises:
        ConfigurationError: a threshold is set for a number that the rollouts do not bring.
    """

    def __init__(self, args: AgentConfig) -> None:
        self.reason: str | None = None
        self._args = args
        self._warned = False
        self.beyond = dict.fromkeys((*(option for option, _, _ in THRESHOLDS), WITHOUT_SIGNAL), 0)

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_others: Any,
    ) -> None:
        """Looks at the numbers of an optimiser step; those of evaluations and of the end are let pass."""
        if logs is None or "grad_norm" not in logs or "entropy" not in logs:
            return
        if not math.isfinite(logs["grad_norm"]):
            self._stop(f"grad_norm is {logs['grad_norm']}; lower learning_rate or max_grad_norm", state, control)
            return
        for option, name, side in THRESHOLDS:
            self._watch(option, name, side, logs, state, control)
        self._watch_signal(logs, state, control)

    def _watch_signal(self, logs: dict[str, Any], state: TrainerState, control: TrainerControl) -> None:
        share = logs.get("group/without_signal")
        patience = self._args.alarm_without_signal
        if not patience or share is None:
            return
        self.beyond[WITHOUT_SIGNAL] = steps = self.beyond[WITHOUT_SIGNAL] + 1 if share == 1 else 0
        if steps != patience:
            return
        reason = NO_SIGNAL.format(steps=steps, reward=logs.get("reward") or 0.0)
        if self._args.stop_without_signal:
            control.should_save = True
            self._stop(reason, state, control)
        elif not self._warned:
            self._warned = True
            logger.warning("Step %d: %s. To stop then: --stop_without_signal True.", state.global_step, reason)

    def _watch(
        self, option: str, name: str, side: int, logs: dict[str, Any], state: TrainerState, control: TrainerControl
    ) -> None:
        threshold, value = getattr(self._args, option), logs.get(name)
        if threshold is None:
            return
        if value is None:  # a step that reused a batch logs no rollouts, and dropped ones bring nothing
            if logs.get("rollout/dropped", 1.0) < 1:
                raise ConfigurationError(
                    f"{option}={threshold}, but the rollouts bring no {name!r} to watch; leave it unset."
                )
            return
        self.beyond[option] = self.beyond[option] + 1 if side * (value - threshold) > 0 else 0
        if self.beyond[option] >= self._args.alarm_patience:
            control.should_save = True
            self._stop(f"{name} is {value:.3g}, beyond {option}={threshold}", state, control)

    def _stop(self, reason: str, state: TrainerState, control: TrainerControl) -> None:
        self.reason = reason
        control.should_training_stop = True
        logger.error("Stopped at step %d: %s.", state.global_step, reason)
