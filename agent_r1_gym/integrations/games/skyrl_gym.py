"""SkyRL-Gym: its text environments, over rows of a data set."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.integrations.base import check_name, library
from agent_r1_gym.support.checks import check_choice
from agent_r1_gym.support.json_data import read_objects
from agent_r1_gym.wrappers.game import ResetReturn, TextGame

_CONFIGS = {
    "search": ("skyrl_gym.envs.search.env", "SearchEnvConfig"),
    "text2sql": ("skyrl_gym.envs.sql.env", "Text2SQLEnvConfig"),
}
"""Module and class of the configurations of which an environment reads attributes."""


_ANSWERS = {"gsm8k": "#### {}", "gsm8k_multi_turn": "#### {}", "aime": "Answer: {}"}
"""How the right answer is written, where a row has it."""


def _sums(game: str) -> Iterator[Mapping[str, Any]]:
    """Yields three rows for gsm8k (`reward_spec`), gsm8k_multi_turn (also `extra_info`) and aime (`reward_model`)."""
    where = "the last line as 'Answer: N'" if game == "aime" else "the result after ####"
    for first, second in ((1, 1), (2, 5), (12, 30)):
        solution = {"method": "rule", "ground_truth": str(first + second)}
        yield {
            "prompt": [{"role": "user", "content": f"What is {first} + {second}? Write {where}."}],
            "reward_spec": solution,
            "reward_model": solution,
            "extra_info": {},
        }


class SkyRLGymEnv(TextGame):
    """SkyRL-Gym: mathematics, search, SQL and code over the rows of a data set.

    ## Description
    A registered environment of SkyRL-Gym; an episode is one row in the format of SkyRL's data sets.

    ## Tools
    Those that the environment parses from the text itself.

    ## Action Space
    `UnicodeText(65536)`: the model's turn as it is, parsed by SkyRL-Gym, such as `#### 42` for gsm8k.

    ## Observation Space
    `UnicodeText(65536)`: the contents of the new messages, without their roles.

    ## Starting State
    The prompt of row `seed` modulo the number of rows; so no seed is held out: evaluate on other `rows`.

    ## Rewards
    ### Outcome
    SkyRL-Gym's reward of every turn.
    ### Process
    None.

    ## Episode End
    ### Termination
    SkyRL-Gym's `done`, which does not distinguish a goal from a limit.
    ### Truncation
    `max_turns` turns are used up, if it is set.

    ## Information
    `info` (dict): SkyRL-Gym's metadata and, at the end, `metrics`. No `actions` (it lists none).

    ## Arguments
    `game="gsm8k"` (an id of SkyRL-Gym), `rows=None` (a list of dictionaries with `prompt`, a list of messages, and
    the fields that the environment needs, such as `reward_spec`; or a path to a JSON file of them; None: three sums),
    `env_config=None` (configuration of the environment: a dictionary, or an object as SkyRL-Gym takes it),
    `max_turns=None`.

    ## References
    https://github.com/NovaSky-AI/SkyRL. `pip install skyrl-gym`; tested: 0.4.

    ## Version History
    v0: first release.
    """

    library: ClassVar[str] = "skyrl_gym"
    repeats_tasks: ClassVar[str] = "seeds repeat the same rows, unless rows= names others than in training"

    def __init__(
        self,
        *,
        game: str = "gsm8k",
        rows: Sequence[Mapping[str, Any]] | str | os.PathLike[str] | None = None,
        env_config: Any = None,
        max_turns: int | None = None,
    ) -> None:
        super().__init__(self._open, self._play, max_turns=max_turns, oracle=self._oracle_action)
        skyrl = library("skyrl_gym", package="skyrl-gym", tested_version="0.4")
        check_name("environment of SkyRL-Gym", game, skyrl.envs.registration.registry)
        read = [row for _, row in read_objects(Path(rows))] if isinstance(rows, str | os.PathLike) else rows
        self._rows = tuple(_sums(game) if read is None else read)
        if not self._rows or any("prompt" not in row for row in self._rows):
            raise ConfigurationError("rows must contain at least one row, each with a prompt: a list of messages.")
        self._id, self._config = game, _config(game, env_config)
        self._game: Any = None
        self._row: Mapping[str, Any] = {}

    def _open(self, seed: int) -> ResetReturn:
        import skyrl_gym

        row = self._row = dict(self._rows[seed % len(self._rows)])
        prompt = list(row.pop("prompt"))
        self._game = skyrl_gym.make(self._id, env_config=self._config, extras=row)
        messages, info = self._game.init(prompt)
        return _contents(messages), info or {}

    def _play(self, action: str) -> tuple[Any, ...]:
        step = self._game.step(action)
        done, info = bool(step["done"]), dict(step["metadata"] or {})
        if done:
            info["metrics"] = self._game.get_metrics()
            self._game.close()
        return _contents(step["observations"] or ()), step["reward"], done, info

    def _oracle_action(self) -> str | None:
        form = _ANSWERS.get(self._id)
        truth = (self._row.get("reward_spec") or self._row.get("reward_model") or {}).get("ground_truth")
        return None if form is None or truth is None else form.format(truth)


def _config(game: str, given: Any) -> Any:
    """Returns a configuration as the environment reads it: attributes where SkyRL-Gym has a class of them."""
    if game not in _CONFIGS or not isinstance(given, dict | None):
        return given or {}
    module, name = _CONFIGS[game]
    kind = getattr(library(module, package="skyrl-gym", tested_version="0.4"), name)
    known = [each.name for each in dataclasses.fields(kind)]
    for option in given or {}:
        check_choice(f"option of env_config for {game}", option, known)
    return kind(**given or {})


def _contents(messages: Sequence[Mapping[str, Any]]) -> str:
    return "\n\n".join(str(message["content"]) for message in messages)
