from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import urllib3

from agent_r1_gym.core.types import Passage
from agent_r1_gym.errors import ConfigurationError, RetrievalError
from agent_r1_gym.retrieval import server
from agent_r1_gym.retrieval.base import Retriever
from agent_r1_gym.retrieval.bm25 import BM25Retriever
from agent_r1_gym.retrieval.http import HTTPRetriever
from agent_r1_gym.retrieval.server import RequestLimits, serve
from agent_r1_gym.support.http_server import listen
from tests.kit.data import BAD_QUERIES
from tests.kit.processes import wait_until
from tests.kit.serving import served

pytest.importorskip("fastapi", reason="fastapi is not installed")

PROGRAM = """
import sys
from agent_r1_gym.retrieval.bm25 import BM25Retriever
from agent_r1_gym.retrieval.server import serve
from agent_r1_gym.core.types import Passage

idle_exit = float(sys.argv[1]) or None
retriever = BM25Retriever([Passage("a", "T", "king")])
serve(retriever, port=0, idle_exit=idle_exit, on_ready=lambda url: print(url, flush=True))
print("stopped", flush=True)
"""


KING = BM25Retriever([Passage("a", "T", "king")])


class Broken(Retriever):
    def search_batch(self, queries, k):
        raise RetrievalError("the disk is on fire")


@pytest.fixture(scope="module")
def strict_url() -> Iterator[str]:
    limits = {"max_queries": 8, "max_k": 50, "max_passages": 100, "max_bytes": 150_000}
    with served(KING, **limits) as url:
        yield url


def _ask(url, path, body, method="POST"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    response = urllib3.request(method, url + path, body=content, headers=headers, timeout=10, retries=False)
    return response.status, json.loads(response.data)


def test_search_r1s_own_request_gets_what_its_client_reads(passages):
    with served(BM25Retriever(passages)) as url:
        status, answer = _ask(url, "/retrieve", {"queries": ["Lothair", "zzz"], "topk": 2, "return_scores": True})
        _, bare = _ask(url, "/retrieve", {"queries": ["Lothair"], "topk": None})
    assert status == 200
    ((hit,), nothing) = answer["result"]
    assert nothing == []
    assert hit["document"]["contents"] == f'"{passages[1].title}"\n{passages[1].text}'
    assert hit["score"] > 0
    assert bare["result"] == [[hit["document"]]]


def test_agent_r1s_own_requests_get_what_its_client_reads(passages):
    with served(BM25Retriever(passages)) as url:
        _, batch = _ask(url, "/search", {"queries": ["Lothair", "zzz"], "top_k": 2})
        _, single = _ask(url, "/search?query=Lothair&top_k=2", b"", "GET")
        assert _ask(url, "/health", b"", "GET")[1]["status"] == "ok"
    first, second = batch["query_results"]
    assert first == single["query_results"][0]
    assert (first["query"], second) == ("Lothair", {"query": "zzz", "results": []})
    (hit,) = first["results"]
    assert hit["document"]["title"] == "Lothair II"
    assert hit["document"]["contents"].startswith('"Lothair II"\nLothair II was')


def test_our_client_gets_the_very_hits_of_the_backend_also_in_parts(passages):
    backend = BM25Retriever(passages)
    queries = ["king", "Zoë", *BAD_QUERIES.values()]
    expected = backend.search_batch(queries, 3)
    with served(backend) as url:
        for protocol in ("search-r1", "agent-r1"):
            assert HTTPRetriever(url, protocol=protocol).search_batch(queries * 10, 3) == expected * 10
        assert _ask(url, "/retrieve", {"queries": []}) == (200, {"result": []})


@pytest.mark.parametrize("path", ["/retrieve", "/search"])
def test_the_response_to_a_bad_request_names_the_problem(strict_url, path):
    for body, complaint in (
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "nested deeper"),
        ({"queries": ["king", "\ud800"]}, "lone surrogate"),
        ({"queries": {"a": 1}}, "must be a list of strings"),
        ({"queries": [["king"]]}, "must be a list of strings"),
        ({"queries": ["king"], "topk": [5], "top_k": [5]}, "an integer from 1 to 50, got [5]"),
        ({"queries": ["king"], "topk": float("nan"), "top_k": float("nan")}, "an integer from 1 to 50, got nan"),
        ([], "must be a JSON object, got list"),
        ({}, "must be a list of strings, got None"),
        ({"queries": "king"}, "must be a list of strings, got 'king'"),
        ({"queries": ["king", None]}, "must be a list of strings"),
        ({"queries": ["king"] * 9}, "At most 8 queries in one request, got 9"),
        (
            {"queries": ["king"] * 7, "topk": 15, "top_k": 15},
            "At most 100 passages in one request, got 7 queries with 15",
        ),
        ({"queries": ["king"], "topk": 0, "top_k": 0}, "an integer from 1 to 50, got 0"),
        ({"queries": ["king"], "topk": True, "top_k": True}, "an integer from 1 to 50, got True"),
        ({"queries": ["king"], "topk": 51, "top_k": 51}, "an integer from 1 to 50, got 51"),
        ({"queries": ["king"], "topk": "5", "top_k": "5"}, "an integer from 1 to 50, got '5'"),
    ):
        status, answer = _ask(strict_url, path, body)
        assert status == 400, body
        assert complaint in answer["error"], body
    for flag in ("no", 0, [1], {"a": 1}):
        status, answer = _ask(strict_url, "/retrieve", {"queries": ["king"], "return_scores": flag})
        assert (status, "return_scores must be true or false" in answer["error"]) == (400, True)


def test_the_response_to_a_bad_get_names_the_problem(strict_url):
    for parameters in ("", "?top_k=3", "?query=king&top_k=many", "?query=king&top_k=-1", "?query=a&top_k="):
        status, answer = _ask(strict_url, f"/search{parameters}", b"", "GET")
        assert (status, list(answer)) == (400, ["error"]), parameters


def test_a_huge_body_is_refused(strict_url):
    status, answer = _ask(strict_url, "/retrieve", {"queries": ["x" * 200_000]})
    assert status == 413
    assert "150000 bytes" in answer["error"]


def test_a_failing_backend_is_a_503_that_our_client_understands():
    with served(Broken()) as url:
        status, answer = _ask(url, "/retrieve", {"queries": ["king"], "topk": 1})
        assert (status, answer) == (503, {"error": "RetrievalError: the disk is on fire"})
        with pytest.raises(RetrievalError, match=r"HTTP 503.*the disk is on fire"):
            HTTPRetriever(url, max_retries=0).search("king")


# Greedy, slow and foreign clients -------------------------------------------------------------------------------------


class Gate(Retriever):
    """Records batch sizes; the first search waits until `open` is set."""

    def __init__(self):
        self.batches: list[int] = []
        self.started, self.open = threading.Event(), threading.Event()

    def search_batch(self, queries, k):
        self.batches.append(len(queries))
        self.started.set()
        self.open.wait(20)
        return [[] for _ in queries]


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of queries of each request that has lined up for its turn."""
    sizes: list[int] = []
    check = server._check

    def noted(queries, k, limits):
        check(queries, k, limits)
        sizes.append(len(queries))

    monkeypatch.setattr(server, "_check", noted)
    return sizes


def test_a_long_request_takes_turns_with_others(accepted):
    gate = Gate()
    with served(gate) as url, ThreadPoolExecutor() as pool:
        pool.submit(_ask, url, "/retrieve", {"queries": ["a"] * 192, "topk": 1})
        assert gate.started.wait(10)
        pool.submit(_ask, url, "/retrieve", {"queries": ["b"], "topk": 1})
        wait_until(lambda: accepted == [192, 1])
        gate.open.set()
    assert gate.batches == [64, 1, 64, 64]


def test_a_request_stops_when_its_client_disconnects(accepted):
    gate = Gate()
    body = json.dumps({"queries": ["a"] * 192}).encode()
    head = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with served(gate) as url:
        clients = [_connect(url) for _ in range(3)]
        for client in clients:
            client.sendall(head % len(body) + body)
        assert gate.started.wait(10)
        wait_until(lambda: accepted == [192] * 3)
        for client in clients:
            client.close()
        assert _ask(url, "/health", b"", "GET")[0] == 200  # the server has read that the others have left
        gate.open.set()
        assert _ask(url, "/retrieve", {"queries": ["b"]})[0] == 200
    assert gate.batches == [64, 1]


def test_too_many_requests_get_503():
    gate = Gate()
    with served(gate, max_waiting=1) as url, ThreadPoolExecutor() as pool:
        first = pool.submit(_ask, url, "/retrieve", {"queries": ["a"]})
        assert gate.started.wait(10)
        status, answer = _ask(url, "/search?query=b", b"", "GET")
        assert (status, answer) == (503, {"error": "1 requests are in progress; try again later."})
        assert _ask(url, "/health", b"", "GET")[0] == 200
        gate.open.set()
        assert first.result()[0] == 200
        assert _ask(url, "/search?query=b", b"", "GET")[0] == 200


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_any_web_page_may_send_is_refused(strict_url, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    response = urllib3.request("POST", f"{strict_url}/retrieve", body=b'{"queries": ["king"]}', headers=headers)
    assert response.status == 415
    assert json.loads(response.data)["error"].startswith("The Content-Type must be application/json, got")


def test_a_foreign_name_is_refused_by_a_server_of_this_machine_only():
    with served(KING, hosts=["mine.test"]) as url:
        for path in ("/health", "/search?query=king"):
            for host in ("127.0.0.1:8000", "localhost:8000", "LOCALHOST", "[::1]:80", "192.168.0.7", "mine.test:8000"):
                assert urllib3.request("GET", url + path, headers={"Host": host}).status == 200
            for host in ("evil.test", "evil.test:8000", "127.0.0.1.evil.test", "localhost@evil.test", ""):
                response = urllib3.request("GET", url + path, headers={"Host": host})
                assert response.status == 400
                assert "is not called" in json.loads(response.data)["error"]


def _serve_in_thread(retriever, **limits):
    """Start a server that exits when no client is connected; return its URL."""
    urls: Any = queue.SimpleQueue()
    options = {"port": 0, "limits": RequestLimits(**limits), "idle_exit": 2.0, "on_ready": urls.put}
    threading.Thread(target=serve, args=(retriever,), kwargs=options, daemon=True).start()
    return urls.get(timeout=20)


def _connect(url):
    return socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=20)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET /health HTTP/1.1\r\nHost: localh", b""),
        (
            b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b'Content-Length: 500\r\n\r\n{"queries',
            b"HTTP/1.1 408 ",
        ),
    ],
)
def test_a_half_sent_request_is_cut(sent, answer):
    with _connect(_serve_in_thread(KING, request_timeout=0.3)) as client:
        client.sendall(sent)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(65536):
                received += part
    assert received[: len(answer)] == answer
    assert bool(received) == bool(answer)


@pytest.mark.slow
def test_a_whole_request_may_take_longer_than_its_sending():
    class Slow(Retriever):
        def search_batch(self, queries, k):
            time.sleep(0.6)
            return [[] for _ in queries]

    retriever = HTTPRetriever(_serve_in_thread(Slow(), request_timeout=0.3), max_retries=0, pool_size=1)
    assert retriever.search("king") == []
    time.sleep(0.6)  # idle, which is not half-sent
    assert retriever.search("king") == []


CROWDED = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))\n{PROGRAM}"


@pytest.mark.parametrize(
    "sent",
    [
        b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Le",
        b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
    ],
    ids=["half a head", "half a body"],
)
@pytest.mark.slow
def test_half_sent_requests_leave_room_for_good_clients(sent):
    process, url = _started(0, CROWDED)
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            for _ in range(100):
                stack.enter_context(_connect(url)).sendall(sent)
            retriever = HTTPRetriever(url, timeout=20, max_retries=0)
            assert len(retriever.search("king", 1)) == 1
            retriever.close()
    process.terminate()
    out, err = process.communicate(timeout=20)
    assert (out, err) == ("stopped\n", "")


# The process ----------------------------------------------------------------------------------------------------------


def _started(idle_exit, program=PROGRAM):
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(idle_exit)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_ctrl_c_and_sigterm_stop_it_quietly(number):
    process, url = _started(0)
    retriever = HTTPRetriever(url)
    assert len(retriever.search("king")) == 1  # Its connection stays open meanwhile.
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "stopped\n", "")


@pytest.mark.slow
def test_an_idle_server_exits_but_not_while_a_client_is_connected():
    process, url = _started(1)
    retriever = HTTPRetriever(url)
    retriever.search("king")
    time.sleep(2)
    assert process.poll() is None
    assert len(retriever.search("king")) == 1
    retriever.close()
    assert process.wait(timeout=10) == 0
    process.communicate()


def test_a_taken_port_is_a_clear_error(passages):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"Cannot listen on 127.0.0.1:{port}: .*in use"):
            serve(BM25Retriever(passages), port=port)


def test_answers_do_not_wait_for_acknowledgements():
    with listen("127.0.0.1", 0) as listener:
        client = socket.create_connection(listener.getsockname())
        accepted, _ = listener.accept()
        with client, accepted:  # without TCP_NODELAY each answer takes 40 ms
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
