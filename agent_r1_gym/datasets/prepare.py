"""Fetching a data set once: from the hub, or from official files that lie on this machine."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.support import files

if TYPE_CHECKING:
    from agent_r1_gym.datasets.official.rows import Row

DEFAULT_SPLITS = ("train", "validation")
"""The splits whose answers are public."""

_LOG = logging.getLogger(__name__)


def prepare(
    name: str,
    *,
    splits: Sequence[str] | None = None,
    hub_id: str | None = None,
    source: str | Path | None = None,
    force: bool = False,
    progress: bool = True,
) -> list[Path]:
    """Writes each split of a data set as JSON Lines where `load_dataset(name, "auto")` finds it.

    Every row is checked before it is written; a split appears whole or not at all, and only one process writes it.
    Splits that are there already are kept, so that an interrupted run is taken up by running it again.

    Args:
        name: "hotpotqa", "2wikimultihopqa" ("2wiki") or "musique".
        splits: names of splits; None: train and validation from the hub, or whatever `source` holds.
        hub_id: "repository", "repository:configuration" or a folder of parquet files; None: the usual copy.
        source: an official data file, or a folder that holds some; nothing is downloaded then.
        force: write splits anew that are there already.
        progress: show a progress bar on standard error (downloads show those of the hub's library in any case).

    Returns:
        The file of each split, also of those that were there already.

    Raises:
        ConfigurationError: an argument has a wrong value.
        DatasetError: the hub cannot be reached, or a row is malformed.
        MissingDependencyError: the hub is needed and the library `datasets` is not installed.
        OSError: the disk is full or not writable.
        TimeoutError: another process is writing the same split for longer than ten minutes.
    """
    from agent_r1_gym.datasets.load import prepared_folder
    from agent_r1_gym.datasets.official import formats

    name = formats.canonical_name(name)
    if source is not None and hub_id is not None:
        raise ConfigurationError(f"expected source or hub_id, got both: source={str(source)!r}, hub_id={hub_id!r}")
    canonical = None if splits is None else tuple(dict.fromkeys(map(formats.canonical_split, splits)))
    if canonical == ():
        raise ConfigurationError(f"splits is empty; expected some of {', '.join(formats.SPLITS)}, or None")
    if source is not None:
        readers = _local_readers(name, Path(source).expanduser(), canonical)
    else:
        readers = _hub_readers(name, hub_id or formats.format_of(name).HUB_ID, canonical or DEFAULT_SPLITS)
    targets = []
    for split, read in readers.items():
        target = prepared_folder(name) / f"{split}.jsonl"
        with files.locked(target):
            if target.exists() and not force:
                _LOG.warning("%s is there already and was kept; force=True (--force) writes it anew", target)
            else:
                _write(target, _checked(read(), name, split), label=f"{name}/{split}", progress=progress)
        targets.append(target)
    return targets


def _hub_readers(name: str, hub_id: str, splits: Sequence[str]) -> dict[str, Callable[[], Iterable[Row]]]:
    from agent_r1_gym.datasets.official.hub import hub_rows

    return {split: partial(hub_rows, name, hub_id=hub_id, split=split) for split in splits}


def _local_readers(name: str, source: Path, splits: Sequence[str] | None) -> dict[str, Callable[[], Iterable[Row]]]:
    from agent_r1_gym.datasets.official import files, formats

    if source.is_file() and splits is None and formats.split_in_name(source.name) is None:
        raise ConfigurationError(f"The name of {source} says no split; expected splits=['train'] or the like")
    if source.is_file() and splits is not None and len(splits) > 1:
        raise ConfigurationError(f"{source} is one file; expected one split, got {', '.join(splits)}")
    if source.is_dir() and splits is None:
        splits = tuple(files.find_splits(source, name)) or None
    paths = [files.find_file(source, name, split=split) for split in splits or (None,)]
    return {split: partial(files.read_rows, path, name) for path, split in paths}


def _checked(rows: Iterable[Row], name: str, split: str) -> Iterator[Row]:
    from agent_r1_gym.datasets.official.formats import parse_rows
    from agent_r1_gym.datasets.official.rows import PassagePool

    # a fresh pool for each row: nothing is kept, so that memory stays flat
    for row, _ in parse_rows(rows, name, split=split, pool=PassagePool):
        yield row


def _write(target: Path, rows: Iterable[Row], *, label: str, progress: bool) -> None:
    from tqdm import tqdm

    count = 0
    with files.atomic_file(target) as temporary, temporary.open("w", encoding="ascii", newline="\n") as stream:
        for row in tqdm(rows, desc=label, unit=" questions", disable=not progress):
            stream.write(json.dumps(row.data) + "\n")
            count += 1
        if not count:
            raise DatasetError(f"{label}: the source holds no question; nothing was written")
    _LOG.info("wrote %d questions to %s", count, target)
