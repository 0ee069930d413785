"""The Accelerate files: each is read by the installed accelerate and says what its name says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.kit.scripts import training_words

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "trainers" / "launch").glob("*.yaml"))


def test_there_is_one_for_each_way_to_scale() -> None:
    assert [path.stem for path in FILES] == ["ddp", "fsdp2", "zero2", "zero3"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_accelerate_reads_it(path: Path) -> None:
    config = load_config_from_file(str(path))
    assert (config.mixed_precision, config.num_machines, config.use_cpu) == ("bf16", 1, False)
    expected = {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}
    assert config.distributed_type.value == expected[path.stem]
    assert config.fsdp_config.get("fsdp_version") == (2 if path.stem == "fsdp2" else None)
    assert config.deepspeed_config.get("zero_stage") == {"zero2": 2, "zero3": 3}.get(path.stem)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_two_processes_train_and_resume_with_sharded_weights(form: str, model_folder: Path, tmp_path: Path) -> None:
    """Policy, reference, critic and rollouts under FSDP2; resumed between two steps on one generation batch."""
    config = (ROOT / "trainers" / "launch" / "fsdp2.yaml").read_text(encoding="utf-8")
    (tmp_path / "fsdp2.yaml").write_text(config.replace("FULL_STATE_DICT", form), encoding="utf-8")
    launch = ["--config_file", str(tmp_path / "fsdp2.yaml"), "--num_processes", "2"]
    launch += ["--mixed_precision", "no", "--main_process_port", "0", str(ROOT / "tests" / "kit" / "cpu_launch.py")]
    words = training_words(
        **{"algorithm": "ppo", "max_steps": 3, "model_name_or_path": model_folder, "num_iterations": 2},
        **{"learning_rate": 1e-3, "save_steps": 1},
        entropy_coef=0.1,  # all rewards are 0, and so is the KL of a policy that has not moved
    )
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    again = ["--output_dir", str(resumed), "--resume_from_checkpoint", str(whole / "checkpoint-1")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ACCELERATE_TORCH_DEVICE": "cpu"}
    command = [sys.executable, "-m", "accelerate.commands.launch", *launch, *words, "--output_dir", str(whole)]
    subprocess.run([*command, "--then", *words, *again], env=environment, check=True, timeout=240)
    before, after, same = (load_file(folder / "model.safetensors") for folder in (model_folder, whole, resumed))
    assert all(after[name].shape == weight.shape for name, weight in before.items())
    assert not torch.equal(after["model.norm.weight"], before["model.norm.weight"])
    assert_close(same, after, rtol=0, atol=0)
    ends = [torch.load(folder / "checkpoint-3" / "critic.pt") for folder in (resumed, whole)]
    assert_close(*ends, rtol=0, atol=0)
