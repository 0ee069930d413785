"""What the trainer's tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh tiny model with its tokenizer, on disk; not to be written to."""
    from trainers.toy.model import build_model, build_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    build_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
