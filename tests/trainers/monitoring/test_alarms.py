"""Alarms: when they stop, and what they leave behind; episodes that a process hangs on."""

from __future__ import annotations

import logging
import re
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.session import Job, Session
from tests.kit.samples import samples
from tests.kit.small_runs import give, make_args, make_trainer, make_trajectory, play
from tests.trainers.rollouts.test_collect import CALL, CHAT, LIMITS, lookup_env
from trainers.monitoring import alarms
from trainers.monitoring.alarms import ALARM_RULES, CollapseAlarm, log_stuck_episodes, stuck_episodes_message

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def feed(alarm: CollapseAlarm, *logs: dict[str, Any], **others: Any) -> list[tuple[bool, bool]]:
    """Returns for each log whether the alarm asked to stop and to save."""
    asked = []
    for each in logs:
        control = TrainerControl()
        healthy = {"grad_norm": 1.0, "entropy": 1.0, "rollout/infra_failures": 0.0}
        alarm.on_log(None, TrainerState(), control, logs=healthy | each, **others)
        asked.append((control.should_training_stop, control.should_save))
    return asked


def test_stops_when_a_number_stays_beyond_its_threshold(tmp_path: Path) -> None:
    alarm = CollapseAlarm(make_args(tmp_path, alarm_entropy_below=0.5, alarm_patience=2))
    low, high = {"entropy": 0.1}, {"entropy": 0.6}
    assert feed(alarm, low, high, low) == [(False, False)] * 3
    assert alarm.reason is None
    assert feed(alarm, low) == [(True, True)]
    assert alarm.reason == "entropy is 0.1, beyond alarm_entropy_below=0.5"


def test_gradient_that_is_not_finite_stops_at_once_and_saves_nothing(tmp_path: Path) -> None:
    alarm = CollapseAlarm(make_args(tmp_path))
    assert feed(alarm, {"grad_norm": float("nan")}) == [(True, False)]
    assert "grad_norm is nan" in str(alarm.reason)
    control = TrainerControl(should_save=True, should_evaluate=True)  # which are due at this step
    alarm.on_log(None, TrainerState(), control, logs={"grad_norm": float("inf"), "entropy": 1.0})
    assert (control.should_training_stop, control.should_save, control.should_evaluate) == (True, False, False)


def test_steps_that_fp16_skips_stop_only_if_there_is_no_end_of_them(tmp_path: Path) -> None:
    """The scale of the loss is found so: it is halved at each overflow, whose step changes nothing."""
    skipped, taken = (SimpleNamespace(step_was_skipped=skips) for skips in (True, False))
    alarm, overflow = CollapseAlarm(make_args(tmp_path)), {"grad_norm": float("inf")}
    for _ in range(3):
        assert feed(alarm, *[overflow] * 10, optimizer=skipped) == [(False, False)] * 10
        assert feed(alarm, {}, optimizer=taken) == [(False, False)]
    assert feed(alarm, *[overflow] * 20, optimizer=skipped) == [(False, False)] * 19 + [(True, False)]
    assert feed(CollapseAlarm(make_args(tmp_path)), overflow, optimizer=taken) == [(True, False)]


def test_number_that_nobody_brings(tmp_path: Path) -> None:
    alarm = CollapseAlarm(make_args(tmp_path, alarm_calls_below=0.5))
    with pytest.raises(
        ConfigurationError, match=r"alarm_calls_below=0\.5, but the rollouts have no metric 'rollout/calls'"
    ):
        feed(alarm, {})
    assert feed(alarm, {"rollout/calls": 0.9}) == [(False, False)]


def test_step_that_logs_no_rollouts_counts_neither_way(tmp_path: Path) -> None:
    alarm = CollapseAlarm(make_args(tmp_path, alarm_calls_below=0.5, alarm_patience=2))
    assert feed(alarm, {"rollout/calls": 0.1}) == [(False, False)]
    alarm.on_log(None, TrainerState(), TrainerControl(), logs={"grad_norm": 1.0, "entropy": 1.0})
    assert feed(alarm, {"rollout/calls": 0.1}) == [(True, True)]


def test_logs_of_an_evaluation_are_let_pass(tmp_path: Path) -> None:
    control = TrainerControl()
    CollapseAlarm(make_args(tmp_path)).on_log(None, TrainerState(), control, logs={"eval_loss": float("nan")})
    assert not control.should_training_stop


SAME = {"group/frac_zero_std": 1.0, "reward": 0.0}


def test_groups_without_signal_for_many_steps_warn_once_and_say_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alarm = CollapseAlarm(make_args(tmp_path, alarm_zero_std_steps=3))
    assert feed(alarm, *[SAME] * 2, SAME | {"group/frac_zero_std": 0.9}, *[SAME] * 2) == [(False, False)] * 5
    assert not caplog.records
    assert feed(alarm, *[SAME] * 5, {"group/frac_zero_std": 0.0}, *[SAME] * 5) == [(False, False)] * 11
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    for words in ("In 3 logged steps", "mean reward 0", "cannot call the tools", "too hard or too easy", "temperature"):
        assert words in record.getMessage()


@samples(
    ("algorithm", "warned"),
    [
        ({"algorithm": "reinforce++", "num_generations": 4}, False),  # prompts are compared with each other
        ({"algorithm": "ppo", "num_generations": 4}, False),
        ({"algorithm": "reinforce++", "num_generations": 1}, True),  # the batch is one group
        ({"algorithm": "reinforce++-baseline", "num_generations": 4}, True),
    ],
)
def test_groups_without_signal_are_left_alone_where_no_group_is_a_baseline(
    tmp_path: Path, algorithm: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    feed(CollapseAlarm(make_args(tmp_path, alarm_zero_std_steps=3, **algorithm)), *[SAME] * 3)
    assert bool(caplog.records) == warned


@pytest.mark.parametrize(
    ("returns", "algorithm", "warned"),
    [
        ([0.1] * 8, {"algorithm": "grpo"}, True),
        ([0.1] * 8, {"algorithm": "reinforce++", "num_generations": 1}, True),
        ([0.1] * 7 + [0.2], {"algorithm": "reinforce++", "num_generations": 1}, False),  # the batch is one group
    ],
)
@pytest.mark.slow
def test_groups_without_signal_are_warned_of_once_and_never_stop(
    tmp_path: Path, returns: list[float], algorithm: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    batch = give([make_trajectory([2, 5], [([12, 3], each, [])]) for each in returns])
    trainer = make_trainer(tmp_path, batch, **algorithm, alarm_zero_std_steps=3, max_steps=5, logging_steps=1)
    trainer.train()
    assert (trainer.state.global_step, trainer.alarm.reason) == (5, None)
    warnings = [record.getMessage() for record in caplog.records if "In 3 logged steps" in record.getMessage()]
    assert len(warnings) == warned
    assert all("every rollout returned the same" in text and "cold start" in text for text in warnings)


@pytest.mark.slow
def test_healthy_training_is_left_alone(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, play, max_steps=6, logging_steps=1, alarm_patience=1, alarm_repetition_above=0.9)
    trainer.train()
    assert trainer.state.global_step == 6
    assert trainer.alarm.reason is None


@samples(
    ("options", "logs", "words"),
    [
        ({"alarm_entropy_below": 0.5}, {"entropy": 0.1}, ("learning rate", "beta 0.001", "temperature")),
        ({"alarm_entropy_above": 1.0}, {"entropy": 1.2}, ("entropy bonus", "logprob_drift_mean", "entropy_coef 0")),
        ({"alarm_repetition_above": 0.5}, {"rollout/repetition": 0.9}, ("loops", "max_turn_tokens", "agent-r1 sft")),
        ({"alarm_calls_below": 0.5}, {"rollout/calls": 0.1}, ("answers without calls", "malformed_turns", "guess")),
        ({}, {"rollout/infra_failures": 0.9}, ("backend", "resume-from-checkpoint", "infrastructure_retries")),
        ({"alarm_answer_share_above": 0.8}, {"rollout/answer_share": 0.9}, ("one answer", "balanced", "more prompts")),
    ],
)
def test_a_stop_is_loud_and_says_why_and_what_to_try(
    options: dict[str, Any], logs: dict[str, Any], words: tuple[str, ...], tmp_path: Path, caplog: Any
) -> None:
    alarm = CollapseAlarm(make_args(tmp_path, **options, alarm_patience=1))
    assert feed(alarm, logs) == [(True, True)]
    (record,) = caplog.records
    said = record.getMessage()
    assert record.levelname == "ERROR"
    assert said.startswith(f"Stopped at step 0: {alarm.reason}.\nLikely: ")
    assert "\nTry: " in said
    assert all(word in said for word in words)


def test_every_alarm_of_the_configuration_has_reasons_and_remedies(tmp_path: Path) -> None:
    args = make_args(tmp_path)
    thresholds = {name for name in vars(args) if re.fullmatch(r"alarm_\w+_(above|below)", name)}
    assert thresholds - {"alarm_drift_above", "alarm_reward_drop_below"} == set(ALARM_RULES)
    assert all(rule.direction == (1 if name.endswith("above") else -1) for name, rule in ALARM_RULES.items())


def test_entropy_of_a_step_without_a_token_in_the_loss_counts_neither_way(tmp_path: Path) -> None:
    alarm = CollapseAlarm(make_args(tmp_path, alarm_entropy_below=0.5, alarm_patience=2))
    low, unknown = {"entropy": 0.1}, {"entropy": None}
    assert feed(alarm, low, unknown, low) == [(False, False)] * 2 + [(True, True)]


@samples(
    ("algorithm", "warned"), [({}, True), ({"algorithm": "opd"}, False), ({"distillation_failures_only": True}, True)]
)
def test_a_teacher_teaches_whatever_the_returns_are(
    tmp_path: Path, algorithm: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    teacher = {"teacher_privileged": "answer", "distillation_weight": 1.0} if algorithm else {}
    feed(CollapseAlarm(make_args(tmp_path, alarm_zero_std_steps=3, **teacher, **algorithm)), *[SAME] * 3)
    assert bool(caplog.records) == warned


ALIKE = {"rollout/answer_share": 0.95, "rollout/gold_share": 0.5}


def test_one_answer_to_everything_warns_once_where_it_cannot_be_right(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    skewed = ALIKE | {"rollout/gold_share": 0.9}  # most tasks accept the same: the one answer may be right
    alarm = CollapseAlarm(make_args(tmp_path, alarm_patience=2))
    assert not any(stop for stop, _ in feed(alarm, *[skewed] * 5, ALIKE, {}, skewed, ALIKE))
    assert not caplog.records
    assert not any(stop for stop, _ in feed(alarm, *[ALIKE] * 9))
    (record,) = caplog.records
    assert (
        "95% of the rollouts gave the same answer, though no accepted answer holds for more than 50%"
        in record.getMessage()
    )
    assert "To stop then: --alarm-answer-share-above 0.9" in record.getMessage()


def test_an_alarm_on_answers_that_never_differ_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    alarm = CollapseAlarm(make_args(tmp_path, alarm_answer_share_above=0.8))
    feed(alarm, *[{}] * 50)
    (record,) = caplog.records
    assert "has watched nothing in 20 logs" in record.getMessage()
    seen = CollapseAlarm(make_args(tmp_path, alarm_answer_share_above=0.8))
    feed(seen, {"rollout/answer_share": 0.1}, *[{}] * 50)
    assert len(caplog.records) == 1


@pytest.mark.slow
def test_the_share_of_the_most_frequent_answer_is_logged_where_tasks_differ(tmp_path: Path) -> None:
    def answering(*answers: str | None) -> Any:
        batch = [make_trajectory([2, 5], [([12, 3], 0.1 * number, [])]) for number in range(8)]
        golds = ["0"] * 4 + ["1"] * 4
        return [
            replace(record, answer=answer, gold_answers=(gold,))
            for record, answer, gold in zip(batch, answers, golds, strict=True)
        ]

    def logged(records: Any) -> dict[str, float]:
        trainer = make_trainer(tmp_path, give(records), logging_steps=1)
        trainer.train()
        return {name: trainer.state.log_history[0].get(f"rollout/{name}") for name in ("answer_share", "gold_share")}

    assert logged(answering("0", " 0", *["0"] * 4, "1", None)) == {"answer_share": 0.75, "gold_share": 0.5}
    same = [replace(record, gold_answers=("0",)) for record in answering(*["0"] * 8)]
    assert logged(same) == {"answer_share": None, "gold_share": None}


def test_calls_that_fall_to_nearly_none_warn_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    few, many, none = ({"rollout/calls": calls} for calls in (0.3, 2.0, 0.1))
    alarm = CollapseAlarm(make_args(tmp_path, alarm_patience=2))
    feed(alarm, few, *[{"rollout/calls": 0.0}] * 5, many, none, many, none)  # never many, or not for long
    assert not caplog.records
    assert not any(stop for stop, _ in feed(alarm, *[none] * 5))
    (record,) = caplog.records
    assert "Calls per rollout have fallen from 2 to 0.1" in record.getMessage()
    assert "To stop then: --alarm-calls-below 0.2." in record.getMessage()


@samples(
    ("rewards", "stopped_at"),
    [
        ([0.4] * 5 + [0.1, 0.1], 7),  # below half of .4, twice
        ([0.4] * 5 + [0.1, 0.3, 0.1], None),  # not in a row
        ([0.4] * 5 + [0.2, 0.2], None),  # not below half
        ([0.4] * 4 + [0.1, 0.1], None),  # no mean of five before: .34 at the sixth, and the run ends
        ([0.1] * 5 + [0.8] * 5 + [0.3, 0.3], 12),  # the best mean counts, not the first
        ([-0.4] * 5 + [-1.0] * 3, None),  # nothing to lose
        ([0.4] * 6 + [None, 0.4], None),  # all rollouts of a step were lost
        ([0.4] * 5 + [0.1, None, 0.1], 8),  # which counts neither way
    ],
)
def test_a_reward_that_stays_below_a_share_of_its_best_stops(
    tmp_path: Path, rewards: list[float | None], stopped_at: int | None
) -> None:
    alarm, state = CollapseAlarm(make_args(tmp_path, alarm_reward_drop_below=0.5, alarm_patience=2)), TrainerState()
    stops = []
    for state.global_step, reward in enumerate(rewards, start=1):
        control, logs = (
            TrainerControl(),
            {"grad_norm": 1.0, "entropy": 1.0, "rollout/infra_failures": 0.0, "reward": reward},
        )
        state.log_history.append(logs)
        alarm.on_log(None, state, control, logs=logs)
        stops += [state.global_step] * control.should_training_stop
    assert stops[:1] == ([] if stopped_at is None else [stopped_at])
    if stopped_at is not None:
        assert "below alarm_reward_drop_below=0.5 of its best mean over 5 steps" in str(alarm.reason)


def opened(player: Player, seed: int) -> Session:
    return player.open(lookup_env(), Job(0, 0, seed=seed), ThreadPoolExecutor(1))


def test_what_each_episode_waits_for_the_longest_first() -> None:
    player, answer = Player(lookup_env, chat=CHAT, limits=LIMITS), threading.Event()
    with ThreadPoolExecutor(1) as executor:
        env = lookup_env(lambda: "found" if answer.wait(30) else "nothing", timeout=30.0)
        stuck = player.open(env, Job(1, 0, seed=7), executor)
        writes = player.open(lookup_env(), Job(0, 0, seed=5), executor)
        ids = CHAT.tokenizer(CALL, add_special_tokens=False)["input_ids"]
        reply = stuck.finish_turn([*ids, CHAT.stop_id], [0.0] * (len(ids) + 1), True)  # type: ignore[attr-defined]
        assert isinstance(reply, Future)
        stuck.phase_started_at -= 100
        text = stuck_episodes_message([writes, stuck], rank=3, seconds=620.4)
        answer.set()
        reply.result()
        assert not stuck.stepping
    lines = [re.sub(r"\d+ s$", "N s", line) for line in text.splitlines()]
    assert lines == [
        "Process 3 still plays 2 episodes after 620 s, and others may wait for it:",
        "  task 1, seed 7, turn 0: in a step of ToolEnv for N s",
        "  task 0, seed 5, turn 0: the model generates for N s",
    ]


def test_no_more_than_a_few_are_named() -> None:
    player = Player(lookup_env, chat=CHAT, limits=LIMITS)
    lines = stuck_episodes_message([opened(player, seed) for seed in range(10)], rank=0, seconds=1).splitlines()
    assert len(lines) == 10
    assert lines[-1] == "  and 2 more"


def test_it_speaks_while_episodes_are_played_and_not_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarms, "STUCK_SECONDS", 0.01)
    said = threading.Event()

    class Said(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.set()

    logger, handler = logging.getLogger("trainers.monitoring.alarms"), Said()
    logger.addHandler(handler)
    try:
        with log_stuck_episodes(list, rank=0):
            assert said.wait(30)
        time.sleep(0.1)  # for a call that was under way
        said.clear()
        assert not said.wait(0.1)
    finally:
        logger.removeHandler(handler)
