"""Local models in evaluation: methods, limits, seeds, adapters, and the same answers as behind a real server."""

import contextlib
import functools
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
import torch
from tokenizers import AddedToken

from agent_r1_gym.cli.main import main
from agent_r1_gym.core.types import Message
from agent_r1_gym.envs.fiction_qa.env import FictionQAEnv
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.agents import weights_fingerprint
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.player import Player, evaluation_jobs
from agent_r1_gym.run.policies import make_prompt_method
from agent_r1_gym.run.record import Trajectory
from tests.kit.samples import samples
from trainers.rollouts import local_model
from trainers.rollouts.chat_template import trl_templates
from trainers.rollouts.local_model import LocalOptions, load_model, open_model, wrap_model
from trainers.toy.model import build_model, build_tokenizer

TOKENIZER = build_tokenizer()
WORLD = {"style": "compact", "entities": 120, "questions": 12, "max_turns": 3}
COMMAND = ["eval", "FictionQA", *(f"--option={name}={value}" for name, value in WORLD.items()), "--policy"]
JOBS = evaluation_jobs(range(6), samples=2)


def play(method="tools", *, max_concurrent=4, temperature=1.0, jobs=JOBS, max_length=None, env=None, on_end=None):
    sampling = {"temperature": temperature, "max_new_tokens": 8}
    local = wrap_model(
        build_model(TOKENIZER), TOKENIZER, sampling=sampling, max_length=max_length, slots=max_concurrent
    )
    make_env = env or functools.partial(FictionQAEnv, **WORLD)
    player = Player(make_env, method=make_prompt_method(method), chat=local.chat, limits=local.limits)
    records = {}
    player.play(jobs, local.engine, on_end or (lambda r: records.update({(r.task_index, r.sample): r})))
    return records


def actions(played):
    return {job: [turn.action for turn in trajectory.turns] for job, trajectory in played.items()}


@pytest.mark.slow
def test_samples_depend_on_the_episodes_seed_alone():
    """Not on how many are decoded side by side, not on which others are left to do, not on their order."""
    whole = actions(play())
    assert len(whole) == 12
    assert whole == actions(play(max_concurrent=1)) == actions(play(jobs=JOBS[::-1], max_concurrent=12))
    rest = actions(play(jobs=JOBS[5:8]))
    assert rest == {job.key: whole[job.key] for job in JOBS[5:8]}
    assert whole[0, 0] != whole[0, 1]
    assert whole != actions(play(jobs=evaluation_jobs(range(6), samples=2, seed=1)))


def test_tokens_are_counted_as_shown_and_written():
    trajectory = play(temperature=0.0, jobs=JOBS[:1])[0, 0]
    first, second = trajectory.turns[:2]
    assert first.completion_tokens <= 8
    assert second.prompt_tokens > first.prompt_tokens + first.completion_tokens
    assert trajectory.truncated and trajectory.end_reason == "max_turns"


def test_an_episode_that_fills_the_context_is_truncated():
    trajectory = play(temperature=0.0, jobs=JOBS[:1], max_length=30)[0, 0]
    assert trajectory.truncated and trajectory.end_reason == "max_tokens"
    assert trajectory.infrastructure_error is None


@pytest.mark.parametrize(("method", "calls", "roles"), [("direct", 0, []), ("naive-rag", 1, ["assistant", "tool"])])
def test_baselines_speak_once(method, calls, roles):
    for trajectory in play(method, jobs=JOBS[:4]).values():
        assert sum(len(turn.call_errors) for turn in trajectory.turns) == calls
        assert [message.role for message in trajectory.messages[1:-1]][: len(roles)] == roles
        assert trajectory.terminated is (trajectory.answer is not None)
        assert sum(turn.completion_tokens is not None for turn in trajectory.turns) == 1


def test_an_error_in_an_episode_reaches_the_caller():
    class Broken(FictionQAEnv):
        def is_terminated(self, transition):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        play(env=functools.partial(Broken, **WORLD))


@pytest.mark.slow
def test_what_takes_the_records_can_give_up():
    """The engine ends with what was raised, and can be used again."""
    taken = []

    def take(record):
        taken.append(record)
        if len(taken) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        play(on_end=take)
    assert len(taken) == 3
    assert len(play(jobs=JOBS[:2])) == 2


class TestCommand:
    @pytest.mark.slow
    def test_greedy_twice_and_on_two_processes(self, model_folder, tmp_path):
        files = []
        for name, words in {"a": [], "b": ["--max-concurrent", "3"], "c": ["--processes", "2"]}.items():
            out = tmp_path / name
            assert main([*COMMAND, f"local:{model_folder}", "--max-turn-tokens", "8", "--out", str(out), *words]) == 0
            files.append((out / "episodes.jsonl").read_bytes())
        assert files[0] == files[1] == files[2]
        settings = RunFolder(tmp_path / "a").load()["settings"]
        assert settings["model"]["weights_fingerprint"] == weights_fingerprint(model_folder)

    def test_other_weights_at_the_same_place_are_refused(self, tmp_path, capsys):
        folder, out = tmp_path / "model", tmp_path / "run"
        for seed, status in ((0, 0), (1, 2)):
            build_model(TOKENIZER, seed=seed).save_pretrained(folder)
            TOKENIZER.save_pretrained(folder)
            assert main([*COMMAND, f"local:{folder}", "-n", "2", "--max-turn-tokens", "4", "--out", str(out)]) == status
        assert "weights_fingerprint" in capsys.readouterr().err

    @pytest.mark.parametrize("words", [["--device", "foo"], ["--dtype", "float33"]])
    def test_a_wrong_option_is_refused_before_anything_is_written(self, words, model_folder, tmp_path, capsys):
        assert main([*COMMAND, f"local:{model_folder}", *words, "--out", str(tmp_path / "run")]) == 2
        assert repr(words[1]) in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    def test_no_model_there(self, tmp_path, capsys):
        assert main([*COMMAND, f"local:{tmp_path / 'absent'}", "--out", str(tmp_path / "run")]) == 2
        assert f"--policy local:{tmp_path / 'absent'}: no such folder" in capsys.readouterr().err


def test_a_lora_adapter_brings_its_base_model(model_folder, tmp_path):
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    base, _ = load_model(LocalOptions(model=str(model_folder), device="cpu"))
    adapted = get_peft_model(base, config)
    adapted.save_pretrained(tmp_path)
    ids = torch.tensor([[5, 9, 40]])
    expected = adapted(ids).logits
    model, tokenizer = load_model(LocalOptions(model=str(tmp_path), device="cpu"))
    assert torch.allclose(model(ids).logits, expected, atol=1e-5)
    plain, _ = load_model(LocalOptions(model=str(model_folder), device="cpu"))
    assert not torch.allclose(plain(ids).logits, expected, atol=1e-3)
    assert tokenizer.get_vocab() == TOKENIZER.get_vocab()


def test_a_stock_model_is_played_as_it_would_be_trained(tmp_path):
    tokenizer = build_tokenizer()
    tokenizer.chat_template = trl_templates()["qwen3.jinja"]
    tokenizer.add_tokens([AddedToken("]~b]", special=True)], special_tokens=False)
    build_model(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    local = open_model(LocalOptions(model=str(tmp_path), device="cpu", max_turn_tokens=8), slots=2)
    assert local.chat.template.source == trl_templates()["qwen3_training.jinja"]
    assert "]~b]" in local.chat.markup
    records: list[Trajectory] = []
    player = Player(functools.partial(FictionQAEnv, **WORLD), chat=local.chat, limits=local.limits)
    player.play(JOBS[:2], local.engine, records.append)
    assert len(records) == 2


def test_another_template_may_be_named_for_an_evaluation(model_folder):
    template = {"chat_template": "qwen3_training.jinja", "chat_template_kwargs": {"enable_thinking": False}}
    local = open_model(LocalOptions(model=str(model_folder), device="cpu", **template), slots=1)
    text = TOKENIZER.decode(local.chat.prompt_ids([Message("user", "who ?")]))
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@samples("device", ["foo", "cuda:99", "meta", "cpu:-1"])
def test_a_device_that_is_not_here_is_refused(device):
    with pytest.raises(ConfigurationError, match=f"device='{device}' is not available here; there is: cpu"):
        LocalOptions(model="any", device=device)


@pytest.mark.parametrize("number", [0, 2])
def test_the_devices_that_are_here_are_named(number, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)
    gpus = ["cuda:0", "cuda:1"][:number]
    with pytest.raises(ConfigurationError, match=f"there is: {', '.join(['cpu', *gpus])}\\.$"):
        LocalOptions(model="any", device=f"cuda:{number}")
    for device in ["cpu", *gpus, *["cuda"][:number]]:
        LocalOptions(model="any", device=device)


def test_all_parts_of_a_hub_model_are_of_its_revision(monkeypatch):
    asked, tokenizer = [], build_tokenizer()

    def load(name, *, revision, **options):
        asked.append((name, revision))
        if "dtype" in options:
            raise OSError("offline")
        return tokenizer

    for auto in (local_model.AutoTokenizer, local_model.AutoModelForCausalLM):
        monkeypatch.setattr(auto, "from_pretrained", load)
    with pytest.raises(ConfigurationError, match="No model can be loaded from 'owner/model'"):
        load_model(LocalOptions(model="owner/model", revision="v2"))
    assert asked == [("owner/model", "v2")] * 2


@pytest.mark.parametrize("dtype", ["float33", "int8", "nn"])
def test_a_dtype_that_is_none_is_refused(dtype):
    with pytest.raises(
        ConfigurationError, match=f"dtype='{dtype}' is not a type of floating-point numbers.*'bfloat16'"
    ):
        LocalOptions(model="any", dtype=dtype)


@samples("dtype", [None, "auto", "float32", "bfloat16"])
def test_a_dtype_that_is_one_is_taken(dtype):
    assert LocalOptions(model="any", dtype=dtype).dtype == dtype


@contextlib.contextmanager
def transformers_serve(model):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(model), "--device", "cpu"]
    options = ["--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*command, *options], env={**os.environ, "HF_HUB_OFFLINE": "1"}, **silent)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("openai", "fastapi", "uvicorn")),
    reason="`transformers serve` needs openai, fastapi and uvicorn",
)
def test_the_same_episodes_through_a_real_server(model_folder, tmp_path):
    """`transformers serve`, greedy: the same tokens, so the same turns; special tokens are not part of its text."""
    words = ["-n", "6", "--max-turn-tokens", "6", "--option=max_turns=2"]
    assert main([*COMMAND, f"local:{model_folder}", *words, "--out", str(tmp_path / "local")]) == 0
    with transformers_serve(model_folder) as url:
        words += ["--base-url", url, "--max-concurrent", "2"]
        assert main([*COMMAND, f"openai:{model_folder}", *words, "--out", str(tmp_path / "served")]) == 0
    ours, theirs = (RunFolder(tmp_path / name).episodes() for name in ("local", "served"))
    assert [record.answer for record in ours] == [record.answer for record in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        first, second = mine.turns[0], other.turns[0]
        assert json.dumps(_plain(first.action)) == json.dumps(_plain(second.action))
        assert first.prompt_tokens == second.prompt_tokens
        assert first.completion_tokens == second.completion_tokens


def _plain(text):
    for token in TOKENIZER.all_special_tokens:
        text = text.replace(token, "")
    return text.split()


def test_a_pad_token_is_kept_and_a_missing_one_is_the_end_of_the_turn(tmp_path):
    tokenizer = build_tokenizer()
    own = tokenizer.pad_token
    build_model(tokenizer).save_pretrained(tmp_path)
    for pad in (own, None):
        tokenizer.pad_token = pad
        tokenizer.save_pretrained(tmp_path)
        loaded = load_model(LocalOptions(model=str(tmp_path)))[1]
        assert loaded.pad_token == (pad or tokenizer.eos_token) and own != tokenizer.eos_token
