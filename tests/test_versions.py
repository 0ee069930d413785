"""The page of versions is up to date, and what was tested is what is allowed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.kit.pages import load_script

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def versions() -> ModuleType:
    return load_script("versions_page")


def test_the_page_is_up_to_date(versions: ModuleType) -> None:
    assert versions.PAGE.read_text() == versions.page(), "run: python docs/versions_page.py"


def test_tested_versions_are_allowed_and_floors_are_the_oldest(versions: ModuleType) -> None:
    """A range that was changed after the tests ran makes this fail: run `make test-floors` or `make test-newest`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    wanted = [Requirement(line) for line in lines if not line.startswith(project["name"])]
    wanted.append(Requirement(f"python{project['requires-python']}"))
    for column, path in versions.TESTED.items():
        pins = dict(versions._pins(path))
        for requirement in wanted:
            name = canonicalize_name(requirement.name)
            if name not in pins:
                continue
            assert requirement.specifier.contains(pins[name], prereleases=True), (column, str(requirement), pins[name])
            least = next((each.version for each in requirement.specifier if each.operator == ">="), None)
            if column == "oldest tested" and name not in ("torch", "python") and least is not None:
                assert pins[name].startswith(least), f"{name}: {least} is allowed, and {pins[name]} was tested"
