"""Merging: an adapter and its base model become one model of its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.files import atomic_directory
from trainers.engines.chat_format import FILE, TEMPLATE_FILE, home_of

ADAPTER = "adapter_config.json"
_BESIDE = (FILE, TEMPLATE_FILE)


def is_adapter(folder: Path) -> bool:
    """Returns whether a folder holds an adapter without its base model."""
    return (folder / ADAPTER).is_file()


def merge_adapter(folder: Path, out: Path) -> None:
    """Writes the model of an adapter and its base, with tokenizer and chat format, whole or not at all.

    Args:
        folder: of the adapter.
        out: of the model; it must not exist.

    Raises:
        ConfigurationError: the base model or the adapter cannot be loaded.
    """
    base = json.loads((folder / ADAPTER).read_text(encoding="utf-8")).get("base_model_name_or_path")
    try:
        model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
        merged = PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
        tokenizer = AutoTokenizer.from_pretrained(home_of(folder, "tokenizer_config.json"))
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        raise ConfigurationError(f"The adapter in {folder} cannot be merged into {base!r}: {error}") from error
    with atomic_directory(out) as temporary:
        merged.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for name in _BESIDE:
            file = Path(home_of(folder, name)) / name
            if file.is_file():
                shutil.copy(file, temporary / name)
