"""The command `sft`: demonstrations -> token rows -> a trained model in `output_dir`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from accelerate import PartialState  # type: ignore[import-untyped]
from datasets import Dataset
from transformers import AutoConfig
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from trl import ModelConfig, SFTConfig, get_peft_config, get_quantization_config  # type: ignore[attr-defined]

import agent_r1_gym.envs  # noqa: F401  # registers the environments
from agent_r1_gym.errors import AgentR1Error, ConfigurationError
from agent_r1_gym.registry import TextEnv, make_text_env
from agent_r1_gym.run.agents import split_policy
from agent_r1_gym.run.evaluation.agent_card import MODEL_FILES, AgentCard
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.mixture import EnvConfig, env_configs_from_args, format_option, interleaved_order
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.run.token_session import bind_chat
from agent_r1_gym.run.trajectory_files import read_conversations
from agent_r1_gym.run.trust import remember
from agent_r1_gym.support.terminal import print_line, print_note, short_number, still_working
from agent_r1_gym.wrappers import split_window
from trainers.commands.command_line import read_config
from trainers.commands.demonstrations import (
    IGNORE_INDEX,
    SELF,
    TokenRow,
    contexts,
    failures,
    imported,
    play_demonstrations,
    successes,
    token_rows,
)
from trainers.commands.train.building import model_init_kwargs
from trainers.commands.train.environments import check_training_split
from trainers.config.agent import prepare_defaults
from trainers.config.options import DemonstrationOptions, TRLOptions
from trainers.monitoring.console import end_summary, optimiser_lines, screen, silence_libraries
from trainers.monitoring.defaults import estimate_update, settle_defaults
from trainers.monitoring.memory import GIB, size_of
from trainers.monitoring.preflight import (
    ModelSource,
    check_adapter,
    check_files,
    check_model,
    check_output,
    check_packages,
    find_model,
    load_tokenizer,
    warn_if_tokenizer_breaks_format,
)
from trainers.resume.checkpoints import check_no_checkpoints, lock_run
from trainers.resume.sharding import save_whole_model
from trainers.resume.signals import StopOnSignal
from trainers.rollouts.chat_format import ChatFormat
from trainers.rollouts.local_model import LocalOptions
from trainers.supervised import SupervisedTrainer

FOLDER = "demonstrations"
"""Folder in `output_dir` for the episodes played here: a run folder like that of `agent-r1 eval`."""
MIN_RISE, MIN_ACCURACY = 0.02, 0.95
"""Token accuracy that must be gained, or reached, or a warning comes: a call needs every token right."""


@dataclass
class DemonstrationConfig(DemonstrationOptions, SFTConfig):  # type: ignore[misc]  # as `AgentConfig`
    """Arguments of `sft`: all of `trl.SFTConfig`'s, and those of `DemonstrationOptions`."""

    _VALID_DICT_FIELDS = [*SFTConfig._VALID_DICT_FIELDS, "env_kwargs"]  # noqa: RUF012

    ddp_timeout: int = field(
        default=TRLOptions.ddp_timeout,
        metadata={"help": "Seconds that a process waits for others, as while the first one plays; then it fails."},
    )

    def __post_init__(self) -> None:
        prepare_defaults(self, learning_rate=2e-5, gradient_checkpointing=True)
        self.dataset_kwargs = {"skip_prepare_dataset": True}
        for name in ("episodes", "samples", "max_turn_tokens", "max_length"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {value}.")
        super().__post_init__()  # type: ignore[no-untyped-call]


def sft(argv: Sequence[str]) -> None:
    """Collect demonstrations, train on them, and save the result, by the options of a command line."""
    silence_libraries()
    args, model_args = read_config(argv, DemonstrationConfig, prog="python -m trainers.commands.sft")
    if args.env_id is None and not args.envs:
        raise ConfigurationError(
            "Name the environment, which neither the model nor --from brings along: agent-r1 sft ENV --model MODEL "
            "--from SOURCE --out DIR."
        )
    check_output(args.output_dir)
    with lock_run(args.output_dir):
        _sft(args, model_args)


def _sft(args: DemonstrationConfig, model_args: ModelConfig) -> None:
    environments = env_configs_from_args(args)
    _check_unused(args)
    check_packages(args, model_args)
    with still_working("making the environments"):
        envs = {member.name: make_text_env(member.env_id, member.options) for member in environments}

    # Whatever can be refused without a model is refused before one is loaded.
    source = _source_run(args)
    selected = _known_episodes(source, environments[0], envs, args)
    if not selected:
        for member in environments:
            check_training_split(member.env_id, envs[member.name], member.options)
    name = find_model(model_args.model_name_or_path, revision=model_args.model_revision)
    model = ModelSource(name, model_args.model_revision, args.trust_remote_code)
    check_files(model, model_args, needs_template=args.chat_template is None)
    tokenizer = load_tokenizer(model)
    check_model(model, tokenizer)
    peft_config = get_peft_config(model_args)
    check_adapter(peft_config, model)
    chat = ChatFormat.load(name, tokenizer, template=args.chat_template, revision=model_args.model_revision)
    for env in envs.values():
        warn_if_tokenizer_breaks_format(env, chat)

    for member in environments:
        if member.name not in selected:
            played = _play(member, envs[member.name], args, model)
            selected[member.name] = _select_episodes(played.episodes(), args, played.path)
    per_env = [_rows(selected[each.name], envs[each.name], chat, max_length=args.max_length) for each in environments]
    pooled = list(itertools.chain.from_iterable(per_env))
    order = interleaved_order([len(rows) for rows in per_env], [member.weight for member in environments])
    rows = [pooled[position] for position in order]

    args.model_init_kwargs = model_init_kwargs(args, model_args)
    longest = max(len(row["input_ids"]) for row in rows)
    settle_defaults(args, name, command="sft", peft_config=peft_config, length=longest)
    with still_working(f"loading {name}"):
        trainer = SupervisedTrainer(
            name,
            tokenizer,
            Dataset.from_list(rows),
            args,
            peft_config=peft_config,
            quantization_config=get_quantization_config(model_args),
            name="sft",
            estimated_bytes=estimate_update(args, name, adapter=peft_config, length=longest),
        )
    if trainer.is_world_process_zero():
        print_line(_first_screen(trainer, name, selected, rows))
    with StopOnSignal(trainer.accelerator) as stop:
        trainer.add_callback(stop)
        trainer.train(args.resume_from_checkpoint)
    stop.exit_if_stopped(trainer.checkpoint_folder())
    trainer.save_state()
    _restore_router_setting(trainer, model)
    save_whole_model(trainer, args.output_dir)
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(args.output_dir)
        chat.save(str(args.output_dir))
        held_out = _held_out_env(envs.values()) if source is None else _held_out_split(source)
        card = AgentCard.from_envs(
            environments,
            envs,
            base_model=name,
            algorithm="sft",
            settings={
                "source": args.source,
                "demonstrations": held_out or "of training tasks",
                "learning rate": f"{args.learning_rate:g}",
                "seed": f"{args.seed}",
            },
        )
        card.save(str(args.output_dir))
        remember(Path(str(args.output_dir)), environments)
        learned, warning = describe_learning(trainer.state.log_history)
        print_line(
            f"learned from {sum(map(len, selected.values()))} episodes ({len(rows)} rows){learned}; "
            f"{end_summary(args.output_dir, card)}"
        )
        for note in filter(None, [warning, held_out and f"{held_out}: the default questions of `eval` are no test"]):
            print_note(f"WARNING: {note}")
    trainer.accelerator.wait_for_everyone()  # the launcher may end the main process as soon as another one has ended


def _first_screen(
    trainer: SupervisedTrainer,
    model: str,
    selected: Mapping[str, Sequence[Trajectory]],
    rows: Sequence[TokenRow],
) -> str:
    """Compose the first screen of a run."""
    args, trained_model = cast("Any", trainer.args), cast("Any", trainer.model)
    sizes = [(size_of(weight), weight.requires_grad) for weight in trained_model.parameters()]
    trained = short_number(sum(size for size, own in sizes if own))
    adapter = getattr(trained_model, "peft_config", {}).get("default")
    how = "" if adapter is None else f" (LoRA of rank {adapter.r})"
    lengths = [len(row["input_ids"]) for row in rows]
    prompts = [next((at for at, label in enumerate(row["labels"]) if label != IGNORE_INDEX), 0) for row in rows]
    own = sum(label != IGNORE_INDEX for row in rows for label in row["labels"])
    batch = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    steps = args.max_steps if args.max_steps > 0 else -(-len(rows) // batch) * args.num_train_epochs
    first = next((records[0].messages for records in selected.values() if records), ())
    system = next((" ".join(message.content.split()) for message in first if message.role == "system"), "")
    memory = trainer.estimated_bytes
    total = short_number(sum(size for size, _ in sizes))
    return screen(
        [
            ("model", f"{model}: {trained} of {total} parameters are trained{how}"),
            *(
                ("environment", f"{name}: {len(records)} episodes of {args.source}")
                for name, records in selected.items()
            ),
            (
                "rows",
                f"{len(rows)} of {min(lengths)} to {max(lengths)} tokens; {own:,} of {sum(lengths):,} in the loss",
            ),
            ("prompt", f"{min(prompts)} to {max(prompts)} tokens{f': {system:.70} ...' if system else ''}"),
            ("training", f"{steps:g} steps of {batch} rows"),
            *optimiser_lines(args),
            ("memory", "not estimated: unknown model architecture" if memory is None else _gib(memory)),
            ("output", str(args.output_dir)),
        ]
    )


def _gib(memory: int) -> str:
    return f"about {memory / GIB:.2g} GiB per device, estimated for rows as long as the longest"


def describe_learning(log: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Describe what a log says of loss and token accuracy: the text for the last line, and a warning or "".

    Args:
        log: the trainer's log.
    """
    logs = [entry for entry in log if "mean_token_accuracy" in entry and "loss" in entry]
    if not logs:
        return "", ""
    tail = logs[-max(1, min(5, len(logs) // 2)) :]
    loss = sum(entry["loss"] for entry in tail) / len(tail)
    first, last = logs[0]["mean_token_accuracy"], sum(entry["mean_token_accuracy"] for entry in tail) / len(tail)
    text = f", loss {logs[0]['loss']:.3g} -> {loss:.3g}, token accuracy {first:.3f} -> {last:.3f}"
    if last >= MIN_ACCURACY:
        return text, ""
    change = f"rose by {last - first:.3f} only" if last - first < MIN_RISE else f"is {last:.3f}"
    return text, (
        f"token accuracy {change}: one token in {1 / max(1 - last, 1e-3):.0f} differs from the demonstrations, and a "
        "call needs every token right. Raise --learning-rate or --num-train-epochs, or measure first whether it "
        "suffices."
    )


def _check_unused(args: DemonstrationConfig) -> None:
    """Reject a folder with a model, or with checkpoints of a run that this one does not resume."""
    existing = [name for name in MODEL_FILES if (Path(args.output_dir or "") / name).exists()]
    if existing:
        raise ConfigurationError(f"{args.output_dir} holds a model already ({existing[0]}); choose another output_dir.")
    check_no_checkpoints(args.resume_from_checkpoint, directory=args.output_dir or "")


def _source_run(args: DemonstrationConfig) -> RunFolder | None:
    """Open the run folder that `--from` names; None: the source is a file, or a policy that has to play first."""
    if Path(args.source).exists():
        if args.envs:
            raise ConfigurationError(
                f"--from {args.source} is of one environment; name it, or a policy for all of them."
            )
        for name in ("episodes", "samples", "shuffle_tasks"):
            if getattr(args, name) not in (None, False):
                raise ConfigurationError(
                    f"{name} has no effect with --from {args.source}, which has been played; drop it."
                )
    if Path(args.source).is_dir():
        run = RunFolder(Path(args.source))
        _check_window(run, env_configs_from_args(args)[0])
        if held_out := _held_out_split(run):
            print_note(f"the demonstrations in {args.source} are {held_out}: measure on others")
        return run
    if Path(args.source).is_file():
        return None
    if args.source.startswith((".", "/", "~")) or ("/" in args.source and ":" not in args.source):
        raise ConfigurationError(
            f"--from {args.source}: no such folder or file; expected a run of `agent-r1 eval`, or a file of "
            "conversations."
        )
    if split_policy(args.source)[0] is not None:
        raise ConfigurationError(
            f"--from {args.source}: let the model play the training split first and name that folder: agent-r1 eval "
            f"{args.env_id or 'ENV'} --split train --policy {args.source} --out RUN; or take --from self for the model "
            "under training."
        )
    return None


def _held_out_env(envs: Iterable[TextEnv]) -> str | None:
    """Name the held-out split that an environment of the demonstrations serves."""
    splits = (getattr(getattr(env.unwrapped, "tasks", None), "split", "train") for env in envs)
    return next((f"of the held-out split {split!r}" for split in splits if split in ("validation", "test")), None)


def _held_out_split(run: RunFolder) -> str | None:
    split = run.settings()["env_options"].get("split")
    return None if split in (None, "train") else f"of the held-out split {split!r}"


def _check_window(run: RunFolder, member: EnvConfig) -> None:
    """Reject demonstrations with another context window: the model must learn from what it will see."""
    played, requested = (split_window(options)[1] for options in (run.settings()["env_options"], member.options))
    if played != requested:
        was, now = (
            " ".join(format_option(*pair) for pair in window.items()) or "no window" for window in (played, requested)
        )
        raise ConfigurationError(
            f"The episodes in {run.path} were played with {was}, the command line has {now}: a model must be taught on "
            "the observations that it will see. Pass --context-window and --context-mode as in that run."
        )


def _play(member: EnvConfig, env: TextEnv, args: DemonstrationConfig, model: ModelSource) -> RunFolder:
    """Let the source play; the main process plays for all."""
    own = None
    if args.source == SELF:
        if is_deepspeed_zero3_enabled():  # type: ignore[no-untyped-call]
            raise ConfigurationError(
                "--from self: the main process alone plays, and with DeepSpeed ZeRO-3 it would wait for the others to "
                "load their shares of the model. Let the model play first, without a launcher, and name that folder: "
                f"agent-r1 eval {member.env_id} --split train --policy local:{model.name} --temperature 1 --out RUN, "
                "with the options of this command; then sft --from RUN. (Of a revision of a model, name a folder.)"
            )
        own = LocalOptions(
            model=model.name,
            revision=model.revision,
            temperature=args.sampling_temperature,
            max_turn_tokens=args.max_turn_tokens,
            chat_template=args.chat_template,
        )
    folder = Path(args.output_dir or "") / FOLDER / (member.name if args.envs else "")
    state = PartialState()
    if state.is_main_process:
        play_demonstrations(
            folder,
            env,
            env_id=member.env_id,
            env_options=member.options,
            policy=args.source,
            model=own,
            episodes=args.episodes,
            shuffle=args.shuffle_tasks,
            samples=args.samples or (1 if own is None else 4),
            seed=args.seed,
        )
    state.wait_for_everyone()
    return RunFolder(folder)


def _known_episodes(
    source: RunFolder | None, member: EnvConfig, envs: Mapping[str, TextEnv], args: DemonstrationConfig
) -> dict[str, list[Trajectory]]:
    """Read the demonstrations of a run or a file, by the name of their environment; {}: a policy has to play first."""
    path, env = Path(args.source), envs[member.name]
    if source is None and not path.is_file():
        return {}
    if source is None:
        records = imported(read_conversations(path), env, env_id=member.env_id, source=args.source)
    else:
        records = source.episodes()
    return {member.name: _select_episodes(records, args, path)}


def _select_episodes(records: Sequence[Trajectory], args: DemonstrationConfig, path: Path) -> list[Trajectory]:
    selected = successes(records, min_return=args.min_return)
    if not selected:
        best = max((record.episode_return for record in records), default=0.0)
        wanted = "succeeded" if args.min_return is None else f"has a return of {args.min_return:g}"
        raise AgentR1Error(
            f"None of the {len(records)} episodes in {path} {wanted} (best return: {best:g}), so there is nothing "
            "to learn from. Try another --from, more --samples, or a lower --min-return."
        )
    if PartialState().is_main_process:
        print_line(f"demonstrations: {len(selected)} of {len(records)} episodes in {path} succeeded")
    if args.keep_failed_calls:
        return selected
    clean = [record for record in selected if not failures(record)]
    errors = ", ".join(
        f"{error}: {number}"
        for error, number in Counter(error for record in selected for error in failures(record)).most_common()
    )
    if not clean:
        raise AgentR1Error(
            f"Each of the {len(selected)} successful episodes in {path} has a failed call or an unparsed turn "
            f"({errors}): the model would learn these mistakes. Fix the source, or add --keep-failed-calls True."
        )
    if len(clean) < len(selected):
        print_note(
            f"{len(selected) - len(clean)} of these episodes have a failed call or an unparsed turn ({errors}) and are "
            "skipped; --keep-failed-calls True learns from them"
        )
    return clean


def _rows(records: Sequence[Trajectory], env: TextEnv, chat: ChatFormat, *, max_length: int | None) -> list[TokenRow]:
    rows: list[TokenRow] = []
    inexpressible = 0
    for context in contexts(records, env):
        bound = bind_chat(chat, env)
        if all(bound.template.expresses(message) for message in context.messages):
            rows += token_rows(bound, context.messages, opening=context.num_prompt_messages)
        else:
            inexpressible += 1
    if inexpressible:
        print_note(f"{inexpressible} demonstrations have a call that the model's tool format cannot express; skipped")
    fitting = [row for row in rows if max_length is None or len(row["input_ids"]) <= max_length]
    if len(fitting) < len(rows):
        print_note(f"{len(rows) - len(fitting)} of {len(rows)} rows are longer than max_length={max_length}; skipped")
    if not rows:
        raise ConfigurationError(
            "The model's tool format can express the calls of no demonstration; use another parser, such as "
            "parser='hermes'."
        )
    if not fitting:
        raise ConfigurationError(f"Every row is longer than max_length={max_length} tokens; raise it.")
    return fitting


def _restore_router_setting(trainer: SupervisedTrainer, model: ModelSource) -> None:
    base = AutoConfig.from_pretrained(model.name, **model.options).get_text_config()
    if hasattr(base, "output_router_logits"):
        # TRL turns the router's loss on in the configuration of a mixture of experts; no cache fits a model saved so.
        config = trainer.accelerator.unwrap_model(trainer.model).config.get_text_config()
        config.output_router_logits = base.output_router_logits
