"""How a number is taken, judged, shown and kept."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import gc
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.json_data import JsonLinesWriter
from agent_r1_gym.support.packages import installed_version
from agent_r1_gym.support.terminal import Progress, print_note

T = TypeVar("T")
CHANGES = "+changes"
"""Stands behind a commit if files differ from it."""
UNKNOWN = "unknown"
"""Stands for the commit where there is no repository."""
_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = (
    *("agent-r1-gym", "gymnasium", "numpy", "bm25s", "fastapi", "uvicorn", "gem-llm", "datasets", "skyrl-gym"),
    *("torch", "transformers", "trl", "peft", "accelerate"),
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity: a value per round."""

    name: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The number that is quoted."""
        return statistics.median(self.values)

    def to_dict(self) -> dict[str, Any]:
        """Returns name, unit, median and spread."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": _round(self.median),
            "min": _round(min(self.values)),
            "max": _round(max(self.values)),
            "rounds": len(self.values),
        }


@dataclass(frozen=True, slots=True)
class Check:
    """A target and what was measured; `value` is None if something that it needs was absent."""

    statement: str
    limit: float
    value: float | None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if it was not measured."""
        if self.value is None:
            return None
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def to_dict(self) -> dict[str, Any]:
        """Returns statement, limit, value and verdict."""
        value = None if self.value is None else _round(self.value)
        sense = "<=" if self.at_most else ">="
        return {"statement": self.statement, "target": f"{sense} {self.limit:g}", "value": value, "met": self.met}


@dataclass(frozen=True, slots=True)
class Report:
    """What one claim's measurement found.

    Attributes:
        claim: name of the claim.
        figures: everything that was measured, targets or not.
        checks: the targets.
        absent: systems that are not installed, each with what is missing.
    """

    claim: str
    figures: tuple[Figure, ...]
    checks: tuple[Check, ...]
    absent: Mapping[str, str]


def take_turns(measures: Mapping[str, Callable[[], T]], *, rounds: int) -> dict[str, tuple[T, ...]]:
    """Runs all measures once per round, A B C A B C ..., after one round of warm-up that does not count.

    Drift of the machine then falls on all of them alike, and `ratio` can compare them round by round. Objects that are
    alive at the start, the libraries of all systems included, are hidden from the garbage collector: no system pays for
    walking over what another imported. Collection of what a measure makes stays on.

    Args:
        measures: name to what returns one value.
        rounds: number of values per measure.
    """
    values: dict[str, list[T]] = {name: [] for name in measures}
    with Progress((rounds + 1) * len(measures), "measured", "turn") as progress:
        for measure in measures.values():
            measure()
            progress.update()
        gc.collect()
        gc.freeze()
        try:
            for _ in range(rounds):
                for name, measure in measures.items():
                    values[name].append(measure())
                    progress.update()
        finally:
            gc.unfreeze()
    return {name: tuple(found) for name, found in values.items()}


def interleave(measures: Mapping[str, Callable[[], float]], *, rounds: int, unit: str) -> dict[str, Figure]:
    """Returns the figures of measures that take turns (see `take_turns`), all in `unit`."""
    found = take_turns(measures, rounds=rounds)
    return {name: Figure(name, unit, values) for name, values in found.items()}


def ratio(name: str, ours: Figure, theirs: Figure) -> Figure:
    """Returns ours / theirs of each round: noise that hits both in a round cancels."""
    pairs = zip(ours.values, theirs.values, strict=True)
    return Figure(name, "x", tuple(mine / other for mine, other in pairs))


def to_row(report: Report, *, settings: Mapping[str, Any], command: Sequence[str]) -> dict[str, Any]:
    """Returns the result row of a report: figures, targets, and everything needed to repeat it."""
    verdicts = [check.met for check in report.checks]
    return {
        "claim": report.claim,
        "met": False if False in verdicts else None if None in verdicts else True,
        "checks": [check.to_dict() for check in report.checks],
        "figures": [figure.to_dict() for figure in report.figures],
        "absent": dict(report.absent),
        "settings": dict(settings),
        **provenance(command),
    }


def provenance(command: Sequence[str]) -> dict[str, Any]:
    """Returns what is needed to repeat a measurement: command, commit, versions, machine, date."""
    versions = {package: installed_version(package) for package in _PACKAGES}
    return {
        "command": " ".join(command),
        "commit": commit(),
        "versions": {"python": sys.version.split()[0]} | {name: found for name, found in versions.items() if found},
        "machine": _machine(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def platform() -> str:
    """The versions that a run's numbers depend on, and the machine, in one line."""
    versions = {name: installed_version(name) for name in ("torch", "transformers", "trl")}
    machine = _machine()
    software = ", ".join(("Python " + sys.version.split()[0], *(f"{name} {found}" for name, found in versions.items())))
    hardware = ", ".join((machine["cpu"], f"{machine['cpus']} CPUs", *machine.get("gpus", ())))
    return f"{software}; {hardware}"


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Appends `row` as one JSON line, whole or not at all; runs at the same time do not mix lines.

    Raises:
        OSError: the file cannot be written; it is as it was before.
    """
    with contextlib.closing(JsonLinesWriter(path)) as rows:
        rows.add(row)


def to_table(report: Report) -> str:
    """Returns a report for the terminal."""
    lines = [f"\n{report.claim}"]
    for figure in report.figures:
        low, high = _show(min(figure.values)), _show(max(figure.values))
        lines.append(f"  {figure.name:<48} {_show(figure.median):>9} {figure.unit:<10} ({low} .. {high})")
    lines += [f"  {name:<48} {'absent':>9} {why}" for name, why in report.absent.items()]
    for check in report.checks:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[check.met]
        value = "-" if check.value is None else _show(check.value)
        sense = "<=" if check.at_most else ">="
        lines.append(f"  -> {check.statement}: {value} {sense} {check.limit:g}: {verdict}")
    return "\n".join(lines)


def add_claim_options(parser: argparse.ArgumentParser, claims: Iterable[str]) -> None:
    """Adds the options that `run_claims` reads."""
    parser.add_argument("--claim", action="append", choices=sorted(claims), help="run only this one; may be repeated")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; nothing is written unless --out is given")
    parser.add_argument("--out", type=Path, help="file to append to (default: the committed one)")


def run_claims(
    options: argparse.Namespace,
    claims: Mapping[str, Callable[[], Report]],
    *,
    name: str,
    settings: Any,
    words: Sequence[str] | None,
) -> None:
    """Measures the chosen claims, prints each, and appends it to the results (see `check_commit`).

    Args:
        options: of `add_claim_options`.
        claims: every claim and what measures it.
        name: of the benchmark's module in `benchmarks.speed`.
        settings: a dataclass, written next to the figures.
        words: the command line; None: that of this process.
    """
    out = options.out or (None if options.quick else results_of(name))
    check_commit(out)
    command = ["python", "-m", f"benchmarks.speed.{name}", *(sys.argv[1:] if words is None else words)]
    for claim in options.claim or claims:
        report = claims[claim]()
        print(to_table(report), flush=True)
        if out is not None:
            append_row(out, to_row(report, settings=asdict(settings), command=command))


def results_of(name: str) -> Path:
    """The committed results of a benchmark of speed."""
    return _ROOT / "benchmarks" / "speed" / "results" / f"{name}.jsonl"


def add_round_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a benchmark with one claim, see `append_report`."""
    parser.add_argument("--rounds", type=int, default=5, help="values per system (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="file to append the row to (default: none)")


def append_report(measure: Callable[[], Report], options: argparse.Namespace, *, name: str) -> None:
    """Measures, prints the report, and appends it to the file that the options name (see `check_commit`)."""
    check_commit(options.out)
    report = measure()
    print(to_table(report))
    if options.out is not None:
        settings = {key: value for key, value in vars(options).items() if key != "out"}
        command = ["python", "-m", f"benchmarks.speed.{name}", *sys.argv[1:]]
        append_row(options.out, to_row(report, settings=settings, command=command))


def _show(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def check_commit(path: Path | None, made_by: str | None = None, *, option: str = "--out") -> None:
    """Warns if rows of a file will not name the commit that made them; call it before anything is measured.

    Args:
        path: the file of the rows; None: nothing is written.
        made_by: their commit; None: that of the working tree.
        option: what names another file on the command line.

    Raises:
        ConfigurationError: it would warn, and the file is one of those that are committed.
    """
    made_by = commit() if made_by is None else made_by
    if path is None or not (made_by.endswith(CHANGES) or made_by == UNKNOWN):
        return
    why = "git names no commit here" if made_by == UNKNOWN else "files here differ from the last one"
    rows = f"Rows in {path} name the commit that made them, and {why}."
    if path.resolve().is_relative_to(_ROOT / "benchmarks"):
        raise ConfigurationError(f"{rows} Commit first, or write elsewhere with {option}.")
    print_note(f"{rows} They will say {made_by!r}: commit first if the numbers are to be published.")


@functools.cache
def commit() -> str:
    """Returns the commit of the working tree, with `CHANGES` if files other than results differ from it.

    It is read once: files that change while a measurement runs did not make its numbers.
    """
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no", "--", ":!benchmarks/**/*.jsonl")
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return f"{head}{CHANGES}" if changed else head


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{os.uname().sysname} {os.uname().machine}",
        "load": round(os.getloadavg()[0], 2) if sys.platform != "win32" else None,
        **_gpus(),
    }


def _gpus() -> dict[str, Any]:
    """Returns the GPUs that a measurement could have used: none if it never loaded torch."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    names = [cuda.get_device_name(number) for number in range(cuda.device_count())] if cuda else []
    return {"gpus": names} if names else {}


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    models = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return models[0] if models else "unknown"
