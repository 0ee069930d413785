"""`agent-r1 new NAME`: a package with an environment, its tasks and its tests, to start from."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import shlex
import sys
from importlib import resources
from pathlib import Path
from string import Template

from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.files import atomic_directory
from agent_r1_gym.support.packages import extras, install_command
from agent_r1_gym.support.terminal import print_line

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument(
        "name", type=Path, metavar="NAME", help="folder to write; its last part names module and id, as my-agent does"
    )


def run(options: argparse.Namespace) -> int:
    """Write the folder completely or not at all, and print the next commands."""
    folder: Path = options.name
    names = names_of(folder.name)
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigurationError(f"{folder} exists and is not an empty folder; choose another NAME.")
    with atomic_directory(folder) as temporary:
        write(temporary, names)
    env = f"{names['module']}:{names['id']}"
    commands = {
        f"cd {shlex.quote(str(folder))}": "",
        f"agent-r1 play {env}": "# play it yourself",
        f"agent-r1 eval {env} --policy oracle": "# the upper bound: EM 1.000",
        "python -m pytest": "# its tests (pip install pytest)",
        "pip install -e .": f"# now {names['id']} works in every folder",
        f"agent-r1 train {env} --config train.yaml": f"# train a model on it ({install_command('train')})",
    }
    width = max(map(len, commands))
    print_line(f"{folder} holds the environment {names['id']}; see {folder / 'README.md'}. Next:\n")
    print_line("\n".join(f"{command:{width}}  {comment}".rstrip() for command, comment in commands.items()))
    return 0


def names_of(name: str) -> dict[str, str]:
    """Derive `title`, `package`, `module`, `cls` and `id` of the templates.

    Raises:
        ConfigurationError: the name is not valid for a module, or another module has it.
    """
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"NAME {name!r} is not valid for a module: expected letters and digits with single '-' or '_' between "
            "them, starting with a letter, such as my-agent."
        )
    module = name.replace("-", "_").lower()
    if keyword.iskeyword(module) or _is_taken(module):
        what = "a keyword of Python" if keyword.iskeyword(module) else "the name of another module"
        raise ConfigurationError(f"NAME {name!r}: {module!r} is {what}; choose another, such as my-{name}.")
    words = re.split("[-_]", name)
    cls = "".join(word[0].upper() + word[1:] for word in words)
    package = module.replace("_", "-")
    return {"title": " ".join(words), "package": package, "module": module, "cls": cls, "id": f"Own/{cls}-v0"}


def write(folder: Path, names: dict[str, str]) -> None:
    """Write the templates into the folder."""
    template = resources.files("agent_r1_gym.cli.new") / "template"
    targets = {
        "pyproject.toml.txt": "pyproject.toml",
        "init.py.txt": f"{names['module']}/__init__.py",
        "env.py.txt": f"{names['module']}/env.py",
        "tasks.jsonl": f"{names['module']}/tasks.jsonl",
        "test.py.txt": f"tests/test_{names['module']}.py",
        "train.yaml.txt": "train.yaml",
        "README.md.txt": "README.md",
        "workflow.yml.txt": ".github/workflows/tests.yml",
        "gitignore.txt": ".gitignore",
    }
    for source, target in targets.items():
        text = Template((template / source).read_text(encoding="utf-8")).substitute(names)
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        (folder / target).write_text(text, encoding="utf-8")


def _is_taken(module: str) -> bool:
    """Return whether a module of that name would shadow one of Python, an installed one, or one of an extra."""
    if module in sys.stdlib_module_names or any(module in packages for packages in extras().values()):
        return True
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None  # without an origin: a folder that happens to be here
