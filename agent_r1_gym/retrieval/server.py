"""A retrieval server that Search-R1's and Agent-R1's clients can talk to as they are (see `wire`)."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import json
import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_r1_gym.errors import ConfigurationError, MissingDependencyError
from agent_r1_gym.retrieval import wire
from agent_r1_gym.retrieval.base import Retriever
from agent_r1_gym.retrieval.connections import guarded_protocol, room_for_connections
from agent_r1_gym.support.versions import install_command

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

_DEFAULT_K = 5
_IDLE_POLL = 0.25
_QUEUE = 2048
_QUERIES_AT_ONCE = 64
_PASSAGES_AT_ONCE = 2_000
logger = logging.getLogger(__name__)
Handler = Callable[["Request"], Awaitable["Response"]]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits on what one client may ask for, so that the others are served too."""

    max_queries: int = 1024
    """Queries in one request."""
    max_k: int = 1000
    """Passages per query."""
    max_passages: int = wire.MAX_PASSAGES
    """Queries times passages per query, in one request."""
    max_bytes: int = 16 * 2**20
    """Size of a request's body."""
    max_waiting: int = 128
    """Requests that are searched for at once, in turns; further ones get 503."""
    request_timeout: float = 10.0
    """Seconds for the head of a request, and again for its body."""


class _Refusal(Exception):
    """A request that is not served: HTTP status and what is wrong with it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def create_app(
    retriever: Retriever, *, name: str = "", limits: Limits | None = None, hosts: Collection[str] | None = None
) -> FastAPI:
    """Returns an ASGI application that answers searches with `retriever`.

    Endpoints: `POST /retrieve` (Search-R1), `POST /search` and `GET /search?query=&top_k=` (Agent-R1), `GET /health`.
    A bad request gets 400 (408 if its body does not come, 413 if that is too large, 415 if it is not declared as
    JSON), a failing retriever 503, each with `{"error": ...}`. All searches run in one thread, one after the other:
    backends need not be thread-safe. Long requests are worked on in turns with the others, and no longer than their
    client listens.

    Args:
        retriever: the backend.
        name: identity that `/health` reports, so that a client can be sure which server it talks to.
        limits: what one client may ask for.
        hosts: names under which the server may be addressed, besides IP addresses; None: any. A web page can make its
            visitor's browser ask a server on 127.0.0.1, but only under a name of its own.

    Raises:
        MissingDependencyError: FastAPI is not installed.
    """
    try:
        from fastapi import FastAPI
        from starlette.requests import ClientDisconnect
    except ImportError as error:
        raise _missing("fastapi") from error
    service = _Service(retriever, name, limits or Limits())
    app = FastAPI(title="agent-r1-gym retrieval", openapi_url=None)
    app.add_exception_handler(_Refusal, _refuse)
    app.add_exception_handler(ClientDisconnect, _refuse)  # nobody reads the answer, but nothing is logged either
    # Plain routes: requests are checked by hand, so that no model is built and validated for each document.
    for path, handler, method in (
        ("/retrieve", service.retrieve, "POST"),
        ("/search", service.search_batch, "POST"),
        ("/search", service.search, "GET"),
        ("/health", service.health, "GET"),
    ):
        app.add_route(path, functools.partial(_addressed, hosts, handler), methods=[method])
    return app


class _Service:
    """The endpoints; see `create_app`."""

    def __init__(self, retriever: Retriever, name: str, limits: Limits) -> None:
        self._retriever, self._name, self._limits = retriever, name, limits
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retriever")
        self._turn = asyncio.Lock()  # first come, first served
        self._admitted = 0

    async def retrieve(self, request: Request) -> Response:
        body = await self._body(request)
        k = body.get("topk")
        scores = bool(body.get("return_scores", False))
        return await self._answer(request, "search-r1", body.get("queries"), _DEFAULT_K if k is None else k, scores)

    async def search_batch(self, request: Request) -> Response:
        body = await self._body(request)
        return await self._answer(request, "agent-r1", body.get("queries"), body.get("top_k", _DEFAULT_K))

    async def search(self, request: Request) -> Response:
        k = request.query_params.get("top_k", str(_DEFAULT_K))
        if "query" not in request.query_params:
            raise _Refusal(400, "The parameter 'query' is missing: GET /search?query=...&top_k=5.")
        queries = [request.query_params["query"]]
        return await self._answer(request, "agent-r1", queries, int(k) if k.isdecimal() and len(k) < 10 else k)

    async def health(self, request: Request) -> Response:
        answer = {"status": "ok", "name": self._name, "retriever": type(self._retriever).__name__}
        return _reply(json.dumps(answer).encode())

    async def _body(self, request: Request) -> dict[str, Any]:
        # A page's script may post anything else to any server without asking that server first.
        kind = request.headers.get("content-type", "none")
        if kind.partition(";")[0].strip().lower() != "application/json":
            raise _Refusal(415, f"The Content-Type must be application/json, got {kind:.80}.")
        seconds = self._limits.request_timeout
        try:
            async with asyncio.timeout(seconds):
                return await _json_object(request, self._limits.max_bytes)
        except TimeoutError as error:
            raise _Refusal(408, f"The body did not come within {seconds:g} s.") from error

    async def _answer(
        self, request: Request, protocol: wire.Protocol, queries: Any, k: Any, scores: bool = True
    ) -> Response:
        _check(queries, k, self._limits)
        # Counted only now: whoever sends half a request must not keep others out.
        if self._admitted >= self._limits.max_waiting:
            raise _Refusal(503, f"{self._admitted} requests are being served; ask again later.")
        self._admitted += 1
        try:
            parts = await self._parts(request, protocol, queries, k, scores)
            return _reply(wire.join_answers(protocol, parts))
        except Exception as error:
            logger.warning("A search failed: %s: %s", type(error).__name__, error)
            return _reply(_error(f"{type(error).__name__}: {error}"), 503)
        finally:
            self._admitted -= 1

    async def _parts(
        self, request: Request, protocol: wire.Protocol, queries: list[str], k: int, scores: bool
    ) -> list[bytes]:
        """Returns the answer in parts; fewer if the client has gone."""

        def work(part: list[str]) -> bytes:
            return wire.encode_part(protocol, part, self._retriever.search_batch(part, k), scores=scores)

        parts: list[bytes] = []
        size = max(1, min(_QUERIES_AT_ONCE, _PASSAGES_AT_ONCE // k))
        for start in range(0, len(queries), size):
            async with self._turn:  # other requests take their turn between two parts
                if await request.is_disconnected():
                    break
                part = queries[start : start + size]
                parts.append(await asyncio.get_running_loop().run_in_executor(self._thread, work, part))
        return parts


def serve(
    retriever: Retriever,
    host: str = "127.0.0.1",
    *,
    port: int = 8000,
    name: str = "",
    limits: Limits | None = None,
    hosts: Collection[str] = (),
    idle_exit: float | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serves `retriever` until Ctrl-C or SIGTERM, then returns.

    It holds as many connections as the limit on open files allows (`ulimit -n`); beyond that, the one that has been
    idle or half-sent for longest gives way.

    Args:
        retriever: the backend.
        host: address to listen on; the default is reachable from this machine only. There is no authentication.
        port: port to listen on; 0 takes a free one.
        name: see `create_app`.
        limits: see `create_app`.
        hosts: names under which it may be addressed, besides IP addresses, localhost and `host`; any where `host` is
            reachable from other machines.
        idle_exit: stop after so many seconds without any open connection; None: never. Connections then stay open
            for as long as the client wants.
        on_ready: called with the server's URL as soon as it accepts connections.

    Raises:
        ConfigurationError: the address cannot be listened on.
        MissingDependencyError: FastAPI or uvicorn is not installed.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise _missing("uvicorn") from error
    limits = limits or Limits()
    app = create_app(retriever, name=name, limits=limits, hosts=[*hosts, host] if _is_local(host) else None)
    listener = _listen(host, port)
    room = room_for_connections()
    config = uvicorn.Config(
        app,
        http=guarded_protocol(room.connections, limits.request_timeout),
        backlog=room.backlog,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=75 if idle_exit is None else 7 * 24 * 3600,
        ws="none",
    )
    config.timeout_graceful_shutdown = 5
    server = uvicorn.Server(config)

    async def run() -> None:
        watchers = [asyncio.create_task(_lengthen_queue(server, listener))]
        if idle_exit is not None:
            watchers.append(asyncio.create_task(_stop_when_idle(server, idle_exit)))
        await server.serve(sockets=[listener])
        for watcher in watchers:
            watcher.cancel()

    with listener, _interruptible():
        if on_ready is not None:
            on_ready(f"http://{_for_url(host)}:{listener.getsockname()[1]}")
        asyncio.run(run())


async def _lengthen_queue(server: Any, listener: socket.socket) -> None:
    """Lets more connections wait in the system than asyncio accepts in a row, for which it takes one number."""
    while not server.started:
        await asyncio.sleep(0.01)
    listener.listen(_QUEUE)


async def _stop_when_idle(server: Any, idle_exit: float) -> None:
    idle = 0.0
    while idle < idle_exit:
        await asyncio.sleep(_IDLE_POLL)
        idle = 0.0 if server.server_state.connections else idle + _IDLE_POLL
    server.should_exit = True


@contextmanager
def _interruptible() -> Iterator[None]:
    """Lets SIGTERM and Ctrl-C end the block quietly: Uvicorn raises the signal again after it has shut down."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        logger.info("Interrupted; the server has stopped.")
    finally:
        signal.signal(signal.SIGTERM, before)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_QUEUE)
        # Accepted connections inherit it; asyncio sets it on sockets of its own making only, and each answer would
        # wait 40 ms for an acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"Cannot listen on {host}:{port}: {error}. Is another server running there? Port 0 takes a free one."
        ) from error


def _for_url(host: str) -> str:
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{reachable}]" if ":" in reachable else reachable


def _is_local(host: str) -> bool:
    """Returns whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _addressed(hosts: Collection[str] | None, handler: Handler, request: Request) -> Response:
    """Serves a request that calls the server by one of its names; None: any."""
    if hosts is not None:
        _check_host(request, hosts)
    return await handler(request)


def _check_host(request: Request, hosts: Collection[str]) -> None:
    name = request.headers.get("host", "").rpartition("@")[2]
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return
    if name.lower().rstrip(".") not in ("localhost", *map(str.lower, hosts)):
        raise _Refusal(400, f"This server is not called {name!r:.80}; address it by IP address or as localhost.")


def _check(queries: Any, k: Any, limits: Limits) -> None:
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise _Refusal(400, f"The queries must be a list of strings, got {queries!r:.80}.")
    if len(queries) > limits.max_queries:
        raise _Refusal(400, f"At most {limits.max_queries} queries in one request, got {len(queries)}.")
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= limits.max_k:
        raise _Refusal(
            400, f"The number of passages per query must be an integer from 1 to {limits.max_k}, got {k!r:.80}."
        )
    if len(queries) * k > limits.max_passages:
        raise _Refusal(
            400, f"At most {limits.max_passages} passages in one request, got {len(queries)} queries with {k} each."
        )


async def _json_object(request: Request, max_bytes: int) -> dict[str, Any]:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise _Refusal(413, f"The body must not be larger than {max_bytes} bytes.")
        parts.append(part)
    try:
        body = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise _Refusal(400, f"The body is not JSON: {error}.") from error
    if not isinstance(body, dict):
        raise _Refusal(400, f"The body must be a JSON object, got {type(body).__name__}.")
    return body


async def _refuse(request: Request, error: Exception) -> Response:
    response = _reply(_error(str(error)), error.status if isinstance(error, _Refusal) else 500)
    if response.status_code == 408:
        response.headers["Connection"] = "close"  # what the client still sends would be taken for a request
    return response


def _reply(body: bytes, status: int = 200) -> Response:
    from fastapi import Response

    return Response(body, status_code=status, media_type="application/json")


def _error(message: str) -> bytes:
    return json.dumps({"error": message}).encode()


def _missing(package: str) -> MissingDependencyError:
    return MissingDependencyError(f"The retrieval server needs {package}: {install_command('server')}")
