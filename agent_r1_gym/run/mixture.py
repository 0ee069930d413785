"""Mixtures: several environments in one run, each with its own name, weight and options."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np

from agent_r1_gym.errors import ConfigurationError, MissingDependencyError, suggest
from agent_r1_gym.registry import short_id
from agent_r1_gym.support.json_data import parse_json

ENV_SYNTAX = "'ID [weight=W] [name=NAME] [OPTION=VALUE ...] [eval.OPTION=VALUE ...]'"
"""Syntax of one environment of a mixture; a value is JSON or a word. `eval` alone: evaluated with the same options."""
MIXTURE_FILE = "mixture.json"
"""Summary that an evaluation of a mixture writes next to the folders of its environments."""
_FIELDS = ("env_id", "name", "weight", "env_kwargs", "eval_env_kwargs")
_TAKEN = ("reward", "rollout", MIXTURE_FILE)
_WIDTH = 80
"""Maximum length of an option in a message."""
_YAML_VALUES = 1_000_000
_NAME = re.compile(r"\w[\w.+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """One environment of a run.

    Attributes:
        env_id: id, as the command line takes it.
        name: used in metrics and folder names; by default the id without its namespace.
        weight: its share of the episodes, relative to the others.
        options: options of the environment.
        eval_options: options that differ in evaluations during training; None: not set.

    Raises:
        ConfigurationError: a field has a wrong value.
    """

    env_id: str
    name: str = ""
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    eval_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.env_id, str) or not self.env_id:
            raise ConfigurationError(f"env_id must name an environment, got {self.env_id!r}.")
        if self.env_id.split() != [self.env_id] or not self.env_id.isprintable():
            # As text it would be read as options, which were never checked.
            raise ConfigurationError(
                f"env_id must be one word, got {self.env_id!r:.80}: its options have a field of their own."
            )
        if not self.name:
            object.__setattr__(self, "name", short_id(self.env_id))
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or self.name in _TAKEN:
            raise ConfigurationError(
                f"{self.env_id}: name={self.name!r} names metrics and folders: letters, digits, and after the first . "
                f"_ + -; none of {', '.join(_TAKEN)}."
            )
        number = isinstance(self.weight, int | float) and not isinstance(self.weight, bool)
        if not number or not isfinite(self.weight) or self.weight <= 0:
            raise ConfigurationError(f"{self.env_id}: weight={self.weight!r} must be a number above 0.")
        for label, value in (("env_kwargs", self.options), ("eval_env_kwargs", self.eval_options or {})):
            if not isinstance(value, Mapping):
                raise ConfigurationError(f"{self.env_id}: {label} must be a mapping of options, got {value!r:.80}.")

    @classmethod
    def parse(cls, given: str | Mapping[str, Any] | Self) -> Self:
        """Parse text (see `ENV_SYNTAX`), or a mapping in the form of `to_dict`; env_id is enough.

        Raises:
            ConfigurationError: it is neither.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, str):
            return cls._parse_text(given)
        if not isinstance(given, Mapping) or "env_id" not in given:
            raise ConfigurationError(
                f"An environment is written {ENV_SYNTAX}, or as a mapping with env_id; got {given!r}."
            )
        for name in given:
            if name not in _FIELDS:
                raise ConfigurationError(
                    f"{given['env_id']}: {name!r} is not a field of it. {suggest(str(name), _FIELDS)}"
                )
        renamed = {"env_kwargs": "options", "eval_env_kwargs": "eval_options"}
        return cls(**{renamed.get(name, name): value for name, value in given.items() if value is not None})

    @classmethod
    def _parse_text(cls, text: str) -> Self:
        env_id, *rest = text.split(maxsplit=1) or [""]
        own: dict[str, Any] = {}
        options: dict[str, Any] = {}
        include_eval: dict[str, Any] | None = None
        for name, value in _named_values("".join(rest)):
            if name == "eval":
                include_eval = include_eval or {}
            elif name.startswith("eval."):
                include_eval = {**(include_eval or {}), name.removeprefix("eval."): value}
            elif name in ("name", "weight"):
                own[name] = str(value) if name == "name" else value
            else:
                options[name] = value
        return cls(env_id=env_id, options=options, eval_options=include_eval, **own)

    def with_defaults(self, options: Mapping[str, Any], eval_options: Mapping[str, Any] | None = None) -> Self:
        """Add the options that are common to a run; the environment's own options win."""
        own, has_eval_options = self.eval_options, eval_options is not None or self.eval_options is not None
        include_eval = {**(eval_options or {}), **(own or {})} if has_eval_options else None
        return replace(self, options={**options, **self.options}, eval_options=include_eval)

    def to_text(self, *, include_eval: bool = True, short: bool = False) -> str:
        """Format the environment as the command line takes it.

        Args:
            include_eval: include the evaluation options.
            short: cut long values, such as prompts, for a message.
        """
        own = {"name": self.name} if self.name != short_id(self.env_id) else {}
        weight = {} if self.weight == 1 else {"weight": self.weight}
        of_eval = (self.eval_options if include_eval else None) or {}
        shown = {**own, **weight, **self.options}
        shown |= {f"eval.{name}": value for name, value in of_eval.items()}
        alone = ["eval"] if include_eval and self.eval_options == {} else []
        format_pair = short_option if short else format_option
        return " ".join([self.env_id, *(format_pair(*pair) for pair in shown.items()), *alone])

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that a resumed run must not change."""
        return {name: value for name, value in self.to_dict().items() if name != "eval_env_kwargs"}

    def to_dict(self) -> dict[str, Any]:
        """Return the environment in the form that `parse` takes."""
        return {
            "env_id": self.env_id,
            "name": self.name,
            "weight": self.weight,
            "env_kwargs": dict(self.options),
            "eval_env_kwargs": None if self.eval_options is None else dict(self.eval_options),
        }


def parse_mixture(given: Sequence[str | Mapping[str, Any] | EnvConfig]) -> tuple[EnvConfig, ...]:
    """Parse the environments of a run.

    Raises:
        ConfigurationError: there is none, one is malformed, or two have the same name.
    """
    if not isinstance(given, list | tuple):
        raise ConfigurationError(f"envs must be a list of environments, each {ENV_SYNTAX}; got {given!r:.80}.")
    read = tuple(EnvConfig.parse(entry) for entry in given)
    names = [env_config.name for env_config in read]
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise ConfigurationError(
            f"Two environments of the mixture are called {duplicate!r}: give one another name (name=NAME) for its "
            "metrics."
        )
    if not read:
        raise ConfigurationError("A mixture needs at least one environment.")
    return read


def env_configs_from_args(args: Any) -> tuple[EnvConfig, ...]:
    """Return the environments of a run: the one that `env_id` names, or the mixture in `envs`.

    Args:
        args: has `env_id`, `env_kwargs`, `envs`, and `eval_env_kwargs` where a run evaluates.

    Raises:
        ConfigurationError: neither or both are named, or one is malformed.
    """
    options, eval_options = args.env_kwargs or {}, getattr(args, "eval_env_kwargs", None)
    for name, value in (("env_kwargs", options), ("eval_env_kwargs", eval_options)):
        if value is not None and not isinstance(value, Mapping):
            raise ConfigurationError(f"{name} must be a JSON object, got {value!r:.80}.")
    if args.envs and args.env_id is not None:
        raise ConfigurationError(f"env_id={args.env_id!r} and envs are both set: add it to envs.")
    if not args.envs and args.env_id is None:
        raise ConfigurationError(
            "env_id is not given: name a registered text environment, such as AgentR1/HotpotQA-v0."
        )
    return tuple(
        env_config.with_defaults(options, eval_options) for env_config in parse_mixture(args.envs or [args.env_id])
    )


def env_configs_from_file(path: Path) -> tuple[EnvConfig, ...]:
    """Read the environments of a training configuration, in YAML or JSON.

    Raises:
        ConfigurationError: there is no such file, or it names no environment.
        MissingDependencyError: pyyaml is not installed.
    """
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError(f"Reading {path} needs the package pyyaml: pip install pyyaml") from error
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(content, Mapping) or not (content.get("envs") or content.get("env_id")):
        raise ConfigurationError(f"{path} names no environment: it needs env_id, or envs: a list, each {ENV_SYNTAX}.")
    names = ("env_id", "env_kwargs", "envs", "eval_env_kwargs")
    return env_configs_from_args(SimpleNamespace(**{name: content.get(name) for name in names}))


def parse_yaml(text: str) -> Any:
    """Parse YAML that may come from anyone.

    Raises:
        ValueError: it is nested too deeply, or its anchors expand to more than a configuration holds.
        yaml.YAMLError: it is not YAML.
    """
    import yaml

    try:
        content = yaml.safe_load(text)
        size = _expanded_size(content, {})
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if size > _YAML_VALUES:
        raise ValueError(f"its anchors expand to more than {_YAML_VALUES:,} values")
    return content


def _expanded_size(value: Any, sizes: dict[int, float]) -> float:
    """Count the values in a value, those behind an alias each time; infinity if it contains itself."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in sizes:
        sizes[id(value)] = inf  # while it is counted
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        sizes[id(value)] = 1 + sum(_expanded_size(part, sizes) for part in parts)
    return sizes[id(value)]


def parse_option(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE; the value is JSON if it parses as such, else text.

    Raises:
        ConfigurationError: it is not of that form.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigurationError(f"An option is written NAME=VALUE, got {text!r}.")
    try:
        return name.replace("-", "_"), parse_json(value)
    except ValueError:
        return name.replace("-", "_"), value


def _named_values(text: str) -> Iterator[tuple[str, Any]]:
    """Parse NAME=VALUE NAME=VALUE ...; a VALUE in JSON may contain spaces."""
    while text:
        if text.split(maxsplit=1)[0] == "eval":
            yield "eval", None
            text = text.removeprefix("eval").strip()
            continue
        name, equals, value = text.partition("=")
        if not equals or not name or len(name.split()) != 1:
            raise ConfigurationError(f"An option is written NAME=VALUE, got {text!r:.80}.")
        stop = next((place for place, letter in enumerate(value) if letter.isspace()), len(value))
        with contextlib.suppress(ValueError, RecursionError):
            _, whole = json.JSONDecoder().raw_decode(value)
            stop = whole if not value[whole:] or value[whole].isspace() else stop
        yield parse_option(f"{name}={value[:stop]}")
        text = value[stop:].strip()


def format_option(name: str, value: Any) -> str:
    """Format NAME=VALUE as one word of the command line: JSON, or text that does not parse as JSON."""
    text = json.dumps(value, default=str)
    if isinstance(value, str) and value.isprintable() and not re.search(r"\s", value):
        try:
            parse_json(value)
        except ValueError:
            text = value
    return f"{name}={text}"


def short_option(name: str, value: Any) -> str:
    """Format NAME=VALUE for a message: prompts and shots are cut."""
    text = format_option(name, value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def interleaved_order(lengths: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Order the rows of one epoch of a mixture, as indices into the concatenated rows of its environments.

    Each environment gets its share of the epoch, evenly spread. The epoch is long enough for every row to occur at
    least once; rows of the smaller environments occur more often.

    Args:
        lengths: number of rows of each environment, at least 1.
        weights: weight of each environment, above 0.
    """
    total = sum(weights)
    shares = [weight / total for weight in weights]
    epoch = max(length / share for length, share in zip(lengths, shares, strict=True))
    counts = [max(length, round(epoch * share)) for length, share in zip(lengths, shares, strict=True)]
    starts = np.cumsum([0, *lengths[:-1]])
    places = np.concatenate([(np.arange(count) + 0.5) / count for count in counts])
    rows = np.concatenate(
        [start + np.arange(count) % length for start, count, length in zip(starts, counts, lengths, strict=True)]
    )
    order: list[int] = rows[np.argsort(places, kind="stable")].tolist()
    return order
