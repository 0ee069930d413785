"""The code that an audit has judged: its verdicts are void when a file of it changes."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from agent_r1_gym.registry import TextEnv

_PACKAGE = Path(__file__).parents[1]
_MAX_FILES = 2_000


def loaded_sources(env: TextEnv) -> dict[str, str]:
    """List the code of an environment, after it was played.

    Args:
        env: the environment; the modules of its classes count wherever they are installed.

    Returns:
        Path and hash of each loaded Python file that belongs to no installed package, or to that of a class of the
        environment; this package is one entry. Data files are not looked at.
    """
    installed = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own = {kind.__module__.partition(".")[0] for kind in type(env.unwrapped).__mro__}
    own -= {"gymnasium", *sys.stdlib_module_names}
    files = set()
    for name, module in list(sys.modules.items()):
        path = Path(getattr(module, "__file__", None) or "-")
        if path.suffix != ".py" or path.is_relative_to(_PACKAGE):
            continue
        is_installed = "site-packages" in path.parts or any(path.is_relative_to(folder) for folder in installed)
        if not is_installed or name.partition(".")[0] in own:
            files.add(str(path))
    return hashes([str(_PACKAGE), *sorted(files)[:_MAX_FILES]])


def hashes(paths: Iterable[str]) -> dict[str, str]:
    """Hash files, and all Python files of folders; "" stands for one that is not there."""
    return {path: _hash(Path(path)) for path in paths}


def _hash(path: Path) -> str:
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        if not file.is_file():
            return ""
        digest.update(str(file.relative_to(path)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
