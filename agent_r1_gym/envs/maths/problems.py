"""Generated problems that are too large for mental arithmetic: their types, and the data set of them.

A generator draws the numbers of a problem and computes the exact answer. Difficulty, 1 to 5, is the size of the numbers
and the number of steps. `CALCULATOR_PROBLEMS` can be solved by single expressions within the bounds of
`tools.calculator`; `PROGRAM_PROBLEMS` need a program; `WORDED_PROBLEMS` are easy to compute and hard to read.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent_r1_gym.data.base import Hop, QADataset, Question
from agent_r1_gym.data.generated import SPLITS, LazyTaskSequence, is_in_split
from agent_r1_gym.support.checks import check_choice, check_choices, check_integer, check_level

DIFFICULTIES = (1, 2, 3, 4, 5)
_MIN_ANSWER = 10
"""Smaller answers are too easy to guess."""


@dataclass(frozen=True, slots=True)
class Problem(Question):
    """A problem whose answer is a whole number; `decomposition` are steps of a calculator, () if it needs a program.

    Attributes:
        code: Python program whose last expression is the answer.
        careless_expression: wrong expression that drops a term or misreads an operation.
        guess: answer of mental arithmetic: the right size and first digit.
    """

    code: str = ""
    careless_expression: str = ""
    guess: str = ""


class ProblemDraft(NamedTuple):
    """A problem as its generator returns it, see `Problem`; `steps` are expressions with their values.

    `shape` is what no two splits share; "": the prompt.
    """

    prompt: str
    answer: int
    steps: tuple[Hop, ...]
    code: str
    careless_expression: str
    guess: int
    shape: str = ""


def problems(
    *,
    seed: int = 0,
    split: str = "train",
    questions: int = 2_000,
    problem_types: tuple[str, ...],
    difficulty: int | None = None,
) -> QADataset:
    """Generates problems; calls with equal arguments return the same object.

    Args:
        seed: seed of the problems.
        split: "train", "validation" or "test"; no problem is in two of them, whatever the seeds.
        questions: number of problems.
        problem_types: keys of `PROBLEM_TYPES`.
        difficulty: 1 to 5; None: all, equally often.

    Raises:
        ConfigurationError: an argument has a wrong value.
    """
    check_choice("split", split, tuple(SPLITS))
    check_integer("seed", seed, 0)
    check_integer("questions", questions, 1)
    if difficulty is not None:
        check_level("difficulty", difficulty, DIFFICULTIES)
    return _problems(
        seed, split, questions, check_choices("problem_types", problem_types, tuple(PROBLEM_TYPES)), difficulty
    )


@functools.lru_cache(maxsize=16)  # after the checks: a cache takes True for 1
def _problems(
    seed: int, split: str, questions: int, problem_types: tuple[str, ...], difficulty: int | None
) -> QADataset:
    source = f"a generator (seed {seed}, difficulty {difficulty or '1 to 5'}, {', '.join(problem_types)})"
    made = _Problems(seed, split, questions, problem_types, DIFFICULTIES if difficulty is None else (difficulty,))
    return QADataset(made, name="arithmetic", split=split, source=source, fingerprint="")


class _Problems(LazyTaskSequence[Question]):
    """The problems of one split: types take turns, then difficulties."""

    def __init__(
        self, seed: int, split: str, length: int, problem_types: Sequence[str], difficulties: Sequence[int]
    ) -> None:
        super().__init__(length)
        self._seed, self._split, self._types, self._difficulties = seed, split, problem_types, difficulties

    def make(self, index: int) -> Question:
        """Makes a problem."""
        rng = random.Random(f"{self._seed}/{self._split}/{index}")  # a text: its hash is the same in every process
        name = self._types[index % len(self._types)]
        level = self._difficulties[index // len(self._types) % len(self._difficulties)]
        draft = PROBLEM_TYPES[name](rng, level)
        while draft.answer < _MIN_ANSWER or not is_in_split(draft.shape or draft.prompt, self._split):
            draft = PROBLEM_TYPES[name](rng, level)
        return Problem(
            id=f"{self._split}/{self._seed}/{index}",
            prompt=draft.prompt,
            answers=(str(draft.answer),),
            type=name,
            level=str(level),
            hops=len(draft.steps) or None,
            decomposition=draft.steps,
            code=draft.code,
            careless_expression=draft.careless_expression,
            guess=str(draft.guess),
        )


def rounded(number: int) -> int:
    """Rounds a number to its first digit: 7,420 becomes 7,000."""
    unit: int = 10 ** (len(str(abs(number))) - 1)
    return (abs(number) + unit // 2) // unit * unit * (-1 if number < 0 else 1)


# --- problem types ---------------------------------------------------------------------------------------------------

_CHUNK = 300
"""Largest exponent of a three-digit base that stays within the calculator's 4,096 bits."""


def power(rng: random.Random, difficulty: int) -> ProblemDraft:
    """The remainder of a power."""
    base, modulus = rng.randint(11, 99), rng.randint(101, 997)
    low, high = ((5, 9), (10, 30), (40, 250), (400, 2_000), (10_000, 90_000))[difficulty - 1]
    exponent = rng.randint(low, high)
    answer = pow(base, exponent, modulus)
    return ProblemDraft(
        f"What is the remainder when {base} to the power of {exponent} is divided by {modulus}?",
        answer,
        _power_steps(base, exponent, modulus),
        f"pow({base}, {exponent}, {modulus})",
        f"{base} * {exponent} % {modulus}",
        rounded(answer),
    )


def _power_steps(base: int, exponent: int, modulus: int) -> tuple[Hop, ...]:
    if exponent <= _CHUNK:
        return (_hop(f"{base} ** {exponent} % {modulus}", pow(base, exponent, modulus)),)
    times, rest = divmod(exponent, _CHUNK)
    chunk = pow(base, _CHUNK, modulus)
    many, few = pow(chunk, times, modulus), pow(base, rest, modulus)
    return (
        _hop(f"{base} ** {_CHUNK} % {modulus}", chunk),
        _hop(f"{chunk} ** {times} % {modulus}", many),
        _hop(f"{base} ** {rest} % {modulus}", few),
        _hop(f"{many} * {few} % {modulus}", many * few % modulus),
    )


def count(rng: random.Random, difficulty: int) -> ProblemDraft:
    """The count of numbers up to a bound that are divisible by one of two or three others: inclusion and exclusion."""
    bound = rng.randint(5 * 10 ** (difficulty + 1), 10 ** (difficulty + 2) - 1) // (5 if difficulty == 5 else 1)
    divisors = sorted(rng.sample((4, 6, 7, 9, 10, 11, 13, 15), 2 if difficulty <= 2 else 3))
    terms = []
    answer = 0
    for size in range(1, len(divisors) + 1):
        for subset in itertools.combinations(divisors, size):
            answer += (-1) ** (size + 1) * (bound // math.lcm(*subset))
            sign = "+" if size % 2 else "-"
            divisor = str(subset[0]) if size == 1 else f"lcm({', '.join(map(str, subset))})"
            terms.append(f"{sign} {bound} // {divisor}")
    condition = " or ".join(f"n % {divisor} == 0" for divisor in divisors)
    return ProblemDraft(
        f"How many of the whole numbers from 1 to {bound} can be divided by {_listed(divisors, 'or')}?",
        answer,
        (_hop(" ".join(terms).removeprefix("+ "), answer),),
        f"sum(1 for n in range(1, {bound} + 1) if {condition})",
        " + ".join(f"{bound} // {divisor}" for divisor in divisors),
        rounded(answer),
    )


def recurrence(rng: random.Random, difficulty: int) -> ProblemDraft:
    """A term of a linear recurrence of second order."""
    first, second, near, far = (rng.randint(low, high) for low, high in ((2, 19), (2, 19), (2, 7), (2, 9)))
    number = difficulty + 3
    terms, steps = [first, second], []
    while len(terms) < number:
        terms.append(near * terms[-1] + far * terms[-2])
        steps.append(_hop(f"{near} * {terms[-2]} + {far} * {terms[-3]}", terms[-1]))
    return ProblemDraft(
        f"A sequence starts with {first} and {second}. Each further term is {near} times the term before it plus {far} "
        f"times the term before that. What is term number {number}?",
        terms[-1],
        tuple(steps),
        f"a, b = {first}, {second}\nfor _ in range({number} - 2):\n    a, b = b, {near} * b + {far} * a\nb",
        f"{near} * {terms[-2]}",
        rounded(terms[-1]),
    )


def system(rng: random.Random, difficulty: int) -> ProblemDraft:
    """The product of the whole solutions of two linear equations."""
    x, y = (rng.randint(3, 10 * difficulty + 9) for _ in range(2))
    a, b, c, d = (rng.randint(2, 4 * difficulty + 9) for _ in range(4))
    d += a * d == b * c  # singular equations have no unique solution
    e, f, determinant = a * x + b * y, c * x + d * y, a * d - b * c
    return ProblemDraft(
        f"Two numbers x and y solve {a} * x + {b} * y = {e} and {c} * x + {d} * y = {f}. What is x * y?",
        x * y,
        (
            _hop(f"({e} * {d} - {f} * {b}) / ({a} * {d} - {b} * {c})", x),
            _hop(f"({e} - {a} * {x}) / {b}", y),
            _hop(f"{x} * {y}", x * y),
        ),
        f"D = {a} * {d} - {b} * {c}\nx = ({e} * {d} - {f} * {b}) // D\ny = ({a} * {f} - {c} * {e}) // D\nx * y",
        f"({e} * {d} - {f} * {b}) / {determinant}",
        rounded(x * y),
    )


def divisor(rng: random.Random, difficulty: int) -> ProblemDraft:
    """The greatest common divisor, or least common multiple, of three numbers, of which two share more factors."""
    common = rng.randint(11, 10 ** (difficulty + 1))
    left, right = (2 * rng.randint(2, 30 * difficulty) for _ in range(2))
    numbers = (common * left, common * right, common * (2 * rng.randint(2, 30 * difficulty) + 1))
    name, function = rng.choice((("greatest common divisor", "gcd"), ("least common multiple", "lcm")))
    answer = getattr(math, function)(*numbers)
    listed = ", ".join(map(str, numbers))
    return ProblemDraft(
        f"What is the {name} of {_listed(numbers, 'and')}?",
        answer,
        (_hop(f"{function}({listed})", answer),),
        f"import math\nmath.{function}({listed})",
        f"{function}({numbers[0]}, {numbers[1]})",
        rounded(answer),
    )


def primes(rng: random.Random, difficulty: int) -> ProblemDraft:
    """The sum of the next primes after a number."""
    above, many = rng.randint(10 ** (difficulty + 1), 10 ** (difficulty + 2)), difficulty + 2
    following = list(itertools.islice(filter(_is_prime, itertools.count(above + 1)), many))
    test = "all(n % k for k in range(2, int(n ** 0.5) + 1))"
    return ProblemDraft(
        f"What is the sum of the {many} smallest prime numbers that are larger than {above}?",
        sum(following),
        (),
        f"n, found = {above}, []\nwhile len(found) < {many}:\n    n += 1\n    if {test}:\n        found.append(n)\n"
        "sum(found)",
        f"sum({above} + k for k in range(1, {many} + 1))",
        rounded(sum(following)),
    )


def digits(rng: random.Random, difficulty: int) -> ProblemDraft:
    """The count of numbers up to a bound with a given sum of digits."""
    length = difficulty + 2
    bound = rng.randint(2 * 10 ** (length - 1), 10**length - 1) // (10 if difficulty == 5 else 1)
    target = rng.randint(7, 12 + difficulty)
    answer = _count_with_digit_sum(bound, target)
    total = "sum(map(int, str(n)))"
    return ProblemDraft(
        f"How many of the whole numbers from 1 to {bound} have digits whose sum is {target}?",
        answer,
        (),
        f"sum(1 for n in range(1, {bound} + 1) if {total} == {target})",
        f"sum(1 for n in range(1, {bound} + 1) if {total} <= {target})",
        rounded(answer),
    )


_IN_WORDS: Mapping[str, tuple[str, ...]] = {
    "+": ("the sum of {} and {}", "the result of adding {} to {}"),
    "-": ("the difference between {} and {}", "the result of subtracting {1} from {0}"),
    "*": ("the product of {} and {}", "the result of multiplying {} by {}"),
    "/": ("the quotient of {} and {}", "the result of dividing {} by {}"),
}
_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}
_MAX_VALUE = 10**6
_HELD_OUT_SHAPES_FROM = 3
"""Operations from which on splits differ in shapes; there are four shapes of one operation."""


class _Term(NamedTuple):
    """A part of a nested problem."""

    value: int
    words: str
    expression: str
    shape: str
    steps: tuple[Hop, ...] = ()


def nested(rng: random.Random, difficulty: int) -> ProblemDraft:
    """Nested sums, differences, products and quotients in words; as many operations as the difficulty."""
    root = _term(rng, difficulty)
    left, symbol, right = root.steps[-1].question.split()
    misread = {"+": "-", "-": "+", "*": "+", "/": "*"}[symbol]
    return ProblemDraft(
        f"What is {root.words}?",
        root.value,
        root.steps,
        root.expression.replace("/", "//"),
        f"{left} {misread} {right}",
        rounded(root.value),
        root.shape if difficulty >= _HELD_OUT_SHAPES_FROM else "",
    )


def _term(rng: random.Random, operations: int) -> _Term:
    if not operations:
        number = rng.randint(2, 99)
        return _Term(number, str(number), str(number), "n")
    before = rng.randrange(operations)
    while True:
        symbol = rng.choice("+-*/")
        left = _term(rng, before)
        right = _term(rng, operations - 1 - before)
        if symbol == "/" and right.steps:
            continue  # hardly ever without a remainder
        if symbol == "/":
            divisors = [number for number in range(2, 100) if left.value % number == 0 and number < left.value]
            if not divisors:
                continue
            number = rng.choice(divisors)
            right = _Term(number, str(number), str(number), "n")
        value = _OPERATORS[symbol](left.value, right.value)
        if 0 < value <= _MAX_VALUE:
            break
    return _Term(
        value,
        rng.choice(_IN_WORDS[symbol]).format(left.words, right.words),
        f"({left.expression} {symbol} {right.expression})",
        f"({left.shape} {symbol} {right.shape})",
        (*left.steps, *right.steps, _hop(f"{left.value} {symbol} {right.value}", value)),
    )


ProblemGenerator = Callable[[random.Random, int], ProblemDraft]
CALCULATOR_PROBLEMS: Mapping[str, ProblemGenerator] = {
    "power": power,
    "count": count,
    "recurrence": recurrence,
    "system": system,
    "divisor": divisor,
}
PROGRAM_PROBLEMS: Mapping[str, ProblemGenerator] = {"primes": primes, "digits": digits}
WORDED_PROBLEMS: Mapping[str, ProblemGenerator] = {"nested": nested}
PROBLEM_TYPES: Mapping[str, ProblemGenerator] = {**CALCULATOR_PROBLEMS, **PROGRAM_PROBLEMS, **WORDED_PROBLEMS}


def _hop(expression: str, value: int) -> Hop:
    return Hop(expression, str(value))


def _listed(numbers: Sequence[int], word: str) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} {word} {numbers[-1]}"


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % factor for factor in range(2, math.isqrt(number) + 1))


def _count_with_digit_sum(bound: int, target: int) -> int:
    """Counts the numbers from 1 to `bound` with a sum of digits, digit by digit, without enumerating them."""
    free = [[1]]  # free[k][s]: numbers of k digits, leading zeros included, with the sum s
    for _ in str(bound):
        last = free[-1]
        free.append([sum(last[max(0, s - 9) : s + 1]) for s in range(len(last) + 9)])
    total, before, text = 0, 0, str(bound)
    for place, digit in enumerate(map(int, text)):
        rest = free[len(text) - place - 1]
        total += sum(rest[target - before - d] for d in range(digit) if 0 <= target - before - d < len(rest))
        before += digit
    return total + (before == target) - (target == 0)
