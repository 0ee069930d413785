"""GGUF files become model folders once, with which everything else works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.agents import weights_fingerprint
from agent_r1_gym.run.model_folder import find_faults
from trainers.monitoring.preflight import find_model
from trainers.rollouts.gguf import convert_gguf
from trainers.rollouts.local_model import LocalOptions, load_model, open_model

gguf = pytest.importorskip("gguf", reason="gguf is not installed (the train extra)")

WIDTH, HEADS, INNER, LAYERS = 32, 2, 64, 1
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_gguf(path: Path, *, architecture: str = "llama", seed: int = 0, without: str = "") -> Path:
    """Writes a tiny Llama with a byte-level tokenizer, quantised to Q8_0; one weight may be missing."""
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "ab"]
    writer = gguf.GGUFWriter(str(path), architecture)
    for name, value in (
        ("context_length", 512), ("embedding_length", WIDTH), ("block_count", LAYERS), ("feed_forward_length", INNER),
        ("attention.head_count", HEADS), ("attention.head_count_kv", HEADS), ("vocab_size", len(tokens)),
        ("rope.dimension_count", WIDTH // HEADS),
    ):  # fmt: skip
        writer.add_uint32(f"{architecture}.{name}", value)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(letters) + 1))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    generator = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        for name, shape in (
            ("attn_norm", (WIDTH,)), ("attn_q", (WIDTH, WIDTH)), ("attn_k", (WIDTH, WIDTH)), ("attn_v", (WIDTH, WIDTH)),
            ("attn_output", (WIDTH, WIDTH)), ("ffn_norm", (WIDTH,)), ("ffn_gate", (INNER, WIDTH)),
            ("ffn_up", (INNER, WIDTH)), ("ffn_down", (WIDTH, INNER)),
        ):  # fmt: skip
            shapes[f"blk.{layer}.{name}"] = shape
    shapes.pop(without, None)
    for name, dims in shapes.items():
        values = generator.normal(size=dims).astype(np.float32)
        if len(dims) == 1:
            writer.add_tensor(f"{name}.weight", values)
        else:
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(f"{name}.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.Q8_0.gguf")


def test_converted_once_by_contents(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(convert_gguf(str(file)))
    assert find_faults(str(folder), trained="all weights") == []
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    capsys.readouterr()
    moved = tmp_path / "tiny.Q8_0.gguf"
    moved.write_bytes(file.read_bytes())
    assert convert_gguf(str(moved)) == convert_gguf(str(tmp_path)) == find_model(str(moved)) == str(folder)
    assert capsys.readouterr().err == ""  # nothing was converted
    other = write_gguf(tmp_path / "other.gguf", seed=1)
    assert convert_gguf(str(other)) != str(folder)


def test_values_are_those_of_the_file(file: Path) -> None:
    model, _ = load_model(LocalOptions(model=str(file), device="cpu"))
    stored = next(tensor for tensor in gguf.GGUFReader(str(file)).tensors if tensor.name == "blk.0.ffn_up.weight")
    expected = torch.from_numpy(gguf.quants.dequantize(stored.data, stored.tensor_type))
    assert torch.equal(model.model.layers[0].mlp.up_proj.weight, expected)
    assert model.dtype == torch.float32


def test_it_plays(file: Path) -> None:
    local = open_model(LocalOptions(model=str(file), device="cpu", max_turn_tokens=4), slots=1)
    assert local.chat.stop_id == 2
    assert local.limits.max_completion_tokens == 512
    assert weights_fingerprint(file) and weights_fingerprint(file) == weights_fingerprint(file.parent)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:3000]), "cannot be converted"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9000]), "cannot be converted"),
        (lambda path: write_gguf(path, architecture="strange"), "architecture strange is not supported"),
        (
            lambda path: write_gguf(path, without="blk.0.ffn_up"),  # the first part of a split file, renamed
            r"lacks 1 weights of its model \(model.layers.0.mlp.up_proj.weight",
        ),
    ],
)
def test_file_that_cannot_be_read(damage: Any, words: str, file: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(file.read_bytes())
    damage(path)
    with pytest.raises(ConfigurationError, match=words) as error:
        find_model(str(path))
    assert "\n" not in str(error.value)


def test_without_its_package(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_R1_HOME", str(tmp_path))
    monkeypatch.setattr("trainers.rollouts.gguf.find_spec", lambda _name: None)
    with pytest.raises(ConfigurationError, match="the package that reads it is missing: pip install gguf"):
        convert_gguf(str(file))
