r"""A table as AgentBench's MySQL has it, in SQLite: texts, their comparison, and statements in MySQL's syntax.

AgentBench makes every column TEXT, and MySQL then compares text with text regardless of case and accents, but with a
number as a number. `MySQLTable` does the same:

| MySQL | here |
| --- | --- |
| 'Montréal' = 'montreal' | a collation |
| `Points` > 9, where '10' is a text | the column is converted to a number before it is compared with one |
| 'Montréal' LIKE '%TREAL', '50%' LIKE '50\%' | a function that compares as the collation does, with `\` as escape |
| 'It\'s', "text", 'a\nb' | rewritten as SQLite's literals |
| an unquoted name that begins with a digit | quoted |
| 7 / 2 = 3.5, COUNT(*) / 2 | the dividend is multiplied by 1.0 |
| CAST('3.7' AS SIGNED) = 3 | CAST AS INTEGER |

What differs: functions and operators that SQLite does not have (CONCAT, IF, STR_TO_DATE, REGEXP, DIV ...) and SHOW are
errors, which the model reads; `||` joins texts, and `%` takes whole numbers; a quotient of whole numbers has all its
decimals, not four; CAST AS SIGNED truncates a number that MySQL rounds (3.7), AS UNSIGNED keeps a sign, AS DECIMAL does
not round, and AS DATE makes a number; IN, a number on the left (9 < `Points`) and conditions within SET compare a text
with a number as a text, and the text that a function returns (MAX, TRIM ...) is greater than any number.
"""

from __future__ import annotations

import functools
import re
import sqlite3
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_r1_gym.support.sqlite import QueryLimits, QueryResult, SQLiteWriter, Value

Cell = str | int | float | None
_COLLATION = "mysql"
_LIMITS = QueryLimits(steps=500_000)  # a comparison runs Python, and a sort of many rows cannot be interrupted
_MEGABYTES = 1
_LONGEST = 20_000  # characters of a statement: SQLite refuses more
_LONGEST_PATTERN = 100  # of LIKE, as in SQLite: matching takes time that grows with the product of two lengths
_IDENTIFIER = r"(?:`(?:[^`]|``)*+`|[^\W\d][\w$]*+)"
_TOKEN = re.compile(
    rf"""
    (?P<text>'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+")
    | (?P<unclosed>['"].*)
    | (?P<comment>\#[^\n]*|--\s[^\n]*|/\*.*?(?:\*/|\Z))
    | (?P<division>/)
    | (?P<cast>AS\s+(?:UN)?SIGNED(?=\s*\)))
    | (?P<column>(?:{_IDENTIFIER}\s*\.\s*)?{_IDENTIFIER})
      (?P<comparison>\s*(?:<=|>=|<>|!=|=|<|>|\b(?:not\s+)?between\b)\s*(?=[-+]?\.?\d))
    | (?P<name>`(?:[^`]|``)*+`)
    | (?P<number>(?:0x[0-9a-f]+|\d+(?:\.\d*)?(?:e[-+]?\d+)?)(?![\w$]))
    | (?P<word>[\w$]+)
    | .
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_REPLACED = {"comment": " ", "division": "* 1.0 /", "cast": "AS INTEGER"}
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
        for arguments in (2, 3):  # the third is ESCAPE
            connection.create_function("like", arguments, _make_like(self._budgets), deterministic=True)

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


def _make_like(budgets: Sequence[Any]) -> Callable[..., bool | None]:
    """Make the function behind LIKE.

    Args:
        budgets: one, of the statement that runs. The table itself would never be freed: its connection keeps functions.
    """

    def like(pattern: Value, text: Value, escape: Value = "\\") -> bool | None:
        if pattern is None or text is None or escape is None:
            return None
        budget, written = budgets[0], _as_text(pattern)
        if budget.late():
            raise TimeoutError
        if len(written) > _LONGEST_PATTERN:
            budget.problem = f"A pattern of LIKE has at most {_LONGEST_PATTERN} characters, got {len(written)}."
            raise ValueError
        return _like_regex(written, _as_text(escape)[:1]).fullmatch(_collation_key(_as_text(text))) is not None

    return like


def _as_text(value: Value) -> str:
    """A value as MySQL writes it: 3.0 is "3"."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:.15g}" if isinstance(value, float) else str(value)


@functools.lru_cache(maxsize=256)
def _like_regex(pattern: str, escape: str) -> re.Pattern[str]:
    """A pattern of LIKE as a regular expression over collation keys, which never goes back behind a part it found."""
    escaped = f"{re.escape(escape)}(?P<literal>.)|" if escape else ""
    parts = [""]
    for match in re.finditer(f"{escaped}(?P<wildcard>[%_])|.", pattern, re.DOTALL):
        if match["wildcard"] == "%":
            parts.append("")
        else:
            literal = match["literal"] if escape and match["literal"] else match[0]
            parts[-1] += "." if match["wildcard"] else re.escape(_collation_key(literal))
    first, *inner = parts
    last = f".*{inner.pop()}" if inner else ""
    return re.compile("".join((first, *(f"(?>.*?{part})" for part in inner), last)), re.DOTALL)


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
        elif match.lastgroup in _REPLACED:
            token = _REPLACED[match.lastgroup]
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
