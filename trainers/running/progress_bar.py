"""The progress bar of a training: what the rollouts are worth, or how well demonstrations are predicted."""

from __future__ import annotations

from typing import Any

from transformers import TrainerControl, TrainerState
from transformers.trainer_callback import ProgressCallback

SHOWN = {
    "reward": "reward",
    "em": "rollout/reward/em",
    "turns": "rollout/turns",
    "tok/s": "rollout/tokens_per_second",
    "accuracy": "mean_token_accuracy",
}
"""Label in the bar, and the logged number that it shows where there is one."""


class RolloutProgress(ProgressCallback):
    """transformers' progress bar, with the latest numbers of `SHOWN` in it instead of a line for every log."""

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_others: Any,
    ) -> None:
        """Shows the numbers that a training step logs."""
        bar: Any = self.training_bar
        numbers = {label: f"{logs[name]:.3g}" for label, name in SHOWN.items() if name in logs} if logs else {}
        if bar is not None and numbers:
            bar.set_postfix(numbers)
