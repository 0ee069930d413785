"""GEM: its games, mathematics and code tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from agent_r1_gym.integrations.base import IsolatedRNG, check_name, library
from agent_r1_gym.wrappers.game import ResetReturn, TextGame


class GEMEnv(TextGame):
    r"""GEM: games, mathematics, code and reasoning tasks of the General Experience Maker.

    ## Description
    A registered environment of GEM, without GEM's wrappers: here every observation is a user turn, so the model sees
    the history anyway, and GEM's `concat` wrappers would show it twice.

    ## Tools
    None: an action is a turn.

    ## Action Space
    `UnicodeText(65536)`: the model's turn as it is, parsed by GEM, mostly a `\boxed{...}`.

    ## Observation Space
    `UnicodeText(65536)`: the new text, as GEM returns it, between what GEM puts in front of it and behind it (`prefix`
    and `suffix` of its `info`, such as the board), as GEM's wrappers show it.

    ## Starting State
    The observation of GEM's `reset(seed)`.

    ## Rewards
    ### Outcome
    GEM's reward of every turn.
    ### Process
    None.

    ## Episode End
    ### Termination
    GEM's `terminated`, unless `truncated` is set too.
    ### Truncation
    GEM's `truncated` (GEM then sets `terminated` as well); or `max_turns` turns are used up, if it is set.

    ## Information
    `info` (dict): GEM's, without `prefix` and `suffix`. No `actions` (GEM lists none).

    ## Arguments
    `game="game:GuessTheNumber-v0-easy"` (an id of GEM), `game_options=None` (further arguments of `gem.make`),
    `max_turns=None`.

    ## References
    Liu et al. 2025 (arXiv 2510.01051); https://github.com/axon-rl/gem. `pip install gem-llm`; tested: 0.1. Some games
    download word lists on first use; data sets come from the hub.

    ## Version History
    v0: first release.
    """

    library: ClassVar[str] = "gem"

    def __init__(
        self,
        *,
        game: str = "game:GuessTheNumber-v0-easy",
        game_options: Mapping[str, Any] | None = None,
        max_turns: int | None = None,
    ) -> None:
        super().__init__(self._open, self._play, max_turns=max_turns)
        gem = library("gem", package="gem-llm", tested_version="0.1")
        check_name("environment of GEM", game, gem.envs.registration.ENV_REGISTRY)
        self._id, self._arguments = game, dict(game_options or {})
        self._random = IsolatedRNG()
        self._game: Any = None

    def _open(self, seed: int) -> ResetReturn:
        import gem

        with self._random(seed):
            self._game = self._game or gem.make(self._id, **self._arguments)
            return _shown(*self._game.reset(seed=seed))

    def _play(self, action: str) -> tuple[Any, ...]:
        with self._random():
            observation, reward, terminated, truncated, info = self._game.step(action)
        text, info = _shown(observation, info)
        return text, reward, bool(terminated and not truncated), bool(truncated), info


def _shown(observation: str, info: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return an observation between what GEM keeps apart: without the board, no one could play."""
    rest = dict(info)
    before, after = (str(rest.pop(name, "")) for name in ("prefix", "suffix"))
    gap = "\n" if after and not observation.endswith("\n") else ""
    return f"{before}{observation}{gap}{after}", rest
