"""Model folders that cannot work: each fault is one line with a remedy, found without torch."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.agents import split_policy, weights_fingerprint
from agent_r1_gym.run.model_folder import (
    Trained,
    check_model_files,
    find_faults,
    find_gguf,
    find_model,
    list_checkpoints,
)
from agent_r1_gym.run.policies import make_policy
from agent_r1_gym.run.trained_agent import TrainedAgent, names_model
from agent_r1_gym.run.trust import Trust

WIDTH, TOKENS = 4, 2000


def write_weights(path: Path, tensors: dict[str, list[int]]) -> None:
    """Writes float32 zeros as safetensors."""
    header, end = {}, 0
    for name, shape in tensors.items():
        start, end = end, end + 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))


def write_tokenizer(folder: Path, count: int, **settings: Any) -> None:
    vocabulary = {f"w{number}": number for number in range(count - 1)}
    record = {"model": {"vocab": vocabulary}, "added_tokens": [{"id": count - 1, "content": "<end>"}]}
    (folder / "tokenizer.json").write_text(json.dumps(record))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>", **settings}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder without a fault."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"hidden_size": WIDTH, "vocab_size": TOKENS}))
    write_weights(model / "model.safetensors", {"model.embed_tokens.weight": [TOKENS, WIDTH]})
    write_tokenizer(model, TOKENS, chat_template="{{ messages }}")
    return model


def set_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def split_weights(folder: Path) -> None:
    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").rename(folder / "model-1-of-2.safetensors")


def become_adapter(folder: Path, base: str | None) -> None:
    for file in folder.iterdir():
        file.unlink()
    write_weights(folder / "adapter_model.safetensors", {"a": [2, 2]})
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))


FAULTS: dict[str, tuple[Callable[[Path], Any], str, Trained, str]] = {
    "cut weights": (
        lambda folder: os.truncate(folder / "model.safetensors", 900),
        "weights", "nothing", r"model\.safetensors is damaged \(it has 900 bytes where its header describes 32,",
    ),
    "cut header": (
        lambda folder: os.truncate(folder / "model.safetensors", 20),
        "weights", "nothing", r"is damaged \(no header in its 20 bytes\)",
    ),
    "lfs pointer": (
        lambda folder: (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid 1\n"),
        "weights", "nothing", "a Git LFS pointer, not the weights: `git lfs pull`",
    ),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(), "weights", "nothing", "holds no weights"
    ),
    "missing part": (split_weights, "weights", "nothing", r"lacks 1 of its 2 weight files \(model-2-of-2"),
    "weights of another model": (
        lambda folder: set_config(folder, hidden_size=8),
        "weights", "nothing", r"embeddings of 2,000 tokens x 4, but config.json describes 2,000 x 8",
    ),
    "damaged config": (
        lambda folder: (folder / "config.json").write_text('{"hidden'), "config", "nothing", "damaged config.json"
    ),
    "no tokenizer": (
        lambda folder: [file.unlink() for file in folder.glob("tokenizer*")],
        "tokenizer", "nothing", r"holds no tokenizer \(none of tokenizer.json,",
    ),
    "damaged tokenizer": (
        lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer", "nothing", "no tokenizer that loads"
    ),
    "tokenizer of a larger model": (
        lambda folder: write_tokenizer(folder, TOKENS + 1, chat_template="x"),
        "tokenizer", "nothing", "embeds 2000 tokens, but its tokenizer has ids up to 2000",
    ),
    "tokenizer of a smaller model": (
        lambda folder: write_tokenizer(folder, 436, chat_template="x"),
        "tokenizer", "nothing", "embeds 2000 tokens, but its tokenizer has only 436: it is another model's",
    ),
    "base model": (
        lambda folder: write_tokenizer(folder, TOKENS), "template", "nothing", "has no chat template, so it is a base"
    ),
    "quantised": (
        lambda folder: set_config(folder, quantization_config={"quant_method": "awq"}),
        "quantised", "all weights", r"has quantised weights \(awq\), which cannot be trained: .* or train an adapter",
    ),
    "quantised for inference alone": (
        lambda folder: set_config(folder, quantization_config={"quant_method": "compressed-tensors"}),
        "quantised", "an adapter", r"\(compressed-tensors\), on which no adapter can be trained",
    ),
    "adapter of nothing": (
        lambda folder: become_adapter(folder, None), "adapter", "nothing", "names no base model"
    ),
    "adapter without its base": (
        lambda folder: become_adapter(folder, "/somewhere/else/base"),
        "adapter", "nothing", r"adapter without its base model \(.*no such folder.*Copy the base there, or edit",
    ),
}  # fmt: skip


def test_model_without_a_fault(folder: Path) -> None:
    for trained in ("nothing", "all weights", "an adapter"):
        assert find_faults(str(folder), trained=trained) == []
    assert find_model(str(folder)) == str(folder)


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str, folder: Path) -> None:
    damage, kind, trained, message = FAULTS[name]
    damage(folder)
    (fault,) = find_faults(str(folder), trained=trained)
    assert fault.kind == kind
    assert "\n" not in fault.message
    with pytest.raises(ConfigurationError, match=message):
        check_model_files(str(folder), named="model='m'", trained=trained)
    without_template = partial(check_model_files, str(folder), named="model='m'", trained=trained, needs_template=False)
    if kind == "template":
        without_template()
    else:
        with pytest.raises(ConfigurationError, match=message):
            without_template()


def test_padded_embeddings_are_no_fault(folder: Path) -> None:
    """Families pad to a multiple of 512 or keep a reserve; the smaller the model, the larger the share."""
    for tokens in (TOKENS - 1000, TOKENS):
        write_tokenizer(folder, tokens, chat_template="x")
        assert find_faults(str(folder)) == []


def test_faults_of_the_base_are_those_of_an_adapter(folder: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    become_adapter(adapter, str(folder))
    assert find_faults(str(adapter)) == []
    os.truncate(folder / "model.safetensors", 900)
    (fault,) = find_faults(str(adapter))
    assert "is an adapter, and its base model" in fault.message and "is damaged" in fault.message


def test_gguf_stands_for_itself_and_for_its_folder(tmp_path: Path, folder: Path) -> None:
    file = tmp_path / "only" / "model.Q4_1.gguf"
    file.parent.mkdir()
    file.write_bytes(b"GGUF and more")
    assert find_gguf(file) == find_gguf(file.parent) == file
    assert find_faults(str(file)) == find_faults(str(file.parent)) == []
    assert names_model(str(file)) and TrainedAgent.load(str(file), Trust()).policy == f"local:{file}"
    assert TrainedAgent.load(file.parent, Trust()).model == str(file.parent)
    (folder / "model.gguf").write_bytes(b"GGUF")
    assert find_gguf(folder) is None  # next to weights
    (file.parent / "other.gguf").write_bytes(b"GGUF")
    with pytest.raises(ConfigurationError, match=r"holds 2 GGUF files \(model.Q4_1.gguf, other.gguf\): name one"):
        find_gguf(file.parent)
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(ConfigurationError, match="is a file, but not a GGUF one"):
        find_gguf(tmp_path / "notes.txt")


def test_a_part_of_a_split_gguf_is_refused(tmp_path: Path) -> None:
    parts = [tmp_path / f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for part in parts:
        part.write_bytes(b"GGUF")
        for name in (part, tmp_path):  # a folder with the parts that have been downloaded so far
            with pytest.raises(ConfigurationError, match=r"one of the 3 parts of a split GGUF file.*Merge the parts"):
                find_gguf(name)
    whole = tmp_path / "whole" / "model-00001-of-00001.gguf"
    whole.parent.mkdir()
    whole.write_bytes(b"GGUF")
    assert find_gguf(whole) == find_gguf(whole.parent) == whole


def test_the_latest_checkpoint_is_that_of_the_last_step_whatever_the_times_of_the_files(tmp_path: Path) -> None:
    for age, name in enumerate(("checkpoint-1000", "checkpoint-900", "checkpoint-20", "checkpoint-best")):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (age, age))  # as a copy leaves them
    (tmp_path / "checkpoint-30").symlink_to(tmp_path / "deleted")
    steps = [path.name for path in list_checkpoints(tmp_path)]
    assert steps == ["checkpoint-20", "checkpoint-30", "checkpoint-900", "checkpoint-1000"]


def test_a_home_folder_is_found_without_a_shell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(folder.parent))
    assert find_model("~/model") == str(folder) and find_faults("~/model") == []
    assert split_policy("local:~/model")[2] == split_policy("direct:local:~/model")[2] == str(folder)
    assert TrainedAgent.load("~/model", Trust()).policy == f"local:{folder}"


@pytest.mark.parametrize("name", ["my model", "~no-such-user/model", "a--b", "x" * 100, "model-", "org/.."])
def test_a_name_that_no_model_can_have_is_refused_in_a_line(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"neither a folder nor a valid hub id|no such folder") as refusal:
        find_model(name)
    assert "\n" not in str(refusal.value)


def test_policy_that_is_a_path(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"is the path of a model: write --policy local:{folder}"):
        split_policy(str(folder))


def test_unknown_policy_lists_models() -> None:
    with pytest.raises(ConfigurationError, match=r"'base:local:PATH'.*'local:PATH_OR_HUB_ID'.*'openai:MODEL'"):
        make_policy("modle")


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["train", "FictionQA", "--model", "{}"],
        ["train", "FictionQA", "--model-name-or-path={}"],
        ["sft", "FictionQA", "--model", "{}", "--output_dir", "x"],
        ["eval", "FictionQA", "--policy", "local:{}"],
        ["chat", "--policy", "local:{}", "--env", "FictionQA"],
        ["doctor", "--model", "{}"],
    ],
)
def test_wrong_path_is_answered_before_torch(command: list[str], folder: Path) -> None:
    words = [word.format(folder.parent / "modle") for word in command]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "agent_r1_gym", *words], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("no such folder. Did you mean 'model'?")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert not imported & {"torch", "transformers", "trl"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, "[" * 100_000) for name in ("config.json", "tokenizer.json", "tokenizer_config.json")),
        ("config.json", '{"text_config": [1]}'),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", '{"model": {"vocab": {"a": "b"}}, "added_tokens": [1]}'),
        ("model.safetensors.index.json", '{"weight_map": {"a": 5}}'),
        ("adapter_config.json", '{"base_model_name_or_path": 5}'),
    ],
)
def test_json_of_another_shape_is_a_fault(name: str, text: str, folder: Path) -> None:
    (folder / name).write_text(text)
    assert find_faults(str(folder))


def test_weights_that_are_a_pipe_or_a_device_are_a_fault(folder: Path) -> None:
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "zeros.safetensors").symlink_to("/dev/zero")
    faults = [fault.message for fault in find_faults(str(folder))]
    assert sum("is not a regular file" in message for message in faults) == 2
    weights_fingerprint(folder)
