"""PPO's critic on several processes: whole weights and gradients on each, and a share of the optimiser's state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.critic_bytes import PROCESSES
from tests.kit.scripts import run_script


@pytest.mark.slow
def test_each_process_keeps_weights_and_gradients_and_a_share_of_the_optimisers_state(tmp_path: Path) -> None:
    assert run_script("tests.kit.critic_bytes", str(tmp_path)) == 0
    for processes in PROCESSES:
        told = [json.loads((tmp_path / f"{processes}-{rank}.json").read_text()) for rank in range(processes)]
        weights = told[0]["weights"]
        assert all(each["weights"] == each["gradients"] == weights for each in told)
        assert sum(each["optimizer"] for each in told) == pytest.approx(2 * weights, rel=1e-3)  # and counts of steps
        assert max(each["optimizer"] for each in told) == pytest.approx(2 * weights / processes, rel=0.05)
