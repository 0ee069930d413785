"""BFCL: one turn of calls, judged as the model wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.core.types import Task, ToolCall
from agent_r1_gym.env_checker import check_tool_env
from agent_r1_gym.envs.bfcl.env import BFCLEnv, gold_calls
from agent_r1_gym.envs.bfcl.tasks import CATEGORIES, IRRELEVANCE
from agent_r1_gym.errors import ConfigurationError


def make(**options: Any) -> BFCLEnv:
    return BFCLEnv(**{"dataset": "sample", "split": "all", **options})


def play(env: BFCLEnv, index: int, action: str) -> tuple[float, dict[str, Any]]:
    env.reset(options={"task_index": index})
    _, reward, terminated, truncated, info = env.step(action)
    assert terminated != truncated
    return reward, info


def index_of(env: BFCLEnv, category: str) -> int:
    return next(index for index, task in enumerate(env.tasks) if task.metadata["category"] == category)


@pytest.mark.parametrize("parser", ["hermes", "openai"])
def test_the_oracle_solves_each_row_in_one_turn(parser: str) -> None:
    env = make(parser=parser, reward="process")
    for index, task in enumerate(env.tasks):
        env.reset(options={"task_index": index})
        reward, info = play(env, index, env.parser.format_turn(env.oracle(task, ())))
        assert reward == env.success(task, env.transitions) == 1.0
        assert len(info["tool_calls"]) == len(task.accepted)
        assert info["end_reason"] == ("answer" if task.category == IRRELEVANCE else "goal")


def test_each_episode_lists_the_functions_of_its_row_alone() -> None:
    env = make()
    for index, task in enumerate(env.tasks):
        _, info = env.reset(options={"task_index": index})
        assert [tool.name for tool in env.episode_tools] == [f["name"].replace(".", "_") for f in task.functions]
        assert [message.role for message in info["messages"]] == ["system", "user"]


def test_calls_reach_the_grader_as_they_were_written() -> None:
    """A value that violates the schema may be accepted; one that JSON Schema takes for an integer is a float."""
    env = make(category="simple_python")
    assert env.tasks[1].accepted == ({"library_renew": {"loan_id": [4411], "weeks": [3]}},)
    for arguments, expected in (
        ({"loan_id": 4411, "weeks": 3}, 1.0),
        ({"loan_id": 4411, "weeks": 3.0}, 0.0),
        ({"loan_id": "4411", "weeks": 3}, 0.0),
        ({"loan_id": 4411, "weeks": 3, "x": None}, 0.0),
    ):
        reward, info = play(env, 1, env.parser.format_call(ToolCall("library_renew", arguments)))
        assert reward == expected
        assert dict(info["tool_calls"][0].arguments) == arguments
        assert info["tool_outcomes"][0].ok


def test_a_function_that_does_not_exist_ends_the_episode_and_costs() -> None:
    env = make(reward="process", category="simple_python")
    reward, info = play(env, 0, env.parser.format_call(ToolCall("garden.water", {})))
    assert reward == pytest.approx(-0.05)
    assert info["tool_outcomes"][0].error == "unknown_tool"
    assert info["end_reason"] == "goal"


MALFORMED = "<tool_call>\n{oops}\n</tool_call>"


def test_only_a_turn_without_a_call_is_right_where_no_function_fits() -> None:
    env = make(category=IRRELEVANCE)
    name = env.tasks[0].functions[0]["name"].replace(".", "_")
    call = env.parser.format_call(ToolCall(name, {"loaf": "rye"}))
    for action, expected in (
        ("There is no function for that.", 1.0),
        ("<answer>none</answer>", 1.0),
        ("", 1.0),  # as officially: it calls nothing
        (MALFORMED, 1.0),  # likewise
        (call, 0.0),
        (f"{call}\n{MALFORMED}", 0.0),
        (f"{call}\n<answer>none</answer>", 0.0),
        ("\n".join([call] * 17), 0.0),  # too many calls are dropped
        (call + " " * env.max_history_chars, 0.0),  # so are the calls of a turn that is too long
    ):
        assert play(env, 0, action)[0] == expected, action[:80]
    env.reset(options={"task_index": 0})
    assert env.truncate() == 0.0  # a turn that a token limit cut


def test_a_turn_that_cannot_be_read_fails_or_may_be_repeated() -> None:
    env = make(category="simple_python", reward="process")
    gold = env.parser.format_calls(gold_calls(env.tasks[0]))
    for action in (MALFORMED, f"{gold}\n{MALFORMED}"):
        assert play(env, 0, action)[0] == pytest.approx(-0.1)
    env = make(category="simple_python", reward="process", max_turns=2)
    env.reset(options={"task_index": 0})
    assert env.step(MALFORMED)[1:4] == (pytest.approx(-0.1), False, False)
    assert env.step(gold)[1:4] == (1.0, True, False)


def share_solved(env: BFCLEnv, script: str) -> dict[str, float]:
    solved: dict[str, list[float]] = {category: [] for category in CATEGORIES}
    for index, task in enumerate(env.tasks):
        turn = env.scripts[script](env, task, ())
        solved[task.metadata["category"]].append(play(env, index, env.parser.format_turn(turn))[0])
    return {category: sum(rewards) / len(rewards) for category, rewards in solved.items()}


def test_near_misses_solve_what_they_should() -> None:
    env = make()
    assert share_solved(env, "refusing") == {"simple_python": 0, "multiple": 0, "parallel": 0, IRRELEVANCE: 1}
    assert share_solved(env, "single") == {"simple_python": 1, "multiple": 1, "parallel": 0, IRRELEVANCE: 0}
    mistyped = share_solved(env, "mistyped")
    assert mistyped["simple_python"] == 0 and mistyped["parallel"] < 1 and mistyped[IRRELEVANCE] == 1


def test_further_categories_are_test_rows_with_rules_of_their_own(tmp_path: Path) -> None:
    """Without a function nothing can be called; in "live_relevance" any call is right."""
    water, renew = make().tasks[:2]
    for category, row, functions in (
        ("live_irrelevance", water, ()),
        ("live_relevance", water, water.functions),
        ("parallel_multiple", renew, (*water.functions, *renew.functions)),
    ):
        question = [[{"role": "user", "content": row.prompt}]]
        data = {"id": f"{category}_0", "question": question, "function": functions}
        (tmp_path / f"BFCL_v4_{category}.json").write_text(json.dumps(data))
    (tmp_path / "possible_answer").mkdir()
    answer = json.dumps({"id": "parallel_multiple_0", "ground_truth": (*water.accepted, *renew.accepted)})
    (tmp_path / "possible_answer" / "BFCL_v4_parallel_multiple.json").write_text(answer)
    categories = ["live_irrelevance", "live_relevance", "parallel_multiple"]
    env = BFCLEnv(dataset=tmp_path, category=categories, split="test")
    assert [task.metadata["category"] for task in env.tasks] == categories
    for index, task in enumerate(env.tasks):
        assert play(env, index, env.parser.format_turn(env.oracle(task, ())))[0] == 1.0
    call = env.parser.format_call(ToolCall("garden_water", {"bed": 5}))
    for index, refusal, calling in ((0, 1.0, 0.0), (1, 0.0, 1.0), (2, 0.0, 0.0)):
        assert play(env, index, "I cannot do that.")[0] == refusal
        assert play(env, index, call)[0] == calling
        assert play(env, index, MALFORMED)[0] == refusal
    with pytest.raises(ConfigurationError, match="has no split 'train'; it has test"):
        BFCLEnv(dataset=tmp_path, category=categories)


def test_it_keeps_the_contract_also_where_a_turn_may_be_repeated() -> None:
    for category in CATEGORIES:
        check_tool_env(make(category=category, max_turns=3, reward="process"))


def test_shots_show_calls_of_training_rows() -> None:
    env = BFCLEnv(dataset="sample", split="test", shots=2)
    text, info = env.reset(seed=0)
    assert [message.role for message in info["messages"][:3]] == ["system", "user", "assistant"]
    assert text.count("The call was recorded.") >= 2
    train = {task.id for task in BFCLEnv(dataset="sample").tasks}
    assert {shot.task_id for shot in env.shots} <= train


def test_wrong_options_are_refused() -> None:
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"category": "simple"}, "Unknown category 'simple'. Did you mean"),
        ({"category": []}, "category is empty"),
        ({"dataset": 5}, "dataset"),
        ({"split": "dev2"}, "split"),
        ({"tasks": [Task("t", "Hi")]}, "tasks"),
        ({"reward": "f1"}, "needs one"),
    )
    for options, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            make(**options)
    with pytest.raises(ConfigurationError, match="rows of its own only"):
        make().reset(options={"task": Task("t", "Hi")})
