"""What a run prints: screens, bar, estimates from measured steps, samples from the batch."""

from __future__ import annotations

import functools
import re
import shlex
import socket
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import pytest
from tqdm import tqdm
from transformers import TrainerControl, TrainerState
from transformers.utils import logging

from agent_r1_gym.cli.main import build_parser
from agent_r1_gym.core.types import Message
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.record import Trajectory, Turn
from agent_r1_gym.run.session import Job, Session
from tests.kit.small_runs import make_args, make_trainer, play
from tests.trainers.rollouts.test_collect import EchoEnv, ScriptedEngine
from tests.trainers.test_train import COMPACT, config
from trainers.commands.train import building, rollouts
from trainers.monitoring import console
from trainers.monitoring.console import (
    WIDTH,
    ConsoleCallback,
    EtaEstimator,
    RolloutProgress,
    best_and_worst,
    end_summary,
    silence_libraries,
    start_summary,
)
from trainers.monitoring.provenance import agent_card
from trainers.resume import checkpoints
from trainers.rollouts.collect import Collector
from trainers.toy.model import build_model, build_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def test_the_first_screen_names_what_is_trained_on_what_for_what(tmp_path: Path) -> None:
    args = make_args(tmp_path, env_id="FictionQA", num_generations=4, per_device_train_batch_size=8, max_steps=7)
    options = {"questions": 12, "reward": ["em", "agent_r1"], "reward_weights": {"agent_r1": 0.5}}
    text = start_summary(args, "some/model", (1_234, 5_600_000), {"": make_text_env("FictionQA", options)}, 12)
    for words in (
        *("some/model: 1.23k of 5.6M parameters", "FictionQA: fiction/train (12 questions)", "1 x em + 0.5 x agent_r1"),
        *("grpo: 2 prompts x 4 rollouts per batch, 7 steps", "search", str(tmp_path), "not estimated", ", 5 turns"),
        *("prompt", "hermes"),
    ):
        assert words in text


def test_the_first_screen_of_a_foreign_environment_says_its_limits(tmp_path: Path) -> None:
    args = make_args(tmp_path, env_id="Test/Echo-v0", max_turn_tokens=7)
    env = gym.wrappers.TimeLimit(EchoEnv(), 3)
    text = start_summary(args, "m", (1, 1), {"": env}, 9, memory="about 2 GiB per device, estimated")
    for words in (
        "9 seeds",
        "none: a plain text environment",
        "7 tokens per turn",
        "memory        about 2 GiB per dev",
    ):
        assert words in text
    assert re.search("^time +estimated after the first step$", text, re.MULTILINE)


def test_the_last_screen_gives_commands_that_work_as_they_stand(tmp_path: Path) -> None:
    options = {"style": "compact", "questions": 12, "split": "train", "system_prompt": "", "max_turns": 3}
    args = make_args(tmp_path, env_id="FictionQA", env_kwargs=options, max_turn_tokens=7)
    card = agent_card(args, "base", {"": make_text_env("FictionQA", options)})
    text = end_summary(str(tmp_path), card)
    assert f"agent-r1 train --warm-start {tmp_path} --out {tmp_path}-rl" in text
    assert f"agent-r1 chat {tmp_path}\n" in text
    (command,) = re.findall("agent-r1 (eval .*)", text)
    parsed = build_parser("eval").parse_args(shlex.split(command))
    assert (parsed.env, parsed.policy, parsed.out) == (str(tmp_path), None, tmp_path / "eval")  # the card has the rest


SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'


def test_the_bar_shows_short_numbers_and_the_reward_once(capsys: pytest.CaptureFixture[str]) -> None:
    bar, state = RolloutProgress("grpo"), TrainerState(max_steps=2)
    arguments = (None, state, TrainerControl())
    bar.on_train_begin(*arguments)
    for step, em in enumerate((0.5, 0.25), 1):
        bar.on_log(*arguments, logs={"reward": 0.5, "rollout/reward/em": em, "rollout/tokens_per_second": 5840.0})
        bar.on_prediction_step(*arguments, eval_dataloader=[1])
        state.global_step = step
        bar.on_step_end(*arguments)
    bar.on_log(*arguments, logs={"reward": None})
    bar.on_train_end(*arguments)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("grpo: 1/2 steps") and first.endswith(", reward=0.5, tok/s=5.84k")
    assert second.endswith(", reward=0.5, em=0.25, tok/s=5.84k")


def closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.mark.slow
def test_a_run_whose_every_rollout_loses_its_backend_stops_by_its_alarm_with_a_saved_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "Collector", functools.partial(Collector, retry_delay=0.0))
    monkeypatch.setattr(rollouts, "build_engine", lambda *_arguments, **_options: ScriptedEngine(SEARCH))
    tokenizer = build_tokenizer()
    dead = COMPACT | {"retriever": f"http://127.0.0.1:{closed_port()}"}
    settings = {"env_kwargs": dead, "infrastructure_retries": 1, "max_steps": 9, "alarm_patience": 2}
    args = config(tmp_path, **settings, logging_steps=1, max_completion_length=512, disable_tqdm=False)
    trainer = building.build_trainer(args, build_model(tokenizer), tokenizer=tokenizer)
    trainer.train()
    steps = [logs for logs in trainer.state.log_history if "entropy" in logs]
    assert [(logs["rollout/infra_failures"], logs["reward"]) for logs in steps] == [(1.0, None)] * 2
    assert trainer.alarm.reason == "rollout/infra_failures is 1, beyond alarm_infra_failures_above=0.5"
    assert checkpoints.last_complete(tmp_path) == tmp_path / "checkpoint-2"


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


NOON = 12 * 3600.0


def test_the_first_step_is_told_as_measured() -> None:
    line = EtaEstimator(101).add(1, seconds=12.3, rollouts=8.1, now=NOON)
    assert line == "step 1 took 12.3 s (rollouts 8.1, update 4.2): 100 more take about 20 min, until 12:20"


def test_steady_steps_are_told_once_and_a_change_again() -> None:
    forecast = EtaEstimator(1001)
    now = NOON
    lines = []
    for step in range(1, 200):
        seconds = 10.0 if step < 100 else 20.0
        now += seconds
        lines.append(forecast.add(step, seconds=seconds, rollouts=5.0, now=now))
    said = {step: line for step, line in enumerate(lines, 1) if line}
    assert 1 in said and not set(range(2, 100)) & set(said)
    assert 1 <= len(said) - 1 <= 3
    last = said[max(said)]
    assert re.match(r"step 10\d: [\d.]+ s per step lately \(rollouts 5, update [\d.]+\): \d+ more take about", last)


def test_the_warm_up_of_the_first_step_is_not_carried_on() -> None:
    forecast = EtaEstimator(101)
    forecast.add(1, seconds=100.0, rollouts=0.0, now=NOON)
    line = forecast.add(2, seconds=1.0, rollouts=0.5, now=NOON + 1)
    assert line == "step 2: 1 s per step lately (rollouts 0.5, update 0.5): 99 more take about 1.6 min, until 12:01"


def test_nothing_is_foretold_of_a_run_that_ends() -> None:
    assert EtaEstimator(1).add(1, seconds=10.0, rollouts=1.0, now=NOON) is None


@pytest.mark.parametrize(("every", "shown"), [(2, [1, 3, 5]), (4, [1, 5])])
@pytest.mark.slow
def test_samples_come_every_few_batches_and_change_nothing(
    every: int,
    shown: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(console, "SAMPLES_EVERY", every)

    def trained(*, speaks: bool) -> list[float]:
        trainer = make_trainer(tmp_path, play, max_steps=5, learning_rate=1e-3)
        if speaks:
            trainer.add_callback(ConsoleCallback(trainer))
        trainer.train()
        return [number for weight in trainer.model.parameters() for number in weight.flatten().tolist()]

    silent = trained(speaks=False)
    capsys.readouterr()
    assert trained(speaks=True) == silent
    out = capsys.readouterr().out
    assert [int(step) for step in re.findall(r"^samples of step (\d+):", out, re.MULTILINE)] == shown
    assert out.count("step 1 took") == 1
    assert "best of 4 rollouts" in out or "equal rollouts" in out


@pytest.mark.slow
def test_a_batch_that_several_steps_train_on_is_shown_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "SAMPLES_EVERY", 1)
    trainer = make_trainer(tmp_path, play, max_steps=4, num_iterations=2)
    trainer.add_callback(ConsoleCallback(trainer))
    trainer.train()
    assert re.findall(r"samples of step (\d+):", capsys.readouterr().out) == ["1", "3"]


@pytest.mark.slow
def test_a_batch_that_the_run_before_rolled_out_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "SAMPLES_EVERY", 1)
    settings = {"num_iterations": 2, "save_strategy": "steps", "save_steps": 1}
    make_trainer(tmp_path, play, **settings, max_steps=1).train()
    resumed = make_trainer(tmp_path, play, **settings, max_steps=3)
    resumed.add_callback(ConsoleCallback(resumed))
    resumed.train(resume_from_checkpoint=True)
    out = capsys.readouterr().out
    assert re.findall(r"samples of step (\d+):", out) == ["3"]
    assert "step 2 took" in out


CALL = '<tool_call>{"name": "search", "arguments": {"query": "capital of Norway"}}</tool_call>'


def rollout(*said: str, reward: float, answer: str | None = None, **changes: object) -> Trajectory:
    """An episode of a task with the answer Oslo, in which the model said this."""
    terms = {"em": reward, "format": 0.5}
    turns = (*(Turn(text, reward=0.0) for text in said[:-1]), Turn(said[-1], reward=reward, reward_terms=terms))
    messages = [Message("system", "You have tools."), Message("user", "What is the capital?")]
    for text in said:
        messages += [Message("assistant", text), Message("tool", "[1] Oslo is a city.")]
    fixed = {"question": "What is the capital?", "gold_answers": ("Oslo", "Christiania"), "end_reason": "answer"}
    return Trajectory(**{**fixed, "turns": turns, "messages": tuple(messages[:-1]), "answer": answer, **changes})


def test_the_best_and_the_worst_of_the_prompt_that_differs_most() -> None:
    alike = [rollout("bad", reward=0.25)] * 2
    differing = [
        rollout("<answer>Rome</answer>", reward=0, answer="Rome"),
        rollout(CALL, "Oslo", reward=1, answer="Oslo"),
    ]
    text = best_and_worst([*alike, *differing], group_size=2)
    assert text == (
        "  best of 2 rollouts: return 1 (em 1, format 0.5), ended by answer\n"
        "    task     What is the capital?\n"
        f"    model    {CALL}\n"
        "    tool     [1] Oslo is a city.\n"
        "    model    Oslo\n"
        "    answer   Oslo (accepted: Oslo | Christiania)\n"
        "  worst: return 0 (em 0, format 0.5), ended by answer\n"
        "    model    <answer>Rome</answer>\n"
        "    answer   Rome (accepted: Oslo | Christiania)"
    )


def test_rollouts_that_are_worth_the_same_are_shown_once() -> None:
    text = best_and_worst([rollout("a", reward=0)] * 3, group_size=3)
    assert text is not None
    assert text.startswith("  one of 3 equal rollouts: return 0 (em 0")
    assert text.endswith("answer   none (accepted: Oslo | Christiania)")


def test_in_a_mixture_it_says_where() -> None:
    batch = [rollout("a", reward=0, env_id="A-v0"), rollout("a", reward=1, env_id="B-v0")]
    assert str(best_and_worst(batch, group_size=1)).startswith("  best of 2 rollouts in B-v0: return 1")


def test_without_groups_the_batch_is_compared_and_each_task_named() -> None:
    batch = [rollout("a", reward=reward, question=f"task {reward}") for reward in (0.0, 1.0, 0.5)]
    text = best_and_worst(batch, group_size=1)
    assert text is not None
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("    task")] == ["1.0", "0.0"]


def test_lost_rollouts_are_never_shown() -> None:
    lost = rollout("spoilt", reward=0, infrastructure_error="dead")
    assert best_and_worst([lost, lost], group_size=2) is None
    text = best_and_worst([lost, rollout("fine", reward=0)], group_size=2)
    assert text is not None
    assert "spoilt" not in text and "one of 1 equal" in text


def test_long_and_hostile_texts_stay_on_their_line() -> None:
    nasty = "start \x1b[2J\r\n\u202e" + "word " * 200 + "end"
    text = best_and_worst([rollout(*[nasty] * 9, reward=1)], group_size=1)
    assert text is not None
    lines = text.splitlines()
    assert len(lines) <= 12 and max(map(len, lines)) <= WIDTH
    assert all(letter.isprintable() for line in lines for letter in line)
    assert any("start [2J word" in line and line.endswith("end") for line in lines)
    assert any("more)" in line for line in lines)


def test_a_foreign_environment_says_env_where_it_speaks() -> None:
    class Echo(gym.Env[str, str]):
        observation_space = action_space = gym.spaces.Text(10)

        def reset(self, *, seed=None, options=None):
            return "hello", {}

        def step(self, action):
            return f"no {action}", 0.0, False, action == "b", {}

    session = Session(Echo(), Job(0, 0, seed=1))
    for action in ("a", "b"):
        session.record_step(action, session.env.step(action))
    text = best_and_worst([session.record()], group_size=1)
    assert text is not None
    assert [line.split(maxsplit=1) for line in text.splitlines()[1:]] == [
        ["task", "hello"], ["model", "a"], ["env", "no a"], ["model", "b"], ["env", "no b"]
    ]  # fmt: skip


def test_only_the_noise_is_silenced() -> None:
    before = logging.set_tqdm_hook(None)
    try:
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            silence_libraries()
            for text in (
                "`gradient_checkpointing` is deprecated and will be removed in v6.",
                "`is_gradient_checkpointing` is deprecated and will be removed in v6.",
                "`something_else` is deprecated.",
            ):
                warnings.warn(text, FutureWarning, stacklevel=1)
        assert [str(warning.message) for warning in reported] == ["`something_else` is deprecated."]
        bars = [logging.tqdm(total=1, desc=name) for name in ("Loading weights", "Fetching 3 files")]
        assert [isinstance(bar, tqdm) and not bar.disable for bar in bars] == [False, True]
        for bar in bars:
            bar.close()
    finally:
        logging.set_tqdm_hook(before)
