"""Cells of a pretrained model: the commands of an arm, shared folders, what a replay compares."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch

from agent_r1_gym.cli.main import build_parser
from agent_r1_gym.cli.main import main as agent_r1
from agent_r1_gym.core.types import Message, Task
from agent_r1_gym.envs.bfcl.env import BFCLEnv
from agent_r1_gym.envs.bfcl.tasks import FunctionCallingTask
from agent_r1_gym.envs.maths.env import SVAMPEnv
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.registry import make_tool_env
from agent_r1_gym.run.evaluation.run_folder import RunFolder
from agent_r1_gym.run.record import Trajectory
from benchmarks.common import commands, experiment
from benchmarks.common.commands import (
    CONTROLS,
    COSTS,
    DATA,
    MODEL,
    CommandProfile,
    Commands,
    Pretrained,
    _cost,
    _execute,
)
from benchmarks.common.experiment import Arm, Run, Start, main
from benchmarks.common.policy import Policy
from benchmarks.common.results import WEIGHTS_AFTER, read_results
from benchmarks.learning.context import settings as context
from benchmarks.learning.function_calling import get_data as bfcl_data
from benchmarks.learning.function_calling import settings as function_calling
from benchmarks.learning.hotpotqa import get_data as hotpotqa_data
from benchmarks.learning.hotpotqa import settings as hotpotqa
from benchmarks.learning.nested_arithmetic import settings as nested_arithmetic
from benchmarks.learning.word_problems import calls
from benchmarks.learning.word_problems import settings as word_problems
from benchmarks.learning.word_problems.controls import ChangedResultsEnv, WithoutQuestionEnv
from benchmarks.learning.word_problems.settings import ARMS, EXPERIMENT, PROFILES
from tests.kit.chat_families import FAMILIES
from tests.kit.data import shared_file
from tests.kit.preloaded import programs
from tests.kit.samples import samples
from tests.test_docs import trained
from trainers.toy.model import build_model

PRETRAINED = {
    each.EXPERIMENT.name: each.EXPERIMENT
    for each in (word_problems, nested_arithmetic, hotpotqa, function_calling, context)
}


@pytest.mark.parametrize("name", PRETRAINED)
def test_arms_are_data_and_differ(name: str) -> None:
    experiment = PRETRAINED[name]
    commands = [arm.learn for arm in experiment.arms.values()]
    assert all(isinstance(each, Commands) for each in commands)
    assert len({str(each) for each in commands}) == len(commands)
    named = {name for family in experiment.contrasts.values() for one in family for name in (one.ours, one.theirs)}
    assert named <= set(experiment.arms)
    assert all(isinstance(profile, CommandProfile) for profile in experiment.profiles.values())


@pytest.mark.parametrize(
    ("name", "arm"), [(name, arm) for name, experiment in PRETRAINED.items() for arm in experiment.arms]
)
def test_the_commands_of_an_arm_are_understood(name: str, arm: str) -> None:
    profile: Any = PRETRAINED[name].profiles["cpu"]
    known = {"steps": 1, "seed": 0, "data": "data", "model": "model", **profile.words}
    commands: Any = PRETRAINED[name].arms[arm].learn
    for command, *words in ([word.format_map(known) for word in step] for step in commands.steps):
        trained(command, words)
    evaluation = [word.format_map(known) for word in (*commands.test, "--split", "test", "--questions", "4")]
    assert build_parser("eval").parse_args(evaluation).questions == 4


def test_the_recipe_has_the_options_of_the_experiment() -> None:
    """`examples/smollm2/run.sh` is what users copy; the arm `grpo` is what is measured."""
    text = (Path(__file__).parents[2] / "examples" / "smollm2" / "run.sh").read_text().replace("\\\n", " ")
    typed = [shlex.split(line) for line in text.splitlines() if line.strip().startswith("agent-r1 ")]
    recipe = {command: words for _, command, *words in typed}
    commands: Any = ARMS["grpo"].learn
    known = {"steps": "$steps", "seed": "$seed", "data": "$data", "model": "", **PROFILES["cpu"].words}
    places = {"--model", "--warm-start", "--out", "--episodes", "--max-steps", "--questions", "--max-concurrent"}
    # The rate is the default, and so is storing activations where they fit.
    ignored = {*places, "--per-device-eval-batch-size", "--max-prompt-length", "--split", "--save-steps"}
    ignored |= {"--save-total-limit", "--learning-rate", "--gradient-checkpointing"}

    def pairs(words: list[str]) -> set[tuple[str, str]]:
        options = {(a, b) for a, b in itertools.pairwise(words) if a.startswith("--")}
        return {(a, b) for a, b in options if a not in ignored and not a.startswith("--eval")}

    for command, *words in (*commands.steps, commands.test):
        expected = pairs([word.format_map(known) for word in words])
        if command == "train":
            expected.discard(("--option", "tool_style=signature"))  # the warm start brings it
        assert pairs(recipe[command]) == expected, command


def execute_preloaded(argv: Sequence[str], folder: Path) -> None:
    """Executes a command of `agent-r1` without the seconds that importing torch takes."""
    subprocess.run([programs() / "agent-r1", *argv], check=True)
    (folder / "cost.json").write_text(json.dumps({"wall": len(argv), "cpu": 1.0, "gib": 1.0}))


def test_without_a_model_it_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MODEL, raising=False)
    with pytest.raises(ConfigurationError, match=f"Set {MODEL} to the folder or the GGUF file of Smol"):
        Pretrained("Smol").teach(tmp_path)
    monkeypatch.setenv(MODEL, "missing.gguf")
    with pytest.raises(ConfigurationError, match=r"There is no file or folder missing\.gguf"):
        Pretrained("Smol").teach(tmp_path)


def test_each_model_has_a_cached_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their name is that of the teaching (`Teaching`): by what is in the files, not by where they are."""
    names = {}
    for name, content in (("a", b"one"), ("b", b"two"), ("c", b"one")):
        (tmp_path / name).write_bytes(content)
        monkeypatch.setenv(MODEL, str(tmp_path / name))
        names[name] = repr(Pretrained("Smol"))
    assert names["a"] == names["c"] != names["b"]
    assert str(tmp_path) not in names["a"]


def test_other_data_or_another_model_are_not_taken_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed: list[str] = []

    def execute(argv: Sequence[str], folder: Path) -> None:
        executed.append(folder.name)
        folder.mkdir(parents=True)
        (folder / "cost.json").write_text(json.dumps({"wall": 1.0, "cpu": 1.0, "gib": 1.0}))

    monkeypatch.setattr(commands, "_execute", execute)
    monkeypatch.setattr(commands.AutoModelForCausalLM, "from_pretrained", lambda *_args, **_: torch.nn.Linear(1, 1))
    monkeypatch.delenv("AGENT_R1_SHARED", raising=False)
    script, model = tmp_path / "get_data.py", tmp_path / "start"
    model.mkdir()
    profile = CommandProfile(starts=(Start(),), seeds=(0,), steps=1)

    def make(weights: str, rows: str, words: str = "") -> str:
        (model / "weights").write_text(weights)
        (model / "start.json").write_text(f"made now, {len(executed)}")  # another day is not another model
        script.write_text(
            "import pathlib, sys; folder = pathlib.Path(sys.argv[1]); folder.mkdir(); "
            f"(folder / 'train').write_text({rows!r} + ''.join(sys.argv[2:]))"
        )
        learn = Commands([("sft", "--dataset", "{data}", "--model", "{model}")], (), f"{script} {words}")
        run = Run(
            profile, Arm("a", learn=learn), Start(), 0, Policy(None, None, 0), tmp_path, model, tmp_path / "cache"
        )
        return str(learn(run)[1][DATA])

    first = make("1", "1")
    assert (make("1", "1"), len(executed)) == (first, 1)
    assert (make("2", "1"), len(executed)) == (first, 2)
    assert make("1", "2") != first
    assert make("1", "1", "--split-by text") != first
    assert len({*executed}) == len(executed) == 4
    assert (make("1", "1"), len(executed)) == (first, 4)
    [folder] = {path.parent for path in (tmp_path / "cache").glob("data-*/train") if path.read_text() == "1"}
    (folder / "train").write_text("edited")
    assert make("1", "1") != first
    assert len(executed) == 5


def made_up_execute(executed: list[list[str]]) -> Callable[[Sequence[str], Path], None]:
    """Executes no command, but leaves weights and an evaluation."""

    def execute(argv: Sequence[str], folder: Path) -> None:
        executed.append([*argv])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").touch()
        (folder / "model.safetensors").write_text(" ".join(argv[: argv.index("--out")]))
        (folder / "cost.json").write_text(json.dumps({"wall": 1.0, "cpu": 1.0, "gib": 1.0}))

    return execute


def learned(learn: Commands, seed: int, cache: Path) -> dict[str, Any]:
    (cache / "start").mkdir(parents=True, exist_ok=True)
    profile = CommandProfile(
        starts=(Start(),),
        seeds=(0,),
        steps=1,
        tests={"t": {"split": "test"}},
        test_measures={"number": lambda episodes: len([*episodes])},
    )
    run = Run(profile, Arm("a", learn=learn), Start(), seed, Policy(None, None, 0), cache, cache / "start", cache)
    return learn(run)[1]


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that were executed, which do nothing and solve two tasks."""
    found: list[list[str]] = []
    monkeypatch.setattr(commands, "_execute", made_up_execute(found))
    monkeypatch.setattr(commands.AutoModelForCausalLM, "from_pretrained", lambda *_args, **_: torch.nn.Linear(1, 1))
    episodes = [Trajectory(task_index=index, scores={"em": 1.0}) for index in range(2)]
    monkeypatch.setattr(RunFolder, "episodes", lambda _: episodes)
    return found


def test_an_arm_without_training_is_evaluated_once_for_all_seeds(tmp_path: Path, executed: list[list[str]]) -> None:
    untrained = Commands((), ("eval", "SVAMP", "--policy", "base:local:{model}"), "")
    cells = [learned(untrained, seed, tmp_path) for seed in (0, 1, 2)]
    assert len(executed) == 1 and cells[0] == cells[1] == cells[2]
    assert cells[0]["exact"] == {"t": "11"} and cells[0]["number"] == 2 and WEIGHTS_AFTER not in cells[0]
    trained = Commands([("sft", "SVAMP", "--seed", "{seed}")], ("eval", "{model}"), "")
    for seed in (0, 1):
        learned(trained, seed, tmp_path)
    assert [words[0] for words in executed[1:]] == ["sft", "eval"] * 2


def test_cells_name_the_weights_after_each_command(tmp_path: Path, executed: list[list[str]]) -> None:
    cold, test = ("sft", "SVAMP", "--seed", "{seed}"), ("eval", "{model}")
    arms = [Commands(steps, test, "") for steps in ([cold], [cold, ("train", "SVAMP", "--warm-start", "{model}")])]
    sft, grpo = (learned(arm, 0, tmp_path / str(number))[WEIGHTS_AFTER] for number, arm in enumerate(arms))
    assert (sft.keys(), grpo.keys()) == ({"1 sft"}, {"1 sft", "2 train"})
    assert sft["1 sft"] == grpo["1 sft"] != grpo["2 train"]
    assert learned(arms[0], 1, tmp_path)[WEIGHTS_AFTER] != sft


def test_a_cold_start_that_was_stopped_while_it_was_saved_begins_anew(
    tmp_path: Path, executed: list[list[str]]
) -> None:
    learn = Commands([("sft", "SVAMP"), ("train", "SVAMP")], ("eval", "{model}"), "")
    learned(learn, 0, tmp_path)
    for name in ("sft", "train"):
        [folder] = (path for path in tmp_path.glob(f"{name}-0-*") if path.is_dir())
        (folder / "cost.json").unlink()
        (folder / "left").touch()
    learned(learn, 0, tmp_path)
    assert [words[0] for words in executed] == ["sft", "train", "eval", "sft", "train"]
    left = {path.parent.name.partition("-")[0] for path in tmp_path.glob("*/left")}
    assert left == {"train"}  # it resumes by itself


def test_data_that_cannot_be_fetched_are_named_in_a_line(
    tmp_path: Path, executed: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENT_R1_SHARED", raising=False)
    (tmp_path / "get_data.py").write_text("raise SystemExit('no network')")
    with pytest.raises(ConfigurationError, match=r"get_data\.py ended with status 1 .* set AGENT_R1_SHARED to"):
        learned(Commands((), ("eval", "SVAMP"), str(tmp_path / "get_data.py")), 0, tmp_path)
    assert not executed


def test_without_a_network_the_scripts_say_what_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(SystemExit, match=r"566 MB\) from http.*: no route to host\. .* --from FOLDER"):
        list(hotpotqa_data.rows(None))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    with pytest.raises(SystemExit, match=r"pip cannot download bfcl-eval==.* --from FOLDER/bfcl_eval/data"):
        bfcl_data.downloaded()


def test_cold_starts_of_context_have_about_equal_steps() -> None:
    """A step takes so many rows, and an episode has as many as it has contexts."""
    contexts = {"append": 1.0, "window": 4.0, "summary": 5.0, "notes": 9.5}
    steps = {name: -(-math.ceil(200 * contexts[name] / 8) // context.CONTEXTS[name][3]) for name in contexts}
    assert steps == {"append": 25, "window": 25, "summary": 25, "notes": 24}


def test_f1_is_that_of_each_answer() -> None:
    answers = [{"em": 0.0, "f1": 2 / 3}, {"em": 1.0, "f1": 1.0}, {}]
    assert hotpotqa.f1_scores([Trajectory(scores=scores) for scores in answers]) == [0.667, 1.0, 0.0]


@pytest.mark.slow
def test_costs_are_those_of_one_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command after a larger one does not have the memory of both; a failed one leaves no cost."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "agent_r1_gym.py").write_text(
        "import sys; x = bytearray(int(sys.argv[1])); sys.exit(len(x) == 3)"
    )
    monkeypatch.chdir(tmp_path / "fake")  # `-m` looks here first
    sizes = {}
    for name, size in (("large", 200_000_000), ("small", 1)):
        (tmp_path / name).mkdir()
        _execute([str(size)], tmp_path / name)
        sizes[name] = _cost(tmp_path / name)["gib"]
    assert sizes["large"] - sizes["small"] > 0.15
    (tmp_path / "failed").mkdir()
    with pytest.raises(ConfigurationError, match="agent-r1 3 ended with status 1"):
        _execute(["3"], tmp_path / "failed")
    assert list((tmp_path / "failed").iterdir()) == []


def problems(folder: Path) -> None:
    """MAWPS and SVAMP as they are published, but short."""
    folder.mkdir(parents=True)
    for part, first in (("singleop", 2), ("addsub", 22), ("singleeq", 42), ("multiarith", 62)):
        rows = [
            {"input": f"Ann has {n} pens and buys 100. How many?", "target": n + 100} for n in range(first, first + 20)
        ]
        (folder / f"{part}_20.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    row = {"Question": "How many are left?", "Equation": "( 30.0 - 7.0 )", "Answer": 23.0, "Type": "Subtraction"}
    tested = [{**row, "ID": f"chal-{n}", "Body": f"Bo has 30 cups and breaks 7 on day {n}"} for n in range(8)]
    (folder / "svamp_8.json").write_text(json.dumps(tested))


def get_word_problems(source: Path, folder: Path, *words: str) -> dict[str, list[str]]:
    """Texts by split, as the script of the recipe writes them."""
    script = Path(__file__).parents[2] / "examples" / "smollm2" / "get_data.py"
    subprocess.run([sys.executable, str(script), str(folder), "--from", str(source), *words], check=True)
    rows = {split: (folder / f"{split}.jsonl").read_text().splitlines() for split in ("train", "validation")}
    return {split: [json.loads(row)["input"] for row in lines] for split, lines in rows.items()}


def test_word_problems_are_split_as_published_or_by_text(tmp_path: Path) -> None:
    """By text, problems that differ in their numbers alone are in one file, and a comma makes no other number."""
    problems(tmp_path / "source")
    stories = [f"{name} has {{}} cats and buys {{}}. How many?" for name in ("Al", "Bo", "Cy", "Di", "Ed", "Flo")]
    numbers = [("1,200", 7), ("1200", 7), *((n, 2 * n) for n in range(10))]
    rows = [{"input": story.format(*pair), "target": 0} for story in stories for pair in numbers]
    (tmp_path / "source" / "singleop_20.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for words, copies in (((), 1), (("--split-by", "problem"), 1), (("--split-by", "text"), 0)):
        parts = get_word_problems(tmp_path / "source", tmp_path / "-".join(("data", *words)), *words)
        texts = [*parts["train"], *parts["validation"]]
        assert len(texts) == len({*texts}) == 60 + len(stories) * (11 + copies)
        assert sum("1,200" in text or "1200" in text for text in texts) == len(stories) * (1 + copies)
        kinds = {part: {re.sub(r"[\d,]+", "0", text) for text in part_texts} for part, part_texts in parts.items()}
        assert bool(kinds["train"] & kinds["validation"]) is bool(copies)
        assert len(parts["validation"]) >= len(texts) // 2


def test_the_published_word_problems_can_be_made_again(tmp_path: Path) -> None:
    source = shared_file("singleop_562.jsonl").parent
    parts = get_word_problems(source, tmp_path / "data")
    assert {part: len(texts) for part, texts in parts.items()} == {"train": 1665, "validation": 200}
    hashes = {
        "train": "d19d1eb7534701129738b289c3c023df4259f14ddbccaa815f21097e0606b02a",
        "validation": "2cfb27a7827ea89681cb60827c64cf69f882c75e94fc3796c890bc631e80bc70",
    }
    for part, expected in hashes.items():
        assert hashlib.sha256((tmp_path / "data" / f"{part}.jsonl").read_bytes()).hexdigest() == expected


def test_questions_about_one_item_are_a_cluster() -> None:
    """Of the test questions of `context`, which are of the ledgers that its commands name."""
    profile = context.PROFILES["gpu"]
    options = {**profile.tests["LongRead"], **profile.starts[0].env}
    assert {word for word in context.RECIPE.options if word.startswith(("pages", "facts"))} == {"pages=5", "facts=4"}
    assert profile.starts[0].env == {"pages": 5, "facts": 4}
    assert callable(context.EXPERIMENT.cluster)
    env = make_tool_env(profile.env, options)
    assert len({context.EXPERIMENT.cluster(env, index) for index in range(profile.test_questions)}) == 266


def test_the_questions_of_hotpotqa_are_found_or_missed(tmp_path: Path) -> None:
    script = Path(hotpotqa.__file__).with_name("get_data.py")
    splits = json.loads(script.with_name("questions.json").read_text())
    assert {split: len(ids) for split, ids in splits.items()} == {"train": 220, "validation": 30, "test": 50}
    names = [name for ids in splits.values() for name in ids]
    assert len({*names}) == 300
    for folder, known in (("whole", ["other", *reversed(names)]), ("part", names[:-1])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "hotpot_train.json").write_text(json.dumps([{"_id": name} for name in known]))
        words = [sys.executable, str(script), str(tmp_path / "data"), "--from", str(tmp_path / folder)]
        done = subprocess.run(words, capture_output=True, text=True)
        if folder == "whole":
            assert "220 train, 30 validation, 50 test questions" in done.stdout
            written = {split: json.loads((tmp_path / "data" / f"{split}.json").read_text()) for split in splits}
            assert {split: [row["_id"] for row in rows] for split, rows in written.items()} == splits
        else:
            assert f"1 of 300 questions are not there, such as {names[-1]}" in done.stderr


def test_the_rows_of_bfcl_are_those_of_one_version(tmp_path: Path) -> None:
    script = Path(function_calling.__file__).with_name("get_data.py")

    def write(source: Path, folder: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, str(script), str(tmp_path / folder), "--from", str(source)]
        return subprocess.run(words, capture_output=True, text=True)

    (tmp_path / "other" / "bfcl").mkdir(parents=True)
    assert (
        "has neither BFCL_v4_simple_python.json nor bfcl_v4_simple_python.jsonl"
        in write(tmp_path / "other", "a").stderr
    )
    rows = shared_file("bfcl/bfcl_v4_simple_python.jsonl").parent
    for path in rows.glob("bfcl_v4_*.jsonl"):
        (tmp_path / "other" / "bfcl" / path.name).write_bytes(path.read_bytes())
    assert "7 files" in write(tmp_path / "other", "data").stdout
    assert "7 files" in write(tmp_path / "data", "again").stdout  # under their own names
    changed = tmp_path / "other" / "bfcl" / "bfcl_v4_multiple.jsonl"
    changed.write_bytes(changed.read_bytes() + b"\n")
    assert "BFCL_v4_multiple.json is of another version" in write(tmp_path / "other", "b").stderr
    assert not (tmp_path / "b").exists()

    env = BFCLEnv(dataset=tmp_path / "data", category=[*function_calling.CATEGORIES], split="test")
    for category, part in function_calling.CATEGORIES.items():
        for index in range(part.start, part.stop):
            env.reset(options={"task_index": index})
            assert isinstance(env.task, FunctionCallingTask) and env.task.category == category
    names = [{each["name"] for each in task.functions} for task in env.tasks if isinstance(task, FunctionCallingTask)]
    groups = function_calling.GROUPS
    assert len(names) == len(groups) == 86 and len({*groups}) == 73
    for (one, a), (other, b) in itertools.combinations(zip(names, groups, strict=True), 2):
        assert not one & other or a == b


def test_a_problem_without_its_question(tmp_path: Path) -> None:
    problems(tmp_path / "data")
    env = WithoutQuestionEnv(dataset=tmp_path / "data" / "svamp_8.json", split="test")
    observation, _ = env.reset(options={"task_index": 2})
    assert "Bo has 30 cups and breaks 7 on day 2." in observation
    assert "How many are left" not in observation
    for text, expected in (
        ("It costs 3.5 dollars. If she has 9.25 dollars, how many?", "It costs 3.5 dollars."),
        ("How many are 3 and 4?", "How many are 3 and 4?"),
    ):
        assert env.task_prompt(Task(id="1", prompt=text, answers=("1",))) == expected


@samples("answer", ["23", "changed", "31"])
def test_an_answer_follows_a_changed_result_or_does_not(tmp_path: Path, answer: str) -> None:
    problems(tmp_path / "data")
    env = ChangedResultsEnv(dataset=tmp_path / "data" / "svamp_8.json", split="test")
    usual = SVAMPEnv(dataset=tmp_path / "data" / "svamp_8.json", split="test")
    assert env.reset(seed=0)[0] == usual.reset(seed=0)[0]  # it looks the same
    call = '<tool_call>{"name": "calculator", "arguments": {"expression": "30 - 7"}}</tool_call>'
    env.step(call)
    (outcome,) = env.transitions[-1].outcomes
    assert 24 <= int(outcome.content) <= 32
    given = outcome.content if answer == "changed" else answer
    env.step(f"<answer>{given}</answer>")
    assert env.success(env.task, env.transitions) == float(given == outcome.content)


def test_an_answer_without_a_call_follows_no_result(tmp_path: Path) -> None:
    problems(tmp_path / "data")
    env = ChangedResultsEnv(dataset=tmp_path / "data" / "svamp_8.json", split="test")
    env.reset(seed=0)
    env.step("<answer>23</answer>")
    assert env.success(env.task, env.transitions) == 0.0


@pytest.mark.parametrize(
    ("result", "answer", "kind"),
    [
        ("23", "23", "copied"),
        ("7/3 = 2.33333333333", "7/3", "copied"),
        ("7/3 = 2.33333333333", "2.33333333333", "copied"),
        ("-4", "4", "without its sign"),
        ("-4", "-4", "copied"),
        ("-7/3 = -2.33333333333", "2.33333333333", "without its sign"),
        ("-7/3 = -2.33333333333", "7/3", "without its sign"),
        ("469/228 = 2.05701754386", "469", "numerator"),
        ("469/228 = 2.05701754386", "2.06", "other"),
        ("23", None, "other"),
        (None, "23", "no result"),
    ],
)
def test_an_answer_is_compared_with_the_last_result(result: str | None, answer: str | None, kind: str) -> None:
    messages = [Message("user", "How many?"), *([Message("tool", "5"), Message("tool", result)] if result else [])]
    assert calls.kind_of_answer(Trajectory(answer=answer, messages=tuple(messages))) == kind


def test_shares_are_by_the_numbers_of_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problems(tmp_path / "data")
    words = ["--dataset", str(tmp_path / "data" / "svamp_8.json"), "--split", "test", "--questions", "4"]
    assert agent_r1(["eval", "SVAMP", "--policy", "oracle", *words, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert calls.main([str(tmp_path / "run")]) == 0
    # Three numbers in the text (30, 7, the day), two in the call, whose difference is the answer.
    assert capsys.readouterr().out.splitlines()[-1] == (
        "| run | 1.000 | - | 1.000 | - | 0.000 | - | 1.000 | 0.000 | 0.000 | 0.000 | 0.000 | 1.000 |"
    )


def test_the_difference_of_the_first_two_numbers_has_no_sign() -> None:
    assert calls.difference("1,007 and 0.7, then 5") == Decimal("1006.3")
    assert calls.difference("3 and 10") == 7
    assert calls.difference("3 alone") is None


def test_the_chart_is_that_of_the_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not EXPERIMENT.results("gpu").exists():
        pytest.skip("results are in the repository, not in the source distribution")
    committed = word_problems.CHART.read_text()
    monkeypatch.setattr(word_problems, "CHART", tmp_path / "chart.svg")
    assert main(EXPERIMENT, ["chart"]) == 0
    assert (tmp_path / "chart.svg").read_text() == committed
    with pytest.raises(ConfigurationError, match="that of the profile gpu: leave --profile out"):
        main(EXPERIMENT, ["chart", "--profile", "cpu"])
    with pytest.raises(ConfigurationError, match="has no cells of sft, grpo, rejection, which the chart shows: run"):
        main(EXPERIMENT, ["chart", "--results", str(tmp_path / "none.jsonl")])


@pytest.mark.slow
def test_cells_are_commands_that_share_what_they_have_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer = FAMILIES["SmolLM2, InternLM and other ChatML"].tokenizer(tmp_path / "model")
    model = build_model(tokenizer)
    model.config.max_position_embeddings = 8192
    model.save_pretrained(tmp_path / "model")
    problems(tmp_path / "shared" / "data")
    monkeypatch.setattr(experiment, "_CACHE", tmp_path / "cache")
    monkeypatch.setenv(MODEL, str(tmp_path / "model"))
    monkeypatch.setenv("AGENT_R1_SHARED", str(tmp_path / "shared"))
    monkeypatch.setattr(commands, "_execute", execute_preloaded)
    path = tmp_path / "results.jsonl"
    words = ["--profile", "smoke", "--results", str(path)]
    arms = ("untrained", "sft", "grpo")
    assert main(EXPERIMENT, ["run", *words, *(word for arm in arms for word in ("--arm", arm))]) == 0
    _, cells = read_results(path)
    by_arm = {cell["arm"]: cell for cell in cells}
    assert by_arm.keys() == set(arms)
    assert [len(cell["exact"]["SVAMP"]) for cell in cells] == [4, 4, 4]
    assert by_arm["sft"]["weights"] != by_arm["untrained"]["weights"]  # a random model earns nothing: GRPO stands still
    assert len({cell["start_weights"] for cell in cells}) == 1
    assert by_arm["untrained"]["weights"] == by_arm["untrained"]["start_weights"]
    assert by_arm["grpo"][COSTS]["1 sft"] == by_arm["sft"][COSTS]["1 sft"]  # it ran once
    assert len({cell[DATA] for cell in cells}) == 1
    controls = {"without the question", "changed results"}
    assert by_arm["grpo"][COSTS].keys() == {"1 sft", "2 train", "eval SVAMP", *(f"eval {name}" for name in controls)}
    assert {name: len(marks) for name, marks in by_arm["grpo"][CONTROLS].items()} == dict.fromkeys(controls, 4)
    assert by_arm["grpo"][WEIGHTS_AFTER]["1 sft"] == by_arm["sft"][WEIGHTS_AFTER]["1 sft"]
    assert [step for step, _ in by_arm["grpo"]["validation"]] == [1]
    assert len(by_arm["grpo"]["training"]["reward"]) == 1
    assert str(tmp_path) not in path.read_text()
    assert str(Path(__file__).parents[2]) not in path.read_text()  # two machines have the same settings
    assert "which this command does not set" not in "".join(capfd.readouterr())  # controls have the prompt of the run
    assert main(EXPERIMENT, ["replay", *words, "--arm", "sft", "--start", "0", "--seed", "0"]) == 0
    printed = capfd.readouterr().out
    assert "seed 0: equal" in printed and "agent-r1 sft SVAMP" in printed  # it shared no folder and ran again
    assert main(EXPERIMENT, ["table", *words]) == 0
    assert "| 240 demonstrations, then GRPO | changed results | 0.000 |" in capfd.readouterr().out
