"""The interface of every retriever, the cleaning of queries, and the retrievers that need no index of their own."""

from __future__ import annotations

import abc
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from agent_r1_gym.core.types import Passage
from agent_r1_gym.errors import ConfigurationError

MAX_QUERY_CHARS = 8_192
MAX_QUERY_TERMS = 512
_UNSEARCHABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]+")


class Hit(NamedTuple):
    """A retrieved passage and its score (higher is better; scales differ between retrievers)."""

    passage: Passage
    score: float


class Retriever(abc.ABC):
    """Finds passages for text queries.

    Subclasses implement `search_batch`. They raise `RetrievalError` (or `RetrievalTimeout`) when the backend fails.
    Any text is a valid query (call `clean_query`); an empty one has no hits.

    Attributes:
        call_timeout: seconds after which a caller should give up on a search; None for retrievers with time limits of
            their own (in-process scoring, a client with timeouts).
        in_process: a search takes about a millisecond, so that waiting for it is cheaper than a thread.
    """

    call_timeout: float | None = 30.0
    in_process: bool = False

    @abc.abstractmethod
    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find at most `k` hits for each query, best first; one list per query, in the same order.

        Raises:
            RetrievalError: the backend failed.
            ConfigurationError: `k` is not a positive integer.
        """

    def search(self, query: str, k: int = 5) -> list[Hit]:
        """Find at most `k` hits for one query, best first."""
        return self.search_batch([query], k)[0]

    def __deepcopy__(self, memo: dict[int, Any]) -> Retriever:
        return self  # shared by design: wrappers deep-copy the arguments of an environment

    def close(self) -> None:  # noqa: B027 - in-process retrievers own nothing
        """Release connections, processes and memory; may be called twice."""


def clean_query(query: str) -> str:
    """Turn any text into one line that every backend accepts.

    Control characters and lone surrogates become spaces; the query is cut at `MAX_QUERY_CHARS` characters and
    `MAX_QUERY_TERMS` words (Lucene refuses more than 1,024 distinct terms).

    Raises:
        TypeError: `query` is not a string.
    """
    if not isinstance(query, str):
        raise TypeError(f"A query must be a string, got {type(query).__name__}: {query!r:.80}.")
    words = _UNSEARCHABLE.sub(" ", query[:MAX_QUERY_CHARS]).split()
    return " ".join(words[:MAX_QUERY_TERMS])


def check_k(k: int) -> int:
    """Convert `k` to a plain int.

    Raises:
        ConfigurationError: `k` is not a positive integer.
    """
    try:
        value = k.__index__()
    except AttributeError:
        value = 0
    if isinstance(k, bool) or value < 1:
        raise ConfigurationError(f"k, the number of passages per query, must be a positive integer, got {k!r}.")
    return value


def check_bm25(k1: float, b: float) -> None:
    """Reject parameters of BM25 that are out of range.

    Raises:
        ConfigurationError: one is.
    """
    if k1 < 0 or not 0 <= b <= 1:
        raise ConfigurationError(f"BM25 needs k1 >= 0 and 0 <= b <= 1, got k1={k1!r}, b={b!r}.")


# --- retrievers without an index of their own -------------------------------------------------------------------------


class FusionRetriever(Retriever):
    """Reciprocal-rank fusion of retrievers over one corpus.

    score(d) = sum over the retrievers that return d of 1 / (constant + rank(d))

    with ranks counted from 1. Passages are equal if their ids and texts are, so that parts of a document that share its
    id do not hide each other. Equal scores are ordered by retriever, then by rank.

    Args:
        retrievers: the retrievers to fuse; if one fails, the search fails.
        depth: number of hits to request from each retriever; a search for more passages requests that many.
        constant: the larger, the less the first ranks stand out; 60 in the paper.

    Raises:
        ConfigurationError: no retriever, or a non-positive `depth` or negative `constant`.

    References:
        Cormack, Clarke and Buettcher, Reciprocal Rank Fusion Outperforms Condorcet and Individual Rank Learning
        Methods (SIGIR 2009).
    """

    def __init__(self, retrievers: Sequence[Retriever], *, depth: int = 100, constant: float = 60) -> None:
        if not retrievers:
            raise ConfigurationError("FusionRetriever needs at least one retriever.")
        if depth < 1 or constant < 0:
            raise ConfigurationError(f"Fusion needs depth >= 1 and constant >= 0, got {depth!r} and {constant!r}.")
        self._retrievers = tuple(retrievers)
        self._depth = depth
        self._constant = constant
        limits = [part.call_timeout for part in retrievers if part.call_timeout is not None]
        self.call_timeout = sum(limits) or None

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find at most `k` hits for each query (see `Retriever.search_batch`)."""
        k = check_k(k)
        queries = [clean_query(query) for query in queries]
        rankings = [part.search_batch(queries, max(k, self._depth)) for part in self._retrievers]
        return [fuse(lists, constant=self._constant)[:k] for lists in zip(*rankings, strict=True)]

    def close(self) -> None:
        """Close the fused retrievers."""
        for part in self._retrievers:
            part.close()


def fuse(rankings: Sequence[Sequence[Hit]], *, constant: float = 60) -> list[Hit]:
    """Fuse rankings for one query by reciprocal rank (see `FusionRetriever`)."""
    scores: dict[tuple[str, str], float] = {}
    passages: dict[tuple[str, str], Passage] = {}
    for ranking in rankings:
        for rank, hit in enumerate(ranking, start=1):
            key = hit.passage.id, hit.passage.text
            passages.setdefault(key, hit.passage)
            scores[key] = scores.get(key, 0.0) + 1 / (constant + rank)
    return [Hit(passages[key], scores[key]) for key in sorted(scores, key=lambda key: -scores[key])]


class EmptyRetriever(Retriever):
    """Finds nothing: an ablation of search."""

    call_timeout = None
    in_process = True

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """An empty list for each query."""
        check_k(k)
        return [[] for _ in queries]


class RandomRetriever(Retriever):
    """Finds random passages: an ablation of search. Equal queries get equal passages, in every process.

    Args:
        passages: the corpus.
    """

    call_timeout = None
    in_process = True

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = passages

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Sample `k` passages for each query, or all if there are fewer; their score is 0."""
        count = min(check_k(k), len(self._passages))
        generators = (random.Random(f"random passages/{clean_query(query)}") for query in queries)
        return [
            [Hit(self._passages[row], 0.0) for row in rng.sample(range(len(self._passages)), count)]
            for rng in generators
        ]


SEARCH_PERTURBATIONS: Mapping[str, str] = {
    "nothing_found": "no search finds anything",
    "random_passages": "each search finds random passages of the world",
}
"""Ablations of search: name -> description."""


def perturbed_retriever(perturbation: str, passages: Callable[[], Sequence[Passage]]) -> Retriever:
    """Make a retriever for one of `SEARCH_PERTURBATIONS`.

    Args:
        perturbation: its name.
        passages: returns the corpus; called only if needed.
    """
    return EmptyRetriever() if perturbation == "nothing_found" else RandomRetriever(passages())
