"""The recipe for tools that are bound to a thread: one database per episode, opened in `make_tools`."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import pytest

from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Task
from agent_r1_gym.env_checker import CheckError, check_tool_env
from agent_r1_gym.registry import register
from agent_r1_gym.tools import tool
from tests.kit.helpers import answer, call

ENV_ID = "AgentR1Test/Warehouse-v0"
COUNT = call("sql", query="SELECT sum(items) FROM stock")
ORDER = call("sql", query="UPDATE stock SET items = items - 1")


class WarehouseEnv(ToolEnv):
    """Asks how much is in stock."""

    timeout: float | None = None

    def __init__(self, **options: Any) -> None:
        tasks = [Task(str(items), "How much is in stock?", (str(items),)) for items in (6, 7, 8)]
        super().__init__(tasks=tasks, **options)

    def make_tools(self, task: Task) -> Sequence[Tool]:
        database = sqlite3.connect(":memory:")
        database.execute("CREATE TABLE stock (items)")
        database.execute("INSERT INTO stock VALUES (?)", (int(task.id),))

        @tool(timeout=self.timeout)
        def sql(query: str) -> list:
            """Runs one SQL statement.

            Args:
                query: the statement
            """
            return database.execute(query).fetchall()

        return [sql]


class WithTimeoutEnv(WarehouseEnv):
    """The same with calls in threads, which sqlite3 refuses."""

    timeout = 5.0


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register(ENV_ID, WarehouseEnv)
    yield
    del gymnasium.registry[ENV_ID]


def test_in_a_single_environment() -> None:
    env = gymnasium.make(ENV_ID)
    for index in (0, 1):
        env.reset(seed=0, options={"task_index": index})
        _, _, _, _, info = env.step(ORDER + COUNT)
        assert [outcome.content for outcome in info["tool_outcomes"]] == ["[]", f"[[{5 + index}]]"]
        assert env.step(answer(str(6 + index)))[1] == 1.0


def test_in_a_vector() -> None:
    envs = gymnasium.make_vec(ENV_ID, num_envs=4)
    envs.reset(seed=0, options={"task_index": 2})
    envs.step([ORDER, "hm", ORDER + ORDER, COUNT])
    _, _, _, _, infos = envs.step([COUNT] * 4)
    assert [outcomes[0].content for outcomes in infos["tool_outcomes"]] == ["[[7]]", "[[8]]", "[[6]]", "[[8]]"]


def test_the_checker_reports_a_tool_that_always_fails_and_the_log_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_tool_env(WarehouseEnv(), actions=[COUNT, answer("6")])
    with pytest.raises(CheckError, match=r"(?s)calls failed, the first with tool_error: .*thread.*`actions`"):
        check_tool_env(WithTimeoutEnv(), actions=[COUNT, answer("6")])
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "run in threads" in record.getMessage()
