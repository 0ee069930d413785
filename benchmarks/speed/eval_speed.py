"""How fast `agent-r1 eval` drives an endpoint: episodes per second with a 0-latency server, 64 requests in flight.

`python -m benchmarks.speed.eval_speed` appends a row to its results. The whole path is in the time: requests,
parsing, search, scoring and the lines on disk; not in it: start of Python, building the world and its index.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from pathlib import Path

from agent_r1_gym.registry import make_tool_env
from agent_r1_gym.run.agents import AgentSpec, make_runner
from agent_r1_gym.run.evaluation.evaluate import evaluate
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.player import evaluation_jobs
from benchmarks.common.measure import Check, Figure, Report, append_report, results_of
from benchmarks.common.servers import served_by_process
from benchmarks.speed import chat_server

ENV = "AgentR1/FictionQA-v0"
TARGET = 300.0


def episodes_per_second(url: str, *, questions: int, max_concurrent: int) -> tuple[float, float]:
    """Returns episodes per second of one evaluation, by the wall clock and by this process's CPU time."""
    options = {"world_seed": 0, "questions": questions, "entities": 1500}
    model = {"model": "scripted", "base_url": url}
    spec = AgentSpec(env=ENV, env_options=options, policy="openai:scripted", model=model, max_concurrent=max_concurrent)
    make_tool_env(ENV, options).reset(options={"task_index": 0})  # builds the world and its index
    jobs = evaluation_jobs(range(questions))
    with tempfile.TemporaryDirectory() as folder:
        start, cpu = time.perf_counter(), time.process_time()
        metrics = evaluate(
            RunFolder(Path(folder) / "run"), functools.partial(make_runner, spec), settings={}, jobs=jobs
        )
        wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    whole = metrics["overall"]
    if whole["episodes"] != questions or whole["metrics"]["turns"]["mean"] != chat_server.SEARCHES + 1:
        raise RuntimeError(f"Not the episodes that were meant to be measured: {whole}")
    return questions / wall, questions / cpu


def measure(*, rounds: int, questions: int, max_concurrent: int) -> Report:
    """Returns the figures of `rounds` evaluations, after one that does not count."""
    with served_by_process(chat_server.__name__) as url:
        found = [
            episodes_per_second(url, questions=questions, max_concurrent=max_concurrent) for _ in range(rounds + 1)
        ][1:]
    wall, cpu = zip(*found, strict=True)
    figures = (
        Figure("episodes per second", "episodes/s", wall),
        Figure("episodes per CPU second of the client", "episodes/s", cpu),
    )
    check = Check(
        f"episodes/s at {max_concurrent} in flight, {chat_server.SEARCHES + 1} requests each", TARGET, figures[0].median
    )
    return Report("endpoint", figures, (check,), {})


def main() -> None:
    """Measures, prints and appends."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.eval_speed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="number of evaluations (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=1000, help="episodes per evaluation (default: %(default)s)")
    parser.add_argument("--max-concurrent", type=int, default=64, help="episodes at once (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=results_of("eval_speed"), help="file to append to")
    options = parser.parse_args()
    sizes = {"rounds": options.rounds, "questions": options.questions, "max_concurrent": options.max_concurrent}
    append_report(functools.partial(measure, **sizes), options, name="eval_speed")


if __name__ == "__main__":
    main()
