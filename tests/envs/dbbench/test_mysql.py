"""Statements and comparisons as MySQL has them, in SQLite."""

from __future__ import annotations

from typing import Any

import pytest

from agent_r1_gym.envs.dbbench.mysql import MySQLTable, Table, to_sqlite
from agent_r1_gym.support.sqlite import QueryError

AIRPORTS = Table(
    "1952 Airports",
    ("Name", "No. of gates", "Note"),
    (("Montréal", "9", "it's old"), ("OSLO", "10", None), ("Bodø", "2,500", ""), ("Rome", "7.5", "a\nb")),
)


@pytest.fixture
def table():
    made = MySQLTable(AIRPORTS)
    yield made
    made.close()


def select(table: MySQLTable, condition: str) -> list[Any]:
    return [row[0] for row in table.execute(f"SELECT Name FROM `1952 Airports` WHERE {condition}").rows]


REWRITTEN = (
    ('SELECT \'it\\\'s\', "say \\"hi\\"", \'O\'\'Neil\', "a""b"', "SELECT 'it''s', 'say \"hi\"', 'O''Neil', 'a\"b'"),
    ("SELECT 'a\\nb\\\\c\\%'", "SELECT 'a\nb\\c\\%'"),
    ("UPDATE t SET a = 5, b = .5 WHERE c > 9", "UPDATE t SET a = 5, b = .5 WHERE (0 + c) > 9"),
    ("SELECT a FROM t WHERE b NOT BETWEEN 1 AND 2", "SELECT a FROM t WHERE (0 + b) NOT BETWEEN 1 AND 2"),
    ("SELECT a FROM t WHERE t.`b c` BETWEEN 1 AND 2", "SELECT a FROM t WHERE (0 + t.`b c`) BETWEEN 1 AND 2"),
    ("SELECT a FROM t WHERE b * c > 9", "SELECT a FROM t WHERE b * (0 + c) > 9"),
    ("SELECT a FROM t WHERE CASE b WHEN 'x' THEN 1 END > 0", None),
    ("SELECT a FROM t WHERE b = '5' AND c LIKE 'x'", None),
    ("SELECT COUNT(*) FROM t HAVING COUNT(*) > 5", None),
    ("SELECT a/2, 'a/2', `a/2` FROM t # 1/2", "SELECT a* 1.0 /2, 'a/2', `a/2` FROM t  "),
    ("SELECT 1 /* 1/2 */ FROM t WHERE a / b > 1", "SELECT 1   FROM t WHERE a * 1.0 / (0 + b) > 1"),
    ("SELECT CAST(a AS signed), CAST(b as UNSIGNED )", "SELECT CAST(a AS INTEGER), CAST(b AS INTEGER )"),
    ("SELECT COUNT(*) AS signed FROM t", None),
    ("SELECT 1e5, 0x1F, 1.5 FROM t LIMIT 3", None),
    ("SELECT a FROM 1952_x", "SELECT a FROM `1952_x`"),
    ("SELECT `1952_x`.`a'b` FROM `1952_x`", None),
    ("SELECT 'unclosed = 5", None),
    ("", None),
)


def test_statements_are_rewritten_and_what_is_not_known_stays() -> None:
    wrong = [(sql, to_sqlite(sql)) for sql, expected in REWRITTEN if to_sqlite(sql) != (expected or sql)]
    assert not wrong


def test_a_long_statement_takes_time_that_grows_with_its_length() -> None:
    for part in ("'\\'", "'", "a = ", "`", "/*", "a.a", "\\", "1e", "/", "as "):
        assert len(to_sqlite(part * 5_000)) < 80_000


def test_texts_are_compared_without_case_and_accents(table: MySQLTable) -> None:
    assert select(table, "Name = 'montreal'") == ["Montréal"]
    assert select(table, "Name IN ('oslo', 'ROME')") == ["OSLO", "Rome"]
    assert select(table, "Name < 'n' ORDER BY Name") == ["Bodø", "Montréal"]


def test_texts_are_compared_with_numbers_as_numbers(table: MySQLTable) -> None:
    assert select(table, "`No. of gates` > 8") == ["Montréal", "OSLO"]
    assert select(table, "`No. of gates` = 10.0") == ["OSLO"]
    assert select(table, "`No. of gates` BETWEEN 2 AND 8") == ["Bodø", "Rome"]  # "2,500" is 2, as in MySQL
    assert select(table, "`No. of gates` = '10.0'") == []


def test_like_compares_as_the_collation_does_with_a_backslash_as_escape() -> None:
    names = ("Montréal", "50%", "500", "a_b\nc", "ab", "", None)
    table = MySQLTable(Table("t", ("Name",), tuple((name,) for name in names)))
    for condition, expected in (
        ("LIKE 'montreal'", ["Montréal"]),
        ("LIKE '%TRÉ%'", ["Montréal"]),
        (r"LIKE '50\%'", ["50%"]),
        ("LIKE '50%'", ["50%", "500"]),
        ("LIKE '50|%' ESCAPE '|'", ["50%"]),
        ("LIKE 'a_b'", []),
        (r"LIKE 'a\_b%c'", ["a_b\nc"]),
        ("LIKE '___'", ["50%", "500"]),
        ("LIKE ''", [""]),
        ("LIKE '%b'", ["ab"]),
        ("NOT LIKE '%0%'", ["Montréal", "a_b\nc", "ab", ""]),
        ("LIKE NULL", []),
    ):
        found = [row[0] for row in table.execute(f"SELECT Name FROM t WHERE Name {condition}").rows]
        assert found == expected, condition
    assert table.execute("SELECT 3.0 LIKE '3', 'abcabd' LIKE '%ab_', 'aab' LIKE 'a%ab%b'").rows == ((1, 1, 0),)
    with pytest.raises(QueryError, match="has at most 100 characters, got 101"):
        table.execute(f"SELECT Name FROM t WHERE Name LIKE '{'a' * 101}'")
    table.close()


def test_numbers_are_divided_as_numbers() -> None:
    table = MySQLTable(Table("t", ("a",), (("7",), ("3.7",), ("2,500",))))
    for expression, expected in (
        ("MAX(a) / 2", 3.5),
        ("SUM(CAST(a AS SIGNED)) / COUNT(*)", 4.0),
        ("COUNT(*) / 2 * 100", 150.0),
        ("7 / 2 / 2", 1.75),
        ("1 / 0", None),
    ):
        assert table.execute(f"SELECT {expression} FROM t LIMIT 1").rows == ((expected,),), expression
    table.execute("UPDATE t SET a = a / 2 WHERE a > 3")
    assert [row[0] for row in table.rows()] == ["3.5", "1.85", "2,500"]
    table.close()


def test_texts_keep_their_quotes_ends_of_line_and_null(table: MySQLTable) -> None:
    assert select(table, "Note = 'it\\'s old'") == select(table, 'Note = "it\'s old"') == ["Montréal"]
    assert select(table, "Note = 'a\\nb'") == ["Rome"]
    assert select(table, "Note IS NULL") == ["OSLO"]


def test_only_rows_of_the_table_change(table: MySQLTable) -> None:
    assert table.execute("UPDATE `1952 Airports` SET `No. of gates` = 8 WHERE `No. of gates` = 9").changed == 1
    assert table.execute("INSERT INTO `1952 Airports` VALUES ('X', 1.0, NULL)").changed == 1
    assert [row[:2] for row in table.rows()][::4] == [("Montréal", "8"), ("X", "1.0")]
    for sql in ("DROP TABLE `1952 Airports`", "CREATE TABLE t (a)", "SHOW TABLES", "ATTACH 'x' AS y", "SET a = 1"):
        with pytest.raises(QueryError):
            table.execute(sql)
