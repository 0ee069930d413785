"""What is shipped: the source distribution is small, and holds what its tests and README's commands need."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("agent_r1_gym", "trainers", "benchmarks", "tests", "docs", "examples")
MOST_BYTES = 3_500_000


@pytest.mark.slow
def test_the_source_distribution_is_small_and_can_run_its_tests(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    copy = tmp_path / "copy"
    copy.mkdir()
    for part in PARTS:
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "runs", "_build"))
    for path in ROOT.iterdir():
        if path.is_file() and not path.name.startswith("."):
            shutil.copy(path, copy)
    wanted = {path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file()}
    wanted -= {path for path in wanted if re.fullmatch(r"benchmarks/(.*/)?results([\w-]*\.jsonl|/.*)", path)}
    code = f"import setuptools.build_meta as backend; backend.build_sdist({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        shipped = {name.partition("/")[2] for name in packed.getnames()}
    assert wanted - shipped == set()
    assert archive.stat().st_size <= MOST_BYTES, f"{archive.stat().st_size:,} bytes"
