"""What a run says of itself: on its first screen, at its end, in the model card, and in `training.json` for reports.

`training.json`, in the output folder: `starts`, one object for each time that the run was started or resumed (see
`started`), and `stopped`: why an alarm ended it, null if none did. Nothing of it decides whether a run may be resumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.support.files import atomic_file
from agent_r1_gym.support.progress import short_number
from agent_r1_gym.support.provenance import start_of_run
from trainers.config import AgentConfig

_PACKAGES = ("agent-r1-gym", "trl", "transformers", "torch")
RECORD = "training.json"


def opening(
    args: AgentConfig, model: str, parameters: tuple[int, int], env: TextEnv, rows: int, *, memory: str = ""
) -> str:
    """Returns the first screen of a run.

    Args:
        args: the configuration.
        model: what is trained: a hub id or a folder.
        parameters: number of trained parameters, and of all.
        env: an environment of the run.
        rows: number of training tasks.
        memory: how much of it a device needs, as estimated; "" where nobody can say.
    """
    bare = env.unwrapped
    weights = bare.reward_weights if isinstance(bare, ToolEnv) else {"reward": 1.0}
    tools = "none: a plain text environment"
    if isinstance(bare, ToolEnv):
        tools = ", ".join(tool.name for tool in bare.tools) or "made for each task"
    batch = args.generation_batch_size or args.per_device_train_batch_size
    prompts = max(1, batch // args.num_generations)
    steps = f"{args.max_steps} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} passes over the tasks"
    trained, whole = parameters
    turns = bare.max_turns if isinstance(bare, ToolEnv) else getattr(env.spec, "max_episode_steps", None)
    lines = {
        "model": f"{model}: {short_number(trained)} of {short_number(whole)} parameters are trained",
        "environment": f"{args.env_id}: {bare.describe_dataset() if isinstance(bare, ToolEnv) else f'{rows} seeds'}",
        "tools": tools,
        "reward": " + ".join(f"{weight:g} x {name}" for name, weight in weights.items()),
        "algorithm": f"{args.algorithm}: {prompts} prompts x {args.num_generations} rollouts per batch, {steps}",
        "budget": f"{args.max_turn_tokens} tokens per turn, {args.max_completion_length} per episode after the prompt"
        + (f", {turns} turns" if turns else ""),
        "memory": memory or "not estimated: the model is of another shape than those that are known",
        "time": "told after the first step, as measured",
        "output": f"{args.output_dir}",
    }
    return "\n".join(f"{name:12} {text}" for name, text in lines.items())


def closing(args: AgentConfig) -> str:
    """Returns the last screen of a run: where things lie, and what comes next."""
    folder = args.output_dir
    return (
        f"trained; the model is in {folder}\n"
        f"measure it:  agent-r1 eval {args.env_id} --policy local:{folder} --out {folder}/eval\n"
        f"look at it:  agent-r1 report {folder} {folder}/eval\n"
        f"go on:       agent-r1 train {args.env_id} --warm_start {folder} --output_dir ..."
    )


def started(args: AgentConfig, model: str, env: TextEnv) -> dict[str, Any]:
    """Returns where a run comes from.

    Returns:
        What `start_of_run` does, and `model`, `environment`, `dataset`, `reward_weights` and `settings`: the options
        whose values are not the defaults.
    """
    bare = env.unwrapped
    return {
        **start_of_run((*_PACKAGES, "peft", "accelerate")),
        "model": model,
        "environment": args.env_id,
        "dataset": bare.describe_dataset() if isinstance(bare, ToolEnv) else None,
        "reward_weights": bare.reward_weights if isinstance(bare, ToolEnv) else None,
        "settings": changed_settings(args),
    }


def changed_settings(args: AgentConfig) -> dict[str, Any]:
    """Returns the options whose values are not the defaults, tokens of the hub left out."""
    values = json.loads(args.to_json_string())  # type: ignore[no-untyped-call]
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(args)
    }
    plain: dict[str, Any] = json.loads(json.dumps(defaults, default=str))
    return {name: value for name, value in values.items() if name in plain and value != plain[name]}


def write_start(args: AgentConfig, model: str, env: TextEnv) -> None:
    """Adds a start to `training.json`."""
    _write(args, {"starts": [*_read(args).get("starts", []), started(args, model, env)], "stopped": None})


def write_end(args: AgentConfig, stopped: str | None) -> None:
    """Writes into `training.json` why an alarm ended the run, None if none did."""
    _write(args, {**_read(args), "stopped": stopped})


def _read(args: AgentConfig) -> dict[str, Any]:
    try:
        run = json.loads((Path(str(args.output_dir)) / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # absent or damaged: a report says less, and no run stops for that
        return {}
    return run if isinstance(run, dict) else {}


def _write(args: AgentConfig, run: Mapping[str, Any]) -> None:
    with atomic_file(Path(str(args.output_dir)) / RECORD) as temporary:
        temporary.write_text(json.dumps(run, indent=1, default=str) + "\n", encoding="utf-8")


def model_card(args: AgentConfig, base: str) -> str:
    """Returns the model card: what was trained, on what, with what, and what nobody has measured.

    Args:
        args: the configuration.
        base: what was trained.
    """
    options: Any = args.env_kwargs or {}
    settings = {
        "environment": f"`{args.env_id}`",
        "its options": f"`{json.dumps(options)}`" if isinstance(options, Mapping) else f"`{options}`",
        "base model": f"`{base}`",
        "algorithm": f"{args.algorithm} (loss {args.loss_type}, KL weight {args.beta:g})",
        "learning rate": f"{args.learning_rate:g}",
        "rollouts per prompt": f"{args.num_generations}",
        "seed": f"{args.seed}",
        "versions": ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
    }
    rows = "\n".join(f"| {name} | {text} |" for name, text in settings.items())
    return (
        "---\nlibrary_name: transformers\ntags: [agent-r1-gym, tool-use, reinforcement-learning]\n---\n\n"
        f"# An agent for {args.env_id}\n\n"
        "Trained by reinforcement learning to solve tasks over several turns with tools. It expects the system turn "
        "and the tools of its environment, and the chat format in `chat_format.json`; without them it is not what was "
        f"trained.\n\n| | |\n| --- | --- |\n{rows}\n\n"
        f"Play and measure it: `agent-r1 eval {args.env_id} --policy local:THIS_FOLDER`. No scores are claimed here: "
        "those of a run stand in its `metrics.json`, with intervals.\n"
    )
