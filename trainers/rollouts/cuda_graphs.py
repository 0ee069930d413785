"""CUDA graphs of decoding passes: all kernels of a pass are launched at once, not one by one from Python.

A pass of one token per episode takes a GPU less time than Python needs to launch its kernels, unless the model is
large. A graph holds the kernels of a pass and the addresses that they read and write, so it serves one shape only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

Forward = Callable[[Tensor, int], Tensor]
"""Runs the model on a table of inputs, attending to so many columns of the cache; returns logits."""
_UNCAPTURABLE: WeakSet[Any] = WeakSet()
"""Models of which a pass could not be captured, in any run of this process."""


class CapturedPass(NamedTuple):
    """A captured pass, with the memory that it reads its inputs from and writes its logits to."""

    replay: Callable[[], None]
    inputs: Tensor
    logits: Tensor


class DecodingGraphs:
    """Runs decoding passes: the first of a shape as it is, the others as CUDA graphs.

    The first pass loads kernels and lets the cache grow, neither of which a graph can hold. A pass that cannot be
    captured (a model that looks at its activations, as some mixtures of experts do) ends the use of graphs for this
    model, in later runs too.

    Args:
        forward: runs a pass.
        model: the model that it runs.
        capacity: returns the number of columns of the cache, which moves when it grows; its graphs are dropped then.
    """

    def __init__(self, forward: Forward, *, model: Any, capacity: Callable[[], int]) -> None:
        self._forward, self._model, self._capacity = forward, model, capacity
        self._graphs: dict[tuple[torch.Size, int], CapturedPass | None] = {}
        self._captured_at = -1
        self._pool: Any = None
        self._captures = True

    def __call__(self, inputs: Tensor, length: int) -> Tensor:
        """Run a pass over `inputs`; the logits are overwritten by the next pass of this shape."""
        if not self._captures or self._model in _UNCAPTURABLE:
            return self._forward(inputs, length)
        self._drop_if_moved()
        key = inputs.shape, length
        if key not in self._graphs:
            logits = self._forward(inputs, length)
            self._drop_if_moved()
            self._graphs[key] = None
            return logits
        graph = self._graphs[key] or self._capture(inputs, length)
        if graph is None:
            return self._forward(inputs, length)
        self._graphs[key] = graph
        graph.inputs.copy_(inputs)
        graph.replay()
        return graph.logits

    def _drop_if_moved(self) -> None:
        """Drop the graphs if the cache has grown: they read and write its old memory."""
        if self._capacity() != self._captured_at:
            self._graphs.clear()
            self._captured_at, self._pool = self._capacity(), None

    def _capture(self, inputs: Tensor, length: int) -> CapturedPass | None:
        try:
            captured = capture(self._forward, inputs.clone(), length, pool=self._pool)
        except RuntimeError as error:
            self._captures = False
            if not isinstance(error, torch.OutOfMemoryError):  # the next run may have more memory
                _UNCAPTURABLE.add(self._model)
            self._graphs.clear()
            logger.warning("Rollouts decode without CUDA graphs, because this model cannot be captured: %s", error)
            return None
        graph, self._pool = captured
        return graph


def capture(forward: Forward, inputs: Tensor, length: int, *, pool: Any) -> tuple[CapturedPass, Any]:
    """Capture a pass, which is not run; returns its graph, and the pool of its memory, which other graphs may share.

    Graphs that share a pool must not run at the same time, and the logits of one do not outlive the next one's run.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        # Other threads, those of tools, may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            logits = forward(inputs, length)
    finally:  # torch stays on the stream of a capture that it could not end
        torch.cuda.set_stream(stream)
    return CapturedPass(graph.replay, inputs, logits), graph.pool()
