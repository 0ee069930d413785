from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from agent_r1_gym.support.files import atomic_directory, atomic_file, home, locked
from tests.kit.processes import kill_at_its_first_line


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]


def test_home_prefers_the_explicit_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENT_R1_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert home() == tmp_path / "own"
    monkeypatch.setenv("AGENT_R1_HOME", "~/own")
    assert home() == Path.home() / "own"
    monkeypatch.setenv("AGENT_R1_HOME", "")
    assert home() == tmp_path / "cache" / "agent-r1-gym"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert home() == Path.home() / ".cache" / "agent-r1-gym"


def test_a_file_appears_whole_with_its_folders(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "data.json"
    with atomic_file(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert leftovers(path.parent) == []


def test_a_directory_replaces_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "index"
    for content in ("old", "new"):
        with atomic_directory(path) as temporary:
            (temporary / "only").mkdir()
            (temporary / "only" / content).write_text(content)
        assert [found.name for found in (path / "only").iterdir()] == [content]
        assert leftovers(tmp_path) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("atomic", [atomic_file, atomic_directory])
def test_a_failed_write_leaves_the_old_one_or_none(
    tmp_path: Path, atomic: Callable[[Path], AbstractContextManager[Path]], existing: bool, error: BaseException
) -> None:
    path = tmp_path / "index"
    part = path if atomic is atomic_file else path / "part"
    if existing:
        part.parent.mkdir(exist_ok=True)
        part.write_text("old")

    def write() -> None:
        with atomic(path) as temporary:
            (temporary / part.relative_to(path)).write_text("ha")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.exists() == existing
    assert not existing or part.read_text() == "old"
    assert leftovers(tmp_path) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_the_data_are_on_the_disk_before_a_directory_takes_its_name(tmp_path: Path, monkeypatch) -> None:
    path, synced = tmp_path / "index", []

    def sync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        if synced[-1] == tmp_path.name:
            assert path.exists()
        else:
            assert not path.exists()

    monkeypatch.setattr(os, "fsync", sync)
    with atomic_directory(path) as temporary:
        (temporary / "inner").mkdir()
        for name in ("one", "inner/two"):
            (temporary / name).write_text(name)
    assert sorted(synced[:-2]) == ["inner", "one", "two"]
    assert synced[-2:] == [temporary.name, tmp_path.name]


def test_a_failed_swap_brings_the_old_directory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "index"
    path.mkdir()
    (path / "part").write_text("old")
    swap = Path.replace

    def fail_on_new(self: Path, target: Path) -> Path:
        if target == path and self.name != path.name:
            raise OSError(5, "Input/output error")
        return swap(self, target)

    monkeypatch.setattr(Path, "replace", fail_on_new)

    def write() -> None:
        with atomic_directory(path) as temporary:
            (temporary / "part").write_text("new")

    with pytest.raises(OSError, match="Input/output"):
        write()
    assert (path / "part").read_text() == "old"


def test_other_users_may_read_what_is_written(tmp_path: Path) -> None:
    with atomic_file(tmp_path / "file") as temporary:
        temporary.write_text("x")
    with atomic_directory(tmp_path / "folder") as temporary:
        (temporary / "x").write_text("x")
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o755


def test_a_user_who_keeps_files_to_himself_keeps_these(tmp_path: Path) -> None:
    usual = os.umask(0o077)
    try:
        with atomic_file(tmp_path / "file") as temporary:
            temporary.write_text("x")
        with atomic_directory(tmp_path / "folder") as temporary:
            (temporary / "x").write_text("x")
    finally:
        os.umask(usual)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700


_WRITER = """
import sys, time
from pathlib import Path
from agent_r1_gym.support.files import atomic_directory, atomic_file
path = Path(sys.argv[1])
with atomic_file(path / "file") as file, atomic_directory(path / "folder") as folder:
    file.write_text("half")
    (folder / "part").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_a_kill_in_the_middle_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    kill_at_its_first_line(_WRITER, tmp_path)
    assert (tmp_path / "file").read_text() == "old"
    assert not (tmp_path / "folder").exists()


def test_waiting_for_a_lock_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with locked(path), ThreadPoolExecutor(1) as other, pytest.raises(TimeoutError, match=r"index\.lock.*0\.1 s"):
        other.submit(locked(path, timeout=0.1).__enter__).result()
    with locked(path, timeout=1):
        pass


@pytest.mark.parametrize("atomic", [atomic_file, atomic_directory])
def test_the_error_of_a_full_disk_names_what_was_to_be_written(tmp_path, atomic):
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/x'"), atomic(tmp_path / "x"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ConnectionError) as caught, atomic(tmp_path / "x"):
        raise ConnectionResetError(errno.ECONNRESET, "reset")
    assert caught.value.filename is None
