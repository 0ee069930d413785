"""ATIF: other people's readers take every exported trajectory as it is, and what their models write is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.core.types import Message
from agent_r1_gym.run.policies import OraclePolicy, PolicyInput
from agent_r1_gym.run.trajectory_files import read_conversations, write_rows
from tests.kit.commands import call
from tests.run.test_trajectory_files import ENVS, WHOLE

atif = pytest.importorskip("atif")
nat = pytest.importorskip("nat.atif", reason="nvidia-nat-atif is not installed")
pytestmark = pytest.mark.adapters


def check(row: dict[str, Any]) -> None:
    """Both readers take a row, and write the same one again."""
    for library in (atif, nat):
        again = library.Trajectory.model_validate(row).model_dump(mode="json", exclude_none=True)
        assert json.loads(json.dumps(again)) == row


def test_conversations_with_everything() -> None:
    bare = replace(WHOLE, id="q2/0", actions=(), rewards=(), metadata={}, tools=())
    odd_turn = Message("user", "😀 <tool_call>\x01 \u202e")
    odd = replace(WHOLE, messages=(WHOLE.messages[0], odd_turn, *WHOLE.messages[2:]))
    for row in write_rows([WHOLE, bare, odd], "atif"):
        check(row)


class Careless(OraclePolicy):
    """The oracle, whose first turn has a call that cannot be read, and an answer."""

    name = "careless"

    def act(self, inputs: Sequence[PolicyInput]) -> list[str]:
        turns = zip(inputs, super().act(inputs), strict=True)
        return [turn if state.turn else f'<tool_call>{{"name": "x",</tool_call>{turn}' for state, turn in turns]


@pytest.mark.parametrize("policy", ["oracle", "tests.integrations.test_atif:Careless"])
@pytest.mark.parametrize("name", ENVS)
def test_episodes_of_environments(name: str, policy: str, run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env, *options = ENVS[name]
    words = [word for option in options for word in ("--option", option)]
    assert call(capsys, "eval", env, *words, "--policy", policy, "-n", "3", "--out", "played")[0] == 0
    assert call(capsys, "data", "export", "played", "--format", "atif", "--out", "out.jsonl")[0] == 0
    rows = Path("out.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(rows) >= 3
    for row in rows:
        check(json.loads(row))


@pytest.mark.parametrize("library", [atif, nat], ids=["atif", "nvidia-nat-atif"])
def test_what_they_write_is_read(library: Any, tmp_path: Path) -> None:
    calls = [{"tool_call_id": str(n), "function_name": "search", "arguments": {"query": "q" * n}} for n in (1, 2)]
    # In another order than the calls.
    results: list[dict[str, Any]] = [{"source_call_id": str(n), "content": f"result {n}"} for n in (2, 1)]
    results.append({"source_call_id": None, "content": "a note"})
    steps: list[dict[str, Any]] = [
        {"step_id": 1, "source": "system", "message": "Search."},
        {"step_id": 2, "source": "user", "message": [{"type": "text", "text": "Who?"}]},
        {"step_id": 3, "source": "agent", "message": "Two.", "tool_calls": calls, "observation": {"results": results}},
        {
            "step_id": 4,
            "source": "agent",
            "message": "Ann.",
            "reasoning_content": "Now.",
            "timestamp": "2026-11-28",
        },
    ]
    written = library.Trajectory(
        schema_version="ATIF-v1.7", session_id="s", agent={"name": "a", "version": "1"}, steps=steps
    )
    file = tmp_path / "theirs.json"
    file.write_text(written.model_dump_json(), encoding="utf-8")
    (read,) = read_conversations(file)
    assert (read.question, read.turns) == ("Who?", 2)
    assert [(message.role, message.content) for message in read.messages[3:6]] == [
        *(("tool", "result 2"), ("tool", "result 1"), ("user", "a note")),
    ]
    assert read.messages[-1] == Message("assistant", "<think>Now.</think>Ann.")
