r"""A table as AgentBench's MySQL has it, in SQLite: texts, their comparison, and statements in MySQL's syntax.

AgentBench makes every column TEXT, and MySQL then compares text with text regardless of case and accents, but with a
number as a number. `MySQLTable` does the same:

| MySQL | here |
| --- | --- |
| 'Montréal' = 'montreal' | a collation |
| `Points` > 9, where '10' is a text | the column is converted to a number before it is compared with one |
| 'It\'s', "text", 'a\nb' | rewritten as SQLite's literals |
| an unquoted name that begins with a digit | quoted |

What differs: functions that SQLite does not have (CONCAT, IF, STR_TO_DATE, REGEXP ...) and SHOW are errors, which the
model reads; `||` joins texts; CAST AS DECIMAL does not round; IN, a number on the left (9 < `Points`) and conditions
within SET compare a text with a number as a text, and the text that a function returns (MAX, TRIM ...) is greater than
any number.
"""

from __future__ import annotations

import functools
import re
import sqlite3
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from agent_r1_gym.support.sqlite import QueryLimits, QueryResult, SQLiteWriter

Cell = str | int | float | None
_COLLATION = "mysql"
_LIMITS = QueryLimits(steps=500_000)  # a comparison runs Python, and a sort of many rows cannot be interrupted
_MEGABYTES = 1
_LONGEST = 20_000  # characters of a statement: SQLite refuses more
_IDENTIFIER = r"(?:`(?:[^`]|``)*+`|[^\W\d][\w$]*+)"
_TOKEN = re.compile(
    rf"""
    (?P<text>'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+")
    | (?P<unclosed>['"].*)
    | (?P<comment>\#[^\n]*|--\s[^\n]*|/\*.*?(?:\*/|\Z))
    | (?P<column>(?:{_IDENTIFIER}\s*\.\s*)?{_IDENTIFIER})
      (?P<comparison>\s*(?:<=|>=|<>|!=|=|<|>|\b(?:not\s+)?between\b)\s*(?=[-+]?\.?\d))
    | (?P<name>`(?:[^`]|``)*+`)
    | (?P<number>(?:0x[0-9a-f]+|\d+(?:\.\d*)?(?:e[-+]?\d+)?)(?![\w$]))
    | (?P<word>[\w$]+)
    | .
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_ESCAPE = re.compile(r"\\(.)|''|\"\"", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "0": "\0", "Z": "\x1a", "%": "\\%", "_": "\\_"}


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        name: its name.
        columns: names of its columns.
        rows: its rows.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


class MySQLTable(SQLiteWriter):
    """A new database in memory with one table, which takes statements in MySQL's syntax.

    Args:
        table: the table; this object changes a copy.

    Raises:
        sqlite3.Error: SQLite cannot make such a table.
    """

    def __init__(self, table: Table) -> None:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        connection.create_collation(_COLLATION, _compare)
        self._select_all = f"SELECT * FROM {_quoted(table.name)}"
        columns = ", ".join(f"{_quoted(name)} TEXT COLLATE {_COLLATION}" for name in table.columns)
        connection.execute(f"CREATE TABLE {_quoted(table.name)} ({columns})")
        marks = ", ".join("?" * len(table.columns))
        connection.executemany(f"INSERT INTO {_quoted(table.name)} VALUES ({marks})", table.rows)
        connection.commit()
        super().__init__(connection, [table.name], _LIMITS, megabytes=_MEGABYTES)

    def execute(self, sql: str) -> QueryResult:
        """Run one statement in MySQL's syntax; see `SQLiteWriter.execute`."""
        return super().execute(to_sqlite(sql))

    def rows(self) -> Sequence[Sequence[Cell]]:
        """All rows, however many: a statement's limits would let a model hide what it changed."""
        with self._lock:
            return self._connection.execute(self._select_all).fetchall()


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _compare(left: str, right: str) -> int:
    a, b = _collation_key(left), _collation_key(right)
    return (a > b) - (a < b)


@functools.lru_cache(maxsize=4_096)
def _collation_key(text: str) -> str:
    """A text without case and accents, as the collation utf8mb4_0900_ai_ci compares it."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def to_sqlite(sql: str) -> str:
    """Rewrite a statement in MySQL's syntax for SQLite; what it does not know stays as it is."""
    if len(sql) > _LONGEST:
        return sql
    in_assignments = False
    parts = []
    for match in _TOKEN.finditer(sql):
        token = match[0]
        if match["text"]:
            token = _literal(token)
        elif match["comment"]:
            token = " "
        elif match["column"]:
            # In "SET a = 1" nothing is compared; END is the end of a CASE.
            if not in_assignments and match["column"].upper() != "END":
                token = f"(0 + {match['column']}){match['comparison']}"
        elif match["word"]:
            if token.upper() in ("SET", "WHERE"):
                in_assignments = token.upper() == "SET"
            elif token[0].isdigit():
                token = f"`{token}`"
        parts.append(token)
    return "".join(parts)


def _literal(token: str) -> str:
    """A text of MySQL, in either quotes, as a literal of SQLite."""
    quote, body = token[0], token[1:-1]

    def resolve(match: re.Match[str]) -> str:
        if match[1] is not None:
            return _ESCAPED.get(match[1], match[1])
        return quote if match[0] == quote * 2 else match[0]

    return "'" + _ESCAPE.sub(resolve, body).replace("'", "''") + "'"
