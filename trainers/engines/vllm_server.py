"""One of vLLM's servers, as `VLLMServers` asks it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.support.http import HTTPClient
from trainers.engines.requests import SampledTurn

_MAX_BYTES = 64 * 2**20


class Server:
    """One server: who it is, whether it is up, and how many requests it has."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.base = ""
        self.in_flight = 0
        self.up = True
        self._http = HTTPClient(self.url, max_retries=0, pool_size=64, max_bytes=_MAX_BYTES)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float) -> tuple[int, Any]:
        """Returns status and answer, which is text where it is no JSON.

        Raises:
            InfrastructureError: it cannot be reached, or does not answer in time.
        """
        data = None if body is None else json.dumps(body).encode()
        status, raw = self._http.exchange(method, path, data, timeout=timeout)
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, raw[:500].decode("utf-8", "replace")

    def must(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float = 600.0) -> Any:
        """Returns the answer to a request that has to succeed.

        Raises:
            InfrastructureError: see `ask`, or the server has failed.
            ConfigurationError: it refuses.
        """
        status, answer = self.ask(method, path, body, timeout=timeout)
        if status >= 500:
            raise InfrastructureError(f"{self.url}{path} answered {status}: {answer!s:.300}")
        if status != 200:
            raise ConfigurationError(f"{self.url}{path} answered {status}: {answer!s:.300}")
        return answer

    def cards(self) -> list[Any]:
        """Returns what it says of its models, adapters included."""
        answer = self.must("GET", "/v1/models", timeout=30.0)
        cards = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(cards, list) or not all(isinstance(card, dict) and "id" in card for card in cards):
            raise InfrastructureError(f"{self.url}/v1/models says nothing of models: {answer!s:.200}")
        return cards

    def weight_version(self) -> str | None:
        """Returns which whole weights it says that it has, None where it does not tell.

        Raises:
            InfrastructureError: it cannot be reached, or does not answer in time.
        """
        status, answer = self.ask("GET", "/weight_info", timeout=30.0)
        version = answer.get("weight_version") if status == 200 and isinstance(answer, dict) else None
        return version if isinstance(version, str) else None

    def close(self) -> None:
        """Closes its connections."""
        self._http.close()


def turn_of(server: Server, answer: Any) -> tuple[SampledTurn, str]:
    """Returns the turn in an answer, and whose it is.

    Raises:
        InfrastructureError: the answer holds none.
    """
    try:
        choice, model = answer["choices"][0], answer["model"]
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        known = choice["finish_reason"] in ("stop", "length") and len(ids) == len(logprobs) > 0
        if (
            known
            and all(type(token) is int for token in ids)
            and all(isinstance(number, int | float) for number in logprobs)
        ):
            return SampledTurn(ids, logprobs), model
    except (TypeError, KeyError, IndexError):
        pass
    raise InfrastructureError(f"{server.url}/v1/completions answered with no turn: {answer!s:.300}")


def likeliest(server: Server, temperature: float) -> tuple[float, float]:
    """Returns the log-probs of the two likeliest tokens after three arbitrary ones."""
    body = {"model": server.base, "prompt": [1, 2, 3], "max_tokens": 1, "logprobs": 2, "seed": 0, "ignore_eos": True}
    answer = server.must("POST", "/v1/completions", {**body, "temperature": temperature})
    first, second = sorted(answer["choices"][0]["logprobs"]["top_logprobs"][0].values(), reverse=True)[:2]
    return first, second
