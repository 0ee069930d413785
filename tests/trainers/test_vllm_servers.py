"""A trainer whose rollouts come from servers: weights go over before each batch that follows an update, and no more."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig
from transformers import AutoTokenizer

from agent_r1_gym.errors import ConfigurationError
from tests.kit.say_env import register_say, save_model
from tests.kit.vllm_stub import StubVLLM
from tests.trainers.vllm.say import say_config
from trainers.train import build_trainer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


_TRAINERS: list[Any] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Closes what is left: else its threads would ask for dead servers during the tests of others."""
    yield
    while _TRAINERS:
        _TRAINERS.pop().backend.close()


def trained(folder: Path, stub: StubVLLM, *, lora: bool = True, **changes: Any) -> Any:
    model = save_model(folder / "model")
    options = {"max_steps": 3, "per_device_train_batch_size": 8, "alarm_drift_above": math.inf, **changes}
    where = {"vllm_mode": "server", "vllm_server_base_url": stub.url}
    trainer = build_trainer(
        say_config(folder / "run", register_say(), **where, **options),
        model,
        tokenizer=AutoTokenizer.from_pretrained(model),
        peft_config=LoraConfig(r=8, target_modules="all-linear") if lora else None,
    )
    _TRAINERS.append(trainer)
    trainer.train()
    return trainer


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "whole"])
def test_each_update_is_followed_by_new_weights(tmp_path: Path, lora: bool) -> None:
    with StubVLLM(tokens=17) as stub:
        trainer = trained(tmp_path, stub, lora=lora)
        names = list(dict.fromkeys(weights for _, _, weights in stub.turns))
        assert names == stub.loads
        assert len(names) == 3
        assert [sum(weights == name for *_, weights in stub.turns) for name in names] == [8, 8, 8]
        trainer.backend.close()


def test_weights_stay_while_a_batch_is_used_again(tmp_path: Path) -> None:
    with StubVLLM(tokens=17) as stub:
        trained(tmp_path, stub, max_steps=4, num_iterations=2)
        assert len(stub.loads) == 2


def test_rollouts_are_weighed_by_what_the_server_reports(tmp_path: Path) -> None:
    with StubVLLM(tokens=17) as stub:
        trainer = trained(tmp_path, stub, vllm_importance_sampling_mode="token_truncate")
        steps = [row for row in trainer.state.log_history if "reward" in row]
        assert all(row["sampling/importance_sampling_ratio/mean"] < 0.5 for row in steps)  # the stub says .61 each
        assert all(row["sampling/logprob_drift_mean"] > 1 for row in steps)


def test_a_drift_ends_the_run(tmp_path: Path) -> None:
    with StubVLLM(tokens=17) as stub, pytest.raises(ConfigurationError, match="keeps old weights"):
        trained(tmp_path, stub, alarm_drift_above=0.5)
    assert len(stub.turns) == 8
