"""Rewards put together: presets, terms and functions, weights, bounds, what is refused."""

import json
import math
import pickle
from typing import Any, ClassVar

import numpy as np
import pytest

from agent_r1_gym.core.rewards import REWARD_PRESETS, RewardSet, RewardTerm, make_rewards, valid_call
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import (
    Task,
    Transition,
)
from agent_r1_gym.errors import ConfigurationError
from tests.core.test_rewards import GOOD_CALL, Turn, episode
from tests.kit.helpers import TASKS, EchoTool, answer, call


def test_weights_override_single_terms() -> None:
    rewards = make_rewards("process", {"valid_call": 2, "em": 0.0})
    assert rewards.weights["valid_call"] == 2.0
    assert rewards.weights["malformed_call"] == -0.1
    reward, terms, *_ = rewards.evaluate(episode(GOOD_CALL)[0])
    assert (reward, terms["valid_call"]) == (2.0, 1.0)
    assert rewards.range == pytest.approx((-0.2, 2.2))


def test_a_negative_weight_turns_the_bounds_around() -> None:
    assert RewardTerm("x", lambda _: 0.0, -2.0, low=-1.0, high=3.0).range == (-6.0, 2.0)


def test_terms_of_ones_own() -> None:
    brevity = RewardTerm("brevity", lambda transition: float(len(transition.earlier) < 2), 0.5)
    rewards = make_rewards((brevity,), {"brevity": 0.25})
    assert isinstance(rewards, RewardSet)
    assert rewards.evaluate(episode(GOOD_CALL)[0]) == (0.25, {"brevity": 1.0}, 0.25, None)
    assert make_rewards(rewards).weights == {"brevity": 0.25}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_term_that_returns_no_finite_number_is_refused_by_name(value: float) -> None:
    with pytest.raises(ConfigurationError, match="'odd'"):
        make_rewards((RewardTerm("odd", lambda _: value),)).evaluate(episode(GOOD_CALL)[0])


def test_no_terms_are_no_reward() -> None:
    reward, terms, *_ = make_rewards(()).evaluate(episode(GOOD_CALL)[0])
    assert (float(reward), terms) == (0.0, {})


def test_scorers_by_name() -> None:
    steps = episode(Turn(answer="The sum is #### 72.0"), task=Task("t", "p", ("#### 72",)))
    assert make_rewards("em", scorer="gsm8k").evaluate(steps[0])[0] == 1.0
    assert make_rewards("em", scorer="hotpotqa").evaluate(steps[0])[0] == 0.0


def test_wrong_rewards_are_refused() -> None:
    for arguments, message in [
        ({"reward": "proces"}, "Did you mean 'process'"),
        ({"reward": "em", "scorer": "hotpotq"}, "Did you mean 'hotpotqa'"),
        (
            {"reward": "process", "weights": {"valid_cal": 1.0}},
            "Did you mean 'valid_call'",
        ),
        ({"reward": "em", "weights": {"em": math.nan}}, "finite"),
        ({"reward": "em", "weights": {"em": math.inf}}, "finite"),
        ({"reward": "em", "weights": {"em": 10**400}}, "finite"),
        ({"reward": "em", "weights": {"em": True}}, "finite"),
        ({"reward": "em", "weights": {"em": "1"}}, "finite"),
        ({"reward": "em", "weights": {1: 1.0}}, "unknown term"),
        ({"reward": "em", "weights": [1.0]}, "weights"),
        ({"reward": (RewardTerm("x", lambda _: 0.0),) * 2}, "the same name"),
        ({"reward": (RewardTerm("x", lambda _: 0.0, math.nan),)}, "finite"),
        ({"reward": ("em", "emm")}, "Did you mean 'em'"),
        ({"reward": ("em", 5)}, "several of these; got 5"),
        ({"reward": lambda _: 1.0}, "a named function"),
        ({"reward": "no_such_module:term"}, "'no_such_module:term' cannot be loaded"),
        ({"reward": "math:tauu"}, "'math:tauu' cannot be loaded"),
        ({"reward": "math:tau"}, "several of these; got 6.28"),
        ({"reward": None}, "reward"),
        ({"reward": 5}, "reward"),
        ({"reward": "em", "scorer": 5}, "scorer"),
        ({"reward": "em", "scorer": None}, "scorer"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            make_rewards(**arguments)  # type: ignore[arg-type]


def used_tool(transition: Transition) -> float:
    return float(bool(transition.parsed.calls))


POLITE = RewardTerm("polite", lambda _: 1.0, -0.5, kind="process")


def test_presets_terms_and_functions_add_up() -> None:
    rewards = make_rewards(["em", POLITE, used_tool, f"{__name__}:POLITE_TOO"], {"used_tool": 0.25})
    assert rewards.weights == {"em": 1.0, "polite": -0.5, "used_tool": 0.25, "polite_too": 2.0}
    assert [term.kind for term in rewards.terms] == ["outcome", "process", "outcome", "outcome"]
    first, *_ = episode(GOOD_CALL)
    assert rewards.evaluate(first).terms == {"em": 0.0, "polite": 1.0, "used_tool": 1.0, "polite_too": 1.0}
    assert make_rewards(used_tool).weights == make_rewards(f"{__name__}:used_tool").weights == {"used_tool": 1.0}


def test_a_term_may_return_any_kind_of_number() -> None:
    for value in [np.float32(0.5), np.float64(0.5), True, 1, np.int64(1)]:
        reward, terms, *_ = make_rewards(RewardTerm("any", lambda _, value=value: value)).evaluate(
            episode(GOOD_CALL)[0]
        )
        assert (reward, terms) == (float(value), {"any": float(value)})
        assert json.dumps(terms)


@pytest.mark.parametrize("value", [None, "many", [1.0]])
def test_a_term_that_returns_no_number_is_named(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"'any' must return a number, got"):
        make_rewards(RewardTerm("any", lambda _: value)).evaluate(episode(GOOD_CALL)[0])


POLITE_TOO = RewardTerm("polite_too", lambda _: 1.0, 2.0)


def test_kinds_of_terms() -> None:
    kinds = {term.name: term.kind for term in make_rewards("process").terms}
    assert kinds.pop("em") == "outcome"
    assert set(kinds.values()) == {"process"}
    with pytest.raises(ConfigurationError, match="Did you mean 'process'"):
        RewardTerm("x", lambda _: 0.0, kind="proces")  # type: ignore[arg-type]


def test_the_outcome_of_a_step_is_the_part_of_its_outcome_terms() -> None:
    steps = episode(GOOD_CALL, Turn(answer="Lovelace"))
    rewards = make_rewards("process", {"em": 3.0})
    assert [rewards.evaluate(step).outcome for step in steps] == [0.0, 3.0]
    assert [rewards.evaluate(step).reward for step in steps] == pytest.approx([0.05, 3.0])


class EchoingEnv(ToolEnv):
    ECHOED = RewardTerm("echoed", valid_call, 0.5)
    reward_presets: ClassVar = {"em": (ECHOED, RewardTerm("why", lambda _: 7.0, 0.0)), "process": ("em", ECHOED)}


def test_an_environment_has_presets_of_its_own_which_decide_success() -> None:
    for reward, names in (
        ("em", ["echoed", "why"]),
        ("process", ["em", "echoed"]),
        (["f1", "em"], ["f1", "echoed", "why"]),
    ):
        env = EchoingEnv(tasks=TASKS, tools=[EchoTool()], reward=reward)
        assert [term.name for term in env.rewards.terms] == names
        assert env.success(TASKS[0], ()) == 0.0
        env.reset(options={"task_index": 0})
        env.step(call("echo", text="hi"))
        assert env.success(env.task, env.transitions) == 0.5
        env.step(answer("Paris"))
        assert env.success(env.task, env.transitions) == 0.0  # the last step decides
    assert ToolEnv(tasks=TASKS).success(TASKS[0], ()) is None


def test_rewards_pickle() -> None:
    for preset in REWARD_PRESETS:
        for scorer in ["hotpotqa", "musique", "gsm8k"]:
            rewards = make_rewards(preset, scorer=scorer)
            steps = episode(GOOD_CALL, Turn(answer="Lovelace"))
            again = pickle.loads(pickle.dumps(rewards))
            assert [again.evaluate(step) for step in steps] == [rewards.evaluate(step) for step in steps]
