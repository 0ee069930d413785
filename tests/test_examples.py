"""The examples are what they say: their commands run, their numbers come out."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent_r1_gym.checker import check_tool_env
from agent_r1_gym.datasets.tasks import load_tasks
from agent_r1_gym.evaluation.run_folder import RunFolder
from agent_r1_gym.registry import make_tool_env

ROOT = Path(__file__).parents[1]
WAREHOUSE = ROOT / "examples" / "warehouse"
WALK = (ROOT / "docs" / "your_own_task.md").read_text(encoding="utf-8")


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, as the current one."""
    folder = tmp_path / "warehouse"
    shutil.copytree(WAREHOUSE, folder, ignore=shutil.ignore_patterns("__pycache__", "runs", "model"))
    monkeypatch.chdir(folder)
    return folder


def run(command: str, typed: str = "") -> str:
    words = shlex.split(command, comments=True)
    start = {"agent-r1": [sys.executable, "-m", "agent_r1_gym"], "python": [sys.executable]}[words[0]]
    done = subprocess.run([*start, *words[1:]], capture_output=True, text=True, timeout=600, input=typed)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_the_tasks_are_those_that_the_script_writes(warehouse: Path) -> None:
    before = (warehouse / "tasks.jsonl").read_bytes()
    run("python make_tasks.py")
    assert (warehouse / "tasks.jsonl").read_bytes() == before
    tasks = load_tasks(warehouse / "tasks.jsonl")
    assert (len(tasks), len(tasks.part("validation"))) == (263, 37)
    assert json.loads(re.findall(r"```json\n(.*?)```", WALK, re.S)[0])["prompt"] in {
        task.prompt for task in tasks.part("all")
    }


def test_the_warehouse_keeps_every_promise_and_its_oracle_is_perfect(warehouse: Path) -> None:
    check_tool_env(make_tool_env("warehouse:Example/Warehouse-v0", {}))
    run("agent-r1 eval warehouse:Example/Warehouse-v0 --split all --policy oracle --out runs/oracle")
    metrics = RunFolder(warehouse / "runs/oracle").metrics()
    assert metrics["overall"]["metrics"]["return"]["mean"] == metrics["overall"]["metrics"]["em"]["mean"] == 1.0
    assert set(metrics["by"]) == {"kind", "item", "below"}


CLERK = """
import json
from agent_r1_gym.play.policies import Policy

class Clerk(Policy):
    name = "clerk"

    def act(self, inputs):
        return [self.one(state) for state in inputs]

    def one(self, state):
        words = [m.content for m in state.messages if m.role == "user"][-1].split()
        if state.outcomes:
            return f"<answer>{state.outcomes[0].content}</answer>"
        name = "order" if words[0] == "order" else "stock"
        arguments = {"item": words[-1]} | ({"quantity": int(words[1])} if name == "order" else {})
        return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
"""


def test_who_talks_in_the_warehouse_finds_it_as_they_left_it(warehouse: Path) -> None:
    """Its database belongs to the thread that resets and steps it, whoever asks."""
    (warehouse / "clerk.py").write_text(CLERK, encoding="utf-8")
    typed = "stock of tiles\norder 28 tiles\nstock of tiles\n/reset\nstock of tiles\n/task w1\nstock of planks\n"
    said = run("agent-r1 chat --env warehouse:Example/Warehouse-v0 --policy clerk:Clerk --split all", typed)
    answers = [line for line in said.splitlines() if re.fullmatch(r"\w+: \d+", line)]
    assert answers == ["tiles: 61", "tiles: 89", "tiles: 89", "tiles: 61", "planks: 74"]
    assert 'order(item="tiles", quantity=28) -> tiles: 89' in said


@pytest.mark.slow
def test_a_model_of_random_weights_learns_from_demonstrations(warehouse: Path) -> None:
    pytest.importorskip("trl", reason="the train extra is not installed")
    block = re.findall(r"```bash\n(.*?)```", WALK.partition("## Without a GPU")[2], re.S)[0]
    for command in block.replace("\\\n", " ").strip().splitlines():
        run(command)
    exact = {
        name: RunFolder(warehouse / "runs" / name).metrics()["overall"]["metrics"]["em"]["mean"]
        for name in ("before", "after")
    }
    assert exact["before"] == 0.0
    assert exact["after"] >= 0.4  # .45 to 1.0 were seen
