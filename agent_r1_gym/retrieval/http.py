r"""Search over HTTP: the protocols of Search-R1 and Agent-R1, and a client that fails in bounded time.

- search-r1: `POST /retrieve {"queries", "topk", "return_scores"}`
  -> `{"result": [[{"document", "score"}]]}`
- agent-r1: `POST /search {"queries", "top_k"}`
  -> `{"query_results": [{"query", "results": [{"document", "score"}]}]}`

A document is `{"id", "title", "contents": '"Title"\ntext'}` (see `store.passage_to_document`). `server.py` serves both.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from agent_r1_gym.errors import (
    ConfigurationError,
    InfrastructureError,
    InfrastructureTimeout,
    RetrievalError,
    RetrievalTimeout,
)
from agent_r1_gym.retrieval.base import Hit, Retriever, check_k, clean_query
from agent_r1_gym.retrieval.store import passage_from_document, passage_to_document, short_repr
from agent_r1_gym.support.backoff import CircuitBreaker
from agent_r1_gym.support.checks import check_choice, is_integer
from agent_r1_gym.support.http import HTTPClient

_PROTOCOLS = ("auto", "search-r1", "agent-r1")
Protocol = Literal["search-r1", "agent-r1"]
PATHS: dict[Protocol, str] = {"search-r1": "/retrieve", "agent-r1": "/search"}
_FIELDS: dict[Protocol, str] = {"search-r1": "result", "agent-r1": "query_results"}
MAX_PASSAGES = 20_000
"""Maximum number of passages in one response (queries times passages per query): some 10 MB."""
_LARGEST_SCORE = 10**300


def encode_request(protocol: Protocol, queries: Sequence[str], k: int) -> bytes:
    """Encode the body of a batch request."""
    body: dict[str, Any] = {"queries": list(queries)}
    body |= {"topk": k, "return_scores": True} if protocol == "search-r1" else {"top_k": k}
    return json.dumps(body).encode()


def encode_response_part(
    protocol: Protocol, queries: Sequence[str], hit_lists: Sequence[Sequence[Hit]], *, scores: bool = True
) -> bytes:
    """Encode part of a response for `join_response_parts`; bytes take less memory than hits.

    Args:
        protocol: format of the response.
        queries: the queries of this part.
        hit_lists: the hits of each query.
        scores: False: bare documents without scores (search-r1 only).
    """
    lists: list[Any] = [
        [{"document": passage_to_document(passage), "score": score} for passage, score in hits] for hits in hit_lists
    ]
    if protocol == "agent-r1":
        lists = [{"query": query, "results": hits} for query, hits in zip(queries, lists, strict=True)]
    elif not scores:
        lists = [[hit["document"] for hit in hits] for hits in lists]
    return json.dumps(lists).encode().removeprefix(b"[").removesuffix(b"]")


def join_response_parts(protocol: Protocol, parts: Iterable[bytes]) -> bytes:
    """Join encoded parts to the body of a response."""
    return b'{"%s": [%s]}' % (_FIELDS[protocol].encode(), b", ".join(filter(None, parts)))


def decode_response(protocol: Protocol, body: bytes, *, expected: int) -> list[list[Hit]]:
    """Decode the response to `expected` queries.

    Raises:
        ValueError: the response does not follow the protocol; the message describes what came instead.
    """
    try:
        response = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON ({error}): {body[:80]!r}") from error
    lists = _list(response, _FIELDS[protocol])
    if len(lists) != expected:
        raise ValueError(f"{len(lists)} result lists for {expected} queries")
    if protocol == "agent-r1":
        lists = [_list(item, "results") for item in lists]
    return [_decode_hits(hits) for hits in lists]


def _list(value: Any, field: str) -> list[Any]:
    if not isinstance(value, dict) or not isinstance(value.get(field), list):
        raise ValueError(f"expected an object with a list {field!r}, got {short_repr(value)}")
    items: list[Any] = value[field]
    return items


def _decode_hits(hits: Any) -> list[Hit]:
    if not isinstance(hits, list):
        raise ValueError(f"expected a list of hits, got {short_repr(hits)}")
    parsed = []
    for rank, item in enumerate(hits):
        if not isinstance(item, dict) or "document" not in item:
            raise ValueError(f"expected a hit with 'document' and 'score', got {short_repr(item)}")
        document = item["document"]
        if isinstance(document, str):
            document = {"contents": document}
        passage = passage_from_document(document, default_id=f"rank-{rank}")
        parsed.append(Hit(passage, _finite(item.get("score"))))
    return parsed


def _finite(score: Any) -> float:
    if not isinstance(score, float):
        if not is_integer(score):
            raise ValueError(f"expected a number as score, got {short_repr(score)}")
        score = float(score) if abs(score) < _LARGEST_SCORE else math.inf
    if not math.isfinite(score):
        raise ValueError(f"expected a finite score, got {score}")
    return float(score)


# --- client -----------------------------------------------------------------------------------------------------------


class HTTPRetriever(Retriever):
    """Searches through a server with Search-R1's or Agent-R1's protocol.

    A search takes at most `timeout` seconds including retries, however slowly the server sends (only the system's name
    resolver has no time limit). Lost connections and the statuses 408, 409, 425, 429 and 5xx are retried. After
    `breaker_failures` failed searches in a row the retriever fails immediately for `breaker_cooldown` seconds, then
    sends one search to check whether the server is back; the `retry_after` of such an error is the time to wait.

    The object may be shared by threads, forked (a child opens its own connections) and pickled (as address and
    settings). Proxy settings of the environment are not used.

    Args:
        url: address of the server ("http://127.0.0.1:8000"), or of its endpoint (".../retrieve", ".../search").
        protocol: "search-r1", "agent-r1", or "auto": by the endpoint in `url`, else by one `GET /health` before the
            first search (200 means agent-r1, 404 or 405 search-r1).
        timeout: seconds for one search, including retries.
        max_retries: attempts after the first.
        pool_size: number of open connections.
        max_batch: queries in one request; longer batches are split, each request with its own `timeout`, and so are
            those for more than `MAX_PASSAGES` passages.
        max_bytes: maximum size of a response.
        breaker_failures: failures in a row that open the circuit breaker; 0 disables it.
        breaker_cooldown: seconds that it stays open.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    call_timeout = None

    def __init__(
        self,
        url: str,
        *,
        protocol: Literal["auto", "search-r1", "agent-r1"] = "auto",
        timeout: float = 10.0,
        max_retries: int = 2,
        pool_size: int = 16,
        max_batch: int = 512,
        max_bytes: int = 64 * 2**20,
        breaker_failures: int = 5,
        breaker_cooldown: float = 10.0,
    ) -> None:
        check_choice("protocol", protocol, _PROTOCOLS)
        self.url, protocol_of_url = _split_url(url)
        positive = {"timeout": timeout, "pool_size": pool_size, "max_batch": max_batch, "max_bytes": max_bytes}
        not_negative = {
            "max_retries": max_retries,
            "breaker_failures": breaker_failures,
            "breaker_cooldown": breaker_cooldown,
        }
        for name, value in {**positive, **not_negative}.items():
            if value < 0 or (value == 0 and name in positive):
                least = "above 0" if name in positive else "0 or more"
                raise ConfigurationError(f"HTTPRetriever({name}={value!r}): must be {least}.")
        self._settings = {"protocol": protocol_of_url if protocol == "auto" else protocol, **positive, **not_negative}
        self._protocol: Any = self._settings["protocol"]
        self._timeout, self._max_batch = timeout, max_batch
        self._http = HTTPClient(self.url, max_retries=max_retries, pool_size=pool_size, max_bytes=max_bytes)
        self._breaker = CircuitBreaker(self.url, breaker_failures, breaker_cooldown)

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find at most `k` hits for each query (see `Retriever.search_batch`).

        Raises:
            RetrievalTimeout: no complete response within `timeout`.
            RetrievalError: the server cannot be reached, refuses, or sends an invalid response; or the circuit breaker
                is open.
        """
        k = check_k(k)
        queries = [clean_query(query) for query in queries]
        positions = [position for position, query in enumerate(queries) if query]
        hit_lists: list[list[Hit]] = [[] for _ in queries]
        size = max(1, min(self._max_batch, MAX_PASSAGES // k))
        for start in range(0, len(positions), size):
            part = positions[start : start + size]
            with _as_retrieval_errors(), self._breaker.guard():
                response = self._request([queries[position] for position in part], k)
            for position, hits in zip(part, response, strict=True):
                hit_lists[position] = hits[:k]
        return hit_lists

    def health(self) -> dict[str, Any]:
        """Get the response to `GET /health`.

        Raises:
            RetrievalError: the server cannot be reached, or does not respond with a JSON object.
        """
        with _as_retrieval_errors():
            status, body = self._http.request("GET", "/health", timeout=self._timeout, total=self._timeout)
        try:
            response = json.loads(body) if status == 200 else None
        except (ValueError, RecursionError):
            response = None
        if not isinstance(response, dict):
            raise RetrievalError(f"{self.url}/health answered HTTP {status}: {_excerpt(body)}; expected a JSON object.")
        return response

    def close(self) -> None:
        """Close the connections; a later search opens new ones."""
        self._http.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, **self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        HTTPRetriever.__init__(self, **state)

    def __repr__(self) -> str:
        return f"HTTPRetriever({self.url!r}, protocol={self._protocol!r})"

    def _request(self, queries: list[str], k: int) -> list[list[Hit]]:
        deadline = time.monotonic() + self._timeout
        if self._protocol == "auto":
            self._protocol = self._detect()
        path = PATHS[self._protocol]
        body = encode_request(self._protocol, queries, k)
        left = deadline - time.monotonic()
        status, response = self._http.request("POST", path, body, timeout=self._timeout, total=left)
        if status != 200:
            raise RetrievalError(f"{self.url}{path} answered HTTP {status}: {_excerpt(response)}")
        try:
            return decode_response(self._protocol, response, expected=len(queries))
        except ValueError as error:
            raise RetrievalError(f"{self.url}{path} sent an invalid {self._protocol} response: {error}.") from error

    def _detect(self) -> str:
        status, body = self._http.request("GET", "/health", timeout=self._timeout, total=self._timeout)
        if status not in (200, 404, 405):
            raise RetrievalError(f"{self.url}/health answered HTTP {status}: {_excerpt(body)}")
        return "agent-r1" if status == 200 else "search-r1"


@contextlib.contextmanager
def _as_retrieval_errors() -> Iterator[None]:
    """Convert infrastructure errors to retrieval errors."""
    try:
        yield
    except RetrievalError:
        raise
    except InfrastructureError as error:
        kind = RetrievalTimeout if isinstance(error, InfrastructureTimeout) else RetrievalError
        raise kind(str(error), retry_after=error.retry_after) from error


def _split_url(url: str) -> tuple[str, str]:
    """Split a URL into the server's address and the protocol that its endpoint implies ("auto": none)."""
    import urllib3

    try:
        parsed = urllib3.util.parse_url(url)
    except (urllib3.exceptions.LocationParseError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{url!r} is not a URL: {error}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query:
        raise ConfigurationError(f"Expected a server address like 'http://127.0.0.1:8000', got {url!r}.")
    address = parsed.url.rstrip("/")
    for protocol, path in PATHS.items():
        if address.endswith(path):
            return address.removesuffix(path), protocol
    return address, "auto"


def _excerpt(body: bytes) -> str:
    return repr(body[:200].decode("utf-8", "replace"))
