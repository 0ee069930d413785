"""While a batch is played no process asks another for anything: a slow one holds up nobody before the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.quiet_rollouts import DEAD, FLAKY, PROCESSES
from tests.kit.scripts import run_script


@pytest.mark.slow
def test_no_collective_while_playing_refills_and_retries_included(tmp_path: Path) -> None:
    """One process's backend is dead, another's loses two episodes: they play unlike numbers of times."""
    assert run_script("tests.kit.quiet_rollouts", str(tmp_path)) == 0
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(PROCESSES)]
    calls = [process["calls"] for process in told]
    for process in calls:
        assert {name for name in process if name.endswith(" playing")} == {"attempt playing"}
        assert process["exchange apart"] > 0  # what would be counted is
        assert process["allgather apart"] > 0
    lost = [process["lost"] for process in told]
    assert lost == [2 if rank == FLAKY else lost[DEAD] if rank == DEAD else 0 for rank in range(PROCESSES)]
    assert lost[DEAD] >= 2 * 3 * 8  # two batches of eight, each played three times
    assert all(share > 0 for share in told[0]["refills"])
