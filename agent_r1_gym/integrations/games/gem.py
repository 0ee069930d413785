"""GEM: its games, mathematics and code tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from agent_r1_gym.integrations.base import IsolatedRNG, check_name, library, scorer_error
from agent_r1_gym.wrappers.game import ResetReturn, TextGame

_WITH_DATA = ("math:", "code:", "logic:", "qa:", "rg:")
_ONE_DATA_SET = "seeds draw from the same data set, unless game_options names another"


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
    GEM's reward of every turn; 0 if GEM raises.
    ### Process
    None.

    ## Episode End
    ### Termination
    GEM's `terminated`; or GEM raises at a turn.
    ### Truncation
    GEM's `truncated` at the game's own limit of turns (GEM sets both flags there, and at the end of every task of one
    turn, which counts as terminated); or `max_turns` turns are used up, if it is set.

    ## Information
    `info` (dict): GEM's, without `prefix` and `suffix`; `scorer_error` if GEM raised. No `actions` (GEM lists none).

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
        super().__init__(self._open, self._play, max_turns=max_turns, close=self._end)
        gem = library("gem", package="gem-llm", tested_version="0.1")
        check_name("environment of GEM", game, gem.envs.registration.ENV_REGISTRY)
        self._id, self._arguments = game, dict(game_options or {})
        self._random = IsolatedRNG()
        self._game: Any = None
        self.repeats_tasks = _ONE_DATA_SET if game.startswith(_WITH_DATA) else ""

    def __getstate__(self) -> dict[str, Any]:
        """Drops the running game, whose pool of processes cannot be pickled."""
        return {**self.__dict__, "_game": None, "_running": False}

    def _open(self, seed: int) -> ResetReturn:
        import gem

        with self._random(seed):
            if self._game is None or self._id.startswith("rg:"):  # those replace their data set after some resets
                self._game = gem.make(self._id, **self._arguments)
            return _shown(*self._game.reset(seed=seed))

    def _play(self, action: str) -> tuple[Any, ...]:
        try:
            with self._random():
                observation, reward, terminated, truncated, info = self._game.step(action)
        except Exception as error:  # some of its tasks raise at a turn without an answer
            return "The episode is over.", 0.0, True, scorer_error(type(self).__name__, self._id, error)
        text, info = _shown(observation, info)
        truncated = bool(truncated and (self._is_at_limit() or not terminated))
        return text, reward, bool(terminated and not truncated), truncated, info

    def _is_at_limit(self) -> bool:
        """Whether the game has a limit of turns and has reached it."""
        limit = getattr(self._game, "max_turns", None)
        return limit is not None and getattr(self._game, "turn_count", 0) >= limit

    def _end(self) -> None:
        pool, close = getattr(self._game, "mp_pool", None), getattr(self._game, "close", None)
        if pool is not None:
            pool.terminate()  # GEM's `close` would wait for a grading that hangs
        elif close is not None:
            close()
        self._game, self._running = None, False


def _shown(observation: str, info: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return an observation between what GEM keeps apart: without the board, no one could play."""
    rest = dict(info)
    before, after = (str(rest.pop(name, "")) for name in ("prefix", "suffix"))
    gap = "\n" if after and not observation.endswith("\n") else ""
    return f"{before}{observation}{gap}{after}", rest
