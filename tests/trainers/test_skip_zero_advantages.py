"""Rollouts without an advantage can be left out of an update: the same gradient, from fewer tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.record import Trajectory
from tests.kit.models import make_tokenizer
from tests.kit.samples import samples
from tests.kit.small_runs import (
    give,
    gradients,
    long_and_short_batch,
    make_trainer,
    multi_turn_batch,
    run,
    several_contexts,
)
from trainers.algorithms.batch import Batch, tokens_of
from trainers.algorithms.packing import rows_with_advantage

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]


def silent(trajectories: list[Trajectory]) -> list[Trajectory]:
    return [replace(each, turns=[replace(turn, reward=0.0) for turn in each.turns]) for each in trajectories]


def half_silent() -> list[Trajectory]:
    """A group with different returns, and a longer one without rewards; one rollout is lost."""
    lost = replace(multi_turn_batch()[1], infrastructure_error="the backend is dead")
    return [*several_contexts()[:3], lost, *silent(long_and_short_batch()[4:])]


def all_silent() -> list[Trajectory]:
    return silent(multi_turn_batch())


def updated(folder: Path, batch: list[Trajectory], *, skip: bool, **settings: Any) -> tuple[Any, int, dict[str, float]]:
    """Loss and gradients of a policy that has moved since, the tokens that it saw, and the metrics of the update."""
    trainer, output = run(folder, batch, logprob_check_steps=0, skip_zero_advantages=skip, **settings)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight += 0.02 * torch.randn_like(weight)
    seen: list[int] = []
    trainer.model.get_input_embeddings().register_forward_hook(
        lambda _module, ids, _output: seen.append(ids[0].numel())
    )
    trainer._metrics["train"].clear()
    found = gradients(trainer, output)
    return found, sum(seen), {name: values[0] for name, values in trainer._metrics["train"].items()}


@pytest.mark.slow
@samples("layout", ["packed", "rows"])
@samples("updates", [1, 2])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_gradient_is_the_same_from_fewer_tokens(tmp_path: Path, loss_type: str, updates: int, layout: str) -> None:
    """With two updates, ratios are not 1; the second group has more than half of the tokens."""
    settings = {"loss_type": loss_type, "num_iterations": updates, "update_layout": layout}
    (loss, wanted), tokens, metrics = updated(tmp_path, half_silent(), skip=False, **settings)
    (skipping_loss, found), fewer, others = updated(tmp_path, half_silent(), skip=True, **settings)
    assert skipping_loss == pytest.approx(loss, rel=1e-5, abs=1e-7)
    assert max(gradient.abs().max() for gradient in wanted.values()) > 1e-3
    assert_close(found, wanted, rtol=1e-4, atol=3e-7)
    assert fewer < tokens / 2
    clipped = [name for name in metrics if "clip_ratio" in name]
    assert {name: others[name] for name in clipped} == pytest.approx({name: metrics[name] for name in clipped})


@pytest.mark.parametrize("level", ["sequence", "turn"])
def test_ratios_of_sequences_and_turns(tmp_path: Path, level: str) -> None:
    settings = {"importance_sampling_level": level, "num_iterations": 2}
    wanted, found = (updated(tmp_path, half_silent(), skip=skip, **settings)[0] for skip in (False, True))
    assert found[0] == pytest.approx(wanted[0], rel=1e-5, abs=1e-7)
    assert_close(found[1], wanted[1], rtol=1e-4, atol=3e-7)


def test_entropy_of_the_others_is_estimated_from_what_they_sampled(tmp_path: Path) -> None:
    """By 1 nat per token in rollouts that are made up."""
    first, second = half_silent()[:4], half_silent()[4:]
    alone = updated(tmp_path, first, skip=False)[2]["entropy"]
    counts = [
        sum(sum(tokens_of(each).loss_mask) for each in part if not each.infrastructure_error)
        for part in (first, second)
    ]
    expected = (alone * counts[0] + 1.0 * counts[1]) / sum(counts)
    assert updated(tmp_path, half_silent(), skip=True)[2]["entropy"] == pytest.approx(expected, rel=1e-5)


def test_without_log_probs_entropy_is_that_of_the_rollouts_with_an_advantage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = updated(tmp_path, half_silent()[:4], skip=False)[2]["entropy"]
    inputs_of = Batch.to_trl_inputs
    monkeypatch.setattr(
        Batch, "to_trl_inputs", lambda batch, **options: inputs_of(batch, **options | {"logprobs": False})
    )
    assert updated(tmp_path, half_silent(), skip=True)[2]["entropy"] == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("lora", [False, True])
def test_an_update_without_any_advantage_has_a_gradient_of_zeros(tmp_path: Path, lora: bool) -> None:
    """Other processes may wait for it; the shortest rollout stands for all."""
    (loss, found), tokens, metrics = updated(tmp_path, all_silent(), skip=True, lora=lora, update_layout="rows")
    assert loss == 0
    assert found
    assert all(torch.equal(gradient, torch.zeros_like(gradient)) for gradient in found.values())
    assert tokens == len([2, 5, 8, 14, 15, 3])
    assert metrics["entropy"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"num_iterations": 2}, {"algorithm": "dapo", "refill_groups": 0}, {"lora": True}])
def test_training_ends_at_the_same_weights(tmp_path: Path, settings: dict[str, Any]) -> None:
    micro = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 4, "learning_rate": 1e-2}
    ends = []
    for skip in (False, True):
        torch.manual_seed(0)
        trainer = make_trainer(tmp_path, give(half_silent()), skip_zero_advantages=skip, **micro, **settings)
        trainer.train()
        ends.append({name: weight.clone() for name, weight in trainer.model.state_dict().items()})
    assert_close(ends[1], ends[0], rtol=0, atol=1e-5)


def test_rows_that_are_kept() -> None:
    advantages = torch.tensor([[0.0, 0.5], [0.5, 0.0], [0.0, 0.0], [0.0, 0.0], [-1.0, 0.0]])
    mask = torch.tensor([[1, 1], [0, 1], [1, 1], [1, 1], [1, 0]])
    lengths = torch.tensor([9, 5, 4, 3, 1])
    for number, rows in {1: [0, 4], 2: [0, 4], 3: [0, 3, 4], 4: [0, 2, 3, 4], 5: [0, 1, 2, 3, 4]}.items():
        kept = rows_with_advantage(advantages, mask, lengths=lengths, at_least=number)
        assert kept.nonzero()[:, 0].tolist() == rows


def test_a_mixture_of_experts_that_is_balanced(tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    experts = {"num_hidden_layers": 1, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts, vocab_size=len(tokenizer)))
    options = {"model": model, "skip_zero_advantages": True, "router_aux_loss_coef": 0.1}
    with pytest.raises(ConfigurationError, match=r"router_aux_loss_coef=0\.1 and a mixture of experts"):
        make_trainer(tmp_path, give(multi_turn_batch()), **options)
    make_trainer(tmp_path, give(multi_turn_batch()), **options | {"router_aux_loss_coef": 0.0})
