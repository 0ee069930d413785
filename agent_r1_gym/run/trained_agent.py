"""TrainedAgent: a model on disk together with its agent card, as every command that takes a model reads it.

The card (`agent.json`) records the environment, prompt, parser, budgets and options of the training. They are the
defaults of a command; what the command line sets wins, and each override is announced. What the card may name at all
is decided in `trust`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import find_registered, full_id, registered_id
from agent_r1_gym.run.agents import split_policy
from agent_r1_gym.run.evaluation.agent_card import FILE, AgentCard
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.mixture import EnvConfig, short_option
from agent_r1_gym.run.model_folder import check_model_folder, expand_home, find_gguf, holds_model, list_checkpoints
from agent_r1_gym.run.trust import Trust
from agent_r1_gym.support.terminal import print_note

_FOLDER = "folder of `train`, `sft`, `export` or `quickstart`, or a model's folder"
_CARD = f"its {FILE} sets the default of environment and options"
MODEL_HELP = f"{_FOLDER}, GGUF file or hub id; {_CARD}"
FOLDER_HELP = f"{_FOLDER} or GGUF file; {_CARD}"
"""What may stand in place of an environment: a hub id looks like one."""


class TrainedAgent(NamedTuple):
    """A model and what it was trained for.

    Attributes:
        model: its folder, or a hub id.
        card: its agent card; None: it has none.
        trust: what the command line vouches for.
        file_name: the file in its folder that the card is read from.
    """

    model: str
    card: AgentCard | None
    trust: Trust = Trust()
    file_name: str = FILE

    @classmethod
    def load(cls, model: str | Path, trust: Trust) -> Self:
        """Find the model of a run and reads its card.

        The model of a training run lies in its folder, that of a quickstart in `model/`. A run that is not finished is
        represented by its latest checkpoint, with a note.

        Raises:
            ConfigurationError: the folder holds no model, or its card is damaged.
        """
        name = expand_home(str(model))
        folder = Path(name)
        if not folder.is_dir():  # a hub id, or an error of the library that loads it
            return cls(name, None, trust)
        places = (folder, folder / "model", *reversed(list_checkpoints(folder)))
        found = next((place for place in places if holds_model(place)), None)
        if found is None:
            check_model_folder(folder)
            raise AssertionError("unreachable")
        if found.name.startswith("checkpoint-") and found != folder:
            print_note(f"{folder} is a run that has not finished; using {found}.")
        return cls(name if found == folder else str(found), AgentCard.load(found), trust)

    @classmethod
    def of_policy(cls, policy: str, trust: Trust) -> Self:
        """Return the agent that `--policy` names, with the card of a local model; any other policy has none."""
        _, kind, model = split_policy(policy)
        return cls(model if kind == "local" else policy, AgentCard.load(model) if kind == "local" else None, trust)

    @classmethod
    def of_run(cls, run: RunFolder, trust: Trust) -> Self:
        """Return the settings of an evaluation run as a card: the environment in which its episodes were played.

        Raises:
            DatasetError: the folder holds no run.
        """
        settings = run.settings()
        card = AgentCard(env_id=settings["env_id"], env_options=settings.get("env_options") or {})
        return cls(str(run.path), card, trust, run.run_path.name)

    @property
    def policy(self) -> str:
        """The model as `--policy` names it."""
        return f"local:{self.model}"

    def env_config(
        self,
        env: str | None,
        options: Mapping[str, Any],
        *,
        drop: Collection[str] = (),
        default: str | None = None,
    ) -> EnvConfig:
        """Merge the environment of the card with what the command line sets, and announce each override.

        Args:
            env: environment that the command line names, by name or id; None: the card's first one with tools.
            options: environment options of the command line.
            drop: options of the card that do not apply to the command.
            default: environment where neither the command line nor the card names one.

        Raises:
            ConfigurationError: no environment is named.
        """
        trained = self._trained_env(env)
        name = env if trained is None else trained.env_id
        if name is None and default is None:
            raise ConfigurationError(
                f"{self.model} has no {FILE} that names its environment: name it with --env, and its options as in "
                "`agent-r1 eval`."
            )
        if trained is None:
            if env is not None and self.card is not None:
                self._note_other_env(env, options)
            return EnvConfig(env_id=name or str(default), options=dict(options))
        return self.override(trained, options, drop=drop)

    def _note_other_env(self, env: str, options: Mapping[str, Any]) -> None:
        """Warn that another environment than the card's is used, and name the habits that it does not set."""
        assert self.card is not None
        kept = {name: self.card.env_options[name] for name in _FORMAT_OPTIONS if name in self.card.env_options}
        if self.card.parser not in (None, _DEFAULT_PARSER):  # the environment of the training has a default of its own
            kept.setdefault("parser", self.card.parser)
        differing = [short_option(*option) for option in kept.items() if options.get(option[0]) != option[1]]
        hint = f" Its turns follow {' '.join(differing)}, which this command does not set." if differing else ""
        print_note(f"WARNING: {env} replaces {self.card.env_id!r} of {self.file}, whose options are not used.{hint}")

    def override(self, trained: EnvConfig, options: Mapping[str, Any], *, drop: Collection[str] = ()) -> EnvConfig:
        """Put the options of the command line on top of those of the card, and announce what they change.

        Raises:
            ConfigurationError: the card names what it may not (see `trust`).
        """
        kept = {name: value for name, value in trained.options.items() if name not in drop}
        remaining = {name: value for name, value in kept.items() if name not in options}
        (trained_env,) = self.trust.vet(self.file, [replace(trained, options=remaining, eval_options=None)])
        for name, value in options.items():
            if name not in drop and trained.options.get(name, _UNSET) != value:
                before = short_option(name, kept[name]) if name in kept else f"the default {name}"
                print_note(f"{short_option(name, value)} overrides {before} of {self.file}.")
        drawn = self.card.shots if self.card is not None and trained.options == self.card.env_options else ()
        if drawn and not {"shots", "shots_seed"} & options.keys():  # those of the training, whatever is played now
            kept = {**kept, "shots": list(drawn)}
            kept.pop("shots_seed", None)
        return replace(trained_env, options={**kept, **options})

    def max_turn_tokens(self, value: int | None) -> int | None:
        """Return the token budget of a turn: `value` of the command line, else the card's; None: neither sets one."""
        trained = self.card.token_limits.get("max_turn_tokens") if self.card else None
        if None not in (value, trained) and value != trained:
            print_note(f"--max-turn-tokens {value} overrides {trained} of {self.file}.")
        return trained if value is None else value

    def _trained_env(self, env: str | None) -> EnvConfig | None:
        if self.card is None:
            return None
        if env is None:
            return EnvConfig(env_id=self.card.env_id, options=self.card.env_options)
        environments = self.card.environments
        by_name = next((trained for trained in environments if env in (trained.name, trained.env_id)), None)
        if by_name is not None:
            return by_name
        same = next((trained for trained in environments if _same_env(trained.env_id, env)), None)
        return None if same is None else replace(same, env_id=env)  # its module may have moved

    @property
    def file(self) -> Path:
        """The file that the card is read from."""
        return Path(self.model) / self.file_name


_UNSET = object()
_DEFAULT_PARSER = "hermes"
"""Format of turns of an environment that names none."""
_FORMAT_OPTIONS = ("parser", "system_prompt", "raw_system_prompt", "shots", "tool_style", "plain_turn")
"""Environment options that are habits of the agent rather than properties of a task."""


def names_model(text: str) -> bool:
    """Return whether an argument that may be an environment or a model is the folder of a model."""
    if not Path(text).is_dir():
        return Path(text).is_file() and find_gguf(text) is not None
    try:
        full_id(text)
    except ConfigurationError:
        return True
    return False


def _same_env(trained: str, env: str) -> bool:
    """Return whether a card's id means the environment `env`; a card's module is not imported for that."""
    wanted = registered_id(full_id(env))
    return wanted in (find_registered(trained), trained.rpartition(":")[2])
