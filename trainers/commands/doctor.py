"""`agent-r1 doctor --model M`: what a model can do on this machine, before an hour goes into finding out.

Everything is read from its files and configuration, except for the speed, which is measured for a few seconds on the
engine that evaluations and rollouts use.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from trl.chat_template_utils import supports_tool_calling

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.model_folder import read_adapter
from agent_r1_gym.run.token_session import NextTokens
from trainers.config.hardware import cpu_has_bf16, cpu_prefers_bf16, free_memory, gpu_has_bf16
from trainers.monitoring.memory import GIB, ModelShape, Setup, estimate_memory
from trainers.monitoring.preflight import ModelSource, check_model
from trainers.rollouts.chat_format import ChatFormat, resolve_model_path
from trainers.rollouts.gguf import convert_gguf
from trainers.rollouts.local_model import LocalOptions, is_adapter, load_chat, load_model
from trainers.rollouts.request_engine import SamplingOptions
from trainers.rollouts.slot_engine import SlotEngine

_SECONDS = 3.0
"""Seconds of decoding to measure."""
_EPISODES, _PROMPT = 8, 128
"""Episodes that decode side by side while the speed is measured, and tokens of their prompts."""
_SMALL = 1_000_000_000
"""Parameters up to which all weights are trained if they fit; above, an adapter is the better start."""
_LORA_RANK = 16
_STEP_SECONDS = 120.0
"""Seconds that a step may take with the suggested options, where sizes can make it so."""
_SHARE = 0.8
"""Share of the free memory that suggested options may fill."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured tokens per second: of prompts that are read, and of turns that are sampled."""

    reading: float
    decoding: float


def examine_model(name: str) -> dict[str, str]:
    """Examine a model; returns what was found, by what it is about, in the order to print it.

    Args:
        name: folder, GGUF file or hub id of a model or adapter, whose files have no fault.

    Raises:
        ConfigurationError: it cannot be loaded, or its chat template cannot be used.
    """
    folder = convert_gguf(name)
    dtype, precision = _precision()
    local = LocalOptions(model=folder, dtype=dtype)
    chat = load_chat(local)
    model, tokenizer = load_model(local)
    rank = (read_adapter(Path(folder)).get("r") or _LORA_RANK) if is_adapter(Path(folder)) else None
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    speed = measure_speed(model)
    return {
        "model": _describe(model) + (f"; converted from {name} into {folder}" if folder != name else ""),
        "training": _trainable(str(resolve_model_path(folder, "config.json")), tokenizer, adapter=rank is not None),
        "chat template": _template(chat),
        "tool format": _tools(chat),
        "turn ends at": ", ".join(repr(tokenizer.convert_ids_to_tokens(stop)) for stop in chat.stop_ids),
        "context length": "not in its configuration" if positions is None else f"{positions:,} tokens",
        "precision": precision,
        "speed": f"{_EPISODES} episodes at a time, {dtype}: {speed.decoding:,.0f} tokens/s sampled, "
        f"{speed.reading:,.0f} tokens/s of prompts read",
        **_memory_and_options(
            name, model, speed, positions or 8192, native=supports_tool_calling(tokenizer), adapter_rank=rank
        ),
    }


def _describe(model: Any) -> str:
    config, parameters = model.config.get_text_config(), _base_parameters(model)
    size = f"{parameters / 1e9:.1f} billion" if parameters >= 1e9 else f"{parameters / 1e6:.0f} million"
    return f"{type(model).__name__}, {size} parameters, {config.num_hidden_layers} layers"


def _base_parameters(model: Any) -> int:
    """Count the parameters of a model without those of its LoRA adapter."""
    return sum(weight.numel() for name, weight in model.named_parameters() if ".lora_" not in name)


def _trainable(model: str, tokenizer: Any, *, adapter: bool) -> str:
    """Return whether a model, or the base model of an adapter, can be trained."""
    try:
        check_model(ModelSource(model), tokenizer)
    except ConfigurationError as error:
        return f"not possible: {error}"
    return f"possible: --warm-start merges the adapter into {model}, and trains a new one" if adapter else "possible"


def _template(chat: ChatFormat) -> str:
    template = chat.template
    notes = [template.note] if template.note else []
    if template.system_role != "system":
        notes.append("the system prompt becomes the head of the first user turn")
    if template.tool_role != "tool":
        notes.append("tool output becomes user turns")
    if template.source != chat.tokenizer.chat_template:
        notes.append("TRL's variant, which keeps earlier turns, replaces the model's")
    verdict = "exact (a history is rendered as the model saw it)" if template.render_mode == "exact" else "rewritten"
    return "; ".join([verdict, *notes])


def _tools(chat: ChatFormat) -> str:
    if supports_tool_calling(chat.tokenizer):
        return "the chat template has a format for tools (parser=native); parser=hermes writes calls as text"
    return "the chat template has none: calls are text (parser=hermes); show worked examples (shots=2)"


def _precision() -> tuple[str, str]:
    """Return the type to compute in, and why."""
    if torch.cuda.is_available():
        if gpu_has_bf16():
            return "bfloat16", "bfloat16, which this GPU has"
        return "float32", "float32: no bfloat16 on this GPU"
    if cpu_prefers_bf16():
        return "bfloat16", "bfloat16, in which this CPU multiplies matrices faster than in float32"
    if cpu_has_bf16():
        return "float32", "float32: this CPU has instructions for bfloat16, but multiplies matrices no faster with them"
    return "float32", "float32: this CPU has no instructions for bfloat16"


class FixedTurn:
    """A session of one turn, which never ends early."""

    def __init__(self, prompt: Sequence[int], seed: int) -> None:
        self.prompt_ids, self.seed = list(prompt), seed

    def finish_turn(self, ids: Sequence[int], logprobs: Sequence[float], stopped: bool) -> NextTokens:
        """End the episode."""
        return None


def measure_speed(model: Any, *, seconds: float = _SECONDS, episodes: int = _EPISODES) -> Speed:
    """Measure how fast the engine reads prompts of random tokens and samples turns.

    Args:
        model: a causal language model.
        seconds: about how long the measured decoding may take.
        episodes: number of episodes side by side.
    """
    vocabulary = model.config.get_text_config().vocab_size
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(vocabulary, (episodes, _PROMPT), generator=generator).tolist()

    def play(tokens: int) -> float:
        engine = SlotEngine(
            model, SamplingOptions(max_new_tokens=tokens), slots=episodes, max_length=_PROMPT + tokens + 1
        )
        began = time.perf_counter()
        sessions: Any = (FixedTurn(prompt, seed) for seed, prompt in enumerate(prompts))
        engine.run(sessions)
        return time.perf_counter() - began

    play(2)  # kernels are chosen and memory is allocated at the first pass
    reading, short = play(1), play(9)
    per_token = max(short - reading, 1e-6) / 8
    tokens = max(8, min(256, int(seconds / per_token)))
    return Speed(episodes * _PROMPT / reading, episodes * tokens / max(play(1 + tokens) - reading, 1e-6))


def _memory_and_options(
    name: str, model: Any, speed: Speed, positions: int, *, native: bool, adapter_rank: int | None
) -> dict[str, str]:
    """Return the estimated memory of training with the options that fit this machine, and a command with them.

    Args:
        name: folder, file or hub id of the model, or folder of an adapter.
        model: the loaded model.
        speed: measured on it.
        positions: maximum number of tokens of a context.
        native: whether its chat template has a tool format.
        adapter_rank: rank of the adapter, which a warm start gives to the new one; None: it is a whole model.
    """
    parameters = _base_parameters(model)
    shape = ModelShape.of(model.config.get_text_config(), parameters)
    gpu = torch.cuda.is_available()
    free = free_memory(torch.device("cuda" if gpu else "cpu"))
    turn, completion = (512, 2048) if gpu else (128, 512)
    completion = min(completion, positions // 2)
    turn = min(turn, completion // 2)
    prompts = "--option parser=native" if native else "--option tool_style=signature --option shots=2"
    start_from = "--model" if adapter_rank is None else "--warm-start"
    base = f"agent-r1 train ENV {start_from} {shlex.quote(name)} {prompts} --out runs/grpo"
    if shape is None:
        budgets = f"--max-turn-tokens {turn} --max-completion-length {completion}"
        lora = f" --lora-r {_LORA_RANK}" if adapter_rank is None else ""
        return {"memory": "not estimated for this architecture", "suggested": f"{base}{lora} {budgets}"}
    prompt = min(512, positions - completion)
    start = Setup(
        lora_rank=adapter_rank or (None if parameters <= _SMALL else _LORA_RANK),
        weight_bytes=4 if parameters <= _SMALL else 2,
        compute_bytes=2 if _precision()[0] == "bfloat16" else 4,
        slots=64,
        length=prompt + completion,
        micro_batch=16,
        reference=False,
        checkpointing=False,
        on_cpu=not gpu,
    )
    setup = _fitting(shape, start, free)
    setup, step = _fast_enough(setup, speed, prompt=prompt)
    completion = setup.length - prompt
    budgets = f"--max-turn-tokens {min(turn, completion // 2)} --max-completion-length {completion}"
    estimate = estimate_memory(shape, setup)
    new_adapter = setup.lora_rank is not None and adapter_rank is None  # a warm start keeps the shape of the old one
    options = [
        *(["--lora-r", f"{setup.lora_rank}", "--lora-target-modules", "all-linear"] if new_adapter else []),
        *("--num-generations", "8"),
        *("--per-device-train-batch-size", f"{setup.micro_batch}"),
        *("--gradient-accumulation-steps", f"{setup.slots // setup.micro_batch}"),
        *(["--gradient-checkpointing", "True"] if setup.checkpointing else []),
    ]
    trained = f"an adapter of rank {setup.lora_rank}" if setup.lora_rank else "all weights"
    return {
        "memory": f"rollouts {estimate.rollout / GIB:.1f} GiB, update {estimate.update / GIB:.1f} GiB (estimated: "
        f"{trained}, {setup.slots} rollouts of at most {setup.length} tokens, {setup.micro_batch} in a pass"
        + (")" if free is None else f"); {free / GIB:.1f} GiB are free"),
        "a step": f"about {step:,.0f} s for these, if half of the budget is used",
        "suggested": f"{base} {' '.join(options)} {budgets}",
    }


def _fast_enough(setup: Setup, speed: Speed, *, prompt: int) -> tuple[Setup, float]:
    """Return a setup whose step takes minutes at most, with smaller batches and budgets; and the seconds of a step."""

    def seconds(one: Setup) -> float:
        sampled = one.slots * (one.length - prompt) / 2  # episodes use half of their budget, say
        # Backward costs twice as much as forward.
        return sampled / speed.decoding + 3 * (one.slots * prompt + sampled) / speed.reading

    while seconds(setup) > _STEP_SECONDS and setup.slots > 16:
        setup = replace(setup, slots=setup.slots // 2, micro_batch=min(setup.micro_batch, setup.slots // 2))
    while seconds(setup) > _STEP_SECONDS and setup.length - prompt > 128:
        setup = replace(setup, length=prompt + (setup.length - prompt) // 2)
    return setup, seconds(setup)


def _fitting(shape: ModelShape, setup: Setup, free: int | None) -> Setup:
    """Return a setup that fits the free memory: smaller passes first, then an adapter, then checkpointing."""
    passes = [replace(setup, micro_batch=size) for size in (16, 8)]
    adapter = replace(setup, lora_rank=setup.lora_rank or _LORA_RANK, weight_bytes=2 if setup.compute_bytes == 2 else 4)
    candidates = [*passes, *(replace(adapter, micro_batch=size) for size in (16, 8))]
    candidates += [replace(candidate, checkpointing=True) for candidate in candidates]
    last = replace(adapter, micro_batch=8, checkpointing=True, slots=16)
    if free is None:
        return candidates[0]
    return next((one for one in candidates if estimate_memory(shape, one).peak <= _SHARE * free), last)
