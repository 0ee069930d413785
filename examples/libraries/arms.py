"""A task of the size of a bandit for classical RL: six questions, three answers as actions, one of them right."""

from typing import Any

import gymnasium as gym

from agent_r1_gym import ChooseAction, TextGame

ANSWERS = ("left", "right", "up")


def make_game() -> TextGame:
    """Returns the game in words: its observation is a question, its action an answer."""
    asked = 0

    def start(seed: int) -> str:
        nonlocal asked
        asked = seed % 6
        return f"question {asked}?"

    def play(answer: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "over", float(answer == ANSWERS[asked % 3]), True, {}

    return TextGame(start, play)


def make_env() -> gym.Env[Any, Any]:
    """Returns it for classical RL: the observation is 12 bytes, the action the number of an answer."""
    return ChooseAction(make_game(), ANSWERS, observations="tokens", max_tokens=12)
