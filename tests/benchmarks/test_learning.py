"""The experiments on learning: every kind of cell runs and replays, arms differ where they say, tables count right."""

from __future__ import annotations

import functools
import inspect
import itertools
import random
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerControl, TrainerState

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.core.types import Message
from agent_r1_gym.envs.fiction_qa.dataset import fiction_dataset
from agent_r1_gym.envs.fiction_qa.env import FictionQAEnv
from agent_r1_gym.envs.long_read.dataset import LedgerTask
from agent_r1_gym.registry import make_text_env, make_tool_env
from agent_r1_gym.run.policies import OraclePolicy, ScriptPolicy
from agent_r1_gym.run.record import Trajectory
from agent_r1_gym.tools.search import NOTHING_FOUND
from benchmarks.common import experiment, policy
from benchmarks.common.contrasts import FIRST_PILOT_SEED, SIGNIFICANT, least_pairs
from benchmarks.common.experiment import Experiment, Run, WarmStart, main, make_cell
from benchmarks.common.policy import Policy, retries
from benchmarks.common.results import read_results
from benchmarks.common.tables import Cells
from benchmarks.learning.collapse.settings import EXPERIMENT as COLLAPSE
from benchmarks.learning.credit import warm_starts as credit
from benchmarks.learning.credit.settings import BY_TURN
from benchmarks.learning.credit.settings import EXPERIMENT as CREDIT
from benchmarks.learning.discovery.settings import EXPERIMENT as DISCOVERY
from benchmarks.learning.discovery.settings import HABITS
from benchmarks.learning.multihop_qa.searches import full_demonstrations, steps_to
from benchmarks.learning.multihop_qa.settings import EXPERIMENT as MULTIHOP
from benchmarks.learning.multihop_qa.settings import PAPER
from benchmarks.learning.privileged.settings import EXPERIMENT as PRIVILEGED
from benchmarks.learning.refill import rollout_budget as refill
from benchmarks.learning.refill.settings import EXPERIMENT as REFILL
from benchmarks.learning.retry.settings import EXPERIMENT as RETRY
from benchmarks.learning.retry.settings import WORLD
from benchmarks.learning.self_distillation import settings as self_distillation
from benchmarks.learning.self_distillation import warm_start as reader
from benchmarks.learning.self_distillation.settings import EXPERIMENT as SELF_DISTILLATION
from benchmarks.learning.steppo.settings import EXPERIMENT as STEPPO
from tests.benchmarks.cells import write
from tests.kit.helpers import play
from trainers.rollouts.chat_format import ChatFormat
from trainers.toy.demonstrations import demonstrate, demonstrations
from trainers.toy.model import (
    ANSWER_CLOSE,
    ANSWER_OPEN,
    CALL_CLOSE,
    CALL_OPEN,
    THINK_CLOSE,
    THINK_OPEN,
    build_tokenizer,
)
from trainers.toy.quickstart import SHIPPED
from trainers.toy.warm_start import warm_start

EXPERIMENTS = {
    each.name: each
    for each in (MULTIHOP, CREDIT, DISCOVERY, RETRY, REFILL, COLLAPSE, STEPPO, PRIVILEGED, SELF_DISTILLATION)
}


# --- cells ------------------------------------------------------------------------------------------------------------

SLOW = {
    "multihop_qa": ["naive-rag", "base", "grpo", "ppo-no-masks", "rejection", "demonstrations"],
    "credit": ["grpo", "ppo-turn"],
    "discovery": ["process"],
    "retry": ["check-5"],
    "refill": ["plain", "refill"],
    "self_distillation": ["demonstrations", "vocabulary"],
}
"""An arm of each kind, the last of which is replayed."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_cells_run_replay_and_make_tables(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiment, "_CACHE", tmp_path / "cache")
    path, each = tmp_path / "results.jsonl", EXPERIMENTS[name]
    words = ["--profile", "smoke", "--results", str(path)]
    arms = [word for arm in SLOW[name] for word in ("--arm", arm)]
    assert main(each, ["run", *words, "--start", "0", *arms]) == 0
    shared, cells = read_results(path)
    assert sorted(cell["arm"] for cell in cells) == sorted(SLOW[name])
    assert shared["made"][0]["commit"]
    capsys.readouterr()
    assert main(each, ["replay", *words, "--arm", SLOW[name][-1], "--start", "0", "--seed", "0"]) == 0
    assert ": equal" in capsys.readouterr().out
    assert main(each, ["table", *words]) == 0
    shown = capsys.readouterr().out
    assert all(each.arms[arm].title in shown for arm in SLOW[name])
    profile = each.profiles["smoke"]
    for cell in cells:
        for title, marks in cell.get("exact", {}).items():
            assert (title in profile.tests, len(marks)) == (True, profile.test_questions)
        if "curve" in cell:
            sets = refill.SETS if name == "refill" else profile.validation
            assert {len(point[title]) for point in cell["curve"] for title in sets} == {profile.validation_questions}


@pytest.mark.slow
def test_a_cell_is_made_again_bit_for_bit(tmp_path: Path) -> None:
    make = functools.partial(make_cell, MULTIHOP, MULTIHOP.profiles["smoke"], "grpo", 0)
    once, twice, other = (make(seed, SHIPPED, tmp_path / str(at)) for at, seed in enumerate((3, 3, 4)))
    rows, marks = once["episodes"], once["exact"]
    solved = [(row["set"], row["task"], int(row["solved"])) for row in rows]
    assert solved == [(title, at, int(mark)) for title, each in marks.items() for at, mark in enumerate(each)]
    assert once | {"cpu_seconds": 0} == twice | {"cpu_seconds": 0}
    assert other["weights"] != once["weights"]


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_committed_cells_are_all_that_the_settings_name(name: str) -> None:
    each = EXPERIMENTS[name]
    profile = each.profiles["cpu"]
    if not each.results("cpu").exists():
        pytest.skip("results are in the repository, not in the source distribution")
    _, cells = read_results(each.results("cpu"))
    planned = {
        (arm, start, seed) for arm in each.arms for start in range(len(profile.starts)) for seed in profile.seeds
    }
    assert {(cell["arm"], cell["start"], cell["seed"]) for cell in cells if cell["seed"] < FIRST_PILOT_SEED} == planned
    named = {name for family in each.contrasts.values() for one in family for name in (one.ours, one.theirs)}
    assert named | set(each.pilot) <= set(each.arms)


def run_of(each: Experiment, arm: str, scratch: Path, *, profile: str = "cpu", seed: int = 0) -> Run:
    scale = each.profiles[profile]
    return Run(scale, each.arms[arm], scale.starts[0], seed, Policy(None, build_tokenizer(), seed), scratch)


def test_every_row_of_the_paper_has_an_arm() -> None:
    assert MULTIHOP.arms.keys() >= PAPER.keys()
    gpu, cpu = MULTIHOP.profiles["gpu"], MULTIHOP.profiles["cpu"]
    [start] = gpu.starts
    assert isinstance(start.teaching, WarmStart)
    assert start.teaching.options.keys() <= inspect.signature(warm_start).parameters.keys()
    assert gpu.training["entities"] == 3 * cpu.training["entities"]
    assert list(gpu.tests) == list(cpu.tests)


def test_arms_of_ratios_and_of_privileged_information_are_what_they_say(tmp_path: Path) -> None:
    made = {arm: run_of(STEPPO, arm, tmp_path).args for arm in STEPPO.arms}
    assert {args.num_iterations for args in made.values()} == {2}
    by_turn = {arm for arm, args in made.items() if args.importance_sampling_level == "turn"}
    assert by_turn == {"ppo-ratio", "ppo-both", "steppo", "gagpo"}
    assert {arm for arm, args in made.items() if args.gae_level == "turn"} == {"ppo-advantage", "ppo-both"}
    made = {arm: run_of(PRIVILEGED, arm, tmp_path).args for arm in PRIVILEGED.arms}
    assert {args.critic_privileged for args in made.values()} == {None, "answer", "passages"}
    taught = {arm for arm, args in made.items() if args.distillation_weight}
    assert taught == {"grpo-teacher", "opd", "dgpo"}
    teachers = {Path(str(made[arm].teacher_model_name_or_path)).resolve() for arm in taught}
    assert teachers == {SHIPPED.resolve()}
    assert {run_of(PRIVILEGED, arm, tmp_path).training["reward"] for arm in PRIVILEGED.arms} == {"em"}


def test_a_batch_that_is_trained_on_twice_takes_two_steps() -> None:
    """A run has as many batches as one of `credit`, and is evaluated after the same ones."""
    for name, profile in STEPPO.profiles.items():
        credited, passes = CREDIT.profiles[name], profile.trainer["num_iterations"]
        assert profile.every is not None and credited.every is not None
        assert profile.steps == passes * credited.steps
        assert profile.every == passes * credited.every
        assert profile.trainer["warmup_steps"] == passes * credited.trainer["warmup_steps"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_planned_pairs_can_decide_what_is_tested_together(name: str) -> None:
    each = EXPERIMENTS[name]
    profile = each.profiles["cpu"]
    for family in each.contrasts.values():
        assert len(profile.starts) * len(profile.seeds) >= least_pairs(SIGNIFICANT / len(family))


def test_contrasts_of_privileged_have_equal_rollouts_and_the_hardest_questions() -> None:
    named = {arm for one in PRIVILEGED.contrasts["Contrasts"] for arm in (one.ours, one.theirs)}
    assert named == set(PRIVILEGED.arms) - {"grpo-refill"}
    assert all(len(profile.validation) == 1 for profile in PRIVILEGED.profiles.values())


def test_a_fixed_teacher_is_the_start_with_the_solution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}
    monkeypatch.setattr(self_distillation, "reinforce", lambda run: (None, {"args": run.args}))
    for name in SELF_DISTILLATION.arms:
        run = run_of(SELF_DISTILLATION, name, tmp_path)
        learns = run.arm.learn is self_distillation.taught_by_the_start
        made[name] = run.arm.learn(run)[1]["args"] if learns else run.args
    fixed = {name for name, args in made.items() if args.teacher_model_name_or_path == str(SHIPPED)}
    assert fixed == {"sampled", "vocabulary", "grpo-vocabulary"}
    taught = {name for name, args in made.items() if args.distillation_weight}
    assert taught == fixed | {"moving"}
    assert {made[name].teacher_privileged for name in taught} == {"solution"}
    assert {made[name].distillation_weight for name in taught} == {1.0}
    assert [made[name].distillation_placement for name in ("sampled", "vocabulary", "moving", "grpo-vocabulary")] == [
        *("advantage", "loss", "loss", "loss")
    ]
    assert {args.num_generations for args in made.values()} == {8}


def test_the_reader_of_solutions_sees_whole_chains_behind_them_alone() -> None:
    tokenizer = build_tokenizer()
    rows, lengths = reader.informed_rows(ChatFormat(tokenizer), seed=0), set()
    for row in itertools.islice(rows, 40):
        prefix, _, _ = tokenizer.decode(row["input_ids"]).partition("\n\n")
        learned = tokenizer.decode([token for token, label in zip(*row.values(), strict=True) if label == token])
        assert prefix.startswith("A correct solution takes these turns:")
        hidden = len(tokenizer(f"{prefix}\n\n", add_special_tokens=False)["input_ids"])
        assert set(row["labels"][:hidden]) == {-100}
        searches = re.findall(r'"query": "([^"]+)"', learned)
        assert searches == re.findall(r'"query": "([^"]+)"', prefix)
        lengths.add(len(searches))
    assert lengths == {1, 2, 3, 4}
    mix = dict.fromkeys(reader.ALONE, 0.5)
    alone = demonstrations(seed=0, mix=mix, habits=reader.ALONE)
    for messages in itertools.islice(alone, 80):
        calls = [
            message.content for message in messages if message.role == "assistant" and CALL_OPEN in message.content
        ]
        assert len({call.partition(CALL_OPEN)[2].split('"')[0] for call in calls}) <= 1


def test_arms_of_credit_differ_in_the_estimator_alone(tmp_path: Path) -> None:
    made = {arm: run_of(CREDIT, arm, tmp_path).args for arm in CREDIT.arms}
    for name, args in made.items():
        options = CREDIT.arms[name].trainer
        assert {key: getattr(args, key) for key in options} == dict(options)
        rate = 1e-3 if name.endswith("-fast") else 5e-4
        assert (args.num_generations, args.per_device_train_batch_size, args.learning_rate) == (8, 64, rate)
        assert (args.beta, args.gamma, args.loss_type, args.refill_groups) == (0.0, 1.0, "dapo", 0)
    rewards = {arm for arm in CREDIT.arms if run_of(CREDIT, arm, tmp_path).training["reward"] != "process"}
    assert rewards == {"grpo-outcome"}
    assert {made[name].lam for name in ("gagpo", "ppo", "ppo-turn")} == {0.95}
    assert [made[name].gae_level for name in ("ppo", "ppo-turn")] == ["token", "turn"]
    assert made["gagpo-returns"].lam == 1
    assert {one.ours for one in CREDIT.contrasts["Contrasts"] if one.theirs == "grpo"} == set(BY_TURN)


def test_no_question_of_the_tests_comes_down_to_what_training_asks_for() -> None:
    profile = CREDIT.profiles["cpu"]
    sets = [profile.training, profile.validation["validation"], profile.tests["test"]]

    def pairs(options: Mapping[str, Any]) -> set[Any]:
        env = make_text_env(profile.env, dict(options)).unwrapped
        assert isinstance(env, ToolEnv)
        tasks = [env.tasks[number] for number in range(200)]
        return {task.support[-1] for task in tasks if isinstance(task, LedgerTask)}

    train, curve, test = map(pairs, sets)
    assert not train & curve
    assert not train & test
    assert not curve & test
    env = make_text_env(profile.env, dict(sets[2])).unwrapped
    assert isinstance(env, ToolEnv)
    assert 10 <= len({credit.key_of(env, index) for index in range(profile.test_questions)}) <= 16


def test_rewards_of_discovery_differ_in_what_they_pay() -> None:
    weights = {}
    for name, arm in DISCOVERY.arms.items():
        options = {**DISCOVERY.profiles["cpu"].training, "questions": 8, **arm.env}
        env = make_tool_env("AgentR1/FictionQA-v0", options)
        weights[name] = tuple(sorted((term, weight) for term, weight in env.reward_weights.items() if weight))
    assert weights["em"] == (("em", 1.0),)
    assert weights["support"] == (("em", 1.0), ("new_support", 0.2))
    assert len(set(weights.values())) == len(DISCOVERY.arms)


def test_warm_starts_differ_in_their_seed_and_arms_of_retry_in_what_is_shown() -> None:
    starts = [start.teaching for start in DISCOVERY.profiles["cpu"].starts]
    options = [dict(each.options) for each in starts if isinstance(each, WarmStart)]
    assert [each.pop("seed") for each in options] == [0, 1, 2]
    assert options[0] == options[1] == options[2]
    shown = [RETRY.teaching(RETRY.profiles["cpu"], arm, start) for arm in RETRY.arms for start in range(3)]
    assert len(set(map(repr, shown))) == 3 * len(RETRY.arms)


# --- demonstrations ---------------------------------------------------------------------------------------------------


def test_full_demonstrations_are_right_and_as_many_as_a_run_sees_questions(tmp_path: Path) -> None:
    short = replace(run_of(MULTIHOP, "demonstrations", tmp_path), profile=replace(MULTIHOP.profiles["cpu"], steps=4))
    rows = full_demonstrations(short)
    assert len(rows) == 4 * 64 // 8
    env = make_tool_env("AgentR1/FictionQA-v0", short.training)
    gold = {question.prompt: question.answers[0] for question in env.tasks}
    for row in rows:
        text = short.policy.tokenizer.decode(row["input_ids"])
        [question] = [prompt for prompt in gold if f"user\n{prompt}<" in text]
        assert text.endswith(f"<answer>{gold[question]}</answer><|im_end|>")


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


def test_a_wanderer_whose_search_misses_answers_wrongly(bridges: FictionQAEnv) -> None:
    misses = FictionQAEnv(dataset=bridges.dataset, style="compact", wrong_rate=0.9)
    for index, question in enumerate(bridges.dataset):
        messages = demonstrate(misses, index, habit="wanders", rng=random.Random(index))
        assert messages[-1].content.removeprefix("<answer>").removesuffix("</answer>") not in question.answers


def _shown(habit: str, *, notes: bool) -> list[list[Message]]:
    env = FictionQAEnv(**{**WORLD, "max_turns": 12}, questions=60, mix={"bridge": 1.0})
    rng = random.Random(0)
    return [demonstrate(env, index, habit=habit, rng=rng, notes=notes) for index in range(60)]


@pytest.mark.parametrize("notes", [True, False])
def test_demonstrations_that_look_again_do_so_after_every_wrong_passage(notes: bool) -> None:
    histories = _shown("looks_again", notes=notes)
    counted = retries(Trajectory(messages=tuple(messages)) for messages in histories)["other_passages"]
    assert counted["turns"] == counted["same_query"] >= 20
    checks = sum(" : nothing ." in message.content for messages in histories for message in messages)
    assert bool(checks) == notes


def test_all_other_demonstrations_give_up_there() -> None:
    counted = retries(Trajectory(messages=tuple(messages)) for messages in _shown("full_chain", notes=True))
    assert counted["other_passages"]["turns"] >= 15
    assert counted["other_passages"]["same_query"] == 0


# --- what is counted --------------------------------------------------------------------------------------------------


def test_what_follows_a_search_that_missed_is_counted() -> None:
    def call(query: str) -> Message:
        return Message("assistant", f"{THINK_OPEN}so{THINK_CLOSE}{CALL_OPEN}{query}{CALL_CLOSE}")

    def reply(text: str) -> Message:
        return Message("tool", text)

    answer = Message("assistant", f"{ANSWER_OPEN}1804{ANSWER_CLOSE}")
    question, there = (
        Message("user", "birthyear of ana kovic ?"),
        reply("ana kovic : ana kovic or eno lund birthyear 1804 ."),
    )
    elsewhere, nothing = reply("ana daburg : ana daburg birthyear 1809 ."), reply(NOTHING_FOUND)
    histories = [
        (question, call("ana kovic"), there, answer),
        (question, call("eno lund"), there, call("ana kovic"), there, answer),  # the other name is there
        (question, call("ana kovic"), nothing, call("ana kovic"), nothing, call("kovic"), nothing, answer),
        (question, call("birthyear of ana kovic"), elsewhere, call("birthyear of ana kovic"), elsewhere, answer),
        (question, call("ana kovic"), elsewhere),  # its turns were used up
        (question, Message("assistant", CALL_OPEN), reply("error json"), call("ana kovic"), there, answer),
    ]
    counted = retries(Trajectory(messages=messages) for messages in histories)
    assert counted == {
        "nothing_found": {"turns": 3, "same_query": 1, "another_query": 1},
        "other_passages": {"turns": 2, "same_query": 1, "another_query": 0},
    }


def test_notes_and_turns_are_counted() -> None:
    make = functools.partial(make_text_env, credit.ENV, dict(CREDIT.profiles["cpu"].tests["test"]))
    readers, guessers = (play(policy, range(8), make) for policy in (OraclePolicy(), ScriptPolicy("guesser")))
    assert (credit.noted(readers), credit.turns(readers) > 5) == (1.0, True)
    assert (credit.noted(guessers), credit.turns(guessers)) == (0.0, 1.0)


def test_steps_to_a_level_are_counted_by_a_running_mean() -> None:
    assert steps_to([0, 0, 1, 1, 1, 1], 0.6) == 5
    assert steps_to([0.4] * 9, 0.5) is None
    assert steps_to([1.0] * 3, 0.5) is None


def test_discarded_rollouts_count() -> None:
    meter, control = refill.Meter(dict, batch=8, budget=32), TrainerControl()
    meter.measure()
    for refills, stops in ((0.5, False), (1.0, False), (0.0, True)):  # 12, 28 and 36 rollouts of batches of 8
        metrics: dict[str, Any] = {"group/frac_zero_std": 0.25, "rollout/resampled": refills}
        meter.on_log(None, TrainerState(), control, logs=metrics)
        assert control.should_training_stop is stops
    assert meter.points == [{"played": 0}, {"played": 12}, {"played": 28}, {"played": 36}]
    assert meter.signal == [0.75] * 3
    meter.on_log(None, TrainerState(), control, logs={"train_runtime": 1.0})
    assert len(meter.signal) == 3


# --- tables of made-up cells ------------------------------------------------------------------------------------------


def report(each: Experiment, path: Path) -> dict[str, list[str]]:
    """Rows of each table, by its title."""
    text = Cells(path, each, each.profiles["cpu"]).report()
    parts = (part.split("\n\n")[:2] for part in text.split("## ")[1:])
    return {title: table.splitlines() for title, table in parts}


def test_tables_of_discovery_show_ends_curves_and_when_a_chain_was_found(tmp_path: Path) -> None:
    for seed, last in ((0, "0111"), (1, "1000")):
        chains = {0: "0000", 10: "0100", 20: last}
        curve = [{"step": step, "1 hop": "1110", "2 hops": chain} for step, chain in chains.items()]
        write(tmp_path / "results.jsonl", {"arm": "em", "seed": seed, "curve": curve})
    tables = report(DISCOVERY, tmp_path / "results.jsonl")
    assert tables["Before and after"][2] == (
        "| outcome only | 2 | 0.00 (0.00 to 0.00) | 0.50 (0.25 to 0.75) | 0.75 (0.75 to 0.75) | 1 | 20 - |"
    )
    assert tables["Curves"][0] == "| 2 hops after steps | 0 | 10 | 20 |"
    assert tables["Curves"][2] == "| outcome only | 0.00 | 0.25 | 0.50 |"


def test_tables_of_retry_show_retries_and_scores_before_and_after(tmp_path: Path) -> None:
    def point(step: int, again: int, right: str) -> dict[str, Any]:
        counted = {"turns": 10, "same_query": again, "another_query": 0}
        sets = RETRY.profiles["cpu"].validation
        return {"step": step, **dict.fromkeys(sets, right), "retries": {"other_passages": counted}}

    for seed, again in ((0, 4), (1, 8)):
        curve = [point(0, 1, "0001"), point(10, again, "0011")]
        write(tmp_path / "results.jsonl", {"arm": "check", "seed": seed, "curve": curve})
    tables = report(RETRY, tmp_path / "results.jsonl")
    row = tables["Before and after"][2].split(" | ")
    assert row[1:4] == ["2", "0.10 (0.10 to 0.10)", "0.60 (0.40 to 0.80)"]
    assert row[4:6] == ["0.25 (0.25 to 0.25)", "0.50 (0.50 to 0.50)"]
    assert tables["Curves"][2] == f"| {RETRY.arms['check'].title} | 0.10 | 0.60 |"


@pytest.mark.slow
def test_tables_of_credit_weigh_area_and_end_by_their_own_questions(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    for start in range(3):
        for seed in (0, 1, 2, 100):
            for name, share in (("grpo", 0.5), ("grpo-outcome", 0.25)):
                half, end = (("1" * int(share * number)).ljust(number, "0") for number in (60, 200))
                curve = [{"step": 0, "validation": "1" * 60}]  # before the first step: not in the area
                curve += [{"step": step, "validation": half} for step in range(3, 25, 3)]
                facts: dict[str, Any] = {"noted": 0.5, "turns": 6.0, "cpu_seconds": 1.0}
                facts["training"] = {what: [0.5, 0.5] for what in credit.LOGGED}
                key = {"arm": name, "start": start, "seed": seed}
                write(path, {**key, "curve": curve, "exact": {"test": end}, **facts})
    tables = report(CREDIT, path)
    rows = [row.split(" | ") for row in tables["Arms"][2:]]
    assert [[cell[:5] for cell in row[2:4]] for row in rows] == [["0.250", "0.250"], ["0.500", "0.500"]]
    [line] = [line for line in tables["Contrasts"] if line.startswith("| process - outcome")]
    assert "| area | 9 | +0.250 " in line
    assert "| higher |" in line


def test_marks_are_in_the_order_of_the_tasks() -> None:
    """Episodes of `held_out.play` come as they end, and intervals compare cells question by question."""
    ended = [Trajectory(task_index=index, scores={"em": float(index != 1)}) for index in (2, 0, 3, 1)]
    assert policy.marks(ended) == "1011"


def test_scores_of_refill_are_over_kinds_seeds_and_questions() -> None:
    curves = [{"1hop": "10", "bridge": "00", "3hop": "11"}, {"1hop": "11", "bridge": "00", "3hop": "11"}]
    cells = [{"curve": [point]} for point in curves]
    assert refill.scores(cells, 0).mean == pytest.approx(7 / 12)
    assert refill.scores(cells, 0, ["bridge"]).mean == 0
    low, high = refill.scores(cells, 0)[1:]
    assert low < 7 / 12 < high
