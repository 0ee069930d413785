"""Programs that come by themselves: a new key begins an episode, a result ends it, and others wait for room."""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.gateway.episode import Episode
from agent_r1_gym.gateway.external import ExternalEpisodes
from agent_r1_gym.gateway.server import running_gateway
from agent_r1_gym.run.endpoint import Completion
from agent_r1_gym.run.engines import EndpointEngine, Engine, ScriptedEngine
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.policies import Policy
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.session import ANY_TASK, Job
from tests.kit.processes import wait_until
from tests.kit.programs import Client, user

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")
from starlette.requests import Request


class Echo(Policy):
    """Repeats the last message."""

    name = "echo"

    def act(self, inputs):
        return [state.messages[-1].content for state in inputs]


class EchoEndpoint:
    """A model behind an endpoint, which repeats the last message."""

    def complete(self, prompt, *, seed, tools):
        return Completion(prompt[-1].content)

    def close(self) -> None:
        pass


class Served:
    """A gateway for external programs, and the episodes that have ended."""

    def __init__(self, places: int, idle_seconds: float, *, endpoint: bool, max_turns: int) -> None:
        self.records: list[Trajectory] = []
        self.programs = ExternalEpisodes(parser="hermes", idle_seconds=idle_seconds, max_turns=max_turns)
        player = Player(lambda: self.programs.make_env(()))
        numbers = itertools.takewhile(lambda _: not self.programs.closed, itertools.count())
        jobs = (Job(ANY_TASK, number, seed=number) for number in numbers)
        engine: Engine = ScriptedEngine(Echo(), max_concurrent=places)
        if endpoint:
            engine = EndpointEngine(EchoEndpoint(), max_concurrent=places)
        self.thread = threading.Thread(target=lambda: player.play(jobs, engine, self.records.append), daemon=True)
        self.thread.start()
        self.url = running_gateway().base_url

    @property
    def episodes(self) -> list[Trajectory]:
        """Those in which a program has asked."""
        return [record for record in self.records if record.turns]

    def wait_for(self, episodes: int) -> None:
        for _ in range(1000):
            if len(self.episodes) >= episodes:
                return
            time.sleep(0.01)
        raise AssertionError(self.records)


@pytest.fixture
def serve() -> Iterator[Any]:
    """Starts a gateway, which ends with the test."""
    started = []

    def start(places: int = 4, idle_seconds: float = 20.0, *, endpoint: bool = False, max_turns: int = 32) -> Served:
        started.append(Served(places, idle_seconds, endpoint=endpoint, max_turns=max_turns))
        for _ in range(1000):
            if running_gateway().gateway._free:
                break
            time.sleep(0.01)
        return started[-1]

    yield start
    for served in started:
        served.programs.close()
        served.thread.join(20)
        assert not served.thread.is_alive()


def test_a_key_is_an_episode_and_a_result_its_end(serve):
    served = serve()
    for number in range(6):  # more than there are places
        client = Client(served.url, f"episode {number}")
        messages = [user(f"hello {number}")]
        messages += [client.chat(messages), user("more")]
        assert client.chat(messages)["content"] == "more"
        assert client.send("/result", {"reward": number / 2, "answer": "bye"}) == (200, {})
        served.wait_for(number + 1)
        assert client.send("/chat/completions", {"model": "policy", "messages": messages})[0] == 410
    for number, record in enumerate(served.episodes):
        assert (record.question, record.answer, record.outcome_reward) == (f"hello {number}", "bye", number / 2)
        assert [message.content for message in record.messages][-1] == "more"
        assert record.infrastructure_error is None


def test_one_that_does_not_come_back_is_lost_and_gives_its_place_away(serve):
    served = serve(places=1, idle_seconds=0.3)
    Client(served.url, "leaves").chat([user("hello")])
    assert Client(served.url, "waits").chat([user("hi")])["content"] == "hi"
    served.wait_for(1)
    assert "0.3 s" in served.episodes[0].infrastructure_error


def test_one_that_leaves_while_it_waits_takes_no_place(monkeypatch):
    running, episode = running_gateway(), Episode(lambda call: None)
    has_left = []
    is_disconnected = Request.is_disconnected

    async def noted(request):
        has_left.append(await is_disconnected(request))
        return has_left[-1]

    monkeypatch.setattr(Request, "is_disconnected", noted)
    running.gateway.accept_new_keys()
    address = urlsplit(running.base_url)
    body = json.dumps({"model": "policy", "messages": [user("hi")]}).encode()
    fields = ("Content-Type: application/json", f"Content-Length: {len(body)}", "x-api-key: waits in vain")
    head = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", f"Host: {address.netloc}", *fields, "\r\n"])
    with socket.create_connection((address.hostname, address.port)) as leaving:
        leaving.sendall(head.encode() + body)
        wait_until(lambda: False in has_left)  # it waits
    wait_until(lambda: True in has_left)
    running.gateway.open(episode)
    running.gateway.offer(episode.key)
    assert list(running.gateway._free) == [episode]
    running.gateway.refuse_new_keys()
    running.gateway.close(episode, "it is over")


def test_a_key_is_needed_and_only_a_request_for_a_turn_begins(serve):
    served = serve()
    assert Client(served.url, "", {}).send("/chat/completions", {"model": "m", "messages": [user("a")]})[0] == 401
    assert Client(served.url, "new").send("/result", {"reward": 1})[0] == 401
    assert Client(served.url, "new").send("/chat/completions", {"model": "m", "messages": []})[0] == 400
    served.programs.close()
    assert Client(served.url, "late").send("/chat/completions", {"model": "m", "messages": [user("a")]})[0] == 401


def test_an_episode_that_begins_while_the_gateway_closes_waits_for_nobody():
    programs = ExternalEpisodes(parser="hermes", idle_seconds=20.0)
    env = programs.make_env(())
    programs.close()
    with pytest.raises(InfrastructureError, match="no further episode"):
        env.reset(seed=0)
    env.close()
    assert env._episode.key not in running_gateway().gateway._episodes


def test_behind_an_endpoint_one_that_works_holds_up_no_other(serve):
    served = serve(idle_seconds=60.0, endpoint=True)
    works = Client(served.url, "works")
    works.chat([user("one")])  # has its turn, and uses a tool of its own now
    other = Client(served.url, "other")
    for text in ("two", "three"):
        assert other.chat([user(text)])["content"] == text
    assert other.send("/result", {"reward": 1})[0] == 200
    served.wait_for(1)
    assert works.chat([user("four")])["content"] == "four"
    works.send("/result", {"reward": 0.5})
    served.wait_for(2)
    assert sorted(record.outcome_reward for record in served.episodes) == [0.5, 1.0]


def test_a_result_after_the_last_turn_counts(serve):
    served = serve(max_turns=2)
    client = Client(served.url, "many")
    body = {"model": "policy", "messages": [user("again")]}
    statuses = [client.send("/chat/completions", {**body, "seed": number})[0] for number in range(3)]
    assert client.send("/result", {"reward": 0.25}) == (200, {})
    served.wait_for(1)
    assert statuses == [200, 200, 410]
    assert served.episodes[0].outcome_reward == 0.25
