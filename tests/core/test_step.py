"""A step: parsed, executed, rewarded, shown; its two halves; budgets and other ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from agent_r1_gym.core.types import Message, ToolCall, ToolOutcome
from agent_r1_gym.errors import ActionTypeError, AgentR1Error, EpisodeError
from agent_r1_gym.retrieval.base import Passage
from agent_r1_gym.retrieval.bm25 import BM25Retriever
from agent_r1_gym.tools.search import SearchTool
from tests.kit.helpers import EchoTool, SleepTool, answer, call, make_env, started

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


def test_mistakes_are_fed_back_and_the_episode_goes_on() -> None:
    for action, phrases in [
        ("hello", ["no_action"]),
        ("<tool_call>{</tool_call>", ["bad_json"]),
        ("<tool_call>5</tool_call>", ["not_an_object", "a number"]),
        (call("ecko", text="x"), ["unknown_tool", "Did you mean 'echo'"]),
        (call("echo", txt="x"), ["bad_arguments", "text (string)"]),
        (call("echo"), ["bad_arguments", "text (string)"]),
        ("<answer>Paris", ["unclosed_tag", "</answer>"]),
        (answer("Paris") * 2, ["several_answers"]),
    ]:
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


def test_an_answer_next_to_a_call_is_ignored_and_the_call_executed() -> None:
    for action in (call("echo", text="x") + answer("Paris"), answer("Paris") + call("echo", text="x")):
        tool = EchoTool()
        env = started(make_env(tools=[tool]))
        _, reward, terminated, truncated, info = env.step(action)
        assert (reward, terminated, truncated, info["answer"]) == (0.0, False, False, None)
        assert tool.executed == ["x"]
        assert roles(info["new_messages"]) == ["assistant", "tool", "user"]
        assert [error.code for error in info["parse_errors"]] == ["call_and_answer"]
        feedback = info["new_messages"][-1].content
        assert feedback.startswith(
            "Error (call_and_answer): The answer was ignored, because the turn also calls a tool."
        )
        assert "</tool_call>" not in feedback  # both were well-formed: a small model would repeat a reminder of both
        assert env.step(answer("Paris"))[1] == 1.0


@pytest.mark.parametrize("parser", ["hermes", "openai", "search-r1"])
def test_before_the_first_call_feedback_shows_the_call_alone(parser: str) -> None:
    """Shown both forms, a small model writes both into its next turn."""
    env = started(
        make_env(tools=[SearchTool(BM25Retriever([Passage("1", "Paris", "Paris is in France.")]))], parser=parser)
    )
    shown = env.parser.format_answer("your answer")
    assert shown not in env.step("Hm.")[4]["new_messages"][-1].content
    assert shown in env.step(env.parser.format_answer(""))[4]["new_messages"][-1].content  # a mistake in an answer
    env.step(env.parser.format_call(ToolCall("search", {"query": "Paris"})))
    assert shown in env.step("Hm.")[4]["new_messages"][-1].content
    without = started(make_env())
    assert without.parser.format_answer("your answer") in without.step("Hm.")[4]["new_messages"][-1].content


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


def test_an_action_is_a_string() -> None:
    for action in [None, 5, b"x", ["x"], np.array("x"), Message("user", "x")]:
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
