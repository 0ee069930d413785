"""Turns per second of `vf-eval` next to those of `agent-r1 eval`, with one server that answers at once.

`python -m benchmarks.speed.verifiers` runs each five times in turn, and prints medians; start of Python, building of
the world and loading of the tasks are not in the time.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agent_r1_gym.run.agents import AgentSpec, make_runner
from agent_r1_gym.run.evaluation.evaluate import evaluate
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.player import evaluation_jobs
from benchmarks.common.measure import Report, add_round_options, append_report, interleave
from benchmarks.common.servers import served_by_process

ENV = "AgentR1/FictionQA-v0"
TURNS = 5
"""The server keeps searching where tool responses have the role of the user, so every episode uses up its turns."""
_MODULE = """from agent_r1_gym.integrations.verifiers import AgentR1Env, AgentR1Harness, AgentR1Taskset
__all__ = ["AgentR1Env", "AgentR1Harness", "AgentR1Taskset"]
"""


def ours(url: str, episodes: int, max_concurrent: int) -> float:
    """Returns turns per second of `agent-r1 eval`."""
    model = {"model": "scripted", "base_url": url, "tool_role": "user"}
    options = {"questions": episodes}
    spec = AgentSpec(env=ENV, env_options=options, policy="openai:scripted", model=model, max_concurrent=max_concurrent)
    with tempfile.TemporaryDirectory() as folder:
        run, cast = RunFolder(Path(folder) / "run"), functools.partial(make_runner, spec)
        start = time.perf_counter()
        metrics = evaluate(run, cast, settings={}, jobs=evaluation_jobs(range(episodes)))
        seconds = time.perf_counter() - start
    return float(metrics["overall"]["episodes"] * metrics["overall"]["metrics"]["turns"]["mean"] / seconds)


def theirs(url: str, episodes: int, max_concurrent: int) -> float:
    """Returns turns per second of `vf-eval`, from the start of the first episode to the end of the last."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "agent_r1_tasks.py").write_text(_MODULE)
        path = os.pathsep.join([folder, str(Path.cwd()), os.environ.get("PYTHONPATH", "")])
        program = [str(Path(sys.executable).parent / "vf-eval"), "agent_r1_tasks", "--env.taskset.env-id", ENV]
        tasks = ["--env.taskset.options", json.dumps({"questions": episodes}), "-n", str(episodes)]
        model = [
            "-m",
            "scripted",
            "--client.base-url",
            url,
            "--client.api-key-var",
            "NO_KEY",
            "-c",
            str(max_concurrent),
        ]
        here = {**os.environ, "PYTHONPATH": path, "NO_KEY": "x"}
        words = [*program, *tasks, *model, "--no-push", "--no-rich", "-o", "out"]
        subprocess.run(words, env=here, cwd=folder, check=True, capture_output=True)
        (file,) = Path(folder).glob("out/*/traces.jsonl")
        traces = [json.loads(line)["traces"][0] for line in file.read_text(encoding="utf-8").splitlines()]
    turns = [len(trace["info"]["turns"]) for trace in traces]
    if turns != [TURNS] * episodes:
        raise RuntimeError(f"Not the episodes that were meant to be measured: {turns}")
    first = min(trace["timing"]["start"] for trace in traces)
    return float(sum(turns) / (max(trace["timing"]["scoring"]["end"] for trace in traces) - first))


def measure(*, rounds: int, episodes: int, max_concurrent: int) -> Report:
    """Plays episodes with both, in turn."""
    with served_by_process("benchmarks.speed.chat_server") as url:
        measures = {
            name: functools.partial(play, url, episodes, max_concurrent)
            for name, play in (("agent-r1 eval", ours), ("vf-eval", theirs))
        }
        figures = interleave(measures, rounds=rounds, unit="turns/s")
    return Report("verifiers", tuple(figures.values()), (), {})


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.verifiers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_round_options(parser)
    parser.add_argument("--episodes", type=int, default=50, help="per value (default: %(default)s)")
    parser.add_argument("--max-concurrent", type=int, default=16, help="episodes at once (default: %(default)s)")
    options = parser.parse_args()
    sizes = {"rounds": options.rounds, "episodes": options.episodes, "max_concurrent": options.max_concurrent}
    append_report(functools.partial(measure, **sizes), options, name="verifiers")


if __name__ == "__main__":
    main()
