"""The documentation of the tree is true, and time is measured in one place."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.cpu_time import cpu_below
from tests.kit.pages import PAGES
from tests.test_layers import HEAVY, LAYERS, MODULES

ROOT = Path(__file__).parents[1]


def floors_of_the_picture(text: str) -> dict[str, list[set[str]]]:
    """Read the layers of each package, lowest first, from the code block: "  core   its contents"."""
    (picture,) = (block for block in re.findall(r"```\n(.*?)```", text, re.DOTALL) if "agent_r1_gym\n" in block)
    packages = (part.splitlines() for part in picture.split("\n\n"))
    return {
        package: [set(re.split(r"\s{3,}", line.strip())[0].replace("/", "").split()) for line in reversed(lines)]
        for package, *lines in packages
    }


def test_the_picture_in_the_docs_shows_the_enforced_floors() -> None:
    picture = floors_of_the_picture((ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    for package, layers in LAYERS.items():
        named = [{name for name in names if not name.startswith("_")} for names in layers]
        assert picture[package] == [names for names in named if names], package


def test_the_paths_in_the_docs_for_contributors_exist() -> None:
    homes = (ROOT, ROOT / "agent_r1_gym", ROOT / "trainers")
    for page in ("docs/ARCHITECTURE.md", "CONTRIBUTING.md", "AGENTS.md"):
        for path in re.findall(r"`([\w./]+(?:/|\.py|\.md))`", (ROOT / page).read_text(encoding="utf-8")):
            if "/" in path.rstrip("/") and "NAME" not in path:  # not a file name alone, nor a pattern
                assert any((home / path).exists() for home in homes), f"{page} names {path}, which does not exist"


def test_the_files_that_a_page_names_exist() -> None:
    """A path from the root or from the page's folder; `NAME` is a pattern, and "FILE.py: name" a name in the file."""
    packages = ("agent_r1_gym", "trainers", "benchmarks", "tests", "docs", "examples")
    pages = [ROOT / page for page in (*PAGES, "CONTRIBUTING.md", "AGENTS.md", "SECURITY.md")]
    pages += [page for package in packages for page in (ROOT / package).rglob("README.md")]
    found = 0
    for page in pages:
        for path, name in re.findall(r"`([\w./-]+/[\w./-]*)(?:: (\w+))?`", page.read_text(encoding="utf-8")):
            if path.split("/")[0] in packages and "NAME" not in path and path != "docs/_build":
                file = next((home / path for home in (ROOT, page.parent) if (home / path).exists()), None)
                assert file is not None, f"{page.relative_to(ROOT)} names {path}, which does not exist"
                assert not name or re.search(rf"^(def|class) {name}\b", file.read_text(encoding="utf-8"), re.M), name
                found += 1
    assert found > 50


def is_dangling(reference: str, sources: dict[str, str]) -> bool:
    """Whether the longest beginning of a dotted name that is a module does not contain the word that follows."""
    parts = reference.split(".")
    for end in range(len(parts), 0, -1):
        homes = [source for name, source in sources.items() if f".{name}".endswith("." + ".".join(parts[:end]))]
        if homes:
            return end < len(parts) and not any(re.search(rf"\b{parts[end]}\b", source) for source in homes)
    return False


def test_the_modules_that_docstrings_and_comments_name_have_those_names() -> None:
    sources = {name.removesuffix(".__init__"): path.read_text(encoding="utf-8") for name, path in MODULES.items()}
    assert is_dangling("result_match.COMPARISON", sources)
    assert is_dangling("run.conversations", sources)  # it is `run.evaluation.conversations`
    assert not is_dangling("result_match.COMPARISONS", sources)
    others = {*HEAVY, "env.unwrapped", "agent_r1_gym.audit_rules"}  # libraries, a variable, a group of plugins
    files = (".py", ".json", ".jsonl", ".lock")
    for name, source in sources.items():
        for reference in re.findall(r"`(\w+(?:\.\w+)+)(?:\(\))?`", source):
            if not (others & {reference, reference.split(".")[0]} or reference.endswith(files)):
                assert not is_dangling(reference, sources), f"{name} names {reference}, which does not exist"


def clock_reads(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that measure time: `perf_counter()`, `process_time()`, `time.time()`, and asserted differences.

    `time.monotonic()` may be a deadline, as in a loop that waits for another process.
    """
    clocks = {"time.perf_counter", "perf_counter", "time.process_time", "process_time", "time.time"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in clocks:
            yield node.lineno
        elif isinstance(node, ast.Assert):
            sums = [part for part in ast.walk(node) if isinstance(part, ast.BinOp)]
            if any(isinstance(part.op, ast.Sub) and "monotonic()" in ast.unparse(part) for part in sums):
                yield node.lineno


@pytest.mark.slow
def test_time_is_measured_in_one_place() -> None:
    with_a_clock = {"cpu_time.py", "faulty_envs.py"}  # one env of the latter is slow on purpose
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if not (path.parent.name == "kit" and path.name in with_a_clock)
        for line in sorted(clock_reads(ast.parse(path.read_text(encoding="utf-8"))))
    ]
    assert not found, (
        f"{found}: a busy machine stretches wall-clock time, and a collection of garbage CPU time. Use "
        "tests/kit/cpu_time.py, or assert an order of events."
    )


def test_durations_are_distinguished_from_deadlines() -> None:
    source = """
start = time.perf_counter()
assert time.monotonic() - start < 5
assert time.monotonic() < deadline
while time.monotonic() < start + 5: pass
assert time.process_time() - start < 5
"""
    assert sorted(clock_reads(ast.parse(source))) == [2, 3, 6]


def test_cpu_time_is_measured_without_collections_of_garbage() -> None:
    with cpu_below(10):
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(AssertionError, match="too much"), cpu_below(0, "too much"):
        sum(range(10_000))
    assert gc.isenabled()
