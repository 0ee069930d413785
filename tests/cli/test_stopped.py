"""Commands that the person, the disk or the file system stops."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_r1_gym.cli.main import main
from tests.kit.processes import wait_until


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.slow
def test_an_interrupted_eval_keeps_the_finished_episodes_and_resumes(number: int, run_folder: Path) -> None:
    slow = (
        "import time, sys, agent_r1_gym.run.policies as p\n"
        "act = p.OraclePolicy.act\n"
        "p.OraclePolicy.act = lambda self, inputs: (time.sleep(0.05), act(self, inputs))[1]\n"
        "from agent_r1_gym.cli.main import main\n"
        "words = ['--policy', 'oracle', '-n', '100', '--max-concurrent', '1', '--out', 'run']\n"
        "sys.exit(main(['eval', 'FictionQA', *words]))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", slow],
        cwd=run_folder,
        stderr=subprocess.PIPE,
        text=True,
    )
    trace = run_folder / "run/episodes.jsonl"
    wait_until(lambda: trace.exists() and trace.read_text().count("\n") >= 3)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    saved = trace.read_text().count("\n")
    assert f"{saved} of 100 episodes are saved in run; the same command with --out run plays the others" in err
    assert "Traceback" not in err
    assert all(json.loads(line)["turns"] for line in trace.read_text().splitlines())
    words = ["eval", "FictionQA", "--policy", "oracle", "-n", "100", "--out", "run"]
    subprocess.run([sys.executable, "-m", "agent_r1_gym", *words], cwd=run_folder, capture_output=True, check=True)
    assert trace.read_text().count("\n") == 100


LIMITED = """
import resource, signal, sys
from agent_r1_gym.cli.main import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # a write beyond it fails as on a full disk
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_full_disk_is_one_line_with_the_file(tmp_path):
    words = ["eval", "FictionQA", "--policy", "oracle", "--out", str(tmp_path / "run")]
    environment = os.environ | {"AGENT_R1_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LIMITED, *words], capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert re.search(rf"^agent-r1: File too large: {tmp_path}/run", done.stderr, re.MULTILINE)


def test_an_unwritable_folder_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["eval", "FictionQA", "--policy", "oracle", "--out", str(tmp_path / "file" / "run")]) == 1
    assert re.search(rf"agent-r1: Not a directory: {tmp_path}/file.*\n$", capsys.readouterr().err)
