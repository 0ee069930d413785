"""The options that this trainer adds to TRL's, and TRL's options whose default differs: one class per help group.

A class's docstring is the title of its group. The first sentence of a help text, up to a semicolon, stands in `--help`;
`--help-all` shows all of it. Bounds, choices and what a preset field is by default stand in the annotations: argparse
would take any further entry of a field's metadata for an argument of its own.
"""

# ruff: noqa: RUF009 - `_help` is `dataclasses.field`, shorter
from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_type_hints

from agent_r1_gym.run.mixture import ENV_SYNTAX

MAX_TURN_TOKENS, MAX_TURN_TOKENS_ON_CPU = 1024, 256
"""Tokens per turn in an environment whose actions may be long."""
MAX_COMPLETION_LENGTH, MAX_COMPLETION_LENGTH_ON_CPU = 8192, 2048
"""Tokens of an episode after its prompt. A CPU samples tens of tokens per second where a GPU samples thousands."""


class Between(NamedTuple):
    """Bounds of a number, both allowed; None always is."""

    low: float
    high: float = math.inf


class OneOf(tuple[str, ...]):
    """The values that an option may have; None too, where that is the default."""


class Preset(NamedTuple):
    """Value of a preset field that neither the user nor the algorithm's preset sets: Agent-R1's, else TRL's."""

    value: Any


PRIVILEGED = ("answer", "passages", "solution")
"""Kinds of privileged information, see `algorithms.privileged`."""
_SHARE, _COUNT, _AMOUNT = Between(0, 1), Between(1), Between(0)


def _help(default: Any, text: str, **metadata: Any) -> Any:
    return field(default=default, metadata={"help": text, **metadata})


def _preset(text: str) -> Any:
    return _help(None, f"{text} Preset.")


@dataclass
class EnvironmentOptions:
    """Environment."""

    env_id: str | None = _help(
        None,
        "Registered id of the text environment to train on, such as AgentR1/HotpotQA-v0; or the first word. In a YAML "
        "file only as env_id: TRL reserves the key env for environment variables.",
        aliases=["--env"],
    )
    env_kwargs: dict[str, Any] | str | None = _help(None, "Arguments for `gymnasium.make`, as a JSON object.")
    envs: list[str] | None = _help(
        None,
        f"Several environments in one run, or --env repeated; each {ENV_SYNTAX}, in a YAML file also a mapping with "
        "env_id, name, weight, env_kwargs, eval_env_kwargs. Other environment options go to all of them.",
    )
    group_reward: str | None = _help(
        None,
        "Reward that compares the rollouts of a task, added to that of the environment: FILE.toml of a `GroupJudge` "
        "(see docs/judges.md), or MODULE:FUNCTION from a list of trajectories to a list of numbers.",
    )
    num_train_seeds: Annotated[int | None, _COUNT] = _help(
        None, "Number of seeds to train on in an environment without a list of tasks; None: 1,000."
    )


@dataclass
class ModelOptions:
    """Model, and what of it is trained."""

    warm_start: str | None = _help(
        None,
        "Folder of `agent-r1 sft`, or of any run, to start from instead of a model; an adapter is merged into its base "
        "model first, so that the KL is to the warm start.",
    )
    chat_template: str | None = _help(
        None,
        "Chat template to train with: a jinja file, or the name of one of TRL's; for example qwen3_training.jinja. "
        "None: the model's, or TRL's variant of it that keeps earlier turns. Its options: chat_template_kwargs.",
    )


@dataclass
class RolloutOptions:
    """Rollouts and budgets."""

    max_turn_tokens: Annotated[int | None, _COUNT] = _help(
        None,
        "Maximum number of tokens that the model samples per turn; None: as many as the longest action of the "
        f"environment has bytes (`action_space.max_length`), plus one, at most {MAX_TURN_TOKENS:,}, on a CPU "
        f"{MAX_TURN_TOKENS_ON_CPU}.",
    )
    max_prompt_length: Annotated[int, _COUNT] = _help(
        8192, "Maximum length of a prompt, in tokens; a longer one is refused."
    )
    engine: Annotated[str, OneOf(("cached", "vllm", "trl"))] = _help(
        "cached",
        "Engine that samples: cached (the trainer's model), vllm or trl (TRL's own); cached and vllm keep the KV cache "
        "of an episode from turn to turn, and vllm runs next to the trainer or on servers (vllm_mode).",
    )
    rollout_slots: Annotated[int | None, _COUNT] = _help(
        None,
        "Maximum number of episodes that a process plays at once; this bounds the memory of rollouts. None: 128, on a "
        "GPU at most as many as fit its memory with all budgets used up; with engine=vllm 384, since an episode that "
        "waits for its tools takes no memory from the others there.",
    )
    refill_groups: Annotated[int, Preset(0), _AMOUNT] = _preset(
        "Maximum number of times that a group whose returns are all equal is replaced by one of another task; 0: "
        "never. The extra rollouts are logged as rollout/resampled, in units of the batch."
    )
    update_layout: Annotated[str, OneOf(("auto", "packed", "rows"))] = _help(
        "auto",
        "Layout of rollouts in an update: packed, rows or auto; packed has no padding and a shared prompt once, rows "
        "one trimmed sequence per context, auto takes packed on a CPU if the model's attention allows it, else rows.",
    )
    skip_zero_advantages: bool = _help(
        False,
        "Leave rollouts without an advantage, as in groups of equal returns, out of the passes of an update: they add "
        "nothing to the gradient. The metric entropy counts them by -log p of the tokens that they sampled.",
    )
    infrastructure_retries: Annotated[int, _AMOUNT] = _help(
        2, "Number of times that an episode whose backend failed is played again; then it is dropped."
    )


@dataclass
class SystemOptions:
    """Machines, one or many; these stand in `--help-all` only."""

    memory_check: bool | None = _help(
        None,
        "Try the largest update before the first rollout, with rollouts of full length, and drop it; insufficient "
        "memory is found at once. None: on a GPU. Not with DeepSpeed.",
    )
    enforce_eager: bool = _help(
        False,
        "Launch every kernel of a decoding pass from Python (engine=cached on a GPU); False: as CUDA graphs, where the "
        "model can be captured.",
    )
    overlap_rollouts: bool = _help(
        False,
        "Play the next batch while this one is trained on (engine=vllm with vllm_mode=server); rollouts are one update "
        "old then, and weighted by how far the policy has moved since (vllm_importance_sampling_mode).",
    )
    rollout_deadline: Annotated[float | None, _AMOUNT] = _help(
        None,
        "Seconds for the rollouts of a batch; None: until the last one ends. What still runs then is cut at the end of "
        "its turn, as a token budget cuts it, and counts with what it has earned: no group is left to its fastest. "
        "Rollouts that have not begun are dropped. A step of an environment is never cut: tools have timeouts.",
    )


@dataclass
class AlgorithmOptions:
    """Algorithm and credit."""

    algorithm: str = _help(
        "grpo",
        "Algorithm: grpo, rloo, reinforce++, reinforce++-baseline, ppo, steppo, dr_grpo, dapo, gspo, cispo, "
        "turn_group, gigpo, gagpo, mt_grpo, opd, opsd, dgpo, or MODULE:NAME of your own, or the name of an installed "
        "plug-in; it sets the preset fields that you do not set. Your own is a function from `CreditInputs` and "
        "`CreditOptions` to `Credit`, with a preset where `register_algorithm` gave it one "
        "(trainers.algorithms.advantages).",
    )
    gamma: Annotated[float, _SHARE] = _help(1.0, "Discount from one turn to the next, 0 to 1.")
    lam: Annotated[float, Preset(1.0), _SHARE] = _preset(
        "Lambda of generalised advantage estimation (ppo, steppo, dgpo, gagpo), 0 to 1."
    )
    gae_level: Annotated[str, OneOf(("token", "turn"))] = _help(
        "token", "Unit of time of GAE (ppo, dgpo): token or turn."
    )
    turn_returns: bool = _help(
        False,
        "Credit each turn with the return from that turn on, not with the whole return (grpo, reinforce++-baseline).",
    )
    step_weight: Annotated[float, Preset(1.0)] = _preset(
        "Weight of the step advantages next to the episode's (gigpo, mt_grpo)."
    )
    normalise_process_rewards: bool = _help(
        False, "Divide process rewards by the batch's largest absolute reverse cumulative sum; as in the paper."
    )
    kl_placement: Annotated[str, Preset("loss"), OneOf(("loss", "reward"))] = _preset(
        "Place of the KL of weight `beta`: loss or reward."
    )
    critic_privileged: Annotated[str | None, OneOf(PRIVILEGED)] = _help(
        None,
        "Privileged information that the critic alone reads in front of each context: answer, passages or solution; "
        "the gold answer, the gold passages of a question, or the oracle's turns. None: what the policy reads.",
    )
    teacher_model_name_or_path: str | None = _help(
        None,
        "Model that teaches, with the policy's tokenizer: a folder or hub id; see distillation_weight. None: the "
        "policy itself, which then needs teacher_privileged.",
    )
    teacher_privileged: Annotated[str | None, Preset(None), OneOf(PRIVILEGED)] = _preset(
        "Privileged information that the teacher alone reads in front of each context: answer, passages or solution."
    )
    distillation_weight: Annotated[float, Preset(0.0), _AMOUNT] = _preset(
        "Weight of the teacher: of its log-prob minus the policy's, at each sampled token; 0: no teacher."
    )
    distillation_placement: Annotated[str, Preset("advantage"), OneOf(("advantage", "reward", "loss"))] = _preset(
        "Where the teacher acts: advantage (its log-ratio, of its token alone), reward (the log-ratio as part of the "
        "returns), or loss (the forward KL over the whole vocabulary at each sampled token)."
    )
    distillation_failures_only: Annotated[bool, Preset(False)] = _preset(
        "Let the teacher score only rollouts with a wrong answer."
    )
    loss_mask: bool = _help(
        True,
        "Ablation: False lets the environment's tokens into the loss; with the advantages of the turn after (unless "
        "advantage_mask is set otherwise), as if the model had sampled them.",
    )
    advantage_mask: bool = _help(
        None,
        "Ablation: False gives the environment's tokens the advantages of the turn after; in means and targets too, in "
        "the loss only together with loss_mask=False. None: as loss_mask.",
    )
    critic_learning_rate: Annotated[float, _AMOUNT] = _help(
        1e-5, "Learning rate of the critic (ppo, steppo, dgpo), constant whatever `lr_scheduler_type` is."
    )
    critic_clip: Annotated[float | None, _AMOUNT] = _help(
        0.5,
        "Value-clip range around the value at rollout time, per generation batch (ppo, steppo, dgpo); None: no "
        "clipping.",
    )


@dataclass
class AlarmOptions:
    """Alarms: what stops a run, or warns."""

    alarm_zero_std_steps: Annotated[int, _AMOUNT] = _help(
        10,
        "Warn after this many logged steps in which no prompt's rollouts differ in return; those of the batch, where "
        "a prompt has one rollout. Nothing was learned from them. The warning comes once. 0: never.",
    )
    alarm_answer_share_above: Annotated[float | None, _SHARE] = _help(
        None,
        "Stop when the share of a batch's most frequent answer stays above this; counted where "
        "accepted answers differ between the tasks of a batch (logged as rollout/answer_share). None: never, but a "
        "warning comes once when it stays above 0.9.",
    )
    alarm_entropy_below: float | None = _help(
        None, "Stop when the entropy per token, in nats, stays below this; None: never."
    )
    alarm_entropy_above: Annotated[float | None, _AMOUNT] = _help(
        None, "Stop when the entropy per token, in nats, stays above this; None: never."
    )
    alarm_repetition_above: Annotated[float | None, _SHARE] = _help(
        None, "Stop when the share of 4-grams that repeat stays above this; None: never."
    )
    alarm_calls_below: Annotated[float | None, _AMOUNT] = _help(
        None,
        "Stop when the mean number of calls per rollout stays below this; None: never, but a warning comes once when "
        "it stays below a tenth of what it was.",
    )
    alarm_reward_drop_below: Annotated[float | None, _SHARE] = _help(
        None,
        "Stop when the reward stays below this share of its best; that is its best mean over five logged steps. None: "
        "never. It fires after the fall, whatever the cause is: for on_alarm=rollback.",
    )
    alarm_infra_failures_above: Annotated[float | None, _SHARE] = _help(
        0.5, "Stop when more than this share of a batch's rollouts was dropped; None: never."
    )
    alarm_drift_above: Annotated[float, _AMOUNT] = _help(
        0.5,
        "Stop when log-probs of engine and trainer differ by more than this many nats; on average over the first "
        "generation batch, with engine=vllm over any: positions or weights are not the same in both. With "
        "overlap_rollouts, rollouts that are an update old may differ twice as much: the policy itself has moved. inf: "
        "never.",
    )
    alarm_patience: Annotated[int, _COUNT] = _help(
        5, "Number of logged steps in a row beyond its threshold that stop the run."
    )
    on_alarm: Annotated[str, OneOf(("stop", "rollback"))] = _help(
        "stop",
        "What an alarm does: stop or rollback; rollback resumes from the last checkpoint (the start is one) saved "
        "before the first logged step beyond the threshold, with a fifth of the learning rate and other random "
        "numbers, at most three times. What came after is removed, and reported in output_dir/rollbacks.json. A "
        "backend that is down stops the run all the same.",
    )


@dataclass
class LoggingOptions:
    """Watching: the terminal, traces, evaluations during training."""

    trace_steps: Annotated[int, _AMOUNT] = _help(
        0, "Generation batches between two files of output_dir/traces, 16 rollouts token by token; 0: none."
    )
    logprob_check_steps: Annotated[int, _AMOUNT] = _help(
        10, "Generation batches between two checks of the engine's log-probs against the trainer's; 0: never."
    )
    eval_env_kwargs: dict[str, Any] | str | None = _help(
        None,
        "Arguments that differ from env_kwargs in evaluations during training, as a JSON object; {}: the same tasks.",
    )
    eval_episodes: Annotated[int, _COUNT] = _help(
        400, "Maximum number of episodes per evaluation; rounded down to whole batches."
    )
    eval_temperature: Annotated[float | None, _AMOUNT] = _help(
        None, "Sampling temperature of evaluations: 0 is greedy; None: as in training."
    )


@dataclass
class TRLOptions:
    """TRL's options whose default differs here."""

    num_generations: Annotated[int, Preset(5), _COUNT] = _preset(
        "Number of rollouts per prompt; 1 is allowed for reinforce++, ppo, steppo, opd, opsd and dgpo."
    )
    per_device_train_batch_size: Annotated[int, _COUNT] = _help(
        5, "Number of rollouts, with all their contexts, in one pass of one device."
    )
    learning_rate: Annotated[float, _AMOUNT] = _help(
        None,
        "Learning rate; None: by what is trained (an adapter takes ten times what all weights take) and the size of "
        "the model, see docs/training.md.",
    )
    gradient_checkpointing: bool = _help(
        None,
        "Recompute activations in the backward pass: less memory, more time; None: only where the update would not "
        "fit without, as estimated.",
    )
    max_completion_length: Annotated[int, _COUNT] = _help(
        None,
        "Maximum number of tokens of all turns and tool responses of a trajectory; where its context is rewritten, of "
        f"those that the context holds. None: {MAX_COMPLETION_LENGTH:,}, on a CPU {MAX_COMPLETION_LENGTH_ON_CPU:,}, at "
        "most the positions of the model.",
    )
    scale_rewards: Annotated[str, Preset(None)] = _preset(
        "Deviation that divides returns: of the group, of the batch, or none; None: as in the paper."
    )
    beta: Annotated[float, Preset(0.001)] = _preset(
        "Weight of the KL divergence from the reference model; 0 loads none."
    )
    use_bias_correction_kl: Annotated[bool, Preset(False)] = _preset(
        "Multiply the KL in the loss by the ratio of policies; as TRL does by default, not the paper."
    )
    loss_type: Annotated[
        str, Preset("dapo"), OneOf(("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"))
    ] = _preset("Loss of TRL: grpo, bnpo, dr_grpo, dapo, cispo, sapo, luspo, vespo.")
    epsilon: Annotated[float, Preset(0.2)] = _preset("Clip range of the ratio below 1.")
    epsilon_high: Annotated[float | None, Preset(None)] = _preset(
        "Clip range of the ratio above 1, in cispo of the ratio itself; None: `epsilon`, in cispo 5."
    )
    importance_sampling_level: Annotated[str, Preset("token"), OneOf(("token", "turn", "sequence"))] = _preset(
        "Level of the importance ratio: token, turn (the geometric mean over the tokens of a model turn) or sequence."
    )
    mask_truncated_completions: Annotated[bool, Preset(False)] = _preset(
        "Exclude rollouts that a budget cut from the loss; their return still counts in the group."
    )
    logging_steps: float = _help(1, "Optimiser steps between two logs; below 1 a share.")
    num_generations_eval: Annotated[int, _COUNT] = _help(1, "Number of episodes per task in an evaluation.")
    ddp_timeout: int = _help(
        14_400, "Seconds that a process waits for others, as for the longest rollout of all; then it fails."
    )


@dataclass
class DemonstrationOptions:
    """Demonstrations (`sft`)."""

    env_id: str | None = _help(
        None, "Id of the text environment, such as AgentR1/HotpotQA-v0; or the first word.", aliases=["--env"]
    )
    env_kwargs: dict[str, Any] | str | None = _help(None, "Options of the environment, a JSON object.")
    envs: list[str] | None = _help(None, f"Several environments, or --env repeated; each {ENV_SYNTAX}.")
    source: str = _help(
        "oracle",
        "Source of the demonstrations: oracle, a policy MODULE:NAME, self (the model's own successes), a run folder of "
        "`agent-r1 eval`, for example of a stronger model, or a file of conversations (OpenAI messages, ShareGPT or "
        "ATIF).",
        aliases=["--from"],
    )
    episodes: int | None = _help(None, "Number of tasks to play, the first ones; None: all, at most 1,000.")
    shuffle_tasks: bool = _help(False, "Shuffle the tasks by --seed before --episodes takes the first ones.")
    samples: int | None = _help(None, "Episodes per task; None: 1, and 4 for self.")
    min_return: float | None = _help(
        None,
        "Smallest return of an episode to learn from; None: a correct answer, or a return above 0 where nothing scores "
        "answers.",
    )
    keep_failed_calls: bool = _help(
        False, "Learn also from successful episodes with a failed call, or a turn that could not be parsed."
    )
    sampling_temperature: float = _help(1.0, "Temperature of the model's own samples (self).")
    max_turn_tokens: int = _help(512, "Maximum number of tokens per turn (self).")
    max_length: int | None = _help(
        8192, "Maximum length of a row in tokens; longer rows are skipped, never cut. None: any."
    )
    chat_template: str | None = _help(
        None, "Chat template instead of the model's: a file, or the name of one of TRL's."
    )
    learning_rate: float = _help(
        None,
        "Learning rate; None: by what is trained (an adapter takes ten times what all weights take, and more) and the "
        "size of the model, see docs/training.md.",
    )
    gradient_checkpointing: bool = _help(
        None,
        "Recompute activations in the backward pass: less memory, more time; None: only where the update would not fit "
        "without, as estimated.",
    )
    logging_steps: float = _help(1, "Optimiser steps between two logs; below 1 a share.")
    report_to: str | None = _help("none", "Log to tensorboard, wandb or trackio as well.")


OPTION_GROUPS = (EnvironmentOptions, ModelOptions, RolloutOptions, AlgorithmOptions, AlarmOptions, LoggingOptions)
"""In the order of `--help`."""

Constraint = TypeVar("Constraint", Between, OneOf, Preset)


@cache
def constraints(kind: type[Constraint]) -> Mapping[str, Constraint]:
    """Find what the annotations declare of one kind, by the option's name."""
    declared: dict[str, Constraint] = {}
    for group in (*OPTION_GROUPS, SystemOptions, TRLOptions):
        hints = get_type_hints(group, include_extras=True)
        for option in fields(group):
            for part in get_args(hints[option.name])[1:]:
                if isinstance(part, kind):
                    declared[option.name] = part
    return MappingProxyType(declared)
