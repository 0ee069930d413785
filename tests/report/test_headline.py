"""The first screen: verdicts are true, and warnings are complete."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.cli.main import main
from agent_r1_gym.report.evaluation import read_evaluation_runs
from agent_r1_gym.report.page import RunCard
from agent_r1_gym.report.runs import evaluation_cards, training_cards, write_report
from agent_r1_gym.report.training import read_training_run
from agent_r1_gym.run.record import Trajectory
from tests.kit.reports import episodes, write_run


def judged(number: int, right: int, **changes: Any) -> list[Trajectory]:
    """Episodes of which the first `right` are right; each question has a gold answer of its own."""
    return [
        replace(
            row,
            answer=f"gold {at}" if at < right else f"wrong {at}",
            gold_answers=(f"gold {at}",),
            scores={**row.scores, "em": float(at < right)},
            **changes,
        )
        for at, row in enumerate(episodes(number, corpus=10))
    ]


def cards_of(*paths: Path, baseline: int = 0) -> list[RunCard]:
    runs = read_evaluation_runs(paths)
    return evaluation_cards(runs, runs[baseline])


@pytest.mark.slow
def test_the_verdict_is_the_paired_test_against_the_baseline(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", judged(60, 10), policy="base", env_options={"split": "test"})
    better = write_run(tmp_path / "better", judged(60, 40), policy="better", env_options={"split": "test"})
    same = write_run(tmp_path / "same", judged(60, 11), policy="same", env_options={"split": "test"})
    first, second, third = cards_of(base, better, same)
    assert (first.verdict, first.trend) == ("EM 0.167 on 60 questions of the split 'test'.", "flat")
    assert second.verdict.startswith("EM 0.167 → 0.667 on 60 questions of the split 'test' (+0.500 [+0.3")
    assert second.trend == "up" and "p\u00a0<\u00a00.001" in second.verdict
    assert third.trend == "flat" and "no significant difference" in third.verdict
    worse = cards_of(base, better, same, baseline=1)[0]
    assert worse.trend == "down" and worse.verdict.startswith("EM 0.667 → 0.167")


def test_a_change_is_that_of_the_questions_that_both_finished(tmp_path: Path) -> None:
    """The baseline fails only in questions that the other has not finished."""
    base = write_run(tmp_path / "base", judged(20, 10), policy="base")
    part = write_run(tmp_path / "part", judged(10, 10), policy="part", questions=20)
    (_, card) = cards_of(base, part)
    assert card.verdict.startswith("EM 1.000 → 1.000 on 10 questions that both finished: no significant difference")


@pytest.mark.slow
def test_other_questions_are_not_compared(tmp_path: Path) -> None:
    base = write_run(tmp_path / "base", judged(20, 2))
    other = write_run(tmp_path / "other", judged(20, 18), question_hash="another")
    assert "not compared" in cards_of(base, other)[1].verdict


def test_a_constant_answer_causes_warnings(tmp_path: Path) -> None:
    rows = [replace(row, answer="0", gold_answers=("0" if at < 31 else "1",), scores={"em": float(at < 31)})
            for at, row in enumerate(episodes(60, corpus=10))]  # fmt: skip
    (card,) = cards_of(write_run(tmp_path / "run", rows))
    assert "Always answering '0', the most frequent gold answer, would score no less: EM 0.517." in card.warnings
    assert "It gives one answer to every question: '0'." in card.warnings


@pytest.mark.slow
def test_tasks_without_answers_are_judged_by_their_return(tmp_path: Path) -> None:
    def rows(value: float) -> list[Trajectory]:
        return [
            replace(row, answer=None, gold_answers=(), scores={}, end_reason="goal",
                    turns=(replace(row.turns[0], reward=value + at % 3, reward_terms={"ordered": value}),))
            for at, row in enumerate(episodes(30, corpus=10))
        ]  # fmt: skip

    runs = [write_run(tmp_path / name, rows(value), policy=name) for name, value in (("a", 0.0), ("b", 1.5))]
    first, second = cards_of(*runs)
    assert first.verdict == "return 1.000 on 30 questions."
    assert second.verdict.startswith("return 1.000 → 2.500 on 30 questions (+1.500") and second.trend == "up"
    write_report(runs, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "share of episodes by return" in page and "reward terms, summed" in page and "EM by" not in page


def training(folder: Path, rewards: list[float], **about: Any) -> RunCard:
    folder.mkdir(parents=True)
    log = [{"step": step, "reward": reward} for step, reward in enumerate(rewards, 1)]
    log.append({"step": 1, "eval_reward": 0.25})  # type: ignore[dict-item]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    if about:
        (folder / "training.json").write_text(json.dumps(about))
    run = read_training_run(folder)
    assert run is not None
    (card,) = training_cards([run])
    return card


@pytest.mark.parametrize(
    ("rewards", "trend", "words"),
    [
        ([0.1 + 0.01 * (at % 3) for at in range(20)] + [0.9] * 20, "up", "Return 0.109 → 0.900"),
        ([0.9] * 20 + [0.1] * 20, "down", "FELL"),
        ([0.5, 0.4, 0.6] * 10, "flat", "no change beyond the noise"),
        ([0.1, 0.9], "flat", "too few to judge"),
        ([], "flat", "No step is logged yet"),
    ],
)
def test_a_training_card_judges_the_run(tmp_path: Path, rewards: list[float], trend: str, words: str) -> None:
    card = training(tmp_path / "run", rewards)
    assert card.trend == trend and words in card.verdict
    assert ("held-out return", "0.250 → 0.250") in card.figures


def fine_tuning(folder: Path, losses: list[float], **state: Any) -> RunCard:
    """A run as `agent-r1 sft` writes it."""
    folder.mkdir(parents=True)
    log: list[dict[str, float]] = [
        {"step": 2 * at, "loss": loss, "mean_token_accuracy": 1 - loss / 4, "learning_rate": 1e-5}
        for at, loss in enumerate(losses, 1)
    ]
    log += [{"step": 2 * len(losses), "eval_loss": 0.5}, {"step": 2 * len(losses) + 1, "train_loss": 1.0}]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": log, **state}))
    run = read_training_run(folder)
    assert run is not None
    (card,) = training_cards([run])
    return card


@pytest.mark.parametrize(
    ("losses", "trend", "words"),
    [
        (
            [2.0 - 0.01 * (at % 3) for at in range(20)] + [0.5] * 20,
            "up",
            "Loss 1.991 → 0.500 over 40 logged steps: it fell",
        ),
        ([0.5] * 20 + [2.0] * 20, "down", "it ROSE"),
        ([0.5, 0.4, 0.6] * 10, "flat", "no change beyond the noise"),
        ([], "flat", "No step is logged yet"),
    ],
)
def test_a_card_of_fine_tuning_judges_the_loss(tmp_path: Path, losses: list[float], trend: str, words: str) -> None:
    steps = 2 * len(losses) + 1
    card = fine_tuning(tmp_path / "run", losses, global_step=steps)
    assert card.trend == trend and words in card.verdict
    assert ("steps", f"{steps}") in card.figures and ("held-out loss", "0.500 → 0.500") in card.figures
    if losses:
        accuracies = [f"{1 - loss / 4:.3f}" for loss in (losses[0], losses[-1])]
        assert ("token accuracy", " → ".join(accuracies)) in card.figures
    write_report([tmp_path / "run"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert (">loss per token<" in page) == (">token accuracy<" in page) == bool(losses)


def test_the_loss_of_reinforcement_learning_is_not_shown(tmp_path: Path) -> None:
    log = [{"step": step, "reward": 0.5, "loss": 1e-9} for step in range(5)]
    log.append({"step": 4, "eval_reward": 0.5, "eval_loss": 1e-9})
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": log, "global_step": 5}))
    write_report([tmp_path], tmp_path / "page.html")
    assert "loss per token" not in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_an_alarm_is_named_and_where_the_run_comes_from(tmp_path: Path) -> None:
    start = {"date": "2026-01-02T03:04:05+0000", "command": ["/x/agent-r1", "train", "My env"], "model": "some/model",
             "environment": "FictionQA", "commit": "abc123", "versions": {"trl": "1.2"},
             "reward_weights": {"em": 1.0}, "settings": {"learning_rate": 3e-4}}  # fmt: skip
    card = training(tmp_path / "run", [0.5] * 4, invocations=[start], stop_reason="entropy is 0.01")
    assert card.warnings == ["Stopped by an alarm: entropy is 0.01."]
    assert card.subtitle == "training, FictionQA, from some/model"
    write_report([tmp_path / "run"], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8").partition('id="provenance"')[2]
    for words in ("agent-r1 train &#x27;My env&#x27;", "2026-01-02", "some/model", "abc123", "trl 1.2", "em 1.0",
                  "<dt>learning rate</dt><dd>0.0003</dd>"):  # fmt: skip
        assert words in page, words


def test_the_provenance_of_an_evaluation_is_complete(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", episodes(3, corpus=10), env_options={"split": "test"})
    write_report([run], tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8").partition('id="provenance"')[2]
    for name in ("command", "date", "versions", "python", "dataset", "policy", "seed", "seconds"):
        assert f"<dt>{name}</dt>" in page, name


@pytest.mark.slow
def test_the_baseline_may_be_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_run(tmp_path / name, judged(40, right), policy=name) for name, right in (("a", 5), ("b", 30))]
    page = tmp_path / "page.html"
    assert main(["report", str(runs[1]), "--baseline", str(runs[0]), "--out", str(page)]) == 0
    assert "EM 0.125 → 0.750" in page.read_text(encoding="utf-8")
    (tmp_path / "none").mkdir()
    assert main(["report", str(runs[1]), "--baseline", str(tmp_path / "none"), "--out", str(page)]) == 2
    assert "none" in capsys.readouterr().err
