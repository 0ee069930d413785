"""Measurements that need a fresh process: the cost of an import, the memory of many environments, an installation.

Each function starts the process itself; the code that runs in it is passed as text, so that nothing of this package is
imported there before the clock starts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]

_RESIDENT = """
import pathlib, resource, sys, time
def resident():
    statm = pathlib.Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
"""

_IMPORT = """
import json
import {first}
before, start = resident(), time.perf_counter()
import {module}
print(json.dumps([time.perf_counter() - start, resident() - before]))
"""

_MEMORY = """
import gc, json, tracemalloc
import gymnasium, agent_r1_gym
from benchmarks.env_speed.systems import StubRetriever, make_workload
work = make_workload(questions={questions}, passages=3)
options = dict(dataset=work.dataset(), retriever=StubRetriever(work.passages))
def make():
    return gymnasium.make("AgentR1/HotpotQA-v0", **options)
make().reset(seed=0)  # what is shared is made here and not counted
gc.collect()
tracemalloc.start()
envs = [make() for _ in range({envs})]
gc.collect()
made = tracemalloc.get_traced_memory()[0]
for number, env in enumerate(envs):
    env.reset(seed=number)
gc.collect()
started = tracemalloc.get_traced_memory()[0]
tracemalloc.stop()
print(json.dumps([made / {envs}, started / {envs}]))
"""

_EPISODE = """
import time
start = time.perf_counter()
import warnings
warnings.simplefilter("ignore")
import gymnasium, agent_r1_gym
env = gymnasium.make("AgentR1/FictionQA-v0")
env.reset(seed=0)
env.step('<tool_call>{"name": "search", "arguments": {"query": "Who wrote it?"}}</tool_call>')
_, reward, terminated, _, info = env.step("<answer>" + env.unwrapped.task.answers[0] + "</answer>")
assert terminated and reward == 1.0, info
"""


def import_cost(module: str, after: str) -> tuple[float, float]:
    """Returns seconds and resident bytes that `import module` adds when `after` is imported already."""
    seconds, size = json.loads(_python(_RESIDENT + _IMPORT.format(first=after, module=module)))
    return seconds, size


def env_memory(envs: int) -> tuple[float, float]:
    """Returns the bytes per environment of `envs` environments that share a data set (Python's own count).

    First when they are made, then when each is in the first turn of an episode.
    """
    made, started = json.loads(_python(_MEMORY.format(envs=envs, questions=1000)))
    return made, started


def install_and_play() -> float:
    """Returns the seconds from an empty folder to a finished episode: venv, `pip install .`, first episode.

    pip runs with its usual cache and index; the caller warms the cache by a first, uncounted call. The tree is copied
    first (not counted), so that nothing that an earlier build left behind helps.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, venv = Path(folder) / "source", Path(folder) / "venv"
        _copy_source(source)
        python = str(venv / ("Scripts" if os.name == "nt" else "bin") / "python")
        start = time.perf_counter()
        _run([sys.executable, "-m", "venv", str(venv)])
        _run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(source)])
        _run([python, "-c", _EPISODE], cwd=folder)
        return time.perf_counter() - start


def _copy_source(target: Path) -> None:
    target.mkdir()
    for name in ("agent_r1_gym", "trainers"):
        if (_ROOT / name).is_dir():
            shutil.copytree(_ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        if (_ROOT / name).exists():
            shutil.copy(_ROOT / name, target / name)


def _python(code: str) -> str:
    return _run([sys.executable, "-c", code], cwd=str(_ROOT))


def _run(command: list[str], *, cwd: str | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or cwd == str(_ROOT)}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:200]} failed:\n{done.stderr[-2000:]}")
    return done.stdout
