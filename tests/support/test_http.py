"""The HTTP client's retries and headers; faults of servers are in the tests of its users."""

from __future__ import annotations

import pickle

import pytest

from agent_r1_gym.errors import ConfigurationError, InfrastructureError, RetrievalTimeout
from agent_r1_gym.support import http
from agent_r1_gym.support.http import HTTPClient
from benchmarks.speed.chat_server import Answer, served


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    pauses: list[float] = []
    monkeypatch.setattr(http.time, "sleep", pauses.append)
    return pauses


def request(answer: Answer, **options) -> http.Response:
    with served(lambda request, headers: answer) as url:
        client = HTTPClient(url, pool_size=1, max_bytes=1000, **options)
        try:
            return client.request("POST", "/chat/completions", b"{}", timeout=10)
        finally:
            client.close()


def test_a_servers_wish_to_be_asked_later_is_obeyed(slept) -> None:
    assert request(Answer(status=429, headers={"Retry-After": "7"}), max_retries=2).status == 429
    assert slept == [7.0, 7.0]


def test_a_wish_may_be_a_date(slept, monkeypatch) -> None:
    monkeypatch.setattr(http.time, "time", lambda: 10.0)
    date = "Thu, 01 Jan 1970 00:00:30 GMT"
    assert request(Answer(status=429, headers={"Retry-After": date}), max_retries=1).status == 429
    assert slept == [20.0]


@pytest.mark.parametrize("seconds", ["59", "100000", "-1", "nan", "inf", "Wed, 21 Oct 2065 07:28:00 GMT"])
def test_all_pauses_together_take_at_most_a_minute(slept, seconds) -> None:
    assert request(Answer(status=429, headers={"Retry-After": seconds}), max_retries=20).status == 429
    assert 0 < sum(slept) <= 60


def test_pauses_double(slept) -> None:
    request(Answer(status=503), max_retries=4, initial_backoff=1.0)
    assert len(slept) == 4
    assert all(0.5 * 2**n <= pause <= 1.5 * 2**n for n, pause in enumerate(slept))


def test_how_long_to_wait_reaches_other_processes() -> None:
    error = pickle.loads(pickle.dumps(RetrievalTimeout("slow", retry_after=3.0)))
    assert (str(error), error.retry_after) == ("slow", 3.0)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n injected: x", "\0", "\u2026"])
def test_a_header_that_cannot_be_sent_is_refused_without_its_value(ending) -> None:
    headers = {"Authorization": f"Bearer secret{ending}"}
    with pytest.raises(ConfigurationError, match="the value of 'Authorization' has") as refusal:
        HTTPClient("http://127.0.0.1:9", max_retries=0, pool_size=1, max_bytes=1000, headers=headers)
    assert "secret" not in str(refusal.value)
    client = HTTPClient("http://127.0.0.1:9", max_retries=0, pool_size=1, max_bytes=1000)
    with pytest.raises(InfrastructureError, match="the value of 'Authorization' has") as failure:
        client.request_once("POST", "/", b"{}", timeout=10, headers=headers)
    assert "secret" not in str(failure.value) and failure.value.__context__ is None
    with pytest.raises(InfrastructureError, match="the name of a header"):
        client.request_once("POST", "/", b"{}", timeout=10, headers={"a\nb": "x"})
