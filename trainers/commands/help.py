"""`train --help` and `sft --help`: options in groups, with the most used ones of TRL, without loading it."""

from __future__ import annotations

import argparse
import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.env_options import add_env_options
from agent_r1_gym.run.evaluation.agent_card import FILE
from trainers.config.options import (
    OPTION_GROUPS,
    AlgorithmOptions,
    DemonstrationOptions,
    EnvironmentOptions,
    LoggingOptions,
    ModelOptions,
    Preset,
    RolloutOptions,
    TRLOptions,
    constraints,
)

USAGE = "agent-r1 train ENV --model MODEL --out DIR [options]"
OF_TRL: Mapping[type, Mapping[str, tuple[Any, str]]] = MappingProxyType(
    {
        ModelOptions: {
            "model_name_or_path": (None, "Model to train: a hub id or a folder; short: --model"),
            "dtype": ("float32", "Data type of the loaded weights: float32, bfloat16, float16 or auto"),
            "lora_r": (16, "Rank of the adapter (LoRA); any LoRA option trains an adapter instead of all weights"),
            "lora_alpha": (32, "Scale of the adapter is this / lora_r"),
            "lora_target_modules": (None, "Modules with an adapter, such as all-linear"),
            "load_in_4bit": (False, "Quantise the frozen model below an adapter"),
        },
        RolloutOptions: {
            "gradient_accumulation_steps": (1, "Passes per optimiser step: x the batch size = rollouts of a step"),
            "temperature": (1.0, "Sampling temperature"),
        },
        AlgorithmOptions: {
            "lr_scheduler_type": ("linear", "linear (falls to 0), constant, cosine, constant_with_warmup, ..."),
            "warmup_steps": (0, "Steps in which the learning rate rises; below 1 a share of all"),
            "max_steps": (-1, "Number of optimiser steps; -1: num_train_epochs decides"),
            "num_train_epochs": (3.0, "Passes over the tasks"),
            "num_iterations": (1, "Passes over each batch of rollouts"),
            "seed": (42, "Seed of all random generators"),
            "bf16": (
                None,
                "Compute in bfloat16; None: if the GPU supports it, or the CPU and the model is not tiny",
            ),
            "use_cpu": (False, "Train on the CPU, even if there is a GPU"),
        },
        LoggingOptions: {
            "report_to": ("none", "Log to tensorboard, wandb or trackio as well"),
            "eval_strategy": ("no", "Evaluate during training: no, steps (with eval_steps) or epoch"),
        },
    }
)
"""TRL's options by group: default and help text. A test compares the defaults with TRL's."""
_CHANGED: Mapping[type, Sequence[str]] = MappingProxyType(
    {
        ModelOptions: ("gradient_checkpointing",),
        RolloutOptions: ("num_generations", "per_device_train_batch_size", "max_completion_length"),
        AlgorithmOptions: (
            "learning_rate",
            *("scale_rewards", "beta", "use_bias_correction_kl", "loss_type", "epsilon", "epsilon_high"),
            *("importance_sampling_level", "mask_truncated_completions"),
        ),
        LoggingOptions: ("logging_steps", "num_generations_eval"),
    }
)
"""TRL's options whose default differs here, by group."""
CHECKPOINT_OPTIONS: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "output_dir": (None, "Folder of the run: model, log, checkpoints, traces; --out for short"),
        "save_strategy": ("steps", "When to save checkpoints: steps, epoch or no"),
        "save_steps": (500, "Optimiser steps between two checkpoints; below 1 a share of all"),
        "save_total_limit": (None, "Checkpoints to keep; None: all"),
        "resume_from_checkpoint": (None, "Checkpoint to resume from; True: the last complete one in output_dir"),
    }
)
_MODELS = ("model", "model_name_or_path", "warm_start")
SFT_USAGE = "agent-r1 sft ENV --model MODEL --from SOURCE --out DIR [options]"
SFT_OF_TRL: Mapping[str, tuple[Any, str]] = MappingProxyType(
    {
        "per_device_train_batch_size": (8, "Rows in one pass of one device"),
        "gradient_accumulation_steps": (1, "Passes per optimiser step: x the batch size = rows of a step"),
        "num_train_epochs": (3.0, "Passes over the rows"),
        "max_steps": (-1, "Number of optimiser steps; -1: num_train_epochs decides"),
        **{name: OF_TRL[AlgorithmOptions][name] for name in ("lr_scheduler_type", "warmup_steps", "seed")},
        **{name: OF_TRL[AlgorithmOptions][name] for name in ("bf16", "use_cpu")},
    }
)
"""TRL's options of `sft`: default and help text. A test compares the defaults with TRL's."""
_SFT_GROUPS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "Environment": ("env_id", "env_kwargs", "envs"),
        "Demonstrations": (
            *("source", "episodes", "shuffle_tasks", "samples", "min_return", "keep_failed_calls"),
            *("sampling_temperature", "max_turn_tokens", "max_length"),
        ),
        "Model, and what of it is trained": ("chat_template", "gradient_checkpointing"),
        "Training": ("learning_rate", "logging_steps", "report_to"),
    }
)
_SHORT_NAMES = MappingProxyType({"source": "from"})
_WIDTH, _TEXT_COLUMN = 119, 33


def help_text() -> str:
    """Text of `train --help`, about 120 lines."""
    lines = [
        f"usage: {USAGE}",
        "Train an agent by reinforcement learning.",
        "On several devices: accelerate launch -m trainers.commands.train ENV ...",
        "All options may be set in a YAML file (--config FILE). --help-all has 200 more, of TRL and transformers, and",
        "all texts in full. In brackets: the default; preset: set by the algorithm.",
    ]
    for group in OPTION_GROUPS:
        lines += ["", f"{str(group.__doc__).rstrip('.')}:"]
        lines += [_line(name, *entry) for name, entry in _of_group(group).items()]
    lines += ["", "Checkpoints:", *(_line(name, *entry) for name, entry in CHECKPOINT_OPTIONS.items())]
    return "\n".join(lines)


def sft_help_text() -> str:
    """Text of `sft --help`."""
    lines = [
        f"usage: {SFT_USAGE}",
        "Train a model on demonstrations, a cold start before reinforcement learning.",
        "On several devices: accelerate launch -m trainers.commands.sft ENV ...",
        "All options may be set in a YAML file (--config FILE). --help-all has 150 more, of TRL and transformers, and",
        "all texts in full. In brackets: the default.",
    ]
    own = {entry.name: _default_and_text(entry) for entry in fields(DemonstrationOptions)}
    for title, names in _SFT_GROUPS.items():
        entries = {_SHORT_NAMES.get(name, name): own[name] for name in names}
        if title == "Environment":
            entries |= _of_environments()
        elif "chat_template" in names:
            entries = {**OF_TRL[ModelOptions], **entries}
        elif "learning_rate" in names:
            entries |= SFT_OF_TRL
        lines += ["", f"{title}:", *(_line(name, *entry) for name, entry in entries.items())]
    lines += ["", "Checkpoints:", *(_line(name, *entry) for name, entry in CHECKPOINT_OPTIONS.items())]
    return "\n".join(lines)


def _of_environments() -> dict[str, tuple[Any, str]]:
    parser = argparse.ArgumentParser(add_help=False)
    add_env_options(parser)
    return {action.option_strings[-1][2:]: (None, _short(str(action.help))) for action in parser._actions}


def _of_group(group: type) -> dict[str, tuple[Any, str]]:
    """Default and short text of each option of a group, its own first."""
    changed = [entry for entry in fields(TRLOptions) if entry.name in _CHANGED.get(group, ())]
    own = {entry.name: _default_and_text(entry) for entry in (*fields(group), *changed)}
    if group is EnvironmentOptions:
        return own | _of_environments()
    of_trl = OF_TRL.get(group, {})
    return {**of_trl, **own} if group is ModelOptions else {**own, **of_trl}


def _default_and_text(option: Field[Any]) -> tuple[Any, str]:
    preset = constraints(Preset).get(option.name)
    if preset is None:
        return option.default, _short(str(option.metadata["help"]))
    return f"preset, else {preset.value}", _short(str(option.metadata["help"]).removesuffix(" Preset."))


def _short(text: str) -> str:
    """First sentence of a help text, up to a semicolon."""
    return re.split(r"; |\. ", text)[0].rstrip(".")


def _line(name: str, default: Any, text: str) -> str:
    shown = text if default is None else f"{text} [{default}]"
    wrapped = textwrap.wrap(shown, _WIDTH - _TEXT_COLUMN, subsequent_indent="  ")
    return "\n".join(
        [
            f"  --{name.replace('_', '-')} ".ljust(_TEXT_COLUMN) + wrapped[0],
            *(" " * _TEXT_COLUMN + line for line in wrapped[1:]),
        ]
    )


def check_required_args(argv: Sequence[str]) -> None:
    """Reject a command line without environment or model, before heavy libraries are loaded.

    Raises:
        ConfigurationError: one of them is missing.
    """
    names = {word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    if names & {"config", "help_all"}:
        return
    missing = []
    if not names & {"env", "env_id", "envs"} and not (argv and not argv[0].startswith("-")) and not _has_card(argv):
        missing.append("an environment (ENV, such as HotpotQA)")
    if not names & {"model", "model_name_or_path", "warm_start"}:
        missing.append("a model (--model, such as Qwen/Qwen2.5-3B-Instruct)")
    if missing:
        raise ConfigurationError(f"Name {' and '.join(missing)}: {USAGE}. See --help.")


def _has_card(argv: Sequence[str]) -> bool:
    """Return whether the model or warm start of a command line has a card, which names its environment."""
    words = [part for word in argv for part in word.split("=", 1)]
    named = (after for word, after in itertools.pairwise(words) if word.lstrip("-").replace("-", "_") in _MODELS)
    return any((Path(folder) / FILE).is_file() for folder in named)
