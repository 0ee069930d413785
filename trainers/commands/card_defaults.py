"""What a run continues sets the defaults of the next one: a warm start, a model that is an agent, demonstrations.

`agent.json` of a model and `run.json` of demonstrations name environment, prompt, parser and budgets; an adapter has
its shape in `adapter_config.json`. The order is: command line, configuration file, these files, the options' defaults.
Each value that comes from them, and each one that the command line overrides, is printed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trl import ModelConfig  # type: ignore[attr-defined]

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.evaluation.agent_card import ADAPTER_FILE, AgentCard
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.mixture import EnvConfig, env_configs_from_args, short_option
from agent_r1_gym.run.trained_agent import TrainedAgent
from agent_r1_gym.run.trust import Trust
from agent_r1_gym.support.json_data import parse_json
from agent_r1_gym.support.terminal import print_note

_BUDGETS = ("max_turn_tokens", "max_prompt_length", "max_completion_length")
_ADAPTER: Mapping[str, tuple[str, Any]] = {
    "lora_r": ("r", int),
    "lora_alpha": ("lora_alpha", int | float),
    "lora_target_modules": ("target_modules", list | str),
    "lora_modules_to_save": ("modules_to_save", list),
    "use_rslora": ("use_rslora", bool),
    "use_dora": ("use_dora", bool),
}
"""Options of an adapter: their names in its configuration, and their types."""


def vet_file(file: Path, values: Mapping[str, Any], trust: Trust) -> dict[str, Any]:
    """Check what a configuration file names, before any of it is used.

    Args:
        file: the file.
        values: the options that it sets and the command line does not.
        trust: what the command line vouches for. The file is the user's own: its places need no confirmation.

    Returns:
        The options whose value changes: environments lose a module that nothing vouches for.

    Raises:
        ConfigurationError: the file names code that the command line does not.
    """
    if values.get("trust_remote_code") or "trust_remote_code" in (values.get("model_init_kwargs") or ()):
        raise ConfigurationError(
            f"{file} sets trust_remote_code, with which code of the model runs; files run no code. If you know the "
            "model, add --trust-remote-code True."
        )
    for option in ("algorithm", "source", "group_reward"):
        trust.vet_name(file, option, str(values.get(option) or ""))
    options, eval_options = (_options_of(values.get(name)) for name in ("env_kwargs", "eval_env_kwargs"))
    named = values.get("envs") or ([values["env_id"]] if values.get("env_id") else [])
    own = [EnvConfig.parse(entry).with_defaults(options, eval_options) for entry in named]
    trust = replace(trust, places=True)
    if not own:  # options for an environment of the command line
        trust.vet(file, [EnvConfig(env_id="any", options=options, eval_options=eval_options)])
        return {}
    vetted = trust.vet(file, own)
    if [config.env_id for config in vetted] == [config.env_id for config in own]:
        return {}
    if values.get("envs"):
        return {"envs": [config.to_dict() for config in vetted]}
    return {"env_id": vetted[0].env_id}


def _options_of(value: Any) -> dict[str, Any]:
    """Return the environment options of a file, which may be text in JSON; anything else is refused elsewhere."""
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except ValueError:
            return {}
    return dict(value) if isinstance(value, Mapping) else {}


def apply_defaults(args: Any, model_args: ModelConfig, *, explicit: Collection[str], trust: Trust) -> None:
    """Set the options that a run takes from what it continues.

    Args:
        args: the configuration of `train` or `sft`, changed in place.
        model_args: the options of the model, changed in place.
        explicit: the options that the command line or the configuration file sets.
        trust: what the command line vouches for.

    Raises:
        ConfigurationError: a file is damaged, or names what it may not.
    """
    warm_start = getattr(args, "warm_start", None)
    folder = warm_start or model_args.model_name_or_path
    card = AgentCard.load(folder) if folder and Path(folder).is_dir() else None
    # Training draws the shots again, so that their tasks are not sampled.
    agent = None if card is None else TrainedAgent(str(folder), replace(card, shots=()), trust)
    source = getattr(args, "source", None)
    if source is not None and (Path(source) / "run.json").is_file():
        _take_environments(args, TrainedAgent.of_run(RunFolder(Path(source)), trust), drop=())
    elif agent is not None:
        _take_environments(args, agent, drop=("split",))
    if card is not None:
        budgets = {
            name: limit
            for name, limit in card.token_limits.items()
            if name in _BUDGETS and name not in explicit and hasattr(args, name)
        }
        for name, limit in budgets.items():
            setattr(args, name, limit)
        if budgets:
            print_note(f"budgets of {folder}: {_shown(budgets)}")
    if warm_start is not None:
        _take_adapter(model_args, Path(warm_start), explicit)


def _take_environments(args: Any, agent: TrainedAgent, *, drop: Collection[str]) -> None:
    """Complete the environments of the command line by those of a card or run, or take these where it names none."""
    assert agent.card is not None
    common = args.env_kwargs or {}
    if not isinstance(common, Mapping):
        return  # refused with the environments
    if args.env_id is None and not args.envs:
        evaluated = getattr(args, "eval_env_kwargs", None)
        configs: Sequence[EnvConfig] = [
            replace(agent.override(trained, common, drop=drop), eval_options=evaluated)
            for trained in agent.card.environments
        ]
        added = [config.to_text(include_eval=False, short=True) for config in configs]
    else:
        named = env_configs_from_args(args)
        configs = [
            replace(
                agent.env_config(config.env_id, config.options, drop=drop),
                **{name: getattr(config, name) for name in ("name", "weight", "eval_options")},
            )
            for config in named
        ]
        pairs = zip(named, configs, strict=True)
        own = [{name: value for name, value in c.options.items() if name not in n.options} for n, c in pairs]
        added = [f"{config.env_id} {_shown(options)}" for config, options in zip(configs, own, strict=True) if options]
    if added:
        print_note(f"as in {agent.file}: {'; '.join(added)}")
    if len(configs) == 1 and not args.envs:
        args.env_id, args.env_kwargs = configs[0].env_id, dict(configs[0].options)
    else:
        args.envs, args.env_id, args.env_kwargs = [config.to_dict() for config in configs], None, None


def _take_adapter(model_args: ModelConfig, folder: Path, explicit: Collection[str]) -> None:
    """Continue an adapter with one of the same shape, unless the command line asks for all weights."""
    path = folder / ADAPTER_FILE
    if not path.is_file() or ("use_peft" in explicit and not model_args.use_peft):
        return
    try:
        recorded = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        recorded = None
    if not isinstance(recorded, dict):
        raise ConfigurationError(f"{path} is not a configuration of an adapter: expected a JSON object; copy it again.")
    shape = {}
    for option, (name, kind) in _ADAPTER.items():
        value = recorded.get(name)
        if not isinstance(value, kind | None):
            raise ConfigurationError(
                f"{path} is not a configuration of an adapter: {name}={value!r:.80}; copy it again."
            )
        if value:
            shape[option] = value
    chosen = {option: value for option, value in shape.items() if option not in explicit}
    for option, value in chosen.items():
        setattr(model_args, option, value)
    model_args.use_peft = True
    modules = chosen.pop("lora_target_modules", None)
    where = f" on {', '.join(sorted(modules)) if isinstance(modules, list) else modules}" if modules else ""
    print_note(
        f"{folder} is an adapter, so that a new one of its shape is trained: {_shown(chosen) or 'as set'}{where}; "
        "--use-peft False trains all weights"
    )


def _shown(options: Mapping[str, Any]) -> str:
    return " ".join(short_option(*option) for option in options.items())
