"""VLLMServerBackend: client of vLLM in other processes or on other machines, one HTTP request per episode and turn.

The servers are vLLM's own (`vllm serve`), started by the user. Token ids go in, ids and log-probs come out.
Every answer is checked for the version of the weights that gave it: the name of an adapter is new in each sync of each
run and stands in the answer; whole weights have a version that is asked for after each answer.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import broadcast_object_list  # type: ignore[import-untyped]
from safetensors.torch import save_file

from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.support.checks import check_base_url
from agent_r1_gym.support.concurrency import submit_call
from agent_r1_gym.support.http import HTTPClient
from trainers.rollouts.request_engine import SampledTurn, SamplingOptions, TurnRequest
from trainers.rollouts.vllm_backend import merged_parameters, save_adapter, supported_lora_rank

logger = logging.getLogger(__name__)

PREFIX = "agent-r1-"
"""How the names of weights begin that runs hand over."""
_NAME = re.compile(rf"{PREFIX}[0-9a-f]{{8}}-\d+")
"""Names of weights: of a run, and the number of the sync."""
_PAUSE = 1.0
"""Seconds between two questions whether a server is up again."""
_ATTEMPTS = 4
"""Times that a request is sent whose server answers that something is wrong there."""
_ANY_TOKENS = (1, 2, 3)
"""Every model has them."""
_REPLAYED = 32
"""Tokens that a server samples, and the trainer's model scores: enough that rounding averages out."""
_T = TypeVar("_T")
_MAX_BYTES = 64 * 2**20
_HEALTH_CHECK_SECONDS = 10.0
"""Seconds after which a server that has not answered yet gets a health request, again and again."""
_HEALTH_TIMEOUT = 30.0
"""Seconds until it must answer; under load vLLM may need some."""
_AS_LONG_AS_HEALTHY = 86_400.0
"""Timeout of requests under such health checks, which no healthy server reaches."""
_NO_PENALTIES = {"repetition_penalty": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""A server takes what a request does not set from the model's `generation_config.json`."""


@dataclass(frozen=True, kw_only=True)
class VLLMServerOptions:
    """Which servers, and what they are for."""

    urls: Sequence[str]
    """Addresses, such as http://127.0.0.1:8000."""
    folder: Path
    """Where weights are handed over; every server must see it under the same path."""
    max_length: int
    """Maximum number of tokens of a context."""
    adapter_rank: int = 0
    """Rank of the LoRA adapter that is trained; 0: whole weights are sent."""
    max_logprob_diff: float = math.inf
    """Log-probs of a server with its first weights may differ from the trainer's by so many nats, on average."""
    patience: float = 600.0
    """Seconds that a turn waits in total for a server to be up; then its episode is lost."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What the servers should answer with: a name that stands for these weights only, and where they lie."""

    name: str
    folder: str


class _StaleWeights(InfrastructureError):
    """A server that has other weights than it should: it was started again."""


class VLLMServerBackend:
    """Answers requests by servers, the least busy one first; one that fails is left alone until it is up again.

    A request whose server fails is sent again, to another one if there is one: with its seed it gets the same tokens.
    A server that takes long gets health requests meanwhile: one that hangs has failed, one that is well may take its
    time.
    A server that was started again gets the weights of the day before any request.

    Args:
        options: see `VLLMServerOptions`.

    Attributes:
        weights: what the servers answer with; None: before the first `sync`.

    Raises:
        ConfigurationError: no address, or a server that is started with other options than are needed.
        InfrastructureError: a server does not answer within `patience`.
    """

    def __init__(self, options: VLLMServerOptions) -> None:
        if not options.urls:
            raise ConfigurationError("No server is named: give at least one URL, such as http://127.0.0.1:8000.")
        self.options = options
        self.weights: Weights | None = None
        self._run, self._version = uuid.uuid4().hex[:8], 0
        self._servers = [VLLMServerClient(url) for url in options.urls]
        self._change = threading.Condition()
        self._loading = threading.Lock()  # held while a server is given weights; waited for by no request
        self._refusal: ConfigurationError | None = None
        self._batch = 0
        self._closed = False
        for server in self._servers:
            self._wait_until_ready(server)
        if PartialState().is_main_process:
            for folder in options.folder.glob(f"{PREFIX}*"):  # of a run that was killed
                if _NAME.fullmatch(folder.name) and folder.is_dir():
                    shutil.rmtree(folder, ignore_errors=True)  # follows no link

    def submit(self, request: TurnRequest) -> Future[SampledTurn]:
        """See `Backend`."""
        return submit_call(functools.partial(self._answer, request, self._batch))

    def step(self) -> bool:
        """See `Backend`: the servers do the work."""
        return False

    def abort_all(self) -> None:
        """See `Backend`: what is under way is not requested again."""
        with self._change:
            self._batch += 1
            self._change.notify_all()

    def awake(self) -> AbstractContextManager[None]:
        """Return a context that changes nothing: servers do not sleep."""
        return nullcontext()

    def sync(self, model: Any) -> None:
        """Hand the weights of a trainer's model to all servers that are up; all processes call it together.

        Args:
            model: the unwrapped model, whose weights are whole in this process.

        Raises:
            ConfigurationError: a server refuses them.
        """
        outcome: list[Any] = [None, None]
        with self._loading:
            # Else one would load old weights after another had loaded the new ones, and before it set their version.
            PartialState().wait_for_everyone()
            if PartialState().is_main_process:
                try:
                    outcome[0] = self._publish(model)
                except Exception as error:  # all processes stop with it, else they would wait for ever
                    outcome[1] = error
            broadcast_object_list(outcome)
            if outcome[1] is not None:
                raise outcome[1]
            self.weights = outcome[0]

    def close(self) -> None:
        """End all waiting, takes the last adapter from the servers and removes its files."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        if PartialState().is_main_process and self.weights is not None:
            self._withdraw(self.weights)
        for server in self._servers:
            server.close()

    def _wait_until_ready(self, server: VLLMServerClient) -> None:
        """Wait for a server, and checks that it was started as is needed."""
        deadline = time.monotonic() + self.options.patience
        while True:
            try:
                check_server_options(server, max_length=self.options.max_length, adapter_rank=self.options.adapter_rank)
                return
            except InfrastructureError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)

    def _answer(self, request: TurnRequest, batch: int) -> SampledTurn:
        """Sample a turn on a server, with the current weights."""
        faults, deadline = 0, time.monotonic() + self.options.patience
        while True:
            server, began = self._acquire_server(batch, deadline), time.monotonic()
            try:
                return server.call_with_health_check(functools.partial(self._sample, server, request))
            except InfrastructureError as error:
                faults += 1
                deadline += time.monotonic() - began  # patience is for waiting: the server may have worked for an hour
                self._mark_down(server, error)
                if faults >= _ATTEMPTS * len(self._servers):
                    raise
            finally:
                with self._change:
                    server.in_flight -= 1

    def _sample(self, server: VLLMServerClient, request: TurnRequest) -> SampledTurn:
        weights, name = self.weights, self._name_at(server)
        body = completion_request(name, request)
        status, answer = server.request("POST", "/v1/completions", body, timeout=_AS_LONG_AS_HEALTHY)
        if status == 404:
            raise _StaleWeights(f"{server.url} does not know {name!r}: it was started again.")
        if status != 200:
            kind = InfrastructureError if status >= 500 or status in (408, 429) else RuntimeError
            raise kind(f"{server.url}/v1/completions answered {status}: {answer!s:.300}")
        turn, model = parse_turn(server, answer)
        if model != name or not self._is_current(server):
            raise _StaleWeights(f"{server.url} answered with the weights of {model!r}, expected {weights!r}.")
        return turn

    def _name_at(self, server: VLLMServerClient) -> str:
        """Return the name of the current weights on a server."""
        return self.weights.name if self.weights is not None and self.options.adapter_rank else server.base_model

    def _is_current(self, server: VLLMServerClient) -> bool:
        """Whether whole weights are those of the latest sync; for adapters the response itself proves it."""
        if self.options.adapter_rank or self.weights is None:
            return True
        return server.weight_version() == self.weights.name

    def _acquire_server(self, batch: int, deadline: float) -> VLLMServerClient:
        """Wait for a server that is up, and return the least busy one."""
        with self._change:
            while True:
                if batch != self._batch or self._closed:
                    raise InfrastructureError("The rollouts of this request have ended.")
                if self._refusal is not None:
                    raise self._refusal
                up = [server for server in self._servers if server.up]
                if up:
                    server = min(up, key=lambda server: server.in_flight)
                    server.in_flight += 1
                    return server
                left = deadline - time.monotonic()
                if left <= 0:
                    urls = ", ".join(server.url for server in self._servers)
                    raise InfrastructureError(f"vLLM: none of {urls} has answered for {self.options.patience:.0f} s.")
                self._change.wait(left)

    def _mark_down(self, server: VLLMServerClient, error: InfrastructureError) -> None:
        """Leave a server alone until it is up again, with the weights of the day."""
        with self._change:
            if not server.up:
                return
            server.up = False
        logger.warning("%s is left alone until it is up again: %s", server.url, error)
        submit_call(functools.partial(self._recover_server, server))

    def _recover_server(self, server: VLLMServerClient) -> None:
        """Wait until a server answers, gives it the weights of the day, and takes it back."""
        while not self._closed:
            try:
                server.list_models()  # who does not answer holds up no sync
                with self._loading:
                    if self.weights is not None:
                        self._load_checked(server, self.weights)
                    self._mark_up(server)
                return
            except InfrastructureError:
                time.sleep(_PAUSE)
            except ConfigurationError as error:  # which the requests raise
                self._refusal = error
                self._mark_up(server)
                return

    def _mark_up(self, server: VLLMServerClient) -> None:
        with self._change:
            server.up = True
            self._change.notify_all()

    def _publish(self, model: Any) -> Weights:
        """Write the weights and has the servers load them; the old ones are removed."""
        self._version += 1
        old, name = self.weights, f"{PREFIX}{self._run}-{self._version}"
        folder = self.options.folder.resolve() / name
        folder.mkdir(parents=True)
        if self.options.adapter_rank:
            save_adapter(model, folder)
        else:
            tensors = {name: value.cpu().contiguous() for name, value in merged_parameters(model)}
            save_file(tensors, folder / "model.safetensors")
        new = Weights(name, str(folder))
        self.weights = new  # for servers that come up from here on
        up = [server for server in self._servers if server.up]
        loads = [submit_call(functools.partial(self._load_checked, server, new)) for server in up]
        for server, load in zip(up, loads, strict=True):
            try:
                load.result()
                if old is None and self.options.max_logprob_diff < math.inf:
                    self._compare(server, model)
            except InfrastructureError as error:
                self._mark_down(server, error)
        if old is not None:
            self._withdraw(old)
        return new

    def _compare(self, server: VLLMServerClient, model: Any) -> None:
        room, max_diff = self.options.max_length, self.options.max_logprob_diff
        check_weights(server, self._name_at(server), model, max_length=room, max_diff=max_diff)

    def _load_checked(self, server: VLLMServerClient, weights: Weights) -> None:
        server.call_with_health_check(functools.partial(self._load, server, weights))

    def _load(self, server: VLLMServerClient, weights: Weights) -> None:
        """Has a server answer with these weights; several processes may ask for it at once."""
        if self.options.adapter_rank:
            body = {"lora_name": weights.name, "lora_path": weights.folder}
            status, answer = server.request("POST", "/v1/load_lora_adapter", body, timeout=_AS_LONG_AS_HEALTHY)
            if status != 200 and "max_lora_rank" in str(answer):  # whatever the status: another try would not help
                raise ConfigurationError(
                    f"{server.url} does not take adapters of rank {self.options.adapter_rank} ({answer!s:.200}): start "
                    f"it with --max-lora-rank {supported_lora_rank(self.options.adapter_rank)}."
                )
            if status >= 500:
                raise InfrastructureError(f"{server.url} answered {status} to a new adapter: {answer!s:.300}")
            if weights.name not in {card["id"] for card in server.list_models()}:
                raise ConfigurationError(
                    f"{server.url} does not take the adapter ({status}: {answer!s:.200}): start it with "
                    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora, --max-lora-rank at least "
                    f"{self.options.adapter_rank} and --max-loras 2, and let it see {weights.folder}."
                )
            return
        reload = {"method": "reload_weights", "kwargs": {"weights_path": weights.folder}}
        server.request_or_raise("POST", "/collective_rpc", reload, timeout=_AS_LONG_AS_HEALTHY)
        server.request_or_raise("POST", "/reset_prefix_cache")
        server.request_or_raise("POST", "/update_weight_version", {"new_version": weights.name})

    def _withdraw(self, weights: Weights) -> None:
        for server in self._servers:
            if server.up and self.options.adapter_rank:
                try:
                    server.request("POST", "/v1/unload_lora_adapter", {"lora_name": weights.name}, timeout=30.0)
                except InfrastructureError as error:
                    self._mark_down(server, error)
        shutil.rmtree(weights.folder, ignore_errors=True)


def check_server_options(server: VLLMServerClient, *, max_length: int, adapter_rank: int) -> None:
    """Ask a server for its model, which it is to answer with, and refuses one that was started otherwise than needed.

    Args:
        server: gets the name of its `base_model`.
        max_length: maximum number of tokens of a context.
        adapter_rank: of what is trained; 0: whole weights are sent.

    Raises:
        ConfigurationError: with what it is to be started with.
        InfrastructureError: it does not answer.
    """
    base_model = next(card for card in server.list_models() if card.get("parent") is None)
    server.base_model, room = base_model["id"], base_model.get("max_model_len") or max_length
    if room < max_length:
        raise ConfigurationError(
            f"{server.url} takes contexts of {room} tokens, but max_prompt_length + max_completion_length = "
            f"{max_length}: start it with --max-model-len {max_length}."
        )
    version = server.weight_version()
    if adapter_rank and (version or "").startswith(PREFIX):
        raise ConfigurationError(
            f"{server.url} still has the whole weights of another run ({version}), to which no adapter of this one "
            "fits: start it again."
        )
    if not adapter_rank and version is None:
        raise ConfigurationError(
            f"{server.url} takes no whole weights: start it with VLLM_SERVER_DEV_MODE=1 (on a network that you "
            "trust: it lets everybody change the server), or train an adapter (use_peft)."
        )
    (first, second), colder = _top_two_logprobs(server, 1.0), _top_two_logprobs(server, 0.5)
    if (first, second) == colder and first != second:
        raise ConfigurationError(
            f"{server.url} reports log-probs that do not depend on the temperature: start it with "
            "--logprobs-mode processed_logprobs."
        )


def check_weights(server: VLLMServerClient, name: str, model: Any, *, max_length: int, max_diff: float) -> None:
    """Refuse a server that, with the weights that it was just given, is not the model that is trained.

    It samples some tokens as in a rollout, which the model scores too. Names would prove less: a server may have an
    alias for a hub's id or a folder, and a folder other weights than it had.

    Args:
        server: has the weights.
        name: of the model that it is to answer with.
        model: the unwrapped model, whose weights are whole in this process.
        max_length: maximum number of tokens of a context.
        max_diff: by how many nats the log-probs may differ, on average.

    Raises:
        ConfigurationError: they differ by more.
        InfrastructureError: it does not answer.
    """
    context, room = list(_ANY_TOKENS), min(_REPLAYED, max_length - len(_ANY_TOKENS))
    request = TurnRequest(context, room, SamplingOptions(max_new_tokens=room), seed=0)
    turn, _ = parse_turn(server, server.request_or_raise("POST", "/v1/completions", completion_request(name, request)))
    own = _logprobs(model, context, turn.ids)
    drift = (own - torch.tensor(turn.logprobs)).abs().mean().item()
    if not drift <= max_diff:  # nan too
        raise ConfigurationError(
            f"{server.url} has another model than the one that is trained: log-probs of {len(turn.ids)} tokens that it "
            f"sampled differ by {drift:.2f} nats on average, expected at most alarm_drift_above={max_diff}. Start it "
            "with the trainer's model, in no other quantisation."
        )


def _logprobs(model: Any, context: list[int], ids: list[int]) -> torch.Tensor:
    """Compute the log-probs (T,) of tokens after a context as the trainer does, but without dropout."""
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    try:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*context, *ids]], device=device)).logits[0]
    finally:
        model.train(was_training)
    logprobs: torch.Tensor = logits[len(context) - 1 : -1].float().log_softmax(dim=-1).cpu()
    return logprobs.gather(1, torch.tensor(ids)[:, None])[:, 0]


def _top_two_logprobs(server: VLLMServerClient, temperature: float) -> tuple[float, float]:
    """Request the log-probs of the two likeliest tokens after three arbitrary ones."""
    body = {
        "model": server.base_model,
        "prompt": _ANY_TOKENS,
        "max_tokens": 1,
        "logprobs": 2,
        "seed": 0,
        "ignore_eos": True,
        "top_p": 1.0,
        "top_k": 0,
        **_NO_PENALTIES,
    }
    answer = server.request_or_raise("POST", "/v1/completions", {**body, "temperature": temperature})
    first, second = sorted(answer["choices"][0]["logprobs"]["top_logprobs"][0].values(), reverse=True)[:2]
    return first, second


class VLLMServerClient:
    """One server: who it is, whether it is up, and how many requests it has."""

    def __init__(self, url: str) -> None:
        check_base_url("vllm_server_base_url", url)
        self.url = url.rstrip("/")
        self.base_model = ""
        self.in_flight = 0
        self.up = True
        self._health_lock, self._next_health_check = threading.Lock(), 0.0
        self._health_error: str | None = None
        self._http = HTTPClient(self.url, max_retries=0, pool_size=64, max_bytes=_MAX_BYTES)

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float
    ) -> tuple[int, Any]:
        """Send a request; return the status and the response, decoded if it is JSON.

        Raises:
            InfrastructureError: it cannot be reached, or does not answer in time.
        """
        data = None if body is None else json.dumps(body).encode()
        status, raw = self._http.request(method, path, data, timeout=timeout)
        try:
            return status, json.loads(raw)
        except ValueError:
            return status, raw[:500].decode("utf-8", "replace")

    def request_or_raise(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout: float = 600.0
    ) -> Any:
        """Send a request that must succeed, and return the response.

        Raises:
            InfrastructureError: see `request`, or the server has failed.
            ConfigurationError: it refuses.
        """
        status, answer = self.request(method, path, body, timeout=timeout)
        if status >= 500:
            raise InfrastructureError(f"{self.url}{path} answered {status}: {answer!s:.300}")
        if status != 200:
            raise ConfigurationError(f"{self.url}{path} answered {status}: {answer!s:.300}")
        return answer

    def call_with_health_check(self, call: Callable[[], _T]) -> _T:
        """Call this server, without a time limit as long as it is healthy.

        Raises:
            InfrastructureError: the server hangs: it does not answer `/health` either. The call is left to itself.
        """
        answer = submit_call(call)
        while wait([answer], _HEALTH_CHECK_SECONDS).not_done:
            self._check_health()
        return answer.result()

    def _check_health(self) -> None:
        """Ask whether the server is well; of many threads that want to know, one asks for all of them."""
        with self._health_lock:
            if time.monotonic() >= self._next_health_check:
                self._health_error = self._query_health()
                self._next_health_check = time.monotonic() + _HEALTH_CHECK_SECONDS
            fault = self._health_error
        if fault is not None:
            raise InfrastructureError(f"{self.url} hangs: {fault}")

    def _query_health(self) -> str | None:
        try:
            status, _ = self.request("GET", "/health", timeout=_HEALTH_TIMEOUT)
        except InfrastructureError as error:
            return str(error)
        return f"/health answered {status}." if status >= 500 else None

    def list_models(self) -> list[Any]:
        """Query its models, adapters included."""
        answer = self.request_or_raise("GET", "/v1/models", timeout=30.0)
        list_models = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(list_models, list) or not all(
            isinstance(card, dict) and "id" in card for card in list_models
        ):
            raise InfrastructureError(f"{self.url}/v1/models lists no models: {answer!s:.200}")
        return list_models

    def weight_version(self) -> str | None:
        """Query the version of its whole weights; None where it reports none.

        Raises:
            InfrastructureError: it cannot be reached, or does not answer in time.
        """
        status, answer = self.request("GET", "/weight_info", timeout=30.0)
        version = answer.get("weight_version") if status == 200 and isinstance(answer, dict) else None
        return version if isinstance(version, str) else None

    def close(self) -> None:
        """Close its connections."""
        self._http.close()


def completion_request(name: str, request: TurnRequest) -> dict[str, Any]:
    """Build the body of `/v1/completions` for a turn of the model, or adapter, of this name."""
    options = request.options
    return {
        "model": name,
        "prompt": request.context,
        "max_tokens": request.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        **_NO_PENALTIES,
        "seed": request.seed,
        "stop_token_ids": list(options.stop_token_ids),
        "ignore_eos": True,  # only the chat format's tokens end a turn
        "logprobs": 0,
        "return_token_ids": True,
    }


def parse_turn(server: VLLMServerClient, answer: Any) -> tuple[SampledTurn, str]:
    """Parse a response; return the turn and the name of its weights.

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
