"""An audit in processes of its own: whatever the environment does there is a finding, and the audit goes on."""

from __future__ import annotations

import datetime
import json
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.audit import audit as audit_module
from agent_r1_gym.audit import child
from agent_r1_gym.audit.audit import audit
from agent_r1_gym.audit.findings import CRASHES, AuditReport, RuleResult
from agent_r1_gym.audit.network import _is_local
from agent_r1_gym.audit.target import Settings, Target
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.sandbox.container import containers_unavailable
from tests.kit.harbor import write_task
from tests.kit.samples import samples

PATIENT = Settings(episodes=2, call_seconds=30.0, rule_seconds=60.0, memory=400 * 2**20)
HASTY = replace(PATIENT, call_seconds=0.5)
"""For environments that hang."""
RULES = ("interface", "survives", "feedback")


def audit_of(name: str, rules: tuple[str, ...] = RULES, settings: Settings = PATIENT, **options: Any) -> AuditReport:
    return audit(Target(f"tests.kit.faulty_envs:{name}"), settings, rules=rules, **options)


def by_rule(report: AuditReport) -> dict[str, RuleResult]:
    return {result.rule: result for result in report.results}


@pytest.mark.slow
@samples(
    "name, message",
    [
        ("Hangs", "did not return within 0.5 s"),
        ("HangsForGood", "hung for more than 0.5 s"),
        ("Dies", "exit status 3"),
        ("Forks", "returned in both processes"),
        ("Fills", "more than the limit of 0.39 GiB"),
        ("Asks", "EOFError"),
    ],
)
def test_what_ends_a_process_is_a_finding_and_the_audit_goes_on(
    name: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_module, "_GRACE", 0.5)
    report = audit_of(name, settings=HASTY if name.startswith("Hangs") else PATIENT)
    results = by_rule(report)
    assert [finding.message for finding in results[CRASHES].findings if message in finding.message], results
    assert list(results) == list(RULES)
    assert results["interface"].status == "pass"
    assert report.exit_status == 1


def test_a_hang_that_cannot_be_interrupted_shows_its_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_GRACE", 0.5)
    (finding,) = by_rule(audit_of("HangsForGood", ("survives",), HASTY))[CRASHES].findings
    assert "faulty_envs.py" in finding.evidence["stack"] and finding.evidence["rule"] == "survives"


def test_connections_to_other_machines_are_refused_and_reported() -> None:
    (result,) = audit_of("NeedsNetwork", ("offline",)).results
    assert (result.status, result.findings[0].evidence["hosts"]) == ("warning", ["192.0.2.1"])
    local = ("localhost", "127.0.0.1", "127.3.0.1", "::1", "0.0.0.0", "", "api.localhost")
    assert [name for name in (*local, "192.0.2.1", "example.org", "fe80::1") if not _is_local(name)] == [
        "192.0.2.1", "example.org", "fe80::1"
    ]  # fmt: skip


def test_what_cannot_be_played_without_the_network_says_so() -> None:
    finding = by_rule(audit_of("NeedsWordList"))[CRASHES].findings[0]
    assert finding.message.endswith("It tried to reach 192.0.2.1 before; --network allows that.")


def test_an_environment_without_a_fault_passes_and_says_what_did_not_apply() -> None:
    report = audit_of("Guess", ("interface", "canary", "offline"))
    statuses = {result.rule: result.status for result in report.results}
    assert statuses == {"interface": "pass", "canary": "not applicable", "offline": "pass"}
    assert report.exit_status == 0 and "0 errors and 0 warnings" in report.verdict
    assert report.provenance["versions"]["gymnasium"]


@samples("name, message", [("AlwaysRaises", "the data set is missing"), ("RaisesInConstructor", "no licence key")])
def test_what_cannot_be_played_is_one_finding(name: str, message: str) -> None:
    report = audit_of(name)
    assert message in by_rule(report)[CRASHES].findings[0].message
    assert {result.status for result in report.results if result.rule != CRASHES} == {"not run"}
    assert report.exit_status == 1


def test_what_is_named_wrongly_cannot_be_audited() -> None:
    for target, message in (
        (Target("tests.kit.faulty_envs:Nothing"), "Nothing"),
        (Target("NoSuchEnvironment"), "Unknown environment"),
        (Target("FrozenLakeText", {"max_turn": 3}), "Did you mean 'max_turns'"),
        (Target("tests.kit.faulty_envs:DeadBackend"), "its backend cannot be reached: the server is down"),
    ):
        report = audit(target, PATIENT, rules=["interface"])
        assert (report.exit_status, report.results) == (2, []) and message in report.could_not_run
    with pytest.raises(ConfigurationError, match="Unknown rule"):
        audit(Target("FrozenLakeText"), PATIENT, rules=["no_such_rule"])


def test_finished_rules_are_not_run_again_and_each_report_so_far_is_passed_on() -> None:
    reports: list[AuditReport] = []
    known = RuleResult("interface", measured={"from": "before"})
    lost = RuleResult("feedback", not_run="the audit took longer than 1 s")
    report = audit_of("Guess", finished=[known, lost], on_report=reports.append)
    assert by_rule(report)["interface"] == known
    assert by_rule(report)["feedback"].status == "pass"
    assert [len(one.results) for one in reports] == [2, 3]


def test_an_audit_ends_at_its_limit_of_time() -> None:
    settings = Settings(episodes=2, total_seconds=0.001)
    report = audit(Target("tests.kit.faulty_envs:Guess"), settings, rules=RULES)
    assert {result.status for result in report.results} == {"not run"}
    assert "longer than 0.001 s" in report.results[0].not_run


def test_a_slow_rule_is_no_fault_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_rules.py").write_text("import time\n\ndef sleeps(subject):\n    time.sleep(60)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    settings = Settings(episodes=1, rule_seconds=4.0)
    report = audit(Target("FrozenLakeText"), settings, rules=["cost", "slow_rules:sleeps", "interface"])
    assert [result.status for result in report.results] == ["pass", "not run", "pass"]
    assert report.exit_status == 0
    assert "longer than 4 s (construction, s: " in report.results[1].not_run


def test_clocks_are_set_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    real_date = datetime.datetime.now()
    real_time = real_date.timestamp()
    names = ("monotonic", "perf_counter", "process_time")
    for each in ("time", "time_ns", "localtime", "gmtime", "ctime", "strftime", *names, *(f"{n}_ns" for n in names)):
        monkeypatch.setattr(time, each, getattr(time, each))
    clock = child.Clock(real_time, 86_400.0)
    clock.replace_times()
    assert 0 < time.time_ns() / 1e9 - real_time - 86_400.0 < 0.001
    assert time.strftime("%d") == f"{time.localtime().tm_mday:02}" != f"{real_date.day:02}"
    own = types.ModuleType("own_module")
    own.__file__ = "/somewhere/own_module.py"
    own.datetime, own.day, own.other = datetime, datetime.date, 3  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "modules", {"own_module": own, "json": json})
    clock.replace_dates()
    assert own.datetime.datetime.now() > real_date + datetime.timedelta(hours=23)
    assert own.day.today() > real_date.date() and own.other == 3
    assert isinstance(real_date, own.datetime.datetime) and isinstance(real_date.date(), own.day)
    assert datetime.datetime.now() < real_date + datetime.timedelta(hours=23)  # of the standard library: unchanged
    clock.begin()
    first = own.datetime.datetime.now()
    clock.begin()
    assert own.datetime.datetime.now() == first  # in each episode


@pytest.mark.skipif(bool(containers_unavailable()), reason=containers_unavailable())
def test_a_folder_of_harbor_tasks_is_audited(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks" / "sound")
    write_task(tmp_path / "tasks" / "lax", tests="echo 1 > /logs/verifier/reward.txt")
    target = Target(str(tmp_path / "tasks"))
    report = audit(target, PATIENT, rules=["reachable", "not_hackable"])
    results = by_rule(report)
    assert results["reachable"].status == "pass"
    assert results["not_hackable"].status == "error"
    assert f"dataset={str(tmp_path / 'tasks')!r}" in results["not_hackable"].findings[0].reproduction
    assert Target.from_dict(target.to_dict()) == target
