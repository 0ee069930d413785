"""TRL's own GRPOTrainer with `rollout_func`: the oracle, gradients of a lost episode, evaluations, LoRA."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import pytest

pytest.importorskip("trl", reason="the train extra is not installed")
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import trainers.toy
from agent_r1_gym.cli.main import main
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.integrations.trl import episode_return, make_rollout_func, task_rows
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.policies import OraclePolicy
from agent_r1_gym.run.record import Trajectory
from tests.kit.helpers import TASKS, FlakyTool, call
from tests.kit.pages import run
from trainers.rollouts import local_model

pytestmark = pytest.mark.adapters

EXAMPLES = Path(__file__).parents[2] / "examples" / "libraries"
TINY = str(Path(trainers.toy.__file__).parent / "weights")
FICTION = "AgentR1/FictionQA-v0"
COMPACT = {"style": "compact", "entities": 200, "questions": 50, "reward": "process"}
HELD_OUT = {**COMPACT, "split": "test"}
TASK_IDS = 50


def settings(folder: Path, **changes: Any) -> GRPOConfig:
    common = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
    small = {"num_generations": 2, "max_completion_length": 160, "beta": 0.0, "logging_steps": 1, "max_steps": 1}
    return GRPOConfig(output_dir=str(folder), **{**common, **small, "learning_rate": 3e-4, **changes})


def evaluated(folder: Path, options: dict[str, Any]) -> dict[str, Trajectory]:
    """Returns the oracle's episodes of `agent-r1 eval`, by task."""
    words = [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    assert main(["eval", FICTION, "--policy", "oracle", "-n", str(TASK_IDS), "--out", str(folder), *words]) == 0
    return {record.task_id: record for record in RunFolder(folder).episodes()}


def assert_same(records: Iterable[Trajectory], expected: dict[str, Trajectory]) -> None:
    """Asserts that episodes are those of `agent-r1 eval`: score 1.0, and every reward term of every turn."""
    played = list(records)
    assert {record.task_id for record in played} == set(expected) and len(expected) == TASK_IDS
    for record in played:
        reference = expected[record.task_id]
        assert record.scores["em"] == 1.0
        assert [turn.action for turn in record.turns] == [turn.action for turn in reference.turns]
        assert [turn.reward_terms for turn in record.turns] == [turn.reward_terms for turn in reference.turns]
        assert record.episode_return == reference.episode_return


class Said(NamedTuple):
    """A stand-in for a model in the engine's place: it says what a policy says, token by token."""

    policy: OraclePolicy
    chat: Any
    max_length: int

    def run(self, sessions: Iterable[Any]) -> None:
        for session in sessions:
            reply: Any = []
            while reply is not None:
                (text,) = self.policy.act([session.state()])
                ids = [*self.chat.tokenizer.encode(text, add_special_tokens=False), self.chat.stop_id]
                reply = session.finish_turn(ids, [-1.0] * len(ids), True)
                reply = reply.result() if hasattr(reply, "result") else reply


def keep(into: list[Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a reward function that keeps what TRL hands to it."""

    def kept(**columns: Any) -> Any:
        into.append(columns)
        return function(**columns)

    kept.__name__ = function.__name__
    return kept


@pytest.mark.slow
def test_the_oracle_scores_one_through_rollout_func(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = evaluated(tmp_path / "eval", HELD_OUT)

    def oracle(model, tokenizer, *, chat, max_length, **_options):
        return local_model.LocalModel(Said(OraclePolicy(), chat, max_length), chat, None)

    monkeypatch.setattr(local_model, "wrap_model", oracle)
    seen: list[Any] = []
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    trainer = GRPOTrainer(
        TINY,
        args=settings(tmp_path, per_device_train_batch_size=2 * TASK_IDS),
        processing_class=tokenizer,
        rollout_func=make_rollout_func(FICTION, tokenizer, **HELD_OUT),
        reward_funcs=keep(seen, episode_return),
        train_dataset=task_rows(FICTION, **HELD_OUT),
    )
    trainer.train()
    (columns,) = seen
    assert_same(columns["trajectory"], expected)
    log = trainer.state.log_history[0]
    assert log["rollout/em"] == 1.0 and log["frac_reward_zero_std"] == 1.0  # copies of a prompt stand together
    assert log["reward"] == pytest.approx(sum(r.episode_return for r in expected.values()) / TASK_IDS)


class SometimesDown(ToolEnv):
    """The backend of task t1 is lost."""

    def __init__(self, **options: Any) -> None:
        super().__init__(tasks=TASKS[:2], tools=[FlakyTool()], system_prompt="", feedback="short", **options)

    def begin_step(self, action):
        return super().begin_step(call("echo", text="down") if self.task.id == "t1" else action)


def weights_after(folder: Path, *, loss_type: str, lost: list[int]) -> dict[str, Any]:
    """Returns the weights after a step in which the lost episodes had said `lost`."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    play = make_rollout_func("Own/Down-v0", tokenizer, max_turn_tokens=8, infrastructure_retries=0)

    def other_words(prompts, trainer):
        batch = play(prompts, trainer)
        assert 0 < sum(record.infrastructure_error is not None for record in batch["trajectory"]) < len(prompts)
        for row, record in enumerate(batch["trajectory"]):
            if record.infrastructure_error:
                batch["completion_ids"][row] = lost
                batch["env_mask"][row] = [0] * len(lost)
                batch["logprobs"][row] = [0.0] * len(lost)
        return batch

    def varied(trajectory, **_columns):  # a random model earns nothing: pay something that differs
        paid = episode_return(trajectory)
        return [None if value is None else float(number % 2) for number, value in enumerate(paid)]

    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(TINY),
        args=settings(folder, per_device_train_batch_size=8, num_generations=4, beta=0.1, loss_type=loss_type),
        processing_class=tokenizer,
        rollout_func=other_words,
        reward_funcs=varied,
        train_dataset=task_rows("Own/Down-v0"),
    )
    trainer.train()
    assert 0 < trainer.state.log_history[0]["grad_norm"] < float("inf")
    return trainer.accelerator.unwrap_model(trainer.model).state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_what_a_lost_episode_says_does_not_move_the_weights(tmp_path: Path, loss_type: str) -> None:
    gymnasium.register("Own/Down-v0", SometimesDown, disable_env_checker=True)
    one, other = (weights_after(tmp_path, loss_type=loss_type, lost=[number] * 6) for number in (9, 17))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_lora_trains_and_evaluations_play_another_split(tmp_path: Path) -> None:
    from peft import LoraConfig

    held_out, seen = {"split": "validation"}, list[Any]()
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    play = make_rollout_func(FICTION, tokenizer, max_turn_tokens=40, eval_options=held_out, **COMPACT)
    trainer = GRPOTrainer(
        TINY,
        args=settings(tmp_path, per_device_train_batch_size=8, per_device_eval_batch_size=8, max_steps=2),
        processing_class=tokenizer,
        rollout_func=play,
        reward_funcs=keep(seen, episode_return),
        train_dataset=task_rows(FICTION, **COMPACT),
        eval_dataset=task_rows(FICTION, **{**COMPACT, **held_out}).select(range(8)),
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
    )
    trainer.train()
    trained = len(seen)
    first, second = trainer.evaluate(), trainer.evaluate()
    assert first["eval_reward"] == second["eval_reward"]
    assert {record.dataset for columns in seen[:trained] for record in columns["trajectory"]} != {
        record.dataset for columns in seen[trained:] for record in columns["trajectory"]
    }
    play.close()


@pytest.mark.slow
def test_the_example_learns(tmp_path: Path) -> None:
    done = run(f"python {EXAMPLES / 'trl_rollout_func'}.py --steps 10", tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    rewards = [float(number) for number in re.findall(r"mean reward ([\d.]+)", done.stdout)]
    assert len(rewards) == 10
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.25  # .37 to .92 was seen
