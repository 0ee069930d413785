"""Input and output of an advantage estimator, and the bookkeeping between turns and tokens.

Shapes: B trajectories (of one process, or of all), at most K turns, T tokens after the prompt.

Where the history is rewritten between turns, a trajectory has several contexts: they are laid one after another along
T (whatever was not sampled has turn id -1), and the estimates are cut apart again. Every statistic stays one per
trajectory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from agent_r1_gym.errors import ConfigurationError, suggest
from trainers.algorithms.process_group import SINGLE_PROCESS, ProcessGroup

PROCESS_EPS = 1e-6
PADDING = MappingProxyType({"turn_ids": -1, "state_ids": -1})
"""Padding of the fields of `CreditInputs` that are not padded with 0."""


@dataclass(frozen=True, slots=True)
class CreditInputs:
    """A batch of finished rollouts, or one process's share of it.

    Attributes:
        turn_rewards: (B, K) float, reward of each turn.
        turn_mask: (B, K) bool, True for real turns, which come first in their row.
        turn_ids: (B, T) long, turn in which the model sampled the token, -1 for all other tokens and for padding.
        groups: (B,) long, equal for rollouts of one prompt.
        valid: (B,) bool, False for rollouts to exclude (infrastructure failures): no advantage, in no statistic,
            and whatever the other fields hold for them is not looked at. Nor is a trajectory without turns.
        values: (B, T) float, the critic's value of the state in which the token was chosen, that is before it.
        outcome_rewards: (B, K) float, what the outcome terms brought of `turn_rewards`; needed to separate process
            rewards.
        token_rewards: (B, T) float, further rewards of sampled tokens, such as a penalty for the divergence from a
            reference model.
        token_mask: (B, T) bool, True for every token that is not padding; needed without advantage mask only.
        state_ids: (B, K) long, equal for equal states in which turns began, -1 for unknown; see `state_id`.
        environments: (B,) long, equal for rollouts of one environment of a mixture; None: there is only one.
        mean_turn_tokens: mean number of sampled tokens in a turn of the whole batch, where these rollouts are those of
            one environment of a mixture; None: they are the whole batch. See the function of this name.
        process_group: the processes that have the rest of the batch.

    Raises:
        ValueError: a field has another shape.
    """

    turn_rewards: Tensor
    turn_mask: Tensor
    turn_ids: Tensor
    groups: Tensor
    valid: Tensor
    values: Tensor | None = None
    outcome_rewards: Tensor | None = None
    token_rewards: Tensor | None = None
    token_mask: Tensor | None = None
    state_ids: Tensor | None = None
    environments: Tensor | None = None
    mean_turn_tokens: float | None = None
    process_group: ProcessGroup = SINGLE_PROCESS

    def __post_init__(self) -> None:
        if self.turn_rewards.dim() != 2 or self.turn_ids.dim() != 2:
            raise ValueError(
                f"turn_rewards must be (B, K) and turn_ids (B, T), got {tuple(self.turn_rewards.shape)} and "
                f"{tuple(self.turn_ids.shape)}."
            )
        size, turns = self.turn_rewards.shape
        single, by_turn, by_token = (size,), (size, turns), (size, self.turn_ids.shape[1])
        expected = {
            "turn_mask": by_turn, "turn_ids": by_token, "groups": single, "valid": single, "values": by_token,
            "outcome_rewards": by_turn, "token_rewards": by_token, "token_mask": by_token, "state_ids": by_turn,
            "environments": single,
        }  # fmt: skip
        for name, shape in expected.items():
            tensor = getattr(self, name)
            if tensor is not None and tuple(tensor.shape) != shape:
                raise ValueError(f"{name} must have shape {shape} with these turn_rewards, got {tuple(tensor.shape)}.")

    def select(self, row_mask: Tensor) -> CreditInputs:
        """Select the rollouts where the mask (B,) is True."""
        selected: dict[str, Any] = {name: tensor[row_mask] for name, tensor in self.tensors.items()}
        return replace(self, **selected)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The fields that are given, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def on_cpu(self) -> CreditInputs:
        """Detach the batch and move it to the CPU; pad turns to the same number of columns on all processes."""
        tensors: dict[str, Any] = {name: tensor.detach().cpu() for name, tensor in self.tensors.items()}
        turns = self.turn_mask.shape[1]
        missing = max(1, int(self.process_group.all_reduce_max(turns))) - turns
        for name in tensors.keys() & {"turn_rewards", "outcome_rewards", "turn_mask", "state_ids"} if missing else ():
            tensors[name] = torch.nn.functional.pad(tensors[name], (0, missing), value=PADDING.get(name, 0))
        return replace(self, **tensors)

    def all_gather(self) -> CreditInputs:
        """Gather the rollouts of all processes, padded to one shape."""
        gather = self.process_group.gather
        whole: dict[str, Any] = {name: gather(part, pad=PADDING.get(name, 0)) for name, part in self.tensors.items()}
        return replace(self, **whole, process_group=SINGLE_PROCESS)


@dataclass(frozen=True, slots=True)
class CreditOptions:
    """How credit is assigned. `advantages.check_options` checks which estimator uses which option.

    Attributes:
        gamma: discount from one turn to the next, 0 to 1.
        lam: lambda of generalised advantage estimation, for each step of `level`, 0 to 1.
        level: unit of time of generalised advantage estimation, "token" or "turn".
        scale: divide by the standard deviation of the returns of the "group" or of the "batch", by turn the largest one
            of a turn, or "none". None: as in the estimator's paper.
        turn_returns: credit a turn with what came from it on, rather than with the whole trajectory.
        whiten: give the advantages mean 0 and variance 1 over the batch.
        normalise_process: divide process rewards by the batch's largest absolute return of process rewards.
        advantage_mask: False (an ablation) counts the environment's tokens as if the model had sampled them.
        step_weight: weight of the advantages by state (GiGPO) or turn (MT-GRPO) next to the episode's, at least 0.

    Raises:
        ConfigurationError: a value is out of range.
    """

    gamma: float = 1.0
    lam: float = 1.0
    level: str = "token"
    scale: str | None = None
    turn_returns: bool = False
    whiten: bool = True
    normalise_process: bool = False
    advantage_mask: bool = True
    step_weight: float = 1.0

    def __post_init__(self) -> None:
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigurationError(f"{name} must lie between 0 and 1, got {getattr(self, name)}.")
        if not 0 <= self.step_weight < float("inf"):
            raise ConfigurationError(f"step_weight must be a finite number of at least 0, got {self.step_weight}.")
        for name, choices in (("level", ("token", "turn")), ("scale", ("group", "batch", "none", None))):
            if getattr(self, name) not in choices:
                got = getattr(self, name)
                raise ConfigurationError(f"{name}: got {got!r}. {suggest(str(got), filter(None, choices))}")


@dataclass(frozen=True, slots=True)
class Credit:
    """What an estimator returns, in the dtype (at least float32) and on the device of `CreditInputs.turn_rewards`.

    Attributes:
        advantages: (B, T), 0 outside sampled tokens and for excluded trajectories. Without advantage mask the
            environment's tokens have advantages too.
        credited: (B, T) bool, the tokens that carry advantages.
        returns: (B, T), targets of the critic, 0 where nothing is credited; None without critic.
    """

    advantages: Tensor
    credited: Tensor
    returns: Tensor | None

    def select(self, row_mask: Tensor) -> Credit:
        """Select the rollouts where the mask (B,) is True."""
        return Credit(
            self.advantages[row_mask], self.credited[row_mask], None if self.returns is None else self.returns[row_mask]
        )


@dataclass(frozen=True, slots=True)
class CreditBatch:
    """A checked batch in float64 on the CPU: all ranks get the same bits, and no device lacks the precision.

    Attributes:
        included: (B,) bool, trajectories that take part.
        groups: (B,) long, 0 to the number of groups - 1.
        turn_mask: (B, K) bool, real turns of trajectories that take part.
        rewards: (B, K), all that was earned in a turn, 0 elsewhere.
        process_rewards: (B, K), what process terms brought of it; None if outcomes were not given apart.
        token_rewards: (B, T), the same on tokens: a turn's reward on the last token sampled in it.
        sampled: (B, T) bool, tokens that the model sampled in trajectories that take part.
        token_turns: (B, T) long, turn whose credit a token carries, -1 for none. A token of the environment (without
            advantage mask) belongs to the turn after it, the last ones to the last turn.
        turn_starts: (B, T) bool, first sampled token of each turn.
        turn_ends: (B, T) bool, last sampled token of each turn.
        values: (B, T), 0 where `token_turns` is -1; None without critic.
        state_ids: (B, K) long, -1 where unknown; None if not given.
        like: tensor of whose dtype and device the results are.
        process_group: the processes that have the rest of the batch; groups and turns are numbered alike in all of
            them.
    """

    included: Tensor
    groups: Tensor
    turn_mask: Tensor
    rewards: Tensor
    process_rewards: Tensor | None
    token_rewards: Tensor
    sampled: Tensor
    token_turns: Tensor
    turn_starts: Tensor
    turn_ends: Tensor
    values: Tensor | None
    state_ids: Tensor | None
    like: Tensor
    process_group: ProcessGroup = SINGLE_PROCESS

    @property
    def active(self) -> Tensor:
        """(B, T) bool, tokens that carry credit."""
        return self.token_turns >= 0

    def broadcast_to_tokens(self, by_turn: Tensor) -> Tensor:
        """Give every token the number of its turn: (B, K) to (B, T), 0 where no turn is."""
        return torch.where(self.active, by_turn.gather(1, self.token_turns.clamp(min=0)), 0.0)

    def credit(self, advantages: Tensor, returns: Tensor | None = None) -> Credit:
        """Pack (B, T) results."""
        device, dtype = self.like.device, torch.promote_types(self.like.dtype, torch.float32)
        targets = None if returns is None else returns.to(device, dtype)
        return Credit(advantages.to(device, dtype), self.active.to(device), targets)


def prepare(inputs: CreditInputs, options: CreditOptions) -> CreditBatch:
    """Check a batch, exclude what does not count, and put every reward at its position.

    Raises:
        ConfigurationError: an option needs a field that is missing.
        ValueError: turns and tokens do not fit together, or a number that counts is not finite.
    """
    like, inputs = inputs.turn_rewards, inputs.on_cpu()
    included = inputs.valid.bool() & inputs.turn_mask.bool().any(1)
    turn_mask = inputs.turn_mask.bool() & included[:, None]
    turn_ids = torch.where(included[:, None], inputs.turn_ids, -1)
    _check_turns(turn_mask, turn_ids)
    turn_starts, turn_ends = turn_spans(turn_ids)
    sampled = turn_ids >= 0
    token_turns = turn_ids if options.advantage_mask else _owners(inputs, turn_mask, turn_ids, included)

    rewards = _masked_float64("turn_rewards", inputs.turn_rewards, turn_mask)
    process = None
    if inputs.outcome_rewards is not None:
        outcomes = _masked_float64("outcome_rewards", inputs.outcome_rewards, turn_mask)
        process = rewards - outcomes
        if options.normalise_process:
            process = normalise_process_rewards(process, inputs.process_group)
            rewards = process + outcomes
    elif options.normalise_process:
        raise ConfigurationError(
            "normalise_process needs `outcome_rewards` in addition to `turn_rewards`: the outcome must not be divided."
        )
    token_rewards = assign_rewards_to_tokens(rewards, turn_ids)
    if inputs.token_rewards is not None:
        extra = _masked_float64("token_rewards", inputs.token_rewards, sampled)
        token_rewards = token_rewards + extra
        rewards = rewards.scatter_add(1, turn_ids.clamp(min=0), extra)
    return CreditBatch(
        included=included,
        groups=inputs.process_group.unique_ids(inputs.groups[:, None]),
        turn_mask=turn_mask,
        rewards=rewards,
        process_rewards=process,
        token_rewards=token_rewards,
        sampled=sampled,
        token_turns=token_turns,
        turn_starts=turn_starts,
        turn_ends=turn_ends,
        values=None if inputs.values is None else _masked_float64("values", inputs.values, token_turns >= 0),
        state_ids=None if inputs.state_ids is None else torch.where(turn_mask, inputs.state_ids, -1),
        like=like,
        process_group=inputs.process_group,
    )


def mean_turn_tokens(inputs: CreditInputs) -> float:
    """Return the mean number of sampled tokens in a turn, over the rollouts of all processes that take part."""
    turn_mask = inputs.turn_mask.bool() & inputs.valid.bool()[:, None]
    sampled = (inputs.turn_ids >= 0) & turn_mask.any(1, keepdim=True)
    parts = inputs.process_group.all_gather((int(sampled.sum()), int(turn_mask.sum())))
    tokens, turns = map(sum, zip(*parts, strict=True))
    return float(tokens / max(1, turns))


def turn_spans(turn_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Mark the first and the last sampled token of each turn.

    Args:
        turn_ids: (B, T) long, never falling among the sampled tokens of a row, -1 for all other tokens.

    Returns:
        Two (B, T) bool tensors.
    """
    sampled = turn_ids >= 0
    before = torch.nn.functional.pad(turn_ids.cummax(1).values, (1, 0), value=-1)[:, :-1]
    after = torch.nn.functional.pad(_next_turn(turn_ids), (0, 1), value=_NO_TURN)[:, 1:]
    return sampled & (before != turn_ids), sampled & (after != turn_ids)


def assign_rewards_to_tokens(turn_rewards: Tensor, turn_ids: Tensor) -> Tensor:
    """Put each turn's reward on the last token that the model sampled in it, whatever text follows.

    Args:
        turn_rewards: (B, K).
        turn_ids: (B, T) long, as in `CreditInputs`.

    Returns:
        (B, T), 0 on all other tokens.
    """
    return torch.where(turn_spans(turn_ids)[1], turn_rewards.gather(1, turn_ids.clamp(min=0)), 0.0)


def normalise_process_rewards(rewards: Tensor, process_group: ProcessGroup = SINGLE_PROCESS) -> Tensor:
    """Divide by the batch's largest absolute return, so that no return of process rewards exceeds 1 in size.

    r'_k = r_k / (max over i and k of |r_ik + r_i,k+1 + ...| + 1e-6), as Agent-R1 (arXiv 2511.14460) does after PRIME
    (arXiv 2502.01456).

    Args:
        rewards: (B, K), 0 where no turn is.
        process_group: the processes that have the rest of the batch.

    Returns:
        (B, K).
    """
    returns = rewards.flip(1).cumsum(1).flip(1)
    return rewards / (
        process_group.all_reduce_max(returns.abs().amax().item() if rewards.numel() else 0.0) + PROCESS_EPS
    )


def state_id(key: str) -> int:
    """Return a number from 0 to 2**63 - 1 for a state (such as an observation), the same in every process."""
    return int.from_bytes(hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1


_NO_TURN = 1 << 62  # a power of two: `pad` takes its value through a float


def _next_turn(turn_ids: Tensor) -> Tensor:
    """(B, T) turn of the nearest sampled token at or after each token, `_NO_TURN` if there is none."""
    return torch.where(turn_ids >= 0, turn_ids, _NO_TURN).flip(1).cummin(1).values.flip(1)


def _owners(inputs: CreditInputs, turn_mask: Tensor, turn_ids: Tensor, included: Tensor) -> Tensor:
    if inputs.token_mask is None:
        raise ConfigurationError(
            "advantage_mask=False needs `token_mask`, to distinguish the environment's tokens from padding."
        )
    following = _next_turn(turn_ids)
    owners = torch.where(following == _NO_TURN, turn_mask.sum(1, keepdim=True) - 1, following)
    return torch.where((inputs.token_mask.bool() & included[:, None]) | (turn_ids >= 0), owners, -1)


def _check_turns(turn_mask: Tensor, turn_ids: Tensor) -> None:
    turns = turn_mask.shape[1]
    sampled = turn_ids >= 0
    problems = {
        "turn_mask has a gap before a real turn": (turn_mask[:, 1:] & ~turn_mask[:, :-1]).any(1),
        f"turn_ids exceed the {turns} turns of turn_rewards": (turn_ids >= turns).any(1),
        "turn_ids fall from one sampled token to a later one": (sampled & (turn_ids < turn_ids.cummax(1).values)).any(
            1
        ),
    }
    for problem, broken in problems.items():
        _refuse(broken, problem)
    tokens = torch.zeros(turn_mask.shape, dtype=torch.long).scatter_add(1, turn_ids.clamp(min=0), sampled.long())
    _refuse(((tokens > 0) != turn_mask).any(1), "turn_mask and turn_ids disagree on which turns have sampled tokens")


def _refuse(broken: Tensor, problem: str) -> None:
    if broken.any():
        raise ValueError(f"Trajectory {broken.nonzero()[0].item()} of the batch: {problem}.")


def _masked_float64(name: str, tensor: Tensor, mask: Tensor) -> Tensor:
    """Float64 copy, 0 where `mask` is False."""
    masked = torch.where(mask, tensor.double(), 0.0)
    bad = (~masked.isfinite()).nonzero()
    if len(bad):
        where = bad[0].tolist()
        raise ValueError(
            f"{name}{where} is {masked[tuple(where)].item()}, expected a finite number; check the rewards of the "
            "environment (or the critic), or mark the trajectory as not valid."
        )
    return masked
