"""Classes for TRL's `environment_factory`, played here."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from agent_r1_gym.audit.audit import audit
from agent_r1_gym.audit.target import Settings, Target
from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.env_checker import check_tool_env
from agent_r1_gym.envs.trl_class import TRLClassEnv, is_trl_class
from agent_r1_gym.errors import ConfigurationError, DatasetError

ROWS = [{"prompt": "Reach ", "goal": 2}, {"prompt": [{"role": "user", "content": "Go to "}], "goal": 1}]


class Ship:
    """Sails to a number."""

    def reset(self, goal: int = 2, **row: Any) -> str | None:
        self.place, self.goal = 0, goal
        return f"{goal}."

    def sail(self, miles: int) -> str:
        """Sail on.

        Args:
            miles: how far.
        """
        self.place += miles
        return f"You are at {self.place}."

    async def look(self) -> str:
        """Look where you are."""
        return f"You are at {self.place}."

    def get_reward(self) -> float:
        return float(self.place == self.goal)

    def _private(self) -> None:
        raise AssertionError


class Lax(Ship):
    """Pays everyone."""

    def get_reward(self) -> float:
        return 1.0


class Forgetful(Ship):
    """Sails on from where the last episode ended."""

    def __init__(self) -> None:
        self.place = 0

    def reset(self, goal: int = 2, **row: Any) -> str | None:
        self.goal = goal
        return f"{goal}."


class Equipped(Ship):
    """Has more than methods."""

    @property
    def depth(self) -> int:
        raise AssertionError("evaluated")

    @staticmethod
    def greet(name: str) -> str:
        """Greet someone.

        Args:
            name: whom.
        """
        return f"Ahoy, {name}."

    @classmethod
    def build(cls) -> Ship:
        return cls()


def play(env: TRLClassEnv, *calls: ToolCall, index: int = 0) -> tuple[str, list[str], float]:
    observation, _ = env.reset(options={"task_index": index})
    contents = []
    for call in calls:
        info = env.step(env.parser.format_call(call))[4]
        contents += [outcome.content for outcome in info["tool_outcomes"]]
    _, reward, terminated, *_ = env.step("I have arrived.")
    assert terminated
    return observation, contents, reward


def test_methods_are_tools_and_get_reward_is_the_reward() -> None:
    env = TRLClassEnv(factory=Ship, rows=ROWS)
    observation, contents, reward = play(env, ToolCall("sail", {"miles": 2}), ToolCall("look", {}))
    assert "Reach 2." in observation
    assert (contents, reward) == (["You are at 2.", "You are at 2."], 1.0)
    assert [schema["function"]["name"] for schema in env.tool_schemas] == ["look", "sail"]
    observation, _, reward = play(env, ToolCall("sail", {"miles": 2}), index=1)
    assert "Go to 1." in observation
    assert reward == 0.0 == env.success(env.task, env.transitions)


def test_one_instance_plays_all_episodes() -> None:
    made: list[Ship] = []

    def factory() -> Ship:
        made.append(Forgetful())
        return made[-1]

    env = TRLClassEnv(factory=factory, rows=ROWS)
    contents = [play(env, ToolCall("sail", {"miles": 2}))[1] for _ in range(2)]
    assert contents == [["You are at 2."], ["You are at 4."]]  # as in TRL, which constructs once and resets often
    assert len(made) == 1
    double = copy.deepcopy(env)
    assert play(double, ToolCall("sail", {"miles": 1}))[1] == ["You are at 5."]
    assert play(env, ToolCall("look", {}))[1] == ["You are at 4."]


def test_the_methods_are_those_that_trl_finds() -> None:
    env = TRLClassEnv(factory=Equipped, rows=ROWS)
    _, contents, _ = play(env, ToolCall("greet", {"name": "Ada"}))
    assert [schema["function"]["name"] for schema in env.tool_schemas] == ["greet", "look", "sail"]
    assert contents == ["Ahoy, Ada."]


@pytest.mark.filterwarnings("ignore:The snapshot does not contain")
def test_it_fulfils_the_contract() -> None:
    check_tool_env(TRLClassEnv(factory=Ship, rows=ROWS))


def test_a_truncated_episode_is_rewarded() -> None:
    env = TRLClassEnv(factory=Ship, rows=ROWS, max_turns=1)
    env.reset(options={"task_index": 1})
    _, reward, _, truncated, _ = env.step(env.parser.format_call(ToolCall("sail", {"miles": 1})))
    assert (reward, truncated) == (1.0, True)


def test_what_is_missing_is_named() -> None:
    class NoReward:
        def reset(self) -> None: ...

    class Undocumented(Ship):
        def dive(self, depth: int) -> str:
            return ""

    with pytest.raises(ConfigurationError, match="NoReward has no method get_reward"):
        TRLClassEnv(factory=NoReward)
    with pytest.raises(ConfigurationError, match="object has no method reset"):
        TRLClassEnv(factory=object)
    with pytest.raises(ConfigurationError, match="dive needs a docstring"):
        TRLClassEnv(factory=Undocumented)
    with pytest.raises(DatasetError, match="row 0: prompt must be a string, or messages"):
        TRLClassEnv(factory=Ship, rows=[{"prompt": 3}])
    with pytest.raises(DatasetError, match="has no rows"):
        TRLClassEnv(factory=Ship, rows=[])
    assert [is_trl_class(each) for each in (Ship, TRLClassEnv, Ship(), dict)] == [True, False, False, False]


def test_an_audit_takes_a_class_and_its_rows(tmp_path: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    statuses = {}
    for name in ("Ship", "Lax"):
        target = Target(f"tests.envs.test_trl_class:{name}", {"rows": str(path)})
        report = audit(target, Settings(episodes=2), rules=["contract", "not_hackable"])
        statuses[name] = [result.status for result in report.results if result.rule in ("contract", "not_hackable")]
    assert statuses["Ship"][0] == statuses["Lax"][0] == "pass"
    assert statuses["Lax"][1] == "warning"  # not an error, since the class has no oracle
    assert statuses["Ship"][1] == "not run"  # no player without a model is paid, and the maximum is not known
    assert f"TRLClassEnv(factory=Lax, rows={str(path)!r})" in target.code()


def test_an_audit_finds_what_reset_forgets(tmp_path: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, status in (("Ship", "pass"), ("Forgetful", "error")):
        target = Target(f"tests.envs.test_trl_class:{name}", {"rows": str(path)})
        report = audit(target, Settings(episodes=2), rules=["same_seed"])
        assert [result.status for result in report.results if result.rule == "same_seed"] == [status]
