"""The first process of a container: builds its file system, and runs programs in it on command. Runs inside.

`sandbox.container.Container` starts it. It leaves the host's namespaces, mounts a root in memory, becomes an
unprivileged user, and answers one request after another on a socket. It is the first process of a process namespace:
when it ends, all programs of the container end, and none of them can signal or inspect it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from typing import Any

from agent_r1_gym.sandbox.linux import kernel, seccomp
from agent_r1_gym.sandbox.linux.confinement import (
    UNPRIVILEGED_ID,
    bind_into,
    count_tasks,
    drop_root,
    empty_folder,
    own_user,
    staging_folder,
)

SIZE = struct.Struct("!II")
"""Of each message: bytes of its header (JSON), and of what follows."""
FOLDERS = (
    "/app",
    "/tests",
    "/solution",
    "/logs/agent",
    "/logs/verifier",
    "/logs/artifacts",
    "/root",
    "/tmp",
    "/dev/shm",
)
"""Folders that a container has from the start, as those of Harbor do."""
MAX_PROGRAMS = 128
_MAX_FILES = 100_000
_SHARED_MEMORY = "64m"
_NAMESPACES = (
    kernel.NEW_MOUNT | kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS | kernel.NEW_PID
)  # the process namespace begins with the next fork
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_SETTINGS = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/etc/mime.types")
_USERS = "root:x:0:0:root:/root:/bin/sh\nagent:x:{user}:{group}:agent:/root:/bin/bash\n"
_GROUPS = f"root:x:0:\nagent:x:{UNPRIVILEGED_ID}:\n"
_READ_AT_ONCE = 1 << 16


def main() -> None:
    """Run a container with the options on the command line."""
    options = json.loads(sys.argv[1])
    parent = os.pidfd_open(options["parent"])
    control = socket.socket(fileno=options["control"])
    sys.argv[:] = sys.orig_argv[:] = [""]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _enter(options)
    except OSError as error:
        send(control, {"error": str(error)})
        os._exit(1)
    send(control, {})
    try:
        Programs(control, parent).serve()
    finally:
        os._exit(0)


# --- the root --------------------------------------------------------------------------------------------------------


def _enter(options: dict[str, Any]) -> None:
    """Confine this process for good. It forks: the parent waits for the container to end, the child returns."""
    privileged = kernel.has_capability_to_mount()
    user, group = own_user() if privileged else os.getuid(), os.getgid()
    kernel.unshare(_NAMESPACES | (0 if privileged else kernel.NEW_USER))
    if not privileged:
        kernel.map_user(UNPRIVILEGED_ID, user, group)
    socket.sethostname("container")
    kernel.keep_mounts_private()
    tasks = count_tasks(user)
    kernel.enter_root(_build_root(options["python"], options["disk"], owner=user if privileged else None))
    first = os.fork()
    if first:
        os.close(options["control"])
        os.waitpid(first, 0)
        os._exit(0)
    kernel.die_with_parent()
    try:
        kernel.mount_processes("/proc")
    except kernel.KernelError:  # some hosts mask parts of /proc, and then refuse a new one
        _mount_frozen("/proc")
    if privileged:
        drop_root(user)
    kernel.drop_capabilities()
    kernel.no_new_privileges()
    kernel.install_filter(seccomp.program_filter(kernel.MACHINE))
    kernel.die_with_parent()  # again: a change of the user resets it
    kernel.set_dumpable(False)
    for what, limit in (
        (resource.RLIMIT_AS, options["memory"]),
        (resource.RLIMIT_NPROC, tasks + MAX_PROGRAMS),
        (resource.RLIMIT_NOFILE, 1024),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (least, least))


def _build_root(python: list[str], disk: int, *, owner: int | None) -> str:
    """Mount a root in memory, with the host's programs read-only, below a folder; return the folder.

    Programs that test the work must not run or load what the agent left in the place of the system. The agent may move
    whatever lies in a folder of its own, such as the root, but no mount. So each name of the system in the root is a
    mount, also where the host has a link, and so are the folders above a Python elsewhere.

    Args:
        python: folders of Python outside of /usr.
        disk: size of the root.
        owner: user that gets the folders; None: this one.
    """
    root = staging_folder([*_SYSTEM, *python])
    kernel.mount_memory(root, f"size={disk},nr_inodes={_MAX_FILES},mode=755", executable=True)
    held = dict.fromkeys(folder for folder in map(_holder, python) if folder not in python)
    for folder in dict.fromkeys(each for path in python for each in _folders_above(_holder(path))):
        os.makedirs(f"{root}{folder}", exist_ok=True)
        kernel.bind(f"{root}{folder}", f"{root}{folder}", writable=True)  # the agent's, and a mount all the same
    for folder in ("/etc", "/dev", *held):
        os.makedirs(f"{root}{folder}", exist_ok=True)
        kernel.mount_memory(f"{root}{folder}", "size=1m,mode=755")
    for path in _SYSTEM:
        if os.path.isdir(path):
            bind_into(root, path)
        else:
            _mount_frozen(f"{root}{path}")
    for path in (*python, *filter(os.path.exists, _SETTINGS)):
        bind_into(root, path)
    _write_settings(root, UNPRIVILEGED_ID if owner is None else owner)
    for folder in ("/proc", *FOLDERS):
        os.makedirs(f"{root}{folder}", exist_ok=True)
    kernel.mount_memory(f"{root}/dev/shm", f"size={_SHARED_MEMORY},mode=1777", executable=True)
    if owner is not None:
        for folder in ("", *FOLDERS, "/logs"):
            os.chown(f"{root}{folder}", owner, UNPRIVILEGED_ID)
    for folder in ("/etc", "/dev", *held):
        kernel.freeze_mount(f"{root}{folder}")
    return root


def _write_settings(root: str, user: int) -> None:
    """Write the users of a container, and make its devices."""
    for name, text in (("passwd", _USERS.format(user=user, group=UNPRIVILEGED_ID)), ("group", _GROUPS)):
        with open(f"{root}/etc/{name}", "w", encoding="ascii") as file:
            file.write(text)
    for device in _DEVICES:
        bind_into(root, device, writable=True)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")


def _holder(path: str) -> str:
    """Return the topmost folder above a path that lies in a folder of the agent; maybe the path itself."""
    shared = (each for each in _folders_above(path) if not any(f"{own}/".startswith(f"{each}/") for own in FOLDERS))
    return next(shared, path)


def _folders_above(path: str) -> list[str]:
    """Return the folders that lead to a path, the topmost first, without the root."""
    parts = path.strip("/").split("/")
    return ["/" + "/".join(parts[:depth]) for depth in range(1, len(parts))]


def _mount_frozen(path: str) -> None:
    """Mount an empty folder that stays empty."""
    os.makedirs(path, exist_ok=True)
    kernel.mount_memory(path, "size=4k,mode=555")
    kernel.freeze_mount(path)


# --- requests --------------------------------------------------------------------------------------------------------


class Programs:
    """Answers requests until the other end closes.

    Args:
        control: where requests arrive.
        parent: descriptor of the process that started the container; a fork of it may hold the other end of `control`.
    """

    def __init__(self, control: socket.socket, parent: int) -> None:
        self._control, self._parent = control, parent
        self._requests: dict[str, Callable[..., tuple[dict[str, Any], bytes]]] = {
            "run": self._run,
            "write": self._write,
            "read": self._read,
            "stop": self._stop,
        }

    def serve(self) -> None:
        """Answer one request after another."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._parent, select.POLLIN)
        while True:
            if self._parent in [fd for fd, _ in poll.poll()]:
                return
            message = receive(self._control)
            if message is None:
                return
            request, body = message
            try:
                response, answer = self._requests[request.pop("kind")](body, **request)
            except (OSError, subprocess.SubprocessError, tarfile.TarError) as error:
                text = f"{type(error).__name__}: {error}"[:500]
                response, answer = {"error": text, "errno": getattr(error, "errno", None)}, b""
            send(self._control, response, answer)

    def _run(
        self,
        _body: bytes,
        command: list[str],
        folder: str,
        environment: dict[str, str],
        seconds: float,
        max_bytes: int,
    ) -> tuple[dict[str, Any], bytes]:
        """Run a program; its output is that of stdout and stderr together. What it started may keep running."""
        deadline = time.monotonic() + seconds
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        out, exited = process.stdout.fileno(), os.pidfd_open(process.pid)
        os.set_blocking(out, False)
        poll = select.poll()
        for fd in (out, exited, self._parent):
            poll.register(fd, select.POLLIN)
        poll.register(self._control, 0)  # only whether it is closed
        output, printed, has_exited = bytearray(), 0, False
        while not has_exited and (left := deadline - time.monotonic()) > 0:
            ready = [fd for fd, _ in poll.poll(1000 * left + 1)]
            if self._parent in ready or self._control.fileno() in ready:
                os._exit(0)
            has_exited = exited in ready
            part: bytes | None = None
            while time.monotonic() < deadline and (part := _read_available(out)):
                printed += len(part)
                output += part[: max(0, max_bytes - len(output))]
            if part == b"" and not has_exited:  # closed; the program runs on without output
                poll.unregister(out)
                part = None
        if not has_exited:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        exit_code = process.wait()
        if not has_exited:  # this process inherits the rest of the group, which may still be dying
            with contextlib.suppress(ChildProcessError):
                while True:
                    os.waitpid(-process.pid, 0)
        os.close(exited)
        process.stdout.close()
        with contextlib.suppress(ChildProcessError):  # programs that have ended, and whose parents ended before them
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        return {"timed_out": not has_exited, "exit_code": exit_code, "printed": printed}, bytes(output)

    def _write(self, body: bytes, folder: str, replace: bool) -> tuple[dict[str, Any], bytes]:
        """Unpack an archive into a folder, which is removed before if `replace` is set."""
        if replace:
            _open_parents(folder)
            _remove(folder)
        os.makedirs(folder, exist_ok=True)
        # Python has filters since 3.11.4. The archive is ours, and a link that leads out of the folder stays in here.
        options: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        with tarfile.open(fileobj=io.BytesIO(body)) as archive:
            archive.extractall(folder, **options)
        return {}, b""

    def _read(self, _body: bytes, path: str, max_bytes: int) -> tuple[dict[str, Any], bytes]:
        """Read a regular file."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return {"found": False}, b""
        try:
            found = stat.S_ISREG(os.fstat(file).st_mode)
            return {"found": found}, os.read(file, max_bytes) if found else b""
        finally:
            os.close(file)

    def _stop(self, _body: bytes) -> tuple[dict[str, Any], bytes]:
        """Kill every program of the container."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # everything in this namespace except this process, its first
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        return {}, b""


def _read_available(fd: int) -> bytes | None:
    """Read what a pipe has: None if nothing is there yet, b"" if it was closed."""
    try:
        return os.read(fd, _READ_AT_ONCE)
    except BlockingIOError:
        return None


def _open_parents(path: str) -> None:
    """Undo what a program did to the modes of the folders that lead to a path."""
    parts = path.strip("/").split("/")[:-1]
    for depth in range(len(parts) + 1):
        parent = "/" + "/".join(parts[:depth])
        with contextlib.suppress(OSError):  # missing, or not of this user
            os.chmod(parent, 0o755)


def _remove(path: str) -> None:
    """Remove a file or folder, whatever its modes are."""
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
    elif os.path.isdir(path):
        os.chmod(path, 0o700)
        empty_folder(path)
        os.rmdir(path)


# --- messages, for both ends -----------------------------------------------------------------------------------------


def send(connection: socket.socket, header: dict[str, Any], body: bytes = b"") -> None:
    """Send a message: a header, and bytes that follow it."""
    encoded = json.dumps(header).encode()
    connection.sendall(SIZE.pack(len(encoded), len(body)) + encoded + body)


def receive(connection: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """Receive a message; None if the other end is closed."""
    sizes = _receive_exactly(connection, SIZE.size)
    if sizes is None:
        return None
    header_size, body_size = SIZE.unpack(sizes)
    content = _receive_exactly(connection, header_size + body_size)
    return None if content is None else (json.loads(content[:header_size]), content[header_size:])


def _receive_exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = []
    while size:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
