"""`agent-r1 probe` of trained models: found in the folder of their run; one that reads, one that knows by heart."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agent_r1_gym.run.evaluation.agent_card import AgentCard
from tests.kit.commands import call
from tests.kit.readers import train_by_heart
from trainers.toy.quickstart import SHIPPED

WORLD = ("--option", "style=compact", "--option", "entities=120")


def em_of(out: Path, hops: str = "all") -> dict[tuple[str, str], float]:
    result: dict[str, Any] = json.loads((out / "probe.json").read_text())
    return {(row["condition"], row["reference"]): row["em"][hops]["mean"] for row in result["rows"]}


@pytest.fixture
def quickstart(tmp_path: Path) -> Path:
    """The folder of a quickstart whose model is the shipped warm start."""
    run = tmp_path / "quickstart"
    shutil.copytree(SHIPPED, run / "model")
    (run / "warm").mkdir()
    options = {"style": "compact", "entities": 130, "questions": 9, "split": "train", "mix": {"bridge": 1}}
    AgentCard(env_id="FictionQA", env_options=options, token_limits={"max_turn_tokens": 32}).save(run / "model")
    return run


@pytest.mark.slow
def test_the_model_of_a_quickstart_and_its_world_are_found(
    quickstart: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    status, said, _ = call(capsys, "probe", str(quickstart), "--hops", "1", "-n", "20", "--out", str(out))
    em = em_of(out)
    assert status == 0 and "READS" in said
    assert em["normal", "world"] > 0.7 and em["nothing_found", "world"] <= 0.05
    settings = json.loads((out / "normal" / "run.json").read_text())["settings"]
    assert settings["env_options"] == {
        "style": "compact",
        "entities": 130,
        "mix": {"1hop": 1.0},
        "questions": 20,
        "split": "test",
    }
    assert settings["policy"] == f"local:{quickstart / 'model'}" and settings["model"]["max_turn_tokens"] == 32


@pytest.mark.slow
def test_of_a_run_that_has_not_finished_the_last_checkpoint_is_probed(
    quickstart: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (quickstart / "model").rename(quickstart / "checkpoint-10")
    words = ("probe", str(quickstart), "--hops", "1", "-n", "2", "--out", str(tmp_path / "out"))
    status, _, beside = call(capsys, *words)
    assert status in (0, 3)
    assert f"has not finished; using {quickstart / 'checkpoint-10'}" in beside


@pytest.mark.slow
def test_a_model_that_learned_one_world_by_heart_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_by_heart(tmp_path / "model", steps=250)
    probe = ("probe", str(tmp_path / "model"), *WORLD, "-n", "30")
    for split in ("train", "test"):
        assert call(capsys, *probe, "--split", split, "--out", str(tmp_path / split))[0] == 3
    known, unknown = em_of(tmp_path / "train"), em_of(tmp_path / "test")
    assert known["normal", "world"] > 0.9 and known["nothing_found", "world"] > 0.9
    assert known["counterfactual", "old truth"] > 0.9 and known["counterfactual", "passages"] < 0.1
    assert unknown["normal", "world"] < 0.2
