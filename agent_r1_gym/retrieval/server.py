"""A retrieval server that Search-R1's and Agent-R1's clients can talk to as they are (see `wire`)."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agent_r1_gym.errors import ConfigurationError, MissingDependencyError
from agent_r1_gym.retrieval.base import Retriever

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

    from agent_r1_gym.retrieval.wire import Protocol

_DEFAULT_K = 5
_IDLE_POLL = 0.25
logger = logging.getLogger(__name__)


class _BadRequest(Exception):
    """A request that cannot be served: HTTP status and what is wrong with it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def create_app(
    retriever: Retriever,
    *,
    name: str = "",
    max_queries: int = 1024,
    max_k: int = 1000,
    max_bytes: int = 16 * 2**20,
) -> FastAPI:
    """Returns an ASGI application that answers searches with `retriever`.

    Endpoints: `POST /retrieve` (Search-R1), `POST /search` and `GET /search?query=&top_k=` (Agent-R1), `GET /health`.
    A bad request gets 400 (413 if too large), a failing retriever 503, each with `{"error": ...}`. All searches run
    in one thread, one after the other: backends need not be thread-safe.

    Args:
        retriever: the backend.
        name: identity that `/health` tells, so that a client can be sure whom it talks to.
        max_queries: queries in one request.
        max_k: passages per query.
        max_bytes: size of a request's body.

    Raises:
        MissingDependencyError: FastAPI is not installed.
    """
    try:
        from fastapi import FastAPI
    except ImportError as error:
        raise _missing("fastapi") from error
    service = _Service(retriever, name, max_queries, max_k, max_bytes)
    app = FastAPI(title="agent-r1-gym retrieval", openapi_url=None)
    app.add_exception_handler(_BadRequest, _refuse)
    # Plain routes: requests are checked by hand, so that no model is built and validated for each document.
    app.add_route("/retrieve", service.retrieve, methods=["POST"])
    app.add_route("/search", service.search_batch, methods=["POST"])
    app.add_route("/search", service.search, methods=["GET"])
    app.add_route("/health", service.health, methods=["GET"])
    return app


class _Service:
    """The endpoints; see `create_app`."""

    def __init__(self, retriever: Retriever, name: str, max_queries: int, max_k: int, max_bytes: int) -> None:
        self._retriever = retriever
        self._name = name
        self._max_queries, self._max_k, self._max_bytes = max_queries, max_k, max_bytes
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retriever")

    async def retrieve(self, request: Request) -> Response:
        body = await _json_object(request, self._max_bytes)
        k = body.get("topk")
        scores = bool(body.get("return_scores", False))
        return await self._answer("search-r1", body.get("queries"), _DEFAULT_K if k is None else k, scores)

    async def search_batch(self, request: Request) -> Response:
        body = await _json_object(request, self._max_bytes)
        return await self._answer("agent-r1", body.get("queries"), body.get("top_k", _DEFAULT_K))

    async def search(self, request: Request) -> Response:
        k = request.query_params.get("top_k", str(_DEFAULT_K))
        if "query" not in request.query_params:
            raise _BadRequest(400, "The parameter 'query' is missing: GET /search?query=...&top_k=5.")
        queries = [request.query_params["query"]]
        return await self._answer("agent-r1", queries, int(k) if k.isdecimal() and len(k) < 10 else k)

    async def health(self, request: Request) -> Response:
        answer = {"status": "ok", "name": self._name, "retriever": type(self._retriever).__name__}
        return _reply(json.dumps(answer).encode())

    async def _answer(self, protocol: Protocol, queries: Any, k: Any, scores: bool = True) -> Response:
        from agent_r1_gym.retrieval import wire

        _check(queries, k, max_queries=self._max_queries, max_k=self._max_k)

        def work() -> bytes:
            return wire.encode_answer(protocol, queries, self._retriever.search_batch(queries, k), scores=scores)

        try:
            return _reply(await asyncio.get_running_loop().run_in_executor(self._thread, work))
        except Exception as error:
            logger.warning("A search failed: %s: %s", type(error).__name__, error)
            return _reply(_error(f"{type(error).__name__}: {error}"), 503)


def serve(
    retriever: Retriever,
    host: str = "127.0.0.1",
    *,
    port: int = 8000,
    name: str = "",
    idle_exit: float | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serves `retriever` until Ctrl-C or SIGTERM, then returns.

    Args:
        retriever: the backend.
        host: address to listen on; the default is reachable from this machine only. There is no authentication.
        port: port to listen on; 0 takes a free one.
        name: see `create_app`.
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
    app = create_app(retriever, name=name)
    listener = _listen(host, port)
    keep_alive = 75 if idle_exit is None else 7 * 24 * 3600
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=keep_alive, ws="none"
    )
    config.timeout_graceful_shutdown = 5
    server = uvicorn.Server(config)

    async def run() -> None:
        watcher = None if idle_exit is None else asyncio.create_task(_stop_when_idle(server, idle_exit))
        await server.serve(sockets=[listener])
        if watcher is not None:
            watcher.cancel()

    with listener, _interruptible():
        if on_ready is not None:
            on_ready(f"http://{_for_url(host)}:{listener.getsockname()[1]}")
        asyncio.run(run())


async def _stop_when_idle(server: Any, idle_exit: float) -> None:
    idle = 0.0
    while idle < idle_exit:
        await asyncio.sleep(_IDLE_POLL)
        idle = 0.0 if server.server_state.connections else idle + _IDLE_POLL
    server.should_exit = True


@contextmanager
def _interruptible() -> Iterator[None]:
    """Lets SIGTERM and Ctrl-C end the block quietly; Uvicorn raises either again after it has shut down."""
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
        listener = socket.create_server((host, port), family=family, backlog=2048)
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


def _check(queries: Any, k: Any, *, max_queries: int, max_k: int) -> None:
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise _BadRequest(400, f"The queries must be a list of strings, got {queries!r:.80}.")
    if len(queries) > max_queries:
        raise _BadRequest(400, f"At most {max_queries} queries in one request, got {len(queries)}.")
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= max_k:
        raise _BadRequest(400, f"The number of passages per query must be an integer from 1 to {max_k}, got {k!r:.80}.")


async def _json_object(request: Request, max_bytes: int) -> dict[str, Any]:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise _BadRequest(413, f"The body must not be larger than {max_bytes} bytes.")
        parts.append(part)
    try:
        body = json.loads(b"".join(parts))
    except (ValueError, RecursionError) as error:
        raise _BadRequest(400, f"The body is not JSON: {error}.") from error
    if not isinstance(body, dict):
        raise _BadRequest(400, f"The body must be a JSON object, got {type(body).__name__}.")
    return body


async def _refuse(request: Request, error: Exception) -> Response:
    return _reply(_error(str(error)), error.status if isinstance(error, _BadRequest) else 500)


def _reply(body: bytes, status: int = 200) -> Response:
    from fastapi import Response

    return Response(body, status_code=status, media_type="application/json")


def _error(message: str) -> bytes:
    return json.dumps({"error": message}).encode()


def _missing(package: str) -> MissingDependencyError:
    return MissingDependencyError(f'The retrieval server needs {package}: pip install "agent-r1-gym[server]"')
