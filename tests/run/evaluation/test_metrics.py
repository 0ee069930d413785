"""Summaries: answers, reward terms and labels, against values worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent_r1_gym.run.evaluation.metrics import describe_answers, summarize
from agent_r1_gym.run.evaluation.run_folder import InfraFailure
from agent_r1_gym.run.record import Trajectory, Turn


def answered(index: int, answer: str | None, gold: tuple[str, ...] = ("0",), **labels: object) -> Trajectory:
    em = float(answer in gold)
    turns = (Turn("a", 0.5, {"em": 0.0, "order": 1.0}), Turn("b", em, {"em": em, "order": 1.0}))
    scores = {"em": em}
    return Trajectory(task_index=index, answer=answer, gold_answers=gold, scores=scores, turns=turns, labels=labels)


def test_a_constant_answer_is_shown_with_the_score_of_the_best_constant() -> None:
    golds = ["0"] * 31 + ["1"] * 20 + ["2"] * 9
    summary = summarize([answered(n, "0", (gold,)) for n, gold in enumerate(golds)], [], samples=1)
    assert summary["overall"]["metrics"]["em"]["mean"] == pytest.approx(31 / 60)
    assert summary["answers"] == {"distinct": 1, "none": 0, "most_frequent": {"0": 60}}
    assert summary["most_frequent_gold"] == {"answer": "0", "em": pytest.approx(31 / 60)}
    assert describe_answers(summary) == "one answer '0' (60 of 60 episodes); always answering '0' would score EM 0.517"


def test_answers_are_counted_as_they_are_compared_and_aliases_count_for_their_question() -> None:
    records = [
        answered(0, "The Oslo.", ("Oslo", "Christiania")),
        answered(1, "oslo", ("Oslo",)),
        answered(2, None, ("Rome",)),
        answered(3, "Paris", ("Christiania",)),
    ]
    summary = summarize(records, [], samples=1)
    assert summary["answers"] == {"distinct": 2, "none": 1, "most_frequent": {"oslo": 2, "paris": 1}}
    assert summary["most_frequent_gold"] == {"answer": "christiania", "em": 0.5}  # as many as "oslo": by letter


def test_samples_of_a_question_count_once_for_the_most_frequent_gold() -> None:
    records = [answered(0, "1", ("1",)), answered(1, "2", ("2",))]
    more = [
        Trajectory(task_index=0, sample=n, answer="1", gold_answers=("1",), scores={"em": 1.0}) for n in range(1, 4)
    ]
    summary = summarize([*records, *more], [], samples=4)
    assert summary["most_frequent_gold"] == {"answer": "1", "em": 0.5}


def test_several_samples_are_summarised_with_lost_episodes_as_wrong_too() -> None:
    """Question 0: right, lost; question 1: right, right; question 2: both lost."""
    records = [replace(answered(index, "0"), sample=sample) for index, sample in [(0, 0), (1, 0), (1, 1)]]
    failures = [InfraFailure(index, sample, "", "down", 2) for index, sample in [(0, 1), (2, 0), (2, 1)]]
    summary = summarize(records, failures, samples=2)
    assert summary["pass_hat_k"]["2"]["mean"] == 1.0  # of question 1 alone
    as_wrong = summary["best_of_k_counting_excluded_as_wrong"]
    means = {name: {k: value["mean"] for k, value in by_size.items()} for name, by_size in as_wrong.items()}
    half, third, two = pytest.approx(1 / 2), pytest.approx(1 / 3), pytest.approx(2 / 3)
    assert means == {
        "pass_at_k": {"1": half, "2": two},
        "pass_hat_k": {"1": half, "2": third},
        "majority_at_k": {"1": half, "2": two},  # one answer and none: the answer wins
    }
    assert "best_of_k_counting_excluded_as_wrong" not in summarize(records, [], samples=2)


def test_lost_episodes_are_wrong_only_where_episodes_are_scored() -> None:
    lost = [InfraFailure(1, sample, "", "down", 2) for sample in range(2)]
    without_scores = summarize([Trajectory(task_index=0, sample=sample) for sample in range(2)], lost, samples=2)
    assert without_scores["em_counting_excluded_as_wrong"] is None
    assert not any(without_scores["best_of_k_counting_excluded_as_wrong"].values())
    all_lost = summarize([], lost, samples=2)
    assert all_lost["em_counting_excluded_as_wrong"] == 0.0
    assert all_lost["best_of_k_counting_excluded_as_wrong"]["pass_at_k"]["2"]["mean"] == 0.0


def test_without_gold_answers_there_is_no_description() -> None:
    summary = summarize([Trajectory(task_index=0)], [], samples=1)
    assert (summary["most_frequent_gold"], describe_answers(summary)) == (None, "")


def test_reward_terms_are_summed_over_an_episode() -> None:
    summary = summarize([answered(0, "0"), answered(1, "1")], [], samples=1)
    terms = summary["overall"]["reward_terms"]
    assert {name: term["mean"] for name, term in terms.items()} == {"em": 0.5, "order": 2.0}


def test_questions_without_gold_do_not_count_for_the_most_frequent_gold() -> None:
    summary = summarize([answered(0, "3", ("3",)), answered(1, "3", ())], [], samples=1)
    assert summary["most_frequent_gold"] == {"answer": "3", "em": 1.0}


def test_every_labelled_episode_stands_in_one_row() -> None:
    values: list[object] = [1, 1.0, True, 10, 9, "None"]
    records = [answered(index, "0", level=value) for index, value in enumerate(values)]
    by = summarize([*records, answered(9, "0")], [], samples=1)["by"]["level"]
    assert {value: group["questions"] for value, group in by.items()} == {
        **{"1": 1, "1.0": 1, "9": 1, "10": 1, "None": 1, "True": 1}
    }
    assert list(by) == ["1", "1.0", "9", "10", "None", "True"]


def test_an_own_term_may_have_the_name_of_a_metric() -> None:
    turns = (Turn("a", 0.0, {"support_recall": 2.0}),)
    records = [Trajectory(task_index=index, turns=turns) for index in range(5)]
    assert summarize(records, [], samples=1)["overall"]["reward_terms"]["support_recall"]["mean"] == 2.0


def test_results_are_broken_down_by_labels_of_few_values() -> None:
    records = [
        answered(n, "0", level=("hard", "easy")[n % 2], hops=n % 12, row=n, city="Oslo", type="one") for n in range(40)
    ]
    by = summarize(records, [], samples=1)["by"]
    assert list(by) == ["type", "hops", "level"]  # type and hops always; row has too many values, city one
    assert list(by["hops"]) == [str(number) for number in range(12)]
    assert {value: group["questions"] for value, group in by["level"].items()} == {"easy": 20, "hard": 20}


def test_a_majority_votes_by_what_the_scorer_holds_equal() -> None:
    """Four of six samples say 72, in words that differ; two say 13."""
    texts = ["72", "13", "72.0", "72 clips", "13", "$72"]
    records = [
        Trajectory(
            task_index=0,
            sample=n,
            answer=text,
            gold_answers=("72",),
            scorer="gsm8k",
            scores={"em": float("72" in text)},
        )
        for n, text in enumerate(texts)
    ]
    summary = summarize(records, [], samples=6)
    assert summary["majority_at_k"]["6"]["mean"] == 1.0
    assert summary["answers"] == {"distinct": 2, "none": 0, "most_frequent": {"72": 4, "13": 2}}


def test_wrong_answers_that_are_equal_vote_together_too() -> None:
    texts = ["9", "9.0", "$9", "5", "5"]
    records = [
        Trajectory(task_index=0, sample=n, answer=text, gold_answers=("5",), scores={"em": float(text == "5")})
        for n, text in enumerate(texts)
    ]
    assert summarize(records, [], samples=5)["majority_at_k"]["5"]["mean"] == 0.0


def test_letters_and_articles_are_different_votes_and_constants() -> None:
    records = [
        Trajectory(
            task_index=n, answer=answer, gold_answers=("A",), scorer="plain", scores={"em": float(answer == "A")}
        )
        for n, answer in enumerate(["A", "The", "!", "A"])
    ]
    summary = summarize(records, [], samples=1)
    assert summary["answers"]["most_frequent"] == {"a": 2, "!": 1, "the": 1}
    assert summary["most_frequent_gold"] == {"answer": "a", "em": 1.0}


def test_the_best_constant_is_counted_by_the_scorer() -> None:
    golds = ["so it is\n#### 5", "5", "#### 5.0", "7"]
    records = [
        Trajectory(task_index=n, answer="5", gold_answers=(gold,), scorer="gsm8k", scores={"em": float("5" in gold)})
        for n, gold in enumerate(golds)
    ]
    assert summarize(records, [], samples=1)["most_frequent_gold"] == {"answer": "5", "em": 0.75}
