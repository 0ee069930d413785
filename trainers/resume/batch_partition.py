"""Partition of a run's batches over its processes, and a resume with another partition.

Generation batches and optimiser steps keep their rows and order; only the cuts between processes move. So rows,
counters, optimisers and learning rates continue exactly. The random streams of the processes do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from agent_r1_gym.errors import ConfigurationError
from trainers.rollouts.prefetch import repartition_prefetched

MicroBatch = Mapping[str, Any]
"""As TRL buffers it: tensors and lists with one entry per row, and scalars of the full batch."""


class BatchPartition(NamedTuple):
    """A generation batch cut into micro-batches.

    Attributes:
        processes: number of processes.
        per_device_train_batch_size: rollouts per micro-batch.
        steps_per_generation: micro-batches of a process per generation batch.
        gradient_accumulation_steps: micro-batches of a process per optimiser step.
    """

    processes: int
    per_device_train_batch_size: int
    steps_per_generation: int
    gradient_accumulation_steps: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> BatchPartition:
        """Read the partition from the `options` of a run's identity."""
        return cls(*(options[name] for name in cls._fields))

    @property
    def batches(self) -> tuple[int, int]:
        """Global numbers of rollouts per generation batch and per optimiser step."""
        together = self.processes * self.per_device_train_batch_size
        return together * self.steps_per_generation, together * self.gradient_accumulation_steps

    def on(self, processes: int) -> BatchPartition | None:
        """Partition the same batches over another number of processes; None if that is impossible.

        Micro-batches are as large as possible but not larger than these, which are known to fit the device.
        """
        generated, learned = self.batches
        share, rest = divmod(math.gcd(generated, learned), processes)
        if rest:
            return None
        size = max(size for size in range(1, self.per_device_train_batch_size + 1) if share % size == 0)
        return BatchPartition(processes, size, generated // (processes * size), learned // (processes * size))

    def __str__(self) -> str:
        names = self._fields[1:]
        return " ".join(f"--{name.replace('_', '-')} {getattr(self, name)}" for name in names)


def check_partition(folder: Path, *, saved: BatchPartition, own: BatchPartition, sharding: str | None) -> None:
    """Reject a resume with other global batches, or on processes that cannot load the optimiser's state.

    Args:
        folder: the checkpoint.
        saved: partition of the checkpoint.
        own: partition of this run.
        sharding: sharding of both, see `sharding_of`.

    Raises:
        ConfigurationError: the partitions do not match.
    """
    if own.batches != saved.batches:
        fitting = saved.on(own.processes)
        hint = f"set {fitting}" if fitting else _possible(saved, own.processes)
        raise ConfigurationError(
            f"{folder} was saved by {_describe(saved)}; this run has {_describe(own)}. A resume keeps both numbers: on "
            f"{own.processes} process{'es' * (own.processes != 1)} {hint}. Or start a new run from its weights: name "
            "it as model_name_or_path, without resume_from_checkpoint."
        )
    if own.processes != saved.processes and str(sharding).startswith("ZeRO"):
        raise ConfigurationError(
            f"{folder} was saved by {saved.processes} processes under DeepSpeed, which shards the optimiser's state "
            f"for that number; this run has {own.processes}. Resume on {saved.processes}, or start a new run from its "
            "weights: name it as model_name_or_path, without resume_from_checkpoint."
        )


def _describe(partition: BatchPartition) -> str:
    generated, learned = partition.batches
    return (
        f"{partition.processes} process{'es' * (partition.processes != 1)} with {generated} rollouts per batch and "
        f"{learned} per optimiser step ({partition})"
    )


def _possible(saved: BatchPartition, processes: int) -> str:
    share = math.gcd(*saved.batches)
    numbers = [number for number in range(1, share + 1) if share % number == 0]
    near = min(numbers, key=lambda number: abs(number - processes))
    return f"they cannot be divided; use {near} process{'es' * (near != 1)}"


def repartition_state(
    states: Sequence[Mapping[str, Any]], *, saved: BatchPartition, own: BatchPartition, rank: int
) -> dict[str, Any]:
    """Assemble the resume state of one process for another partition.

    Args:
        states: `ResumeState.state()` of all processes that saved, by rank.
        saved: their partition.
        own: partition of this run.
        rank: rank of this process.
    """
    first = states[0]  # counters, and metrics to log, which rank 0 does for all
    # TRL's count of micro-batches; both counts stand at the same optimiser step, so nothing is left over.
    step = first["step"] * own.steps_per_generation // saved.steps_per_generation
    pending = None if first["pending"] is None else _cut([state["pending"] for state in states], own=own, rank=rank)
    sums = torch.stack([torch.as_tensor(state["loss"]["sum"]) for state in states])
    own_state = {**first, "step": step, "pending": pending, "loss": {**first["loss"], "sum": sums.mean(0)}}
    if "prefetched" in first:
        own_state["prefetched"] = repartition_prefetched(
            [state["prefetched"] for state in states], processes=own.processes, rank=rank
        )
    return own_state


def _cut(pending: Sequence[Sequence[MicroBatch]], *, own: BatchPartition, rank: int) -> list[dict[str, Any]]:
    """Cut one process's micro-batches from those of all that saved; each optimiser step keeps its rows."""
    order = [batch for together in zip(*pending, strict=True) for batch in together]
    names = dict.fromkeys(name for batch in order for name in batch)
    whole = {name: _joined([(batch.get(name), _rows_in(batch)) for batch in order], name) for name in names}
    size = own.per_device_train_batch_size
    starts = ((turn * own.processes + rank) * size for turn in range(own.steps_per_generation))
    return [{name: _part(value, start, start + size) for name, value in whole.items()} for start in starts]


def _rows_in(batch: MicroBatch) -> int:
    return len(batch["completion_ids"])


def _joined(parts: Sequence[tuple[Any, int]], name: str) -> Any:
    """Concatenate the rows of all micro-batches.

    Narrower ones are padded with 0 on the side where TRL pads, absent ones filled with 0; masks exclude these entries.
    """
    known = [part for part, _ in parts if part is not None]
    if not known or not _has_rows(known[0]):
        return known[0] if known else None
    if isinstance(known[0], list):
        return [row for part in known for row in part]
    width = max(part.shape[1:2] for part in known)
    return torch.cat(
        [_filled(part, rows, width, like=known[0], left=name.startswith("prompt")) for part, rows in parts]
    )


def _filled(part: Tensor | None, rows: int, width: Sequence[int], *, like: Tensor, left: bool) -> Tensor:
    whole = like.new_zeros((rows, *like.shape[1:])) if part is None else part
    if not width:
        return whole
    missing = width[0] - whole.size(1)
    return torch.nn.functional.pad(whole, (missing, 0) if left else (0, missing))


def _has_rows(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, Tensor) and value.ndim > 0)


def _part(value: Any, start: int, end: int) -> Any:
    return value[start:end] if _has_rows(value) else value
