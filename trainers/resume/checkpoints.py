"""Checkpoints that are complete or ignored, and the checks before a resume.

Each checkpoint folder has a record, `checkpoint.json`. It is marked incomplete before the first file is written, and
lists every file with its size and checksum once all processes have written theirs. So neither a run that is killed at
any moment, even while it deletes an old checkpoint, nor a disk that changes a byte leaves anything that a resume would
mistake for a complete one. One process at a time trains in a folder (`lock_run`).
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import broadcast_object_list, gather_object, set_seed  # type: ignore[import-untyped]

from agent_r1_gym.errors import AgentR1Error, CheckpointError, ConfigurationError
from agent_r1_gym.run.agents import weights_fingerprint
from agent_r1_gym.support.files import atomic_directory, atomic_file, file_crc32, locked
from agent_r1_gym.support.json_data import parse_json
from trainers.algorithms.critic import check_weights
from trainers.config.options import AlgorithmOptions
from trainers.config.presets import PRESET_DEFAULTS
from trainers.resume.batch_partition import BatchPartition, check_partition
from trainers.resume.sharding import sharding_of

RECORD = "checkpoint.json"
FORMAT = 2
"""Format of the record and of the states next to it; 0.2 wrote none, and its states have other keys."""
FIXED = (
    *("algorithm", "seed", "num_generations", "num_iterations", "shuffle_dataset"),
    *("learning_rate", "weight_decay", "optim", "critic_learning_rate"),
    *("chat_template", "chat_template_kwargs"),
)
"""Options that a resume cannot change: they determine the next rows, or the restored optimiser ignores them."""
_TRL_LOSS = (
    *("delta", "max_grad_norm", "off_policy_mask_threshold", "router_aux_loss_coef", "top_entropy_quantile"),
    *("entropy_coef", "use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max", "entropy_coef_delta"),
    *("entropy_target", "sapo_temperature_neg", "sapo_temperature_pos"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
    *("vllm_importance_sampling_correction", "vllm_importance_sampling_mode"),
    *("vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"),
)
"""TRL's options of the loss that no preset sets."""
OBJECTIVE = tuple(
    name
    for name in dict.fromkeys(
        (
            *(option.name for option in fields(AlgorithmOptions)),
            *(*PRESET_DEFAULTS, *_TRL_LOSS, "group_reward"),
            *("temperature", "top_p", "top_k", "max_turn_tokens", "max_prompt_length", "max_completion_length"),
            *("engine", "max_steps", "num_train_epochs", "lr_scheduler_type", "warmup_steps", "bf16", "fp16"),
            "model_init_kwargs",
        )
    )
    if name not in FIXED
)
"""Options that a resume may change, with a warning: the run optimises something else from then on."""
SHARED_SECONDS = 90.0
"""Time after which all processes see a new file on a shared file system: NFS may show an older state for 60 s."""

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class CheckedPath(str):
    """The path of a checkpoint that `resolve_checkpoint` found complete: its files are not read for that again."""


def main_process_decides(decide: Callable[[], _T]) -> _T:
    """Call a function on the main process; all processes get its result, or its error as a `ConfigurationError`.

    On a file system over the network processes may see different states, and the same files would be read by all.
    """
    result: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            result[0] = decide()
        except ConfigurationError as error:
            result[1] = str(error)
        except Exception as error:  # one that is not passed on leaves the others waiting
            result[1] = f"{type(error).__name__}: {error}"
    value, problem = broadcast_object_list(result)
    if problem is not None:
        raise ConfigurationError(problem)
    decided: _T = value
    return decided


@contextmanager
def write_checkpoint(folder: Path, *, identity: Mapping[str, Any], args: Any, accelerator: Any) -> Iterator[None]:
    """Context in which all processes together write a checkpoint into `folder`.

    Args:
        folder: `checkpoint-STEP`; an existing one is replaced.
        identity: identity of the run, see `identity_of`.
        args: the training arguments.
        accelerator: the trainer's accelerator.

    Raises:
        CheckpointError: a file could not be written; the incomplete checkpoint is removed.
    """
    if args.should_save:
        for unfinished in (old for old in _folders(folder.parent) if _record(old).get("complete") is False):
            shutil.rmtree(unfinished)
    try:
        if args.should_save:
            with atomic_directory(folder) as begun:
                _write_record(begun, {"complete": False})
        accelerator.wait_for_everyone()
        with without_rotation(args):  # the new checkpoint is not complete before the end of the block
            yield
        accelerator.wait_for_everyone()
        if args.should_save:
            files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != RECORD)
            names = {str(path.relative_to(folder)): path for path in files}
            _write_record(
                folder,
                {
                    "complete": True,
                    "format": FORMAT,
                    "identity": identity,
                    "files": {name: path.stat().st_size for name, path in names.items()},
                    "crc32": {name: file_crc32(path) for name, path in names.items()},
                    "settings": json.loads(args.to_json_string()),  # without tokens of the hub
                },
            )
    except AgentR1Error:
        raise
    except Exception as error:
        if args.should_save:
            shutil.rmtree(folder, ignore_errors=True)
        raise CheckpointError(_unwritten(folder, error)) from error


@contextmanager
def without_rotation(args: Any) -> Iterator[None]:
    """Context in which transformers deletes no checkpoint because of `save_total_limit`.

    Args:
        args: the training arguments.
    """
    limit, args.save_total_limit = args.save_total_limit, None
    try:
        yield
    finally:
        args.save_total_limit = limit


@contextmanager
def kept_if_stopped(trainer: Any) -> Iterator[None]:
    """Context of the end of a run, in which one that was stopped keeps its last checkpoint: it is resumed from that.

    Args:
        trainer: the trainer.
    """
    stopped = trainer.state.global_step < trainer.state.max_steps
    with without_rotation(trainer.args) if stopped else nullcontext():
        yield


def incomplete_reason(folder: Path) -> str | None:
    """Reason why a folder cannot be resumed from; None if it is a complete checkpoint."""
    record = _record(folder)
    if not record:
        return f"it has no {RECORD}: another trainer saved it, or it is not a checkpoint"
    if "complete" not in record:
        return f"its {RECORD} is damaged"
    if not record["complete"]:
        return "the run was stopped while it was being written"
    return _damage(folder, record)


def _damage(folder: Path, record: Mapping[str, Any]) -> str | None:
    """Return what differs from the record of a checkpoint, which may be someone else's; None: nothing."""
    files, checksums = record.get("files"), record.get("crc32", {})  # checkpoints of 0.3 have no checksums
    if not isinstance(files, dict) or not isinstance(checksums, dict):
        return f"its {RECORD} is damaged"
    if any(not name.isprintable() or not (folder / name).resolve().is_relative_to(folder.resolve()) for name in files):
        return f"its {RECORD} names files outside of it"
    for name, size in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    for name, checksum in checksums.items():
        if name not in files or file_crc32(folder / name) != checksum:
            return f"{name} has changed since it was saved (another checksum)"
    return None


def last_complete(directory: Path, *, until: int | None = None) -> Path | None:
    """Find the latest complete checkpoint in a run's folder; warn of later ones that are incomplete.

    Args:
        directory: folder of the run.
        until: latest step to consider; None: any.
    """
    for folder in reversed(_folders(directory)):
        if until is not None and step_of(folder) > until:
            continue
        problem = incomplete_reason(folder)
        if problem is None:
            return folder
        logger.warning("%s is skipped: %s.", folder, problem)
    return None


def later_than(directory: Path, step: int) -> list[Path]:
    """Checkpoints of later steps, complete or not, the latest first."""
    return [folder for folder in reversed(_folders(directory)) if step_of(folder) > step]


def step_of(folder: Path) -> int:
    """Step of a folder `checkpoint-STEP`; 0 for any other name."""
    match = re.fullmatch(r"checkpoint-(\d+)", folder.name)
    return int(match[1]) if match else 0


def resolve_checkpoint(resume_from: str | bool | None, *, directory: str) -> str | None:
    """Choose the checkpoint to resume from; the main process decides for all. None: start from scratch.

    Args:
        resume_from: a folder; True (or "True"): the last complete checkpoint in `directory`, or None if there is none,
            so that one command line both starts and resumes a run.
        directory: output folder of the run.

    Returns:
        A `CheckedPath`, which is taken as it is where this function gets one.

    Raises:
        ConfigurationError: the folder is not a complete checkpoint, or another version wrote it.
    """
    if isinstance(resume_from, CheckedPath):
        return resume_from
    if resume_from is None or _starts_anew(resume_from):
        return None
    folder = main_process_decides(lambda: _complete_checkpoint(resume_from, directory=directory))
    return None if folder is None else CheckedPath(folder)


def _complete_checkpoint(resume_from: str | bool, *, directory: str) -> str | None:
    if str(resume_from).lower() == "true":
        last = last_complete(Path(directory))
        if last is None:
            logger.warning("resume_from_checkpoint: %s holds no complete checkpoint; starting at step 0.", directory)
            return None
        _check_format(last)
        return str(last)
    folder = Path(str(resume_from))
    problem = incomplete_reason(folder) if folder.is_dir() else "there is no such folder"
    if problem is not None:
        other = last_complete(folder) or last_complete(folder.parent)
        hint = f"The last complete one there is {other}." if other else "No other one there is complete."
        raise ConfigurationError(
            f"resume_from_checkpoint={str(folder)!r}: {problem}. {hint} To start a new run from its weights, name it "
            "as model_name_or_path."
        )
    _check_format(folder)
    return str(folder)


def _check_format(folder: Path) -> None:
    written = _record(folder).get("format", 1)
    if written != FORMAT:
        version = "version 0.2" if written == 1 else "a later version"
        raise ConfigurationError(
            f"{folder} was saved by {version} of agent-r1-gym, whose resume state this version cannot read: finish the "
            "run with that version, or start a new run from its weights: name it as model_name_or_path, with another "
            "output_dir and without resume_from_checkpoint."
        )


def check_no_checkpoints(resume_from: str | bool | None, *, directory: str) -> None:
    """Reject a new run in a folder with checkpoints of another one: a later resume would mistake them for its own.

    The main process decides for all.

    Args:
        resume_from: as for `resolve_checkpoint`.
        directory: output folder of the run.

    Raises:
        ConfigurationError: the folder holds checkpoints, and the run does not resume from one.
    """
    if not _starts_anew(resume_from):
        return
    checkpoints = main_process_decides(lambda: [folder.name for folder in _folders(Path(directory))])
    if checkpoints:
        raise ConfigurationError(
            f"output_dir={directory!r} holds checkpoints of an earlier run, the last of them {checkpoints[-1]}. "
            "Resume that run with --resume-from-checkpoint True, or choose another --out."
        )


@contextmanager
def lock_run(directory: str | None, *, shared: bool = True) -> Iterator[None]:
    """Hold the lock of a run's folder; the main process takes it for all.

    A queue may start a job again whose old process still lives: both would write the same checkpoints, and each would
    rotate away what the other is writing.

    Args:
        directory: the folder.
        shared: whether all processes write or read files there.

    Raises:
        ConfigurationError: another run holds it, or some process does not see what the main process writes there.
    """
    with ExitStack() as stack:

        def take() -> None:
            try:
                stack.enter_context(locked(Path(directory or "") / "run", timeout=0))
            except TimeoutError:
                raise ConfigurationError(
                    f"Another process is training in output_dir={directory!r}; wait for it, stop it, or choose another "
                    "--out."
                ) from None

        main_process_decides(take)
        if shared and PartialState().num_processes > 1:
            _check_shared(Path(directory or ""))
        yield


def _check_shared(directory: Path) -> None:
    """Reject a folder that the processes do not share: each checkpoint would lack the files of some."""
    state = PartialState()

    def write() -> str:
        name = f".shared-{secrets.token_hex(8)}"
        (directory / name).touch()
        return name

    path = directory / main_process_decides(write)
    deadline = time.monotonic() + SHARED_SECONDS
    # Not `Path.is_file`, which raises for a stale handle.
    while not (seen := os.path.isfile(path)) and time.monotonic() < deadline:  # noqa: PTH113
        time.sleep(1)
    blind = [rank for rank, sees in enumerate(gather_object([seen])) if not sees]
    if state.is_main_process:
        with suppress(OSError):
            path.unlink()
    if blind:
        raise ConfigurationError(
            f"output_dir={str(directory)!r}: expected a folder on a file system that all {state.num_processes} "
            f"processes share, but processes {', '.join(map(str, blind))}, counted from 0, do not see what process 0 "
            "wrote there. Choose an --out on a shared file system."
        )


def identity_of(trainer: Any) -> dict[str, Any]:
    """Identity of a run: what it must share with the checkpoint that it resumes from."""
    rows, accelerator = trainer.train_dataset, trainer.accelerator
    options = {name: getattr(trainer.args, name) for name in FIXED} | {
        **_environments(trainer.args),
        "rows of train_dataset": len(rows) if hasattr(rows, "__len__") else None,
        **BatchPartition(
            accelerator.num_processes, *(getattr(trainer.args, name) for name in BatchPartition._fields[1:])
        )._asdict(),
        "sharding": sharding_of(accelerator),
    }
    named = trainer.model.named_parameters()
    weights = {name: list(getattr(weight, "ds_shape", weight.shape)) for name, weight in named}
    identity = {"options": options, "weights": weights, "model": model_identity(trainer.model, trainer.args)}
    plain: dict[str, Any] = json.loads(json.dumps(identity, default=str))
    return plain


def model_identity(model: Any, args: Any) -> dict[str, Any]:
    """Return what names and shapes of weights do not show: the base model, and how its adapters are scaled."""
    name = str(getattr(getattr(model, "config", None), "_name_or_path", ""))
    revision = (args.model_init_kwargs or {}).get("revision") or "main"
    weights = (weights_fingerprint(Path(name)) or f"revision {revision} of {name}") if name else None
    adapters = getattr(model, "peft_config", {})
    return {
        "name": name,
        "weights": weights,
        "adapters": {
            adapter: {option: getattr(config, option, None) for option in ("lora_alpha", "use_rslora")}
            for adapter, config in adapters.items()
        },
    }


def _environments(args: Any) -> dict[str, Any]:
    """Environments of a run, independent of their spelling; evaluation environments may change."""
    if not (args.envs or args.env_id):
        return {}
    identities = [member.identity for member in args.environments]
    return identities[0] if len(identities) == 1 else {"envs": identities}


def check_identity(folder: Path, identity: Mapping[str, Any]) -> None:
    """Reject the checkpoint of another run; its batches may be partitioned differently, see `batch_partition`.

    Raises:
        ConfigurationError: options, batches or weights differ.
    """
    check_same_run(folder, identity)
    saved, own = _record(folder)["identity"]["options"], identity["options"]
    check_partition(folder, saved=BatchPartition.of(saved), own=BatchPartition.of(own), sharding=own["sharding"])


def check_same_run(folder: Path, identity: Mapping[str, Any]) -> None:
    """Reject the checkpoint of a run with other options or weights, whatever its batches.

    Raises:
        ConfigurationError: they differ.
    """
    saved, own = _record(folder)["identity"]["options"], identity["options"]
    changed = [name for name in own if name not in BatchPartition._fields and saved.get(name) != own[name]]
    if changed:
        was = ", ".join(f"{name}={saved.get(name)!r}" for name in changed)
        now = ", ".join(f"{name}={own[name]!r}" for name in changed)
        raise ConfigurationError(
            f"{folder} was saved with {was}; this run has {now}. Resume with the saved values, or start a new run "
            "from its weights: name it as model_name_or_path, without resume_from_checkpoint."
        )
    check_weights(folder, own=identity["weights"], saved=_record(folder)["identity"]["weights"], what="model")
    _check_model(folder, own=identity.get("model"), saved=_record(folder)["identity"].get("model"))


def _check_model(folder: Path, *, own: Any, saved: Any) -> None:
    """Reject another base model, or another scale of its adapters; 0.3 recorded none."""
    if own and saved and any(own[part] != saved[part] for part in ("weights", "adapters")):
        was, now = (
            f"{each['name'] or 'a given model'} (weights: {each['weights']}, adapters: {each['adapters']})"
            for each in (saved, own)
        )
        raise ConfigurationError(
            f"{folder} was saved by a run on another base model, or with adapters of another scale: {was}; this run "
            f"has {now}. Resume with the saved ones, or start a new run from its weights: name it as "
            "model_name_or_path, without resume_from_checkpoint."
        )


def changed_options_message(folder: Path, args: Any) -> str | None:
    """Describe options of the objective that differ between a resumed run and its checkpoint; None if none does."""
    saved, own = _record(folder).get("settings", {}), json.loads(args.to_json_string())
    changed = [name for name in OBJECTIVE if name in saved and name in own and saved[name] != own[name]]
    if not changed:
        return None
    changes = ", ".join(f"{name} {saved[name]!r} -> {own[name]!r}" for name in changed)
    return f"{folder} was saved with other options; the run continues with these: {changes}"


def saved_partition(folder: Path) -> BatchPartition:
    """Batch partition of the run that saved a checkpoint."""
    return BatchPartition.of(_record(folder)["identity"]["options"])


def random_state() -> dict[str, Any]:
    """States of all global random generators: Python's, numpy's, torch's on every device."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore the states that `random_state` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["cpu"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def temporary_seed(seed: int) -> Iterator[None]:
    """Seed all generators by `seed` and the rank within the block, and restore their states afterwards."""
    state = random_state()
    set_seed(seed, device_specific=True)
    try:
        yield
    finally:
        set_random_state(state)


def _starts_anew(resume_from: str | bool | None) -> bool:
    return str(resume_from).lower() in ("none", "false", "")


def _folders(directory: Path) -> list[Path]:
    """Folders `checkpoint-STEP`, sorted by step."""
    named = (path for path in directory.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name))
    return sorted((path for path in named if path.is_dir()), key=step_of)


def _record(folder: Path) -> dict[str, Any]:
    """Record of a checkpoint; {} without one, and without the key `complete` if it is damaged."""
    path = folder / RECORD
    if not path.is_file():
        return {}
    try:
        record = parse_json(path.read_text(encoding="utf-8"))
    except ValueError:  # no JSON, or bytes that are not UTF-8
        record = None
    return record if isinstance(record, dict) and "complete" in record else {"damaged": True}


def _write_record(folder: Path, record: Mapping[str, Any]) -> None:
    with atomic_file(folder / RECORD) as temporary:
        temporary.write_text(json.dumps(record, indent=1), encoding="utf-8")


def _unwritten(folder: Path, error: Exception) -> str:
    free = shutil.disk_usage(folder.parent).free / 1e9
    last = last_complete(folder.parent)
    earlier = f"The last complete checkpoint is {last}" if last else "There is no earlier checkpoint"
    return (
        f"{folder.name} could not be written to {folder.parent}, which has {free:.2f} GB free: {error!r}. {earlier}. "
        "Free space, or set save_total_limit or another output_dir; then resume with resume_from_checkpoint."
    )
