"""ChatTokens: the two places where text becomes tokens, the prompt and the gap between two model turns.

A trajectory is never tokenised again: the model's tokens stay as they were sampled, and what comes between two of its
turns (end of turn, tool output, next header) is the difference of two renderings of a dummy conversation. That needs a
chat template that keeps earlier turns as they are; templates that do not are refused at construction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

from tokenizers import Tokenizer

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.types import Message, Role

_USER, _MODEL, _REPLY = "4be7u", "9c1dm", "7fa2r"
"""Contents of the dummy conversation: short, and nowhere else in a template."""
_PROBES = ("", " \n\"a\\b'<é>\n ", '<tool_response>\n<think>a</think>{"b": 1}\n</tool_response>')
"""Contents that a template which trims, escapes or parses would change."""


class ChatTokens:
    """Renders messages with a tokenizer's chat template.

    Args:
        tokenizer: a transformers tokenizer with a chat template, an eos and a pad token; nothing is added to it later.
        template_options: further arguments of `apply_chat_template` (such as `enable_thinking`).

    Raises:
        ConfigurationError: no template, no eos or pad token, or a template that rewrites earlier turns.
    """

    def __init__(self, tokenizer: Any, *, template_options: Mapping[str, Any] | None = None) -> None:
        name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        if getattr(tokenizer, "chat_template", None) is None:
            raise ConfigurationError(
                f"The tokenizer {name!r} has no chat template; use an instruct model or set tokenizer.chat_template."
            )
        for token in ("eos_token_id", "pad_token_id"):
            if getattr(tokenizer, token) is None:
                raise ConfigurationError(f"The tokenizer {name!r} has no {token}; set it before training.")
        self._tokenizer = tokenizer
        self._backend = _own_backend(tokenizer)
        self._name = name
        self._options = dict(template_options or {})
        self.stop_id = self._find_stop()
        self._stop_text: str = tokenizer.decode([self.stop_id])
        self._check_prefix()
        self._tool_role = self._find_tool_role()
        self._frames: dict[tuple[Role, ...], list[str] | None] = {}
        self._last_prompt: tuple[tuple[Message, ...], list[int]] = ((), [])

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a model turn: the template's end of turn, and the tokenizer's eos."""
        return tuple(dict.fromkeys((self.stop_id, int(self._tokenizer.eos_token_id))))

    @property
    def markup(self) -> tuple[str, ...]:
        """Texts of special tokens, which nobody's text may become."""
        return tuple(self._tokenizer.all_special_tokens)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Returns the tokens before the first model turn."""
        asked, ids = self._last_prompt
        if asked != tuple(messages):  # the copies of a row stand together
            asked, ids = tuple(messages), self._encode(self._render([self._chat(m) for m in messages], open_turn=True))
            self._last_prompt = asked, ids
        return list(ids)

    def gap_ids(self, messages: Sequence[Message], *, stopped: bool) -> list[int]:
        """Returns the tokens between a model turn and the next: end of turn, `messages`, and the next header.

        Args:
            messages: what the environment said.
            stopped: whether the model sampled the end of its turn itself.
        """
        gap = self._encode(self._gap_text(messages))
        return gap if stopped else [self.stop_id, *gap]

    def action(self, ids: Sequence[int]) -> str:
        """Returns the text of a sampled turn, without the token that ended it."""
        kept = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return _decode(self._tokenizer, kept) if self._backend is None else _decode_fast(self._backend, kept)

    def _chat(self, message: Message) -> dict[str, Any]:
        role = self._tool_role if message.role == "tool" else message.role
        calls = {"tool_calls": message.to_dict()["tool_calls"]} if message.tool_calls else {}
        return {"role": role, "content": message.content, **calls}

    def _gap_text(self, messages: Sequence[Message]) -> str:
        """Returns the rendering of `messages` after a model turn; the template is run once per sequence of roles."""
        if any(message.tool_calls for message in messages):
            return self._rendered_gap(messages)
        roles = tuple(message.role for message in messages)
        if roles not in self._frames:
            self._frames[roles] = self._find_frame(roles)
        frame = self._frames[roles]
        return self._rendered_gap(messages) if frame is None else _framed(frame, [m.content for m in messages])

    def _rendered_gap(self, messages: Sequence[Message]) -> str:
        dummy = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _MODEL}]
        rendered = self._render([*dummy, *[self._chat(message) for message in messages]], open_turn=True)
        return self._after_model_turn(rendered)

    def _find_frame(self, roles: Sequence[Role]) -> list[str] | None:
        """Returns what the template puts around the contents, None if it does not show them as they are."""
        frame = self._rendered_gap([Message(role, _REPLY) for role in roles]).split(_REPLY)
        plain = len(frame) == len(roles) + 1 and all(
            self._rendered_gap([Message(role, probe) for role in roles]) == _framed(frame, [probe] * len(roles))
            for probe in _PROBES
        )
        return frame if plain else None

    def _render(self, chat: list[dict[str, Any]], *, open_turn: bool) -> str:
        options = {**self._options, "tokenize": False, "add_generation_prompt": open_turn}
        return str(self._tokenizer.apply_chat_template(chat, **options))

    def _encode(self, text: str) -> list[int]:
        return _encode(self._tokenizer, text) if self._backend is None else _encode_fast(self._backend, text)

    def _after_model_turn(self, rendered: str) -> str:
        """Returns what follows the dummy model turn and its end."""
        _, found, after = rendered.partition(_MODEL)
        if not found or not after.startswith(self._stop_text):
            raise ConfigurationError(f"{self._refusal()} it does not end a model turn with {self._stop_text!r}.")
        return after[len(self._stop_text) :]

    def _find_stop(self) -> int:
        """Returns the token that the template puts after a model turn."""
        dummy = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _MODEL}]
        _, found, after = self._render(dummy, open_turn=False).partition(_MODEL)
        ids = self._encode(after.lstrip()) if found else []
        if not ids or ids[0] not in {*self._tokenizer.all_special_ids, *self._tokenizer.added_tokens_decoder}:
            raise ConfigurationError(
                f"{self._refusal()} no special token ends a model turn (after it comes {after!r:.40})."
            )
        return int(ids[0])

    def _check_prefix(self) -> None:
        """Refuses a template that shows a model turn differently once more turns follow."""
        dummy = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _MODEL}]
        alone = self._render(dummy, open_turn=False).partition(_MODEL)[0]
        longer = self._render([*dummy, {"role": "user", "content": _REPLY}], open_turn=True)
        opened = self._render(dummy[:1], open_turn=True)
        if not longer.startswith(alone + _MODEL + self._stop_text) or not alone.startswith(opened[: len(alone)]):
            raise ConfigurationError(f"{self._refusal()} it rewrites earlier turns when later ones follow.")
        if _REPLY not in self._after_model_turn(longer):
            raise ConfigurationError(f"{self._refusal()} it drops the user turn after a model turn.")

    def _find_tool_role(self) -> str:
        """Returns "tool" if the template shows tool turns, else "user"."""
        dummy = [{"role": "user", "content": _USER}, {"role": "assistant", "content": _MODEL}]
        try:
            rendered = self._render([*dummy, {"role": "tool", "content": _REPLY}], open_turn=True)
            shown = _REPLY in self._after_model_turn(rendered)
        except Exception:  # templates raise errors of their own kinds on roles that they do not know
            shown = False
        return "tool" if shown else "user"

    def _refusal(self) -> str:
        return f"The chat template of {self._name!r} cannot be used for multi-turn training:"


def _framed(frame: Sequence[str], contents: Sequence[str]) -> str:
    return "".join(chain.from_iterable(zip_longest(frame, contents, fillvalue="")))


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _encode_fast(backend: Tokenizer, text: str) -> list[int]:
    return list(backend.encode(text, add_special_tokens=False).ids)


def _decode_fast(backend: Tokenizer, ids: Sequence[int]) -> str:
    return backend.decode(ids, skip_special_tokens=False)


def _own_backend(tokenizer: Any) -> Tokenizer | None:
    """Returns a copy of what a fast tokenizer stands on: the same tokens, without the cost of transformers' layers.

    A copy, because others set padding and truncation on the original. None for tokenizers that do more than that.
    """
    try:
        backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    except Exception:  # no fast tokenizer, or with parts written in Python; the library raises bare Exceptions
        return None
    backend.no_padding()
    backend.no_truncation()
    for text in (*_PROBES, _USER, " a", "".join(tokenizer.all_special_tokens)):
        ids = _encode(tokenizer, text)
        if _encode_fast(backend, text) != ids or _decode_fast(backend, ids) != _decode(tokenizer, ids):
            return None
    return backend
