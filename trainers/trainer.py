"""AgentTrainer: TRL's GRPOTrainer with rollouts in an environment and credit assigned token by token.

One training step, in the order of this file: TRL asks for a micro-batch (`_prepare_inputs`). Where none is left, it
asks for rollouts (`_roll_out`: collect -> `Batch`), scores them, gets advantages per token instead of its own
(`_assign_credit`: `Batch` -> credit), and splits them into micro-batches. Its loss over one (`_compute_loss`) comes
last; backward pass and optimiser step are those of Transformers. TRL's calls pass on few columns and none of our
objects, so `Progress` carries what a later part of the step needs.

To score is, as in TRL, to compute rewards and advantages. A log-prob pass is a forward pass for the log-probs of given
tokens: of the policy before its update, of the reference model, or in the loss. All of them go through
`_get_per_token_logps_and_entropies`. Old log-probs, which the loss compares with, exist only where TRL computes them:
if a batch is used for more than one optimiser step, or if the engine's log-probs correct the loss.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_callback import ProgressCallback

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.evaluation.agent_card import AgentCard
from agent_r1_gym.run.trust import remember
from trainers import trl_internals
from trainers.algorithms.advantages import check_options, estimate_credit
from trainers.algorithms.batch import Batch, check_trajectories, credit_options, mean_advantages, valid_fraction
from trainers.algorithms.credit import Credit, CreditInputs
from trainers.algorithms.critic import Critic, ValueBatch, policy_value_model
from trainers.algorithms.distillation import (
    add_to_advantages,
    distilled_rows,
    distilled_values,
    forward_at_labels,
    load_teacher,
    teacher_log_ratios,
)
from trainers.algorithms.metrics import RolloutSummary, credit_metrics_by_env, rollout_metrics
from trainers.algorithms.packing import (
    Layout,
    Prefixes,
    can_reorder_micro_batches,
    compute_logprobs,
    reorder_micro_batches,
    rows_per_pass,
    rows_with_advantage,
    setup_packing,
    without_dropout,
)
from trainers.algorithms.privileged import PrivilegedContext
from trainers.algorithms.turn_ratio import turn_level_old_logps
from trainers.config.agent import AgentConfig
from trainers.monitoring.alarms import CollapseAlarm
from trainers.monitoring.console import RolloutProgress
from trainers.monitoring.defaults import settle_defaults
from trainers.monitoring.memory import HeapGuard, estimate_of, plan_slots, shards_weights
from trainers.monitoring.preflight import check_size, warn_of_truncated_sampling
from trainers.monitoring.traces import trace_line, write_traces
from trainers.resume import checkpoints
from trainers.resume.resumable import ResumableTrainer
from trainers.resume.sharding import check_sharding, gathered_weights, sharding_of
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.collect import Collect, RolloutRequest
from trainers.rollouts.prefetch import RolloutPrefetcher
from trainers.rollouts.request_engine import SyncedBackend

SEQUENCE_MEAN_LOSSES = ("grpo", "sapo", "luspo", "dr_grpo")
"""TRL's losses that divide by the number of rollouts; the others divide by the number of tokens."""
TRACED_ROLLOUTS = 16
"""Rollouts per file of traces: the first ones of the main process."""
STALE_DRIFT_FACTOR = 2.0
"""Limit of the drift of rollouts that are an update old, in units of `alarm_drift_above`: the policy itself moved."""

StartBackend = Callable[[Any, str | None], SyncedBackend]
"""Starts what samples with its own copy of the weights, given the unwrapped policy and how it is sharded."""


@dataclass
class Progress:
    """What one part of a training step leaves for the next, beyond what TRL passes on."""

    rows: list[Any] = field(default_factory=list)
    """Rows that TRL wants rolled out: it passes on their prompts only."""
    batch: Batch | None = None
    """The latest rollouts of this process."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What `Collect` reported about them, to be logged as the sum over the processes."""
    staleness: int = 0
    """Optimiser steps taken since they were begun."""
    needs_logprobs: Tensor | None = None
    """(B, T) bool: tokens whose log-probs the next log-prob pass computes; TRL's method gets token ids only."""
    context_ids: Tensor | None = None
    """(B, T): contexts of the rows of this pass, see `batch.context_ids`."""
    prefixes: Prefixes | None = None
    """What the teacher reads in front of each context in this pass; None: the pass is not a teacher's."""
    informed: Prefixes | None = None
    """What the teacher reads in the loss under way, whose pass leaves `divergences`; None: it has no teacher."""
    divergences: Tensor | None = None
    """(B, T): `forward_kl` at each token of the loss under way."""
    kept_rows: Tensor | None = None
    """(B,) bool: the rollouts that the loss under way looks at; None: all."""
    entropy_estimates: Tensor | None = None
    """(B, T): -log p of each sampled token, whose mean is the entropy; for the rollouts that are left out."""
    turn_ratio_inputs: dict[str, Any] | None = None
    """Inputs of the loss under way if its ratios are per turn: the log-prob pass completes them."""
    eval_batches: int = 0
    """Batches rolled out in the current evaluation."""
    rollout_seconds: float = 0.0
    """Time that training has spent on rollouts, played or waited for."""
    batch_seconds: float = 0.0
    """Time that the latest rollouts took, in training or evaluation."""
    wait_seconds: float = 0.0
    """Part of it spent before the latest weight sync."""
    turns: Counter[str] = field(default_factory=Counter)
    """Turns that this process has played for training by their first parse error; "": they were parsed."""
    update_began: float | None = None
    """`time.monotonic()` when the latest rollouts ended; None: they are under way, or none was begun."""


class AgentTrainer(ResumableTrainer):
    """Trains a policy on the episodes that `collect` plays, by the algorithm that `args` names.

    Everything but rollouts and advantages is TRL's: losses, LoRA, Accelerate, vLLM sync, checkpoints, logging. The loss
    sees only tokens that the model sampled, each in the context in which it was sampled (with `loss_mask=False` also
    tokens of the environment); rollouts whose backend failed have no gradient and enter no statistic and no mean.

    Args:
        model: the policy: a path, a model, or one with an adapter.
        args: the configuration.
        collect: plays episodes; see `Collect`.
        train_dataset: rows; each has a `prompt`, for TRL's logs, and whatever `collect` reads.
        eval_dataset: rows to evaluate on during training.
        processing_class: the tokenizer; None: the model's.
        chat: how messages became tokens; saved with every model.
        card: what the model is an agent for; saved with every model, and as its README.
        peft_config: train an adapter; the critic of PPO gets one like it.
        prefetcher: plays the next batch during an update, on behalf of `collect`; None: nothing is played ahead.
        privileged: writes what only the critic or the teacher reads; None: gold answers, which records contain.
        start_backend: starts what samples the rollouts, next to the trainer or on servers. It gets the weights before
            the first rollouts after each update, and TRL weights rollouts by how far its log-probs are from the
            trainer's (`vllm_importance_sampling_correction`). The caller closes `backend`. None: the model samples.
        **trl_arguments: `callbacks`, `optimizers`, `quantization_config`, as TRL takes them.

    Raises:
        ConfigurationError: an option without effect, fewer rows than one generation batch takes, or PPO together with
            DeepSpeed ZeRO-3 or a quantised model.
    """

    model: Any
    num_generations: int
    num_generations_eval: int
    num_iterations: int

    def __init__(
        self,
        model: Any,
        args: AgentConfig,
        *,
        collect: Collect,
        train_dataset: Any,
        eval_dataset: Any = None,
        processing_class: Any = None,
        chat: ChatFormat | None = None,
        card: AgentCard | None = None,
        peft_config: Any = None,
        prefetcher: RolloutPrefetcher | None = None,
        privileged: PrivilegedContext | None = None,
        start_backend: StartBackend | None = None,
        **trl_arguments: Any,
    ) -> None:
        settle_defaults(args, model, command="train", peft_config=peft_config)
        self.credit_options = credit_options(args)
        check_options(args.preset.estimator, self.credit_options)
        check_size(train_dataset, args)
        warn_of_truncated_sampling(args)
        critic = "values" in args.preset.needs
        if critic and trl_arguments.get("quantization_config") is not None:
            raise ConfigurationError(
                f"algorithm {args.algorithm} cannot train a quantised model: its critic would be loaded whole, in "
                "float32. Do not set load_in_4bit or load_in_8bit, or choose an algorithm without critic."
            )
        # Before TRL wraps the model: the copy must not share its adapter.
        value_model = policy_value_model(model, args, peft_config=peft_config) if critic else None
        with trl_internals.copy_reference_model(None if peft_config or not args.beta else model):
            super().__init__(
                model,
                reward_funcs=[episode_return],
                args=args,
                train_dataset=train_dataset,
                eval_dataset=eval_dataset,
                processing_class=processing_class,
                peft_config=peft_config,
                rollout_func=lambda _prompts, _trainer: self._roll_out(),
                **trl_arguments,
            )
        if args.skip_zero_advantages and self.aux_loss_enabled:
            raise ConfigurationError(
                f"skip_zero_advantages=True with router_aux_loss_coef={args.router_aux_loss_coef} and a mixture of "
                "experts, which rollouts without an advantage balance too. Set router_aux_loss_coef=0 or "
                "skip_zero_advantages=False."
            )
        self.collect, self.chat, self.card, self.prefetcher = collect, chat, card, prefetcher
        self.privileged = privileged or PrivilegedContext()
        self.mask_truncated_completions = False  # TRL goes by the last token, `Batch` by `truncated`
        self.scale_rewards = args.scale_rewards or "group"  # for TRL's own statistics, which want a name
        if args.importance_sampling_level == "turn":
            self.importance_sampling_level = "token"  # in TRL's loss each token has a ratio: that of its turn
        self.alarm = CollapseAlarm(args)
        self.add_callback(self.alarm)
        self.add_callback(HeapGuard(lambda: estimate.peak if (estimate := estimate_of(self)) else None))
        if not args.disable_tqdm:
            self.remove_callback(ProgressCallback)
            self.add_callback(RolloutProgress(args.algorithm, self._describe_step))
        if value_model is not None:
            self.critic = Critic(value_model, args, accelerator=self.accelerator)
        self.teacher: Any = None  # of its own weights; else the policy teaches itself
        if args.teacher_model_name_or_path is not None:
            tokenizer, device = trl_internals.tokenizer_of(self), self.accelerator.device
            self.teacher = load_teacher(args.teacher_model_name_or_path, args, tokenizer=tokenizer, device=device)
        self.vocab_size: int = self.model.config.get_text_config().vocab_size
        self.packed = setup_packing(args.update_layout, self.model, self.ref_model, device=self.accelerator.device)
        self.longest_prompt: int | None = None  # of what was measured before the run
        self.progress = Progress()
        self.sharding = sharding_of(self.accelerator)
        if args.engine == "trl":
            trl_internals.check_generation(self)
        else:
            check_sharding(self)
        self.slots = plan_slots(self)
        self.backend: SyncedBackend | None = None
        if start_backend is not None:
            with self.resume_state.propagate_failure():
                self.backend = start_backend(self.accelerator.unwrap_model(self.model), self.sharding)
            trl_internals.install_weight_sync(self, self._sync_weights)

    # Rollouts

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Get TRL's next micro-batch, with similar rollouts of an optimiser step together, since TRL shuffles them."""
        before = trl_internals.micro_batches(self)
        inputs, batches = super()._prepare_inputs(generation_batch), trl_internals.micro_batches(self)
        if batches is before or not can_reorder_micro_batches(self.args):
            return inputs
        return trl_internals.set_micro_batches(self, reorder_micro_batches(batches, self.args, packed=self.packed))

    def _generate_and_score_completions(self, inputs: list[Any]) -> dict[str, Any]:
        """Let TRL roll out and score, then replace its advantages (B,) by credit for each token (B, T)."""
        progress = self.progress
        progress.rows = list(inputs)
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)  # calls `_roll_out`
        batch = progress.batch
        assert batch is not None
        if batch.context_ids is not None:
            output["context_ids"] = batch.context_ids
        if self.args.importance_sampling_level == "turn":
            output["turn_ids"] = batch.credit_inputs["turn_ids"]
        if not self.model.training:
            self._log_rollouts(batch)
            progress.eval_batches += 1
            return output
        self._assign_credit(batch, output)
        self.batches += 1
        return output

    def _roll_out(self) -> dict[str, Any]:
        """Collect episodes for the rows that TRL is at, make a batch of them, and return what TRL pads and scores."""
        progress, training = self.progress, self.model.training
        started = time.perf_counter() - progress.wait_seconds  # what `_sync_weights` waited counts as rollouts
        progress.wait_seconds = 0.0
        progress.update_began = None
        with self.resume_state.save_on_failure():
            # Decoding with sharded weights would gather them for every token.
            with gathered_weights(self) if self.args.engine == "cached" else nullcontext():
                result = self.collect(self._request(progress.rows, training=training))
            self.model.train(training)  # TRL reads off this flag whether it trains or evaluates
            check_trajectories(result.records, rows=len(progress.rows), engine=self.args.engine)
        batch = Batch.of(result.records, result.rows, self.args, device=self.accelerator.device)
        progress.batch, progress.metrics = batch, result.metrics
        progress.staleness = 0 if result.step is None else self.state.global_step - result.step
        progress.needs_logprobs, progress.context_ids = batch.needs_logprobs, batch.context_ids
        progress.update_began = time.monotonic()
        if training:
            turns = (turn for record in result.records for turn in record.turns)
            progress.turns.update(turn.parse_errors[0] if turn.parse_errors else "" for turn in turns)
        progress.batch_seconds = time.perf_counter() - started
        progress.rollout_seconds += progress.batch_seconds if training else 0.0
        self._log("rollout/seconds", progress.batch_seconds)
        if self.prefetcher is not None:
            self._log("rollout/staleness", progress.staleness)
        return batch.to_trl_inputs(
            filler=trl_internals.tokenizer_of(self).eos_token_id, logprobs=self.args.engine != "trl"
        )

    def _request(self, rows: Sequence[Any], *, training: bool) -> RolloutRequest:
        return RolloutRequest(
            rows=rows,
            training=training,
            batch=self.batches if training else self.progress.eval_batches,
            step=self.state.global_step,
            max_steps=self.state.max_steps,
            seed_suffix=self.rollbacks.seed_suffix,
            slots=self.slots.max_slots,
            model=self.accelerator.unwrap_model(self.model),
            backend=self.backend,
            generate=functools.partial(trl_internals.generate_turn, self) if self.args.engine == "trl" else None,
            process_group=self.process_group,
        )

    def _sync_weights(self) -> None:
        """Hand the weights to the backend; TRL calls this before the first rollouts after each update."""
        assert self.backend is not None
        if self.prefetcher is not None:
            self.progress.wait_seconds = self.prefetcher.wait()  # no episode changes its policy halfway
        with self.resume_state.save_on_failure(), gathered_weights(self):
            self.backend.sync(self.accelerator.unwrap_model(self.model))

    # Credit

    def _assign_credit(self, batch: Batch, output: dict[str, Any]) -> None:
        """Credit the tokens of the batch, log it, and fit the critic.

        What may fail on one rank alone (an environment's or an algorithm's code) is kept apart from passes over sharded
        weights and from the critic's steps, see `ResumeState.propagate_failure`.
        """
        with self.resume_state.propagate_failure():
            critic_prefixes = self._prefixes(self.args.critic_privileged, batch)
            teacher_prefixes = self._prefixes(self.args.teacher_privileged, batch)
        is_sharded = shards_weights(self.sharding)
        with nullcontext() if is_sharded else self.resume_state.propagate_failure():
            logps = self._policy_logps(output)
            log_ratios = self._teacher_log_ratios(batch, output, logps, teacher_prefixes)
        as_reward = self.args.distillation_placement == "reward"
        if self.args.distils_in_loss:
            prefixes = teacher_prefixes or Prefixes.none(len(batch.records), device=self.accelerator.device)
            rows = distilled_rows(batch.records, failures_only=self.args.distillation_failures_only)
            output |= {"teacher_ids": prefixes.ids, "teacher_lengths": prefixes.lengths}
            output["distilled"] = rows.to(self.accelerator.device)
        with self.resume_state.propagate_failure():
            inputs = self._credit_inputs(batch, output, logps, critic_prefixes, log_ratios if as_reward else None)
            credit = self._estimate_credit(batch, output, inputs, None if as_reward else log_ratios)
            self._compare_with_engine(batch, output, logps)
        if self.critic is not None:
            assert inputs.values is not None
            assert credit.returns is not None
            targets = credit.credited, credit.returns, inputs.values
            values = ValueBatch(*_model_inputs(output), *targets, output.get("context_ids"), critic_prefixes)
            for name, value in self.critic.fit(values).items():
                self._log(f"critic/{name}", value)

    def _estimate_credit(
        self, batch: Batch, output: dict[str, Any], inputs: CreditInputs, log_ratios: Tensor | None
    ) -> Credit:
        """Put advantages into TRL's batch, and log the batch; with the teacher's ratios where these are advantages."""
        credit = estimate_credit(self.args.preset.estimator, inputs, self.credit_options)
        if log_ratios is not None:
            credit = add_to_advantages(credit, log_ratios, weight=self.args.distillation_weight)
        output["advantages"] = credit.advantages
        if self.loss_type in SEQUENCE_MEAN_LOSSES:
            output["valid_fraction"] = torch.tensor(valid_fraction(inputs))
        self._log_rollouts(batch)
        mixture = [] if inputs.environments is None else [member.name for member in self.args.environments]
        for env, name, value in credit_metrics_by_env(inputs, credit, mixture):
            self._log(name if env is None else f"rollout/{env}/{name}", value)
        advantages = self.process_group.gather(mean_advantages(inputs, credit)).tolist()
        trl_internals.set_logged_column(self, "advantages", advantages)
        every = self.args.trace_steps
        if every and self.batches % every == 0 and self.accelerator.is_main_process:
            traced = zip(batch.records, batch.rows, batch.loss_masks, credit.advantages, strict=True)
            tokenizer = trl_internals.tokenizer_of(self)
            lines = [trace_line(*rollout, tokenizer) for rollout in itertools.islice(traced, TRACED_ROLLOUTS)]
            write_traces(Path(self.args.output_dir or "."), lines, step=self.state.global_step, batch=self.batches)
        return credit

    def _policy_logps(self, output: dict[str, Any]) -> Tensor | None:
        """Compute log-probs (B, T) of the batch by a log-prob pass of the trainer; None where nothing needs them.

        KL in the reward takes these and not the engine's: the reference's are of such a pass, and rounding differs.
        """
        logps: Tensor | None = output.get("old_per_token_logps")
        every = 1 if self.backend is not None else self.args.logprob_check_steps
        checked = "sampling_per_token_logps" in output and every and self.batches % every == 0
        distils = self.args.distillation_weight and not self.args.distils_in_loss
        if logps is None and (self._kl_in_reward() or distils or checked):
            logps = self._logprobs(self.model, output)
        return logps

    def _logprobs(self, model: Any, output: dict[str, Any]) -> Tensor:
        """Compute log-probs (B, T) of a scored batch by a model, without gradient."""
        width, size = output["completion_ids"].size(1), self.args.per_device_train_batch_size
        with torch.no_grad():
            logps: Tensor = self._get_per_token_logps_and_entropies(
                model, *_model_inputs(output), width, batch_size=size
            )[0]
        return logps

    def _prefixes(self, kind: str | None, batch: Batch) -> Prefixes | None:
        """Write the privileged information of the rollouts; None where none is wanted."""
        if kind is None:
            return None
        tokenizer, device = trl_internals.tokenizer_of(self), self.accelerator.device
        return self.privileged.prefixes(kind, batch.rows, batch.records, tokenizer=tokenizer, device=device)

    def _teacher_log_ratios(
        self, batch: Batch, output: dict[str, Any], logps: Tensor | None, prefixes: Prefixes | None
    ) -> Tensor | None:
        """Compute by how much (B, T) the teacher prefers each sampled token, in nats; None without a teacher."""
        if not self.args.distillation_weight or self.args.distils_in_loss:
            return None
        assert logps is not None
        self.progress.prefixes = prefixes or Prefixes.none(len(batch.records), device=logps.device)
        try:
            teacher_logps = self._logprobs(self.model if self.teacher is None else self.teacher, output)
        finally:
            self.progress.prefixes = None
        rows = distilled_rows(batch.records, failures_only=self.args.distillation_failures_only).to(logps.device)
        distilled = batch.sampled & rows[:, None]
        log_ratios = teacher_log_ratios(teacher_logps, logps, distilled)
        self._log_mean("distillation/kl", -log_ratios[distilled])
        return log_ratios

    def _kl_in_reward(self) -> bool:
        return self.args.kl_placement == "reward" and self.args.beta > 0

    def _credit_inputs(
        self,
        batch: Batch,
        output: dict[str, Any],
        logps: Tensor | None,
        critic_prefixes: Prefixes | None,
        log_ratios: Tensor | None,
    ) -> CreditInputs:
        """Complete this process's rollouts by groups as TRL makes them over all processes, values, and KL rewards.

        Args:
            batch: the rollouts.
            output: what TRL made of them.
            logps: (B, T), of the policy.
            critic_prefixes: what the critic alone reads.
            log_ratios: (B, T), of the teacher, where these are rewards.
        """
        fields: dict[str, Any] = dict(batch.credit_inputs)
        if self._kl_in_reward():
            assert logps is not None
            # log p - log p_ref of sampled tokens, 0 for others: its mean over samples is the KL.
            kl = torch.where(batch.sampled, logps - output["ref_per_token_logps"], 0.0)
            self._log_mean("kl", kl[batch.sampled])
            fields["token_rewards"] = -self.args.beta * kl
        if log_ratios is not None:
            fields["token_rewards"] = fields.get("token_rewards", 0.0) + self.args.distillation_weight * log_ratios
        if self.critic is not None:
            width, context_ids = output["completion_ids"].size(1), batch.context_ids
            fields["values"] = self.critic.values(
                *_model_inputs(output), length=width, context_ids=context_ids, prefixes=critic_prefixes
            )
        row_slice = self.process_group.row_slice(len(batch.records))
        rows = torch.arange(row_slice.start, row_slice.stop, device=self.accelerator.device)
        return CreditInputs(groups=rows // self.num_generations, process_group=self.process_group, **fields)

    def _compare_with_engine(self, batch: Batch, output: dict[str, Any], logps: Tensor | None) -> None:
        """Log the drift: by how many nats the engine's log-probs of sampled tokens differ from the trainer's.

        Raises:
            ConfigurationError: by too many on average, in the first batch; in any if a backend has its own weights.
        """
        sampling = output.get("sampling_per_token_logps")
        if sampling is None or logps is None:  # the backend reports none, or this batch is not to be checked
            return
        drift = logprob_drift(logps, sampling, batch.sampled)
        mean = self._log_mean("sampling/logprob_drift_mean", drift)
        if mean is None:
            return
        worst = self.process_group.all_reduce_max(drift.max().item() if len(drift) else 0.0)
        self._log("sampling/logprob_drift_max", worst)
        if self.batches == 0 or self.backend is not None:
            check_drift(mean, worst, limit=self.args.alarm_drift_above, staleness=self.progress.staleness)

    # Loss

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Compute TRL's loss, as if dropped rollouts were not in its means over rollouts.

        TRL's divisor counts them; advantages and KL, in which the loss is linear, are raised to make up for it.
        """
        mask = inputs["completion_mask"]
        if "tool_mask" in inputs:  # TRL's name for the `env_mask` of `Batch.to_trl_inputs`: 1 where the loss looks
            mask = mask * inputs["tool_mask"]
        self.progress.needs_logprobs, self.progress.context_ids = mask.bool(), inputs.get("context_ids")
        share = float(inputs.get("valid_fraction", 1.0))
        beta = self.beta  # restored below: where it is 0, TRL computes no log-probs of the reference model
        self.beta = beta / share if self.args.kl_placement == "loss" else 0.0
        scaled = inputs | {"advantages": inputs["advantages"] / share}
        if self.args.skip_zero_advantages and torch.is_grad_enabled():
            self._keep_rows_with_advantage(scaled, mask)
        # Without old log-probs (one update per batch) every ratio is 1, whatever its level.
        by_turn = "turn_ids" in inputs and "old_per_token_logps" in inputs
        self.progress.turn_ratio_inputs = scaled if by_turn else None
        if "distilled" in inputs:  # in training only
            bos = trl_internals.tokenizer_of(self).bos_token_id
            self.progress.informed = Prefixes(inputs["teacher_ids"], inputs["teacher_lengths"], bos)
        is_empty = not self.accelerator.reduce(mask.sum(), reduction="sum")
        try:
            with trl_internals.without_token_means(self) if is_empty else nullcontext():
                loss = super()._compute_loss(model, scaled)  # type: ignore[no-untyped-call]
        finally:
            self.beta, self.progress.turn_ratio_inputs, self.progress.informed = beta, None, None
            self.progress.kept_rows = self.progress.entropy_estimates = None
        return loss if "distilled" not in inputs else loss + self._distillation_loss(inputs, mask)

    def _keep_rows_with_advantage(self, inputs: dict[str, Any], mask: Tensor) -> None:
        """Have the log-prob pass leave out rollouts without an advantage; their log-probs are 0, and their ratios 1."""
        passes = -(-len(mask) // rows_per_pass(len(mask), mask.device))
        lengths = inputs["prompt_mask"].sum(1) + inputs["completion_mask"].sum(1)
        kept = rows_with_advantage(inputs["advantages"], mask, lengths=lengths, at_least=passes)
        self.progress.kept_rows, self.progress.needs_logprobs = kept, mask.bool() & kept[:, None]
        old, sampling = inputs.get("old_per_token_logps"), inputs.get("sampling_per_token_logps")
        if sampling is not None:
            self.progress.entropy_estimates = -sampling.nan_to_num(0.0)  # NaN: not sampled
        if old is not None:
            inputs["old_per_token_logps"] = torch.where(kept[:, None], old, 0.0)

    def _distillation_loss(self, inputs: dict[str, Any], mask: Tensor) -> Tensor:
        """Sum the teacher's divergences over the tokens, so that an optimiser step has the mean over its tokens.

        The divisor is that of TRL's loss `dapo`: the tokens of all processes and micro-batches of a step.
        """
        divergences = self.progress.divergences
        assert divergences is not None
        self.progress.divergences = None
        distilled = mask.bool() & inputs["distilled"][:, None]
        self._log_mean("distillation/forward_kl", divergences.detach()[distilled])
        tokens = inputs["num_items_in_batch"].clamp(min=1) / self.accelerator.num_processes
        share = self.current_gradient_accumulation_steps / (self.args.steps_per_generation or 1)
        mean: Tensor = (divergences * distilled).sum() / (tokens * share)
        return self.args.distillation_weight * mean

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **options: Any,
    ) -> Any:
        """Run a log-prob pass: TRL's log-probs and entropies (B, T) of `Progress.needs_logprobs`, and MoE loss.

        See `algorithms.packing`. The number of forward passes depends on that of the trajectories only, as sharded
        weights need.
        """
        trl_logprobs = super()._get_per_token_logps_and_entropies

        def forward(layout: Layout) -> tuple[list[Tensor], Tensor | None]:
            if layout.informed is not None:
                return self._distilled_pass(model, layout, **options)
            ids = layout.inputs["input_ids"]
            with trl_internals.labels_only(ids.device, vocab_size=self.vocab_size):
                logps, entropies, aux = trl_logprobs(
                    functools.partial(layout.forward, model), ids, torch.ones_like(ids), ids.size(1), **options
                )
            return [logps] if entropies is None else [logps, entropies], aux

        needs_logprobs, context_ids = self.progress.needs_logprobs, self.progress.context_ids
        assert needs_logprobs is not None
        rows = rows_per_pass(batch_size or len(input_ids), input_ids.device)
        prefixes = self.progress.prefixes
        with without_dropout(model):
            values, aux = compute_logprobs(
                forward,
                input_ids,
                attention_mask,
                needs_logprobs=needs_logprobs,
                context_ids=context_ids,
                rows=rows,
                packed=self.packed and prefixes is None,
                prefixes=prefixes,
                informed=self.progress.informed,
                kept=self.progress.kept_rows,
            )
        kept, estimates = self.progress.kept_rows, self.progress.entropy_estimates
        if kept is not None and len(values) > 1:
            if estimates is None:  # the backend reports no log-probs: the mean of the others
                estimates = values[1].detach().sum() / needs_logprobs.sum().clamp(min=1)
            values[1] = torch.where(kept[:, None], values[1], estimates)
        if self.progress.informed is not None:
            self.progress.divergences = values.pop()
        inputs = self.progress.turn_ratio_inputs
        if inputs is not None:  # TRL's loss reads the old log-probs after this pass
            old = inputs["old_per_token_logps"]
            inputs["old_per_token_logps"] = turn_level_old_logps(values[0], old, inputs["turn_ids"], needs_logprobs)
        return values[0], values[1] if len(values) > 1 else None, aux

    def _distilled_pass(
        self, model: Any, layout: Layout, *, compute_aux_loss: bool = False, **_options: Any
    ) -> tuple[list[Tensor], Tensor | None]:
        """Run policy and teacher on the same tokens; log-probs, entropies and divergences, and MoE loss."""
        teacher = model if self.teacher is None else self.teacher
        assert layout.informed is not None
        router = {"output_router_logits": True} if compute_aux_loss else {}
        with self.accelerator.autocast():
            with torch.no_grad(), without_dropout(teacher):
                taught = forward_at_labels(teacher, layout.informed, head=self._output_layer(teacher)).logits
            output = forward_at_labels(model, layout, head=self._output_layer(model), **router)
        values = distilled_values(output.logits, taught, layout, temperature=self.args.temperature)
        return values, output.aux_loss if compute_aux_loss else None

    def _output_layer(self, model: Any) -> torch.nn.Module:
        layer: torch.nn.Module = self.accelerator.unwrap_model(model).get_output_embeddings()
        return layer

    # Around a step

    def _describe_step(self) -> str:
        """Describe the step under way, for the progress bar: its rollouts, or how long its update takes."""
        began = self.progress.update_began
        if began is not None:
            return f"step {self.state.global_step + 1}: update, {time.monotonic() - began:.0f} s"
        describe = getattr(self.collect, "describe", None)
        text = describe() if describe is not None else ""
        return f"step {self.state.global_step + 1}: {text or 'rollouts begin'}"

    def _log(self, name: str, value: float) -> None:
        trl_internals.metrics_of(self)[name].append(value)

    def _log_mean(self, name: str, values: Tensor) -> float | None:
        """Log and return the mean over the values of all processes; None, and nothing is logged, if there are none."""
        moments = self.process_group.moments(values)
        if not moments.total:
            return None
        self._log(name, moments.mean)
        return moments.mean

    def _log_rollouts(self, batch: Batch) -> None:
        """Log metrics of the rollouts of all processes, and correct what TRL has logged of them."""
        own = [RolloutSummary.of(record, row) for record, row in zip(batch.records, batch.rows, strict=True)]
        prompts = [row["prompt"] for row in batch.rows]  # TRL's are of the rows that it passed on
        work = batch.sampled_tokens, self.progress.batch_seconds
        parts = self.process_group.all_gather((own, self.progress.metrics, prompts, batch.lengths, work))
        summaries, metrics, logged_prompts, lengths, works = zip(*parts, strict=True)
        if self.prefetcher is None:  # rollouts that are played ahead take longer than what is waited for
            tokens, seconds = zip(*works, strict=True)
            self._log("rollout/tokens_per_second", sum(tokens) / max(seconds))
        trl_internals.set_logged_column(self, "prompt", list(itertools.chain.from_iterable(logged_prompts)))
        trl_internals.set_logged_lengths(self, list(itertools.chain.from_iterable(lengths)))
        for name in self.progress.metrics:
            self._log(name, sum(own_metrics[name] for own_metrics in metrics))
        for env, name, value in rollout_metrics(list(itertools.chain.from_iterable(summaries))):
            # TRL and its loggers make eval/ENV/... of what evaluations bring.
            group = ["rollout"] if env is None or self.model.training else []
            self._log("/".join([*group, *([env] if env else []), name]), value)

    def evaluate(self, *arguments: Any, **options: Any) -> dict[str, float]:
        """Evaluate as the base class does, always with the same random numbers, none of which training uses."""
        trl_internals.force_weight_sync(self)  # the best model may have been loaded since
        with checkpoints.temporary_seed(self.args.seed):
            self.progress.eval_batches = 0
            return dict(super().evaluate(*arguments, **options))

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save model, tokenizer, chat format and agent card; checkpoints come this way too."""
        super()._save(output_dir, state_dict)
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir or ".")
        if self.chat is not None:
            self.chat.save(folder)
        if self.card is not None:
            self.card.save(folder)
            remember(folder, self.card.environments)

    def create_model_card(self, *_arguments: Any, **_options: Any) -> None:
        """Write nothing: the agent card is saved with the model, and TRL's would contradict it."""


def episode_return(episode_return: list[float | None], **_columns: Any) -> list[float | None]:
    """TRL's reward function: the sum of each trajectory's rewards, None where a backend failed."""
    return episode_return


def logprob_drift(logps: Tensor, sampling: Tensor, sampled: Tensor) -> Tensor:
    """Compute |log p - log q| of the tokens that the model sampled, in nats.

    Args:
        logps: (B, T), log p: log-probs of the policy before its update.
        sampling: (B, T), log q: those that the engine reported when it sampled; NaN where it reported none.
        sampled: (B, T) bool, tokens that the model sampled.

    Returns:
        (N,): those that are known, one after another.
    """
    return (logps - sampling).abs()[sampled & ~sampling.isnan()]


def check_drift(mean: float, worst: float, *, limit: float, staleness: int) -> None:
    """Refuse an engine whose log-probs are too far from the trainer's.

    An engine that misses weight updates falls behind by one more in each batch, and so exceeds the limit in the end.

    Args:
        mean: drift in nats, the mean over the sampled tokens of all processes.
        worst: the largest one.
        limit: `alarm_drift_above`.
        staleness: optimiser steps since the rollouts were begun; if any, the limit is `STALE_DRIFT_FACTOR` times as
            high.

    Raises:
        ConfigurationError: the mean is above its limit.
    """
    times = f"{STALE_DRIFT_FACTOR:g} x " if staleness else ""
    if not mean > limit * (STALE_DRIFT_FACTOR if staleness else 1.0):
        return
    problem = (
        f"The engine's log-probs differ from the trainer's by {mean:.2f} nats on average (at most {worst:.2f}), "
        f"expected at most {times}alarm_drift_above={limit}: "
    )
    if staleness:
        raise ConfigurationError(
            f"{problem}the policy is not the one that these rollouts were sampled from, {staleness} optimiser steps "
            "ago. Known reasons: servers that keep older weights than they report (see how sampling/logprob_drift_mean "
            "grew: by steps, with each batch), or updates that move the policy so far at once. Try "
            "overlap_rollouts=False: if the first batches then differ as well, it is the servers; else lower "
            "learning_rate."
        )
    raise ConfigurationError(
        f"{problem}rollouts come from another distribution than the one that is trained. Known reasons: learned "
        "positions (GPT-2), which left padding shifts, or a backend that keeps old weights. Use a model with rotary "
        "positions, or another --engine."
    )


def _model_inputs(output: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Concatenate ids and attention mask (B, P + T) of TRL's batch."""
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    return ids, torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
