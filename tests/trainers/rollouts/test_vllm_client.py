"""VLLMServerBackend against servers that are dead, slow, hanging, stale, or started again."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from tests.kit.models import make_model
from tests.kit.samples import samples
from tests.kit.vllm_servers import OPTIONS, STOP, StubVLLM, adapted, closed_fleets, episodes, fleet, play, sampled
from trainers.rollouts import vllm_client
from trainers.rollouts.vllm_backend import adapter_rank, check_whole


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(vllm_client, "_PAUSE", 0.02)
    with closed_fleets():
        yield


def undisturbed(folder: Path, name: str) -> list[Any]:
    """What is sampled with weights of this name."""

    def answer(request: Any, _batch: int) -> Any:
        ids = sampled(request.context, request.seed, name, request.max_tokens)
        return vllm_client.SampledTurn(ids, [-0.5] * len(ids))

    with StubVLLM() as stub:
        servers = fleet(folder, [stub])
        servers._answer = answer  # type: ignore[method-assign, assignment]
        return play(servers, episodes())


def said(ids: list[int], logprobs: Any) -> dict[str, Any]:
    return {"model": "x", "choices": [{"token_ids": ids, "logprobs": logprobs, "finish_reason": "stop"}]}


class TestFleet:
    @pytest.mark.slow
    def test_each_answer_is_of_the_latest_weights_and_the_work_is_shared(self, tmp_path: Path) -> None:
        with StubVLLM(seconds=0.002) as one, StubVLLM(seconds=0.002) as two:
            servers, model = fleet(tmp_path, [one, two]), adapted()
            for step in range(3):
                servers.sync(model)
                assert servers.weights is not None
                for stub in (one, two):
                    stub.turns.clear()
                played = play(servers, episodes())
                assert played == undisturbed(tmp_path / f"twin{step}", servers.weights.name)
                assert {weights for stub in (one, two) for _, _, weights in stub.turns} == {servers.weights.name}
                counts = [len(stub.turns) for stub in (one, two)]
                assert sum(counts) == sum(len(turns) for turns in played)
                assert min(counts) > sum(counts) / 4
            assert len(set(one.loads)) == 3  # a name for each sync
            assert one.adapters == two.adapters == {servers.weights.name}
            assert [path.name for path in tmp_path.glob("agent-r1-*")] == [servers.weights.name]
            servers.close()
            assert not one.adapters
            assert not list(tmp_path.glob("agent-r1-*"))

    @pytest.mark.slow
    def test_what_a_turn_is_asked_with(self, tmp_path: Path) -> None:
        """Only the chat format's tokens end a turn; ids and log-probs are asked for; each turn has its own seed."""
        with StubVLLM() as stub:
            servers = fleet(tmp_path, [stub])
            servers.sync(adapted())
            play(servers, episodes(3))
            assert servers.weights is not None
            rest = {"prompt", "seed", "max_tokens"}
            for body in stub.bodies:
                assert {name: value for name, value in body.items() if name not in rest} == {
                    **{"model": servers.weights.name, "temperature": 0.8, "top_p": 1.0, "top_k": 0},
                    **{"repetition_penalty": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
                    **{"stop_token_ids": [STOP], "ignore_eos": True, "logprobs": 0, "return_token_ids": True},
                }
            assert {body["max_tokens"] for body in stub.bodies} == {OPTIONS.max_new_tokens}
            assert len({body["seed"] for body in stub.bodies}) == len(stub.bodies)

    @pytest.mark.slow
    def test_a_slow_server_gets_less(self, tmp_path: Path) -> None:
        with StubVLLM(seconds=0.2) as slow, StubVLLM() as quick:
            servers = fleet(tmp_path, [slow, quick])
            servers.sync(adapted())
            play(servers, episodes(48))
            assert len(slow.turns) < len(quick.turns) / 2
            assert slow.busiest <= 8

    @pytest.mark.slow
    def test_a_dead_server_is_survived_and_taken_back_with_the_weights_of_the_day(self, tmp_path: Path) -> None:
        with StubVLLM() as one, StubVLLM(seconds=0.01) as two:
            servers, model = fleet(tmp_path, [one, two]), adapted()
            servers.sync(model)
            two.kill()
            servers.sync(model)
            assert servers.weights is not None
            played = play(servers, episodes())
            assert played == undisturbed(tmp_path / "twin", servers.weights.name)
            assert not two.turns
            with StubVLLM(port=two.port) as again:
                wait_until(lambda: servers.weights.name in again.adapters)  # type: ignore[union-attr]
                wait_until(lambda: all(server.up for server in servers._servers))
                assert play(servers, episodes()) == played
                assert again.turns

    @pytest.mark.parametrize("adapter_rank", [8, 0])
    @pytest.mark.slow
    def test_the_only_server_dies_in_the_middle_and_comes_back(self, tmp_path: Path, adapter_rank: int) -> None:
        """No episode is lost, none is played twice, and none with the weights that the new server came with."""
        with StubVLLM(seconds=0.01) as stub:
            servers = fleet(tmp_path, [stub], adapter_rank=adapter_rank)
            servers.sync(adapted())
            assert servers.weights is not None
            sessions = episodes()
            thread = threading.Thread(target=play, args=(servers, sessions))
            thread.start()
            wait_until(lambda: len(stub.turns) > 10)
            stub.kill()
            with StubVLLM(port=stub.port) as again:
                thread.join(20)
                assert not thread.is_alive()
                assert again.loads == [servers.weights.name]
                assert servers.weights.name in {weights for _, _, weights in again.turns}
        assert [session.turns for session in sessions] == undisturbed(tmp_path / "twin", servers.weights.name)
        assert not any(session.lost for session in sessions)

    @pytest.mark.slow
    def test_whole_weights_that_a_server_forgot_are_noticed(self, tmp_path: Path) -> None:
        with StubVLLM() as stub:
            servers = fleet(tmp_path, [stub], adapter_rank=0)
            servers.sync(make_model())
            assert servers.weights is not None
            stub.version = "default"  # as after a start that nobody saw
            assert play(servers, episodes()) == undisturbed(tmp_path / "twin", servers.weights.name)
            assert stub.loads == [servers.weights.name] * 2

    @pytest.mark.slow
    def test_servers_that_never_come_back_lose_their_episodes(self, tmp_path: Path) -> None:
        with StubVLLM() as stub:
            servers = fleet(tmp_path, [stub], patience=0.3)
            servers.sync(adapted())
        sessions = episodes(3)
        play(servers, sessions)
        assert all("has answered for 0 s" in session.lost[0] for session in sessions)
        assert not any(session.turns for session in sessions)

    @pytest.mark.slow
    def test_a_server_that_fails_again_and_again_loses_the_episode(self, tmp_path: Path) -> None:
        with StubVLLM(failing=500) as stub:
            servers = fleet(tmp_path, [stub])
            servers.sync(adapted())
            session = episodes(1)[0]
            play(servers, [session])
            assert "answered 500" in session.lost[0]

    @samples(
        "garbage",
        [
            "<html>",
            {},
            {"model": "x", "choices": []},
            said([5], None),
            said([], {"token_logprobs": []}),
            said([5, 6], {"token_logprobs": [-1.0]}),
            said([5], {"token_logprobs": [None]}),
        ],
    )
    @pytest.mark.slow
    def test_garbage_is_a_fault_of_the_server_and_another_one_plays(self, tmp_path: Path, garbage: Any) -> None:
        with StubVLLM() as broken, StubVLLM() as good:
            servers = fleet(tmp_path, [broken, good])
            servers.sync(adapted())
            broken.garbage = garbage
            sessions = episodes(6)
            play(servers, sessions)
            assert all(session.turns and not session.lost for session in sessions)
        with StubVLLM() as alone:
            servers = fleet(tmp_path / "alone", [alone])
            servers.sync(adapted())
            alone.garbage = garbage
            session = episodes(1)[0]
            play(servers, [session])
            assert alone.url in session.lost[0]

    @pytest.mark.parametrize("adapter_rank", [8, 0])
    @pytest.mark.slow
    def test_a_sync_waits_for_a_server_that_is_being_given_the_old_weights(
        self, tmp_path: Path, adapter_rank: int
    ) -> None:
        """Else these could come last, under the name of the new ones, or be removed while they are read."""
        with StubVLLM() as one, StubVLLM() as two:
            servers, model = fleet(tmp_path, [one, two], adapter_rank=adapter_rank), adapted()
            servers.sync(model)
            load, begun, may_end, events = servers._load, threading.Event(), threading.Event(), []

            def slow(server: Any, weights: Any) -> None:
                number = weights.name.rpartition("-")[2]
                events.append(f"begins {number}")
                if number == "1":
                    begun.set()
                    may_end.wait(10)
                load(server, weights)
                events.append(f"ends {number}")

            servers._load = slow  # type: ignore[method-assign]
            two.adapters.clear()
            servers._mark_down(servers._servers[1], InfrastructureError("it was away"))
            assert begun.wait(10)
            thread = threading.Thread(target=servers.sync, args=(model,))
            thread.start()
            time.sleep(0.1)
            may_end.set()
            thread.join(20)
            assert events[:3] == ["begins 1", "ends 1", "begins 2"]
            wait_until(lambda: servers._servers[1].up)
            assert servers.weights is not None
            assert servers.weights.name == two.loads[-1]
            assert play(servers, episodes()) == undisturbed(tmp_path / "twin", servers.weights.name)

    @pytest.mark.parametrize("from_the_sync_on", [False, True])
    @pytest.mark.slow
    def test_a_server_that_hangs_costs_a_look_at_its_health(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_the_sync_on: bool
    ) -> None:
        """Its time of patience is ten minutes: nobody waits for that, nothing is lost."""
        monkeypatch.setattr(vllm_client, "_HEALTH_CHECK_SECONDS", 0.05)
        monkeypatch.setattr(vllm_client, "_HEALTH_TIMEOUT", 0.5)
        with StubVLLM(seconds=0.01) as one, StubVLLM() as good:
            servers, model = fleet(tmp_path, [one, good], patience=600.0), adapted()
            servers.sync(model)
            one.hangs = True
            if from_the_sync_on:
                servers.sync(model)
            sessions = episodes()
            thread = threading.Thread(target=play, args=(servers, sessions), daemon=True)
            thread.start()
            thread.join(60)
            assert not thread.is_alive()
            assert not any(session.lost for session in sessions)
            assert [session.turns for session in sessions] == undisturbed(tmp_path / "twin", servers.weights.name)  # type: ignore[union-attr]
            assert not one.turns

    @pytest.mark.slow
    def test_a_server_that_is_well_may_take_its_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vllm_client, "_HEALTH_CHECK_SECONDS", 0.02)
        with StubVLLM(seconds=0.5) as slow, StubVLLM() as quick:
            servers = fleet(tmp_path, [slow, quick])
            servers.sync(adapted())
            played = play(servers, episodes(8))
            assert slow.turns  # and none of them was played by the other one too
            assert len(slow.turns) + len(quick.turns) == sum(len(turns) for turns in played)

    @pytest.mark.slow
    def test_a_turn_may_take_longer_than_patience(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(vllm_client, "_HEALTH_CHECK_SECONDS", 0.05)
        with StubVLLM(seconds=1.5) as slow:
            servers = fleet(tmp_path, [slow], patience=0.1)
            servers.sync(adapted())
            sessions = episodes(2)
            play(servers, sessions)
            assert len(slow.turns) == sum(len(session.turns) for session in sessions)
        assert not any(session.lost for session in sessions)

    @pytest.mark.slow
    def test_patience_is_for_a_turn_and_not_for_each_attempt(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(vllm_client, "_HEALTH_CHECK_SECONDS", 0.05)
        monkeypatch.setattr(vllm_client, "_HEALTH_TIMEOUT", 0.2)
        with StubVLLM() as hanging:
            servers = fleet(tmp_path, [hanging], patience=0.5)
            servers.sync(adapted())
            hanging.hangs = True
            sessions = episodes(2)
            play(servers, sessions)
        assert all("has answered for 0 s" in session.lost[0] for session in sessions)

    def test_patience_is_for_waiting_and_not_for_a_server_that_works(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with StubVLLM() as stub:
            servers = fleet(tmp_path, [stub], patience=600.0)
            servers.sync(adapted())
            hours, sample = [0], servers._sample
            clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * hours[0], sleep=time.sleep)
            monkeypatch.setattr(vllm_client, "time", clock)

            def fails_once(server: Any, request: Any) -> Any:
                if not hours[0]:
                    hours[0] = 1
                    raise InfrastructureError("the server was killed after an hour")
                return sample(server, request)

            monkeypatch.setattr(servers, "_sample", fails_once)
            (session,) = episodes(1)
            play(servers, [session])
        assert session.turns
        assert not session.lost

    def test_a_refused_request_is_an_error_of_the_program(self, tmp_path: Path) -> None:
        with StubVLLM(failing=400) as stub:
            servers = fleet(tmp_path, [stub])
            servers.sync(adapted())
            with pytest.raises(RuntimeError, match="answered 400"):
                play(servers, episodes(1))


class TestWeights:
    def test_whole_weights_are_written_merged(self, tmp_path: Path) -> None:
        model = get_peft_model(make_model(tied=False), LoraConfig(r=4, use_dora=True, modules_to_save=["lm_head"]))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with StubVLLM() as stub:
            servers = fleet(tmp_path, [stub], adapter_rank=0)
            servers.sync(model)
            assert servers.weights is not None
            written = load_file(Path(servers.weights.folder) / "model.safetensors")
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        merged = model.merge_and_unload().state_dict()
        assert written.keys() <= merged.keys()
        assert merged.keys() - written.keys() <= {"lm_head.weight"}
        assert all(torch.allclose(value, merged[name], atol=1e-6) for name, value in written.items())

    @samples(
        "option",
        [
            {"use_dora": True},
            {"rank_pattern": {"q_proj": 4}},
            {"alpha_pattern": {"q_proj": 64}},
            {"init_lora_weights": "pissa"},
            {"modules_to_save": ["norm"]},
        ],
    )
    def test_an_adapter_that_is_more_than_one_rank_and_scale_is_merged(self, option: dict[str, Any]) -> None:
        assert adapter_rank(get_peft_model(make_model(), LoraConfig(r=8, target_modules="all-linear", **option))) == 0
        assert adapter_rank(adapted()) == 8
        assert adapter_rank(make_model()) == 0

    def test_what_cannot_be_merged_into_the_base_is_refused(self) -> None:
        for name in ("lm_head", "embed_tokens", "model.embed_tokens"):
            tied = get_peft_model(make_model(), LoraConfig(r=8, modules_to_save=[name]))
            with pytest.raises(ConfigurationError, match="where the base model ties the two"):
                check_whole(tied)
        untied = get_peft_model(make_model(tied=False), LoraConfig(r=8, modules_to_save=["lm_head"]))
        check_whole(untied)
        tokens = get_peft_model(make_model(), LoraConfig(r=8, trainable_token_indices=[1]))
        with pytest.raises(ConfigurationError, match="an adapter with trainable_token_indices: set engine=cached"):
            check_whole(tokens)

    def test_processes_that_load_the_same_adapter_do_not_mind(self, tmp_path: Path) -> None:
        with StubVLLM() as stub:
            one = fleet(tmp_path, [stub])
            one.sync(adapted())
            assert one.weights is not None
            one._load(one._servers[0], one.weights)

    def test_what_a_killed_run_left_behind_is_removed_at_the_next_start(self, tmp_path: Path) -> None:
        folder, elsewhere = tmp_path / "weights", tmp_path / "elsewhere"
        for made in (folder / "agent-r1-0a1b2c3d-12", folder / "agent-r1-0a1b2c3d-mine", folder / "other", elsewhere):
            made.mkdir(parents=True)
            (made / "model.safetensors").write_bytes(b"weights")
        (folder / "agent-r1-0a1b2c3d-13").symlink_to(elsewhere)
        (folder / "agent-r1-0a1b2c3d-14").write_bytes(b"no folder")
        with StubVLLM() as stub:
            fleet(folder, [stub])
        assert {path.name.removeprefix("agent-r1-0a1b2c3d-") for path in folder.iterdir()} == {
            *("mine", "other", "13", "14"),
        }
        assert (elsewhere / "model.safetensors").exists()


def wait_until(holds: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)
