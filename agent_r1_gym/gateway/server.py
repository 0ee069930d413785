"""Gateway: one HTTP server per process, to which the programs of all episodes talk; the API key names the episode."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future
from types import ModuleType
from typing import TYPE_CHECKING

from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.gateway.episode import Episode
from agent_r1_gym.gateway.programs import read_result
from agent_r1_gym.gateway.protocols import anthropic, chat_completions, responses
from agent_r1_gym.gateway.protocols.fields import error_body
from agent_r1_gym.support.http_server import Handler, RequestError, json_response, new_app, read_object, run_app

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response

MAX_BODY_BYTES = 16 * 2**20
"""Maximum size of a request."""
_BODY_SECONDS = 30.0
_HEAD_SECONDS = 30.0
_START_SECONDS = 60.0
_SEAT_SECONDS, _POLL_SECONDS = 120.0, 0.05
_NEW_KEY = "Send a key of your own for each episode; the first request for a turn begins it."
_KEPT_KEYS = 4_096
"""Ended episodes whose late requests get status 410; those of earlier ones name an unknown key."""


class Gateway:
    """Routes the requests of programs to their episodes.

    Endpoints: `POST /v1/chat/completions`, `/v1/responses` and `/v1/messages`; `GET /v1/models`; `GET /v1/tools` and
    `POST /v1/tools/NAME`, the tools of the episode's environment; `POST /v1/result`, what the program reports of its
    episode. The key comes as `Authorization: Bearer KEY`, `x-api-key: KEY` or `x-agent-r1-episode: KEY`.

    Status codes: 400 for what is not supported, 401 for an unknown key, 404 for a second model, 410 for an episode that
    has ended, 413 for a body that is too large.
    """

    def __init__(self) -> None:
        self._episodes: dict[str, Episode] = {}
        self._free: deque[Episode] = deque()
        self._accepts_new_keys = False
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, episode: Episode) -> None:
        """Accept the requests of an episode."""
        with self._lock:
            self._episodes[episode.key] = episode

    def accept_new_keys(self) -> None:
        """Let requests with keys that are not known wait for an episode."""
        with self._lock:
            self._accepts_new_keys = True

    def offer(self, key: str) -> None:
        """Give an open episode to the first program that comes with a key of its own.

        Raises:
            InfrastructureError: no program may come any more: nothing would end a wait for one.
        """
        with self._lock:
            if not self._accepts_new_keys or key not in self._episodes:
                raise InfrastructureError("The gateway begins no further episode.")
            self._free.append(self._episodes[key])

    def refuse_new_keys(self) -> None:
        """Begin no further episode for a key that is not known."""
        with self._lock:
            self._accepts_new_keys = False
            self._free.clear()

    def close(self, episode: Episode, reason: str) -> None:
        """End an episode: requests that wait, and late ones, are refused; may be called twice."""
        with self._lock:
            for key in [key for key, each in self._episodes.items() if each is episode]:
                del self._episodes[key]
                self._ended[key] = None
            if episode in self._free:
                self._free.remove(episode)
            while len(self._ended) > _KEPT_KEYS:
                self._ended.popitem(last=False)
        episode.close(reason)

    def app(self) -> FastAPI:
        """Make the ASGI application."""
        routes: list[tuple[str, Handler, str]] = [
            ("/v1/chat/completions", functools.partial(self._turn, chat_completions), "POST"),
            ("/v1/responses", functools.partial(self._turn, responses), "POST"),
            ("/v1/messages", functools.partial(self._turn, anthropic), "POST"),
            # Anthropic's client adds the version to its base URL itself.
            ("/v1/v1/messages", functools.partial(self._turn, anthropic), "POST"),
            ("/v1/models", self._models, "GET"),
            ("/v1/tools", self._tools, "GET"),
            ("/v1/tools/{name:path}", self._call, "POST"),  # a model may write any name, slashes included
            ("/v1/result", self._result, "POST"),
        ]
        # Addresses without the version are a frequent mistake.
        routes += [(path.removeprefix("/v1"), handler, method) for path, handler, method in routes[:3]]
        routes = [(path, functools.partial(self._noting_refusals, handler), method) for path, handler, method in routes]
        return new_app("agent-r1-gym: gateway", routes, error_body=error_body, hosts=["127.0.0.1"])

    async def _noting_refusals(self, handler: Handler, request: Request) -> Response:
        """Answer a request; the episode keeps why one was refused, in case its program fails of that."""
        try:
            return await handler(request)
        except RequestError as error:
            with self._lock:
                episode = self._episodes.get(_key(request))
            if episode is not None:
                episode.refusal = f"{error.status}, {error}"
            raise

    async def _turn(self, protocol: ModuleType, request: Request) -> Response:
        from starlette.responses import Response as Plain

        self._episode(request, may_begin=False)  # before the body: a stranger's costs other episodes no time
        body = await read_object(request, max_bytes=MAX_BODY_BYTES, timeout=_BODY_SECONDS)
        turn_request = protocol.read(body)
        episode = self._episode(request)
        for _ in range(int(_SEAT_SECONDS / _POLL_SECONDS)):
            if episode is not None:
                break
            await asyncio.sleep(_POLL_SECONDS)
            if await request.is_disconnected():  # else its episode holds a place until it is idle
                raise RequestError(408, "The client has left.")
            episode = self._episode(request)
        if episode is None:
            raise RequestError(429, "As many episodes as there is room for are being played.", {"Retry-After": "5"})
        # Shielded: a client that leaves must not cancel the turn, which it or a twin may ask for again.
        turn = await asyncio.shield(asyncio.wrap_future(episode.submit(turn_request)))
        identifier = hashlib.sha256(f"{episode.key} {turn_request.key}".encode()).hexdigest()[:24]
        if not turn_request.stream:
            return json_response(protocol.write(turn_request, turn, identifier))
        return Plain(b"".join(protocol.stream(turn_request, turn, identifier)), media_type="text/event-stream")

    async def _models(self, request: Request) -> Response:
        self._known_episode(request)
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "agent-r1-gym"}
        return json_response(json.dumps({"object": "list", "data": [model]}).encode())

    async def _tools(self, request: Request) -> Response:
        return json_response(json.dumps({"data": self._known_episode(request).tools}).encode())

    async def _call(self, request: Request) -> Response:
        episode, name = self._known_episode(request), request.path_params["name"]
        body = await read_object(request, max_bytes=MAX_BODY_BYTES, timeout=_BODY_SECONDS)
        arguments = body.get("arguments", {})
        if not isinstance(arguments, dict):
            raise RequestError(400, f"arguments must be an object, got {arguments!r:.80}.")
        outcome = await asyncio.wrap_future(episode.call_tool(ToolCall(name, arguments)))
        answer = {"content": outcome.content, "ok": outcome.ok, "error": outcome.error}
        return json_response(json.dumps(answer).encode())

    async def _result(self, request: Request) -> Response:
        episode = self._known_episode(request)
        body = await read_object(request, max_bytes=MAX_BODY_BYTES, timeout=_BODY_SECONDS)
        try:
            episode.report(read_result(body, "The program"))
        except ConfigurationError as error:
            raise RequestError(400, str(error)) from error
        return json_response(b"{}")

    def _known_episode(self, request: Request) -> Episode:
        episode = self._episode(request, may_begin=False)
        if episode is None:
            raise RequestError(401, _NEW_KEY)
        return episode

    def _episode(self, request: Request, *, may_begin: bool = True) -> Episode | None:
        """Find the episode of a request, or begin one for a new key; None if it may not begin, or has no room now.

        Raises:
            RequestError: the key is missing or unknown, or its episode has ended.
        """
        key = _key(request)
        with self._lock:
            episode, ended = self._episodes.get(key), key in self._ended
            is_new = episode is None and not ended and self._accepts_new_keys and bool(key)
            if is_new and may_begin and self._free:
                episode = self._episodes[key] = self._free.popleft()
        if episode is not None or is_new:
            return episode
        if ended:
            raise RequestError(410, "The episode of this key has ended.")
        if self._accepts_new_keys:
            raise RequestError(401, _NEW_KEY)
        raise RequestError(401, "No episode has this key: send the api_key that the program was started with.")


def _key(request: Request) -> str:
    """Return the key of a request; "" if it has none."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    keys = [request.headers.get("x-agent-r1-episode"), request.headers.get("x-api-key")]
    return next(filter(None, [*keys, bearer.strip() if scheme.lower() == "bearer" else ""]), "")


class RunningGateway:
    """The gateway of this process with its server, which runs in a thread until the process ends.

    Args:
        port: port to listen on; 0 takes a free one.

    Attributes:
        gateway: routes the requests.
        base_url: address with the version, as OpenAI's clients take it.

    Raises:
        MissingDependencyError: FastAPI or Uvicorn is not installed.
        ConfigurationError: the port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        self.gateway = Gateway()
        app = self.gateway.app()
        url: Future[str] = Future()

        def serve() -> None:
            try:
                run_app(app, "127.0.0.1", port=port, request_timeout=_HEAD_SECONDS, on_ready=url.set_result)
            except BaseException as error:  # raised again in the thread that waits for the address
                if not url.done():
                    url.set_exception(error)

        threading.Thread(target=serve, name="agent-r1-gateway", daemon=True).start()
        self.base_url = f"{url.result(_START_SECONDS)}/v1"


_start_lock = threading.Lock()
_running: dict[int, RunningGateway] = {}
"""By process, for a fork has no server."""


def running_gateway(port: int = 0) -> RunningGateway:
    """Return the gateway of this process, started at the first call.

    Args:
        port: see `RunningGateway`; without effect on one that runs.
    """
    with _start_lock:
        if os.getpid() not in _running:
            _running.clear()
            _running[os.getpid()] = RunningGateway(port)
        return _running[os.getpid()]
