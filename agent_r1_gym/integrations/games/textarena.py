"""TextArena: its games for one player."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from agent_r1_gym.integrations.base import IsolatedRNG, check_name, library
from agent_r1_gym.wrappers.game import ResetReturn, TextGame


class TextArenaEnv(TextGame):
    """TextArena: word games, puzzles and board games for one player.

    ## Description
    A game of TextArena with the wrappers of its registration. TextArena itself refuses games for several players.

    ## Tools
    None: an action is a move.

    ## Action Space
    `UnicodeText(65536)`: the model's turn as it is, parsed by the game, mostly a move in brackets: `[1 2 3 4]`.

    ## Observation Space
    `UnicodeText(65536)`: the new text. TextArena's default shows the whole history in each turn; what was shown before
    is removed, and so is the player's own action, which TextArena repeats. Other variants (`-train`) show rules and
    board: without the rules, after the opening.

    ## Starting State
    The rules; the seed of the reset is the game's seed.

    ## Rewards
    ### Outcome
    The reward at the end of the game: often 1, 0 or -1 (an illegal move), or the share of the game that was solved.
    ### Process
    None.

    ## Episode End
    ### Termination
    The game is over; a turn limit of the game itself also terminates.
    ### Truncation
    `max_turns` turns are used up, if it is set.

    ## Information
    `info` (dict): the game's info about the player at the end, such as `reason` and `invalid_move`. No `actions` (the
    games list none).

    ## Arguments
    `game="Mastermind-v0"` (an id of TextArena), `game_options=None` (further arguments of `textarena.make`),
    `max_turns=None`.

    ## References
    Guertler et al. 2025 (arXiv 2504.11442); https://github.com/LeonGuertler/TextArena. `pip install textarena`; tested:
    0.7. Some games download word lists on first use.

    ## Version History
    v0: first release.
    """

    library: ClassVar[str] = "textarena"

    def __init__(
        self,
        *,
        game: str = "Mastermind-v0",
        game_options: Mapping[str, Any] | None = None,
        max_turns: int | None = None,
    ) -> None:
        super().__init__(self._open, self._play, max_turns=max_turns)
        textarena = library("textarena", package="textarena", tested_version="0.7")
        check_name("game of TextArena", game, textarena.envs.registration.ENV_REGISTRY)
        self._id, self._arguments = game, dict(game_options or {})
        self._random = IsolatedRNG()
        self._game: Any = None
        self._previous_text = self._rules = ""

    def __getstate__(self) -> dict[str, Any]:
        """Drops the running game, which cannot be pickled."""
        return {**self.__dict__, "_game": None, "_running": False}

    def _open(self, seed: int) -> ResetReturn:
        import textarena

        with self._random(seed):
            self._game = textarena.make(self._id, **self._arguments)
            self._game.reset(num_players=1, seed=seed)
            self._previous_text = self._rules = ""
            opening = self._new_text()
            self._rules = next((message for _, message in self._game.state.logs), "")
            return opening

    def _play(self, action: str) -> tuple[Any, ...]:
        with self._random():
            done, _ = self._game.step(action)
            if not done:
                return self._new_text(), 0.0, False, {}
            rewards, player_info = self._game.close()
        player_info = dict((player_info or {}).get(0, {}))
        return str(player_info.get("reason", "The game is over.")), (rewards or {}).get(0, 0.0), True, player_info

    def _new_text(self) -> str:
        self._drop_own_action()
        _, seen = self._game.get_observation()
        if not isinstance(seen, str):  # a `-raw` variant shows only what is new
            return "\n".join(message for _, message, _ in seen).strip()
        previous, self._previous_text = self._previous_text, seen
        new = seen.removeprefix(previous).strip() if seen.startswith(previous) else ""
        return new or seen.replace(self._rules, "", 1).strip("\n") or seen

    def _drop_own_action(self) -> None:
        """Remove the player's action from what it is to be shown, unless the game adds nothing else."""
        import textarena

        own_action = textarena.ObservationType.PLAYER_ACTION  # by type: some games send it in their own name
        for player, shown in self._game.state.observations.items():
            others = [message for message in shown if message[2] != own_action]
            self._game.state.observations[player] = others or shown
