"""Do many programs side by side lose or mix anything while they are killed, leave, and ask twice?

    python -m benchmarks.endurance.programs --seconds 150 [--programs 64] [--seed 0]

Each program (`unruly_program.py`, a child process) asks a few questions and checks that each reply is the one to its
own question. Some kill themselves, exit with an error, close the connection and ask again, ask twice at once, or ask
again later; from outside, one in a while is killed. An episode that was lost is played again. Checked of each record:
that it holds the questions of its own task only, each once, that the rewards are those of an undisturbed episode, and
that every episode comes to its end. Then the time that a request takes, next to a step of the environment alone.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import itertools
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task
from agent_r1_gym.gateway.env import ProgramEnv
from agent_r1_gym.gateway.programs import CommandProgram
from agent_r1_gym.run.engines import ScriptedEngine
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.policies import Policy, PolicyInput
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.session import Job
from agent_r1_gym.support.terminal import print_line
from benchmarks.common.measure import append_row, check_commit, provenance

RESULTS = Path(__file__).parent / "programs.jsonl"
PROGRAM = Path(__file__).parent / "unruly_program.py"
_TASKS = 4_096
_ATTEMPTS = 40
"""Times that an episode is played at most: the last one of a batch is the only one that can be killed from outside."""
_TURNS = 8
"""Turns of the episodes that are timed."""
_BATCH = 128
"""Episodes of a batch; the next one begins when all of it have come to their end."""


class Replies(Policy):
    """Replies to the last message in a way that names it."""

    name = "replies"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        """See `Policy`."""
        return [reply(state.messages[-1].content) for state in inputs]


def reply(question: str) -> str:
    """The only right reply to a question."""
    return f"answer {question.removesuffix(' final')}" if question.endswith("final") else f"reply to {question}"


def make_env(agent: str | Callable[..., Any]) -> ProgramEnv:
    """An environment of numbered tasks, whose answers name them."""
    tasks = [Task(str(number), f"task-{number}", (f"answer task-{number}",)) for number in range(_TASKS)]
    return ProgramEnv(ToolEnv(tasks=tasks), agent, agent_timeout=60.0)


def problems(record: Trajectory) -> Iterator[str]:
    """Names what is wrong with the record of a finished episode."""
    task = f"task-{record.task_index}"
    if len(record.contexts) != 1:
        yield "a context of its own"
    questions = [message.content for message in record.messages if message.role == "user"]
    replies = [message.content for message in record.messages if message.role == "assistant"]
    if any(question.split()[0] != task for question in questions):
        yield "mixed: a question of another task"
    if len(set(questions)) < len(questions):
        yield "a question that was answered twice"
    if replies != [reply(question) for question in questions]:
        yield "mixed: a reply to something else"
    if record.episode_return != 1.0:
        yield "a low reward"


@contextlib.contextmanager
def killer(rng: random.Random, killed: Counter[str]) -> Iterator[None]:
    """Kills one of the running programs now and then, from outside."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(rng.uniform(0.1, 0.5)):
            children = [child for child in CommandProgram.running() if child._alive]
            if children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(rng.choice(children)._process.pid, signal.SIGKILL)
                    killed["from outside"] += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()


def endure(seconds: float, programs: int, seed: int) -> dict[str, Any]:
    """Plays batches of episodes until the time is over; returns counts."""
    player = Player(functools.partial(make_env, f"{sys.executable} -S -E {PROGRAM} {{task}} {{base_url}} {{api_key}}"))
    engine = ScriptedEngine(Replies(), max_concurrent=programs)
    rng, counts, wrong, failures = random.Random(seed), Counter[str](), Counter[str](), Counter[str]()
    end = time.monotonic() + seconds
    first = itertools.count(0, _BATCH)
    usage: list[tuple[int, int]] = []
    with killer(rng, counts):
        while time.monotonic() < end:
            begin = next(first)
            waiting = [number % _TASKS for number in range(begin, begin + _BATCH)]
            for _ in range(_ATTEMPTS):
                records: list[Trajectory] = []
                player.play((Job(index, seed=index) for index in waiting), engine, records.append)
                counts["attempts"] += len(records)
                lost = [record for record in records if record.infrastructure_error is not None]
                for record in records:
                    if record.infrastructure_error is None:
                        counts["episodes"] += 1
                        counts["turns"] += len(record.turns)
                        wrong.update(problems(record))
                    else:
                        failures[str(record.infrastructure_error).partition(":")[0]] += 1
                waiting = [record.task_index for record in lost]
                if not waiting:
                    break
            counts["never finished"] += len(waiting)
            usage.append((len(os.listdir("/proc/self/fd")), threading.active_count()))  # noqa: PTH208
    player.close()
    return {**counts, "wrong": dict(wrong), "failures": dict(failures), "descriptors_threads": [usage[0], usage[-1]]}


def overhead(episodes: int) -> dict[str, float]:
    """Median milliseconds of a step through the gateway, and of an environment that is played directly."""

    def ask(task: str, base_url: str, key: str) -> None:
        host, _, prefix = base_url.removeprefix("http://").partition("/")
        connection = http.client.HTTPConnection(host)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
        messages = []
        for number in range(_TURNS):
            messages.append({"role": "user", "content": f"{task} question {number}"})
            body = json.dumps({"model": "policy", "messages": messages})
            connection.request("POST", f"/{prefix}/chat/completions", body, headers)
            messages.append(json.loads(connection.getresponse().read())["choices"][0]["message"])
        connection.close()

    alone = ToolEnv(tasks=[Task("0", "task-0", ("?",))], max_turns=_TURNS)
    return {"gateway_ms": _step_ms(make_env(ask), episodes), "environment_ms": _step_ms(alone, episodes)}


def _step_ms(env: ToolEnv, episodes: int) -> float:
    times = []
    for _ in range(episodes):
        env.reset(seed=0)
        for _ in range(_TURNS):
            started = time.perf_counter()
            env.step("reply")
            times.append(1e3 * (time.perf_counter() - started))
    env.close()
    return statistics.median(times)


def main() -> int:
    """Runs both parts, prints and stores them; 1 if anything was lost, mixed or counted wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance.programs", description=__doc__)
    parser.add_argument("--seconds", type=float, default=150.0, help="how long programs are played (default: 150)")
    parser.add_argument("--programs", type=int, default=64, help="programs at once (default: 64)")
    parser.add_argument("--timed", type=int, default=100, help="episodes to time (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the disturbances (default: 0)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file of the results (default: programs.jsonl here)")
    options = parser.parse_args()
    check_commit(options.out)
    endured = endure(options.seconds, options.programs, options.seed)
    times = overhead(options.timed)
    settings = {name: getattr(options, name) for name in ("seconds", "programs", "timed", "seed")}
    append_row(
        options.out,
        {
            "settings": settings,
            **endured,
            **times,
            **provenance(["python", "-m", "benchmarks.endurance.programs", *sys.argv[1:]]),
        },
    )
    print_line(json.dumps({**endured, **times}, indent=1))
    return 1 if endured["wrong"] or endured["never finished"] else 0


if __name__ == "__main__":
    sys.exit(main())
