"""Preflight: the model to train, and what is rejected before the first step."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import huggingface_hub
import pytest
import torch
import trl
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM
from trl import ModelConfig, SFTConfig

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message, Task
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.run.model_folder import HUB_SECONDS
from tests.kit.chat_families import FAMILIES
from tests.kit.models import make_model, make_tokenizer
from tests.trainers.rollouts.test_chat_format import CHATML, tokenizer_with
from tests.trainers.test_train import config
from trainers.commands.train.building import build_trainer
from trainers.monitoring import preflight
from trainers.monitoring.preflight import ModelSource, merge_adapter, model_to_train
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.local_model import LocalOptions, is_adapter, load_model
from trainers.toy.model import build_model, build_tokenizer

QWEN3 = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")


class TestPackages:
    def without(self, monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
        monkeypatch.setattr(preflight, "find_spec", lambda name: None if name in missing else object())

    def test_vllm_is_not_installed(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.without(monkeypatch, "vllm")
        args = config(tmp_path, engine="vllm")
        with pytest.raises(ConfigurationError, match="engine=vllm needs vLLM, which is not installed"):
            preflight.check_packages(args, ModelConfig())

    @pytest.mark.parametrize("option", ["load_in_4bit", "load_in_8bit"])
    def test_quantisation(self, option: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        args, model_args = config(tmp_path), ModelConfig(**{option: True})
        self.without(monkeypatch, "bitsandbytes")
        with pytest.raises(ConfigurationError, match=f"{option}=True needs bitsandbytes"):
            preflight.check_packages(args, model_args)
        self.without(monkeypatch)
        with pytest.raises(ConfigurationError, match="set use_peft=True"):
            preflight.check_packages(args, model_args)
        model_args.use_peft = True
        preflight.check_packages(args, model_args)

    def test_liger_kernels(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.without(monkeypatch, "liger_kernel")
        with pytest.raises(ConfigurationError, match="use_liger_kernel=True needs liger-kernel"):
            preflight.check_packages(config(tmp_path, use_liger_kernel=True), ModelConfig())
        with pytest.raises(ConfigurationError, match="use_liger_kernel=True needs liger-kernel"):
            preflight.check_packages(
                SFTConfig(output_dir=str(tmp_path), use_liger_kernel=True, use_cpu=True, bf16=False), ModelConfig()
            )


class TestModel:
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            (None, "model_name_or_path is not set"),
            ("./missing", "no such folder"),
            ("a/b/c", "no such folder"),
        ],
    )
    def test_names_without_a_model(self, name: str | None, words: str) -> None:
        with pytest.raises(ConfigurationError, match=words):
            preflight.find_model(name)

    def test_folder_without_a_model(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="holds no model"):
            preflight.find_model(str(tmp_path))

    def test_offline(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(ConfigurationError, match="not in the hub's cache, and HF_HUB_OFFLINE is set"):
            preflight.find_model("nobody/no-such-model")

    def test_hub_that_does_not_answer_is_asked_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []

        def answer(name: str, *, revision: str, timeout: float) -> None:
            asked.append((name, revision, timeout))
            raise ConnectionError("Name or service not known")

        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub, "model_info", answer)
        with pytest.raises(ConfigurationError, match=r"does not answer \(ConnectionError: Name or service not known\)"):
            preflight.find_model("nobody/no-such-model")
        assert asked == [("nobody/no-such-model", "main", HUB_SECONDS)]

    def test_folder(self, model_folder: Path) -> None:
        assert preflight.find_model(str(model_folder)) == str(model_folder)


class TestTokenizer:
    def test_that_does_not_load(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer_config.json").write_text("not json")
        with pytest.raises(ConfigurationError, match="No tokenizer can be loaded from"):
            preflight.load_tokenizer(ModelSource(str(tmp_path)))

    def test_eos_pads_where_nothing_else_does(self, tmp_path: Path) -> None:
        tokenizer = build_tokenizer()
        tokenizer.pad_token = None
        tokenizer.save_pretrained(tmp_path)
        loaded = preflight.load_tokenizer(ModelSource(str(tmp_path)))
        assert loaded.pad_token_id == loaded.eos_token_id is not None

    def load_chat(self, tokenizer: Any, folder: Path, **settings: Any) -> ChatFormat:
        tokenizer.save_pretrained(folder / "model")
        source = ModelSource(str(folder / "model"))
        return preflight.load_chat(source, preflight.load_tokenizer(source), config(folder / "run", **settings))

    def test_template_that_rewrites_is_replaced_where_trl_knows_a_better_one(self, tmp_path: Path) -> None:
        chat = self.load_chat(tokenizer_with(QWEN3), tmp_path)
        assert chat.template.source == chat.tokenizer.chat_template != QWEN3

    def test_template_of_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "mine.jinja").write_text(CHATML)
        chat = self.load_chat(tokenizer_with(QWEN3), tmp_path, chat_template=str(tmp_path / "mine.jinja"))
        assert chat.template.source == chat.tokenizer.chat_template == CHATML

    def test_a_resumed_run_has_the_date_in_its_prompts_that_it_began_with(self, tmp_path: Path) -> None:
        tokenizer = FAMILIES["TRL llama3_2.jinja"].tokenizer(tmp_path / "model")
        checkpoint = tmp_path / "run" / "checkpoint-1"
        checkpoint.mkdir(parents=True)
        args, source = config(tmp_path / "run"), ModelSource(str(tmp_path / "model"))
        for saved, shown in ((False, False), (True, True)):  # one of sharded weights may have no chat format
            if saved:
                ChatFormat(tokenizer, date="2026-01-31").save(checkpoint)
            chat = preflight.load_chat(source, tokenizer, args, checkpoint=str(checkpoint))
            assert ("Today Date: 31 Jan 2026" in chat.template.text([Message("user", "a")])) is shown


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 24, "n_head": 2, "n_layer": 1}


class TestWeights:
    def test_whole_model(self, model_folder: Path) -> None:
        preflight.check_model(ModelSource(str(model_folder)), build_tokenizer())

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (partial(change, vocab_size=100), r"embeds 100 tokens, but its tokenizer has ids up to \d+"),
            (
                partial(change, model_type="bert", architectures=["BertModel"]),
                "is a BertModel, which does not generate text",
            ),
            (
                partial(change, **GPT2),
                r"is a GPT2LMHeadModel, whose positions are learned \(transformer\.wpe\).* rotary positions",
            ),
            (partial(change, model_type="nosuch"), "No configuration can be loaded from"),
        ],
    )
    def test_model_that_cannot_be_trained(
        self, damage: Callable[[Path], None], words: str, model_folder: Path, tmp_path: Path
    ) -> None:
        folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
        damage(folder)
        with pytest.raises(ConfigurationError, match=words):
            preflight.check_model(ModelSource(str(folder)), build_tokenizer())


def test_learned_positions_of_pictures_are_none_of_the_texts() -> None:
    pictures = AutoConfig.for_model("gemma3", text_config={"num_hidden_layers": 1}, vision_config={})
    preflight._check_positions(pictures, "model_name_or_path='gemma'")


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_output_folder_that_cannot_be_made(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"output_dir=.* cannot be written to"):
        preflight.check_output(str(tmp_path / name))


class TestAdapter:
    def check(self, targets: Any, folder: Path, **options: Any) -> None:
        preflight.check_adapter(LoraConfig(target_modules=targets, **options), ModelSource(str(folder)))

    @pytest.mark.parametrize(
        "targets", ["all-linear", ["q_proj", "v_proj"], ["model.layers.0.mlp.up_proj"], ".*q_proj", None]
    )
    def test_targets_that_exist(self, targets: Any, model_folder: Path) -> None:
        self.check(targets, model_folder)

    def test_single_name_is_a_list_of_one(self, model_folder: Path) -> None:
        """PEFT would match it with whole paths, of which it is none."""
        settings = LoraConfig(target_modules="q_proj")
        preflight.check_adapter(settings, ModelSource(str(model_folder)))
        assert settings.target_modules == {"q_proj"}

    @pytest.mark.parametrize(
        ("targets", "options", "words"),
        [
            (["q_pro", "v_proj"], {}, r"no module 'q_pro'\. Did you mean 'q_proj'.*'up_proj'.*all-linear"),
            ("qkv_proj", {}, r"no module 'qkv_proj'\. Did you mean .*'[qkv]_proj'.*'[qkv]_proj'.*'[qkv]_proj'"),
            (["q_proj", "lm_head"], {}, r"output layer 'lm_head' takes no adapter.*lora_modules_to_save=lm_head"),
            (".*(q_proj|lm_head)", {}, "output layer 'lm_head' takes no adapter"),
            (".*qkv_proj", {}, r"no module '\.\*qkv_proj'\. Did you mean .*'[qkv]_proj' or"),
            ("*", {}, r"no module '\*'"),
            ("all-linear", {"modules_to_save": ["head"]}, "lora_modules_to_save: .* no module 'head'"),
            ("all-linear", {"r": 0}, "lora_r must be at least 1, got 0"),
        ],
    )
    def test_options_that_do_not(self, targets: Any, options: dict[str, Any], words: str, model_folder: Path) -> None:
        with pytest.raises(ConfigurationError, match=words):
            self.check(targets, model_folder, **options)

    def test_architecture_without_default_targets(self, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(preflight, "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING", {})
        with pytest.raises(ConfigurationError, match=r"no default is known for qwen\w+\. Name some, or use all-linear"):
            self.check(None, model_folder)
        self.check("all-linear", model_folder)


class TestWriting:
    """A tokenizer that cannot write the environment's format teaches nothing, however long one trains."""

    def chat(self, read: Callable[[str], str]) -> Any:
        return SimpleNamespace(roundtrip=read)

    def test_format_that_is_lost(self, caplog: pytest.LogCaptureFixture) -> None:
        env = make_text_env("AgentR1/Arithmetic-v0", {})
        split = self.chat(lambda text: re.sub(r"([<>/_{}])", r" \1 ", text.lower()))  # as WordPiece does
        preflight.warn_if_tokenizer_breaks_format(env, split)
        assert "cannot write the format 'hermes'" in caplog.text
        assert "becomes ' < answer > " in caplog.text

    def test_words_that_change_are_told(self, caplog: pytest.LogCaptureFixture) -> None:
        env = ToolEnv(tasks=[Task("0", "Where?", ("Paris",))])
        preflight.warn_if_tokenizer_breaks_format(env, self.chat(str.lower))
        assert "The tokenizer changes what is written: '<answer>Paris</answer>' becomes" in caplog.text

    def test_spaces_around_a_turn_do_not_matter(self, caplog: pytest.LogCaptureFixture) -> None:
        preflight.warn_if_tokenizer_breaks_format(
            make_text_env("AgentR1/Arithmetic-v0", {}), self.chat(lambda text: f" {text} ")
        )
        assert not caplog.text

    def test_environments_without_a_format(self) -> None:
        preflight.warn_if_tokenizer_breaks_format(gymnasium.Env(), self.chat(lambda text: ""))


class TestPrompts:
    def test_longer_than_their_budget(self, tmp_path: Path) -> None:
        tokenizer = build_tokenizer()
        with pytest.raises(ConfigurationError, match=r"max_prompt_length=8, .* raise it to at least 64"):
            build_trainer(config(tmp_path, max_prompt_length=8), build_model(tokenizer), tokenizer=tokenizer)

    def test_rows_are_spread_over_the_data_set(self) -> None:
        tried: list[int] = []

        class Seeds(gymnasium.Env[str, str]):
            def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
                assert seed is not None
                tried.append(seed)
                return "x" * seed, {}

        chat = SimpleNamespace(prompt_ids=lambda messages: [1] * len(messages[-1].content))
        rows = [{"seed": seed} for seed in range(1000)]
        preflight.check_prompts(Seeds(), rows, chat, longest=1000)
        assert tried[:3] == [0, 3, 6]
        assert max(tried) >= 997
        with pytest.raises(ConfigurationError, match=r"of 334 sampled prompts the longest has 999 tokens"):
            preflight.check_prompts(Seeds(), rows, chat, longest=998)


IDS = torch.tensor([[4, 5, 6, 7, 8]])


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A folder with an adapter whose weights are not zero, and the chat format beside its base model."""
    tokenizer = make_tokenizer()
    make_model(tokenizer).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    ChatFormat(tokenizer).save(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    torch.manual_seed(0)
    model = get_peft_model(base, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_the_merged_model_says_what_the_adapter_said(adapter: Path, tmp_path: Path) -> None:
    assert is_adapter(adapter)
    merge_adapter(adapter, tmp_path / "merged")
    assert not is_adapter(tmp_path / "merged")
    before, _ = load_model(LocalOptions(model=str(adapter)))
    after, tokenizer = load_model(LocalOptions(model=str(tmp_path / "merged")))
    base, _ = load_model(LocalOptions(model=str(tmp_path / "base")))
    assert torch.allclose(before(IDS).logits, after(IDS).logits, atol=1e-4)
    assert not torch.allclose(base(IDS).logits, after(IDS).logits, atol=1e-2)
    assert ChatFormat.load(tmp_path / "merged", tokenizer).stop_ids == ChatFormat(make_tokenizer()).stop_ids
    assert (tmp_path / "merged" / "chat_format.json").is_file()


def test_without_its_base_model_an_adapter_cannot_be_merged(adapter: Path, tmp_path: Path) -> None:
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(ConfigurationError, match="cannot be merged into"):
        merge_adapter(adapter, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_training_goes_on_from_a_warm_start(adapter: Path, tmp_path: Path) -> None:
    assert model_to_train(str(tmp_path / "base"), None) == str(tmp_path / "base")
    assert model_to_train(str(adapter), None) == str(adapter / "merged")
    written = (adapter / "merged" / "config.json").stat().st_mtime_ns
    assert model_to_train(str(adapter), None) == str(adapter / "merged")
    assert (adapter / "merged" / "config.json").stat().st_mtime_ns == written
    assert model_to_train(None, "model") == "model"


def test_an_adapter_that_was_trained_anew_is_merged_anew(adapter: Path) -> None:
    name = str(model_to_train(str(adapter), None))
    before = load_model(LocalOptions(model=name))[0](IDS).logits
    base = AutoModelForCausalLM.from_pretrained(adapter.parent / "base")
    torch.manual_seed(1)
    get_peft_model(base, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)).save_pretrained(adapter)
    assert model_to_train(str(adapter), None) == name
    assert not torch.allclose(load_model(LocalOptions(model=name))[0](IDS).logits, before, atol=1e-2)


def test_a_warm_start_takes_the_place_of_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not both"):
        model_to_train(str(tmp_path), "model")
    with pytest.raises(ConfigurationError, match="no such folder"):
        model_to_train(str(tmp_path / "missing"), None)


class TestBudgets:
    def check(self, tmp_path: Path, *, prompt: int = 100, positions: int | None = 8192, **settings: Any) -> None:
        env = make_text_env("AgentR1/Arithmetic-v0", {})
        tokenizer = tokenizer_with(CHATML)
        preflight.check_budgets(
            env, ChatFormat(tokenizer), config(tmp_path, **settings), prompt=prompt, positions=positions
        )

    def test_that_fit(self, tmp_path: Path) -> None:
        self.check(tmp_path, max_completion_length=512)
        self.check(tmp_path, max_completion_length=512, positions=None)
        self.check(tmp_path, max_completion_length=1024, positions=1024)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            (
                {"max_completion_length": 5},
                r"max_completion_length=5: no call fits, since the first turn of the oracle",
            ),
            ({"max_completion_length": 100_000}, "the model has a context of 8192 tokens, of which the longest prompt"),
            ({"prompt": 8190}, r"a context of 8192 tokens, but the longest prompt takes 8190 .* fewer worked examples"),
        ],
    )
    def test_that_do_not(self, settings: dict[str, Any], words: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match=words):
            self.check(tmp_path, **{"max_completion_length": 512, **settings})

    def test_short_turns_are_reported(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.check(tmp_path, max_completion_length=512, max_turn_tokens=2)
        assert "max_turn_tokens=2: no call fits" in caplog.text
