"""AgentR1/ServiceDesk-v0: its scripts, its contract, and its options."""

from __future__ import annotations

import json
import pickle
from typing import Any

import gymnasium
import pytest

import agent_r1_gym.envs  # noqa: F401 - registers the environments
from agent_r1_gym.core.types import Task, Thought, ToolCall, Transition
from agent_r1_gym.env_checker import check_tool_env
from agent_r1_gym.envs.service_desk.env import ServiceDeskEnv
from agent_r1_gym.envs.service_desk.world import Scenario, Ticket
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.player import evaluation_jobs
from agent_r1_gym.run.session import Session
from tests.kit.environments import every_setting, play_ticket, tickets

# --- scripts ---------------------------------------------------------------------------------------------------------


@every_setting
@pytest.mark.parametrize("split", ["train", "validation", "test", "ood"])
def test_the_oracle_solves_everything(options: dict[str, Any], split: str) -> None:
    env = ServiceDeskEnv(tickets=40, split=split, **options)
    assert [play_ticket(env, index)[0] for index in range(40)] == [1.0] * 40


@pytest.mark.slow
@every_setting
def test_the_oracle_solves_a_thousand_tickets_of_another_seed(options: dict[str, Any]) -> None:
    env = ServiceDeskEnv(tickets=1_000, world_seed=11, **options)
    assert sum(play_ticket(env, index)[0] for index in range(1_000)) == 1_000


@pytest.mark.parametrize("difficulty", [1, 2, 3])
@pytest.mark.slow
def test_a_perfect_clerk_always_has_enough_turns(difficulty: int) -> None:
    """Whatever fails upstream: a plan in which every fault costs a turn fits."""
    env = ServiceDeskEnv(difficulty=difficulty, tickets=1_000)
    plans = [ticket for ticket in env.tasks if isinstance(ticket, Ticket)]
    faults = max(len(ticket.scenario.faults) for ticket in plans)
    assert faults == (3 if difficulty > 1 else 0)
    assert max(len(ticket.plan) for ticket in plans) + faults <= env.max_turns


@every_setting
@pytest.mark.parametrize("number", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_near_misses_fail_more_often_than_not(options: dict[str, Any], number: int) -> None:
    env = ServiceDeskEnv(tickets=number, **options)
    shares = {}
    for name, script in env.scripts.items():
        solved = 0.0
        for index in range(number):
            env.reset(options={"task_index": index})
            ended = False
            while not ended:
                turn = script(env, env.task, env.transitions)
                assert isinstance(turn, ToolCall)
                _, _, terminated, truncated, info = env.step(env.parser.format_call(turn))
                ended = terminated or truncated
                solved += info["outcome_reward"]
        shares[name] = solved / number
    near_misses = {name: share for name, share in shares.items() if name != "beginner"}
    assert max(near_misses.values()) < (0.5 if number > 100 else 0.65), shares
    assert 0.25 < shares["beginner"] < 0.55
    assert shares["lazy"] < (0.3 if number > 100 else 0.4)
    assert shares["promising"] == 0.0  # what is only promised is never worth anything


def test_a_session_s_record_has_whether_the_ticket_was_solved() -> None:
    env = gymnasium.make("AgentR1/ServiceDesk-v0", tickets=3)
    for script, solved in (("oracle", True), ("lazy", False)):
        session = Session(env, evaluation_jobs([1])[0])
        while not session.ended:
            turn = session.state().scripts[script]()
            assert isinstance(turn, ToolCall | Thought)
            action = session.state().format.format_turn(turn)
            session.record_step(action, env.step(action))
        record = session.record()
        assert record.solved is solved
        assert dict(record.scores) == {"em": float(solved)}
        assert record.labels.keys() == {"request", "decision", "rules"}


# --- the contract ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@every_setting
def test_it_passes_the_suite_s_checker(options: dict[str, Any]) -> None:
    check_tool_env(ServiceDeskEnv(**options))


def test_the_tools_and_what_is_shown_know_no_gold() -> None:
    env = ServiceDeskEnv()
    env.reset(seed=0)
    assert isinstance(env.task, Ticket)
    values = [value for tool in env.episode_tools for value in vars(tool).values()]
    values += [value for thing in values if hasattr(thing, "__dict__") for value in vars(thing).values()]
    assert any(isinstance(value, Scenario) for value in values)
    assert not any(isinstance(value, Task) for value in values)
    assert b"Gold" not in pickle.dumps(env.task.scenario)


def test_a_foreign_task_is_refused() -> None:
    env = ServiceDeskEnv()
    with pytest.raises(ConfigurationError, match="plays its own tickets"):
        env.reset(options={"task": Task("0", "hello", ("x",))})


@pytest.mark.parametrize("reward", ["agent_r1", "f1"])
def test_a_reward_that_scores_answers_is_refused(reward: str) -> None:
    with pytest.raises(ConfigurationError, match="no gold answer"):
        ServiceDeskEnv(reward=reward).reset(seed=0)


def few_turns(transition: Transition) -> float:
    """A user's own term."""
    return float(transition.terminated and transition.turn < 5)


def test_the_usual_rewards_can_be_added_to() -> None:
    for reward in (["em", few_turns], ("em", few_turns)):
        env = gymnasium.make("AgentR1/ServiceDesk-v0", reward=reward).unwrapped
        assert isinstance(env, ServiceDeskEnv)
        assert env.reward_weights == {"solved": 1.0, "few_turns": 1.0}
        assert json.loads(env.spec.to_json())["kwargs"]["reward"] if env.spec else False
    weights = ServiceDeskEnv(reward=["process"], reward_weights={"verified": 0}).reward_weights
    assert weights == {
        "solved": 1.0,
        "verified": 0.0,
        "correct_write": 0.2,
        "forbidden_write": -0.2,
        "malformed_call": -0.1,
    }


def test_an_escaped_json_survives() -> None:
    env = ServiceDeskEnv()
    index, ticket = next(tickets(env, decision="granted", request="address"))
    address = ticket.gold.writes[0].arguments["address"]
    env.reset(options={"task_index": index})
    for call in ticket.plan[:-2]:
        env.step(env.parser.format_call(call))
    escaped = "".join(f"\\u{ord(character):04x}" for character in address)
    order = json.dumps(ticket.gold.writes[0].arguments["order"])
    body = f'{{"name": "change_address", "arguments": {{"order": {order}, "address": "{escaped}"}}}}'
    env.step(f"<tool_call>{body}</tool_call>")
    assert env.step(env.parser.format_call(ticket.plan[-1]))[1] == 1.0
