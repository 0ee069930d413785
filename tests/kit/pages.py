"""Code blocks of README and docs: `python` and `bash` run, `sh` (GPUs, hubs, minutes of training) is parsed."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.kit.preloaded import programs

ROOT = Path(__file__).parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "libraries").glob("*.md")),
        ROOT / "docs/environments/index.md",
    )
}
"""Text of each page that is written by hand."""
_BLOCK = re.compile(r"(?:^|(?<=\n))(?P<before>[^\n]*\n\n)?```(?P<language>\w+)\n(?P<text>.*?)\n```(?=\n|$)", re.S)
_SAVED = re.compile(r"[Ss]aved as `([\w./-]+)`")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, and the file that the line before says to save it as."""

    language: str
    text: str
    saved_as: str | None


def blocks(page: str, *languages: str) -> list[Block]:
    """Returns the blocks of a page, in order; of these languages if some are named."""
    found = []
    for match in _BLOCK.finditer(PAGES[page]):
        saved = _SAVED.search(match["before"] or "")
        if not languages or match["language"] in languages:
            found.append(Block(match["language"], match["text"], saved[1] if saved else None))
    return found


def commands(text: str) -> Iterator[list[str]]:
    """Yields the words of each command of a shell block, without comments and what runs it in the background."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z][A-Z0-9_]*=\S*", words[0]):
            words = words[1:]
        if words:
            yield [word for word in words if word != "&"]


def run(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a shell block in a folder, with preloaded programs; stops at the first command that fails."""
    path = os.pathsep.join((str(programs()), str(Path(sys.executable).parent), os.environ["PATH"]))
    words = ["bash", "-euo", "pipefail", "-c", text]
    return subprocess.run(words, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)


def load_script(name: str) -> ModuleType:
    """Import a script of docs/ that writes pages."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
