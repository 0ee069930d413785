"""What tests of adapters compare with: the oracle's run of `agent-r1 eval`, and an environment of a stranger."""

from __future__ import annotations

from pathlib import Path

import gymnasium

from agent_r1_gym.cli.main import main
from agent_r1_gym.evaluation.run_folder import RunFolder
from agent_r1_gym.play.record import Trajectory

SMALL = "Stranger/Small-v0"
"""An environment of a user's own, with a stateful tool, below a wrapper of the registration."""
HOTPOTQA = ("AgentR1/HotpotQA-v0", {"dataset": "sample", "reward": "process"})

if SMALL not in gymnasium.registry:
    gymnasium.register(SMALL, "tests.kit.small_env:SmallEnv", max_episode_steps=3, order_enforce=False)


def evaluated(folder: Path, env: str, *words: str, questions: int = 50) -> list[Trajectory]:
    """Returns the oracle's episodes of the held-out questions, in the order of the questions."""
    run = folder / "eval"
    status = main(["eval", env, "--policy", "oracle", "-n", str(questions), "--out", str(run), *words])
    assert status == 0
    records = sorted(RunFolder(run).episodes(), key=lambda record: record.task_index)
    assert len(records) == questions
    return records


def evaluated_hotpotqa(folder: Path) -> list[Trajectory]:
    """Returns the oracle's 50 episodes that every adapter has to repeat."""
    return evaluated(folder, HOTPOTQA[0], "--dataset", "sample", "--reward", "process")
