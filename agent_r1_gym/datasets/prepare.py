"""Fetching a data set once: from the hub, or from official files that lie on this machine."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from agent_r1_gym.datasets.load import prepared_folder
from agent_r1_gym.datasets.official.files import find_file, find_splits, read_rows
from agent_r1_gym.datasets.official.formats import (
    MODULES,
    SPLITS,
    canonical_name,
    canonical_split,
    parse_rows,
    split_in_name,
)
from agent_r1_gym.datasets.official.hub import hub_rows
from agent_r1_gym.datasets.official.rows import PassagePool, Row
from agent_r1_gym.errors import ConfigurationError, DatasetError
from agent_r1_gym.support import files

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
    name = canonical_name(name)
    if source is not None and hub_id is not None:
        raise ConfigurationError(f"expected source or hub_id, got both: source={str(source)!r}, hub_id={hub_id!r}")
    canonical = None if splits is None else tuple(dict.fromkeys(map(canonical_split, splits)))
    if canonical == ():
        raise ConfigurationError(f"splits is empty; expected some of {', '.join(SPLITS)}, or None")
    if source is not None:
        readers = _local_readers(name, Path(source).expanduser(), canonical)
    else:
        copy = hub_id or MODULES[name].HUB_ID
        readers = {split: partial(hub_rows, name, hub_id=copy, split=split) for split in canonical or DEFAULT_SPLITS}
    targets = []
    for split, read in readers.items():
        target = prepared_folder(name) / f"{split}.jsonl"
        with files.locked(target):
            if target.exists() and not force:
                _LOG.warning("%s is there already and was kept; force=True (--force) writes it anew", target)
            else:
                # A fresh pool for each row: nothing is kept, so that memory stays flat.
                checked = (row for row, _ in parse_rows(read(), name, split=split, pool=PassagePool))
                _write(target, checked, label=f"{name}/{split}", progress=progress)
        targets.append(target)
    return targets


def _local_readers(name: str, source: Path, splits: Sequence[str] | None) -> dict[str, Callable[[], Iterable[Row]]]:
    if source.is_file() and splits is None and split_in_name(source.name) is None:
        raise ConfigurationError(f"The name of {source} says no split; expected splits=['train'] or the like")
    if source.is_file() and splits is not None and len(splits) > 1:
        raise ConfigurationError(f"{source} is one file; expected one split, got {', '.join(splits)}")
    if source.is_dir() and splits is None:
        splits = tuple(find_splits(source, name)) or None
    paths = [find_file(source, name, split=split) for split in splits or (None,)]
    return {split: partial(read_rows, path, name) for path, split in paths}


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
