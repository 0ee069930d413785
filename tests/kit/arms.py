"""A task of the size of a bandit: the arm that pays stands in the text."""

from __future__ import annotations

from typing import Any

import gymnasium

from agent_r1_gym import ChooseAction, TextGame

ARMS = ("left", "right", "up")


def arms() -> TextGame:
    """Returns a game of one turn: six questions, each with one right arm of three."""
    asked: dict[str, Any] = {}

    def start(seed: int) -> str:
        asked["number"] = seed % 6
        return f"question {asked['number']}?"

    def play(action: str) -> tuple[Any, ...]:
        return "over", float(action == ARMS[asked["number"] % 3]), True, {}

    return TextGame(start, play)


def chosen() -> gymnasium.Env[Any, Any]:
    """Returns the game with three actions and tokens as observations."""
    return ChooseAction(arms(), ARMS, observations="tokens", max_tokens=12)
