"""`calculator`: exact arithmetic, with sizes that are bounded before anything is computed.

Operators + - * / // % **, the constants pi and e, and the functions abs, round, floor, ceil, min, max, sqrt, exp, log,
log2, log10, sin, cos, tan, factorial, gcd, lcm and comb. A fraction without a short decimal form is returned as a
fraction and as a decimal.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction

from agent_r1_gym.errors import ToolError
from agent_r1_gym.tools.function import tool

Number = Fraction | float
MAX_EXPRESSION_CHARS = 1_000
MAX_BITS = 4_096
"""Size of each intermediate result, of numerator and denominator each: about 1,233 digits."""
MAX_DEPTH = 50
"""Maximum nesting of parentheses, signs and powers."""
_MAX_ARGUMENT = 500
"""Maximum argument of `factorial` and `comb`."""
_MAX_EXPONENT = 1_000
"""Maximum exponent of a number literal: 1e1000."""
_THOUSANDS = re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?:,\d{3})+(?!\w)")
"""A number with separators, which would be read as several arguments: max(1,250, 900)."""
_INTEGER_FUNCTIONS = ("factorial", "gcd", "lcm", "comb")


@tool(timeout=None, deterministic=True)
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression, exactly where possible.

    Args:
        expression: such as (3 + 4) * 12 / 5 or sqrt(2).
    """
    # Models read this docstring, and small ones lose the call format in a long one: errors list what is available.
    return format_number(compute(expression))


def compute(expression: str) -> Number:
    """Evaluate an expression: a fraction where the result is exact, else a float.

    Raises:
        ToolError: not arithmetic, or a number would get too large; the message is written for the model.
    """
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise ToolError(f"The expression has {len(expression)} characters; the maximum is {MAX_EXPRESSION_CHARS}.")
    text = expression.strip().replace("^", "**").replace("×", "*").replace("÷", "/").replace("−", "-")
    if found := _THOUSANDS.search(text):
        raise ToolError(
            f"{found[0]:.80} is not supported. Write a number without separators ({found[0].replace(',', '')}), or a "
            f"space after the comma between arguments ({found[0].replace(',', ', ')})."
        )
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ToolError(
            f"{expression.strip()!r:.80} is not an arithmetic expression. Write numbers and operators alone, such as "
            "(3 + 4) * 2."
        ) from None
    try:
        return _value(tree, 0, text)
    except ZeroDivisionError:
        raise ToolError("Division by zero.") from None
    except OverflowError:
        raise ToolError("The result is too large.") from None
    except (ValueError, TypeError) as error:
        raise ToolError(f"This cannot be computed: {error}.") from None


def format_number(value: Number) -> str:
    """Format a number: integers and decimals of at most 15 places in full, other fractions as `a/b = decimal`."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.12g}"
    if value.denominator == 1:
        return str(value.numerator)
    places = _decimal_places(value.denominator)
    if places is not None:
        digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
        return f"{'-' if value < 0 else ''}{digits[:-places]}.{digits[-places:]}"
    try:
        return f"{value.numerator}/{value.denominator} = {float(value):.12g}"
    except OverflowError:
        return f"{value.numerator}/{value.denominator}"


def _decimal_places(denominator: int) -> int | None:
    """Number of decimal places of 1/denominator; None if there are more than 15, or infinitely many."""
    twos = fives = 0
    while denominator % 2 == 0 and twos <= 15:
        denominator, twos = denominator // 2, twos + 1
    while denominator % 5 == 0 and fives <= 15:
        denominator, fives = denominator // 5, fives + 1
    places = max(twos, fives)
    return places if denominator == 1 and places <= 15 else None


def _value(node: ast.expr, depth: int, text: str) -> Number:
    if depth > MAX_DEPTH:
        raise ToolError(f"The expression is nested more than {MAX_DEPTH} deep.")
    if isinstance(node, ast.Constant):
        return _literal(node, text)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _binary(node, depth, text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _value(node.operand, depth + 1, text)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _call(node.func.id, [_value(argument, depth + 1, text) for argument in node.args])
    source = ast.get_source_segment(text, node)  # not ast.unparse, which recurses as deep as the expression
    raise ToolError(f"{source:.80} is not supported. Use numbers, pi, e, + - * / // % **, parentheses and functions.")


def _literal(node: ast.Constant, text: str) -> Number:
    value = node.value
    if isinstance(value, float):
        source = (ast.get_source_segment(text, node) or repr(value)).lower().replace("_", "")
        exponent = source.partition("e")[2] or "0"
        if len(exponent) > 5 or abs(int(exponent)) > _MAX_EXPONENT:
            raise ToolError(f"{source:.80} is too large or too small.")
        return _bounded(Fraction(source))  # exactly as written, not rounded to the nearest float
    if isinstance(value, int) and not isinstance(value, bool):
        return _bounded(Fraction(value))
    raise ToolError(f"{value!r:.80} is not a number.")


def _binary(node: ast.BinOp, depth: int, text: str) -> Number:
    # Long sums are nested to the left: a loop walks them, so that length does not count as depth.
    chain = [node]
    left: ast.expr = node.left
    while isinstance(left, ast.BinOp) and type(left.op) in _OPERATORS:
        chain.append(left)
        left = left.left
    value = _value(left, depth + 1, text)
    for part in reversed(chain):
        right = _value(part.right, depth + 1, text)
        if isinstance(value, float) or isinstance(right, float):
            value, right = float(value), float(right)
        value = _bounded(_OPERATORS[type(part.op)](value, right))
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, float) or isinstance(exponent, float) or exponent.denominator != 1:
        if base < 0 and exponent != int(exponent):
            raise ToolError("The root of a negative number is not real.")
        if isinstance(base, Fraction) and isinstance(exponent, Fraction):
            root = _exact_root(base, exponent.denominator)
            if root is not None:
                return _power(root, Fraction(exponent.numerator))
        return math.pow(base, exponent)
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) not in (0, 1) and size * abs(exponent) > 2 * MAX_BITS:  # checked before it is computed
        raise ToolError(_TOO_LARGE)
    power: Fraction = base**exponent.numerator
    return power


def _call(name: str, arguments: list[Number]) -> Number:
    if name in _INTEGER_FUNCTIONS:
        if any(isinstance(value, float) or value.denominator != 1 for value in arguments):
            raise ToolError(f"{name} takes integers.")
        integers = [int(value) for value in arguments]
        if name in ("factorial", "comb") and max(integers, default=0) > _MAX_ARGUMENT:
            raise ToolError(f"{name} takes at most {_MAX_ARGUMENT}.")
        return _bounded(Fraction(getattr(math, name)(*integers)))
    if name not in _FUNCTIONS:
        available = ", ".join(sorted({*_FUNCTIONS, *_INTEGER_FUNCTIONS}))
        raise ToolError(f"Unknown function {name!r:.40}. Available functions: {available}.")
    if not arguments:
        raise ToolError(f"{name} needs an argument.")
    return _bounded(_FUNCTIONS[name](*arguments))


_TOO_LARGE = f"An intermediate result has more than {int(MAX_BITS * math.log10(2))} digits."


def _bounded(value: Number) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ToolError("The result is too large.")
        return value
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise ToolError(_TOO_LARGE)
    return value


def _root(value: Number) -> Number:
    if value < 0:
        raise ToolError("The root of a negative number is not real.")
    if isinstance(value, Fraction):
        exact = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if exact * exact == value:
            return exact
        if not _fits_a_float(value):
            root = math.isqrt(value.numerator * value.denominator << 128)  # 64 bits more than the result needs
            return float(Fraction(root, value.denominator << 64))
    return math.sqrt(value)


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    """Compute the root of a fraction that is not negative if it is rational: 64**(1/3) is 4, not 3.9999999999999996."""
    if value == 0 or degree > MAX_BITS:
        return None
    parts = (value.numerator, value.denominator)
    roots = [round(math.exp(math.log(part) / degree)) for part in parts]
    exact = all(root**degree == part for root, part in zip(roots, parts, strict=True))
    return Fraction(*roots) if exact else None


def _logarithm(function: Callable[[float | int], float], value: Number) -> float:
    """Compute a logarithm, also of fractions beyond the range of floats."""
    if value <= 0:
        raise ValueError("logarithms need a positive number")
    if isinstance(value, Fraction) and not _fits_a_float(value):
        return function(value.numerator) - function(value.denominator)
    return function(value if isinstance(value, float) else float(value))


def _log(value: Number, *base: Number) -> Number:
    if len(base) > 1:
        raise ToolError("log takes a number and a base.")
    if not base:
        return _logarithm(math.log, value)
    return _exact_logarithm(value, base[0], _logarithm(math.log, value) / _logarithm(math.log, base[0]))


def _exact_logarithm(value: Number, base: Number, approximate: float) -> Number:
    """Return the integer next to `approximate` if it is the logarithm: log(1000, 10) is 3, not 2.9999999999999996."""
    exponent = Fraction(round(approximate))
    if isinstance(value, float) or isinstance(base, float) or abs(approximate - exponent) > 1e-6:
        return approximate
    try:
        return exponent if _power(base, exponent) == value else approximate
    except ToolError:  # larger than any value
        return approximate


def _fits_a_float(value: Fraction) -> bool:
    """Whether a positive fraction is within the range of floats with full precision."""
    return abs(value.numerator.bit_length() - value.denominator.bit_length()) < 1_000


def _rounded(value: Number, places: Number = Fraction(0)) -> Number:
    if isinstance(places, float) or places.denominator != 1 or abs(places) > 100:
        raise ToolError("round takes an integer number of decimal places, at most 100.")
    return Fraction(round(Fraction(value), int(places)))


_OPERATORS: dict[type[ast.operator], Callable[..., Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda left, right: Fraction(left // right),
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "round": _rounded,
    "floor": lambda value: Fraction(math.floor(value)),
    "ceil": lambda value: Fraction(math.ceil(value)),
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "sqrt": _root,
    "exp": lambda value: math.exp(value),
    "log": _log,
    "log2": lambda value: _exact_logarithm(value, Fraction(2), _logarithm(math.log2, value)),
    "log10": lambda value: _exact_logarithm(value, Fraction(10), _logarithm(math.log10, value)),
    "sin": lambda value: math.sin(value),
    "cos": lambda value: math.cos(value),
    "tan": lambda value: math.tan(value),
}
_CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e}
