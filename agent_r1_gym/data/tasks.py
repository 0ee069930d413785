"""Tasks from custom files: JSON, JSON Lines, CSV, Parquet or the hub; with splits, checked row by row.

A row becomes a `Task` through these fields; `fields=` maps others, with a dot for nested ones (`reward_model.target`):

prompt: `prompt` (a text), `question` or `problem`; or `prompt` as chat messages, of which the last must be the user's:
    all turns are kept, a system turn takes the place of the environment's instructions. Required.
answers: `answers`, `golden_answers`, `answer` or `target`: a text, a number (2.0 becomes "2"), or a list of them.
    Optional if the reward needs no answer.
id: `id`, `_id` or `task_id`; default: the number of the row, from 0, in a folder with the split (`test/0`).
split: `split`: "train", "validation" ("dev", "val") or "test".
metadata: `metadata` (an object), and all other fields; read-only, because environments share it.

In a table (CSV), cells with a list of answers or an object of metadata are JSON: `["a", "b"]`.

Splits come from the rows; else from the file names (`train.jsonl`, `test.jsonl` ...); else a share of the tasks
(`holdout_fraction`) becomes "validation", selected by a hash of their content: adding, moving or repeating rows moves
no task to another split.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import math
import os
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from agent_r1_gym.core.text import encodable
from agent_r1_gym.core.types import Message, Role, Task, ToolCall
from agent_r1_gym.data.official.dataset_formats import canonical_split, split_in_name
from agent_r1_gym.data.official.raw_rows import Row
from agent_r1_gym.data.official.sources import file_version
from agent_r1_gym.errors import ConfigurationError, DatasetError, MissingDependencyError, suggest
from agent_r1_gym.support.checks import frozen, is_number
from agent_r1_gym.support.json_data import UnpackedSize, not_utf8, read_objects
from agent_r1_gym.support.packages import install_command

ALL = "all"
"""The split with all tasks."""
SPLITS = ("train", "validation", "test")
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "prompt": ("prompt", "question", "problem"),
    "answers": ("answers", "golden_answers", "answer", "target"),
    "id": ("id", "_id", "task_id"),
    "split": ("split",),
    "metadata": ("metadata",),
}
_SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
_HUB = "hub:"
_MAX_CELL_CHARS = 2**27
"""Maximum number of characters of a cell of a table."""
_BATCH_ROWS = 64


class TaskSet(Sequence[Task]):
    """The tasks of one split. Immutable: environments share one object.

    Args:
        tasks: tasks of all splits, each with its split.
        split: split to serve, or "all".
        source: description of the origin.
        is_sample: whether this is bundled sample data.

    Raises:
        ConfigurationError: there is no such split.
    """

    def __init__(self, tasks: Sequence[tuple[Task, str]], split: str, source: str, *, is_sample: bool = False) -> None:
        self._all = tasks
        self.source = source
        self.is_sample = is_sample
        self.splits = tuple(name for name in SPLITS if any(name == task_split for _, task_split in tasks))
        if split not in (ALL, *self.splits):
            raise ConfigurationError(f"{source} has no split {split!r}; it has {', '.join(self.splits)}.")
        self.split = split
        self._tasks = tuple(task for task, task_split in tasks if split in (ALL, task_split))

    @property
    def held_out_splits(self) -> tuple[str, ...]:
        """Splits other than "train"."""
        return tuple(name for name in self.splits if name != "train")

    def part(self, split: str) -> TaskSet:
        """The tasks of another split."""
        return TaskSet(self._all, _split_name(split), self.source, is_sample=self.is_sample)

    def describe(self) -> str:
        """One line about size, split and source."""
        return f"{len(self)} of {len(self._all)} tasks (split {self.split}) from {self.source}"

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Task, ...]: ...
    def __getitem__(self, index: int | slice) -> Task | tuple[Task, ...]:
        return self._tasks[index]

    def __deepcopy__(self, memo: dict[int, Any]) -> TaskSet:
        return self

    def __repr__(self) -> str:
        return f"TaskSet({self.describe()})"


def open_tasks(
    dataset: str | os.PathLike[str] | TaskSet, split: str | None, fields: Mapping[str, str] | None = None
) -> TaskSet:
    """Resolves the options `dataset`, `split` and `fields` of a `ToolEnv`; a path, "hub:NAME" or a loaded `TaskSet`.

    Raises:
        ConfigurationError, DatasetError, MissingDependencyError: see `load_tasks`.
    """
    if isinstance(dataset, TaskSet):
        if fields is not None:
            raise ConfigurationError(f"fields={fields!r:.80} has no effect on a loaded TaskSet; pass it to load_tasks.")
        return dataset if split is None else dataset.part(split)
    if not isinstance(dataset, str | os.PathLike):
        raise ConfigurationError(
            f"dataset must be a path, 'hub:NAME' or a TaskSet of load_tasks, got {dataset!r:.80}."
            " For a list in memory, pass tasks=[Task(...), ...]."
        )
    return load_tasks(dataset, split=split, fields=fields)


def load_tasks(
    source: str | os.PathLike[str],
    *,
    split: str | None = None,
    fields: Mapping[str, str] | None = None,
    holdout_fraction: float = 0.1,
) -> TaskSet:
    """Loads the tasks of a file, of a folder of files, or of a data set on the hub; fields and splits: see the module.

    Args:
        source: a path, or "hub:REPOSITORY" or "hub:REPOSITORY:CONFIGURATION".
        split: "train", "validation" ("dev", "val"), "test" or "all"; None: "train" if it exists, else the first.
        fields: maps parts of a task ("prompt", "answers", "id", "split", "metadata") to fields of a row.
        holdout_fraction: share of held-out tasks if neither rows nor file names give splits; 0: none.

    Raises:
        ConfigurationError: an argument has a wrong value, or there is no such split.
        DatasetError: the data are missing or malformed; the message names file, row and field.
        MissingDependencyError: Parquet or the hub needs the extra `data`.
    """
    if not isinstance(holdout_fraction, int | float) or not 0 <= holdout_fraction < 1:
        raise ConfigurationError(f"holdout_fraction must be from 0 to below 1, got {holdout_fraction!r}.")
    if not isinstance(fields or {}, Mapping):
        raise ConfigurationError(f"fields must map parts of a task to fields of a row, got {fields!r:.80}.")
    if not isinstance(split, str | None):
        raise ConfigurationError(f"split must be a string, got {split!r:.80}.")
    mapping = dict(fields or {})
    for part, field in mapping.items():
        if part not in _FIELDS:
            raise ConfigurationError(
                f"fields maps {part!r}, which is not a part of a task. {suggest(str(part), _FIELDS)}"
            )
        if not isinstance(field, str):
            raise ConfigurationError(f"fields[{part!r}] must be the name of a field, got {field!r:.80}.")
    name = os.fspath(source)
    paths = [] if name.startswith(_HUB) else _files(Path(name).expanduser())
    tasks = _read(name, tuple(mapping.items()), holdout_fraction, tuple(map(file_version, paths)))
    present = [task_split for task_split in SPLITS if any(task_split == of_task for _, of_task in tasks)]
    return TaskSet(tasks, present[0] if split is None else _split_name(split), name)


def _split_name(split: str) -> str:
    return ALL if split == ALL else canonical_split(split)


def _files(path: Path) -> list[Path]:
    """Lists the file, or the files of a folder, one per split."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DatasetError(f"There are no tasks at {path}: no such file or folder.")
    files = [file for file in sorted(path.iterdir()) if _suffix(file) in _SUFFIXES and split_in_name(file.name)]
    if special := [file for file in files if not file.is_file()]:  # a link to a device has no end
        raise DatasetError(f"{special[0]} is not a regular file; remove it from the folder of tasks.")
    if not files:
        raise DatasetError(
            f"{path} holds no file that is named after a split, such as train.jsonl; pass a file, or rename it."
        )
    return files


def _suffix(file: Path) -> str:
    return Path(file.name.removesuffix(".gz")).suffix.lower()


@functools.lru_cache(maxsize=8)
def _read(
    name: str,
    mapping: tuple[tuple[str, str], ...],
    holdout_fraction: float,
    file_versions: tuple[tuple[str, int, int] | None, ...],
) -> tuple[tuple[Task, str], ...]:
    """Reads all tasks with their splits, once per process unless a file changes."""
    fields = dict(mapping)
    if name.startswith(_HUB):
        sources = list(_hub_tables(name.removeprefix(_HUB)))
    else:
        files = [Path(version[0]) for version in file_versions if version]
        sources = [(split_in_name(file.name), _rows(file, fields)) for file in files]
    tasks: list[tuple[Task, str | None]] = []
    empty: list[tuple[str, str]] = []
    locations: dict[tuple[str | None, str], str] = {}
    row_counts: Counter[str | None] = Counter()
    for split, rows in sources:
        for row in rows:
            number = row_counts[split]
            row_counts[split] += 1
            task, task_split = _task(
                row, fields, default_id=f"{split}/{number}" if split and len(sources) > 1 else str(number)
            )
            key = task_split or split, task.id
            if key in locations:
                raise DatasetError(
                    f"{row.where}: {locations[key]} has the id {task.id!r} already (a row without an id "
                    "gets its position)"
                )
            locations[key] = row.where
            tasks.append((task, task_split or split))
            empty += ((row.where, answer) for answer in task.answers if not answer.strip())
    if not tasks:
        raise DatasetError(f"{name} holds no task; expected at least one row with a prompt.")
    if empty:
        where, answer = empty[0]
        warnings.warn(
            f"{where}: the answer {answer!r} is blank ({len(empty)} answers of this source are), so that only a blank "
            "answer is right; remove it from the list of answers.",
            stacklevel=4,
        )
    without_split = [task.id for task, task_split in tasks if task_split is None]
    if 0 < len(without_split) < len(tasks):
        raise DatasetError(f"{locations[None, without_split[0]]}: no split, but other rows of {name} have one")
    return tuple(
        (task, task_split or ("validation" if _is_held_out(task, holdout_fraction) else "train"))
        for task, task_split in tasks
    )


def _is_held_out(task: Task, share: float) -> bool:
    """Whether a task is held out, by a hash of its content: equal tasks are in the same split."""
    earlier = [[turn.role, turn.content] for turn in task.history]
    parts = [task.prompt, task.answers, task.metadata, *([earlier] if earlier else [])]
    content = json.dumps(parts, sort_keys=True, default=repr)
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:4], "big") < share * 2**32


def _task(row: Row, fields: Mapping[str, str], *, default_id: str) -> tuple[Task, str | None]:
    """Parses a row: its task, and its split if it has one."""
    used_fields: set[str] = set()

    def part(name: str) -> tuple[str, Any]:
        field, value = _find(row, name, fields)
        used_fields.add(field.partition(".")[0])
        return field, value

    field, value = part("prompt")
    prompt, history = _conversation(value, row, field) if isinstance(value, list) else (value, ())
    if not isinstance(prompt, str) or not prompt.strip():
        error = row.error(field or "prompt", "the text of the task, or chat messages that end with a user message")
        if field:
            raise error
        raise DatasetError(f'{error}; name the columns: fields={{"prompt": COLUMN, "answers": COLUMN}}')
    field, value = part("answers")
    answers = _answers(value, row, field)
    field, value = part("id")
    value = _as_integer(value)
    if not isinstance(value, str | int | None) or isinstance(value, bool):
        raise row.error(field, "a text or an integer")
    task_id = default_id if value is None else str(value)
    field, split = part("split")
    if split is not None:
        try:
            split = canonical_split(str(split).lower())
        except ConfigurationError as error:
            raise row.error(field, "one of train, validation, test") from error
    field, metadata = part("metadata")
    if not isinstance(metadata, Mapping | None):
        raise row.error(field, "an object")
    others = {name: value for name, value in row.data.items() if name not in used_fields}
    return Task(task_id, prompt, answers, frozen({**others, **(metadata or {})}), history=history), split


def _find(row: Row, part: str, fields: Mapping[str, str]) -> tuple[str, Any]:
    """Finds the field of a part of a task and its value, None if the row has none."""
    if part in fields:
        field, value = fields[part], row.data
        for step in field.split("."):
            if not isinstance(value, Mapping) or step not in value:
                raise DatasetError(
                    f"{row.where}: there is no field {field!r}, to which fields= maps the {part} (the row has: "
                    f"{', '.join(row.data)})"
                )
            value = value[step]
        return field, value
    present = [(name, row.data[name]) for name in _FIELDS[part] if row.data.get(name) is not None]
    if part == "prompt":  # a text first: next to it, chat messages repeat the question within instructions
        present.sort(key=lambda field: not isinstance(field[1], str))
    return present[0] if present else ("", None)


_ROLES: Mapping[str, Role] = {
    **{"system": "system", "developer": "system", "user": "user", "human": "user"},
    **{"assistant": "assistant", "gpt": "assistant", "tool": "tool", "function": "tool"},
}


def _conversation(messages: Sequence[Any], row: Row, field: str) -> tuple[str, tuple[Message, ...]]:
    """Reads a prompt that is a conversation: the last user turn, and all turns before it."""
    turns = [_message(message, row, field) for message in messages]
    if not turns or turns[-1].role != "user":
        last = turns[-1].role if turns else "none"
        raise row.error(field, f"chat messages that end with the user's (the last one's role is {last})")
    if any(turn.role == "system" for turn in turns[1:]):
        raise row.error(field, "chat messages with a system turn at the beginning only")
    return turns[-1].content, tuple(turns[:-1])


def _message(message: Any, row: Row, field: str) -> Message:
    if not isinstance(message, Mapping) or message.get("role") not in _ROLES:
        raise row.error(field, f"chat messages with a role ({', '.join(_ROLES)}) and a content")
    content, name = message.get("content"), message.get("name")
    if isinstance(content, list):  # parts, as clients for images and text write them
        if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
            raise row.error(field, "chat messages of text; parts of other types, such as images, are not supported")
        content = "".join(part["text"] for part in content)
    calls = tuple(_call(entry, row, field) for entry in message.get("tool_calls") or ())
    if not isinstance(content or "", str) or not (content or calls):
        raise row.error(field, "chat messages whose content is a text")
    call_id = message.get("tool_call_id")
    role = _ROLES[message["role"]]
    return Message(
        role,
        encodable(content or ""),
        name=str(name) if role == "tool" and name else None,
        tool_call_id=str(call_id) if role == "tool" and call_id else None,
        tool_calls=calls,
    )


def _call(entry: Any, row: Row, field: str) -> ToolCall:
    function = entry.get("function", entry) if isinstance(entry, Mapping) else {}
    name, arguments = function.get("name"), function.get("arguments", {})
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        arguments = None
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise row.error(field, "tool calls with a name and an object of arguments")
    return ToolCall(name, arguments, entry.get("id"))


def _answers(value: Any, row: Row, field: str) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [] if value is None or value == "" else [value]
    for item in items:
        if not (is_number(item) or isinstance(item, str)):
            raise row.error(field, "a text, a finite number, or a list of them")
    # Like the answers of models: characters that no encoder accepts could never match.
    return tuple(dict.fromkeys(encodable(str(_as_integer(item))) for item in items))


def _as_integer(value: Any) -> Any:
    """Converts a whole float: a table of integers with a gap holds floats."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# --- files -----------------------------------------------------------------------------------------------------------


def _rows(file: Path, fields: Mapping[str, str]) -> Iterator[Row]:
    suffix = _suffix(file)
    if suffix in (".csv", ".tsv", ".parquet") and file.name.endswith(".gz"):
        raise DatasetError(f"{file} is compressed: unpack it first; only JSON may be gzipped.")
    if suffix in (".csv", ".tsv"):
        as_json = {name for part in ("answers", "metadata") for name in (fields.get(part), *_FIELDS[part])}
        return _table_rows(file, as_json, delimiter="\t" if suffix == ".tsv" else ",")
    if suffix == ".parquet":
        return _parquet_rows(file)
    return (Row(data, where) for where, data in read_objects(file, if_parquet="name it FILE.parquet"))


def _table_rows(file: Path, as_json: Collection[str | None], *, delimiter: str) -> Iterator[Row]:
    """Yields the rows of a table; in the columns `as_json`, cells with a JSON list or object are decoded."""
    csv.field_size_limit(_MAX_CELL_CHARS)  # process-wide; the default, 128 KiB, is too small for contexts
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            reader = csv.DictReader(text, delimiter=delimiter, strict=True)
            reader.fieldnames = names = [name.strip() for name in reader.fieldnames or []]
            if len(set(names)) < len(names) or "" in names:
                raise DatasetError(f"{file}, line 1: the columns need distinct names, got {names}")
            for data in reader:
                where = f"{file}, line {reader.line_num}"
                if None in data or None in data.values():
                    got = "more" if None in data else "fewer"
                    raise DatasetError(
                        f"{where}: expected {len(names)} columns ({', '.join(names)}), got {got}; quote cells that "
                        "contain the delimiter"
                    )
                cells = {name: value for name, value in data.items() if value != ""}
                yield Row({name: _cell(text) if name in as_json else text for name, text in cells.items()}, where)
    except UnicodeDecodeError as error:
        raise DatasetError(not_utf8(file)) from error
    except (csv.Error, OSError) as error:
        raise DatasetError(f"{file} cannot be read: {error}") from error


def _cell(text: str) -> Any:
    """Decodes a cell with a JSON list or object; other text, such as "[sic]", stays as it is."""
    try:
        value = json.loads(text) if text[0] in "[{" else text
    except (ValueError, RecursionError):
        return text
    return value


def _parquet_rows(file: Path) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise _missing_dependency(f"{file} is a parquet file, which") from error
    try:
        number, unpacked = 0, UnpackedSize(file)
        table = parquet.ParquetFile(file)
        unpacked.add(sum(table.metadata.row_group(i).total_byte_size for i in range(table.num_row_groups)))
        unpacked = UnpackedSize(file)
        # In small batches: a dictionary or run lengths of a few bytes may stand for any number of equal rows.
        for batch in table.iter_batches(_BATCH_ROWS):
            for data in batch.to_pylist():
                unpacked.add(_size(data))
                yield Row(_without_gaps(data), f"{file}, row {number}")
                number += 1
    except (ArrowException, OSError) as error:
        raise DatasetError(f"{file} cannot be read: {error}") from error


def _size(value: Any) -> int:
    """Memory of a value, roughly: also many short rows add up."""
    if isinstance(value, Mapping):
        return sum(map(_size, value.values()))
    if isinstance(value, list):
        return 64 + sum(map(_size, value))
    return 64 + (len(value) if isinstance(value, str | bytes) else 0)


def _hub_tables(name: str) -> Iterator[tuple[str | None, Iterator[Row]]]:
    """Yields each split of a data set of the hub, with its rows."""
    try:
        import datasets
    except ImportError as error:
        raise _missing_dependency(f"hub:{name}") from error
    repository, _, configuration = name.partition(":")
    try:
        table = datasets.load_dataset(repository, configuration or None)
    except Exception as error:  # the errors of several HTTP clients, without a base class, pass through the library
        raise DatasetError(f"hub:{name} could not be loaded ({type(error).__name__}: {error})") from error
    for split, rows in table.items():
        yield split_in_name(str(split)), _hub_rows(f"hub:{name}, {split}", rows)


def _hub_rows(table: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Row]:
    for number, row in enumerate(rows):
        yield Row(_without_gaps(row), f"{table}, row {number}")


def _without_gaps(row: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN, the missing value in a column of numbers, by None; in JSON it is not an answer."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}


def _missing_dependency(what: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"{what} needs more packages: {install_command('data')}; or convert it to JSON Lines."
    )
