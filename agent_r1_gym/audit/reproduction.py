"""Code that shows a finding again: it plays the episodes of the finding, and prints what came back.

The lines expect an instance, `env`; `Subject.reproduction` puts those before them that make it.
"""

from __future__ import annotations

from collections.abc import Iterable

_MAX_LITERAL, _MAX_PERIOD = 200, 64
PRINT_OPENING = "print(repr(observation))"
PRINT_STEP = "print(repr(observation), repr(reward), terminated, truncated)"


def reset_line(seed: int | None, task_index: int | None, env: str = "env") -> str:
    """Write the line that opens an episode; `task_index` is None where the environment has no list of tasks."""
    options = f", options={{'task_index': {task_index}}}" if task_index is not None else ""
    return f"observation, info = {env}.reset(seed={seed}{options})"


def step_line(action: str, env: str = "env") -> str:
    """Write the line that takes a step."""
    return f"observation, reward, terminated, truncated, info = {env}.step({literal(action)})"


def play_function(reset: str, actions: Iterable[str]) -> str:
    """Write a function `play(env)` that returns what an episode shows.

    Args:
        reset: the line that opens it.
        actions: its turns.
    """
    turns = ", ".join(map(literal, actions))
    return (
        f"def play(env):\n    {reset}\n    shown = [observation]\n    for turn in [{turns}]:\n"
        "        shown.append(env.step(turn)[:4])\n    return shown\n"
    )


def literal(action: str) -> str:
    """Write a text as Python code; a long repetition as a product."""
    for size in range(1, _MAX_PERIOD if len(action) > _MAX_LITERAL else 1):
        if len(action) % size == 0 and action[:size] * (len(action) // size) == action:
            return f"{action[:size]!r} * {len(action) // size}"
    return repr(action)
