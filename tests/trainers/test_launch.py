"""The files in examples/launch: Accelerate reads the configurations, and the scripts start what the trainer accepts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.commands.launch import launch_command_parser
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.kit.commands import training_words
from trainers.commands.command_line import read_config
from trainers.config.agent import AgentConfig

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "examples" / "launch"
TYPES = {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}

STUBS = {
    "scontrol": "printf '%s\\n' node0 node1 node2",
    "srun": 'printf "%s\\n" "$*" >>"$NOTES/steps"; while [[ $1 == --* ]]; do shift; done; SLURM_PROCID=1 exec "$@"',
    "curl": "exit 0",
    "vllm": 'printf "%s\\n" "$*" >>"$NOTES/served"',
    "accelerate": 'printf "%s\\0" "$@" >"$NOTES/launched"; exit 3',
}
"""Commands of a cluster, which note their arguments; the trainer fails, so that its status can be followed."""


def test_accelerate_reads_each_configuration() -> None:
    for name, kind in TYPES.items():
        config = load_config_from_file(str(LAUNCH / f"{name}.yaml"))
        assert (config.mixed_precision, config.num_machines, config.use_cpu) == ("bf16", 1, False)
        assert config.distributed_type.value == kind
        assert config.fsdp_config.get("fsdp_version") == (2 if name == "fsdp2" else None)
        assert config.deepspeed_config.get("zero_stage") == {"zero2": 2, "zero3": 3}.get(name)


class JobConfig(AgentConfig):
    """The trainer's configuration on 16 processes, whatever this machine has."""

    world_size = 16

    def __post_init__(self) -> None:
        self.bf16, self.use_cpu = False, True
        super().__post_init__()


@pytest.mark.parametrize("name", ["slurm.sbatch", "skypilot.yaml", "torchrun.sh"])
def test_a_script_starts_what_launcher_and_trainer_accept(name: str, tmp_path: Path) -> None:
    for command, code in STUBS.items():
        (tmp_path / command).write_text(f"#!/bin/bash\n{code}\n", encoding="utf-8")
        (tmp_path / command).chmod(0o755)
    script = LAUNCH / name
    if name == "skypilot.yaml":
        task = yaml.safe_load(script.read_text(encoding="utf-8"))
        assert task["num_nodes"] == 2 and task["resources"]["accelerators"].endswith(":8")
        script = tmp_path / "run.sh"
        script.write_text(task["run"], encoding="utf-8")
    variables = {"SLURM_JOB_NODELIST": "node[0-2]", "SLURM_JOB_ID": "7", "NOTES": str(tmp_path)}
    variables |= {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "8", "SKYPILOT_NODE_RANK": "1"}
    variables |= {"SKYPILOT_NODE_IPS": "node0\nnode1", "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    words = ["1", "node0", "--seed", "5"] if name == "torchrun.sh" else []
    subprocess.run(["bash", "-n", str(script)], check=True)
    done = subprocess.run(["bash", str(script), *words], env=os.environ | variables, cwd=ROOT, timeout=30)
    assert done.returncode == 3

    launched = (tmp_path / "launched").read_text(encoding="utf-8").split("\0")[:-1]
    options = launch_command_parser().parse_args(launched[1:])
    assert (launched[0], options.module, options.training_script) == ("launch", True, "trainers.commands.train")
    assert (ROOT / options.config_file).is_file()
    assert (options.num_machines, options.num_processes, options.machine_rank) == (2, 16, 1)
    assert (options.main_process_ip, options.rdzv_backend) == ("node0", "c10d")
    args, model = read_config(options.training_script_args, JobConfig, prog="train")
    assert args.resume_from_checkpoint == "True"
    assert args.generation_batch_size == 80
    if name == "torchrun.sh":
        assert args.seed == 5
        assert {"join_timeout=600", "read_timeout=600", "is_host=0"} == set(options.rdzv_conf.split(","))
    if name == "slurm.sbatch":
        steps = (tmp_path / "steps").read_text(encoding="utf-8")
        assert re.search(r"--nodelist=node0,node1 .*--kill-on-bad-exit=1 ", steps)
        assert (args.engine, args.vllm_mode) == ("vllm", "server")
        assert str(args.vllm_server_base_url).split(",") == [f"http://node2:{8000 + gpu}" for gpu in range(8)]
        served = (tmp_path / "served").read_text(encoding="utf-8").splitlines()
        assert sorted(re.findall(r"--port (\d+)", "\n".join(served))) == [str(8000 + gpu) for gpu in range(8)]
        limit = args.max_prompt_length + args.max_completion_length
        for line in served:
            assert line.startswith(f"serve {model.model_name_or_path} ")
            assert f"--max-model-len {limit} " in line and f"--max-lora-rank {model.lora_r} " in line


@pytest.mark.slow
@pytest.mark.parametrize("form", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_two_processes_train_and_resume_with_sharded_weights(form: str, model_folder: Path, tmp_path: Path) -> None:
    """Policy, reference, critic and rollouts under FSDP2; resumed between two steps on one generation batch.

    A supervised run writes its model too.
    """
    config = (LAUNCH / "fsdp2.yaml").read_text(encoding="utf-8")
    (tmp_path / "fsdp2.yaml").write_text(config.replace("FULL_STATE_DICT", form), encoding="utf-8")
    launch = ["--config_file", str(tmp_path / "fsdp2.yaml"), "--num_processes", "2"]
    launch += ["--mixed_precision", "no", "--main_process_port", "0", str(ROOT / "tests" / "kit" / "process_groups.py")]
    words = training_words(
        **{"algorithm": "ppo", "max_steps": 3, "model_name_or_path": model_folder, "num_iterations": 2},
        **{"learning_rate": 1e-3, "save_steps": 1},
        entropy_coef=0.1,  # all rewards are 0, and so is the KL of a policy that has not moved
    )
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    again = ["--output_dir", str(resumed), "--resume_from_checkpoint", str(whole / "checkpoint-1")]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ACCELERATE_TORCH_DEVICE": "cpu"}
    command = [sys.executable, "-m", "accelerate.commands.launch", *launch, *words, "--output_dir", str(whole)]
    taught = tmp_path / "taught"
    world = ["--option", "style=compact", "--option", "questions=8", "--model", str(model_folder)]
    small = ["--max_steps", "1", "--per_device_train_batch_size", "1", "--disable_tqdm", "True", "--bf16", "False"]
    sft = ["sft", "FictionQA", *world, *small, "--gradient_checkpointing", "False", "--output_dir", str(taught)]
    subprocess.run([*command, "--then", *words, *again, "--then", *sft], env=environment, check=True, timeout=240)
    folders = (model_folder, whole, resumed, taught)
    before, after, same, learned = (load_file(folder / "model.safetensors") for folder in folders)
    for ended in (after, learned):
        assert all(ended[name].shape == weight.shape for name, weight in before.items())
    assert not torch.equal(after["model.norm.weight"], before["model.norm.weight"])
    assert_close(same, after, rtol=0, atol=0)
    ends = [torch.load(folder / "checkpoint-3" / "critic.pt") for folder in (resumed, whole)]
    assert_close(*ends, rtol=0, atol=0)
