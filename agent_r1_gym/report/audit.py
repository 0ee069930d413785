"""`agent-r1 audit` on a page: the verdict of each rule, and each finding with evidence and reproduction."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent_r1_gym.audit.findings import STATUSES, TRANSCRIPTS, AuditReport, Finding, RuleResult
from agent_r1_gym.audit.rules import RULES
from agent_r1_gym.report.page import (
    Cell,
    Html,
    RunCard,
    Section,
    cards,
    facts,
    heading,
    paragraph,
    sections,
    table,
    write_page,
)

_MAX_VALUE = 200


def write_audit(out: Path, report: AuditReport) -> int:
    """Write the page and return its size in bytes.

    Args:
        out: HTML file to write.
        report: the audit.
    """
    verdicts: list[list[Cell]] = [
        [
            result.rule,
            result.status,
            _claim(result.rule),
            result.not_run or result.not_applicable or None,
            result.seconds,
        ]
        for result in report.results
    ]
    number = {status: sum(result.status == status for result in report.results) for status in STATUSES}
    card = RunCard(
        report.env,
        ", ".join(f"{name}={value!r:.60}" for name, value in report.options.items()) or "default options",
        report.verdict,
        "down" if report.errors else "up",
        [*((status, str(count)) for status, count in number.items()), ("minutes", report.seconds / 60)],
    )
    parts = sections(
        Section("Verdict", cards([card])),
        Section("Findings", [part for result in report.results for part in _findings(result)]),
        Section("Rules", [table("Verdict by rule", ("rule", "verdict", "checks", "reason", "seconds"), verdicts)]),
        Section("Episodes", list(_transcripts(report))),
        Section("Measured", [table("What the rules measured", ("rule", "value", ""), list(_measured(report)))]),
        Section(
            "Settings",
            [facts((name, _text(value)) for name, value in (*report.settings.items(), *report.provenance.items()))],
        ),
    )
    return write_page(out, f"Audit of {report.env}", parts)


def _claim(name: str) -> str:
    return RULES[name].claim if name in RULES else "a custom rule"


def _findings(result: RuleResult) -> Iterator[Html]:
    for finding in result.findings:
        yield heading(f"{result.rule}: {finding.severity}")
        yield paragraph(finding.message, "fault" if finding.severity == "error" else "")
        yield from _evidence(finding)
    if result.broken:
        yield heading(f"{result.rule}: broken")
        yield paragraph(result.not_run, "fault")
        yield _block("traceback", result.broken)


def _evidence(finding: Finding) -> Iterator[Html]:
    for name, value in finding.evidence.items():
        text = _text(value)
        yield facts([(name, text)]) if len(text) <= _MAX_VALUE and "\n" not in text else _block(name, text)
    if finding.reproduction:
        yield _block("reproduction", finding.reproduction)


def _block(title: str, text: str) -> Html:
    return Html(f"<details><summary>{html.escape(title)}</summary><pre>{html.escape(text)}</pre></details>")


def _transcripts(report: AuditReport) -> Iterator[Html]:
    for result in report.results:
        for player, text in result.measured.get(TRANSCRIPTS, {}).items():
            yield _block(player, text)


def _measured(report: AuditReport) -> Iterator[list[Cell]]:
    for result in report.results:
        for name, value in result.measured.items():
            if name == TRANSCRIPTS:
                continue
            yield [result.rule, name, _text(value)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=repr)
