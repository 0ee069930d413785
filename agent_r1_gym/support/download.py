"""Download one large file over HTTP: resumed, checked, complete or not at all."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from agent_r1_gym.errors import DatasetError
from agent_r1_gym.support.backoff import backoff
from agent_r1_gym.support.http import RETRIED_STATUSES, reason

if TYPE_CHECKING:
    import urllib3

ATTEMPTS = 4
"""Attempts in a row without new bytes after which a download fails."""
_CHUNK = 2**18
_SECONDS = 60.0
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_REDIRECTS = 5
_HTML = (b"<!doctype html", b"<html")


class _RetryableError(Exception):
    """A download error after which a retry may succeed."""


def download(url: str, path: Path, *, label: str, progress: bool = True, pause: float = 1.0) -> None:
    """Download the file at a URL to `path`.

    A partial download (`path` with the suffix `.part`) is resumed, also by a later call, if the server can confirm that
    the file is the same (`ETag` or `Last-Modified`, and `Range`). Proxies are those of the environment.

    Args:
        url: address, http or https.
        path: file to write.
        label: label of the progress bar.
        progress: whether to show a progress bar on standard error.
        pause: seconds before the first retry; see `backoff`.

    Raises:
        DatasetError: the server does not send a file, or all attempts failed.
        OSError: the disk is full or not writable.
    """
    _check_address(url, before=url)
    part, attempts_left, most = _PartialFile(path), ATTEMPTS, 0
    while True:
        try:
            _attempt(url, part, label, progress)
            break
        except _RetryableError as error:
            attempts_left = ATTEMPTS - 1 if part.size > most else attempts_left - 1
            most = max(most, part.size)
            if attempts_left <= 0:
                resumable = part.validator and part.size
                hint = f"; {part.size} bytes are kept, the same command resumes from there" if resumable else ""
                raise DatasetError(f"{url} cannot be downloaded: {error}{hint}.") from error
        time.sleep(backoff(pause, ATTEMPTS - 1 - attempts_left))
    part.finish(path)


class _PartialFile:
    """An incomplete file, and the validator of the file on the server."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(f"{path.name}.part")
        self._about = path.with_name(f"{path.name}.part.json")
        self.validator: str | None = None
        with contextlib.suppress(OSError, ValueError, KeyError):
            self.validator = json.loads(self._about.read_text(encoding="utf-8"))["validator"]

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def begin(self, headers: Mapping[str, str]) -> None:
        """Restart with the file that these headers describe."""
        tag = headers.get("ETag", "")
        self.validator = headers.get("Last-Modified") if not tag or tag.startswith("W/") else tag  # RFC 9110, 13.1.5
        self.path.write_bytes(b"")
        self._about.write_text(json.dumps({"validator": self.validator}), encoding="utf-8")

    def finish(self, path: Path) -> None:
        self.path.replace(path)
        self._about.unlink(missing_ok=True)


def _attempt(url: str, part: _PartialFile, label: str, progress: bool) -> None:
    """Request the missing bytes and append them.

    Raises:
        _RetryableError: the connection or the server failed.
        DatasetError: the answer is not a file.
    """
    from tqdm import tqdm

    start = part.size if part.validator else 0
    range_headers = {"Range": f"bytes={start}-", "If-Range": str(part.validator)} if start else {}
    with _answer(url, range_headers) as response:
        _check(response, url)
        is_resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if not is_resumed and response.status != 200:
            part.begin({})  # the next attempt restarts
            raise _RetryableError(f"the server answered HTTP {response.status} to a request for the rest")
        chunk = response.read(_CHUNK)
        if not is_resumed:
            if chunk.lstrip()[:20].lower().startswith(_HTML):
                raise DatasetError(f"{url} answered with a page of HTML, not with a file.")
            start = 0
            part.begin(response.headers)
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        bar = tqdm(total=total, initial=start, desc=label, unit="B", unit_scale=True, disable=not progress)
        with bar, part.path.open("ab") as file:
            while chunk:
                file.write(chunk)
                bar.update(len(chunk))
                chunk = response.read(_CHUNK)
    if total is not None and part.size != total:
        raise _RetryableError(f"it broke off after {part.size} of {total} bytes")


def _check(response: urllib3.BaseHTTPResponse, url: str) -> None:
    """Raise unless an answer may be a file, or the rest of one."""
    status = response.status
    if status in RETRIED_STATUSES:
        raise _RetryableError(f"the server answered HTTP {status}")
    if status not in (200, 206, 416):
        raise DatasetError(f"{url} answered HTTP {status} {response.reason or ''}".rstrip() + ", not with a file.")
    if status != 416 and response.headers.get("Content-Type", "").lower().startswith("text/html"):
        raise DatasetError(
            f"{url} answered with a page of HTML, not with a file; is it the address of a page about it?"
        )
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise DatasetError(f"{url} answered with compressed content, though none was requested.")


@contextlib.contextmanager
def _answer(url: str, headers: Mapping[str, str]) -> Iterator[Any]:
    """Follow redirects and yield the answer; network failures while it is read are `_RetryableError`."""
    import urllib3

    try:
        for _ in range(_MAX_REDIRECTS + 1):
            with _manager(url) as manager:
                response = manager.request(
                    "GET",
                    url,
                    headers={"Accept-Encoding": "identity", "User-Agent": "agent-r1-gym", **headers},
                    timeout=urllib3.Timeout(connect=_SECONDS, read=_SECONDS),  # the latter of each read
                    redirect=False,
                    retries=False,
                    preload_content=False,
                    decode_content=False,
                )
                with contextlib.closing(response):
                    if response.status not in _REDIRECTS:
                        yield response
                        return
                    target = urljoin(url, response.headers.get("Location", ""))
            _check_address(target, before=url)
            url = target
    except (urllib3.exceptions.HTTPError, TimeoutError, ConnectionError) as error:
        raise _RetryableError(reason(error)) from error
    raise DatasetError(f"{url} is redirected more than {_MAX_REDIRECTS} times.")


def _manager(url: str) -> urllib3.PoolManager:
    import urllib3

    parts = urlsplit(url)
    proxy = None if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme)
    return urllib3.ProxyManager(proxy) if proxy else urllib3.PoolManager()


def _check_address(url: str, *, before: str) -> None:
    """Raise unless `url` is http or https; a redirect must not downgrade https to http."""
    allowed = ("https",) if urlsplit(before).scheme == "https" else ("http", "https")
    if urlsplit(url).scheme.lower() not in allowed or not urlsplit(url).hostname:
        raise DatasetError(f"{before} leads to {url!r:.200}, which is not an address of {' or '.join(allowed)}.")
