"""`agent-r1 serve mcp`, asked by the official client and by our own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym import Task, ToolEnv
from agent_r1_gym.cli.main import main
from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.tools.mcp import mcp_tools

mcp: Any = pytest.importorskip("mcp", reason="the package mcp is not installed")

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "agent_r1_gym", "serve", "mcp", "FictionQA"]


def outcome(env: ToolEnv, name: str, **arguments: Any) -> Any:
    return env.step(env.parser.format_call(ToolCall(name, arguments)))[4]["tool_outcomes"][0]


@pytest.mark.slow
def test_our_own_client_plays_with_what_is_served() -> None:
    env = ToolEnv(tasks=[Task("0", "Go.", ("x",))], tools=mcp_tools(COMMAND, cwd=ROOT), max_turns=9)
    assert [tool.name for tool in env.tools] == ["search"]
    env.reset(seed=0)
    assert outcome(env, "search", query="born").content.startswith("(1) ")
    assert outcome(env, "search").error == "bad_arguments"
    env.close()


@pytest.mark.slow
def test_the_official_client_sees_tools_and_nothing_else_over_http() -> None:
    with subprocess.Popen(
        [*COMMAND, "--task", "1", "--http", "0"], stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        url = process.stderr.readline().partition(" at ")[2].partition(";")[0]
        try:
            listed, found, refused = asyncio.run(asked(url))
        finally:
            process.terminate()
    assert [tool.name for tool in listed.tools] == ["search"]
    assert found.content[0].text.startswith("(1) ") and not found.is_error
    assert refused.is_error and "Expected arguments: query (string)" in refused.content[0].text
    assert process.returncode in (0, -15)


async def asked(url: str) -> tuple[Any, Any, Any]:
    async with mcp.Client(url) as client:
        assert client.session.server_capabilities.resources is None
        listed = await client.list_tools()
        return listed, await client.call_tool("search", {"query": "born"}), await client.call_tool("search", {})


@contextlib.contextmanager
def over_http() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen([*COMMAND, "--http", "0"], stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process, process.stderr.readline().partition(" at ")[2].partition(";")[0]
        finally:
            process.kill()


def post(url: str, body: bytes, *headers: str) -> bytes:
    """Send raw bytes; return all answers of the connection."""
    host = url.split("/")[2]
    head = [
        *("POST /mcp HTTP/1.1", f"Host: {host}", "Content-Type: application/json", "Connection: close"),
        "Accept: application/json, text/event-stream",
    ]
    with socket.create_connection(("127.0.0.1", int(host.partition(":")[2])), timeout=20) as client:
        client.sendall("\r\n".join([*head, *headers, "", ""]).encode() + body)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.slow
def test_clients_that_open_leave_nothing_and_bad_requests_get_an_error() -> None:
    opening = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}).encode()
    size = f"Content-Length: {len(body)}"
    with over_http() as (_, url):
        opened = post(url, body, size)
        assert opened.startswith(b"HTTP/1.1 200 ") and b"agent-r1-gym" in opened
        assert b"mcp-session-id" not in opened.lower()  # a session would stay when its client is gone
        refused = post(url, body, size, "Transfer-Encoding: chunked")
        assert refused.startswith(b"HTTP/1.1 400 ") and b'"code": -32600' in refused
        with contextlib.suppress(ConnectionResetError):  # the rest of the body is not waited for
            assert post(url, b" " * 2**21, f"Content-Length: {2**21}").startswith(b"HTTP/1.1 413 ")
        assert post(url, body, size).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "sent", ["POST /mcp HTTP/1.1\r\nHost: x", "POST /mcp HTTP/1.1\r\nContent-Length: 9\r\n{}\r\n{{"]
)
@pytest.mark.slow
def test_one_signal_ends_it_also_with_a_half_sent_request(sent: str) -> None:
    with over_http() as (process, url):
        host = url.split("/")[2]
        with socket.create_connection(("127.0.0.1", int(host.partition(":")[2])), timeout=20) as client:
            client.sendall(sent.format(f"Host: {host}\r\nContent-Type: application/json\r\n").encode())
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["FictionQA", "--task", "-1"], "task_index"),
        (["Nothing"], "Nothing"),
        (["FictionQA", "--http", "99999"], "port lies between"),
    ],
)
def test_wrong_words_get_a_line(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "mcp", *words]) == 2
    error = capsys.readouterr().err
    assert problem in error and error.count("\n") == 1
