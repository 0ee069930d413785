"""Bias of the estimators, on a toy decision process with unequal turn counts, and groups of three enumerated exactly.

Turn 0 and turn 1 stop or go on, turn 2 wins or loses: four trajectories, 64 groups. Or two turns for all, which choose
twice.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.credit_batches import batch, close
from trainers.algorithms.advantages import ESTIMATORS, rewards_to_go
from trainers.algorithms.credit import CreditOptions

UNSCALED = CreditOptions(scale="none")
CHOICES = ((0,), (1, 0), (1, 1, 0), (1, 1, 1))
TWO_TURNS = ((0, 0), (0, 1), (1, 0), (1, 1))
reals = st.floats(-2, 2).map(lambda x: round(x, 3))


def numbers(values, **options):
    return torch.tensor(values, dtype=torch.float64, **options)


def estimator(name, options=None):
    return lambda inputs: ESTIMATORS[name](inputs, options or CreditOptions()).advantages


def trajectories(gains, choices=CHOICES):
    """Rewards of each trajectory; gains are (stop, go on) of turn 0, of turn 1, and (lose, win) of turn 2."""
    return [[gains[turn][choice] for turn, choice in enumerate(chosen)] for chosen in choices]


def expected_gradient(gains, logits, by_turn, choices=CHOICES):
    """Expectation of the policy gradient estimate; `by_turn` maps a batch of groups to (B, K) advantages."""
    rewards = trajectories(gains, choices)
    groups = torch.cartesian_prod(*[torch.arange(4)] * 3)
    inputs = batch(
        *[("012"[: len(rewards[t])], rewards[t]) for t in groups.flatten().tolist()],
        groups=torch.arange(64).repeat_interleave(3).tolist(),
    )
    scores = log_probs(logits, choices)
    chance = scores.detach().sum(1).exp()[groups].prod(1)
    weighted = (by_turn(inputs) * scores[groups.flatten()]).sum(1).view(64, 3).mean(1)
    return torch.autograd.grad((chance * weighted).sum(), logits)[0]


def true_gradient(gains, logits, choices=CHOICES):
    returns = numbers([sum(rewards) for rewards in trajectories(gains, choices)])
    return torch.autograd.grad((log_probs(logits, choices).sum(1).exp() * returns).sum(), logits)[0]


def log_probs(logits, choices):
    """(4, K) log-probability of each trajectory's choices, 0 where it has ended."""
    table = torch.stack([torch.nn.functional.logsigmoid(-logits), torch.nn.functional.logsigmoid(logits)], dim=1)
    rows = [[table[turn, choice] for turn, choice in enumerate(chosen)] for chosen in choices]
    return torch.stack([torch.stack(row + [logits.new_zeros(())] * (len(logits) - len(row))) for row in rows])


def mt_grpo(inputs, *, weight, process):
    """Advantages where the last turn's reward is the outcome; where `process` is False, all rewards are outcomes."""
    last = torch.nn.functional.one_hot(inputs.turn_mask.sum(1) - 1, inputs.turn_mask.shape[1])
    outcomes = inputs.turn_rewards * last if process else inputs.turn_rewards
    inputs = replace(inputs, outcome_rewards=outcomes)
    return ESTIMATORS["mt_grpo"](inputs, replace(UNSCALED, step_weight=weight)).advantages


def gagpo(inputs, *, lam):
    """Advantages where the state is the turn, as it is here."""
    turns = torch.arange(inputs.turn_mask.shape[1]).expand_as(inputs.turn_mask)
    return ESTIMATORS["gagpo"](replace(inputs, state_ids=turns), replace(UNSCALED, lam=lam)).advantages


def naive(inputs):
    """Each turn's reward less the mean of its turn index in the group, then summed from there on (verl issue 7244)."""
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


@settings(max_examples=20, deadline=None)
@given(gains=st.lists(st.tuples(reals, reals), min_size=3, max_size=3), start=st.tuples(*[reals] * 3))
def test_mt_grpo_shrinks_by_the_group_where_all_is_outcome_or_turns_are_equally_many(gains, start):
    logits = numbers(start, requires_grad=True)
    estimate = expected_gradient(gains, logits, lambda inputs: mt_grpo(inputs, weight=0.5, process=False))
    assert close(estimate, true_gradient(gains, logits) * 2 / 3, 1e-12)

    gains, logits = gains[:2], numbers(start[:2], requires_grad=True)
    estimate = expected_gradient(gains, logits, lambda inputs: mt_grpo(inputs, weight=0.5, process=True), TWO_TURNS)
    weighted = [(gains[0][0] / 2, gains[0][1] / 2), gains[1]]
    assert close(estimate, true_gradient(weighted, logits, TWO_TURNS) * 2 / 3, 1e-12)


def test_mt_grpo_can_point_the_wrong_way_where_turn_counts_differ():
    def both(gains):
        logits = numbers([0.0, 1.0, 0.0], requires_grad=True)
        estimate = expected_gradient(gains, logits, lambda inputs: mt_grpo(inputs, weight=1.0, process=True))
        return true_gradient(gains, logits), estimate

    truth, estimate = both([(0.0, -0.3), (0.0, 1.0), (0.0, 0.0)])  # going on costs 0.3 now, and brings 1 a turn later
    assert truth[0] > 0.1 and estimate[0] < -0.02
    truth, estimate = both([(0.0, 0.0), (0.6, 1.0), (0.0, 0.0)])  # an outcome of 0.6, or a process reward of 1
    assert truth[1] > 0.03 and estimate[1] < -0.01


@settings(max_examples=20, deadline=None)
@given(
    gains=st.lists(st.tuples(reals, reals), min_size=3, max_size=3),
    start=st.tuples(*[reals] * 3),
    lam=st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)
def test_gagpo_shrinks_each_turn_by_the_group_or_more_where_states_are_told(gains, start, lam):
    logits = numbers(start, requires_grad=True)
    truth, estimate = true_gradient(gains, logits), expected_gradient(gains, logits, lambda i: gagpo(i, lam=lam))
    assert ((estimate * truth.sign() > -1e-12) & (estimate.abs() < truth.abs() * 2 / 3 + 1e-12)).all()
