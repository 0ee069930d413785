"""Text2SQL: inspect a database, then answer a question about it with a query."""

from __future__ import annotations

import functools
import os
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from agent_r1_gym.core.rewards import RewardSet, RewardTerm
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import ScriptedPolicy, Task, ToolCall, Transition
from agent_r1_gym.envs.text2sql.databases import DatabaseSource, matches_gold, reader
from agent_r1_gym.envs.text2sql.result_match import COMPARISONS
from agent_r1_gym.envs.text2sql.tasks import GeneratedSqlTasks, SqlTask, read_tasks
from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.support.checks import check_choice, check_integer, check_path, check_split
from agent_r1_gym.support.sqlite import DatabaseUnavailable
from agent_r1_gym.tools.sql import sql_tools

GENERATED = "generated"
_QUESTIONS = 2_000
_REWARDS = ("em", "process")
_FENCE = re.compile(r"```(?:[a-z0-9]*[ \t]*\n|sql(?:ite)?\s)?(.*?)(?:```|\Z)", re.IGNORECASE | re.DOTALL)


def execution_match(transition: Transition) -> float:
    """1 in the step that ends the episode if the answer is a query that returns the gold query's rows, else 0."""
    answer = transition.parsed.answer if transition.terminated or transition.truncated else None
    if answer is None:
        return 0.0
    task = transition.task
    assert isinstance(task, SqlTask)
    assert task.source is not None
    fenced = _FENCE.findall(answer)
    query = (fenced[-1] if fenced else answer).strip()
    try:
        return float(
            matches_gold(task.source, query, task.answers[0], ordered=task.ordered, comparison=task.comparison)
        )
    except DatabaseUnavailable as error:
        raise InfrastructureError(f"The databases of task {task.id!r} are unavailable: {error}") from error


# --- scripts ---------------------------------------------------------------------------------------------------------

_LOOKS, _GUESSES = 0.4, 0.1  # of a beginner's episodes


def _hasty(env: Text2SQLEnv, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Writes values as the question does, into the first column that fits, without a look."""
    assert isinstance(task, SqlTask)
    if task.generated_question is None:
        return task.answers[0]
    select, where = task.generated_question.select, []
    for condition in select.where:
        prefix, dot, name = condition.column.rpartition(".")
        column = f"{prefix}{dot}{'attr_1' if name.startswith('attr_') else name}"
        where.append(replace(condition, column=column, value=_question_spelling(task.prompt, condition.value)))
    return replace(select, where=tuple(where)).sql()


def _question_spelling(question: str, value: Any) -> Any:
    """The spelling in a question of what a column writes as `value`."""
    if not isinstance(value, str):
        return value
    words = value.split(":")[-1]
    start = question.lower().find(words.lower())
    return question[start : start + len(words)]


def _constant(env: Text2SQLEnv, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Runs the right query, and answers with the values that it returned."""
    assert isinstance(task, SqlTask)
    assert task.source is not None
    if not history:
        return ToolCall("query", {"sql": task.answers[0]})
    rows = reader(task.source).select(task.answers[0]).rows
    return "VALUES " + ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)


def _literal(value: Any) -> str:
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def _careless(env: Text2SQLEnv, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Looks as the oracle does, and forgets a part of the query: DISTINCT, the order, or its last condition."""
    assert isinstance(task, SqlTask)
    turn = env.oracle(task, history)
    if isinstance(turn, ToolCall) or task.generated_question is None:
        return turn
    return next(iter(task.generated_question.select.mutants()))[1].sql()


def _beginner(env: Text2SQLEnv, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
    """Mostly forgets the condition, sometimes guesses it, or looks; for demonstrations."""
    assert isinstance(task, SqlTask)
    way = random.Random(f"{task.id} way").random()
    if history or way < _LOOKS or task.generated_question is None:
        return env.oracle(task, history)
    if way < _LOOKS + _GUESSES:
        return _hasty(env, task, history)
    return replace(task.generated_question.select, where=()).sql()


# --- the environment -------------------------------------------------------------------------------------------------


class Text2SQLEnv(ToolEnv):
    """Text2SQL: inspect a database, then answer a question about it with a query.

    ## Description
    Six themes (a library, a clinic ...) with three tables each, whose names are sampled from a seed, and nine types of
    questions, from a count to totals over two joins. How a value is written in the rows differs from column to column
    ("Oslo", "OSLO", "OS:oslo"; some rows have "former Oslo"), and in a third of the tables only the rows show which
    column holds it. The answer is a query; it is executed on three instances of the database, of which the agent sees
    one. A question is only used if each of these mistakes changes the result on one of the instances: no DISTINCT, a
    missing key of ORDER BY, condition or LIMIT, another constant, ">=" for ">", a pattern such as '%oslo'. Or questions
    of Spider, BIRD or your own over SQLite files.

    ## Tools
    `list_tables()`, `describe(table: string)`: names and columns. `query(sql: string)`: one SELECT, of which 20 rows
    are shown. Nothing can be written; a statement is stopped after 20 million SQLite steps, 5 s or 256 MB more.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`. The answer is one
    SELECT; of an answer with Markdown fences, the content of the last one.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text.

    ## Starting State
    A task sampled uniformly from the split; the first user turn is its question.

    ## Rewards
    ### Outcome
    `em`: 1 if the query returns the rows of the gold query on every instance, else 0. Rows are a multiset, or a list
    where the outermost SELECT of the gold query orders them; names and order of columns do not count; numbers agree to
    nine digits. A single file gets three resampled instances, on which a query that is right on the file by chance
    fails; so does one that relies on what only the file's rows happen to satisfy. `comparison="spider"` and `"bird"`
    compare as the official scripts do, on the files alone, for published numbers.
    ### Process
    With `reward="process"`: `valid_call` .05, `malformed_call` -.1, `failed_call` -.05, `repeated_query` -.05, as in
    `AgentR1/HotpotQA-v0`.

    ## Episode End
    ### Termination
    An answer is given.
    ### Truncation
    `max_turns` model turns are used up, or the history is longer than `max_history_chars`.

    ## Information
    As in `AgentR1/HotpotQA-v0`. Results are broken down by `type` and `difficulty` (1 to 4).

    ## Arguments
    `dataset="generated"` (or a folder of Spider or BIRD, or a file of questions with `question` and `query`),
    `database=None` (the SQLite file that such a file is about), `comparison="strict"` (or "spider", "bird": see
    `envs.text2sql.result_match`), `split=None` ("train"; "validation" and "test" have other schemas; a single file has
    no splits), for generated questions `world_seed=0`, `questions=2000`, `types=None` (all; see
    `envs.text2sql.questions.QUESTION_TYPES`), `max_rows=20`, `reward="em"` (or "process", or custom terms),
    `max_turns=10`; for the others see `ToolEnv`.

    ## References
    Spider (arXiv 1809.08887), test-suite accuracy (arXiv 2010.02840), BIRD (arXiv 2305.03111), errors in their
    annotations (arXiv 2601.08778).

    ## Version History
    v0: first release.
    """

    instructions: ClassVar[str] = """\
Answer the question about a database with one SQLite SELECT statement.
First call list_tables, then describe the tables that you need, then query the columns that hold the values in the \
question: they may spell them differently.
Then answer with the statement, not with its result. It is also run on databases with other rows.
Example of an answer: SELECT COUNT(*) FROM books WHERE genre = 'poetry'"""
    held_out_splits: Sequence[str] = ("validation", "test")
    scripts: ClassVar[Mapping[str, ScriptedPolicy]] = {
        "hasty": _hasty,
        "constant": _constant,
        "careless": _careless,
        "beginner": _beginner,
    }
    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "tools", "fields", "scorer")

    def __init__(
        self,
        *,
        dataset: str | os.PathLike[str] = GENERATED,
        database: str | os.PathLike[str] | None = None,
        split: str | None = None,
        world_seed: int = 0,
        questions: int = _QUESTIONS,
        types: Sequence[str] | None = None,
        comparison: str = "strict",
        max_rows: int = 20,
        **options: Any,
    ) -> None:
        check_integer("max_rows", max_rows, 1)
        check_choice("comparison", comparison, COMPARISONS)
        check_path("dataset", dataset)
        check_split(split)
        self._max_rows = max_rows
        part = "train" if split is None else split
        tasks: Sequence[Task]
        if dataset == GENERATED:
            if database is not None:
                raise ConfigurationError("database= needs a file of questions about it: add dataset=FILE.")
            if comparison != "strict":
                raise ConfigurationError(
                    f"comparison={comparison!r} is for questions of files: generated ones are judged strictly."
                )
            generated = GeneratedSqlTasks(seed=world_seed, split=part, questions=questions, types=types)
            tasks, self._description = generated, generated.describe()
        else:
            is_folder = Path(dataset).is_dir()
            if (world_seed, questions, types) != (0, _QUESTIONS, None):  # they would be ignored
                raise ConfigurationError(
                    "world_seed, questions and types are options of generated questions: drop them."
                )
            if split is not None and not is_folder:
                raise ConfigurationError(
                    f"split={split!r}: a single file has no splits; drop split=, or give a folder."
                )
            self.held_out_splits = ("validation", "test") if is_folder else ()
            tasks, self._description = read_tasks(dataset, split=part, database=database, comparison=comparison)
        super().__init__(tasks=tasks, tools=self.make_tools(tasks[0]), **{"max_turns": 10, **options})
        self.rewards = RewardSet(tuple(map(_by_execution, self.rewards.terms)))

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """Tools over the task's database."""
        assert isinstance(task, SqlTask)
        assert task.source is not None
        return _tools(task.source, self._max_rows)

    def success(self, task: Task, history: Sequence[Transition]) -> float | None:
        """Whether the answer was a right query."""
        return execution_match(history[-1]) if history else 0.0

    def oracle(self, task: Task, history: Sequence[Transition]) -> ToolCall | str | None:
        """Looks at the tables, their columns and the relevant values, one call per turn, then answers."""
        assert isinstance(task, SqlTask)
        looks = [ToolCall("list_tables", {})]
        if task.generated_question is not None:
            lookups = task.generated_question.lookups
            looks += [ToolCall("describe", {"table": name}) for name in dict.fromkeys(table for _, table in lookups)]
            looks += [ToolCall("query", {"sql": f"SELECT DISTINCT {column} FROM {table}"}) for column, table in lookups]
        return looks[len(history)] if len(history) < len(looks) else task.answers[0]

    def describe_dataset(self) -> str:
        """One line for people: which questions are served."""
        return self._description


@functools.lru_cache(maxsize=256)
def _tools(source: DatabaseSource, max_rows: int) -> tuple[Tool, ...]:
    return tuple(sql_tools(functools.partial(reader, source), max_rows=max_rows))


def _by_execution(term: RewardTerm) -> RewardTerm:
    """Replace the comparison of texts by execution; reject presets that only make sense for texts."""
    if term.name in ("f1", "agent_r1"):
        raise ConfigurationError(f"reward={term.name!r} compares texts, and queries are executed: one of {_REWARDS}.")
    return replace(term, function=execution_match) if term.name == "em" and term.needs_answers else term
