"""Rows of DBBench: their files, malformed ones, and when a table or an answer is right."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.data import load
from agent_r1_gym.envs.dbbench import tasks
from agent_r1_gym.envs.dbbench.mysql import MySQLTable, Table
from agent_r1_gym.envs.dbbench.tasks import TableTask, answers_question, load_tasks, table_state
from agent_r1_gym.errors import DatasetError
from tests.kit.data import shared_file

SPLITS = (("train", "dev"), ("test", "standard"))
ROWS = [
    (split, json.loads(line))
    for split, name in SPLITS
    for line in (Path(tasks.__file__).parent / "sample" / f"{name}.jsonl").read_text("utf-8").splitlines()
]


def write(folder: Path, rows: Any = ROWS, prefix: str = "") -> Path:
    folder.mkdir(parents=True)
    for split, name in SPLITS:
        lines = [json.dumps(row) for row_split, row in rows if row_split == split]
        (folder / f"{prefix}{name}.jsonl").write_text("\n".join(lines))
    return folder


def test_a_checkout_its_folder_copies_and_a_file_are_read(tmp_path: Path) -> None:
    expected = [(task.prompt, task.label) for task in load_tasks("sample").part("all")]
    folder = write(tmp_path / "AgentBench" / "data" / "dbbench")
    for path in (folder, tmp_path / "AgentBench", str(write(tmp_path / "copies", prefix="dbbench_"))):
        read = load_tasks(path)
        assert [(task.prompt, task.label) for task in read.part("all")] == expected
        assert (len(read), len(read.part("test")), read.held_out_splits) == (7, 5, ("test",))
    assert [task.id for task in load_tasks(folder / "standard.jsonl")][:2] == ["standard-0", "standard-1"]
    with pytest.raises(
        DatasetError, match=r"holds no rows of DBBench; expected standard\.jsonl or dbbench_standard\.jsonl"
    ):
        load_tasks(tmp_path)


def test_the_default_is_the_sample_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_sample_warned", set())
    with pytest.warns(load.SampleDataWarning, match="No DBBench data .* INVENTED tables .*git clone"):
        assert load_tasks("auto").is_sample
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_tasks("auto")
    assert [task.id for task in load_tasks("sample").part("all")] == [f"sample-{number}" for number in range(12)]


TABLE = ROWS[2][1]["table"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"description": ""}, "field 'description'"),
        ({"label": []}, "field 'label'"),
        ({"type": "INSERT"}, "field 'label'"),
        ({"table": None}, "field 'table'"),
        ({"table": {**TABLE, "table_info": {"columns": [{"name": "a"}], "rows": [["x", "y"]]}}}, "a cell for each"),
        (
            {"table": {**TABLE, "table_info": {"columns": [{"name": "a"}, {"name": "A"}], "rows": []}}},
            "duplicate column",
        ),
        ({"label": ["INSERT INTO `Nothing` VALUES (1)"]}, "its gold statement fails: no such table"),
        ({"label": ["DROP TABLE `Lighthouses`"]}, "its gold statement fails: Only one SELECT"),
    ],
)
def test_malformed_rows_are_refused_with_their_place(change: Mapping[str, Any], message: str, tmp_path: Path) -> None:
    rows = [(split, {**row, **change} if number == 2 else row) for number, (split, row) in enumerate(ROWS)]
    with pytest.raises(DatasetError, match=f"dev.jsonl, line 3.*{message}"):
        load_tasks(write(tmp_path / "data", rows))


def test_an_answer_is_compared_as_agentbench_compares_it() -> None:
    for answer, label in (
        ('["F", "5"]', ("F", "5")),
        ("['5', 'F', 'F']", ("F", "5")),
        ("[F, 5]", ("F", "5")),
        ('["F", null]', ("F", "")),
        ("[('7',)]", ("7",)),
        ("[(7.0,)]", ("7",)),
        ("[(Oslo,)]", ("Oslo",)),
        ("[('F',), (5,)]", ("F", "5")),
        ("[(1, 2), ('F',)]", ("F",)),  # rows of several columns are dropped
        ('["21,000"]', ("21000.0",)),
        (" '1,025' ", ("1,025",)),
        ("12.5 %", ("12.5",)),
        ("7.004", ("7",)),
        ("7", ("007",)),
        ('["5", "5"]', ("5.0", "5")),
        ("None", ("",)),
        ("[None]", ("0",)),
        ("Smith, John", ("Smith John",)),
    ):
        assert answers_question(answer, label), answer
    for answer, label in (
        ('["F"]', ("F", "5")),
        ("F, 5", ("F", "5")),
        ('["f", "5"]', ("F", "5")),
        ('["F", "5.0"]', ("F", "5")),  # not numbers alone
        ("('F', 5)", ("F", "5")),
        ("[[5], 'F']", ("F", "5")),
        ('["5"]', ("5", "5")),
        ('["5", "5"]', ("5",)),
        ('["5", "6"]', ("5", "5")),
        ("7.02", ("7",)),
        ("", ("x",)),
        ("[]", ("7",)),
        ("true", ("True",)),
        ("[" * 9_000, ("1",)),
        ("[" * 9_000 + "]" * 9_000, ("1",)),
        (f"[0x{'f' * 9_000}]", ("1",)),
        ("[1 + 1]", ("2",)),  # nothing is evaluated
        ("[__import__('os').getcwd()]", ("x",)),
    ):
        assert not answers_question(answer, label), answer[:80]


def test_a_state_is_the_multiset_of_rows() -> None:
    def state(*rows: tuple[Any, ...]) -> str:
        return table_state(MySQLTable(Table("t", ("a", "b"), rows)))

    assert state(("1", "x"), ("2", "y")) == state(("2", "y"), ("1.0", "x")) == state((1, "x"), (2, "y"))
    different = [
        state(("1", "x")),
        state(("1", "x"), ("1", "x")),
        state(("1", "X")),
        state(("1", "x ")),
        state(("1", "")),
        state(("1", None)),
        state(("x", "1")),
        state(("01", "x")),
        state(),
    ]
    assert len(set(different)) == len(different)


def test_the_official_rows() -> None:
    """All are read; no table is right before anything is changed; the split is AgentBench's."""
    for name, number in (("dev", 60), ("standard", 300)):
        rows = load_tasks(shared_file(f"dbbench_{name}.jsonl"))
        assert len(rows) == number
        for task in rows:
            assert isinstance(task, TableTask)
            if task.changes_table:
                assert tasks.gold_state(task.table, task.label) != tasks.initial_state(task.table)
            else:
                for answer in (task.answers[0], str([(value,) for value in task.label])):
                    assert answers_question(answer, task.label)
