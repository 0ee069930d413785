"""Settings for every test: no network, no user data, a home folder of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("AGENT_R1_HOME", str(tmp_path_factory.mktemp("home")))
    patch.setenv("HF_HUB_OFFLINE", "1")
    patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    yield
    patch.undo()


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, so that commands write their runs there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
