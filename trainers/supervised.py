"""SupervisedTrainer: TRL's SFTTrainer on token rows, with the checkpoints, signals and progress of `AgentTrainer`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

from transformers.trainer_callback import ProgressCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, rotate_checkpoints
from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]

from trainers import trl_internals
from trainers.monitoring.console import RolloutProgress
from trainers.monitoring.memory import HeapGuard
from trainers.resume import checkpoints
from trainers.resume.sharding import settle_fsdp2

FIXED = ("learning_rate", "weight_decay", "optim", "seed", "num_train_epochs", "max_steps", "lr_scheduler_type")
"""Options that a resume cannot change: the restored state depends on them."""


class SupervisedTrainer(SFTTrainer):
    """Trains on token rows: the one supervised loop, of the command `sft` and of the toy policy.

    Args:
        model: a causal language model, trained in place, or its name.
        tokenizer: the model's tokenizer.
        rows: a data set of `TokenRow`.
        args: TRL's configuration; `dataset_kwargs` must skip the preparation.
        optimizer: replaces the one that `args` names.
        peft_config: the adapter to train; None: all weights.
        quantization_config: quantisation of a model loaded by name.
        name: label of the progress bar.
        estimated_bytes: estimated peak of memory; None: unknown.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        rows: Any,
        args: SFTConfig,
        *,
        optimizer: Any = None,
        peft_config: Any = None,
        quantization_config: Any = None,
        name: str = "training",
        estimated_bytes: int | None = None,
    ) -> None:
        with trl_internals.refusals_in_one_line():
            super().__init__(
                model=model,
                args=args,
                train_dataset=rows,
                processing_class=tokenizer,
                peft_config=peft_config,
                quantization_config=quantization_config,
                optimizers=(optimizer, None),
            )
        self.estimated_bytes = estimated_bytes
        self.add_callback(HeapGuard(lambda: estimated_bytes))
        self.identity = self._identity()
        self._bar = RolloutProgress(name)
        if not args.disable_tqdm:
            self.remove_callback(ProgressCallback)
            self.add_callback(self._bar)

    def create_accelerator_and_postprocess(self) -> None:
        """Make the accelerator like the base class, with FSDP2 set as `settle_fsdp2` describes."""
        super().create_accelerator_and_postprocess()
        settle_fsdp2(self)

    def train(self, resume_from_checkpoint: str | bool | None = None, *arguments: Any, **options: Any) -> TrainOutput:
        """Train like the base class, from a checkpoint of this run if one is named.

        Raises:
            ConfigurationError: the checkpoint is damaged, or of another run.
        """
        folder = checkpoints.resolve_checkpoint(resume_from_checkpoint, directory=trl_internals.output_folder(self))
        if folder is not None:
            checkpoints.check_same_run(Path(folder), self.identity)
        try:
            return super().train(folder, *arguments, **options)
        finally:
            self._bar.close()

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """Compute TRL's loss; on a CPU the output layer computes only the tokens in the loss, as on a GPU.

        Most tokens of a demonstration are not: computing them all takes twice the memory and more time. A vocabulary of
        one tile gains nothing.
        """
        vocab_size = cast("Any", self.model).config.get_text_config().vocab_size
        is_large = vocab_size > trl_internals.TILE_WIDTH
        with trl_internals.labels_only(self.args.device, vocab_size=vocab_size) if is_large else nullcontext():
            return super().compute_loss(model, inputs, *arguments, **options)  # type: ignore[no-untyped-call]

    def _identity(self) -> dict[str, Any]:
        """What a checkpoint must share with this run to be resumed from."""
        rows, model, processes = (
            cast("Any", self.train_dataset),
            cast("Any", self.model),
            self.accelerator.num_processes,
        )
        batch = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps * processes
        options = {name: getattr(self.args, name) for name in FIXED}
        options |= {"rows": len(rows) if hasattr(rows, "__len__") else None, "rows of a step": batch}
        weights = {name: list(getattr(weight, "ds_shape", weight.shape)) for name, weight in model.named_parameters()}
        base = checkpoints.model_identity(model, self.args)
        identity = {"options": options, "weights": weights, "model": base}
        plain: dict[str, Any] = json.loads(json.dumps(identity, default=str))
        return plain

    def checkpoint_folder(self, trial: Any = None) -> Path:
        """Folder for the checkpoint of this step."""
        return Path(trl_internals.output_folder(self, trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"

    def _finalize_training(self, *arguments: Any, **options: Any) -> TrainOutput:
        with checkpoints.kept_if_stopped(self):
            return super()._finalize_training(*arguments, **options)  # type: ignore[no-untyped-call, no-any-return]

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = self.checkpoint_folder(trial)
        with checkpoints.write_checkpoint(folder, identity=self.identity, args=self.args, accelerator=self.accelerator):
            super()._save_checkpoint(model, trial)  # type: ignore[no-untyped-call]
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            rotate_checkpoints(str(folder.parent), self.args.save_total_limit, best, use_mtime=True)
