"""SkyRL-Gym: an episode of ours as a `BaseTextEnv`, as SkyRL's generator plays it."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_r1_gym.errors import ConfigurationError, EpisodeError, InfrastructureError, MissingDependencyError
from agent_r1_gym.integrations import skyrl_gym as adapter
from agent_r1_gym.integrations.dataset_rows import write_rows
from tests.kit.foreign import HOTPOTQA, NOTES, SMALL, evaluated, evaluated_hotpotqa, written
from tests.kit.small_env import ANSWER, COUNT, call


@pytest.fixture
def make():
    """Returns what makes an environment of a row and opens it, as SkyRL's generator does."""
    skyrl = pytest.importorskip("skyrl_gym", reason="skyrl-gym is not installed")
    adapter.register()
    adapter.register()

    def opened(row, **more):
        extras = {**row, **more}
        prompt = extras.pop("prompt", [])
        env = skyrl.make(extras.pop("env_class", "agent_r1_gym"), env_config={}, extras=extras)
        messages, _ = env.init(prompt)
        assert not prompt or messages == prompt
        return env

    return opened


def rows_of(path, env, **options):
    write_rows(env, path, library="skyrl_gym", **options)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def played(env, actions):
    steps = [env.step(action) for action in actions]
    metrics = env.get_metrics()
    env.close()
    return steps, metrics


def small(task=1, **options):
    return {"env_id": SMALL, "options": json.dumps(options), "task_index": task, "seed": 0}


@pytest.mark.adapters
def test_the_oracle_scores_what_eval_says(make, tmp_path):
    rows = rows_of(tmp_path / "rows.jsonl", HOTPOTQA[0], options=HOTPOTQA[1], held_out=True, num_rows=50)
    for row, record in zip(rows, evaluated_hotpotqa(tmp_path), strict=True):
        env = make(row, max_turns=20)
        assert env._episode.task.id == record.task_id
        steps, metrics = played(env, [turn.action for turn in record.turns])
        assert metrics["em"] == 1.0
        assert {name: metrics[name] for name in record.reward_terms} == record.reward_terms
        assert [step["reward"] for step in steps] == [turn.reward for turn in record.turns]
        assert [step["metadata"]["reward_terms"] for step in steps] == [turn.reward_terms for turn in record.turns]
        assert [step["done"] for step in steps] == [*[False] * (len(steps) - 1), True]
        assert steps[-1]["metadata"]["end_reason"] == record.end_reason == "answer"


@pytest.mark.adapters
def test_an_environment_without_tasks_plays_its_seeds(make, tmp_path):
    rows = rows_of(tmp_path / "rows.jsonl", "FrozenLakeText", held_out=True, num_rows=5)
    for row, record in zip(rows, evaluated(tmp_path, "FrozenLakeText", questions=5), strict=True):
        steps, metrics = played(make(row), [turn.action for turn in record.turns])
        assert metrics["return"] == record.episode_return == 1.0
        assert steps[0]["observations"][0]["role"] == "user"


@pytest.mark.adapters
@pytest.mark.parametrize(("limit", "ends"), [(1, "max_turns"), (99, "time_limit"), (None, "time_limit")])
def test_the_tighter_limit_holds(make, limit, ends):
    env = make(small(), **({} if limit is None else {"max_turns": limit}))
    assert env.max_turns == (limit if limit == 1 else 3)
    steps, metrics = played(env, [COUNT] * env.max_turns)
    assert (
        steps[-1]["done"] and steps[-1]["metadata"] | {"truncated": True, "end_reason": ends} == steps[-1]["metadata"]
    )
    assert metrics["truncated"] == 1.0
    assert metrics["return"] == sum(step["reward"] for step in steps)


@pytest.mark.adapters
def test_state_of_tools_belongs_to_the_episode(make):
    for _ in range(2):  # the second one gets the environment of the first
        env = make(small())
        assert [env.step(COUNT)["observations"][0]["content"] for _ in range(2)] == ["1", "2"]
        env.close()
    env, other = make(small()), make(small())
    env.step(COUNT)
    assert other.step(COUNT)["observations"][0]["content"] == "1"


@pytest.mark.adapters
def test_a_lost_backend_is_an_exception_and_no_reward(make):
    env = make(small())
    with pytest.raises(
        InfrastructureError, match=r"Stranger/Small-v0 lost a backend in turn 1 of task 't1': echo: unavail"
    ):
        env.step(call("down"))
    assert played(make(small()), [ANSWER])[1]["em"] == 1.0


@pytest.mark.adapters
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"task_index": 0}, "A row needs env_id"),
        ({"env_id": "AgentR1/No-v0", "seed": 0}, "Unknown environment"),
        ({"env_id": SMALL, "task_index": 5}, r"must be in 0\.\.4, got 5"),
        ({"env_id": SMALL, "task_index": 0, "options": '{"colour": 1}'}, "SmallEnv has no option 'colour'"),
        (small(parser="openai"), "SkyRL offers a model no tools"),
    ],
)
def test_a_bad_row_is_one_clear_error(make, row, message):
    with pytest.raises(ConfigurationError, match=message):
        make(row)


@pytest.mark.adapters
def test_options_belong_into_rows(make):
    skyrl = pytest.importorskip("skyrl_gym", reason="skyrl-gym is not installed")
    with pytest.raises(ConfigurationError, match="belong into the rows"):
        skyrl.make("agent_r1_gym", env_config={"max_turns": 3}, extras=small())


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "skyrl_gym", None)
    with pytest.raises(MissingDependencyError, match=r"^skyrl-gym is not installed: pip install skyrl-gym$"):
        adapter.register()


@pytest.mark.adapters
def test_any_thread_may_step_and_a_connection_stays_in_its_own(make):
    row = {"env_id": NOTES, "task_index": 0, "seed": 0, "max_turns": 9}
    for _ in range(2):  # the second environment is the first one again
        with ThreadPoolExecutor(1) as num_rows:
            env = num_rows.submit(make, row).result()
        steps = []
        for number in range(3):
            with ThreadPoolExecutor(1) as other:
                steps.append(other.submit(env.step, written(f"note {number}")).result())
        assert [step["done"] for step in steps] == [False, False, True]
        assert steps[1]["observations"][0]["content"] == "2 notes"
        env.close()
    with pytest.raises(EpisodeError, match=r"after close\(\)"):
        env.step("x")
