"""Downloading: whole files from good servers, bad ones, slow ones, and pages that are none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_r1_gym.errors import DatasetError
from agent_r1_gym.support import download as module
from agent_r1_gym.support.download import download
from agent_r1_gym.support.files import is_url
from tests.kit.serving import FileServer, ServedFile, file_server

BODY = bytes(range(256)) * 4_000


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with file_server() as running:
        yield running


def fetch(server: FileServer, file: ServedFile, tmp_path: Path) -> bytes:
    server.files["data.bin"] = file
    download(f"{server.url}/data.bin", tmp_path / "data.bin", label="data", progress=False, pause=0)
    assert [path.name for path in tmp_path.iterdir()] == ["data.bin"]
    return (tmp_path / "data.bin").read_bytes()


def ranges(server: FileServer) -> list[str | None]:
    return [part for _, part in server.asked]


def test_a_file_arrives_as_it_is(server: FileServer, tmp_path: Path) -> None:
    assert fetch(server, ServedFile(BODY), tmp_path) == BODY
    assert fetch(server, ServedFile(BODY, sized=False), tmp_path) == BODY
    assert ranges(server) == [None, None]


def test_what_broke_off_is_taken_up(server: FileServer, tmp_path: Path) -> None:
    assert fetch(server, ServedFile(BODY, cuts=[1_000, 500_000]), tmp_path) == BODY
    assert ranges(server) == [None, "bytes=1000-", "bytes=501000-"]


@pytest.mark.parametrize("file", [ServedFile(BODY, cuts=[9], ranges=False), ServedFile(BODY, cuts=[9], etag="")])
def test_where_the_server_cannot_do_that_it_starts_anew(server: FileServer, tmp_path: Path, file: ServedFile) -> None:
    assert fetch(server, file, tmp_path) == BODY
    assert len(server.asked) == 2


def test_a_later_call_takes_it_up_but_never_mixes_two_files(server: FileServer, tmp_path: Path) -> None:
    def broken(cut: int) -> None:
        server.files["data.bin"] = ServedFile(BODY, cuts=[cut] + [0] * 20)
        (tmp_path / "data.bin").unlink(missing_ok=True)
        with pytest.raises(DatasetError, match=rf"{cut} bytes are kept, the same command resumes from there"):
            download(f"{server.url}/data.bin", tmp_path / "data.bin", label="data", progress=False, pause=0)
        assert not (tmp_path / "data.bin").exists()
        server.asked.clear()

    broken(1_000)
    assert fetch(server, ServedFile(BODY), tmp_path) == BODY
    assert ranges(server) == ["bytes=1000-"]
    broken(2_000)
    assert fetch(server, ServedFile(BODY[::-1], etag='"2"'), tmp_path) == BODY[::-1]  # changed meanwhile
    assert ranges(server) == ["bytes=2000-"]


def test_an_answer_that_is_no_file_costs_nothing_of_what_there_is(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(BODY[:1_000])
    (tmp_path / "data.bin.part.json").write_text('{"validator": "\\"1\\""}')
    for page in (ServedFile(b"<html>Sign in", etag='"2"'), ServedFile(b"", status=403, etag='"2"')):
        server.files["data.bin"] = page
        with pytest.raises(DatasetError):
            download(f"{server.url}/data.bin", tmp_path / "data.bin", label="data", progress=False, pause=0)
    assert fetch(server, ServedFile(BODY), tmp_path) == BODY
    assert ranges(server) == ["bytes=1000-"] * 3


def test_a_server_that_never_sends_the_end_is_given_up(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"data\.bin cannot be downloaded: .*"):
        fetch(server, ServedFile(BODY, cuts=[10] * 99, ranges=False), tmp_path)
    assert len(server.asked) == module.ATTEMPTS


def test_a_part_that_the_server_no_longer_knows_is_dropped(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "data.bin.part").write_bytes(b"x" * 10)
    (tmp_path / "data.bin.part.json").write_text('{"validator": "\\"1\\""}')
    server.files["data.bin"] = ServedFile(b"", status=416, ranges=False)
    with pytest.raises(DatasetError, match="HTTP 416"):
        download(f"{server.url}/data.bin", tmp_path / "data.bin", label="data", progress=False, pause=0)
    assert ranges(server)[:2] == ["bytes=10-", None]


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (ServedFile(b"gone", status=404), "answered HTTP 404"),
        (ServedFile(b"no", status=403), "answered HTTP 403"),
        (ServedFile(b"down", status=503), "cannot be downloaded: the server answered HTTP 503"),
        (ServedFile(b"<p>", headers={"Content-Type": "text/html; charset=utf-8"}), "with a page of HTML"),
        (ServedFile(b"\n <!DOCTYPE HTML><html>"), "with a page of HTML"),
        (ServedFile(BODY, headers={"Content-Encoding": "gzip"}), "compressed content"),
    ],
)
def test_what_is_no_file_is_refused_in_one_line(
    server: FileServer, tmp_path: Path, file: ServedFile, message: str
) -> None:
    with pytest.raises(DatasetError, match=message) as refused:
        fetch(server, file, tmp_path)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "data.bin").exists()


def to(place: str) -> ServedFile:
    return ServedFile(status=302, headers={"Location": place})


def test_redirects_are_followed_within_the_web_and_within_limits(server: FileServer, tmp_path: Path) -> None:
    server.files |= {"real.bin": ServedFile(BODY, cuts=[700]), "second": to("/real.bin"), "loop": to("/loop")}
    assert fetch(server, to(f"{server.url}/second"), tmp_path) == BODY
    for place in ("file:///etc/passwd", "ftp://127.0.0.1/x"):
        with pytest.raises(DatasetError, match="is not an address of http or https"):
            fetch(server, to(place), tmp_path)
    with pytest.raises(DatasetError, match="redirected more than 5 times"):
        fetch(server, to("/loop"), tmp_path)


def test_what_was_asked_for_in_secret_is_not_fetched_in_the_open() -> None:
    with pytest.raises(DatasetError, match="is not an address of https"):
        module._check_address("http://host/x", before="https://host/x")


@pytest.mark.slow
def test_a_server_that_is_slow_is_waited_for_and_one_that_is_silent_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "_SECONDS", 0.3)
    asked: list[bytes] = []
    done = threading.Event()

    def drip() -> None:
        for wait in (False, True):
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(4096))
                connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\nETag: "1"\r\n\r\n')
                if not wait:
                    connection.recv(1)  # silent until the other side hangs up
                    continue
                for byte in b"complete":
                    connection.sendall(bytes([byte]))
                    done.wait(0.1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/data"
        download(url, tmp_path / "data", label="data", progress=False, pause=0)
        thread.join()
    assert (tmp_path / "data").read_bytes() == b"complete"  # 0.8 s in all, 0.1 s each
    assert len(asked) == 2


def test_nobody_there_is_said_with_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(DatasetError, match=r"^http://127\.0\.0\.1:1/x cannot be downloaded: Connection refused\.$"):
        download("http://127.0.0.1:1/x", tmp_path / "x", label="x", progress=True, pause=0)
    assert list(tmp_path.iterdir()) == []


def test_proxies_of_the_environment_are_used(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", server.url)
    server.files["data.bin"] = ServedFile(BODY)  # a proxy is asked for the whole address; the server looks at its path
    download("http://host.invalid/data.bin", tmp_path / "data.bin", label="data", progress=False, pause=0)
    assert (tmp_path / "data.bin").read_bytes() == BODY


def test_an_address_is_told_from_a_path() -> None:
    assert is_url("http://a/b") and is_url("HTTPS://a/b")
    assert not is_url("/http://a") and not is_url(Path("http:/a")) and not is_url("ftp://a/b") and not is_url(None)
