"""ChatEndpoint: a model behind an OpenAI-compatible `POST /chat/completions`."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent_r1_gym.core.parsing import OpenAIParser, Parser
from agent_r1_gym.core.types import Message
from agent_r1_gym.errors import ConfigurationError, InfrastructureError, InfrastructureTimeout
from agent_r1_gym.support.backoff import CircuitBreaker
from agent_r1_gym.support.chat_refusals import FieldNames, Refusal, actual_status, token_count
from agent_r1_gym.support.checks import check_base_url
from agent_r1_gym.support.http import RETRIED_STATUSES, HTTPClient, Response, check_headers

_KEYS = ("AGENT_R1_API_KEY", "OPENAI_API_KEY")
_REFUSED = frozenset({401, 402, 403, 404, 405})
_EQUAL_REFUSALS = 3
"""Conversations refused in the same words, before any was answered, after which it gets no more."""


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
        check_base_url("base_url of an endpoint", self.base_url)
        for name, valid, expected in (
            ("model", bool(self.model), "the name of a model"),
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

    Raises:
        ConfigurationError: the API key has a line break, or another character that HTTP does not allow.
    """

    def __init__(self, options: EndpointOptions, *, max_concurrent: int) -> None:
        self.options = options
        variable = next((name for name in _KEYS if os.environ.get(name)), None)
        self._key = os.environ[variable] if variable else None
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        check_headers(headers, f"The key of {variable}")
        self._http = HTTPClient(
            options.base_url,
            max_retries=options.max_retries,
            initial_backoff=options.initial_backoff,
            pool_size=max_concurrent,
            max_bytes=options.max_bytes,
            headers=headers,
        )
        self._breaker = CircuitBreaker(options.base_url, options.breaker_failures, options.breaker_cooldown)
        self._lock = threading.Lock()
        self._fields = FieldNames(options.model, fixed=options.extra_body)
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
            refusal = Refusal.read(answer)
            if not self._fields.adapt(request, refusal):
                raise self._error(refusal, request)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _send(self, request: Mapping[str, Any]) -> Response:
        body = json.dumps(request).encode()
        with self._breaker.guard():
            answer, _, _ = self._http.request_in_full(
                "POST", "/chat/completions", body, timeout=self.options.timeout, status_of=actual_status
            )
            # Only these count against the server: other statuses may be the fault of this one request.
            if answer.status in RETRIED_STATUSES:
                raise InfrastructureError(self._problem(Refusal.read(answer)))
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
        body = {**self._fields.renamed(body), **options.extra_body}
        return {name: value for name, value in body.items() if value is not None}

    def _chat(self, message: Message, *, structured: bool) -> dict[str, Any]:
        if message.role == "tool" and not structured and self.options.tool_role == "user":
            return {"role": "user", "content": f"<tool_response>\n{message.content}\n</tool_response>"}
        return message.to_dict(text_arguments=True)

    def _error(self, refusal: Refusal, request: Mapping[str, Any]) -> Exception:
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

    def _refuses_all(self, refusal: Refusal, request: Mapping[str, Any]) -> bool:
        if self._answered:
            return False
        with self._lock:
            conversations = self._refused.setdefault(re.sub(r"\w*\d\w*", "#", refusal.message), set())
            conversations.add(hash(json.dumps(request["messages"])))
            return len(conversations) >= _EQUAL_REFUSALS

    def _problem(self, refusal: Refusal) -> str:
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
        counts = [token_count(usage, name) for name in ("prompt_tokens", "completion_tokens")]
        valid = isinstance(text, str) and isinstance(thinking, str) and isinstance(calls, list)
        valid = valid and all(isinstance(call, dict) for call in calls)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        valid = False
    if not valid:
        raise InfrastructureError(f"The endpoint's answer is not a chat completion: {answer[:200]!r}")
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
