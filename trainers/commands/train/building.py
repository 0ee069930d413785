"""From a configuration to a trainer: environments, rows, chat format, engine."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from datasets import Dataset
from transformers import AutoConfig, TrainerCallback
from trl import ModelConfig  # type: ignore[attr-defined]

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.run.group_rewards import make_group_reward
from agent_r1_gym.run.player import Player
from agent_r1_gym.run.token_session import TokenLimits
from trainers.algorithms.privileged import PrivilegedContext
from trainers.commands.train.environments import (
    default_turn_tokens,
    env_makers,
    eval_rows,
    mix_datasets,
    training_rows,
    wants_evaluation,
    warn_of_small_shares,
)
from trainers.commands.train.rollouts import RolloutRunner
from trainers.config.agent import AgentConfig
from trainers.config.options import MAX_TURN_TOKENS, MAX_TURN_TOKENS_ON_CPU
from trainers.monitoring.defaults import settle_budgets, settle_defaults
from trainers.monitoring.memory import MemoryCheck, max_context_length, shards_weights
from trainers.monitoring.preflight import check_budgets, check_prompts, warn_if_tokenizer_breaks_format
from trainers.monitoring.provenance import agent_card
from trainers.resume import checkpoints
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.chat_template import read_template
from trainers.rollouts.collect import Collector, Row
from trainers.rollouts.request_engine import SyncedBackend
from trainers.rollouts.vllm_backend import VLLMBackend, VLLMOptions, adapter_rank, check_whole
from trainers.rollouts.vllm_client import VLLMServerBackend, VLLMServerOptions
from trainers.trainer import AgentTrainer


def build_trainer(
    args: AgentConfig,
    model: Any,
    *,
    tokenizer: Any,
    chat: ChatFormat | None = None,
    peft_config: Any = None,
    **trl_arguments: Any,
) -> AgentTrainer:
    """Build a trainer on the environments of `args`.

    Args:
        args: the configuration.
        model: a hub id, a local path, or a loaded model.
        tokenizer: the model's, with a chat template.
        chat: how messages become tokens, saved with the model; None: from `args` and the tokenizer.
        peft_config: trains an adapter.
        **trl_arguments: `callbacks`, `quantization_config`, as TRL takes them.

    Raises:
        ConfigurationError: an option does not fit; the message names it and what to change.
    """
    settle_budgets(args, model)
    chat = chat or build_chat_format(args, tokenizer)
    training = build_collector(args, tokenizer, chat=chat)
    envs = _open_envs(training)
    eval_dataset, evaluating = None, training
    if wants_evaluation(args, envs):
        evaluating = build_collector(args, tokenizer, chat=chat, evaluating=True)
        held_out = _open_envs(evaluating)
        eval_dataset = eval_rows(held_out, args)
        _check_prompts(held_out, eval_dataset, chat, args)

    if args.max_turn_tokens is None:
        longest = MAX_TURN_TOKENS_ON_CPU if args.device.type == "cpu" else MAX_TURN_TOKENS
        args.max_turn_tokens = max(default_turn_tokens(env, longest=longest) for env in envs.values())
    warn_of_small_shares(args)
    rows = mix_datasets(training_rows(envs, args), args)
    prompt = _check_prompts(envs, rows, chat, args)
    context = prompt + args.max_completion_length
    settle_defaults(args, model, command="train", peft_config=peft_config, length=context)
    positions = _positions(model, args)
    for env in envs.values():
        check_budgets(env, chat, args, prompt=prompt, positions=positions)
    loaded = model if isinstance(model, str) else getattr(getattr(model, "config", None), "_name_or_path", "")
    base = args.warm_start or loaded or "a given model"
    privileged = _privileged_context(args, chat)
    rollouts = RolloutRunner(
        args,
        training,
        evaluating,
        chat=chat,
        train_rows=cast("Sequence[Row]", rows),
        group_reward=None if args.group_reward is None else make_group_reward(args.group_reward),
    )
    trainer = AgentTrainer(
        model,
        args,
        collect=rollouts,
        train_dataset=rows,
        eval_dataset=eval_dataset,
        processing_class=tokenizer,
        chat=chat,
        card=agent_card(args, base, envs),
        peft_config=peft_config,
        callbacks=[_CloseEnvironments(rollouts, privileged)],
        prefetcher=rollouts.prefetcher,
        privileged=privileged,
        start_backend=functools.partial(start_backend, args) if args.engine == "vllm" else None,
        **trl_arguments,
    )
    trainer.longest_prompt = prompt
    if args.memory_check or (args.memory_check is None and trainer.accelerator.device.type == "cuda"):
        trainer.add_callback(MemoryCheck(trainer))
    return trainer


def _privileged_context(args: AgentConfig, chat: ChatFormat) -> PrivilegedContext:
    """Build what writes privileged information, and try the kinds that `args` name on the first tasks."""
    kinds = {kind for kind in (args.critic_privileged, args.teacher_privileged) if kind is not None}
    makers = env_makers(args, chat.markup) if kinds else {}
    # The rows of a single environment do not name it.
    privileged = PrivilegedContext({"" if len(makers) == 1 else name: make for name, make in makers.items()})
    for kind in kinds:
        privileged.check(kind)
    return privileged


def _open_envs(collector: Collector) -> dict[str, TextEnv]:
    """Open one environment of each kind that a collector plays in, by name; the collector reuses them."""
    player = collector.player
    envs = {name: player.acquire(name) for name in player.named_envs or [""]}
    for name, env in envs.items():
        player.release(env, name)
    return envs


def _positions(model: Any, args: AgentConfig) -> int | None:
    """Return the context length of a model, which may still be a name."""
    if isinstance(model, str):
        options = cast("Mapping[str, Any]", args.model_init_kwargs or {})
        revision = options.get("revision") or "main"
        config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=bool(args.trust_remote_code))
    else:
        config = model.config
    positions: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return positions


def _check_prompts(envs: Mapping[str, TextEnv], rows: Dataset, chat: ChatFormat, args: AgentConfig) -> int:
    """Return the length of the longest prompt, in tokens."""
    longest = 0
    for name, env in envs.items():
        own = (
            rows
            if len(envs) == 1
            else rows.select([row for row, env_name in enumerate(rows["env"]) if env_name == name])
        )
        longest = max(longest, check_prompts(env, own, chat, longest=args.max_prompt_length))
        warn_if_tokenizer_breaks_format(env, chat)
    return longest


def build_chat_format(args: AgentConfig, tokenizer: Any) -> ChatFormat:
    """Build the chat format of `args`, for a tokenizer without a saved one."""
    source = None if args.chat_template is None else read_template(args.chat_template)
    options = cast("Mapping[str, Any] | None", args.chat_template_kwargs)
    return ChatFormat(tokenizer, template=source, template_options=options)


def build_collector(
    args: AgentConfig, tokenizer: Any, *, chat: ChatFormat | None = None, evaluating: bool = False
) -> Collector:
    """Build a collector for the environments of `args`, or for those of its evaluations.

    Raises:
        ConfigurationError: an option does not fit; the message names it and what to change.
    """
    limits = TokenLimits(
        max_prompt_tokens=args.max_prompt_length,
        max_completion_tokens=args.max_completion_length,
    )
    chat = chat or build_chat_format(args, tokenizer)
    makers = env_makers(args, chat.markup, evaluating=evaluating)
    first, *further = makers.values()
    label = "+".join(member.env_id for member in args.environments)
    player = Player(first, chat=chat, limits=limits, policy=label, named_envs=makers if further else {})
    return Collector(player, retries=args.infrastructure_retries, seconds=None if evaluating else args.rollout_deadline)


class _CloseEnvironments(TrainerCallback):
    """Ends what is played and closes the environments at the end of a run; another run makes new ones."""

    def __init__(self, rollouts: RolloutRunner, privileged: PrivilegedContext) -> None:
        self._rollouts, self._privileged = rollouts, privileged

    def on_train_end(self, *_arguments: Any, **_others: Any) -> None:
        self._rollouts.close()
        self._privileged.close()


def start_backend(args: AgentConfig, model: Any, sharding: str | None) -> SyncedBackend:
    """Start the vLLM that `args` describe next to the trainer, or connect to its servers.

    Args:
        args: the configuration.
        model: the policy, unwrapped.
        sharding: how its weights are sharded (`sharding_of`).

    Raises:
        ConfigurationError: vLLM is not installed, a server does not fit, or the model is not in a folder or on the hub.
        InfrastructureError: a server does not answer.
    """
    # An adapter of sharded weights would have to be gathered by names that PEFT does not know.
    rank = 0 if shards_weights(sharding) else adapter_rank(model)
    if not rank:
        check_whole(model)
    if args.vllm_mode == "server":
        servers = VLLMServerOptions(
            urls=[url.strip() for url in str(args.vllm_server_base_url).split(",")],
            folder=Path(args.output_dir or ".") / "weights_for_servers",
            max_length=max_context_length(args, model),
            adapter_rank=rank,
            max_logprob_diff=args.alarm_drift_above,
            patience=args.vllm_server_timeout,
        )
        return VLLMServerBackend(servers)
    path = str(getattr(model.config, "_name_or_path", ""))
    if not path:
        raise ConfigurationError(
            "engine=vllm loads the model by its path: save it, and give that instead of the model."
        )
    options = VLLMOptions(
        model=path,
        max_length=max_context_length(args, model),
        gpu_memory_utilization=args.vllm_gpu_memory_utilization,
        dtype="bfloat16" if args.bf16 else "float16" if args.fp16 else "float32",
        adapter_rank=rank,
        sleep=args.vllm_enable_sleep_mode,
        seed=args.seed,
        trust_remote_code=bool(args.trust_remote_code),
        revision=(args.model_init_kwargs or {}).get("revision") or "main",  # type: ignore[union-attr]  # no longer text
    )
    with checkpoints.temporary_seed(args.seed):  # in this process vLLM seeds the global generators
        return VLLMBackend(options)


def model_init_kwargs(args: Any, model_args: ModelConfig) -> dict[str, Any]:
    """Collect the arguments to load the model with: TRL's options for it, overridden by `model_init_kwargs`."""
    options = {"revision": model_args.model_revision, "dtype": model_args.dtype}
    if model_args.attn_implementation is not None:
        options["attn_implementation"] = model_args.attn_implementation
    return {**options, **(args.model_init_kwargs or {})}
