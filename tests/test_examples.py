"""The examples are what they say: their commands run, their numbers come out."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from agent_r1_gym.data.load import load_dataset
from agent_r1_gym.data.tasks import load_tasks
from agent_r1_gym.env_checker import check_tool_env
from agent_r1_gym.registry import make_tool_env
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from tests.kit.pages import blocks, run

ROOT = Path(__file__).parents[1]
WAREHOUSE = ROOT / "examples" / "warehouse"
WALK = "docs/your_own_task.md"


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder, as the current one."""
    folder = tmp_path / "warehouse"
    shutil.copytree(WAREHOUSE, folder, ignore=shutil.ignore_patterns("__pycache__", "runs", "model"))
    monkeypatch.chdir(folder)
    return folder


def test_the_tasks_are_those_that_the_script_writes(warehouse: Path) -> None:
    before = (warehouse / "tasks.jsonl").read_bytes()
    done = run("python make_tasks.py", warehouse)
    assert done.returncode == 0, done.stderr
    assert (warehouse / "tasks.jsonl").read_bytes() == before
    tasks = load_tasks(warehouse / "tasks.jsonl")
    assert (len(tasks), len(tasks.part("validation"))) == (263, 37)
    assert json.loads(blocks(WALK, "json")[0].text)["prompt"] in {task.prompt for task in tasks.part("all")}


@pytest.mark.slow
def test_the_warehouse_keeps_every_promise_and_its_oracle_is_perfect(warehouse: Path) -> None:
    check_tool_env(make_tool_env("warehouse:Example/Warehouse-v0", {}))
    done = run("agent-r1 eval warehouse:Example/Warehouse-v0 --split all --policy oracle --out runs/oracle", warehouse)
    assert done.returncode == 0, done.stderr
    metrics = RunFolder(warehouse / "runs/oracle").metrics()
    assert metrics["overall"]["metrics"]["return"]["mean"] == metrics["overall"]["metrics"]["em"]["mean"] == 1.0
    assert set(metrics["by"]) == {"kind", "item", "below"}


CLERK = """
import json
from agent_r1_gym.run.policies import Policy

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
    (warehouse / "typed.txt").write_text(typed, encoding="utf-8")
    words = "agent-r1 chat --env warehouse:Example/Warehouse-v0 --policy clerk:Clerk --split all < typed.txt"
    said = run(words, warehouse).stdout
    answers = [line for line in said.splitlines() if re.fullmatch(r"\w+: \d+", line)]
    assert answers == ["tiles: 61", "tiles: 89", "tiles: 89", "tiles: 61", "planks: 74"]
    assert 'order(item="tiles", quantity=28) -> tiles: 89' in said


def actions(folder: Path) -> list[list[str]]:
    return [[turn.action for turn in record.turns] for record in RunFolder(folder).episodes()]


def exact_match(folder: Path) -> float:
    mean: float = RunFolder(folder).metrics()["overall"]["metrics"]["em"]["mean"]
    return mean


@pytest.mark.slow
def test_the_walk_leads_from_a_random_model_to_an_exported_agent(warehouse: Path) -> None:
    """With two of the page's 60 steps: what all of them bring stands there."""
    pytest.importorskip("trl", reason="the train extra is not installed")
    output = ""
    assert sum("--max-steps 60" in block.text for block in blocks(WALK, "bash")) == 1
    for block in blocks(WALK, "bash"):
        done = run(block.text.replace("--max-steps 60", "--max-steps 2"), warehouse)
        assert done.returncode == 0, f"{block.text}\n{done.stderr[-2000:]}"
        output += done.stdout
    scores = {name: exact_match(warehouse / "runs" / name) for name in ("before", "eval-sft", "eval-grpo")}
    assert scores["before"] == 0.0
    assert scores["eval-sft"] >= 0.4  # .54 was seen on one thread
    assert scores["eval-grpo"] >= 0.4  # .89 was seen after all steps; of 37 questions a tenth is chance
    assert actions(warehouse / "runs/eval-exported") == actions(warehouse / "runs/eval-grpo")
    assert 'stock(item="tiles") -> tiles: 61' in output
    (score,) = json.loads((warehouse / "warehouse-agent/agent.json").read_text())["scores"]
    assert score["metrics"]["em"]["mean"] == scores["eval-grpo"]


@pytest.mark.slow
def test_a_cold_start_works_with_another_chat_template(warehouse: Path) -> None:
    """Gemma-3's, which has no system turn; with a seventh of the page's epochs, after all of which .73 was seen."""
    pytest.importorskip("trl", reason="the train extra is not installed")
    first, *_ = blocks(WALK, "bash")
    cold = next(block for block in blocks(WALK, "bash") if "agent-r1 sft" in block.text)
    text = first.text.replace("make_model.py model", "make_model.py model --template gemma3")
    assert "--num-train-epochs 14" in cold.text
    done = run(f"{text}\n{cold.text.replace('--num-train-epochs 14', '--num-train-epochs 2')}", warehouse)
    assert done.returncode == 0, done.stderr[-2000:]
    state = json.loads((warehouse / "runs/sft/trainer_state.json").read_text())
    first_loss, *_, last_loss = [row["loss"] for row in state["log_history"] if "loss" in row]
    assert last_loss < 0.7 * first_loss
    assert exact_match(warehouse / "runs/eval-sft") >= 0  # it plays


@pytest.mark.slow
def test_a_loop_of_ones_own_learns(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="the train extra is not installed")
    done = run(f"python {ROOT / 'examples' / 'own_loop.py'} --steps 5", tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    rewards = [float(number) for number in re.findall(r"mean reward ([\d.]+)", done.stdout)]
    assert len(rewards) == 5
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.2  # .16, then .72, .73, .72 were seen


def test_word_problems_are_kept_once(tmp_path: Path) -> None:
    """A problem that two parts share, however it is spaced, is one; one of the test's is none."""
    svamp = {"Body": "Ann has 3 pens", "Question": "How many are 2 more?", "Equation": "( 3.0 + 2.0 )", "Answer": 5.0}
    (tmp_path / "SVAMP.json").write_text(json.dumps([svamp]))
    rows = [
        {"input": text, "target": 5} for text in ("Cy has 7 cups , less 2 .", "Ann has 3 pens. How many are 2 more?")
    ]
    for part in ("singleop", "addsub", "singleeq", "multiarith"):
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        rows = [{"input": "Cy has 7 cups, less 2.", "target": 5}]
    done = run(f"python {ROOT / 'examples' / 'smollm2' / 'get_data.py'} data --from {tmp_path}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 problems to train on, 0 to validate with" in done.stdout and "SVAMP: 1" in done.stdout
    train = load_dataset("svamp", tmp_path / "data", split="train")
    assert [question.decomposition[0].question for question in train] == ["7 - 2"]
    assert len(load_dataset("svamp", tmp_path / "data", split="test")) == 1


GAMES = ROOT / "examples" / "games"


def readme_blocks(folder: Path, language: str) -> str:
    found = re.findall(rf"```{language}\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return "\n".join(found)


def scaled_down(text: str, smaller: dict[str, str]) -> str:
    """Returns the page's commands with smaller numbers; fails where the page no longer names one of them."""
    for option, less in smaller.items():
        assert option in text, f"no command has {option}"
        text = text.replace(option, less)
    return text


@pytest.fixture
def games(tmp_path: Path) -> Path:
    """A copy of the folder."""
    pytest.importorskip("trl", reason="the train extra is not installed")
    folder = tmp_path / "games"
    shutil.copytree(GAMES, folder, ignore=shutil.ignore_patterns("__pycache__", "runs", "model"))
    return folder


def mean_return(run_folder: Path) -> float:
    mean: float = RunFolder(run_folder).metrics()["overall"]["metrics"]["return"]["mean"]
    return mean


@pytest.mark.slow
def test_the_commands_for_ice_run(games: Path) -> None:
    """In two steps; that a tiny model learns to walk over it, the run over three tasks shows."""
    smaller = {"-n 400": "-n 40", "--episodes 600": "--episodes 100", "--max-steps 150": "--max-steps 2"}
    done = run(scaled_down(readme_blocks(GAMES, "bash"), smaller), games)
    assert done.returncode == 0, done.stderr[-2000:]
    for model in ("sft", "grpo"):
        assert 0 <= mean_return(games / "runs" / f"eval-{model}") <= 1


@pytest.mark.slow
def test_one_run_over_three_tasks_lifts_each(games: Path) -> None:
    """With fewer demonstrations and steps than the page has, and so a smaller rise."""
    smaller = {"--episodes 400": "--episodes 250", "--max-steps 40": "--max-steps 30"}
    done = run(scaled_down(readme_blocks(GAMES, "sh"), smaller), games)
    assert done.returncode == 0, done.stderr[-2000:]
    rise = {
        name: mean_return(games / "runs/mix-eval-grpo" / name) - mean_return(games / "runs/mix-eval-sft" / name)
        for name in ("FrozenLakeText", "BlackjackText", "Lockers-v0")
    }
    assert rise["FrozenLakeText"] > 0.15, rise
    assert rise["BlackjackText"] > 0.08, rise
    assert rise["Lockers-v0"] > 0.2, rise


def test_the_lockers_keep_every_promise_and_their_oracle_is_perfect(
    games: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(games)
    check_tool_env(make_tool_env("lockers:Example/Lockers-v0", {}))
    done = run("agent-r1 eval lockers:Example/Lockers-v0 --policy oracle -n 20 --out runs/oracle", games)
    assert done.returncode == 0, done.stderr
    assert mean_return(games / "runs/oracle") == 1.0
