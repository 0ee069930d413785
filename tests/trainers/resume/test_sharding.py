"""Sharded weights: whole for a rollout, sharded again after it, not rounded; ways that cannot work are refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import StateDictType, fully_shard
from torch.distributed.tensor import DTensor
from torch.testing import assert_close

from agent_r1_gym.errors import ConfigurationError
from tests.kit.commands import run_script
from tests.kit.models import STOPS, make_causal_lm, make_sessions
from tests.kit.process_groups import under_fsdp2
from tests.kit.small_runs import by_row, make_trainer
from trainers.algorithms.process_group import process_group_of
from trainers.resume.sharding import check_sharding, gathered_weights, settle_fsdp2, sharding_of, unsharded
from trainers.rollouts.request_engine import SamplingOptions
from trainers.rollouts.slot_engine import SlotEngine, cast_weights


def play(model: torch.nn.Module, count: int) -> list[list[list[int]]]:
    sessions = make_sessions(count)
    options = SamplingOptions(max_new_tokens=6, temperature=0.0, stop_token_ids=STOPS)
    SlotEngine(model, options, slots=4, max_length=200).run(iter(sessions))
    return [session.tokens for session in sessions]


def shard(model: torch.nn.Module) -> None:
    """As accelerate does: each layer, the tied embeddings, and the rest."""
    mesh = init_device_mesh("cpu", (2,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard([model.model.embed_tokens, model.model.norm, model.lm_head], mesh=mesh, reshard_after_forward=False)
    fully_shard(model, mesh=mesh)


def is_sharded(model: torch.nn.Module) -> bool:
    return all(isinstance(parameter, DTensor) for parameter in model.parameters())


def decodes_with_sharded_weights(rank: int) -> None:
    whole, sharded = make_causal_lm(), make_causal_lm()
    shard(sharded)
    with pytest.raises(ConfigurationError, match="the model's are sharded"):
        play(sharded, 1)
    with unsharded(sharded):
        assert play(sharded, 3 + 9 * rank) == play(whole, 3 + 9 * rank)
    assert is_sharded(sharded)
    with unsharded(sharded), cast_weights(torch.bfloat16, sharded), cast_weights(torch.bfloat16, whole):
        assert sharded.dtype == torch.bfloat16
        assert play(sharded, 2 + rank) == play(whole, 2 + rank)
    assert is_sharded(sharded)
    ids = torch.tensor([[11, 12, 13, 14]])
    losses = [model(input_ids=ids).logits.logsumexp(-1).sum() for model in (whole, sharded)]
    # As they were sharded: layers free their weights after a forward pass, the tail keeps them for the backward pass.
    assert is_sharded(sharded.model.layers) and not isinstance(sharded.model.norm.weight, DTensor)
    for loss in losses:
        loss.backward()
    assert is_sharded(sharded)
    for (name, one), other in zip(sharded.named_parameters(), whole.parameters(), strict=True):
        assert_close(one.grad.full_tensor(), other.grad, rtol=1e-4, atol=1e-5, msg=name)


def gathers_rows_of_unequal_width(rank: int) -> None:
    process_group = process_group_of(Accelerator(cpu=True))
    local = torch.ones(1, 2 + rank, dtype=torch.bool)
    gathered = process_group.gather(local)
    assert gathered.dtype == torch.bool
    assert gathered.tolist() == [[True, True, False], [True, True, True]]
    assert process_group.gather(local.long(), pad=-1).tolist() == [[1, 1, -1], [1, 1, 1]]
    assert process_group.row_slice(1) == slice(rank, rank + 1)


def is_rounded(value: torch.Tensor) -> bool:
    """Whether each number is one of bfloat16."""
    return torch.equal(value, value.bfloat16().to(value.dtype))


def trains_in_bfloat16(folder: Path) -> None:
    """An optimiser step of two micro-batches: what is seen after each of them."""
    under_fsdp2("FULL_STATE_DICT")
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
    settings: dict[str, Any] = {"gradient_accumulation_steps": 2, "num_iterations": 2, "use_cpu": False}
    trainer = make_trainer(folder, by_row, **settings, per_device_train_batch_size=4)
    step, passes = trainer.training_step, trainer._get_per_token_logps_and_entropies
    steps: list[list[bool]] = []
    logprobs: list[torch.Tensor] = []

    def noted_step(*arguments: Any, **options: Any) -> torch.Tensor:
        loss: torch.Tensor = step(*arguments, **options)
        steps.append([is_rounded(weight.grad.to_local()) for weight in trainer.model.parameters()])
        return loss

    def noted_pass(*arguments: Any, **options: Any) -> Any:
        results = passes(*arguments, **options)
        logprobs.extend(value.detach() for value in results[:2] if value is not None)
        return results

    vars(trainer).update(training_step=noted_step, _get_per_token_logps_and_entropies=noted_pass)
    trainer.train()
    assert sharding_of(trainer.accelerator) == "FSDP2 FULL_STATE_DICT"
    assert trainer.accelerator.mixed_precision == "bf16"
    assert len(steps) == 2
    assert not any(all(rounded) for rounded in steps)
    assert logprobs
    assert not any(is_rounded(value) for value in logprobs)


def trainer_with(*, fsdp: int | None = None, zero: int | None = None, gather: bool = True) -> Any:
    state = SimpleNamespace(
        deepspeed_plugin=zero and SimpleNamespace(zero_stage=zero),
        fsdp_plugin=fsdp and SimpleNamespace(fsdp_version=fsdp),
    )
    return SimpleNamespace(
        accelerator=SimpleNamespace(state=state), args=SimpleNamespace(ds3_gather_for_generation=gather)
    )


@pytest.mark.slow
def test_two_processes_with_unequally_many_episodes() -> None:
    assert run_script("tests.trainers.resume.test_sharding", processes=2) == 0


@pytest.mark.slow
def test_log_probs_and_summed_gradients_are_float32_and_gradients_are_sharded_at_once(tmp_path: Path) -> None:
    assert run_script("tests.trainers.resume.test_sharding", str(tmp_path), processes=2) == 0


@pytest.mark.parametrize(("chosen", "kept"), [(None, True), ({"sync_each_batch": False}, None)])
def test_the_user_may_keep_whole_gradients(chosen: Any, kept: bool | None) -> None:
    state = SimpleNamespace(plugin_kwargs={})
    accelerator = SimpleNamespace(is_fsdp2=True, gradient_state=state)
    accelerator.state = SimpleNamespace(fsdp_plugin=SimpleNamespace(mixed_precision_policy=None))
    args = SimpleNamespace(accelerator_config=SimpleNamespace(gradient_accumulation_kwargs=chosen))
    settle_fsdp2(SimpleNamespace(accelerator=accelerator, args=args))
    assert state.plugin_kwargs.get("sync_each_batch") is kept


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"fsdp": 1}, "fsdp_version: 2"), ({"zero": 3, "gather": False}, "ds3_gather_for_generation is False")],
)
def test_what_cannot_be_gathered_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        check_sharding(trainer_with(**settings))


@pytest.mark.parametrize(
    ("kind", "plugins", "expected"),
    [
        ("MULTI_GPU", {}, None),
        ("DEEPSPEED", {"deepspeed_plugin": SimpleNamespace(zero_stage=3)}, "ZeRO-3"),
        (
            "FSDP",
            {"fsdp_plugin": SimpleNamespace(fsdp_version=2, state_dict_type=StateDictType.SHARDED_STATE_DICT)},
            "FSDP2 SHARDED_STATE_DICT",
        ),
    ],
)
def test_ways_of_sharding_have_names(kind: str, plugins: dict[str, Any], expected: str | None) -> None:
    accelerator = SimpleNamespace(distributed_type=DistributedType(kind), state=SimpleNamespace(**plugins))
    assert sharding_of(accelerator) == expected


@pytest.mark.parametrize("settings", [{}, {"zero": 2}])
def test_whole_models_are_left_alone(settings: dict[str, Any]) -> None:
    trainer = trainer_with(**settings)  # has no model that could be touched
    check_sharding(trainer)
    with gathered_weights(trainer):
        pass


if __name__ == "__main__":
    if sys.argv[1:]:
        torch.set_num_threads(1)
        trains_in_bfloat16(Path(sys.argv[1]))
    else:
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
        decodes_with_sharded_weights(rank)
        gathers_rows_of_unequal_width(rank)
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads now and then abort a process that tears down while the other one still does
