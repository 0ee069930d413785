"""Engines play sessions: what an engine is, and the one for policies without a model.

Whoever wants episodes (evaluation, training, benchmarks) makes sessions and gives them to an engine. Engines for models
see an episode as text (`endpoint_engine`) or as tokens (`token_session`).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, Protocol

from agent_r1_gym.play.policies import Policy
from agent_r1_gym.play.session import Session, step_sessions


class Engine(Protocol):
    """Plays sessions."""

    def run(self, sessions: Iterable[Any]) -> None:
        """Plays every session to its end; pulls the next one when it has room for it.

        Args:
            sessions: each a `Session`, or a `TokenSession` for an engine that samples tokens.

        Raises:
            Exception: whatever a session, its environment or the iterator raises.
        """

    def close(self) -> None:
        """Frees what the engine owns."""


class ScriptedEngine:
    """Plays a policy that acts for many episodes at once.

    Args:
        policy: who acts.
        side_by_side: episodes at once.
    """

    def __init__(self, policy: Policy, *, side_by_side: int = 16) -> None:
        self._policy, self._side_by_side = policy, side_by_side

    def run(self, sessions: Iterable[Session]) -> None:
        """See `Engine`; all running episodes take a step together."""
        waiting = iter(sessions)
        live: list[Session] = []
        while True:
            live += islice(waiting, self._side_by_side - len(live))
            if not live:
                return
            step_sessions(live, self._policy.act([session.state() for session in live]))
            live = [session for session in live if not session.ended]

    def close(self) -> None:
        """See `Engine`."""
