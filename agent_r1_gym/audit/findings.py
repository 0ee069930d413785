"""What an audit finds: findings with evidence and reproduction, results of rules, and the report of an audit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Self

Severity = Literal["error", "warning"]
"""An error makes scores wrong or runs fail; a warning is worth a look, and may be meant."""
Status = Literal["pass", "warning", "error", "not applicable", "not run"]
"""The verdict of a rule."""
FORMAT = 1
"""Version of the JSON form of a report."""
EFFECTS = "turns with an effect, share"
"""Name of a measured value: how well each player speaks the language of a plain environment."""
ORACLE = "oracle"
"""Name of the oracle in measured values by player."""
TRANSCRIPTS = "first episodes"
"""Name of a measured value: the beginning of the first episode of each player, as text."""
LEAST_EFFECT = 0.1
"""Share of turns with an effect from which a player speaks that language."""
_NUMBER = re.compile(r"\d+")
COST = "cost"
"""The rule that measures what construction, reset and step take."""
CRASHES = "survives"
"""The rule that collects crashes: whatever rule was running when the environment raised, hung or died."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        severity: "error" or "warning".
        message: what is wrong, what was expected, and what to do about it.
        evidence: what was observed: scores, excerpts, seeds.
        reproduction: Python code, or a command, that shows it again; "" if there is none.
    """

    severity: Severity
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    reproduction: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the function of a rule returns.

    Attributes:
        findings: what is wrong; empty if nothing is.
        measured: values that the rule measured, for the report.
        not_run: why there is no verdict; "" if there is one.
    """

    findings: Sequence[Finding] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    not_run: str = ""


class NotApplicable(Exception):
    """Raise it in a rule that does not apply to the environment; the message is the reason."""


class NotRun(Exception):
    """Raise it in a rule that cannot give a verdict; the message is the reason."""


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The verdict of a rule, as the report has it.

    Attributes:
        rule: name of the rule.
        findings: what is wrong; empty if nothing is.
        measured: values that the rule measured, for the report.
        not_applicable: why the rule does not apply to this environment; "" if it does.
        not_run: why the rule gave no verdict (a limit, a crash of the environment); "" if it did.
        crashes: crashes of the environment while the rule ran; `collect_crashes` moves them to the rule `survives`.
        seconds: duration.
    """

    rule: str
    findings: tuple[Finding, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    not_applicable: str = ""
    not_run: str = ""
    crashes: tuple[Finding, ...] = ()
    seconds: float = 0.0

    @property
    def status(self) -> Status:
        """The verdict: the worst of the findings, or why there is none."""
        severities = {finding.severity for finding in self.findings}
        if severities:
            return "error" if "error" in severities else "warning"
        if self.not_run:
            return "not run"
        return "not applicable" if self.not_applicable else "pass"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {"status": self.status, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Restore a result from the output of `to_dict`."""
        fields = {name: value for name, value in data.items() if name != "status"}
        findings, crashes = (tuple(Finding(**each) for each in data[name]) for name in ("findings", "crashes"))
        return cls(**{**fields, "findings": findings, "crashes": crashes})


@dataclass(frozen=True, slots=True)
class AuditReport:
    """An audit of one environment.

    Attributes:
        env: the environment, as it was named.
        options: its options.
        settings: settings of the audit.
        results: one result per rule, in the order of the rules.
        provenance: date, command, commit and versions.
        could_not_run: why the environment could not be audited at all; "" if it was.
        sources: path and hash of each file of its code; the verdicts hold for these.
        seconds: duration of the whole audit, over all processes and resumptions.
    """

    env: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    results: Sequence[RuleResult] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    could_not_run: str = ""
    seconds: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def errors(self) -> int:
        """Number of findings of severity "error"."""
        return self._count("error")

    @property
    def warnings(self) -> int:
        """Number of findings of severity "warning"."""
        return self._count("warning")

    @property
    def verdict(self) -> str:
        """The audit in one sentence."""
        if self.could_not_run:
            return f"The audit could not run: {self.could_not_run}"
        number = {status: sum(result.status == status for result in self.results) for status in STATUSES}
        counts = ", ".join(f"{count} {status}" for status, count in number.items() if count)
        verdict = f"{_number(self.errors, 'error')} and {_number(self.warnings, 'warning')}; rules: {counts}."
        return f"{verdict} {self.coverage}".rstrip()

    @property
    def coverage(self) -> str:
        """How many players speak the language of the environment, in one sentence; "" if that was not measured."""
        shares: Mapping[str, float] = next((r.measured[EFFECTS] for r in self.results if r.measured.get(EFFECTS)), {})
        of_players = [share for name, share in shares.items() if name != ORACLE]
        speaking = sum(share >= LEAST_EFFECT for share in of_players)
        if not shares or speaking:
            return f"It understood turns of {speaking} of {len(of_players)} players." if shares else ""
        if shares.get(ORACLE, 0.0) >= LEAST_EFFECT:
            return f"It understood turns of the oracle, and of none of the {len(of_players)} players."
        return "It understood no turn of any player: list valid turns in info['actions'], or give it a method oracle()."

    @property
    def exit_status(self) -> int:
        """0: no error, 1: at least one error, 2: the audit could not run."""
        return 2 if self.could_not_run else int(self.errors > 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, the form of `audit.json`."""
        return {
            "format": FORMAT,
            "env": self.env,
            "options": dict(self.options),
            "verdict": self.verdict,
            "exit_status": self.exit_status,
            "could_not_run": self.could_not_run,
            "errors": self.errors,
            "warnings": self.warnings,
            "seconds": round(self.seconds, 2),
            "settings": dict(self.settings),
            "sources": dict(self.sources),
            "rules": [result.to_dict() for result in self.results],
            "provenance": dict(self.provenance),
        }

    def _count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for result in self.results for finding in result.findings)


STATUSES: tuple[Status, ...] = ("pass", "warning", "error", "not applicable", "not run")


def collect_crashes(results: Iterable[RuleResult]) -> list[RuleResult]:
    """Move the crashes that happened under any rule to the rule `survives`, each once, and return all results.

    A rule that the environment crashed gives no verdict of its own, so one fault is one finding.
    """
    results = list(results)
    crashes: dict[str, Finding] = {}
    for result in results:
        for crash in result.crashes:
            kind = _NUMBER.sub("#", crash.message)  # the same crash with another seed is the same crash
            crashes.setdefault(kind, replace(crash, evidence={"rule": result.rule, **crash.evidence}))
    if not crashes:
        return results
    if all(result.rule != CRASHES for result in results):
        results.append(RuleResult(CRASHES))
    return [_with_crashes(result, crashes) if result.rule == CRASHES else result for result in results]


def _with_crashes(result: RuleResult, crashes: Mapping[str, Finding]) -> RuleResult:
    findings = {_NUMBER.sub("#", finding.message): finding for finding in result.findings}
    return replace(result, findings=tuple({**crashes, **findings}.values()), not_run="")


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
