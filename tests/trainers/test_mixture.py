"""Training on several environments at once: rows, tools, rewards, metrics, credit, resume."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.evaluation.agent_card import AgentCard
from examples.libraries.arms import make_game
from tests.kit.credit_batches import batch, close
from tests.kit.killed_runs import timeless
from tests.kit.samples import samples
from tests.trainers.test_train import config
from trainers.algorithms.advantages import ESTIMATORS, estimate_credit
from trainers.algorithms.credit import CreditOptions
from trainers.algorithms.metrics import group_stds
from trainers.commands.command_line import read_options
from trainers.commands.train.building import build_trainer
from trainers.monitoring.console import start_summary
from trainers.monitoring.provenance import training_provenance
from trainers.toy.model import build_model, build_tokenizer

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.usefixtures("one_thread"),
]

TOKENIZER = build_tokenizer()
HOPS = 'FictionQA style=compact questions=8 weight=2 system_prompt="" mix={"1hop": 1}'
PAID = {"style": "compact", "questions": 4, "reward": "process", "system_prompt": "", "max_turns": 2}
ENVS = [HOPS, {"env_id": "FictionQA", "name": "paid", "env_kwargs": PAID}, "Test/Arms-v0"]
EVALUATED = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "eval_episodes": 8,
    "per_device_eval_batch_size": 4,
    "envs": [
        f"{HOPS} eval.split=test",
        {"env_id": "FictionQA", "name": "paid", "env_kwargs": PAID, "eval_env_kwargs": {}},
        "Test/Arms-v0",
    ],
}


@pytest.fixture(autouse=True)
def _registered() -> None:
    if "Test/Arms-v0" not in gym.registry:
        gym.register("Test/Arms-v0", lambda **_options: make_game())


def mixture(folder: Path, **changes: Any) -> Any:
    settings = {
        "env_id": None,
        "env_kwargs": None,
        "envs": ENVS,
        "num_train_seeds": 6,
        "per_device_train_batch_size": 8,
    }
    args = config(folder, **{**settings, "num_generations": 2, **changes})
    torch.manual_seed(0)
    return build_trainer(args, build_model(TOKENIZER), tokenizer=TOKENIZER)


def numbers(trainer: Any, prefix: str) -> dict[str, float]:
    """Returns the logged numbers of the last step that begin so, without that beginning."""
    row = next(row for row in reversed(trainer.state.log_history) if any(name.startswith(prefix) for name in row))
    return {name.removeprefix(prefix): value for name, value in row.items() if name.startswith(prefix)}


def noting(collect: Any, rollouts: list[Any]) -> Any:
    """A `collect` that also puts rows and records into a list."""

    def noted(request: Any) -> Any:
        result = collect(request)
        rollouts.extend(zip(result.rows, result.records, strict=True))
        return result

    return noted


@pytest.mark.slow
def test_every_environment_has_rows_tools_rewards_and_numbers_of_its_own(tmp_path: Path) -> None:
    trainer = mixture(tmp_path, logging_steps=1, per_device_train_batch_size=24, **EVALUATED)
    rows = Counter(trainer.train_dataset["env"])
    assert rows == {"FictionQA": 12, "paid": 6, "Arms-v0": 6}  # 8 tasks, 4 tasks and 6 seeds, 2 : 1 : 1
    played: list[Any] = []
    collect = trainer.collect
    trainer.collect = noting(collect, played)
    trainer.train()
    terms: dict[str, set[str]] = {}
    for row, record in played:
        assert record.env_id == {"Arms-v0": "Test/Arms-v0"}.get(row["env"], "AgentR1/FictionQA-v0")
        terms.setdefault(row["env"], set()).update(record.reward_terms)
        assert len(record.turns) <= {"Arms-v0": 1, "paid": 2, "FictionQA": 5}[row["env"]]
    assert terms["FictionQA"] == {"em"} and terms["Arms-v0"] == set() and "malformed_call" in terms["paid"]
    for name in rows:
        logged = numbers(trainer, f"rollout/{name}/")
        assert {"return", "turns", "calls", "infra_failures", "group/frac_zero_std"} <= logged.keys()
    assert "em" not in numbers(trainer, "rollout/Arms-v0/")
    held_out = {name: numbers(trainer, f"eval_{name}/") for name in rows}
    assert all({"return", "turns"} <= found.keys() for found in held_out.values())
    assert Counter(trainer.eval_dataset["env"]) == {"FictionQA": 4, "paid": 2, "Arms-v0": 2}  # eight, by weight


@pytest.mark.slow
def test_numbers_of_an_environment_are_means_over_its_rollouts(tmp_path: Path) -> None:
    trainer = mixture(tmp_path, **EVALUATED)
    found: list[Any] = []
    collect = trainer.collect
    trainer.collect = noting(collect, found)
    metrics = trainer.evaluate()
    for name in ("FictionQA", "paid", "Arms-v0"):
        returns = [record.episode_return for row, record in found if row["env"] == name]
        assert metrics[f"eval_{name}/return"] == pytest.approx(sum(returns) / len(returns))


def test_statistics_of_the_batch_are_those_of_one_environment() -> None:
    """Whitening over both would give the second one, whose rewards are ten times as large, all of the signal."""
    lines = [("0", [1.0]), ("0", [0.0]), ("0", [30.0]), ("0", [10.0])]
    inputs = batch(*lines, groups=[0, 0, 0, 0])
    inputs = replace(inputs, environments=torch.tensor([0, 0, 1, 1]))
    credit = estimate_credit("reinforce++", inputs, CreditOptions())
    assert close(credit.advantages, [[1.0], [-1.0], [1.0], [-1.0]])
    whole = estimate_credit("reinforce++", batch(*lines), CreditOptions()).advantages
    assert not close(whole, credit.advantages, 0.1)


def test_every_turn_of_steppo_has_the_same_weight_in_all_environments() -> None:
    """Ten tokens in four turns: 2.5 for each, though turns of one environment are four times as long."""
    lines = [("0000", [1.0]), ("0000", [0.0]), ("0", [30.0]), ("0", [10.0])]
    inputs = replace(batch(*lines, values=[[0.0]] * 4), environments=torch.tensor([0, 0, 1, 1]))
    found = estimate_credit("steppo", inputs, CreditOptions()).advantages
    assert close(found.sum(1), [2.5, -2.5, 2.5, -2.5])
    assert close(found[:2], [[0.625] * 4, [-0.625] * 4])


@samples("name", sorted(ESTIMATORS))
def test_an_estimator_sees_each_environment_alone(name: str) -> None:
    lines = [("000", [float(number)]) for number in (3, 1, 4, 1, 5, 9)]
    values = torch.rand(6, 3, generator=torch.Generator().manual_seed(0)).tolist()
    more = {"values": values, "state_ids": [[0], [0], [1], [2], [3], [3]], "outcomes": [2, 7, 1, 8, 2, 8]}
    inputs = batch(*lines, groups=[0, 0, 1, 1, 2, 2], **more)
    places = torch.tensor([1, 1, 0, 0, 1, 1])
    whole = estimate_credit(name, replace(inputs, environments=places), CreditOptions())
    for place in (0, 1):
        mask = places == place
        alone = estimate_credit(name, inputs.select(mask), CreditOptions())
        assert torch.equal(whole.advantages[mask], alone.advantages)
        assert torch.equal(whole.credited[mask], alone.credited)
        assert (whole.returns is None) == (alone.returns is None)
        if whole.returns is not None:
            assert torch.equal(whole.returns[mask], alone.returns)


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    settings = {"learning_rate": 1e-2, "logging_steps": 1, "algorithm": "reinforce++"}
    whole = mixture(tmp_path / "whole", max_steps=4, **settings)
    whole.train()
    mixture(tmp_path / "run", max_steps=4, save_strategy="steps", save_steps=2, **settings).train()
    resumed = mixture(tmp_path / "run", max_steps=4, save_strategy="steps", save_steps=2, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    assert timeless(resumed.state.log_history) == timeless(whole.state.log_history)
    spelled = [HOPS.replace(" weight=2", "") + " weight=2.0", *ENVS[1:]]
    evaluated = {**EVALUATED, "envs": [f"{spelled[0]} eval.split=test", *EVALUATED["envs"][1:]]}
    mixture(tmp_path / "run", max_steps=4, **settings, **evaluated).train(
        resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2")
    )
    other = mixture(tmp_path / "run", max_steps=4, envs=[*ENVS[:2], "Test/Arms-v0 weight=3"], **settings)
    with pytest.raises(ConfigurationError, match=r"envs=.*'weight': 3"):
        other.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))


def test_the_command_line_names_them_one_by_one(tmp_path: Path) -> None:
    words = ["--env", "FictionQA weight=2", "--env=CliffWalkingText", "--reward", "f1", "--output_dir", str(tmp_path)]
    args, _ = read_options([*words, "--use_cpu", "True", "--bf16", "False"])
    assert args.env_id is None
    assert [(each.env_id, each.weight) for each in args.environments] == [("FictionQA", 2), ("CliffWalkingText", 1)]
    assert args.environments[0].options == {"reward": ["f1"]}
    (tmp_path / "mixture.yaml").write_text(
        "envs: [FictionQA, {env_id: CliffWalkingText, weight: 2}]\nuse_cpu: true\nbf16: false\n"
    )
    args, _ = read_options(["--config", str(tmp_path / "mixture.yaml"), "--output_dir", str(tmp_path)])
    assert [each.weight for each in args.environments] == [1, 2]
    args, _ = read_options(["Taxi", "--config", str(tmp_path / "mixture.yaml"), "--output_dir", str(tmp_path)])
    with pytest.raises(ConfigurationError, match="env_id='Taxi' and envs are both set"):
        _ = args.environments
    args, _ = read_options(
        ["--env", "FictionQA weight=2 max_turns=3", *words[3:], "--use_cpu", "True", "--bf16", "False"]
    )
    assert args.environments[0].options == {"max_turns": 3, "reward": ["f1"]}
    with pytest.raises(ConfigurationError, match="by repeated --env or by --envs, not by both"):
        read_options([*words, "--envs", "A", "B"])


@pytest.mark.slow
def test_a_list_of_one_environment_is_that_environment(tmp_path: Path) -> None:
    trainer = mixture(tmp_path, envs=["Test/Arms-v0"], per_device_train_batch_size=4, max_steps=1, logging_steps=1)
    trainer.train()
    assert "env" not in trainer.train_dataset.column_names
    logged = {name for row in trainer.state.log_history for name in row}
    assert "rollout/turns" in logged
    assert not any(name.startswith("rollout/Arms") for name in logged)


def test_without_groups_signal_is_looked_for_within_an_environment() -> None:
    lines = [("0", [1.0]), ("0", [1.0]), ("0", [50.0]), ("0", [50.0])]
    inputs = replace(batch(*lines, groups=[0, 1, 2, 3]), environments=torch.tensor([0, 1, 0, 1]))
    assert group_stds(inputs).tolist() == [24.5, 24.5]
    apart = replace(inputs, environments=torch.tensor([0, 0, 1, 1]))
    assert group_stds(apart).tolist() == [0.0, 0.0]


def test_an_environment_with_hardly_a_rollout_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    changes = {"num_generations": 1, "algorithm": "reinforce++", "envs": [f"{HOPS}", "Test/Arms-v0 weight=0.1"]}
    mixture(tmp_path, **changes)
    assert "Arms-v0 has about 0.38 of the 8 rollouts of a batch" in caplog.text
    assert "FictionQA has" not in caplog.text


@samples(
    ("changes", "problem"),
    [
        ({"eval_strategy": "steps", "eval_steps": 2, "envs": [HOPS, "Test/Arms-v0"]}, "eval_env_kwargs of FictionQA"),
        ({"envs": [f"{HOPS} eval", "Test/Arms-v0"]}, "eval_env_kwargs has no effect without an evaluation"),
        ({"envs": ["FictionQA a=1", "Test/Arms-v0"]}, "FictionQAEnv has no option 'a'"),
        ({"envs": ["FictionQA style=compact", "Tset/Arms-v0"]}, "Unknown environment 'Tset/Arms-v0'"),
        (
            {"envs": ["FictionQA style=compact questions=8", "FictionQA name=b style=compact"]},
            "num_train_seeds=6 has no",
        ),
        ({"env_kwargs": {"context_window": 1}}, "context_window=1: 'Test/Arms-v0' is not a ToolEnv"),
    ],
)
def test_a_mixture_that_cannot_be_trained_on_is_refused(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        mixture(tmp_path, **changes)


def test_first_screen_start_and_card_name_all_of_them(tmp_path: Path) -> None:
    trainer = mixture(tmp_path)
    envs = {each.name: gym.make("AgentR1/FictionQA-v0", **each.options) for each in trainer.args.environments[:2]}
    envs["Arms-v0"] = gym.make("Test/Arms-v0")
    text = start_summary(trainer.args, "m", (1, 1), envs, 24)
    for words in (
        "FictionQA: fiction/train (8",
        "50% of the rows, 5 turns",
        "paid: ",
        "Arms-v0: seeds, 25% of the rows",
    ):
        assert words in text
    start = training_provenance(trainer.args, "m", envs)
    assert start["environment"] == "FictionQA + FictionQA + Test/Arms-v0"
    assert start["dataset"].keys() == start["reward_weights"].keys() == {"FictionQA", "paid"}
    trainer.card.save(tmp_path)
    card = AgentCard.load(tmp_path)
    assert card is not None
    assert [each.name for each in card.environments] == ["FictionQA", "paid", "Arms-v0"]
    assert "environment paid" in (tmp_path / "README.md").read_text()
