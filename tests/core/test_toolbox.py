"""Tools that keep something for one episode: opened by the first call, closed when the episode ends."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import pytest

from agent_r1_gym import ConfigurationError, Task, Tool, ToolEnv, check_tool_env
from agent_r1_gym.core.parsing import OpenAIParser
from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.support.resource_scope import ResourceScope
from tests.kit.helpers import EchoTool, call, make_env
from tests.kit.processes import in_processes

TASKS = (Task("0", "Go.", ("x",)),)


class Page:
    """A connection that notes what becomes of it."""

    def __init__(self, journal: list[str]) -> None:
        self.journal, self.visits = journal, 0
        journal.append("open")

    def close(self) -> None:
        self.journal.append("close")


class Visit(Tool):
    """Counts the visits of an episode, together with other tools of the same journal."""

    per_episode = True

    def __init__(self, name: str, journal: list[str]) -> None:
        super().__init__(name, "Visits.", {"type": "object", "properties": {}}, timeout=None)
        self.journal = journal

    def execute(self, arguments: Mapping[str, Any]) -> str:
        page = self.resources.get("page", lambda: Page(self.journal))
        page.visits += 1
        return str(page.visits)


def made(**options: Any) -> tuple[ToolEnv, list[str]]:
    journal: list[str] = []
    env = ToolEnv(tasks=TASKS, tools=[Visit("one", journal), Visit("two", journal)], **options)
    env.reset(seed=0)
    return env, journal


def visit(env: Any, name: str = "one") -> str:
    turn = f"<tool_call>{json.dumps({'name': name, 'arguments': {}})}</tool_call>"
    return str(env.step(turn)[4]["tool_outcomes"][0].content)


def test_tools_of_an_episode_share_what_the_first_call_opens() -> None:
    env, journal = made()
    assert journal == []
    assert [visit(env), visit(env, "two"), visit(env)] == ["1", "2", "3"]
    assert journal == ["open"]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["answer", "limit", "truncate", "reset", "close", "collected"])
def test_every_end_of_an_episode_closes_it(end: str) -> None:
    env, journal = made(max_turns=2)
    visit(env)
    if end == "answer":
        env.step("<answer>x</answer>")
    elif end == "limit":
        visit(env)
    elif end == "collected":
        del env
        gc.collect()
    else:
        getattr(env, end)()
    assert journal == ["open", "close"]


def test_the_next_episode_has_one_of_its_own() -> None:
    env, journal = made()
    visit(env)
    env.reset()
    assert visit(env) == "1"
    assert journal == ["open", "close", "open"]


def test_environments_may_share_the_tools() -> None:
    journal: list[str] = []
    tools = [Visit("one", journal)]
    first, second = (ToolEnv(tasks=TASKS, tools=tools) for _ in range(2))
    for env in (first, second):
        env.reset(seed=0)
        assert visit(env) == "1"
    first.close()
    assert journal == ["open", "open", "close"]
    assert visit(second) == "2"


def test_an_outside_limit_closes_it_at_the_next_reset() -> None:
    env, journal = made()
    limited = gymnasium.wrappers.TimeLimit(env, 1)
    limited.reset()
    visit(limited)
    limited.reset()
    assert journal == ["open", "close"]


def test_a_snapshot_returns_to_an_episode_that_has_opened_nothing() -> None:
    env, journal = made()
    state = env.get_state()
    visit(env)
    env.set_state(state)
    assert visit(env) == "1"
    assert journal == ["open", "close", "open"]


class Counter(EchoTool):
    """Counts its calls, and keeps no state."""

    def execute(self, arguments: Mapping[str, Any]) -> str:
        super().execute(arguments)
        return str(len(self.executed))


class Keeper(Visit):
    """Keeps the page in snapshots, for all tools that share it."""

    def get_state(self) -> int:
        return self.resources.get("page", lambda: Page(self.journal)).visits

    def set_state(self, state: int) -> None:
        self.resources.get("page", lambda: Page(self.journal)).visits = state


@pytest.mark.parametrize(
    ("tool", "warning"),
    [
        (Visit("echo", []), "what echo changed: set_state.. creates these tools again"),
        (Counter(deterministic=False), "what echo changed: set_state.. leaves these tools as they are"),
        (EchoTool(deterministic=True), None),
        (Keeper("echo", []), None),
    ],
)
def test_a_snapshot_says_what_tools_of_the_constructor_lose(tool: Tool, warning: str | None) -> None:
    env = ToolEnv(tasks=TASKS, tools=[tool])
    env.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.get_state()  # nothing was called
        env.step(call("echo", text="x"))
        if warning is None:
            env.get_state()
    if warning is not None:
        with pytest.warns(UserWarning, match=warning):
            env.get_state()


def test_one_tool_may_keep_the_state_of_what_all_share() -> None:
    journal: list[str] = []
    env = ToolEnv(tasks=TASKS, tools=[Visit("one", journal), Keeper("two", journal)])
    env.reset(seed=0)
    visit(env)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        state = env.get_state()
    visit(env)
    env.set_state(state)
    assert visit(env) == "2"


def test_the_checker_accepts_such_tools() -> None:
    check_tool_env(ToolEnv(tasks=TASKS, tools=[Echo()]))


class Echo(Tool):
    per_episode = True

    def __init__(self) -> None:
        super().__init__("echo", "Echoes.", {"type": "object", "properties": {}})

    def execute(self, arguments: Mapping[str, Any]) -> str:
        self.resources.get("page", lambda: Page([]))
        return "echo"


def test_two_tools_with_one_name_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Two tools have the same name"):
        ToolEnv(tasks=TASKS, tools=[Echo(), Echo()])


# --- resource scopes --------------------------------------------------------------------------------------------------


def test_what_was_opened_last_is_closed_first_whatever_closing_raises(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Page):
        def close(self) -> None:
            super().close()
            raise OSError("stuck")

    journal: list[str] = []
    life = ResourceScope()
    life.get(1, lambda: Page(journal))
    life.get(2, lambda: Stuck(journal))
    life.close()
    life.close()
    assert journal == ["open", "open", "close", "close"]
    assert "Stuck did not close: stuck" in caplog.text


def test_what_is_opened_too_late_is_closed_at_once() -> None:
    journal: list[str] = []
    life = ResourceScope()

    def late() -> Page:
        life.close()  # the episode ends while a call that was given up still opens something
        return Page(journal)

    for _ in range(2):
        with pytest.raises(InfrastructureError, match="has ended"):
            life.get(1, late)
    assert journal == ["open", "close"]


def test_a_fork_opens_its_own_only_if_nothing_was_open() -> None:
    fresh, used = ResourceScope(), ResourceScope()
    used.get(1, lambda: Page([]))
    assert in_processes("fork", opened, [(fresh,), (used,)]) == ["opened", "What this episode had opened"]


def opened(life: ResourceScope) -> str:
    try:
        life.get(1, lambda: Page([]))
    except InfrastructureError as error:
        return str(error)[:28]
    return "opened"


# --- replaced tools ---------------------------------------------------------------------------------------------------


class Loud(EchoTool):
    """Returns capitals."""

    def execute(self, arguments):
        return super().execute(arguments).upper()


def test_replaced_tools_are_those_of_one_episode() -> None:
    env = make_env(tools=[EchoTool()])
    contents = []
    for replaces in (False, True, False):
        env.reset(options={"task_index": 0})
        if replaces:
            env.toolbox.replace(lambda tool: Loud(tool.name))
        contents.append(env.step(call("echo", text="x"))[4]["tool_outcomes"][0].content)
    assert contents == ["echo x", "ECHO X", "echo x"]


def test_the_system_turn_can_be_written_in_another_format() -> None:
    env = make_env(tools=[EchoTool()])
    _, info = env.reset(options={"task_index": 0})
    assert env.system_text(env.parser) == info["messages"][0].content
    assert "<tools>" in info["messages"][0].content and "<tools>" not in env.system_text(OpenAIParser())
