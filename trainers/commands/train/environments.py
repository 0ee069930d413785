"""The environments of a run, one or a mixture: made and checked, and the rows that are played in them."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from datasets import Dataset
from gymnasium.spaces import Text

import agent_r1_gym.envs  # noqa: F401  # registers the environments
from agent_r1_gym.core.spaces import UnicodeText
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.data.load import SampleDataWarning
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import TextEnv, make_text_env
from agent_r1_gym.run.mixture import EnvConfig, interleaved_order
from agent_r1_gym.run.player import TRAIN_SEEDS, task_rows
from agent_r1_gym.support.terminal import still_working
from trainers.config.agent import AgentConfig
from trainers.config.options import MAX_TURN_TOKENS

_FEW = 4
"""Rollouts of an environment per batch below which a warning comes, where each prompt has one."""

logger = logging.getLogger(__name__)


def wants_evaluation(args: AgentConfig, envs: Mapping[str, TextEnv]) -> bool:
    """Return whether a run evaluates while it trains.

    Args:
        args: the configuration.
        envs: the environments of the run, by name; one without a list of tasks is evaluated on seeds that training does
            not use.

    Raises:
        ConfigurationError: it should but no tasks are given, or the other way round.
    """
    wanted = args.do_eval or args.eval_on_start
    for member, env in zip(args.environments, envs.values(), strict=True):
        several = len(envs) > 1
        if wanted and member.eval_options is None and isinstance(env.unwrapped, ToolEnv):
            whose, how = (f" of {member.name}", "the word eval") if several else ("", "{}")
            raise ConfigurationError(
                f"An evaluation is requested, but eval_env_kwargs{whose} is not given: name what differs from "
                f'env_kwargs, such as {{"split": "validation"}}; {how} evaluates on the training tasks.'
            )
        if member.eval_options is not None and not wanted:
            raise ConfigurationError(
                "eval_env_kwargs has no effect without an evaluation: set eval_strategy (steps, with eval_steps, or "
                "epoch)."
            )
    return wanted


def check_training_split(env_id: str, env: Any, options: Mapping[str, Any]) -> None:
    """Reject to train on a held-out split that no option names, such as that of data with nothing else.

    Raises:
        ConfigurationError: the environment serves such a split.
    """
    split = getattr(getattr(env.unwrapped, "tasks", None), "split", "train")
    if "split" not in options and split in ("validation", "test"):
        raise ConfigurationError(
            f"env_id={env_id!r} serves the split {split!r} only, which is not for training; name it "
            f"(--split {split}) if you mean it."
        )


def env_makers(
    args: AgentConfig, markup: Sequence[str], *, evaluating: bool = False
) -> dict[str, Callable[[], TextEnv]]:
    """Return a function for each environment of a run, by name (see `env_maker`)."""
    return {member.name: env_maker(args, markup, evaluating=evaluating, member=member) for member in args.environments}


def env_maker(
    args: AgentConfig, markup: Sequence[str], *, evaluating: bool = False, member: EnvConfig | None = None
) -> Callable[[], TextEnv]:
    """Make one environment to check its options, and return a function that makes more.

    Args:
        args: the configuration.
        markup: what a document prints must not become: the special tokens of the tokenizer.
        evaluating: the environment of evaluations: `eval_env_kwargs` over `env_kwargs`.
        member: which environment of the run; None: the first one.

    Raises:
        ConfigurationError: no such environment, not a text environment, or sample data that was not chosen.
    """
    member = member or args.environments[0]
    env_id, options = member.env_id, {**member.options, **((member.eval_options or {}) if evaluating else {})}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SampleDataWarning)
        with still_working(f"making {env_id}"):
            tried = make_text_env(env_id, options)
    env = tried.unwrapped
    tried.close()
    if getattr(getattr(env, "tasks", None), "is_sample", False) and options.get("dataset") != "sample":
        raise ConfigurationError(
            f"env_id={env_id!r} would serve the bundled fictional sample. Prepare real data (`agent-r1 data prepare`), "
            'set dataset in env_kwargs to a path, or choose it with env_kwargs {"dataset": "sample"}.'
        )
    if not evaluating:
        check_training_split(env_id, env, options)
    return functools.partial(make_text_env, env_id, options, markup=tuple(markup))


def default_turn_tokens(env: TextEnv, *, longest: int = MAX_TURN_TOKENS) -> int:
    """Default maximum number of tokens of a turn: enough for every action that an environment takes, at most `longest`.

    A token stands for one byte at least, so an action needs no more tokens than bytes, and one that ends the turn. An
    untrained model rarely ends a turn: with a larger budget most of a first step would be spent on text that the
    environment refuses.
    """
    space = env.action_space
    if not isinstance(space, Text):
        return longest
    alphabet = () if isinstance(space, UnicodeText) else space.character_set
    widest = max((len(character.encode("utf-8", "surrogatepass")) for character in alphabet), default=4)
    return min(longest, space.max_length * widest + 1)


def task_dataset(env: TextEnv, seeds: int | None = None, *, first_seed: int = 0) -> Dataset:
    """Return one row per task, see `run.player.task_rows`."""
    return Dataset.from_list(task_rows(env, seeds, first_seed=first_seed))


def training_rows(envs: Mapping[str, TextEnv], args: AgentConfig) -> dict[str, Dataset]:
    """Return the rows of each environment of a run, by its name.

    Raises:
        ConfigurationError: see `task_dataset`; in a mixture, `num_train_seeds` has no effect on any of them.
    """
    if len(envs) == 1:
        return {name: task_dataset(env, args.num_train_seeds) for name, env in envs.items()}
    have_tasks = {name: isinstance(env.unwrapped, ToolEnv) for name, env in envs.items()}
    if args.num_train_seeds is not None and all(have_tasks.values()):
        raise ConfigurationError(
            f"num_train_seeds={args.num_train_seeds} has no effect: all environments of the mixture have lists of "
            f"tasks."
        )
    return {name: task_dataset(env, None if have_tasks[name] else args.num_train_seeds) for name, env in envs.items()}


def warn_of_small_shares(args: AgentConfig) -> None:
    """Warn of environments of which a batch holds hardly a rollout, where rollouts are compared within the batch."""
    members = args.environments
    if len(members) == 1 or args.num_generations > 1:
        return
    batch, whole = int(args.generation_batch_size or 0), sum(member.weight for member in members)
    for member in members:
        number = batch * member.weight / whole
        if number < _FEW:
            logger.warning(
                "%s has about %.2g of the %d rollouts of a batch, too few to be compared with each other: with "
                "num_generations=1 it learns little but noise. Raise its weight, the batch, or num_generations.",
                member.name,
                number,
                batch,
            )


def mix_datasets(parts: Mapping[str, Dataset], args: AgentConfig) -> Dataset:
    """Interleave the rows of all environments of a run in one data set, each with the name of its environment as `env`.

    Args:
        parts: the rows, by name; those of a single environment stay as they are.
        args: its weights decide how often each row comes.
    """
    if len(parts) == 1:
        return next(iter(parts.values()))
    fields = ("prompt", "seed", "task_index")
    named = ((name, row) for name, part in parts.items() for row in part)
    rows = [{"env": name, **{field: row.get(field) for field in fields}} for name, row in named]
    weights = {member.name: member.weight for member in args.environments}
    order = interleaved_order([len(part) for part in parts.values()], [weights[name] for name in parts])
    return Dataset.from_list(rows).select(order)


def eval_rows(envs: Mapping[str, TextEnv], args: AgentConfig) -> Dataset:
    """Return the first tasks (or seeds that training does not use) for `eval_episodes`, in whole batches.

    TRL averages the means of batches: one that is not full would count too much. Of a mixture each environment has its
    share, and as many rows are taken as there are without one that comes twice.

    Raises:
        ConfigurationError: they do not fill one batch.
    """
    parts = {name: task_dataset(env, first_seed=args.num_train_seeds or TRAIN_SEEDS) for name, env in envs.items()}
    rows = mix_datasets(parts, args)
    if len(parts) > 1:
        seen: dict[tuple[Any, ...], int] = {}
        for position, row in enumerate(rows):
            if seen.setdefault((row["env"], row["task_index"], row["seed"]), position) != position:
                rows = rows.select(range(position))
                break
    copies = args.num_generations_eval or 1
    episodes = min(len(rows) * copies, args.eval_episodes)
    batch = args.per_device_eval_batch_size * args.world_size
    if episodes < batch:
        raise ConfigurationError(
            f"An evaluation of {episodes} episodes (eval_episodes={args.eval_episodes}; {len(rows)} tasks x "
            f"num_generations_eval={copies}) does not fill one batch of {batch} (per_device_eval_batch_size="
            f"{args.per_device_eval_batch_size} x {args.world_size} processes): lower per_device_eval_batch_size."
        )
    return rows.select(range(episodes // batch * batch // copies))
