"""Every private name of TRL's and transformers' trainers, and of FSDP2, that this one leans on.

Those that are read, set or called are used here only, through the functions below. Methods that are overridden stay in
`trainer.py` and `resume/resumable.py`; `OVERRIDDEN` names them with the parameters that the overrides expect.
`tests/trainers/test_trl_contract.py` fails where one of them moves.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from types import MappingProxyType, SimpleNamespace
from typing import Any

from peft import PeftModel
from trl.trainer import grpo_trainer
from trl.trainer import utils as trl_utils

from agent_r1_gym.errors import AgentR1Error, ConfigurationError

OVERRIDDEN: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "_generate_and_score_completions": ("self", "inputs"),
        "_compute_loss": ("self", "model", "inputs"),
        "_get_per_token_logps_and_entropies": (
            *("self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
            ...,
        ),
        "_prepare_inputs": ("self", "generation_batch"),
        "_finalize_training": ("self", ...),
        "_get_train_sampler": ("self", "dataset"),
        "_load_optimizer_and_scheduler": ("self", "checkpoint"),
        "_load_rng_state": ("self", "checkpoint"),
        "_run_epoch": ("self", ...),
        "_save": ("self", "output_dir", "state_dict"),
        "_save_checkpoint": ("self", "model", "trial"),
        "log": ("self", "logs", "start_time"),
        "train": ("self", "resume_from_checkpoint", "trial", "ignore_keys_for_eval"),
        "create_accelerator_and_postprocess": ("self",),
    }
)
"""Methods of `GRPOTrainer` that are overridden, and the parameters they are called with; `...`: further ones, which are
handed on as they come."""

ATTRIBUTES = ("_step", "_buffered_inputs", "_metrics", "_logs", "_tokenizer")
"""What a `GRPOTrainer` has from its construction on; `_last_loaded_step` comes with vLLM, `_tr_loss` and
`_globalstep_last_logged` come with `train`."""

CALLED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "_generate_single_turn": (
            *("self", "prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"),
        ),
        "_get_output_dir": ("self", "trial"),
    }
)
"""Methods of `GRPOTrainer` that are called and not overridden."""


@contextmanager
def refusals_in_one_line() -> Iterator[None]:
    """Context in which options that TRL, transformers or PEFT refuse raise a `ConfigurationError` in their words.

    They raise a `ValueError`, or an `ImportError` where an option needs a package; a command would show a traceback.
    """
    try:
        yield
    except AgentR1Error:
        raise
    except (ValueError, ImportError, NotImplementedError) as error:
        raise ConfigurationError(
            f"TRL, transformers or PEFT refused these options: {' '.join(str(error).split())} Change the option that "
            "this names (`--help-all` lists all)."
        ) from error


def set_checkpointing(args: Any, checkpointing: bool) -> None:
    """Set whether the backward pass recomputes activations; transformers reads the newer of the two names, if any."""
    args.gradient_checkpointing = checkpointing
    if hasattr(args, "activation_checkpointing"):
        args.activation_checkpointing = checkpointing


def metrics_of(trainer: Any, *, training: bool | None = None) -> dict[str, list[float]]:
    """Return the metrics that TRL will log next, by name: of training or evaluation; None: of the current mode."""
    training = trainer.model.training if training is None else training
    metrics: dict[str, list[float]] = trainer._metrics["train" if training else "eval"]
    return metrics


def set_logged_column(trainer: Any, name: str, values: Sequence[Any]) -> None:
    """Replace a column of the latest batch in TRL's table of completions."""
    logged = trainer._logs[name]
    for _ in range(min(len(logged), len(values))):
        logged.pop()
    logged.extend(values)


def set_logged_lengths(trainer: Any, lengths: Sequence[int]) -> None:
    """Replace the lengths that TRL has logged of the latest batch: it counts the tokens in the loss."""
    if lengths:
        metrics = metrics_of(trainer)
        for name, value in (("mean", fmean(lengths)), ("min", min(lengths)), ("max", max(lengths))):
            metrics[f"completions/{name}_length"][-1] = float(value)


TOKEN_MEANS = (
    *("entropy", "kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"),
    *("cispo_clip_ratio", "vespo/phi_seq_mean"),
)
"""Metrics of TRL's loss that are means over the tokens of a micro-batch, 0 where it has none."""


@contextmanager
def without_token_means(trainer: Any) -> Iterator[None]:
    """Context in which TRL's loss logs none of `TOKEN_MEANS`, for a micro-batch that would add a 0 to their mean."""
    metrics = metrics_of(trainer)
    before = {name: len(metrics.get(name, ())) for name in TOKEN_MEANS}
    yield
    for name in metrics.keys() & TOKEN_MEANS:
        del metrics[name][before[name] :]


def tokenizer_of(trainer: Any) -> Any:
    """Return the tokenizer, or that of the trainer's processor."""
    return trainer._tokenizer


def output_folder(trainer: Any, trial: Any = None) -> str:
    """Return the run's folder; in a hyper-parameter search, that of the trial."""
    folder: str = trainer._get_output_dir(trial=trial)
    return folder


def save_checkpoint(trainer: Any) -> None:
    """Save a checkpoint of the step that has just ended."""
    trainer._save_checkpoint(trainer.model, None)


def between_steps(trainer: Any) -> bool:
    """Whether no gradient is being accumulated."""
    between: bool = trainer._step % trainer.args.gradient_accumulation_steps == 0
    return between


def progress_of(trainer: Any) -> dict[str, Any]:
    """Collect what TRL's checkpoints lack: counters, batches still to be trained on, metrics still to be logged.

    Not the sum of all losses: the final `train_loss` is the mean over the steps of one call of `train`, as the
    runtime and the speed are, so a resumed run's is of the steps after the resume.
    """
    period = (trainer.args.steps_per_generation or 1) * trainer.num_iterations
    return {
        "step": trainer._step,
        "pending": trainer._buffered_inputs if trainer._step % period else None,
        "metrics": dict(trainer._metrics["train"]),
        "loss": {"sum": trainer._tr_loss, "logged": trainer._globalstep_last_logged},
    }


def set_progress(trainer: Any, state: Mapping[str, Any]) -> None:
    """Restore what `progress_of` returned, but for the loss: `train` sets that to 0 as it begins."""
    trainer._step, trainer._buffered_inputs = state["step"], state["pending"]
    trainer._metrics["train"].update(state["metrics"])


def set_loss(trainer: Any, loss: Mapping[str, Any]) -> None:
    """Restore the sum of the losses since the last log, as `progress_of` returned it."""
    trainer._tr_loss, trainer._globalstep_last_logged = loss["sum"], loss["logged"]


def scale_learning_rate(trainer: Any, factor: float) -> None:
    """Multiply the learning rate, that of the steps to come too: schedules multiply their own base."""
    for group in trainer.optimizer.param_groups:
        group.update({name: group[name] * factor for name in ("lr", "initial_lr") if name in group})
    schedule = trainer.lr_scheduler
    for name in ("base_lrs", "_last_lr"):
        if hasattr(schedule, name):
            setattr(schedule, name, [rate * factor for rate in getattr(schedule, name)])


@contextmanager
def copy_reference_model(model: Any) -> Iterator[None]:
    """Make TRL's reference model a copy of `model`; nothing is changed where that is a path, an adapter, or None.

    TRL would load it from the path in the model's configuration, whatever has become of the weights since.
    """
    if model is None or isinstance(model, str | PeftModel):
        yield
        return
    trl: Any = grpo_trainer
    load, reference = trl.create_model_from_path, copy.deepcopy(model).eval()
    trl.create_model_from_path = lambda *_path, **_options: reference
    try:
        yield
    finally:
        trl.create_model_from_path = load


def check_generation(trainer: Any) -> None:
    """Refuse a TRL that generates through another signature.

    Raises:
        ConfigurationError: this is one.
    """
    expected = CALLED["_generate_single_turn"]
    installed = tuple(inspect.signature(type(trainer)._generate_single_turn).parameters)
    if installed != expected:
        raise ConfigurationError(
            f"engine=trl supports trl 1.16, whose GRPOTrainer._generate_single_turn takes {expected}; the "
            f"installed one takes {installed}. Install trl>=1.16,<1.17, or train with --engine cached."
        )


def generate_turn(
    trainer: Any, contexts: list[list[int]], *, max_new_tokens: int, stop_token_ids: Sequence[int]
) -> tuple[list[list[int]], list[list[float]] | None]:
    """Sample with TRL's backend after each context; return ids, and log-probs where it reports them.

    TRL's unit is a whole completion: it is lent the budget and the ends of a turn.
    """
    stops = sorted(stop_token_ids)
    budget: Mapping[str, Any] = {"max_new_tokens": max_new_tokens, "eos_token_id": stops}
    overrides = [(trainer.generation_config, budget), (trainer, {"eos_token_ids": stops})]
    before = [(owner, {name: getattr(owner, name) for name in values}) for owner, values in overrides]
    _set(overrides)
    try:
        ids, logprobs = trainer._generate_single_turn(contexts, None, {}, 1)
    finally:
        _set(before)
    return ids, logprobs


def micro_batches(trainer: Any) -> Any:
    """Return the micro-batches of the latest batch of rollouts, None before the first."""
    return trainer._buffered_inputs


def set_micro_batches(trainer: Any, batches: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Replace the micro-batches, and return the one that is due."""
    trainer._buffered_inputs = list(batches)
    current: Mapping[str, Any] = batches[trainer._step % len(batches)]
    return current


def prepare_logprobs(model: Any, args: Any) -> None:
    """Make a further model return log-probs in a log-prob pass, as TRL does with the reference model."""
    trl_utils.add_fused_lm_head(model, temperature=args.temperature, cast_lm_head_to_fp32=args.cast_lm_head_to_fp32)


TILE_WIDTH = 512
"""Tokens of the vocabulary that the output layer computes at a time on a CPU."""


@contextmanager
def labels_only(device: Any, *, vocab_size: int) -> Iterator[None]:
    """Make TRL's output layer compute on a CPU what it computes on a GPU: log-probs where a label is, and no others.

    Its tiles are narrow then: in torch each of a dozen operations writes a whole tile, so one that fits into the caches
    of a core takes half the time and a sixty-fourth of the memory (1,536 tokens x 49,152: 2.8 for 5.3 s).

    Args:
        device: of the model.
        vocab_size: number of tokens.
    """
    if device.type != "cpu":
        yield
        return
    utils: Any = trl_utils
    before = {name: getattr(utils, name) for name in ("_use_triton", "_CHUNKED_LOGPROB_CHUNK_SIZE")}
    narrow = min(TILE_WIDTH, vocab_size)
    _set([(utils, {"_use_triton": lambda _device: True, "_CHUNKED_LOGPROB_CHUNK_SIZE": narrow})])
    try:
        yield
    finally:
        _set([(utils, before)])


def install_weight_sync(trainer: Any, sync: Callable[[], None]) -> None:
    """Make TRL call `sync` before the first rollouts after an update, and weigh rollouts as it does those of vLLM.

    Args:
        trainer: a `GRPOTrainer` that was made without vLLM.
        sync: hands the trainer's weights to who rolls out.
    """
    trainer.use_vllm, trainer._last_loaded_step = True, -1
    trainer.vllm_generation = SimpleNamespace(sync_weights=sync)


def force_weight_sync(trainer: Any) -> None:
    """Make TRL hand over the weights before the next rollouts, whatever it takes them for."""
    if trainer.use_vllm:
        trainer._last_loaded_step = -1


@contextmanager
def without_autocast(model: Any) -> Iterator[None]:
    """Take away the autocast that Accelerate put around a model's `forward`, as long as it is open.

    Args:
        model: unwrapped; nothing is changed where Accelerate has not wrapped its `forward`.
    """
    plain = vars(model).get("_original_forward")
    if plain is None:
        yield
        return
    wrapped = vars(model)["forward"]
    model.forward = plain
    try:
        yield
    finally:
        model.forward = wrapped


@contextmanager
def preserve_trainer_state(trainer: Any) -> Iterator[None]:
    """Put back what computing a loss changes in a trainer: metrics to be logged, and its own attributes."""
    before, logged = dict(vars(trainer)), trainer._metrics
    trainer._metrics = {mode: copy.deepcopy(metrics) for mode, metrics in logged.items()}
    try:
        yield
    finally:
        vars(trainer).clear()
        vars(trainer).update(before)


def fsdp2_groups(module: Any) -> list[Any]:
    """Return the groups of weights of a module of FSDP2: each is gathered, and freed, at once."""
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]  # one in torch 2.7
    return [group for group in groups if group is not None]


def _set(values_of: Iterable[tuple[Any, Mapping[str, Any]]]) -> None:
    for owner, values in values_of:
        for name, value in values.items():
            setattr(owner, name, value)
