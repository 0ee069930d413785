"""A training run whose tool hangs says so: which process, which tasks, and in which environment."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from transformers import AutoTokenizer

from agent_r1_gym import Task, ToolEnv, tool
from agent_r1_gym.core.types import ParsedTurn, ToolCall
from tests.kit.say_env import Whole, save_model
from tests.trainers.vllm.say import say_config
from trainers.commands.train.building import build_trainer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
TOLD = threading.Event()


class Calls(Whole):
    """Takes every turn for a call of the tool."""

    def parse(self, text: str) -> ParsedTurn:
        return ParsedTurn(calls=(ToolCall("wait", {}),))


class StuckEnv(ToolEnv):
    """Has a tool that does not answer before somebody has complained."""

    def __init__(self, **options: Any) -> None:
        @tool(timeout=60)
        def wait() -> str:
            """Waits."""
            return "done" if TOLD.wait(60) else "nobody complained"

        tasks = [Task(f"{number}", f"say {number}", ("yes",)) for number in range(4)]
        super().__init__(tasks=tasks, tools=[wait], parser=Calls(), max_turns=1, system_prompt="", **options)


class Complaints(logging.Handler):
    """Keeps messages, and lets the tool answer once one has named it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        if "in a step of" in self.texts[-1]:
            TOLD.set()


@pytest.fixture
def complaints() -> Iterator[Complaints]:
    TOLD.clear()
    logger, handler = logging.getLogger("trainers.monitoring.alarms"), Complaints()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.mark.slow
def test_a_run_whose_tool_hangs_names_task_process_and_environment(
    tmp_path: Path, complaints: Complaints, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "tests/Stuck-v0" not in gym.registry:
        gym.register("tests/Stuck-v0", StuckEnv)
    model = save_model(tmp_path / "model")
    sizes = {"per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 32}
    args = say_config(tmp_path / "run", "tests/Stuck-v0", engine="cached", max_steps=1, **sizes)
    monkeypatch.setattr("trainers.monitoring.alarms.STUCK_SECONDS", 0.2)
    trainer = build_trainer(args, model, tokenizer=AutoTokenizer.from_pretrained(model))
    trainer.train()
    assert TOLD.is_set()
    head, *lines = next(text for text in complaints.texts if "in a step of" in text).splitlines()
    assert re.fullmatch(r"Process 0 still plays [1-4] episodes after \d+ s, and others may wait for it:", head)
    assert any(
        re.fullmatch(r"  task [0-3], seed \d+, turn 0: in a step of tests/Stuck-v0 for \d+ s", line) for line in lines
    )
    assert trainer.state.global_step == 1  # it only says so
    assert "watchdog" not in {thread.name for thread in threading.enumerate()}
