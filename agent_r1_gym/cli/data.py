"""`agent-r1 data`: prepare data sets, build search indexes, and write the episodes of runs for other tools."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_r1_gym.data.load import load_dataset
from agent_r1_gym.data.prepare import prepare
from agent_r1_gym.errors import ConfigurationError, DatasetError, MissingDependencyError
from agent_r1_gym.retrieval.make import corpus_passages, corpus_retriever, make_retriever
from agent_r1_gym.run.evaluation.conversations import CALLS, run_conversations
from agent_r1_gym.run.trajectory_files import FORMATS, Conversation, write_rows
from agent_r1_gym.run.trust import Trust, add_trust_options
from agent_r1_gym.support.files import atomic_file
from agent_r1_gym.support.packages import install_command
from agent_r1_gym.support.terminal import print_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their arguments."""
    commands: Any = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=type(parser))
    prepare_help = "download or read a data set once and index its passages"
    preparing = commands.add_parser("prepare", help=prepare_help, description=f"{prepare_help.capitalize()}.")
    preparing.add_argument("name", metavar="NAME", help="data set: hotpotqa, 2wiki, musique, gsm8k or svamp")
    preparing.add_argument(
        "--source",
        metavar="URL_OR_PATH",
        help="official file, zip archive or folder, or the address of a file or archive (default: the hub's copy if "
        "the library `datasets` is installed, else the official address)",
    )
    preparing.add_argument("--hub-id", help="hub repository to download (default: the usual one)")
    preparing.add_argument("--split", action="append", help="only this split; may be repeated (default: all)")
    preparing.add_argument(
        "--index", default="bm25", help="retriever to index for: bm25, lucene or none (default: bm25)"
    )
    preparing.add_argument("--force", action="store_true", help="prepare splits again that exist already")
    preparing.set_defaults(run=_prepare)

    index_help = "build a search index of a corpus file"
    indexing = commands.add_parser("index", help=index_help, description=f"{index_help.capitalize()}.")
    indexing.add_argument("corpus", type=Path, metavar="CORPUS", help="file of passages: JSON, JSONL or JSONL.gz")
    indexing.add_argument(
        "--retriever", default="bm25", help="retriever to index for: bm25, lucene or dense:ENCODER_DIR (default: bm25)"
    )
    indexing.add_argument(
        "--out", type=Path, help="folder of the index (lucene only; default: the package's home folder)"
    )
    indexing.set_defaults(run=_index)

    export_help = "write the episodes of a run as a file or data set for other tools"
    exporting = commands.add_parser("export", help=export_help, description=f"{export_help.capitalize()}.")
    exporting.add_argument("run_folder", metavar="RUN", type=Path, help="folder of `agent-r1 eval`")
    exporting.add_argument(
        "--format", default="messages", choices=FORMATS, help="format of the rows (default: messages, OpenAI's)"
    )
    exporting.add_argument(
        "--calls",
        default="structured",
        choices=CALLS,
        help="calls as data, below a system message without a text format, or in the text as the model wrote them "
        "(default: structured)",
    )
    exporting.add_argument("--min-return", type=float, help="only episodes with at least this return (default: all)")
    exporting.add_argument(
        "--out", type=Path, help="new file (.jsonl), or folder of the library `datasets` (default: RUN.FORMAT.jsonl)"
    )
    exporting.add_argument("--push-to-hub", metavar="REPOSITORY", help="also upload it as a private data set")
    add_trust_options(exporting)
    exporting.set_defaults(run=_export)


def _prepare(options: argparse.Namespace) -> int:
    """Write the splits and the index to the package's home folder; what exists is skipped."""
    paths = prepare(
        options.name, splits=options.split, hub_id=options.hub_id, source=options.source, force=options.force
    )
    for path in paths:
        print_line(f"prepared {path}")
        if options.index == "none":
            continue
        dataset = load_dataset(options.name, path)
        if next(dataset.passages(), None) is not None:
            retriever = make_retriever(options.index, passages=dataset.passages, fingerprint=dataset.fingerprint)
            retriever.search("warm up", 1)  # the first search builds the index
            print_line(f"indexed {dataset.describe()} for {options.index}")
    return 0


def _index(options: argparse.Namespace) -> int:
    """Build the index completely or not at all, and print how to use it."""
    if options.out is not None:
        return _index_into_folder(options)
    retriever, number = corpus_retriever(options.corpus, options.retriever)
    retriever.search("warm up", 1)
    serving = f"agent-r1 serve retriever --corpus {options.corpus} --retriever {options.retriever}"
    print_line(f"indexed {number} passage{'' if number == 1 else 's'}; serve them with: {serving}")
    return 0


def _index_into_folder(options: argparse.Namespace) -> int:
    from agent_r1_gym.retrieval.lucene.retriever import build_lucene_index

    if options.retriever != "lucene":
        raise ConfigurationError(f"--out needs --retriever lucene, got {options.retriever!r}.")
    if options.out.exists():
        raise ConfigurationError(f"{options.out} exists; choose another --out or remove it.")
    number = build_lucene_index(corpus_passages(options.corpus), options.out, progress=True)
    print_line(f"indexed {number} passages in {options.out}; use it as --retriever lucene:{options.out}")
    return 0


def _export(options: argparse.Namespace) -> int:
    """Write all rows or none."""
    run = options.run_folder
    folder = run.resolve()  # "." has no name
    out = options.out or folder.with_name(f"{folder.name}.{options.format}.jsonl")
    if out.exists():
        raise ConfigurationError(f"{out} exists; choose another --out or remove it.")
    conversations = [
        conversation
        for conversation in run_conversations(run, calls=options.calls, trust=Trust.from_options(options))
        if options.min_return is None or (conversation.episode_return or 0.0) >= options.min_return
    ]
    if not conversations:
        which = "" if options.min_return is None else f" with a return of {options.min_return:g}"
        raise DatasetError(f"{run} holds no episode{which}, so there is nothing to write.")
    is_file = out.suffix == ".jsonl"
    table: Any = None if is_file and not options.push_to_hub else _table(conversations, options.format)
    if is_file:
        with atomic_file(out) as temporary:
            # Keys keep their order: a chat template renders schemas as they come.
            rows = (json.dumps(row, ensure_ascii=False) for row in write_rows(conversations, options.format))
            temporary.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    else:
        table.save_to_disk(str(out))
    if options.push_to_hub:
        table.push_to_hub(options.push_to_hub, private=True)
    episodes = f"{len(conversations)} conversation{'' if len(conversations) == 1 else 's'}"
    print_line(f"wrote {episodes} as {options.format} to {out}")
    return 0


def _table(conversations: Sequence[Conversation], name: str) -> Any:
    """Make a `datasets.Dataset`; what differs from row to row, such as schemas, is JSON text in it."""
    try:
        from datasets import Dataset
    except ImportError as error:
        raise MissingDependencyError(
            f"Folders and the hub need the library `datasets`: {install_command('data')}; or write a file: --out "
            "FILE.jsonl"
        ) from error
    texts = ("tools", "metadata", "agent", "steps", "extra", "final_metrics")
    rows = [
        {
            key: json.dumps(value, ensure_ascii=False) if key in texts and not isinstance(value, str) else value
            for key, value in row.items()
        }
        for row in write_rows(conversations, name)
    ]
    return Dataset.from_list(rows)
