"""The history of an episode: snapshots, transitions, immutable values, rendering."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from agent_r1_gym.core.history import EpisodeState
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.errors import AgentR1Error, EpisodeError
from tests.kit.cpu_time import cpu_below
from tests.kit.helpers import CounterTool, EchoTool, FlakyTool, GivenTool, answer, call, make_env, started


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
    with cpu_below(2):
        assert first.get_state() == second.get_state()
        assert first.transitions == second.transitions
        assert len(repr(first.transitions)) < 1_000_000
        copy.deepcopy(first.get_state())


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


@pytest.mark.parametrize("reward", ["em", "f1", "agent_r1", "process"])
def test_a_running_environment_pickles(reward: str) -> None:
    env = started(make_env(tools=[EchoTool(), CounterTool()], reward=reward))
    env.step(call("count"))
    again = pickle.loads(pickle.dumps(env))
    assert play(again, [call("count"), answer("Paris")]) == play(env, [call("count"), answer("Paris")])
