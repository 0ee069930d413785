"""The benchmark of vLLM with a stand-in for it: three ways to hand over weights, each of its own size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.vllm import run
from benchmarks.vllm.settings import QUICK
from trainers.running.memory import ModelShape

TINY = ModelShape(layers=1, width=16, heads=2, kv_heads=2, head_dim=8, feed_forward=32, vocabulary=64)


def test_an_adapter_goes_over_alone_or_merged_into_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[int, bool]] = []

    class Backend:
        def __init__(self, options: Any) -> None:
            self.options = options

        def sync(self, model: Any) -> None:
            synced.append((self.options.adapter_rank, any("lora_" in name for name, _ in model.named_parameters())))

        def close(self) -> None: ...

    monkeypatch.setattr(run, "VLLMBackend", Backend)
    report = run.sync(replace(QUICK, shape=TINY), "cpu")
    sizes = {figure.name: figure.median for figure in report.figures if figure.unit == "MB"}
    assert list(dict.fromkeys(synced)) == [(QUICK.rank, True), (0, False), (0, True)]
    assert sizes["adapter, merged, size"] == sizes["whole model, size"] > 0
    assert sizes["adapter, size"] > 0
