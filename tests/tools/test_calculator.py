"""The calculator: exact, bounded, and limited to arithmetic."""

import contextlib
import pickle
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.errors import ToolError
from agent_r1_gym.tools.calculator import calculator, compute
from tests.kit.cpu_time import cpu_below


def test_values_by_hand():
    for expression, shown in (
        ("2 + 3 * 4", "14"),
        ("(2 + 3) * 4", "20"),
        ("2**10", "1024"),
        ("2^10", "1024"),
        ("-2**2", "-4"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("1.5 % 0.4", "0.3"),
        ("0.1 + 0.2", "0.3"),
        ("0.1234567890123456789 * 10**19", "1234567890123456789"),
        ("1/3 + 1/6", "0.5"),
        ("1/7", "1/7 = 0.142857142857"),
        ("-1/8", "-0.125"),
        ("10**-3", "0.001"),
        ("2**-1", "0.5"),
        ("1e3", "1000"),
        ("sqrt(16)", "4"),
        ("sqrt(2)", "1.41421356237"),
        ("4**0.5", "2"),
        ("round(2.675, 2)", "2.68"),
        ("floor(-1.5)", "-2"),
        ("ceil(7/2)", "4"),
        ("max(1, 5/2, 2)", "2.5"),
        ("gcd(12, 18) + lcm(4, 6)", "18"),
        ("factorial(20)", "2432902008176640000"),
        ("comb(5, 2)", "10"),
        ("2 × 3 ÷ 4", "1.5"),
        ("3 − 1", "2"),
        ("log(100, 10)", "2"),
        ("(1 +\n 2)", "3"),
        ("log10(10**500)", "500"),
        ("log(10**500)", "1151.2925465"),
        ("log(10**500, 10**400)", "1.25"),
        ("log2(2**3000)", "3000"),
        ("log10(1/10**400)", "-400"),
        ("sqrt(2*10**500)", "1.41421356237e+250"),
        ("sqrt(2/10**500)", "1.41421356237e-250"),
        ("floor(log(1000, 10))", "3"),
        ("ceil(log(125, 5))", "3"),
        ("log(1/8, 2)", "-3"),
        ("log(8, 4)", "1.5"),
        ("floor(log10(10**23)) + floor(log2(1/2))", "22"),
        ("log(10**600, 100 + 1/10**300)", "300"),
        ("floor(64**(1/3))", "4"),
        ("(8/27)**(2/3)", "4/9 = 0.444444444444"),
        ("64**(-1/3)", "0.25"),
        ("0**(1/3)", "0"),
        ("2**(1/3)", "1.25992104989"),
        ("2**(1/10**400)", "1"),
        ("max(1, 250, 900)", "900"),
        ("max(0.125,250)", "250"),
        ("max(1250,900)", "1250"),
    ):
        assert calculator(expression) == shown


def test_refusals_are_immediate():
    for expression, problem in (
        ("1/0", "Division by zero"),
        ("0**-1", "Division by zero"),
        ("10**10**10", "digits"),
        ("9**9**9**9", "digits"),
        ("2**-10**9", "digits"),
        ("(10**600)**3", "digits"),
        ("1e1000000000", "too large"),
        ("1e99999999999999999999999", "too large"),
        ("factorial(10**9)", "at most 500"),
        ("comb(10**9, 5)", "at most 500"),
        ("round(1, 10**9)", "places"),
        ("exp(10**6)", "too large"),
        ("1e300**2.5", "too large"),
        ("(-8)**(1/3)", "not real"),
        ("log(0)", "cannot be computed"),
        ("log(-10**500)", "positive"),
        ("sqrt(-10**500)", "not real"),
        ("sqrt(3*10**1200)", "too large"),
        ("log(1, 2, 3)", "a number and a base"),
        ("gcd(1.5)", "integers"),
        ("max()", "argument"),
        ("sqrt()", "argument"),
        ("sin(1, 2)", "cannot be computed"),
        ("__import__('os')", "not supported|Unknown function|not a number"),
        ("().__class__", "not supported"),
        ("[1][0]", "not supported"),
        ("x", "not supported"),
        ("abs(x=1)", "not supported"),
        ("'a' * 9", "not a number"),
        ("True", "not a number"),
        ("2j", "not a number"),
        ("1 << 99", "not supported"),
        ("1 if 1 else 2", "not supported"),
        ("f(1)", "Unknown function"),
        ("lambda: 1", "not supported"),
        ("3,000", "not supported"),
        ("max(1,250, 900)", r"1,250 is not supported\. Write a number without separators \(1250\), or a space"),
        ("round(1,000)", "without separators"),
        ("max(1,250,000.5, 2)", r"\(1250000\)"),
        ("8**(10**9/3)", "digits"),
        ("0**(-1/3)", "cannot be computed"),
        ("~" * 990 + "1", "~~ is not supported"),
        ("a" + ".b" * 490, "not supported"),
        ("1" + "|1" * 490, "not supported"),
        ("12 apples", "not an arithmetic"),
        ("", "not an arithmetic"),
        ("\0", "not an arithmetic"),
        ("\ud800", "not an arithmetic"),
        ("1" * 2000, "characters"),
        ("9" * 999 + "**2", "digits|characters"),
        ("(" * 90 + "1" + ")" * 90 + "+" + "-" * 80 + "1", "deep"),
        ("(" * 400 + "1" + ")" * 400, "not an arithmetic"),
    ):
        with cpu_below(1.0, "whatever is not refused takes minutes"), pytest.raises(ToolError, match=problem):
            calculator(expression)


def test_a_refusal_is_an_outcome():
    (outcome,) = calculator.run([ToolCall("calculator", {"expression": "10**10**10"})])
    assert (outcome.ok, outcome.error) == (False, "tool_error")


numbers = st.integers(-(10**6), 10**6)


@given(numbers, numbers, numbers.filter(bool), st.sampled_from("+-*"))
def test_fractions_are_exact(a, b, c, operation):
    expected = Fraction({"+": a + b, "-": a - b, "*": a * b}[operation], c)
    assert compute(f"({a} {operation} ({b})) / ({c})") == expected


@given(st.text(max_size=60))
def test_any_text_terminates(text):
    with contextlib.suppress(ToolError):
        assert calculator(text)


@given(
    st.lists(
        st.sampled_from(["1", "2.5", "10", "+", "-", "*", "/", "**", "//", "%", "(", ")", "sqrt(", "9e99", ","]),
        max_size=25,
    )
)
def test_any_arithmetic_terminates(words):
    with cpu_below(0.5), contextlib.suppress(ToolError):
        calculator(" ".join(words))


def test_a_long_sum_is_not_nested():
    assert calculator("1" + "+1" * 400) == "401"


def test_it_pickles_by_name():
    assert pickle.loads(pickle.dumps(calculator)) is calculator
