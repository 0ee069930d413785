"""Task folders in Harbor's format, and which of them can be played."""

from __future__ import annotations

import base64
import io
import posixpath
import re
import shlex
import tarfile
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from agent_r1_gym.core.types import Task
from agent_r1_gym.errors import DatasetError, InfrastructureError
from agent_r1_gym.sandbox.container import MAX_FILES_BYTES, Container
from agent_r1_gym.sandbox.linux.container import FOLDERS
from agent_r1_gym.support.checks import frozen, is_number
from agent_r1_gym.support.json_data import not_utf8

SAMPLE = "sample"
BASE_IMAGES = ("debian", "ubuntu", "python")
"""Images that a container without an image can stand for: a shell, the usual programs, Python."""
_CONFIG, _INSTRUCTION, _TEST, _SOLUTION = "task.toml", "instruction.md", "tests/test.sh", "solution/solve.sh"
_TRAJECTORY = "trajectory.json"
_SERVICES = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml", "singularity-compose.yaml")
_UNSUPPORTED = ("gpus", "tpu", "mcp_servers", "healthcheck", "skills_dir")
_IGNORED = ("LABEL", "MAINTAINER", "CMD")
_IGNORE_FILES = ("Dockerfile.dockerignore", ".dockerignore")
_BASE_FOLDERS = ("/home", "/media", "/mnt", "/opt", "/run", "/srv", "/var/lib", "/var/log", "/var/tmp")
"""Folders of the base images, besides those of every container, to which files can be copied."""
_READ_ONLY = ("bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sbin", "sys", "usr")
_IMAGE = re.compile(r"(?:(?:docker\.io/)?library/|docker\.io/)?([\w.-]+)(?::[\w.-]+)?(?:@sha256:[0-9a-f]{64})?")
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)
_DEFAULT_TEST_SECONDS = 600.0


class TasksRefusedWarning(UserWarning):
    """Some task folders cannot be played without an image."""


class RefusedTaskError(DatasetError):
    """A task folder is well-formed, but needs more than a container without an image."""


@dataclass(frozen=True)
class HarborTask(Task):
    """A task folder.

    Attributes:
        folder: the folder.
        workdir: where commands run, in the container.
        environment: variables of the container.
        test_environment: further variables of the tests.
        test_seconds: time limit of the tests.
        copies: files and folders below `environment/`, with the paths that they have in the container.
        solution: the command that solves the task; "" if there is none.
        has_plain_solution: whether the solution is one script, and no files besides.
    """

    folder: Path = Path()
    workdir: str = "/app"
    environment: Mapping[str, str] = field(default_factory=dict)
    test_environment: Mapping[str, str] = field(default_factory=dict)
    test_seconds: float = _DEFAULT_TEST_SECONDS
    copies: tuple[tuple[str, str], ...] = ()
    solution: str = ""
    has_plain_solution: bool = False

    def open_container(self) -> Container:
        """Start a container with the files of the task, as the agent finds them."""
        container = Container()
        try:
            container.make_folder(self.workdir)
            for source, target in self.copies:
                container.copy_in(self.folder / "environment" / source, target)
        except BaseException as error:
            container.close()
            if isinstance(error, OSError):
                raise InfrastructureError(f"The files of task {self.id!r} cannot be copied: {error}.") from error
            raise
        return container


def read_tasks(path: Path) -> tuple[HarborTask, ...]:
    """Read a task folder, or a folder of task folders, in the order of their names.

    Raises:
        DatasetError: there is none, one is malformed, or none of them can be played.

    Warns:
        TasksRefusedWarning: some of them cannot be played; with names and reasons.
    """
    if not path.is_dir():
        raise DatasetError(
            f"{path} is not a folder; expected a task folder with {_CONFIG}, or a folder of task folders."
        )
    folders = [path] if (path / _CONFIG).is_file() else sorted(each.parent for each in path.glob(f"*/{_CONFIG}"))
    if not folders:
        raise DatasetError(f"{path} holds no task folder: there is no {_CONFIG} in it, nor in a folder below it.")
    tasks, refused = [], []
    for folder in folders:
        try:
            tasks.append(read_task(folder))
        except RefusedTaskError as error:
            refused.append(str(error))
    listed = "\n".join(refused)
    if not tasks:
        raise DatasetError(f"None of the {len(refused)} tasks in {path} can be played without an image:\n{listed}")
    if refused:
        warnings.warn(
            f"{len(refused)} of {len(folders)} tasks in {path} cannot be played without an image, and are left out:\n"
            f"{listed}",
            TasksRefusedWarning,
            stacklevel=2,
        )
    return tuple(tasks)


def is_task_folder(path: Path) -> bool:
    """Whether a path is a task folder, or a folder of task folders."""
    return (path / _CONFIG).is_file() or any(path.glob(f"*/{_CONFIG}"))


def read_task(folder: Path) -> HarborTask:
    """Read a task folder.

    Raises:
        DatasetError: a file is missing or malformed.
        RefusedTaskError: the task needs more than a container without an image.
    """
    config = _read_config(folder)
    if needs := _unmet_needs(folder, config):
        raise _refused(folder, f"it needs {', '.join(needs)}")
    for name in (_INSTRUCTION, _TEST):
        if not (folder / name).is_file():
            raise DatasetError(f"{folder} has no {name}.")
    tests = sum(path.stat().st_size for path in (folder / "tests").rglob("*") if path.is_file())
    if tests > MAX_FILES_BYTES:
        raise _refused(folder, f"its tests have {tests} bytes, more than {MAX_FILES_BYTES}")
    image = _read_dockerfile(folder)
    verifier, metadata = _table(config, "verifier"), _table(config, "metadata")
    seconds = verifier.get("timeout_sec", _DEFAULT_TEST_SECONDS)
    if not is_number(seconds) or seconds <= 0:
        raise DatasetError(f"{folder / _CONFIG}: verifier.timeout_sec must be seconds, got {seconds!r:.80}.")
    workdir = _table(config, "environment").get("workdir") or image.workdir
    environment = {**image.environment, **_variables(folder, _table(config, "environment"), "environment")}
    solution = _solution(folder, _variables(folder, _table(config, "solution"), "solution"))
    return HarborTask(
        id=str(_table(config, "task").get("name") or folder.name),
        prompt=_without_canary(_text(folder / _INSTRUCTION)).strip(),
        metadata=frozen({name: metadata[name] for name in ("difficulty", "category") if name in metadata}),
        folder=folder,
        workdir=str(PurePosixPath("/app", str(workdir))),
        environment=frozen(environment),
        test_environment=frozen(_variables(folder, verifier, "verifier")),
        test_seconds=float(seconds),
        copies=image.copies,
        solution=solution,
        has_plain_solution=[path.name for path in sorted(folder.glob("solution/*"))] == ["solve.sh"],
    )


# --- files -----------------------------------------------------------------------------------------------------------


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DatasetError(not_utf8(path)) from error


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / _CONFIG
    try:
        config = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise DatasetError(f"{path} is not valid TOML: {error}") from error
    version = config.get("schema_version", config.get("version", "1.0"))
    if str(version).partition(".")[0] != "1":
        raise DatasetError(f"{path} has schema_version {version!r}; versions 1.x can be read.")
    return config


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = config.get(name) or {}
    if not isinstance(table, dict):
        raise DatasetError(f"[{name}] of {_CONFIG} must be a table, got {table!r:.80}.")
    return table


def _variables(folder: Path, table: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the environment variables of a table."""
    variables = table.get("env") or {}
    if not isinstance(variables, dict) or not all(isinstance(value, str) for value in variables.values()):
        raise DatasetError(f"{folder / _CONFIG}: {name}.env must be a table of texts, got {variables!r:.120}.")
    for variable, value in variables.items():
        if "${" in value:
            raise _refused(folder, f"{name}.env.{variable} takes a variable of the host ({value!r:.60})")
    return variables


def _without_canary(text: str) -> str:
    """Drop the leading lines that mark a file as part of a benchmark; agents do not see them."""
    lines = text.split("\n")
    while lines and _CANARY.fullmatch(lines[0].strip()):
        lines.pop(0)
    return "\n".join(lines)


def _solution(folder: Path, environment: Mapping[str, str]) -> str:
    """Write the command that solves a task: its script; with further files, an archive of them before it."""
    script = folder / _SOLUTION
    if not script.is_file():
        return ""
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    others = [path for path in sorted(script.parent.iterdir()) if path != script]
    if not others:
        return exports + _text(script)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for path in (script, *others):
            archive.add(path, path.name)
    encoded = base64.b64encode(packed.getvalue()).decode()
    return f"{exports}echo {encoded} | base64 -d | tar xJ -C /solution\nbash /solution/solve.sh"


# --- what needs an image ---------------------------------------------------------------------------------------------


def _refused(folder: Path, reason: str) -> RefusedTaskError:
    return RefusedTaskError(f"{folder.name}: {reason}")


def _unmet_needs(folder: Path, config: Mapping[str, Any]) -> list[str]:
    """List what a task needs besides: an image, services, devices, the network, earlier turns, another user."""
    environment, verifier = _table(config, "environment"), _table(config, "verifier")
    image = environment.get("docker_image")
    network = {_table(config, name).get("network_mode") for name in ("environment", "agent", "verifier")}
    users = {f"{name}.user": str(_table(config, name).get("user", "root")) for name in ("agent", "verifier")}
    needs: dict[str, Any] = {
        f"the image {image}": image and _base_image(str(image)) is None,
        "services (environment/*compose*)": any((folder / "environment" / name).exists() for name in _SERVICES),
        "several steps": config.get("steps"),
        f"earlier turns of the agent ({_TRAJECTORY})": (folder / _TRAJECTORY).exists(),
        **{f"the user {user} ({name})": user not in ("root", "0") for name, user in users.items()},
        "another system than Linux": str(environment.get("os") or "linux").lower() != "linux",
        "the network (allowed_hosts)": "allowlist" in network,
        "a container of its own for the tests": verifier.get("environment")
        or verifier.get("environment_mode") == "separate"
        or verifier.get("collect"),
        **{f"environment.{name}": environment.get(name) for name in _UNSUPPORTED},
    }
    return [need for need, is_needed in needs.items() if is_needed]


def _base_image(name: str) -> str | None:
    """Return the name of a known base image, without registry and tag; None if it is another one."""
    match = _IMAGE.fullmatch(name)
    return match[1] if match and match[1] in BASE_IMAGES else None


@dataclass(frozen=True)
class _Image:
    """What a Dockerfile adds to a base image."""

    workdir: str = "/app"
    environment: Mapping[str, str] = field(default_factory=dict)
    copies: tuple[tuple[str, str], ...] = ()


def _read_dockerfile(folder: Path) -> _Image:
    """Read a Dockerfile that only names a known base image, copies files, and sets folder and variables.

    Raises:
        DatasetError: it copies files from elsewhere.
        RefusedTaskError: it does more, such as installing packages.
    """
    path = folder / "environment" / "Dockerfile"
    if not path.is_file():
        return _Image()
    first, *others = [*_instructions(_text(path)), ""]
    base = first.removeprefix("FROM ")
    if _base_image(base) is None:
        raise _refused(folder, f"it needs the image {base}; known are {', '.join(BASE_IMAGES)}")
    workdir, environment, copies = "/", dict[str, str](), list[tuple[str, str]]()
    folders = {each for folder in (*FOLDERS, *_BASE_FOLDERS) for each in _with_parents(folder)}
    for instruction in filter(None, others):
        word, _, rest = instruction.partition(" ")
        is_plain = not re.search(r"[$<]", rest)
        if word.upper() == "WORKDIR" and is_plain:
            workdir = posixpath.normpath(posixpath.join(workdir, rest))
            folders.update(_with_parents(workdir))
        elif word.upper() == "ENV" and is_plain:
            environment.update(_assignments(rest))
        elif word.upper() == "COPY" and is_plain and not re.search(r"[*?\[]|--", rest):
            *sources, target = rest.split()
            copies += [_copy(path.parent, source, posixpath.join(workdir, target), folders) for source in sources]
        elif word.upper() not in _IGNORED:
            raise _refused(folder, f"its Dockerfile has {instruction!r:.100}")
    return _Image(workdir, environment, tuple(copies))


def _copy(context: Path, source: str, target: str, folders: set[str]) -> tuple[str, str]:
    """Return the file or folder, and the file or folder that it becomes: a folder gives its contents.

    Args:
        context: the folder of the Dockerfile.
        source: what is copied.
        target: where to; a folder that exists takes a file as it is named.
        folders: all folders of the image; those that the copy makes are added.
    """
    path, copied = context / source.lstrip("/"), posixpath.normpath(target)
    if not path.resolve().is_relative_to(context.resolve()) or not path.exists():
        raise DatasetError(f"{context / 'Dockerfile'} copies {source!r}, which is not in its folder.")
    if path.is_file() and (target.endswith("/") or copied in folders):
        copied = posixpath.join(copied, path.name)
    if copied.split("/")[1] in _READ_ONLY:
        raise _refused(context.parent, f"its Dockerfile copies {source!r} to {copied}, which is read-only here")
    if path.is_file():
        folders.update(_with_parents(posixpath.dirname(copied)))
        return str(path.relative_to(context)), copied
    if ignored := [name for name in _IGNORE_FILES if (context / name).is_file()]:
        raise _refused(context.parent, f"it copies the folder {source!r}, and {ignored[0]} may exclude files")
    folders.update(_with_parents(copied))
    folders.update(posixpath.join(copied, inner.relative_to(path)) for inner in path.rglob("*") if inner.is_dir())
    return str(path.relative_to(context)), copied


def _with_parents(folder: str) -> list[str]:
    return [folder, *map(str, PurePosixPath(folder).parents)]


def _instructions(text: str) -> Iterator[str]:
    """Yield the instructions of a Dockerfile, without comments and line breaks."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for instruction in re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)).splitlines():
        if instruction.strip():
            yield " ".join(instruction.split())


def _assignments(text: str) -> dict[str, str]:
    """Read `NAME=value NAME="value"`, or the old form `NAME value`."""
    words = shlex.split(text)
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return dict(word.split("=", 1) for word in words if "=" in word)
