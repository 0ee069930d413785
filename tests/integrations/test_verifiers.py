"""verifiers: `vf-eval` plays our tasks, and the trace holds every reward term with our weight."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent_r1_gym.errors import ConfigurationError, InfrastructureError, MissingDependencyError
from agent_r1_gym.integrations import verifiers as adapter
from tests.kit.foreign import HOTPOTQA, SMALL, chat_server, evaluated, evaluated_hotpotqa
from tests.kit.small_env import ANSWER, COUNT, TASKS, call

ROOT = Path(__file__).parents[2]
MODULE = """from agent_r1_gym.integrations.verifiers import AgentR1Env, AgentR1Harness, AgentR1Taskset
__all__ = ["AgentR1Env", "AgentR1Harness", "AgentR1Taskset"]
"""


# --- with verifiers --------------------------------------------------------------------------------------------------


@pytest.fixture
def vf_eval(tmp_path):
    """Returns what runs `vf-eval` against a server, and returns the episodes by task id."""
    pytest.importorskip("verifiers", reason="verifiers is not installed")
    (tmp_path / "agent_r1_tasks.py").write_text(MODULE)

    def run(url, env_id, *words):
        model = ["-m", "oracle", "--client.base-url", url, "--client.api-key-var", "NO_KEY"]
        program = [str(Path(sys.executable).parent / "vf-eval"), "agent_r1_tasks", "--env.taskset.env-id", env_id]
        here = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "NO_KEY": "x"}
        done = subprocess.run(
            [*program, *model, "--no-push", "--no-rich", "-o", str(tmp_path / "out"), *words],
            env=here,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        traces = list(tmp_path.glob("out/*/traces.jsonl"))
        lines = traces[0].read_text(encoding="utf-8").splitlines() if traces else []
        return done, {line["task"]["data"]["id"]: line for line in map(json.loads, lines)}

    return run


@pytest.mark.adapters
def test_the_oracle_scores_what_eval_says(vf_eval, tmp_path):
    records = evaluated_hotpotqa(tmp_path)
    options = ["--env.taskset.options", json.dumps(HOTPOTQA[1]), "--env.taskset.held-out", "true", "-n", "50"]
    with chat_server({record.question: [turn.action for turn in record.turns] for record in records}) as url:
        done, episodes = vf_eval(url, HOTPOTQA[0], *options)
    assert done.returncode == 0, done.stderr
    assert sorted(episodes) == sorted(record.task_id for record in records)
    for record in records:
        (trace,) = episodes[record.task_id]["traces"]
        scores = {name: reward["score"] for name, reward in trace["rewards"].items()}
        assert scores == record.reward_terms
        paid = sum(reward["score"] * reward["weight"] for reward in trace["rewards"].values())
        assert paid == pytest.approx(record.episode_return)
        assert trace["metrics"]["em"] == 1.0
        assert trace["info"]["end_reason"] == record.end_reason
        assert [turn["reward"] for turn in trace["info"]["turns"]] == [turn.reward for turn in record.turns]


@pytest.mark.adapters
def test_a_lost_backend_fails_its_episode_and_no_other(vf_eval):
    turns = {TASKS[0].prompt: [call("down")], TASKS[1].prompt: [COUNT, ANSWER], TASKS[2].prompt: [COUNT, COUNT, COUNT]}
    with chat_server(turns) as url:
        _, episodes = vf_eval(url, f"tests.kit.foreign:{SMALL}", "-n", "3", "--env.player.max-turns", "2")
    assert not episodes["t0"]["ok"]
    assert episodes["t0"]["errors"][0]["message"].count("the backend is down") == 1
    assert episodes["t0"]["traces"][0]["rewards"] == {}
    assert episodes["t1"]["traces"][0]["rewards"]["em"] == {"score": 1.0, "weight": 1.0}
    cut = episodes["t2"]["traces"][0]["info"]  # by verifiers' own limit
    assert (cut["terminated"], cut["truncated"], cut["end_reason"]) == (False, True, "max_turns")


@pytest.mark.adapters
@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("AgentR1/No-v0", {}, "Unknown environment 'AgentR1/No-v0'"),
        ("AgentR1/FictionQA-v0", {"question": 1}, "FictionQAEnv has no option 'question'"),
    ],
)
def test_what_does_not_fit_is_one_clear_error(vf_eval, env_id, options, message):
    done, episodes = vf_eval("http://127.0.0.1:9/v1", env_id, "--env.taskset.options", json.dumps(options), "-n", "2")
    assert done.returncode != 0
    assert message in done.stderr + done.stdout
    assert episodes == {}


# --- without ---------------------------------------------------------------------------------------------------------


def config(env_id, *, held_out=False, **options):
    return SimpleNamespace(env_id=env_id, options=options, held_out=held_out)


class Agents:
    """One player, who says what is in a script, or is over."""

    def __init__(self, turns, stop_condition=None):
        self.player, self._turns = self, iter(turns)
        rewards: dict[str, tuple[float, float]] = {}
        self.heard: list[list[dict[str, str]]] = []
        self.trace = SimpleNamespace(
            has_error=False,
            stop_condition=stop_condition,
            info={},
            rewards=rewards,
            record_reward=lambda name, score, weight: rewards.update({name: (score, weight)}),
            record_metrics=lambda metrics: None,
        )

    @contextlib.asynccontextmanager
    async def interaction(self, task):
        yield self

    async def turn(self, messages=None):
        self.heard += [messages] if messages else []
        reply = next(self._turns, None)
        return SimpleNamespace(terminated=reply is None, last_reply=reply)


def run(fields, agents):
    asyncio.run(adapter._Env().run(SimpleNamespace(data=SimpleNamespace(**fields)), agents))
    return agents.trace


def test_an_environment_without_tasks_plays_its_seeds(tmp_path):
    tasks = adapter._tasks(config("FrozenLakeText", held_out=True))
    records = evaluated(tmp_path, "FrozenLakeText", questions=3)
    for record, fields in zip(records, itertools.islice(tasks, 3), strict=True):
        assert fields["system_prompt"] is None and isinstance(fields["prompt"], str)
        trace = run(fields, Agents([turn.action for turn in record.turns]))
        assert trace.rewards == {"reward": (1.0, 1.0)}


def test_tools_speak_as_the_user(tmp_path):
    fields = next(adapter._tasks(config(SMALL)))
    agents = Agents([COUNT, COUNT, "<answer>0</answer>"])
    trace = run(fields, agents)
    assert agents.heard == [[{"role": "user", "content": "1"}], [{"role": "user", "content": "2"}]]
    assert trace.rewards["em"] == (1.0, 1.0)


def test_an_episode_that_is_cut_earns_what_its_end_earns():
    trace = run(next(adapter._tasks(config(SMALL))), Agents([COUNT], stop_condition="max_output_tokens"))
    assert trace.info["end_reason"] == "max_output_tokens"
    assert trace.info["truncated"] and trace.rewards["em"][0] == 0.0


def test_a_run_that_failed_gets_no_reward():
    agents = Agents([COUNT])
    agents.trace.has_error = True
    assert run(next(adapter._tasks(config(SMALL))), agents).rewards == {}
    with pytest.raises(InfrastructureError, match="the backend is down"):
        run(next(adapter._tasks(config(SMALL))), Agents([call("down"), ANSWER]))


def test_an_environment_must_be_named():
    with pytest.raises(ConfigurationError, match=r"--env\.taskset\.env-id"):
        next(adapter._tasks(config("")))


@pytest.mark.parametrize("parser", ["openai", "native"])
def test_calls_that_are_no_text_are_refused(parser):
    with pytest.raises(ConfigurationError, match=f"parser='{parser}' .* verifiers offers a model no tools"):
        next(adapter._tasks(config(SMALL, parser=parser)))


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    importlib.reload(adapter)  # it keeps what it has made
    with pytest.raises(MissingDependencyError, match=r"^verifiers is not installed: pip install verifiers$"):
        adapter.AgentR1Taskset  # noqa: B018 - made when named
