"""Batches divided over processes: which divisions hold the same batches, and how half-used ones are cut anew."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from agent_r1_gym.errors import ConfigurationError
from tests.kit.samples import samples
from trainers.resume.batch_partition import BatchPartition, check_partition, repartition_state

FOLDER = Path("run/checkpoint-3")


def state(*pending: dict[str, Any], step: int = 2, loss: float = 0.0) -> dict[str, Any]:
    return {"step": step, "batches": 7, "pending": [*pending] or None, "loss": {"sum": torch.tensor(loss), "logged": 1}}


def micro_batch(*lines: list[int], prompt: int = 1, **more: Tensor) -> dict[str, Any]:
    """Rows of which the first token is that of the prompt, as wide as `prompt`; both are padded as TRL does it."""
    prompts = torch.tensor([[0] * (prompt - 1) + line[:1] for line in lines])
    width = max(map(len, lines)) - 1
    completions = torch.tensor([line[1:] + [0] * (width + 1 - len(line)) for line in lines])
    whole = {"prompt_ids": prompts, "completion_ids": completions, "num_items_in_batch": torch.tensor(9)}
    return {**whole, "ratio": None, **more}


class TestDivision:
    def test_counts_what_all_processes_do_together(self) -> None:
        assert BatchPartition(2, 4, 3, 1).batches == (24, 8)

    @samples(
        ("saved", "processes", "expected"),
        [
            (BatchPartition(2, 8, 2, 2), 4, BatchPartition(4, 8, 1, 1)),
            (BatchPartition(2, 8, 1, 1), 4, BatchPartition(4, 4, 1, 1)),
            (BatchPartition(4, 2, 4, 2), 1, BatchPartition(1, 2, 16, 8)),
            (BatchPartition(2, 6, 1, 1), 3, BatchPartition(3, 4, 1, 1)),
            (BatchPartition(2, 8, 1, 1), 3, None),
            (BatchPartition(1, 4, 3, 2), 4, BatchPartition(4, 1, 3, 2)),
        ],
    )
    def test_on_another_number_of_processes(
        self, saved: BatchPartition, processes: int, expected: BatchPartition | None
    ) -> None:
        assert saved.on(processes) == expected
        assert expected is None or expected.batches == saved.batches


class TestRefusals:
    def test_same_batches_pass(self) -> None:
        for own in (
            BatchPartition(2, 8, 1, 1),
            BatchPartition(2, 4, 2, 2),
            BatchPartition(4, 4, 1, 1),
            BatchPartition(1, 1, 16, 16),
        ):
            check_partition(FOLDER, saved=BatchPartition(2, 8, 1, 1), own=own, sharding=None)

    @samples(
        ("own", "words"),
        [
            (
                BatchPartition(4, 8, 1, 1),
                "saved by 2 processes with 16 rollouts per batch and 16 per optimiser step "
                "(--per-device-train-batch-size 8 --steps-per-generation 1 --gradient-accumulation-steps 1); this run "
                "has 4 processes with 32 rollouts per batch and 32 per",
            ),
            (BatchPartition(4, 8, 1, 1), "on 4 processes set --per-device-train-batch-size 4 --steps-per-generation 1"),
            (BatchPartition(1, 8, 2, 1), "on 1 process set --per-device-train-batch-size 8 --steps-per-generation 2 "),
            (BatchPartition(3, 8, 1, 1), "on 3 processes they cannot be divided; use 2 processes"),
        ],
    )
    def test_other_batches(self, own: BatchPartition, words: str) -> None:
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            check_partition(FOLDER, saved=BatchPartition(2, 8, 1, 1), own=own, sharding=None)

    def test_state_that_was_cut_for_another_number(self) -> None:
        saved, own = BatchPartition(2, 8, 1, 1), BatchPartition(4, 4, 1, 1)
        with pytest.raises(ConfigurationError, match=r"2 processes under DeepSpeed.*this run has 4\. Resume on 2"):
            check_partition(FOLDER, saved=saved, own=own, sharding="ZeRO-2")
        check_partition(FOLDER, saved=saved, own=saved._replace(steps_per_generation=1), sharding="ZeRO-2")
        check_partition(FOLDER, saved=saved, own=own, sharding="FSDP2 SHARDED_STATE_DICT")


class TestRedivided:
    def test_counts_micro_batches_of_its_own(self) -> None:
        saved, own = BatchPartition(2, 4, 2, 1), BatchPartition(1, 4, 4, 2)
        made = repartition_state([state(step=6, loss=1.0), state(step=6, loss=4.0)], saved=saved, own=own, rank=0)
        assert (made["step"], made["batches"], made["pending"]) == (12, 7, None)
        assert (made["loss"]["sum"].item(), made["loss"]["logged"]) == (2.5, 1)

    def test_each_step_keeps_its_rows(self) -> None:
        """Two micro-batches of two processes, row 10 s + r in step s: then four processes, then one in four turns."""
        batches = [[micro_batch([s, 10 * s + r], [s, 10 * s + r + 1]) for s in (0, 1)] for r in (0, 2)]
        saved = BatchPartition(2, 2, 2, 1)
        for own in (BatchPartition(4, 1, 2, 1), BatchPartition(1, 2, 4, 2)):
            parts = [
                repartition_state([state(*part) for part in batches], saved=saved, own=own, rank=rank)
                for rank in range(own.processes)
            ]
            per_step = own.gradient_accumulation_steps
            for step in (0, 1):
                turns = range(step * per_step, (step + 1) * per_step)
                batches_of_step = [part["pending"][turn] for turn in turns for part in parts]
                rows = [row for batch in batches_of_step for row in batch["completion_ids"].tolist()]
                assert rows == [[10 * step + number] for number in range(4)]
            assert all(len(part["pending"]) == own.steps_per_generation for part in parts)
            assert all(batch["num_items_in_batch"] == 9 and batch["ratio"] is None for batch in parts[0]["pending"])

    def test_fills_up_narrow_and_absent_parts_where_trl_pads(self) -> None:
        """Processes pad to the longest of their own rows; numbers of contexts are there where there are several."""
        narrow = micro_batch([5, 6], [7, 8])
        wide = micro_batch([1, 2, 3], [4, 9, 9], prompt=2, context_ids=torch.tensor([[0, 1], [0, 0]]))
        wide["once"], narrow["once"] = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
        own = BatchPartition(1, 4, 1, 1)
        (batch,) = repartition_state([state(narrow), state(wide)], saved=BatchPartition(2, 2, 1, 1), own=own, rank=0)[
            "pending"
        ]
        assert batch["prompt_ids"].tolist() == [[0, 5], [0, 7], [0, 1], [0, 4]]
        assert batch["completion_ids"].tolist() == [[6, 0], [8, 0], [2, 3], [9, 9]]
        assert batch["context_ids"].tolist() == [[0, 0], [0, 0], [0, 1], [0, 0]]
        assert batch["once"].tolist() == [3.0, 4.0, 1.0, 2.0]
