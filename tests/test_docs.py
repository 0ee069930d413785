"""README and docs: every block runs, or, where it needs a GPU, a hub or minutes, is what its command takes."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import itertools
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest

from agent_r1_gym.cli.main import TRAINER_COMMANDS, build_parser
from agent_r1_gym.registry import find_registered, option_names
from tests.kit.pages import PAGES, ROOT, blocks, commands, run

OTHERS = {"pip", "trl", "vllm", "curl", "cd", "export"}
"""Programs of others, whose options are not ours to check."""
_PYTHON = re.compile(r"^```(?:\{code-block\} )?(?:python3?|py)\n(.*?)\n```", re.S | re.M)
WALKS = {"docs/your_own_task.md"}
"""Pages whose commands need minutes: `test_examples` runs them."""


def save(page: str, folder: Path) -> None:
    """Writes the files that a page tells its reader to save."""
    for block in blocks(page):
        if block.saved_as:
            (folder / block.saved_as).write_text(block.text + "\n", encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python", "bash") and page not in WALKS])
def test_every_block_runs(page: str, tmp_path: Path) -> None:
    save(page, tmp_path)
    for block in blocks(page, "python", "bash"):
        if "import torch" in block.text:
            pytest.importorskip("trl", reason="the train extra is not installed")
        if block.language == "python":
            words = [sys.executable, "-W", "error", "-c", block.text]
            done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        else:
            done = run(block.text, tmp_path)
        assert done.returncode == 0, f"{block.text}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")])
def test_commands_that_do_not_run_here_are_understood(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(page, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # a page's own modules, as from its folder
    for block in blocks(page, "sh"):
        for words in commands(block.text):
            understood(words)
            if words[:2] in (["agent-r1", "train"], ["agent-r1", "sft"]):
                given = {word.partition("=")[0] for word in words}
                assert given & {"--config", "--out", "--output-dir", "--help-all"}, words
                assert given & {"--config", "--model", "--model-name-or-path", "--warm-start", "--help-all"}, words


def test_commands_at_the_papers_scale_are_understood() -> None:
    """They stand with the experiment, whose other commands take minutes each."""
    page = ROOT / "benchmarks/learning/multihop_qa/README.md"
    (block,) = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    for words in commands(block):
        understood(words)


def understood(words: list[str]) -> None:
    """Raises where a command would refuse its options, or names a file that the project does not have."""
    program, *rest = words
    if program == "agent-r1" and rest[0] in TRAINER_COMMANDS:
        trained(rest[0], rest[1:])
    elif program == "agent-r1":
        build_parser().parse_args(rest)
    elif program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(), re.M), words
    elif program == "python" and rest[0] == "-m" and not rest[1].startswith("trainers"):
        assert {word for word in rest[2:] if word.startswith("--")} <= set(re.findall(r"--[\w-]+", help_of(rest[1])))
    elif program == "python" and rest[0] == "-m":
        trained(rest[1].removeprefix("trainers.").removeprefix("commands.").removeprefix("toy."), rest[2:])
    elif program in ("python", "bash"):
        assert (ROOT / rest[0]).is_file(), words
    elif program == "accelerate":
        launched(rest[1:])
    else:
        assert program in OTHERS, words


def trained(command: str, words: list[str]) -> None:
    """Checks the options of a command that the trainer brings."""
    pytest.importorskip("trl", reason="the train extra is not installed")
    from trainers.algorithms import advantages
    from trainers.commands.command_line import read_config, read_options
    from trainers.commands.sft.command import DemonstrationConfig
    from trainers.config import presets

    if command == "train":
        tables = (presets._ALGORITHMS, advantages._ESTIMATORS, advantages._USED_OPTIONS)
        with contextlib.ExitStack() as unchanged:  # what a page's own module registers is not there for later tests
            for table in tables:
                unchanged.enter_context(mock.patch.dict(table))
            read_options([*words, "--use_cpu", "True", "--bf16", "False"])
    elif command == "sft":
        read_config([*words, "--use_cpu", "True"], DemonstrationConfig, prog="sft")
    elif command == "quickstart":
        assert {word for word in words if word.startswith("--")} <= set(
            re.findall(r"--[\w-]+", help_of("trainers.toy.quickstart"))
        )
    else:
        raise AssertionError(f"no test checks the options of {command!r}")


@functools.cache
def help_of(module: str) -> str:
    """What `python -m MODULE --help` prints, in this process: its imports take seconds."""
    printed = io.StringIO()
    arguments = mock.patch.object(sys, "argv", [module, "--help"])
    with arguments, contextlib.redirect_stdout(printed), pytest.raises(SystemExit):
        runpy.run_module(module, run_name="__main__")
    return printed.getvalue()


def launched(words: list[str]) -> None:
    """Checks the options of Accelerate's launcher, and those of what it launches."""
    pytest.importorskip("trl", reason="the train extra is not installed")
    from accelerate.commands.launch import launch_command_parser

    options = launch_command_parser().parse_args([word.replace("$RANK", "1") for word in words])
    assert options.module, words
    if options.config_file:
        assert (ROOT / options.config_file).is_file(), words
    trained(options.training_script.removeprefix("trainers.commands."), options.training_script_args)


@pytest.mark.parametrize("page", [page for page in PAGES if _PYTHON.search(PAGES[page])])
def test_names_in_python_blocks_exist(page: str) -> None:
    """Also of the blocks that do not run here: imports from this project, and options of its environments."""
    for block in _PYTHON.findall(PAGES[page]):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("agent_r1_gym", "trainers")):
                spec = find_spec(node.module or "")
                assert spec is not None and spec.origin is not None, node.module
                source = Path(spec.origin).read_text(encoding="utf-8")
                missing = {name.name for name in node.names if not re.search(rf"\b{name.name}\b", source)}
                assert all(find_spec(f"{node.module}.{name}") for name in missing), ast.unparse(node)
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("gym.make", "gymnasium.make"):
                named = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
                names = option_names(named) if str(named).startswith("AgentR1/") else None
                given = {keyword.arg for keyword in node.keywords} - {"max_episode_steps", "disable_env_checker"}
                assert names is None or given <= names, ast.unparse(node)


@pytest.mark.parametrize("page", [page for page in PAGES if "--option" in PAGES[page]])
def test_options_of_environments_in_commands_exist(page: str) -> None:
    for block in blocks(page, "sh", "bash"):
        for words in commands(block.text):
            found = [name for name in map(find_registered, words) if name is not None]
            names = option_names(found[0]) if len(found) == 1 else None
            given = {after.partition("=")[0] for word, after in itertools.pairwise(words) if word == "--option"}
            assert names is None or given <= names, words


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", PAGES[page]):
        generated = target.endswith("-v0.md")  # pages of the registered environments
        assert generated or target.startswith("https://") or (folder / target).exists(), target


@pytest.mark.slow
def test_the_site_builds_offline_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "myst_parser", "furo"):
        pytest.importorskip(package, reason="the docs extra is not installed")
    words = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "-b", "html", "-d", str(tmp_path / "trees")]
    done = subprocess.run([*words, str(ROOT / "docs"), str(tmp_path / "site")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "site/environments/FictionQA-v0.html").read_text(encoding="utf-8")
    assert "oracle (ceiling)" in page and "1.00 [" in page  # scores that were played for it
    assert '<script src="http' not in page and "googleapis" not in page  # the site loads nothing from elsewhere
