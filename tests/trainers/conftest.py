"""The trainer's tests need the train extra; without it they are left out, and the report says so."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

_MISSING = [name for name in ("torch", "transformers", "trl", "peft", "datasets") if not importlib.util.find_spec(name)]

if _MISSING:
    collect_ignore_glob = ["*test_*.py"]


def pytest_report_header() -> str | None:
    return f"trainers: not tested, missing {', '.join(_MISSING)} (the train extra)" if _MISSING else None


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh tiny model with its tokenizer, on disk; not to be written to."""
    from trainers.toy.model import build_model, build_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    build_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
