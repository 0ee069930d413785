"""`as_tool`: convert a function, or a tool of another framework, to a `Tool`.

Frameworks are recognised by the attributes of their tools; none is imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from agent_r1_gym.core.tool import Arguments, Tool
from agent_r1_gym.core.types import ToolOutcome
from agent_r1_gym.errors import AgentR1Error, ConfigurationError, ToolError, suggest
from agent_r1_gym.support.json_data import signature
from agent_r1_gym.tools.function import Documentation, FunctionTool, is_field, parameter_schema, run_awaitable
from agent_r1_gym.tools.schemas import (
    UnsupportedError,
    inline_refs,
    sanitize_description,
    sanitize_schema,
    valid_tool_names,
)

_OPTIONS = ("name", "description", "timeout", "max_output_chars", "deterministic")
_MODEL_ERRORS = {"ToolException", "ValidationError", "ModelBehaviorError"}
"""Exceptions that report a mistake to the model, or arguments that the framework's own validation refuses."""


def as_tool(obj: Any, **options: Any) -> Tool:
    """Convert a function, or a tool of another framework, to a `Tool`.

    Args:
        obj: a `Tool` (returned as it is); a documented function, `async` or not, with annotations that pydantic
            supports; an object with a documented `__call__`; a tool of LangChain (`BaseTool`), of LlamaIndex
            (`FunctionTool` and others with `metadata`), of the OpenAI Agents SDK (`FunctionTool`), or of smolagents
            (`Tool`). Callbacks, guardrails, memory and approval of these frameworks do not run.
        **options: `name`, `description`, `timeout`, `max_output_chars`, `deterministic` of `Tool`.

    Raises:
        ConfigurationError: `obj` is none of these, or its schema is not supported.
    """
    for option in options:
        if option not in _OPTIONS:
            raise ConfigurationError(f"as_tool() has no option {option!r}. {suggest(option, _OPTIONS)}")
    if isinstance(obj, Tool):
        if options:
            raise ConfigurationError(f"{obj.name!r} is a Tool already; as_tool() cannot change its {[*options]}.")
        return obj
    if not inspect.isclass(obj) and not isinstance(obj, functools.partial):
        for convert in (_from_agents_sdk, _from_langchain, _from_llama_index, _from_smolagents, _from_callable):
            try:
                tool = convert(obj, options)
            except AgentR1Error:
                raise
            except Exception as error:  # raised by the framework: for example, it cannot build a schema
                problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
                raise ConfigurationError(f"as_tool() cannot read {obj!r:.80}: {problem}") from error
            if tool is not None:
                return tool
    raise ConfigurationError(
        "as_tool() takes a Tool, a function, a callable object, or a tool (not its class) of LangChain, LlamaIndex, "
        f"the OpenAI Agents SDK or smolagents; got {obj!r:.120}."
    )


class ExternalTool(Tool):
    """A tool of another framework; `invoke` takes the arguments as a dictionary, and may return a coroutine."""

    def __init__(
        self, name: str, description: Any, schema: Any, invoke: Callable[[dict[str, Any]], Any], /, **options: Any
    ) -> None:
        where = f"Tool {name!r}"
        valid_name = options.pop("name", None) or valid_tool_names([name], source="another framework")[name]
        description = options.pop("description", None) or sanitize_description(description, otherwise=name)
        try:
            parameters = sanitize_schema(inline_refs(schema or {}), where)
        except UnsupportedError as problem:
            raise ConfigurationError(f"{where} cannot be used: {problem}.") from problem
        super().__init__(valid_name, description, parameters, **options)
        self._invoke = invoke

    def execute(self, arguments: Arguments) -> str | ToolOutcome:
        """Invoke the tool; a result that is not text becomes JSON, if possible."""
        try:
            value = run_awaitable(self._invoke(dict(arguments)), self.timeout)
        except Exception as error:
            if any(kind.__name__ in _MODEL_ERRORS for kind in type(error).__mro__):
                raise ToolError(str(error)) from error
            raise
        if hasattr(value, "model_dump"):
            value = value.model_dump(mode="json")
        return value  # type: ignore[no-any-return] # `Tool` converts it to text


# --- LangChain -------------------------------------------------------------------------------------------------------


def _from_langchain(obj: Any, options: Mapping[str, Any]) -> Tool | None:
    if not all(hasattr(obj, name) for name in ("name", "description", "invoke", "args_schema")):
        return None
    schema = getattr(obj, "tool_call_schema", None) or obj.args_schema  # the first lacks injected arguments
    if hasattr(schema, "model_json_schema"):
        schema = schema.model_json_schema()
    return ExternalTool(obj.name, obj.description, schema, functools.partial(_call_langchain, obj), **options)


def _call_langchain(tool: Any, arguments: dict[str, Any]) -> Any:
    only_async = getattr(tool, "func", tool) is None and getattr(tool, "coroutine", None) is not None
    return tool.ainvoke(arguments) if only_async else tool.invoke(arguments)


# --- LlamaIndex ------------------------------------------------------------------------------------------------------


def _from_llama_index(obj: Any, options: Mapping[str, Any]) -> Tool | None:
    metadata: Any = getattr(obj, "metadata", None)
    if not hasattr(metadata, "get_parameters_dict") or not hasattr(obj, "call"):
        return None
    name, invoke = metadata.name or type(obj).__name__, functools.partial(_call_llama_index, obj)
    return ExternalTool(name, metadata.description, metadata.get_parameters_dict(), invoke, **options)


def _call_llama_index(tool: Any, arguments: dict[str, Any]) -> ToolOutcome:
    output = tool.call(**arguments)
    if getattr(output, "is_error", False):
        raise ToolError(str(output.content))
    return ToolOutcome(str(output.content), data=output.raw_output)


# --- OpenAI Agents SDK -----------------------------------------------------------------------------------------------


def _from_agents_sdk(obj: Any, options: Mapping[str, Any]) -> Tool | None:
    if not all(hasattr(obj, name) for name in ("name", "description", "params_json_schema", "on_invoke_tool")):
        return None
    if getattr(obj, "needs_approval", False) is not False:
        raise ConfigurationError(f"Tool {obj.name!r} needs a person's approval, which an environment cannot give.")
    if (enabled := getattr(obj, "is_enabled", True)) is not True:
        raise ConfigurationError(
            f"Tool {obj.name!r} has is_enabled={enabled!r:.80}, so the SDK hides it from the model, or decides that in "
            "a run of its own. Leave the tool out, or make it with is_enabled=True."
        )
    invoke = functools.partial(_call_agents_sdk, obj)
    return ExternalTool(obj.name, obj.description, obj.params_json_schema, invoke, **options)


async def _call_agents_sdk(tool: Any, arguments: dict[str, Any]) -> Any:
    text = json.dumps(arguments)
    module = importlib.import_module(f"{type(tool).__module__.partition('.')[0]}.tool_context")
    context = module.ToolContext(context=None, tool_name=tool.name, tool_call_id="call", tool_arguments=text)
    output = await tool.on_invoke_tool(context, text)
    parts = output if isinstance(output, list | tuple) else [output]
    texts = [text for text in map(_agents_sdk_text, parts) if text is not None]
    return "\n".join(texts) if texts and len(texts) == len(parts) else output


def _agents_sdk_text(output: Any) -> str | None:
    """Return the text of an output that the SDK shows as text, None for any other."""
    if type(output).__name__ == "ToolOutputText":
        return str(output.text)
    is_text = isinstance(output, dict) and output.get("type") == "text" and isinstance(output.get("text"), str)
    return str(output["text"]) if is_text else None


# --- smolagents ------------------------------------------------------------------------------------------------------


def _from_smolagents(obj: Any, options: Mapping[str, Any]) -> Tool | None:
    if not all(hasattr(obj, name) for name in ("name", "description", "inputs", "output_type", "forward")):
        return None
    required = [name for name, value in obj.inputs.items() if not value.get("nullable")]
    schema = {"type": "object", "properties": _without_any(obj.inputs), "required": required}
    return ExternalTool(obj.name, obj.description, schema, functools.partial(_call_smolagents, obj), **options)


def _without_any(schema: Any) -> Any:
    """Drop the type "any", which JSON Schema does not have, from a schema and those in it."""
    if isinstance(schema, list):
        return [_without_any(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {key: _without_any(value) for key, value in schema.items() if (key, value) != ("type", "any")}


def _call_smolagents(tool: Any, arguments: dict[str, Any]) -> Any:
    return tool(**arguments)


# --- functions -------------------------------------------------------------------------------------------------------


def _from_callable(obj: Any, options: Mapping[str, Any]) -> Tool | None:
    if not callable(obj):
        return None
    options = dict(options)
    function = obj
    if not inspect.isroutine(obj):
        function = obj.__call__
        options.setdefault("name", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(obj).__name__).lower())
    description = options.pop("description", None)
    has_pydantic = importlib.util.find_spec("pydantic") is not None
    needs_pydantic = has_pydantic and _has_constraints(function)
    try:
        if not needs_pydantic:
            parameter_schema(function, Documentation("", {}))
    except ConfigurationError:
        if not has_pydantic:
            raise
        needs_pydantic = True
    if needs_pydantic:
        return _from_annotations(function, {**options, "description": description})
    return FunctionTool(function, description=description, **options)


def _has_constraints(function: Callable[..., Any]) -> bool:
    """Whether a parameter has constraints that only pydantic checks: in `Annotated`, or as `Field(...)` default."""
    try:
        hints = typing.get_type_hints(function, include_extras=True).values()
    except (NameError, TypeError):  # `parameter_schema` reports it
        return False
    if any(not isinstance(part, str) for hint in hints for part in getattr(hint, "__metadata__", ())):
        return True
    return any(is_field(parameter.default) for parameter in inspect.signature(function).parameters.values())


def _from_annotations(function: Callable[..., Any], options: dict[str, Any]) -> Tool:
    """Make a tool of a function whose annotations need pydantic."""
    documentation = Documentation.read(function)
    if not documentation.description and not options["description"]:
        raise ConfigurationError(f"{function.__name__} needs a docstring: the description that the model reads.")
    return _ValidatedTool(function.__name__, documentation.description, function, documentation, **options)


class _ValidatedTool(ExternalTool):
    """A tool of a function whose arguments pydantic validates, after the schema."""

    def __init__(
        self, name: str, description: str, function: Callable[..., Any], documentation: Documentation, /, **options: Any
    ) -> None:
        self._call = _ValidatedCall(function, documentation.arguments)
        schema = _with_optional_zones(self._call.model.model_json_schema())
        super().__init__(name, description, schema, self._call, **options)

    def check(self, arguments: Arguments) -> str | None:
        """Describe what is wrong with `arguments` under the schema, or to pydantic; None if they are valid."""
        problem = super().check(arguments)
        if problem is not None:
            return problem
        import pydantic

        try:
            self._call.model.model_validate(dict(arguments))
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(["arguments", *map(str, first["loc"])])
            return f"{where}: {first['msg']}. Expected arguments: {signature(self.parameters)}."
        except Exception:  # a bug of the user's validator; the call raises it again, with its traceback in the log
            return None
        return None


def _with_optional_zones(schema: Any) -> Any:
    """Drop the format of times from a schema, which requires a time zone: pydantic checks them, and needs none."""
    if isinstance(schema, list):
        return [_with_optional_zones(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _with_optional_zones(value) for key, value in schema.items()}
    if inner.get("type") == "string" and inner.get("format") == "date-time":
        del inner["format"]
        inner["description"] = f"{inner.get('description', '')} (ISO 8601, such as 2020-01-31T12:00:00)".strip()
    return inner


class _ValidatedCall:
    """Calls a function with arguments that pydantic has validated; pickles as the function."""

    def __init__(self, function: Callable[..., Any], descriptions: Mapping[str, str]) -> None:
        import pydantic

        self._function, self._descriptions = function, descriptions
        # Parameters whose defaults, if any, only pydantic knows.
        parameters = inspect.signature(function).parameters.values()
        self._pydantic_defaults = {p.name for p in parameters if p.default is p.empty or is_field(p.default)}
        try:
            hints = typing.get_type_hints(function, include_extras=True)
            strict = pydantic.ConfigDict(extra="forbid")
            self.model = pydantic.create_model(
                function.__name__, __config__=strict, **_fields(function, hints, descriptions)
            )
            self.model.model_json_schema()
        except (NameError, TypeError, pydantic.errors.PydanticUserError) as error:
            problem = str(error).splitlines()[0]
            raise ConfigurationError(f"{function.__name__}: no JSON schema for its arguments: {problem}") from error

    def __call__(self, arguments: dict[str, Any]) -> Any:
        validated = self.model.model_validate(arguments)
        names = validated.model_fields_set | self._pydantic_defaults
        return self._function(**{name: getattr(validated, name) for name in names})

    def __reduce__(self) -> Any:
        return _ValidatedCall, (self._function, self._descriptions)


def _fields(function: Callable[..., Any], hints: Mapping[str, Any], descriptions: Mapping[str, str]) -> dict[str, Any]:
    import pydantic
    from pydantic_core import PydanticUndefined  # unlike `...`, it leaves room for a default in `Annotated`

    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigurationError(f"{function.__name__}: parameter {name!r} must be an ordinary named parameter.")
        if name not in hints:
            raise ConfigurationError(f"{function.__name__}: parameter {name!r} needs a type annotation.")
        default = PydanticUndefined if parameter.default is parameter.empty else parameter.default
        hint, texts = hints[name], [part for part in getattr(hints[name], "__metadata__", ()) if isinstance(part, str)]
        description = next(iter(texts), descriptions.get(name))
        if description is not None and not _is_described(hint, parameter.default):
            hint = typing.Annotated[hint, pydantic.Field(description=description)]
        fields[name] = (hint, default)
    return fields


def _is_described(hint: Any, default: Any) -> bool:
    fields = filter(is_field, (*getattr(hint, "__metadata__", ()), default))
    return any(field.description for field in fields)
