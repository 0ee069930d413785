"""EvalPlan: what an evaluation plays (agent, environment, questions), checked before the first episode."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import TextEnv, full_id, short_id
from agent_r1_gym.run.agents import MAX_LENGTH, AgentSpec, check_policy, make_runner, run_settings, split_policy
from agent_r1_gym.run.evaluation.conversations import find_tasks
from agent_r1_gym.run.evaluation.evaluate import PATIENCE, evaluate, evaluate_shard
from agent_r1_gym.run.evaluation.metrics import Summary
from agent_r1_gym.run.evaluation.run_folder import RunFolder, Shard
from agent_r1_gym.run.mixture import EnvConfig
from agent_r1_gym.run.player import evaluation_jobs, held_out_env
from agent_r1_gym.run.policies import ReplayPolicy, make_policy
from agent_r1_gym.run.trust import remember
from agent_r1_gym.support.terminal import print_note

DEFAULT_NUM_SEEDS = 100
"""Default number of questions in an environment without a list of tasks."""


@dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """How a plan is played.

    Raises:
        ConfigurationError: a number is too small.
    """

    samples: int = 1
    """Episodes per question."""
    seed: int = 0
    """Seed of the sampling and of the environments."""
    max_concurrent: int = 64
    """Episodes at once, per process."""
    processes: int = 1
    """Processes that share the questions."""
    retries: int = 1
    """Further attempts for an episode whose backend failed."""
    patience: float = PATIENCE
    """See `evaluate.PATIENCE`."""
    shard: Shard | None = None
    """The part of the questions to play; None: all."""

    def __post_init__(self) -> None:
        minimum = {"samples": 1, "processes": 1, "max_concurrent": 1, "retries": 0, "patience": 0}
        for name, limit in minimum.items():
            if getattr(self, name) < limit:
                raise ConfigurationError(
                    f"--{name.replace('_', '-')} must be at least {limit}, got {getattr(self, name)}."
                )


class EvalPlan(NamedTuple):
    """An agent, an environment, and the questions to play."""

    spec: AgentSpec
    env: TextEnv
    indices: list[int]


def make_plan(
    env_config: EnvConfig,
    policy: str,
    model: Mapping[str, Any],
    *,
    questions: int | None,
    options: EvalOptions,
    clip: bool = False,
) -> EvalPlan:
    """Open the environment on its held-out split, checks that the policy can play it, and select the questions.

    Args:
        env_config: the environment and its options.
        policy: as `--policy` takes it.
        model: options of the model (see `agents.model_options`).
        questions: number of questions; None: all, or `DEFAULT_NUM_SEEDS` where there is no list of tasks.
        options: how it will be played.
        clip: play all questions where there are fewer than `questions`.

    Raises:
        ConfigurationError: the policy cannot play there, or there are not that many questions.
    """
    env, chosen, fallback_reason = held_out_env(env_config.env_id, env_config.options)
    if fallback_reason:
        print_note(f"these are training questions: {fallback_reason}")
    spec = AgentSpec(
        env=full_id(env_config.env_id),
        env_options=chosen,
        policy=policy,
        model=model,
        max_concurrent=options.max_concurrent,
    )
    check_policy(policy, env)
    available = _available_questions(env, policy, questions)
    if questions is None or (clip and questions >= 1):
        questions = min(questions or len(available), len(available))
    if not 1 <= questions <= len(available):
        raise ConfigurationError(f"-n must be between 1 and the number of tasks, {len(available)}; got {questions}.")
    _warn_of_surprises(spec, env, options)
    return EvalPlan(spec, env, list(available[:questions]))


def play(plan: EvalPlan, path: Path, *, options: EvalOptions, name: str) -> tuple[RunFolder, Summary]:
    """Play a plan, or one shard of it, and return the run folder and its summary.

    Args:
        plan: what to play.
        path: folder of the run.
        options: how to play it.
        name: label of the progress bar.
    """
    spec, env, indices = plan
    bare, url = env.unwrapped, spec.model.get("base_url")
    has_tasks, metadata = False, {}
    if isinstance(bare, ToolEnv):
        has_tasks, metadata = True, {"reward_weights": bare.reward_weights, "max_turns": bare.max_turns}
    arguments: dict[str, Any] = {
        "settings": run_settings(spec, env, indices, samples=options.samples, seed=options.seed),
        "jobs": evaluation_jobs(indices, samples=options.samples, seed=options.seed, has_tasks=has_tasks),
        "samples": options.samples,
        "processes": options.processes,
        "retries": options.retries,
        "patience": options.patience,
        "name": name,
        "max_tokens": _max_tokens(spec, env),
        "start_metadata": metadata | ({} if url is None else {"base_url": url}),
    }
    folder, runner = RunFolder(path), functools.partial(make_runner, spec)
    remember(path, [EnvConfig(env_id=spec.env, options=spec.env_options)])
    if options.shard is not None:
        return evaluate_shard(folder, runner, shard=options.shard, **arguments)
    return folder, evaluate(folder, runner, **arguments)


def _max_tokens(spec: AgentSpec, env: TextEnv) -> int | None:
    """Maximum number of tokens that a local model samples in an episode; None for other policies."""
    method, kind, _ = split_policy(spec.policy)
    if method is None or kind != "local":
        return None
    bare, budget = env.unwrapped, int(spec.model["max_turn_tokens"])
    turns = 1 if method.single_turn else getattr(bare, "max_turns", None)
    longest = spec.model["max_length"] or MAX_LENGTH
    return min(longest, turns * budget) if turns else longest


def default_folder(spec: AgentSpec, command: str) -> Path:
    """Return a new folder in `runs`, named after the command, the environment and the policy."""
    name = "-".join(part for part in spec.policy.replace("/", "-").split(":") if part)
    return Path("runs") / f"{command}-{short_id(spec.env)}-{name[-60:].strip('-.')}-{time.strftime('%Y%m%d-%H%M%S')}"


def _available_questions(env: TextEnv, policy: str, questions: int | None) -> Sequence[int]:
    """Return the task indices that can be asked: of a replay those of the recorded run.

    Raises:
        ConfigurationError: a recorded run holds a task that the environment does not have.
    """
    bare = env.unwrapped
    tasks = len(bare.tasks) if isinstance(bare, ToolEnv) else None
    replayed = make_policy(policy) if policy.startswith("replay:") else None
    if isinstance(replayed, ReplayPolicy) and replayed.task_indices is None:
        if not isinstance(bare, ToolEnv):
            raise ConfigurationError(
                f"{policy} is a file of conversations, and this environment has no tasks to match."
            )
        indices = sorted({task for task in find_tasks(replayed.conversations, bare) if task is not None})
        if not indices:
            raise ConfigurationError(
                f"{policy}: none of its conversations is about one of the {len(bare.tasks)} tasks of "
                f"{bare.describe_dataset()}. The user message before their first turn must be the task; try another "
                "--split or --dataset."
            )
        return indices
    if isinstance(replayed, ReplayPolicy) and replayed.task_indices is not None:
        available = sorted(set(replayed.task_indices))
        unknown = next((index for index in available if index < 0 or (tasks is not None and index >= tasks)), None)
        if unknown is not None:
            raise ConfigurationError(
                f"{policy} holds task number {unknown}, but the environment has {tasks} tasks; replay the same data."
            )
        return available
    if tasks is not None:
        return range(tasks)
    return range(DEFAULT_NUM_SEEDS if questions is None else max(questions, 1))


def _warn_of_surprises(spec: AgentSpec, env: TextEnv, options: EvalOptions) -> None:
    """Warn of training questions, and of several samples of a greedy model."""
    if getattr(getattr(env.unwrapped, "tasks", None), "split", None) == "train":
        print_note("these are training questions (split 'train'); an agent may know them from its training.")
    greedy = spec.model.get("temperature") == 0 and "temperature" not in spec.model.get("extra_body", {})
    if options.samples > 1 and greedy:
        print_note(
            f"WARNING: --samples {options.samples}, but temperature 0 gives the same answer every time; pass "
            "--temperature 1."
        )
