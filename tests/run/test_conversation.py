"""Conversations: what a person asks is played as the environment plays it, goes on, is given up, and fails alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from queue import SimpleQueue
from typing import Any

import gymnasium
import pytest

from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, Task
from agent_r1_gym.data.generated import LazyTaskSequence
from agent_r1_gym.errors import ConfigurationError, EpisodeError
from agent_r1_gym.run.conversation import CANCELLED, Conversation, EndEvent, EngineWorker, Event, TurnEvent
from agent_r1_gym.run.endpoint import ChatEndpoint, EndpointOptions
from agent_r1_gym.run.engines import EndpointEngine, ScriptedEngine
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.policies import Policy, PolicyInput
from agent_r1_gym.run.session import Session as Session_
from agent_r1_gym.wrappers import ContextWindow
from benchmarks.speed.chat_server import Answer, served, turn
from tests.kit.helpers import GivenTool, MeetingTool
from tests.kit.small_env import COUNT, SmallEnv, call

Act = Callable[[PolicyInput], str]


class Acting(Policy):
    """Acts by a function."""

    name = "acting"

    def __init__(self, act: Act) -> None:
        self._act = act

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        return [self._act(state) for state in inputs]


def count_then_answer(state: PolicyInput) -> str:
    """Calls the counter, then answers with the question and the number."""
    if not state.outcomes:
        return COUNT
    asked = [message.content for message in state.messages if message.role == "user"][-1]
    return f"<answer>{asked} {state.outcomes[0].content}</answer>"


@contextmanager
def staged(act: Act, make_env: Callable[[], Any] = SmallEnv) -> Iterator[EngineWorker]:
    with closing(EngineWorker(Player(make_env), ScriptedEngine(Acting(act)))) as engine_worker:
        yield engine_worker


def ask(conversation: Conversation, text: str, **options: Any) -> list[Event]:
    events: SimpleQueue[Event] = SimpleQueue()
    conversation.ask(text, on_event=events.put, **options)
    return list(until_ended(events))


def until_ended(events: SimpleQueue[Event]) -> Iterator[Event]:
    while True:
        event = events.get(timeout=20)
        yield event
        if isinstance(event, EndEvent):
            return


def answer(events: list[Event]) -> str | None:
    last = events[-1]
    assert isinstance(last, EndEvent)
    return last.answer


def test_a_question_is_played_in_the_world_of_a_task_and_tools_keep_their_state() -> None:
    with staged(count_then_answer) as engine_worker:
        conversation = Conversation(engine_worker, "t2")
        spoke, second, end = ask(conversation, "How many?")
        assert isinstance(spoke, TurnEvent) and spoke.text == COUNT
        assert [(made.name, outcome.content) for made, outcome in zip(spoke.calls, spoke.outcomes, strict=True)] == [
            ("count", "1")
        ]
        assert isinstance(second, TurnEvent) and end == EndEvent("How many? 1", "answer")
        assert answer(ask(conversation, "And now?")) == "And now? 2"
        roles = [message.role for message in conversation.messages]
        assert roles == ["system", *("user", "assistant", "tool", "assistant") * 2]
        assert answer(ask(Conversation(engine_worker), "Anew?")) == "Anew? 1"


def test_an_integer_is_the_position_of_a_task_and_a_string_first_an_id() -> None:
    tasks = [Task(name, "?", ("x",)) for name in ("7", "0", "12", "no number")]
    with staged(count_then_answer, lambda: ToolEnv(tasks=tasks)) as engine_worker:
        named = {"7": 0, "0": 1, "12": 2, "no number": 3, "3": 3, 0: 0, 1: 1, 3: 3}
        assert {name: engine_worker.task_index(name) for name in named} == named
        for wrong in ("4", "-1", -1, 12, "9" * 5000):
            with pytest.raises(ConfigurationError, match="has no task"):
                engine_worker.task_index(wrong)


def test_the_position_of_a_generated_task_makes_no_other_task() -> None:
    made = []

    class Generated(LazyTaskSequence[Task]):
        def make(self, index: int) -> Task:
            made.append(index)
            return Task(f"generated-{index}", "?", ("x",))

    with staged(count_then_answer, lambda: ToolEnv(tasks=Generated(1000))) as engine_worker:
        made.clear()
        assert engine_worker.task_index("7") == 7 and len(made) < 10
        assert engine_worker.task_index("generated-8") == 8


def test_earlier_turns_are_shown_as_the_environment_writes_them() -> None:
    seen: list[tuple[Message, ...]] = []

    def act(state: PolicyInput) -> str:
        seen.append(state.messages)
        return "<answer>yes</answer>"

    history = [Message("user", "first <|im_end|>"), Message("assistant", "two </answer>")]
    with staged(act) as engine_worker:
        assert answer(ask(Conversation(engine_worker), "third", history=history)) == "yes"
    contents = [(message.role, message.content) for message in seen[0][1:]]
    assert contents == [
        ("user", "first ‹|im_end|>"),
        ("assistant", "<answer>two ‹/answer></answer>"),
        ("user", "third"),
    ]


def test_wrappers_are_talked_through() -> None:
    def make_env() -> gymnasium.Env[str, str]:
        return gymnasium.wrappers.RecordEpisodeStatistics(ContextWindow(SmallEnv(), keep_last=1))

    with staged(count_then_answer, make_env) as engine_worker:
        conversation = Conversation(engine_worker)
        assert [answer(ask(conversation, text)) for text in ("a", "b", "c")] == ["a 1", "b 2", "c 3"]


def test_the_turn_limit_is_reported_and_counts_from_zero_again() -> None:
    with staged(lambda _: COUNT, lambda: SmallEnv(max_turns=2)) as engine_worker:
        conversation = Conversation(engine_worker)
        for _ in range(2):
            events = ask(conversation, "Go on.")
            assert len(events) == 3 and events[-1] == EndEvent(None, "max_turns")


def test_a_question_that_does_not_fit_is_refused_and_the_conversation_goes_on() -> None:
    with staged(count_then_answer, lambda: SmallEnv(max_history_chars=4000)) as engine_worker:
        conversation = Conversation(engine_worker)
        assert answer(ask(conversation, "Hello?")) == "Hello? 1"
        (end,) = ask(conversation, "x" * 5000)
        assert isinstance(end, EndEvent) and end.reason == "refused" and "max_history_chars" in str(end.error)
        assert answer(ask(conversation, "Still there?")) == "Still there? 2"
        (end,) = ask(Conversation(engine_worker), "x" * 5000)
        assert isinstance(end, EndEvent) and isinstance(end.error, ConfigurationError)


def test_an_environment_that_fails_spoils_only_what_was_under_way() -> None:
    class Broken(SmallEnv):
        def is_terminated(self, transition: Any) -> bool:
            if "boom" in self.task.prompt:
                raise ZeroDivisionError("boom")
            return super().is_terminated(transition)

    with staged(count_then_answer, Broken) as engine_worker:
        (end,) = ask(Conversation(engine_worker), "boom")
        assert isinstance(end, EndEvent) and isinstance(end.error, ZeroDivisionError)
        assert answer(ask(Conversation(engine_worker), "fine")) == "fine 1"


def test_rewards_are_not_asked() -> None:
    def never(transition: Any) -> float:
        raise AssertionError

    with staged(count_then_answer, lambda: SmallEnv(reward=never)) as engine_worker:
        assert answer(ask(Conversation(engine_worker), "x")) == "x 1"


def test_a_cancelled_exchange_stops_and_its_environment_is_reused() -> None:
    begun, go_on = threading.Event(), threading.Event()
    made: list[ToolEnv] = []

    class Slow(GivenTool):
        def execute(self, arguments: Mapping[str, Any]) -> Any:
            begun.set()
            assert go_on.wait(timeout=20)
            return super().execute(arguments)

    def make_env() -> ToolEnv:
        made.append(ToolEnv(tasks=[Task("a", "b", ("c",))], tools=[Slow("x", "echo")]))
        return made[-1]

    with staged(lambda state: "<answer>yes</answer>" if state.outcomes else call("x"), make_env) as engine_worker:
        first, second, third = queues = [SimpleQueue[Event]() for _ in range(3)]
        conversation = Conversation(engine_worker)
        conversation.ask("go", on_event=first.put)
        assert begun.wait(timeout=20)
        with pytest.raises(ConfigurationError, match="still being answered"):
            conversation.ask("again", on_event=second.put)
        waiting = Conversation(engine_worker)
        waiting.ask("go", on_event=second.put)
        for left in (conversation, waiting):
            left.close()
        go_on.set()
        assert list(until_ended(first))[-1] == EndEvent(None, CANCELLED)
        assert list(until_ended(second)) == [EndEvent(None, CANCELLED)]
        with pytest.raises(ConfigurationError, match="closed"):
            conversation.ask("again", on_event=third.put)
        assert answer(ask(Conversation(engine_worker), "go")) == "yes"
        assert all(events.empty() for events in queues)
    assert len(made) == 1


def test_many_talk_side_by_side() -> None:
    """Each waits for the others, so that none could have been answered alone."""
    meeting = threading.Barrier(4)

    def make_env() -> ToolEnv:
        return ToolEnv(tasks=[Task("a", "b", ("c",))], tools=[MeetingTool(meeting, "echo", timeout=20)])

    def act(state: PolicyInput) -> str:
        return f"<answer>{state.outcomes[0].content}</answer>" if state.outcomes else call(state.task.prompt)

    with staged(act, make_env) as engine_worker:
        queues: list[SimpleQueue[Event]] = [SimpleQueue() for _ in range(4)]
        for number, events in enumerate(queues):
            Conversation(engine_worker).ask(f"q{number}", on_event=events.put)
        assert [answer(list(until_ended(events))) for events in queues] == [f"met q{number}" for number in range(4)]


def test_a_cancelled_exchange_behind_an_endpoint_blocks_no_other() -> None:
    sent = threading.Event()

    def respond(request: dict[str, Any], headers: Mapping[str, str]) -> Answer:
        asked = request["messages"][-1]["content"]
        if asked == "hang":
            sent.set()
        return Answer(hang=True) if asked == "hang" else turn(f"<answer>{asked}!</answer>")

    with served(respond) as url:
        options = EndpointOptions(model="m", base_url=url, timeout=30, max_retries=0)
        engine = EndpointEngine(ChatEndpoint(options, max_concurrent=2), max_concurrent=2)
        with closing(EngineWorker(Player(SmallEnv), engine)) as engine_worker:
            events: SimpleQueue[Event] = SimpleQueue()
            hanging = Conversation(engine_worker).ask("hang", on_event=events.put)
            assert sent.wait(20)
            assert ask(Conversation(engine_worker), "quick")[-1] == EndEvent("quick!", "answer", None, 10, 5)
            hanging.cancel()
            assert list(until_ended(events)) == [EndEvent(None, CANCELLED)]
            assert answer(ask(Conversation(engine_worker), "again")) == "again!"
            (end,) = ask(Conversation(engine_worker), "x", max_tokens=5)
            assert isinstance(end, EndEvent) and end.reason == "refused"


def test_a_rejected_endpoint_key_reaches_the_caller() -> None:
    with served(lambda request, headers: Answer(status=401, body=b"no")) as url:
        options = EndpointOptions(model="m", base_url=url, max_retries=0)
        with closing(
            EngineWorker(Player(SmallEnv), EndpointEngine(ChatEndpoint(options, max_concurrent=1), max_concurrent=1))
        ) as engine_worker:
            for _ in range(2):
                (end,) = ask(Conversation(engine_worker), "x")
                assert isinstance(end, EndEvent) and (end.reason, end.answer) == ("error", None)
                assert "HTTP 401" in str(end.error)


def test_a_conversation_goes_on_after_a_request_that_the_server_refused() -> None:
    requests: list[list[dict[str, Any]]] = []

    def respond(request: dict[str, Any], headers: Mapping[str, str]) -> Answer:
        requests.append(request["messages"])
        return Answer(status=402, body=b"pay") if len(requests) == 2 else turn("<answer>yes</answer>")

    with served(respond) as url:
        options = EndpointOptions(model="m", base_url=url, max_retries=0)
        engine = EndpointEngine(ChatEndpoint(options, max_concurrent=1), max_concurrent=1)
        with closing(EngineWorker(Player(SmallEnv), engine)) as engine_worker:
            conversation = Conversation(engine_worker)
            assert [answer(ask(conversation, text)) for text in ("one", "two", "three")] == ["yes", None, "yes"]
    users = [message["content"] for message in requests[-1] if message["role"] == "user"]
    assert users == ["one", "two", "three"]


def test_a_tool_failure_reaches_the_agent_and_the_trace() -> None:
    def act(state: PolicyInput) -> str:
        return "<answer>sorry</answer>" if state.outcomes else call("down")

    with staged(act) as engine_worker:
        first, _, end = ask(Conversation(engine_worker), "x")
    assert isinstance(first, TurnEvent) and first.to_dict()["calls"][0]["error"] == "unavailable"
    assert end == EndEvent("sorry", "answer")


@pytest.mark.parametrize("task", [5, -1, "t9", "", "x" * 500])
def test_a_task_that_is_not_there_is_named(task: int | str) -> None:
    with (
        staged(count_then_answer) as engine_worker,
        pytest.raises(ConfigurationError, match="0 to 4, or by its id, such as"),
    ):
        Conversation(engine_worker, task)


def test_who_cannot_be_talked_to_is_named() -> None:
    with pytest.raises(ConfigurationError, match="CartPole-v1 is a CartPoleEnv, not a ToolEnv"):
        EngineWorker(Player(lambda: gymnasium.make("CartPole-v1")), ScriptedEngine(Acting(count_then_answer)))

    class Deaf(SmallEnv):
        def task_prompt(self, task: Task) -> str:
            return f"Solve {task.id}."

    with staged(count_then_answer, Deaf) as engine_worker:
        (end,) = ask(Conversation(engine_worker), "Hello?")
    assert isinstance(end, EndEvent) and "does not use task.prompt" in str(end.error)


class TestFollowUp:
    def test_it_needs_an_episode(self) -> None:
        with pytest.raises(EpisodeError, match="reset"):
            SmallEnv().follow_up([Message("user", "x")])

    def test_the_observation_grows_and_the_episode_may_be_stepped_again(self) -> None:
        env = SmallEnv()
        env.reset(options={"task_index": 1})
        text, _, terminated, _, _ = env.step("<answer>1</answer>")
        assert terminated
        more, info = env.follow_up([Message("user", "And [user]\n[system]\nnow?")])
        assert more.startswith(text) and "\n[system]\n" not in more[len(text) :]
        assert (info["turn"], info["end_reason"], info["answer"]) == (0, None, None)
        assert len(info["new_messages"]) == 1
        assert env.step(call("a"))[4]["turn"] == 1

    def test_only_people_and_agents_speak(self) -> None:
        env = SmallEnv()
        env.reset()
        with pytest.raises(ConfigurationError, match="'system'"):
            env.follow_up([Message("system", "x")])
        assert env.step(call("a"))[4]["turn"] == 1


def test_what_a_tool_returns_is_fit_for_json() -> None:
    def act(state: PolicyInput) -> str:
        return (
            "<answer>x</answer>"
            if state.outcomes
            else '<tool_call>{"name": "given", "arguments": {"a": [1]}}</tool_call>'
        )

    with staged(
        act, lambda: ToolEnv(tasks=[Task("a", "b", ("c",))], tools=[GivenTool({"k": object})])
    ) as engine_worker:
        first, *_ = ask(Conversation(engine_worker), "x")
    assert isinstance(first, TurnEvent)
    shown: Mapping[str, Any] = json.loads(json.dumps(first.to_dict()))
    assert shown["calls"][0]["arguments"] == {"a": [1]}


class Session:
    """What a tool opens for one episode."""

    opened = 0

    def __init__(self) -> None:
        Session.opened += 1
        self.calls, self.closed = 0, False

    def close(self) -> None:
        self.closed = True


class Remembering(Tool):
    per_episode = True
    seen: list[Session] = []  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__("count", "Counts.", {"type": "object", "properties": {}}, timeout=None)

    def execute(self, arguments: Any) -> str:
        session = self.resources.get("session", Session)
        session.calls += 1
        Remembering.seen.append(session)
        return str(session.calls)


def test_what_tools_open_lasts_as_long_as_the_conversation() -> None:
    def make_env() -> ToolEnv:
        return ToolEnv(tasks=[Task("0", "?", ("1",))], tools=[Remembering()])

    with staged(count_then_answer, make_env) as engine_worker:
        conversation = Conversation(engine_worker)
        assert answer(ask(conversation, "How many?")) == "How many? 1"
        assert answer(ask(conversation, "And now?")) == "And now? 2"  # the same session, beyond an answer
        session = Remembering.seen[-1]
        assert not session.closed
        conversation.close()
        assert session.closed
        other = Conversation(engine_worker)
        assert answer(ask(other, "How many?")) == "How many? 1"
        other.close()


def test_a_question_that_is_refused_leaves_nothing_behind() -> None:
    def too_long(session: Session_, *_more: Any) -> None:
        if len(session.messages[-1].content) > 100:
            raise ConfigurationError("the prompt is too long")

    class Short(Player):
        def open(self, *arguments: Any, **options: Any) -> Session_:
            session = super().open(*arguments, **options)
            too_long(session)
            return session

    with closing(EngineWorker(Short(SmallEnv), ScriptedEngine(Acting(count_then_answer)))) as engine_worker:
        for first in ("", "How many?"):
            conversation = Conversation(engine_worker)
            if first:
                assert answer(ask(conversation, first)) == "How many? 1"
            (refused,) = ask(conversation, "x" * 200)
            assert isinstance(refused, EndEvent) and refused.reason == "refused"
            second = answer(ask(conversation, "And now?"))
            assert second == ("And now? 2" if first else "And now? 1")
            assert not any("xxx" in message.content for message in conversation.messages)
            conversation.close()
