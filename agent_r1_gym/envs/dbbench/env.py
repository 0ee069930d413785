"""DBBench: answer a question about a table with SQL, or change the table as requested."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agent_r1_gym.core.rewards import RewardTerm, failed_call, malformed_call, repeated_query, valid_call
from agent_r1_gym.core.tool import Tool
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import ScriptedPolicy, ScriptedTurn, Task, ToolCall, Transition
from agent_r1_gym.data.load import AUTO
from agent_r1_gym.envs.dbbench.mysql import MySQLTable
from agent_r1_gym.envs.dbbench.tasks import (
    TableTask,
    answers_question,
    gold_state,
    initial_state,
    load_tasks,
    table_state,
)
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import check_integer, check_path
from agent_r1_gym.support.sqlite import QueryError
from agent_r1_gym.tools.sql import writable_sql_tools

_DONE = "done"
_LOOK = "SELECT * FROM `{}` LIMIT 5"
_WHERE = re.compile(r"\bWHERE\b.*", re.IGNORECASE | re.DOTALL)


# --- grading ---------------------------------------------------------------------------------------------------------


def solved(transition: Transition) -> float:
    """1 in the step that ends the episode if the table is as it should be, or the answer is right; else 0."""
    task = transition.task
    if not (transition.terminated or transition.truncated):
        return 0.0
    assert isinstance(task, TableTask)
    if not task.changes_table:
        answer = transition.parsed.answer
        return float(answer is not None and answers_question(answer, task.label))
    return float(_final_state(task, transition) == gold_state(task.table, task.label))


def _final_state(task: TableTask, transition: Transition) -> str:
    """The state of the table at the end: that after the last statement which was carried out."""
    state = initial_state(task.table)
    for step in (*transition.earlier, transition):
        for outcome in step.outcomes:
            state = outcome.data if isinstance(outcome.data, str) else state
    return state


_OUTCOME = (RewardTerm("solved", solved),)
_PROCESS = (
    RewardTerm("valid_call", valid_call, 0.05, kind="process"),
    RewardTerm("malformed_call", malformed_call, -0.1, kind="process"),
    RewardTerm("failed_call", failed_call, -0.05, kind="process"),
    RewardTerm("repeated_query", repeated_query, -0.05, kind="process"),
)
PRESETS: Mapping[str, tuple[RewardTerm, ...]] = {"em": _OUTCOME, "process": (*_OUTCOME, *_PROCESS)}
"""Meaning of the usual reward presets in this environment."""


# --- scripts ---------------------------------------------------------------------------------------------------------


def _query(sql: str) -> ToolCall:
    return ToolCall("query", {"sql": sql})


def _idle(env: DBBenchEnv, task: Task, history: Sequence[Transition]) -> ScriptedTurn:
    """Claims to be done, without a statement."""
    return _DONE


def _twice(env: DBBenchEnv, task: Task, history: Sequence[Transition]) -> ScriptedTurn | None:
    """Runs the right statement two times; answers questions as the oracle does."""
    assert isinstance(task, TableTask)
    if task.changes_table and len(history) < 2 * len(task.label):
        return _query(task.label[len(history) % len(task.label)])
    return _DONE if task.changes_table else env.oracle(task, history)


def _everywhere(env: DBBenchEnv, task: Task, history: Sequence[Transition]) -> ScriptedTurn:
    """Forgets the condition of the right statement; answers questions with all values of the first column."""
    assert isinstance(task, TableTask)
    if not history:
        return _query(_WHERE.sub("", task.label[0]) if task.changes_table else _LOOK.format(task.table.name))
    return _DONE if task.changes_table else str([row[0] for row in task.table.rows])


# --- the environment -------------------------------------------------------------------------------------------------


class DBBenchEnv(ToolEnv):
    """DBBench: answer a question about a real table with SQL, or change the table as requested.

    ## Description
    AgentBench's database tasks: 360 rows (60 dev, 300 test), a third each INSERT, UPDATE and questions (look-ups,
    comparisons, rankings, counts, aggregates), about tables of WikiSQL, WikiTableQuestions and others with up to 105
    rows. Each episode works on a clone of its table. All columns are texts, as in the original, which runs MySQL; here
    SQLite takes MySQL's syntax and compares as MySQL does (`envs/dbbench/mysql.py` lists what differs).

    ## Tools
    `list_tables()`, `describe(table: string)`: names and columns. `query(sql: string)`: one SELECT, INSERT, UPDATE or
    DELETE; of a result 20 rows are shown, of a change the number of rows. Nothing else can be created, changed,
    attached or set; a statement is stopped after 500,000 SQLite steps, 5 s or 256 MB more, and the table is limited to
    1 MB.

    ## Action Space
    `UnicodeText(max_history_chars)`: one model turn, free text; formats as in `AgentR1/HotpotQA-v0`.

    ## Observation Space
    `UnicodeText(max_history_chars)`: the whole history as text, as in `AgentR1/HotpotQA-v0`.

    ## Starting State
    A system turn and a user turn: the question or order, with the names of the table and its columns. A task is sampled
    uniformly from the split.

    ## Rewards
    ### Outcome
    `solved`, 1 or 0, in the step that ends the episode. Of an order: 1 if the rows of the table are those after the
    gold statement, in any order; the answer does not count. Of a question: 1 if the answer has the gold values by the
    comparison of AgentBench: numbers alone as a multiset, to .01, all else as a set, to the character; a "%" at the
    end, commas, and spaces and quotes around a value do not count, and no value is 0. The answer is a list of Python,
    the rows of one column as MySQL prints them (`[('7',)]`), or one value.
    ### Process
    With `reward="process"` also: `valid_call` .05, `malformed_call` -.1, `failed_call` -.05, `repeated_query` -.05, as
    in `AgentR1/HotpotQA-v0`.

    ## Episode End
    ### Termination
    An answer is given.
    ### Truncation
    `max_turns` model turns are used up, or the history is longer than `max_history_chars`. The table is graded then
    too.

    ## Information
    As in `AgentR1/HotpotQA-v0`. Results are broken down by `type`. `data` of the outcome of a query is a hash of the
    table's rows.

    ## Arguments
    `dataset="auto"` (a sample of 12 invented rows, with a warning; "sample"; or a checkout of AgentBench, its folder of
    rows, or a file), `split=None` ("train": AgentBench's dev set; "test"; "all"), `max_rows=20`, `reward="em"`
    (`solved` alone, or "process", or custom terms), `max_turns=10`. For the others see `ToolEnv`.

    ## References
    Liu et al., AgentBench: Evaluating LLMs as Agents (arXiv 2308.03688), github.com/THUDM/AgentBench.

    ## Version History
    v0: first release.
    """

    fixed_options: ClassVar[tuple[str, ...]] = ("tasks", "tools", "fields", "scorer")
    reward_presets = PRESETS
    scripts: ClassVar[Mapping[str, ScriptedPolicy]] = {"idle": _idle, "twice": _twice, "everywhere": _everywhere}
    instructions: ClassVar[str] = """\
Answer the question about a table of a MySQL database, or change the table as requested.
Call query with one statement per call. Put names of tables and columns into backticks. All columns are texts.
Answer a question with the values alone, exactly as the query returns them: ["value"], or ["value 1", "value 2"].
After you have changed the table as requested, answer: done"""

    def __init__(
        self,
        *,
        dataset: str | os.PathLike[str] = AUTO,
        max_rows: int = 20,
        **options: Any,
    ) -> None:
        check_path("dataset", dataset)
        check_integer("max_rows", max_rows, 1)
        self._max_rows = max_rows
        super().__init__(dataset=load_tasks(dataset), **{"max_turns": 10, **options})

    def make_tools(self, task: Task) -> Sequence[Tool]:
        """Tools over a clone of the task's table."""
        if not isinstance(task, TableTask):
            raise ConfigurationError(f"DBBench plays rows of its own only, got a {type(task).__name__}.")
        open_table = functools.partial(MySQLTable, task.table)
        return writable_sql_tools(open_table, max_rows=self._max_rows, state_of=table_state)

    def oracle(self, task: Task, history: Sequence[Transition]) -> ScriptedTurn | None:
        """Runs the gold statement; or AgentBench's query, a look at the table if it does not run, and then answers."""
        assert isinstance(task, TableTask)
        if task.changes_table:
            return _query(task.label[len(history)]) if len(history) < len(task.label) else _DONE
        if history:
            return task.answers[0]
        return _query(task.query if self.has_solution(task) else _LOOK.format(task.table.name))

    def has_solution(self, task: Task) -> bool:
        """Whether the oracle's statement leads to the answer; AgentBench's query does so for 41 of 120 questions."""
        assert isinstance(task, TableTask)
        if task.changes_table:
            return True
        database = MySQLTable(task.table)
        try:
            values = [value for row in database.execute(task.query).rows for value in row]
        except QueryError:
            return False
        finally:
            database.close()
        return answers_question(str(values), task.label)
