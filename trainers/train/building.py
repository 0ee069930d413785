"""From a configuration to a trainer: environment, rows, chat format, engine."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

from datasets import Dataset
from gymnasium.spaces import Text
from transformers import TrainerCallback
from trl import ModelConfig  # type: ignore[attr-defined]

import agent_r1_gym.envs  # noqa: F401  # registers the environments
from agent_r1_gym.core import ToolEnv
from agent_r1_gym.datasets.load import SampleDataWarning
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.play.engine import Engine
from agent_r1_gym.play.jobs import TRAIN_SEEDS, task_rows
from agent_r1_gym.play.player import Player
from agent_r1_gym.play.record import Trajectory
from agent_r1_gym.play.token_session import TokenLimits
from agent_r1_gym.registry import TextEnv, make_text_env
from agent_r1_gym.spaces import UnicodeText
from agent_r1_gym.wrappers import ContextWindow
from trainers.config import AgentConfig
from trainers.config.options import MAX_TURN_TOKENS
from trainers.engines.chat_format import ChatFormat
from trainers.engines.collect import Collector, Row
from trainers.engines.sampling import SamplingOptions
from trainers.engines.slots import SlotEngine
from trainers.engines.template_choice import read_template
from trainers.engines.turns import TRLEngine
from trainers.running.preflight import check_prompts
from trainers.running.sharding import check_sharding, whole_weights
from trainers.running.summary import agent_card
from trainers.trainer import AgentTrainer

MOST_SLOTS = 128
"""Episodes that decode side by side on one device; more wait for a free slot."""


def build_trainer(
    args: AgentConfig,
    model: Any,
    *,
    tokenizer: Any,
    chat: ChatFormat | None = None,
    peft_config: Any = None,
    **trl_arguments: Any,
) -> AgentTrainer:
    """Returns a trainer on the environment that `args` names.

    Args:
        args: the configuration.
        model: a hub id, a local path, or a loaded model.
        tokenizer: the model's, with a chat template.
        chat: how messages become tokens, saved beside the model; None: as `args` and the tokenizer say.
        peft_config: trains an adapter.
        **trl_arguments: `callbacks`, `quantization_config`, as TRL takes them.

    Raises:
        ConfigurationError: an option does not fit; the message names it and what to change.
    """
    chat = chat or chat_of(args, tokenizer)
    training = collector_of(args, tokenizer, chat=chat)
    eval_dataset, evaluating = None, training
    if _evaluates(args):
        evaluating = collector_of(args, tokenizer, chat=chat, evaluating=True)
        env = evaluating.player.make_env()
        eval_dataset = eval_dataset_of(env, args)
        check_prompts(env, eval_dataset, chat, longest=args.max_prompt_length)

    def collect(rows: Sequence[Row], trainer: AgentTrainer) -> list[Trajectory]:
        collector = training if trainer.model.training else evaluating
        with whole_weights(trainer) if args.engine == "cached" else nullcontext():
            return collector.collect(rows, engine_of(trainer, chat, slots=min(len(rows), MOST_SLOTS)))

    env = training.player.make_env()
    if args.max_turn_tokens is None:
        args.max_turn_tokens = turn_budget(env)
    rows = dataset_of(env, args.train_seeds)
    check_prompts(env, rows, chat, longest=args.max_prompt_length)
    trainer = AgentTrainer(
        model,
        args,
        collect=collect,
        train_dataset=rows,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        chat=chat,
        card=agent_card(args, _base(args, model), env),
        peft_config=peft_config,
        callbacks=[_CloseEnvironments(training, evaluating)],
        **trl_arguments,
    )
    if args.engine == "cached":
        check_sharding(trainer)
    return trainer


def _base(args: AgentConfig, model: Any) -> str:
    """Returns what is trained, as people know it."""
    path = model if isinstance(model, str) else getattr(getattr(model, "config", None), "_name_or_path", "")
    return args.warm_start or path or "a given model"


def chat_of(args: AgentConfig, tokenizer: Any) -> ChatFormat:
    """Returns the chat format that `args` names, for a tokenizer without a saved one."""
    source = None if args.chat_template is None else read_template(args.chat_template)
    options = cast("Mapping[str, Any] | None", args.chat_template_kwargs)
    return ChatFormat(tokenizer, template=source, template_options=options)


def collector_of(
    args: AgentConfig, tokenizer: Any, *, chat: ChatFormat | None = None, evaluating: bool = False
) -> Collector:
    """Makes a collector for the environment that `args` names, or for that of its evaluations.

    Raises:
        ConfigurationError: an option does not fit; the message names it and what to change.
    """
    limits = TokenLimits(
        max_prompt_tokens=args.max_prompt_length,
        max_completion_tokens=args.max_completion_length,
        max_contexts=args.max_contexts,
    )
    chat = chat or chat_of(args, tokenizer)
    make_env = env_maker(args, chat.markup, evaluating=evaluating)
    player = Player(make_env, chat=chat, limits=limits, policy=args.env_id or "")
    return Collector(player, retries=args.infrastructure_retries)


class _CloseEnvironments(TrainerCallback):
    """Closes the environments at the end of a run; another run makes new ones."""

    def __init__(self, *collectors: Collector) -> None:
        self._collectors = collectors

    def on_train_end(self, *_arguments: Any, **_others: Any) -> None:
        for collector in self._collectors:
            collector.close()


def _evaluates(args: AgentConfig) -> bool:
    wanted = args.do_eval or args.eval_on_start
    if wanted and args.eval_env_kwargs is None:
        raise ConfigurationError(
            "An evaluation is asked for, but eval_env_kwargs is not given: name what differs from env_kwargs, such as "
            '{"split": "validation"}; {} evaluates on the training tasks.'
        )
    if args.eval_env_kwargs is not None and not wanted:
        raise ConfigurationError(
            "eval_env_kwargs has no effect without an evaluation: set eval_strategy (steps, with eval_steps, or epoch)."
        )
    return wanted


def env_maker(args: AgentConfig, markup: Sequence[str], *, evaluating: bool = False) -> Callable[[], TextEnv]:
    """Returns a function that makes an environment; makes one to check it, before the first long step.

    Args:
        args: the configuration, which names the environment.
        markup: what a document prints must not become: the special tokens of the tokenizer.
        evaluating: the environment of evaluations: `eval_env_kwargs` over `env_kwargs`.

    Raises:
        ConfigurationError: no such environment, not a text environment, or sample data that nobody chose.
    """
    if args.env_id is None:
        raise ConfigurationError(
            "env_id is not given: name a registered text environment, such as AgentR1/HotpotQA-v0."
        )
    options: dict[str, Any] = {}
    for name in ("env_kwargs", "eval_env_kwargs") if evaluating else ("env_kwargs",):
        chosen = getattr(args, name)
        if chosen is not None and not isinstance(chosen, Mapping):
            raise ConfigurationError(f"{name} must be a JSON object, got {chosen!r:.80}.")
        options |= chosen or {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SampleDataWarning)
        env = make_text_env(args.env_id, options).unwrapped
    if args.context_window is not None and not isinstance(env, ToolEnv):
        raise ConfigurationError(
            f"context_window={args.context_window}: env_id={args.env_id!r} is no ToolEnv, whose tool output could be "
            'removed. Leave it unset; an environment of another kind says info["context_rewritten"] itself.'
        )
    if getattr(getattr(env, "tasks", None), "is_sample", False) and options.get("dataset") != "sample":
        raise ConfigurationError(
            f"env_id={args.env_id!r} would serve the bundled fictional sample. Prepare real data (`agent-r1 prepare`), "
            'set dataset in env_kwargs to a path, or say so with env_kwargs {"dataset": "sample"}.'
        )
    split = getattr(getattr(env, "tasks", None), "split", "train")
    if not evaluating and "split" not in options and split in ("validation", "test"):
        raise ConfigurationError(
            f"env_id={args.env_id!r} serves the split {split!r} only, which is not for training; name it "
            f"(--split {split}) if you mean it."
        )
    return functools.partial(_make, args.env_id, options, tuple(markup), args.context_window)


def _make(env_id: str, options: Mapping[str, Any], markup: Sequence[str], context_window: int | None) -> TextEnv:
    env = make_text_env(env_id, options, markup=markup)
    return env if context_window is None else ContextWindow(env, keep_last=context_window)


def turn_budget(env: TextEnv) -> int:
    """Returns how many tokens a turn may have where nobody says it: enough for every action that the environment takes.

    A token stands for one byte at least, so an action needs no more tokens than bytes, and one that ends the turn. An
    untrained model rarely ends a turn: with a larger budget most of a first step would be spent on text that the
    environment refuses.
    """
    space = env.action_space
    if not isinstance(space, Text):
        return MAX_TURN_TOKENS
    alphabet = () if isinstance(space, UnicodeText) else space.character_set
    widest = max((len(character.encode("utf-8", "surrogatepass")) for character in alphabet), default=4)
    return min(MAX_TURN_TOKENS, space.max_length * widest + 1)


def dataset_of(env: TextEnv, seeds: int | None = None, *, first_seed: int = 0) -> Dataset:
    """Returns one row per task: what a session resets with, and a prompt for TRL's logs.

    Args:
        env: the environment.
        seeds: number of rows, if it has no list of tasks; None: `TRAIN_SEEDS`.
        first_seed: where the seeds begin then.

    Raises:
        ConfigurationError: `seeds` has no effect beside a list of tasks.
    """
    return Dataset.from_list(task_rows(env, seeds, first_seed=first_seed))


def eval_dataset_of(env: TextEnv, args: AgentConfig) -> Dataset:
    """Returns the first tasks (or seeds that training does not use) for `eval_episodes`, in whole batches.

    TRL averages the means of batches: one that is not full would count too much.

    Raises:
        ConfigurationError: they do not fill one batch.
    """
    rows = dataset_of(env, first_seed=args.train_seeds or TRAIN_SEEDS)
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


def engine_of(trainer: AgentTrainer, chat: ChatFormat, *, slots: int) -> Engine:
    """Returns the engine that `args.engine` names, over the trainer's model as it is now."""
    args = trainer.args
    if args.engine == "trl":
        max_length = args.max_prompt_length + args.max_completion_length
        return TRLEngine(
            trainer,
            max_new_tokens=args.max_turn_tokens or MAX_TURN_TOKENS,
            max_length=max_length,
            stop_token_ids=chat.stop_ids,
        )
    training = trainer.model.training
    temperature = None if training else args.eval_temperature
    # A seed of its own for every batch and process, so that a resumed run samples as if never stopped.
    batch = (trainer.batches,) if training else (trainer.evaluated, 0)
    seed = hash((args.seed, *batch, trainer.accelerator.process_index))
    model = trainer.accelerator.unwrap_model(trainer.model)
    return slot_engine(args, model, chat, slots=slots, seed=seed, temperature=temperature)


def slot_engine(
    args: AgentConfig, model: Any, chat: ChatFormat, *, slots: int, seed: int, temperature: float | None = None
) -> SlotEngine:
    """Returns the engine with the kept cache, sampling as `args` says, or at another temperature."""
    options = SamplingOptions(
        max_new_tokens=args.max_turn_tokens or MAX_TURN_TOKENS,
        temperature=args.temperature if temperature is None else temperature,
        top_p=args.top_p,
        top_k=args.top_k or 0,
        stop_token_ids=chat.stop_ids,
    )
    max_length = args.max_prompt_length + args.max_completion_length
    room = getattr(model.config, "max_position_embeddings", max_length)
    engine = SlotEngine(model, options, slots=slots, max_length=min(max_length, room))
    engine.generator.manual_seed(seed)
    return engine


def model_init_kwargs(args: Any, model_args: ModelConfig) -> dict[str, Any]:
    """Returns how to load the model: TRL's options for it, over which `model_init_kwargs` wins."""
    chosen = {"revision": model_args.model_revision, "dtype": model_args.dtype}
    if model_args.attn_implementation is not None:
        chosen["attn_implementation"] = model_args.attn_implementation
    return {**chosen, **(args.model_init_kwargs or {})}
