"""Servers of vLLM that were started wrongly, or with another model, are refused before anything is rolled out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from tests.kit.samples import samples
from tests.kit.vllm_servers import StubVLLM, adapted, changed, closed_fleets, fleet, reports_of
from trainers.rollouts import vllm_client


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(vllm_client, "_PAUSE", 0.02)
    with closed_fleets():
        yield


class TestRefusals:
    @samples(
        ("wrong", "settings", "words"),
        [
            ({"max_model_len": 30}, {}, "contexts of 30 tokens.*--max-model-len 60"),
            ({"processed": False}, {}, "--logprobs-mode processed_logprobs"),
            ({"dev_mode": False}, {"adapter_rank": 0}, "VLLM_SERVER_DEV_MODE=1"),
            ({"version": "agent-r1-abc-7"}, {}, r"whole weights of another run \(agent-r1-abc-7\).*start it again"),
        ],
    )
    def test_a_server_that_was_started_wrongly(
        self, tmp_path: Path, wrong: dict[str, Any], settings: dict[str, Any], words: str
    ) -> None:
        with StubVLLM(**wrong) as stub, pytest.raises(ConfigurationError, match=words):
            fleet(tmp_path, [stub], **settings)

    def test_a_server_that_takes_no_adapter(self, tmp_path: Path) -> None:
        with StubVLLM(lora=False) as stub:
            servers = fleet(tmp_path, [stub])
            with pytest.raises(ConfigurationError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora"):
                servers.sync(adapted())

    @pytest.mark.parametrize("refusal", [400, 500])  # 500 may be of the server, but not for good
    def test_a_server_for_adapters_of_a_smaller_rank(self, tmp_path: Path, refusal: int) -> None:
        with StubVLLM(max_lora_rank=4, refusal=refusal) as stub:
            servers = fleet(tmp_path, [stub])
            words = f"{stub.url} does not take adapters of rank 8 .*: start it with --max-lora-rank 8.$"
            with pytest.raises(ConfigurationError, match=words):
                servers.sync(adapted())

    @pytest.mark.slow
    @pytest.mark.parametrize("adapter_rank", [8, 0])
    def test_one_server_of_two_that_has_another_model(self, tmp_path: Path, adapter_rank: int) -> None:
        """Of the same shape: no name and no size tells; nothing is said of it before its first weights are there."""
        model = changed(adapted())
        with (
            StubVLLM(tokens=17, reports=reports_of(model)) as right,
            StubVLLM(tokens=17) as wrong,  # surer of every token than the model is of any
        ):
            servers = fleet(tmp_path, [right, wrong], max_logprob_diff=0.05, adapter_rank=adapter_rank)
            with pytest.raises(ConfigurationError, match=f"{wrong.url} has another model .* at most .*=0.05. Start it"):
                servers.sync(model)

    @pytest.mark.slow
    @pytest.mark.parametrize("adapter_rank", [8, 0])
    def test_a_server_that_has_the_model_under_whatever_name(self, tmp_path: Path, adapter_rank: int) -> None:
        model = changed(adapted()).train()
        with StubVLLM(tokens=17, reports=reports_of(model)) as stub:
            servers = fleet(tmp_path, [stub], max_logprob_diff=1e-4, adapter_rank=adapter_rank)
            servers.sync(model)
            assert len(stub.turns) == 1
            servers.sync(model)
            assert len(stub.turns) == 1  # later the rollouts tell
        assert model.training

    def test_a_server_is_tested_without_the_penalties_of_the_models_configuration(self, tmp_path: Path) -> None:
        class Probed(StubVLLM):
            def answer(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
                if path == "/v1/completions":
                    probes.append(body)
                return super().answer(path, body)

        probes: list[Mapping[str, Any]] = []
        with Probed() as stub:
            fleet(tmp_path, [stub])
        off = {"repetition_penalty": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        assert len(probes) == 2
        assert all(body.items() >= {**off, "top_p": 1.0, "top_k": 0}.items() for body in probes)

    def test_no_server(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="No server is named"):
            fleet(tmp_path, [])
        with StubVLLM() as stub:
            stub.kill()
            with pytest.raises(InfrastructureError, match="cannot be reached"):
                fleet(tmp_path, [stub], patience=0.05)
