from __future__ import annotations

import asyncio
import copy
import functools
import pickle
import types
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Dict, List, Literal, Optional, Union  # noqa: UP035 - the old spellings are under test

import pytest

from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.types import ToolCall, ToolOutcome
from agent_r1_gym.errors import ConfigurationError, ToolError
from agent_r1_gym.tools import FunctionTool, tool
from tests.kit.helpers import call, make_env, outcome_of, started


@tool
def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> str:
    """Returns the weather forecast
    of a city.

    A long explanation, which the model reads,
    too.

    Args:
        city: name of the city,
            in any language.
        days (int): how many days.

    Returns:
        One line.
    """
    return f"{city}: {days} days, {unit}"


def test_the_schema_comes_from_annotations_and_docstring() -> None:
    assert isinstance(weather, Tool)
    assert weather.schema == {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Returns the weather forecast of a city.\n\nA long explanation, which the model reads, too.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "name of the city, in any language."},
                    "days": {"type": "integer", "description": "how many days."},
                    "unit": {"enum": ["C", "F"]},
                },
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }


def test_a_function_tool_can_still_be_called() -> None:
    assert weather("Rome", days=3) == "Rome: 3 days, C"
    assert outcome_of(weather, city="Rome") == ToolOutcome("Rome: 1 days, C")


def taking(annotation: Any) -> FunctionTool:
    """A tool whose one argument, `x`, has this annotation."""

    def function(x: Any) -> None:
        """Does it."""

    function.__annotations__ = {"x": annotation}
    return tool(function)


def schema_of(annotation: Any) -> dict[str, Any]:
    return dict(taking(annotation).parameters["properties"]["x"])


def test_annotations_are_validated() -> None:
    for annotation, good, bad in (
        (str, ["", "x"], [1, None, ["x"]]),
        (int, [0, -5, 10**20], ["1", 1.5, True, None]),
        (float, [0, 1.5, -2], ["1", True, None]),
        (bool, [True, False], [0, "true", None]),
        (list, [[], [1, "a"]], ["a", {}, None]),
        (dict, [{}, {"a": 1}], [[], "a", None]),
        (List, [[], [1]], ["a"]),  # noqa: UP006
        (Dict, [{}], [[]]),  # noqa: UP006
        (list[int], [[], [1, 2]], [["a"], [1.5], 1]),
        (list[list[str]], [[["a"], []]], [["a"]]),
        (dict[str, int], [{}, {"a": 1}], [{"a": "b"}, []]),
        (dict[str, list[float]], [{"a": [1.5]}], [{"a": 1}]),
        (Literal["a", 1], ["a", 1], ["b", 2, None]),
        (Optional[int], [1, None], ["a"]),  # noqa: UP045
        (int | None, [1, None], ["a"]),
        (Union[int, str], [1, "a"], [None, []]),  # noqa: UP007
        (list[int] | str, [[1], "a"], [["a"], 1]),
        ("int", [1], ["a"]),
    ):
        made = taking(annotation)
        assert [value for value in good if made.check({"x": value}) is not None] == []
        assert [value for value in bad if made.check({"x": value}) is None] == []


def test_schemas_describe_nested_types() -> None:
    assert schema_of(list[int]) == {"type": "array", "items": {"type": "integer"}}
    assert schema_of(dict[str, int]) == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert schema_of(int | None) == {"anyOf": [{"type": "integer"}, {"type": "null"}]}


class Colour(Enum):
    RED = 1


UNFIT = (Any, object, bytes, tuple, set[int], Colour, Callable, Literal[b"x"], Literal[Colour.RED], "Nowhere")


def test_unsupported_annotations_are_refused() -> None:
    for annotation in (
        *UNFIT,
        dict[int, str],
    ):
        with pytest.raises(ConfigurationError, match="function"):
            schema_of(annotation)


def undocumented(x: int) -> int:
    return x


def unannotated(x):  # type: ignore[no-untyped-def]
    """Does it."""


def variadic(*values: int) -> None:
    """Does it."""


def keywords(**values: int) -> None:
    """Does it."""


def positional(x: int, /) -> None:
    """Does it."""


def test_unfit_functions_are_refused() -> None:
    for function, message in (
        (undocumented, "docstring"),
        (unannotated, "annotation"),
        (variadic, "'values'"),
        (keywords, "'values'"),
        (positional, "'x'"),
        (functools.partial(undocumented, 1), "function"),
        (5, "function"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            tool(function)


def test_unfit_options_are_refused() -> None:
    for options in (
        {"timout": 5.0},
        {"timeout": -1},
        {"name": "a b"},
        {"max_output_chars": 0},
    ):
        with pytest.raises(ConfigurationError):
            tool(**options)(plain_function)


def test_options_reach_the_tool() -> None:
    @tool(name="roll", timeout=None, max_output_chars=5, deterministic=False)
    def function(sides: int = 6) -> str:
        """Rolls a die."""
        return "4" * sides

    settings = (function.name, function.timeout, function.max_output_chars, function.deterministic)
    assert settings == ("roll", None, 5, False)
    assert outcome_of(function, sides=9).content.startswith("44444\n")
    assert outcome_of(function, sides=3).content == "444"


def test_a_function_without_parameters() -> None:
    @tool
    def now() -> str:
        """Tells the time."""
        return "noon"

    assert now.check({}) is None
    assert now.check({"zone": "UTC"}) is not None
    assert outcome_of(now).content == "noon"


def test_methods_are_functions_too() -> None:
    class Shop(list[str]):
        def buy(self, item: str) -> str:
            """Buys an item."""
            self.append(item)
            return f"bought {item}"

    shop = Shop()
    buy = tool(shop.buy)
    assert outcome_of(buy, item="pen").content == "bought pen"
    assert shop == ["pen"]
    assert set(buy.parameters["properties"]) == {"item"}


def test_what_a_function_returns_or_raises_reaches_the_model() -> None:
    @tool
    def divide(a: float, b: float) -> dict[str, float]:
        """Divides."""
        if b < 0:
            raise ToolError("b must not be negative")
        return {"quotient": a / b}

    assert outcome_of(divide, a=1, b=2).content == '{"quotient": 0.5}'
    assert outcome_of(divide, a=1, b=-2) == ToolOutcome("b must not be negative", ok=False, error="tool_error")
    assert outcome_of(divide, a=1, b=0).error == "tool_error"


def test_an_integer_that_json_writes_as_a_float_arrives_as_an_integer() -> None:
    @tool
    def repeat(times: int) -> str:
        """Repeats."""
        return "x" * times

    env = started(make_env(tools=[repeat]))
    _, _, _, _, info = env.step('<tool_call>{"name": "repeat", "arguments": {"times": 3.0}}</tool_call>')
    assert info["tool_outcomes"][0].content == "xxx"


def test_in_an_environment() -> None:
    env = started(make_env(tools=[weather]))
    observation, _, _, _, info = env.step(call("weather", city="Rome", unit="K"))
    assert info["tool_outcomes"][0].error == "bad_arguments"
    observation, _, _, _, info = env.step(call("weather", city="Rome", unit="F"))
    assert observation.endswith("[tool: weather]\nRome: 1 days, F\n\n")


def test_a_function_tool_is_not_deterministic_by_default() -> None:
    assert not tool(plain_function).deterministic
    assert not FunctionTool(plain_function).deterministic
    assert tool(deterministic=True)(plain_function).deterministic


def test_a_decorated_function_pickles_by_name_as_functions_do() -> None:
    assert pickle.loads(pickle.dumps(pickled_by_name)) is pickled_by_name
    assert copy.deepcopy(pickled_by_name) is pickled_by_name
    undecorated = FunctionTool(plain_function)
    assert pickle.loads(pickle.dumps(undecorated))(2) == 4


@tool(name="renamed")
def pickled_by_name(text: str) -> str:
    """Returns the text."""
    return text


def plain_function(number: int) -> int:
    """Doubles a number."""
    return 2 * number


@tool(timeout=0.2)
async def fetch(x: int) -> int:
    """Waits, if asked to, and doubles.

    Args:
        x: what to double; 0 waits
    """
    await asyncio.sleep(60 if x == 0 else 0)
    if x < 0:
        raise ToolError("no negative numbers")
    return 2 * x


def test_a_coroutine_function_runs_on_a_loop_and_is_bounded() -> None:
    outcomes = fetch.run([ToolCall("fetch", {"x": x}) for x in (3, 0, -1)])
    assert [outcome.error for outcome in outcomes] == [None, "timeout", "tool_error"]
    assert outcomes[0].content == "6"
    assert asyncio.run(fetch(x=4)) == 8  # it can still be awaited


def test_coroutines_share_a_loop() -> None:
    @tool
    async def loop() -> int:
        """Returns its loop."""
        return id(asyncio.get_running_loop())

    assert len({loop.run([ToolCall("loop", {})])[0].content for _ in range(3)}) == 1


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("stop")])
@pytest.mark.parametrize("timeout", [None, 5.0])
def test_a_coroutine_that_exits_takes_no_other_with_it(error: BaseException, timeout: float | None) -> None:
    @tool(timeout=timeout)
    async def leave() -> str:
        """Exits."""
        raise error

    for _ in range(2):
        assert outcome_of(fetch, x=1).ok
        gone = outcome_of(leave)
        assert (gone.error, gone.content) == ("tool_error", f"{type(error).__name__}: {error}")


def test_integers_that_json_writes_as_floats_are_whole_wherever_they_stand() -> None:
    @tool
    def seen(
        one: int | None = None,
        many: list[int] | None = None,
        named: dict[str, list[int]] = {},  # noqa: B006
        choice: Literal[1, 2] = 1,
        either: int | float = 0,
        free: dict = {},  # type: ignore[type-arg] # noqa: B006
        size: float = 0.0,
    ) -> str:
        """Shows what came."""
        return repr((one, many, named, choice, either, free, size))

    given = {"one": 1e3, "many": [3.0, 4], "named": {"a": [5.0]}, "choice": 2.0}
    numbers = {"either": 6.0, "free": {"b": 7.0}, "size": 8.0}
    assert outcome_of(seen, **given, **numbers).content == "(1000, [3, 4], {'a': [5]}, 2, 6.0, {'b': 7.0}, 8.0)"


# --- docstrings and Annotated ----------------------------------------------------------------------------------------


def find(query: str, top: int = 3) -> str:
    return f"{query} {top}"


def documented(text: str) -> FunctionTool:
    """A tool of `find` with another docstring."""
    function = types.FunctionType(find.__code__, find.__globals__, "find", find.__defaults__)
    function.__annotations__, function.__doc__ = {"query": "str", "top": "int"}, text
    return tool(function)


STYLES = {
    "Google": "Args:\n    query (str): the words,\n        e.g. title: Dune\n    top: how many",
    "Google, Arguments": "Arguments:\n    query: the words, e.g. title: Dune\n    top: how many",
    "Google, Parameters": "Parameters:\n    query: the words, e.g. title: Dune\n    top (int, optional): how many",
    "Google, two sections": "Args:\n    query: the words, e.g. title: Dune\nKeyword Args:\n    top: how many",
    "NumPy": "Parameters\n----------\nquery : str\n    the words,\n    e.g. title: Dune\ntop : int\n    how many",
    "Sphinx": ":param query: the words,\n    e.g. title: Dune\n:param int top: how many\n:returns: hits\n:rtype: str",
    "Epydoc": "@param query: the words, e.g. title: Dune\n@param top: how many",
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.filterwarnings("error")
def test_docstrings_of_every_style_reach_the_model(style: str) -> None:
    made = documented(f"Finds things.\n\nSlow, and\nnot exact:\n\n- one\n- two\n\n{STYLES[style]}")
    assert made.description == "Finds things.\n\nSlow, and not exact:\n\n- one\n- two"
    assert [part["description"] for part in made.parameters["properties"].values()] == [
        "the words, e.g. title: Dune",
        "how many",
    ]


def test_a_description_has_no_space_at_its_end() -> None:
    for style in STYLES.values():
        assert documented(f"Finds things.\n\n{style}").description == "Finds things."


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Finds.\n\nArgs:\n    query - the words\n    top - how many", "cannot be read"),
        ("Finds.\n\nArgs: query, the words; top, how many", "cannot be read"),
        ("Finds.\n\nArgs:\n    qeury: the words", r"describes \['qeury'\]"),
        (
            "Finds.\n\nArgs:\n    query: the words\n\nNever call this twice in a row.",
            "'Never call this twice in a row.'",
        ),
    ],
)
def test_what_a_docstring_loses_is_reported(text: str, problem: str) -> None:
    with pytest.warns(UserWarning, match=problem):
        documented(text)


def test_annotated_gives_limits_and_descriptions() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    limits = pytest.importorskip("annotated_types", reason="annotated-types is not installed")
    for annotation, schema, good, bad in (
        (
            Annotated[int, pydantic.Field(ge=1, le=10, description="one to ten")],
            {"type": "integer", "minimum": 1, "maximum": 10, "description": "one to ten"},
            [1, 10],
            [0, 11],
        ),
        (Annotated[float, limits.Gt(0), limits.Lt(1)], None, [0.5], [0, 1]),
        (Annotated[int, limits.Interval(ge=2, le=3)], None, [2, 3], [1, 4]),
        (Annotated[int, limits.MultipleOf(5)], None, [10], [12]),
        (Annotated[str, pydantic.Field(min_length=2, pattern="^[a-z]+$")], None, ["ab"], ["a", "AB"]),
        (Annotated[list[int], limits.Len(1, 2)], None, [[1]], [[], [1, 2, 3]]),
        (Annotated[int | None, limits.Ge(1)], None, [None, 1], [0]),
        (list[Annotated[int, limits.Ge(1)]], None, [[1, 2]], [[0]]),
        (Annotated[str, "the name"], {"type": "string", "description": "the name"}, ["a"], [1]),
    ):
        made = taking(annotation)
        if schema is not None:
            assert made.parameters["properties"]["x"] == schema
        assert [value for value in good if made.check({"x": value}) is not None] == []
        assert [value for value in bad if made.check({"x": value}) is None] == []


def test_an_annotation_precedes_the_docstring() -> None:
    def look(x: Annotated[str, "of the annotation"], y: str) -> None:
        """Looks.

        Args:
            x: of the docstring
            y: of the docstring
        """

    look.__annotations__ = {"x": Annotated[str, "of the annotation"], "y": str}
    properties = tool(look).parameters["properties"]
    assert [part["description"] for part in properties.values()] == ["of the annotation", "of the docstring"]


def test_what_an_annotation_loses_is_reported() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    with pytest.warns(UserWarning, match="does not apply .*AfterValidator"):
        taking(Annotated[int, pydantic.AfterValidator(abs)])
    with pytest.warns(UserWarning, match="does not apply .*default"):
        taking(Annotated[int, pydantic.Field(default=3)])


def test_a_field_as_default_is_refused_because_the_function_would_get_it() -> None:
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")

    def top(limit: int = 3) -> str:
        """Shows."""
        return f"{limit}"

    top.__defaults__ = (pydantic.Field(3, ge=1),)
    with pytest.raises(ConfigurationError, match="which a plain call would pass to the function"):
        tool(top)
