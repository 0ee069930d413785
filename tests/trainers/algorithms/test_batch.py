"""Trajectories as tensors and numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.kit.samples import samples
from tests.kit.small_runs import make_args, make_trajectory, multi_turn_batch
from trainers.algorithms import batch
from trainers.algorithms import metrics as numbers
from trainers.algorithms.advantages import ESTIMATORS
from trainers.algorithms.credit import Credit, CreditInputs, CreditOptions

FIRST = multi_turn_batch()[0]
DROPPED = make_trajectory([], [], error="dead")


def test_turns_are_laid_over_the_tokens(tmp_path: Path) -> None:
    indices = batch.turn_indices([FIRST, DROPPED], width=10)
    assert indices.tolist() == [[0, 0, 0, -1, -1, -1, 1, 1, 1, -1], [-1] * 10]
    rewards, mask = batch.turn_rewards([FIRST, DROPPED])
    torch.testing.assert_close(rewards, torch.tensor([[0.1, 1.0], [0.0, 0.0]]))
    assert mask.tolist() == [[True, True], [False, False]]
    made = batch.Batch.of([FIRST, DROPPED], [{}, {}], make_args(tmp_path, pad_to_multiple_of=10))
    assert made.credit_inputs["turn_ids"].tolist() == indices.tolist()
    assert made.sampled[0].tolist() == [index >= 0 for index in indices[0]]
    assert not made.sampled[1].any()
    assert made.loss_masks == [[1, 1, 1, 0, 0, 0, 1, 1, 1], [0]]
    assert made.to_trl_inputs(filler=3, logprobs=False)["completion_ids"] == [
        list(batch.tokens_of(FIRST).completion_ids),
        [3],
    ]


def test_tensors_of_a_batch_without_any_turn() -> None:
    rewards, mask = batch.turn_rewards([DROPPED, DROPPED])
    assert (rewards.tolist(), mask.tolist()) == ([[0.0], [0.0]], [[False], [False]])


def test_states_are_equal_where_the_last_observation_is(tmp_path: Path) -> None:
    said = [2, 7, 13]
    one = make_trajectory([2, 5], [([12], 0.0, said), ([14], 1.0, [])])
    other = make_trajectory([2, 5], [([9, 9], 0.0, [7]), ([12], 0.0, said), ([14], 0.0, [])])
    ids = batch.state_ids([one, other])
    assert ids[0, 0] == ids[1, 0]
    assert ids[0, 1] == ids[1, 2]
    assert ids[0, 2] == -1
    assert len(ids.unique()) == 4
    fields = batch.Batch.of([one, other], [{}, {}], make_args(tmp_path, algorithm="gigpo")).credit_inputs
    credit = ESTIMATORS["gigpo"](CreditInputs(groups=torch.zeros(2, dtype=torch.long), **fields), CreditOptions())
    assert credit.advantages[0, 0] > 0


def test_state_after_a_rewritten_context_is_all_that_the_model_sees() -> None:
    context, turn = [2, 7, 13], ([12], 0.0, [2, 7, 13])
    one = make_trajectory([2, 5], [turn, ([14], 1.0, [])], rewritten=[0])
    other = make_trajectory([2, 5], [([9], 0.0, [2, 8]), turn, ([14], 0.0, [])], rewritten=[0, 1])
    longer = make_trajectory([2, 5], [([12], 0.0, [2, 5, *context]), ([14], 0.0, [])], rewritten=[0])
    ids = batch.state_ids([one, other, longer])
    assert ids[0, 1] == ids[1, 2]
    assert ids[0, 1] != ids[2, 1]


def test_repetition_counts_inside_turns_only() -> None:
    assert numbers.repetition(
        batch.tokens_of(make_trajectory([2], [([8] * 7, 0.0, []), ([8] * 3, 0.0, [])]))
    ) == pytest.approx(3 / 4)
    assert numbers.repetition(batch.tokens_of(make_trajectory([2], [([8, 9, 10, 11, 12], 0.0, [8] * 20)]))) == 0
    assert numbers.repetition(batch.tokens_of(make_trajectory([2], [([8], 0.0, [])]))) == 0


def test_description_of_a_dropped_rollout_holds_nothing_else() -> None:
    assert numbers.trajectory_metrics(make_trajectory([2], [([8], 9.0, [])], error="dead")) == {"infra_failures": 1.0}
    described = numbers.trajectory_metrics(
        make_trajectory([2], [([8], 9.0, [7, 7])], truncated=True, outcomes=[4.0], em=1.0)
    )
    assert described == {
        "infra_failures": 0.0,
        "turns": 1.0,
        "contexts": 1.0,
        "terminated": 0.0,
        "truncated": 1.0,
        "environment_tokens": 2.0,
        "repetition": 0.0,
        "outcome_reward": 4.0,
        "calls": 0.0,
        "failed_calls": 0.0,
        "malformed_turns": 0.0,
        "reward/em": 1.0,
    }


def test_spread_of_groups_leaves_out_what_does_not_count() -> None:
    inputs = CreditInputs(
        turn_rewards=torch.tensor([[1.0, 1.0], [0.0, 5.0], [50.0, 0.0], [3.0, 0.0], [4.0, 0.0]]),
        turn_mask=torch.tensor([[True, True], [True, False], [True, True], [True, False], [True, False]]),
        turn_ids=torch.zeros(5, 1, dtype=torch.long),
        groups=torch.tensor([0, 0, 0, 1, 2]),
        valid=torch.tensor([True, True, False, True, True]),
    )
    assert numbers.group_stds(inputs).tolist() == [1.0]
    credited = torch.tensor([[True], [True], [False], [True], [False]])
    advantages = torch.tensor([[1.0], [-3.0], [70.0], [5.0], [80.0]])
    assert numbers.credit_metrics(inputs, Credit(advantages, credited, None)) == {
        "advantage/mean": 1.0,
        "advantage/std": pytest.approx(math.sqrt((0 + 16 + 16) / 3)),
        "advantage/abs_max": 5.0,
        "group/return_std": 1.0,
        "group/frac_zero_std": 0.0,
    }
    none = numbers.credit_metrics(inputs, Credit(advantages, torch.zeros_like(credited), None))
    assert none.keys() == {"group/return_std", "group/frac_zero_std"}


@samples(
    ("values", "returns", "expected"),
    [
        ([0.0, 1.0, 3.0], [0.0, 1.0, 3.0], 1.0),
        ([7.0, 7.0, 7.0], [0.0, 1.0, 3.0], 0.0),
        ([0.0, -1.0, -3.0], [0.0, 1.0, 3.0], -3.0),
        ([1.0], [2.0], math.nan),
        ([], [], math.nan),
    ],
)
def test_explained_variance(values: list[float], returns: list[float], expected: float) -> None:
    assert numbers.explained_variance(torch.tensor(values), torch.tensor(returns)) == pytest.approx(
        expected, nan_ok=True
    )
