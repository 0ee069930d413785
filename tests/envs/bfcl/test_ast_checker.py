"""The AST rules by hand-made cases; `benchmarks/agreement/bfcl.py` compares them with the official code."""

from __future__ import annotations

from typing import Any

import pytest

from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.envs.bfcl.ast_checker import ast_error

FUNCTION = {
    "name": "shop.order",
    "parameters": {
        "type": "dict",
        "properties": {
            "item": {"type": "string"},
            "count": {"type": "integer"},
            "price": {"type": "float"},
            "gift": {"type": "boolean"},
            "sizes": {"type": "array", "items": {"type": "integer"}},
            "tags": {"type": "array", "items": {"type": "string"}},
            "place": {"type": "tuple", "items": {"type": "float"}},
            "address": {"type": "dict", "properties": {"city": {"type": "string"}, "zip": {"type": "string"}}},
            "lines": {"type": "array", "items": {"type": "dict"}},
            "note": {"type": "any"},
        },
        "required": ["item"],
    },
}


def error(accepted: dict[str, list[Any]], arguments: dict[str, Any], name: str = "shop_order") -> str | None:
    """What is wrong with one call of the function above."""
    call, answer = ToolCall(name, arguments), {"shop.order": {"item": ["tea"], **accepted}}
    return ast_error([call], [FUNCTION], [answer], "simple_python")


def error_of(parameter: str, accepted: list[Any], value: Any) -> str | None:
    return error({parameter: accepted}, {"item": "tea", parameter: value})


CASES: tuple[tuple[str, list[Any], Any, str | None], ...] = (
    ("count", [3, 5], 5, None),
    ("count", [3], 4, "value_error:others"),
    ("count", [3], "3", "type_error:simple"),
    ("count", [3], 3.0, "type_error:simple"),
    ("count", [1], True, "type_error:simple"),
    ("count", [3], None, "type_error:simple"),
    ("count", ["", 3], "", "type_error:simple"),  # "" means that the parameter may be omitted
    ("count", ["n", 3], "n", None),  # the first accepted value is the name of a variable
    ("count", ["n", 3], "N", "value_error:others"),
    ("price", [2.5], 2.5, None),
    ("price", [2.0], 2, None),
    ("price", [2], 2.0, None),
    ("price", [2.0], 10**400, "value_error:others"),  # the official code fails
    ("price", [1.0], True, "type_error:simple"),
    ("gift", [True], True, None),
    ("gift", [True], False, "value_error:others"),
    ("gift", [True], "true", "type_error:simple"),
    ("gift", [True], 1, "type_error:simple"),
    ("note", ["St. John's"], "st johns", "value_error:string"),
    ("note", ["St. John's"], 'ST-JOHN"S', None),
    ("note", ["10 km"], "10km.", None),
    ("note", ["10 km"], "10 miles", "value_error:string"),
    ("note", ["10 km"], "10 km!", "value_error:string"),
    ("note", ["", "x"], " - ", None),
    ("tags", [["New York", "a"]], ["new york", "A"], None),
    ("tags", [["a", "b"]], ["b", "a"], "value_error:list/tuple"),
    ("tags", [["a"]], [1], "type_error:nested"),
    ("tags", [["a"]], "a", "type_error:simple"),
    ("tags", ["", ["a"]], [], None),
    ("sizes", [[1, 2]], [1, 2], None),
    ("sizes", [[1, 2], [2]], [2], None),
    ("sizes", [[1, 2]], [1.0, 2.0], "type_error:nested"),
    ("place", [[1.5, 2.5]], [1.5, 2.5], None),
    ("place", [[1.5, 2.5]], (1.5, 2.5), None),
    ("place", [[1.0, 2.0]], [1, 2], "type_error:nested"),  # unlike a float that is not an item
    ("place", [[1, 2.5]], [1, 2.5], None),
    ("address", [{"city": ["Oslo"], "zip": ["", "1"]}], {"city": "OSLO"}, None),
    ("address", [{"city": ["Oslo"], "zip": ["1"]}], {"city": "Oslo"}, "value_error:dict_key"),
    ("address", [{"city": ["Oslo"]}], {"city": "Oslo", "zip": "1"}, "value_error:dict_key"),
    ("address", [{"city": ["Oslo"]}], {"city": "Bergen"}, "value_error:dict_value"),
    ("address", [{"city": ["Oslo"]}, {"city": ["Bergen"]}], {"city": "Bergen"}, None),
    ("address", [""], {"city": "Oslo"}, "dict_checker:unclear"),
    ("address", [{"city": ["Oslo"]}], "Oslo", "type_error:simple"),
    ("lines", [[{"n": [1]}, {"n": [2]}]], [{"n": 1}, {"n": 2}], None),
    ("lines", [[{"n": [1]}, {"n": [2]}]], [{"n": 2}, {"n": 1}], "value_error:dict_value"),
    ("lines", [[{"n": [1]}, {"n": [2]}]], [{"n": 1}], "value_error:list_dict_count"),
    ("lines", [[{"n": [1]}], ""], ["x"], "value_error:list_dict_count"),  # the official code fails
)


def test_values_of_each_type() -> None:
    wrong = [case for case in CASES if error_of(*case[:3]) != case[3]]
    assert not wrong


def test_arguments_are_required_optional_or_unexpected() -> None:
    assert error({}, {"item": "tea"}) is None
    assert error({}, {}) == "simple_function_checker:missing_required"
    assert error({"count": [2]}, {"item": "tea"}) == "simple_function_checker:missing_optional"
    assert error({"count": ["", 2]}, {"item": "tea"}) is None
    assert (
        error({}, {"item": "tea", "count": 2}) == "simple_function_checker:unexpected_param"
    )  # gold does not accept it
    assert error({"size": [2]}, {"item": "tea", "size": 2}) == "simple_function_checker:unexpected_param"


def test_a_function_is_called_by_its_name_with_underscores() -> None:
    for name in ("shop.order", "order", "SHOP_ORDER", ""):
        assert error({}, {"item": "tea"}, name) == "simple_function_checker:wrong_func_name"


TEA, MILK = ToolCall("shop_order", {"item": "tea"}), ToolCall("shop_order", {"item": "milk"})


@pytest.mark.parametrize("category", ["simple_python", "multiple", "parallel"])
def test_the_number_of_calls_counts(category: str) -> None:
    checker = {"parallel": "parallel_function_checker_no_order", "multiple": "multiple_function_checker"}.get(
        category, "simple_function_checker"
    )
    for calls in ([], [TEA, TEA], [TEA, MILK]):
        assert ast_error(calls, [FUNCTION], [{"shop.order": {"item": ["tea"]}}], category) == f"{checker}:wrong_count"


def test_one_function_of_several_is_right() -> None:
    other = {**FUNCTION, "name": "shop.cancel"}
    accepted = [{"shop.order": {"item": ["tea"]}}]
    assert ast_error([TEA], [other, FUNCTION], accepted, "multiple") is None
    call = ToolCall("shop_cancel", {"item": "tea"})
    assert ast_error([call], [other, FUNCTION], accepted, "multiple") == "simple_function_checker:wrong_func_name"


def test_parallel_calls_come_in_any_order_and_each_counts_once() -> None:
    accepted = [{"shop.order": {"item": ["tea"]}}, {"shop.order": {"item": ["milk"]}}]
    no_match = "parallel_function_checker_no_order:cannot_find_match"
    assert ast_error([TEA, MILK], [FUNCTION], accepted, "parallel") is None
    assert ast_error([MILK, TEA], [FUNCTION], accepted, "parallel") is None
    assert ast_error([TEA, TEA], [FUNCTION], accepted, "parallel") == no_match


def test_an_accepted_call_keeps_the_first_call_that_fits_it() -> None:
    """As in the official code, which does not try another assignment: here the order decides."""
    accepted = [{"shop.order": {"item": ["tea", "milk"]}}, {"shop.order": {"item": ["tea"]}}]
    assert ast_error([MILK, TEA], [FUNCTION], accepted, "parallel") is None
    assert ast_error([TEA, MILK], [FUNCTION], accepted, "parallel") is not None
