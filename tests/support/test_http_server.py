"""What every server of the package refuses before a handler sees it."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from agent_r1_gym.support.http_server import (
    connection_limits,
    guarded_requests,
    is_nested_deeper,
    json_response,
    new_app,
    read_object,
)
from tests.kit.serving import running

pytest.importorskip("fastapi", reason="fastapi is not installed")


def error_body(_status: int, message: str) -> bytes:
    return json.dumps({"error": message}).encode()


def own_app() -> Any:
    async def echo(request: Any) -> Any:
        return json_response(json.dumps(await read_object(request, max_bytes=2**20, timeout=5.0)).encode())

    return new_app("echo", [("/", echo, "POST")], error_body=error_body)


def app_of_a_library() -> Any:
    """An application that reads its body itself, behind the guard."""

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": body})

    return guarded_requests(echo, error_body=error_body, hosts=None, max_bytes=2**20, timeout=5.0)


def answers(make_app: Any, *headers: str, body: bytes) -> bytes:
    """Everything that a server sends in answer to raw bytes, up to the end of the connection."""
    head = ["POST / HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers, "", ""]
    with (
        running(make_app, request_timeout=5.0) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20) as client,
    ):
        client.sendall("\r\n".join(head).encode() + body)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.slow
@pytest.mark.parametrize("make_app", [own_app, app_of_a_library])
def test_a_body_of_two_lengths_is_refused_and_what_follows_is_no_request(make_app: Any) -> None:
    smuggled = b"0\r\n\r\nGET /other HTTP/1.1\r\nHost: localhost\r\n\r\n"
    got = answers(make_app, "Transfer-Encoding: chunked", f"Content-Length: {len(smuggled)}", body=smuggled)
    assert got.startswith(b"HTTP/1.1 400 ") and b"not both" in got
    assert got.count(b"HTTP/1.1 ") == 1
    for headers, body in ((["Content-Length: 2"], b"{}"), (["Transfer-Encoding: chunked"], b"2\r\n{}\r\n0\r\n\r\n")):
        assert answers(make_app, *headers, "Connection: close", body=body).endswith(b"{}")


@pytest.mark.parametrize("nested", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a":' + b"[" * 300 + b"]" * 300 + b"}"])
def test_deep_nesting_is_refused_in_words_of_ours(nested: bytes) -> None:
    got = answers(own_app, f"Content-Length: {len(nested)}", "Connection: close", body=nested)
    assert got.startswith(b"HTTP/1.1 400 ") and b"nested deeper than 100 levels" in got


def test_levels_are_counted_in_lists_and_objects() -> None:
    for value, levels in ((7, 0), ({}, 1), ([1, "[[["], 1), ({"a": [{}]}, 3), ([[], [[[]]]], 4)):
        assert not is_nested_deeper(value, levels)
        assert levels == 0 or is_nested_deeper(value, levels - 1)


def test_connections_are_limited_by_the_soft_limit_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource", reason="Windows has no limits of descriptors")

    def limits(soft: int, hard: int) -> tuple[int, int]:
        monkeypatch.setattr(resource, "getrlimit", lambda _name: (soft, hard))
        return connection_limits()

    assert limits(1_024, 1_024) == limits(1_024, 1_048_576)
    assert limits(1_024, 1_048_576)[0] < limits(4_096, 1_048_576)[0] < limits(-1, -1)[0]
