"""SQLite read by strangers: statements that only read, in bounded time and memory, with the same bounds on any machine.

Steps of SQLite's own machine are counted, so that a statement that is stopped here is stopped everywhere; seconds and
memory are a second fence, for steps that take long or hold much.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from agent_r1_gym.support.checks import check_integer, check_seconds

Value = None | int | float | str | bytes
_EACH = 1_000
"""Steps between two looks at the fences."""
_ALLOWED = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})
_REFUSED_FUNCTIONS = frozenset({"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer", "eval"})
_LIMITS = {
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,  # matching may take exponential time, within one step
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 50,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
}


class QueryError(Exception):
    """A statement was refused, failed or was stopped; the message says why."""


class DatabaseLost(Exception):
    """The database itself cannot be read any more."""


@dataclass(frozen=True)
class QueryLimits:
    """What one statement may take.

    Attributes:
        steps: of SQLite's machine; ten million take about half a second.
        seconds: of wall time.
        rows: that are fetched; the rest is dropped.
        value_bytes: of the longest value.
        megabytes: by which the statement may raise the process's memory.
    """

    steps: int = 20_000_000
    seconds: float = 5.0
    rows: int = 10_000
    value_bytes: int = 1_000_000
    megabytes: int = 256

    def __post_init__(self) -> None:
        for name in ("steps", "rows", "value_bytes", "megabytes"):
            check_integer(name, getattr(self, name), 1)
        check_seconds("seconds", self.seconds)


@dataclass(frozen=True)
class Rows:
    """What a statement returned.

    Attributes:
        columns: their names.
        rows: at most as many as the limit says.
        more: whether there were more.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    more: bool = False


class Reader:
    """Reads a database, for any thread; one statement at a time.

    Args:
        connection: to the database, made with `check_same_thread=False`; this object owns it.
        limits: of each statement.
    """

    def __init__(self, connection: sqlite3.Connection, limits: QueryLimits | None = None) -> None:
        self.limits = limits or QueryLimits()
        self._connection, self._lock = connection, threading.RLock()
        connection.execute("PRAGMA temp_store=MEMORY")  # or a sort would fill a disk instead
        connection.text_factory = _text
        for kind, most in _LIMITS.items():
            connection.setlimit(kind, most)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, self.limits.value_bytes)
        self.tables: tuple[str, ...] = tuple(
            row[0]
            for row in connection.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' "
                "ESCAPE '\\' ORDER BY name"
            )
        )

    @classmethod
    def of_file(cls, path: Path, limits: QueryLimits | None = None) -> Reader:
        """Returns a reader of a file, which stays as it is.

        Raises:
            DatabaseLost: there is no such database.
        """
        try:
            return cls(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False), limits)
        except sqlite3.Error as error:
            raise DatabaseLost(f"{path}: {error}") from error

    def definition(self, table: str) -> str | None:
        """Returns the statement that made a table or view, None if there is none of that name, whatever its case."""
        with self._lock:
            row = self._connection.execute(
                "SELECT sql FROM sqlite_master WHERE type IN ('table', 'view') AND lower(name) = lower(?)", (table,)
            ).fetchone()
        return None if row is None else str(row[0])

    def select(self, sql: str) -> Rows:
        """Returns what one reading statement returns.

        Raises:
            QueryError: it does not only read, is wrong, is several, or takes too much.
            DatabaseLost: the file is gone or broken.
        """
        with self._lock:
            fence = _Fence(self.limits)
            self._connection.set_authorizer(_allow)
            self._connection.set_progress_handler(fence.crossed, _EACH)
            try:
                cursor = self._connection.execute(sql)
                if cursor.description is None:
                    raise QueryError("The statement is empty or returns no rows; expected one SELECT.")
                rows = cursor.fetchmany(self.limits.rows + 1)
                columns = tuple(column[0] for column in cursor.description)
                cursor.close()
            except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
                raise _explained(error, fence) from error
            finally:
                self._connection.set_progress_handler(None, 0)
                self._connection.set_authorizer(None)
        return Rows(columns, tuple(rows[: self.limits.rows]), len(rows) > self.limits.rows)

    def close(self) -> None:
        """Closes the connection."""
        self._connection.close()


class _Fence:
    """Says when a statement has taken too much."""

    def __init__(self, limits: QueryLimits) -> None:
        self._limits, self._steps = limits, 0
        self._deadline, self._peak = time.monotonic() + limits.seconds, _peak_megabytes()
        self.reason = ""

    def crossed(self) -> bool:
        self._steps += _EACH
        if self._steps > self._limits.steps:
            self.reason = f"stopped after {self._limits.steps} steps of SQLite"
        elif time.monotonic() > self._deadline:
            self.reason = f"stopped after {self._limits.seconds:g} s"
        elif _peak_megabytes() - self._peak > self._limits.megabytes:
            self.reason = f"stopped, for it took more than {self._limits.megabytes} MB"
        return bool(self.reason)


def _peak_megabytes() -> float:
    """Returns the most memory that this process has held: what is below an earlier peak was affordable then."""
    try:
        import resource
    except ImportError:  # Windows: the other fences hold
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def _allow(action: int, first: str | None, second: str | None, *_place: str | None) -> int:
    if action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _REFUSED_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")  # a file of somebody's may hold another encoding


def _explained(error: Exception, fence: _Fence) -> QueryError | DatabaseLost:
    name = getattr(error, "sqlite_errorname", "") or ""
    if fence.reason:
        return QueryError(f"The query was {fence.reason}.")
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR", "SQLITE_CANTOPEN")):
        return DatabaseLost(str(error))
    if name == "SQLITE_AUTH":
        return QueryError("Only one SELECT is allowed: nothing may be written, attached or set.")
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.Warning) and "one statement" in str(error):
        return QueryError("Only one statement at a time.")
    return QueryError(str(error) or type(error).__name__)
