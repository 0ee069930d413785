"""Rollouts and trajectories: order, slots, errors, the trace round trip."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.play.episode import rollout
from agent_r1_gym.play.policies import OraclePolicy, Policy, PolicyInput, ReplayPolicy, make_policy
from agent_r1_gym.play.record import append_trace, read_trace
from agent_r1_gym.types import Task

_TASKS = [Task(f"t{i}", f"Say {i}.", (str(i),)) for i in range(7)]


class Talker(Policy):
    """Says nothing useful for as many turns as the task's number, then answers."""

    name = "talker"

    def act(self, inputs: list[PolicyInput]) -> list[str]:  # type: ignore[override]
        self.widths = [*getattr(self, "widths", []), len(inputs)]
        return [
            "hm" if state.turn < int(state.task.answers[0]) else f"<answer>{state.task.answers[0]}</answer>"
            for state in inputs
        ]


@pytest.mark.parametrize("slots", [1, 3, 7, 10])
def test_every_task_is_played_once_whatever_the_number_of_environments(slots: int) -> None:
    envs = [ToolEnv(tasks=_TASKS, max_turns=4) for _ in range(slots)]
    trajectories = {t.task_index: t for t in rollout(envs, Talker(), range(7))}
    assert sorted(trajectories) == list(range(7))
    for index, trajectory in trajectories.items():
        assert trajectory.task_id == f"t{index}"
        assert len(trajectory.turns) == min(index + 1, 4)
        assert trajectory.terminated == (index < 4)
        assert trajectory.truncated == (index >= 4)
        assert trajectory.episode_return == (1.0 if index < 4 else 0.0)


def test_a_free_environment_takes_the_next_task_at_once() -> None:
    policy = Talker()
    envs = [ToolEnv(tasks=_TASKS, max_turns=4) for _ in range(2)]
    list(rollout(envs, policy, [0, 0, 0, 0, 3]))
    assert policy.widths == [2, 2, 1, 1, 1, 1]  # the last task takes four turns alone


def test_trace_round_trip_and_replay(tmp_path: Path) -> None:
    trajectories = list(rollout([ToolEnv(tasks=_TASKS)], Talker(), [2, 1]))
    append_trace(tmp_path / "trace.jsonl", trajectories)
    rows = list(read_trace(tmp_path / "trace.jsonl"))
    assert [row["task_id"] for row in rows] == ["t2", "t1"]
    assert rows[0]["turns"][0]["parse_errors"] == ["no_action"]
    replay = ReplayPolicy(tmp_path / "trace.jsonl")
    again = list(rollout([ToolEnv(tasks=_TASKS)], replay, replay.task_indices))
    assert [t.messages for t in again] == [t.messages for t in trajectories]


def test_replay_of_other_data_or_options_is_refused(tmp_path: Path) -> None:
    append_trace(tmp_path / "trace.jsonl", rollout([ToolEnv(tasks=_TASKS, max_turns=2)], Talker(), [5]))
    replay = ReplayPolicy(tmp_path / "trace.jsonl")
    with pytest.raises(ConfigurationError, match="t1"):
        list(rollout([ToolEnv(tasks=_TASKS)], replay, [1]))
    with pytest.raises(ConfigurationError, match="2 recorded turns"):
        list(rollout([ToolEnv(tasks=_TASKS, max_turns=5)], replay, [5]))


@pytest.mark.parametrize("line", ["{", "5", "{}", '{"task_id": 1, "task_index": 0, "turns": []}', '{"turns": [1]}'])
def test_malformed_trace_lines_are_named(tmp_path: Path, line: str) -> None:
    good = json.dumps({"task_id": "a", "task_index": 0, "turns": [{"action": "x"}]})
    (tmp_path / "trace.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(DatasetError, match="line 2"):
        list(read_trace(tmp_path / "trace.jsonl"))


def test_oracle_answers_even_with_one_turn() -> None:
    trajectories = list(rollout([ToolEnv(tasks=_TASKS, max_turns=1)], OraclePolicy(), range(7)))
    assert all(t.episode_return == 1.0 for t in trajectories)


def test_unknown_policy_is_refused_with_near_names() -> None:
    with pytest.raises(ConfigurationError, match="'oracle'"):
        make_policy("orcale")
