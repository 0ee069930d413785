"""The process reward for the steps of a known solution, against values worked by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import pytest

import agent_r1_gym  # noqa: F401 - registers the environments
from agent_r1_gym.core.types import Task
from agent_r1_gym.data.base import Hop, Question
from tests.kit.data import shared_file
from tests.kit.samples import samples

TWO = Question("t", "67 - (64 - 20)?", ("23",), decomposition=(Hop("64 - 20", "44"), Hop("67 - 44", "23")))
EQUAL = Question(
    "e", "(1 + 4) + (2 + 3)?", ("10",), decomposition=(Hop("1 + 4", "5"), Hop("2 + 3", "5"), Hop("5 + 5", "10"))
)
SPELT = Question(
    "s", "?", ("0.5",), decomposition=(Hop("12 * 100", "1,200"), Hop("1 / 3", "1/3"), Hop("1 / 2", "0.50"))
)
DECIMAL = Question(
    "d", "?", ("0.6666666667",), decomposition=(Hop("4 / 3", "1.3333333333"), Hop("1.3333333333 / 2", "0.6666666667"))
)


def call(*expressions: str) -> str:
    """A turn that computes them, a call each."""
    calls = [{"name": "calculator", "arguments": {"expression": expression}} for expression in expressions]
    return "".join(f"<tool_call>{json.dumps(each)}</tool_call>" for each in calls)


def make(env_id: str, **options: Any) -> Any:
    return gym.make(f"AgentR1/{env_id}-v0", reward="process", **options).unwrapped


def earned(task: Task, turns: Sequence[str], env: Any = None) -> list[float]:
    env = env or make("Arithmetic", questions=4)
    env.reset(options={"task": task})
    return [env.step(turn)[4]["reward_terms"]["correct_step"] for turn in turns]


@samples(
    ("task", "turns", "shares"),
    [
        (TWO, [call("64 - 20"), call("67 - 44")], [1 / 2, 1 / 2]),
        (TWO, [call("64 - 20", "67 - 44")], [1]),
        (TWO, [call("67 - (64 - 20)")], [1]),  # the last result stands for all steps
        (TWO, [call("67 - (64 - 20)"), call("64 - 20")], [1, 0]),
        (TWO, [call("64 - 20"), call("64 - 20"), call("20 + 24")], [1 / 2, 0, 0]),  # each step once
        (TWO, [call("67 - 64"), call("64 -"), "<answer>23</answer>"], [0, 0, 0]),
        (TWO, [call("64 - 20"), "<answer>44</answer>"], [1 / 2, 0]),
        (EQUAL, [call("1 + 4"), call("2 + 3"), call("5 + 5")], [1 / 3, 1 / 3, 1 / 3]),
        (EQUAL, [call("1 + 4", "1 + 4"), call("1 + 4")], [2 / 3, 0]),
        (SPELT, [call("12 * 100"), call("1 / 3"), call("2 / 4")], [1 / 3, 1 / 3, 1 / 3]),
        (DECIMAL, [call("4 / 3"), call("1.333333333333333 / 2")], [1 / 2, 1 / 2]),
        (DECIMAL, [call("1.33333"), call("0.66667")], [0, 0]),  # nearly is not equal
        (Task("u", "1 + 1?", ("2",)), [call("1 + 1")], [0]),  # the solution is not known
    ],
)
def test_each_step_is_rewarded_once(task: Task, turns: list[str], shares: list[float]) -> None:
    assert earned(task, turns) == pytest.approx(shares)


@pytest.mark.parametrize(("code", "share"), [("64 - 20", 1 / 2), ("print(67 - (64 - 20))", 1), ("print(44, 23)", 0)])
def test_a_program_is_rewarded_for_a_number_that_is_its_whole_output(code: str, share: float) -> None:
    env = make("Arithmetic", questions=4, tools="python", isolation="weak")
    turn = json.dumps({"name": "python", "arguments": {"code": code}})
    assert earned(TWO, [f"<tool_call>{turn}</tool_call>"], env) == pytest.approx([share])


@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("Arithmetic", {"problem_types": ["nested"], "questions": 40}),
        ("Arithmetic", {"questions": 40}),
        ("GSM8K", {"dataset": "sample"}),
        ("SVAMP", {"dataset": "sample"}),
    ],
)
def test_the_oracle_earns_all_steps_and_no_episode_earns_more(env_id: str, options: dict[str, Any]) -> None:
    env = make(env_id, **options)
    for index in range(40):
        env.reset(options={"task_index": index})
        rewards, shares, over = 0.0, 0.0, False
        while not over:
            turn = env.parser.format_turn(env.oracle(env.task, env.transitions))
            _, reward, terminated, truncated, info = env.step(turn)
            assert env.reward_bounds[0] <= reward <= env.reward_bounds[1]
            rewards, over = rewards + reward, terminated or truncated
            shares += info["reward_terms"]["correct_step"]
        assert shares == pytest.approx(1)
        assert rewards == pytest.approx(1 + 0.05 + 0.2)


@pytest.mark.slow
def test_the_annotated_steps_of_gsm8k_are_earned_whole() -> None:
    env = make("GSM8K", dataset=str(shared_file("gsm8k_train_1000.jsonl")))
    for index, task in enumerate(env.tasks):
        env.reset(options={"task_index": index})
        shares, over = 0.0, False
        while not over:
            turn = env.parser.format_turn(env.oracle(env.task, env.transitions))
            _, _, terminated, truncated, info = env.step(turn)
            shares, over = shares + info["reward_terms"]["correct_step"], terminated or truncated
        assert shares == pytest.approx(float(env.has_solution(task)))


def test_weights_name_the_term() -> None:
    env = make("Arithmetic", questions=4, reward_weights={"correct_step": 0.5})
    assert env.reward_weights == {
        **{"em": 1.0, "valid_call": 0.05, "malformed_call": -0.1, "failed_call": -0.05},
        **{"correct_step": 0.5, "repeated_query": -0.05},
    }
