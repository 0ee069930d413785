"""The trainer's tests need the train extra; without it they are left out, and the report says so."""

from __future__ import annotations

import importlib.util

_MISSING = [name for name in ("torch", "transformers", "trl", "peft", "datasets") if not importlib.util.find_spec(name)]

if _MISSING:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str | None:
    return f"trainers: not tested, missing {', '.join(_MISSING)} (the train extra)" if _MISSING else None
