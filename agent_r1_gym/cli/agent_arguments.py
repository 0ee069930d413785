"""What `chat` and `serve agent` share: the options that name an agent and its world, and opening it."""

from __future__ import annotations

import argparse

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.gateway.env import AGENT_OPTIONS
from agent_r1_gym.registry import full_id, make_text_env
from agent_r1_gym.run.agents import (
    POLICY_HELP,
    AgentSpec,
    add_model_arguments,
    check_policy,
    make_runner,
    model_options,
    split_policy,
)
from agent_r1_gym.run.conversation import EngineWorker, require_tool_env
from agent_r1_gym.run.env_options import ENV_HELP, add_env_options, env_options, trust_from_options
from agent_r1_gym.run.evaluation.agent_card import FILE
from agent_r1_gym.run.trained_agent import MODEL_HELP, TrainedAgent
from agent_r1_gym.support.terminal import still_working


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add RUN_OR_MODEL, and --policy in its place."""
    parser.add_argument("model", nargs="?", metavar="RUN_OR_MODEL", help=MODEL_HELP)
    parser.add_argument("--policy", help=f"instead of RUN_OR_MODEL: {POLICY_HELP}")


def add_agent_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name an agent, and the environment and task that it acts in."""
    add_model_argument(parser)
    parser.add_argument("--env", metavar="ENV", help=f"{ENV_HELP} (default: that of {FILE})")
    parser.add_argument(
        "--task",
        default=0,
        metavar="N|ID",
        help="task in whose world the tools act, by id or position (default: the first of the set)",
    )
    add_env_options(parser)
    add_model_arguments(parser)


def agent_from_options(options: argparse.Namespace) -> TrainedAgent:
    """Load the agent that RUN_OR_MODEL or `--policy` names, and set `policy` and `max_turn_tokens` of the options.

    Raises:
        ConfigurationError: no agent is named, or two are; or the folder holds no model.
    """
    if (options.model is None) == (options.policy is None):
        raise ConfigurationError("Name the agent: RUN_OR_MODEL, or --policy; one of the two.")
    trust = trust_from_options(options)
    if options.model is None:
        agent = TrainedAgent.of_policy(options.policy, trust)
    else:
        agent = TrainedAgent.load(options.model, trust)
        options.policy = agent.policy
    options.max_turn_tokens = agent.max_turn_tokens(options.max_turn_tokens)
    return agent


def agent_spec_from_options(options: argparse.Namespace, *, max_concurrent: int) -> AgentSpec:
    """Return the agent and its environment, checked as far as possible without loading a model.

    Args:
        options: the parsed command line; its `policy` and `max_turn_tokens` are set.
        max_concurrent: conversations at once.

    Raises:
        ConfigurationError: no agent, several, or one that cannot hold a conversation is named, or no environment.
    """
    agent = agent_from_options(options)
    method, _, _ = split_policy(options.policy)
    if method is not None and method.single_turn:
        raise ConfigurationError(f"--policy {options.policy}: this method lets the model speak once; drop it.")
    if options.reward:
        raise ConfigurationError("--reward has no effect on a conversation, which is not scored; drop it.")
    env_config = agent.env_config(options.env, env_options(options), drop=AGENT_OPTIONS)
    with still_working(f"making {env_config.env_id}"):
        env = make_text_env(env_config.env_id, env_config.options)
    require_tool_env(env)
    check_policy(options.policy, env)
    env.close()
    return AgentSpec(
        env=full_id(env_config.env_id),
        env_options=dict(env_config.options),
        policy=options.policy,
        model=model_options(options),
        max_concurrent=max_concurrent,
    )


def open_engine_worker(spec: AgentSpec) -> EngineWorker:
    """Load the agent's model and return the worker that plays it."""
    return EngineWorker(*make_runner(spec, 0))
