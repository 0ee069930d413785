"""`agent-r1 sft`: from a source to a model with its chat format; bad input in a line, before a model is loaded."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset, load_from_disk
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM
from trl import SFTConfig, SFTTrainer
from trl.chat_template_utils import get_training_chat_template

from agent_r1_gym.cli.main import main
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.evaluation.agent_card import AgentCard
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.mixture import EnvConfig
from agent_r1_gym.run.record import Trajectory
from tests.kit.chat_families import FAMILIES
from tests.kit.models import make_model, make_tokenizer
from tests.kit.reports import episodes, write_run
from trainers.commands.command_line import read_config
from trainers.commands.demonstrations import IGNORE_INDEX
from trainers.commands.sft import command, run
from trainers.commands.sft.command import FOLDER, DemonstrationConfig, describe_learning
from trainers.monitoring.preflight import ModelSource
from trainers.resume.signals import StopOnSignal
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.local_model import LocalOptions, load_model
from trainers.toy.model import build_model

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
SMALL = ["FictionQA", "--option", "questions=12", "--option", "style=compact", "--episodes", "6"]
QUICK = ["--max_steps", "2", "--per_device_train_batch_size", "2", "--save_strategy", "no", "--disable_tqdm", "True"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "model"
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("adapter", [[], ["--lora_r", "2", "--lora_target_modules", "all-linear"]])
@pytest.mark.slow
def test_what_it_writes_is_a_model_that_plays(
    adapter: list[str], model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run([*SMALL, "--model", model, "--output_dir", str(out), *QUICK, *adapter]) == 0
    said = capsys.readouterr().out
    assert "demonstrations: 6 of 6 episodes" in said and f"--warm-start {out}" in said
    for pattern in (
        f"^model +{model}: .* parameters are trained" + r"( \(LoRA of rank 2\))?" * bool(adapter) + "$",
        "^environment +FictionQA: 6 episodes of oracle$",
        r"^rows +6 of \d+ to \d+ tokens; [\d,]+ of [\d,]+ in the loss$",
        r"^prompt +\d+ to \d+ tokens",
        "^training +2 steps of 2 rows$",
        f"^learning rate +{'0.001' if adapter else '5e-05'}, linear, falls to 0: the default for a",
        "^precision +float32; activations are ",
        r"^learned from 6 episodes \(6 rows\), loss [\d.]+ -> [\d.]+, token accuracy 0\.\d+ -> 0\.\d+; the model is in",
    ):
        assert re.search(pattern, said, re.MULTILINE), pattern
    assert (out / "adapter_config.json").is_file() == bool(adapter)
    assert len(RunFolder(out / FOLDER).episodes()) == 6
    card = AgentCard.load(out)
    assert card is not None and (card.env_id, card.algorithm, card.base_model) == ("FictionQA", "sft", model)
    loaded, tokenizer = load_model(LocalOptions(model=str(out)))
    assert loaded.num_parameters() > 0
    assert ChatFormat.load(out, tokenizer).template.source == make_tokenizer().chat_template
    assert json.loads((out / "trainer_state.json").read_text())["global_step"] == 2
    assert run([*SMALL, "--model", model, "--output_dir", str(out), *QUICK]) == 2
    assert "holds a model already" in capsys.readouterr().err


@pytest.mark.slow
def test_a_file_of_conversations_is_a_source(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = ["FictionQA", "--option", "questions=12", "--option", "style=compact"]
    played, file = str(tmp_path / "played"), str(tmp_path / "file.jsonl")
    assert main(["eval", *env, "--split", "train", "--policy", "oracle", "-n", "4", "--out", played]) == 0
    assert main(["data", "export", played, "--out", file]) == 0
    words = [*env, "--model", model, *QUICK, "--from", file]
    capsys.readouterr()
    assert run([*words, "--output_dir", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert f"demonstrations: 4 of 4 episodes in {file} succeeded" in printed
    assert "learned from 4 episodes (4 rows)" in printed
    assert run([*words, "--output_dir", str(tmp_path / "other"), "--samples", "2"]) == 2
    assert "samples has no effect with --from" in capsys.readouterr().err
    Path(file).write_text("{}\n")
    assert run([*words, "--output_dir", str(tmp_path / "other")]) == 2
    assert "line 1: expected OpenAI `messages`" in capsys.readouterr().err


@pytest.mark.slow
def test_trl_trains_on_an_exported_run(tmp_path: Path) -> None:
    """On the file and on the folder, with its own `assistant_only_loss`: only turns of the model are in the loss."""
    tokenizer = FAMILIES["TRL qwen3.jinja"].tokenizer(tmp_path / "model")
    tokenizer.chat_template = get_training_chat_template(tokenizer)
    network = build_model(tokenizer)
    network.config.max_position_embeddings = 8192
    played = str(tmp_path / "played")
    assert (
        main(["eval", "HotpotQA", "--option", "dataset=sample", "--policy", "oracle", "-n", "4", "--out", played]) == 0
    )
    for name in ("file.jsonl", "folder"):
        assert main(["data", "export", played, "--out", str(tmp_path / name)]) == 0
    file = {"data_files": str(tmp_path / "file.jsonl"), "cache_dir": str(tmp_path / "cache")}
    tables = (load_dataset("json", split="train", **file), load_from_disk(str(tmp_path / "folder")))
    rows = []
    for table in tables:
        args = SFTConfig(
            output_dir=str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=2, assistant_only_loss=True,
            max_length=8192, use_cpu=True, report_to="none", bf16=False, save_strategy="no",
            gradient_checkpointing=False,
        )  # fmt: skip
        trainer = SFTTrainer(network, args, train_dataset=table, processing_class=tokenizer)
        assert trainer.train().training_loss > 0
        rows.append(trainer.train_dataset[0])
    learned = tokenizer.decode([token for token in rows[0]["labels"] if token != IGNORE_INDEX])
    assert "Ursula Foliner" in learned and "<answer>" in learned
    assert "(1) " not in learned  # what the search returned
    assert rows[0]["input_ids"] == rows[1]["input_ids"]


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        (["--padding_free", "True"], "refused these options: When `padding_free=True` without packing"),
        (["--report_to", "foo"], "report_to=foo: foo is not supported"),
    ],
)
def test_options_that_trl_refuses_are_one_line(
    option: list[str], problem: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*SMALL, "--model", model, "--output_dir", str(tmp_path / "out"), *QUICK, *option]) == 2
    assert problem in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_a_run_of_another_model_is_a_source(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = episodes(9, corpus=10)
    teacher = write_run(tmp_path / "teacher", rows, env_options={"split": "validation"})
    out = tmp_path / "out"
    words = ["FictionQA", "--from", str(teacher), "--min_return", "-9", "--model", model, "--output_dir", str(out)]
    assert run([*words, *QUICK]) == 0
    captured = capsys.readouterr()
    assert f"9 of 9 episodes in {teacher} succeeded" in captured.out
    assert "held-out split 'validation': measure on others" in captured.err
    assert not (out / FOLDER).exists()


def failing(index: int, error: str | None = None, unparsed: str | None = None) -> Trajectory:
    """A successful episode; with errors, one whose first turn failed."""
    (record,) = episodes(1, corpus=10)
    first, *others = record.turns
    parse_errors = () if unparsed is None else (unparsed,)
    turns = (replace(first, call_errors=(error,), parse_errors=parse_errors), *others)
    return replace(record, task_index=index, turns=turns, scores={"em": 1.0})


@pytest.mark.slow
def test_demonstrations_with_failed_calls_are_skipped(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixed = [failing(0), failing(1, "unknown_tool"), failing(2, "unknown_tool"), failing(3, None, "no_action")]
    words = ["FictionQA", "--model", model, *QUICK]
    for name, records in (("mixed", mixed), ("failed", mixed[1:])):
        write_run(tmp_path / name, records, env_options={})
    assert run([*words, "--from", str(tmp_path / "mixed"), "--output_dir", str(tmp_path / "a")]) == 0
    out, err = capsys.readouterr()
    assert "3 of these episodes have a failed call or an unparsed turn (unknown_tool: 2, no_action: 1)" in err
    assert "learned from 1 episodes" in out
    assert run([*words, "--from", str(tmp_path / "failed"), "--output_dir", str(tmp_path / "b")]) == 2
    refusal = capsys.readouterr().err.splitlines()[-1]
    assert "Each of the 3 successful episodes in" in refusal and "--keep-failed-calls True" in refusal
    keep = ["--keep_failed_calls", "True"]
    assert run([*words, "--from", str(tmp_path / "failed"), "--output_dir", str(tmp_path / "c"), *keep]) == 0
    assert "learned from 3 episodes" in capsys.readouterr().out


@pytest.mark.slow
def test_a_stopped_run_is_resumed_and_not_overwritten(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*SMALL, "--model", model, "--max_steps", "4", "--per_device_train_batch_size", "2", "--save_steps", "1"]
    words += ["--lora_r", "2", "--lora_target_modules", "all-linear", "--disable_tqdm", "True"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run([*words, "--output_dir", str(whole)]) == 0

    class Hangup(StopOnSignal):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == 2:
                signal.raise_signal(signal.SIGHUP)
            super().on_step_end(args, state, control, **others)

    monkeypatch.setattr(command, "StopOnSignal", Hangup)
    with pytest.raises(SystemExit) as end:
        run([*words, "--output_dir", str(stopped)])
    monkeypatch.setattr(command, "StopOnSignal", StopOnSignal)
    assert end.value.code == 129
    assert f"Stopped with the state saved in {stopped / 'checkpoint-2'}" in capsys.readouterr().err
    assert run([*words, "--output_dir", str(stopped)]) == 2
    assert "holds checkpoints of an earlier run" in capsys.readouterr().err

    resumed = [*words, "--output_dir", str(stopped), "--resume_from_checkpoint", "True"]
    assert run([*resumed, "--learning_rate", "0.5"]) == 2
    assert "was saved with learning_rate=0.001; this run has learning_rate=0.5" in capsys.readouterr().err
    os.truncate(stopped / "checkpoint-2" / "optimizer.pt", 99)  # the one before is whole
    assert run(resumed) == 0
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (stopped / name).read_bytes() == (whole / name).read_bytes()


def test_a_run_needs_a_folder(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--model", model, *QUICK]) == 2
    assert "No output folder: pass --out" in capsys.readouterr().err


def test_processes_wait_for_the_first_one_to_play(tmp_path: Path) -> None:
    words = ["FictionQA", "--output_dir", str(tmp_path), "--use_cpu", "True", "--bf16", "False"]
    for more, seconds in (([], 14_400), (["--ddp_timeout", "60"], 60)):
        args, _ = read_config([*words, *more], DemonstrationConfig, prog="sft")
        assert args.ddp_timeout == seconds


def test_a_model_plays_in_the_revision_that_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[LocalOptions] = []
    monkeypatch.setattr(command, "play_demonstrations", lambda *_, model, **__: played.append(model))
    monkeypatch.setattr(command, "RunFolder", lambda folder: folder)
    words = ["FictionQA", "--from", "self", "--output_dir", str(tmp_path), "--use_cpu", "True", "--bf16", "False"]
    args, _ = read_config(words, DemonstrationConfig, prog="sft")
    env = make_text_env("FictionQA", {"questions": 4})
    command._play(EnvConfig(env_id="FictionQA"), env, args, ModelSource("owner/model", "v2"))
    assert [(own.model, own.revision) for own in played] == [("owner/model", "v2")]


def test_the_model_does_not_play_where_zero3_shards_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "is_deepspeed_zero3_enabled", lambda: True)
    words = ["FictionQA", "--from", "self", "--output_dir", str(tmp_path), "--use_cpu", "True", "--bf16", "False"]
    args, _ = read_config(words, DemonstrationConfig, prog="sft")
    env = make_text_env("FictionQA", {"questions": 4})
    with pytest.raises(ConfigurationError, match=r"agent-r1 eval FictionQA --split train --policy local:owner/model "):
        command._play(EnvConfig(env_id="FictionQA"), env, args, ModelSource("owner/model", "v2"))


def test_the_last_line_shows_what_was_learned_and_warns_if_that_is_little() -> None:
    def log(*accuracies: float) -> list[dict[str, float]]:
        return [{"loss": 2 * (1 - accuracy), "mean_token_accuracy": accuracy} for accuracy in accuracies]

    assert describe_learning([]) == ("", "")
    text, warning = describe_learning([*log(0.5, 0.9, 0.99, 0.99), {"train_loss": 0.3}])
    assert (text, warning) == (", loss 1 -> 0.02, token accuracy 0.500 -> 0.990", "")
    text, warning = describe_learning(log(0.896, 0.90, 0.9, 0.904))
    assert "token accuracy rose by 0.006 only" in warning and "--learning-rate" in warning
    assert "token accuracy is 0.900: one token in 10 " in describe_learning(log(0.5, 0.90, 0.9, 0.9))[1]


@pytest.mark.slow
def test_a_model_learns_from_its_own_successes(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    own = ["--from", "self", "--min_return", "-9", "--samples", "2", "--max_turn_tokens", "4", "--max_length", "4096"]
    own += ["--keep_failed_calls", "True"]  # the untrained model makes nothing else
    assert run([*SMALL, *own, "--model", model, "--output_dir", str(out), *QUICK]) == 0
    assert "demonstrations: 12 of 12 episodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "x"], "Name the environment"),
        (["FictionQA", "--from", "orcale"], "Unknown policy 'orcale'"),
        (["FictionQA", "--from", "./missing"], "no such folder"),
        (["FictionQA", "--from", "openai:gpt"], "agent-r1 eval FictionQA --split train --policy openai:gpt --out RUN"),
        (["FictionQA", "--from", "FAILED"], "None of the 3 episodes in .* nothing to learn from"),
        (["FictionQA", "--from", "FAILED", "--samples", "2"], "samples has no effect with --from"),
        (["FictionQA", "--from", "FAILED", "--shuffle_tasks", "True"], "shuffle_tasks has no effect with --from"),
        (["FictionQA", "--from", "EMPTY"], "expected a folder that"),
        (["FictionQA", "--env_kwargs", "[1]"], "env_kwargs must be a JSON object"),
        (["FictionQA", "--samples", "0"], "samples must be at least 1"),
        (["FictionQA", "--max_length", "5"], "Every row is longer than max_length=5"),
        (["FictionQA", "--modle", "x"], "'--modle' is not an option"),
        (["FictionQA", "--model", "./nowhere"], "no such folder"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    words: list[str], message: str, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = [Trajectory(task_index=index, scores={"em": 0.0}) for index in range(3)]
    places = {"FAILED": str(write_run(tmp_path / "failed", failed, env_options={})), "EMPTY": str(tmp_path)}
    words = [places.get(word, word) for word in words]
    needs_model = "--max_length" in words or "orcale" in words
    base = ["--output_dir", str(tmp_path / "out"), *QUICK, "--option", "questions=12"]
    assert run([*words, *base, *(["--model", model] if needs_model else [])]) == 2
    assert re.search(message, capsys.readouterr().err.strip().splitlines()[-1])


@pytest.mark.slow
def test_several_environments_demonstrate(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    envs = ["--env", "FictionQA questions=4 style=compact weight=2", "--env", "FrozenLakeText"]
    assert run([*envs, "--episodes", "4", "--model", model, "--output_dir", str(out), *QUICK]) == 0
    said = capsys.readouterr().out
    assert "learned from 8 episodes (12 rows)" in said  # four of the lake, and those of the questions twice
    assert {path.name for path in (out / FOLDER).iterdir()} == {"FictionQA", "FrozenLakeText"}
    card = AgentCard.load(out)
    assert card is not None and [each.name for each in card.environments] == ["FictionQA", "FrozenLakeText"]
    recorded = str(out / FOLDER / "FictionQA")
    assert run([*envs, "--from", recorded, "--model", model, "--output_dir", str(tmp_path / "x"), *QUICK]) == 2
    assert "is of one environment; name it" in capsys.readouterr().err


@pytest.mark.slow
def test_demonstrations_with_another_window_are_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledgers = ["LongRead", "--option", "style=compact", "--option", "questions=8", "--model", model, *QUICK]
    window = ["--context_window", "1", "--context_mode", "drop_turns"]
    assert run([*ledgers, *window, "--output_dir", str(tmp_path / "one")]) == 0
    said = capsys.readouterr().out
    card = AgentCard.load(tmp_path / "one")
    assert card is not None and card.env_options["context_window"] == 1
    assert f"agent-r1 eval {tmp_path / 'one'} --out" in said
    episodes = RunFolder(tmp_path / "one" / FOLDER).episodes()
    assert f"({sum(len(episode.contexts) for episode in episodes)} rows)" in said
    again = ["--from", str(tmp_path / "one" / FOLDER), "--output_dir", str(tmp_path / "two")]
    assert run([*ledgers, "--context_window", "2", *again]) == 2
    refusal = "were played with context_window=1 context_mode=drop_turns, the command line has context_window=2"
    assert refusal in capsys.readouterr().err
    assert run([*ledgers, *again]) == 0  # the window is that of the run
    card = AgentCard.load(tmp_path / "two")
    assert card is not None and card.env_options["context_mode"] == "drop_turns"


@pytest.mark.slow
def test_a_mixture_of_experts_that_was_taught_plays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TRL turns the loss of its router on in the configuration, which no cache fits."""
    tokenizer, base, out = make_tokenizer(), tmp_path / "base", tmp_path / "out"
    heads = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "num_experts": 4}
    widths = {"hidden_size": 32, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
    ids = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id, "bos_token_id": None}
    Qwen2MoeForCausalLM(Qwen2MoeConfig(vocab_size=len(tokenizer), **heads, **widths, **ids)).save_pretrained(base)
    tokenizer.save_pretrained(base)
    assert run([*SMALL, "--model", str(base), "--output_dir", str(out), *QUICK]) == 0
    assert json.loads((out / "config.json").read_text())["output_router_logits"] is False
    words = ["eval", *SMALL[:-2], "--policy", f"local:{out}", "-n", "2", "--out", str(tmp_path / "eval")]
    assert main(words) == 0
    assert len(RunFolder(tmp_path / "eval").episodes()) == 2


@pytest.mark.slow
def test_held_out_tasks_are_demonstrated_only_where_they_are_named(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with nothing but a test split serves that split by default."""
    row = {"Body": "Ann has 3 pens", "Question": "How many are 2 more?", "Equation": "( 3.0 + 2.0 )", "Answer": 5.0}
    data = tmp_path / "data"
    data.mkdir()
    (data / "test.json").write_text(json.dumps([{**row, "Body": f"Ann has 3 pens on day {n}"} for n in range(4)]))
    words = ["SVAMP", "--dataset", str(data), "--model", model, "--output_dir", str(tmp_path / "out"), *QUICK]
    assert run(words) == 2
    assert "serves the split 'test' only, which is not for training" in capsys.readouterr().err
    assert run([*words, "--option", "split=test"]) == 0
    card = AgentCard.load(tmp_path / "out")
    assert card is not None and card.settings["demonstrations"] == "of the held-out split 'test'"
    assert "the default questions of `eval` are no test" in capsys.readouterr().err
