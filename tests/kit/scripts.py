"""Modules of the kit that need a process of their own, or several that train together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TOKENIZERS_PARALLELISM": "false"}


def run_script(module: str, *arguments: str, processes: int = 1) -> int:
    """Runs `python -m module`, by `torch.distributed.run` where it is several processes; returns the exit status."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    command = [sys.executable, *launch, "-m", module, *arguments]
    return subprocess.run(command, env=os.environ | ENVIRONMENT, timeout=300).returncode
