"""The AST rules of the Berkeley Function-Calling Leaderboard: is a turn's list of calls one of the accepted answers?

Gold is a list of accepted calls. Each gives, for each parameter, the list of its accepted values; "" in that list marks
a parameter that may be omitted. `ast_error` returns what is wrong in the words of the official `ast_checker.py`
(github.com/ShishirPatil/gorilla, bfcl_eval 2026.3.23, Python categories), so that verdicts can be compared one by one:
`benchmarks/agreement/bfcl.py` does. Its peculiarities are kept, since published numbers have them:

- Case, spaces and `,./-_*^` do not count in strings, nor in those of a list or of an object; they do in those of a list
  in a list.
- An integer is accepted for a float, except inside a list. True is not 1.
- A value of another type than its schema's is accepted if the first accepted value has that type.
- Parallel calls may come in any order. Each accepted call takes the first call that fits it, and keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agent_r1_gym.core.types import ToolCall

Function = Mapping[str, Any]
"""A function as a row describes it: `name`, `description`, `parameters` (with the leaderboard's names of types)."""
AcceptedCall = Mapping[str, Mapping[str, Sequence[Any]]]
"""One accepted call: {name: {parameter: accepted values}}."""

TYPES: Mapping[str, type] = {
    **{"string": str, "integer": int, "float": float, "boolean": bool},
    **{"array": list, "tuple": list, "dict": dict, "any": str},
}
"""Python's type of each type that a schema may name."""
_LISTS = ("array", "tuple")
_IGNORED = re.compile(r"[ ,./\-_*^]")


def tool_name(function_name: str) -> str:
    """The name under which a model calls a function: most formats and endpoints allow no dots."""
    return function_name.replace(".", "_")


def ast_error(
    calls: Sequence[ToolCall], functions: Sequence[Function], accepted: Sequence[AcceptedCall], category: str
) -> str | None:
    """What is wrong with the calls of a turn, as the official `error_type`; None if they are right.

    Args:
        calls: the calls of the turn, as the model wrote them.
        functions: all functions of the row; the first one is meant in "simple" categories.
        accepted: the accepted calls, at least one.
        category: of the row; in "parallel" ones calls may come in any order.
    """
    if "parallel" in category:
        return _parallel_error(calls, functions, accepted)
    checker = "multiple_function_checker" if "multiple" in category else "simple_function_checker"
    if len(calls) != 1:
        return f"{checker}:wrong_count"
    function = _find(functions, accepted[0]) if "multiple" in category else functions[0]
    return call_error(calls[0], function, accepted[0])


def _parallel_error(
    calls: Sequence[ToolCall], functions: Sequence[Function], accepted: Sequence[AcceptedCall]
) -> str | None:
    if len(calls) != len(accepted):
        return "parallel_function_checker_no_order:wrong_count"
    remaining = list(calls)
    for answer in accepted:
        function = _find(functions, answer)
        match = next((i for i, call in enumerate(remaining) if call_error(call, function, answer) is None), None)
        if match is None:
            return "parallel_function_checker_no_order:cannot_find_match"
        del remaining[match]
    return None


def _find(functions: Sequence[Function], answer: AcceptedCall) -> Function:
    """The function that an accepted call names."""
    (name,) = answer
    return next(function for function in functions if function["name"] == name)


def call_error(call: ToolCall, function: Function, answer: AcceptedCall) -> str | None:
    """What is wrong with one call, as the official `error_type`; None if it is the accepted one."""
    if call.name != tool_name(function["name"]):
        return "simple_function_checker:wrong_func_name"
    (accepted,) = answer.values()
    arguments, parameters = dict(call.arguments), function["parameters"]
    if any(name not in arguments for name in parameters["required"]):
        return "simple_function_checker:missing_required"
    for name, value in arguments.items():
        if name not in parameters["properties"] or name not in accepted:
            return "simple_function_checker:unexpected_param"
        error = _argument_error(value, parameters["properties"][name], accepted[name])
        if error is not None:
            return error
    if any(name not in arguments and "" not in values for name, values in accepted.items()):
        return "simple_function_checker:missing_optional"
    return None


# --- one argument ----------------------------------------------------------------------------------------------------


def _argument_error(value: Any, schema: Mapping[str, Any], accepted: Sequence[Any]) -> str | None:
    """What is wrong with the value of a parameter, None if it is accepted."""
    kind = schema["type"]
    expected, item_type = TYPES[kind], TYPES[schema["items"]["type"]] if kind in _LISTS else None
    if kind == "tuple" and type(value) is tuple:
        value = list(value)
    if kind == "float" and type(value) is int:
        try:
            value = float(value)
        except OverflowError:  # the official code fails on an integer beyond the range of floats
            return "value_error:others"
    error, is_variable = _type_error(value, accepted, expected, item_type)
    if error is not None:
        return error
    if not is_variable and expected is dict:
        return _dict_error(value, accepted)
    if not is_variable and item_type is dict:
        return _dict_list_error(value, accepted)
    if not is_variable and expected is str:
        known = [_standardised(answer) for answer in accepted if isinstance(answer, str)]
        return None if _standardised(value) in known else "value_error:string"
    if not is_variable and expected is list:
        # Of an optional parameter, "" becomes [] here: the empty list is accepted.
        lists = [list(map(_standardised, answer)) for answer in accepted if isinstance(answer, list | str)]
        return None if list(map(_standardised, value)) in lists else "value_error:list/tuple"
    return None if value in accepted else "value_error:others"


def _type_error(value: Any, accepted: Sequence[Any], expected: type, item_type: type | None) -> tuple[str | None, bool]:
    """Compare types: with the schema's, and else with that of the first accepted value.

    Returns:
        The error, None if the type is right; and whether the accepted values have another type than the schema. They
        are then taken for names of variables, and are compared as they are.
    """
    answer_type = next((type(answer) for answer in accepted if answer != ""), None)
    has_expected_type = type(value) is expected
    if has_expected_type:
        if item_type is None or any(_items_have_type(value, answer, item_type) for answer in accepted):
            return None, answer_type not in (None, expected)
        return "type_error:nested" if answer_type is expected else "type_error:simple", False
    if answer_type is not None and type(value) is answer_type:
        return None, True
    return "type_error:simple", False


def _items_have_type(items: Sequence[Any], answer: Any, item_type: type) -> bool:
    """Whether all items have a type, or that of an answer's first item; an answer that is not a list allows any."""
    return type(answer) is not list or all(_type_error(item, answer, item_type, None)[0] is None for item in items)


def _dict_list_error(items: Sequence[Any], accepted: Sequence[Any]) -> str | None:
    error: str | None = "list_dict_checker:unclear"
    for answer in accepted:
        if len(answer) != len(items):
            error = "value_error:list_dict_count"
            continue
        errors = (_dict_error(item, [wanted]) for item, wanted in zip(items, answer, strict=True))
        error = next((each for each in errors if each is not None), None)
        if error is None:
            return None
    return error


def _dict_error(value: Any, accepted: Sequence[Any]) -> str | None:
    """What is wrong with an object, whose members each have a list of accepted values; None if it is accepted."""
    if not isinstance(value, dict):  # an item of a list, next to an optional ""; the official code fails on it
        return "type_error:nested"
    error: str | None = "dict_checker:unclear"
    for answer in accepted:
        if answer == "":
            continue
        error = _members_error(value, answer)
        if error is None:
            return None
    return error


def _members_error(value: Mapping[str, Any], answer: Mapping[str, Sequence[Any]]) -> str | None:
    if any(name not in value and "" not in values for name, values in answer.items()):
        return "value_error:dict_key"
    for name, member in value.items():
        if name not in answer:
            return "value_error:dict_key"
        if _standardised(member) not in map(_standardised, answer[name]):
            return "value_error:dict_value"
    return None


def _standardised(value: Any) -> Any:
    """A string without what does not count in it; other values unchanged."""
    return _IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value
