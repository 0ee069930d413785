"""The toy policy, for machines without pretrained weights: Qwen3 architecture, word tokens, a real chat template.

The vocabulary is that of FictionQA's compact style. The fixed strings of the hermes format are one token each, so an
episode has about 60 tokens; any other ASCII text is spelled in characters, so every text environment can be played.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agent_r1_gym.core.types import PARSE_ERROR_CODES, ErrorKind, Role
from agent_r1_gym.envs.fiction_qa.compact_style import compact_vocabulary
from agent_r1_gym.errors import ConfigurationError, suggest

CALL_OPEN = '<tool_call>\n{"name": "search", "arguments": {"query": "'
CALL_CLOSE = '"}}\n</tool_call>'
BROKEN_CLOSES = ('"}\n</tool_call>', '"}}')
"""Ends of a call that does not parse: a brace is missing, the tag is not closed."""
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"
END_OF_TURN = "<|im_end|>"
PAD = "<|endoftext|>"
UNKNOWN = "<|unknown|>"

_HEADERS = {role: f"<|im_start|>{role}\n" for role in get_args(Role)}
_FORMAT = (CALL_OPEN, CALL_CLOSE, *BROKEN_CLOSES, THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)
_LATER = ("busy", "unknown_keys")
"""Codes without a token of their own: one more token, or another order, would change the initial weights of a seed."""
_ERROR_KINDS = get_args(ErrorKind)
_CODES = (*(code for code in PARSE_ERROR_CODES if code not in _ERROR_KINDS), *_ERROR_KINDS)
_FEEDBACK = ("error", "nothing", "found", *(code for code in _CODES if code not in _LATER))
_FIXED_ENDS = "|".join(re.escape(text.split("\n")[-1] or "\n") for text in (*_FORMAT, "\n"))
SPACE = "▁"
"""First character of a word's token."""
_CHARACTERS = (
    SPACE,
    "\n",
    *(character for character in string.printable if character.isprintable() and character != " "),
)

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}"
    "{{ '<|im_start|>assistant\\n' }}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}"
    "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class TinySize:
    """Shape of a tiny model."""

    layers: int
    width: int
    heads: int
    feed_forward: int
    init_std: float = 0.06
    """Standard deviation of the initial weights."""
    head: int = 0
    """Width of a head; 0: `width / heads`."""


SIZES: Mapping[str, TinySize] = {
    "0.4M": TinySize(layers=3, width=96, heads=4, feed_forward=256),
    "0.5M": TinySize(layers=3, width=96, heads=4, feed_forward=256, head=48),
    "1.5M": TinySize(layers=4, width=160, heads=5, feed_forward=512),
    "5M": TinySize(layers=6, width=256, heads=8, feed_forward=688),
    "92M": TinySize(layers=12, width=768, heads=12, feed_forward=2304, init_std=0.02),
}
MAX_POSITIONS = 2048


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer of the compact world, the same on every call.

    Words are one token each, and so are the fixed strings of the format and the role headers (`<|im_start|>user` and
    its line end). Word tokens hold no space: the decoder inserts one before every word that follows another, but not at
    the start of a text or after a fixed string. Texts of that form, all that compact environments and their
    policies write, survive decode(encode(text)) unchanged; other ASCII words do too.
    Non-ASCII words become `<|unknown|>`.

    The chat template renders system, user, assistant and tool turns; a longer history extends the rendering of a
    shorter one, and its `generation` blocks mark the model's own text (its end of turn included).
    """
    entries = (PAD, UNKNOWN, *_CHARACTERS, *(SPACE + word for word in (*compact_vocabulary(), *_FEEDBACK)))
    vocabulary = {entry: number for number, entry in enumerate(dict.fromkeys(entries))}
    model = models.WordPiece(
        vocab=vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=4096, continuing_subword_prefix=""
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always", split=True)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Fuse(),
            decoders.Replace(Regex(f"(?:^|(?<={_FIXED_ENDS})){SPACE}"), ""),
            decoders.Replace(SPACE, " "),
        ]
    )
    tokenizer.add_special_tokens(
        [_literal(text, special=True) for text in (PAD, UNKNOWN, END_OF_TURN, *_HEADERS.values())]
    )
    tokenizer.add_tokens([_literal(text, special=False) for text in _FORMAT])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PAD,
        unk_token=UNKNOWN,
        chat_template=_CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )


def _literal(text: str, *, special: bool) -> AddedToken:
    return AddedToken(text, normalized=False, special=special)


def build_model(tokenizer: PreTrainedTokenizerFast, *, size: str = "0.4M", seed: int = 0) -> Qwen3ForCausalLM:
    """Initialise a Qwen3 model with tied embeddings, in float32.

    Args:
        tokenizer: gives vocabulary, end and padding tokens.
        size: one of `SIZES`, named after its number of parameters.
        seed: seed of the initialisation; the global generator stays unchanged.

    Raises:
        ConfigurationError: unknown size.
    """
    if size not in SIZES:
        raise ConfigurationError(f"size={size!r} is unknown. {suggest(str(size), SIZES)}")
    shape = SIZES[size]
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.head or shape.width // shape.heads,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        initializer_range=shape.init_std,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)
