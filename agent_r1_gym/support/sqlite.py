"""SQLite for untrusted statements, in bounded time and memory, with the same bounds on any machine.

`SQLiteReader` only reads; `SQLiteWriter` also changes the rows of named tables, in a database in memory.

Steps of SQLite's own machine are counted, so that a statement that is stopped here is stopped everywhere; seconds and
memory are a second fence, for steps that take long or hold much.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from agent_r1_gym.support.checks import check_integer, check_seconds

Value = None | int | float | str | bytes
_EACH = 100
"""Steps between two checks of the limits: nothing is checked while SQLite is within one step."""
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_WRITES = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE})
_REFUSED_FUNCTIONS = frozenset(
    {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "eval", "json_patch"}
)
_LIMITS = {
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,  # matching may take exponential time, within one step
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}
_MAX_COLUMNS = 100
"""Maximum columns of a result, unless a table has more: one row of values of maximum length cannot be interrupted."""
_LOST = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_BUSY", "SQLITE_LOCKED")


class QueryError(Exception):
    """A statement was refused, failed or was stopped; the message is the reason."""


class DatabaseUnavailable(Exception):
    """The database itself cannot be read any more."""


@dataclass(frozen=True)
class QueryLimits:
    """Limits on one statement.

    Attributes:
        steps: of SQLite's machine; ten million take about half a second.
        seconds: of wall time.
        rows: that are fetched; the rest is dropped.
        value_bytes: of the longest value; the time that one step takes, within which nothing is stopped, grows with it.
        megabytes: maximum growth of the process's memory.
    """

    steps: int = 20_000_000
    seconds: float = 5.0
    rows: int = 10_000
    value_bytes: int = 250_000
    megabytes: int = 256

    def __post_init__(self) -> None:
        for name in ("steps", "rows", "value_bytes", "megabytes"):
            check_integer(name, getattr(self, name), 1)
        check_seconds("seconds", self.seconds)


@dataclass(frozen=True)
class QueryResult:
    """The result of a statement.

    Attributes:
        columns: their names.
        rows: at most `QueryLimits.rows`.
        has_more: whether there were more.
        changed: number of rows that were inserted, updated or deleted; None if nothing may be written.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    has_more: bool = False
    changed: int | None = None


class SQLiteReader:
    """Reads a database from any thread; one statement at a time.

    Args:
        connection: to the database, made with `check_same_thread=False`; this object owns it.
        limits: of each statement.
    """

    _refusal = "Only one SELECT is allowed: nothing may be written, attached or set."

    def __init__(self, connection: sqlite3.Connection, limits: QueryLimits | None = None) -> None:
        self.limits = limits or QueryLimits()
        self._connection, self._lock = connection, threading.RLock()
        self._budgets = [_StatementBudget(self.limits)]
        connection.execute("PRAGMA temp_store=MEMORY")  # or a sort would fill a disk instead
        connection.text_factory = _text
        for kind, most in _LIMITS.items():
            connection.setlimit(kind, most)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self.limits.value_bytes)
        printf: tuple[int, Callable[..., Value]] = (-1, _Printf(self.limits.value_bytes))
        for name, (arguments, function) in {**_FUNCTIONS, "printf": printf, "format": printf}.items():
            connection.create_function(
                name, arguments, _bounded(function, self._budgets, self.limits.value_bytes), deterministic=True
            )
        connection.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, max(_MAX_COLUMNS, _widest(connection)))
        self.tables: tuple[str, ...] = _tables(connection)

    @classmethod
    def from_file(cls, path: Path, limits: QueryLimits | None = None) -> SQLiteReader:
        """Returns a reader of a file, opened read-only.

        Raises:
            DatabaseUnavailable: there is no such database.
        """
        try:
            seconds = min(5.0, (limits or QueryLimits()).seconds)  # to wait for a lock
            address = f"{path.resolve().as_uri()}?mode=ro"
            return cls(sqlite3.connect(address, uri=True, check_same_thread=False, timeout=seconds), limits)
        except sqlite3.Error as error:
            raise DatabaseUnavailable(f"{path}: {error}") from error

    def definition(self, table: str) -> str | None:
        """Returns the statement that created a table or view, None if there is none of that name, regardless of case.

        Raises:
            QueryError: the name is not a text that SQLite takes.
            DatabaseUnavailable: the file is gone, broken or locked.
        """
        statement = "SELECT sql FROM sqlite_master WHERE type IN ('table', 'view') AND lower(name) = lower(?)"
        with self._lock:
            try:
                row = self._connection.execute(statement, (table,)).fetchone()
            except (sqlite3.Error, ValueError, OverflowError) as error:
                raise _query_error(error, _StatementBudget(self.limits)) from error
        return None if row is None else str(row[0])

    def select(self, sql: str) -> QueryResult:
        """Runs one SELECT and returns its result.

        Raises:
            QueryError: it does not only read, is wrong, is several, or takes too much.
            DatabaseUnavailable: the file is gone, broken or locked.
        """
        result = self._run(sql, _allow)
        if not result.columns:
            raise QueryError("The statement is empty or returns no rows; expected one SELECT.")
        return result

    def _run(self, sql: str, authorizer: Callable[..., int]) -> QueryResult:
        """Runs one statement within the limits; without columns, it returned no rows."""
        with self._lock:
            budget = self._budgets[0] = _StatementBudget(self.limits)
            self._connection.set_authorizer(authorizer)
            self._connection.set_progress_handler(budget.crossed, _EACH)
            try:
                cursor = self._connection.execute(sql)
                rows = cursor.fetchmany(self.limits.rows + 1) if cursor.description else []
                columns = tuple(column[0] for column in cursor.description or ())
                cursor.close()
            except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
                raise _query_error(error, budget, self._refusal) from error
            finally:
                self._connection.set_progress_handler(None, 0)
                self._connection.set_authorizer(None)
        return QueryResult(columns, tuple(rows[: self.limits.rows]), len(rows) > self.limits.rows)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


class SQLiteWriter(SQLiteReader):
    """Reads a database in memory, and changes the rows of some of its tables; nothing else can be changed.

    A statement that fails or is stopped changes nothing, unless it says OR FAIL. What all statements together can add
    is bounded by `megabytes`.

    Args:
        connection: to a database in memory, made with `check_same_thread=False`; this object owns it.
        tables: tables whose rows may be changed; None: all.
        limits: of each statement.
        megabytes: maximum size of the database.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        tables: Collection[str] | None = None,
        limits: QueryLimits | None = None,
        *,
        megabytes: int = 8,
    ) -> None:
        check_integer("megabytes", megabytes, 1)
        connection.isolation_level = None  # a statement is a transaction: Python begins none, which would stay open
        super().__init__(connection, limits)
        self._megabytes = megabytes
        names = self.tables if tables is None else tables
        self._allow = functools.partial(_allow_writes, frozenset(name.lower() for name in names))
        self._refusal = (
            f"Only one SELECT, or one INSERT, UPDATE or DELETE on {', '.join(names)}, is allowed: nothing else may be "
            "created, changed, attached or set."
        )
        self._bound_size()

    @classmethod
    def clone(cls, path: Path, limits: QueryLimits | None = None) -> SQLiteWriter:
        """Returns a writer of a copy of a file in memory; the file stays as it is.

        Raises:
            DatabaseUnavailable: there is no such database.
        """
        copy = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            with contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as source:
                source.backup(copy)
        except sqlite3.Error as error:
            copy.close()
            raise DatabaseUnavailable(f"{path}: {error}") from error
        size = copy.execute("PRAGMA page_count").fetchone()[0] * copy.execute("PRAGMA page_size").fetchone()[0]
        return cls(copy, limits=limits, megabytes=8 + math.ceil(size / 2**20))

    def execute(self, sql: str) -> QueryResult:
        """Runs one SELECT, INSERT, UPDATE or DELETE.

        Raises:
            QueryError: it does something else, is wrong, is several, or takes too much.
        """
        if not sql.strip(" \t\r\n;"):
            raise QueryError("The statement is empty.")
        with self._lock:
            before = self._connection.total_changes
            result = self._run(sql, self._allow)
            return replace(result, changed=self._connection.total_changes - before)

    def get_state(self) -> bytes:
        """Returns the whole database, for a snapshot."""
        with self._lock:
            return self._connection.serialize()

    def set_state(self, state: bytes) -> None:
        """Restores what `get_state` returned."""
        with self._lock:
            self._connection.deserialize(state)
            self._bound_size()

    def _bound_size(self) -> None:
        page = self._connection.execute("PRAGMA page_size").fetchone()[0]
        self._connection.execute(f"PRAGMA max_page_count = {self._megabytes * 2**20 // page}")


class _StatementBudget:
    """Detects when a statement exceeds its limits."""

    def __init__(self, limits: QueryLimits) -> None:
        self._limits, self._steps = limits, 0
        self._deadline, self._peak = time.monotonic() + limits.seconds, _peak_megabytes()
        self.reason = self.problem = ""

    def late(self) -> bool:
        if time.monotonic() > self._deadline:
            self.reason = f"stopped after {self._limits.seconds:g} s"
        return bool(self.reason)

    def crossed(self) -> bool:
        self._steps += _EACH
        if self._steps > self._limits.steps:
            self.reason = f"stopped after {self._limits.steps} steps of SQLite"
        elif not self.late() and _peak_megabytes() - self._peak > self._limits.megabytes:
            self.reason = f"stopped, for it took more than {self._limits.megabytes} MB"
        return bool(self.reason)


def _peak_megabytes() -> float:
    """Returns the peak memory of this process: usage below an earlier peak was affordable then."""
    try:
        import resource
    except ImportError:  # Windows: the other limits apply
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _tables(connection: sqlite3.Connection) -> tuple[str, ...]:
    """Names of the tables and views, without those in which SQLite and virtual tables keep their data."""
    statement = (
        "SELECT name, sql LIKE 'CREATE VIRTUAL%' FROM sqlite_master WHERE type IN ('table', 'view') "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
    )
    tables = connection.execute(statement).fetchall()
    for name, is_virtual in tables:
        if is_virtual:  # connected here: the statements that connect a full-text index are not allowed later
            with contextlib.suppress(sqlite3.Error):
                connection.execute('SELECT 1 FROM "{}" LIMIT 1'.format(name.replace('"', '""'))).fetchall()
    kinds = connection.execute("PRAGMA table_list").fetchall()  # nothing before SQLite 3.37
    shadows = {name for _, name, kind, *_ in kinds if kind == "shadow"}
    return tuple(name for name, _ in tables if name not in shadows)


def _allow(action: int, first: str | None, second: str | None, *_place: str | None) -> int:
    if action == sqlite3.SQLITE_PRAGMA and first == "data_version" and second is None:
        return sqlite3.SQLITE_OK  # read by full-text indexes: has another connection written?
    if action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _REFUSED_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _allow_writes(
    tables: frozenset[str], action: int, first: str | None, second: str | None, *place: str | None
) -> int:
    if action in _WRITES:
        return sqlite3.SQLITE_OK if (first or "").lower() in tables else sqlite3.SQLITE_DENY
    return _allow(action, first, second, *place)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")  # a user's file may have another encoding


def _query_error(
    error: Exception, budget: _StatementBudget, refusal: str = SQLiteReader._refusal
) -> QueryError | DatabaseUnavailable:
    name = getattr(error, "sqlite_errorname", "") or ""
    if budget.reason:
        return QueryError(f"The query was {budget.reason}.")
    if budget.problem:
        return QueryError(budget.problem)
    if name == "SQLITE_FULL":
        return QueryError("The database would become too large.")
    if name.startswith(_LOST):
        return DatabaseUnavailable(str(error))
    if name == "SQLITE_AUTH":
        return QueryError(refusal)
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.Warning) and "one statement" in str(error):
        return QueryError("Only one statement at a time.")
    if str(error).startswith("user-defined function raised"):
        return QueryError(f"{', '.join(_FUNCTIONS)}, printf and format take text that is UTF-8 only.")
    return QueryError(str(error) or type(error).__name__)


def _widest(connection: sqlite3.Connection) -> int:
    """Returns the columns of the widest table: a lower limit would make the schema itself unreadable."""
    statement = (
        "SELECT max((SELECT count(*) FROM pragma_table_xinfo(m.name))) FROM sqlite_master AS m "
        "WHERE type = 'table' AND sql LIKE 'CREATE TABLE%'"
    )
    return connection.execute(statement).fetchone()[0] or 0


# SQLite's own versions take time that grows with the product of two lengths, within one step. The results are the same;
# lengths are in characters, and SQLite itself refuses values that are too long in bytes.


def _bounded(function: Callable[..., Value], fences: list[_StatementBudget], longest: int) -> Callable[..., Value]:
    """Makes an SQL function that stops its statement once that exceeds a limit.

    Args:
        function: (most characters that it may return, values) -> value.
        fences: one, of the statement that runs. The reader itself would never be freed: its connection keeps functions.
        longest: characters.
    """

    def call(*values: Value) -> Value:
        if fences[0].late():
            raise TimeoutError
        try:
            return function(longest, *values)
        except (OverflowError, sqlite3.DataError):
            fences[0].problem = "string or blob too big"
            raise

    return call


def _replace(longest: int, text: Value, old: Value, new: Value) -> Value:
    if text is None or old is None:
        return None
    whole, part = _as_text(text), _as_text(old)
    if not part or part[0] == "\0":
        return whole if isinstance(text, bytes) else text
    if new is None:
        return None
    other = _as_text(new)
    if len(other) > len(part) and len(whole) + whole.count(part) * (len(other) - len(part)) > longest:
        raise OverflowError
    return whole.replace(part, other)


def _instr(_longest: int, text: Value, part: Value) -> Value:
    if text is None or part is None:
        return None
    if isinstance(text, bytes) and isinstance(part, bytes):
        return text.find(part) + 1
    return _as_text(text).find(_as_text(part)) + 1


def _trim(left: bool, right: bool, _longest: int, text: Value, characters: Value) -> Value:
    if text is None or characters is None:
        return None
    whole, dropped = _as_text(text), set(_as_text(characters).partition("\0")[0])
    first, end = 0, len(whole)
    while left and first < end and whole[first] in dropped:
        first += 1
    while right and first < end and whole[end - 1] in dropped:
        end -= 1
    return whole[first:end]


class _Printf:
    """SQLite's `printf`, with the sum of all widths and precisions bounded before it runs.

    SQLite pads even when the text is too long already: two billion characters per specifier, 5 s within one step. A
    separate connection formats, so that the text is SQLite's own.
    """

    _SPECIFIER = re.compile(r"%([-+ #!,0-9.*l]*)(.?)", re.DOTALL)  # SQLite stops at a specifier that it does not know

    def __init__(self, longest: int) -> None:
        self._sqlite = sqlite3.connect(":memory:", check_same_thread=False)
        self._sqlite.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
        self._sqlite.text_factory = _text  # a precision may cut a character

    def __call__(self, longest: int, *values: Value) -> Value:
        if not values or values[0] is None:
            return None
        unused, kept, left = list(values[1:]), [], longest

        def resolve(match: re.Match[str]) -> str:
            nonlocal left
            # A width given as an argument ("*") becomes a literal: what is counted here is what SQLite reads.
            flags = re.sub(r"\.?\*", lambda star: _as_literal(star[0], unused.pop(0) if unused else None), match[1])
            for digits in re.findall(r"[0-9]+", flags):
                left -= int(digits) if len(digits) < 10 else longest + 1
            if match[2] not in "%n" and unused:  # these two take no argument
                kept.append(unused.pop(0))
            return f"%{flags}{match[2]}"

        template = self._SPECIFIER.sub(resolve, _as_text(values[0]).partition("\0")[0])
        if left < 0:
            raise OverflowError
        places = ", ".join("?" * (1 + len(kept)))
        text: Value = self._sqlite.execute(f"SELECT printf({places})", (template, *kept)).fetchone()[0]
        return text


def _as_literal(star: str, value: Value) -> str:
    """The width or precision that SQLite's C code makes of an argument: 32 bits, and a precision without its sign."""
    if isinstance(value, str | bytes):
        digits = re.match(r"\s*[-+]?[0-9]{1,18}", _as_text(value))
        value = int(digits[0]) if digits else 0
    if isinstance(value, float):
        value = 2**63 - 1 if value >= 2**63 else int(max(-(2.0**63), value))
    number = ((value or 0) + 2**31) % 2**32 - 2**31
    return f".{abs(number)}" if star[0] == "." else str(number)


def _as_text(value: Value) -> str:
    """Returns a value as SQLite casts it to TEXT."""
    if isinstance(value, bytes):
        return _text(value)
    if not isinstance(value, float):
        return str(value)
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    mantissa, e, exponent = f"{value + 0.0:.15g}".partition("e")  # + 0.0 turns -0.0 into 0.0
    return (mantissa if "." in mantissa else f"{mantissa}.0") + e + exponent


_FUNCTIONS: dict[str, tuple[int, Callable[..., Value]]] = {
    "replace": (3, _replace),
    "instr": (2, _instr),
    "trim": (2, functools.partial(_trim, True, True)),
    "ltrim": (2, functools.partial(_trim, True, False)),
    "rtrim": (2, functools.partial(_trim, False, True)),
}
