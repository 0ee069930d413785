"""What is installed, and the command that installs the rest; nothing is imported for it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

NAME = "agent-r1-gym"
_REQUIREMENT = re.compile(r"""([\w.-]+)(?:\[([\w,-]+)\])?[^;]*(?:;\s*extra\s*==\s*["']([\w-]+)["'])?""")
_REPOSITORY = Path(__file__).parents[2]


def installed_version(package: str) -> str | None:
    """Returns the version of an installed package, None if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def extras() -> dict[str, tuple[str, ...]]:
    """Returns the packages of the base install (as "base") and of each extra, as the metadata of this package say.

    An extra that names another one has its packages too. Empty where the package is not installed.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires(NAME) or []
    except PackageNotFoundError:
        return {}
    packages: dict[str, list[str]] = {"base": []}
    includes: dict[str, list[str]] = {}
    for match in filter(None, map(_REQUIREMENT.match, lines)):
        package, others, extra = match.groups()
        own = packages.setdefault(extra or "base", [])
        if package == NAME:
            includes.setdefault(extra or "base", []).extend(others.split(","))
        else:
            own.append(package)

    def whole(extra: str) -> list[str]:
        return packages.get(extra, []) + [name for other in includes.get(extra, ()) for name in whole(other)]

    return {extra: tuple(dict.fromkeys(whole(extra))) for extra in packages}


def install_command(extra: str) -> str:
    """Returns the command that adds an extra to this installation, wherever it came from (see PEP 610).

    A clone gets its own path, a version-controlled or downloaded source its address, all else the name of the package.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    origin: Mapping[str, object] = {}
    try:
        origin = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # run from a clone that was never installed
        if (_REPOSITORY / "pyproject.toml").is_file():
            return f'pip install -e "{_REPOSITORY}[{extra}]"'
    return f"pip install {_source(origin, extra)}"


def _source(origin: Mapping[str, object], extra: str) -> str:
    """Returns what pip is told to install, from the contents of `direct_url.json`; {}: a package index."""
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    match origin:
        case {"url": str(url), "dir_info": dict(folder)}:
            editable = "-e " if folder.get("editable") else ""
            return f'{editable}"{url2pathname(urlsplit(url).path)}[{extra}]"'
        case {"url": str(url), "vcs_info": {"vcs": str(system), **about}}:
            revision = f"@{about['requested_revision']}" if "requested_revision" in about else ""
            return f'"{NAME}[{extra}] @ {system}+{url}{revision}"'
        case {"url": str(url)}:
            return f'"{NAME}[{extra}] @ {url}"'
    return f'"{NAME}[{extra}]"'
