"""SIGTERM, SIGHUP (a closed terminal) and Ctrl-C: finish the step, save, exit."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_utils import SaveStrategy

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ECHO_SECONDS = 2.0
"""Launchers forward signals that the process group has received already: within this time it is the same signal."""


class StopOnSignal(TrainerCallback):
    """Handle `SIGNALS` within the context; as a callback, save and stop the run after the current step.

    All ranks stop at the same step, even if only one received the signal. A second signal exits at once; so does the
    first one outside the context.

    Args:
        accelerator: the trainer's accelerator.

    Attributes:
        stopped: the signal that stopped the run; None if none did.
    """

    def __init__(self, accelerator: Any) -> None:
        self.stopped: int | None = None
        self._accelerator = accelerator
        self._received = 0
        self._since = 0.0
        self._before: dict[int, Any] = {}
        self._terminals: list[int] = []

    def __enter__(self) -> StopOnSignal:
        if threading.current_thread() is threading.main_thread():
            self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
            # Under nohup SIGHUP is ignored, which must stay so: the run outlives its terminal.
            mine = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._receive) for number in mine}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if not self._received:
            self._received, self._since = number, time.monotonic()
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                self._detach_from_terminal()
            with contextlib.suppress(OSError):
                # Not `print`: the signal may have come in the middle of one.
                os.write(2, f"\n{name}: saving after this step; once more exits at once.\n".encode())
        elif time.monotonic() - self._since >= ECHO_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _detach_from_terminal(self) -> None:
        """Discard output to a terminal that is gone: each write to it would fail, and end the run unsaved."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in self._terminals:
            os.dup2(nowhere, descriptor)
        os.close(nowhere)

    def exit_if_stopped(self, folder: Path, *, resumable: bool = True) -> None:
        """End the process of a run that a signal has stopped; the main process reports where its state is.

        All processes leave together: the launcher ends those that still write once one of them has left.

        Args:
            folder: the checkpoint of the last step.
            resumable: whether it holds more than the model.

        Raises:
            SystemExit: with the status of the signal.
        """
        if self.stopped is None:
            return
        if self._accelerator.is_main_process:
            text = (
                f"Stopped with the state saved in {folder}; add --resume-from-checkpoint True to continue."
                if resumable
                else f"Stopped; the model is in {folder}. With save_only_model a run cannot be resumed."
            )
            with contextlib.suppress(OSError):  # a pipe that is closed
                sys.stderr.write(f"{text}\n")
        self._accelerator.wait_for_everyone()
        raise SystemExit(128 + self.stopped)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_others: Any) -> None:
        """Stop after a step, unless it is the last one."""
        if not control.should_training_stop and self._any_rank_signalled():
            control.should_evaluate = False
            self._stop(control)

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **_others: Any) -> None:
        """Stop after an evaluation, without another step."""
        if args.save_strategy != SaveStrategy.BEST and not control.should_training_stop and self._any_rank_signalled():
            self._stop(control)  # with BEST the Trainer would reset should_save

    def _stop(self, control: TrainerControl) -> None:
        control.should_save = control.should_training_stop = True

    def _any_rank_signalled(self) -> bool:
        number = self._received
        if self._accelerator.num_processes > 1:
            numbers = self._accelerator.gather(torch.tensor([number], device=self._accelerator.device))
            number = int(numbers.max())
        self.stopped = number or None
        return bool(number)
