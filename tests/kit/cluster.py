"""Stand-ins for a cluster on one machine: Slurm's commands, `vllm`, the launcher; all take notes."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NODES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
"""All are this machine."""

_NOTE = """#!{python}
import json, os, pathlib, signal, subprocess, sys, threading, time
def note(kind, **what):
    line = json.dumps({{"kind": kind, "pid": os.getpid(), **what}}) + "\\n"
    with open({notes!r}, "a") as file:
        file.write(line)
"""
_SCONTROL = """
if sys.argv[1:3] == ["show", "hostnames"]:
    print("\\n".join(sys.argv[3].split(",")))
else:
    note("scontrol", words=sys.argv[1:])
"""
_SRUN = """
words, options = sys.argv[1:], {}
while words[0].startswith("--"):
    name, _, value = words.pop(0)[2:].partition("=")
    options[name] = value
hosts = options["nodelist"].split(",")
assert len(hosts) == int(options["nodes"]) == int(options["ntasks"]), options
note("srun", hosts=hosts)
tasks = [
    subprocess.Popen(words, env={**os.environ, "SLURM_PROCID": str(rank)}, start_new_session=True)
    for rank in range(len(hosts))
]
def to_groups(number, frame=None):
    for task in tasks:
        if task.poll() is None:
            os.killpg(task.pid, number)
signal.signal(signal.SIGUSR1, to_groups)
while any(task.poll() is None for task in tasks):
    time.sleep(0.02)
sys.exit(max(task.returncode if task.returncode >= 0 else 128 - task.returncode for task in tasks))
"""
_VLLM = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
note("vllm", words=sys.argv[1:], gpus=os.environ["CUDA_VISIBLE_DEVICES"], port=sys.argv[-1],
     lora=os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING"), dev=os.environ.get("VLLM_SERVER_DEV_MODE"))
mode = os.environ.get("FAKE_VLLM", "well")
if mode == "broken":
    sys.exit(1)
if not os.fork():  # vLLM's engine: a process of its own, which a killed server leaves behind
    note("core", port=sys.argv[-1])
    time.sleep(60)
    os._exit(0)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if mode == "well" and self.path == "/health" else 503)
        self.end_headers()
    def log_message(self, *words):
        pass
server = ThreadingHTTPServer((sys.argv[sys.argv.index("--host") + 1], int(sys.argv[-1])), Handler)
def end(number, frame):
    note("vllm ended")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
server.serve_forever()
"""
_PYTHON = """
if sys.argv[1:3] != ["-m", "accelerate.commands.launch"]:
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
note("train", words=sys.argv[3:], cwd=os.getcwd(), home=os.environ.get("HOME"))
def end(number, frame):
    note("train stopped")
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
if os.environ.get("FAKE_TRAINER") == "long":
    time.sleep(60)
sys.exit(int(os.environ.get("FAKE_TRAINER", "0")))
"""


class Cluster:
    """A folder of stand-ins that stand first in the PATH, and what they have noted.

    Args:
        folder: where they lie; scripts run in it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._notes = folder, folder / "notes.jsonl"
        self._bin = folder / "bin"
        self._bin.mkdir(parents=True)
        head = _NOTE.format(python=sys.executable, notes=str(self._notes))
        own = {"scontrol": _SCONTROL, "srun": _SRUN, "vllm": _VLLM, "python": _PYTHON.replace("{python!r}", "PYTHON")}
        for name, code in own.items():
            path = self._bin / name
            path.write_text(f"{head}PYTHON = {sys.executable!r}\n{code}", encoding="utf-8")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def start(self, script: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Starts a script by bash, in a session of its own."""
        path = f"{self._bin}{os.pathsep}{os.environ['PATH']}"
        own = {"PATH": path, "PYTHONPATH": str(ROOT), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": ",".join(NODES)}
        return subprocess.Popen(
            ["bash", str(script), *arguments],
            env=os.environ | own | environment,
            cwd=self.folder,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, script: Path, *arguments: str, **environment: str) -> tuple[int, str]:
        """Runs a script to its end; returns its status and what it said."""
        with self.start(script, *arguments, **environment) as process:
            try:
                said, _ = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                kill_with_children(process.pid)
                raise
        return process.returncode, said

    def notes(self, kind: str) -> list[dict[str, Any]]:
        """Returns what the stand-ins of a kind have noted, in the order of time."""
        lines = self._notes.read_text(encoding="utf-8").splitlines() if self._notes.exists() else []
        return [note for note in map(json.loads, lines) if note["kind"] == kind]

    def wait_for(self, kind: str, number: int) -> None:
        """Waits until so many notes of a kind are there."""
        wait_until(lambda: len(self.notes(kind)) >= number)

    def all_ended(self, kind: str) -> bool:
        """Returns whether no process that noted something of a kind is left.

        It waits: a process that was killed runs until a core is free to end it.
        """
        return has_become(lambda: not any(is_alive(note["pid"]) for note in self.notes(kind)), seconds=10)


def has_become(what: Callable[[], bool], seconds: float) -> bool:
    """Waits until something is so; returns whether it came to that in time."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.02)
    return True


def wait_until(what: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until something is so."""
    assert has_become(what, seconds), "it did not come to that"


def is_alive(pid: int) -> bool:
    """Returns whether a process runs; one that has ended and was not asked for its status does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill_with_children(pid: int) -> None:
    """Kills a process and all that came from it at once, as a node that is lost takes them along."""
    family = [pid]
    for parent in family:
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent:
                family.append(int(status.parent.name))
    for member in family:
        os.kill(member, signal.SIGKILL)


def free_ports(number: int) -> int:
    """Returns the first of so many free ports in a row."""
    for first in range(21000 + os.getpid() % 8000, 32000, number):
        if all(_is_free(port) for port in range(first, first + number)):
            return first
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
