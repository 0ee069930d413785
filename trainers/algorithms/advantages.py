"""Advantage estimators: pure functions from finished rollouts to one advantage for every sampled token.

Notation: trajectory i of a group of n rollouts of one prompt, turn k of its K_i turns with reward r_ik (the outcome is
part of the last one), return G_ik = r_ik + gamma r_i,k+1 + gamma^2 r_i,k+2 + ..., R_i = G_i0.

Excluded trajectories (`CreditInputs.valid`) are in no mean and no deviation: their group is normalised over the others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from agent_r1_gym.errors import ConfigurationError, suggest
from agent_r1_gym.support.packages import import_object
from trainers.algorithms.credit import Credit, CreditBatch, CreditInputs, CreditOptions, mean_turn_tokens, prepare
from trainers.algorithms.process_group import SINGLE_PROCESS, ProcessGroup
from trainers.config.presets import ALGORITHMS, REGISTERED, add_preset, make_preset

Estimator = Callable[[CreditInputs, CreditOptions], Credit]

_ESTIMATORS: dict[str, Estimator] = {}
_USED_OPTIONS: dict[str, frozenset[str]] = {}
_LOCAL: set[str] = set()
_ALWAYS_USED = frozenset(("gamma", "normalise_process", "advantage_mask"))
"""Options that `credit.prepare` and the discounts use."""

ESTIMATORS: Mapping[str, Estimator] = MappingProxyType(_ESTIMATORS)
"""Every estimator by name."""
GROUP_EPS = 1e-4
"""Added to standard deviations of returns, as in TRL."""
MIN_STD = 1e-6
"""Below this, returns count as equal, and nothing is divided."""
WHITEN_EPS = 1e-8
"""Minimum variance that whitening divides by."""


def register_estimator(
    name: str, *options: str, local: bool = True, reads_rewards: bool = True
) -> Callable[[Estimator], Estimator]:
    """Register a function under a name, with the fields of `CreditOptions` that it uses; it has no preset yet.

    A `local` one gets the rollouts of one process, and gets the rest through `inputs.process_group`. One that reads no
    rewards uses none of the options that are common to all others.
    """

    def register(function: Estimator) -> Estimator:
        _ESTIMATORS[name] = function
        _USED_OPTIONS[name] = (_ALWAYS_USED if reads_rewards else frozenset()).union(options)
        (_LOCAL.add if local else _LOCAL.discard)(name)
        return function

    return register


def register_algorithm(
    name: str,
    *,
    options: Sequence[str] = (),
    single_rollout: bool = False,
    needs: Sequence[str] = (),
    local: bool = False,
    return_based: bool = False,
    **preset: Any,
) -> Callable[[Estimator], Estimator]:
    """Register a function of yours as an algorithm, for `--algorithm NAME` once its module is imported.

    `--algorithm MODULE:FUNCTION` imports the module itself, in every process, and finds this registration; it also
    takes an unregistered function, with the preset of the paper's GRPO settings. An example is
    in docs/algorithms.md.

    The function gets the finished rollouts of all processes (see `CreditInputs` for names and shapes) and returns
    `Credit`, (B, T); every process calls it with the same numbers. It must not draw random numbers or keep state: a
    resumed run could not repeat it.

    Args:
        name: name of the algorithm.
        options: fields of `CreditOptions` that the function uses in addition to gamma, normalise_process and
            advantage_mask; others are refused where a user sets them.
        single_rollout: one rollout per prompt is enough.
        needs: what it reads of `CreditInputs` beyond rewards and turns: "values" trains a critic next to the policy, on
            the `returns` that the function puts into `Credit`; "state_ids" marks equal states.
        local: the function is called with one process's rollouts, and gets the rest through `inputs.process_group`: on
            many processes this spares gathering all tokens. What `prepare` returns is numbered alike in all processes.
        return_based: rollouts of a group whose returns are equal get zero advantages; `refill_groups` needs it.
        **preset: options of `AgentConfig` that the algorithm sets where the user does not, see
            `trainers.config.presets.PRESET_DEFAULTS`.

    Raises:
        ConfigurationError: the name is taken, an option that `CreditOptions` lacks, or one that no preset sets.
    """
    for option in options:
        if option not in (known := [entry.name for entry in fields(CreditOptions)]):
            raise ConfigurationError(f"register_algorithm({name!r}): option {option!r}. {suggest(option, known)}")
    if ":" in name:
        raise ConfigurationError(f"register_algorithm({name!r}): a name has no colon; MODULE:FUNCTION has.")

    def register(function: Estimator) -> Estimator:
        other = ESTIMATORS.get(name)
        if name in ALGORITHMS and (
            other is None or _qualified_name(other) != _qualified_name(function)
        ):  # a cell may run again
            raise ConfigurationError(f"There is an algorithm {name!r} already; choose another name.")
        made = make_preset(name, single_rollout=single_rollout, needs=needs, return_based=return_based, **preset)
        add_preset(name, made)
        setattr(function, REGISTERED, name)
        return register_estimator(name, *options, local=local)(function)

    return register


def _qualified_name(function: Estimator) -> tuple[str, str]:
    return function.__module__, function.__qualname__


def estimate_credit(name: str, inputs: CreditInputs, options: CreditOptions) -> Credit:
    """Run an estimator on a batch; check the result of a custom one.

    In a mixture every environment is its own batch, because rewards have different scales: what an estimator
    takes over the batch (a mean, a deviation) is over the rollouts of one environment. Only `mean_turn_tokens` is of
    all: the loss divides by the tokens of all.

    Args:
        name: key in `ESTIMATORS`, or MODULE:NAME.
        inputs: this process's share of the rollouts.
        options: how credit is assigned.

    Returns:
        The credit of this process's rollouts.

    Raises:
        ConfigurationError: there is no such estimator, or it returned something else than `Credit` of this batch.
    """
    if inputs.environments is None:
        return _estimate(name, inputs, options)
    numbers = torch.unique(inputs.process_group.gather(inputs.environments)).to(inputs.environments.device)
    parts = [inputs.environments == number for number in numbers]
    inputs = replace(inputs, mean_turn_tokens=mean_turn_tokens(inputs))
    credits = [_estimate(name, inputs.select(row_mask), options) for row_mask in parts]
    tensors = ([getattr(credit, field.name) for credit in credits] for field in fields(Credit))
    return Credit(*(_merged(part, parts) for part in tensors))


def _merged(tensors: Sequence[Any], parts: Sequence[torch.Tensor]) -> Any:
    """Put the rows of each part back to where its mask is True; None where no part has any."""
    if any(tensor is None for tensor in tensors):
        return None
    gathered = tensors[0].new_zeros((len(parts[0]), *tensors[0].shape[1:]))
    for tensor, row_mask in zip(tensors, parts, strict=True):
        gathered[row_mask] = tensor
    return gathered


def _estimate(name: str, inputs: CreditInputs, options: CreditOptions) -> Credit:
    function = _find(name)
    local = name in _LOCAL
    gathered = inputs if local else inputs.all_gather()
    credit = function(gathered, options)
    shape = tuple(gathered.turn_ids.shape)
    got = [tuple(getattr(getattr(credit, part, None), "shape", ())) for part in ("advantages", "credited")]
    if not isinstance(credit, Credit) or got != [shape, shape]:
        raise ConfigurationError(
            f"algorithm {name!r} must return `Credit` with advantages and credited of shape {shape}, one number per "
            f"token; got a {type(credit).__name__} with {got}. `CreditBatch.broadcast_to_tokens` expands turns (B, K)."
        )
    return credit if local else _own(credit, inputs)


def _own(credit: Credit, inputs: CreditInputs) -> Credit:
    """Cut out the rollouts of one process, with their own width."""
    size, width = inputs.turn_ids.shape
    row_slice, device = inputs.process_group.row_slice(size), inputs.turn_rewards.device
    gathered = {field.name: getattr(credit, field.name) for field in fields(Credit)}
    own: dict[str, Any] = {
        name: part if part is None else part[row_slice, :width].to(device) for name, part in gathered.items()
    }
    return Credit(**own)


def _find(name: str) -> Estimator:
    if ":" in name:
        function: Estimator = import_object(name)
        return function
    if name not in ESTIMATORS:
        raise ConfigurationError(f"There is no estimator {name!r}. {suggest(name, ESTIMATORS)}")
    return ESTIMATORS[name]


def check_options(name: str, options: CreditOptions) -> None:
    """Refuse an option that an estimator would not use; meant for the start of a run.

    Args:
        name: key in `ESTIMATORS`, or MODULE:NAME, which uses what it likes.
        options: what the user wants; options at their default are never refused.

    Raises:
        ConfigurationError: the name is unknown, or an option would have no effect.
    """
    _find(name)
    for option in fields(CreditOptions):
        value = getattr(options, option.name)
        if value != option.default and option.name not in _USED_OPTIONS.get(name, (option.name,)):
            users = ", ".join(other for other, used in _USED_OPTIONS.items() if option.name in used)
            raise ConfigurationError(
                f"{option.name}={value!r} has no effect on {name}, only on {users}. Leave it at {option.default!r}."
            )


@register_estimator("grpo", "scale", "turn_returns")
def grpo(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """Group relative policy optimisation (DeepSeekMath, arXiv 2402.03300).

    A_i = (R_i - mean_j R_j) / (std_j R_j + 1e-4), the same for all tokens of a trajectory; the deviation divides by
    n - 1. `scale="batch"` takes the deviation over the batch, `scale="none"` divides by nothing (Dr. GRPO,
    arXiv 2503.20783). These are TRL's advantages. A group of one gets 0.

    With `turn_returns`, A_ik = (G_ik - mean_j G_jk) / (max_l std_j G_jl + 1e-4), where a trajectory that has ended
    stands for later turns with its last return (see `turn_group`): unscaled, its expected gradient is (n - 1) / n of
    the true one. The largest deviation of a turn divides all turns of the group, which keeps the balance between them:
    whole returns may be all but equal where those of later turns differ, and dividing by std_j R_j would have no bound.
    """
    return _group_relative(inputs, options, by_turn=options.turn_returns, scale="group")


@register_estimator("rloo", "scale")
def rloo(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """REINFORCE with the mean of the other rollouts as baseline (arXiv 2402.14740).

    A_i = R_i - mean over j != i of R_j = n / (n - 1) (R_i - mean_j R_j). Unscaled by default. A group of one has
    nothing to be compared with and gets 0.
    """
    return _group_relative(inputs, options, by_turn=False, leave_one_out=True)


@register_estimator("turn_group", "scale")
def turn_group(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """Each turn against the other rollouts of the prompt at the same turn, unbiased also when turn counts differ.

    A_ik = G_ik - mean over j != i of G_j,min(k, K_j - 1)

    A trajectory that has ended stands for later turns with the return of its last turn. The baseline depends on the
    other rollouts only, which are independent of rollout i given the prompt, and it comes off the return of a turn that
    was taken: its product with the turn's score has expectation 0. So for gamma = 1 the sum over turns of A_ik times
    the gradient of the turn's log-probability estimates the policy gradient without bias. (With gamma < 1, as
    everywhere, the factor gamma^k of later turns is dropped.)

    Normalising rewards at each turn index and then adding them up (verl issue 7244) is biased instead: it subtracts as
    many baselines as the trajectory chose to have turns, a hidden price on every further turn.

    With rewards at the end only and gamma = 1 this is `rloo`. `scale` divides all turns of a group by the largest
    deviation of a turn, as in `grpo`; by default nothing is divided. A group of one gets 0.
    """
    return _group_relative(inputs, options, by_turn=True, leave_one_out=True)


@register_estimator("gigpo", "scale", "step_weight")
def gigpo(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """Group-in-group policy optimisation (arXiv 2505.10978).

    A_ik = (S_i - mean_j S_j) / F + step_weight (G_ik - mean G_jl) / F', with the undiscounted S_i = sum_k r_ik; the
    second mean and deviation are over all turns (j, l) of the group that began in the same state as turn (i, k). F is
    the standard deviation + 1e-4 as in `grpo`, or 1 with `scale="none"`. A state seen once, or unknown (-1), adds 0.

    Raises:
        ConfigurationError: `state_ids` are missing.
    """
    episodes = prepare(inputs, options)
    scale = options.scale or "group"
    returns = rewards_to_go(episodes.rewards, episodes.turn_mask, options.gamma)
    steps = _by_state(episodes, returns, "gigpo", scale=scale)
    episode = _group_relative_returns(episodes, episodes.rewards.sum(1, keepdim=True), episodes.groups, scale=scale)
    return episodes.credit(episodes.broadcast_to_tokens(episode + options.step_weight * steps))


@register_estimator("gagpo", "lam", "scale")
def gagpo(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """Generalised advantage grouped policy optimisation (arXiv 2605.13217): GAE by turn without a critic.

    V(s) = mean G_jl over all turns (j, l) of the group that began in state s, 0 after the end;
    delta_ik = r_ik + gamma V(s_i,k+1) - V(s_ik); T_ik = delta_ik + gamma lam T_i,k+1;
    A_ik = (T_ik - mean T_jl) / (std T_jl + 1e-4) over all turns of the group (`scale` as in `grpo`).

    A state seen once, or unknown (-1), has the value of its one return. So where no state recurs but the first, every
    delta after the first turn is 0: the first turn gets R_i - mean_j R_j before scaling, later turns get 0. With
    lam = 1, T_ik = G_ik - V(s_ik), whatever states come after s_ik.

    Raises:
        ConfigurationError: `state_ids` are missing.
    """
    episodes = prepare(inputs, options)
    returns = rewards_to_go(episodes.rewards, episodes.turn_mask, options.gamma)
    values = returns - _by_state(episodes, returns, "gagpo")
    temporal = gae(episodes.rewards, values, episodes.turn_mask, options.gamma, lam=options.lam)
    groups, scale = episodes.groups[:, None].expand_as(temporal), options.scale or "group"
    steps = _relative_turns(episodes, temporal, groups, episodes.turn_mask, scale=scale)
    return episodes.credit(episodes.broadcast_to_tokens(steps))


@register_estimator("mt_grpo", "scale", "step_weight")
def mt_grpo(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """Multi-turn GRPO (arXiv 2505.11821): process rewards are compared at their turn, outcomes over the trajectory.

    With process rewards p_ik, and o_ik for all else of r_ik: A_ik = (O_i - mean_j O_j) / F +
    step_weight (p_ik - mean_j p_jk) / F', with O_i = sum_k gamma^k o_ik; the second mean and deviation are over the
    rollouts of the group that have a turn k. F as in `gigpo`. The last turn gets the first summand only: its process
    rewards count in the others' means alone.

    This is the paper's first version, carried from two turns to any number. Unscaled, its expected gradient is
    (n - 1) / n of the true one where all rewards are outcomes, and where all episodes have equally many turns and a
    process reward depends on its own turn alone (then weighted by `step_weight`). Elsewhere it is biased and may point
    the wrong way: process rewards of later turns are not credited, and where some rollouts end at turn k, the process
    rewards of the others at k count for less (tests/trainers/algorithms/test_bias.py has both). Without process rewards
    it is `grpo`.

    Raises:
        ConfigurationError: `outcome_rewards` are missing.
    """
    episodes = prepare(inputs, options)
    process, turn_mask = episodes.process_rewards, episodes.turn_mask
    if process is None:
        raise ConfigurationError(
            "mt_grpo needs `outcome_rewards` in addition to `turn_rewards`, to separate process rewards."
        )
    scale = options.scale or "group"
    turns = torch.arange(turn_mask.shape[1])
    same_turn = episodes.groups[:, None] * len(turns) + turns
    steps = _relative_turns(episodes, process, same_turn, turn_mask, scale=scale)
    steps = torch.where(turns < turn_mask.sum(1, keepdim=True) - 1, steps, 0.0)
    outcomes = rewards_to_go(episodes.rewards - process, turn_mask, options.gamma)[:, :1]
    episode = _group_relative_returns(episodes, outcomes, episodes.groups, scale=scale)
    return episodes.credit(episodes.broadcast_to_tokens(episode + options.step_weight * steps))


@register_estimator("opd", reads_rewards=False)
def opd(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """On-policy distillation (arXiv 2306.13649) without rewards: 0, to which the teacher's log-ratios are added.

    See `distillation`. Rewards are logged and teach nothing.
    """
    episodes = prepare(inputs, options)
    return episodes.credit(torch.zeros_like(episodes.token_rewards))


@register_estimator("reinforce++")
def reinforce_plus_plus(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """REINFORCE++ (arXiv 2501.03262): the return from each token on, whitened over all sampled tokens of the batch.

    G_t = r_t + d_t G_t+1 over the sampled tokens, d_t = gamma after the last token of a turn, else 1;
    A_t = (G_t - mean G) / std G. It needs no group: one rollout per prompt is enough.
    """
    episodes = prepare(inputs, options)
    returns = rewards_to_go(episodes.token_rewards, episodes.active, _token_discounts(episodes, options.gamma))
    return episodes.credit(whiten(returns, episodes.active, episodes.process_group))


@register_estimator("reinforce++-baseline", "turn_returns")
def reinforce_plus_plus_baseline(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """REINFORCE++ with group baseline (arXiv 2501.03262): the group's mean comes off, the batch's deviation divides.

    A_i = (R_i - mean_j R_j), then whitened over all sampled tokens of the batch. A group of one takes the batch's mean
    as its baseline; with one rollout for every prompt that leaves `reinforce++`. `turn_returns` credits as in `grpo`.

    Whitening subtracts the mean over tokens, which is not 0 where rollouts differ in length: a group of equal returns
    gets -mean / std, not 0.
    """
    episodes = prepare(inputs, options)
    returns = _turn_returns(episodes, options.gamma, by_turn=options.turn_returns)
    alone = episodes.process_group.apply(_counts, episodes.groups, episodes.included) == 1
    of_batch = _group_relative_returns(episodes, returns, torch.zeros_like(episodes.groups))
    centred = torch.where(alone[:, None], of_batch, _group_relative_returns(episodes, returns, episodes.groups))
    return episodes.credit(whiten(episodes.broadcast_to_tokens(centred), episodes.active, episodes.process_group))


@register_estimator("ppo", "lam", "level", "whiten")
def ppo(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """Generalised advantage estimation (arXiv 1506.02438), by token or by turn, for PPO with a critic.

    By token: see `gae`, over sampled tokens only: the state after the last token of a turn is the one in which the
    first token of the next turn is sampled, with everything the environment returned between. By turn: a turn is one
    action, its state's value is that at its first token, all its tokens get its advantage.

    The critic's targets are advantages + values before whitening; by turn, the target A_k + V_k of the turn's start
    serves for all tokens of the turn, for it holds no value from within it. Whitening is over sampled tokens, which is
    what Agent-R1 (arXiv 2511.14460) calls the advantage mask.

    A truncated episode ends like any other: a budget belongs to the task.

    Raises:
        ConfigurationError: `values` are missing.
    """
    episodes = prepare(inputs, options)
    values = _values(episodes, "ppo")
    if options.level == "turn":
        by_turn, targets = _turn_gae(episodes, options)
        advantages, returns = episodes.broadcast_to_tokens(by_turn), episodes.broadcast_to_tokens(targets)
    else:
        advantages = gae(
            episodes.token_rewards,
            values,
            episodes.active,
            _token_discounts(episodes, options.gamma),
            lam=options.lam,
        )
        returns = advantages + values
    if options.whiten:
        advantages = whiten(advantages, episodes.active, episodes.process_group)
    return episodes.credit(advantages, returns)


@register_estimator("steppo", "lam", "whiten")
def steppo(inputs: CreditInputs, options: CreditOptions) -> Credit:
    """Step-aligned policy optimisation (StepPO, arXiv 2604.18401): a turn is one action, and each counts once.

    A_k is that of `ppo` by turn, whitened over the K turns of the batch instead of its T sampled tokens. A token of a
    turn of n_k sampled tokens gets A_k (T / K) / n_k: the clipped objective is linear in a positive factor of the
    advantage, so a loss that is the mean over tokens becomes the mean over turns of min(s_k A_k, clip(s_k) A_k), the
    paper's objective where the ratio is per turn (see `turn_ratio`). In a mixture, T / K is that of all environments,
    as the mean over tokens is. The critic's targets are those of `ppo` by turn.

    Raises:
        ConfigurationError: `values` are missing.
    """
    episodes = prepare(inputs, options)
    _values(episodes, "steppo")
    by_turn, targets = _turn_gae(episodes, options)
    if options.whiten:
        by_turn = whiten(by_turn, episodes.turn_mask, episodes.process_group)
    tokens = torch.zeros_like(by_turn).scatter_add(1, episodes.token_turns.clamp(min=0), episodes.sampled.double())
    mean_tokens = inputs.mean_turn_tokens or mean_turn_tokens(inputs)
    weighted = by_turn * mean_tokens / tokens.clamp(min=1.0)
    return episodes.credit(episodes.broadcast_to_tokens(weighted), episodes.broadcast_to_tokens(targets))


def _values(episodes: CreditBatch, name: str) -> Tensor:
    if episodes.values is None:
        raise ConfigurationError(f"{name} needs `values`, the critic's value at every sampled token.")
    return episodes.values


def _turn_gae(episodes: CreditBatch, options: CreditOptions) -> tuple[Tensor, Tensor]:
    """(B, K): advantages by turn, with the value at a turn's first token as that of its state, and their targets."""
    assert episodes.values is not None
    at_starts = torch.where(episodes.turn_starts, episodes.values, 0.0)
    values = torch.zeros_like(episodes.rewards).scatter_add(1, episodes.token_turns.clamp(min=0), at_starts)
    advantages = gae(episodes.rewards, values, episodes.turn_mask, options.gamma, lam=options.lam)
    return advantages, advantages + values


def gae(rewards: Tensor, values: Tensor, mask: Tensor, discounts: Tensor | float, *, lam: float) -> Tensor:
    """Generalised advantage estimation over the steps where `mask` is True; the others are stepped over.

    A_t = delta_t + d_t lam A_t', delta_t = r_t + d_t V_t' - V_t, with t' the next step with mask (arXiv 1506.02438);
    after the last one both are 0.

    Args:
        rewards: (B, N).
        values: (B, N), value of the state before each step.
        mask: (B, N) bool.
        discounts: (B, N) or a number, d_t, what the state after step t counts at step t.
        lam: lambda, 0 to 1.

    Returns:
        (B, N), 0 where `mask` is False.
    """
    discounts = torch.as_tensor(discounts, dtype=rewards.dtype).expand_as(rewards)
    advantages = torch.zeros_like(rewards)
    advantage = value = rewards.new_zeros(len(rewards))
    for step in reversed(range(rewards.shape[1])):
        here, discount = mask[:, step], discounts[:, step]
        new = rewards[:, step] + discount * (value + lam * advantage) - values[:, step]
        advantage, value = torch.where(here, new, advantage), torch.where(here, values[:, step], value)
        advantages[:, step] = torch.where(here, new, 0.0)
    return advantages


def rewards_to_go(rewards: Tensor, mask: Tensor, discounts: Tensor | float) -> Tensor:
    """Discounted returns G_t = r_t + d_t G_t' over the steps where `mask` is True.

    Args:
        rewards: (B, N).
        mask: (B, N) bool.
        discounts: (B, N) or a number.

    Returns:
        (B, N), 0 where `mask` is False.
    """
    return gae(rewards, torch.zeros_like(rewards), mask, discounts, lam=1.0)


def whiten(values: Tensor, mask: Tensor, process_group: ProcessGroup = SINGLE_PROCESS) -> Tensor:
    """Shift and scale to mean 0 and variance 1 over all positions where `mask` is True.

    A' = (A - mean A) / sqrt(max(var A, 1e-8)), the variance dividing by the count.

    Args:
        values: any shape.
        mask: bool, same shape.
        process_group: the processes that have the rest of the values.

    Returns:
        Same shape, 0 where `mask` is False.
    """
    _, mean, variance = process_group.moments(values[mask])
    return torch.where(mask, values - mean, 0.0) / math.sqrt(max(variance, WHITEN_EPS))


def _group_relative(
    inputs: CreditInputs, options: CreditOptions, *, by_turn: bool, scale: str = "none", leave_one_out: bool = False
) -> Credit:
    """The returns less those of the group; `scale` where the options leave it open."""
    episodes = prepare(inputs, options)
    returns = _turn_returns(episodes, options.gamma, by_turn=by_turn)
    scale = options.scale or scale
    relative = _group_relative_returns(episodes, returns, episodes.groups, scale=scale, leave_one_out=leave_one_out)
    return episodes.credit(episodes.broadcast_to_tokens(relative))


def _token_discounts(episodes: CreditBatch, gamma: float) -> Tensor:
    return torch.where(episodes.turn_ends, gamma, torch.ones_like(episodes.token_rewards))


def _turn_returns(episodes: CreditBatch, gamma: float, *, by_turn: bool) -> Tensor:
    """(B, K): G_ik, with the last one carried on after the end; or R_i for all turns."""
    returns = rewards_to_go(episodes.rewards, episodes.turn_mask, gamma)
    if not by_turn:
        return returns[:, :1].expand_as(returns)
    last = (episodes.turn_mask.sum(1, keepdim=True) - 1).clamp(min=0)
    return torch.where(episodes.turn_mask, returns, returns.gather(1, last))


def _group_relative_returns(
    episodes: CreditBatch,
    returns: Tensor,
    groups: Tensor,
    included: Tensor | None = None,
    *,
    scale: str = "none",
    leave_one_out: bool = False,
) -> Tensor:
    """Compare rows (B, C) with those of their group in all processes; those not `included` (by `episodes`) get 0."""
    compare = functools.partial(_normalise_by_group, scale=scale, leave_one_out=leave_one_out)
    return episodes.process_group.apply(compare, returns, groups, episodes.included if included is None else included)


def _relative_turns(
    episodes: CreditBatch, values: Tensor, groups: Tensor, included: Tensor, *, scale: str = "none"
) -> Tensor:
    """Compare turns (B, K) with those of their group, which `groups` (B, K) number; 0 for those not `included`."""
    rows = values.reshape(-1, 1)
    return _group_relative_returns(episodes, rows, groups.flatten(), included.flatten(), scale=scale).view_as(values)


def _by_state(episodes: CreditBatch, returns: Tensor, name: str, *, scale: str = "none") -> Tensor:
    """Compare returns (B, K) with those of the group's turns from the same state; 0 where the state is unknown."""
    states = episodes.state_ids
    if states is None:
        raise ConfigurationError(
            f"{name} needs `state_ids`, which mark the turns that began in the same state; see `state_id`."
        )
    keys = torch.stack([episodes.groups[:, None].expand_as(states), states], dim=-1).reshape(-1, 2)
    return _relative_turns(episodes, returns, episodes.process_group.unique_ids(keys), states >= 0, scale=scale)


def _normalise_by_group(
    returns: Tensor, groups: Tensor, included: Tensor, *, scale: str, leave_one_out: bool
) -> Tensor:
    """Compare rows (N, C) with the mean of their group, column by column; 0 for rows that are not included.

    The largest deviation of a column divides all columns of a row.
    """
    count = _counts(groups, included)[:, None]
    centred = torch.where(included[:, None], returns - _group_sum(returns, groups, included) / count.clamp(min=1), 0.0)
    if leave_one_out:
        centred = centred * torch.where(count > 1, count / (count - 1).clamp(min=1), 0.0)
    if scale == "none":
        return centred
    deviations = _deviations(returns, groups if scale == "group" else torch.zeros_like(groups), included)
    deviation = deviations.amax(1, keepdim=True)
    return centred / torch.where(deviation < MIN_STD, 1.0, deviation + GROUP_EPS)


def _deviations(values: Tensor, groups: Tensor, included: Tensor) -> Tensor:
    """(N, C) standard deviations of each row's group, dividing by count - 1; 0 in a group of one."""
    count = _counts(groups, included)[:, None]
    mean = _group_sum(values, groups, included) / count.clamp(min=1)
    return (_group_sum((values - mean).square(), groups, included) / (count - 1).clamp(min=1)).sqrt()


def _group_sum(values: Tensor, groups: Tensor, included: Tensor) -> Tensor:
    """(N, C): for every row the sum over the included rows of its group."""
    return torch.zeros_like(values).index_add(0, groups, torch.where(included[:, None], values, 0.0))[groups]


def _counts(groups: Tensor, included: Tensor) -> Tensor:
    """(N,): for every row the number of included rows in its group."""
    return _group_sum(included.double()[:, None], groups, included)[:, 0]
