"""What OpenAI-compatible servers refuse, in the words of many servers; and failures that they report as success."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

from agent_r1_gym.support.http import RETRIED_STATUSES, Response
from agent_r1_gym.support.terminal import print_note

_ADAPTED: Mapping[str, tuple[str | None, str]] = {
    "max_tokens": ("max_completion_tokens", ""),
    "response_format": (None, ", so that the form of replies is not enforced"),
    "temperature": (None, ", so that turns are sampled at the model's own temperature"),
    "top_p": (None, ", so that turns are sampled with the model's own top_p"),
    "seed": (None, ", so that samples cannot be repeated"),
}
"""Fields without which a request makes sense: the name to try instead (None: none), and what the user should know."""
_CONSTANT = ("max_tokens", "max_completion_tokens", "temperature", "top_p", "tools")
"""Fields that are the same in all requests of a run, whatever the conversation."""
_UNSUPPORTED = re.compile(
    r"unsupported|not support|n't support|unknown|unrecogni[sz]ed|unexpected|extra_forbidden|not (?:permitted|allowed)|"
    r"cannot (?:find field|both)|deprecated|only [^.]{1,30} (?:is|are) allowed|has no effect",
    re.IGNORECASE,
)
_THROTTLED = re.compile(
    r"rate.?limit|per (?:second|minute|hour|day)|\b[tr]p[md]\b|quota|throttl|try again later|please wait", re.IGNORECASE
)
_FILTERED = re.compile(r"content.?(?:filter|policy|management)|moderation|flagged|responsible ?ai", re.IGNORECASE)
# Servers share no code for a full context: OpenAI and Azure have one, llama.cpp another, most have only words. Each
# line is in the words of the servers that it names.
_CONTEXT_FULL = re.compile(
    "|".join(
        (
            r"context_?(?:length|window)_?exceeded|exceed_context_size|tokens_limit_reached|string_above_max_length",
            r"max(?:imum)? (?:allowed |model )?(?:context|sequence|prompt|input|model)[ _-](?:length|size|window)",
            r"max_(?:model|seq)_len|\bn_ctx\b",  # vLLM, TabbyAPI, llama.cpp
            r"(?:prompt|input|context)(?: token)?(?: length| size)? (?:is |was )?too (?:long|large)",  # Anthropic
            r"(?:longer|greater|larger|more) than (?:the )?(?:model'?s? )?(?:maximum |max )?"
            r"(?:context|model length|sequence|input)",  # vLLM V1, SGLang, LM Studio
            r"exceed(?:s|ed|ing)? [^.]{0,60}(?:context|model length|token limit|input length|prompt length|session)",
            r"context(?: window| size| length| limit)? [^.]{0,40}(?:exceed|overflow)",  # MiniMax, LM Studio
            r"reduce the length of|reduce your prompt",  # vLLM V0, Groq, Cerebras
            r"`?inputs`? (?:tokens \+|must have less than)",  # TGI, Together
            r"(?:input|prompt)s?(?: tokens?)?(?: count| length)? [^.]{0,60}exceed",  # Gemini, LMDeploy, GLM
            r"range of input length|too large for model with \d|only supports up to \d",  # Qwen, Mistral, Vertex
            r"too many (?:input )?tokens|request (?:body )?too large for",  # Cohere, GitHub Models
            r"prompt ?超长|上下文[^。]{0,12}(?:超|过长)|长度超限|输入[^。]{0,12}过长",  # Zhipu, Baidu
        )
    ),
    re.IGNORECASE,
)
_CONTEXT_CODES = ("1261",)  # Z.AI
_LIMIT = re.compile(r"(?:context (?:length|size|window)|model length|max_model_len)(?: is| of)?[ =:(]{1,3}(\d+)", re.I)
_TOOL_TURNS = re.compile(r"\brole['\"`]? ?:? ?['\"`]?tool\b|tool_call|only.{0,40}\broles?\b|\broles? must", re.I)
_MAX_TEXT = 100_000
# A validation error quotes what it refuses: words of the prompt must not pass for the server's.
_QUOTED = frozenset({"input", "body", "request", "messages", "prompt"})


class FieldNames:
    """Leaves out or renames the fields of requests that the server of a model has refused; threads may share it.

    Args:
        model: name of the model, for notes.
        fixed: fields that are never changed.
    """

    def __init__(self, model: str, fixed: Collection[str] = ()) -> None:
        self._model, self._fixed = model, fixed
        self._renamed: dict[str, str | None] = {}
        """Fields that the server refused, and the name it takes instead; None: not sent."""
        self._lock = threading.Lock()

    def renamed(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request with the fields that the server takes."""
        body = dict(request)
        for name, other in tuple(self._renamed.items()):  # another thread may add one meanwhile
            if name in body:
                value = body.pop(name)
                body |= {} if other is None else {other: value}
        return body

    def adapt(self, request: Mapping[str, Any], refusal: Refusal) -> bool:
        """Change later requests so that they avoid this refusal; return whether the request is worth another try.

        Args:
            request: the request as it was sent.
            refusal: what the server answered.
        """
        name = refusal.unsupported_field(request)
        if name is None or name not in _ADAPTED or name in self._fixed or refusal.status in RETRIED_STATUSES:
            return False
        other, consequence = _ADAPTED[name]
        other = None if "has no effect" in refusal.text else other  # nor under another name: `agent-r1 serve`
        with self._lock:  # the other requests in flight get the same refusal
            if name not in self._renamed:
                self._renamed[name] = other
                instead = f"{other!r} is sent instead" if other else "it is no longer sent"
                print_note(f"{self._model} takes no {name!r}; {instead}{consequence}. ({refusal.message:.200})")
        return True

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()


class Refusal(NamedTuple):
    """An error response as the server meant it.

    Attributes:
        status: HTTP status.
        message: the error message, or the body if it has none.
        text: all words of the body, for recognition.
        param: request field that it names; "" if none.
    """

    status: int
    message: str
    text: str
    param: str

    @classmethod
    def read(cls, answer: Response) -> Refusal:
        """Read a response with another status than 200."""
        raw = answer.body.decode("utf-8", "replace")
        try:
            body = json.loads(raw)
        except (ValueError, RecursionError):
            return cls(answer.status, raw[:500], raw[:_MAX_TEXT], "")
        choices = body.get("choices") if isinstance(body, dict) else None
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            body = choices[0] if choices[0].get("error") else body
        error = (body.get("error") or body) if isinstance(body, dict) else body
        words = list(_words(error))
        text = " ".join(words)[:_MAX_TEXT]
        if not isinstance(error, dict):
            return cls(answer.status, text or raw[:500], text, "")
        # OpenRouter's own message says only that the provider failed; the provider's is in `metadata.raw`.
        metadata = error.get("metadata")
        details = metadata.get("raw") if isinstance(metadata, dict) else None
        parts = [part for part in (error.get("message"), details) if isinstance(part, str) and part]
        param = error.get("param")
        return cls(answer.status, ": ".join(parts) or raw[:500], text, param if isinstance(param, str) else "")

    @property
    def context_full(self) -> bool:
        """Whether the conversation is too long for the model."""
        if self.status == 429 or _THROTTLED.search(self.text):
            return False
        code = self.status == 413 or any(re.search(rf"\b{code}\b", self.text) for code in _CONTEXT_CODES)
        return code or _CONTEXT_FULL.search(self.text) is not None

    @property
    def context_length(self) -> int | None:
        """Context length of the model, if the message names it."""
        match = _LIMIT.search(self.text.replace(",", ""))
        return int(match[1]) if match else None

    @property
    def filtered(self) -> bool:
        """Whether a content filter refused the conversation."""
        return self.status in (400, 403) and _FILTERED.search(self.text) is not None

    def about_tool_turns(self, request: Mapping[str, Any]) -> bool:
        """Whether the request has tool turns, and it is about roles or about the calls that tool turns answer."""
        has_some = any(message["role"] == "tool" for message in request["messages"])
        return has_some and _TOOL_TURNS.search(self.text) is not None

    def unsupported_field(self, request: Mapping[str, Any]) -> str | None:
        """Field of the request that the server does not support; None: the refusal is about something else."""
        sent = [name for name in request if name not in ("model", "messages")]
        if not _UNSUPPORTED.search(self.text):
            # Servers name the forms that they know instead, in many words.
            form = "response_format" in sent and _mentions(self.text, "response_format") and not self.context_full
            return "response_format" if form else None
        if self.param in sent:
            return self.param
        named = [name for name in sent if _mentions(self.text, name)]
        if {"temperature", "top_p"} <= set(named):  # Anthropic's models take one of the two
            return "top_p"
        return min(named, key=self.text.index, default=None)

    def constant_field(self, request: Mapping[str, Any]) -> str | None:
        """Field, the same in all requests of the run, that the refusal is about; None: not about one."""
        if "tools" in request and "tool-choice" in self.text:  # vLLM without --enable-auto-tool-choice
            return "tools"
        if name := self.unsupported_field(request):
            return name
        return next((name for name in _CONSTANT if name in request and _mentions(self.message, name)), None)


def _words(value: Any) -> Iterator[str]:
    """Yield the texts and numbers of an error, but not what it quotes of the request."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in _QUOTED:
                yield from _words(item)
    elif isinstance(value, list):
        for item in value:
            yield from _words(item)
    elif isinstance(value, str | int) and not isinstance(value, bool):
        yield str(value)


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def actual_status(answer: Response) -> int:
    """HTTP status that a response should have had.

    Gateways report failures of the provider behind them with 200 and an `error` in the body. Some servers report what a
    request cannot get with 500, which would be retried.
    """
    if answer.status in RETRIED_STATUSES and answer.status >= 500:
        refusal = Refusal.read(answer)
        unsupported = "does not support parameters" in refusal.text  # LiteLLM
        return 413 if refusal.context_full else 400 if unsupported else answer.status
    if answer.status != 200:
        return answer.status
    try:
        body = json.loads(answer.body)
        choice = (body.get("choices") or [{}])[0]
        error = choice.get("error") or body.get("error")
        message, usage = choice.get("message") or {}, body.get("usage") or {}
        failed = choice.get("finish_reason") == "error" or (bool(error) and not message)
        # A prompt has tokens: a response that counts none, and brings nothing, is the server's failure.
        counts = [token_count(usage, name) for name in ("prompt_tokens", "completion_tokens")]
        nothing = bool(message) and counts == [0, 0] and not any(message.get(name) for name in _BRINGS)
    except (ValueError, RecursionError, AttributeError, TypeError, IndexError, KeyError):
        return 200  # the caller reports what is wrong
    if not failed and not nothing:
        return 200
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return 413 if status >= 500 and Refusal.read(answer._replace(status=status)).context_full else status


_BRINGS = ("content", "refusal", "tool_calls", "reasoning_content", "reasoning", "thinking")


def token_count(usage: Any, name: str) -> int | None:
    """Return a token count, or None if it is invalid: a bad count must not cost the response."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return int(count) if isinstance(count, int | float) and 0 <= count < 2**31 and count == int(count) else None
