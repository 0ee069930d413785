"""Sessions of scripted policies: order, places, any text environment, wrappers, replay."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task, ToolCall, Transition
from agent_r1_gym.envs.trl_class import TRLClassEnv
from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.run.engines import ScriptedEngine
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.player import Player, evaluation_jobs
from agent_r1_gym.run.policies import OraclePolicy, Policy, PolicyInput, ReplayPolicy, ScriptPolicy, make_policy
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.session import Session
from agent_r1_gym.wrappers import ContextWindow
from tests.kit import helpers
from tests.kit.helpers import EchoTool

_TASKS = [Task(f"t{i}", f"Say {i}.", (str(i),)) for i in range(7)]


class Talker(Policy):
    """Wastes as many turns as the task's number, then answers."""

    name = "talker"

    def act(self, inputs: list[PolicyInput]) -> list[str]:  # type: ignore[override]
        self.widths = [*getattr(self, "widths", []), len(inputs)]
        return [
            "hm" if state.turn < int(state.task.answers[0]) else f"<answer>{state.task.answers[0]}</answer>"
            for state in inputs
        ]


def play(policy: Policy, indices: Iterable[int], *, places: int = 1, **options: Any) -> list[Trajectory]:
    make_env = options.pop("make_env", None) or (lambda: ToolEnv(tasks=_TASKS, **options))
    return helpers.play(policy, indices, make_env, places=places)


@pytest.mark.parametrize("places", [1, 3, 7, 10])
def test_every_task_is_played_once_whatever_the_number_of_places(places: int) -> None:
    records = {record.task_index: record for record in play(Talker(), range(7), places=places, max_turns=4)}
    assert sorted(records) == list(range(7))
    for index, record in records.items():
        assert record.task_id == f"t{index}"
        assert len(record.turns) == min(index + 1, 4)
        assert record.terminated == (index < 4)
        assert record.truncated == (index >= 4)
        assert record.episode_return == record.outcome_reward == (1.0 if index < 4 else 0.0)
        assert record.solved is (index < 4)


def test_a_free_place_takes_the_next_task_at_once() -> None:
    policy = Talker()
    play(policy, [0, 0, 0, 0, 3], places=2, max_turns=4)
    assert policy.widths == [2, 2, 1, 1, 1, 1]  # the last task takes four turns alone


def test_a_run_is_replayed(tmp_path: Path) -> None:
    records = play(Talker(), [2, 1])
    folder = RunFolder(tmp_path)
    for record in records:
        folder.add(record)
    folder.close()
    assert [record.turns[0].parse_errors for record in folder.episodes()] == [("no_action",)] * 2
    for source in (tmp_path, tmp_path / "episodes.jsonl"):
        replay = ReplayPolicy(source)
        assert replay.task_indices == [2, 1]
        again = play(replay, replay.task_indices)
        assert [record.messages for record in again] == [record.messages for record in records]


def test_replay_of_other_data_or_options_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add(play(Talker(), [5], max_turns=2)[0])
    folder.close()
    replay = ReplayPolicy(tmp_path)
    with pytest.raises(ConfigurationError, match="t1"):
        play(replay, [1])
    with pytest.raises(ConfigurationError, match="2 recorded turns"):
        play(replay, [5], max_turns=5)


def test_each_sample_repeats_its_own(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    records = play(Talker(), [5], max_turns=2)
    folder.add(replace(records[0], sample=1))
    folder.add(replace(records[0], turns=tuple(replace(turn, action=f"{turn.action}!") for turn in records[0].turns)))
    folder.close()
    jobs, again = evaluation_jobs([5], samples=2), list[Trajectory]()
    player = Player(lambda: ToolEnv(tasks=_TASKS, max_turns=2))
    player.play(jobs, ScriptedEngine(ReplayPolicy(tmp_path), max_concurrent=2), again.append)
    actions = {record.sample: [turn.action for turn in record.turns] for record in again}
    actions_of_first = [turn.action for turn in records[0].turns]
    assert actions == {0: [f"{action}!" for action in actions_of_first], 1: actions_of_first}
    with pytest.raises(ConfigurationError, match="no sample 2 of task"):
        player.play(evaluation_jobs([5], samples=3), ScriptedEngine(ReplayPolicy(tmp_path)), again.append)


def test_the_replay_of_another_question_with_the_same_id_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.add(play(Talker(), [5])[0])
    folder.close()
    others = [Task(task.id, f"Not: {task.prompt}", task.answers) for task in _TASKS]
    with pytest.raises(
        ConfigurationError, match=r"the question of task 't5' was .* and is 'Not: .*; replay the same data"
    ):
        play(ReplayPolicy(tmp_path), [5], make_env=lambda: ToolEnv(tasks=others))


def test_a_policy_with_too_few_actions_is_reported() -> None:
    class Silent(Talker):
        name = "silent"

        def act(self, inputs: Any) -> list[str]:
            return []

    with pytest.raises(
        ConfigurationError, match=r"policy silent must return one action per episode: expected 2, got 0"
    ):
        play(Silent(), [0, 1], places=2)


@pytest.mark.parametrize("line", ["{", "5", '{"task_id": 1, "task_index": 0, "turns": []}', '{"turns": [1]}'])
def test_malformed_lines_of_a_run_are_named(tmp_path: Path, line: str) -> None:
    good = json.dumps(Trajectory(task_id="a").to_dict())
    (tmp_path / "episodes.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(DatasetError, match="line 2"):
        ReplayPolicy(tmp_path)


def test_oracle_answers_even_with_one_turn() -> None:
    assert all(record.episode_return == 1.0 for record in play(OraclePolicy(), range(7), max_turns=1))


def test_a_session_honours_wrappers() -> None:
    class Plus(gym.RewardWrapper[str, str]):
        def reward(self, reward: Any) -> float:
            return float(reward) + 100

    (record,) = play(OraclePolicy(), [0], make_env=lambda: Plus(ToolEnv(tasks=_TASKS)))
    assert record.episode_return == 101.0
    (cut,) = play(Talker(), [3], make_env=lambda: gym.wrappers.TimeLimit(ToolEnv(tasks=_TASKS), 1))
    assert (len(cut.turns), cut.end_reason, cut.truncated) == (1, "time_limit", True)


class Guess(gym.Env[str, str]):
    """A third-party game: guess the number that the seed draws."""

    observation_space = action_space = gym.spaces.Text(100)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.number = int(self.np_random.integers(8))
        return "guess 0 to 7", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action == str(self.number)
        return ("right" if right else "too low"), float(right), right, False, {}


class Counting(Policy):
    name = "counting"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        return [str(state.turn) for state in inputs]


def test_any_text_environment_is_a_session() -> None:
    records = play(Counting(), range(4), places=2, make_env=Guess)
    for record in records:
        assert record.terminated and record.end_reason == "goal" and record.episode_return == 1.0
        assert record.outcome_reward == 1.0 and record.solved is None and record.scores == {}
        roles = [message.role for message in record.messages]
        assert roles == ["user", *["assistant", "user"] * len(record.turns)]
        assert record.question == "guess 0 to 7"


class Endless(gym.Env[str, str]):
    """Never ends by itself; its `info` has keys that mean something else here."""

    observation_space = action_space = gym.spaces.Text(100)

    def __init__(self, info: dict[str, Any]) -> None:
        self.own = info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "Say x.", dict(self.own)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "and again", 1.0, action == "end", False, dict(self.own)


@pytest.mark.parametrize(
    "info",
    [
        {"answer": 3, "end_reason": 7, "infrastructure_error": True, "dataset": object()},
        {"reward_terms": {"a": np.float32(1)}, "outcome_reward": np.float32(0.5), "answer": np.int64(3)},
        {"reward_terms": [1], "tool_outcomes": 3, "parse_errors": 2, "messages": "none"},
    ],
)
def test_unknown_info_keys_of_other_environments_are_ignored(info: dict[str, Any]) -> None:
    session = Session(Endless(info), evaluation_jobs([0], has_tasks=False)[0])
    for action in ("x", "end"):
        session.record_step(action, session.env.step(action))
    record = Trajectory.from_dict(json.loads(json.dumps(session.record().to_dict())), location="here")
    assert (record.answer, record.infrastructure_error) == (None, None)
    assert [turn.reward for turn in record.turns] == [1.0, 1.0]
    session = Session(
        Endless({"answer": "x", "infrastructure_error": "down"}), evaluation_jobs([0], has_tasks=False)[0]
    )
    session.record_step("end", session.env.step("end"))
    assert (session.record().answer, session.record().infrastructure_error) == ("x", "down")


class Graded(ToolEnv):
    """Says itself how well a task was solved."""

    grade: Any = 0.5

    def success(self, task: Task, history: Sequence[Transition]) -> Any:
        return self.grade


@pytest.mark.parametrize("grade", [2.0, -0.5, float("nan"), "well"])
def test_a_success_outside_of_0_to_1_is_refused_at_once(grade: Any) -> None:
    def make_env() -> ToolEnv:
        env = Graded(tasks=_TASKS)
        env.grade = grade
        return env

    with pytest.raises(ConfigurationError, match=r"success\(\) of Graded returned .*; expected None, or a number"):
        play(OraclePolicy(), [0], make_env=make_env)
    (record,) = play(OraclePolicy(), [0], make_env=lambda: Graded(tasks=_TASKS))
    assert record.scores == {"em": 0.5}


class Payer:
    """Pays its goal, whatever happens."""

    def reset(self, goal: float, **row: Any) -> None:
        self.goal = goal

    def get_reward(self) -> float:
        return self.goal


def test_a_reward_of_a_trl_class_is_a_success_from_0_to_1() -> None:
    rows = [{"prompt": "Go.", "goal": goal} for goal in (-1.0, 0.5, 3.0)]
    policy = Talker()
    policy.act = lambda inputs: ["Done." for _ in inputs]  # type: ignore[method-assign]
    records = play(policy, range(3), make_env=lambda: TRLClassEnv(factory=Payer, rows=rows))
    assert [(record.scores["em"], record.episode_return) for record in records] == [(0, -1), (0.5, 0.5), (1, 3)]


def test_an_episode_that_never_ends_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_r1_gym.run.session.HARD_MAX_TURNS", 5)
    session = Session(Endless({}), evaluation_jobs([0], has_tasks=False)[0])
    while not session.ended:
        session.record_step("x", session.env.step("x"))
    record = session.record()
    assert (len(record.turns), record.truncated, record.end_reason) == (5, True, "max_turns")


def test_an_oracle_of_calls_rejects_a_game_without_one() -> None:
    with pytest.raises(ConfigurationError, match="not a ToolEnv"):
        play(OraclePolicy(), [0], make_env=Guess)


def test_a_policy_of_ones_own_is_found_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_policy.py").write_text(
        "from agent_r1_gym.run.policies import Policy\n"
        "class Seven(Policy):\n    name = 'seven'\n    def act(self, inputs):\n        return ['7' for _ in inputs]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])  # a console script has no current folder
    monkeypatch.delitem(sys.modules, "my_policy", raising=False)
    assert make_policy("my_policy:Seven").name == "seven"
    for wrong in ("my_policy:Eight", "my_polcy:Seven", "json:dumps"):
        with pytest.raises(ConfigurationError, match=wrong):
            make_policy(wrong)


def test_unknown_policy_is_refused_with_near_names() -> None:
    with pytest.raises(ConfigurationError, match="'oracle'"):
        make_policy("orcale")


def _answer_from_history(env: ToolEnv, task: Task, history: Sequence[Transition]) -> ToolCall | str:
    """Calls a tool three times, then answers with what it saw."""
    if len(history) < 3:
        return ToolCall("echo", {"text": f"number {len(history)}"})
    again = [step.outcomes[0].content for step in history[-1].earlier]
    assert again == [step.outcomes[0].content for step in history[:-1]]
    return "; ".join(f"{outcome.content or 'gone'}" for step in history for outcome in step.outcomes)


class TellingEnv(ToolEnv):
    """Its oracle and a script answer with what they see."""

    scripts = {"telling": _answer_from_history}  # noqa: RUF012

    def oracle(self, task: Task, history: Sequence[Transition]) -> ToolCall | str:
        return _answer_from_history(self, task, history)


@pytest.mark.parametrize(
    ("window", "seen"),
    [
        (None, "echo number 0; echo number 1; echo number 2"),
        ({"keep_last": 1, "mode": "drop_turns"}, "gone; gone; echo number 2"),
        ({"keep_last": 1, "mode": "summary"}, "gone; gone; echo number 2"),
        ({"keep_last": 2, "mode": "drop_turns"}, "gone; echo number 1; echo number 2"),
        ({"keep_last": 1, "placeholder": "x"}, "gone; gone; echo number 2"),
        (
            {"keep_last": 1, "placeholder": "longer than any tool output"},
            "echo number 0; echo number 1; echo number 2",
        ),
    ],
)
def test_a_script_sees_what_the_window_shows_and_the_oracle_knows_all(window: Any, seen: str) -> None:
    def make() -> Any:
        env = TellingEnv(tasks=_TASKS, tools=[EchoTool()])
        return env if window is None else ContextWindow(env, **window)

    (record,) = play(ScriptPolicy("telling"), [0], make_env=make)
    assert record.answer == seen
    (known,) = play(OraclePolicy(), [0], make_env=make)
    assert known.answer == "echo number 0; echo number 1; echo number 2"
