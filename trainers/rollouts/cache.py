"""A key-value cache in which every slot has its own length, so that episodes of a batch need not move in step.

Transformers' own caches hold one length for the whole batch (`DynamicLayer` concatenates, `StaticLayer` counts once),
and its continuous batching drops a request's cache with the request. What is missing for many turns without left
padding is small: writing the new keys of each slot at that slot's own columns, and moving slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

_LEAST_CAPACITY = 128
"""Columns that are allocated at once: growing copies the whole cache."""


class SlotLayer(CacheLayerMixin):  # type: ignore[no-untyped-call]
    """Keys and values of one attention layer, shape (slots, heads, capacity, head_dim), allocated at the first update.

    Args:
        view: what the coming forward pass reads and writes; shared by all layers of a `SlotCache`.
    """

    keys: Tensor
    values: Tensor
    is_compileable = True
    is_sliding = False

    def __init__(self, view: CacheView) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.view = view

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate zeros (a masked column must be finite, else 0 * NaN) of the new keys' and values' dtypes."""
        self.keys, self.values = self._grown(key_states, None), self._grown(value_states, None)
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write new keys and values (n, heads, queries, head_dim); returns those of all attended columns."""
        view = self.view
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        elif self.keys.shape[2] < view.capacity:
            self.keys, self.values = self._grown(self.keys, self.keys), self._grown(self.values, self.values)
        self.keys[view.index, :, view.columns] = key_states.transpose(1, 2)
        self.values[view.index, :, view.columns] = value_states.transpose(1, 2)
        return self.keys[view.slot_indices, :, : view.length], self.values[view.slot_indices, :, : view.length]

    def _grown(self, like: Tensor, old: Tensor | None) -> Tensor:
        view = self.view
        new = like.new_zeros(view.slots, like.shape[1], view.capacity, like.shape[3])
        if old is not None:
            new[:, :, : old.shape[2]] = old
        return new

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return (attended length, 0)."""
        return self.view.length, 0

    def get_seq_length(self) -> int:
        """Return the attended length; single slots may be shorter."""
        return self.view.length

    def get_max_length(self) -> int:
        """Return -1: the cache grows."""
        return -1


class CacheView:
    """The slots, columns and attended length of the coming forward pass.

    Args:
        slots: number of slots of the cache.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.capacity = 0
        self.length = 0
        self.slot_indices: slice | Tensor = slice(0, 0)
        self.index = torch.empty(0)
        self.columns = torch.empty(0)


class SlotCache(Cache):
    """The cache of a whole model.

    Memory: layers x slots x 2 x kv_heads x head_dim x capacity numbers; capacity doubles when it no longer suffices, up
    to one column more than a slot can need.

    Args:
        layers: number of attention layers.
        slots: number of slots.
        max_length: maximum number of tokens of a slot; growing stops there.
    """

    def __init__(self, layers: int, slots: int, *, max_length: int) -> None:
        self.view = CacheView(slots)
        self.max_length = max_length
        self.slot_layers = [SlotLayer(self.view) for _ in range(layers)]
        super().__init__(layers=list(self.slot_layers))

    def prepare_forward(
        self, slot_indices: slice | Tensor, starts: Tensor, *, widths: Tensor, queries: int, length: int
    ) -> tuple[Tensor, Tensor]:
        """Prepare one forward pass over right-aligned queries.

        Args:
            slot_indices: which slots; a slice is attended without a copy.
            starts: (n,) tokens that each slot already holds.
            widths: (n,) new tokens of each slot, 0 for one that only fills the batch.
            queries: width of the input, at least the greatest of `widths`.
            length: attended columns, at least the greatest of `starts + widths`.

        Returns:
            `position_ids` (n, queries) and the boolean attention mask (n, 1, queries, length).
        """
        view, device = self.view, starts.device
        if length >= view.capacity:
            view.capacity = max(length + 1, min(self.max_length + 1, max(2 * view.capacity, _LEAST_CAPACITY)))
        positions = torch.arange(-queries, 0, device=device) + (starts + widths)[:, None]
        # Padding queries write to the last column, which is not attended before a real token overwrites it.
        view.columns = torch.where(positions >= starts[:, None], positions, view.capacity - 1)
        view.slot_indices, view.length = slot_indices, length
        indices = (
            torch.arange(slot_indices.start, slot_indices.stop, device=device)
            if isinstance(slot_indices, slice)
            else slot_indices
        )
        view.index = indices[:, None]
        positions = positions.clamp(min=0)
        mask = torch.arange(length, device=device) <= positions[:, :, None]
        return positions, mask[:, None]

    def move(self, sources: Tensor, targets: Tensor, *, length: int) -> None:
        """Copy the first `length` columns of slots `sources` (n,) to `targets` (n,), all at once (swaps are fine)."""
        for layer in self.slot_layers:
            for states in (layer.keys, layer.values):
                states[targets, :, :length] = states[sources, :, :length]


def as_slot_index(indices: Sequence[int], device: torch.device) -> slice | Tensor:
    """Slot indices for `SlotCache.prepare_forward`: a slice, which costs no copy, if they are contiguous.

    Slots that do not decode mostly are: the decoding ones are kept at the front.
    """
    if indices[-1] - indices[0] < len(indices):
        return slice(indices[0], indices[-1] + 1)
    return to_device_async(indices, device)


def to_device_async(indices: Sequence[Any], device: torch.device, *, dtype: torch.dtype | None = None) -> Tensor:
    """Copy numbers to a device, without waiting for what that is computing."""
    return torch.tensor(indices, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)
