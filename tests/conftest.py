"""Settings for every test: no network, no user data, a home folder of its own; and a word on what is not tested."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# A busy machine is not a fault of the code: no property fails because an example took long.
hypothesis.settings.register_profile("suite", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("suite")

# Here and not in a fixture: the libraries read these once, when the first test module imports them.
os.environ.update({"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"})
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are tiny, and the workers share the cores

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# And under nohup a closed terminal.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_TRAIN = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
_MISSING = [name for name in _TRAIN if not importlib.util.find_spec(name)]
_TRAINING = ("collapse", "contrasts", "experiment", "gpu", "learning", "trainer_speed")
_NEED_TRAIN = ["trainers/*test_*.py", *(f"benchmarks/test_{name}.py" for name in _TRAINING)]

if _MISSING:
    collect_ignore_glob = _NEED_TRAIN


_MODEL_TESTS = pytest.StashKey[int]()
_LONGEST = ("test_examples.py", "test_quickstart.py", "test_ranks.py")
"""Files with tests of minutes: these begin first, so that no worker waits for one that another began last."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the longest tests first; those with the marker `model` run only where `-m` names it."""
    if "model" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("model")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
        config.stash[_MODEL_TESTS] = len(left_out)
    items.sort(key=lambda item: item.path.name not in _LONGEST)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says what this run did not test, and why: a suite that leaves tests out silently looks greener than it is."""
    lines = []
    if _MISSING:
        lines.append(f"the trainer and its benchmarks: {', '.join(_MISSING)} missing (the train extra)")
    if config.stash.get(_MODEL_TESTS, 0):
        lines.append("what takes minutes with a pretrained model: make test-model")
    if config.option.markexpr:
        lines.append(f"what `-m {config.option.markexpr!r}` leaves out")
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in _skipped(terminalreporter))
    lines.extend(f"{number} skipped: {reason}" for reason, number in reasons.items())
    if lines:
        terminalreporter.section("not tested")
        terminalreporter.write("".join(f"{line}\n" for line in lines))


def _skipped(terminalreporter: Any) -> list[Any]:
    return [report for report in terminalreporter.stats.get("skipped", []) if isinstance(report.longrepr, tuple)]


@pytest.fixture(autouse=True, scope="session")
def _isolated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv("AGENT_R1_HOME", str(tmp_path_factory.mktemp("home")))
    patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    yield
    patch.undo()


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, so that commands write their runs there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
