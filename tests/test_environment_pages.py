"""The generated pages of environments: with tools, of a game, and of a game whose library is missing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("environment_pages", ROOT / "docs" / "environment_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_game_is_played_by_its_oracle_and_at_random(pages: ModuleType) -> None:
    page = pages.page("AgentR1/FrozenLakeText-v0")
    assert 'env = gym.make("AgentR1/FrozenLakeText-v0")' in page
    assert "| oracle (ceiling) | 1.00 | 6.00 |" in page
    assert "| random (floor) | 0.0" in page
    assert "## An episode of the policy oracle" in page
    assert page.count("[assistant]") == 6


def test_a_game_whose_library_is_missing_has_its_specification(
    pages: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages.importlib.util, "find_spec", lambda name: None)
    page = pages.page("AgentR1/TextWorld-v0")
    assert page.startswith("# TextWorld-v0\n\nTextWorld: quests")
    assert "pip install textworld" in page
    assert "## Floor and ceiling" not in page
