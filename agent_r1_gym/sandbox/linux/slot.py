"""Slot: the program's end of one supervisor and its worker. Runs a snippet, and watches the clocks."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable

from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.sandbox.interface import Execution, ExecutionLimits, Status
from agent_r1_gym.sandbox.linux.fork_server import EXIT_MESSAGE, KILL, PAUSE, QUERY_CPU, RESUME, USED
from agent_r1_gym.sandbox.linux.worker import ERROR, MAX_RESPONSE_BYTES, MEMORY, OK, REQUEST, RESPONSE

CLEANUP_TIMEOUT = 0.15
"""Seconds that a supervisor may take to kill a worker and clean up; after that the slot is discarded."""
POLL_INTERVAL = 0.1
"""Seconds between two queries of a run's CPU time."""
MAX_PRINTED_BYTES = 2**20
"""Bytes of stdout and stderr after which a run is stopped."""


class Slot:
    """A worker that waits for code, and its supervisor. For one thread at a time.

    Args:
        kill_supervisor: kills the supervisor and everything below it.
        control: socket to the supervisor.
        data: socket to the worker.
        out: pipe from the worker's stdout.
        error: pipe from its stderr.
    """

    def __init__(
        self, kill_supervisor: Callable[[], None], control: socket.socket, data: socket.socket, out: int, error: int
    ) -> None:
        self.kill_supervisor = kill_supervisor
        self._control, self._data, self._pipes = control, data, (out, error)
        control.setblocking(False)
        data.setblocking(False)
        self._poll = select.poll()
        for fd in (control.fileno(), data.fileno(), *self._pipes):
            os.set_blocking(fd, False)
            self._poll.register(fd, select.POLLIN)
        self.closed = False
        self._abandoned = False
        self._is_paused = False

    def run(self, code: str, limits: ExecutionLimits, *, pause: bool = False) -> tuple[Execution, bool]:
        """Run one snippet in the worker; return the result, and whether the worker is still alive.

        Args:
            code: the snippet.
            limits: of this run.
            pause: stop all threads of the worker when it has answered, until the next run: what a snippet started in
                the background would otherwise use CPU time that no limit counts.

        Raises:
            InfrastructureError: the supervisor or the fork server is gone.
        """
        run = _Run(limits)
        encoded = code.encode("utf-8", "surrogatepass")
        run.unsent = (
            REQUEST.pack(len(encoded), limits.memory, int(limits.seconds) * 1000 + 3600, limits.output) + encoded
        )
        try:
            if self._is_paused:
                self._command(RESUME)
            self._send_unless_answered(run)
            while run.status is None and not run.answered:
                self._wait(run)
            is_alive = run.status is None
            self._is_paused = is_alive and pause
            if self._is_paused:
                self._command(PAUSE)
            self._drain(run)
            if not is_alive:
                run.cpu = self._kill_worker(run)
                self._drain(run)
            return run.execution(), is_alive
        except BaseException:
            self.discard()
            raise

    def replace_worker(self) -> float | None:
        """Kill the worker, so that a fresh one takes its place; return the CPU seconds of the killed one.

        Raises:
            InfrastructureError: the supervisor or the fork server is gone.
        """
        try:
            run = _Run(ExecutionLimits())
            used = self._kill_worker(run)
            self._drain(run)
            return used
        except BaseException:
            self.discard()
            raise

    def is_ready(self) -> bool:
        """Whether the fresh worker still waits."""
        return not self._poll.poll(0)  # one that died, or a supervisor that died, would have sent something

    def discard(self) -> None:
        """Give the slot up and kill everything in it."""
        if not self.closed:
            self.detach()
            self.kill_supervisor()

    def detach(self) -> None:
        """Close this process's descriptors."""
        if not self.closed:
            self.closed = True
            self._control.close()
            self._data.close()
            for fd in self._pipes:
                os.close(fd)

    def _wait(self, run: _Run) -> None:
        """Handle what arrives within one poll interval, and check the clocks."""
        left = run.deadline - time.monotonic()
        if left <= 0:
            run.status, run.problem = "timeout", f"Timed out after {run.limits.seconds:g} s."
            return
        events = self._poll.poll(1000 * min(left, POLL_INTERVAL) + 1)
        if run.unsent:
            self._send(run)
        for fd, _ in events:
            if fd == self._control.fileno():
                self._read_control(run)
            elif fd == self._data.fileno():
                run.read_response(self._data)
            else:
                run.read_output(fd, self._pipes.index(fd))
        if time.monotonic() - run.last_poll >= POLL_INTERVAL:
            run.last_poll = time.monotonic()
            with contextlib.suppress(OSError):  # a dead supervisor is noticed by reading
                self._control.send(QUERY_CPU)

    def _send_unless_answered(self, run: _Run) -> None:
        """Send the request, unless a response is there already: a thread that an earlier snippet started forged it."""
        try:
            early = self._data.recv(1)
        except BlockingIOError:
            self._send(run)
            return
        if not early:
            raise InfrastructureError("A worker of the sandbox died.")
        run.status, run.problem = "killed", INVALID_RESPONSE

    def _send(self, run: _Run) -> None:
        try:
            run.unsent = run.unsent[self._data.send(run.unsent) :]
        except BlockingIOError:
            return
        except OSError as problem:
            raise InfrastructureError(f"A worker of the sandbox died: {problem}.") from problem

    def _read_control(self, run: _Run) -> None:
        """Handle one message of the supervisor."""
        try:
            message = self._control.recv(64)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message[:1] in (b"d", b"e", b"x"):
            kind, wait_status, run.cpu = EXIT_MESSAGE.unpack(message)
            if kind != b"e":
                run.is_cleaned, self._abandoned = True, kind == b"x"
            if run.status is None and not run.answered:
                run.status, run.problem = "killed", _describe_exit(wait_status)
        elif message[:1] == b"c":
            run.check_cpu_time(USED.unpack(message)[1])
        else:
            raise InfrastructureError("A supervisor of the sandbox died.")

    def _kill_worker(self, run: _Run) -> float | None:
        """Kill the worker, if it has not exited, and wait until the slot is clean; return its CPU seconds."""
        self._command(KILL)
        self._is_paused = False
        deadline = time.monotonic() + CLEANUP_TIMEOUT
        waiting = select.poll()
        waiting.register(self._control, select.POLLIN)
        while not run.is_cleaned:
            left = deadline - time.monotonic()
            if left <= 0:
                self.discard()
                return None
            if waiting.poll(1000 * left + 1):
                self._read_control(run)
        if self._abandoned:
            self.discard()
        return run.cpu

    def _command(self, command: bytes) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                self._control.send(command)
            except OSError as problem:
                raise InfrastructureError(f"A supervisor of the sandbox died: {problem}.") from problem

    def _drain(self, run: _Run) -> None:
        """Read what was printed before the end; discard what else a killed worker sent."""
        if self.closed:
            return
        for index, fd in enumerate(self._pipes):
            while run.read_output(fd, index):
                pass
        if run.is_cleaned:
            with contextlib.suppress(BlockingIOError):
                while self._data.recv(1 << 16):
                    pass


INVALID_RESPONSE = "Stopped: the process wrote an invalid response."


class _Run:
    """The state of a run in progress."""

    def __init__(self, limits: ExecutionLimits) -> None:
        self.limits = limits
        self.deadline = time.monotonic() + limits.seconds
        self.last_poll = time.monotonic()
        self.unsent = b""
        self.status: Status | None = None
        self.problem = ""
        self.is_cleaned = False
        self.cpu: float | None = None
        self.answered = False
        self._cpu_at_start: float | None = None
        self._cpu_used: float | None = None
        self._response = b""
        self._output = [bytearray(), bytearray()]
        self._printed_bytes = 0

    def read_output(self, fd: int, index: int) -> bool:
        """Read what was printed; whether there may be more."""
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        self._printed_bytes += len(part)
        output = self._output[index]
        output += part[: max(0, 4 * self.limits.output - len(output))]
        # After the response this is a background thread, whose output is cut; the run itself has ended.
        if self._printed_bytes > MAX_PRINTED_BYTES and self.status is None and not self.answered:
            self.status, self.problem = "output", f"Stopped: more than {MAX_PRINTED_BYTES} bytes were printed."
        return bool(part) and self._printed_bytes < 64 * MAX_PRINTED_BYTES

    def read_response(self, data: socket.socket) -> None:
        """Read the worker's response, as long as it has the shape of one: the code can write there too."""
        try:
            self._response += data.recv(1 << 16)
        except BlockingIOError:
            return
        if len(self._response) >= RESPONSE.size:
            kind, value, error = RESPONSE.unpack_from(self._response)
            size = RESPONSE.size + value + error
            if kind not in (OK, ERROR, MEMORY) or size > MAX_RESPONSE_BYTES or len(self._response) > size:
                self.status, self.problem = "killed", INVALID_RESPONSE
            self.answered = len(self._response) == size

    def check_cpu_time(self, used: float) -> None:
        """Stop a run whose worker has used too much CPU time since the run began."""
        if self._cpu_at_start is None:
            self._cpu_at_start = max(0.0, used - POLL_INTERVAL)  # the first query comes one interval after the start
        self._cpu_used = used - self._cpu_at_start
        if self._cpu_used > self.limits.seconds + POLL_INTERVAL and self.status is None:
            self.status, self.problem = "timeout", f"Used more than {self.limits.seconds:g} s of CPU time."

    def execution(self) -> Execution:
        """The result."""
        out, error = (_decode(part, self.limits.output) for part in self._output)
        if self.status is not None:
            # On a busy machine the supervisor's report may not arrive in time: then the last query counts.
            cpu = self._cpu_used if self.cpu is None else self.cpu
            return Execution(
                status=self.status, stdout=out, stderr=error, error=self.problem, state_lost=True, cpu_seconds=cpu
            )
        kind, size, _ = RESPONSE.unpack_from(self._response)
        body = self._response[RESPONSE.size :]
        status: Status = "ok" if kind == OK else "memory" if kind == MEMORY else "error"
        max_chars = 2 * self.limits.output + 100
        return Execution(
            status=status,
            value=_decode(body[:size], max_chars),
            stdout=out,
            stderr=error,
            error="" if kind == OK else _decode(body[size:], max_chars) or "The code failed.",
            cpu_seconds=self.cpu,
        )


def _decode(data: bytes | bytearray, max_chars: int) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= max_chars else f"{text[:max_chars]}\n... [cut]"


def _describe_exit(status: int) -> str:
    """How a process ended, as a sentence."""
    if os.WIFSIGNALED(status):
        import signal

        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"  # of real time
        return f"The process was killed by {name}."
    return f"The process exited with status {os.WEXITSTATUS(status)}."
