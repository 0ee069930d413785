"""The HTTP client of the package: one server per client, bounded in time and bytes, with retries."""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import io
import os
import random
import re
import socket
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_r1_gym.errors import ConfigurationError, InfrastructureError, InfrastructureTimeout
from agent_r1_gym.support.backoff import backoff

if TYPE_CHECKING:
    import urllib3

RETRIED_STATUSES = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Statuses after which a retry may succeed."""
_MAX_BACKOFF = 60.0
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity"}
_BODY_HEADERS = {"Content-Type": "application/json"}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NOT_IN_HEADERS = re.compile(r"[^\t\x20-\x7e\x80-\xff]")


class Response(NamedTuple):
    """Status and body of an answer."""

    status: int
    body: bytes


class FullResponse(NamedTuple):
    """An answer with its `Retry-After` in seconds (None: absent) and its media type."""

    answer: Response
    retry_after: float | None
    content_type: str


class TooLargeError(InfrastructureError):
    """The answer of a server has more bytes than allowed."""


class HTTPClient:
    """Sends requests to one server; threads may share it, and a fork may use it (with connections of its own).

    Lost connections and `RETRIED_STATUSES` are retried with exponential back-off (times a random factor in 0.5..1.5);
    a `Retry-After` of at most a minute takes precedence. The pauses of one request
    sum to at most a minute. Proxy settings of the environment are not used, redirects are not followed.

    Args:
        url: address of the server; its path is the prefix of every path.
        max_retries: maximum number of retries.
        initial_backoff: seconds before the first retry.
        pool_size: maximum number of connections that are kept open.
        max_bytes: maximum size of an answer.
        headers: sent with every request.

    Raises:
        ConfigurationError: a header cannot be sent.
    """

    def __init__(
        self,
        url: str,
        *,
        max_retries: int,
        pool_size: int,
        max_bytes: int,
        initial_backoff: float = 0.1,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        import urllib3

        self.url = url.rstrip("/")
        self._prefix = urllib3.util.parse_url(self.url).path or ""
        self._max_retries, self._first_pause = max_retries, initial_backoff
        self._pool_size, self._max_bytes = pool_size, max_bytes
        self._headers = {**_HEADERS, **(headers or {})}
        check_headers(self._headers, f"A request to {self.url}")
        self._random = random.Random()
        self._pool: urllib3.HTTPConnectionPool | None = None
        self._sockets: weakref.WeakSet[socket.socket] | None = None  # made with the pool: a set cannot be pickled
        self._aborted = False
        self._pid = os.getpid()

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout: float,
        total: float | None = None,
    ) -> Response:
        """Send a request, with retries, and return the last answer: see `request_in_full`."""
        return self.request_in_full(method, path, body, timeout=timeout, total=total).answer

    def request_in_full(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout: float,
        total: float | None = None,
        status_of: Callable[[Response], int] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> FullResponse:
        """Send a request, with retries, and return the last answer, whatever its status.

        Args:
            method: HTTP method; the request must be safe to send twice.
            path: path of the endpoint.
            body: JSON, or None.
            timeout: seconds for one attempt, from its start to the last byte.
            total: seconds for all attempts and pauses; None: no limit.
            status_of: decides the status, for servers that report failures with another one; None: that of HTTP.
            headers: take precedence over those of the client.

        Raises:
            InfrastructureTimeout: no full answer in time.
            InfrastructureError: the server cannot be reached, or sends too much or no HTTP.
        """
        deadline = None if total is None else time.monotonic() + total
        pauses_left = _MAX_BACKOFF
        for attempt in range(self._max_retries + 1):
            pause = backoff(self._first_pause, attempt) * self._random.uniform(0.5, 1.5)
            failure: InfrastructureError | None = None
            try:
                full = self.request_once(method, path, body, timeout=_within(timeout, deadline), headers=headers)
                if status_of is not None:
                    full = full._replace(answer=full.answer._replace(status=status_of(full.answer)))
                if full.answer.status not in RETRIED_STATUSES:
                    return full
                pause = pause if full.retry_after is None else full.retry_after
            except InfrastructureError as error:
                failure = error
            # A pause after which no time or attempt is left would only delay the error.
            out_of_time = deadline is not None and time.monotonic() + pause >= deadline
            if attempt == self._max_retries or out_of_time or pause > pauses_left:
                break
            time.sleep(pause)
            pauses_left -= pause
        if failure is None:
            return full
        if attempt:
            raise type(failure)(f"{failure} It failed {attempt + 1} times.") from failure
        raise failure

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        pool, self._pool = self._pool, None
        if pool is not None and self._pid == os.getpid():
            pool.close()

    def abort(self) -> None:
        """End the requests that other threads are waiting for, with an `InfrastructureError`, and all later ones."""
        self._aborted = True
        for each in tuple(self._sockets or ()):
            with contextlib.suppress(OSError):  # closed since
                each.shutdown(socket.SHUT_RDWR)

    def request_once(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout: float,
        headers: Mapping[str, str] | None = None,
    ) -> FullResponse:
        """Send a request once and return the answer, whatever its status.

        Args:
            method: HTTP method.
            path: path of the endpoint, with its query.
            body: bytes to send, or None.
            timeout: seconds from the start to the last byte.
            headers: take precedence over those of the client.

        Raises:
            InfrastructureTimeout, InfrastructureError: see `request_in_full`; `TooLargeError` for too much; a header
                cannot be sent.
        """
        import urllib3

        if problem := header_problem(headers or {}):
            raise InfrastructureError(f"A request to {self.url} cannot be sent: {problem}.")
        try:
            response = self._own_pool().urlopen(
                method,
                self._prefix + path,
                body=body,
                headers={**({} if body is None else _BODY_HEADERS), **self._headers, **(headers or {})},
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(total=timeout),
                preload_content=False,
                decode_content=False,
            )
            content = b""
            # Only a read that returns nothing detects that the connection closed before the announced end.
            while part := response.read(self._max_bytes + 1 - len(content)):
                content += part
                if len(content) > self._max_bytes:
                    response.close()
                    raise TooLargeError(f"{self.url}{path} sent more than {self._max_bytes} bytes.")
            response.release_conn()
        except urllib3.exceptions.NewConnectionError as error:  # A refusal, though urllib3 derives it from timeouts.
            raise InfrastructureError(f"{self.url} cannot be reached: {reason(error)}.") from error
        except (urllib3.exceptions.TimeoutError, TimeoutError) as error:
            raise InfrastructureTimeout(f"{self.url}{path} gave no full answer within {timeout:.3g} s.") from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise InfrastructureError(f"{self.url}{path} cannot be reached: {error}.") from error
        # Decompression could turn a megabyte into gigabytes; no compression was requested, so refusing it is safe.
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            raise InfrastructureError(f"{self.url}{path} sent {encoding!r}, though it was asked for no compression.")
        wait, kind = _retry_after(response.headers.get("Retry-After")), response.headers.get("Content-Type", "")
        return FullResponse(Response(response.status, content), wait, kind)

    def _own_pool(self) -> urllib3.HTTPConnectionPool:
        """The connection pool of this process."""
        # A fork must not write to the sockets of its parent.
        if self._pid != os.getpid():
            self._pid, self._pool, self._random = os.getpid(), None, random.Random()
        if self._pool is None:
            self._sockets = weakref.WeakSet()
            self._pool = _connection_pool(self.url, self._pool_size, self._opened)
        return self._pool

    def _opened(self, opened: socket.socket) -> None:
        """Note a new socket, so that `abort` reaches it; after that, a new one is of no use."""
        assert self._sockets is not None
        self._sockets.add(opened)
        if self._aborted:
            opened.close()
            raise ConnectionAbortedError("the request was aborted")


def check_headers(headers: Mapping[str, str], what: str) -> None:
    """Refuse headers that HTTP does not allow; no message shows a value, which may be a credential.

    Args:
        headers: values by name.
        what: what cannot be sent with them, for the message.

    Raises:
        ConfigurationError: HTTP does not allow one of them.
    """
    if problem := header_problem(headers):
        raise ConfigurationError(f"{what} cannot be sent: {problem}.")


def header_problem(headers: Mapping[str, Any]) -> str | None:
    """Describe the first header that HTTP does not allow, without its value; None if it allows all."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            return "the name of a header has characters other than letters, digits and hyphens"
        if not isinstance(value, str):
            return f"the value of {name!r} is not a string"
        if found := _NOT_IN_HEADERS.search(value):
            kind = "a line break" if found[0] in "\r\n" else f"the character U+{ord(found[0]):04X}"
            where = "at its end" if not value[found.start() :].strip() else "inside it"
            return f"the value of {name!r} has {kind} {where}; remove it"
    return None


def reason(error: Exception) -> str:
    """Why a connection failed: the message of the system, without urllib3's wrapping."""
    cause = error.__cause__
    return cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)


def _within(timeout: float, deadline: float | None) -> float:
    left = timeout if deadline is None else min(timeout, deadline - time.monotonic())
    return max(left, 0.001)


def _retry_after(value: str | None) -> float | None:
    """Parse a `Retry-After` (seconds or a date) into seconds; None if it is invalid or over a minute."""
    try:
        seconds = float(value or "")
    except ValueError:
        date = email.utils.parsedate_tz(value or "")
        if date is None:
            return None
        seconds = email.utils.mktime_tz(date) - time.time()
    return seconds if 0 <= seconds <= _MAX_BACKOFF else None


def _connection_pool(url: str, size: int, opened: Callable[[socket.socket], None]) -> urllib3.HTTPConnectionPool:
    """Make a connection pool whose timeout bounds an answer as a whole; `opened` receives each new socket."""
    import urllib3

    # Not a PoolManager: there is one host, and proxy variables must not be read.
    pool = urllib3.connection_from_url(url, maxsize=size)
    base: Any = pool.ConnectionCls

    def connect(self: Any) -> None:
        base.connect(self)
        opened(self.sock)

    pool.ConnectionCls = type("TimedConnection", (base,), {"response_class": _TimedResponse, "connect": connect})
    return pool


# The only bound on a server that sends slowly: the timeouts of urllib3, requests and httpx restart with every byte. A
# thread around the request could abandon it, but not end it: thread and socket would stay until the server stops.
class _TimedResponse(http.client.HTTPResponse):
    """An HTTP response, headers and body, that must be complete within the socket's timeout at its start."""

    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_TimedReader(self.fp.detach(), sock))


class _TimedReader(io.RawIOBase):
    """A socket's stream whose reads together end by a deadline."""

    def __init__(self, raw: Any, sock: socket.socket) -> None:
        self._raw = raw
        self._socket = sock
        timeout = sock.gettimeout()
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self._deadline is not None:
            remaining = self._deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("timed out")
            self._socket.settimeout(remaining)
        received: int | None = self._raw.readinto(buffer)
        return received

    def close(self) -> None:
        self._raw.close()
        super().close()
