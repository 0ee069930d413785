"""The audit over the environments of several libraries: a verdict per rule and environment.

    python -m benchmarks.audit run [--library NAME] [--name NAME]   audits what has no row yet; each in a process
    python -m benchmarks.audit table                                the tables of README.md
    python -m benchmarks.audit findings                             every finding, with what it turned out to be

Libraries that are not installed are left out. The reports of `agent-r1 audit` stay in runs/benchmarks/audit/, a folder
each, and an interrupted audit is resumed there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from agent_r1_gym.audit.findings import STATUSES
from agent_r1_gym.audit.rules import RULES
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.files import atomic_file, locked
from agent_r1_gym.support.json_data import read_objects
from agent_r1_gym.support.terminal import Progress, print_line, print_note
from benchmarks.audit.environments import LIBRARIES, Entry, entries, installed, version
from benchmarks.audit.reviews import REVIEWS, Judgement
from benchmarks.common.measure import check_commit, commit
from benchmarks.common.tables import markdown

RESULTS = Path(__file__).parent / "results.jsonl"
REPORTS = Path("runs") / "benchmarks" / "audit"
SUITE = "agent-r1-gym"
OF_ADAPTERS = frozenset(
    {"after_the_end", "finite_rewards", "global_random", "gold_in_info", "independent_instances", "interface"}
    | {"kept_values", "side_by_side", "threads"}
)
"""Rules that our adapter answers, and not the library behind it: it checks types and rewards, gives each game random
numbers of its own, plays games that are not made for threads one at a time, and refuses steps after the end."""
Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run, or print tables; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.audit", description="Audit the environments of libraries."
    )
    parser.add_argument("command", choices=("run", "table", "findings"), help="audit what has no row yet, or print")
    parser.add_argument("--library", action="append", choices=list(LIBRARIES), help="run: only this one (repeatable)")
    parser.add_argument("--name", action="append", help="run: only the environment of this name (repeatable)")
    parser.add_argument("-n", "--episodes", type=int, default=10, help="run: tasks per player (default: 10)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the rows")
    options = parser.parse_args(argv)
    rows = read_rows(options.results)
    if options.command == "table":
        print_line("\n\n".join(filter(None, [by_library(rows), by_rule(rows), not_reviewed(rows)])))
    elif options.command == "findings":
        print_line(all_findings(rows))
    else:
        audit_all(options)
    return 0


def read_rows(path: Path) -> list[Row]:
    """Read the rows of audits, but those made with another set of rules; no file has none.

    The file has the number of the rules that passed, which are all that it does not name.
    """
    rows = [row for _, row in read_objects(path)] if path.exists() else []
    for row in rows:
        if "rules" in row:
            named = {rule for names in row["rules"].values() if isinstance(names, list) for rule in names}
            passed = [rule for rule in RULES if rule not in named]
            row["rules"] = row["rules"] | {"pass": passed} if row["rules"].get("pass", 0) == len(passed) else {}
    current = [row for row in rows if row.get("rules") != {}]
    if len(current) < len(rows):
        print_note(f"{len(rows) - len(current)} rows of {path} are of other rules than today's, and left out.")
    return current


# --- run --------------------------------------------------------------------------------------------------------------


def audit_all(options: argparse.Namespace) -> None:
    """Audit every environment that is asked for and has no row of the installed version (see `check_commit`)."""
    check_commit(options.results, option="--results")
    chosen: list[Entry] = []
    for library in options.library or LIBRARIES:
        if installed(library):
            chosen += entries(library)
        else:
            print_note(f"{library} is not installed, so its environments are left out: pip install {library}")
    known = {
        (row["library"], row["name"], row["version"], row["episodes"])
        for row in read_rows(options.results)
        if "rules" in row
    }
    chosen = [
        entry
        for entry in chosen
        if (*entry.key, version(entry.library), options.episodes) not in known
        and (not options.name or entry.name in options.name)
    ]
    with Progress(len(chosen), "audits", "environment") as progress:
        for entry in chosen:
            add_row(options.results, audit_one(entry, episodes=options.episodes))
            progress.update(1)


def audit_one(entry: Entry, *, episodes: int) -> Row:
    """Audit an environment in a process of its own, and return its row."""
    name = entry.name.replace(":", "_").replace(" ", "_")
    out = REPORTS / f"{entry.library}-{version(entry.library)}" / f"{name}-n{episodes}"
    words = [word for name, value in entry.options.items() for word in ("--option", f"{name}={json.dumps(value)}")]
    command = ["-m", "agent_r1_gym", "audit", entry.env, *words, "-n", str(episodes), "--out", str(out)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    row: Row = {
        "library": entry.library,
        "version": version(entry.library),
        "name": entry.name,
        "env": entry.env,
        "options": dict(entry.options),
        "episodes": episodes,
        "commit": commit(),
    }
    said = _portable((done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1])
    file = out / "audit.json"
    report = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    broken = [result["rule"] for result in report.get("rules", ()) if result["broken"]]
    if broken:
        raise ConfigurationError(
            f"Rules are broken: {', '.join(broken)}. {file} has their tracebacks; repair them first."
        )
    if done.returncode not in (0, 1):
        return {**row, "refused": said}
    if report.get("exit_status") != done.returncode or not {*RULES} <= {result["rule"] for result in report["rules"]}:
        raise ConfigurationError(f"The audit of {entry.library} {entry.name} has failed: {said}. {file} is not whole.")
    row["seconds"] = round(report["seconds"], 1)
    found = [
        [result["rule"], finding["severity"], _portable(finding["message"])]
        for result in report["rules"]
        for finding in result["findings"]
    ]
    rules = {status: [r["rule"] for r in report["rules"] if r["status"] == status] for status in STATUSES}
    return {**row, "rules": {status: names for status, names in rules.items() if names}, "findings": found}


def _portable(message: str) -> str:
    """Shorten a message, and leave out where things lie on this machine."""
    places = {
        sys.prefix: "VENV",
        sysconfig.get_path("stdlib"): "PYTHON",
        sys.base_prefix: "PYTHON",
        str(Path.cwd()): ".",
        str(Path.home()): "~",
        tempfile.gettempdir(): "TMP",
    }
    for place in sorted(places, key=len, reverse=True):
        message = message.replace(place, places[place])
    return message[:400]


def add_row(path: Path, row: Row) -> None:
    """Add a row; the file is written as a whole, sorted."""
    with locked(path):
        rows = [each for each in read_rows(path) if (each["library"], each["name"]) != (row["library"], row["name"])]
        rows = sorted([*rows, row], key=lambda each: (each["library"], each["name"]))
        with atomic_file(path) as temporary:
            temporary.write_text("".join(json.dumps(_short(each)) + "\n" for each in rows), encoding="utf-8")


def _short(row: Row) -> Row:
    if "rules" not in row:
        return row
    return {**row, "rules": row["rules"] | {"pass": len(row["rules"].get("pass", ()))}}


# --- tables -----------------------------------------------------------------------------------------------------------


def findings(rows: Iterable[Row]) -> Iterator[tuple[Row, str, str, str, str, str]]:
    """Yield each finding: row, rule, severity, message, judgement ("" if it was not reviewed), note.

    Those of rules that our adapters answer are left out where the environment is another library's.
    """
    for row in rows:
        for rule, severity, message in row.get("findings", ()):
            if row["library"] != SUITE and rule in OF_ADAPTERS:
                continue
            review = next((each for each in REVIEWS if each.covers(row["library"], row["name"], rule, message)), None)
            yield row, rule, severity, message, review.judgement if review else "", review.note if review else ""


def by_library(rows: Sequence[Row]) -> str:
    """Environments of each library by their worst finding that is confirmed, or not reviewed yet."""
    body = []
    for library in LIBRARIES:
        own = [row for row in rows if row["library"] == library]
        audited = [row for row in own if "rules" in row]
        if not own:
            continue
        worst: dict[str, str] = {}
        for row, _, severity, _, judgement, _ in findings(audited):
            if judgement in ("", "confirmed") and worst.get(row["name"]) != "error":
                worst[row["name"]] = severity
        counts = Counter(worst.get(row["name"], "clean") for row in audited)
        body.append(
            (
                library,
                ", ".join(sorted({row["version"] for row in own})),
                str(len(audited)),
                *(str(counts[each]) for each in ("clean", "warning", "error")),
                str(len(own) - len(audited)),
                _median(sum(len(row["rules"].get(status, ())) for status in _JUDGED) for row in audited),
                _median(row["seconds"] for row in audited),
            )
        )
    heads = ("library", "version", "audited", "no finding", "warnings only", "errors", "refused")
    return markdown((*heads, f"rules judged, of {len(RULES)} (median)", "seconds (median)"), body)


_JUDGED = ("pass", "warning", "error")


def _median(numbers: Iterable[float]) -> str:
    found = list(numbers)
    return f"{statistics.median(found):.0f}" if found else ""


def by_rule(rows: Sequence[Row]) -> str:
    """Environments that a rule accuses, each by the first judgement of this order that one of its findings has."""
    order = ("confirmed", "", *(name for name in get_args(Judgement) if name != "confirmed"))
    every, body = list(findings(rows)), []
    for rule in RULES:
        own: dict[tuple[str, str], set[str]] = {}
        for row, one, _, _, judgement, _ in every:
            if one == rule:
                own.setdefault((row["library"], row["name"]), set()).add(judgement)
        verdicts = [
            row["rules"] for row in rows if "rules" in row and (row["library"] == SUITE or rule not in OF_ADAPTERS)
        ]
        judged = sum(rule in names.get(status, ()) for names in verdicts for status in _JUDGED)
        counts = Counter(next(name for name in order if name in judgements) for judgements in own.values())
        body.append((f"`{rule}`", str(judged), str(len(own)), *(str(counts[name]) for name in order)))
    return markdown(("rule", "judged", "accused", *(name or "not reviewed" for name in order)), body)


def not_reviewed(rows: Sequence[Row]) -> str:
    """How many findings were not reviewed; "" if there are none."""
    number = sum(not judgement for *_, judgement, _ in findings(rows))
    return f"{number} findings have not been reviewed." if number else ""


def all_findings(rows: Sequence[Row]) -> str:
    """Every finding, by library and rule, with what it turned out to be."""
    lines = []
    for row, rule, severity, message, judgement, note in sorted(
        findings(rows), key=lambda each: (each[0]["library"], each[1], each[0]["name"])
    ):
        judged = f" [{judgement}: {note}]" if judgement else " [not reviewed]"
        lines.append(f"{row['library']} {row['name']} {rule} {severity}: {message}{judged}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
