"""Estimators that credit turns: MT-GRPO, by process rewards, and GAGPO, by states that recur.

What holds for every estimator (padding, order, environment tokens, rows left out, other processes) is tested where all
of them are: test_advantages.py and test_world.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.credit_batches import batch, close
from tests.trainers.algorithms.test_advantages import DEFAULT, UNSCALED, advantages, batches, quickly, sampled
from trainers.algorithms.credit import CreditInputs, CreditOptions

HALF_WEIGHT = CreditOptions(step_weight=0.5)
UNEQUAL_TURNS = batch(
    ("00.1", [0.3, 0.2]), ("0.1.2", [0.1, 0.0, 0.5]), ("0.", [0.2]), outcomes=[1.0, 0.0, 0.5], pad=1, pad_turns=1
)
"""Outcomes 1, 0, 0.5: mean 0.5, deviation 0.5. Process rewards of turn 0: mean 0.2, deviation 0.1; of turn 1, which two
rollouts have: mean 0.1, deviation sqrt(0.02); turn 2 is the last one of the only rollout that has it."""
WON, FIRST, SECOND = 0.5 / (0.5 + 1e-4), 0.1 / (0.1 + 1e-4), 0.1 / (0.02**0.5 + 1e-4)

STATES = batch(("00.1", [0.0, 1.0]), ("0.1", [0.0, 0.0]), state_ids=[[7, 8], [7, 7]])
"""Gamma 0.5: state 7 has returns 0.5, 0, 0, so V = 1/6; state 8 occurs once, V = 1. Deltas: 0.5 - 1/6 = 1/3, 1 - 1 = 0;
1/12 - 1/6 = -1/12, -1/6. With lambda 0.5: 1/3, 0; -1/12 - 1/24 = -1/8, -1/6. Mean of the four turns 1/96."""
GAE = CreditOptions(gamma=0.5, lam=0.5, scale="none")
CENTRED = torch.tensor([31, 31, -1, -13, -17], dtype=torch.float64) / 96


class TestMTGRPO:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (
                replace(HALF_WEIGHT, scale="none"),
                [[0.55, 0.55, 0, 0.5, 0, 0], [-0.55, 0, -0.55, 0, -0.5, 0], [0, 0, 0, 0, 0, 0]],
            ),
            (
                HALF_WEIGHT,
                [
                    [WON + FIRST / 2, WON + FIRST / 2, 0, WON, 0, 0],
                    [-WON - FIRST / 2, 0, -WON - SECOND / 2, 0, -WON, 0],
                    [0, 0, 0, 0, 0, 0],
                ],
            ),
            # Outcomes are worth 0.5, 0, 0.5 at the first turn.
            (
                CreditOptions(gamma=0.5, scale="none", step_weight=0),
                [1 / 6, 1 / 6, 1 / 6, -1 / 3, -1 / 3, -1 / 3, 1 / 6],
            ),
        ],
    )
    def test_by_hand(self, options, expected):
        actual = advantages("mt_grpo", UNEQUAL_TURNS, options)
        assert close(
            actual if torch.as_tensor(expected).dim() == 2 else sampled("mt_grpo", UNEQUAL_TURNS, options), expected
        )

    @quickly
    @given(inputs=batches())
    def test_without_process_rewards_it_is_grpo(self, inputs):
        bare = replace(inputs, turn_rewards=inputs.outcome_rewards)
        for options in (DEFAULT, UNSCALED, CreditOptions(gamma=0.5, scale="batch")):
            assert close(advantages("mt_grpo", bare, options), advantages("grpo", bare, options))

    @quickly
    @given(inputs=batches(), shifts=st.lists(st.integers(-3, 3), min_size=3, max_size=3))
    def test_a_constant_in_all_process_rewards_of_a_turn_does_not_matter(self, inputs, shifts):
        by_turn = torch.tensor(shifts, dtype=torch.float64)[: inputs.turn_mask.shape[1]]
        shifted = replace(inputs, turn_rewards=inputs.turn_rewards + by_turn * inputs.turn_mask)
        assert close(advantages("mt_grpo", shifted), advantages("mt_grpo", inputs), 1e-7)

    def test_a_rollout_that_is_left_out_is_in_no_mean_of_its_turns(self):
        with_failure = batch(
            ("00.1", [0.3, 0.2]), ("0.1.2", [0.1, 0.0, 0.5]), ("0.", [0.2]), ("0.1", [50.0, float("nan")]),
            outcomes=[1.0, 0.0, 0.5, 9.0], valid=[True, True, True, False], pad=1, pad_turns=1,
        )  # fmt: skip
        expected = advantages("mt_grpo", UNEQUAL_TURNS, HALF_WEIGHT)
        actual = advantages("mt_grpo", with_failure, HALF_WEIGHT)
        assert close(actual[:3], expected) and not actual[3].any()

    def test_what_a_reference_model_charges_counts_with_the_outcome(self):
        charged = batch(("0.1", [0.5, 0.0]), ("0.1", [0.5, 0.0]), outcomes=[1.0, 1.0], token_rewards=[[-0.2], [0.0]])
        assert close(sampled("mt_grpo", charged, UNSCALED), [-0.1, -0.1, 0.1, 0.1])


class TestGAGPO:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (GAE, CENTRED),
            # Squares of 31, 1, 13, 17 add up to 1420; three of the four turns are free.
            (replace(GAE, scale="group"), CENTRED / ((1420 / 3) ** 0.5 / 96 + 1e-4)),
            # Lambda 0: the deltas alone, 1/3, 0, -1/12, -1/6, with mean 1/48.
            (replace(GAE, lam=0.0), torch.tensor([15, 15, -1, -5, -9]).double() / 48),
        ],
    )
    def test_by_hand(self, options, expected):
        assert close(sampled("gagpo", STATES, options), expected)

    @pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
    def test_where_only_the_first_state_is_shared_only_the_first_turn_learns(self, lam):
        apart = batch(("0.1.2", [0.5, 0.0, 1.0]), ("0.1", [0.0, 0.25]), state_ids=[[1, 2, 3], [1, -1]])
        options = replace(UNSCALED, lam=lam)
        assert close(sampled("gagpo", apart, options), [0.625, 0, 0, -0.625, 0])  # returns 1.5 and 0.25

    @quickly
    @given(inputs=batches())
    def test_lambda_one_is_gigpos_part_by_state_but_for_the_mean_of_the_group(self, inputs):
        def weighted(weight):
            return advantages("gigpo", inputs, replace(UNSCALED, gamma=0.5, step_weight=weight))

        difference = advantages("gagpo", inputs, replace(UNSCALED, gamma=0.5)) - (weighted(1.0) - weighted(0.0))
        counted = (inputs.turn_ids >= 0) & inputs.valid[:, None]
        for group in inputs.groups.unique():
            offsets = difference[counted & (inputs.groups == group)[:, None]]
            assert close(offsets, offsets[:1].expand_as(offsets))

    @quickly
    @given(inputs=batches())
    def test_turns_of_a_group_have_mean_zero_and_deviation_one_or_zero(self, inputs):
        once = replace(inputs, token_rewards=None, values=None)
        scaled = CreditOptions(lam=0.5)
        found = [advantages("gagpo", once, options) for options in (scaled, replace(scaled, scale="none"))]
        for group in inputs.groups.unique():
            lines = ((inputs.groups == group) & inputs.valid).nonzero()[:, 0]
            if inputs.turn_mask[lines].sum() > 1:
                turns, before = (torch.cat([first_tokens(inputs, each, line) for line in lines]) for each in found)
                assert abs(turns.mean().item()) < 1e-9
                differ = (before.max() - before.min()).item() > 1e-9
                assert turns.std().item() == pytest.approx(float(differ), abs=0.05 if differ else 1e-9)

    def test_a_rollout_that_is_left_out_is_in_no_value(self):
        with_failure = batch(
            ("00.1", [0.0, 1.0]), ("0.1", [0.0, 0.0]), ("0.1", [float("nan"), 40.0]),
            state_ids=[[7, 8], [7, 7], [7, 8]], valid=[True, True, False],
        )  # fmt: skip
        actual = advantages("gagpo", with_failure, GAE)
        assert close(actual[:2], advantages("gagpo", STATES, GAE)) and not actual[2].any()

    def test_groups_share_no_states(self):
        alone = replace(STATES, groups=torch.tensor([0, 1]), state_ids=torch.tensor([[7, 8], [7, 9]]))
        assert close(sampled("gagpo", alone), [0.0] * 5)


def first_tokens(inputs: CreditInputs, numbers: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    """The numbers of one rollout, one per turn."""
    turns = int(inputs.turn_mask[line].sum())
    return torch.stack([numbers[line][inputs.turn_ids[line] == turn][0] for turn in range(turns)])
