"""`agent-r1 export`: what it writes loads everywhere and answers as the run did; what it refuses, it names."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the train extra is not installed")

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_r1_gym.cli.main import main
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.evaluation.agent_card import AgentCard
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from tests.kit.commands import call
from trainers.rollouts.chat_format import ChatFormat

WEIGHTS = Path(__file__).parents[2] / "trainers" / "toy" / "weights"
WORLD = {"style": "compact", "entities": 800, "split": "validation"}
EVAL = ["eval", "FictionQA", *(f"--option={name}={value}" for name, value in WORLD.items()), "--max-turn-tokens", "40"]
LEFT_BEHIND = ("training_args.bin", "optimizer.pt", "trainer_state.json", "checkpoint-5")


@pytest.fixture(scope="module")
def adapter_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that trained a LoRA adapter of the 0.4M policy, with the other files of a trainer."""
    folder = tmp_path_factory.mktemp("runs") / "adapter"
    base = AutoModelForCausalLM.from_pretrained(WEIGHTS)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.data.mul_(0.3)  # noisy, but still an agent
    model.save_pretrained(folder)
    add_run_files(folder)
    return folder


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    AutoModelForCausalLM.from_pretrained(WEIGHTS).save_pretrained(folder)
    add_run_files(folder)
    return folder


def add_run_files(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    tokenizer.save_pretrained(folder)
    ChatFormat.load(WEIGHTS, tokenizer).save(folder)
    options = {"env_id": "FictionQA", "env_options": WORLD, "base_model": str(WEIGHTS), "algorithm": "grpo"}
    AgentCard.from_env(make_text_env("FictionQA", WORLD), token_limits={"max_turn_tokens": 40}, **options).save(folder)
    for name in LEFT_BEHIND[:-1]:
        (folder / name).write_text("pickle")
    (folder / LEFT_BEHIND[-1]).mkdir()


def evaluated(model: Path, out: Path) -> RunFolder:
    assert main([*EVAL, "--policy", f"local:{model}", "-n", "12", "--out", str(out)]) == 0
    return RunFolder(out)


def actions(run: RunFolder) -> list[list[str]]:
    return [[turn.action for turn in record.turns] for record in run.episodes()]


def generated(model: object, tokenizer: object) -> str:
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "occupation of spouse of folu tovic ?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    return str(tokenizer.decode(model.generate(**ids, do_sample=False, max_new_tokens=30)[0]))


@pytest.mark.parametrize("merge", [False, True], ids=["adapter", "merged"])
@pytest.mark.slow
def test_an_adapter_plays_as_before_wherever_it_is_loaded(
    merge: bool, adapter_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = evaluated(adapter_run, tmp_path / "before")
    out = tmp_path / "out"
    words = ["export", str(adapter_run), "--out", str(out), "--scores", str(before.path)]
    assert main([*words, *([] if merge else ["--no-merge"])]) == 0  # its base is a folder of this machine
    note = "exported as one merged model. --no-merge" if merge else "loads only where its base model is in"
    assert note in capsys.readouterr().err
    names = {path.name for path in out.iterdir()}
    assert not names & {*LEFT_BEHIND, "merged_from.txt"}
    assert names >= {"agent.json", "README.md", "chat_format.json", "tokenizer.json"}
    assert ("adapter_model.safetensors" in names) is not merge and ("model.safetensors" in names) is merge
    # plain transformers, and PEFT
    tokenizer = AutoTokenizer.from_pretrained(out)
    base = AutoModelForCausalLM.from_pretrained(WEIGHTS)
    expected = generated(PeftModel.from_pretrained(base, adapter_run), tokenizer)
    assert generated(AutoModelForCausalLM.from_pretrained(out), tokenizer) == expected
    if not merge:
        base = AutoModelForCausalLM.from_pretrained(json.loads((out / "adapter_config.json").read_text())[BASE])
        assert generated(PeftModel.from_pretrained(base, out), tokenizer) == expected
    # our own
    after = evaluated(out, tmp_path / "after")
    assert actions(after) == actions(before)
    record = next(record for record in before.episodes() if record.answer is not None)
    monkeypatch.setattr(sys, "stdin", io.StringIO(record.question + "\n"))
    capsys.readouterr()
    assert main(["chat", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == record.answer
    # the cards
    card = AgentCard.load(out)
    assert card is not None
    assert card.scores[0]["metrics"] == before.metrics()["overall"]["metrics"]
    em = card.scores[0]["metrics"]["em"]
    readme = (out / "README.md").read_text()
    assert f"| em | {em['mean']:.3f} | {em['low']:.3f} to {em['high']:.3f} |" in readme
    assert f"library_name: {'transformers' if merge else 'peft'}" in readme and "`search`" in readme
    assert ("These are scores of the adapter on its base model" in readme) is merge


BASE = "base_model_name_or_path"


def test_whole_weights_are_copied_as_they_are(whole_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    out.mkdir(parents=True)  # an empty folder may be there
    assert main(["export", str(whole_run), "--out", str(out)]) == 0
    assert (out / "model.safetensors").read_bytes() == (whole_run / "model.safetensors").read_bytes()
    assert not {path.name for path in out.iterdir()} & set(LEFT_BEHIND)
    assert "No scores are claimed" in (out / "README.md").read_text()
    again = tmp_path / "again"
    assert main(["export", str(out), "--out", str(again)]) == 0
    assert sorted(path.name for path in again.iterdir()) == sorted(path.name for path in out.iterdir())


def test_a_base_model_is_named_so_that_it_is_found_from_anywhere(
    adapter_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(adapter_run, tmp_path / "run")
    shutil.copytree(WEIGHTS, tmp_path / "base")
    config = tmp_path / "run" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), BASE: "base"}))
    monkeypatch.chdir(tmp_path)
    assert main(["export", "run", "--out", "out", "--no-merge"]) == 0
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())[BASE] == str(tmp_path / "base")


def test_an_adapter_on_a_model_of_the_hub_stays_an_adapter(adapter_run: Path, tmp_path: Path) -> None:
    shutil.copytree(adapter_run, tmp_path / "run")
    config = tmp_path / "run" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), BASE: "someone/base"}))
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())[BASE] == "someone/base"


@pytest.mark.slow
def test_scores_of_another_model_are_refused(
    whole_run: Path, adapter_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(evaluated(whole_run, tmp_path / "other").path)
    scripted = str(tmp_path / "scripted")
    assert main([*EVAL[:-2], "--policy", "oracle", "-n", "2", "--out", scripted]) == 0
    rag = str(tmp_path / "rag")
    assert main([*EVAL, "--policy", f"naive-rag:local:{adapter_run}", "-n", "2", "--out", rag]) == 0
    capsys.readouterr()
    for run, complaint in (
        (other, r"measured other weights \(.*whole, fingerprint \w+\) than those in .*adapter \(\w+\)"),
        (scripted, "it measured oracle, not the agent"),
        (rag, "it measured naive-rag:local"),
        (str(tmp_path / "none"), "holds no run.json"),
    ):
        out = tmp_path / "out"
        status, _, err = call(capsys, "export", str(adapter_run), "--out", str(out), "--scores", run)
        assert status == 2 and len(err.strip().splitlines()) == 1
        assert re.search(complaint, err)
        assert not out.exists()


@pytest.mark.slow
def test_an_unfinished_evaluation_is_refused(
    whole_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = evaluated(whole_run, tmp_path / "run")
    run.metrics_path.unlink()
    capsys.readouterr()
    status, _, err = call(capsys, "export", str(whole_run), "--out", str(tmp_path / "out"), "--scores", str(run.path))
    assert status == 2 and "not complete" in err


@pytest.mark.parametrize(
    ("source", "words", "complaint"),
    [
        ("missing", [], "is not a folder"),
        ("empty", [], "holds no model"),
        ("unfinished", [], "its latest checkpoint is .*checkpoint-7"),
        ("no_card", [], "has no agent.json"),
        ("bad_card", [], "is not an agent card"),
        ("no_tokenizer", [], "holds no tokenizer"),
        ("whole", ["--merge"], "nothing to merge"),
        ("whole", ["--out", "taken"], "taken exists and is not an empty folder"),
        ("whole", ["--out", "file"], "file exists and is not an empty folder"),
    ],
)
def test_what_cannot_be_exported_is_rejected_in_one_line(
    source: str, words: list[str], complaint: str, whole_run: Path, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "empty").mkdir()
    (run_folder / "unfinished" / "checkpoint-7").mkdir(parents=True)
    for name, damage in (
        ("no_card", "agent.json"),
        ("bad_card", "agent.json"),
        ("no_tokenizer", "tokenizer_config.json"),
    ):
        shutil.copytree(whole_run, run_folder / name)
        (run_folder / name / damage).unlink()
    (run_folder / "bad_card" / "agent.json").write_text("{}")
    shutil.copytree(whole_run, run_folder / "whole")
    (run_folder / "taken").mkdir()
    (run_folder / "taken" / "thesis.tex").write_text("years of work")
    (run_folder / "file").touch()
    before = sorted(run_folder.iterdir())
    status, _, err = call(capsys, "export", source, *(words if "--out" in words else ["--out", "out", *words]))
    assert status == 2 and len(err.strip().splitlines()) == 1
    assert re.search(complaint, err)
    assert sorted(run_folder.iterdir()) == before
    assert (run_folder / "taken" / "thesis.tex").read_text() == "years of work"
