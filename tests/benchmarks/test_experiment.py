"""The runner: what a summary holds, when cells are refused, what a replay compares, which weights are final."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, TrainerControl, TrainerState

from agent_r1_gym.errors import ConfigurationError
from benchmarks.common import experiment
from benchmarks.common.experiment import Arm, Experiment, Profile, Run, Start, main
from benchmarks.common.policy import Meter, Policy, load_start, save_half
from benchmarks.common.results import EPISODES, add_result, episodes_hash, read_results
from tests.benchmarks.cells import MADE, SETTINGS
from trainers.toy.quickstart import SHIPPED

BENCHMARKS = Path(experiment.__file__).parents[1]


def test_committed_results_are_small_and_text() -> None:
    files = [path for path in BENCHMARKS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert not [path for path in files if path.suffix in (".safetensors", ".gz", ".bin", ".pt")]
    results = [path for path in files if path.suffix == ".jsonl"]
    assert sum(path.stat().st_size for path in results) < 1_500_000
    for path in results:
        assert all(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()), path


# --- what a summary holds ---------------------------------------------------------------------------------------------

CELL = {
    "arm": "a",
    "start": 1,
    "seed": 3,
    "start_weights": "blake2b:0f",
    "curve": [
        {"step": 0, "1 hop": "0001", "retries": {"turns": 2}},
        {"step": 5, "1 hop": "1010", "retries": {"turns": 4}},
    ],
    "exact": {"1 hop": "00010", "2 hops": "1"},
    "log": {"em": [0.5, None]},
    "stopped": None,
}


def test_a_cell_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    add_result(path, CELL, settings=SETTINGS, made=MADE)
    shared, [cell] = read_results(path)
    assert cell == CELL | MADE
    assert shared == {"settings": SETTINGS, "made": [MADE]}
    [_, line] = map(json.loads, path.read_text().splitlines())
    assert line["exact"] == {"1 hop": "5:02", "2 hops": "1:1"}
    assert line["curve"] == {"step": [0, 5], "1 hop": "2x4:1a", "retries": {"turns": [2, 4]}}


def test_packed_numbers_read_as_the_plain_lists_of_older_lines(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    logged = {"reward": [0.2891, 0.1, 0.0, 1.0], "loss": [1e-05, 12.5, 3.0], "share": [0.1 + 0.2] * 3, "half": [0.5]}
    others = {"mixed": [0.25, 1, 0.75], "signed": [-0.25, 0.5, 0.75], "pairs": [[10, 0.53], [20, 0.6]], "none": []}
    cell = {**CELL, "training": {**logged, **others}, "f1": [0.0, 0.667, 1.0, 0.4]}
    cell["curve"] = [{**point, "noted": noted} for point, noted in zip(CELL["curve"], (0.8125, 0.9375), strict=True)]
    add_result(path, cell, settings=SETTINGS, made=MADE)
    first, line = path.read_text().splitlines()
    packed = json.loads(line)
    assert packed["training"]["reward"] == "4.3:28b0rs0007ps"
    assert {name: packed["training"][name] for name in ("half", *others)} == {"half": [0.5], **others}
    plain = {**packed, "training": cell["training"], "f1": cell["f1"]}
    plain["curve"] = {**packed["curve"], "noted": [0.8125, 0.9375]}
    assert isinstance(packed["curve"]["noted"], str) and isinstance(packed["f1"], str)
    older = tmp_path / "older.jsonl"
    older.write_text(f"{first}\n{json.dumps(plain)}\n")
    assert read_results(older)[1] == read_results(path)[1] == [cell | MADE]


def test_cells_are_sorted_and_one_that_comes_again_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for arm, seed in (("b", 0), ("a", 10), ("a", 2), ("b", 0)):
        add_result(path, {"arm": arm, "start": 0, "seed": seed}, settings=SETTINGS, made=MADE)
    assert [(cell["arm"], cell["seed"]) for cell in read_results(path)[1]] == [("a", 2), ("a", 10), ("b", 0)]


def test_episodes_are_hashed_over_their_lines() -> None:
    rows = [{"task": 1, "actions": ["\u00e9"]}, {"task": 2}]
    lines = '{"task": 1, "actions": ["\u00e9"]}\n{"task": 2}\n'.encode()
    assert episodes_hash(rows) == f"sha256:{hashlib.sha256(lines).hexdigest()}"


# --- running and replaying --------------------------------------------------------------------------------------------

FACTS: dict[str, Any] = {}
"""What the made-up arms find."""


def learn(run: Run) -> tuple[Any, dict[str, Any]]:
    """Changes the weights by arm and seed; finds `FACTS`."""
    with torch.no_grad():
        next(run.policy.model.parameters()).fill_(FACTS.get("weight", run.seed + len(run.arm.title)))
    found = {"curve": [{"step": 5, "a": "01"}], EPISODES: [{"task": 0}]}
    return run.policy.model, found | {name: fact for name, fact in FACTS.items() if name not in ("weight", "seconds")}


PROFILE = Profile(starts=(Start(), Start()), seeds=(0,), steps=1)
EXPERIMENT = Experiment(
    name="made_up",
    about="A made-up experiment.",
    arms={"a": Arm("one", learn=learn), "b": Arm("another", learn=learn)},
    profiles={"cpu": PROFILE},
    tables={"Arms": lambda cells: " ".join(cells.by_arm)},
)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    FACTS.clear()
    monkeypatch.setattr(experiment, "_CACHE", tmp_path / "cache")


def test_cells_are_made_once_and_balanced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    words = ["--results", str(path)]
    assert main(EXPERIMENT, ["run", *words]) == 0
    said = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()]
    assert said == [f"{arm}, warm start {start}, seed 0" for start in (0, 1) for arm in ("a", "b")]
    written = path.read_bytes()
    FACTS["curve"] = []
    assert main(EXPERIMENT, ["run", *words]) == 0
    assert path.read_bytes() == written
    assert f"already there: 4 of 4 cells, in {path}; `replay` makes one" in capsys.readouterr().out
    assert main(EXPERIMENT, ["table", *words]) == 0
    assert capsys.readouterr().out.startswith("## Arms\n\na b\n\nAll cells: commit ")
    first, second, *_ = read_results(path)[1]
    assert first["episodes"] == episodes_hash([{"task": 0}])
    assert first["command"] == "python -m benchmarks.learning made_up run --profile cpu"
    assert first["start_weights"] == second["start_weights"] != first["weights"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("table --seed 0", "takes all cells"),
        ("table --arm a", "takes all cells"),
        ("table --start 0", "takes all cells"),
        ("run --start 2", "no such warm start; there are 0, 1"),
        ("run --start -1", "no such warm start"),
        ("run --model x", "--model goes with replay"),
        ("replay --arm a --seed 0", "replay takes one cell"),
        ("chart", "invalid choice"),
        ("table --commit 5eed", "--commit goes with run"),
    ],
)
def test_options_that_an_action_would_ignore_are_refused(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(EXPERIMENT, words.split())
    assert message in capsys.readouterr().err


def test_committed_cells_are_refused_while_files_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "commit", lambda: "c0ffee+changes")
    with pytest.raises(ConfigurationError, match="Commit first, or write elsewhere"):
        main(EXPERIMENT, ["run"])
    assert not (BENCHMARKS / "learning" / "made_up").exists()


def test_cells_name_the_commit_that_they_are_given(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    words = ["--results", str(path), "--arm", "a", "--start", "0"]
    assert main(EXPERIMENT, ["run", *words, "--commit", "5eed"]) == 0
    _, cells = read_results(path)
    assert [cell["commit"] for cell in cells] == ["5eed"]


def test_committed_profiles_have_files_of_their_own() -> None:
    profiles = {"gpu": PROFILE, "cpu": PROFILE, "smoke": PROFILE}
    several = replace(EXPERIMENT, profiles=profiles, also_committed=("cpu",))
    folder = BENCHMARKS / "learning" / "made_up"
    assert several.results("gpu") == folder / "results.jsonl"
    assert several.results("cpu") == folder / "results-cpu.jsonl"
    assert not several.results("smoke").is_relative_to(BENCHMARKS)


def test_cells_of_other_settings_or_from_other_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    words = ["run", "--results", str(path), "--start", "0"]
    only_a = replace(EXPERIMENT, arms={"a": EXPERIMENT.arms["a"]})
    assert main(only_a, words) == main(EXPERIMENT, [*words, "--arm", "b"]) == 0  # an arm may be added
    slower = replace(EXPERIMENT, profiles={"cpu": replace(PROFILE, steps=4)})
    other = replace(EXPERIMENT, arms={**EXPERIMENT.arms, "a": Arm("one", {"learning_rate": 1.0}, learn=learn)})
    for changed in (slower, other):
        for arm in EXPERIMENT.arms:
            with pytest.raises(ConfigurationError, match="other settings"):
                main(changed, [*words, "--arm", arm, "--seed", "1"])
    path.write_text(path.read_text().replace('"start_weights":"blake2b:', '"start_weights":"blake2b:00'))
    with pytest.raises(ConfigurationError, match="not comparable"):
        main(EXPERIMENT, [*words, "--seed", "1"])


def test_an_arm_without_cells_may_change(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    words = ["run", "--results", str(path), "--start", "0"]
    assert main(EXPERIMENT, [*words, "--arm", "a"]) == 0
    arms = {**EXPERIMENT.arms, "b": Arm("another", {"learning_rate": 1.0}, learn=learn)}
    assert main(replace(EXPERIMENT, arms=arms), words) == 0
    shared, cells = read_results(path)
    assert [cell["arm"] for cell in cells] == ["a", "b"]
    assert shared["settings"]["arms"]["b"]["trainer"] == {"learning_rate": 1.0}
    with pytest.raises(ConfigurationError, match="other settings"):
        main(EXPERIMENT, [*words, "--seed", "1"])  # now it has one


def test_a_folder_of_cells_in_the_old_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results/cpu/start-0").mkdir(parents=True)
    (tmp_path / "results/cpu/start-0/a-0.json").write_text("{}")
    for path in (tmp_path / "results", tmp_path / "results.jsonl"):
        with pytest.raises(ConfigurationError, match="in the format before") as error:
            main(EXPERIMENT, ["table", "--results", str(path)])
        assert len(str(error.value).splitlines()) == 1


@pytest.mark.slow
def test_a_replay_compares_scores_and_hashes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.jsonl"
    cell = ["--results", str(path), "--arm", "a", "--start", "0", "--seed", "0"]

    def replayed(*more: str) -> str:
        capsys.readouterr()
        status = main(EXPERIMENT, ["replay", *cell, *more])
        line = capsys.readouterr().out.splitlines()[-1]
        assert status == int("differs" in line)
        return line.removeprefix("a, warm start 0, seed 0: ")

    with pytest.raises(ConfigurationError, match="no cell of a, warm start 0, seed 0"):
        replayed()
    main(EXPERIMENT, ["run", *cell])
    assert replayed("--model", str(tmp_path / "model")) == "equal"
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert (tmp_path / "cache/made_up/a-0-0.jsonl").read_text() == '{"task": 0}\n'
    FACTS["curve"] = [{"step": 5, "a": "11"}]
    assert replayed() == "differs in curve"
    FACTS.update({"curve": [{"step": 5, "a": "01"}], EPISODES: [{"task": 1}], "weight": 0.5})
    assert replayed() == "differs in weights, episodes"
    shared, line = path.read_text().splitlines()
    path.write_text(f"{shared}\n{json.dumps(json.loads(line) | {'weights': None})}\n")
    del FACTS[EPISODES]
    assert replayed() == "equal (not recorded: weights)"


TAUGHT: list[Path] = []


@dataclass(frozen=True)
class Copied:
    """Teaches what the package's own model knows, but for one weight."""

    weight: float = 0.0

    def teach(self, folder: Path) -> dict[str, Any]:
        TAUGHT.append(folder)
        model = load_start(SHIPPED)
        with torch.no_grad():
            next(model.parameters()).fill_(self.weight)
        save_half(model, AutoTokenizer.from_pretrained(SHIPPED), folder)
        return {}


@pytest.mark.slow
def test_a_warm_start_is_taught_once_and_again_where_the_cached_one_has_other_weights(tmp_path: Path) -> None:
    TAUGHT.clear()
    starts = (Start(Copied()),)
    taught = replace(EXPERIMENT, profiles={"cpu": replace(PROFILE, starts=starts)})
    cell = ["--results", str(tmp_path / "results.jsonl"), "--arm", "a", "--seed", "0"]
    assert main(taught, ["run", *cell]) == main(taught, ["replay", *cell]) == 0
    assert len(TAUGHT) == 1
    [folder] = (tmp_path / "cache/made_up").glob("start-????????")
    shutil.rmtree(folder)
    Copied(weight=1.0).teach(folder)  # as code that has changed would
    assert main(taught, ["replay", *cell]) == 0
    assert len(TAUGHT) == 3


def test_an_arm_can_have_warm_starts_of_its_own() -> None:
    arms = {"a": Arm("as the profile's"), "b": Arm("other", start={"weight": 2.0})}
    experiment = replace(EXPERIMENT, arms=arms)
    profile = replace(PROFILE, starts=(Start(Copied(1.0)),))
    assert [experiment.teaching(profile, arm, 0) for arm in arms] == [Copied(1.0), Copied(2.0)]


def test_the_best_weights_on_validation_questions_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(1, 1)
    scores = iter(("0011", "1110", "1011", "0000"))
    monkeypatch.setattr(Policy, "play", lambda *_: next(scores))
    monkeypatch.setattr("benchmarks.common.policy.marks", lambda played: played)
    meter = Meter(Policy(model, None, 0), {"a": {}}, questions=4, every=2, keep_best=True)
    for step in range(8):
        torch.nn.init.constant_(model.weight, step)
        meter.on_step_end(None, TrainerState(global_step=step + 1), TrainerControl())
    assert (meter.best_step, meter.best["weight"].item()) == (4, 3.0)
