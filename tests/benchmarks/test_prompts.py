"""The benchmark of prompts: its word problems, and what it counts as a valid and as a right first call."""

import json
from pathlib import Path
from typing import Any

from agent_r1_gym.core.types import Message
from benchmarks.prompts import REMINDERS, Cell, first_calls, later_turns
from tests.kit.data import write_jsonl


class FakeModel:
    """Writes the same turn in every chat."""

    markup = ("<|im_end|>",)

    def __init__(self, turn: str) -> None:
        self.turn = turn
        self.tokenizer = self

    def complete(self, texts: list[str], *, batch: int) -> list[str]:
        return [self.turn for _ in texts]

    def text(self, messages: list[Message]) -> str:
        return " ".join(message.content for message in messages)

    def __call__(self, text: str) -> dict[str, list[str]]:
        return {"input_ids": text.split()}


def cell(folder: Path) -> Cell:
    rows = [
        {"input": f"{name} has 7 cups and breaks 2 of them. How many are left?", "target": 5} for name in ("Cy", "Di")
    ]
    svamp = {"Body": "Ann has 3 pens", "Question": "How many are 2 more?", "Equation": "( 3.0 + 2.0 )", "Answer": 5.0}
    (folder / "svamp.json").write_text(json.dumps([svamp, {**svamp, "Body": "Bo has 3 pens."}]))
    train = {"dataset": str(write_jsonl(folder / "train.jsonl", rows))}
    return Cell("SVAMP", "SVAMP", {"dataset": str(folder / "svamp.json"), "split": "test"}, train)


def test_a_call_is_valid_if_it_would_run_and_right_if_it_gives_the_answer(tmp_path: Path) -> None:
    for turn, valid, right in (
        ('<tool_call>{"name": "calculator", "arguments": {"expression": "3 + 2"}}</tool_call>', 2, 2),
        ('<tool_call>{"name": "calculator", "arguments": {"expression": "3 - 2"}}</tool_call>', 2, 0),
        ('<tool_call>{"name": "calculator", "arguments": {"expression": "pens"}}</tool_call>', 2, 0),
        ('<tool_call>{"name": "calculator", "arguments": {"sum": "3 + 2"}}</tool_call>', 0, 0),
        ("<answer>5</answer>", 0, 0),
    ):
        model: Any = FakeModel(turn)
        row = first_calls(model, cell(tmp_path), "signature", 1, 2, batch=2)
        assert (row["valid"], row["right"]) == (valid, right), turn
        assert row["answered"] == 2 * turn.startswith("<answer>")
    without = first_calls(model, cell(tmp_path), "signature", 0, 2, batch=2)
    assert without["prompt_tokens"] < row["prompt_tokens"]


def test_feedback_counts_the_turns_after_a_mistake(tmp_path: Path) -> None:
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "3 + 2"}}</tool_call>'
    for turn, played in (("Hm.", 6), (call, 0), ("<answer>5</answer>", 0)):
        model: Any = FakeModel(turn)
        for reminder in REMINDERS:
            row = later_turns(model, cell(tmp_path), 0, reminder=reminder, questions=2, batch=2)
            assert (row["turns"], row["calls"], row["repeated"]) == (played, 0, played)
