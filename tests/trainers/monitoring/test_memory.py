"""The memory estimate against measured bytes, the number of slots, and the trial of the largest update."""

from __future__ import annotations

import random
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    GPT2Config,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    TrainerCallback,
)

from agent_r1_gym.errors import ConfigurationError
from tests.kit.models import make_model, make_tokenizer
from tests.kit.pages import PAGES, ROOT
from tests.kit.samples import samples
from tests.kit.small_runs import make_args, make_rows, make_trainer, play
from tests.trainers.test_train import config
from trainers.commands.train import building
from trainers.commands.train.building import build_trainer
from trainers.commands.train.command import _first_screen
from trainers.monitoring import memory
from trainers.monitoring.defaults import ModelFacts, settle_defaults
from trainers.monitoring.memory import (
    DOCS_SETUPS,
    MARGIN,
    QWEN25,
    MemoryCheck,
    ModelShape,
    Setup,
    estimate_memory,
    format_estimate,
    kv_cache_bytes,
    max_size_inputs,
    optimizer_bytes_to_come,
    slots_that_fit,
    table,
)
from trainers.rollouts.cache import SlotCache
from trainers.rollouts.request_engine import SamplingOptions
from trainers.rollouts.slot_engine import MAX_SLOTS, sample
from trainers.toy.model import build_model, build_tokenizer
from trainers.trainer import AgentTrainer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

TINY = ModelShape(3, 48, 6, 2, 8, 80, 100)
SHAPES = [TINY, ModelShape(2, 48, 6, 3, 16, 80, 100, tied=False, qkv_bias=False, qk_norm=True)]


def build(shape: ModelShape) -> PreTrainedModel:
    options = {
        **{"hidden_size": shape.width, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads},
        **{"num_key_value_heads": shape.kv_heads, "intermediate_size": shape.feed_forward},
        **{"vocab_size": shape.vocabulary, "tie_word_embeddings": shape.tied},
    }
    if shape.qk_norm:
        return Qwen3ForCausalLM(Qwen3Config(head_dim=shape.head_dim, **options))
    return Qwen2ForCausalLM(Qwen2Config(**options))


def size(tensors: list[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("shape", SHAPES, ids=["qwen2", "qwen3"])
@samples("rank", [None, 4])
def test_weights_gradients_and_optimiser_are_exact(shape: ModelShape, rank: int | None) -> None:
    model: Any = build(shape)
    if rank is not None:
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(r=rank, target_modules=targets))
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    model(input_ids=torch.tensor([[1, 2, 3]])).logits.sum().backward()
    optimizer.step()
    found = estimate_memory(shape, Setup(lora_rank=rank, length=8))
    weights = list(model.parameters())
    states = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert found.weights == size(weights)
    assert found.gradients == size([weight.grad for weight in weights if weight.grad is not None])
    assert found.optimizer == size(states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kv_cache_is_exact(dtype: torch.dtype) -> None:
    model, slots, length = build(TINY).to(dtype), 5, 160  # the cache never holds fewer than 128 columns
    cache = SlotCache(TINY.layers, slots, max_length=length)
    inputs = torch.ones(slots, length, dtype=torch.long)
    starts, widths = torch.zeros(slots, dtype=torch.long), torch.full((slots,), length)
    positions, mask = cache.prepare_forward(slice(0, slots), starts, widths=widths, queries=length, length=length)
    with torch.no_grad():
        model(input_ids=inputs, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
    held = size([states for layer in cache.slot_layers for states in (layer.keys, layer.values)])
    assert held == kv_cache_bytes(TINY, slots=slots, length=length, number_bytes=dtype.itemsize)


def test_published_sizes() -> None:
    """The numbers of weights that the models' cards state: 0.49, 1.54, 3.09 and 7.61 billion."""
    assert [round(shape.parameters / 1e9, 2) for shape in QWEN25.values()] == [0.49, 1.54, 3.09, 7.62]


def test_what_a_setup_adds() -> None:
    one = estimate_memory(TINY, Setup(length=64))
    assert one.reference == one.weights == one.gradients == one.optimizer // 2 == 4 * TINY.parameters
    assert one.critic == 0
    assert one.rollout_copy == 2 * TINY.parameters  # bfloat16 beside float32
    assert estimate_memory(TINY, Setup(length=64, compute_bytes=4)).rollout_copy == 0
    assert one.sampling == 32 * 100 * 24
    frozen = estimate_memory(TINY, Setup(length=64, lora_rank=4, weight_bytes=2))
    assert frozen.rollout_copy == 2 * TINY.adapter_parameters(4)  # of the adapter alone
    assert estimate_memory(TINY, Setup(length=64, reference=False)).reference == 0
    assert estimate_memory(TINY, Setup(length=64, lora_rank=4)).reference == 0
    distilled = estimate_memory(TINY, Setup(length=64, micro_batch=3, distilled_tokens=10))
    undistilled = estimate_memory(TINY, Setup(length=64, micro_batch=3))
    assert distilled.activations - undistilled.activations == 3 * 10 * TINY.vocabulary * 3 * 4
    taught = estimate_memory(TINY, Setup(length=64, teacher_bytes=10**6))
    assert (taught.rollout - one.rollout, taught.update - one.update) == (10**6, 10**6)
    assert estimate_memory(TINY, Setup(length=64, critic=True)).critic == 4 * one.weights
    assert (
        estimate_memory(TINY, Setup(length=64, critic=True, processes=4)).critic == 2.5 * one.weights
    )  # 1 + 1 + 2 / 4
    four = estimate_memory(TINY, Setup(length=64, shards=4))
    assert (4 * four.weights, 4 * four.optimizer) == (one.weights, one.optimizer)
    assert four.rollout_copy == 2 * TINY.parameters
    assert one.update == 5 * one.weights + one.activations
    assert one.rollout == 4 * one.weights + one.rollout_copy + one.kv_cache + one.sampling
    plain = estimate_memory(TINY, Setup(length=64, checkpointing=False))
    assert plain.activations > 1.5 * one.activations
    with pytest.raises(ConfigurationError, match="shards must be at least 1, got 0"):
        Setup(shards=0)


def test_the_docs_show_this_table() -> None:
    assert table(DOCS_SETUPS) in PAGES["docs/gpus.md"]


def test_the_table_is_of_the_commands_that_it_stands_beside() -> None:
    file = yaml.safe_load((ROOT / "examples" / "hotpotqa_grpo.yaml").read_text(encoding="utf-8"))
    rollouts = file["per_device_train_batch_size"] * file["gradient_accumulation_steps"]
    for setup in DOCS_SETUPS.values():
        assert setup.slots == rollouts <= MAX_SLOTS
        assert setup.length == file["max_prompt_length"] + file["max_completion_length"]
        assert setup.micro_batch == file["per_device_train_batch_size"]
    adapter = DOCS_SETUPS["LoRA 16, bf16"]
    assert (adapter.lora_rank, adapter.weight_bytes, file["dtype"]) == (file["lora_r"], 2, "bfloat16")


@pytest.mark.parametrize("lora_rank", [None, 4])
def test_as_many_slots_as_fit(lora_rank: int | None) -> None:
    setup = Setup(lora_rank=lora_rank, length=64)
    whole = estimate_memory(TINY, replace(setup, slots=9)).rollout
    available_bytes = 1 + round(whole / (1 - MARGIN))
    assert slots_that_fit(TINY, setup, available_bytes=available_bytes) == 9
    assert slots_that_fit(TINY, setup, available_bytes=available_bytes - 2 * 64 * TINY.vocabulary) == 8
    assert slots_that_fit(TINY, setup, available_bytes=0) == 1
    assert slots_that_fit(TINY, replace(setup, slots=100), available_bytes=available_bytes) == 9


def test_sampling_takes_no_more_than_estimated() -> None:
    rows, words = 4, 50_000
    logits = torch.randn(rows, words, dtype=torch.bfloat16)
    live = largest = 0

    class Allocated(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal live, largest
            made = func(*args, **(kwargs or {}))
            for tensor in made if isinstance(made, tuple | list) else [made]:
                if isinstance(tensor, torch.Tensor) and tensor.numel() > rows and not tensor._is_view():
                    size = tensor.nbytes
                    live += size
                    largest = max(largest, live)
                    weakref.finalize(tensor.untyped_storage(), forget, size)
            return made

    def forget(size: int) -> None:
        nonlocal live
        live -= size

    with Allocated():
        sample(logits, SamplingOptions(max_new_tokens=1), uniforms=torch.rand(rows, dtype=torch.float64))
    held = largest + logits.nbytes
    assert held <= rows * words * 24
    assert held > rows * words * 12


@pytest.mark.parametrize("tied", [True, False])
def test_the_shape_of_a_loaded_model_is_read_off_its_configuration(tied: bool) -> None:
    config = Qwen2Config(
        vocab_size=512, hidden_size=64, intermediate_size=160, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    parameters = sum(weight.numel() for weight in Qwen2ForCausalLM(config).parameters())
    shape = ModelShape.of(config, parameters)
    assert shape is not None
    assert (shape.layers, shape.kv_heads, shape.head_dim, shape.tied) == (3, 2, 16, tied)
    assert shape.parameters == pytest.approx(parameters, rel=0.03)
    assert ModelShape.of(config, 2 * parameters) is None  # experts, say


def test_weights_that_zero3_has_sharded_count_whole() -> None:
    """DeepSpeed leaves of each weight no elements, and notes how many there are."""
    model = make_model()
    expected = ModelFacts.of(model)
    for weight in model.parameters():
        weight.ds_numel, weight.data = weight.numel(), torch.empty(0)  # type: ignore[attr-defined]
    assert expected.parameters and expected.shape is not None
    assert ModelFacts.of(model) == expected
    accelerator = SimpleNamespace(unwrap_model=lambda model: model)
    trainer = SimpleNamespace(model=model, accelerator=accelerator, args=SimpleNamespace(engine="cached"))
    assert memory.shape_of(trainer) == expected.shape


def test_a_configuration_of_another_kind_has_no_shape() -> None:
    assert ModelShape.of(GPT2Config(), 124_000_000) is None


def test_an_estimate_is_marked_as_one() -> None:
    line = format_estimate(estimate_memory(QWEN25["0.5B"], Setup(length=2048)), 2048)
    assert "per device, estimated (rollouts" in line and line.endswith("if episodes fill 2048 tokens")


class State(TrainerCallback):
    """What a trainer is at one moment of the start."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        trainer = self.trainer
        self.weights = [weight.detach().clone() for weight in trainer.model.parameters()]
        self.gradients = [weight.grad for weight in trainer.model.parameters()]
        self.optimizer = dict(trainer.optimizer.state)
        self.random = torch.get_rng_state(), random.getstate()
        self.logged = {mode: dict(numbers) for mode, numbers in trainer._metrics.items()}
        self.attributes = {name: id(value) for name, value in vars(trainer).items()}
        self.training = trainer.model.training


@pytest.mark.slow
@samples("settings", [{}, {"beta": 0.1}, {"loss_type": "grpo"}, {"entropy_coef": 0.01}])
def test_nothing_is_left_behind(settings: dict[str, Any], tmp_path: Path) -> None:
    adapter = LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.5)  # which draws random numbers
    trainer = AgentTrainer(
        make_model(),
        make_args(tmp_path, **settings),
        collect=play,
        train_dataset=make_rows(),
        processing_class=make_tokenizer(),
        peft_config=adapter,
    )
    losses: list[float] = []
    compute = trainer.compute_loss

    def noted(*arguments: Any) -> Any:
        loss = compute(*arguments)
        losses.append(float(loss))
        return loss

    before, after = State(trainer), State(trainer)
    trainer.compute_loss = noted
    trainer.create_optimizer_and_scheduler(1)
    for callback in (before, MemoryCheck(trainer), after):
        callback.on_train_begin()
    assert len(losses) == 1
    for one, other in zip(before.weights, after.weights, strict=True):
        assert torch.equal(one, other)
    assert after.gradients == [None] * len(after.gradients)
    assert before.optimizer == after.optimizer == {}
    assert torch.equal(before.random[0], after.random[0])
    assert before.random[1] == after.random[1]
    assert before.logged == after.logged
    assert before.attributes == after.attributes
    assert before.training == after.training


@pytest.mark.slow
def test_a_run_with_the_probe_ends_as_one_without(tmp_path: Path) -> None:
    weights = []
    for probe in (False, True):
        tokenizer = build_tokenizer()
        args = config(tmp_path / str(probe), max_steps=1, memory_check=probe)
        trainer = build_trainer(args, build_model(tokenizer), tokenizer=tokenizer)
        trainer.train()
        weights.append([weight.detach() for weight in trainer.model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


def test_rows_are_as_long_as_the_budgets_allow_and_share_no_prompt() -> None:
    def inputs(positions: int, *, measured: int | None = None) -> dict[str, Any]:
        shape = SimpleNamespace(max_position_embeddings=positions, vocab_size=50)
        model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: shape))
        limits = {"max_prompt_length": 5, "max_completion_length": 7}
        args = SimpleNamespace(per_device_train_batch_size=3, distils_in_loss=False, **limits)
        accelerator = SimpleNamespace(device=torch.device("cpu"))
        trainer = SimpleNamespace(args=args, model=model, accelerator=accelerator, longest_prompt=measured)
        return max_size_inputs(trainer)

    whole = inputs(100)
    assert whole["prompt_ids"].shape == (3, 5)
    assert whole["completion_ids"].shape == whole["advantages"].shape == (3, 7)
    assert len(whole["prompt_ids"].unique(dim=0)) == 3
    assert whole["num_items_in_batch"] == 21
    cut = inputs(10)
    assert (cut["prompt_ids"].size(1), cut["completion_ids"].size(1)) == (3, 7)
    assert inputs(100, measured=4)["prompt_ids"].shape == (3, 4)  # no prompt is as long as its budget


@pytest.mark.slow
def test_what_does_not_fit_is_named_before_any_rollout(tmp_path: Path) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("a rollout was played")

    trainer = make_trainer(tmp_path, never)

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")

    trainer.compute_loss = full
    trainer.add_callback(MemoryCheck(trainer))
    with pytest.raises(ConfigurationError, match=r"lower per_device_train_batch_size=8 .* tried to allocate 9 GiB"):
        trainer.train()


def test_what_adam_is_going_to_allocate(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, play)
    trainer.create_optimizer_and_scheduler(1)
    weights = sum(weight.numel() for weight in trainer.model.parameters())
    assert optimizer_bytes_to_come(trainer) == 2 * 4 * weights
    trainer.model(input_ids=torch.tensor([[1, 2]])).logits.sum().backward()
    trainer.optimizer.step()
    assert optimizer_bytes_to_come(trainer) == 0
    held = sum(state[name].nbytes for state in trainer.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq"))
    assert held == 2 * 4 * weights


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    tokenizer = build_tokenizer()
    folder = tmp_path_factory.mktemp("run")
    args = config(folder, gradient_accumulation_steps=2, max_completion_length=200, max_prompt_length=100)
    return build_trainer(args, build_model(tokenizer), tokenizer=tokenizer)


def test_a_cpu_takes_what_it_took(trainer: Any) -> None:
    slots = memory.plan_slots(trainer)
    assert (slots.max_slots, slots.number) == (128, 8)
    assert str(slots) == "8 at a time, all of a batch"
    assert memory.memory_for(torch.device("cpu")) is None


def test_a_gpu_takes_what_fits(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, setup = memory.shape_of(trainer), memory.setup_of(trainer, slots=5)
    assert shape is not None
    assert (setup.length, setup.micro_batch, setup.weight_bytes, setup.compute_bytes) == (214, 4, 4, 4)
    assert setup.length == trainer.longest_prompt + 200  # not the budget of prompts, which is 100
    available_bytes = 1 + round(estimate_memory(shape, setup).rollout / (1 - MARGIN))
    monkeypatch.setattr(memory, "memory_for", lambda _device: available_bytes)
    slots = memory.plan_slots(trainer)
    assert (slots.max_slots, slots.number) == (5, 5)
    assert str(slots).startswith("5 at a time, of 8 in a batch, as many as fit in ")
    monkeypatch.setattr(memory, "memory_for", lambda _device: 100 * available_bytes)
    assert memory.plan_slots(trainer).max_slots == 128


def test_a_teacher_leaves_less_for_episodes(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_for", lambda _device: 2**30)
    alone = memory.plan_slots(trainer).max_slots
    monkeypatch.setattr(trainer, "teacher", torch.nn.Linear(2**13, 2**14))
    assert memory.plan_slots(trainer).max_slots < alone


def test_defaults_go_by_the_prompts_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []

    def noted(*arguments: Any, length: int, **options: Any) -> None:
        lengths.append(length)
        settle_defaults(*arguments, length=length, **options)

    monkeypatch.setattr(building, "settle_defaults", noted)
    run = build_trainer(
        config(tmp_path, max_prompt_length=100), build_model(build_tokenizer()), tokenizer=build_tokenizer()
    )
    assert lengths == [14 + 64]  # the longest prompt, and the budget after it
    assert run.longest_prompt == 14


def test_the_option_wins(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "memory_for", lambda _device: 1)
    monkeypatch.setattr(trainer.args, "rollout_slots", 3)
    assert str(memory.plan_slots(trainer)) == "3 at a time, of 8 in a batch, set by --rollout-slots"
    monkeypatch.setattr(trainer.args, "rollout_slots", None)
    monkeypatch.setattr(trainer.args, "engine", "vllm")  # its memory is its own
    assert memory.plan_slots(trainer).max_slots == 384


def test_the_first_screen_says_which_number_and_why(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "slots", memory.SlotLimit(5, 8, "as fit 3 GiB"))
    lines = [line.split(maxsplit=1) for line in _first_screen(trainer, "tiny").splitlines()]
    reported = {line[0]: line[1] for line in lines if len(line) == 2}
    assert reported["rollouts"] == "5 at a time, of 8 in a batch, as fit 3 GiB"
    assert "per device, estimated" in reported["memory"]


def test_bfloat16_is_computed_in_and_copied(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"bf16": True, "world_size": 1, "distils_in_loss": False}
    monkeypatch.setattr(trainer, "args", SimpleNamespace(**{**vars(trainer.args), **changed}))
    shape, setup = memory.shape_of(trainer), memory.setup_of(trainer, slots=5)
    assert shape is not None
    assert setup.compute_bytes == 2
    assert estimate_memory(shape, setup).rollout_copy == 2 * shape.parameters


@pytest.mark.slow
def test_the_number_reaches_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainers.commands.train import rollouts as playing

    taken: list[int] = []
    real = playing.build_slot_engine

    def noted(*arguments: Any, slots: int, **options: Any) -> Any:
        taken.append(slots)
        return real(*arguments, slots=slots, **options)

    monkeypatch.setattr(playing, "build_slot_engine", noted)
    tokenizer = build_tokenizer()
    run = build_trainer(config(tmp_path, max_steps=1, rollout_slots=3), build_model(tokenizer), tokenizer=tokenizer)
    run.train()
    assert set(taken) == {3}
