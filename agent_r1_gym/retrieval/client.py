"""A client for retrieval servers that fails in bounded time and never sends a rollout astray."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Literal

from agent_r1_gym.errors import ConfigurationError, RetrievalError, suggest
from agent_r1_gym.retrieval.base import Hit, Retriever, check_k, clean_query

_PROTOCOLS = ("auto", "search-r1", "agent-r1")


class HTTPRetriever(Retriever):
    """Asks a retrieval server that speaks Search-R1's or Agent-R1's protocol (see `wire`).

    A search takes at most `timeout` seconds, attempts and pauses included, however slowly the server sends (only the
    system's name resolver is outside of our control). A lost connection and the statuses 429 and 5xx are tried again.
    After `breaker_failures` failed searches in a row the retriever fails at once for `breaker_cooldown` seconds, then
    lets one search through to see whether the server is back.

    The object may be shared by threads, forked (a child opens its own connections) and pickled (as address and
    settings). Proxy settings of the environment are not used.

    Args:
        url: address of the server ("http://127.0.0.1:8000"), or of its endpoint (".../retrieve", ".../search").
        protocol: "search-r1", "agent-r1", or "auto": by the endpoint in `url`, else by one `GET /health` before the
            first search (a server that answers it speaks agent-r1, one that says 404 or 405 search-r1).
        timeout: seconds for one search, everything included.
        retries: further attempts after the first.
        pool_size: connections that are kept open.
        max_batch: queries in one request; longer batches are sent in parts, each with its own `timeout`.
        max_bytes: size of the largest answer that is read.
        breaker_failures: failures in a row that open the circuit breaker; 0 switches it off.
        breaker_cooldown: seconds that it stays open.

    Raises:
        ConfigurationError: an argument has a wrong value.
    """

    call_timeout = None

    def __init__(
        self,
        url: str,
        *,
        protocol: Literal["auto", "search-r1", "agent-r1"] = "auto",
        timeout: float = 10.0,
        retries: int = 2,
        pool_size: int = 16,
        max_batch: int = 512,
        max_bytes: int = 64 * 2**20,
        breaker_failures: int = 5,
        breaker_cooldown: float = 10.0,
    ) -> None:
        from agent_r1_gym.retrieval.transport import Transport

        if protocol not in _PROTOCOLS:
            raise ConfigurationError(f"Unknown protocol {protocol!r}. {suggest(str(protocol), _PROTOCOLS)}")
        self.url, ending = _split_url(url)
        positive = {"timeout": timeout, "pool_size": pool_size, "max_batch": max_batch, "max_bytes": max_bytes}
        others = {"retries": retries, "breaker_failures": breaker_failures, "breaker_cooldown": breaker_cooldown}
        if min(positive.values()) <= 0 or min(others.values()) < 0:
            raise ConfigurationError(f"HTTPRetriever needs values > 0 in {positive} and >= 0 in {others}.")
        self._settings = {"protocol": ending if protocol == "auto" else protocol, **positive, **others}
        self._protocol: Any = self._settings["protocol"]
        self._timeout, self._max_batch = timeout, max_batch
        self._transport = Transport(self.url, retries=retries, pool_size=pool_size, max_bytes=max_bytes)
        self._breaker = CircuitBreaker(breaker_failures, breaker_cooldown)

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns for each query at most `k` hits (see `Retriever.search_batch`).

        Raises:
            RetrievalTimeout: no full answer within `timeout`.
            RetrievalError: the server cannot be reached, refuses, or answers garbage; or the circuit breaker is open.
        """
        k = check_k(k)
        queries = [clean_query(query) for query in queries]
        asked = [index for index, query in enumerate(queries) if query]
        answers: list[list[Hit]] = [[] for _ in queries]
        for start in range(0, len(asked), self._max_batch):
            part = asked[start : start + self._max_batch]
            found = self._guarded([queries[index] for index in part], k)
            for index, hits in zip(part, found, strict=True):
                answers[index] = hits[:k]
        return answers

    def health(self) -> dict[str, Any]:
        """Returns what `GET /health` answers.

        Raises:
            RetrievalError: the server cannot be reached, or does not answer with a JSON object.
        """
        status, body = self._transport.exchange("GET", "/health", None, timeout=self._timeout)
        try:
            answer = json.loads(body) if status == 200 else None
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise RetrievalError(f"{self.url}/health answered HTTP {status}: {_excerpt(body)}; expected a JSON object.")
        return answer

    def close(self) -> None:
        """Closes the connections; a later search opens new ones."""
        self._transport.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, **self._settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        HTTPRetriever.__init__(self, **state)

    def __repr__(self) -> str:
        return f"HTTPRetriever({self.url!r}, protocol={self._protocol!r})"

    def _guarded(self, queries: list[str], k: int) -> list[list[Hit]]:
        self._breaker.check(self.url)
        try:
            answer = self._ask(queries, k)
        except RetrievalError as error:
            self._breaker.failed(error)
            raise
        except BaseException:
            self._breaker.abandoned()
            raise
        self._breaker.succeeded()
        return answer

    def _ask(self, queries: list[str], k: int) -> list[list[Hit]]:
        from agent_r1_gym.retrieval import wire

        deadline = time.monotonic() + self._timeout
        if self._protocol == "auto":
            self._protocol = self._detect()
        path = wire.PATHS[self._protocol]
        body = wire.encode_request(self._protocol, queries, k)
        status, answer = self._transport.exchange("POST", path, body, timeout=deadline - time.monotonic())
        if status != 200:
            raise RetrievalError(f"{self.url}{path} answered HTTP {status}: {_excerpt(answer)}")
        try:
            return wire.decode_answer(self._protocol, answer, expected=len(queries))
        except ValueError as error:
            raise RetrievalError(f"{self.url}{path} sent no {self._protocol} answer: {error}.") from error

    def _detect(self) -> str:
        status, body = self._transport.exchange("GET", "/health", None, timeout=self._timeout)
        if status not in (200, 404, 405):
            raise RetrievalError(f"{self.url}/health answered HTTP {status}: {_excerpt(body)}")
        return "agent-r1" if status == 200 else "search-r1"


class CircuitBreaker:
    """Counts failures in a row; opens after too many, lets one caller probe after a pause, closes when it succeeds.

    It has no lock, which a fork could inherit locked: a race between threads costs at most one more request.

    Args:
        failures: failures in a row that open it; 0: it never opens.
        cooldown: seconds that it stays open.
    """

    def __init__(self, failures: int, cooldown: float) -> None:
        self._limit = failures
        self._cooldown = cooldown
        self._count = 0
        self._probe_at = 0.0
        self._last: RetrievalError | None = None

    def check(self, url: str) -> None:
        """Lets the caller pass.

        Raises:
            RetrievalError: the breaker is open, or another caller is probing.
        """
        if not self._limit or self._count < self._limit:
            return
        wait = self._probe_at - time.monotonic()
        if wait > 0:
            raise RetrievalError(
                f"{url} failed {self._count} times in a row and is left alone for {wait:.1f} s more. Last: {self._last}"
            )
        self._probe_at = time.monotonic() + self._cooldown

    def succeeded(self) -> None:
        """Closes the breaker."""
        self._count = 0

    def failed(self, error: RetrievalError) -> None:
        """Counts a failure."""
        self._count += 1
        self._last = error
        self._probe_at = time.monotonic() + self._cooldown

    def abandoned(self) -> None:
        """Notes that a probe was cut short (Ctrl-C): the next caller may probe at once."""
        self._probe_at = 0.0


def _split_url(url: str) -> tuple[str, str]:
    """Returns the address without its endpoint, and the protocol that the endpoint tells ("auto": none)."""
    import urllib3

    from agent_r1_gym.retrieval import wire

    try:
        parsed = urllib3.util.parse_url(url)
    except (urllib3.exceptions.LocationParseError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{url!r} is not a URL: {error}.") from error
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query:
        raise ConfigurationError(f"A retrieval server's address looks like 'http://127.0.0.1:8000', got {url!r}.")
    address = parsed.url.rstrip("/")
    for protocol, path in wire.PATHS.items():
        if address.endswith(path):
            return address.removesuffix(path), protocol
    return address, "auto"


def _excerpt(body: bytes) -> str:
    return repr(body[:200].decode("utf-8", "replace"))
