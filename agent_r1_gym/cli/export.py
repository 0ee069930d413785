"""`agent-r1 export RUN --out DIR`: a trained agent as a folder for others: weights, tokenizer, chat format, cards."""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.run.agents import split_policy, weights_fingerprint
from agent_r1_gym.run.evaluation.agent_card import ADAPTER_FILE, FILE, AgentCard, score_entry
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.model_folder import check_inside, check_model_folder, read_adapter
from agent_r1_gym.run.trust import is_remembered, remember
from agent_r1_gym.support.files import atomic_directory
from agent_r1_gym.support.packages import local_engines
from agent_r1_gym.support.terminal import print_line, print_note

_EXPORTED = (
    *("config.json", "generation_config.json", ADAPTER_FILE, "*.safetensors", "*.safetensors.index.json"),
    *("pytorch_model*.bin", "pytorch_model.bin.index.json", "adapter_model.bin"),
    *("tokenizer*.json", "tokenizer.model", "*.spm", "special_tokens_map.json", "added_tokens.json", "vocab.*"),
    *("merges.txt", "chat_template*", "chat_format.*"),
)
"""Files of a model; a run folder also holds optimiser states, traces and pickles."""
_BEFORE = "the adapter on its base model; this model is their sum, rounded to the type of the base's weights"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument("run_folder", type=Path, metavar="RUN", help="folder of `train` or `sft`, or of a checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="new folder to write")
    parser.add_argument(
        "--merge",
        action=argparse.BooleanOptionalAction,
        help="write adapter and base model as one model (default: the adapter alone if its base is on the hub; a base "
        "in a folder of this machine is merged, since no one else has it)",
    )
    parser.add_argument(
        "--scores",
        type=Path,
        action="append",
        default=[],
        metavar="EVAL",
        help="folder of `agent-r1 eval` of this model, whose scores go into the cards; may be repeated",
    )


def run(options: argparse.Namespace) -> int:
    """Write the folder, completely or not at all."""
    folder: Path = options.run_folder
    card = _card(folder)
    adapter = (folder / ADAPTER_FILE).is_file()
    if options.merge and not adapter:
        raise ConfigurationError(f"{folder} holds full weights, so there is nothing to merge; drop --merge.")
    out: Path = options.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"{out} exists and is not an empty folder; choose another --out.")
    base = _local_base(folder / ADAPTER_FILE) if adapter else None
    by_itself = options.merge is None and base is not None
    options.merge = options.merge or by_itself
    origin = {"evaluated_model": _BEFORE} if options.merge else {}
    card = replace(card, scores=[*card.scores, *(_score(folder, RunFolder(run)) | origin for run in options.scores)])
    files = [] if options.merge else _files(folder)
    with atomic_directory(out) as temporary:
        if options.merge:
            local_engines().write_merged(folder, temporary)
        for file in files:
            shutil.copy(file, temporary / file.name)
        if base is not None and not options.merge:
            _name_base(temporary / ADAPTER_FILE, base)
        card.save(temporary)
    if is_remembered(folder, card.environments):  # never a card of someone else
        remember(out, card.environments)
    if by_itself:
        print_note(
            f"the adapter's base model is a folder of this machine, {base}: exported as one merged model. --no-merge "
            "exports the adapter alone."
        )
    elif base is not None and not options.merge:
        print_note(f"WARNING: this adapter loads only where its base model is in {base}; --merge makes it independent.")
    print_line(
        f"exported to {out}: {'one merged model' if options.merge else 'an adapter' if adapter else 'a model'}, with "
        f"{FILE} and README.md (evaluations: {len(card.scores)})"
        + (f"\ntalk to it:  agent-r1 chat {out}\nserve it:    agent-r1 serve agent {out}" if card.has_tools else "")
    )
    return 0


def _card(folder: Path) -> AgentCard:
    """Load the card of a finished run."""
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder; expected one of `agent-r1 train` or `agent-r1 sft`.")
    check_model_folder(folder)
    card = AgentCard.load(folder)
    if card is None:
        raise ConfigurationError(
            f"{folder} has no {FILE}, which records what it is an agent for; expected a folder of `agent-r1 "
            "train` or `agent-r1 sft`."
        )
    return card


def _score(folder: Path, run: RunFolder) -> dict[str, Any]:
    """Return the scores of an evaluation.

    Raises:
        ConfigurationError: it evaluated another model, or this one with another prompt method.
        DatasetError: it is not complete, or not an evaluation.
    """
    settings: Mapping[str, Any] = run.settings()
    method, kind, name = split_policy(settings["policy"])
    if kind != "local" or method is None or method.single_turn:
        raise ConfigurationError(f"--scores {run.path}: it measured {settings['policy']}, not the agent in {folder}.")
    evaluated, current = (settings.get("model") or {}).get("weights_fingerprint"), weights_fingerprint(folder)
    if evaluated != current:
        raise ConfigurationError(
            f"--scores {run.path}: it measured other weights ({name}, fingerprint {evaluated}) than those in {folder} "
            f"({current}); evaluate these by `agent-r1 eval {folder}`."
        )
    return score_entry(run)


def _files(folder: Path) -> list[Path]:
    """List the files of a model."""
    return sorted(set(_matching(folder)))


def _matching(folder: Path) -> Iterator[Path]:
    for pattern in _EXPORTED:
        for path in folder.glob(pattern):
            if path.is_file():
                check_inside(path, folder)
                yield path
    if not (folder / "tokenizer_config.json").is_file():
        raise ConfigurationError(f"{folder} holds no tokenizer (no tokenizer_config.json); save it there first.")


def _local_base(path: Path) -> Path | None:
    """Folder of an adapter's base model; None: it is on the hub."""
    base = read_adapter(path.parent).get("base_model_name_or_path")
    return Path(base).resolve() if base and Path(base).is_dir() else None


def _name_base(path: Path, base: Path) -> None:
    """Name an adapter's base model by its absolute path; it may be relative to the folder of the training."""
    adapter = read_adapter(path.parent) | {"base_model_name_or_path": str(base)}
    path.write_text(json.dumps(adapter, indent=2) + "\n", encoding="utf-8")
