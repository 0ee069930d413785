"""Defaults that depend on the model and the machine: learning rate, precision, gradient checkpointing, budgets.

What the user sets always counts. A configuration names in `open_options` what it left open. `settle_budgets` decides
the token budgets once the model is known, and `settle_defaults` the rest once the longest context is. The first screen
shows each with its reason.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]
from transformers import AutoConfig, AutoModelForCausalLM

from trainers import trl_internals
from trainers.config.hardware import MIN_BF16_PARAMETERS, cpu_prefers_bf16, free_memory
from trainers.monitoring.memory import MARGIN, ModelShape, Setup, estimate_memory, size_of

SMALL_MODEL = 1_000_000_000
"""Parameters below which a model takes larger learning rates."""


class LearningRates(NamedTuple):
    """Default learning rates of one kind of training, for a model below `SMALL_MODEL` and for a larger one."""

    weights: tuple[float, float]
    """All weights are trained."""
    adapter: tuple[float, float]
    """A LoRA adapter is trained: ten times and more what all weights take."""

    def of(self, *, adapter: bool, parameters: int | None) -> float:
        """The rate for a model; without a known size, that of a large one."""
        small = parameters is not None and parameters < SMALL_MODEL
        return (self.adapter if adapter else self.weights)[0 if small else 1]


RATES = MappingProxyType(
    {
        "sft": LearningRates(weights=(5e-5, 2e-5), adapter=(1e-3, 2e-4)),
        "train": LearningRates(weights=(2e-5, 1e-6), adapter=(2e-4, 1e-5)),
    }
)
"""By command. For large models TRL's defaults, and for adapters ten times those (Thinking Machines, "LoRA Without
Regret"; TRL's guide of that name). For small ones what worked with a model of 135M parameters; the rate of adapters in
`train` follows from the factor of ten and was not measured: docs/training.md."""


class ModelFacts(NamedTuple):
    """What defaults depend on.

    Attributes:
        parameters: number of weights; None: unknown.
        positions: longest context; None: unknown.
        shape: for the estimate of memory; None: an architecture that it does not describe.
    """

    parameters: int | None
    positions: int | None
    shape: ModelShape | None

    @classmethod
    def of(cls, model: Any, init_kwargs: dict[str, Any] | None = None) -> ModelFacts:
        """Read them from a loaded model, or from the configuration of one that is named."""
        if isinstance(model, str):
            given = init_kwargs or {}
            code = {"trust_remote_code": bool(given.get("trust_remote_code"))}
            revision = {"revision": given["revision"]} if given.get("revision") else {}
            try:
                config = AutoConfig.from_pretrained(model, **revision, **code)
                with torch.device("meta"):
                    model = AutoModelForCausalLM.from_config(config, **code)  # type: ignore[no-untyped-call]
            except (OSError, ValueError, ImportError):  # refused, with its reason, where the model is loaded
                return cls(None, None, None)
        config = model.config.get_text_config()
        parameters = sum(size_of(weight) for weight in model.parameters())
        positions = getattr(config, "max_position_embeddings", None)
        return cls(parameters, positions, ModelShape.of(config, parameters))


def settle_budgets(args: Any, model: Any) -> None:
    """Keep a default `max_completion_length` within the model's positions.

    Args:
        args: an `AgentConfig`; changed in place.
        model: the model to train, or its name.
    """
    if "max_completion_length" not in args.open_options:
        return
    args.open_options -= {"max_completion_length"}
    positions = ModelFacts.of(model, args.model_init_kwargs).positions
    if positions:
        args.max_completion_length = min(args.max_completion_length, positions)


def settle_defaults(args: Any, model: Any, *, command: str, peft_config: Any = None, length: int | None = None) -> None:
    """Decide the options that the user left open (`args.open_options`), the same on all processes.

    Args:
        args: an `AgentConfig`, or the configuration of `sft`; changed in place.
        model: the model to train, or its name.
        command: key of `RATES`.
        peft_config: the adapter to train; None: all weights, or that of a loaded model.
        length: tokens of the longest context; None: as many as the token budgets allow.
    """
    if not args.open_options:
        return
    settle_budgets(args, model)
    options, args.open_options = args.open_options, frozenset()
    facts = ModelFacts.of(model, args.model_init_kwargs)
    adapter = peft_config or getattr(model, "peft_config", {}).get("default")
    if "learning_rate" in options:
        args.learning_rate = RATES[command].of(adapter=adapter is not None, parameters=facts.parameters)
        size = "below" if (facts.parameters or SMALL_MODEL) < SMALL_MODEL else "from"
        what = "an adapter" if adapter is not None else "all weights"
        args.learning_rate_reason = f"the default for {what} of a model {size} 1B"
    cpu = args.device.type == "cpu"
    is_large = (facts.parameters or 0) >= MIN_BF16_PARAMETERS
    # Measured, so ranks could differ.
    if "bf16" in options and cpu and is_large and broadcast_object_list([cpu_prefers_bf16()])[0]:
        args.bf16, args.mixed_precision = True, "bf16"
    if "gradient_checkpointing" in options:
        fits = _fits_without_checkpointing(args, facts, adapter=adapter, length=length)
        trl_internals.set_checkpointing(args, not fits)


def estimate_update(args: Any, model: Any, *, adapter: Any, length: int) -> int | None:
    """Estimate the memory of an update on rows of `length` tokens, in bytes; None: an unknown architecture."""
    facts = ModelFacts.of(model, args.model_init_kwargs)
    checkpointing = bool(args.gradient_checkpointing)
    return _update_bytes(args, facts, adapter=adapter, length=length, checkpointing=checkpointing)


def _fits_without_checkpointing(args: Any, facts: ModelFacts, *, adapter: Any, length: int | None) -> bool:
    """Whether an update that stores all activations fits the free memory, by the estimate; if unknown, it does not."""
    free, sharded = free_memory(args.device), bool(args.fsdp or args.deepspeed)
    free = None if free is None else free - vllm_bytes(args)
    needed = None if sharded else _update_bytes(args, facts, adapter=adapter, length=length, checkpointing=False)
    sharing = PartialState().num_processes if args.device.type == "cpu" else 1
    fits = None not in (free, needed) and sharing * needed <= free * (1 - MARGIN)  # type: ignore[operator]
    return bool(broadcast_object_list([fits])[0])


def vllm_bytes(args: Any) -> int:
    """Bytes of the GPU that a colocated vLLM holds during an update; in sleep mode it gives them back."""
    colocated = getattr(args, "engine", None) == "vllm" and args.vllm_mode == "colocate"
    if not colocated or args.vllm_enable_sleep_mode or args.device.type != "cuda":
        return 0
    return int(args.vllm_gpu_memory_utilization * torch.cuda.mem_get_info(args.device)[1])


def _teacher_bytes(args: Any) -> int:
    name = getattr(args, "teacher_model_name_or_path", None)
    if name is None:
        return 0
    parameters = ModelFacts.of(name, {"trust_remote_code": args.trust_remote_code}).parameters or 0
    return parameters * (2 if args.bf16 else 4)  # as `load_teacher` loads it


def _update_bytes(args: Any, facts: ModelFacts, *, adapter: Any, length: int | None, checkpointing: bool) -> int | None:
    if facts.shape is None:
        return None
    budget = args.max_prompt_length + args.max_completion_length if length is None else length
    dtype = getattr(torch, str((args.model_init_kwargs or {}).get("dtype")), torch.float32)
    preset = getattr(args, "preset", None)  # `sft` has neither an algorithm nor `beta`
    setup = Setup(
        lora_rank=getattr(adapter, "r", None),
        weight_bytes=dtype.itemsize,
        compute_bytes=2 if args.bf16 or args.fp16 else 4,
        slots=1,
        length=min(budget, facts.positions or budget),
        micro_batch=args.per_device_train_batch_size,
        reference=preset is not None and bool(args.beta),
        teacher_bytes=_teacher_bytes(args),
        critic=preset is not None and "values" in preset.needs,
        checkpointing=checkpointing,
        on_cpu=args.device.type == "cpu",
    )
    return estimate_memory(facts.shape, setup).update
