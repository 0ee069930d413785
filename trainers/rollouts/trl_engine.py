"""Engines that play turn by turn and prefill the whole context anew on every turn, unlike `SlotEngine`.

`TRLEngine` plays on what TRL generates with where no vLLM is at hand.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future

from accelerate.utils import gather_object  # type: ignore[import-untyped]

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.engines import when_ready
from agent_r1_gym.run.token_session import NewContext, TokenSession, context_limit, end_context_full
from trainers.rollouts.collect import GenerateTurns

TokenTurn = tuple[list[int], list[float]]

Live = list[tuple[TokenSession, list[int]]]
"""Sessions and their contexts."""


class LockstepEngine(ABC):
    """Plays the turns of all live sessions in step, and all ranks in step: an idle one generates from a dummy.

    Sharded weights are gathered by collective calls, which every rank must make equally often.
    """

    def __init__(
        self, *, max_length: int, max_new_tokens: int, stop_token_ids: Iterable[int], dummy: list[int]
    ) -> None:
        self.max_length, self.max_new_tokens, self.dummy = max_length, max_new_tokens, dummy
        self.stop_token_ids = frozenset(stop_token_ids)

    def close(self) -> None:  # noqa: B027 - it owns nothing
        """Free what the engine owns: nothing, the backend is its owner's."""

    def run(self, sessions: Iterable[TokenSession]) -> None:
        """Play all sessions to their end.

        Raises:
            ConfigurationError: a prompt is empty, or a session continues beyond `max_length`.
            Exception: whatever a session, its Future or the backend raises.
        """
        live = [(session, list(session.prompt_ids)) for session in when_ready(sessions)]
        if not all(context for _, context in live):
            raise ConfigurationError("A session's prompt_ids is empty, expected at least one token.")
        while True:
            open_contexts = [context for session, context in live if self._room(session, context) > 0]
            counts = gather_object([(len(live), len(open_contexts))])
            if not any(count for count, _ in counts):
                return
            dummies = [self.dummy] * (max(count for _, count in counts) - len(open_contexts))
            turns = iter(self._generate(open_contexts + dummies) if open_contexts or dummies else [])
            live = self._finish(live, turns)

    @abstractmethod
    def _generate(self, contexts: list[list[int]]) -> list[TokenTurn]:
        """Return sampled tokens and log-probs for each context; what follows a stop token is cut by the caller."""

    def _finish(self, live: Live, turns: Iterator[TokenTurn]) -> Live:
        replies = []
        for session, context in live:
            remaining = self._room(session, context)
            if remaining <= 0:
                end_context_full(session, context_limit(session, self.max_length))
                continue
            ids, logprobs, stopped = self._cut(*next(turns), remaining)
            reply = session.finish_turn(ids, logprobs, stopped)
            replies.append((session, context + ids, reply))
        answers = ((s, c, reply.result() if isinstance(reply, Future) else reply) for s, c, reply in replies)
        return [
            (session, list(answer.ids) if isinstance(answer, NewContext) else context + answer)
            for session, context, answer in answers
            if answer is not None
        ]

    def _room(self, session: TokenSession, context: list[int]) -> int:
        return context_limit(session, self.max_length) - len(context)

    def _cut(self, ids: list[int], logprobs: list[float], remaining: int) -> tuple[list[int], list[float], bool]:
        end = min(self.max_new_tokens, remaining)
        stop = next((index for index, token in enumerate(ids[:end]) if token in self.stop_token_ids), None)
        end = end if stop is None else stop + 1
        return ids[:end], logprobs[:end], stop is not None


class TRLEngine(LockstepEngine):
    """What a TRL trainer generates with: transformers' generate, or continuous batching.

    Sampling (temperature, top_p, top_k, min_p ...) is the trainer's; a turn ends with the chat format's tokens, not
    with those of the trainer, which knows no template. No log-probs are reported: sessions get NaN.

    Args:
        generate: samples turns, see `trl_internals.generate_turn`.
        max_new_tokens: maximum number of tokens per turn.
        max_length: maximum number of tokens of an episode, prompt included.
        stop_token_ids: end a turn (`ChatFormat.stop_ids`).
    """

    def __init__(
        self, generate: GenerateTurns, *, max_new_tokens: int, max_length: int, stop_token_ids: Sequence[int]
    ) -> None:
        super().__init__(
            max_length=max_length,
            max_new_tokens=max_new_tokens,
            stop_token_ids=stop_token_ids,
            dummy=[stop_token_ids[0]],
        )
        self._generate_turns = generate

    def _generate(self, contexts: list[list[int]]) -> list[TokenTurn]:
        ids, logprobs = self._generate_turns(
            contexts, max_new_tokens=self.max_new_tokens, stop_token_ids=tuple(self.stop_token_ids)
        )
        return [
            (list(turn), [math.nan] * len(turn) if logprobs is None else list(logprobs[number]))
            for number, turn in enumerate(ids)
        ]
