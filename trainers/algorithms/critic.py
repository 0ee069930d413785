"""Critic of PPO: a value model next to the policy, with its own optimiser (Schulman et al. 2017, arXiv 1707.06347)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator  # type: ignore[import-untyped]
from accelerate.utils import broadcast, patch_environment  # type: ignore[import-untyped]
from peft import PeftConfig, PeftModel, TaskType, get_peft_model
from torch import Tensor
from torch._utils import _take_tensors
from transformers import AutoModelForTokenClassification, PreTrainedConfig, PreTrainedModel
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from agent_r1_gym.errors import ConfigurationError
from trainers.algorithms.packing import IGNORE_INDEX, Prefixes, rows_layout
from trainers.config.agent import AgentConfig

CRITIC_FILE = "critic.pt"
MINIBATCHES = 2
"""Optimiser steps per generation batch."""
BUCKET_BYTES = 64 * 2**20
"""Gradients that are summed over the processes in one call: a call for each weight would mostly wait."""


def build_value_model(
    policy: str | PreTrainedModel | PeftModel, *, peft_config: PeftConfig | None = None, **load_kwargs: Any
) -> torch.nn.Module:
    """Build a model with one value per token: a copy of the policy's backbone with a new linear head.

    The head starts at zero, so every first value is 0; dropout is off. Nothing is shared with the policy: TRL pushes
    all parameters that hang on the policy to vLLM.

    Args:
        policy: what the policy is trained from; an adapter that it carries already is merged into the copy.
        peft_config: train such an adapter and the head instead of all weights.
        **load_kwargs: arguments of `from_pretrained` where `policy` is a path.
    """
    if isinstance(policy, str):
        model = AutoModelForTokenClassification.from_pretrained(policy, num_labels=1, **load_kwargs)
    else:
        model = _copy_backbone(policy)
    children = dict(model.named_children())
    (head,) = (name for name in children if name != model.base_model_prefix and name != "dropout")
    for parameter in children[head].parameters():
        torch.nn.init.zeros_(parameter)
    if peft_config is None:
        return _without_dropout(model)
    peft_config = copy.deepcopy(peft_config)
    peft_config.task_type = TaskType.TOKEN_CLS  # trains the head whole, so an adapter on it would be in the way
    excluded = getattr(peft_config, "exclude_modules", None) or []
    excluded = rf"{excluded}|{head}" if isinstance(excluded, str) else [*excluded, head]
    vars(peft_config)["exclude_modules"] = excluded  # a field of the subclasses
    adapted = get_peft_model(model, peft_config)
    # As PEFT does with the adapter alone: in bfloat16, Adam's mean of squares would never decay, by rounding.
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    adapted.get_base_model().get_submodule(head).register_forward_pre_hook(lambda _, hidden: (hidden[0].float(),))
    return _without_dropout(adapted)


def _without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """Set all probabilities of dropout to 0: in modules for it, and where other modules or configurations hold one."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        config = getattr(module, "config", None)
        for owner in (module, config) if isinstance(config, PreTrainedConfig) else (module,):
            for name, value in list(vars(owner).items()):
                if "drop" in name and isinstance(value, float):
                    setattr(owner, name, 0.0)
    return model


def _copy_backbone(policy: PreTrainedModel | PeftModel) -> PreTrainedModel:
    if isinstance(policy, PeftModel):
        policy = copy.deepcopy(policy).merge_and_unload()
    config = copy.deepcopy(policy.config)
    config.num_labels = 1
    with torch.random.fork_rng():
        model = AutoModelForTokenClassification.from_config(config, dtype=policy.dtype)  # type: ignore[no-untyped-call]
    model.base_model.load_state_dict(policy.base_model.state_dict())
    return model.to(policy.device)  # type: ignore[no-any-return]


def policy_value_model(policy: Any, args: AgentConfig, *, peft_config: PeftConfig | None = None) -> torch.nn.Module:
    """Build the value model of a policy before TRL wraps the policy: a later copy would share its adapter.

    Args:
        policy: what `AgentTrainer` takes as `model`.
        args: how TRL loads a path.
        peft_config: the policy's new adapter; without one, an adapter that it carries is the pattern.

    Its activations are recomputed where the policy's are (`gradient_checkpointing`).

    Raises:
        ConfigurationError: DeepSpeed ZeRO-3 is on, or the architecture has no token classifier.
    """
    if is_deepspeed_zero3_enabled():  # type: ignore[no-untyped-call]
        raise ConfigurationError(
            f"algorithm {args.algorithm} keeps its critic whole on every process, which DeepSpeed ZeRO-3 forbids; use "
            "ZeRO-2, DDP or FSDP, or an algorithm without critic."
        )
    kwargs: dict[str, Any] = {}
    if isinstance(policy, str):
        kwargs = {"dtype": "float32", "trust_remote_code": args.trust_remote_code}
        kwargs |= args.model_init_kwargs if isinstance(args.model_init_kwargs, dict) else {}
    pattern = peft_config or getattr(policy, "peft_config", {}).get("default")
    # FSDP's sparing way to load leaves all processes but the first without weights; the critic is not sharded.
    with patch_environment(FSDP_CPU_RAM_EFFICIENT_LOADING="false"):
        try:
            model: Any = build_value_model(policy, peft_config=pattern, **kwargs)
        except ValueError as error:
            if "Unrecognized configuration class" not in str(error):
                raise
            raise ConfigurationError(
                f"algorithm {args.algorithm} makes its critic of the model's token classifier, and transformers has "
                f"none for this architecture ({str(error).split('. ', 1)[0]}): take an algorithm without critic."
            ) from error
    if args.gradient_checkpointing:
        model.gradient_checkpointing_enable(args.gradient_checkpointing_kwargs)
        if isinstance(model, PeftModel):
            model.enable_input_require_grads()
    return model  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ValueBatch:
    """One process's trajectories to fit; every process has as many.

    Attributes:
        input_ids: (B, P + T), prompt and completion.
        attention_mask: (B, P + T).
        mask: (B, T) bool, True at the tokens whose value is fitted.
        returns: (B, T), the targets.
        values: (B, T), of `Critic.values` at rollout time.
        context_ids: (B, T), see `batch.context_ids`; None if every trajectory is one context.
        prefixes: what the critic alone reads in front of each context; None: nothing.
    """

    input_ids: Tensor
    attention_mask: Tensor
    mask: Tensor
    returns: Tensor
    values: Tensor
    context_ids: Tensor | None = None
    prefixes: Prefixes | None = None


class Critic:
    """A value model, its optimiser, and the order of its minibatches.

    Every process holds the whole model and gradients are summed over processes by hand, not by a wrapper: so the update
    does not depend on how many processes there are, nor on how the policy is wrapped (DDP, FSDP, DeepSpeed), and the
    policy's gradient accumulation cannot hold it back. AdamW's state is divided over the processes, weight by weight.

    Args:
        model: the value model (`build_value_model`).
        args: the trainer's: the critic's own fields, and the policy's `weight_decay`, `max_grad_norm` (0: gradients are
            never scaled down), `seed` (of the order in which trajectories are fitted) and
            `per_device_train_batch_size` (trajectories per forward pass). The learning rate is constant, so that values
            follow the policy to the end.
        accelerator: the trainer's.
    """

    def __init__(self, model: torch.nn.Module, args: AgentConfig, *, accelerator: Accelerator) -> None:
        self.model = model.to(accelerator.device)
        self.args = args
        self.accelerator = accelerator
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.generator = torch.Generator().manual_seed(args.seed)
        if accelerator.num_processes > 1:  # adapters are drawn at random, and generators may differ by process
            for parameter in self.parameters:
                parameter.data.copy_(broadcast(parameter.data))
        self.optimizer = _optimizer(self.parameters, args, processes=accelerator.num_processes)

    def values(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        length: int,
        context_ids: Tensor | None = None,
        prefixes: Prefixes | None = None,
    ) -> Tensor:
        """Return the values (B, length) of the states in which the last `length` tokens were chosen.

        Entry t is read at the token *before* completion token t: a value must not know the action. With
        `context_ids`, see `ValueBatch`, it is read in that token's own context.
        """
        rows = torch.arange(len(input_ids), device=input_ids.device)
        with torch.no_grad():
            chunks = [
                self._forward(input_ids, attention_mask, length, context_ids, prefixes, chunk)
                for chunk in torch.split(rows, self.args.per_device_train_batch_size)
            ]
        return torch.cat(chunks)

    def fit(self, batch: ValueBatch) -> dict[str, float]:
        """Take `MINIBATCHES` optimiser steps towards the returns.

        Loss of a minibatch: the mean over its tokens, on all processes, of max((V - R)^2, (V_clip - R)^2) / 2, where
        V_clip = V_old + clamp(V - V_old, -clip, clip).

        Returns:
            Means over the steps: loss, clip_fraction, grad_norm; NaN, which TRL does not log, where nothing was fitted.
        """
        size = len(batch.input_ids)
        total = size * self.accelerator.num_processes
        offset = size * self.accelerator.process_index
        metrics = []
        self.model.train()  # dropout is off; gradient checkpointing needs the flag
        for indices in torch.randperm(total, generator=self.generator).chunk(MINIBATCHES):
            local = indices[(indices >= offset) & (indices < offset + size)] - offset
            metrics.append(self._step(batch, local.to(batch.input_ids.device)))
        mean = torch.stack(metrics).nanmean(0).tolist()
        return dict(zip(("loss", "clip_fraction", "grad_norm"), mean, strict=True))

    def _step(self, batch: ValueBatch, indices: Tensor) -> Tensor:
        count = self.accelerator.reduce(batch.mask[indices].sum().float(), reduction="sum")
        tokens = count.clamp(min=1.0)
        sums = torch.zeros(2, device=batch.input_ids.device)
        for chunk in torch.split(indices, self.args.per_device_train_batch_size) if len(indices) else ():
            loss, clipped = self._loss(batch, chunk)
            (loss / tokens).backward()
            sums += torch.stack([loss.detach(), clipped])
        self._sum_gradients()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.args.max_grad_norm or float("inf"))
        self.optimizer.step()
        self.optimizer.zero_grad()
        metrics = torch.cat([self.accelerator.reduce(sums, reduction="sum") / tokens, norm.reshape(1)])
        return torch.where(count > 0, metrics, torch.nan)

    def _loss(self, batch: ValueBatch, chunk: Tensor) -> tuple[Tensor, Tensor]:
        mask, returns, old = batch.mask[chunk], batch.returns[chunk], batch.values[chunk]
        new = self._forward(
            batch.input_ids, batch.attention_mask, mask.size(1), batch.context_ids, batch.prefixes, chunk
        )
        error = (new - returns).square()
        clipped, clip = torch.zeros_like(error), self.args.critic_clip
        if clip is not None:
            held = (old + (new - old).clamp(-clip, clip) - returns).square()
            clipped = (held > error).float()
            error = torch.maximum(error, held)
        return (error * mask).sum() / 2, (clipped * mask).sum()

    def _forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        length: int,
        context_ids: Tensor | None,
        prefixes: Prefixes | None,
        chunk: Tensor,
    ) -> Tensor:
        """Compute the values (n, length) of the trajectories `chunk` (n,) of a batch."""
        ids = input_ids[chunk]
        contexts = None
        if context_ids is not None:
            contexts = torch.nn.functional.pad(context_ids[chunk], (ids.size(1) - length, 0))
        own = None if prefixes is None else prefixes.select(chunk)
        layout = rows_layout(ids, attention_mask[chunk], torch.ones_like(ids, dtype=torch.bool), contexts, own)
        # In float16 small gradients would be 0: the policy's loss is scaled up for that, the critic's is not. Not
        # `accelerator.autocast()`, which does nothing under DeepSpeed, because DeepSpeed casts the policy by itself.
        plain = self.accelerator.mixed_precision in ("no", "fp16")
        with nullcontext() if plain else torch.autocast(self.accelerator.device.type, torch.bfloat16):
            logits = self.model(**layout.inputs).logits
        return layout.to_rows(logits[..., 0].float() * (layout.labels != IGNORE_INDEX))[:, -length:]

    def _sum_gradients(self) -> None:
        for parameter in self.parameters:
            if parameter.grad is None:  # this process had no trajectory in the minibatch
                parameter.grad = torch.zeros_like(parameter)
        if self.accelerator.num_processes == 1:
            return
        gradients = [parameter.grad for parameter in self.parameters]
        for bucket in _take_tensors(gradients, BUCKET_BYTES):  # type: ignore[no-untyped-call]
            flat = self.accelerator.reduce(torch.cat([gradient.reshape(-1) for gradient in bucket]), reduction="sum")
            for gradient, total in zip(bucket, flat.split([gradient.numel() for gradient in bucket]), strict=True):
                gradient.copy_(total.view_as(gradient))

    def save(self, folder: Path) -> None:
        """Write the trained weights, the optimiser and the generator, for any number of processes; all call it."""
        folder.mkdir(parents=True, exist_ok=True)
        count = self.accelerator.num_processes
        # Through files: `consolidate_state_dict` would hold the shares of all processes in turn on every GPU.
        parts = [folder / f"critic_optimizer_{rank}.pt" for rank in range(count)] if count > 1 else []
        if parts:
            torch.save(self.optimizer.optim.state_dict(), parts[self.accelerator.process_index])
            self.accelerator.wait_for_everyone()
        if not self.accelerator.is_main_process:
            return
        if parts:
            self.optimizer._all_state_dicts = [
                torch.load(part, map_location="cpu", weights_only=True) for part in parts
            ]
            for part in parts:
                part.unlink()
        weights = {name: value.detach() for name, value in self.model.named_parameters() if value.requires_grad}
        state = {"model": weights, "optimizer": self.optimizer.state_dict(), "generator": self.generator.get_state()}
        torch.save(state, folder / CRITIC_FILE)
        if parts:  # the shares would stay in memory until the next checkpoint
            self.optimizer._all_state_dicts.clear()

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote.

        Raises:
            ConfigurationError: the checkpoint has no critic, or that of another model.
        """
        path = folder / CRITIC_FILE
        if not path.is_file():
            raise ConfigurationError(
                f"{path} is missing: {folder} was not saved by {self.args.algorithm}. Resume from a checkpoint of this "
                "algorithm."
            )
        state = torch.load(path, map_location="cpu", weights_only=True)
        own = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        shapes = [{name: list(value.shape) for name, value in weights.items()} for weights in (own, state["model"])]
        check_weights(path, own=shapes[0], saved=shapes[1], what="value model")
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(state["model"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])


def _optimizer(parameters: list[Any], args: AgentConfig, *, processes: int) -> Any:
    """Build AdamW; with several processes, each keeps the state of some weights and updates those."""
    rate, decay = args.critic_learning_rate, args.weight_decay
    if processes == 1:
        return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of torch.jit when it is imported

    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=rate, weight_decay=decay)


def check_weights(path: Path, *, own: Mapping[str, list[int]], saved: Mapping[str, list[int]], what: str) -> None:
    """Refuse saved weights of other names or shapes than a model's.

    Raises:
        ConfigurationError: they differ; the message names the first.
    """
    different = sorted(name for name in own.keys() | saved.keys() if own.get(name) != saved.get(name))
    if different:
        first = different[0]
        raise ConfigurationError(
            f"{path} holds another {what}: {len(different)} weights differ in name or shape, first {first}: expected "
            f"{own.get(first)}, got {saved.get(first)}. Resume with the model and the LoRA settings that it was "
            "trained with."
        )
