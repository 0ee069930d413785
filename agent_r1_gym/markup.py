"""What a model, a chat template or this suite takes for structure, and how foreign text is kept from forging it."""

from __future__ import annotations

import re
from collections.abc import Iterable

# Single-word tags with a meaning to some model family or to a parser of this suite. Ordinary HTML stays as it is.
_TAG_NAMES = (
    "answer|tool_calls?|tool_responses?|tools|search|information|think|thinking|results?|observation|function_calls?|"
    "function_results|function|parameter|invoke|arg_key|arg_value|start_of_turn|end_of_turn|start_of_image|"
    "end_of_image|bos|eos|pad|unk|mask|sep|cls|s|im_start|im_end|begin_of_text|end_of_text|endoftext|assistant|user|"
    "system|tool|developer"
)
_TAG = re.compile(
    r"<(?=/?(?:" + _TAG_NAMES + r")\b[^<>\n]{0,64}>)"  # <answer>, </tool_call>, <function=search>
    r"|<(?=[|｜])"  # <|im_end|>, <｜User｜>
    r"|<(?=<\s*/?\s*SYS\s*>>)",  # <<SYS>> of Llama 2
    re.IGNORECASE,
)
_BRACKET = re.compile(
    r"\[(?=/?(?:INST|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|SYSTEM_PROMPT|TOOL_CONTENT|ARGS|CALL_ID|IMG|THINK)\])"
    r"|(?m:^)\[(?=(?:system|user|assistant|tool)\b[^\]\n]{0,80}\])"  # the turn headers of this suite's own rendering
)
_HEADER = re.compile(r"(?m:^)\[(?=(?:system|user|assistant|tool)\b[^\]\n]{0,80}\])")
_UNENCODABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\ufffd"


def neutralise(text: str, extra: Iterable[str] = ()) -> str:
    """Returns `text` with everything that could pass for structure made harmless, still readable.

    The opening bracket of chat markup (`<|im_end|>`), of tags that parsers or chat templates know (`<answer>`,
    `<tool_call>`), and of this suite's own turn headers (`[assistant]` at the start of a line) becomes a look-alike
    (`‹`, `⟦`); NUL and lone surrogates become U+FFFD. Linear in the length of `text`.

    Args:
        text: foreign text: a document, the output of a program, an error message that quotes the model.
        extra: further literal strings to break, for instance `tokenizer.all_special_tokens`.
    """
    text = encodable(text)
    if "<" in text:
        text = _TAG.sub("‹", text)
    if "[" in text:
        text = _BRACKET.sub("⟦", text)
    for literal in extra:
        if literal in text:
            text = text.replace(literal, f"{literal[0]}\u200b{literal[1:]}" if len(literal) > 1 else REPLACEMENT)
    return text


def neutralise_headers(text: str) -> str:
    """Returns `text` with turn headers broken, all else unchanged: for a model's own text inside a rendered history."""
    return _HEADER.sub("⟦", text) if "[" in text else text


def encodable(text: str) -> str:
    """Returns `text` with NUL and lone surrogates replaced by U+FFFD, so that any encoder and store takes it."""
    if text.isascii() and "\x00" not in text:
        return text
    return _UNENCODABLE.sub(REPLACEMENT, text)
