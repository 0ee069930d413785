"""Read-only PostgreSQL for untrusted statements: one SELECT per read-only transaction, in bounded time."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from typing import Any

from agent_r1_gym.errors import ConfigurationError, MissingDependencyError
from agent_r1_gym.support.sqlite import DatabaseUnavailable, QueryError, QueryLimits, QueryResult

_COLUMNS = (
    "SELECT string_agg(format('%%I %%s', column_name, data_type), ', ' ORDER BY ordinal_position) "
    "FROM information_schema.columns WHERE table_schema = ANY (current_schemas(false)) "
    "AND lower(table_name) = lower(%s)"
)
_TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = ANY (current_schemas(false)) ORDER BY 1"
)
_MAY_TOO_MUCH = (
    "SELECT bool_or(rolsuper) FILTER (WHERE rolname IN (current_user, session_user)) OR bool_or(rolname IN "
    "('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program') "
    "AND pg_has_role(session_user, oid, 'MEMBER')) FROM pg_roles"
)
_READS = frozenset({"select", "with", "values", "table", "explain", "show"})
_NOT_CALLED = re.compile(r"\bpg_(terminate|cancel)_backend\b", re.IGNORECASE)
"""Functions that end other sessions of the same role."""
_BEFORE_FIRST_WORD = re.compile(r"\s+|--[^\n]*|\(")
_IN_COMMENT = re.compile(r"/\*|\*/")


class PostgresReader:
    """Reads a PostgreSQL database; see `tools.sql.Database`.

    Every statement runs in a transaction that only reads and is rolled back, with `statement_timeout`; rows are read
    one by one, so that `megabytes` bounds what is held here, but for the size of one row. A role that may only read is
    still what keeps a server safe: functions of the server may do what the role may.

    Args:
        address: "postgresql://USER:PASSWORD@HOST:PORT/DATABASE".
        limits: of each statement; steps are the server's own affair.

    Raises:
        MissingDependencyError: psycopg is not installed.
        ConfigurationError: the role is a superuser, or may read files of the server or run programs there.
        DatabaseUnavailable: the server cannot be reached.
    """

    def __init__(self, address: str, limits: QueryLimits | None = None) -> None:
        try:
            import psycopg
        except ImportError as error:
            raise MissingDependencyError("psycopg is not installed: pip install 'psycopg[binary]'") from error
        self._psycopg, self._address, self.limits = psycopg, address, limits or QueryLimits()
        self._lock, self._process = threading.RLock(), os.getpid()
        self._connection: Any = None
        self._connected()

    @property
    def tables(self) -> list[str]:
        """Names of tables and views in the search path."""
        return [str(row[0]) for row in self._run(_TABLES).rows]

    def definition(self, table: str) -> str | None:
        """Returns the columns of a table with their types, None if there is no such table."""
        found = self._run(_COLUMNS, (table,)).rows[0][0]
        return None if found is None else f"{table} ({found!s})"

    def select(self, sql: str) -> QueryResult:
        """Runs one SELECT and returns its result.

        Raises:
            QueryError: it does not only read, is wrong, is several, or takes too long.
            DatabaseUnavailable: the server does not answer.
        """
        if _first_word(sql) not in _READS:
            expected = ", ".join(sorted(map(str.upper, _READS)))
            raise QueryError(f"Only one statement that reads is allowed; it begins with one of {expected}.")
        if called := _NOT_CALLED.search(sql):
            raise QueryError(f"{called[0]} may not be called.")
        return self._run(sql)

    def _run(self, sql: str, values: tuple[Any, ...] | None = None) -> QueryResult:
        with self._lock:
            connection = self._connected()
            began = False
            try:
                with connection.transaction(force_rollback=True), connection.cursor() as cursor:
                    cursor.execute(f"SET LOCAL statement_timeout = {round(self.limits.seconds * 1e3)}")
                    began = True
                    # The protocol with parameters takes one statement only.
                    query = sql.replace("%", "%%") if values is None else sql
                    found = self._fetched(cursor, cursor.stream(query, values or ()))
                    if not found.rows:  # an empty stream does not name the columns
                        found = QueryResult(_columns(connection, sql), ())
                connection.execute("SELECT pg_advisory_unlock_all()")  # advisory locks outlive the transaction
            except self._psycopg.Error as error:
                raise self._query_error(error, began) from error
            except UnicodeEncodeError as error:
                raise QueryError(f"The statement is not Unicode text: {error.reason}.") from error
            finally:
                if connection.info.transaction_status != self._psycopg.pq.TransactionStatus.IDLE:
                    connection.close()  # the next statement opens another
        return found

    def _fetched(self, cursor: Any, stream: Any) -> QueryResult:
        """Reads the rows of a streamed result up to the limits, and drops the rest."""
        rows: list[tuple[Any, ...]] = []
        names: tuple[str, ...] = ()
        held = 0
        with contextlib.closing(stream):
            for row in stream:
                names = names or tuple(column.name for column in cursor.description)
                if len(rows) == self.limits.rows:
                    return QueryResult(names, tuple(rows), has_more=True)
                rows.append(tuple(map(_value, row)))
                sizes = [len(value) for value in rows[-1] if isinstance(value, str | bytes)]
                held += sum(sizes)
                if max(sizes, default=0) > self.limits.value_bytes:
                    raise QueryError(f"A value is longer than {self.limits.value_bytes} bytes.")
                if held > self.limits.megabytes * 2**20:
                    raise QueryError(f"The query was stopped, for it returned more than {self.limits.megabytes} MB.")
        return QueryResult(names, tuple(rows))

    def _connected(self) -> Any:
        if self._process != os.getpid():  # belongs to the parent process
            self._connection, self._process = None, os.getpid()
        if self._connection is None or self._connection.closed:
            try:
                self._connection = self._psycopg.connect(self._address, connect_timeout=10, autocommit=True)
                self._connection.execute("SET default_transaction_read_only = on")
                may_too_much = self._connection.execute(_MAY_TOO_MUCH).fetchone()[0]
            except self._psycopg.Error as error:
                raise DatabaseUnavailable(str(error).strip()) from error
            if may_too_much:
                role = self._connection.info.user
                self.close()
                raise ConfigurationError(
                    f"The PostgreSQL role {role!r} is a superuser or may reach the server's files, and so may every "
                    "query; expected one that may only read: CREATE ROLE reader LOGIN; GRANT SELECT ON ... TO reader."
                )
        return self._connection

    def _query_error(self, error: Any, began: bool) -> Exception:
        if began and isinstance(error, self._psycopg.errors.AdminShutdown):
            # Lost while the statement ran. If the server is up, the statement ended its own connection.
            self._connected()
            return QueryError("The query ended its own connection.")
        if self._connection.closed or self._connection.broken:
            return DatabaseUnavailable(str(error).strip())
        if isinstance(error, self._psycopg.errors.QueryCanceled):
            return QueryError(f"The query was stopped after {self.limits.seconds:g} s.")
        return QueryError(str(error).strip().split("\n")[0])

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()


def _first_word(sql: str) -> str:
    """Returns the first word of a statement, in lower case, after comments and parentheses; "" if there is none."""
    at = 0
    while True:
        if sql.startswith("/*", at):
            at = _after_comment(sql, at)
        elif skipped := _BEFORE_FIRST_WORD.match(sql, at):
            at = skipped.end()
        else:
            word = re.compile(r"[A-Za-z]+(?![\w$])").match(sql, at)
            return word[0].lower() if word else ""


def _after_comment(sql: str, at: int) -> int:
    depth = 0
    for mark in _IN_COMMENT.finditer(sql, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(sql)


def _columns(connection: Any, sql: str) -> tuple[str, ...]:
    """Returns the column names of a statement's result, without running it."""
    encoding = connection.info.encoding
    connection.pgconn.prepare(b"", sql.encode(encoding))
    described = connection.pgconn.describe_prepared(b"")
    return tuple(described.fname(index).decode(encoding) for index in range(described.nfields))


def _value(value: Any) -> Any:
    return value if isinstance(value, None.__class__ | int | float | str | bytes) else str(value)
