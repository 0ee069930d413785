"""Model folders: the model that a name stands for, and what is wrong with its files, found without loading it.

Configuration, tokenizer and the header of each weight file are JSON. Reading them takes a fraction of a second, while
torch takes seconds to import and a model minutes to load, after which most of these faults would be the traceback of
a library, or no error at all: a model with another model's tokenizer trains without a complaint.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from agent_r1_gym.errors import ConfigurationError, near_names
from agent_r1_gym.run.evaluation.agent_card import ADAPTER_FILE, MODEL_FILES
from agent_r1_gym.support.files import home
from agent_r1_gym.support.json_data import parse_json

HUB_SECONDS = 10.0
"""Timeout of the hub when asked whether it has a model, before anything is downloaded."""
_GGUF = ".gguf"
_PART = re.compile(r"-\d{5}-of-(?!00001)(\d{5})\.gguf")
"""End of the name of a part of a split GGUF file."""
_CONFIG = "config.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json")
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "chat_format.jinja", "additional_chat_templates")
_EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "tok_embeddings.weight",
)
_PADDING = 0.1
"""Share of the embeddings that may have no token: families pad them to a multiple of 64 to 512, or keep a reserve of up
to 2 %."""
_SMALL_PADDING = 1024
_ADAPTER_METHODS = ("bitsandbytes", "gptq", "awq", "aqlm", "eetq", "hqq", "torchao")
"""Kinds of quantised weights that PEFT can train an adapter on."""
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError)
"""What reading raises where a file is not valid JSON, or JSON of another shape."""
_LFS = b"version https://git-lfs"

Trained = Literal["nothing", "all weights", "an adapter"]


class Fault(NamedTuple):
    """What is wrong with a model folder.

    Attributes:
        kind: "config", "weights", "tokenizer", "template", "adapter" or "quantised".
        message: predicate of a sentence about the folder; with what to do.
    """

    kind: str
    message: str


# --- the model that a name stands for ---


def find_model(name: str | None, *, revision: str = "main", named: str | None = None) -> str:
    """Check, without long retries, that a model is there: a folder, a GGUF file, or a hub id.

    Args:
        name: what the user wrote.
        revision: revision on the hub.
        named: the model as the user named it, for messages; None: by the option `model_name_or_path`.

    Returns:
        The name, with the home folder in place of a leading "~".

    Raises:
        ConfigurationError: no model's folder or file, not in the hub's cache, and not on a hub that answers.
    """
    if not name:
        raise ConfigurationError(
            "model_name_or_path is not set; name a folder or a hub id, such as Qwen/Qwen2.5-3B-Instruct."
        )
    named = named or f"model_name_or_path={name!r}"
    check_path(name, named)
    name = expand_home(name)
    if Path(name).is_dir():
        check_model_folder(Path(name))
        return name
    if find_gguf(name) is not None:
        return name
    from huggingface_hub import constants, model_info, try_to_load_from_cache

    hint = "Name the folder of a saved model, or a hub id that is reachable or in the hub's cache."
    try:
        cached = try_to_load_from_cache(name, _CONFIG, revision=revision)
    except ValueError as error:  # not a name that the hub could have
        raise ConfigurationError(f"{named} is neither a folder nor a valid hub id. {hint}") from error
    if isinstance(cached, str):
        return name
    if constants.HF_HUB_OFFLINE:
        raise ConfigurationError(f"{named} is not in the hub's cache, and HF_HUB_OFFLINE is set. {hint}")
    try:
        model_info(name, revision=revision, timeout=HUB_SECONDS)
    except Exception as error:  # several libraries raise here, and which ones changes with the hub's releases
        raise ConfigurationError(
            f"{named} is not a folder, and the hub does not have it or does not answer "
            f"({type(error).__name__}: {error!s:.200}). {hint}"
        ) from error
    return name


def check_model_folder(folder: Path) -> None:
    """Reject a folder without a model; names the latest checkpoint if the run is not finished.

    Raises:
        ConfigurationError: the folder exists and holds no model.
    """
    if not folder.is_dir() or holds_model(folder):
        return
    checkpoints = list_checkpoints(folder)
    hint = f" Its run is not finished; its latest checkpoint is {checkpoints[-1]}." if checkpoints else ""
    raise ConfigurationError(f"{folder} holds no model (no {' or '.join(MODEL_FILES)}, nor a single *{_GGUF}).{hint}")


def holds_model(folder: Path) -> bool:
    """Return whether a folder holds a saved model, an adapter, or a GGUF file."""
    return any((folder / name).is_file() for name in MODEL_FILES) or find_gguf(folder) is not None


def list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints in the folder of a run, the one of the last step last."""
    # By name: copies have other times, and a checkpoint may be deleted meanwhile.
    named = ((re.fullmatch(r"checkpoint-(\d+)", path.name), path) for path in folder.glob("checkpoint-*"))
    return [path for _, path in sorted((int(match[1]), path) for match, path in named if match)]


def expand_home(name: str) -> str:
    """Replace a leading "~" in the name of a model by the home folder: no shell does so in `local:~/model`."""
    return os.path.expanduser(name)  # noqa: PTH111 # that of Path raises for a user who does not exist


def check_path(name: str, named: str) -> None:
    """Reject a path that does not exist; a name that may be a hub id passes.

    Raises:
        ConfigurationError: there is no such file or folder.
    """
    path = Path(expand_home(name))
    if path.exists() or not (name.startswith((".", "/", "~")) or name.count("/") > 1 or path.suffix == _GGUF):
        return
    parent = next((folder for folder in path.parents if folder.is_dir()), path.parent)
    there = [entry.name for entry in parent.iterdir()] if parent == path.parent else []
    raise ConfigurationError(
        f"{named}: no such {'file' if path.suffix == _GGUF else 'folder'}. {near_names(path.name, there)}"
        f"{'' if parent == path.parent else f'The path exists up to {parent}.'}".rstrip()
    )


def read_adapter(folder: Path) -> dict[str, Any]:
    """Read the configuration of an adapter.

    Raises:
        ConfigurationError: it is damaged, or names no base model.
    """
    try:
        adapter = _read(folder / ADAPTER_FILE)
    except ValueError as error:
        raise ConfigurationError(f"{folder} has a damaged {ADAPTER_FILE} ({error}): copy it again.") from error
    if not isinstance(adapter.get("base_model_name_or_path"), str):
        raise ConfigurationError(f"{folder}: its {ADAPTER_FILE} names no base model (base_model_name_or_path).")
    return adapter


def check_inside(path: Path, folder: Path) -> None:
    """Refuse to hand on a file that is a link out of its folder; the links of the hub's cache pass.

    Raises:
        ConfigurationError: it leads elsewhere.
    """
    own, file = folder.resolve(), path.resolve()
    blobs = [own.parents[1] / "blobs"] if own.parent.name == "snapshots" else []
    if not any(file.is_relative_to(place) for place in (own, *blobs)):
        raise ConfigurationError(
            f"{path} is a link to {file}, outside of the folder: if that file belongs to the model, put it in place of "
            "the link."
        )


def find_gguf(name: str | Path) -> Path | None:
    """Return the GGUF file that a name stands for: itself, or the only weights in a folder; None for other models.

    Raises:
        ConfigurationError: a file that is not GGUF, a part of a split file, or a folder with several.
    """
    path = Path(expand_home(str(name)))
    if path.is_dir():
        if any(path.glob("*.safetensors")) or any(path.glob("*.bin")) or (path / ADAPTER_FILE).is_file():
            return None
        files = [
            file for file in sorted(path.glob(f"*{_GGUF}")) if file.is_file() and not file.name.startswith("mmproj")
        ]
        if len(files) > 1 and not all(_PART.search(file.name) for file in files):
            raise ConfigurationError(
                f"{name} holds {len(files)} GGUF files ({', '.join(file.name for file in files)}): name one of them."
            )
        return _whole_gguf(files[0]) if files else None
    if not path.is_file():
        return None
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ConfigurationError(f"{name} is a file, but not a GGUF one: name the folder of a saved model.")
    return _whole_gguf(path)


def _whole_gguf(path: Path) -> Path:
    if part := _PART.search(path.name):
        raise ConfigurationError(
            f"{path} is one of the {int(part[1])} parts of a split GGUF file; expected a whole one. Merge the parts: "
            f"llama-gguf-split --merge FIRST_PART{_GGUF} WHOLE{_GGUF}."
        )
    return path


# --- what is wrong with its files ---


def check_model_files(
    name: str,
    *,
    named: str,
    revision: str = "main",
    needs_template: bool = True,
    trained: Trained = "nothing",
) -> None:
    """Reject a model whose files cannot work.

    Args:
        name: a folder or hub id (see `find_model`).
        named: the model as the user named it, for messages.
        revision: revision on the hub.
        needs_template: whether the model's own chat template is used.
        trained: what of the model is trained.

    Raises:
        ConfigurationError: the first fault.
    """
    for fault in find_faults(name, revision=revision, trained=trained):
        if fault.kind != "template" or needs_template:
            raise ConfigurationError(f"{named} {fault.message}")


def find_faults(name: str, *, revision: str = "main", trained: Trained = "nothing") -> list[Fault]:
    """List what is wrong with the files of a model or adapter.

    Nothing is for a hub id that is not in the cache, and for a GGUF file, which is read when it is converted.
    """
    name = expand_home(name)
    folder = None if find_gguf(name) is not None else model_files(name, revision)
    if folder is None:
        return []
    if not (folder / ADAPTER_FILE).is_file():
        return list(_model_faults(folder, folder, trained, whole=Path(name).is_dir()))
    try:
        base = _read(folder / ADAPTER_FILE).get("base_model_name_or_path")
    except ValueError as error:
        return [Fault("adapter", f"has a damaged {ADAPTER_FILE} ({error}): copy it again.")]
    return [*_weight_faults(folder, "adapter_model"), *_base_faults(base, folder, trained)]


def model_files(name: str | Path, revision: str = "main") -> Path | None:
    """Return the folder with the files of a model: itself, or its snapshot in the hub's cache; None: not here."""
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(str(name), _CONFIG, revision=revision)
    except ValueError:  # not a name that the hub could have
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def _base_faults(base: Any, folder: Path, trained: Trained) -> Iterator[Fault]:
    """Yield what is wrong with the base model of an adapter."""
    if not base or not isinstance(base, str):
        yield Fault("adapter", f"is an adapter whose {ADAPTER_FILE} names no base model (base_model_name_or_path).")
        return
    try:
        find_model(base, named=f"base_model_name_or_path={base!r}")
    except ConfigurationError as error:
        remedy = f"Copy the base there, or edit {ADAPTER_FILE}."
        if Path(base).parent == home() / "models":
            remedy = "It was converted from a GGUF file: `agent-r1 doctor --model FILE.gguf` converts it again."
        yield Fault("adapter", f"is an adapter without its base model ({error}) {remedy}")
        return
    of_base = model_files(base)
    own_tokenizer = any((folder / file).is_file() for file in _TOKENIZER_FILES)
    if of_base is not None:
        for fault in _model_faults(of_base, folder if own_tokenizer else of_base, trained, whole=Path(base).is_dir()):
            yield Fault(fault.kind, f"is an adapter, and its base model {base} {fault.message}")


def _model_faults(folder: Path, tokenizer: Path, trained: Trained, *, whole: bool) -> Iterator[Fault]:
    """Yield what is wrong with a model of full weights and its tokenizer.

    Args:
        folder: the model's.
        tokenizer: folder of the tokenizer.
        trained: what of it is trained.
        whole: whether weights that are not there are missing, not just not downloaded yet.
    """
    try:
        config = _read(folder / _CONFIG)
    except FileNotFoundError:
        yield Fault("config", f"is a folder without {_CONFIG}, so not a saved model.")
        return
    except ValueError as error:
        yield Fault("config", f"has a damaged {_CONFIG} ({error}): copy it again.")
        return
    shapes: dict[str, list[int]] = {}
    if whole:
        yield from _weight_faults(folder, "model", shapes)
    text = config.get("text_config") or config
    if not isinstance(text, Mapping):
        yield Fault("config", f"has a damaged {_CONFIG} (text_config is not an object): copy it again.")
        return
    width, vocabulary = text.get("hidden_size"), text.get("vocab_size")
    width = text.get("word_embed_proj_dim", width)  # OPT
    plain = "quantization_config" not in config and "quantization" not in config
    embeddings = next((shape for name, shape in shapes.items() if name.endswith(_EMBEDDINGS) and len(shape) == 2), None)
    if plain and embeddings and width and vocabulary and embeddings != [vocabulary, width]:
        yield Fault(
            "weights",
            f"has embeddings of {embeddings[0]:,} tokens x {embeddings[1]:,}, but {_CONFIG} describes {vocabulary:,} x "
            f"{width:,}: weights and configuration are of different models.",
        )
    yield from _tokenizer_faults(tokenizer, vocabulary if isinstance(vocabulary, int) else None)
    yield from _quantisation_faults(config.get("quantization_config"), trained)


def _weight_faults(folder: Path, stem: str, shapes: dict[str, list[int]] | None = None) -> Iterator[Fault]:
    """Yield what is wrong with weight files, by their headers; fills `shapes`."""
    files = [*sorted(folder.glob("*.safetensors")), *sorted(folder.glob("*.bin"))]
    if not files:
        yield Fault("weights", "holds no weights (*.safetensors or *.bin).")
    for index in sorted(folder.glob("*.index.json")):
        try:
            parts = set(_read(index)["weight_map"].values())
        except _MALFORMED as error:
            yield Fault("weights", f"has a damaged {index.name} ({error!r:.80}): copy it again.")
            continue
        missing = sorted(str(part) for part in parts if not (folder / str(part)).is_file())
        if missing:
            yield Fault(
                "weights", f"lacks {len(missing)} of its {len(parts)} weight files ({missing[0]}): copy them too."
            )
    for file in files:
        if not file.is_file():
            yield Fault("weights", f"cannot be loaded: {file.name} is not a regular file. Copy it again.")
            continue
        with file.open("rb") as opened:
            pointer = opened.read(len(_LFS)) == _LFS
        try:
            if pointer:
                raise ValueError("a Git LFS pointer, not the weights: `git lfs pull` downloads them")
            header = _header(file) if file.suffix == ".safetensors" else {}
        except _MALFORMED as error:
            yield Fault("weights", f"cannot be loaded: {file.name} is damaged ({error}). Copy or save it again.")
            continue
        if shapes is not None and file.name.startswith(stem):
            shapes.update({name: entry["shape"] for name, entry in header.items() if name != "__metadata__"})


def _header(path: Path) -> dict[str, Any]:
    """Read the header of a safetensors file.

    Raises:
        ValueError: it is damaged, or the file is shorter or longer than it describes.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 8:
            raise ValueError(f"no header in its {size:,} bytes")
        header = parse_json(file.read(length))
    end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    if 8 + length + end != size:
        raise ValueError(f"it has {size:,} bytes where its header describes {8 + length + end:,}")
    return dict(header)


def _tokenizer_faults(folder: Path, embedded: int | None) -> Iterator[Fault]:
    """Yield what is wrong with a tokenizer: missing, damaged, of another model, without a chat template."""
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        yield Fault("tokenizer", f"holds no tokenizer (none of {', '.join(_TOKENIZER_FILES)}).")
        return
    try:
        highest, count = _vocabulary(folder / "tokenizer.json")
        settings = _read(folder / "tokenizer_config.json")
    except _MALFORMED as error:
        yield Fault("tokenizer", f"has no tokenizer that loads: a JSON file of it is damaged ({error}).")
        return
    except FileNotFoundError:  # of another kind, or before transformers 4
        highest, count, settings = -1, None, _read_if_there(folder / "tokenizer_config.json")
    resize = "Use the model's own tokenizer, or resize the embeddings (model.resize_token_embeddings)."
    if embedded is not None and highest >= embedded:
        yield Fault(
            "tokenizer",
            f"embeds {embedded} tokens, but its tokenizer has ids up to {highest}: the two do not match. {resize}",
        )
    elif embedded is not None and count is not None and embedded - count > max(_SMALL_PADDING, _PADDING * embedded):
        yield Fault(
            "tokenizer",
            f"embeds {embedded} tokens, but its tokenizer has only {count}: it is another model's. {resize}",
        )
    if not settings.get("chat_template") and not any((folder / file).exists() for file in _TEMPLATE_FILES):
        yield Fault(
            "template",
            "has no chat template, so it is a base model, or its tokenizer was saved without one. Use an instruct "
            "model (most families have one), or set chat_template to a file or to one of TRL's, such as qwen2_5.jinja.",
        )


def _vocabulary(path: Path) -> tuple[int, int]:
    """Return the highest id and the number of tokens of a tokenizer.json."""
    record = _read(path)
    tokens = record["model"].get("vocab") or {}
    ids = set(tokens.values()) if isinstance(tokens, Mapping) else set(range(len(tokens)))
    ids |= {token["id"] for token in record.get("added_tokens") or ()}
    return max(ids, default=-1), len(ids)


def _quantisation_faults(settings: Any, trained: Trained) -> Iterator[Fault]:
    if not isinstance(settings, Mapping) or trained == "nothing":
        return
    method = str(settings.get("quant_method", "of an unknown kind"))
    if trained == "all weights":
        yield Fault(
            "quantised",
            f"has quantised weights ({method}), which cannot be trained: use the model before quantisation, or train "
            "an adapter (--lora-r 16).",
        )
    elif method not in _ADAPTER_METHODS:
        yield Fault(
            "quantised",
            f"has quantised weights ({method}), on which no adapter can be trained (only on "
            f"{', '.join(_ADAPTER_METHODS)}): use the model before quantisation.",
        )


def _read(path: Path) -> dict[str, Any]:
    record = parse_json(path.read_text(encoding="utf-8"))
    if not isinstance(record, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return record


def _read_if_there(path: Path) -> dict[str, Any]:
    try:
        return _read(path)
    except (FileNotFoundError, ValueError):
        return {}
