"""Collapse alarms: when they stop, and what they leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState

from agent_r1_gym.errors import ConfigurationError
from tests.kit.bandit import make_args, make_trainer, play
from tests.kit.fixed import give, make_trajectory
from trainers.running.alarms import CollapseAlarm

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def feed(alarm: CollapseAlarm, *logs: dict[str, Any]) -> list[tuple[bool, bool]]:
    """Returns for each log whether the alarm asked to stop and to save."""
    asked = []
    for each in logs:
        control = TrainerControl()
        alarm.on_log(
            None, TrainerState(), control, logs={"grad_norm": 1.0, "entropy": 1.0, "rollout/dropped": 0.0} | each
        )
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


def test_number_that_nobody_brings(tmp_path: Path) -> None:
    alarm = CollapseAlarm(make_args(tmp_path, alarm_calls_below=0.5))
    with pytest.raises(ConfigurationError, match=r"alarm_calls_below=0\.5, but the rollouts bring no 'rollout/calls'"):
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


SAME = {"group/without_signal": 1.0, "reward": 0.0}


def test_groups_without_signal_for_many_steps_warn_once_and_say_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alarm = CollapseAlarm(make_args(tmp_path, alarm_without_signal=3))
    assert feed(alarm, *[SAME] * 2, SAME | {"group/without_signal": 0.9}, *[SAME] * 2) == [(False, False)] * 5
    assert not caplog.records
    assert feed(alarm, *[SAME] * 5, {"group/without_signal": 0.0}, *[SAME] * 5) == [(False, False)] * 11
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    for words in ("In 3 logged steps", "mean reward 0", "cannot call the tools", "too hard or too easy", "temperature"):
        assert words in record.getMessage()


@pytest.mark.parametrize(
    ("returns", "algorithm", "stopped_at"),
    [
        ([0.1] * 8, {"algorithm": "grpo"}, 3),
        ([0.1] * 8, {"algorithm": "reinforce++", "num_generations": 1}, 3),
        ([0.1] * 7 + [0.2], {"algorithm": "reinforce++", "num_generations": 1}, 5),  # the batch is one group
    ],
)
def test_groups_without_signal_stop_where_the_option_says_so(
    tmp_path: Path, returns: list[float], algorithm: dict[str, Any], stopped_at: int
) -> None:
    batch = give([make_trajectory([2, 5], [([12, 3], each, [])]) for each in returns])
    settings = {"alarm_without_signal": 3, "stop_without_signal": True, "max_steps": 5, "logging_steps": 1}
    trainer = make_trainer(tmp_path, batch, **algorithm, **settings)
    trainer.train()
    assert trainer.state.global_step == stopped_at
    if stopped_at == 3:
        assert str(trainer.alarm.reason).startswith("In 3 logged steps in a row every rollout returned the same")
        assert (tmp_path / "checkpoint-3" / "trainer_state.json").is_file()


def test_stopping_without_an_alarm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="stop_without_signal has no effect without alarm_without_signal"):
        make_args(tmp_path, stop_without_signal=True, alarm_without_signal=0)


def test_healthy_training_is_left_alone(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, play, max_steps=6, logging_steps=1, alarm_patience=1, alarm_repetition_above=0.9)
    trainer.train()
    assert trainer.state.global_step == 6
    assert trainer.alarm.reason is None
