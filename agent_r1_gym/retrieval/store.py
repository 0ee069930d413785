"""Indexes on disk: built once by one process, whole or not at all, and checked before they are used."""

from __future__ import annotations

import json
import logging
import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from agent_r1_gym.errors import RetrievalError, RetrievalTimeout
from agent_r1_gym.support import files
from agent_r1_gym.types import Passage

_MANIFEST = "manifest.json"
_LONGEST_BUILD = 6 * 3600.0
_T = TypeVar("_T")
logger = logging.getLogger(__name__)


def open_or_build(directory: Path, build: Callable[[Path], object], *, load: Callable[[Path], _T]) -> _T:
    """Returns `load(directory)`; builds the folder first if it is missing, incomplete or unreadable.

    Of several processes one builds, the others wait for it and load what it built.

    Args:
        directory: the finished index.
        build: writes the index into the empty folder it is given.
        load: opens the finished index; any `ValueError`, `KeyError` or `OSError` means that it is damaged.

    Raises:
        RetrievalError: the index cannot be written (disk full, no permission).
        RetrievalTimeout: another process has been building for too long.
    """
    found = _try_load(directory, load)
    if found is not None:
        return found
    with writing(directory):
        found = _try_load(directory, load)
        if found is None:
            write_index(directory, build)
            found = load(directory)
        return found


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Holds the lock of an index that is to be written.

    Raises:
        RetrievalError: the index cannot be written.
        RetrievalTimeout: another process has been writing it for too long.
    """
    try:
        with files.locked(directory, timeout=_LONGEST_BUILD):
            yield
    except TimeoutError as error:
        raise RetrievalTimeout(str(error)) from error
    except OSError as error:
        raise RetrievalError(
            f"The index {directory} cannot be written: {error}. Free some space, or choose another folder "
            "(AGENT_R1_HOME)."
        ) from error


def write_index(directory: Path, build: Callable[[Path], object]) -> None:
    """Has `build` fill a new folder, seals it with a manifest, and puts it in the place of `directory`."""
    with files.atomic_directory(directory) as temporary:
        build(temporary)
        sizes = {file.name: file.stat().st_size for file in temporary.iterdir()}
        (temporary / _MANIFEST).write_text(json.dumps(sizes))


def is_intact(directory: Path) -> bool:
    """Returns whether every file that was written is still there in full size."""
    try:
        sizes: dict[str, int] = json.loads((directory / _MANIFEST).read_text())
        return all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def _try_load(directory: Path, load: Callable[[Path], _T]) -> _T | None:
    if not directory.exists():
        return None
    if is_intact(directory):
        try:
            return load(directory)
        except (ValueError, KeyError, OSError) as error:
            logger.warning("The index %s is damaged (%s); it is built again.", directory, error)
            return None
    logger.warning("The index %s is incomplete; it is built again.", directory)
    return None


class PassageStore(Sequence[Passage]):
    """Passages in a memory-mapped file: they take no memory of their own and are shared between processes.

    Args:
        directory: where `PassageStore.write` put them.
    """

    _TEXT = "passages.jsonl"
    _OFFSETS = "passages.offsets.npy"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets = np.asarray(np.load(directory / self._OFFSETS, mmap_mode="r"))
        if len(self) == 0:
            self._rows: bytes | mmap.mmap = b""
            return
        with (directory / self._TEXT).open("rb") as file:
            self._rows = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    @classmethod
    def write(cls, passages: Iterable[Passage], directory: Path) -> None:
        """Writes the files of a store into `directory`."""
        offsets = [0]
        with (directory / cls._TEXT).open("wb") as file:
            for passage in passages:
                row = json.dumps([passage.id, passage.title, passage.text, *passage.sentence_ends])
                offsets.append(offsets[-1] + file.write(row.encode() + b"\n"))
        np.save(directory / cls._OFFSETS, np.array(offsets, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> Passage:  # type: ignore[override]  # slices are not needed
        start, end = self._offsets[index], self._offsets[index + 1]
        passage_id, title, text, *sentence_ends = json.loads(self._rows[start:end])
        return Passage(passage_id, title, text, tuple(sentence_ends))

    def __reduce__(self) -> tuple[type[PassageStore], tuple[Path]]:
        return type(self), (self._directory,)
