import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from agent_r1_gym.core.parsing import HermesParser
from agent_r1_gym.core.types import ToolCall
from agent_r1_gym.envs.fiction_qa.compact_style import compact_vocabulary
from agent_r1_gym.envs.fiction_qa.dataset import fiction_dataset
from agent_r1_gym.errors import ConfigurationError
from tests.kit.samples import samples
from trainers.toy.demonstrations import demonstrations
from trainers.toy.model import BROKEN_CLOSES, CALL_CLOSE, CALL_OPEN, SIZES, build_model, build_tokenizer

TOKENIZER = build_tokenizer()
PARSER = HermesParser()


def ids_of(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def test_every_word_of_the_compact_world_is_one_token():
    assert [len(ids_of(word)) for word in compact_vocabulary()] == [1] * len(compact_vocabulary())


def test_whole_passages_and_questions_survive_and_hold_no_unknown_token():
    dataset = fiction_dataset(entities=120, questions=40, style="compact", split="ood")
    texts = [f"{passage.title} : {passage.text}" for passage in dataset.passages()] + [q.prompt for q in dataset]
    for text in texts:
        ids = ids_of(text)
        assert TOKENIZER.decode(ids) == text
        assert len(ids) == len(text.split())
        assert TOKENIZER.unk_token_id not in ids


def test_sampled_call_tokens_decode_to_what_the_parser_formats():
    pieces = [CALL_OPEN, "folu", "pitron", CALL_CLOSE]
    ids = [token for piece in pieces for token in ids_of(piece)]
    assert len(ids) == 4
    call = ToolCall("search", {"query": "folu pitron"})
    assert TOKENIZER.decode(ids) == PARSER.format_call(call)
    assert PARSER.parse(TOKENIZER.decode(ids)).calls == (call,)


@pytest.mark.parametrize(("close", "code"), list(zip(BROKEN_CLOSES, ("bad_json", "unclosed_tag"), strict=True)))
def test_broken_calls_do_not_parse(close, code):
    text = f"<think>industry of folu pitron</think>{CALL_OPEN}folu pitron{close}"
    assert TOKENIZER.decode(ids_of(text)) == text
    parsed = PARSER.parse(text)
    assert [error.code for error in parsed.errors] == [code] and not parsed.calls


WORD = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='<"'), min_size=1, max_size=8)


@given(st.lists(WORD, min_size=1, max_size=6))
@settings(max_examples=200, deadline=None)
def test_other_ascii_words_survive(words):
    text = " ".join(words)
    assert TOKENIZER.decode(ids_of(text)) == text


def test_foreign_letters_become_unknown():
    assert ids_of("ana ü")[-1] == TOKENIZER.unk_token_id


def test_template_extends_the_shorter_history_and_marks_what_the_model_says():
    for messages in itertools.islice(demonstrations(seed=3), 30):
        chat = [message.to_dict() for message in messages]
        whole = TOKENIZER.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
        for length in range(1, len(chat)):
            open_turn = chat[length]["role"] == "assistant"
            shorter = TOKENIZER.apply_chat_template(chat[:length], add_generation_prompt=open_turn)["input_ids"]
            assert whole["input_ids"][: len(shorter)] == shorter
        spoken = [token for token, own in zip(whole["input_ids"], whole["assistant_masks"], strict=True) if own]
        said = [message.content + TOKENIZER.eos_token for message in messages if message.role == "assistant"]
        assert TOKENIZER.decode(spoken, skip_special_tokens=False) == "".join(said)


def test_all_roles_are_rendered():
    chat = [{"role": role, "content": "yes"} for role in ("system", "user", "assistant", "tool")]
    text = TOKENIZER.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "".join(f"<|im_start|>{m['role']}\nyes<|im_end|>" for m in chat) + "<|im_start|>assistant\n"


@samples(("size", "millions"), [("0.4M", 0.4), ("0.5M", 0.5), ("1.5M", 1.5), ("5M", 5.0), ("92M", 92.0)])
@pytest.mark.slow
def test_sizes_are_what_their_names_say(size, millions):
    assert set(SIZES) == {"0.4M", "0.5M", "1.5M", "5M", "92M"}
    assert build_model(TOKENIZER, size=size).num_parameters() == pytest.approx(millions * 1e6, rel=0.1)


def test_unknown_size_is_refused_with_the_known_ones():
    with pytest.raises(ConfigurationError, match=r"7B.*0\.4M"):
        build_model(TOKENIZER, size="7B")


def test_seed_decides_the_weights_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = (build_model(TOKENIZER, seed=seed).model.embed_tokens.weight for seed in (1, 1, 2))
    assert torch.rand(1) == expected
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_saved_model_and_tokenizer_load_as_any_other(tmp_path):
    model = build_model(TOKENIZER)
    model.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    text = f"<think>later 1809 or 1804 : #1</think>{CALL_OPEN}nana jovic{CALL_CLOSE}"
    assert tokenizer(text)["input_ids"] == ids_of(text) and tokenizer.decode(ids_of(text)) == text
    assert tokenizer.chat_template == TOKENIZER.chat_template
    assert (tokenizer.eos_token, tokenizer.pad_token) == (TOKENIZER.eos_token, TOKENIZER.pad_token)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([ids_of(text)])
    with torch.inference_mode():
        assert torch.equal(loaded(ids).logits, model(ids).logits)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"] and config["tie_word_embeddings"] is True
