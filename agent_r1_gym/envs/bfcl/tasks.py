"""The rows of the leaderboard as tasks, and their splits.

Official files: `BFCL_v4_CATEGORY.json` (JSON Lines: `id`, `question`, `function`) with the accepted calls in
`possible_answer/BFCL_v4_CATEGORY.json` (`id`, `ground_truth`), in the `data` folder of the package `bfcl-eval` or of a
checkout of github.com/ShishirPatil/gorilla (`berkeley-function-call-leaderboard/bfcl_eval/data`); for the multi-turn
categories, `multi_turn_func_doc` documents the APIs. Copies named `bfcl_v4_CATEGORY.jsonl`,
`bfcl_v4_CATEGORY_answers.jsonl` and `bfcl_doc_API.jsonl` in one folder are read too. The data's licence is Apache-2.0.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_r1_gym.core.types import Message, Task
from agent_r1_gym.data.generated import SPLITS, is_in_split
from agent_r1_gym.data.load import AUTO, SAMPLE, warn_of_sample
from agent_r1_gym.data.official.raw_rows import Row
from agent_r1_gym.data.official.sources import file_version
from agent_r1_gym.data.tasks import ALL, TaskSet
from agent_r1_gym.envs.bfcl.ast_checker import AcceptedCall, Function, tool_name
from agent_r1_gym.envs.bfcl.functions import read_functions
from agent_r1_gym.envs.bfcl.multi_turn import MULTI_TURN, PACKAGE, ConversationTask, backend_config, read_conversation
from agent_r1_gym.errors import DatasetError
from agent_r1_gym.support.checks import frozen
from agent_r1_gym.support.json_data import read_objects

IRRELEVANCE = "irrelevance"
CATEGORIES = ("simple_python", "multiple", "parallel", IRRELEVANCE)
HELD_OUT = (
    *("parallel_multiple", "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
    *("live_irrelevance", "live_relevance"),
)
"""Further single-turn categories about functions in Python, which are test rows only."""
SINGLE_TURN = (*CATEGORIES, *HELD_OUT)
_SAMPLE_FOLDER = Path(__file__).parent / "sample"
_DATA_FOLDERS = ("", "data", "bfcl_eval/data", "berkeley-function-call-leaderboard/bfcl_eval/data")


@dataclass(frozen=True, slots=True)
class FunctionCallingTask(Task):
    """A request with the functions that may answer it.

    Attributes:
        category: one of `SINGLE_TURN`.
        functions: as the row describes them.
        accepted: the accepted calls, one for each call that the request needs; () if no function fits, or any call does
            ("live_relevance").
    """

    category: str = ""
    functions: tuple[Function, ...] = ()
    accepted: tuple[AcceptedCall, ...] = ()


AnyTask = FunctionCallingTask | ConversationTask


# --- finding and reading the files -----------------------------------------------------------------------------------


def load_tasks(dataset: str | os.PathLike[str], categories: Sequence[str]) -> TaskSet:
    """Load the tasks of some categories, with splits.

    Args:
        dataset: "auto" (the data of the installed package `bfcl-eval`, else the sample, with a warning), "sample", or a
            folder: see the module.
        categories: some of `SINGLE_TURN`, or some of `MULTI_TURN`.

    Raises:
        DatasetError: the folder has no such files, or they are of another version or shape.
        MissingDependencyError: the APIs of multi-turn categories are not installed.
    """
    if dataset == AUTO:
        spec = importlib.util.find_spec(PACKAGE)  # imports nothing: the package loads the clients of all models
        if spec is not None and spec.submodule_search_locations:
            dataset = Path(spec.submodule_search_locations[0]) / "data"
        else:
            remedy = "run `pip install bfcl-eval`, or pass dataset=FOLDER"
            warn_of_sample("BFCL", "INVENTED functions", remedy, stacklevel=3)
            dataset = SAMPLE
    is_sample = dataset == SAMPLE
    folder = _SAMPLE_FOLDER if is_sample else _data_folder(Path(dataset).expanduser())
    related = CATEGORIES if set(CATEGORIES).intersection(categories) else ()
    wanted = dict.fromkeys((*related, *categories))
    files = {category: pair for category in wanted if (pair := _files(folder, category))}
    if missing := [category for category in categories if category not in files]:
        if is_sample:
            raise DatasetError(f"The sample has no rows of {missing[0]}: pip install bfcl-eval, or dataset=FOLDER.")
        raise DatasetError(
            f"{folder} has no rows of {', '.join(missing)}; expected {_official_name(missing[0])}"
            f"{'' if _has_no_answers(missing[0]) else f' and possible_answer/{_official_name(missing[0])}'}."
        )
    versions = tuple((category, tuple(map(file_version, pair))) for category, pair in files.items())
    tasks = _read_files(versions, str(folder) if categories[0] in MULTI_TURN else "")
    chosen = [(task, split) for task, split in tasks if task.category in categories]
    served = "train" if any(split == "train" for _, split in chosen) else ALL
    source = "a bundled sample of INVENTED functions in the leaderboard's format" if is_sample else str(folder)
    return TaskSet(chosen, served, f"{', '.join(categories)} of {source}", is_sample=is_sample)


def _official_name(category: str) -> str:
    return f"BFCL_v4_{category}.json"


def _has_no_answers(category: str) -> bool:
    return category.endswith("relevance")  # irrelevance too


def _data_folder(path: Path) -> Path:
    """The folder with the files of rows, in a checkout, a package or a folder of files."""
    for part in _DATA_FOLDERS:
        if any(_files(path / part, category) for category in (*SINGLE_TURN, *MULTI_TURN)):
            return path / part
    found = sorted(file.name for part in _DATA_FOLDERS for file in (path / part).glob("BFCL_v*.json"))
    raise DatasetError(
        f"{path} holds no rows of BFCL v4: expected {_official_name(CATEGORIES[0])}, found "
        f"{', '.join(found[:3]) or 'no file named BFCL_v*.json'}. Pass the folder `data` of a newer bfcl-eval, or a "
        "checkout of github.com/ShishirPatil/gorilla."
    )


def _files(folder: Path, category: str) -> tuple[Path, ...]:
    """The file of rows of a category and that of its answers if it has one, () if one is missing."""
    official = _official_name(category)
    for rows, answers in (
        (folder / official, folder / "possible_answer" / official),
        (folder / f"bfcl_v4_{category}.jsonl", folder / f"bfcl_v4_{category}_answers.jsonl"),
    ):
        files = (rows,) if _has_no_answers(category) else (rows, answers)
        if all(file.is_file() for file in files):
            return files
    return ()


@functools.lru_cache(maxsize=4)
def _read_files(
    versions: tuple[tuple[str, tuple[tuple[str, int, int] | None, ...]], ...], documentation: str
) -> tuple[tuple[AnyTask, str], ...]:
    """Read the tasks of all categories with their splits, once per process unless a file changes.

    Args:
        versions: by category the file of rows and that of its answers.
        documentation: the folder that documents the APIs of multi-turn categories, "" for others.
    """
    functions = _read_documentation(Path(documentation)) if documentation else {}
    tasks: list[AnyTask] = []
    for category, files in versions:
        rows_file, *answers_file = (Path(version[0]) for version in files if version)
        answers: dict[str, Any] = {}
        for where, data in read_objects(answers_file[0]) if answers_file else ():
            row = Row(data, where)
            answers[row.text("id")] = row.data.get("ground_truth")
        for where, data in read_objects(rows_file):
            row = Row(data, where)
            gold = answers.get(row.text("id"))
            is_conversation = category in MULTI_TURN
            tasks.append(
                read_conversation(category, row, gold, functions)
                if is_conversation
                else _read_task(category, row, gold)
            )
    return tuple(_with_splits(tasks))


def _read_documentation(folder: Path) -> dict[str, tuple[Function, ...]]:
    """Read the functions of each API whose documentation is there, by class."""
    functions = {}
    for name, file in backend_config().MULTI_TURN_FUNC_DOC_FILE_MAPPING.items():
        for path in (folder / "multi_turn_func_doc" / file, folder / f"bfcl_doc_{Path(file).stem}.jsonl"):
            if path.is_file():
                functions[name] = tuple(
                    read_functions(Row({"function": [row for _, row in read_objects(path)]}, str(path)))
                )
    return functions


def _read_task(category: str, row: Row, accepted: Any) -> FunctionCallingTask:
    """Read the task of a row.

    Raises:
        DatasetError: a field is missing or malformed, or the row has no accepted calls.
    """
    conversations = row.items("question", lambda turn: isinstance(turn, list) and bool(turn), "one list of messages")
    if len(conversations) != 1:
        raise row.error("question", "one list of messages")
    messages = [_read_message(row, message) for message in conversations[0]]
    if messages[-1].role != "user":
        raise row.error("question", "messages that end with the user's")
    functions = tuple(read_functions(row, may_be_none=IRRELEVANCE in category))
    if _has_no_answers(category):
        accepted = []
    elif not (isinstance(accepted, list) and accepted and all(map(_is_accepted_call, accepted))):
        raise DatasetError(
            f"{row.where}: expected accepted calls for {row.text('id')!r} as [{{function: {{parameter: [values]}}}}], "
            f"got {accepted!r:.120}"
        )
    unknown = [name for call in accepted for name in call if all(name != each["name"] for each in functions)]
    if unknown:
        raise row.error("function", f"the function {unknown[0]!r}, which the accepted calls name")
    return FunctionCallingTask(
        id=row.text("id"),
        prompt=messages[-1].content,
        metadata=frozen({"category": category}),
        history=tuple(messages[:-1]),
        category=category,
        functions=functions,
        accepted=tuple(accepted),
    )


def _read_message(row: Row, message: Any) -> Message:
    match message:
        case {"role": ("system" | "user" | "assistant") as role, "content": str() as content}:
            return Message(role, content)
    raise row.error("question", "messages with a role (system, user, assistant) and a text as content")


def _is_accepted_call(call: Any) -> bool:
    match call:
        case dict() if len(call) == 1:
            (parameters,) = call.values()
            return isinstance(parameters, dict) and all(isinstance(values, list) for values in parameters.values())
    return False


# --- splits ----------------------------------------------------------------------------------------------------------


def _with_splits(tasks: Sequence[AnyTask]) -> Sequence[tuple[AnyTask, str]]:
    """Each task with its split.

    Single-turn tasks that share a function are in one split, which a hash of their functions decides. So no function of
    a held-out task is trained on, not even as a distractor. All files of `CATEGORIES` in a folder are read for this:
    the split of a task does not depend on the categories that an environment serves. Tasks of `HELD_OUT` are test
    tasks. Multi-turn tasks share all functions; their number decides, which is that of the scenario in all categories.
    """
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    def names(task: AnyTask) -> list[str]:
        if isinstance(task, ConversationTask):
            return [f"multi_turn {task.id.rpartition('_')[2]}"]
        return [tool_name(function["name"]) for function in task.functions]

    grouped = [task for task in tasks if task.category not in HELD_OUT]
    for task in grouped:
        first, *others = names(task)
        for name in others:
            # The smallest name is the root: the order of rows changes nothing.
            low, high = sorted((root(first), root(name)))
            parent[high] = low
    groups = {task.id: root(names(task)[0]) for task in grouped}
    splits = {name: next(split for split in SPLITS if is_in_split(group, split)) for name, group in groups.items()}
    return [(task, splits.get(task.id, "test")) for task in tasks]
