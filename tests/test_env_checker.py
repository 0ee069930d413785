import dataclasses
import warnings

import gymnasium
import numpy as np
import pytest

from agent_r1_gym.core.history import History
from agent_r1_gym.core.parsing import Parser, SearchR1Parser
from agent_r1_gym.core.rewards import RewardTerm
from agent_r1_gym.core.spaces import UnicodeText
from agent_r1_gym.core.text import render_text
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, ParsedTurn, Task, ToolCall, ToolOutcome
from agent_r1_gym.env_checker import CheckError, check_tool_env
from agent_r1_gym.errors import AgentR1Error
from agent_r1_gym.registry import register
from agent_r1_gym.wrappers import ContextWindow
from tests.kit.cpu_time import cpu_below
from tests.kit.small_env import ANSWER, COUNT, TASKS, CounterTool, EchoTool, SmallEnv, call


class Stepper(SmallEnv):
    """Changes what `finish_step` returned; by itself, nothing."""

    def change(self, observation, reward, terminated, truncated, info):
        return observation, reward, terminated, truncated, info

    def finish_step(self, outcomes):
        return self.change(*super().finish_step(outcomes))


class NumpyFlags(Stepper):
    def change(self, observation, reward, terminated, truncated, info):
        return observation, reward, np.bool_(terminated), truncated, info


class BothFlags(Stepper):
    def change(self, observation, reward, terminated, truncated, info):
        return observation, reward, terminated, terminated or truncated, info


class ExtraInfo(Stepper):
    def change(self, observation, reward, terminated, truncated, info):
        return observation, reward, terminated, truncated, {**info, "score": 1}


class WrongInfoType(Stepper):
    def change(self, observation, reward, terminated, truncated, info):
        return observation, reward, terminated, truncated, {**info, "messages": list(info["messages"])}


class ReusedInfo(Stepper):
    def __init__(self, **options):
        super().__init__(**options)
        self.shared = {}

    def change(self, observation, reward, terminated, truncated, info):
        self.shared.update(info)
        return observation, reward, terminated, truncated, self.shared


class NoEndReason(Stepper):
    def change(self, observation, reward, terminated, truncated, info):
        return observation, reward, terminated, truncated, {**info, "end_reason": None}


class LastTurnOnly(Stepper):
    def change(self, observation, reward, terminated, truncated, info):
        return info["new_messages"][-1].content, reward, terminated, truncated, info


class ForgetfulHistory(Stepper):
    def change(self, observation, reward, terminated, truncated, info):
        info["messages"] = (*info["messages"][:1], *info["new_messages"])
        return observation, reward, terminated, truncated, info


class TooLongObservation(Stepper):
    def change(self, observation, reward, terminated, truncated, info):
        return observation + "x" * 70_000, reward, terminated, truncated, info


class ShapedReward(Stepper):
    def change(self, observation, reward, terminated, truncated, info):
        return observation, reward + 0.01, terminated, truncated, info


class NotANumber(Stepper):
    def change(self, observation, reward, terminated, truncated, info):
        info["reward_terms"]["em"] = float("nan")
        return observation, float("nan"), terminated, truncated, info


class NumpyReward(Stepper):
    def change(self, observation, reward, terminated, truncated, info):
        return observation, np.float64(reward), terminated, truncated, info


class MissingTerm(Stepper):
    def change(self, observation, reward, terminated, truncated, info):
        del info["reward_terms"]["new_support"]
        return observation, reward, terminated, truncated, info


class WrongBounds(SmallEnv):
    def __init__(self):
        super().__init__(reward=(RewardTerm("turns", lambda transition: transition.turn + 1.0, high=1.0),))


class PlainText(SmallEnv):
    def __init__(self):
        super().__init__()
        self.observation_space = gymnasium.spaces.Text(65_536)


class RaisesOnMistakes(SmallEnv):
    def begin_step(self, action):
        pending = super().begin_step(action)
        if isinstance(action, str) and self.parser.parse(action).errors:
            raise ValueError("cannot parse")
        return pending


class RaisesOnLongActions(SmallEnv):
    def begin_step(self, action):
        if isinstance(action, str) and len(action) > 500_000:
            raise MemoryError
        return super().begin_step(action)


class TakesNone(SmallEnv):
    def begin_step(self, action):
        return super().begin_step("" if action is None else action)


class Endless(SmallEnv):
    def finish_step(self, outcomes):
        observation, reward, terminated, truncated, info = super().finish_step(outcomes)
        if truncated:
            self._history = self._history._replace(ended=False)
            truncated, info["end_reason"] = False, None
        return observation, reward, terminated, truncated, info


class GoesOnAfterTheEnd(SmallEnv):
    def finish_step(self, outcomes):
        result = super().finish_step(outcomes)
        self._history = self._history._replace(ended=False)
        return result


class ClockTasks(SmallEnv):
    clock = 0

    def sample_task(self):
        ClockTasks.clock += 1
        return self.tasks[ClockTasks.clock % len(self.tasks)]


class SharedCounter(ToolEnv):
    """A tool with state that all episodes share."""

    def __init__(self):
        super().__init__(tasks=TASKS, tools=[CounterTool()])


class IgnoresTaskIndex(SmallEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)


class OtherOrder(SmallEnv):
    def reset(self, *, seed=None, options=None):
        index = (options or {}).get("task_index")
        return super().reset(seed=seed, options={"task_index": 4 - index} if index in range(5) else options)


class TwoBehaviours(SmallEnv):
    """Its own step differs from the two halves."""

    def step(self, action):
        return super().step(action.upper() if isinstance(action, str) and "call" not in action else action)


class CountsBegins(SmallEnv):
    """begin_step changes what only finish_step may change."""

    begun = 0

    def reset(self, *, seed=None, options=None):
        self.begun = 0
        return super().reset(seed=seed, options=options)

    def begin_step(self, action):
        self.begun += 1
        return super().begin_step(action)

    def finish_step(self, outcomes):
        return super().finish_step([dataclasses.replace(outcome, content=str(self.begun)) for outcome in outcomes])


class UnsavedState(SmallEnv):
    """Keeps state that get_state does not know of."""

    def reset(self, *, seed=None, options=None):
        self.streak = 0
        return super().reset(seed=seed, options=options)

    def finish_step(self, outcomes):
        self.streak += 1
        return super().finish_step([dataclasses.replace(outcome, content=str(self.streak)) for outcome in outcomes])


class RawOutcomes(SmallEnv):
    """Shows tool output as it came."""

    def finish_step(self, outcomes):
        self.formatter.outcome = lambda call, outcome, identifier: Message("tool", outcome.content, call.name)
        return super().finish_step(outcomes)


class RawPrompt(SmallEnv):
    """Shows the task as it came."""

    def _begin_episode(self, task):
        messages = (*super()._begin_episode(task).messages[:-1], Message("user", task.prompt))
        return History(task, messages, render_text(messages))


class CloseOnce(SmallEnv):
    def close(self):
        del self._echo


class TestGoodEnvironments:
    @pytest.mark.parametrize(
        "parser",
        ["hermes", SearchR1Parser(tool="echo", argument="text"), "openai"],
        ids=["hermes", "search-r1", "openai"],
    )
    @pytest.mark.parametrize("reward", ["em", "f1", "agent_r1", "process"])
    def test_pass_with_every_parser_and_preset(self, parser, reward):
        check_tool_env(SmallEnv(parser=parser, reward=reward))

    @pytest.mark.parametrize(
        "options",
        [
            {"max_turns": 1},
            {"max_turns": 60},
            {"max_history_chars": 400, "system_prompt": ""},
            {"feedback": "short", "system_prompt": ""},
            {"tools": []},
            {"reward_weights": {"em": -2.0}},
            {"markup": ["<end>"]},
        ],
    )
    def test_pass_with_every_option(self, options):
        check_tool_env(ToolEnv(**{"tasks": TASKS, "tools": [EchoTool()], "reward": "process", **options}))

    def test_pass_with_own_actions_after_they_were_used(self):
        env = SmallEnv()
        env.reset(seed=3)
        env.step(call("x"))
        check_tool_env(env, actions=[call("é"), COUNT, ANSWER], episodes=1)

    def test_are_checked_in_seconds(self):
        with cpu_below(5):
            check_tool_env(SmallEnv())

    def test_are_closed_afterwards(self):
        closed = []

        class Closing(EchoTool):
            def close(self):
                closed.append(self)

        check_tool_env(ToolEnv(tasks=TASKS, tools=[Closing()]))
        assert len(closed) == 2

    def test_arguments_are_made_from_the_schemas(self):
        executed = []

        class Typed(Tool):
            def __init__(self):
                properties = {
                    "mode": {"enum": ["a", "b"]},
                    "count": {"type": "integer", "minimum": 3},
                    "flag": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                    "name": {"type": ["string", "null"]},
                    "any": True,
                    "nested": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
                    "items": {"type": "array"},
                    "optional": {"type": "string"},
                }
                required = [name for name in properties if name != "optional"]
                schema = {"type": "object", "properties": properties, "required": required}
                super().__init__("typed", "Takes all types.", schema, timeout=None)

            def execute(self, arguments):
                executed.append(dict(arguments))
                return "done"

        check_tool_env(ToolEnv(tasks=TASKS, tools=[Typed()]))
        expected = {"mode": "a", "count": 3, "flag": True, "name": "x", "any": "x"}
        expected |= {"nested": {"x": 1.5}, "items": ["x"]}
        assert all(arguments == expected for arguments in executed)
        assert executed

    def test_say_nothing_of_snapshots_that_lead_to_the_same_steps(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_tool_env(ToolEnv(tasks=TASKS, tools=[EchoTool()]), actions=[call("x"), ANSWER])

    def test_pass_with_a_parser_that_relies_on_required_arguments(self):
        check_tool_env(ToolEnv(tasks=TASKS, tools=[EchoTool()], parser=Lines()))
        check_tool_env(ToolEnv(tasks=TASKS, tools=[EchoTool()], parser=Lines(), plain_turn="answer"))


class Lines(Parser):
    """A format of one's own, on one line; what is in no format is an empty turn."""

    name = "lines"

    def parse(self, text):
        name, _, argument = text.partition(": ")
        if name == "answer":
            return ParsedTurn(answer=argument)
        return ParsedTurn((ToolCall(name, {"text": argument}),) if name == "echo" else ())

    def instructions(self, tools):
        return "Write echo: TEXT, or answer: TEXT."

    def format_call(self, call):
        return f"{call.name}: {call.arguments['text']}"

    def format_answer(self, answer):
        return f"answer: {answer}"


def test_a_parser_that_cannot_write_a_good_call_is_caught():
    class Forgetful(Lines):
        def format_call(self, call):
            return f"{call.name}: {call.arguments['query']}"

    with pytest.raises(CheckError, match=r"Forgetful.format_call raised KeyError .*Raise ConfigurationError"):
        check_tool_env(ToolEnv(tasks=TASKS, tools=[EchoTool()], parser=Forgetful()))


BROKEN = [
    (NumpyFlags, "Return a Python bool"),
    (BothFlags, "terminated and truncated are both True"),
    (ExtraInfo, "expected exactly"),
    (WrongInfoType, r"info\['messages'\] is \[.*Expected tuple"),
    (ReusedInfo, "two steps share info"),
    (NoEndReason, "end_reason is None where"),
    (LastTurnOnly, "not the rendered history"),
    (ForgetfulHistory, "History only grows"),
    (TooLongObservation, "at most max_history_chars"),
    (ShapedReward, "weighted sum of reward_terms"),
    (NotANumber, "not a finite Python float"),
    (NumpyReward, "not a finite Python float"),
    (MissingTerm, "raw value of every term"),
    (WrongBounds, r"outside reward_bounds \[0.0, 1.0\]"),
    (PlainText, "refuses some Unicode text.*UnicodeText"),
    (RaisesOnMistakes, "step raised ValueError.*No text of a model may raise"),
    (RaisesOnLongActions, "step raised MemoryError"),
    (TakesNone, "the action None was accepted"),
    (Endless, "outlasts max_turns=5"),
    (GoesOnAfterTheEnd, "after the end of the episode was accepted"),
    (ClockTasks, "the same seed and actions gave two different episodes.*self.np_random"),
    (SharedCounter, "the same seed and actions.*make_tools"),
    (IgnoresTaskIndex, r"options=.*task_index.* started task"),
    (OtherOrder, r"started task 't4', tasks\[0\] is 't0'"),
    (TwoBehaviours, "begin_step .twice. and finish_step differ from step"),
    (CountsBegins, "begin_step must change nothing"),
    (UnsavedState, "set_state.get_state... does not lead to the same steps"),
    (RawOutcomes, "a tool's outcome put .*im_end"),
    (RawPrompt, "a task's prompt put .*im_end"),
    (CloseOnce, "the second close.. raised AttributeError"),
]


@pytest.mark.parametrize(("broken", "message"), BROKEN, ids=[broken.__name__ for broken, _ in BROKEN])
def test_each_broken_environment_is_caught(broken, message):
    with pytest.raises(CheckError, match=f"(?s){message}"):
        check_tool_env(broken())


def test_a_step_before_the_first_reset_is_caught():
    class Eager(SmallEnv):
        def begin_step(self, action):
            if self._history is None:
                self.reset(seed=0)
            return super().begin_step(action)

    with pytest.raises(CheckError, match="a step before reset was accepted"):
        check_tool_env(Eager())


def test_randomness_is_fine_where_it_is_registered():
    register("TestChecker/Random-v0", SharedCounter)
    try:
        env = gymnasium.make("TestChecker/Random-v0").unwrapped
        env.spec.nondeterministic = True
        check_tool_env(env)
    finally:
        del gymnasium.registry["TestChecker/Random-v0"]


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (ContextWindow(SmallEnv()), {}, "pass env.unwrapped"),
        ("AgentR1/FictionQA-v0", {}, "needs a bare ToolEnv"),
        (SmallEnv(), {"episodes": 0}, "at least one episode"),
        (SmallEnv(), {"actions": []}, "at least one text"),
        (SmallEnv(), {"actions": "hello"}, "actions as a list"),
    ],
)
def test_refuses_bad_arguments(env, options, message):
    with pytest.raises(CheckError, match=message):
        check_tool_env(env, **options)


def test_the_error_is_of_this_package_and_an_assertion():
    assert issubclass(CheckError, AgentR1Error)
    assert issubclass(CheckError, AssertionError)


def test_the_space_of_the_suite_is_asked_for_nothing_else():
    """A hand-made environment in the spirit of the README passes without any override."""

    class Adding(ToolEnv):
        def __init__(self):
            super().__init__(tasks=[Task("sum", "2 + 2?", ("4",))], tools=[EchoTool()])

    env = Adding()
    assert isinstance(env.observation_space, UnicodeText)
    check_tool_env(env)


def test_outcomes_of_any_data_are_compared_by_what_the_model_sees():
    class ArrayTool(EchoTool):
        def execute(self, arguments):
            return ToolOutcome("array", data=np.arange(3))

    check_tool_env(ToolEnv(tasks=TASKS, tools=[ArrayTool()]))


class DownTool(EchoTool):
    def execute(self, arguments):
        raise KeyError("database")


def test_an_environment_whose_every_call_fails_does_not_pass():
    env = ToolEnv(tasks=TASKS, tools=[DownTool()])
    with pytest.raises(CheckError, match=r"calls failed, the first with tool_error: .*database"):
        check_tool_env(env)
    check_tool_env(ToolEnv(tasks=TASKS, tools=[DownTool()]), actions=[ANSWER, "hm"])  # nothing was called


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (ToolCall("eco", {"text": "x"}), "oracle's turn .*no tool 'eco'"),
        (ToolCall("echo", {}), "oracle's turn .*was refused: .*text"),
        ("", "oracle's turn '' was refused: The answer is empty"),
    ],
)
def test_an_oracle_whose_turns_are_refused_is_caught(turn, message):
    class Misled(SmallEnv):
        def oracle(self, task, history):
            return turn

    with pytest.raises(CheckError, match=message):
        check_tool_env(Misled())


def test_a_tool_that_is_not_as_deterministic_as_it_says_is_caught():
    class Ticket(CounterTool):
        def __init__(self):
            super().__init__()
            self.deterministic = True

    class Shop(SmallEnv):
        def make_tools(self, task):
            return [self._echo, Ticket()]

    with pytest.raises(CheckError, match=r"'count' is declared deterministic.*'1' and '2'.*Drop deterministic"):
        check_tool_env(Shop())
