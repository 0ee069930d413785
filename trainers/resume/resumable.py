"""ResumableTrainer: TRL's GRPOTrainer with atomic checkpoints, from which a run resumes bit for bit.

`ResumeState` is the state of a run beyond what TRL's checkpoints hold.
"""

from __future__ import annotations

import logging
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device, set_seed  # type: ignore[import-untyped]
from torch.utils.data import Sampler
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, rotate_checkpoints
from trl import GRPOTrainer  # type: ignore[attr-defined]

from agent_r1_gym.errors import CheckpointError, ConfigurationError
from trainers import trl_internals
from trainers.algorithms.critic import Critic
from trainers.algorithms.process_group import OtherRankError, process_group_of, resolve_failure
from trainers.config.agent import AgentConfig
from trainers.monitoring.alarms import CollapseAlarm
from trainers.monitoring.console import RolloutProgress
from trainers.resume import checkpoints
from trainers.resume.batch_partition import BatchPartition, repartition_state
from trainers.resume.rollback import RollbackManager
from trainers.resume.sharding import settle_fsdp2, weights_are_finite
from trainers.rollouts.prefetch import RolloutPrefetcher

SPOILT = (
    "its weights are no longer finite numbers; start a new run from an earlier checkpoint's weights, with a lower "
    "learning_rate"
)
"""Why a model is not saved."""
NOTE_SECONDS = 60.0
"""Seconds after which a failed process reports its error itself, while the others still play or cannot be reached."""

logger = logging.getLogger(__name__)


class ResumeState(TrainerCallback):
    """State that a resume restores in addition to TRL's: counters, pending rollouts, metrics not logged yet.

    It also stores the random state at the end of the last step, from which a run whose rollouts fail is saved.

    Args:
        trainer: the `AgentTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._loss: dict[str, Any] | None = None
        self._random_state: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        """State to save: plain numbers and tensors."""
        trainer = self._trainer
        alarm = {"alarm": trainer.alarm.breached, "last_good_steps": trainer.alarm.last_good_step}
        own = {"batches": trainer.batches, "rollbacks": len(trainer.rollbacks.history), **alarm}
        prefetcher = {} if trainer.prefetcher is None else {"prefetched": trainer.prefetcher.state()}
        return own | prefetcher | trl_internals.progress_of(trainer)

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        trl_internals.set_progress(self._trainer, state)
        self._trainer.batches = state["batches"]
        self._trainer.alarm.breached.update(state["alarm"])
        self._trainer.alarm.last_good_step = dict(
            state.get("last_good_steps", {})
        )  # none in checkpoints of an earlier version
        self._trainer.rollbacks.on_resume(state.get("rollbacks", 0))
        if self._trainer.prefetcher is not None:
            self._trainer.prefetcher.load(state.get("prefetched"))
        self._loss = state["loss"]

    def on_train_begin(self, *_arguments: Any, **_others: Any) -> None:
        """Restore the sum of the losses since the last log, which the Trainer has just set to 0.

        Also set this run's intervals between logs, evaluations and checkpoints, which the Trainer takes from the old
        run. A new run with on_alarm=rollback saves its start: an alarm may fire before the first save.
        """
        if self._loss is None:
            if self._trainer.args.on_alarm == "rollback":
                trl_internals.save_checkpoint(self._trainer)
            return
        trl_internals.set_loss(self._trainer, self._loss)
        self._loss = None
        state, names = self._trainer.state, ("logging_steps", "eval_steps", "save_steps")
        old = [getattr(state, name) for name in names]
        state.compute_steps(self._trainer.args, state.max_steps)
        own = {name: getattr(state, name) for name, was in zip(names, old, strict=True) if getattr(state, name) != was}
        if own:
            values = ", ".join(f"{name}={value}" for name, value in own.items())
            logger.warning("Resumed with %s of this run instead of the checkpoint's.", values)

    def on_step_end(self, *_arguments: Any, **_others: Any) -> None:
        """Store the random state."""
        self._random_state = checkpoints.random_state()

    @contextmanager
    def propagate_failure(self) -> Iterator[None]:
        """Run a block on all ranks; if it fails on one, raise on all.

        The only collectives in the block are those of `process_group`: in another one, such as a forward pass of
        sharded weights, the other ranks would wait for this one. With `engine=trl`, whose ranks generate in lockstep,
        they do, until the launcher stops them.

        Raises:
            Exception: the error of the block; `OtherRankError` where another rank reports it, see `resolve_failure`.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            failure = error
        # An OtherRankError comes from a collective inside the block: all ranks know already.
        if self._can_communicate() and not isinstance(failure, OtherRankError):
            texts = self._gather_failures(None if failure is None else f"{type(failure).__name__}: {failure}")
            failure = resolve_failure(failure, texts, rank=self._trainer.accelerator.process_index)
        if failure is not None:
            raise failure

    def _gather_failures(self, text: str | None) -> list[str | None]:
        """Exchange failures; a rank whose failure the others do not hear of for long reports it itself."""
        process_group = self._trainer.process_group
        if text is None:
            return list(process_group.gather_failures(None))
        waits = f"Process {self._trainer.accelerator.process_index} has failed and waits for the others: {text}\n"
        timer = threading.Timer(NOTE_SECONDS, sys.stderr.write, [waits])
        timer.daemon = True
        with suppress(RuntimeError):  # no thread is left, which may be the failure
            timer.start()
        try:
            return list(process_group.gather_failures(text))
        finally:
            timer.cancel()

    @contextmanager
    def save_on_failure(self) -> Iterator[None]:
        """Run a block of rollouts or logging; if it fails on any rank, all save the state at the end of the last step.

        With `engine=trl` nothing is saved: the ranks cannot reach one another.

        Raises:
            Exception: see `propagate_failure`; with a note on how to resume.
        """
        training = self._trainer.model.training
        try:
            with self.propagate_failure():
                yield
        except Exception as failure:
            if training and self._can_communicate():
                self._save(failure)
            raise

    def _can_communicate(self) -> bool:
        return bool(self._trainer.accelerator.num_processes == 1 or self._trainer.args.engine != "trl")

    def _save(self, failure: Exception) -> None:
        trainer = self._trainer
        folder = trainer.checkpoint_folder()
        if self._random_state is None or not trl_internals.between_steps(trainer):
            return  # no step has ended yet, or the failure lies inside a step, of which a checkpoint holds no state
        try:
            if not trainer.weights_are_finite():
                failure.add_note(f"The state of the last step is not saved: {SPOILT}.")
                return
            if checkpoints.main_process_decides(lambda: checkpoints.incomplete_reason(folder)) is not None:
                checkpoints.set_random_state(self._random_state)
                trl_internals.save_checkpoint(trainer)
            failure.add_note(f"The state of the last step is saved in {folder}; resume with resume_from_checkpoint.")
        except (CheckpointError, ConfigurationError) as error:
            failure.add_note(str(error))
        trainer.accelerator.wait_for_everyone()  # the launcher may end the main process as soon as another has ended


class EpochSampler(Sampler[int]):
    """TRL's sampler, seeded by run seed and epoch: its own generator would restart with the first epoch after a resume.

    Args:
        sampler: TRL's sampler.
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


class ResumableTrainer(GRPOTrainer):
    """GRPOTrainer that saves and restores everything a step depends on: `ResumeState`, a critic, and the order of rows.

    Args:
        *arguments: arguments of the base class.
        **options: options of the base class.

    Attributes:
        prefetcher: plays the next batch while this one is trained on; None: nothing is played ahead.
        alarm: the alarms, set by the subclass; their counts are saved.
        batches: number of generation batches so far.
        critic: saved with the policy; None without one.
        identity: what a checkpoint must share with this run, see `checkpoints.identity_of`.
        resume_state: see `ResumeState`; it also saves a run whose rollouts fail.
        rollbacks: see `RollbackManager`; unused with on_alarm=stop.
        process_group: collectives over the ranks.
    """

    args: AgentConfig
    alarm: CollapseAlarm

    def __init__(self, *arguments: Any, **options: Any) -> None:
        with trl_internals.refusals_in_one_line():
            super().__init__(*arguments, **options)
        self.process_group = process_group_of(self.accelerator)
        self.critic: Critic | None = None
        self.prefetcher: RolloutPrefetcher | None = None
        self.batches = 0
        self.identity = checkpoints.identity_of(self)
        self.rollbacks = RollbackManager(self)
        self.resume_state = ResumeState(self)
        self.add_callback(self.resume_state)

    def create_accelerator_and_postprocess(self) -> None:
        """Make the accelerator like the base class, with FSDP2 set as `settle_fsdp2` describes."""
        super().create_accelerator_and_postprocess()
        settle_fsdp2(self)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        return (
            EpochSampler(sampler, self.args.seed, epoch=lambda: self.state.epoch) if self.shuffle_dataset else sampler
        )

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> TrainOutput:
        """Train like the base class; after an alarm, again from an earlier checkpoint (see `RollbackManager`).

        Args:
            resume_from_checkpoint: see `checkpoints.resolve_checkpoint`.
            trial: trial of a hyperparameter search.
            ignore_keys_for_eval: see the base class.

        Raises:
            ConfigurationError: the checkpoint is incomplete, of another run, or of one with `sync_ref_model`.
        """
        directory = trl_internals.output_folder(self, trial)
        folder = checkpoints.resolve_checkpoint(resume_from_checkpoint, directory=directory)
        if folder is not None:
            checkpoints.check_identity(Path(folder), self.identity)
            if (
                changes := checkpoints.changed_options_message(Path(folder), self.args)
            ) and self.accelerator.is_main_process:
                logger.warning("%s.", changes)
            if self.args.sync_ref_model:
                raise ConfigurationError(
                    "sync_ref_model updates the reference model, which checkpoints do not hold: this run cannot be "
                    f"resumed. Start a new run with {folder} as model_name_or_path, or train without sync_ref_model."
                )
        self.rollbacks.read(folder)
        self.alarm.request_rollback = self.rollbacks.plan if self.args.on_alarm == "rollback" else None
        while True:
            trl_internals.force_weight_sync(self)
            try:
                output = super().train(folder, trial, ignore_keys_for_eval)
            except BaseException:
                for callback in self.callback_handler.callbacks:
                    if isinstance(callback, RolloutProgress):
                        callback.close()
                if self.prefetcher is not None:
                    self.prefetcher.abandon()
                raise
            folder = self.rollbacks.apply_pending()
            if folder is None:
                return output

    def _run_epoch(self, *arguments: Any, **options: Any) -> None:
        """Train an epoch; a resumed run that had ended takes no step, where the base class would take one."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*arguments, **options)  # type: ignore[no-untyped-call]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log like the base class; if a callback raises, the state of the step is saved first."""
        with self.resume_state.save_on_failure():
            try:
                super().log(logs, start_time)
            finally:
                trl_internals.metrics_of(self).clear()  # a failed log must not log them again

    def _finalize_training(self, *arguments: Any, **options: Any) -> TrainOutput:
        with checkpoints.kept_if_stopped(self):
            return super()._finalize_training(*arguments, **options)  # type: ignore[no-untyped-call, no-any-return]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.rollbacks.pending is not None:
            return  # this step is about to be discarded; saved, it could push the good one out of save_total_limit
        if not self.weights_are_finite():
            logger.error("Step %d is not saved: %s.", self.state.global_step, SPOILT)
            return
        folder = self.checkpoint_folder(trial)
        with checkpoints.write_checkpoint(folder, identity=self.identity, args=self.args, accelerator=self.accelerator):
            if not self.args.save_only_model:
                folder.mkdir(parents=True, exist_ok=True)  # a shared file system may not show it here yet
                if self.critic is not None:
                    self.critic.save(folder)
                torch.save(self.resume_state.state(), folder / _rollout_file(self.accelerator.process_index))
            super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            rotate_checkpoints(str(folder.parent), self.args.save_total_limit, best, use_mtime=True)

    def weights_are_finite(self) -> bool:
        """Return whether all trained weights are finite numbers, on all processes, which call this together."""
        return all(self.process_group.all_gather(weights_are_finite(self.model)))

    def checkpoint_folder(self, trial: Any = None) -> Path:
        """Folder for the checkpoint of this step."""
        return Path(trl_internals.output_folder(self, trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[no-untyped-call]
        if checkpoint is None:
            return
        state = self._saved_state(Path(checkpoint))
        self.resume_state.load(send_to_device(state, self.accelerator.device))
        if self.critic is not None:
            self.critic.load(Path(checkpoint))

    def _saved_state(self, folder: Path) -> dict[str, Any]:
        """State to resume from: that of this rank, or its part of all ranks' (`repartition_state`)."""
        rank = self.accelerator.process_index
        saved, own = checkpoints.saved_partition(folder), BatchPartition.of(self.identity["options"])
        if saved == own:
            return _read_state(folder, rank)
        if rank == 0:
            logger.warning(
                "Saved on %d processes with %s, resumed on %d with %s: same global batches, partitioned anew%s.",
                *(part for partition in (saved, own) for part in (partition.processes, partition)),
                "" if saved.processes == own.processes else "; RNG streams are reset",
            )
        states = [_read_state(folder, number) for number in range(saved.processes)]
        return repartition_state(states, saved=saved, own=own, rank=rank)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the random state of this rank; new streams after a rollback or on another number of ranks."""
        if (
            checkpoint is None
            or checkpoints.saved_partition(Path(checkpoint)).processes == self.accelerator.num_processes
        ):
            super()._load_rng_state(checkpoint)
        else:  # seeded by run, step and number of ranks, so that no stream is used twice
            words = f"{self.args.seed} {self.state.global_step} {self.accelerator.num_processes}"
            set_seed(zlib.crc32(words.encode()) >> 1, device_specific=True)
        seed = self.rollbacks.seed()  # the restored streams would repeat the collapse
        if seed is not None:
            set_seed(seed, device_specific=True)


def _rollout_file(rank: int) -> str:
    return f"rollouts_{rank}.pt"


def _read_state(folder: Path, rank: int) -> dict[str, Any]:
    path = folder / _rollout_file(rank)
    if not path.is_file():
        raise ConfigurationError(
            f"{path} is missing: {folder} was saved with save_only_model, or by processes that do not share its disk. "
            "Start a new run with it as model_name_or_path."
        )
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)  # torch cannot restore to "cpu:0"
    return state
