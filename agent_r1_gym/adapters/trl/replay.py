"""The `environment_factory` of TRL's `GRPOTrainer`, by replay.

TRL's loop knows no turns: it calls methods, several for one model turn, and never shows an environment the answer. So a
method only carries its call out and keeps what it brought back. When the conversation is over, the reward function
plays it through the environment turn by turn, with the kept outcomes: every reward is what the environment itself says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from agent_r1_gym.adapters.base import library
from agent_r1_gym.adapters.episode import Episode
from agent_r1_gym.adapters.trl.environment import Environment, Messages, environment_class
from agent_r1_gym.adapters.trl.returns import LogMetric, episode_return
from agent_r1_gym.adapters.trl.toolsets import describe_tools, tools_belong_to_tasks
from agent_r1_gym.play.jobs import task_rows
from agent_r1_gym.registry import make_text_env
from agent_r1_gym.text import special_tokens


def environment_factory(env_id: str, tokenizer: Any, **options: Any) -> Any:
    """Returns an `environment_factory` for the rows of `conversation_rows`.

    Args:
        env_id: a registered environment with tools, wrapped or not.
        tokenizer: the model's; no tool output may turn into one of its special tokens.
        **options: options of the environment.

    Returns:
        A class; where tasks have different tools, a dictionary with one for every set of tools.

    Raises:
        ConfigurationError: no such environment, options that do not fit it, no tools, or tools that TRL cannot call.
    """
    library("trl", package="trl", tested="1.16")
    make = partial(make_text_env, env_id, options, markup=special_tokens(tokenizer))
    env = make()
    if not tools_belong_to_tasks(env):
        return environment_class(make, env)
    classes: dict[str, type[Environment]] = {}
    for row in task_rows(env):
        bare = Episode(env, task_index=row["task_index"], seed=row["seed"]).tool_env
        assert bare is not None
        if describe_tools(bare.episode_tools) not in classes:
            classes[describe_tools(bare.episode_tools)] = environment_class(make, env)
    return classes if len(classes) > 1 else next(iter(classes.values()))


def replayed_return(
    completions: Sequence[Messages],
    environments: Sequence[Environment],
    log_metric: LogMetric | None = None,
    **_columns: Any,
) -> list[float | None]:
    """Reward function for `environment_factory`: what the environment pays for each conversation, see `episode_return`.

    Args:
        completions: what was said after the prompts.
        environments: who called the tools.
        log_metric: TRL's.
        **_columns: what else TRL hands to every reward function.
    """
    pairs = zip(completions, environments, strict=True)
    return episode_return([environment._replay(said) for said, environment in pairs], log_metric)
