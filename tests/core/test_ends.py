"""How an episode ends: turns, lengths, a caller that truncates; lost backends and what raises end none."""

from __future__ import annotations

import pickle

import pytest

from agent_r1_gym.core.rewards import RewardTerm
from agent_r1_gym.core.types import ToolOutcome, Transition
from agent_r1_gym.errors import ConfigurationError, EpisodeError
from tests.kit.cpu_time import cpu_below
from tests.kit.helpers import (
    EchoTool,
    FlakyTool,
    GivenTool,
    answer,
    call,
    headers_of,
    make_env,
    split_observation,
    started,
)


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
    with cpu_below(2):
        observation, reward, terminated, truncated, info = env.step("x" * 1_000_000)
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


def test_observations_stay_in_their_space_around_the_limit() -> None:
    for size in range(1_480, 1_521, 4):
        env = started(make_env(system_prompt="", max_history_chars=1_600, max_turns=100))
        for action in ("a" * size, "b" * 10, "c" * 10, "d"):
            observation, _, terminated, truncated, _ = env.step(action)
            assert observation in env.observation_space
            assert not terminated
            if truncated:
                return
        raise AssertionError("the history never ended")


def test_odd_actions_are_turns_like_any_other() -> None:
    for action in ["", " ", "\x00", "\ud800", "\udfff" * 50, "[" * 5_000, "\u202e", "é" * 500, "\r\n", "<"]:
        env = started(make_env(tools=[EchoTool()]))
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation in env.observation_space
        assert (reward, terminated, truncated) == (0.0, False, False)
        pickle.dumps(info)
        for message in info["messages"]:
            message.content.encode()
        assert split_observation(observation) == headers_of(info["messages"])


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


def test_the_share_of_outcome_terms_is_reported_separately() -> None:
    env = make_env(reward=TERMS)
    assert env.reset(seed=0)[1]["outcome_reward"] == 0.0
    _, reward, _, _, info = env.step("hm")
    assert (reward, info["outcome_reward"]) == (-0.5, 0.0)
    _, reward, _, _, info = env.step(answer("x"))
    assert (reward, info["outcome_reward"]) == (1.5, 2.0)
    assert started(env).truncate_with_terms()[:3] == (0.5, {"goal": 0.0, "tries": 1.0, "cut": 1.0}, 1.0)
