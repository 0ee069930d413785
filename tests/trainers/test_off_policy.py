"""Rollouts of before the update: their ratios are exact, and a server that misses updates is found."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from agent_r1_gym.errors import ConfigurationError
from tests.kit.say_env import save_model
from tests.kit.vllm_servers import StubVLLM, trained
from trainers.config.agent import AgentConfig
from trainers.trainer import AgentTrainer, check_drift, logprob_drift


@dataclass
class ExactVLLM(StubVLLM):
    """Takes whole weights.

    Attributes:
        model: folder of the model that it is started with.
        keeps: whether it goes on with these weights after the first ones that it is given, and says that it does not.
    """

    model: str = ""
    keeps: bool = False

    def __enter__(self) -> ExactVLLM:
        self._weights = AutoModelForCausalLM.from_pretrained(self.model).eval()
        self._computing = threading.Lock()
        super().__enter__()
        return self

    def answer(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        if path == "/collective_rpc" and not (self.keeps and self.loads):
            weights = load_file(Path(body["kwargs"]["weights_path"]) / "model.safetensors")
            with self._computing:
                self._weights.load_state_dict(weights, strict=False)
        if path == "/v1/completions" and not body["logprobs"]:
            return 200, self._sampled(body)
        return super().answer(path, body)

    def _sampled(self, body: Mapping[str, Any]) -> dict[str, Any]:
        ids, logprobs = list(body["prompt"]), []
        generator = torch.Generator().manual_seed(body["seed"] % 2**63)
        for _ in range(body["max_tokens"]):
            with self._computing, torch.no_grad():
                table = self._weights(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
            ids.append(int(torch.multinomial(table.exp(), 1, generator=generator)))
            logprobs.append(table[ids[-1]].item())
            if ids[-1] in body["stop_token_ids"]:
                break
        turn = ids[len(body["prompt"]) :]
        self.turns.append((tuple(body["prompt"]), body["seed"], self.version))
        reason = "stop" if turn[-1] in body["stop_token_ids"] else "length"
        choice = {"token_ids": turn, "logprobs": {"token_logprobs": logprobs}, "finish_reason": reason}
        return {"model": body["model"], "choices": [choice]}


pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.usefixtures("closed_backends"),
]
OVERLAP = {"overlap_rollouts": True, "lora": False, "max_turn_tokens": 3}


class Seen(NamedTuple):
    """A batch as the trainer had it, and the weights that it had then."""

    output: dict[str, Any]
    staleness: int
    weights: dict[str, Tensor]


def log_probs(model: Any, output: dict[str, Any]) -> Tensor:
    """Those (B, T) of the completions, by a plain pass over each line without its padding."""
    lines = torch.zeros(output["completion_ids"].shape)
    for line, *parts in zip(
        lines,
        *(output[name] for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")),
        strict=True,
    ):
        prompt, said = parts[0][parts[1].bool()], parts[2][parts[3].bool()]
        with torch.no_grad():
            table = model(torch.cat([prompt, said])[None]).logits[0].float().log_softmax(-1)
        line[: len(said)] = table[len(prompt) - 1 : -1].gather(1, said[:, None])[:, 0]
    return lines


@pytest.mark.slow
def test_ratios_of_rollouts_that_are_an_update_old_are_exact(tmp_path: Path) -> None:
    """Those of the weights before the update over those that the server was given, one update earlier."""
    seen: list[Seen] = []
    compare = AgentTrainer._compare_with_engine

    def noted(trainer: AgentTrainer, batch: Any, output: dict[str, Any], logps: Any) -> None:
        weights = {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}
        seen.append(Seen(output, trainer.progress.staleness, weights))
        compare(trainer, batch, output, logps)

    correction = {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": math.inf}
    model = save_model(tmp_path / "model")
    with ExactVLLM(model=model) as stub, mock.patch.object(AgentTrainer, "_compare_with_engine", noted):
        trainer = trained(tmp_path, stub, **OVERLAP, **correction, learning_rate=1e-4)
    assert [batch.staleness for batch in seen] == [0, 1, 1]
    policy = trainer.accelerator.unwrap_model(trainer.model)
    for old, new in itertools.pairwise(seen):
        said = new.output["completion_mask"].bool()
        policy.load_state_dict(old.weights)
        before = log_probs(policy, new.output)
        assert_close(new.output["sampling_per_token_logps"][said], before[said], rtol=0, atol=1e-5)
        policy.load_state_dict(new.weights)
        after = log_probs(policy, new.output)
        found = new.output["importance_sampling_ratio"][said]
        assert_close(found, (after - before).exp()[said], rtol=1e-5, atol=1e-5)
        assert (found - 1).abs().max() > 0.01


class TestDrift:
    @pytest.mark.parametrize("keeps", [False, True])
    @pytest.mark.slow
    def test_a_server_that_keeps_old_weights_ends_the_run(self, tmp_path: Path, keeps: bool) -> None:
        options = {**OVERLAP, "learning_rate": 3e-4, "max_steps": 5, "per_device_train_batch_size": 24}
        options["alarm_drift_above"] = AgentConfig.alarm_drift_above
        with ExactVLLM(model=save_model(tmp_path / "model"), keeps=keeps) as stub:
            if not keeps:
                rows = trained(tmp_path, stub, **options).state.log_history
                assert [row["rollout/staleness"] for row in rows if "reward" in row] == [0, 1, 1, 1, 1]
                return
            with pytest.raises(ConfigurationError, match=r"at most 2 x alarm_drift_above=0\.5: the policy is not"):
                trained(tmp_path, stub, **options)
        assert len(stub.loads) > 2  # not in the first batches: it falls behind with each update

    @pytest.mark.slow
    def test_log_probs_that_are_wrong_end_the_run_in_a_later_batch_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("trainers.trainer.STALE_DRIFT_FACTOR", 0.0)  # as if the first batch had been right
        wrong = {"overlap_rollouts": True, "alarm_drift_above": 1e9}
        with StubVLLM(tokens=17) as stub, pytest.raises(ConfigurationError, match="1 optimiser steps ago"):
            trained(tmp_path, stub, **wrong)
        assert len(stub.loads) == 2

    def test_rollouts_that_are_an_update_old_may_differ_twice_as_much(self) -> None:
        check_drift(0.5, 9.0, limit=0.5, staleness=0)
        check_drift(1.0, 9.0, limit=0.5, staleness=2)
        with pytest.raises(ConfigurationError, match=r"by 0\.60 nats .*at most 9\.00.* alarm_drift_above=0\.5"):
            check_drift(0.6, 9.0, limit=0.5, staleness=0)
        with pytest.raises(ConfigurationError, match=r"by 1\.10 nats .*lower learning_rate"):
            check_drift(1.1, 9.0, limit=0.5, staleness=2)
        check_drift(1e9, 1e9, limit=math.inf, staleness=0)

    def test_is_of_the_tokens_that_were_sampled_and_are_known(self) -> None:
        logps = torch.tensor([[-1.0, -2.0, -3.0, 0.0], [-1.0, -1.0, -1.0, -1.0], [-2.0, -5.0, -9.0, -9.0]])
        sampling = torch.tensor([[-1.5, -2.5, -9.0, 0.0], [-1.2, math.nan, -0.6, -1.6], [-2.0, -9.0, -9.0, -9.0]])
        sampled = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
        assert_close(logprob_drift(logps, sampling, sampled), torch.tensor([0.5, 0.5, 0.2, 0.4, 0.6]))
