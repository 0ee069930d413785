"""Controls: SVAMP without its questions, and SVAMP with a calculator that returns other numbers.

A policy that solves problems without their questions does not read them; one whose answer is not the changed number
ignores its tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

from agent_r1_gym.core.scoring import final_number
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.types import Task, Transition
from agent_r1_gym.envs.maths.env import SVAMPEnv
from agent_r1_gym.registry import register
from agent_r1_gym.tools.calculator import calculator, compute, format_number

WITHOUT_QUESTION, CHANGED_RESULTS = "WordProblems/WithoutQuestion-v0", "WordProblems/ChangedResults-v0"
_LAST_SENTENCE = re.compile(r"(?<=[.!?])\s+(?:[^.!?]|(?<=\d)\.(?=\d))+[.!?]?\s*$")


class WithoutQuestionEnv(SVAMPEnv):
    """SVAMP without the last sentence of each problem, which is the question."""

    def task_prompt(self, task: Task) -> str:
        """The problem up to its question; all of it where it is one sentence."""
        return _LAST_SENTENCE.sub("", super().task_prompt(task))


class ChangedCalculator(Tool):
    """Looks like the calculator, and adds 1 to 9 to every result; how much depends on the expression alone."""

    def __init__(self) -> None:
        super().__init__(
            calculator.name, calculator.description, calculator.parameters, timeout=None, deterministic=True
        )

    def execute(self, arguments: Mapping[str, Any]) -> str:
        """Computes, and adds."""
        expression = arguments["expression"]
        return format_number(compute(expression) + 1 + crc32(expression.encode()) % 9)


class ChangedResultsEnv(SVAMPEnv):
    """SVAMP with the changed calculator; the answer has to be its last result."""

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """The changed calculator."""
        return (ChangedCalculator(),)

    def success(self, task: Task, history: Sequence[Transition]) -> float:
        """1 if the answer is the last result of the calculator, else 0."""
        answer = history[-1].parsed.answer if history else None
        results = [outcome.content for step in history for outcome in step.outcomes if outcome.ok]
        return float(answer is not None and bool(results) and final_number(answer) == final_number(results[-1]))


register(WITHOUT_QUESTION, WithoutQuestionEnv)
register(CHANGED_RESULTS, ChangedResultsEnv)
