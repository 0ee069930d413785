"""The operations of a domain over an episode's database, and how they become tools.

A domain is a subclass of `Operations` in a module of its own. Names, arguments, descriptions, results and errors of the
operations are those of tau2-bench, because the model reads them and the graders depend on them; the code is this
project's. Nothing here knows the policy, the user or the gold actions.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from agent_r1_gym.core.tool import Arguments, Tool
from agent_r1_gym.core.types import ToolCall, ToolOutcome
from agent_r1_gym.envs.tau2.database import Database, Row
from agent_r1_gym.envs.tau2.file_schema import Record, Shape
from agent_r1_gym.errors import ToolError
from agent_r1_gym.tools.function import parameter_schema

MAX_OUTPUT_CHARS = 65_536
_ARITHMETIC = frozenset("0123456789+-*/(). ")
_MAX_EXPRESSION_CHARS = 500
_MAX_BITS = 2_048
_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}


class Operations:
    """The operations of one domain; those named in `tools` are what the agent may call.

    Args:
        database: the database of the episode.
    """

    domain: ClassVar[str]
    """Name of the domain."""
    folder: ClassVar[str] = ""
    """Name that tau2-bench has for the domain and its folder; "": `domain`."""
    tables: ClassVar[Mapping[str, Shape]]
    """Shape of each table of the database."""
    user_tables: ClassVar[Mapping[str, Shape]] = {}
    """Shape of each table on the user's side, such as the state of a telephone."""
    notes: ClassVar[frozenset[str]] = frozenset()
    """Tables in which operations keep what is not data of the domain; no check looks at them."""
    tools: ClassVar[tuple[str, ...]]
    """Operations of the agent."""
    user_tools: ClassVar[tuple[str, ...]] = ()
    """Operations of the user."""
    policy_files: ClassVar[Mapping[str, str]] = {"policy": ""}
    """Parts of the policy by kind of file, each with the tag around it, "" for none."""
    writes: ClassVar[frozenset[str]]
    """Operations that may change the database."""
    asks_before_writes: ClassVar[bool] = True
    """Whether the policy asks the agent to have every write confirmed."""
    schemas: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """JSON schema of arguments whose annotation does not say enough, by name of the argument."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry out an operation and return its result as the agent reads it.

        Raises:
            ToolError: the operation refuses, with the reason.
        """
        try:
            result = getattr(self, name)(**arguments)
            self.sync()
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            # Gold actions come without a check of their arguments; the official tools report any exception.
            raise ToolError(str(error)) from error
        return result if isinstance(result, str) else json.dumps(result)

    def sync(self) -> None:
        """Carry changes over to the user's side, and back, after each operation; default: there is nothing to do."""

    def prepare(self, gold_calls: Iterable[ToolCall]) -> None:
        """Take notes before an episode of what its task makes special; default: nothing is."""

    @classmethod
    def arrange(cls, files: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make tables of rows by id from the domain's files, by kind of file; default: they are such tables."""
        return {**files["db"], **(files.get("user_db") or {})} if isinstance(files["db"], dict) else {}

    @classmethod
    def arrange_initial(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make tables of rows by id from the data that a task starts with; default: they are such tables."""
        return data

    def calculate(self, expression: str) -> str:
        """Calculate the result of a mathematical expression.

        Args:
            expression: The mathematical expression to calculate, such as '2 + 2'. The expression can contain numbers,
                operators (+, -, *, /), parentheses, and spaces.
        """
        if not _ARITHMETIC.issuperset(expression):
            raise ToolError("Invalid characters in expression")
        if len(expression) > _MAX_EXPRESSION_CHARS:
            raise ToolError(f"The expression is longer than {_MAX_EXPRESSION_CHARS} characters")
        try:
            return str(round(float(_evaluate(ast.parse(expression.strip(), mode="eval").body)), 2))
        except (SyntaxError, MemoryError, RecursionError):
            raise ToolError("Invalid expression") from None

    def transfer_to_human_agents(self, summary: str) -> str:
        """Transfer the user to a human agent, with a summary of the user's issue.

        Only transfer if
         -  the user explicitly asks for a human agent
         -  given the policy and the available tools, you cannot solve the user's issue.

        Args:
            summary: A summary of the user's issue.
        """
        return "Transfer successful"

    def _row(self, table: str, key: str, problem: str) -> Row:
        """A row to read; refuses with `problem` if there is none."""
        row = self.database.find(table, key)
        if row is None:
            raise ToolError(problem)
        return row


def _evaluate(node: ast.expr) -> Any:
    """Compute in Python's own numbers, as the official tool does; powers and products stay small."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = _evaluate(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    compute = _OPERATORS.get(type(node.op)) if isinstance(node, ast.BinOp) else None
    if not isinstance(node, ast.BinOp) or compute is None:
        raise ToolError("Invalid expression")
    left, right = _evaluate(node.left), _evaluate(node.right)
    if isinstance(node.op, ast.Pow) and isinstance(left, int) and left.bit_length() * abs(right) > _MAX_BITS:
        raise ToolError("The result is too large")
    return compute(left, right)


# --- the tools of an episode -----------------------------------------------------------------------------------------


class OperationTool(Tool):
    """One operation of a domain; each episode has its own copy, with the episode's database (`Tool.resources`).

    Args:
        operations: the domain.
        name: name of the operation.
        database: opens the database of the running episode.
    """

    per_episode = True

    def __init__(self, operations: type[Operations], name: str, database: Callable[[], Database]) -> None:
        description, parameters = specification(operations, name)  # type: ignore[arg-type]  # a class is hashable
        # No timeout: the calls of one turn run one after another, in their order, as the database requires.
        super().__init__(name, description, parameters, timeout=None, max_output_chars=MAX_OUTPUT_CHARS)
        self._operations, self._database = operations, database

    def execute(self, arguments: Arguments) -> ToolOutcome:
        """Carry out the operation.

        Raises:
            ToolError: the operation refuses.
        """
        database = self.resources.get(DATABASE, self._database)
        return ToolOutcome(self._operations(database).call(self.name, arguments))


DATABASE = "database"
"""Name of the database among the resources of an episode."""


@functools.cache
def specification(operations: type[Operations], name: str) -> tuple[str, dict[str, Any]]:
    """Description and schema of an operation, from its docstring and signature."""
    method = getattr(object.__new__(operations), name)  # bound, so that `self` is not a parameter
    parameters = parameter_schema(method)
    for argument, schema in parameters["properties"].items():
        if argument in operations.schemas:
            described = {"description": schema["description"]} if "description" in schema else {}
            parameters["properties"][argument] = {**operations.schemas[argument], **described}
    documentation = inspect.getdoc(method) or ""
    description = documentation.partition("\nArgs:")[0].strip()
    return description, parameters


def object_schema(record: Record, descriptions: Mapping[str, str]) -> dict[str, Any]:
    """JSON schema of an argument that is a record.

    Args:
        record: its shape, whose fields are strings or whole numbers.
        descriptions: what each field means.
    """
    kinds = {"text": "string", "integer": "integer"}
    properties = {
        name: {"type": kinds[getattr(shape, "__name__", "")], "description": descriptions[name]}
        for name, shape in record.fields.items()
    }
    return {"type": "object", "properties": properties, "required": list(record.fields)}
