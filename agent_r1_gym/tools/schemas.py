"""JSON schemas without references, in the words that `Tool` checks: of OpenAPI 3.0 and 3.1, pydantic and the like."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any

_MAX_PARTS = 5_000
"""Parts of one operation's schema once its references are written out."""
_KEPT = {
    *("type", "enum", "const", "required", "default", "description", "pattern", "multipleOf"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    *("minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
}
_OF_SCHEMAS = ("items", "additionalItems", "additionalProperties", "not", "contains", "propertyNames")
OF_LISTS = ("anyOf", "oneOf", "allOf")
_FIRST_ITEMS = "prefixItems"
_OF_NAMES = ("properties", "patternProperties")
_FORMATS = {"date-time", "date", "email", "ipv4", "ipv6", "uri"}
"""Those that are checked; others ("int32", "password") only describe."""


class Unfit(Exception):
    """Why something cannot be a tool."""


class Resolver:
    """Follows references within a document, and writes schemas out without them."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._parts = 0

    def target(self, reference: Any) -> Any:
        """Returns what a reference points at."""
        if not isinstance(reference, str) or not reference.startswith("#/"):
            raise Unfit(f"it refers to another document, {reference!r:.80}")
        node: Any = self._document
        for part in reference[2:].split("/"):
            part = urllib.parse.unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(part)] if isinstance(node, list) else node[part]
            except (KeyError, IndexError, ValueError, TypeError):
                raise Unfit(f"{reference!r:.80} refers to nothing") from None
        return node

    def resolved(self, node: Any) -> Mapping[str, Any]:
        """Returns what a parameter, body or path item is in the end."""
        seen: set[str] = set()
        while isinstance(node, Mapping) and "$ref" in node:
            if str(node["$ref"]) in seen:
                raise Unfit(f"{node['$ref']!r:.80} refers to itself")
            seen.add(str(node["$ref"]))
            node = self.target(node["$ref"])
        if not isinstance(node, Mapping):
            raise Unfit(f"there is {node!r:.40} where an object belongs")
        return node

    def schema(self, node: Any, above: tuple[str, ...] = ()) -> dict[str, Any]:
        """Returns a schema without references; one that holds itself is cut at its second level."""
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise Unfit(f"its schema has more than {_MAX_PARTS} parts once its references are written out")
        if isinstance(node, bool):
            return {} if node else {"not": {}}
        if not isinstance(node, Mapping):
            raise Unfit(f"there is {node!r:.40} where a schema belongs")
        if "$ref" not in node:
            return self._written_out(node, above)
        reference, target = str(node["$ref"]), self.target(node["$ref"])
        if not isinstance(target, Mapping) or (target.get("$ref") is not None and reference in above):
            raise Unfit(f"{reference!r:.80} is no schema")
        if reference in above:
            kind = {"type": target["type"]} if "type" in target else {}
            return {**kind, "description": f"{reference.rpartition('/')[2]}, as above"}
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return self.schema({**target, **beside}, (*above, reference))

    def _written_out(self, node: Mapping[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
        schema = {key: value for key, value in node.items() if key in _KEPT}
        if node.get("format") in _FORMATS:
            schema["format"] = node["format"]
        node = _as_of_draft_7(node)
        for key in _OF_SCHEMAS:
            if key in node:
                value = node[key]
                schema[key] = value if isinstance(value, bool) else self.schema(value, above)
        for key in (*OF_LISTS, _FIRST_ITEMS):
            if key in node:
                schema[key] = [self.schema(item, above) for item in node[key]]
        for key in _OF_NAMES:
            if key in node:
                shown = {name: item for name, item in node[key].items() if not _is_read_only(item)}
                schema[key] = {name: self.schema(item, above) for name, item in shown.items()}
                if "required" in schema:
                    schema["required"] = [n for n in schema["required"] if n in shown or n not in node[key]]
        if _FIRST_ITEMS in schema:
            schema["items"] = schema.pop(_FIRST_ITEMS)
        return _as_of_3_1(schema, nullable=node.get("nullable") is True)


def _as_of_draft_7(node: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a schema with `additionalItems` for what follows its first items; those stand in `prefixItems`."""
    first = node.get(_FIRST_ITEMS, node.get("items"))
    if not isinstance(first, list):
        return node
    rest = node.get("items") if _FIRST_ITEMS in node else node.get("additionalItems")
    others = {key: value for key, value in node.items() if key not in ("items", "additionalItems")}
    return {**others, _FIRST_ITEMS: first, **({} if rest is None else {"additionalItems": rest})}


def _is_read_only(schema: Any) -> bool:
    return isinstance(schema, Mapping) and schema.get("readOnly") is True


def _as_of_3_1(schema: dict[str, Any], *, nullable: bool) -> dict[str, Any]:
    """Returns a schema of OpenAPI 3.0 as JSON schema, where the two differ."""
    for exclusive, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.get(exclusive) is True and limit in schema:
            schema[exclusive] = schema.pop(limit)
        elif isinstance(schema.get(exclusive), bool):
            del schema[exclusive]
    if not nullable:
        return schema
    if isinstance(schema.get("type"), str):
        if "enum" in schema:
            schema["enum"] = [*schema["enum"], None]
        return {**schema, "type": [schema["type"], "null"]}
    return {"anyOf": [schema, {"type": "null"}]}


def written_out(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a schema with its own definitions put where they are referred to.

    Raises:
        Unfit: it refers to another document, or grows without end.
    """
    return Resolver(schema).schema(schema)
