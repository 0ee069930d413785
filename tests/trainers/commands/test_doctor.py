"""`agent-r1 doctor --model`: what a model can do here, or each fault of its folder."""

from __future__ import annotations

import functools
import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from agent_r1_gym.cli.main import main
from tests.kit.models import make_model, make_tokenizer
from trainers.commands import doctor
from trainers.commands.command_line import read_options
from trainers.commands.doctor import Speed, examine_model, measure_speed
from trainers.config import hardware
from trainers.monitoring.memory import QWEN25, Setup, estimate_memory


@pytest.fixture(scope="module")
def report(model_folder: Path) -> dict[str, str]:
    before = doctor._SECONDS
    doctor._SECONDS = 0.05
    yield examine_model(str(model_folder))
    doctor._SECONDS = before


@pytest.mark.slow
def test_what_is_found(report: dict[str, str]) -> None:
    assert report["model"].startswith("Qwen3ForCausalLM, 0 million parameters, 3 layers")
    assert report["training"] == "possible"
    assert report["chat template"].startswith("exact")
    assert "parser=" in report["tool format"]
    assert report["turn ends at"].startswith("'<")
    assert report["context length"].endswith(" tokens")
    assert report["precision"].startswith(("bfloat16", "float32"))
    assert "tokens/s sampled" in report["speed"] and "tokens/s of prompts read" in report["speed"]
    assert report["memory"].startswith("rollouts ") and "GiB" in report["memory"]


def test_the_suggested_command_is_one(report: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(report["suggested"])
    assert words[:3] == ["agent-r1", "train", "ENV"]
    args, model_args = read_options(["AgentR1/FictionQA-v0", *words[3:]])
    assert model_args.model_name_or_path
    assert args.max_turn_tokens * 2 <= args.max_completion_length


@pytest.mark.slow
def test_an_adapter_is_trained_on_from_a_warm_start(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_SECONDS", 0.05)
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    adapter = str(tmp_path / "adapter")
    get_peft_model(base, LoraConfig(r=4, target_modules="all-linear")).save_pretrained(adapter)
    report = examine_model(adapter)
    assert report["training"].startswith(f"possible: --warm-start merges the adapter into {model_folder}")
    assert "an adapter of rank 4" in report["memory"]
    words = shlex.split(report["suggested"])
    args, model_args = read_options(["AgentR1/FictionQA-v0", *words[3:]])
    assert (args.warm_start, model_args.model_name_or_path) == (adapter, None)
    assert (model_args.use_peft, model_args.lora_r) == (True, 4)


def test_a_gpu_that_only_emulates_bf16_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for has, dtype in ((False, "float32"), (True, "bfloat16")):
        supported = functools.partial(lambda has, *, including_emulation=True: has or including_emulation, has)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
        assert hardware.gpu_has_bf16() is has
        assert doctor._precision()[0] == dtype


def test_speed_counts_tokens() -> None:
    speed = measure_speed(make_model(make_tokenizer(), layers=1), seconds=0.05, episodes=2)
    assert speed.reading > 0 and speed.decoding > 0


@pytest.mark.parametrize("free", [1, 2, 4, 8, 16, 1000])
def test_suggestions_fit_the_memory(free: int) -> None:
    start = Setup(weight_bytes=4, slots=64, length=1024, micro_batch=16, reference=False, checkpointing=False)
    setup = doctor._fitting(QWEN25["0.5B"], start, free * 2**30)
    fits = estimate_memory(QWEN25["0.5B"], setup).peak <= 0.8 * free * 2**30
    smallest = setup.checkpointing and setup.lora_rank is not None and setup.slots == 16
    assert fits or smallest
    assert (setup.lora_rank is None) == (free > 16)


def test_slow_machines_get_small_steps() -> None:
    start = Setup(slots=64, length=1024, micro_batch=16)
    fast, seconds = doctor._fast_enough(start, Speed(reading=1e6, decoding=1e4), prompt=512)
    assert fast == start and seconds < 10
    slow, _ = doctor._fast_enough(start, Speed(reading=100, decoding=10), prompt=512)
    assert (slow.slots, slow.micro_batch, slow.length) == (16, 16, 640)


@pytest.mark.slow
def test_code_in_a_folder_is_not_run(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A card is not read, and a model's own code is refused."""
    monkeypatch.setattr(doctor, "_SECONDS", 0.05)
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    code = f"import pathlib\npathlib.Path({str(tmp_path / 'MARK')!r}).write_text('run')\n"
    (folder / "visitor.py").write_text(code)
    (folder / "agent.json").write_text(json.dumps({"environments": [{"env_id": "visitor:Env-v0"}]}))
    monkeypatch.chdir(folder)
    assert main(["doctor", "--model", "."]) == 0
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "visitor", "auto_map": {"AutoConfig": "visitor.Config"}}
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["doctor", "--model", "."]) == 2
    assert capsys.readouterr().err.startswith("agent-r1: ")
    assert not (tmp_path / "MARK").exists()


def test_each_fault_is_named(model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    os.truncate(folder / "model.safetensors", 1000)
    (folder / "tokenizer.json").unlink()
    assert main(["doctor", "--model", str(folder), "--json"]) == 1
    faults = json.loads(capsys.readouterr().out)
    assert sorted(faults) == ["tokenizer", "weights"]
    assert "holds no tokenizer" in faults["tokenizer"]
