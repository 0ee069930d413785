"""Preflight: find the model, and reject what cannot work (model, adapter, packages, prompts) before the first step."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from accelerate import PartialState  # type: ignore[import-untyped]
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.integrations import get_reporting_integration_callbacks  # type: ignore[attr-defined]
from trl import ModelConfig  # type: ignore[attr-defined]

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Thought, ToolCall
from agent_r1_gym.errors import ConfigurationError, suggest
from agent_r1_gym.registry import TextEnv
from agent_r1_gym.run import model_folder
from agent_r1_gym.run.agents import weights_fingerprint
from agent_r1_gym.run.session import Session
from agent_r1_gym.run.token_session import bind_chat
from agent_r1_gym.support.files import atomic_directory
from agent_r1_gym.support.packages import install_command
from trainers.config.agent import AgentConfig
from trainers.rollouts.chat_format import ChatFormat, saved_date
from trainers.rollouts.collect import job_of
from trainers.rollouts.gguf import convert_gguf
from trainers.rollouts.local_model import is_adapter, load_error, write_merged

_UNNAMED_OUTPUT = "trainer_output"
"""What transformers makes of no output_dir."""
PROMPTS = 256
"""Number of rows, spread over the data set, whose prompts are measured."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Source of a model: folder or hub id, revision, and whether its own code may run."""

    name: str
    revision: str = "main"
    trust_remote_code: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of `from_pretrained`."""
        return {"revision": self.revision, "trust_remote_code": self.trust_remote_code}


def check_packages(args: Any, model_args: ModelConfig) -> None:
    """Reject options whose package is not installed, unknown services, and quantisation without an adapter."""
    engine = getattr(args, "engine", None)  # `sft` has none
    if engine == "vllm" and args.vllm_mode == "colocate" and find_spec("vllm") is None:
        raise ConfigurationError(
            f"engine=vllm needs vLLM, which is not installed: `{install_command('vllm')}`, or use engine=cached, or "
            "servers (vllm_mode=server)."
        )
    for service in args.report_to or ():
        try:
            for callback in get_reporting_integration_callbacks([service]):  # type: ignore[no-untyped-call]
                callback()
        except (ValueError, RuntimeError) as error:
            raise ConfigurationError(f"report_to={service}: {error}") from error
    if args.use_liger_kernel and find_spec("liger_kernel") is None:
        raise ConfigurationError(
            "use_liger_kernel=True needs liger-kernel, which is not installed: `pip install liger-kernel`, or drop it."
        )
    for option in ("load_in_4bit", "load_in_8bit"):
        if not getattr(model_args, option):
            continue
        if find_spec("bitsandbytes") is None:
            raise ConfigurationError(
                f"{option}=True needs bitsandbytes, which is not installed: `pip install bitsandbytes`, or drop it."
            )
        if not model_args.use_peft:
            raise ConfigurationError(f"{option}=True trains an adapter only: set use_peft=True, or drop {option}.")


# --- The model ---

_ORIGIN = "merged_from.txt"
"""File with the fingerprint of the adapter that a merged model was made of."""


def model_to_train(warm_start: str | None, model: str | None) -> str | None:
    """Choose what to train: the model, or the warm start, whose adapter the main process merges into its base.

    Raises:
        ConfigurationError: both are set, or there is no such warm start.
    """
    if warm_start is None:
        return model
    if model is not None:
        raise ConfigurationError(f"Set warm_start={warm_start!r} or model_name_or_path={model!r}, not both.")
    folder = Path(warm_start)
    if not folder.is_dir():
        raise ConfigurationError(f"warm_start={warm_start!r}: no such folder; expected one of `agent-r1 sft`.")
    if not is_adapter(folder):
        return str(folder)
    merged = folder / "merged"
    with PartialState().main_process_first():
        origin = merged / _ORIGIN
        # Merged before, from the adapter as it is now? Another one may have replaced it since.
        if not origin.is_file() or origin.read_text(encoding="utf-8") != str(weights_fingerprint(folder)):
            merge_adapter(folder, merged)
    return str(merged)


def merge_adapter(folder: Path, out: Path) -> None:
    """Merge an adapter into its base and write the model, tokenizer and chat format atomically.

    Args:
        folder: folder of the adapter.
        out: folder of the merged model; an existing one is replaced.

    Raises:
        ConfigurationError: the base model or the adapter cannot be loaded.
    """
    with atomic_directory(out) as temporary:
        write_merged(folder, temporary)
        (temporary / _ORIGIN).write_text(str(weights_fingerprint(folder)), encoding="utf-8")


def find_model(name: str | None, *, revision: str = "main") -> str:
    """Find the model to train: a folder or a hub id; a GGUF file becomes the folder that it is converted into.

    Raises:
        ConfigurationError: there is no such model (see `model_folder.find_model`), or the file cannot be converted.
    """
    return convert_gguf(model_folder.find_model(name, revision=revision))


def check_files(source: ModelSource, model_args: ModelConfig, *, needs_template: bool) -> None:
    """Reject a model whose files cannot work, before the tokenizer or anything else is loaded.

    Args:
        source: source of the model.
        model_args: whether an adapter is trained.
        needs_template: whether the model's own chat template is used.
    """
    model_folder.check_model_files(
        source.name,
        named=f"model_name_or_path={source.name!r}",
        revision=source.revision,
        needs_template=needs_template,
        trained="an adapter" if model_args.use_peft else "all weights",
    )


def check_model(source: ModelSource, tokenizer: Any) -> None:
    """Reject a model that cannot be trained with its tokenizer; reads only the configuration.

    Raises:
        ConfigurationError: the architecture does not generate text or has learned positions, or there are fewer
            embeddings than tokens.
    """
    named = f"model_name_or_path={source.name!r}"
    try:
        config = AutoConfig.from_pretrained(source.name, **source.options)
    except (OSError, ValueError) as error:
        raise load_error(source.name, error, part="configuration") from error
    kind = getattr(transformers, (config.architectures or [""])[0], None)  # None: the model's own code
    if kind is not None and not kind.can_generate():
        raise ConfigurationError(f"{named} is a {kind.__name__}, which does not generate text. Name a causal model.")
    _check_positions(config, named, trust_remote_code=source.trust_remote_code)
    embedded, highest = config.get_text_config().vocab_size, max(tokenizer.get_vocab().values())
    if highest >= embedded:
        raise ConfigurationError(
            f"{named} embeds {embedded} tokens, but its tokenizer has ids up to {highest}: the two do not match. "
            "Take the model's own tokenizer, or resize the embeddings (model.resize_token_embeddings)."
        )


def _check_positions(config: Any, named: str, *, trust_remote_code: bool = False) -> None:
    """Reject learned positions: TRL counts them from the padding of a batch, engines from the prompt."""
    with torch.device("meta"):
        try:
            model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config.get_text_config(), trust_remote_code=trust_remote_code
            )
        except (ValueError, OSError):  # no class for text alone
            return
    tables = {path for path, module in model.named_modules() if isinstance(module, torch.nn.Embedding)}
    learned = [path for path in tables if re.search(r"wpe|position|(?:^|_)pos(?:_|$)", path.rpartition(".")[2])]
    if learned:
        raise ConfigurationError(
            f"{named} is a {type(model).__name__}, whose positions are learned ({learned[0]}): in padded batches it "
            "would be trained on other positions than it samples with. Take a model with rotary positions, as all "
            "recent families have them."
        )


def check_output(output_dir: str | None) -> None:
    """Create the folder of a run.

    Raises:
        ConfigurationError: it is not named, or cannot be created or written to.
    """
    if output_dir in (None, _UNNAMED_OUTPUT):
        raise ConfigurationError(
            "No output folder: pass --out runs/NAME. There is no default, so that no run overwrites another."
        )
    folder = Path(output_dir or "")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ConfigurationError(f"output_dir={output_dir!r} cannot be written to: {error}.") from error


def load_tokenizer(source: ModelSource) -> Any:
    """Load a model's tokenizer; like in TRL, eos is the pad token where there is none.

    Raises:
        ConfigurationError: it cannot be loaded.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.name, **source.options)
    except (OSError, ValueError) as error:
        raise load_error(source.name, error, part="tokenizer") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_chat(source: ModelSource, tokenizer: Any, args: AgentConfig, *, checkpoint: str | None = None) -> ChatFormat:
    """Load the chat format saved with the model; `chat_template` and `chat_template_kwargs` of `args` override it.

    The tokenizer gets the same template, so that servers of the trained model render as in training.

    Args:
        source: source of the model.
        tokenizer: the model's tokenizer.
        args: the configuration.
        checkpoint: what the run resumes from: its prompts keep the date that they had.

    Raises:
        ConfigurationError: the template does not support episodes of several turns.
    """
    options = cast("Mapping[str, Any] | None", args.chat_template_kwargs)
    chat = ChatFormat.load(
        source.name,
        tokenizer,
        template=args.chat_template,
        template_options=options,
        revision=source.revision,
        date=None if checkpoint is None else saved_date(checkpoint),
    )
    tokenizer.chat_template = chat.template.source
    return chat


def check_adapter(peft_config: Any, source: ModelSource) -> None:
    """Reject LoRA targets that the model does not have, and a rank below 1.

    A single target comes as text, which PEFT matches with whole paths: the name of a module becomes a list of one.

    Args:
        peft_config: configuration of the adapter, or None.
        source: source of the model; only its configuration is read.

    Raises:
        ConfigurationError: a target matches no module, or the output layer.
    """
    if peft_config is None:
        return
    if peft_config.r < 1:
        raise ConfigurationError(f"lora_r must be at least 1, got {peft_config.r}.")
    config = AutoConfig.from_pretrained(source.name, **source.options)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=source.trust_remote_code)  # type: ignore[no-untyped-call]
    linear = [path for path, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    _check_targets(peft_config.modules_to_save or (), model, linear, option="lora_modules_to_save")
    targets = peft_config.target_modules or ()
    known = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    if not targets and not getattr(peft_config, "target_parameters", None) and config.model_type not in known:
        raise ConfigurationError(
            f"lora_target_modules: no default is known for {config.model_type}. Name some, or use all-linear."
        )
    if targets == "all-linear":  # which leaves the head out
        return
    if isinstance(targets, str) and _matches(targets, model):
        _check_head([path for path, _ in model.named_modules() if re.fullmatch(targets, path)], model)
        return
    if isinstance(targets, str):
        targets = peft_config.target_modules = {targets}
    _check_targets(targets, model, linear, option="lora_target_modules")
    _check_head(targets, model)


def _check_head(targets: Iterable[str], model: torch.nn.Module) -> None:
    """Reject an adapter on the head, which would not be trained: log-probabilities are computed from its weights."""
    head: Any = model.get_output_embeddings()  # type: ignore[operator]
    path = next((path for path, module in model.named_modules() if module is head), None)
    if path is not None and any(target == path or path.endswith(f".{target}") for target in targets):
        raise ConfigurationError(
            f"lora_target_modules: the output layer {path!r} takes no adapter. Drop it, or train the whole layer by "
            f"lora_modules_to_save={path.rpartition('.')[2]}."
        )


def _matches(pattern: str, model: torch.nn.Module) -> bool:
    """Return whether a pattern matches the whole path of a module; text that is not a pattern matches nothing."""
    try:
        return any(re.fullmatch(pattern, path) for path, _ in model.named_modules())
    except re.error:
        return False


def _check_targets(targets: Iterable[str], model: torch.nn.Module, linear: Iterable[str], *, option: str) -> None:
    paths = [path for path, _ in model.named_modules()]
    for target in targets:
        if target not in paths and not any(path.endswith(f".{target}") for path in paths):
            names = {path.rpartition(".")[2] for path in linear}
            raise ConfigurationError(
                f"{option}: {type(model).__name__} has no module {target!r}. {suggest(target, names)}"
                + (" Or use all-linear." if option == "lora_target_modules" else "")
            )


def check_prompts(env: TextEnv, rows: Sequence[Mapping[str, Any]], chat: ChatFormat, *, longest: int) -> int:
    """Measure the prompts of rows spread over the data set.

    Args:
        env: environment to reset with the rows.
        rows: rows of the data set.
        chat: the chat format.
        longest: `max_prompt_length`, in tokens.

    Returns:
        The length of the longest, in tokens.

    Raises:
        ConfigurationError: a prompt is longer.
    """
    # A program writes the prompts, and each is an episode of it.
    is_program = isinstance(env.unwrapped, ToolEnv) and env.unwrapped.waits_at_reset
    step = len(rows) if is_program else max(1, len(rows) // PROMPTS)
    sessions = (Session(env, job_of(rows[index], index)) for index in range(0, len(rows), step))
    lengths = [len(bind_chat(chat, env).prompt_ids(session.messages)) for session in sessions]
    if lengths and max(lengths) > longest:
        raise ConfigurationError(
            f"max_prompt_length={longest}, but of {len(lengths)} sampled prompts the longest has {max(lengths)} "
            f"tokens: raise it to at least {-(-max(lengths) // 64) * 64}, or shorten "
            + ("the first request of the program." if is_program else "the environment's system_prompt.")
        )
    return max(lengths, default=0)


def check_budgets(env: TextEnv, chat: ChatFormat, args: AgentConfig, *, prompt: int, positions: int | None) -> None:
    """Reject token budgets in which no call fits, or that the model's context cannot hold.

    Args:
        env: the environment.
        chat: the chat format.
        args: the configuration, its `max_turn_tokens` set.
        prompt: tokens of the longest prompt, worked examples included.
        positions: context length of the model; None: unknown.

    Raises:
        ConfigurationError: a budget is too small, or larger than the context.
    """
    turns = _first_turns(env, chat)
    needed = len(bind_chat(chat, env).turn_ids(turns[0])) if turns else 1
    for name in ("max_completion_length", "max_turn_tokens"):
        budget = getattr(args, name)
        if budget is not None and budget < needed:
            message = (
                f"{name}={budget}: no call fits, since the first turn of the oracle takes {needed} tokens "
                f"({turns[0]!r:.80}). Raise it to at least {4 * needed}."
            )
            if name == "max_completion_length":
                raise ConfigurationError(message)
            logger.warning("%s", message)  # a cut turn is an experiment that one may want
    if positions is None:
        return
    if prompt + needed > positions:
        raise ConfigurationError(
            f"The model has a context of {positions} tokens, but the longest prompt takes {prompt} and a turn at least "
            f"{needed}: show fewer worked examples (shots), shorten the system prompt or the tools' descriptions, or "
            "use a model with a longer context."
        )
    if args.max_completion_length > positions:  # set by the user: the default is cut before
        raise ConfigurationError(
            f"max_completion_length={args.max_completion_length}, but the model has a context of {positions} tokens, "
            f"of which the longest prompt takes {prompt}: lower it to at most {positions - prompt}."
        )


def _first_turns(env: TextEnv, chat: ChatFormat) -> list[str]:
    """Write the first call of the oracle and the answer of the first task, as a model would; the task is reset."""
    bare = env.unwrapped
    if not isinstance(bare, ToolEnv) or bare.waits_at_reset:
        return []
    env.reset(seed=0, options={"task_index": 0})
    bind_chat(chat, env)  # the parser "native" writes calls by the template
    first, answers, parser = bare.oracle(bare.task, ()), bare.task.answers, bare.parser
    call = first.action if isinstance(first, Thought) else first
    turns = [parser.format_call(call)] if isinstance(call, ToolCall) else []
    return turns + ([parser.format_answer(answers[0])] if answers else [])


def warn_if_tokenizer_breaks_format(env: TextEnv, chat: ChatFormat) -> None:
    """Warn if the tokenizer changes the first call or answer: the model could not write it either."""
    bare = env.unwrapped
    if not isinstance(bare, ToolEnv):
        return
    turns = _first_turns(env, chat)
    chat, parser = bind_chat(chat, env), bare.parser
    for turn in turns:
        intended, actual = parser.parse(turn), parser.parse(roundtrip := chat.roundtrip(turn))
        if (len(actual.calls), actual.answer is None) != (len(intended.calls), intended.answer is None):
            logger.warning(
                "The tokenizer cannot write the format %r, so no turn of the model will be understood: %.120r becomes "
                "%.120r. Take a model whose tokenizer keeps every character (byte-level BPE does), or another parser.",
                *(parser.name, turn, roundtrip),
            )
        elif (actual.calls, actual.answer) != (intended.calls, intended.answer):
            logger.warning("The tokenizer changes what is written: %.120r becomes %.120r.", turn, roundtrip)


def check_size(dataset: Any, args: AgentConfig) -> None:
    """Reject a data set that does not fill one generation batch: TRL would end before the first step."""
    prompts = (args.generation_batch_size or 0) // args.num_generations
    if hasattr(dataset, "__len__") and len(dataset) < prompts:
        raise ConfigurationError(
            f"train_dataset has {len(dataset)} rows, but one generation batch takes {prompts} prompts "
            f"(generation_batch_size={args.generation_batch_size} / num_generations={args.num_generations}). Lower "
            "per_device_train_batch_size or gradient_accumulation_steps, raise num_generations, or add rows."
        )


def warn_of_truncated_sampling(args: AgentConfig) -> None:
    """Warn if rollouts are sampled from another distribution than that of the loss."""
    if args.top_p < 1 or args.top_k:
        logger.warning(
            "top_p=%s, top_k=%s: rollouts are sampled from a truncated distribution, the loss and the engine's "
            "log-probs are those of the full one. Leave both off unless you want that bias.",
            args.top_p,
            args.top_k,
        )
