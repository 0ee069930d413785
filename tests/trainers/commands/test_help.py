"""`train --help`: short, in groups, true, and there before anything heavy is loaded."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields

import pytest
from trl import ModelConfig

from agent_r1_gym.errors import ConfigurationError
from tests.kit.pages import PAGES
from trainers.algorithms.advantages import ESTIMATORS
from trainers.commands.help import (
    CHECKPOINT_OPTIONS,
    OF_TRL,
    SFT_OF_TRL,
    check_required_args,
    help_text,
    sft_help_text,
)
from trainers.commands.sft.command import DemonstrationConfig
from trainers.config.agent import AgentConfig
from trainers.config.options import OPTION_GROUPS, AlgorithmOptions, DemonstrationOptions
from trainers.config.presets import ALGORITHMS

HEAVY = ("torch", "transformers", "trl", "accelerate", "datasets")


def test_help_shows_every_option_of_ours_in_lines_that_fit() -> None:
    lines = help_text().splitlines()
    assert max(map(len, lines)) < 120
    shown = [line.split()[0][2:].replace("-", "_") for line in lines if line.startswith("  --")]
    assert len(shown) == len(set(shown)) and "help" not in shown
    assert {entry.name for group in OPTION_GROUPS for entry in fields(group)} < set(shown)
    assert {"dataset", "option", "learning_rate", "max_steps", "lora_r", "output_dir", "seed", "bf16"} < set(shown)
    assert not [line for line in lines if line.startswith("  --") and "_" in line.split()[0]]  # dashes, as everywhere
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert len(titles) == len(OPTION_GROUPS) + 1


def test_what_help_says_of_options_of_trl_is_true() -> None:
    defaults = {entry.name: entry.default for config in (AgentConfig, ModelConfig) for entry in fields(config)}
    reported = {name: entry[0] for table in (*OF_TRL.values(), CHECKPOINT_OPTIONS) for name, entry in table.items()}
    assert reported == {name: defaults[name] for name in reported}


def test_help_and_page_name_every_algorithm() -> None:
    (text,) = (entry.metadata["help"] for entry in fields(AlgorithmOptions) if entry.name == "algorithm")
    ours = "trainers.algorithms.advantages"
    names = [name for name, preset in ALGORITHMS.items() if ESTIMATORS[preset.estimator].__module__ == ours]
    assert text.startswith(f"Algorithm: {', '.join(names)}, or MODULE:NAME")
    assert re.findall(r"^\| `([^`]+)` \|", PAGES["docs/algorithms.md"], re.M) == names


def test_help_of_sft_is_as_short_and_as_true() -> None:
    lines = sft_help_text().splitlines()
    assert max(map(len, lines)) < 120 and len(lines) < 90
    shown = [line.split()[0][2:].replace("-", "_") for line in lines if line.startswith("  --")]
    assert len(shown) == len(set(shown)) and "help" not in shown
    assert {entry.name for entry in fields(DemonstrationOptions)} - {"source"} < set(shown) and "from" in shown
    defaults = {entry.name: entry.default for entry in fields(DemonstrationConfig)}
    reported = {name: entry[0] for name, entry in {**SFT_OF_TRL, **CHECKPOINT_OPTIONS}.items()}
    assert reported == {name: defaults[name] for name in reported}
    code = f"""
import sys
from trainers.commands.sft import run
print(run(["--help"]), [name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--help"], 0, "Algorithm and credit:"),
        ([], 2, "Name an environment (ENV, such as HotpotQA) and a model ("),
        (["HotpotQA"], 2, "Name a model (--model, such as Qwen/Qwen2.5-3B-Instruct): agent-r1 train ENV"),
        (["--model=x", "--max_steps", "3"], 2, "Name an environment (ENV, such as HotpotQA): agent-r1 train ENV"),
    ],
)
def test_help_and_a_bare_command_load_nothing_heavy(words: list[str], status: int, said: str) -> None:
    code = f"""
import sys
from trainers.commands.train import run
print(run({words!r}), [name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert said in done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"{status} []"


@pytest.mark.parametrize(
    "words",
    [
        ["HotpotQA", "--model", "x"],
        ["--env=HotpotQA", "--warm_start=x"],
        ["--env-id", "HotpotQA", "--model-name-or-path", "x"],
        ["--config", "run.yaml"],
        ["--help-all"],
    ],
)
def test_a_command_that_may_be_complete_goes_on(words: list[str]) -> None:
    check_required_args(words)


def test_a_model_alone_is_not_enough() -> None:
    with pytest.raises(ConfigurationError, match="Name an environment"):
        check_required_args(["--model", "x"])
