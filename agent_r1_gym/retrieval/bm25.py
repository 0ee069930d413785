"""Embedded BM25: no server, no Java, no model."""

from __future__ import annotations

import functools
import logging
import pickle
import re
import threading
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agent_r1_gym.core.types import Passage
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.retrieval import store
from agent_r1_gym.retrieval.base import MAX_QUERY_TERMS, Hit, Retriever, check_bm25, check_k, clean_query
from agent_r1_gym.support.words import bigrams, characters, is_unspaced, normal_form, split_words

logger = logging.getLogger(__name__)
_FORMAT = 2  # 2: terms of any script
_MAX_CACHED_STEMS = 500_000
_ACCENTS = re.compile("[\u0300-\u036f]+")
_stems: dict[str, str] = {}
_thread = threading.local()


def analyse(text: str) -> list[str]:
    """Split a passage into index terms: words without English stop words, stemmed (Snowball, English).

    Case, Unicode's several spellings of one character, and optional vowel signs make no difference (`normal_form`);
    accents do. In scripts without spaces (Chinese, Japanese, Thai) and in Korean, terms are single characters and
    pairs of neighbours. A text that has nothing but stop words ("It", "The The") keeps them.

    Unlike the tokenizer of bm25s it keeps words of one character ("Henry V", "Rocky 2"), as Lucene does.
    """
    return _terms(text, single_characters=True)


def analyse_query(query: str) -> list[str]:
    """Split a query into at most `MAX_QUERY_TERMS` terms, as `analyse` does, but of a run of characters only pairs."""
    return _terms(query, single_characters=False)[:MAX_QUERY_TERMS]


def _terms(text: str, *, single_characters: bool) -> list[str]:
    words = split_words(normal_form(text).casefold())
    terms: list[str] = []
    for word in words:
        if is_unspaced(word):
            units = characters(word)
            pairs = bigrams(units)
            terms += pairs if len(units) == 1 or not single_characters else [*units, *pairs]
        elif (stem := _stems.get(word) or _stem(word)) != " ":
            terms.append(stem)
    return terms or [_stemmer().stemWord(word) for word in words]


def _stem(word: str) -> str:
    """Stem a word (" " for a stop word), with a cache: most words occur again and again."""
    if len(_stems) >= _MAX_CACHED_STEMS:
        _stems.clear()
    stem: str = " " if word in _stop_words() else _stemmer().stemWord(word)
    _stems[word] = stem
    return stem


def _stemmer() -> Any:
    stemmer = getattr(_thread, "stemmer", None)
    if stemmer is None:
        import Stemmer

        # One per thread: a PyStemmer object must not be used by two threads at once.
        stemmer = _thread.stemmer = Stemmer.Stemmer("english")
    return stemmer


def _without_accents(term: str) -> str:
    """Stem of a Latin, Greek or Cyrillic term without its accents; marks of other scripts stay."""
    bare: str = _stemmer().stemWord(unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", term))))
    return bare


@functools.cache
def _stop_words() -> frozenset[str]:
    return frozenset(_bm25s().stopwords.STOPWORDS_EN)


@functools.cache
def _bm25s() -> Any:
    import bm25s

    # bm25s sets its logger to DEBUG and would log a line for each index that it builds.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


class BM25Retriever(Retriever):
    """BM25 over title and text, in this process (bm25s, Lucene's variant of the formula).

    score(q, d) = sum over terms t of q: ln(1 + (N - n_t + 0.5) / (n_t + 0.5)) * f / (f + k1 * (1 - b + b * |d| / avg))

    with f the frequency of t in d, n_t the number of passages with t, |d| the number of terms in d. Only passages with
    a score above 0 are hits; equal scores are in corpus order. A term of the query that no passage has stands for its
    spellings with other accents: "Bjork" finds "Björk". The object is immutable: threads may share it, a `deepcopy` is
    the object itself, and a pickle of a cached index contains only its path.

    Args:
        passages: the corpus; not read if a cached index exists.
        k1: saturation of the term frequency.
        b: strength of the length normalisation, 0 to 1.
        cache_dir: folder of cached indexes; None: the index stays in memory.
        fingerprint: identity of the corpus (`store.corpus_fingerprint`), part of the name of the cached index; required
            with `cache_dir`.

    Raises:
        ConfigurationError: `k1` or `b` out of range, or `cache_dir` without `fingerprint`.
        RetrievalError: the cache cannot be written.

    References:
        Robertson and Zaragoza, The Probabilistic Relevance Framework (2009); Kamphuis et al., Which BM25 Do You Mean?
        (ECIR 2020); Lu, BM25S (arXiv 2407.03618).
    """

    call_timeout = None
    in_process = True

    def __init__(
        self,
        passages: Iterable[Passage],
        *,
        k1: float = 0.9,
        b: float = 0.4,
        cache_dir: Path | None = None,
        fingerprint: str | None = None,
    ) -> None:
        check_bm25(k1, b)
        self._directory: Path | None = None
        self._accented: dict[str, list[int]] | None = None
        self._passages: Sequence[Passage]
        if cache_dir is None:
            self._passages = passages if isinstance(passages, list | tuple) else list(passages)
            self._index = _build_index(self._passages, k1, b)
            return
        if fingerprint is None:
            raise ConfigurationError("BM25Retriever(cache_dir=...) needs fingerprint=..., the identity of the corpus.")

        def build(directory: Path) -> None:
            store.PassageStore.write(passages, directory)
            index = _build_index(store.PassageStore(directory), k1, b)
            if index is not None:
                index.save(directory, show_progress=False)

        self._directory = self.cache_path(Path(cache_dir), fingerprint=fingerprint, k1=k1, b=b)
        if not self._directory.exists():
            self._warn_of_older_index(self._directory)
        self._index, self._passages = store.open_or_build(self._directory, build, load=_load_index)

    @staticmethod
    def _warn_of_older_index(directory: Path) -> None:
        stem = directory.name.removesuffix(f"-v{_FORMAT}")
        for version in range(1, _FORMAT):
            if (older := directory.with_name(f"{stem}-v{version}")).exists():
                logger.warning(
                    "The index %s was written with the terms of an older version and is not used; building it again. "
                    "You may remove that folder.",
                    older,
                )

    @staticmethod
    def cache_path(cache_dir: Path, *, fingerprint: str, k1: float = 0.9, b: float = 0.4) -> Path:
        """The folder of the index of a corpus in `cache_dir`, whether or not it exists."""
        return cache_dir / f"bm25-{fingerprint}-k1={k1:g}-b={b:g}-v{_FORMAT}"

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find at most `k` hits for each query, with scores above 0 (see `Retriever.search_batch`)."""
        k = check_k(k)
        return [self._search(clean_query(query), k) for query in queries]

    def __len__(self) -> int:
        return len(self._passages)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ if self._directory is None else {"_directory": self._directory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._directory is not None:
            self._accented = None
            try:
                self._index, self._passages = _load_index(self._directory)
            except (OSError, ValueError, KeyError) as error:
                raise pickle.UnpicklingError(f"The BM25 index {self._directory} is gone or damaged: {error}") from error

    def _search(self, query: str, k: int) -> list[Hit]:
        if self._index is None:
            return []
        vocabulary = self._index.vocab_dict
        terms: list[int] = []
        for term in analyse_query(query):
            terms += [vocabulary[term]] if term in vocabulary else self._other_spellings(term)
        if not terms:
            return []
        scores: npt.NDArray[np.float32] = self._index.get_scores_from_ids(terms)
        best = _best(scores, k)
        passages = self._passages
        return [Hit(passages[row], score) for row, score in zip(best.tolist(), scores[best].tolist(), strict=True)]

    def _other_spellings(self, term: str) -> list[int]:
        """The terms of the index that differ from an unknown one in their accents only."""
        vocabulary = self._index.vocab_dict
        if self._accented is None:
            accented: dict[str, list[int]] = {}
            for known, number in vocabulary.items():
                if not known.isascii():  # most are, and are found without a table
                    accented.setdefault(_without_accents(known), []).append(number)
            self._accented = accented
        bare = _without_accents(term)
        return [*([vocabulary[bare]] if bare in vocabulary else ()), *self._accented.get(bare, ())]


def _build_index(passages: Iterable[Passage], k1: float, b: float) -> Any:
    vocabulary: dict[str, int] = {}
    rows = [
        [
            vocabulary.setdefault(term, len(vocabulary))
            for part in (passage.title, passage.text)
            for term in analyse(part)
        ]
        for passage in passages
    ]
    if not vocabulary:
        return None
    # The numpy backend is explicit, so that an installed numba or JAX changes neither results nor start-up time.
    index = _bm25s().BM25(k1=k1, b=b, method="lucene", backend="numpy", csc_backend="numpy")
    index.index((rows, vocabulary), create_empty_token=False, show_progress=False)
    return index


def _load_index(directory: Path) -> tuple[Any, Sequence[Passage]]:
    passages = store.PassageStore(directory)
    if not (directory / "params.index.json").exists():
        return None, passages
    index = _bm25s().BM25.load(directory, mmap=True, show_progress=False)
    if index.scores["num_docs"] != len(passages):
        raise ValueError(f"{index.scores['num_docs']} passages are indexed, {len(passages)} are stored")
    # Plain views: slicing np.memmap objects costs several microseconds each.
    index.scores = {name: np.asarray(value) if name != "num_docs" else value for name, value in index.scores.items()}
    return index, passages


def _best(scores: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.intp]:
    """Rows of the `k` best scores above 0, best first, equal ones in row order."""
    # Partition the matches only: on an array of mostly equal numbers, partition is up to ten times slower.
    rows = np.flatnonzero(scores > 0)
    if len(rows) > k:
        positive = scores[rows]
        rows = rows[positive >= np.partition(positive, len(positive) - k)[len(positive) - k]]
    order = np.argsort(-scores[rows], kind="stable")[:k]
    return rows[order]
