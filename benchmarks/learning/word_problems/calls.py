"""What the policies of word problems compute, and what they do with the result.

    python -m benchmarks.learning.word_problems.calls FOLDER...     folders of `agent-r1 eval`

Accuracy by how many numbers the problem has, the share of episodes whose first expression has three numbers or more,
whether the answer is the last result of the calculator, and in how many problems the difference of the first two
numbers would be right, without its sign.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from agent_r1_gym.core.scoring import final_number
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.support.terminal import print_line
from benchmarks.common.tables import markdown

_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
_EXPRESSION = re.compile(r'"expression"\s*:\s*"([^"]*)"')
KINDS = ("copied", "without its sign", "numerator", "other", "no result")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a row for each folder; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning.word_problems.calls",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, help="folders of evaluations")
    options = parser.parse_args(arguments)
    rows = [(folder.name, *row(RunFolder(folder).episodes())) for folder in options.folders]
    numbers = ("2 numbers", "3 numbers", "4 or more")
    called = ("3 or more in the call", "that with 2 numbers")
    print_line(markdown(("folder", "accuracy", *numbers, *called, *KINDS, "difference would be right"), rows))
    return 0


def row(episodes: Sequence[Trajectory]) -> tuple[str, ...]:
    """Shares of the episodes.

    Right, of all and of those with 2, 3, more numbers; long expressions, of all and of those with 2 numbers; kinds of
    answers; problems that `difference` solves.
    """
    right = [episode.scores.get("em", 0.0) for episode in episodes]
    numbers = [min(4, len(_NUMBER.findall(episode.question))) for episode in episodes]
    by_number = [[mark for mark, each in zip(right, numbers, strict=True) if each == n] for n in (2, 3, 4)]
    long = [float(len(_NUMBER.findall(expression(episode))) >= 3) for episode in episodes]
    long_of_two = [mark for mark, each in zip(long, numbers, strict=True) if each == 2]
    kinds = [kind_of_answer(episode) for episode in episodes]
    shares = [[float(each == kind) for each in kinds] for kind in KINDS]
    trivial = [float(difference(episode.question) in map(final_number, episode.gold_answers)) for episode in episodes]
    columns = (right, *by_number, long, long_of_two, *shares, trivial)
    return tuple(f"{sum(marks) / len(marks):.3f}" if marks else "-" for marks in columns)


def expression(episode: Trajectory) -> str:
    """The first expression that the episode computes, "" if there is none."""
    found = (_EXPRESSION.search(turn.action) for turn in episode.turns)
    return next((match[1] for match in found if match), "")


def difference(question: str) -> Decimal | None:
    """The difference of the first two numbers, without its sign: what solves a problem without reading it."""
    numbers = [Decimal(number.replace(",", "")) for number in _NUMBER.findall(question)[:2]]
    return abs(numbers[0] - numbers[1]) if len(numbers) == 2 else None


def kind_of_answer(episode: Trajectory) -> str:
    """Whether the answer is the last result, that without its minus, the numerator of a fraction, or something else."""
    results = [message.content for message in episode.messages if message.role == "tool"]
    if not results:
        return "no result"
    answer, result = episode.answer, results[-1]
    fraction, _, decimal = result.partition(" = ")  # "7/3 = 2.33333333333"
    if answer in (result, fraction, decimal):
        return "copied"
    if answer in (result.removeprefix("-"), fraction.removeprefix("-"), decimal.removeprefix("-")):
        return "without its sign"
    if "/" in fraction and answer == fraction.removeprefix("-").partition("/")[0]:
        return "numerator"
    return "other"


if __name__ == "__main__":
    raise SystemExit(main())
