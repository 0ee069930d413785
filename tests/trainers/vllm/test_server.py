"""vLLM's own server: exact log-probs, weights that follow, learning, kill -9 in the middle."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from agent_r1_gym.errors import ConfigurationError
from benchmarks.common.servers import VLLMServer
from tests.kit.models import ScriptedSession, make_model
from tests.kit.say_env import save_model
from tests.trainers.rollouts.test_engines import assert_replays, tokens
from tests.trainers.vllm.say import AGENT, learns_in_twenty_steps
from trainers.rollouts.request_engine import RequestEngine, SamplingOptions
from trainers.rollouts.vllm_client import VLLMServerBackend, VLLMServerOptions

pytest.importorskip("vllm", reason="vLLM lives in an environment of its own: make test-vllm")
pytestmark = [pytest.mark.adapters, pytest.mark.slow]

SAMPLED = SamplingOptions(max_new_tokens=8, temperature=0.8, stop_token_ids=(2, 3))


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model"), tied=False)  # a tied head stays old on a CPU


@pytest.fixture(scope="module")
def server(model_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VLLMServer]:
    made = VLLMServer(model_folder, tmp_path_factory.mktemp("server") / "log.txt")
    made.start()
    yield made
    made.kill()


def sessions(count: int, kind: type[ScriptedSession] = ScriptedSession) -> list[ScriptedSession]:
    made = [kind([4, 5 + number % 9], [[6, 7]] * 3) for number in range(count)]
    for number, session in enumerate(made):
        session.seed = number  # type: ignore[attr-defined]
    return made


def test_kill_9_in_the_middle_costs_time_and_nothing_else(
    tmp_path: Path, server: VLLMServer, model_folder: str
) -> None:
    """No episode is lost, none is played twice, and all turns are of the adapter, which a new server does not have."""
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_folder), LoraConfig(r=8, init_lora_weights=False))
    options: dict[str, Any] = {"urls": [server.url], "folder": tmp_path, "max_length": 80}
    servers = VLLMServerBackend(VLLMServerOptions(**options, adapter_rank=8, max_logprob_diff=1e-4))
    servers.sync(model)
    undisturbed = sessions(32)
    RequestEngine(servers, SAMPLED, slots=16, max_length=80).run(undisturbed)
    assert_replays(model, undisturbed, 0.8, within=1e-4)
    played, middle = itertools.count(1), threading.Event()

    class Watched(ScriptedSession):
        def finish_turn(self, ids: Any, logprobs: Any, stopped: Any) -> Any:
            if next(played) == 40:
                middle.set()
            return super().finish_turn(ids, logprobs, stopped)

    disturbed = sessions(32, Watched)
    engine = RequestEngine(servers, SAMPLED, slots=16, max_length=80)
    thread = threading.Thread(target=engine.run, args=(disturbed,), daemon=True)
    thread.start()
    assert middle.wait(60)
    server.kill()
    time.sleep(1.0)
    server.start()
    thread.join(120)
    assert not thread.is_alive()
    assert tokens(disturbed) == tokens(undisturbed)
    assert_replays(model, disturbed, 0.8, within=1e-4)
    servers.close()


def test_a_model_and_a_rank_that_it_was_not_started_with(tmp_path: Path, server: VLLMServer, model_folder: str) -> None:
    options: dict[str, Any] = {"urls": [server.url], "folder": tmp_path, "max_length": 80}
    right, other = AutoModelForCausalLM.from_pretrained(model_folder), make_model(width=128, tied=False, seed=1)
    servers = VLLMServerBackend(VLLMServerOptions(**options, adapter_rank=16))
    with pytest.raises(ConfigurationError, match=r"does not take adapters of rank 16 .* with --max-lora-rank 16"):
        servers.sync(get_peft_model(right, LoraConfig(r=16)))
    servers.close()
    servers = VLLMServerBackend(VLLMServerOptions(**options, adapter_rank=8, max_logprob_diff=1e-2))
    with pytest.raises(ConfigurationError, match="has another model than the one that is trained"):
        servers.sync(get_peft_model(other, LoraConfig(r=8)))
    servers.close()


def test_twenty_steps_learn_through_a_program(tmp_path: Path, server: VLLMServer, model_folder: str) -> None:
    where = {"vllm_mode": "server", "vllm_server_base_url": server.url, "env_kwargs": {"agent": AGENT}}
    learns_in_twenty_steps(tmp_path / "run", model_folder, lora=True, **where).backend.close()


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "whole"])  # whole weights stay in the server
def test_twenty_steps_learn(tmp_path: Path, server: VLLMServer, model_folder: str, lora: bool) -> None:
    where = {"vllm_mode": "server", "vllm_server_base_url": server.url}
    trainer = learns_in_twenty_steps(tmp_path / "run", model_folder, lora=lora, **where)
    trainer.backend.close()
    if not lora:
        with pytest.raises(ConfigurationError, match="still has the whole weights of another run"):
            VLLMServerBackend(VLLMServerOptions(urls=[server.url], folder=tmp_path, max_length=80, adapter_rank=8))
