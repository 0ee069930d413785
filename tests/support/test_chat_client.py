"""The client of models that play a part: what it retries, which fields it drops, and which key it refuses."""

from __future__ import annotations

import json
import pickle
import threading
from typing import Any

import pytest

from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.support import http
from agent_r1_gym.support.chat_client import ChatClient
from agent_r1_gym.support.concurrency import run_parallel
from benchmarks.speed.chat_server import Answer, served, turn

MESSAGES = [{"role": "user", "content": "hello"}]
SAMPLING = {"temperature": 0.0, "max_tokens": 512}


class Server:
    """Gives one answer after the other, then the last for ever; keeps the requests."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.requests = list(answers), list[dict[str, Any]]()

    def __call__(self, request: dict[str, Any], headers: Any) -> Answer:
        self.requests.append(request)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def refusal(message: str) -> Answer:
    return Answer(json.dumps({"error": {"message": message}}).encode(), status=400)


def client(url: str, **options: Any) -> ChatClient:
    return ChatClient("m", url, role="the user", **{"sampling": SAMPLING, "timeout": 5.0, **options})


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(http.time, "sleep", pauses.append)
    return pauses


@pytest.mark.parametrize(
    "fault",
    [
        *(Answer(status=status) for status in (429, 500, 503)),
        Answer(drop=True),
        Answer(b'{"error": {"message": "Provider returned error", "code": 502}}'),
    ],
    ids=lambda fault: f"{fault.status}-{fault.drop}-{len(fault.body)}",
)
def test_a_passing_fault_does_not_lose_the_conversation(fault: Answer, slept: list[float]) -> None:
    server = Server(fault, fault, turn("hi"))
    with served(server) as url:
        assert client(url).complete(MESSAGES) == "hi"
    assert len(server.requests) == 3 and len(slept) == 2


def test_a_server_says_when_to_ask_again_and_a_lasting_fault_is_infrastructure(slept: list[float]) -> None:
    with served(Server(Answer(status=429, headers={"Retry-After": "7"}))) as url:
        with pytest.raises(InfrastructureError, match=f"The model of the user m at {url} returned HTTP 429") as failure:
            client(url, max_retries=2).complete(MESSAGES)
        assert slept == [7.0, 7.0] and failure.value.retry_after == 7.0
        with pytest.raises(InfrastructureError, match="HTTP 429"):
            client(url, max_retries=0).complete(MESSAGES)
    assert len(slept) == 2


def test_a_wave_of_requests_with_a_field_that_is_refused_is_sent_again(capsys: pytest.CaptureFixture[str]) -> None:
    """Each learns of the refusal while the others have been sent with the field, too."""
    requests = []

    def respond(request: dict[str, Any], headers: Any) -> Answer:
        requests.append(request)
        if "temperature" not in request:
            return turn("hi")
        return refusal("Unsupported value: 'temperature' does not support 0.")

    with served(respond) as url:
        asked = client(url)
        sent = threading.Barrier(4)
        send = http.HTTPClient.request_in_full

        def together(self: Any, *arguments: Any, **options: Any) -> Any:
            answer = send(self, *arguments, **options)
            if answer.answer.status == 400:
                sent.wait(10)
            return answer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(http.HTTPClient, "request_in_full", together)
            assert run_parallel([lambda: asked.complete(MESSAGES)] * 4) == ["hi"] * 4
        assert pickle.loads(pickle.dumps(asked)).complete(MESSAGES) == "hi"
    assert len(requests) == 2 * 4 + 1
    assert capsys.readouterr().err.count("The model of the user m takes no 'temperature'") == 1


def test_a_field_that_is_only_mentioned_is_kept() -> None:
    """The words of vLLM."""
    too_large = (
        "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context length is 4096 tokens "
        "and your request has 3800 input tokens (512 > 4096 - 3800)."
    )
    server = Server(refusal(too_large), turn("hi"))
    with served(server) as url:
        asked = client(url)
        with pytest.raises(InfrastructureError, match="HTTP 400"):
            asked.complete(MESSAGES)
        assert asked.complete(MESSAGES) == "hi"
    assert [request["max_tokens"] for request in server.requests] == [512, 512]


def test_a_field_of_another_name_is_renamed_and_a_form_that_is_not_known_dropped() -> None:
    server = Server(
        refusal("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
        refusal("'response_format.type' must be 'text'"),
        turn("hi"),
    )
    with served(server) as url:
        assert client(url, sampling={"max_tokens": 9, "response_format": {"type": "x"}}).complete(MESSAGES) == "hi"
    assert server.requests[-1] == {"model": "m", "messages": MESSAGES, "max_completion_tokens": 9}


def test_a_key_that_cannot_be_sent_is_refused_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    asked = client("http://127.0.0.1:9/v1", max_retries=0)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\r")
    with pytest.raises(ConfigurationError, match="The key of OPENAI_API_KEY cannot be sent") as refused:
        client("http://127.0.0.1:9/v1")
    with pytest.raises(InfrastructureError, match="'Authorization' has a line break at its end") as failure:
        asked.complete(MESSAGES)
    assert "sk-secret" not in str(refused.value) + str(failure.value)


def test_an_error_quotes_the_server_without_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    answer = Answer(b'{"error": {"message": "Incorrect API key provided: sk-secret."}}', status=401)
    with served(Server(answer)) as url, pytest.raises(InfrastructureError, match=r"401: 'Incorrect .*: <key>\.'"):
        client(url).complete(MESSAGES)


@pytest.mark.parametrize(
    "url", ["", "localhost:8000/v1", "ftp://x/", "http://user:secret@x/v1", "http://x/v1?key=secret"]
)
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"The URL of the user must be .* like http://") as refusal:
        client(url)
    assert "secret" not in str(refusal.value)
