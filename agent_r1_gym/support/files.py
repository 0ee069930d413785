"""Files: where the package keeps them, atomic writes, and checksums."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

from agent_r1_gym.errors import ConfigurationError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def is_url(source: object) -> bool:
    """Whether a source is an HTTP address, not a path."""
    return isinstance(source, str) and source.lower().startswith(("http://", "https://"))


def home() -> Path:
    """Folder for prepared data and indexes: `$AGENT_R1_HOME`, else the user's cache folder."""
    explicit = os.environ.get("AGENT_R1_HOME")
    if explicit:
        return Path(explicit).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "agent-r1-gym"


def state_home() -> Path:
    """Folder for state of the user, such as input history; not created here."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "agent-r1-gym"


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; move it to `path` if the block succeeds, else remove it.

    Raises:
        OSError: the disk is full or not writable; `path` is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(path, ".tmp")
    temporary.touch(exist_ok=False)  # with the permissions of the umask, as with `open`
    try:
        with _naming(path):
            yield temporary
            _sync(temporary)
            temporary.replace(path)
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary_path(path: Path, suffix: str) -> Path:
    """A unique path in the same folder, named so that `remove_leftovers` finds it."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}{suffix}")


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add `path` to the error of a full disk, which has no file name."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in _FULL:
            error.filename = str(path)
        raise


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary folder; it replaces `path` if the block succeeds.

    A process killed meanwhile leaves the old folder or none, and at most a `.*.tmp` folder that is never read (see
    `remove_leftovers`). The data are synced before the rename, so that a power cut does no more harm.

    Raises:
        OSError: the disk is full or not writable; `path` is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(path, ".tmp")
    temporary.mkdir()
    try:
        with _naming(path):
            yield temporary
            # Some file systems write a rename before the data: a power cut would leave files of zeros.
            for inner in (*temporary.rglob("*"), temporary):
                _sync(inner)
            if path.exists():
                _swap(temporary, path)
            else:
                temporary.replace(path)
            _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(new: Path, path: Path) -> None:
    """Replace the folder `path` by `new`; restore the old one if that fails."""
    aside = _temporary_path(path, ".old.tmp")
    aside.mkdir()
    path.replace(aside / path.name)
    try:
        new.replace(path)
    except BaseException:
        (aside / path.name).replace(path)
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


def file_crc32(path: Path) -> int:
    """Compute the checksum of a file, without holding it in memory."""
    checksum = 0
    with path.open("rb") as file:
        while part := file.read(2**20):
            checksum = zlib.crc32(part, checksum)
    return checksum


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed processes that were writing `path`.

    Call it only while holding `locked(path)`, and only for paths that are always written under that lock: it also
    removes unfinished work of other processes.
    """
    leftover = re.compile(rf"\.{re.escape(path.name)}\.[a-z0-9_]{{8}}(\.old)?\.tmp(\.log)?")
    for entry in path.parent.iterdir():
        if leftover.fullmatch(entry.name):
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk."""
    is_folder = path.is_dir()
    if not is_folder and not path.is_file():
        return
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        if not is_folder:  # some systems cannot sync folders
            raise


@contextlib.contextmanager
def locked(path: Path, *, timeout: float = 600.0) -> Iterator[None]:
    """Hold an inter-process lock on `path` (file `<path>.lock`), for builds that only one process may do.

    Args:
        path: path that is built.
        timeout: seconds to wait for another holder.

    Raises:
        TimeoutError: another process held the lock for longer than `timeout`.
    """
    import filelock

    path.parent.mkdir(parents=True, exist_ok=True)
    lock_path = path.with_name(path.name + ".lock")
    try:
        with filelock.FileLock(lock_path, timeout=timeout):
            yield
    except filelock.Timeout as error:
        raise TimeoutError(f"{lock_path} was held by another process for {timeout:g} s; is a build stuck?") from error


def new_folder(path: Path) -> Path:
    """Create a folder; refuse one that is not empty, so that no run overwrites another.

    Raises:
        ConfigurationError: the folder is not empty, or is a file.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigurationError(f"{path} exists and is not an empty folder; choose another --out.")
    path.mkdir(parents=True, exist_ok=True)
    return path
