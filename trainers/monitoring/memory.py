"""Memory of a run on each device: an estimate, the number of concurrent episodes that fit, and a trial of the update.

The estimate follows from the model's shape, term by term. Weights, gradients, optimiser state and the KV cache are
exact; activations are counted as the families around Llama store them; fragmentation and the buffers of libraries are
not included.
`python -m trainers.monitoring.memory` prints the table of docs/gpus.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from accelerate.utils import DistributedType  # type: ignore[import-untyped]
from peft import LoraConfig
from torch import Tensor
from transformers import TrainerCallback

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.out_of_memory import is_out_of_memory
from agent_r1_gym.support.terminal import print_line
from trainers import trl_internals
from trainers.config.hardware import free_memory, max_resident_bytes, return_large_blocks
from trainers.rollouts.slot_engine import MAX_SLOTS, rollout_dtype

logger = logging.getLogger(__name__)
GIB = 2**30
UNEXPLAINED = 0.03
"""Share of a model's weights, such as biases and norms, by which `ModelShape.of` may be off."""
MARGIN = 0.15
"""Share of a device outside the estimate: CUDA context, buffers, passes over prompts, fragmentation."""
_SAMPLING_BYTES = 24
"""Bytes of `slot_engine.sample` per episode and token of the vocabulary: 2 to 4 of logits, 12 of scaled logits,
log-probs and probabilities, 8 of their cumulative sum."""
PROCESS_BYTES = int(0.55 * GIB)
"""Memory of a process that has loaded Python, torch and TRL; next to a GPU it is another memory."""
_ROWS_PER_CPU_PASS = 8
"""See `algorithms.packing.rows_per_pass`."""
ADAM_STATES = 2
"""States of AdamW per trained weight: the means of the gradient and of its square."""

_FRAGMENTED = 1.4
"""Peak on a CPU whose C library keeps freed blocks, over that of one that returns them: 7.7 to 5.7 GiB in `sft`."""
_RESERVE = 0.5
"""Free memory over what a process has occupied, below which it returns freed blocks: steps differ in their lengths."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Shape of a decoder-only transformer, as far as its memory depends on it.

    Attributes:
        layers: number of layers, each of attention and feed-forward.
        width: hidden size.
        heads: number of query heads.
        kv_heads: number of heads of keys and values.
        head_dim: width of a head.
        feed_forward: inner width of the gated feed-forward.
        vocabulary: number of tokens.
        tied: whether input and output embeddings are one matrix.
        qkv_bias: whether queries, keys and values have a bias (Qwen2.5).
        qk_norm: whether queries and keys are normalised (Qwen3).
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    tied: bool = True
    qkv_bias: bool = True
    qk_norm: bool = False

    @property
    def projections(self) -> tuple[tuple[int, int], ...]:
        """Shapes (in, out) of the linear modules of a layer."""
        query, key = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = ((self.width, query), (self.width, key), (self.width, key), (query, self.width))
        return (*attention, *[(self.width, self.feed_forward)] * 2, (self.feed_forward, self.width))

    @property
    def parameters(self) -> int:
        """Number of weights."""
        linear = sum(inputs * outputs for inputs, outputs in self.projections)
        bias = (self.heads + 2 * self.kv_heads) * self.head_dim if self.qkv_bias else 0
        norms = 2 * self.width + (2 * self.head_dim if self.qk_norm else 0)
        embeddings = self.vocabulary * self.width * (1 if self.tied else 2)
        return self.layers * (linear + bias + norms) + embeddings + self.width

    @classmethod
    def of(cls, config: Any, parameters: int) -> ModelShape | None:
        """Read the shape from a transformers configuration; None for an architecture that it does not describe.

        Args:
            config: configuration of the text model.
            parameters: number of its weights, which the shape must match within 3 %.
        """
        try:
            heads = config.num_attention_heads
            shape = cls(
                layers=config.num_hidden_layers,
                width=config.hidden_size,
                heads=heads,
                kv_heads=getattr(config, "num_key_value_heads", None) or heads,
                head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
                feed_forward=config.intermediate_size,
                vocabulary=config.vocab_size,
                tied=bool(config.tie_word_embeddings),
                qkv_bias=False,
            )
        except AttributeError:
            return None
        return shape if abs(shape.parameters - parameters) <= UNEXPLAINED * parameters else None

    def adapter_parameters(self, rank: int) -> int:
        """Number of weights of LoRA of this rank on all linear modules of the layers."""
        return self.layers * sum(rank * (inputs + outputs) for inputs, outputs in self.projections)


QWEN25 = {
    "0.5B": ModelShape(24, 896, 14, 2, 64, 4864, 151_936),
    "1.5B": ModelShape(28, 1536, 12, 2, 128, 8960, 151_936),
    "3B": ModelShape(36, 2048, 16, 2, 128, 11_008, 151_936),
    "7B": ModelShape(28, 3584, 28, 4, 128, 18_944, 152_064, tied=False),
}
"""Shapes of Qwen2.5-Instruct, from its configuration files."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Training setup, as far as memory depends on it.

    Attributes:
        lora_rank: rank of an adapter on all linear modules; None: all weights are trained.
        weight_bytes: bytes per weight of the policy, reference and critic: 4 (float32), 2 (bfloat16).
        compute_bytes: bytes per number in activations and in the KV cache.
        slots: number of concurrent episodes.
        length: tokens of prompt and completion together.
        micro_batch: rollouts in one forward and backward pass.
        shared_prompt: tokens of the prompt, if the rollouts of a group share it in an update (packed layout).
        group: rollouts that share a prompt.
        reference: whether KL needs a reference model; with an adapter it is the base model and takes no memory.
        teacher_bytes: bytes of a teacher with its own weights, whole on every process.
        distilled_tokens: tokens of a rollout at which the whole vocabularies of policy and teacher are compared.
        critic: whether there is a value model (PPO), trained like the policy.
        checkpointing: whether activations are recomputed in the backward pass.
        shards: processes over which FSDP2 or ZeRO-3 shard weights, gradients and optimiser state.
        processes: processes over which the critic's optimiser state is sharded.
        on_cpu: whether the process itself lives in the same memory.
    """

    lora_rank: int | None = None
    weight_bytes: int = 4
    compute_bytes: int = 2
    slots: int = 32
    length: int = 8192
    micro_batch: int = 1
    shared_prompt: int = 0
    group: int = 1
    reference: bool = True
    teacher_bytes: int = 0
    distilled_tokens: int = 0
    critic: bool = False
    checkpointing: bool = True
    shards: int = 1
    processes: int = 1
    on_cpu: bool = False

    def tokens(self, rollouts: int) -> int:
        """Number of tokens of a pass over so many rollouts, all of full length."""
        return rollouts * (self.length - self.shared_prompt) + -(-rollouts // self.group) * self.shared_prompt

    def __post_init__(self) -> None:
        for name in ("weight_bytes", "compute_bytes", "slots", "length", "micro_batch", "group", "shards", "processes"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}.")


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated bytes on one device."""

    weights: int
    gradients: int
    optimizer: int
    reference: int
    critic: int
    rollout_copy: int
    kv_cache: int
    sampling: int
    activations: int
    process: int = 0

    @property
    def rollout(self) -> int:
        """During rollouts: resident state, the copy of the weights, the KV cache, and sampling."""
        return self._resident + self.rollout_copy + self.kv_cache + self.sampling

    @property
    def update(self) -> int:
        """During an update: resident state, gradients, and activations."""
        return self._resident + self.gradients + self.activations

    @property
    def peak(self) -> int:
        """Maximum of the two phases, which alternate."""
        return max(self.rollout, self.update)

    @property
    def _resident(self) -> int:
        return self.weights + self.optimizer + self.reference + self.critic + self.process


def estimate_memory(shape: ModelShape, setup: Setup) -> Estimate:
    """Estimate the memory of each device, in bytes.

    With P weights of w bytes, of which T are trained, sharded over s processes:
    weights P w / s (and an adapter's in float32), gradients T w / s, optimiser 2 T w / s, reference P w / s (and the
    teacher), critic P w + T w (gradients) + 2 T w / processes (optimiser; with an adapter as in the terms above), copy
    for rollouts P c if s > 1 or w differs from c (c bytes per number in computation; an adapter likewise),
    KV cache slots x (length + 1) x layers x 2 x kv_heads x head_dim x c, sampling slots x vocabulary x 24;
    see `activation_bytes` and `distillation_bytes` for the last term.
    """
    frozen, trained, size = shape.parameters, shape.parameters, setup.weight_bytes
    adapter = 0
    if setup.lora_rank is not None:
        trained, size = shape.adapter_parameters(setup.lora_rank), 4  # PEFT keeps an adapter in float32
        adapter = trained * size
    base, sharded, computing = frozen * setup.weight_bytes, setup.shards > 1, setup.compute_bytes
    copied = frozen if sharded or setup.weight_bytes != computing else 0
    copied += trained if adapter and (sharded or size != computing) else 0
    learning = trained * size
    critic = base + adapter + learning + ADAM_STATES * learning // setup.processes if setup.critic else 0
    reference = base // setup.shards if setup.reference and setup.lora_rank is None else 0
    return Estimate(
        weights=(base + adapter) // setup.shards,
        gradients=learning // setup.shards,
        optimizer=ADAM_STATES * learning // setup.shards,
        reference=reference + setup.teacher_bytes,
        critic=critic,
        rollout_copy=copied * computing,
        kv_cache=kv_cache_bytes(shape, slots=setup.slots, length=setup.length, number_bytes=computing),
        sampling=setup.slots * shape.vocabulary * _SAMPLING_BYTES,
        activations=activation_bytes(shape, setup) + distillation_bytes(shape, setup),
        process=PROCESS_BYTES if setup.on_cpu else 0,
    )


def format_estimate(parts: Estimate, length: int) -> str:
    """Format an estimate as one line that is marked as an estimate."""
    phases = f"rollouts {parts.rollout / GIB:.2g}, update {parts.update / GIB:.2g}"
    return f"about {parts.peak / GIB:.2g} GiB per device, estimated ({phases}), if episodes fill {length} tokens"


def kv_cache_bytes(shape: ModelShape, *, slots: int, length: int, number_bytes: int) -> int:
    """Bytes of `SlotCache` for episodes of `length` tokens; padding takes one more column.

    The cache grows to this size by doubling; meanwhile the old and the new tensors of one layer coexist.
    """
    return slots * (length + 1) * shape.layers * 2 * shape.kv_heads * shape.head_dim * number_bytes


def slots_that_fit(shape: ModelShape, setup: Setup, *, available_bytes: int) -> int:
    """Maximum number of concurrent episodes if all of them use up their token limits; at least 1.

    Args:
        shape: shape of the model.
        setup: training setup; its `slots` are ignored.
        available_bytes: bytes of the device that this process has or can get; a share of `MARGIN` stays free.
    """
    one = estimate_memory(shape, replace(setup, slots=1))
    each = one.kv_cache + one.sampling
    return max(1, (int(available_bytes * (1 - MARGIN)) - (one.rollout - each)) // each)


def activation_bytes(shape: ModelShape, setup: Setup) -> int:
    """Bytes that a forward pass stores for the backward pass.

    With T tokens, width H, A = heads x head_dim, inner width I and c bytes per number in computation, a layer of the
    families around Llama stores: around its norms 4 H in float32 (2 H where the norms are not trained), inputs of the
    linear modules 6 H c under autocast (each casts its own) and 3 H c without, queries, keys, values and outputs of the
    attention 4 A c (keys and values repeated for each head), and of the feed-forward 4 I c. Autocast also keeps a copy
    of the linear weights. With checkpointing each layer stores only its input, and one layer at a time the rest, of
    one pass. The loss never holds the logits of the full batch.
    """
    width, number = shape.width, setup.compute_bytes
    mixed = setup.weight_bytes != number
    norms = 4 * width * (4 if setup.lora_rank is None else 2)
    inputs = number * width * (6 if mixed else 3)
    layer = norms + inputs + 4 * number * (shape.heads * shape.head_dim + shape.feed_forward)
    linear = shape.layers * sum(inputs * outputs for inputs, outputs in shape.projections)
    copies = linear * number if mixed else 0
    if not setup.checkpointing:
        return copies + setup.tokens(setup.micro_batch) * shape.layers * layer
    rows = min(setup.micro_batch, _ROWS_PER_CPU_PASS) if setup.on_cpu else setup.micro_batch
    stored = shape.layers * width * setup.weight_bytes
    return copies + setup.tokens(setup.micro_batch) * stored + setup.tokens(rows) * layer


def distillation_bytes(shape: ModelShape, setup: Setup) -> int:
    """Bytes of the logits that `distillation_placement="loss"` keeps: of policy and teacher, and their gradient.

    In float32, which Accelerate makes of them.
    """
    return 3 * 4 * setup.micro_batch * setup.distilled_tokens * shape.vocabulary


# --- Of a run: concurrent episodes, and the first screen ---

_MAX_IN_FLIGHT = 384
"""Maximum number of concurrent episodes with vLLM, those waiting for a tool included."""


class SlotLimit(NamedTuple):
    """Number of concurrent episodes of a process.

    Attributes:
        max_slots: maximum number, for any batch.
        rows: rollouts of a training batch.
        reason: what limits `max_slots`.
    """

    max_slots: int
    rows: int
    reason: str

    @property
    def number(self) -> int:
        """Number of concurrent rollouts in a training batch."""
        return min(self.max_slots, self.rows)

    def __str__(self) -> str:
        """Number and reason, for the first screen."""
        why = "all of a batch" if self.rows <= self.max_slots else f"of {self.rows} in a batch, {self.reason}"
        return f"{self.number} at a time, {why}"


def plan_slots(trainer: Any) -> SlotLimit:
    """Choose the number of concurrent episodes of a process, see the option `rollout_slots`.

    Args:
        trainer: an `AgentTrainer`.
    """
    args = trainer.args
    rows = int(args.generation_batch_size or 1) // args.world_size
    if args.rollout_slots:
        return SlotLimit(args.rollout_slots, rows, "set by --rollout-slots")
    if args.engine == "vllm":
        return SlotLimit(_MAX_IN_FLIGHT, rows, "more wait (--rollout-slots)")
    available_bytes, shape = memory_for(trainer.accelerator.device), shape_of(trainer)
    if available_bytes is not None and shape is not None:
        fit = slots_that_fit(shape, setup_of(trainer, slots=1), available_bytes=available_bytes)
        if fit < MAX_SLOTS:
            return SlotLimit(
                fit, rows, f"as many as fit in {available_bytes / GIB:.3g} GiB at full length (--rollout-slots)"
            )
    return SlotLimit(MAX_SLOTS, rows, "more wait (--rollout-slots)")


def memory_for(device: torch.device) -> int | None:
    """Bytes of a GPU that this process has or can get; None for a CPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)


def size_of(weight: Tensor) -> int:
    """Number of elements of a weight, whole; one that DeepSpeed ZeRO-3 has sharded would give 0."""
    return int(getattr(weight, "ds_numel", weight.numel()))


def shards_weights(sharding: str | None) -> bool:
    """Whether the processes share the weights among them; under ZeRO-2 each holds them whole.

    Args:
        sharding: see `sharding_of`.
    """
    return str(sharding).startswith(("FSDP", "ZeRO-3"))


def shape_of(trainer: Any) -> ModelShape | None:
    """Shape of the model without its LoRA; None if it is unknown, or if another process holds the KV cache."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if getattr(model, "is_quantized", False) or trainer.args.engine == "vllm":
        return None
    adapters = getattr(model, "peft_config", {})
    if adapters and not isinstance(adapters.get("default"), LoraConfig):
        return None
    sizes = [(size_of(weight), weight.requires_grad) for weight in model.parameters()]
    parameters = sum(size for size, trained in sizes if not (adapters and trained))
    return ModelShape.of(model.config.get_text_config(), parameters)


def setup_of(trainer: Any, *, slots: int) -> Setup:
    """Training setup of a run, for the estimate."""
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    adapter = getattr(model, "peft_config", {}).get("default")
    dtype = rollout_dtype(args, model) or model.dtype
    return Setup(
        lora_rank=None if adapter is None else adapter.r,
        weight_bytes=model.dtype.itemsize,
        compute_bytes=dtype.itemsize,
        slots=slots,
        length=_longest_context(trainer, model),
        micro_batch=args.per_device_train_batch_size,
        shared_prompt=trainer.longest_prompt or 0 if trainer.packed else 0,
        group=args.num_generations,
        reference=bool(args.beta),
        teacher_bytes=0 if trainer.teacher is None else sum(weight.nbytes for weight in trainer.teacher.parameters()),
        distilled_tokens=args.max_completion_length if args.distils_in_loss else 0,
        critic=trainer.critic is not None,
        checkpointing=args.gradient_checkpointing,
        processes=args.world_size,
        shards=args.world_size if shards_weights(trainer.sharding) else 1,
        on_cpu=trainer.accelerator.device.type == "cpu",
    )


def memory_of(trainer: Any) -> str:
    """Estimated memory per device, for the first screen; "" if the model's shape is unknown."""
    estimate = estimate_of(trainer)
    if estimate is None:
        return ""
    return format_estimate(estimate, _longest_context(trainer, trainer.accelerator.unwrap_model(trainer.model)))


def estimate_of(trainer: Any) -> Estimate | None:
    """Estimate the memory of a run; None if the model's shape is unknown."""
    shape = shape_of(trainer)
    return None if shape is None else estimate_memory(shape, setup_of(trainer, slots=trainer.slots.number))


def _longest_context(trainer: Any, model: Any) -> int:
    """Maximum number of tokens of a context, with the longest of the prompts that were measured."""
    longest, prompt = max_context_length(trainer.args, model), trainer.longest_prompt
    return longest if prompt is None else min(longest, prompt + trainer.args.max_completion_length)


def max_context_length(args: Any, model: Any) -> int:
    """Maximum number of tokens of a context: by the token limits, or by the model's positions."""
    budget: int = args.max_prompt_length + args.max_completion_length
    return min(budget, getattr(model.config.get_text_config(), "max_position_embeddings", budget))


# --- When a CPU's memory becomes short ---


class HeapGuard(TrainerCallback):
    """Make the C library return freed memory once a CPU has little left, and not before, since it costs time.

    Args:
        estimate: returns the estimated peak of this process, in bytes; None: unknown.
    """

    def __init__(self, estimate: Callable[[], int | None] = lambda: None) -> None:
        self._estimate = estimate
        self.returns_blocks = False

    def on_train_begin(self, args: Any, *_arguments: Any, **_others: Any) -> None:
        """Compare free memory with the estimate."""
        self._check(args, lambda: _FRAGMENTED * (self._estimate() or 0))

    def on_step_end(self, args: Any, *_arguments: Any, **_others: Any) -> None:
        """Compare free memory with what this process has occupied."""
        self._check(args, lambda: _RESERVE * max_resident_bytes())

    def _check(self, args: Any, needed: Callable[[], float]) -> None:
        free = None if self.returns_blocks or args.device.type != "cpu" else free_memory(args.device)
        if free is not None and free < needed():
            self.returns_blocks = True
            return_large_blocks()
            logger.info(
                "%.2g GiB of memory are free: from now on freed blocks go back to the system, which takes more time.",
                free / GIB,
            )


# --- A trial of the largest update ---


class MemoryCheck(TrainerCallback):
    """Try the largest update before the first rollout, so that a lack of memory shows in the first minute.

    Computes loss and gradient of one micro-batch of full-length rollouts and drops them. Weights, optimiser, random
    state and logs stay unchanged. The memory that AdamW allocates in its first step is reserved meanwhile. Not covered:
    a critic's update, rollouts of several contexts, what a teacher reads beyond them, and DeepSpeed, whose backward
    pass also steps.

    Args:
        trainer: an `AgentTrainer`.

    Attributes:
        peak: peak bytes of the GPU; None: not tried yet, or on a CPU.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.peak: int | None = None

    def on_train_begin(self, *_arguments: Any, **_others: Any) -> None:
        """Run the trial.

        Raises:
            ConfigurationError: the update does not fit; the message names the options to lower.
        """
        trainer = self._trainer
        accelerator, args, device = trainer.accelerator, trainer.args, trainer.accelerator.device
        if accelerator.distributed_type == DistributedType.DEEPSPEED:
            return
        cuda = device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
        inputs = max_size_inputs(trainer)
        rows, tokens = len(inputs["prompt_ids"]), inputs["prompt_ids"].size(1) + inputs["completion_ids"].size(1)
        try:
            reserved = torch.empty(optimizer_bytes_to_come(trainer) if cuda else 0, dtype=torch.uint8, device=device)
            run_trial_update(trainer, inputs)
            del reserved
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            trainer.model.zero_grad(set_to_none=True)
            raise ConfigurationError(
                f"The largest update, {rows} rollouts of {tokens:,} tokens in one pass, does not fit this device: "
                f"lower per_device_train_batch_size={args.per_device_train_batch_size} (and raise "
                f"gradient_accumulation_steps={args.gradient_accumulation_steps} by the same factor), "
                f"max_completion_length={args.max_completion_length} or the length of the prompts, or set "
                f"gradient_checkpointing=True. (memory_check=False skips this check.) {error}"
            ) from error
        if cuda:
            self.peak = torch.cuda.max_memory_allocated(device)
            torch.cuda.empty_cache()
            if accelerator.is_main_process:
                total = torch.cuda.get_device_properties(device).total_memory / GIB
                used = f"{self.peak / GIB:.3g} of {total:.3g} GiB"
                print_line(f"largest update ({rows} rollouts of {tokens:,} tokens): {used}")


def max_size_inputs(trainer: Any) -> dict[str, Tensor]:
    """Make the inputs of TRL's loss for rollouts of full length with all completion tokens in the loss.

    Prompts are as long as the longest that was measured, or as `max_prompt_length` allows where none was.
    """
    args, device = trainer.args, trainer.accelerator.device
    config = trainer.model.config.get_text_config()
    longest = getattr(config, "max_position_embeddings", args.max_prompt_length + args.max_completion_length)
    rows, scored = args.per_device_train_batch_size, min(args.max_completion_length, longest - 1)
    prompt = min(trainer.longest_prompt or args.max_prompt_length, longest - scored)
    # Different prompts: a prompt that rollouts share would be laid out only once.
    ids = torch.arange(rows, device=device)[:, None] % config.vocab_size
    completion = ids.repeat(1, scored)
    ones = torch.ones(rows, scored, device=device)
    nothing = torch.zeros(rows, 1, dtype=torch.long, device=device)
    teacher = {"teacher_ids": nothing, "teacher_lengths": nothing[:, 0], "distilled": torch.ones_like(nothing[:, 0])}
    return {
        **(teacher if args.distils_in_loss else {}),
        "prompt_ids": ids.repeat(1, prompt),
        "prompt_mask": torch.ones(rows, prompt, dtype=torch.long, device=device),
        "completion_ids": completion,
        "completion_mask": torch.ones_like(completion),
        "tool_mask": torch.ones_like(completion),
        "advantages": ones,
        "ref_per_token_logps": torch.zeros_like(ones),
        "importance_sampling_ratio": torch.ones_like(ones),
        "num_items_in_batch": ones.sum(),
    }


def run_trial_update(trainer: Any, inputs: dict[str, Any]) -> None:
    """Compute loss and gradients, and restore the state of the trainer."""
    device = trainer.accelerator.device
    training = trainer.model.training
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        trl_internals.preserve_trainer_state(trainer),
    ):
        trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
        trainer.model.train()
        try:
            loss = trainer.compute_loss(trainer.model_wrapped, inputs)
            trainer.accelerator.backward(loss)
        finally:
            trainer.model.train(training)
    trainer.model.zero_grad(set_to_none=True)


def optimizer_bytes_to_come(trainer: Any) -> int:
    """Bytes that torch's AdamW allocates in its first step; 0 afterwards, and for other optimisers."""
    if trainer.optimizer is None or trainer.optimizer.state or not trainer.args.optim.value.startswith("adamw_torch"):
        return 0
    trained = [weight for group in trainer.optimizer.param_groups for weight in group["params"]]
    local = [weight.to_local() if hasattr(weight, "to_local") else weight for weight in trained]
    return ADAM_STATES * sum(int(weight.nbytes) for weight in local)


# --- The table of docs/gpus.md ---


def table(setups: dict[str, Setup]) -> str:
    """Format estimates for `QWEN25` as a Markdown table: one row per model and setup, in GiB."""
    names = [*(field.name for field in fields(Estimate) if field.name != "process"), "peak"]
    lines = [f"| model | setup | {' | '.join(names)} |", "| --- | --- |" + " ---: |" * len(names)]
    for model, shape in QWEN25.items():
        for title, setup in setups.items():
            parts = estimate_memory(shape, setup)
            cells = " | ".join(f"{getattr(parts, name) / GIB:.1f}" for name in names)
            lines.append(f"| {model} | {title} | {cells} |")
    return "\n".join(lines)


_EXAMPLE = Setup(slots=80, length=8192, micro_batch=5)
DOCS_SETUPS = {
    "LoRA 16, bf16": replace(_EXAMPLE, lora_rank=16, weight_bytes=2),
    "full, 1 GPU, no KL": replace(_EXAMPLE, reference=False),
    "full, 4 GPUs sharded": replace(_EXAMPLE, shards=4),
    "full, 8 GPUs sharded": replace(_EXAMPLE, shards=8),
}
"""Setups of the table in docs/gpus.md, with the sizes of examples/hotpotqa_grpo.yaml."""

if __name__ == "__main__":
    print(table(DOCS_SETUPS))
