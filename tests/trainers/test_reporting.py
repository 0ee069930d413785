"""What `report_to` gets: every number of a training and its evaluations, and tables of episodes of several turns."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from transformers import TrainerCallback
from transformers.integrations import integration_utils
from trl import ModelConfig

from agent_r1_gym.errors import ConfigurationError
from tests.kit.commands import training_words
from tests.kit.samples import samples
from tests.kit.small_runs import give, make_trainer, make_trajectory, multi_turn_batch, score
from tests.trainers.test_train import config
from trainers.algorithms.batch import tokens_of
from trainers.algorithms.process_group import ProcessGroup
from trainers.commands.train.building import build_trainer
from trainers.monitoring.preflight import check_packages
from trainers.rollouts.collect import RolloutResult
from trainers.toy.model import build_model, build_tokenizer

ROOT = Path(__file__).parents[2]
EVALUATED = {"eval_strategy": "steps", "eval_steps": 1, "eval_episodes": 8, "eval_env_kwargs": {}}
OPTIONS = {
    **{"max_steps": 1, "eval_strategy": "steps", "eval_steps": 1, "eval_env_kwargs": "{}", "eval_episodes": 8},
    **{"logging_steps": 1, "log_completions": True, "save_strategy": "no", "use_cpu": True},
}

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


class Recorder(TrainerCallback):
    """A service that keeps what it is sent."""

    def __init__(self) -> None:
        RECORDED.clear()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        RECORDED.append(dict(logs or {}))


RECORDED: list[dict[str, Any]] = []


@pytest.mark.slow
def test_a_service_gets_finite_numbers_of_training_and_evaluation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "recorder", Recorder)
    tokenizer = build_tokenizer()
    args = config(tmp_path, report_to="recorder", logging_steps=1, **EVALUATED)
    build_trainer(args, build_model(tokenizer), tokenizer=tokenizer).train()
    step, evaluation = RECORDED[:2]
    described = {"reward", "rollout/reward/em", "rollout/turns", "rollout/calls", "rollout/truncated", "entropy"}
    assert described <= step.keys()
    assert {f"eval_{name}" for name in described} <= evaluation.keys()
    for number in (each for logs in RECORDED for each in logs.values()):
        assert isinstance(number, int | float)
        assert math.isfinite(number)


@pytest.mark.slow
def test_tables_of_completions_hold_episodes_of_several_turns(tmp_path: Path) -> None:
    """One of several rows, and one that was dropped."""
    batch = multi_turn_batch()
    batch[0] = dataclasses.replace(batch[0], tokens=dataclasses.replace(tokens_of(batch[0]), context_starts=(3,)))
    batch[1] = make_trajectory([], [], error="dead")
    make_trainer(tmp_path, give(batch), log_completions=True, logging_steps=1).train()
    table = pd.read_parquet(tmp_path / "completions" / "completions_00001.parquet")
    assert table["episode_return"].isna().tolist() == [False, True] + [False] * 6
    assert table["episode_return"][0] == pytest.approx(1.1)
    assert table["advantage"][1] == 0
    assert "tool" in table["completion"][0][0]["content"]


def test_the_table_of_completions_names_the_prompts_that_were_played(tmp_path: Path) -> None:
    """Those of other tasks, where groups were replaced or rollouts were played ahead."""
    other = [{"prompt": [{"role": "user", "content": f"say {number}"}]} for number in range(8)]
    trainer = make_trainer(tmp_path, lambda _request: RolloutResult(other, multi_turn_batch()))
    score(trainer)
    assert list(trainer._logs["prompt"]) == [row["prompt"] for row in other]


def test_speed_is_that_of_all_processes(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, give(multi_turn_batch()))
    trainer.process_group = ProcessGroup(lambda value: [value, value], size=2)  # another one does the same
    score(trainer)
    assert trainer.progress.batch is not None
    tokens, logged = 2 * trainer.progress.batch.sampled_tokens, trainer._metrics["train"]
    assert logged["rollout/tokens_per_second"] == [pytest.approx(tokens / logged["rollout/seconds"][0])]


@samples("service", ["wandb", "trackio", "tensorboard", "mylog"])
def test_a_service_that_is_missing_is_refused_before_the_model_is_loaded(
    service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if service != "mylog":
        monkeypatch.setattr(integration_utils, f"is_{service}_available", lambda: False)
    args = config(tmp_path, report_to=service)
    with pytest.raises(ConfigurationError, match=f"report_to={service}: "):
        check_packages(args, ModelConfig())


def in_tensorboard(run: Path) -> set[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (events,) = run.rglob("*tfevents*")
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    return set(accumulator.Tags()["scalars"])


def in_trackio(run: Path) -> set[str]:
    (path,) = run.parent.glob("service/*.db")
    connection = sqlite3.connect(path)
    assert connection.execute("select * from pending_uploads").fetchall() == []
    rows = [json.loads(row) for (row,) in connection.execute("select metrics from metrics")]
    assert any("completions" in row for row in rows)
    return set().union(*rows)


def in_wandb(run: Path) -> set[str]:
    (path,) = run.parent.glob("service/wandb/offline-run-*/*.wandb")
    content = path.read_bytes()  # of protocol buffers, which hold names as they are
    assert list(path.parent.glob("files/media/table/completions*"))
    return {name for name in expected_file_names(run) if name.encode() in content}


def expected_file_names(run: Path) -> set[str]:
    """The names in the run's own log as services get them, but for those of the end."""
    history = json.loads((run / "trainer_state.json").read_text())["log_history"][:2]
    names = set().union(*history) - {"step"}
    return {f"eval/{name[5:]}" if name.startswith("eval_") else f"train/{name}" for name in names}


@pytest.mark.parametrize(
    ("service", "names"), [("tensorboard", in_tensorboard), ("wandb", in_wandb), ("trackio", in_trackio)]
)
def test_services_hold_every_name_and_ask_nothing(
    service: str, names: Callable[[Path], set[str]], model_folder: Path, tmp_path: Path
) -> None:
    if find_spec(service) is None:
        pytest.skip(f"{service} is not installed")
    run = tmp_path / "run"
    (tmp_path / "service").mkdir()
    places = {"WANDB_DIR": "service", "TRACKIO_DIR": "service", "HOME": "."}
    environment = os.environ | {name: str(tmp_path / place) for name, place in places.items()}
    environment |= {"WANDB_MODE": "offline", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    words = training_words(**OPTIONS, model_name_or_path=model_folder, output_dir=run, report_to=service)
    command = [sys.executable, "-m", "trainers.commands.train", *words]
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=True, timeout=240)
    expected = expected_file_names(run)
    assert {"train/rollout/turns", "train/rollout/reward/em", "eval/rollout/reward/em", "train/kl"} <= expected
    assert not expected - names(run)
