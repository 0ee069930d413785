"""Wrappers that change the form of the history for the policy: token ids, chat messages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, MultiBinary, Space
from gymnasium.utils import RecordConstructorArgs

from agent_r1_gym.core.spaces import UnicodeText, is_encodable
from agent_r1_gym.core.types import to_chat
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.checks import check_choice, check_integer
from agent_r1_gym.wrappers.base import HistoryWrapper, Info, require_text

Chat = tuple[dict[str, Any], ...]
Tokens = dict[str, npt.NDArray[Any]]
Encode = Callable[[str], Sequence[int]]

_SAMPLE_CHARS = 64


class ChatSpace(Space[Chat]):
    """Chat histories: tuples of `{"role", "content"}` dictionaries as `types.Message.to_dict` makes them.

    A message may also have "name" and "tool_call_id" (strings) and "tool_calls" (a list). There is no bound on length.

    Args:
        seed: seed of `sample`.
    """

    roles: ClassVar[tuple[str, ...]] = ("system", "user", "assistant", "tool")
    _optional: ClassVar[Mapping[str, type]] = {"name": str, "tool_call_id": str, "tool_calls": list}

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """False: the number of messages varies."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> Chat:
        """Sample one to four random messages.

        Raises:
            ConfigurationError: a mask is given.
        """
        if mask is not None or probability is not None:
            raise ConfigurationError("ChatSpace has no masks; call sample() without arguments.")
        content = UnicodeText(_SAMPLE_CHARS, seed=self.np_random)
        roles = self.np_random.choice(self.roles, size=self.np_random.integers(1, 5))
        return tuple({"role": str(role), "content": content.sample()} for role in roles)

    def contains(self, x: Any) -> bool:
        """Check whether `x` is a tuple of messages."""
        return isinstance(x, tuple) and all(isinstance(message, dict) and self._is_message(message) for message in x)

    def _is_message(self, message: dict[str, Any]) -> bool:
        content = message.get("content")
        if message.get("role") not in self.roles or not isinstance(content, str) or not is_encodable(content):
            return False
        optional = message.keys() - {"role", "content"}
        return all(key in self._optional and isinstance(message[key], self._optional[key]) for key in optional)

    def __repr__(self) -> str:
        return "ChatSpace()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChatSpace)

    __hash__ = None  # type: ignore[assignment]  # spaces are mutable: they have a generator


class MessageObservation(HistoryWrapper):
    """Observations as chat messages, fit for `tokenizer.apply_chat_template`.

    The observation is a tuple of new dictionaries in every step. Around a `ContextWindow` it shows the window. For
    OpenAI-compatible endpoints use `to_chat(info["messages"], text_arguments=True)` instead.
    AsyncVectorEnv needs `shared_memory=False`: a chat has no fixed size.

    Args:
        env: a `ToolEnv`, bare or wrapped.
    """

    def __init__(self, env: gymnasium.Env[Any, str]) -> None:
        RecordConstructorArgs.__init__(self)
        super().__init__(env)
        self.observation_space = ChatSpace()

    def observe(self, observation: Any, info: Info) -> tuple[Chat, Info]:
        """Return the history as chat dictionaries."""
        return tuple(to_chat(info["messages"])), info


class TokenObservation(HistoryWrapper):
    """Observations as token ids, for token-level RL code.

    The observation is `{"input_ids": int64 (max_tokens,), "attention_mask": int8 (max_tokens,)}`, padded, so that it
    batches and passes through shared memory. `info["observation_tokens"]` is the number of tokens before truncation.

    A tokenizer recognises its special tokens anywhere in a text: pass `markup=tokenizer.all_special_tokens` to the
    environment, so that no tool output can forge one.

    Args:
        env: a `ToolEnv`, bare or wrapped.
        tokenizer: a transformers tokenizer, a `tokenizers.Tokenizer`, or a function from text to a list of ids.
        max_tokens: length of the observation.
        truncation_side: the end at which a longer history is cut, "left" (the oldest tokens) or "right".
        padding_side: side of the padding, "right" or "left" (for generation).
        pad_id: id of the padding; None: the tokenizer's own.
        vocab_size: number of ids; None: the tokenizer's own.
        chat_template: encode `tokenizer.apply_chat_template(messages)` instead of the text observation.
        template_options: further arguments of `apply_chat_template`, such as `{"tools": env.unwrapped.tool_schemas}`;
            `add_generation_prompt` is True unless set here.

    Raises:
        ConfigurationError: an argument has a wrong value or is missing, or, from `reset` and `step`, the tokenizer
            returned an id outside the vocabulary.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, str],
        tokenizer: Any,
        *,
        max_tokens: int = 4_096,
        truncation_side: str = "left",
        padding_side: str = "right",
        pad_id: int | None = None,
        vocab_size: int | None = None,
        chat_template: bool = False,
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(
            self,
            tokenizer=tokenizer,
            max_tokens=max_tokens,
            truncation_side=truncation_side,
            padding_side=padding_side,
            pad_id=pad_id,
            vocab_size=vocab_size,
            chat_template=chat_template,
            template_options=template_options,
            _disable_deepcopy=True,
        )
        super().__init__(env)
        check_choice("truncation_side", truncation_side, ("left", "right"))
        check_choice("padding_side", padding_side, ("left", "right"))
        check_integer("max_tokens", max_tokens, 1)
        self._max_tokens = max_tokens
        self._keep_end = truncation_side == "left"
        self._pad_left = padding_side == "left"
        self._pad_id = _pad_id(tokenizer, pad_id)
        self._vocab_size = _vocab_size(tokenizer, vocab_size)
        self._encode = self._encoder(tokenizer, chat_template, template_options)
        highest = max(self._vocab_size - 1, self._pad_id)
        self.observation_space = Dict(
            input_ids=Box(0, highest, (max_tokens,), np.int64), attention_mask=MultiBinary(max_tokens)
        )

    def _encoder(
        self, tokenizer: Any, chat_template: bool, options: Mapping[str, Any] | None
    ) -> Callable[[Any, Info], Sequence[int]]:
        """Choose the function from observation and info to token ids."""
        if chat_template:
            return functools.partial(_encode_chat, _template_encoder(tokenizer, options or {}))
        if options is not None:
            raise ConfigurationError("template_options needs chat_template=True.")
        require_text(self.env, "TokenObservation encodes text", "drop that wrapper or give chat_template=True")
        return functools.partial(_encode_text, _text_encoder(tokenizer))

    def observe(self, observation: Any, info: Info) -> tuple[Tokens, Info]:
        """Return the padded ids and their mask."""
        ids = np.asarray(self._encode(observation, info), dtype=np.int64)
        if ids.size and not 0 <= ids.min() <= ids.max() < self._vocab_size:
            raise ConfigurationError(
                f"The tokenizer returned ids from {ids.min()} to {ids.max()}, outside vocab_size={self._vocab_size}; "
                "pass the number of its ids, added tokens included."
            )
        info["observation_tokens"] = len(ids)
        window = ids[max(0, len(ids) - self._max_tokens) :] if self._keep_end else ids[: self._max_tokens]
        padding = self._max_tokens - len(window)
        span = slice(padding, None) if self._pad_left else slice(0, len(window))
        input_ids = np.full(self._max_tokens, self._pad_id, dtype=np.int64)
        mask = np.zeros(self._max_tokens, dtype=np.int8)
        input_ids[span], mask[span] = window, 1
        return {"input_ids": input_ids, "attention_mask": mask}, info


def _text_encoder(tokenizer: Any) -> Encode:
    """Make a function from text to ids, without the tokens that a tokenizer adds around a text."""
    if not hasattr(tokenizer, "encode"):
        if not callable(tokenizer):
            raise ConfigurationError(
                "tokenizer must be a transformers tokenizer, a tokenizers.Tokenizer or a function from text to ids, "
                f"got {type(tokenizer).__name__}."
            )
        encode: Encode = tokenizer
        return encode
    return functools.partial(_ids_of, tokenizer)


# Functions of the module and `functools.partial` instead of closures, so that wrapped environments pickle.


def _ids_of(tokenizer: Any, text: str) -> Sequence[int]:
    encoding = tokenizer.encode(text, add_special_tokens=False)
    ids: Sequence[int] = getattr(encoding, "ids", encoding)
    return ids


def _encode_text(encode: Encode, observation: str, _info: Info) -> Sequence[int]:
    return encode(observation)


def _encode_chat(encode: Callable[..., Sequence[int]], _observation: Any, info: Info) -> Sequence[int]:
    return encode(to_chat(info["messages"]))


def _template_encoder(tokenizer: Any, options: Mapping[str, Any]) -> Callable[[list[dict[str, Any]]], Sequence[int]]:
    if not hasattr(tokenizer, "apply_chat_template"):
        raise ConfigurationError(
            "chat_template=True needs a transformers tokenizer with apply_chat_template, got "
            f"{type(tokenizer).__name__}."
        )
    if not getattr(tokenizer, "chat_template", None) and "chat_template" not in options:
        raise ConfigurationError(
            "The tokenizer has no chat template; set tokenizer.chat_template, or pass "
            'template_options={"chat_template": ...}.'
        )
    arguments = {"add_generation_prompt": True, **options}
    return functools.partial(tokenizer.apply_chat_template, tokenize=True, return_dict=False, **arguments)


def _pad_id(tokenizer: Any, pad_id: int | None) -> int:
    """Return the explicit padding id, or the tokenizer's own."""
    if pad_id is None:
        pad_id = getattr(tokenizer, "pad_token_id", None)
    if pad_id is None:
        pad_id = (getattr(tokenizer, "padding", None) or {}).get("pad_id")
    if pad_id is None:
        raise ConfigurationError(
            "The tokenizer has no padding token; pass pad_id= (any id works, the attention mask hides it; often "
            "tokenizer.eos_token_id)."
        )
    check_integer("pad_id", pad_id, 0)
    return pad_id


def _vocab_size(tokenizer: Any, vocab_size: int | None) -> int:
    """Return the explicit vocabulary size, or the tokenizer's own, added tokens included."""
    if vocab_size is None and hasattr(tokenizer, "get_vocab_size"):
        vocab_size = tokenizer.get_vocab_size(with_added_tokens=True)
    if vocab_size is None and hasattr(tokenizer, "__len__"):
        vocab_size = len(tokenizer)
    if vocab_size is None:
        raise ConfigurationError("The tokenizer does not report its number of ids; pass vocab_size=.")
    check_integer("vocab_size", vocab_size, 1)
    return vocab_size
