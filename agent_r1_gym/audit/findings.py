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
LEAST_EFFECT, THIN_EFFECT = 0.1, 0.3
"""Share of turns with an effect from which a player speaks that language, and up to which an audit is thin."""
SPEAK = "list valid turns in info['actions'], or give it a method oracle()"
"""What to do about an environment whose language no player speaks."""
COMMANDS = "first words of turns with an effect"
"""Name of a measured value: the distinct first words of turns that the environment understood."""
AT, TURN = "raised at", "turn"
"""Names in the evidence of a crash: file, line and function; the turn that led to it."""
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
        broken: traceback of what the rule itself raised, which leaves the audit incomplete; "" if it raised nothing.
        crashes: crashes of the environment while the rule ran; `collect_crashes` moves them to the rule `survives`.
        seconds: duration.
    """

    rule: str
    findings: tuple[Finding, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    not_applicable: str = ""
    not_run: str = ""
    broken: str = ""
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
        seconds: duration of the whole audit, over all processes and resumptions.
        sources: path and hash of each file of its code; the verdicts hold for these.
        strict: whether a warning, and a rule without a verdict, count like an error for the exit status.
    """

    env: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    results: Sequence[RuleResult] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    could_not_run: str = ""
    seconds: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False

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
        """How many players speak the language of the environment, and how well; "" if that was not measured."""
        measured = next((result.measured for result in self.results if result.measured.get(EFFECTS)), None)
        if measured is None:
            return ""
        shares: Mapping[str, float] = measured[EFFECTS]
        of_players = {name: share for name, share in shares.items() if name != ORACLE}
        speaking = sum(share >= LEAST_EFFECT for share in of_players.values())
        if not speaking:
            if shares.get(ORACLE, 0.0) >= LEAST_EFFECT:
                return f"It understood turns of the oracle, and of none of the {len(of_players)} players."
            if ORACLE in shares:
                return "It answered no turn, of the oracle neither, otherwise than a sentence without meaning."
            return f"It understood no turn of any player: {SPEAK}."
        best = max(of_players, key=lambda name: of_players[name])
        words = len(measured.get(COMMANDS, ()))
        text = (
            f"It understood turns of {speaking} of {len(of_players)} players. At best ({best}), {of_players[best]:.0%} "
            f"of the turns had an effect; {_number(words, 'distinct first word')} of turns had one."
        )
        thin = max(shares.values()) < THIN_EFFECT
        return f"{text} This audit is thin: a pass means little." if thin else text

    @property
    def exit_status(self) -> int:
        """0: no error, 1: at least one error, 2: the audit could not run, or a rule of it is broken."""
        if self.could_not_run or any(result.broken for result in self.results):
            return 2
        lax = self.warnings or any(result.status == "not run" for result in self.results)
        return int(self.errors > 0 or (self.strict and bool(lax)))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data, the form of `audit.json`."""
        return {
            "format": FORMAT,
            "env": self.env,
            "options": dict(self.options),
            "verdict": self.verdict,
            "exit_status": self.exit_status,
            "strict": self.strict,
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
