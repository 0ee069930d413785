"""The endpoint against a server that misbehaves in every way, and what the player makes of it."""

import gzip
import json
import threading

import pytest

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, Passage, Task
from agent_r1_gym.errors import ConfigurationError, InfrastructureError, InfrastructureTimeout
from agent_r1_gym.run.endpoint import ChatEndpoint, Completion, ContextLengthError, EndpointOptions
from agent_r1_gym.run.engines import EndpointEngine
from agent_r1_gym.run.player import Player, evaluation_jobs
from agent_r1_gym.run.policies import make_prompt_method
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.tools.search import SearchTool
from benchmarks.speed.chat_server import Answer, served, turn
from tests.kit.helpers import TASKS, CounterTool, EchoTool, StubRetriever, answer, call

JOBS = evaluation_jobs(range(3), samples=2)
FIRST, AGAIN, SECOND, _, THIRD, _ = JOBS
HELLO = (Message("user", "hello"),)
GOOD = turn("hi")


class Script:
    """Answers with one item after the other, then with the last for ever; keeps what it was sent."""

    def __init__(self, *answers):
        self.answers, self.requests, self.headers = list(answers), [], []

    def __call__(self, extra_body, headers):
        self.requests.append(extra_body)
        self.headers.append(headers)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def ask(script, **options):
    with served(script) as url:
        settings = {"model": "m", "base_url": url, "initial_backoff": 0.0, "timeout": 5.0, **options}
        endpoint = ChatEndpoint(EndpointOptions(**settings), max_concurrent=2)
        try:
            return endpoint.complete(HELLO, seed=7)
        finally:
            endpoint.close()


class TestFaults:
    @pytest.mark.parametrize(
        "fault",
        [
            Answer(status=429),
            Answer(status=429, headers={"Retry-After": "0"}),
            Answer(status=429, headers={"Retry-After": "soon"}),
            Answer(status=500, body=b"<html>"),
            Answer(status=503),
            Answer(drop=True),
        ],
        ids=lambda fault: f"{fault.status}-{fault.headers}-{fault.drop}",
    )
    def test_a_passing_fault_is_tried_again(self, fault):
        script = Script(fault, fault, GOOD)
        assert ask(script).content == "hi"
        assert len(script.requests) == 3
        assert script.requests[0] == script.requests[2]

    def test_a_lasting_one_is_infrastructure_after_all_attempts(self):
        script = Script(Answer(status=503, body=b"busy"))
        with pytest.raises(InfrastructureError, match="HTTP 503: 'busy'"):
            ask(script, max_retries=2)
        assert len(script.requests) == 3

    def test_a_server_that_hangs_is_given_up_in_time(self):
        script = Script(Answer(hang=True))
        with pytest.raises(InfrastructureTimeout, match="2 times"):
            ask(script, max_retries=1, timeout=0.2)
        assert len(script.requests) == 2

    def test_connection_refused(self):
        options = EndpointOptions(model="m", base_url="http://127.0.0.1:9/v1", initial_backoff=0.0, max_retries=1)
        with pytest.raises(InfrastructureError, match="failed 2 times"):
            ChatEndpoint(options, max_concurrent=1).complete(HELLO, seed=0)

    @pytest.mark.parametrize(
        "body",
        [
            *(b"", b"{", b"[]", b"{}", b'{"choices": []}', b"[" * 100_000),
            b'{"choices": [{"message": {"content": 5}}]}',
            b'{"choices": [{"message": {"content": "x", "tool_calls": [5]}}]}',
        ],
    )
    def test_garbage_is_infrastructure_not_an_empty_turn(self, body):
        with pytest.raises(InfrastructureError, match="not a chat completion"):
            ask(Script(Answer(body)))

    @pytest.mark.parametrize(
        ("usage", "expected"),
        [
            ({"prompt_tokens": 3.0, "completion_tokens": 4}, (3, 4)),
            ({"prompt_tokens": -3, "completion_tokens": 10**30}, (None, None)),
            ({"prompt_tokens": "3", "completion_tokens": float("nan")}, (None, None)),
            ([3, 4], (None, None)),
            ("none", (None, None)),
        ],
    )
    def test_invalid_token_counts_cost_no_answer(self, usage, expected):
        body = json.dumps({"choices": [{"message": {"content": "hi"}}], "usage": usage}).encode()
        reply = ask(Script(Answer(body)))
        assert (reply.content, (reply.prompt_tokens, reply.completion_tokens)) == ("hi", expected)

    def test_a_redirect_is_not_followed(self):
        with pytest.raises(InfrastructureError, match="HTTP 307"):
            ask(Script(Answer(status=307, headers={"Location": "http://127.0.0.1:9/"})))

    def test_an_endless_or_packed_answer_is_infrastructure_not_memory(self):
        with pytest.raises(InfrastructureError, match="more than 1000 bytes"):
            ask(Script(Answer(b" " * 2**20)), max_bytes=1000, max_retries=0)
        bomb = gzip.compress(b" " * 2**24)
        with pytest.raises(InfrastructureError, match="asked for no compression"):
            ask(Script(Answer(bomb, headers={"Content-Encoding": "gzip"})), max_retries=0)

    def test_an_endpoint_that_keeps_failing_is_left_alone_for_a_while(self):
        script = Script(Answer(status=503))
        with served(script) as url:
            options = EndpointOptions(model="m", base_url=url, max_retries=0, breaker_failures=2)
            endpoint = ChatEndpoint(options, max_concurrent=1)
            for _ in range(2):
                with pytest.raises(InfrastructureError, match="HTTP 503"):
                    endpoint.complete(HELLO, seed=0)
            with pytest.raises(InfrastructureError, match="left alone") as refusal:
                endpoint.complete(HELLO, seed=0)
            endpoint.close()
        assert len(script.requests) == 2
        assert 0 < refusal.value.retry_after <= options.breaker_cooldown

    def test_what_it_refuses_for_the_requests_sake_opens_no_breaker(self):
        script = Script(Answer(status=422), Answer(status=422), GOOD)
        with served(script) as url:
            options = EndpointOptions(model="m", base_url=url, max_retries=0, breaker_failures=1)
            endpoint = ChatEndpoint(options, max_concurrent=1)
            for _ in range(2):
                with pytest.raises(InfrastructureError, match="HTTP 422"):
                    endpoint.complete(HELLO, seed=0)
            assert endpoint.complete(HELLO, seed=0).content == "hi"
            endpoint.close()

    @pytest.mark.parametrize("status", [401, 403, 404])
    def test_a_wrong_key_or_model_stops_at_once(self, status, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        script = Script(Answer(status=status, body=b"bad key sk-secret"))
        with pytest.raises(ConfigurationError, match="bad key <key>"):
            ask(script)
        assert len(script.requests) == 1
        assert script.headers[0]["authorization"] == "Bearer sk-secret"

    @pytest.mark.parametrize("ending", ["\n", "\r", "\n\n", "\u2019"])
    def test_a_key_that_cannot_be_sent_is_refused_and_never_shown(self, ending, monkeypatch):
        monkeypatch.delenv("AGENT_R1_API_KEY", raising=False)
        monkeypatch.setenv("OPENAI_API_KEY", f"sk-secret{ending}")
        options = EndpointOptions(model="m", base_url="http://127.0.0.1:9/v1")
        with pytest.raises(ConfigurationError, match="The key of OPENAI_API_KEY cannot be sent") as refusal:
            ChatEndpoint(options, max_concurrent=1)
        assert "sk-secret" not in str(refusal.value) and refusal.value.__cause__ is None

    def test_a_too_long_history_is_a_separate_error(self):
        with pytest.raises(ContextLengthError):
            ask(Script(Answer(status=400, body=b'{"error": {"code": "context_length_exceeded"}}')))


class TestRequest:
    def test_what_is_sent(self):
        script = Script(GOOD)
        found = ask(script, temperature=0.5, top_p=0.9, max_turn_tokens=9, extra_body={"seed": None, "top_k": 4})
        assert script.requests[0] == {
            "model": "m",
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 9,
            "temperature": 0.5,
            "top_p": 0.9,
            "top_k": 4,
        }
        assert (found.prompt_tokens, found.completion_tokens) == (10, 5)

    def test_no_key_no_header(self, monkeypatch):
        for name in ("AGENT_R1_API_KEY", "OPENAI_API_KEY"):
            monkeypatch.delenv(name, raising=False)
        script = Script(GOOD)
        ask(script)
        assert "authorization" not in script.headers[0]

    def test_the_smallest_options_are_accepted(self):
        smallest = {"max_bytes": 1, "max_retries": 0, "max_turn_tokens": 1}
        options = EndpointOptions(model="m", base_url="http://127.0.0.1/v1", **smallest)
        assert (options.max_bytes, options.max_retries, options.max_turn_tokens) == (1, 0, 1)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"base_url": "localhost:8000"},
            {"base_url": "http://me:pw@host/v1"},
            {"max_retries": -1},
            {"tool_role": "system"},
        ],
    )
    def test_wrong_options_are_refused(self, wrong):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            EndpointOptions(**{"model": "m", "base_url": "http://127.0.0.1/v1", **wrong})


def play(script, *, method="tools", jobs=(FIRST,), env=None, **options):
    with served(script) as url:
        settings = {"model": "m", "base_url": url, "initial_backoff": 0.0, "timeout": 5.0, **options}
        engine = EndpointEngine(ChatEndpoint(EndpointOptions(**settings), max_concurrent=4), max_concurrent=4)
        player = Player(env or (lambda: ToolEnv(tasks=TASKS, tools=[EchoTool()])), method=make_prompt_method(method))
        records = {}
        try:
            player.play(jobs, engine, lambda record: records.update({(record.task_index, record.sample): record}))
            return records
        finally:
            engine.close()


class TestPlayer:
    def test_plain_text_calls(self):
        script = Script(turn(call("echo", text="x")), turn(answer("Paris")))
        trajectory = play(script)[0, 0]
        assert trajectory.answer == "Paris" and trajectory.terminated
        assert "tools" not in script.requests[0]
        assert script.requests[1]["messages"][-1] == {"role": "tool", "content": "echo x", "name": "echo"}
        assert [turn.completion_tokens for turn in trajectory.turns] == [5, 5]

    def test_tool_turns_as_user_turns(self):
        script = Script(turn(call("echo", text="x")), turn(answer("Paris")))
        play(script, tool_role="user")
        last = script.requests[1]["messages"][-1]
        assert last == {"role": "user", "content": "<tool_response>\necho x\n</tool_response>"}

    def test_what_a_server_takes_apart_is_put_together(self):
        """Some servers parse calls and thinking out of the text though no tools were declared."""
        function = {"name": "echo", "arguments": '{"text": "x"}'}
        apart = turn(None, reasoning_content="hm", tool_calls=[{"id": "1", "type": "function", "function": function}])
        trajectory = play(Script(apart, turn(answer("Paris"))))[0, 0]
        written = '<think>hm</think><tool_call>\n{"name": "echo", "arguments": {"text": "x"}}\n</tool_call>'
        assert trajectory.turns[0].action == written
        assert trajectory.turns[0].call_errors == (None,)

    def test_a_broken_structured_call_is_the_models_mistake(self):
        broken = turn(
            None, tool_calls=[{"id": "1", "type": "function", "function": {"name": "echo", "arguments": "{"}}]
        )
        trajectory = play(Script(broken, turn(answer("Paris"))))[0, 0]
        assert trajectory.turns[0].parse_errors == ("bad_json",)
        assert trajectory.infrastructure_error is None

    def test_structured_calls(self):
        function = {"name": "echo", "arguments": '{"text": "x"}'}
        calls = [{"id": "c9", "type": "function", "function": function}]
        script = Script(turn("", tool_calls=calls), turn(answer("Paris")))
        trajectory = play(script, env=lambda: ToolEnv(tasks=TASKS, tools=[EchoTool()], parser="openai"))[0, 0]
        assert trajectory.answer == "Paris"
        assert script.requests[0]["tools"][0]["function"]["name"] == "echo"
        asked, reply = script.requests[1]["messages"][-2:]
        assert asked["tool_calls"][0]["id"] == reply["tool_call_id"] == "c9"

    @pytest.mark.parametrize("nothing", ["", " ", None, {}])
    def test_a_structured_call_without_arguments(self, nothing):
        calls = [{"id": "c9", "type": "function", "function": {"name": "count", "arguments": nothing}}]
        script = Script(turn(None, tool_calls=calls), turn(answer("Paris")))
        trajectory = play(script, env=lambda: ToolEnv(tasks=TASKS, tools=[CounterTool()], parser="openai"))[0, 0]
        assert trajectory.turns[0].parse_errors == () and trajectory.turns[0].call_errors == (None,)

    def test_a_broken_structured_call_is_shown_to_the_model_as_it_was(self):
        calls = [{"id": "c9", "type": "function", "function": {"name": "count", "arguments": "{"}}]
        script = Script(turn(None, tool_calls=calls), turn(answer("Paris")))
        trajectory = play(script, env=lambda: ToolEnv(tasks=TASKS, tools=[CounterTool()], parser="openai"))[0, 0]
        assert trajectory.turns[0].parse_errors == ("bad_json",)
        assert '"name": "count"' in script.requests[1]["messages"][-2]["content"]

    def test_a_failed_episode_leaves_the_others_alone(self):
        def respond(extra_body, headers):
            failing = "Faust" in extra_body["messages"][-1]["content"]
            return Answer(status=500) if failing else turn(answer("Paris"))

        played = play(respond, jobs=[FIRST, SECOND, THIRD], max_retries=0)
        assert played[1, 0].infrastructure_error.startswith("endpoint: unavailable: ")
        assert played[0, 0].infrastructure_error is played[2, 0].infrastructure_error is None
        assert played[0, 0].answer == "Paris"

    def test_a_history_that_outgrows_the_model_is_truncated(self):
        too_long = Answer(status=400, body=b"This model's maximum context length is 10 tokens")
        trajectory = play(Script(turn(call("echo", text="x")), too_long))[0, 0]
        assert trajectory.truncated and not trajectory.terminated
        assert trajectory.end_reason == "max_context"
        assert trajectory.infrastructure_error is None

    def test_as_many_requests_are_in_flight_as_asked_for(self):
        class Meeting:
            """Answers only when eight requests are there at once."""

            barrier = threading.Barrier(8)

            def complete(self, messages, *, seed, tools=None):
                self.barrier.wait(timeout=20)
                return Completion(answer("x"))

            def close(self):
                pass

        tasks = [Task(str(index), "?", ("x",)) for index in range(16)]
        engine = EndpointEngine(Meeting(), max_concurrent=8)
        records: list[Trajectory] = []
        Player(lambda: ToolEnv(tasks=tasks)).play(evaluation_jobs(range(16)), engine, records.append)
        engine.close()
        assert {record.task_index for record in records if record.answer == "x"} == set(range(16))

    def test_seeds_belong_to_the_episode_and_the_turn(self):
        script = Script(turn("hm"))
        play(script, jobs=[FIRST, AGAIN, SECOND], env=lambda: ToolEnv(tasks=TASKS, max_turns=2))
        seeds = [extra_body["seed"] for extra_body in script.requests]
        assert len(set(seeds)) == 6
        again = Script(turn("hm"))
        play(again, jobs=[SECOND, AGAIN], env=lambda: ToolEnv(tasks=TASKS, max_turns=2))
        assert {extra_body["seed"] for extra_body in again.requests} < set(seeds)


class TestBaselines:
    ENV = staticmethod(
        lambda **options: ToolEnv(
            tasks=TASKS,
            tools=[SearchTool(StubRetriever([Passage("1", "Paris", "the capital of France")]))],
            **options,
        )
    )

    def test_naive_rag_retrieves_once_and_answers(self):
        script = Script(turn("I think <answer>Paris</answer>."))
        trajectory = play(script, method="naive-rag", env=self.ENV)[0, 0]
        assert trajectory.answer == "Paris" and trajectory.terminated
        assert len(script.requests) == 1
        system, user = script.requests[0]["messages"]
        assert "tool" not in system["content"]
        assert "(1) Paris: the capital of France" in user["content"]
        assert user["content"].endswith("Question: What is the capital of France?")
        assert [len(turn.call_errors) for turn in trajectory.turns] == [1, 0]

    def test_direct_answer_sees_the_question_alone(self):
        script = Script(turn("<think>France ...</think> paris"))
        trajectory = play(script, method="direct", env=self.ENV)[0, 0]
        assert trajectory.answer == "paris"
        assert [message["role"] for message in script.requests[0]["messages"]] == ["system", "user"]
        assert len(trajectory.turns) == 1

    @pytest.mark.parametrize("method", ["direct", "naive-rag"])
    def test_an_empty_answer_ends_the_episode_unanswered(self, method):
        script = Script(turn(""))
        trajectory = play(script, method=method, env=self.ENV)[0, 0]
        assert trajectory.answer is None and trajectory.truncated
        assert trajectory.end_reason == "no_answer"
        assert len(script.requests) == 1

    def test_no_instructions_where_the_environment_has_none(self):
        script = Script(turn(answer("Paris")))
        play(script, method="naive-rag", env=lambda: self.ENV(system_prompt=""))
        assert [message["role"] for message in script.requests[0]["messages"]] == ["user", "assistant", "tool"]

    def test_a_tool_call_is_no_way_out(self):
        script = Script(turn(call("search", query="x")))
        trajectory = play(script, method="direct", env=self.ENV)[0, 0]
        assert json.dumps("search") in trajectory.answer
        assert [turn.call_errors for turn in trajectory.turns] == [()]
