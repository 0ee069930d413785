"""The program's end of the sandbox: one zygote, and slots in each of which a worker waits for code."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.sandbox.execution import Execution, Limits, Status
from agent_r1_gym.sandbox.keeper import ASK, ENDED, KILL, USED
from agent_r1_gym.sandbox.worker import ANSWER, ERROR, LONGEST_ANSWER, MEMORY, OK, REQUEST
from agent_r1_gym.sandbox.zygote import END, NEW

START = 60.0
"""Seconds that a zygote may take to import what workers find ready."""
GRACE = 0.15
"""Seconds that a keeper may take to end a worker and clean up; then its slot is given up, and nobody waits for it."""
LAST = 2.0
"""Seconds that a zygote may take to end."""
TICK = 0.1
"""Seconds between two looks at the CPU time of a run."""
FLOOD = 2**20
"""Bytes of stdout and stderr after which a run is ended."""
_OTHER_MACHINE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
_BOOT = """
import sys, types
for name, path in {packages!r}.items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from agent_r1_gym.sandbox.zygote import main
main()
"""
"""Runs the zygote without `agent_r1_gym/__init__.py`, which imports what no worker needs."""


class Zygote:
    """The program's end of a zygote.

    Args:
        isolation: "strong" or "weak".
        packages: what workers find imported.
        namespaces: whether namespaces are used where they are allowed.

    Attributes:
        parts: what confinement is in force.
        packages: what could be imported, with what that brought.

    Raises:
        InfrastructureError: it does not start.
    """

    def __init__(self, isolation: str, packages: Sequence[str], *, namespaces: bool = True) -> None:
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(START)
        options: dict[str, Any] = {
            "isolation": isolation,
            "packages": [*packages],
            "parent": os.getpid(),
            "control": theirs.fileno(),
        }
        options |= {"namespaces": namespaces, "home": tempfile.gettempdir()}
        options["path"] = [path for path in sys.path if os.path.isabs(path)]
        root = Path(__file__).parents[1]
        boot = _BOOT.format(packages={"agent_r1_gym": str(root), "agent_r1_gym.sandbox": str(root / "sandbox")})
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-P", "-c", boot, json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=_ENVIRONMENT | _OTHER_MACHINE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        hello = self._hello()
        self.parts: list[str] = hello["parts"]
        self.packages: list[str] = hello["packages"]

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def make_slot(self) -> Slot:
        """Returns a new slot.

        Raises:
            InfrastructureError: the zygote is gone.
        """
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        data, their_data = socket.socketpair()
        out, their_out = os.pipe()
        error, their_error = os.pipe()
        lent = [theirs.fileno(), their_data.fileno(), their_out, their_error]
        try:
            with self._lock:
                socket.send_fds(self._control, [NEW], lent)
                keeper = int(self._control.recv(64))
        except (OSError, ValueError) as problem:
            for end in (control, data):
                end.close()
            for fd in (out, error):
                os.close(fd)
            raise InfrastructureError(f"The sandbox's zygote is gone: {problem}.") from problem
        finally:
            theirs.close()
            their_data.close()
            os.close(their_out)
            os.close(their_error)
        return Slot(self, keeper, control, data, out, error)

    def end_keeper(self, keeper: int) -> None:
        """Has a keeper and all below it killed."""
        with self._lock, contextlib.suppress(OSError):
            self._control.send(END + str(keeper).encode())

    def close(self) -> None:
        """Ends it and everything below it."""
        self._control.close()
        try:
            self._process.wait(LAST)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Closes this process's copy of the socket: of a fork, which has no part in it."""
        self._control.close()
        self._process.returncode = 0  # it is not this process's child; nobody waits for it here

    def _hello(self) -> dict[str, Any]:
        try:
            said = self._control.recv(1 << 16)
            hello: dict[str, Any] = json.loads(said) if said else {"error": "it ended at once"}
        except (OSError, ValueError) as problem:
            hello = {"error": str(problem)}
        if "error" in hello:
            self._process.kill()
            self._process.wait()
            self._control.close()
            raise InfrastructureError(f"The sandbox's zygote did not start: {hello['error']}.")
        return hello


class Slot:
    """One place where code runs: a worker waits in it. Used by one thread at a time.

    Args:
        zygote: which made it.
        keeper: process id of its keeper, as the zygote knows it.
        control: to the keeper.
        data: to the worker.
        out: what the worker prints.
        error: what it writes to stderr.
    """

    def __init__(
        self, zygote: Zygote, keeper: int, control: socket.socket, data: socket.socket, out: int, error: int
    ) -> None:
        self.zygote, self.keeper = zygote, keeper
        self._control, self._data, self._pipes = control, data, (out, error)
        control.setblocking(False)
        data.setblocking(False)
        self._poll = select.poll()
        for fd in (control.fileno(), data.fileno(), *self._pipes):
            os.set_blocking(fd, False)
            self._poll.register(fd, select.POLLIN)
        self.closed = False
        self._told = False

    def run(self, code: str, limits: Limits) -> tuple[Execution, bool]:
        """Runs one snippet in the worker that waits; returns what came of it, and whether the worker goes on.

        Raises:
            InfrastructureError: the keeper or the zygote is gone.
        """
        run = _Run(limits)
        encoded = code.encode("utf-8", "surrogatepass")
        run.unsent = (
            REQUEST.pack(len(encoded), limits.memory, int(limits.seconds) * 1000 + 3600, limits.output) + encoded
        )
        try:
            self._send(run)
            while run.status is None and not run.answered:
                self._wait(run)
            goes_on = run.status is None
            self._drain(run)
            if not goes_on:
                run.cpu = self._end(run)
                self._drain(run)
            return run.execution(), goes_on
        except BaseException:
            self.discard()
            raise

    def renew(self) -> float | None:
        """Ends the worker and lets the next one take its place; returns the CPU seconds of the one that ended.

        Raises:
            InfrastructureError: the keeper or the zygote is gone.
        """
        try:
            run = _Run(Limits())
            used = self._end(run)
            self._drain(run)
            return used
        except BaseException:
            self.discard()
            raise

    def is_ready(self) -> bool:
        """Returns whether a fresh worker still waits: nothing has come from the slot since it was given back."""
        return not self._poll.poll(0)

    def discard(self) -> None:
        """Gives the slot up: everything in it is killed."""
        if not self.closed:
            self.forget()
            self.zygote.end_keeper(self.keeper)

    def forget(self) -> None:
        """Closes this process's ends."""
        if not self.closed:
            self.closed = True
            self._control.close()
            self._data.close()
            for fd in self._pipes:
                os.close(fd)

    def _wait(self, run: _Run) -> None:
        """Takes what comes within a tick, and looks at the clocks."""
        left = run.deadline - time.monotonic()
        if left <= 0:
            run.status, run.problem = "timeout", f"Timed out after {run.limits.seconds:g} s."
            return
        events = self._poll.poll(1000 * min(left, TICK) + 1)
        if run.unsent:
            self._send(run)
        for fd, _ in events:
            if fd == self._control.fileno():
                self._hear(run)
            elif fd == self._data.fileno():
                run.take_answer(self._data)
            else:
                run.take_output(fd, self._pipes.index(fd))
        if not events and time.monotonic() < run.deadline:
            with contextlib.suppress(BlockingIOError):
                self._control.send(ASK)

    def _send(self, run: _Run) -> None:
        try:
            run.unsent = run.unsent[self._data.send(run.unsent) :]
        except BlockingIOError:
            return
        except OSError as problem:
            raise InfrastructureError(f"A slot of the sandbox was lost: {problem}.") from problem

    def _hear(self, run: _Run) -> None:
        """Takes what the keeper says."""
        try:
            said = self._control.recv(64)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said[:1] == b"d":
            _, run.ended, run.cpu = ENDED.unpack(said)
            if run.status is None and not run.answered:
                run.status, run.problem = "killed", _told_end(run.ended)
        elif said[:1] == b"c":
            run.count(USED.unpack(said)[1])
        else:
            raise InfrastructureError("A keeper of the sandbox was lost.")

    def _end(self, run: _Run) -> float | None:
        """Has the worker ended, if it has not yet, and waits until all is clean."""
        with contextlib.suppress(BlockingIOError):
            try:
                self._control.send(KILL)
            except OSError as problem:
                raise InfrastructureError(f"A keeper of the sandbox was lost: {problem}.") from problem
        deadline = time.monotonic() + GRACE
        waiting = select.poll()
        waiting.register(self._control, select.POLLIN)
        while run.ended is None:
            left = deadline - time.monotonic()
            if left <= 0:
                self.discard()
                return None
            if waiting.poll(1000 * left + 1):
                self._hear(run)
        return run.cpu

    def _drain(self, run: _Run) -> None:
        """Takes what was printed before the end; of an ended worker, also what nobody shall read."""
        if self.closed:
            return
        for index, fd in enumerate(self._pipes):
            while run.take_output(fd, index):
                pass
        if run.ended is not None:
            with contextlib.suppress(BlockingIOError):
                while self._data.recv(1 << 16):
                    pass


class _Run:
    """A run under way, as far as it is known."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.deadline = time.monotonic() + limits.seconds
        self.unsent = b""
        self.status: Status | None = None
        self.problem = ""
        self.ended: int | None = None
        self.cpu: float | None = None
        self._first_count: float | None = None
        self._answer = b""
        self.answered = False
        self._output = [bytearray(), bytearray()]
        self._written = 0

    def take_output(self, fd: int, index: int) -> bool:
        """Takes what was printed; returns whether there may be more."""
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        self._written += len(part)
        kept = self._output[index]
        kept += part[: max(0, 4 * self.limits.output - len(kept))]
        if self._written > FLOOD and self.status is None:
            self.status, self.problem = "output", f"Ended: more than {FLOOD} bytes were printed."
        return bool(part) and self._written < 64 * FLOOD

    def take_answer(self, data: socket.socket) -> None:
        """Takes what the worker answers, as long as it has the shape of an answer."""
        try:
            self._answer += data.recv(1 << 16)
        except BlockingIOError:
            return
        if len(self._answer) >= ANSWER.size:
            kind, value, error = ANSWER.unpack_from(self._answer)
            size = ANSWER.size + value + error
            if kind not in (OK, ERROR, MEMORY) or size > LONGEST_ANSWER or len(self._answer) > size:
                self.status, self.problem = "killed", "Ended: the process wrote what is no answer."
            self.answered = len(self._answer) == size

    def count(self, used: float) -> None:
        """Takes the CPU time used so far by the worker, and ends a run that has used too much."""
        if self._first_count is None:
            self._first_count = max(0.0, used - TICK)
        if used - self._first_count > self.limits.seconds + TICK and self.status is None:
            self.status, self.problem = "timeout", f"Used more than {self.limits.seconds:g} s of CPU time."

    def execution(self) -> Execution:
        """Returns what came of it."""
        out, error = (_text(part, self.limits.output) for part in self._output)
        if self.status is not None:
            return Execution(
                status=self.status, stdout=out, stderr=error, error=self.problem, state_lost=True, cpu_seconds=self.cpu
            )
        kind, size, _ = ANSWER.unpack_from(self._answer)
        body = self._answer[ANSWER.size :]
        status: Status = "ok" if kind == OK else "memory" if kind == MEMORY else "error"
        most = 2 * self.limits.output + 100
        return Execution(
            status=status,
            value=_text(body[:size], most),
            stdout=out,
            stderr=error,
            error="" if kind == OK else _text(body[size:], most) or "The code failed.",
            cpu_seconds=self.cpu,
        )


def _text(data: bytes | bytearray, most: int) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= most else f"{text[:most]}\n... [cut]"


def _told_end(status: int) -> str:
    """Returns how a process ended, in words."""
    if os.WIFSIGNALED(status):
        import signal

        return f"The process was killed by {signal.Signals(os.WTERMSIG(status)).name}."
    return f"The process exited with status {os.WEXITSTATUS(status)}."


class Pool:
    """A zygote, started when it is first needed and again when it was lost, and the slots that wait for a run.

    Args:
        isolation: "strong" or "weak".
        packages: what workers find imported.
        most_idle: slots kept for later runs.
        namespaces: whether namespaces are used where they are allowed.
    """

    def __init__(self, isolation: str, packages: Sequence[str], most_idle: int, *, namespaces: bool = True) -> None:
        self._make = functools.partial(Zygote, isolation, packages, namespaces=namespaces)
        self._most_idle = most_idle
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None
        self._idle: list[Slot] = []

    def zygote(self) -> Zygote:
        """Returns the zygote that runs; starts one if there is none.

        Raises:
            InfrastructureError: it does not start.
        """
        with self._lock:
            if self._zygote is not None and not self._zygote.alive:
                self._zygote.close()
                self._zygote = None
            if self._zygote is None:
                self._zygote = self._make()
            return self._zygote

    def take(self) -> Slot:
        """Returns a slot in which a fresh worker waits."""
        while True:
            zygote = self.zygote()
            with self._lock:
                slot = self._idle.pop() if self._idle else None
            if slot is None:
                return zygote.make_slot()
            if slot.zygote is zygote and slot.is_ready():
                return slot
            slot.discard()

    def give_back(self, slot: Slot) -> None:
        """Takes back a slot whose worker is fresh."""
        with self._lock:
            keep = not slot.closed and len(self._idle) < self._most_idle and slot.zygote is self._zygote
            if keep:
                self._idle.append(slot)
        if not keep:
            slot.discard()

    def close(self) -> None:
        """Ends everything; a later `take` starts it again."""
        with self._lock:
            zygote, self._zygote = self._zygote, None
            slots, self._idle = self._idle, []
        for slot in slots:
            slot.forget()
        if zygote is not None:
            zygote.close()

    def forget(self) -> None:
        """Closes a fork's copies of what belongs to its parent. It takes no lock, which the fork may have found locked."""
        for slot in self._idle:
            slot.forget()
        if self._zygote is not None:
            self._zygote.forget()
