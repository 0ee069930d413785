"""The command line, called in this process."""

from __future__ import annotations

import pytest

from agent_r1_gym.cli.main import main


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Runs `agent-r1` with `words`; returns its exit status, output and errors."""
    status = main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err
