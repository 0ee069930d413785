"""OpenAPI documents (3.0 and 3.1): read, checked, and made into operations with one flat schema of arguments each."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agent_r1_gym.errors import ConfigurationError, InfrastructureError, MissingDependencyError
from agent_r1_gym.support.download import is_url
from agent_r1_gym.support.http import HTTPClient
from agent_r1_gym.tools.schemas import OF_LISTS, Resolver, Unfit

_MAX_BYTES = 16 * 2**20
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
_IGNORED_HEADERS = {"accept", "content-type", "authorization"}  # the specification says so


class Place(NamedTuple):
    """Where an argument goes: "path", "query", "header", "body" (a member of it) or "whole" (all of it)."""

    kind: str
    name: str
    style: str = ""
    explode: bool = True


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        name: its `operationId`, or method and path.
        method: in capitals.
        path: template, as in "/items/{id}".
        description: for the model.
        schema: JSON schema of the arguments.
        places: where each argument goes.
        media_type: of the body, "" for none.
    """

    name: str
    method: str
    path: str
    description: str
    schema: Mapping[str, Any]
    places: Mapping[str, Place]
    media_type: str


def read_document(source: Mapping[str, Any] | str | os.PathLike[str], *, timeout: float) -> Mapping[str, Any]:
    """Returns a document that is given, lies in a file (JSON or YAML), or is served at an address.

    Raises:
        ConfigurationError: it is none of OpenAPI 3, or larger than 16 MiB.
        InfrastructureError: its address cannot be reached.
    """
    if isinstance(source, Mapping):
        return _checked(source, "The document")
    where = str(source)
    if is_url(where):
        shown = where.split("?")[0]
        return _checked(_parsed(_fetched(where, timeout), shown), shown)
    path = Path(source)
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ConfigurationError(f"{where} has {size} bytes; at most {_MAX_BYTES} are read. {_SHORTEN}")
        return _checked(_parsed(path.read_bytes(), where), where)
    except OSError as error:
        raise ConfigurationError(f"The OpenAPI document {where!r:.200} cannot be read: {error.strerror}.") from error


_SHORTEN = "Cut it down to the operations that are needed."


def _fetched(url: str, timeout: float) -> bytes:
    base, slash, rest = url.partition("://")
    host, _, path = rest.partition("/")
    client = HTTPClient(f"{base}{slash}{host}", max_retries=2, pool_size=1, max_bytes=_MAX_BYTES)
    try:
        status, body = client.exchange("GET", f"/{path}", timeout=timeout)
    finally:
        client.close()
    if status != 200:
        raise InfrastructureError(f"{url.split('?')[0]} answered HTTP {status}; expected an OpenAPI document.")
    return body


def _parsed(data: bytes, where: str) -> Any:
    try:
        if data.lstrip()[:1] == b"{":
            return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is no JSON: {error}.") from error
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError(f"{where} is no JSON, and YAML needs PyYAML: pip install pyyaml") from error
    try:
        return yaml.load(data, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is neither JSON nor YAML: {str(error).splitlines()[0]}.") from error


def _checked(document: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping) or not isinstance(document.get("paths", {}), Mapping):
        raise ConfigurationError(f"{where} is no OpenAPI document: expected an object with 'openapi' and 'paths'.")
    version = document.get("openapi")
    if "swagger" in document and version is None:
        raise ConfigurationError(f"{where} is Swagger {document['swagger']}; convert it to OpenAPI 3 first.")
    if not isinstance(version, str) or not version.startswith(("3.0", "3.1")):
        raise ConfigurationError(f"{where} must say 'openapi': '3.0.x' or '3.1.x', got {version!r:.40}.")
    return document


def operations(
    document: Mapping[str, Any], *, hidden: Collection[str], own_servers: bool
) -> Iterator[tuple[str, tuple[str, ...], Operation | Unfit]]:
    """Yields name, tags and the operation itself, or why it cannot be a tool.

    Args:
        document: what `read_document` returned.
        hidden: parameters that the model must not see, in small letters: credentials.
        own_servers: whether an operation with servers of its own is unfit.
    """
    seen: set[str] = set()
    for path, item in document.get("paths", {}).items():
        resolver = Resolver(document)
        try:
            item = resolver.resolved(item)
        except Unfit as problem:
            yield str(path), (), problem
            continue
        for method in _METHODS:
            node = item.get(method)
            if not isinstance(node, Mapping):
                continue
            name = str(node.get("operationId") or "_".join(re.findall(r"\w+", f"{method} {path}")))
            if name in seen:  # two paths may read alike, and none may vanish
                name = f"{method} {path}"
            seen.add(name)
            said = node.get("tags")
            tags = tuple(map(str, said)) if isinstance(said, list) else ()
            try:
                if own_servers and (node.get("servers") or item.get("servers")):
                    raise Unfit("it has a server of its own")
                yield name, tags, _Reader(document, hidden).operation(name, method, str(path), node, item)
            except Unfit as problem:
                yield name, tags, problem
            except (AttributeError, KeyError, TypeError, ValueError) as error:  # shapes that no OpenAPI has
                yield name, tags, Unfit(f"it is malformed ({type(error).__name__}: {error})")


class _Reader:
    """Reads one operation."""

    def __init__(self, document: Mapping[str, Any], hidden: Collection[str]) -> None:
        self._resolver = Resolver(document)
        self._hidden = hidden
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []
        self._places: dict[str, Place] = {}

    def operation(
        self, name: str, method: str, path: str, node: Mapping[str, Any], item: Mapping[str, Any]
    ) -> Operation:
        parameters: dict[tuple[str, str], Mapping[str, Any]] = {}
        for parameter in (*item.get("parameters", ()), *node.get("parameters", ())):
            found = self._resolver.resolved(parameter)
            parameters[str(found["name"]), str(found["in"])] = found  # the operation's own come last
        for (wire_name, kind), found in parameters.items():
            self._add_parameter(wire_name, kind, found)
        self._check_template(path)
        media_type = self._add_body(node["requestBody"]) if "requestBody" in node else ""
        said = str(node.get("description") or node.get("summary") or f"{method.upper()} {path}")
        schema = {
            "type": "object",
            "properties": self._properties,
            "required": self._required,
            "additionalProperties": False,
        }
        return Operation(name, method.upper(), path, said[:1_000], schema, self._places, media_type)

    def _add_parameter(self, name: str, kind: str, node: Mapping[str, Any]) -> None:
        required = bool(node.get("required")) or kind == "path"
        if kind == "cookie" or name.lower() in self._hidden:
            if required and name.lower() not in self._hidden:
                raise Unfit(f"it needs the cookie {name!r}")
            return
        if kind == "header" and name.lower() in _IGNORED_HEADERS:
            return
        style = str(node.get("style", ""))
        if "content" in node:
            (media_type, content), *_ = node["content"].items()
            if not _is_json(media_type):
                raise Unfit(f"its parameter {name!r} is {media_type}")
            schema, style = content.get("schema", {}), "json"
        else:
            schema = node.get("schema", {})
        schema = self._resolver.schema(schema)
        if node.get("description"):
            schema["description"] = str(node["description"])
        explode = bool(node.get("explode", style in ("", "form", "deepObject")))
        self._add(name, schema, required, Place(kind, name, style, explode))

    def _add_body(self, node: Any) -> str:
        body = self._resolver.resolved(node)
        media_types = body.get("content", {})
        media_type = next((name for name in media_types if _is_json(name) or name == _FORM), None)
        if media_type is None:
            raise Unfit(f"its body is {', '.join(media_types) or 'of no type'}")
        schema = self._resolver.schema(media_types[media_type].get("schema", {}))
        required, members = bool(body.get("required")), schema.get("properties") or {}
        simple = schema.get("type") == "object" and members and not schema.get("additionalProperties")
        if simple and not set(members) & set(self._properties) and not set(schema) & {*OF_LISTS, "not"}:
            for name, member in members.items():
                self._add(name, member, required and name in schema.get("required", ()), Place("body", name))
        else:
            self._add("body", schema, required, Place("whole", "body"))
        return _JSON if _is_json(media_type) else media_type

    def _add(self, name: str, schema: dict[str, Any], required: bool, place: Place) -> None:
        argument = name if name not in self._properties else f"{name}_{place.kind}"
        if argument in self._properties:
            raise Unfit(f"two of its parameters are called {argument!r}")
        self._properties[argument], self._places[argument] = schema, place
        if required:
            self._required.append(argument)

    def _check_template(self, path: str) -> None:
        for name in _template_names(path):
            if not any(place.kind == "path" and place.name == name for place in self._places.values()):
                raise Unfit(f"its path needs {name!r}, which is no parameter")


def _template_names(path: str) -> Sequence[str]:
    return [part.partition("}")[0] for part in path.split("{")[1:]]


def _is_json(media_type: str) -> bool:
    kind = media_type.split(";")[0].strip().lower()
    return kind == _JSON or kind.endswith("+json")
