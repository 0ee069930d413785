"""`as_tool`: functions with pydantic's annotations, objects, and tools of other frameworks that are installed."""

from __future__ import annotations

import asyncio
import enum
import functools
import pickle
import sys
from collections.abc import Sequence
from datetime import date, datetime
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import pytest

from agent_r1_gym import ConfigurationError, Task, Tool, ToolEnv, ToolOutcome
from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.tools.as_tool import ExternalTool, as_tool

pydantic: Any = pytest.importorskip("pydantic", reason="pydantic is not installed")


def outcome(tool: Tool, **arguments: Any) -> ToolOutcome:
    """Returns what an environment makes of a call."""
    env = ToolEnv(tasks=[Task("0", "Go.", ("x",))], tools=[tool])
    env.reset(seed=0)
    return env.step(env.parser.format_call(ToolCall(tool.name, arguments)))[4]["tool_outcomes"][0]


class Unit(enum.Enum):
    METRE = "m"
    KILOMETRE = "km"


class Point(pydantic.BaseModel):  # type: ignore[name-defined,misc]
    """A point."""

    x: float
    y: float = 0.0
    after: Point | None = None


def distance(point: Point, unit: Unit = Unit.METRE, days: Sequence[date] = ()) -> str:
    """Returns the distance of a point.

    Args:
        point: where it is
    """
    assert isinstance(point, Point) and isinstance(unit, Unit)
    return f"{point.x + point.y:g} {unit.value} {[day.year for day in days]}"


def double(x: int) -> int:
    """Doubles."""
    return 2 * x


async def wait(point: Point) -> float:
    """Waits for a point."""
    await asyncio.sleep(0)
    return point.x


class LineCount:
    def __call__(self, text: str) -> int:
        """Counts lines."""
        return text.count("\n") + 1


def test_a_tool_stays_what_it_is() -> None:
    tool = as_tool(double)
    assert as_tool(tool) is tool
    with pytest.raises(ConfigurationError, match="is a Tool already"):
        as_tool(tool, timeout=3)


def test_plain_functions_coroutines_and_objects() -> None:
    assert outcome(as_tool(double, name="twice"), x=4).content == "8"
    assert outcome(as_tool(wait), point={"x": 2}).content == "2.0"
    counter = as_tool(LineCount())
    assert (counter.name, outcome(counter, text="a\nb").content) == ("line_count", "2")


def test_pydantics_annotations() -> None:
    tool = as_tool(distance, timeout=None)
    assert outcome(tool, point={"x": 3, "y": 4}, unit="km", days=["2024-05-01"]).content == "7 km [2024]"
    assert outcome(tool, point={"x": 3}).content == "3 m []"
    schema = tool.parameters["properties"]["point"]
    assert schema["description"] == "where it is" and schema["required"] == ["x"]
    assert "$ref" not in str(tool.parameters)
    assert outcome(tool, point={"y": 1}).error == "bad_arguments"


def test_what_only_pydantic_refuses_is_the_models_to_read() -> None:
    def even(n: Annotated[int, pydantic.AfterValidator(lambda n: n if n % 2 == 0 else 1 // 0)]) -> int:
        """Takes even numbers."""
        return n

    def small(n: Annotated[date, pydantic.Field(description="a day")]) -> str:
        """Takes a day."""
        return n.isoformat()

    refused = outcome(as_tool(small), n="no day at all")
    assert refused.error in ("bad_arguments", "tool_error") and "n" in refused.content
    assert outcome(as_tool(even), n=3).error == "tool_error"


def test_such_tools_pickle() -> None:
    again = pickle.loads(pickle.dumps(as_tool(distance)))
    assert outcome(again, point={"x": 1}).content == "1 m []"


def undocumented(x: int) -> int:
    return x


def unknown(x: ToolEnv) -> int:
    """Takes what pydantic does not know."""
    return 0


def test_a_description_makes_a_docstring_needless() -> None:
    assert as_tool(undocumented, description="Returns what it gets.").description == "Returns what it gets."


def test_the_error_for_anything_else_names_the_problem() -> None:
    for thing, options, problem in (
        (5, {}, "as_tool.. takes a Tool, a function"),
        (LineCount, {}, "not its class"),
        (functools.partial(double, 1), {}, "as_tool.. takes"),
        (undocumented, {}, "docstring"),
        (unknown, {}, "no JSON schema"),
        (double, {"timout": 3}, "Did you mean 'timeout'"),
    ):
        with pytest.raises(ConfigurationError, match=problem):
            as_tool(thing, **options)


class SDKTool:
    """A tool as the OpenAI Agents SDK has it."""

    name, description = "look", "Looks."
    params_json_schema: ClassVar[dict[str, Any]] = {"type": "object", "properties": {}}
    is_enabled: Any = True

    def __init__(self, output: Any, **attributes: Any) -> None:
        self.output = output
        vars(self).update(attributes)

    async def on_invoke_tool(self, context: Any, text: str) -> Any:
        return self.output


class ToolOutputText(pydantic.BaseModel):  # type: ignore[name-defined,misc]
    type: str = "text"
    text: str


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (ToolOutputText(text="fog"), "fog"),
        ({"type": "text", "text": "fog"}, "fog"),
        ([ToolOutputText(text="fog"), {"type": "text", "text": "rain"}], "fog\nrain"),
        ({"type": "weather", "text": "fog"}, '{"type": "weather", "text": "fog"}'),
        ([{"type": "text", "text": "fog"}, 3], '[{"type": "text", "text": "fog"}, 3]'),
        ([], "[]"),
        ("fog", "fog"),
    ],
)
def test_text_outputs_of_the_agents_sdk_are_their_text(
    output: Any, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tests.tool_context", SimpleNamespace(ToolContext=dict))  # where the SDK has it
    assert outcome(as_tool(SDKTool(output))).content == shown


@pytest.mark.parametrize("enabled", [False, lambda context, agent: True])
def test_a_tool_of_the_agents_sdk_that_may_be_disabled_is_refused(enabled: Any) -> None:
    with pytest.raises(ConfigurationError, match="'look' has is_enabled="):
        as_tool(SDKTool("", is_enabled=enabled))


class SmolTool:
    """A tool as smolagents has it."""

    name, description, output_type = "sail", "Sails.", "string"
    inputs: ClassVar[dict[str, Any]] = {
        "to": {"type": "string", "description": "where"},
        "cargo": {"type": "object", "description": "what", "additionalProperties": {"type": "any"}},
        "days": {"type": "integer", "description": "how long", "nullable": True},
    }

    def forward(self, to: str, cargo: Any, days: int | None = None) -> str:
        return f"{to} {cargo} {days}"

    def __call__(self, *args: Any, sanitize_inputs_outputs: bool = False, **kwargs: Any) -> str:
        return self.forward(*args, **kwargs)


def test_a_tool_of_smolagents_has_its_inputs_as_schema() -> None:
    tool = as_tool(SmolTool())
    assert (tool.name, tool.description, tool.parameters["required"]) == ("sail", "Sails.", ["to", "cargo"])
    assert tool.parameters["properties"]["to"] == {"type": "string", "description": "where"}
    assert outcome(tool, to="Oslo", cargo={"salt": 3}).content == "Oslo {'salt': 3} None"
    assert outcome(tool, to="Oslo", cargo={"salt": "x"}, days=None).ok
    assert outcome(tool, to="Oslo").error == outcome(tool, to=3, cargo={}).error == "bad_arguments"


# --- the real libraries ----------------------------------------------------------------------------------------------


@pytest.mark.adapters
def test_langchain() -> None:
    tools: Any = pytest.importorskip("langchain_core.tools", reason="langchain-core is not installed")

    @tools.tool
    def add(a: int, b: int = 1) -> int:
        """Adds two numbers."""
        if a < 0:
            raise tools.ToolException("not below zero")
        return a + b

    async def later(a: int) -> int:
        return a + 1

    class Shout(tools.BaseTool):  # type: ignore[name-defined,misc]
        name: str = "shout loudly"
        description: str = "Shouts."

        def _run(self, text: str) -> list[dict[str, str]]:
            return [{"type": "text", "text": text.upper()}]

    tool = as_tool(add)
    assert (tool.name, tool.description) == ("add", "Adds two numbers.")
    assert [outcome(tool, a=1, b=2).content, outcome(tool, a=1).content] == ["3", "2"]
    failed = outcome(tool, a=-1)
    assert (failed.error, failed.content) == ("tool_error", "not below zero")
    assert outcome(tool, a="x").error == "bad_arguments"
    only_async = tools.StructuredTool.from_function(coroutine=later, name="later", description="Later.")
    assert outcome(as_tool(only_async), a=1).content == "2"
    with pytest.warns(UserWarning, match="shout_loudly"):
        assert "HEY" in outcome(as_tool(Shout()), text="hey").content


@pytest.mark.adapters
def test_llama_index() -> None:
    library = pytest.importorskip("llama_index.core.tools", reason="llama-index-core is not installed")

    def add(a: int, b: int = 1) -> int:
        """Adds two numbers."""
        if a < 0:
            raise ValueError("not below zero")
        return a + b

    async def later(point: int) -> int:
        """Later."""
        return point + 1

    tool = as_tool(library.FunctionTool.from_defaults(add))
    result = outcome(tool, a=1, b=2)
    assert (tool.name, result.content, result.data) == ("add", "3", 3)
    assert outcome(tool, a=-1).error == "tool_error"
    assert outcome(as_tool(library.FunctionTool.from_defaults(async_fn=later)), point=2).content == "3"


@pytest.mark.adapters
def test_openai_agents_sdk() -> None:
    agents = pytest.importorskip("agents", reason="openai-agents is not installed")
    if not hasattr(agents, "function_tool"):
        pytest.skip("another package called agents is installed")

    @agents.function_tool
    def add(a: int, b: int) -> int:
        """Adds two numbers.

        Args:
            a: the first
            b: the second
        """
        return a + b

    @agents.function_tool(failure_error_function=None)
    async def fail(a: int) -> int:
        """Fails."""
        raise ValueError(f"no {a}")

    @agents.function_tool(needs_approval=True)
    def harm() -> str:
        """Harms."""
        return ""

    @agents.function_tool
    def look() -> Any:
        """Looks."""
        return agents.ToolOutputText(text="fog")

    @agents.function_tool(is_enabled=False)
    def hide() -> str:
        """Hides."""
        return ""

    tool = as_tool(add)
    assert outcome(as_tool(look)).content == "fog"
    with pytest.raises(ConfigurationError, match="is_enabled=False"):
        as_tool(hide)
    assert tool.parameters["properties"]["a"]["description"] == "the first"
    assert outcome(tool, a=1, b=2).content == "3"
    failed = outcome(as_tool(fail), a=1)
    assert failed.error == "tool_error" and "no 1" in failed.content
    with pytest.raises(ConfigurationError, match="approval"):
        as_tool(harm)


@pytest.mark.adapters
def test_smolagents() -> None:
    smolagents = pytest.importorskip("smolagents", reason="smolagents is not installed")

    @smolagents.tool
    def sail(to: str, cargo: dict[str, Any], days: int = 3) -> dict[str, Any]:
        """Sails.

        Args:
            to: where
            cargo: what
            days: how long
        """
        return {"to": to, "days": days}

    class Look(smolagents.Tool):  # type: ignore[name-defined,misc]
        name, description, output_type = "look", "Looks.", "string"
        inputs: ClassVar[dict[str, Any]] = {"picture": {"type": "image", "description": "what"}}

        def forward(self, picture: Any) -> str:
            return "fog"

    tool = as_tool(sail)
    assert (tool.name, tool.description, tool.parameters["required"]) == ("sail", "Sails.", ["to", "cargo"])
    assert outcome(tool, to="Oslo", cargo={"salt": 3}).content == '{"to": "Oslo", "days": 3}'
    assert outcome(tool, to=3, cargo={}).error == "bad_arguments"
    with pytest.raises(ConfigurationError, match="'look' are not a valid JSON schema"):
        as_tool(Look())


def test_fields_as_defaults_bound_a_parameter() -> None:
    tagged, few = pydantic.Field([]), pydantic.Field(3, ge=1, le=5)

    def top(query: str, limit: int = few, tags: list[str] = tagged) -> str:
        """Searches.

        Args:
            query: the words
            limit: how many
        """
        return f"{query} {limit!r} {tags}"

    made = as_tool(top)
    assert made.parameters["properties"]["limit"] == {
        **{"type": "integer", "minimum": 1, "maximum": 5},
        **{"default": 3, "description": "how many"},
    }
    assert outcome(made, query="a").content == "a 3 []"
    assert outcome(made, query="a", limit=5).content == "a 5 []"
    assert outcome(made, query="a", limit=-7).error == "bad_arguments"

    def annotated(limit: Annotated[int, pydantic.Field(ge=1, default=5)]) -> str:
        """Counts."""
        return f"{limit!r}"

    assert outcome(as_tool(annotated)).content == "5"


def test_names_and_items_are_checked_before_pydantic_sees_them() -> None:
    def find(query: str, limit: Annotated[int, pydantic.Field(ge=1)] = 3) -> str:
        """Finds."""
        return f"{limit}"

    def pair(both: tuple[int, str]) -> str:
        """Takes two."""
        return f"{both}"

    refused = outcome(as_tool(find), query="a", lmit=9)
    assert (refused.error, "lmit" in refused.content) == ("bad_arguments", True)
    assert as_tool(pair).parameters["properties"]["both"]["items"] == [{"type": "integer"}, {"type": "string"}]
    assert outcome(as_tool(pair), both=[1, "a"]).content == "(1, 'a')"
    assert [outcome(as_tool(pair), both=both).error for both in (["x", 5], [1, "a", 2])] == ["bad_arguments"] * 2


def remind(at: datetime, until: datetime | None = None, day: date | None = None) -> str:
    """Reminds of something.

    :param at: when to begin
    """
    assert isinstance(at, datetime)
    return f"{at.isoformat()} {until}"


@pytest.mark.parametrize("zone", ["", "Z", "+02:00"])
def test_a_time_needs_no_zone_where_the_function_needs_none(zone: str) -> None:
    tool = as_tool(remind)
    assert outcome(tool, at=f"2020-01-01T08:30:00{zone}").content.startswith("2020-01-01T08:30:00")
    assert outcome(tool, at="2020-01-01T08:30:00", until=f"2020-01-01T09:00:00{zone}").ok
    described = tool.parameters["properties"]["at"]["description"]
    assert described == "when to begin (ISO 8601, such as 2020-01-31T12:00:00)"


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"at": "at noon"}, "arguments.at: Input should be a valid datetime"),
        ({"at": "2020-01-01T08:30:00", "until": "later"}, "arguments.until: Input should be a valid datetime"),
        ({"at": "2020-01-01T08:30:00", "day": "2020-13-01"}, "day"),
    ],
)
def test_a_wrong_time_is_the_models_mistake_and_the_reason_is_shown(wrong: dict[str, Any], reason: str) -> None:
    refused = outcome(as_tool(remind), **wrong)
    assert refused.error == "bad_arguments" and reason in refused.content
    assert "pydantic.dev" not in refused.content


def test_a_schema_that_requires_a_zone_says_so() -> None:
    times = {"type": "string", "format": "date-time"}
    schema = {"type": "object", "properties": {"at": times, "until": {"anyOf": [times, {"type": "null"}]}}}
    tool = ExternalTool("remind", "Reminds.", schema, lambda arguments: "done")
    assert outcome(tool, at="2020-01-01T08:30:00Z").ok
    for wrong in ({"at": "2020-01-01T08:30:00"}, {"until": "2020-01-01T08:30:00"}):
        refused = outcome(tool, **wrong)
        assert refused.error == "bad_arguments"
        assert "with a time zone, such as 2020-01-31T12:00:00Z" in refused.content


def test_as_tool_reads_docstrings_and_annotations_as_tool_does() -> None:
    def pick(
        first: Annotated[int, pydantic.Field(ge=1, description="of the field")], second: Annotated[date, "a day"]
    ) -> str:
        """Picks.

        Twice if need be.

        Parameters
        ----------
        first : int
            of the docstring
        second : date
            of the docstring
        """
        return "x"

    pick.__annotations__ = {
        "first": Annotated[int, pydantic.Field(ge=1, description="of the field")],
        "second": Annotated[date, "a day"],
    }
    tool = as_tool(pick)
    assert tool.description == "Picks.\n\nTwice if need be."
    assert [part["description"] for part in tool.parameters["properties"].values()] == ["of the field", "a day"]
