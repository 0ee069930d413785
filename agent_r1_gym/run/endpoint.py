"""ChatEndpoint: a model behind an OpenAI-compatible `POST /chat/completions`."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from agent_r1_gym.core.parsing import OpenAIParser, Parser
from agent_r1_gym.core.types import Message
from agent_r1_gym.errors import ConfigurationError, InfrastructureError, InfrastructureTimeout
from agent_r1_gym.support.backoff import CircuitBreaker
from agent_r1_gym.support.http import RETRIED_STATUSES, HTTPClient, Response
from agent_r1_gym.support.terminal import print_note

_KEYS = ("AGENT_R1_API_KEY", "OPENAI_API_KEY")
_REFUSED = frozenset({401, 402, 403, 404, 405})
_EQUAL_REFUSALS = 3
"""Conversations refused in the same words, before any was answered, after which it gets no more."""
_ADDRESS = re.compile(r"https?://[^/@?#\s]+(?:/[^@?#\s]*)?")


class ContextLengthError(InfrastructureError):
    """The history exceeds the context length of the model."""


class RequestsRefusedError(ConfigurationError):
    """The server refuses every request: another key, address, model or option is needed, or it is not ready."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One model turn as the server returned it, split into parts.

    Attributes:
        content: the text.
        thinking: reasoning that the server separated from the text, "" if none.
        calls: tool calls that it separated, in OpenAI's form; some servers do so even if no tools were declared.
        prompt_tokens: number of prompt tokens; None: not reported.
        completion_tokens: number of completion tokens; None: not reported.
        is_cut: whether the token limit cut the turn.
    """

    content: str
    thinking: str = ""
    calls: tuple[Mapping[str, Any], ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    is_cut: bool = False

    def text(self, parser: Parser | None) -> str:
        """Reassemble the parts into one text in the format of `parser` (None: plain text)."""
        if parser is None:
            return self.content
        if isinstance(parser, OpenAIParser):
            if not self.calls and not self.content.lstrip().startswith("{"):
                return self.content
            return json.dumps({"content": self.content, "tool_calls": list(self.calls)}, ensure_ascii=False)
        # Some servers leave tags in the reasoning: one inside would end it early, and what follows be executed.
        reasoning = self.thinking.removeprefix("<think>").removesuffix("</think>")
        thinking = f"<think>{_THINK_TAG.sub('‹', reasoning)}</think>" if self.thinking else ""
        calls = _calls_text(self.calls, parser)
        return thinking + "\n".join(part for part in (self.content, calls) if part)


_THINK_TAG = re.compile(r"<(?=/?think\b)", re.IGNORECASE)


def _calls_text(calls: Sequence[Mapping[str, Any]], parser: Parser) -> str:
    """Render structured calls as text; verbatim if the format cannot express one of them."""
    parsed = OpenAIParser().parse(json.dumps({"tool_calls": list(calls)}))
    try:
        if len(parsed.calls) == len(calls):
            return "\n".join(parser.format_call(replace(call, id=None)) for call in parsed.calls)
    except ConfigurationError:  # not expressible in the format
        pass
    # The environment's parser then reports the error to the model: an unreadable call must not vanish among readable
    # ones.
    raw = (json.dumps(call.get("function", call) if isinstance(call, Mapping) else call) for call in calls)
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in raw)


@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """Address, sampling and retries of an endpoint. The API key comes from the environment and is never written."""

    model: str
    """Name of the model on the server."""
    base_url: str
    """Address including the version ("https://api.openai.com/v1", "http://127.0.0.1:8000/v1")."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    """Sent if below 1."""
    max_turn_tokens: int = 512
    """Maximum number of tokens per turn, sent as `max_tokens`, or as `max_completion_tokens` to a server that refuses
    that name."""
    tool_role: str = "tool"
    """Role of tool turns when calls are plain text: "tool" leaves them to the chat template, "user" suits servers that
    accept tool turns only after structured calls (api.openai.com)."""
    timeout: float = 120.0
    """Timeout of one attempt in seconds, up to the last byte."""
    max_retries: int = 4
    """Further attempts after a lost connection, a timeout, or one of the statuses 408, 409, 425, 429, 5xx."""
    initial_backoff: float = 0.5
    """Seconds before the second attempt; doubles with each attempt, times a random factor in 0.5..1.5. A `Retry-After`
    of at most a minute takes precedence. The pauses of a turn take at most a minute in total."""
    max_bytes: int = 16 * 2**20
    """Maximum size of a response."""
    breaker_failures: int = 5
    """Consecutive failed turns, after all attempts, that open the circuit breaker; 0: never."""
    breaker_cooldown: float = 10.0
    """Seconds for which the breaker stays open; turns then fail at once, with the rest as `retry_after`."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of the request; None drops a field."""

    def __post_init__(self) -> None:
        for name, valid, expected in (
            ("model", bool(self.model), "the name of a model"),
            ("base_url", bool(_ADDRESS.fullmatch(self.base_url)), "an address like http://127.0.0.1:8000/v1, no login"),
            ("temperature", self.temperature >= 0, "at least 0"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("max_turn_tokens", self.max_turn_tokens >= 1, "at least 1"),
            ("tool_role", self.tool_role in ("tool", "user"), "'tool' or 'user'"),
            ("timeout", self.timeout > 0, "positive seconds"),
            ("max_retries", self.max_retries >= 0, "at least 0"),
            ("initial_backoff", self.initial_backoff >= 0, "at least 0 seconds"),
            ("max_bytes", self.max_bytes >= 1, "at least 1"),
            ("breaker_failures", self.breaker_failures >= 0, "at least 0"),
            ("breaker_cooldown", self.breaker_cooldown >= 0, "at least 0 seconds"),
        ):
            if not valid:
                raise ConfigurationError(f"{name} of an endpoint must be {expected}, got {getattr(self, name)!r}.")


class ChatEndpoint:
    """Client of an OpenAI-compatible endpoint: one turn per call; thread-safe.

    It ignores proxy settings of the environment and does not follow redirects. A server that refuses `max_tokens`,
    `temperature`, `top_p` or `seed` (reasoning models do) gets the same request without that field, with a note, and so
    do all later requests; a field of `extra_body` is never changed. Other refusals that all requests would get stop the
    run at the first one.

    Args:
        options: address, sampling and retries.
        max_concurrent: size of the connection pool.
    """

    def __init__(self, options: EndpointOptions, *, max_concurrent: int) -> None:
        self.options = options
        self._key = next((os.environ[name] for name in _KEYS if os.environ.get(name)), None)
        self._http = HTTPClient(
            options.base_url,
            max_retries=options.max_retries,
            initial_backoff=options.initial_backoff,
            pool_size=max_concurrent,
            max_bytes=options.max_bytes,
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
        )
        self._breaker = CircuitBreaker(options.base_url, options.breaker_failures, options.breaker_cooldown)
        self._lock = threading.Lock()
        self._renamed: dict[str, str | None] = {}
        """Fields that the server refused, and the name it takes instead; None: not sent."""
        self._answered = False
        self._refused: dict[str, set[int]] = {}
        """Conversations (by hash) that were refused, by the words of the refusal."""

    def complete(
        self, messages: Sequence[Message], *, seed: int, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> Completion:
        """Request the next turn of the model.

        Args:
            messages: the history.
            seed: sent to the server; most servers use it when they sample.
            tools: schemas to declare for structured calls; None: the model calls tools in plain text, if at all.

        Raises:
            ConfigurationError: the server rejects the key, the model or the address, or a field of every request.
            ContextLengthError: the history is too long for the model.
            InfrastructureError: no valid response after all attempts, or the server rejects this request.
        """
        while True:
            request = self._request(messages, seed, tools)
            answer = self._send(request)
            if answer.status == 200:
                self._answered = True
                return _completion(answer.body)
            refusal = _Refusal.read(answer)
            if not self._adapt(request, refusal):
                raise self._error(refusal, request)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _send(self, request: Mapping[str, Any]) -> Response:
        body = json.dumps(request).encode()
        with self._breaker.guard():
            answer = self._http.request(
                "POST", "/chat/completions", body, timeout=self.options.timeout, status_of=_actual_status
            )
            # Only these count against the server: other statuses may be the fault of this one request.
            if answer.status in RETRIED_STATUSES:
                raise InfrastructureError(self._problem(_Refusal.read(answer)))
        return answer

    def _request(
        self, messages: Sequence[Message], seed: int, tools: Sequence[Mapping[str, Any]] | None
    ) -> dict[str, Any]:
        options = self.options
        body: dict[str, Any] = {
            "model": options.model,
            "messages": [self._chat(message, structured=tools is not None) for message in messages],
            "max_tokens": options.max_turn_tokens,
            "temperature": options.temperature,
            "seed": seed,
        }
        if options.top_p < 1:
            body["top_p"] = options.top_p
        if tools:
            body["tools"] = list(tools)
        for name, other in self._renamed.items():
            if name in body:
                value = body.pop(name)
                body |= {} if other is None else {other: value}
        return {name: value for name, value in {**body, **options.extra_body}.items() if value is not None}

    def _chat(self, message: Message, *, structured: bool) -> dict[str, Any]:
        if message.role == "tool" and not structured and self.options.tool_role == "user":
            return {"role": "user", "content": f"<tool_response>\n{message.content}\n</tool_response>"}
        return message.to_dict()

    def _adapt(self, request: Mapping[str, Any], refusal: _Refusal) -> bool:
        """Change later requests so that they avoid this refusal; return whether the request is worth another try."""
        name = refusal.unsupported_field(request)
        if name is None or name not in _ADAPTED or name in self.options.extra_body:
            return False
        other, consequence = _ADAPTED[name]
        with self._lock:  # the other requests in flight get the same refusal
            if name not in self._renamed:
                self._renamed[name] = other
                instead = f"{other!r} is sent instead" if other else "it is no longer sent"
                print_note(f"{self.options.model} takes no {name!r}; {instead}{consequence}. ({refusal.message:.200})")
        return True

    def _error(self, refusal: _Refusal, request: Mapping[str, Any]) -> Exception:
        problem = self._problem(refusal)
        if refusal.filtered:  # about this conversation, whatever the status
            return InfrastructureError(problem)
        if refusal.status in _REFUSED:
            hint = "" if self._key else f" No key is set; {' or '.join(_KEYS)} would give one."
            return RequestsRefusedError(f"{problem}. Check the base URL and the name of the model.{hint}")
        if refusal.context_full:
            limit = None if self._answered else refusal.context_length
            if limit is None or self.options.max_turn_tokens < limit:
                return ContextLengthError(problem)
            return RequestsRefusedError(
                f"{problem}. max_turn_tokens={self.options.max_turn_tokens} leaves no room for a prompt in a context "
                f"of {limit} tokens; lower it."
            )
        if refusal.status not in (400, 422):
            return InfrastructureError(problem)
        if name := refusal.constant_field(request):
            option = {"max_tokens": "max_turn_tokens", "max_completion_tokens": "max_turn_tokens"}.get(name, name)
            option = f"{name!r} of extra_body" if name in self.options.extra_body else option
            hint = "; a parser with calls as text, such as 'hermes', needs no tools" if name == "tools" else ""
            return RequestsRefusedError(f"{problem}. Every request would be refused; change {option}{hint}.")
        if "tools" not in request and refusal.about_tool_turns(request):
            return RequestsRefusedError(
                f"{problem}. This server takes tool turns only after structured calls: set tool_role='user', or "
                "parser='openai'."
            )
        if self._refuses_all(refusal, request):
            return RequestsRefusedError(
                f"{problem}. The first {_EQUAL_REFUSALS} conversations were refused in these words, so that the others "
                "would be, too."
            )
        return InfrastructureError(problem)

    def _refuses_all(self, refusal: _Refusal, request: Mapping[str, Any]) -> bool:
        if self._answered:
            return False
        with self._lock:
            conversations = self._refused.setdefault(re.sub(r"\w*\d\w*", "#", refusal.message), set())
            conversations.add(hash(json.dumps(request["messages"])))
            return len(conversations) >= _EQUAL_REFUSALS

    def _problem(self, refusal: _Refusal) -> str:
        text = refusal.message[:500]
        text = text.replace(self._key, "<key>") if self._key else text
        return f"{self.options.base_url} returned HTTP {refusal.status}: {text!r}"


def infra_error_text(error: InfrastructureError) -> str:
    """Format an endpoint failure as `Trajectory.infrastructure_error`: source, kind, message."""
    kind = "timeout" if isinstance(error, InfrastructureTimeout) else "unavailable"
    return f"endpoint: {kind}: {error}"


# --- answers ---------------------------------------------------------------------------------------------------------


def _completion(answer: bytes) -> Completion:
    try:
        body = json.loads(answer)
        choice, usage = body["choices"][0], body.get("usage")
        message = choice["message"]
        content = message.get("content")
        text, thinking = _split_parts(content) if isinstance(content, list) else (content or "", "")
        text = text or message.get("refusal") or ""
        separated = (message.get(name) for name in ("reasoning_content", "reasoning", "thinking"))
        thinking = thinking or next(filter(None, separated), "")
        thinking = "".join(_split_parts(thinking)) if isinstance(thinking, list) else thinking
        calls = message.get("tool_calls") or []
        counts = [_count(usage, name) for name in ("prompt_tokens", "completion_tokens")]
        valid = isinstance(text, str) and isinstance(thinking, str) and isinstance(calls, list)
        valid = valid and all(isinstance(call, dict) for call in calls)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        valid = False
    if not valid:
        raise InfrastructureError(f"The endpoint's answer is no chat completion: {answer[:200]!r}")
    is_cut = choice.get("finish_reason") == "length"
    if is_cut and not (text or thinking or calls) and counts[1] == 0:
        # LMDeploy answers so where other servers refuse.
        raise ContextLengthError("The endpoint's answer ended by length without a token: the context is full.")
    prompt_tokens, completion_tokens = counts
    return Completion(text, thinking, tuple(calls), prompt_tokens, completion_tokens, is_cut)


def _split_parts(parts: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Join the parts of a content list: text, and reasoning.

    Raises:
        KeyError: a part is of another type, such as an image.
    """
    text, thinking = "", ""
    for part in parts:
        kind = part["type"]
        if kind in ("thinking", "reasoning"):
            inner = part.get(kind) or part.get("text") or part.get("summary") or ""
            thinking += "".join(_split_parts(inner)) if isinstance(inner, list) else inner
        else:
            text += part[{"output_text": "text", "summary_text": "text", "reasoning_text": "text"}.get(kind, kind)]
    return text, thinking


def _count(usage: Any, name: str) -> int | None:
    """Return a token count, or None if it is invalid: a bad count must not cost the response."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return int(count) if isinstance(count, int | float) and 0 <= count < 2**31 and count == int(count) else None


# --- refusals --------------------------------------------------------------------------------------------------------

_ADAPTED: Mapping[str, tuple[str | None, str]] = {
    "max_tokens": ("max_completion_tokens", ""),
    "temperature": (None, ", so that turns are sampled at the model's own temperature"),
    "top_p": (None, ", so that turns are sampled with the model's own top_p"),
    "seed": (None, ", so that samples cannot be repeated"),
}
"""Fields without which a request makes sense: the name to try instead (None: none), and what the user should know."""
_CONSTANT = ("max_tokens", "max_completion_tokens", "temperature", "top_p", "tools")
"""Fields that are the same in all requests of a run, whatever the conversation."""
_UNSUPPORTED = re.compile(
    r"unsupported|not support|n't support|unknown|unrecogni[sz]ed|unexpected|extra_forbidden|not (?:permitted|allowed)|"
    r"cannot (?:find field|both)|deprecated|only [^.]{1,30} (?:is|are) allowed",
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


class _Refusal(NamedTuple):
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
    def read(cls, answer: Response) -> _Refusal:
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
        if not _UNSUPPORTED.search(self.text):
            return None
        sent = [name for name in request if name not in ("model", "messages")]
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


def _actual_status(answer: Response) -> int:
    """HTTP status that a response should have had.

    Gateways report failures of the provider behind them with 200 and an `error` in the body. Some servers report what a
    request cannot get with 500, which would be retried.
    """
    if answer.status in RETRIED_STATUSES and answer.status >= 500:
        refusal = _Refusal.read(answer)
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
        counts = [_count(usage, name) for name in ("prompt_tokens", "completion_tokens")]
        nothing = bool(message) and counts == [0, 0] and not any(message.get(name) for name in _BRINGS)
    except (ValueError, RecursionError, AttributeError, TypeError, IndexError, KeyError):
        return 200  # `_completion` reports what is wrong
    if not failed and not nothing:
        return 200
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return 413 if status >= 500 and _Refusal.read(answer._replace(status=status)).context_full else status


_BRINGS = ("content", "refusal", "tool_calls", "reasoning_content", "reasoning", "thinking")
