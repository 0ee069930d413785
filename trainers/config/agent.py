"""AgentConfig: TRL's `GRPOConfig` with our options, completed by the algorithm's preset and checked."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from trl import GRPOConfig  # type: ignore[attr-defined]

from agent_r1_gym.errors import ConfigurationError, suggest
from agent_r1_gym.run.mixture import EnvConfig, env_configs_from_args
from trainers.config import options
from trainers.config.hardware import gpu_has_bf16, has_accelerator
from trainers.config.options import Between, OneOf, constraints
from trainers.config.presets import ALGORITHMS, CISPO_CLIP, Preset, find_preset

_TRL_BOUNDS = MappingProxyType(
    {
        **dict.fromkeys(("num_iterations", "steps_per_generation", "gradient_accumulation_steps"), Between(1)),
        "per_device_eval_batch_size": Between(1),
        "seed": Between(0, 2**32 - 1),
    }
)
"""Bounds of options that TRL declares."""
_NO_EFFECT = MappingProxyType(
    {
        **{"reward_weights": None, "multi_objective_aggregation": "sum_then_normalize"},
        "max_tool_calling_iterations": None,
    }
)
"""TRL's options of rewards and tools, which are the environment's here, with the values that mean off."""
_NO_EFFECT_ON_VLLM = MappingProxyType(
    {
        "vllm_max_model_length": None,  # that of the budgets
        "vllm_tensor_parallel_size": 1,
        "vllm_model_impl": "vllm",
        "vllm_server_host": "0.0.0.0",  # in vllm_server_base_url
        "vllm_server_port": 8000,
        "vllm_group_port": 51216,
        "vllm_structured_outputs_regex": None,
    }
)
"""TRL's options of vLLM that nothing here reads."""
_ENGINE_OPTIONS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "cached": {"enforce_eager": False},
        "trl": {
            "min_p": None,
            "repetition_penalty": 1.0,
            "generation_kwargs": None,
            "cache_implementation": None,
            "use_transformers_continuous_batching": False,
        },
        "vllm": {
            "vllm_mode": "colocate",
            "vllm_server_base_url": None,
            "vllm_gpu_memory_utilization": 0.3,
            "vllm_server_timeout": 240.0,
            "vllm_enable_sleep_mode": False,
            "vllm_importance_sampling_correction": True,
        },
    }
)
"""Options that one engine alone has, with the values that mean off."""
_CORRECTIONS = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def prepare_defaults(config: Any, **fallbacks: Any) -> None:
    """Set the options that the user left open to what fits any model, and note their names in `open_options`.

    `monitoring.defaults.settle_defaults` improves on them once the model is known: TRL's base class needs values before
    that. bf16 without an accelerator means the CPU, which transformers wants to be named. It is not named otherwise:
    accelerate would not set up the process group of a launch that did not name it either.

    Args:
        config: a configuration before its base class is initialised.
        **fallbacks: options and their values.
    """
    if config.bf16 and not has_accelerator():
        config.use_cpu = True
    if getattr(config, "activation_checkpointing", None) is not None:  # transformers' newer name of the option
        config.gradient_checkpointing = config.activation_checkpointing
    names = ("bf16", *fallbacks) if not config.fp16 else tuple(fallbacks)
    config.open_options = frozenset(name for name in names if getattr(config, name) is None)
    config.learning_rate_reason = "set by --learning-rate"
    if "bf16" in config.open_options:
        config.bf16 = gpu_has_bf16() and not config.use_cpu
    for name in config.open_options - {"bf16"}:
        setattr(config, name, fallbacks[name])


@dataclass
class AgentConfig(  # type: ignore[misc]  # some of TRL's fields may be None; here a preset or a default sets them
    options.LoggingOptions,
    options.AlarmOptions,
    options.AlgorithmOptions,
    options.RolloutOptions,
    options.SystemOptions,
    options.ModelOptions,
    options.EnvironmentOptions,
    options.TRLOptions,
    GRPOConfig,
):
    """Arguments of `AgentTrainer`: all of `trl.GRPOConfig`'s, and those of `trainers.config.options`.

    A preset field left at None takes the value that `ALGORITHMS[algorithm]` sets, or its default.

    Raises:
        ConfigurationError: an unknown name, a value out of range, or a TRL option that has no effect here.
    """

    # As its base class has it:
    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "env_kwargs", "eval_env_kwargs"]  # noqa: RUF012

    @property
    def preset(self) -> Preset:
        """What `algorithm` stands for."""
        return find_preset(self.algorithm)

    @property
    def environments(self) -> tuple[EnvConfig, ...]:
        """What is trained on: the environment of `env_id`, or the mixture of `envs`.

        Raises:
            ConfigurationError: neither is set, both are, or one cannot be parsed.
        """
        return env_configs_from_args(self)

    @property
    def batch_as_group(self) -> int:
        """Rollouts of one generation batch on one device, or on all devices where each has one."""
        steps = self.steps_per_generation or self.gradient_accumulation_steps
        device_batch = self.generation_batch_size or self.per_device_train_batch_size * steps
        return device_batch if device_batch > 1 else _launched_processes()

    def __post_init__(self) -> None:
        prepare_defaults(
            self,
            learning_rate=1e-6,
            gradient_checkpointing=True,
            max_completion_length=options.MAX_COMPLETION_LENGTH_ON_CPU
            if self.use_cpu or not has_accelerator()
            else options.MAX_COMPLETION_LENGTH,
        )
        self._apply_preset()
        self._check_values()
        _check(self, _COMBINATIONS)
        self._check_json()
        rollouts = self.num_generations
        if rollouts == 1:  # TRL wants two at least, in whole groups: show it a batch of several prompts as one group
            self.num_generations = self.batch_as_group
        try:
            super().__post_init__()  # type: ignore[no-untyped-call]
        except ValueError as error:
            raise self._clarify_error(error) from error
        self.num_generations = rollouts
        _check(self, _COMBINATIONS_WITH_BATCHES)

    def _apply_preset(self) -> None:
        """Set each preset field that the user left at None."""
        settings = {**self.preset.settings, "advantage_mask": self.loss_mask}
        usual_loss = settings["loss_type"]
        loss = self.loss_type or usual_loss
        if "cispo" in (loss, usual_loss) and loss != usual_loss:  # its clip range fits no other loss, nor theirs it
            settings["epsilon_high"] = None
        if loss == "cispo" and settings["epsilon_high"] is None:
            settings["epsilon_high"] = CISPO_CLIP
        for name, value in settings.items():
            if getattr(self, name) is None:
                setattr(self, name, value)

    def _check_values(self) -> None:
        """Refuse values that no setting of the other options could make valid."""
        for name, choices in {**constraints(OneOf), "vllm_mode": OneOf(("colocate", "server"))}.items():
            value = getattr(self, name)
            if value not in choices and (value is not None or self.__dataclass_fields__[name].default is not None):
                raise ConfigurationError(f"{name}: got {value!r}. {suggest(str(value), choices)}")
        for name, (low, high) in {**constraints(Between), **_TRL_BOUNDS}.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigurationError(f"{name} must lie between {low:g} and {high:.10g}, got {value}.")
        if self.use_vllm:
            raise ConfigurationError(
                "use_vllm=True: with TRL's own vLLM, every turn waits for the slowest episode; set engine=vllm instead."
            )
        self._require_off(
            _NO_EFFECT,
            "has no effect here: rewards and tool calls are the environment's. Leave it at {off!r} and set reward "
            "weights in env_kwargs.",
        )
        for engine in _ENGINE_OPTIONS.keys() - {self.engine}:
            self._require_off(_ENGINE_OPTIONS[engine], f"needs engine={engine}; engine={self.engine} lacks it.")
        self._require_off(_NO_EFFECT_ON_VLLM, "has no effect here. Leave it at {off!r}.")
        if not self.distillation_weight:
            self._require_preset(
                ("distillation_placement", "distillation_failures_only"),
                "has no effect with distillation_weight=0, which means no teacher. Leave it at {off!r}.",
            )
        if not self.beta or self.kl_placement == "reward":
            self._require_preset(
                ("use_bias_correction_kl",),
                f"has no effect with beta={self.beta}, kl_placement={self.kl_placement}: it corrects the KL in the "
                "loss. Leave it at {off!r}.",
            )
        if self.engine == "trl":
            self._require_off(
                dict.fromkeys(("rollout_deadline", "rollout_slots", "eval_temperature")),
                "needs engine=cached or engine=vllm: with engine=trl all rollouts of all processes run in lockstep, "
                "and evaluations are sampled as training is. Leave it at None.",
            )

    def _require_off(self, values: Mapping[str, Any], problem: str) -> None:
        for name, off in values.items():
            if getattr(self, name) != off:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} {problem.format(off=off)}")

    def _require_preset(self, names: Sequence[str], problem: str) -> None:
        self._require_off({name: self.preset.settings[name] for name in names}, problem)

    def _check_json(self) -> None:
        """Refuse what `TrainingArguments` would read as JSON and fail on without a name."""
        for name in self._VALID_DICT_FIELDS:
            text = getattr(self, name)
            if isinstance(text, str) and text.startswith("{"):
                try:
                    json.loads(text)
                except ValueError as error:
                    raise ConfigurationError(
                        f'{name} must be a JSON object, such as \'{{"name": "value"}}\', got {text!r:.80}: {error}.'
                    ) from error

    def _clarify_error(self, error: ValueError) -> ValueError:
        """Make TRL's refusal of batch sizes, or of bf16, name the options to change; any other stays as it is."""
        text = str(error)
        if "bf16/gpu" in text:
            return ConfigurationError(
                "bf16=True: this GPU does not have it. Do not set it (float32 is the default then), or train on the "
                "CPU by use_cpu=True."
            )
        if "divisible" not in text:
            return error
        if "eval" in text:
            return ConfigurationError(
                f"{error} Set per_device_eval_batch_size to a multiple of num_generations_eval="
                f"{self.num_generations_eval}."
            )
        if "global batch size" in text:
            return ConfigurationError(f"{error} Do not set generation_batch_size, or set it to a multiple of that.")
        return ConfigurationError(
            f"{error} It is per_device_train_batch_size={self.per_device_train_batch_size} x processes x "
            f"steps_per_generation (by default gradient_accumulation_steps={self.gradient_accumulation_steps}): "
            f"their product must be a multiple of num_generations={self.num_generations}. Raise "
            "gradient_accumulation_steps, which needs no more memory, or per_device_train_batch_size, which is faster."
        )

    @property
    def process_batch(self) -> int:
        """Rollouts of one generation batch on one process."""
        return int(self.generation_batch_size or 0) // int(self.world_size)

    @property
    def distils_in_loss(self) -> bool:
        """Whether the loss compares the whole vocabularies of policy and teacher."""
        return self.distillation_placement == "loss" and self.distillation_weight > 0

    @property
    def alarm_delay(self) -> int:
        """Step from the last good weights to an alarm, which counts only logs with new rollouts."""
        log_steps = max(1, math.ceil(self.logging_steps * (self.max_steps if self.logging_steps < 1 else 1)))
        passes = (self.steps_per_generation or 1) * self.num_iterations
        rollout_steps = math.ceil(passes / self.gradient_accumulation_steps)
        return self.alarm_patience * log_steps * math.ceil(rollout_steps / log_steps) + 1

    @property
    def checkpoints_for_rollback(self) -> int:
        """Number of checkpoints to keep so that one of them holds weights from before an alarm's first bad step."""
        return math.ceil(self.alarm_delay / self.save_steps) + 1


def _launched_processes() -> int:
    """Number of processes that a launcher started; `world_size` is known once TRL's base class has joined them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


Check = tuple[Callable[[AgentConfig], Any], str]
"""A condition under which a configuration is refused, and the message; `{c.NAME}` in it is an option's value."""


def _check(config: AgentConfig, checks: tuple[Check, ...]) -> None:
    for refused, message in checks:
        if refused(config):
            raise ConfigurationError(message.format(c=config))


_COMBINATIONS: tuple[Check, ...] = (
    (
        lambda c: c.engine == "vllm" and (c.top_p < 1 or c.top_k),
        "top_p={c.top_p}, top_k={c.top_k}: vLLM reports log-probs of the truncated distribution, the loss is of the "
        "whole one. Leave both off, or set engine=cached.",
    ),
    (
        lambda c: c.engine == "vllm" and (c.vllm_mode == "server") != (c.vllm_server_base_url is not None),
        "vllm_mode={c.vllm_mode!r} with vllm_server_base_url={c.vllm_server_base_url!r}: servers are named by "
        "vllm_mode=server and vllm_server_base_url (one URL, or several with commas between).",
    ),
    (
        lambda c: c.engine == "vllm" and c.vllm_importance_sampling_mode not in _CORRECTIONS,
        f"vllm_importance_sampling_mode: got {{c.vllm_importance_sampling_mode!r}}. Known: {', '.join(_CORRECTIONS)}.",
    ),
    *(
        (
            lambda c, name=name: c.vllm_mode == "server" and getattr(c, name) != _ENGINE_OPTIONS["vllm"][name],
            f"{name} is of vllm_mode=colocate; a server has its own options.",
        )
        for name in ("vllm_enable_sleep_mode", "vllm_gpu_memory_utilization")
    ),
    (
        lambda c: (
            c.engine == "vllm" and c.loss_type == "vespo" and not c.vllm_importance_sampling_mode.startswith("token")
        ),
        "loss_type=vespo with vllm_importance_sampling_mode={c.vllm_importance_sampling_mode!r}: it needs "
        "token_truncate or token_mask.",
    ),
    (
        lambda c: c.advantage_mask and not c.loss_mask and not (c.beta and c.kl_placement == "loss"),
        "loss_mask=False with advantage_mask=True changes nothing: without advantages and without KL in the loss, the "
        "environment's tokens have no gradient. Do not set advantage_mask (it follows loss_mask).",
    ),
    (
        lambda c: c.preset.estimator == "steppo" and not c.loss_mask,
        "algorithm {c.algorithm} with loss_mask=False: a turn counts once by the tokens that the model sampled in it, "
        "and the environment's would be in the loss as well. Leave loss_mask, or choose algorithm ppo with "
        "gae_level=turn.",
    ),
    (
        lambda c: c.importance_sampling_level == "turn" and c.loss_type == "vespo",
        "importance_sampling_level=turn with loss_type=vespo changes nothing: that loss multiplies the ratios of all "
        "tokens of a sequence itself. Set importance_sampling_level=token.",
    ),
    (
        lambda c: c.importance_sampling_level == "turn" and not c.loss_mask,
        "importance_sampling_level=turn with loss_mask=False: the environment's tokens are in the loss then, but "
        "belong to no turn of the model. Set importance_sampling_level=token.",
    ),
    (
        lambda c: c.critic_privileged is not None and "values" not in c.preset.needs,
        "critic_privileged={c.critic_privileged!r} needs an algorithm with a critic (ppo, steppo, dgpo), got "
        "{c.algorithm}.",
    ),
    (
        lambda c: not c.distillation_weight and (c.teacher_model_name_or_path or c.teacher_privileged),
        "teacher_model_name_or_path={c.teacher_model_name_or_path!r}, teacher_privileged={c.teacher_privileged!r}: "
        "without distillation_weight, or with 0, nothing is learned from a teacher. Set it, for example to 1, or "
        "choose algorithm opsd.",
    ),
    (
        lambda c: c.distillation_weight and not (c.teacher_model_name_or_path or c.teacher_privileged),
        "distillation_weight={c.distillation_weight}: the policy would be its own teacher and read the same as itself. "
        "Set teacher_model_name_or_path, or teacher_privileged (answer, passages, solution), or distillation_weight=0.",
    ),
    (
        lambda c: c.preset.estimator == "opd" and c.distillation_placement == "reward",
        "distillation_placement=reward with algorithm {c.algorithm}, which reads no rewards: set it to advantage, or "
        "choose an algorithm that learns from returns.",
    ),
    (
        lambda c: c.preset.estimator == "opd" and c.kl_placement == "reward" and c.beta,
        "kl_placement=reward with beta={c.beta} and algorithm {c.algorithm}, which reads no rewards: set kl_placement "
        "to loss, or choose an algorithm that learns from returns.",
    ),
    (
        lambda c: c.group_reward and c.preset.estimator == "opd",
        "group_reward={c.group_reward} with algorithm {c.algorithm}, which reads no rewards: do not set it, or choose "
        "an algorithm that learns from returns.",
    ),
    (
        lambda c: c.distillation_weight and not c.loss_mask,
        "distillation_weight={c.distillation_weight} with loss_mask=False: a teacher scores the tokens that the policy "
        "sampled, not the environment's. Set distillation_weight=0, or leave loss_mask.",
    ),
    (
        lambda c: c.distils_in_loss and c.cast_lm_head_to_fp32,
        "cast_lm_head_to_fp32=True with distillation_placement=loss, which computes the output layer as the model "
        "does: set cast_lm_head_to_fp32=False, or choose another distillation_placement.",
    ),
    (
        lambda c: c.skip_zero_advantages and c.beta and c.kl_placement == "loss",
        "skip_zero_advantages=True with beta={c.beta} and kl_placement=loss: the KL moves the policy on rollouts "
        "without an advantage too. Set beta=0 or skip_zero_advantages=False.",
    ),
    (
        lambda c: c.skip_zero_advantages and c.distils_in_loss,
        "skip_zero_advantages=True with distillation_placement=loss: the teacher moves the policy on rollouts without "
        "an advantage too. Set skip_zero_advantages=False.",
    ),
    (
        lambda c: c.skip_zero_advantages and (c.entropy_coef or c.use_adaptive_entropy or c.top_entropy_quantile < 1),
        "skip_zero_advantages=True with entropy_coef={c.entropy_coef}, use_adaptive_entropy={c.use_adaptive_entropy}, "
        "top_entropy_quantile={c.top_entropy_quantile}, which need the entropies of rollouts without an advantage too. "
        "Do not set these three, or set skip_zero_advantages=False.",
    ),
    (
        lambda c: c.temperature <= 0,
        "temperature={c.temperature}: training needs rollouts that differ. Set it above 0; eval_temperature=0 "
        "evaluates greedily.",
    ),
    (
        lambda c: c.num_generations == 1 and c.preset.single_rollout and c.batch_as_group < 2,
        "num_generations=1 with one rollout per generation batch: there is nothing to compare it with. Raise "
        "per_device_train_batch_size or gradient_accumulation_steps.",
    ),
    (
        lambda c: c.num_generations == 1 and not c.preset.single_rollout,
        "num_generations=1: {c.algorithm} compares rollouts of one prompt and needs at least 2. With one rollout per "
        f"prompt, choose algorithm {', '.join(name for name, preset in ALGORITHMS.items() if preset.single_rollout)}.",
    ),
    (
        lambda c: (
            c.overlap_rollouts
            and not (c.engine == "vllm" and c.vllm_mode == "server" and c.vllm_importance_sampling_correction)
        ),
        "overlap_rollouts needs engine=vllm, vllm_mode=server and vllm_importance_sampling_correction=True: the "
        "servers sample while this process trains, and what they sample is one update old.",
    ),
)
"""Options that do not fit together."""

_COMBINATIONS_WITH_BATCHES: tuple[Check, ...] = (
    (
        lambda c: c.rollout_deadline is not None and not 0 < c.rollout_deadline < c.ddp_timeout,
        "rollout_deadline={c.rollout_deadline} must be above 0 and below ddp_timeout={c.ddp_timeout}: that is how long "
        "the other processes wait.",
    ),
    (
        lambda c: c.refill_groups and (c.num_generations < 2 or c.process_batch % c.num_generations),
        "refill_groups={c.refill_groups} replaces groups of num_generations={c.num_generations}, but a process plays "
        "{c.process_batch} rollouts: make that a multiple (per_device_train_batch_size x gradient_accumulation_steps), "
        "or set refill_groups=0.",
    ),
    (
        lambda c: c.group_reward and (c.num_generations < 2 or c.process_batch % c.num_generations),
        "group_reward={c.group_reward} compares num_generations={c.num_generations} rollouts, but a process plays "
        "{c.process_batch}: make that a multiple (per_device_train_batch_size x gradient_accumulation_steps), or do "
        "not set group_reward.",
    ),
    (
        lambda c: c.refill_groups and c.engine == "trl",
        "refill_groups needs engine=cached or engine=vllm: with engine=trl all processes generate in lockstep.",
    ),
    (
        lambda c: c.refill_groups and not c.preset.return_based,
        "refill_groups={c.refill_groups} replaces groups whose returns are equal, but algorithm {c.algorithm} may "
        "learn from them: set refill_groups=0. A custom algorithm that gives them zero advantages is registered with "
        "return_based=True.",
    ),
    (
        lambda c: c.refill_groups and c.distillation_weight,
        "refill_groups={c.refill_groups} replaces groups whose returns are equal, but a teacher scores their tokens "
        "all the same: set refill_groups=0.",
    ),
    (
        lambda c: c.refill_groups and c.turn_returns,
        "refill_groups={c.refill_groups} replaces groups whose returns are equal, but with turn_returns=True their "
        "turns may still differ: set refill_groups=0.",
    ),
    (
        lambda c: c.refill_groups and c.kl_placement == "reward" and c.beta,
        "refill_groups={c.refill_groups} replaces groups whose returns are equal, but with kl_placement=reward and "
        "beta={c.beta} they differ by the KL: set kl_placement=loss or refill_groups=0.",
    ),
    (
        lambda c: c.refill_groups and c.normalise_process_rewards,
        "refill_groups={c.refill_groups} replaces groups whose returns are equal, but normalise_process_rewards=True "
        "scales a part of each return by the whole batch, and they may differ then: set refill_groups=0.",
    ),
    (
        lambda c: (
            c.on_alarm == "rollback"
            and (c.save_strategy not in ("steps", "epoch") or c.save_only_model or c.sync_ref_model)
        ),
        "on_alarm=rollback resumes from checkpoints that hold all of a run: it needs save_strategy=steps or epoch, "
        "save_only_model=False and sync_ref_model=False, got save_strategy={c.save_strategy.value}, "
        "save_only_model={c.save_only_model}, sync_ref_model={c.sync_ref_model}.",
    ),
    (
        lambda c: _saves_every_few_steps(c) and 0 < c.max_steps <= c.save_steps,
        "on_alarm=rollback: with save_steps={c.save_steps:g} and max_steps={c.max_steps} there is no checkpoint but "
        "the start to go back to. Lower save_steps, for example to a tenth of max_steps.",
    ),
    (
        lambda c: (
            _saves_every_few_steps(c)
            and c.save_total_limit is not None
            and c.save_total_limit < c.checkpoints_for_rollback
        ),
        "on_alarm=rollback: an alarm may come {c.alarm_delay} steps after the last good weights, and with save_steps="
        "{c.save_steps:g} the last save_total_limit={c.save_total_limit} checkpoints may all be later. Set "
        "save_total_limit to {c.checkpoints_for_rollback} or more, or raise save_steps.",
    ),
)
"""Options that do not fit together, by what TRL has made of batch sizes, processes and strategies."""


def _saves_every_few_steps(c: AgentConfig) -> bool:
    return c.on_alarm == "rollback" and c.save_strategy == "steps" and c.save_steps >= 1
