"""GGUF: a file of llama.cpp, converted once into an ordinary model folder.

transformers reads GGUF by making plain weights of it. What it loads cannot be saved, resumed or merged as it is, and
reading takes longer than a safetensors file, so the model is written once into the cache of this package, under a name
with a hash of the file's contents, and every command uses that folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.model_folder import find_gguf
from agent_r1_gym.support.files import atomic_directory, home, locked, remove_leftovers
from agent_r1_gym.support.packages import install_command
from agent_r1_gym.support.terminal import print_note, still_working

NO_CODE: Mapping[str, Any] = {"trust_remote_code": False}
"""Argument of `from_pretrained`; without it transformers asks on the standard input, even in a pipe."""
_BLOCKS, _BLOCK = 16, 2**20
"""Blocks of a file that its hash covers, evenly spread, and bytes of each: all of a large file would take a minute."""
_FLOAT32_BYTES = 8 * 2**30
"""Bytes of weights up to which they are kept in float32, which holds every dequantised value exactly."""


def convert_gguf(name: str) -> str:
    """Return the folder to load a model from: `name`, or the converted folder of a GGUF file.

    Raises:
        ConfigurationError: the file is damaged, a part of a split one, or of an architecture that transformers cannot
            read.
    """
    path = find_gguf(name)
    if path is None:
        return name
    folder = home() / "models" / f"{path.stem}-{_content_hash(path)}"
    if folder.is_dir():
        return str(folder)
    if find_spec("gguf") is None:
        raise ConfigurationError(
            f"{path} is a GGUF file, and the package that reads it is missing: pip install gguf, or "
            f"{install_command('train')}."
        )
    with locked(folder):
        if not folder.is_dir():
            remove_leftovers(folder)
            print_note(f"converting {path.name} into {folder}, once")
            with atomic_directory(folder) as temporary, still_working(f"converting {path.name}"):
                _convert(path, temporary)
    return str(folder)


def _content_hash(path: Path) -> str:
    size = path.stat().st_size
    digest = hashlib.sha256(f"{size}\n".encode())
    with path.open("rb") as file:
        for block in range(_BLOCKS):
            file.seek(max(0, size - _BLOCK) * block // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()[:16]


def _convert(path: Path, folder: Path) -> None:
    """Write model and tokenizer of a GGUF file."""
    source, file = str(path.resolve().parent), path.name
    try:
        # The header alone: most faults show here.
        config = AutoConfig.from_pretrained(source, gguf_file=file, **NO_CODE)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=file, **NO_CODE)
        read: Any = AutoModelForCausalLM.from_pretrained(
            source, gguf_file=file, dtype=_dtype(config), output_loading_info=True, **NO_CODE
        )
        model, loaded = read
    except Exception as error:  # the readers raise what their parsing runs into
        raise ConfigurationError(
            f"{path} cannot be converted ({type(error).__name__}: {error!s:.200}). It is damaged, or of an "
            "architecture that transformers does not read from GGUF: use the folder that it was made from."
        ) from error
    # transformers would fill them with random numbers.
    if missing := sorted(loaded["missing_keys"]):
        raise ConfigurationError(
            f"{path} lacks {len(missing)} weights of its model ({', '.join(missing[:3])} ...). It is damaged, or a "
            "part of a split file: download it again, or merge the parts with llama-gguf-split --merge."
        )
    # They would keep `save_pretrained` from writing the weights, which are no longer quantised.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer, model.is_quantized = None, False
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _dtype(config: Any) -> torch.dtype:
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, **NO_CODE)  # type: ignore[no-untyped-call]
    parameters = sum(weight.numel() for weight in model.parameters())
    return torch.float32 if 4 * parameters <= _FLOAT32_BYTES else torch.bfloat16
