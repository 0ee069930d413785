from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
import urllib3

from agent_r1_gym.errors import ConfigurationError, RetrievalError
from agent_r1_gym.retrieval.base import Retriever
from agent_r1_gym.retrieval.bm25 import BM25Retriever
from agent_r1_gym.retrieval.client import HTTPRetriever
from agent_r1_gym.retrieval.server import serve
from agent_r1_gym.types import Passage
from tests.retrieval.queries import BAD_QUERIES
from tests.retrieval.serving import served

pytest.importorskip("fastapi", reason="fastapi is not installed")

PROGRAM = """
import sys
from agent_r1_gym.retrieval.bm25 import BM25Retriever
from agent_r1_gym.retrieval.server import serve
from agent_r1_gym.types import Passage

idle_exit = float(sys.argv[1]) or None
retriever = BM25Retriever([Passage("a", "T", "king")])
serve(retriever, port=0, idle_exit=idle_exit, on_ready=lambda url: print(url, flush=True))
print("stopped", flush=True)
"""


class Broken(Retriever):
    def search_batch(self, queries, k):
        raise RetrievalError("the disk is on fire")


@pytest.fixture(scope="module")
def strict_url() -> Iterator[str]:
    with served(BM25Retriever([Passage("a", "T", "king")]), max_queries=8, max_k=50, max_bytes=150_000) as url:
        yield url


def _ask(url, path, body, method="POST"):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = urllib3.request(method, url + path, body=content, timeout=10, retries=False)
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
        with urllib.request.urlopen(f"{url}/search?query=Lothair&top_k=2", timeout=10) as response:
            single = json.load(response)
        with urllib.request.urlopen(f"{url}/health", timeout=10) as response:
            assert json.load(response)["status"] == "ok"
    first, second = batch["query_results"]
    assert first == single["query_results"][0]
    assert (first["query"], second) == ("Lothair", {"query": "zzz", "results": []})
    (hit,) = first["results"]
    assert hit["document"]["title"] == "Lothair II"
    assert hit["document"]["contents"].startswith('"Lothair II"\nLothair II was')


def test_our_client_gets_the_very_hits_of_the_backend(passages):
    backend = BM25Retriever(passages)
    queries = ["king", "Zoë", *BAD_QUERIES.values()]
    with served(backend) as url:
        for protocol in ("search-r1", "agent-r1"):
            assert HTTPRetriever(url, protocol=protocol).search_batch(queries, 3) == backend.search_batch(queries, 3)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([], "must be a JSON object, got list"),
        ({}, "must be a list of strings, got None"),
        ({"queries": "king"}, "must be a list of strings, got 'king'"),
        ({"queries": ["king", None]}, "must be a list of strings"),
        ({"queries": ["king"] * 9}, "At most 8 queries in one request, got 9"),
        ({"queries": ["king"], "topk": 0, "top_k": 0}, "an integer from 1 to 50, got 0"),
        ({"queries": ["king"], "topk": True, "top_k": True}, "an integer from 1 to 50, got True"),
        ({"queries": ["king"], "topk": 51, "top_k": 51}, "an integer from 1 to 50, got 51"),
        ({"queries": ["king"], "topk": "5", "top_k": "5"}, "an integer from 1 to 50, got '5'"),
    ],
)
@pytest.mark.parametrize("path", ["/retrieve", "/search"])
def test_a_bad_request_is_told_what_is_wrong(strict_url, path, body, complaint):
    status, answer = _ask(strict_url, path, body)
    assert status == 400
    assert complaint in answer["error"]


@pytest.mark.parametrize(
    "parameters", ["", "?top_k=3", "?query=king&top_k=many", "?query=king&top_k=-1", "?query=a&top_k="]
)
def test_a_bad_get_is_told_what_is_wrong(strict_url, parameters):
    status, answer = _ask(strict_url, f"/search{parameters}", b"", "GET")
    assert (status, list(answer)) == (400, ["error"])


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


def _started(idle_exit):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(idle_exit)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_stop_it_quietly(number):
    process, url = _started(0)
    retriever = HTTPRetriever(url)
    assert len(retriever.search("king")) == 1  # Its connection stays open meanwhile.
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "stopped\n", "")


def test_an_idle_server_leaves_but_not_while_somebody_is_connected():
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


def test_single_searches_do_not_wait_for_acknowledgements(passages):
    process, url = _started(0)
    retriever = HTTPRetriever(url)
    retriever.search("king")
    seconds = []
    for _ in range(20):
        begin = time.perf_counter()
        retriever.search("king")
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 0.03  # without TCP_NODELAY each answer takes 40 ms
    process.terminate()
    process.communicate(timeout=20)
