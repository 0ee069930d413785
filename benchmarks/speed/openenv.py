"""Steps per second of `agent-r1 serve env`, next to the echo environment that `openenv init` writes.

    python -m benchmarks.speed.openenv

Each server is a process of its own on this machine; 16 clients of OpenEnv, or plain websockets, in this process play
side by side: a reset, then five steps. The servers take turns, so that the machine's load falls on both.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from agent_r1_gym.integrations.base import library
from agent_r1_gym.support.http_server import listen
from benchmarks.common.measure import Check, Report, add_round_options, append_report, interleave, ratio

SESSIONS, STEPS, TARGET = 16, 5, 1_500.0
_SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "the composer"}}\n</tool_call>'
_OURS = (
    "-m",
    "agent_r1_gym",
    "serve",
    "env",
    "FictionQA",
    "--reward",
    "process",
    "--option",
    "questions=50",
    "--port",
    "0",
)
_PLACEHOLDERS = {"__ENV_NAME__": "echo", "__ENV_CLASS_NAME__": "Echo", "__ENV_TITLE_NAME__": "Echo"}
Ask = Callable[[str, dict[str, Any]], Awaitable[bool]]


@contextmanager
def ours() -> Iterator[str]:
    """Yields the address of our server: five searches an episode, process rewards."""
    with subprocess.Popen([sys.executable, *_OURS], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().partition(": ")[2].partition(" ")[0]
        finally:
            server.terminate()


@contextmanager
def echo() -> Iterator[str]:
    """Yields the address of OpenEnv's echo environment, as its template has it, but for the number of sessions."""
    spec = importlib.util.find_spec("openenv.cli")
    assert spec is not None
    assert spec.origin is not None
    with listen("127.0.0.1", 0) as free, tempfile.TemporaryDirectory() as folder:
        port = free.getsockname()[1]
        template = Path(spec.origin).parent / "templates" / "openenv_env"
        for path in (*template.glob("*.py"), *template.glob("server/*.py")):
            text, name = path.read_text(encoding="utf-8"), str(path.relative_to(template))
            for placeholder, word in _PLACEHOLDERS.items():
                text, name = text.replace(placeholder, word), name.replace(placeholder, word)
            written = Path(folder) / "echo" / name
            written.parent.mkdir(parents=True, exist_ok=True)
            written.write_text(text.replace("max_concurrent_envs=1", f"max_concurrent_envs={4 * SESSIONS}"))
        words = [sys.executable, "-m", "uvicorn", "echo.server.app:app", "--port", str(port), "--log-level", "warning"]
        free.close()
        with subprocess.Popen(words, cwd=folder) as server:
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                server.terminate()


async def with_their_client(url: str, play: Callable[[Ask], Awaitable[int]]) -> int:
    """Plays with OpenEnv's `GenericEnvClient`."""
    from openenv.core import GenericEnvClient

    async with GenericEnvClient(base_url=url) as client:

        async def ask(kind: str, data: dict[str, Any]) -> bool:
            result = await (client.step(data) if kind == "step" else client.reset(**data))
            return bool(result.done)

        return await play(ask)


async def with_a_websocket(url: str, play: Callable[[Ask], Awaitable[int]]) -> int:
    """Plays with a websocket alone, not compressed."""
    from websockets.asyncio.client import connect

    async with connect(url.replace("http", "ws") + "/ws", compression=None, proxy=None) as socket:

        async def ask(kind: str, data: dict[str, Any]) -> bool:
            await socket.send(json.dumps({"type": kind, "data": data}))
            return bool(json.loads(await socket.recv())["data"]["done"])

        return await play(ask)


def steps_per_second(url: str, client: Any, action: dict[str, Any], seconds: float) -> float:
    """Returns the steps per second of all sessions together, resets included in the time."""

    async def play(until: float, ask: Ask) -> int:
        steps = 0
        while time.perf_counter() < until:
            await ask("reset", {"seed": steps})
            for _ in range(STEPS):
                steps += 1
                if await ask("step", action):
                    break
        return steps

    async def play_all() -> float:
        start = time.perf_counter()
        one = functools.partial(play, start + seconds)
        steps = await asyncio.gather(*(client(url, one) for _ in range(SESSIONS)))
        return float(sum(steps)) / (time.perf_counter() - start)

    return asyncio.run(play_all())


def wait_for(url: str) -> None:
    """Returns when a server answers."""
    from websockets.sync.client import connect

    for _ in range(600):
        try:
            with connect(url.replace("http", "ws") + "/ws", proxy=None):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"{url} did not start.")


def measure(*, rounds: int, seconds: float) -> Report:
    """Returns the figures of both servers with both clients."""
    with ExitStack() as stack:
        systems = {
            "serve-env": (stack.enter_context(ours()), {"text": _SEARCH}),
            "echo": (stack.enter_context(echo()), {"message": _SEARCH}),
        }
        measures = {}
        for label, client in (("their client", with_their_client), ("a websocket", with_a_websocket)):
            for name, (url, action) in systems.items():
                wait_for(url)
                measures[f"{name}, {label}"] = functools.partial(steps_per_second, url, client, action, seconds)
        figures = interleave(measures, rounds=rounds, unit="steps/s")
    compared = ratio("serve-env / echo, their client", *(figures[f"{name}, their client"] for name in systems))
    value = figures["serve-env, their client"].median
    check = Check(f"steps/s of serve-env, {SESSIONS} sessions, their client", TARGET, value)
    return Report("openenv", (*figures.values(), compared), (check,), {})


def main() -> None:
    """Measures, prints, and appends to a file if one is named."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.openenv",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_round_options(parser)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a measurement (default: %(default)g)")
    options = parser.parse_args()
    library("openenv.core", package="openenv", tested_version="0.10")
    report = functools.partial(measure, rounds=options.rounds, seconds=options.seconds)
    append_report(report, options, name="openenv")


if __name__ == "__main__":
    main()
