"""Commands, URLs and functions: what they get, what they leave behind, and how they end."""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.gateway.episode import ProgramEnd, ProgramResult
from agent_r1_gym.gateway.programs import CommandProgram, ProgramJob, make_program, read_result


class Started:
    """A program that was started; `end` waits for it."""

    def __init__(self, program, task: str = 'the {task}\'s "text"') -> None:
        self.results: list[ProgramResult] = []
        self._over, self._end = threading.Event(), ProgramEnd()
        job = ProgramJob(
            task=task, base_url="http://x/v1", api_key="agent-r1-key", on_result=self.results.append, on_end=self._set
        )
        self.stop = program.start(job)

    def _set(self, end: ProgramEnd) -> None:
        self._end = end
        self._over.set()

    def end(self) -> ProgramEnd:
        assert self._over.wait(30)
        return self._end


def command(code: str, *words: str) -> str:
    return shlex.join([sys.executable, "-c", code, *words])


def wait_for(condition: Callable[[], object]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("nothing came of it")


def test_a_command_gets_task_address_and_key(tmp_path: Path):
    code = (
        "import sys, os; print(sys.argv[1:]); e = os.environ; "
        "print(e['OPENAI_BASE_URL'], e['ANTHROPIC_BASE_URL'], e['AGENT_R1_TASK'], '127.0.0.1' in e['NO_PROXY'])"
    )
    program = make_program(command(code, "{task}", "--url={base_url}", "{other}"), logs=str(tmp_path))
    assert Started(program).end() == ProgramEnd()
    (log,) = tmp_path.iterdir()
    words, environment = log.read_text(encoding="utf-8").splitlines()
    assert words == str(['the {task}\'s "text"', "--url=http://x/v1", "{other}"])
    assert environment == 'http://x/v1 http://x the {task}\'s "text" True'


def test_any_task_can_be_passed(tmp_path: Path):
    """What no argument can hold is left out or replaced; a variable is cut at what the system allows."""
    program = make_program(command("import os, sys; print(ascii(sys.argv[1]))", "{task}"), logs=str(tmp_path / "a"))
    assert Started(program, "a\0b\ud800").end() == ProgramEnd()
    assert next((tmp_path / "a").iterdir()).read_text().strip() == r"'ab\ufffd'"
    program = make_program(command("import os; print(len(os.environ['AGENT_R1_TASK']))"), logs=str(tmp_path / "b"))
    assert Started(program, "\u4e2d" * 50_000).end() == ProgramEnd()
    assert int(next((tmp_path / "b").iterdir()).read_text()) > 40_000


def test_only_the_logs_of_failed_commands_stay_in_the_temporary_folder(temporary_folder: Path):
    program = make_program(command("import sys; sys.exit(sys.argv[1] or None)", "{task}"))
    assert Started(program, task="").end() == ProgramEnd()
    assert not list(temporary_folder.iterdir())
    failures = [Started(program, task=task) for task in ("one", "two")]
    assert all(failed.end().failure for failed in failures)
    assert Started(program, task="").end() == ProgramEnd()
    logs = [log.read_text() for log in temporary_folder.glob("agent-r1-programs-*/*.log")]
    assert sorted(logs) == ["one\n", "two\n"]


def test_a_failed_command_says_how_in_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN", "abcdefgh123")
    code = "import os, sys; print('the key', os.environ['MY_TOKEN'], os.environ['OPENAI_API_KEY']); sys.exit(3)"
    started = Started(make_program(command(code), logs=str(tmp_path)))
    failure = started.end().failure
    assert "exit status 3" in failure
    assert "the key [hidden] [hidden]" in failure
    (log,) = tmp_path.iterdir()
    assert str(log) in failure
    assert log.read_text(encoding="utf-8") == "the key [hidden] [hidden]\n"
    assert log.stat().st_mode & 0o077 == 0
    code = "import sys; print('one'); print('two: three'); sys.exit(1)"
    failure = Started(make_program(command(code))).end().failure
    assert failure.startswith("the program ended with exit status 1: two: three (before that: one; log: ")
    assert "signal 9" in Started(make_program(command("import os; os.kill(os.getpid(), 9)"))).end().failure


def test_a_stopped_command_ends_with_all_that_it_started(tmp_path: Path):
    child = "import time; time.sleep(60)"
    code = (
        f"import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', {child!r}]); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(f'{{p.pid}} '); time.sleep(60)"
    )
    started = Started(make_program(command(code)))
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith(" "))
    number = int((tmp_path / "pid").read_text())
    started.stop()
    started.stop()
    assert started.end() == ProgramEnd()
    wait_for(lambda: not is_running(number))


def test_what_a_command_leaves_behind_is_stopped_with_it(tmp_path: Path):
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid))"
    )
    assert Started(make_program(command(code))).end() == ProgramEnd()
    wait_for(lambda: not is_running(int((tmp_path / "pid").read_text())))


def is_running(number: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_all_commands_of_a_process_can_be_stopped():
    started = Started(make_program(command("import time; time.sleep(60)")))
    CommandProgram.stop_all()
    assert started.end() == ProgramEnd()


def test_commands_can_be_listed_while_others_start(monkeypatch: pytest.MonkeyPatch):
    class Child:
        def stop(self):
            return None

    kept = []

    def start(*_: Any) -> Child:
        kept.append(Child())
        return kept[-1]

    monkeypatch.setattr("agent_r1_gym.gateway.programs._ChildProcess", start)
    monkeypatch.setattr(CommandProgram, "_running", WeakSet())
    program, switch = make_program(command("pass")), sys.getswitchinterval()
    job = ProgramJob(
        task="t", base_url="http://x/v1", api_key="k", on_result=lambda result: None, on_end=lambda end: None
    )
    starter = threading.Thread(target=lambda: [program.start(job) for _ in range(3_000)])
    sys.setswitchinterval(1e-6)
    try:
        starter.start()
        while starter.is_alive():
            CommandProgram.running()
    finally:
        sys.setswitchinterval(switch)
        starter.join()
    assert len(CommandProgram.running()) == 3_000


def test_a_function_returns_answer_or_reward_or_both():
    assert Started(make_program(lambda task, base_url, key: f"{task} {base_url} {key}"), "t").end() == ProgramEnd()
    for value, result in (
        (None, ProgramResult()),
        ("yes", ProgramResult("yes")),
        (0.5, ProgramResult(reward=0.5)),
        ({"answer": "a\ud800", "reward": 1}, ProgramResult("a\ufffd", 1.0)),
    ):
        started = Started(make_program(lambda *_, value=value: value))
        assert (started.end(), started.results) == (ProgramEnd(), [result])
    wrong: tuple[Any, ...] = ([], {"score": 1}, {"reward": "1"}, float("nan"), True)
    for value in wrong:
        with pytest.raises(ConfigurationError, match="expected"):
            read_result(value, "it")

    async def waits(*_arguments):
        return "later"

    started = Started(make_program(waits))
    assert (started.end(), started.results) == (ProgramEnd(), [ProgramResult("later")])


def test_a_url_is_posted_the_task_and_answers_with_the_result():
    posted = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            ok = self.path == "/run"
            body = b'{"answer": "a"}' if ok else b"no"
            self.send_response(200 if ok else 500)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    started = Started(make_program(f"{url}/run"), "t")
    assert (started.end(), started.results) == (ProgramEnd(), [ProgramResult("a")])
    assert posted == [{"task": "t", "base_url": "http://x/v1", "api_key": "agent-r1-key"}]
    assert "500" in Started(make_program(f"{url}/fails")).end().failure
    server.shutdown()
    server.server_close()
    assert "cannot be reached" in Started(make_program(f"{url}/run")).end().failure


def test_stopping_a_service_that_never_answers_ends_its_thread():
    asked, gone = threading.Event(), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.set()
            if not self.connection.recv(1):  # nothing until the client closes the connection
                gone.set()

        def log_message(self, *_arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    program = make_program(f"http://127.0.0.1:{server.server_address[1]}/run")
    started = Started(program, "t")
    assert asked.wait(30)
    started.stop()
    started.stop()
    assert "cannot be reached" in started.end().failure
    assert gone.wait(30)
    server.shutdown()
    server.server_close()


def test_what_is_no_program_is_refused():
    for agent, problem in (
        ("", "a command, a URL"),
        (3, "a command, a URL"),
        ("no-such-program {task}", "no program 'no-such-program'"),
        ("python 'x", "quotation"),
        ("no_module:function", "cannot be loaded"),
        ("os:sep", r"must be a function of \(task, base_url, api_key\), got '/'"),
        ("os:listdir", "its parameters are .*: too many positional arguments"),
        ("http://[x", "is not an address"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            make_program(agent)
