"""The model that all cells of an experiment start from, taught by demonstrations once and kept beside the cells."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from agent_r1_gym.support.files import atomic_directory, locked
from agent_r1_gym.support.terminal import say
from benchmarks.common.experiment import WarmStart
from benchmarks.common.measure import provenance
from trainers.toy.model import build_model, build_tokenizer
from trainers.toy.quickstart import SHIPPED, load
from trainers.toy.warm_start import warm_start

_LONGEST = 6 * 3600.0


def start_folder(start: WarmStart | None, folder: Path, *, command: Sequence[str]) -> Path:
    """Returns the folder of model and tokenizer; makes them in `folder` if they are not there.

    Other settings make another folder, so that no cell starts from a model that was taught differently. Other code does
    not: remove the folder after a change to how models are taught.

    Args:
        start: says how it is taught; None: it is the one that comes with the package.
        folder: folder of the cells.
        command: what runs the cells, kept beside the model.
    """
    if start is None:
        return SHIPPED
    path = folder / f"start-{blake2b(repr(start).encode(), digest_size=4).hexdigest()}"
    with locked(path, timeout=_LONGEST):
        if not path.exists():
            say(f"warm start of {start.size} parameters, kept in {path}")
            with atomic_directory(path) as temporary:
                _teach(start, temporary, command)
    return path


def load_start(folder: Path) -> Any:
    """Returns the model in `folder`, in float32, on the GPU if there is one (its products in TF32 then)."""
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
    return _placed(load(folder)).eval()


def _placed(model: Any) -> Any:
    return model.to("cuda" if torch.cuda.is_available() else "cpu")


def _teach(start: WarmStart, folder: Path, command: Sequence[str]) -> None:
    tokenizer = build_tokenizer()
    model = _placed(build_model(tokenizer, size=start.size))
    log = warm_start(model, tokenizer, **start.options)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = {"start": repr(start), "log": log} | provenance(command)
    (folder / "start.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
