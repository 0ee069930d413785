"""How a trainer's rollouts are played: `Rollouts`, and the engines that play them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from agent_r1_gym.play.engine import Engine
from agent_r1_gym.play.record import Trajectory
from trainers.config import AgentConfig
from trainers.config.options import MAX_TURN_TOKENS
from trainers.engines.chat_format import ChatFormat
from trainers.engines.collect import Collector, Row
from trainers.engines.refill import draw_from, key_of, refill
from trainers.engines.requests import RequestEngine
from trainers.engines.sampling import SamplingOptions
from trainers.engines.slots import SlotEngine
from trainers.engines.turns import TRLEngine
from trainers.running.rollout_weights import rollout_dtype, weights_in
from trainers.running.sharding import whole_weights
from trainers.running.watchdog import watched
from trainers.train.sizing import longest_episode
from trainers.trainer import AgentTrainer


class Rollouts:
    """Plays the rows of a batch, of training or of an evaluation; see `trainer.Collect`.

    Args:
        training: makes episodes to train on.
        evaluating: makes those of evaluations.
        chat: how messages become tokens.
    """

    def __init__(self, training: Collector, evaluating: Collector, chat: ChatFormat) -> None:
        self._training, self._evaluating, self._chat = training, evaluating, chat

    def __call__(self, rows: list[Any], trainer: AgentTrainer) -> list[Trajectory]:
        """Returns an episode per row; a row whose group was refilled is replaced in the list."""
        training, args = trainer.model.training, trainer.args
        collector = self._training if training else self._evaluating
        seconds, rank = args.watchdog_seconds, trainer.accelerator.process_index
        refills = training and args.refill_groups > 0
        # Before anybody plays: afterwards all would wait for the slowest.
        taken = trainer.world.everyone([key_of(row) for row in rows]) if refills else []
        with ready_to_play(trainer), watched(collector.player.unfinished, seconds=seconds, rank=rank):
            records = self._play(collector, rows, trainer)
            if refills:
                self._refill(rows, records, trainer, list(itertools.chain.from_iterable(taken)))
        return records

    def _play(
        self, collector: Collector, rows: Sequence[Row], trainer: AgentTrainer, attempt: int = 0
    ) -> list[Trajectory]:
        slots = min(len(rows), trainer.slots.most)
        records = collector.collect(rows, engine_of(trainer, self._chat, slots=slots, attempt=attempt))
        if trainer.model.training and trainer.curriculum is not None:
            trainer.curriculum.note(rows, records)
        return records

    def _refill(self, rows: list[Row], records: list[Trajectory], trainer: AgentTrainer, taken: Sequence[Any]) -> None:
        """Replaces this process's groups without signal, in place, and has what was played for it logged."""
        args, accelerator = trainer.args, trainer.accelerator
        told = refill(
            rows,
            records,
            size=args.num_generations,
            rounds=args.refill_groups,
            draw=draw_from(
                cast("Sequence[Row]", trainer.train_dataset),
                taken,
                seed=hash((args.seed, trainer.batches, accelerator.process_index, *trainer.rollbacks.salt)),
                part=(accelerator.process_index, accelerator.num_processes),
                weights=None if trainer.curriculum is None else trainer.curriculum.weights(),
            ),
            play=lambda some, attempt: self._play(self._training, some, trainer, attempt),
            late=lambda: self._training.late,
        )
        whole = int(args.generation_batch_size or 1)
        trainer.shares["rollout/refills"] = told.played / whole
        trainer.shares["group/replaced"] = told.replaced * args.num_generations / whole


@contextmanager
def ready_to_play(trainer: AgentTrainer) -> Iterator[None]:
    """While open, the engine of `engine_of` can play: its weights are whole, of the type to compute in, and awake."""
    if trainer.backend is not None:
        with trainer.backend.awake():
            yield
    elif trainer.args.engine == "cached":
        model = trainer.accelerator.unwrap_model(trainer.model)
        with whole_weights(trainer), weights_in(rollout_dtype(trainer.args, model), model):
            yield
    else:
        yield


def engine_of(trainer: AgentTrainer, chat: ChatFormat, *, slots: int, attempt: int = 0) -> Engine:
    """Returns the engine that `args.engine` names, over the trainer's model as it is now.

    Args:
        trainer: whose model and configuration.
        chat: how messages become tokens.
        slots: episodes side by side.
        attempt: number of further rollouts in this batch, which get random numbers of their own.
    """
    args = trainer.args
    model = trainer.accelerator.unwrap_model(trainer.model)
    if args.engine == "trl":
        max_length = args.max_prompt_length + args.max_completion_length
        return TRLEngine(
            trainer,
            max_new_tokens=args.max_turn_tokens or MAX_TURN_TOKENS,
            max_length=max_length,
            stop_token_ids=chat.stop_ids,
        )
    training = trainer.model.training
    temperature = None if training else args.eval_temperature
    # A seed of its own for every batch and process, so that a resumed run samples as if never stopped.
    batch = (trainer.batches, *trainer.rollbacks.salt) if training else (trainer.evaluated, 0)
    seed = hash((args.seed, *batch, trainer.accelerator.process_index)) + attempt
    if trainer.backend is not None:
        options = sampling_options(args, chat, temperature)
        room = longest_episode(args, model)
        return RequestEngine(trainer.backend, options, slots=slots, max_length=room, seed=seed)
    return slot_engine(args, model, chat, slots=slots, seed=seed, temperature=temperature)


def sampling_options(args: AgentConfig, chat: ChatFormat, temperature: float | None = None) -> SamplingOptions:
    """Returns how turns are sampled: as `args` says, or at another temperature."""
    return SamplingOptions(
        max_new_tokens=args.max_turn_tokens or MAX_TURN_TOKENS,
        temperature=args.temperature if temperature is None else temperature,
        top_p=args.top_p,
        top_k=args.top_k or 0,
        stop_token_ids=chat.stop_ids,
    )


def slot_engine(
    args: AgentConfig, model: Any, chat: ChatFormat, *, slots: int, seed: int, temperature: float | None = None
) -> SlotEngine:
    """Returns the engine with the kept cache, sampling as `args` says, or at another temperature."""
    options = sampling_options(args, chat, temperature)
    length = longest_episode(args, model)
    engine = SlotEngine(model, options, slots=slots, max_length=length, compile_decoding=args.rollout_compile)
    engine.generator.manual_seed(seed)
    return engine
