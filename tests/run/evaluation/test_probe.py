"""The verdict of a probe, against numbers worked by hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from agent_r1_gym.core.types import Task
from agent_r1_gym.run.evaluation.probe import (
    NORMAL,
    ProbeResult,
    VerdictRule,
    analyse_probe,
    chance_level,
    conditions,
    scores,
)
from agent_r1_gym.run.record import Trajectory


def episodes(answers: Sequence[str | None]) -> list[Trajectory]:
    return [
        Trajectory(task_index=index, answer=answer, labels={"hops": 1 + index % 2})
        for index, answer in enumerate(answers)
    ]


def truths(golds: Iterable[str]) -> dict[int, tuple[str, ...]]:
    return {index: (gold,) for index, gold in enumerate(golds)}


def tasks(golds: Sequence[str], stated: Sequence[str], kind: str = "author") -> list[Task]:
    pairs = enumerate(zip(golds, stated, strict=True))
    return [
        Task(str(at), "?", (gold,), {"counterfactual_answers": (stated,), "path": ("x", kind)})
        for at, (gold, stated) in pairs
    ]


GOLDS = [f"gold {number}" for number in range(40)]
STATED = [f"stated {number}" for number in range(40)]
NONE = [None] * 40


def probe(
    answers: Mapping[str, Sequence[str | None]], stated: Sequence[str] = STATED, infra_failures: int = 0
) -> ProbeResult:
    return analyse_probe(
        {name: episodes(given) for name, given in answers.items()}, tasks(GOLDS, stated), infra_failures=infra_failures
    )


def test_answers_are_right_by_normalised_exact_match() -> None:
    records = episodes(["The Gold 0!", None, "gold 3"])
    assert scores(records, truths(GOLDS)) == {0: 1.0, 1: 0.0, 2: 0.0}
    assert scores(records, {1: ("gold 1",)}) == {1: 0.0}
    assert scores(records, {3: ("gold 3",), 2: ("other name", "Gold 3")}) == {2: 1.0}


def test_chance_is_what_the_answers_are_worth_for_other_questions() -> None:
    """Truths x x y z, always "x": the first two are right for 1 of 3 others, the last two for 2 of 3."""
    golds, kinds = truths("xxyz"), dict.fromkeys(range(4), "author")
    assert chance_level(episodes(["x"] * 4), golds, kinds) == pytest.approx((1 / 3 + 1 / 3 + 2 / 3 + 2 / 3) / 4)
    assert chance_level(episodes([*"xxyz"]), golds, kinds) == pytest.approx((1 / 3 + 1 / 3) / 4)
    assert chance_level(episodes([None] * 4), golds, kinds) == 0
    twice = golds | {
        3: ("z", "x")
    }  # with a second name of the last, "x" is right for 2 of 3, 2 of 3, 3 of 3 and 2 of 3
    assert chance_level(episodes(["x"] * 4), twice, kinds) == pytest.approx((2 + 2 + 3 + 2) / 3 / 4)
    apart = {0: "author", 1: "genre", 2: "author", 3: "genre"}  # an x of another relation is not a guess for this one
    assert chance_level(episodes(["x"] * 4), golds, apart) == pytest.approx((0 + 0 + 1 + 1) / 4)


def test_who_reads_follows_the_passages() -> None:
    result = probe({NORMAL: GOLDS, "nothing_found": NONE, "counterfactual": STATED})
    assert result.verdict.reads is True and "READS" in result.verdict.message
    rows = {(row.condition, row.reference): row for row in result.rows}
    assert rows["counterfactual", "passages"].em["all"].mean == 1
    assert rows["counterfactual", "old truth"].em["all"].mean == 0
    assert [rows[NORMAL, "world"].em[hops].mean for hops in ("all", "1", "2")] == [1, 1, 1]
    test = rows["nothing_found", "world"].difference
    assert test is not None and test.difference == -1
    assert rows["nothing_found", "world"].p_value == pytest.approx(2 / 2**40)
    assert rows[NORMAL, "world"].difference is None


@pytest.mark.parametrize(
    ("answers", "broken"),
    [
        ({NORMAL: GOLDS, "nothing_found": GOLDS, "counterfactual": GOLDS}, [1, 2, 3]),
        ({NORMAL: GOLDS, "nothing_found": GOLDS, "counterfactual": STATED}, [1]),
        ({NORMAL: GOLDS, "nothing_found": NONE, "counterfactual": GOLDS}, [2, 3]),
        ({NORMAL: GOLDS, "nothing_found": NONE, "counterfactual": NONE}, [2]),
        ({NORMAL: NONE, "nothing_found": NONE, "counterfactual": NONE}, [0]),
        ({NORMAL: GOLDS[:2] + NONE[2:], "nothing_found": NONE, "counterfactual": STATED}, [0]),  # .05 is not above .05
        ({NORMAL: GOLDS, "nothing_found": GOLDS[:2] + NONE[2:], "counterfactual": STATED[:36] + NONE[36:]}, []),
        ({NORMAL: GOLDS, "nothing_found": GOLDS[:3] + NONE[3:], "counterfactual": STATED[:35] + NONE[35:]}, [1, 2]),
    ],
)
def test_each_rule_can_be_broken(answers: Mapping[str, Sequence[str | None]], broken: list[int]) -> None:
    verdict = probe(answers).verdict
    assert [number for number, rule in enumerate(verdict.rules) if not rule.holds] == broken
    assert verdict.reads is not bool(broken)
    assert all(f"'{verdict.rules[number].description}'" in verdict.message for number in broken)


def test_the_old_truth_counts_only_where_the_passages_give_another() -> None:
    stated = [*GOLDS[:30], *STATED[30:]]
    result = probe({NORMAL: GOLDS, "nothing_found": NONE, "counterfactual": stated}, stated)
    old = next(row for row in result.rows if row.reference == "old truth")
    assert old.questions == 10 and old.em["all"].mean == 0
    assert result.verdict.reads


def test_what_a_constant_answer_reaches_is_chance_and_no_memory() -> None:
    golds = ["same"] * 12 + GOLDS[12:]
    constant = episodes(["same"] * 40)
    normal = episodes(golds)
    result = analyse_probe(
        {NORMAL: normal, "nothing_found": constant, "counterfactual": episodes(STATED)}, tasks(golds, STATED)
    )
    rule = result.verdict.rules[1]
    chance = (12 * 11 + 28 * 12) / 39 / 40
    assert rule.value == pytest.approx(0.3) and rule.holds
    assert rule.limit == pytest.approx(chance + 1.645 * (chance * (1 - chance) / 40) ** 0.5)


def test_lost_episodes_leave_the_verdict_open() -> None:
    result = probe({NORMAL: GOLDS[:20], "nothing_found": [], "counterfactual": STATED}, infra_failures=60)
    assert result.verdict.reads is None and "60 episodes" in result.verdict.message
    assert next(row for row in result.rows if row.condition == "nothing_found").em == {}
    row = next(row for row in result.rows if row.reference == "passages")
    assert row.questions == 40 and row.difference is not None  # of the 20 questions that both have
    assert result.to_dict()["reads"] is None


def test_a_rule_shows_its_values() -> None:
    assert VerdictRule("this", 0.5, "<=", 0.5).message == "this: 0.500 <= 0.500 holds"
    assert VerdictRule("this", 0.5, ">", 0.5).message == "this: 0.500 > 0.500 FAILS"


def test_conditions_of_the_styles() -> None:
    compact, natural = ([condition.name for condition in conditions(style, 1)] for style in ("compact", "natural"))
    assert compact[0] == natural[0] == NORMAL
    assert set(compact) ^ set(natural) == {"no_question_mark", "reversed_chain", "other_words"}
    assert [conditions("compact", k)[-1].options for k in (1, 3)] == [{"top_k": 3}, {"top_k": 5}]
