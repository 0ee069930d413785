"""A language model as the customer of a service desk, behind a fake endpoint."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.envs.service_desk.customer import preserves_facts
from agent_r1_gym.envs.service_desk.env import ServiceDeskEnv
from agent_r1_gym.envs.service_desk.world import Ticket
from tests.kit.chat_endpoint import completion, endpoint


def ask(env: ServiceDeskEnv, slot: str = "code") -> Any:
    env.reset(options={"task_index": 1})
    (outcome,) = env.step(env.parser.format_call(ToolCall("ask_customer", {"slot": slot})))[4]["tool_outcomes"]
    return outcome


@pytest.mark.slow
def test_the_model_words_the_script_s_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    requests = []

    def polite(request: dict[str, Any]) -> tuple[int, str]:
        requests.append(request)
        scripted = request["messages"][0]["content"].rpartition("Statement: ")[2]
        return completion(f"<think>I could say X9.</think>Well, hello! {scripted}")

    with endpoint(polite) as url:
        env = ServiceDeskEnv(customer_model="tiny", customer_url=url)
        script = ask(ServiceDeskEnv()).data["answer"]
        assert ask(env).data == {"answer": f"Well, hello! {script}"}
        again = pickle.loads(pickle.dumps(env))
        assert ask(again).data == {"answer": f"Well, hello! {script}"}
    assert requests[0]["path"] == "/v1/chat/completions"
    assert (requests[0]["model"], requests[0]["key"]) == ("tiny", "Bearer secret")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["", "My code is 1234.", "I will not tell.", "It is X1, or Y2, or whatever"])
def test_a_text_with_other_facts_is_not_used(text: str) -> None:
    with endpoint(lambda request: completion(text)) as url:
        env = ServiceDeskEnv(customer_model="tiny", customer_url=url)
        assert ask(env) == ask(ServiceDeskEnv())


@pytest.mark.slow
def test_a_reasoning_model_gets_no_field_that_it_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    requests = []

    def thinker(request: dict[str, Any]) -> tuple[int, str]:
        requests.append(request)
        refused = next((name for name in ("max_tokens", "temperature") if name in request), None)
        if refused:
            return 400, json.dumps({"error": {"message": f"Unsupported parameter: '{refused}'", "param": refused}})
        scripted = request["messages"][0]["content"].rpartition("Statement: ")[2]
        parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": f"Hello! {scripted}"}]
        return 200, json.dumps({"choices": [{"message": {"content": parts}}]})

    with endpoint(thinker) as url:
        env = ServiceDeskEnv(customer_model="thinker", customer_url=url)
        for _ in range(2):
            assert ask(env).data["answer"].startswith("Hello! ")
    assert len(requests) == 4  # each field is refused once
    assert capsys.readouterr().err.count("thinker takes no") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "text"), [(500, "{}"), (429, "{}"), (200, "no json"), (200, "{}"), (200, '{"choices": []}')]
)
def test_a_lost_model_marks_the_episode(status: int, text: str) -> None:
    with endpoint(lambda request: (status, text)) as url:
        env = ServiceDeskEnv(customer_model="tiny", customer_url=url)
        outcome = ask(env)
        assert outcome.error == "unavailable"
        assert env.step("hello")[4]["infrastructure_error"] is not None


@pytest.mark.slow
def test_the_oracle_solves_tickets_of_a_talkative_customer() -> None:
    """Gold does not depend on words."""
    with endpoint(
        lambda request: completion(request["messages"][0]["content"].rpartition("Statement: ")[2] + " Bye!")
    ) as url:
        env = ServiceDeskEnv(customer_model="tiny", customer_url=url, difficulty=3)
        for index in range(12):
            env.reset(options={"task_index": index})
            assert isinstance(env.task, Ticket)
            ended = False
            while not ended:
                call = env.oracle(env.task, env.transitions)
                assert call is not None
                _, reward, terminated, truncated, _ = env.step(env.parser.format_turn(call))
                ended = terminated or truncated
            assert reward == 1.0


@pytest.mark.parametrize(
    ("slot", "scripted", "text", "preserved"),
    [
        ("order", "The order number is O2031.", "Sure, O2031 it is", True),
        ("order", "The order number is O2031.", "Sure, O2032 it is", False),
        ("order", "The order number is O2031.", "O2031 or O2032", False),
        ("order", "I do not remember the number; it was the kite.", "No idea, the kite", True),
        ("order", "I do not remember the number; it was the kite.", "I think it was O2031", False),
        ("address", "The address is 5 Mill Street, Alden.", "5 Mill Street, Alden please", True),
        ("address", "The address is 5 Mill Street, Alden.", "5 Mill Street please", False),
        ("cause", "It arrived damaged.", "Broken to bits", True),
        ("cause", "It arrived damaged.", "Broken, and I paid 500", False),
        ("code", "My code is 4FTU3.", " ", False),
    ],
)
def test_what_counts_as_the_same_facts(slot: str, scripted: str, text: str, preserved: bool) -> None:
    assert preserves_facts(slot, scripted, text) is preserved
