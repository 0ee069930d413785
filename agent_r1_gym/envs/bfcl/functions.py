"""Functions as the leaderboard describes them: read from a row, and made into tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from agent_r1_gym.core.tool import Arguments, Tool
from agent_r1_gym.data.official.raw_rows import Row
from agent_r1_gym.envs.bfcl.ast_checker import TYPES, Function, tool_name

_LANGUAGE_HINT = " Note that the provided function is in Python 3 syntax."
_FLOAT_HINT = " This is a float type value."
_JSON_TYPES = {
    **{"string": "string", "integer": "integer", "float": "number", "boolean": "boolean"},
    **{"array": "array", "tuple": "array", "dict": "object", "any": "string"},
}
_FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


class FunctionTool(Tool):
    """A function of a row as a tool that takes any arguments, so that the grader sees what the model wrote.

    Args:
        function: as a row describes it.
        deterministic: see `Tool`.
    """

    def __init__(self, function: Function, *, deterministic: bool) -> None:
        description = f"{function.get('description', '')}{_LANGUAGE_HINT}"
        if "response" in function:
            description += f" The response field has the following schema: {json.dumps(function['response'])}"
        schema = json_schema({**function["parameters"], "type": "dict"})
        super().__init__(tool_name(function["name"]), description, schema, timeout=None, deterministic=deterministic)

    def check(self, arguments: Arguments) -> str | None:
        """Accept any arguments; some accepted ones violate their schema."""
        return None


class RecordedFunction(FunctionTool):
    """A function of which only the call counts.

    Args:
        function: as a row describes it.
    """

    def __init__(self, function: Function) -> None:
        super().__init__(function, deterministic=True)

    def execute(self, arguments: Arguments) -> str:
        """Return nothing of use: the episode ends with this turn."""
        return "The call was recorded."


def json_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a schema of the leaderboard to JSON Schema, as the official `convert_to_tool` does for OpenAI."""
    converted = {**schema, "type": _JSON_TYPES[schema["type"]]}
    if isinstance(schema.get("properties"), Mapping):
        converted["properties"] = {name: json_schema(inner) for name, inner in schema["properties"].items()}
        for name, inner in schema["properties"].items():
            if inner["type"] == "float":  # of items the official code does not say so
                hint = {"format": "float", "description": f"{inner.get('description', '')}{_FLOAT_HINT}"}
                converted["properties"][name].update(hint)
    if isinstance(schema.get("items"), Mapping):
        converted["items"] = json_schema(schema["items"])
    return converted


def read_functions(row: Row, *, may_be_none: bool = False) -> Iterator[Function]:
    """Read the functions of a row.

    Args:
        row: the row.
        may_be_none: whether it may have no function.

    Raises:
        DatasetError: there is none, or one is malformed.
    """
    names = []
    for function in row.objects("function"):
        name, parameters = function.get("name"), function.get("parameters")
        if not (isinstance(name, str) and _FUNCTION_NAME.fullmatch(name)):
            raise row.error("function", f"names of letters, digits, '_', '-' and '.', got {name!r:.80}")
        if not (isinstance(parameters, dict) and _is_schema({**parameters, "type": "dict"})):
            types = ", ".join(TYPES)
            raise row.error("function", f"parameters with properties, required and types of {types} for {name!r}")
        names.append(tool_name(name))
        yield {**function, "parameters": {"required": [], **parameters}}
    if not (names or may_be_none) or len(set(names)) < len(names):
        raise row.error("function", "at least one function, and no two of the same name")


def _is_schema(schema: Any) -> bool:
    """Whether a schema has only types that the checker knows."""
    match schema:
        case {"type": ("array" | "tuple"), "items": items}:
            return _is_schema(items)
        case {"type": "dict", "properties": dict() as properties}:
            return all(map(_is_schema, properties.values()))
        case {"type": str() as kind}:
            return kind in TYPES and kind not in ("array", "tuple")
    return False
