from __future__ import annotations

import copy
import dataclasses
import pickle
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.core.history import EpisodeState
from agent_r1_gym.errors import ActionTypeError, AgentR1Error, ConfigurationError, EpisodeError, RetrievalError
from agent_r1_gym.parsing import SearchR1Parser
from agent_r1_gym.rewards import RewardTerm
from agent_r1_gym.tool import Tool
from agent_r1_gym.types import Message, Task, ToolCall, ToolOutcome, Transition
from tests.kit.helpers import (
    TASKS,
    CounterTool,
    EchoTool,
    GivenTool,
    SleepTool,
    answer,
    call,
    headers_of,
    make_env,
    split_observation,
    started,
)

INFO_KEYS = {
    "messages",
    "new_messages",
    "task_id",
    "dataset",
    "turn",
    "answer",
    "reward_terms",
    "outcome_reward",
    "tool_calls",
    "tool_outcomes",
    "parse_errors",
    "end_reason",
    "infrastructure_error",
}


def roles(messages: Sequence[Message]) -> list[str]:
    return [message.role for message in messages]


# --- an episode ------------------------------------------------------------------------------------------------------


def test_an_episode_from_start_to_end() -> None:
    env = make_env(tools=[EchoTool()], raw_system_prompt="Be brief; call echo.")
    observation, info = env.reset(seed=0, options={"task_index": 0})
    assert observation == "[system]\nBe brief; call echo.\n\n[user]\nWhat is the capital of France?\n\n"
    assert set(info) == INFO_KEYS
    assert (info["task_id"], info["turn"], info["reward_terms"], info["end_reason"]) == ("t0", 0, {}, None)

    action = call("echo", text="hi")
    observation, reward, terminated, truncated, info = env.step(action)
    new = f"[assistant]\n{action}\n\n[tool: echo]\necho hi\n\n"
    assert observation == f"[system]\nBe brief; call echo.\n\n[user]\nWhat is the capital of France?\n\n{new}"
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info["new_messages"] == (Message("assistant", action), Message("tool", "echo hi", "echo"))
    assert info["tool_calls"] == (ToolCall("echo", {"text": "hi"}),)
    assert info["tool_outcomes"] == (ToolOutcome("echo hi"),)
    assert (info["turn"], info["reward_terms"]) == (1, {"em": 0.0})

    observation, reward, terminated, truncated, info = env.step(answer("paris"))
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert (info["answer"], info["end_reason"], info["turn"]) == ("paris", "answer", 2)
    assert roles(info["messages"]) == ["system", "user", "assistant", "tool", "assistant"]
    assert set(info) == INFO_KEYS


def test_several_calls_are_executed_and_shown_in_order_of_appearance() -> None:
    tool = EchoTool()
    env = started(make_env(tools=[tool, SleepTool(0.0)]))
    action = (
        call("echo", text="1") + call("nope") + call("sleep", text="2") + call("echo", txt="x") + call("echo", text="3")
    )
    _, _, _, _, info = env.step(action)
    assert [message.name for message in info["new_messages"]] == [None, "echo", "nope", "sleep", "echo", "echo"]
    assert [outcome.error for outcome in info["tool_outcomes"]] == [None, "unknown_tool", None, "bad_arguments", None]
    assert tool.executed == ["1", "3"]
    assert [call.name for call in info["tool_calls"]] == ["echo", "nope", "sleep", "echo", "echo"]


@pytest.mark.parametrize(
    ("action", "phrases"),
    [
        ("hello", ["no_action"]),
        ("<tool_call>{</tool_call>", ["bad_json"]),
        ("<tool_call>5</tool_call>", ["not_an_object", "a number"]),
        (call("ecko", text="x"), ["unknown_tool", "Did you mean 'echo'"]),
        (call("echo", txt="x"), ["bad_arguments", "text (string)"]),
        (call("echo"), ["bad_arguments", "text (string)"]),
        ("<answer>Paris", ["unclosed_tag", "</answer>".replace("<", "‹")]),
        (call("echo", text="x") + answer("Paris"), ["call_and_answer"]),
        (answer("Paris") * 2, ["several_answers"]),
    ],
)
def test_mistakes_are_fed_back_and_the_episode_goes_on(action: str, phrases: list[str]) -> None:
    tool = EchoTool()
    env = started(make_env(tools=[tool]))
    observation, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert [phrase for phrase in phrases if phrase not in info["new_messages"][-1].content] == []
    assert observation.endswith(f"{info['new_messages'][-1].content}\n\n")
    assert tool.executed == []
    assert env.step(answer("Paris"))[1] == 1.0


def test_a_good_call_is_executed_beside_a_bad_one() -> None:
    env = started(make_env(tools=[EchoTool()]))
    _, _, _, _, info = env.step(call("echo", text="x") + "<tool_call>{</tool_call>")
    assert roles(info["new_messages"]) == ["assistant", "tool", "user"]
    assert [error.code for error in info["parse_errors"]] == ["bad_json"]


def test_short_feedback_gives_codes_only() -> None:
    env = started(make_env(tools=[EchoTool()], feedback="short"))
    assert env.step("hello")[4]["new_messages"][-1].content == "error no_action"
    assert env.step(call("nope"))[4]["new_messages"][-1].content == "error unknown_tool"


def test_too_many_calls_are_not_executed() -> None:
    tool = EchoTool()
    env = started(make_env(tools=[tool]))
    assert len(env.step(call("echo", text="x") * 16)[4]["tool_outcomes"]) == 16
    _, _, _, _, info = env.step(call("echo", text="y") * 17)
    assert [error.code for error in info["parse_errors"]] == ["too_many_calls"]
    assert (info["tool_calls"], info["tool_outcomes"], set(tool.executed)) == ((), (), {"x"})


# --- order of calls --------------------------------------------------------------------------------------------------


def test_step_needs_a_running_episode() -> None:
    env = make_env()
    for _ in range(2):
        with pytest.raises(EpisodeError, match="reset"):
            env.step("x")
    with pytest.raises(ResetNeeded):
        env.step("x")
    env.reset(seed=0, options={"task_index": 0})
    env.step(answer("x"))
    with pytest.raises(EpisodeError, match="reset"):
        env.step("x")
    env.reset()
    env.step("x")


@pytest.mark.parametrize("action", [None, 5, b"x", ["x"], np.array("x"), Message("user", "x")])
def test_an_action_is_a_string(action: Any) -> None:
    env = started(make_env())
    with pytest.raises(ActionTypeError, match="string"):
        env.step(action)
    with pytest.raises(TypeError):
        env.step(action)
    assert env.step("x")[4]["turn"] == 1


def test_numpy_strings_are_strings() -> None:
    assert started(make_env()).step(np.str_(answer("Paris")))[1] == 1.0


def test_the_two_halves_are_a_step() -> None:
    whole, halves = (started(make_env(tools=[EchoTool()])) for _ in range(2))
    action = call("echo", text="a") + call("nope") + call("echo", text="b")
    pending = halves.begin_step(action)
    assert [pending_call.call.arguments["text"] for pending_call in pending] == ["a", "b"]
    outcomes = [ToolOutcome("echo a"), ToolOutcome("echo b")]
    assert halves.finish_step(outcomes) == whole.step(action)


def test_a_begun_step_changes_nothing_and_may_be_begun_again() -> None:
    env, other = (started(make_env(tools=[EchoTool()])) for _ in range(2))
    before = env.get_state()
    env.begin_step(call("echo", text="discarded"))
    env.begin_step(answer("discarded"))
    assert env.get_state() == before
    assert env.begin_step("kept") == ()
    assert env.finish_step([]) == other.step("kept")


def test_halves_out_of_order_are_refused() -> None:
    env = make_env(tools=[EchoTool()])
    with pytest.raises(EpisodeError, match="begin_step"):
        env.finish_step([])
    started(env).begin_step(call("echo", text="a"))
    env.reset(seed=0)
    with pytest.raises(EpisodeError, match="begin_step"):
        env.finish_step([ToolOutcome("stale")])


@pytest.mark.parametrize("count", [0, 2])
def test_a_step_is_finished_with_one_outcome_per_call(count: int) -> None:
    env = started(make_env(tools=[EchoTool()]))
    env.begin_step(call("echo", text="a"))
    with pytest.raises(AgentR1Error, match=rf"expected 1.*got {count}"):
        env.finish_step([ToolOutcome("x")] * count)
    assert env.step(call("echo", text="b"))[4]["turn"] == 1


# --- tasks and seeds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [2, np.int64(2), np.uint8(2), np.int32(2)])
def test_a_task_is_chosen_by_index(index: Any) -> None:
    assert make_env().reset(options={"task_index": index})[1]["task_id"] == "t2"


def test_a_task_of_ones_own() -> None:
    env = make_env()
    observation, info = env.reset(options={"task": Task("own", "Own question?", ("yes",))})
    assert info["task_id"] == env.task.id == "own"
    assert "Own question?" in observation
    assert env.step(answer("Yes."))[1] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
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
    ],
)
def test_wrong_reset_options_are_refused(options: Any, message: str) -> None:
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


# --- budgets ---------------------------------------------------------------------------------------------------------


def test_the_last_turn_truncates() -> None:
    env = started(make_env(max_turns=2, tools=[EchoTool()]))
    assert env.step("x")[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step(call("echo", text="late"))
    assert (reward, terminated, truncated, info["end_reason"]) == (0.0, False, True, "max_turns")
    assert info["tool_outcomes"] == (ToolOutcome("echo late"),)


def test_an_answer_in_the_last_turn_terminates_and_does_not_truncate() -> None:
    _, reward, terminated, truncated, info = started(make_env(max_turns=1)).step(answer("Paris"))
    assert (reward, terminated, truncated, info["end_reason"]) == (1.0, True, False, "answer")


def test_a_megabyte_of_talk_ends_the_episode_in_bounded_time_and_space() -> None:
    env = started(make_env(tools=[EchoTool()]))
    start = time.process_time()
    observation, reward, terminated, truncated, info = env.step("x" * 1_000_000)
    assert time.process_time() - start < 2.0
    assert (reward, terminated, truncated, info["end_reason"]) == (0.0, False, True, "max_history")
    assert observation in env.observation_space
    assert len(observation) == env.max_history_chars


def test_an_answer_in_an_overlong_turn_still_counts() -> None:
    env = started(make_env())
    observation, reward, terminated, truncated, info = env.step("x" * 100_000 + answer("Paris"))
    assert (reward, terminated, truncated, info["end_reason"]) == (1.0, True, False, "answer")
    assert observation in env.observation_space


def test_calls_of_an_overlong_turn_are_not_executed() -> None:
    tool = EchoTool()
    env = started(make_env(tools=[tool]))
    _, _, terminated, truncated, info = env.step("x" * 100_000 + call("echo", text="x"))
    assert (terminated, truncated, tool.executed, info["tool_calls"]) == (False, True, [], ())


def test_tool_output_that_bursts_the_history_truncates() -> None:
    env = started(make_env(tools=[GivenTool("y" * 5_000)], max_history_chars=2_000))
    observation, _, terminated, truncated, info = env.step(call("given"))
    assert (terminated, truncated, info["end_reason"]) == (False, True, "max_history")
    assert len(observation) == 2_000
    assert observation.endswith("[the history budget is spent]")


@pytest.mark.parametrize("size", range(1_480, 1_521, 4))
def test_observations_stay_in_their_space_around_the_limit(size: int) -> None:
    env = started(make_env(system_prompt="", max_history_chars=1_600, max_turns=100))
    for action in ("a" * size, "b" * 10, "c" * 10, "d"):
        observation, _, terminated, truncated, _ = env.step(action)
        assert observation in env.observation_space
        assert not terminated
        if truncated:
            return
    raise AssertionError("the history never ended")


def test_a_prompt_beyond_the_budget_is_refused_and_ends_the_running_episode() -> None:
    env = started(make_env(max_history_chars=2_000))
    with pytest.raises(ConfigurationError, match=r"'long'.*max_history_chars"):
        env.reset(options={"task": Task("long", "x" * 3_000, ("y",))})
    with pytest.raises(EpisodeError):
        env.step("x")
    started(env).step("x")


@pytest.mark.parametrize(
    "action", ["", " ", "\x00", "\ud800", "\udfff" * 50, "[" * 5_000, "\u202e", "é" * 500, "\r\n", "<"]
)
def test_odd_actions_are_turns_like_any_other(action: str) -> None:
    env = started(make_env(tools=[EchoTool()]))
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation in env.observation_space
    assert (reward, terminated, truncated) == (0.0, False, False)
    pickle.dumps(info)
    for message in info["messages"]:
        message.content.encode()
    assert split_observation(observation) == headers_of(info["messages"])


# --- ended from outside ----------------------------------------------------------------------------------------------


def test_a_caller_may_truncate_a_running_episode() -> None:
    env = started(make_env(tools=[EchoTool()], reward="agent_r1"))
    env.step(call("echo", text="x"))
    assert env.truncate() == -0.5
    assert [transition.truncated for transition in env.transitions] == [False, True]
    for ended in (lambda: env.step("x"), env.truncate, lambda: make_env().truncate()):
        with pytest.raises(EpisodeError):
            ended()
    assert started(env).step(answer("Paris"))[1] == 1.0


def test_a_step_that_was_begun_cannot_be_finished_after_a_truncation() -> None:
    env = started(make_env(tools=[EchoTool()]))
    env.begin_step(answer("Paris"))
    assert env.truncate() == 0.0
    with pytest.raises(EpisodeError):
        env.finish_step([])


# --- infrastructure --------------------------------------------------------------------------------------------------


class FlakyTool(EchoTool):
    def execute(self, arguments: Mapping[str, Any]) -> str:
        if arguments["text"] == "down":
            raise RetrievalError("connection refused")
        return super().execute(arguments)


@pytest.mark.parametrize("reward", ["em", "f1", "agent_r1", "process"])
def test_infrastructure_failures_stay_in_info_and_out_of_the_reward(reward: str) -> None:
    env = started(make_env(tools=[FlakyTool()], reward=reward))
    assert env.step(call("echo", text="ok"))[4]["infrastructure_error"] is None
    _, value, _, _, info = env.step(call("echo", text="down"))
    assert value == 0.0
    assert info["infrastructure_error"] == "echo: unavailable: connection refused"
    _, value, _, _, info = env.step(call("echo", text="fine"))
    assert (value, info["infrastructure_error"]) == (0.0, "echo: unavailable: connection refused")
    _, value, _, _, info = env.step(answer("Paris"))
    assert value == 1.0
    assert info["infrastructure_error"] is not None
    assert env.reset()[1]["infrastructure_error"] is None


def test_a_tool_that_fails_is_not_infrastructure() -> None:
    env = started(make_env(tools=[GivenTool(ValueError("no"))]))
    assert env.step(call("given"))[4]["infrastructure_error"] is None


def test_a_broken_tool_of_the_programmer_leaves_the_episode_as_it_was() -> None:
    env = started(make_env(tools=[GivenTool(ConfigurationError("broken")), EchoTool()]))
    before = env.get_state()
    with pytest.raises(ConfigurationError, match="broken"):
        env.step(call("given"))
    assert env.get_state() == before
    assert env.step(call("echo", text="x"))[4]["turn"] == 1


# --- snapshots -------------------------------------------------------------------------------------------------------


def play(env: ToolEnv, actions: Sequence[str]) -> list[Any]:
    return [env.step(action)[:4] for action in actions]


BRANCHES = [[call("count"), answer("Paris")], [answer("London")], ["x", call("count"), call("count"), call("count")]]


def test_an_episode_can_be_branched_as_often_as_one_likes() -> None:
    env = started(make_env(tools=[CounterTool()]))
    env.step(call("count"))
    state = env.get_state()
    first = [play(env, branch) for branch in BRANCHES if env.set_state(state) is None]
    second = [play(env, branch) for branch in reversed(BRANCHES) if env.set_state(state) is None]
    assert first == second[::-1]
    env.set_state(state)
    assert env.step(call("count"))[4]["new_messages"][1].content == "[1, 2]"


def test_a_snapshot_continues_in_another_environment_and_after_pickling() -> None:
    env, other = started(make_env(tools=[CounterTool()])), make_env(tools=[CounterTool()])
    env.step(call("count"))
    state = pickle.loads(pickle.dumps(env.get_state()))
    other.set_state(state)
    assert other.task == env.task
    assert play(env, BRANCHES[0]) == play(other, BRANCHES[0])
    assert [env.reset()[1]["task_id"] for _ in range(9)] == [other.reset()[1]["task_id"] for _ in range(9)]


def test_a_snapshot_after_the_end_is_the_end() -> None:
    env = started(make_env())
    env.step(answer("x"))
    state = env.get_state()
    env.reset()
    env.set_state(state)
    with pytest.raises(EpisodeError):
        env.step("x")


def test_a_snapshot_brings_an_ended_environment_back() -> None:
    env = started(make_env())
    state = env.get_state()
    env.step(answer("x"))
    env.set_state(state)
    assert env.step(answer("Paris"))[1] == 1.0


def test_a_snapshot_keeps_the_infrastructure_error() -> None:
    env = started(make_env(tools=[FlakyTool()]))
    env.step(call("echo", text="down"))
    state = env.get_state()
    env.reset()
    env.set_state(state)
    assert env.step("x")[4]["infrastructure_error"] is not None


def test_there_is_nothing_to_snapshot_before_the_first_episode() -> None:
    with pytest.raises(EpisodeError, match="reset"):
        make_env().get_state()
    with pytest.raises(EpisodeError, match="reset"):
        _ = make_env().task


def test_foreign_snapshots_are_refused() -> None:
    env = started(make_env())
    for wrong in (None, 5, {}, "state"):  # type: ignore[var-annotated]
        with pytest.raises(AgentR1Error, match=r"snapshot|EpisodeState"):
            env.set_state(wrong)  # type: ignore[arg-type]
    with pytest.raises(AgentR1Error, match="tools"):
        env.set_state(started(make_env(tools=[CounterTool()])).get_state())


def test_snapshots_and_transitions_of_long_episodes_compare_and_print_quickly() -> None:
    first, second = (started(make_env(max_turns=60)) for _ in range(2))
    for _ in range(50):
        first.step("x")
        second.step("x")
    start = time.process_time()
    assert first.get_state() == second.get_state()
    assert first.transitions == second.transitions
    assert len(repr(first.transitions)) < 1_000_000
    copy.deepcopy(first.get_state())
    assert time.process_time() - start < 2.0


# --- rendering -------------------------------------------------------------------------------------------------------


def test_ansi_renders_the_history() -> None:
    env = make_env(render_mode="ansi")
    assert env.render() == ""
    started(env).step("hello there")
    text = env.render()
    assert text is not None
    assert "hello there" in text
    assert "\x1b[" in text


def test_human_prints_each_step_once(capsys: pytest.CaptureFixture[str]) -> None:
    env = started(make_env(render_mode="human", system_prompt="Be brief."))
    assert "Be brief." in capsys.readouterr().out
    env.step("hello \x1b[2J there")
    printed = capsys.readouterr().out
    assert "Be brief." not in printed
    assert "hello [2J there" in printed
    assert env.render() is None


def test_nothing_is_rendered_by_default_and_a_warning_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    env = started(make_env())
    env.step("x")
    with pytest.warns(UserWarning, match="render_mode"):
        assert env.render() is None
    assert capsys.readouterr().out == ""


# --- subclasses ------------------------------------------------------------------------------------------------------


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


# --- configuration ---------------------------------------------------------------------------------------------------


def generator() -> Any:
    yield from TASKS


@pytest.mark.parametrize(
    "options",
    [
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
        {"reward": ["em"]},
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
    ],
    ids=lambda options: " ".join(f"{key}={value!r:.30}" for key, value in options.items()),
)
def test_wrong_options_are_refused_at_construction_by_name(options: dict[str, Any]) -> None:
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


def test_observations_and_infos_share_nothing_that_can_change() -> None:
    env = started(make_env(tools=[EchoTool()]))
    _, _, _, _, first = env.step(call("echo", text="a"))
    kept = copy.deepcopy(first)
    _, _, _, _, second = env.step(call("echo", text="b"))
    assert first == kept
    assert first["messages"] == second["messages"][: len(first["messages"])]
    assert first["reward_terms"] is not second["reward_terms"]


def test_transitions_tell_the_episode() -> None:
    env = started(make_env(tools=[EchoTool()]))
    env.step(call("echo", text="a"))
    env.step(answer("Paris"))
    first, second = env.transitions
    assert (first.turn, second.turn) == (0, 1)
    assert second.earlier == (first,)
    assert (first.terminated, second.terminated, second.truncated) == (False, True, False)
    assert env.reset() is not None
    assert env.transitions == ()


def test_a_snapshot_is_a_value() -> None:
    state = started(make_env()).get_state()
    assert isinstance(state, EpisodeState)
    with pytest.raises(AttributeError):
        state.history = None  # type: ignore[misc,assignment]
    with pytest.raises(AttributeError):
        state.history.text = "x"  # type: ignore[misc]


# --- the system turn -------------------------------------------------------------------------------------------------


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


# --- what leaves the environment -------------------------------------------------------------------------------------


@pytest.mark.parametrize("parser", ["hermes", "openai"])
def test_nothing_that_is_handed_out_lets_a_user_rewrite_history(parser: str) -> None:
    env = started(make_env(tools=[GivenTool("found")], parser=parser))
    action = env.parser.format_call(ToolCall("given", {"deep": {"list": [1]}, "list": [1]}))
    info, state = env.step(action)[4], env.get_state()
    before = pickle.dumps((env.get_state(), env.transitions))
    handed_out = (*info["messages"], *info["tool_calls"], *info["tool_outcomes"], *env.transitions)
    for value in (*handed_out, state):
        for field in dataclasses.fields(value):
            with pytest.raises(AttributeError):
                setattr(value, field.name, "forged")
    with pytest.raises(AttributeError):
        state.history.messages = ()  # type: ignore[misc]
    (call,) = info["tool_calls"]
    with pytest.raises(TypeError):
        call.arguments["list"] = "forged"
    call.arguments["deep"]["list"].append(2)
    call.arguments["list"].append(2)
    dict(call.arguments).clear()
    info["reward_terms"]["em"] = 5.0
    assert pickle.dumps((env.get_state(), env.transitions)) == before


def test_a_reward_that_raises_leaves_the_episode_as_it_was() -> None:
    def fragile(transition: Transition) -> float:
        return 1 / len(transition.parsed.calls)

    env = started(make_env(tools=[EchoTool()], reward=(RewardTerm("fragile", fragile),)))
    before = env.get_state()
    with pytest.raises(ZeroDivisionError):
        env.step("no call")
    assert env.get_state() == before
    assert env.step(call("echo", text="x"))[1] == 1.0


TERMS = (
    RewardTerm("goal", lambda transition: float(transition.terminated), 2.0),
    RewardTerm("tries", lambda _: 1.0, -0.5, kind="process"),
    RewardTerm("cut", lambda transition: float(transition.truncated)),
)


def test_the_part_of_outcome_terms_is_told_apart() -> None:
    env = make_env(reward=TERMS)
    assert env.reset(seed=0)[1]["outcome_reward"] == 0.0
    _, reward, _, _, info = env.step("hm")
    assert (reward, info["outcome_reward"]) == (-0.5, 0.0)
    _, reward, _, _, info = env.step(answer("x"))
    assert (reward, info["outcome_reward"]) == (1.5, 2.0)
    assert started(env).truncate_with_terms() == (0.5, {"goal": 0.0, "tries": 1.0, "cut": 1.0}, 1.0)


@pytest.mark.parametrize("reward", ["em", "f1", "agent_r1", "process"])
def test_a_running_environment_pickles(reward: str) -> None:
    env = started(make_env(tools=[EchoTool(), CounterTool()], reward=reward))
    env.step(call("count"))
    again = pickle.loads(pickle.dumps(env))
    assert play(again, [call("count"), answer("Paris")]) == play(env, [call("count"), answer("Paris")])


def test_an_environment_says_what_it_is() -> None:
    assert repr(make_env()) == "<ToolEnv not registered, 3 tasks>"


def test_a_prepared_step_is_taken_by_the_next_step_with_the_same_action_only() -> None:
    tool = EchoTool()
    env = started(make_env(tools=[tool]))
    action = call("echo", text="a")
    with pytest.raises(EpisodeError, match="begin_step"):
        env.prepare_step([])
    env.begin_step(action)
    env.prepare_step([ToolOutcome("prepared")])
    assert env.step(action)[4]["tool_outcomes"] == (ToolOutcome("prepared"),)
    assert tool.executed == []
    env.begin_step(action)
    env.prepare_step([ToolOutcome("prepared")])
    with pytest.raises(EpisodeError, match="prepared for the action"):
        env.step("another")
    assert env.step("another")[4]["turn"] == 2
