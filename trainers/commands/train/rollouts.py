"""How rollouts are played: `RolloutRunner`, what a trainer collects with, and the engines that it plays with."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from agent_r1_gym.run.engines import Engine
from agent_r1_gym.run.group_rewards import GroupReward, add_group_rewards
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.record import Trajectory
from trainers.config.agent import AgentConfig
from trainers.config.options import MAX_TURN_TOKENS
from trainers.monitoring.alarms import log_stuck_episodes
from trainers.monitoring.memory import max_context_length
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.collect import Collector, RolloutRequest, RolloutResult
from trainers.rollouts.dynamic_sampling import make_row_sampler, resample_groups, task_key
from trainers.rollouts.prefetch import RolloutPrefetcher
from trainers.rollouts.request_engine import RequestEngine, SamplingOptions
from trainers.rollouts.slot_engine import SlotEngine, cast_weights, rollout_dtype
from trainers.rollouts.trl_engine import TRLEngine


class RolloutRunner:
    """Plays the rows of a request, of training or of an evaluation: a `rollouts.collect.Collect`, over `Collector`s.

    Args:
        args: the configuration.
        training: makes episodes to train on.
        evaluating: makes those of evaluations.
        chat: how messages become tokens.
        train_rows: all rows to train on; groups without signal are replaced by others of these.
        group_reward: compares the rollouts of a task that is trained on; None: the environment's reward is all.

    Attributes:
        prefetcher: plays the next batch while one is trained on; None: nothing is played ahead.
    """

    def __init__(
        self,
        args: AgentConfig,
        training: Collector,
        evaluating: Collector,
        *,
        chat: ChatFormat,
        train_rows: Sequence[Any] = (),
        group_reward: GroupReward | None = None,
    ) -> None:
        self._args, self._chat, self._train_rows, self._group_reward = args, chat, train_rows, group_reward
        self._training, self._evaluating = training, evaluating
        self.prefetcher = RolloutPrefetcher(self.cancel) if args.overlap_rollouts else None
        self._playing: _Playing | None = None

    def describe(self) -> str:
        """Describe the rollouts under way, for a line of progress; "" if there are none."""
        playing = self._playing
        if playing is None:
            return ""
        counts = playing.player.counts(playing.engine)
        seconds, left = time.monotonic() - playing.began, playing.episodes - counts.episodes
        text = counts.describe(episodes_left=left, max_tokens=self._args.max_completion_length, seconds=seconds)
        return ", ".join(filter(None, [f"{counts.episodes}/{playing.episodes} rollouts", text]))

    def __call__(self, request: RolloutRequest) -> RolloutResult:
        """Play an episode per row; a row whose group was replaced comes back as another one."""
        if not request.training:
            with self._ready(self._evaluating, request):
                return RolloutResult(request.rows, self._play(self._evaluating, request.rows, request))
        if self.prefetcher is None:
            return self._training_task(request)()
        return self._prefetched_batch(self.prefetcher, request)

    def cancel(self) -> None:
        """End the episodes of training that are being played, within a turn, and begin no other."""
        self._training.player.deadline = 0.0
        for session in self._training.player.running_sessions():
            session.cancelled = True
        self._training.player.interrupt()

    def close(self) -> None:
        """End what is being played, and close the environments."""
        if self.prefetcher is not None:
            self.prefetcher.close()
        self._training.close()
        self._evaluating.close()

    def _prefetched_batch(self, prefetcher: RolloutPrefetcher, request: RolloutRequest) -> RolloutResult:
        """Take the batch that was started before the last update, and start the next one, from these rows.

        The first batch is played at once, and its rows once more: the rows that come next are not known yet.
        """
        args = self._args
        rows, result = prefetcher.pop_batch() or (request.rows, None)
        if any(request.process_group.all_gather(result is None)):
            task = self._training_task(replace(request, rows=rows))
            result = result or prefetcher.run_now(task)
        assert result is not None
        steps = int(args.steps_per_generation or 1) * args.num_iterations // args.gradient_accumulation_steps
        if request.step + steps < request.max_steps:
            prefetcher.start(list(request.rows), self._training_task(replace(request, batch=request.batch + 1)))
        return result

    def _training_task(self, request: RolloutRequest) -> Callable[[], RolloutResult]:
        """Make what plays a training batch; all processes call this together, and none waits for others in the task."""
        args, group = self._args, request.process_group
        # Before the first episode: afterwards all would wait for the slowest.
        used_keys = group.all_gather([task_key(row) for row in request.rows]) if args.refill_groups else []

        def play() -> RolloutResult:
            with self._ready(self._training, request):
                records = self._play(self._training, request.rows, request)
                if not args.refill_groups:
                    return RolloutResult(request.rows, records, step=request.step)
                rows = list(request.rows)
                result = resample_groups(
                    rows,
                    records,
                    size=args.num_generations,
                    rounds=args.refill_groups,
                    gamma=args.gamma,
                    draw=make_row_sampler(
                        self._train_rows,
                        itertools.chain.from_iterable(used_keys),
                        seed=hash((args.seed, request.batch, group.rank, *request.seed_suffix)),
                        part=(group.rank, group.size),
                    ),
                    play=lambda rows, attempt: self._play(self._training, rows, request, attempt=attempt),
                    out_of_time=lambda: self._training.out_of_time,
                )
            whole = int(args.generation_batch_size or 1)
            metrics = {
                "rollout/resampled": result.played / whole,
                "group/replaced": result.replaced * args.num_generations / whole,
            }
            return RolloutResult(rows, records, metrics, request.step)

        return play

    @contextmanager
    def _ready(self, collector: Collector, request: RolloutRequest) -> Iterator[None]:
        """While open, the engine can play; episodes that take long are reported."""
        rank = request.process_group.rank
        with engine_ready(self._args, request), log_stuck_episodes(collector.player.running_sessions, rank=rank):
            yield

    def _play(
        self, collector: Collector, rows: Sequence[Any], request: RolloutRequest, *, attempt: int = 0
    ) -> list[Trajectory]:
        engine = build_engine(self._args, self._chat, request, slots=min(len(rows), request.slots), attempt=attempt)
        collector.player.reset_counts()
        self._playing = _Playing(collector.player, engine, len(rows), time.monotonic())
        try:
            seeds = None if attempt else sampling_seeds(engine, len(rows), request.process_group.rank)
            records = collector.collect(rows, engine, seeds=seeds, keep_deadline=attempt > 0)
        finally:
            self._playing = None
        if self._group_reward is None or not request.training:
            return records
        rewarded = add_group_rewards(records, self._args.num_generations, self._group_reward)
        compared = (new for old, new in zip(records, rewarded, strict=True) if not old.infrastructure_error)
        collector.report_lost([record for record in compared if record.infrastructure_error])
        return rewarded


class _Playing(NamedTuple):
    """Rollouts under way."""

    player: Player
    engine: Engine
    episodes: int
    began: float


@contextmanager
def engine_ready(args: AgentConfig, request: RolloutRequest) -> Iterator[None]:
    """While open, the engine of `build_engine` can play: its weights are in the compute dtype, or it is awake."""
    if request.backend is not None:
        with request.backend.awake():
            yield
    elif args.engine == "cached":
        with cast_weights(rollout_dtype(args, request.model), request.model):
            yield
    else:
        yield


def build_engine(
    args: AgentConfig, chat: ChatFormat, request: RolloutRequest, *, slots: int, attempt: int = 0
) -> Engine:
    """Build the engine of `args.engine`, over the policy as it is now.

    Args:
        args: the configuration.
        chat: how messages become tokens.
        request: what samples, and which batch it is.
        slots: episodes at once.
        attempt: number of further rollouts in this batch, which get their own random numbers.
    """
    if args.engine == "trl":
        assert request.generate is not None
        return TRLEngine(
            request.generate,
            max_new_tokens=args.max_turn_tokens or MAX_TURN_TOKENS,
            max_length=args.max_prompt_length + args.max_completion_length,
            stop_token_ids=chat.stop_ids,
        )
    temperature = None if request.training else args.eval_temperature
    # A seed for every batch, so that a resumed run samples as if never stopped; `sampling_seeds` shares it out.
    stream = (request.batch, *request.seed_suffix) if request.training else (request.batch, 0)
    seed = hash((args.seed, *stream, request.process_group.rank if attempt else 0)) + attempt
    if request.backend is not None:
        options, room = sampling_options(args, chat, temperature), max_context_length(args, request.model)
        return RequestEngine(request.backend, options, slots=slots, max_length=room, seed=seed)
    return build_slot_engine(args, request.model, chat, slots=slots, seed=seed, temperature=temperature)


def sampling_seeds(engine: Engine, count: int, rank: int) -> list[int] | None:
    """Draw the seeds of this process's part of a batch: those that the same rows have in one process.

    Episodes that are played again draw on from there, where another process may have drawn too; their contexts differ.

    Args:
        engine: its random numbers begin with the batch.
        count: number of rows of a process.
        rank: which part of the batch this is.

    Returns:
        A seed per row; None where the engine takes none (engine=trl).
    """
    if not isinstance(engine, SlotEngine | RequestEngine):
        return None
    return [engine.draw_seed() for _ in range((rank + 1) * count)][rank * count :]


def sampling_options(args: AgentConfig, chat: ChatFormat, temperature: float | None = None) -> SamplingOptions:
    """Translate `args` into how turns are sampled, if need be at another temperature."""
    return SamplingOptions(
        max_new_tokens=args.max_turn_tokens or MAX_TURN_TOKENS,
        temperature=args.temperature if temperature is None else temperature,
        top_p=args.top_p,
        top_k=args.top_k or 0,
        stop_token_ids=chat.stop_ids,
    )


def build_slot_engine(
    args: AgentConfig, model: Any, chat: ChatFormat, *, slots: int, seed: int, temperature: float | None = None
) -> SlotEngine:
    """Build the engine that samples with a transformers model and keeps the caches of its episodes."""
    options = sampling_options(args, chat, temperature)
    engine = SlotEngine(
        model,
        options,
        slots=slots,
        max_length=max_context_length(args, model),
        enforce_eager=args.enforce_eager,
    )
    engine.generator.manual_seed(seed)
    return engine
