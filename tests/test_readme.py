"""What README and docs say of their examples holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.kit.pages import PAGES, blocks

_README = PAGES["README.md"]
_BLOCKS = [block.text for block in blocks("README.md", "python")]


def test_own_environment_is_shown_in_under_forty_lines() -> None:
    block = next(block for block in _BLOCKS if "class ProductEnv" in block)
    assert len([line for line in block.splitlines() if line.strip()]) < 40


def test_own_environment_plays_and_passes_the_checker() -> None:
    from agent_r1_gym.env_checker import check_tool_env

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


def test_own_files_are_read_as_shown(tmp_path: Path) -> None:
    import gymnasium

    import agent_r1_gym.envs  # noqa: F401  # registers the environments
    from agent_r1_gym.retrieval.store import read_corpus

    (question,) = (block.text for block in blocks("docs/environments/index.md", "json"))
    (passage,) = (block.text for block in blocks("docs/retrievers.md", "json"))
    without_facts = {name: value for name, value in json.loads(question).items() if name != "supporting_facts"}
    (tmp_path / "mine.jsonl").write_text(question + "\n" + json.dumps(without_facts | {"_id": "q2"}), encoding="utf-8")
    env = gymnasium.make("AgentR1/HotpotQA-v0", dataset=str(tmp_path / "mine.jsonl"), top_k=1)
    for index in range(2):
        observation, _ = env.reset(options={"task_index": index})
        assert "In which country was Ana Kovic born?" in observation
        _, _, _, _, info = env.step('<tool_call>{"name": "search", "arguments": {"query": "Ana Kovic"}}</tool_call>')
        assert "born in Lanburg" in info["new_messages"][-1].content
        assert env.step("<answer>Norland</answer>")[1] == 1.0
    (tmp_path / "corpus.jsonl").write_text(passage, encoding="utf-8")
    assert [found.title for found in read_corpus(tmp_path / "corpus.jsonl")] == ["Ana Kovic"]
