"""Trajectories as padded tensors and as numbers to log: pure functions between rollouts and the trainer.

Shapes: B trajectories, at most K turns, T completion tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from agent_r1_gym.play.record import Tokens, Trajectory
from trainers.algorithms.contexts import rewritten_tokens
from trainers.algorithms.credit import Credit, CreditInputs, CreditOptions, state_id
from trainers.config import AgentConfig

PADDING = MappingProxyType({"turn_ids": -1, "state_ids": -1})
"""Padding of the fields of `CreditInputs` that are not padded with 0."""

NO_SPREAD = 1e-6
"""Standard deviations of returns below this are the rounding of equal numbers."""

Trajectories = Sequence[Trajectory]


def credit_options(args: AgentConfig) -> CreditOptions:
    """Returns what the trainer's configuration says about credit."""
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
    """Refuses what cannot be trained on.

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
    """Returns the tokens of a rollout.

    Raises:
        ValueError: it has none.
    """
    if trajectory.tokens is None:
        raise ValueError("A rollout without tokens cannot be trained on; an engine that samples tokens has to play it.")
    return trajectory.tokens


def credit_fields(trajectories: Trajectories, args: AgentConfig, *, width: int) -> dict[str, Tensor]:
    """Returns the fields of `CreditInputs` that trajectories alone determine; `PADDING` says how to pad them."""
    rewards, mask = turn_rewards(trajectories)
    batch = [tokens_of(trajectory) for trajectory in trajectories]
    fields = {
        "turn_rewards": rewards,
        "outcome_rewards": _padded([[turn.outcome_reward for turn in t.turns] for t in trajectories], 0.0),
        "turn_mask": mask,
        "token_mask": _padded([[not other for other in rewritten_tokens(tokens)] for tokens in batch], False, width),
        "turn_ids": turn_indices(trajectories, width=width),
        "valid": torch.tensor([not t.infrastructure_error for t in trajectories]),
    }
    if args.preset.estimator == "gigpo":
        fields["state_ids"] = state_ids(trajectories)
    return fields


def sampled_tokens(trajectories: Trajectories, *, width: int) -> Tensor:
    """Returns (B, width) bool: the tokens that the model sampled, in rollouts that count."""
    valid = torch.tensor([not t.infrastructure_error for t in trajectories])
    return (turn_indices(trajectories, width=width) >= 0) & valid[:, None]


def turn_indices(trajectories: Trajectories, *, width: int) -> Tensor:
    """Returns (B, width) long: the turn in which the model sampled each completion token, -1 for all other tokens."""
    indices = torch.full((len(trajectories), width), -1)
    for row, trajectory in zip(indices, trajectories, strict=True):
        for index, (start, end) in enumerate(tokens_of(trajectory).spans):
            row[start:end] = index
    return indices


def turn_rewards(trajectories: Trajectories) -> tuple[Tensor, Tensor]:
    """Returns the rewards (B, K) of the turns, 0 where padded, and the mask (B, K) of real turns."""
    rewards = [[turn.reward for turn in trajectory.turns] for trajectory in trajectories]
    mask = [[True] * len(row) for row in rewards]
    return _padded(rewards, 0.0), _padded(mask, False)


def state_ids(trajectories: Trajectories) -> Tensor:
    """Returns (B, K) long: equal for turns that saw the same last observation, -1 where padded.

    As in GiGPO (arXiv 2505.10978), whose anchor states are current observations, not histories. An observation is what
    stands between the end of a turn and the next, as rendered (after a turn that a budget cut, with the end of turn
    that was added); before the first turn it is the prompt, where the context was rewritten the whole new context.
    """
    rows = []
    for tokens in map(tokens_of, trajectories):
        ends = [0, *(end for _, end in tokens.spans)]
        seen = [
            tokens.completion_ids[end:start] or tokens.prompt_ids
            for end, (start, _) in zip(ends, tokens.spans, strict=False)
        ]
        rows.append([state_id(repr(ids)) for ids in seen])
    return _padded(rows, -1)


def describe(trajectory: Trajectory) -> dict[str, float]:
    """Returns the numbers to log of one rollout; of a dropped one, only that it was dropped."""
    if trajectory.infrastructure_error:
        return {"dropped": 1.0}
    tokens = tokens_of(trajectory)
    rewritten = rewritten_tokens(tokens)
    return {
        "dropped": 0.0,
        "terminated": float(trajectory.terminated),
        "truncated": float(trajectory.truncated),
        "contexts": 1.0 + len(tokens.context_starts),
        "environment_tokens": float(len(rewritten) - sum(rewritten) - sum(tokens.loss_mask)),
        "repetition": repetition(tokens),
        "outcome_reward": trajectory.outcome_reward,
        **{name: float(number) for name, number in trajectory.counts().items()},
        **{f"reward/{name}": value for name, value in trajectory.reward_terms.items()},
    }


def repetition(tokens: Tokens, *, size: int = 4) -> float:
    """Returns the share of the n-grams inside the model's turns that repeat an earlier one."""
    ids = tokens.completion_ids
    grams = [ids[at : at + size] for start, end in tokens.spans for at in range(start, end - size + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def credited(inputs: CreditInputs, options: CreditOptions) -> Tensor:
    """Returns (B, T) bool: the tokens that carry advantages."""
    tokens = inputs.turn_ids >= 0
    if not options.advantage_mask and inputs.token_mask is not None:
        tokens = tokens | inputs.token_mask
    return tokens & inputs.valid[:, None]


def valid_share(inputs: CreditInputs) -> float:
    """Returns the share of rollouts that count; 1 where none does, as there is nothing to be shared then."""
    return inputs.valid.float().mean().item() or 1.0


def row_means(inputs: CreditInputs, credit: Credit) -> Tensor:
    """Returns (B,): the mean advantage of each rollout's sampled tokens."""
    sampled = inputs.turn_ids >= 0
    return (credit.advantages * sampled).sum(1) / sampled.sum(1).clamp(min=1)


def credit_metrics(inputs: CreditInputs, credit: Credit, options: CreditOptions) -> dict[str, float]:
    """Returns numbers to log: the spread of advantages and of returns in their groups, and how good the critic was.

    Raises:
        ValueError: an advantage is not finite.
    """
    mask = credited(inputs, options)
    advantages = credit.advantages[mask]
    if not torch.isfinite(advantages).all():
        raise ValueError(f"Advantages must be finite; the rewards of the turns were {inputs.turn_rewards.tolist()}.")
    numbers = {}
    if len(advantages):
        numbers["advantage/mean"] = advantages.mean().item()
        numbers["advantage/std"] = advantages.std(correction=0).item()
        numbers["advantage/abs_max"] = advantages.abs().max().item()
    spreads = group_spreads(inputs)
    if len(spreads):
        numbers["group/return_std"] = spreads.mean().item()
        numbers["group/without_signal"] = (spreads < NO_SPREAD).float().mean().item()
    if inputs.values is not None and credit.returns is not None:
        numbers["critic/explained_variance"] = explained_variance(inputs.values[mask], credit.returns[mask])
    return numbers


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """Returns 1 - Var(returns - values) / Var(returns): 1 is perfect, 0 no better than a constant.

    NaN, which TRL's log leaves out, where the returns are all equal.
    """
    variance = returns.var(correction=0) if len(returns) else torch.zeros(())
    return (1 - (returns - values).var(correction=0) / variance).item() if variance > 0 else math.nan


def group_spreads(inputs: CreditInputs) -> Tensor:
    """Returns the standard deviation of the returns of each group that has at least two valid rollouts.

    Where every prompt has one rollout, the whole batch is one group.
    """
    returns = (inputs.turn_rewards * inputs.turn_mask).sum(1)
    groups = torch.unique(inputs.groups)
    if len(groups) == len(returns):
        members = [returns[inputs.valid]]
    else:
        members = [returns[(inputs.groups == group) & inputs.valid] for group in groups]
    return torch.tensor([member.std(correction=0).item() for member in members if len(member) > 1])


def _padded(rows: Sequence[Sequence[float]], padding: float, width: int | None = None) -> Tensor:
    width = width or max(1, *(len(row) for row in rows), 1)
    return torch.tensor([[*row, *[padding] * (width - len(row))] for row in rows])
