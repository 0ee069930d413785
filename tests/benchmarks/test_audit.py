"""The audit over several libraries: a row per environment, tables, what a person found."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import agent_r1_gym.envs  # noqa: F401 - registers the environments
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import registered_id
from benchmarks.audit import __main__ as table
from benchmarks.audit.environments import Entry, entries
from benchmarks.audit.reviews import Review


def row(name: str, *findings: tuple[str, str, str], **fields: Any) -> dict[str, Any]:
    rules = {"pass": ["survives", "not_hackable"]} if not findings else {findings[0][1]: [findings[0][0]]}
    rest = {"version": "1", "seconds": 4.0, "rules": rules, "findings": [list(each) for each in findings]}
    return {"library": "gem-llm", "name": name, **rest, **fields}


ROWS = [
    row("a"),
    row("b", ("not_hackable", "error", "no_op solves .5")),
    row("c", ("not_hackable", "error", "empty solves .2")),
    row("d", ("feedback", "warning", "no help")),
    {"library": "gem-llm", "name": "e", "version": "1", "seconds": 1.0, "refused": "no such game"},
]


def test_what_a_person_found_decides_what_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    reviews = (
        Review("gem-llm", "not_hackable", "b", "no_op", "confirmed", "an empty list is accepted"),
        Review("gem-llm", "not_hackable", ".*", "empty", "false alarm", "a game of chance"),
    )
    monkeypatch.setattr(table, "REVIEWS", reviews)
    assert table.by_library(ROWS).splitlines()[-1] == "| gem-llm | 1 | 4 | 2 | 1 | 1 | 1 | 1 | 4 |"
    by_rule = {line.split(" | ")[0]: line for line in table.by_rule(ROWS).splitlines()}
    assert by_rule["| `not_hackable`"] == "| `not_hackable` | 3 | 2 | 1 | 0 | 0 | 1 |"
    assert table.not_reviewed(ROWS) == "1 findings have not been reviewed."
    lines = table.all_findings(ROWS).splitlines()
    assert lines[0] == "gem-llm d feedback warning: no help [not reviewed]"
    assert lines[1].endswith("no_op solves .5 [confirmed: an empty list is accepted]")


def test_what_its_authors_meant_is_no_fault_and_what_our_adapter_answers_no_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [
        row("a", ("feedback", "error", "the episode ended"), ("feedback", "warning", "silent")),
        row("b", ("global_random", "warning", "it draws")),
        row("c", ("global_random", "warning", "it draws"), library="agent-r1-gym"),
    ]
    reviews = (Review("gem-llm", "feedback", ".*", "ended", "by design", "a malformed turn loses"),)
    monkeypatch.setattr(table, "REVIEWS", reviews)
    suite, gem = table.by_library(rows).splitlines()[-2:]
    assert suite == "| agent-r1-gym | 1 | 1 | 0 | 1 | 0 | 0 | 1 | 4 |"
    assert gem == "| gem-llm | 1 | 2 | 1 | 1 | 0 | 0 | 1 | 4 |"
    by_rule = {line.split(" | ")[0]: line for line in table.by_rule(rows).splitlines()}
    assert by_rule["| `feedback`"] == "| `feedback` | 1 | 1 | 0 | 1 | 0 | 0 |"  # one of the two was not reviewed
    assert by_rule["| `global_random`"] == "| `global_random` | 1 | 1 | 0 | 1 | 0 | 0 |"


def test_every_published_finding_was_looked_at_and_the_page_has_the_tables() -> None:
    if not table.RESULTS.exists():
        pytest.skip("results are in the repository, not in the source distribution")
    rows = table.read_rows(table.RESULTS)
    assert len(rows) > 150 and table.not_reviewed(rows) == ""
    page = table.RESULTS.with_name("README.md").read_text(encoding="utf-8")
    assert table.by_library(rows) in page and table.by_rule(rows) in page


def test_a_broken_rule_is_our_fault_and_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("agent-r1-gym", "Broken", "Broken", {})

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        out = Path(command[command.index("--out") + 1])
        out.mkdir(parents=True)
        report = {"exit_status": 2, "rules": [{"rule": "ends", "broken": "ZeroDivisionError"}]}
        (out / "audit.json").write_text(json.dumps(report), encoding="utf-8")
        return subprocess.CompletedProcess(command, 2, "", "")

    monkeypatch.setattr(table, "REPORTS", tmp_path)
    monkeypatch.setattr(table.subprocess, "run", run)
    monkeypatch.setattr(table, "commit", lambda: "0" * 40)
    with pytest.raises(ConfigurationError, match="Rules are broken: ends"):
        table.audit_one(entry, episodes=1)


def test_messages_name_no_place_of_this_machine() -> None:
    message = f"{Path.home()}/nltk_data and {Path.cwd()}/runs"
    assert table._portable(message) == "~/nltk_data and ./runs"


def test_environments_of_the_suite_are_registered_and_listed_once() -> None:
    own = entries("agent-r1-gym")
    assert len({entry.key for entry in own}) == len(own) > 20
    for entry in own:
        registered_id(entry.env)


@pytest.mark.slow
def test_an_environment_has_a_row_with_its_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "REPORTS", tmp_path / "reports")
    monkeypatch.setattr(table, "entries", lambda _: [Entry("agent-r1-gym", "lake", "FrozenLakeText", {})])
    results = tmp_path / "results.jsonl"
    words = ["run", "--library", "agent-r1-gym", "-n", "2", "--results", str(results)]
    assert table.main(words) == 0
    (first,) = table.read_rows(results)
    assert first["findings"] == [] and "interface" in first["rules"]["pass"]
    (report,) = (tmp_path / "reports").rglob("report.html")
    assert report.parent.name == "lake-n2"
    before = results.read_text()
    assert table.main(words) == 0  # it has a row
    assert results.read_text() == before
    assert str(tmp_path) not in before and json.loads(before)["version"]
    written = json.loads(before)
    assert written["rules"]["pass"] == len(first["rules"]["pass"])
    results.write_text(json.dumps({**written, "rules": {**written["rules"], "pass": 5}}) + "\n")
    assert table.read_rows(results) == []  # of other rules
    results.write_text(before)
    results.write_text(json.dumps({**json.loads(before), "version": "0"}) + "\n")
    assert table.main(words) == 0  # a row of another version is none
    assert json.loads(results.read_text())["version"] == json.loads(before)["version"]
