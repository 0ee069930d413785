"""`agent-r1 index CORPUS`: indexes a corpus file for a retriever."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path

from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.retrieval.base import Retriever
from agent_r1_gym.retrieval.corpus import corpus_fingerprint, read_corpus
from agent_r1_gym.retrieval.make import make_retriever
from agent_r1_gym.support.terminal import say
from agent_r1_gym.types import Passage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this subcommand."""
    parser.add_argument("corpus", type=Path, metavar="CORPUS", help="file of passages: JSON, JSONL or JSONL.gz")
    parser.add_argument(
        "--retriever", default="bm25", help="retriever to index for: bm25, lucene or dense:ENCODER_DIR (default: bm25)"
    )
    parser.add_argument(
        "--out", type=Path, help="folder of the index (lucene only; default: the package's home folder)"
    )


def run(options: argparse.Namespace) -> int:
    """Builds the index whole or not at all, and says how to use it."""
    if options.out is not None:
        return _lucene_folder(options)
    retriever, number = corpus_retriever(options.corpus, options.retriever)
    retriever.search("warm up", 1)
    serving = f"agent-r1 serve-retriever --corpus {options.corpus} --retriever {options.retriever}"
    say(f"indexed {number} passages; serve them with: {serving}")
    return 0


def corpus_retriever(corpus: Path, spec: str) -> tuple[Retriever, int]:
    """Returns the retriever over a corpus file, and the number of its passages.

    Its index is kept in the package's home folder.

    Raises:
        DatasetError: the file holds no passage, or cannot be read.
    """
    number = 0

    def counted() -> Iterator[Passage]:
        nonlocal number
        for passage in passages_of(corpus):
            number += 1
            yield passage

    fingerprint = corpus_fingerprint(counted())
    return make_retriever(spec, passages=lambda: read_corpus(corpus), fingerprint=fingerprint), number


def passages_of(corpus: Path) -> Iterator[Passage]:
    """Returns the passages of a corpus file, of which there is at least one.

    Raises:
        DatasetError: the file holds none, or cannot be read.
    """
    passages = read_corpus(corpus)
    first = next(passages, None)
    if first is None:
        raise DatasetError(f"Corpus file {corpus} holds no passage; expected at least one document.")
    return itertools.chain([first], passages)


def _lucene_folder(options: argparse.Namespace) -> int:
    from agent_r1_gym.retrieval.lucene.retriever import build_lucene_index

    if options.retriever != "lucene":
        raise ConfigurationError(f"--out needs --retriever lucene, got {options.retriever!r}.")
    if options.out.exists():
        raise ConfigurationError(f"{options.out} exists; choose another --out or remove it.")
    number = build_lucene_index(passages_of(options.corpus), options.out, progress=True)
    say(f"indexed {number} passages in {options.out}; use it as --retriever lucene:{options.out}")
    return 0
