"""The reference model of the KL term, where the policy comes as a model and not as a path."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peft import PeftModel
from trl.trainer import grpo_trainer


@contextmanager
def reference_copied_from(model: Any) -> Iterator[None]:
    """Makes TRL's reference model a copy of `model`; nothing is changed where that is a path, an adapter, or None.

    TRL would load it from the path in the model's configuration, whatever has become of the weights since.
    """
    if model is None or isinstance(model, str | PeftModel):
        yield
        return
    trl: Any = grpo_trainer
    load, reference = trl.create_model_from_path, copy.deepcopy(model).eval()
    trl.create_model_from_path = lambda *_path, **_options: reference
    try:
        yield
    finally:
        trl.create_model_from_path = load
