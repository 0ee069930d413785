"""PostgreSQL read by strangers: one SELECT per transaction that only reads, in bounded time."""

from __future__ import annotations

import os
import threading
from typing import Any

from agent_r1_gym.errors import MissingDependencyError
from agent_r1_gym.support.sqlite import DatabaseLost, QueryError, QueryLimits, Rows

_COLUMNS = (
    "SELECT string_agg(format('%%I %%s', column_name, data_type), ', ' ORDER BY ordinal_position) "
    "FROM information_schema.columns WHERE table_schema = ANY (current_schemas(false)) "
    "AND lower(table_name) = lower(%s)"
)
_TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = ANY (current_schemas(false)) ORDER BY 1"
)


class PostgresReader:
    """Reads a PostgreSQL database; see `tools.sql.Database`.

    Every statement runs in a transaction that only reads and is rolled back, with `statement_timeout`. A role that may
    only read is still what keeps a server safe: functions of the server may do what the role may.

    Args:
        address: "postgresql://USER:PASSWORD@HOST:PORT/DATABASE".
        limits: of each statement; steps and megabytes are the server's own affair.

    Raises:
        MissingDependencyError: psycopg is not installed.
        DatabaseLost: the server cannot be reached.
    """

    def __init__(self, address: str, limits: QueryLimits | None = None) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingDependencyError("psycopg is not installed: pip install 'psycopg[binary]'") from error
        self._psycopg, self._address, self.limits = psycopg, address, limits or QueryLimits()
        self._lock, self._process = threading.RLock(), os.getpid()
        self._connection: Any = None

    @property
    def tables(self) -> list[str]:
        """Names of tables and views in the search path."""
        return [str(row[0]) for row in self._run(_TABLES).rows]

    def definition(self, table: str) -> str | None:
        """Returns the columns of a table with their types, None if there is none of that name."""
        found = self._run(_COLUMNS, (table,)).rows[0][0]
        return None if found is None else f"{table} ({found!s})"

    def select(self, sql: str) -> Rows:
        """Returns what one reading statement returns.

        Raises:
            QueryError: it does not only read, is wrong, is several, or takes too long.
            DatabaseLost: the server does not answer.
        """
        return self._run(sql)

    def _run(self, sql: str, values: tuple[Any, ...] | None = None) -> Rows:
        with self._lock:
            connection = self._connected()
            try:
                # The protocol with parameters takes one statement only.
                with connection.transaction(force_rollback=True), connection.cursor() as cursor:
                    cursor.execute(f"SET LOCAL statement_timeout = {round(self.limits.seconds * 1e3)}")
                    cursor.execute(sql.replace("%", "%%") if values is None else sql, values or (), prepare=True)
                    if cursor.description is None:
                        raise QueryError("The statement returns no rows; expected one SELECT.")
                    rows = cursor.fetchmany(self.limits.rows + 1)
                    columns = tuple(column.name for column in cursor.description)
            except self._psycopg.Error as error:
                raise self._explained(error) from error
            except UnicodeEncodeError as error:
                raise QueryError(f"The statement is no Unicode text: {error.reason}.") from error
        kept = tuple(tuple(map(_value, row)) for row in rows[: self.limits.rows])
        return Rows(columns, kept, len(rows) > self.limits.rows)

    def _connected(self) -> Any:
        if self._process != os.getpid():  # of the process that forked
            self._connection, self._process = None, os.getpid()
        if self._connection is None or self._connection.closed:
            try:
                self._connection = self._psycopg.connect(self._address, connect_timeout=10, autocommit=True)
                self._connection.execute("SET default_transaction_read_only = on")
            except self._psycopg.Error as error:
                raise DatabaseLost(str(error).strip()) from error
        return self._connection

    def _explained(self, error: Any) -> Exception:
        if self._connection.closed or self._connection.broken:
            return DatabaseLost(str(error).strip())
        if isinstance(error, self._psycopg.errors.QueryCanceled):
            return QueryError(f"The query was stopped after {self.limits.seconds:g} s.")
        return QueryError(str(error).strip().split("\n")[0])

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()


def _value(value: Any) -> Any:
    return value if isinstance(value, None.__class__ | int | float | str | bytes) else str(value)
