"""Text of an environment: sanitizing foreign text, rendering the history, formatting feedback.

Where the tokenizer is known (training, evaluation of local models), its special tokens are broken literally:
environments take them as `markup=`. Behind an endpoint there is no tokenizer, and only the patterns below protect.
They cover the published markup of model families in its usual spelling. They do not cover special tokens that look
like words or ordinary HTML (`<title>`), future families, or a tokenizer that reads a look-alike as markup: for such a
model, pass its special tokens as `markup=`. And prompt injection needs no markup at all.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from agent_r1_gym.core.types import Message, ParseError, Role, ToolCall, ToolOutcome
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.terminal import printable

# Single-word tags that some model family or a parser of this suite knows. Ordinary HTML stays as it is.
_TAG_NAMES = (
    "answer|tool_calls?|tool_responses?|tools|search|information|think|thinking|results?|observation|function_calls?|"
    "function_results|function|parameter|invoke|arg_key|arg_value|start_of_turn|end_of_turn|start_of_image|"
    "end_of_image|image_soft_token|start_function_call|end_function_call|escape|bos|eos|pad|unk|mask|sep|cls|s|sop|eop|"
    r"im_start|im_end|begin_of_text|end_of_text|endoftext|unused\d+|extra_id_\d+|special_\d+|reserved_\d+|\w+_token|"
    r"toolcall|assistant|user|system|tool|developer|(?:seed|minimax):\w+|role|(?:begin|beginning|end)_of_sentence|"
    r"scratch_?pad|tool_results?|thought|available_tools|fim_\w+|file_sep|repo_?name|gh_stars|issue_\w+|jupyter_\w+|"
    r"commit_(?:before|msg|after)|empty_output|img_context|box|mm:think|reasoning"
)
_TAG = re.compile(
    r"<(?=/?(?:" + _TAG_NAMES + r")\b[^<>\n]{0,64}>)"  # <answer>, </tool_call>, <function=search>
    r"|<(?=/?[|｜])"  # <|im_end|>, <｜User｜>, </｜DSML｜invoke>
    r"|<(?=\w{1,32}\|>)"  # <turn|> of Gemma 4
    r"|<(?=<\s*/?\s*SYS\s*>>)"  # <<SYS>> of Llama 2
    r"|<(?=\[\w{1,32}▁[\w▁]{1,32}\]>)",  # <[begin▁of▁sentence]>
    re.IGNORECASE,
)
# A turn header as `render_message` writes it, at the start of whatever any line splitter considers a line.
_HEADER_PATTERN = r"(?:^|(?<=[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]))\[(?=(?:system|user|assistant|tool)(?:\]|: ))"
_HEADER = re.compile(_HEADER_PATTERN)
_BRACKET = re.compile(
    r"\[(?=/?(?:INST|TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|SYSTEM_PROMPT|TOOL_CONTENT|ARGS|CALL_ID|THINK|IMG|IMG_BREAK|"
    r"IMG_END|AUDIO|BEGIN_AUDIO|PREFIX|MIDDLE|SUFFIX|BOS|EOS|PAD|UNK|CLS|SEP|[gs]?MASK|MODEL_SETTINGS|EOT|multimodal|"
    r"(?:BEGIN|END) FINAL RESPONSE)\]|\||e~\[)"  # [INST], [|assistant|], [e~[ of MiniMax-M2
    rf"|{_HEADER_PATTERN}"
)
_BEGIN = re.compile(r"\](?=~!?b[\[\]])")  # ]~b] and ]~!b[ of MiniMax-M2
_KIMI = re.compile("◁(?=/?think▷)")
_WORD = re.compile(r">(?=>[A-Z]{4,16}<<)")  # >>QUESTION<< of Falcon
_UNENCODABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\ufffd"


def sanitize(text: str, extra: Iterable[str] = ()) -> str:
    """Make foreign text harmless: break everything that could pass for structure, and keep it readable.

    The opening bracket of chat markup (`<|im_end|>`), of tags that parsers or chat templates know (`<answer>`,
    `<tool_call>`), and of this suite's own turn headers (`[assistant]` at the start of a line) becomes a look-alike
    (`‹`, `⟦`, `⟧`, `›`); NUL and lone surrogates become U+FFFD. Linear in the length of `text`.

    Args:
        text: foreign text: a document, the output of a program, an error message that quotes the model.
        extra: further literal strings to break, for instance the special tokens of a tokenizer.
    """
    text = encodable(text)
    # Tests of single characters first: ten times as fast as of two, and most text has none of them.
    if "<" in text:
        text = _TAG.sub("‹", text)
    if "[" in text:
        text = _BRACKET.sub("⟦", text)
    if "~" in text:
        text = _BEGIN.sub("⟧", text)
    if "◁" in text:
        text = _KIMI.sub("‹", text)
    if ">" in text:
        text = _WORD.sub("›", text)
    for literal in extra:
        if literal in text:
            # With a look-ahead, so that overlapping copies break too.
            rest = f"(?={re.escape(literal[1:])})" if len(literal) > 1 else ""
            text = re.sub(re.escape(literal[0]) + rest, f"{literal[0]}\u200b" if rest else REPLACEMENT, text)
    return text


def special_tokens(tokenizer: Any) -> tuple[str, ...]:
    """List a transformers tokenizer's special tokens as strings, for `markup=`."""
    # `all_special_tokens` lists only named ones; a tokenizer has more.
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return tuple(sorted(added | set(tokenizer.all_special_tokens)))


def sanitize_headers(text: str) -> str:
    """Break turn headers only: for the model's own text inside a rendered history."""
    return _HEADER.sub("⟦", text) if "[" in text else text


def encodable(text: str) -> str:
    """Replace NUL and lone surrogates by U+FFFD, so that any encoder and database accepts the text."""
    if text.isascii() and "\x00" not in text:
        return text
    return _UNENCODABLE.sub(REPLACEMENT, text)


_COLOURS: dict[Role, str] = {"system": "90", "user": "36", "assistant": "33", "tool": "32"}


def render_message(message: Message) -> str:
    """Render one turn: a header line `[role]` (`[tool: name]` for tools), the content, an empty line.

    Structured calls follow the content, one line each. Headers inside the content are broken, so that a
    rendered history can be split into its turns unambiguously.
    """
    header = f"[{message.role}: {message.name}]" if message.name else f"[{message.role}]"
    content = message.content
    if message.tool_calls:
        calls = "\n".join(f"(calls {call.name} {dict(call.arguments)})" for call in message.tool_calls)
        content = f"{content}\n{calls}" if content else calls
    return f"{header}\n{sanitize_headers(content)}\n\n"


def render_text(messages: Iterable[Message]) -> str:
    """Render a whole history; the observation of every environment in this suite."""
    return "".join(map(render_message, messages))


def render_ansi(messages: Iterable[Message]) -> str:
    """Render a whole history with one terminal colour per role."""
    return "".join(f"\x1b[{_COLOURS[message.role]}m{printable(render_message(message))}\x1b[0m" for message in messages)


_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


class FeedbackFormatter:
    """Formats prompts, tool outcomes and mistakes as messages, with all foreign text sanitized.

    Args:
        short: only codes of mistakes, for tiny vocabularies.
        markup: further strings to break in foreign text.

    Raises:
        ConfigurationError: `markup` contains an empty string.
    """

    def __init__(self, *, short: bool, markup: Sequence[str]) -> None:
        if "" in markup:
            raise ConfigurationError("markup contains an empty string; every string in it needs a character to break.")
        self._short = short
        self._markup = tuple(markup)

    def sanitize(self, text: str) -> str:
        """Make foreign text harmless, with the markup of this format and of this model."""
        return sanitize(text, self._markup)

    def prompt(self, text: str) -> Message:
        """Format a user turn: the first one, or a follow-up question."""
        return Message("user", self.sanitize(text))

    def outcome(self, call: ToolCall, outcome: ToolOutcome, identifier: str | None) -> Message:
        """Format the tool turn that answers one call."""
        content = outcome.content
        if not outcome.ok:
            content = f"error {outcome.error}" if self._short else f"Error ({outcome.error}): {content}"
        return Message("tool", self.sanitize(content), _shown_name(call.name[:64]), identifier)

    def reply(self, call: ToolCall, outcome: ToolOutcome) -> Message:
        """Format the user turn that replies to a message (`Tool.takes_messages`)."""
        if outcome.ok:
            return self.prompt(outcome.content)
        return replace(self.outcome(call, outcome, None), role="user", name=None)

    def mistakes(self, errors: Sequence[ParseError], reminder: Callable[[], str]) -> Message:
        """Format the user turn that lists the mistakes of a turn that did not parse.

        Only what it quotes of the model is foreign: with broken tags, no model would learn the format from it.

        Args:
            errors: the mistakes.
            reminder: writes the format again (`Parser.reminder`); "": not this time.
        """
        if self._short:
            return Message("user", " ".join(f"error {error.code}" for error in errors[:3]))
        quotes = (f" {self.sanitize(error.quote)!r}" if error.quote else "" for error in errors)
        lines = [
            f"Error ({error.code}): {error.message}{quote}" for error, quote in zip(errors[:10], quotes, strict=False)
        ]
        return Message("user", "\n".join(filter(None, [*lines, reminder()])))


@functools.lru_cache(maxsize=256)
def _shown_name(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name)


def opening_turns(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], str]:
    """Return the turns before a task and their text, one object for all environments with the same prompt."""
    is_hashable = not any(message.tool_calls for message in messages)
    return _shared_opening(messages) if is_hashable else (messages, render_text(messages))


@functools.lru_cache(maxsize=64)
def _shared_opening(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], str]:
    return messages, render_text(messages)
