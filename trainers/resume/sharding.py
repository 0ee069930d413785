"""Models that FSDP2 or DeepSpeed ZeRO-3 shards over the processes: precision, full weights for rollouts, saving.

Each decoding step of a sharded model gathers its weights by collectives, which all processes must call equally often;
but their episodes end at different times. So the weights are gathered once before the rollouts, and each process then
decodes independently.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from accelerate.utils import DistributedType  # type: ignore[import-untyped]
from trl.distributed import DistributedBackend
from trl.models import unwrap_model_for_generation  # type: ignore[attr-defined]

from agent_r1_gym.errors import ConfigurationError
from trainers import trl_internals


def sharding_of(accelerator: Any) -> str | None:
    """Sharding of an accelerator, with the form in which FSDP saves; None: every process holds the full model."""
    state = accelerator.state
    if accelerator.distributed_type == DistributedType.FSDP:
        return f"FSDP{state.fsdp_plugin.fsdp_version} {state.fsdp_plugin.state_dict_type.name}"
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return f"ZeRO-{state.deepspeed_plugin.zero_stage}"
    return None


def settle_fsdp2(trainer: Any) -> None:
    """Set how FSDP2 rounds and keeps gradients, before the trainer's models are sharded; nothing for other sharding.

    With `mixed_precision: bf16`, Accelerate would round the outputs of the model (log-probs and entropies among them)
    and the gradients that are summed over the processes. And transformers would keep whole gradients on each process
    until the last micro-batch of an optimiser step, unless `accelerator_config` sets `sync_each_batch` itself.

    Args:
        trainer: a trainer of transformers that has just made its accelerator.
    """
    accelerator = trainer.accelerator
    if not accelerator.is_fsdp2:
        return
    plugin = accelerator.state.fsdp_plugin
    if plugin.mixed_precision_policy is not None:
        plugin.mixed_precision_policy = replace(
            plugin.mixed_precision_policy, reduce_dtype=torch.float32, output_dtype=None
        )
    if "sync_each_batch" not in (trainer.args.accelerator_config.gradient_accumulation_kwargs or {}):
        accelerator.gradient_state.plugin_kwargs["sync_each_batch"] = True


def check_sharding(trainer: Any) -> None:
    """Reject sharding from which `gathered_weights` cannot gather.

    Args:
        trainer: a TRL trainer.

    Raises:
        ConfigurationError: FSDP version 1, or ZeRO-3 with `ds3_gather_for_generation=False`.
    """
    backend = DistributedBackend(trainer.accelerator)  # type: ignore[no-untyped-call]
    if backend.fsdp_version == 1:
        raise ConfigurationError(
            "engine=cached gathers the weights of FSDP version 2 only, but the launch file has fsdp_version 1. Set "
            "fsdp_version: 2 (see examples/launch/fsdp2.yaml), or engine=trl."
        )
    if backend.is_zero3 and not trainer.args.ds3_gather_for_generation:
        raise ConfigurationError(
            "engine=cached needs full weights, but ds3_gather_for_generation is False. Set it to True, or set "
            "engine=trl, which decodes with sharded weights."
        )


@contextmanager
def gathered_weights(trainer: Any) -> Iterator[None]:
    """Gather the weights on every process within the block; all processes enter and leave together.

    Memory: one full copy of the weights on each device, in the precision of the computation.

    Args:
        trainer: a TRL trainer.
    """
    backend = DistributedBackend(trainer.accelerator)  # type: ignore[no-untyped-call]
    if backend.is_zero3:
        with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator):
            yield
    elif backend.fsdp_version == 2:
        with unsharded(trainer.model):
            yield
    else:
        yield


@contextmanager
def unsharded(model: Any) -> Iterator[None]:
    """Unshard a model of `torch.distributed.fsdp.fully_shard` within the block.

    Args:
        model: the root module.
    """
    from torch.distributed.fsdp import FSDPModule

    modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
    # Not of the root: the backward pass needs its weights again at once.
    groups = [group for module in modules if module is not model for group in trl_internals.fsdp2_groups(module)]
    before = [group.post_forward_mesh_info for group in groups]  # None: keeps its weights after a forward pass
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        for module in modules:
            module.reshard()
        for group, mesh in zip(groups, before, strict=True):
            group.post_forward_mesh_info = mesh


def weights_are_finite(model: Any) -> bool:
    """Return whether all trained weights that this process holds are finite numbers.

    Those that ZeRO-3 shards count as finite: its shards are padded with whatever was in memory.
    """
    trained = (weight.detach() for weight in model.parameters() if weight.requires_grad)
    own = (weight.to_local() if hasattr(weight, "to_local") else weight for weight in trained)  # FSDP2's shards
    return all(bool(weight.isfinite().all()) for weight in own)


def save_whole_model(trainer: Any, folder: str | None) -> None:
    """Save model and tokenizer, of a sharded model too: with SHARDED_STATE_DICT the Trainer would write no model."""
    if trainer.is_fsdp_enabled:
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model(folder)
