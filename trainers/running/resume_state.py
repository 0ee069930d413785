"""Where a run stands, beyond what TRL's checkpoints hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate.utils import gather_object  # type: ignore[import-untyped]
from torch.utils.data import Sampler
from transformers import TrainerCallback

from agent_r1_gym.errors import CheckpointError
from trainers import trl_seams
from trainers.running import checkpoints


class ResumeState(TrainerCallback):
    """What a resume restores beside TRL's state: counters, rollouts still to be trained on, numbers still to be logged.

    It also keeps the random state of the last step's end, so that a run whose rollouts fail is saved as it stood there.

    Args:
        trainer: the `AgentTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._loss: dict[str, Any] | None = None
        self._random_state: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        """Returns what to save: plain numbers and tensors."""
        trainer = self._trainer
        own = {"batches": trainer.batches, "alarm": trainer.alarm.beyond}
        return own | trl_seams.progress_of(trainer)

    def load(self, state: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        trl_seams.set_progress(self._trainer, state)
        self._trainer.batches = state["batches"]
        self._trainer.alarm.beyond.update(state["alarm"])
        self._loss = state["loss"]

    def on_train_begin(self, *_arguments: Any, **_others: Any) -> None:
        """Restores the sum of the losses since the last log: the Trainer has just set it to 0."""
        if self._loss is not None:
            trl_seams.set_loss(self._trainer, self._loss)
            self._loss = None

    def on_step_end(self, *_arguments: Any, **_others: Any) -> None:
        """Keeps the random state."""
        self._random_state = checkpoints.random_state()

    @contextmanager
    def saved_on_failure(self) -> Iterator[None]:
        """If the block, which rolls out or logs, fails on any process, all save the state of the last step's end.

        Engines that take turns in step with other processes (`engine=trl`) leave these hanging: there the checkpoints
        made so far are all there is.

        Raises:
            Exception: what the block raised, with a note on how to go on; RuntimeError where only another process
                failed.
        """
        trainer = self._trainer
        training = trainer.model.training
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        if trainer.accelerator.num_processes == 1 or trainer.args.engine == "cached":
            texts = gather_object([None if failure is None else f"{type(failure).__name__}: {failure}"])
            if any(texts):
                failure = failure or RuntimeError(f"Another process failed: {next(filter(None, texts))}")
                if training:
                    self._save(failure)
        if failure is not None:
            raise failure

    def _save(self, failure: Exception) -> None:
        trainer = self._trainer
        folder = trainer.checkpoint_folder()
        if self._random_state is None or not trl_seams.between_steps(trainer):
            return  # nothing was learned since the start, or what was cannot be cut here
        try:
            if checkpoints.fault(folder) is not None:
                checkpoints.set_random_state(self._random_state)
                trl_seams.save_checkpoint(trainer)
            failure.add_note(f"The state of the last step is saved in {folder}; go on with resume_from_checkpoint.")
        except CheckpointError as error:
            failure.add_note(str(error))


class EpochOrder(Sampler[int]):
    """TRL's order of rows, drawn from seed and epoch: its own generator forgets, in a resume, the epochs that ended.

    Args:
        sampler: TRL's.
        seed: seed of the first epoch.
        epoch: returns the fractional number of epochs trained, or None before the first step.
    """

    def __init__(self, sampler: Any, seed: int, *, epoch: Callable[[], float | None]) -> None:
        self._sampler = sampler
        self._seed = seed
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self._sampler.generator.manual_seed(self._seed + int(self._epoch() or 0))
        return iter(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)
