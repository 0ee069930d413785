from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_r1_gym.errors import ConfigurationError
from tests.kit.credit_batches import batch, close
from tests.kit.samples import samples
from trainers.algorithms.advantages import ESTIMATORS, check_options, gae, rewards_to_go, whiten
from trainers.algorithms.credit import CreditInputs, CreditOptions
from trainers.config.presets import ALGORITHMS

DEFAULT = CreditOptions()
UNSCALED = CreditOptions(scale="none")
GROUP_RELATIVE = ("grpo", "rloo", "turn_group", "gigpo", "gagpo", "mt_grpo")
WITHOUT_REWARDS = ("opd",)


def advantages(name, inputs, options=DEFAULT):
    return ESTIMATORS[name](inputs, options).advantages


def numbers(values):
    return torch.tensor(values, dtype=torch.float64)


def whitened(values):
    return (numbers(values) - numbers(values).mean()) / numbers(values).std(correction=0)


def sampled(name, inputs, options=DEFAULT):
    """Advantages of the sampled tokens alone, row after row."""
    return advantages(name, inputs, options)[inputs.turn_ids >= 0]


class TestReturns:
    def test_discounted_rewards_to_go_step_over_masked_places(self):
        rewards = torch.tensor([[1.0, 9.0, 2.0, 4.0], [3.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
        mask = torch.tensor([[True, False, True, True], [True, False, False, False]])
        assert close(rewards_to_go(rewards, mask, 0.5), [[3.0, 0.0, 4.0, 4.0], [3.0, 0.0, 0.0, 0.0]])

    def test_whitening_leaves_out_masked_places_and_constants_become_zero(self):
        mask = torch.tensor([True, True, False])
        assert close(whiten(torch.tensor([1.0, 3.0, 50.0]), mask), [-1.0, 1.0, 0.0])
        assert close(whiten(torch.full((3,), 0.1, dtype=torch.float64), mask), [0.0, 0.0, 0.0])
        assert close(whiten(torch.ones(3), torch.zeros(3, dtype=torch.bool)), [0.0, 0.0, 0.0])

    def test_gae_with_lambda_one_is_the_return_minus_the_value(self):
        generator = torch.Generator().manual_seed(0)
        rewards, values = torch.rand(2, 4, 6, dtype=torch.float64, generator=generator)
        mask = torch.rand(4, 6, generator=generator) > 0.3
        estimate = gae(rewards, values, mask, 0.9, lam=1.0)
        assert close(estimate, torch.where(mask, rewards_to_go(rewards, mask, 0.9) - values, 0.0))


OUTCOMES = batch(("00.1", [0.5, 0.5]), ("0", [0.0]), ("00", [0.0]), ("0", [1.0]))
"""Mean 0.5; squares of the distances 0.25 each; 1 / (4 - 1) of their sum: deviation 0.5773502692."""
A = 0.5 / (0.5773502692 + 1e-4)
FOUR = batch(("0", [1.0]), ("0", [3.0]), ("0", [5.0]), ("0", [7.0]), groups=[4, 4, 9, 9])
TWO_TURNS = batch(("0.1", [0.5, 1.0]), ("0", [0.25]))
"""Returns 1.5, 1.0 and 0.25, which also stands at turn 1; means 0.875 and 0.625; deviation 1.25 / sqrt(2)."""
CENTRED = numbers([0.625, 0.375, -0.625])
DEVIATION = 1.25 / 2**0.5 + 1e-4
NEARLY_EQUAL = batch(("0.1", [0.5, 0.5]), ("0.1", [1.001, 0.0]))
"""Returns 1.0 and 1.001, at turn 1 0.5 and 0.0, with deviations 0.001 / sqrt(2) and 0.5 / sqrt(2)."""
STATES = batch(("0.1", [0.0, 1.0]), ("0.1", [0.0, 0.0]), state_ids=[[7, 8], [7, 7]])
"""Episodes: 1 and 0. Steps, gamma 0.5: state 7 has returns 0.5, 0, 0 with mean 1/6; state 8 occurs once. Deviation of
0.5, 0, 0: sqrt((1/9 + 2/36) / 2) = sqrt(1/12); of 1, 0: sqrt(1/2)."""
E, S = 0.5 / (0.5**0.5 + 1e-4), 1 / ((1 / 12) ** 0.5 + 1e-4)
APART = replace(STATES, groups=torch.tensor([0, 1]), state_ids=torch.tensor([[7, 8], [7, 9]]))
TWO_GROUPS = batch(("0", [1.0]), ("0", [0.0]), ("0", [7.0]), ("0", [7.0]), groups=[0, 0, 1, 1])
OUTCOME_LAST = ("00.1", [0.0, 1.0])
ONE_TOKEN_TURNS = ("0.1", [0.0, 1.0])
BY_TURN = CreditOptions(turn_returns=True)
HALF = CreditOptions(gamma=0.5, scale="none")
NO_MASK = CreditOptions(advantage_mask=False)
GAE = CreditOptions(gamma=0.9, lam=0.5, whiten=False)

BY_HAND = [
    ("grpo", OUTCOMES, DEFAULT, [[A, A, 0, A], [-A, 0, 0, 0], [-A, -A, 0, 0], [A, 0, 0, 0]]),
    ("grpo", OUTCOMES, UNSCALED, [0.5, 0.5, 0.5, -0.5, -0.5, -0.5, 0.5]),
    ("grpo", FOUR, CreditOptions(scale="batch"), numbers([-1.0, 1.0, -1.0, 1.0]) / ((20 / 3) ** 0.5 + 1e-4)),
    ("grpo", batch(("0.1", [0.2, 1.0]), ("0", [0.0])), HALF, [0.35, 0.35, -0.35]),
    ("grpo", TWO_TURNS, replace(UNSCALED, turn_returns=True), CENTRED),
    ("grpo", TWO_TURNS, BY_TURN, CENTRED / DEVIATION),
    ("grpo", NEARLY_EQUAL, BY_TURN, numbers([-0.0005, 0.25, 0.0005, -0.25]) / (0.5 / 2**0.5 + 1e-4)),
    (
        "rloo",
        batch(("0", [1.0]), ("0.1", [0.0, 0.0]), ("0", [0.0])),
        DEFAULT,
        [[1, 0, 0], [-0.5, 0, -0.5], [-0.5, 0, 0]],
    ),
    ("turn_group", TWO_TURNS, DEFAULT, [[1.25, 0, 0.75], [-1.25, 0, 0]]),
    ("turn_group", TWO_TURNS, CreditOptions(scale="group"), numbers([1.25, 0.75, -1.25]) / DEVIATION),
    ("gigpo", STATES, HALF, [0.5 + 1 / 3, 0.5, -0.5 - 1 / 6, -0.5 - 1 / 6]),
    ("gigpo", STATES, replace(HALF, step_weight=0.5), [0.5 + 1 / 6, 0.5, -0.5 - 1 / 12, -0.5 - 1 / 12]),
    ("gigpo", STATES, CreditOptions(gamma=0.5), [E + S / 3, E, -E - S / 6, -E - S / 6]),
    ("gigpo", APART, DEFAULT, [0.0] * 4),
    # Returns of the tokens 1, 1, 0: mean 2/3, variance 2/9.
    ("reinforce++", batch(("00", [1.0]), (".0", [0.0])), DEFAULT, [[0.5**0.5, 0.5**0.5], [0, -(2**0.5)]]),
    # Between turns alone: 0.9, 0.9, 1 before whitening.
    ("reinforce++", batch(OUTCOME_LAST, ("0", [0.0])), CreditOptions(gamma=0.9), whitened([0.9, 0.9, 1.0, 0.0])),
    # Returns of the tokens -1 and -0.5.
    ("reinforce++", batch(("00", [1.0]), token_rewards=[[-0.5, -1.5]]), DEFAULT, [-1.0, 1.0]),
    # Returns 1, 0 (what follows is not the turn's doing) and 0: mean 1/3, variance 2/9.
    ("reinforce++", batch(("0.", [1.0]), ("0", [0.0])), NO_MASK, [[2**0.5, -(0.5**0.5)], [-(0.5**0.5), 0]]),
    # 0.5, -0.5, 0, 0 with variance 1/8.
    ("reinforce++-baseline", TWO_GROUPS, DEFAULT, [2**0.5, -(2**0.5), 0.0, 0.0]),
    ("reinforce++-baseline", TWO_TURNS, BY_TURN, whitened([0.625, 0.375, -0.625])),
    # Nothing is discounted inside a turn: -0.175 + 0.45 * 0.75 = 0.1625; 0.4 - 0.5 = -0.1, plus 0.5 * 0.1625.
    ("ppo", batch(OUTCOME_LAST, values=[[0.5, 0.4, 9, 0.25]]), GAE, [-0.01875, 0.1625, 0.75]),
    # Through the environment's token: 0.75; 0.25 - 0.3 + 0.5 * 0.75 = 0.325; 0.9 * 0.3 - 0.5 + 0.45 * 0.325.
    (
        "ppo",
        batch(ONE_TOKEN_TURNS, values=[[0.5, 0.3, 0.25]]),
        replace(GAE, advantage_mask=False),
        [[-0.08375, 0.325, 0.75]],
    ),
    # By turn 0.0625 and 0.75 (below); 3 tokens in 2 turns, of 2 tokens and 1: weights 1.5 / 2 and 1.5 / 1.
    ("steppo", batch(OUTCOME_LAST, values=[[0.5, 7, 9, 0.25]]), GAE, [0.046875, 0.046875, 1.125]),
    ("steppo", batch(OUTCOME_LAST, values=[[0.5, 7, 9, 0.25]]), replace(GAE, whiten=True), [-0.75, -0.75, 1.5]),
    # What tools said is not in the loss, and so in no weight.
    (
        "steppo",
        batch(OUTCOME_LAST, values=[[0.5, 7, 9, 0.25]]),
        replace(GAE, advantage_mask=False),
        [[0.046875, 0.046875, 1.125, 1.125]],
    ),
    # A perfect critic.
    ("ppo", batch(("0.1", [0.5, 1.0]), values=[[1.5, 0, 1.0]]), CreditOptions(lam=0.3, whiten=False), [0.0, 0.0]),
]


@pytest.mark.parametrize(("name", "inputs", "options", "expected"), BY_HAND)
def test_by_hand(name, inputs, options, expected):
    """A matrix is of all tokens, a vector of the sampled ones."""
    actual = advantages(name, inputs, options)
    assert close(actual if torch.as_tensor(expected).dim() == 2 else actual[inputs.turn_ids >= 0], expected)


@pytest.mark.parametrize(
    ("tokens", "values", "options", "expected", "returns"),
    [
        # Last: 1 - 0.25. First: 0.9 * 0.25 - 0.5 = -0.275, plus 0.9 * 0.5 * 0.75.
        ("0.1..", [0.5, 9, 0.25, 9, 9], {}, [0.0625, 0, 0.75, 0, 0], [0.5625, 0, 1, 0, 0]),
        ("00.11", [0.5, 7, 9, 0.25, 8], {"level": "turn"}, [0.0625, 0.0625, 0, 0.75, 0.75], [0.5625, 0.5625, 0, 1, 1]),
        ("0.1", [0.5, 9, 0.25], {"whiten": True}, [-1.0, 0, 1.0], [0.5625, 0, 1]),  # which spares the targets
    ],
)
def test_targets_of_the_critic_by_hand(tokens, values, options, expected, returns):
    credit = ESTIMATORS["ppo"](batch((tokens, [0.0, 1.0]), values=[values]), replace(GAE, **options))
    assert close(credit.advantages, [expected])
    assert close(credit.returns, [returns])


def test_targets_of_steppo_are_those_of_ppo_by_turn():
    inputs = batch(("00.11", [0.0, 1.0]), ("0", [0.5]), values=[[0.5, 7, 9, 0.25, 8], [0.3]])
    options = replace(GAE, whiten=True)
    credits = ESTIMATORS["steppo"](inputs, options), ESTIMATORS["ppo"](inputs, replace(options, level="turn"))
    assert close(credits[0].returns, credits[1].returns)


class TestIdentities:
    def test_rloo_is_grpo_unscaled_times_n_over_n_minus_one(self):
        inputs = batch(("0", [0.3]), ("0", [0.9]), ("0", [0.5]), ("0", [0.1]))
        assert close(sampled("rloo", inputs), sampled("grpo", inputs, UNSCALED) * 4 / 3)

    def test_turn_group_is_rloo_when_only_the_outcome_is_rewarded(self):
        inputs = batch(("0.1.2", [0, 0, 1.0]), ("0", [0.5]), ("0.1", [0, 0.0]), ("0", [2.0]), groups=[0, 0, 0, 1])
        assert close(sampled("turn_group", inputs), sampled("rloo", inputs))

    def test_gigpo_is_grpo_where_states_are_unknown(self):
        unknown = replace(STATES, state_ids=torch.full((2, 2), -1))
        assert close(sampled("gigpo", unknown), sampled("grpo", unknown))

    def test_one_rollout_a_prompt_leaves_reinforce_plus_plus_of_its_baseline(self):
        inputs = batch(("00", [1.0]), ("0", [0.0]), ("0.1", [0.0, 0.5]), groups=[0, 1, 2])
        assert close(sampled("reinforce++-baseline", inputs), sampled("reinforce++", inputs))

    def test_every_turn_of_steppo_has_the_same_weight(self):
        inputs = batch(("000.1", [0.0, 1.0]), ("0", [0.5]), ("00", [2.0]), values=[[0.1, 0, 0, 0, 0.3], [0.2], [0.4]])
        sums = advantages("steppo", inputs).sum().item()
        assert sums == pytest.approx(0.0, abs=1e-12)  # of A_k n_k (T / K) / n_k, and the A_k are whitened
        once = ("0.1.2", [0.3, 0.0, 1.0]), ("01", [0.5, -1.0])
        single = batch(*once, values=[[0.1, 0, 0.2, 0, 0.3], [0.4, 0.5]])
        assert close(sampled("steppo", single), sampled("ppo", single, CreditOptions(level="turn")))

    def test_turns_of_one_token_are_tokens(self):
        inputs = batch(("0.1.2", [0.3, 0.0, 1.0]), ("01", [0.5, -1.0]), values=[[0.1, 0, 0.2, 0, 0.3], [0.4, 0.5]])
        by_token, by_turn = (ESTIMATORS["ppo"](inputs, replace(GAE, level=level)) for level in ("token", "turn"))
        assert close(by_token.advantages, by_turn.advantages) and close(by_token.returns, by_turn.returns)


@samples(
    ("name", "field"),
    [
        ("gigpo", "state_ids"),
        ("gagpo", "state_ids"),
        ("mt_grpo", "outcome_rewards"),
        ("ppo", "values"),
        ("steppo", "values"),
    ],
)
def test_missing_fields_are_refused(name, field):
    with pytest.raises(ConfigurationError, match=f"{name} needs `{field}`"):
        advantages(name, batch(("0", [1.0])))


@st.composite
def batches(draw):
    """Random batches with values, states, outcomes, environment tokens and rows left out."""
    quarters = st.integers(-8, 8).map(lambda n: n / 4)
    episodes, rows = [], draw(st.integers(1, 7))
    for _ in range(rows):
        turns = draw(st.lists(quarters, min_size=1, max_size=3))
        tokens = "".join(str(k) * draw(st.integers(1, 3)) + "." * draw(st.integers(0, 2)) for k in range(len(turns)))
        episodes.append((tokens, turns))
    return batch(
        *episodes,
        groups=[draw(st.integers(0, 2)) for _ in range(rows)],
        valid=[draw(st.integers(0, 3)) > 0 for _ in range(rows)],
        outcomes=[draw(quarters) for _ in range(rows)],
        values=[[draw(quarters) for _ in tokens] for tokens, _ in episodes],
        token_rewards=[[draw(quarters) / 8 for _ in tokens] for tokens, _ in episodes],
        state_ids=[[draw(st.integers(-1, 2)) for _ in turns] for _, turns in episodes],
    )


def rows_of(inputs, order):
    """The batch made of the rows named."""
    return CreditInputs(**{name: tensor[order] for name, tensor in inputs.tensors.items()})


def without_environment(inputs):
    """The batch with its sampled tokens moved together."""
    order = (inputs.turn_ids < 0).int().argsort(dim=1, stable=True)
    fields = ("turn_ids", "values", "token_rewards", "token_mask")
    return replace(inputs, **{name: getattr(inputs, name).gather(1, order) for name in fields})


VARIANTS = [
    *((name, DEFAULT) for name in ESTIMATORS),
    *(("grpo", CreditOptions(scale=scale, turn_returns=True, gamma=0.9)) for scale in ("group", "batch", "none")),
    ("rloo", CreditOptions(normalise_process=True)),
    ("turn_group", CreditOptions(gamma=0.5, scale="group")),
    ("gigpo", CreditOptions(gamma=0.5, scale="none", step_weight=2.0)),
    ("gagpo", CreditOptions(gamma=0.9, lam=0.8, scale="batch")),
    ("gagpo", CreditOptions(lam=0.5, scale="none")),
    ("mt_grpo", CreditOptions(gamma=0.5, scale="none", step_weight=0.5)),
    ("mt_grpo", CreditOptions(normalise_process=True, scale="batch")),
    ("reinforce++", CreditOptions(gamma=0.5)),
    ("reinforce++-baseline", CreditOptions(turn_returns=True)),
    ("ppo", CreditOptions(gamma=0.9, lam=0.8)),
    ("ppo", CreditOptions(gamma=0.9, lam=0.8, level="turn", whiten=False)),
    ("steppo", CreditOptions(gamma=0.9, lam=0.8)),
    ("steppo", CreditOptions(gamma=0.9, lam=0.8, whiten=False)),
]
quickly = settings(max_examples=20, deadline=None)


class TestEveryEstimator:
    @quickly
    @given(inputs=batches())
    @pytest.mark.slow
    def test_credit_is_finite_and_on_sampled_tokens_of_valid_rows_only(self, inputs):
        for name, options in VARIANTS:
            for mask in (True, False):
                credit = ESTIMATORS[name](inputs, replace(options, advantage_mask=mask))
                allowed = (inputs.turn_ids >= 0 if mask else inputs.token_mask) & inputs.valid[:, None]
                for tensor in (credit.advantages, credit.returns):
                    if tensor is not None:
                        assert tensor.isfinite().all() and not tensor[~allowed].any(), (name, options, mask)

    @quickly
    @given(inputs=batches(), data=st.data())
    @pytest.mark.slow
    def test_batch_order_does_not_matter(self, inputs, data):
        order = torch.tensor(data.draw(st.permutations(range(len(inputs.valid)))))
        shuffled = rows_of(inputs, order)
        for name, options in VARIANTS:
            expected = advantages(name, inputs, options)[order]
            assert close(advantages(name, shuffled, options), expected), (name, options)

    @quickly
    @given(inputs=batches())
    @pytest.mark.slow
    def test_environment_tokens_do_not_matter(self, inputs):
        garbage = torch.where(inputs.turn_ids < 0, torch.nan, 0.0)
        dirty = replace(inputs, values=inputs.values + garbage, token_rewards=inputs.token_rewards + garbage)
        dense = without_environment(inputs)
        for name, options in VARIANTS:
            assert close(sampled(name, dirty, options), sampled(name, dense, options)), (name, options)

    @pytest.mark.slow
    @quickly
    @given(inputs=batches())
    def test_padding_does_not_matter(self, inputs):
        def pad(tensor, fill):
            return torch.nn.functional.pad(tensor, (0, 2), value=fill)

        fills = {
            "turn_rewards": torch.nan, "turn_mask": False, "state_ids": -1, "turn_ids": -1, "values": torch.nan,
            "token_rewards": torch.nan, "token_mask": False, "outcome_rewards": torch.nan,
        }  # fmt: skip
        wider = replace(inputs, **{name: pad(getattr(inputs, name), fill) for name, fill in fills.items()})
        for name, options in VARIANTS:
            expected = pad(advantages(name, inputs, options), 0.0)
            assert close(advantages(name, wider, options), expected), (name, options)

    @pytest.mark.slow
    @quickly
    @given(inputs=batches())
    def test_rows_left_out_might_as_well_not_exist(self, inputs):
        dirt = torch.where(inputs.valid, 0.0, torch.nan)
        dirty = replace(inputs, turn_rewards=inputs.turn_rewards + dirt[:, None])
        dirty = replace(dirty, outcome_rewards=inputs.outcome_rewards + dirt[:, None])
        without = rows_of(inputs, inputs.valid)
        for name, options in VARIANTS:
            actual = advantages(name, dirty, options)[inputs.valid]
            assert close(actual, advantages(name, without, options)), (name, options)

    @pytest.mark.slow
    @quickly
    @given(inputs=batches(), shift=st.integers(-8, 8))
    def test_a_constant_in_every_outcome_does_not_matter(self, inputs, shift):
        at_the_end = torch.nn.functional.one_hot(inputs.turn_mask.sum(1) - 1, inputs.turn_mask.shape[1]) * shift
        outcomes = {name: getattr(inputs, name) + at_the_end for name in ("turn_rewards", "outcome_rewards")}
        shifted = replace(inputs, **outcomes, values=inputs.values + shift)
        for name, options in VARIANTS:
            if options.gamma == 1:
                expected = sampled(name, inputs, options)
                assert close(sampled(name, shifted, options), expected, 1e-7), (name, options)

    few = batch(("0.1", [1.0, 2.0]), ("0", [0.5]), outcomes=[1.0, 2.0], values=[[1.0], [1.0]], state_ids=[[0], [0]])

    @samples(("name", "options"), VARIANTS)
    def test_nothing_left_gives_zeros(self, name, options):
        none = torch.zeros(2, dtype=torch.bool)
        no_turns = {
            key: getattr(self.few, key)[:, :0] for key in ("turn_mask", "turn_rewards", "outcome_rewards", "state_ids")
        }
        for empty in (replace(self.few, valid=none), rows_of(self.few, none), replace(self.few, **no_turns)):
            assert not advantages(name, empty, options).any()

    @samples(("name", "options"), VARIANTS)
    def test_dtype_of_the_rewards_is_kept_and_never_below_float32(self, name, options):
        for dtype, expected in ((torch.float64,) * 2, (torch.float32,) * 2, (torch.bfloat16, torch.float32)):
            typed = replace(self.few, turn_rewards=self.few.turn_rewards.to(dtype))
            assert advantages(name, typed, options).dtype == expected


class TestGroups:
    @samples("name", ESTIMATORS)
    def test_equal_rewards_and_a_group_of_one_give_zero_where_only_the_group_counts(self, name):
        inputs = batch(
            ("0.", [0.1]), ("0", [0.1]), ("0", [0.1]), ("00", [5.0]),
            groups=[0, 0, 0, 1], state_ids=[[1]] * 4, outcomes=[1.0, 1.0, 1.0, 3.0],
            values=[[0.5, 0.25]] * 4,
        )  # fmt: skip
        assert close(sampled(name, inputs), [0.0] * 5) == (name in GROUP_RELATIVE + WITHOUT_REWARDS), name

    equal_returns = batch(
        ("0.1", [0.25, 0.25]), ("0.1", [0.75, 0.25]), ("0", [0.0]), ("0.1", [0.0, 1.0]), ("0", [3.0]), ("00", [1.0]),
        ("0", [0.0]), groups=[0, 0, 0, 1, 1, 2, 2], outcomes=[0.5, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0],
        values=[[0.5, 0, 0.25]] * 7, state_ids=[[1, 2], [1, 2], [1], [3, 3], [3], [4], [4]],
    )  # fmt: skip
    """Those of two groups; those of the third, which has rollouts of unequal length, differ."""

    @samples("name", [name for name, preset in ALGORITHMS.items() if preset.estimator in ESTIMATORS])
    def test_a_preset_says_whether_equal_returns_give_zero(self, name):
        """If not, `refill_groups` is refused; rewards and states of the turns differ here."""
        preset = ALGORITHMS[name]
        learned = advantages(preset.estimator, self.equal_returns)[:5]
        assert preset.return_based == close(learned, torch.zeros_like(learned)), name

    @pytest.mark.parametrize("scale", ["group", "batch"])
    @quickly
    @given(inputs=batches(), nearly=st.sampled_from([1.0, 1e-3, 1e-5]))
    def test_advantages_by_turn_have_the_bound_of_those_by_rollout(self, scale, inputs, nearly):
        """(n - 1) / sqrt(n), however little the whole returns of n rollouts differ, which turn 0 decides here."""
        rewards = inputs.turn_rewards.clone()
        rewards[:, 0] += (nearly - 1) * rewards.sum(1)
        inputs = replace(inputs, turn_rewards=rewards, token_rewards=None)
        found = advantages("grpo", inputs, CreditOptions(scale=scale, turn_returns=True))
        for group in inputs.groups.unique():
            rows = (inputs.groups == group) & inputs.valid
            count = rows.sum() if scale == "group" else inputs.valid.sum()
            assert (found[rows].abs() <= (count - 1) / count**0.5).all()

    @pytest.mark.parametrize("scale", ["group", "batch", "none"])
    @pytest.mark.parametrize("name", ["grpo", "rloo"])
    @quickly
    @given(inputs=batches())
    def test_advantages_of_a_group_sum_to_zero(self, name, scale, inputs):
        one_each = advantages(name, inputs, CreditOptions(scale=scale))[torch.arange(len(inputs.valid)), 0]
        for group in inputs.groups.unique():
            assert abs(one_each[inputs.groups == group].sum().item()) < 1e-9

    @pytest.mark.parametrize("name", ["reinforce++", "reinforce++-baseline", "ppo"])
    @quickly
    @given(inputs=batches())
    def test_whitened_advantages_have_mean_zero_and_variance_one_or_zero(self, name, inputs):
        counted = inputs.valid[:, None].expand_as(inputs.turn_ids)[inputs.turn_ids >= 0]
        found = sampled(name, inputs)[counted]
        with mock.patch("trainers.algorithms.advantages.whiten", lambda values, *_: values):
            before = sampled(name, inputs)[counted]
        if len(found):
            assert abs(found.mean().item()) < 1e-9
            differ = (before.max() - before.min()).item() > 1e-9
            assert found.var(correction=0).item() == pytest.approx(float(differ), rel=1e-6, abs=1e-9)


class TestOptions:
    def test_an_unknown_estimator_is_named(self):
        with pytest.raises(ConfigurationError, match="Did you mean 'grpo'"):
            check_options("grp", DEFAULT)

    def test_every_used_option_has_an_effect_and_every_other_none(self):
        changed = {
            "gamma": 0.5, "lam": 0.5, "level": "turn", "scale": "batch", "turn_returns": True,
            "whiten": False, "normalise_process": True, "advantage_mask": False, "step_weight": 3.0,
        }  # fmt: skip
        inputs = batch(
            ("00.1", [0.5, 1.0]), ("0.1", [0.25, -3.0]), ("00", [0.3]), ("0", [0.9]),
            groups=[0, 0, 1, 1], outcomes=[1.0, 0.0, 2.0, -1.0], state_ids=[[1, 2], [1, 1], [1], [1]],
            values=[[0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.1], [0.2, 0.3], [0.4]],
        )  # fmt: skip
        assert set(changed) == set(CreditOptions.__dataclass_fields__)
        for name in ESTIMATORS:
            for option, value in changed.items():
                options = CreditOptions(**{option: value})
                same = torch.equal(advantages(name, inputs), advantages(name, inputs, options))
                try:
                    check_options(name, options)
                    assert not same, (name, option)
                except ConfigurationError:
                    assert same, (name, option)
