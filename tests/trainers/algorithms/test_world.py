"""What processes tell one another is enough: each gets the credit that one process with all rollouts gives."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.credit_batches import batch
from tests.kit.process_groups import in_processes
from tests.trainers.algorithms.test_advantages import VARIANTS, batches, close, quickly, rows_of
from trainers.algorithms import advantages as registry
from trainers.algorithms.advantages import ESTIMATORS, estimate_credit, register_estimator
from trainers.algorithms.batch import valid_fraction
from trainers.algorithms.credit import Credit, CreditInputs, CreditOptions
from trainers.algorithms.metrics import credit_metrics
from trainers.algorithms.process_group import SINGLE_PROCESS, OtherRankError, ProcessGroup


def trimmed(inputs: CreditInputs) -> CreditInputs:
    """The batch without the columns that only other processes' rollouts fill."""
    turns = int(inputs.turn_mask.sum(1).max()) if len(inputs.valid) else 0
    tokens = int(inputs.token_mask.sum(1).max()) if len(inputs.valid) else 0
    by_turn = ("turn_rewards", "turn_mask", "outcome_rewards", "state_ids")
    widths = {name: turns if name in by_turn else tokens for name in inputs.tensors}
    parts = {name: part if part.dim() == 1 else part[:, : widths[name]] for name, part in inputs.tensors.items()}
    return replace(inputs, **parts)


def cut(inputs: CreditInputs, sizes: list[int]) -> list[CreditInputs]:
    lines = torch.arange(len(inputs.valid)).split(sizes)
    return [trimmed(rows_of(inputs, part)) for part in lines]


def in_parts(name: str, inputs: CreditInputs, sizes: list[int], options: CreditOptions) -> list[Credit]:
    def of(part: CreditInputs, process_group: ProcessGroup) -> Credit:
        return estimate_credit(name, replace(part, process_group=process_group), options)

    return in_processes([partial(of, part) for part in cut(inputs, sizes)])


def assert_same(parts: list[Credit], whole: Credit, sizes: list[int], what: object) -> None:
    lines = torch.arange(sum(sizes)).split(sizes)
    for part, own in zip(parts, lines, strict=True):
        width = part.advantages.size(1)
        assert torch.equal(part.credited, whole.credited[own, :width]), what
        assert close(part.advantages, whole.advantages[own, :width], 1e-12), what
        if whole.returns is not None:
            assert close(part.returns, whole.returns[own, :width], 1e-12), what


@st.composite
def shared_batches(draw):
    inputs = draw(batches())
    rows = len(inputs.valid)
    sizes: list[int] = []
    while sum(sizes) < rows:
        sizes.append(draw(st.integers(0 if len(sizes) < 3 else 1, rows - sum(sizes))))
    return inputs, sizes


@settings(max_examples=8, deadline=None)
@given(shared=shared_batches())
@pytest.mark.slow
def test_every_estimator_gives_each_process_its_part(shared):
    inputs, sizes = shared
    for name, options in VARIANTS:
        for mask in (True, False):
            chosen = replace(options, advantage_mask=mask, normalise_process=mask)
            whole = ESTIMATORS[name](inputs, chosen)
            assert_same(in_parts(name, inputs, sizes, chosen), whole, sizes, (name, chosen, sizes))


@settings(max_examples=12, deadline=None)
@given(shared=shared_batches(), data=st.data())
@pytest.mark.slow
def test_mixtures_too_also_where_a_process_has_none_of_an_environment(shared, data):
    inputs, sizes = shared
    kinds = data.draw(st.lists(st.integers(0, 2), min_size=len(inputs.valid), max_size=len(inputs.valid)))
    mixed = replace(inputs, environments=torch.tensor(kinds))
    for name in ("grpo", "reinforce++", "gigpo", "gagpo", "mt_grpo", "ppo", "steppo"):
        whole = estimate_credit(name, mixed, CreditOptions())
        assert_same(in_parts(name, mixed, sizes, CreditOptions()), whole, sizes, name)


@pytest.mark.slow
@quickly
@given(shared=shared_batches())
def test_numbers_to_log_are_of_the_whole_batch(shared):
    inputs, sizes = shared

    def of(part: CreditInputs, process_group: ProcessGroup) -> tuple[dict[str, float], float]:
        own = replace(part, process_group=process_group)
        return credit_metrics(own, estimate_credit("ppo", own, CreditOptions())), valid_fraction(own)

    expected = of(inputs, SINGLE_PROCESS)
    for numbers, share in in_processes([partial(of, part) for part in cut(inputs, sizes)]):
        assert numbers == pytest.approx(expected[0], nan_ok=True, abs=1e-6)
        assert share == pytest.approx(expected[1])


@pytest.mark.parametrize("local", [False, True])
def test_an_own_algorithm_gets_all_rollouts_unless_it_is_local(local, monkeypatch):
    rows = []

    def counting(inputs: CreditInputs, options: CreditOptions) -> Credit:
        rows.append(len(inputs.valid))
        return ESTIMATORS["rloo"](inputs, options)

    monkeypatch.setitem(registry._ESTIMATORS, "counting", counting)  # which is taken back
    register_estimator("counting", local=local)(counting)
    inputs = batch(("0.1", [0.0, 1.0]), ("0", [0.5]), ("0", [2.0]))
    in_parts("counting", inputs, [2, 1], CreditOptions())
    assert sorted(rows) == ([1, 2] if local else [3, 3])


def test_moments_by_hand():
    def of(numbers: list[float], process_group: ProcessGroup) -> tuple[float, ...]:
        return tuple(process_group.moments(torch.tensor(numbers)))

    assert in_processes([partial(of, [1.0, 3.0]), partial(of, []), partial(of, [8.0])]) == [(3, 4.0, 26 / 3)] * 3
    assert tuple(SINGLE_PROCESS.moments(torch.zeros(0))) == (0, 0.0, 0.0)


def test_rows_are_stacked_in_the_order_of_the_processes():
    def of(rows: torch.Tensor, process_group: ProcessGroup) -> tuple[torch.Tensor, slice, list[int]]:
        return (
            process_group.gather(rows, pad=-1),
            process_group.row_slice(len(rows)),
            process_group.unique_ids(rows[:, :1]).tolist(),
        )

    rows = [torch.tensor([[5, 6], [4, 7]]), torch.zeros(0, 1, dtype=torch.long), torch.tensor([[5]])]
    reported = in_processes([partial(of, part) for part in rows])
    assert [whole.tolist() for whole, _, _ in reported] == [[[5, 6], [4, 7], [5, -1]]] * 3
    assert [(row_slice, numbers) for _, row_slice, numbers in reported] == [
        (slice(0, 2), [1, 0]),
        (slice(2, 2), []),
        (slice(2, 3), [1]),
    ]


def test_rows_of_this_process_are_told_again_without_those_of_others():
    def of(rows: torch.Tensor, process_group: ProcessGroup) -> tuple[int, int]:
        found = process_group.unique_ids(rows)
        return found.untyped_storage().nbytes(), found.nbytes

    reported = in_processes([partial(of, torch.arange(size)[:, None]) for size in (1, 2, 60)])
    assert all(kept == needed for kept, needed in reported)


def test_who_waits_for_a_process_that_fails_hears_of_it():
    def fails(process_group: ProcessGroup) -> list[str | None]:
        return process_group.gather_failures("OSError: gone")

    def waits(process_group: ProcessGroup) -> str:
        with pytest.raises(OtherRankError) as reported:
            process_group.moments(torch.ones(3))
        return str(reported.value)

    assert in_processes([waits, fails, waits]) == [
        "Process 1 failed: OSError: gone",
        [None, "OSError: gone", None],
        "Process 1 failed: OSError: gone",
    ]
    assert in_processes([lambda process_group: process_group.gather_failures(None)] * 2) == [[None, None]] * 2
