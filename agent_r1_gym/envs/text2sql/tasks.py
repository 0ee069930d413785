"""Text-to-SQL tasks: generated questions, and questions from files (Spider, BIRD, your own over any SQLite file).

Spider (Yu et al. 2018, arXiv 1809.08887): `train_spider.json`, `dev.json`; `database/ID/*.sqlite`, several of them with
the test suites of Zhong et al. 2020. BIRD (Li et al. 2023, arXiv 2305.03111): `train.json`, `dev.json` or
`mini_dev_sqlite.json`; `dev_databases/ID/ID.sqlite`. More than half of BIRD's mini-dev and of Spider 2.0-Snow has
annotation errors (arXiv 2601.08778): a gold query that fails, or returns nothing, is excluded and counted.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1_gym.core.types import Task
from agent_r1_gym.data.generated import SPLITS, LazyTaskSequence, SplitSeeds
from agent_r1_gym.data.official.sources import file_version
from agent_r1_gym.envs.text2sql.databases import (
    DatabaseFiles,
    DatabaseSource,
    GeneratedDatabase,
    gold_result,
    matches_gold,
    reader,
)
from agent_r1_gym.envs.text2sql.questions import QUESTION_TYPES, GeneratedQuestion, ask
from agent_r1_gym.envs.text2sql.result_match import as_spider_runs_it, is_ordered, is_ordered_by_spider, same_rows
from agent_r1_gym.errors import DatasetError
from agent_r1_gym.support.checks import check_choice, check_choices, check_integer
from agent_r1_gym.support.json_data import read_objects
from agent_r1_gym.support.sqlite import DatabaseUnavailable, QueryError


@dataclass(frozen=True, slots=True)
class SqlTask(Task):
    """A question about a database; `answers` holds the gold query.

    Attributes:
        source: the database and its instances.
        ordered: whether the order of rows counts.
        comparison: how rows are compared with those of the gold query (see `compare`).
        generated_question: how the question was generated, None for a question from a file.
    """

    source: DatabaseSource | None = None
    ordered: bool = False
    comparison: str = "strict"
    generated_question: GeneratedQuestion | None = None


# --- generated -------------------------------------------------------------------------------------------------------

_TRIES = 60


class GeneratedSqlTasks(LazyTaskSequence[SqlTask]):
    """Questions over generated databases, made on demand. No two splits share a schema.

    Every mistake in a query shows (`Select.mutants`, `GeneratedQuestion.wrong`): on at least one instance the query
    without DISTINCT, a key of ORDER BY, a condition or LIMIT, or with another constant, returns other rows. No instance
    has an empty result, and no result is the same on all of them.

    Args:
        seed: seed of the databases and questions.
        split: "train", "validation" or "test".
        questions: number of questions.
        per_schema: questions per schema.
        types: types of questions, keys of `QUESTION_TYPES`; None: all.

    Raises:
        ConfigurationError: an argument has a wrong value.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        split: str = "train",
        questions: int = 2_000,
        per_schema: int = 10,
        types: Sequence[str] | None = None,
    ) -> None:
        check_choice("split", split, tuple(SPLITS))
        for name, value, low in (("seed", seed, 0), ("questions", questions, 1), ("per_schema", per_schema, 1)):
            check_integer(name, value, low)
        super().__init__(questions)
        self.types = check_choices("types", types, tuple(QUESTION_TYPES))
        self.seed, self.split, self._per_schema = seed, split, per_schema
        self._schemas = SplitSeeds(split, functools.partial(_signature, seed))

    def describe(self) -> str:
        """One line for people: which questions these are."""
        return f"text2sql, {self.split}: {len(self)} generated questions, seed {self.seed}"

    def make(self, index: int) -> SqlTask:
        """Make the task at `index`."""
        position, number = divmod(index, self._per_schema)
        return _generate(self.seed, self.split, self._schemas[position], number, self.types)


@functools.lru_cache(maxsize=4_096)
def _generate(seed: int, split: str, schema: int, number: int, types: tuple[str, ...]) -> SqlTask:
    rng = random.Random(f"{seed}/{split}/{schema}/{number}")
    source = _database(f"{seed}/{schema}")
    while True:
        kind = rng.choice(types)
        for _ in range(_TRIES):  # then another type: some have no sound question in some databases
            question = ask(source.schema, kind, str(rng.random()))
            if is_sound(source, question):
                return SqlTask(
                    f"sql-{seed}-{split}-{schema}-{number}",
                    question.text,
                    (question.select.sql(),),
                    {"type": kind, "difficulty": QUESTION_TYPES[kind][0]},
                    source=source,
                    ordered=question.ordered,
                    generated_question=question,
                )


@functools.lru_cache(maxsize=64)
def _database(schema_seed: str) -> GeneratedDatabase:
    return GeneratedDatabase(schema_seed)


def _signature(seed: int, schema: int) -> str:
    return GeneratedDatabase(f"{seed}/{schema}").schema.signature


def is_sound(source: DatabaseSource, question: GeneratedQuestion) -> bool:
    """Whether a question has a definite answer on every instance and every known mistake changes the result."""
    gold, ordered = question.select.sql(), question.ordered
    results = [reader(source, instance).select(gold) for instance in range(source.instances)]
    if any(not result.rows or result.rows[0] == (None,) for result in results):
        return False
    if all(same_rows(results[0], result, ordered=ordered) for result in results):  # a constant would be right
        return False
    if not all(matches_gold(source, query.sql(), gold, ordered=ordered) for query in question.select.ties()):
        return False
    wrong = itertools.chain(question.wrong, (query for _, query in question.select.mutants()))
    return not any(matches_gold(source, query.sql(), gold, ordered=ordered) for query in wrong)


# --- from files ------------------------------------------------------------------------------------------------------

_QUESTION_FILES: Mapping[str, Sequence[str]] = {
    "train": ("train_spider.json", "train.json"),
    "validation": ("dev.json", "mini_dev_sqlite.json"),
    "test": ("test.json",),
}
_DATABASE_FOLDERS = ("database", "test_database", "train_databases", "dev_databases", "databases")
_DATABASE_SUFFIXES = (".sqlite", ".db", ".sqlite3")
_QUESTION_KEYS, _QUERY_KEYS, _DATABASE_KEYS = ("question", "prompt"), ("query", "SQL", "sql"), ("db_id", "database")


def read_tasks(
    dataset: str | os.PathLike[str],
    *,
    split: str,
    database: str | os.PathLike[str] | None,
    comparison: str = "strict",
) -> tuple[tuple[SqlTask, ...], str]:
    """Read the tasks of a folder or a file of questions; the second value describes them in one line.

    Every gold query is executed on every instance that answers will be judged on: a question whose query fails on one,
    returns nothing, or other rows each time, is excluded and counted. (Official comparisons keep those that return
    nothing, as the official scripts do.) Tasks are read once per process, unless a file changes.

    Args:
        dataset: a folder of Spider or BIRD, or a file of rows with `question` and `query`, in JSON or JSON Lines (see
            `support.json_data`).
        split: which file of a folder to read; a single file has no splits.
        database: SQLite file that the questions of a file are about; None: each row names one by `db_id`.
        comparison: one of `result_match.COMPARISONS`.

    Raises:
        DatasetError: a file is missing, a row is malformed, two have the same id, a database cannot be used, or no gold
            query can be executed.
    """
    path = Path(dataset)
    file = _questions_file(path, split) if path.is_dir() else path
    if not file.is_file():
        raise DatasetError(f"There is no file of questions at {file}: expected a folder of Spider or BIRD, or JSON.")
    folder = file.parent  # BIRD's archives have everything one folder down
    about = None if database is None else Path(database)
    versions = (file_version(file), None if about is None else file_version(about))
    return _read_tasks(file, folder, about, comparison, versions)


@functools.lru_cache(maxsize=8)
def _read_tasks(
    file: Path, folder: Path, database: Path | None, comparison: str, _versions: tuple[object, ...]
) -> tuple[tuple[SqlTask, ...], str]:
    tasks: list[SqlTask] = []
    excluded: list[str] = []
    locations: dict[str, str] = {}
    for number, (location, row) in enumerate(read_objects(file)):
        task = _task(location, row, folder, database, number, comparison)
        if task.id in locations:
            raise DatasetError(
                f"{location}: {locations[task.id]} has the id {task.id!r} already (a row without an id gets its "
                "number)."
            )
        locations[task.id] = location
        fault = _gold_query_error(task)
        if fault:
            excluded.append(f"{location}: {fault}")
        else:
            tasks.append(task)
    if not tasks:
        raise DatasetError(
            f"{file} has no question whose query can be executed. First: {(excluded or ['it is empty'])[0]}"
        )
    if database is not None and comparison == "strict":
        _warn_of_constants(tasks)
    description = f"{len(tasks)} questions of {file}"
    if comparison != "strict":
        description += f", compared as by the script of {comparison}"
    if excluded:
        reasons = "fails or returns nothing" if comparison == "strict" else "fails"
        description += f"; {len(excluded)} excluded because their query {reasons}, such as {excluded[0]}"
    return tuple(tasks), description


def _questions_file(folder: Path, split: str) -> Path:
    names = _QUESTION_FILES.get(split, ())
    for name in names:
        for file in (folder / name, *sorted(folder.glob(f"*/{name}"))):
            if file.is_file():
                return file
    raise DatasetError(
        f"{folder} holds none of {list(names)} for split {split!r}; expected a folder of Spider or BIRD."
    )


def _task(
    location: str, row: Mapping[str, Any], folder: Path, database: Path | None, number: int, comparison: str
) -> SqlTask:
    text, query = _field(location, row, _QUESTION_KEYS), _field(location, row, _QUERY_KEYS)
    paths = [database] if database is not None else _databases(location, folder, _field(location, row, _DATABASE_KEYS))
    hint = row.get("evidence")
    prompt = f"{text}\n{hint}" if isinstance(hint, str) and hint else text
    labels = {name: row[name] for name in ("db_id", "difficulty") if isinstance(row.get(name), str)}
    name = next((row[key] for key in ("question_id", "id") if row.get(key) is not None), number)
    ordered = is_ordered_by_spider(query) if comparison == "spider" else is_ordered(query)
    source = DatabaseFiles(tuple(paths), tuple(map(file_version, paths)))
    return SqlTask(f"sql-{name}", prompt, (query,), labels, source=source, ordered=ordered, comparison=comparison)


def _field(location: str, row: Mapping[str, Any], names: Sequence[str]) -> str:
    for name in names:
        if isinstance(row.get(name), str) and row[name].strip():
            return str(row[name])
    raise DatasetError(f"{location} has no text under any of {list(names)}; it has {sorted(row)}.")


def _databases(location: str, folder: Path, name: str) -> list[Path]:
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise DatasetError(f"{location}: {name!r} is not a valid database name.")
    parents = (
        *(folder / part for part in _DATABASE_FOLDERS),
        folder,
        *(folder.parent / part for part in _DATABASE_FOLDERS),
    )
    for parent in parents:
        files = [file for file in sorted((parent / name).glob("*")) if file.suffix in _DATABASE_SUFFIXES]
        files += [file for suffix in _DATABASE_SUFFIXES if (file := parent / f"{name}{suffix}").is_file()]
        if files:
            return sorted(files, key=lambda file: (file.stem != name, file.name))  # the agent sees the one of that name
    raise DatasetError(f"{location}: there is no database {name!r} in {folder}; looked in {list(_DATABASE_FOLDERS)}.")


def _gold_query_error(task: SqlTask) -> str:
    """What is wrong with a gold query, "" if nothing is.

    Raises:
        DatasetError: an instance of the database cannot be opened.
    """
    source, gold = task.source, task.answers[0]
    assert source is not None
    if task.comparison == "spider":
        gold = as_spider_runs_it(gold)
    for instance in source.judging(task.comparison):
        where = f" on instance {instance}" if instance else ""
        try:
            result = gold_result(source, instance, gold)
            again = reader(source, instance).select(gold) if instance == 0 else result
        except DatabaseUnavailable as error:
            raise DatasetError(f"{error}{where}; expected a complete SQLite database.") from error
        except QueryError as error:
            return f"{error}{where}"
        if result.has_more:
            return f"it returns too many rows{where}"
        if instance == 0 and not result.rows and task.comparison == "strict":
            return "it returns nothing"
        if not same_rows(result, again, ordered=task.ordered):
            return "it returns other rows each time"
    return ""


def _warn_of_constants(tasks: Sequence[SqlTask]) -> None:
    """Warn of questions with the same result on every instance: an agent can answer them with the rows it saw."""
    unsafe = [task.prompt for task in tasks if _is_constant(task)]
    if unsafe:
        examples = "; ".join(f"{prompt:.60}" for prompt in unsafe[:3])
        warnings.warn(
            f"{len(unsafe)} of {len(tasks)} questions have the same rows on every instance of the database, so that an "
            f"answer by constants (VALUES ...) counts as right: {examples}{' ...' if len(unsafe) > 3 else ''}.",
            stacklevel=4,
        )


def _is_constant(task: SqlTask) -> bool:
    assert task.source is not None
    first, *others = (reader(task.source, instance) for instance in range(task.source.instances))
    try:
        rows = first.select(task.answers[0])
        return all(same_rows(rows, other.select(task.answers[0]), ordered=task.ordered) for other in others)
    except QueryError:
        return False
