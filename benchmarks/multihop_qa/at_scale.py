"""The actions at the paper's scale: show the commands, try them, collect what they measured."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_r1_gym.errors import AgentR1Error, DatasetError
from agent_r1_gym.evaluation.run_folder import RunFolder
from agent_r1_gym.support.terminal import say
from benchmarks.common.cells import write_cell
from benchmarks.common.measure import provenance
from benchmarks.multihop_qa.dry_run import dry_run, report
from benchmarks.multihop_qa.paper import RUNS, SEEDS, TEST_SETS, script
from benchmarks.multihop_qa.settings import METHODS

ACTIONS = ("commands", "dry-run", "collect")
_COMMAND = ("python", "-m", "benchmarks.multihop_qa", "collect", "--profile", "paper")


def act(options: argparse.Namespace) -> int:
    """Carries out one of `ACTIONS`; returns 1 if a command of the dry run failed, or nothing was collected."""
    methods, seeds = options.method or list(METHODS), options.seed or SEEDS
    if options.action == "commands":
        say(script(methods, seeds))
        return 0
    if options.action == "collect":
        return collect(Path(RUNS) / "eval", options.output / "paper")
    with tempfile.TemporaryDirectory() as folder:
        outcomes = dry_run(methods, seeds, folder=Path(folder))
    say(report(outcomes))
    return int(any(outcome.status == "FAILED" for outcome in outcomes))


def collect(evaluated: Path, output: Path) -> int:
    """Turns each finished set of evaluations into a cell; says which are not finished."""
    found = 0
    for folder in sorted(evaluated.iterdir()) if evaluated.is_dir() else ():
        try:
            name, seed = _name_and_seed(folder.name)
            cell = {"method": METHODS[name].title, "seed": seed, **_exact(folder)}
        except AgentR1Error as error:
            say(f"{folder}: left out, {error}")
            continue
        write_cell(output / f"{name}-{seed}.json", cell | provenance(_COMMAND))
        found += 1
    say(f"{found} cells in {output}")
    return int(not found)


def _name_and_seed(run: str) -> tuple[str, int]:
    if run in METHODS:  # untrained and greedy: one run is all there is
        return run, 0
    name, _, seed = run.rpartition("-")
    if name not in METHODS or not seed.isdecimal():
        raise DatasetError("its name is not that of a method, with a seed where it is trained.")
    return name, int(seed)


def _exact(folder: Path) -> dict[str, Any]:
    """Returns the marks of each test set, and how and on what they were found.

    Raises:
        DatasetError: an evaluation is not complete.
    """
    exact, runs = {}, {}
    for title in TEST_SETS:
        run = RunFolder(folder / title)
        excluded = run.metrics()["excluded"]["episodes"]
        if excluded:
            raise DatasetError(f"{excluded} episodes on {title} lost their backend; evaluate again to play them.")
        exact[title] = "".join(_marks(run))
        runs[title] = {key: run.load()[key] for key in ("settings", "starts")}
    return {"exact": exact, "runs": runs}


def _marks(run: RunFolder) -> Iterator[str]:
    for record in run.episodes():
        yield str(int(bool(record.solved)))
