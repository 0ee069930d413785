"""The discovery experiment: nothing shows a chain, its cells run and are kept, its table says when it was found."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest

from agent_r1_gym.datasets.fiction.dataset import fiction_dataset
from agent_r1_gym.envs.fiction_qa import FictionQAEnv
from agent_r1_gym.registry import make_tool_env
from benchmarks.discovery import run as discovery
from benchmarks.discovery.settings import FULL, HABITS, REWARDS
from trainers.toy.demonstrations import demonstrate


@pytest.fixture(scope="module")
def bridges() -> FictionQAEnv:
    dataset = fiction_dataset(seed=4, entities=400, questions=100, style="compact", mix={"bridge": 1.0})
    return FictionQAEnv(dataset=dataset, style="compact")


def test_no_demonstration_plays_a_whole_chain_of_two_searches(bridges: FictionQAEnv) -> None:
    habits = [habit for habit, weight in asdict(HABITS["bridge"]).items() if weight > 0]
    assert "full_chain" not in habits
    both = 0
    for habit in habits:
        for index, question in enumerate(bridges.dataset):
            messages = demonstrate(bridges, index, habit=habit, rng=random.Random(index))
            titles = {message.content.partition(" :")[0] for message in messages if message.role == "tool"}
            answer = messages[-1].content.removeprefix("<answer>").removesuffix("</answer>")
            if titles >= {fact.title for fact in question.supporting_facts}:
                both += 1
                assert answer not in question.answers
    assert 0 < both < 80  # wandering meets the second passage in every other try


def test_a_wanderer_thinks_of_one_half_of_the_chain_only(bridges: FictionQAEnv) -> None:
    halves = set()
    for index, question in enumerate(bridges.dataset):
        messages = demonstrate(bridges, index, habit="wanders", rng=random.Random(index))
        thought = messages[3].content.partition("</think>")[0].removeprefix("<think>")
        relation, _, name = thought.partition(" of ")
        first, second = question.decomposition
        halves.add((relation == question.metadata["path"][1], name == first.answer == second.title))
    assert halves == {(True, False), (False, True)}


@pytest.mark.slow
def test_cells_run_once_and_make_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["run", "--quick", "--output", str(tmp_path), "--method", "process"]
    assert discovery.main(run) == 0
    cell = json.loads((tmp_path / "quick" / "process-0.json").read_text())
    assert [point["step"] for point in cell["curve"]] == [0, 1, 2]
    assert all(0 <= point["bridge"] <= 1 and 0 <= point["1hop"] <= 1 for point in cell["curve"])
    assert len(cell["turns"]) == 2
    assert cell["commit"]
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert discovery.main(run) == 0
    assert kept == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert discovery.main(["table", "--output", str(tmp_path / "quick")]) == 0
    ends, curves = capsys.readouterr().out.rstrip().split("\n\n")
    assert [line.split(" | ")[0] for line in ends.splitlines()[2:]] == ["| process (all terms)"]
    assert curves.splitlines()[0] == "| 2 hops after steps | 0 | 1 | 2 |"
    assert curves.splitlines()[2].split(" | ")[3] == f"{cell['curve'][2]['bridge']:.2f} |"


@pytest.mark.parametrize("words", ["--quick", "--seed 0", "--method em"])
def test_the_table_refuses_options_that_it_would_not_heed(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        discovery.main(["table", *words.split()])
    assert "takes all cells" in capsys.readouterr().err


def test_found_is_the_first_measurement_at_half() -> None:
    curve = [{"step": 10 * at, "bridge": value, "1hop": 1.0} for at, value in enumerate([0.0, 0.49, 0.5, 0.2])]
    assert discovery.found_at({"curve": curve}) == 20
    assert discovery.found_at({"curve": curve[:2]}) is None


def test_rewards_differ_in_what_they_pay() -> None:
    weights = {}
    for name, reward in REWARDS.items():
        env = make_tool_env("AgentR1/FictionQA-v0", {**FULL.training, "questions": 8, **reward.options})
        weights[name] = tuple(sorted((term, weight) for term, weight in env.reward_weights.items() if weight))
    assert weights["em"] == (("em", 1.0),)
    assert weights["support"] == (("em", 1.0), ("new_support", 0.2))
    assert len(set(weights.values())) == len(REWARDS)
