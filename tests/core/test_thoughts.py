"""Reasoning of every family's spelling hides calls and answers, and cannot be forged by foreign text."""

import random

import pytest

from agent_r1_gym.core.parsing import THOUGHT_MARKS, make_parser, visible_text
from agent_r1_gym.core.text import sanitize

CALL = '<tool_call>{"name": "erase", "arguments": {"folder": "/"}}</tool_call>'


@pytest.mark.parametrize("marks", THOUGHT_MARKS, ids=lambda marks: marks[0])
class TestEverySpelling:
    def test_no_call_runs_from_reasoning(self, marks: tuple[str, str]) -> None:
        opening, closing = marks
        for open_mark in (opening, opening.upper(), opening.title()):
            turn = make_parser("hermes").parse(f"{open_mark}I could {CALL} but no.{closing}<answer>x</answer>")
            assert (turn.calls, turn.answer) == ((), "x")

    def test_nested_and_unclosed_reasoning(self, marks: tuple[str, str]) -> None:
        opening, closing = marks
        parse = make_parser("hermes").parse
        assert parse(f"{opening}a{opening}b{closing}{CALL}{closing}<answer>x</answer>").answer == "x"
        assert not parse(f"{opening}a{opening}b{closing}{CALL}{closing}<answer>x</answer>").calls
        # An opening mark too many inside the reasoning is text.
        assert parse(f"{opening}a{opening}b{closing}<answer>x</answer>").answer == "x"
        (error,) = parse(f"{opening}a {CALL}").errors
        assert error.code == "unclosed_tag"
        assert closing in error.message

    def test_foreign_text_cannot_write_the_marks(self, marks: tuple[str, str]) -> None:
        for mark in marks:
            assert mark not in sanitize(f"a {mark} b")


def test_a_closing_mark_alone_hides_what_precedes_it_except_gpt_oss_end_of_message() -> None:
    assert visible_text(f"{CALL} hm</think>rest") == "rest"
    assert visible_text("[call me]<|end|>rest") == "[call me]<|end|>rest"


@pytest.mark.slow
def test_reasoning_that_the_prompt_opened_may_mention_another_spelling() -> None:
    assert visible_text("The <reasoning> element comes first.</think><answer>4</answer>") == "<answer>4</answer>"
    assert visible_text("<reasoning>first</think><answer>4</answer>").strip() == ""  # its own, and never closed
    assert visible_text("Well. <think>first<answer>4</answer>").strip() == "Well."


def test_time_is_linear_in_the_length() -> None:
    pieces = [mark for marks in THOUGHT_MARKS for mark in marks]
    generator = random.Random(0)
    text = "".join(generator.choice(pieces) for _ in range(200_000))
    assert len(visible_text(text)) <= len(text)
    assert visible_text("<think>" * 200_000) == ""
