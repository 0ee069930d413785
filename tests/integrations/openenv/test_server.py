"""`agent-r1 serve env`: sessions, bad input, limits, clients that vanish; asked by OpenEnv's own client and raw."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import urllib.error
import urllib.request
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import agent_r1_gym  # noqa: F401 - registers the environments
from agent_r1_gym.integrations import openenv as server_module
from agent_r1_gym.registry import make_text_env
from benchmarks.speed.openenv import echo, wait_for
from tests.integrations.openenv.conftest import FICTION, SEARCH, StockEnv, ask, generic, kinds, raw, sent, to, until
from tests.kit.foreign import served
from tests.kit.helpers import answer, call

pytestmark = pytest.mark.adapters
pytest.importorskip("openenv.core", reason="openenv is not installed")


class TestSessions:
    def test_an_episode_by_their_client(self, fiction: str) -> None:
        with generic(fiction).sync() as client:
            opened = client.reset(seed=1, task_index=3)
            seen = opened.observation
            assert [message["role"] for message in seen["new_messages"]] == ["system", "user"]
            assert seen["text"] == "\n\n".join(message["content"] for message in seen["new_messages"])
            assert (opened.done, opened.reward, seen["info"]["turn"]) == (False, None, 0)
            found = client.step({"text": SEARCH})
            assert [message["role"] for message in found.observation["new_messages"]] == ["tool"]
            assert found.reward == pytest.approx(0.05)
            assert found.observation["info"]["reward_terms"]["valid_call"] == 1.0
            ended = client.step({"text": answer("no idea")})
            assert (ended.done, ended.reward, ended.observation["text"]) == (True, 0.0, "")
            assert (ended.observation["terminated"], ended.observation["truncated"]) == (True, False)
            assert ended.observation["info"]["answer"] == "no idea"
            assert ended.observation["info"]["end_reason"] == "answer"
            assert client.state()["num_tasks"] == 50
            assert "dataset" not in opened.observation["info"]  # it tells how to make the gold answers

    def test_a_budget_truncates(self, fiction: str) -> None:
        with raw(fiction) as socket:
            ask(socket, "reset", {"seed": 0})
            last = [ask(socket, "step", {"text": SEARCH})["data"] for _ in range(5)][-1]
        assert last["done"]
        assert (last["observation"]["terminated"], last["observation"]["truncated"]) == (False, True)
        assert last["observation"]["info"]["end_reason"] == "max_turns"

    def test_the_whole_history_where_it_is_asked_for(self) -> None:
        make = functools.partial(make_text_env, "AgentR1/FictionQA-v0", FICTION)
        env = make()
        env.reset(options={"task_index": 2})
        expected, *_, info = env.step(SEARCH)
        with served(make, full_history=True) as url, raw(url) as socket:
            ask(socket, "reset", {"task_index": 2})
            seen = ask(socket, "step", {"text": SEARCH})["data"]["observation"]
        assert seen["text"] == expected
        assert seen["messages"] == [message.to_dict() for message in info["messages"]]
        assert len(seen["new_messages"]) == 1

    def test_tools_bound_to_a_thread(self, stock: str) -> None:
        with raw(stock) as socket:
            for index in (3, 4):
                ask(socket, "reset", {"task_index": index})
                seen = ask(socket, "step", {"text": call("sql", query="")})
                assert seen["data"]["observation"]["text"] == f"[[{index}]]"
        until(lambda: "closed" in kinds())
        made, *served_ = StockEnv.seen
        assert [what for what, _ in served_] == ["made", "closed"]  # one environment for both episodes
        assert len({thread for _, thread in served_}) == 1
        assert made[1] != served_[0][1]

    def test_sixteen_side_by_side_do_not_mix(self, stock: str) -> None:
        async def play(number: int) -> list[str]:
            texts = []
            async with generic(stock) as client:
                for round_ in range(4):
                    await client.reset(task_index=number + 16 * round_, episode_id="all the same")
                    for _ in range(3):
                        texts.append((await client.step({"text": call("sql", query="")})).observation["text"])
            return texts

        async def play_all() -> list[list[str]]:
            return await asyncio.gather(*map(play, range(16)))

        expected = [[f"[[{number + 16 * r}]]" for r in range(4) for _ in range(3)] for number in range(16)]
        assert asyncio.run(play_all()) == expected
        until(lambda: kinds().count("closed") == 16)

    def test_a_slow_session_holds_nobody_up(self, stock: str) -> None:
        with raw(stock) as slow, raw(stock) as quick:
            ask(slow, "reset", {"task_index": 1})
            ask(quick, "reset", {"task_index": 2})
            slow.send(json.dumps({"type": "step", "data": {"text": call("sql", query="wait 1")}}))
            for _ in range(4):
                assert ask(quick, "step", {"text": call("sql", query="")})["data"]["observation"]["text"] == "[[2]]"
            with pytest.raises(TimeoutError):
                slow.recv(0)
            assert json.loads(slow.recv(20))["data"]["observation"]["text"] == "[[1]]"

    def test_a_lost_backend_is_no_reward(self, stock: str) -> None:
        with raw(stock) as socket:
            ask(socket, "reset", {"task_index": 1})
            lost = ask(socket, "step", {"text": call("sql", query="die")})["data"]
            assert (lost["done"], lost["observation"]["info"]["infrastructure_error"] is None) == (False, False)
            ended = ask(socket, "step", {"text": answer("5")})["data"]
            assert (ended["done"], ended["reward"]) == (True, None)
            assert "the database is down" in ended["observation"]["info"]["infrastructure_error"]
        env = gymnasium.make("AgentR1/OpenEnv-v0", base_url=stock)
        env.reset(seed=0)
        env.step(call("sql", query="die"))
        assert "down" in env.step(answer("5"))[4]["infrastructure_error"]
        env.close()

    def test_an_environment_without_tasks(self) -> None:
        with served(functools.partial(make_text_env, "AgentR1/FrozenLakeText-v0", {})) as url, raw(url) as socket:
            seen = ask(socket, "reset", {"seed": 0})["data"]["observation"]
            assert seen["info"]["actions"] == ["left", "down", "right", "up"]
            assert seen["new_messages"] == [{"role": "user", "content": seen["text"]}]
            refused = ask(socket, "reset", {"task_index": 0})["data"]["message"]
            assert refused == "task_index must be below 0, the number of tasks; got 0."
            ask(socket, "reset", {"seed": 0})
            ended = [ask(socket, "step", {"text": turn})["data"] for turn in ("right", "down")][-1]["observation"]
            assert (ended["terminated"], ended["info"]["end_reason"]) == (True, "goal")


class TestTasks:
    def post(self, url: str, what: str, **body: Any) -> Any:
        kind = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{url}/FictionQA-v0/{what}", json.dumps(body).encode(), kind)
        with urllib.request.urlopen(asked, timeout=20) as reply:
            return json.loads(reply.read())

    def test_the_task_api_tells_prompts_and_no_answers(self, fiction: str) -> None:
        env = make_text_env("AgentR1/FictionQA-v0", FICTION).unwrapped
        assert self.post(fiction, "num_tasks", split="train") == {"num_tasks": 50}
        assert self.post(fiction, "num_tasks", split="test") == {"num_tasks": 0}
        task = self.post(fiction, "task", split="train", index=4)["task"]
        assert task == {"id": env.tasks[4].id, "index": 4, "prompt": env.tasks[4].prompt}
        assert [one["index"] for one in self.post(fiction, "task_range", split="train", start=3, stop=5)["tasks"]] == [
            3,
            4,
        ]
        assert len(self.post(fiction, "tasks", split="train")["tasks"]) == 50
        with pytest.raises(urllib.error.HTTPError, match="400"):
            self.post(fiction, "task", split="train", index=50)

    def test_their_words_for_a_task(self, fiction: str) -> None:
        with raw(fiction) as socket:
            one = ask(socket, "reset", {"split": "train", "index": 4})["data"]["observation"]["info"]["task_id"]
            assert one == ask(socket, "reset", {"task_index": 4})["data"]["observation"]["info"]["task_id"]
            wrong = ask(socket, "reset", {"split": "test", "index": 4})["data"]["message"]
            assert wrong == "This server has the split 'train', not 'test'."

    def test_the_schema_says_what_an_action_needs(self, fiction: str) -> None:
        with urllib.request.urlopen(f"{fiction}/schema", timeout=20) as reply:
            schema = json.loads(reply.read())
        assert schema["action"]["required"] == ["text"]
        assert {"text", "new_messages", "terminated", "truncated", "info"} <= schema["observation"]["properties"].keys()
        for path in ("health", "metadata", "FictionQA-v0/splits"):
            with urllib.request.urlopen(f"{fiction}/{path}", timeout=20) as reply:
                assert reply.status == 200

    @pytest.mark.parametrize("path", ["docs", "docs/oauth2-redirect", "redoc"])
    def test_there_are_no_pages_that_load_scripts_of_others(self, fiction: str, path: str) -> None:
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{fiction}/{path}", timeout=20)

    @pytest.mark.parametrize("path", ["reset", "step", "state", "mcp"])
    def test_what_would_open_a_session_without_a_connection_is_not_there(self, fiction: str, path: str) -> None:
        asked = urllib.request.Request(f"{fiction}/{path}", b"{}", {"Content-Type": "application/json"})
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(asked, timeout=20)


class TestBadInput:
    @pytest.mark.parametrize(
        ("kind", "data", "words"),
        [
            ("step", {"text": "too early"}, "No episode is running: send a reset first"),
            ("reset", {"task_index": 50}, "task_index must be below 50, the number of tasks; got 50."),
            ("reset", {"task_index": -1}, "task_index must be an integer of at least 0, got -1."),
            ("reset", {"task_index": "3"}, "task_index must be an integer"),
            ("reset", {"index": 1, "task_index": 0}, "task_index and index mean the same; expected one of them"),
            ("reset", {"seed": "x"}, "seed must be an integer of at least 0, got 'x'."),
            ("reset", {"seed": 1.5}, "seed must be an integer"),
            ("reset", {"task_indx": 3}, "Unknown reset option 'task_indx'. Did you mean 'task_index'?"),
            ("reset", {"task": {"id": "mine"}}, "Unknown reset option 'task'"),
            ("step", {"text": None}, "Invalid message"),
            ("step", {"words": "x"}, "Invalid message"),
            ("step", {}, "Invalid message"),
            ("reset", [], "Invalid message"),
            ("step", None, "Invalid message"),
            ("dance", {}, "Unknown message type: dance"),
        ],
    )
    def test_it_gets_one_line_and_the_session_goes_on(self, fiction: str, kind: str, data: Any, words: str) -> None:
        with raw(fiction) as socket:
            said = ask(socket, kind, data)
            assert said["type"] == "error"
            assert words in said["data"]["message"]
            assert "\n" not in said["data"]["message"]
            assert ask(socket, "reset", {"seed": 0})["type"] == "observation"

    def test_a_step_after_the_end(self, fiction: str) -> None:
        with raw(fiction) as socket:
            ask(socket, "reset", {"seed": 0})
            ask(socket, "step", {"text": answer("x")})
            assert "again after an episode has ended" in ask(socket, "step", {"text": "more"})["data"]["message"]

    @pytest.mark.parametrize("garbage", [b"\x00\xff", '{"type": []}'])
    def test_garbage_ends_at_most_its_session(self, fiction: str, garbage: Any) -> None:
        from websockets.exceptions import ConnectionClosed

        with raw(fiction) as socket:
            socket.send(garbage)
            with contextlib.suppress(ConnectionClosed):
                said = json.loads(socket.recv(20))
                assert said["type"] == "error"
                assert "\n" not in said["data"]["message"]
        with raw(fiction) as socket:
            assert ask(socket, "reset", {"seed": 0})["type"] == "observation"

    @pytest.mark.parametrize(
        ("garbage", "problem"),
        [
            *((text, "Invalid JSON") for text in ("{", "", "{" * 200)),
            *((text, "must be a JSON object") for text in ("[1]", "7", "null", '"x"', " []")),
            *((text, "nested deeper than 100 levels") for text in ("[" * 100_000, '{"type":' * 100_000)),
            ('{"type": "step", "data": ' + "[" * 500 + "]" * 500 + "}", "nested deeper than 100 levels"),
        ],
    )
    def test_a_message_that_is_no_object_gets_an_error_and_the_session_goes_on(
        self, fiction: str, garbage: str, problem: str
    ) -> None:
        with raw(fiction) as socket:
            ask(socket, "reset", {"seed": 0})
            socket.send(garbage)
            said = json.loads(socket.recv(20))
            assert said["type"] == "error" and problem in said["data"]["message"]
            assert ask(socket, "step", {"text": answer("x" + "[" * 300)})["data"]["done"]

    def test_a_turn_that_a_client_read_as_json_is_its_text(self, fiction: str) -> None:
        with raw(fiction) as socket:
            ask(socket, "reset", {"seed": 0})
            assert ask(socket, "step", {"text": 42})["type"] == "observation"

    def test_lone_surrogates_are_replaced(self, fiction: str) -> None:
        with raw(fiction) as socket:
            ask(socket, "reset", {"seed": 0})
            seen = ask(socket, "step", {"text": answer("a\ud800")})["data"]["observation"]
        assert seen["info"]["answer"] == "a�"

    def test_ten_megabytes_close_their_session_alone(self, fiction: str) -> None:
        from websockets.exceptions import ConnectionClosed

        with raw(fiction) as other:
            ask(other, "reset", {"seed": 0})
            with raw(fiction) as socket:
                ask(socket, "reset", {"seed": 0})
                with pytest.raises(ConnectionClosed):  # with 1009, unless the reset of what was left unread is faster
                    ask(socket, "step", {"text": "x" * 10_000_000})
            assert ask(other, "step", {"text": SEARCH})["type"] == "observation"

    def test_bodies_have_a_largest_size(self, fiction: str) -> None:
        said = sent(fiction, b"Content-Length: 300000000", b"x" * 100_000)  # the rest need not come
        assert said.startswith(
            b"HTTP/1.1 413"
        )  # its text comes after, unless the reset of what was left unread is faster

    def test_bodies_have_a_time_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server_module, "_REQUEST_TIMEOUT", 0.2)
        with served(StockEnv) as url:
            assert sent(url, b"Content-Length: 10", b"{").startswith(b"HTTP/1.1 408")

    def test_other_names_of_the_server_are_refused(self) -> None:
        from websockets.exceptions import InvalidStatus

        with served(StockEnv, hosts=["127.0.0.1"]) as url:
            evil = {"Host": "evil.example"}
            with pytest.raises(urllib.error.HTTPError, match="400"):
                urllib.request.urlopen(urllib.request.Request(f"{url}/health", headers=evil), timeout=20)
            named = url.replace("127.0.0.1", "evil.example")
            with pytest.raises(InvalidStatus, match="403"), raw(named, sock=to(url)):
                pass
            with raw(url) as socket, raw(url.replace("127.0.0.1", "localhost"), sock=to(url)):
                assert ask(socket, "reset", {"seed": 0})["type"] == "observation"

    def test_web_pages_get_no_session(self, fiction: str) -> None:
        from websockets.exceptions import InvalidStatus

        with pytest.raises(InvalidStatus, match="403"), raw(fiction, origin="http://evil.example"):
            pass


@pytest.mark.slow
def test_their_own_server_is_played_by_our_client() -> None:
    with echo() as url:
        wait_for(url)
        env = gymnasium.make(
            "AgentR1/OpenEnv-v0", base_url=url, action_field="message", observation_field="echoed_message", max_turns=3
        )
        check_env(env.unwrapped)
        assert env.reset(seed=0)[0] == "Echo environment ready!"
        text, reward, terminated, truncated, info = env.step("hé")
        assert (text, reward, terminated, truncated) == ("hé", pytest.approx(0.2), False, False)
        assert (info["message_length"], info["original_message"]) == (2, "hé")
        env.step("more")
        assert env.step("last")[3]
        env.close()


def test_only_environments_that_search_an_index_here_are_stepped_in_the_servers_thread():
    quick = {name: server_module._is_quick(make_text_env(name, options).unwrapped) for name, options in (
        ("FictionQA", {"questions": 5}), ("Text2SQL", {"questions": 5}), ("FrozenLakeText", {}),
    )}  # fmt: skip
    assert quick == {"FictionQA": True, "Text2SQL": False, "FrozenLakeText": False}
