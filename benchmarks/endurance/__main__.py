"""Does a run survive what long runs meet, and end as if it had not met it?

    python -m benchmarks.endurance --steps 2000 [--seed 0] [--processes 2]

The same run twice: undisturbed, and while processes are killed and terminated, disks fill up, and the server that the
environment asks dies, at steps drawn from a seed. Compared are the final weights and moments, the log, and every batch
of rollouts; measured are memory, file descriptors and threads of the longest start of the program. Linux only.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from agent_r1_gym.support.terminal import print_line
from benchmarks.common.measure import append_row, check_commit, provenance
from benchmarks.common.servers import free_port
from benchmarks.endurance.worker import PORT, Settings, schedule, serve, train

RESULTS = Path(__file__).parent / "results.jsonl"
SLOPE = 10_000.0
"""Bytes per step by which resident memory may grow: 1 GB in 100,000 steps.

The log keeps a row of 43 numbers per step: 2.6 to 5.5 kB.
"""
_GRACE, _STARTS = 20.0, 100
_LEAST = 100
"""Steps below which a slope means nothing."""
_OWN = ("_runtime", "_per_second", "step_time", "seconds", "flos", "train_loss", "drift_mean", "drift_max")
"""Ends of the names of numbers that measure time, one start of the program only, or how the engine rounds, which hangs
on the episodes that decode side by side, so on how fast the server answers."""


def forked(function: Callable[[], int], environment: Mapping[str, str]) -> int:
    """Returns the process id of a fork that runs the function and exits with what it returns."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.environ.update(environment)
        status = function()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        os._exit(status)  # gloo's threads now and then abort a process that tears down


class Server:
    """The environment's server, in a process of its own; a new one comes when it was killed."""

    def __init__(self, folder: Path) -> None:
        self.port, self._folder, self._pid = free_port(), folder, 0
        self.starts = 0
        self._gone: float | None = None
        self._start()

    def _start(self) -> None:
        def run() -> int:
            serve(self.port)
            return 0

        self._pid, self._gone = forked(run, {}), None
        self.starts += 1
        (self._folder / "server").write_text(str(self._pid), encoding="utf-8")

    def watch(self) -> None:
        """Starts a new one half a second after the old one died."""
        if self._gone is None and os.waitpid(self._pid, os.WNOHANG)[0]:
            self._gone = time.monotonic()
        if self._gone is not None and time.monotonic() - self._gone > 0.5:
            self._start()

    def stop(self) -> None:
        """Kills it."""
        if self._gone is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Server]:
    """The block has a server."""
    server = Server(folder)
    try:
        yield server
    finally:
        server.stop()


def run(folder: Path, settings: Settings, events: Mapping[int, str]) -> dict[str, int]:
    """Trains in `folder` to the end, starting the processes again whenever they ended early; returns counts.

    Raises:
        RuntimeError: it does not come to its end.
    """
    folder.mkdir(parents=True)
    with served(folder) as server:
        for start in range(1, _STARTS):
            if _together(folder, settings, events, server):
                return {"starts": start, "server starts": server.starts}
    raise RuntimeError(f"The run in {folder} has not ended after {_STARTS} starts.")


def _together(folder: Path, settings: Settings, events: Mapping[int, str], server: Server) -> bool:
    """Runs all processes until one has failed or all have ended well; what is left then is killed after a while."""
    world = settings.processes
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
    job = functools.partial(train, folder, settings, events)
    alive, statuses, failed = set[int](), list[int](), float("inf")
    for rank in range(world):
        ranked = {} if world == 1 else {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        alive.add(forked(job, {PORT: str(server.port), **ranked}))
    while alive:
        server.watch()
        for child in list(alive):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                alive.discard(child)
                statuses.append(status)
                failed = min(failed, time.monotonic()) if status else failed
        if time.monotonic() - failed > _GRACE:
            for child in alive:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    return not any(statuses)


def compare(whole: Path, disturbed: Path, settings: Settings) -> dict[str, Any]:
    """Returns whether the two runs ended alike, and whether each batch of rollouts counted once.

    A batch that was played again after a start from a checkpoint has to be the same batch.
    """
    ends = [torch.load(folder / "end.pt", weights_only=True) for folder in (whole, disturbed)]
    logs = [timeless(json.loads((folder / "log.json").read_text(encoding="utf-8"))) for folder in (whole, disturbed)]
    played = [
        [read(folder / f"played_{rank}.jsonl") for rank in range(settings.processes)] for folder in (whole, disturbed)
    ]
    distinct = [[{(row["step"], row["batches"], row["digest"]) for row in rows} for rows in each] for each in played]
    steps = [row["step"] for row in logs[1] if "reward" in row]
    return {
        "weights and moments equal": same(*ends),
        "log equal": logs[0] == logs[1],
        "batches equal": distinct[0] == distinct[1],
        "each step counted once": steps == list(range(1, settings.steps + 1)),
        "rollouts": sum(row["rollouts"] for rows in played[0] for row in rows),
        "rollouts played again": sum(len(rows) for rows in played[1]) * 8 - sum(len(rows) for rows in played[0]) * 8,
    }


def same(one: Any, other: Any) -> bool:
    """Returns whether two nested states hold the same bits."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def timeless(log: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a log without the numbers in which equal runs differ (`_OWN`)."""
    return [{name: value for name, value in row.items() if not name.endswith(_OWN)} for row in log]


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the whole lines of a file; the last one of a process that was killed may be torn."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def levels(folder: Path, settings: Settings) -> dict[str, Any]:
    """Returns how what the main process holds changed in the longest start of the program, after its warm-up.

    Returns:
        `steps` that were looked at, `slope` of resident memory in bytes per step (least squares), `megabytes` at the
        end, and the largest numbers of `descriptors` and `threads` less those at the beginning. Without `slope` where
        no start was long enough.
    """
    starts = collections.defaultdict(list)
    for row in read(folder / "held_0.jsonl"):
        starts[row["pid"]].append(row)
    longest = max(starts.values(), key=len)
    rows = [row for row in longest if row["step"] >= longest[0]["step"] + settings.warm_up]
    if not rows or rows[-1]["step"] - rows[0]["step"] < _LEAST:
        return {"steps": 0}
    slope = statistics.linear_regression([row["step"] for row in rows], [row["resident"] for row in rows]).slope
    grown = {name: max(row[name] for row in rows) - rows[0][name] for name in ("descriptors", "threads")}
    return {
        "steps": rows[-1]["step"] - rows[0]["step"],
        "slope": slope,
        "megabytes": rows[-1]["resident"] / 1e6,
        **grown,
    }


def measure(folder: Path, settings: Settings, seed: int) -> dict[str, Any]:
    """Returns the row of results: both runs, compared and measured."""
    events = schedule(settings, seed)
    row: dict[str, Any] = {"claim": "endurance", "settings": asdict(settings), "seed": seed, "events": events}
    for name, happens in (("undisturbed", {}), ("disturbed", events)):
        began = time.monotonic()
        counts = run(folder / name, settings, happens)
        row[name] = counts | {"seconds": round(time.monotonic() - began), "held": levels(folder / name, settings)}
    happened = sum((folder / "disturbed" / f"happened_{step}").exists() for step in events)
    return row | {"happened": happened, "compared": compare(folder / "undisturbed", folder / "disturbed", settings)}


def verdict(row: Mapping[str, Any]) -> bool:
    """Returns whether everything happened, nothing differed, and nothing grew."""
    held = [row[name]["held"] for name in ("undisturbed", "disturbed")]
    level = all(
        each.get("slope", 0.0) <= SLOPE and max(each.get("descriptors", 0), each.get("threads", 0)) <= 2
        for each in held
    )
    equal = all(value for name, value in row["compared"].items() if not name.startswith("rollouts"))
    return bool(level and equal and row["happened"] == len(row["events"]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs both, prints what was found, and keeps it."""
    default = Settings()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endurance", description=__doc__)
    parser.add_argument("--steps", type=int, default=default.steps, help="optimiser steps (default: %(default)s)")
    parser.add_argument("--events", type=int, default=default.events, help="things that happen (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=default.processes, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the schedule (default: %(default)s)")
    parser.add_argument("--save-steps", type=int, default=default.save_steps, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=RESULTS, help="file to append to (default: the committed one)")
    options = parser.parse_args(arguments)
    if options.steps < 4 * options.save_steps or min(options.events, options.processes, options.save_steps) < 1:
        parser.error("expected at least 1 event, process and step between checkpoints, and 4 checkpoints at least")
    check_commit(options.out)
    sizes = {name: getattr(options, name) for name in ("steps", "events", "processes", "save_steps")}
    settings = replace(default, **sizes, warm_up=min(default.warm_up, options.steps // 5))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        row = measure(Path(scratch), settings, options.seed)
    print_line(json.dumps(row, indent=1))
    good = verdict(row)
    chosen = {"steps": options.steps, "events": options.events, "save-steps": options.save_steps}
    chosen |= {"processes": options.processes, "seed": options.seed}
    command = ("python", "-m", "benchmarks.endurance", *(f"--{name} {value}" for name, value in chosen.items()))
    append_row(options.out, row | {"met": good} | provenance(command))
    print_line("met" if good else "MISSED")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
