"""The progress bar: a step that brings no number, and a callback that fails."""

from __future__ import annotations

import functools
import socket
from pathlib import Path
from typing import Any

import pytest
from torch.testing import assert_close
from transformers import TrainerCallback

from tests.kit.bandit import make_trainer, play
from tests.trainers.engines.test_collect import ScriptedEngine
from tests.trainers.test_train import COMPACT, config
from trainers import train
from trainers.engines.collect import Collector
from trainers.running import checkpoints
from trainers.toy.model import build_model, build_tokenizer

SEARCH = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def closed_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.mark.slow
def test_a_run_whose_every_rollout_loses_its_backend_stops_by_its_alarm_with_a_saved_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "Collector", functools.partial(Collector, pause=0.0))
    monkeypatch.setattr(train, "engine_of", lambda *_arguments, **_options: ScriptedEngine(SEARCH))
    tokenizer = build_tokenizer()
    dead = COMPACT | {"retriever": f"http://127.0.0.1:{closed_port()}"}
    settings = {"env_kwargs": dead, "infrastructure_retries": 1, "max_steps": 9, "alarm_patience": 2}
    args = config(tmp_path, **settings, logging_steps=1, max_completion_length=512, disable_tqdm=False)
    trainer = train.build_trainer(args, build_model(tokenizer), tokenizer=tokenizer)
    trainer.train()
    steps = [logs for logs in trainer.state.log_history if "entropy" in logs]
    assert [(logs["rollout/dropped"], logs["reward"]) for logs in steps] == [(1.0, None)] * 2
    assert trainer.alarm.reason == "rollout/dropped is 1, beyond alarm_dropped_above=0.5"
    assert checkpoints.last_complete(tmp_path) == tmp_path / "checkpoint-2"


class Broken(TrainerCallback):
    """Raises at the log of one step."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if state.global_step == 2:
            raise ZeroDivisionError


def test_a_callback_that_raises_at_a_log_leaves_a_checkpoint(tmp_path: Path) -> None:
    settings = {"max_steps": 4, "logging_steps": 1, "learning_rate": 1e-2}
    broken = make_trainer(tmp_path / "broken", play, **settings)
    broken.add_callback(Broken())
    with pytest.raises(ZeroDivisionError) as raised:
        broken.train()
    folder = tmp_path / "broken" / "checkpoint-2"
    assert any(str(folder) in note for note in raised.value.__notes__)
    whole = make_trainer(tmp_path / "whole", play, **settings)  # seeds the random numbers
    whole.train()
    resumed = make_trainer(tmp_path / "resumed", play, **settings)
    resumed.train(resume_from_checkpoint=str(folder))
    assert_close(resumed.model.state_dict(), whole.model.state_dict(), rtol=0, atol=0)
    losses = [[logs["loss"] for logs in run.state.log_history if "loss" in logs] for run in (resumed, whole)]
    assert losses[0] == losses[1]
