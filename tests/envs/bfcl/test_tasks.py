"""Rows of BFCL: the shapes of their folders, malformed ones, splits, and functions as tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.envs.bfcl import tasks as bfcl_tasks
from agent_r1_gym.envs.bfcl.ast_checker import ast_error, tool_name
from agent_r1_gym.envs.bfcl.env import gold_calls
from agent_r1_gym.envs.bfcl.functions import RecordedFunction, json_schema
from agent_r1_gym.envs.bfcl.tasks import CATEGORIES, IRRELEVANCE, load_tasks
from agent_r1_gym.errors import ConfigurationError, DatasetError
from tests.kit.data import shared_file


def read_sample(name: str) -> list[dict[str, Any]]:
    path = Path(bfcl_tasks.__file__).parent / "sample" / name
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


ANSWERS = {
    row["id"]: row["ground_truth"]
    for category in CATEGORIES
    for row in read_sample(f"possible_answer/BFCL_v4_{category}.json")
}
ROWS = [
    (category, {**row, "ground_truth": ANSWERS.get(row["id"], [])})
    for category in CATEGORIES
    for row in read_sample(f"BFCL_v4_{category}.json")
]


def write(folder: Path, *, official: bool = True, rows: Any = ROWS) -> Path:
    """Write rows as the official files, or as copies in one folder."""
    (folder / "possible_answer").mkdir(parents=True)
    for category in CATEGORIES:
        chosen = [row for name, row in rows if name == category]
        questions = [{name: value for name, value in row.items() if name != "ground_truth"} for row in chosen]
        answers = [{"id": row["id"], "ground_truth": row["ground_truth"]} for row in reversed(chosen)]
        names = (f"BFCL_v4_{category}.json", f"possible_answer/BFCL_v4_{category}.json")
        if not official:
            names = (f"bfcl_v4_{category}.jsonl", f"bfcl_v4_{category}_answers.jsonl")
        (folder / names[0]).write_text("\n".join(map(json.dumps, questions)))
        if category != IRRELEVANCE:
            (folder / names[1]).write_text("\n".join(map(json.dumps, answers)))
    return folder


def test_a_checkout_a_package_and_a_folder_of_copies_are_read(tmp_path: Path) -> None:
    expected = list(load_tasks("sample", CATEGORIES).part("all"))
    data = write(tmp_path / "gorilla" / "berkeley-function-call-leaderboard" / "bfcl_eval" / "data")
    copies = write(tmp_path / "copies", official=False)
    for folder in (data, data.parent, data.parents[1], tmp_path / "gorilla", copies, str(copies)):
        tasks = load_tasks(folder, CATEGORIES)
        assert list(tasks.part("all")) == expected
        assert "9 of 15 tasks" in tasks.describe()


def test_the_data_of_the_installed_package_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "bfcl_eval" / "data")
    (tmp_path / "bfcl_eval" / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert str(tmp_path) in load_tasks("auto", CATEGORIES).describe()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": "Hi"}, "field 'question': expected one list of messages"),
        (
            {"question": [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]},
            "one list of messages",
        ),
        ({"question": [[{"role": "tool", "content": "a"}]]}, "a role"),
        ({"question": [[{"role": "system", "content": "a"}]]}, "end with the user's"),
        ({"function": []}, "at least one function"),
        ({"function": [{"name": "a b", "parameters": {"properties": {}}}]}, "names of letters"),
        ({"function": [{"name": "f", "parameters": {"properties": {"x": {"type": "float128"}}}}]}, "types of string"),
        ({"function": [{"name": "f", "parameters": {"properties": {"x": {"type": "array"}}}}]}, "types of string"),
        ({"function": [{"name": "f", "parameters": {"properties": {}}}]}, "which the accepted calls name"),
        ({"ground_truth": []}, "expected accepted calls"),
        ({"ground_truth": [{"f": {"x": 1}}]}, "expected accepted calls"),
    ],
)
def test_malformed_rows_are_refused_with_file_and_field(
    change: Mapping[str, Any], message: str, tmp_path: Path
) -> None:
    rows = [(category, {**row, **change} if row["id"] == "simple_python_0" else row) for category, row in ROWS]
    with pytest.raises(DatasetError, match=rf"simple_python\.json, line 1.*{message}"):
        load_tasks(write(tmp_path, rows=rows), CATEGORIES)


def test_other_versions_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "BFCL_v3_simple.json").write_text("{}")
    with pytest.raises(
        DatasetError, match=r"no rows of BFCL v4: expected BFCL_v4_simple_python\.json, found BFCL_v3_simple"
    ):
        load_tasks(tmp_path, CATEGORIES)
    folder = write(tmp_path / "part")
    (folder / "possible_answer" / "BFCL_v4_parallel.json").unlink()
    with pytest.raises(DatasetError, match=r"no rows of parallel; expected BFCL_v4_parallel\.json and possible"):
        load_tasks(folder, CATEGORIES)
    assert len(load_tasks(folder, ["multiple"]).part("all")) == 3


def functions_by_split(dataset: Any, *categories: str) -> dict[str, set[str]]:
    tasks = load_tasks(dataset, categories or CATEGORIES)
    return {split: {f["name"] for task in tasks.part(split) for f in task.functions} for split in tasks.splits}


def test_splits_share_no_function_and_do_not_depend_on_the_category(tmp_path: Path) -> None:
    for dataset in ("sample", write(tmp_path, rows=ROWS[::-1])):
        splits = functions_by_split(dataset)
        assert splits.keys() == {"train", "validation", "test"}
        assert sum(map(len, splits.values())) == len(set().union(*splits.values())) == 12
        for category in CATEGORIES:
            for split, functions in functions_by_split(dataset, category).items():
                assert functions <= splits[split]
    with pytest.raises(ConfigurationError, match="Unknown split 'ood'"):
        load_tasks("sample", CATEGORIES).part("ood")


def test_a_function_becomes_a_tool_of_any_arguments() -> None:
    function = {
        "name": "a.b",
        "description": "Does.",
        "parameters": {
            "type": "dict",
            "properties": {
                "x": {"type": "float", "description": "Size."},
                "y": {"type": "tuple", "items": {"type": "float"}, "default": [1]},
                "z": {"type": "dict", "properties": {"a": {"type": "any"}}},
            },
            "required": ["x"],
        },
    }
    tool = RecordedFunction(function)
    assert tool.name == "a_b"
    assert tool.description == "Does. Note that the provided function is in Python 3 syntax."
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "x": {"type": "number", "format": "float", "description": "Size. This is a float type value."},
            "y": {"type": "array", "items": {"type": "number"}, "default": [1]},
            "z": {"type": "object", "properties": {"a": {"type": "string"}}},
        },
        "required": ["x"],
    }
    assert tool.check({"x": "text", "unknown": None}) is None


def test_the_official_rows() -> None:
    """All are read, gold is right in each, and every function becomes a tool."""
    folder = shared_file("bfcl/bfcl_v4_simple_python.jsonl").parent
    tasks = load_tasks(folder, CATEGORIES)
    numbers = {"train": 829, "validation": 102, "test": 109, "all": 1040}
    assert {split: len(tasks.part(split)) for split in numbers} == numbers
    splits = functions_by_split(folder)
    assert not splits["train"] & (splits["validation"] | splits["test"])
    for task in tasks.part("all"):
        assert (
            task.category == IRRELEVANCE
            or ast_error(gold_calls(task), task.functions, task.accepted, task.category) is None
        )
        names = [tool_name(function["name"]) for function in task.functions]
        assert len(set(names)) == len(names)
        for function in task.functions:
            assert json_schema({**function["parameters"], "type": "dict"})["type"] == "object"
