"""Token trajectories: aligned or refused."""

from __future__ import annotations

import pytest

from agent_r1_gym.play.record import TokenTrajectory, TokenTurn


def make(**changes: object) -> TokenTrajectory:
    fields: dict[str, object] = {
        "prompt_ids": (1, 2),
        "completion_ids": (3, 4, 5, 6),
        "loss_mask": (1, 0, 1, 1),
        "logprobs": (-0.5, None, -0.1, -0.2),
        "turns": (TokenTurn(0, 1, 0.0), TokenTurn(2, 4, 1.0)),
        "terminated": True,
        "truncated": False,
    }
    return TokenTrajectory(**{**fields, **changes})  # type: ignore[arg-type]


def test_aligned_trajectory_is_taken() -> None:
    assert make().turns[1].reward == 1.0
    assert make(row_starts=(1,)).row_starts == (1,)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss_mask": (1, 0, 1)}, "equally long"),
        ({"logprobs": (-0.5, None, -0.1)}, "equally long"),
        ({"loss_mask": (1, 1, 1, 1)}, "Token 1"),
        ({"loss_mask": (0, 0, 1, 1)}, "Token 0"),
        ({"logprobs": (-0.5, -0.3, -0.1, -0.2)}, "Token 1"),
        ({"logprobs": (None, None, -0.1, -0.2)}, "Token 0"),
        ({"turns": (TokenTurn(2, 4, 1.0), TokenTurn(0, 1, 0.0))}, "in order"),
        ({"turns": (TokenTurn(0, 0, 0.0),)}, "non-empty"),
        ({"turns": (TokenTurn(0, 9, 0.0),)}, "inside"),
        ({"turns": ()}, "Token 0"),
        ({"row_starts": (0,)}, "row_starts"),
        ({"row_starts": (2,)}, "row_starts"),
        ({"row_starts": (4,)}, "row_starts"),
        ({"row_starts": (1, 1)}, "row_starts"),
    ],
)
def test_misaligned_trajectory_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(**changes)
