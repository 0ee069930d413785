"""Trajectories of several contexts: laid one after another for credit and loss, side by side for a forward pass.

Where the context was rewritten between turns (`Tokens.context_starts`), a trajectory stays one line of T tokens
for TRL, for the estimators and for the buffers: one return, one share in every mean, no padding lines, and the same
number of lines on every process. Only a model must not look across: it gets every context as a sequence of its own.

Shapes: B trajectories, P prompt tokens, T tokens after the prompt, R >= B contexts of at most L tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent_r1_gym.play.record import Tokens


def context_numbers(batch: Sequence[Tokens], *, width: int) -> Tensor | None:
    """Returns (B, width) long: which context of its trajectory each token after the prompt belongs to.

    None if every trajectory is one context. The last one goes on to the end of the line, padding included.
    """
    if not any(tokens.context_starts for tokens in batch):
        return None
    numbers = torch.zeros((len(batch), width), dtype=torch.long)
    for line, tokens in zip(numbers, batch, strict=True):
        for start in tokens.context_starts:
            line[start:] += 1
    return numbers


def rewritten_tokens(tokens: Tokens) -> list[bool]:
    """Returns for each token after the prompt whether it belongs to a context that was written anew."""
    rewritten = [False] * len(tokens.completion_ids)
    for start in tokens.context_starts:
        end = next(begin for begin, _ in tokens.spans if begin > start)
        rewritten[start:end] = [True] * (end - start)
    return rewritten


class Contexts:
    """Trajectories as one sequence for each context, padded at the right.

    Args:
        input_ids: (B, P + T).
        attention_mask: (B, P + T), 0 for padding, wherever it stands.
        numbers: (B, T), of `context_numbers`.

    Attributes:
        input_ids: (R, L).
        attention_mask: (R, L).
    """

    def __init__(self, input_ids: Tensor, attention_mask: Tensor, numbers: Tensor) -> None:
        self._real, self._width = attention_mask.bool(), numbers.size(1)
        contexts = torch.nn.functional.pad(numbers, (input_ids.size(1) - self._width, 0))
        lines = torch.arange(len(contexts), device=contexts.device)[:, None] * (contexts.max() + 1)
        _, self._sequence, lengths = torch.unique_consecutive(
            (lines + contexts)[self._real], return_inverse=True, return_counts=True
        )
        before = lengths.cumsum(0) - lengths
        self._column = torch.arange(len(self._sequence), device=contexts.device) - before[self._sequence]
        self.input_ids = input_ids.new_zeros(len(lengths), int(lengths.max()))
        self.input_ids[self._sequence, self._column] = input_ids[self._real]
        self.attention_mask = attention_mask.new_zeros(self.input_ids.shape)
        self.attention_mask[self._sequence, self._column] = 1

    def to_lines(self, numbers: Tensor) -> Tensor:
        """Returns (B, T) of (R, L - 1), of all tokens but the first of each context, which gets 0, like padding."""
        padded = torch.nn.functional.pad(numbers, (1, 0))
        laid = numbers.new_zeros(self._real.shape)
        laid[self._real] = padded[self._sequence, self._column]
        return laid[:, -self._width :]
