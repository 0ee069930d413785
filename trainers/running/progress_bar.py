"""The progress bar of a run: what the rollouts are worth, or how well demonstrations are predicted."""

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
        """Shows the numbers that an optimiser step logs."""
        bar: Any = self.training_bar
        logged = {label: (logs or {}).get(name) for label, name in SHOWN.items()}
        # TRL logs None where no rollout of the step brought a number: all of them were dropped.
        numbers = {label: f"{number:.3g}" for label, number in logged.items() if number is not None}
        if bar is not None and numbers:
            bar.set_postfix(numbers)
