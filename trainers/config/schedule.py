"""Options that change over a run, written "0.7:0.4"."""

from __future__ import annotations

from agent_r1_gym.errors import ConfigurationError


def schedule_of(name: str, value: float | str) -> tuple[float, float]:
    """Returns what a share is at the start of a run and at its end: 0.5 is both, "0.7:0.4" one and the other.

    Args:
        name: of the option, for messages.
        value: as it was given.

    Raises:
        ConfigurationError: no such word, or a number that does not lie between 0 and 1.
    """
    try:
        start, *end = [float(part) for part in str(value).split(":")]
    except ValueError:
        start, end = -1.0, []
    if len(end) > 1 or not all(0 <= number <= 1 for number in (start, *end)):
        raise ConfigurationError(
            f"{name} must be a number between 0 and 1, or two for the start and the end of the run, such as 0.7:0.4; "
            f"got {value!r}."
        )
    return start, end[0] if end else start
