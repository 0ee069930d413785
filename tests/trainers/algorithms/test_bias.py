"""Bias of the estimators, on a toy decision process with unequal turn counts, and groups of three enumerated exactly.

Turn 0 and turn 1 stop or go on, turn 2 wins or loses: four trajectories, 64 groups.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.credit_batches import batch, close
from trainers.algorithms.advantages import ESTIMATORS, rewards_to_go
from trainers.algorithms.credit import CreditOptions

UNSCALED = CreditOptions(scale="none")
CHOICES = ((0,), (1, 0), (1, 1, 0), (1, 1, 1))
reals = st.floats(-2, 2).map(lambda x: round(x, 3))


def numbers(values, **options):
    return torch.tensor(values, dtype=torch.float64, **options)


def estimator(name, options=None):
    return lambda inputs: ESTIMATORS[name](inputs, options or CreditOptions()).advantages


def trajectories(gains):
    """Rewards of each trajectory; gains are (stop, go on) of turn 0, of turn 1, and (lose, win) of turn 2."""
    return [[gains[turn][choice] for turn, choice in enumerate(choices)] for choices in CHOICES]


def expected_gradient(gains, logits, by_turn):
    """Expectation of the policy gradient estimate; `by_turn` maps a batch of groups to (B, 3) advantages."""
    rewards = trajectories(gains)
    groups = torch.cartesian_prod(*[torch.arange(4)] * 3)
    inputs = batch(
        *[("012"[: len(rewards[t])], rewards[t]) for t in groups.flatten().tolist()],
        groups=torch.arange(64).repeat_interleave(3).tolist(),
    )
    scores = log_probs(logits)
    chance = scores.detach().sum(1).exp()[groups].prod(1)
    weighted = (by_turn(inputs) * scores[groups.flatten()]).sum(1).view(64, 3).mean(1)
    return torch.autograd.grad((chance * weighted).sum(), logits)[0]


def true_gradient(gains, logits):
    returns = numbers([sum(rewards) for rewards in trajectories(gains)])
    return torch.autograd.grad((log_probs(logits).sum(1).exp() * returns).sum(), logits)[0]


def log_probs(logits):
    """(4, 3) log-probability of each trajectory's choices, 0 where it has ended."""
    table = torch.stack([torch.nn.functional.logsigmoid(-logits), torch.nn.functional.logsigmoid(logits)], dim=1)
    rows = [[table[turn, choice] for turn, choice in enumerate(choices)] for choices in CHOICES]
    return torch.stack([torch.stack(row + [logits.new_zeros(())] * (3 - len(row))) for row in rows])


def naive(inputs):
    """MT-GRPO's way: each turn's reward less the mean of its turn index in the group, then summed from there on."""
    rewards = inputs.turn_rewards.view(64, 3, 3)
    mask = inputs.turn_mask.view(64, 3, 3)
    means = (rewards * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    return rewards_to_go(torch.where(mask, rewards - means, 0.0).view(192, 3), inputs.turn_mask, 1.0)


@settings(max_examples=20, deadline=None)
@given(gains=st.lists(st.tuples(reals, reals), min_size=3, max_size=3), start=st.tuples(*[reals] * 3))
def test_turn_group_and_rloo_are_unbiased_and_grpo_by_turn_shrinks_by_the_group(gains, start):
    logits = numbers(start, requires_grad=True)
    truth = true_gradient(gains, logits)
    for name, factor, options in (
        ("turn_group", 1, None),
        ("rloo", 1, None),
        ("grpo", 2 / 3, UNSCALED),
        ("grpo", 2 / 3, CreditOptions(scale="none", turn_returns=True)),
    ):
        estimate = expected_gradient(gains, logits, estimator(name, options))
        assert close(estimate, truth * factor, 1e-12)


def test_normalising_by_turn_index_can_point_the_wrong_way():
    gains = [(0.5, 0.0), (0.0, 0.0), (1.0, 1.0)]  # stop at once for 0.5, or go on twice for 1
    logits = numbers([0.0, 1.0, 0.0], requires_grad=True)
    truth = true_gradient(gains, logits)
    assert truth[0] > 0.05
    assert close(expected_gradient(gains, logits, estimator("turn_group")), truth)
    assert expected_gradient(gains, logits, naive)[0] < -0.05


def test_turn_group_varies_less_than_whole_trajectories():
    gains = [(0.0, 1.0), (0.0, 1.0), (0.0, 1.0)]
    logits = numbers([1.0, 1.0, 0.0], requires_grad=True)

    def second_moment(name):
        squares = expected_gradient(gains, logits, lambda inputs: estimator(name)(inputs).square())
        return squares.abs().sum().item()

    assert second_moment("turn_group") < second_moment("rloo")
