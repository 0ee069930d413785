"""Supervised start of a tiny policy: TRL's SFTTrainer on imperfect demonstrations in ever new worlds.

`python -m trainers.warmstart --out DIR` writes model and tokenizer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import IterableDataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]  # TRL imports them lazily

from agent_r1_gym.types import Message, to_chat
from trainers.demonstrations import IMPERFECT_HABITS, QUESTION_MIX, Habits, demonstrations
from trainers.muon import Muon
from trainers.tiny import SIZES, build_model, build_tokenizer

NOT_TRAINED = -100


def training_row(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> dict[str, list[int]]:
    """Returns a history as `input_ids` and `labels`; only what the model says has labels, its ends of turn included."""
    encoded: Any = tokenizer.apply_chat_template(to_chat(messages), return_dict=True, return_assistant_tokens_mask=True)
    ids = encoded["input_ids"]
    spoken = encoded["assistant_masks"]
    labels = [token if own else NOT_TRAINED for token, own in zip(ids, spoken, strict=True)]
    return {"input_ids": ids, "labels": labels}


def warm_start(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    seed: int = 0,
    steps: int = 3000,
    batch_size: int = 16,
    lr: float = 0.005,
    adam_lr: float = 0.008,
    mix: Mapping[str, float] = QUESTION_MIX,
    habits: Mapping[str, Habits] = IMPERFECT_HABITS,
    entities: int = 200,
    logging_steps: int = 100,
    progress: bool = True,
) -> list[dict[str, Any]]:
    """Trains `model` in place on demonstrations, each batch about a fresh world.

    Equal arguments on one machine give equal weights. The learning rates fall along a cosine to 0.

    Args:
        model: see `tiny.build_model`.
        tokenizer: its chat template must mark what the model says (`{% generation %}`).
        seed: seed of worlds and demonstrations.
        steps: optimiser steps.
        batch_size: demonstrations a step.
        lr: of `Muon`, for the matrices.
        adam_lr: of `Muon`, for embeddings and norms.
        mix: question type to weight.
        habits: by type of question, what the demonstrator does, and how often.
        entities: size of each world.
        logging_steps: steps between two rows of the log.
        progress: whether to show TRL's progress bar.

    Returns:
        The log: rows with `step`, `loss`, `mean_token_accuracy` and so on.
    """

    def rows() -> Iterator[dict[str, list[int]]]:
        for messages in demonstrations(seed=seed, mix=mix, habits=habits, entities=entities, per_world=batch_size):
            yield training_row(tokenizer, messages)

    with tempfile.TemporaryDirectory() as scratch:
        config = SFTConfig(
            output_dir=scratch,
            max_steps=steps,
            per_device_train_batch_size=batch_size,
            lr_scheduler_type="cosine",
            warmup_steps=min(50, steps // 10),
            seed=seed,
            max_length=None,
            dataset_kwargs={"skip_prepare_dataset": True},
            gradient_checkpointing=False,
            bf16=False,
            dataloader_pin_memory=False,
            logging_steps=logging_steps,
            disable_tqdm=not progress,
            save_strategy="no",
            report_to="none",
        )
        trainer = SFTTrainer(
            model=model,
            args=config,
            train_dataset=IterableDataset.from_generator(rows),
            processing_class=tokenizer,
            optimizers=(Muon(model, lr=lr, adam_lr=adam_lr), None),
        )
        trainer.train()
    return list(trainer.state.log_history)


def main(arguments: Sequence[str] | None = None) -> None:
    """Builds, trains and saves a tiny policy."""
    parser = argparse.ArgumentParser(prog="python -m trainers.warmstart", description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for model and tokenizer")
    parser.add_argument("--size", choices=list(SIZES), default="0.4M", help="size of the model (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=3000, help="optimiser steps (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="demonstrations a step (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and worlds (default: %(default)s)")
    options = parser.parse_args(arguments)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, size=options.size, seed=options.seed)
    log = warm_start(model, tokenizer, seed=options.seed, steps=options.steps, batch_size=options.batch_size)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    sys.stdout.write(f"{options.out}: {model.num_parameters()} parameters, mean loss {log[-1]['train_loss']:.4f}\n")


if __name__ == "__main__":
    main()
