"""The command `train`: options -> checks -> trainer -> a trained model in `output_dir`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from typing import cast

from accelerate.utils import set_seed  # type: ignore[import-untyped]
from datasets import Dataset
from trl import ModelConfig, get_peft_config, get_quantization_config  # type: ignore[attr-defined]

from agent_r1_gym.registry import make_text_env
from agent_r1_gym.support.terminal import print_line, still_working
from trainers.algorithms.process_group import EXIT_DELAY_SECONDS, OtherRankError
from trainers.commands.command_line import read_options
from trainers.commands.train.building import build_trainer, model_init_kwargs
from trainers.config.agent import AgentConfig
from trainers.monitoring.console import ConsoleCallback, end_summary, nothing_parsed, silence_libraries, start_summary
from trainers.monitoring.memory import memory_of, size_of
from trainers.monitoring.preflight import (
    ModelSource,
    check_adapter,
    check_files,
    check_model,
    check_output,
    check_packages,
    find_model,
    load_chat,
    load_tokenizer,
    model_to_train,
)
from trainers.monitoring.provenance import write_end, write_start
from trainers.resume.checkpoints import check_no_checkpoints, lock_run, resolve_checkpoint
from trainers.resume.resumable import SPOILT
from trainers.resume.sharding import save_whole_model
from trainers.resume.signals import StopOnSignal
from trainers.trainer import AgentTrainer


def train(argv: Sequence[str]) -> None:
    """Train by the options of a command line, and save model and tokenizer in `output_dir`."""
    silence_libraries()
    args, model_args = read_options(argv)
    set_seed(args.seed)
    check_packages(args, model_args)
    check_output(args.output_dir)
    try:
        with lock_run(args.output_dir, shared=args.save_strategy != "no" and not args.save_only_model):
            _train(args, model_args)
    except OtherRankError:  # the failed rank reports; the launcher ends this one after it
        time.sleep(EXIT_DELAY_SECONDS)
        raise SystemExit(1) from None


def _train(args: AgentConfig, model_args: ModelConfig) -> None:
    check_no_checkpoints(args.resume_from_checkpoint, directory=args.output_dir or "")
    checkpoint = resolve_checkpoint(args.resume_from_checkpoint, directory=args.output_dir or "")
    with still_working("preparing the run: model and environments"):
        trainer, name = _build(args, model_args, checkpoint)
    if trainer.accelerator.is_main_process:
        print_line(_first_screen(trainer, name))
        trainer.add_callback(ConsoleCallback(trainer))
    # However the rollouts end, servers give the last weights back.
    with StopOnSignal(trainer.accelerator) as stop, closing(trainer.backend) if trainer.backend else nullcontext():
        trainer.add_callback(stop)
        trainer.train(resume_from_checkpoint=checkpoint)
    alarm, left = trainer.alarm.reason, f"The state is in {args.output_dir}"
    if trainer.weights_are_finite():
        stop.exit_if_stopped(trainer.checkpoint_folder(), resumable=not args.save_only_model)
        trainer.save_state()  # the log, which `agent-r1 report` draws
        save_whole_model(trainer, args.output_dir)
    else:
        trainer.save_state()
        alarm, left = alarm or "a gradient was not finite", f"The model is not saved: {SPOILT}"
    if trainer.accelerator.is_main_process:
        write_end(args, alarm)
    trainer.accelerator.wait_for_everyone()  # the launcher may end the main process as soon as another one has ended
    if alarm is not None:
        raise SystemExit(f"Training was stopped by an alarm: {alarm}. {left}.")
    if trainer.accelerator.is_main_process and trainer.card is not None:
        warning = nothing_parsed(trainer.progress.turns)
        print_line(f"{warning or 'trained;'} {end_summary(args.output_dir, trainer.card)}")


def _build(args: AgentConfig, model_args: ModelConfig, checkpoint: str | None) -> tuple[AgentTrainer, str]:
    """Check what can be checked without the model, then build the trainer; also return the name of the model."""
    name = find_model(
        model_to_train(args.warm_start, model_args.model_name_or_path), revision=model_args.model_revision
    )
    source = ModelSource(name, model_args.model_revision, args.trust_remote_code)
    check_files(source, model_args, needs_template=args.chat_template is None)
    tokenizer = load_tokenizer(source)
    chat = load_chat(source, tokenizer, args, checkpoint=checkpoint)
    check_model(source, tokenizer)
    peft_config = get_peft_config(model_args)
    check_adapter(peft_config, source)
    args.model_init_kwargs = model_init_kwargs(args, model_args)
    trainer = build_trainer(
        args,
        name,
        tokenizer=tokenizer,
        chat=chat,
        peft_config=peft_config,
        quantization_config=get_quantization_config(model_args),
    )
    return trainer, name


def _first_screen(trainer: AgentTrainer, model: str) -> str:
    """Compose the first screen of a run, and record it for reports."""
    args = trainer.args
    envs = {member.name: make_text_env(member.env_id, member.options) for member in args.environments}
    sizes = [(size_of(parameter), parameter.requires_grad) for parameter in trainer.model.parameters()]
    parameters = sum(size for size, trained in sizes if trained), sum(size for size, _ in sizes)
    rows = len(cast("Dataset", trainer.train_dataset))
    slots = str(trainer.slots) if args.engine != "trl" else ""
    text = start_summary(args, model, parameters, envs, rows, memory=memory_of(trainer), slots=slots)
    write_start(args, model, envs)
    for env in envs.values():
        env.close()
    return text
