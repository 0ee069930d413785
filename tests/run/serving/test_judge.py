"""A served agent as the judge of another one: its server takes a judge's requests."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import pytest

from agent_r1_gym.core.judge import Judge
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.envs.maths.env import ArithmeticEnv
from agent_r1_gym.run.conversation import EngineWorker
from agent_r1_gym.run.engines import ScriptedEngine
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.policies import Policy, PolicyInput
from agent_r1_gym.run.serving.server import ServedAgent, ServerLimits, create_app
from tests.kit.helpers import TASKS, answer
from tests.kit.serving import running


class Grader(Policy):
    """Accepts episodes with Paris, in JSON without any tag."""

    name = "grader"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        accepts = ["Paris" in state.messages[-1].content for state in inputs]
        return [f'{{"reason": "It names it.", "verdict": "{"yes" if ok else "no"}"}}' for ok in accepts]


def make_env() -> ToolEnv:
    return ArithmeticEnv(tools="none", system_prompt="", plain_turn="answer")  # as in docs/judges.md


def test_a_served_agent_judges(capsys: pytest.CaptureFixture[str]) -> None:
    with closing(EngineWorker(Player(make_env), ScriptedEngine(Grader(), max_concurrent=4))) as worker:
        agent = ServedAgent(engine_worker=worker, name="grader", sampling={"temperature": 0.0, "top_p": 1.0})
        with running(lambda: create_app(agent, limits=ServerLimits()), request_timeout=5.0) as url:
            judge = Judge("The answer is right.", model="grader", endpoint=f"{url}/v1", retries=0)
            for text, reward in (("Paris", 1.0), ("Rome", 0.0)):
                env = ToolEnv(tasks=TASKS[:1], reward=judge)
                env.reset(seed=0)
                step = env.step(answer(text))
                assert (step[1], step[4]["infrastructure_error"]) == (reward, None)
    notes = capsys.readouterr().err
    assert "takes no 'response_format'" in notes and "takes no 'max_tokens'; it is no longer sent" in notes
