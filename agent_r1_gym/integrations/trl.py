"""TRL: these environments in its plain `GRPOTrainer`, through `rollout_func`.

    GRPOTrainer(
        model,
        rollout_func=make_rollout_func("AgentR1/HotpotQA-v0", tokenizer, dataset="train.json"),
        reward_funcs=episode_return,
        train_dataset=task_rows("AgentR1/HotpotQA-v0", dataset="train.json"),
    )

The project's engine plays each episode with the policy's current weights; TRL computes advantages and loss. TRL passes
nothing but prompts to a `rollout_func`, so each prompt of `task_rows` names its episode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agent_r1_gym.core.text import encodable, special_tokens
from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.integrations.base import library
from agent_r1_gym.registry import TextEnv, full_id, make_text_env
from agent_r1_gym.run import player
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.record import Tokens, Trajectory
from agent_r1_gym.run.token_session import TokenLimits
from agent_r1_gym.support.packages import local_engines

LogMetric = Callable[[str, float], None]
_ROW = re.compile(r"\[(?P<env>\S+)(?: task (?P<task>\d+),)? seed (?P<seed>\d+)\](?: (?P<question>.*))?", re.DOTALL)
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **{"min_p": (None, 0.0), "repetition_penalty": (None, 1.0), "generation_kwargs": (None, {})},
    **{"use_vllm": (False,), "use_transformers_continuous_batching": (False,), "cache_implementation": (None,)},
}
"""Settings of TRL's own generation, which a `rollout_func` replaces, and the values that request nothing."""


def task_rows(env_id: str, *, seeds: int | None = None, first_seed: int = 0, **options: Any) -> Any:
    """Build the data set for `make_rollout_func`.

    Each prompt names an episode: "[AgentR1/FictionQA-v0 task 3, seed 3] Who ...?". The model never sees this prompt; it
    sees the environment's own messages.

    Args:
        env_id: a registered text environment.
        seeds: number of rows for an environment without a task list; None: `player.TRAIN_SEEDS`.
        first_seed: seed of the first of these rows.
        **options: options of the environment, the same as for `make_rollout_func`.

    Raises:
        ConfigurationError: The environment does not exist or rejects the options.
    """
    library("trl", package="trl", tested_version="1.16")
    from datasets import Dataset

    env = make_text_env(env_id, options)
    name, has_tasks = full_id(env_id), isinstance(env.unwrapped, ToolEnv)
    rows = player.task_rows(env, seeds, first_seed=first_seed)
    env.close()
    if has_tasks:
        prompts = [f"[{name} task {row['task_index']}, seed {row['seed']}] {encodable(row['prompt'])}" for row in rows]
    else:
        prompts = [f"[{name} seed {row['seed']}]" for row in rows]
    return Dataset.from_list([{"prompt": prompt} for prompt in prompts])


def read_row(prompt: Any, env_id: str, env: TextEnv) -> dict[str, int]:
    """Parse a prompt of `task_rows` into `seed` and, for an environment with tasks, `task_index`.

    Args:
        prompt: prompt that TRL passed to the rollout function.
        env_id: id of the environment that is played.
        env: an instance of it.

    Raises:
        ConfigurationError: The prompt is not from `task_rows`, or names another environment or data set.
    """
    match = _ROW.fullmatch(prompt) if isinstance(prompt, str) else None
    if match is None:
        raise ConfigurationError(
            f"A prompt does not name an episode: {prompt!r:.200}. make_rollout_func gets nothing but prompts from TRL, "
            f"so its data sets must be task_rows({env_id!r}, ...), with the prompts unchanged."
        )
    if match["env"] != full_id(env_id):
        raise ConfigurationError(
            f"A row is of {match['env']}, but make_rollout_func plays {full_id(env_id)}: use its task_rows."
        )
    row = {"seed": int(match["seed"])}
    tasks: Sequence[Any] | None = env.unwrapped.tasks if isinstance(env.unwrapped, ToolEnv) else None
    if tasks is None and match["task"] is None:
        return row
    index = -1 if match["task"] is None else int(match["task"])
    if tasks is None or not 0 <= index < len(tasks) or encodable(tasks[index].prompt) != (match["question"] or ""):
        raise ConfigurationError(
            f"The row {prompt!r:.200} is of another data set than the one that is played. Pass task_rows and "
            "make_rollout_func the same options; options of evaluations (such as the split) go into eval_options={...}."
        )
    return {"task_index": index, **row}


def make_rollout_func(
    env_id: str,
    tokenizer: Any,
    *,
    max_turn_tokens: int = 512,
    max_prompt_tokens: int = 8_192,
    eval_options: Mapping[str, Any] | None = None,
    eval_temperature: float | None = None,
    infrastructure_retries: int = 2,
    **options: Any,
) -> RolloutFunc:
    """Build a `rollout_func` that plays the episodes of `task_rows`.

    The rest comes from TRL's configuration: `temperature`, `top_p`, `top_k`, `max_completion_length` (all tokens after
    the prompt, tool output included), `chat_template_kwargs`, `seed`.

    Args:
        env_id: a registered text environment, wrapped or not.
        tokenizer: the model's, with a chat template.
        max_turn_tokens: maximum number of tokens per turn of the model.
        max_prompt_tokens: maximum number of prompt tokens; longer prompts are refused.
        eval_options: options that differ in evaluations, such as `{"split": "validation"}`.
        eval_temperature: temperature of evaluations, 0 is greedy; None: the training temperature.
        infrastructure_retries: number of times an episode that lost its backend is played again.
        **options: options of the environment.

    Raises:
        ConfigurationError: The environment does not exist or rejects the options.
        MissingDependencyError: A package of the train extra is not installed.
    """
    library("trl", package="trl", tested_version="1.16")

    def collector(env_options: Mapping[str, Any]) -> Any:
        make = partial(make_text_env, env_id, env_options, markup=special_tokens(tokenizer))
        pool = Player(make, limits=TokenLimits(max_prompt_tokens, 0, max_contexts=2), policy=env_id)
        pool.release(make())  # reports wrong options now, not in the first step
        return local_engines().Collector(pool, retries=infrastructure_retries)

    training, evaluation = collector(options), collector({**options, **(eval_options or {})})
    return RolloutFunc(env_id, tokenizer, training, evaluation, max_turn_tokens, eval_temperature)


@dataclass
class RolloutFunc:
    """Plays the episodes of a batch of prompts; made by `make_rollout_func`.

    Attributes:
        training: collector of the training episodes.
        eval_collector: collector of the evaluation episodes.
    """

    env_id: str
    tokenizer: Any
    training: Any
    eval_collector: Any
    max_turn_tokens: int
    eval_temperature: float | None

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, list[Any]]:
        """Play one episode per prompt, in order; see TRL's `RolloutFunc`."""
        check_settings(trainer.args)
        training = bool(trainer.model.training)
        collector = self.training if training else self.eval_collector
        env = collector.player.acquire()
        rows = [read_row(prompt, self.env_id, env) for prompt in prompts]
        collector.player.release(env)
        engine = self._engine(trainer, collector.player, rows)
        with local_engines().rollout_precision(trainer.args, trainer.accelerator.unwrap_model(trainer.model)):
            records = collector.collect(rows, engine)
        trainer.model.train(training)  # TRL reads from this flag whether it trains or evaluates
        return rollout_columns(records, pad_token_id=self.tokenizer.eos_token_id, max_length=engine.max_length)

    def close(self) -> None:
        """Close the environments."""
        self.training.close()
        self.eval_collector.close()

    def _engine(self, trainer: Any, pool: Player, rows: Sequence[Mapping[str, int]]) -> Any:
        """Build the engine over the trainer's model, and set the pool's chat format and budgets."""
        model, training = trainer.accelerator.unwrap_model(trainer.model), bool(trainer.model.training)
        assert pool.limits is not None
        max_length = pool.limits.max_prompt_tokens + trainer.max_completion_length
        pool.limits = replace(pool.limits, max_completion_tokens=trainer.max_completion_length)
        pool.chat = pool.chat or local_engines().ChatFormat(
            self.tokenizer, template_options=trainer.chat_template_kwargs or None, more_stops=trainer.eos_token_ids
        )
        # Depends on step and rows: a resumed run samples other numbers than step 0, all evaluations the same ones.
        run_key = (trainer.args.seed, trainer.accelerator.process_index, trainer.state.global_step if training else -1)
        temperature = None if training else self.eval_temperature
        sampling = {
            "max_new_tokens": self.max_turn_tokens,
            "temperature": trainer.temperature if temperature is None else temperature,
            "top_p": trainer.top_p,
            "top_k": trainer.top_k or 0,
            "seed": hash((*run_key, *((row.get("task_index", 0), row["seed"]) for row in rows))),
        }
        length = min(max_length, getattr(model.config.get_text_config(), "max_position_embeddings", max_length))
        # The number of slots that fit a GPU is not estimated: the estimate reads options that only AgentTrainer has.
        slots = min(len(rows), local_engines().MAX_SLOTS)
        options = {"chat": pool.chat, "max_length": length, "slots": slots}
        return local_engines().wrap_model(model, self.tokenizer, sampling=sampling, **options).engine


def check_settings(args: Any) -> None:
    """Refuse settings of TRL that would have no effect, or another one than they say."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(args, name, neutral[0])
        if value not in neutral:
            raise ConfigurationError(
                f"{name}={value!r} has no effect with make_rollout_func, which samples by temperature, top_p and "
                "top_k alone; remove it."
            )
    if getattr(args, "mask_truncated_completions", False):
        raise ConfigurationError(
            "mask_truncated_completions=True goes by the last token of a completion, which says nothing about how its "
            "episode ended; remove it. To exclude truncated episodes, pass a reward function that takes the column "
            "`trajectory` and returns None where `truncated` is set."
        )


def rollout_columns(records: Sequence[Trajectory], *, pad_token_id: int, max_length: int) -> dict[str, list[Any]]:
    """Convert episodes to the columns that a `rollout_func` returns: tokens, log-probs, mask, and the records.

    Args:
        records: finished episodes with tokens.
        pad_token_id: replaces an empty list, which TRL cannot take; it is masked.
        max_length: context length of the model; later tokens, which the model never read, are cut.

    Raises:
        ConfigurationError: The context of an episode was rewritten.
    """
    batch: dict[str, list[Any]] = {"trajectory": list(records)}
    for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask"):
        batch[name] = []
    for record in records:
        tokens = _tokens_of(record)
        length = max(0, max_length - len(tokens.prompt_ids))
        # A lost episode is masked too: the None of `episode_return` does not help if another function scores it.
        counts = record.infrastructure_error is None
        batch["prompt_ids"].append(list(tokens.prompt_ids) or [pad_token_id])
        batch["completion_ids"].append(list(tokens.completion_ids[:length]) or [pad_token_id])
        batch["logprobs"].append([logprob or 0.0 for logprob in tokens.logprobs[:length]] or [0.0])
        batch["env_mask"].append([bit * counts for bit in tokens.loss_mask[:length]] or [0])
    return batch


def _tokens_of(record: Trajectory) -> Tokens:
    assert record.tokens is not None
    if record.tokens.context_starts:
        raise ConfigurationError(
            f"The context of task {record.task_index} (seed {record.seed}) was rewritten between two turns, by a "
            "window on the history or by a chat template that drops earlier thinking. TRL's loss would be computed on "
            "other tokens than the model read: keep the whole history, or train with `agent-r1 train`."
        )
    return record.tokens


def episode_return(
    trajectory: Sequence[Trajectory], log_metric: LogMetric | None = None, **_columns: Any
) -> list[float | None]:
    """Reward function for `make_rollout_func`: the return of each episode, None if a backend failed.

    TRL gives an episode whose only reward is None the advantage 0, and excludes it from the mean of its group.

    Args:
        trajectory: the episodes, a column of the rollouts; custom reward functions can take it too.
        log_metric: TRL's; gets means over the episodes that count, with the prefix "rollout/".
        **_columns: other columns that TRL passes to every reward function.
    """
    if log_metric is not None:
        for name, mean in _mean_metrics(trajectory).items():
            log_metric(f"rollout/{name}", mean)
    return [None if record.infrastructure_error else record.episode_return for record in trajectory]


def _mean_metrics(records: Sequence[Trajectory]) -> dict[str, float]:
    """Average each metric over the episodes that have it."""
    metrics: dict[str, list[float]] = {}
    for record in records:
        values = {"infra_failures": float(record.infrastructure_error is not None)}
        if record.infrastructure_error is None:
            values |= {**record.counts(), **record.scores, "truncated": float(record.truncated)}
            values |= {f"reward/{name}": value for name, value in record.reward_terms.items()}
        for name, value in values.items():
            metrics.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in metrics.items()}
