"""A model from disk or hub, loaded and wrapped to play episodes: tokenizer, chat format, token limits, engine.

`agent_r1_gym` loads this module through the entry point `local`, for evaluation, serving, export and its adapters. The
trainer does not: it holds its model already, and builds the engine (`slot_engine`) itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_r1_gym.errors import ConfigurationError, suggest
from agent_r1_gym.run.agents import MAX_LENGTH
from agent_r1_gym.run.evaluation.agent_card import ADAPTER_FILE
from agent_r1_gym.run.model_folder import check_inside, read_adapter
from agent_r1_gym.run.token_session import TokenLimits
from agent_r1_gym.support.terminal import still_working
from trainers.config.hardware import MIN_BF16_PARAMETERS, cpu_prefers_bf16, return_large_blocks
from trainers.config.options import MAX_TURN_TOKENS, MAX_TURN_TOKENS_ON_CPU
from trainers.rollouts.chat_format import FILE, TEMPLATE_FILE, resolve_model_path
from trainers.rollouts.chat_format import ChatFormat as ChatFormat  # for adapters, which load this module
from trainers.rollouts.collect import Collector as Collector  # for agent_r1_gym.integrations.trl
from trainers.rollouts.gguf import NO_CODE, convert_gguf
from trainers.rollouts.request_engine import SamplingOptions
from trainers.rollouts.slot_engine import MAX_SLOTS as MAX_SLOTS  # for agent_r1_gym.integrations.trl
from trainers.rollouts.slot_engine import SlotEngine, cast_weights, rollout_dtype

_DTYPES = ("auto", "bfloat16", "float16", "float32")
_UNLOADABLE = (OSError, ValueError, ImportError, RecursionError, UnpicklingError)
"""What loading raises; ImportError where quantised weights need packages of their own."""
_CHAT_FILES = (FILE, TEMPLATE_FILE)


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Which model, and how it decodes.

    Raises:
        ConfigurationError: a device that is not here, or no type of floating-point numbers.
    """

    model: str
    """Folder or hub id of a causal language model or of a LoRA adapter, or a GGUF file."""
    revision: str = "main"
    """Revision of a hub's model."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Smallest set of tokens with at least this probability."""
    max_turn_tokens: int | None = None
    """Maximum number of tokens per turn; None: 1,024, on a CPU, which samples tens of tokens per second, 256."""
    max_length: int | None = None
    """Maximum number of tokens per episode; None: as many as the model takes, at most 8,192."""
    device: str | None = None
    """None: a GPU if there is one, a different one for each process."""
    dtype: str | None = None
    """None: the checkpoint's on a GPU; else float32, or bfloat16 where the CPU has it and the model is not tiny."""
    chat_template: str | None = None
    """File with a chat template, or name of one of TRL's; None: as saved with the model."""
    chat_template_kwargs: Mapping[str, Any] | None = None
    """Options of the chat template; None: as saved with the model."""

    def __post_init__(self) -> None:
        if self.device is not None:
            _check_device(self.device)
        if self.max_turn_tokens is None:
            cpu = self.device == "cpu" or not torch.cuda.is_available()
            object.__setattr__(self, "max_turn_tokens", MAX_TURN_TOKENS_ON_CPU if cpu else MAX_TURN_TOKENS)
        kind = getattr(torch, self.dtype or "float32", None)
        if self.dtype != "auto" and not (isinstance(kind, torch.dtype) and kind.is_floating_point):
            hint = suggest(str(self.dtype), _DTYPES)
            raise ConfigurationError(f"dtype={self.dtype!r} is not a type of floating-point numbers. {hint}")


def _check_device(name: str) -> None:
    """Refuse a device that torch does not know, or does not find; none is set up by looking."""
    try:
        device = torch.device(name)
        there = torch.get_device_module(device).device_count()
    except RuntimeError:  # its message lists devices that are not here
        there = 0
    if there == 0 or (device.index or 0) >= there:
        gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        raise ConfigurationError(f"device={name!r} is not available here; there is: {', '.join(['cpu', *gpus])}.")


class LocalModel(NamedTuple):
    """A model that was loaded in this process, with what plays its episodes.

    Attributes:
        engine: samples the turns of its sessions.
        chat: its chat format.
        limits: token budgets of an episode.
    """

    engine: SlotEngine
    chat: ChatFormat
    limits: TokenLimits


def load_chat(options: LocalOptions) -> ChatFormat:
    """Return the chat format of a model, which needs its tokenizer only.

    Raises:
        ConfigurationError: there is no such model, or its chat template cannot be used.
    """
    return ChatFormat.load(
        convert_gguf(options.model),
        _load_tokenizer(options),
        template=options.chat_template,
        template_options=options.chat_template_kwargs,
        revision=options.revision,
    )


def open_model(options: LocalOptions, *, slots: int, rank: int = 0, chat: ChatFormat | None = None) -> LocalModel:
    """Load a model from disk or hub, and wrap it with what plays its episodes (`wrap_model`).

    Args:
        options: which one, and how it decodes.
        slots: episodes at once.
        rank: number of this process.
        chat: its chat format (`load_chat`); None: it is loaded.

    Raises:
        ConfigurationError: there is no such model, or its chat template cannot be used.
    """
    chat = chat or load_chat(options)  # before the weights: what can be refused is refused at once
    model, tokenizer = load_model(options, rank=rank)
    sampling = {name: getattr(options, name) for name in ("temperature", "top_p")}
    return wrap_model(
        model,
        tokenizer,
        chat=chat,
        sampling={**sampling, "max_new_tokens": options.max_turn_tokens},
        max_length=options.max_length,
        slots=slots,
    )


def wrap_model(
    model: Any,
    tokenizer: Any,
    *,
    sampling: Mapping[str, Any],
    chat: ChatFormat | None = None,
    max_length: int | None = None,
    slots: int = 64,
) -> LocalModel:
    """Wrap a loaded model with what plays its episodes: chat format, token limits, and a `SlotEngine` that samples.

    What a model samples depends on the episode's seed alone, not on its neighbours or their number, but for rounding:
    floating-point sums may differ in the last bit with the size of the batch.

    Args:
        model: a causal language model.
        tokenizer: with a chat template, an end and a padding token.
        sampling: fields of `SamplingOptions`: `max_new_tokens` and what differs from its defaults.
        chat: how messages become tokens; None: by the tokenizer's own template.
        max_length: maximum number of tokens of an episode; None: as many as the model takes, at most 8,192.
        slots: episodes at once.
    """
    chat = chat or ChatFormat(tokenizer)
    room = getattr(model.config.get_text_config(), "max_position_embeddings", MAX_LENGTH)
    length = max_length or min(room, MAX_LENGTH)
    engine = SlotEngine(
        model,
        SamplingOptions(stop_token_ids=chat.stop_ids, **sampling),
        slots=slots,
        max_length=length,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LocalModel(engine, chat, TokenLimits(max_prompt_tokens=length - 1, max_completion_tokens=length))


def rollout_precision(args: Any, model: Any) -> AbstractContextManager[None]:
    """While open, a model that is trained has weights of the type that its rollouts compute in.

    Args:
        args: the training arguments of TRL.
        model: the unwrapped model, its weights whole.
    """
    return cast_weights(rollout_dtype(args, model), model)


def load_model(options: LocalOptions, *, rank: int = 0) -> tuple[Any, Any]:
    """Load model and tokenizer, without an engine; for a LoRA adapter, its base model too.

    Raises:
        ConfigurationError: there is no such model.
    """
    device = options.device or (f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu")
    dtype = options.dtype or ("auto" if device.startswith("cuda") else "float32")
    tokenizer = _load_tokenizer(options)
    try:
        with still_working(f"loading {options.model}"):
            model = AutoModelForCausalLM.from_pretrained(
                convert_gguf(options.model), revision=options.revision, dtype=dtype, **NO_CODE
            )
    except _UNLOADABLE as error:
        raise load_error(options.model, error) from error
    by_default = options.dtype is None and device == "cpu"
    if by_default and model.num_parameters() >= MIN_BF16_PARAMETERS and cpu_prefers_bf16():
        model.to(torch.bfloat16)  # type: ignore[arg-type]  # transformers wraps `to`
    model.to(torch.device(device))  # type: ignore[arg-type]
    model.train(False)
    if device == "cpu" and model.num_parameters() >= MIN_BF16_PARAMETERS:
        return_large_blocks()  # caches of many lengths; decoding makes few large blocks
    return model, tokenizer


def _load_tokenizer(options: LocalOptions) -> Any:
    folder = resolve_model_path(convert_gguf(options.model), "tokenizer_config.json")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, revision=options.revision, **NO_CODE)
    except _UNLOADABLE as error:
        raise load_error(options.model, error) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_error(model: str, error: BaseException, *, part: str = "model") -> ConfigurationError:
    """Return what to raise where transformers does not load a model, or a part of it."""
    if "trust_remote_code" in str(error):
        return ConfigurationError(
            f"{model} comes with code of its own, and only training runs such code: `agent-r1 train` and `sft` with "
            "--trust-remote-code True. For other commands, and for `sft --from self`, use a model that transformers "
            "has the code of."
        )
    return ConfigurationError(f"No {part} can be loaded from {model!r}: {error}")


def is_adapter(folder: Path) -> bool:
    """Whether a folder contains an adapter without its base model."""
    return (folder / ADAPTER_FILE).is_file()


def write_merged(folder: Path, into: Path) -> None:
    """Write the model of an adapter and its base into a folder that is there, with tokenizer and chat format.

    Args:
        folder: of the adapter.
        into: where to.

    Raises:
        ConfigurationError: the base model or the adapter cannot be loaded.
    """
    from peft import PeftModel  # a second that no evaluation should wait for

    adapter = read_adapter(folder)
    base = adapter["base_model_name_or_path"]
    try:
        revision = adapter.get("revision") or "main"
        model = AutoModelForCausalLM.from_pretrained(base, revision=revision, dtype="auto", **NO_CODE)
        merged = PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
        tokenizer = AutoTokenizer.from_pretrained(resolve_model_path(folder, "tokenizer_config.json"), **NO_CODE)
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise ConfigurationError(f"The adapter in {folder} cannot be merged into {base!r}: {error}") from error
    merged.save_pretrained(into)
    tokenizer.save_pretrained(into)
    for name in _CHAT_FILES:
        file = Path(resolve_model_path(folder, name)) / name
        if file.is_file():
            check_inside(file, file.parent)
            shutil.copy(file, into / name)
