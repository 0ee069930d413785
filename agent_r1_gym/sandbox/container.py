"""Containers: a private file system in which any program runs, without an image, a service or the network."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Self

from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.sandbox.linux import container as inside
from agent_r1_gym.sandbox.linux.kernel import missing_protections
from agent_r1_gym.sandbox.linux.processes import start_program

MAX_FILES_BYTES = 64 * 2**20
"""Size of the files that can be copied into a container at once."""
_START_TIMEOUT = 60.0
_GRACE = 15.0
"""Seconds that a container may take to answer, on top of the time limit of a program."""
_LANGUAGE = {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "HOME": "/root", "USER": "agent", "TERM": "dumb"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    """How a program ended.

    Attributes:
        exit_code: its exit status; negative: the signal that ended it.
        output: what it printed to stdout and stderr, cut.
        timed_out: whether it was stopped at its time limit.
    """

    exit_code: int
    output: str
    timed_out: bool


class Container:
    """A private file system in memory, with the host's programs and this Python, in which programs run.

    Programs run as an unprivileged user, in namespaces of their own (mounts, network, IPC, processes), without
    capabilities, without network, and see of the host what is below /usr, /lib and the like, and the folder of this
    Python, read-only. All of them end when the container is closed, or with this process, however it ends.

    Args:
        memory: bytes of address space of each program.
        disk: bytes of all files.

    Raises:
        InfrastructureError: it does not start.
    """

    def __init__(self, *, memory: int = 4 * 2**30, disk: int = 256 * 2**20) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._control, theirs = socket.socketpair()
        options = {"memory": memory, "disk": disk, "python": list(_python_folders())}
        with theirs:
            self._process = start_program("agent_r1_gym.sandbox.linux.container", options, theirs)
        self._control.settimeout(_START_TIMEOUT)
        try:
            self._receive()
        except InfrastructureError:
            self.close()
            raise

    def run(
        self,
        command: Sequence[str],
        *,
        folder: str = "/app",
        seconds: float = 60.0,
        environment: Mapping[str, str] | None = None,
        max_output: int = 20_000,
    ) -> ProgramResult:
        """Run a program, and wait for it; what it starts in the background keeps running.

        Args:
            command: the program and its arguments.
            folder: where it runs.
            seconds: wall-clock time after which it is killed, with its process group.
            environment: variables, added to a path and the language.
            max_output: characters of the output.

        Raises:
            InfrastructureError: the container has ended.
            OSError: there is no such program or folder.
        """
        header, body = self._request(
            seconds + _GRACE,
            kind="run",
            command=list(command),
            folder=folder,
            environment={"PATH": _search_path(), **_LANGUAGE, **(environment or {})},
            seconds=seconds,
            max_bytes=4 * max_output,
        )
        text = body.decode("utf-8", "replace")
        if len(text) > max_output or header["printed"] > len(body):
            text = f"{text[:max_output]}\n... [cut, {header['printed']} bytes in all]"
        return ProgramResult(exit_code=int(header["exit_code"]), output=text, timed_out=bool(header["timed_out"]))

    def copy_in(self, source: Path, target: str, *, replace: bool = False) -> None:
        """Copy a file, or the contents of a folder, to a path of the container.

        Args:
            source: of this machine.
            target: of the container: the file, or the folder; folders are created if necessary.
            replace: remove what was in the folder before, files of the agent included.

        Raises:
            InfrastructureError: the container has ended.
            OSError: the source cannot be read, or has more than 64 MiB.
        """
        if source.is_dir():
            self.unpack(pack(source), target, replace=replace)
        else:
            folder, _, name = target.rpartition("/")
            self.unpack(pack(source, name), folder or "/", replace=replace)

    def unpack(self, archive: bytes, folder: str, *, replace: bool = False) -> None:
        """Unpack what `pack` returned into a folder; `replace` removes what was there before."""
        self._request(_GRACE, archive, kind="write", folder=folder, replace=replace)

    def make_folder(self, folder: str, *, replace: bool = False) -> None:
        """Create a folder; `replace` removes what was there before, files of the agent included."""
        empty = io.BytesIO()
        tarfile.open(fileobj=empty, mode="w").close()
        self.unpack(empty.getvalue(), folder, replace=replace)

    def read(self, path: str, *, max_bytes: int = 2**20) -> bytes | None:
        """Read a regular file; None if there is none."""
        header, body = self._request(_GRACE, kind="read", path=str(PurePosixPath(path)), max_bytes=max_bytes)
        return body if header["found"] else None

    def stop_programs(self) -> None:
        """Kill every program that is running."""
        self._request(_GRACE, kind="stop")

    def close(self) -> None:
        """End the container with all its programs; may be called twice."""
        self._control.close()
        if self._pid != os.getpid():
            self._process.returncode = 0  # not a child of this process, which must not wait for it
            return
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, 9)
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _request(self, timeout: float, body: bytes = b"", **header: Any) -> tuple[dict[str, Any], bytes]:
        if self._pid != os.getpid():
            raise InfrastructureError("This container belongs to the parent of this process.")
        with self._lock:
            try:
                self._control.settimeout(timeout)
                inside.send(self._control, header, body)
            except OSError as error:
                raise InfrastructureError(f"The container has ended: {error}.") from error
            return self._receive()

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        try:
            message = inside.receive(self._control)
        except (OSError, ValueError) as error:
            self._control.close()  # a late answer would be taken for that of the next request
            raise InfrastructureError(f"The container does not answer: {error or type(error).__name__}.") from error
        if message is None:
            raise InfrastructureError("The container has ended.")
        if "error" in message[0]:
            failure = OSError(message[0]["error"])
            failure.errno = message[0].get("errno")
            raise failure
        return message


def pack(source: Path, name: str = "") -> bytes:
    """Pack the contents of a folder, or a file under a name, for `Container.unpack`.

    Raises:
        OSError: the source cannot be read, or has more than 64 MiB.
    """
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for path, inside in [(source, name)] if name else [(each, each.name) for each in sorted(source.iterdir())]:
            tar.add(path, inside, filter=_owned_by_root)
    if archive.tell() > MAX_FILES_BYTES:
        raise OSError(f"{source} has more than {MAX_FILES_BYTES} bytes")
    return archive.getvalue()


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The container has no other user to give it to."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


@functools.cache
def containers_unavailable() -> str:
    """Why containers cannot run on this machine; "" if they can. Starts one, once per process."""
    if sys.platform != "linux":
        return f"containers need Linux, this is {sys.platform}"
    missing = missing_protections()
    if missing:
        return f"containers need {'; '.join(missing)}"
    try:
        Container().close()
    except (InfrastructureError, OSError) as error:
        return f"containers need namespaces, which this machine does not allow ({error})"
    return ""


def _python_folders() -> list[str]:
    """Folders of this Python, if they are not below /usr."""
    return [folder for folder in dict.fromkeys((sys.base_prefix, sys.prefix)) if not f"{folder}/".startswith("/usr/")]


def _search_path() -> str:
    folders = [f"{folder}/bin" for folder in (sys.prefix, sys.base_prefix)]
    return ":".join(dict.fromkeys([*folders, "/usr/local/bin", "/usr/bin", "/bin"]))
