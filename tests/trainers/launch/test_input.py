"""What `agent-r1 launch` refuses, and what it writes where."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from agent_r1_gym.cli.train import TRAINER_COMMANDS
from trainers.launch.command import run
from trainers.launch.plan import SHARDINGS

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

ROOT = Path(__file__).parents[3]
WORDS = ["HotpotQA", "--model", "M", "--output_dir", "out", "--num_generations", "5"]
SLURM = ["--on", "slurm", "--nodes", "2", "--gpus", "8"]


def refused(capsys: pytest.CaptureFixture[str], options: list[str], words: list[str]) -> str:
    """Returns the one line that a refusal is."""
    capsys.readouterr()
    assert run([*options, "--", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("options", "words", "says"),
    [
        (["--nodes", "0"], [], ["--nodes must be at least 1, got 0"]),
        (["--vllm-nodes", "-1"], [], ["--vllm-nodes must be at least 0"]),
        (["--vllm-nodes", "1"], [], ["--vllm-nodes 1 with engine=cached", "--engine vllm"]),
        (["--vllm-nodes", "1", "--vllm-tensor-parallel", "3"], ["--engine", "vllm"], ["3 does not divide --gpus 8"]),
        (["--vllm-tensor-parallel", "2"], [], ["add --vllm-nodes"]),
        (["--time", "soon"], [], ["--time must be as Slurm takes it"]),
        (["--partition", "a b"], [], ["--partition must be one word"]),
        (["--port", "0"], [], ["--port must be at least 1"]),
        (["--output", "a\nb"], [], ["--output must be a path without line breaks"]),
        (["--setup", "a\rb"], [], ["'a\\rb' holds '\\r', which a script cannot hold"]),
        ([], ["--run_name", "a\u2028b"], ["holds '\\u2028'"]),  # where a line of YAML ends
        ([], ["--run_name", "a\x1bb"], ["holds '\\x1b'"]),
        ([], ["--run_name", "a\udcffb"], ["holds '\\udcff'"]),
        ([], ["--lerning_rate", "1"], ["'--lerning_rate' is no option", "learning_rate"]),
        ([], ["--resume_from_checkpoint", "True"], ["resume_from_checkpoint", "the script sets it itself"]),
        (
            ["--vllm-nodes", "1"],
            ["--engine", "vllm", "--vllm_mode", "server", "--vllm_server_base_url", "http://a"],
            ["vllm_server_base_url='http://a'", "the script sets it itself"],
        ),
        (
            ["--vllm-nodes", "1"],
            ["--engine", "vllm", "--vllm_gpu_memory_utilization", "0.5"],
            ["vllm_gpu_memory_utilization is of vllm_mode=colocate"],
        ),
        ([], ["--output_dir", "trainer_output"], ["Name --output_dir"]),
        (
            [],
            ["--per_device_train_batch_size", "3"],
            ["per_device_train_batch_size=3", "num_generations=5", "--nodes 2 x --gpus 8 = 16 processes"],
        ),
        (
            [],
            ["--generation_batch_size", "85"],
            ["(85)", "(80)", "generation_batch_size", "16 processes"],
        ),
        (
            [],
            ["--refill_groups", "1", "--per_device_train_batch_size", "10", "--num_generations", "4"],
            ["refill_groups=1", "a process plays 10 rollouts", "16 processes"],
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    options: list[str], words: list[str], says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, [*SLURM, *options, "--print"], [*WORDS, *words])
    for part in says:
        assert part in message


def test_a_batch_that_fits_one_size_of_the_job_may_not_fit_another(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*WORDS, "--per_device_train_batch_size", "1"]
    assert run(["--on", "slurm", "--nodes", "5", "--gpus", "2", "--print", "--", *words]) == 0
    assert "10 processes x 1 (per_device_train_batch_size) x 1 passes = 10 rollouts, which is 2 groups" in " ".join(
        capsys.readouterr().out.replace("\n# ", " ").split()
    )
    refused(capsys, ["--on", "slurm", "--nodes", "3", "--gpus", "2", "--print"], words)


def test_missing_words_a_folder_that_is_not_shared_and_an_adapter_to_serve(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(SLURM) == 2
    assert "The words of the trainer are missing" in capsys.readouterr().err
    assert "a model (--model)" in refused(capsys, SLURM, ["HotpotQA"])
    message = refused(capsys, ["--on", "skypilot", "--nodes", "1"], WORDS)
    assert "name /shared/out" in message
    (tmp_path / "adapter_config.json").write_text("{}")
    words = ["HotpotQA", "--warm_start", str(tmp_path), "--output_dir", "out", "--engine", "vllm"]
    message = refused(capsys, [*SLURM, "--vllm-nodes", "1"], words)
    assert f"agent-r1 export {tmp_path} --merge" in message


def test_a_file_is_not_replaced_unless_that_is_wanted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    words = [*SLURM, "--output", str(file)]
    assert run([*words, "--", *WORDS]) == 0
    assert f"sbatch {file}" in capsys.readouterr().out
    before = file.read_text(encoding="utf-8")
    assert "--force" in refused(capsys, [*words, "--name", "other"], WORDS)
    assert file.read_text(encoding="utf-8") == before
    assert run([*words, "--name", "other", "--force", "--", *WORDS]) == 0
    assert "--job-name=other" in file.read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["job.sbatch"]


def test_printing_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*SLURM, "--print", "--", *WORDS, "--bf16", "True"]) == 0  # whose GPUs these are, nobody knows here
    assert capsys.readouterr().out.startswith("#!/bin/bash\n#SBATCH ")
    assert list(tmp_path.iterdir()) == []


def test_each_sharding_has_its_file_and_templates_are_in_the_wheel() -> None:
    folder = ROOT / "trainers" / "launch"
    assert {path.stem for path in folder.glob("*.yaml")} == set(SHARDINGS)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["trainers"]
    packed = {path for pattern in patterns for path in (ROOT / "trainers").glob(pattern)}
    assert {path for path in folder.iterdir() if path.suffix in (".sh", ".txt", ".yaml")} <= packed
    assert set(project["project"]["entry-points"]["agent_r1_gym.commands"]) == set(TRAINER_COMMANDS)
