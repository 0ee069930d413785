"""ToolVectorEnv: N environments stepped together return what they return alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.vector import ToolVectorEnv, batch_infos
from agent_r1_gym.errors import ActionTypeError, AgentR1Error, ConfigurationError, EpisodeError
from agent_r1_gym.registry import VectorEntryPoint, register
from agent_r1_gym.run.policies import OraclePolicy
from tests.kit.helpers import (
    TASKS,
    BatchTool,
    EchoTool,
    GivenTool,
    MeetingTool,
    RegisteredEnv,
    answer,
    call,
    info_of,
    make_env,
    make_envs,
    play,
)

MODES = [mode.value for mode in AutoresetMode]


scripts = st.sampled_from(
    [
        "talk",
        "",
        answer("Paris"),
        answer("yes"),
        call("echo", text="a"),
        call("echo", text="b") + call("count") + call("echo", text="a"),
        call("count"),
        call("nope"),
        "<tool_call>{</tool_call>",
        "x" * 70_000,
    ]
)


SIZE = 3


class Reference:
    """One single environment under one autoreset mode, as Gymnasium's documentation words it."""

    def __init__(self, env: ToolEnv, mode: str) -> None:
        self.env = env
        self.mode = mode
        self.ended = False

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any], Any]:
        final = None
        if self.ended and self.mode == "NextStep":
            observation, info = self.env.reset()
            self.ended = False
            return observation, 0.0, False, False, info, None
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.ended = terminated or truncated
        if self.ended and self.mode == "SameStep":
            final = (observation, info)
            observation, info = self.env.reset()
        return observation, reward, terminated, truncated, info, final


@pytest.mark.parametrize("mode", MODES)
@given(turns=st.lists(st.tuples(*[scripts] * SIZE), max_size=10), seed=st.integers(0, 1_000))
@settings(max_examples=40, deadline=None)
@pytest.mark.slow
def test_a_vector_returns_what_single_environments_return(mode: str, turns: list[tuple[str, ...]], seed: int) -> None:
    vector = ToolVectorEnv(make_envs(SIZE, reward="process"), autoreset_mode=mode)
    references = [Reference(env, mode) for env in make_envs(SIZE, reward="process")]
    observations, infos = vector.reset(seed=seed)
    singles = [reference.env.reset(seed=seed + index) for index, reference in enumerate(references)]
    assert observations == tuple(observation for observation, _ in singles)
    assert [info_of(infos, index) for index in range(SIZE)] == [info for _, info in singles]
    for actions in turns:
        observations, rewards, terminations, truncations, infos = vector.step(actions)
        for index, reference in enumerate(references):
            observation, reward, terminated, truncated, info, final = reference.step(actions[index])
            assert observations[index] == observation
            assert (rewards[index], terminations[index], truncations[index]) == (reward, terminated, truncated)
            got = info_of(infos, index)
            assert (got.pop("final_obs", None), got.pop("final_info", None)) == (final or (None, None))
            assert got == info
        if mode == "Disabled" and (terminations | truncations).any():
            mask = terminations | truncations
            observations, infos = vector.reset(options={"reset_mask": mask})
            for index in map(int, np.flatnonzero(mask)):
                observation, info = references[index].env.reset()
                assert (observations[index], info_of(infos, index)) == (observation, info)


def test_shapes_and_types() -> None:
    vector = ToolVectorEnv(make_envs(SIZE))
    observations, _ = vector.reset(seed=0)
    assert observations in vector.observation_space
    observations, rewards, terminations, truncations, infos = vector.step([answer("yes")] * SIZE)
    assert observations in vector.observation_space
    assert (rewards.dtype, terminations.dtype, truncations.dtype) == (np.float64, np.bool_, np.bool_)
    assert rewards.shape == terminations.shape == truncations.shape == (SIZE,)
    assert infos["task_id"].shape == (SIZE,)
    assert vector.action_space.sample() in vector.action_space


class Folding(VectorEnv[Any, Any, Any]):
    """Gymnasium's own batching of infos."""

    def fold(self, infos: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
        self.num_envs, batched = len(infos), dict[str, Any]()
        for index, info in enumerate(infos):
            batched = self._add_info(batched, info or {}, index)
        return batched


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key])
    else:
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert [repr(value) for value in ours] == [repr(value) for value in theirs]


MASK = np.array([1, 0], dtype=np.int8)


@pytest.mark.parametrize(
    "infos",
    [
        [{"mask": MASK}, {"mask": 1 - MASK}],
        [None, {"mask": MASK}, {}],
        [{"score": np.float32(0.5)}, None, {"score": np.float32(0.25)}],
        [{"score": np.int16(5)}, {"score": np.int16(7)}],
        [{"score": 0.5, "turn": 1, "won": True}, {"turn": 2}, None],
        [{"score": None}, {"score": 0.5}],
        [{"score": 0.5}, {"score": None}],
        [{"terms": {"em": 0.5, "vector": np.zeros(2)}}, {"terms": {"em": 1.0}}, {}],
        [{"names": ("a", "b")}, {"names": ("c", "d")}, {"flag": np.bool_(True)}],
        [{"final_obs": np.zeros(2), "final_info": {"turn": 3}}, {}],
        [{"box": np.zeros((2, 3)), "number": np.array(5)}, {"box": np.ones((2, 3))}],
    ],
)
def test_infos_are_batched_as_gymnasium_does(infos: list[dict[str, Any] | None]) -> None:
    assert_same(batch_infos(infos), Folding().fold(infos))


def test_infos_that_gymnasium_cannot_batch_are_objects() -> None:
    for values in ([1, None], [np.zeros(2), np.zeros(3)], [np.zeros(2), None], [1, "a"]):
        batched = batch_infos([{"value": value} for value in values])
        assert batched["value"].dtype == object
        assert [repr(value) for value in batched["value"]] == [repr(value) for value in values]
        assert batched["_value"].tolist() == [True, True]


def test_arrays_of_an_earlier_step_do_not_change() -> None:
    vector = ToolVectorEnv(make_envs(SIZE))
    vector.reset(seed=0)
    observations, _, terminations, _, _ = vector.step([answer("yes")] * SIZE)
    kept = (observations, terminations.copy())
    vector.step(["x"] * SIZE)
    assert (observations, terminations.tolist()) == (kept[0], kept[1].tolist())


def test_seeds_one_for_all_or_one_each() -> None:
    vector = ToolVectorEnv(make_envs(SIZE))
    vector.reset(seed=5)
    assert vector.np_random_seed == (5, 6, 7)
    vector.reset(seed=[3, None, 1])
    assert vector.np_random_seed == (3, 6, 1)
    vector.reset(seed=np.int64(4))  # type: ignore[arg-type]
    assert vector.np_random_seed == (4, 5, 6)
    vector.reset(seed=np.array([1, 2, 3]))  # type: ignore[arg-type]
    assert vector.np_random_seed == (1, 2, 3)
    for wrong in ([1], [1, 2, 3, 4], []):
        with pytest.raises(ConfigurationError, match=f"Expected one seed or 3 seeds, got {len(wrong)}"):
            vector.reset(seed=wrong)


def test_a_mask_resets_some_and_leaves_the_others() -> None:
    vector = ToolVectorEnv(make_envs(SIZE), autoreset_mode="Disabled")
    vector.reset(seed=0)
    before, *_ = vector.step([answer("no"), "talk", answer("no")])
    mask = np.array([True, False, False])
    after, infos = vector.reset(options={"reset_mask": mask, "task_index": 1})
    assert TASKS[1].prompt in after[0]
    assert after[1:] == before[1:]
    assert infos["_task_id"].tolist() == [True, False, False]
    assert mask.tolist() == [True, False, False]
    with pytest.raises(EpisodeError):
        vector.step(["x"] * SIZE)
    vector.reset(options={"reset_mask": np.array([False, False, True])})
    _, _, _, _, infos = vector.step(["x"] * SIZE)
    assert infos["turn"].tolist() == [1, 2, 1]


def test_wrong_masks_are_refused() -> None:
    for mask in [[True], [True] * 4, [1, 0, 1], np.zeros(3, dtype=bool), "all", [[True, True, True]], np.array(True)]:
        vector = ToolVectorEnv(make_envs(SIZE))
        vector.reset(seed=0)
        with pytest.raises(ConfigurationError, match="reset_mask"):
            vector.reset(options={"reset_mask": mask})


def test_options_of_a_reset_reach_every_environment() -> None:
    vector = ToolVectorEnv(make_envs(SIZE))
    _, infos = vector.reset(options={"task_index": 2})
    assert infos["task_id"].tolist() == ["t2"] * SIZE
    with pytest.raises(ConfigurationError, match="Did you mean 'task_index'"):
        vector.reset(options={"task_indx": 2})


def test_step_needs_a_reset() -> None:
    for mode in MODES:
        with pytest.raises(EpisodeError, match="reset"):
            ToolVectorEnv(make_envs(SIZE), autoreset_mode=mode).step(["x"] * SIZE)


def test_all_calls_of_a_step_are_one_batch_and_duplicates_are_executed_once() -> None:
    tool = BatchTool()
    vector = ToolVectorEnv(make_envs(6, tools=[tool]))
    vector.reset(seed=0)
    actions = [call("echo", text=text) for text in ("a", "b", "a")]
    _, _, _, _, infos = vector.step([*actions, call("echo", text="c") + call("echo", text="a"), "talk", call("nope")])
    assert tool.batches == [4 - 1]
    assert sorted(tool.executed) == ["a", "b", "c"]
    contents = [[outcome.content for outcome in outcomes] for outcomes in infos["tool_outcomes"]]
    assert contents[:5] == [["echo a"], ["echo b"], ["echo a"], ["echo c", "echo a"], []]
    vector.step(["talk"] * 6)
    assert tool.batches == [3]


def test_tools_with_side_effects_are_called_for_every_environment() -> None:
    tool = EchoTool(deterministic=False)
    vector = ToolVectorEnv(make_envs(4, tools=[tool]))
    vector.reset(seed=0)
    vector.step([call("echo", text="a")] * 4)
    assert tool.executed == ["a"] * 4


@pytest.mark.parametrize("shared", [True, False])
def test_slow_tools_of_64_environments_run_side_by_side(shared: bool) -> None:
    meeting = threading.Barrier(64)
    one = MeetingTool(meeting)
    vector = ToolVectorEnv([make_env(tools=[one if shared else MeetingTool(meeting)]) for _ in range(64)])
    vector.reset(seed=0)
    infos = vector.step([call("sleep", text=str(index)) for index in range(64)])[4]
    assert [outcomes[0].content for outcomes in infos["tool_outcomes"]] == [f"met {index}" for index in range(64)]


def test_wrong_actions_leave_every_environment_as_it_was() -> None:
    for actions in [
        "abc",
        ["a", "b"],
        ["a"] * 4,
        ["a", 5, "c"],
        ["a", None, "c"],
        ["a", b"b", "c"],
        [],
        None,
        5,
        {"a", "b", "c"},
        iter("abc"),
    ]:
        vector = ToolVectorEnv(make_envs(SIZE))
        vector.reset(seed=0)
        before = vector.call("get_state")
        with pytest.raises(ActionTypeError):
            vector.step(actions)
        assert vector.call("get_state") == before
        assert vector.step(("a", "b", "c"))[4]["turn"].tolist() == [1, 1, 1]


def test_arrays_and_tuples_of_strings_are_actions() -> None:
    vector = ToolVectorEnv(make_envs(SIZE))
    vector.reset(seed=0)
    assert vector.step(np.array(["a", "b", "c"]))[4]["turn"].tolist() == [1, 1, 1]  # type: ignore[arg-type]


def test_a_programmers_mistake_in_one_tool_leaves_all_environments_usable() -> None:
    vector = ToolVectorEnv(make_envs(SIZE, tools=[EchoTool(), GivenTool(ConfigurationError("broken"))]))
    vector.reset(seed=0)
    before = vector.call("get_state")
    with pytest.raises(ConfigurationError, match="broken"):
        vector.step([call("echo", text="a"), call("given"), answer("x")])
    assert vector.call("get_state") == before
    assert vector.step(["a", "b", "c"])[4]["turn"].tolist() == [1, 1, 1]


def test_wrong_vectors_are_refused() -> None:
    for build in [
        lambda: ToolVectorEnv([]),
        lambda: ToolVectorEnv(make_envs(1) + make_envs(1, max_history_chars=1_000)),
        lambda: ToolVectorEnv(make_envs(1) * 2),
        lambda: ToolVectorEnv(make_envs(1), autoreset_mode="Sometimes"),
        lambda: VectorEntryPoint(make_env)(0),
        lambda: VectorEntryPoint(make_env)(True),
        lambda: VectorEntryPoint(make_env)(2, max_turn=3),
    ]:
        with pytest.raises(ConfigurationError):
            build()


def test_registered_environments_are_made_single_and_as_a_vector() -> None:
    name = "AgentR1Test/Registered-v0"
    register(name, RegisteredEnv, kwargs={"max_turns": 2})
    try:
        single = gymnasium.make(name, system_prompt="")
        assert isinstance(single, RegisteredEnv)
        assert single.max_turns == 2
        vector = gymnasium.make_vec(name, num_envs=4, max_turns=3)
        assert isinstance(vector, ToolVectorEnv)
        assert (vector.num_envs, vector.get_attr("max_turns")) == (4, (3,) * 4)
        assert vector.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
        with pytest.raises(ConfigurationError, match="Did you mean 'max_turns'"):
            gymnasium.make_vec(name, num_envs=4, max_turn=3)
    finally:
        gymnasium.registry.pop(name)


def test_attributes_of_all_environments() -> None:
    vector = ToolVectorEnv(make_envs(SIZE, render_mode="ansi"))
    vector.reset(seed=0)
    vector.set_attr("max_turns", 9)
    assert vector.get_attr("max_turns") == (9, 9, 9)
    vector.set_attr("max_turns", [1, 2, 3])
    assert vector.call("max_turns") == (1, 2, 3)
    with pytest.raises(AgentR1Error, match="3 values"):
        vector.set_attr("max_turns", [1])
    assert all("[user]" in text for text in vector.render())


def test_closing_closes_every_environment_once() -> None:
    closed: list[int] = []

    class Closing(RegisteredEnv):
        def close(self) -> None:
            closed.append(id(self))
            super().close()

    envs: Sequence[ToolEnv] = [Closing() for _ in range(SIZE)]
    vector = ToolVectorEnv(envs)
    vector.close()
    vector.close()
    assert closed == [id(env) for env in envs]


class Taxed(ToolEnv):
    """Overrides `step`, which must not be skipped, and reads actions in its own way."""

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = super().step(action.replace("Rome", "Paris"))
        return observation, reward - 0.25, terminated, truncated, info


@pytest.mark.parametrize("wrap", [lambda env: env, lambda env: TimeLimit(env, 3)])
def test_a_step_of_ones_own_counts_in_a_vector_and_in_an_evaluation(wrap: Any) -> None:
    envs = [wrap(Taxed(tasks=TASKS[:1], tools=[EchoTool()])) for _ in range(2)]
    vector = ToolVectorEnv(envs)
    vector.reset(seed=0)
    assert vector.step([call("echo", text="Rome"), answer("Rome")])[1].tolist() == [-0.25, 0.75]
    [record] = play(OraclePolicy(), [0], lambda: wrap(Taxed(tasks=TASKS[:1])))
    assert record.episode_return == 0.75


@pytest.mark.parametrize("limit", [1, None])
def test_no_environment_is_stepped_beyond_an_end_that_was_not_reset(limit: int | None) -> None:
    envs = make_envs(2) if limit is None else [TimeLimit(env, limit) for env in make_envs(2)]
    vector = ToolVectorEnv(envs, autoreset_mode="Disabled")
    vector.reset(seed=0)
    actions = ["talk", answer("x") if limit is None else "talk"]
    vector.step(actions)
    turns = [env.unwrapped.transitions for env in envs]
    with pytest.raises(EpisodeError, match=r"ended in environments \[1\]" if limit is None else r"\[0, 1\]"):
        vector.step(actions)
    assert [env.unwrapped.transitions for env in envs] == turns
    vector.reset(options={"reset_mask": np.array([True, True])})
    vector.step(["talk", "talk"])


def test_a_vector_takes_the_limit_that_make_takes() -> None:
    vector = VectorEntryPoint(make_env)(2, max_episode_steps=2, tasks=TASKS)
    vector.reset(seed=0)
    assert [vector.step(["talk", "talk"])[3].tolist() for _ in range(2)] == [[False, False], [True, True]]
