"""ProgramEnv: which requests continue a conversation, what the model sees, and how episodes of programs end."""

from __future__ import annotations

import os
import sqlite3
import threading
import time

import pytest

from agent_r1_gym import tool
from agent_r1_gym.core.parsing import SearchR1Parser
from agent_r1_gym.core.rewards import RewardTerm
from agent_r1_gym.core.types import Message, ModelAction, Task, ToolCall
from agent_r1_gym.core.vector import step_together
from agent_r1_gym.errors import ConfigurationError, EpisodeError, InfrastructureError
from agent_r1_gym.gateway.env import ProgramEnv
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.engines import ScriptedEngine
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.policies import Policy, make_policy
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.session import Job, Session
from tests.kit.helpers import EchoTool, ToolEnv
from tests.kit.programs import CALL, ECHO, Client, loop, program_env, user

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")


def contents(info) -> list[str]:
    return [message.content for message in info["messages"]]


# --- one conversation -------------------------------------------------------------------------------------------------


def test_an_episode_is_that_of_the_task_environment():
    """Messages, rewards, outcomes and end are those of the environment's own loop."""
    own = ToolEnv(tasks=[Task("t0", "Say hi.", ("hi",))], tools=[EchoTool()], system_prompt="", reward="process")
    played = program_env(loop, system_prompt="", reward="process")
    for env in (own, played):
        env.reset(seed=0)
    for action in (CALL, "<think>hm</think><answer>hi</answer>"):
        (_, reward, *ended, info), (_, expected, *expected_end, expected_info) = played.step(action), own.step(action)
        assert (reward, ended) == (expected, expected_end)
        for key in ("messages", "new_messages", "answer", "reward_terms", "tool_calls", "tool_outcomes", "end_reason"):
            assert info[key] == expected_info[key], key
        assert not info["context_rewritten"]
    played.close()


def test_the_system_turn_is_the_program_s_and_how_to_call_its_tools():
    def program(task, base_url, key):
        Client(base_url, key).chat([{"role": "system", "content": "Be brief."}, user(task)], [ECHO])

    env = program_env(program)
    _, info = env.reset(seed=0)
    assert info["messages"][0] == Message("system", f"Be brief.\n\n{env.parser.instructions([ECHO])}")
    assert env.tool_schemas == [ECHO]
    env.close()


def test_without_tools_a_turn_is_text():
    turns = []

    def program(task, base_url, key):
        turns.append(Client(base_url, key).chat([user(task)]))

    env = program_env(program)
    _, info = env.reset(seed=0)
    assert info["messages"] == (Message("user", "Say hi."),)
    *_, info = env.step(CALL)
    assert turns[0]["content"] == CALL
    assert "tool_calls" not in turns[0]
    assert (info["tool_calls"], info["parse_errors"]) == ((), ())
    env.close()


@pytest.mark.parametrize("change", ["strip", "none", "json"])
def test_clients_may_change_white_space_and_the_form_of_json(change):
    def program(task, base_url, key):
        client = Client(base_url, key)
        turn = client.chat([user(task)], [ECHO])
        if change == "strip":
            turn["content"] = f" {turn['content']}\n"
        elif change == "none":
            turn |= {"content": "", "refusal": None, "audio": None}
        else:
            turn["tool_calls"][0]["function"]["arguments"] = '{ "text":"hi" }'
        result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "there"}
        client.chat([user(task), turn, result], [ECHO])

    env = program_env(program)
    env.reset(seed=0)
    *_, info = env.step(f"I call it.\n{CALL}" if change == "strip" else CALL)
    assert not info["context_rewritten"]
    assert info["new_messages"][1:] == (Message("tool", "there", "echo"),)
    assert info["tool_outcomes"][0].content == "there"
    env.close()


@pytest.mark.parametrize(
    ("name", "options"), [("FictionQA", {"reward": "process"}), ("ServiceDesk", {}), ("Text2SQL", {})]
)
def test_environments_are_played_by_their_rules(name, options):
    """Turns, rewards and ends of the oracle are those of the own loop, with tools that keep state and connections."""
    records = list[Trajectory]()
    for agent in ({}, {"agent": loop}):
        player = Player(lambda agent=agent: make_text_env(name, {**options, **agent}))
        player.play([Job(0, seed=0)], ScriptedEngine(make_policy("oracle")), records.append)
        player.close()
    own, played = records
    assert (played.turns, played.scores, played.end_reason) == (own.turns, own.scores, own.end_reason)
    assert played.infrastructure_error is None


# --- other contexts ---------------------------------------------------------------------------------------------------


def test_a_rewritten_history_is_a_new_context_that_says_what_changed():
    def program(task, base_url, key):
        client = Client(base_url, key)
        first = client.chat([user(task)])
        client.chat([user(f"Summary: {first['content']}"), user("Go on.")])
        turn = {"role": "assistant", "content": "one, edited"}
        client.chat([user(task), turn, user("Go on.")])

    env = program_env(program)
    env.reset(seed=0)
    *_, info = env.step("one")
    assert (info["context_rewritten"], info["resumed_turn"]) == (True, None)
    assert contents(info) == ["Summary: one", "Go on."]
    assert info["rewrite_reason"] == "message 0 was user: 'Say hi.', and is user: 'Summary: one'"
    *_, info = env.step("two")
    assert contents(info) == ["Say hi.", "one, edited", "Go on."]
    *_, terminated, _, info = env.step("three")
    assert (terminated, info["answer"], info["context_rewritten"]) == (True, "three", False)
    env.close()


def test_a_client_that_gives_calls_other_ids_is_named():
    def program(task, base_url, key):
        client = Client(base_url, key)
        turn = client.chat([user(task)], [ECHO])
        turn["tool_calls"][0]["id"] = "mine"
        client.chat([user(task), turn, {"role": "tool", "tool_call_id": "mine", "content": "there"}], [ECHO])

    env = program_env(program)
    env.reset(seed=0)
    *_, info = env.step(CALL)
    assert info["rewrite_reason"] == (
        """message 1 was assistant: 'call_0_0 echo{"text":"hi"}', and is assistant: 'mine echo{"text":"hi"}'"""
    )
    env.close()


def test_a_turn_in_a_compacted_history_is_shown_as_the_model_wrote_it():
    def program(task, base_url, key):
        client = Client(base_url, key)
        turn = client.chat([user(task)], [ECHO])
        result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "there"}
        client.chat([user("Shorter."), turn, result], [ECHO])

    env = program_env(program)
    env.reset(seed=0)
    *_, info = env.step(f"<think>hm</think>{CALL}")
    assert contents(info)[1:] == ["Shorter.", f"<think>hm</think>{CALL}", "there"]
    env.close()


def test_an_interrupted_conversation_continues_from_its_turn():
    def program(task, base_url, key):
        client = Client(base_url, key)
        main = [user(task)]
        main += [client.chat(main), user("more")]
        client.chat([user("A question of a sub-agent.")])
        main += [client.chat(main), user("and more")]
        client.chat(main)

    env = program_env(program)
    env.reset(seed=0)
    *_, info = env.step("main 0")
    assert contents(info) == ["A question of a sub-agent."]
    *_, info = env.step("sub")
    assert (info["context_rewritten"], info["resumed_turn"]) == (True, 0)
    assert contents(info) == ["Say hi.", "main 0", "more"]
    assert [message.content for message in info["new_messages"]] == ["sub", "more"]
    *_, info = env.step("main 1")
    assert (info["context_rewritten"], contents(info)[-2:]) == (False, ["main 1", "and more"])
    env.close()


def test_other_tools_are_a_new_context():
    def program(task, base_url, key):
        client = Client(base_url, key)
        turn = client.chat([user(task)], [ECHO])
        client.chat([user(task), turn, user("Go on.")])

    env = program_env(program)
    env.reset(seed=0)
    *_, info = env.step("one")
    assert (info["rewrite_reason"], env.tool_schemas) == ("the tools have changed", [])
    env.close()


def test_requests_that_come_at_once_are_answered_one_after_the_other():
    answers = {}

    def program(task, base_url, key):
        def ask(name):
            answers[name] = Client(base_url, key).chat([user(name)])["content"]

        threads = [threading.Thread(target=ask, args=(f"sub {number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    env = program_env(program)
    _, info = env.reset(seed=0)
    terminated = False
    while not terminated:
        *_, terminated, _, info = env.step(f"to {contents(info)[0]}")
    assert answers == {f"sub {number}": f"to sub {number}" for number in range(4)}
    env.close()


# --- retries ----------------------------------------------------------------------------------------------------------


def test_the_same_request_gets_the_same_turn_once():
    answers = []

    def program(task, base_url, key):
        client = Client(base_url, key)
        twins = [threading.Thread(target=lambda: answers.append(client.chat([user(task)]))) for _ in range(3)]
        for twin in twins:
            twin.start()
        for twin in twins:
            twin.join()
        answers.append(client.chat([user(task)], user="a retry"))
        answers.append(client.chat([user(task)], seed=1))

    env = program_env(program)
    env.reset(seed=0)
    *_, terminated, _, info = env.step("one")
    assert not terminated  # another seed asks for another turn
    *_, terminated, _, info = env.step("two")
    assert (terminated, info["turn"]) == (True, 2)
    assert [answer["content"] for answer in answers] == ["one"] * 4 + ["two"]
    env.close()


def test_a_program_that_repeats_a_request_for_ever_is_stopped():
    """It waits for another turn, which the same request never gets; the message says how to ask for one."""

    def program(task, base_url, key):
        while Client(base_url, key).chat([user(task)])["content"] != "good":
            pass

    env = program_env(program)
    env.reset(seed=0)
    *_, info = env.step("bad")
    assert info["end_reason"] == "program_failed"
    assert "Another `seed`" in env._history.infrastructure_error
    env.close()


# --- ends -------------------------------------------------------------------------------------------------------------


def test_what_a_program_reports_counts():
    def answers(task, base_url, key):
        Client(base_url, key).chat([user(task)])
        return "hi"

    def posts(task, base_url, key):
        client = Client(base_url, key)
        client.chat([user(task)])
        assert client.send("/result", {"reward": 0.25}) == (200, {})
        assert client.send("/result", {"reward": "much"})[0] == 400

    def passes_on(task, base_url, key):
        Client(base_url, key).chat([user(task)])
        return "<answer>hi</answer>"

    for program, reward, answer in ((answers, 1.0, "hi"), (passes_on, 1.0, "hi"), (posts, 0.25, "hello")):
        env = program_env(program)
        env.reset(seed=0)
        _, own, terminated, _, info = env.step("hello")
        assert (own, terminated, info["answer"], info["outcome_reward"]) == (reward, True, answer, reward)
        env.close()


def test_the_limit_of_turns_truncates_and_refuses_further_ones():
    refusals = []

    def program(task, base_url, key):
        client = Client(base_url, key)
        for number in range(2):
            client.chat([user(f"{number}")])
        refusals.append(client.send("/chat/completions", {"model": "policy", "messages": [user("2")]}))

    env = program_env(program, max_turns=2)
    env.reset(seed=0)
    env.step("one")
    *_, terminated, truncated, info = env.step("two")
    assert (terminated, truncated, info["end_reason"]) == (False, True, "max_turns")
    for _ in range(500):
        if refusals:
            break
        time.sleep(0.01)
    assert refusals[0][0] == 410
    assert "max_turns" in refusals[0][1]["error"]["message"]
    with pytest.raises(EpisodeError):
        env.step("three")
    env.close()


def test_failures_of_a_program_are_infrastructure_failures():
    def early(task, base_url, key):
        raise RuntimeError("no such key")

    def silent(task, base_url, key):
        return None

    def late(task, base_url, key):
        Client(base_url, key).chat([user(task)])
        raise SystemExit("bye")

    def hangs(task, base_url, key):
        Client(base_url, key).chat([user(task)])
        time.sleep(2)

    def refused(task, base_url, key):
        status, _ = Client(base_url, key).send("/chat/completions", {"model": "policy", "messages": [], "n": 2})
        raise RuntimeError(f"HTTP Error {status}")  # all that many clients say

    early_line = early.__code__.co_firstlineno + 1
    for program, error in (
        (early, rf"no such key \(.*test_env\.py:{early_line}\)"),
        (silent, "base_url"),
        (refused, r"HTTP Error 400 .*; the gateway had refused a request: 400, .*\bn\b"),
    ):
        env = program_env(program)
        with pytest.raises(InfrastructureError, match=error):
            env.reset(seed=0)
        env.close()
    for program, error in ((late, "bye"), (hangs, "0.2 s")):
        env = program_env(program, timeout=0.2)
        session = Session(env, Job(0, seed=0))
        session.record_step("hi", env.step("hi"))
        record = session.record()
        assert error in record.infrastructure_error
        assert (session.ended, record.end_reason, record.outcome_reward) == (True, "program_failed", 0.0)
        env.close()


def test_a_request_that_the_format_cannot_express_loses_its_episode():
    """A foreign turn with a call of another tool, for a format that knows one tool."""
    search = {"type": "function", "function": {"name": "search", "arguments": "{}"}, "id": "c"}
    foreign = [user("a"), {"role": "assistant", "tool_calls": [search]}, user("b")]

    def early(task, base_url, key):
        Client(base_url, key).chat(foreign, [ECHO])

    def late(task, base_url, key):
        Client(base_url, key).chat([user(task)], [ECHO])
        Client(base_url, key).chat(foreign, [ECHO])

    parser = SearchR1Parser(tool="echo", argument="text")
    env = program_env(early, parser=parser)
    with pytest.raises(InfrastructureError, match="can only call echo"):
        env.reset(seed=0)
    env.close()
    env = program_env(late, parser=parser)
    env.reset(seed=0)
    *_, truncated, info = env.step("one")
    assert (truncated, info["end_reason"]) == (True, "program_failed")
    assert "can only call echo" in info["infrastructure_error"]
    env.close()


def test_an_exception_in_the_engine_ends_the_programs():
    """Else the player would wait for programs that wait for turns."""
    stopped = threading.Event()

    def program(task, base_url, key):
        client = Client(base_url, key)
        client.chat([user(task)])
        if client.send("/chat/completions", {"model": "policy", "messages": [user("more")]})[0] == 410:
            stopped.set()

    class Fails(Policy):
        name = "fails"

        def act(self, inputs):
            if inputs[0].turn:
                raise RuntimeError("the engine has failed")
            return ["one"] * len(inputs)

    player = Player(lambda: program_env(program))
    with pytest.raises(RuntimeError, match="the engine has failed"):
        player.play([Job(0, seed=0)], ScriptedEngine(Fails()), lambda record: None)
    assert stopped.wait(10)
    player.close()


def test_a_stopped_episode_refuses_its_program():
    statuses = []

    def program(task, base_url, key):
        client = Client(base_url, key)
        statuses.append(client.send("/chat/completions", {"model": "policy", "messages": [user(task)]})[0])

    env = program_env(program)
    env.reset(seed=0)
    env.truncate()
    for _ in range(500):
        if statuses:
            break
        time.sleep(0.01)
    assert statuses == [410]
    env.close()


def test_a_call_that_outlives_its_program_belongs_to_its_episode():
    """It has ended when the episode is scored, and when the next one begins."""
    runs, goes_on, scored = threading.Event(), threading.Event(), []

    class Slow(EchoTool):
        def execute(self, arguments):
            runs.set()
            goes_on.wait(10)
            return super().execute(arguments)

    def program(task, base_url, key):
        client = Client(base_url, key)
        turn = client.chat([user(task)], [ECHO])
        if not turn.get("tool_calls"):
            late = threading.Thread(target=lambda: client.send("/tools/echo", {"arguments": {"text": "hi"}}))
            late.start()
            runs.wait(10)
            return
        result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "of the next one"}
        client.chat([user(task), turn, result], [ECHO])

    def score(transition):
        scored.append(goes_on.is_set())
        return 0.0

    env = program_env(program, tools=[Slow()], reward=score)
    env.reset(seed=0)
    threading.Timer(0.2, goes_on.set).start()
    env.step("bye")
    assert scored == [True]
    env.reset(seed=1)
    *_, info = env.step(CALL)
    assert [outcome.content for outcome in info["tool_outcomes"]] == ["of the next one"]
    env.close()


def test_budgets_of_the_task_environment_hold():
    outcomes = []

    def program(task, base_url, key):
        client = Client(base_url, key)
        outcomes.append([client.send("/tools/echo", {"arguments": {"text": "a"}})[1]["ok"] for _ in range(3)])
        client.chat([user(task)])

    env = program_env(program, budgets={"echo": 2})
    for seed in range(2):  # those of the second episode are its own
        env.reset(seed=seed)
        env.step("hi")
    assert outcomes == [[True, True, False]] * 2
    env.close()


def test_what_tools_opened_is_closed_at_the_end():
    def program(task, base_url, key):
        client = Client(base_url, key)
        (tool, *_) = client.send("/tools")[1]["data"]
        client.send(f"/tools/{tool['function']['name']}", {"arguments": {}})
        client.chat([user(task)])

    env = make_text_env("ServiceDesk", {"agent": program})
    assert isinstance(env, ProgramEnv)
    for end in (lambda: env.step("done"), env.truncate, env.release_resources):
        env.reset(seed=0)
        resources = env.task_env.toolbox._resources
        assert len(resources) == 1
        end()
        assert len(resources) == 0
    env.close()


def test_a_program_whose_first_request_is_too_long_is_stopped():
    stopped = threading.Event()

    def program(task, base_url, key):
        body = {"model": "policy", "messages": [user("a" * 2**22)]}
        if Client(base_url, key).send("/chat/completions", body)[0] == 410:
            stopped.set()

    env = program_env(program)
    with pytest.raises(InfrastructureError, match="at most 4194304"):
        env.reset(seed=0)
    assert stopped.wait(10)
    env.close()


def test_many_programs_are_stepped_together():
    envs = [program_env(loop) for _ in range(4)]
    for env in envs:
        env.reset(seed=0)
    assert all(not step[2] for step in step_together(envs, [CALL] * 4))
    assert [step[1] for step in step_together(envs, ["<answer>hi</answer>", "<answer>ho</answer>"] * 2)] == [1, 0, 1, 0]
    for env in envs:
        env.close()


def test_options_that_do_not_fit():
    with pytest.raises(ConfigurationError, match="no effect without agent"):
        make_text_env("Arithmetic", {"agent_timeout": 3})
    with pytest.raises(ConfigurationError, match="positive seconds"):
        make_text_env("Arithmetic", {"agent": loop, "agent_timeout": 0})
    with pytest.raises(ConfigurationError, match="context window"):
        make_text_env("Arithmetic", {"agent": loop, "context_window": 2})
    with pytest.raises(ConfigurationError, match="not a ToolEnv"):
        make_text_env("AgentR1/FrozenLakeText-v0", {"agent": loop})
    with pytest.raises(ConfigurationError, match="simulated user"):
        make_text_env("Tau2Retail", {"agent": loop, "dataset": "sample"})
    past = (Message("user", "a"), Message("assistant", "b"))
    env = program_env(loop, tasks=[Task("t0", "c", ("d",), history=past)])
    with pytest.raises(ConfigurationError, match="continues a conversation of 2 messages"):
        env.reset(seed=0)
    env.close()
    arithmetic = make_text_env("Arithmetic", {"agent": loop, "split": "test"})
    assert isinstance(arithmetic, ProgramEnv)
    assert (arithmetic.spec.id, len(arithmetic.tasks)) == ("AgentR1/Arithmetic-v0", len(arithmetic.task_env.tasks))
    with pytest.raises(EpisodeError, match="running program"):
        arithmetic.get_state()
    arithmetic.close()


# --- what programs of others do ---------------------------------------------------------------------------------------


def test_a_judge_rewards_a_program():
    class Backend:
        def prepare(self, transitions):
            assert not any(transition.terminated for transition in transitions)

        def __call__(self, transition):
            return float(transition.terminated)

    def program(task, base_url, key):
        client = Client(base_url, key)
        turn = client.chat([user(task)], [ECHO])
        calls = turn.get("tool_calls", [])
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "there"} for call in calls]
        if results:
            client.chat([user(task), turn, *results], [ECHO])

    for turns in (["hi"], [CALL, "hi"], [f"{CALL}\n{CALL}", "hi"]):
        env = program_env(program, reward=RewardTerm("judged", Backend()))
        env.reset(seed=0)
        rewards = [step_together([env], [turn])[0][1] for turn in turns]
        assert rewards == [*[0.0] * (len(turns) - 1), 1.0]
        env.close()


def test_tools_run_in_the_thread_that_made_them():
    """A connection of sqlite belongs to its thread, and so does its end."""
    got, threads = [], set()

    class Sql(ToolEnv):
        def make_tools(self, task):
            threads.add(threading.get_ident())
            database = sqlite3.connect(":memory:")

            @tool(timeout=None)
            def sql(query: str) -> list:
                """Run a statement.

                Args:
                    query: the statement
                """
                threads.add(threading.get_ident())
                return database.execute(query).fetchall()

            return [sql]

    def program(task, base_url, key):
        client = Client(base_url, key)
        got.append(client.send("/tools/sql", {"arguments": {"query": "select 1"}})[1])
        client.chat([user(task)])

    env = ProgramEnv(Sql(tasks=[Task("t0", "Say hi.", ("hi",))]), program, agent_timeout=20)
    threads.clear()
    for _ in range(2):
        env.reset(seed=0)
        env.step("hi")
    env.close()
    assert [answer["ok"] for answer in got] == [True, True], got
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_the_words_of_the_program_reach_the_model_as_they_are():
    text = "Think in <think></think>, then write <answer>N</answer>. Not <|im_end|>."

    def program(task, base_url, key):
        Client(base_url, key).chat([user(text)])

    env = program_env(program, markup=("<|im_end|>",))
    _, info = env.reset(seed=0)
    assert info["messages"][0].content == text.replace("<|im_end|>", "<\u200b|im_end|>")
    env.close()


def test_without_tools_a_call_in_the_model_s_own_format_is_text():
    turns = []

    def program(task, base_url, key):
        turns.append(Client(base_url, key).chat([user(task)]))

    env = program_env(program, parser="native")
    env.reset(seed=0)
    *_, info = env.step(env.parser.format_call(ToolCall("echo", {"text": "hi"})))
    assert "echo" in turns[0]["content"]
    assert "tool_calls" not in turns[0]
    assert info["tool_calls"] == ()
    env.close()


def test_a_turn_is_delivered_whole_whatever_is_taken_from_it_as_the_answer():
    turns = []

    def program(task, base_url, key):
        turns.append(Client(base_url, key).chat([user(task)], [ECHO])["content"])

    env = program_env(program, plain_turn="answer", answer_extractor="number")
    for turn in ("3 cats have 12 legs.", "<answer>12</answer>"):
        env.reset(seed=0)
        *_, info = env.step(turn)
        assert info["answer"] == "12"
    env.close()
    assert turns == ["3 cats have 12 legs.", "12"]


def test_an_answer_that_was_reported_counts_when_the_turns_are_used_up():
    def program(task, base_url, key):
        client = Client(base_url, key)
        client.chat([user(task)])
        client.send("/result", {"answer": "hi"})
        client.send("/chat/completions", {"model": "policy", "messages": [user("x")]})

    env = program_env(program, max_turns=1)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("hello")
    assert (info["answer"], reward, terminated) == ("hi", 1.0, True)
    env.close()


def test_a_result_may_be_reported_after_the_last_turn():
    statuses = []

    def program(task, base_url, key):
        client = Client(base_url, key)
        for number in range(3):
            body = {"model": "policy", "messages": [user(str(number))]}
            statuses.append(client.send("/chat/completions", body)[0])
        statuses.append(client.send("/result", {"reward": -1})[0])

    env = program_env(program, max_turns=2)
    env.reset(seed=0)
    env.step("a")
    _, reward, _, truncated, info = env.step("b")
    assert (statuses, reward, truncated) == ([200, 200, 410, 200], -1.0, True)
    assert info["infrastructure_error"] is None
    env.close()


@pytest.mark.parametrize("when", ["before", "other arguments"])
def test_a_failed_backend_is_no_low_score_where_the_program_called_the_tool(when):
    class Down(EchoTool):
        def execute(self, arguments):
            raise InfrastructureError("down")

    def program(task, base_url, key):
        client = Client(base_url, key)
        if when == "before":
            client.send("/tools/echo", {"arguments": {"text": "a"}})
        turn = client.chat([user(task)], [ECHO])
        if when != "before":
            client.send("/tools/echo", {"arguments": {"text": "adapted"}})
            result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "?"}
            client.chat([user(task), turn, result], [ECHO])

    env = program_env(program, tools=[Down()])
    env.reset(seed=0)
    *_, info = env.step("no idea" if when == "before" else CALL)
    assert "echo: unavailable" in info["infrastructure_error"]
    env.close()


def test_results_are_shown_in_the_order_of_the_calls():
    def program(task, base_url, key):
        client = Client(base_url, key)
        turn = client.chat([user(task)], [ECHO])
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": call["function"]["arguments"]}
            for call in turn["tool_calls"]
        ]
        history = [user(task), turn, *reversed(results)]
        client.chat([*history, client.chat(history, [ECHO]), user("more")], [ECHO])

    env = program_env(program)
    env.reset(seed=0)
    *_, info = env.step(f"{CALL}\n{CALL.replace('hi', 'ho')}")
    assert ["hi" in message.content for message in info["new_messages"][1:]] == [True, False]
    *_, info = env.step("fine")
    assert not info["context_rewritten"]
    env.close()


def test_clients_may_change_how_a_number_is_written():
    def program(task, base_url, key):
        client = Client(base_url, key)
        turn = client.chat([user(task)], [ECHO])
        turn["tool_calls"][0]["function"]["arguments"] = '{"n": [2]}'
        result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": "x"}
        client.chat([user(task), turn, result], [ECHO])

    env = program_env(program)
    env.reset(seed=0)
    *_, info = env.step('<tool_call>{"name": "echo", "arguments": {"n": [2.0]}}</tool_call>')
    assert not info["context_rewritten"]
    env.close()


def test_a_turn_that_the_token_limit_cut_says_so():
    got = []

    def program(task, base_url, key):
        body = {"model": "policy", "messages": [user(task)]}
        got.append(Client(base_url, key).send("/chat/completions", body)[1]["choices"][0]["finish_reason"])

    env = program_env(program)
    for turn in (ModelAction("half a", is_cut=True), "whole"):
        env.reset(seed=0)
        env.step(turn)
    env.close()
    assert got == ["length", "stop"]


def test_errors_of_functions_show_no_secrets(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "sk-verysecret1")

    def program(task, base_url, key):
        raise RuntimeError(f"GET /?k={os.environ['MY_API_KEY']}&e={key}")

    env = program_env(program)
    with pytest.raises(InfrastructureError, match="GET") as error:
        env.reset(seed=0)
    assert "verysecret" not in str(error.value)
    assert "agent-r1-" not in str(error.value)
    env.close()
