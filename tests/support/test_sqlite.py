"""SQLite for strangers: nothing is written, nothing outlasts its limits, the next statement works."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from agent_r1_gym.support.sqlite import DatabaseLost, QueryError, QueryLimits, Reader


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
    reader = Reader.of_file(file, QueryLimits(steps=3_000_000, seconds=3.0, rows=100, megabytes=64))
    yield reader
    reader.close()


def test_it_reads(reader):
    rows = reader.select("SELECT a, b FROM t WHERE a < 2 ORDER BY a")
    assert (rows.columns, rows.rows, rows.more) == (("a", "b"), ((0, "b0"), (1, "b1")), False)
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
        ("SELECT count(*) FROM (SELECT randomblob(900000) AS x FROM t a, t b, t c ORDER BY x)", "64 MB|steps|3 s"),
        ("SELECT 'a' LIKE '" + "%a" * 200 + "'", "pattern"),
    ],
)
def test_what_takes_too_much_is_stopped(reader, sql, reason):
    with pytest.raises(QueryError, match=reason):
        reader.select(sql)
    assert reader.select("SELECT 1").rows == ((1,),)


def test_a_statement_stops_at_the_same_step_every_time(reader):
    counted = "WITH RECURSIVE x(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM x LIMIT {}) SELECT COUNT(*) FROM x"
    reader.select(counted.format(100_000))
    for _ in range(3):
        with pytest.raises(QueryError):
            reader.select(counted.format(400_000))


def test_more_rows_than_the_limit_are_said_to_be_more(reader):
    rows = reader.select("SELECT a FROM t")
    assert (len(rows.rows), rows.more) == (100, True)


def test_a_broken_file_is_lost_and_no_mistake_of_the_query(tmp_path, file):
    (tmp_path / "text.sqlite").write_text("no database, but long enough to be looked at " * 50)
    with pytest.raises(DatabaseLost):
        Reader.of_file(tmp_path / "text.sqlite")
    with pytest.raises(DatabaseLost):
        Reader.of_file(tmp_path / "absent.sqlite")
    broken = Reader.of_file(file)
    file.write_bytes(file.read_bytes()[:4096] + b"\xff" * (len(file.read_bytes()) - 4096))
    with pytest.raises(DatabaseLost):
        broken.select("SELECT b FROM t")


def test_text_in_another_encoding_is_read(tmp_path):
    connection = sqlite3.connect(tmp_path / "latin.sqlite")
    connection.execute("CREATE TABLE t AS SELECT CAST(x'e9' AS TEXT) AS a")
    connection.commit()
    connection.close()
    assert Reader.of_file(tmp_path / "latin.sqlite").select("SELECT a FROM t").rows == (("\N{REPLACEMENT CHARACTER}",),)


def test_any_thread_may_read_at_once(reader):
    results = []
    ask = "SELECT COUNT(*) FROM t a, t b"
    threads = [threading.Thread(target=lambda: results.append(reader.select(ask).rows)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [((250_000,),)] * 8
