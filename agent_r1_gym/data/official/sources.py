"""Where official rows come from: a data file, the hub, or a file on the web or in a zip archive."""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import importlib.util
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from agent_r1_gym.data.official.dataset_formats import FORMATS, SPLITS, check_signature, official_row, split_in_name
from agent_r1_gym.data.official.raw_rows import Row
from agent_r1_gym.errors import DatasetError, MissingDependencyError
from agent_r1_gym.support import files
from agent_r1_gym.support.json_data import UnpackedSize, read_objects
from agent_r1_gym.support.packages import install_command

_PARQUET_HINT = "serve its folder with dataset='hub', hub_id=FOLDER"
_DAMAGED = (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, zlib.error)  # RuntimeError: encrypted
_DOWNLOAD_LOCK_TIMEOUT = 24 * 3600.0


# --- files -----------------------------------------------------------------------------------------------------------


def find_file(path: Path, name: str, *, split: str | None) -> tuple[Path, str]:
    """Finds the data file that `path` is or contains; returns it with its split.

    Args:
        path: a file, or a folder with files that have official names or names such as "train.jsonl", "dev.json".
        name: short name of the data set.
        split: the split to find; None: the split in the file name, else "file NAME"; in a folder the first of train,
            validation, test.

    Raises:
        DatasetError: there is no such file or folder, or the folder lacks that split.
    """
    if path.is_file():
        return path, split or split_in_name(path.name) or f"file {path.name}"
    if not path.is_dir():
        raise DatasetError(f"There is no file or folder {path}; expected a data file of {name}.{_close_matches(path)}")
    splits = find_splits(path, name)
    for candidate in [split] if split else splits:
        if candidate in splits:
            return splits[candidate], candidate
    raise DatasetError(
        f"The folder {path} holds no {split or 'known'} split of {name}; expected one of "
        f"{', '.join(expected_file_names(name, split))} (or gzipped, with .gz at the end); it holds {_listing(path)}"
    )


def find_splits(folder: Path, name: str) -> dict[str, Path]:
    """Finds the data file of each split in a folder; a single data file is accepted whatever its name."""
    splits: dict[str, Path] = {}
    for split in SPLITS:
        candidates = (folder / f"{file}{packed}" for file in expected_file_names(name, split) for packed in ("", ".gz"))
        if present := next((file for file in candidates if file.is_file()), None):
            splits[split] = present
    if not splits:
        data = [
            file
            for file in sorted(folder.iterdir())
            if file.name.removesuffix(".gz").endswith((".json", ".jsonl")) and file.name != FORMATS[name].ALIASES_FILE
        ]
        if len(data) == 1:
            splits[split_in_name(data[0].name) or "train"] = data[0]
    return splits


def expected_file_names(name: str, split: str | None) -> list[str]:
    """Lists the file names of a split (None: of all splits), without the suffix .gz."""
    names: list[str] = []
    for candidate in [split] if split else SPLITS:
        stems = (candidate, "dev") if candidate == "validation" else (candidate,)
        names += [f"{stem}{suffix}" for stem in stems for suffix in (".jsonl", ".json")]
        names += FORMATS[name].FILES[candidate]
    return names


def file_version(path: Path) -> tuple[str, int, int] | None:
    """Identifies the content of a file by path, time and size, for caches; None if it does not exist."""
    if not path.exists():
        return None
    status = path.stat()
    return str(path.resolve()), status.st_mtime_ns, status.st_size


def _listing(folder: Path) -> str:
    names = sorted(entry.name for entry in folder.iterdir())
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "") if names else "nothing"


def _close_matches(path: Path) -> str:
    if not path.parent.is_dir():
        return f" The folder {path.parent} does not exist either."
    near = difflib.get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=3, cutoff=0.5)
    return f" Similar names there: {', '.join(near)}." if near else f" {path.parent} holds {_listing(path.parent)}."


def read_rows(path: Path, name: str) -> Iterator[Row]:
    """Yields the rows of a data file in the official shape.

    Args:
        path: the file. If the data set has a file of entity names, it is read from the same folder.
        name: short name of the data set.

    Raises:
        DatasetError: the file cannot be read, is empty, truncated, not JSON, or belongs to another data set.
    """
    form = FORMATS[name]
    aliases = _read_aliases(path.with_name(form.ALIASES_FILE)) if form.ALIASES_FILE else {}
    number = -1
    for number, (where, data) in enumerate(read_objects(path, if_parquet=_PARQUET_HINT)):
        row = official_row(form, data, number=number, where=where, aliases=aliases)
        if number == 0:
            check_signature(row, name)
        yield row
    if number < 0:
        raise DatasetError(f"{path} is empty; expected a JSON array or JSON Lines with rows of {form.TITLE}")


def _read_aliases(path: Path) -> dict[str, tuple[str, ...]]:
    """Reads the other names of each entity from 2Wiki's `id_aliases.json`, if there is one."""
    if not path.is_file():
        return {}
    aliases: dict[str, tuple[str, ...]] = {}
    for where, data in read_objects(path):
        match data:
            case {"Q_id": str(entity), "aliases": [*names], "demonyms": [*demonyms]}:
                aliases[entity] = tuple(str(name) for name in (*names, *demonyms))
            case _:
                raise DatasetError(f"{where}: expected the fields Q_id, aliases and demonyms; got {', '.join(data)}")
    return aliases


# --- the hub ---------------------------------------------------------------------------------------------------------


def hub_is_installed() -> bool:
    """Whether the library `datasets` is installed."""
    return importlib.util.find_spec("datasets") is not None


def hub_rows(name: str, *, hub_id: str, split: str) -> Iterator[Row]:
    """Yields the rows of a split in the official shape; reports what is missing before the first row.

    Args:
        name: short name of the data set.
        hub_id: "repository", "repository:configuration", or a local folder of parquet files named after their split.
        split: "train", "validation" or "test".

    Raises:
        MissingDependencyError: the library `datasets` is not installed.
        DatasetError: the hub cannot be reached, or lacks that data set or split.
    """
    form, library = FORMATS[name], _library()
    if Path(hub_id).is_dir():
        table = _open_folder(library, Path(hub_id), split)
    else:
        table = _open_repository(library, name, hub_id, split)
    return (
        official_row(form, data, number=number, where=f"{hub_id} ({split}), row {number}", aliases={})
        for number, data in enumerate(table)
    )


def _open_folder(library: Any, folder: Path, split: str) -> Iterable[Mapping[str, Any]]:
    parquet = [str(file) for file in sorted(folder.glob("*.parquet")) if split_in_name(file.name) == split]
    if not parquet:
        raise DatasetError(
            f"The folder {folder} holds no parquet file named after the split {split!r}; it holds {_listing(folder)}"
        )
    try:
        # Streaming: the files are local, and a second copy in the hub's cache would be waste.
        yield from library.load_dataset("parquet", data_files={split: parquet}, split=split, streaming=True)
    except (OSError, ValueError) as error:
        raise DatasetError(f"The parquet files of {folder} cannot be read: {error}") from error


def _open_repository(library: Any, name: str, hub_id: str, split: str) -> Iterable[Mapping[str, Any]]:
    repository, _, configuration = hub_id.partition(":")
    try:
        offered = library.get_dataset_split_names(repository, configuration or None)
        hub_split = next((candidate for candidate in offered if split_in_name(candidate) == split), None)
        if hub_split is not None:
            table: Iterable[Mapping[str, Any]] = library.load_dataset(
                repository, configuration or None, split=hub_split
            )
            return table
    except Exception as error:  # the errors of several HTTP clients, without a base class, pass through the library
        raise DatasetError(
            f"{hub_id} could not be loaded from the hub ({type(error).__name__}: {error}). Without network: download "
            f"the official files elsewhere, then run `agent-r1 data prepare {name} --source FILE_OR_FOLDER`"
        ) from error
    raise DatasetError(f"{hub_id} has no split {split!r}; it has {', '.join(offered)}")


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError(
            f"The hub's data sets need the library `datasets`: {install_command('data')}; or fetch the official files: "
            "`agent-r1 data prepare NAME --source URL_OR_FILE_OR_FOLDER`"
        ) from error
    return datasets


# --- the web, and archives -------------------------------------------------------------------------------------------


def file_name(url: str) -> str:
    """Name of the file at an address: "data.zip" for "https://host/a/data.zip?dl=1"."""
    return PurePosixPath(unquote(urlsplit(url).path)).name or "download"


@contextlib.contextmanager
def local_copy(source: str | Path, name: str, *, progress: bool) -> Iterator[Path]:
    """Yields a local file or folder with the content of `source`; temporary copies are removed afterwards.

    Args:
        source: an address, a file (zip archives included) or a folder.
        name: short name of the data set.
        progress: show a progress bar for a download.

    Raises:
        DatasetError: it cannot be downloaded or unpacked.
    """
    with contextlib.ExitStack() as stack:
        path = (
            stack.enter_context(_downloaded(str(source), progress))
            if files.is_url(source)
            else Path(source).expanduser()
        )
        if path.is_file() and zipfile.is_zipfile(path):
            path = stack.enter_context(_unpacked(path, name))
        yield path


@contextlib.contextmanager
def _downloaded(url: str, progress: bool) -> Iterator[Path]:
    """Downloads a file and removes it afterwards; an interrupted download stays, so that the next call resumes it."""
    from agent_r1_gym.support.download import download  # imports an HTTP client, which few programs need

    folder = files.home() / "downloads" / hashlib.sha256(url.encode()).hexdigest()[:16]
    path = folder / file_name(url)
    with files.locked(folder, timeout=_DOWNLOAD_LOCK_TIMEOUT):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            download(url, path, label=path.name, progress=progress)
            yield path
        finally:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty: it holds the part that the next call resumes
                folder.rmdir()


@contextlib.contextmanager
def _unpacked(archive: Path, name: str) -> Iterator[Path]:
    """Extracts the official files of an archive into a temporary folder, wherever they lie in the archive."""
    wanted = {*expected_file_names(name, None), FORMATS[name].ALIASES_FILE or ""}
    parent_dir = files.home() / "downloads"  # next to the prepared data: the system's temporary folder may be small
    parent_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=parent_dir) as folder:
        try:
            unpacked = UnpackedSize(archive)
            with zipfile.ZipFile(archive) as packed:
                members = {PurePosixPath(file.filename).name: file for file in packed.infolist() if not file.is_dir()}
                for member in wanted & members.keys():  # by base name: no path of an archive is ever followed
                    with packed.open(members[member]) as source, (Path(folder) / member).open("wb") as target:
                        for part in iter(functools.partial(source.read, 1 << 20), b""):
                            unpacked.add(len(part))
                            target.write(part)
        except _DAMAGED as error:
            raise DatasetError(f"The archive {archive} cannot be read: {error}") from error
        if not any(Path(folder).iterdir()):
            listing = ", ".join(sorted(members)[:10]) or "nothing"
            raise DatasetError(f"The archive {archive} holds no official file of {name}; it holds {listing}.")
        yield Path(folder)
