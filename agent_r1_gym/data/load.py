"""Loading question data sets by name: `load_dataset`, and `load_mixture` for several as one."""

from __future__ import annotations

import functools
import importlib
import os
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path

from agent_r1_gym.core.types import Passage
from agent_r1_gym.data.base import Hop, QADataset, Question, SupportingFact, deduplicate
from agent_r1_gym.data.official.dataset_formats import FORMATS, build_dataset, canonical_name, canonical_split
from agent_r1_gym.data.official.sources import file_version, find_file, find_splits, hub_rows, read_rows
from agent_r1_gym.errors import ConfigurationError, DatasetError, suggest
from agent_r1_gym.support import files
from agent_r1_gym.support.checks import check_split

__all__ = [
    "Hop",
    "MixedQADataset",
    "QADataset",
    "Question",
    "SampleDataWarning",
    "SupportingFact",
    "load_dataset",
    "load_mixture",
    "prepared_folder",
]

FICTION, WORD_PROBLEMS = "fiction", "word problems"
"""Names of the generators. The environments that own them register them (`register_generator`)."""

AUTO, SAMPLE = "auto", "sample"
"""What `dataset` may be in place of a path: the real data, else the sample with a warning; the sample."""
_SOURCES = (AUTO, SAMPLE, "hub")
_SAMPLE_ENTITIES = 600
_SAMPLE_QUESTIONS = 200
_SAMPLE_SUFFIX = "-sample"

_dataset_cache: weakref.WeakValueDictionary[Hashable, QADataset] = weakref.WeakValueDictionary()
_generators: dict[str, str] = {}
_sample_warned: set[str] = set()
_lock = threading.RLock()


class SampleDataWarning(UserWarning):
    """A bundled sample is served, because no real data was found or given."""


def warn_of_sample(name: str, contents: str, remedy: str, *, stacklevel: int) -> None:
    """Warns that a bundled sample stands in for a data set; once per process and data set.

    Args:
        name: the data set.
        contents: what the sample holds, such as "INVENTED tables".
        remedy: how to get the real data, such as "run `COMMAND`, or pass dataset=PATH".
        stacklevel: see `warnings.warn`; 1 is the caller of this function.
    """
    with _lock:
        if name in _sample_warned:
            return
        _sample_warned.add(name)
    message = (
        f"No {name} data was found or given: serving a small sample of {contents} instead. For the real data {remedy}; "
        "dataset='sample' silences this warning."
    )
    warnings.warn(message, SampleDataWarning, stacklevel=stacklevel + 1)


def register_generator(name: str, entry_point: str) -> None:
    """Registers the function that generates a data set, as "module:function"; it is imported on first use."""
    _generators[name] = entry_point


def _generator(name: str) -> Callable[..., QADataset]:
    module, _, function = _generators[name].partition(":")
    make: Callable[..., QADataset] = getattr(importlib.import_module(module), function)
    return make


def prepared_folder(name: str) -> Path:
    """Folder in which `prepare` stores the splits of a data set."""
    return files.home() / "datasets" / name


def load_dataset(
    name: str,
    dataset: str | os.PathLike[str] | QADataset = AUTO,
    *,
    split: str | None = None,
    hub_id: str | None = None,
) -> QADataset:
    """Loads a data set.

    Calls with equal arguments return the same object while a reference to it exists: environments share it.

    Args:
        name: "hotpotqa", "2wikimultihopqa" ("2wiki"), "musique", "gsm8k", "svamp" or "fiction".
        dataset: where to take it from: "auto" (data prepared on this machine, else the sample with one
            `SampleDataWarning` per process; never the network), "sample" (200 questions of FictionQA, 600 entities,
            seed 0, in a mix of types that resembles `name`; for "gsm8k" and "svamp" 200 generated word problems), "hub"
            (the copy on the hub), a path (an official data file, or a folder with such files), or a `QADataset` itself.
        split: "train", "validation" ("dev") or "test", for "fiction" also "ood"; None: the split in the file name
            ("file NAME" if there is none), else the first split of the data set.
        hub_id: with "hub": "repository", "repository:configuration", or a local folder of parquet files; None: the
            usual copy.

    Raises:
        ConfigurationError: an argument has a wrong value.
        DatasetError: the data is missing or malformed; the message names file, line or row, and field.
        MissingDependencyError: "hub" needs the library `datasets`, which is not installed.
    """
    if hub_id is not None and dataset != "hub":
        raise ConfigurationError(f"hub_id={hub_id!r} needs dataset='hub'; got dataset={dataset!r}")
    check_split(split)
    if isinstance(dataset, QADataset):
        if split not in (None, dataset.split):
            raise ConfigurationError(f"split={split!r} does not match the data set {dataset.describe()}")
        return dataset
    if name.lower() == FICTION:
        return _fiction(dataset, split or "train")
    name = canonical_name(name)
    canonical = None if split is None else canonical_split(split)
    if dataset == AUTO:
        return _prepared_or_sample(name, canonical)
    if dataset == SAMPLE:
        return _sample(name, canonical or "train")
    if dataset == "hub":
        return _from_hub(name, hub_id or FORMATS[name].HUB_ID, canonical or "train")
    return _from_path(name, _as_path(dataset), canonical)


def _fiction(dataset: str | os.PathLike[str], split: str) -> QADataset:
    if dataset not in (AUTO, SAMPLE):
        raise ConfigurationError(
            "FictionQA is generated: expected dataset='auto', 'sample' or a data set made by fiction_dataset(...); "
            f"got {dataset!r}"
        )
    return _get_or_build((FICTION, split), lambda: _generator(FICTION)(split=split))


def _prepared_or_sample(name: str, split: str | None) -> QADataset:
    folder = prepared_folder(name)
    if folder.is_dir() and find_splits(folder, name):
        return _from_path(name, folder, split)
    remedy = f"run `agent-r1 data prepare {name}` once, or pass dataset=PATH"
    warn_of_sample(FORMATS[name].TITLE, "FICTIONAL questions", remedy, stacklevel=4)
    return _sample(name, split or "train")


def _sample(name: str, split: str) -> QADataset:
    form = FORMATS[name]
    if not form.SAMPLE_MIX:
        make = functools.partial(_generator(WORD_PROBLEMS), split, _SAMPLE_QUESTIONS, name=name)
        return _get_or_build(("sample", name, split), make)

    def build() -> QADataset:
        world = _generator(FICTION)(
            entities=_SAMPLE_ENTITIES, questions=_SAMPLE_QUESTIONS, split=split, mix=dict(form.SAMPLE_MIX)
        )
        return QADataset(
            tuple(world),  # made once instead of on demand: resets are fast
            name=f"{name}{_SAMPLE_SUFFIX}",
            split=split,
            source=f"a bundled FICTIONAL sample in the shape of {form.TITLE} (not {form.TITLE} itself): {world.source}",
            fingerprint=world.fingerprint,
            corpus=tuple(world.passages()),
        )

    return _get_or_build(("sample", name, split), build)


def _from_hub(name: str, hub_id: str, split: str) -> QADataset:
    def build() -> QADataset:
        rows = hub_rows(name, hub_id=hub_id, split=split)
        return build_dataset(rows, name, split=split, source=f"the hub's {hub_id}")

    return _get_or_build(("hub", name, hub_id, split), build)


def _as_path(dataset: str | os.PathLike[str]) -> Path:
    if not isinstance(dataset, str | os.PathLike):
        raise ConfigurationError(f"dataset must be a word, a path or a QADataset, got {dataset!r}")
    path = Path(dataset).expanduser()
    is_word = path.name == dataset and not path.suffix  # "" is one; a PathLike never equals a string
    if is_word and not (dataset and path.exists()):
        raise ConfigurationError(f"Unknown data set source {dataset!r}: no such path. {suggest(path.name, _SOURCES)}")
    return path


def _from_path(name: str, path: Path, split: str | None) -> QADataset:
    file, file_split = find_file(path, name, split=split)
    aliases = FORMATS[name].ALIASES_FILE
    versions = [file_version(part) for part in (file, file.with_name(aliases) if aliases else None) if part]

    def build() -> QADataset:
        return build_dataset(read_rows(file, name), name, split=file_split, source=str(file))

    return _get_or_build(("path", name, file_split, *versions), build)


def _get_or_build(key: Hashable, build: Callable[[], QADataset]) -> QADataset:
    with _lock:
        dataset = _dataset_cache.get(key)
        if dataset is None:
            dataset = _dataset_cache[key] = build()
        return dataset


# --- mixtures --------------------------------------------------------------------------------------------------------


def load_mixture(
    sources: Mapping[str, str | os.PathLike[str]], *, split: str | None = None, questions: int | None = None
) -> QADataset:
    """Loads several data sets as one (`MixedQADataset`); calls with equal arguments return the same object.

    Args:
        sources: maps the short name of each data set to its source, see `load_dataset`.
        split: see `load_dataset`.
        questions: total number of questions, an equal share of each data set; None: all.

    Raises:
        ConfigurationError, DatasetError: see `load_dataset` and `MixedQADataset`.
    """
    parts = tuple(load_dataset(name, source, split=split) for name, source in sources.items())
    return _get_or_build(("mixture", parts, questions), lambda: MixedQADataset(parts, questions=questions))


class MixedQADataset(QADataset):
    """Several data sets as one: their questions in turn, and the passages of all.

    The id of a question starts with the name of its data set ("hotpotqa/5a7a0693").

    Args:
        parts: the data sets, all of the same split.
        questions: total number of questions, an equal share of each part, drawn with a fixed seed; None: all.

    Raises:
        ConfigurationError: the number of questions is not divisible by the number of parts, or exceeds a part.
        DatasetError: the parts have different splits, or mix real data with bundled samples.
    """

    def __init__(self, parts: Sequence[QADataset], *, questions: int | None = None) -> None:
        if not parts:
            raise ConfigurationError("A mixture needs at least one data set, got none.")
        splits = {part.split for part in parts}
        if len(splits) > 1:
            raise DatasetError(f"The data sets have several splits ({', '.join(sorted(splits))}); set split=.")
        samples = [part.name for part in parts if part.is_sample]
        if 0 < len(samples) < len(parts):
            raise DatasetError(
                f"{', '.join(samples)} would be a bundled FICTIONAL sample next to real data. Prepare the real data "
                "(`agent-r1 data prepare`), give a path, or use dataset='sample' for all."
            )
        shares = [_share(part, questions, len(parts)) for part in parts]
        digest = blake2b("+".join(part.fingerprint for part in parts).encode(), digest_size=8)
        name = "+".join(part.name.removesuffix(_SAMPLE_SUFFIX) for part in parts)
        super().__init__(
            tuple(question for turn in zip_longest(*shares) for question in turn if question is not None),
            name=name + (_SAMPLE_SUFFIX if samples else ""),
            split=parts[0].split,
            source=" and ".join(
                f"{len(share)} of {part.describe()}" for part, share in zip(parts, shares, strict=True)
            ),
            fingerprint=digest.hexdigest(),
        )
        self._parts = tuple(parts)

    def passages(self) -> Iterator[Passage]:
        """Yields the passages of all parts without duplicates."""
        return deduplicate(passage for part in self._parts for passage in part.passages())


def _share(part: QADataset, questions: int | None, parts: int) -> list[Question]:
    """Draws the questions of one part of a mixture, with the name of the part in their ids."""
    indices: Sequence[int] = range(len(part))
    if questions is not None:
        share, rest = divmod(questions, parts)
        if share < 1 or rest:
            raise ConfigurationError(f"questions={questions} cannot be shared equally by {parts} data sets.")
        if share > len(part):
            raise ConfigurationError(
                f"questions={questions} needs {share} questions of each data set, but {part.describe()} has fewer."
            )
        indices = random.Random(f"mixture/{part.name}").sample(indices, share)
    return [replace(part[index], id=f"{part.name}/{part[index].id}") for index in indices]
