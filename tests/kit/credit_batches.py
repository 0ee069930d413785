"""Batches for tests of credit assignment, written as text: a digit is a token sampled in that turn, a dot another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainers.algorithms.credit import CreditInputs


def batch(*episodes: tuple[str, list[float]], pad: int = 0, pad_turns: int = 0, **more: Any) -> CreditInputs:
    """Float64 batch of (tokens, turn rewards), all in one group unless `groups` says otherwise; lists become tensors.

    `pad` and `pad_turns` are columns more than needed; shorter lists in `more` are padded with 0 (state ids with -1).
    """
    length = max(len(tokens) for tokens, _ in episodes) + pad
    turns = max(len(rewards) for _, rewards in episodes) + pad_turns
    ids = [[int(token) if token != "." else -1 for token in tokens] for tokens, _ in episodes]
    rows = len(episodes)
    fields = {
        "groups": torch.tensor(more.pop("groups", [0] * rows)),
        "valid": torch.tensor(more.pop("valid", [True] * rows)),
        "token_mask": padded([[True] * len(tokens) for tokens, _ in episodes], length, False),
        "turn_ids": padded(ids, length, -1),
        "turn_rewards": padded([rewards for _, rewards in episodes], turns, 0.0),
        "turn_mask": padded([[True] * len(rewards) for _, rewards in episodes], turns, False),
    }
    if "outcomes" in more:  # on each row's last turn, in what it earned there
        fields["outcome_rewards"] = torch.zeros_like(fields["turn_rewards"])
        for row, (outcome, (_, rewards)) in enumerate(zip(more.pop("outcomes"), episodes, strict=True)):
            if rewards:
                fields["outcome_rewards"][row, len(rewards) - 1] = outcome
        fields["turn_rewards"] += fields["outcome_rewards"]
    for name, numbers in more.items():
        if name == "state_ids":
            fields[name] = padded(numbers, turns, -1)
        else:
            fields[name] = padded(numbers, length, 0.0)
    return CreditInputs(**fields)


def padded(rows: list[list[Any]], width: int, fill: Any) -> Tensor:
    dtype = torch.float64 if isinstance(fill, float) else None
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows], dtype=dtype)


def close(actual: Tensor, expected: Any, tolerance: float = 1e-9) -> bool:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    return actual.shape == expected.shape and torch.allclose(actual, expected, rtol=0, atol=tolerance)
