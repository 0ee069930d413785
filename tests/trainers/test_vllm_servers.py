"""A trainer whose rollouts come from servers: weights go over before each batch that follows an update, and no more."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from agent_r1_gym.errors import ConfigurationError
from tests.kit import vllm_servers
from tests.kit.models import make_model
from tests.kit.say_env import register_say, save_model
from tests.kit.vllm_servers import StubVLLM, trained
from tests.trainers.vllm.say import say_config
from trainers.commands.train import building
from trainers.rollouts.collect import Collector
from trainers.rollouts.prefetch import RolloutPrefetcher

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.usefixtures("closed_backends"),
]


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "whole"])
@pytest.mark.slow
def test_each_update_is_followed_by_new_weights(tmp_path: Path, lora: bool) -> None:
    with StubVLLM(tokens=17) as stub:
        trainer = trained(tmp_path, stub, lora=lora)
        names = list(dict.fromkeys(weights for _, _, weights in stub.turns))
        assert names == stub.loads
        assert len(names) == 3
        assert [sum(weights == name for *_, weights in stub.turns) for name in names] == [8, 8, 8]
        trainer.backend.close()


@pytest.mark.parametrize(("sharding", "rank"), [(None, 8), ("ZeRO-2", 8), ("ZeRO-3", 0), ("FSDP2 FULL_STATE_DICT", 0)])
def test_the_adapter_goes_over_where_no_weights_are_sharded(
    sharding: str | None, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "VLLMServerBackend", lambda options: options)
    args: Any = SimpleNamespace(
        **{"vllm_mode": "server", "vllm_server_base_url": "http://server", "output_dir": str(tmp_path)},
        **{"alarm_drift_above": 1.0, "vllm_server_timeout": 1.0, "max_prompt_length": 8, "max_completion_length": 8},
    )
    model = get_peft_model(make_model(), LoraConfig(r=8, target_modules="all-linear"))
    started: Any = building.start_backend(args, model, sharding)
    assert started.adapter_rank == rank


@pytest.mark.slow
def test_weights_stay_while_a_batch_is_used_again(tmp_path: Path) -> None:
    with StubVLLM(tokens=17) as stub:
        trained(tmp_path, stub, max_steps=4, num_iterations=2)
        assert len(stub.loads) == 2


@pytest.mark.slow
def test_rollouts_are_weighed_by_what_the_server_reports(tmp_path: Path) -> None:
    with StubVLLM(tokens=17) as stub:
        trainer = trained(tmp_path, stub, vllm_importance_sampling_mode="token_truncate")
        steps = [row for row in trainer.state.log_history if "reward" in row]
        assert all(row["sampling/importance_sampling_ratio/mean"] < 0.5 for row in steps)  # the stub says .61 each
        assert all(row["sampling/logprob_drift_mean"] > 1 for row in steps)


@pytest.mark.slow
def test_the_next_batch_is_played_while_one_is_trained_on(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with StubVLLM(tokens=17) as stub:
        trainer = trained(tmp_path, stub, max_steps=4, overlap_rollouts=True)
        played = [sum(weights == name for *_, weights in stub.turns) for name in stub.loads]
        assert played == [16, 8, 8, 0]  # the first rows twice, and none that nobody would train on
        steps = [row for row in trainer.state.log_history if "reward" in row]
        assert [row["rollout/staleness"] for row in steps] == [0, 1, 1, 1]
        assert not any(thread.name == "rollouts" for thread in set(threading.enumerate()) - before)


@pytest.mark.slow
def test_what_is_waited_for_before_the_weights_go_over_is_time_of_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waits(ahead: RolloutPrefetcher, *, wait: Any = RolloutPrefetcher.wait) -> float:
        wait(ahead)
        return 1e6

    monkeypatch.setattr(RolloutPrefetcher, "wait", waits)
    with StubVLLM(tokens=17) as stub:
        trainer = trained(tmp_path, stub, overlap_rollouts=True)
    steps = [row for row in trainer.state.log_history if "reward" in row]
    assert all(1e6 <= row["rollout/seconds"] < 2e6 for row in steps)
    assert 3e6 <= trainer.progress.rollout_seconds < 4e6
    assert not any("rollout/tokens_per_second" in row for row in steps)


@pytest.mark.slow
def test_a_resumed_run_trains_on_what_had_been_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_servers, "sampled", partial(_sampled_alike, vllm_servers.sampled))
    options = {"overlap_rollouts": True, "refill_groups": 1, "learning_rate": 1e-2, "save_strategy": "steps"}
    with StubVLLM(tokens=17) as stub:
        whole = trained(tmp_path / "whole", stub, max_steps=4, save_steps=2, **options)
        folder = tmp_path / "whole" / "run" / "checkpoint-2"
        resumed = trained(tmp_path / "resumed", stub, max_steps=4, save_steps=2, resume=str(folder), **options)
    for name, weight in whole.model.named_parameters():
        assert torch.equal(weight, resumed.model.get_parameter(name)), name
    logs = [[row["rollout/resampled"] for row in run.state.log_history if "reward" in row] for run in (whole, resumed)]
    assert logs == [[0.0, 1.0, 1.0, 0.0]] * 2  # the third batch had been played when the checkpoint was saved


def _sampled_alike(sampled: Any, context: list[int], seed: int, weights: str, *sizes: int) -> list[int]:
    """Tokens that do not tell one run's weights from another's."""
    return sampled(context, seed, "", *sizes)  # type: ignore[no-any-return]


@pytest.mark.slow
def test_rollouts_that_were_lost_in_advance_end_the_run_and_are_played_again(tmp_path: Path) -> None:
    calls = []

    def breaks(collect: Any, rows: Any, engine: Any, **options: Any) -> Any:
        calls.append([row["task_index"] for row in rows])
        if len(calls) == 3:
            raise OSError("no file left")
        return collect(rows, engine, **options)

    options = {"overlap_rollouts": True, "save_strategy": "steps", "max_steps": 5}
    with StubVLLM(tokens=17) as stub, mock.patch.object(Collector, "collect", wrapped(Collector.collect, breaks)):
        with pytest.raises(OSError, match="no file left"):
            trained(tmp_path, stub, save_steps=1, **options)
        assert len(calls) == 3
        lost = calls[-1]
        trained(tmp_path, stub, save_steps=1, resume=True, **options)
    assert calls[3] == lost


def goes_wrong_after_the_first(stub: StubVLLM, folder: Path) -> None:
    """Lets a server have the model when it is looked at before the first rollout, and report anything afterwards."""
    right = vllm_servers.reports_of(AutoModelForCausalLM.from_pretrained(save_model(folder / "model")))
    stub.reports = lambda context, ids: right(context, ids) if not stub.turns[1:] else [-0.5] * len(ids)


@pytest.mark.slow
def test_a_run_that_fails_does_not_wait_for_what_is_played_in_advance(tmp_path: Path) -> None:
    with StubVLLM(tokens=17) as stub:
        goes_wrong_after_the_first(stub, tmp_path)

        def slowly(start: Any, *arguments: Any) -> None:
            stub.seconds = 20.0
            start(*arguments)

        with (
            mock.patch.object(RolloutPrefetcher, "start", wrapped(RolloutPrefetcher.start, slowly)),
            pytest.raises(ConfigurationError, match="alarm_drift_above"),
        ):
            trained(tmp_path, stub, overlap_rollouts=True, alarm_drift_above=0.5)
        assert stub.loads == [stub.turns[-1][2]]
        assert len(stub.turns) == 1 + 8  # the first batch; none of the second has been answered


def wrapped(method: Any, around: Any) -> Any:
    return lambda self, *arguments, **options: around(partial(method, self), *arguments, **options)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": "cached"}, "overlap_rollouts needs engine=vllm"),
        ({"vllm_importance_sampling_correction": False, "vllm_mode": "server"}, "overlap_rollouts needs"),
    ],
)
def test_what_cannot_overlap_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    where = {"vllm_server_base_url": "http://localhost:1"} if "vllm_mode" in changes else {}
    with pytest.raises(ConfigurationError, match=words):
        say_config(tmp_path, register_say(), overlap_rollouts=True, **where, **changes)


@pytest.mark.slow
def test_a_server_with_another_model_ends_the_run_before_the_first_rollout(tmp_path: Path) -> None:
    with StubVLLM(tokens=17) as stub, pytest.raises(ConfigurationError, match="another model than the one"):
        trained(tmp_path, stub, alarm_drift_above=0.5)
    assert len(stub.turns) == 1


@pytest.mark.slow
def test_a_drift_ends_the_run(tmp_path: Path) -> None:
    """The server has the model, but goes wrong afterwards."""
    with StubVLLM(tokens=17) as stub:
        goes_wrong_after_the_first(stub, tmp_path)
        with pytest.raises(ConfigurationError, match="keeps old weights"):
            trained(tmp_path, stub, alarm_drift_above=0.5)
        assert len(stub.turns) == 1 + 8
