"""The README's examples run, and its claims about them hold."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

_README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
_BLOCKS = re.findall(r"^```python\n(.*?)^```", _README, re.M | re.S)


@pytest.mark.parametrize("block", _BLOCKS, ids=lambda block: block.split("\n", 1)[0][:40])
def test_python_block_runs_in_a_fresh_process(block: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", block], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_own_environment_is_shown_in_under_forty_lines() -> None:
    block = next(block for block in _BLOCKS if "class ProductEnv" in block)
    assert len([line for line in block.splitlines() if line.strip()]) < 40


def test_own_environment_plays_and_passes_the_checker() -> None:
    from agent_r1_gym.checker import check_tool_env

    block = next(block for block in _BLOCKS if "class ProductEnv" in block)
    scope: dict[str, object] = {"__name__": "readme_example"}
    exec(block, scope)
    env = scope["ProductEnv"]()  # type: ignore[operator]
    check_tool_env(env)
    _, info = env.reset(options={"task_index": 0})
    factors = re.findall(r"\d+", env.task.prompt)
    call = '<tool_call>{"name": "multiply", "arguments": {"a": %s, "b": %s}}</tool_call>' % tuple(factors)
    _, _, _, _, info = env.step(call)
    _, reward, terminated, _, _ = env.step(f"<answer>{info['tool_outcomes'][0].content}</answer>")
    assert reward == 1.0
    assert terminated


def test_documented_commands_exist() -> None:
    from agent_r1_gym.cli.main import build_parser

    text = build_parser().format_help()
    for command in re.findall(r"agent-r1 ([a-z][a-z-]+)", _README):
        assert command in text, command


def test_own_files_are_read_as_shown(tmp_path: Path) -> None:
    import gymnasium

    import agent_r1_gym.envs  # noqa: F401  # registers the environments
    from agent_r1_gym.retrieval.corpus import read_corpus

    question, passage = re.findall(r"^```json\n(.*?)^```", _README, re.M | re.S)
    without_facts = {name: value for name, value in json.loads(question).items() if name != "supporting_facts"}
    (tmp_path / "mine.jsonl").write_text(question + json.dumps(without_facts | {"_id": "q2"}), encoding="utf-8")
    env = gymnasium.make("AgentR1/HotpotQA-v0", dataset=str(tmp_path / "mine.jsonl"), top_k=1)
    for index in range(2):
        observation, _ = env.reset(options={"task_index": index})
        assert "In which country was Ana Kovic born?" in observation
        _, _, _, _, info = env.step('<tool_call>{"name": "search", "arguments": {"query": "Ana Kovic"}}</tool_call>')
        assert "born in Lanburg" in info["new_messages"][-1].content
        assert env.step("<answer>Norland</answer>")[1] == 1.0
    (tmp_path / "corpus.jsonl").write_text(passage, encoding="utf-8")
    assert [found.title for found in read_corpus(tmp_path / "corpus.jsonl")] == ["Ana Kovic"]
