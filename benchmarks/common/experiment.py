"""One runner for experiments on learning: arms x warm starts x seeds, each cell a line of the experiment's summary.

An experiment is data, `benchmarks/learning/NAME/settings.py`: how the arms learn and differ (`Arm`), at which scale
(`Profile`), which differences are tested (`Contrast`). A cell is an arm, a warm start and a seed: all arms of a warm
start and a seed begin with the same weights and see the same questions, so that they are compared in pairs. Scores,
seeds and hashes of a cell are a line of `results.jsonl` (`results.py`); models and episodes are not committed, a replay
makes them again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch
from transformers import AutoTokenizer

from agent_r1_gym.core.tool_env import ToolEnv
from agent_r1_gym.errors import ConfigurationError
from agent_r1_gym.support.files import atomic_directory, atomic_file, locked
from agent_r1_gym.support.terminal import print_line
from benchmarks.common.contrasts import Contrast
from benchmarks.common.measure import check_commit, commit, platform, provenance
from benchmarks.common.policy import (
    Measure,
    Meter,
    Policy,
    digest,
    episode_row,
    load_start,
    marks,
    on_device,
    save_half,
)
from benchmarks.common.results import (
    EPISODES,
    MADE,
    Cell,
    add_result,
    check_settings,
    episode_lines,
    plain,
    read_results,
    summarised,
)
from benchmarks.common.tables import Cells
from trainers.commands.train.building import build_trainer
from trainers.config.agent import AgentConfig
from trainers.toy.held_out import ENV
from trainers.toy.model import build_model, build_tokenizer
from trainers.toy.quickstart import SHIPPED, configuration
from trainers.toy.supervised import rejection_sampling
from trainers.toy.warm_start import warm_start

TIMES = frozenset({"cpu_seconds", "costs"})
"""What differs between two runs of a cell."""
_BENCHMARKS = Path(__file__).parents[1]
_CACHE = _BENCHMARKS.parent / "runs" / "benchmarks"
_LOCK_SECONDS = 6 * 3600.0
START_FACTS = "start.json"
"""File next to the model of a warm start: how, when and where it was made."""


# --- warm starts: the models that cells begin with --------------------------------------------------------------------


class Teaching(Protocol):
    """How a warm start is made; its `repr` names its cached folder."""

    def teach(self, folder: Path) -> Mapping[str, Any]:
        """Writes model and tokenizer into an empty folder; returns facts to keep next to them."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """A toy policy with random weights, taught by demonstrations (`trainers.toy.warm_start.warm_start`).

    Attributes:
        size: key of `trainers.toy.model.SIZES`.
        options: options of `warm_start` that differ from its defaults.
    """

    size: str
    options: Mapping[str, Any]

    def teach(self, folder: Path) -> Mapping[str, Any]:
        """Writes model and tokenizer; returns the training log."""
        tokenizer = build_tokenizer()
        model = on_device(build_model(tokenizer, size=self.size))
        log = warm_start(model, tokenizer, **self.options)
        save_half(model, tokenizer, folder)
        return {"log": log}


@dataclass(frozen=True, slots=True)
class Start:
    """A model that cells begin with.

    Attributes:
        teaching: how it is made; None: it is the toy policy that comes with the package.
        env: options of every environment, of training, validation and test.
    """

    teaching: Teaching | None = None
    env: Mapping[str, Any] = field(default_factory=dict)


# --- arms: how a cell learns ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One cell while it is made: what its arm learns from.

    Attributes:
        profile: scale of the experiment.
        arm: the arm.
        start: the warm start.
        seed: of training and of the samples in evaluations.
        policy: the model of the warm start.
        scratch: folder for temporary files.
        folder: of the warm start.
        cache: folder for what other cells can use again.
    """

    profile: Profile
    arm: Arm
    start: Start
    seed: int
    policy: Policy
    scratch: Path
    folder: Path = SHIPPED
    cache: Path = _CACHE

    @property
    def training(self) -> dict[str, Any]:
        """Options of the environment to train on."""
        return {**self.profile.training, **self.start.env, **self.arm.env}

    @cached_property  # another one would reset Accelerate's state under a trainer that exists
    def args(self) -> AgentConfig:
        """Configuration of the trainer; arms that do not use the trainer take budgets and tasks from it too."""
        options = {"algorithm": "grpo", "env_id": self.profile.env, **self.profile.trainer, **self.arm.trainer}
        options["env_kwargs"] = self.training
        return configuration(self.scratch, steps=self.profile.steps, seed=self.seed, **options)

    def build_trainer(self) -> Any:
        """The trainer of the policy."""
        return build_trainer(self.args, self.policy.model, tokenizer=self.policy.tokenizer)


Learn = Callable[[Run], tuple[Any, dict[str, Any]]]
"""Trains the policy of a run; returns the final model, and facts for the cell."""


def untrained(run: Run) -> tuple[Any, dict[str, Any]]:
    """Leaves the policy as it is."""
    return run.policy.model.eval(), {}


def reinforce(run: Run) -> tuple[Any, dict[str, Any]]:
    """Trains by reinforcement learning, with evaluations on the validation sets."""
    profile, trainer = run.profile, run.build_trainer()
    meter = Meter(
        run.policy._replace(model=trainer.model),
        {title: {**options, **run.start.env} for title, options in profile.validation.items()},
        questions=profile.validation_questions,
        every=profile.every,
        measures=profile.validation_measures,
        keep_best=profile.keep_best,
    )
    if profile.evaluate_first:
        meter.measure(0)
    trainer.add_callback(meter)
    trainer.train()
    facts: dict[str, Any] = {"curve": meter.points} if meter.points else {}
    if profile.summarise is not None:
        facts["training"] = profile.summarise(trainer.state.log_history)
    if not profile.tests:
        facts[EPISODES] = meter.rows()
    if profile.keep_best and meter.points:
        trainer.model.load_state_dict(meter.best)
        facts["best_step"] = meter.best_step
    return trainer.model.eval(), facts


def reject(run: Run) -> tuple[Any, dict[str, Any]]:
    """Learns by supervision from the successes among as many rollouts as reinforcement learning would play."""
    rejection_sampling(run.policy.model, run.policy.tokenizer, run.args, lr=run.profile.supervised_learning_rate)
    return run.policy.model.eval(), {}


@dataclass(frozen=True, slots=True)
class Arm:
    """A row of the tables.

    Attributes:
        title: its name there.
        trainer: fields of `AgentConfig` that differ from the profile's.
        env: options of the environment to train on that differ from the profile's.
        learn: how it learns.
        rag: whether the model is played as Naive RAG's reader, without tools.
        start: fields of the warm start's teaching that differ from the profile's.
    """

    title: str
    trainer: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, Any] = field(default_factory=dict)
    learn: Learn = reinforce
    rag: bool = False
    start: Mapping[str, Any] = field(default_factory=dict)


# --- scale, and the experiment ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One scale of an experiment.

    Attributes:
        starts: warm starts, crossed with the seeds.
        seeds: one cell per arm, warm start and seed.
        env: id of the environment.
        training: options of the environment to train on.
        steps: optimiser steps of a training run.
        trainer: fields of `AgentConfig` that differ from `trainers.toy.quickstart.configuration`.
        supervised_learning_rate: of arms that learn by supervision.
        validation: title to options of the environment, for evaluations while training.
        validation_questions: number of questions per validation set.
        validation_measures: by name, what is computed from the episodes of an evaluation, in addition to the marks.
        every: steps between two evaluations; None: there are none.
        evaluate_first: whether to evaluate before the first step too.
        keep_best: whether the weights of the best evaluation are the final ones, instead of the last.
        tests: title to options of the environment, for the final model; without any, the last evaluation counts.
        test_questions: number of questions per test set.
        test_measures: by name, what is computed from the episodes of all test sets, in addition to the marks.
        turn_tokens: maximum number of tokens of a turn in evaluations and tests.
        summarise: makes of the trainer's log what a cell keeps of it; None: nothing is kept.
    """

    starts: tuple[Start, ...] = (Start(),)
    seeds: tuple[int, ...]
    env: str = ENV
    training: Mapping[str, Any] = field(default_factory=dict)
    steps: int
    trainer: Mapping[str, Any] = field(default_factory=dict)
    supervised_learning_rate: float = 1e-3
    validation: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    validation_questions: int = 0
    validation_measures: Mapping[str, Measure] = field(default_factory=dict)
    every: int | None = None
    evaluate_first: bool = False
    keep_best: bool = False
    tests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    test_questions: int = 0
    test_measures: Mapping[str, Measure] = field(default_factory=dict)
    turn_tokens: int = 32
    summarise: Callable[[Sequence[Mapping[str, Any]]], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """An experiment, as data.

    Attributes:
        name: of its folder in `benchmarks/learning`.
        about: what it asks.
        arms: by name.
        profiles: by name; the cells of the first are committed.
        also_committed: names of further profiles whose cells are committed, each in a file of its own.
        contrasts: differences that are tested together, by title of their table.
        pilot: arms whose pilot cells (seeds of `FIRST_PILOT_SEED` and above) give the power of the experiment.
        cluster: of a task of an environment, by its number, what tasks that depend on each other have in common; or by
            title of a test set that of each of its questions; None: each task stands for itself.
        tables: titles and tables, in their order; None: arms and contrasts, power if there is a pilot.
        chart: writes a picture of the cells.
    """

    name: str
    about: str
    arms: Mapping[str, Arm]
    profiles: Mapping[str, Profile]
    also_committed: Sequence[str] = ()
    contrasts: Mapping[str, Sequence[Contrast]] = field(default_factory=dict)
    pilot: Sequence[str] = ()
    cluster: Callable[[ToolEnv, int], Hashable] | Mapping[str, Sequence[Hashable]] | None = None
    tables: Mapping[str, Callable[[Cells], str]] | None = None
    chart: Callable[[Cells], None] | None = None

    @property
    def cache(self) -> Path:
        """Folder of warm starts, of replayed episodes, and of cells that are not committed."""
        return _CACHE / self.name

    def results(self, profile: str) -> Path:
        """The file of a profile's cells."""
        if profile == next(iter(self.profiles)):
            return _BENCHMARKS / "learning" / self.name / "results.jsonl"
        if profile in self.also_committed:
            return _BENCHMARKS / "learning" / self.name / f"results-{profile}.jsonl"
        return self.cache / f"{profile}.jsonl"

    def teaching(self, profile: Profile, arm: str, start: int) -> Teaching | None:
        """How a warm start of an arm is made."""
        shared: Any = profile.starts[start].teaching  # a dataclass, where an arm changes it
        teaching: Teaching | None = replace(shared, **self.arms[arm].start) if self.arms[arm].start else shared
        return teaching


# --- commands ---------------------------------------------------------------------------------------------------------


def main(experiment: Experiment, arguments: Sequence[str]) -> int:
    """Runs cells, makes one of them again, or shows tables or the chart of those that are finished.

    Returns:
        the exit status.
    """
    first = next(iter(experiment.profiles))
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.learning {experiment.name}",
        description=experiment.about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("action", choices=["run", "replay", "table", *(["chart"] if experiment.chart else [])])
    parser.add_argument("--arm", action="append", choices=[*experiment.arms], help="may be repeated (default: all)")
    parser.add_argument("--start", action="append", type=int, help="warm start; may be repeated (default: all)")
    parser.add_argument("--seed", action="append", type=int, help="may be repeated (default: the profile's)")
    parser.add_argument(
        "--profile", choices=[*experiment.profiles], default=first, help="size of the experiment (default: %(default)s)"
    )
    parser.add_argument("--model", type=Path, help="replay: a new folder for the model of the cell")
    parser.add_argument(
        "--results", type=Path, help="file of the cells (default: the committed one; below runs/ if there is none)"
    )
    parser.add_argument(
        "--commit", help="run: commit of these files (default: asks git), for a copy that git does not know"
    )
    options = parser.parse_args(arguments)
    if options.commit and options.action != "run":
        parser.error("--commit goes with run")
    path = options.results or experiment.results(options.profile)
    if options.action in ("run", "replay"):
        return _run_or_replay(parser, options, experiment, path)
    if options.arm or options.seed or options.start or options.model:
        parser.error(f"{options.action} takes all cells there are: drop --arm, --start, --seed and --model")
    cells = Cells(path, experiment, experiment.profiles[options.profile])
    if options.action == "table":
        print_line(cells.report())
    elif experiment.chart:
        experiment.chart(cells)
    return 0


def _run_or_replay(
    parser: argparse.ArgumentParser, options: argparse.Namespace, experiment: Experiment, path: Path
) -> int:
    profile = experiment.profiles[options.profile]
    starts = range(len(profile.starts))
    if unknown := set(options.start or ()).difference(starts):
        parser.error(f"--start {min(unknown)}: there is no such warm start; there are {', '.join(map(str, starts))}")
    # All arms of a seed and a warm start before the next, so that a stopped run is balanced.
    chosen = [
        (arm, start, seed)
        for seed in options.seed or profile.seeds
        for start in options.start or starts
        for arm in options.arm or experiment.arms
    ]
    if options.action == "replay" and len(chosen) != 1:
        parser.error("replay takes one cell: name it by --arm, --start and --seed")
    if options.model and (options.action != "replay" or options.model.exists()):
        parser.error("--model goes with replay, and names a folder that does not exist yet")
    warnings.filterwarnings("ignore", category=FutureWarning)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    if options.action == "replay":
        return replay(path, experiment, options.profile, *chosen[0], model=options.model)
    run(path, experiment, options.profile, chosen, made_by=options.commit or commit())
    return 0


def run(
    path: Path, experiment: Experiment, profile_name: str, cells: Sequence[tuple[str, int, int]], *, made_by: str
) -> None:
    """Makes the cells that the summary `path` does not hold yet, in this order.

    Args:
        path: the summary.
        experiment: the experiment.
        profile_name: of its scale.
        cells: arm, warm start and seed of each.
        made_by: commit of the files here, as it was at the beginning: a later one did not make the cells.

    Raises:
        ConfigurationError: see `check_commit`; or the cells in `path` were made with other settings or from other
            weights.
    """
    check_commit(path, made_by, option="--results")
    profile = experiment.profiles[profile_name]
    settings = json.loads(json.dumps(plain({"profile": profile, "arms": experiment.arms})))
    command = f"python -m benchmarks.learning {experiment.name} run --profile {profile_name}"
    there = 0
    for number, (arm, start, seed) in enumerate(cells, start=1):
        shared, finished = read_results(path)
        check_settings(path, shared, finished, settings)
        if any((arm, start, seed) == (cell["arm"], cell["start"], cell["seed"]) for cell in finished):
            there += 1
            continue
        print_line(f"cell {number} of {len(cells)}: {arm}, warm start {start}, seed {seed}")
        folder, weights, known = _prepare_start(experiment, profile, arm, start, finished)
        if known and weights not in known:
            raise ConfigurationError(
                f"Warm start {start} of {arm} has the weights {weights} here; the cells in {path} began from "
                f"{', '.join(sorted(known))}, so that new ones are not comparable. Use another file with --results."
            )
        with tempfile.TemporaryDirectory() as scratch:
            cell = summarised(make_cell(experiment, profile, arm, start, seed, folder, Path(scratch)))
        key = {"arm": arm, "start": start, "seed": seed, "start_weights": weights}
        made = dict(zip(MADE, (made_by, command, platform()), strict=True))
        add_result(path, key | cell, settings=settings, made=made)
    if there:
        print_line(
            f"already there: {there} of {len(cells)} cells, in {path}; `replay` makes one of them again, and "
            "`run --results FILE` makes them into another file"
        )


def replay(
    path: Path, experiment: Experiment, profile_name: str, arm: str, start: int, seed: int, *, model: Path | None = None
) -> int:
    """Makes a finished cell again, its warm start too, and prints whether scores and hashes are equal.

    Its episodes are written into the experiment's cache, its model into the new folder `model`, if one is named.

    Returns:
        the exit status: 0 if all that the summary holds is equal, apart from times, else 1.

    Raises:
        ConfigurationError: the cell is not finished.
    """
    name, profile = f"{arm}, warm start {start}, seed {seed}", experiment.profiles[profile_name]
    _, finished = read_results(path)
    cell = next((cell for cell in finished if (arm, start, seed) == (cell["arm"], cell["start"], cell["seed"])), None)
    if cell is None:
        raise ConfigurationError(f"{path} holds no cell of {name}: `run` it first.")
    folder, weights, _ = _prepare_start(experiment, profile, arm, start, finished)
    with tempfile.TemporaryDirectory() as scratch:
        made = make_cell(experiment, profile, arm, start, seed, folder, Path(scratch), cache=Path(scratch) / "cache")
        if model is not None:
            shutil.copytree(Path(scratch) / "model", model)
    if EPISODES in made:
        with atomic_file(experiment.cache / f"{arm}-{start}-{seed}.jsonl") as temporary:
            temporary.write_text(episode_lines(made[EPISODES]), encoding="utf-8")
    again = {**summarised(made), "arm": arm, "start": start, "seed": seed, "start_weights": weights}
    compared = [key for key in cell if key not in TIMES.union(MADE)]
    unrecorded = [key for key in compared if cell[key] is None and again.get(key) is not None]
    differing = [key for key in compared if key not in unrecorded and again.get(key) != cell[key]]
    note = f" (not recorded: {', '.join(unrecorded)})" if unrecorded else ""
    print_line(f"{name}: {'differs in ' + ', '.join(differing) if differing else 'equal'}{note}")
    return int(bool(differing))


def make_cell(
    experiment: Experiment,
    profile: Profile,
    arm_name: str,
    start: int,
    seed: int,
    folder: Path,
    scratch: Path,
    *,
    cache: Path | None = None,
) -> Cell:
    """Trains and tests one policy.

    Args:
        experiment: the experiment.
        profile: its scale.
        arm_name: of the arm.
        start: number of the warm start.
        seed: of training and of the samples in evaluations.
        folder: of the warm start's model.
        scratch: folder for temporary files; the final model is left in its folder `model`.
        cache: folder of what cells share; None: the experiment's. A replay has one of its own, so that it makes all.

    Returns:
        scores, the hash of the final weights, and the rows of the test episodes.
    """
    arm, begin = experiment.arms[arm_name], profile.starts[start]
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    policy = Policy(load_start(folder), tokenizer, seed, profile.env, arm.rag, profile.turn_tokens)
    cpu = time.process_time()
    model, facts = arm.learn(Run(profile, arm, begin, seed, policy, scratch, folder, cache or experiment.cache))
    tested = policy._replace(model=model)
    played = {
        title: tested.play({**options, **begin.env}, profile.test_questions)
        for title, options in profile.tests.items()
        if "exact" not in facts  # arms that are commands evaluate by a command
    }
    seconds = time.process_time() - cpu
    cell: Cell = {"weights": digest(model), **facts}
    save_half(model, tokenizer, scratch / "model")
    if played:
        cell |= {
            "exact": {title: marks(episodes) for title, episodes in played.items()},
            **{name: measure(chain(*played.values())) for name, measure in profile.test_measures.items()},
            EPISODES: [episode_row(title, episode) for title, episodes in played.items() for episode in episodes],
        }
    return cell | {"cpu_seconds": round(seconds, 1)}


def _prepare_start(
    experiment: Experiment, profile: Profile, arm: str, start: int, finished: Sequence[Cell]
) -> tuple[Path, str, set[str]]:
    """Finds or teaches a warm start; returns its folder, the hash of its weights, and the hashes that cells name.

    A cached model counts if finished cells that begin with it name its weights, or if there are none. Other settings
    are cached in another folder.
    """
    teaching = experiment.teaching(profile, arm, start)
    alike = [cell for cell in finished if experiment.teaching(profile, cell["arm"], cell["start"]) == teaching]
    known = {cell["start_weights"] for cell in alike}
    if teaching is None:
        return SHIPPED, digest(load_start(SHIPPED)), known
    folder = experiment.cache / f"start-{blake2b(repr(teaching).encode(), digest_size=4).hexdigest()}"
    with locked(folder, timeout=_LOCK_SECONDS):
        if folder.exists() and known and digest(load_start(folder)) not in known:
            shutil.rmtree(folder)
        if not folder.exists():
            print_line(f"warm start, cached in {folder}: {teaching}")
            with atomic_directory(folder) as temporary:
                facts = {"start": repr(teaching), **teaching.teach(temporary), **provenance([experiment.name])}
                (temporary / START_FACTS).write_text(json.dumps(facts) + "\n", encoding="utf-8")
    return folder, digest(load_start(folder)), known
