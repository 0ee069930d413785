"""Sessions with an MCP server: started, called and ended from ordinary code, on one event loop per process."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import tempfile
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, BinaryIO

from agent_r1_gym.errors import InfrastructureError, InfrastructureTimeout, ToolError
from agent_r1_gym.support.event_loop import EventLoop
from agent_r1_gym.support.secrets import Secrets

_LOOP = EventLoop("agent-r1-mcp")
_LONGEST_END = 15.0
"""Seconds that anybody waits for a session to end; the library kills a server that lasts after four."""
_MOST_PAGES = 100
_MAX_DETAIL = 400
_INVALID_PARAMS = -32602
_CONNECTION_CLOSED = -32000
_LOGIN = (401, 403, 407)
_MAX_BYTES = 16 * 2**20
"""Size of the largest answer that a server may send over HTTP as an event."""
_open_sessions: set[McpSession] = set()
logging.getLogger("mcp").addHandler(logging.NullHandler())
"""Keeps the library's log, tracebacks of garbage included, from the terminal of programs that set up no logging."""


@dataclass(frozen=True, repr=False)
class Address:
    """How an MCP server is reached.

    Attributes:
        name: shown in messages; it holds no credentials.
        command: program and arguments of a server to start, or None.
        env: environment variables for it, beside a few harmless ones (PATH, HOME, ...).
        cwd: its working folder.
        url: address of a running server, or None.
        headers: sent to it; or a function that returns them, asked once per session.
        connect_timeout: seconds until a session is open.
    """

    name: str
    command: Sequence[str] | None
    env: Mapping[str, str] | None
    cwd: str | None
    url: str | None
    headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None
    connect_timeout: float

    def secrets(self) -> Secrets:
        """Returns what no message may show; headers that a function returns are added when it has returned them."""
        headers = () if callable(self.headers) else (self.headers or {}).values()
        parts = urllib.parse.urlsplit(self.url or "")
        in_url = [value for _, value in urllib.parse.parse_qsl(parts.query)]
        return Secrets([*(self.env or {}).values(), *headers, *in_url, parts.password or ""])


class McpSession:
    """An open session. A session that broke stays broken: what the server knew of it is lost.

    `close` does not wait, so that the end of an episode costs no time; `wait_closed` does.

    Attributes:
        tools: what the server listed when the session was opened, as MCP writes it.
        secrets: what of an answer nobody may read.
        broken: why it cannot be used any more, None while it can.
        closing: whether it was told to end.
        pid: the process that it belongs to.

    Raises:
        InfrastructureError: there is no such server, or it does not speak MCP.
        InfrastructureTimeout: it is not ready in time.
    """

    def __init__(self, address: Address, on_change: Callable[[], None] = lambda: None) -> None:
        self.tools: list[dict[str, Any]] = []
        self.broken: str | None = None
        self._address, self.secrets, self._on_change = address, address.secrets(), on_change
        self._headers = self._current_headers()
        self.secrets.add(self._headers.values())
        self._session: Any = None
        self.closing = False
        self._stop = asyncio.Event()
        self._last_words = ""
        self.pid = os.getpid()
        ready: Future[None] = Future()
        _open_sessions.add(self)
        self._task = _LOOP.submit(self._live(ready))
        try:
            ready.result(address.connect_timeout + _LONGEST_END)
        except TimeoutError as error:
            self.close()
            raise self._failure("did not start", error, InfrastructureTimeout) from None
        except Exception as error:
            raise self._failure("did not start", error) from None

    def call(self, name: str, arguments: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Returns the result of a call as MCP writes it: `content`, `structuredContent`, `isError`.

        Raises:
            ToolError: the server refuses the arguments.
            InfrastructureError: it died, or breaks the protocol.
            InfrastructureTimeout: it did not answer in time.
        """
        if self.broken is not None:
            raise InfrastructureError(self.broken)
        try:
            return _LOOP.run(self._call(name, arguments, timeout), timeout + 5)
        except (TimeoutError, InfrastructureTimeout):
            message = f"MCP server {self._address.name!r} did not answer within {timeout:g} s."
            raise InfrastructureTimeout(message) from None
        except Exception as error:
            raise self._of_a_call(error) from None

    def close(self) -> None:
        """Begins to end the session, and the server if this session started it; may be called twice."""
        if not self.closing:
            self.closing = True
            _LOOP.submit(self._end())

    def wait_closed(self) -> None:
        """Waits until the session has ended and its process is gone."""
        self.close()
        with contextlib.suppress(Exception):
            self._task.result(_LONGEST_END)

    @property
    def ended(self) -> bool:
        """Whether nothing of it is left."""
        return self._task.done()

    def _current_headers(self) -> dict[str, str]:
        headers = self._address.headers
        try:
            return dict(headers() if callable(headers) else headers or {})
        except Exception as error:
            problem = f"headers= of MCP server {self._address.name!r} failed: {type(error).__name__}."
            raise InfrastructureError(problem) from error

    async def _end(self) -> None:
        self._stop.set()

    async def _call(self, name: str, arguments: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        import anyio

        with anyio.fail_after(timeout):
            result = await self._session.call_tool(name, dict(arguments))
        wire: dict[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return wire

    async def _live(self, ready: Future[None]) -> None:
        """Keeps the session open until it is told to stop; all that is opened here is closed here."""
        import anyio
        from mcp import ClientSession

        try:
            async with (
                self._streams() as (read, write),
                ClientSession(read, write, message_handler=self._on_message) as session,
            ):
                self._session = session
                with anyio.fail_after(self._address.connect_timeout):
                    await session.initialize()
                    self.tools = await _listed(session)
                ready.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            self.broken = f"The session with MCP server {self._address.name!r} has broken off."
            if not ready.done():
                ready.set_exception(_leaf(error))
        finally:
            self._session = None
            _open_sessions.discard(self)

    @contextlib.asynccontextmanager
    async def _streams(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yields the streams of a connection to the address."""
        if self._address.command is None:
            async with self._http_streams(str(self._address.url)) as streams:
                yield streams
            return
        from mcp import StdioServerParameters, stdio_client

        program, *words = self._address.command
        variables = dict(self._address.env or {})
        server = StdioServerParameters(
            command=program, args=words, env=variables, cwd=self._address.cwd, encoding_error_handler="replace"
        )
        with tempfile.TemporaryFile() as stderr:  # of the server, which would fill the terminal of a training
            try:
                async with stdio_client(server, errlog=stderr) as streams:  # type: ignore[arg-type] # any file will do
                    yield streams
            finally:
                self._last_words = _last_line(stderr)

    @contextlib.asynccontextmanager
    async def _http_streams(self, url: str) -> AsyncIterator[tuple[Any, Any]]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async def note(response: Any) -> None:
            if response.status_code in _LOGIN:
                self._last_words = f"HTTP {response.status_code}, it wants a login: give headers="

        # The library follows a redirect within the server's own origin only, so that headers reach nobody else.
        options: dict[str, Any] = {"headers": self._headers, "trust_env": False, "event_hooks": {"response": [note]}}
        timeout = httpx2.Timeout(self._address.connect_timeout, read=None)  # calls have a time limit of their own
        async with (
            httpx2.AsyncClient(timeout=timeout, **options) as client,
            streamable_http_client(url, http_client=client, max_sse_event_size=_MAX_BYTES) as streams,
        ):
            yield streams

    async def _on_message(self, message: Any) -> None:
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            self._on_change()

    def _failure(
        self, problem: str, error: BaseException, kind: type[InfrastructureError] = InfrastructureError
    ) -> InfrastructureError:
        """Returns what a model may read; the rest is a note, for the developer."""
        failure = kind(f"MCP server {self._address.name!r} {problem}.")
        with contextlib.suppress(Exception):
            self._task.result(1)  # then its last words are known
        cause = _leaf(error)
        late = f"It was not ready within {self._address.connect_timeout:g} s"
        said = [late if isinstance(cause, TimeoutError) else _line_of(cause), self._last_words]
        failure.add_note(self.secrets.hide("; it said: ".join(filter(None, said))))
        return failure

    def _of_a_call(self, error: Exception) -> Exception:
        code = getattr(error, "code", None)
        said = self.secrets.hide(_line_of(_leaf(error)))[:_MAX_DETAIL]
        if code == _INVALID_PARAMS:
            return ToolError(said)
        if code == _CONNECTION_CLOSED or code is None:
            self.broken = f"The session with MCP server {self._address.name!r} has broken off: {said}."
            return InfrastructureError(self.broken)
        return InfrastructureError(f"MCP server {self._address.name!r}: {said}")


async def _listed(session: Any) -> list[dict[str, Any]]:
    from mcp.types import PaginatedRequestParams

    tools: list[dict[str, Any]] = []
    cursor = None
    for _ in range(_MOST_PAGES):
        page = await session.list_tools(params=None if cursor is None else PaginatedRequestParams(cursor=cursor))
        wire = page.model_dump(by_alias=True, mode="json", exclude_none=True)
        tools += wire["tools"]
        cursor = wire.get("nextCursor")
        if not cursor:
            return tools
    raise InfrastructureError(f"it lists tools on more than {_MOST_PAGES} pages")


def _leaf(error: BaseException) -> BaseException:
    """Returns the first exception in groups of groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _line_of(error: BaseException) -> str:
    """Returns the first line of what an error says; its type, if it says nothing."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _last_line(file: BinaryIO) -> str:
    """Returns the last line of a file that says something."""
    size = file.seek(0, 2)
    file.seek(max(0, size - 4096))
    lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    return next((line[:_MAX_DETAIL] for line in reversed(lines) if line), "")


@atexit.register
def _end_all() -> None:
    """Ends what is still open when the program ends: a server that ignores a closed pipe would outlive it."""
    sessions = [session for session in _open_sessions if session.pid == os.getpid()]
    for session in sessions:
        session.close()
    for session in sessions:
        session.wait_closed()
