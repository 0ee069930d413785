"""Rows: the tasks of an environment as another library's data set."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from agent_r1_gym.core.types import to_chat
from agent_r1_gym.errors import ConfigurationError, MissingDependencyError
from agent_r1_gym.integrations.dataset_rows import ADAPTER_NAME, EpisodeRow, write_rows
from agent_r1_gym.integrations.games import skyrl_gym
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.player import HELD_OUT_SEED, held_out_env
from tests.kit.foreign import SMALL, TASKS

FICTION = "AgentR1/FictionQA-v0"


def written(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_row_holds_what_its_episode_begins_with(tmp_path):
    path = tmp_path / "rows.jsonl"
    options = {"questions": 5, "reward": "process"}
    assert write_rows("fictionqa", path, library="skyrl_gym", options=options) == 5
    row = written(path)[3]
    assert (row["env_class"], row["env_id"], row["task_index"]) == (ADAPTER_NAME, FICTION, 3)
    env = make_text_env(FICTION, options)
    _, info = env.reset(options={"task_index": 3})
    assert row["prompt"] == to_chat(info["messages"])
    read = EpisodeRow.read(row)
    assert read.start(read.make()).task == env.unwrapped.task


def test_verl_finds_everything_in_extra_info(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(SMALL, path, library="verl", num_rows=2)
    num_rows, second = written(path)
    assert second["agent_name"] == ADAPTER_NAME
    assert second["extra_info"] == {"index": 1, "env_id": SMALL, "options": "{}", "task_index": 1, "seed": 1}
    assert second["reward_model"] == {"style": "rule", "ground_truth": "1"}
    assert num_rows["prompt"][-1]["content"].startswith("Say 0.")


def test_parquet_holds_the_same(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    for name in ("rows.parquet", "rows.jsonl"):
        write_rows(FICTION, tmp_path / name, library="verl", options={"questions": 3})
    assert parquet.read_table(tmp_path / "rows.parquet").to_pylist() == written(tmp_path / "rows.jsonl")


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install pyarrow; or write \.jsonl"):
        write_rows(FICTION, tmp_path / "rows.parquet", library="verl", options={"questions": 3})


def test_what_is_held_out_is_what_eval_plays(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(FICTION, path, library="verl", options={"questions": 5}, held_out=True)
    assert json.loads(written(path)[0]["extra_info"]["options"]) == {"questions": 5, "split": "test"}
    write_rows("FrozenLakeText", path, library="verl", held_out=True, num_rows=3)
    assert [row["extra_info"]["seed"] for row in written(path)] == [HELD_OUT_SEED + i for i in range(3)]
    with pytest.raises(ConfigurationError, match="cannot serve what is held out: it has no such split"):
        write_rows(SMALL, path, library="verl", held_out=True)


def test_seeds_that_repeat_the_same_rows_hold_nothing_out(tmp_path, monkeypatch):
    registry = SimpleNamespace(envs=SimpleNamespace(registration=SimpleNamespace(registry={"gsm8k": None})))
    monkeypatch.setattr(skyrl_gym, "library", lambda *_, **__: registry)
    assert "seeds repeat the same rows" in held_out_env("AgentR1/SkyRLGym-v0", {}).fallback_reason
    with pytest.raises(ConfigurationError, match="cannot serve what is held out: seeds repeat the same rows"):
        write_rows("SkyRLGym", tmp_path / "rows.jsonl", library="verl", held_out=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"library": "openrlhf"}, "Unknown library 'openrlhf'"),
        ({"path": "rows.csv"}, r"\.parquet or a \.jsonl file, not 'rows.csv'"),
        ({"num_rows": 0}, "num_rows must be an integer of at least 1"),
        ({"env": "AgentR1/Fiction-v0"}, "Unknown environment"),
        ({"options": {"question": 3}}, "FictionQAEnv has no option 'question'"),
        ({"library": "skyrl_gym", "options": {"parser": "openai"}}, "parser='openai' .* SkyRL offers a model no tools"),
        ({"library": "skyrl_gym", "options": {"parser": "native"}}, "parser='native' .* SkyRL offers a model no tools"),
    ],
)
def test_what_cannot_be_written_is_refused(changes, message, tmp_path):
    arguments = {"env": FICTION, "path": "rows.jsonl", "library": "verl", **changes}
    with pytest.raises(ConfigurationError, match=message):
        write_rows(arguments.pop("env"), tmp_path / arguments.pop("path"), **arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"task_index": 3},
        {"env_id": FICTION},
        {"env_id": FICTION, "task_index": None, "seed": None},
        {"env_id": FICTION, "task_index": -1},
        {"env_id": FICTION, "task_index": "3"},
        {"env_id": FICTION, "seed": 1.5},
        {"env_id": FICTION, "seed": 1, "options": "[]"},
        {"env_id": FICTION, "seed": 1, "options": "{"},
        {"env_id": FICTION, "seed": 1, "options": 3},
    ],
)
def test_a_bad_row_is_refused_in_one_way(row):
    with pytest.raises(ConfigurationError, match=r"A row needs env_id \(text\), options .* got "):
        EpisodeRow.read(row)


def test_a_row_that_fits_no_environment_is_refused():
    with pytest.raises(ConfigurationError, match="FictionQAEnv has no option 'question'"):
        EpisodeRow.read({"env_id": FICTION, "options": {"question": 1}, "seed": 0}).make()
    with pytest.raises(ConfigurationError, match="has no list of tasks: give it a seed"):
        EpisodeRow.read({"env_id": "AgentR1/FrozenLakeText-v0", "task_index": 0}).make()
    row = EpisodeRow.read({"env_id": FICTION, "options": {"questions": 5}, "task_index": np.int64(5)})
    with pytest.raises(ConfigurationError, match=r"task_index'\] must be in 0..4, got 5"):
        row.start(row.make())


def test_environments_are_used_again():
    row = EpisodeRow.read({"env_id": FICTION, "options": {"questions": 7}, "seed": 0})
    same = EpisodeRow.read({"env_id": FICTION, "options": '{"questions": 7}', "task_index": 2})
    with row.env() as env, same.env() as other:
        assert other is not env
    with same.env() as again:
        assert again is env  # the last one that came back
    again.close = closed = Mock()
    with pytest.raises(ZeroDivisionError), same.env() as spoilt:
        assert spoilt is again and 1 / 0
    closed.assert_called_once()
    with row.env() as fresh:
        assert fresh is not spoilt


@pytest.mark.parametrize(
    "row",
    [
        {"env_id": FICTION, "options": {"reward": print}, "seed": 0},
        {"env_id": FICTION, "task_index": True},
        {"env_id": FICTION, "seed": -1},
    ],
)
def test_values_that_are_none_of_a_row_are_named(row):
    with pytest.raises(ConfigurationError, match="A row needs env_id"):
        EpisodeRow.read(row)


def test_options_that_are_no_json_are_named_and_paths_hold_everywhere(tmp_path, monkeypatch):
    with pytest.raises(ConfigurationError, match="as MODULE:NAME"):
        write_rows(FICTION, tmp_path / "rows.jsonl", library="verl", options={"reward": print_nothing})
    with pytest.raises(ConfigurationError, match="num_rows must be an integer"):
        write_rows(FICTION, tmp_path / "rows.jsonl", library="verl", num_rows=2.5)
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": "1 + 1?", "answers": ["2"]}) + "\n")
    monkeypatch.chdir(tmp_path)
    options = {"dataset": "tasks.jsonl", "split": "all"}
    write_rows(TASKS, "rows.jsonl", library="skyrl_gym", options=options)
    monkeypatch.chdir("/")
    assert EpisodeRow.read(written(tmp_path / "rows.jsonl")[0]).make().tasks[0].prompt == "1 + 1?"


def print_nothing(transition):
    return 0.0
