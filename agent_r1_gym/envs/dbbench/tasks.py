"""AgentBench's rows as tasks: a question about one table, or an order to change it.

Official files: `data/dbbench/dev.jsonl` and `standard.jsonl` (the test set) of github.com/THUDM/AgentBench, JSON Lines
with `description`, `add_description` (the names of table and columns), `label` (the values that answer, or
the statement that changes the table), `type`, `table` (columns and rows) and `answer_md5`. Copies named
`dbbench_dev.jsonl` and `dbbench_standard.jsonl` are read too. Licence of the data: Apache-2.0.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from agent_r1_gym.core.types import Task
from agent_r1_gym.data.load import AUTO, SAMPLE, warn_of_sample
from agent_r1_gym.data.official.raw_rows import Row
from agent_r1_gym.data.official.sources import file_version
from agent_r1_gym.data.tasks import TaskSet
from agent_r1_gym.envs.dbbench.mysql import Cell, MySQLTable, Table
from agent_r1_gym.errors import DatasetError
from agent_r1_gym.support.checks import frozen
from agent_r1_gym.support.json_data import read_objects
from agent_r1_gym.support.sqlite import QueryError

CHANGES = ("INSERT", "UPDATE", "DELETE")
"""Types of tasks that change the table; all others are questions."""
FILES = {"train": ("dev.jsonl", "dbbench_dev.jsonl"), "test": ("standard.jsonl", "dbbench_standard.jsonl")}
"""File names of each split: AgentBench has no training rows, so that its dev set is served as such."""
_SAMPLE_FOLDER = Path(__file__).parent / "sample"
_FOLDERS = ("", "data/dbbench", "dbbench")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(?:\.[0-9]+)?")
_LONGEST_ANSWER = 20_000
_TOLERANCE = 1e-2
_ZEROS = ("", "none", "null", "undefined", "nan", "inf", "infinity", "-inf", "-infinity")
_UNQUOTED_ROW = re.compile(r"\[+\(([^(]*),\)\]+")
_PART = re.compile(r"""(?:['"][^'"]*+(?:['"]|\Z)|[^,'"])++""")


@dataclass(frozen=True, slots=True)
class TableTask(Task):
    """A question about a table, or an order to change it.

    Attributes:
        type: "INSERT", "UPDATE" or "DELETE", or the type of the question ("counting", "ranking" ...).
        table: the table, as an episode finds it.
        label: the values that answer; or the statements that change the table, in MySQL's syntax.
        query: AgentBench's own query for a question, "" if there is none; many do not run.
    """

    type: str = ""
    table: Table = Table("", (), ())  # noqa: RUF009 - immutable
    label: tuple[str, ...] = ()
    query: str = ""

    @property
    def changes_table(self) -> bool:
        """Whether the state of the table decides, and not an answer."""
        return self.type in CHANGES


# --- gold and its comparison -----------------------------------------------------------------------------------------


def table_state(database: MySQLTable) -> str:
    """A hash of the rows of a table; their order, and how a number is written, do not count."""
    return _state(database.rows())


@functools.lru_cache(maxsize=1_024)
def initial_state(table: Table) -> str:
    """The state of a table before anything changes it."""
    return _state(table.rows)


@functools.lru_cache(maxsize=1_024)
def gold_state(table: Table, statements: tuple[str, ...]) -> str:
    """The state of a table after the gold statements.

    Raises:
        QueryError: one of them fails.
    """
    database = MySQLTable(table)
    for statement in statements:
        database.execute(statement)
    state = table_state(database)
    database.close()
    return state


def _state(rows: Iterable[Sequence[Cell]]) -> str:
    written = sorted(json.dumps([None if cell is None else _comparable(cell) for cell in row]) for row in rows)
    return blake2b("\n".join(written).encode(), digest_size=16).hexdigest()


def answers_question(answer: str, label: Sequence[str]) -> bool:
    """Whether an answer has the values of a label, by the rules of AgentBench's `DBResultProcessor.compare_results`.

    Numbers alone are compared as a multiset, to .01; all else as a set, to the character. Of each value, spaces and
    quotes around it, a "%" at its end or else all commas are dropped, and no value (None, "") is 0.

    Args:
        answer: a list of Python, the rows of one column as MySQL prints them ("[('7',)]"), or one value.
        label: the values.
    """
    given, gold = ([_normalised(value) for value in values] for values in (_read_values(answer), label))
    try:
        numbers = list(map(float, gold))
        for number in map(float, given):
            numbers.remove(next(other for other in numbers if abs(number - other) <= _TOLERANCE))
    except ValueError:  # not all of them are numbers
        return set(given) == set(gold)
    except StopIteration:
        return False
    return not numbers


def _read_values(answer: str) -> Sequence[str]:
    """The values of an answer; a list is read as a literal of Python, never evaluated, or else split at its commas."""
    text = answer.strip()
    if not (text.startswith("[") and text.endswith("]")):
        return [text]
    row = _UNQUOTED_ROW.fullmatch(text)
    with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        values = ast.literal_eval(text) if len(text) <= _LONGEST_ANSWER else None
        if isinstance(values, list) and all(isinstance(value, tuple) for value in values):
            return [str(value[0]) for value in values if len(value) == 1]
        if isinstance(values, list) and not row:
            return [str(value[0] if isinstance(value, tuple) and len(value) == 1 else value) for value in values]
    if row:
        return [row[1]]
    return [item for part in _PART.findall(text[1:-1]) if (item := re.sub("['\"]", "", part))]


def _normalised(value: str) -> str:
    text = value.strip().strip("'\"").strip()
    if text.endswith("%"):
        return text[:-1].strip()
    if not (text.startswith("[") or text.endswith("]")):
        text = text.replace(",", "")
    return "0" if text.lower() in _ZEROS else text


def _comparable(value: Cell) -> str:
    text = str(value)
    if not _NUMBER.fullmatch(text):
        return text
    return str(int(text)) if "." not in text else f"{float(text):.9g}"


# --- reading the files -----------------------------------------------------------------------------------------------


def load_tasks(dataset: str | os.PathLike[str]) -> TaskSet:
    """Load the tasks, with splits.

    Args:
        dataset: "sample" (a few invented tables), "auto" (the same with a warning: no package brings AgentBench's
            data), a checkout of AgentBench, its folder of rows, or one file, all of whose rows are then "train".

    Raises:
        DatasetError: there are no such files, or a row is malformed or its gold statement fails.
    """
    if dataset == AUTO:
        remedy = "run `git clone https://github.com/THUDM/AgentBench`, and pass dataset=FOLDER"
        warn_of_sample("DBBench", "INVENTED tables", remedy, stacklevel=3)
    is_sample = dataset in (AUTO, SAMPLE)
    path = _SAMPLE_FOLDER if is_sample else Path(dataset).expanduser()
    files = [(path, "train")] if path.is_file() else _files(path)
    tasks = _read_files(tuple((split, file_version(file)) for file, split in files))
    source = str(path)
    if is_sample:  # with ids that no official row has
        source = "a bundled sample of INVENTED tables in AgentBench's format"
        tasks = tuple((replace(task, id=f"sample-{number}"), split) for number, (task, split) in enumerate(tasks))
    return TaskSet(tasks, files[0][1], source, is_sample=is_sample)


def _files(folder: Path) -> list[tuple[Path, str]]:
    """The file of each split in a checkout, or in a folder of files."""
    found = [
        (folder / part / name, split)
        for part in _FOLDERS
        for split, names in FILES.items()
        for name in names
        if (folder / part / name).is_file()
    ]
    if not found:
        raise DatasetError(
            f"{folder} holds no rows of DBBench; expected {' or '.join(FILES['test'])}, or a checkout of AgentBench."
        )
    by_split = {split: file for file, split in reversed(found)}
    return [(by_split[split], split) for split in FILES if split in by_split]


@functools.lru_cache(maxsize=4)
def _read_files(
    versions: tuple[tuple[str, tuple[str, int, int] | None], ...],
) -> tuple[tuple[TableTask, str], ...]:
    """Read the tasks of all splits, once per process unless a file changes."""
    tasks = []
    for split, version in versions:
        assert version is not None
        file = Path(version[0])
        name = file.stem.removeprefix("dbbench_")
        rows = enumerate(read_objects(file))
        tasks += [(_read_task(Row(data, where), f"{name}-{number}"), split) for number, (where, data) in rows]
    return tuple(tasks)


def _read_task(row: Row, task_id: str) -> TableTask:
    """Read the task of a row.

    Raises:
        DatasetError: a field is missing or malformed, or the gold statement fails.
    """
    table = _read_table(row)
    match row.data:
        case {"type": [str() as kind], "label": [_, *_] as values} if all(_is_cell(value) for value in values):
            label = tuple(str(value) for value in values)
        case _:
            raise row.error("label", "a list of values, and a list of one type in 'type'")
    query = row.data.get("sql")
    task = TableTask(
        id=task_id,
        prompt=f"{row.text('description')}\n{row.optional_text('add_description')}".strip(),
        answers=() if kind in CHANGES else (json.dumps(label, ensure_ascii=False),),
        metadata=frozen({"type": kind}),
        type=kind,
        table=table,
        label=label,
        query=str(query.get("query") or "") if isinstance(query, dict) else "",
    )
    try:
        MySQLTable(table).close()
        if task.changes_table:
            gold_state(table, label)
    except (QueryError, sqlite3.Error, ValueError, OverflowError) as error:
        raise DatasetError(f"{row.where}: the table cannot be made, or its gold statement fails: {error}") from error
    return task


def _read_table(row: Row) -> Table:
    match row.data.get("table"):
        case {"table_name": str() as name, "table_info": {"columns": [_, *_] as columns, "rows": list() as rows}}:
            names = tuple(column.get("name") if isinstance(column, dict) else None for column in columns)
            cells = tuple(tuple(cells) if isinstance(cells, list) else () for cells in rows)
            texts = all(isinstance(each, str) for each in names)
            if name and texts and all(len(each) == len(names) and all(map(_is_cell, each)) for each in cells):
                return Table(name, names, cells)  # type: ignore[arg-type]  # they are texts
    raise row.error("table", "table_name, and table_info with the names of columns, and rows with a cell for each")


def _is_cell(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)
