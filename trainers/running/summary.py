"""What a run says of itself: on its first screen, at its end, and in the agent card."""

from __future__ import annotations

from typing import Any

from agent_r1_gym.core import ToolEnv
from agent_r1_gym.evaluation.agent_card import FILE, AgentCard
from agent_r1_gym.registry import TextEnv
from trainers.config import AgentConfig


def opening(args: AgentConfig, model: str, parameters: tuple[int, int], env: TextEnv, rows: int) -> str:
    """Returns the first screen of a run.

    Args:
        args: the configuration.
        model: what is trained: a hub id or a folder.
        parameters: number of trained parameters, and of all.
        env: an environment of the run.
        rows: number of training tasks.
    """
    bare = env.unwrapped
    weights = bare.reward_weights if isinstance(bare, ToolEnv) else {"reward": 1.0}
    tools = ", ".join(tool.name for tool in bare.tools) if isinstance(bare, ToolEnv) else ""
    batch = args.generation_batch_size or args.per_device_train_batch_size
    prompts = max(1, batch // args.num_generations)
    steps = f"{args.max_steps} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} passes over the tasks"
    trained, whole = parameters
    lines = {
        "model": f"{model}: {_short(trained)} of {_short(whole)} parameters are trained",
        "environment": f"{args.env_id}: {bare.describe_dataset() if isinstance(bare, ToolEnv) else f'{rows} seeds'}",
        "tools": tools or "made for each task",
        "reward": " + ".join(f"{weight:g} x {name}" for name, weight in weights.items()),
        "algorithm": f"{args.algorithm}: {prompts} prompts x {args.num_generations} rollouts per batch, {steps}",
        "budget": f"{args.max_turn_tokens} tokens per turn, {args.max_completion_length} per episode after the prompt",
        "output": f"{args.output_dir}",
    }
    return "\n".join(f"{name:12} {text}" for name, text in lines.items())


def closing(folder: str | None, card: AgentCard) -> str:
    """Returns where a trained model lies, and the commands that come next.

    Args:
        folder: of the model.
        card: of the agent.
    """
    return (
        f"the model is in {folder}; what it is an agent for is in its {FILE} and README.md\n"
        f"measure it:  {card.eval_command(str(folder))} --out {folder}/eval\n"
        f"look at it:  agent-r1 report {folder} {folder}/eval\n"
        f"talk to it:  agent-r1 chat {folder}\n"
        f"go on:       agent-r1 train {card.env_id} --warm_start {folder} --output_dir ..."
    )


def agent_card(args: AgentConfig, base: str, env: TextEnv) -> AgentCard:
    """Returns the agent card: what is trained on what, with what; nobody has measured it yet.

    Args:
        args: the configuration.
        base: what is trained.
        env: an environment of the run.
    """
    options: Any = args.env_kwargs or {}
    budgets = {name: getattr(args, name) for name in ("max_turn_tokens", "max_prompt_length", "max_completion_length")}
    return AgentCard.of(
        env,
        env_id=str(args.env_id),
        env_options=dict(options),
        budgets={name: number for name, number in budgets.items() if number is not None},
        base_model=base,
        algorithm=args.algorithm,
        settings={
            "loss": f"{args.loss_type}, KL weight {args.beta:g}",
            "learning rate": f"{args.learning_rate:g}",
            "rollouts per prompt": f"{args.num_generations}",
            "seed": f"{args.seed}",
        },
    )


def _short(number: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
