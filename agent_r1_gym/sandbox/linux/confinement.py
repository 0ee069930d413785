"""Confinement of the fork server, and further of the supervisor of each slot. Runs inside the sandbox."""

from __future__ import annotations

import contextlib
import glob
import os
import resource
import socket
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import ModuleType

from agent_r1_gym.sandbox.linux import kernel, seccomp

UNPRIVILEGED_ID = 65534
_FIRST_OWN_USER = 0x60000000
"""User and group of workers whose fork server was started by root."""
BOX = "/box"
"""The private folder inside a mount namespace."""
MAX_DISK_BYTES = 64 * 2**20
"""Size of the private folder inside a mount namespace."""
MAX_FILE_BYTES = 16 * 2**20
MAX_FILES = 10_000
MAX_DESCRIPTORS = 64
MAX_THREADS = 1024
"""Threads of the workers of all slots together, on top of the user's other tasks; they can start no processes."""
MAX_PROCESSES = 64
"""Processes of a worker under weak isolation."""
_NAMESPACES = kernel.NEW_MOUNT | kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
_LIBRARIES = ("/lib64", "/usr/lib64", "/lib/*-linux-*", "/usr/lib/*-linux-*")
_PREFIX = "agent-r1-box-"
_HIDDEN = ("site-packages", "dist-packages")
"""Folders below the standard library that hold code and data of the host."""


class Confinement:
    """The confinement of workers. The fork server calls `enter` once; each supervisor calls `bind`.

    Attributes:
        protections: what is in force, for people to read.
        pid_namespaces: whether each supervisor gets a process namespace, and with it a mount namespace.
        max_processes: the limit on the user's number of tasks (RLIMIT_NPROC) in a worker.
        home: folder of the private folders that lie on the host's file system.
    """

    def __init__(self, isolation: str, modules: Mapping[str, ModuleType], home: str, *, namespaces: bool) -> None:
        self.strong = isolation == "strong"
        self._namespaces = namespaces
        self.protections: list[str] = []
        self.pid_namespaces = False
        self._root_user = os.getuid() == 0
        self._library = os.path.dirname(os.path.realpath(os.__file__))
        self._packages = sorted(_package_paths(modules))
        self._threads = True
        self._filter = b""
        self.max_processes = 0
        self.home = home

    def enter(self) -> None:
        """Apply to the fork server what all slots share.

        Raises:
            OSError: the kernel refuses a part that strong isolation requires.
        """
        if not self.strong:
            self.protections = ["limits of resources", "time limit", "empty environment", "no inherited descriptors"]
            self.max_processes = count_tasks(os.getuid()) + MAX_PROCESSES
            remove_orphaned_folders(self.home)
            return
        self.max_processes = count_tasks(UNPRIVILEGED_ID if self._root_user else os.getuid()) + MAX_THREADS
        privileged = kernel.has_capability_to_mount()
        if self._namespaces and self._works_in_a_child(privileged):
            self._enter_namespaces(privileged)
            self.pid_namespaces = True
        else:
            if self._root_user and _readable_by_others(self._library):
                drop_root()
            if not os.access(self.home, os.W_OK | os.X_OK):
                self.home = "/tmp"
            remove_orphaned_folders(self.home)
        self.protections = ["Landlock", "seccomp", "limits of resources", "no capabilities"]
        if self.pid_namespaces:
            self.protections.append("namespaces (mounts, network, IPC, processes)")
        if self._root_user and (self.pid_namespaces or os.getuid() != 0):
            self.protections.append("unprivileged user")

    def bind(self, folder: str) -> None:
        """Confine a supervisor for good; its workers inherit everything."""
        if self.pid_namespaces:
            owner = f",uid={UNPRIVILEGED_ID},gid={UNPRIVILEGED_ID}" if self._root_user else ""
            kernel.mount_memory(folder, f"size={MAX_DISK_BYTES},nr_inodes={MAX_FILES},mode=700{owner}")
        os.chdir(folder)
        _limit_resources()
        if not self.strong:
            return
        if self._root_user and os.getuid() == 0 and self.pid_namespaces:
            drop_root()
        if os.getuid() == 0:  # limits on the number of processes do not apply to root
            self._threads = False
        kernel.drop_capabilities()
        readable = ["/"] if self.pid_namespaces else self._readable_paths()
        kernel.landlock(readable, [folder], _DEVICES)
        self._filter = seccomp.worker_filter(kernel.MACHINE, threads=self._threads)
        kernel.install_filter(seccomp.supervisor_filter(kernel.MACHINE))

    def worker_filter(self, pid: int) -> bytes | None:
        """The filter that a worker adds to its supervisor's; None under weak isolation."""
        return seccomp.for_process(self._filter, pid) if self.strong else None

    def _works_in_a_child(self, privileged: bool) -> bool:
        """Try the namespaces in a child: a failure half-way could not be undone."""
        pid = os.fork()
        if pid == 0:
            try:
                self._enter_namespaces(privileged)
                kernel.unshare(kernel.NEW_PID | kernel.NEW_MOUNT)
                kernel.mount_memory(BOX, "size=1m")
            except BaseException:
                os._exit(1)
            os._exit(0)
        return os.waitpid(pid, 0)[1] == 0

    def _enter_namespaces(self, privileged: bool) -> None:
        user, group = os.getuid(), os.getgid()
        kernel.unshare(_NAMESPACES | (0 if privileged else kernel.NEW_USER))
        if not privileged:
            kernel.map_user(UNPRIVILEGED_ID, user, group)
        socket.sethostname("sandbox")
        kernel.keep_mounts_private()
        kernel.enter_root(self._build_root())

    def _build_root(self) -> str:
        """Mount the visible part of the host's file system below a folder; return the folder."""
        sources = {path: os.path.realpath(path) for path in self._visible_paths()}
        root = staging_folder(sources.values())
        kernel.mount_memory(root, "size=4m,mode=755")
        covers: list[str] = []
        for path, source in sources.items():
            target = f"{root}{path}"
            _make_mount_point(source, target)
            kernel.bind(source, target)
            if source == self._library:  # under each of its names
                hidden = [f"{target}/{name}" for name in _HIDDEN if os.path.isdir(f"{target}/{name}")]
                for cover in hidden:
                    kernel.mount_memory(cover, "size=1m,mode=755")
                covers += hidden
        for device in _DEVICES:
            bind_into(root, device, writable=True)
        os.makedirs(f"{root}{BOX}", exist_ok=True)
        for path in (*covers, root):
            kernel.freeze_mount(path)
        return root

    def _visible_paths(self) -> list[str]:
        """Paths of the host that code can read, parents first."""
        # In this order: the standard library may lie in a folder of shared libraries, and packages in the standard
        # library.
        libraries = [path for pattern in _LIBRARIES for path in glob.glob(pattern) if os.path.isdir(path)]
        extra = [path for path in ("/usr/share/zoneinfo", "/etc/localtime") if os.path.exists(path)]
        paths = [*libraries, self._library, os.path.dirname(os.__file__), *self._packages, *extra, *_loaded_libraries()]
        return list(dict.fromkeys(paths))

    def _readable_paths(self) -> list[str]:
        """For Landlock, without namespaces: the visible paths except the folders of the host's packages."""
        hidden = [f"{self._library}/{name}" for name in _HIDDEN]
        paths = dict.fromkeys(map(os.path.realpath, self._visible_paths()))
        return [part for path in paths for part in _without(path, hidden)]


def private_folder(confinement: Confinement) -> str:
    """Create a private folder and return its path; with namespaces it is mounted later."""
    if confinement.pid_namespaces:
        return BOX
    folder = f"{confinement.home}/{_PREFIX}{os.getpid()}-{os.urandom(8).hex()}"
    os.mkdir(folder, 0o700)
    return folder


def remove_orphaned_folders(home: str) -> None:
    """Remove private folders whose fork server was killed before it could do so."""
    for path in glob.glob(f"{home}/{_PREFIX}*-*"):
        owner = path.rpartition("/")[2].removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}") and os.stat(path).st_uid == os.getuid():
            remove_folder(path)


def empty_folder(path: str) -> None:
    """Remove everything in a folder, whatever its depth and modes; no other process may use the folder meanwhile."""
    # Subfolders are moved up before they are removed, so that no path gets too long; under random names, since
    # code that guesses a name could occupy it.
    while True:
        folders = []
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    os.unlink(entry.path)
        if not folders:
            return
        for folder in folders:
            os.chmod(folder, 0o700)
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        os.chmod(entry.path, 0o700)
                        os.rename(entry.path, f"{path}/.moved-{os.urandom(12).hex()}")
                    else:
                        os.unlink(entry.path)
            os.rmdir(folder)


def remove_folder(path: str) -> None:
    """Remove a private folder on the host's file system."""
    with contextlib.suppress(OSError):
        empty_folder(path)
        os.rmdir(path)


def drop_root(user: int = UNPRIVILEGED_ID) -> None:
    """Become an unprivileged user, for good."""
    os.setgroups([])
    os.setresgid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    os.setresuid(user, user, user)


def own_user() -> int:
    """Choose a user for this process alone, since limits of processes count those of a user on the whole machine.

    Returns:
        An id that no other process has; `UNPRIVILEGED_ID` where such ids are not mapped.
    """
    user = _FIRST_OWN_USER + os.getpid()
    with open("/proc/self/uid_map", encoding="ascii") as table:
        ranges = [tuple(map(int, line.split())) for line in table]
    return user if any(first <= user < first + count for first, _, count in ranges) else UNPRIVILEGED_ID


def _limit_resources() -> None:
    for what, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_DESCRIPTORS),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, 64),  # of the user: the runs of all slots share it
        (resource.RLIMIT_STACK, 8 * 2**20),
    ):
        _, hard = resource.getrlimit(what)
        least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (least, least))


def _package_paths(modules: Mapping[str, ModuleType]) -> Iterable[str]:
    """Paths of the imported packages, with the folders of shared libraries that wheels install next to them."""
    for name, module in modules.items():
        file = getattr(module, "__file__", None)
        if file is None:
            continue
        path = os.path.dirname(file) if hasattr(module, "__path__") else file
        yield path
        libraries = f"{os.path.dirname(path)}/{name}.libs"
        if os.path.isdir(libraries):
            yield libraries


def _loaded_libraries() -> list[str]:
    """Shared libraries that this process has loaded."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = {words[5] for line in file if len(words := line.split(maxsplit=5)) == 6}
    return sorted(path for line in paths if ".so" in (path := line.rstrip("\n")) and os.path.isfile(path))


def _without(path: str, hidden: Collection[str]) -> Iterator[str]:
    """A path; or, if a hidden path lies below it, its parts without the hidden ones."""
    if not any(f"{other}/".startswith(f"{path}/") for other in hidden):
        yield path
    elif path not in hidden:
        for entry in os.scandir(path):
            yield from _without(entry.path, hidden)


def staging_folder(sources: Iterable[str]) -> str:
    """Choose a folder to build the new root in: mounting there must not hide any of the sources."""
    paths = list(sources)
    for folder in ("/mnt", "/srv", "/opt", "/media", "/tmp"):
        if os.path.isdir(folder) and not any(path.startswith(f"{folder}/") for path in paths):
            return folder
    raise OSError("there is no folder to build a root in")


def bind_into(root: str, path: str, *, writable: bool = False) -> None:
    """Bind a file or folder of the host to the same path below `root`."""
    _make_mount_point(path, f"{root}{path}")
    kernel.bind(os.path.realpath(path), f"{root}{path}", writable=writable)


def _make_mount_point(source: str, target: str) -> None:
    """Create an empty folder or file to bind `source` to."""
    if os.path.isdir(source):
        os.makedirs(target, mode=0o755, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))


def count_tasks(user: int) -> int:
    """Number of a user's threads, as far as /proc shows them."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # it has just exited
                continue
    return count


def _readable_by_others(path: str) -> bool:
    """Whether an unprivileged user can reach a folder, and run this interpreter."""
    while path != "/":
        if os.stat(path).st_mode & 0o005 != 0o005:
            return False
        path = os.path.dirname(path)
    return os.access(sys.executable, os.X_OK)
