"""The reader of tau2-bench's files: where it finds them, what it completes, and what it refuses."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.data import load
from agent_r1_gym.envs.tau2.sample import sample_files
from agent_r1_gym.envs.tau2.tasks import open_world
from agent_r1_gym.errors import ConfigurationError, DatasetError

SUFFIXES = {"policy": ".md"}


def write(folder: Path, domain: str = "retail", *, prefix: str = "", **changed: Any) -> Path:
    """Writes the files of the sample, some of them changed (None: left out)."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, content in {**sample_files(domain), **changed}.items():
        if content is not None:
            text = content if isinstance(content, str) else json.dumps(content)
            (folder / f"{prefix}{kind}{SUFFIXES.get(kind, '.json')}").write_text(text)
    return folder


class TestPlaces:
    def test_a_checkout_its_domains_and_flat_names_give_the_same_tasks(self, tmp_path: Path) -> None:
        write(tmp_path / "checkout" / "data" / "tau2" / "domains" / "retail")
        write(tmp_path / "flat", prefix="retail_")
        folders = (tmp_path / "checkout", tmp_path / "checkout" / "data" / "tau2" / "domains", tmp_path / "flat")
        worlds = [open_world("retail", folder) for folder in folders]
        assert [list(world.tasks) for world in worlds] == [list(open_world("retail", "sample").tasks)] * 3
        assert worlds[0].tables == worlds[2].tables
        assert open_world("retail", str(folders[0])) is worlds[0]  # read once

    def test_a_changed_file_is_read_again(self, tmp_path: Path) -> None:
        folder = write(tmp_path, prefix="retail_")
        before = open_world("retail", folder)
        write(tmp_path, prefix="retail_", policy="Be nice.")
        os.utime(tmp_path / "retail_policy.md", (1, 1))
        assert (open_world("retail", folder).policy, before.policy == "Be nice.") == ("Be nice.", False)

    def test_auto_takes_the_prepared_folder_else_the_sample_with_one_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AGENT_R1_HOME", str(tmp_path))
        monkeypatch.setattr(load, "_sample_warned", set())
        with pytest.warns(load.SampleDataWarning, match="INVENTED.*git clone"):
            world = open_world("retail", "auto")
        assert "INVENTED" in world.source
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert open_world("retail", "auto") is world
            write(tmp_path / "datasets" / "tau2", prefix="retail_")
            assert str(tmp_path) in open_world("retail", "auto").source

    def test_the_parts_of_the_first_tau_bench_are_an_airline(self, tmp_path: Path) -> None:
        files = sample_files("airline")
        users = {key: {name: user[name] for name in user if name != "user_id"} for key, user in
                 files["db"]["users"].items()}  # fmt: skip
        parts = {"flights": files["db"]["flights"], "users": users, "reservations": files["db"]["reservations"]}
        write(tmp_path, "airline", prefix="airline_", db=None, **parts)
        assert open_world("airline", tmp_path).tables == open_world("airline", "sample").tables

    @pytest.mark.parametrize(
        ("missing", "named"), [("tasks", "retail_tasks.json"), ("policy", "policy"), ("db", "retail_db")]
    )
    def test_a_missing_file_is_named(self, tmp_path: Path, missing: str, named: str) -> None:
        write(tmp_path, prefix="retail_", **{missing: None})
        with pytest.raises(DatasetError, match=named):
            open_world("retail", tmp_path)

    def test_a_folder_that_does_not_exist_is_no_data_set(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="is not a folder"):
            open_world("retail", tmp_path / "nothing")


class TestSplits:
    def test_official_splits_and_all_tasks(self) -> None:
        world = open_world("retail", "sample")
        parts = {split: [task.id for task in world.part(split)[0]] for split in (None, "train", "test", "base")}
        assert parts[None] == parts["train"]
        assert sorted(parts["train"] + parts["test"], key=int) == parts["base"] == [str(number) for number in range(12)]

    def test_without_a_file_of_splits_there_is_one_part(self, tmp_path: Path) -> None:
        world = open_world("retail", write(tmp_path, prefix="retail_", split_tasks=None))
        assert world.part(None)[1] == "base"
        with pytest.raises(ConfigurationError, match="none of"):
            world.part("train")

    def test_a_split_with_unknown_tasks_is_refused(self, tmp_path: Path) -> None:
        write(tmp_path, prefix="retail_", split_tasks={"train": ["0", "99"]})
        with pytest.raises(DatasetError, match=r"'train'.*99"):
            open_world("retail", tmp_path)


def without_price(files: dict[str, Any]) -> None:
    del files["db"]["orders"]["#W1000001"]["items"][0]["price"]


def price_as_text(files: dict[str, Any]) -> None:
    files["db"]["products"]["6000000000"]["variants"]["5000000000"]["price"] = "cheap"


def unknown_status(files: dict[str, Any]) -> None:
    files["db"]["orders"]["#W1000001"]["status"] = "lost"


def unknown_tool(files: dict[str, Any]) -> None:
    files["tasks"][3]["evaluation_criteria"]["actions"][0]["name"] = "refund_everything"


def private_tool(files: dict[str, Any]) -> None:
    files["tasks"][3]["evaluation_criteria"]["actions"][0]["name"] = "_change_balance"


def unknown_basis(files: dict[str, Any]) -> None:
    files["tasks"][3]["evaluation_criteria"]["reward_basis"] = ["VIBES"]


def no_scenario(files: dict[str, Any]) -> None:
    del files["tasks"][3]["user_scenario"]


def other_tables(files: dict[str, Any]) -> None:
    files["db"] = {"flights": {}}


def no_list(files: dict[str, Any]) -> None:
    files["tasks"] = {"0": files["tasks"][0]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (without_price, r"#W1000001\.items\[0\] has no 'price'"),
        (price_as_text, "5000000000.price must be a number, got 'cheap'"),
        (unknown_status, r"#W1000001.status must be one of .*got 'lost'"),
        (unknown_tool, "task '3' uses 'refund_everything'.*another version of tau2-bench"),
        (private_tool, "task '3' uses '_change_balance'"),
        (unknown_basis, r"\[3\].evaluation_criteria.reward_basis\[0\] must be one of"),
        (no_scenario, r"\[3\] has no 'user_scenario'"),
        (other_tables, r"must have the tables \['orders', 'products', 'users'\], got \['flights'\]"),
        (no_list, "must be a list"),
    ],
)
def test_another_shape_is_refused_with_file_and_key(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], named: str
) -> None:
    files = copy.deepcopy(sample_files("retail"))
    change(files)
    write(tmp_path, prefix="retail_", **files)
    with pytest.raises(DatasetError, match=named) as raised:
        open_world("retail", tmp_path)
    assert str(tmp_path) in str(raised.value)


@pytest.mark.parametrize("content", ["{", "[" * 100_000, "\x00"])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    write(tmp_path, prefix="retail_", db=content)
    with pytest.raises(DatasetError, match=r"retail_db\.json is not a JSON file"):
        open_world("retail", tmp_path)


def test_rows_are_completed_and_numbers_have_one_form() -> None:
    order = open_world("retail", "sample").tables["orders"]["#W1000001"]
    assert list(order)[:3] == ["order_id", "user_id", "address"]
    assert (order["cancel_reason"], order["return_items"]) == (None, None)
    method = open_world("airline", "sample").tables["users"]["ada_brandt_4001"]["payment_methods"]["gift_card_7001"]
    assert repr(method["amount"]) == "700.0"


MOCK_TASK: dict[str, Any] = {
    "id": "history",
    "user_scenario": {"instructions": "You want to mark the task as completed."},
    "initial_state": {
        "initialization_data": {"agent_data": {"users": {"user_1": {"name": "Renamed"}}}},
        "initialization_actions": [
            {"env_type": "user", "func_name": "add_notification", "arguments": {"notification_id": "n", "message": "!"}}
        ],
        "message_history": [
            {"role": "user", "content": "Create a task."},
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "name": "create_task", "arguments": {"user_id": "user_1", "title": "New"}}],
            },
            {"role": "tool", "id": "1", "content": "{}"},
            {"role": "assistant", "content": "Done."},
        ],
    },
    "evaluation_criteria": None,
}


def test_a_task_may_begin_with_other_rows_operations_and_a_conversation(tmp_path: Path) -> None:
    users = {"user_1": {"user_id": "user_1", "name": "First", "tasks": []}}
    files = {"db": {"tasks": {}, "users": users}, "user_db": {"notifications": {}}, "policy": "None."}
    write(tmp_path, "retail", prefix="mock_", split_tasks=None, tasks=[MOCK_TASK], **files)
    (task,) = open_world("mock", tmp_path).part(None)[0]
    database = task.open_database()
    assert database.find("users", "user_1") == {"user_id": "user_1", "name": "Renamed", "tasks": ["task_1"]}
    assert database.find("tasks", "task_1")["title"] == "New"  # type: ignore[index]
    assert database.find("notifications", "n")["status"] == "unread"  # type: ignore[index]
    assert [turn.role for turn in task.history] == ["user", "assistant", "tool", "assistant"]
    assert task.history[2].name == "create_task"
    assert not task.is_graded
