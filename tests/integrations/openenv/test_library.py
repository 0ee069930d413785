"""What `agent-r1 serve env` needs of OpenEnv, and of a turn; without OpenEnv."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from agent_r1_gym.errors import MissingDependencyError
from agent_r1_gym.integrations import openenv as server_module


@pytest.mark.parametrize(
    ("value", "text"),
    [("42", "42"), (42, "42"), (True, "true"), ([1, "a"], '[1, "a"]'), ("a\ud800", "a\ufffd"), (None, None)],
)
def test_a_turn_that_a_client_read_as_json_is_its_text(value: Any, text: str | None) -> None:
    assert server_module._turn_text(value) == text


def test_an_openenv_of_the_old_name_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_app(env: Any, action_cls: Any, observation_cls: Any) -> None: ...

    for name in ("openenv", "openenv.core", "openenv.core.env_server"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "openenv.core.env_server.http_server", SimpleNamespace(create_app=create_app))
    with pytest.raises(MissingDependencyError, match=r"pip install 'openenv>=0\.10'"):
        server_module.create_app(lambda: pytest.fail("made"), server_module.OpenEnvServerLimits())
