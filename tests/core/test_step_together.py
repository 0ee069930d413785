"""`step_together` and vectors over wrapped environments of any kind."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector.utils import iterate
from gymnasium.wrappers import RecordEpisodeStatistics, StickyAction, TimeLimit, TransformReward

from agent_r1_gym.core.vector import ToolVectorEnv, step_together
from agent_r1_gym.errors import ActionTypeError, ConfigurationError, EpisodeError
from agent_r1_gym.registry import register
from agent_r1_gym.wrappers import ChooseAction, ContextWindow, MessageObservation, TokenObservation
from tests.kit.helpers import BatchTool, RegisteredEnv, answer, call, info_of, make_env, make_envs

SIZE = 3


class Alone(gymnasium.Wrapper):
    """Overrides `step`: it may change the action."""

    def step(self, action: Any) -> Any:
        return self.env.step(action.lower())


class Shout(gymnasium.ActionWrapper):
    def action(self, action: str) -> str:
        return action.replace("quiet", "loud")


class Numbered(gymnasium.ActionWrapper):
    """An action space of numbers, as classical learners have it."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.action_space = gymnasium.spaces.Discrete(2)

    def action(self, action: int) -> str:
        return [call("echo", text="zero"), answer("Paris")][int(action)]


def sticky(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return StickyAction(env, 0.5)


def shifted(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return TransformReward(env, lambda reward: float(reward) + 100)


def limited(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return RecordEpisodeStatistics(TimeLimit(env, 2))


def numbers(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return TokenObservation(env, lambda text: list(text.encode()), max_tokens=64, vocab_size=256, pad_id=0)


WRAPS: dict[str, list[Any]] = {
    "limited": [limited],
    "window": [ContextWindow],
    "messages": [MessageObservation],
    "tokens, rewards": [numbers, shifted],
    "actions": [Shout, limited],
    "random actions": [sticky],
    "unknown": [Alone],
}


def without_times(info: dict[str, Any]) -> dict[str, Any]:
    return {**info, "episode": {**info["episode"], "t": None}} if "episode" in info else info


@pytest.mark.parametrize("wraps", WRAPS.values(), ids=WRAPS.keys())
def test_a_vector_of_wrapped_environments_returns_what_single_ones_return(wraps: list[Any]) -> None:
    def wrapped() -> list[gymnasium.Env[Any, Any]]:
        envs: list[Any] = list(make_envs(SIZE, max_turns=4))
        for wrap in wraps:
            envs = [wrap(env) for env in envs]
        return envs

    vector, singles = ToolVectorEnv(wrapped(), autoreset_mode="Disabled"), wrapped()
    observations, _ = vector.reset(seed=5)
    expected = [env.reset(seed=5 + index)[0] for index, env in enumerate(singles)]
    turns = [call("echo", text="quiet") + call("count"), "quiet", call("count"), answer("yes")]
    for turn in range(len(turns)):
        for index, observation in enumerate(iterate(vector.observation_space, observations)):
            assert data_equivalence(observation, expected[index])
        actions = [turns[(turn + index) % len(turns)] for index in range(SIZE)]
        steps = [env.step(action) for env, action in zip(singles, actions, strict=True)]
        observations, rewards, terminations, truncations, infos = vector.step(actions)
        expected = [step[0] for step in steps]
        assert [step[1:4] for step in steps] == list(zip(rewards, terminations, truncations, strict=True))
        own = [without_times(info_of(infos, index)) for index in range(SIZE)]
        assert own == [without_times(step[4]) for step in steps]
        if (terminations | truncations).any():
            break


@pytest.mark.parametrize("wraps", [[limited], [ContextWindow, shifted], [Shout, limited], [sticky]])
def test_calls_of_wrapped_environments_are_one_batch(wraps: list[Any]) -> None:
    tool = BatchTool()
    envs: list[Any] = list(make_envs(4, tools=[tool]))
    for wrap in wraps:
        envs = [wrap(env) for env in envs]
    vector = ToolVectorEnv(envs)
    vector.reset(seed=0)
    _, _, _, _, infos = vector.step([call("echo", text=text) for text in ("quiet", "b", "quiet", "c")])
    assert tool.batches == [3]
    assert "loud" in tool.executed if Shout in wraps else "quiet" in tool.executed
    assert [len(outcomes) for outcomes in infos["tool_outcomes"]] == [1] * 4


def test_numbers_as_actions() -> None:
    vector = ToolVectorEnv([Numbered(env) for env in make_envs(SIZE)])
    vector.reset(seed=0, options={"task_index": 0})
    _, rewards, _, _, infos = vector.step(np.array([0, 1, 0]))
    assert rewards.tolist() == [0.0, 1.0, 0.0]
    assert [len(outcomes) for outcomes in infos["tool_outcomes"]] == [1, 0, 1]
    with pytest.raises(ActionTypeError, match="Expected 3 actions"):
        vector.step(np.array([0, 1]))


def test_chosen_actions_are_one_batch() -> None:
    tool = BatchTool()
    candidates = [call("echo", text="a"), call("echo", text="b"), answer("Paris")]

    def wrapped(**options: Any) -> list[Any]:
        envs = make_envs(3, reward="em", **options)
        return [ChooseAction(TimeLimit(env, 4), candidates, observations="tokens") for env in envs]

    vector, singles = ToolVectorEnv(wrapped(tools=[tool])), wrapped()
    vector.reset(seed=0, options={"task_index": 0})
    for env in singles:
        env.reset(seed=0, options={"task_index": 0})
    for actions in ([0, 1, 0], [2, 0, 1]):
        observations, rewards, terminations, _, infos = vector.step(np.array(actions))
        steps = [env.step(action) for env, action in zip(singles, actions, strict=True)]
        assert [step[0].tolist() for step in steps] == observations.tolist()
        assert [step[1:3] for step in steps] == list(zip(rewards, terminations, strict=True))
        assert infos["action_mask"].tolist() == [[1, 1, 1]] * 3
    vector.reset(seed=0)
    with pytest.raises(ConfigurationError, match="The action 7 is not in"):
        step_together(vector.envs, [0, 1, 7])
    assert vector.get_attr("transitions") == ((),) * 3
    assert tool.batches == [2, 2]


def test_environments_of_any_kind_are_stepped_together() -> None:
    class Plain(gymnasium.Env[str, str]):
        def step(self, action: str) -> Any:
            return action * 2, 1.0, True, False, {}

    tool = BatchTool()
    envs: list[Any] = [*make_envs(2, tools=[tool]), Alone(make_env(tools=[tool])), Plain()]
    for env in envs[:3]:
        env.reset(seed=0)
    steps = step_together(envs, [call("echo", text=text) for text in "ab"] + [call("echo", text="c"), "x"])
    assert [[outcome.content for outcome in step[4]["tool_outcomes"]] for step in steps[:3]] == [
        ["echo a"],
        ["echo b"],
        ["echo c"],
    ]
    assert tool.batches == [2, 1]
    assert steps[3] == ("xx", 1.0, True, False, {})


def test_a_wrapper_that_declares_but_does_not_forward_the_action_is_reported() -> None:
    class Liar(Alone):
        forwards_action = True

    envs = [Liar(env) for env in make_envs(2)]
    for env in envs:
        env.reset(seed=0)
    with pytest.raises(EpisodeError, match="prepared for the action 'ABC'"):
        step_together(envs, ["ABC", "abc"])


def test_make_vec_wraps_each_environment() -> None:
    name = "AgentR1Test/Wrapped-v0"
    register(name, RegisteredEnv)
    try:
        vector = gymnasium.make_vec(name, num_envs=2, env_wrappers=[ContextWindow, limited])
        assert isinstance(vector, ToolVectorEnv)
        assert "TimeLimit<ContextWindow" in str(vector.envs[0])
        assert vector.get_attr("max_turns") == (5, 5)
        vector.set_attr("max_turns", 7)
        assert vector.envs[1].unwrapped.max_turns == 7  # type: ignore[attr-defined]
    finally:
        gymnasium.registry.pop(name)


def test_a_limit_of_gymnasium_cuts_without_an_end_of_ours() -> None:
    name = "AgentR1Test/Limited-v0"
    register(name, RegisteredEnv)
    try:
        assert gymnasium.spec(name).max_episode_steps is None
        env = gymnasium.make(name, max_episode_steps=1)
        env.reset(seed=0)
        _, _, terminated, truncated, info = env.step("hm")
        assert (terminated, truncated, info["end_reason"]) == (False, True, None)
    finally:
        gymnasium.registry.pop(name)


def test_different_spaces_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"environment 1 has .*UnicodeText\(1000\).*first .*65536"):
        ToolVectorEnv(make_envs(1) + make_envs(1, max_history_chars=1_000))
