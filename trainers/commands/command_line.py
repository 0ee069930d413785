"""Options from the command line and from one YAML file, with the same names, conversions and errors.

`help.py` has the texts of `train --help`, which loads neither TRL nor transformers.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

import yaml  # type: ignore[import-untyped]
from transformers import TrainingArguments
from trl import ModelConfig, TrlParser  # type: ignore[attr-defined]

from agent_r1_gym.errors import ConfigurationError, near_names, suggest
from agent_r1_gym.run.env_options import ENV_OPTION_NAMES, add_env_options, env_options, expand_out, hide_underscores
from agent_r1_gym.run.mixture import parse_yaml
from agent_r1_gym.run.trust import Trust, add_trust_options
from trainers.commands.card_defaults import apply_defaults, vet_file
from trainers.config.agent import AgentConfig
from trainers.trl_internals import refusals_in_one_line

Config = TypeVar("Config", bound=TrainingArguments)
_ALIASES = {"env": "env_id", "model": "model_name_or_path", "from": "source"}


@dataclass
class AgentModelConfig(ModelConfig):
    """TRL's `ModelConfig` with a shorter name for the model, and no dropout in adapters.

    Rollouts are sampled without dropout: with it (TRL's default is .05) the loss would be that of another policy.
    """

    model_name_or_path: str | None = field(
        default=None, metadata={"aliases": ["--model"], "help": "Model to train: a hub id or a folder."}
    )
    lora_dropout: float = field(default=0.0, metadata={"help": "Dropout in the adapter."})


def read_options(argv: Sequence[str]) -> tuple[AgentConfig, ModelConfig]:
    """Parse the command line of `train` (see `read_config`)."""
    return read_config(argv, AgentConfig, prog="python -m trainers.commands.train")


def read_config(argv: Sequence[str], config: type[Config], *, prog: str) -> tuple[Config, ModelConfig]:
    """Parse a command line; options that it does not set come from `--config FILE`.

    The environment may come first (`HotpotQA --dataset FILE --option top_k=3`), with the same options as in every
    command: they are entries of `env_kwargs` and override it. An option of LoRA, DoRA among them, implies an adapter,
    unless `use_peft` is set.

    Args:
        argv: the command line.
        config: class of the configuration, with the fields `env_id` and `env_kwargs`.
        prog: name of the program, for its help.

    Raises:
        ConfigurationError: an option that does not exist, a value of the wrong type, or a file that cannot be read.
    """
    parser = OptionParser((config, AgentModelConfig), prog=prog, allow_abbrev=False)  # type: ignore[arg-type]
    parser.add_argument("--help-all", "--help_all", action="help", help="show all options")
    add_env_options(parser.add_argument_group("environment, named first or as --env"))
    argv = expand_out(argv)
    if argv and not argv[0].startswith("-"):
        argv = ["--env", *argv]
    joined = ("--config=", "--env=", "--env_id=", "--env-id=")
    argv = _merge_env_flags(
        [part for word in argv for part in (word.split("=", 1) if word.startswith(joined) else [word])]
    )
    if argv and argv[-1] == "--config":
        raise ConfigurationError("--config names no file.")
    file = next((Path(name) for word, name in itertools.pairwise(argv) if word == "--config"), None)
    trust = _trust(argv)
    if file is not None:
        _check_file(file)
        parser.vet = lambda values: vet_file(file, {n: v for n, v in values.items() if n not in _names(argv)}, trust)
    with refusals_in_one_line():
        args, model_args, of_env = parser.parse_args_and_config(list(argv))
    overrides = env_options(of_env)
    if overrides and isinstance(args.env_kwargs or {}, Mapping):  # anything else is rejected with the environment
        args.env_kwargs = {**(args.env_kwargs or {}), **overrides}
    explicit_options = parser.file_values.keys() | _names(argv)
    if "warm_start" in _names(argv) and "model_name_or_path" not in _names(argv):
        model_args.model_name_or_path = None  # the command line wins over the file, whose model the warm start was
    if "use_peft" not in explicit_options:  # TRL would ignore the options of the adapter and train all weights
        has_lora_option = any(name.startswith("lora_") for name in explicit_options)
        model_args.use_peft = has_lora_option or model_args.use_dora or model_args.use_rslora
    apply_defaults(args, model_args, explicit=explicit_options, trust=trust)
    return args, model_args


def _merge_env_flags(argv: Sequence[str]) -> list[str]:
    """Replace a repeated --env by --envs.

    Raises:
        ConfigurationError: --env is repeated next to --envs.
    """
    positions = [position for position, word in enumerate(argv[:-1]) if word in ("--env", "--env_id", "--env-id")]
    if len(positions) < 2:
        return list(argv)
    if "--envs" in argv:
        raise ConfigurationError("Name the environments by repeated --env or by --envs, not by both.")
    others = [word for position, word in enumerate(argv) if not {position, position - 1} & set(positions)]
    return [*others, "--envs", *(argv[position + 1] for position in positions)]


def _trust(argv: Sequence[str]) -> Trust:
    """Return what a command line vouches for; parsed first, because values of a file may be used as they are set."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_trust_options(parser)
    return Trust.from_options(parser.parse_known_args(argv)[0], _env_words(argv))


def _env_words(argv: Sequence[str]) -> list[str]:
    """Environments that a command line names, as it names them."""
    words: list[str] = []
    for position, word in enumerate(argv):
        if word in ("--env", "--env_id", "--env-id"):
            words += argv[position + 1 : position + 2]
        elif word == "--envs":
            words += itertools.takewhile(lambda value: not value.startswith("--"), argv[position + 1 :])
    return words


def _names(argv: Sequence[str]) -> set[str]:
    """Names of the options in a command line, as Python names; `--env` and `--model` by their full names."""
    names = {word[2:].partition("=")[0].replace("-", "_") for word in argv if word.startswith("--")}
    return names | {full for short, full in _ALIASES.items() if short in names}


class OptionParser(TrlParser):
    """TRL's parser, strict: no abbreviations, suggestions for unknown options, YAML values converted like arguments.

    Attributes:
        file_values: options that the YAML file sets, converted.
        vet: checks them, and returns those that it changes.
    """

    file_values: Mapping[str, Any] = MappingProxyType({})
    vet: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict

    def set_defaults_with_config(self, **config: Any) -> list[str]:
        """Use the values of a YAML file as defaults.

        Raises:
            ConfigurationError: an unknown key, or an invalid value.
        """
        actions = {action.dest: action for action in reversed(self._actions)}  # --no_x shares the name of --x
        for name, value in config.items():
            if name in ("imports", "trust_card"):
                raise ConfigurationError(f"The configuration file sets {name!r}, which only the command line may do.")
            if name in (*ENV_OPTION_NAMES, "option"):
                raise ConfigurationError(
                    f"The configuration file sets {name!r}, an option of the environment: put it under env_kwargs."
                )
            if name not in actions:
                raise ConfigurationError(
                    f"The configuration file sets {name!r}, which is not an option. {_near(name, actions)}"
                )
            config[name] = _converted(actions[name], value)
        config |= self.vet(config)
        self.file_values = dict(config)
        return super().set_defaults_with_config(**config)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments, and reject those that remain.

        Raises:
            ConfigurationError: an unknown option.
        """
        parsed, rest = super().parse_known_args(args, namespace)
        if rest:
            known = {name.replace("_", "-") for action in self._actions for name in action.option_strings}
            word = rest[0].partition("=")[0].replace("_", "-")
            raise ConfigurationError(f"{rest[0]!r} is not an option. {_near(word, known)}")
        return parsed, rest

    def format_help(self) -> str:
        """Format the help with dashes in the names of options."""
        hide_underscores(self)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise the error that argparse would print below the usage of all options."""
        raise ConfigurationError(f"{message}. See --help.")


def _check_file(path: Path) -> None:
    # TRL's parser would fail with errors of other libraries.
    if not path.is_file():
        raise ConfigurationError(f"--config {path}: no such file.")
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"--config {path} is not YAML: {error}") from error
    if not isinstance(content, Mapping):
        raise ConfigurationError(f"--config {path} must hold a mapping from options to values.")
    if not isinstance(content.get("env", {}), Mapping):
        raise ConfigurationError(
            f"--config {path}: env holds environment variables as a mapping, got {content['env']!r}. The "
            "environment to train on is env_id."
        )


def _converted(action: argparse.Action, value: Any) -> Any:
    """Convert a YAML value as argparse converts arguments; null stays None."""
    if value is None or isinstance(value, Mapping) or not callable(action.type):
        return value
    if isinstance(value, list):
        return [item if isinstance(item, Mapping) else _convert(action, item) for item in value]
    return [_convert(action, value)] if action.nargs == "+" else _convert(action, value)


def _convert(action: argparse.Action, value: Any) -> Any:
    convert: Any = action.type
    try:
        converted = convert(str(value))
    except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
        name = getattr(convert, "__name__", str(convert))
        kind = "true or false" if name == "string_to_bool" else f"a value of type {name}"
        raise ConfigurationError(f"The configuration file sets {action.dest}: {value!r}; expected {kind}.") from error
    if action.choices is not None and converted not in action.choices:
        raise ConfigurationError(
            f"The configuration file sets {action.dest}: {value!r}. {suggest(str(value), map(str, action.choices))}"
        )
    return converted


def _near(name: str, known: Any) -> str:
    """Suggest near names only: the full list has some two hundred."""
    return near_names(name, known).rstrip() or "See --help for the options."
