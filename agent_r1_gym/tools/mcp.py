"""Tools of MCP servers (Model Context Protocol), with one session per episode."""

from __future__ import annotations

import asyncio
import atexit
import base64
import contextlib
import json
import logging
import os
import re
import tempfile
import threading
import urllib.parse
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agent_r1_gym.core.text import sanitize
from agent_r1_gym.core.tool import Arguments, Tool
from agent_r1_gym.core.types import ToolOutcome
from agent_r1_gym.errors import (
    ConfigurationError,
    EpisodeError,
    InfrastructureError,
    InfrastructureTimeout,
    ToolError,
)
from agent_r1_gym.support.checks import check_seconds
from agent_r1_gym.support.concurrency import EventLoop
from agent_r1_gym.support.http import check_headers, header_problem
from agent_r1_gym.support.packages import check_package
from agent_r1_gym.support.resource_scope import ResourceScope
from agent_r1_gym.support.secrets import Secrets
from agent_r1_gym.tools.schemas import sanitize_description, sanitize_schema, valid_tool_names

Headers = Mapping[str, str] | Callable[[], Mapping[str, str]]
_GRACE = 10.0
"""Seconds by which a call's thread outlasts the call: the session cancels a call, a thread can only be abandoned."""
_MAX_CLOSE = 15.0
"""Seconds to wait for a session to end; the library kills a server that is still running after four."""
_MAX_PAGES = 100
_MAX_DETAIL = 400
_MAX_BYTES = 16 * 2**20
"""Size of the largest event that a server may send over HTTP."""
_INVALID_PARAMS = -32602
_CONNECTION_CLOSED = -32000
_SESSION_CODES = (-32600, -32001, -32000)
"""Of "Session terminated" (as the library reports HTTP 404), "Session not found", "No valid session ID"."""
_NO_HANDSHAKE = (-32022, -32601, -32600)
"""Of "Unsupported protocol version", "Method not found", "Invalid request": how servers answer `initialize` that speak
only revisions without it, from 2026-07-28 on."""
_LOGIN = (401, 403, 407)
_NO_CONTENT = "(no content)"
_NO_INPUT = "The tool asks its caller for further input, which cannot be given here."
_TEXT_TYPES = ("/json", "+json", "/xml", "+xml", "/yaml", "/javascript")
_LOOP = EventLoop("agent-r1-mcp")
_log = logging.getLogger(__name__)
# Without a handler, Python prints the library's warnings, with tracebacks of what broken servers send, on stderr.
logging.getLogger("mcp").addHandler(logging.NullHandler())


def mcp_tools(
    command: Sequence[str] | None = None,
    *,
    url: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    headers: Headers | None = None,
    shared: bool = False,
    prefix: str = "",
    timeout: float = 30.0,
    connect_timeout: float = 60.0,
    max_output_chars: int = 8_192,
) -> list[McpTool]:
    """Tools of an MCP server, for `ToolEnv(tools=...)`: `mcp_tools(["python", "server.py"])`.

    The tools are listed once, here, in a short session; every episode has this list. Each episode opens its own session
    at its first call (over stdio, with its own server process) and closes it when it ends. If the server lists
    different tools later, this is logged, and the episodes keep the first list.

    The model reads text, JSON and text resources; structured content as JSON, unless a text is the same; and a note
    where a result has no content. A result of images or audio only is a tool error, as are the server's own errors
    (`isError`) and refused arguments. Results are not checked against a tool's `outputSchema`. A server that dies,
    hangs or breaks the protocol is an infrastructure failure and marks the episode; after a death, the later calls of
    the episode fail at once, because a new server would not know the earlier ones.

    The tools can be pickled (with headers and environment) and used in other processes, which open their own sessions.
    The calls of one turn run one after the other: a server may keep state between them.

    Args:
        command: program and arguments of a server to start, which speaks MCP over stdin and stdout.
        url: URL of a running server instead (streamable HTTP): "http://127.0.0.1:8000/mcp".
        env: environment variables for the server, in addition to PATH, HOME, LOGNAME, SHELL, TERM and USER; use them
            for credentials.
        cwd: its working directory.
        headers: HTTP headers for `url`, or a function that returns them at the start of each session; use them for
            credentials. Their values are removed from everything that a model or a log can show.
        shared: one session for all episodes of a process, for servers without state.
        prefix: put before the name of each tool, in case two servers have tools of the same name.
        timeout: seconds per call.
        connect_timeout: seconds to open a session, including the start of the server.
        max_output_chars: longer outputs are truncated, with a note.

    Raises:
        ConfigurationError: neither or both of `command` and `url`, an invalid value, or no tool can be used (one whose
            schema cannot be checked is skipped with a warning).
        InfrastructureError: the server cannot be reached, requires a login, or does not speak MCP.
        MissingDependencyError: the package `mcp` is not installed, or in another version.
    """
    check_seconds("timeout", timeout)
    address = _address(command, url, env, cwd, headers, connect_timeout)
    check_package("mcp", 2, extra="mcp", purpose="Tools of MCP servers")
    server = McpServer(address, shared=shared)
    listed = {spec["name"]: spec for spec in reversed(server.listed)}  # the first of two of one name
    specs = [spec for spec in server.listed if spec is listed[spec["name"]]]
    names = valid_tool_names([spec["name"] for spec in specs], prefix=prefix, source=f"MCP server {server.name!r}")
    tools, unfit = (
        [],
        [
            f"MCP server {server.name!r} lists {spec['name']!r} twice, with different definitions; the first is used."
            for spec in server.listed
            if spec != listed[spec["name"]]
        ],
    )
    for spec in specs:
        try:
            tools.append(McpTool(server, spec, names[spec["name"]], timeout=timeout, max_output_chars=max_output_chars))
        except ConfigurationError as error:
            unfit.append(str(error))
    if not tools:
        raise ConfigurationError(
            f"MCP server {server.name!r} lists no tool that can be used. {' '.join(unfit)}"[:1_000]
        )
    if unfit:
        warnings.warn(f"Tools are skipped: {' '.join(unfit)}"[:2_000], stacklevel=2)
    return tools


class McpTool(Tool):
    """A tool of an MCP server (see `mcp_tools`)."""

    per_episode = True

    def __init__(
        self, server: McpServer, spec: Mapping[str, Any], name: str, *, timeout: float, max_output_chars: int
    ) -> None:
        parameters = sanitize_schema(spec.get("inputSchema"), f"Tool {spec['name']!r} of MCP server {server.name!r}")
        description = sanitize_description(spec.get("description") or spec.get("title"), otherwise=spec["name"])
        super().__init__(name, description, parameters, timeout=timeout, max_output_chars=max_output_chars)
        self.server = server
        self._remote_name: str = spec["name"]
        self._call_timeout = timeout
        self.timeout = timeout + server.address.connect_timeout + _GRACE  # the first call opens the session

    def execute(self, arguments: Arguments) -> ToolOutcome:
        """Call the tool in the session of the episode."""
        session = self.server.session(self.resources)
        if all(spec["name"] != self._remote_name for spec in session.tools):
            raise InfrastructureError(f"MCP server {self.server.name!r} no longer has a tool {self._remote_name!r}.")
        return _outcome(session.call(self._remote_name, arguments, self._call_timeout), session.secrets)

    def get_state(self) -> None:
        """Return None: before the first call of an episode, and in shared sessions, there is no state to save.

        Raises:
            EpisodeError: the episode has called the server, whose memory cannot be copied.
        """
        if not self.server.shared and len(self.resources) > 0:
            raise EpisodeError(
                f"An episode that has called MCP server {self.server.name!r} cannot be saved: the server's memory "
                "cannot be copied. Pass mcp_tools(shared=True) if the server has no state."
            )

    def close(self) -> None:
        """End the shared session, and wait for sessions that are closing; those of running episodes stay open."""
        if "_episode" in vars(self):  # it was called outside of an environment
            vars(self).pop("_episode").close()
        self.server.close()

    def __repr__(self) -> str:
        return f"McpTool({self.name!r}, of {self.server.name!r})"


def _outcome(result: Mapping[str, Any], secrets: Secrets) -> ToolOutcome:
    """What the model reads of a result, with its structured content as `data`.

    Raises:
        ToolError: the tool failed, or its result has no text.
    """
    texts, hidden_types = [], []
    for part in result.get("content", []):
        if part.get("type") == "text":
            texts.append(str(part["text"]))
        elif part.get("type") == "resource_link":
            texts.append(f"{part.get('name', '')}: {part.get('uri', '')}")
        elif (text := _resource_text(part.get("resource", {}))) is not None:
            texts.append(text)
        else:
            kind = part.get("mimeType") or part.get("resource", {}).get("mimeType")
            hidden_types.append(kind or part.get("type", "?"))
    structured = secrets.redact_json(result.get("structuredContent"))
    if structured is not None and not _is_shown(structured, texts) and not (texts and result.get("isError")):
        texts.append(json.dumps(structured, ensure_ascii=False))
    if hidden_types and not texts and not result.get("isError"):
        raise ToolError(f"The result is only {', '.join(map(sanitize, hidden_types))}, which cannot be shown.")
    text = secrets.redact("\n".join([*texts, *(f"[{kind}, not shown]" for kind in hidden_types)]))
    if result.get("isError"):
        raise ToolError(text or "The tool failed without an error message.")
    return ToolOutcome(text or _NO_CONTENT, data=structured)


def _resource_text(resource: Mapping[str, Any]) -> str | None:
    """Text of an embedded resource, which some servers send as bytes; None: it is not a text."""
    if resource.get("text") is not None:
        return str(resource["text"])
    kind = str(resource.get("mimeType", "")).partition(";")[0]
    if resource.get("blob") is None or not (kind.startswith("text/") or kind.endswith(_TEXT_TYPES)):
        return None
    try:
        return base64.b64decode(resource["blob"]).decode()
    except ValueError:  # not base64, or not UTF-8
        return None


def _is_shown(structured: Any, texts: Sequence[str]) -> bool:
    """Whether the texts of a result are its structured content as JSON, as the protocol recommends.

    Libraries wrap what is not an object (`{"result": 7}`), and send each item of a list as a text.
    """
    is_wrapped = isinstance(structured, dict) and len(structured) == 1
    values = [structured, *(structured.values() if is_wrapped else ())]
    parsed = [_json_or_text(text) for text in texts]
    return any(value in parsed or value == parsed or str(value) in texts for value in values)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# --- servers ---------------------------------------------------------------------------------------------------------


class McpServer:
    """An MCP server and this process's sessions with it; pickles as its address.

    Attributes:
        address: how to reach it.
        listed: the tools that it listed first, in MCP's format.
    """

    def __init__(self, address: McpServerConfig, *, shared: bool) -> None:
        self.address, self.shared = address, shared
        self.listed: list[dict[str, Any]] = []
        self._reset()
        try:
            session = McpSession(address)
        except InfrastructureError as error:  # the developer sees the details, which a model must not
            notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
            raise type(error)(f"{error}{notes}") from None
        session.wait_closed()
        self.listed = session.tools

    def _reset(self) -> None:
        """Reset what belongs to one process: after a fork or a pickle, sessions and locks are another process's."""
        self._pid, self._lock = os.getpid(), threading.RLock()
        self._shared_lifetime = ResourceScope()
        self._sessions: set[McpSession] = set()
        self._logged: set[str] = set()

    @property
    def name(self) -> str:
        """Name in messages."""
        return self.address.name

    def session(self, resources: ResourceScope) -> McpSession:
        """The session of an episode, or the shared one; the first call opens it.

        Raises:
            InfrastructureError: it cannot be opened, or broke in this episode.
        """
        if self._pid != os.getpid():
            self._reset()
        if not self.shared:
            return resources.get(self, self._open)
        with self._lock:
            session = self._shared_lifetime.get(self, self._open)
            if session.broken is None:
                return session
            self._shared_lifetime.close()
            self._shared_lifetime = ResourceScope()
            return self._shared_lifetime.get(self, self._open)

    def close(self) -> None:
        """End this process's shared session, and wait for all sessions that are closing."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._shared_lifetime.close()
            self._shared_lifetime = ResourceScope()
            closing = [session for session in self._sessions if session.closing]
        for session in closing:
            session.wait_closed()

    def _open(self) -> McpSession:
        try:
            session = McpSession(self.address, on_change=lambda: self._log_once("reports that its tools have changed"))
        except InfrastructureError as error:
            _log.warning("%s %s", error, " ".join(getattr(error, "__notes__", ())))
            raise
        with self._lock:
            self._sessions = {other for other in self._sessions if not other.ended} | {session}
        before, now = ({spec["name"]: spec for spec in listed} for listed in (self.listed, session.tools))
        if before != now:
            changed = [name for name in before.keys() & now.keys() if before[name] != now[name]]
            removed, added = before.keys() - now.keys(), now.keys() - before.keys()
            self._log_once(
                f"lists different tools: added {sorted(added)}, removed {sorted(removed)}, changed {sorted(changed)}"
            )
        return session

    def _log_once(self, change: str) -> None:
        if change not in self._logged:
            self._logged.add(change)
            _log.warning("MCP server %r %s. Episodes keep the list that mcp_tools() found.", self.name, change)

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address, "shared": self.shared, "listed": self.listed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    def __deepcopy__(self, memo: dict[int, Any]) -> McpServer:
        return self  # copies of an environment use the same server, with their own sessions

    def __repr__(self) -> str:
        return f"McpServer({self.name!r})"


@dataclass(frozen=True, repr=False)
class McpServerConfig:
    """How to reach an MCP server.

    Attributes:
        name: name in messages, without credentials.
        command: program and arguments of a server to start, or None.
        env: environment variables for it, in addition to a few harmless ones (PATH, HOME, ...).
        cwd: its working directory.
        url: URL of a running server, or None.
        headers: sent to it; a function is called once per session.
        connect_timeout: seconds until a session is open.
    """

    name: str
    command: Sequence[str] | None
    env: Mapping[str, str] | None
    cwd: str | None
    url: str | None
    headers: Headers | None
    connect_timeout: float


def _address(
    command: Sequence[str] | None,
    url: str | None,
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
    headers: Headers | None,
    connect_timeout: float,
) -> McpServerConfig:
    if (command is None) == (url is None):
        raise ConfigurationError('Pass mcp_tools() either command=["python", "server.py"] or url="http://.../mcp".')
    check_seconds("connect_timeout", connect_timeout)
    for name, value in (("env", env), ("headers", None if callable(headers) else headers)):
        if value is not None and not (
            isinstance(value, Mapping) and all(isinstance(part, str) for item in value.items() for part in item)
        ):
            raise ConfigurationError(f"{name} must map names to strings, got {type(value).__name__} of other things.")
    if command is None:
        if env is not None or cwd is not None:
            raise ConfigurationError("env and cwd are for a server that command= starts; url= takes headers=.")
        check_headers({} if headers is None or callable(headers) else headers, "headers= of mcp_tools()")
        return McpServerConfig(_shown_url(str(url)), None, None, None, url, headers, connect_timeout)
    if isinstance(command, str) or not command or not all(isinstance(word, str) and word for word in command):
        raise ConfigurationError(
            f'command must be a list of words, as in ["python", "server.py"], got {command!r:.80}.'
        )
    if headers is not None:
        raise ConfigurationError("headers are for a server at url=; one that command= starts takes env=.")
    folder = None if cwd is None else os.fspath(cwd)
    return McpServerConfig(_shown_command(command), tuple(command), env, folder, None, None, connect_timeout)


def _shown_command(command: Sequence[str]) -> str:
    """The program and the script it runs, without later arguments, which may hold credentials."""
    program, *words = command
    shown = [Path(program).name]
    while words and words[0] in ("-m", "-u", "-y", "run"):
        shown.append(words.pop(0))
    return " ".join(
        shown + [Path(word).name for word in words[:1] if re.fullmatch(r"[\w@./-]+", word) and word[0] != "-"]
    )


def _shown_url(url: str) -> str:
    """The URL without user, password and query, which may hold credentials."""
    try:
        parts = urllib.parse.urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError as error:
        raise ConfigurationError(f"url is not the URL of a server: {error}.") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"url must look like 'http://127.0.0.1:8000/mcp', got {url.split('?')[0]!r:.80}.")
    return f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


# --- sessions --------------------------------------------------------------------------------------------------------


class McpSession:
    """An open session, used from ordinary code; it runs on one event loop per process.

    A session that breaks stays broken: what the server knew of the episode is lost. `close` does not wait, so that the
    end of an episode takes no time; `wait_closed` does.

    Attributes:
        tools: what the server listed when the session was opened, in MCP's format.
        secrets: credentials to remove from results.
        broken: why it can no longer be used, None while it can.
        closing: whether it is closing or closed.
        pid: process that it belongs to.

    Raises:
        InfrastructureError: there is no such server, or it does not speak MCP.
        InfrastructureTimeout: it is not ready in time.
    """

    def __init__(self, address: McpServerConfig, on_change: Callable[[], None] = lambda: None) -> None:
        self.tools: list[dict[str, Any]] = []
        self.broken: str | None = None
        self.closing = False
        self.pid = os.getpid()
        self._address, self._on_change = address, on_change
        try:
            self._headers = dict(address.headers() if callable(address.headers) else address.headers or {})
        except Exception as error:  # the message must not quote the error, which may hold a credential
            problem = f"headers= of MCP server {address.name!r} failed: {type(error).__name__}."
            raise InfrastructureError(problem) from error
        if fault := header_problem(self._headers):
            raise InfrastructureError(f"headers= of MCP server {address.name!r} cannot be sent: {fault}.")
        parts = urllib.parse.urlsplit(address.url or "")
        in_url = [value for _, value in urllib.parse.parse_qsl(parts.query)]
        self.secrets = Secrets([*(address.env or {}).values(), *self._headers.values(), *in_url, parts.password or ""])
        self._session: Any = None
        self._stop = asyncio.Event()
        self._server_detail = ""
        ready: Future[None] = Future()
        _open_sessions.add(self)
        self._task = _LOOP.submit(self._live(ready))
        try:
            ready.result(address.connect_timeout + _MAX_CLOSE)
        except TimeoutError as error:
            self.close()
            raise self._start_failure(error, InfrastructureTimeout) from None
        except Exception as error:
            raise self._start_failure(error) from None

    def call(self, name: str, arguments: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Call a tool; the result in MCP's format: `content`, `structuredContent`, `isError`.

        Raises:
            ToolError: the server refuses the arguments.
            InfrastructureError: it died, or breaks the protocol.
            InfrastructureTimeout: it did not answer in time.
        """
        if self.broken is not None:
            raise InfrastructureError(self.broken)
        server = f"MCP server {self._address.name!r}"
        try:
            return _LOOP.run(self._call(name, arguments, timeout), timeout + 5)
        except (TimeoutError, InfrastructureTimeout):
            raise InfrastructureTimeout(f"{server} did not answer within {timeout:g} s.") from None
        except Exception as error:
            code = getattr(error, "code", None)
            detail = self.secrets.redact(_first_line(_leaf(error)))[:_MAX_DETAIL]
            if code == _INVALID_PARAMS:
                raise ToolError(detail) from None
            if type(_leaf(error)).__name__ == "ValidationError":  # of this result; the session lives
                raise InfrastructureError(f"{server} sent a result that breaks the protocol: {detail}") from None
            # The code alone says nothing: servers use it for any error of theirs.
            closed = code == _CONNECTION_CLOSED and detail == "Connection closed"
            if code is None or closed or (code in _SESSION_CODES and "session" in detail.lower()):
                self.broken = f"The session with {server} has broken off: {detail}."
                raise InfrastructureError(self.broken) from None
            raise InfrastructureError(f"{server}: {detail}") from None

    def close(self) -> None:
        """Begin to end the session, and the server if this session started it; may be called twice."""
        if not self.closing:
            self.closing = True
            _LOOP.submit(self._end())

    def wait_closed(self) -> None:
        """Wait until the session has ended and its process is gone."""
        self.close()
        with contextlib.suppress(Exception):
            self._task.result(_MAX_CLOSE)

    @property
    def ended(self) -> bool:
        """Whether it has ended, its process included."""
        return self._task.done()

    async def _end(self) -> None:
        self._stop.set()

    async def _call(self, name: str, arguments: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        import anyio
        from mcp.types import InputRequiredResult

        with anyio.fail_after(timeout):
            result = await self._session.call_tool(name, dict(arguments), allow_input_required=True)
        if isinstance(result, InputRequiredResult):
            return {"isError": True, "content": [{"type": "text", "text": _NO_INPUT}]}
        wire: dict[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        return wire

    async def _live(self, ready: Future[None]) -> None:
        """Keep the session open until it is closed; what this task opens, anyio requires the same task to close."""
        import anyio
        from mcp import ClientSession

        class Session(ClientSession):
            async def validate_tool_result(self, name: str, result: Any) -> None:
                """Skip the check against `outputSchema`: it would cost an episode what the model can well read."""

        try:
            async with (
                self._streams() as (read, write),
                Session(read, write, message_handler=self._on_message) as session,
            ):
                self._session = session
                with anyio.fail_after(self._address.connect_timeout):
                    await _negotiate(session)
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
        """Connect to the address."""
        if self._address.command is None:
            async with self._http_streams(str(self._address.url)) as streams:
                yield streams
            return
        from mcp import StdioServerParameters, stdio_client

        program, *words = self._address.command
        variables = dict(self._address.env or {})
        # "replace": one byte on stdout that is not UTF-8 would otherwise end the session.
        server = StdioServerParameters(
            command=program, args=words, env=variables, cwd=self._address.cwd, encoding_error_handler="replace"
        )
        with tempfile.TemporaryFile() as stderr:  # the server's own would fill the terminal of a training run
            try:
                async with stdio_client(server, errlog=stderr) as streams:  # type: ignore[arg-type] # any file will do
                    yield streams
            finally:
                line = _last_line(stderr)
                self._server_detail = f"its last line on stderr: {line}" if line else ""

    @contextlib.asynccontextmanager
    async def _http_streams(self, url: str) -> AsyncIterator[tuple[Any, Any]]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        async def note_login(response: Any) -> None:
            if response.status_code in _LOGIN:
                self._server_detail = f"HTTP {response.status_code}, it requires a login: pass headers="

        # The library follows redirects within the server's origin only, so no other server gets the headers.
        options: dict[str, Any] = {"headers": self._headers, "trust_env": False}
        timeout = httpx2.Timeout(self._address.connect_timeout, read=None)  # calls have their own time limit
        async with (
            httpx2.AsyncClient(timeout=timeout, event_hooks={"response": [note_login]}, **options) as client,
            streamable_http_client(url, http_client=client, max_sse_event_size=_MAX_BYTES) as streams,
        ):
            yield streams

    async def _on_message(self, message: Any) -> None:
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            self._on_change()

    def _start_failure(
        self, error: BaseException, kind: type[InfrastructureError] = InfrastructureError
    ) -> InfrastructureError:
        """An error whose message a model may read; the details are a note, for the developer."""
        failure = kind(f"MCP server {self._address.name!r} did not start.")
        with contextlib.suppress(Exception):
            self._task.result(1)  # then its stderr is known
        cause = _leaf(error)
        late = f"It was not ready within {self._address.connect_timeout:g} s"
        details = [late if isinstance(cause, TimeoutError) else _first_line(cause), self._server_detail]
        failure.add_note(self.secrets.redact("; ".join(filter(None, details))))
        return failure


async def _negotiate(session: Any) -> None:
    """Agree on a revision of the protocol: the newest with sessions, or one without, if the server has no sessions.

    A server that has both keeps the memory of an episode in its session.
    """
    from mcp import MCPError

    try:
        await session.initialize()
    except MCPError as refusal:
        if refusal.code not in _NO_HANDSHAKE:
            raise
        try:
            await session.discover()
        except MCPError:
            raise refusal from None


async def _listed(session: Any) -> list[dict[str, Any]]:
    from mcp.types import PaginatedRequestParams

    tools: list[dict[str, Any]] = []
    cursor = None
    for _ in range(_MAX_PAGES):
        page = await session.list_tools(params=None if cursor is None else PaginatedRequestParams(cursor=cursor))
        wire = page.model_dump(by_alias=True, mode="json", exclude_none=True)
        tools += wire["tools"]
        cursor = wire.get("nextCursor")
        if not cursor:
            return tools
    raise InfrastructureError(f"it lists tools on more than {_MAX_PAGES} pages")


def _leaf(error: BaseException) -> BaseException:
    """The first exception inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _first_line(error: BaseException) -> str:
    if type(error).__name__ == "ValidationError" and hasattr(error, "errors"):  # pydantic's first line names no field
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _last_line(file: BinaryIO) -> str:
    """The last line of a file that is not blank."""
    size = file.seek(0, 2)
    file.seek(max(0, size - 4096))
    lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    return next((line[:_MAX_DETAIL] for line in reversed(lines) if line), "")


_open_sessions: set[McpSession] = set()


@atexit.register
def _close_all() -> None:
    """Close open sessions when the program ends: a server that ignores its closed stdin would outlive it."""
    sessions = [session for session in _open_sessions if session.pid == os.getpid()]
    for session in sessions:
        session.close()
    for session in sessions:
        session.wait_closed()
