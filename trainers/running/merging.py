"""Where a run starts: a model, or a warm start, whose adapter and base model become one model first."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from accelerate import PartialState  # type: ignore[import-untyped]
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_r1_gym.cli.agents import weights_fingerprint
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.files import atomic_directory
from trainers.engines.chat_format import FILE, TEMPLATE_FILE, home_of

ADAPTER = "adapter_config.json"
_BESIDE = (FILE, TEMPLATE_FILE)
_ORIGIN = "merged_from.txt"
"""Fingerprint of the adapter that a merged model was made of."""


def model_to_train(warm_start: str | None, model: str | None) -> str | None:
    """Returns what to train: the given model, or that of the warm start, merged by the first process if need be.

    Raises:
        ConfigurationError: both are given, or there is no such warm start.
    """
    if warm_start is None:
        return model
    if model is not None:
        raise ConfigurationError(f"Give warm_start={warm_start!r} or model_name_or_path={model!r}, not both.")
    folder = Path(warm_start)
    if not folder.is_dir():
        raise ConfigurationError(f"warm_start={warm_start!r}: no such folder; expected one of `agent-r1 sft`.")
    if not is_adapter(folder):
        return str(folder)
    merged = folder / "merged"
    with PartialState().main_process_first():
        if not _is_merged(folder, merged):
            merge_adapter(folder, merged)
    return str(merged)


def is_adapter(folder: Path) -> bool:
    """Returns whether a folder holds an adapter without its base model."""
    return (folder / ADAPTER).is_file()


def _is_merged(folder: Path, merged: Path) -> bool:
    """Returns whether a merged model is that of the adapter as it is now."""
    origin = merged / _ORIGIN
    return origin.is_file() and origin.read_text(encoding="utf-8") == str(weights_fingerprint(folder))


def merge_adapter(folder: Path, out: Path) -> None:
    """Writes the model of an adapter and its base, with tokenizer and chat format, whole or not at all.

    Args:
        folder: of the adapter.
        out: of the model; what stands there is replaced.

    Raises:
        ConfigurationError: the base model or the adapter cannot be loaded.
    """
    adapter = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
    base = adapter.get("base_model_name_or_path")
    try:
        model = AutoModelForCausalLM.from_pretrained(base, revision=adapter.get("revision") or "main", dtype="auto")
        merged = PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
        tokenizer = AutoTokenizer.from_pretrained(home_of(folder, "tokenizer_config.json"))
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise ConfigurationError(f"The adapter in {folder} cannot be merged into {base!r}: {error}") from error
    with atomic_directory(out) as temporary:
        merged.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        (temporary / _ORIGIN).write_text(str(weights_fingerprint(folder)), encoding="utf-8")
        for name in _BESIDE:
            file = Path(home_of(folder, name)) / name
            if file.is_file():
                shutil.copy(file, temporary / name)
