"""`SupervisedTrainer`: what it does differently from TRL's `SFTTrainer`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import SFTConfig, SFTTrainer
from trl.trainer import utils as trl_utils

from agent_r1_gym.errors import ConfigurationError
from tests.kit.models import make_tokenizer
from tests.kit.small_runs import StopAfterTwo
from trainers.resume import checkpoints
from trainers.supervised import SupervisedTrainer
from trainers.trl_internals import TILE_WIDTH

TOKENIZER = make_tokenizer()
ROWS = [
    {"input_ids": list(range(5, 45)), "labels": [-100] * 30 + list(range(35, 45))},
    {"input_ids": list(range(50, 70)), "labels": [-100] * 15 + list(range(65, 70))},
]


def gradients(trainer: Any) -> tuple[float, dict[str, torch.Tensor]]:
    trainer.model.zero_grad()
    batch = trainer._prepare_inputs(trainer.data_collator([dict(row) for row in ROWS]))
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    return float(loss), {name: weight.grad.clone() for name, weight in trainer.model.named_parameters()}


def make_model(vocab_size: int) -> LlamaForCausalLM:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, pad_token_id=0, **sizes))


def make_args(folder: Path, **settings: Any) -> SFTConfig:
    fixed = {"use_cpu": True, "bf16": False, "report_to": "none", "gradient_checkpointing": False}
    return SFTConfig(output_dir=str(folder), dataset_kwargs={"skip_prepare_dataset": True}, **{**fixed, **settings})


@pytest.mark.slow
def test_a_run_that_was_stopped_keeps_the_checkpoint_that_it_is_resumed_from(tmp_path: Path) -> None:
    """Where one checkpoint is kept, transformers deletes all but the best at the end of a run."""

    args = make_args(tmp_path, max_steps=4, save_strategy="steps", save_steps=1, save_total_limit=1)
    trainer = SupervisedTrainer(make_model(TILE_WIDTH), TOKENIZER, Dataset.from_list(ROWS), args)
    trainer.add_callback(StopAfterTwo())
    trainer.train()
    assert checkpoints.last_complete(tmp_path) == tmp_path / "checkpoint-2"


@pytest.mark.slow
def test_a_checkpoint_of_another_base_model_is_refused(tmp_path: Path) -> None:
    """Names and shapes of the weights are the same."""

    def made(name: str) -> SupervisedTrainer:
        args = make_args(tmp_path / "run", max_steps=1, save_strategy="steps", save_steps=1)
        model = LlamaForCausalLM.from_pretrained(tmp_path / name)
        return SupervisedTrainer(model, TOKENIZER, Dataset.from_list(ROWS), args)

    model = make_model(TILE_WIDTH)
    model.save_pretrained(tmp_path / "one")
    torch.nn.init.ones_(model.lm_head.weight)
    model.save_pretrained(tmp_path / "two")
    made("one").train()
    checkpoint = str(tmp_path / "run" / "checkpoint-1")
    with pytest.raises(ConfigurationError, match="saved by a run on another base model"):
        made("two").train(checkpoint)
    made("one").train(checkpoint)


@pytest.mark.slow
@pytest.mark.parametrize("vocab_size", [TILE_WIDTH, 3 * TILE_WIDTH + 7])
def test_only_tokens_in_the_loss_are_scored_on_a_cpu(
    vocab_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss and gradients are TRL's; a small vocabulary is left alone, to the bit."""
    model = make_model(vocab_size)
    scored: list[int] = []
    head = trl_utils._ChunkedLogProbFunction.apply

    def apply(hidden: torch.Tensor, *others: Any) -> Any:
        scored.append(len(hidden))
        return head(hidden, *others)

    monkeypatch.setattr(trl_utils._ChunkedLogProbFunction, "apply", apply)
    rows = Dataset.from_list(ROWS)
    theirs = gradients(SFTTrainer(model, make_args(tmp_path), train_dataset=rows, processing_class=TOKENIZER))
    ours = gradients(SupervisedTrainer(model, TOKENIZER, rows, make_args(tmp_path)))
    everything, in_loss = 2 * 39, 10 + 5
    assert scored == [everything, in_loss if vocab_size > TILE_WIDTH else everything]
    tolerance = 1e-6 if vocab_size > TILE_WIDTH else 0.0
    assert ours[0] == pytest.approx(theirs[0], abs=tolerance)
    for name, gradient in theirs[1].items():
        assert torch.allclose(ours[1][name], gradient, rtol=0.0, atol=tolerance), name
