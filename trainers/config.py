"""Configuration of the trainer: TRL's `GRPOConfig`, further fields, and one preset per algorithm."""

# ruff: noqa: RUF009 - `_help` is `dataclasses.field`, shorter
from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from transformers.utils.import_utils import is_torch_bf16_gpu_available
from trl import GRPOConfig  # type: ignore[attr-defined]

from agent_r1_gym.errors import ConfigurationError, suggest

PAPER = {
    **{"num_generations": 5, "beta": 0.001, "kl_placement": "loss", "loss_type": "dapo"},
    "use_bias_correction_kl": False,
}
"""Settings of Agent-R1's scripts (arXiv 2511.14460): 5 rollouts per prompt, KL 0.001 by the plain k3 estimator, and a
loss that is a mean over tokens."""
CISPO_CLIP = 5.0
"""Upper bound of the ratio in the loss `cispo`: of the ratio itself, where other losses bound its distance from 1."""


@dataclass(frozen=True, slots=True)
class Preset:
    """What an algorithm's name stands for.

    Attributes:
        estimator: key in `advantages.ESTIMATORS`.
        settings: value of each preset field that the user left at None.
        single: one rollout per prompt is enough.
    """

    estimator: str
    settings: Mapping[str, Any]
    single: bool = False


def _preset(estimator: str, *, single: bool = False, **settings: Any) -> Preset:
    return Preset(estimator, MappingProxyType(PAPER | settings), single)


ALGORITHMS: Mapping[str, Preset] = MappingProxyType(
    {
        "grpo": _preset("grpo"),
        "rloo": _preset("rloo"),
        "reinforce++": _preset("reinforce++", single=True, kl_placement="reward"),
        "reinforce++-baseline": _preset("reinforce++-baseline"),
        "ppo": _preset("ppo", single=True, kl_placement="reward", num_generations=1),
        "dr_grpo": _preset("grpo", loss_type="dr_grpo", scale_rewards="none", beta=0.0),
        "dapo": _preset("grpo", epsilon_high=0.28, beta=0.0, mask_truncated_completions=True),
        "gspo": _preset(
            "grpo", loss_type="grpo", importance_sampling_level="sequence", epsilon=3e-4, epsilon_high=4e-4, beta=0.0
        ),
        "cispo": _preset("grpo", loss_type="cispo", epsilon_high=CISPO_CLIP, beta=0.0),
        "turn_group": _preset("turn_group"),
        "gigpo": _preset("gigpo"),
    }
)
"""Presets by name: the paper's five, TRL's loss variants (each with its own paper's clip range), turn-level groups."""

_TRL_DEFAULTS = MappingProxyType(
    {"epsilon": 0.2, "epsilon_high": None, "importance_sampling_level": "token", "mask_truncated_completions": False}
)
_REPLACED = MappingProxyType(
    {"reward_weights": None, "multi_objective_aggregation": "sum_then_normalize", "max_tool_calling_iterations": None}
)
_NOT_CACHED = MappingProxyType(
    {
        "min_p": None,
        "repetition_penalty": 1.0,
        "generation_kwargs": None,
        "cache_implementation": None,
        "use_vllm": False,
        "use_transformers_continuous_batching": False,
    }
)
"""Options that the engine with the kept cache does not have, with the values that mean off."""
_CHOICES = MappingProxyType(
    {
        "algorithm": tuple(ALGORITHMS),
        "kl_placement": ("loss", "reward"),
        "gae_level": ("token", "turn"),
        "engine": ("cached", "trl"),
    }
)
_SHARES = ("gamma", "lam", "alarm_dropped_above", "alarm_repetition_above")
_COUNTS = (
    *("max_turn_tokens", "max_prompt_length", "context_window", "max_contexts", "trace_episodes", "train_seeds"),
    *("critic_epochs", "critic_minibatches", "eval_episodes", "num_generations_eval"),
    *("num_generations", "num_iterations", "steps_per_generation", "max_completion_length"),
    *("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"),
    "alarm_patience",
)
_AMOUNTS = (
    *("infrastructure_retries", "logprob_check_steps", "critic_learning_rate", "critic_clip", "trace_steps"),
    *("alarm_calls_below", "alarm_drift_above", "alarm_without_signal", "eval_temperature", "learning_rate"),
)
# Not in the fields' metadata: all of that is handed to argparse, and half of the fields are TRL's.
_RANGES = ((_SHARES, 0.0, 1.0), (_COUNTS, 1, math.inf), (_AMOUNTS, 0, math.inf), (("seed",), 0, 2**32 - 1))


def _help(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


def settle_precision(config: Any) -> None:
    """Takes bf16 where a GPU has it, float32 elsewhere, but for what was chosen."""
    if config.bf16 is None and not config.fp16:
        config.bf16 = is_torch_bf16_gpu_available() and not config.use_cpu


@dataclass
class AgentConfig(GRPOConfig):
    """Arguments of `AgentTrainer`: all of `trl.GRPOConfig`'s, and those below (see `help` of each field).

    A preset field left at None takes the value that `ALGORITHMS[algorithm]` names, or TRL's default.

    Raises:
        ConfigurationError: an unknown name, a value out of range, or a TRL option that has no effect here.
    """

    # As its base class has it:
    _VALID_DICT_FIELDS = [*GRPOConfig._VALID_DICT_FIELDS, "env_kwargs", "eval_env_kwargs"]  # noqa: RUF012

    env_id: str | None = field(
        default=None,
        metadata={
            "help": "Registered id of the text environment to train on, such as AgentR1/HotpotQA-v0. In a YAML file "
            "only as env_id: TRL keeps the key env for environment variables.",
            "aliases": ["--env"],
        },
    )
    warm_start: str | None = _help(
        None,
        "Folder of `agent-r1 sft`, or of any run, whose model training goes on from, instead of model_name_or_path; an "
        "adapter is merged into its base model first, so that the KL is to the warm start.",
    )
    env_kwargs: dict[str, Any] | str | None = _help(None, "Arguments for `gymnasium.make`, as a JSON object.")
    eval_env_kwargs: dict[str, Any] | str | None = _help(
        None,
        "Arguments that differ from env_kwargs in evaluations during training, as a JSON object; {}: the same tasks.",
    )
    eval_episodes: int = _help(400, "Maximum number of episodes per evaluation; rounded down to whole batches.")
    eval_temperature: float | None = _help(
        None, "Sampling temperature of evaluations: 0 is greedy; None: as in training."
    )
    algorithm: str = _help("grpo", f"Algorithm: {', '.join(ALGORITHMS)}. Sets the preset fields that you leave out.")

    gamma: float = _help(1.0, "Discount from one turn to the next, 0 to 1.")
    lam: float = _help(1.0, "Lambda of generalised advantage estimation (ppo), 0 to 1.")
    gae_level: str = _help("token", "Unit of time of GAE (ppo): token or turn.")
    turn_returns: bool = _help(
        False, "Credit each turn with what came from it on, not with the whole return (grpo, reinforce++-baseline)."
    )
    step_weight: float = _help(1.0, "Weight of the step advantages beside the episode's (gigpo).")
    normalise_process_rewards: bool = _help(
        False, "Divide process rewards by the batch's largest absolute reverse cumulative sum, as in the paper."
    )
    chat_template: str | None = _help(
        None,
        "Chat template to train with: a jinja file, or the name of one of TRL's, such as qwen3_training.jinja; None: "
        "the model's own, or TRL's variant of it that keeps earlier turns. Options for it: chat_template_kwargs.",
    )
    loss_mask: bool = _help(
        True,
        "Ablation: False lets the environment's tokens into the loss, with the advantages of the turn after (unless "
        "advantage_mask says otherwise), as if the model had sampled them.",
    )
    advantage_mask: bool = _help(
        None,
        "Ablation: False gives the environment's tokens the advantages of the turn after, in means and targets too; in "
        "the loss only together with loss_mask=False. None: as loss_mask.",
    )
    kl_placement: str = _help(None, "Place of the KL of weight `beta`: loss or reward. Preset.")

    context_window: int | None = _help(
        None,
        "Number of turns whose tool output is shown; older output is removed (`wrappers.ContextWindow`). Each "
        "rewritten context of a trajectory costs a forward and backward pass of its own.",
    )
    max_contexts: int = _help(
        64, "Maximum number of contexts per trajectory; where one more would be needed, the episode is truncated."
    )
    max_turn_tokens: int = _help(1024, "Maximum number of tokens that the model samples per turn.")
    max_completion_length: int = _help(
        8192,
        "Maximum number of tokens of all turns and tool responses of a trajectory together; where its context is "
        "rewritten, of those that the context holds.",
    )
    train_seeds: int | None = _help(
        None, "Number of seeds to train on in an environment without a list of tasks; None: 1,000."
    )
    max_prompt_length: int = _help(8192, "Maximum length of a prompt, in tokens; a longer one is refused.")
    engine: str = _help(
        "cached", "Engine that samples: cached (KV cache kept across turns) or trl (TRL's own backend, such as vLLM)."
    )
    infrastructure_retries: int = _help(
        2, "Number of times that an episode whose backend failed is played again before it is dropped."
    )
    logprob_check_steps: int = _help(
        10, "Generation batches from one comparison of the engine's log-probs with the trainer's to the next; 0: never."
    )
    trace_steps: int = _help(
        0, "Generation batches from one file of rollouts in output_dir/traces, token by token, to the next; 0: none."
    )
    trace_episodes: int = _help(16, "Number of rollouts per file of traces: the first ones of the main process.")

    critic_learning_rate: float = _help(
        1e-5, "Learning rate of the critic (ppo), constant whatever `lr_scheduler_type` says."
    )
    critic_epochs: int = _help(1, "Number of passes of the critic over each generation batch (ppo).")
    critic_minibatches: int = _help(2, "Number of optimiser steps of the critic per pass (ppo).")
    critic_clip: float | None = _help(
        0.5, "Maximum distance of a value from the rollout's per generation batch (ppo); None: any."
    )

    alarm_dropped_above: float | None = _help(
        0.5, "Stop when more than this share of a batch's rollouts was dropped; None: never."
    )
    alarm_entropy_below: float | None = _help(
        None, "Stop when the entropy per token, in nats, stays below this; None: never."
    )
    alarm_repetition_above: float | None = _help(
        None, "Stop when the share of 4-grams that repeat stays above this; None: never."
    )
    alarm_calls_below: float | None = _help(
        None, "Stop when the mean number of calls per rollout stays below this; None: never."
    )
    alarm_drift_above: float = _help(
        0.5,
        "Stop when, in the first generation batch, the engine's log-probs differ from the trainer's by more than this "
        "many nats on average: positions or weights are not the same in both. inf: never.",
    )
    alarm_patience: int = _help(
        5, "Number of logged steps in a row beyond its threshold after which an alarm stops the run."
    )
    alarm_without_signal: int = _help(
        10,
        "Logged steps in a row in which all rollouts of each prompt (of the batch, where a prompt has one rollout) "
        "returned the same, so that nothing was learned, before a warning says so, once. 0: never.",
    )
    stop_without_signal: bool = _help(False, "Stop, with the state saved, where alarm_without_signal would warn.")

    num_generations_eval: int = _help(1, "Number of episodes per task in an evaluation.")
    per_device_train_batch_size: int = _help(
        5, "Number of rollouts, with all their contexts, in one forward and backward pass of one device."
    )
    num_generations: int = _help(None, "Number of rollouts per prompt; 1 is allowed for reinforce++ and ppo. Preset.")
    beta: float = _help(None, "Weight of the KL divergence from the reference model; 0 loads none. Preset.")
    loss_type: str = _help(None, "Loss of TRL: grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo, vespo. Preset.")
    use_bias_correction_kl: bool = _help(
        None, "Multiply the KL in the loss by the ratio of policies, as TRL does by default, not the paper. Preset."
    )
    scale_rewards: str = _help(
        None, "Deviation that divides returns: of the group, of the batch, or none; None: as in the paper. Preset."
    )
    epsilon: float = _help(None, "Clip range of the ratio below 1. Preset.")
    epsilon_high: float | None = _help(
        None, "Clip range of the ratio above 1, in cispo the ratio itself; None: `epsilon`. Preset."
    )
    importance_sampling_level: str = _help(None, "Level of the ratio: token or sequence. Preset.")
    mask_truncated_completions: bool = _help(
        None, "Leave rollouts that a budget cut out of the loss (their return still counts in the group). Preset."
    )

    @property
    def preset(self) -> Preset:
        """What `algorithm` stands for."""
        return ALGORITHMS[self.algorithm]

    def __post_init__(self) -> None:
        settle_precision(self)
        self._check_choice("algorithm")
        for name, value in self._defaults().items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        self._check()
        self._check_json()
        rollouts = self.num_generations
        if rollouts == 1:  # TRL wants two at least, in whole groups: show it the batch of a device as one group
            self.num_generations = self._device_batch()
        try:
            super().__post_init__()  # type: ignore[no-untyped-call]
        except ValueError as error:
            raise self._explained(error) from error
        self.num_generations = rollouts

    def _defaults(self) -> dict[str, Any]:
        """Returns what each preset field stands for where it is left at None."""
        settings = {**_TRL_DEFAULTS, **self.preset.settings, "advantage_mask": self.loss_mask}
        own = settings["loss_type"]
        loss = self.loss_type or own
        if "cispo" in (loss, own) and loss != own:  # its clip range fits no other loss, nor theirs it
            settings["epsilon_high"] = CISPO_CLIP if loss == "cispo" else None
        return settings

    def _device_batch(self) -> int:
        """Returns the rollouts of one generation batch on one device."""
        steps = self.steps_per_generation or self.gradient_accumulation_steps
        return self.generation_batch_size or self.per_device_train_batch_size * steps

    def _explained(self, error: ValueError) -> ValueError:
        """Returns TRL's refusal of batch sizes, or of bf16, with the options to change; any other as it is."""
        if "bf16/gpu" in str(error):
            return ConfigurationError(
                "bf16 needs a GPU that has it, and there is none here. Leave it out: float32 is taken then."
            )
        if "divisible" not in str(error):
            return error
        if "eval" in str(error):
            return ConfigurationError(
                f"{error} Set per_device_eval_batch_size to a multiple of num_generations_eval="
                f"{self.num_generations_eval}."
            )
        if "global batch size" in str(error):
            return ConfigurationError(f"{error} Leave generation_batch_size out, or set it to a multiple of that.")
        return ConfigurationError(
            f"{error} It is per_device_train_batch_size={self.per_device_train_batch_size} x processes x "
            f"steps_per_generation (by default gradient_accumulation_steps={self.gradient_accumulation_steps}): "
            f"set per_device_train_batch_size to a multiple of num_generations={self.num_generations}."
        )

    def _check_choice(self, name: str) -> None:
        value, choices = getattr(self, name), _CHOICES[name]
        if value not in choices:
            raise ConfigurationError(f"{name}: got {value!r}. {suggest(str(value), choices)}")

    def _check(self) -> None:
        for name in _CHOICES:
            self._check_choice(name)
        for names, low, high in _RANGES:
            for name in names:
                value = getattr(self, name)
                if value is not None and not low <= value <= high:
                    raise ConfigurationError(f"{name} must lie between {low:g} and {high:.10g}, got {value}.")
        for name, default in _REPLACED.items():
            if getattr(self, name) != default:
                raise ConfigurationError(
                    f"{name}={getattr(self, name)!r} has no effect here: rewards and tool calls are the environment's. "
                    f"Leave it at {default!r} and set reward weights in env_kwargs."
                )
        self._check_engine()
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.advantage_mask and not self.loss_mask and not (self.beta and self.kl_placement == "loss"):
            raise ConfigurationError(
                "loss_mask=False with advantage_mask=True changes nothing: without advantages and without KL in the "
                "loss, the environment's tokens have no gradient. Leave advantage_mask out (it follows loss_mask)."
            )
        if self.stop_without_signal and not self.alarm_without_signal:
            raise ConfigurationError("stop_without_signal has no effect without alarm_without_signal; set both.")
        if self.temperature <= 0:
            raise ConfigurationError(
                f"temperature={self.temperature}: training needs rollouts that differ. Set it above 0; "
                "eval_temperature=0 evaluates greedily."
            )
        if self.num_generations == 1 and self.preset.single and self._device_batch() < 2:
            raise ConfigurationError(
                "num_generations=1 with one rollout per device and generation batch: there is nothing to compare it "
                "with. Raise per_device_train_batch_size or gradient_accumulation_steps."
            )
        if self.num_generations == 1 and not self.preset.single:
            single = ", ".join(name for name, preset in ALGORITHMS.items() if preset.single)
            raise ConfigurationError(
                f"num_generations=1: {self.algorithm} compares rollouts of one prompt and needs at least 2. "
                f"With one rollout per prompt, take algorithm {single}."
            )

    def _check_json(self) -> None:
        """Refuses what `TrainingArguments` would read as JSON and fail on without a name."""
        for name in self._VALID_DICT_FIELDS:
            text = getattr(self, name)
            if isinstance(text, str) and text.startswith("{"):
                try:
                    json.loads(text)
                except ValueError as error:
                    raise ConfigurationError(
                        f'{name} must be a JSON object, such as \'{{"name": "value"}}\', got {text!r:.80}: {error}.'
                    ) from error

    def _check_engine(self) -> None:
        for name, off in _NOT_CACHED.items():
            if self.engine == "cached" and getattr(self, name) != off:
                raise ConfigurationError(f"{name}={getattr(self, name)!r} needs engine=trl; engine=cached lacks it.")
        if self.engine == "trl" and self.eval_temperature is not None:
            raise ConfigurationError(
                f"eval_temperature={self.eval_temperature} needs engine=cached; engine=trl samples evaluations as it "
                "samples training. Leave it at None."
            )
