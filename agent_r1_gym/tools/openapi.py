"""Tools from an OpenAPI document: one tool per operation of an HTTP service."""

from __future__ import annotations

import functools
import json
import os
import re
import urllib.parse
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agent_r1_gym.core.tool import Arguments, Tool
from agent_r1_gym.core.types import ToolOutcome
from agent_r1_gym.errors import ConfigurationError, InfrastructureError, MissingDependencyError, ToolError, suggest
from agent_r1_gym.support.checks import check_integer, check_seconds
from agent_r1_gym.support.files import is_url
from agent_r1_gym.support.http import FullResponse, HTTPClient, TooLargeError, check_headers
from agent_r1_gym.support.secrets import Secrets
from agent_r1_gym.tools.schemas import (
    COMBINERS,
    Resolver,
    UnsupportedError,
    sanitize_description,
    sanitize_schema,
    valid_tool_names,
)

Credentials = Mapping[str, str] | Callable[[], Mapping[str, str]]
_GRACE = 5.0
"""Seconds by which a call's thread outlasts the request, which has its own timeout."""
_POOL = 64
_LOCAL = ("127.0.0.1", "localhost", "::1")
_INFRASTRUCTURE = frozenset({401, 407, 408, 425, 429, *range(500, 600)}) - {501}
"""Statuses that are not the model's fault."""
_TEXT_TYPES = ("json", "xml", "yaml", "javascript", "x-www-form-urlencoded")
"""Endings of media types that are text, in addition to text/*."""
_MAX_DOCUMENT = 16 * 2**20
"""Bytes of a file, and again characters when all aliases of YAML are expanded."""
_MAX_OPERATIONS = 2_000
_MAX_PARAMETERS = 500
"""Of one operation."""
_MAX_NESTING = 200
_MAX_MEMBERS = 1_000_000
"""Of all objects of YAML, with what is merged into them."""
_METHODS = ("get", "put", "post", "delete", "options", "head", "patch")
_JSON, _FORM = "application/json", "application/x-www-form-urlencoded"
_IGNORED_HEADERS = {"accept", "content-type", "authorization"}
"""Header parameters that clients ignore, as the specification demands."""
_SEPARATORS = {"pipeDelimited": "|", "spaceDelimited": " "}
"""Between the items of a list in a query, by style; a comma otherwise."""
_STYLES = {
    "path": ("simple",),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
}
"""Supported styles of parameters by location, the default first."""


def openapi_tools(
    document: Mapping[str, Any] | str | os.PathLike[str],
    *,
    server: str | None = None,
    hosts: Sequence[str] = (),
    include: Sequence[str] | None = None,
    tags: Sequence[str] | None = None,
    headers: Credentials | None = None,
    query: Credentials | None = None,
    prefix: str = "",
    deterministic: bool = False,
    pretty: bool = False,
    timeout: float = 10.0,
    max_response_bytes: int = 2**20,
    max_output_chars: int = 8_192,
) -> list[OpenApiTool]:
    """Operations of an HTTP service as tools, for `ToolEnv(tools=...)`.

    Path, query and header parameters and the members of a JSON or form body become one flat schema. References are
    inlined, and a recursive schema is cut at its second level. An operation that cannot be a tool (a file upload, a
    required cookie, a reference to another document) is skipped with a warning, or refused if `include` names it.

    A 2xx response is text for the model (JSON also as `data` of the outcome). 401, 407, 408, 425, 429, 5xx except 501,
    redirects (which are not followed), lost connections and invalid JSON are infrastructure failures, with the seconds
    of `Retry-After`. Other 4xx and 501 are tool errors with the body. No request is sent twice.

    Args:
        document: OpenAPI 3.0 or 3.1, as a dictionary, the path of a JSON or YAML file, or a URL.
        server: URL of the service; None: the document's first server, which must be this machine or in `hosts`.
        hosts: hosts that the document's server may be, as in "api.example.com".
        include: operations to use, by `operationId`; None: all.
        tags: use only operations with one of these tags.
        headers: credentials sent as headers with each request, or a function that returns them. The model sees neither
            these parameters nor their values, which are removed from every response.
        query: the same, for the query.
        prefix: put before the name of each tool.
        deterministic: whether equal GETs have equal responses, so that those of one step are sent once.
        pretty: indented JSON; default: without spaces.
        timeout: seconds per request, to the last byte.
        max_response_bytes: size of the largest response that is read; a larger one is a tool error.
        max_output_chars: longer outputs are truncated, with a note.

    Raises:
        ConfigurationError: a document, host or option is not valid, or no operation can be used.
        InfrastructureError: the document cannot be fetched.
    """
    check_integer("max_response_bytes", max_response_bytes, 1)
    check_seconds("timeout", timeout)
    description = _read_document(document, timeout=max(timeout, 30.0))
    service = HTTPService(
        _server_url(description, server, hosts, source=document if isinstance(document, str) else ""),
        headers=headers,
        query=query,
        timeout=timeout,
        max_bytes=max_response_bytes,
    )
    selected = _selected(description, include, tags, hidden=service.credential_names(), own_servers=server is None)
    names = valid_tool_names([operation.name for operation in selected], prefix=prefix, source=service.host)
    return [
        OpenApiTool(
            service,
            operation,
            names[operation.name],
            pretty=pretty,
            deterministic=deterministic and operation.method == "GET",
            timeout=timeout,
            max_output_chars=max_output_chars,
        )
        for operation in selected
    ]


class OpenApiTool(Tool):
    """An operation of an HTTP service (see `openapi_tools`)."""

    def __init__(
        self,
        service: HTTPService,
        operation: Operation,
        name: str,
        *,
        pretty: bool,
        deterministic: bool,
        timeout: float,
        max_output_chars: int,
    ) -> None:
        super().__init__(
            name,
            sanitize_description(operation.description, otherwise=operation.name),
            sanitize_schema(operation.schema, f"Operation {operation.name!r}"),
            timeout=timeout + _GRACE,
            max_output_chars=max_output_chars,
            deterministic=deterministic,
        )
        self.service, self.operation = service, operation
        self._pretty = pretty

    def execute(self, arguments: Arguments) -> ToolOutcome:
        """Send one request and return its response."""
        path, query, headers, body = _request(self.operation, arguments)
        reply, secrets = self.service.request(self.operation.method, path, query, headers, body)
        (status, content), wait, content_type = reply
        if status in _INFRASTRUCTURE:
            hint = "; it requires a login: pass headers= or query=" if status in (401, 407) else ""
            raise InfrastructureError(f"{self.service.host} answered HTTP {status}{hint}.", retry_after=wait)
        if 300 <= status < 400:
            raise InfrastructureError(f"{self.service.host} answered HTTP {status}; redirects are not followed.")
        kind = _bare(content_type)
        if content and kind and not kind.startswith("text/") and not kind.endswith(_TEXT_TYPES):
            raise ToolError(f"The response is {kind}, {len(content)} bytes, which cannot be shown.")
        text, data = secrets.redact(content.decode("utf-8", "replace")), None
        if kind.endswith("json") and text:
            text, data = self._json(text, secrets, failed=status >= 400)
        if not 200 <= status < 300:
            raise HttpStatusError(status, text)
        return ToolOutcome(text or f"HTTP {status}, no content.", data=data)

    def close(self) -> None:
        """Close the connections to the service; a later call opens new ones."""
        self.service.close()

    def _json(self, text: str, secrets: Secrets, *, failed: bool) -> tuple[str, Any]:
        """Format JSON for the model; also its data."""
        spaces: dict[str, Any] = {"indent": 2} if self._pretty else {"separators": (",", ":")}
        try:
            # Again, on the decoded strings: JSON may escape the characters of a secret.
            data = secrets.redact_json(json.loads(text))
            return json.dumps(data, ensure_ascii=False, **spaces), data
        except (ValueError, RecursionError) as error:
            if failed:
                return text, None
            raise InfrastructureError(f"{self.service.host} returned invalid JSON: {error}.") from error

    def __repr__(self) -> str:
        return f"OpenApiTool({self.name!r}, {self.operation.method} {self.operation.path} of {self.service.host!r})"


class HttpStatusError(ToolError):
    """The service refused a request; the model reads the message.

    Attributes:
        status: HTTP status.
        text: body of the response.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status, self.text = status, text


class HTTPService:
    """An HTTP service with its credentials; pickles without its connections.

    Attributes:
        url: without credentials.
        host: name in messages.
    """

    def __init__(
        self, url: str, *, headers: Credentials | None, query: Credentials | None, timeout: float, max_bytes: int
    ) -> None:
        self.url, self.timeout = url, timeout
        self.host = urllib.parse.urlsplit(url).netloc
        self._credentials = {"headers": headers, "query": query}
        self._max_bytes = max_bytes
        self._client: HTTPClient | None = None

    def credential_names(self) -> set[str]:
        """Names of the parameters that are credentials, in lower case.

        Raises:
            ConfigurationError: the credentials are not strings, or cannot be sent.
        """
        current = {option: self._current(option) for option in self._credentials}
        for option, mapping in current.items():
            if not all(isinstance(part, str) for item in mapping.items() for part in item):
                raise ConfigurationError(f"{option} must map names to strings.")
        check_headers(current["headers"], f"headers= of {self.host}")
        return {name.lower() for mapping in current.values() for name in mapping}

    def request(
        self, method: str, path: str, query: Sequence[tuple[str, str]], headers: Mapping[str, str], body: bytes | None
    ) -> tuple[FullResponse, Secrets]:
        """Send a request with the credentials; the reply, and the secrets to remove from it."""
        own_headers, own_query = self._current("headers"), self._current("query")
        secrets = Secrets([*own_headers.values(), *own_query.values()])
        encoded = urllib.parse.urlencode([*query, *own_query.items()])
        if self._client is None:
            self._client = HTTPClient(self.url, max_retries=0, pool_size=_POOL, max_bytes=self._max_bytes)
        try:
            reply = self._client.request_once(
                method,
                path + (f"?{encoded}" if encoded else ""),
                body,
                timeout=self.timeout,
                headers={"Accept": "application/json, text/*;q=0.9", **headers, **own_headers},
            )
        except TooLargeError:
            raise ToolError(f"The response is larger than {self._max_bytes} bytes; request less.") from None
        except InfrastructureError as error:
            # The model wrote the path, but the query may hold credentials.
            message = secrets.redact(str(error).replace(f"?{encoded}", ""))
            raise type(error)(message, retry_after=error.retry_after) from None
        return reply, secrets

    def close(self) -> None:
        """Close the connections; a later request opens new ones."""
        if self._client is not None:
            self._client.close()

    def _current(self, option: str) -> dict[str, str]:
        credentials = self._credentials[option]
        if not callable(credentials):
            return dict(credentials or {})
        try:
            return dict(credentials())
        except Exception as error:  # the model reads this message, so it must not quote the error
            raise InfrastructureError(f"{option}= of {self.host} failed: {type(error).__name__}.") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_client": None}

    def __repr__(self) -> str:
        return f"HTTPService({self.host!r})"


# --- which operations, of which server -------------------------------------------------------------------------------


def _selected(
    document: Mapping[str, Any],
    include: Sequence[str] | None,
    tags: Sequence[str] | None,
    *,
    hidden: Collection[str],
    own_servers: bool,
) -> list[Operation]:
    """The operations that become tools.

    Raises:
        ConfigurationError: a name or tag is unknown, an operation in `include` cannot be a tool, or none is left.
    """
    for option, value in (("include", include), ("tags", tags)):
        if isinstance(value, str):
            raise ConfigurationError(f"{option} must be a list of names, got the string {value!r:.80}.")
    known = {name: (own, make) for name, own, make in _operations(document, hidden=hidden, own_servers=own_servers)}
    known_tags = {tag for own_tags, _ in known.values() for tag in own_tags}
    for kind, names, valid in (("operation", include, known), ("tag", tags, known_tags)):
        for name in names or ():
            if name not in valid:
                raise ConfigurationError(f"There is no {kind} {name!r}. {suggest(name, valid)}")
    chosen = {
        name: make
        for name, (own_tags, make) in known.items()
        if (include is None or name in include) and (tags is None or set(tags) & set(own_tags))
    }
    if len(chosen) > _MAX_OPERATIONS:
        raise ConfigurationError(
            f"The document has {len(chosen)} operations; at most {_MAX_OPERATIONS} can be tools: pass include= or tags="
        )
    wanted = {name: make() for name, make in chosen.items()}
    fit = [made for made in wanted.values() if isinstance(made, Operation)]
    unfit = "; ".join(f"{name!r}: {made}" for name, made in wanted.items() if isinstance(made, UnsupportedError))
    if unfit and (include is not None or not fit):
        raise ConfigurationError(f"These operations cannot be tools: {unfit}."[:1_000])
    if not fit:
        raise ConfigurationError("The document has no operations, or none with these names and tags.")
    if unfit:
        warnings.warn(f"Operations that cannot be tools are skipped: {unfit}."[:2_000], stacklevel=3)
    return fit


def _server_url(document: Mapping[str, Any], server: str | None, hosts: Sequence[str], source: str) -> str:
    """The service's URL, without credentials.

    Raises:
        ConfigurationError: there is none, or the document names a host that the user did not allow.
    """
    if isinstance(hosts, str):
        raise ConfigurationError(f"hosts must be a list of names, got the string {hosts!r:.80}.")
    url = server
    if url is None:
        try:
            first = document["servers"][0]
            defaults = {name: str(variable["default"]) for name, variable in first.get("variables", {}).items()}
            url = str(first["url"]).format_map(defaults)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            url = "/"  # the specification's default
        if is_url(source):
            url = urllib.parse.urljoin(source, url)
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigurationError(f"The server {url!r:.80} is not a valid URL: {error}.") from error
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigurationError("The document names no server; pass server='http://127.0.0.1:8000'.")
    if server is None and not {host, f"{host}:{port}"} & {*hosts, *_LOCAL}:
        raise ConfigurationError(f"The document's server {host!r} is not allowed: pass hosts=[{host!r}], or server=.")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


# --- reading the document --------------------------------------------------------------------------------------------


def _read_document(source: Mapping[str, Any] | str | os.PathLike[str], *, timeout: float) -> Mapping[str, Any]:
    """Read a dictionary, a file (JSON or YAML) or a URL.

    Raises:
        ConfigurationError: it is not OpenAPI 3, or larger than 16 MiB as a file or with its aliases expanded.
        InfrastructureError: its URL cannot be fetched.
    """
    document: Any = source
    where = "The document" if isinstance(source, Mapping) else str(source)
    if is_url(source):
        where = where.split("?")[0]  # the query may hold credentials
        document = _parsed(_fetched(str(source), where, timeout), where)
    elif not isinstance(source, Mapping):
        path = Path(source)
        try:
            size = path.stat().st_size
            if size > _MAX_DOCUMENT:
                raise ConfigurationError(
                    f"{where} has {size} bytes; at most {_MAX_DOCUMENT} are read. Keep only the operations you need."
                )
            document = _parsed(path.read_bytes(), where)
        except OSError as error:
            raise ConfigurationError(f"OpenAPI document {where!r:.200} cannot be read: {error.strerror}.") from error
    if not isinstance(document, Mapping) or not isinstance(document.get("paths", {}), Mapping):
        raise ConfigurationError(f"{where} is not an OpenAPI document: expected an object with 'openapi' and 'paths'.")
    if _extent(document, {}, where).size > _MAX_DOCUMENT:
        raise ConfigurationError(
            f"{where} has more than {_MAX_DOCUMENT} characters when its YAML aliases are expanded. Keep only the "
            "operations you need."
        )
    version = document.get("openapi")
    if "swagger" in document and version is None:
        raise ConfigurationError(f"{where} is Swagger {document['swagger']}; convert it to OpenAPI 3 first.")
    if not isinstance(version, str) or not version.startswith(("3.0", "3.1")):
        raise ConfigurationError(f"{where} must have 'openapi': '3.0.x' or '3.1.x', got {version!r:.40}.")
    return document


def _fetched(url: str, where: str, timeout: float) -> bytes:
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    client = HTTPClient(f"{scheme}://{host}", max_retries=2, pool_size=1, max_bytes=_MAX_DOCUMENT)
    try:
        status, body = client.request("GET", f"/{path}", timeout=timeout)
    finally:
        client.close()
    if status != 200:
        raise InfrastructureError(f"{where} answered HTTP {status}; expected an OpenAPI document.")
    return body


def _parsed(data: bytes, where: str) -> Any:
    try:
        if data.lstrip()[:1] == b"{":
            return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is not valid JSON: {error}.") from error
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError(f"{where} is not JSON, and YAML needs PyYAML: pip install pyyaml") from error

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # a class chosen at run time
        members = 0

        def flatten_mapping(self, node: Any) -> None:
            super().flatten_mapping(node)
            self.members += len(node.value)
            if self.members > _MAX_MEMBERS:  # merges of merges grow as aliases do
                raise ValueError(f"its objects have more than {_MAX_MEMBERS} members with all that is merged")

    try:
        return yaml.load(data, Loader=Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{where} is neither JSON nor YAML: {str(error).splitlines()[0]}.") from error


class _Extent(NamedTuple):
    """Size of a part of a document (values and characters, those behind each alias counted every time) and height."""

    size: int
    height: int


def _extent(node: Any, known: dict[int, _Extent | None], where: str, depth: int = 0) -> _Extent:
    """Measure a document without expanding it.

    Args:
        node: part of the document.
        known: extents of objects and lists by identity; None for those that contain this one.
        where: the document, for errors.
        depth: level of this part.

    Raises:
        ConfigurationError: a part contains itself, or is nested too deeply.
    """
    if not isinstance(node, Mapping | list):
        return _Extent(len(node) if isinstance(node, str) else 1, 0)
    if id(node) not in known and depth <= _MAX_NESTING:
        known[id(node)] = None
        parts = [*map(str, node), *node.values()] if isinstance(node, Mapping) else node
        extents = [_extent(part, known, where, depth + 1) for part in parts]
        height = 1 + max((extent.height for extent in extents), default=0)
        known[id(node)] = _Extent(1 + sum(extent.size for extent in extents), height)
    extent = known.get(id(node), _Extent(0, 1))
    if extent is None:
        raise ConfigurationError(f"{where} is not an OpenAPI document: a YAML alias refers to an object around itself.")
    if depth + extent.height > _MAX_NESTING:
        raise ConfigurationError(f"{where} is nested more than {_MAX_NESTING} levels deep.")
    return extent


# --- document -> operations ------------------------------------------------------------------------------------------


class Location(NamedTuple):
    """Where an argument goes: "path", "query", "header", "body" (a member of it) or "whole" (the entire body)."""

    kind: str
    name: str
    style: str = "form"
    explode: bool = True


@dataclass(frozen=True)
class Operation:
    """One operation of a service.

    Attributes:
        name: `operationId`, or method and path.
        method: in upper case.
        path: template, as in "/items/{id}".
        description: for the model.
        schema: JSON schema of the arguments.
        locations: where each argument goes.
        media_type: of the body, "" for none.
        empty_body: whether a request without arguments of the body has an empty object as its body.
    """

    name: str
    method: str
    path: str
    description: str
    schema: Mapping[str, Any]
    locations: Mapping[str, Location]
    media_type: str
    empty_body: bool


def _operations(
    document: Mapping[str, Any], *, hidden: Collection[str], own_servers: bool
) -> Iterator[tuple[str, tuple[str, ...], Callable[[], Operation | UnsupportedError]]]:
    """Yield name, tags, and a function that reads the operation or returns why it cannot be a tool.

    Args:
        document: the OpenAPI document.
        hidden: parameters that are credentials, in lower case; the model must not see them.
        own_servers: whether to refuse operations that have a server different from the document's.
    """
    seen: set[str] = set()
    for path, item in document.get("paths", {}).items():
        try:
            item = Resolver(document).resolved(item)
        except UnsupportedError as problem:
            yield str(path), (), functools.partial(UnsupportedError, *problem.args)
            continue
        for method in _METHODS:
            node = item.get(method)
            if not isinstance(node, Mapping):
                continue
            name = str(node.get("operationId") or "_".join(re.findall(r"\w+", f"{method} {path}")))
            if name in seen:  # two operations may have the same name; neither may be lost
                name = f"{method} {path}"
            seen.add(name)
            tags = tuple(map(str, node["tags"])) if isinstance(node.get("tags"), list) else ()
            if own_servers and (node.get("servers") or item.get("servers")):
                yield name, tags, functools.partial(UnsupportedError, "it has its own server")
            else:
                reader = _OperationReader(document, hidden)
                yield name, tags, functools.partial(reader.operation, name, method, str(path), node, item)


class _OperationReader:
    """Collects the arguments of one operation: their schemas, and where each goes."""

    def __init__(self, document: Mapping[str, Any], hidden: Collection[str]) -> None:
        self._resolver = Resolver(document)
        self._hidden = hidden
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []
        self._locations: dict[str, Location] = {}

    def operation(self, *arguments: Any) -> Operation | UnsupportedError:
        """Read an operation; returns why it cannot be a tool."""
        try:
            return self._read(*arguments)
        except UnsupportedError as problem:
            return problem
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # it does not have OpenAPI's shape
            return UnsupportedError(f"it is malformed ({type(error).__name__}: {error})")

    def _read(self, name: str, method: str, path: str, node: Mapping[str, Any], item: Mapping[str, Any]) -> Operation:
        parameters: dict[tuple[str, str], Mapping[str, Any]] = {}
        references = [*item.get("parameters", ()), *node.get("parameters", ())]
        if len(references) > _MAX_PARAMETERS:
            raise UnsupportedError(f"it has {len(references)} parameters, more than {_MAX_PARAMETERS}")
        for reference in references:
            parameter = self._resolver.resolved(reference)
            parameters[str(parameter["name"]), str(parameter["in"])] = parameter  # the operation's replace the path's
        for (wire_name, kind), parameter in parameters.items():
            self._add_parameter(wire_name, kind, parameter)
        in_path = {location.name for location in self._locations.values() if location.kind == "path"}
        for part in path.split("{")[1:]:
            if (placeholder := part.partition("}")[0]) not in in_path:
                raise UnsupportedError(f"its path needs {placeholder!r}, which is not a parameter")
        media_type, empty_body = self._add_body(node["requestBody"]) if "requestBody" in node else ("", False)
        description = str(node.get("description") or node.get("summary") or f"{method.upper()} {path}")
        schema = {
            "type": "object",
            "properties": self._properties,
            "required": self._required,
            "additionalProperties": False,
        }
        description = description[:1_000]
        return Operation(name, method.upper(), path, description, schema, self._locations, media_type, empty_body)

    def _add_parameter(self, name: str, kind: str, node: Mapping[str, Any]) -> None:
        required = bool(node.get("required")) or kind == "path"
        if kind == "cookie" or name.lower() in self._hidden:
            if required and name.lower() not in self._hidden:
                raise UnsupportedError(f"it needs the cookie {name!r}")
            return
        if kind == "header" and name.lower() in _IGNORED_HEADERS:
            return
        style = str(node.get("style", _STYLES[kind][0]))
        if "content" in node:
            (media_type, content), *_ = node["content"].items()
            if not _is_json(media_type):
                raise UnsupportedError(f"its parameter {name!r} is {media_type}")
            schema, style = content.get("schema", {}), "json"
        else:
            schema = node.get("schema", {})
            if style not in _STYLES[kind]:
                raise UnsupportedError(f"its parameter {name!r} has the style {style}")
        schema = self._resolver.schema(schema)
        if node.get("description"):
            schema["description"] = str(node["description"])
            self._resolver.count([schema["description"]])
        explode = bool(node.get("explode", style in ("form", "deepObject")))
        self._add(name, schema, required, Location(kind, name, style, explode))

    def _add_body(self, node: Any) -> tuple[str, bool]:
        """Add the members of the body, or the whole body where these cannot be separate arguments.

        Returns:
            Its media type, and `Operation.empty_body`.
        """
        body = self._resolver.resolved(node)
        media_types = body.get("content", {})
        usable = [name for name in media_types if _is_json(name) or _bare(name) == _FORM]
        if not usable:
            raise UnsupportedError(f"its body is {', '.join(media_types) or 'of no type'}")
        declared = min(usable, key=lambda name: _bare(name) != _JSON)
        media_type = _JSON if "*" in declared else declared  # a range ("application/*+json") cannot be sent
        schema = self._resolver.schema(media_types[declared].get("schema", {}))
        required, members = bool(body.get("required")), schema.get("properties") or {}
        simple = schema.get("type") == "object" and members and not schema.get("additionalProperties")
        if simple and not set(members) & set(self._properties) and not set(schema) & {*COMBINERS, "not"}:
            for name, member in members.items():
                self._add(name, member, required and name in schema.get("required", ()), Location("body", name))
            return media_type, required or not schema.get("required")
        self._add("body", schema, required, Location("whole", "body"))
        return media_type, False

    def _add(self, name: str, schema: dict[str, Any], required: bool, location: Location) -> None:
        argument = name if name not in self._properties else f"{name}_{location.kind}"
        if argument in self._properties:
            raise UnsupportedError(f"two of its parameters are called {argument!r}")
        self._properties[argument], self._locations[argument] = schema, location
        if required:
            self._required.append(argument)


def _bare(media_type: str) -> str:
    """A media type without its parameters."""
    return media_type.split(";")[0].strip().lower()


def _is_json(media_type: str) -> bool:
    kind = _bare(media_type)
    return kind == _JSON or kind.endswith("+json")


# --- arguments -> request --------------------------------------------------------------------------------------------


def _request(
    operation: Operation, arguments: Arguments
) -> tuple[str, list[tuple[str, str]], dict[str, str], bytes | None]:
    """Path, query, headers and body of a request.

    Raises:
        ToolError: a value cannot be sent in its location.
    """
    path, query, headers = operation.path, list[tuple[str, str]](), dict[str, str]()
    members: dict[str, Any] = {}
    body: Any = {} if operation.empty_body else None
    for argument, value in arguments.items():
        location = operation.locations[argument]
        if location.kind == "path":
            segment = "" if value is None else _joined(location, value)
            if segment in ("", ".", ".."):  # would address another path
                raise ToolError(f"{argument} cannot be {segment!r}.")
            path = path.replace(f"{{{location.name}}}", urllib.parse.quote(segment, safe=""))
        elif location.kind == "query":
            query += _query_items(location, value)
        elif location.kind == "header":
            headers |= _header(location, argument, value)
        elif location.kind == "body":
            body = members
            members[location.name] = value
        else:
            body = value
    if body is None:
        return path, query, headers, None
    headers["Content-Type"] = operation.media_type
    if _is_json(operation.media_type):
        return path, query, headers, json.dumps(body).encode()
    if not isinstance(body, Mapping):
        raise ToolError("The body of a form must be an object.")
    pairs = [pair for name, value in body.items() for pair in _query_items(Location("query", name), value)]
    return path, query, headers, urllib.parse.urlencode(pairs).encode()


def _header(location: Location, argument: str, value: Any) -> dict[str, str]:
    if value is None:  # an optional one that the model left empty
        return {}
    text = _joined(location, value)
    if not text.isprintable() or not text.isascii():  # a line break would start another header
        raise ToolError(f"{argument} is sent as a header, which takes printable ASCII only.")
    return {location.name: text}


def _query_items(location: Location, value: Any) -> list[tuple[str, str]]:
    name, style = location.name, location.style
    if value is None:
        return []
    separate = style == "deepObject" or (location.explode and style != "json")
    if isinstance(value, Mapping) and separate:
        members = [(key, member) for key, member in value.items() if member is not None]
        return [(f"{name}[{key}]" if style == "deepObject" else key, _plain(member)) for key, member in members]
    if isinstance(value, list) and separate:
        return [(name, _plain(item)) for item in value]
    return [(name, _joined(location, value))]


def _joined(location: Location, value: Any) -> str:
    """Write a value as one text, in the style of its parameter: a list as a,b and an object as x,1,y,2 or x=1,y=2."""
    if location.style == "json":
        return json.dumps(value)
    separator = _SEPARATORS.get(location.style, ",")
    if isinstance(value, list):
        return separator.join(map(_plain, value))
    if isinstance(value, Mapping):
        between = "=" if location.explode else separator
        return separator.join(f"{key}{between}{_plain(member)}" for key, member in value.items() if member is not None)
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return ",".join(map(_plain, value))
    if isinstance(value, float) and value.is_integer():  # 3.0 is an integer to JSON schema, but not to most services
        value = int(value)
    return json.dumps(value)  # true, null, 7, 1.5
