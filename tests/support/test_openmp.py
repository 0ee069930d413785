"""Threads that wait spin briefly, unless the user says how they wait."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, "1000 None"),
        ({"GOMP_SPINCOUNT": "7"}, "7 None"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "None PASSIVE"),
    ],
)
def test_a_setting_of_the_users_own_is_kept(own: dict[str, str], expected: str) -> None:
    clean = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    names = "os.getenv('GOMP_SPINCOUNT'), os.getenv('OMP_WAIT_POLICY'), 'torch' in sys.modules"
    code = f"import os, sys, trainers; print({names})"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**clean, **own}, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{expected} False"
