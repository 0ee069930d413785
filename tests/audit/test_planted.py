"""What a stranger's faults showed: they are found, once each, and the code of a finding shows it again."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.audit.findings import COMMANDS, AuditReport, Finding, RuleResult, Verdict
from agent_r1_gym.audit.oracle_players import other_spellings
from agent_r1_gym.audit.players import RandomCall, Touring, prompt_commands
from agent_r1_gym.audit.rules import RULES, find_rules, run_rule, run_rules, usability
from agent_r1_gym.audit.subject import Episode, Subject
from agent_r1_gym.audit.target import Settings, Target
from agent_r1_gym.errors import ConfigurationError
from tests.audit import planted_envs
from tests.audit.planted_envs import FAULTS
from tests.kit import faulty_envs
from tests.kit.samples import samples

ROOT = Path(__file__).parents[2]
DETERMINED = [rule.name for rule in RULES.values() if rule.topic == "determinism"]


def results_of(creator: Any, *rules: str, episodes: int = 10) -> dict[str, RuleResult]:
    target = Target(f"{creator.__module__}:{creator.__name__}")
    subject = Subject.of_target(target, Settings(episodes=episodes))
    return {result.rule: result for result in run_rules(subject, find_rules(rules or None))}


def printed(code: str, *words: str, hash_seed: str = "0") -> str:
    """Returns what code prints in a process of its own, and the error that ends it."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
@samples("creator", list(FAULTS), ids=lambda creator: creator.__name__)
def test_a_planted_fault_is_found_and_shown_by_its_code(creator: Any) -> None:
    found = results_of(creator, FAULTS[creator])[FAULTS[creator]]
    assert found.status == ("warning" if creator is planted_envs.TellsInDebugInfo else "error"), found
    assert all(finding.reproduction for finding in found.findings), found


def shown(code: str) -> tuple[str, str]:
    """Returns what code prints in this process, and what it raises."""
    output, raised = io.StringIO(), ""
    with contextlib.redirect_stdout(output):
        try:
            exec(compile(code, "reproduction", "exec"), {"__name__": "reproduction"})
        except (SyntaxError, NameError, ImportError):
            raise
        except BaseException as error:
            raised = repr(error)
    return output.getvalue(), raised


_HERE = {"threads", "memory", "side_by_side", "cost", "cleans_up", "survives"}
"""Rules whose findings are shown by load, or that end the process."""
_ORACLES = (faulty_envs.WrongGold, faulty_envs.ForgetfulDesk)
"""Faults of an oracle: its turns show them in the sound environment too."""


@pytest.mark.slow
@samples(
    "creator",
    [fault for fault, rule in faulty_envs.FAULTS.items() if rule not in _HERE and fault not in _ORACLES],
    ids=lambda c: c.__name__,
)
def test_the_code_of_a_finding_prints_something_else_for_the_sound_environment(creator: Any) -> None:
    """Each is a copy of a sound environment with one fault, so what its code prints must not be what that prints."""
    rule = faulty_envs.FAULTS[creator]
    for finding in results_of(creator, rule, episodes=8)[rule].findings:
        assert finding.reproduction, finding
        base = creator.__mro__[1]
        sound = re.sub(rf"\b{creator.__name__}\b", base.__name__, finding.reproduction)
        sound = sound.replace(f"from {creator.__module__} import", f"from {base.__module__} import")
        assert shown(finding.reproduction) != shown(sound), finding.reproduction


@pytest.mark.slow
@samples("creator", [fault for fault, rule in faulty_envs.FAULTS.items() if rule == "survives"])
def test_the_code_of_a_crash_raises(creator: Any) -> None:
    for finding in results_of(creator, "survives", episodes=3)["survives"].findings:
        assert shown(finding.reproduction)[1], finding


@pytest.mark.slow
def test_the_code_of_load_measures_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usability, "SLOW_STEP", 0.003)
    monkeypatch.setattr(usability, "LARGE_INSTANCE", 2 * 2**20)

    def numbers(creator: Any) -> list[float]:
        rule = faulty_envs.FAULTS[creator]
        finding = results_of(creator, rule, episodes=4)[rule].findings[0]
        lines = printed(finding.reproduction).splitlines()[-5 if rule == "memory" else -1 :]
        return [float(line.split()[-4 if rule == "cost" else 0]) for line in lines]

    for grows in (faulty_envs.Large, faulty_envs.Grows):
        sizes = numbers(grows)
        assert sizes == sorted(sizes) and sizes[-1] > sizes[0] + 5_000, sizes
    assert numbers(faulty_envs.KeepsThreads)[-1] >= 6
    assert numbers(faulty_envs.Slow)[-1] > 0.003
    assert numbers(faulty_envs.Racing)[-1] > 0


def test_the_code_of_a_step_after_the_end_takes_it() -> None:
    for creator in (planted_envs.PaysTheRightTurnAfterTheEnd, planted_envs.PaysAnyoneAfterTheEnd):
        finding = results_of(creator, "after_the_end")["after_the_end"].findings[-1]
        scope: dict[str, Any] = {}
        exec(finding.reproduction, scope)
        assert scope["reward"] == 1.0 and "is rewarded with 1" in finding.message
    assert results_of(faulty_envs.GoesOn, "after_the_end")["after_the_end"].status == "warning"


def test_the_code_for_instances_in_turn_makes_them() -> None:
    for creator in (planted_envs.SharesNotes, faulty_envs.SharedLog):
        (finding,) = results_of(creator, "independent_instances")["independent_instances"].findings
        assert finding.evidence["first"] != finding.evidence["second"]
        assert len(re.findall(r"^env_\d = ", finding.reproduction, re.M)) >= 3
        lines = printed(finding.reproduction).splitlines()
        half = len(lines) // 2
        assert len(lines) % 2 == 0 and lines[:half] != lines[half:], finding.reproduction


def test_the_code_for_episodes_before_plays_them() -> None:
    (finding,) = results_of(planted_envs.KeepsReadings, "independent_episodes")["independent_episodes"].findings
    lines = printed(finding.reproduction).splitlines()
    half = len(lines) // 2
    assert lines[:half] != lines[half:]


def test_the_code_of_hash_seeds_and_clocks_shows_both_runs() -> None:
    (finding,) = results_of(faulty_envs.SetOrder, "hash_seeds")["hash_seeds"].findings
    other = re.search(r"PYTHONHASHSEED=([12])", finding.reproduction)
    assert other is not None and finding.evidence["first"] != finding.evidence["second"]
    assert printed(finding.reproduction) != printed(finding.reproduction, hash_seed=other[1])
    (finding,) = results_of(faulty_envs.Calendar, "clocks")["clocks"].findings
    assert printed(finding.reproduction) != printed(finding.reproduction, "later")
    assert printed(finding.reproduction) == printed(finding.reproduction)


def test_the_clock_is_blamed_once() -> None:
    results = results_of(planted_envs.TellsTheTime, *DETERMINED, "side_by_side")
    assert [result.rule for result in results.values() if result.findings] == ["clocks"]
    waiting = [result for result in results.values() if result.rule != "clocks"]
    assert all(result.not_run.endswith("see clocks") for result in waiting), waiting
    assert re.search(r"\d\d:\d\d:\d\d", results["clocks"].findings[0].evidence["first"])


def test_an_environment_that_no_one_seeds_is_not_blamed_on_the_clock() -> None:
    results = results_of(faulty_envs.Unseeded, "clocks", "same_seed", episodes=3)
    assert results["clocks"].not_run.endswith("see same_seed") and results["same_seed"].status == "error"


# --- players ---------------------------------------------------------------------------------------------------------


def test_a_turn_that_raises_was_understood() -> None:
    results = results_of(planted_envs.RaisesOnWhatItUnderstands, "survives", "same_seed", "not_hackable")
    assert results["survives"].status == "error"
    assert results["not_hackable"].measured[COMMANDS]
    report = AuditReport("Raises", {}, {}, list(results.values()))
    assert "It understood no turn" not in report.verdict
    (crash,) = results["survives"].findings
    assert crash.evidence["raised at"].startswith("planted_envs.py:") and crash.evidence["turn"]


def test_an_answer_that_is_paid_was_understood() -> None:
    (result,) = results_of(planted_envs.SubstringAnswer, "not_hackable").values()
    verdict = AuditReport("SubstringAnswer", {}, {}, [result]).verdict
    assert result.status == "error" and "It understood turns of the oracle" in verdict
    assert "method oracle()" not in verdict


def test_a_thin_audit_says_so() -> None:
    def verdict(**shares: float) -> str:
        measured = {"turns with an effect, share": shares, COMMANDS: ["logs"]}
        return AuditReport("Mine", {}, {}, [RuleResult("not_hackable", measured=measured)]).verdict

    assert "This audit is thin" in verdict(random_call=0.1, no_op=0.0)
    assert "This audit is thin" not in verdict(random_call=0.1, oracle=1.0)
    assert "At best (random_call), 50% of the turns had an effect; 1 distinct first word" in verdict(random_call=0.5)
    assert "no turn, of the oracle neither" in verdict(random_call=0.0, oracle=0.0)


def test_listed_actions_of_one_verb_do_not_crowd_out_the_others() -> None:
    subject = Subject(planted_envs.KeepsReadings, Settings(episodes=20))
    episodes = subject.episodes(RandomCall())
    assert sum(len(episode.actions) for episode in episodes) / len(episodes) >= 2.0
    assert {"inspect", "repair", "machines"} <= {e.split()[0] for episode in episodes for e in episode.actions}
    toured = subject.play(Touring({"repair"}), subject.jobs[0])
    assert len(toured.actions) == 8 and len({turn.split()[0] for turn in toured.actions}) == 2


def test_a_prompt_may_describe_its_commands() -> None:
    text = "You are lost.\n  look     look around\n  go <place>   walk\n- take THING [COUNT]\nPlaces: hill, lake.\nquit"
    assert dict(prompt_commands(text)) == {
        "look": [], "go": ["<place>"], "take": ["THING", "[COUNT]"], "quit": []
    }  # fmt: skip
    assert prompt_commands("Guess my number.\nIt is small.") == []
    assert other_spellings("logs auth")[:3] == ["LOGS AUTH", "Logs auth", "logs  auth"]


def test_what_is_said_to_be_unsolved_is_not_solved() -> None:
    results = results_of(planted_envs.PaysEachListedInspection, "not_hackable", "reward_order")
    assert not [f for f in results["not_hackable"].findings if "order of the listed" in f.message], results
    assert results["reward_order"].status == "error"


# --- what is broken is visible ---------------------------------------------------------------------------------------


def broken_rule(subject: Subject) -> Verdict:
    return Verdict(measured={"impossible": 1 / 0})


def calling_rule(subject: Subject) -> Verdict:
    """Calls the environment itself, which raises."""
    subject.make().step("x")
    return Verdict()


def test_a_broken_rule_makes_the_audit_incomplete() -> None:
    (rule,) = find_rules([f"{__name__}:broken_rule"])
    result = run_rule(rule, Subject(faulty_envs.Guess))
    assert "test_planted.py" in result.not_run and "ZeroDivisionError" in result.broken
    assert AuditReport("Guess", {}, {}, [result]).exit_status == 2
    assert RuleResult.from_dict(result.to_dict()) == result


def test_what_the_environment_raises_in_a_rule_of_a_user_is_a_finding_of_it() -> None:
    (rule,) = find_rules([f"{__name__}:calling_rule"])
    result = run_rule(rule, Subject(faulty_envs.Guess))
    assert result.status == "error" and "RuntimeError: call reset first (faulty_envs.py:" in result.findings[0].message


def raising_oracle(texts: list[str]) -> str:
    raise LookupError("no model here")


def silent_oracle(texts: list[str]) -> Any:
    return None


def halving_oracle(texts: list[str]) -> str:
    low, high = 10, 99
    for guess, hint in zip(texts[1::2], texts[2::2], strict=True):
        low, high = (int(guess) + 1, high) if "small" in hint else (low, int(guess) - 1)
    return str((low + high) // 2)


def test_an_oracle_may_be_a_function_and_has_to_work() -> None:
    def audited(name: str) -> list[RuleResult]:
        target = Target("tests.kit.faulty_envs:Guess", oracle=f"{__name__}:{name}")
        return run_rules(Subject.of_target(target, Settings(episodes=3)), find_rules(["reachable"]))

    (result,) = audited("halving_oracle")
    assert result.status == "pass" and result.measured["mean return of the oracle"] == 1.0
    for name, message in (("raising_oracle", "LookupError: no model"), ("silent_oracle", "not the text of a turn")):
        with pytest.raises(ConfigurationError, match=message):
            audited(name)


def test_strict_counts_warnings_and_rules_without_a_verdict() -> None:
    warned = RuleResult("ends", (Finding("warning", "Odd."),))
    for results in ([warned], [RuleResult("ends", not_run="too slow")]):
        assert AuditReport("Mine", {}, {}, results).exit_status == 0
        assert AuditReport("Mine", {}, {}, results, strict=True).exit_status == 1
    assert AuditReport("Mine", {}, {}, [RuleResult("ends", not_applicable="no")], strict=True).exit_status == 0


def test_a_transcript_marks_a_crash_and_keeps_the_last_turns() -> None:
    subject = Subject(planted_envs.RaisesOnWhatItUnderstands, Settings(episodes=1))
    lines = subject.replay(subject.jobs[0], ["x", "inspect kiln"]).transcript.splitlines()
    assert lines[-2] == "inspect kiln" and lines[-1].startswith("broke: step raised ZeroDivisionError")
    episode = Episode(subject.jobs[0], "long", "Begin.", [f"turn {n}" for n in range(9)])
    episode.texts, episode.rewards = ["Begin.", *["ok"] * 9], [0.0] * 8 + [1.0]
    assert (
        "... 4 more turns ..." in episode.transcript and "turn 8\n> ok\n> (reward 1.0)\nreturn 1" in episode.transcript
    )
