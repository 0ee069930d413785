"""Where the package keeps things on disk, and how it writes them: whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agent_r1_gym.errors import ConfigurationError


def home() -> Path:
    """Returns the folder for prepared data and indexes: `$AGENT_R1_HOME`, else the user's cache folder."""
    explicit = os.environ.get("AGENT_R1_HOME")
    if explicit:
        return Path(explicit).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "agent-r1-gym"


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; moves it there if the block succeeds, removes it if not.

    Raises:
        OSError: the disk is full or not writable; whatever stood at `path` before is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary folder beside `path`; it takes the place of `path` if the block succeeds.

    A process killed in between leaves the old folder or none, and at most a `.*.tmp` folder that nobody reads.

    Raises:
        OSError: the disk is full or not writable; whatever stood at `path` before is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        if path.exists():
            _swap(temporary, path)
        else:
            temporary.replace(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(new: Path, path: Path) -> None:
    """Puts `new` in the place of the folder `path`; brings the old one back if that fails."""
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", suffix=".tmp", dir=path.parent))
    path.replace(aside / path.name)
    try:
        new.replace(path)
    except BaseException:
        (aside / path.name).replace(path)
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def locked(path: Path, *, timeout: float = 600.0) -> Iterator[None]:
    """Holds an inter-process lock named after `path` (file `<path>.lock`), for builds that only one process may do.

    Args:
        path: what is being built.
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
    """Creates the folder; refuses one that holds something, so that no run overwrites another.

    Raises:
        ConfigurationError: the folder is not empty, or a file stands there.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ConfigurationError(f"{path} exists and is not an empty folder; choose another --out.")
    path.mkdir(parents=True, exist_ok=True)
    return path
