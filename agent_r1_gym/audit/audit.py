"""An audit: rules run one after another in a process of their own, which the environment may hang, fill or end.

Whatever it does there is a finding. The process is then ended with all that it started, and a new one continues with
the next rule; so the result of every finished rule is safe, and an interrupted audit can be resumed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agent_r1_gym.audit.findings import COST, CRASHES, AuditReport, Finding, RuleResult, collect_crashes
from agent_r1_gym.audit.processes import Child
from agent_r1_gym.audit.rules import find_rules
from agent_r1_gym.audit.target import Settings, Target
from agent_r1_gym.support.packages import run_provenance

OnReport = Callable[[AuditReport], None]
_MAX_DEATHS = 6
"""Processes that an environment may end before the audit gives up."""
_GRACE = 5.0
"""Seconds beyond `Settings.call_seconds` before a call counts as hung: the process interrupts Python code itself."""
_PACKAGES = ("agent-r1-gym", "gymnasium", "numpy")


def audit(
    target: Target,
    settings: Settings | None = None,
    *,
    rules: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    finished: Iterable[RuleResult] = (),
    sources: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
    on_report: OnReport | None = None,
) -> AuditReport:
    """Audit an environment in processes of its own.

    Args:
        target: the environment.
        settings: how thoroughly, and the limits.
        rules: names of the rules, see `find_rules`; None: all.
        skip: rules to leave out.
        finished: results of an interrupted audit with the same settings; those rules are not run again.
        sources: `AuditReport.sources` of that audit.
        packages: further packages whose versions the report names.
        on_report: receives the report so far after each rule.

    Returns:
        The report; of an environment that cannot be made, one with `could_not_run`.

    Raises:
        ConfigurationError: there is no such rule.
    """
    settings = settings or Settings()
    order = [rule.name for rule in find_rules(rules, skip=skip)]
    known = {result.rule: result for result in finished if result.rule in order and result.status != "not run"}
    state = _Progress(target, settings, order, known, run_provenance((*_PACKAGES, *packages)), on_report)
    state.sources.update(sources or {})
    state.earlier = sum(result.seconds for result in known.values())
    while state.remaining and not state.refused:
        if state.seconds >= settings.total_seconds:
            state.give_up(f"the audit took longer than {settings.total_seconds:g} s")
        elif state.deaths >= _MAX_DEATHS:
            state.give_up(f"the environment has ended {state.deaths} processes of the audit")
        elif state.slow >= _MAX_DEATHS:
            state.give_up(f"{state.slow} rules took longer than {settings.rule_seconds:g} s")
        else:
            _run_process(state)
    return state.report()


@dataclass
class _Progress:
    """An audit under way."""

    target: Target
    settings: Settings
    order: Sequence[str]
    results: dict[str, RuleResult]
    provenance: dict[str, Any]
    on_report: OnReport | None
    deaths: int = 0
    slow: int = 0
    refused: str = ""
    sources: dict[str, str] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    earlier: float = 0.0
    """Seconds of the rules that an interrupted audit has finished."""

    @property
    def remaining(self) -> list[str]:
        return [name for name in self.order if name not in self.results]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def add(self, result: RuleResult) -> None:
        self.results[result.rule] = result
        if self.on_report is not None:
            self.on_report(self.report())

    def give_up(self, reason: str) -> None:
        for name in self.remaining:
            self.results[name] = RuleResult(name, not_run=reason)

    def report(self) -> AuditReport:
        """Return the report so far, in the order of the rules."""
        names = dict.fromkeys((*self.order, CRASHES))  # a crash is reported even if its rule was not selected
        results = [self.results[name] for name in names if name in self.results]
        return AuditReport(
            self.target.env,
            self.target.options,
            settings_of(self.target, self.settings),
            collect_crashes(results),
            self.provenance,
            self.refused,
            self.earlier + self.seconds,
            self.sources,
        )


def settings_of(target: Target, settings: Settings) -> dict[str, Any]:
    """Return what an audit must share with an interrupted one to be resumed: all but the limits of time."""
    own = asdict(settings)
    return {name: own[name] for name in ("episodes", "seed", "memory", "network")} | {"oracle": target.oracle}


def _run_process(state: _Progress) -> None:
    """Run the remaining rules in one process, as far as it gets."""
    request = {"target": state.target.to_dict(), "settings": asdict(state.settings), "rules": state.remaining}
    with Child("rules", request) as child:
        watch = _Watch(child, state.settings)
        for message in child.messages():
            if message is None:
                problem = watch.problem()
                if problem is not None:
                    _stop(state, watch, problem)
                    return
                if state.seconds > state.settings.total_seconds:
                    return
            elif not _handle(state, watch, message):
                return
        if state.remaining:
            status = child.exit_status
            cause = f"by signal {-status}" if status is not None and status < 0 else f"with exit status {status}"
            text = f"The environment ended the process of the audit {cause}. Never end the caller's process."
            _stop(state, watch, _Problem(text, {"output": child.output()[-1_000:]}))


def _handle(state: _Progress, watch: _Watch, message: dict[str, Any]) -> bool:
    """Take a message of the process; return whether it continues."""
    if "start" in message:
        watch.begin(message["start"])
    elif "result" in message:
        state.add(RuleResult.from_dict(message["result"]))
        watch.begin("")
    elif "crash" in message:
        _stop(state, watch, _Problem(message["crash"], {}))
        return False
    elif "refused" in message:
        state.refused = message["refused"]
        return False
    elif "sources" in message:
        state.sources.update(message["sources"])
    elif "unplayable" in message:
        _add_unplayable(state, message)
        return False
    return True


@dataclass
class _Problem:
    message: str
    evidence: dict[str, Any]
    is_slow: bool = False


def _stop(state: _Progress, watch: _Watch, problem: _Problem) -> None:
    """Record why the process is ended, under the rule that it ran."""
    rule, seconds = watch.rule or CRASHES, watch.seconds
    if problem.is_slow:
        state.slow += 1
        cost = state.results.get(COST, RuleResult(COST)).measured
        spent = ", ".join(f"{name}: {value}" for name, value in cost.items())
        reason = f"{problem.message} ({spent})" if spent else problem.message
        state.add(RuleResult(rule, not_run=reason, seconds=seconds))
        return
    state.deaths += 1
    crash = Finding("error", problem.message, {"rule": rule, **problem.evidence})
    state.add(RuleResult(rule, not_run="the environment ended the process", crashes=(crash,), seconds=seconds))


def _add_unplayable(state: _Progress, message: dict[str, Any]) -> None:
    reason = message["unplayable"]
    crashes = tuple(Finding(**crash) for crash in message["crashes"])
    state.results.pop(CRASHES, None)
    state.add(
        RuleResult(
            CRASHES, not_run=reason, crashes=crashes or (Finding("error", f"No episode can be played: {reason}"),)
        )
    )
    state.give_up("no episode can be played")


@dataclass
class _Watch:
    """Watches the rules, calls and memory of a process.

    Attributes:
        rule: the rule that runs; "" before the first one.
    """

    child: Child
    settings: Settings
    rule: str = ""
    _rule_started: float = field(default_factory=time.monotonic)
    _counts: tuple[int, int] = (0, 0)
    _counts_since: float = field(default_factory=time.monotonic)

    def begin(self, rule: str) -> None:
        """Note that a rule begins."""
        self.rule, self._rule_started = rule, time.monotonic()

    @property
    def seconds(self) -> float:
        """Duration of the rule so far."""
        return time.monotonic() - self._rule_started

    def problem(self) -> _Problem | None:
        """Return what is wrong with the process at this moment, None if nothing is."""
        memory, limit = self.child.memory, self.settings.memory
        if memory > limit:
            return _Problem(f"The environment held {_gib(memory)}, more than the limit of {_gib(limit)}.", {})
        counts, now = self.child.calls.counts, time.monotonic()
        if counts != self._counts:
            self._counts, self._counts_since = counts, now
        in_call = counts[0] != counts[1]
        if in_call and now - self._counts_since > self.settings.call_seconds + _GRACE:
            text = f"A call hung for more than {self.settings.call_seconds:g} s, and could not be interrupted."
            return _Problem(text, {"stack": self.child.stack()})
        if self.seconds > self.settings.rule_seconds and not self.rule:
            text = f"The environment could not be imported and played within {self.settings.rule_seconds:g} s."
            return _Problem(text, {"stack": self.child.stack()})
        if self.seconds > self.settings.rule_seconds:
            return _Problem(f"the rule took longer than {self.settings.rule_seconds:g} s", {}, is_slow=True)
        return None


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
