"""SQLite for strangers: nothing is written, nothing outlasts its limits, the next statement works."""

from __future__ import annotations

import contextlib
import itertools
import random
import sqlite3
import threading
import weakref

import pytest

from agent_r1_gym.support.sqlite import DatabaseUnavailable, QueryError, QueryLimits, SQLiteReader, SQLiteWriter
from tests.kit.cpu_time import cpu_below


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "a.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a INTEGER, b TEXT)")
    connection.executemany("INSERT INTO t VALUES (?, ?)", [(i, f"b{i}") for i in range(500)])
    connection.execute("CREATE VIEW big AS SELECT a FROM t WHERE a > 400")
    connection.commit()
    connection.close()
    return path


@pytest.fixture
def reader(file):
    reader = SQLiteReader.from_file(file, QueryLimits(steps=3_000_000, seconds=3.0, rows=100, megabytes=64))
    yield reader
    reader.close()


def test_it_reads(reader):
    rows = reader.select("SELECT a, b FROM t WHERE a < 2 ORDER BY a")
    assert (rows.columns, rows.rows, rows.has_more) == (("a", "b"), ((0, "b0"), (1, "b1")), False)
    assert reader.tables == ("big", "t")
    assert reader.definition("T") == "CREATE TABLE t (a INTEGER, b TEXT)"
    assert reader.definition("nothing") is None
    assert reader.select("WITH x AS (SELECT 1 AS one) SELECT one FROM x").rows == ((1,),)
    assert reader.select("VALUES (1), (2)").rows == ((1,), (2,))


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1, 'x')",
        "DELETE FROM t",
        "UPDATE t SET a = 1 RETURNING a",
        "DROP TABLE t",
        "CREATE TABLE u (a)",
        "CREATE TEMP TABLE u (a)",
        "ATTACH DATABASE '/tmp/other.sqlite' AS other",
        "VACUUM INTO '/tmp/other.sqlite'",
        "PRAGMA writable_schema=ON",
        "PRAGMA query_only=OFF",
        "SELECT * FROM pragma_database_list",
        "SELECT load_extension('x')",
        "SELECT readfile('/etc/passwd')",
        "BEGIN",
        "REINDEX",
        "ANALYZE",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE t",
        "",
        "   -- a comment",
        "EXPLAIN",
        "SELECT \0",
        "SELECT '\ud800'",
        "SELEC a FROM t",
        "SELECT nothing FROM t",
        "SELECT " + "1+" * 500 + "1",
        "SELECT 1 " * 10_000,
    ],
)
def test_what_does_not_only_read_is_refused_and_the_next_query_works(reader, file, sql):
    before = file.read_bytes()
    with pytest.raises(QueryError):
        reader.select(sql)
    assert reader.select("SELECT COUNT(*) FROM t").rows == ((500,),)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x) SELECT COUNT(*) FROM x", "3000000 steps"),
        ("SELECT COUNT(*) FROM t a, t b, t c, t d", "3000000 steps"),
        ("SELECT length(zeroblob(2000000000))", "too big"),
        ("SELECT count(*) FROM (SELECT randomblob(200000) AS x FROM t a, t b, t c ORDER BY x)", "64 MB|steps|3 s"),
        ("SELECT 'a' LIKE '" + "%a" * 200 + "'", "pattern"),
    ],
)
@pytest.mark.slow
def test_what_takes_too_much_is_stopped(reader, sql, reason):
    with pytest.raises(QueryError, match=reason):
        reader.select(sql)
    assert reader.select("SELECT 1").rows == ((1,),)


_MANY = "replace(hex(zeroblob({})), '0', '{}')"


@pytest.mark.slow
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT "
        + " + ".join(["length(trim({}, {} || '0'))".format(_MANY.format(60_000, 0), _MANY.format(60_000, "a"))] * 40),
        "SELECT " + " + ".join(["instr(hex(zeroblob(124000)), hex(zeroblob(62000)) || '1')"] * 40),
        "SELECT " + " + ".join(["length(replace(hex(zeroblob(124000)), hex(zeroblob(62000)) || '1', 'x'))"] * 40),
    ],
)
def test_one_call_of_a_function_is_no_way_past_the_time(file, sql):
    # SQLite's own trim takes minutes for these: nothing looks at the time while it runs.
    reader = SQLiteReader.from_file(file, QueryLimits(seconds=60.0))
    assert reader.select(sql).columns
    strict = SQLiteReader.from_file(file, QueryLimits(seconds=1e-6))
    with pytest.raises(QueryError, match="stopped after 1e-06 s"):
        strict.select("SELECT instr(b, 'b') FROM t")


def test_replaced_functions_return_what_those_of_sqlite_return(reader):
    own = sqlite3.connect(":memory:")
    rng = random.Random(0)
    texts = [None, "", "abcab", "  aä€😀a ", "a\0b", "\0", 0, -12, 2**62, 1.0, -0.0, 0.1, 1e15, 1e16, 1e-5, 1.5e300]
    values = [
        *texts,
        float("inf"),
        b"",
        b"ab",
        b"a\x00b",
        *(rng.uniform(-1, 1) * 10 ** rng.randint(-20, 20) for _ in range(9)),
    ]
    for name in ("instr", "trim", "ltrim", "rtrim"):
        for pair in itertools.product(values, repeat=2):
            ask = f"SELECT {name}(?, ?)"
            assert reader._connection.execute(ask, pair).fetchone() == own.execute(ask, pair).fetchone(), (name, pair)
    for three in itertools.product(values[:20], values[:20], [None, "", "xyz", 5, 0.5, b"q"]):
        ask = "SELECT replace(?, ?, ?)"
        assert reader._connection.execute(ask, three).fetchone() == own.execute(ask, three).fetchone(), three


def test_replaced_functions_say_what_they_refuse(reader):
    with pytest.raises(QueryError, match="too big"):
        reader.select("SELECT length(replace(hex(zeroblob(90000)), '0', hex(zeroblob(90000))))")
    with pytest.raises(QueryError, match="UTF-8"):
        reader.select("SELECT replace(CAST(x'e9' AS TEXT), 'a', 'b')")
    assert reader.select("SELECT trim('  a '), trim(NULL)").rows == (("a", None),)


_HOSTILE = (
    *("2147483647", "-9223372036854775808", "1e308", "NULL", "'%.*c'", "'%2147483647c'", "'weekday 0'", "'$[0]'"),
    *("replace(hex(zeroblob(124000)), '0', 'a')", "zeroblob(250000)", "x'ff'", "'+1000000000 months'"),
    *("'[' || replace(hex(zeroblob(60000)), '0', '1,') || '1]'", "replace(hex(zeroblob(50000)), '0', '[')"),
    *("'" + "%a" * 49 + "'", "'" + "*[a]" * 24 + "b'", "replace(hex(zeroblob(60000)), '0', '%J')"),
)


def _calls_of_every_function():
    """One statement per function of SQLite and number of arguments: the unions of many calls with hostile arguments."""
    rng = random.Random(5)
    with sqlite3.connect(":memory:") as connection:
        functions = connection.execute("SELECT DISTINCT name, narg FROM pragma_function_list ORDER BY 1, 2").fetchall()
    for name, count in functions:
        for arguments in [count] if count >= 0 else [1, 2, 3, 5]:
            samples = [rng.choices(_HOSTILE, k=arguments) for _ in range(20 if arguments else 1)]
            if name in ("printf", "format") and arguments > 1:
                samples += [["'%.*c'", "2147483647", *rng.choices(_HOSTILE, k=arguments - 2)] for _ in range(3)]
            for sample in samples:
                yield f'SELECT length("{name}"({", ".join(sample)}))'


@pytest.mark.slow
def test_no_function_of_sqlite_outlasts_the_time(file):
    reader = SQLiteReader.from_file(file, QueryLimits(seconds=0.5))
    for sql in _calls_of_every_function():
        with cpu_below(3.0, sql), contextlib.suppress(QueryError):
            reader.select(sql)


@pytest.mark.parametrize(
    ("template", "arguments"),
    [
        ("'%.*c'", "2147483647, 'x'"),
        ("'%2147483647c'", "'x'"),
        ("'%*d'", "-2147483647, 1"),
        ("'%0*d %s'", "'900000000', 1, 2"),
        ("'%' || replace(hex(zeroblob(2000)), '0', '9') || 'd'", "1"),
        ("replace(hex(zeroblob(20000)), '0', '%200000c')", "'x'"),
        ("replace(hex(zeroblob(50)), '0', '%.*c')", ", ".join(["240000", "'x'"] * 60)),
    ],
)
def test_widths_of_printf_are_bounded_before_anything_is_padded(reader, template, arguments):
    for name in ("printf", "FORMAT"):
        with cpu_below(1.0), pytest.raises(QueryError, match="too big"):
            reader.select(f"SELECT length({name}({template}, {arguments}))")


def test_printf_is_the_one_of_sqlite(reader):
    own = sqlite3.connect(":memory:")
    rng = random.Random(3)
    conversions = ["d", "s", "c", "f", "g", "x", "Q", "%", "n", "ld"]
    values = [None, 0, 5, -7, 3.7, -2.5, "8", "-3x", " 4", "abc", "é", "", b"ab", 1e300, 2**40]
    for _ in range(3000):
        template = "".join(
            f"{rng.choice(['a', 'é', '|'])}%{rng.choice(['', '-', '0', '+', '!', '#', ','])}"
            f"{rng.choice(['', '*', '12'])}{rng.choice(['', '.*', '.3'])}{rng.choice(conversions)}"
            for _ in range(rng.randint(1, 4))
        )
        parameters = [template, *rng.choices(values, k=rng.randint(0, 6))]
        ask = f"SELECT printf({', '.join('?' * len(parameters))})"
        own.text_factory = lambda raw: raw.decode("utf-8", "replace")
        assert reader._connection.execute(ask, parameters).fetchone() == own.execute(ask, parameters).fetchone(), ask
    assert reader.select(
        "SELECT printf('%.2f', a), printf('%', 1), printf('100%%'), printf(NULL, 1) FROM t LIMIT 1"
    ).rows


def test_one_row_is_no_way_past_the_memory(reader):
    with pytest.raises(QueryError, match="too many columns"):
        reader.select("SELECT " + ", ".join(["a"] * 101) + " FROM (SELECT zeroblob(200000) AS a)")


def test_a_table_of_many_columns_is_read(tmp_path):
    connection = sqlite3.connect(tmp_path / "wide.sqlite")
    connection.execute("CREATE TABLE wide (" + ", ".join(f"c{i}" for i in range(300)) + ")")
    connection.execute("INSERT INTO wide (c7) VALUES (1)")
    connection.commit()
    connection.close()
    rows = SQLiteReader.from_file(tmp_path / "wide.sqlite").select("SELECT * FROM wide")
    assert (len(rows.columns), rows.rows[0][7]) == (300, 1)


@pytest.mark.slow
def test_a_statement_stops_at_the_same_step_every_time(reader):
    counted = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x LIMIT {}) SELECT COUNT(*) FROM x"
    reader.select(counted.format(100_000))
    for _ in range(3):
        with pytest.raises(QueryError):
            reader.select(counted.format(400_000))


def test_more_rows_than_the_limit_are_said_to_be_more(reader):
    rows = reader.select("SELECT a FROM t")
    assert (len(rows.rows), rows.has_more) == (100, True)


def test_a_broken_file_is_lost_and_no_mistake_of_the_query(tmp_path, file):
    (tmp_path / "text.sqlite").write_text("no database, but long enough to be looked at " * 50)
    with pytest.raises(DatabaseUnavailable):
        SQLiteReader.from_file(tmp_path / "text.sqlite")
    with pytest.raises(DatabaseUnavailable):
        SQLiteReader.from_file(tmp_path / "absent.sqlite")
    broken = SQLiteReader.from_file(file)
    file.write_bytes(file.read_bytes()[:4096] + b"\xff" * (len(file.read_bytes()) - 4096))
    with pytest.raises(DatabaseUnavailable):
        broken.select("SELECT b FROM t")
    file.write_text("no database any more, but long enough to be looked at " * 500)
    with pytest.raises(DatabaseUnavailable):
        broken.definition("t")


def test_a_locked_file_is_lost_and_no_mistake_of_the_query(file):
    reader = SQLiteReader.from_file(file, QueryLimits(seconds=0.05))
    with sqlite3.connect(file, isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DatabaseUnavailable, match="locked"):
            reader.select("SELECT a FROM t")
        with pytest.raises(DatabaseUnavailable, match="locked"):
            reader.definition("t")
        with pytest.raises(DatabaseUnavailable, match="locked"):
            SQLiteReader.from_file(file, QueryLimits(seconds=0.05))
        other.execute("ROLLBACK")
    assert reader.definition("t")


@pytest.mark.parametrize("table", ["x" * 2_000_000, "\ud800"])
def test_a_name_that_sqlite_does_not_take_is_a_mistake(reader, table):
    with pytest.raises(QueryError):
        reader.definition(table)


def test_text_in_another_encoding_is_read(tmp_path):
    connection = sqlite3.connect(tmp_path / "latin.sqlite")
    connection.execute("CREATE TABLE t AS SELECT CAST(x'e9' AS TEXT) AS a")
    connection.commit()
    connection.close()
    assert SQLiteReader.from_file(tmp_path / "latin.sqlite").select("SELECT a FROM t").rows == (
        ("\N{REPLACEMENT CHARACTER}",),
    )


def test_any_thread_may_read_at_once(reader):
    results = []
    ask = "SELECT COUNT(*) FROM t a, t b"
    threads = [threading.Thread(target=lambda: results.append(reader.select(ask).rows)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [((250_000,),)] * 8


def test_a_reader_that_nobody_holds_is_freed(file):
    reader = SQLiteReader.from_file(file)
    reader.select("SELECT replace(b, 'b', 'c') FROM t")
    gone = weakref.ref(reader)
    del reader
    assert gone() is None


# --- a writer --------------------------------------------------------------------------------------------------------


@pytest.fixture
def writer():
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    connection.executescript("CREATE TABLE t (a, b); CREATE TABLE other (x); CREATE INDEX i ON t (a)")
    connection.executescript("INSERT INTO t VALUES (1, 2), (3, 4); INSERT INTO other VALUES (1)")
    limits = QueryLimits(steps=3_000_000, seconds=3.0, rows=100, megabytes=64)
    writer = SQLiteWriter(connection, ["t"], limits, megabytes=1)
    yield writer
    writer.close()


def rows_of(writer, table="t"):
    return sorted(writer.select(f"SELECT * FROM {table}").rows)


def test_rows_of_a_table_are_changed_and_counted(writer):
    for sql, changed, rows in (
        ("INSERT INTO t VALUES (5, 6)", 1, [(1, 2), (3, 4), (5, 6)]),
        ("INSERT INTO T (a) SELECT a FROM t RETURNING a", 3, None),
        ("DELETE FROM t WHERE b IS NULL", 3, [(1, 2), (3, 4), (5, 6)]),
        ("UPDATE t SET b = (SELECT x FROM other) WHERE a > 1;", 2, [(1, 2), (3, 1), (5, 1)]),
        ("WITH w AS (SELECT 1) UPDATE t SET b = 9 WHERE a = 7", 0, [(1, 2), (3, 1), (5, 1)]),
        ("SELECT * FROM t", 0, [(1, 2), (3, 1), (5, 1)]),
        ("DELETE FROM t", 3, []),
    ):
        assert writer.execute(sql).changed == changed, sql
        assert rows is None or rows_of(writer) == rows, sql


WRITES_ELSEWHERE = (
    *("INSERT INTO other VALUES (2)", "UPDATE other SET x = 2", "DELETE FROM other", "DROP TABLE t", "DROP INDEX i"),
    *("CREATE TABLE u (a)", "CREATE TEMP TABLE u (a)", "CREATE VIEW v AS SELECT 1", "ALTER TABLE t RENAME TO u"),
    *("CREATE TRIGGER r AFTER INSERT ON t BEGIN DELETE FROM other; END", "CREATE VIRTUAL TABLE v USING fts5(x)"),
    *("INSERT INTO sqlite_master VALUES (1, 2, 3, 4, 5)", "UPDATE sqlite_master SET sql = 'x'"),
    *("ATTACH 'x.sqlite' AS y", "DETACH main", "VACUUM", "VACUUM INTO 'x.sqlite'", "ANALYZE", "REINDEX"),
    *("PRAGMA writable_schema = 1", "PRAGMA max_page_count = 9999", "PRAGMA journal_mode = wal"),
    *("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT s", "RELEASE s", "SELECT * FROM pragma_database_list"),
    *("SELECT load_extension('x')", "INSERT INTO t SELECT load_extension('x'), 1", "SELECT writefile('x', 'y')"),
    *(
        "SELECT readfile('/etc/passwd')",
        "INSERT INTO t VALUES (1, 2); DELETE FROM other",
        "INSERT INTO temp.t VALUES (1, 2)",
    ),
    *("", " ;", "INSERT INTO t VALUES (1)", "UPDATE t SET c = 1", "EXPLAIN QUERY PLAN ATTACH 'x' AS y"),
)


def test_nothing_else_is_changed_or_opened(writer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for sql in WRITES_ELSEWHERE:
        with pytest.raises(QueryError):
            writer.execute(sql)
        assert (rows_of(writer), rows_of(writer, "other")) == ([(1, 2), (3, 4)], [(1,)]), sql
        assert writer.execute("UPDATE t SET b = b").changed == 2, sql  # no transaction stays open
    assert not [*tmp_path.iterdir()]
    with pytest.raises(QueryError, match="INSERT, UPDATE or DELETE on t, is allowed"):
        writer.execute("DROP TABLE t")


def test_a_statement_that_takes_too_much_changes_nothing(writer):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT"
    for sql, message in (
        (f"INSERT INTO t {endless} i, i FROM n", "too large"),
        (f"INSERT INTO t {endless} i, i FROM n WHERE i < 0", "stopped after 3000000 steps"),
        ("INSERT INTO t VALUES (zeroblob(300000), 1)", "too big"),
        ("UPDATE t SET a = CASE a WHEN 1 THEN 7 ELSE abs(-9223372036854775808) END", "integer overflow"),
    ):
        with pytest.raises(QueryError, match=message):
            writer.execute(sql)
        assert rows_of(writer) == [(1, 2), (3, 4)]


def filled(writer):
    """Inserts rows of 100 kB until one is refused; returns their number."""
    number = 0
    with contextlib.suppress(QueryError):
        while number < 100:
            number += writer.execute("INSERT INTO t VALUES (zeroblob(100000), 1)").changed
    with pytest.raises(QueryError, match="too large"):
        writer.execute("INSERT INTO t VALUES (zeroblob(100000), 1)")
    return number


def test_what_all_statements_add_is_bounded(writer):
    added = filled(writer)
    assert 5 <= added <= 10
    assert writer.execute("DELETE FROM t").changed == added + 2


def test_a_snapshot_of_a_writer_is_restored_within_the_same_bounds(writer):
    state = writer.get_state()
    writer.execute("DELETE FROM t")
    writer.set_state(state)
    assert rows_of(writer) == [(1, 2), (3, 4)]
    writer.execute("INSERT INTO t VALUES (5, 6)")
    assert filled(writer) <= 10


def test_a_clone_of_a_file_leaves_the_file_alone(file, tmp_path):
    before = file.read_bytes()
    first, second = SQLiteWriter.clone(file), SQLiteWriter.clone(file)
    assert first.execute("DELETE FROM t").changed == 500
    assert second.select("SELECT count(*) FROM t").rows == ((500,),)
    assert file.read_bytes() == before
    with pytest.raises(DatabaseUnavailable):
        SQLiteWriter.clone(tmp_path / "absent.sqlite")
    for made in (first, second):
        made.close()
