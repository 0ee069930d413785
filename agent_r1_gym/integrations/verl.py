"""verl: an agent loop that plays our environments; rows name the environment and the task.

    from agent_r1_gym.integrations.dataset_rows import write_rows
    write_rows("AgentR1/HotpotQA-v0", "train.parquet", library="verl")

verl finds the loop by `actor_rollout_ref.rollout.agent.agent_loop_config_path`, a YAML file:

    - name: agent_r1_gym
      _target_: agent_r1_gym.integrations.verl.AgentR1Loop
"""

from __future__ import annotations

import asyncio
import functools
import json
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from agent_r1_gym.errors import ConfigurationError, InfrastructureError
from agent_r1_gym.integrations.base import lazy_classes, library, with_base
from agent_r1_gym.integrations.dataset_rows import ADAPTER_NAME, EpisodeRow
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.session import env_display_name
from agent_r1_gym.run.token_session import NewContext, TokenLimits, TokenSession
from agent_r1_gym.support.packages import local_engines

_MODULE = "verl.experimental.agent_loop.agent_loop"
_ABORTED = ("abort", "aborted")
_SPECULATIVE = ("spec_num_draft_tokens", "spec_num_accepted_tokens", "spec_num_verify_steps")
"""Counters of speculative decoding, which a server reports for each turn."""
_THREADS = 64


def _classes() -> Sequence[type]:
    verl: Any = library(_MODULE, package="verl", tested_version="0.9")

    class Output(verl.AgentLoopOutput):  # type: ignore[misc]
        def as_dict(self) -> dict[str, Any]:
            """Returns what the base class does, with each turn's reward on the last token of the turn."""
            output: dict[str, Any] = super().as_dict()
            output["rm_scores"] = output["rm_scores"] * 0
            for position, reward in self.extra_fields["turn_rewards"]:
                output["rm_scores"][position] += reward
            return output

    made = with_base(verl.AgentLoopBase, _AgentR1Loop, output=Output, metrics=verl.AgentLoopMetrics)
    return (verl.register(ADAPTER_NAME)(made),)


__getattr__ = lazy_classes(__name__, ("AgentR1Loop",), _classes)


class _AgentR1Loop:
    """Plays the episode of a row; tokens get ids, mask and log-probs when they are sampled."""

    async def run(self, sampling_params: Mapping[str, Any], priority: int = 0, **row: Any) -> Any:
        """Returns the episode: its return as `reward_score`, the reward of each turn in `extra_fields`.

        verl's default trainer logs an exception, and goes on without the episode.

        Raises:
            ConfigurationError: the row does not name an episode, its options do not fit, or the context is rewritten.
            InfrastructureError: a backend or the server failed.
        """
        this: Any = self
        env_row = EpisodeRow.read(row.get("extra_info") or {})
        chat = _chat(this.tokenizer, json.dumps(dict(this.apply_chat_template_kwargs), sort_keys=True))
        rollout = this.rollout_config
        request_id = f"det-{int(priority)}" if getattr(rollout, "full_determinism", False) else uuid4().hex
        limits = TokenLimits(rollout.prompt_length, rollout.response_length)
        start = time.perf_counter()
        with env_row.env(chat.markup) as env:
            session = TokenSession(env, env_row.job, chat=chat, limits=limits, executor=_threads())
            stops = session.sampling.get("stop_token_ids", chat.stop_ids)
            server = _GenerationServer(this.server_manager, request_id, sampling_params, stops)
            await _play(session, server)
            record = session.record()
        if record.infrastructure_error is not None:
            raise InfrastructureError(f"{env_display_name(env)} lost a backend: {record.infrastructure_error}.")
        times = {"generate_sequences": server.seconds, "tool_calls": time.perf_counter() - start - server.seconds}
        metrics = this.metrics(**times, num_preempted=server.preempted)
        return this.output(**_output(record, server), metrics=metrics)


class _GenerationServer:
    """verl's server of the model, for one episode."""

    def __init__(self, manager: Any, request_id: str, sampling: Mapping[str, Any], stops: tuple[int, ...]) -> None:
        self._manager, self._request_id = manager, request_id
        more = set(sampling.get("stop_token_ids") or ())
        self._sampling = {**sampling, "stop_token_ids": sorted({*stops, *more})}
        self.seconds, self.preempted = 0.0, -1
        self.extra_fields: dict[str, Any] = {}
        self.routed_experts: Any = None
        """Of all tokens up to the end of the last turn, where verl records the experts for router replay."""

    async def turn(self, context: list[int], max_tokens: int) -> tuple[list[int], list[float], bool]:
        """Returns the tokens of a turn, their log-probs (NaN where verl asked for none), and whether it was stopped."""
        start = time.perf_counter()
        answer = await self._manager.generate(
            request_id=self._request_id,
            prompt_ids=context,
            sampling_params={**self._sampling, "max_tokens": max_tokens},
        )
        self.seconds += time.perf_counter() - start
        if answer.stop_reason in _ABORTED or not answer.token_ids:
            raise InfrastructureError(f"verl's server gave up a turn: {answer.stop_reason}.")
        if answer.num_preempted is not None:
            self.preempted = max(self.preempted, 0) + answer.num_preempted
        if (experts := getattr(answer, "routed_experts", None)) is not None:
            self.routed_experts = experts
        first = {name: value for name, value in self.extra_fields.items() if name != "max_global_steps"}
        counted = [name for name in _SPECULATIVE if name in first and name in answer.extra_fields]
        sums = {name: first[name] + answer.extra_fields[name] for name in counted}
        self.extra_fields = {**answer.extra_fields, **first, **sums}
        ids = list(answer.token_ids)[:max_tokens]
        logprobs = list(answer.log_probs or [])[:max_tokens] or [math.nan] * len(ids)
        return ids, logprobs, ids[-1] in self._sampling["stop_token_ids"]


async def _play(session: TokenSession, server: _GenerationServer) -> None:
    context = list(session.prompt_ids)
    while not session.ended:
        ids, logprobs, stopped = await server.turn(context, session.max_length - len(context))
        reply = session.finish_turn(ids, logprobs, stopped)
        answer = await asyncio.wrap_future(reply) if isinstance(reply, Future) else reply
        if isinstance(answer, NewContext):
            raise ConfigurationError(
                f"The context of {env_display_name(session.env)} was rewritten, by a wrapper (such as `ContextWindow`) "
                "or by a chat template that drops earlier thinking. This adapter gives verl one context per episode: "
                "leave out the wrapper, or take a template that keeps all messages "
                "(actor_rollout_ref.model.custom_chat_template)."
            )
        context += [*ids, *(answer or ())]


def _output(record: Trajectory, server: _GenerationServer) -> dict[str, Any]:
    tokens = record.tokens
    assert tokens is not None
    end = tokens.spans[-1][1]
    logprobs = [0.0 if logprob is None else logprob for logprob in tokens.logprobs[:end]]
    rewards = [turn.reward for turn in record.turns]
    experts = server.routed_experts
    return {
        "prompt_ids": list(tokens.prompt_ids),
        "response_ids": list(tokens.completion_ids[:end]),
        "response_mask": list(tokens.loss_mask[:end]),
        "response_logprobs": None if any(map(math.isnan, logprobs)) else logprobs,
        "routed_experts": None if experts is None else experts[: len(tokens.prompt_ids) + end],
        "reward_score": record.episode_return,
        "num_turns": sum(message.role != "system" for message in record.messages),
        "extra_fields": {
            **server.extra_fields,
            "turn_scores": rewards,
            "tool_rewards": [],
            "turn_rewards": [(last - 1, reward) for (_, last), reward in zip(tokens.spans, rewards, strict=True)],
            "reward_extra_info": _validated(record),
            "scores": dict(record.scores),
            "reward_terms": record.reward_terms,
            "end_reason": record.end_reason,
            "truncated": record.truncated,
        },
    }


def _validated(record: Trajectory) -> dict[str, float]:
    """Returns what validation averages: the same names for every environment, since verl has no mean of a missing one.

    `success` is how well the episode solved its task, NaN where the environment cannot tell.
    """
    return {
        "success": record.scores.get("em", math.nan),
        "episode_return": record.episode_return,
        **record.counts(),
    }


@functools.lru_cache(maxsize=4)
def _chat(tokenizer: Any, options: str) -> Any:
    return local_engines().ChatFormat(tokenizer, template_options=json.loads(options))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="tools")
