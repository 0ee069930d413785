"""The benchmark of prompts: its word problems, and what it counts as a valid and as a right first call."""

import json
import re
from pathlib import Path
from typing import Any

from agent_r1_gym.core.types import Message
from benchmarks.prompts import REMINDERS, Cell, first_calls, later_turns
from tests.kit.data import write_jsonl

NAMES = ("Cy", "Di", "Ed", "Flo")


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


def test_of_several_draws_of_shots_the_best_on_training_tasks_is_taken(tmp_path: Path) -> None:
    class Prefers(FakeModel):
        """Calls only after the shot on the cups of Di."""

        def complete(self, texts: list[str], *, batch: int) -> list[str]:
            first = [re.findall(r"(\w+) has 7 cups", text)[0] for text in texts]
            return [self.turn if name == "Di" else "Hm." for name in first]

    model: Any = Prefers('<tool_call>{"name": "calculator", "arguments": {"expression": "3 + 2"}}</tool_call>')
    made = cell(tmp_path)
    rows = [{"input": f"{name} has 7 cups and breaks 2 of them. How many are left?", "target": 5} for name in NAMES]
    made = made._replace(shots_from={"dataset": str(write_jsonl(tmp_path / "more.jsonl", rows))})
    row = first_calls(model, made, "signature", 1, 2, batch=2, draws=12)
    best = row["valid_on_training"]
    assert (len(best), max(best), best[row["shots_seed"]], row["valid"]) == (12, 1, 1, 2)


def test_feedback_counts_the_turns_after_a_mistake(tmp_path: Path) -> None:
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "3 + 2"}}</tool_call>'
    for turn, played in (("Hm.", 6), (call, 0), ("<answer>5</answer>", 0)):
        model: Any = FakeModel(turn)
        for reminder in REMINDERS:
            row = later_turns(model, cell(tmp_path), 0, reminder=reminder, questions=2, batch=2)
            assert (row["turns"], row["calls"], row["repeated"]) == (played, 0, played)
