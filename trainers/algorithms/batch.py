"""Rollouts between the engines and the trainer: lists that TRL pads, and padded tensors for the estimators.

Shapes: B trajectories, at most K turns, T completion tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agent_r1_gym.run.record import Tokens, Trajectory
from trainers.algorithms.credit import Credit, CreditInputs, CreditOptions, state_id
from trainers.config.agent import AgentConfig

Trajectories = Sequence[Trajectory]


def credit_options(args: AgentConfig) -> CreditOptions:
    """Extract the options of credit from the trainer's configuration."""
    return CreditOptions(
        gamma=args.gamma,
        lam=args.lam,
        level=args.gae_level,
        scale=args.scale_rewards,
        turn_returns=args.turn_returns,
        normalise_process=args.normalise_process_rewards,
        advantage_mask=args.advantage_mask,
        step_weight=args.step_weight,
    )


def check_trajectories(trajectories: Trajectories, *, rows: int, engine: str = "cached") -> None:
    """Refuse what cannot be trained on.

    Args:
        trajectories: finished rollouts.
        rows: how many are expected.
        engine: who sampled; "trl" has backends that report no log-probs, or not all of them.

    Raises:
        ValueError: not one trajectory per row, no sampled token, or a reward or a log-probability that is not finite.
    """
    if len(trajectories) != rows:
        raise ValueError(f"collect must return one trajectory for each of the {rows} rows, got {len(trajectories)}.")
    for index, trajectory in enumerate(trajectories):
        if trajectory.infrastructure_error:
            continue
        if not tokens_of(trajectory).spans:
            raise ValueError(
                f"Trajectory {index} of the batch holds no token that the model sampled, so nothing can be learned "
                "from it. If its backend failed, set infrastructure_error; if a budget left no room, raise "
                "max_completion_length."
            )
        # None: not sampled. NaN: TRL's backends may report no log-prob; from other engines it comes of spoilt weights.
        if engine != "trl" and any(math.isnan(logprob or 0.0) for logprob in tokens_of(trajectory).logprobs):
            raise ValueError(
                f"Trajectory {index} of the batch has a log-probability that is NaN, so the model's logits are not "
                "finite: its weights are spoilt. Go back to an earlier checkpoint and lower learning_rate."
            )
        for number, turn in enumerate(trajectory.turns):
            if not math.isfinite(turn.reward):
                raise ValueError(
                    f"Trajectory {index} of the batch, turn {number}: the reward is {turn.reward}, expected a finite "
                    "number; see the environment's reward terms and reward_weights."
                )


def tokens_of(trajectory: Trajectory) -> Tokens:
    """Return the tokens of a rollout.

    Raises:
        ValueError: it has none.
    """
    if trajectory.tokens is None:
        raise ValueError("A rollout without tokens cannot be trained on; an engine that samples tokens has to play it.")
    return trajectory.tokens


@dataclass(frozen=True, eq=False)
class Batch:
    """One process's rollouts of a generation batch: records, and their tensors, made once.

    Attributes:
        rows: what the rollouts were played for.
        records: the rollouts, in the order of the rows.
        loss_masks: for each rollout, 1 for each completion token that the loss sees.
        credit_inputs: the fields of `CreditInputs` that rollouts alone determine, by name, as wide as TRL will pad the
            completions.
        context_ids: (B, T), see the function `context_ids` below.
    """

    rows: Sequence[Mapping[str, Any]]
    records: Trajectories
    loss_masks: Sequence[list[int]]
    credit_inputs: Mapping[str, Tensor]
    context_ids: Tensor | None

    @classmethod
    def of(
        cls,
        records: Trajectories,
        rows: Sequence[Mapping[str, Any]],
        args: AgentConfig,
        *,
        device: torch.device | str = "cpu",
    ) -> Batch:
        """Make the tensors of finished rollouts, on `device`; `args` decide what the loss sees and the width."""
        batch = [tokens_of(record) for record in records]
        multiple = int(args.pad_to_multiple_of or 1)
        width = -(-max(1, *(len(tokens.completion_ids) for tokens in batch)) // multiple) * multiple
        rewards, mask = turn_rewards(records)
        credit_inputs = {
            "turn_rewards": rewards,
            "outcome_rewards": _padded([[turn.outcome_reward for turn in t.turns] for t in records], 0.0),
            "turn_mask": mask,
            "turn_ids": turn_indices(records, width=width),
            "token_mask": _padded(
                [[not other for other in rewritten_tokens(tokens)] for tokens in batch], False, width
            ),
            "valid": torch.tensor([not t.infrastructure_error for t in records]),
        }
        if any("env" in row for row in rows):  # a mixture: `mixed` has named them
            names = [member.name for member in args.environments]
            credit_inputs["environments"] = torch.tensor([names.index(row["env"]) for row in rows])
        if "state_ids" in args.preset.needs:
            credit_inputs["state_ids"] = state_ids(records)
        on_device = {name: tensor.to(device) for name, tensor in credit_inputs.items()}
        ids = context_ids(batch, width=width)
        loss_masks = [loss_mask(record, args) for record in records]
        return cls(rows, records, loss_masks, on_device, None if ids is None else ids.to(device))

    @property
    def sampled(self) -> Tensor:
        """(B, T) bool: the tokens that the model sampled, in rollouts that count."""
        return (self.credit_inputs["turn_ids"] >= 0) & self.credit_inputs["valid"][:, None]

    @property
    def needs_logprobs(self) -> Tensor:
        """(B, T) bool: the tokens that the loss sees, or that the model sampled: drift and KL reward use these too."""
        width = self.credit_inputs["turn_ids"].size(1)
        return _padded([[*map(bool, mask)] for mask in self.loss_masks], False, width).to(self.sampled) | self.sampled

    @property
    def lengths(self) -> list[int]:
        """How many tokens the model sampled in each rollout that counts."""
        counted = (record for record in self.records if not record.infrastructure_error)
        return [sum(tokens_of(record).loss_mask) for record in counted]

    @property
    def sampled_tokens(self) -> int:
        """How many tokens the model sampled, in dropped rollouts too."""
        return sum(sum(tokens_of(record).loss_mask) for record in self.records)

    def to_trl_inputs(self, *, filler: int, logprobs: bool) -> dict[str, list[Any] | None]:
        """Convert to the output of TRL's `rollout_func`, with two more columns: the loss masks and the returns.

        Args:
            filler: stands for an empty list, which TRL cannot take; masked, it trains nothing.
            logprobs: whether the engine's log-probs are known.
        """
        batch = [tokens_of(record) for record in self.records]
        # NaN: unknown, as not sampled or not reported. TRL corrects no such token, whether or not the loss sees it.
        return {
            "prompt_ids": [list(tokens.prompt_ids) or [filler] for tokens in batch],
            "completion_ids": [list(tokens.completion_ids) or [filler] for tokens in batch],
            "logprobs": [[math.nan if p is None else p for p in tokens.logprobs] or [math.nan] for tokens in batch]
            if logprobs
            else None,
            "env_mask": list(self.loss_masks),  # 1 where the loss looks; TRL returns it as `tool_mask`
            "episode_return": [None if t.infrastructure_error else t.episode_return for t in self.records],
        }


def loss_mask(record: Trajectory, args: AgentConfig) -> list[int]:
    """Return 1 for each completion token that the loss sees, 0 for the others; at least one column."""
    tokens = tokens_of(record)
    if record.infrastructure_error or (record.truncated and args.mask_truncated_completions):
        return [0] * max(1, len(tokens.completion_ids))
    if args.loss_mask:
        return list(tokens.loss_mask)
    return [int(not other) for other in rewritten_tokens(tokens)]


def turn_indices(trajectories: Trajectories, *, width: int) -> Tensor:
    """Return (B, width) long: the turn in which the model sampled each completion token, -1 for all other tokens."""
    indices = torch.full((len(trajectories), width), -1)
    for row, trajectory in zip(indices, trajectories, strict=True):
        for index, (start, end) in enumerate(tokens_of(trajectory).spans):
            row[start:end] = index
    return indices


def turn_rewards(trajectories: Trajectories) -> tuple[Tensor, Tensor]:
    """Return the rewards (B, K) of the turns, 0 where padded, and the mask (B, K) of real turns."""
    rewards = [[turn.reward for turn in trajectory.turns] for trajectory in trajectories]
    mask = [[True] * len(row) for row in rewards]
    return _padded(rewards, 0.0), _padded(mask, False)


def state_ids(trajectories: Trajectories) -> Tensor:
    """Return (B, K) long: equal for turns that saw the same last observation, -1 where padded.

    As in GiGPO (arXiv 2505.10978), whose anchor states are current observations, not histories. An observation is what
    stands between the end of a turn and the next, as rendered (after a turn that a budget cut, with the end of turn
    that was added); before the first turn it is the prompt, where the context was rewritten the whole new context.
    """
    states = []
    for tokens in map(tokens_of, trajectories):
        ends = [0, *(end for _, end in tokens.spans)]
        seen = [
            tokens.completion_ids[end:start] or tokens.prompt_ids
            for end, (start, _) in zip(ends, tokens.spans, strict=False)
        ]
        states.append([state_id(repr(ids)) for ids in seen])
    return _padded(states, -1)


def valid_fraction(inputs: CreditInputs) -> float:
    """Return the share of rollouts over all processes that count; 1 where none does, since nothing is divided then."""
    return inputs.process_group.moments(inputs.valid).mean or 1.0


def mean_advantages(inputs: CreditInputs, credit: Credit) -> Tensor:
    """Return (B,): the mean advantage of each rollout's sampled tokens."""
    sampled = inputs.turn_ids >= 0
    return (credit.advantages * sampled).sum(1) / sampled.sum(1).clamp(min=1)


def _padded(rows: Sequence[Sequence[float]], padding: float, width: int | None = None) -> Tensor:
    width = width or max(1, *(len(row) for row in rows), 1)
    return torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows])


def context_ids(batch: Sequence[Tokens], *, width: int) -> Tensor | None:
    """Return (B, width) long: which context of its trajectory each token after the prompt belongs to.

    None if every trajectory is one context. The last one extends to the end of the row, padding included.
    """
    if not any(tokens.context_starts for tokens in batch):
        return None
    ids = torch.zeros((len(batch), width), dtype=torch.long)
    for row, tokens in zip(ids, batch, strict=True):
        for start in tokens.context_starts:
            row[start:] += 1
    return ids


def rewritten_tokens(tokens: Tokens) -> list[bool]:
    """Return for each token after the prompt whether it belongs to a rewritten context."""
    rewritten = [False] * len(tokens.completion_ids)
    for start in tokens.context_starts:
        end = next(begin for begin, _ in tokens.spans if begin > start)
        rewritten[start:end] = [True] * (end - start)
    return rewritten
