"""The trainer's benchmark needs the train extra; without it its tests are left out, and the report says so."""

from __future__ import annotations

import importlib.util

_MISSING = [name for name in ("torch", "transformers", "trl", "peft", "datasets") if not importlib.util.find_spec(name)]

if _MISSING:
    collect_ignore_glob = ["test_trainer_*.py", "test_multihop_*.py"]


def pytest_report_header() -> str | None:
    return f"benchmarks: trainer not tested, missing {', '.join(_MISSING)} (train extra)" if _MISSING else None
