"""What the trainer's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Initial weights that no seed of the test's own covers are the same in each run: a failure can be repeated."""
    torch.manual_seed(0)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tiny matrices, and sums that are the same bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh tiny model with its tokenizer, on disk; not to be written to."""
    from trainers.toy.model import build_model, build_tokenizer

    folder = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    build_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def closed_backends() -> Iterator[None]:
    """Closes what `tests.kit.vllm_servers` leaves."""
    yield
    from tests.kit.vllm_servers import close_all

    close_all()
