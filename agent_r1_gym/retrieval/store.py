r"""Passages on disk: documents and corpus files, and indexes that are checked before they are used.

A document is a JSON object in one of two shapes:

- `{"title": ..., "text": ...}`, `id` optional;
- `{"id": ..., "contents": '"Title"\ntext'}`, as in Search-R1 and Pyserini, `title` optional.

Both are read. The second is written, over HTTP and for Lucene.
"""

from __future__ import annotations

import hashlib
import json
import logging
import mmap
import re
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from agent_r1_gym.core.types import Passage
from agent_r1_gym.errors import DatasetError, RetrievalError, RetrievalTimeout
from agent_r1_gym.support import files
from agent_r1_gym.support.checks import is_integer
from agent_r1_gym.support.json_data import read_objects

_MANIFEST = "manifest.json"
_BUILD_TIMEOUT = 6 * 3600.0
_LINE_END = re.compile(r"\r\n?|\n")
_T = TypeVar("_T")
logger = logging.getLogger(__name__)


def passage_to_document(passage: Passage) -> dict[str, Any]:
    """Convert a passage to a Search-R1 document; its `title` marks where the title in `contents` ends."""
    document: dict[str, Any] = {
        "id": passage.id,
        "title": passage.title,
        "contents": f'"{passage.title}"\n{passage.text}',
    }
    if passage.sentence_ends:
        document["sentence_ends"] = passage.sentence_ends
    return document


def passage_from_document(document: Any, *, default_id: str) -> Passage:
    """Convert a document to a passage.

    Args:
        document: an object in one of the two shapes (see the module's docstring).
        default_id: id of a document without one.

    Raises:
        ValueError: a field is missing or has the wrong type; the message names it.
    """
    if not isinstance(document, dict):
        raise ValueError(f"expected an object, got {short_repr(document)}")
    passage_id = document.get("id", document.get("_id", default_id))
    if not isinstance(passage_id, str):
        if not is_integer(passage_id):
            raise ValueError(f"field 'id' must be a string or an integer, got {short_repr(passage_id)}")
        passage_id = str(passage_id)
    title = document.get("title")
    if title is not None and not isinstance(title, str):
        raise ValueError(f"field 'title' must be a string, got {short_repr(title)}")
    body = document.get("contents", document.get("text"))
    if not isinstance(body, str):
        field = "contents" if "contents" in document else "text"
        received = short_repr(body) if field in document else f"only {short_repr(sorted(map(str, document)))}"
        raise ValueError(f"field {field!r} must be a string, got {received}")
    title, text = _split_contents(body, title) if "contents" in document else (title or "", body)
    ends = document.get("sentence_ends")
    return Passage(passage_id, title, text, _sentence_ends(ends, len(text)) if ends else ())


def read_corpus(path: str | Path) -> Iterator[Passage]:
    """Read the passages of a corpus file, in order.

    Args:
        path: a JSON array of documents or JSON Lines, plain or gzipped (see `support.json_data`). The default `id` is
            the row number, counted from 0.

    Raises:
        DatasetError: the file is missing, damaged or of another type, or a row is malformed (the error names it); after
            the last row: two rows have the same id.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise DatasetError(
            f"Corpus file {path} does not exist; expected a file of JSON or JSON Lines, plain or gzipped."
        )
    return _read(path)


def _read(path: Path) -> Iterator[Passage]:  # apart, so that a missing file is an error before the first row is read
    hashes = array("q")  # of the ids: eight bytes a row, where a set would take gigabytes for Wikipedia
    for number, (where, document) in enumerate(read_objects(path)):
        try:
            passage = passage_from_document(document, default_id=str(number))
        except ValueError as error:
            raise DatasetError(f"{where}: {error}.") from error
        hashes.append(hash(passage.id))
        yield passage
    values, counts = np.unique(np.frombuffer(hashes, dtype=np.int64), return_counts=True)
    if len(values) < len(hashes):
        _refuse_equal_ids(path, set(values[counts > 1].tolist()))


def _refuse_equal_ids(path: Path, hashes: Container[int]) -> None:
    """Name the first two rows with the same id, which has one of these hashes."""
    rows: dict[str, str] = {}
    for number, (where, document) in enumerate(read_objects(path)):
        passage_id = passage_from_document(document, default_id=str(number)).id
        if hash(passage_id) in hashes:
            if passage_id in rows:
                raise DatasetError(
                    f"{where}: {rows[passage_id]} has the id {passage_id!r} already, and fusion and records identify "
                    "passages by their ids. Give each row its own id, or none to any (a row without one gets its "
                    "number)."
                )
            rows[passage_id] = where


def corpus_fingerprint(passages: Iterable[Passage]) -> str:
    """Identify a corpus by 16 hex digits, which change with any id, title, text or their order."""
    digest = hashlib.blake2b(digest_size=8)
    for passage in passages:
        for part in (passage.id, passage.title, passage.text):
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
    return digest.hexdigest()


def _split_contents(contents: str, title: str | None) -> tuple[str, str]:
    """Split `contents` into title and text: a known title goes where it stands first, else the first line is one."""
    quoted_title = f'"{title}"'  # not a pattern of its own for each passage: compiling it takes longer than all else
    if (
        title is not None
        and contents.startswith(quoted_title)
        and (end := _LINE_END.match(contents, len(quoted_title)))
    ):
        return title, contents[end.end() :]
    first, *others = _LINE_END.split(contents, maxsplit=1)
    if not others:
        return title or "", contents
    (rest,) = others
    if title:
        return title, rest if first.strip() == title else contents
    has_quotes = len(first) > 1 and first[0] == first[-1] == '"'
    return (first[1:-1] if has_quotes else first), rest


def _sentence_ends(value: Any, length: int) -> tuple[int, ...]:
    last = 0
    for end in value if isinstance(value, (list, tuple)) else (None,):
        if type(end) is not int or not last <= end <= length:
            raise ValueError(f"field 'sentence_ends' must be ascending offsets into the text, got {short_repr(value)}")
        last = end
    return tuple(value)


def short_repr(value: Any) -> str:
    """Write a value for a message: its type and the beginning of its `repr`."""
    return f"{type(value).__name__} {value!r:.80}"


# --- indexes ----------------------------------------------------------------------------------------------------------


def open_or_build(directory: Path, build: Callable[[Path], object], *, load: Callable[[Path], _T]) -> _T:
    """Load an index; if it is missing, damaged or unreadable, build it first, with a warning.

    All bytes are compared with the checksums that were written with them (at several GB/s from memory, else at the
    speed of the disk): an index that a power cut or an interrupted copy has damaged would return wrong passages without
    an error. If several processes want the same index, one builds it and the others wait and load it.

    Args:
        directory: folder of the index.
        build: writes the index into an empty folder.
        load: opens the finished index; any `ValueError`, `KeyError` or `OSError` means that it is damaged.

    Raises:
        RetrievalError: the index cannot be written (disk full, no permission).
        RetrievalTimeout: another process has been building for too long.
    """
    index = _try_load(directory, load)
    if index is not None:
        return index
    with index_lock(directory):
        index = _try_load(directory, load, warn=True)  # another process may have built it meanwhile
        if index is None:
            write_index(directory, build)
            index = load(directory)
        return index


@contextmanager
def index_lock(directory: Path) -> Iterator[None]:
    """Hold the lock for writing an index.

    Raises:
        RetrievalError: the index cannot be written.
        RetrievalTimeout: another process has been writing it for too long.
    """
    try:
        with files.locked(directory, timeout=_BUILD_TIMEOUT):
            files.remove_leftovers(directory)
            yield
    except TimeoutError as error:
        raise RetrievalTimeout(str(error)) from error
    except OSError as error:
        raise RetrievalError(
            f"The index {directory} cannot be written: {error}. Free some space, or choose another folder "
            "(AGENT_R1_HOME)."
        ) from error


def write_index(directory: Path, build: Callable[[Path], object]) -> None:
    """Build an index in a new folder, write its manifest, and move the folder to `directory` atomically."""
    with files.atomic_directory(directory) as temporary:
        build(temporary)
        paths = [path for path in temporary.rglob("*") if path.is_file()]
        manifest = {
            path.relative_to(temporary).as_posix(): [path.stat().st_size, files.file_crc32(path)] for path in paths
        }
        (temporary / _MANIFEST).write_text(json.dumps(manifest))


def check_integrity(directory: Path) -> str | None:
    """Compare an index with its manifest; a description of the first difference, None if there is none."""
    try:
        manifest: dict[str, list[int]] = json.loads((directory / _MANIFEST).read_text())
        for name, (size, checksum) in manifest.items():
            path = directory / name
            if path.stat().st_size != size or files.file_crc32(path) != checksum:
                return f"{name} has changed since it was written"
    except FileNotFoundError as error:
        return f"{Path(str(error.filename)).name} is missing"
    except OSError as error:
        return str(error)
    except (ValueError, AttributeError, TypeError):
        return f"{_MANIFEST} contains no checksums"
    return None


def _try_load(directory: Path, load: Callable[[Path], _T], *, warn: bool = False) -> _T | None:
    if not directory.exists():
        return None
    damage = check_integrity(directory)
    if damage is None:
        try:
            return load(directory)
        except (ValueError, KeyError, OSError) as error:
            damage = str(error)
    if warn:
        logger.warning("The index %s is damaged (%s). Building it again.", directory, damage)
    return None


class PassageStore(Sequence[Passage]):
    """Passages in a memory-mapped file, which processes share.

    Args:
        directory: as passed to `PassageStore.write`.
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
        """Write the files of a store into `directory`."""
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
