"""Alarms: stop a run that has collapsed, warn of one that cannot learn, and name the episodes that a run hangs on."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.session import Session, env_display_name
from agent_r1_gym.support.terminal import call_every
from trainers.config.agent import AgentConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AlarmRule:
    """A metric with a bad side, and what a value there usually means.

    Attributes:
        metric: the logged metric.
        direction: bad side of the threshold: 1 above, -1 below.
        reasons: likely causes.
        remedies: what to try.
        sparse: not every batch has the metric.
        caused_by_policy: whether an earlier policy can help; it cannot where a backend is down.
    """

    metric: str
    direction: int
    reasons: str
    remedies: str
    sparse: bool = False
    caused_by_policy: bool = True

    @property
    def advice(self) -> str:
        """Reasons and remedies, in two lines."""
        return f"Likely: {self.reasons}.\nTry: {self.remedies}."


ALARM_RULES: Mapping[str, AlarmRule] = {
    "alarm_infra_failures_above": AlarmRule(
        "rollout/infra_failures",
        1,
        "a backend (retriever, tool server) is down, overloaded, or slower than its timeout",
        "restart it and resume with --resume-from-checkpoint True; raise infrastructure_retries; lower the number of "
        "concurrent episodes (per_device_train_batch_size)",
        caused_by_policy=False,
    ),
    "alarm_entropy_below": AlarmRule(
        "entropy",
        -1,
        "the policy has become nearly deterministic and no longer explores: too high a learning rate, no KL for many "
        "steps, few different tasks, or an easy answer that always earns something",
        "continue from an earlier checkpoint's weights with a lower learning_rate, beta 0.001 to 0.01, epsilon_high "
        "0.28 (algorithm dapo), entropy_coef above 0, or temperature 1",
    ),
    "alarm_entropy_above": AlarmRule(
        "entropy",
        1,
        "the policy falls apart: updates push down more than they pull up (too high a learning rate, few rollouts per "
        "step), an entropy bonus outweighs the reward, or rollouts come from other weights than the trained ones "
        "(sampling/logprob_drift_mean)",
        "continue from an earlier checkpoint's weights with a lower learning_rate, entropy_coef 0, more rollouts per "
        "step, or mask_truncated_completions (algorithm dapo)",
    ),
    "alarm_repetition_above": AlarmRule(
        "rollout/repetition",
        1,
        "the model loops instead of ending its turns: too high a learning rate, or turns so long that their "
        "last tokens do not matter",
        "a lower learning_rate, beta above 0, a smaller max_turn_tokens, mask_truncated_completions (algorithm dapo), "
        "or a cold start that teaches it to end its turns (agent-r1 sft)",
    ),
    "alarm_calls_below": AlarmRule(
        "rollout/calls",
        -1,
        "answers without calls earn as much (guessed, or known from the prompt), or calls fail so often that the model "
        "avoids them (rollout/failed_calls, rollout/malformed_turns)",
        "look at samples (on the terminal, or --trace-steps 1); a reward that a guess does not earn; a process reward "
        "for calls with results; a cold start (agent-r1 sft) if the format is the problem",
    ),
    "alarm_answer_share_above": AlarmRule(
        "rollout/answer_share",
        1,
        "the model gives one answer to every question, because it is right often enough or earns a part of the reward",
        "tasks whose answers are balanced; more prompts per batch; beta above 0 or a lower learning_rate, from an "
        "earlier checkpoint; and compare with what the most frequent answer alone scores (agent-r1 eval shows it)",
        sparse=True,
    ),
}
"""Rules by the option that sets the threshold."""

ZERO_STD_RULE = AlarmRule(
    "group/frac_zero_std",
    1,
    "the model cannot call the tools or answer in the expected format yet (reward 0 everywhere; see "
    "rollout/malformed_turns and the samples on the terminal), the tasks are too hard or too easy for it, or samples "
    "hardly vary (temperature near 0, top_k 1)",
    "a cold start (agent-r1 sft); easier tasks, or a reward that pays for a part (f1, process); more rollouts per "
    "prompt (num_generations); temperature 1",
)
REWARD_DROP_RULE = AlarmRule(
    "reward",
    -1,
    "too high a learning rate; tokens in the loss that the model did not sample; an entropy bonus or KL that outweighs "
    "the reward; rollouts from other weights than the trained ones (sampling/logprob_drift_mean); a tool that fails",
    "look for metrics that went bad before the reward (docs/debugging.md); continue from an earlier checkpoint's "
    "weights with a lower learning_rate (--on-alarm rollback does), or fix the cause",
)
WINDOW = 5
"""Logged steps over which the reward's best mean is taken."""
MAX_ANSWER_SHARE, MAX_GOLD_SHARE = 0.9, 0.7
"""Warn if one answer is more frequent than the first and no accepted answer is as frequent as the second: then giving
the same answer everywhere cannot be right."""
CALLS_DROP_FACTOR, MIN_PEAK_CALLS = 0.1, 0.5
"""Warn if the mean number of calls falls to this share of its peak, if the peak was at least this high."""
_ANSWERS, _FALL, _SKIPPED = "one answer", "calls have fallen", "skipped steps"
_MAX_SKIPPED = 20
"""Logs in a row whose step fp16 has skipped: each halves the loss scale, which then is below 1 and not too high."""
_MAX_UNSEEN = 20
"""Logs without a sparse metric after which a warning reports that its alarm watches nothing."""


class CollapseAlarm(TrainerCallback):
    """Stop the run when a metric stays beyond its threshold for `alarm_patience` logs in a row.

    The state is saved first. A non-finite gradient stops at once and saves nothing: the weights are spoilt, and the
    last checkpoint is from before (with fp16, a step that was skipped because of it has spoilt nothing). If the returns
    of no group differ for `alarm_zero_std_steps` logs in a row, it warns once, unless the algorithm compares prompts
    with each other. `alarm_reward_drop_below` compares the reward with its own best. If nearly all rollouts give the
    same answer, or hardly one calls a tool any more, it warns once. Each message lists likely reasons and what to try.

    Attributes:
        reason: why the run was stopped, None if it was not.
        request_rollback: asked before a stop, see `RollbackManager.plan`; None: always stop.
        last_good_step: by option, the last logged step at which its metric was good.
        breached: by option, logs in a row with its metric beyond the threshold.

    Raises:
        ConfigurationError: a threshold is set for a metric that the rollouts do not have.
    """

    def __init__(self, args: AgentConfig) -> None:
        self.reason: str | None = None
        self.request_rollback: Callable[[str, int], str] | None = None
        self.last_good_step: dict[str, int] = {}
        self._args = args
        self._warned: set[str] = set()
        self._unseen = 0
        self._most_calls = 0.0  # since this process began: a resumed run measures from where it stands
        self.breached = dict.fromkeys(
            (*ALARM_RULES, "alarm_zero_std_steps", "alarm_reward_drop_below", _ANSWERS, _FALL, _SKIPPED), 0
        )

    def on_train_begin(self, *_arguments: Any, **_others: Any) -> None:
        """Reset the reason: of an earlier run, or of this one before its rollback."""
        self.reason = None

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        optimizer: Any = None,
        **_others: Any,
    ) -> None:
        """Check the metrics of an optimiser step; logs of evaluations and of the end are ignored."""
        if logs is None or "grad_norm" not in logs or "entropy" not in logs:
            return
        if not math.isfinite(logs["grad_norm"]):
            skipped = bool(getattr(optimizer, "step_was_skipped", False))  # fp16: the loss scale was too high
            if skipped and self._count(_SKIPPED, state, breached=True) < _MAX_SKIPPED:
                return
            reason = f"grad_norm is {logs['grad_norm']}; lower learning_rate or max_grad_norm"
            self._stop(reason, state, control, last_good_step=self.last_good_step.get("grad_norm", 0), save=False)
            return
        self.last_good_step["grad_norm"] = state.global_step
        self._count(_SKIPPED, state, breached=False)
        for option, rule in ALARM_RULES.items():
            self._watch(option, rule, logs, state, control)
        self._watch_signal(logs, state)
        self._watch_reward(state, control)
        self._watch_answers(logs, state)
        self._watch_calls(logs, state)

    def _watch_signal(self, logs: dict[str, Any], state: TrainerState) -> None:
        share = logs.get(ZERO_STD_RULE.metric)
        patience, args = self._args.alarm_zero_std_steps, self._args
        taught = args.distillation_weight and not args.distillation_failures_only  # whatever the returns are
        # No group is a baseline then, unless the whole batch is the group (see `group_stds`).
        compares_prompts = args.preset.single_rollout and args.num_generations > 1
        if not patience or share is None or taught or compares_prompts:
            return
        steps = self._count("alarm_zero_std_steps", state, breached=share == 1)
        if steps != patience:
            return
        reason = (
            f"In {steps} logged steps in a row every rollout returned the same as the others of its prompt, so there "
            f"was nothing to learn from (mean reward {logs.get('reward') or 0.0:.3g})"
        )
        self._warn(reason, state, ZERO_STD_RULE)

    def _watch_reward(self, state: TrainerState, control: TrainerControl) -> None:
        share, option = self._args.alarm_reward_drop_below, "alarm_reward_drop_below"
        # A resume restores them, too; None: every rollout was lost.
        rewards = [row["reward"] for row in state.log_history if row.get("reward") is not None]
        if share is None or len(rewards) <= WINDOW or state.log_history[-1].get("reward") is None:
            return
        best = best_mean(rewards[:-1], WINDOW)
        if self._count(option, state, breached=best > 0 and rewards[-1] < share * best) >= self._args.alarm_patience:
            reason = (
                f"reward is {rewards[-1]:.3g}, below {option}={share} of its best mean over {WINDOW} steps, {best:.3g}"
            )
            self._stop(reason, state, control, REWARD_DROP_RULE, last_good_step=self.last_good_step.get(option, 0))

    def _watch_answers(self, logs: dict[str, Any], state: TrainerState) -> None:
        option = "alarm_answer_share_above"
        share, accepted = logs.get("rollout/answer_share"), logs.get("rollout/gold_share")
        if share is None or accepted is None or getattr(self._args, option) is not None:
            return
        if (
            self._count(_ANSWERS, state, breached=share > MAX_ANSWER_SHARE and accepted < MAX_GOLD_SHARE)
            == self._args.alarm_patience
        ):
            reason = (
                f"{share:.0%} of the rollouts gave the same answer, though no accepted answer holds for more than "
                f"{accepted:.0%} of them"
            )
            self._warn(
                reason, state, ALARM_RULES[option], f"To stop then: --{option.replace('_', '-')} {MAX_ANSWER_SHARE}."
            )

    def _watch_calls(self, logs: dict[str, Any], state: TrainerState) -> None:
        option = "alarm_calls_below"
        calls = logs.get("rollout/calls")
        if calls is None or getattr(self._args, option) is not None:
            return
        self._most_calls = max_calls = max(self._most_calls, calls)
        if (
            self._count(_FALL, state, breached=max_calls >= MIN_PEAK_CALLS and calls < CALLS_DROP_FACTOR * max_calls)
            == self._args.alarm_patience
        ):
            reason = f"Calls per rollout have fallen from {max_calls:.2g} to {calls:.2g}"
            self._warn(
                reason,
                state,
                ALARM_RULES[option],
                f"To stop then: --{option.replace('_', '-')} {CALLS_DROP_FACTOR * max_calls:.2g}.",
            )

    def _watch(
        self, option: str, rule: AlarmRule, logs: dict[str, Any], state: TrainerState, control: TrainerControl
    ) -> None:
        threshold, value = getattr(self._args, option), logs.get(rule.metric)
        if threshold is None:
            return
        if value is None:  # a step that reused a batch logs no rollouts, dropped ones bring nothing; None: no token
            if rule.metric not in logs and logs.get("rollout/infra_failures", 1.0) < 1:
                self._missing(option, rule, threshold)
            return
        self._unseen = -1 if rule.sparse else self._unseen
        if self._count(option, state, breached=rule.direction * (value - threshold) > 0) >= self._args.alarm_patience:
            reason = f"{rule.metric} is {value:.3g}, beyond {option}={threshold}"
            self._stop(reason, state, control, rule, last_good_step=self.last_good_step.get(option, 0))

    def _missing(self, option: str, rule: AlarmRule, threshold: float) -> None:
        if not rule.sparse:
            raise ConfigurationError(
                f"{option}={threshold}, but the rollouts have no metric {rule.metric!r} to watch; unset it."
            )
        self._unseen += self._unseen >= 0
        if self._unseen == _MAX_UNSEEN:
            logger.warning(
                "%s=%s has watched nothing in %d logs: %r needs tasks with accepted answers, and several prompts with "
                "different ones in a batch (per_device_train_batch_size, gradient_accumulation_steps).",
                *(option, threshold, _MAX_UNSEEN, rule.metric),
            )

    def _count(self, name: str, state: TrainerState, *, breached: bool) -> int:
        if not breached:
            self.last_good_step[name] = state.global_step
        self.breached[name] = self.breached.get(name, 0) + 1 if breached else 0
        return self.breached[name]

    def _warn(self, reason: str, state: TrainerState, rule: AlarmRule, more: str = "") -> None:
        if rule.metric not in self._warned:
            self._warned.add(rule.metric)
            logger.warning("Step %d: %s.\n%s", state.global_step, reason, f"{rule.advice}\n{more}".rstrip())

    def _stop(
        self,
        reason: str,
        state: TrainerState,
        control: TrainerControl,
        rule: AlarmRule | None = None,
        *,
        last_good_step: int,
        save: bool = True,
    ) -> None:
        control.should_training_stop = True
        if self.request_rollback is not None and self.reason is None and (rule is None or rule.caused_by_policy):
            why = self.request_rollback(reason, last_good_step)
            if not why:
                control.should_evaluate = False
                return
            reason = f"{reason}; {why}"
        self.reason = reason
        control.should_save = save
        control.should_evaluate = control.should_evaluate and save
        advice = "" if rule is None else f"\n{rule.advice}"
        logger.error("Stopped at step %d: %s.%s", state.global_step, reason, advice)


def best_mean(values: Sequence[float], window: int) -> float:
    """Highest mean of `window` consecutive values; there must be at least as many."""
    return max(sum(values[at : at + window]) for at in range(len(values) - window + 1)) / window


# --- Hanging rollouts ---

STUCK_SECONDS = 600.0
"""Seconds between two messages about the episodes that still run."""
MAX_LISTED = 8
"""Maximum number of episodes in one message, the longest waiting first."""


@contextmanager
def log_stuck_episodes(sessions: Callable[[], Sequence[Session]], *, rank: int) -> Iterator[None]:
    """While the block plays episodes, log those that still run, every `STUCK_SECONDS`.

    Other processes wait for this one: without the log, a run that hangs would not show where.

    Args:
        sessions: returns the running episodes.
        rank: rank of this process.
    """
    began = time.monotonic()

    def report() -> None:
        logger.warning("%s", stuck_episodes_message(sessions(), rank=rank, seconds=time.monotonic() - began))

    ended = call_every(STUCK_SECONDS, report)
    try:
        yield
    finally:
        ended.set()


def stuck_episodes_message(sessions: Sequence[Session], *, rank: int, seconds: float) -> str:
    """List the episodes that a process plays after so many seconds of rollouts, and what each waits for."""
    now = time.monotonic()
    longest = sorted(sessions, key=lambda session: session.phase_started_at)
    lines = [
        f"  task {session.job.task_index}, seed {session.job.seed}, turn {len(session.turns)}: "
        f"{'in a step of ' + env_display_name(session.env) if session.stepping else 'the model generates'} for "
        f"{now - session.phase_started_at:.0f} s"
        for session in longest[:MAX_LISTED]
    ]
    more = [f"  and {len(longest) - MAX_LISTED} more"] if len(longest) > MAX_LISTED else []
    head = f"Process {rank} still plays {len(longest)} episodes after {seconds:.0f} s, and others may wait for it:"
    return "\n".join([head, *lines, *more])
