"""Spider and BIRD folders, a file of questions over any SQLite file, and a foreign database: Chinook."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
import warnings
from pathlib import Path

import pytest

from agent_r1_gym.envs.text2sql.databases import DatabaseFiles, gold_result, matches_gold, reader
from agent_r1_gym.envs.text2sql.env import Text2SQLEnv
from agent_r1_gym.envs.text2sql.result_match import COMPARISONS
from agent_r1_gym.envs.text2sql.tasks import read_tasks
from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.support.sqlite import QueryError
from tests.kit.data import shared_file
from tests.kit.environments import CHINOOK


def database(path: Path, rows: int = 9) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    connection.execute('CREATE TABLE "singer" ("Singer_ID" int, "Name" text, "Country" text, "Age" int)')
    singers = [(i, f"Name {i}", ("France", "Spain")[i % 2], 20 + i) for i in range(rows)]
    connection.executemany("INSERT INTO singer VALUES (?, ?, ?, ?)", singers)
    connection.commit()
    connection.close()
    return path


SPIDER = {"db_id": "concert_singer", "question": "How many singers?", "query": "SELECT count(*) FROM singer"}
BIRD = {
    "question_id": 4, "db_id": "concert_singer", "question": "How many from France?", "evidence": "France is a Country",
    "SQL": "SELECT COUNT(*) FROM singer WHERE Country = 'France'", "difficulty": "simple",
}  # fmt: skip


def test_a_spider_folder(tmp_path):
    (tmp_path / "dev.json").write_text(json.dumps([SPIDER]))
    (tmp_path / "train_spider.json").write_text(json.dumps([SPIDER, SPIDER]))
    database(tmp_path / "database" / "concert_singer" / "concert_singer.sqlite")
    (task,), description = read_tasks(tmp_path, split="validation", database=None)
    assert (task.prompt, task.answers, task.metadata) == (
        SPIDER["question"],
        (SPIDER["query"],),
        {"db_id": "concert_singer"},
    )
    assert task.source.instances == 4  # three are made
    assert matches_gold(task.source, "SELECT COUNT(Singer_ID) FROM singer", task.answers[0], ordered=False)
    assert not matches_gold(task.source, "SELECT 9", task.answers[0], ordered=False)
    assert len(read_tasks(tmp_path, split="train", database=None)[0]) == 2
    assert "1 questions" in description


def test_the_databases_of_a_test_suite_are_the_instances(tmp_path):
    (tmp_path / "dev.json").write_text(json.dumps([SPIDER]))
    folder = tmp_path / "database" / "concert_singer"
    for name, rows in (("concert_singer", 9), ("a_v1", 3), ("b_v2", 5), ("c_v3", 1)):
        database(folder / f"{name}.sqlite", rows)
    (task,), _ = read_tasks(tmp_path, split="validation", database=None)
    assert [path.stem for path in task.source.paths] == ["concert_singer", "a_v1", "b_v2", "c_v3"]
    assert task.source.instances == 4


def test_a_bird_folder(tmp_path):
    (tmp_path / "dev.json").write_text(json.dumps([BIRD]))
    database(tmp_path / "dev_databases" / "concert_singer" / "concert_singer.sqlite")
    (task,), _ = read_tasks(tmp_path, split="validation", database=None)
    assert task.prompt == "How many from France?\nFrance is a Country"
    assert task.id == "sql-4"
    assert not matches_gold(task.source, "SELECT COUNT(*) FROM singer", task.answers[0], ordered=False)
    inner = tmp_path / "unpacked" / "inner"  # its archives have everything one folder down
    inner.mkdir(parents=True)
    for name in ("dev.json", "dev_databases"):
        (tmp_path / name).rename(inner / name)
    assert read_tasks(inner.parent, split="validation", database=None)[0][0].id == "sql-4"


def test_wrong_gold_is_excluded_and_counted(tmp_path):
    rows = [
        SPIDER,
        {**SPIDER, "query": "SELECT absent FROM singer"},
        {**SPIDER, "query": "SELECT 1 FROM singer WHERE 0"},
        {**SPIDER, "query": "SELECT random() FROM singer"},
    ]
    (tmp_path / "q.json").write_text(json.dumps(rows))
    tasks, description = read_tasks(tmp_path / "q.json", split="train", database=database(tmp_path / "a.sqlite"))
    assert len(tasks) == 1
    assert "3 excluded" in description
    assert "no such column" in description


def test_questions_that_a_constant_answers_are_named(tmp_path, recwarn):
    path = database(tmp_path / "a.sqlite", rows=60)
    rows = [SPIDER, {"question": "Which countries?", "query": "SELECT DISTINCT Country FROM singer"}]
    (tmp_path / "q.json").write_text(json.dumps(rows))
    with pytest.warns(UserWarning, match=r"1 of 2 questions have the same rows.*: Which countries\?\."):
        read_tasks(tmp_path / "q.json", split="train", database=path)
    (tmp_path / "q.json").write_text(json.dumps([SPIDER]))
    recwarn.clear()
    read_tasks(tmp_path / "q.json", split="train", database=path)
    assert not recwarn


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "SELECT 1"}, "no text under any of"),
        ({**SPIDER, "query": " "}, "no text under any of"),
        ({**SPIDER, "db_id": "../../etc"}, "is not a valid database name"),
        ({**SPIDER, "db_id": "other"}, "there is no database 'other'"),
        ({**SPIDER, "query": "DROP TABLE singer"}, "can be executed"),
        ("text", "expected an object"),
    ],
)
def test_bad_rows_are_named_with_their_place(tmp_path, row, message):
    (tmp_path / "dev.json").write_text(json.dumps([row]))
    database(tmp_path / "database" / "concert_singer" / "concert_singer.sqlite")
    with pytest.raises(DatasetError, match=message):
        read_tasks(tmp_path, split="validation", database=None)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(DatasetError, match="holds none of"):
        read_tasks(tmp_path, split="train", database=None)
    with pytest.raises(DatasetError, match="no file of questions at"):
        read_tasks(tmp_path / "absent.json", split="train", database=None)
    (tmp_path / "q.json").write_text("{")
    with pytest.raises(DatasetError, match=r"q\.json, line 1: not valid JSON"):
        read_tasks(tmp_path / "q.json", split="train", database=None)
    (tmp_path / "q.jsonl").write_text(json.dumps(SPIDER) + "\n")
    (tmp_path / "text.sqlite").write_text("no database, and long enough to be seen as none " * 30)
    with pytest.raises(DatasetError, match=r"text\.sqlite: .*; expected a complete SQLite database"):
        read_tasks(tmp_path / "q.jsonl", split="train", database=tmp_path / "text.sqlite")


LINES = "\n".join(json.dumps({**SPIDER, "query": f"{SPIDER['query']} WHERE Age > {age}"}) for age in (20, 22, 24))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("no_line_end.jsonl", LINES.encode()),
        ("blank.jsonl", f"\n{LINES}\n\n".replace("\n", "\r\n\r\n").encode()),
        ("mark.json", b"\xef\xbb\xbf[" + LINES.replace("\n", ",").encode() + b"]"),
        ("lines.json", LINES.encode()),
        ("packed.jsonl.gz", gzip.compress(LINES.encode(), mtime=0)),
    ],
)
def test_questions_are_read_as_other_files_are(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    tasks, _ = read_tasks(tmp_path / name, split="train", database=database(tmp_path / "a.sqlite"))
    assert [(task.id, task.answers[0][-2:]) for task in tasks] == [("sql-0", "20"), ("sql-1", "22"), ("sql-2", "24")]


@pytest.mark.parametrize("ids", [(7, 7), (1, None), ("7", 7)])
def test_two_questions_with_one_id_are_refused(tmp_path, ids):
    (tmp_path / "q.json").write_text(json.dumps([{**SPIDER, "question_id": each} for each in ids]))
    with pytest.raises(DatasetError, match=r"row 1: .*row 0 has the id 'sql-\d' already"):
        read_tasks(tmp_path / "q.json", split="train", database=database(tmp_path / "a.sqlite"))


def test_a_changed_database_is_read_anew(tmp_path):
    (tmp_path / "q.json").write_text(json.dumps([SPIDER]))
    path = database(tmp_path / "a.sqlite")
    read_tasks(tmp_path / "q.json", split="train", database=path)
    path.unlink()
    (task,), _ = read_tasks(tmp_path / "q.json", split="train", database=database(path, rows=50))
    assert matches_gold(task.source, "SELECT 50", task.answers[0], ordered=False, comparison="bird")


def library_with_virtual_tables(path: Path) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        CREATE TABLE page(id INTEGER PRIMARY KEY, body TEXT);
        CREATE VIRTUAL TABLE note USING fts5(body, tag UNINDEXED);
        CREATE VIRTUAL TABLE page_index USING fts5(body, content='page', content_rowid='id');
        CREATE VIRTUAL TABLE place USING rtree(id, west, east);
        CREATE VIRTUAL TABLE words USING fts5vocab('note', 'row');
        CREATE TABLE note_archive(body TEXT);
        CREATE VIEW tags AS SELECT DISTINCT tag FROM note;
        """
    )
    pages = [(number, f"{('green', 'red')[number % 2]} page {number}") for number in range(40)]
    connection.executemany("INSERT INTO page VALUES (?, ?)", pages)
    connection.executemany("INSERT INTO note VALUES (?, ?)", [(body, f"t{number % 3}") for number, body in pages])
    connection.executemany("INSERT INTO note_archive VALUES (?)", [(body,) for _, body in pages])
    connection.executemany("INSERT INTO place VALUES (?, ?, ?)", [(number, number, number + 2) for number, _ in pages])
    connection.execute("INSERT INTO page_index(page_index) VALUES ('rebuild')")
    connection.commit()
    connection.close()
    return path


def test_a_database_with_full_text_and_spatial_tables_is_resampled(tmp_path):
    source = DatabaseFiles((library_with_virtual_tables(tmp_path / "a.sqlite"),))
    counts = set()
    for instance in range(source.instances):
        table = reader(source, instance)
        assert table.tables == ("note", "note_archive", "page", "page_index", "place", "tags", "words")
        found, pages = (
            table.select(f"SELECT count(*) FROM {where}").rows[0][0]
            for where in ("page_index WHERE page_index MATCH 'green'", "page WHERE body LIKE 'green%'")
        )
        assert found == pages > 0
        assert table.select("SELECT count(*) FROM note WHERE note MATCH 'red'").rows[0][0] > 0
        assert table.select("SELECT count(*) FROM place WHERE west >= 10 AND east <= 25").rows[0][0] > 0
        counts.add(table.select("SELECT count(*) FROM note_archive").rows[0][0])
    assert len(counts) > 1


def test_a_question_is_excluded_if_its_query_fails_on_a_resampled_instance(tmp_path, monkeypatch):
    path = database(tmp_path / "a.sqlite")
    rows = [SPIDER, {**SPIDER, "query": "SELECT Name FROM singer"}]
    (tmp_path / "q.json").write_text(json.dumps(rows))

    def slow(source, instance, gold):
        if instance == 2 and "Name" in gold:
            raise QueryError("The query was stopped after 5 s.")
        return gold_result(source, instance, gold)

    monkeypatch.setattr("agent_r1_gym.envs.text2sql.tasks.gold_result", slow)
    tasks, description = read_tasks(tmp_path / "q.json", split="train", database=path)
    assert len(tasks) == 1
    assert "1 excluded" in description
    assert "stopped after 5 s. on instance 2" in description


def test_a_gold_query_that_fails_while_an_answer_is_judged_is_no_fault_of_the_answer(tmp_path, monkeypatch):
    (tmp_path / "q.json").write_text(json.dumps([SPIDER]))
    env = Text2SQLEnv(dataset=tmp_path / "q.json", database=database(tmp_path / "a.sqlite"))

    def fails(source, instance, gold):
        raise QueryError("The query was stopped after 5 s.")

    monkeypatch.setattr("agent_r1_gym.envs.text2sql.databases.gold_result", fails)
    env.reset(seed=0)
    *_, info = env.step("<answer>SELECT count(*) FROM singer</answer>")
    assert "gold query fails on instance 0: The query was stopped" in info["infrastructure_error"]


def test_a_database_that_cannot_be_resampled_is_refused_when_the_tasks_are_read(tmp_path):
    path = tmp_path / "a.sqlite"
    connection = sqlite3.connect(path)
    connection.create_function("f", 1, lambda value: value, deterministic=True)
    connection.executescript("CREATE TABLE singer(Age INTEGER, CHECK (f(Age) > 0))")
    connection.close()
    (tmp_path / "q.json").write_text(json.dumps([{**SPIDER, "query": "SELECT count(*) FROM singer"}]))
    with pytest.raises(DatasetError, match=r"a\.sqlite cannot be resampled: no such function: f .*on instance 1"):
        read_tasks(tmp_path / "q.json", split="train", database=path)
    assert len(read_tasks(tmp_path / "q.json", split="train", database=path, comparison="bird")[0]) == 1


PAIRS = [  # query, answer, and whether it is right: strict, spider, bird
    ("SELECT Name FROM singer", "SELECT DISTINCT Name FROM singer", (False, True, True)),
    ("SELECT Country FROM singer", "SELECT DISTINCT Country FROM singer", (False, True, True)),
    ("SELECT DISTINCT Country FROM singer", "SELECT Country FROM singer", (False, True, True)),
    ("SELECT Name FROM singer ORDER BY Age", "SELECT Name FROM singer ORDER BY Age DESC", (False, False, True)),
    ("SELECT Name, Age FROM singer", "SELECT Age, Name FROM singer", (True, True, False)),
    ("SELECT Age FROM singer", "SELECT Age + 0.0 FROM singer", (True, True, True)),
    ("SELECT 0.3 FROM singer", "SELECT 0.1 + 0.2 FROM singer", (True, False, False)),
    ("SELECT sum(Age) FROM singer", "SELECT 216", (False, True, True)),
    ("SELECT Name FROM singer WHERE Age > = 28", "SELECT Name FROM singer WHERE Age = 28", (None, True, None)),
    ("SELECT 1 FROM singer WHERE Age > 99", "SELECT 2, 3 FROM singer WHERE Age < 0", (None, True, True)),
    (
        "SELECT Name FROM singer WHERE Age IN (SELECT max(Age) FROM singer ORDER BY 1)",
        "SELECT 'Name 8'",
        (False, True, True),
    ),
    ("SELECT Age FROM singer", "SELECT absent FROM singer", (False, False, False)),
]


@pytest.mark.parametrize(("query", "answer", "right"), PAIRS)
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_official_comparisons_meet_the_official_scripts(tmp_path, query, answer, right, comparison):
    (tmp_path / "q.json").write_text(json.dumps([SPIDER, {**SPIDER, "query": query}]))
    path = database(tmp_path / "a.sqlite")
    expected = right[COMPARISONS.index(comparison)]
    options = {"dataset": tmp_path / "q.json", "database": path, "comparison": comparison}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = Text2SQLEnv(**options)
    if expected is None:  # the gold query fails, or strictly returns nothing: no such question
        assert len(env.tasks) == 1
        return
    env.reset(seed=0, options={"task_index": 1})
    assert env.step(f"<answer>{answer}</answer>")[1] == float(expected)
    if comparison != "strict":
        assert f"compared as by the script of {comparison}" in env.describe_dataset()


def test_generated_questions_are_judged_strictly():
    with pytest.raises(ConfigurationError, match="comparison='bird' is for questions of files"):
        Text2SQLEnv(comparison="bird")
    with pytest.raises(ConfigurationError, match="Unknown comparison 'official'"):
        Text2SQLEnv(comparison="official")


def edited(query):
    """Yields queries with one mistake: no DISTINCT, ORDER BY, WHERE, LIMIT or HAVING, another constant."""
    for pattern in (r"DISTINCT ", r" ORDER BY .*?(?= LIMIT|$)", r" LIMIT \d+", r" HAVING .*?(?= ORDER|$)"):
        if re.search(pattern, query):
            yield re.sub(pattern, "", query)
    outer = re.search(r" WHERE (?:(?!SELECT).)*?(?= GROUP| ORDER|$)", query)
    if outer:
        yield query.replace(outer[0], "")
    for text in re.findall(r"'[^']+'", query):
        yield query.replace(text, "'?'")
    for number in re.findall(r"(?<=[<>=] )\d[\d.]*|(?<=LIMIT )\d+", query):
        yield query.replace(
            f" {number}", f" {float(number) * 1.5:g}" if "." in number else f" {int(number) * 11 // 10 + 1}"
        )


@pytest.mark.slow
def test_thirty_questions_over_chinook(tmp_path):
    rows = [{"question": question, "query": query} for question, query in CHINOOK]
    (tmp_path / "q.json").write_text(json.dumps(rows))
    tasks, _ = read_tasks(tmp_path / "q.json", split="train", database=shared_file("chinook.sqlite"))
    assert len(tasks) == 30
    caught, missed = 0, []
    for task in tasks:
        gold = task.answers[0]
        assert matches_gold(task.source, gold, gold, ordered=task.ordered)
        for query in edited(gold):
            if matches_gold(task.source, query, gold, ordered=task.ordered):
                missed.append((gold, query))
            else:
                caught += 1
    assert caught > 40
    assert not missed
