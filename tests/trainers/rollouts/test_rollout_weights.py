"""Rollouts in the compute dtype: no cast per token, keys in that type, and the trained weights as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from peft import IA3Config, LoraConfig, VeraConfig
from torch.utils._python_dispatch import TorchDispatchMode

from tests.kit.samples import samples
from tests.trainers.test_train import config
from trainers.commands.train.building import build_trainer
from trainers.monitoring.memory import memory_of
from trainers.rollouts.cache import SlotCache
from trainers.rollouts.slot_engine import SlotEngine, _EngineRun, cast_weights, rollout_dtype
from trainers.toy.model import build_model, build_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


class Casts(TorchDispatchMode):
    """Counts operations, and notes the weights that are cast."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.places = {parameter.data_ptr() for parameter in model.parameters()}
        self.weights = self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        if func is torch.ops.aten._to_copy.default and args[0].data_ptr() in self.places:
            self.weights += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def watched() -> Iterator[tuple[list[Casts], list[SlotCache]]]:
    """Watches every decoding step of every engine."""
    steps: list[Casts] = []
    caches: list[SlotCache] = []
    decode = _EngineRun._decode

    def counted(play: _EngineRun) -> None:
        with Casts(play.engine.model) as casts:
            decode(play)
        steps.append(casts)
        caches.append(play.cache)

    with mock.patch.object(_EngineRun, "_decode", counted):
        yield steps, caches


def trained(folder: Path, *, lora: bool = False, **settings: Any) -> Any:
    tokenizer = build_tokenizer()
    model: Any = build_model(tokenizer)
    adapter = None
    if lora:
        model, adapter = model.to(torch.bfloat16), LoraConfig(r=4, target_modules="all-linear")
    trainer = build_trainer(config(folder, max_steps=1, **settings), model, tokenizer=tokenizer, peft_config=adapter)
    trainer.train()
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_a_decoding_step_casts_no_weight_and_caches_the_compute_dtype(lora: bool, tmp_path: Path) -> None:
    with watched() as (steps, caches):
        trainer = trained(tmp_path, lora=lora, bf16=True)
    assert steps
    assert [step.weights for step in steps] == [0] * len(steps)
    for layer in caches[-1].slot_layers:
        assert (layer.keys.dtype, layer.values.dtype) == (torch.bfloat16, torch.bfloat16)
    trained_weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    assert {weight.dtype for weight in trained_weights} == {torch.float32}
    drift = [
        row["sampling/logprob_drift_mean"] for row in trainer.state.log_history if "sampling/logprob_drift_mean" in row
    ]
    assert drift and max(drift) < 0.05
    # What it was before: autocast casts every matrix in every step.
    with (
        mock.patch("trainers.commands.train.rollouts.cast_weights", return_value=nullcontext()),
        watched() as (before, old),
    ):
        trained(tmp_path / "before", lora=lora, bf16=True)
    matrices = sum(weight.ndim == 2 for weight in trained_weights) - (not lora)  # the tied head is also the embedding
    assert min(step.weights for step in before) >= matrices
    if not lora:
        assert old[-1].slot_layers[0].keys.dtype == torch.float32


@pytest.mark.slow
def test_float32_without_autocast_is_the_same_to_the_bit(tmp_path: Path) -> None:
    now = trained(tmp_path / "now")
    with mock.patch("trainers.commands.train.rollouts.cast_weights", return_value=nullcontext()):
        before = trained(tmp_path / "before")
    for one, other in zip(now.model.parameters(), before.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_modules_get_their_own_weights_back_and_tied_ones_share_a_copy() -> None:
    model = build_model(build_tokenizer())
    names = dict(model.named_parameters())

    def fails() -> None:
        with cast_weights(torch.bfloat16, model):
            lent = dict(model.named_parameters())
            assert list(lent) == list(names)
            assert {weight.dtype for weight in lent.values()} == {torch.bfloat16}
            assert model.lm_head.weight is model.get_input_embeddings().weight
            assert not any(weight.requires_grad for weight in lent.values())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert all(weight is names[name] for name, weight in model.named_parameters())


def test_hooks_on_gradients_survive() -> None:
    """DDP hangs its reduction on them."""
    model = torch.nn.Linear(2, 2)
    seen: list[torch.Tensor] = []
    hook = model.weight.register_post_accumulate_grad_hook(seen.append)
    with cast_weights(torch.bfloat16, model), torch.no_grad():
        assert model(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    model(torch.ones(1, 2)).sum().backward()
    assert seen == [model.weight]
    hook.remove()


@samples(
    ("precision", "quantised", "expected"),
    [
        ({"bf16": True, "fp16": False}, False, torch.bfloat16),
        ({"bf16": False, "fp16": True}, False, torch.float16),
        ({"bf16": False, "fp16": False}, False, None),
        ({"bf16": True, "fp16": False}, True, None),
    ],
)
def test_the_type_follows_the_trainers(precision: dict[str, bool], quantised: bool, expected: Any) -> None:
    assert rollout_dtype(SimpleNamespace(**precision), SimpleNamespace(is_quantized=quantised)) is expected


@pytest.mark.parametrize("kind", [VeraConfig, IA3Config])
@pytest.mark.slow
def test_adapters_of_other_kinds_roll_out_under_autocast(tmp_path: Path, kind: Any) -> None:
    """VeRA's projections are buffers, which stay float32."""
    options: dict[str, Any] = {"r": 2} if kind is VeraConfig else {"feedforward_modules": []}
    adapter = kind(target_modules=["q_proj"], task_type="CAUSAL_LM", **options)
    tokenizer = build_tokenizer()
    args = config(tmp_path, max_steps=1, bf16=True)
    trainer = build_trainer(args, build_model(tokenizer), tokenizer=tokenizer, peft_config=adapter)
    assert memory_of(trainer) == ""  # whose shape is not known
    trainer.train()
    assert trainer.state.global_step == 1


def test_a_decoding_step_waits_once_and_moves_with_one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.kit.models import STOPS, make_causal_lm, make_sessions
    from trainers.rollouts.request_engine import SamplingOptions

    waits: list[int] = []
    passes: list[int] = []
    indices: list[tuple[Any, Any]] = []
    tolist, move = torch.Tensor.tolist, SlotCache.move

    def moved(cache: SlotCache, sources: Any, targets: Any, *, length: int) -> None:
        indices.append((sources, targets))
        move(cache, sources, targets, length=length)

    def forbidden(tensor: Any) -> Any:
        raise AssertionError("a second wait for the device")

    model = make_causal_lm()
    model.register_forward_hook(lambda *_: passes.append(1))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda tensor: waits.append(1) or tolist(tensor))
    monkeypatch.setattr(torch.Tensor, "item", forbidden)
    monkeypatch.setattr(SlotCache, "move", moved)
    engine = SlotEngine(model, SamplingOptions(max_new_tokens=12, stop_token_ids=STOPS), slots=6, max_length=70)
    sessions = make_sessions(23, distinct_prompts=3)
    for number, session in enumerate(sessions):
        session.seed = number  # else the engine draws one, from a generator of the host
    engine.run(iter(sessions))
    assert len(waits) == len(passes) > 23
    assert indices
    assert all(isinstance(part, torch.Tensor) for pair in indices for part in pair)
