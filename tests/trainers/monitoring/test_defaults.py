"""Defaults that depend on model and machine: learning rate, precision, gradient checkpointing, budgets."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoTokenizer

from tests.kit.pages import ROOT
from tests.kit.samples import samples
from trainers.commands.sft.command import DemonstrationConfig
from trainers.config import hardware
from trainers.config.agent import AgentConfig
from trainers.monitoring import defaults, memory
from trainers.monitoring.defaults import RATES, ModelFacts, settle_defaults
from trainers.monitoring.memory import QWEN25
from trainers.supervised import SupervisedTrainer


def test_an_adapter_takes_larger_rates_and_so_does_a_small_model() -> None:
    for rates in RATES.values():
        for small in (True, False):
            parameters = 10**8 if small else 7 * 10**9
            assert rates.of(adapter=True, parameters=parameters) >= 10 * rates.of(adapter=False, parameters=parameters)
        for adapter in (True, False):
            assert rates.of(adapter=adapter, parameters=10**8) > rates.of(adapter=adapter, parameters=7 * 10**9)
            assert rates.of(adapter=adapter, parameters=None) == rates.of(adapter=adapter, parameters=7 * 10**9)


def config(folder: Path, **options: Any) -> AgentConfig:
    return AgentConfig(output_dir=str(folder), report_to="none", use_cpu=True, **options)


def facts(parameters: int | None, positions: int | None = None) -> Any:
    return lambda *_arguments: ModelFacts(parameters, positions, None)


class TestSettling:
    def test_rate_by_adapter_size_and_command(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for parameters, peft, command, rate, reason in (
            (135_000_000, None, "train", 2e-5, "the default for all weights of a model below 1B"),
            (135_000_000, LoraConfig(), "train", 2e-4, "the default for an adapter of a model below 1B"),
            (7 * 10**9, None, "train", 1e-6, "the default for all weights of a model from 1B"),
            (7 * 10**9, LoraConfig(), "sft", 2e-4, "the default for an adapter of a model from 1B"),
        ):
            monkeypatch.setattr(defaults.ModelFacts, "of", facts(parameters))
            args = config(tmp_path)
            settle_defaults(args, "model", command=command, peft_config=peft)
            assert (args.learning_rate, args.learning_rate_reason) == (rate, reason)

    def test_what_the_user_sets_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(defaults.ModelFacts, "of", facts(135_000_000, 512))
        monkeypatch.setattr(defaults, "cpu_prefers_bf16", lambda: True)
        options = {"learning_rate": 3e-6, "bf16": False, "gradient_checkpointing": True, "max_completion_length": 700}
        args = config(tmp_path, **options)
        settle_defaults(args, "model", command="train", peft_config=LoraConfig())
        assert {name: getattr(args, name) for name in options} == options
        assert args.learning_rate_reason == "set by --learning-rate"

    def test_settling_again_changes_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(defaults.ModelFacts, "of", facts(135_000_000))
        args = config(tmp_path)
        settle_defaults(args, "model", command="train", peft_config=LoraConfig())
        settle_defaults(args, "model", command="train")
        assert args.learning_rate == 2e-4

    def test_a_cpu_with_bf16_uses_it_for_all_but_tiny_models(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for has, parameters, wanted in ((True, 135_000_000, True), (True, 400_000, False), (False, 135_000_000, False)):
            monkeypatch.setattr(defaults, "cpu_prefers_bf16", lambda has=has: has)
            monkeypatch.setattr(defaults.ModelFacts, "of", facts(parameters))
            args = config(tmp_path)
            settle_defaults(args, "model", command="train")
            assert (args.bf16, args.mixed_precision) == ((True, "bf16") if wanted else (False, "no"))

    def test_budgets_fit_the_device_and_the_positions(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        args = config(tmp_path)
        assert args.max_completion_length == 2048
        monkeypatch.setattr(defaults.ModelFacts, "of", facts(135_000_000, 512))
        settle_defaults(args, "model", command="train")
        assert args.max_completion_length == 512

    def test_activations_are_recomputed_only_where_they_do_not_fit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = ModelFacts(QWEN25["0.5B"].parameters, 8192, QWEN25["0.5B"])
        monkeypatch.setattr(defaults.ModelFacts, "of", lambda *_arguments: known)
        for free, wanted in ((2**42, False), (2**30, True), (None, True)):
            monkeypatch.setattr(defaults, "free_memory", lambda _device, free=free: free)
            args = config(tmp_path)
            settle_defaults(args, "model", command="train")
            assert args.gradient_checkpointing is wanted
        monkeypatch.setattr(defaults.ModelFacts, "of", facts(10**8))  # an architecture that the estimate does not know
        monkeypatch.setattr(defaults, "free_memory", lambda _device: 2**42)
        args = config(tmp_path)
        settle_defaults(args, "model", command="train")
        assert args.gradient_checkpointing is True

    def test_the_longest_context_counts_where_it_is_known(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = ModelFacts(QWEN25["0.5B"].parameters, 8192, QWEN25["0.5B"])
        monkeypatch.setattr(defaults.ModelFacts, "of", lambda *_arguments: known)
        monkeypatch.setattr(defaults, "free_memory", lambda _device: 2**35)
        for length, recomputed in ((600, False), (8192, True), (None, True)):
            args = config(tmp_path, max_prompt_length=6144, max_completion_length=2048)
            settle_defaults(args, "model", command="train", length=length)
            assert args.gradient_checkpointing is recomputed, length

    def test_a_teacher_and_a_colocated_vllm_take_their_part(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        known = ModelFacts(QWEN25["0.5B"].parameters, 8192, QWEN25["0.5B"])
        monkeypatch.setattr(defaults.ModelFacts, "of", lambda *_arguments: known)
        teacher = {"teacher_model_name_or_path": "teacher", "distillation_weight": 1.0}
        alone, taught = (
            defaults.estimate_update(config(tmp_path, **options), "model", adapter=None, length=600)
            for options in ({}, teacher)
        )
        assert alone is not None and taught == alone + 4 * QWEN25["0.5B"].parameters
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (70, 80))
        vllm = {"engine": "vllm", "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.25}
        for sleeps, held in ((False, 20), (True, 0)):
            args = SimpleNamespace(device=torch.device("cuda"), vllm_enable_sleep_mode=sleeps, **vllm)
            assert defaults.vllm_bytes(args) == held


@pytest.mark.slow
@pytest.mark.parametrize("free", [2**42, 0], ids=["stored", "recomputed"])
def test_an_update_recomputes_what_was_settled(
    free: int, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "free_memory", lambda _device: free)
    args = DemonstrationConfig(output_dir=str(tmp_path), report_to="none", use_cpu=True, max_steps=1)
    settle_defaults(args, str(model_folder), command="sft", length=4)
    row = {"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8]}
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    trainer = SupervisedTrainer(str(model_folder), tokenizer, Dataset.from_list([row]), args)
    trainer.train()
    model: Any = trainer.model
    assert any(getattr(module, "gradient_checkpointing", False) for module in model.modules()) is (not free)


def test_transformers_newer_name_of_the_option_counts_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "activation_checkpointing" not in {field.name for field in fields(AgentConfig)}:
        pytest.skip("this transformers has the old name alone")
    monkeypatch.setattr(defaults.ModelFacts, "of", facts(None))
    args = config(tmp_path, activation_checkpointing=False)
    settle_defaults(args, "model", command="train")
    assert args.gradient_checkpointing is args.activation_checkpointing is False


def test_facts_of_a_folder_and_of_the_loaded_model_agree(model_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    named, loaded = ModelFacts.of(str(model_folder)), ModelFacts.of(AutoModelForCausalLM.from_pretrained(model_folder))
    assert named == loaded
    assert named.parameters and named.positions
    assert ModelFacts.of(str(model_folder / "nothing")) == (None, None, None)


def test_bf16_of_a_cpu_is_read_from_its_flags(tmp_path: Path) -> None:
    for text, wanted in (
        ("flags\t\t: fpu avx512f avx512_bf16\n", True),
        ("flags\t\t: fpu amx_bf16\nflags\t\t: fpu\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx512f avx512vbmi\n", False),
        ("", False),
    ):
        path = tmp_path / f"cpuinfo-{len(list(tmp_path.iterdir()))}"
        path.write_text(text)
        assert hardware.cpu_has_bf16(path) is wanted
    assert hardware.cpu_has_bf16(tmp_path / "missing") is False


def test_the_fastest_product_of_each_type_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, delays = [0.0], iter((9.0, 9.0, 0.0, 7.0, 8.0, 0.0, 9.0, 9.0, 9.0, 9.0))

    def multiply(left: torch.Tensor, _right: torch.Tensor) -> None:
        clock[0] += next(delays) + (6.0 if left.dtype is torch.float32 else 2.0)

    monkeypatch.setattr(torch, "mm", multiply)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert hardware.bf16_speedup() == 3.0


def test_a_cpu_uses_bf16_only_where_it_multiplies_faster_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, speedup, wanted in ((True, 3.0, True), (True, 1.25, True), (True, 0.7, False), (False, 3.0, False)):
        monkeypatch.setattr(hardware, "cpu_has_bf16", lambda has=has: has)
        monkeypatch.setattr(hardware, "bf16_speedup", lambda speedup=speedup: speedup)
        assert hardware.cpu_prefers_bf16.__wrapped__() is wanted


def test_free_memory_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    (tmp_path / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable: 3000 kB\n")
    monkeypatch.setattr(hardware, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(hardware, "_CGROUP", tmp_path)
    assert hardware.free_memory(cpu) == 3000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1000\n")
    assert hardware.free_memory(cpu) == 3000 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert hardware.free_memory(cpu) == 4000
    assert hardware.free_memory(SimpleNamespace(type="mps")) is None  # type: ignore[arg-type]


FRAGMENTED = """
import sys, torch
from types import SimpleNamespace
from trainers.config import hardware
from trainers.monitoring import memory

memory.free_memory = lambda _device: int(sys.argv[1])
guard, args = memory.HeapGuard(), SimpleNamespace(device=torch.device("cpu"))
torch.empty(2**24, dtype=torch.uint8)  # freed at once: from now on glibc keeps blocks of this size
for _ in range(2):
    blocks, between = [], []
    for _ in range(30):
        blocks.append(torch.ones(2**23, dtype=torch.uint8))
        between.append(torch.ones(500_000, dtype=torch.uint8))  # what stays keeps the heap from shrinking
    del blocks
    status = open("/proc/self/status").read().splitlines()
    print(*(line.split()[1] for line in status if line.startswith(("VmHWM", "VmRSS"))))
    guard.on_step_end(args)
"""


def test_freed_blocks_go_back_to_the_system_once_memory_is_short() -> None:
    """Not before: each block that was given back costs a page fault per 4 KiB when it is needed again."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("another C library than glibc")
    returned = []
    for free in (2**40, 0):
        words = [sys.executable, "-c", FRAGMENTED, str(free)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT, timeout=120)
        peak, left = map(int, done.stdout.splitlines()[1].split())
        returned.append(peak - left)
    assert returned[0] < 50_000 < 200_000 < returned[1]  # of 240 MiB, in KiB


@samples(
    ("free", "estimate", "occupied", "before", "after"),
    [
        (10, None, 10, False, False),
        (4, None, 10, False, True),  # less than half of what the process has occupied
        (10, 8, 0, True, True),  # 1.4 times the estimate do not fit
        (12, 8, 10, False, False),
        (None, 8, 10, False, False),
    ],
)
def test_memory_is_short_by_the_estimate_or_by_what_is_occupied(
    free: int | None, estimate: int | None, occupied: int, before: bool, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda _device: free)
    monkeypatch.setattr(memory, "max_resident_bytes", lambda: occupied)
    monkeypatch.setattr(memory, "return_large_blocks", lambda: None)
    guard = memory.HeapGuard(lambda: estimate)
    args: Any = SimpleNamespace(device=torch.device("cpu"))
    guard.on_train_begin(args)
    assert guard.returns_blocks is before
    guard.on_step_end(args)
    assert guard.returns_blocks is after


def test_a_gpu_needs_no_guard_of_the_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda _device: 0)
    guard = memory.HeapGuard(lambda: 8)
    guard.on_train_begin(SimpleNamespace(device=torch.device("cuda")))
    assert not guard.returns_blocks


def test_what_a_process_has_occupied_is_in_bytes() -> None:
    assert 50 * 2**20 < hardware.max_resident_bytes() < 2**40
