"""Programs that drive themselves: a command, a URL or a function, started once per episode.

A program gets the task, the base URL of the gateway and the API key of its episode, asks for turns of the model as it
would ask any server, and ends. Ending well ends the episode; everything else is an infrastructure failure: a program
that dies says nothing about the model.

Limits: a function runs in a thread of this process, which nothing can stop; it is refused further turns instead. A
child of a command that leaves its process group (a daemon) is not killed with it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, ClassVar
from weakref import WeakSet

from agent_r1_gym.core.text import encodable
from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.gateway.episode import ProgramEnd, ProgramResult
from agent_r1_gym.support.checks import check_parameters, is_number
from agent_r1_gym.support.files import is_url
from agent_r1_gym.support.http import HTTPClient
from agent_r1_gym.support.packages import import_object
from agent_r1_gym.support.secrets import Secrets

_PLACEHOLDER = re.compile(r"\{(task|base_url|api_key)\}")
_FUNCTION = re.compile(r"[^\W\d][\w.]*:[^\W\d]\w*")
_SECRET_NAME = re.compile("key|token|secret|password|credential", re.IGNORECASE)
_MAX_LOG_BYTES = 2**20
_MAX_VARIABLE_BYTES = 2**17 - 64
"""What Linux allows for one variable, or one argument, with its name."""
_LAST_LINES = 3
_LONGEST_EPISODE = 24 * 3600.0
"""Seconds for the answer of a URL; the environment's own limit, on the time between two requests, comes earlier."""
_MAX_ANSWER_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class ProgramJob:
    """What a program gets, and where it reports.

    Attributes:
        task: the task, as text.
        base_url: address of the gateway, with the version: "http://127.0.0.1:PORT/v1".
        api_key: key of the episode.
        on_result: receives what the program returns.
        on_end: receives its end, once.
    """

    task: str
    base_url: str
    api_key: str
    on_result: Callable[[ProgramResult], None]
    on_end: Callable[[ProgramEnd], None]


Stop = Callable[[], None]
"""Stops a program and all that it started; may be called at any time, and twice."""


class Program(ABC):
    """Something that drives itself, and is started once per episode.

    Attributes:
        comes_by_itself: whether it is not started here: its first request comes at any time, and the report of its
            result is its end.
    """

    comes_by_itself: ClassVar[bool] = False

    @abstractmethod
    def start(self, job: ProgramJob) -> Stop:
        """Start an episode; does not wait for it.

        Raises:
            InfrastructureError: it cannot be started.
        """


def make_program(agent: str | Callable[..., Any] | Program, *, logs: str | None = None) -> Program:
    """Make the program that an option `agent` names.

    Args:
        agent: a command, in which `{task}`, `{base_url}` and `{api_key}` are replaced; an address (http://...), to
            which they are posted; MODULE:FUNCTION or a function, which is called with them; or a `Program`.
        logs: folder for what each command prints; None: logs of failed programs only, in a temporary folder.

    Raises:
        ConfigurationError: it is none of these, or cannot be found.
    """
    if isinstance(agent, Program):
        return agent
    if callable(agent):
        return FunctionProgram(agent)
    if not isinstance(agent, str) or not agent.strip():
        raise ConfigurationError(f"agent must be a command, a URL or MODULE:FUNCTION, got {agent!r:.80}.")
    if is_url(agent):
        return URLProgram(agent)
    if _FUNCTION.fullmatch(agent):
        return FunctionProgram(import_object(agent))
    return CommandProgram(agent, logs=logs)


def read_result(value: Any, source: str) -> ProgramResult:
    """Read what a program returns: None, an answer, a reward, or a mapping of both.

    Args:
        value: what it returned.
        source: who did, for errors.

    Raises:
        ConfigurationError: it is something else.
    """
    if value is None:
        return ProgramResult()
    if isinstance(value, str):
        return ProgramResult(encodable(value))
    if is_number(value):
        return ProgramResult(reward=float(value))
    if isinstance(value, Mapping) and value.keys() <= {"answer", "reward"}:
        answer, reward = value.get("answer"), value.get("reward")
        if isinstance(answer, str | None) and (reward is None or is_number(reward)):
            return ProgramResult(
                None if answer is None else encodable(answer), None if reward is None else float(reward)
            )
    raise ConfigurationError(
        f'{source} returned {value!r:.120}; expected {{"answer": TEXT, "reward": NUMBER}}, one of the two, or nothing.'
    )


# --- commands ---------------------------------------------------------------------------------------------------------


class CommandProgram(Program):
    """A command, run as a child process in a process group of its own.

    It also finds address and key where the clients look for them: `OPENAI_BASE_URL`, `OPENAI_API_KEY`,
    `ANTHROPIC_BASE_URL`, `ANTHROPIC_API_KEY`; and the task in `AGENT_R1_TASK`, cut at the 128 KiB that a variable
    holds.

    Args:
        command: split as a shell does; no shell runs it.
        logs: see `make_program`.

    Raises:
        ConfigurationError: the command is not found, or its quotes do not match.
    """

    _running: ClassVar[WeakSet[_ChildProcess]] = WeakSet()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, command: str, *, logs: str | None = None) -> None:
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise ConfigurationError(f"agent={command!r}: {error}.") from error
        if shutil.which(self._words[0]) is None:
            raise ConfigurationError(f"agent={command!r}: there is no program {self._words[0]!r}.")
        self._logs = _LogFolder(logs)

    def start(self, job: ProgramJob) -> Stop:
        """See `Program`."""
        # NUL would end an argument; a lone surrogate cannot be passed.
        job = replace(job, task=encodable(job.task.replace("\0", "")))
        values = {"task": job.task, "base_url": job.base_url, "api_key": job.api_key}
        # One pass: a task may hold braces itself.
        words = [_PLACEHOLDER.sub(lambda name: values[name[1]], word) for word in self._words]
        child = _ChildProcess(words, _environment(job), self._logs, _secrets(job), job.on_end)
        with self._lock:
            self._running.add(child)
        return child.stop

    @classmethod
    def stop_all(cls) -> None:
        """Stop every command of this process."""
        for child in cls.running():
            child.stop()

    @classmethod
    def running(cls) -> list[_ChildProcess]:
        """Return the commands of this process that have not been forgotten; some may have ended."""
        with cls._lock:  # iterating fails if another thread starts a command meanwhile
            return list(cls._running)


atexit.register(CommandProgram.stop_all)


def _secrets(job: ProgramJob) -> Secrets:
    """Find what logs and errors must not show: the key of the episode, and variables that are named like a secret."""
    return Secrets([job.api_key, *(value for name, value in os.environ.items() if _SECRET_NAME.search(name))])


def _environment(job: ProgramJob) -> dict[str, str]:
    named = dict.fromkeys(os.environ.get(name) for name in ("NO_PROXY", "no_proxy"))
    local = ",".join(filter(None, [*named, "127.0.0.1", "localhost"]))
    return {
        **os.environ,
        "OPENAI_BASE_URL": job.base_url,
        "OPENAI_API_KEY": job.api_key,
        "ANTHROPIC_BASE_URL": job.base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": job.api_key,
        "AGENT_R1_TASK": job.task.encode()[:_MAX_VARIABLE_BYTES].decode(errors="ignore"),
        "OPENAI_AGENTS_DISABLE_TRACING": "1",  # the Agents SDK would upload each run
        "NO_PROXY": local,
        "no_proxy": local,
    }


class _ChildProcess:
    """A running command: one thread copies what it prints into its log, another waits for its end."""

    def __init__(
        self,
        words: list[str],
        environment: Mapping[str, str],
        logs: _LogFolder,
        secrets: Secrets,
        on_end: Callable[[ProgramEnd], None],
    ) -> None:
        self._secrets, self._on_end, self._stopped = secrets, on_end, False
        self._log = logs.new_file()
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            logs.release(self._log)
            raise InfrastructureError(f"The program {words[0]!r} cannot be started: {error}.") from error
        self._lock = threading.Lock()
        self._alive = True
        self._logs = logs
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._copy, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, name="agent-r1-program", daemon=True).start()

    def stop(self) -> None:
        """Kill the process group."""
        self._stopped = True
        self._kill()

    def _kill(self) -> None:
        with self._lock, contextlib.suppress(ProcessLookupError, PermissionError):
            if self._alive:  # afterwards the number may be that of another group
                os.killpg(self._process.pid, signal.SIGKILL)

    def _wait(self) -> None:
        # WNOWAIT: until `wait` below, the number of the group is not given to another one.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        self._kill()  # what it has left behind
        with self._lock:
            self._alive = False
            status = self._process.wait()
        self._reader.join(timeout=5)
        failed = status != 0 and not self._stopped
        end = ProgramEnd()
        if failed:
            how = f"exit status {status}" if status > 0 else f"signal {-status}"
            *earlier, last = self._last_lines() or ["it printed nothing"]
            before = f"before that: {' | '.join(earlier)}; " if earlier else ""
            end = ProgramEnd(f"the program ended with {how}: {last} ({before}log: {self._log})")
        if not failed:
            self._logs.release(self._log)
        self._on_end(end)

    def _copy(self, output: IO[bytes]) -> None:
        """Copy lines into the log, without secrets; what exceeds its size is dropped."""
        size = 0
        with output, self._log.open("w", encoding="utf-8") as log:
            for line in iter(lambda: output.readline(_MAX_LOG_BYTES), b""):
                size += len(line)
                if size <= _MAX_LOG_BYTES:
                    log.write(self._secrets.redact(line.decode("utf-8", "replace")))
                    log.flush()

    def _last_lines(self) -> list[str]:
        try:
            return self._log.read_text(encoding="utf-8").strip().splitlines()[-_LAST_LINES:]
        except OSError:
            return []


class _LogFolder:
    """Numbers the logs; without a folder of the user's, those of failed programs alone stay, in a temporary one."""

    _lock = threading.Lock()

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._keeps_all = folder is not None
        self._numbers = itertools.count()

    def new_file(self) -> Path:
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="agent-r1-programs-"))
            self._folder.mkdir(parents=True, exist_ok=True)
            # Processes, and environments of one process, may share the folder.
            handle, name = tempfile.mkstemp(".log", f"{os.getpid()}-{next(self._numbers):06d}-", self._folder)
            os.close(handle)
            return Path(name)

    def release(self, log: Path) -> None:
        """Take back the log of a program that did not fail."""
        if self._keeps_all:
            return
        with self._lock:
            log.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # others have their logs there
                log.parent.rmdir()
                self._folder = None


# --- addresses and functions ------------------------------------------------------------------------------------------


class URLProgram(Program):
    """A service that runs an episode for each POST of task, base_url and api_key; its answer ends the episode.

    Args:
        url: its address.

    Raises:
        ConfigurationError: it is not an address.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        try:
            self._client()
        except ValueError as error:
            raise ConfigurationError(f"agent={url!r:.80} is not an address: {error}.") from error

    def start(self, job: ProgramJob) -> Stop:
        """See `Program`."""
        client = self._client()

        def call() -> Any:
            body = json.dumps({"task": job.task, "base_url": job.base_url, "api_key": job.api_key}).encode()
            headers = {"Content-Type": "application/json"}
            try:
                answer = client.request_once("POST", "", body, timeout=_LONGEST_EPISODE, headers=headers).answer
            finally:
                client.close()
            if not 200 <= answer.status < 300:
                raise InfrastructureError(f"{self._url} answered {answer.status}: {answer.body[:200]!r}")
            try:
                return json.loads(answer.body) if answer.body.strip() else None
            except ValueError as error:
                raise InfrastructureError(f"{self._url} sent no JSON: {error}") from error

        _in_thread(call, job, self._url)
        return client.abort  # a service that never answers would keep the thread for `_LONGEST_EPISODE`

    def _client(self) -> HTTPClient:
        return HTTPClient(self._url, max_retries=0, pool_size=1, max_bytes=_MAX_ANSWER_BYTES)


class FunctionProgram(Program):
    """A function, or coroutine function, that is called with task, base_url and api_key in a thread.

    Args:
        function: may return what `read_result` reads.

    Raises:
        ConfigurationError: it takes other arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        check_parameters("agent", function, "task", "base_url", "api_key", coroutine=True)
        self._function = function

    def start(self, job: ProgramJob) -> Stop:
        """See `Program`."""

        def call() -> Any:
            value = self._function(job.task, job.base_url, job.api_key)
            return asyncio.run(value) if inspect.iscoroutine(value) else value

        _in_thread(call, job, getattr(self._function, "__name__", "the function"))
        return lambda: None  # it is refused further turns, which is all that can be done


def _in_thread(call: Callable[[], Any], job: ProgramJob, source: str) -> None:
    """Run an episode in a thread, which reports its result and its end."""

    def run() -> None:
        try:
            job.on_result(read_result(call(), source))
        except BaseException as error:  # a program may raise anything, SystemExit included
            last = traceback.format_exception_only(error)[-1].strip()
            frames = traceback.extract_tb(error.__traceback__)[1:]  # the first one is here
            place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
            job.on_end(ProgramEnd(_secrets(job).redact(f"the program failed: {last}{place}")))
        else:
            job.on_end(ProgramEnd())

    threading.Thread(target=run, name="agent-r1-program", daemon=True).start()
