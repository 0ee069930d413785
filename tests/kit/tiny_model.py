"""A tiny random Qwen3 model with a word-level tokenizer and a chat template, built in milliseconds."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

WORDS = (
    "system",
    "user",
    "assistant",
    "tool",
    "red",
    "green",
    "blue",
    "say",
    "call",
    "document",
    "answer",
    "yes",
    "no",
)
SPECIAL = ("<pad>", "<unk>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|> {{ message['role'] }} {{ message['content'] }} <|im_end|> {% endfor %}"
    "{% if add_generation_prompt %}<|im_start|> assistant {% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer that splits at white space and knows `SPECIAL` and `WORDS`."""
    vocabulary = {word: index for index, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
    )


def make_model(
    tokenizer: PreTrainedTokenizerFast | None = None,
    *,
    seed: int = 0,
    width: int = 32,
    layers: int = 2,
    tied: bool = True,
) -> Qwen3ForCausalLM:
    """Returns a random Qwen3 model for a tokenizer (`make_tokenizer`); leaves the global generator as it was."""
    tokenizer = tokenizer or make_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=width // 2,
        max_position_embeddings=256,
        initializer_range=0.1,
        tie_word_embeddings=tied,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
