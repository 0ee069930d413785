"""The trainer's quickstart: everything it promises is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainers import quickstart
from trainers.tiny import build_model, build_tokenizer


def test_writes_scores_curve_traces_and_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quickstart, "HELD_OUT", (("test", "bridge"),))
    tokenizer = build_tokenizer()
    build_model(tokenizer).save_pretrained(tmp_path / "warm")
    tokenizer.save_pretrained(tmp_path / "warm")
    words = ["--warm", str(tmp_path / "warm"), "--out", str(tmp_path / "out"), "--steps", "1", "--questions", "4"]
    assert quickstart.main(words) == 0
    result = json.loads((tmp_path / "out/scores.json").read_text())
    assert set(result["before"]) == set(result["after"]) == {"test/bridge"}
    assert (tmp_path / "out/curve.csv").read_text().startswith("step,em")
    assert "<details>" in (tmp_path / "out/after.html").read_text()
    assert (tmp_path / "out/model/model.safetensors").is_file()
    assert "EM before" in capsys.readouterr().out


def test_an_old_run_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/scores.json").write_text("precious")
    with pytest.raises(ValueError, match="not an empty folder"):
        quickstart.main(["--warm", str(tmp_path), "--out", str(tmp_path / "out")])
