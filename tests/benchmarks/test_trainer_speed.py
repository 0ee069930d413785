"""The trainer's benchmark plays the same tokens on both sides and reports; its speed is not judged here."""

import dataclasses
import json
from itertools import pairwise

import pytest
import torch

from benchmarks.speed import pretrained as pretrained_claims
from benchmarks.speed import trainer_speed
from benchmarks.speed.env_systems import WrongEpisodeError
from benchmarks.speed.trainer_script import (
    COMPACT,
    CUDA,
    FULL,
    REALISTIC,
    TARGETS,
    Lengths,
    Settings,
    force,
    make_model,
    write_script,
)
from benchmarks.speed.trainer_systems import Agent, EnvironmentFactory, exact_match
from tests.kit.models import ScriptedSession
from trainers.rollouts.request_engine import SamplingOptions
from trainers.rollouts.slot_engine import SlotEngine

SHORT = Lengths("short", question=3, thought=2, query=2, passage=4)
SLOW = dataclasses.replace(SHORT, name="short, slow tool", search_seconds=0.01)
TINY = Settings(rounds=1, lengths=(SHORT,), turns=2, prompts=2, num_generations=2, slow=SLOW)
UNEVEN = dataclasses.replace(SHORT, name="uneven", thought=6, spread=0.5)
MINUSCULE = dataclasses.replace(TINY, model="qwen2.5-minuscule")


@pytest.mark.slow
@pytest.mark.parametrize("settings", [TINY, MINUSCULE], ids=lambda settings: settings.model)
@pytest.mark.parametrize("claim", trainer_speed.CLAIMS)
def test_every_claim_measures_and_reports(claim, settings, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(trainer_speed, "QUICK", settings)
    path = tmp_path / "rows.jsonl"
    trainer_speed.main(["--quick", "--claim", claim, "--out", str(path)])
    row = json.loads(path.read_text(encoding="utf-8"))
    assert row["claim"] == claim
    assert row["command"].startswith(f"python -m benchmarks.speed.trainer_speed --quick --claim {claim}")
    assert row["settings"]["model"] == settings.model
    assert all(check["value"] > 0 for check in row["checks"])
    assert {"torch", "transformers", "trl"} <= set(row["versions"])
    assert "short" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [SHORT, UNEVEN], ids=lambda lengths: lengths.name)
@pytest.mark.parametrize("system", [Agent, EnvironmentFactory])
def test_what_is_played_is_the_script_to_the_token(system, lengths, tmp_path):
    script = write_script(TINY, lengths, turns=3)
    assert len({episode.prompt_ids for episode in script.episodes}) == TINY.prompts
    trainee = system(script, device="cpu", folder=str(tmp_path))
    trainee.roll_out()
    for field in script.episodes[0]._fields:
        wrong = [episode._replace(**{field: (*getattr(episode, field)[:-1], 7)}) for episode in script.episodes]
        trainee.script = dataclasses.replace(script, episodes=tuple(wrong))
        with pytest.raises(WrongEpisodeError, match="not the script's"):
            trainee.roll_out()


def test_uneven_episodes_differ_in_the_length_of_every_turn():
    settings = dataclasses.replace(TINY, prompts=4)
    script = write_script(settings, UNEVEN, turns=3)
    lengths = {len(episode.completion_ids) for episode in script.episodes}
    assert len(lengths) > 1
    assert max(lengths) == script.longest_completion
    assert script.generated == sum(sum(episode.loss_mask) for episode in script.episodes) / 4
    words = [script.tokenizer.decode(episode.completion_ids).split("</think>") for episode in script.episodes]
    thoughts = [turn.partition("<think>")[2].split() for turns in words for turn in turns[:-1]]
    assert all(3 <= len(thought) <= 9 for thought in thoughts)


@pytest.mark.slow
def test_episodes_that_cannot_be_told_apart_are_refused(monkeypatch):
    monkeypatch.setattr("benchmarks.speed.trainer_script._WORDS", ("baker", "miner", "novel", "paper", "sailor"))
    with pytest.raises(ValueError, match="can be distinguished"):
        write_script(dataclasses.replace(TINY, prompts=64), UNEVEN, turns=3)


def test_wrong_answers_are_not_paid():
    assert exact_match([[{"content": "<answer>wrong</answer>"}], [{"content": "no answer"}]]) == [0.0, 0.0]


def test_every_forced_token_costs_a_forward_pass():
    script = write_script(TINY, SHORT, turns=1)
    model = make_model("tiny", script.tokenizer, device="cpu")
    passes = []
    model.register_forward_hook(lambda *_: passes.append(1))
    handle = force(model, script)

    def play():
        session = ScriptedSession(script.episodes[0].prompt_ids, [])
        stops = (script.tokenizer.eos_token_id,)
        options = SamplingOptions(max_new_tokens=script.longest_completion, stop_token_ids=stops)
        SlotEngine(model, options, slots=1, max_length=100).run([session])
        return tuple(session.tokens[0])

    assert play() == script.episodes[0].completion_ids
    assert len(passes) == script.generated
    handle.remove()
    assert play() != script.episodes[0].completion_ids


def test_the_one_turn_baselines_generate_as_much_in_the_context_they_name():
    several, equal, without = trainer_speed.token_scripts(TINY, SHORT).values()
    assert several.generated == equal.generated == without.generated
    assert equal.longest_prompt == several.longest_prompt + several.responses
    assert without.longest_prompt == several.longest_prompt
    assert equal.responses == without.responses == 0


def test_settings_say_what_has_to_be_shown():
    assert FULL.rounds >= 5
    assert (FULL.turns, FULL.batch, FULL.lengths[0]) == (4, 64, COMPACT)
    targets = ("rollouts_several_turns", "rollouts_one_turn", "token_several_turns", "step_several_turns")
    realistic = {"step_realistic": 2.5, "update_realistic": 3.0, "rollouts_slow_tool": 3.0}
    assert dict(TARGETS) == dict(zip(targets, (2.0, 1.0, 1.15, 1.5), strict=True)) | realistic
    script = write_script(FULL, REALISTIC, turns=4)
    turns = [sum(b > a for a, b in pairwise((0, *episode.loss_mask))) for episode in script.episodes]
    assert (min(turns), max(turns)) == (1, 5)
    prompts = [len(episode.prompt_ids) for episode in script.episodes]
    assert 300 <= min(prompts) < 350 < 480 < max(prompts) <= 520
    assert CUDA.model == "qwen2.5-0.5b"


def test_the_half_billion_model_has_the_shape_of_qwen2_5():
    script = write_script(TINY, SHORT, turns=1)
    with torch.device("meta"):
        model = make_model("qwen2.5-0.5b", script.tokenizer, device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == 494_032_768
    assert model.dtype == torch.bfloat16


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A folder with a random model, whose vocabulary is larger than the script's."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("pretrained")
    config = Qwen2Config(
        vocab_size=1024, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=1024,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("claim", pretrained_claims.CLAIMS)
def test_pretrained_model_is_measured(claim, pretrained, tmp_path, monkeypatch):
    path = tmp_path / "rows.jsonl"
    faster_in_bf16 = claim != "prefixes"  # on this CPU
    monkeypatch.setattr(trainer_speed, "cpu_prefers_bf16", lambda: faster_in_bf16)
    trainer_speed.main(["--quick", "--model", str(pretrained), "--claim", claim, "--out", str(path)])
    row = json.loads(path.read_text(encoding="utf-8"))
    assert row["claim"] == claim and row["settings"]["precision"] == ("bfloat16" if faster_in_bf16 else "float32")
    assert all(figure["median"] > 0 for figure in row["figures"] if "memory" not in figure["name"])


def test_claims_that_need_another_model_are_refused(pretrained, capsys):
    for words in (
        ["--claim", "decoding"],
        ["--claim", "token", "--model", str(pretrained)],
        ["--model", "nowhere"],
        ["--precision", "float32"],
    ):
        with pytest.raises(SystemExit):
            trainer_speed.main(["--quick", *words])
    assert "without --model FOLDER" in capsys.readouterr().err
