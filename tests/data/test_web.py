"""`prepare` from addresses and archives, with nothing but the light install; the web is a server of this machine."""

from __future__ import annotations

import io
import json
import logging
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.data.load import load_dataset, prepared_folder
from agent_r1_gym.data.official import hotpotqa, musique, twowiki
from agent_r1_gym.data.prepare import prepare
from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.support import files
from tests.kit.commands import call
from tests.kit.data import HOTPOTQA_ROW, MUSIQUE_ROW, TWOWIKI_ROW, changed
from tests.kit.serving import FileServer, ServedFile, file_server


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileServer]:
    """A server, a home of its own, and no library `datasets`."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("AGENT_R1_HOME", str(tmp_path / "home"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with file_server() as running:
        yield running


def lines(*rows: Mapping[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def archive(members: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as writer:
        for name, content in members.items():
            writer.writestr(name, content)
    return packed.getvalue()


TWOWIKI = archive(
    {
        "data_ids/train.json": json.dumps([TWOWIKI_ROW]).encode(),
        "data_ids/dev.json": json.dumps([changed(TWOWIKI_ROW, _id="dev")]).encode(),
        "data_ids/id_aliases.json": lines({"Q_id": "Q17", "aliases": ["M. Brenn"], "demonyms": []}),
        "__MACOSX/data_ids/._train.json": b"\0\1",
        "../../evil.json": b"{",
    }
)


def left() -> list[str]:
    downloads = files.home() / "downloads"
    return [path.name for path in downloads.rglob("*") if path.suffix != ".lock"] if downloads.exists() else []


def test_the_official_file_is_fetched_where_nothing_else_is_installed(
    web: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files["hotpot_train_v1.1.json"] = ServedFile(json.dumps([HOTPOTQA_ROW]).encode())
    web.files["hotpot_dev_distractor_v1.json"] = ServedFile(json.dumps([changed(HOTPOTQA_ROW, _id="dev")]).encode())
    names = {"train": "hotpot_train_v1.1.json", "validation": "hotpot_dev_distractor_v1.json"}
    assert {split: url.rpartition("/")[2] for split, url in hotpotqa.URLS.items()} == names
    monkeypatch.setattr(hotpotqa, "URLS", {split: f"{web.url}/{name}" for split, name in names.items()})
    paths = prepare("hotpotqa", progress=False)
    assert [path.name for path in paths] == ["train.jsonl", "validation.jsonl"]
    assert (load_dataset("hotpotqa")[0].id, load_dataset("hotpotqa", split="dev")[0].id) == ("5a7a0693", "dev")
    assert left() == []
    web.asked.clear()
    assert prepare("hotpotqa", progress=False) == paths  # what is there is not fetched again
    assert web.asked == []
    prepare("hotpotqa", splits=["train"], force=True, progress=False)
    assert [name for name, _ in web.asked] == ["hotpot_train_v1.1.json"]


def test_an_archive_of_several_splits_is_fetched_once(web: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files["data_ids_april7.zip"] = ServedFile(TWOWIKI)
    assert set(twowiki.URLS.values()) == {"https://www.dropbox.com/s/ms2m13252h6xubs/data_ids_april7.zip?dl=1"}
    monkeypatch.setattr(twowiki, "URLS", dict.fromkeys(twowiki.URLS, f"{web.url}/data_ids_april7.zip?dl=1"))
    assert [path.stem for path in prepare("2wiki", progress=False)] == ["train", "validation"]
    assert len(web.asked) == 1
    assert load_dataset("2wiki", split="dev")[0].answers == ("Maria Brenn", "M. Brenn")
    assert left() == []
    assert not list(files.home().parent.rglob("evil.json"))


def test_musique_has_plain_files_on_the_hub() -> None:
    assert [url.rpartition("/")[2] for url in musique.URLS.values()] == [
        musique.FILES[split][0] for split in ("train", "validation")
    ]
    assert all(url.startswith(f"https://huggingface.co/datasets/{musique.HUB_ID}/") for url in musique.URLS.values())


def test_an_archive_of_ones_own_and_an_address_of_ones_own(
    web: FileServer, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "mine.zip").write_bytes(archive({"data/musique_ans_v1.0_train.jsonl": lines(MUSIQUE_ROW)}))
    assert call(capsys, "data", "prepare", "musique", "--source", "mine.zip", "--index", "none")[0] == 0
    assert len(load_dataset("musique")) == 1
    web.files["my_dev.jsonl"] = ServedFile(lines(MUSIQUE_ROW, changed(MUSIQUE_ROW, id="2hop__1")))
    status, out, _ = call(capsys, "data", "prepare", "musique", "--source", f"{web.url}/my_dev.jsonl")
    assert status == 0 and "validation.jsonl" in out and "(2 questions)" in out
    assert [path.stem for path in sorted(prepared_folder("musique").glob("*.jsonl"))] == ["train", "validation"]


@pytest.mark.parametrize(
    ("served", "message"),
    [
        (ServedFile(status=404), "answered HTTP 404"),
        (ServedFile(b"<!doctype html><title>Sign in</title>"), "with a page of HTML"),
        (ServedFile(b'[{"_id": "1", '), "is the file truncated?"),
        (ServedFile(b""), "is empty"),
        (ServedFile(lines(changed(HOTPOTQA_ROW, answer=5))), "field 'answer'"),
        (ServedFile(archive({"other.json": b"[]"})), "holds no official file of hotpotqa; it holds other.json"),
        (ServedFile(archive({"hotpot_train_v1.1.json": b" " * 2**26})), "unpacks to more than 200 times"),
        (ServedFile(TWOWIKI[:-200] + TWOWIKI[-100:]), "train.json"),  # a damaged archive is not valid JSON either
    ],
)
def test_unusable_sources_fail_in_one_line_and_leave_nothing(
    served: ServedFile, message: str, web: FileServer, capsys: pytest.CaptureFixture[str]
) -> None:
    web.files["hotpot_train.json"] = served
    status, _, err = call(capsys, "data", "prepare", "hotpotqa", "--source", f"{web.url}/hotpot_train.json")
    assert status == 2
    last = err.strip().splitlines()[-1]
    assert last.startswith("agent-r1: ") and message in last
    assert list(prepared_folder("hotpotqa").glob("*.jsonl")) == []
    assert left() == []


def test_an_address_without_a_split_in_its_name_needs_one(web: FileServer) -> None:
    web.files["x"] = ServedFile(lines(MUSIQUE_ROW))
    with pytest.raises(ConfigurationError, match="contains no split"):
        prepare("musique", source=f"{web.url}/x", progress=False)
    prepare("musique", source=f"{web.url}/x", splits=["train"], progress=False)
    assert len(load_dataset("musique")) == 1


def test_a_damaged_member_of_an_archive_is_reported(web: FileServer, tmp_path: Path) -> None:
    damaged = bytearray(archive({"train.json": json.dumps([TWOWIKI_ROW] * 50).encode()}))
    damaged[60:80] = bytes(20)
    (tmp_path / "mine.zip").write_bytes(damaged)
    with pytest.raises(DatasetError, match=r"mine\.zip cannot be read"):
        prepare("2wiki", source=tmp_path / "mine.zip", progress=False)
    assert left() == []


def test_existing_splits_are_reported(web: FileServer, caplog: pytest.LogCaptureFixture) -> None:
    web.files["train.jsonl"] = ServedFile(lines(MUSIQUE_ROW))
    prepare("musique", source=f"{web.url}/train.jsonl", progress=False)
    with caplog.at_level(logging.WARNING):
        prepare("musique", source=f"{web.url}/train.jsonl", progress=False)
    assert "was kept" in caplog.text
    assert len(web.asked) == 1
