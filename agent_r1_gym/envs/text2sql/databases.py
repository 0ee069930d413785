"""The databases that tasks ask about, and the instances of each that a query is judged on.

A query that only happens to be right on the rows an agent sees is wrong on other rows. So every database has several
instances: the same tables filled from other seeds, the files of a test suite, or resampled copies of a single file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agent_r1_gym.envs.text2sql.result_match import as_spider_runs_it, same_as_official, same_rows
from agent_r1_gym.envs.text2sql.schema import Schema, make_schema
from agent_r1_gym.support.sqlite import DatabaseUnavailable, QueryError, QueryResult, SQLiteReader

_MAX_OPEN_DATABASES = 64
_RESAMPLED_INSTANCES = 3
"""Instances resampled from a single file."""


class DatabaseSource(Protocol):
    """A database with its instances; hashable, so that tasks share open connections."""

    def __hash__(self) -> int: ...

    @property
    def instances(self) -> int:
        """Number of instances, at least 2; the agent sees the first."""

    def judging(self, comparison: str) -> range:
        """The instances that a query is judged on (see `compare`)."""

    def open(self, instance: int) -> SQLiteReader:
        """Open a reader of one instance."""


@dataclass(frozen=True)
class GeneratedDatabase:
    """A generated database: schema and rows follow from one seed.

    Attributes:
        schema_seed: seed of tables and columns.
        rows: number of rows of the left table.
        instances: number of instances.
    """

    schema_seed: str
    rows: int = 40
    instances: int = 3

    @functools.cached_property
    def schema(self) -> Schema:
        """Tables and columns."""
        return make_schema(self.schema_seed)

    def judging(self, comparison: str) -> range:
        """All instances."""
        return range(self.instances)

    def open(self, instance: int) -> SQLiteReader:
        """Open a reader of one instance."""
        return SQLiteReader(self.schema.populate(f"{self.schema_seed}/rows/{instance}", rows=self.rows))


@dataclass(frozen=True)
class DatabaseFiles:
    """SQLite files: several instances of one schema, or one file, which is resampled.

    Attributes:
        paths: files of the instances; the agent sees the first.
        versions: of the files (`file_version`), so that open connections and known results are not those of a file
            that has changed.
    """

    paths: tuple[Path, ...]
    versions: tuple[tuple[str, int, int] | None, ...] = ()

    @property
    def instances(self) -> int:
        """Number of instances."""
        return len(self.paths) if len(self.paths) > 1 else _RESAMPLED_INSTANCES + 1

    def judging(self, comparison: str) -> range:
        """The first file for "bird", the files for "spider", all instances for "strict"."""
        return range({"bird": 1, "spider": len(self.paths)}.get(comparison, self.instances))

    def open(self, instance: int) -> SQLiteReader:
        """Open a reader of one instance.

        Raises:
            DatabaseUnavailable: the file is not an SQLite database, or cannot be resampled.
        """
        try:
            if instance < len(self.paths):
                return SQLiteReader.from_file(self.paths[instance])
            with closing(sqlite3.connect(f"{self.paths[0].resolve().as_uri()}?mode=ro", uri=True)) as source:
                source.text_factory = lambda raw: raw.decode("utf-8", "replace")
                return SQLiteReader(resample_rows(source, instance, shuffle=instance > 1))
        except sqlite3.Error as error:
            raise DatabaseUnavailable(
                f"{self.paths[0]} cannot be resampled: {error} (comparison='spider' and 'bird' need no resampling)"
            ) from error


@functools.lru_cache(maxsize=_MAX_OPEN_DATABASES)
def reader(source: DatabaseSource, instance: int = 0) -> SQLiteReader:
    """Open a reader of an instance, or reuse one of the last that were opened."""
    return source.open(instance)


os.register_at_fork(after_in_child=reader.cache_clear)  # SQLite connections must not be carried across a fork


# --- judging ---------------------------------------------------------------------------------------------------------


def matches_gold(source: DatabaseSource, sql: str, gold: str, *, ordered: bool, comparison: str = "strict") -> bool:
    """Whether a query is right.

    Args:
        source: the database.
        sql: query to judge.
        gold: gold query.
        ordered: whether the order of rows counts.
        comparison: one of `result_match.COMPARISONS`.

    Raises:
        DatabaseUnavailable: a database can no longer be read, or the gold query no longer succeeds on it.
    """
    if comparison == "spider":
        sql, gold = as_spider_runs_it(sql), as_spider_runs_it(gold)
    for instance in source.judging(comparison):
        try:
            gold_rows = gold_result(source, instance, gold)
        except (
            QueryError
        ) as error:  # it succeeded when the tasks were read: this machine has become slow, or the file is another
            raise DatabaseUnavailable(f"The gold query fails on instance {instance}: {error} {gold!r:.200}") from error
        try:
            rows = reader(source, instance).select(sql)
        except QueryError:
            return False
        if comparison == "strict":
            same = same_rows(gold_rows, rows, ordered=ordered)
        else:
            same = same_as_official(comparison, gold_rows, rows, ordered=ordered)
        if not same:
            return False
    return True


@functools.lru_cache(maxsize=4_096)
def gold_result(source: DatabaseSource, instance: int, gold: str) -> QueryResult:
    """Result of a gold query on an instance; the last ones are kept."""
    return reader(source, instance).select(gold)


# --- resampling a file -----------------------------------------------------------------------------------------------

_KEEP_PROB = 0.7
_DUPLICATE_PROB = 0.2
_INTERPOLATE_PROB = 0.3
MAX_ROWS = 2_000
"""Largest number of rows per table in a resampled copy, sampled from all rows."""


def resample_rows(source: sqlite3.Connection, seed: int, *, shuffle: bool) -> sqlite3.Connection:
    """Copy a database into memory with part of its rows: some are dropped, some duplicated.

    Constraints and unique indexes are copied first, and rows that violate them are skipped. Virtual tables (full-text
    search, R*Tree) are made anew with a part of their rows, and their shadow tables come with them.

    Args:
        source: database to copy.
        seed: seed of the sample.
        shuffle: shuffle each column except primary keys, so that values which occur together by chance no longer do,
            and replace some fractions by others in the column's range.
    """
    copy = sqlite3.connect(":memory:", check_same_thread=False)
    rng = random.Random(seed)
    definitions = source.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type, name"
    ).fetchall()
    virtual = [(name, sql) for kind, name, sql in definitions if kind == "table" and _VIRTUAL.match(sql)]
    shadows = _shadow_tables(source, [name for name, _ in virtual])
    tables = [
        (name, sql)
        for kind, name, sql in definitions
        if kind == "table" and not _VIRTUAL.match(sql) and name not in shadows and not name.startswith("sqlite_")
    ]
    for _, sql in (
        *tables,
        *((name, sql) for kind, name, sql in definitions if kind == "index" and _UNIQUE.match(sql)),
    ):
        copy.execute(sql)
    for name, _ in tables:
        _copy_rows(copy, source, name, rng, shuffle=shuffle)
    for name, sql in virtual:
        _copy_virtual_table(copy, source, name, sql, rng)
    for kind, _, sql in definitions:
        if kind == "view":
            copy.execute(sql)
    copy.commit()
    return copy


_VIRTUAL = re.compile(r"\s*CREATE\s+VIRTUAL\s+TABLE\b", re.IGNORECASE)
_UNIQUE = re.compile(r"\s*CREATE\s+UNIQUE\s+INDEX\b", re.IGNORECASE)
_CONTENT_ELSEWHERE = re.compile(r"\bcontent\s*=\s*(?:\w|'[^']|\"[^\"])", re.IGNORECASE)
_SHADOWS = ["data", "idx", "content", "docsize", "config", "segments", "segdir", "stat", "node", "parent", "rowid"]


def _shadow_tables(source: sqlite3.Connection, virtual: Sequence[str]) -> set[str]:
    """Tables in which virtual tables keep their data."""
    kinds = source.execute("PRAGMA table_list").fetchall()  # SQLite 3.37 and later
    if kinds:
        return {name for _, name, kind, *_ in kinds if kind == "shadow"}
    return {f"{name}_{part}" for name in virtual for part in _SHADOWS}


def _copy_virtual_table(
    copy: sqlite3.Connection, source: sqlite3.Connection, table: str, sql: str, rng: random.Random
) -> None:
    quoted = _quoted(table)
    try:
        columns = source.execute(f"PRAGMA table_xinfo({quoted})").fetchall()
        copy.execute(sql)
    except sqlite3.OperationalError as error:
        if "no such module" in str(error):  # then no query over it succeeds on the file either
            return
        raise
    if _CONTENT_ELSEWHERE.search(sql):
        copy.execute(f"INSERT INTO {quoted}({quoted}) VALUES ('rebuild')")
        return
    names = [_quoted(row[1]) for row in columns if row[6] == 0]
    if any(row[1] == table for row in columns):  # full-text search: other tables refer to its row ids
        names = ["rowid", *names]
    listed, marks = ", ".join(names), ", ".join("?" * len(names))
    rows = _sampled_rows(source, f"SELECT {listed} FROM {quoted}", quoted, rng)
    with contextlib.suppress(sqlite3.OperationalError):  # a table of statistics fills itself
        copy.executemany(f"INSERT INTO {quoted} ({listed}) VALUES ({marks})", rows)


def _sampled_rows(source: sqlite3.Connection, select: str, table: str, rng: random.Random) -> list[tuple[Any, ...]]:
    """At most `MAX_ROWS` rows of a table, without holding the others in memory, and of these a part."""
    (number,) = source.execute(f"SELECT count(*) FROM {table}").fetchone()
    cursor = source.execute(select)
    if number > MAX_ROWS:
        chosen = {row: place for place, row in enumerate(rng.sample(range(number), MAX_ROWS))}
        found = sorted((chosen[row], values) for row, values in enumerate(cursor) if row in chosen)
        rows = [values for _, values in found]
    else:
        rows = cursor.fetchall()
    return [row for row in rows if rng.random() < _KEEP_PROB] or rows


def _copy_rows(
    copy: sqlite3.Connection, source: sqlite3.Connection, table: str, rng: random.Random, *, shuffle: bool
) -> None:
    quoted = _quoted(table)
    # Generated columns cannot be inserted.
    columns = [row for row in source.execute(f"PRAGMA table_xinfo({quoted})") if row[6] == 0]
    names = ", ".join(_quoted(row[1]) for row in columns)
    sample = [list(row) for row in _sampled_rows(source, f"SELECT {names} FROM {quoted}", quoted, rng)]
    keys = [position for position, row in enumerate(columns) if row[5]]
    if shuffle:
        for position in range(len(columns)):
            if position not in keys:
                _shuffle_column(sample, position, rng)
    duplicates = [list(row) for row in sample if rng.random() < _DUPLICATE_PROB]
    if len(keys) == 1:  # duplicates need new keys, where keys are numbers
        (key,) = keys
        numbers = [row[key] for row in sample if isinstance(row[key], int)]
        for offset, row in enumerate(duplicates, start=1):
            if isinstance(row[key], int):
                row[key] = max(numbers) + offset
    marks = ", ".join("?" * len(columns))
    # OR IGNORE: rows that violate a constraint are skipped.
    copy.executemany(f"INSERT OR IGNORE INTO {quoted} ({names}) VALUES ({marks})", [*sample, *duplicates])


def _shuffle_column(rows: Sequence[list[Any]], position: int, rng: random.Random) -> None:
    values = [row[position] for row in rows]
    rng.shuffle(values)
    fractions = [value for value in values if isinstance(value, float)]
    for row, value in zip(rows, values, strict=True):
        interpolate = isinstance(value, float) and rng.random() < _INTERPOLATE_PROB
        row[position] = round(rng.uniform(min(fractions), max(fractions)), 2) if interpolate else value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
