"""One, two and four processes: one gradient, and runs that go on by another number of them."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from tests.kit.ranks import CHAIN, COMPARED, FORMS, GRADIENTS, PROCESSES
from tests.kit.scripts import run_script

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all the runs wrote."""
    folder = tmp_path_factory.mktemp("ranks")
    assert run_script("tests.kit.ranks", str(folder)) == 0
    return folder


@pytest.mark.parametrize("processes", PROCESSES[1:])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_do_not_depend_on_the_number_of_processes(name: str, processes: int, folder: Path) -> None:
    """Those of the policy, in two steps, and of the critic, in all of its own."""
    alone, together = (torch.load(folder / f"{name} {number}.pt") for number in (1, processes))
    assert_close(together, alone, rtol=0, atol=1e-6)
    assert len(alone["policy"]) == 2
    for step in alone["policy"]:
        assert all(gradient.abs().max() > 1e-4 for weight, gradient in step.items() if "proj" in weight)


RUNS = [("DDP", name) for _, name, _ in CHAIN[1:]] + [(form, name) for form in FORMS for _, name, _ in CHAIN[1:3]]


@pytest.mark.parametrize(("form", "name"), RUNS)
def test_another_number_of_processes_goes_on(form: str, name: str, folder: Path) -> None:
    """Resumed in the middle of a batch of rollouts, half of them trained on, with numbers that were not logged yet."""
    whole, resumed = folder / form / "whole", folder / form / name
    ends = [torch.load(run / "end.pt") for run in (resumed, whole)]
    assert_close(ends[0]["weights"], ends[1]["weights"], rtol=0, atol=1e-6)
    assert_close(ends[0]["means"], ends[1]["means"], rtol=0, atol=1e-6)
    assert_close(ends[0]["critic"], ends[1]["critic"], rtol=0, atol=1e-4)  # has learned of rollouts since
    saved = [torch.load(run / f"checkpoint-{COMPARED}" / "critic.pt") for run in (resumed, whole)]
    assert_close(saved[0], saved[1], rtol=0, atol=0)  # was only handed on, its optimiser's state too
    assert rows_of(resumed)[0] == rows_of(whole)[2]
    logs = [json.loads((run / "log.json").read_text()) for run in (resumed, whole)]
    logged = [[row for row in log if "learning_rate" in row] for log in logs]
    for number in ("step", "epoch", "learning_rate", "reward", "num_tokens"):
        assert [row[number] for row in logged[0]] == pytest.approx([row[number] for row in logged[1]], abs=1e-6)
    losses = [[row["loss"] for row in rows if row["step"] <= COMPARED] for rows in logged]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)  # that of step 9 goes by an order drawn since
    assert len(losses[0]) == 2


def test_process_that_is_killed_in_its_rollouts(folder: Path) -> None:
    """Bit for bit, on the same number of processes, with tokens drawn at random."""
    ends = [torch.load(folder / name / "end.pt") for name in ("killed", "undisturbed")]
    assert_close(*ends, rtol=0, atol=0)


def rows_of(run: Path) -> list[list[int]]:
    """Returns the places of the rows of each batch of rollouts, those of all processes in their order."""
    parts = [json.loads(path.read_text()) for path in sorted(run.glob("rows_*.json"))]
    return [list(chain(*batch)) for batch in zip(*parts, strict=True)]
