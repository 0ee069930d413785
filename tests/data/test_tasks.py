"""Tasks from files of every kind: what becomes of a row, splits, and rows that are refused by file, row and field."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import pytest

from agent_r1_gym.cli.main import main
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Passage, Task
from agent_r1_gym.data.tasks import TaskSet, load_tasks
from agent_r1_gym.errors import ConfigurationError, DatasetError, MissingDependencyError
from tests.kit.data import shared_file
from tests.kit.helpers import StubRetriever, answer, call, write_corpus

ROWS = [{"id": f"r{n}", "prompt": f"What is {n}?", "answers": [str(n)], "level": n % 2} for n in range(40)]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def one(folder: Path, row: dict[str, Any], **options: Any) -> Task:
    return load_tasks(written(folder / "one.jsonl", [row]), split="all", **options)[0]


class TestRows:
    @pytest.mark.parametrize(
        ("row", "task"),
        [
            ({"prompt": "Why?"}, Task("0", "Why?")),
            ({"question": "Why?", "answer": 12, "_id": 7}, Task("7", "Why?", ("12",))),
            ({"question": "Why?", "answer": 4.0, "id": 7.0}, Task("7", "Why?", ("4",))),
            (
                {"question": "Why?", "score": float("inf")},
                Task("0", "Why?", (), {"score": float("inf")}),
            ),
            ({"question": "Why?", "answer": "a\x00b\ud800"}, Task("0", "Why?", ("a\ufffdb\ufffd",))),
            ({"problem": "Why?", "target": ["a", "b", "a", 1.5]}, Task("0", "Why?", ("a", "b", "1.5"))),
            (
                {"prompt": "Why?", "hops": 2, "metadata": {"city": "Oslo"}},
                Task("0", "Why?", metadata={"hops": 2, "city": "Oslo"}),
            ),
            ({"prompt": [{"role": "user", "content": "Why?"}], "answers": []}, Task("0", "Why?")),
        ],
    )
    def test_fields_have_their_usual_names(self, row: dict[str, Any], task: Task, tmp_path: Path) -> None:
        assert one(tmp_path, row) == task

    def test_rows_of_search_r1_load_as_they_are(self, tmp_path: Path) -> None:
        row = {
            "id": "test_0", "question": "who got the first nobel prize?", "golden_answers": ["Wilhelm Röntgen"],
            "data_source": "nq", "prompt": [{"role": "user", "content": "Answer ... Question: who got ...?"}],
            "reward_model": {"ground_truth": {"target": ["Wilhelm Röntgen"]}, "style": "rule"},
        }  # fmt: skip
        task = one(tmp_path, row)
        assert (task.id, task.prompt, task.answers) == ("test_0", row["question"], ("Wilhelm Röntgen",))
        assert task.metadata["data_source"] == "nq"

    def test_fields_may_be_named(self, tmp_path: Path) -> None:
        row = {"text": "Why?", "reward_model": {"ground_truth": {"target": ["a"]}}, "key": "k", "prompt": "not this"}
        fields = {"prompt": "text", "answers": "reward_model.ground_truth.target", "id": "key"}
        task = one(tmp_path, row, fields=fields)
        assert (task.id, task.prompt, task.answers, dict(task.metadata)) == (
            "k",
            "Why?",
            ("a",),
            {"prompt": "not this"},
        )

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ({"answers": ["a"]}, r"line 1, field 'prompt': expected the text of the task"),
            ({"prompt": "  "}, r"field 'prompt'"),
            ({"prompt": 5}, r"field 'prompt': .*got 5"),
            ({"prompt": [{"role": "system", "content": "x"}]}, r"field 'prompt': .*end with the user's"),
            ({"prompt": "a", "answers": {"x": 1}}, r"field 'answers': expected a text, a finite number, or a list"),
            ({"prompt": "a", "answer": True}, r"field 'answer': .*got True"),
            ({"prompt": "a", "answers": ["x", None]}, r"field 'answers'"),
            ({"prompt": "a", "answers": [float("nan")]}, r"field 'answers'"),
            ({"prompt": "a", "answer": float("nan")}, r"field 'answer': expected a text, a finite number.*got nan"),
            ({"prompt": "a", "answer": float("-inf")}, r"field 'answer': expected a text, a finite number.*got -inf"),
            ({"prompt": "a", "id": [1]}, r"field 'id': expected a text or an integer"),
            (
                {"prompt": "a", "split": "holdout"},
                r"field 'split': .*train, validation, test; got 'holdout'",
            ),
            ({"prompt": "a", "metadata": "x"}, r"field 'metadata': expected an object"),
        ],
    )
    def test_what_is_missing_or_wrong_is_named(self, row: dict[str, Any], message: str, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match=rf"one\.jsonl, {message}" if message.startswith("line") else message):
            one(tmp_path, row)

    def test_doubled_ids_are_named_with_both_places(self, tmp_path: Path) -> None:
        rows = [{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "x"}, {"id": "a", "prompt": "y"}]
        with pytest.raises(DatasetError, match=r"line 3: .*line 1 has the id 'a' already"):
            load_tasks(written(tmp_path / "tasks.jsonl", rows))

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"fields": {"promt": "x"}}, "Did you mean 'prompt'"),
            ({"fields": {"prompt": 5}}, "name of a field, got 5"),
            ({"fields": {"prompt": "a.b"}}, r"no field 'a\.b', to which fields= maps the prompt"),
            ({"holdout_fraction": 1.0}, "from 0 to below 1"),
            ({"holdout_fraction": "0.1"}, "from 0 to below 1"),
            ({"fields": "question"}, "fields must map parts of a task"),
            ({"split": ["train"]}, "split must be a string"),
            ({"split": "tain"}, "Did you mean 'train'"),
            ({"split": "test"}, r"has no split 'test'; it has train, validation"),
        ],
    )
    def test_wrong_arguments_are_refused(self, options: dict[str, Any], message: str, tmp_path: Path) -> None:
        with pytest.raises((ConfigurationError, DatasetError), match=message):
            load_tasks(written(tmp_path / "tasks.jsonl", ROWS), **options)


class TestFieldsOfAnEnvironment:
    COLUMNS: ClassVar[dict[str, str]] = {"prompt": "Frage", "answers": "Antwort"}

    def test_an_environment_reads_other_columns(self, tmp_path: Path) -> None:
        path = tmp_path / "tasks.csv"
        path.write_text("Frage,Antwort\n1 + 1?,2\n")
        (task,) = ToolEnv(dataset=path, split="all", fields=self.COLUMNS).tasks
        assert (task.prompt, task.answers) == ("1 + 1?", ("2",))
        with pytest.raises(DatasetError, match=r'Frage, Antwort\); name the columns: fields=\{"prompt": COLUMN'):
            ToolEnv(dataset=path)

    def test_fields_without_effect_are_refused(self, tmp_path: Path) -> None:
        tasks = load_tasks(written(tmp_path / "tasks.jsonl", ROWS))
        for options in ({"dataset": tasks}, {"tasks": list(tasks)}):
            with pytest.raises(ConfigurationError, match="fields="):
                ToolEnv(**options, fields=self.COLUMNS)
        with pytest.raises(ConfigurationError, match="sets 'fields' itself"):
            gymnasium.make("AgentR1/HotpotQA-v0", dataset="sample", fields=self.COLUMNS)

    def test_the_command_line_reaches_them(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "tasks.csv").write_text("Frage,Antwort\n1 + 1?,2\n2 + 2?,4\n")
        gymnasium.register("Fields/Any-v0", lambda **options: ToolEnv(**options), disable_env_checker=True)
        try:
            words = ["Fields/Any-v0", "--dataset", str(tmp_path / "tasks.csv"), "--split", "all", "--policy", "oracle"]
            option = 'fields={"prompt": "Frage", "answers": "Antwort"}'
            assert main(["eval", *words, "--option", option, "--out", str(tmp_path / "run")]) == 0
        finally:
            gymnasium.registry.pop("Fields/Any-v0")
        assert "1.000" in capsys.readouterr().out


class TestSplits:
    def test_a_file_without_splits_holds_some_tasks_out_whatever_is_added(self, tmp_path: Path) -> None:
        path = written(tmp_path / "tasks.jsonl", ROWS)
        train, held_out = load_tasks(path), load_tasks(path, split="val")
        assert (train.split, held_out.split, train.held_out_splits) == ("train", "validation", ("validation",))
        assert len(train) + len(held_out) == len(load_tasks(path, split="all")) == 40
        assert 0 < len(held_out) < 12
        more = [{"id": f"more{n}", "prompt": "x"} for n in range(40)]
        again = load_tasks(written(tmp_path / "more.jsonl", [*more, *reversed(ROWS)]), split="validation")
        assert {task.id for task in held_out} <= {task.id for task in again}
        assert load_tasks(path, holdout_fraction=0).held_out_splits == ()

    def test_rows_with_a_split_field(self, tmp_path: Path) -> None:
        rows = [{**row, "split": ("train", "dev", "test")[n % 3]} for n, row in enumerate(ROWS)]
        path = written(tmp_path / "tasks.jsonl", rows)
        assert [len(load_tasks(path, split=split)) for split in ("train", "validation", "test", "all")] == [
            14,
            13,
            13,
            40,
        ]
        with pytest.raises(DatasetError, match=r"line 41: no split, but other rows"):
            load_tasks(written(path, [*rows, {"prompt": "x"}]))

    def test_a_folder_has_a_file_per_split(self, tmp_path: Path) -> None:
        written(tmp_path / "train.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
        (tmp_path / "test.csv").write_text(
            "question, answer\nc,1\n"
        )  # a space after the comma of a header is not a part of it
        (tmp_path / "notes.txt").write_text("x")
        tasks = load_tasks(tmp_path)
        assert [task.id for task in tasks] == ["train/0", "train/1"]
        assert tasks.part("test")[0] == Task("test/0", "c", ("1",))
        assert tasks.held_out_splits == ("test",)

    def test_equal_tasks_are_on_one_side_whatever_they_are_called(self, tmp_path: Path) -> None:
        rows = [{"prompt": f"What is {n % 50}?", "answers": ["x"]} for n in range(200)]
        path = written(tmp_path / "tasks.jsonl", rows)
        sides = [{task.prompt for task in load_tasks(path, split=split)} for split in ("train", "validation")]
        assert sides[1] and sides[0].isdisjoint(sides[1])

    def test_a_file_that_is_named_after_a_split_holds_it(self, tmp_path: Path) -> None:
        tasks = load_tasks(written(tmp_path / "test.jsonl", ROWS))
        assert (tasks.split, len(tasks), tasks.held_out_splits) == ("test", 40, ("test",))

    def test_files_of_one_split_count_on_and_splits_have_ids_of_their_own(self, tmp_path: Path) -> None:
        for name in ("train-0-of-2", "train-1-of-2", "test"):
            written(tmp_path / f"{name}.jsonl", [{"prompt": f"{name} a"}, {"prompt": f"{name} b"}])
        assert [task.id for task in load_tasks(tmp_path)] == [f"train/{n}" for n in range(4)]
        for name in ("train", "test"):
            written(tmp_path / "two" / f"{name}.jsonl", [{"id": "0", "prompt": name}])
        assert [load_tasks(tmp_path / "two", split=split)[0].prompt for split in ("train", "test")] == ["train", "test"]

    def test_a_path_means_another_file_in_another_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        prompts = []
        for name in ("one", "two"):
            path = written(tmp_path / name / "t.jsonl", [{"prompt": name}])
            os.utime(path, (1, 1))
            monkeypatch.chdir(tmp_path / name)
            prompts.append(load_tasks("t.jsonl", split="all")[0].prompt)
        assert prompts == ["one", "two"]

    def test_a_changed_file_is_read_again(self, tmp_path: Path) -> None:
        path = written(tmp_path / "tasks.jsonl", ROWS[:3])
        assert load_tasks(path, split="all")[0] is load_tasks(path, split="all")[0]
        assert len(load_tasks(written(path, ROWS[:4]), split="all")) == 4


class TestFiles:
    def test_lists_and_objects_in_the_cells_of_a_table_are_json(self, tmp_path: Path) -> None:
        rows = ['[1] what?,"[""a"", ""b, c""]","{""kind"": ""x"", ""sizes"": [1]}"', "why?,[sic],", "how?,[broken,"]
        (tmp_path / "table.csv").write_text("\n".join(["question,golden_answers,metadata", *rows]))
        tasks = load_tasks(tmp_path / "table.csv", split="all")
        assert [task.prompt for task in tasks] == ["[1] what?", "why?", "how?"]
        assert [task.answers for task in tasks] == [("a", "b, c"), ("[sic]",), ("[broken",)]
        assert tasks[0].metadata == {"kind": "x", "sizes": [1]}
        (tmp_path / "named.csv").write_text('prompt,gold,answer\nwhy?,"[""a"", 2]",5\n')
        (task,) = load_tasks(tmp_path / "named.csv", split="all", fields={"answers": "gold"})
        assert task.answers == ("a", "2")

    def test_blank_answers_give_a_warning_and_letters_and_articles_none(
        self, tmp_path: Path, recwarn: pytest.WarningsRecorder
    ) -> None:
        rows = [*ROWS[:2], {"prompt": "Which?", "answers": ["b", " "]}, {"prompt": "What?", "answer": "  "}]
        with pytest.warns(UserWarning, match=r"own\.jsonl, line 3: the answer ' ' is blank \(2 answers"):
            assert len(load_tasks(written(tmp_path / "own.jsonl", rows), split="all")) == 4
        recwarn.clear()
        load_tasks(
            written(tmp_path / "other.jsonl", [*ROWS, {"prompt": "A or B?", "answers": ["A", "!"]}]), split="all"
        )
        assert not recwarn.list

    def test_every_kind_of_file_holds_the_same_tasks(self, tmp_path: Path) -> None:
        parquet = pytest.importorskip("pyarrow.parquet", reason="the extra data is not installed")
        arrow = pytest.importorskip("pyarrow")
        rows = [
            {"id": f"r{n}", "prompt": f'What is "{n}",\nexactly?', "answer": str(n), "level": "x"} for n in range(9)
        ]
        written(tmp_path / "lines.jsonl", rows)
        (tmp_path / "array.json").write_text(json.dumps(rows))
        (tmp_path / "lines.jsonl.gz").write_bytes(gzip.compress((tmp_path / "lines.jsonl").read_bytes()))
        for name, mark in (("table.csv", ","), ("table.tsv", "\t")):
            cells = [[row["id"], '"' + row["prompt"].replace('"', '""') + '"', row["answer"], "x"] for row in rows]
            lines = [mark.join(line) for line in [["id", "prompt", "answer", "level"], *cells]]
            (tmp_path / name).write_text("\ufeff" + "\r\n".join(lines), encoding="utf-8")
        parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "table.parquet")
        sets = [list(load_tasks(path)) for path in sorted(tmp_path.iterdir())]
        assert len(sets) == 6
        assert all(tasks == sets[0] for tasks in sets)

    @pytest.mark.parametrize("name", ["test.jsonl", "validation.csv", "test.parquet"])
    def test_a_folder_with_a_link_to_a_device_is_refused(self, name: str, tmp_path: Path) -> None:
        written(tmp_path / "train.jsonl", ROWS)
        (tmp_path / name).symlink_to("/dev/zero")
        with pytest.raises(DatasetError, match=rf"{name} is not a regular file; remove it"):
            load_tasks(tmp_path)

    @pytest.mark.parametrize(
        ("rows", "prompt"),
        [(200_000, "x" * 2_000), (5, "x" * 20_000_000), (500_000, "x")],
        ids=["equal rows", "long cells", "many rows"],
    )
    @pytest.mark.slow
    def test_a_table_that_unpacks_to_far_more_than_its_size_is_refused(
        self, rows: int, prompt: str, tmp_path: Path
    ) -> None:
        parquet = pytest.importorskip("pyarrow.parquet", reason="the extra data is not installed")
        arrow = pytest.importorskip("pyarrow")
        same = arrow.array([0] * rows, arrow.int32())
        columns = {name: arrow.DictionaryArray.from_arrays(same, arrow.array([text])) for name, text in
                   (("prompt", prompt), ("answer", "a" * 50))}  # fmt: skip
        parquet.write_table(arrow.table(columns), tmp_path / "a.parquet", compression="zstd")
        with pytest.raises(DatasetError, match=r"a\.parquet unpacks to more than 200 times its \d+ bytes"):
            load_tasks(tmp_path / "a.parquet")

    def test_missing_numbers_of_a_table_are_no_answers(self, tmp_path: Path) -> None:
        parquet = pytest.importorskip("pyarrow.parquet", reason="the extra data is not installed")
        arrow = pytest.importorskip("pyarrow")
        table = arrow.table({"prompt": ["a", "b", "c"], "answer": [1.0, float("nan"), None]})
        parquet.write_table(table, tmp_path / "a.parquet")
        assert [task.answers for task in load_tasks(tmp_path / "a.parquet", split="all")] == [("1",), (), ()]

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("a.csv", b"id,prompt\n1\n", r"a\.csv, line 2: expected 2 columns \(id, prompt\)"),
            ("a.csv", b"id,prompt\n1,2,3\n", "line 2: expected 2 columns"),
            ("a.csv", b"id,id\n1,2\n", "distinct names"),
            ("a.csv", b"prompt\nMalm\xf6\n", r"a\.csv, line 2: it is not UTF-8 text .*0xf6 after 'Malm'"),
            ("a.csv", b'prompt\n"a\n', "cannot be read"),
            ("a.csv", b"prompt\n", "holds no task"),
            ("a.jsonl", b"", "holds no task"),
            ("a.jsonl", b"5\n", "expected an object"),
            ("a.parquet", b"PAR1 no more", "cannot be read"),
        ],
    )
    def test_damaged_files_are_reported_in_one_line(
        self, name: str, content: bytes, message: str, tmp_path: Path
    ) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises((DatasetError, MissingDependencyError), match=message):
            load_tasks(tmp_path / name)

    def test_missing_sources_are_reported(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="no such file or folder"):
            load_tasks(tmp_path / "missing.jsonl")
        with pytest.raises(DatasetError, match="named after a split"):
            load_tasks(tmp_path)

    def test_a_data_set_of_the_hub_has_its_own_splits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        datasets = pytest.importorskip("datasets", reason="the extra data is not installed")
        calls: list[tuple[str, str | None]] = []

        def load_dataset(repository: str, configuration: str | None) -> dict[str, list[dict[str, str]]]:
            calls.append((repository, configuration))
            return {"train": [{"question": "a", "answer": "1"}], "test": [{"question": "b", "answer": "2"}]}

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        tasks = load_tasks("hub:openai/gsm8k:main")
        assert (list(tasks), calls) == ([Task("train/0", "a", ("1",))], [("openai/gsm8k", "main")])
        assert tasks.part("test")[0].prompt == "b"

    def test_rows_of_the_hub_are_named_by_their_own_split(self, monkeypatch: pytest.MonkeyPatch) -> None:
        datasets = pytest.importorskip("datasets", reason="the extra data is not installed")
        table = {"train": [{"question": "a", "id": "x"}, {"question": "b", "id": "x"}], "test": [{"question": "c"}]}
        monkeypatch.setattr(datasets, "load_dataset", lambda *_names: table)
        with pytest.raises(DatasetError, match=r"hub:some/doubled, train, row 1: .*train, row 0 has the id 'x'"):
            load_tasks("hub:some/doubled")

    def test_real_problems_load(self) -> None:
        tasks = load_tasks(shared_file("gsm8k_train_1000.jsonl"), split="all")
        assert len(tasks) == 1000
        assert tasks[0].prompt.startswith("Natalia sold clips") and tasks[0].answers[0].endswith("#### 72")


class TestEnvironments:
    def test_any_tool_environment_reads_its_tasks(self, tmp_path: Path) -> None:
        path = written(tmp_path / "tasks.jsonl", ROWS)
        train, held_out = ToolEnv(dataset=path), ToolEnv(dataset=path, split="validation")
        assert isinstance(train.tasks, TaskSet)
        assert {task.id for task in train.tasks}.isdisjoint(task.id for task in held_out.tasks)
        assert train.describe_dataset() == f"{len(train.tasks)} of 40 tasks (split train) from {path}"
        _, info = held_out.reset(seed=0)
        assert held_out.step(answer(info["messages"][-1].content.split()[-1].strip("?")))[1] == 1.0

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dataset": 5}, "dataset must be a path"),
            ({"dataset": "x.jsonl", "tasks": [Task("a", "b")]}, "tasks or dataset, not both"),
            ({"tasks": [Task("a", "b")], "split": "test"}, "no dataset is given"),
            ({}, "tasks is empty"),
        ],
    )
    def test_wrong_options_are_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigurationError, match=message):
            ToolEnv(**options)

    def test_questions_without_passages_are_searched_for_in_a_corpus(self, tmp_path: Path) -> None:
        path = written(tmp_path / "tasks.jsonl", [{"question": "Capital of Norway?", "golden_answers": ["Oslo"]}])
        write_corpus([Passage("1", "Norway", "Its capital is Oslo.")], tmp_path / "corpus.jsonl")
        env = gymnasium.make("AgentR1/SearchQA-v0", dataset=path, split="all", corpus=tmp_path / "corpus.jsonl")
        env.reset(seed=0)
        observation, *_ = env.step(call("search", query="capital of Norway"))
        assert "(1) Norway: Its capital is Oslo." in observation
        assert env.step(answer("oslo"))[1] == 1.0

    def test_a_retriever_of_ones_own_brings_its_corpus(self, tmp_path: Path) -> None:
        path = written(tmp_path / "tasks.jsonl", ROWS)
        retriever = StubRetriever([Passage("1", "Norway", "Its capital is Oslo.")])
        env = gymnasium.make("AgentR1/SearchQA-v0", dataset=path, retriever=retriever)
        env.reset(seed=0)
        assert "Its capital" in env.step(call("search", query="norway"))[0]
        for options, message in (({}, "needs corpus=FILE"), ({"retriever": retriever, "corpus": "x"}, "has no effect")):
            with pytest.raises(ConfigurationError, match=message):
                gymnasium.make("AgentR1/SearchQA-v0", dataset=path, **options)
