"""How an environment is configured and an episode opens: options, tasks, seeds, the system turn."""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from agent_r1_gym.core.parsing import SearchR1Parser
from agent_r1_gym.core.rewards import RewardTerm
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task, ToolOutcome, Transition
from agent_r1_gym.env_checker import CheckError, check_tool_env
from agent_r1_gym.errors import ConfigurationError, EpisodeError
from agent_r1_gym.tools import tool
from tests.kit.helpers import TASKS, EchoTool, GivenTool, answer, call, make_env, started


@pytest.mark.parametrize("index", [2, np.int64(2), np.uint8(2), np.int32(2)])
def test_a_task_is_chosen_by_index(index: Any) -> None:
    assert make_env().reset(options={"task_index": index})[1]["task_id"] == "t2"


def test_a_task_of_ones_own() -> None:
    env = make_env()
    observation, info = env.reset(options={"task": Task("own", "Own question?", ("yes",))})
    assert info["task_id"] == env.task.id == "own"
    assert "Own question?" in observation
    assert env.step(answer("Yes."))[1] == 1.0


def test_wrong_reset_options_are_refused() -> None:
    for options, message in [
        ({"task_index": -1}, r"0\.\.2, got -1"),
        ({"task_index": 3}, r"0\.\.2, got 3"),
        ({"task_index": 10**30}, "task_index"),
        ({"task_index": True}, "task_index"),
        ({"task_index": np.True_}, "task_index"),
        ({"task_index": 1.0}, "task_index"),
        ({"task_index": "1"}, "task_index"),
        ({"task_index": None}, "task_index"),
        ({"task_index": [1]}, "task_index"),
        ({"task_index": np.array([0, 1])}, "task_index"),
        ({"task": "What?"}, "Task"),
        ({"task": None}, "Task"),
        ({"task": TASKS[0], "task_index": 0}, "both"),
        ({"taskindex": 1}, "Did you mean 'task_index'"),
        ({"task_index": 1, "seed": 2}, "seed"),
        ({5: 1}, "5"),
        (5, "options"),
        (["task_index"], "options"),
        ("task", "options"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            make_env().reset(options=options)


def test_seeds_make_episodes_repeatable_and_owned_by_the_environment() -> None:
    def ids(env: ToolEnv, seed: int | None) -> list[str]:
        return [env.reset(seed=seed)[1]["task_id"], *(env.reset()[1]["task_id"] for _ in range(20))]

    first, second = make_env(), make_env()
    assert ids(first, 7) == ids(second, 7)
    assert len({tuple(ids(first, seed)) for seed in range(5)}) == 5
    assert set(ids(first, 0)) == {"t0", "t1", "t2"}


def test_choosing_a_task_draws_nothing() -> None:
    first, second = make_env(), make_env()
    first.reset(seed=3)
    second.reset(seed=3)
    second.reset(options={"task_index": 1})
    assert [first.reset()[1]["task_id"] for _ in range(9)] == [second.reset()[1]["task_id"] for _ in range(9)]


def test_a_prompt_beyond_the_budget_is_refused_and_ends_the_running_episode() -> None:
    env = started(make_env(max_history_chars=2_000))
    with pytest.raises(ConfigurationError, match=r"'long'.*max_history_chars"):
        env.reset(options={"task": Task("long", "x" * 3_000, ("y",))})
    with pytest.raises(EpisodeError):
        env.step("x")
    started(env).step("x")


class GuessEnv(ToolEnv):
    """Ends when the right number is called; its tool belongs to the task; its tasks are made, not listed."""

    instructions = "Guess the number."

    def __init__(self, *, low: int = 0, **options: Any) -> None:
        super().__init__(**{"tasks": [Task("proto", "Guess.", ("0",))], **options})
        self._low = low

    def sample_task(self) -> Task:
        number = int(self.np_random.integers(self._low, 100))
        return Task(f"n{number}", "Guess.", (str(number),))

    def make_tools(self, task: Task) -> Sequence[Tool]:
        return [GivenTool(f"the secret tool of {task.id}")]

    def task_prompt(self, task: Task) -> str:
        return f"{task.prompt} It is at least {self._low}."

    def is_terminated(self, transition: Transition) -> bool:
        return transition.turn == 1

    def describe_dataset(self) -> str:
        return "numbers"


def test_hooks_of_a_subclass() -> None:
    env = GuessEnv(low=90, reward=(RewardTerm("goal", lambda transition: float(transition.terminated)),))
    observation, info = env.reset(seed=5)
    assert observation.startswith("[system]\nGuess the number.")
    assert "It is at least 90." in observation
    assert (info["dataset"], int(info["task_id"][1:]) >= 90) == ("numbers", True)
    _, reward, terminated, truncated, info = env.step(call("given"))
    assert info["tool_outcomes"][0].content == f"the secret tool of {info['task_id']}"
    assert (reward, terminated, truncated) == (0.0, False, False)
    _, reward, terminated, truncated, info = env.step("anything")
    assert (reward, terminated, truncated, info["end_reason"]) == (1.0, True, False, "goal")


def test_options_of_a_subclass_are_known_and_others_suggested() -> None:
    with pytest.raises(ConfigurationError, match=r"GuessEnv has no option 'loww'. Did you mean 'low'"):
        GuessEnv(loww=1)
    with pytest.raises(ConfigurationError, match="Did you mean 'max_turns'"):
        GuessEnv(maxturns=1)


class FixedEnv(ToolEnv):
    def __init__(self, size: int = 1) -> None:
        super().__init__(tasks=TASKS[:size])


def test_a_subclass_that_takes_no_further_options_refuses_those_of_the_base() -> None:
    assert len(FixedEnv(2).tasks) == 2
    with pytest.raises(ConfigurationError, match="FixedEnv has no option 'max_turns'"):
        FixedEnv(max_turns=3)  # type: ignore[call-arg]


def test_closing_closes_all_tools_and_may_be_done_twice() -> None:
    class Closing(EchoTool):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    class PerTask(ToolEnv):
        def make_tools(self, task: Task) -> Sequence[Tool]:
            return [*self.tools, own]

    shared, own = Closing(), Closing("own")
    env = PerTask(tasks=TASKS, tools=[shared])
    env.close()
    assert shared.closed == 1
    started(env)
    env.close()
    assert own.closed == 1
    assert shared.closed == 2


def generator() -> Any:
    yield from TASKS


def test_wrong_options_are_refused_at_construction_by_name() -> None:
    cases: list[dict[str, Any]] = [
        {"tasks": ()},
        {"tasks": None},
        {"tasks": 5},
        {"tasks": TASKS[0]},
        {"tasks": ["What?"]},
        {"tasks": {"t0": TASKS[0]}},
        {"tasks": generator()},
        {"tools": None},
        {"tools": EchoTool()},
        {"tools": ["echo"]},
        {"tools": [EchoTool(), EchoTool()]},
        {"parser": "hermess"},
        {"parser": None},
        {"parser": []},
        {"reward": "emm"},
        {"reward": None},
        {"reward": ["emm"]},
        {"reward_weights": {"f1": 1.0}},
        {"reward_weights": {"em": float("nan")}},
        {"reward_weights": [1.0]},
        {"scorer": "squad"},
        {"scorer": 5},
        {"max_turns": 0},
        {"max_turns": 2.0},
        {"max_turns": "5"},
        {"max_turns": True},
        {"max_turns": None},
        {"max_history_chars": 255},
        {"max_history_chars": 1e4},
        {"max_history_chars": None},
        {"system_prompt": 5},
        {"system_prompt": b"x"},
        {"raw_system_prompt": 5},
        {"feedback": "long"},
        {"feedback": None},
        {"markup": "<|eot|>"},
        {"markup": 5},
        {"markup": [5]},
        {"markup": [""]},
        {"render_mode": "rgb_array"},
        {"render_mode": 5},
    ]
    for options in cases:
        (name,) = options
        word = name.split("_")[-1].rstrip("s")
        with pytest.raises(ConfigurationError, match=f"(?i){word}"):
            make_env(**options)


def test_unknown_options_are_refused_with_near_names() -> None:
    with pytest.raises(
        ConfigurationError, match=r"ToolEnv has no option 'reward_weight'\. Did you mean 'reward_weights'"
    ):
        make_env(reward_weight={"em": 2.0})


def test_a_task_without_gold_answers_is_refused_before_the_episode_where_the_reward_needs_one() -> None:
    hidden = Task("hidden", "What?")
    with pytest.raises(ConfigurationError, match=r"'hidden'.*gold answer"):
        make_env().reset(options={"task": hidden})
    free = make_env(tasks=[hidden], reward=(RewardTerm("any", lambda _: 1.0),))
    free.reset(seed=0)
    assert free.step(answer("x"))[1] == 1.0


def test_options_reach_what_they_set() -> None:
    env = make_env(
        tools=[EchoTool("search")],
        parser=SearchR1Parser(argument="text"),
        reward="process",
        reward_weights={"em": 3.0},
        scorer="musique",
        max_turns=1,
        system_prompt="",
    )
    observation, _ = env.reset(seed=0, options={"task_index": 0})
    assert observation == "[user]\nWhat is the capital of France?\n\n"
    assert env.reward_weights["em"] == 3.0
    assert env.reward_bounds == pytest.approx((-0.2, 3.25))
    assert [schema["function"]["name"] for schema in env.tool_schemas] == ["search"]
    assert env.step("<search>a</search>")[4]["tool_outcomes"] == (ToolOutcome("echo a"),)


def test_the_default_system_prompt_teaches_tools_and_format() -> None:
    observation, _ = make_env(tools=[EchoTool()]).reset(seed=0)
    assert '"name": "echo"' in observation
    assert "<tool_call>" in observation
    assert "<answer>" in observation


def system_turn_of(**options: Any) -> str:
    return make_env(tools=[EchoTool()], **options).reset(seed=0)[1]["messages"][0].content


def test_a_system_prompt_replaces_the_instructions_and_keeps_tools_and_answer_format() -> None:
    text = system_turn_of(system_prompt="You are a clerk.")
    assert text.startswith("You are a clerk.\n\n")
    assert text.removeprefix("You are a clerk.") == system_turn_of().removeprefix(ToolEnv.instructions)
    assert [part for part in ('"name": "echo"', "<tool_call>", "<answer>") if part not in text] == []


def test_a_raw_system_prompt_is_all_there_is_and_warns_where_it_names_no_tool() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert system_turn_of(raw_system_prompt="Call echo.") == "Call echo."
        assert system_turn_of(raw_system_prompt="Be brief.", parser="openai") == "Be brief."  # the endpoint lists tools
    with pytest.warns(UserWarning, match=r"names none of the tools \['echo'\]"):
        assert system_turn_of(raw_system_prompt="Be brief.") == "Be brief."


@pytest.mark.parametrize("name", ["system_prompt", "raw_system_prompt"])
def test_an_empty_system_prompt_is_no_system_turn(name: str) -> None:
    assert make_env(tools=[EchoTool()], **{name: ""}).reset(seed=0)[0].startswith("[user]")


def test_two_system_prompts_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="not both"):
        make_env(system_prompt="a", raw_system_prompt="b")
    assert system_turn_of(system_prompt="", raw_system_prompt="Call echo.") == "Call echo."  # "" is a class's default


def test_an_environment_says_what_it_is() -> None:
    assert repr(make_env()) == "<ToolEnv not registered, 3 tasks>"


def test_a_task_without_an_answer_is_named_when_the_environment_is_made() -> None:
    tasks = [*TASKS, Task("open", "Why?")]
    with pytest.raises(ConfigurationError, match=r"'open' has no gold answer, but the reward 'em' needs one"):
        ToolEnv(tasks=tasks)
    free = RewardTerm("free", lambda transition: 0.0)
    assert len(ToolEnv(tasks=tasks, reward=free).tasks) == len(tasks)


def test_tasks_that_are_made_on_demand_are_not_all_made_at_once() -> None:
    class LazyTaskSequence(Sequence[Task]):
        made = 0

        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, index: Any) -> Any:
            LazyTaskSequence.made += 1
            return Task(str(index), "q", ("a",))

    ToolEnv(tasks=LazyTaskSequence())
    assert LazyTaskSequence.made < 5


def stock(**changes: Any) -> type[ToolEnv]:
    """Returns an environment with a database per episode, whose tool keeps no state."""

    class Stock(ToolEnv):
        def make_tools(self, task: Task) -> Sequence[Tool]:
            database = sqlite3.connect(":memory:", check_same_thread=False)
            database.executescript("CREATE TABLE stock (number); INSERT INTO stock VALUES (7)")

            @tool(timeout=None, **changes)
            def sql(query: str) -> list:  # type: ignore[type-arg]
                """Runs a statement."""
                return database.execute(query).fetchall()

            return [sql]

    return Stock


def test_a_snapshot_says_what_it_cannot_keep() -> None:
    env = stock()(tasks=TASKS)
    env.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.get_state()  # nothing was called
    env.step(call("sql", query="UPDATE stock SET number = 100"))
    with pytest.warns(UserWarning, match="does not contain what sql changed"):
        env.get_state()
    reads = stock(deterministic=True)(tasks=TASKS)
    reads.reset(seed=0)
    reads.step(call("sql", query="SELECT number FROM stock"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reads.set_state(reads.get_state())


@pytest.mark.filterwarnings("ignore:The snapshot does not contain")
def test_the_checker_sees_that_a_snapshot_forgets() -> None:
    turns = [call("sql", query="UPDATE stock SET number = number + 1"), call("sql", query="SELECT number FROM stock")]
    with pytest.raises(CheckError, match="does not lead to the same steps"):
        check_tool_env(stock()(tasks=TASKS), actions=[*turns, answer("Paris")])
