"""Tools of an MCP server over streamable HTTP: a real process on a port of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from agent_r1_gym import ToolEnv
from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.tools.mcp import mcp_tools
from tests.tools.test_mcp import COMMAND, TASKS, outcome


@pytest.fixture
def http_server() -> Iterator[Any]:
    """Starts servers over HTTP; yields a function that returns their addresses."""
    started: list[subprocess.Popen[str]] = []

    def start(**variables: str) -> tuple[str, subprocess.Popen[str]]:
        process = subprocess.Popen(
            [*COMMAND, "--http"], stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
        )
        started.append(process)
        return f"http://127.0.0.1:{int(process.stdout.readline())}", process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.filterwarnings("ignore:Names of MCP server")
def test_a_server_over_http_has_a_session_per_episode(http_server: Any) -> None:
    import urllib.request

    url, _ = http_server()
    env = ToolEnv(tasks=TASKS, tools=mcp_tools(url=f"{url}/mcp"), max_turns=9)
    for _ in range(3):
        env.reset(seed=0)
        assert [outcome(env, "count").content for _ in range(2)] == ["1", "2"]
        env.step("<answer>3</answer>")
    env.close()
    with urllib.request.urlopen(f"{url}/sessions") as answer:
        assert json.load(answer) == {"open": 0}


@pytest.mark.filterwarnings("ignore:Names of MCP server")
def test_a_login_is_asked_for_by_name_and_never_shown(http_server: Any) -> None:
    url, _ = http_server(LOGIN="secret-token", TOKEN="secret-token")
    with pytest.raises(InfrastructureError, match=r"did not start.*HTTP 401, it wants a login: give headers="):
        mcp_tools(url=url)
    for headers in ({"Authorization": "Bearer secret-token"}, lambda: {"Authorization": "Bearer secret-token"}):
        tools = mcp_tools(url=url, headers=headers)
        env = ToolEnv(tasks=TASKS, tools=tools)
        env.reset(seed=0)
        assert "secret-token" not in outcome(env, "fs_token_read").content
        assert "secret-token" not in repr([tools, tools[0].server, env])
        env.close()


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("html", "Unexpected content type"),
        ("json", "Failed to parse JSON"),
        ("cut", "ended without a response"),
        ("hang", "not ready within 1 s"),
    ],
)
def test_what_does_not_speak_mcp_gets_a_line(http_server: Any, fault: str, problem: str) -> None:
    url, _ = http_server(FAULT=fault)
    with pytest.raises(InfrastructureError, match=f"did not start.*{problem}") as caught:
        mcp_tools(url=f"{url}/mcp?key=secret-token", connect_timeout=1 if fault == "hang" else 30)
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_headers_that_cannot_be_had_show_nothing() -> None:
    def headers() -> dict[str, str]:
        raise ValueError("secret-token is old")

    with pytest.raises(InfrastructureError, match=r"headers= of .* failed: ValueError\.$"):
        mcp_tools(url="http://127.0.0.1:9/mcp", headers=headers)


@pytest.mark.filterwarnings("ignore:Names of MCP server")
def test_a_server_over_http_that_dies_marks_the_episode(http_server: Any) -> None:
    url, process = http_server()
    env = ToolEnv(tasks=TASKS, tools=mcp_tools(url=url, timeout=5), max_turns=9)
    env.reset(seed=0)
    assert outcome(env, "add", a=1, b=2).content == "3"
    assert outcome(env, "die").error == "unavailable"
    process.wait()
    assert outcome(env, "add", a=1, b=2).error == "unavailable"
    env.reset()
    assert outcome(env, "add", a=1, b=2).error == "unavailable"
    env.close()


# --- what is refused -------------------------------------------------------------------------------------------------
