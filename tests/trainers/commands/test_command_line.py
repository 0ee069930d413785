"""Options: the command line and a YAML file say the same, and both are refused in the same words."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_r1_gym.errors import ConfigurationError
from tests.kit.samples import samples
from trainers.commands.command_line import read_options

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "hotpotqa_grpo.yaml"
CPU = ["--use_cpu", "True", "--bf16", "False"]

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def as_words(options: dict[str, Any]) -> list[str]:
    """A command line of the options of a YAML file."""
    words = []
    for name, value in options.items():
        values = value if isinstance(value, list) else [yaml.safe_dump(value).strip() if value is dict else value]
        words += [f"--{name}", *(str(each).replace("'", '"') for each in values)]
    return words


def written(folder: Path, text: str) -> list[str]:
    path = folder / "run.yaml"
    path.write_text(text)
    return ["--config", str(path), "--output_dir", str(folder), *CPU]


def test_the_example_equals_its_command_line() -> None:
    from_file = read_options(["--config", str(EXAMPLE), *CPU])
    from_words = read_options([*as_words(yaml.safe_load(EXAMPLE.read_text())), *CPU])
    assert [asdict(each) for each in from_file] == [asdict(each) for each in from_words]
    args, model_args = from_file
    assert args.env_kwargs == {"reward": "agent_r1", "max_turns": 5}
    assert (args.learning_rate, args.generation_batch_size, args.beta) == (1e-5, 80, 0.001)
    assert (model_args.lora_target_modules, model_args.dtype, args.report_to) == ("all-linear", "bfloat16", [])


@samples(
    ("text", "words", "adapter"),
    [
        ("{}\n", [], False),
        ("{}\n", ["--lora_r", "8"], True),
        ("lora_alpha: 8\n", [], True),
        ("{}\n", ["--lora_r=8", "--use_peft", "False"], False),
        ("use_peft: false\n", ["--lora_r", "8"], False),
        ("use_peft: true\n", [], True),
        ("{}\n", ["--use-dora", "True"], True),
        ("use_rslora: true\n", [], True),
        ("{}\n", ["--use-dora", "False"], False),
        ("use_dora: true\n", ["--use_peft", "False"], False),
    ],
)
def test_an_option_of_lora_means_an_adapter(text: str, words: list[str], adapter: bool, tmp_path: Path) -> None:
    _, model_args = read_options([*written(tmp_path, text), *CPU, *words])
    assert model_args.use_peft is adapter


def test_dashes_underscores_and_the_short_name_of_the_output_mean_the_same(tmp_path: Path) -> None:
    names = (("--output_dir", "--learning_rate"), ("--output-dir", "--learning-rate"), ("--out", "--learning_rate"))
    for out, rate in names:
        for words in ([out, str(tmp_path), rate, "0.5"], [f"{out}={tmp_path}", f"{rate}=0.5"]):
            args, _ = read_options([*words, "--env", "FictionQA", *CPU])
            assert (args.output_dir, args.learning_rate) == (str(tmp_path), 0.5)


def test_the_model_has_a_short_name(tmp_path: Path) -> None:
    short, long = (
        read_options(["--output_dir", str(tmp_path), *CPU, name, "Qwen/Qwen2.5-3B-Instruct"])[1]
        for name in ("--model", "--model_name_or_path")
    )
    assert short.model_name_or_path == long.model_name_or_path == "Qwen/Qwen2.5-3B-Instruct"


@samples(
    "words",
    [
        ["HotpotQA", "--dataset", "file.json", "--max-turns", "3", "--option", "top_k=2"],
        ["--max_turns=3", "--dataset=file.json", "--env", "HotpotQA", "--option", "top_k=2"],
        ["--env_id", "HotpotQA", "--env-kwargs", '{"dataset": "file.json", "max_turns": 3, "top_k": 2}'],
        ["HotpotQA", "--env_kwargs", '{"dataset": "other", "top_k": 2}', "--dataset", "file.json", "--max-turns", "3"],
    ],
)
def test_the_environment_has_the_options_of_every_command(words: list[str], tmp_path: Path) -> None:
    args, _ = read_options([*words, "--output_dir", str(tmp_path), *CPU])
    assert args.env_id == "HotpotQA"
    assert args.env_kwargs == {"dataset": "file.json", "max_turns": 3, "top_k": 2}


def test_nothing_is_reported_by_default(tmp_path: Path) -> None:
    args, _ = read_options(["--output_dir", str(tmp_path), *CPU])
    assert args.report_to == []
    assert not args.push_to_hub


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    args, _ = read_options([*written(tmp_path, "gamma: 0.5\nmax_steps: 3\n"), "--gamma", "0.25"])
    assert (args.gamma, args.max_steps) == (0.25, 3)


def test_a_warm_start_on_the_command_line_takes_the_place_of_a_files_model(tmp_path: Path) -> None:
    words = [*written(tmp_path, "model_name_or_path: base\n"), "--warm-start", "cold"]
    args, model_args = read_options(words)
    assert (args.warm_start, model_args.model_name_or_path) == ("cold", None)
    _, model_args = read_options([*words, "--model", "other"])  # which is refused where the model is looked for
    assert model_args.model_name_or_path == "other"


def test_null_is_none(tmp_path: Path) -> None:
    args, _ = read_options(written(tmp_path, "critic_clip: null\n"))
    assert args.critic_clip is None


@samples(
    ("text", "words"),
    [
        ("learning_rat: 1\n", r"'learning_rat', which is not an option\. Did you mean 'learning_rate'"),
        ("dataset: x\n", "'dataset', an option of the environment: put it under env_kwargs"),
        ("zzz: 1\n", r"'zzz', which is not an option\. See --help"),
        ("max_steps: 1.5\n", r"max_steps: 1\.5; expected a value of type int"),
        ("gamma: high\n", r"gamma: 'high'; expected a value of type float"),
        ("loss_mask: perhaps\n", r"loss_mask: 'perhaps'; expected true or false"),
        ("dtype: float8\n", r"dtype: 'float8'\. .*'float16'"),
        ("env: AgentR1/HotpotQA-v0\n", r"train on is env_id|environment to train on is env_id"),
        ("- a\n", "must hold a mapping"),
        ("a: [1\n", "is not YAML"),
    ],
)
def test_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=words):
        read_options(written(tmp_path, text))


@samples(
    ("words", "message"),
    [
        (["--learning_rat", "1e-3"], r"'--learning_rat' is not an option\. Did you mean '--learning-rate'"),
        (["--resume"], r"'--resume' is not an option\. Did you mean '--resume-from-checkpoint'"),
        (["--max_step=3"], r"'--max_step=3' is not an option\. Did you mean '--max-steps'"),
        (["--gama=0.9"], r"'--gama=0\.9' is not an option\. Did you mean '--gamma'"),
        (["--gamma", "high"], r"--gamma: invalid float value: 'high'"),
        (["--dtype", "float8"], r"--dtype: invalid choice: 'float8'"),
        (["--config", "missing.yaml"], r"missing\.yaml: no such file"),
        (["--config"], "names no file"),
        (["--config=missing.yaml"], r"missing\.yaml: no such file"),
        (["--option", "top_k"], r"An option is written NAME=VALUE, got 'top_k'"),
    ],
)
def test_words_are_refused(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_options(["--output_dir", str(tmp_path), *CPU, *words])
