"""Which environments are audited: all that a library offers to one player without a download."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """An environment.

    Attributes:
        library: distribution that it is from.
        name: what the library calls it.
        env: ENV of `agent-r1 audit`.
        options: its options.
    """

    library: str
    name: str
    env: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """What identifies it in results."""
        return self.library, self.name


OURS: Mapping[str, Mapping[str, Any]] = {
    "FictionQA": {},
    "HotpotQA": {"dataset": "sample"},
    "2WikiMultihopQA": {"dataset": "sample"},
    "MuSiQue": {"dataset": "sample"},
    "SearchQA": {"dataset": "sample"},
    "MixedQA": {},
    "Text2SQL": {},
    "ServiceDesk": {},
    "Analyst": {},
    "LongRead": {},
    "GSM8K": {"dataset": "sample"},
    "SVAMP": {"dataset": "sample"},
    "Arithmetic": {},
    "ReTool": {},
    "FrozenLakeText": {},
    "TaxiText": {},
    "CliffWalkingText": {},
    "BlackjackText": {},
}
"""Environments of this suite that are tasks of its own, or read data sets of others."""
BENCHMARKS: Mapping[str, Mapping[str, Any]] = {
    "Tau2Retail": {"dataset": "sample"},
    "Tau2Airline": {"dataset": "sample"},
    "Tau2Telecom": {"dataset": "sample"},
    "BFCL": {"dataset": "sample"},
    "DBBench": {"dataset": "sample"},
}
"""Environments of this suite that are the tasks of a benchmark of others, by the sample that the suite brings."""
_TEXTARENA_NAMES = (
    "2048 Bandit Blackjack Countdown Crosswords Cryptarithm FifteenPuzzle FrozenLake GuessTheNumber LightsOut "
    "LogicPuzzle Mastermind Minesweeper PegJump RushHour Secretary Set Slitherlink Sokoban Sudoku "
    "ThreeCardMonte TowerOfHanoi"
)
TEXTARENA = tuple(f"{name}-v0" for name in _TEXTARENA_NAMES.split())
"""TextArena's games for one player that start without a download and under Python 3.11."""


def _suite() -> Iterator[Entry]:
    for name, options in {**OURS, **BENCHMARKS}.items():
        yield Entry("agent-r1-gym", name, name, options)


def _reasoning_gym() -> Iterator[Entry]:
    from reasoning_gym.factory import DATASETS

    for name in sorted(set(DATASETS) - {"composite"}):  # a mixture of the others
        yield Entry("reasoning-gym", name, "ReasoningGym", {"dataset": name})


def _textarena() -> Iterator[Entry]:
    for name in TEXTARENA:
        yield Entry("textarena", name, "TextArena", {"game": name})


_GEM_DOWNLOADS = ("Hangman", "Wordle", "WordSearch")
"""Games of GEM that download a list of words."""


def _gem() -> Iterator[Entry]:
    from gem.envs.registration import ENV_REGISTRY

    for name in sorted(name for name in ENV_REGISTRY if name.startswith("game:")):  # the rest downloads data sets
        if name.removeprefix("game:").startswith(_GEM_DOWNLOADS):
            continue
        yield Entry("gem-llm", name, "GEM", {"game": name})


def _skyrl_gym() -> Iterator[Entry]:
    for game in ("aime", "gsm8k"):  # the others need a database, a search server or files
        yield Entry("skyrl-gym", game, "SkyRLGym", {"game": game})


def _textworld() -> Iterator[Entry]:
    for rooms in (1, 5):
        yield Entry("textworld", f"{rooms} rooms", "TextWorld", {"nb_rooms": rooms, "games": 8})


LIBRARIES: Mapping[str, tuple[str, Callable[[], Iterator[Entry]]]] = {
    "agent-r1-gym": ("agent_r1_gym", _suite),
    "reasoning-gym": ("reasoning_gym", _reasoning_gym),
    "textarena": ("textarena", _textarena),
    "gem-llm": ("gem", _gem),
    "skyrl-gym": ("skyrl_gym", _skyrl_gym),
    "textworld": ("textworld", _textworld),
}
"""Distribution to its module and its environments."""


def installed(library: str) -> bool:
    """Whether a library can be imported here."""
    return importlib.util.find_spec(LIBRARIES[library][0]) is not None


def entries(library: str) -> list[Entry]:
    """The environments of an installed library."""
    return list(LIBRARIES[library][1]())


def version(library: str) -> str:
    """The installed version."""
    return metadata.version(library)
