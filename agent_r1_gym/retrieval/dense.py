"""Dense retrieval: exact inner products (FAISS) of sentence embeddings."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from agent_r1_gym.core.types import Passage
from agent_r1_gym.errors import ConfigurationError, MissingDependencyError, RetrievalError
from agent_r1_gym.retrieval import store
from agent_r1_gym.retrieval.base import Hit, Retriever, check_k, clean_query
from agent_r1_gym.support.checks import check_choice, check_integer
from agent_r1_gym.support.concurrency import limit_openmp_spinning
from agent_r1_gym.support.packages import install_command

Vectors = npt.NDArray[np.float32]
Encoder = Callable[[list[str]], Any]
Pooling = Literal["mean", "cls"]
_MODULES = {"Transformer", "Pooling", "Normalize"}
"""Modules of sentence-transformers that change nothing but what is done here; cosines need no scaling."""


class DenseRetriever(Retriever):
    """Nearest passages by cosine similarity of embeddings, exact (FAISS flat index).

    Every non-empty query has hits; scores are cosines. The encoder runs in your process with PyTorch; for many workers,
    start a retrieval server and pass its address instead.

    Args:
        passages: the corpus; not read if a cached index exists.
        encoder: folder (or hub name) of a sentence encoder, see `SentenceEncoder`; or a function from a list of n texts
            to an array (n, dimension).
        batch_size: number of texts to encode at once.
        cache_dir: folder of cached embeddings; None: they stay in memory.
        fingerprint: identity of the corpus, part of the name of the cached index; required with `cache_dir`.
        query_prefix: prepended to each query ("query: " for E5).
        passage_prefix: prepended to each passage ("passage: " for E5).
        pooling: see `SentenceEncoder`.

    Raises:
        ConfigurationError: `cache_dir` without `fingerprint`, or with a nameless function as encoder.
        MissingDependencyError: FAISS, PyTorch or Transformers is not installed.
        RetrievalError: the encoder cannot be loaded, or returns anything but finite vectors.
    """

    call_timeout = None

    def __init__(
        self,
        passages: Iterable[Passage],
        *,
        encoder: str | Path | Encoder,
        batch_size: int = 64,
        cache_dir: Path | None = None,
        fingerprint: str | None = None,
        query_prefix: str = "",
        passage_prefix: str = "",
        pooling: Pooling | None = None,
    ) -> None:
        check_integer("batch_size", batch_size, 1)
        _faiss()
        self._encoder: Encoder = encoder if callable(encoder) else SentenceEncoder(encoder, pooling=pooling)
        self._batch_size = batch_size
        self._query_prefix, self._passage_prefix = query_prefix, passage_prefix
        self._passages: Sequence[Passage]
        if cache_dir is None:
            self._passages = list(passages)
            self._index = self._build(self._passages)
            return
        if fingerprint is None:
            raise ConfigurationError("DenseRetriever(cache_dir=...) needs fingerprint=..., the identity of the corpus.")

        def build(directory: Path) -> None:
            store.PassageStore.write(passages, directory)
            _faiss().write_index(self._build(store.PassageStore(directory)), str(directory / "vectors.faiss"))

        # What the model declares counts; indexes of means keep the name that they had before it did.
        pooling = "cls" if getattr(self._encoder, "pooling", None) == "cls" else pooling
        settings = json.dumps([_encoder_identity(encoder), pooling, passage_prefix])
        key = hashlib.blake2b(settings.encode(), digest_size=6).hexdigest()
        directory = Path(cache_dir) / f"dense-{fingerprint}-{key}"
        self._index, self._passages = store.open_or_build(directory, build, load=_load_index)

    def search_batch(self, queries: Sequence[str], k: int) -> list[list[Hit]]:
        """Find the `k` nearest passages for each query (see `Retriever.search_batch`)."""
        k = check_k(k)
        cleaned = [clean_query(query) for query in queries]
        positions = [position for position, query in enumerate(cleaned) if query]
        hit_lists: list[list[Hit]] = [[] for _ in cleaned]
        if not positions or not len(self._passages):
            return hit_lists
        vectors = self._encode([self._query_prefix + cleaned[position] for position in positions])
        if vectors.shape[1] != self._index.d:
            raise RetrievalError(f"The encoder returned {vectors.shape[1]} dimensions, the index has {self._index.d}.")
        scores, rows = self._index.search(vectors, min(k, len(self._passages)))
        for position, nearest, cosines in zip(positions, rows, scores, strict=True):
            order = np.lexsort((nearest, -cosines))  # equal scores in corpus order
            hit_lists[position] = [Hit(self._passages[int(nearest[i])], float(cosines[i])) for i in order]
        return hit_lists

    def __len__(self) -> int:
        return len(self._passages)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": _faiss().serialize_index(self._index)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._index = _faiss().deserialize_index(state["_index"])

    def _build(self, passages: Sequence[Passage]) -> Any:
        faiss = _faiss()
        index = None
        for start in range(0, len(passages), 64 * self._batch_size):
            part = [passages[row] for row in range(start, min(start + 64 * self._batch_size, len(passages)))]
            texts = [f"{self._passage_prefix}{passage.title}\n{passage.text}".strip() for passage in part]
            vectors = self._encode(texts)
            index = index or faiss.IndexFlatIP(vectors.shape[1])
            index.add(vectors)
        return index or faiss.IndexFlatIP(1)

    def _encode(self, texts: list[str]) -> Vectors:
        """Encode n texts as L2-normalised vectors (n, dimension)."""
        # Sorted by length: texts of similar length share a batch, which saves padding.
        order = sorted(range(len(texts)), key=lambda position: len(texts[position]))
        parts = []
        for start in range(0, len(texts), self._batch_size):
            batch = [texts[position] for position in order[start : start + self._batch_size]]
            vectors = np.asarray(self._encoder(batch), dtype=np.float32)
            if vectors.ndim != 2 or len(vectors) != len(batch) or not np.isfinite(vectors).all():
                raise RetrievalError(
                    f"The encoder must return one finite vector for each of {len(batch)} texts, got an array of shape "
                    f"{vectors.shape}."
                )
            parts.append(vectors)
        stacked = np.concatenate(parts)
        stacked /= np.maximum(np.linalg.norm(stacked, axis=1, keepdims=True), 1e-12)
        result = np.empty_like(stacked)
        result[order] = stacked
        return result


class SentenceEncoder:
    """Encodes texts with a Transformers model, which is loaded on first use and again after a fork.

    Args:
        source: folder or hub name of the model.
        pooling: "mean" over the tokens, or the first token ("cls"); None: as the model's `1_Pooling/config.json`
            (sentence-transformers) says, "mean" without that file.
        max_length: maximum number of tokens of a text; the model's own limit if that is lower.

    Attributes:
        pooling: "mean" or "cls".

    Raises:
        ConfigurationError: the model declares another pooling, or further modules (such as a dense layer).
        RetrievalError: its files are neither in a folder nor on a hub that answers.
    """

    def __init__(self, source: str | Path, *, pooling: Pooling | None = None, max_length: int = 512) -> None:
        if pooling is not None:
            check_choice("pooling", pooling, ("mean", "cls"))
        self.source = str(Path(source).expanduser()) if Path(source).expanduser().exists() else str(source)
        self.pooling: Pooling = pooling or _declared_pooling(self.source)
        self._max_length = max_length
        self._loaded: tuple[Any, Any] | None = None
        self._pid = os.getpid()

    def __call__(self, texts: list[str]) -> Vectors:
        """Encode n texts as vectors (n, dimension), not normalised."""
        torch = _import("torch")
        tokenizer, model = self._load()
        limit = min(self._max_length, tokenizer.model_max_length)
        inputs = tokenizer(texts, padding=True, truncation=True, max_length=limit, return_tensors="pt")
        with torch.inference_mode():
            states = model(**inputs).last_hidden_state
        if self.pooling == "cls":
            pooled = states[:, 0]
        else:
            mask = inputs["attention_mask"].unsqueeze(-1).to(states.dtype)
            pooled = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        vectors: Vectors = pooled.float().numpy()
        return vectors

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def _load(self) -> tuple[Any, Any]:
        if self._pid != os.getpid():
            # The thread pools of PyTorch and FAISS do not survive a fork; one thread needs no pool.
            self._pid = os.getpid()
            _import("torch").set_num_threads(1)
            _faiss().omp_set_num_threads(1)
        if self._loaded is None:
            transformers = _import("transformers")
            try:
                with _no_progress_bar(transformers.utils.logging):
                    tokenizer = transformers.AutoTokenizer.from_pretrained(self.source, trust_remote_code=False)
                    model = transformers.AutoModel.from_pretrained(self.source, trust_remote_code=False).eval()
            except (OSError, ValueError, KeyError) as error:
                raise RetrievalError(f"The sentence encoder {self.source!r} cannot be loaded: {error}") from error
            self._loaded = tokenizer, model
        return self._loaded


@contextlib.contextmanager
def _no_progress_bar(transformers_logging: Any) -> Iterator[None]:
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()


def _declared_pooling(source: str) -> Pooling:
    """The pooling that a model of sentence-transformers declares, "mean" without a declaration."""
    files = [_find_file(source, name) for name in ("modules.json", "1_Pooling/config.json")]
    try:
        modules, config = (None if file is None else json.loads(file.read_text()) for file in files)
        kinds = {str(module["type"]).rpartition(".")[2] for module in modules or ()}
        modes = {name for name, on in (config or {}).items() if name.startswith("pooling_mode") and on is True}
        if config and isinstance(config.get("pooling_mode"), str):
            modes.add(config["pooling_mode"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(
            f"modules.json or 1_Pooling/config.json of the sentence encoder {source!r} is damaged: {error!r}."
        ) from error
    if others := sorted(kinds - _MODULES):
        raise ConfigurationError(
            f"The sentence encoder {source!r} has modules of the kinds {', '.join(others)}; supported are "
            f"{', '.join(sorted(_MODULES))}. Use another encoder, or pass a function that encodes."
        )
    if config is None:
        return "mean"
    if modes and modes <= {"pooling_mode_cls_token", "cls"}:
        return "cls"
    if modes and modes <= {"pooling_mode_mean_tokens", "mean"}:
        return "mean"
    raise ConfigurationError(
        f"The sentence encoder {source!r} declares the pooling {sorted(modes)}; supported are mean and cls. Set "
        "pooling=... instead."
    )


def _find_file(source: str, name: str) -> Path | None:
    """Find a file of a model in its folder, in the hub's cache or on the hub; None if the model has no such file.

    Raises:
        RetrievalError: there is neither a folder nor a hub that answers.
    """
    if Path(source).is_dir():
        path = Path(source, name)
        return path if path.is_file() else None
    hub, errors = _import("huggingface_hub"), _import("huggingface_hub.errors")
    try:
        cached = hub.try_to_load_from_cache(source, name)
        found = hub.hf_hub_download(source, name) if cached is None else cached
    except errors.RemoteEntryNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RetrievalError(
            f"{name} of the sentence encoder {source!r} cannot be read ({error}). Name a folder, or a hub id that is "
            "reachable; for one that is only in the hub's cache, set pooling=... of DenseRetriever."
        ) from error
    return Path(found) if isinstance(found, str) else None  # the cache also knows which files do not exist


def _load_index(directory: Path) -> tuple[Any, Sequence[Passage]]:
    passages = store.PassageStore(directory)
    try:
        index = _faiss().read_index(str(directory / "vectors.faiss"))
    except RuntimeError as error:
        raise ValueError(str(error)) from error
    if index.ntotal != len(passages):
        raise ValueError(f"{index.ntotal} passages are indexed, {len(passages)} are stored")
    return index, passages


def _encoder_identity(encoder: str | Path | Encoder) -> list[Any]:
    """Identity of an encoder in the name of its cache: its name, and for a folder the state of its files."""
    if not callable(encoder):
        files = [(file.name, file.stat()) for file in Path(encoder).expanduser().glob("*") if file.is_file()]
        return [str(encoder), sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in files)]
    name = getattr(encoder, "__qualname__", "<lambda>")
    if "<" in name:
        raise ConfigurationError("A cached index needs an encoder with a name: a folder, or a function of a module.")
    return [getattr(encoder, "__module__", ""), name]


def _faiss() -> Any:
    return _import("faiss")


def _import(package: str) -> Any:
    limit_openmp_spinning()
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingDependencyError(
            f"Dense retrieval needs {package}: {install_command('dense')} ({error})."
        ) from error
