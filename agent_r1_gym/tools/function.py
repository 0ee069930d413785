"""`@tool`: a `Tool` from a typed, documented function."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union

from agent_r1_gym.core.tool import Arguments, Tool
from agent_r1_gym.core.types import ToolOutcome
from agent_r1_gym.errors import ConfigurationError, suggest

_SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object", list: "array"}
_OPTIONS = ("name", "timeout", "max_output_chars", "deterministic")
_LIMITS = {
    **{"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"},
    **{"multiple_of": "multipleOf", "pattern": "pattern"},
}
"""Attributes of annotated_types and of pydantic's fields, and the keyword of JSON Schema that each one is."""
_LENGTHS = {"string": "Length", "array": "Items", "object": "Properties"}
_HEADING = re.compile(r"^\s*(?:args|arguments|params|parameters|keyword arg(?:ument)?s)\b\s*:?", re.I | re.M)
_LIST_ITEM = re.compile(r"\s|[-*+>|`]|\d+[.)] ")


class FunctionTool(Tool):
    """A tool that calls a function. The object itself can be called like the function.

    Coroutine functions run on one event loop per process, and are cancelled at the timeout.
    """

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, description: str | None = None, **limits: Any
    ) -> None:
        if not inspect.isroutine(function):
            raise ConfigurationError(f"@tool takes a function or a method, got {function!r:.80}.")
        documentation = Documentation.read(function)
        description = description or documentation.description
        if not description:
            raise ConfigurationError(f"{function.__name__} needs a docstring: the description that the model reads.")
        parameters = parameter_schema(function, documentation)
        super().__init__(name or function.__name__, description, parameters, **limits)
        self._function = function
        self.__doc__ = inspect.getdoc(function)
        self.__module__ = function.__module__

    def execute(self, arguments: Arguments) -> str | ToolOutcome:
        """Call the function with `arguments` by keyword; a result that is not text becomes JSON."""
        return run_awaitable(self._function(**arguments), self.timeout)  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: typing.SupportsIndex) -> Any:
        """Pickle and copy by name, as functions do, if the function's name refers to this tool (`@tool`)."""
        name = self._function.__qualname__
        module = sys.modules.get(self.__module__)
        return name if getattr(module, name, None) is self else super().__reduce_ex__(protocol)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self._function(*args, **kwargs)


@typing.overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...
@typing.overload
def tool(
    *,
    name: str | None = None,
    timeout: float | None = 30.0,
    max_output_chars: int = 8_192,
    deterministic: bool = False,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Turn a typed, documented function into a `Tool`.

    The name, the docstring and the annotations become the schema that the model sees. Arguments are validated against
    it before the function runs. The docstring, in the style of Google, NumPy, Sphinx or Epydoc, gives the description
    of the tool and of its arguments; what it says of results and exceptions, and its examples, are for people.

    Args:
        function: the function, `async` or not; its parameters are annotated with str, int, float, bool, list, dict,
            Literal or unions. `Annotated` adds a description (a string, or pydantic's `Field(description=...)`), which
            precedes that of the docstring, and limits (`Field(ge=1, le=10)`, or those of annotated_types).
        **options: `name`, `timeout`, `max_output_chars`, `deterministic` of `Tool`.

    Raises:
        ConfigurationError: no docstring, or a parameter with a missing or unsupported annotation.

    Warns:
        UserWarning: a part of the docstring or of an annotation cannot be read, and does not reach the model.
    """
    for option in options:
        if option not in _OPTIONS:
            raise ConfigurationError(f"@tool has no option {option!r}. {suggest(option, _OPTIONS)}")
    if function is None:
        return lambda decorated: FunctionTool(decorated, **options)
    return FunctionTool(function)


class Documentation(NamedTuple):
    """What a model reads of a docstring.

    Attributes:
        description: the text before the sections, whole.
        arguments: description of each argument that it describes.
    """

    description: str
    arguments: dict[str, str]

    @classmethod
    def read(cls, function: Callable[..., Any]) -> Documentation:
        """Parse the docstring of a function, in whichever style it is written; warn of what is lost."""
        from docstring_parser import ParseError, epydoc, google, numpydoc, rest

        text = inspect.getdoc(function) or ""
        multiple = google.SectionType.MULTIPLE
        further = [
            google.Section(title, "param", multiple)
            for title in ("Keyword Args", "Keyword Arguments", "Other Parameters")
        ]
        styles = (google.GoogleParser([*google.DEFAULT_SECTIONS, *further]), numpydoc, rest, epydoc)
        candidates = []
        for style in styles:
            with contextlib.suppress(ParseError):  # not in this style
                candidates.append(style.parse(text))
        parsed = max(candidates, key=lambda docstring: len(docstring.meta))
        described: dict[str, str] = {}
        for entry in parsed.params:
            for name in entry.arg_name.split(","):  # NumPy's style describes several at once
                described[name.strip().lstrip("*\\")] = " ".join((entry.description or "").split())
        description = "\n\n".join(map(_unwrapped, re.split(r"\n\s*\n", (parsed.description or "").strip())))
        _warn_of_lost_text(function, text, parsed, described)
        return cls(description, {name: meaning for name, meaning in described.items() if meaning})


def _unwrapped(paragraph: str) -> str:
    """Join the lines of a paragraph, but not those of a list, a table or code."""
    lines = paragraph.split("\n")
    return paragraph if any(map(_LIST_ITEM.match, lines)) else " ".join(lines)


def _warn_of_lost_text(function: Callable[..., Any], text: str, parsed: Any, described: Iterable[str]) -> None:
    name = function.__name__
    parameters = inspect.signature(function).parameters
    kept = [parsed.description or ""]
    for entry in parsed.meta:
        kept += [*entry.args, entry.description or "", getattr(entry, "snippet", None) or ""]
        kept += [str(getattr(entry, part, None) or "") for part in ("type_name", "default", "version")]
    words = set(re.findall(r"\w+", " ".join(kept)))
    lost = [line.strip() for line in text.splitlines() if _is_lost(line, words)]
    unknown = [argument for argument in described if argument not in parameters]
    problem = ""
    if unknown:
        problem = f"describes {unknown}, which are not among its parameters {[*parameters]}"
    elif not described and parameters and _HEADING.search(text):
        problem = 'has a section of arguments that cannot be read; write "Args:", and below it "    name: meaning"'
    elif lost and described:
        problem = f"has text after its arguments that the model will not read: {lost[0]!r:.80}; put it before them"
    if problem:
        warnings.warn(f"The docstring of {name} {problem}.", stacklevel=5)


def _is_lost(line: str, kept: set[str]) -> bool:
    """Whether a parser dropped a line: most of its words are nowhere. Headings and field names have only a few."""
    found = re.findall(r"\w+", line)
    return len(found) > 2 and line.strip()[0] not in ":@" and sum(word in kept for word in found) < len(found) / 2


def parameter_schema(function: Callable[..., Any], documentation: Documentation | None = None) -> dict[str, Any]:
    """Build the JSON schema of a function's arguments from its annotations and its docstring.

    Args:
        function: the function.
        documentation: its docstring, parsed; None: it is parsed here.

    Raises:
        ConfigurationError: a parameter has a missing or unsupported annotation.
    """
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigurationError(f"{function.__name__}: an annotation cannot be read: {error}.") from error
    descriptions = (documentation or Documentation.read(function)).arguments
    properties: dict[str, Any] = {}
    required = []
    for name, parameter in inspect.signature(function).parameters.items():
        where = f"{function.__name__}({name})"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigurationError(f"{function.__name__}: parameter {name!r} must be an ordinary named parameter.")
        if name not in hints:
            raise ConfigurationError(f"{function.__name__}: parameter {name!r} needs a type annotation.")
        if is_field(parameter.default):
            raise ConfigurationError(
                f"{where}: the default is a pydantic field, which a plain call would pass to the function; write "
                "Annotated[TYPE, Field(...)] = DEFAULT, or use as_tool()."
            )
        properties[name] = _type_schema(hints[name], where)
        if name in descriptions:
            properties[name].setdefault("description", descriptions[name])
        if parameter.default is parameter.empty:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def is_field(value: Any) -> bool:
    """Whether a value is pydantic's `Field(...)`, without importing pydantic."""
    return type(value).__name__ == "FieldInfo"


def _type_schema(annotation: Any, where: str) -> dict[str, Any]:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        schema = _type_schema(parts[0], where)
        unread = [item for item in _metadata(parts[1:]) if not _add_metadata(schema, item)]
        if unread:
            warnings.warn(f"{where}: @tool does not apply {unread!r:.120}; as_tool() does.", stacklevel=4)
        return schema
    if isinstance(annotation, type) and annotation in _SIMPLE:
        return {"type": _SIMPLE[annotation]}
    if annotation is type(None):
        return {"type": "null"}
    if origin is Literal and all(isinstance(part, str | int | None) for part in parts):
        return {"enum": list(parts)}
    if origin is list:
        return {"type": "array", "items": _type_schema(parts[0], where)} if parts else {"type": "array"}
    if origin is dict and not parts:
        return {"type": "object"}
    if origin is dict and parts[0] is str:
        return {"type": "object", "additionalProperties": _type_schema(parts[1], where)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type_schema(part, where) for part in parts]}
    raise ConfigurationError(
        f"{where}: no JSON schema for {annotation!r}; use str, int, float, bool, list, dict, Literal or a union of "
        "them. For pydantic models and other types that pydantic supports, use as_tool()."
    )


def _metadata(items: Iterable[Any]) -> Iterator[Any]:
    """Yield what `Annotated` adds to a type; a pydantic field as its parts."""
    for item in items:
        if not is_field(item):
            yield item
            continue
        yield item.description or ""
        yield from item.metadata
        if not item.is_required():
            yield {"default": item.get_default(call_default_factory=False)}


def _add_metadata(schema: dict[str, Any], item: Any) -> bool:
    """Add one item to a schema; return whether it is understood."""
    text = item if isinstance(item, str) else getattr(item, "documentation", None)  # of `Doc`
    if isinstance(text, str):
        schema |= {"description": " ".join(text.split())} if text.strip() else {}
        return True
    found = {name: value for name in _LIMITS if (value := getattr(item, name, None)) is not None}
    schema |= {_LIMITS[name]: getattr(value, "pattern", value) for name, value in found.items()}
    kinds = [part.get("type") for part in schema.get("anyOf", (schema,))]
    for bound in ("min", "max"):
        length = getattr(item, f"{bound}_length", None)
        if length is not None:
            found[bound] = length
            schema |= {f"{bound}{_LENGTHS[kind]}": length for kind in kinds if kind in _LENGTHS}
    return bool(found) or getattr(item, "strict", None) is not None  # a schema is always strict


def run_awaitable(value: Any, timeout: float | None) -> Any:
    """Await a coroutine, cancelled after `timeout` seconds; return any other value as it is."""
    if not inspect.iscoroutine(value):
        return value
    from agent_r1_gym.support.concurrency import SHARED  # asyncio takes a while to import

    return SHARED.run(value, timeout)
