"""Each planted fault is found by its rule; environments without a fault are not accused."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.audit import rules as rules_module
from agent_r1_gym.audit import subject as subject_module
from agent_r1_gym.audit.findings import AuditReport, Finding, RuleResult, Verdict, collect_crashes
from agent_r1_gym.audit.oracle_players import DERIVED
from agent_r1_gym.audit.players import NoOp, players
from agent_r1_gym.audit.rules import RULES, find_rules, run_rule, run_rules, usability
from agent_r1_gym.audit.subject import Subject
from agent_r1_gym.audit.target import Settings, Target
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.policies import Policy, PolicyInput
from agent_r1_gym.wrappers.game import TextGame
from tests.audit import planted_envs
from tests.kit import faulty_envs
from tests.kit.environments import OFFLINE
from tests.kit.faulty_envs import ELSEWHERE, FAULTS, Capitals, Guess, HalfYes, ListedRepairs, Repairs
from tests.kit.pages import PAGES
from tests.kit.samples import samples

HEAVY = ("memory", "side_by_side", "cost")
"""Rules that take seconds, or depend on the machine."""
pytestmark = pytest.mark.filterwarnings("ignore:The snapshot does not contain")


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes small costs large ones."""
    monkeypatch.setattr(usability, "SLOW_STEP", 0.003)
    monkeypatch.setattr(usability, "LARGE_INSTANCE", 2 * 2**20)


def subject_of(creator: Any, episodes: int = 20) -> Subject:
    return Subject(creator, Settings(episodes=episodes))


def accusing(results: list[RuleResult]) -> set[str]:
    return {result.rule for result in results if result.findings}


def test_there_are_faults_for_every_rule() -> None:
    assert len(FAULTS) + len(ELSEWHERE) + len(faulty_envs.DEADLY) >= 40
    assert set(FAULTS.values()) | set(ELSEWHERE.values()) | {"offline"} == set(RULES)  # `offline`: in `test_audit`


@pytest.mark.slow
@samples("creator", list(FAULTS), ids=lambda creator: creator.__name__)
def test_a_planted_fault_is_found_by_its_rule(creator: Any) -> None:
    rule = FAULTS[creator]
    (result,) = (one for one in run_rules(subject_of(creator), find_rules([rule])) if one.rule == rule)
    assert result.status in ("error", "warning"), result
    for finding in result.findings:
        assert finding.message.endswith(".") and not finding.message.startswith(" ")


@pytest.mark.slow
def test_instances_are_measured_where_the_allocator_holds_freed_pages() -> None:
    freed = [b"x" * (31 * 2**20)]  # glibc then takes chunks of this size from its heap
    freed.clear()
    freed = [b"x" * 2**20 for _ in range(128)]
    last = b"x" * 2**20
    freed.clear()
    (result,) = run_rules(subject_of(faulty_envs.Large), find_rules(["memory"]))
    assert result.status == "warning" and len(last) == 2**20, result


@pytest.mark.slow
@samples("creator", list(ELSEWHERE), ids=lambda creator: creator.__name__)
def test_a_fault_that_only_another_process_shows_is_found_there(creator: Any) -> None:
    target = Target(f"tests.kit.faulty_envs:{creator.__name__}")
    subject = Subject.of_target(target, Settings(episodes=3))
    (result,) = run_rules(subject, find_rules([ELSEWHERE[creator]]))
    assert result.status == "error", result


def test_a_process_that_breaks_plays_no_other_episode() -> None:
    target = Target("tests.kit.faulty_envs:BreaksElsewhere")
    (result,) = run_rules(Subject.of_target(target, Settings(episodes=2)), find_rules(["hash_seeds"]))
    assert result.not_run == "no episode could be played to its end in another process"


def test_what_an_adapter_has_caught_is_a_finding() -> None:
    (result,) = (one for one in run_rules(subject_of(faulty_envs.AdmitsErrors, 4), find_rules(["survives"])))
    (finding,) = result.findings
    assert finding.message == "The scorer raised KeyError: 3. No text of a model may raise."


@samples(
    ("reward", "message"),
    [
        ("1/0", "step raised ZeroDivisionError: division by zero. No text of a model"),
        ("'lost'", "What step returned is refused: TextGame, turn 1, seed 0: the reward is 'lost'; expected a finite"),
    ],
)
def test_a_crash_names_what_the_game_did_and_not_our_error(reward: str, message: str) -> None:
    def game() -> TextGame:
        return TextGame(lambda _: "Heads or tails?", lambda _: ("Over.", eval(reward), True, {}))

    (result,) = (one for one in run_rules(subject_of(game), find_rules(["survives"])) if one.rule == "survives")
    assert result.status == "error"
    assert any(finding.message.startswith(message) for finding in result.findings), result.findings


def test_two_episodes_say_little(monkeypatch: pytest.MonkeyPatch) -> None:
    (result,) = run_rules(subject_of(faulty_envs.PaysEverySecondTask), find_rules(["not_hackable"]))
    assert result.status == "error" and "episodes" not in result.measured
    monkeypatch.setattr(subject_module, "_PLAYERS", 10**9)  # no time for more
    (result,) = run_rules(subject_of(faulty_envs.PaysEverySecondTask), find_rules(["not_hackable"]))
    assert not result.findings and result.measured["episodes"]["no_op"] == 2


@pytest.mark.slow
@samples("creator", [Capitals, Guess, Repairs, ListedRepairs, faulty_envs.ReportedRepairs])
def test_an_environment_without_a_fault_is_not_accused(creator: Any) -> None:
    results = run_rules(subject_of(creator), find_rules())
    assert not accusing(results), [result for result in results if result.findings]
    assert {result.rule for result in results} == set(RULES)
    assert all(not result.not_run for result in results)


@pytest.mark.slow
@samples(
    "creator, accused",
    [
        (faulty_envs.RaisesOnEmpty, {"survives"}),
        (faulty_envs.BudgetTerminates, {"ends"}),
        (faulty_envs.WrongGold, {"reachable"}),
        (faulty_envs.NaN, {"finite_rewards"}),
        (faulty_envs.GoldInPrompts, {"answer_in_prompt"}),
        (faulty_envs.AnswerInError, {"canary"}),
        (faulty_envs.TellsInInfo, {"gold_in_info"}),
        (faulty_envs.Unseeded, {"same_seed"}),
        (faulty_envs.LeftOver, {"independent_episodes"}),
        (faulty_envs.Racing, {"threads"}),
        (faulty_envs.EchoesSurrogates, {"clean_text"}),
        (faulty_envs.PunishesDeadBackend, {"dead_backend"}),
        (faulty_envs.SameUnlessSeeded, {"informative"}),
        (faulty_envs.IgnoresTheLastTurn, {"last_turn"}),
        (faulty_envs.FadingCredit, {"same_seed"}),
        (HalfYes, set()),
    ],
)
def test_a_fault_is_found_by_no_other_rule(creator: Any, accused: set[str]) -> None:
    assert accusing(run_rules(subject_of(creator, 4), find_rules(skip=HEAVY))) == accused


@pytest.mark.slow
@samples("env_id", ["AgentR1/Arithmetic-v0", "AgentR1/FrozenLakeText-v0", "AgentR1/BlackjackText-v0"])
def test_environments_of_this_suite_are_not_accused(env_id: str) -> None:
    subject = Subject(lambda: make_text_env(env_id, OFFLINE.get(env_id, {})), Settings(episodes=10))
    results = run_rules(subject, find_rules(skip=HEAVY))
    assert not accusing(results), [result for result in results if result.findings]


def test_a_clean_verdict_needs_players_that_the_environment_understands() -> None:
    determined = [rule.name for rule in RULES.values() if rule.topic == "determinism" and rule.name != "clocks"]
    names = ["not_hackable", *determined]
    mute = run_rules(subject_of(planted_envs.Undescribed), find_rules(names))
    reasons = {result.not_run or result.not_applicable for result in mute}
    assert reasons == {
        mute[0].not_run,
        mute[0].not_run.partition("; ")[2],
        "only this process can make the environment",
    }
    assert "info['actions']" in mute[0].not_run and "oracle()" in mute[0].not_run
    report = AuditReport("MuteRepairs", {}, {}, mute)
    assert "It understood no turn of any player" in report.verdict
    spoken = run_rules(subject_of(Repairs), find_rules(names))
    assert not any(result.not_run for result in spoken)
    assert "It understood turns of 10 of 20 players." in AuditReport("Repairs", {}, {}, spoken).verdict
    shares = spoken[0].measured["turns with an effect, share"]
    assert shares["other_task"] == 1.0 and shares["echo_prompt"] == 0.0
    transcripts = spoken[0].measured["first episodes"]
    assert "> Invalid: expected machines" in transcripts["no_op"] and transcripts["oracle"].endswith("return 1.1")
    strict = run_rules(subject_of(planted_envs.StrictUndescribed), find_rules(["same_seed", "feedback"]))
    assert "info['actions']" in strict[0].not_run  # to be ended is not a sign of being understood
    assert "every episode ended after one turn" in strict[1].not_run
    listed = run_rules(subject_of(ListedRepairs), find_rules(["not_hackable"]))
    assert listed[0].measured["turns with an effect, share"]["random_call"] >= 0.75  # some turns are free text


def test_the_oracle_may_be_the_only_one_whom_a_question_understands() -> None:
    determined = [rule.name for rule in RULES.values() if rule.topic == "determinism"]
    judged = [*determined, "not_hackable", "clean_text", "side_by_side"]
    sound = run_rules(subject_of(faulty_envs.OneAnswer), find_rules(judged))
    assert {result.status for result in sound} == {"pass", "not applicable"}
    assert not any(result.not_run for result in sound)
    assert "of the oracle, and of none of the" in AuditReport("OneAnswer", {}, {}, sound).verdict
    (result,) = run_rules(subject_of(faulty_envs.OneAnswerPaidOnce), find_rules(["same_seed"]))
    assert result.status == "error"


def test_the_order_of_candidates_is_no_clue_where_several_are_right() -> None:
    (result,) = run_rules(subject_of(faulty_envs.FarCity), find_rules(["not_hackable"]))
    assert not [finding for finding in result.findings if "mentioned" in finding.message]


def test_an_oracle_alone_does_not_show_what_other_players_earn() -> None:
    (result,) = run_rules(subject_of(faulty_envs.OneAnswer, 1), find_rules(["not_hackable"]))
    assert "no player wrote a turn" in result.not_run


@pytest.mark.slow
def test_shared_state_is_told_from_an_unseeded_generator_and_from_hash_seeds_and_clocks() -> None:
    def results(name: str, *rules: str) -> dict[str, RuleResult]:
        subject = Subject.of_target(Target(f"tests.kit.faulty_envs:{name}"), Settings(episodes=3))
        return {result.rule: result for result in run_rules(subject, find_rules(rules))}

    fading = results("FadingCredit", "same_seed", "threads")
    (finding, _) = fading["same_seed"].findings
    assert "the seed is not the cause" in finding.message and finding.evidence["what differs"] == "reward"
    assert fading["threads"].not_run.endswith("see same_seed")
    (unseeded, _) = results("Unseeded", "same_seed")["same_seed"].findings
    assert "differ in it too. Draw only from `self.np_random`" in unseeded.message
    notes = results("SharedNotes", "independent_episodes", "hash_seeds", "clocks")
    assert {name: result.status for name, result in notes.items()} == {
        "independent_episodes": "error",
        "hash_seeds": "pass",
        "clocks": "pass",
    }
    code, _, last = notes["independent_episodes"].findings[0].reproduction.rpartition("\n\n")
    printed = [
        run_code(before + last)
        for before in (f"{code}\n", "from tests.kit.faulty_envs import SharedNotes\nenv = SharedNotes()\n")
    ]
    assert printed[0] != printed[1]


def run_code(code: str) -> str:
    """Returns what code prints in a process of its own."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]).stdout


def test_info_may_declare_success() -> None:
    (result,) = run_rules(subject_of(faulty_envs.AdmitsFailure), find_rules(["reachable"]))
    assert result.status == "error" and result.measured["tasks that the oracle solves"] == pytest.approx(0.6)
    assert len(result.findings[0].evidence["seeds"]) == 8


def test_a_reproduction_runs_as_it_is() -> None:
    target = Target("tests.kit.faulty_envs:PaysRefusals")
    (result,) = run_rules(Subject.of_target(target, Settings(episodes=3)), find_rules(["not_hackable"]))
    scope: dict[str, Any] = {}
    exec(result.findings[0].reproduction, scope)
    assert scope["reward"] == 1.0


def test_an_oracle_of_the_user_solves_what_the_environment_cannot() -> None:
    class Halving(Policy):
        name = "halving"

        def act(self, inputs: Any) -> list[str]:
            return [self.turn(state) for state in inputs]

        def turn(self, state: PolicyInput) -> str:
            low, high = 10, 99
            guesses = [int(m.content) for m in state.messages if m.role == "assistant"]
            hints = [m.content for m in state.messages if m.role == "user"][1:]
            for guess, hint in zip(guesses, hints, strict=True):
                low, high = (guess + 1, high) if "small" in hint else (low, guess - 1)
            return str((low + high) // 2)

    class NoOracle(Guess):
        oracle = None  # type: ignore[assignment]

    (without,) = run_rules(Subject(NoOracle), find_rules(["reachable"]))
    assert without.status == "not applicable" and "--oracle" in without.not_applicable
    (solved,) = run_rules(Subject(NoOracle, oracle=Halving()), find_rules(["reachable"]))
    assert solved.status == "pass" and solved.measured["mean return of the oracle"] == 1.0


def test_without_an_oracle_partial_credit_is_no_finding_and_full_credit_a_warning() -> None:
    class Partial(faulty_envs.PaysEmpty):
        oracle = None  # type: ignore[assignment]
        credit = 0.05

        def pay(self, correct: bool, action: str) -> float:
            return self.credit * super().pay(correct, action)

    (partial,) = run_rules(Subject(Partial), find_rules(["not_hackable"]))
    assert partial.status == "not run" and "no oracle is known" in partial.not_run
    assert partial.measured["mean return"]["empty"] == pytest.approx(0.4)
    Partial.credit = 1.0
    (full,) = run_rules(Subject(Partial), find_rules(["not_hackable"]))
    assert full.status == "warning" and "the best return of all players, 8" in full.findings[0].message


def test_what_doing_nothing_solves_now_and_then_is_a_warning() -> None:
    class Sometimes(faulty_envs.PaysNoOp):
        def pay(self, correct: bool, action: str) -> float:
            return super().pay(correct, action) if self.number < 25 else float(correct)

    (result,) = run_rules(subject_of(Sometimes), find_rules(["not_hackable"]))
    assert 0.05 < result.measured["tasks solved, share"]["no_op"] <= 0.2, "choose another limit of numbers"
    assert [(f.severity, f.message[:7]) for f in result.findings] == [("warning", "`no_op`")]


def test_bad_luck_of_an_oracle_is_no_finding() -> None:
    class Unlucky(Guess):
        def oracle(self) -> str:
            return "10"

    rules = find_rules(["reachable", "not_hackable", "informative", "learnable"])
    few = {result.rule: result.status for result in run_rules(subject_of(Unlucky, 5), rules)}
    assert few == {"reachable": "pass", **dict.fromkeys(("not_hackable", "informative", "learnable"), "not run")}
    assert accusing(run_rules(subject_of(Unlucky, 20), rules)) == {"informative", "learnable"}


def test_a_slow_environment_is_played_less() -> None:
    class Sleepy(Guess):
        def step(self, action: str) -> Any:
            time.sleep(0.01)
            return super().step(action)

    slow = Subject(Sleepy, Settings(rule_seconds=0.5)).episodes(NoOp())
    assert 2 <= len(slow) < 20 and len(slow[0].actions) < 8 and not slow[0].ended
    assert len(Subject(Guess).episodes(NoOp())) == 20


# --- the rules themselves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_rule_describes_itself_and_its_limits(rule: rules_module.Rule) -> None:
    assert rule.claim.endswith(".") and len(rule.claim) < 240
    assert rule.limits.endswith("."), f"{rule.name} needs a paragraph that begins with 'Limits:'"
    assert list(inspect.signature(rule.function).parameters) == ["subject"]


def own_rule(subject: Subject) -> Verdict:
    """The first observation is short."""
    return Verdict([Finding("warning", "Too long.")], {"characters": len(subject.play(NO_OP, subject.jobs[0]).opening)})


def broken_rule(subject: Subject) -> Verdict:
    raise KeyError("lost")


class _Still(Policy):
    name = "still"

    def act(self, inputs: Any) -> list[str]:
        return ["" for _ in inputs]


NO_OP = _Still()


def test_users_add_rules_by_name_and_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    (rule,) = find_rules(["tests.audit.test_rules:own_rule"])
    result = run_rule(rule, Subject(Guess))
    assert (result.status, rule.claim, rule.limits) == ("warning", "The first observation is short.", "")
    assert result.measured["characters"] > 20
    point = EntryPoint("short_prompts", "tests.audit.test_rules:own_rule", rules_module.GROUP)
    monkeypatch.setattr(rules_module, "entry_points", lambda group: [point] if group == rules_module.GROUP else [])
    assert [rule.topic for rule in find_rules() if rule.name == "short_prompts"] == ["tests"]
    clash = EntryPoint("canary", "tests.audit.test_rules:own_rule", rules_module.GROUP)
    monkeypatch.setattr(rules_module, "entry_points", lambda group: [clash])
    with pytest.raises(ConfigurationError, match="built-in"):
        find_rules()


def test_a_rule_of_a_user_that_raises_gives_no_verdict() -> None:
    (rule,) = find_rules(["tests.audit.test_rules:broken_rule"])
    result = run_rule(rule, Subject(Guess))
    assert result.status == "not run" and "KeyError" in result.not_run


def test_what_time_goes_into_is_measured_first() -> None:
    assert [rule.name for rule in find_rules()] == ["cost", *(name for name in RULES if name != "cost")]
    assert [rule.name for rule in find_rules(["ends", "cost"])] == ["ends", "cost"]


def test_unknown_rules_are_refused_with_a_hint() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'same_seed'"):
        find_rules(["same_sed"])
    with pytest.raises(ConfigurationError, match="Unknown rule 'nothing'"):
        find_rules(skip=["nothing"])


def test_crashes_are_collected_once_under_one_rule() -> None:
    crash = Finding("error", "step raised.")
    results = [
        RuleResult("threads", not_run="broke", crashes=(crash,)),
        RuleResult("ends", crashes=(crash,)),
        RuleResult("survives"),
    ]
    collected = {result.rule: result for result in collect_crashes(results)}
    assert [finding.message for finding in collected["survives"].findings] == ["step raised."]
    assert (collected["threads"].status, collected["ends"].status) == ("not run", "pass")
    again = collect_crashes(collected.values())
    assert [len(result.findings) for result in again] == [0, 0, 1]
    restored = [RuleResult.from_dict(result.to_dict()) for result in again]
    assert restored == again


# --- the page --------------------------------------------------------------------------------------------------------


def rule_tables() -> str:
    """Returns the tables of the page: what each rule checks, and its limits, from the docstrings."""
    parts = []
    for topic in dict.fromkeys(rule.topic for rule in RULES.values()):
        rows = [f"| `{r.name}` | {r.claim} | {r.limits} |" for r in RULES.values() if r.topic == topic]
        parts.append(
            "\n".join([f"### {topic.capitalize()}", "", "| rule | checks | limits |", "| --- | --- | --- |", *rows])
        )
    return "\n\n".join(parts).replace("\\", "\\\\")


def player_table() -> str:
    """Returns the table of the players, from the docstrings."""
    known = {player.name: player for player in (*players(None), *players(Capitals()))}
    rows = [f"| `{p.name}` | {inspect.getdoc(p).splitlines()[0]} | {p.means} |" for p in known.values()]  # type: ignore[union-attr]
    rows += [f"| `{p.name}` | {p.does} | {p.means} |" for p in DERIVED]
    return "\n".join(["| player | what it does | if it is rewarded |", "| --- | --- | --- |", *rows])


@pytest.mark.parametrize("table", [rule_tables, player_table])
def test_the_page_has_what_the_docstrings_say(table: Any) -> None:
    assert table() in PAGES["docs/audit.md"], f"docs/audit.md must contain:\n\n{table()}"


def test_a_user_who_hangs_up_and_a_turn_that_is_the_last_are_no_faults() -> None:
    """A plain turn is a message, idle turns end the episode, and in one-turn environments any call does."""
    for env_id, names in (("Tau2Retail", ["feedback", "last_turn"]), ("BFCL", ["dead_backend"])):
        subject = Subject(lambda env_id=env_id: make_text_env(env_id, {"dataset": "sample"}), Settings(episodes=4))
        results = run_rules(subject, find_rules(names))
        assert {result.status for result in results} <= {"pass", "not applicable"}, results
