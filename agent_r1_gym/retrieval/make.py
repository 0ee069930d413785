"""`make_retriever`: retrievers by name, one shared object per name and corpus."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from agent_r1_gym.core.types import Passage
from agent_r1_gym.errors import ConfigurationError, DatasetError, suggest
from agent_r1_gym.retrieval.base import FusionRetriever, Hit, Retriever
from agent_r1_gym.support import files

__all__ = ["Hit", "Retriever", "make_retriever"]

_MAX_IN_MEMORY_PASSAGES = 20_000
_shared: weakref.WeakValueDictionary[tuple[str, str, str], Retriever] = weakref.WeakValueDictionary()
_lock = threading.RLock()
Passages = Callable[[], Iterable[Passage]]
Maker = Callable[[str, Passages, str], Retriever]


def make_retriever(spec: str | Retriever, *, passages: Passages, fingerprint: str) -> Retriever:
    """Make the retriever that `spec` names; equal ones within a process are one shared object.

    | spec | retriever |
    | --- | --- |
    | a `Retriever` | itself |
    | `bm25` | `BM25Retriever`, embedded; cached on disk for 20,000 passages or more |
    | `lucene` | `LuceneRetriever` over an index of the passages, built once and cached on disk |
    | `lucene:INDEX` | `LuceneRetriever` over an index folder, or one of Pyserini's prebuilt indexes |
    | `dense:ENCODER` | `DenseRetriever` with a sentence encoder, a folder or hub id; cached on disk |
    | `rrf:SPEC,SPEC,...` | `FusionRetriever` of such retrievers |
    | `http://...`, `https://...` | `HTTPRetriever` |

    Args:
        spec: see the table.
        passages: returns the corpus; called only to build an index.
        fingerprint: identity of the corpus, part of the name of cached indexes.

    Raises:
        ConfigurationError: `spec` names no retriever.
        MissingDependencyError: the retriever needs a package that is not installed.
        RetrievalError: an index cannot be built, or a server cannot be started.
    """
    if isinstance(spec, Retriever):
        return spec
    if not isinstance(spec, str):
        raise ConfigurationError(f"A retriever must be a string or a Retriever, got {type(spec).__name__} {spec!r}.")
    key = (spec.strip(), fingerprint, str(files.home()))
    with _lock:
        retriever = _shared.get(key)
        if retriever is None:
            retriever = _shared[key] = _make(spec.strip(), passages, fingerprint)
    return retriever


def _make(spec: str, passages: Passages, fingerprint: str) -> Retriever:
    kind, colon, argument = spec.partition(":")
    if kind not in _MAKERS:
        raise ConfigurationError(f"Unknown retriever {spec!r}. {suggest(kind, _MAKERS)}")
    make, forms = _MAKERS[kind]
    has_argument = bool(argument.strip("/, "))
    if not (any(":" in form for form in forms) if has_argument else kind in forms and not colon):
        raise ConfigurationError(f"Invalid retriever {spec!r}; expected {' or '.join(forms)}.")
    return make(argument, passages, fingerprint)


def _lazily(passages: Passages) -> Iterator[Passage]:
    yield from passages()  # reads the corpus when the first passage is used: never, if there is a cached index


def _bm25(argument: str, passages: Passages, fingerprint: str) -> Retriever:
    from agent_r1_gym.retrieval.bm25 import BM25Retriever

    indexes = files.home() / "indexes"
    if not BM25Retriever.cache_path(indexes, fingerprint=fingerprint).exists():
        first = list(islice(passages(), _MAX_IN_MEMORY_PASSAGES))
        if len(first) < _MAX_IN_MEMORY_PASSAGES:
            return BM25Retriever(first)
    return BM25Retriever(_lazily(passages), cache_dir=indexes, fingerprint=fingerprint)


def _lucene(argument: str, passages: Passages, fingerprint: str) -> Retriever:
    from agent_r1_gym.retrieval import store
    from agent_r1_gym.retrieval.lucene.retriever import LuceneRetriever, fill_lucene_index, require_lucene

    if argument:
        return LuceneRetriever(argument)
    require_lucene()
    directory = files.home() / "indexes" / f"lucene-{fingerprint}"
    store.open_or_build(directory, lambda empty: fill_lucene_index(passages(), empty), load=Path)
    return LuceneRetriever(directory)


def _dense(argument: str, passages: Passages, fingerprint: str) -> Retriever:
    from agent_r1_gym.retrieval.dense import DenseRetriever

    indexes = files.home() / "indexes"
    return DenseRetriever(_lazily(passages), encoder=argument, cache_dir=indexes, fingerprint=fingerprint)


def _rrf(argument: str, passages: Passages, fingerprint: str) -> Retriever:

    parts = [part for part in argument.split(",") if part.strip()]
    return FusionRetriever([make_retriever(part, passages=passages, fingerprint=fingerprint) for part in parts])


def _http(scheme: str) -> Maker:
    def make(argument: str, passages: Passages, fingerprint: str) -> Retriever:
        from agent_r1_gym.retrieval.http import HTTPRetriever

        return HTTPRetriever(f"{scheme}:{argument}")

    return make


_MAKERS: dict[str, tuple[Maker, tuple[str, ...]]] = {
    "bm25": (_bm25, ("bm25",)),
    "lucene": (_lucene, ("lucene", "lucene:FOLDER", "lucene:PREBUILT_NAME")),
    "dense": (_dense, ("dense:ENCODER_FOLDER",)),
    "rrf": (_rrf, ("rrf:bm25,dense:ENCODER_FOLDER",)),
    "http": (_http("http"), ("http://HOST:PORT",)),
    "https": (_http("https"), ("https://HOST:PORT",)),
}


def corpus_retriever(corpus: Path, spec: str) -> tuple[Retriever, int]:
    """Make a retriever over a corpus file, with its index in the package's home folder; also count the passages.

    Raises:
        DatasetError: the file is empty, or cannot be read.
    """
    from agent_r1_gym.retrieval.store import corpus_fingerprint, read_corpus

    count = 0

    def counted() -> Iterator[Passage]:
        nonlocal count
        for passage in corpus_passages(corpus):
            count += 1
            yield passage

    fingerprint = corpus_fingerprint(counted())
    return make_retriever(spec, passages=lambda: read_corpus(corpus), fingerprint=fingerprint), count


def corpus_passages(corpus: Path) -> Iterator[Passage]:
    """Read a corpus file that must have at least one passage.

    Raises:
        DatasetError: the file is empty, or cannot be read.
    """
    from agent_r1_gym.retrieval.store import read_corpus

    passages = read_corpus(corpus)
    first = next(passages, None)
    if first is None:
        raise DatasetError(f"Corpus file {corpus} has no passages; expected at least one document.")
    return chain([first], passages)
