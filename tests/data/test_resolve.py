import gc
import gzip
import json
import os
import re
import subprocess
import sys
import threading
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_r1_gym.data.load import SampleDataWarning, load_dataset, prepared_folder
from agent_r1_gym.data.prepare import prepare
from agent_r1_gym.errors import ConfigurationError, DatasetError, MissingDependencyError
from agent_r1_gym.support.packages import install_command
from tests.kit.data import HOTPOTQA_ROW, MUSIQUE_ROW, TWOWIKI_ROW, changed, write_json, write_jsonl

pytestmark = pytest.mark.filterwarnings("error")


def write_hub_folder(folder, rows, *, split):
    hub = pytest.importorskip("datasets")
    folder.mkdir(exist_ok=True)
    hub.Dataset.from_list(rows).to_parquet(str(folder / f"{split}-00000-of-00001.parquet"))
    return str(folder)


def hub_row(row):
    context, facts = row["context"], row["supporting_facts"]
    return changed(
        row,
        _id=...,
        id=row["_id"],
        context={"title": [title for title, _ in context], "sentences": [sentences for _, sentences in context]},
        supporting_facts={"title": [title for title, _ in facts], "sent_id": [index for _, index in facts]},
    )


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("hotpotqa", {"bridge", "comparison"}),
        ("2wikimultihopqa", {"bridge", "comparison", "3hop"}),
        ("musique", {"bridge", "3hop", "4hop"}),
    ],
)
def test_the_sample_is_labelled_fictional_and_resembles_its_data_set(name, types):
    dataset = load_dataset(name, "sample")
    assert dataset.name == f"{name}-sample"
    assert "FICTIONAL" in dataset.describe()
    assert len(dataset) == 200
    assert Counter(question.type for question in dataset).keys() == types
    titles = {passage.title for passage in dataset.passages()}
    assert len(titles) == 600
    for question in dataset:
        assert question.answers
        assert set(question.supporting_titles) <= titles
    assert load_dataset(name, "sample") is dataset
    assert load_dataset(name, "sample", split="dev").split == "validation"


def test_auto_without_prepared_data_warns_once_per_name_with_the_command():
    with pytest.warns(SampleDataWarning, match=r"No HotpotQA data .* FICTIONAL .*`agent-r1 data prepare hotpotqa`"):
        dataset = load_dataset("hotpotqa")
    assert dataset.name == "hotpotqa-sample"
    assert load_dataset("hotpotqa", "auto") is dataset
    with pytest.warns(SampleDataWarning, match="No MuSiQue data"):
        load_dataset("musique")


def test_auto_serves_prepared_data_without_a_warning():
    folder = prepared_folder("hotpotqa")
    folder.mkdir(parents=True)
    write_jsonl(folder / "validation.jsonl", [HOTPOTQA_ROW])
    dataset = load_dataset("hotpotqa")
    assert (dataset.name, dataset.split, dataset[0].answers) == ("hotpotqa", "validation", ("Marnby",))
    write_jsonl(folder / "train.jsonl", [HOTPOTQA_ROW, changed(HOTPOTQA_ROW, _id="2")])
    assert len(load_dataset("hotpotqa")) == 2  # train comes first
    assert len(load_dataset("hotpotqa", split="dev")) == 1
    with pytest.raises(DatasetError, match=r"holds no test split of hotpotqa; expected one of test\.jsonl"):
        load_dataset("hotpotqa", split="test")


def test_fiction_is_its_own_data_set():
    dataset = load_dataset("fiction")
    assert dataset.name == "fiction"
    assert load_dataset("fiction", "sample") is dataset
    assert load_dataset("fiction", split="ood").split == "ood"
    with pytest.raises(ConfigurationError, match="FictionQA is generated"):
        load_dataset("fiction", "hub")


def test_a_data_set_is_itself():
    dataset = load_dataset("fiction")
    assert load_dataset("hotpotqa", dataset) is dataset
    assert load_dataset("fiction", dataset, split="train") is dataset
    with pytest.raises(ConfigurationError, match="split='test' does not match the data set fiction/train"):
        load_dataset("fiction", dataset, split="test")


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("hotpotqa", "samlpe"), {}, "Unknown data set source 'samlpe'.*Did you mean 'sample'"),
        (("hotpotqa", "Hub"), {}, "Unknown data set source 'Hub'.*Did you mean 'hub'"),
        (("hotpotqa", ""), {}, "Unknown data set source ''"),
        (("hotpotqa", 7), {}, "dataset must be a word, a path or a QADataset, got 7"),
        (("hotpot_qa",), {}, "Unknown data set 'hotpot_qa'.*Did you mean 'hotpotqa'"),
        (("hotpotqa", "sample"), {"split": "tran"}, "Unknown split 'tran'.*Did you mean 'train'"),
        (("hotpotqa", "sample"), {"hub_id": "a/b"}, "hub_id='a/b' needs dataset='hub'"),
    ],
)
def test_wrong_arguments_get_a_hint(arguments, options, message):
    with pytest.raises(ConfigurationError, match=message):
        load_dataset(*arguments, **options)


def test_a_wrong_path_names_the_expected_file_and_similar_ones(tmp_path):
    write_json(tmp_path / "hotpot_train_v1.1.json", [HOTPOTQA_ROW])
    with pytest.raises(
        DatasetError, match=r"no file or folder .*hotpot_train\.json; expected a data file of hotpotqa\."
    ):
        load_dataset("hotpotqa", tmp_path / "hotpot_train.json")
    with pytest.raises(DatasetError, match=r"Similar names there: hotpot_train_v1\.1\.json"):
        load_dataset("hotpotqa", str(tmp_path / "hotpot_train_v1.json"))
    with pytest.raises(DatasetError, match=r"The folder .*absent does not exist either"):
        load_dataset("hotpotqa", tmp_path / "absent" / "x.json")


def test_folders(tmp_path):
    write_json(tmp_path / "hotpot_train_v1.1.json", [HOTPOTQA_ROW])
    write_json(tmp_path / "hotpot_dev_fullwiki_v1.json", [changed(HOTPOTQA_ROW, _id="fullwiki")])
    assert load_dataset("hotpotqa", tmp_path).split == "train"
    assert load_dataset("hotpotqa", str(tmp_path), split="validation")[0].id == "fullwiki"
    (tmp_path / "dev.json.gz").write_bytes(gzip.compress(json.dumps([changed(HOTPOTQA_ROW, _id="gz")]).encode()))
    assert load_dataset("hotpotqa", tmp_path, split="dev")[0].id == "gz"
    (tmp_path / "dev.json.gz").unlink()
    write_json(tmp_path / "hotpot_dev_distractor_v1.json", [changed(HOTPOTQA_ROW, _id="distractor")])
    assert load_dataset("hotpotqa", tmp_path, split="dev")[0].id == "distractor"
    with pytest.raises(
        DatasetError, match=r"holds no known split of musique; expected one of train\.jsonl.*it holds hot"
    ):
        load_dataset("musique", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="it holds nothing"):
        load_dataset("2wiki", tmp_path / "empty")
    (tmp_path / "one").mkdir()
    write_json(tmp_path / "one" / "mine.json", [TWOWIKI_ROW])
    assert load_dataset("2wiki", tmp_path / "one").split == "train"
    with pytest.raises(DatasetError, match="holds no test split"):
        load_dataset("2wiki", tmp_path / "one", split="test")


def test_a_file_may_be_called_any_split(tmp_path):
    path = write_json(tmp_path / "mine.json", [HOTPOTQA_ROW])
    dataset = load_dataset("hotpotqa", path)
    assert dataset.split == "file mine.json"
    assert dataset.describe() == f"hotpotqa/file mine.json (1 question) from {path}"
    assert load_dataset("hotpotqa", path, split="dev").split == "validation"
    assert load_dataset("hotpotqa", write_json(tmp_path / "my_train.json", [HOTPOTQA_ROW])).split == "train"


def test_one_object_is_shared_until_the_file_changes(tmp_path):
    path = write_json(tmp_path / "a.json", [HOTPOTQA_ROW])
    dataset = load_dataset("hotpotqa", path)
    assert load_dataset("hotpotqa", str(path)) is dataset
    assert load_dataset("hotpotqa", tmp_path / "." / "a.json") is dataset
    write_json(path, [HOTPOTQA_ROW, changed(HOTPOTQA_ROW, _id="2")])
    assert len(load_dataset("hotpotqa", path)) == 2
    assert len(dataset) == 1


@pytest.mark.slow
def test_an_unused_data_set_is_freed(tmp_path):
    dataset = load_dataset("hotpotqa", write_json(tmp_path / "a.json", [HOTPOTQA_ROW]))
    watch = weakref.ref(dataset)
    del dataset
    gc.collect()
    assert watch() is None


def test_threads_share_one_object(tmp_path):
    path = write_json(tmp_path / "a.json", [changed(HOTPOTQA_ROW, _id=str(number)) for number in range(300)])
    barrier = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        loaded = list(pool.map(lambda _: (barrier.wait(20), load_dataset("hotpotqa", path))[1], range(8)))
    assert len(set(map(id, loaded))) == 1


def test_the_hub_through_its_own_library(tmp_path):
    folder = write_hub_folder(tmp_path / "hub", [hub_row(HOTPOTQA_ROW)], split="train")
    write_hub_folder(tmp_path / "hub", [hub_row(changed(HOTPOTQA_ROW, _id="dev"))], split="validation")
    dataset = load_dataset("hotpotqa", "hub", hub_id=folder)
    official = load_dataset("hotpotqa", write_json(tmp_path / "a.json", [HOTPOTQA_ROW]))
    assert list(dataset) == list(official)
    assert dataset.fingerprint == official.fingerprint
    assert folder in dataset.describe()
    assert load_dataset("hotpotqa", "hub", hub_id=folder) is dataset
    assert load_dataset("hotpotqa", "hub", hub_id=folder, split="dev")[0].id == "dev"
    with pytest.raises(DatasetError, match=r"no parquet file named after the split 'test'; it holds train-0"):
        load_dataset("hotpotqa", "hub", hub_id=folder, split="test")


def test_the_hubs_copies_of_the_other_data_sets(tmp_path):
    wiki = hub_row(TWOWIKI_ROW)
    wiki["evidences"] = TWOWIKI_ROW["evidences"]
    folder = write_hub_folder(tmp_path / "wiki", [wiki], split="train")
    official = load_dataset("2wiki", write_json(tmp_path / "a.json", [TWOWIKI_ROW]))
    assert list(load_dataset("2wiki", "hub", hub_id=folder)) == list(official)
    folder = write_hub_folder(tmp_path / "musique", [MUSIQUE_ROW], split="train")
    official = load_dataset("musique", write_jsonl(tmp_path / "a.jsonl", [MUSIQUE_ROW]))
    assert list(load_dataset("musique", "hub", hub_id=folder)) == list(official)


def test_a_malformed_hub_row_is_named(tmp_path):
    folder = write_hub_folder(tmp_path / "hub", [hub_row(HOTPOTQA_ROW), {"id": "2"}], split="train")
    with pytest.raises(DatasetError, match=r"hub \(train\), row 1, field 'question': expected a non-empty string"):
        load_dataset("hotpotqa", "hub", hub_id=folder)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "train.parquet").write_bytes(b"no parquet")
    with pytest.raises(DatasetError, match="cannot be read"):
        load_dataset("hotpotqa", "hub", hub_id=str(damaged))


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=re.escape(install_command("data"))):
        load_dataset("hotpotqa", "hub")


def test_importing_and_sampling_stays_light(tmp_path):
    code = (
        "import sys; from agent_r1_gym.data.load import load_dataset; load_dataset('musique', 'sample')[0];"
        "print(sorted({'datasets', 'torch', 'tqdm', 'filelock', 'pyarrow'} & set(sys.modules)))"
    )
    environment = {**os.environ, "AGENT_R1_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "[]"


def test_gold_answers_that_normalise_to_nothing_give_a_warning(tmp_path):
    rows = [HOTPOTQA_ROW, changed(HOTPOTQA_ROW, _id="2", answer="The"), changed(HOTPOTQA_ROW, _id="3", answer="!")]
    path = tmp_path / "train.jsonl"
    write_jsonl(path, rows)
    with pytest.warns(UserWarning, match=r"2 gold answers normalise to nothing \(first: 'The' of question '2'\)"):
        assert len(load_dataset("hotpotqa", path)) == 3
    write_jsonl(path, rows[:1])
    load_dataset("hotpotqa", path)


BARE = {"question": "Who wrote Low Tide?", "answer": "Ada Quill"}


@pytest.mark.parametrize("name", ["hotpotqa", "2wiki", "musique"])
def test_questions_and_answers_are_enough(tmp_path, name):
    dataset = load_dataset(name, write_jsonl(tmp_path / "train.jsonl", [BARE, changed(BARE, question="Where?")]))
    assert [(question.id, question.answers, question.context) for question in dataset] == [
        ("0", ("Ada Quill",), ()),
        ("1", ("Ada Quill",), ()),
    ]
    assert list(dataset.passages()) == []


def test_without_the_library_nothing_is_begun(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"prepare NAME --source URL_OR_FILE_OR_FOLDER"):
        prepare("hotpotqa", hub_id="someone/hotpot")
    with pytest.raises(MissingDependencyError, match=r"prepare hotpotqa --source URL_OR_FILE --split test"):
        prepare("hotpotqa", splits=["test"])
    assert capsys.readouterr().err == ""  # no progress bar
