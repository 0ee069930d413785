"""The generated pages of environments: with tools, of a game, and of a game whose library is missing."""

from __future__ import annotations

from types import ModuleType

import pytest

from agent_r1_gym.core.tool_env import ToolEnv
from tests.kit.environments import TOOL_ENVS, creator
from tests.kit.pages import load_script


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    return load_script("environment_pages")


class OwnTasksEnv(ToolEnv):
    """Makes its own tasks, and has no scripts."""

    fixed_options = ("tasks", "dataset", "fields")


def test_a_page_sets_no_option_that_its_environment_refuses(pages: ModuleType) -> None:
    assert pages.options_of("Mine/OwnTasks-v0", OwnTasksEnv) == {}
    assert pages.options_of("AgentR1/HotpotQA-v0", creator("AgentR1/HotpotQA-v0")) == {"dataset": "sample"}
    for env_id in TOOL_ENVS:
        options = pages.options_of(env_id, creator(env_id))
        assert options.keys() <= creator(env_id).option_names(), (
            f"{env_id} sets {options} itself: name these in its `fixed_options`"
        )


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
