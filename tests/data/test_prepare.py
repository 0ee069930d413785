import errno
import json
import logging

import pytest

from agent_r1_gym.data.load import load_dataset, prepared_folder
from agent_r1_gym.data.official import sources
from agent_r1_gym.data.prepare import prepare
from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.support import files
from tests.kit.data import HOTPOTQA_ROW, MUSIQUE_ROW, TWOWIKI_ROW, changed, shared_file, write_json, write_jsonl
from tests.kit.processes import in_processes


def left_behind(name):
    return sorted(file.name for file in prepared_folder(name).glob("*") if not file.name.endswith(".lock"))


class FakeHub:
    """Stands for the library `datasets`, with a network that may fail."""

    def __init__(self, splits, *, error=None):
        self.splits, self.error, self.calls = splits, error, []

    def get_dataset_split_names(self, repository, configuration):
        self.calls.append((repository, configuration))
        if self.error:
            raise self.error
        return list(self.splits)

    def load_dataset(self, repository, configuration, *, split):
        self.calls.append((repository, configuration, split))
        return self.splits[split]


def use_hub(monkeypatch, splits, **options):
    fake = FakeHub(splits, **options)
    monkeypatch.setattr(sources, "_library", lambda: fake)
    return fake


def test_local_official_files_become_what_auto_serves(tmp_path):
    source = tmp_path / "official"
    source.mkdir()
    write_json(source / "hotpot_train_v1.1.json", [HOTPOTQA_ROW])
    write_json(source / "hotpot_dev_distractor_v1.json", [changed(HOTPOTQA_ROW, _id="dev", answer="Zürich")])
    paths = prepare("hotpotqa", source=source, progress=False)
    assert [path.name for path in paths] == ["train.jsonl", "validation.jsonl"]
    assert all(path.parent == prepared_folder("hotpotqa") == files.home() / "datasets" / "hotpotqa" for path in paths)
    assert json.loads(paths[0].read_text(encoding="utf-8")) == HOTPOTQA_ROW
    assert load_dataset("hotpotqa")[0].answers == ("Marnby",)
    assert load_dataset("hotpotqa", split="validation")[0].answers == ("Zürich",)
    assert left_behind("hotpotqa") == ["train.jsonl", "validation.jsonl"]


def test_real_file_survives_the_way_through_the_prepared_form():
    path = shared_file("musique_ans_train_100.jsonl")
    prepare("musique", source=path, progress=False)
    prepared, direct = load_dataset("musique"), load_dataset("musique", path)
    assert list(prepared) == list(direct)
    assert prepared.fingerprint == direct.fingerprint


def test_entity_names_of_2wiki_are_written_into_the_rows(tmp_path):
    source = write_json(tmp_path / "dev.json", [TWOWIKI_ROW])
    write_jsonl(tmp_path / "id_aliases.json", [{"Q_id": "Q17", "aliases": ["M. Brenn"], "demonyms": []}])
    prepare("2wiki", source=source, progress=False)
    assert load_dataset("2wiki", split="dev")[0].answers == ("Maria Brenn", "M. Brenn")


def test_a_split_that_is_there_is_kept_unless_forced(tmp_path, caplog):
    source = write_jsonl(tmp_path / "musique_train.jsonl", [MUSIQUE_ROW])
    (path,) = prepare("musique", source=source, progress=False)
    before = path.stat().st_mtime_ns
    write_jsonl(source, [MUSIQUE_ROW, changed(MUSIQUE_ROW, id="2hop__1_2")])
    with caplog.at_level(logging.WARNING):
        assert prepare("musique", source=source, progress=False) == [path]
    assert "was kept" in caplog.text
    assert path.stat().st_mtime_ns == before
    prepare("musique", source=source, force=True, progress=False)
    assert len(load_dataset("musique")) == 2


def test_a_failure_leaves_the_old_split_or_none(tmp_path):
    source = write_jsonl(tmp_path / "train.jsonl", [MUSIQUE_ROW, changed(MUSIQUE_ROW, id=7)])
    with pytest.raises(DatasetError, match=r"train\.jsonl, line 2, field 'id'"):
        prepare("musique", source=source, progress=False)
    assert left_behind("musique") == []
    write_jsonl(source, [MUSIQUE_ROW])
    (path,) = prepare("musique", source=source, progress=False)
    content = path.read_bytes()
    write_jsonl(source, [MUSIQUE_ROW, MUSIQUE_ROW])
    with pytest.raises(DatasetError, match="second time"):
        prepare("musique", source=source, force=True, progress=False)
    assert path.read_bytes() == content
    assert left_behind("musique") == ["train.jsonl"]


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_full_disk_or_ctrl_c_leaves_nothing_half(tmp_path, monkeypatch, failure):
    source = write_jsonl(tmp_path / "train.jsonl", [MUSIQUE_ROW, changed(MUSIQUE_ROW, id="2hop__9")])
    dump, calls = json.dumps, []

    def dump_once(value):
        calls.append(value)
        if len(calls) == 2:
            raise failure
        return dump(value)

    monkeypatch.setattr(json, "dumps", dump_once)
    with pytest.raises(type(failure)):
        prepare("musique", source=source, progress=False)
    assert left_behind("musique") == []


def test_the_hub_gives_train_and_validation(monkeypatch):
    fake = use_hub(monkeypatch, {"train": [HOTPOTQA_ROW], "dev": [changed(HOTPOTQA_ROW, _id="dev")], "test": []})
    paths = prepare("hotpotqa", progress=False)
    assert [path.stem for path in paths] == ["train", "validation"]
    assert ("hotpotqa/hotpot_qa", "distractor") in fake.calls
    assert ("hotpotqa/hotpot_qa", "distractor", "dev") in fake.calls
    assert load_dataset("hotpotqa", split="validation")[0].id == "dev"


def test_an_interrupted_run_is_taken_up_without_asking_for_what_is_done(monkeypatch):
    use_hub(monkeypatch, {"train": [HOTPOTQA_ROW], "validation": [changed(HOTPOTQA_ROW, question=5)]})
    with pytest.raises(DatasetError, match=r"hotpotqa/hotpot_qa:distractor \(validation\), row 0, field 'question'"):
        prepare("hotpotqa", progress=False)
    assert left_behind("hotpotqa") == ["train.jsonl"]
    fake = use_hub(monkeypatch, {"train": [], "validation": [HOTPOTQA_ROW]})
    prepare("hotpotqa", progress=False)
    assert [call[2] for call in fake.calls if len(call) == 3] == ["validation"]
    fake.calls.clear()
    prepare("hotpotqa", progress=False)
    assert fake.calls == []


def test_another_copy_on_the_hub(monkeypatch):
    fake = use_hub(monkeypatch, {"train": [MUSIQUE_ROW]})
    prepare("musique", hub_id="someone/MuSiQue", splits=["train"], progress=False)
    assert fake.calls[0] == ("someone/MuSiQue", None)
    with pytest.raises(DatasetError, match="someone/MuSiQue has no split 'test'; it has train"):
        prepare("musique", hub_id="someone/MuSiQue", splits=["test"], progress=False)


def test_offline_errors_name_the_alternative(monkeypatch):
    use_hub(monkeypatch, {}, error=ConnectionError("no route to host"))
    with pytest.raises(DatasetError, match=r"no route to host.*`agent-r1 data prepare musique --source FILE_"):
        prepare("musique", progress=False)
    assert left_behind("musique") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "hotpotq"}, "Unknown data set 'hotpotq'.*Did you mean 'hotpotqa'"),
        ({"name": "fiction"}, "Unknown data set 'fiction'"),
        ({"splits": ["training"]}, "Unknown split 'training'.*Did you mean 'train'"),
        ({"splits": []}, "splits is empty"),
        ({"source": "x.json", "hub_id": "a/b"}, "expected source or hub_id, got both"),
    ],
)
def test_wrong_arguments(options, message):
    arguments = {"name": "hotpotqa", **options}
    with pytest.raises(ConfigurationError, match=message):
        prepare(arguments.pop("name"), progress=False, **arguments)


def test_a_file_without_a_split_in_its_name_needs_one(tmp_path):
    source = write_json(tmp_path / "mine.json", [HOTPOTQA_ROW])
    with pytest.raises(ConfigurationError, match="contains no split: name one, as in --split train"):
        prepare("hotpotqa", source=source, progress=False)
    with pytest.raises(ConfigurationError, match="is one file; expected one split"):
        prepare("hotpotqa", source=source, splits=["train", "dev"], progress=False)
    (path,) = prepare("hotpotqa", source=source, splits=["dev"], progress=False)
    assert path.name == "validation.jsonl"
    with pytest.raises(DatasetError, match="There is no file or folder"):
        prepare("hotpotqa", source=tmp_path / "absent.json", splits=["dev"], progress=False)
    with pytest.raises(DatasetError, match="holds no known split"):
        prepare("hotpotqa", source=files.home(), progress=False)


def _prepare(source):
    return prepare("musique", source=source, force=True, progress=False)


def test_two_processes_at_once_write_one_whole_split(tmp_path):
    rows = [changed(MUSIQUE_ROW, id=f"2hop__{number}") for number in range(200)]
    source = write_jsonl(tmp_path / "train.jsonl", rows)
    assert in_processes("fork", _prepare, [(source,)] * 2) == [[prepared_folder("musique") / "train.jsonl"]] * 2
    assert len(load_dataset("musique")) == 200
    assert left_behind("musique") == ["train.jsonl"]


def test_a_progress_bar_is_shown_on_request(tmp_path, capsys):
    source = write_jsonl(tmp_path / "train.jsonl", [MUSIQUE_ROW])
    prepare("musique", source=source)
    captured = capsys.readouterr()
    assert "musique/train" in captured.err
    assert captured.out == ""


def test_svamp_comes_from_its_official_file_although_the_hub_is_at_hand(monkeypatch):
    """The copy on the hub makes 300 of the 1,000 test problems the test split."""
    monkeypatch.setattr("agent_r1_gym.data.prepare.hub_is_installed", lambda: True)
    fake = use_hub(monkeypatch, {"test": []})
    asked: list[object] = []

    def refuse(*arguments, **_options):
        asked.extend(arguments)
        raise DatasetError("offline")

    monkeypatch.setattr("agent_r1_gym.data.prepare.local_copy", refuse)
    with pytest.raises(DatasetError, match="offline"):
        prepare("svamp", progress=False)
    assert fake.calls == []
    assert any("arkilpatel/SVAMP" in str(each) for each in asked)


def test_a_sample_is_named_after_the_data_set_that_it_replaces():
    for name in ("gsm8k", "svamp"):
        assert load_dataset(name, "sample").name == f"{name}-sample"
