"""The GPU's table, in miniature on a CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks import gpu
from benchmarks.common.models import MINUSCULE, random_qwen2
from trainers.toy.quickstart import SHIPPED

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@pytest.mark.slow
def test_every_row_is_measured_on_a_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.main(["--quick", "--device", "cpu", "--out", str(tmp_path / "rows.jsonl")])
    row = json.loads((tmp_path / "rows.jsonl").read_text())
    measured = {each["what"]: each["measured"] for each in row["rows"]}
    assert [name for name, value in measured.items() if math.isnan(value)] == ["peak memory of a step"]
    assert min(value for name, value in measured.items() if not name.startswith(("exact match", "peak"))) > 0
    predicted = next(each["reference"] for each in row["rows"] if each["reference_is"] == "predicted")
    assert predicted > 0
    assert row["command"].startswith("python -m benchmarks.gpu --quick")
    printed = capsys.readouterr().out
    assert all(name in printed for name in measured)


def test_another_model_is_measured(tmp_path: Path) -> None:
    random_qwen2(MINUSCULE, AutoTokenizer.from_pretrained(SHIPPED)).save_pretrained(tmp_path)
    load = gpu.loader(tmp_path, "cpu")
    assert load().config.hidden_size == MINUSCULE.width
    [_, decoding] = gpu.decoding(load, gpu.QUICK, "cpu")
    assert decoding.measured > 0
    assert decoding.reference > 0
    assert 0 < gpu.drift(load, gpu.QUICK, "cpu").measured < 0.1


def test_a_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main(["--device", "cuda"])
    assert "torch finds no GPU" in capsys.readouterr().err
