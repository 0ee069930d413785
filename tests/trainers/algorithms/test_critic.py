"""The critic: what its values may know, how it is fitted, what a checkpoint restores."""

from __future__ import annotations

import dataclasses
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch.testing import assert_close
from transformers import FalconConfig, FalconForCausalLM, GPT2Config, GPT2LMHeadModel

from agent_r1_gym.errors import ConfigurationError
from tests.kit.models import make_causal_lm, make_model
from tests.kit.samples import samples
from tests.kit.small_runs import make_args
from trainers.algorithms import critic as critics
from trainers.algorithms.critic import Critic, ValueBatch, build_value_model, policy_value_model

OPTIONS = {"critic_learning_rate": 1e-2, "critic_clip": None, "per_device_train_batch_size": 3}


def lora_config(**settings: Any) -> LoraConfig:
    """A new one each time: peft writes into it."""
    return LoraConfig(r=4, target_modules="all-linear", **settings)


def make_critic(model: Any = None, *, lora: bool = False, **options: Any) -> Critic:
    model = model or build_value_model(make_model(), peft_config=lora_config() if lora else None)
    args = make_args(Path("unused"), algorithm="ppo", **(OPTIONS | {"num_generations": 1} | options))
    return Critic(model, args, accelerator=Accelerator(cpu=True))


def make_batch(critic: Critic, *, rows: int = 8) -> ValueBatch:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, 17, (rows, 12), generator=generator)
    attention = torch.ones_like(ids)
    mask = torch.rand((rows, 7), generator=generator) < 0.7
    returns = (ids[:, 5:] == 8).float() + ids[:, 5:] / 10
    return ValueBatch(ids, attention, mask, returns, critic.values(ids, attention, length=7))


def error_of(critic: Critic, batch: ValueBatch) -> float:
    values = critic.values(batch.input_ids, batch.attention_mask, length=7)
    return (values - batch.returns)[batch.mask].square().mean().item()


def trained(**options: Any) -> tuple[Critic, ValueBatch]:
    critic = make_critic(**options)
    batch = make_batch(critic)
    critic.fit(batch)
    return critic, batch


class TestValues:
    def test_start_at_zero(self) -> None:
        batch = make_batch(make_critic())
        assert batch.values.shape == (8, 7)
        assert torch.all(batch.values == 0)

    def test_do_not_know_the_token_that_is_chosen(self) -> None:
        critic, batch = trained()
        before = critic.values(batch.input_ids, batch.attention_mask, length=7)
        ids = batch.input_ids.clone()
        ids[:, 5 + 3] = (ids[:, 5 + 3] - 3) % 13 + 4
        after = critic.values(ids, batch.attention_mask, length=7)
        assert_close(after[:, :4], before[:, :4])
        assert torch.all(after[:, 4] != before[:, 4])

    def test_do_not_depend_on_padding_nor_on_the_size_of_chunks(self) -> None:
        critic, batch = trained()
        expected = critic.values(batch.input_ids, batch.attention_mask, length=7)
        ids = torch.nn.functional.pad(batch.input_ids, (3, 2))
        attention = torch.nn.functional.pad(batch.attention_mask, (3, 2))
        critic.args.per_device_train_batch_size = 8
        values = critic.values(ids, attention, length=9)
        assert_close(values[:, :7], expected, rtol=1e-4, atol=1e-5)


class TestModel:
    def test_shares_nothing_with_the_policy(self) -> None:
        policy = make_model()
        model = build_value_model(policy)
        assert {p.data_ptr() for p in policy.parameters()}.isdisjoint(p.data_ptr() for p in model.parameters())
        assert_close(model.base_model.state_dict(), policy.base_model.state_dict())

    @pytest.mark.slow
    def test_takes_the_policy_with_its_adapter(self) -> None:
        policy = get_peft_model(make_model(), lora_config())
        with torch.no_grad():
            for name, parameter in policy.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
        ids = torch.arange(4, 16)[None]
        model = build_value_model(policy, peft_config=lora_config())
        expected = policy(ids, output_hidden_states=True).hidden_states[-1]
        assert_close(model(ids, output_hidden_states=True).hidden_states[-1], expected, rtol=1e-4, atol=1e-5)
        trained_parameters = [name for name, p in model.named_parameters() if p.requires_grad]
        assert any("score" in name for name in trained_parameters)
        assert all("score" in name or "lora_" in name for name in trained_parameters)

    @pytest.mark.parametrize("excluded", [["k_proj"], r".*\.k_proj"])
    def test_modules_that_the_adapter_leaves_out_stay_out(self, excluded: Any) -> None:
        model = build_value_model(make_model(), peft_config=lora_config(exclude_modules=excluded))
        adapted = {name for name, _ in model.named_parameters() if "lora_A" in name}
        assert adapted
        assert not any("k_proj" in name or "score" in name for name in adapted)

    def test_loads_a_path(self, tmp_path: Path) -> None:
        make_model().save_pretrained(tmp_path / "policy")
        model = policy_value_model(str(tmp_path / "policy"), make_args(tmp_path, algorithm="ppo"))
        assert_close(model.base_model.state_dict(), make_model().base_model.state_dict())
        assert torch.all(model(torch.tensor([[4, 5, 6]])).logits == 0)

    def test_what_is_trained_next_to_a_bfloat16_model_is_float32(self, tmp_path: Path) -> None:
        make_model().save_pretrained(tmp_path / "policy")
        model = build_value_model(str(tmp_path / "policy"), peft_config=lora_config(), dtype="bfloat16")
        types = {parameter.dtype for parameter in model.parameters() if parameter.requires_grad}
        assert types == {torch.float32}
        critic = make_critic(model)  # without autocast
        critic.fit(make_batch(critic))
        assert critic.values(torch.tensor([[4, 5, 6]]), torch.ones(1, 3), length=2).dtype == torch.float32

    def test_leaves_the_global_generator_alone(self) -> None:
        state = torch.get_rng_state()
        build_value_model(make_model())
        assert torch.equal(torch.get_rng_state(), state)

    def test_other_architecture_without_dropout(self) -> None:
        config = GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, bos_token_id=None, eos_token_id=None)
        model = build_value_model(GPT2LMHeadModel(config))
        model.train()
        first, again = (model(torch.arange(6)[None], output_hidden_states=True) for _ in range(2))
        assert torch.all(first.logits == 0)
        assert torch.equal(first.hidden_states[-1], again.hidden_states[-1])

    @samples(
        "make_policy",
        [
            lambda: make_causal_lm("llama"),
            lambda: FalconForCausalLM(
                FalconConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
            ),
        ],
    )
    def test_has_no_dropout_outside_the_modules_for_it(self, make_policy: Any) -> None:
        """Llama's attention layers hold the probability; Falcon's layers read it in the configuration."""
        policy = make_policy()
        for name in [name for name in vars(policy.config) if "dropout" in name]:
            setattr(policy.config, name, 0.5)
        model = build_value_model(policy).train()
        first, again = (model(torch.arange(4, 16)[None], output_hidden_states=True) for _ in range(2))
        assert torch.equal(first.hidden_states[-1], again.hidden_states[-1])
        assert policy.config.attention_dropout == 0.5  # the policy keeps its own

    def test_has_no_dropout_in_its_adapter_either(self) -> None:
        critic = make_critic(build_value_model(make_model(), peft_config=lora_config(lora_dropout=0.5)))
        batch = make_batch(critic)
        critic.fit(batch)  # leaves the model in training mode, and values that are not all 0
        first, again = (critic.values(batch.input_ids, batch.attention_mask, length=7) for _ in range(2))
        assert torch.any(first != 0)
        assert torch.equal(first, again)

    @pytest.mark.parametrize("lora", [False, True])
    def test_recomputes_activations_where_the_policy_does(self, lora: bool, tmp_path: Path) -> None:
        args = make_args(tmp_path, algorithm="ppo", gradient_checkpointing=True)
        peft_config = lora_config() if lora else None
        models = [policy_value_model(make_model(), args, peft_config=peft_config)]
        args.gradient_checkpointing = False
        models.append(policy_value_model(make_model(), args, peft_config=peft_config))
        recomputing = [any(getattr(m, "gradient_checkpointing", False) for m in model.modules()) for model in models]
        assert recomputing == [True, False]
        errors = []
        start = {name: value.clone() for name, value in models[0].state_dict().items()}
        for model in models:
            model.load_state_dict(start)
            critic = make_critic(model)
            batch = make_batch(critic)
            critic.fit(batch)
            errors.append(error_of(critic, batch))
        assert errors[0] == pytest.approx(errors[1], rel=1e-4)


class TestFit:
    @pytest.mark.slow
    @pytest.mark.parametrize("lora", [False, True])
    def test_comes_nearer_to_the_returns(self, lora: bool) -> None:
        critic = make_critic(lora=lora)
        batch = make_batch(critic)
        before = error_of(critic, batch)
        for _ in range(40):
            metrics = critic.fit(batch)
        assert error_of(critic, batch) < before / 4
        assert metrics["loss"] < before / 8
        assert metrics["clip_fraction"] == 0

    def test_loss_is_the_mean_over_masked_tokens_of_half_the_square(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(critics, "MINIBATCHES", 1)
        critic = make_critic()
        batch = make_batch(critic)
        expected = batch.returns[batch.mask].square().mean().item() / 2
        assert critic.fit(batch)["loss"] == pytest.approx(expected, rel=1e-5)

    def test_tokens_outside_the_mask_do_not_matter(self) -> None:
        critic, batch = trained()
        other = make_critic()
        other.fit(dataclasses.replace(batch, returns=torch.where(batch.mask, batch.returns, 1e3)))
        assert_close(other.model.state_dict(), critic.model.state_dict(), rtol=0, atol=0)

    def test_size_of_chunks_does_not_matter(self) -> None:
        critic, _ = trained(per_device_train_batch_size=3)
        other, _ = trained(per_device_train_batch_size=2)
        assert_close(other.model.state_dict(), critic.model.state_dict(), rtol=1e-3, atol=1e-5)

    def test_clip_takes_the_worse_of_both_errors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Values have moved from 0 by more than the clip: the loss is that of the clipped value, without gradient."""
        monkeypatch.setattr(critics, "MINIBATCHES", 1)
        critic = make_critic(critic_clip=0.1)
        batch = make_batch(critic)
        with torch.no_grad():
            critic.model.score.bias.fill_(0.5)
        batch = dataclasses.replace(batch, returns=torch.ones_like(batch.returns))
        metrics = critic.fit(batch)
        assert metrics["loss"] == pytest.approx(0.9**2 / 2)
        assert metrics["clip_fraction"] == 1
        assert metrics["grad_norm"] == 0

    def test_is_computed_in_float32_where_the_policy_is_in_float16(self) -> None:
        critic, expected = make_critic(), make_critic()
        critic.accelerator = Mock(
            wraps=critic.accelerator,
            **{"num_processes": 1, "process_index": 0, "mixed_precision": "fp16"},
            autocast=lambda: torch.autocast("cpu", dtype=torch.float16),
        )
        batch = make_batch(expected)
        assert critic.fit(batch) == expected.fit(batch)
        assert_close(critic.model.state_dict(), expected.model.state_dict(), rtol=0, atol=0)

    def test_is_computed_in_bfloat16_where_deepspeed_casts_the_policy(self) -> None:
        critic, batch = trained()
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, "length": 7}
        plain = critic.values(**inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = critic.values(**inputs)
        critic.accelerator = Mock(mixed_precision="bf16", device=torch.device("cpu"), autocast=nullcontext)
        assert torch.equal(critic.values(**inputs), expected)
        assert not torch.equal(expected, plain)

    def test_reports_no_numbers_where_there_is_nothing_to_fit(self) -> None:
        critic = make_critic()
        batch = make_batch(critic)
        metrics = critic.fit(dataclasses.replace(batch, mask=torch.zeros_like(batch.mask)))
        assert all(math.isnan(number) for number in metrics.values())

    def test_gradient_is_scaled_down_to_the_norm(self) -> None:
        critic = make_critic(max_grad_norm=0.0)
        free = critic.fit(make_batch(critic))["grad_norm"]
        assert free > 0.01


class TestCheckpoint:
    @pytest.mark.parametrize("lora", [False, True])
    def test_goes_on_as_if_never_stopped(self, tmp_path: Path, lora: bool) -> None:
        critic, batch = trained(lora=lora)
        critic.save(tmp_path)
        resumed = make_critic(lora=lora)
        resumed.load(tmp_path)
        assert critic.fit(batch) == resumed.fit(batch)
        assert_close(resumed.model.state_dict(), critic.model.state_dict(), rtol=0, atol=0)
        assert [path.name for path in tmp_path.iterdir()] == ["critic.pt"]

    def test_none_and_one_of_another_model(self, tmp_path: Path) -> None:
        make_critic(lora=True).save(tmp_path)
        with pytest.raises(ConfigurationError, match=r"critic\.pt is missing: .* was not saved by ppo"):
            make_critic().load(tmp_path / "none")
        with pytest.raises(ConfigurationError, match=r"another value model: \d+ weights differ"):
            make_critic().load(tmp_path)
