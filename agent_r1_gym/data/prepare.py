"""Preparing a data set once: from the hub, from its official addresses, or from local official files."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agent_r1_gym.data.load import prepared_folder
from agent_r1_gym.data.official.dataset_formats import (
    FORMATS,
    SPLITS,
    canonical_name,
    canonical_split,
    parse_rows,
    split_in_name,
)
from agent_r1_gym.data.official.raw_rows import PassagePool, Row
from agent_r1_gym.data.official.sources import (
    file_name,
    find_file,
    find_splits,
    hub_is_installed,
    hub_rows,
    local_copy,
    read_rows,
)
from agent_r1_gym.errors import ConfigurationError, DatasetError, MissingDependencyError
from agent_r1_gym.support import files
from agent_r1_gym.support.files import is_url
from agent_r1_gym.support.packages import install_command

_LOG = logging.getLogger(__name__)
_OFFICIAL_SPLITS_ONLY = frozenset({"svamp"})
"""Data sets to download from their official address: the usual copy on the hub splits them differently."""


def prepare(
    name: str,
    *,
    splits: Sequence[str] | None = None,
    hub_id: str | None = None,
    source: str | Path | None = None,
    force: bool = False,
    progress: bool = True,
) -> list[Path]:
    """Writes each split of a data set as JSON Lines, where `load_dataset(name, "auto")` finds it.

    Every row is checked before it is written. A split appears complete or not at all, and one process writes it.
    Existing splits are skipped, so that an interrupted call can be repeated.

    Args:
        name: "hotpotqa", "2wikimultihopqa" ("2wiki"), "musique", "gsm8k" or "svamp".
        splits: names of splits; None: those with public answers (train and validation; of GSM8K train and test; of
            SVAMP test), or all that `source` holds.
        hub_id: "repository", "repository:configuration" or a folder of parquet files; None: the usual copy, or
            the official files from their addresses if the library `datasets` is not installed, and always for "svamp",
            which the usual copy splits differently.
        source: an official data file, a zip archive or folder with such files, or the address of a file or archive
            (http, https). An interrupted download is resumed by the same call.
        force: overwrite existing splits.
        progress: show a progress bar on standard error (the hub's library always shows its own).

    Returns:
        The file of each split, existing ones included.

    Raises:
        ConfigurationError: an argument has a wrong value.
        DatasetError: the hub or an address is not reachable, or a row is malformed.
        MissingDependencyError: the hub is needed, and the library `datasets` is not installed.
        OSError: the disk is full or not writable.
        TimeoutError: another process has been writing the same split for ten minutes.
    """
    name = canonical_name(name)
    if source is not None and hub_id is not None:
        raise ConfigurationError(f"expected source or hub_id, got both: source={str(source)!r}, hub_id={hub_id!r}")
    canonical = None if splits is None else tuple(dict.fromkeys(map(canonical_split, splits)))
    if canonical == ():
        raise ConfigurationError(f"splits is empty; expected some of {', '.join(SPLITS)}, or None")
    task = _Preparation(name=name, force=force, progress=progress)
    public = tuple(FORMATS[name].URLS)
    if source is not None:
        return task.from_source(source, canonical)
    if hub_id is None and (name in _OFFICIAL_SPLITS_ONLY or not hub_is_installed()):
        return task.from_web(canonical or public)
    copy = hub_id or FORMATS[name].HUB_ID
    wanted = canonical or public
    return task.write({split: partial(hub_rows, name, hub_id=copy, split=split) for split in wanted})


@dataclass(frozen=True, kw_only=True)
class _Preparation:
    """The preparation of one data set; see `prepare`."""

    name: str
    force: bool
    progress: bool

    def from_web(self, splits: Sequence[str]) -> list[Path]:
        """Prepares splits from their official addresses; an archive with several splits is downloaded once."""
        form = FORMATS[self.name]
        by_url: dict[str, list[str]] = {}
        for split in splits:
            if split not in form.URLS:
                raise MissingDependencyError(
                    f"The split {split!r} of {form.TITLE} needs the library `datasets`: {install_command('data')}; "
                    f"or name its file: `agent-r1 data prepare {self.name} --source URL_OR_FILE --split {split}`"
                )
            by_url.setdefault(form.URLS[split], []).append(split)
        return [path for url, url_splits in by_url.items() for path in self.from_source(url, url_splits)]

    def from_source(self, source: str | Path, splits: Sequence[str] | None) -> list[Path]:
        """Prepares the splits of an address, archive, file or folder; downloads nothing that exists already."""
        if is_url(source):
            file_split = split_in_name(file_name(str(source)))
            known = splits or ([file_split] if file_split else [])
            if known and not self.force and all(self._target(split).exists() for split in known):
                return self.write(dict.fromkeys(known, tuple))
        with local_copy(source, self.name, progress=self.progress) as path:
            return self.write(_local_readers(self.name, path, splits))

    def write(self, readers: Mapping[str, Callable[[], Iterable[Row]]]) -> list[Path]:
        """Writes each split that does not exist yet; returns the files of all."""
        for split, read in readers.items():
            target = self._target(split)
            with files.locked(target):
                if target.exists() and not self.force:
                    _LOG.warning("%s exists and was kept; force=True (--force) overwrites it", target)
                    continue
                # A fresh pool for each row holds nothing, so that memory stays flat.
                checked = (row for row, _ in parse_rows(read(), self.name, split=split, pool=PassagePool))
                _write(target, checked, label=f"{self.name}/{split}", progress=self.progress)
        return list(map(self._target, readers))

    def _target(self, split: str) -> Path:
        return prepared_folder(self.name) / f"{split}.jsonl"


def _local_readers(name: str, source: Path, splits: Sequence[str] | None) -> dict[str, Callable[[], Iterable[Row]]]:
    if source.is_file() and splits is None and split_in_name(source.name) is None:
        raise ConfigurationError(f"The name of {source} contains no split: name one, as in --split train")
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
