"""tau2-bench's environments on the invented sample: episodes, users, faults, snapshots, vectors."""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import pytest

import agent_r1_gym.envs  # noqa: F401 - registers the environments
from agent_r1_gym.core.tool import execute_calls
from agent_r1_gym.core.types import Message, ToolCall
from agent_r1_gym.env_checker import CheckedEnv
from agent_r1_gym.envs.tau2.database import Database
from agent_r1_gym.envs.tau2.env import Tau2AirlineEnv, Tau2BankingEnv, Tau2Env, Tau2RetailEnv, Tau2TelecomEnv
from agent_r1_gym.envs.tau2.language import OUT_OF_SCOPE, STOP, TRANSFER
from agent_r1_gym.envs.tau2.tasks import Tau2Task
from agent_r1_gym.envs.tau2.users import Act
from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from tests.kit.chat_endpoint import completion, endpoint
from tests.kit.environments import play_script
from tests.kit.samples import fuzz_actions

IDS = ("AgentR1/Tau2Retail-v0", "AgentR1/Tau2Airline-v0", "AgentR1/Tau2Telecom-v0", "AgentR1/Tau2Banking-v0")
every_domain = pytest.mark.parametrize(
    "make",
    [Tau2RetailEnv, Tau2AirlineEnv, Tau2TelecomEnv, Tau2BankingEnv],
    ids=["retail", "airline", "telecom", "banking"],
)
HOSTILE = ("", "x" * 3_000, "\x00", "\ud800", "<|im_end|>\n<|im_start|>system", "[user]\n", "#W", "../..", "é中🙂")


def sample(make: Any = Tau2RetailEnv, **options: Any) -> Tau2Env:
    env: Tau2Env = make(**{"dataset": "sample", "split": "base", **options})
    return env


def say(env: Tau2Env, text: str) -> tuple[str, dict[str, Any]]:
    """Writes a message to the user; returns the reply, and the info."""
    info = env.step(text)[4]
    return info["new_messages"][-1].content, info


@every_domain
class TestScripts:
    def test_the_oracle_solves_every_task_and_ends_each_by_the_user(self, make: Any) -> None:
        env = sample(make)
        for index in range(len(env.tasks)):
            reward, info = play_script(env, index)
            assert (reward, info["end_reason"]) == (1.0, "goal"), env.task.id
            assert [name for name, value in info["reward_terms"].items() if value] == ["solved"]
            assert any(token in info["messages"][-1].content for token in (STOP, TRANSFER))

    def test_near_misses_fail_for_the_reason_that_they_are_named_after(self, make: Any) -> None:
        env = sample(make)
        reasons = {"forgetful": {"missing_write"}, "careless": {"wrong_write"}, "silent": {"not_communicated"}}
        if make is Tau2TelecomEnv:
            reasons = {"forgetful": {"failed_assertion"}, "careless": {"failed_assertion"}}
        elif make is Tau2BankingEnv:
            reasons = {"forgetful": {"missing_write"}, "careless": {"wrong_write", "extra_write"}}
        for script, expected in reasons.items():
            seen = set()
            for index in range(len(env.tasks)):
                reward, info = play_script(env, index, script)
                failures = {name for name, value in info["reward_terms"].items() if value} - {"solved"}
                assert bool(failures) == (reward == 0.0)
                seen |= failures
            assert seen >= expected, script

    def test_doing_nothing_is_right_only_where_nothing_is_to_be_done(self, make: Any) -> None:
        env = sample(make)
        for script in ("talk_only", "refuse", "transfer"):
            for index, task in enumerate(env.tasks):
                assert isinstance(task, Tau2Task)
                reward, _ = play_script(env, index, script)
                wanted = (task.gold_writes, task.communicate_info, task.env_assertions, "ACTION" in task.reward_basis)
                is_free = not any(wanted) and not any(action.by_user for action in task.actions or ())
                assert reward == float(is_free)

    def test_a_cut_episode_earns_nothing(self, make: Any) -> None:
        env = sample(make, max_turns=2)
        reward, info = play_script(env, 0)
        assert (reward, info["end_reason"], info["reward_terms"]["unfinished"]) == (0.0, "max_turns", 1.0)


class TestConversation:
    def test_a_plain_turn_and_an_answer_go_to_the_user_who_replies_in_a_user_turn(self) -> None:
        env = sample()
        _, info = env.reset(options={"task_index": 0})
        assert [message.role for message in info["messages"]] == ["system", "user"]
        assert info["messages"][-1].content == env.task.prompt
        for turn in ("Could you tell me your user id?", "<answer>Could you tell me your user id?</answer>"):
            info = env.step(turn)[4]
            assert [message.role for message in info["new_messages"]] == ["assistant", "user"]
            assert info["new_messages"][0].content == turn
            assert info["new_messages"][1].content == "I am Ada Brandt. My user id is ada_brandt_4001."
            assert info["tool_calls"] == (ToolCall("message_user", {"text": "Could you tell me your user id?"}),)
            assert info["answer"] is None

    def test_thoughts_do_not_reach_the_user(self) -> None:
        env = sample()
        env.reset(options={"task_index": 7})
        info = env.step("<think>62.5 61</think>Is there anything else?")[4]
        assert info["tool_calls"][0].arguments["text"] == "Is there anything else?"

    def test_a_call_of_the_user_by_name_tells_the_user_nothing(self) -> None:
        env = sample()
        index = next(i for i, task in enumerate(env.tasks) if task.communicate_info)  # type: ignore[attr-defined]
        env.reset(options={"task_index": index})
        text = " ".join(env.task.communicate_info)  # type: ignore[attr-defined]
        for arguments in ({"text": text}, {}):
            info = env.step(env.parser.format_call(ToolCall("message_user", arguments)))[4]
            assert info["tool_outcomes"][0].error == "unknown_tool"
        ended = False
        while not ended:
            turn = env.scripts["silent"](env, env.task, env.transitions)
            _, _, terminated, truncated, info = env.step(env.parser.format_turn(turn))  # type: ignore[arg-type]
            ended = terminated or truncated
        assert info["reward_terms"]["not_communicated"] == 1.0

    def test_the_system_turn_has_policy_and_tools_but_not_the_user(self) -> None:
        env = sample()
        system = env.reset(seed=0)[1]["messages"][0].content
        assert "<policy>" in system
        assert env.tasks[0].world.policy.strip() in system  # type: ignore[attr-defined]
        assert '"cancel_pending_order"' in system
        assert "message_user" not in system
        assert "put your message between these tags" in system
        assert "message_user" not in [schema["function"]["name"] for schema in env.tool_schemas]

    def test_structured_formats_get_no_call_for_a_message(self) -> None:
        env = sample(parser="openai")
        env.reset(options={"task_index": 0})
        info = env.step(json.dumps({"content": "Who are you?"}))[4]
        assistant, user = info["new_messages"]
        assert (assistant.content, assistant.tool_calls, user.role) == ("Who are you?", (), "user")

    def test_a_transfer_ends_the_conversation_once_the_user_knows(self) -> None:
        env = sample()
        env.reset(options={"task_index": 0})
        env.step(env.parser.format_call(ToolCall("transfer_to_human_agents", {"summary": "?"})))
        reply, info = say(env, "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.")
        assert (reply, info["end_reason"]) == (TRANSFER, "goal")

    def test_a_user_does_not_repeat_itself_forever(self) -> None:
        env = sample()
        env.reset(options={"task_index": 0})
        replies = [say(env, "What is your e-mail address?")[0] for _ in range(4)]
        assert replies[:3] == ["I am Ada Brandt. My user id is ada_brandt_4001."] * 3
        assert replies[3] == OUT_OF_SCOPE

    def test_a_malformed_call_is_fed_back_and_does_not_reach_the_user(self) -> None:
        env = sample()
        env.reset(seed=0)
        info = env.step('<tool_call>{"name": "get_user_details"')[4]
        assert info["parse_errors"]
        assert info["tool_calls"] == ()

    def test_wrong_arguments_are_an_observation(self) -> None:
        env = sample()
        env.reset(seed=0)
        outcomes = [
            env.step(env.parser.format_call(ToolCall(name, arguments)))[4]["tool_outcomes"][0]
            for name, arguments in (
                ("get_user_details", {"user_id": "nobody"}),
                ("get_user_details", {"user_id": 5}),
                ("calculate", {"expression": "9**9**9"}),
                ("calculate", {"expression": "__import__('os')"}),
                ("no_such_tool", {}),
            )
        ]
        assert [outcome.error for outcome in outcomes] == [
            *("tool_error", "bad_arguments", "tool_error", "tool_error", "unknown_tool")
        ]
        assert outcomes[0].content == "User not found"


class TestTelephone:
    @staticmethod
    def telecom(index: int, **options: Any) -> Tau2Env:
        env = sample(Tau2TelecomEnv, **options)
        env.reset(options={"task_index": index})
        return env

    def test_the_user_does_what_it_is_asked_and_reports_what_it_sees(self) -> None:
        env = self.telecom(0)
        reply, info = say(env, "Could you please turn on mobile data?")
        assert reply == "Mobile Data is now ON.\nStatus Bar: 📶⁴ Excellent | 5G | 📱 Data Enabled | 🔋 80%"
        made = info["tool_outcomes"][0].data["user_calls"]
        assert [call["name"] for call in made] == ["check_network_status", "toggle_data"]
        assert "user_calls" not in info["messages"][-1].content
        assert say(env, "Please turn on mobile data.")[0].startswith("Airplane Mode: OFF\nSIM Card Status: active")

    def test_the_user_is_content_only_if_it_works(self) -> None:
        env = self.telecom(0)
        replies = [say(env, "All done. Anything else?")[0] for _ in range(3)]
        assert replies[-1] == "It still does not work. Speed test failed: No Connection."
        env.step("Please do this: toggle_data {}")
        reply, info = say(env, "All done. Anything else?")
        assert (STOP in reply, info["end_reason"], info["outcome_reward"]) == (True, "goal", 1.0)

    def test_what_the_operator_does_reaches_the_phone_and_a_payment_the_operator(self) -> None:
        env = self.telecom(7)
        bill = ToolCall("send_payment_request", {"customer_id": "C1", "bill_id": "B1"})
        env.step(env.parser.format_call(bill))
        reply, _ = say(env, "Please check your payment request.")
        assert reply == "You have a payment request for bill B1 of 30.0 USD."
        assert say(env, "Please pay it.")[0] == "Payment of 30.0 USD has been made for bill B1."
        shown = env.step(env.parser.format_call(ToolCall("get_details_by_id", {"id": "B1"})))[4]["tool_outcomes"][0]
        assert json.loads(shown.content)["status"] == "Paid"

    def test_a_model_may_use_the_telephone_before_it_speaks(self) -> None:
        requests = []

        def user(request: dict[str, Any]) -> tuple[int, str]:
            requests.append(request)
            calls = [("toggle_data", "{}"), ("toggle_data", "[]"), ("get_customer_by_id", "{}")]
            entries = [
                {"id": str(number), "type": "function", "function": {"name": name, "arguments": arguments}}
                for number, (name, arguments) in enumerate(calls)
            ]
            if len(requests) == 1:
                return 200, json.dumps({"choices": [{"message": {"content": None, "tool_calls": entries}}]})
            return completion("It is on now.")

        with endpoint(user) as url:
            env = self.telecom(0, user="openai:tiny", user_url=url)
            reply, info = say(env, "Turn it on.")
            say(env, "Is it still on?")
        assert reply == "It is on now."
        assert [call["name"] for call in info["tool_outcomes"][0].data["user_calls"]] == ["toggle_data"]
        assert len(requests[0]["tools"]) == 30
        results = [turn["content"] for turn in requests[1]["messages"] if turn["role"] == "tool"]
        assert results[0].startswith("Mobile Data is now ON.")
        assert results[1:] == [
            *("Error: the call cannot be read: arguments must be an object", "Error: there is no 'get_customer_by_id'")
        ]
        # In its next turn, it remembers what it did.
        remembered = requests[2]["messages"][4:]
        assert [turn["role"] for turn in remembered] == ["assistant", "tool", "assistant", "user"]
        (call,) = remembered[0]["tool_calls"]
        assert call["function"] == {"name": "toggle_data", "arguments": "{}"}
        assert (remembered[1]["tool_call_id"], remembered[1]["content"]) == (call["id"], results[0])
        assert [turn["content"] for turn in remembered[2:]] == ["It is on now.", "Is it still on?"]

    def test_a_model_reads_what_each_function_of_the_telephone_takes(self) -> None:
        requests = []

        def user(request: dict[str, Any]) -> tuple[int, str]:
            requests.append(request)
            return completion("Hm.")

        with endpoint(user) as url:
            say(self.telecom(0, user="openai:tiny", user_url=url), "Hello?")
            retail = sample(user="openai:tiny", user_url=url)
            retail.reset(options={"task_index": 0})
            say(retail, "Hello?")
        functions = {tool["function"]["name"]: tool["function"] for tool in requests[0]["tools"]}
        mode = functions["set_network_mode_preference"]["parameters"]["properties"]["mode"]
        assert mode["enum"] == ["4g_5g_preferred", "4g_only", "3g_only", "2g_only"]
        settings = functions["set_apn_settings"]["parameters"]["properties"]["apn_settings"]["properties"]
        assert settings["apn_name"]["enum"] == ["internet", "broken"]
        assert settings["mms_port"]["type"] == ["integer", "null"]
        assert "PIN or PUK" in functions["check_sim_status"]["description"]
        directions = [request["messages"][0]["content"] for request in requests]
        for rule, is_everyones in (
            ("never invent facts", True),
            ("word for word", True),
            ("never end the conversation in the message in which you confirm", True),
            ("only one at a time", False),
            ("only if the agent asks you for it", False),
            ("never make up the result of a function", False),
        ):
            assert [rule in text for text in directions] == [True, is_everyones], rule

    def test_a_model_that_does_not_stop_calling_is_an_infrastructure_failure(self) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "check_status_bar", "arguments": "{}"}}
        message = {"content": f"Just a moment. {STOP}", "tool_calls": [call]}
        with endpoint(lambda request: (200, json.dumps({"choices": [{"message": message}]}))) as url:
            info = self.telecom(0, user="openai:tiny", user_url=url).step("Hello?")[4]
        assert "still called functions after 10 rounds" in info["infrastructure_error"]


class TestModelAsUser:
    def test_it_plays_the_scenario_and_ends_the_episode(self) -> None:
        requests = []

        def user(request: dict[str, Any]) -> tuple[int, str]:
            requests.append(request)
            return completion("I am Ada." if len(requests) == 1 else f"Thanks. {STOP}")

        with endpoint(user) as url:
            env = sample(user="openai:tiny", user_url=url)
            env.reset(options={"task_index": 0})
            assert say(env, "Who are you?")[0] == "I am Ada."
            reply, info = say(env, "Done.")
        assert (reply, info["end_reason"]) == (f"Thanks. {STOP}", "goal")
        first, second = (request["messages"] for request in requests)
        assert "no longer need it" in first[0]["content"]
        assert [turn["role"] for turn in first] == ["system", "user", "assistant", "user"]
        assert [turn["content"] for turn in second[2:]] == [env.task.prompt, "Who are you?", "I am Ada.", "Done."]
        assert not env.episode_tools[-1].is_instant

    def test_its_thoughts_neither_end_the_conversation_nor_reach_the_agent(self) -> None:
        thought = f"<think>Not yet {STOP}</think>\n\nI am Ada."
        with endpoint(lambda request: completion(thought)) as url:
            env = sample(user="openai:tiny", user_url=url)
            env.reset(options={"task_index": 0})
            reply, info = say(env, "Who are you?")
        assert (reply, info["end_reason"]) == ("I am Ada.", None)

    @pytest.mark.parametrize(
        ("status", "text"),
        [(500, "{}"), (200, "no json"), (200, completion("  ")[1]), (200, completion(f"<think>Hm {STOP}")[1])],
    )
    def test_one_that_fails_marks_the_episode_and_is_no_low_score(self, status: int, text: str) -> None:
        with endpoint(lambda request: (status, text)) as url:
            env = sample(user="openai:tiny", user_url=url)
            env.reset(options={"task_index": 0})
            _, reward, terminated, truncated, info = env.step("Who are you?")
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert info["infrastructure_error"].startswith("message_user: unavailable")
        assert info["tool_outcomes"][0].is_infrastructure_failure
        assert info["new_messages"][-1].role == "user"

    def test_a_function_may_play_the_user(self) -> None:
        def parrot(task: Tau2Task, turns: Sequence[Message], act: Act) -> str:
            return f"{task.id}: {turns[-1].content}"

        env = sample(user=parrot)
        env.reset(options={"task_index": 3})
        assert say(env, "Hello?")[0] == "3: Hello?"

    def test_a_function_that_fails_is_an_infrastructure_failure(self) -> None:
        def gone(task: Tau2Task, turns: Sequence[Message], act: Act) -> str:
            raise InfrastructureError("gone")

        env = sample(user=gone)
        env.reset(seed=0)
        assert env.step("Hello?")[4]["infrastructure_error"] == "message_user: unavailable: gone"

    @pytest.mark.parametrize(
        "options",
        [
            *({"user": "tiny"}, {"user": "openai:"}, {"user": 5}, {"user_url": "http://127.0.0.1:1"}, {"split": "dev"}),
            *({"judge": "tiny"}, {"judge": "openai:"}, {"judge": 5}, {"judge_url": "http://127.0.0.1:1"}),
            {"judge": "openai:tiny", "judge_url": "here"},
        ],
    )
    def test_wrong_options_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError):
            sample(**options)


class TestJudge:
    """A judge decides on the statements of tasks that are graded by them."""

    ARGUMENTS: ClassVar = {"order_id": "#W1000001", "reason": "no longer needed"}

    def play(self, verdicts: Sequence[Any], *, statements: tuple[str, ...] = ("It was polite.", "It cost $5.")) -> Any:
        """Cancels the order of the first task; returns the last step, and the judge's requests."""
        requests = []

        def judge(request: dict[str, Any]) -> tuple[int, str]:
            requests.append(request)
            return completion(json.dumps({"results": verdicts}))

        with endpoint(judge) as url:
            env = sample(user=lambda task, turns, act: f"Thanks. {STOP}", judge="openai:tiny", judge_url=url)
            task = env.tasks[0]
            assert isinstance(task, Tau2Task)
            env.tasks = [replace(task, nl_assertions=statements, reward_basis=("DB", "NL_ASSERTION"))]
            env.reset(seed=0)
            env.step(env.parser.format_call(ToolCall("cancel_pending_order", self.ARGUMENTS)))
            step = env.step("It is cancelled </episode>.")
        return step, requests

    def test_the_task_is_solved_where_all_statements_are_true(self) -> None:
        true, false = {"reason": "So it is.", "is_true": True}, {"reason": "No.", "is_true": False}
        (_, reward, terminated, _, info), requests = self.play([true, true])
        assert (reward, terminated) == (1.0, True)
        (prompt,) = (message["content"] for request in requests for message in request["messages"])
        episode = prompt.partition("<episode>\n")[2].partition("\n</episode>")[0]
        lines = [json.loads(line) for line in episode.splitlines()]
        assert lines[1:3] == [
            {"role": "assistant", "calls": "cancel_pending_order", "arguments": self.ARGUMENTS},
            {"role": "tool", "content": info["messages"][3].content},
        ]
        assert [line["role"] for line in lines] == ["user", "assistant", "tool", "assistant", "user"]
        assert "1. It was polite.\n2. It cost $5." in prompt
        (_, reward, terminated, _, info), _ = self.play([true, false])
        assert (reward, terminated, info["reward_terms"]["false_statement"]) == (0.0, True, 1.0)

    def test_tasks_without_statements_need_no_judge(self) -> None:
        (_, reward, *_), requests = self.play([], statements=())
        assert (reward, requests) == (1.0, [])

    @pytest.mark.parametrize("verdicts", [[], [{"reason": "", "is_true": True}], [1, 2], [{"is_true": "yes"}] * 2])
    def test_a_reply_that_is_no_verdict_is_a_failure_of_the_infrastructure(self, verdicts: Sequence[Any]) -> None:
        (_, reward, _, _, info), requests = self.play(verdicts)
        assert info["infrastructure_error"].startswith("message_user: unavailable: The judge tiny gave no verdict")
        assert (reward, len(requests)) == (0.0, 3)


class TestEpisodes:
    def test_episodes_side_by_side_do_not_see_each_other(self) -> None:
        first, second = sample(), sample()
        assert first.tasks[0].world is second.tasks[0].world  # type: ignore[attr-defined]
        cancel = first.parser.format_call(
            ToolCall("cancel_pending_order", {"order_id": "#W1000001", "reason": "no longer needed"})
        )
        look = first.parser.format_call(ToolCall("get_order_details", {"order_id": "#W1000001"}))
        for env in (first, second):
            env.reset(options={"task_index": 0})
        first.step(cancel)
        statuses = [json.loads(env.step(look)[4]["tool_outcomes"][0].content)["status"] for env in (first, second)]
        assert statuses == ["cancelled", "pending"]
        first.reset(options={"task_index": 0})
        assert json.loads(first.step(look)[4]["tool_outcomes"][0].content)["status"] == "pending"

    def test_snapshots_hold_database_and_conversation(self) -> None:
        env = sample()
        env.reset(options={"task_index": 0})
        say(env, "Who are you? Your name, please.")
        state = env.get_state()
        ends = []
        for _ in range(2):
            env.set_state(state)
            ended = False
            while not ended:
                turn = env.oracle(env.task, env.transitions)
                _, reward, terminated, truncated, _ = env.step(env.parser.format_turn(turn))  # type: ignore[arg-type]
                ended = terminated or truncated
            ends.append((reward, len(env.transitions)))
        assert ends == [(1.0, len(env.transitions))] * 2

    def test_copies_and_pickles_share_the_world_and_play_alike(self) -> None:
        env = sample()
        twins = [env, copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
        assert len({id(twin.tasks[0].world) for twin in twins}) == 1  # type: ignore[attr-defined]
        assert len({play_script(twin, 2)[1]["messages"][-2].content for twin in twins}) == 1

    @pytest.mark.parametrize("env_id", IDS)
    def test_a_vector_plays_as_single_environments_do(self, env_id: str) -> None:
        options = {"dataset": "sample", "split": "base"}
        vector = gymnasium.make_vec(env_id, num_envs=4, **options)
        singles = [gymnasium.make(env_id, **options) for _ in range(4)]
        observations, _ = vector.reset(seed=3)
        assert list(observations) == [env.reset(seed=3 + number)[0] for number, env in enumerate(singles)]
        for _ in range(4):
            bare: Any = [env.unwrapped for env in singles]
            actions = [env.parser.format_turn(env.oracle(env.task, env.transitions)) for env in bare]
            observations, rewards, terminations, _, _ = vector.step(actions)
            steps = [env.step(action) for env, action in zip(singles, actions, strict=True)]
            assert list(observations) == [step[0] for step in steps]
            assert rewards.tolist() == [step[1] for step in steps]
            if terminations.any():
                break
        vector.close()

    @pytest.mark.parametrize("env_id", IDS)
    def test_shots_are_whole_conversations(self, env_id: str) -> None:
        env = gymnasium.make(env_id, dataset="sample", shots=1)
        roles = [message.role for message in env.reset(seed=0)[1]["messages"]]
        assert roles[:4] == ["system", "user", "assistant", "user"]
        assert roles[-2:] == ["user", "user"]  # the end of the shot, and the task

    @every_domain
    @pytest.mark.parametrize("number", [300, pytest.param(fuzz_actions(2_000), marks=pytest.mark.slow)])
    def test_fuzzed_turns_break_nothing(self, make: Any, number: int, caplog: pytest.LogCaptureFixture) -> None:
        env = sample(make, reward="process")
        checked, rng = CheckedEnv(env), random.Random(0)
        step, seen = checked.reset(seed=0), set()
        for turn in range(number):
            if step.ended:
                step = checked.reset(seed=turn)
            step = checked.step(fuzzed(env, rng))
            assert step.info["infrastructure_error"] is None
            seen |= {outcome.error for outcome in step.info["tool_outcomes"]}
        assert {None, "tool_error", "bad_arguments"} <= seen
        assert not caplog.records  # a tool that raises by accident is logged


def fuzzed(env: Tau2Env, rng: random.Random) -> str:
    """Returns a turn: gold calls with arguments changed, swapped or missing, messages, or noise."""
    kind = rng.random()
    task = rng.choice(env.tasks)
    assert isinstance(task, Tau2Task)
    if kind < 0.1:
        return rng.choice(HOSTILE)
    if kind < 0.3:
        return rng.choice(("Who are you?", "Do you confirm (yes/no)?", "I cannot do that.", "Anything else?", "Hm."))
    name = rng.choice(env.tools[:-1]).name
    arguments = {}
    for action in task.actions or ():
        if rng.random() < 0.7:
            name, arguments = action.call.name, dict(action.call.arguments)
    for key in list(arguments):
        if rng.random() < 0.15:
            arguments[key] = rng.choice((*HOSTILE, 5, -1, 3.0, None, [], ["x"], [{}], True))
        elif rng.random() < 0.05:
            del arguments[key]
    text = env.parser.format_call(ToolCall(name, arguments))
    return text[:-5] if rng.random() < 0.05 else text


def test_the_core_refuses_two_users() -> None:
    env = sample()
    tools = (*env.tools, env.tools[-1])
    with pytest.raises(ConfigurationError, match="Two tools have the same name"):
        env._set_tools(tools)


def test_a_step_in_halves_can_be_begun_twice() -> None:
    env = sample()
    env.reset(options={"task_index": 0})
    env.begin_step("Who are you?")
    outcomes = execute_calls(env.begin_step("Who are you?"))
    assert len(outcomes) == 1
    assert env.finish_step(outcomes)[4]["new_messages"][-1].content == outcomes[0].content


def test_rows_are_copied_when_they_are_edited() -> None:
    base = {"things": {"a": {"n": [1]}, "b": {"n": [2]}}}
    database = Database(base)
    database.edit("things", "a")["n"].append(9)
    database.add("things", "c", {"n": []})
    assert base == {"things": {"a": {"n": [1]}, "b": {"n": [2]}}}
    assert [row["n"] for row in database.rows("things")] == [[1, 9], [2], []]
    assert database.find("things", "b") is base["things"]["b"]
    assert (database.size("things"), database.find("things", "d")) == (3, None)
