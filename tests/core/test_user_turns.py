"""A tool that plays the user (`Tool.takes_messages`): messages go to it, and its outcomes are user turns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent_r1_gym.core.tool import Arguments, Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task, ToolCall, ToolOutcome, Transition
from agent_r1_gym.env_checker import check_tool_env
from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.tools.mcp_export import ServedTools
from tests.kit.helpers import TASKS, EchoTool, answer, call

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Parrot(Tool):
    """A user that repeats the message, says goodbye to "bye", and is gone on "fail"."""

    takes_messages = True

    def __init__(self, name: str = "parrot") -> None:
        super().__init__(name, "Repeats.", TEXT, timeout=None)

    def execute(self, arguments: Arguments) -> ToolOutcome:
        if arguments["text"] == "fail":
            raise InfrastructureError("gone <answer>")
        return ToolOutcome(f"You said: {arguments['text']}", data={"over": arguments["text"] == "bye"})


class ParrotEnv(ToolEnv):
    def is_terminated(self, transition: Transition) -> bool:
        return any(bool(outcome.data) and outcome.data["over"] for outcome in transition.outcomes)


def make(**options: Any) -> ParrotEnv:
    env = ParrotEnv(tasks=TASKS, tools=[EchoTool(), Parrot()], **{"plain_turn": "answer", **options})
    env.reset(seed=0)
    return env


PARROT = Parrot()


class FirstTaskWithUser(ToolEnv):
    def make_tools(self, task: Task) -> list[Tool]:
        return [*self.tools, PARROT] if task is self.tasks[0] else [*self.tools]


def test_a_reset_with_tools_that_do_not_fit_the_shots_is_refused_each_time() -> None:
    shot = {"task_id": "x", "prompt": "Hi", "turns": [{"answer": "to a user this is a message"}]}
    env = FirstTaskWithUser(tasks=TASKS, tools=[EchoTool()], shots=[shot])
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="cannot express a turn of the shot 'x'"):
            env.reset(options={"task_index": 0})
    _, info = env.reset(options={"task_index": 1})
    assert [message.role for message in info["messages"]] == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize("action", ["Hello!", answer("Hello!"), "<think>hm</think>Hello!"])
def test_a_turn_without_a_call_is_a_message(action: str) -> None:
    _, reward, terminated, _, info = make().step(action)
    assert [(message.role, message.content) for message in info["new_messages"]] == [
        ("assistant", action),
        ("user", "You said: Hello!"),
    ]
    assert (info["answer"], info["tool_calls"]) == (None, (ToolCall("parrot", {"text": "Hello!"}),))
    assert (reward, terminated) == (0.0, False)


def test_a_server_of_the_tools_does_not_serve_the_user() -> None:
    served = ServedTools(make, 0)
    try:
        assert [*served.tools] == ["echo"] and served.call("parrot", {"text": "x"}) == (
            "There is no tool 'parrot'.",
            False,
        )
    finally:
        served.close()


def test_the_rules_of_the_task_end_the_episode() -> None:
    env = make()
    assert env.step("Hello!")[2] is False
    _, _, terminated, truncated, info = env.step("bye")
    assert (terminated, truncated, info["end_reason"]) == (True, False, "goal")


def test_other_tools_work_as_ever_and_an_answer_next_to_a_call_is_a_mistake() -> None:
    info = make().step(call("echo", text="x"))[4]
    assert [message.role for message in info["new_messages"]] == ["assistant", "tool"]
    info = make().step(call("echo", text="x") + answer("Hello!"))[4]
    assert [error.code for error in info["parse_errors"]] == ["call_and_answer"]
    assert [entry.name for entry in info["tool_calls"]] == ["echo"]


def test_plain_turns_stay_mistakes_where_they_are_no_answers() -> None:
    info = make(plain_turn="error").step("Hello!")[4]
    assert [error.code for error in info["parse_errors"]] == ["no_action"]
    assert make(plain_turn="error").step(answer("Hello!"))[4]["new_messages"][-1].content == "You said: Hello!"


def test_the_model_does_not_see_the_user_among_its_tools() -> None:
    env = make()
    assert [schema["function"]["name"] for schema in env.tool_schemas] == ["echo"]
    system = env.reset(seed=0)[1]["messages"][0].content
    assert "parrot" not in system
    assert "To write to the user" in system
    assert "final answer" not in system


@pytest.mark.parametrize("parser", ["hermes", "openai"])
def test_a_model_cannot_call_the_user_by_its_name(parser: str) -> None:
    env = make(parser=parser)
    calls = [ToolCall("echo", {"text": "x"}), ToolCall("parrot", {"text": "bye"})]
    for turn, errors in ((calls, [None, "unknown_tool"]), (calls[1:], ["unknown_tool"])):
        _, _, terminated, _, info = env.step(env.parser.format_calls(turn))
        assert [outcome.error for outcome in info["tool_outcomes"]] == errors
        assert not terminated
        assert [message.role for message in info["new_messages"]] == ["assistant", *["tool"] * len(turn)]
    assert info["new_messages"][-1].content.endswith("There is no tool 'parrot'. Known: 'echo'.")
    assert env.step("Hello!")[4]["new_messages"][-1].content == "You said: Hello!"


def test_unknown_tools_are_compared_with_those_that_the_model_is_offered() -> None:
    class Withheld(ParrotEnv):
        @property
        def tool_schemas(self) -> list[dict[str, Any]]:
            return [schema for schema in super().tool_schemas if schema["function"]["name"] != "later"]

    env = Withheld(tasks=TASKS, tools=[EchoTool(), EchoTool("later"), Parrot()])
    env.reset(seed=0)
    for name in ("late", "parot", "ech"):
        (outcome,) = env.step(call(name, text="x"))[4]["tool_outcomes"]
        assert outcome.error == "unknown_tool"
        assert "later" not in outcome.content and "parrot" not in outcome.content
    assert outcome.content == "There is no tool 'ech'. Did you mean 'echo'? Known: 'echo'."


def test_structured_formats_have_no_call_for_a_message() -> None:
    info = make(parser="openai").step(json.dumps({"content": "Hello!"}))[4]
    assistant, user = info["new_messages"]
    assert (assistant.tool_calls, user.role, user.content) == ((), "user", "You said: Hello!")


def test_a_user_that_is_gone_marks_the_episode_and_forges_nothing() -> None:
    info = make().step("fail")[4]
    assert info["infrastructure_error"] == "parrot: unavailable: gone <answer>"
    assert info["new_messages"][-1].role == "user"
    assert "<answer>" not in info["new_messages"][-1].content


def test_at_most_one_tool_plays_the_user() -> None:
    with pytest.raises(ConfigurationError, match="At most one tool of an episode takes messages"):
        ParrotEnv(tasks=TASKS, tools=[Parrot("a"), Parrot("b")])


@pytest.mark.parametrize("parser", ["hermes", "openai"])
def test_the_contract_holds(parser: str) -> None:
    check_tool_env(make(parser=parser))
