"""Writes versions.md: which versions of each dependency are allowed, and with which ones the tests passed.

python docs/versions_page.py

`make test-floors` and `make test-newest` write what they had installed into tests/versions, if all tests passed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "versions.md"
TESTED = {
    "oldest tested": ROOT / "tests/versions/floors.txt",
    "in CI": ROOT / "constraints.txt",
    "newest tested": ROOT / "tests/versions/newest.txt",
}
"""By column of the table: the file that holds its versions."""
_HEAD = """\
# Versions

`pyproject.toml` allows ranges, and the tests run with three sets of versions: the oldest that it allows
(`make test-floors`, with the extras test, train and sandbox), those of `constraints.txt` (in CI), and the newest
(`make test-newest`, with test and train). Of torch all three have the version of `constraints.txt`, since pip would
fetch gigabytes of another build. An empty field was not installed there.

`python docs/versions_page.py` writes this page.

"""


def page() -> str:
    """Write the page."""
    tested = {column: dict(_pins(path)) for column, path in TESTED.items()}
    rows = [("package", "needed by", "allowed", *tested)]
    rows.append(tuple("---" for _ in rows[0]))
    for name, (extras, allowed) in sorted(_requirements().items(), key=lambda item: item[0].lower()):
        found = [pins.get(canonicalize_name(name), "") for pins in tested.values()]
        rows.append((name, ", ".join(extras), allowed, *found))
    return _HEAD + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _requirements() -> dict[str, tuple[list[str], str]]:
    """By package: what needs it, and the versions that are allowed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups: Mapping[str, list[str]] = {"every use": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, tuple[list[str], str]] = {"Python": (["every use"], project["requires-python"])}
    for extra, lines in groups.items():
        for requirement in map(Requirement, lines):
            if requirement.name != project["name"]:
                extras, _ = found.setdefault(requirement.name, ([], str(requirement.specifier)))
                extras.append(extra)
    return found


def _pins(path: Path) -> Iterator[tuple[str, str]]:
    """Read the versions of a file of pip, and that of Python from a comment.

    A local build, such as 2.13.0+cpu, counts as its release.
    """
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# Python "):
            yield "python", line.removeprefix("# Python ").strip()
        name, equals, version = line.partition("==")
        if equals and not name.startswith("#"):
            yield canonicalize_name(name.strip()), version.strip().partition("+")[0]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
