"""ResumableTrainer: TRL's GRPOTrainer whose checkpoints are whole or do not count, and resume as if never stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device  # type: ignore[import-untyped]
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, rotate_checkpoints
from trl import GRPOTrainer  # type: ignore[attr-defined]

from agent_r1_gym.errors import ConfigurationError
from trainers import trl_seams
from trainers.algorithms.critic import Critic
from trainers.config import AgentConfig
from trainers.running import checkpoints
from trainers.running.alarms import CollapseAlarm
from trainers.running.resume_state import EpochOrder, ResumeState


class ResumableTrainer(GRPOTrainer):
    """GRPOTrainer that saves and restores what a step depends on: `ResumeState`, a critic, and the order of rows.

    Args:
        *arguments: as the base class takes them.
        **options: as the base class takes them.

    Attributes:
        alarm: set by the subclass; its counts are saved.
        batches: generation batches that were rolled out.
        critic: saved beside the policy; None where there is none.
        identity: what a checkpoint must have in common with this run, see `checkpoints.identity_of`.
        resume_state: see `ResumeState`; it also saves a run whose rollouts fail.
    """

    args: AgentConfig
    alarm: CollapseAlarm

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.critic: Critic | None = None
        self.batches = 0
        self.identity = checkpoints.identity_of(self)
        self.resume_state = ResumeState(self)
        self.add_callback(self.resume_state)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        return EpochOrder(sampler, self.args.seed, epoch=lambda: self.state.epoch) if self.shuffle_dataset else sampler

    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> TrainOutput:
        """Trains as the base class does.

        Args:
            resume_from_checkpoint: see `checkpoints.to_resume`.
            trial: a trial of a search for hyper-parameters.
            ignore_keys_for_eval: as the base class takes it.

        Raises:
            ConfigurationError: the checkpoint is not whole, that of another run, or one with `sync_ref_model`.
        """
        directory = trl_seams.output_folder(self, trial)
        folder = checkpoints.to_resume(resume_from_checkpoint, directory=directory)
        if folder is not None:
            checkpoints.check_identity(Path(folder), self.identity)
            if self.args.sync_ref_model:
                raise ConfigurationError(
                    "sync_ref_model moves the reference model, which checkpoints do not hold: this run cannot be "
                    f"resumed as it stood. Start anew with {folder} as model_name_or_path, or train without it."
                )
        return super().train(folder, trial, ignore_keys_for_eval)

    def _run_epoch(self, *arguments: Any, **options: Any) -> None:
        """Trains an epoch; a resumed run that had ended takes no step, where the base class would take one."""
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*arguments, **options)  # type: ignore[no-untyped-call]

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Logs as the base class does; where a callback raises at it, the state of the step is saved first."""
        with self.resume_state.saved_on_failure():
            try:
                super().log(logs, start_time)
            finally:
                trl_seams.metrics_of(self).clear()  # they are logged by now

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = self.checkpoint_folder(trial)
        with checkpoints.writing(folder, identity=self.identity, args=self.args, accelerator=self.accelerator):
            if not self.args.save_only_model:
                if self.critic is not None:
                    self.critic.save(folder)
                torch.save(self.resume_state.state(), folder / self._rollout_file())
            super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            rotate_checkpoints(str(folder.parent), self.args.save_total_limit, best, use_mtime=True)

    def checkpoint_folder(self, trial: Any = None) -> Path:
        """Returns where the checkpoint of this step belongs."""
        return Path(trl_seams.output_folder(self, trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[no-untyped-call]
        if checkpoint is None:
            return
        path = Path(checkpoint) / self._rollout_file()
        if not path.is_file():
            raise ConfigurationError(
                f"{path} is missing: {checkpoint} was saved with save_only_model, or by processes that do not share "
                "its disk. Start anew with it as model_name_or_path."
            )
        state = torch.load(path, map_location="cpu", weights_only=True)  # torch cannot restore to "cpu:0"
        self.resume_state.load(send_to_device(state, self.accelerator.device))
        if self.critic is not None:
            self.critic.load(Path(checkpoint))

    def _rollout_file(self) -> str:
        return f"rollouts_{self.accelerator.process_index}.pt"
