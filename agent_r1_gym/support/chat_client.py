"""A language model behind an OpenAI-compatible endpoint that plays a part of an environment, such as its user."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_r1_gym.errors import InfrastructureError
from agent_r1_gym.support.checks import check_base_url

if TYPE_CHECKING:
    from agent_r1_gym.support.http import HTTPClient

_KEY = "OPENAI_API_KEY"


class ChatClient:
    """Asks a model for the next turn of a conversation; threads may share it.

    Lost connections, timeouts and the statuses 408, 409, 425, 429 and 5xx are retried, after half a second, then after
    twice as long each time, or after the server's `Retry-After`. The pauses of a turn take at most a minute in total.

    Args:
        model: name of the model.
        url: base URL, such as "http://127.0.0.1:8000/v1"; the API key is read from the environment variable
            OPENAI_API_KEY, if set.
        role: what the model plays, for messages.
        sampling: fields of the request such as `temperature`; those that the server does not support are dropped or
            renamed, with a note.
        timeout: seconds per attempt.
        max_retries: further attempts.

    Raises:
        ConfigurationError: `url` is not an address, or HTTP does not allow a character of the API key, such as a line
            break.
    """

    def __init__(
        self,
        model: str,
        url: str,
        *,
        role: str,
        sampling: Mapping[str, Any],
        timeout: float = 60.0,
        max_retries: int = 3,
    ) -> None:
        from agent_r1_gym.support.chat_refusals import FieldNames
        from agent_r1_gym.support.http import check_headers

        check_base_url(f"The URL of {role}", url)
        check_headers(_headers(), f"The key of {_KEY}")
        self._model, self._url, self._timeout, self._max_retries = model, url.rstrip("/"), timeout, max_retries
        self._name, self._sampling = f"The model of {role} {model} at {self._url}", dict(sampling)
        self._fields = FieldNames(f"The model of {role} {model}")
        self._client: HTTPClient | None = None

    def complete(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return the text of the next turn; it may be empty.

        Args:
            messages: the conversation, as dictionaries with `role` and `content`.

        Raises:
            InfrastructureError: the endpoint fails.
        """
        return self.turn(messages)[0]

    def turn(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[str, list[dict[str, Any]]]:
        """Return the text of the next turn, and its calls as the endpoint wrote them.

        Args:
            messages: see `complete`; with tools also calls and their results, in OpenAI's form.
            tools: schemas of the functions that the model may call.

        Raises:
            InfrastructureError: the endpoint fails.
        """
        from agent_r1_gym.support.chat_refusals import Refusal, actual_status
        from agent_r1_gym.support.http import HTTPClient

        if self._client is None:
            self._client = HTTPClient(
                self._url, max_retries=self._max_retries, initial_backoff=0.5, pool_size=16, max_bytes=2**20
            )
        while True:
            request = {"model": self._model, "messages": messages, **self._fields.renamed(self._sampling)}
            request |= {"tools": tools} if tools else {}
            answer, retry_after, _ = self._client.request_in_full(
                "POST",
                "/chat/completions",
                json.dumps(request).encode(),
                timeout=self._timeout,
                status_of=actual_status,
                headers=_headers(),
            )
            if answer.status == 200:
                break
            refusal = Refusal.read(answer)
            if not self._fields.adapt(request, refusal):
                words = refusal.message.replace(os.environ.get(_KEY) or "\0", "<key>")
                raise InfrastructureError(
                    f"{self._name} returned HTTP {refusal.status}: {words[:300]!r}.", retry_after=retry_after
                )
        try:
            message = json.loads(answer.body)["choices"][0]["message"]
            text, calls = message.get("content") or "", list(message.get("tool_calls") or ())
            parts = [{"type": "text", "text": text}] if isinstance(text, str) else text
            return "".join(part["text"] for part in parts if part["type"] == "text"), calls
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            raise InfrastructureError(f"{self._name} returned no chat completion: {answer.body[:80]!r}.") from error

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_client": None}


def _headers() -> dict[str, str]:
    """The headers of a request; the key is not kept, so that no pickle contains it."""
    key = os.environ.get(_KEY)
    return {"Authorization": f"Bearer {key}"} if key else {}
