"""A server of files in a thread, as good or as bad as a test wants it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class Served:
    """What is served at a path.

    Attributes:
        body: the whole file.
        cuts: after how many bytes the connection is cut, request by request; later ones are not cut.
        etag: validator of the file; "": none.
        ranges: whether parts are sent on request.
        status: status instead of 200.
        headers: further headers.
        sized: whether `Content-Length` is sent.
    """

    body: bytes = b""
    cuts: list[int] = field(default_factory=list)
    etag: str = '"1"'
    ranges: bool = True
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    sized: bool = True


@dataclass
class FileServer:
    """A running server: its address, what it serves, and the `Range` of each request that came."""

    url: str
    files: dict[str, Served]
    asked: list[tuple[str, str | None]] = field(default_factory=list)


@contextlib.contextmanager
def file_server(**files: Served | bytes) -> Iterator[FileServer]:
    """Serves files by name; add others to `files` as paths ("a/b.json") while it runs."""
    served = {name: file if isinstance(file, Served) else Served(file) for name, file in files.items()}
    state = FileServer("", served)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, part = urlsplit(self.path).path[1:], self.headers.get("Range")
            state.asked.append((name, part))
            file = state.files.get(name, Served(status=404))
            body, status = file.body, file.status
            if part and file.ranges and status == 200 and self.headers.get("If-Range") == file.etag:
                start = int(part.removeprefix("bytes=").removesuffix("-"))
                body, status = file.body[start:], 206
            self.send_response(status)
            if status == 206:
                self.send_header("Content-Range", f"bytes {start}-{len(file.body) - 1}/{len(file.body)}")
            for header, value in {"ETag": file.etag, **file.headers}.items():
                if value:
                    self.send_header(header, value)
            if file.sized:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            cut = file.cuts.pop(0) if file.cuts else len(body)
            with contextlib.suppress(ConnectionError):
                self.wfile.write(body[:cut])
            self.close_connection = True

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
