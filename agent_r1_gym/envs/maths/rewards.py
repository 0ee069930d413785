"""Rewards of the maths environments: the usual ones, and a process term for the steps of a known solution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal

from agent_r1_gym.core.rewards import PROCESS_TERMS, RewardTerm
from agent_r1_gym.core.scoring import number_alone
from agent_r1_gym.core.types import Transition


def correct_step(transition: Transition) -> float:
    """Share of the solution's steps whose result a call of this turn returned for the first time, in [0, 1].

    Summed over an episode it is at most 1. The result of the last step stands for all steps: a call that computes the
    whole term earns as much as one call per step. A result counts if the output is that number and nothing else
    (ten digits of a decimal), whatever was computed to get it; 0 for tasks without a known solution.
    """
    steps = getattr(transition.task, "decomposition", ())
    if not steps or not transition.outcomes:
        return 0.0
    wanted = [_number(step.answer) or step.answer for step in steps]
    before = sum((_results(step) for step in transition.earlier), Counter[str]())
    return _share(before + _results(transition), wanted) - _share(before, wanted)


def _results(step: Transition) -> Counter[str]:
    """The numbers that the calls of a step returned ("1/3 = 0.333333" is 1/3)."""
    outputs = (outcome.content.partition(" = ")[0] for outcome in step.outcomes if outcome.ok)
    return Counter(number for output in outputs if (number := _number(output)) is not None)


def _number(text: str) -> str | None:
    """The number that a text consists of, in one spelling; None if there is more or no number.

    Ten digits of a decimal count, as data sets write them: 1.3333333333 is what a calculator returns for 4 / 3.
    """
    number = number_alone(text)
    return number if number is None or "." not in number or number.endswith("%") else f"{Decimal(number):.10g}"


def _share(results: Counter[str], wanted: list[str]) -> float:
    return 1.0 if wanted[-1] in results else (results & Counter(wanted)).total() / len(wanted)


_CORRECT_STEP = RewardTerm("correct_step", correct_step, 0.2, kind="process")
PRESETS: Mapping[str, tuple[str | RewardTerm, ...]] = {
    "process": ("em", *(_CORRECT_STEP if term.name == "new_support" else term for term in PROCESS_TERMS))
}
"""The usual preset, where solutions have steps and there are no gold passages."""
